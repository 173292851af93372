"""Environments: finding, making, wrapping and stepping copies of them, in the process or in workers."""
