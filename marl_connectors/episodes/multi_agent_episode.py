"""The trajectories of all agents of one environment, or a chunk of them."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.episodes.batching import number
from marl_connectors.episodes.chunks import check_lookback
from marl_connectors.episodes.multi_agent_chunks import ChunkedMultiAgentEpisode
from marl_connectors.episodes.multi_agent_growth import ALL, AgentToModule, PerAgent
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.state import decode, encode
from marl_connectors.episodes.storage import ACTIONS, REWARDS, T
from marl_connectors.episodes.table import table
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import AgentID, EpisodeID, ModuleID


class MultiAgentEpisode(ChunkedMultiAgentEpisode):
    """One ``SingleAgentEpisode`` for each agent, and the env steps at which each agent observed.

    Agents may join, pause, end and come back at any step, and need not be announced. One that comes back after its end
    starts a new life: a new ``SingleAgentEpisode``.

    >>> episode = MultiAgentEpisode(id_="game")
    >>> episode.add_env_reset(observations={"white": 0})
    >>> episode.add_env_step({"black": 1}, {"white": 7}, {"white": 0.5})
    >>> episode.add_env_step({"white": 2}, {"black": 8}, {"white": 0.25, "black": 0.0})
    >>> episode.get_observations(), episode.get_rewards([0], "white")
    ({'white': [0, 2], 'black': [1]}, {'white': [0.75]})
    >>> episode.get_agents_to_act()
    {'white'}

    Attributes:
        agent_episodes: Agent to the episode of its newest life.
        past_agent_episodes: The episodes of former lives.
        env_t: Env steps since the environment's reset.
        env_t_started: The env step at which this chunk started.
        is_terminated: The whole episode ended, and not because of a time limit.
        is_truncated: The whole episode was stopped.
    """

    __slots__ = ()

    def __init__(
        self,
        id_: EpisodeID | None = None,
        *,
        observations: Sequence[PerAgent] | None = None,
        observation_space: Space | PerAgent | None = None,
        infos: Sequence[PerAgent] | None = None,
        actions: Sequence[PerAgent] | None = None,
        action_space: Space | PerAgent | None = None,
        rewards: Sequence[PerAgent] | None = None,
        terminateds: PerAgent | bool = False,
        truncateds: PerAgent | bool = False,
        extra_model_outputs: Sequence[PerAgent] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_episode_ids: Mapping[AgentID, EpisodeID] | None = None,
        agent_module_ids: Mapping[AgentID, ModuleID] | None = None,
        agent_to_module_mapping_fn: AgentToModule | None = None,
        check_spaces: bool = False,
    ):
        """An empty episode, or one from given data: lists with one dict (agent to item) for each env step.

        Args:
            id_: Made up if None. Chunks of one episode share it.
            observations: What was observed at each env step.
            observation_space: Agent to space (a Dict space or a dict), or one space for all agents. A Dict space none
                of whose keys is an agent is one for all.
            infos: As many as observations.
            actions: What was done about them: one less than observations, or as many if the last ones wait.
            action_space: See ``observation_space``.
            rewards: What the agents were paid between an observation and the next: as many as actions.
            terminateds: Agents (and ``"__all__"``) that are terminated at the end, or one bool for all.
            truncateds: Agents (and ``"__all__"``) that are truncated at the end, or one bool for all.
            extra_model_outputs: Agent to a dict of outputs, as many as actions.
            env_t_started: The env step at which the chunk starts (after the lookback), 0 if None.
            agent_t_started: The agents' own steps by then, 0 if None.
            len_lookback_buffer: How many of the given env steps are from before the chunk; "auto" means all.
            agent_episode_ids: Agent to the id of its episode; made from ``id_`` if None.
            agent_module_ids: Agent to module, for agents that are not to be mapped by the function.
            agent_to_module_mapping_fn: Called once with each agent id and this episode; all agents have
                ``DEFAULT_MODULE_ID`` if None.
            check_spaces: Whether what is added must be in the agents' spaces.

        Raises:
            EpisodeError: If the data have unequal lengths, or an agent acts without having observed.
        """
        self._init(
            uuid.uuid4().hex if id_ is None else id_,
            {},
            env_t_started or 0,
            env_t_started or 0,
            agent_to_module_mapping_fn,
            dict(agent_module_ids or {}),
        )
        self.observation_space, self.action_space = observation_space, action_space
        self.check_spaces = check_spaces
        if observations is not None and len(observations):
            self._replay(
                observations,
                infos,
                actions,
                rewards,
                extra_model_outputs,
                len_lookback_buffer,
                agent_t_started or {},
                agent_episode_ids or {},
            )
        elif any(given is not None and len(given) for given in (actions, rewards, infos, extra_model_outputs)):
            raise EpisodeError(f"{self.who}: there are actions, rewards, infos or outputs, but no observations.")
        self._end(
            terminateds if isinstance(terminateds, Mapping) else {ALL: terminateds},
            truncateds if isinstance(truncateds, Mapping) else {ALL: truncateds},
            None,
        )

    @classmethod
    def from_agent_episodes(
        cls,
        id_: EpisodeID,
        agent_episodes: dict[AgentID, SingleAgentEpisode],
        *,
        env_t_started: int,
        env_t: int,
        agent_to_module_mapping_fn: AgentToModule | None = None,
        module_of: dict[AgentID, ModuleID] | None = None,
    ) -> MultiAgentEpisode:
        """An episode of agent episodes that exist already. A hot path: nothing is copied or checked.

        Args:
            id_: The episode's id.
            agent_episodes: Agent to episode; this episode adds agents that join to it.
            env_t_started: The env step at which the chunk starts.
            env_t: The newest env step.
            agent_to_module_mapping_fn: As in the constructor.
            module_of: Agent to module, as far as known; this episode adds what it learns to it.
        """
        episode = cls.__new__(cls)
        known = {} if module_of is None else module_of
        episode._init(id_, agent_episodes, env_t_started, env_t, agent_to_module_mapping_fn, known)
        return episode

    def _replay(
        self,
        observations: Sequence[PerAgent],
        infos: Sequence[PerAgent] | None,
        actions: Sequence[PerAgent] | None,
        rewards: Sequence[PerAgent] | None,
        extra_model_outputs: Sequence[PerAgent] | None,
        len_lookback_buffer: int | Literal["auto"],
        agent_t_started: Mapping[AgentID, int],
        agent_episode_ids: Mapping[AgentID, EpisodeID],
    ) -> None:
        """Lives through the given env steps, then moves the lookback out of the chunk."""
        seen, acted, outputs = len(observations), len(actions or ()), extra_model_outputs
        counts = {
            "infos": (infos, seen),
            "rewards": (rewards, acted),
            "extra_model_outputs": (outputs, acted),
        }
        wrong = [f"{len(given)} {what}" for what, (given, n) in counts.items() if given is not None and len(given) != n]
        if wrong or acted not in (seen - 1, seen):
            came = ", ".join([f"{acted} actions", *wrong])
            raise EpisodeError(
                f"{self.who}: {seen} observations need {seen - 1} actions (or {seen}, if the last ones wait), as many "
                f"rewards and extra_model_outputs, and {seen} infos, but there are {came}."
            )
        if len_lookback_buffer != "auto":
            check_lookback(len_lookback_buffer, self.who)
        lookback = seen - 1 if len_lookback_buffer == "auto" else min(len_lookback_buffer, seen - 1)
        late: list[tuple[AgentID, int, float]] = []
        for i in range(seen):
            self.env_t = self.env_t_started - lookback + i
            if i == lookback:  # what could not be credited before is of an earlier chunk
                self._unclaimed.clear()
                for episode in self.agent_episodes.values():
                    episode.uncredited_reward = 0.0
            for agent_id, item, info in self._seen(observations[i], infos[i] if infos else None):
                if agent_id not in self.agent_episodes:
                    self._join(agent_id, agent_episode_ids.get(agent_id))
                self.agent_episodes[agent_id].lists().observe(item, info, self.env_t)
            if actions and i < acted:
                if self.check_spaces:
                    self._check_spaces(actions[i], self.action_space, ACTIONS)
                for storage, action, extras in self._acting(actions[i], outputs[i] if outputs else {}).values():
                    storage.act(action, extras)
            for agent_id, reward in rewards[i].items() if rewards and i < acted else ():
                self._credit(agent_id, number(reward, self.who))
                if i >= lookback and agent_id in self.agent_episodes:
                    storage = self.agent_episodes[agent_id].lists()
                    rows = len(storage.columns[REWARDS])
                    late.append((agent_id, rows if storage.open_row is not None else rows - 1, float(reward)))
        for agent_id, episode in self.agent_episodes.items():
            storage = episode.lists()
            storage.lookback = max(0, bisect_right(storage.columns[T], self.env_t_started) - 1)
            episode.t_started = agent_t_started.get(agent_id, 0)
        for agent_id, row, reward in late:  # for an action before the chunk
            if 0 <= row < self.agent_episodes[agent_id].storage.lookback:
                self.agent_episodes[agent_id].uncredited_reward += reward

    # What it is.

    def __repr__(self) -> str:
        returns = {episode.agent_id: episode.get_return() for episode in self.all_agent_episodes()}
        return f"MAEps(len={len(self)} done={self.is_done} Rs={returns} id_={self.id_})"

    def __getitem__(self, item: slice) -> MultiAgentEpisode:
        if not isinstance(item, slice):
            raise TypeError(f"{self.who}: episode[a:b] takes a slice, but {item!r} came. For items, use get_...().")
        return self.slice(item)

    def validate(self) -> None:
        """Checks that each agent's columns fit together.

        Raises:
            EpisodeError: If their lengths differ.
        """
        for episode in self.all_agent_episodes():
            episode.validate()

    def to_numpy(self) -> MultiAgentEpisode:
        """Turns all agents' columns into arrays, in place; see ``SingleAgentEpisode.to_numpy``."""
        episodes = self.all_agent_episodes()
        storages = [episode.as_arrays() for episode in episodes]
        for episode, storage in zip(episodes, storages, strict=True):
            episode.storage = storage
        return self

    def print(self) -> None:
        """Prints who did what when, one row an agent, one column an env step (of the newest 40)."""
        print(table(self))

    # As plain data.

    def get_state(self) -> dict[str, Any]:
        """The whole episode as nested dicts of numbers, strings, lists and numpy arrays; without the mapping function.

        Raises:
            EpisodeError: If observations, infos or custom data hold anything else.
        """
        return {
            "id_": encode(self.id_, "id_"),
            "env_t_started": self.env_t_started,
            "env_t": self.env_t,
            "is_terminated": self.is_terminated,
            "is_truncated": self.is_truncated,
            "agent_episodes": [episode.get_state() for episode in self.all_agent_episodes()],
            "module_of": encode(list(self._module_of.items()), "module_of"),
            "ended_before": encode(list(self._ended_before.items()), "ended_before"),
            "truncated_before": self._truncated_before,
            "unclaimed": encode(list(self._unclaimed.items()), "unclaimed"),
            "observation_space": _spaces_to_json(self.observation_space),
            "action_space": _spaces_to_json(self.action_space),
            "custom_data": encode(self._custom_data or {}, "custom_data"),
            "duration_s": self.get_duration_s(),
            "check_spaces": self.check_spaces,
            "spaces_by_agent": self._spaces_by_agent,
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], agent_to_module_mapping_fn: AgentToModule | None = None
    ) -> MultiAgentEpisode:
        """The episode that ``get_state()`` described. The function maps the agents that are yet to join."""
        module_of = dict(decode(state["module_of"]))
        begin, end = state["env_t_started"], state["env_t"]
        episode = cls.__new__(cls)
        episode._init(decode(state["id_"]), {}, begin, end, agent_to_module_mapping_fn, module_of)
        for agent_state in state["agent_episodes"]:
            life = SingleAgentEpisode.from_state(agent_state)
            episode.attach(life.agent_id, life)
        episode.is_terminated, episode.is_truncated = state["is_terminated"], state["is_truncated"]
        episode._ended_before = dict(decode(state["ended_before"]))
        episode._truncated_before = state["truncated_before"]
        episode._unclaimed = dict(decode(state["unclaimed"]))
        episode.observation_space = _spaces_from_json(state["observation_space"])
        episode.action_space = _spaces_from_json(state["action_space"])
        episode._custom_data = decode(state["custom_data"])
        episode._set_duration(state["duration_s"])
        episode.check_spaces, episode._spaces_by_agent = state["check_spaces"], state["spaces_by_agent"]
        return episode


def _spaces_to_json(whole: Any) -> Any:
    """One space, or a dict of agents' spaces."""
    if whole is None or isinstance(whole, Space):
        return None if whole is None else spaces.to_json(whole)
    return {"agents": [[encode(agent_id, "agent_id"), spaces.to_json(part)] for agent_id, part in whole.items()]}


def _spaces_from_json(data: Any) -> Any:
    if data is None or "agents" not in data:
        return None if data is None else spaces.from_json(data)
    return {decode(agent_id): spaces.from_json(part) for agent_id, part in data["agents"]}
