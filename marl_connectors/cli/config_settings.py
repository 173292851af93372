"""AlgorithmConfigs of the command line: loaded from Python files, and set by the names of sections and settings."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from marl_connectors.cli.known_algorithms import algorithm_of
from marl_connectors.cli.other_names import setting_instead
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER, MODULE_TO_ENV
from marl_connectors.errors import ConfigError, describe_error, did_you_mean
from marl_connectors.json_data import brief, jsonable
from marl_connectors.names import import_attribute, import_module, qualified_name
from marl_connectors.policy_mapping import (
    IndependentPolicies,
    PatternPolicies,
    PolicyMappingFn,
    SharedPolicy,
    policy_mapping,
)
from marl_connectors.programs import PROGRAM, command
from marl_connectors.validators import checked

DEFAULT_NAMES = ("config", "make_config")
"""The names in a file or module that are looked up if none is given."""


# A config in a Python file -------------------------------------------------------------------------------------------


def load_config(spec: str) -> Any:
    """Loads the ``AlgorithmConfig`` that ``"my_file.py"`` or ``"my.module:name"`` names or returns, and copies it.

    Args:
        spec: A file whose name ends in ``.py``, or a module; then, after a colon, a name in it. Without one, the name
            is ``config`` or ``make_config``.

    Raises:
        ConfigError: If the file, module or name does not exist, raises an error, or is something else.
    """
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

    source, name = _source_and_name(spec)
    if source.endswith(".py"):
        module = _module_of_file(Path(source))
    else:
        module = import_module(source, who="--config", error=ConfigError)
    name = name or next((each for each in DEFAULT_NAMES if hasattr(module, each)), DEFAULT_NAMES[0])
    if not hasattr(module, name):
        known = [
            key for key, value in vars(module).items() if isinstance(value, AlgorithmConfig) or _is_own(value, module)
        ]
        raise ConfigError(f"--config: {_shown(Path(source))} has no {name!r}. {did_you_mean(name, known)}")
    found = getattr(module, name)
    if callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"--config: {name}() of {_shown(Path(source))} fails: {describe_error(error)}."
            ) from error
    if not isinstance(found, AlgorithmConfig):
        raise ConfigError(
            f"--config: expected {name!r} of {_shown(Path(source))} to be an AlgorithmConfig, such as PPOConfig(), or "
            f"a function that returns one, but got {type(found).__name__}."
        )
    return found.copy()


def _source_and_name(spec: str) -> tuple[str, str]:
    return (spec, "") if spec.endswith(".py") or ":" not in spec else cast(Any, spec.rpartition(":")[::2])


def has_source(spec: str) -> bool:
    """Whether the file of a spec exists; True for a module."""
    source, _ = _source_and_name(spec)
    return not source.endswith(".py") or Path(source).is_file()


def module_name(spec: str) -> str:
    """Returns the name of the module of a spec: that of its file without the ending, or the module itself."""
    source, _ = _source_and_name(spec)
    return Path(source).stem if source.endswith(".py") else source


def absolute_spec(spec: str, folder: Path | None = None) -> str:
    """Returns a spec with the absolute path of its file, which is relative to a folder (default: the current one)."""
    source, name = _source_and_name(spec)
    if not source.endswith(".py"):
        return spec
    return str(((folder or Path()) / source).resolve()) + (f":{name}" if name else "")


def _shown(path: Path) -> Path:
    """Returns a path relative to the current folder if it is in it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _module_of_file(path: Path) -> Any:
    try:
        stat = path.stat() if path.is_file() else None
    except OSError as error:
        raise ConfigError(
            f"--config: {_shown(path)} cannot be read: {error.strerror or error}. Check its path."
        ) from error
    if stat is None:
        raise ConfigError(f"--config: there is no file {str(_shown(path))!r}. Check its path.")
    return _loaded(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, mtime_ns: int, size: int) -> Any:
    """Runs a file once for each of its versions, and returns its module."""
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
        raise ConfigError(f"--config: {_shown(path)} fails: {describe_error(error)}.") from error
    return module


def _is_own(value: Any, module: Any) -> bool:
    """Whether a value is a function that the module defines."""
    return callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module.__name__


# Settings by name -----------------------------------------------------------------------------------------------------


