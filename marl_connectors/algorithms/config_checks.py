"""Whether settings are of the right kind, and go together."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from marl_connectors.environments.wrappers import checked_wrappers
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.ops.schedule import check_schedule
from marl_connectors.policy_mapping import policy_mapping
from marl_connectors.rl_module.apis import InferenceOnlyAPI
from marl_connectors.typing import AgentID, ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
    from marl_connectors.rl_module.rl_module import RLModuleSpec


_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def check_settings(config: AlgorithmConfig) -> None:
    """Checks the settings that every algorithm has.

    Raises:
        ConfigError: For the first one that is of the wrong kind, or at odds with the others.
    """
    if config.env is None:
        raise ConfigError(f"{type(config).__name__}: no environment. Call .environment(env=...).")
    checked_wrappers(config.wrappers)
    key = config.action_mask_key
    require(config, "action_mask_key", key is None or (isinstance(key, str) and key), "'auto', a key, or None")
    if checked_evaluation(config.evaluation_config) is not None:
        check_settings(config.get_evaluation_config().update_from_dict({"evaluation_config": None}))
    for name in ("num_env_runners", "num_learners"):
        if getattr(config, name) != 0:
            raise ConfigError(
                f"{type(config).__name__}: {name}={getattr(config, name)!r}, but this version samples and learns in "
                f"one process. Set {name}=0, and more num_envs_per_env_runner for larger batches."
            )
    for name in ("num_envs_per_env_runner", "train_batch_size_per_learner", "num_epochs", "evaluation_duration"):
        require(config, name, _is_count(getattr(config, name)) and getattr(config, name) >= 1, "a whole number >= 1")
    for name in ("minibatch_size", "evaluation_interval"):
        value = getattr(config, name)
        require(config, name, value is None or (_is_count(value) and value >= 1), "a whole number >= 1, or None")
    require(config, "episode_lookback_horizon", _is_count(config.episode_lookback_horizon), "a whole number >= 0")
    fragment = config.rollout_fragment_length
    require(
        config,
        "rollout_fragment_length",
        fragment == "auto" or (_is_count(fragment) and fragment),
        "'auto' or a whole number >= 1",
    )
    require(config, "gamma", _is_number(config.gamma) and 0 <= config.gamma <= 1, "a number in [0, 1]")
    require(
        config,
        "grad_clip",
        config.grad_clip is None or (_is_number(config.grad_clip) and config.grad_clip > 0),
        "a number > 0, or None",
    )
    clip = config.clip_rewards
    require(
        config,
        "clip_rewards",
        clip is None or clip is False or clip is True or (_is_number(clip) and clip > 0),
        "True, a number > 0, or None",
    )
    require(config, "seed", config.seed is None or _is_count(config.seed), "a whole number >= 0, or None")
    for name, choices in (
        ("grad_clip_by", ("global_norm", "norm", "value")),
        ("batch_mode", ("truncate_episodes", "complete_episodes")),
        ("count_steps_by", ("env_steps", "agent_steps")),
    ):
        if getattr(config, name) not in choices:
            hint = did_you_mean(getattr(config, name), choices)
            raise ConfigError(f"{type(config).__name__}: {name}={getattr(config, name)!r}. {hint}")
    for name, default in vars(type(config)()).items():
        if isinstance(default, bool) and not name.startswith("_"):
            require(config, name, isinstance(getattr(config, name), bool), "True or False")
    mode = config.torch_compile_learner_dynamo_mode
    if mode not in (None, *_COMPILE_MODES):
        hint = did_you_mean(str(mode), _COMPILE_MODES)
        raise ConfigError(f"{type(config).__name__}: torch_compile_learner_dynamo_mode={mode!r}. {hint}")
    if mode is not None and not config.torch_compile_learner:
        raise ConfigError(
            f"{type(config).__name__}: torch_compile_learner_dynamo_mode={mode!r} does nothing without "
            f".framework(torch_compile_learner=True)."
        )
    require(config, "autocast_dtype", config.autocast_dtype in (None, "bfloat16"), "'bfloat16' or None")
    check_schedule(f"{type(config).__name__}: lr", config.lr, low=0.0)
    gpus = config.num_gpus_per_learner
    require(
        config,
        "num_gpus_per_learner",
        gpus == "auto" or (isinstance(gpus, (int, float)) and not isinstance(gpus, bool) and 0 <= gpus <= 1),
        "'auto', or a number from 0 to 1 (a learner uses one GPU)",
    )
    if gpus != "auto" and gpus and not torch.cuda.is_available():
        raise ConfigError(
            f"{type(config).__name__}: num_gpus_per_learner={gpus}, but torch {torch.__version__} sees no CUDA device. "
            f"Set num_gpus_per_learner='auto' or 0 to use the CPU, or install a build of torch for your GPU."
        )


_OF_MODULES = ("gamma", "grad_clip", "grad_clip_by", "lr", "minibatch_size", "model_config", "num_epochs")


def check_overrides(module_id: ModuleID, overrides: Mapping[str, Any], of_all: Collection[str]) -> None:
    """Checks that a module can have settings of its own.

    Args:
        module_id: Whose.
        overrides: The settings.
        of_all: Names of the settings that every algorithm has; those of one algorithm are for its modules.

    Raises:
        ConfigError: For a setting of the run as a whole.
    """
    for name in overrides:
        if name in of_all and name not in _OF_MODULES:
            raise ConfigError(
                f"algorithm_config_overrides_per_module: {name!r} is a setting of the whole run, so module "
                f"{module_id!r} cannot have its own. Modules can differ in {', '.join(_OF_MODULES)} and the settings "
                f"of the algorithm's loss."
            )


def warn_of_overrides(overrides: Mapping[ModuleID, Any], module_ids: Collection[ModuleID]) -> None:
    """Warns of settings for modules that there are not when a run begins: ``add_module`` may bring them, or a typo."""
    for module_id in overrides:
        if module_id not in module_ids:
            warnings.warn(
                f"algorithm_config_overrides_per_module: there is no module {module_id!r}, so its settings do nothing. "
                f"{did_you_mean(module_id, module_ids)} Those of a module that is added later can be given then, and "
                f"without this warning: algo.add_module({module_id!r}, config_overrides={{...}}).",
                stacklevel=2,
            )


def check_policies_to_train(wanted: Any, module_ids: Collection[ModuleID]) -> None:
    """Checks that ``policies_to_train`` names modules that there are.

    Raises:
        ConfigError: If not.
    """
    if wanted is None or callable(wanted):
        return
    if isinstance(wanted, str) or not isinstance(wanted, Collection):
        raise ConfigError(
            f"policies_to_train: must be a collection of module ids or a function, not {wanted!r}. Write [{wanted!r}]."
        )
    for module_id in wanted:
        if module_id not in module_ids:
            raise ConfigError(
                f"policies_to_train: there is no module {module_id!r}. {did_you_mean(str(module_id), module_ids)}"
            )


def check_uses(
    specs: Mapping[ModuleID, RLModuleSpec], agents: Mapping[ModuleID, Collection[AgentID]], trained: Any
) -> None:
    """Checks that no agent acts by a module that is not for acting, and none that cannot be trained is.

    Args:
        specs: How the modules are built.
        agents: Whom a first episode maps to each.
        trained: ``policies_to_train``; of a function it is not known.

    Raises:
        ConfigError: If one does.
    """
    for module_id, spec in specs.items():
        if not agents.get(module_id):
            continue
        if spec.learner_only:
            raise ConfigError(
                f"rl_module_spec: module {module_id!r} is learner_only, but agent {next(iter(agents[module_id]))!r} "
                f"maps to it. Leave learner_only out, or map the agent to another module."
            )
        leaves_out = spec.inference_only and issubclass(spec.module_class or object, InferenceOnlyAPI)
        if leaves_out and not callable(trained) and (trained is None or module_id in trained):
            raise ConfigError(
                f"rl_module_spec: module {module_id!r} is inference_only, so it lacks what training needs. Leave "
                f"inference_only out, or do not train it: .multi_agent(policies_to_train=[...])."
            )


_IN_EVALUATIONS = ("policy_mapping_fn", "explore", "num_envs_per_env_runner", "num_env_workers", "callbacks_class")


def checked_evaluation(settings: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The settings that are others in evaluations, as they are stored.

    Raises:
        ConfigError: For a setting that evaluations share with training.
    """
    if settings is None:
        return None
    for name in settings:
        if name not in _IN_EVALUATIONS:
            raise ConfigError(
                f"evaluation_config: {name!r} cannot be another one in evaluations, only "
                f"{', '.join(_IN_EVALUATIONS)} can. Leave it out."
            )
    checked = dict(settings)
    if "policy_mapping_fn" in checked:
        checked["policy_mapping_fn"] = policy_mapping(checked["policy_mapping_fn"])
    return checked


def require(config: AlgorithmConfig, name: str, holds: object, expected: str) -> None:
    """Raises ConfigError, with the setting's name and value and what was ``expected``, unless something ``holds``."""
    if not holds:
        raise ConfigError(f"{type(config).__name__}: {name} must be {expected}, not {getattr(config, name)!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
