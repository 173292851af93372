"""The default module of SAC: a policy, one or two critics with their target networks, and the temperature."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI, make_target_network
from marl_connectors.rl_module.default_model_config import Activation, DefaultModelConfig
from marl_connectors.rl_module.distributions import Distribution, default_distribution
from marl_connectors.rl_module.encoders import Encoder, make_head
from marl_connectors.rl_module.layers import MLP, RecurrentLayer
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe
from marl_connectors.validators import Switch, number, one_of

if TYPE_CHECKING:
    from typing_extensions import Self

CRITICS: Final = "qf", "qf_twin"
"""The names of the critics, which have a learning rate of their own."""
QF_TWIN_PREDS: Final = "qf_twin_preds"
"""The second critic's values, of the shape of ``qf_preds``."""
_LARGEST_LOG_STD = 2.0
"""Standard deviations far beyond 1 leave a squashed action at the ends of its range."""


@dataclasses.dataclass
class SACModelConfig(DefaultModelConfig):
    """The settings of SAC's default modules.

    The critics have layers like the policy's, of their own: ``vf_share_layers`` and ``free_log_std`` are ignored.

    Attributes:
        fcnet_activation: As in DefaultModelConfig.
        action_distribution: For Box actions: ``squashed_gaussian``, or ``gaussian`` for spaces without bounds.
        twin_q: Whether there are two critics. ``SACConfig`` sets it.
        initial_alpha: The temperature at the beginning. ``SACConfig`` sets it.
    """

    fcnet_activation: Activation = "relu"
    action_distribution: Annotated[str, one_of("squashed_gaussian", "gaussian")] = "squashed_gaussian"
    twin_q: Switch = True
    initial_alpha: Annotated[float, number(above=0)] = 1.0

    @classmethod
    def of(cls, model_config: DefaultModelConfig | Mapping[str, Any] | None) -> Self:
        """The settings in a model config of any accepted kind.

        The default distribution of a DefaultModelConfig stands for the default one of SAC.
        """
        if isinstance(model_config, DefaultModelConfig) and not isinstance(model_config, cls):
            model_config = dataclasses.asdict(model_config)
            if model_config["action_distribution"] == DefaultModelConfig.action_distribution:
                del model_config["action_distribution"]
        return super().of(model_config)


class QNetwork(nn.Module):
    """An encoder and a head for the value of an action, or for the values of all actions of a Discrete space.

    Attributes:
        reads_actions: Whether the encoder reads actions beside the observations.
    """

    def __init__(self, observation_space: Space, action_space: Space, config: DefaultModelConfig):
        """Builds the layers.

        Args:
            observation_space: The observation space.
            action_space: A Box or Discrete space.
            config: Sizes, activations and initializers.
        """
        super().__init__()
        self.reads_actions = isinstance(action_space, spaces.Box)
        read, outputs = observation_space, 1
        if isinstance(action_space, spaces.Discrete):
            outputs = int(action_space.n)
        else:
            size = spaces.flatdim(action_space)
            read = spaces.Tuple((observation_space, spaces.Box(-np.inf, np.inf, (size,))))
        self.encoder = Encoder(read, config)
        self.head = make_head(self.encoder.output_dim, outputs, config, gain=1.0)

    def forward(self, obs: Any, actions: Tensor | None) -> Tensor:
        """Returns ``[B]`` values of ``[B, n]`` actions, or ``[B, n]`` values of all actions."""
        if self.reads_actions:
            return self.head(self.encoder((obs, actions))).squeeze(-1)
        return self.head(self.encoder(obs))


