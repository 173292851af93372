"""Small PettingZoo environments with known optimal returns, for experiments, measurements and finding bugs.

Import an environment by its module, as with PettingZoo's own: ``from marl_envs import match_v0`` and then
``match_v0.parallel_env()``. ``docs/environments.md`` explains the purpose of each environment.
"""
