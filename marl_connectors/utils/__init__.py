"""RLlib's paths to small tools, for code that was written for them."""
