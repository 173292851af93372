"""Small PettingZoo environments with known answers: one to measure a framework's own cost, one to find its bugs.

Import an environment by its module, as with PettingZoo's own: ``from marl_envs import match_v0`` and then
``match_v0.parallel_env()``.
"""