def configured(config: Any, values: Mapping[str, Any]) -> Any:
    """Returns the config with values for fields of ``RunSettings``, which have precedence over its own settings.

    Args:
        config: The config. It may be changed.
        values: The values by field. Fields of the run itself, such as ``checkpoint_every``, are not in the config.

    Raises:
        ConfigError: If a value is refused.
    """
    _set_environment(config, values)
    if {"policies", "mapping"} & values.keys():
        mapping = mapping_fn(values.get("policies", "shared"), values.get("mapping"))
        config.multi_agent(policies=values.get("modules"), policy_mapping_fn=mapping)
    elif "modules" in values:
        config.multi_agent(policies=values["modules"])
    if {"num_envs", "num_env_runners"} & values.keys():
        total, number = (values.get(name, getattr(config, name)) for name in ("num_envs", "num_env_runners"))
        config.env_runners(num_env_runners=number, num_envs_per_env_runner=envs_per_env_runner(total, number))
    config.update_from_dict({name: values[name] for name in _SAME if name in values})
    _set_model(config, values)
    set_by_name(config, values.get("training", {}))
    if (explore := values.get("eval_explore")) not in (None, explores_in_evaluations(config)):
        config.evaluation(evaluation_config={**(config.evaluation_config or {}), "explore": explore})
    if values.get("anneal_lr"):
        from marl_connectors.algorithms.config.sections import sections

        names = sections(type(config))["training"]
        config.training(**annealed({name: getattr(config, name) for name in names}, values["steps"]))
    set_pieces(config, env_to_module=values.get("env_to_module"), learner_connector=values.get("learner_connector"))
    return config


def explores_in_evaluations(config: Any) -> bool | None:
    """Whether actions are sampled in evaluations; None if the policies act as they were trained."""
    return (config.evaluation_config or {}).get("explore")


_SAME: Final = ("num_env_workers", "num_learners", "num_gpus_per_learner", "ray_address", "seed")
"""Fields of RunSettings that are settings of the config under the same names."""


def _set_environment(config: Any, values: Mapping[str, Any]) -> None:
    if "env" in values and values["env"] != config.env:  # these settings belong to the other environment
        config.environment(
            values["env"], env_config={}, reset_options=None, wrappers=None, observation_space=None, action_space=None
        )
    for name in ("env_config", "wrappers", "action_mask_key"):
        if name in values:
            config.environment(**{name: values[name]})
    if "env_check" in values:
        config.environment(disable_env_checking=not values["env_check"])
    if config.env is None:
        raise ConfigError("--config: the config has no environment. Name one before --config, such as CartPole-v1.")


def mapping_fn(policies: str, mapping: str | None, who: str = "--mapping") -> PolicyMappingFn:
    """Returns the policy mapping function of ``--policies``, or of ``--mapping`` if that is not None.

    Args:
        policies: The text of ``--policies``.
        mapping: The name of the function, or None.
        who: The first words of messages about it.

    Raises:
        ConfigError: If it does not exist or is not a function.
    """
    if mapping is None:
        try:
            return policy_mapping(policies)
        except ConfigError as error:
            raise ConfigError(f"--policies: {str(error).partition(': ')[2]}") from error
    fn: Any = import_attribute(mapping, who=who, error=ConfigError)
    if not callable(fn):
        raise ConfigError(
            f"{who}: expected {mapping!r} to be a function of (agent_id, episode, **kwargs), but it is {fn!r}."
        )
    return cast(PolicyMappingFn, fn)


def _set_model(config: Any, values: Mapping[str, Any]) -> None:
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    model = {key: values[name] for key, name in SHORT_FORMS.items() if name in values} | values.get("model", {})
    if not model:
        return
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


# The fields of RunSettings that a config has -------------------------------------------------------------------------


def settings_of(config: Any) -> dict[str, Any]:
    """Returns values for fields of ``RunSettings`` that a config has. Texts stand for objects.

    ``configured`` with some of these values leaves these settings of the config as they are.
    """
    from marl_connectors.algorithms.config.sections import sections
    from marl_connectors.algorithms.config.settings import RunSettings
    from marl_connectors.validators import declared

    known = sections(type(config))
    of_run = {name: getattr(config, name) for name in declared(RunSettings)}
    learning = [name for name in known["training"] if name not in known["learners"]]
    mapping, pieces = config.policy_mapping_fn, ("env_to_module_connector", "learner_connector")
    return {
        "env": config.env if isinstance(config.env, str) else _name_of(config.env),
        "env_config": dict(config.env_config),
        "wrappers": [each if isinstance(each, str) else _name_of(each) for each in config.wrappers],
        "algo": algorithm_of(config),
        **policies_of(mapping),
        "modules": None if config.policies is None else list(config.policies),
        "num_envs": config.num_envs,
        "num_env_runners": config.num_env_runners,
        **{name: getattr(config, name) for name in _SAME},
        "seed": config.seed or 0,
        "training": {name: getattr(config, name) for name in learning},
        **_model_of(config.model_config),
        **dict(
            zip(("env_to_module", "learner_connector"), (_pieces_of(getattr(config, p)) for p in pieces), strict=True)
        ),
        "eval_explore": explores_in_evaluations(config),
        "env_check": not config.disable_env_checking,
        "action_mask_key": config.action_mask_key,
        **{name: value for name, value in of_run.items() if not same(value, getattr(RunSettings, name))},
    }


