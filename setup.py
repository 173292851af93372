"""Names the packages, which lie under two roots; everything else is in setup.cfg."""

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["marl_connectors", "marl_connectors.*"]) + find_packages("envs"),
    package_dir={"marl_envs": "envs/marl_envs"},
)
