"""How layers begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from marl_connectors.errors import ConfigError, did_you_mean

INITIALIZERS = tuple(sorted(name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")))
"""The names that an initializer may have."""


@dataclass(frozen=True)
class Initializers:
    """What fills new weights and biases: a function of a tensor, or the name of one in ``torch.nn.init``.

    Weights start orthogonal with a gain of ``sqrt(2)``, biases at 0, unless the user says otherwise (Engstrom et al.
    (2020), arXiv:2005.12729, on why that matters for PPO).
    """

    kernel: str | Callable[..., Any] | None = None
    kernel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bias: str | Callable[..., Any] | None = None
    bias_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any, prefix: str) -> Initializers:
        """The settings ``{prefix}_kernel_initializer`` and its siblings of a model config."""
        found = [
            getattr(config, f"{prefix}_{part}") for part in ("kernel_initializer", "kernel_initializer_kwargs")
        ] + [getattr(config, f"{prefix}_{part}") for part in ("bias_initializer", "bias_initializer_kwargs")]
        return cls(found[0], found[1] or {}, found[2], found[3] or {})

    def fill_weight(self, weight: Tensor, gain: float = math.sqrt(2)) -> None:
        """Fills a ``[out, in, ...]`` weight; ``gain`` is for the default one."""
        if self.kernel is None:
            nn.init.orthogonal_(weight, gain)
        else:
            _fill(weight, self.kernel, self.kernel_kwargs)

    def fill_bias(self, bias: Tensor) -> None:
        """Fills an ``[out]`` bias."""
        if self.bias is None:
            nn.init.zeros_(bias)
        else:
            _fill(bias, self.bias, self.bias_kwargs)


def _fill(tensor: Tensor, initializer: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Has an initializer fill a tensor. An error of a user's function shows as it is; one of torch's is explained."""
    if callable(initializer):
        initializer(tensor, **kwargs)
        return
    name = initializer if initializer.endswith("_") else f"{initializer}_"
    if name not in INITIALIZERS:
        raise ConfigError(
            f"model_config: torch.nn.init has no initializer {initializer!r}. {did_you_mean(name, INITIALIZERS)}"
        )
    try:
        getattr(nn.init, name)(tensor, **kwargs)
    except Exception as error:
        raise ConfigError(
            f"model_config: the initializer {name!r} with arguments {dict(kwargs)} fails for a tensor of shape "
            f"{list(tensor.shape)}: {error}. Choose another one, or change its arguments."
        ) from error
