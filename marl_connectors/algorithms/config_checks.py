"""Whether settings go together, and with what there is."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.rl_module.apis import InferenceOnlyAPI
from marl_connectors.typing import AgentID, ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
    from marl_connectors.rl_module.rl_module import RLModuleSpec


def check_settings(config: AlgorithmConfig) -> None:
    """Checks settings against one another and against this machine. What each may be is checked when it is set.

    Raises:
        ConfigError: For the first ones that are at odds.
    """
    who = type(config).__name__
    if config.env is None:
        raise ConfigError(f"{who}: no environment. Call .environment(env=...).")
    gpus = config.num_gpus_per_learner
    if gpus != "auto" and gpus and not torch.cuda.is_available():
        raise ConfigError(
            f"{who}: num_gpus_per_learner={gpus:g}, but torch {torch.__version__} sees no CUDA device. "
            f"Set num_gpus_per_learner='auto' or 0 to use the CPU, or install a build of torch for your GPU."
        )
    check_vectorization(config)


def check_vectorization(config: AlgorithmConfig) -> None:
    """Checks that the copies of the environment can be stepped where they are to be.

    Raises:
        ConfigError: If they do not fit.
    """
    mode = config.gym_env_vectorize_mode
    wants_workers = config.num_env_workers not in (0, "auto")
    if mode == "vector_entry_point" and wants_workers:
        raise ConfigError(
            f"gym_env_vectorize_mode='vector_entry_point': the environment's maker gives all copies at once, which "
            f"worker processes cannot share. Set num_env_workers=0 instead of {config.num_env_workers}, or use the "
            f"mode 'async'."
        )
    if config.render_env and (wants_workers or mode == "async"):
        what = f"num_env_workers={config.num_env_workers}" if wants_workers else "gym_env_vectorize_mode='async'"
        raise ConfigError(
            f"render_env=True: windows belong to the process that steps the environment, but {what} steps it in "
            f"others. Set num_env_workers=0 and gym_env_vectorize_mode='sync'."
        )


_OF_MODULES = ("gamma", "grad_clip", "grad_clip_by", "lr", "minibatch_size", "model_config", "num_epochs")


def check_overrides(module_id: ModuleID, overrides: Mapping[str, Any], of_all: Collection[str], who: str) -> None:
    """Checks that a module can have settings of its own.

    Args:
        module_id: Whose.
        overrides: The settings.
        of_all: Names of the settings that every algorithm has; those of one algorithm are for its modules.
        who: For the message.

    Raises:
        ConfigError: For a setting of the run as a whole.
    """
    for name in overrides:
        if name in of_all and name not in _OF_MODULES:
            raise ConfigError(
                f"{who}: {name!r} is a setting of the whole run, so module "
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


def check_evaluation(settings: Mapping[str, Any], who: str) -> None:
    """Checks that evaluations can have settings of their own.

    Raises:
        ConfigError: For a setting that they share with training.
    """
    for name in settings:
        if name not in _IN_EVALUATIONS:
            raise ConfigError(
                f"{who}: evaluation_config: {name!r} cannot be another one in evaluations, only "
                f"{', '.join(_IN_EVALUATIONS)} can. Leave it out."
            )
