"""QMIX's loss: one for all agents, of the value of what they do together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.algorithms.dqn.learner import DQNLearner, best_values
from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.algorithms.qmix.mixers import QMixer, VDNMixer
from marl_connectors.algorithms.qmix.mixing import Mixing
from marl_connectors.algorithms.qmix.picked_rows import PickedRows, TeamColumns, everywhere, filled, target_steps
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
from marl_connectors.ops.n_step_targets import n_step_targets
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.n_step import largest_n_step
from marl_connectors.replay_buffers.team_replay_sample import TeamReplaySample
from marl_connectors.seeding import torch_stream
from marl_connectors.transfers import all_moved
from marl_connectors.typing import ModuleID


class TeamValues(NamedTuple):
    """What a minibatch gives to the loss of a team.

    Attributes:
        taken: ``[n]`` the values of the actions taken at the env steps that count, with gradients.
        taken_cells: Their places among ``N * W * A`` places: item, row of the item, agent.
        best: The values of the best actions at the env steps that the targets read, by the target networks.
        best_cells: Their places.
        columns: What all rows say about their env steps.
    """

    taken: Tensor
    taken_cells: Tensor
    best: Tensor
    best_cells: Tensor
    columns: TeamColumns


class QMIXLearner(DQNLearner):
    """Q-learning of the value of what a team does together, with a mixer over the values of all agents.

    The mixer is used in training only, so it is no part of the modules. A subclass that overrides ``make_mixer`` learns
    with another mixer.

    Attributes:
        mixing: The mixer, its target network and its optimizer.
    """

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
        if not isinstance(episodes, TeamReplaySample):
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
        return [Step(0, minibatches, {m: int(own.acted @ counted[own.env_steps]) for m, own in segments.items()})]

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
        sample = self._sample
        with self._autocast():
            learned = [PickedRows.of(m, sample, sample.counted, only_acted=True) for m in step.minibatches]
            to_learn = [
                dataclasses.replace(m, columns=r.columns) for m, r in zip(step.minibatches, learned, strict=True)
            ]
            passes = self._forward_passes(step._replace(minibatches=to_learn))
            found = [self._values_of(*own) for own in zip(step.minibatches, learned, passes, strict=True)]
        values = torch.cat([own.taken.detach().float() for own in found]).requires_grad_()
        loss = self._team_loss([m for one in step.minibatches for m in one.module_ids], values, found)
        self.mixing.compute_gradients(loss)
        assert values.grad is not None
        slopes = values.grad.split([len(own.taken) for own in found])
        for minibatch, own, slope in zip(step.minibatches, found, slopes, strict=True):
            self.optimizers.compute_gradients((own.taken * slope).sum(), minibatch.module_ids)
        return loss.detach()

    def _values_of(self, minibatch: MiniBatch, learned: PickedRows, forward_pass: tuple[Any, Any]) -> TeamValues:
        """Returns the values of a minibatch.

        Args:
            minibatch: All its rows.
            learned: Those whose values are learned.
            forward_pass: The module, and its outputs for these.
        """
        module, fwd_out = forward_pass
        values = fwd_out[QF_PREDS]
        actions = learned.columns[Columns.ACTIONS].long().unsqueeze(-1)
        read = PickedRows.of(minibatch, self._sample, target_steps(self._sample, largest_n_step(self.config.n_step)))
        with torch.no_grad():
            judged = by_target = module.forward_target(read.columns)[QF_PREDS]
            if self.config.double_q:
                is_known = read.columns is learned.columns  # all rows, of sequences
                judged = values.detach() if is_known else module.compute_q_values(read.columns)
            best = best_values(by_target, judged, read.columns.get(Columns.ACTION_MASK))
        return TeamValues(
            learned.pick(values.gather(-1, actions).squeeze(-1)),
            learned.cells,
            read.pick(best).float(),
            read.cells,
            TeamColumns.of(minibatch, self._sample, MIXER_STATE),
        )

    def _team_loss(self, module_ids: Sequence[ModuleID], values: Tensor, found: Sequence[TeamValues]) -> Tensor:
        """Returns the mean loss of all env steps that count.

        Args:
            module_ids: The modules.
            values: ``[n]`` the values of the actions taken, of all minibatches.
            found: What each minibatch gives.
        """
        sample, config = self._sample, self.config
        n_step = largest_n_step(config.n_step)
        shape, agents = sample.counted.shape, sample.num_agents
        number = shape[0] * shape[1]
        columns = [own.columns for own in found]
        env_steps = torch.cat([own.env_steps for own in columns])
        rewards = filled(torch.cat([own.rewards for own in columns]), env_steps, number)
        alive = everywhere(number, env_steps)
        states = [own.states for own in columns if own.states is not None]
        known = filled(torch.cat(states), env_steps, number) if states else None
        left = np.maximum(sample.last[:, None] - np.arange(shape[1]), 0)
        picks = [np.flatnonzero(sample.counted), np.flatnonzero(target_steps(sample, n_step)), left]
        counted, read, left = all_moved(picks, self.device)

        def mixed(mixer: torch.nn.Module, own: Tensor, cells: list[Tensor], at: Tensor) -> Tensor:
            joint = filled(own, torch.cat(cells), number * agents).view(number, agents)
            return mixer(joint[at], None if known is None else known[at])

        with torch.no_grad():
            best = torch.cat([own.best for own in found])
            following = filled(mixed(self.mixing.target, best, [own.best_cells for own in found], read), read, number)
            targets = n_step_targets(
                rewards.view(shape), (following * alive).view(shape), left, n_step=n_step, gamma=config.gamma
            ).reshape(-1)[counted]
        taken = mixed(self.mixing.mixer, values, [own.taken_cells for own in found], counted)
        losses = F.smooth_l1_loss(taken, targets, reduction="none")
        if config.td_error_loss_fn == "mse":
            losses = (taken - targets).square()
        if sample.weights is not None:
            losses = losses * torch.from_numpy(sample.weights[np.nonzero(sample.counted)[0]]).to(losses)
        loss = losses.sum() / max(len(losses), 1)
        self._log_team(module_ids, loss, taken.detach(), targets)
        return loss

    def _log_team(self, module_ids: Sequence[ModuleID], loss: Tensor, taken: Tensor, targets: Tensor) -> None:
        """Logs the loss statistics of the team for each of its modules."""
        errors = taken - targets
        means = {
            "total_loss": loss.detach(),
            "qf_loss": loss.detach(),
            "qf_mean": taken.mean(),
            "td_error_mean": errors.mean(),
            "td_error_abs_mean": errors.abs().mean(),
            "target_mean": targets.mean(),
        }
        self.log_terms(module_ids, {name: term.expand(len(module_ids)) for name, term in means.items()})
        for module_id in module_ids:
            self._errors[module_id] = errors

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
