"""TorchModule: an RLModule made of a user's torch modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from torch import Tensor, nn

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError, did_you_mean
from marl_connectors.rl_module.apis import InferenceOnlyAPI, ValueFunctionAPI
from marl_connectors.rl_module.distributions import Distribution, default_distribution
from marl_connectors.rl_module.rl_module import RLModule

_KEYS = ("policy", "value", "action_distribution", "critic_inputs")


class TorchModule(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """An RLModule whose policy and value function are your own torch modules.

    ``model_config`` holds the functions that make them, so that each RLModule has its own::

        def policy(observation_space, num_outputs):
            return nn.Sequential(nn.Linear(observation_space.shape[0], 64), nn.ReLU(), nn.Linear(64, num_outputs))

        RLModuleSpec(TorchModule, model_config={"policy": policy, "value": policy})

    * ``policy``: ``fn(observation_space, num_outputs)``. Its module turns ``obs`` into ``[B, num_outputs]``, the
      ``action_dist_inputs`` of the actions' distribution.
    * ``value``: ``fn(observation_space, 1)``. Its module turns ``obs`` into ``[B, 1]`` (or ``[B]``). It may be
      left out if there is no critic.
    * ``critic_inputs``: The number of values of ``critic_obs``, which MAPPOConfig sets. The value function then reads
      ``critic_obs``, and its ``observation_space`` is a Box of this size.
    * ``action_distribution``: for Box actions, as in DefaultModelConfig.

    It reads ``obs`` as the env-to-module pipeline returns it, and writes ``action_dist_inputs``.
    """

    def setup(self) -> None:
        """Calls the two functions."""
        config = self.model_config
        if not isinstance(config, Mapping) or "policy" not in config:
            raise ModuleError(
                "TorchModule: model_config must be a dict with 'policy', a function of the observation space and the "
                "number of outputs that makes a torch module."
            )
        for key in config:
            if key not in _KEYS:
                raise ModuleError(f"TorchModule: model_config has no key {key!r}. {did_you_mean(key, _KEYS)}")
        assert self.action_space is not None
        num_outputs = self.get_train_action_dist_cls().required_input_dim(self.action_space)
        self.policy = self._made("policy", num_outputs)
        self.value = None if self.inference_only or config.get("value") is None else self._made("value", 1)

    def _made(self, key: str, num_outputs: int) -> nn.Module:
        make = self.model_config[key]
        if isinstance(make, nn.Module) or not callable(make):
            raise ModuleError(
                f"TorchModule: {key!r} must be a function that makes a torch module, not {type(make).__name__}: each "
                f"RLModule needs its own. model_config={{'{key}': lambda observation_space, num_outputs: ...}}."
            )
        made = make(self._value_space() if key == "value" else self.observation_space, num_outputs)
        if not isinstance(made, nn.Module):
            raise ModuleError(
                f"TorchModule: {key!r} returned {type(made).__name__}, not a torch module. Return an nn.Module."
            )
        return made

    def _value_space(self) -> Space | None:
        size = self.model_config.get("critic_inputs")
        return self.observation_space if size is None else Box(-np.inf, np.inf, (size,), np.float32)

    def _dist_cls_for(self, action_space: Space) -> type[Distribution]:
        return default_distribution(action_space, self.model_config.get("action_distribution", "gaussian"))

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Any = None) -> Tensor:
        """Returns ``[B]`` value estimates of ``batch["obs"]``, or of ``batch["critic_obs"]`` with ``critic_inputs``.

        Raises:
            ModuleError: If the module has no value function.
        """
        if self.value is None:
            raise ModuleError(
                "TorchModule: it has no value function. Pass one in model_config={'value': ...}, or set "
                "use_critic=False."
            )
        is_central = "critic_inputs" in self.model_config
        values = self.value(batch[Columns.CRITIC_OBS if is_central else Columns.OBS])
        return values.squeeze(-1) if values.dim() == 2 and values.shape[-1] == 1 else values

    def get_non_inference_attributes(self) -> list[str]:
        """Returns the name of the value function."""
        return ["value"]
