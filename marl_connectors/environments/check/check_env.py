"""``check_env``: plays an environment and reports contract violations and other problems for training."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.environments.adapters.batched import BatchedParallelEnv, is_batched
from marl_connectors.environments.adapters.multi_agent_env import MultiAgentEnvAdapter, is_multi_agent_env
from marl_connectors.environments.adapters.single_agent import SingleAgentEnv
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.environments.check.calls import (
    CallFailed,
    Calls,
    OutOfTime,
    collected_warnings,
    global_random_state,
)
from marl_connectors.environments.check.checked_episodes import (
    CheckedAECEnv,
    CheckedEnv,
    CheckedMultiAgentEnv,
    CheckedParallelEnv,
    GivenData,
    Outcome,
    Played,
    Session,
)
from marl_connectors.environments.check.conformance import run_conformance_tests
from marl_connectors.environments.check.report import EnvMeasurements, EnvReport, Findings
from marl_connectors.environments.check.rules import violation
from marl_connectors.environments.check.seeds import SeedChecks, is_nondeterministic, play_and_watch
from marl_connectors.environments.check.spaces import SpaceBook
from marl_connectors.environments.check.twins import Twins
from marl_connectors.environments.registry.factory import env_name, make_env
from marl_connectors.environments.registry.wrapper_names import EnvWrapper, checked_wrappers
from marl_connectors.environments.rules.checks import id_violation, state_violation
from marl_connectors.environments.vector.kinds import vector_env_of
from marl_connectors.environments.vector.smoke_test import NUM_ENVS, SmokeTest
from marl_connectors.errors import ConfigError, EnvError, describe_error
from marl_connectors.flat_action_masks import ACTION_MASK, flat_masks, is_binary, wanted_mask
from marl_connectors.seeding import stream
from marl_connectors.spaces import describe, values_per_choice, zeros
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID


def check_env(
    env: Any,
    *,
    env_config: Mapping[str, Any] | None = None,
    episodes: int = 3,
    seed: int = 0,
    max_steps: int = 1000,
    max_seconds: float = 60.0,
    call_timeout: float = 30.0,
    conformance: bool = True,
    action_mask_key: str | None = "auto",
    wrappers: Iterable[EnvWrapper] = (),
) -> EnvReport:
    """Plays an environment with random actions, and reports everything that is wrong or surprising about it.

    Whole episodes are played, and observations, rewards, flags, masks, and agents that join or leave are checked. Then
    episodes are played again with the same seed, with other seeds and without a seed. PettingZoo's and Gymnasium's own
    tests are run too. Their failures are only warnings, because everything that training depends on is checked here as
    well. The global random state is restored. Warnings of the environment become notes.

    Args:
        env: A name, a class or a function, as for ``make_env``, or a PettingZoo or Gymnasium environment. An
            environment that is passed as an object is played, but neither closed nor compared with other instances. A
            natively batched environment is played with one sub-environment, like a PettingZoo environment, and then
            with three.
        env_config: The settings of the environment.
        episodes: The number of episodes to play, without those that are replayed.
        seed: The seed of the environment and of the actions.
        max_steps: The number of env steps after which an episode is stopped. In turn-based environments, the number of
            turns of each agent.
        max_seconds: Seconds after which the remaining checks are skipped, with a note.
        call_timeout: Seconds after which a single call counts as hanging. This needs the main thread of Linux or
            macOS; elsewhere calls have no limit.
        conformance: Whether to run PettingZoo's and Gymnasium's tests.
        action_mask_key: The key of observations or infos under which action masks are, as in the setting of that name;
            ``"auto"`` for ``"action_mask"``, None to ignore masks.
        wrappers: The wrappers of the environment, as for ``make_env``.

    Returns:
        A report with all findings and some measurements. ``print`` shows it as a table.

    Raises:
        EnvError: If there is no such environment, or it cannot be made.
        ConfigError: If an argument is invalid.

    >>> report = check_env("CartPole-v1", episodes=1)
    >>> report.ok, report.kind
    (True, 'single agent')
    """
    for name, value in {"episodes": episodes, "max_steps": max_steps}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"check_env: {name} must be a whole number of at least 1, but is {value!r}.")
    for name, value in {"max_seconds": max_seconds, "call_timeout": call_timeout}.items():
        if not value > 0:
            raise ConfigError(f"check_env: {name} must be a number of seconds above 0, but is {value!r}.")
    findings = Findings()
    with collected_warnings(findings), global_random_state(0):
        calls = Calls(findings, call_timeout=call_timeout, max_seconds=max_seconds)
        check = _Check(env, env_config, checked_wrappers(wrappers), findings, calls, action_mask_key)
        with contextlib.suppress(OutOfTime):
            check.run(episodes, seed, max_steps, conformance)
        check.close()
    return check.report()


_BATCH_STEPS = 100


class _Check:
    """Runs the checks of one environment in their order."""

    def __init__(
        self,
        env: Any,
        env_config: Mapping[str, Any] | None,
        wrappers: list[EnvWrapper],
        findings: Findings,
        calls: Calls,
        action_mask_key: str | None,
    ):
        self._given = env
        self._settings = {"env_config": env_config, "wrappers": wrappers}
        self.can_make = not (isinstance(env, (ParallelEnv, AECEnv, gym.Env)) or is_multi_agent_env(env))
        if is_batched(env):
            raise ConfigError(
                "check_env: a natively batched environment is checked with one sub-environment and with several. Pass "
                "its class, or the function that makes it with num_envs."
            )
        if not self.can_make and any(self._settings.values()):
            raise ConfigError(
                "check_env: env_config and wrappers are for making an environment, but an environment was passed that "
                "exists already. Pass its class, or the function that makes it."
            )
        self.findings = findings
        self.env = env if isinstance(env, gym.vector.VectorEnv) else self._make()
        if isinstance(self.env, gym.vector.VectorEnv):
            raise ConfigError(
                f"check_env: it checks single environments, but {type(self.env).__name__} is a Gymnasium VectorEnv. "
                f"Pass the single environment. The smoke test of a run checks the VectorEnv's autoreset mode."
            )
        self.single_agent = isinstance(self.env, gym.Env)
        self._adapted = SingleAgentEnv(self.env) if self.single_agent else self.env
        book = SpaceBook(lambda kind, agent: getattr(self._adapted, kind)(agent), findings, calls)
        self._by_convention = action_mask_key == "auto"
        key = ACTION_MASK if self._by_convention else action_mask_key
        self.session = Session(self._name(), findings, calls, book, key, GivenData(findings))
        self.checked_env = self._checked_env(self.env)
        self._begun = 0
        self._measurements: EnvMeasurements | None = None

    def _name(self) -> str:
        if self.can_make:
            return env_name(self._given)
        return str(self._given) if not self.single_agent else type(self._given.unwrapped).__name__

    def _make(self, render_mode: str | None = None) -> Any:
        env: Any = make_env(self._given, render_mode=render_mode, **self._settings) if self.can_make else self._given
        if is_multi_agent_env(env):
            return MultiAgentEnvAdapter(env)
        return BatchedParallelEnv(env, self._name()) if is_batched(env) else env

    def _checked_env(self, env: Any) -> CheckedEnv:
        if isinstance(env, AECEnv):
            return CheckedAECEnv(env, self.session)
        if isinstance(env, MultiAgentEnvAdapter):
            return CheckedMultiAgentEnv(env, self.session)
        return CheckedParallelEnv(SingleAgentEnv(env) if isinstance(env, gym.Env) else env, self.session)

    @contextlib.contextmanager
    def _part(self, what: str) -> Iterator[None]:
        """Runs a part of the checks. Errors in it do not stop the other parts."""
        self.session.calls.check_time()
        try:
            yield
        except CallFailed:
            pass  # a finding says so
        except OutOfTime:
            raise
        except Exception as error:
            text = f"Data of the environment led to {describe_error(error)} while {what} was checked"
            self.findings.note("unexpected", text)
        finally:
            self.findings.episode = None

    def run(self, episodes: int, seed: int, max_steps: int, conformance: bool) -> None:
        """Runs all checks; the arguments are those of ``check_env``."""
        with self._part("metadata"):
            check_metadata(self.env, self.session)
        with self._part("spaces"):
            self._check_spaces()
        if self.checked_env.takes_turns:
            max_steps *= max(len(self._possible()), 1)
        played = self._play(episodes, seed, max_steps)
        self._measurements = self.session.totals.measurements(self._begun)
        check_ends(played, max_steps, self.session)
        check_last_observations(played, self.session)
        if played:
            check_agents_seen(self.env, self._possible(), self.session)
            with self._part("seeds"):
                fresh = (lambda: self._checked_env(self._make())) if self.can_make else None
                seeds = SeedChecks(self.findings, fresh, seed=seed, nondeterministic=is_nondeterministic(self.env))
                seeds.run(self.checked_env, played[0], stream(seed, "check", "seeds"), max_steps)
            with self._part("state()"):
                self.session.calls("reset()", lambda: self.env.reset(seed=seed))
                check_state(self.env, self.session)
            with self._part("copies"):
                self._check_sub_envs(seed)
            with self._part("turns"):
                self._play_by_turns(seed, max_steps)
        with self._part("rendering"):
            self._check_rendering(seed)
        if conformance and played and not isinstance(self.env, MultiAgentEnvAdapter):
            with self._part("conformance"):
                run_conformance_tests(self._make, self.session, can_make=self.can_make, seed=seed)

    def _possible(self) -> list[Any]:
        return [DEFAULT_AGENT_ID] if self.single_agent else list(getattr(self.env, "possible_agents", None) or [])

    def _check_spaces(self) -> None:
        for agent in self._possible():
            seen = self.session.spaces.observation_space(agent)
            actions = self.session.spaces.action_space(agent)
            if isinstance(seen, spaces.Dict) and self.session.mask_key in seen.spaces and actions is not None:
                self._check_mask_space(agent, seen.spaces[self.session.mask_key], actions)

    def _check_mask_space(self, agent: Any, own: spaces.Space, actions: spaces.Space) -> None:
        """Checks that the space of an agent's mask fits its action space, as training requires."""
        if values_per_choice(actions) is None:
            why = f"are {describe(actions)}, of which none can be masked"
        elif flat_masks(actions, zeros(own, 1)) is None:
            why = f"need a mask of {wanted_mask(actions)}"
        elif self._by_convention and not is_binary(own, actions):
            why = "need a mask of 0 and 1"
        else:
            return
        what = f"the space of {self.session.mask_key!r} in the observation is {own}, but the actions {why}"
        self.findings.note("mask-space", what, agent)

    def _play(self, episodes: int, seed: int, max_steps: int) -> list[Played]:
        played: list[Played] = []
        for number in range(episodes):
            self.findings.episode = number
            self._begun += 1
            rng = stream(seed, "check", number)
            with self._part("an episode"), global_random_state(0):
                episode = play_and_watch(self.checked_env, seed + number, rng, max_steps, self.findings)
                played.append(episode)
                if episode.is_over and number == episodes - 1 and isinstance(self.checked_env, CheckedParallelEnv):
                    self.checked_env.step_after_the_end()
            if len(played) <= number:
                break
        return played

    def _agent_spaces(self, agent: Any) -> Any:
        book = self.session.spaces
        return book.observation_space(agent), book.action_space(agent)

    def _play_by_turns(self, seed: int, max_steps: int) -> None:
        """Plays an AEC environment in the way in which a runner plays it."""
        if not isinstance(self.env, AECEnv) or self.findings.has_errors:
            return
        rng = stream(seed, "check", "turns")
        test = SmokeTest(self._name(), self._agent_spaces, rng, mask_key=self.session.mask_key, num_steps=max_steps)
        env, calls = vector_env_of([TurnBasedEnv(self.env)], seed=seed), self.session.calls
        calls("A run's way to take turns", lambda: test.play(env), at_least=calls.time_left)

    def _check_sub_envs(self, seed: int) -> None:
        """Plays several sub-environments of a natively batched environment together."""
        if not isinstance(self.env, BatchedParallelEnv) or self.findings.has_errors:
            return
        env: Any = make_env(self._given, num_envs=NUM_ENVS, **self._settings)
        rng = stream(seed, "check", "copies")
        try:
            key = self.session.mask_key
            test = Twins(self._name(), self._agent_spaces, rng, mask_key=key, num_steps=_BATCH_STEPS)
            test.play(vector_env_of([env], seed=seed))
        except EnvError as error:
            advice = "A runner steps all sub-environments together, so correct this before training."
            self.findings.note("copies", str(error).rstrip("."), advice=advice)
        finally:
            env.close()

    def _check_rendering(self, seed: int) -> None:
        modes = (getattr(self.env, "metadata", None) or {}).get("render_modes") or []
        for mode in ("rgb_array", "ansi"):
            if self.can_make and mode in modes:
                env = self.session.calls(
                    f"making it with render_mode={mode!r}",
                    lambda mode=mode: self._make(mode),
                    kind="render-raises",
                )
                if getattr(env, "render_mode", None) == mode:
                    check_rendering(env, mode, self.session, seed)
                env.close()
            elif getattr(self.env, "render_mode", None) == mode and not self.can_make:
                check_rendering(self.env, mode, self.session, seed)

    def close(self) -> None:
        """Closes the environment if it was made here. An error of ``close()`` becomes a finding."""
        if self.can_make:
            with contextlib.suppress(CallFailed):
                self.session.calls("close()", self.env.close, kind="close-raises")

    def report(self) -> EnvReport:
        """Returns a report of everything that was found so far."""
        agents = self._possible() or list(self.session.seen)
        kind = "single agent" if self.single_agent else "turn-based" if self.checked_env.takes_turns else "parallel"
        measurements = self._measurements or self.session.totals.measurements(self._begun)
        masks = tuple(place for place in ("observations", "infos") if place in self.session.masks_in)
        return EnvReport(self.session.name, kind, tuple(agents), tuple(self.findings.in_order()), measurements, masks)


