"""The getters and setters of a multi-agent episode, by env steps and by agent steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.episodes.lookback import OUTSIDE, Indices, count, gather, resolve
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import STEP, WITH_LAST, batch, head, joined
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.typing import AgentID, EpisodeID, ModuleID, Tree

_NEVER = -(2**62)


def known_items(lives: Iterable[SingleAgentEpisode], name: str) -> tuple[list | Tree, list[int]] | None:
    """All items of a column of one agent's episodes, and the env steps of the observations that they belong to.

    An action that waits counts: it is known, and so is its reward so far. None if there is no such column.
    """
    columns: list[Any] = []
    times: list[int] = []
    for episode in lives:
        storage = episode.storage
        if name not in STEP and name not in storage.extra_keys():
            continue
        column, observed = storage.column(name), storage.column(Columns.T)
        rows = storage.lookback + len(storage)
        times.extend(int(t) for t in (observed if name in WITH_LAST else observed[:rows]))
        columns.append(column)
        pending = storage.pending()
        if pending is not None and name in pending:
            columns.append([pending[name]] if isinstance(column, list) else batch([pending[name]], like=head(column)))
            times.append(int(observed[rows]))
    return (joined([c for c in columns if count(c)] or columns[:1]), times) if columns else None


class MultiAgentAccess:
    """Reads and writes the columns of all agents; ``MultiAgentEpisode`` says what ``indices`` mean."""

    __slots__ = ("_module_of", "agent_episodes", "env_t", "env_t_started", "id_", "past_agent_episodes")

    id_: EpisodeID
    env_t: int
    env_t_started: int
    agent_episodes: dict[AgentID, SingleAgentEpisode]
    past_agent_episodes: list[SingleAgentEpisode]
    _module_of: dict[AgentID, ModuleID]

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def all_agent_episodes(self) -> list[SingleAgentEpisode]:
        """The episodes of all lives of all agents, former lives first."""
        return [*self.past_agent_episodes, *self.agent_episodes.values()]

    @property
    def env_lookback(self) -> int:
        """Env steps from before this chunk of which any agent still keeps an observation."""
        first = self.env_t_started
        for episode in self.all_agent_episodes():
            observed = episode.storage.column(Columns.T)
            if len(observed):
                first = min(first, int(observed[0]))
        return self.env_t_started - first

    def _lives(self, agent_id: AgentID) -> list[SingleAgentEpisode]:
        past = [episode for episode in self.past_agent_episodes if episode.agent_id == agent_id]
        return [*past, self.agent_episodes[agent_id]]

    def _wanted(self, agent_ids: Collection[AgentID] | AgentID | None) -> list[AgentID]:
        """The asked-for agents that have data here; one that ended in an earlier chunk has none."""
        if agent_ids is None:
            return list(self.agent_episodes)
        if isinstance(agent_ids, (list, set, frozenset, tuple, dict)) and not (
            isinstance(agent_ids, (tuple, frozenset)) and agent_ids in self.agent_episodes
        ):
            asked = list(agent_ids)
        else:
            asked = [agent_ids]
        for agent_id in asked:
            if agent_id not in self.agent_episodes and agent_id not in self._module_of:
                raise KeyError(
                    f"{self._who}: there is no agent {agent_id!r}. {did_you_mean(agent_id, self._module_of)}"
                )
        return [agent_id for agent_id in self.agent_episodes if agent_id in asked]

    @property
    def _who(self) -> str:
        return f"MultiAgentEpisode {self.id_!r}"

    def _get(
        self,
        name: str,
        indices: Indices,
        agent_ids: Collection[AgentID] | AgentID | None,
        *,
        env_steps: bool,
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        if return_list and not env_steps:
            raise EpisodeError(f"{self._who}: return_list=True gives one dict an env step. Leave env_steps=False out.")
        times, single = [], False
        if env_steps:
            times, single = self._times(name, indices, neg_index_as_lookback, fill is not None)
        by_agent: dict[AgentID, Any] = {}
        by_time: list[dict[AgentID, Any]] = [{} for _ in times] if return_list else []
        for agent_id in self._wanted(agent_ids):
            episode = self.agent_episodes[agent_id]
            found = known_items(self._lives(agent_id) if env_steps else [episode], name)
            if found is None:
                continue
            (column, observed), space = found, episode._space(name)

            def pick(rows: Any, column: Any = column, space: Any = space) -> Any:
                opaque = name == Columns.INFOS
                return gather(column, rows, fill=fill, space=space, one_hot_discrete=one_hot_discrete, opaque=opaque)

            if not env_steps:
                lookback = episode.storage.lookback
                rows = resolve(
                    indices,
                    length=count(column) - lookback,
                    lookback=lookback,
                    neg_index_as_lookback=neg_index_as_lookback,
                    fill=fill is not None,
                    who=f"{episode._who}, {name}",
                )
                picked = pick(rows)
                if isinstance(rows, int) or count(picked):
                    by_agent[agent_id] = picked
                continue
            row_at = {t: row for row, t in enumerate(observed)}
            rows = [row_at.get(t, OUTSIDE) for t in times]
            kept = [i for i, row in enumerate(rows) if row != OUTSIDE or fill is not None]
            if not kept:
                continue
            by_agent[agent_id] = pick(rows[0] if single and not return_list else [rows[i] for i in kept])
            if return_list:
                for position, i in enumerate(kept):
                    by_time[i][agent_id] = gather(by_agent[agent_id], position)
        return by_time if return_list else by_agent

    def _times(self, name: str, indices: Indices, neg_index_as_lookback: bool, fill: bool) -> tuple[list[int], bool]:
        """The env steps that indices mean (``_NEVER`` for those out of range), and whether it is a single one."""
        lookback, length = self.env_lookback, len(self) + (name in WITH_LAST)
        at = resolve(
            indices,
            length=length,
            lookback=lookback,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            who=f"{self._who}, {name}",
        )
        positions = [at] if isinstance(at, int) else range(length + lookback)[at] if isinstance(at, slice) else at
        first = self.env_t_started - lookback
        return [_NEVER if position == OUTSIDE else first + position for position in positions], isinstance(at, int)

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Observations by agent; index 0 is the chunk's first observation, -1 its newest.

        Args:
            indices: None for all, an int, a list of ints, or a slice, as ``SingleAgentEpisode`` explains.
            agent_ids: Whose; None for all agents.
            env_steps: Whether ``indices`` count env steps or each agent's own steps (those of its newest life).
            neg_index_as_lookback: -1 means the last item before t=0.
            fill: Stands where there is nothing, also at env steps that an agent skipped. Without it those are left out.
            one_hot_discrete: Makes discrete parts one-hot vectors.
            return_list: Gives one dict an env step instead of one dict of batches.

        Raises:
            IndexError: If an index is out of range and there is no ``fill``.
            KeyError: If there is no such agent.
        """
        return self._get(
            Columns.OBS,
            indices,
            agent_ids,
            env_steps=env_steps,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
            return_list=return_list,
        )

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Info dicts by agent; see ``get_observations``. ``fill`` is used as it is."""
        return self._get(
            Columns.INFOS,
            indices,
            agent_ids,
            env_steps=env_steps,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            return_list=return_list,
        )

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Actions by agent, at the env step of the observation acted upon; see ``get_observations``.

        Index -1 is the last env step taken. An action that waits for an answer counts.
        """
        return self._get(
            Columns.ACTIONS,
            indices,
            agent_ids,
            env_steps=env_steps,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            one_hot_discrete=one_hot_discrete,
            return_list=return_list,
        )

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Everything that was paid for an action, by agent, at the same index as the action; see ``get_actions``."""
        return self._get(
            Columns.REWARDS,
            indices,
            agent_ids,
            env_steps=env_steps,
            neg_index_as_lookback=neg_index_as_lookback,
            fill=fill,
            return_list=return_list,
        )

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Collection[AgentID] | AgentID | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Extra model outputs by agent, at the same index as the action; with ``key=None`` a dict of all of them."""
        known = list(dict.fromkeys(k for e in self.all_agent_episodes() for k in e.storage.extra_keys()))
        if key is not None and key not in known:
            raise KeyError(f"{self._who}: there is no extra model output {key!r}. {did_you_mean(key, known)}")
        found = {
            k: self._get(
                k,
                indices,
                agent_ids,
                env_steps=env_steps,
                neg_index_as_lookback=neg_index_as_lookback,
                fill=fill,
                return_list=return_list,
            )
            for k in (known if key is None else [key])
        }
        if key is not None:
            return found[key]
        if return_list:
            times, _ = self._times(Columns.ACTIONS, indices, neg_index_as_lookback, fill is not None)
            return [_by_agent({k: dicts[i] for k, dicts in found.items()}) for i in range(len(times))]
        return _by_agent(found)

    # Setters.

    def _episode(self, agent_id: AgentID) -> SingleAgentEpisode:
        if agent_id not in self.agent_episodes:
            known = did_you_mean(agent_id, self.agent_episodes)
            raise KeyError(f"{self._who}: agent {agent_id!r} has no data here. {known}")
        return self.agent_episodes[agent_id]

    def set_observations(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites observations, at the agents' own steps; see ``SingleAgentEpisode.set_observations``.

        Raises:
            KeyError: If there is no such agent.
        """
        for agent_id, data in new_data.items():
            self._episode(agent_id)._set(Columns.OBS, data, at_indices, neg_index_as_lookback)

    def set_actions(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites actions; see ``set_observations``."""
        for agent_id, data in new_data.items():
            self._episode(agent_id)._set(Columns.ACTIONS, data, at_indices, neg_index_as_lookback)

    def set_rewards(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites rewards; see ``set_observations``."""
        for agent_id, data in new_data.items():
            self._episode(agent_id)._set(Columns.REWARDS, data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites items of one extra model output; see ``set_observations``."""
        for agent_id, data in new_data.items():
            self._episode(agent_id).set_extra_model_outputs(
                key=key, new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            )


def _by_agent(by_key: Mapping[str, Mapping[AgentID, Any]]) -> dict[AgentID, dict[str, Any]]:
    result: dict[AgentID, dict[str, Any]] = {}
    for key, by_agent in by_key.items():
        for agent_id, value in by_agent.items():
            result.setdefault(agent_id, {})[key] = value
    return result
