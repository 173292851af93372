"""ActorCriticLearner: what the losses of a policy and a value function have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from marl_connectors.algorithms.actor_critic.discounted_returns import DiscountedReturns
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.errors import ConfigError
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.rl_module.calls import call_module, checked_inputs, checked_values, in_full, values_batch
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.transfers import moved
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.rl_module.distributions.distribution import Distribution

VALUE_MOMENTS = ("value targets", "squared value targets", "value errors", "squared value errors")
"""Means in the loss statistics from which the explained variance follows, for any division of the rows."""


class LossRows(Protocol):
    """The rows that a loss is computed from: ``[B, ...]`` of one module, or ``[M, B, ...]`` of ``M`` modules.

    Attributes:
        inputs: The current ``action_dist_inputs``.
        values: The current value estimates; None without a critic.
        actions: The actions that were taken; may be a tree of tensors.
        value_targets: The targets of ``values``; None without a critic.
        weights: The weight of each row in the means; None if all rows have the same weight.
    """

    @property
    def inputs(self) -> Tensor: ...
    @property
    def values(self) -> Tensor | None: ...
    @property
    def actions(self) -> Any: ...
    @property
    def value_targets(self) -> Tensor | None: ...
    @property
    def weights(self) -> Tensor | None: ...


class ActorCriticLearner(Learner):
    """A learner whose loss reads the distribution of the actions that were taken and, with a critic, their values.

    A subclass says what its loss is for some rows. This class calls the modules, for one module or stacked ones,
    estimates advantages, and logs the terms of the loss.

    Attributes:
        TERMS: The names of the terms of the loss, the total first.
        ROW_COLUMN: A column with a number for each row that the loss reads.
        NO_CRITIC: The setting by which a module has no critic, in words.
    """

    TERMS: tuple[str, ...] = ()
    ROW_COLUMN: str = Columns.REWARDS
    NO_CRITIC = ""

    def build(self) -> None:
        """Adds advantage estimation to the pipeline."""
        self._coefficients_of: dict[tuple[ModuleID, ...], Any] = {}
        self._coefficients_at = (-1, -1)
        if self.config.add_default_connectors_to_learner_pipeline:
            piece = self.advantage_piece()
            if piece is not None:
                self.pipeline.append(piece)
        super().build()

    # To override.

    @abstractmethod
    def has_critic(self, config: Any) -> bool:
        """Whether modules with these settings have a critic."""

    @abstractmethod
    def advantage_settings(self, config: Any) -> dict[str, Any]:
        """Returns the arguments of GeneralAdvantageEstimation for modules with these settings."""

    @abstractmethod
    def own_coefficients(self, module_id: ModuleID, config: Any) -> Any:
        """Returns the weights and clips of a module's loss now, a NamedTuple of numbers."""

    @abstractmethod
    def rows_of(
        self, config: Any, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any], rows: CountedRows
    ) -> LossRows:
        """Selects the rows of a minibatch that count.

        Args:
            config: The module's config.
            inputs: The ``action_dist_inputs`` of all rows.
            values: The value estimates of all rows; None without a critic.
            batch: The columns of the minibatch.
            rows: The rows that count.
        """

    @abstractmethod
    def loss_of_rows(self, dist_cls: type[Distribution], coefficients: Any, rows: Any) -> Sequence[Tensor]:
        """Returns the terms of the loss, in the order of ``TERMS``."""

    def advantage_piece(self, *, standardize: bool = True) -> GeneralAdvantageEstimation | None:
        """Returns the piece that adds advantages and value targets to the train batch; None for none."""
        ids = [*self.module.keys(), *self.config.algorithm_config_overrides_per_module]
        own = {m: self.advantage_settings(self.config.get_config_for_module(m)) for m in ids}
        critics = {m: self.has_critic(self.config.get_config_for_module(m)) for m in ids}
        settings = {**self.advantage_settings(self.config), "module_settings": own, "standardize": standardize}
        by_default = self.has_critic(self.config)
        if all(critics.values()) and by_default:
            return GeneralAdvantageEstimation(**settings)
        return DiscountedReturns(critics=critics, critic_by_default=by_default, **settings)

    # Losses.

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns the scalar loss of one module."""
        known = config is self.config.get_config_for_module(module_id)
        coefficients = self.coefficients((module_id,)) if known else self.own_coefficients(module_id, config)
        return self._loss((module_id,), config, self.module[module_id], batch, fwd_out, coefficients)

    def compute_loss_for_stacked_modules(
        self, *, module_ids: Sequence[ModuleID], module: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]
    ) -> Tensor:
        """Returns ``[M]`` losses in one computation. Each module has its own coefficients and clips."""
        config = self.config.get_config_for_module(module_ids[0])
        return self._loss(module_ids, config, module, batch, fwd_out, self.coefficients(module_ids))

    def coefficients(self, module_ids: Sequence[ModuleID]) -> Any:
        """Returns the weights and clips of an update: numbers, or ``[M]`` tensors if modules differ."""
        now = (self.num_updates, self.timestep)
        if self._coefficients_at != now:
            self._coefficients_of, self._coefficients_at = {}, now
        key = tuple(module_ids)
        if key not in self._coefficients_of:
            own = [self.own_coefficients(m, self.config.get_config_for_module(m)) for m in key]
            self._coefficients_of[key] = type(own[0])(*map(self._one_for_each, zip(*own, strict=True)))
        return self._coefficients_of[key]

    def _one_for_each(self, values: Sequence[float]) -> Any:
        return values[0] if len(set(values)) == 1 else moved(np.array(values, np.float32), self.device)

    def _loss(
        self,
        module_ids: Sequence[ModuleID],
        config: Any,
        module: Any,
        batch: Mapping[str, Any],
        fwd_out: Mapping[str, Any],
        coefficients: Any,
    ) -> Tensor:
        """Returns the scalar loss of one module, or the ``[M]`` losses of stacked ones."""
        dist_cls = self.module[module_ids[0]].get_train_action_dist_cls()
        rows = CountedRows.of(batch, stacked=len(module_ids) if len(module_ids) > 1 else 0)
        lead = tuple(batch[self.ROW_COLUMN].shape)
        space = self.module[module_ids[0]].action_space
        inputs = checked_inputs(module_ids[0], fwd_out, lead, dist_cls=dist_cls, action_space=space)
        values = None
        if self.has_critic(config):
            given = values_batch(fwd_out, batch)
            found = call_module(module, module.compute_values, given, embeddings=fwd_out.get(Columns.EMBEDDINGS))
            values = checked_values(module_ids[0], found, lead)
        picked = self.rows_of(config, in_full(inputs), values, batch, rows)
        terms = self.loss_of_rows(dist_cls, coefficients, picked)
        logged = dict(zip(self.TERMS, terms, strict=True))
        if picked.values is not None and picked.value_targets is not None:
            both = picked.values.detach().double(), picked.value_targets.detach().double()
            logged |= zip(VALUE_MOMENTS, value_moments(*both, picked.weights), strict=True)
        self.log_terms(module_ids, logged)
        return terms[0]

    # Results.

    def completed_statistics(self, means: dict[ModuleID, dict[str, float]]) -> dict[ModuleID, Any]:
        """Replaces the moments of values by the explained variance."""
        for own in means.values():
            if VALUE_MOMENTS[0] in own:
                own["vf_explained_var"] = explained_variance(*(own.pop(name) for name in VALUE_MOMENTS))
        return means

    # Modules that are added and removed.

    def add_module(self, module_id: ModuleID, module: RLModule, *, is_updated: bool = True) -> None:
        """Adds a module, whose advantages are computed with its own settings."""
        config = self.config.get_config_for_module(module_id)
        pieces = [piece for piece in self.pipeline if isinstance(piece, GeneralAdvantageEstimation)]
        for piece in pieces:
            if not self.has_critic(config) and not isinstance(piece, DiscountedReturns):
                raise ConfigError(
                    f"add_module: {self.NO_CRITIC} for module {module_id!r}, but all modules of the run have a critic. "
                    f"Set the override from the start: .rl_module(algorithm_config_overrides_per_module=...)."
                )
        super().add_module(module_id, module, is_updated=is_updated)
        for piece in pieces:
            piece.module_settings[module_id] = self.advantage_settings(config)
            if isinstance(piece, DiscountedReturns):
                piece.critics[module_id] = self.has_critic(config)

    def remove_module(self, module_id: ModuleID) -> None:
        """Removes a module, with its settings and statistics of values."""
        super().remove_module(module_id)
        for piece in self.pipeline:
            if isinstance(piece, GeneralAdvantageEstimation):
                piece.forget_module(module_id)
                if isinstance(piece, DiscountedReturns):
                    piece.critics.pop(module_id, None)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self._coefficients_at = (-1, -1)


def value_moments(values: Any, targets: Any, weights: Any) -> list[Any]:
    """Returns the means of targets, of errors, and of their squares over a minibatch, a scalar or ``[M]`` each.

    Args:
        values: ``[B]`` or ``[M, B]`` float64, the value estimates.
        targets: Their targets.
        weights: The weight of each row in the means; None if all rows have the same weight.
    """
    errors = targets - values
    of_rows = targets, targets * targets, errors, errors * errors
    return [x.sum(-1) / x.shape[-1] if weights is None else (x * weights).sum(-1) for x in of_rows]


def explained_variance(targets: float, squares: float, errors: float, squared_errors: float) -> float:
    """Returns the fraction of the targets' variance that the values explain, at least -1."""
    spread, rest = squares - targets**2, squared_errors - errors**2
    if spread <= 1e-12 * squares:  # rounding is all that varies
        return 0.0
    return max(-1.0, 1.0 - rest / spread)
