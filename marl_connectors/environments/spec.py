"""What a run needs to know of its environment before it starts: its agents, their spaces, and that it works."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium import Space

from marl_connectors.connectors.action_masks import ACTION_MASK
from marl_connectors.environments.adapters.batched import is_batched
from marl_connectors.environments.adapters.gymnasium_vector import GymnasiumBatch
from marl_connectors.environments.adapters.single_agent import SingleAgentEnv
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.environments.making.factory import EnvFactory, agent_ids, env_name
from marl_connectors.environments.making.registry import is_importable
from marl_connectors.environments.making.wrappers import EnvWrapper
from marl_connectors.environments.validation.checks import ADVICE_ON_OLD_GYM
from marl_connectors.environments.validation.smoke_test import NUM_ENVS, SmokeTest
from marl_connectors.environments.validation.spaces import not_a_space
from marl_connectors.environments.vector.batched import gymnasium_vector_env
from marl_connectors.environments.vector.failures import ENV_ERRORS, Watched, close_env, errors_named
from marl_connectors.errors import ConfigError, EnvError, MarlConnectorsError, describe_error
from marl_connectors.seeding import stream
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID


class EnvSpec:
    """An environment's maker, and what one copy of it says about its agents.

    Attributes:
        name: For messages.
        single_agent: Whether it is a Gymnasium environment.
        factory: Makes it.
        agent_ids: The possible agents, or those of the first reset where the environment does not say.
        info_masks: Of agents in whose infos ``check`` saw an action mask, the first one; None before.
    """

    def __init__(
        self,
        env: Any,
        env_config: Mapping[str, Any],
        *,
        observation_space: Any = None,
        action_space: Any = None,
        wrappers: Iterable[EnvWrapper] = (),
        vector_entry_point: bool = False,
        action_mask_key: str | None = ACTION_MASK,
        reset_options: Mapping[str, Any] | None = None,
    ):
        """Makes one copy to ask.

        Args:
            env: What ``make_env`` takes.
            env_config: Likewise.
            observation_space: Instead of the environment's own: a space, or ``{agent_id: space}``.
            action_space: Likewise.
            wrappers: As for ``make_env``.
            vector_entry_point: As for ``make_env``.
            action_mask_key: Under which key of observations or infos action masks are. None if they are ignored: the
                smoke test obeys those under ``"action_mask"`` all the same.
            reset_options: What the environment gets as ``options`` with every reset.

        Raises:
            EnvError: If it cannot be made, or is of a kind that is not supported.
            ConfigError: If its maker does not accept the settings, or its resets take no options.
        """
        self._step_times: list[float] = []
        self._reset_s = 0.0
        self.name = env_name(env)
        options = None if reset_options is None else dict(reset_options)
        self.factory = EnvFactory(env, dict(env_config), tuple(wrappers), vector_entry_point, action_mask_key, options)
        self._given = (observation_space, action_space)
        self.info_masks: dict[AgentID, Any] | None = None
        with Watched(lambda: f"{self.name}: making it"):
            self.sample_env = self.factory()
        self.single_agent = isinstance(self.sample_env, (SingleAgentEnv, GymnasiumBatch))
        self.agent_ids = agent_ids(self.sample_env, self.name)
        self._spaces = {agent_id: self._ask(agent_id) for agent_id in self.agent_ids}
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
        """Whether the agents act one after another."""
        return isinstance(self.sample_env, TurnBasedEnv)

    @property
    def agents_per_step(self) -> int:
        """How many agents act in an env step, if all are there: one where they take turns."""
        return 1 if self.takes_turns else len(self.agent_ids)

    @property
    def user_env(self) -> Any:
        """The copy to ask, as the user's own functions get it: without our wrapper."""
        is_wrapped = isinstance(self.sample_env, (SingleAgentEnv, GymnasiumBatch, TurnBasedEnv))
        return self.sample_env.env if is_wrapped else self.sample_env

    @property
    def state_space(self) -> Space:
        """The space of the environment's ``state()``.

        Raises:
            ConfigError: If it has none.
        """
        if self.is_batched or self.single_agent:
            what = "is natively batched" if self.is_batched else "has a single agent"
            raise ConfigError(
                f"{self.name}: a critic is to see the environment's state(), which PettingZoo environments have, but "
                f"this one {what}. Use critic_obs='joint_observations'."
            )
        return state_space_of(self.sample_env, self.name)

    def agent_spaces(self, agent_id: AgentID) -> tuple[Space, Space]:
        """An agent's observation and action space."""
        known = self._spaces.get(agent_id)
        return known if known is not None else self._ask(agent_id)

    def _ask(self, agent_id: AgentID) -> tuple[Space, Space]:
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
        """What to do about what stands where a space belongs, if it is known from other APIs."""
        if type(given).__module__.partition(".")[0] == "gym":
            return f"It is a space of the old package gym. {ADVICE_ON_OLD_GYM}"
        return self._hint_at_several_agents()

    def space_of_all(self, kind: int) -> Space:
        """The observation (0) or action (1) space: of the one agent, or a Dict of all agents'."""
        if self.single_agent:
            return self._spaces[DEFAULT_AGENT_ID][kind]
        return gym.spaces.Dict({agent_id: pair[kind] for agent_id, pair in self._spaces.items()})  # type: ignore[arg-type]

    def check(self, seed: int) -> None:
        """A smoke test: a few steps with random actions.

        Raises:
            EnvError: For the first violation of what environments may give; names agent and step.
        """
        rng = stream(seed, "trial run")
        test = SmokeTest(self.name, self.agent_spaces, rng, mask_key=self.factory.action_mask_key)
        self.info_masks = test.info_masks
        if self.is_batched:
            self._check_batched(test)
            return
        try:
            with Watched(lambda: f"{self.name}: the smoke test with random actions"):
                test.play(self.sample_env)
        except MarlConnectorsError as error:
            raise self._hinted(error) from error.__cause__
        except ENV_ERRORS as error:
            said = f"{self.name}: a smoke test with random actions raised {describe_error(error)}."
            raise self._hinted(EnvError(said)) from error
        self._step_times, self._reset_s = test.step_times, test.reset_s

    def _hinted(self, error: MarlConnectorsError) -> MarlConnectorsError:
        hint = self._hint_at_several_agents()
        return EnvError(f"{error} {hint}") if hint else error

    def _check_batched(self, test: SmokeTest) -> None:
        env = self.factory(NUM_ENVS)
        try:
            if isinstance(env, GymnasiumBatch):
                test.play_vector(gymnasium_vector_env(env, seed=0))
            else:
                test.play_batched(env)
        finally:
            close_env(env, self.name)

    @property
    def step_s(self) -> float | None:
        """What a step took in ``check``, in seconds: the median. None before, and for natively batched environments."""
        return statistics.median(self._step_times) if self._step_times else None

    @property
    def slowest_s(self) -> float:
        """What the slowest call took in ``check``, in seconds, the reset included."""
        return max([self._reset_s, *self._step_times])

    def _hint_at_several_agents(self) -> str:
        """A sentence about a Gymnasium environment that seems to hold several agents; ``""`` if it does not."""
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


def state_space_of(env: Any, name: str) -> Space:
    """The space of the states of a PettingZoo environment.

    Raises:
        ConfigError: If it has none.
    """
    with errors_named(f"{name}: state_space"):
        space = getattr(env, "state_space", None)
    if not isinstance(space, Space) or not callable(getattr(env, "state", None)):
        found = "no state_space" if space is None else f"state_space={space!r}"
        raise ConfigError(
            f"{name}: a critic is to see the environment's state(), but it has {found}. Let the environment have "
            f"state() and state_space, as PettingZoo's ParallelEnv and AECEnv describe them, or use "
            f"critic_obs='joint_observations'."
        )
    return space
