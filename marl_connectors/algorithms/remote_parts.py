"""RemoteParts: the connection to Ray of an algorithm, and its env runners in Ray actors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.env_runner_blueprint import RunBlueprint, merges_states
from marl_connectors.cluster.actor_pool import RestartPolicy
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.env_runners.remote_env_runners import RemoteEnvRunners
from marl_connectors.errors import ConfigError


class RemoteParts:
    """Connects to Ray if a config asks for remote env runners or learners, and starts them.

    Attributes:
        cluster: The connection; None if everything is in this process.
    """

    def __init__(self, config: AlgorithmConfig):
        """Connects, and checks that the cluster has the resources.

        Raises:
            ConfigError: If it has not, or if Ray cannot be used.
        """
        self._config = config
        self.cluster: RayCluster | None = None
        number = config.num_env_runners + config.evaluation_num_env_runners
        needed = Counter(runner_resources(config).as_totals(number))
        needed.update(learner_resources(config).as_totals(config.num_learners))
        asked = ("num_env_runners", "evaluation_num_env_runners", "num_learners")
        wanted = [f"{name}={getattr(config, name)}" for name in asked if getattr(config, name)]
        if wanted:
            self.cluster = RayCluster(config.ray_address, needed, ", ".join(wanted))

    def env_runners(
        self, blueprint: RunBlueprint, num_envs: Sequence[int], *, for_evaluation: bool = False, **fields: Any
    ) -> RemoteEnvRunners:
        """Starts env runners in Ray actors, and waits until they have made their sub-environments.

        Args:
            blueprint: How they are made.
            num_envs: The number of sub-environments of each.
            for_evaluation: Whether they only play evaluations.
            **fields: Other arguments of RemoteEnvRunners.
        """
        assert self.cluster is not None
        config = self._config
        check_can_be_sent(blueprint.config)
        runners = RemoteEnvRunners(
            blueprint,
            cluster=self.cluster,
            num_envs=num_envs,
            resources=runner_resources(config),
            policy=restart_policy(config),
            lookback=blueprint.lookback,
            rollout_fragment_length=blueprint.rollout_fragment_length,
            complete_episodes=config.batch_mode == "complete_episodes",
            merges_states=merges_states(config),
            fetches_episodes=config.num_learners == 0,
            for_evaluation=for_evaluation,
            **fields,
        )
        try:
            runners.wait_until_begun()
        except BaseException:
            runners.close()
            raise
        return runners

    def stop(self) -> None:
        """Ends the use of the cluster."""
        if self.cluster is not None:
            self.cluster.close()


def check_can_be_sent(config: AlgorithmConfig) -> None:
    """Checks that the settings can be sent to Ray actors.

    Raises:
        ConfigError: For the first setting that cannot be pickled.
    """
    from ray import cloudpickle

    for name, value in config.to_dict().items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise ConfigError(
                f"{name}: remote env runners get the settings of the run, but this one cannot be sent to another "
                f"process ({type(error).__name__}: {error}). Make what it holds inside the function or class that uses it, or "
                f"set num_env_runners=0."
            ) from error


def runner_resources(config: AlgorithmConfig) -> Resources:
    """Returns what each remote env runner reserves."""
    return Resources(
        config.num_cpus_per_env_runner, config.num_gpus_per_env_runner, config.custom_resources_per_env_runner
    )


def learner_resources(config: AlgorithmConfig) -> Resources:
    """Returns what each remote learner reserves."""
    gpus = config.num_gpus_per_learner
    gpus = 0.0 if isinstance(gpus, str) else float(gpus)
    cpus = config.num_cpus_per_learner
    return Resources((0.0 if gpus else 1.0) if isinstance(cpus, str) else float(cpus), gpus)


def restart_policy(config: AlgorithmConfig) -> RestartPolicy:
    """Returns what happens if an actor is lost."""
    return RestartPolicy(
        restarts=config.restart_failed_env_runners,
        ignores=config.ignore_env_runner_failures,
        most=config.max_num_env_runner_restarts,
        timeout_s=config.sample_timeout_s,
        probe_timeout_s=config.env_runner_health_probe_timeout_s,
        start_timeout_s=config.env_runner_restore_timeout_s,
    )
