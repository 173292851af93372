"""Env runners: pipelines and modules play the environment copies, and episodes come out."""
