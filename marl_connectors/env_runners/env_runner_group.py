"""EnvRunnerGroup: one env runner in this process, or several in Ray actors, which look the same to an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.cluster.hosted_env_runner import EnvRunnerBlueprint
from marl_connectors.cluster.remote_env_runners import RemoteEnvRunners
from marl_connectors.env_runners.sample import Sample, joined
from marl_connectors.errors import counted
from marl_connectors.metrics import MetricsLogger
from marl_connectors.policy_mapping import PolicyMappingFn


class EnvRunnerGroup:
    """The env runners of an algorithm.

    Attributes:
        local_env_runner: The env runner in this process; None if there are remote ones.
        remote: The env runners in Ray actors; None if there are none.
    """

    def __init__(
        self,
        local_env_runner: EnvRunner | None = None,
        remote: RemoteEnvRunners | None = None,
        make_blueprint: Callable[[], EnvRunnerBlueprint] | None = None,
    ):
        """Makes the group.

        Args:
            local_env_runner: The env runner in this process, or None.
            remote: The env runners in Ray actors, or None.
            make_blueprint: Returns a blueprint of the run as it is now, from which remote env runners are made.
        """
        self.local_env_runner = local_env_runner
        self.remote = remote
        self._make_blueprint = make_blueprint
        runners: Any = remote or local_env_runner
        assert runners is not None
        self._runners: EnvRunner | RemoteEnvRunners = runners

    def __repr__(self) -> str:
        if self.local_env_runner is not None:
            return f"<{type(self).__name__} of {self.local_env_runner!r}>"
        return (
            f"<{type(self).__name__} of {counted(self.num_remote_env_runners, 'remote env runner')} with "
            f"{counted(self.num_envs, 'sub-environment')}: {counted(self.num_env_steps, 'env step')}>"
        )

    # What there is.

    @property
    def num_remote_env_runners(self) -> int:
        """The number of env runners in Ray actors."""
        return 0 if self.remote is None else len(self.remote.num_envs)

    @property
    def num_healthy_remote_env_runners(self) -> int:
        """The number of env runners in Ray actors that were not lost."""
        return 0 if self.remote is None else len(self.remote.pool.indices)

    @property
    def num_remote_env_runner_restarts(self) -> int:
        """The number of replacements of remote env runners so far."""
        return 0 if self.remote is None else self.remote.pool.num_restarts

    def env_steps_per_second(self) -> dict[int, float]:
        """Returns the env steps per second of the newest sample of each remote env runner, by its index."""
        if self.remote is None:
            return {}
        return {index: rate for index, rate in self.remote.rates.items() if index in self.remote.pool.indices}

    @property
    def num_env_steps(self) -> int:
        """The number of steps of all sub-environments so far."""
        return self._runners.num_env_steps

    @property
    def num_agent_steps(self) -> int:
        """The number of actions of all agents so far."""
        return self._runners.num_agent_steps

    @property
    def num_steps_so_far(self) -> tuple[int, int]:
        """The numbers of env steps and agent steps, with those of the ongoing sample as far as they are known."""
        ongoing = (0, 0) if self.remote is None else self.remote.ongoing
        return self.num_env_steps + ongoing[0], self.num_agent_steps + ongoing[1]

    @property
    def num_envs(self) -> int:
        """The number of sub-environments."""
        if self.local_env_runner is not None:
            return len(self.local_env_runner.vector_env.sub_envs)
        assert self.remote is not None
        return sum(self.remote.num_envs)

    @property
    def lookback(self) -> int:
        """The number of earlier steps that a chunk of an episode keeps."""
        return self._runners.lookback

    @property
    def module_to_env(self) -> Any:
        """The module-to-env pipeline, with the states that all env runners share."""
        return self._runners.module_to_env

    @property
    def metrics(self) -> dict[str, MetricsLogger]:
        """The loggers for the pieces of ``env_to_module`` and ``module_to_env``."""
        return self._runners.metrics

    @property
    def callback_metrics(self) -> MetricsLogger:
        """The logger for callbacks."""
        return self._runners.callback_metrics

    def foreach_env_runner(self, func: Callable[[EnvRunner], Any]) -> list[Any]:
        """Calls ``func(env_runner)`` in the process of each env runner, and returns a list of the results.

        Raises:
            ConfigError: If the function or its result cannot be sent from one process to another.
            Exception: What the function raises.
        """
        if self.local_env_runner is not None:
            return [func(self.local_env_runner)]
        assert self.remote is not None
        return self.remote.foreach_env_runner(func)

    # Sampling.

    def begin_iteration(self) -> None:
        """Sends the parameters of the modules to remote env runners, once for all samples of the iteration."""
        if self.remote is not None:
            self.remote.send_weights()
            self.remote.begin_batch()

    def repeat_iteration(self) -> None:
        """Restores the state at ``begin_iteration``, so that lost episodes can be sampled again."""
        assert self.remote is not None
        self.remote.repeat_batch()

    def sample(self, *, num_timesteps: int | None = None, times: int = 1) -> Sample:
        """Samples.

        Args:
            num_timesteps: As for ``EnvRunner.sample``.
            times: The number of samples of this size that follow one another.
        """
        if self.remote is not None and (times == 1 or self.remote.can_sample_ahead):
            return self.remote.sample(num_timesteps=num_timesteps, times=times)
        return joined([self._sample(num_timesteps) for _ in range(times)])

    def _sample(self, num_timesteps: int | None) -> Sample:
        if self.local_env_runner is not None:
            return Sample.of_episodes(self.local_env_runner.sample(num_timesteps=num_timesteps))
        assert self.remote is not None
        return self.remote.sample(num_timesteps=num_timesteps)

    def take_finished(self) -> list[Any]:
        """As ``EnvRunner.take_finished``."""
        return self._runners.take_finished()

    def take_counts(self) -> dict[str, Any]:
        """As ``EnvRunner.take_counts``."""
        return self._runners.take_counts()

    def take_times(self) -> Any:
        """As ``EnvRunner.take_times``."""
        return self._runners.take_times()

    def take_recreated(self) -> list[int]:
        """Returns the indices of the remote env runners that were replaced since the last call."""
        return [] if self.remote is None else self.remote.pool.take_replaced()

    def begin_playing(
        self, num_episodes: int, num_envs: int, **arguments: Any
    ) -> Callable[[Callable[[int], bool]], dict[str, Any]]:
        """Lets remote env runners play the episodes of an evaluation; see ``RemoteEnvRunners.begin_playing``."""
        assert self.remote is not None
        self.remote.send_weights()
        return self.remote.begin_playing(num_episodes, num_envs, **arguments)

    def abandon_playing(self) -> None:
        """Ends the episodes of ``begin_playing`` whose results are not needed."""
        assert self.remote is not None
        self.remote.abandon_playing()

    # Changes of the run.

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMappingFn) -> None:
        """Sets the policy mapping function for episodes that begin from now on."""
        if self.local_env_runner is not None:
            self.local_env_runner.set_policy_mapping_fn(policy_mapping_fn)
        self.modules_changed()

    def modules_changed(self) -> None:
        """Lets remote env runners follow a change of the modules, of the mapping function or of the pipelines."""
        if self.remote is not None and self._make_blueprint is not None:
            self.remote.set_blueprint(self._make_blueprint())

    def restart_episodes(self) -> None:
        """Drops the ongoing episodes. The next sample begins new ones."""
        self._runners.restart_episodes()

    # For checkpoints.

    def why_episodes_are_not_kept(self) -> str:
        """As ``EnvRunner.why_episodes_are_not_kept``."""
        return self._runners.why_episodes_are_not_kept()

    def get_state(self) -> dict[str, Any]:
        """Returns the state in the form that one env runner with all sub-environments has, for any number of them."""
        return self._runners.get_state()

    def set_state(self, state: dict[str, Any], new_episodes: bool = False) -> None:
        """Restores the state of ``get_state`` of a group with any number of env runners."""
        self._runners.set_state(state, new_episodes)

    def stop(self) -> None:
        """Closes the sub-environments, and ends the actors."""
        self._runners.close()
