"""The getters and setters of a multi-agent episode, by env steps and by agent steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.episodes.agent_views import AgentViews
from marl_connectors.episodes.column_access import PLAIN
from marl_connectors.episodes.env_time import NEVER, AgentColumn, EnvSteps, is_empty
from marl_connectors.episodes.episode_base import EpisodeBase
from marl_connectors.episodes.lookback import OUTSIDE, Indices, Padded, count, gather, resolve, row
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import NOTHING, STEP, UNSURE, WITH_LAST
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.typing import AgentID, EpisodeID, ModuleID


class MultiAgentAccess(EpisodeBase):
    """Reads and writes the columns of all agents; ``MultiAgentEpisode`` says what ``indices`` mean."""

    __slots__ = ("_module_of", "agent_episodes", "agent_views", "env_t", "env_t_started", "id_", "past_agent_episodes")

    id_: EpisodeID
    env_t: int
    env_t_started: int
    agent_episodes: dict[AgentID, SingleAgentEpisode]
    agent_views: AgentViews | None
    past_agent_episodes: list[SingleAgentEpisode]
    _module_of: dict[AgentID, ModuleID]

    def __getattr__(self, name: str) -> Any:
        """Makes ``agent_episodes`` when they are first asked for: until then ``agent_views`` stands for them."""
        if name != "agent_episodes" or self.agent_views is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        views, self.agent_views = self.agent_views, None
        self.agent_episodes = views.make(self)  # type: ignore[arg-type]
        return self.agent_episodes

    def let_be_views(self, views: AgentViews) -> None:
        """Takes others in the place of the agents' episodes, which are made from them if anybody asks."""
        if self.agent_views is None:
            del self.agent_episodes
        self.agent_views = views

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def all_agent_episodes(self) -> list[SingleAgentEpisode]:
        """The episodes of all lives of all agents, former lives first."""
        return [*self.past_agent_episodes, *self.agent_episodes.values()]

    def past_lives(self) -> dict[AgentID, list[SingleAgentEpisode]]:
        """Agent to the episodes of its former lives, oldest first."""
        past: dict[AgentID, list[SingleAgentEpisode]] = {}
        for episode in self.past_agent_episodes:
            past.setdefault(episode.agent_id, []).append(episode)
        return past

    @property
    def env_lookback(self) -> int:
        """Env steps from before this chunk of which any agent still keeps an observation."""
        first = self.env_t_started
        for episode in self.all_agent_episodes():
            observed = episode.storage.column(Columns.T)
            if len(observed):
                first = min(first, int(observed[0]))
        return self.env_t_started - first

    def _wanted(self, agent_ids: Collection[AgentID] | AgentID | None) -> dict[AgentID, SingleAgentEpisode]:
        """The asked-for agents that have data here; one that ended in an earlier chunk has none."""
        if agent_ids is None:
            return self.agent_episodes
        known = self.agent_episodes
        if type(agent_ids) is str and agent_ids in known:
            return {agent_ids: known[agent_ids]}
        is_one = not isinstance(agent_ids, Iterable) or isinstance(agent_ids, (str, bytes))
        if not is_one and isinstance(agent_ids, (tuple, frozenset)):  # an agent's id, or several of them
            is_one = agent_ids in known or agent_ids in self._module_of
        asked = {agent_ids} if is_one else set(agent_ids)  # type: ignore[arg-type]
        for agent_id in asked:
            if agent_id not in known and agent_id not in self._module_of:
                raise KeyError(f"{self.who}: there is no agent {agent_id!r}. {did_you_mean(agent_id, self._module_of)}")
        if len(asked) == 1:
            (agent_id,) = asked
            return {agent_id: known[agent_id]} if agent_id in known else {}
        return {agent_id: episode for agent_id, episode in known.items() if agent_id in asked}

    @property
    def who(self) -> str:
        return f"MultiAgentEpisode {self.id_!r}"

    def _get(
        self,
        name: str,
        indices: Indices,
        agent_ids: Collection[AgentID] | AgentID | None,
        env_steps: bool,
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool,
        return_list: bool,
    ) -> Any:
        wanted = self._wanted(agent_ids)
        if not env_steps:
            if return_list:
                raise EpisodeError(
                    f"{self.who}: return_list=True gives one dict an env step. Leave env_steps=False out."
                )
            return self._by_agent_steps(name, indices, wanted, neg_index_as_lookback, fill, one_hot_discrete)
        times = self._times(name, indices, neg_index_as_lookback, fill is not None)
        steps = [times] if isinstance(times, int) and return_list else times
        by_agent: dict[AgentID, Any] = {}
        by_time: list[dict[AgentID, Any]] = [{} for _ in steps] if return_list else []  # type: ignore[union-attr]
        past: dict[AgentID, list[SingleAgentEpisode]] | None = None if self.past_agent_episodes else {}
        quick = type(times) is int and not return_list and not one_hot_discrete and fill is None
        for agent_id, episode in wanted.items():
            if quick:
                item = episode.storage.item_at(name, times)  # type: ignore[arg-type]
                if item is not UNSURE:
                    if item is not NOTHING:
                        by_agent[agent_id] = item
                    continue
            if past is None:
                past = self.past_lives()
            column = AgentColumn.of((*past[agent_id], episode) if agent_id in past else (episode,), name)
            if column is None:
                continue
            rows = column.rows_at(steps, fill=fill is not None)
            if is_empty(rows) and not (fill is not None and type(rows) is int):
                continue
            items = column.items
            if type(items) in PLAIN and type(rows) in (int, slice) and rows != OUTSIDE and not one_hot_discrete:
                picked = items[rows]  # type: ignore[index]
            else:
                opaque = name == Columns.INFOS
                picked = gather(items, rows, fill, episode._space(name), one_hot_discrete, opaque)
            if not return_list:
                by_agent[agent_id] = picked
                continue
            places = column.places(steps, fill=fill is not None)  # type: ignore[arg-type]
            if type(picked) in PLAIN:
                for place, item in zip(places, picked, strict=True):
                    by_time[place][agent_id] = item
            else:
                for position, place in enumerate(places):
                    by_time[place][agent_id] = row(picked, position)
        return by_time if return_list else by_agent

    def _by_agent_steps(
        self,
        name: str,
        indices: Indices,
        wanted: Mapping[AgentID, SingleAgentEpisode],
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool,
    ) -> dict[AgentID, Any]:
        """At the agents' own steps, of their newest lives."""
        by_agent: dict[AgentID, Any] = {}
        for agent_id, episode in wanted.items():
            if name not in STEP and name not in episode.storage.extra_keys():
                continue
            picked = episode._get(name, indices, neg_index_as_lookback, fill, one_hot_discrete, with_pending=True)
            if type(indices) is int or count(picked):
                by_agent[agent_id] = picked
        return by_agent

    def _times(self, name: str, indices: Indices, neg_index_as_lookback: bool, fill: bool) -> EnvSteps:
        """The env steps that indices mean; ``NEVER`` for those out of range."""
        start = self.env_t_started
        length = self.env_t - start + (name in WITH_LAST)
        if indices is None:
            return range(start, start + length)
        if type(indices) is int:
            if 0 <= indices < length:
                return start + indices
            if -length <= indices < 0 and not neg_index_as_lookback:
                return start + length + indices
        lookback = self.env_lookback
        try:
            at = resolve(indices, length, lookback, neg_index_as_lookback, fill)
        except (IndexError, TypeError, EpisodeError) as error:
            raise type(error)(f"{self.who}, {name}: {error}") from None
        first = start - lookback
        if isinstance(at, slice):
            return range(first, first + lookback + length)[at]
        if isinstance(at, Padded):
            return range(first + at.inside.start - at.before, first + at.inside.stop + at.after)
        if isinstance(at, int):
            return NEVER if at == OUTSIDE else first + at
        return [NEVER if position == OUTSIDE else first + position for position in at]

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
        options = (env_steps, neg_index_as_lookback, fill, one_hot_discrete, return_list)
        return self._get(Columns.OBS, indices, agent_ids, *options)

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
        options = (env_steps, neg_index_as_lookback, fill, False, return_list)
        return self._get(Columns.INFOS, indices, agent_ids, *options)

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
        options = (env_steps, neg_index_as_lookback, fill, one_hot_discrete, return_list)
        return self._get(Columns.ACTIONS, indices, agent_ids, *options)

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
        options = (env_steps, neg_index_as_lookback, fill, False, return_list)
        return self._get(Columns.REWARDS, indices, agent_ids, *options)

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
            raise KeyError(f"{self.who}: there is no extra model output {key!r}. {did_you_mean(key, known)}")
        self._wanted(agent_ids)
        options = (env_steps, neg_index_as_lookback, fill, False, return_list)
        found = {k: self._get(k, indices, agent_ids, *options) for k in (known if key is None else [key])}
        if key is not None:
            return found[key]
        if return_list or (env_steps and not found):
            times = self._times(Columns.ACTIONS, indices, neg_index_as_lookback, fill is not None)
            if not return_list:
                return {}
            steps = 1 if isinstance(times, int) else len(times)
            return [_by_agent({k: dicts[i] for k, dicts in found.items()}) for i in range(steps)]
        return _by_agent(found)

    # Setters.

    def _episode(self, agent_id: AgentID) -> SingleAgentEpisode:
        if agent_id not in self.agent_episodes:
            known = did_you_mean(agent_id, self.agent_episodes)
            raise KeyError(f"{self.who}: agent {agent_id!r} has no data here. {known}")
        return self.agent_episodes[agent_id]

    def _for_known(self, new_data: Mapping[AgentID, Any]) -> list[tuple[AgentID, Any]]:
        """The items of a dict all of whose keys are agents that have data here."""
        for agent_id in new_data:
            self._episode(agent_id)
        return list(new_data.items())

    def set_observations(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites observations; ``at_indices`` count each agent's own steps (of its newest life).

        See ``SingleAgentEpisode.set_observations``.

        Raises:
            KeyError: If there is no such agent. Nothing has changed then.
        """
        for agent_id, data in self._for_known(new_data):
            self._episode(agent_id)._set(Columns.OBS, data, at_indices, neg_index_as_lookback, with_pending=True)

    def set_actions(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites actions, those that wait included; see ``set_observations``."""
        for agent_id, data in self._for_known(new_data):
            self._episode(agent_id)._set(Columns.ACTIONS, data, at_indices, neg_index_as_lookback, with_pending=True)

    def set_rewards(
        self,
        *,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites rewards; see ``set_observations``."""
        for agent_id, data in self._for_known(new_data):
            self._episode(agent_id)._set(Columns.REWARDS, data, at_indices, neg_index_as_lookback, with_pending=True)

    def set_extra_model_outputs(
        self,
        *,
        key: str,
        new_data: Mapping[AgentID, Any],
        at_indices: Indices = None,
        neg_index_as_lookback: bool = False,
    ) -> None:
        """Overwrites items of one extra model output; see ``set_observations``."""
        for agent_id, data in self._for_known(new_data):
            episode = self._episode(agent_id)
            if key in episode.storage.extra_keys():
                episode._set(key, data, at_indices, neg_index_as_lookback, with_pending=True)
            else:
                episode.set_extra_model_outputs(
                    key=key, new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
                )


def _by_agent(by_key: Mapping[str, Mapping[AgentID, Any]]) -> dict[AgentID, dict[str, Any]]:
    result: dict[AgentID, dict[str, Any]] = {}
    for key, by_agent in by_key.items():
        for agent_id, value in by_agent.items():
            result.setdefault(agent_id, {})[key] = value
    return result
