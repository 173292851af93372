"""Env specs: what a run must know about its environment before it starts, such as its agents and their spaces."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import gymnasium as gym
from gymnasium import Space

from marl_connectors.environments.adapters.batched import is_batched
from marl_connectors.environments.adapters.env_adapter import user_env
from marl_connectors.environments.adapters.gymnasium_vector import GymnasiumBatch
from marl_connectors.environments.adapters.single_agent import SingleAgentEnv
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.environments.registry.factory import EnvFactory, agent_ids, env_name
from marl_connectors.environments.registry.registry import is_importable
from marl_connectors.environments.registry.wrapper_names import EnvWrapper
from marl_connectors.environments.rules.checks import ADVICE_ON_OLD_GYM, id_violation, not_a_space, raise_first
from marl_connectors.environments.rules.env_failures import Watched, close_env, errors_named
from marl_connectors.environments.rules.violations import violation
from marl_connectors.environments.vector.kinds import vector_env_of
from marl_connectors.environments.vector.smoke_test import NUM_ENVS, SmokeTest
from marl_connectors.errors import ConfigError, EnvError, describe_error, did_you_mean
from marl_connectors.flat_action_masks import ACTION_MASK
from marl_connectors.seeding import stream
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID

_WITHOUT_STATE = "Otherwise use critic_obs='joint_observations' (MAPPO) or mixer_state='joint_observations' (QMIX)."


class EnvDescription(Protocol):
    """The properties of an environment that pipelines and action masks need.

    An EnvSpec has them, and so has the description of the environment that a policy reads from a checkpoint.

    Attributes:
        single_agent: Whether there is a single agent without an id.
        agent_ids: The ids of all agents.
    """

    single_agent: bool
    agent_ids: list[AgentID]

    @property
    def user_env(self) -> Any:
        """The environment that the user's builder functions get."""
        ...

    @property
    def info_masks(self) -> Mapping[AgentID, Any] | None:
        """Maps agents to the first mask in their infos in the smoke test; None if there was no smoke test."""
        ...

    def agent_spaces(self, agent_id: AgentID) -> tuple[Space, Space]:
        """An agent's observation and action space."""
        ...

    def space_of_all(self, kind: int) -> Space:
        """The observation (0) or action (1) space of the single agent, or a Dict of the spaces of all agents."""
        ...


