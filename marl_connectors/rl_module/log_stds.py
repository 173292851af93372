"""Which of the ``action_dist_inputs`` are logarithms of standard deviations, and what modules do with them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from marl_connectors.rl_module.distributions import Distribution, TorchDiagGaussian, TorchMultiDistribution


class Stretch(NamedTuple):
    """Inputs of a distribution that stand side by side.

    Attributes:
        is_log_std: Whether they are logarithms of standard deviations.
        length: How many.
    """

    is_log_std: bool
    length: int


def stretches_of(dist_cls: type[Distribution], num_inputs: int) -> list[Stretch]:
    """All inputs of a distribution, in order."""
    if issubclass(dist_cls, TorchDiagGaussian):
        return [Stretch(False, num_inputs // 2), Stretch(True, num_inputs // 2)]
    if issubclass(dist_cls, TorchMultiDistribution):
        return [stretch for part in dist_cls.parts for stretch in stretches_of(part.dist_cls, part.num_inputs)]
    return [Stretch(False, num_inputs)]


class LogStds:
    """What a policy head has to put out, and how ``action_dist_inputs`` are made of it.

    Attributes:
        num_outputs: Of the head.
        num_free: How many log standard deviations are a parameter of their own.
        leave_outputs: Whether the head's outputs are the ``action_dist_inputs`` as they are.
    """

    def __init__(self, dist_cls: type[Distribution], action_space: Space, *, free: bool, bound: float):
        """Works out the stretches.

        Args:
            dist_cls: Of the actions.
            action_space: Of the actions.
            free: Whether log standard deviations are a parameter, instead of outputs of the head.
            bound: They are kept in ``[-bound, bound]``.
        """
        num_inputs = dist_cls.required_input_dim(action_space)
        self._stretches = stretches_of(dist_cls, num_inputs)
        num_log_stds = sum(stretch.length for stretch in self._stretches if stretch.is_log_std)
        self._bound = bound
        self.num_free = num_log_stds if free else 0
        self.num_outputs = num_inputs - self.num_free
        self.leave_outputs = not num_log_stds

    def array_inputs(self, parameter: np.ndarray | None) -> Callable[[np.ndarray], np.ndarray] | None:
        """What makes ``[B, n]`` inputs of a head's outputs, in arrays without gradients; None if they are the same.

        Args:
            parameter: ``[B, num_free]``, that of each row.
        """
        if self.leave_outputs:
            return None
        ends = list(accumulate(stretch.length for stretch in self._stretches))
        places = [(s.is_log_std, slice(end - s.length, end)) for s, end in zip(self._stretches, ends, strict=True)]
        bound = self._bound

        def clipped(outputs: np.ndarray) -> np.ndarray:
            for is_log_std, place in places:
                if is_log_std:
                    np.clip(outputs[..., place], -bound, bound, out=outputs[..., place])
            return outputs

        if parameter is None:
            return clipped

        def put_together(outputs: np.ndarray) -> np.ndarray:
            inputs = np.empty((*outputs.shape[:-1], ends[-1]), outputs.dtype)
            begin = {False: 0, True: 0}
            for is_log_std, place in places:
                own = slice(begin[is_log_std], begin[is_log_std] + place.stop - place.start)
                begin[is_log_std] = own.stop
                inputs[..., place] = parameter[:, own] if is_log_std else outputs[..., own]
            return clipped(inputs)

        return put_together

    def inputs(self, outputs: Tensor, parameter: Tensor | None) -> Tensor:
        """``[..., n]`` inputs of a head's ``[..., num_outputs]`` and the parameter, which may be stacked."""
        if self.leave_outputs:
            return outputs
        if parameter is None:
            parts = list(outputs.split([stretch.length for stretch in self._stretches], -1))
        else:
            if parameter.dim() == 2:
                parameter = parameter.view(len(parameter), *[1] * (outputs.dim() - 2), -1)
            free = parameter.expand(*outputs.shape[:-1], -1)
            lengths = [[s.length for s in self._stretches if s.is_log_std is kind] for kind in (False, True)]
            from_head, from_parameter = iter(outputs.split(lengths[0], -1)), iter(free.split(lengths[1], -1))
            parts = [next(from_parameter if stretch.is_log_std else from_head) for stretch in self._stretches]
        for i, stretch in enumerate(self._stretches):
            if stretch.is_log_std:
                parts[i] = parts[i].clamp(-self._bound, self._bound)
        return torch.cat(parts, -1)
