"""Finds, makes and wraps environments by what a user passes as one: a name, a class or a function."""
