"""RLlib's path to functions of nested observations and actions."""
