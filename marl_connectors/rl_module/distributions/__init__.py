"""Action distributions, which turn a module's outputs into actions, log-probabilities, entropy and KL divergence."""

from marl_connectors.rl_module.distributions.beta import TorchBeta
from marl_connectors.rl_module.distributions.categorical import TorchBernoulli, TorchCategorical, TorchMultiCategorical
from marl_connectors.rl_module.distributions.default import BOX_DISTRIBUTIONS, default_distribution
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.epsilon_greedy import EpsilonGreedy
from marl_connectors.rl_module.distributions.gaussian import (
    TorchClippedGaussian,
    TorchDiagGaussian,
    TorchSquashedGaussian,
)
from marl_connectors.rl_module.distributions.masks import apply_action_mask
from marl_connectors.rl_module.distributions.multi import TorchMultiDistribution
from marl_connectors.rl_module.distributions.uniform import TorchUniform

__all__ = [
    "BOX_DISTRIBUTIONS",
    "Distribution",
    "EpsilonGreedy",
    "TorchBernoulli",
    "TorchBeta",
    "TorchCategorical",
    "TorchClippedGaussian",
    "TorchDiagGaussian",
    "TorchMultiCategorical",
    "TorchMultiDistribution",
    "TorchSquashedGaussian",
    "TorchUniform",
    "apply_action_mask",
    "default_distribution",
]
