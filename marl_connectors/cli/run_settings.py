"""The settings of a training run, as the command line has them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from marl_connectors.cli.values import ACTIVATIONS, brief, is_whole, merged
from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE, LEARNER
from marl_connectors.environments.making.factory import agent_ids, env_name, make_env
from marl_connectors.environments.vector.env_failures import close_env
from marl_connectors.errors import CheckpointError, ConfigError, did_you_mean
from marl_connectors.names import import_function
from marl_connectors.policy_mapping import (
    OneAgainst,
    PatternPolicies,
    PolicyMappingFn,
    check_patterns,
    policy_mapping,
)
from marl_connectors.spaces import describe
from marl_connectors.zoo import find_task
from marl_connectors.zoo.games import OPPONENT

TRAINING_DEFAULTS: dict[str, Any] = {
    "lr": 3e-4,
    "gamma": 0.99,
    "lambda_": 0.95,
    "train_batch_size_per_learner": 4096,
    "minibatch_size": 512,
    "num_epochs": 8,
    "clip_param": 0.2,
    "vf_clip_param": 1e6,
    "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.5,
    "grad_clip": 0.5,
    "use_kl_loss": False,
}
"""The settings with which the command line trains unless ``--set`` changes them. Batches count agent steps.

These differ from the defaults of ``PPOConfig``, which are RLlib's: they are chosen so that PPO learns well on small
multi-agent tasks without tuning.
"""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A training run.

    Attributes:
        env: The name of an environment, for ``make_env``.
        env_config: The arguments for the environment's constructor.
        wrappers: The wrappers around each sub-environment, the innermost first: names with arguments, such as
            ``"frame_skip_v0:4"``.
        algo: ``"ppo"``, or ``"mappo"`` for critics that see the observations of all agents.
        policies: ``"shared"``, ``"independent"`` or patterns; ignored if ``mapping`` is not None.
        mapping: ``"module:function"``, or None.
        modules: All modules that ``mapping`` can name; None if it names all of them in a first episode.
        eval_opponent: ``"random"`` if one agent acts with its module in evaluations, a different one in each episode,
            and all others act at random; None if evaluations are played as in training.
        steps: The agent steps at which the run ends.
        seed: The seed of all random streams.
        num_envs: The number of sub-environments of all env runners together.
        num_env_runners: The number of env runners in Ray actors; 0 for one in this process.
        num_learners: The number of learners in Ray actors; 0 for one in this process.
        ray_address: The address of the Ray cluster for them; None for a cluster on this machine for this run alone.
        num_env_workers: The number of processes over which they are spread; ``"auto"`` for as many as are worth it.
        num_gpus_per_learner: 1 for modules on the GPU, 0 for the CPU; ``"auto"`` for the GPU if one exists.
        training: Settings of the config by name, most of them settings of ``PPOConfig.training``; see ``set_by_name``.
        hidden: The widths of the hidden layers.
        activation: The activation after each hidden layer.
        share_value_layers: Whether policy and value function share these layers.
        model: Further settings of the modules, by the names of the fields of ``DefaultModelConfig``.
        env_to_module: The names of connector pieces at the beginning of the env-to-module pipeline, as for
            ``NamedPieces``.
        learner_connector: The names of connector pieces at the beginning of the learner pipeline.
        anneal_lr: Whether the learning rate falls linearly to 0 over ``steps``.
        checkpoint_every: The number of iterations from one checkpoint to the next.
        eval_episodes: The number of episodes of each evaluation.
        baseline_seconds: The seconds for measuring random play, and again for the untrained policies.
        video: Whether to write a GIF at the end.
        action_mask_key: The key of action masks; ``"auto"`` for PettingZoo's convention, None to ignore masks.
        env_check: Whether the smoke test is run, and observations are checked against their space.
        preset: The name of the zoo's task whose settings the run began with; None for a run without a preset.
        threads: The number of threads of torch. With small networks, more than one costs more than it saves.
    """

    env: str
    env_config: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    algo: str = "ppo"
    policies: str = "shared"
    mapping: str | None = None
    modules: list[str] | None = None
    eval_opponent: str | None = None
    steps: int = 1_000_000
    seed: int = 0
    num_envs: int = 8
    num_env_runners: int = 0
    num_learners: int = 0
    ray_address: str | None = None
    num_env_workers: int | str = "auto"
    num_gpus_per_learner: float | str = "auto"
    training: dict[str, Any] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"
    share_value_layers: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    env_to_module: list[str] = field(default_factory=list)
    learner_connector: list[str] = field(default_factory=list)
    anneal_lr: bool = False
    checkpoint_every: int = 20
    eval_episodes: int = 20
    baseline_seconds: int = 10
    video: bool = True
    threads: int = 1
    env_check: bool = True
    action_mask_key: str | None = "auto"
    preset: str | None = None

    def default_folder_name(self) -> str:
        """Returns ``<env>-<policies>-seed<seed>``, with the algorithm's name after ``<env>`` if it is not PPO."""
        mapping = self.mapping_fn()
        if self.mapping is not None:
            policies = self.mapping.rpartition(":")[2]
        elif isinstance(mapping, PatternPolicies):
            policies = "-".join(dict.fromkeys(module_id for _, module_id in mapping.patterns))
        else:
            policies = self.policies.strip()
        policies = re.sub(r"[^\w.-]+", "_", policies)
        algo = "" if self.algo == "ppo" else f"{self.algo}-"
        return f"{env_name(self.env)}-{algo}{policies}-seed{self.seed}"

    def mapping_fn(self) -> PolicyMappingFn:
        """Returns the policy mapping function.

        Raises:
            ConfigError: If it does not exist or is not a function.
        """
        if self.mapping is None:
            return policy_mapping(self.policies)
        fn: Any = import_function(self.mapping)
        if not callable(fn):
            raise ConfigError(
                f"--mapping: expected {self.mapping!r} to be a function of (agent_id, episode, **kwargs), "
                f"but it is {fn!r}."
            )
        return cast(PolicyMappingFn, fn)

    def build_algorithm(self) -> Any:
        """Builds the run's ``Algorithm``, with the policies' patterns checked against the environment's agents."""
        use_threads(self.threads)
        mapping = self.mapping_fn()
        agents: list[Any] = []
        if isinstance(mapping, PatternPolicies) or self.eval_opponent is not None:
            env = make_env(self.env, self.env_config, wrappers=self.wrappers)
            agents = agent_ids(env)
            check_patterns(mapping, agents)
            if self.eval_opponent is not None:
                self._check_opponent(env, agents)
            close_env(env, env_name(self.env))

        from marl_connectors.algorithms.mappo import MAPPOConfig
        from marl_connectors.algorithms.ppo import PPOConfig

        config = (
            {"ppo": PPOConfig, "mappo": MAPPOConfig}[self.algo]()
            .environment(
                self.env,
                env_config=self.env_config,
                wrappers=self.wrappers,
                disable_env_checking=not self.env_check,
                action_mask_key=self.action_mask_key,
            )
            .multi_agent(policies=self.modules, policy_mapping_fn=mapping, count_steps_by="agent_steps")
            .env_runners(
                num_env_runners=self.num_env_runners,
                num_envs_per_env_runner=envs_per_env_runner(self.num_envs, self.num_env_runners),
                num_env_workers=self.num_env_workers,
            )
            .learners(num_learners=self.num_learners, num_gpus_per_learner=self.num_gpus_per_learner)
            .resources(ray_address=self.ray_address)
            .rl_module(model_config=self.model_config())
            .debugging(seed=self.seed)
        )
        if self.eval_opponent is not None:
            set_opponent(config, agents)
        set_by_name(config, self.training)
        if self.anneal_lr:
            config.training(lr=annealed(self.training.get("lr", config.lr), self.steps))
        set_pieces(config, env_to_module=self.env_to_module, learner_connector=self.learner_connector)
        task = find_task(self.env)
        if task is not None and task.success is not None:
            config.callbacks(on_episode_end=task.success)
        if config.ray_address is not None and not is_remote(config):
            raise ConfigError(
                "--ray-address: nothing of this run would be on the cluster. Add --num-env-runners N or "
                "--num-learners N, or leave it out."
            )
        return config.build_algo()

    def model_config(self) -> Any:
        """Returns the ``DefaultModelConfig`` of the modules.

        Raises:
            ConfigError: If ``model`` has an unknown key, or a setting has a wrong value.
        """
        from marl_connectors.rl_module.default_model_config import DefaultModelConfig

        check_model(self.model)
        short = {key: getattr(self, name) for key, name in SHORT_FORMS.items()}
        return DefaultModelConfig(**{**short, **self.model})

    def _check_opponent(self, env: Any, agents: Sequence[Any]) -> None:
        """Checks that a random module can act for each of several agents."""
        if len(agents) == 1:
            raise ConfigError(
                f"--eval-opponent: expected an environment with several agents, but {env_name(self.env)} has one. "
                f"Leave it out."
            )
        kinds = ["action"] if self.env_to_module else ["action", "observation"]  # pieces may make observations alike
        for kind in kinds:
            space_of = getattr(env, f"{kind}_space", None)
            if not callable(space_of):
                continue
            for agent_id in agents:
                if describe(cast(Any, space_of(agent_id))) != describe(cast(Any, space_of(agents[0]))):
                    raise ConfigError(
                        f"--eval-opponent: expected agents with the same spaces, for which one module can act at "
                        f"random, but the {kind} spaces of {agents[0]!r} and {agent_id!r} differ. Leave it out."
                    )


