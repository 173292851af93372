"""QMIX and VDN: the loss for all agents, of the value of what they do together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marl_connectors.algorithms.build import reads_env_states
from marl_connectors.algorithms.dqn.learner import DQN, DQNLearner, losses_of_values
from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearnerState, RowLosses
from marl_connectors.algorithms.off_policy.replay_training import TeamReplayTraining
from marl_connectors.algorithms.qmix.config import QMIXConfig, VDNConfig
from marl_connectors.algorithms.qmix.mixing import Mixing, MixingState, QMixer, VDNMixer
from marl_connectors.algorithms.qmix.team_rows import TeamBatch, TeamRows
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.add_mixer_states_to_train_batch import (
    MIXER_STATE,
    AddMixerStatesToTrainBatch,
)
from marl_connectors.errors import ConfigError, LearnerError
from marl_connectors.learner.loss_stats import TOTAL_LOSS
from marl_connectors.learner.minibatches import GroupRows, MiniBatch
from marl_connectors.learner.updates import has_self_supervised_loss
from marl_connectors.ops.q_learning import taken_values, td_slopes
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.n_step import largest_n_step
from marl_connectors.replay_buffers.replay_buffer import PrioritizedTeamReplayBuffer, TeamReplayBuffer
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.seeding import torch_stream
from marl_connectors.typing import ModuleID


class TeamStep(NamedTuple):
    """The gradient step of an update.

    Attributes:
        team: The rows that it learns from.
        epoch: 0, the only one.
    """

    team: TeamRows
    epoch: int = 0

    @property
    def sizes(self) -> Mapping[ModuleID, int]:
        """The number of rows of each module."""
        return self.team.sizes

    own_sizes = sizes


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
        of_modules = ("compute_loss_for_module", "targets", "loss")
        own = [name for name in of_modules if getattr(type(self), name) is not getattr(DQNLearner, name)]
        if alone or own:
            what = f"module {alone[0]!r} computes its own" if alone else f"{own[0]} is overridden"
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

    def make_batch(self, episodes: Sequence[Any]) -> TeamBatch:
        """Returns the train batch of env steps from a replay buffer.

        Raises:
            LearnerError: If they do not come from a ``TeamReplayBuffer``.
        """
        if not isinstance(episodes, EnvStepSample) or not episodes.shares_rewards:
            raise LearnerError(
                f"{type(self).__name__}: expected a sample of a TeamReplayBuffer, got a {type(episodes).__name__}. Add "
                f"the episodes to algo.replay_buffer, and pass what its sample(...) returns."
            )
        return TeamBatch(super().make_batch(episodes), episodes)

    def _steps(self, batch: Any, rows: Sequence[GroupRows] | None = None, config: Any = None) -> Any:
        """Returns a single gradient step, of all modules."""
        return [
            TeamStep(
                TeamRows(batch, lambda own: self._minibatches(batch, own), n_step=largest_n_step(self.config.n_step))
            )
        ]

    def _minibatches(self, batch: TeamBatch, rows: Sequence[GroupRows]) -> list[MiniBatch]:
        """Returns rows in as few minibatches as possible."""
        steps = super()._steps(batch, rows)
        found = [minibatch for step in steps for minibatch in step.minibatches]
        whole = [bucket.module_ids for bucket in self.module.buckets]
        if any(own.is_stacked and own.module_ids not in whole for own in found):
            # Stacks of some modules of a bucket share memory, so only one of them can be in use.
            steps = dataclasses.replace(steps, stacking_key=None)
            found = [minibatch for step in steps for minibatch in step.minibatches]
        return found

    def _update_from(self, step: Any, batch: Any) -> None:
        loss = self._team_gradients(step)
        minibatches = step.team.learned.minibatches
        norms = [self.optimizers.norms(minibatch.module_ids) for minibatch in minibatches]
        for minibatch, own in zip(minibatches, norms, strict=True):
            self._loss_statistics.log_gradient_norms(minibatch.module_ids, own)
        of_mixer = self.mixing.norm().to(self.device)
        if not self._check.holds(loss, torch.cat([*norms, of_mixer])):
            raise self._not_finite_error(batch)
        for minibatch, own in zip(minibatches, norms, strict=True):
            self._postprocess_gradients(minibatch.module_ids, own)
            self.optimizers.step(minibatch.module_ids, self._check)
        self.mixing.step(self.config, of_mixer, value_at(self.config.lr, self.timestep), self._check)

    def _team_gradients(self, step: TeamStep) -> Tensor:
        """Computes the gradients of all modules and of the mixer, and returns the loss.

        The gradient with respect to the values of the actions taken is computed first, and then passed on to each group
        of modules, as those of a bucket compute their gradients together.
        """
        config, mixing, team = self.config, self.mixing, step.team
        learned, read = team.learned.minibatches, team.read.minibatches
        with self._autocast():
            values = [self._forward_train(self._module_of(m.module_ids), m.columns)[QF_PREDS] for m in learned]
            taken = [taken_values(q, m.columns[Columns.ACTIONS]).float() for m, q in zip(learned, values, strict=True)]
            with torch.no_grad():
                known = {id(m): q for m, q in zip(learned, values, strict=True)}
                best = [self._values_of_best(m, known.get(id(m))).float() for m in read]
        learned_states, read_states = team.states(MIXER_STATE)
        with torch.no_grad():
            targets = team.targets(mixing.target(team.read.of(best), read_states), config.gamma)
        values_of_agents = team.learned.of([own.detach() for own in taken]).requires_grad_()
        mixed = mixing.mixer(values_of_agents, learned_states)
        losses = losses_of_values(mixed.detach(), targets, config.td_error_loss_fn)
        slopes = td_slopes(losses.errors, config.td_error_loss_fn)
        slopes = slopes if team.weights is None else slopes * team.weights
        of_agents = mixing.compute_gradients(values_of_agents, mixed, slopes / len(targets))
        for minibatch, own, of_rows in zip(learned, taken, team.learned.split(of_agents, taken), strict=True):
            self.optimizers.compute_gradients((own * of_rows).sum(), minibatch.module_ids)
        return self._mean_of_team([m for one in learned for m in one.module_ids], losses, team.weights)

    def _values_of_best(self, minibatch: MiniBatch, known: Tensor | None) -> Tensor:
        """Returns the target network's values of the best actions in the rows of a minibatch."""
        return self.values_of_best(self.config, self._module_of(minibatch.module_ids), minibatch.columns, known)

    def _mean_of_team(self, module_ids: Sequence[ModuleID], losses: RowLosses, weights: Tensor | None) -> Tensor:
        """Returns the mean loss. Logs its statistics and errors for each of the modules."""
        (of_values,) = losses.of_values.values()
        of_values = of_values if weights is None else of_values * weights
        terms = {TOTAL_LOSS: of_values, **dict.fromkeys(losses.of_values, of_values), **losses.statistics}
        means = torch.stack(list(terms.values())).mean(-1, keepdim=True)
        self.log_table(module_ids, list(terms), means.expand(-1, len(module_ids)))
        self.td_errors.update(dict.fromkeys(module_ids, losses.errors))
        return of_values.mean()

    def update_targets(self, module_ids: Sequence[ModuleID]) -> None:
        """Moves the target networks of the modules and of the mixer."""
        super().update_targets(module_ids)
        self.mixing.update_target(self.config.tau)

    def _get_other_state(self) -> dict[str, Any]:
        """Returns the learner's state, with the mixer."""
        return {**super()._get_other_state(), "mixing": self.mixing.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state that ``get_state`` returned."""
        super().set_state(state)
        self.mixing.set_state(state["mixing"])


class QMIXReplayTraining(TeamReplayTraining):
    """Keeps the steps of a team, whose agents act at the same time."""

    buffer_classes = (TeamReplayBuffer, PrioritizedTeamReplayBuffer)

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``.

        Raises:
            ConfigError: If agents act one after another.
        """
        if self.setup.takes_turns:
            raise ConfigError(
                f"{type(self.config).__name__}: in {self.setup.name} agents act one after another, so no env step has "
                f"the actions of a whole team. Use an environment whose agents act at the same time, or DQNConfig "
                f"(--algo dqn on the command line)."
            )
        found = super().buffer_arguments()
        if reads_env_states(self.learner.pipeline):
            found["extra_columns"] = [*found["extra_columns"], Columns.ENV_STATE]
        return found


class QMIX(DQN):
    """Q-learning for teams with a mixer. ``QMIXConfig().build_algo()`` makes an object of this class."""

    config_class = QMIXConfig
    learner_class = QMIXLearner
    replay_class = QMIXReplayTraining

    config: QMIXConfig
    learner: QMIXLearner


class VDN(QMIX):
    """Value-decomposition networks. ``VDNConfig().build_algo()`` makes an object of this class."""

    config_class = VDNConfig
