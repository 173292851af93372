"""The trajectories of all agents of one environment, or a chunk of them."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from gymnasium import Space
from gymnasium.spaces import Dict

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.env_step_index import NEVER, EnvSteps, Lives, between, dicts_at, items_at, table
from marl_connectors.episodes.episode_base import EpisodeBase, EpisodeNotes, check_item, check_lookback, slice_bounds
from marl_connectors.episodes.items import count, number, owned, owned_infos
from marl_connectors.episodes.lookback import OUTSIDE, Indices, Padded, resolve
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode, SingleAgentEpisodeState
from marl_connectors.episodes.state import decode, encode, episode_state
from marl_connectors.episodes.storage import (
    ACTIONS,
    NOTHING,
    OBS,
    REWARDS,
    STEP,
    UNSURE,
    WITH_LAST,
    ListStorage,
    T,
)
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.state import ID, Finite, Index, State
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self

AgentToModule: TypeAlias = Callable[[AgentID, Any], ModuleID]
PerAgent: TypeAlias = Mapping[Any, Any]
ALL: Final = "__all__"
REMEMBERED_AGENTS: Final = 1_000
"""Later chunks remember at most this number of ended agents, those that ended last."""
SHOWN_STEPS: Final = 40
"""The number of env steps that ``MultiAgentEpisode.print`` shows."""


class AgentViews(Protocol):
    """Stands for the agents' episodes of a MultiAgentEpisode until somebody asks for them."""

    def agent_steps(self) -> int:
        """The number of steps that all agents have made in the chunk."""
        ...

    def make(self, episode: MultiAgentEpisode) -> dict[AgentID, SingleAgentEpisode]:
        """Returns the agents' episodes."""
        ...

    def chunks(self, episode: MultiAgentEpisode) -> list[Any]:
        """Returns an ``AgentChunk`` for each agent, which makes no episode."""
        ...


class MultiAgentEpisodeNotes(EpisodeNotes):
    """What is unusual about a MultiAgentEpisode.

    Attributes:
        module_of: The modules of agents that have no episode in it, or have had another module there.
        ended_before: The agents that have ended in earlier chunks, and whether they were truncated.
        unclaimed: The rewards of agents that have no episode in it.
        truncated_before: Whether an agent was truncated in an earlier chunk.
        observation_space: The observation space, or those of the agents, as JSON data.
        action_space: The same of actions.
        spaces_by_agent: Whether a Dict space holds one space for each agent; None if that is not known yet.
    """

    module_of: dict[ID, ModuleID] = {}
    ended_before: dict[ID, bool] = {}
    unclaimed: dict[ID, Finite] = {}
    truncated_before: bool = False
    observation_space: dict[str, Any] | None = None
    action_space: dict[str, Any] | None = None
    spaces_by_agent: bool | None = None


class MultiAgentEpisodeState(State):
    """What ``MultiAgentEpisode.get_state`` returns; ``encode`` has made plain data of all ids.

    Attributes:
        id_: The id of the episode.
        env_t_started: The env step at which it begins.
        env_t: That at which it ends.
        is_terminated: Whether it was terminated.
        is_truncated: Whether it was truncated.
        agent_episodes: The agents' episodes.
        module_of: The module of each agent.
        ended_before: As in the notes.
        truncated_before: As in the notes.
        unclaimed: As in the notes.
        observation_space: As in the notes.
        action_space: As in the notes.
        custom_data: The user's own notes.
        duration_s: The seconds between the first and the last addition.
        check_spaces: Whether additions are checked.
        spaces_by_agent: As in the notes.
    """

    id_: Any
    env_t_started: Index
    env_t: Index
    is_terminated: bool
    is_truncated: bool
    agent_episodes: list[SingleAgentEpisodeState]
    module_of: list[Any]
    ended_before: list[Any]
    truncated_before: bool
    unclaimed: list[Any]
    observation_space: dict[str, Any] | None
    action_space: dict[str, Any] | None
    custom_data: dict[str, Any]
    duration_s: float
    check_spaces: bool
    spaces_by_agent: bool | None


