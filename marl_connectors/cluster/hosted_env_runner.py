"""HostedEnvRunner: an EnvRunner in a process of its own.

What a call returns depends on nothing but its arguments and the state of the EnvRunner.

The group of env runners in the user's process sends ``SampleRequest``s and gets ``SampleReply``s.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from marl_connectors.cluster.host import Stored
from marl_connectors.cluster.pickling import pickled_in_actor, pickled_result, unpickled
from marl_connectors.env_runners.done_episodes import SamplePlace
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.env_runners.run_metrics import EpisodeSummary, SamplingTimes
from marl_connectors.env_runners.sample import Fragment
from marl_connectors.errors import CheckpointError, EnvError, EpisodeError
from marl_connectors.trees import tree_map

_LOG = logging.getLogger(__name__)


class EnvRunnerBlueprint(Protocol):
    """Makes env runners in any process, and lets them follow changes of the run. It can be pickled.

    Attributes:
        lookback: As for EnvRunner.
        rollout_fragment_length: As for EnvRunner.
    """

    lookback: int
    rollout_fragment_length: int

    def build(self, first_env_number: int, num_envs: int) -> EnvRunner:
        """Makes an env runner with some of the run's sub-environments, which leaves merging states to its group."""
        ...

    def build_for_evaluation(self, request: PlayRequest) -> EnvRunner:
        """Makes an env runner that plays the episodes of an evaluation."""
        ...

    def adapt(self, runner: EnvRunner) -> None:
        """Gives an env runner the modules and the mapping function that the run has now."""
        ...

    def follow(self, former: Any) -> None:
        """Takes over what a former blueprint of the run has made in this process for all env runners."""
        ...


@dataclass(frozen=True)
class SavedState:
    """The state of an env runner, from which a replacement continues.

    Attributes:
        state: ``EnvRunner.get_state()``, pickled. It lacks the ongoing episodes if they cannot be saved.
        why_not_saved: Why they cannot be saved, although they could be replayed; ``""`` if they are in the state.
        why_not_kept: ``EnvRunner.why_episodes_are_not_kept()``.
        num_env_steps: The number of steps of its sub-environments so far.
        num_agent_steps: The number of actions of its agents so far.
    """

    state: bytes
    why_not_saved: str
    why_not_kept: str
    num_env_steps: int
    num_agent_steps: int


@dataclass(frozen=True)
class SampleRequest:
    """The arguments of one sample.

    Attributes:
        weights: The parameters to act with: ``MultiRLModule.get_state()`` in arrays.
        blueprint: The run's blueprint, pickled.
        connector_states: The states of the connector pieces to begin with, for ``EnvRunner.set_connector_states``; None
            to keep them.
        num_timesteps: As for ``EnvRunner.sample``.
        num_episodes: As for ``EnvRunner.sample``.
        restarts_episodes: Whether to drop the ongoing episodes first.
        after_episodes: As ``after`` of ``EnvRunner.restart_episodes``.
        begins_iteration: Whether the metrics of the former iteration have been reported.
    """

    weights: Stored
    blueprint: Stored
    connector_states: Mapping[str, Any] | None = None
    num_timesteps: int | None = None
    num_episodes: int | None = None
    restarts_episodes: bool = False
    after_episodes: Sequence[int] = ()
    begins_iteration: bool = False


@dataclass(frozen=True)
class SampleReply:
    """What a sample has changed, without its episodes.

    Attributes:
        fragment: The places and the lengths of the episodes.
        uncredited: The uncredited reward of each episode.
        num_env_steps: The env steps of this sample.
        counts: ``EnvRunner.take_counts()``.
        finished: ``EnvRunner.take_finished()``.
        times: ``EnvRunner.take_times()``.
        metrics: The states of the loggers of ``env_to_module``, ``module_to_env`` and ``callbacks``.
        connector_states: The states of the connector pieces, with what they have learned in the sample; None if they
            have no state.
        saved: The state after the sample.
        seconds: The duration of the call.
    """

    fragment: Fragment
    uncredited: list[float]
    num_env_steps: int
    counts: dict[str, Any]
    finished: list[EpisodeSummary]
    times: SamplingTimes
    metrics: dict[str, Any]
    connector_states: dict[str, Any] | None
    saved: SavedState
    seconds: float


