"""Multi-agent PPO with a centralised critic, Yu et al. (2022), arXiv:2103.01955."""

from marl_connectors.algorithms.mappo.config import MAPPOConfig as MAPPOConfig
