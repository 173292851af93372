"""Env runners: pipelines and modules play the sub-environments, and episodes come out."""
