"""EnvRunnerGroup: the env runners of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.env_runners.env_runner_state import EnvRunnerState
from marl_connectors.env_runners.run_metrics import EpisodeSummary, SamplingTimes
from marl_connectors.env_runners.sample import Sample, joined
from marl_connectors.policy_mapping import PolicyMappingFn


class EnvRunnerGroup:
    """The env runners of an algorithm: one in this process. ``RemoteEnvRunners`` are several in Ray actors.

    Attributes:
        local_env_runner: The env runner in this process; None if there are remote ones.
        lookback: The number of earlier steps that a chunk of an episode keeps.
        module_to_env: The module-to-env pipeline, with the states that all env runners share.
        metrics: The loggers for the pieces of ``env_to_module`` and ``module_to_env``.
        callback_metrics: The logger for callbacks.
    """

    local_env_runner: EnvRunner | None

    def __init__(self, env_runner: EnvRunner):
        """Makes the group of one env runner in this process."""
        self.local_env_runner = self._runner = env_runner
        self.lookback = env_runner.lookback
        self.module_to_env = env_runner.module_to_env
        self.metrics = env_runner.metrics
        self.callback_metrics = env_runner.callback_metrics

    def __repr__(self) -> str:
        return f"<EnvRunnerGroup of {self._runner!r}>"

    @property
    def num_remote_env_runners(self) -> int:
        """The number of env runners in Ray actors."""
        return 0

    @property
    def num_healthy_remote_env_runners(self) -> int:
        """The number of env runners in Ray actors that were not lost."""
        return 0

    @property
    def num_remote_env_runner_restarts(self) -> int:
        """The number of replacements of remote env runners so far."""
        return 0

    def env_steps_per_second(self) -> dict[int, float]:
        """Returns the env steps per second of the newest sample of each remote env runner, by its index."""
        return {}

    @property
    def num_env_steps(self) -> int:
        """The number of steps of all sub-environments so far."""
        return self._runner.num_env_steps

    @property
    def num_agent_steps(self) -> int:
        """The number of actions of all agents so far."""
        return self._runner.num_agent_steps

    @property
    def num_steps_so_far(self) -> tuple[int, int]:
        """The numbers of env steps and agent steps, with those of the ongoing sample as far as they are known."""
        return self.num_env_steps, self.num_agent_steps

    def foreach_env_runner(self, func: Callable[[EnvRunner], Any]) -> list[Any]:
        """Calls ``func(env_runner)`` in the process of each env runner, and returns a list of the results.

        After an error of the function, the env runners stay as they are. After an interrupt, remote ones continue from
        their states before the call.

        Raises:
            ConfigError: If the function or its result cannot be sent from one process to another.
            Exception: What the function raises.
        """
        return [func(self._runner)]

    # Sampling.

    def send_weights(self) -> None:
        """Sends the parameters of the modules to remote env runners, for all samples until the next call."""

    def now(self) -> Callable[[], None]:
        """Returns a function that goes back to where the env runners are now.

        Ongoing episodes continue there, unless sampling has failed in between: then the same error would come again.
        """
        return self._runner.now()

    def return_to_episodes(self) -> None:
        """Continues the ongoing episodes to which it has gone back, before the pipelines get other pieces."""
        self._runner.return_to_episodes()

    def sample(self, *, num_timesteps: int | None = None, times: int = 1) -> Sample:
        """Samples.

        Args:
            num_timesteps: As for ``EnvRunner.sample``, over all env runners.
            times: The number of samples of this size that follow one another.
        """
        return joined([Sample.of_episodes(self._runner.sample(num_timesteps=num_timesteps)) for _ in range(times)])

    def take_finished(self) -> list[EpisodeSummary]:
        """As ``EnvRunner.take_finished``."""
        return self._runner.take_finished()

    def take_counts(self) -> dict[str, Any]:
        """As ``EnvRunner.take_counts``, of all env runners together."""
        return self._runner.take_counts()

    def take_times(self) -> SamplingTimes:
        """As ``EnvRunner.take_times``: means over the env runners. ``sample`` is the time of this process."""
        return self._runner.take_times()

    def take_recreated(self) -> list[int]:
        """Returns the indices of the remote env runners that were replaced since the last call."""
        return []

    # Changes of the run.

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMappingFn) -> None:
        """Sets the policy mapping function for episodes that begin from now on."""
        self._runner.set_policy_mapping_fn(policy_mapping_fn)

    def modules_changed(self) -> None:
        """Lets remote env runners follow a change of the modules, of the mapping function or of the pipelines."""

    def restart_episodes(self) -> None:
        """Drops the ongoing episodes. The next sample begins new ones."""
        self._runner.restart_episodes()

    # For checkpoints.

    def why_episodes_are_not_kept(self) -> str:
        """As ``EnvRunner.why_episodes_are_not_kept``."""
        return self._runner.why_episodes_are_not_kept()

    def get_state(self) -> EnvRunnerState:
        """Returns the state in the form that one env runner with all sub-environments has, for any number of them."""
        return self._runner.get_state()

    def set_state(self, state: EnvRunnerState, new_episodes: bool = False) -> None:
        """Restores the state of ``get_state`` of a group with any number of env runners."""
        self._runner.set_state(state, new_episodes)

    def stop(self) -> None:
        """Closes the sub-environments, and ends the actors."""
        self._runner.close()
