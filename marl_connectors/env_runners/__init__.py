"""Env runners: they step the sub-environments with connector pipelines and modules, and return episodes."""