class MultiAgentEpisode(EpisodeBase):
    """One ``SingleAgentEpisode`` for each agent, and the env steps at which each agent observed.

    Agents may join, pause, end and come back at any step, and need not be announced. An agent that comes back after its
    end starts a new life: a new ``SingleAgentEpisode``.

    >>> episode = MultiAgentEpisode(id_="game")
    >>> episode.add_env_reset(observations={"white": 0})
    >>> episode.add_env_step({"black": 1}, {"white": 7}, {"white": 0.5})
    >>> episode.add_env_step({"white": 2}, {"black": 8}, {"white": 0.25, "black": 0.0})
    >>> episode.get_observations(), episode.get_rewards([0], "white")
    ({'white': [0, 2], 'black': [1]}, {'white': [0.75]})
    >>> episode.get_agents_to_act()
    {'white'}

    Attributes:
        past_agent_episodes: The episodes of former lives.
        agent_views: Stands for ``agent_episodes`` until they are asked for; None afterwards.
        env_t: Env steps since the environment's reset.
        env_t_started: The env step at which this chunk started.
        is_terminated: Whether the whole episode ended, and not because of a time limit.
        is_truncated: Whether the whole episode was stopped.
    """

    __slots__ = (
        "__dict__",  # for ``agent_episodes`` only, which is made when it is first asked for
        "_ended_before",
        "_module_of",
        "_spaces_by_agent",
        "_truncated_before",
        "_unclaimed",
        "action_space",
        "agent_to_module_mapping_fn",
        "agent_views",
        "env_t",
        "env_t_started",
        "id_",
        "observation_space",
        "past_agent_episodes",
    )

    id_: EpisodeID
    env_t: int
    env_t_started: int
    agent_views: AgentViews | None
    past_agent_episodes: list[SingleAgentEpisode]
    agent_to_module_mapping_fn: AgentToModule | None
    observation_space: Any
    action_space: Any
    _module_of: dict[AgentID, ModuleID]
    _ended_before: dict[AgentID, bool]
    _truncated_before: bool
    _unclaimed: dict[AgentID, float]
    _spaces_by_agent: bool | None

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
        """Creates an empty episode, or one from data: lists with one dict (agent to item) for each env step.

        Args:
            id_: The id that all chunks of one episode share. A new one is made if it is None.
            observations: The observations at each env step.
            observation_space: Agent to space (a Dict space or a dict), or one space for all agents. A Dict space none
                of whose keys is an agent is one for all.
            infos: The info dicts, as many as observations.
            actions: The actions that the observations led to: one less than observations, or as many if the last ones
                wait for their step.
            action_space: The agents' action spaces, in the same form as ``observation_space``.
            rewards: The rewards between an observation and the next: as many as actions.
            terminateds: Agents (and ``"__all__"``) that are terminated at the end, or one bool for all.
            truncateds: Agents (and ``"__all__"``) that are truncated at the end, or one bool for all.
            extra_model_outputs: Agent to a dict of outputs, as many as actions.
            env_t_started: The env step at which the chunk starts (after the lookback), 0 if None.
            agent_t_started: The number of steps that each agent has made by then, 0 if None.
            len_lookback_buffer: How many of the given env steps are from before the chunk; "auto" means all.
            agent_episode_ids: Agent to the id of its episode. The ids are made from ``id_`` if it is None.
            agent_module_ids: Agent to module, for agents that the function need not map.
            agent_to_module_mapping_fn: A function that is called once with each agent id and this episode. Without it,
                all agents have ``DEFAULT_MODULE_ID``.
            check_spaces: Whether observations and actions must be in the agents' spaces.

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
        """Returns an episode of agent episodes that exist already. Nothing is copied or checked.

        Args:
            id_: The episode's id.
            agent_episodes: Agent to episode; this episode adds agents that join to it.
            env_t_started: The env step at which the chunk starts.
            env_t: The newest env step.
            agent_to_module_mapping_fn: The mapping function, as in the constructor.
            module_of: Agent to module, as far as it is known; this episode adds the modules of other agents to it.
        """
        episode = cls.__new__(cls)
        known = {} if module_of is None else module_of
        episode._init(id_, agent_episodes, env_t_started, env_t, agent_to_module_mapping_fn, known)
        return episode

    def _init(
        self,
        id_: EpisodeID,
        agent_episodes: dict[AgentID, SingleAgentEpisode],
        env_t_started: int,
        env_t: int,
        agent_to_module_mapping_fn: AgentToModule | None,
        module_of: dict[AgentID, ModuleID],
    ) -> None:
        self.id_ = id_
        self.agent_episodes = agent_episodes
        self.agent_views = None
        self.past_agent_episodes = []
        self.env_t_started = env_t_started
        self.env_t = env_t
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._module_of = module_of
        self.observation_space = None
        self.action_space = None
        self._init_base()
        self._ended_before = {}  # agents that ended in earlier chunks: whether they were truncated
        self._truncated_before = False  # whether any of those that are no longer remembered was truncated
        self._unclaimed = {}  # rewards of agents that have no episode here
        self._spaces_by_agent = None  # whether a Dict space holds one space for each agent, once that is known

    def _replay(
        self,
        observations: Sequence[PerAgent],
        infos: Sequence[PerAgent] | None,
        actions: Sequence[PerAgent] | None,
        rewards: Sequence[PerAgent] | None,
        outputs: Sequence[PerAgent] | None,
        len_lookback_buffer: int | Literal["auto"],
        agent_t_started: Mapping[AgentID, int],
        agent_episode_ids: Mapping[AgentID, EpisodeID],
    ) -> None:
        """Adds the given env steps one by one, then moves the lookback out of the chunk."""
        seen, acted = len(observations), len(actions or ())
        self._check_lengths(seen, acted, infos=infos, rewards=rewards, extra_model_outputs=outputs)
        if len_lookback_buffer != "auto":
            check_lookback(len_lookback_buffer, self.who)
        lookback = seen - 1 if len_lookback_buffer == "auto" else min(len_lookback_buffer, seen - 1)
        late: list[tuple[AgentID, int, float]] = []  # agent, row and reward of what was earned within the chunk
        agent_episodes = self.agent_episodes
        for i in range(seen):
            self.env_t = self.env_t_started - lookback + i
            if i == lookback:  # rewards that no action has earned yet belong to an earlier chunk
                self._unclaimed.clear()
                for episode in agent_episodes.values():
                    episode.uncredited_reward = 0.0
            for agent_id, item, info in self._seen(observations[i], infos[i] if infos else None):
                if agent_id not in agent_episodes:
                    self._join(agent_id, agent_episode_ids.get(agent_id))
                agent_episodes[agent_id].lists().observe(item, info, self.env_t)
            if actions and i < acted:
                if self.check_spaces:
                    self._check_spaces(actions[i], self.action_space, ACTIONS)
                for storage, action, extras in self._acting(actions[i], outputs[i] if outputs else {}).values():
                    storage.act(action, extras)
            for agent_id, reward in rewards[i].items() if rewards and i < acted else ():
                self._credit(agent_id, number(reward, self.who))
                if i >= lookback and agent_id in agent_episodes:
                    storage = agent_episodes[agent_id].lists()
                    rows = len(storage.columns[REWARDS])
                    late.append((agent_id, rows if storage.open_row is not None else rows - 1, float(reward)))
        for agent_id, episode in agent_episodes.items():
            storage = episode.lists()
            storage.lookback = max(0, bisect_right(storage.columns[T], self.env_t_started) - 1)
            episode.t_started = agent_t_started.get(agent_id, 0)
        for agent_id, row, reward in late:  # for an action before the chunk
            if 0 <= row < agent_episodes[agent_id].storage.lookback:
                agent_episodes[agent_id].uncredited_reward += reward

    def _check_lengths(self, seen: int, acted: int, **given: Sequence[PerAgent] | None) -> None:
        """Raises an EpisodeError unless all lists of given data fit to the number of observations."""
        wanted = {"infos": seen, "rewards": acted, "extra_model_outputs": acted}
        wrong = [f"{len(d)} {name}" for name, d in given.items() if d is not None and len(d) != wanted[name]]
        if wrong or acted not in (seen - 1, seen):
            came = ", ".join([f"{acted} actions", *wrong])
            raise EpisodeError(
                f"{self.who}: {seen} observations need {seen - 1} actions (or {seen}, if the last ones wait), as many "
                f"rewards and extra_model_outputs, and {seen} infos, but there are {came}."
            )

    # The agents' episodes, which may be made late.

    @cached_property
    def agent_episodes(self) -> dict[AgentID, SingleAgentEpisode]:
        """Agent to the episode of its newest life. Where ``agent_views`` stands for them, they are made now."""
        views, self.agent_views = self.agent_views, None
        assert views is not None
        return views.make(self)

    def let_be_views(self, views: AgentViews) -> None:
        """Replaces the agents' episodes by views, from which they are made again if anybody asks."""
        self.__dict__.pop("agent_episodes", None)
        self.agent_views = views

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles hold the agents' episodes, which are made for them, instead of views of all lanes."""
        _ = self.agent_episodes
        return super().__reduce_ex__(protocol)

    # What it is.

    @property
    def who(self) -> str:
        return f"MultiAgentEpisode {self.id_!r}"

    def __repr__(self) -> str:
        returns = {episode.agent_id: episode.get_return() for episode in self.all_agent_episodes()}
        return f"MAEps(len={len(self)} done={self.is_done} Rs={returns} id_={self.id_})"

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    @property
    def is_reset(self) -> bool:
        """Whether any agent has observed anything."""
        return any(episode.is_reset for episode in self.all_agent_episodes())

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' columns are arrays."""
        return bool(self.agent_episodes) and all(episode.is_numpy for episode in self.all_agent_episodes())

    @property
    def agent_ids(self) -> set[AgentID]:
        """All agents that have data here."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, EpisodeID]:
        """Agent to the id of its newest life's episode."""
        return {agent_id: episode.id_ for agent_id, episode in self.agent_episodes.items()}

    def all_agent_episodes(self) -> list[SingleAgentEpisode]:
        """Returns the episodes of all lives of all agents, former lives first."""
        return [*self.past_agent_episodes, *self.agent_episodes.values()]

    def past_lives(self) -> dict[AgentID, list[SingleAgentEpisode]]:
        """Returns, for each agent that has any, the episodes of its former lives, oldest first."""
        past: dict[AgentID, list[SingleAgentEpisode]] = {}
        for episode in self.past_agent_episodes:
            past.setdefault(episode.agent_id, []).append(episode)
        return past

    @property
    def env_lookback(self) -> int:
        """The number of env steps before this chunk of which any agent still keeps an observation."""
        first = self.env_t_started
        for episode in self.all_agent_episodes():
            observed = episode.storage.column(Columns.T)
            if len(observed):
                first = min(first, int(observed[0]))
        return self.env_t_started - first

    def env_steps(self) -> int:
        """Returns the number of env steps in this chunk."""
        return len(self)

    def agent_steps(self) -> int:
        """Returns the number of steps that all agents have made in this chunk."""
        if self.agent_views is not None:
            return self.agent_views.agent_steps()
        newest = sum([len(episode.storage) for episode in self.agent_episodes.values()])
        return newest + sum([len(episode.storage) for episode in self.past_agent_episodes])

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Returns the sum of all agents' rewards in this chunk.

        Args:
            include_hanging_rewards: Whether to add the rewards so far of actions that still wait for an observation.
        """
        episodes = self.all_agent_episodes()
        total = sum(episode.get_return() for episode in episodes)
        if include_hanging_rewards:
            waiting = [episode.storage.pending() for episode in episodes]
            total += sum(float(row[REWARDS]) for row in waiting if row is not None)
        return float(total)

    @property
    def uncredited_reward(self) -> float:
        """The sum of all rewards that belong to no action in this chunk; see ``SingleAgentEpisode``."""
        unclaimed = sum(self._unclaimed.values()) if self._unclaimed else 0.0
        if self.agent_views is not None:  # agents' episodes that were not created have no such rewards
            return unclaimed
        return unclaimed + sum(episode.uncredited_reward for episode in self.all_agent_episodes())

    def get_paid_returns(self) -> dict[AgentID, float]:
        """Returns all that the environment has paid each agent in this chunk, also what belongs to no action.

        Agents that never had a turn are included if they were paid.
        """
        paid = dict(self._unclaimed)
        for episode in self.all_agent_episodes():
            agent_id: Any = episode.agent_id
            paid[agent_id] = paid.get(agent_id, 0.0) + episode.get_return() + episode.uncredited_reward
        return paid

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Returns whether each agent, and ``"__all__"``, is terminated."""
        return {agent_id: e.is_terminated for agent_id, e in self.agent_episodes.items()} | {ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Returns whether each agent, and ``"__all__"``, is truncated."""
        return {agent_id: e.is_truncated for agent_id, e in self.agent_episodes.items()} | {ALL: self.is_truncated}

    def get_agents_to_act(self) -> set[AgentID]:
        """Returns the agents that have not ended, and have observed something that they have not acted upon."""
        return {
            agent_id
            for agent_id, episode in self.agent_episodes.items()
            if not episode.is_done and episode.is_reset and episode.storage.pending() is None
        }

    def get_agents_that_stepped(self) -> set[AgentID]:
        """Returns the agents that observed at the newest env step, including those that ended there."""
        now = self.env_t
        return {agent_id for agent_id, episode in self.agent_episodes.items() if episode.storage.newest_t == now}

    def print(self) -> None:
        """Prints a table of observations, actions and ends: a line for each agent, a column for each env step.

        Only the newest 40 env steps are shown.
        """
        first = max(self.env_t_started - self.env_lookback, self.env_t + 1 - SHOWN_STEPS)
        print(table(dict(self._lives_of(self.agent_episodes)), range(first, self.env_t + 1)))

    def validate(self) -> None:
        """Checks that each agent's columns fit together.

        Raises:
            EpisodeError: If their lengths differ.
        """
        for episode in self.all_agent_episodes():
            episode.validate()

    # Modules and spaces of the agents.

    def module_for(self, agent_id: AgentID) -> ModuleID:
        """Returns the agent's module. The mapping function is called once for each agent and episode."""
        known = self._module_of.get(agent_id)
        if known is None:
            made: Mapping[AgentID, SingleAgentEpisode] = self.__dict__.get("agent_episodes", {})
            episode = made.get(agent_id)
            if episode is not None and episode.module_id is not None:
                known = episode.module_id
            else:
                mapping = self.agent_to_module_mapping_fn
                known = DEFAULT_MODULE_ID if mapping is None else mapping(agent_id, self)
            self._module_of[agent_id] = known
        return known

    def know_modules(self, module_of: Mapping[AgentID, ModuleID]) -> None:
        """Sets the modules of agents whose mapping is already known."""
        self._module_of.update(module_of)

    def _space_of(self, whole: Any, agent_id: AgentID) -> Any:
        """Returns one agent's space.

        A Dict space is for all agents, unless the agent that observes first is among its keys.
        """
        if isinstance(whole, Dict):
            if self._spaces_by_agent is None:
                self._spaces_by_agent = agent_id in whole.spaces
            return whole.spaces.get(agent_id) if self._spaces_by_agent else whole  # type: ignore[arg-type]
        return whole.get(agent_id) if isinstance(whole, Mapping) else whole

    def _check_spaces(self, items: PerAgent, whole: Any, name: str) -> None:
        for agent_id, item in items.items():
            space = self._space_of(whole, agent_id)
            if item is not None and space is not None:
                check_item(space, item, name, f"{self.who}, agent {agent_id!r}, env step {self.env_t}")

    # How it grows.

    def add_env_reset(self, *, observations: PerAgent, infos: PerAgent | None = None) -> None:
        """Adds what ``env.reset()`` returned, for the agents that observe at the start.

        Raises:
            EpisodeError: If the episode has begun already.
        """
        if self.is_reset or self.is_done or len(self):
            raise EpisodeError(f"{self.who}: add_env_reset() comes first and once, but there are data.")
        for agent_id, item, info in self._seen(observations, infos):
            self._observe(agent_id, item, info, False)
        self._tick()

    def add_env_step(
        self,
        observations: PerAgent,
        actions: PerAgent,
        rewards: PerAgent,
        infos: PerAgent | None = None,
        *,
        terminateds: PerAgent | None = None,
        truncateds: PerAgent | None = None,
        extra_model_outputs: PerAgent | None = None,
    ) -> None:
        """Adds the actions that went into ``env.step()`` and the results that it returned.

        Each reward goes to the agent's last action. An observation closes the agent's step; an agent that ends without
        one has its last observation repeated. A new agent, or one that had ended, begins a life with its observation.
        An info without an observation is left out. So is the repeated final observation of an agent that has ended, as
        long as its done flag is set. An action or observation of None counts as absent.

        Args:
            observations: Agent to next observation, for those that observe.
            actions: Agent to action, for those that acted.
            rewards: Agent to reward, for anyone.
            infos: Agent to info.
            terminateds: Agent (or ``"__all__"``) to whether its state has no future.
            truncateds: Agent (or ``"__all__"``) to whether it was stopped. An agent's own flags take precedence over
                ``"__all__"``. The episode is over when all agents have ended, unless ``"__all__"`` is False.
            extra_model_outputs: Agent to a dict of its module's outputs along with the action.

        Raises:
            EpisodeError: If the episode is over, an agent acts that is absent, has ended or has nothing to act upon,
                or a reward is not a number. The episode is then unchanged.
        """
        if self.is_terminated or self.is_truncated:
            raise EpisodeError(f"{self.who}: add_env_step() after the end of the episode. Start a new one.")
        self._check_mappings(actions, rewards, terminateds, truncateds, extra_model_outputs)
        outputs = extra_model_outputs or {}
        acting = self._acting(actions, outputs)
        earned = {
            agent_id: reward
            if type(reward) is float and reward - reward == 0.0
            else number(reward, f"{self.who}, agent {agent_id!r}")
            for agent_id, reward in rewards.items()
        }
        if self.check_spaces:
            self._check_spaces(actions, self.action_space, ACTIONS)
        seen = self._seen(observations, infos)
        self.env_t = t = self.env_t + 1
        closing = {agent_id for agent_id, _, _ in seen} & acting.keys() if len(acting) else ()
        for agent_id, item, info in seen:
            if agent_id in closing:
                storage, action, extras = acting.pop(agent_id)
                storage.append(item, action, earned.pop(agent_id, 0.0), info, extras, t)
        for storage, action, extras in acting.values():
            storage.act(action, extras)
        for agent_id, reward in earned.items():
            self._credit(agent_id, reward)
        if len(seen) > len(closing):
            for agent_id, item, info in seen:
                if agent_id not in closing:
                    flagged = bool((terminateds or {}).get(agent_id) or (truncateds or {}).get(agent_id))
                    self._observe(agent_id, item, info, flagged)
        if terminateds or truncateds:
            self._end(terminateds or {}, truncateds or {}, t)
        self._tick()

    def _check_mappings(self, *given: Any) -> None:
        """Raises an EpisodeError unless all arguments are mappings or None."""
        for items in given:
            if items is not None and not isinstance(items, (dict, Mapping)):
                raise EpisodeError(
                    f"{self.who}: dicts with an item for each agent are needed, but {items!r} ({type(items).__name__}) "
                    f"came."
                )

    def _seen(self, observations: PerAgent, infos: PerAgent | None) -> list[tuple[AgentID, Any, dict[str, Any]]]:
        """Copies and checks observations and infos, so that nothing can fail when they are written.

        Returns:
            Agent, observation and info of each agent that observes.

        Raises:
            EpisodeError: If the observations or infos are invalid.
        """
        if observations is None:
            raise EpisodeError(
                f"{self.who}: expected a dict of observations, but got None. Pass {{}} if no agent observes."
            )
        self._check_mappings(observations, infos)
        if ALL in observations:
            raise EpisodeError(f"{self.who}: {ALL!r} is no agent, but observes. It belongs among the done flags.")
        if self.check_spaces:
            self._check_spaces(observations, self.observation_space, OBS)
        seen, agent_episodes = [], self.agent_episodes
        for agent_id, observation in observations.items():
            if observation is None:
                continue
            item = owned(observation, self._space_of(self.observation_space, agent_id))
            info = infos.get(agent_id) if infos else None
            seen.append((agent_id, item, owned_infos(info, f"{self.who}, agent {agent_id!r}") if info else {}))
            if agent_id not in agent_episodes:
                self.module_for(agent_id)
        return seen

    def _acting(self, actions: PerAgent, outputs: PerAgent) -> dict[AgentID, tuple[ListStorage, Any, PerAgent]]:
        """Checks actions and outputs.

        Returns:
            For each agent that acts, its storage, its action and its module's outputs.

        Raises:
            EpisodeError: If an agent acts that is absent, has ended or has nothing to act upon.
        """
        acting: dict[AgentID, tuple[ListStorage, Any, PerAgent]] = {}
        agent_episodes = self.agent_episodes
        for agent_id, action in actions.items():
            if action is None:
                continue
            episode = agent_episodes.get(agent_id)
            if episode is None:
                known = did_you_mean(agent_id, agent_episodes)
                raise EpisodeError(f"{self.who}: agent {agent_id!r} acts, but has not observed anything. {known}")
            if episode.is_terminated or episode.is_truncated:
                raise EpisodeError(f"{self.who}: agent {agent_id!r} acts, but has ended. Leave its action out.")
            storage = episode.acting_storage()
            extras = outputs.get(agent_id) or {}
            if tuple(extras) != storage.extras:
                storage.expect(extras, episode)
            item = action if type(action) is int else owned(action, episode.action_space)
            acting[agent_id] = (storage, item, extras)
        for agent_id in outputs:
            if agent_id not in acting:
                raise EpisodeError(f"{self.who}: agent {agent_id!r} has extra_model_outputs, but no action.")
        return acting

    def _set_lives(self, lives: Sequence[SingleAgentEpisode], agents: Iterable[AgentID] | None = None) -> None:
        """Sets the episodes of all lives.

        Args:
            lives: The lives, former ones before newer ones, in the order of ``all_agent_episodes``.
            agents: The agents in their order, and maybe others; None for the order of their newest lives.

        Raises:
            EpisodeError: If a former life has not ended.
        """
        newest = {life.agent_id: life for life in lives}
        past = [life for life in lives if life is not newest[life.agent_id]]
        for life in past:
            if not life.is_done:
                raise self._has_not_ended(life.agent_id)
        if agents is None:
            agents = [life.agent_id for life in lives if life is newest[life.agent_id]]
        self.past_agent_episodes = past
        self.agent_episodes = {agent_id: newest[agent_id] for agent_id in agents if agent_id in newest}

    def _has_not_ended(self, agent_id: AgentID) -> EpisodeError:
        return EpisodeError(f"{self.who}: agent {agent_id!r} begins a life, but has not ended the last.")

    def attach(self, agent_id: AgentID, episode: SingleAgentEpisode) -> None:
        """Begins a new life of an agent with an episode.

        Raises:
            EpisodeError: If the agent's former life has not ended.
        """
        former = self.agent_episodes.get(agent_id)
        if former is not None:
            if not former.is_done:
                raise self._has_not_ended(agent_id)
            self.past_agent_episodes.append(former)
        self.agent_episodes[agent_id] = episode

    def detach(self, agent_id: AgentID) -> None:
        """Undoes ``attach``: the agent's former life becomes its newest one again, if it had one."""
        del self.agent_episodes[agent_id]
        former = self.past_agent_episodes[-1:]
        if former and former[0].agent_id == agent_id:
            self.agent_episodes[agent_id] = self.past_agent_episodes.pop()

    def _join(self, agent_id: AgentID, id_: EpisodeID | None = None) -> SingleAgentEpisode:
        episode = SingleAgentEpisode.from_storage(
            ListStorage(),
            id_=agent_episode_id(self.id_, agent_id, self.env_t) if id_ is None else id_,
            agent_id=agent_id,
            module_id=self.module_for(agent_id),
            multi_agent_episode_id=self.id_,
            observation_space=self._space_of(self.observation_space, agent_id),
            action_space=self._space_of(self.action_space, agent_id),
        )
        self.attach(agent_id, episode)
        return episode

    def _credit(self, agent_id: AgentID, reward: float) -> None:
        episode = self.agent_episodes.get(agent_id)
        if episode is not None:
            episode.credit(reward)
        else:
            self._unclaimed[agent_id] = self._unclaimed.get(agent_id, 0.0) + reward

    def _observe(self, agent_id: AgentID, item: Any, info: dict[str, Any], flagged: bool) -> None:
        episode = self.agent_episodes.get(agent_id)
        ended = agent_id in self._ended_before if episode is None else episode.is_done
        if ended and flagged:
            return
        if episode is None or episode.is_done:
            episode = self._join(agent_id)
        episode.lists().observe(item, info, self.env_t)

    def _end(self, terminateds: PerAgent, truncateds: PerAgent, t: int | None) -> None:
        """Sets the agents' done flags, then the episode's."""
        if not (any(terminateds.values()) or any(truncateds.values())):
            return
        every = bool(terminateds.get(ALL)), bool(truncateds.get(ALL))
        for agent_id, episode in self.agent_episodes.items():
            terminated, truncated = bool(terminateds.get(agent_id)), bool(truncateds.get(agent_id))
            if not (terminated or truncated):
                terminated, truncated = every
            if (terminated or truncated) and not episode.is_done:
                episode.end(terminated=terminated, truncated=truncated, t=t)
        self.is_terminated, self.is_truncated = every
        if self._all_ended() and self._may_go_by_agents(terminateds, truncateds):
            lives = self.agent_episodes.values()
            cut_before = self._truncated_before or any(
                cut for agent_id, cut in self._ended_before.items() if agent_id not in self.agent_episodes
            )
            self.is_terminated |= not cut_before and all(episode.is_terminated for episode in lives)
            self.is_truncated |= cut_before or any(episode.is_truncated for episode in lives)

    def _all_ended(self) -> bool:
        """Whether there were agents, and all of them have ended."""
        lives = self.agent_episodes.values()
        return bool(lives or self._ended_before) and all(episode.is_done for episode in lives)

    @staticmethod
    def _may_go_by_agents(terminateds: PerAgent, truncateds: PerAgent) -> bool:
        """Whether the end of all agents ends the episode: it does unless ``"__all__"`` is False."""
        said = [bool(flags[ALL]) for flags in (terminateds, truncateds) if ALL in flags]
        return not said or any(said)

    # Getters.

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
        """Returns observations by agent; index 0 is the chunk's first observation, -1 its newest.

        Args:
            indices: None for all, an int, a list of ints, or a slice, as ``SingleAgentEpisode`` explains.
            agent_ids: An agent, or several of them; None for all agents.
            env_steps: Whether ``indices`` count env steps or each agent's own steps (those of its newest life).
            neg_index_as_lookback: Whether -1 means the last item before t=0.
            fill: The value where an agent has no item, also at env steps that it skipped. Without it, those are left
                out.
            one_hot_discrete: Whether discrete parts become one-hot vectors.
            return_list: Whether to return a list with one dict for each env step instead of one dict of batches.

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
        """Returns info dicts by agent; see ``get_observations``. ``fill`` is used as it is."""
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
        """Returns actions by agent, at the env step of the observation that they followed; see ``get_observations``.

        Index -1 is the last env step that was taken. An action that waits for its step is included.
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
        """Returns the sum of the rewards for each action, by agent, at the index of the action; see ``get_actions``."""
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
        """Returns extra model outputs by agent, at the index of the action; see ``get_actions``.

        Args:
            key: The output's name; None for a dict of all outputs for each agent.
            indices: Which items, as for ``get_observations``.
            agent_ids: An agent, or several of them; None for all agents.
            env_steps: Whether ``indices`` count env steps or each agent's own steps.
            neg_index_as_lookback: Whether -1 means the last item before t=0.
            fill: The value where an agent has no item.
            return_list: Whether to return a list with one dict for each env step.

        Raises:
            KeyError: If there is no such output or agent.
        """
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

    def _wanted(self, agent_ids: Collection[AgentID] | AgentID | None) -> dict[AgentID, SingleAgentEpisode]:
        """Returns the asked-for agents that have data here; one that ended in an earlier chunk has none."""
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
                    f"{self.who}: return_list=True returns one dict for each env step. Leave env_steps=False out."
                )
            return self._by_agent_steps(name, indices, wanted, neg_index_as_lookback, fill, one_hot_discrete)
        times = self._times(name, indices, neg_index_as_lookback, fill is not None)
        if return_list:
            steps = [times] if isinstance(times, int) else times
            return dicts_at(self._lives_of(wanted), name, steps, fill, one_hot_discrete)
        by_agent: dict[AgentID, Any] = {}
        past: dict[AgentID, list[SingleAgentEpisode]] | None = None if self.past_agent_episodes else {}
        is_quick = type(times) is int and fill is None and not one_hot_discrete
        for agent_id, newest in wanted.items():
            item = newest.storage.item_at(name, times) if is_quick else UNSURE  # type: ignore[arg-type]
            if item is UNSURE:
                if past is None:
                    past = self.past_lives()
                lives = (*past[agent_id], newest) if agent_id in past else (newest,)
                item = items_at(lives, name, times, fill, one_hot_discrete)
            if item is not NOTHING:
                by_agent[agent_id] = item
        return by_agent

    def _lives_of(self, wanted: Mapping[AgentID, SingleAgentEpisode]) -> Iterator[tuple[AgentID, Lives]]:
        """Yields each agent and the episodes of all its lives, oldest first."""
        past = self.past_lives() if self.past_agent_episodes else {}
        for agent_id, newest in wanted.items():
            yield agent_id, (*past[agent_id], newest) if agent_id in past else (newest,)

    def _by_agent_steps(
        self,
        name: str,
        indices: Indices,
        wanted: Mapping[AgentID, SingleAgentEpisode],
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool,
    ) -> dict[AgentID, Any]:
        """Returns items at the agents' own steps, those of their newest lives."""
        by_agent: dict[AgentID, Any] = {}
        for agent_id, episode in wanted.items():
            if name not in STEP and name not in episode.storage.extra_keys():
                continue
            picked = episode._get(name, indices, neg_index_as_lookback, fill, one_hot_discrete, with_pending=True)
            if type(indices) is int or count(picked):
                by_agent[agent_id] = picked
        return by_agent

    def _times(self, name: str, indices: Indices, neg_index_as_lookback: bool, fill: bool) -> EnvSteps:
        """Returns the env steps that indices mean, ``NEVER`` for those out of range."""
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

    # Setters.

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

    def _episode(self, agent_id: AgentID) -> SingleAgentEpisode:
        if agent_id not in self.agent_episodes:
            known = did_you_mean(agent_id, self.agent_episodes)
            raise KeyError(f"{self.who}: agent {agent_id!r} has no data here. {known}")
        return self.agent_episodes[agent_id]

    def _for_known(self, new_data: Mapping[AgentID, Any]) -> list[tuple[AgentID, Any]]:
        """Returns the items of a dict after checking that all its agents have data here."""
        for agent_id in new_data:
            self._episode(agent_id)
        return list(new_data.items())

    # Chunks.

    def __getitem__(self, item: slice) -> MultiAgentEpisode:
        if not isinstance(item, slice):
            raise TypeError(f"{self.who}: episode[a:b] needs a slice, but {item!r} came. For items, use get_...().")
        return self.slice(item)

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Returns a successor chunk of length 0 that continues where this one stops.

        It has the same id, mapping and custom data (copied) and the agents that have not ended, each with its newest
        observation, the action that waits, and up to ``len_lookback_buffer`` of its own steps of lookback.

        Raises:
            EpisodeError: If the episode is over.
        """
        if self.is_done:
            raise EpisodeError(f"{self.who}: cut() makes a successor, but the episode is over. Start a new one.")
        check_lookback(len_lookback_buffer, self.who)
        continuing = {a: e.cut(len_lookback_buffer) for a, e in self.agent_episodes.items() if not e.is_done}
        successor = self._chunk(continuing, self.env_t, self.env_t)
        successor.remember_from(self)
        return successor

    def _chunk(self, agent_episodes: dict[AgentID, Any], env_t_started: int, env_t: int) -> Self:
        """Returns a chunk of the same episode with other steps."""
        other = type(self).__new__(type(self))
        other._init(self.id_, agent_episodes, env_t_started, env_t, self.agent_to_module_mapping_fn, {})
        other.observation_space, other.action_space = self.observation_space, self.action_space
        other.check_spaces, other._spaces_by_agent = self.check_spaces, self._spaces_by_agent
        return other

    def remember_from(self, former: MultiAgentEpisode) -> None:
        """Copies from the chunk before: the user's notes, the agents' modules, and which agents have ended."""
        if former.agent_views is not None:  # all agents continue
            self._truncated_before = former._truncated_before
            self._module_of = dict(former._module_of)
            self._copy_notes(former)
            return
        live = {agent_id for agent_id, episode in former.agent_episodes.items() if not episode.is_done}
        ended = {agent_id: cut for agent_id, cut in former._ended_before.items() if agent_id not in live}
        for agent_id, episode in former.agent_episodes.items():
            if episode.is_done:
                ended.pop(agent_id, None)  # so that the newest come last
                ended[agent_id] = episode.is_truncated
        forgotten = list(ended)[: max(0, len(ended) - REMEMBERED_AGENTS)]
        self._truncated_before = former._truncated_before or any(ended[agent_id] for agent_id in forgotten)
        self._module_of = dict(former._module_of)
        for agent_id in forgotten:
            del ended[agent_id]
            self._module_of.pop(agent_id, None)
        self._ended_before = ended
        self._copy_notes(former)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Returns a copy of the env steps ``[start, stop)``: the agents' steps that were completed there.

        If an agent began a step before ``stop`` and completed it later, its action waits in this slice, and the step
        belongs to the slice that begins at ``stop``; so consecutive slices concatenate to the whole.

        Args:
            slice_: Env steps of this chunk, without a step size.
            len_lookback_buffer: How many of its own steps of lookback each agent keeps, as far as there are any; None
                for as many as here.

        Raises:
            EpisodeError: If the slice has a step size.
        """
        start, stop = slice_bounds(slice_, len_lookback_buffer, len(self), self.who)
        begin, end = self.env_t_started + start, self.env_t_started + stop
        part = self._chunk({}, begin, end)
        part._module_of, part._ended_before = dict(self._module_of), dict(self._ended_before)
        part._truncated_before = self._truncated_before
        part._copy_notes(self)
        pieces = [
            between(
                episode,
                begin,
                end,
                env_t_started=self.env_t_started,
                env_t=self.env_t,
                len_lookback_buffer=len_lookback_buffer,
            )
            for episode in self.all_agent_episodes()
        ]
        part._set_lives([piece for piece in pieces if piece is not None], self.agent_episodes)
        if begin == self.env_t_started and (end > begin or not len(self)):
            part._unclaimed = dict(self._unclaimed)
        if end == self.env_t:
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Appends a successor chunk, as ``cut()`` or ``slice()`` made it; ``other`` stays as it is.

        Raises:
            EpisodeError: If ``other`` is not this episode's continuation.
        """
        self._continue_with(other)

    def take_over(self, other: MultiAgentEpisode) -> None:
        """Does the same as ``concat_episode`` with a chunk that is not used any more; see SingleAgentEpisode."""
        self._continue_with(other, is_given_up=True)

    def _continue_with(self, other: MultiAgentEpisode, is_given_up: bool = False) -> None:
        """Appends a chunk, whose parts may be used if it is given up."""
        if self.is_done:
            raise EpisodeError(f"{self.who}: concat_episode() continues an episode, but this one is over.")
        if (other.id_, other.env_t_started) != (self.id_, self.env_t):
            raise EpisodeError(
                f"{self.who}: concat_episode() needs the chunk of {self.id_!r} that starts at env_t={self.env_t}, but "
                f"that of {other.id_!r} from env_t={other.env_t_started} came."
            )
        theirs = other.all_agent_episodes()
        continued = [self._continued_by(episode) for episode in theirs]
        for mine, episode in zip(continued, theirs, strict=True):
            if mine is not None:
                mine.check_continuation(episode)
        for agent_id, reward in other._unclaimed.items():
            if is_given_up and agent_id in self.agent_episodes:
                ended = self.agent_episodes[agent_id]
                ended.credit_in_place(reward, len(ended))
            else:
                self._credit(agent_id, reward)
        new = []
        for mine, episode in zip(continued, theirs, strict=True):
            if mine is None:
                new.append(episode)
            else:
                mine.append_chunk(episode, is_given_up=is_given_up)
        order = {agent_id: number for number, agent_id in enumerate(other.agent_episodes)}
        for episode in sorted(new, key=lambda life: (_first_t(life, other.env_t), order[life.agent_id])):
            self.attach(episode.agent_id, episode if is_given_up else episode[:])
        self.env_t = other.env_t
        self._module_of.update(other._module_of)
        if self._spaces_by_agent is None:
            self._spaces_by_agent = other._spaces_by_agent
        self._append_notes(other)

    def _continued_by(self, episode: SingleAgentEpisode) -> SingleAgentEpisode | None:
        """Returns the life here that another chunk's episode continues, or None if that begins a life."""
        mine = self.agent_episodes.get(episode.agent_id)
        return mine if mine is not None and mine.id_ == episode.id_ else None

    # As arrays and as plain data.

    def to_numpy(self) -> MultiAgentEpisode:
        """Turns all agents' columns into arrays, in place; see ``SingleAgentEpisode.to_numpy``."""
        episodes = self.all_agent_episodes()
        storages = [episode.as_arrays() for episode in episodes]
        for episode, storage in zip(episodes, storages, strict=True):
            episode.storage = storage
        return self

    def get_notes(self, module_of: Mapping[AgentID, ModuleID | None]) -> dict[str, Any]:
        """Returns what is unusual about this episode: the fields of ``MultiAgentEpisodeNotes`` with other values.

        Args:
            module_of: Agent to module, as far as it is known from the agents' episodes.
        """
        notes: dict[str, Any] = {}
        others = {a: m for a, m in self._module_of.items() if module_of.get(a) != m}
        spaces_of = {"observation_space": self.observation_space, "action_space": self.action_space}
        for name, found in (
            ("module_of", others),
            ("ended_before", self._ended_before),
            ("unclaimed", self._unclaimed),
            ("truncated_before", self._truncated_before),
        ):
            if found:
                notes[name] = found
        for name, whole in spaces_of.items():
            if whole is not None:
                notes[name] = _spaces_to_json(whole)
        if self._spaces_by_agent is not None:
            notes["spaces_by_agent"] = self._spaces_by_agent
        return notes | self._base_notes()

    def set_notes(self, notes: MultiAgentEpisodeNotes) -> None:
        """Sets what ``get_notes`` returned."""
        self._module_of = dict(notes.module_of)
        self._ended_before = dict(notes.ended_before)
        self._unclaimed = dict(notes.unclaimed)
        self._truncated_before = notes.truncated_before
        self.observation_space = _spaces_from_json(notes.observation_space)
        self.action_space = _spaces_from_json(notes.action_space)
        self._spaces_by_agent = notes.spaces_by_agent
        self._set_base_notes(notes)

    def get_state(self) -> dict[str, Any]:
        """Returns the whole episode as nested dicts of numbers, strings, lists and arrays, without mapping function.

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
        cls, state: MultiAgentEpisodeState | Mapping[str, Any], agent_to_module_mapping_fn: AgentToModule | None = None
    ) -> MultiAgentEpisode:
        """Returns the episode that ``get_state()`` described. The function maps agents that join later.

        Raises:
            EpisodeError: If it has other fields, or fields of other types.
        """
        state = episode_state(MultiAgentEpisodeState, state)
        module_of = dict(decode(state.module_of))
        episode = cls.__new__(cls)
        mapping_fn = agent_to_module_mapping_fn
        episode._init(decode(state.id_), {}, state.env_t_started, state.env_t, mapping_fn, module_of)
        episode._set_lives([SingleAgentEpisode.from_state(agent_state) for agent_state in state.agent_episodes])
        episode.is_terminated, episode.is_truncated = state.is_terminated, state.is_truncated
        episode._ended_before = dict(decode(state.ended_before))
        episode._truncated_before = state.truncated_before
        episode._unclaimed = dict(decode(state.unclaimed))
        episode.observation_space = _spaces_from_json(state.observation_space)
        episode.action_space = _spaces_from_json(state.action_space)
        episode._custom_data = decode(state.custom_data)
        episode._set_duration(state.duration_s)
        episode.check_spaces, episode._spaces_by_agent = state.check_spaces, state.spaces_by_agent
        return episode


def agent_episode_id(episode_id: EpisodeID, agent_id: AgentID, t: int) -> EpisodeID:
    """Returns the id of an agent's life that begins at env step ``t``; the ids of agents ``3`` and ``"3"`` differ.

    >>> agent_episode_id("0-0", "agent_1", 0), agent_episode_id("0-0", 3, 0)
    ('0-0/agent_1/0', '0-0/int:3/0')
    """
    name = agent_id if isinstance(agent_id, str) else f"{type(agent_id).__name__}:{agent_id}"
    return f"{episode_id}/{name}/{t}"


def _first_t(life: SingleAgentEpisode, end: int) -> int:
    """Returns the env step of a life's first observation in its chunk, ``end`` if it has none."""
    times: Any = life.storage.part(Columns.T, life.storage.lookback, None)
    return int(times[0]) if len(times) else end


def _by_agent(by_key: Mapping[str, Mapping[AgentID, Any]]) -> dict[AgentID, dict[str, Any]]:
    result: dict[AgentID, dict[str, Any]] = {}
    for key, by_agent in by_key.items():
        for agent_id, value in by_agent.items():
            result.setdefault(agent_id, {})[key] = value
    return result


def _spaces_to_json(whole: Any) -> Any:
    """Returns one space, or a dict of agents' spaces, as plain data."""
    if whole is None or isinstance(whole, Space):
        return None if whole is None else spaces.to_json(whole)
    return {"agents": [[encode(agent_id, "agent_id"), spaces.to_json(part)] for agent_id, part in whole.items()]}


def _spaces_from_json(data: Any) -> Any:
    if data is None or "agents" not in data:
        return None if data is None else spaces.from_json(data)
    return {decode(agent_id): spaces.from_json(part) for agent_id, part in data["agents"]}
