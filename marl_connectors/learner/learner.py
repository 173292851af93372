"""Learner: updates modules from episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from time import perf_counter
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from marl_connectors.accelerators import BoundUpdate, bind_update
from marl_connectors.checkpoints import Checkpointable
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.action_units import NORMALIZED, UNSCALED
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.module_actions import with_module_actions
from marl_connectors.errors import LearnerError, counted, listed
from marl_connectors.learner.gradients import clip_gradients, set_gradients, weighted
from marl_connectors.learner.loss_stats import FiniteCheck, LossStatistics, not_finite_error
from marl_connectors.learner.minibatches import GroupRows
from marl_connectors.learner.optimizers import Optimizers, OptimizerState
from marl_connectors.learner.policies_to_train import reads_batches
from marl_connectors.learner.updates import OneRank, Step, Steps, groups_of_episodes, has_self_supervised_loss
from marl_connectors.metrics import Metric, MetricsLogger
from marl_connectors.ops.schedule import Schedule
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.rl_module.multi_rl_module import ModuleStates, MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule, is_trainable
from marl_connectors.rl_module.train_mode import set_train_mode
from marl_connectors.seeding import torch_stream
from marl_connectors.state import Count, Index, Seed, State, copied, read_state
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID

DEFAULT_OPTIMIZER: Final = "default_optimizer"
"""The name of a registered optimizer that was given none."""
ENTROPY_KEY: Final = "entropy"
LR_KEY: Final = "learning_rate"
POLICY_LOSS_KEY: Final = "policy_loss"
VF_LOSS_KEY: Final = "vf_loss"
"""RLlib's names of loss statistics."""


class LearnerState(State, kw_only=True):
    """The state of a Learner.

    Attributes:
        module: The parameters and buffers of each module, and those that modules share.
        frozen: The names of parameters that are not trained.
        optimizers: The states of each module's optimizers.
        pipeline: The state of each piece of the learner pipeline.
        seed: The seed of random streams.
        num_updates: As in Learner.
        timestep: As in Learner.
        never_updated: The modules that only act.
        metrics: The metrics that losses and pieces have logged.
    """

    module: ModuleStates
    frozen: list[str]
    optimizers: dict[ModuleID, OptimizerState]
    pipeline: dict[str, Any]
    seed: Seed
    num_updates: Index
    timestep: Count
    never_updated: list[ModuleID]
    metrics: list[Metric] = []


