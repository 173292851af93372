"""PPO."""

from __future__ import annotations

from typing import Final

from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.ppo.config import PPOConfig as PPOConfig

LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY: Final = "curr_entropy_coeff"
LEARNER_RESULTS_CURR_KL_COEFF_KEY: Final = "curr_kl_coeff"
LEARNER_RESULTS_KL_KEY: Final = "mean_kl_loss"
LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: Final = "vf_explained_var"
LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: Final = "vf_loss_unclipped"
"""RLlib's names of PPO's loss statistics."""


class PPO(Algorithm):
    """Proximal policy optimisation. ``PPOConfig().build_algo()`` makes an object of this class."""

    config: PPOConfig

    @classmethod
    def get_default_config(cls) -> PPOConfig:
        """Returns a PPOConfig with all defaults."""
        return PPOConfig()
