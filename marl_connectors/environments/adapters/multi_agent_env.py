"""Environments with RLlib's multi-agent API: dicts by agent, in which agents come, go and wait as they please."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import gymnasium
from gymnasium import Space

from marl_connectors.environments.adapters.env_adapter import EnvAdapter
from marl_connectors.environments.adapters.turn_based import EnvStep, TurnBasedEnv
from marl_connectors.environments.rules import checks
from marl_connectors.errors import EnvError
from marl_connectors.typing import AgentID

_ALL = "__all__"
ENV_STATE: Final = "state"
"""RLlib's key of a global state in Dict observations. Here it is a key like any other."""
INPUT_ENV_SPACES: Final = "__env__"
"""Key of the spaces of all sub-environments in the ``spaces`` that a builder of connector pieces gets."""
INPUT_ENV_SINGLE_SPACES: Final = "__env_single__"
"""Key of the spaces of one sub-environment."""

_Env = TypeVar("_Env")


def PettingZooEnv(env: _Env) -> _Env:
    """Returns a turn-based (AEC) environment unchanged. RLlib's wrapper of this name is not needed here."""
    return env


def ParallelPettingZooEnv(env: _Env) -> _Env:
    """Returns a parallel environment unchanged. RLlib's wrapper of this name is not needed here."""
    return env


class MultiAgentEnv(gymnasium.Env):
    """The base class of environments with RLlib's multi-agent API, which needs no package besides Gymnasium.

    Set ``possible_agents``, and ``observation_spaces`` and ``action_spaces`` by agent, and override ``reset`` and
    ``step``. The agents whose observations are returned act next; all others wait. An environment that is derived from
    RLlib's own class of this name works as well.

    Attributes:
        agents: The agents that take part now.
        possible_agents: All agents that may ever take part.
        observation_spaces: The observation space of each agent; or ``observation_space`` is a Dict space by agent, or
            the space of every agent.
        action_spaces: The action space of each agent, in the same way.
    """

    agents: list[AgentID] = []
    possible_agents: list[AgentID] = []
    observation_spaces: dict[AgentID, Space] | None = None
    action_spaces: dict[AgentID, Space] | None = None
    observation_space: Any = None
    action_space: Any = None

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts an episode. An override calls ``super().reset(seed=seed)`` first to seed ``self.np_random``.

        Args:
            seed: The seed of the episode.
            options: The environment's own options.

        Returns:
            The observations of the agents that act first, and infos, by agent.
        """
        super().reset(seed=seed, options=options)
        return {}, {}

    def step(  # type: ignore[override]
        self, action_dict: dict[AgentID, Any]
    ) -> tuple[dict[AgentID, Any], dict[AgentID, float], dict[AgentID, bool], dict[AgentID, bool], dict[AgentID, dict]]:
        """Plays a step.

        Args:
            action_dict: The actions of the agents whose observations were returned last.

        Returns:
            Observations, rewards, terminateds, truncateds and infos by agent. Only agents that act next or have ended
            need an observation. ``terminateds["__all__"]`` or ``truncateds["__all__"]`` ends the episode for all. If
            neither dict has this key, the episode is over once all of its agents have ended.
        """
        raise NotImplementedError(f"{type(self).__name__}: override step.")

    def get_observation_space(self, agent_id: AgentID) -> Space:
        """Returns an agent's observation space."""
        return _space_of(self, "observation_space", agent_id)

    def get_action_space(self, agent_id: AgentID) -> Space:
        """Returns an agent's action space."""
        return _space_of(self, "action_space", agent_id)

    @property
    def num_agents(self) -> int:
        """The number of agents that take part now."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """The number of agents that may ever take part."""
        return len(self.possible_agents)


AgentsWait: TypeAlias = "TurnBasedEnv | MultiAgentEnvAdapter"
"""The adapters of environments in which an agent that has acted may have to wait before it observes again."""


def agents_wait(env: Any) -> bool:
    """Whether an environment, as a runner steps it, is one in which agents wait."""
    return isinstance(env, (TurnBasedEnv, MultiAgentEnvAdapter))


def is_multi_agent_env(env: Any) -> bool:
    """Whether an environment is derived from ``MultiAgentEnv`` here, or from RLlib's class of this name."""
    return any(cls.__name__ == "MultiAgentEnv" for cls in type(env).__mro__)


