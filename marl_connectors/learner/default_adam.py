"""The optimizer of all modules that have none of their own: Adam, which steps each module of a bucket as one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from marl_connectors.errors import LearnerError
from marl_connectors.learner.loss_stats import FiniteCheck
from marl_connectors.rl_module.bucket import MemberRow
from marl_connectors.typing import ModuleID

Moments = dict[str, Tensor]
"""``step``, a scalar, and the means ``exp_avg`` and ``exp_avg_sq``, which have the shape of what is stepped."""

RowOf = Callable[[ModuleID], MemberRow | None]
"""Where the parameters of a module stand in a bucket, if they do."""


class FlatSegment:
    """Parameters that are stepped as one tensor: one by itself, or several that stand side by side in a bucket.

    Attributes:
        parameters: Those that it consists of.
        values: The parameter, or a flat view of several.
        moments: Of these; empty before the first step.
    """

    def __init__(self, parameters: Sequence[Tensor], row: MemberRow | None, moments: Mapping[Tensor, Moments]):
        """Takes over those moments that there are of the parameters."""
        self.parameters = parameters
        self._kinds = [(p.shape, p.dtype, p.device) for p in parameters]
        self.values, self._gradients = parameters[0], None
        if row is not None:
            begin, end = row.slices[parameters[0]].begin, row.slices[parameters[-1]].end
            self.values, self._gradients = row.values[begin:end], row.gradients[begin:end]
        self.moments: Moments = {}
        own = [moments[p] for p in parameters if p in moments]
        if own and row is None:
            self.moments = own[0]
        elif own:
            means = ("exp_avg", "exp_avg_sq")
            self.moments = {name: torch.cat([one[name].reshape(-1) for one in own]) for name in means}
            self.moments["step"] = own[0]["step"]

    @property
    def gradients(self) -> Tensor | None:
        """Of the values, if there are any."""
        return self.values.grad if self._gradients is None else self._gradients

    @property
    def is_flat(self) -> bool:
        """Whether it stands in a bucket."""
        return self._gradients is not None

    @property
    def fits(self) -> bool:
        """Whether a parameter that is stepped by itself has the shape and kind that it came with."""
        values = self.values
        return self.is_flat or (values.shape, values.dtype, values.device) == self._kinds[0]

    def begin(self) -> None:
        """Makes moments, if there are none yet."""
        if not self.moments:
            like = self.values
            self.moments = {name: torch.zeros_like(like) for name in ("exp_avg", "exp_avg_sq")}
            self.moments["step"] = torch.zeros((), dtype=torch.float32, device=like.device)

    def by_parameter(self) -> Iterator[tuple[Tensor, Moments]]:
        """Each parameter's part of the moments, as views."""
        sizes = [shape.numel() for shape, _, _ in self._kinds]
        means = {name: self.moments[name].reshape(-1).split(sizes) for name in self.moments if name != "step"}
        for i, (parameter, (shape, _, _)) in enumerate(zip(self.parameters, self._kinds, strict=True)):
            views = {name: parts[i].view(shape) for name, parts in means.items()}
            yield parameter, {"step": self.moments["step"], **views} if views else {}


