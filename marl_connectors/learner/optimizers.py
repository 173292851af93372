"""A learner's optimizers: Adam, which steps each module of a bucket as one tensor, or a user's optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl_connectors.errors import LearnerError, did_you_mean
from marl_connectors.learner.gradients import clip_gradients, clip_stacked_gradients, global_norm
from marl_connectors.learner.loss_stats import FiniteCheck
from marl_connectors.ops.schedule import Schedule, schedule, value_at
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.stacking import MemberRow, MemberStack
from marl_connectors.state import Array, State, copied
from marl_connectors.typing import SHARED, ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

RowOf = Callable[[ModuleID], MemberRow | None]
"""Returns a module's row in its bucket; None if it is in no bucket."""

Rates = Mapping[str, Schedule]
"""Learning rates by the names of parameters or layers. ``OTHERS`` has the rate of all parameters that none names."""
OTHERS = ""


class AdamState(State):
    """Adam's moments of a parameter.

    Attributes:
        step: The number of its steps.
        exp_avg: The moving average of its gradients.
        exp_avg_sq: The moving average of its squared gradients.
    """

    step: float
    exp_avg: Array
    exp_avg_sq: Array

    def __post_init__(self) -> None:
        if self.exp_avg.shape != self.exp_avg_sq.shape:
            raise ValueError(f"Expected means of one shape, got {(self.exp_avg.shape, self.exp_avg_sq.shape)}")


class OptimizerState(State):
    """The state of the optimizers of one module.

    Attributes:
        adam: Adam's moments of each parameter that it steps; None for one that was never stepped.
        registered: What ``state_dict`` of each optimizer that was registered returns, by name.
    """

    adam: list[AdamState | None] = []
    registered: dict[str, dict[str, Any]] = {}


class _Run:
    """Parameters that are stepped as one tensor: a single one, or several that stand side by side in a bucket.

    Attributes:
        rate_name: The name of their learning rate.
        values: The parameter, or a flat view of several.
        mean: The moving average of the gradients.
        square: The moving average of the squared gradients.
        count: The number of steps.
    """

    def __init__(
        self, parameters: Sequence[Tensor], rate_name: str, row: MemberRow | None, states: Mapping[Tensor, AdamState]
    ):
        """Makes the run, with those states of its parameters that exist."""
        self.rate_name = rate_name
        self.values, self._gradients = parameters[0], None
        if row is not None:
            begin, end = row.slices[parameters[0]].begin, row.slices[parameters[-1]].end
            self.values, self._gradients = row.values[begin:end], row.gradients[begin:end]
        self.mean, self.square = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.count = torch.zeros((), dtype=torch.float32, device=self.values.device)
        self._parameters = list(parameters)
        for p, here in self.states(0.0, self.mean, self.square).items():
            if p in states:
                here.exp_avg.copy_(torch.as_tensor(states[p].exp_avg))
                here.exp_avg_sq.copy_(torch.as_tensor(states[p].exp_avg_sq))
                self.count.fill_(states[p].step)

    @property
    def gradients(self) -> Tensor | None:
        """The gradients of the values; None for a parameter outside of buckets that no loss depends on."""
        return self.values.grad if self._gradients is None else self._gradients

    def states(self, step: float, mean: Tensor, square: Tensor) -> dict[Tensor, AdamState]:
        """Returns the moments of each parameter, as views of ``mean`` and ``square`` or of copies of them."""
        sizes = [p.numel() for p in self._parameters]
        parts = zip(self._parameters, mean.view(-1).split(sizes), square.view(-1).split(sizes), strict=True)
        return {p: AdamState(step, mean.view(p.shape), square.view(p.shape)) for p, mean, square in parts}


@torch.no_grad()
def _step(runs: Sequence[_Run], rate: float, skip: Tensor | None) -> None:
    """Steps those runs that have gradients, all of one dtype and device, unless ``skip`` is 1.

    ``torch.optim.Adam`` would sort the tensors each time.
    """
    rows = [(r.values, r.gradients, r.mean, r.square, r.count) for r in runs if r.gradients is not None]
    if not rows:
        return
    values, gradients, means, squares, counts = map(list, zip(*rows, strict=True))
    torch._foreach_add_(counts, 1)  # type: ignore[attr-defined]
    torch._fused_adam_(  # type: ignore[attr-defined]
        values,
        gradients,
        means,
        squares,
        [],
        counts,
        found_inf=skip,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=rate,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )
    if skip is not None:
        torch._foreach_sub_(counts, [skip] * len(counts))  # type: ignore[attr-defined]


