"""Proximal policy optimisation, Schulman et al. (2017), arXiv:1707.06347."""

from marl_connectors.algorithms.ppo.config import PPOConfig as PPOConfig
