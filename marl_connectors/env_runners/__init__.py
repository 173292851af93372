"""Sampling: steps sub-environments with actions of modules, and returns episodes.

A *lane* is the place of one agent of one sub-environment in a rollout. A *row* is one step of that agent.
"""
