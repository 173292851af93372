"""Environments: the rules for them, adapters of each kind, vectors of them, and the registry of their names."""
