"""Sampling: sub-environments are stepped, modules choose actions, and episodes come out.

A *lane* is the place of one agent of one sub-environment in a rollout. A *row* is one step of that agent.
"""
