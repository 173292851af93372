"""What tests share: environments, modules, runs, and slow references for what the library computes.

``pyproject.toml`` puts ``tests/`` on the path, so that tests and worker processes import
``helpers.envs.scripted_envs`` and so on.
"""
