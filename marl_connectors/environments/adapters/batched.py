"""The protocol of natively batched environments, which step all sub-environments at once with arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from gymnasium import Env, Space
from gymnasium.spaces import Dict as DictSpace
from gymnasium.spaces import Tuple as TupleSpace
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors import spaces
from marl_connectors.environments.rules.checks import ended_alone, raise_first
from marl_connectors.environments.rules.env_failures import errors_named
from marl_connectors.errors import EnvError, describe_error
from marl_connectors.trees import tree_map, unstack
from marl_connectors.typing import AgentID, Tree


@runtime_checkable
class BatchedEnv(Protocol):
    """A natively batched environment: ``num_envs`` sub-environments with the same agents, stepped together.

    This is a protocol; a user's class need not inherit from it. All agents of a sub-environment live from its reset
    until they end together, in one step. The class or function that makes the environment gets ``num_envs`` as a
    keyword argument. If agents have different spaces, observations and actions are dicts by agent,
    ``{agent: [num_envs, ...]}``, instead of arrays ``[num_envs, num_agents, ...]``.

    Attributes:
        num_envs: The number of sub-environments.
        possible_agents: The agents of a sub-environment, in the order of the second axis of all arrays.
    """

    num_envs: int
    possible_agents: list[AgentID]

    def observation_space(self, agent: AgentID) -> Space:
        """Returns the observation space of one agent."""
        ...

    def action_space(self, agent: AgentID) -> Space:
        """Returns the action space of one agent."""
        ...

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None = None) -> Tree:
        """Starts episodes.

        Args:
            seeds: ``num_envs`` items: a seed for each sub-environment that is reset, None for the others. An episode
                must be determined by its seed and its actions.
            mask: ``[num_envs]`` bool, the sub-environments to reset; None for all. The others must not change.

        Returns:
            The observations of all sub-environments, reset or not, ``[num_envs, num_agents, ...]``.
        """
        ...

    def step(self, actions: Any) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all sub-environments, and resets none. The caller resets those that are over before the next step.

        Args:
            actions: ``[num_envs, num_agents, ...]``.

        Returns:
            Observations ``[num_envs, num_agents, ...]``, rewards, terminations and truncations ``[num_envs,
            num_agents]``, and infos: ``[num_envs, num_agents, ...]`` arrays by name, or ``{}``. The environment may
            overwrite the arrays in the next call.
        """
        ...

    def close(self) -> None:
        """Frees the environment's resources."""
        ...


def is_batched(env: Any) -> bool:
    """Whether an environment is natively batched, and not of another kind with attributes of the same names."""
    return not isinstance(env, (ParallelEnv, AECEnv, Env)) and isinstance(env, BatchedEnv)


def missing_parts(env: Any) -> list[str]:
    """Returns the methods of BatchedEnv that an object with ``num_envs`` and ``possible_agents`` lacks.

    The list is empty for other objects.
    """
    parts = ("observation_space", "action_space", "reset", "step", "close")
    if not (hasattr(env, "num_envs") and hasattr(env, "possible_agents")):
        return []
    return [name for name in parts if not hasattr(env, name)]


class BatchedStep(NamedTuple):
    """The result of a step of all sub-environments.

    The environment may overwrite all arrays but those of the infos in the next call.

    Attributes:
        observations: ``[num_envs, num_agents, ...]``, or ``{agent: [num_envs, ...]}`` if agents have different spaces.
        rewards: ``[num_envs, num_agents]`` numbers.
        terminations: ``[num_envs, num_agents]`` bool.
        truncations: ``[num_envs, num_agents]`` bool.
        infos: ``[num_envs, num_agents, ...]`` arrays by name. They are copies.
    """

    observations: Tree
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    infos: dict[str, np.ndarray]

    @property
    def ended(self) -> np.ndarray:
        """``[num_envs, num_agents]`` bool, the agents that were terminated or truncated."""
        return self.terminations | self.truncations

    @property
    def over(self) -> np.ndarray:
        """``[num_envs]`` bool, the sub-environments all of whose agents have ended."""
        return np.logical_and.reduce(self.ended, axis=1)


