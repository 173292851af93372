"""QMIX's loss: one for all agents, of the value of what they do together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_connectors.algorithms.dqn.learner import (
    TERMS,
    DQNLearner,
    QFunctions,
    TDErrors,
    best_values,
    taken_actions,
)
from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearnerState
from marl_connectors.algorithms.qmix.mixers import QMixer, VDNMixer
from marl_connectors.algorithms.qmix.mixing import Mixing, MixingState
from marl_connectors.algorithms.qmix.team_rows import PickedRows, TeamRows
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.add_mixer_states_to_train_batch import (
    MIXER_STATE,
    AddMixerStatesToTrainBatch,
)
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.errors import LearnerError
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.minibatches import GroupRows, MiniBatch
from marl_connectors.learner.updates import Step, has_self_supervised_loss
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.n_step import largest_n_step
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.seeding import torch_stream
from marl_connectors.transfers import moved
from marl_connectors.typing import ModuleID


class TeamValues(NamedTuple):
    """What some modules give to the loss of a team.

    Attributes:
        taken: ``[n]`` the values of the actions taken.
        best: ``[m]`` the values of the best actions at the env steps that the targets read, by the target networks.
    """

    taken: Tensor
    best: Tensor


class QMIXLearnerState(OffPolicyLearnerState):
    """The state of a QMIXLearner.

    Attributes:
        mixing: That of the mixer.
    """

    mixing: MixingState


class QMIXLearner(DQNLearner):
    """Q-learning of the value of what a team does together, with a mixer over the values of all agents.

    The mixer is used in training only, so it is no part of the modules. A subclass that overrides ``make_mixer`` learns
    with another mixer.

    Attributes:
        mixing: The mixer, its target network and its optimizer.
    """

    state_class = QMIXLearnerState

    def build(self) -> None:
        """Makes the mixer.

        Raises:
            LearnerError: If modules share parameters or have losses of their own, or if the pipeline has no piece for
                the mixer's states.
        """
        super().build()
        alone = [m for m, module in self.module.items() if has_self_supervised_loss(module)]
        if alone or type(self).compute_loss_for_module is not DQNLearner.compute_loss_for_module:
            what = f"module {alone[0]!r} computes its own" if alone else "compute_loss_for_module is overridden"
            raise LearnerError(
                f"{type(self).__name__}: there is one loss for the whole team, but {what}. Override make_mixer to "
                f"change what is learned, or use DQNConfig for a loss of each module."
            )
        if joint := self.module.joint_modules():
            raise LearnerError(
                f"{type(self).__name__}: modules {', '.join(map(repr, joint))} share parameters or a forward pass, "
                f"which a mixer cannot learn through. Map the agents to one module, or give the modules layers of "
                f"their own."
            )
        with torch_stream(self._seed, "mixer"):
            self.mixing = Mixing(self.make_mixer(), self.device)

    def make_mixer(self) -> torch.nn.Module:
        """Returns the mixer, which is called as ``mixer(values, states)``; see ``QMixer``."""
        if self.config.mixer == "vdn":
            return VDNMixer()
        piece = next((p for p in self.pipeline if isinstance(p, AddMixerStatesToTrainBatch)), None)
        if piece is None:
            raise LearnerError(
                f"{type(self).__name__}: the learner pipeline has no AddMixerStatesToTrainBatch, which makes what the "
                f"mixer knows. Put it there, or set mixer='vdn'."
            )
        return QMixer(sum(map(len, piece.agents.values())), piece.size, self.config.mixing_embed_dim)

    def pieces_after_columns(self) -> list[ConnectorV2]:
        """Returns no pieces: the rewards of several steps are added up for the whole team."""
        return []

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """Returns the train batch of env steps from a replay buffer.

        Raises:
            LearnerError: If they do not come from a ``TeamReplayBuffer``.
        """
        if not isinstance(episodes, EnvStepSample) or not episodes.shares_rewards:
            raise LearnerError(
                f"{type(self).__name__}: expected a sample of a TeamReplayBuffer, got a {type(episodes).__name__}. Add "
                f"the episodes to algo.replay_buffer, and pass what its sample(...) returns."
            )
        self._sample = episodes
        return Learner.make_batch(self, episodes)

    def _steps(self, batch: ColumnBatch, rows: Sequence[GroupRows] | None = None) -> Any:
        """Returns a single gradient step, of all modules."""
        steps = super()._steps(batch, rows)
        found = list(steps)
        stacks = [m.module_ids for step in found for m in step.minibatches if m.is_stacked]
        whole = [bucket.module_ids for bucket in self.module.buckets]
        if any(ids not in whole for ids in stacks):  # such stacks share memory, so only one of them can be in use
            found = list(dataclasses.replace(steps, stacking_key=None))
        minibatches = [m for step in found for m in step.minibatches]
        counted = self._sample.counted.reshape(-1)
        segments = {m: self._sample.segments[m] for one in minibatches for m in one.module_ids}
        return [
            Step(0, minibatches, {m: int((own.acted & counted[own.env_steps]).sum()) for m, own in segments.items()})
        ]

    def _update_from(self, step: Step, batch: ColumnBatch) -> None:
        loss = self._team_gradients(step)
        norms = [self.optimizers.norms(minibatch.module_ids) for minibatch in step.minibatches]
        for minibatch, own in zip(step.minibatches, norms, strict=True):
            self._loss_statistics.log_gradient_norms(minibatch.module_ids, own)
        of_mixer = self.mixing.norm().to(self.device)
        if not self._check.holds(loss, torch.cat([*norms, of_mixer])):
            raise self._not_finite_error(batch)
        for minibatch, own in zip(step.minibatches, norms, strict=True):
            self._postprocess_gradients(minibatch.module_ids, own)
            self.optimizers.step(minibatch.module_ids, self._check)
        self.mixing.step(self.config, of_mixer, value_at(self.config.lr, self.timestep), self._check)

    def _team_gradients(self, step: Step) -> Tensor:
        """Computes the gradients of all modules and of the mixer, and returns the loss.

        The gradient with respect to the values of the actions taken is computed first, and then passed on to each group
        of modules, as those of a bucket compute their gradients together.
        """
        config, mixing, sample = self.config, self.mixing, self._sample
        rows = TeamRows(step.minibatches, sample, n_step=largest_n_step(config.n_step), gamma=config.gamma)
        with self._autocast():
            of_minibatches = step.minibatches, rows.learned.of_minibatches, rows.read.of_minibatches
            found = [self._values_of(*own) for own in zip(*of_minibatches, strict=True)]
        learned, read = rows.states(MIXER_STATE)
        with torch.no_grad():
            following = mixing.target(rows.read.matrix([own.best for own in found]), read)
            if rows.read_by is not None:
                following = following.index_select(0, rows.read_by)
            targets = rows.rewards + rows.discounts * following
        values = rows.learned.matrix([own.taken.detach() for own in found]).requires_grad_()
        mixed = mixing.mixer(values, learned)
        weights = None if sample.weights is None else moved(sample.weights[sample.counted_items], self.device)
        errors = TDErrors.of(mixed.detach(), targets, weights, loss_fn=config.td_error_loss_fn)
        of_values = mixing.compute_gradients(values, mixed, errors.slopes / len(targets))
        slopes = rows.learned.split(of_values, [own.taken for own in found])
        for minibatch, own, of_taken in zip(step.minibatches, found, slopes, strict=True):
            self.optimizers.compute_gradients((own.taken * of_taken).sum(), minibatch.module_ids)
        return self._log_team([m for one in step.minibatches for m in one.module_ids], errors)

    def _values_of(self, minibatch: MiniBatch, learned: PickedRows, read: PickedRows) -> TeamValues:
        """Returns the values of a minibatch.

        Args:
            minibatch: All its rows.
            learned: Those whose values are learned.
            read: Those whose best values the targets read.
        """
        module = self._module_of(minibatch.module_ids)
        functions = QFunctions.of_module(module)
        values = self._forward_train(module, learned.columns)[QF_PREDS]
        taken = learned.pick(values.gather(-1, taken_actions(learned.columns))).float()
        with torch.no_grad():
            judged = by_target = functions.targets(read.columns)
            if self.config.double_q:
                is_known = read.columns is learned.columns  # all rows, of sequences
                judged = values.detach() if is_known else functions.values(read.columns)
            best = read.pick(best_values(by_target, judged, read.columns.get(Columns.ACTION_MASK))).float()
        return TeamValues(taken, best)

    def _log_team(self, module_ids: Sequence[ModuleID], errors: TDErrors) -> Tensor:
        """Logs the loss statistics of the team for each of its modules, and returns the loss."""
        means = torch.stack(errors.terms()).mean(-1, keepdim=True)
        self.log_table(module_ids, TERMS, means.expand(-1, len(module_ids)))
        self.log_td_errors(module_ids, errors.errors.expand(len(module_ids), -1).squeeze(0))
        return means[0, 0]

    def update_targets(self, module_ids: Sequence[ModuleID]) -> None:
        """Moves the target networks of the modules and of the mixer."""
        super().update_targets(module_ids)
        self.mixing.update_target(self.config.tau)

    def get_state(self) -> dict[str, Any]:
        """Returns the learner's state, with the mixer."""
        return {**super().get_state(), "mixing": self.mixing.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self.mixing.set_state(state["mixing"])
