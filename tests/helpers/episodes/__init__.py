"""Random histories of agents, episodes made of them, and references to compare episodes and batches with."""