def policies_of(mapping: Any) -> dict[str, Any]:
    """Returns ``policies``, the text for a mapping function that has one, or ``mapping``, the name of the function."""
    match mapping:
        case SharedPolicy() if mapping == SharedPolicy():
            return {"policies": "shared"}
        case IndependentPolicies():
            return {"policies": "independent"}
        case PatternPolicies():
            return {"policies": ",".join(f"{pattern}={module}" for pattern, module in mapping.patterns)}
    return {"mapping": _name_of(mapping)}


def _model_of(model_config: Any) -> dict[str, Any]:
    """Returns ``hidden``, ``activation``, ``share_value_layers`` and ``model``, if they are of the default modules."""
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    default = DefaultModelConfig()
    if isinstance(model_config, DefaultModelConfig):
        names = [field.name for field in dataclasses.fields(default)]
        given = {name: getattr(model_config, name) for name in names}
    elif dataclasses.is_dataclass(model_config):
        return {}
    else:
        given = dict(model_config or {})
    own = {name: value for name, value in given.items() if value != getattr(default, name, None)}
    short = {name: own.pop(key, getattr(default, key)) for key, name in SHORT_FORMS.items()}
    return {**short, "hidden": list(short["hidden"]), "model": own}


def _pieces_of(connector: Any) -> list[str]:
    from marl_connectors.connectors.named_pieces import NamedPieces

    return (
        list(connector.names)
        if isinstance(connector, NamedPieces)
        else []
        if connector is None
        else [_name_of(connector)]
    )


def _name_of(value: Any) -> str:
    """Returns a name of an object for people. Not every object can be found by it."""
    if value is None:
        return ""
    kind = value if hasattr(value, "__qualname__") else type(value)
    return qualified_name(value) or f"{kind.__module__}:{kind.__qualname__}"


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in a ``config.json``."""
    return jsonable(one) == jsonable(other)


SHORT_FORMS = {"fcnet_hiddens": "hidden", "fcnet_activation": "activation", "vf_share_layers": "share_value_layers"}
"""Settings of ``--model`` that have options of their own, with the fields of RunSettings for them."""


def check_model(model: Mapping[str, Any], who: str = "--model") -> None:
    """Checks the settings of ``--model``.

    Args:
        model: The settings.
        who: The first words of messages.

    Raises:
        ConfigError: If the default modules have no such setting, or refuse its value.
    """
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    known = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for key, value in model.items():
        if key not in known:
            raise ConfigError(f"{who}: the default modules have no setting {key!r}. {did_you_mean(key, known)}")
        checked(DefaultModelConfig, key, value, who)


def annealed(training: Mapping[str, Any], steps: int) -> dict[str, list[list[float]]]:
    """Returns schedules for the learning rates among an algorithm's settings. They fall linearly to 0.

    >>> annealed({"lr": 0.1, "gamma": 0.99}, 1000)
    {'lr': [[0, 0.1], [1000, 0.0]]}

    Args:
        training: The settings.
        steps: The number of agent steps.

    Raises:
        ConfigError: If a learning rate is a schedule already.
    """
    rates = learning_rates(training)
    for name, rate in rates.items():
        if not isinstance(rate, (int, float)):
            raise ConfigError(
                f"--anneal-lr: expected {name} to be the learning rate at the beginning, but it is the schedule "
                f"{brief(rate)}. Leave out one of the two (--no-anneal-lr)."
            )
    return {name: [[0, rate], [steps, 0.0]] for name, rate in rates.items()}


def learning_rates(training: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the learning rates among an algorithm's settings, ``lr``, ``actor_lr`` and the like; None is left out."""
    return {
        name: value for name, value in training.items() if (name == "lr" or name.endswith("_lr")) and value is not None
    }


def has_lr_schedule(training: Mapping[str, Any]) -> bool:
    """Whether a learning rate among an algorithm's settings is a schedule."""
    return any(isinstance(rate, list) for rate in learning_rates(training).values())


FLAGS_OFPIECES: Final = {
    ENV_TO_MODULE: "--env-to-module",
    LEARNER: "--learner-connector",
    MODULE_TO_ENV: "--set module_to_env_connector",
}
"""The options for the pieces of each pipeline."""


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
    if env_to_module is not None:
        config.env_runners(env_to_module_connector=checked_pieces(config, env_to_module, ENV_TO_MODULE))
    if learner_connector is not None:
        config.learners(learner_connector=checked_pieces(config, learner_connector, LEARNER))


