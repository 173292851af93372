"""Learner: from episodes to better modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.errors import LearnerError
from marl_connectors.learner.gradients import ClosedLoss, ClosedUpdate, clip_gradients, set_gradients
from marl_connectors.learner.losses import (
    FiniteCheck,
    LossStatistics,
    checked_losses,
    has_self_supervised_loss,
    loss_function,
    not_finite_error,
)
from marl_connectors.learner.optimizers import Optimizers
from marl_connectors.learner.updates import Step, Steps, groups_of_episodes, reads_batches
from marl_connectors.metrics import MetricsLogger
from marl_connectors.ops.schedule import Schedule
from marl_connectors.rl_module.closed_form import can_be_closed
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import torch_stream
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID


class Learner(ABC):
    """Updates a MultiRLModule from episodes. Subclass it and override ``compute_loss_for_module``.

    Attributes:
        config: The algorithm's config.
        device: Where the modules and their batches are.
        module: The modules.
        pipeline: From episodes to a train batch.
        timestep: Env steps that the episodes of all updates so far were sampled in; schedules go by it.
        metrics: Where the pieces of ``pipeline`` log.
        pipeline_seconds: How long the newest update's train batch took.
    """

    def __init__(self, *, config: Any, module: MultiRLModule, pipeline: LearnerConnectorPipeline, seed: int = 0):
        self.config = config
        self.device: torch.device = config.device
        self.module = module
        self.pipeline = pipeline
        self.timestep = 0
        self.metrics = MetricsLogger()
        self.pipeline_seconds = 0.0
        self.num_updates = 0
        self._seed = seed
        self._loss_statistics = LossStatistics()
        self._check = FiniteCheck(is_lazy=False)
        self._checks_lazily = self.device.type != "cpu"
        self._never_updated: set[ModuleID] = set()
        self._trained: list[torch.nn.Module] = []
        self._closed_updates: dict[tuple[ModuleID, ...], ClosedUpdate | None] = {}
        self.optimizers = Optimizers(self)

    def build(self) -> None:
        """Makes the optimizers. Called once before the first update."""
        for module_id in self.module:
            self.optimizers.configure(module_id)
        self.optimizers.refresh()

    # To override.

    @abstractmethod
    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """The scalar that an update makes smaller.

        Args:
            module_id: Which module.
            config: The algorithm's config with the module's own overrides.
            batch: Columns of a minibatch, ``[B, ...]``.
            fwd_out: What the module's ``forward_train`` gave for it.
        """

    def compute_loss_for_stacked_modules(
        self, *, module_ids: Sequence[ModuleID], module: RLModule, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """``[M]`` losses of modules of one architecture, in one computation.

        Without an override that is at least as new as that of ``compute_loss_for_module``, modules are updated one
        after another.

        Args:
            module_ids: Which modules.
            module: Computes all of them on stacked columns.
            batch: Columns ``[M, B, ...]``. Where modules have different numbers of rows there is a ``loss_mask``,
                False for rows that only fill up; ``CountedRows`` takes means without them.
            fwd_out: What ``module.forward_train`` gave for it.
        """
        raise NotImplementedError

    def closed_loss(self, module_ids: Sequence[ModuleID]) -> ClosedLoss | None:
        """The loss of some modules with its gradients worked out, asked for once an update; None unless overridden.

        Updates of modules that are MLPs (``RLModule.training_layers``) then do without autograd. It is what
        ``compute_loss_for_module`` computes: where a subclass overrides that one only, it is not asked for.

        Args:
            module_ids: One module, or several that are computed together.
        """
        del module_ids

    def stacking_key(self, config: Any) -> Hashable:
        """What modules' settings have to have in common for one stacked loss; nothing unless overridden."""
        del config

    @property
    def has_stacked_loss(self) -> bool:
        """Whether the loss of stacked modules knows of the newest loss of a module alone."""
        return self._is_as_new("compute_loss_for_stacked_modules", "compute_loss_for_module")

    def _is_as_new(self, name: str, *others: str) -> bool:
        """Whether a method is overridden, and nowhere nearer to the object's class any of the others."""
        at = {
            method: next((i for i, cls in enumerate(type(self).__mro__) if method in vars(cls)), 0)
            for method in (name, *others)
        }
        is_overridden = type(self).__mro__[at[name]] is not Learner
        return is_overridden and all(at[name] <= at[other] and other not in vars(self) for other in others)

    def configure_optimizers_for_module(self, module_id: ModuleID, config: Any) -> None:
        """Registers a module's optimizers: Adam for all its parameters unless overridden."""
        self.optimizers.register_default(module_id)

    def before_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:  # noqa: B027
        """Called first in an update, before its train batch is made: what it does to modules holds for all of it."""

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:  # noqa: B027
        """Called after the minibatches of an update."""

    def postprocess_gradients_for_module(
        self, *, module_id: ModuleID, config: Any, module_gradients: list[Tensor]
    ) -> list[Tensor] | None:
        """Changes a module's gradients in place, or returns others: clips them as the config says unless overridden."""
        clip_gradients(module_gradients, config.grad_clip, config.grad_clip_by)

    def should_module_be_updated(self, module_id: ModuleID, batch: Mapping[ModuleID, Any] | None = None) -> bool:
        """Whether ``policies_to_train`` names the module, there is anything in it to train, and it may be updated.

        Args:
            module_id: Which module.
            batch: ``{module_id: {column: tensor}}``, once there is a train batch.
        """
        if module_id in self._never_updated:
            return False
        if not any(parameter.requires_grad for parameter in self.module[module_id].parameters()):
            return False
        wanted = self.config.policies_to_train
        if wanted is None or not callable(wanted):
            return wanted is None or module_id in wanted
        if reads_batches(wanted):
            return batch is None or bool(wanted(module_id, batch))
        return bool(wanted(module_id))

    # To call.

    def register_optimizer(
        self,
        *,
        module_id: ModuleID,
        optimizer: torch.optim.Optimizer,
        optimizer_name: str = "default_optimizer",
        params: Iterable[Tensor] | None = None,
        lr_or_lr_schedule: Schedule | None = None,
    ) -> None:
        """Has an optimizer step whenever a module has new gradients. For ``configure_optimizers_for_module``.

        If a module has the default Adam as well, that leaves these parameters to the optimizer.

        Args:
            module_id: Whose parameters it steps.
            optimizer: Made for parameters of the module.
            optimizer_name: A module can have several optimizers, each with a name of its own.
            params: The optimizer's parameters, to have it checked that it has these and no others.
            lr_or_lr_schedule: A rate or schedule to follow; None to leave the optimizer's own.

        Raises:
            LearnerError: If the name is taken, ``params`` are not the optimizer's, or some are another module's.
        """
        self.optimizers.register(module_id, optimizer, optimizer_name, params, lr_or_lr_schedule)

    def get_optimizer(
        self, module_id: ModuleID = DEFAULT_MODULE_ID, optimizer_name: str = "default_optimizer"
    ) -> torch.optim.Optimizer:
        """An optimizer that was registered."""
        return self.optimizers.get(module_id, optimizer_name)

    def get_parameters(self, module: RLModule) -> list[torch.nn.Parameter]:
        """A module's trainable parameters."""
        return [p for p in module.parameters() if p.requires_grad]

    def log_terms(self, module_ids: Sequence[ModuleID], terms: Mapping[str, Tensor]) -> None:
        """Notes terms of a minibatch's losses: scalars of one module, ``[M]`` of several. ``update`` gives means."""
        self._loss_statistics.note(tuple(module_ids), terms)

    def update(
        self, *, episodes: Sequence[Any], timesteps: dict[str, int] | None = None
    ) -> dict[ModuleID, dict[str, float]]:
        """One update from episodes, or chunks of them.

        Args:
            episodes: SingleAgentEpisodes or MultiAgentEpisodes, as ``EnvRunner.sample`` gives them.
            timesteps: Steps sampled so far, by kind; ``num_env_steps_sampled_lifetime`` moves the schedules.

        Returns:
            Means of the losses' terms and the other loss statistics, for each module that had data.

        Raises:
            LearnerError: If a loss or the norm of a module's gradients is not finite; that step is not taken. Or if the
                pipeline makes no columns.
        """
        timesteps = timesteps or {}
        self.timestep = timesteps.get("num_env_steps_sampled_lifetime", self.timestep)
        self._loss_statistics = LossStatistics()
        self._check = FiniteCheck(is_lazy=self._checks_lazily)
        self.before_gradient_based_update(timesteps=timesteps)
        self.optimizers.refresh()
        self._closed_updates = {}
        began = perf_counter()
        batch = self.make_batch(episodes)
        if not all(batch.groups):
            raise LearnerError(
                f"{type(self).__name__}: expected columns from the learner pipeline, but it made none. "
                f"Where add_default_connectors_to_learner_pipeline is False, learner_connector has to make them."
            )
        self.pipeline_seconds = perf_counter() - began
        trained: dict[ModuleID, int] = defaultdict(int)
        with self._train_mode():
            for step in Steps(self, batch, self._seed):
                self._loss_statistics.begin_minibatch(step.epoch)
                self._update_from(step, batch)
                for minibatch in step.minibatches:
                    for module_id, size in zip(minibatch.module_ids, minibatch.sizes, strict=True):
                        trained[module_id] += size
        if self._checks_lazily:
            self._loss_statistics.to_host()
        if not self._check.held():
            raise not_finite_error(self._loss_statistics, self.module, batch, self.num_updates)
        rates = {module_id: self.optimizers.learning_rate(module_id) for module_id in trained}
        self.after_gradient_based_update(timesteps=timesteps)
        results = self._results(trained, rates)
        self.num_updates += 1
        return results

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """The train batch: a group for the modules of each bucket, and one for each module in none.

        Modules that are trained together and see alike stand in one group, too.
        """
        groups = groups_of_episodes(self.module, episodes, is_trained=self.should_module_be_updated)
        return self.pipeline.run(
            ColumnBatch(groups), rl_module=self.module, episodes=episodes, shared_data={}, metrics=self.metrics
        )

    # One step.

    @contextmanager
    def _train_mode(self) -> Iterator[None]:
        """Whatever runs forward meanwhile is in eval mode again afterwards, and draws what the run's seed says."""
        self._trained = []
        try:
            with torch_stream(self._seed, "train mode", self.num_updates):
                yield
        finally:
            for module in self._trained:
                module.eval()

    def _forward_train(self, module: Any, columns: Any) -> Any:
        """A forward pass in train mode. A hot path."""
        if not module.training:
            self._trained.append(module.train())
        return module.forward_train(columns)

    def _update_from(self, step: Step, batch: ColumnBatch) -> None:
        """One gradient step. A hot path."""
        ids = tuple(m for minibatch in step.minibatches for m in minibatch.module_ids)
        stepping = (*ids, *step.beside) if step.is_joint else ids
        loss = self._gradients_in_closed_form(step)
        if loss is None:
            loss = self._gradients_by_autograd(step, stepping)
        norms = self.optimizers.norms(stepping)
        self._loss_statistics.note_gradient_norms(ids, norms[: len(ids)])
        if len(stepping) > len(ids):
            self._loss_statistics.note_gradient_norms(stepping[len(ids) :], norms[len(ids) :], is_result=False)
        if not self._check.holds(loss, norms):
            raise not_finite_error(self._loss_statistics, self.module, batch, self.num_updates)
        self._postprocess_gradients(stepping, norms)
        self.optimizers.step(stepping, self._check)

    def _gradients_in_closed_form(self, step: Step) -> Tensor | None:
        """The sum of the losses, where nothing that the user has written takes part in them; else None. A hot path."""
        if step.is_joint:
            return None
        (minibatch,) = step.minibatches
        ids = minibatch.module_ids
        if ids not in self._closed_updates:
            self._closed_updates[ids] = self._bind_closed_update(ids)
        closed = self._closed_updates[ids]
        losses = None if closed is None else closed.compute_gradients(minibatch.columns)
        return losses if losses is None or not losses.dim() else losses.sum()

    def _bind_closed_update(self, module_ids: tuple[ModuleID, ...]) -> ClosedUpdate | None:
        part = self.optimizers.part(module_ids)
        if part is None or self.config.autocast_dtype is not None or has_self_supervised_loss(self, module_ids[0]):
            return None
        if not self._is_as_new("closed_loss", "compute_loss_for_module", "compute_loss_for_stacked_modules"):
            return None
        loss = self.closed_loss(module_ids)
        return ClosedUpdate(part, loss) if loss is not None and can_be_closed(part.load()) else None

    def _gradients_by_autograd(self, step: Step, stepping: Sequence[ModuleID]) -> Tensor:
        """The sum of the losses, whatever they are made of."""
        with self._autocast():
            loss = self._loss_of(step)
        if not loss.requires_grad:
            ids = [m for minibatch in step.minibatches for m in minibatch.module_ids]
            raise LearnerError(
                f"Learner: the loss of {', '.join(map(repr, ids))} has no gradient. Let forward_train and "
                f"compute_values compute with the module's parameters, without detach() or no_grad()."
            )
        self.optimizers.compute_gradients(loss, stepping)
        return loss

    def _loss_of(self, step: Step) -> Tensor:
        """The sum of the losses of a step's modules. A hot path."""
        losses = []
        for minibatch, (module, fwd_out) in zip(step.minibatches, self._forward_passes(step), strict=True):
            own = self._losses(minibatch.module_ids, module, minibatch.columns, fwd_out)
            self._loss_statistics.note_total(minibatch.module_ids, own)
            losses.append(own)
        whole = losses[0] if len(losses) == 1 else torch.stack(losses)
        return whole.sum() if whole.dim() else whole

    def _forward_passes(self, step: Step) -> list[tuple[Any, Any]]:
        """For each minibatch, what ran it forward and what came out: entangled modules together, others by themselves.

        A hot path.
        """
        if step.is_joint:
            outputs = self._forward_train(self.module, {m.module_ids[0]: m.columns for m in step.minibatches})
            return [(self.module[m.module_ids[0]], outputs[m.module_ids[0]]) for m in step.minibatches]
        passes = []
        for minibatch in step.minibatches:
            part = self.optimizers.part(minibatch.module_ids) if minibatch.is_stacked else None
            module = self.module[minibatch.module_ids[0]] if part is None else part.load()
            passes.append((module, self._forward_train(module, minibatch.columns)))
        return passes

    def _losses(self, module_ids: tuple[ModuleID, ...], module: RLModule, batch: Any, fwd_out: Any) -> Tensor:
        """``[M]`` of stacked modules, a scalar of one."""
        given: Any = {"batch": batch, "fwd_out": fwd_out}
        module_id, *others = module_ids
        if others:
            losses = self.compute_loss_for_stacked_modules(module_ids=module_ids, module=module, **given)
        else:
            config = self.config.get_config_for_module(module_id)
            losses = loss_function(self, module_id)(module_id=module_id, config=config, **given)
        return checked_losses(losses, module_ids, self)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.config.autocast_dtype
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, dtype))

    def _postprocess_gradients(self, module_ids: Sequence[ModuleID], norms: Tensor) -> None:
        if type(self).postprocess_gradients_for_module is Learner.postprocess_gradients_for_module:
            self.optimizers.clip(module_ids, norms)
            return
        for module_id in module_ids:
            config, gradients = self.config.get_config_for_module(module_id), self.optimizers.gradients_of(module_id)
            given = self.postprocess_gradients_for_module(
                module_id=module_id, config=config, module_gradients=gradients
            )
            if given is not None:
                set_gradients(gradients, given, module_id, self)

    def _results(self, trained: Mapping[ModuleID, int], rates: Mapping[ModuleID, float]) -> dict[ModuleID, Any]:
        means = self._loss_statistics.means()
        counts = {m: {"num_module_steps_trained": count, "learning_rate": rates[m]} for m, count in trained.items()}
        return {module_id: {**means[module_id], **own} for module_id, own in counts.items()}

    # Modules that come and go.

    def add_module(self, module_id: ModuleID, module: RLModule, *, is_updated: bool = True) -> None:
        """Adds a module and its optimizers; those of the others go on. One that is not updated only acts."""
        self.module.add_module(module_id, module)
        if not is_updated:
            self._never_updated.add(module_id)
            return
        self.optimizers.configure(module_id)
        self.optimizers.refresh()

    def remove_module(self, module_id: ModuleID) -> None:
        """Takes a module and its optimizers out."""
        self.module.remove_module(module_id)
        self.optimizers.forget(module_id)
        self._never_updated.discard(module_id)
        self.optimizers.refresh()

    def get_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON data and tensors."""
        return {
            "module": self.module.get_state(),
            "frozen": [name for name, parameter in self.module.named_parameters() if not parameter.requires_grad],
            "optimizers": self.optimizers.get_state(),
            "pipeline": self.pipeline.get_state(),
            "seed": self._seed,
            "num_updates": self.num_updates,
            "timestep": self.timestep,
            "never_updated": sorted(self._never_updated),
            "metrics": self.metrics.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes what ``get_state`` gave."""
        self.module.set_state(state["module"])
        if "frozen" in state:
            frozen = set(state["frozen"])
            for name, parameter in self.module.named_parameters():
                parameter.requires_grad_(name not in frozen)
        self._never_updated = set(state.get("never_updated", ()))
        self.optimizers.set_state(state["optimizers"])
        self.pipeline.set_state(state["pipeline"])
        self._seed = state["seed"]
        self.num_updates = state["num_updates"]
        self.timestep = state["timestep"]
        self.metrics.set_state(state.get("metrics", []))
