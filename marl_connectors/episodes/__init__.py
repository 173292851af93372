"""Trajectories: rollouts hold them in columns, with a row for each agent-step, and episodes are views of these.

A *lane* is the place of one agent of one sub-environment in a rollout. A *row* is one step of that agent.
"""
