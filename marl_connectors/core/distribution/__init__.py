"""RLlib's path to action distributions."""