class DefaultAdam:
    """Steps the parameters of modules that have new gradients. The moments and step counts of others do not change.

    Moments belong to parameters. A parameter keeps them when modules are stacked differently, frozen or unfrozen, and
    when layers are added or removed. A new parameter begins without moments, at step 0.
    """

    def __init__(self) -> None:
        self._parameters: dict[ModuleID, list[Tensor]] = {}
        self._runs: dict[ModuleID, list[_Run]] = {}
        self._frozen: dict[Tensor, AdamState] = {}
        self._rate_names: Mapping[Tensor, str] = {}
        self._rates: Mapping[ModuleID, Mapping[str, float]] = {}

    def __contains__(self, module_id: object) -> bool:
        return bool(self._parameters.get(module_id))  # type: ignore[call-overload]

    def arrange(
        self, parameters: Mapping[ModuleID, Sequence[Tensor]], row_of: RowOf, rate_names: Mapping[Tensor, str]
    ) -> None:
        """Replaces the parameters. Parameters that were stepped before keep their moments.

        Args:
            parameters: The parameters of each module that are stepped. Frozen ones keep their moments for later.
            row_of: Returns the row of a module in its bucket.
            rate_names: The names of the learning rates of parameters; ``OTHERS`` for those that are not in it.
        """
        states = self._keep_states()()
        self._rate_names = rate_names
        self._parameters = {module_id: list(own) for module_id, own in parameters.items()}
        self._arrange(states, row_of)

    def _arrange(self, states: Mapping[Tensor, AdamState], row_of: RowOf) -> None:
        self._runs, self._frozen = {}, {}
        for module_id, own in self._parameters.items():
            kept = {p: states[p] for p in own if p in states and states[p].exp_avg.shape == p.shape}
            self._frozen.update({p: state for p, state in kept.items() if not p.requires_grad})
            row = row_of(module_id)
            self._runs[module_id] = [
                _Run(run, self._rate_names.get(run[0], OTHERS), row, kept) for run in self._divided(own, row, kept)
            ]

    def _divided(
        self, parameters: Sequence[Tensor], row: MemberRow | None, states: Mapping[Tensor, AdamState]
    ) -> list[list[Tensor]]:
        """Returns parameters that are not frozen in runs: side by side, with equal step counts and learning rates."""
        runs: list[list[Tensor]] = []
        at: Any = None
        for p in parameters:
            if not p.requires_grad:
                continue
            kind = self._rate_names.get(p, OTHERS), states[p].step if p in states else 0.0
            if row is not None and at == (row.slices[p].begin, kind):
                runs[-1].append(p)
            else:
                runs.append([p])
            at = None if row is None else (row.slices[p].end, kind)
        return runs

    def set_rates(self, rates: Mapping[ModuleID, Mapping[str, float]]) -> None:
        """Sets the learning rates of each module, by name. Parameters whose rate is left out are not stepped."""
        self._rates = rates

    def step(self, module_ids: Sequence[ModuleID], check: FiniteCheck) -> None:
        """Steps only these modules; none if ``check`` says that a step was not finite."""
        alike: dict[Any, list[_Run]] = {}
        for module_id in module_ids:
            for run in self._runs.get(module_id, ()):
                rate = self._rates[module_id].get(run.rate_name)
                if rate is not None:
                    alike.setdefault((rate, run.values.dtype, run.values.device), []).append(run)
        for (rate, *_), runs in alike.items():
            _step(runs, rate, check.skip)

    # State.

    def _keep_states(self) -> Callable[[], dict[Tensor, AdamState]]:
        """Returns a function that returns the present moments of all parameters that were stepped."""
        frozen, runs = dict(self._frozen), [run for own in self._runs.values() for run in own]
        moments = [(run, run.mean.clone(), run.square.clone()) for run in runs]
        counts = torch.stack([run.count for run in runs]) if runs else torch.zeros(0)

        def states() -> dict[Tensor, AdamState]:
            found = dict(frozen)
            for step, (run, mean, square) in zip(counts.cpu().tolist(), moments, strict=True):
                if step:
                    found.update(run.states(step, mean, square))
            return found

        return states

    def keep_state(self) -> Callable[[], dict[ModuleID, list[AdamState | None]]]:
        """Returns a function that returns the present moments of each module's parameters.

        They are None for parameters that were never stepped.
        """
        keep, parameters = self._keep_states(), self._parameters

        def state() -> dict[ModuleID, list[AdamState | None]]:
            states = keep()
            return {module_id: [states.get(p) for p in own] for module_id, own in parameters.items()}

        return state

    def set_state(self, state: Mapping[ModuleID, Sequence[AdamState | None]], row_of: RowOf) -> None:
        """Loads moments that ``get_state`` returned, for the modules that the state names.

        Raises:
            LearnerError: If the moments belong to other parameters.
        """
        states = self._keep_states()()
        for module_id, saved in state.items():
            own = self._parameters.get(module_id, ())
            shapes = [tuple(p.shape) for p in own]
            there = [tuple(m.exp_avg.shape) if m else shape for m, shape in zip(saved, shapes, strict=False)]
            if saved and (len(saved) != len(own) or there != shapes):
                raise LearnerError(
                    f"Optimizers.set_state: the state has Adam's moments of {len(saved)} parameters of module "
                    f"{module_id!r}, of the shapes {there}, but here it steps {len(own)}, of {shapes}. Build the "
                    f"learner with the same modules and optimizers as the one that was saved."
                )
            for parameter, moments in zip(own if saved else (), saved, strict=True):
                states.pop(parameter, None)
                if moments is not None:
                    states[parameter] = moments
        self._arrange(states, row_of)


