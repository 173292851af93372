"""Learner: from episodes to better modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import LearnerError
from marl_connectors.learner.minibatches import MemberColumns, MiniBatch, minibatches_of_epoch
from marl_connectors.learner.optimizers import Optimizers
from marl_connectors.metrics import MetricsLogger
from marl_connectors.rl_module.bucket import Bucket
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import stream
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID


class Learner(ABC):
    """Updates a MultiRLModule from episodes. Subclass it and override ``compute_loss_for_module``.

    Attributes:
        config: The algorithm's config.
        module: The modules.
        pipeline: From episodes to a train batch.
        timestep: Env steps that the episodes of all updates so far were sampled in; schedules go by it.
        metrics: Where the pieces of ``pipeline`` log.
        pipeline_seconds: How long the newest update's train batch took.
    """

    def __init__(self, *, config: Any, module: MultiRLModule, pipeline: LearnerConnectorPipeline, seed: int = 0):
        self.config = config
        self.module = module
        self.pipeline = pipeline
        self.timestep = 0
        self.metrics = MetricsLogger()
        self.pipeline_seconds = 0.0
        self.num_updates = 0
        self._seed = seed
        self._terms: dict[ModuleID, dict[str, list[Tensor]]] = {}
        self.optimizers = Optimizers(self)

    def build(self) -> None:
        """Makes the optimizers. Called once before the first update.

        Raises:
            LearnerError: For a MultiRLModule with a forward pass of its own, which this version can only act with.
        """
        if type(self.module)._forward is not MultiRLModule._forward:
            raise LearnerError(
                f"{type(self).__name__}: {type(self.module).__name__} runs its modules in a way of its own (_forward), "
                f"which this version cannot train through. Give each module what it needs itself."
            )
        for module_id in self.module:
            self.configure_optimizers_for_module(module_id, self.config.get_config_for_module(module_id))

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
        self, *, module_ids: Sequence[ModuleID], batch: Mapping[str, Any], fwd_out: Mapping[str, Any], bucket: Bucket
    ) -> Tensor:
        """``[M]`` losses of a bucket's modules, from columns ``[M, B, ...]``: one after another unless overridden."""
        losses = []
        for i, module_id in enumerate(module_ids):
            losses.append(
                self.compute_loss_for_module(
                    module_id=module_id,
                    config=self.config.get_config_for_module(module_id),
                    batch=MemberColumns(batch, i),
                    fwd_out=MemberColumns(fwd_out, i),
                )
            )
        return torch.stack(losses)

    def configure_optimizers_for_module(self, module_id: ModuleID, config: Any) -> None:
        """Registers a module's optimizers: Adam for all its parameters unless overridden."""
        self.optimizers.register_default(module_id)

    def before_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:  # noqa: B027
        """Called before the minibatches of an update."""

    def after_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:  # noqa: B027
        """Called after the minibatches of an update."""

    def postprocess_gradients_for_module(
        self, *, module_id: ModuleID, config: Any, module_gradients: list[Tensor]
    ) -> None:
        """Changes a module's gradients in place: clips them as the config says unless overridden."""
        self.optimizers.clip(module_id, config, module_gradients)

    # To call.

    def register_optimizer(
        self, *, module_id: ModuleID, optimizer: torch.optim.Optimizer, name: str = "default_optimizer"
    ) -> None:
        """Has an optimizer step whenever a module has new gradients. For ``configure_optimizers_for_module``."""
        self.optimizers.register(module_id, optimizer, name)

    def get_parameters(self, module: RLModule) -> list[torch.nn.Parameter]:
        """A module's trainable parameters."""
        return [p for p in module.parameters() if p.requires_grad]

    def update(
        self, *, episodes: Sequence[Any], timesteps: dict[str, int] | None = None
    ) -> dict[ModuleID, dict[str, float]]:
        """One update from episodes, or chunks of them.

        Args:
            episodes: SingleAgentEpisodes or MultiAgentEpisodes, as ``EnvRunner.sample`` gives them.
            timesteps: Steps sampled so far, by kind; ``num_env_steps_sampled_lifetime`` moves the schedules.

        Returns:
            Means of the losses' terms and other figures, for each module that had data.

        Raises:
            LearnerError: If a loss (or the gradients' norm, where it is clipped) is not finite. Found after the update.
        """
        timesteps = timesteps or {}
        self.timestep = timesteps.get("num_env_steps_sampled_lifetime", self.timestep)
        began = perf_counter()
        batch = self.make_batch(episodes)
        self.pipeline_seconds = perf_counter() - began
        for bucket in self.module.buckets:
            if not bucket.is_bound:
                bucket.bind()
        self._terms = {}
        self.optimizers.set_learning_rates()
        self.before_gradient_based_update(timesteps=timesteps)
        trained: dict[ModuleID, int] = defaultdict(int)
        for epoch in range(self.config.num_epochs):
            for group in batch.groups:
                bucket = self._bucket_of(group)
                for minibatch in minibatches_of_epoch(
                    group, bucket, size_of=self._minibatch_size, shuffle=self._shuffle(epoch)
                ):
                    self._update_from(minibatch, bucket)
                    for module_id in minibatch.module_ids:
                        trained[module_id] += minibatch.size
        self.after_gradient_based_update(timesteps=timesteps)
        self.num_updates += 1
        return self._results(trained)

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """The train batch: one group for the modules of each bucket, one for each module without one."""
        own = [
            episode
            for episode in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False)
            if len(episode) and self.should_train(episode.module_id or DEFAULT_MODULE_ID)
        ]
        by_module: dict[ModuleID, list[SingleAgentEpisode]] = defaultdict(list)
        for episode in own:
            by_module[episode.module_id or DEFAULT_MODULE_ID].append(episode)
        families = [bucket.module_ids for bucket in self.module.buckets]
        families += [(m,) for m in self.module if not any(m in family for family in families)]
        groups = []
        for family in families:
            present = [m for m in family if m in by_module]
            if present:
                rows = rows_of_episodes([e for m in present for e in by_module[m]], present)
                groups.append(ColumnGroup(rows))
        return self.pipeline.run(
            ColumnBatch(groups), rl_module=self.module, episodes=episodes, shared_data={}, metrics=self.metrics
        )

    def should_train(self, module_id: ModuleID) -> bool:
        """Whether ``policies_to_train`` names the module."""
        wanted = self.config.policies_to_train
        return wanted is None or bool(wanted(module_id) if callable(wanted) else module_id in wanted)

    # One minibatch.

    def _update_from(self, minibatch: MiniBatch, bucket: Bucket | None) -> None:
        ids, columns = minibatch.module_ids, minibatch.columns
        if minibatch.is_stacked:
            assert bucket is not None
            fwd_out = bucket.twin.forward_train(columns)
            losses = self.compute_loss_for_stacked_modules(
                module_ids=ids, batch=columns, fwd_out=fwd_out, bucket=bucket
            )
        else:
            module = self.module[ids[0]]
            fwd_out = module.forward_train(columns)
            losses = self.compute_loss_for_module(
                module_id=ids[0], config=self.config.get_config_for_module(ids[0]), batch=columns, fwd_out=fwd_out
            )
        noted = self._terms.get(ids[0], {})
        if "total_loss" in noted or not any("total_loss" in names.split(",") for names in noted):
            self.log_terms(ids, {"total_loss": losses})  # the subclass does not
        self.optimizers.compute_gradients(losses.sum(), ids)
        self._postprocess_gradients(ids)
        self.optimizers.step(ids)

    def _postprocess_gradients(self, module_ids: Sequence[ModuleID]) -> None:
        if type(self).postprocess_gradients_for_module is Learner.postprocess_gradients_for_module:
            self.optimizers.clip_all(module_ids)
            return
        for module_id in module_ids:
            self.postprocess_gradients_for_module(
                module_id=module_id,
                config=self.config.get_config_for_module(module_id),
                module_gradients=[p.grad for p in self.module[module_id].parameters() if p.grad is not None],
            )

    def _bucket_of(self, group: ColumnGroup) -> Bucket | None:
        return self.module.bucket_of(group.module_ids)

    def _minibatch_size(self, module_id: ModuleID) -> int | None:
        return self.config.get_config_for_module(module_id).minibatch_size

    def _shuffle(self, epoch: int) -> Callable[[ModuleID, int], np.ndarray] | None:
        if not self.config.shuffle_batch_per_epoch:
            return None
        return lambda module_id, rows: stream(
            self._seed, "minibatches", module_id, self.num_updates, epoch
        ).permutation(rows)

    # Figures.

    def log_terms(self, module_ids: Sequence[ModuleID], terms: Mapping[str, Tensor]) -> None:
        """Notes figures of a minibatch, ``[M]`` or scalars; ``update`` gives their means."""
        names = list(terms)
        values = torch.stack([terms[name].detach().reshape(-1) for name in names])
        key = ",".join(names)
        for i, module_id in enumerate(module_ids):
            self._terms.setdefault(module_id, {}).setdefault(key, []).append(values[:, i])

    def _results(self, trained: Mapping[ModuleID, int]) -> dict[ModuleID, dict[str, float]]:
        results: dict[ModuleID, dict[str, float]] = {}
        for module_id, count in trained.items():
            figures: dict[str, float] = {}
            for key, values in self._terms.get(module_id, {}).items():
                figures.update(zip(key.split(","), torch.stack(values).mean(0).tolist(), strict=True))
            for name, value in figures.items():
                if not np.isfinite(value):
                    raise LearnerError(
                        f"Learner: {name} of module {module_id!r} is {value} in update {self.num_updates}. Lower the "
                        f"learning rate, set grad_clip, or look for extreme rewards; the last checkpoint is intact."
                    )
            figures["num_module_steps_trained"] = count
            figures["learning_rate"] = self.optimizers.learning_rate(module_id)
            results[module_id] = figures
        return results

    # Modules that come and go.

    def add_module(self, module_id: ModuleID, module: RLModule) -> None:
        """Adds a module and its optimizers; those of the others go on."""
        self.module.add_module(module_id, module)
        self.configure_optimizers_for_module(module_id, self.config.get_config_for_module(module_id))

    def remove_module(self, module_id: ModuleID) -> None:
        """Takes a module and its optimizers out."""
        self.module.remove_module(module_id)
        self.optimizers.forget(module_id)

    def get_state(self) -> dict[str, Any]:
        """Everything that the next update depends on, as JSON data and tensors."""
        return {
            "module": self.module.get_state(),
            "optimizers": self.optimizers.get_state(),
            "pipeline": self.pipeline.get_state(),
            "seed": self._seed,
            "num_updates": self.num_updates,
            "timestep": self.timestep,
            "metrics": self.metrics.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes what ``get_state`` gave."""
        self.module.set_state(state["module"])
        self.optimizers.set_state(state["optimizers"])
        self.pipeline.set_state(state["pipeline"])
        self._seed = state["seed"]
        self.num_updates = state["num_updates"]
        self.timestep = state["timestep"]
        self.metrics.set_state(state.get("metrics", []))
