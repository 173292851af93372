"""RLlib's path to ``marl_connectors.rl_module.distributions``."""

from marl_connectors.rl_module.distributions import TorchBernoulli as TorchBernoulli
from marl_connectors.rl_module.distributions import TorchCategorical as TorchCategorical
from marl_connectors.rl_module.distributions import TorchDiagGaussian as TorchDiagGaussian
from marl_connectors.rl_module.distributions import TorchMultiCategorical as TorchMultiCategorical
from marl_connectors.rl_module.distributions import TorchMultiDistribution as TorchMultiDistribution
from marl_connectors.rl_module.distributions import TorchSquashedGaussian as TorchSquashedGaussian