class Optimizers:
    """Computes gradients, clips them, and steps the optimizers of the modules that have new ones.

    A module that registers no optimizer has Adam (``DefaultAdam``). A module that takes no part in a step does not
    change.
    """

    def __init__(
        self,
        module: MultiRLModule,
        config: AlgorithmConfig,
        configure_module: Callable[[ModuleID, Any], None],
        *,
        device: torch.device,
    ):
        """Makes no optimizers yet.

        Args:
            module: The modules.
            config: The algorithm's config.
            configure_module: ``Learner.configure_optimizers_for_module``, which registers the optimizers of a module.
            device: The device of the modules.
        """
        self._module = module
        self._config = config
        self._configure_module = configure_module
        self._device = device
        self._timestep = 0
        self._registered: dict[ModuleID, dict[str, torch.optim.Optimizer]] = {}
        self._held: dict[ModuleID, list[Tensor]] = {}
        self._schedules: dict[tuple[ModuleID, str], Schedule] = {}
        self._rates: dict[ModuleID, Rates] = {}
        self._resting: frozenset[str] = frozenset()
        self._with_default: dict[ModuleID, None] = {}
        self._configured: set[ModuleID] = set()
        self._shared: list[Tensor] = []
        self._optimizer_of: dict[Tensor, Hashable] = {}  # of parameters with a registered optimizer or a rate by name
        self._default = DefaultAdam()
        self._arranged_for: Any = None
        self._alone: list[Tensor] = []  # parameters that Adam steps outside of buckets, which watch their own
        self._kinds: list[Hashable] = []
        self._stacks: dict[tuple[ModuleID, ...], MemberStack | None] = {}  # both of this update
        self._clipping: dict[tuple[ModuleID, ...], list[Any]] = {}

    # The optimizers of the modules.

    def register_default(self, module_id: ModuleID, rates: Rates | None = None) -> None:
        """Gives a module Adam, for parameters that no registered optimizer has.

        Parameters that several modules share are left out.

        Args:
            module_id: The module.
            rates: The learning rates of its layers, such as ``{"qf": 3e-4, OTHERS: 1e-4}``; None for the config's
                learning rate. Where several names fit, the longest one counts.
        """
        self._with_default[module_id] = None
        self._rates[module_id] = dict(rates or {})
        self._arranged_for = None

    def rest(self, names: Collection[str]) -> None:
        """Keeps parameters as they are from the next update on, until the next call: no optimizer steps them.

        Args:
            names: The names of their learning rates, as ``register_default`` has them.
        """
        self._resting = frozenset(names)

    @property
    def resting(self) -> Collection[str]:
        """What ``rest`` was called with."""
        return self._resting

    def refresh(self, *, timestep: int, never_updated: Collection[ModuleID] = ()) -> None:
        """Gives every parameter that exists now its optimizer, and sets the learning rates.

        The learner calls this at the beginning of each update. It costs little unless modules, layers or parameters
        were added, removed or moved, or optimizers were registered.

        Args:
            timestep: The number of sampled steps, for the learning rate schedules.
            never_updated: Modules that need no optimizers.
        """
        self._timestep = timestep
        self._module.bind_buckets()
        self._stacks.clear()
        self._clipping.clear()
        if self._module.buckets is not self._arranged_for or self._kinds != _kinds_of(self._alone):
            self._configure(never_updated)
            self._arrange()
        self._set_learning_rates()

    def _configure(self, never_updated: Collection[ModuleID]) -> None:
        """Configures modules that were not added by ``Learner.add_module``, and modules that lost parameters."""
        for module_id in [m for m in self._configured if m not in self._module]:
            self.forget(module_id)
        present = {id(p) for p in self._module.parameters()}
        for module_id in self._module:
            before = self._registered.get(module_id, {})
            if any(id(p) not in present for p in self._held.get(module_id, ())):
                self.forget(module_id)
            if module_id not in self._configured and module_id not in never_updated:
                self.configure(module_id)
                _carry_over(before, self._registered.get(module_id, {}), module_id)

    def configure(self, module_id: ModuleID) -> None:
        """Registers the optimizers of a module."""
        self._configured.add(module_id)
        self._configure_module(module_id, self._config.get_config_for_module(module_id))
        self._arranged_for = None

    def _arrange(self) -> None:
        """Divides the parameters among the optimizers.

        Parameters that no module has for itself get an Adam of their own, unless an optimizer was registered for them.
        Parameters that have not changed keep their moments.
        """
        self._shared = self._find_shared()
        taken = {id(p) for several in self._registered.values() for o in several.values() for p in _parameters(o)}
        rest = [p for p in self._shared if id(p) not in taken]
        taken.update(id(p) for p in self._shared)
        default = {m: [p for p in self._parameters_of(m) if id(p) not in taken] for m in self._with_default}
        rate_names = {p: name for m in default for name, p in self._named_rates(m)}
        self._default.arrange({**default, **({SHARED: rest} if rest else {})}, self._row_of, rate_names)
        self._alone = [*rest, *(p for m, own in default.items() if self._module.bucket_of((m,)) is None for p in own)]
        self._kinds = _kinds_of(self._alone)
        registered = (
            (p, (name,)) for own in self._registered.values() for name, o in own.items() for p in _parameters(o)
        )
        self._optimizer_of = {**rate_names, **dict(registered)}
        self._arranged_for = self._module.buckets

    def _named_rates(self, module_id: ModuleID) -> Iterator[tuple[str, Tensor]]:
        """Yields those parameters of a module whose learning rate has a name, with this name."""
        names = [name for name in self._rates.get(module_id, ()) if name != OTHERS]
        for path, parameter in self._module[module_id].named_parameters() if names else ():
            own = [name for name in names if f"{path}.".startswith(f"{name}.")]
            if own:
                yield max(own, key=len), parameter

    def _row_of(self, module_id: ModuleID) -> MemberRow | None:
        bucket = self._module.bucket_of((module_id,))
        return None if bucket is None else bucket.row(module_id)

    def _find_shared(self) -> list[Tensor]:
        """Returns the parameters of several modules, or of the MultiRLModule itself."""
        owners = Counter(id(p) for module_id in self._module for p in self._parameters_of(module_id))
        return [p for p in self._module.parameters() if owners[id(p)] != 1]

    def register(
        self,
        module_id: ModuleID,
        optimizer: torch.optim.Optimizer,
        name: str,
        params: Iterable[Tensor] | None,
        lr: Schedule | None,
    ) -> None:
        """Adds a user's optimizer for a module; see ``Learner.register_optimizer``."""
        if params is not None:
            held = {id(p) for p in _parameters(optimizer)}
            wanted = {id(p) for p in params}
            if held != wanted:
                raise LearnerError(
                    f"Learner.register_optimizer: optimizer {name!r} of module {module_id!r} was made for other "
                    f"parameters ({len(held)} tensors) than those in params ({len(wanted)}). Pass the same to both."
                )
        if name in self._registered.get(module_id, {}):
            raise LearnerError(
                f"Learner.register_optimizer: module {module_id!r} has an optimizer {name!r} already. Give each an "
                f"optimizer_name of its own."
            )
        self._held.setdefault(module_id, []).extend(self._checked_parameters(module_id, optimizer, name))
        if lr is not None:
            setting = f"lr_or_lr_schedule of {name!r}"
            self._schedules[module_id, name] = schedule().check(lr, "Learner.register_optimizer", setting)
        self._registered.setdefault(module_id, {})[name] = optimizer
        self._arranged_for = None

    def _checked_parameters(self, module_id: ModuleID, optimizer: torch.optim.Optimizer, name: str) -> list[Tensor]:
        """Returns the modules' parameters that an optimizer has. None may belong to other modules only."""
        held = {id(p): p for p in _parameters(optimizer)}
        owners: dict[int, list[ModuleID]] = {}
        for owner in self._module:
            for parameter in self._parameters_of(owner):
                owners.setdefault(id(parameter), []).append(owner)
        for key in held:
            others = owners.get(key, [])
            if others and module_id not in (*others, SHARED):
                raise LearnerError(
                    f"Learner.register_optimizer: optimizer {name!r} of module {module_id!r} has parameters of module "
                    f"{others[0]!r}. Make it of those of self.module[{module_id!r}]: it steps when that one has new "
                    f"gradients."
                )
        return [p for p in self._module.parameters() if id(p) in held]

    def get(self, module_id: ModuleID, name: str) -> torch.optim.Optimizer:
        """Returns an optimizer that was registered."""
        own = self._registered.get(module_id, {})
        if name not in own:
            raise KeyError(f"Learner: module {module_id!r} has no optimizer {name!r}. {did_you_mean(name, own)}")
        return own[name]

    def forget(self, module_id: ModuleID) -> None:
        """Drops a module's optimizers."""
        self._registered.pop(module_id, None)
        self._held.pop(module_id, None)
        self._schedules = {key: value for key, value in self._schedules.items() if key[0] != module_id}
        self._with_default.pop(module_id, None)
        self._rates.pop(module_id, None)
        self._configured.discard(module_id)
        self._arranged_for = None

    def _parameters_of(self, module_id: ModuleID) -> list[Tensor]:
        return list[Tensor](self._module[module_id].parameters())

    def stack_of(self, module_ids: Sequence[ModuleID]) -> MemberStack | None:
        """Returns modules as one computation; None if they are not in one bucket."""
        key = tuple(module_ids)
        if key not in self._stacks:
            bucket = self._module.bucket_of(key)
            self._stacks[key] = None if bucket is None else bucket.stack_of(key)
        return self._stacks[key]

    # One step.

    def compute_gradients(self, loss: Tensor, module_ids: Sequence[ModuleID]) -> None:
        """Computes the gradients of the modules' parameters, and of shared parameters."""
        stack = self.stack_of(module_ids)
        if stack is not None:
            stack.compute_gradients(loss)
            return
        self._forget_gradients(module_ids)
        loss.backward()

    def _forget_gradients(self, module_ids: Sequence[ModuleID]) -> None:
        """Removes the gradients of modules that are in no bucket, and of shared parameters."""
        for parameter in self._shared:
            parameter.grad = None
        for module_id in module_ids:
            if module_id != SHARED:
                self._module[module_id].zero_grad(set_to_none=True)

    def sum_gradients(
        self,
        module_ids: Sequence[ModuleID],
        own_ids: Collection[ModuleID],
        others: Sequence[Tensor],
        add_up: Callable[[Sequence[Tensor]], list[Tensor]],
    ) -> list[Tensor]:
        """Replaces the gradients of a step by their sums over all ranks, in one message.

        Args:
            module_ids: The modules that take the step, the same on all ranks.
            own_ids: Those whose gradients this rank has computed. It contributes zeros for the others.
            others: Tensors of the same shapes on all ranks, which are summed in the same message.
            add_up: ``Ranks.sum``.

        Returns:
            The sums of ``others``.
        """
        stack = self.stack_of(module_ids)
        if stack is not None:
            for i, module_id in enumerate(stack.bucket.module_ids):
                if module_id in module_ids and module_id not in own_ids:
                    stack.bucket.gradients[i] = 0.0
            gradients, *rest = add_up([stack.gradients(), *others])
            stack.set_gradients(gradients.to(stack.bucket.gradients.dtype))
            return rest
        if not own_ids:
            self._forget_gradients(module_ids)
        parameters = [p for module_id in module_ids for p in self._trainable_parameters(module_id)]
        found = [None if p.grad is None else _dense(p.grad) for p in parameters]
        # As on a single learner, a parameter that no loss depends on has no gradient, and its optimizer skips it.
        exist = torch.tensor([float(gradient is not None) for gradient in found], device=self._device)
        given = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        exist, *sums = add_up([exist, *given, *others])
        for parameter, gradient, exists in zip(parameters, sums, exist.tolist(), strict=False):
            parameter.grad = gradient.to(parameter.dtype) if exists else None
        return sums[len(parameters) :]

    def _trainable_parameters(self, module_id: ModuleID) -> list[Tensor]:
        """Returns a module's trainable parameters that it shares with no other, or the ``SHARED`` ones."""
        if module_id == SHARED:
            return [p for p in self._shared if p.requires_grad]
        shared = {id(p) for p in self._shared}
        return [p for p in self._parameters_of(module_id) if p.requires_grad and id(p) not in shared]

    @property
    def has_shared(self) -> bool:
        """Whether there are parameters that several modules share, or that the MultiRLModule itself has."""
        return bool(self._shared)

    def gradients_of(self, module_id: ModuleID) -> list[Tensor]:
        """Returns the gradients of a module's unshared parameters, or of the ``SHARED`` ones, to change in place."""
        return [p.grad for p in self._trainable_parameters(module_id) if p.grad is not None]

    def by_optimizer(self, module_id: ModuleID, gradients: Sequence[Tensor]) -> list[list[Tensor]]:
        """Divides what ``gradients_of`` returned, or others in its order, by optimizers: one for each learning rate."""
        found: dict[Hashable, list[Tensor]] = {}
        parameters = [p for p in self._trainable_parameters(module_id) if p.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            found.setdefault(self._optimizer_of.get(parameter, OTHERS), []).append(gradient)
        return list(found.values())

    def drop_resting(self, module_ids: Sequence[ModuleID]) -> None:
        """Sets the gradients of parameters that rest to 0, so that they do not count in norms."""
        for parameter in (p for m in module_ids for p in self._trainable_parameters(m)) if self._resting else ():
            if parameter.grad is not None and self._optimizer_of.get(parameter, OTHERS) in self._resting:
                parameter.grad.zero_()

    def norms(self, module_ids: Sequence[ModuleID]) -> Tensor:
        """Returns the ``[A]`` Euclidean norms of the modules' gradients."""
        stack = self.stack_of(module_ids)
        if stack is not None:
            return torch.linalg.vector_norm(stack.gradients(), dim=1)
        several = [self.gradients_of(module_id) for module_id in module_ids]
        return torch.stack([global_norm(own) if own else torch.zeros((), device=self._device) for own in several])

    def clip(self, module_ids: Sequence[ModuleID], norms: Tensor) -> None:
        """Clips the gradients of each module's optimizers by its own config; those of stacked modules in one call."""
        key = tuple(module_ids)
        if key not in self._clipping:
            own = [self._config.get_config_for_module(m) for m in key]
            self._clipping[key] = [] if all(config.grad_clip is None for config in own) else own
        configs = self._clipping[key]
        if not configs:
            return
        stack = self.stack_of(module_ids)
        if stack is None or self._optimizer_of:
            for module_id, config in zip(module_ids, configs, strict=True):
                for own in self.by_optimizer(module_id, self.gradients_of(module_id)):
                    clip_gradients(own, config.grad_clip, config.grad_clip_by)
            return
        gradients = stack.gradients()
        clip_stacked_gradients(stack, gradients, norms, configs)
        stack.set_gradients(gradients)

    def step(self, module_ids: Sequence[ModuleID], check: FiniteCheck) -> None:
        """Steps the optimizers of only these modules; none if ``check`` says that a step was not finite."""
        self._default.step(module_ids, check)
        own = [o for m in module_ids for o in self._registered.get(m, {}).values()]
        if own and check.all_finite():
            for optimizer in own:
                optimizer.step()

    # Learning rates and state.

    def _rate_of(self, module_id: ModuleID) -> Schedule:
        """Returns the learning rate of those parameters of a module that have none by name."""
        own = self._rates.get(module_id, {})
        rate = own[OTHERS] if OTHERS in own else self._config.get_config_for_module(module_id).lr
        if rate is None:
            raise LearnerError(
                f"Optimizers: there is no learning rate for the parameters of {module_id!r}. Register an optimizer for "
                f"them in configure_optimizers_for_module."
            )
        return rate

    def learning_rate(self, module_id: ModuleID) -> float:
        """Returns a module's current learning rate: that of Adam (of ``OTHERS``), else of its first optimizer."""
        own = self._registered.get(module_id)
        if module_id in self._default or not own:
            return value_at(self._rate_of(module_id), self._timestep)
        return _rate(own)

    def _set_learning_rates(self) -> None:
        """Sets all learning rates by their schedules. Optimizers without a schedule keep their learning rates."""
        self._default.set_rates(
            {
                m: {
                    name: value_at(rate, self._timestep)
                    for name, rate in {**self._rates.get(m, {}), OTHERS: self._rate_of(m)}.items()
                    if name not in self._resting
                }
                for m in (*self._with_default, SHARED)
                if m in self._default
            }
        )
        for (module_id, name), rate in self._schedules.items():
            for group in self._registered[module_id][name].param_groups:
                group["lr"] = value_at(rate, self._timestep)

    def get_state(self) -> dict[ModuleID, OptimizerState]:
        """Returns copies of the state of each module's optimizers. To be called after ``refresh``."""
        return self.keep_state()()

    def keep_state(self) -> Callable[[], dict[ModuleID, OptimizerState]]:
        """Returns a function that returns what ``get_state`` would return now."""
        of_default = self._default.keep_state()
        of_others = {
            module_id: {name: copied(optimizer.state_dict()) for name, optimizer in own.items()}
            for module_id, own in self._registered.items()
        }

        def state() -> dict[ModuleID, OptimizerState]:
            found = {module_id: OptimizerState(adam=own) for module_id, own in of_default().items()}
            for module_id, registered in of_others.items():
                found.setdefault(module_id, OptimizerState()).registered = registered
            return found

        return state

    def set_state(self, state: Mapping[ModuleID, OptimizerState]) -> None:
        """Loads a state that ``get_state`` returned. To be called after ``refresh``.

        Raises:
            LearnerError: If the state's moments belong to other parameters of a module than Adam steps here.
        """
        self._default.set_state({module_id: own.adam for module_id, own in state.items()}, self._row_of)
        for module_id, own in state.items():
            for name, optimizer_state in own.registered.items():
                self.get(module_id, name).load_state_dict(_tensors(optimizer_state))


def _kinds_of(parameters: Sequence[Tensor]) -> list[Hashable]:
    """Returns what the moments of parameters depend on."""
    return [(p.shape, p.dtype, p.device, p.requires_grad) for p in parameters]


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _rate(optimizers: Mapping[str, torch.optim.Optimizer]) -> float:
    return next(iter(optimizers.values())).param_groups[0]["lr"]


def _carry_over(
    before: Mapping[str, torch.optim.Optimizer], now: Mapping[str, torch.optim.Optimizer], module_id: ModuleID
) -> None:
    """Copies the states of parameters that still exist from the former optimizers of a module to the new ones."""
    for name, optimizer in before.items():
        if name not in now:
            raise LearnerError(
                f"Learner: the optimizer {name!r} of module {module_id!r} holds parameters that are no longer there, "
                f"as layers were replaced. Register it in configure_optimizers_for_module, which is then called again."
            )
        if type(now[name]) is type(optimizer):
            kept = {id(p) for p in _parameters(now[name])}
            now[name].state.update({p: own for p, own in optimizer.state.items() if id(p) in kept})


def _tensors(state: Any) -> Any:
    """Returns the arrays of a loaded checkpoint as tensors, which torch's optimizers expect."""
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_tensors(value) for value in state]
    return torch.as_tensor(state) if hasattr(state, "dtype") else state