class EnvSpec:
    """A factory of environments, and the agents and spaces of a sample environment that it made.

    Attributes:
        name: The name of the environment in messages.
        single_agent: Whether it is a Gymnasium environment.
        factory: Makes the environments of a run.
        sample_env: The environment that was made to read agents and spaces from.
        agent_ids: The possible agents, or the agents of the first reset if the environment does not name them.
        info_masks: For each agent in whose infos ``check`` found an action mask, the first mask; None before ``check``.
    """

    def __init__(
        self,
        env: Any,
        env_config: Mapping[str, Any],
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        wrappers: Iterable[EnvWrapper] = (),
        vector_entry_point: bool = False,
        action_mask_key: str | None = ACTION_MASK,
        reset_options: Mapping[str, Any] | None = None,
        sample_env: Any = None,
    ):
        """Makes the sample environment and reads its agents and spaces.

        Args:
            env: The environment, as for ``make_env``.
            env_config: Its settings, as for ``make_env``.
            observation_space: A space or ``{agent_id: space}`` that replaces the environment's own; None to use its
                own.
            action_space: A space or ``{agent_id: space}`` that replaces the environment's own; None to use its own.
            wrappers: The wrappers, as for ``make_env``.
            vector_entry_point: Whether to make all sub-environments at once, as for ``make_env``.
            action_mask_key: The key of observations or infos under which action masks are. None if masks are ignored;
                the smoke test still obeys masks under ``"action_mask"``.
            reset_options: The ``options`` that the environment gets with every reset.
            sample_env: What such a factory has made already; None to make the sample environment now.

        Raises:
            EnvError: If the environment cannot be made, or is of a kind that is not supported.
            ConfigError: If the class or function that makes it does not accept the settings, if its resets do not
                accept options, or if spaces are given for agents that it does not have.
        """
        self._step_times: list[float] = []
        self._reset_s = 0.0
        self.name = env_name(env)
        options = None if reset_options is None else dict(reset_options)
        self.factory = EnvFactory(env, dict(env_config), tuple(wrappers), vector_entry_point, action_mask_key, options)
        self._given = (observation_space, action_space)
        self.info_masks: dict[AgentID, Any] | None = None
        with Watched(lambda: f"{self.name}: making it"):
            self.sample_env = self.factory() if sample_env is None else sample_env
        self.single_agent = isinstance(self.sample_env, (SingleAgentEnv, GymnasiumBatch))
        self.agent_ids = agent_ids(self.sample_env, self.name, options)
        self._check_given()
        self._spaces = {agent_id: self._ask(agent_id) for agent_id in self.agent_ids}
        if len(self._spaces) < len(self.agent_ids):
            twice = violation("agents-twice", f"its agents are {self.agent_ids}, some of which are equal")
            raise_first(self.name, [twice])
        self.factory.agent_spaces, self.factory.is_batched = self._spaces, self.is_batched

    @property
    def is_batched(self) -> bool:
        """Whether it is a natively batched environment."""
        return is_batched(self.sample_env)

    @property
    def is_importable(self) -> bool:
        """Whether the environment was given by a name that another process can look up."""
        return is_importable(self.factory.env)

    @property
    def takes_turns(self) -> bool:
        """Whether the environment is turn-based: its agents act one after another."""
        return isinstance(self.sample_env, TurnBasedEnv)

    @property
    def agents_per_step(self) -> int:
        """The number of agents that act in an env step if no agent is absent; 1 in turn-based environments."""
        return 1 if self.takes_turns else len(self.agent_ids)

    @property
    def user_env(self) -> Any:
        """The sample environment without the library's adapter, as a user's functions get it."""
        return user_env(self.sample_env)

    @property
    def state_space(self) -> Space:
        """The space of the environment's ``state()``.

        Raises:
            ConfigError: If it has none.
        """
        if self.is_batched or self.single_agent:
            what = "is natively batched" if self.is_batched else "has a single agent"
            raise ConfigError(
                f"{self.name}: the environment's state() is to be used, which PettingZoo environments have, but this "
                f"one {what}. {_WITHOUT_STATE}"
            )
        env = self.sample_env
        with errors_named(f"{self.name}: state_space"):
            space = getattr(env, "state_space", None)
        if not isinstance(space, Space) or not callable(getattr(env, "state", None)):
            found = "no state_space" if space is None else f"state_space={space!r}"
            raise ConfigError(
                f"{self.name}: the environment's state() is to be used, but it has {found}. Let the environment have "
                f"state() and state_space, as PettingZoo's ParallelEnv and AECEnv describe them. {_WITHOUT_STATE}"
            )
        return space

    def agent_spaces(self, agent_id: AgentID) -> tuple[Space, Space]:
        """Returns an agent's observation and action space.

        Raises:
            EnvError: If the environment has no such space, or the method that returns it raises.
        """
        known = self._spaces.get(agent_id)
        return known if known is not None else self._ask(agent_id)

    def _check_given(self) -> None:
        """Checks that spaces are given for agents that exist, if the environment names all of its agents.

        Raises:
            ConfigError: If they are not.
        """
        if not self.single_agent and not getattr(self.sample_env, "possible_agents", None):
            return  # others than those of the first reset may come later
        for given, kind in zip(self._given, ("observation_space", "action_space"), strict=True):
            for agent_id in given if isinstance(given, Mapping) else ():
                if agent_id not in self.agent_ids:
                    raise ConfigError(
                        f"{kind}: a space is given for agent {agent_id!r}, which {self.name} does not have. "
                        f"{did_you_mean(agent_id, self.agent_ids)}"
                    )

    def _ask(self, agent_id: AgentID) -> tuple[Space, Space]:
        raise_first(self.name, [id_violation(agent_id)])
        found = []
        for given, kind in zip(self._given, ("observation_space", "action_space"), strict=True):
            if isinstance(given, Mapping) and agent_id in given:
                given = given[agent_id]
            if given is None or isinstance(given, Mapping):
                try:
                    given = getattr(self.sample_env, kind)(agent_id)
                except Exception as error:
                    raise EnvError(
                        f"{self.name}: {kind}({agent_id!r}) raised {describe_error(error)}. Every agent that "
                        f"can appear needs one."
                    ) from error
            if found_wrong := not_a_space(kind, agent_id, given, self._advice_on(given)):
                raise EnvError(f"{self.name}: {found_wrong}")
            found.append(given)
        return found[0], found[1]

    def _advice_on(self, given: Any) -> str:
        """Returns advice about an object that should be a space, if it is known from another API; else ``""``."""
        if type(given).__module__.partition(".")[0] == "gym":
            return f"It is a space of the old package gym. {ADVICE_ON_OLD_GYM}"
        return self._hint_at_several_agents()

    def space_of_all(self, kind: int) -> Space:
        """Returns the observation (``kind=0``) or action (1) space: the single agent's, or a Dict of all agents'."""
        if self.single_agent:
            return self._spaces[DEFAULT_AGENT_ID][kind]
        return gym.spaces.Dict({agent_id: pair[kind] for agent_id, pair in self._spaces.items()})  # type: ignore[arg-type]

    def check(self, seed: int) -> None:
        """Runs a smoke test: a few steps with random actions.

        Args:
            seed: The run's seed.

        Raises:
            EnvError: For the first contract violation. The message names the agent and the step.
        """
        rng = stream(seed, "trial run")
        test = SmokeTest(self.name, self.agent_spaces, rng, mask_key=self.factory.action_mask_key)
        self.info_masks = test.info_masks
        env = self.factory(NUM_ENVS) if self.is_batched else self.sample_env
        try:
            with Watched(lambda: f"{self.name}: the smoke test with random actions"):
                test.play(vector_env_of([env], seed=0, make_env=self.factory))
        except EnvError as error:
            raise self._hinted(error) from error.__cause__
        finally:
            if self.is_batched:
                close_env(env, self.name)
        self._step_times, self._reset_s = test.step_times, test.reset_s

    def _hinted(self, error: EnvError) -> EnvError:
        hint = self._hint_at_several_agents()
        return EnvError(f"{error} {hint}") if hint else error

    @property
    def step_s(self) -> float | None:
        """The median duration of a step in ``check``, in seconds.

        None before ``check``, and for natively batched environments.
        """
        return statistics.median(self._step_times) if self._step_times else None

    @property
    def slowest_s(self) -> float:
        """The duration of the slowest step or reset in ``check``, in seconds."""
        return max([self._reset_s, *self._step_times])

    def _hint_at_several_agents(self) -> str:
        """Returns a hint about a Gymnasium environment that seems to hold several agents; ``""`` for others."""
        if not self.single_agent:
            return ""
        env = self.user_env
        numbers = {_number_of_parts(getattr(env, kind, None)) for kind in ("observation_space", "action_space")}
        if len(numbers) != 1 or max(numbers) < 2:
            return ""
        number = numbers.pop()
        return (
            f"With a list or Tuple of {number} observation spaces and as many action spaces it looks like {number} "
            f"agents in one Gymnasium environment: make it a PettingZoo ParallelEnv. docs/errors.md has a wrapper."
        )


def _number_of_parts(space: Any) -> int:
    parts = space.spaces if isinstance(space, gym.spaces.Tuple) else space
    return len(parts) if isinstance(parts, (list, tuple)) else 0
