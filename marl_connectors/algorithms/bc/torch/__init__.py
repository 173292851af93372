"""RLlib's path to BC's default module."""
