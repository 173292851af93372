"""RLlib's path to the functions that wrap environments."""
