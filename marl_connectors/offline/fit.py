"""Fit: what decides whether recorded episodes fit a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV
from marl_connectors.episodes.rollout import spans
from marl_connectors.errors import OfflineDataError, did_you_mean
from marl_connectors.offline.recording_file import Sample
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID, ModuleID, Tree

_KINDS = {"observation": Columns.OBS, "action": Columns.ACTIONS}


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """What recorded episodes must be like for a run: their agents, spaces, values, modules and connector pieces.

    Attributes:
        spaces_of: Agent to observation space and action space of the environment. A single agent may have any id.
        pieces: The names of the run's env-to-module pieces that may write observations to episodes; None not to look
            at pieces.
        writers: Those of them that write observations to episodes, and whose work no learner piece does.
        module_ids: The modules that may have acted; None if it does not matter.
        columns: The columns that the run needs, beside those that every episode has.
    """

    spaces_of: Mapping[AgentID, tuple[Space, Space]]
    pieces: Sequence[str] | None = None
    writers: Sequence[str] = ()
    module_ids: Collection[ModuleID] | None = None
    columns: Sequence[str] = ()

    def check_table(self, sample: Sample) -> None:
        """Checks what the table of a sample says, without reading its columns.

        Raises:
            OfflineDataError: For the first agent's episode with an unknown agent or module, with other spaces, or
                behind other pieces.
        """
        for agent_id, rollout, members in _agents_of(sample):
            where = _where(sample, int(members[0]))
            now_spaces = self._spaces_of(agent_id, where)
            for kind, was, now in zip(_KINDS, sample.state.rollouts[rollout].spaces(), now_spaces, strict=True):
                if was is not None and not spaces.same(was, now):
                    other = " with other bounds" if spaces.describe(was) == spaces.describe(now) else ""
                    raise OfflineDataError(
                        f"{where}: agent {agent_id!r} was recorded with the {kind} space {spaces.describe(was)}, but "
                        f"the environment's is {spaces.describe(now)}{other}. Use data of this environment, or the "
                        f"environment, env_config and wrappers with which they were recorded."
                    )
            self._check_pieces(sample, rollout, where)
            self._check_columns(sample, rollout, members, where)
        if self.module_ids is not None:
            self._check_modules(sample)

    def _spaces_of(self, agent_id: AgentID, where: str) -> tuple[Space, Space]:
        if agent_id in self.spaces_of:
            return self.spaces_of[agent_id]
        if agent_id is None and len(self.spaces_of) == 1:
            return next(iter(self.spaces_of.values()))
        raise OfflineDataError(
            f"{where}: it has an agent {agent_id!r}, which the environment does not have. "
            f"{did_you_mean(agent_id, self.spaces_of)}"
        )

    def _check_pieces(self, sample: Sample, rollout: int, where: str) -> None:
        if self.pieces is None:
            return
        is_written = Columns.OBS in sample.state.rollouts[rollout].level
        was, now = sample.state.pieces, list(self.pieces)
        if was == now or (is_written and was is None and now):
            return
        here = f"this run has {_listed(now)}"
        if is_written:
            of = "" if was is None else f"({_listed(was)}) "
            raise OfflineDataError(
                f"{where}: its observations are those that env-to-module pieces {of}have written, but {here}. A policy "
                f"would learn from other observations than it acts on. Use the same pieces in env_to_module_connector, "
                f"or record without them."
            )
        if self.writers:
            raise OfflineDataError(
                f"{where}: its observations are those of the environment, but {here}, of which "
                f"{_listed(self.writers)} would change the observations that the policy acts on, and not the recorded "
                f"ones. Record the episodes with the same env_to_module_connector, or leave these pieces out and "
                f"change observations in a wrapper of the environment, for both."
            )

    def _check_columns(self, sample: Sample, rollout: int, members: np.ndarray, where: str) -> None:
        missing = [name for name in self.columns if name not in sample.state.rollouts[rollout].layers]
        has_steps = (sample.agent_table["stop_row"][members] > sample.agent_table["start_row"][members]).any()
        if missing and has_steps:
            raise OfflineDataError(
                f"{where}: it has no {missing[0]!r}, which this run needs of every step. Record episodes with the "
                f"algorithm and the settings of this run: .offline_data(output=FOLDER)."
            )

    def _check_modules(self, sample: Sample) -> None:
        for number, module_id in enumerate(sample.state.modules):
            chunks = np.flatnonzero(sample.agent_table["module"] == number)
            if module_id is not None and module_id not in (self.module_ids or ()) and len(chunks):
                raise OfflineDataError(
                    f"{_where(sample, int(chunks[0]))}: module {module_id!r} has acted in it, which this run does not "
                    f"have. Its modules are {', '.join(map(repr, self.module_ids or ()))}. Choose modules for the "
                    f"recorded agents: EpisodeReader(PATH, policy_mapping_fn=...)."
                )

    def check_values(self, sample: Sample) -> None:
        """Checks the columns of a sample.

        Raises:
            OfflineDataError: For the first step whose observation or action cannot be in its space, or whose
                observation, action or reward is not finite. Observations may be out of the bounds of a Box, as those of
                environments are, and so may actions of modules.
        """
        for agent_id, number, members in _agents_of(sample):
            rollout = sample.rollouts[number]
            first, stop = sample.agent_table["first_row"][members], sample.agent_table["stop_row"][members]
            observed, acted = spans(first, stop - first + 1), spans(first, stop - first)
            observation_space, action_space = self._spaces_of(agent_id, _where(sample, int(members[0])))
            if rollout.action_units != ENV:
                action_space = spaces.counted_from_0(action_space)
            both = (observation_space, rollout.source(Columns.OBS)), (action_space, rollout.columns[Columns.ACTIONS])
            for (kind, name), (space, column), recorded in zip(
                _KINDS.items(), both, sample.state.rollouts[number].spaces(), strict=True
            ):
                rows = observed if name == Columns.OBS else acted
                why = spaces.unlike(space, column, of_any_type=recorded is not None)
                if why and len(rows):
                    raise OfflineDataError(
                        f"{_where(sample, int(members[0]))}: agent {agent_id!r} has {kind}s that {why}, but the "
                        f"environment's {kind} space is {spaces.describe(space)}. Use data of this environment, or "
                        f"convert them."
                    )
                is_box_bounded = name == Columns.ACTIONS and rollout.action_units == ENV
                for row, what in _beyond(space, column, rows, is_box_bounded):
                    raise _value_error(sample, number, row, f"its {kind} {what}")
            for name, rows in ((Columns.OBS, observed), (Columns.ACTIONS, acted), (Columns.REWARDS, acted)):
                if rollout.is_uniform(name, rows):
                    for leaf in leaves(rollout.read(name, rows)):
                        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                            bad = int(np.flatnonzero(~np.isfinite(leaf).reshape(len(rows), -1).all(axis=1))[0])
                            value = leaf[bad].ravel()
                            shown = value[~np.isfinite(value)][0]
                            raise _value_error(sample, number, int(rows[bad]), f"its {name} has the value {shown}")


def _agents_of(sample: Sample) -> Iterator[tuple[AgentID, int, np.ndarray]]:
    """Yields each agent of each stored rollout, with the numbers of its episodes there."""
    agents, rollouts = sample.agent_table["agent"], sample.agent_table["rollout"]
    for agent, rollout in dict.fromkeys(zip(agents.tolist(), rollouts.tolist(), strict=True)):
        yield sample.state.agents[agent], rollout, np.flatnonzero((agents == agent) & (rollouts == rollout))


def _where(sample: Sample, chunk: int) -> str:
    return f"offline data: {sample.file}, episode {sample.ids[sample.episode_of(chunk)]!r}"


def _value_error(sample: Sample, rollout: int, row: int, what: str) -> OfflineDataError:
    """Returns the error for a row of a rollout."""
    chunks = sample.agent_table
    inside = (chunks["rollout"] == rollout) & (chunks["first_row"] <= row) & (row <= chunks["stop_row"])
    chunk = int(np.flatnonzero(inside)[0])
    agent_id, t = sample.state.agents[chunks["agent"][chunk]], int(sample.rollouts[rollout].columns[Columns.T][row])  # type: ignore[index,arg-type]
    return OfflineDataError(
        f"{_where(sample, chunk)}, agent {agent_id!r}, env step {t}: {what}. Correct or leave out what made it, and "
        f"record again."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _beyond(space: Space, column: Tree, rows: np.ndarray, is_box_bounded: bool) -> Iterator[tuple[int, str]]:
    """Yields the rows of a column, and the reasons, whose values a space of whole numbers, or a Box, does not have."""
    for _, part, values in spaces.parts_with_values(space, column):
        if is_box_bounded or isinstance(part, spaces.WHOLE):
            bad, why = spaces.outside(part, values[rows])
            if why:
                yield int(rows[np.flatnonzero(bad)[0]]), why
