"""``marl-connectors explain``: what each connector piece does to the data of an environment or of a user's config."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_connectors.cli.presets import new_settings
from marl_connectors.cli.run_settings import (
    SHORT_FORMS,
    RunSettings,
    check_model,
    in_this_process,
    set_by_name,
    set_pieces,
    training_settings,
    use_threads,
)
from marl_connectors.cli.values import jsonable, merged, piece_names
from marl_connectors.environments.making.factory import agent_ids, env_name, make_env
from marl_connectors.environments.vector.env_failures import close_env
from marl_connectors.errors import ConfigError, describe_error, did_you_mean
from marl_connectors.names import import_module
from marl_connectors.policy_mapping import PatternPolicies, check_patterns

DEFAULT_NAME = "config"
"""The name in a file or module that ``--config`` looks up if none is given."""
LEGEND = "+ added   ~ changed   - removed   > written to the trajectories"


def run(args: argparse.Namespace) -> int:
    """Explains pipelines as the parsed options say. Returns the exit status."""
    given = vars(args)
    algo = _algorithm(given)
    try:
        explanations = algo.explain()
    finally:
        algo.stop()
    if "json" in given:
        print(json.dumps(jsonable({name: each.to_dict() for name, each in explanations.items()}), indent=2))
        return 0
    num_envs = algo.config.num_envs_per_env_runner
    env = algo.config.env if isinstance(algo.config.env, str) else env_name(algo.config.env)
    print(f"{env}: what each piece does to one batch. {num_envs} sub-environments.\n{LEGEND}")
    print(f"Action masks: {algo.masking}\n" if str(algo.masking) else "")
    print("\n\n".join(str(each) for each in explanations.values()))
    return 0


def _algorithm(given: dict[str, Any]) -> Any:
    """Builds the algorithm of the user's config with the given options; or of the options and defaults alone."""
    options: dict[str, Any] = {
        key: merged(value) if key in ("env_config", "model") else value for key, value in given.items()
    }
    training, own_settings = training_settings(options.pop("set", []))
    for name in ("env_to_module", "learner_connector"):
        if name in options:
            options[name] = piece_names(options[name])
    options = {**own_settings, **options}
    if "config" in given:
        use_threads(given.get("threads", 1))
        config = with_options(in_this_process(load_config(given["config"])), {**options, "training": training})
        return in_this_process(config).build_algo()
    if "env" not in given:
        raise ConfigError("explain: name an environment, or a config that has one: --config FILE.py")
    return dataclasses.replace(new_settings({**given, "preset": False}), num_env_workers=0).build_algorithm()


# The config that --config names.


def load_config(spec: str) -> Any:
    """Loads the ``AlgorithmConfig`` that ``"my_file.py"`` or ``"my.module:name"`` names or returns, and copies it.

    Args:
        spec: A file whose name ends in ``.py``, or a module; then, after a colon, a name in it (default ``config``).

    Raises:
        ConfigError: If the file, module or name does not exist, raises an error, or is something else.
    """
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

    source, name = (spec, "") if spec.endswith(".py") else spec.rpartition(":")[::2] if ":" in spec else (spec, "")
    name = name or DEFAULT_NAME
    if source.endswith(".py"):
        module = _module_of_file(Path(source))
    else:
        module = import_module(source, who="--config", error=ConfigError)
    if not hasattr(module, name):
        known = [
            key for key, value in vars(module).items() if isinstance(value, AlgorithmConfig) or _is_own(value, module)
        ]
        raise ConfigError(f"--config: {source} has no {name!r}. {did_you_mean(name, known)}")
    found = getattr(module, name)
    if callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise ConfigError(f"--config: {name}() of {source} fails: {describe_error(error)}.") from error
    if not isinstance(found, AlgorithmConfig):
        raise ConfigError(
            f"--config: expected {name!r} of {source} to be an AlgorithmConfig, such as PPOConfig(), or a function "
            f"that returns one, but got {type(found).__name__}."
        )
    return found.copy()


def with_options(config: Any, given: Mapping[str, Any]) -> Any:
    """Returns the config with the given options of the command line, which have precedence over its settings.

    Args:
        config: The config. It may be changed.
        given: The options of ``explain`` by name.
    """
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    if "env" in given and given["env"] != config.env:  # these settings belong to the other environment
        config.environment(
            given["env"], env_config={}, reset_options=None, wrappers=None, observation_space=None, action_space=None
        )
    if "env_config" in given:
        config.environment(env_config={**config.env_config, **given["env_config"]})
    if "wrappers" in given:
        config.environment(wrappers=given["wrappers"])
    if "action_mask_key" in given:
        config.environment(action_mask_key=given["action_mask_key"])
    if "env_check" in given:
        config.environment(disable_env_checking=not given["env_check"])
    if config.env is None:
        raise ConfigError("explain: the config has no environment. Name one: marl-connectors explain ENV --config ...")
    if "mapping" in given or "policies" in given:
        mapping = RunSettings("", policies=given.get("policies", ""), mapping=given.get("mapping")).mapping_fn()
        if isinstance(mapping, PatternPolicies):
            env = make_env(config.env, config.env_config, wrappers=config.wrappers)
            check_patterns(mapping, agent_ids(env))
            close_env(env, env_name(config.env))
        config.multi_agent(policies=None, policy_mapping_fn=mapping)
    if "modules" in given:
        config.multi_agent(policies=given["modules"])
    if "num_envs" in given:
        config.env_runners(num_envs_per_env_runner=given["num_envs"])
    if "seed" in given:
        config.debugging(seed=given["seed"])
    model = {key: given[name] for key, name in SHORT_FORMS.items() if name in given} | given.get("model", {})
    if model:
        old: Any = config.model_config
        is_own = isinstance(old, DefaultModelConfig)
        if dataclasses.is_dataclass(old) and not is_own:
            raise ConfigError(
                f"--model, --hidden, --activation, --share-value-layers: they are settings of the default modules, but "
                f"the config's model_config is a {type(old).__name__}. Leave them out."
            )
        if is_own:
            check_model(model)
        config.rl_module(model_config=dataclasses.replace(old, **model) if is_own else {**(old or {}), **model})
    set_by_name(config, given.get("training", {}))
    set_pieces(config, env_to_module=given.get("env_to_module"), learner_connector=given.get("learner_connector"))
    return config


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"--config: there is no file {str(path)!r}. Check its path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for imports of files in the same folder
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise ConfigError(f"--config: {path} fails: {describe_error(error)}.") from error
    return module


def _is_own(value: Any, module: Any) -> bool:
    """Whether a value is a function that the module defines."""
    return callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module.__name__
