"""Settings of the modules that the library builds when the user brings none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from marl_connectors.errors import ConfigError, did_you_mean


@dataclasses.dataclass
class DefaultModelConfig:
    """What the default modules look like. A plain dict with the same keys works too.

    Attributes:
        fcnet_hiddens: Sizes of the hidden layers between the observation and the heads.
        fcnet_activation: After each of them: ``tanh``, ``relu``, ``silu`` (``swish``), ``elu``, ``gelu`` or ``linear``.
        head_fcnet_hiddens: Sizes of further hidden layers in each head.
        head_fcnet_activation: After each of those.
        vf_share_layers: Whether the value head reads the policy's hidden layers, or has its own.
        free_log_std: For Box actions: whether the log standard deviations are parameters of their own instead of
            outputs that depend on the observation.
        log_std_clip_param: For Box actions: the log standard deviations are kept in ``[-x, x]``.
        max_seq_len: For stateful modules: how many steps a training sequence has at most.
    """

    fcnet_hiddens: Sequence[int] = (256, 256)
    fcnet_activation: str = "tanh"
    head_fcnet_hiddens: Sequence[int] = ()
    head_fcnet_activation: str = "relu"
    vf_share_layers: bool = True
    free_log_std: bool = False
    log_std_clip_param: float = 20.0
    max_seq_len: int = 20

    @classmethod
    def of(cls, model_config: DefaultModelConfig | Mapping[str, Any] | None) -> DefaultModelConfig:
        """The settings in a model config of any accepted kind.

        Raises:
            ConfigError: For an unknown key.
        """
        if isinstance(model_config, DefaultModelConfig):
            return model_config
        given = dict(model_config or {})
        known = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in known:
                raise ConfigError(
                    f"model_config: the default modules have no setting {key!r}. {did_you_mean(key, known)}"
                )
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}