class TwinCritics(TargetNetworkAPI, InferenceOnlyAPI):
    """A part of a module: one or two critics, ``qf`` and ``qf_twin``, with their target networks."""

    qf: QNetwork
    qf_twin: QNetwork
    target_qf: nn.Module
    target_qf_twin: nn.Module
    observation_space: Any
    action_space: Any
    config: Any

    def check_networks(self, instead: str) -> None:
        """Raises a ModuleError for spaces and layers that the module cannot have.

        Args:
            instead: The algorithm that can.
        """
        name, space = type(self).__name__, self.action_space
        is_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
        if self.observation_space is None or not (is_box or isinstance(space, spaces.Discrete)):
            raise ModuleError(
                f"{name}: expected an observation space and a Discrete or float Box action space, but the action space "
                f"is {'none' if space is None else describe(space)}. Flatten the action space in a wrapper of the "
                f"environment, or use {instead}."
            )
        if self.config.use_lstm or self.config.use_gru:
            raise ModuleError(
                f"{name}: use_lstm and use_gru are not supported. Let the environment stack frames instead, for "
                f"example .environment(wrappers=['frame_stack_v1:4'])."
            )

    def make_critics(self, observation_space: Space, action_space: Space) -> None:
        """Makes the critics, two if the module's settings have ``twin_q``."""
        self.qf = QNetwork(observation_space, action_space, self.config)
        if self.config.twin_q:
            self.qf_twin = QNetwork(observation_space, action_space, self.config)

    def critics(self) -> list[QNetwork]:
        """Returns the critics."""
        return [self.qf, self.qf_twin] if self.config.twin_q else [self.qf]

    def target_critics(self) -> list[nn.Module]:
        """Returns the target networks of the critics."""
        return [self.target_qf, self.target_qf_twin] if self.config.twin_q else [self.target_qf]

    def make_target_networks(self) -> None:
        """Makes copies of the critics."""
        self.target_qf = make_target_network(self.qf)
        if self.config.twin_q:
            self.target_qf_twin = make_target_network(self.qf_twin)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Returns the critics with their copies."""
        return list(zip(self.critics(), self.target_critics(), strict=True))

    def get_non_inference_attributes(self) -> list[str]:
        """Returns the critics and their target networks."""
        return [*CRITICS, "target_qf", "target_qf_twin"]


def by_critic(what: str, values: Iterable[Any]) -> dict[str, Any]:
    """Returns what one critic or each of two has, by names such as ``qf_preds`` and ``qf_twin_preds``."""
    return {f"{name}_{what}": own for name, own in zip(CRITICS, values, strict=False)}


def smaller(values: Mapping[str, Tensor]) -> Tensor:
    """Returns the smaller values of both critics, or those of a single one."""
    return torch.minimum(values[QF_PREDS], values[QF_TWIN_PREDS]) if QF_TWIN_PREDS in values else values[QF_PREDS]


@contextmanager
def frozen(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Lets gradients pass through networks, without gradients for their parameters."""
    parameters = [p for network in networks for p in network.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


class DefaultSACRLModule(RLModule, TwinCritics):
    """A policy, and critics that share no layers with it, for Box and Discrete actions.

    The module reads ``obs``, and writes ``action_dist_inputs``. When training, it also reads ``actions`` if the space
    is a Box, and writes ``qf_preds`` and, with ``twin_q``, ``qf_twin_preds``: the values of these actions (``[B]``),
    or those of all actions of a Discrete space (``[B, n]``).

    Attributes:
        log_alpha: ``[1]``, the logarithm of the temperature.
    """

    stackable = True
    model_config_class = SACModelConfig
    action_distribution = SACModelConfig.action_distribution

    def setup(self) -> None:
        """Builds the networks that ``model_config`` (a SACModelConfig or dict) describes."""
        config = self.config = SACModelConfig.of(self.model_config)
        self.check_networks(instead="PPO")
        assert self.observation_space is not None and self.action_space is not None
        self._is_discrete = isinstance(self.action_space, spaces.Discrete)
        self.encoder = Encoder(self.observation_space, config)
        num_inputs = self.get_train_action_dist_cls().required_input_dim(self.action_space)
        self.pi = make_head(self.encoder.output_dim, num_inputs, config, gain=0.01)
        if self.inference_only:
            return
        self.make_critics(self.observation_space, self.action_space)
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(config.initial_alpha)))

    def _dist_cls_for(self, action_space: Space) -> type[Distribution]:
        return default_distribution(action_space, SACModelConfig.of(self.model_config).action_distribution)

    def acting_layers(self) -> Sequence[MLP | RecurrentLayer]:
        """Returns the encoder and the policy head."""
        return self.encoder, self.pi

    def acting_outputs(
        self, modules: Sequence[Any], counts: Sequence[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Returns what clips the log standard deviations, if there are any."""
        if self._is_discrete:
            return None
        low, high = self._log_std_bounds

        def clipped(outputs: np.ndarray) -> np.ndarray:
            log_stds = outputs[..., outputs.shape[-1] // 2 :]
            np.clip(log_stds, low, high, out=log_stds)
            return outputs

        return clipped

    @property
    def _log_std_bounds(self) -> tuple[float, float]:
        bound = self.config.log_std_clip_param
        return -bound, min(bound, _LARGEST_LOG_STD)

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        outputs = self.pi(self.encoder(batch[Columns.OBS]))
        if not self._is_discrete:
            means, log_stds = outputs.chunk(2, -1)
            outputs = torch.cat([means, log_stds.clamp(*self._log_std_bounds)], -1)
        return {Columns.ACTION_DIST_INPUTS: outputs}

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        taken = batch
        if isinstance(self.action_space, spaces.Box) and not self.action_space.shape:  # critics read vectors
            taken = {Columns.OBS: batch[Columns.OBS], Columns.ACTIONS: batch[Columns.ACTIONS].unsqueeze(-1)}
        return {**self._forward(batch), **self.compute_q_values(taken)}

    def compute_q_values(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns ``qf_preds`` and, with ``twin_q``, ``qf_twin_preds`` of a batch."""
        return self._values(self.critics(), batch)

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the same as ``compute_q_values``, by the target networks."""
        return self._values(self.target_critics(), batch)

    def _values(self, networks: Sequence[nn.Module], batch: Mapping[str, Any]) -> dict[str, Tensor]:
        obs = batch[Columns.OBS]
        actions = None if self._is_discrete else flat_actions(batch[Columns.ACTIONS], self.action_space)
        return by_critic("preds", (network(obs, actions) for network in networks))

    def get_non_inference_attributes(self) -> list[str]:
        """Returns the critics, their target networks and the temperature."""
        return [*super().get_non_inference_attributes(), "log_alpha"]


def flat_actions(actions: Tensor, space: Any) -> Tensor:
    """Returns ``[..., n]`` actions of a Box, which may have the space's shape."""
    shape = space.shape
    return actions.flatten(-len(shape)) if len(shape) > 1 and actions.shape[-len(shape) :] == shape else actions


DefaultSACTorchRLModule = DefaultSACRLModule
"""RLlib's name."""
