"""The state of an env runner, which can be divided among several, as those of several can be put together.

A runner has a contiguous range of the run's sub-environments, and its state has a part for each of them. So a
checkpoint does not depend on the number of env runners.

The state of several runners together equals the state of one runner with all their sub-environments to the last bit,
with these exceptions:

* Sums of floats that pieces and callbacks log depend on the order of the values. Moving averages and the newest values
  depend on it, too, and those of several runners together are approximations.
* A runner that remembers as many agents as it may (``REMEMBERED_AGENTS``) counts only the steps of these.
* If all actions of some agents were random, so that no module output anything for them, one runner may have zeros as
  the outputs, for the sake of other agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from marl_connectors.connectors.connector_v2 import same_state
from marl_connectors.env_runners.episode_tracker import OngoingEpisodeState
from marl_connectors.env_runners.finished_episodes import FinishedEpisode
from marl_connectors.env_runners.forward_batch_state import ForwardBatchState
from marl_connectors.env_runners.lane_table import SampledSteps
from marl_connectors.environments.rules.env_failures import FailureCounts
from marl_connectors.errors import CheckpointError, ConnectorError
from marl_connectors.metrics import Metric, MetricsLogger, merged_metrics
from marl_connectors.state import Count, Index, Seed, State


class SubEnvironmentState(State):
    """The state of a sub-environment.

    Attributes:
        episode_number: The number of its episode; -1 before the first one.
        uncredited_reward: The sum of the uncredited rewards that no result has yet.
        finished: The episodes that have ended, and that no result has yet.
        episode: The ongoing episode; None if the next sample begins another one.
    """

    episode_number: Annotated[int, Meta(ge=-1, lt=2**31)]
    uncredited_reward: float
    finished: list[FinishedEpisode]
    episode: OngoingEpisodeState | None


class EnvRunnerState(State):
    """The state of an EnvRunner.

    Attributes:
        seed: The seed of the run.
        num_env_steps: The number of steps of all sub-environments so far.
        num_agent_steps: The number of actions of all agents so far.
        noise_step: The number of steps for which noise has been drawn.
        env_to_module: The states of the env-to-module pieces.
        module_to_env: The states of the module-to-env pieces.
        shared_data: The data that pieces share; None if it or the forward batch cannot be stored, or without episodes.
        forward_batch: The forward batch that the pieces have prepared; None if the next step computes it.
        metrics: The metrics that the pieces of each pipeline have logged.
        callback_metrics: The metrics that callbacks have logged.
        sampled_steps: The numbers of steps that no result has yet.
        num_samples: The number of samples that no result has yet.
        observations_out_of_bounds: The number of observations beyond the bounds of their space that no result has yet.
        failures: The counts of failures that no result has yet.
        episodes_too_long: Whether the ongoing episodes are left out because one is too long to be replayed.
        sub_environments: The states of the sub-environments.
    """

    seed: Seed
    num_env_steps: Count
    num_agent_steps: Count
    noise_step: Count
    env_to_module: dict[str, Any]
    module_to_env: dict[str, Any]
    shared_data: dict[str, Any] | None
    forward_batch: ForwardBatchState | None
    metrics: dict[str, list[Metric]]
    callback_metrics: list[Metric]
    sampled_steps: SampledSteps
    num_samples: Index
    observations_out_of_bounds: Count
    failures: FailureCounts
    episodes_too_long: bool
    sub_environments: list[SubEnvironmentState]

    def __post_init__(self) -> None:
        if len({own.episode is None for own in self.sub_environments}) != 1:
            raise ValueError("Expected sub-environments that all have an ongoing episode, or none")

    @property
    def has_episodes(self) -> bool:
        """Whether the state has the ongoing episodes."""
        return self.sub_environments[0].episode is not None

    def without_episodes(self) -> EnvRunnerState:
        """Returns the state of a runner that begins new episodes."""
        sub_environments = [replace(own, episode=None) for own in self.sub_environments]
        return replace(
            self, sub_environments=sub_environments, episodes_too_long=False, shared_data=None, forward_batch=None
        )

    def divided(self, sizes: Sequence[int]) -> list[EnvRunnerState]:
        """Divides the state among several runners.

        The first one gets all counts and logged values that belong to no sub-environment. ``merged`` returns the same
        state again.

        Args:
            sizes: The number of sub-environments of each runner, in their order. Each is at least 1.

        Raises:
            CheckpointError: If the state has another number of sub-environments than ``sizes``.
        """
        num_envs = len(self.sub_environments)
        if sum(sizes) != num_envs or min(sizes, default=0) < 1:
            raise CheckpointError(
                f"env runners: the state has {num_envs} sub-environments, which cannot be divided into {list(sizes)}. "
                f"Use numbers of 1 or more that add up to {num_envs}."
            )
        nothing = MetricsLogger().get_state()
        batch = self.forward_batch
        others = replace(
            self,
            num_env_steps=0,
            num_agent_steps=0,
            forward_batch=None if batch is None else replace(batch, metrics=nothing),
            metrics=dict.fromkeys(self.metrics, nothing),
            callback_metrics=nothing,
            sampled_steps=SampledSteps(),
            observations_out_of_bounds=0,
            failures=FailureCounts(),
        )
        bounds = pairwise([0, *accumulate(sizes)])
        return [
            replace(others if begin else self, sub_environments=self.sub_environments[begin:end])
            for begin, end in bounds
        ]

    @staticmethod
    def merged(states: Sequence[EnvRunnerState]) -> EnvRunnerState:
        """Puts the states of several runners together. The ongoing episodes are kept if all runners have kept theirs.

        Args:
            states: The state of each runner, in the order of their sub-environments. The states of connector pieces are
                those of the first one: runners whose pieces learn get merged states after each sample.

        Raises:
            CheckpointError: If the states are not of runners of one run.
            ConnectorError: If pieces share different data in ``shared_data``.
        """
        seeds = [state.seed for state in states]
        if len(set(seeds)) != 1:
            raise CheckpointError(f"env runners: their states have the seeds {seeds}. Merge the states of one run.")
        keeps = all(state.has_episodes for state in states)
        too_long = not keeps and any(state.has_episodes or state.episodes_too_long for state in states)
        if not keeps:
            states = [state.without_episodes() for state in states]
        shared = [state.shared_data for state in states if state.shared_data is not None]
        if any(not same_state(shared[0], other) for other in shared[1:]):
            raise ConnectorError(
                f"env runners: their pieces share different data in shared_data ({sorted(shared[0])}), which cannot be "
                f"merged. Keep such data in the state of a piece that overrides merge_states."
            )
        batches = [state.forward_batch for state in states if state.forward_batch is not None]
        metrics = merged_metrics([batch.metrics for batch in batches])
        return replace(
            states[0],
            shared_data=shared[0] if len(shared) == len(states) else None,
            num_env_steps=sum(state.num_env_steps for state in states),
            num_agent_steps=sum(state.num_agent_steps for state in states),
            noise_step=max(state.noise_step for state in states),
            forward_batch=replace(batches[0], metrics=metrics) if len(batches) == len(states) else None,
            metrics={name: merged_metrics([state.metrics[name] for state in states]) for name in states[0].metrics},
            callback_metrics=merged_metrics([state.callback_metrics for state in states]),
            sampled_steps=SampledSteps.merged([state.sampled_steps for state in states]),
            num_samples=max(state.num_samples for state in states),
            observations_out_of_bounds=sum(state.observations_out_of_bounds for state in states),
            failures=FailureCounts.merged([state.failures for state in states]),
            episodes_too_long=too_long,
            sub_environments=[own for state in states for own in state.sub_environments],
        )