class _Step(NamedTuple):
    """What is stepped together, each in a list of equally many tensors.

    Attributes:
        rate: The learning rate.
        values: Of the parameters.
        gradients: Of these.
        means: Moving averages of the gradients.
        squares: Those of their squares.
        counts: How many steps there have been.
    """

    rate: float
    values: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    counts: list[Tensor]

    @classmethod
    def of(cls, rate: float, segments: Sequence[FlatSegment]) -> _Step:
        """Of those segments that have gradients."""
        found = cls(rate, [], [], [], [], [])
        for segment in segments:
            if segment.gradients is not None:
                segment.begin()
                moments = [segment.moments[name] for name in ("exp_avg", "exp_avg_sq", "step")]
                for tensors, own in zip(found[1:], (segment.values, segment.gradients, *moments), strict=True):
                    tensors.append(own)
        return found

    def take(self, skip: Tensor | None) -> None:
        """Takes the step, unless ``skip`` is 1. A hot path."""
        with torch.no_grad():
            adam(
                self.values,
                self.gradients,
                self.means,
                self.squares,
                [],
                self.counts,
                fused=True,
                found_inf=skip,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


class DefaultAdam:
    """Steps the parameters of the modules that have new gradients; those of others rest, with moments and step count.

    Moments belong to parameters. They stay with them when modules are stacked differently, frozen or thawed, while
    layers come and go; a new parameter begins without any, at step 0.
    """

    def __init__(self) -> None:
        self._parameters: dict[ModuleID, Sequence[Tensor]] = {}
        self._segments: dict[ModuleID, list[FlatSegment]] = {}
        self._resting: dict[Tensor, Moments] = {}
        self._rates: dict[ModuleID, float] = {}
        self._steps: dict[tuple[ModuleID, ...], list[_Step]] = {}

    def __contains__(self, module_id: object) -> bool:
        return bool(self._parameters.get(module_id))  # type: ignore[call-overload]

    def arrange(self, parameters: Mapping[ModuleID, Sequence[Tensor]], row_of: RowOf) -> None:
        """Takes over parameters, in place of those so far. Those that are among both keep their moments.

        Args:
            parameters: Of each module, those that are to be stepped.
            row_of: Where those of a module stand in a bucket.
        """
        moments = self._moments()
        self._parameters = {module_id: list(own) for module_id, own in parameters.items()}
        self._arrange(moments, row_of)

    def _arrange(self, moments: Mapping[Tensor, Moments], row_of: RowOf) -> None:
        self._segments, self._resting, self._steps = {}, {}, {}
        for module_id, own in self._parameters.items():
            row = row_of(module_id)
            kept = {p: _fitting(p, moments[p]) for p in own if moments.get(p) and _fits(p, moments[p])}
            segments = [FlatSegment(run, row, kept) for run in _runs(own, row, kept)]
            stepped = {p for segment in segments for p in segment.parameters}
            self._segments[module_id] = segments
            self._resting.update({p: own_moments for p, own_moments in kept.items() if p not in stepped})

    @property
    def fits(self) -> bool:
        """Whether those parameters that are stepped by themselves have the shape and kind that they came with."""
        return all(segment.fits for segments in self._segments.values() for segment in segments)

    def set_rates(self, rates: Mapping[ModuleID, float]) -> None:
        """Learning rates from now on."""
        self._rates, self._steps = dict(rates), {}

    def step(self, module_ids: Sequence[ModuleID], check: FiniteCheck) -> None:
        """Steps these modules, and these only; none if ``check`` says so. A hot path."""
        key = tuple(module_ids)
        steps = self._steps.get(key)
        if steps is None:
            segments = [(self._rates[m], segment) for m in key for segment in self._segments.get(m, ())]
            steps = [_Step.of(rate, [s for r, s in segments if r == rate]) for rate in {rate for rate, _ in segments}]
            if all(segment.is_flat for _, segment in segments):  # gradients of others come and go
                self._steps[key] = steps
        for one in steps:
            one.take(check.skip)

    # State.

    def _moments(self) -> dict[Tensor, Moments]:
        """By parameter; empty for one that was never stepped."""
        segments = [segment for own in self._segments.values() for segment in own]
        return {**self._resting, **{p: own for segment in segments for p, own in segment.by_parameter()}}

    def get_state(self) -> dict[ModuleID, list[Moments]]:
        """The moments of each module's parameters, as copies; empty ones where it was never stepped."""
        moments = self._moments()
        return {
            module_id: [{name: value.detach().clone() for name, value in moments.get(p, {}).items()} for p in own]
            for module_id, own in self._parameters.items()
        }

    def set_state(self, state: Mapping[ModuleID, Sequence[Mapping[str, Any]]], row_of: RowOf) -> None:
        """Takes moments that ``get_state`` gave, for the modules named there.

        Raises:
            LearnerError: If they are of other parameters.
        """
        moments = self._moments()
        for module_id, saved in state.items():
            own = self._parameters.get(module_id, ())
            shapes = [tuple(p.shape) for p in own]
            there = [tuple(m["exp_avg"].shape) if m else shape for m, shape in zip(saved, shapes, strict=False)]
            if saved and (len(saved) != len(own) or there != shapes):
                raise LearnerError(
                    f"Optimizers.set_state: the state has Adam's moments of {len(saved)} parameters of module "
                    f"{module_id!r}, of the shapes {there}, but here it steps {len(own)}, of {shapes}. Build the "
                    f"learner with the same modules and optimizers as the one that was saved."
                )
            for parameter, values in zip(own if saved else (), saved, strict=True):
                moments[parameter] = {name: torch.as_tensor(value).clone() for name, value in values.items()}
        self._arrange(moments, row_of)


def _fits(parameter: Tensor, moments: Moments) -> bool:
    return moments["exp_avg"].shape == parameter.shape


def _fitting(parameter: Tensor, moments: Moments) -> Moments:
    """A copy of the moments on the parameter's device, and as exact as it is."""
    return {
        name: value.to(parameter.device, value.dtype if name == "step" else parameter.dtype, copy=True)
        for name, value in moments.items()
    }


def _runs(parameters: Sequence[Tensor], row: MemberRow | None, moments: Mapping[Tensor, Moments]) -> Iterator[list]:
    """The parameters that can be stepped as one tensor: side by side, with equal step counts, and not frozen."""
    if row is None:
        yield from ([p] for p in parameters)
        return
    run: list[Tensor] = []
    at = None
    for parameter in parameters:
        where = row.slices[parameter]
        if not where.requires_grad:
            continue
        steps = float(moments[parameter]["step"]) if parameter in moments else 0.0
        if run and at != (where.begin, steps):
            yield run
            run = []
        run.append(parameter)
        at = where.end, steps
    if run:
        yield run
