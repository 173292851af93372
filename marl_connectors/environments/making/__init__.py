"""From what a user calls an environment to an environment."""
