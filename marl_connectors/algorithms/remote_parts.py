"""RemoteParts: the connection to Ray of an algorithm, and its env runners and learners in Ray actors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.env_runner_blueprint import RunBlueprint, merges_states
from marl_connectors.algorithms.learner_blueprint import RunLearnerBlueprint
from marl_connectors.cluster.actor_pool import RestartPolicy
from marl_connectors.cluster.pickling import pickled
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.cluster.remote_env_runners import RemoteEnvRunners
from marl_connectors.cluster.remote_learners import RemoteLearners
from marl_connectors.errors import ConfigError
from marl_connectors.learner.learner import Learner


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
        self._learner_resources = learner_resources(config)
        needed.update(self._learner_resources.as_totals(config.num_learners))
        asked = ("num_env_runners", "evaluation_num_env_runners", "num_learners")
        wanted = [f"{name}={getattr(config, name)}" for name in asked if getattr(config, name)]
        if wanted:
            self.cluster = RayCluster(config.ray_address, needed, ", ".join(wanted), _settings_of_resources(config))
            if config.num_gpus_per_learner == "auto" and config.num_learners:
                free = self.cluster.total("GPU") - needed["GPU"]
                if free >= config.num_learners:
                    self._learner_resources = learner_resources(config, gpus=1.0)

    def env_runners(
        self,
        make_blueprint: Callable[[], RunBlueprint],
        num_envs: Sequence[int],
        *,
        for_evaluation: bool = False,
        **fields: Any,
    ) -> RemoteEnvRunners:
        """Starts env runners in Ray actors, and waits until they have made their sub-environments.

        Args:
            make_blueprint: Returns how they are made now.
            num_envs: The number of sub-environments of each.
            for_evaluation: Whether they only play evaluations.
            **fields: Other arguments of RemoteEnvRunners.
        """
        assert self.cluster is not None
        config = self._config
        check_can_be_sent(make_blueprint().config.to_dict())
        runners = RemoteEnvRunners(
            make_blueprint,
            cluster=self.cluster,
            num_envs=num_envs,
            resources=runner_resources(config),
            policy=restart_policy(config),
            complete_episodes=config.batch_mode == "complete_episodes",
            merges_states=merges_states(config),
            fetches_episodes=config.num_learners == 0,
            for_evaluation=for_evaluation,
            **fields,
        )
        return _ready(runners)

    @property
    def learner_device(self) -> str:
        """The device of remote learners. ``num_gpus_per_learner="auto"`` stands for 1 if there are as many GPUs."""
        return "cuda" if self._learner_resources.gpus else "cpu"

    def learners(self, learner: Learner, make_blueprint: Callable[[], RunLearnerBlueprint]) -> RemoteLearners:
        """Starts learners in Ray actors, and waits until they are connected with one another.

        Args:
            learner: The learner in this process.
            make_blueprint: Returns how the others are made now.
        """
        assert self.cluster is not None
        config = self._config
        check_can_be_sent(make_blueprint().config.to_dict())
        learners = RemoteLearners(
            learner,
            make_blueprint,
            cluster=self.cluster,
            number=config.num_learners,
            resources=self._learner_resources,
            policy=restart_policy(config),
            device=self.learner_device,
        )
        return _ready(learners)

    def is_lost(self, error: Exception) -> bool:
        """Whether an error says that data in Ray's store was lost with a node."""
        return self.cluster is not None and self.cluster.is_lost_object(error)

    def stop(self) -> None:
        """Ends the use of the cluster."""
        if self.cluster is not None:
            self.cluster.close()


_Group = TypeVar("_Group", RemoteEnvRunners, RemoteLearners)


def _ready(group: _Group) -> _Group:
    try:
        group.wait_until_begun()
    except BaseException:
        group.stop()
        raise
    return group


def check_can_be_sent(settings: Mapping[str, Any]) -> None:
    """Checks that settings can be sent to Ray actors.

    Raises:
        ConfigError: For the first setting that cannot be pickled.
    """
    for name, value in settings.items():
        try:
            pickled(value)
        except Exception as error:
            raise ConfigError(
                f"{name}: remote env runners and learners get the settings of the run, but this one cannot be sent to "
                f"another process ({type(error).__name__}: {error}). Make what it holds inside the function or class "
                f"that uses it, or set num_env_runners=0 and num_learners=0."
            ) from error


def runner_resources(config: AlgorithmConfig) -> Resources:
    """Returns what each remote env runner reserves."""
    return Resources(
        config.num_cpus_per_env_runner, config.num_gpus_per_env_runner, config.custom_resources_per_env_runner
    )


def learner_resources(config: AlgorithmConfig, gpus: float = 0.0) -> Resources:
    """Returns what each remote learner reserves. ``gpus`` is what ``num_gpus_per_learner="auto"`` stands for."""
    own = config.num_gpus_per_learner
    gpus = gpus if isinstance(own, str) else float(own)
    cpus = config.num_cpus_per_learner
    return Resources((0.0 if gpus else 1.0) if isinstance(cpus, str) else float(cpus), gpus)


def _settings_of_resources(config: AlgorithmConfig) -> dict[str, str]:
    """Returns the settings by which actors reserve each resource, for messages."""
    kinds = ["env_runner"] if config.num_env_runners or config.evaluation_num_env_runners else []
    kinds += ["learner"] if config.num_learners else []
    found = {}
    for resource, name in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        values = {f"{name}_per_{kind}": getattr(config, f"{name}_per_{kind}") for kind in kinds}
        found[resource] = ", ".join(f"{name}={value:g}" for name, value in values.items() if value not in (0, "auto"))
    for resource, quantity in config.custom_resources_per_env_runner.items():
        found[resource] = f"custom_resources_per_env_runner={{{resource!r}: {quantity:g}}}"
    return found


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
