"""RLlib's paths to DQN's learner and module."""