def check_metadata(env: Any, session: Session) -> None:
    """Checks that the environment names its possible agents and its render modes."""
    note = session.findings.note
    if not isinstance(env, gym.Env) and not getattr(env, "possible_agents", None):
        note("no-possible-agents", "There is no list possible_agents")
    metadata = getattr(env, "metadata", None)
    if not isinstance(metadata, dict):
        note("no-metadata", "There is no dict called metadata")
    elif "render_modes" not in metadata:
        note("no-render-modes", "the metadata have no render_modes")


def check_state(env: Any, session: Session) -> None:
    """Checks that ``state()`` works right after a reset."""
    if isinstance(env, (gym.Env, MultiAgentEnvAdapter)):
        return
    state = session.calls("state()", lambda: _state(env), kind="state-raises", step=0)
    if state is NotImplemented:
        session.findings.note("no-state", "There is no state()")
        return
    space = getattr(env, "state_space", None)
    if not isinstance(space, gym.Space):
        return
    try:
        found = state_violation(space, state)
    except Exception as error:
        found = violation("state-outside-space", f"the state does not fit state_space: {describe_error(error)}")
    if found:
        session.findings.add(found, 0)


def _state(env: Any) -> Any:
    try:
        return env.state()
    except NotImplementedError:
        return NotImplemented


