"""RLlib's path to ``marl_connectors.learner``."""