def make_multi_agent(env_name_or_creator: str | Callable[[Any], gymnasium.Env]) -> type[MultiAgentEnv]:
    """Returns a class of environments in which each agent plays its own copy of a Gymnasium environment.

    ``env_config={"num_agents": n}`` sets the number of agents, 1 by default, whose ids are 0 to ``n - 1``. All other
    keys are passed on. An agent whose episode ends waits until all have ended.

    >>> env = make_multi_agent("CartPole-v1")({"num_agents": 2})
    >>> observations, _ = env.reset(seed=0)
    >>> list(observations)
    [0, 1]

    Args:
        env_name_or_creator: A Gymnasium id, or a function of the other settings.
    """

    class MultiEnv(MultiAgentEnv):
        def __init__(self, config: Mapping[str, Any] | None = None):
            super().__init__()
            others = dict(config or {})
            number = others.pop("num_agents", 1)
            make = env_name_or_creator
            self.envs = [
                gymnasium.make(make, **others) if isinstance(make, str) else make(others) for _ in range(number)
            ]
            self.agents = self.possible_agents = list(range(number))
            self.observation_spaces = {i: env.observation_space for i, env in enumerate(self.envs)}
            self.action_spaces = {i: env.action_space for i, env in enumerate(self.envs)}
            self.metadata, self.render_mode = self.envs[0].metadata, self.envs[0].render_mode
            self._num_ended = 0

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
            super().reset(seed=seed)
            seeds = self.np_random.integers(2**31, size=len(self.envs)).tolist() if seed is not None else None
            given = [env.reset(seed=seeds and seeds[i], options=options) for i, env in enumerate(self.envs)]
            self._num_ended = 0
            observations, infos = zip(*given, strict=True)
            return dict(enumerate(observations)), dict(enumerate(infos))

        def step(self, action_dict: dict[AgentID, Any]) -> Any:
            results: tuple[dict[AgentID, Any], ...] = {}, {}, {}, {}, {}
            for agent, action in action_dict.items():
                for part, value in zip(results, self.envs[agent].step(action), strict=True):  # type: ignore[call-overload]
                    part[agent] = value
                self._num_ended += bool(results[2][agent] or results[3][agent])
            is_over = self._num_ended == len(self.envs)
            results[2]["__all__"] = is_over and any(results[2].values())
            results[3]["__all__"] = is_over and not results[2]["__all__"]
            return results

        def render(self) -> Any:
            """Returns what the first environment renders."""
            return self.envs[0].render()

        def close(self) -> None:
            for env in self.envs:
                env.close()

    return MultiEnv


def _space_of(env: Any, kind: str, agent_id: AgentID) -> Space:
    by_agent, common = getattr(env, f"{kind}s", None), getattr(env, kind, None)
    if by_agent is not None and agent_id in by_agent:
        return by_agent[agent_id]
    if isinstance(common, gymnasium.spaces.Dict) and agent_id in common.spaces:
        return common.spaces[agent_id]  # type: ignore[index]
    if by_agent is None and isinstance(common, Space):
        return common
    raise EnvError(
        f"{type(env).__name__}: agent {agent_id!r} has no {kind}. Add it to {kind}s, a dict of the spaces by agent."
    )