def check_rendering(env: Any, mode: str, session: Session, seed: int) -> None:
    """Checks that ``render()`` returns the type of its mode, in an environment that was made with that mode."""
    how = f"with render_mode={mode!r}"
    try:
        session.calls(f"reset() {how}", lambda: env.reset(seed=seed), kind="render-raises")
        frame = session.calls(f"render() {how}", env.render, kind="render-raises")
    except CallFailed:
        return
    if mode == "ansi":
        wrong = "" if isinstance(frame, str) or hasattr(frame, "getvalue") else f"a {type(frame).__name__}, not text"
    elif not isinstance(frame, np.ndarray):
        wrong = f"a {type(frame).__name__}, not an array"
    else:
        fine = frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8
        wrong = "" if fine else f"an array of shape {frame.shape} {frame.dtype}, not [height, width, 3] uint8"
    if wrong:
        session.findings.note("render", f"render() {how} returns {wrong}")


def check_ends(episodes: Sequence[Played], max_steps: int, session: Session) -> None:
    """Checks how the played episodes ended."""
    over = [episode for episode in episodes if episode.is_over]
    if episodes and not over and any(len(episode.steps) >= max_steps for episode in episodes):
        what = f"No episode ended within {max_steps:,} steps, so ends of episodes could not be checked"
        session.findings.note("no-end", what)
    lengths = {len(episode.steps) for episode in over}
    if len(over) == len(episodes) >= 3 and len(lengths) == 1 and lengths != {1}:
        if any(episode.flags != {"terminated"} for episode in over):
            return
        what = f"All {len(over)} episodes end with a termination at step {max(lengths)}"
        session.findings.note("ends-always-terminated", what)


