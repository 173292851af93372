"""RLlib's path to MARWIL's learner."""