def checked_pieces(config: Any, names: Iterable[str], kind: str, who: str = "") -> Any:
    """Returns ``NamedPieces`` for a config, or None if there are no names.

    Args:
        config: The config, whose ``gamma`` pieces get.
        names: The names.
        kind: The kind of the pipeline, as in ``ConnectorV2.belongs_in``.
        who: The first words of messages; the option by default.

    Raises:
        ConfigError: If there is no such piece, or if it does not accept its arguments.
    """
    from marl_connectors.connectors.named_pieces import named_pieces

    flags, defaults = FLAGS_OFPIECES, {"gamma": config.gamma}
    return named_pieces(names, who=who or flags[kind], kind=kind, others=flags, defaults=defaults)


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


def set_by_name(config: Any, settings: Mapping[str, Any], who: str = "--set") -> Any:
    """Sets settings by their names, in whichever section of the config they are. Returns the config.

    Names of classes, functions and connector pieces stand for these objects.

    Args:
        config: The config.
        settings: The settings.
        who: The first words of messages.

    Raises:
        ConfigError: If a setting does not exist or has a wrong value, or if the command line has a separate option for
            it.
    """
    from marl_connectors.algorithms.config.sections import sections

    known = sections(type(config))
    found: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in WITH_OPTIONS:
            raise ConfigError(f"{who}: {name!r} has a separate option. Use {WITH_OPTIONS[name]}.")
        own = [section for section in ("training", *known) if name in known[section]]
        if not own:
            every = dict.fromkeys(name for names in known.values() for name in names)
            raise ConfigError(f"{who}: unknown setting {name!r}. {closest(name, every, who)}")
        found.setdefault(own[0], {})[name] = as_objects(config, name, value, who)
    for section, own_settings in found.items():
        getattr(config, section)(**own_settings)
    return config


def closest(name: object, known: Iterable[object], who: str) -> str:
    """Returns a closing sentence about an unknown name: what to use instead, the closest one, or where all are listed.

    Args:
        name: The name.
        known: The names that are known there.
        who: The first words of the message, as for ``setting_instead``.
    """
    if instead := setting_instead(str(name), who):
        return instead
    close = did_you_mean(name, known)
    return close if close.startswith("Did you mean") else f"All settings are listed by: {command(PROGRAM, 'schema')}"


def as_objects(config: Any, name: str, value: Any, who: str) -> Any:
    """Returns the value of a setting with the objects that names in it stand for.

    Args:
        config: The config.
        name: The name of the setting.
        value: Its value, in which texts such as ``"my_module:my_function"`` may stand for objects.
        who: The first words of messages.

    Raises:
        ConfigError: If there is no such object.
    """
    if name in PIECES and isinstance(value, (str, list)):
        return checked_pieces(config, [value] if isinstance(value, str) else value, PIECES[name], f"{who}: {name}")
    if name == "evaluation_config" and isinstance(value, Mapping):
        return {key: as_objects(config, key, each, f"{who}: {name}") for key, each in value.items()}
    if name not in _OBJECTS and not name.startswith("on_"):
        return value
    if isinstance(value, list):
        return [as_objects(config, name, each, who) for each in value]
    if isinstance(value, Mapping):
        return {key: as_objects(config, name, each, who) for key, each in value.items()}
    is_name = isinstance(value, str) and ":" in value and "=" not in value
    return import_attribute(value, who=f"{who}: {name}", error=ConfigError) if is_name else value


PIECES: Final = {
    "env_to_module_connector": ENV_TO_MODULE,
    "module_to_env_connector": MODULE_TO_ENV,
    "learner_connector": LEARNER,
}
_OBJECTS: Final = (
    *("action_space", "callbacks_class", "learner_class", "observation_space", "policies_to_train"),
    *("policy_mapping_fn", "rl_module_spec"),
)
"""The settings in which names stand for objects, in addition to pieces and functions for callbacks."""


def check_changeable(config: Any, settings: Iterable[str]) -> None:
    """Checks that settings can change when a run is resumed.

    Raises:
        ConfigError: For the first setting that modules, pipelines or ongoing episodes of a checkpoint depend on.
    """
    from marl_connectors.algorithms.config.sections import sections
    from marl_connectors.validators import settings_of

    training, known, values = sections(type(config))["training"], settings_of(type(config)), config.to_dict()
    for name in settings:
        own = known.get(name)
        is_free = own is not None and (name in training if own.changeable is None else own.changeable)
        if name in values and (own is None or own.fixed or not is_free):
            raise ConfigError(
                f"train --resume: {name!r} cannot be changed, because the modules, pipelines or ongoing episodes of "
                f"the checkpoint depend on it. Start a new run with it."
            )
