"""Makes an environment from what a user passes as one: a name, a class, a function or a spec."""
