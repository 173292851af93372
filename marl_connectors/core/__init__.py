"""RLlib's paths to columns, modules and learners, for code that was written for them."""
