"""RLlib's paths to PPO's learner and module."""