@dataclass(frozen=True)
class PlayRequest:
    """The arguments of an evaluation.

    Attributes:
        number: The number of the evaluation in the run.
        weights: As in ``SampleRequest``.
        blueprint: As in ``SampleRequest``.
        connector_states: The states of the connector pieces, for ``EnvRunner.set_connector_states``.
        settings: The settings of the evaluation's config that differ from those of training.
        seed: The seed of the episodes.
        first_env_number: The number of the first sub-environment.
        num_envs: The number of sub-environments.
        num_episodes: The number of episodes of these sub-environments.
        at_random: Whether actions are drawn at random.
        max_seconds: The time after which playing stops; None for no limit.
    """

    number: int
    weights: Stored
    blueprint: Stored
    connector_states: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int
    first_env_number: int
    num_envs: int
    num_episodes: int
    at_random: bool
    max_seconds: float | None


@dataclass(frozen=True)
class PlayReply:
    """What an evaluation of some sub-environments has found.

    Attributes:
        places: The sub-environment of each episode, and when it ended.
        finished: ``EnvRunner.take_finished()``.
        counts: ``EnvRunner.take_counts()``.
        metrics: As in ``SampleReply``.
    """

    places: list[SamplePlace]
    finished: list[EpisodeSummary]
    counts: dict[str, Any]
    metrics: dict[str, Any]


class RunnerProgress(NamedTuple):
    """How far an env runner is.

    Attributes:
        num_env_steps: The number of steps of its sub-environments so far.
        num_agent_steps: The number of actions of its agents so far.
        num_done: The number of finished episodes of the evaluation that it plays.
    """

    num_env_steps: int
    num_agent_steps: int
    num_done: int

    def __str__(self) -> str:
        return f"at its env step {self.num_env_steps}"