class MultiAgentEnvAdapter(EnvAdapter):
    """A ``MultiAgentEnv`` with the methods of a parallel environment, for runners in which agents may wait.

    A step contains an agent when it observes again or ends, with all of its rewards since its last observation, as with
    ``TurnBasedEnv``. Several agents can act in one step. Infos of other keys than agents, such as ``__common__``, are
    left out. Agents are in the order in which they joined. Where ``"__all__"`` is in neither dict of flags, the episode
    is over once all of its agents have ended.

    Attributes:
        env: The environment.
        agents: The agents that have observed and have not ended; if there is none although the episode continues, all
            possible agents.
        acting: The agents that act next.
    """

    __slots__ = ("_live", "_owed", "_paid", "_seen", "_turn", "acting")

    def __init__(self, env: Any):
        """Wraps an environment, which need not have been reset."""
        super().__init__(env)
        self.acting: list[AgentID] = []
        self._live: dict[AgentID, None] = {}
        self._owed: dict[AgentID, float] = {}
        self._seen: set[AgentID] = set()  # the agents that have observed or ended
        self._paid: set[AgentID] = set()  # the agents that were rewarded
        self._turn = 0

    @property
    def possible_agents(self) -> list[AgentID]:
        """All agents that may take part, as far as the environment says."""
        env = self.env
        spaces = getattr(env, "observation_spaces", None) or getattr(env, "observation_space", None)
        spaces = spaces.spaces if isinstance(spaces, gymnasium.spaces.Dict) else spaces
        named = getattr(env, "possible_agents", None) or (list(spaces) if isinstance(spaces, Mapping) else None)
        return list(named or getattr(env, "agents", None) or [])

    @property
    def where(self) -> str:
        """The environment and the number of its newest step, for error messages."""
        return f"{type(self.env).__name__}, step {self._turn}"

    def observation_space(self, agent: AgentID) -> Space:
        """Returns an agent's observation space."""
        return self.env.get_observation_space(agent)

    def action_space(self, agent: AgentID) -> Space:
        """Returns an agent's action space."""
        return self.env.get_action_space(agent)

    def take_reset_rewards(self) -> dict[AgentID, Any]:
        """Returns no rewards, because a reset has none."""
        return {}

    def reset(
        self, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts an episode. Returns observations and infos of the agents that act first."""
        given = self.env.reset(seed=seed, options=options)
        self._turn, self._owed = 0, {}
        checks.raise_first(self.where, [checks.reset_violation(given)])
        observations, infos = given
        self._live, self._seen, self._paid = dict.fromkeys(observations), set(observations), set()
        self.agents, self.acting = list(observations), list(observations)
        return dict(observations), _of_agents(infos, self._live)

    def step(self, actions: dict[AgentID, Any]) -> EnvStep:
        """Plays a step.

        Args:
            actions: The actions of the agents in ``acting``.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that act next and of those that
            have ended.

        Raises:
            EnvError: If the environment returns anything but five dicts, or a reward that is not a number.
        """
        given = self.env.step(actions)
        self._turn += 1
        checks.raise_first(self.where, [checks.result_violation(given)])
        observed, rewards, terminateds, truncateds, infos = given
        for agent, reward in rewards.items():
            if type(reward) is not float:
                checks.raise_first(self.where, [checks.reward_violation(agent, reward)])
            self._owed[agent] = self._owed.get(agent, 0.0) + float(reward)  # narrow number types overflow
            if reward:
                self._paid.add(agent)
        terminations, truncations, is_over = self._ends(observed, terminateds, truncateds)
        members = list(terminations)
        shown = [a for a in members if a in observed or terminations[a] or truncations[a]]
        self._live = dict.fromkeys(_alive(terminations, truncations))
        self.acting = [a for a in self._live if a in observed]
        self.agents = [] if is_over else list(self._live) or self.possible_agents
        gone = [a for a in self._owed if a not in self._live and a not in shown]
        return (
            {a: observed[a] for a in shown if a in observed},
            {a: self._owed.pop(a, 0.0) for a in [*shown, *gone]},
            {a: terminations[a] for a in shown},
            {a: truncations[a] for a in shown},
            _of_agents(infos, shown),
        )

    def _ends(
        self, observed: Mapping[AgentID, Any], terminateds: Mapping[AgentID, Any], truncateds: Mapping[AgentID, Any]
    ) -> tuple[dict[AgentID, bool], dict[AgentID, bool], bool]:
        """Returns both flags of all live and joining agents, and whether the episode is over.

        ``__all__`` ends the agents that have not ended by themselves. Where it is missing, the episode is over once all
        of its agents have ended. Possible agents that were rewarded but never observed end with the episode.
        """
        flags: list[dict[AgentID, bool]] = []
        for word, given in (("termination", terminateds), ("truncation", truncateds)):
            for agent, flag in given.items():
                checks.raise_first(self.where, [checks.flag_violation(agent, word, flag)])
            flags.append({agent: bool(flag) for agent, flag in given.items()})
        terminated, truncated = flags
        is_said = _ALL in terminated or _ALL in truncated
        of_all = terminated.pop(_ALL, False), truncated.pop(_ALL, False)
        # An agent that has ended may be flagged, or even observed, again. Only without a flag does it come back.
        joined = [a for a in observed if a not in self._live and not (terminated.get(a) or truncated.get(a))]
        terminations, truncations = {}, {}
        for agent in [*self._live, *joined]:
            own = terminated.get(agent, False), truncated.get(agent, False)
            terminations[agent], truncations[agent] = own if any(own) else of_all
        self._seen.update(terminations)
        is_over = any(of_all) or (not is_said and bool(terminations) and not _alive(terminations, truncations))
        if is_over:
            of_all = of_all if any(of_all) else (True, False)
            never_saw = [a for a in self.possible_agents if a in self._paid and a not in self._seen]
            terminations |= dict.fromkeys(never_saw, of_all[0])
            truncations |= dict.fromkeys(never_saw, of_all[1])
        return terminations, truncations, is_over


def _alive(terminations: Mapping[AgentID, bool], truncations: Mapping[AgentID, bool]) -> list[AgentID]:
    return [agent for agent in terminations if not (terminations[agent] or truncations[agent])]


def _of_agents(infos: Any, agents: Any) -> dict[AgentID, Any]:
    return {agent: infos[agent] for agent in agents if agent in infos} if infos else {}