class BatchedCalls:
    """Calls a natively batched environment, and checks the shapes and dtypes of the arrays that it returns.

    Attributes:
        env: The environment.
        agents: Its agents.
        alike: Whether all agents have the same spaces, so that one array holds the observations of all.
    """

    def __init__(self, env: BatchedEnv, name: str = ""):
        """Reads the environment's agents and spaces.

        Args:
            env: The environment.
            name: Its name in messages; ``""`` to use the name of its class.

        Raises:
            EnvError: If it has no sub-environments or no agents, or if an action space is a Dict or a Tuple.
        """
        self.env = env
        self._name = name or f"{type(env).__name__} (natively batched)"
        with errors_named(f"{self._name}: possible_agents or num_envs"):
            self.agents: list[AgentID] = list(env.possible_agents)
            self._lead = (int(env.num_envs), len(self.agents))
        if 0 in self._lead:
            raise EnvError(f"{self._name}: num_envs and possible_agents are {self._lead}, expected one at least.")
        found = [self._spaces_of(agent) for agent in self.agents]
        for agent, (_, action_space) in zip(self.agents, found, strict=True):
            if isinstance(action_space, (DictSpace, TupleSpace)):
                raise EnvError(
                    f"{self._name}: the actions of agent {agent!r} are {spaces.describe(action_space)}. A natively "
                    f"batched environment takes arrays of actions: use Box, Discrete, MultiDiscrete or "
                    f"MultiBinary spaces, or single environments."
                )
        self.alike = all(own == found[0] for own in found)
        self._spaces = {agent: own[0] for agent, own in zip(self.agents, found, strict=True)}

    def _spaces_of(self, agent: AgentID) -> tuple[Any, Any]:
        with errors_named(f"{self._name}: observation_space({agent!r}) or action_space({agent!r})"):
            return self.env.observation_space(agent), self.env.action_space(agent)

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None) -> Tree:
        """Resets some or all sub-environments, and returns the observations of all.

        Args:
            seeds: As for ``BatchedEnv.reset``.
            mask: As for ``BatchedEnv.reset``.

        Raises:
            EnvError: If the environment raises, or returns arrays of other shapes.
        """
        with errors_named(f"{self._name}: reset()"):
            given = self.env.reset(seeds, mask)
        return self._observations("reset()", given)

    def step(self, actions: Any) -> BatchedStep:
        """Steps all sub-environments.

        Args:
            actions: ``[num_envs * num_agents, ...]``, or a list of ``num_envs * num_agents`` items if not ``alike``.

        Raises:
            EnvError: If the environment raises, or returns arrays of other shapes or dtypes.
        """
        packed = self._packed(actions)
        with errors_named(f"{self._name}: step()"):
            given: Any = self.env.step(packed)
        if not isinstance(given, tuple) or len(given) != 5:
            came = f"{len(given)} values" if isinstance(given, tuple) else f"a {type(given).__name__}"
            raise EnvError(
                f"{self._name}: step() returned {came}, expected a tuple of observations, rewards, terminations, "
                f"truncations and infos."
            )
        observations, rewards, terminations, truncations, infos = given
        return BatchedStep(
            self._observations("step()", observations),
            self._numbers("rewards", rewards),
            self._flags("terminations", terminations),
            self._flags("truncations", truncations),
            self._infos(infos),
        )

    def _packed(self, actions: Any) -> Any:
        if self.alike:
            actions = np.asarray(actions)
            return actions.reshape(*self._lead, *actions.shape[1:])
        return {agent: np.array(actions[i :: len(self.agents)]) for i, agent in enumerate(self.agents)}

    def flat(self, observations: Tree) -> Any:
        """Joins all agents' observations in ``N`` sub-environments.

        Returns:
            ``[N * num_agents, ...]`` arrays, or a list of ``N * num_agents`` items if not ``alike``.
        """
        if self.alike:
            return tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observations)
        by_agent = [unstack(observations[agent]) for agent in self.agents]
        return [item for items in zip(*by_agent, strict=True) for item in items]

    def of_sub_env(self, observations: Tree, index: int) -> dict[AgentID, Any]:
        """Returns one sub-environment's observations by agent."""
        own = tree_map(lambda leaf: leaf[index], observations)
        return dict(zip(self.agents, unstack(own), strict=True)) if self.alike else own

    def _observations(self, method: str, given: Any) -> Tree:
        if self.alike:
            return self._observed(f"observations of {method}", given, self._spaces[self.agents[0]], self._lead)
        if not isinstance(given, Mapping) or set(given) != set(self.agents):
            raise EnvError(
                f"{self._name}: the observations of {method} are a {_structure(given)}, expected a dict by agent, "
                f"{{{', '.join(f'{agent!r}: [num_envs, ...]' for agent in self.agents)}}}, as the agents have unlike "
                f"spaces."
            )
        return {
            agent: self._observed(f"observations of {method} for agent {agent!r}", given[agent], space, self._lead[:1])
            for agent, space in self._spaces.items()
        }

    def _observed(self, name: str, given: Any, space: Space, lead: tuple[int, ...]) -> Tree:
        try:
            return self._leaves_observed(name, given, space, lead)
        except ValueError as error:
            raise EnvError(
                f"{self._name}: the {name} are a {_structure(given)}, expected a "
                f"{_structure(spaces.zeros(space))} of arrays as in the observation space, {spaces.describe(space)}."
            ) from error

    def _leaves_observed(self, name: str, given: Any, space: Space, lead: tuple[int, ...]) -> Tree:
        """Converts observations to a tree of arrays with the structure of the space.

        Raises:
            ValueError: If the observations do not have the parts of the space.
        """
        if isinstance(space, (DictSpace, TupleSpace)):
            own = zip(spaces.parts_of(space), spaces.parts_in(space, given), strict=True)
            parts = {key: self._leaves_observed(name, values, part, lead) for (key, part), values in own}
            return parts if isinstance(space, DictSpace) else tuple(parts.values())
        array = self._array(name, given)
        self._check_shape(name, array, (*lead, *(space.shape or ())))
        return array

    def _numbers(self, name: str, given: Any) -> np.ndarray:
        array = self._array(name, given)
        self._check_shape(name, array, self._lead)
        if array.dtype.kind not in "biuf":
            raise EnvError(f"{self._name}: {name} of step() are of dtype {array.dtype}, expected numbers.")
        return array

    def _flags(self, name: str, given: Any) -> np.ndarray:
        array = self._numbers(name, given)
        if array.dtype == bool:
            return array
        wrong = array[(array != 0) & (array != 1)]
        if wrong.size:
            raise EnvError(f"{self._name}: {name} of step() contain {wrong[0]}, expected True or False.")
        return array.astype(bool)

    def _infos(self, given: Any) -> dict[str, np.ndarray]:
        if not given:
            return {}
        if not isinstance(given, Mapping):
            raise EnvError(
                f"{self._name}: infos are a {type(given).__name__}, expected a dict of arrays [num_envs, num_agents, "
                f"...] by name, or {{}}."
            )
        infos = {name: self._array(f"infos[{name!r}]", values).copy() for name, values in given.items()}
        for name, values in infos.items():
            if values.shape[:2] != self._lead:
                self._check_shape(f"infos[{name!r}]", values, self._lead)
        return infos

    def _array(self, name: str, given: Any) -> np.ndarray:
        if type(given) is np.ndarray:
            return given
        try:
            return np.asarray(given)
        except Exception as error:
            raise EnvError(f"{self._name}: {name} cannot be converted to an array: {describe_error(error)}.") from error

    def _check_shape(self, name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
        if array.shape != expected:
            agents = "" if name.startswith("observations") and not self.alike else f"then {self._lead[1]} agents, "
            raise EnvError(
                f"{self._name}: {name} have shape {array.shape}, expected {expected}: num_envs={self._lead[0]} "
                f"sub-environments, {agents}then the shape for one agent."
            )


def _structure(tree: Any) -> str:
    return f"dict with {sorted(map(str, tree))}" if isinstance(tree, Mapping) else type(tree).__name__


class BatchedParallelEnv(ParallelEnv):
    """A natively batched environment with ``num_envs=1`` as a PettingZoo parallel environment."""

    def __init__(self, env: BatchedEnv, name: str):
        """Wraps the environment.

        Args:
            env: A natively batched environment with ``num_envs=1``.
            name: Its name in messages.

        Raises:
            EnvError: If it has no agents.
        """
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[AgentID] = []
        self.metadata = getattr(env, "metadata", None) or {"name": name, "render_modes": []}
        self.render_mode = getattr(env, "render_mode", None)
        self._name = name
        self._calls = BatchedCalls(env, name)
        self._seed = -1

    def observation_space(self, agent: AgentID) -> Space:
        """Returns the observation space of one agent."""
        return self.env.observation_space(agent)

    def action_space(self, agent: AgentID) -> Space:
        """Returns the action space of one agent."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict[AgentID, Any], dict]:
        """Starts an episode. Without a seed, the seed is the last one plus 1. Options are ignored."""
        self._seed = self._seed + 1 if seed is None else seed
        observations = self._calls.reset([self._seed], None)
        self.agents = list(self.possible_agents)
        return self._by_agent(observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict[AgentID, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Steps all agents. Returns observations, rewards, terminations, truncations and infos by agent."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        step = self._calls.step([np.asarray(actions[agent]) for agent in self.agents])
        agents = self.agents
        rewards, terminations, truncations = (
            dict(zip(agents, values[0].tolist(), strict=True))
            for values in (step.rewards, step.terminations, step.truncations)
        )
        infos = {agent: {name: v[0, i] for name, v in step.infos.items()} for i, agent in enumerate(agents)}
        self.agents = [agent for agent in agents if not (terminations[agent] or truncations[agent])]
        if self.agents and len(self.agents) < len(agents):
            raise_first(self._name, [ended_alone([agent for agent in agents if agent not in self.agents])])
        return self._by_agent(step.observations), rewards, terminations, truncations, infos

    def _by_agent(self, observations: Tree) -> dict[AgentID, Any]:
        return self._calls.of_sub_env(tree_map(np.array, observations), 0)  # the environment may overwrite its arrays

    def render(self) -> Any:
        """Returns what the environment renders."""
        return self.env.render()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()
