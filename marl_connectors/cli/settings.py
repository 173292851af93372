"""What a training run is made of, as the command line has it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from marl_connectors.cli.values import brief, is_whole, merged
from marl_connectors.environments.making.factory import agent_ids, env_name, make_env
from marl_connectors.environments.vector.failures import close_env
from marl_connectors.errors import CheckpointError, ConfigError, did_you_mean
from marl_connectors.names import import_function
from marl_connectors.policy_mapping import PatternPolicies, PolicyMappingFn, check_patterns, policy_mapping

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
"""What the command line trains with unless ``--set`` says otherwise. Batches count agent steps.

These differ from the defaults of ``PPOConfig``, which are RLlib's: they are chosen so that PPO learns well on small
multi-agent tasks without tuning.
"""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A training run.

    Attributes:
        env: What ``make_env`` takes, as text.
        env_config: What the environment is made with.
        wrappers: Around each copy, the innermost first: names with arguments, such as ``"frame_skip_v0:4"``.
        algo: ``"ppo"``, or ``"mappo"`` for critics that see the observations of all agents.
        policies: ``"shared"``, ``"independent"`` or patterns; not used where ``mapping`` is given.
        mapping: ``"module:function"``, or None.
        modules: All modules that ``mapping`` can name; None if its answers for a first episode are all.
        steps: Agent steps at which the run ends.
        seed: Of all random streams.
        num_envs: Copies of the environment that are stepped together.
        num_env_workers: Processes over which they are spread; ``"auto"`` for as many as are worth it.
        num_gpus_per_learner: Whether modules are on the GPU; ``"auto"`` if there is one.
        training: Settings of the config by name, most of them those of ``PPOConfig.training``; see ``set_by_name``.
        hidden: Widths of the hidden layers.
        share_value_layers: Whether policy and value function have these layers in common.
        checkpoint_every: Iterations from one checkpoint to the next.
        eval_episodes: Episodes of each evaluation.
        baseline_seconds: How long random play, and then the untrained policies, may be measured.
        video: Whether to write a GIF at the end.
        action_mask_key: Under which key action masks are; ``"auto"`` by PettingZoo's convention, None to ignore them.
        env_check: Whether the environment is tried out first, and its observations held against their space.
        threads: Of torch. With networks as small as these, more than one costs more than it saves.
    """

    env: str
    env_config: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    algo: str = "ppo"
    policies: str = "shared"
    mapping: str | None = None
    modules: list[str] | None = None
    steps: int = 1_000_000
    seed: int = 0
    num_envs: int = 8
    num_env_workers: int | str = "auto"
    num_gpus_per_learner: float | str = "auto"
    training: dict[str, Any] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    share_value_layers: bool = False
    checkpoint_every: int = 20
    eval_episodes: int = 20
    baseline_seconds: int = 10
    video: bool = True
    threads: int = 1
    env_check: bool = True
    action_mask_key: str | None = "auto"

    def default_folder_name(self) -> str:
        """``<env>-<policies>-seed<seed>``, such as ``simple_spread_v3-shared-seed0``; other algorithms are named."""
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
        """The policy mapping function.

        Raises:
            ConfigError: If it is not there or not a function.
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
        """The ``Algorithm`` of the run, with the patterns of the policies checked against the environment's agents."""
        use_threads(self.threads)
        mapping = self.mapping_fn()
        if isinstance(mapping, PatternPolicies):
            env = make_env(self.env, self.env_config, wrappers=self.wrappers)
            check_patterns(mapping, agent_ids(env))
            close_env(env, env_name(self.env))

        from marl_connectors.algorithms.mappo import MAPPOConfig
        from marl_connectors.algorithms.ppo import PPOConfig
        from marl_connectors.rl_module.default_model_config import DefaultModelConfig

        model = DefaultModelConfig(
            fcnet_hiddens=self.hidden, fcnet_activation="tanh", vf_share_layers=self.share_value_layers
        )
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
            .env_runners(num_envs_per_env_runner=self.num_envs, num_env_workers=self.num_env_workers)
            .learners(num_gpus_per_learner=self.num_gpus_per_learner)
            .rl_module(model_config=model)
            .debugging(seed=self.seed)
        )
        return set_by_name(config, self.training).build_algo()


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
"""Settings of ``training`` that decide about modules and pipelines, whose states a checkpoint has."""
_CHANGEABLE = (
    "disable_env_checking",
    "sample_timeout_s",
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
"""Settings of other sections that a run can be gone on with though they were others when its checkpoint was saved."""
_WITH_OPTIONS = {
    "env": "ENV",
    "env_config": "--env-config",
    "wrappers": "--wrap",
    "num_envs_per_env_runner": "--num-envs",
    "num_env_workers": "--num-env-workers",
    "num_gpus_per_learner": "--num-gpus-per-learner",
}


def set_by_name(config: Any, settings: Mapping[str, Any]) -> Any:
    """Sets what ``--set`` was given, whichever section of the config has it; gives the config.

    Raises:
        ConfigError: If there is no such setting, or if the command line has an option of its own for it.
    """
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in _WITH_OPTIONS:
            raise ConfigError(f"--set: {name!r} is given by an option of its own. Use {_WITH_OPTIONS[name]}.")
        known = (section for section in _SECTIONS if name in inspect.signature(getattr(config, section)).parameters)
        sections.setdefault(next(known, "training"), {})[name] = value
    for section, own in sections.items():
        getattr(config, section)(**own)
    return config


def check_changeable(config: Any, settings: Iterable[str]) -> None:
    """Checks that a run can be gone on with other settings than it began with.

    Raises:
        ConfigError: For the first one that modules, pipelines or ongoing episodes of a checkpoint depend on.
    """
    training = inspect.signature(config.training).parameters
    for name in settings:
        if name in _FOR_GOOD or (name in config.to_dict() and name not in (*training, *_CHANGEABLE)):
            raise ConfigError(
                f"train --resume: {name!r} cannot be changed, because the modules, pipelines or ongoing episodes of "
                f"the checkpoint depend on it. Start a new run with it."
            )


def training_settings(pairs: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of ``--set``: those of PPO's ``training``, and those of the run, of which there is one."""
    training = merged(pairs)
    name = "action_mask_key"
    return training, {name: training.pop(name) or None} if name in training else {}


def use_threads(number: int) -> None:
    """Has torch compute with so many threads from now on."""
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
_AUTO = ('a whole number of at least 0, or "auto"', _is_whole_or_auto)
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "env": _TEXT,
    "env_config": _SETTINGS,
    "wrappers": ("a list of texts", _are_texts),
    "algo": ('"ppo" or "mappo"', lambda value: value in ("ppo", "mappo")),
    "policies": _TEXT,
    "mapping": ("text or null", lambda value: value is None or isinstance(value, str)),
    "modules": ("a list of texts, or null", lambda value: value is None or _are_texts(value)),
    "steps": _COUNT,
    "seed": ("a whole number of at least 0", is_whole),
    "num_envs": _COUNT,
    "num_env_workers": _AUTO,
    "num_gpus_per_learner": _AUTO,
    "training": _SETTINGS,
    "hidden": (
        "a list of whole numbers of at least 1",
        lambda value: isinstance(value, list) and all(is_whole(item, 1) for item in value),
    ),
    "share_value_layers": _FLAG,
    "checkpoint_every": _COUNT,
    "eval_episodes": _COUNT,
    "baseline_seconds": _COUNT,
    "video": _FLAG,
    "threads": _COUNT,
    "env_check": _FLAG,
    "action_mask_key": ("text or null", lambda value: value is None or isinstance(value, str)),
}
"""What each setting must be in a ``config.json``."""


def settings_from_json(data: Any, source: str = "config.json of the run") -> RunSettings:
    """The settings that a run's ``config.json`` has under ``"command"``.

    Args:
        data: What is there.
        source: The file, for messages.

    Raises:
        CheckpointError: If they are not settings of this version, or of another type; names the setting.
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