SHORT_FORMS = {"fcnet_hiddens": "hidden", "fcnet_activation": "activation", "vf_share_layers": "share_value_layers"}
"""Settings of ``--model`` that have options of their own, with the fields of RunSettings for them."""


def check_model(model: Iterable[str]) -> None:
    """Checks the keys of ``--model``.

    Raises:
        ConfigError: If the default modules have no such setting.
    """
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    known = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for key in model:
        if key not in known:
            raise ConfigError(f"--model: the default modules have no setting {key!r}. {did_you_mean(key, known)}")


def set_opponent(config: Any, agents: Sequence[Any]) -> None:
    """Adds a module that acts at random, against which one agent plays in evaluations.

    Args:
        config: The config, with its mapping function and its ``policies``.
        agents: The agents of the environment.

    Raises:
        ConfigError: If a module has that name already.
    """
    from marl_connectors.env_runners.agent_modules import ask_mapping
    from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
    from marl_connectors.rl_module.random_rl_module import RandomRLModule
    from marl_connectors.rl_module.rl_module import RLModuleSpec

    mapping, module_ids = config.policy_mapping_fn, config.policies
    if module_ids is None:
        first = MultiAgentEpisode.from_agent_episodes(
            "0-0", {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=mapping
        )
        module_ids = [ask_mapping(first, agent_id) for agent_id in agents]
    if OPPONENT in module_ids:
        raise ConfigError(
            f"--eval-opponent: a module is called {OPPONENT!r}, which is the name of the opponent. Give it another one."
        )
    config.multi_agent(policies={**dict.fromkeys(module_ids), OPPONENT: RLModuleSpec(RandomRLModule)})
    against = OneAgainst(mapping, tuple(map(str, agents)), OPPONENT)
    config.evaluation(evaluation_config={"policy_mapping_fn": against})


def annealed(lr: Any, steps: int) -> list[list[float]]:
    """Returns the schedule of a learning rate that falls linearly to 0 over a number of agent steps.

    >>> annealed(0.1, 1000)
    [[0, 0.1], [1000, 0.0]]

    Raises:
        ConfigError: If the learning rate is a schedule already.
    """
    if not isinstance(lr, (int, float)):
        raise ConfigError(
            f"--anneal-lr: expected lr to be the learning rate at the beginning, but it is the schedule {brief(lr)}. "
            f"Leave out one of the two (--no-anneal-lr)."
        )
    return [[0, lr], [steps, 0.0]]


_FLAGS_OF_PIECES = {ENV_TO_MODULE: "--env-to-module", LEARNER: "--learner-connector"}


def set_pieces(
    config: Any, *, env_to_module: Iterable[str] | None = None, learner_connector: Iterable[str] | None = None
) -> None:
    """Sets a config's connector pieces by name. Pieces with a ``gamma`` get the config's unless their names have one.

    Args:
        config: The config.
        env_to_module: The names for the env-to-module pipeline; None to leave the config's pieces.
        learner_connector: The names for the learner pipeline; None to leave the config's pieces.

    Raises:
        ConfigError: If there is no such piece, or if it does not accept its arguments. The message names the option.
    """
    from marl_connectors.connectors.named_pieces import named_pieces

    def pieces(names: Iterable[str], kind: str) -> Any:
        flags, defaults = _FLAGS_OF_PIECES, {"gamma": config.gamma}
        return named_pieces(names, who=flags[kind], kind=kind, others=flags, defaults=defaults)

    if env_to_module is not None:
        config.env_runners(env_to_module_connector=pieces(env_to_module, ENV_TO_MODULE))
    if learner_connector is not None:
        config.learners(learner_connector=pieces(learner_connector, LEARNER))


def envs_per_env_runner(num_envs: int, num_env_runners: int) -> int:
    """Returns the number of sub-environments of each env runner.

    Raises:
        ConfigError: If they cannot have the same number.
    """
    if num_envs % max(1, num_env_runners):
        possible = [str(number) for number in range(1, num_envs + 1) if num_envs % number == 0]
        raise ConfigError(
            f"--num-env-runners: expected a number that divides the {num_envs} sub-environments (--num-envs) evenly, "
            f"got {num_env_runners}. Use one of {', '.join(possible)}, or another number of sub-environments."
        )
    return num_envs // max(1, num_env_runners)


def batch_size_per_learner(total: int, num_learners: int) -> int:
    """Returns the share of each learner in a train batch, rounded up."""
    return -(-total // max(1, num_learners))


def is_remote(config: Any) -> bool:
    """Whether env runners or learners of a config are in Ray actors."""
    return any((config.num_env_runners, config.evaluation_num_env_runners, config.num_learners))


def in_this_process(config: Any) -> Any:
    """Returns a config with the same sub-environments and train batches, whose env runners and learners are local."""
    if not is_remote(config):
        return config
    local = config.copy()
    local.env_runners(num_env_runners=0, num_envs_per_env_runner=config.num_envs)
    local.learners(num_learners=0, num_gpus_per_learner="auto" if config.num_learners else config.num_gpus_per_learner)
    local.training(train_batch_size_per_learner=config.total_train_batch_size)
    local.evaluation(evaluation_num_env_runners=0, evaluation_parallel_to_training=False)
    return local.resources(ray_address=None)


_SECTIONS = (
    "training",
    "environment",
    "env_runners",
    "fault_tolerance",
    "learners",
    "evaluation",
    "reporting",
)
_FOR_GOOD = ("critic_obs", "use_critic", "learner_class", "learner_connector")
"""Settings of ``training`` that change modules and pipelines, so that the states in a checkpoint would not fit."""
_CHANGEABLE = (
    "disable_env_checking",
    "sample_timeout_s",
    "num_cpus_per_env_runner",
    "num_gpus_per_env_runner",
    "custom_resources_per_env_runner",
    "max_requests_in_flight_per_env_runner",
    "num_cpus_per_learner",
    "restart_failed_env_runners",
    "ignore_env_runner_failures",
    "max_num_env_runner_restarts",
    "env_runner_health_probe_timeout_s",
    "env_runner_restore_timeout_s",
    "evaluation_num_env_runners",
    "evaluation_parallel_to_training",
    "rollout_fragment_length",
    "batch_mode",
    "explore",
    "restart_failed_sub_environments",
    "num_consecutive_env_failures_tolerance",
    "stack_modules",
    "autocast_dtype",
    "evaluation_interval",
    "evaluation_duration",
    "metrics_num_episodes_for_smoothing",
)
"""Settings of other sections that can change when a run is resumed."""
WITH_OPTIONS = {
    "env": "ENV",
    "env_config": "--env-config",
    "wrappers": "--wrap",
    "num_envs_per_env_runner": "--num-envs",
    "num_env_runners": "--num-env-runners",
    "num_learners": "--num-learners",
    "ray_address": "--ray-address",
    "num_env_workers": "--num-env-workers",
    "num_gpus_per_learner": "--num-gpus-per-learner",
}
"""Settings of the config that ``--set`` does not take, with the options for them."""


def set_by_name(config: Any, settings: Mapping[str, Any]) -> Any:
    """Sets the settings of ``--set``, in whichever section of the config they are. Returns the config.

    Raises:
        ConfigError: If a setting does not exist, or if the command line has a separate option for it.
    """
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in WITH_OPTIONS:
            raise ConfigError(f"--set: {name!r} has a separate option. Use {WITH_OPTIONS[name]}.")
        known = (section for section in _SECTIONS if name in inspect.signature(getattr(config, section)).parameters)
        sections.setdefault(next(known, "training"), {})[name] = value
    for section, own in sections.items():
        getattr(config, section)(**own)
    return config


def check_changeable(config: Any, settings: Iterable[str]) -> None:
    """Checks that settings can change when a run is resumed.

    Raises:
        ConfigError: For the first setting that modules, pipelines or ongoing episodes of a checkpoint depend on.
    """
    training = inspect.signature(config.training).parameters
    for name in settings:
        if name in _FOR_GOOD or (name in config.to_dict() and name not in (*training, *_CHANGEABLE)):
            raise ConfigError(
                f"train --resume: {name!r} cannot be changed, because the modules, pipelines or ongoing episodes of "
                f"the checkpoint depend on it. Start a new run with it."
            )


def training_settings(pairs: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of ``--set``: settings of the config, and settings of the run (only ``action_mask_key``)."""
    training = merged(pairs)
    name = "action_mask_key"
    return training, {name: training.pop(name) or None} if name in training else {}


def use_threads(number: int) -> None:
    """Sets the number of threads with which torch computes."""
    import torch

    torch.set_num_threads(number)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_whole_or_auto(value: Any) -> bool:
    return value == "auto" or is_whole(value)


_FLAG = ("true or false", lambda value: isinstance(value, bool))
_TEXT = ("text", lambda value: isinstance(value, str))
_SETTINGS = ("a JSON object", lambda value: isinstance(value, dict))
_COUNT = ("a whole number of at least 1", lambda value: is_whole(value, 1))
_WHOLE = ("a whole number of at least 0", is_whole)
_TEXT_OR_NULL = ("text or null", lambda value: value is None or isinstance(value, str))
_AUTO = ('a whole number of at least 0, or "auto"', _is_whole_or_auto)
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "env": _TEXT,
    "env_config": _SETTINGS,
    "wrappers": ("a list of texts", _are_texts),
    "algo": ('"ppo" or "mappo"', lambda value: value in ("ppo", "mappo")),
    "policies": _TEXT,
    "mapping": _TEXT_OR_NULL,
    "modules": ("a list of texts, or null", lambda value: value is None or _are_texts(value)),
    "eval_opponent": ('"random" or null', lambda value: value in (None, OPPONENT)),
    "steps": _COUNT,
    "seed": _WHOLE,
    "num_envs": _COUNT,
    "num_env_runners": _WHOLE,
    "num_learners": _WHOLE,
    "ray_address": _TEXT_OR_NULL,
    "num_env_workers": _AUTO,
    "num_gpus_per_learner": _AUTO,
    "training": _SETTINGS,
    "hidden": (
        "a list of whole numbers of at least 1",
        lambda value: isinstance(value, list) and all(is_whole(item, 1) for item in value),
    ),
    "activation": (f"one of {', '.join(ACTIVATIONS)}", lambda value: value in ACTIVATIONS),
    "share_value_layers": _FLAG,
    "model": _SETTINGS,
    "env_to_module": ("a list of texts", _are_texts),
    "learner_connector": ("a list of texts", _are_texts),
    "anneal_lr": _FLAG,
    "checkpoint_every": _COUNT,
    "eval_episodes": _COUNT,
    "baseline_seconds": _COUNT,
    "video": _FLAG,
    "threads": _COUNT,
    "env_check": _FLAG,
    "action_mask_key": _TEXT_OR_NULL,
    "preset": _TEXT_OR_NULL,
}
"""The expected type of each setting in a ``config.json``, in words and as a test."""


def settings_from_json(data: Any, source: str = "config.json of the run") -> RunSettings:
    """Returns the settings that a run's ``config.json`` has under ``"command"``.

    Args:
        data: The JSON data.
        source: The name of the file, for messages.

    Raises:
        CheckpointError: If a setting is unknown or has the wrong type. The message names it.
    """
    if not isinstance(data, dict) or not isinstance(data.get("env"), str):
        raise CheckpointError(
            f"{source}: expected its settings under 'command', with an 'env', so the file is damaged. Start a new run."
        )
    for key, value in data.items():
        if key not in _EXPECTED:
            raise CheckpointError(f"{source}: unknown setting {brief(key)}. {did_you_mean(key, _EXPECTED)}")
        kind, fits = _EXPECTED[key]
        if not fits(value):
            raise CheckpointError(
                f"{source}: expected 'command' to have {key!r} as {kind}, but got {brief(value)}. Correct it there."
            )
    return RunSettings(**data)
