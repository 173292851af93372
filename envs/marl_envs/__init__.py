"""Small PettingZoo environments with known answers: to try things out on, to measure with, and to find bugs.

Import an environment by its module, as with PettingZoo's own: ``from marl_envs import match_v0`` and then
``match_v0.parallel_env()``. ``docs/environments.md`` shows what each is there for.
"""
