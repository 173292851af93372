"""Environments for tests, and random spaces."""