class Learner(Checkpointable, ABC):
    """Updates a MultiRLModule from episodes. Subclass it and override ``compute_loss_for_module``.

    Attributes:
        config: The algorithm's config.
        device: The device of the modules and their batches.
        module: The modules.
        pipeline: Turns episodes into a train batch.
        algorithm_pieces: The pieces in ``pipeline`` that come from the algorithm, as ``default_learner_pieces`` of its
            config returned them.
        timestep: The number of steps sampled so far, by which schedules are evaluated: env steps, or agent steps with
            ``count_steps_by="agent_steps"``.
        metrics: The metrics that losses and the pieces of ``pipeline`` log. What is logged under a module's id, as in
            ``metrics.log_value((module_id, "penalty"), penalty)``, is in the results of that module.
        pipeline_seconds: How long making the newest train batch took.
        num_updates: The number of updates so far.
        num_gradient_steps: The number of gradient steps of the newest update so far.
        ranks: What it does together with other learners that update the same modules; nothing if there are none.
    """

    state_class: ClassVar[type[LearnerState]] = LearnerState
    """What ``set_state`` reads of a state. A state may have more keys, of a subclass."""

    def __init__(self, *, config: Any, module: MultiRLModule, pipeline: LearnerConnectorPipeline, seed: int = 0):
        self.config = config
        self.device: torch.device = config.device
        self.module = module
        self.pipeline = pipeline
        self.algorithm_pieces: Sequence[ConnectorV2] = ()
        self.timestep = 0
        self.metrics = MetricsLogger()
        self.pipeline_seconds = 0.0
        self.num_updates = 0
        self.num_gradient_steps = 0
        self.ranks = OneRank()
        self._seed = seed
        self._loss_statistics = LossStatistics()
        self._check = FiniteCheck(is_lazy=False)
        self._checks_lazily = self.device.type != "cpu"
        self._never_updated: set[ModuleID] = set()
        self._trained: list[torch.nn.Module] = []
        self._in_train_mode = False
        self._bound_updates: dict[tuple[ModuleID, ...], BoundUpdate | None] = {}
        self.optimizers = Optimizers(module, config, self.configure_optimizers_for_module, device=self.device)

    def __repr__(self) -> str:
        updates = counted(self.num_updates, "update")
        return f"<{type(self).__name__} of {listed(self.module, 'module')} on {self.device}: {updates}>"

    @property
    def by_name(self) -> dict[str, Learner]:
        """``{"learner": self}``. A LearnerSet has several learners."""
        return {"learner": self}

    def build(self) -> None:
        """Makes the optimizers. Called once before the first update."""
        for module_id in self.module:
            self.optimizers.configure(module_id)
        self._refresh_optimizers()

    def _refresh_optimizers(self) -> None:
        self.optimizers.refresh(timestep=self.timestep, never_updated=self._never_updated)

    # To override.

    @abstractmethod
    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns the scalar loss of a module, which an update minimises: a mean over the rows that count.

        If several learners update the modules together, each computes the mean over its own rows. Their gradients and
        loss statistics are averaged with the numbers of rows as weights.

        Args:
            module_id: The module's id.
            config: The algorithm's config with the module's overrides.
            batch: Columns of a minibatch, ``[B, ...]``.
            fwd_out: The outputs of the module's ``forward_train`` for this minibatch.
        """

    def compute_loss_for_stacked_modules(
        self, *, module_ids: Sequence[ModuleID], module: RLModule, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns the ``[M]`` losses of modules of one architecture, in one computation.

        Modules are updated one after another if no subclass overrides this method, or if a subclass overrides
        ``compute_loss_for_module`` later, without this one.

        Args:
            module_ids: The ids of the modules.
            module: The stacked module, which computes all of them on stacked columns.
            batch: Columns ``[M, B, ...]``. If modules have different numbers of rows, ``loss_mask`` is False for rows
                of padding; ``CountedRows`` computes means without them.
            fwd_out: The outputs of ``module.forward_train`` for this minibatch.
        """
        raise NotImplementedError

    def stacking_key(self, config: Any) -> Hashable:
        """Returns the settings in which modules must agree to have one stacked loss; None unless overridden."""
        del config

    @property
    def has_stacked_loss(self) -> bool:
        """Whether ``compute_loss_for_stacked_modules`` belongs to the newest ``compute_loss_for_module``."""
        return self._is_as_new("compute_loss_for_stacked_modules", "compute_loss_for_module")

    def _is_as_new(self, name: str, *others: str) -> bool:
        """Whether a method is overridden, and no class nearer to the object's own overrides one of the others."""
        return _is_as_new(type(self), name, others) and not any(other in vars(self) for other in others)

    def configure_optimizers_for_module(self, module_id: ModuleID, config: Any) -> None:
        """Registers the optimizers of a module: Adam for all its parameters, unless overridden."""
        self.optimizers.register_default(module_id)

    def before_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Called first in an update, before its train batch is made, so that changes to modules apply to all of it."""

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Called after the minibatches of an update."""

    def postprocess_gradients_for_module(
        self, *, module_id: ModuleID, config: Any, module_gradients: list[Tensor]
    ) -> list[Tensor] | None:
        """Changes a module's gradients in place, or returns others. By default, it clips those of each optimizer."""
        for own in self.optimizers.by_optimizer(module_id, module_gradients):
            clip_gradients(own, config.grad_clip, config.grad_clip_by)

    def should_module_be_updated(self, module_id: ModuleID, batch: Mapping[ModuleID, Any] | None = None) -> bool:
        """Whether a module is updated: ``policies_to_train`` names it, and it has trainable parameters.

        Args:
            module_id: The module's id.
            batch: ``{module_id: {column: tensor}}``; None before the train batch is made.
        """
        if module_id in self._never_updated or self.module.leaves_out(module_id):
            return False
        if not is_trainable(self.module[module_id]):
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
        optimizer_name: str = DEFAULT_OPTIMIZER,
        params: Iterable[Tensor] | None = None,
        lr_or_lr_schedule: Schedule | None = None,
    ) -> None:
        """Registers an optimizer, which steps whenever the module has new gradients.

        ``configure_optimizers_for_module`` is the place to call it. If the module has the default Adam as well, Adam
        does not step the parameters of this optimizer.

        Args:
            module_id: The module.
            optimizer: An optimizer of parameters of the module.
            optimizer_name: The optimizer's name. A module can have several optimizers with different names.
            params: The parameters that the optimizer must have, and no others; None to skip this check.
            lr_or_lr_schedule: A learning rate or schedule; None to keep the optimizer's learning rate.

        Raises:
            LearnerError: If the name is taken, ``params`` are not the optimizer's, or some are another module's.
        """
        self.optimizers.register(module_id, optimizer, optimizer_name, params, lr_or_lr_schedule)

    def get_optimizer(
        self, module_id: ModuleID = DEFAULT_MODULE_ID, optimizer_name: str = DEFAULT_OPTIMIZER
    ) -> torch.optim.Optimizer:
        """Returns an optimizer that was registered."""
        return self.optimizers.get(module_id, optimizer_name)

    def get_parameters(self, module: RLModule) -> list[torch.nn.Parameter]:
        """Returns a module's trainable parameters."""
        return [p for p in module.parameters() if p.requires_grad]

    def log_terms(self, module_ids: Sequence[ModuleID], terms: Mapping[str, Tensor]) -> None:
        """Logs loss statistics of a minibatch, of which ``update`` returns the means.

        Args:
            module_ids: The modules.
            terms: Scalars of one module, or ``[M]`` tensors of several, by name.
        """
        self._loss_statistics.log(tuple(module_ids), terms)

    def log_table(self, module_ids: Sequence[ModuleID], names: Sequence[str], values: Tensor) -> None:
        """Logs the same as ``log_terms`` in one tensor, which takes less time.

        Args:
            module_ids: The modules.
            names: The names of ``K`` terms.
            values: ``[K]`` of one module, or ``[K, M]`` of several, without gradients.
        """
        if type(self).log_terms is not Learner.log_terms:  # a subclass wants to know all terms
            self.log_terms(module_ids, dict(zip(names, values.unbind(), strict=True)))
            return
        self._loss_statistics.log_table(tuple(module_ids), tuple(names), values.view(len(names), len(module_ids)))

    def update(
        self, *, episodes: Sequence[Any], timesteps: dict[str, int] | None = None
    ) -> dict[ModuleID, dict[str, float]]:
        """Updates the modules from episodes, or chunks of them.

        Args:
            episodes: SingleAgentEpisodes or MultiAgentEpisodes, as ``EnvRunner.sample`` returns them.
            timesteps: Steps sampled so far, by kind: ``num_env_steps_sampled_lifetime`` and
                ``num_agent_steps_sampled_lifetime``. Schedules are evaluated at the kind that ``count_steps_by`` names.

        Returns:
            The means of the loss statistics, for each module that had rows.

        Raises:
            LearnerError: If a loss or the norm of a module's gradients is not finite; that step is not taken. Also if
                the pipeline makes no columns.
        """
        try:
            return self._update(episodes, timesteps or {})
        except BaseException:
            self.ranks.leave()
            raise

    def _update(self, episodes: Sequence[Any], timesteps: dict[str, int]) -> dict[ModuleID, dict[str, float]]:
        self.timestep = timesteps.get(f"num_{self.config.count_steps_by}_sampled_lifetime", self.timestep)
        self._loss_statistics = LossStatistics()
        self._check = FiniteCheck(is_lazy=self._checks_lazily)
        self.before_gradient_based_update(timesteps=timesteps)
        self._refresh_optimizers()
        self._bound_updates = {}
        self.num_gradient_steps = 0
        self.ranks.begin(self, self._seed)
        began = perf_counter()
        episodes = self._with_module_actions(episodes)
        batch = self.make_batch(episodes)
        if not all(batch.groups):
            raise LearnerError(
                f"{type(self).__name__}: expected columns from the learner pipeline, but it made none. "
                f"If add_default_connectors_to_learner_pipeline is False, learner_connector must make them."
            )
        self.pipeline_seconds = perf_counter() - began
        trained: dict[ModuleID, int] = defaultdict(int)
        rows = self.ranks.rows(batch, episodes)
        with self._train_mode():
            for step in self._steps(batch, rows):
                self._loss_statistics.begin_minibatch(step.epoch, step.own_sizes)
                self._update_from(step, batch)
                self.num_gradient_steps += 1
                for module_id, size in step.sizes.items():
                    trained[module_id] += size
        if self._checks_lazily:
            self._loss_statistics.to_host()
        if not self._check.all_finite():
            raise self._not_finite_error(batch)
        self.ranks.combine(self, self._loss_statistics)
        rates = {module_id: self.optimizers.learning_rate(module_id) for module_id in trained}
        self.after_gradient_based_update(timesteps=timesteps)
        results = self._results(trained, rates)
        self.num_updates += 1
        return results

    def evaluate(self, batches: Iterable[Sequence[Any]]) -> dict[ModuleID, dict[str, float]]:
        """Computes the losses of episodes, with modules in eval mode. Nothing is updated, and no state changes.

        Args:
            batches: Lists of episodes. The loss statistics of each list are computed at once.

        Returns:
            The means of the loss statistics over all rows that count, for each module that is trained and has rows.
        """
        kept = self.pipeline.get_state(), self.metrics, self._loss_statistics
        sums: dict[ModuleID, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        counts: dict[ModuleID, int] = defaultdict(int)
        try:
            with torch.no_grad(), torch_stream(self._seed, "evaluation", self.num_updates):
                for episodes in batches:
                    for module_id, (terms, size) in self._terms_of(episodes).items():
                        counts[module_id] += size
                        for name, value in terms.items():
                            sums[module_id][name] += value * size
        finally:
            learned, self.metrics, self._loss_statistics = kept
            self.pipeline.set_state(learned)
        means = {m: {name: value / counts[m] for name, value in own.items()} for m, own in sums.items()}
        return self.completed_statistics(means)

    def _terms_of(self, episodes: Sequence[Any]) -> dict[ModuleID, tuple[dict[str, float], int]]:
        """Returns the means of the loss statistics of each module, and the number of its rows that count."""
        self.metrics, self._loss_statistics = MetricsLogger(), LossStatistics()
        batch = self.make_batch(self._with_module_actions(episodes))
        sizes: dict[ModuleID, int] = {}
        for step in self._steps(batch, config=_in_one_step(self.config)):
            self._loss_statistics.begin_minibatch(step.epoch)
            self._loss_of(step)
            sizes.update(step.sizes)
        return {module_id: (terms, sizes[module_id]) for module_id, terms in self._loss_statistics.means().items()}

    def completed_statistics(self, means: dict[ModuleID, dict[str, float]]) -> dict[ModuleID, Any]:
        """Returns the results that follow from the means of an update's loss statistics: these, unless overridden."""
        return means

    def _with_module_actions(self, episodes: Sequence[Any]) -> Sequence[Any]:
        """Returns episodes that hold the actions of modules, as this run scales them.

        Raises:
            EpisodeError: If they hold actions of the environment that are not in the space.
        """
        if isinstance(episodes, ReplaySample):
            return episodes
        units = NORMALIZED if self.config.normalize_actions else UNSCALED
        return with_module_actions(episodes, units, modules=self.module)

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """Returns the train batch.

        It has a group of rows for each bucket, one for joint modules with like spaces, and one for each other module.
        """
        groups = groups_of_episodes(self.module, episodes, is_trained=self._is_updated)
        return self.pipeline.run(
            ColumnBatch(groups),
            rl_module=self.module,
            episodes=episodes,
            shared_data=self.ranks.shared_data(),
            metrics=self.metrics,
        )

    def _is_updated(self, module_id: ModuleID, batch: Mapping[ModuleID, Any] | None = None) -> bool:
        if module_id in self.ranks.decisions:
            return self.ranks.decisions[module_id]
        return not self.module.leaves_out(module_id) and self.should_module_be_updated(module_id, batch)

    # One step.

    def _steps(self, batch: ColumnBatch, rows: Sequence[GroupRows] | None = None, config: Any = None) -> Steps:
        """Returns the gradient steps of an update with the learner's config or another one."""
        return Steps(
            batch,
            [GroupRows.of(group) for group in batch.groups] if rows is None else rows,
            self.module,
            self.config if config is None else config,
            is_updated=self._is_updated,
            stacking_key=self.stacking_key if self.config.stack_modules and self.has_stacked_loss else None,
            has_shared_parameters=self.optimizers.has_shared,
            seed=self._seed,
            num_updates=self.num_updates,
        )

    @contextmanager
    def _train_mode(self) -> Iterator[None]:
        """Puts modules that ran forward back into eval mode at the end. Their random numbers follow the run's seed."""
        self._trained, self._in_train_mode = [], True
        try:
            with torch_stream(self._seed, "train mode", self.num_updates, *self.ranks.names_of_streams):
                yield
        finally:
            self._in_train_mode = False
            for module in self._trained:
                set_train_mode(module, False)

    def _forward_train(self, module: Any, columns: Any) -> Any:
        """Runs a module forward as in training; within ``_train_mode`` in train mode."""
        if self._in_train_mode and not module.training:
            self._trained.append(module)
            set_train_mode(module, True)
        return module.forward_train(columns)

    def _update_from(self, step: Step, batch: ColumnBatch) -> None:
        """Takes one gradient step."""
        ids = tuple(step.sizes)
        stepping = (*ids, *step.without_rows)
        loss = self._gradients_by_accelerator(step)
        if loss is None and step.minibatches:
            loss = self._gradients_by_autograd(step)
        loss = self.ranks.sum_gradients(step, loss)
        assert loss is not None
        self.optimizers.drop_resting(stepping)
        norms = self.optimizers.norms(stepping)
        self._loss_statistics.log_gradient_norms(ids, norms[: len(ids)] if step.without_rows else norms)
        if step.without_rows:
            self._loss_statistics.log_gradient_norms(stepping[len(ids) :], norms[len(ids) :], has_rows=False)
        if not self._check.holds(loss, norms):
            raise self._not_finite_error(batch)
        self._postprocess_gradients(stepping, norms)
        self.optimizers.step(stepping, self._check)

    def _gradients_by_accelerator(self, step: Step) -> Tensor | None:
        """Returns the sum of the losses, whose gradients an accelerator has computed; None if none applies."""
        if step.is_joint or not step.minibatches:  # only other ranks have rows
            return None
        (minibatch,) = step.minibatches
        ids = minibatch.module_ids
        if ids not in self._bound_updates:
            self._bound_updates[ids] = bind_update(self, ids)
        bound = self._bound_updates[ids]
        losses = None if bound is None else bound.compute_gradients(minibatch.columns, minibatch.weights)
        return losses if losses is None or not losses.dim() else losses.sum()

    def _gradients_by_autograd(self, step: Step) -> Tensor:
        """Computes gradients by autograd, and returns the sum of the losses."""
        with self._autocast():
            loss = self._loss_of(step)
        ids = [m for minibatch in step.minibatches for m in minibatch.module_ids]
        if not loss.requires_grad:
            raise LearnerError(
                f"Learner: the loss of {', '.join(map(repr, ids))} has no gradient. Let forward_train and "
                f"compute_values compute with the module's parameters, without detach() or no_grad()."
            )
        self.optimizers.compute_gradients(loss, (*step.sizes, *step.without_rows) if step.is_joint else ids)
        return loss

    def _loss_of(self, step: Step) -> Tensor:
        """Returns the sum of the losses of a step's modules, weighted by the shares of the rows that this rank has."""
        losses = []
        for minibatch, (module, fwd_out) in zip(step.minibatches, self._forward_passes(step), strict=True):
            own = self._losses(minibatch.module_ids, module, minibatch.columns, fwd_out)
            self._loss_statistics.log_total(minibatch.module_ids, own)
            losses.append(weighted(own, minibatch.weights))
        whole = losses[0] if len(losses) == 1 else torch.stack(losses)
        return whole.sum() if whole.dim() else whole

    def _forward_passes(self, step: Step) -> list[tuple[Any, Any]]:
        """Runs each minibatch forward, those of joint modules together; returns the module and its outputs for each."""
        if step.is_joint:
            outputs = self._forward_train(self.module, {m.module_ids[0]: m.columns for m in step.minibatches})
            return [(self.module[m.module_ids[0]], outputs[m.module_ids[0]]) for m in step.minibatches]
        modules = [self._module_of(minibatch.module_ids) for minibatch in step.minibatches]
        return [
            (module, self._forward_train(module, minibatch.columns))
            for module, minibatch in zip(modules, step.minibatches, strict=True)
        ]

    def _module_of(self, module_ids: tuple[ModuleID, ...]) -> Any:
        """Returns a module, or the stacked one of several."""
        first, *others = module_ids
        stack = self.optimizers.stack_of(module_ids) if others else None
        return self.module[first] if stack is None else stack.load()

    def _losses(self, module_ids: tuple[ModuleID, ...], module: RLModule, batch: Any, fwd_out: Any) -> Tensor:
        """Returns the ``[M]`` losses of stacked modules, or the scalar loss of one module."""
        given: Any = {"batch": batch, "fwd_out": fwd_out}
        module_id, *others = module_ids
        if others:
            losses = self.compute_loss_for_stacked_modules(module_ids=module_ids, module=module, **given)
        else:
            config = self.config.get_config_for_module(module_id)
            compute_loss = self.compute_loss_for_module
            if has_self_supervised_loss(self.module[module_id]):
                own: Any = self.module[module_id].unwrapped()
                compute_loss = partial(own.compute_self_supervised_loss, learner=self)
            losses = compute_loss(module_id=module_id, config=config, **given)
        return self._checked_losses(losses, module_ids)

    def _checked_losses(self, losses: Any, module_ids: Sequence[ModuleID]) -> Tensor:
        """Returns the scalar loss of one module, or ``[M]`` losses of several.

        Raises:
            LearnerError: If ``losses`` are anything else.
        """
        expected = () if len(module_ids) == 1 else (len(module_ids),)
        if isinstance(losses, Tensor) and losses.shape == expected:
            return losses
        if isinstance(losses, Tensor) and not expected and losses.numel() == 1:
            return losses.reshape(())
        if isinstance(losses, Tensor):
            came = f"a tensor of the shape {tuple(losses.shape)}"
        else:
            is_shown = losses is None or isinstance(losses, int | float)
            came = repr(losses) if is_shown else f"a {type(losses).__name__}"
        if expected:
            raise LearnerError(
                f"{type(self).__name__}: its compute_loss_for_stacked_modules returned {came} for modules "
                f"{', '.join(map(repr, module_ids))}, expected a tensor of the shape {expected}: a loss for each. "
                f"Reduce only the axes after the first one."
            )
        method = f"{type(self).__name__}: its compute_loss_for_module"
        if has_self_supervised_loss(self.module[module_ids[0]]):
            method = f"{type(self.module[module_ids[0]].unwrapped()).__name__}: its compute_self_supervised_loss"
        is_tensor = isinstance(losses, Tensor)
        fix = "Take its mean." if is_tensor else "Return the loss; log_terms accepts other loss statistics."
        raise LearnerError(f"{method} returned {came} for module {module_ids[0]!r}, expected a scalar tensor. {fix}")

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.config.autocast_dtype
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, dtype))

    def _not_finite_error(self, batch: ColumnBatch) -> LearnerError:
        return not_finite_error(self._loss_statistics, self.module, batch, self.num_updates, self.ranks.gather)

    # Gradients and results.

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
                set_gradients(gradients, given, module_id, type(self).__name__)

    def _results(self, trained: Mapping[ModuleID, int], rates: Mapping[ModuleID, float]) -> dict[ModuleID, Any]:
        means = self.completed_statistics(self._loss_statistics.means())
        counts = {m: {"num_module_steps_trained": count, "learning_rate": rates[m]} for m, count in trained.items()}
        return {module_id: {**means[module_id], **own} for module_id, own in counts.items()}

    # Modules that are added and removed.

    def add_module(self, module_id: ModuleID, module: RLModule, *, is_updated: bool = True) -> None:
        """Adds a module and its optimizers. Those of the other modules stay as they are.

        Args:
            module_id: The module's id.
            module: The module.
            is_updated: Whether the module is trained; False for a module that only acts.
        """
        self.module.add_module(module_id, module)
        if not is_updated:
            self._never_updated.add(module_id)
            return
        self.optimizers.configure(module_id)
        self._refresh_optimizers()

    def remove_module(self, module_id: ModuleID) -> None:
        """Removes a module and its optimizers."""
        self.module.remove_module(module_id)
        self.optimizers.forget(module_id)
        self._never_updated.discard(module_id)
        self._refresh_optimizers()

    def get_state(self) -> dict[str, Any]:
        """Returns everything that the next update depends on: the fields of ``state_class``, and of a subclass."""
        self._refresh_optimizers()
        return {
            "module": self.module.get_state(),
            "optimizers": self.optimizers.get_state(),
            **self._get_other_state(),
        }

    def _get_other_state(self) -> dict[str, Any]:
        """Returns what ``get_state`` has beside the parameters and moments. Subclasses that remember more extend it."""
        return {
            "frozen": self.module.frozen_names(),
            "pipeline": self.pipeline.get_state(),
            "seed": self._seed,
            "num_updates": self.num_updates,
            "timestep": self.timestep,
            "never_updated": sorted(self._never_updated),
            "metrics": self.metrics.get_state(),
        }

    def now(self) -> Callable[[], None]:
        """Returns a function that brings the learner and its modules back to where they are now."""
        self._refresh_optimizers()
        module, optimizers = self.module.keep_state(), self.optimizers.keep_state()
        others = self._get_other_state() if type(self).get_state is Learner.get_state else self.get_state()
        others = {name: copied(own) for name, own in others.items() if name not in ("module", "optimizers")}
        return lambda: self.set_state({**others, "module": module(), "optimizers": optimizers()})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned. A subclass may have added keys, which it loads itself.

        Raises:
            CheckpointError: If the state is not as ``state_class`` says.
        """
        names = set(self.state_class.__struct_fields__)
        known = read_state(self.state_class, {name: value for name, value in state.items() if name in names})
        self.module.set_state(known.module)
        frozen = set(known.frozen)
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name not in frozen)
        self._never_updated = set(known.never_updated)
        self._refresh_optimizers()
        self.optimizers.set_state(known.optimizers)
        self.pipeline.set_state(known.pipeline)
        self._seed = known.seed
        self.num_updates = known.num_updates
        self.timestep = known.timestep
        self.metrics.set_state(known.metrics)


@cache
def _is_as_new(learner_class: type[Learner], name: str, others: tuple[str, ...]) -> bool:
    first = {method: next(cls for cls in learner_class.__mro__ if method in vars(cls)) for method in (name, *others)}
    at = {method: learner_class.__mro__.index(cls) for method, cls in first.items()}
    return first[name] is not Learner and all(at[name] <= at[other] for other in others)


def _in_one_step(config: Any) -> Any:
    """Returns a config with which each module has all rows in one minibatch, once and in order."""
    whole = {"num_epochs": 1, "minibatch_size": None}
    overrides = {m: {**own, **whole} for m, own in config.algorithm_config_overrides_per_module.items()}
    found = config.copy()
    found.change(**whole, shuffle_batch_per_epoch=False, algorithm_config_overrides_per_module=overrides)
    return found


TorchLearner = Learner
"""RLlib's name."""