def check_last_observations(episodes: Sequence[Played], session: Session) -> None:
    """Checks that truncated episodes do not end with the next one's first observation.

    They do if ``step`` resets the environment by itself.
    """
    pairs = [(one, after) for one, after in itertools.pairwise(episodes) if one.flags == {"truncated"}]
    if not pairs:
        return
    for one, after in pairs:
        first = _observations(after.first)
        last = _observations(one.steps[-1][1])
        before = _observations(one.steps[-2][1] if len(one.steps) > 1 else one.first)
        if not last or any(first.get(agent) != seen or before.get(agent) == seen for agent, seen in last.items()):
            return
    what = "the last observation of every truncated episode is the first one of the next"
    session.findings.note("last-observation-is-first", what)


def _observations(outcome: Outcome) -> dict[AgentID, bytes]:
    return {agent: token for (what, agent), token in outcome.tokens.items() if what == "observation"}


def check_agents_seen(env: Any, agents: Sequence[AgentID], session: Session) -> None:
    """Checks that all possible agents took part, and that their ids can be saved."""
    for agent in dict.fromkeys([*agents, *session.seen]):
        if (found := id_violation(agent)) is not None:
            session.findings.add(found)
    missing = [agent for agent in agents if agent not in session.seen]
    if missing and not isinstance(env, gym.Env):
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        session.findings.note("agents-never-seen", f"Of possible_agents, {shown} never took part")
