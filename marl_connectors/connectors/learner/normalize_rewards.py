"""Normalises rewards by the standard deviation of the return before they reach a loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.reward_transform import rewards_of_columns
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import RANKS, ColumnGroup
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.ops.discounting import discounted_sums, rows_within
from marl_connectors.ops.moments import Moments
from marl_connectors.state import Index, State, read_state
from marl_connectors.typing import DEFAULT_MODULE_ID, EpisodeID, ModuleID
from marl_connectors.validators import number, optional

_KEEP_AT_LEAST = 256
"""The number of running returns that are kept for a module, at least; four for each of its episodes in a batch if that
is more."""


class NormalizeRewardsState(State):
    """What a NormalizeRewards remembers.

    Attributes:
        merged: The moments of each module's returns that were merged last.
        new: The moments of later batches.
        ongoing: Episodes that have not ended: the step to which each has come, and its return there. The newest are
            last.
        ended: The episodes that have ended since the last merge.
    """

    merged: dict[ModuleID, Moments] = {}
    new: dict[ModuleID, Moments] = {}
    ongoing: dict[ModuleID, dict[EpisodeID, tuple[Index, float]]] = {}
    ended: dict[ModuleID, list[EpisodeID]] = {}

    def copied(self) -> NormalizeRewardsState:
        """Returns a state that changes independently of this one."""
        return NormalizeRewardsState(
            merged=dict(self.merged),
            new=dict(self.new),
            ongoing={module_id: dict(own) for module_id, own in self.ongoing.items() if own},
            ended={module_id: list(ids) for module_id, ids in self.ended.items()},
        )


class NormalizeRewards(ConnectorV2):
    """Divides the train batch's ``rewards`` by the running standard deviation of the discounted return.

    The return ``R(t) = gamma * R(t - 1) + r(t)`` runs forwards along each agent's episode, through all of its chunks,
    and restarts with each episode, as in Gymnasium's NormalizeReward. Each module has its own statistics, of all
    returns of its agents so far, including those of the batch.

    Reads the batch's ``rewards`` or, if no piece has added them yet, those of the episodes. Writes ``rewards`` to the
    batch, ``[B]`` float32; the episodes keep the environment's rewards. State: the statistics that were merged last,
    those since then, and the returns of episodes that have not ended.

    Several learners that each have a part of a batch divide by the statistics of the whole batch.

    Args:
        gamma: Discount per agent step, in [0, 1]; use the algorithm's.
        clip: The bound of normalised rewards, which are clipped to [-clip, clip]; None for no bound.
        epsilon: The number that is added to the variance.
        update_stats: Whether to update the statistics; False uses them as they are.
    """

    belongs_in = (LEARNER,)
    gamma: float = argument(number(min=0, max=1), default=0.99)
    clip: float | None = argument(optional(number(above=0)), default=10.0)
    epsilon: float = argument(number(above=0), default=1e-8)
    update_stats: bool = argument(default=True)

    def begin(self) -> None:
        super().begin()
        self.reset_state()

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Updates the statistics with all returns of the batch."""
        if self.update_stats:
            _add_all(self._state.new, self.moments_of(groups))

    def moments_of(self, groups: Sequence[ColumnGroup]) -> dict[ModuleID, Moments]:
        """Returns the moments of a batch's returns by module, and stores the returns of ongoing episodes.

        It must be called once for each batch, in the order of the batches.

        Raises:
            ConnectorError: If the rewards are tensors already.
        """
        found: dict[ModuleID, Moments] = {}
        for columns in groups:
            rewards, rows = _rewards(columns), columns.rows
            acted = np.ones(len(rows), bool) if rows.acted is None else rows.acted
            returns = self._returns(rewards, columns, rows.acted is not None)[acted]
            bounds = np.concatenate([[0], np.cumsum(acted)])[np.array(columns.splits)]
            counts, begins = np.diff(bounds), bounds[:-1]
            means = np.add.reduceat(returns, begins) / counts
            squares = np.add.reduceat((returns - np.repeat(means, counts)) ** 2, begins)
            for module_id, moments in zip(columns.module_ids, zip(counts, means, squares, strict=True), strict=True):
                _add(found, module_id, Moments(*map(float, moments)))
        return found

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Normalises the rewards of all rows of a group at once."""
        if RANKS not in c.shared_data:
            self._normalize(c)

    def after_columns(self, groups: Sequence[ColumnGroup], shared_data: dict[str, Any]) -> None:
        """Adds the returns of the batches of all learners to the statistics, and normalises the rewards by these.

        They are merged then, so ``merge_states`` counts them once.
        """
        if RANKS not in shared_data:
            return
        if self.update_stats:
            own, self._state.new = self._state.new, {}
            for moments in shared_data[RANKS].gather(own):
                _add_all(self._state.merged, moments)
        for columns in groups:
            self._normalize(columns)

    def _normalize(self, columns: ColumnGroup) -> None:
        scales = np.array([self._scale(module_id) for module_id in columns.module_ids])
        columns[Columns.REWARDS] = self._normalized(_rewards(columns), np.repeat(scales, np.diff(columns.splits)))

    def _returns(self, rewards: np.ndarray, columns: ColumnGroup, has_last: bool) -> np.ndarray:
        """Returns ``[B]`` running returns, and stores those of episodes that have not ended."""
        rows = columns.rows
        lengths = np.array(rows.counts)
        returns = discounted_sums(rewards, lengths, self.gamma)
        steps = lengths - has_last
        newest = returns[np.cumsum(lengths) - 1 - has_last].tolist()
        decays = (self.gamma**steps).tolist()
        earlier = np.zeros(len(lengths))
        for i, episode in enumerate(rows.episodes):
            earlier[i] = before = self._continued(episode)
            self._note(episode, newest[i] + decays[i] * before)
        self._forget_oldest(rows.episodes)
        if earlier.any():
            returns += np.repeat(earlier, lengths) * self.gamma ** (rows_within(lengths) + 1.0)
        return returns

    def _continued(self, episode: SingleAgentEpisode) -> float:
        """Returns the return at the end of the previous chunk; 0 if this chunk does not continue it."""
        t, total = self._state.ongoing.setdefault(_module_of(episode), {}).get(episode.id_, (-1, 0.0))
        return total if t == episode.t_started else 0.0

    def _note(self, episode: SingleAgentEpisode, total: float) -> None:
        ongoing = self._state.ongoing[_module_of(episode)]
        before = ongoing.pop(episode.id_, None)  # so that the newest come last
        if not episode.is_done:
            ongoing[episode.id_] = (episode.t_started + len(episode), total)
        elif before is not None:
            self._state.ended.setdefault(_module_of(episode), []).append(episode.id_)

    def _forget_oldest(self, episodes: Iterable[SingleAgentEpisode]) -> None:
        """Forgets the oldest returns, since some episodes are never finished."""
        counts: dict[ModuleID, int] = {}
        for episode in episodes:
            module_id = _module_of(episode)
            counts[module_id] = counts.get(module_id, 0) + 1
        for module_id, count in counts.items():
            ongoing = self._state.ongoing[module_id]
            for id_ in list(ongoing)[: max(0, len(ongoing) - max(_KEEP_AT_LEAST, 4 * count))]:
                del ongoing[id_]

    def _scale(self, module_id: ModuleID) -> float:
        nothing = Moments()
        moments = self._state.merged.get(module_id, nothing).merged(self._state.new.get(module_id, nothing))
        return float(np.sqrt(moments.variance + self.epsilon))

    def _normalized(self, rewards: np.ndarray, scales: Any) -> np.ndarray:
        normalized = rewards / scales
        if self.clip is not None:
            normalized = np.clip(normalized, -self.clip, self.clip)
        return normalized.astype(np.float32)

    # State.

    def standard_deviations(self) -> dict[ModuleID, float]:
        """Returns the number that each module's rewards are divided by."""
        return {module_id: self._scale(module_id) for module_id in {**self._state.merged, **self._state.new}}

    def get_state(self) -> NormalizeRewardsState:
        """Returns the statistics, and the returns of episodes that have not ended."""
        return self._state.copied()

    def set_state(self, state: Any) -> None:
        """Sets a state that ``get_state`` or ``merge_states`` has returned."""
        self._state = read_state(NormalizeRewardsState, state).copied()

    def reset_state(self) -> None:
        """Clears the statistics and all returns."""
        self._state = NormalizeRewardsState()

    def merge_own_state(self) -> None:
        """Merges the moments of the newest batches into those that were merged before."""
        if type(self).merge_states is not NormalizeRewards.merge_states:
            super().merge_own_state()
            return
        _add_all(self._state.merged, self._state.new)
        self._state.new, self._state.ended = {}, {}

    def merge_states(self, states: list[Any]) -> NormalizeRewardsState:
        """Merges the states of pieces that continued from one state with different batches, or with parts of them.

        The moments of batches are added in the order of the states. Those that were merged before are in all states,
        and count once.
        """
        known = [read_state(NormalizeRewardsState, state) for state in states]
        found = NormalizeRewardsState()
        for state in known:
            for module_id, moments in state.merged.items():
                if moments.count > found.merged.get(module_id, Moments()).count:
                    found.merged[module_id] = moments
        for state in known:
            _add_all(found.merged, state.new)
            for module_id, ongoing in state.ongoing.items():
                _continue(found.ongoing.setdefault(module_id, {}), ongoing)
        for state in known:
            for module_id, ids in state.ended.items():
                for id_ in ids:
                    found.ongoing.get(module_id, {}).pop(id_, None)
        return found


def _rewards(columns: ColumnGroup) -> np.ndarray:
    rewards = rewards_of_columns(columns)
    if not isinstance(rewards, np.ndarray):
        raise ConnectorError("NormalizeRewards: the rewards are tensors already. Put it before NumpyToTensor.")
    return rewards


def _add(statistics: dict[ModuleID, Moments], module_id: ModuleID, moments: Moments) -> None:
    statistics[module_id] = statistics.get(module_id, Moments()).merged(moments)


def _add_all(statistics: dict[ModuleID, Moments], moments: Mapping[ModuleID, Moments]) -> None:
    for module_id, own in moments.items():
        _add(statistics, module_id, own)


def _continue(known: dict[EpisodeID, tuple[int, float]], others: Mapping[EpisodeID, tuple[int, float]]) -> None:
    """Adds the returns of episodes that are not known, or that have gone on since then."""
    for id_, (t, total) in others.items():
        if id_ not in known or known[id_][0] < t:
            known.pop(id_, None)
            known[id_] = (t, total)


def _module_of(episode: SingleAgentEpisode) -> ModuleID:
    return episode.module_id or DEFAULT_MODULE_ID
