"""RLlib's paths to episodes and runners, for code that was written for them."""