class HostedEnvRunner:
    """An env runner with some of the run's sub-environments. It is the object in a ``Host``."""

    def __init__(
        self,
        blueprint: Stored,
        first_env_number: int,
        num_envs: int,
        state: bytes | None,
    ):
        """Makes the env runner.

        Args:
            blueprint: The run's blueprint, pickled.
            first_env_number: The number of its first sub-environment.
            num_envs: The number of its sub-environments; 0 for a host that only plays evaluations.
            state: The pickled state to continue from; None to begin.
        """
        self._blueprint_version = blueprint.version
        self._blueprint: EnvRunnerBlueprint = unpickled(blueprint.fetched())
        self._weights_version = -1
        self._runner = self._blueprint.build(first_env_number, num_envs) if num_envs else None
        self._playing: EnvRunner | None = None
        self._num_done = 0
        self._ended = -1
        if self._runner is not None and state is not None:
            self._continue_from(unpickled(state), self._runner)

    def _continue_from(self, state: dict[str, Any], runner: EnvRunner) -> None:
        """Continues from a state, with new episodes if those in it cannot be replayed in this process."""
        try:
            runner.set_state(state)
        except (CheckpointError, EnvError):
            runner.set_state(state, new_episodes=True)
            _LOG.warning(
                "This env runner begins new episodes. Those before went differently, or raised an error, when they "
                "were replayed from their seeds and actions. So the run goes on, but not as it would have without "
                "the loss."
            )

    @property
    def progress(self) -> RunnerProgress | None:
        """How far the current call is."""
        runner = self._playing or self._runner
        return None if runner is None else RunnerProgress(runner.num_env_steps, runner.num_agent_steps, self._num_done)

    def end_playing(self, number: int) -> None:
        """Ends the evaluation with this number at its next step. It may be called while ``play`` runs, or before."""
        self._ended = number

    def sample(self, request: SampleRequest) -> tuple[SampleReply, bytes]:
        """Samples, and returns the pickled episodes as the payload."""
        began = time.perf_counter()
        runner = self._runner
        assert runner is not None
        self._follow(request.blueprint, runner)
        self._load(request.weights, runner)
        if request.connector_states is not None:
            runner.set_connector_states(request.connector_states)
        loggers = {**runner.metrics, "callbacks": runner.callback_metrics}
        if request.begins_iteration:
            for logger in loggers.values():
                logger.reduce()
        if request.restarts_episodes:
            runner.restart_episodes(request.after_episodes)
        env_steps = runner.num_env_steps
        episodes = runner.sample(num_timesteps=request.num_timesteps, num_episodes=request.num_episodes)
        payload, uncredited = pickled_in_actor(episodes), [episode.uncredited_reward for episode in episodes]
        counts, finished, times = runner.take_counts(), runner.take_finished(), runner.take_times()
        lengths = [episode.env_steps() for episode in episodes], [episode.agent_steps() for episode in episodes]
        reply = SampleReply(
            fragment=Fragment(list(runner.places), *lengths),
            uncredited=uncredited,
            num_env_steps=runner.num_env_steps - env_steps,
            counts=counts,
            finished=finished,
            times=times,
            metrics={name: logger.get_state() for name, logger in loggers.items()},
            connector_states=known_states(runner.get_connector_states()),
            saved=_saved(runner),
            seconds=time.perf_counter() - began,
        )
        return reply, payload

    def get_state(self, blueprint: Stored, restarts_episodes: bool) -> tuple[SavedState, None]:
        """Returns the state of the env runner, after changes of the run. The arguments are those of SampleRequest."""
        assert self._runner is not None
        self._follow(blueprint, self._runner)
        if restarts_episodes:
            self._runner.restart_episodes()
        return _saved(self._runner), None

    def episode_numbers(self) -> tuple[list[int], None]:
        """Returns the numbers of the newest episodes."""
        assert self._runner is not None
        return self._runner.episode_numbers(), None

    def apply(self, function: bytes) -> tuple[bytes, None]:
        """Returns what a pickled function of the env runner returns, pickled."""
        return pickled_result(function, self._runner, "foreach_env_runner"), None

    def set_state(self, blueprint: Stored, state: bytes, new_episodes: bool) -> tuple[SavedState, None]:
        """Restores a pickled state of an env runner, and returns the state that it has then."""
        assert self._runner is not None
        self._follow(blueprint, self._runner)
        self._runner.set_state(unpickled(state), new_episodes)
        return _saved(self._runner), None

    def play(self, request: PlayRequest) -> tuple[PlayReply | None, None]:
        """Plays the episodes of an evaluation in sub-environments that are made for it."""
        self._take(request.blueprint)
        if not request.num_episodes:
            return None, None
        self._num_done = 0
        runner = self._playing = self._blueprint.build_for_evaluation(request)

        def is_enough(num_done: int) -> bool:
            self._num_done = num_done
            return self._ended == request.number or time.monotonic() >= end

        try:
            runner.rl_module.set_state(_parameters(request.weights))
            runner.set_connector_states(request.connector_states)
            end = math.inf if request.max_seconds is None else time.monotonic() + request.max_seconds
            runner.sample(num_episodes=request.num_episodes, random_actions=request.at_random, is_enough=is_enough)
            loggers = {**runner.metrics, "callbacks": runner.callback_metrics}
            reply = PlayReply(
                places=list(runner.places),
                finished=runner.take_finished(),
                counts=runner.take_counts(),
                metrics={name: logger.get_state() for name, logger in loggers.items()},
            )
            return reply, None
        finally:
            self._playing = None
            runner.close()

    def close(self) -> tuple[None, None]:
        """Closes the sub-environments."""
        if self._runner is not None:
            self._runner.close()
        return None, None

    def _follow(self, blueprint: Stored, runner: EnvRunner) -> None:
        """Gives the env runner the modules and the mapping function of the newest blueprint."""
        if self._take(blueprint):
            self._blueprint.adapt(runner)
            self._weights_version = -1

    def _take(self, blueprint: Stored) -> bool:
        """Takes a blueprint. Returns whether it is a new one."""
        if blueprint.version == self._blueprint_version:
            return False
        former, self._blueprint = self._blueprint, unpickled(blueprint.fetched())
        self._blueprint_version = blueprint.version
        self._blueprint.follow(former)
        return True

    def _load(self, weights: Stored, runner: EnvRunner) -> None:
        if weights.version != self._weights_version:
            runner.rl_module.set_state(_parameters(weights))
            self._weights_version = weights.version


def _saved(runner: EnvRunner) -> SavedState:
    try:
        state, why_not_saved = runner.get_state(), ""
    except EpisodeError as error:  # custom data of an episode cannot be saved
        state, why_not_saved = runner.get_state(with_episodes=False), str(error)
    return SavedState(
        pickled_in_actor(state),
        why_not_saved,
        runner.why_episodes_are_not_kept(),
        runner.num_env_steps,
        runner.num_agent_steps,
    )


def known_states(states: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the states of connector pieces; None if no piece has a state."""
    pipelines = states["env_to_module"], states["module_to_env"]
    return states if any(own for pieces in pipelines for own in pieces.values()) else None


def _parameters(weights: Stored) -> Any:
    """Returns the parameters in arrays that torch may write to; those in Ray's store are read-only."""
    return tree_map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, weights.fetched())
