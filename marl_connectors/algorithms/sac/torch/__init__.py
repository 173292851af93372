"""RLlib's paths to SAC's learner and module."""
