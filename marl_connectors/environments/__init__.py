"""Finds, makes and wraps environments, and steps several of them in this process or in worker processes."""
