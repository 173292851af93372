"""Settings of a run from a file: YAML, JSON, the ``config.json`` of a run, or a Python file with an AlgorithmConfig.

The options of the command line, and the values of a file, are a *layer*: a dict with values for fields of
``RunSettings``. ``"set"``, ``"env_config"`` and ``"model"`` are lists of ``(key, value)`` pairs. A layer may also have
``"config"`` (the Python file of a config), ``"base"`` (the settings in a ``config.json``),
``"num_envs_per_env_runner"``, and the options ``"seeds"``, ``"parallel"`` and ``"out"`` of the command.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from marl_connectors.algorithms.fitting.run_folder import is_run
from marl_connectors.cli.config_settings import (
    SHORT_FORMS,
    absolute_spec,
    check_model,
    checked_pieces,
    closest,
    has_lr_schedule,
    has_source,
    mapping_fn,
    set_by_name,
)
from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class, configs_with, known_sections
from marl_connectors.cli.other_names import section_instead, setting_instead
from marl_connectors.cli.run_settings import EXPECTED, settings_from_json
from marl_connectors.cli.search_space import search_space
from marl_connectors.cli.values import (
    TRACKER_NAMES,
    mask_key,
    merged,
    metric_name,
    piece_names,
    ray_address,
    seed_list,
    tracker_names,
)
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER
from marl_connectors.errors import ConfigError, MarlConnectorsError, did_you_mean
from marl_connectors.json_data import brief, parsed_json
from marl_connectors.policy_mapping import policy_mapping
from marl_connectors.validators import Unfit, Validator, any_of, boolean, declared, integer, list_of
from marl_connectors.yaml_data import parsed_yaml
from marl_connectors.zoo import find_task, tasks

PAIRS: Final = ("set", "env_config", "model")
"""The values of a layer that are lists of pairs, of which the last one of a key is used."""
PER_ENV_RUNNER: Final = "num_envs_per_env_runner"


def _as_option(field: str, read: Callable[[str], Any], value: str) -> Any:
    """Returns what an option makes of a text.

    Raises:
        ConfigError: If the option refuses it.
    """
    try:
        return read(value)
    except argparse.ArgumentTypeError as error:
        text = str(error)
        raise ConfigError(f"{field}: {text}" if text.endswith("?") else f"{field}: {text}.") from None


def _or_text(field: str, read: Callable[[str], Any], text: Mapping[str, Any], expected: str) -> Validator:
    """Returns the validator of a field that is a list, which a file may also give as the text of its option."""
    listed = EXPECTED[field]

    def keep(value: Any) -> Any:
        return _as_option(field, read, value) if isinstance(value, str) else listed.keep(value)

    return Validator(f"{listed.expected}, {expected}", keep, any_of({"type": "string", **text}, listed.schema))


def _one_piece(text: str) -> list[str]:
    return piece_names([text])


_TRACKER: Final = f"({'|'.join(TRACKER_NAMES)})"
OWN_FIELDS: Final = {name: field for name, field in EXPECTED.items() if name not in ("training", "preset")} | {
    "preset": Validator("true or false", boolean().keep, {"type": "boolean"}),
    "track": _or_text("track", tracker_names, {"pattern": f"^(none|{_TRACKER}( *, *{_TRACKER})*)$"}, "or none"),
    "env_to_module": _or_text("env_to_module", _one_piece, {}, "or one of them"),
    "learner_connector": _or_text("learner_connector", _one_piece, {}, "or one of them"),
}
"""The keys of a file that are fields of RunSettings, with their validators."""


def _seeds(value: Any) -> list[int]:
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return _as_option("seeds", seed_list, str(value))
    found = list_of(integer(min=0), "").keep(value)
    if not found:
        raise Unfit
    if len(set(found)) < len(found):
        raise ConfigError(f"seeds: expected each seed once, but got {found}.")
    return found


_SEEDS: Final = any_of(
    {"type": "string", "pattern": r"^ *\d+(-\d+)?( *, *\d+(-\d+)?)* *$"},
    {"type": "integer", "minimum": 0},
    {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "uniqueItems": True},
)
OF_COMMAND: Final[Mapping[str, Validator]] = {
    "seeds": Validator("seeds such as 0-4 or 0,3,7, or a list of them", _seeds, _SEEDS),
    "parallel": EXPECTED["steps"],
    "out": EXPECTED["policies"],
}
"""The keys of a file for options of the command that are no settings of a run, with their validators."""
KEYS: Final = {**OWN_FIELDS, **OF_COMMAND}
"""The keys of a file that are no sections, with their validators."""
SEARCH: Final = "search"
"""The key of a file for the settings that ``sweep`` searches. Other commands do without it."""
SCHEMA_KEY: Final = "$schema"
"""A key for editors, which a file may have."""
FILES: Final = (".yaml", ".yml", ".json")
"""The endings of files with settings."""
_OTHER_FILES: Final = (".toml", ".ini", ".cfg", ".conf", ".txt", ".xml", ".ipynb", ".pkl")
"""Endings of files that others use for settings, so that a source with one of them is no module."""
NO_VIDEO: Final = "none"
"""The format of videos of a run that has none."""


# Layers --------------------------------------------------------------------------------------------------------------


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the layer of a command's options above that of the file that ``--config`` names.

    Args:
        given: The parsed options.

    Raises:
        ConfigError: If the file does not exist, cannot be read or has a wrong value.
    """
    options = layer(given)
    if "env" in options:
        _check_is_env(options["env"])
    if "config" not in options or "resume" in options:
        return options
    source = options.pop("config")
    lower = {name: value for name, value in read_layer(source).items() if name != SEARCH}
    if lower.get("config") is None:
        check_model(merged(lower.get("model", [])), f"{source}: model")
    found = above(lower, options)
    if not {"env", "base", "config"} & found.keys():
        raise ConfigError(f"{source}: it has no environment. Add the key 'env', or name one on the command line.")
    if not {"policies", "mapping"} & options.keys() and found.get("mapping") is not None:
        mapping_fn("shared", found["mapping"], f"{source}: mapping")
    if not {"base", "config"} & found.keys():
        _check_for_algorithm(lower, options, source)
    return found


def _check_for_algorithm(lower: Mapping[str, Any], options: Mapping[str, Any], source: str) -> None:
    """Checks that the algorithm of the run accepts the settings of a file, each of which some algorithm accepts."""
    known, algo = known_sections(), _algorithm(above(lower, options))
    replaced = merged(options.get("set", []))
    for name, value in merged(lower.get("set", [])).items():
        section = next(section for section in ("training", *known) if name in known[section])
        if name not in replaced:
            _checked_setting(configs_with(section, name, algo), name, value, f"{source}: {section}")


def _algorithm(found: Mapping[str, Any]) -> str:
    """Returns the algorithm of a layer with an environment: its own, or that of the zoo's task."""
    variant = next((task for task in tasks() if task.is_variant and task.name == found["env"]), None)
    task = find_task(found["env"]) if variant is None and found.get("preset", True) else variant
    return found.get("algo") or ("ppo" if task is None else task.algo)


def _check_is_env(word: str) -> None:
    """Checks that the word for the environment is no file with settings, and no folder of a run."""
    if not word.strip():
        raise ConfigError(f"environment {word!r}: expected a name, such as CartPole-v1.")
    path = Path(word)
    if path.suffix.lower() in FILES:
        raise ConfigError(f"environment {word!r}: it is a file with settings. Name it with --config {word}")
    if is_run(path):
        raise ConfigError(
            f"environment {word!r}: it is the folder of a run. --resume {word} continues it, and --config "
            f"{path / 'config.json'} begins a new run with its settings."
        )


def layer(given: Mapping[str, Any], who: str = "--set") -> dict[str, Any]:
    """Returns options as a layer, in which settings of the config that are fields of RunSettings are these fields.

    Args:
        given: The options. Their ``"set"`` has pairs of ``name`` or ``section.name`` and value.
        who: The first word of messages.

    Raises:
        ConfigError: If there is no such section or setting, or if a field is given twice.
    """
    found = dict(given)
    pairs: list[tuple[str, Any]] = []
    for path, value in found.pop("set", []):
        section, dot, name = path.rpartition(".")
        if dot and not (section and name):
            raise ConfigError(f"{who}: expected NAME=VALUE or SECTION.NAME=VALUE, but got the name {path!r}.")
        if section:
            check_section(section, name, who)
        elif name in known_sections() and not any(name in settings for settings in known_sections().values()):
            example = f"--set {name}.{_example_of(name)}"
            raise ConfigError(f"{who}: {name!r} is a section of the config. Name one of its settings: {example}")
        elif name in KEYS and not any(name in settings for settings in known_sections().values()):
            raise ConfigError(f"{who}: unknown setting {name!r}. {_elsewhere(name, who)}")
        own = as_field(name, value, who)
        if own is None:
            pairs.append((name, _number(name, value, [config_class(algo) for algo in ALGORITHMS])))
        elif own[0] in PAIRS:
            found[own[0]] = [*found.get(own[0], []), *own[1]]
        elif own[0] in given:
            raise ConfigError(f"{who}: {name!r} is the same as {option_of(own[0])}. Use one of them.")
        else:
            found[own[0]] = own[1]
    if pairs:
        found["set"] = pairs
    if found.get("video") == NO_VIDEO:
        check_video_every(found, "--video-every" if who == "--set" else f"{who}: video_every")
    if PER_ENV_RUNNER in found and "num_envs" in found:
        raise ConfigError(f"{who}: {PER_ENV_RUNNER!r} and 'num_envs' were both given. Use one of them.")
    return _with_short_forms(found)


def check_video_every(given: Mapping[str, Any], who: str = "--video-every") -> None:
    """Checks the options of a run without videos.

    Args:
        given: The options.
        who: The first words of messages.

    Raises:
        ConfigError: If they ask for a video from time to time.
    """
    if given.get("video_every"):
        raise ConfigError(
            f"{who}: {given['video_every']} has no effect, because the run has no videos (--video none). Add "
            f"--video gif or --video mp4, or leave it out."
        )


def _example_of(section: str) -> str:
    """Returns a setting of a section with a value, such as ``lr=3e-4``."""
    examples = {"training": "lr=3e-4", "evaluation": "evaluation_interval=5", "debugging": "seed=1"}
    return examples.get(section) or f"{known_sections()[section][0]}=VALUE"


def _with_short_forms(found: dict[str, Any]) -> dict[str, Any]:
    """Returns a layer in which settings of ``model`` that have an option of their own are the values of that option."""
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    rest = []
    for key, value in found.get("model", []):
        if key not in SHORT_FORMS:
            rest.append((key, _number(key, value, [DefaultModelConfig])))
            continue
        if SHORT_FORMS[key] in found:
            raise ConfigError(f"--model: {key!r} is the same as {option_of(SHORT_FORMS[key])}. Use one of them.")
        found[SHORT_FORMS[key]] = value
    if "model" in found:
        found["model"] = rest
    return found


def above(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Returns two layers as one. Values of the upper one have precedence.

    A value also replaces others in the lower layer that have the same meaning: ``mapping`` and ``policies``, ``seed``
    and ``seeds``, or ``num_envs`` and ``num_envs_per_env_runner``. Another environment has other arguments and
    wrappers.
    """
    gone: set[str] = set()
    if upper.get("env", lower.get("env")) != lower.get("env"):
        gone |= {"env_config", "wrappers"}
    if {"policies", "mapping"} & upper.keys():
        gone |= {"policies", "mapping", "modules"}
    if {"num_envs", PER_ENV_RUNNER} & upper.keys():
        gone |= {"num_envs", PER_ENV_RUNNER}
    if "seed" in upper:
        gone |= {"seeds", "parallel"}
    if "seeds" in upper:
        gone |= {"seed"}
    if upper.get("video") == NO_VIDEO and "video_every" not in upper:
        gone |= {"video_every"}
    if has_lr_schedule(merged(upper.get("set", []))):
        gone |= {"anneal_lr"}  # the schedule replaces it
    rest = {name: value for name, value in lower.items() if name not in gone}
    both = {name: [*rest.get(name, []), *upper.get(name, [])] for name in PAIRS if name in {*rest, *upper}}
    return {**rest, **upper, **both}


def check_section(section: str, name: str, who: str) -> None:
    """Checks that a section has a setting.

    Raises:
        ConfigError: If there is no such section, or if it has no such setting. Names the closest one.
    """
    known = known_sections()
    if name in known.get(section, ()):
        return
    places = [other for other in known if name in known[other]]
    hint = f"It is a setting of {' and '.join(places)}." if places else _elsewhere(name, who)
    if section not in known:
        close = did_you_mean(section, known)
        hint = close if close.startswith("Did you mean") else hint or section_instead(section) or close
        raise ConfigError(f"{who}: there is no section {section!r}. {hint}")
    raise ConfigError(f"{who}: {section}: unknown setting {name!r}. {hint or closest(name, known[section], who)}")


def _elsewhere(name: str, who: str) -> str:
    """Returns a closing sentence about a name that is no setting of the config; ``""`` if nothing is known about it."""
    if name in KEYS:
        return f"It is an option: {option_of(name)}" if who.startswith("--") else "It is a key at the top of the file."
    return setting_instead(name, who)


def as_field(name: str, value: Any, who: str) -> tuple[str, Any] | None:
    """Returns the field of a layer, and its value, for a setting of the config; None if it has no field.

    Raises:
        ConfigError: If the value is refused.
    """
    field, convert = _FIELDS.get(name, (name if name in SAME else "", None))
    if name == "policy_mapping_fn" and isinstance(value, str):
        field = "mapping" if re.fullmatch(r"[\w.]+:[\w.]+", value) else "policies"
    if name == "policies":
        field = "policies" if isinstance(value, str) else "modules"
    if not field:
        return None
    value = value if convert is None else convert(value)
    if field == PER_ENV_RUNNER:
        return field, _or_whole(lambda each: integer(min=1).check(each, who, name), value)
    kept = checked_field(field, value, who, name)
    if convert is _names:
        return field, piece_names(kept)
    if field == "policies":
        _check_policies(kept, who)
    return field, list(kept.items()) if field in PAIRS else kept


def _check_policies(policies: str, who: str) -> None:
    try:
        policy_mapping(policies)
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from error


def checked_field(field: str, value: Any, who: str, name: str = "") -> Any:
    """Returns a value for a field of RunSettings. A number such as ``1e6`` stands for a whole number.

    Raises:
        ConfigError: If the value is refused. The message begins with ``who`` and the name.
    """
    if field in _WITH_NONE and isinstance(value, str):
        value = _WITH_NONE[field](value)
    return _or_whole(lambda each: KEYS[field].check(each, who, name or field), value)


def _or_whole(check: Callable[[Any], Any], value: Any) -> Any:
    """Returns the result of a check for a value or, if it is refused, for the same number as a whole number."""
    try:
        return check(value)
    except ConfigError:
        if isinstance(value, float) and value.is_integer():
            return check(int(value))
        raise


def _number(name: str, value: Any, classes: Sequence[type]) -> Any:
    """Returns a setting's value, in which a number such as ``1e6`` is a whole one if the classes accept no other."""
    if not isinstance(value, float) or not value.is_integer():
        return value
    validators = [declared(cls)[name] for cls in classes if name in declared(cls)]
    only_whole = validators and not any(validator is None or validator.accepts(value) for validator in validators)
    return int(value) if only_whole else value


def _names(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str) else value


def _module_ids(value: Any) -> Any:
    return list(value) if isinstance(value, Mapping) and all(each is None for each in value.values()) else value


_WITH_NONE: Final[Mapping[str, Callable[[str], str | None]]] = {
    "action_mask_key": mask_key,
    "keep_best": metric_name,
    "ray_address": ray_address,
}
"""Fields that are texts or None, with the functions that read ``none`` as on the command line."""
SAME: Final = (
    *("env", "env_config", "wrappers", "num_env_runners", "num_env_workers", "num_learners", "num_gpus_per_learner"),
    *("ray_address", "seed", "steps", "checkpoint_every", "keep_checkpoints", "keep_best", "eval_episodes"),
    *("baseline_seconds", "video", "video_every", "track"),
)
"""Settings of the config that are fields under the same names."""
_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], Any] | None]]] = {
    PER_ENV_RUNNER: (PER_ENV_RUNNER, None),
    "action_mask_key": ("action_mask_key", lambda value: None if value is False or value == "" else value),
    "disable_env_checking": ("env_check", lambda value: not value if isinstance(value, bool) else value),
    "env_to_module_connector": ("env_to_module", _names),
    "learner_connector": ("learner_connector", _names),
    "model_config": ("model", lambda value: {} if value is None else value),
    "model_config_dict": ("model", lambda value: {} if value is None else value),
    "policies": ("", _module_ids),
}
"""Settings of the config that are fields under other names or in another form."""


def option_of(field: str) -> str:
    """Returns the option of a field of RunSettings, for messages."""
    names = {"wrappers": "--wrap", "env": "ENV", "env_check": "--no-env-check", "training": "--set"}
    names["preset"] = "--no-preset"
    if field == PER_ENV_RUNNER:
        return f"--set {field}"
    return names.get(field, f"--{field.replace('_', '-')}")


# Files ---------------------------------------------------------------------------------------------------------------


def read_layer(source: str) -> dict[str, Any]:
    """Returns the layer of a file.

    Args:
        source: A YAML or JSON file, the ``config.json`` of a run, or a Python file or module as for ``load_config``.

    Raises:
        ConfigError: If it does not exist, cannot be read or has a wrong value. The message names the file and the key.
    """
    path = Path(source)
    if path.is_dir():
        own = path / "config.json"
        hint = f"Name its file: {own}" if own.is_file() else "Name a file in it."
        raise ConfigError(f"--config: expected a file, but {source} is a folder. {hint}")
    if path.suffix.lower() not in FILES:
        _check_is_python(source, path)
        return {"config": absolute_spec(source)}
    data = _read(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected settings, such as 'env: CartPole-v1', but got {brief(data)}.")
    if "command" in data:  # it is the config.json of a run
        settings_from_json(data["command"], source)
        return {"base": data["command"]}
    return layer_of(data, path)


def _check_is_python(source: str, path: Path) -> None:
    """Checks that a source without the ending of a file with settings is Python code, or a module."""
    is_file = path.is_file() or len(path.parts) > 1 or path.suffix.lower() in _OTHER_FILES
    if is_file and not re.search(r"\.py(:|$)", source):
        raise ConfigError(
            f"--config: expected a file that ends in .yaml, .yml, .json or .py, or a Python module, but got {source!r}."
        )


def _read(path: Path) -> Any:
    try:
        return parsed(path.read_text(encoding="utf-8"), path)
    except FileNotFoundError:
        raise ConfigError(f"--config: there is no file {str(path)!r}. Check its path.") from None
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read: {error.strerror or error}. Check its path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it cannot be read as {path.suffix[1:].upper()}: {error}") from error


def parsed(text: str, path: Path) -> Any:
    """Returns the data in the text of a file, whose ending says whether it is YAML or JSON.

    Raises:
        ConfigError: If it is neither.
    """
    try:
        return parsed_json(text) if path.suffix.lower() == ".json" else parsed_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: it cannot be read as {path.suffix[1:].upper()}: {error}") from error


def layer_of(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the layer of a file's settings, each of which is checked."""
    found: dict[str, Any] = {"set": []}
    for key, value in data.items():
        if key == SCHEMA_KEY:
            continue
        if key in known_sections():
            found["set"] += _settings_of_section(key, {} if value is None else value, path, data.get("algo"))
        elif key == SEARCH:
            found[SEARCH] = search_space(value, f"{path}: {SEARCH}")
        elif key == "config" and isinstance(value, Mapping):
            raise ConfigError(
                f"{path}: config: it names a Python file with an AlgorithmConfig, such as my_config.py, but got "
                f"{brief(value)}. Settings are at the top of the file and in its sections: training: {{lr: 3e-4}}"
            )
        elif key in KEYS:
            kept = checked_field(key, value, str(path))
            found[key] = list(kept.items()) if key in PAIRS else kept
        else:
            raise ConfigError(f"{path}: unknown key {brief(key)}. {_hint(key, value, str(path))}")
    found = layer(found, str(path))
    _check_pieces(found, path)
    if found.get("config") is not None:
        found["config"] = _python_config(found["config"], path)
    return {name: value for name, value in found.items() if name != "config" or value is not None}


def _python_config(source: str, path: Path) -> str:
    """Returns the Python file or module that a file names, whose path is relative to the file."""
    if Path(source).suffix.lower() in FILES:
        raise ConfigError(
            f"{path}: config: expected a Python file with an AlgorithmConfig, but got {source!r}. Copy the settings of "
            f"that file into this one."
        )
    found = absolute_spec(source, path.parent)
    if not has_source(found):
        raise ConfigError(
            f"{path}: config: there is no file {source!r} beside it. Check its path, which is relative to {path.name}."
        )
    return found


def _settings_of_section(section: str, settings: Any, path: Path, algo: Any) -> list[tuple[str, Any]]:
    """Returns the checked settings of a section of a file as pairs."""
    who = f"{path}: {section}"
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{who}: expected settings, each with its name, but got {brief(settings)}.")
    pairs = []
    for name, value in settings.items():
        check_section(section, name, str(path))
        if as_field(name, value, who) is None:
            value = _checked_setting(configs_with(section, name, algo), name, value, who)
        pairs.append((name, value))
    return pairs


def _checked_setting(configs: Sequence[Any], name: str, value: Any, who: str) -> Any:
    """Returns a setting's value as data, in which a number such as ``1e6`` stands for a whole number.

    Raises:
        ConfigError: If no config accepts it, with what the first one says.
    """

    def check(each: Any) -> Any:
        refusals = []
        for config in configs:
            try:
                set_by_name(config, {name: each}, who)
                return each
            except MarlConnectorsError as error:
                refusals.append(error)
        text = str(refusals[0])
        raise ConfigError(text if text.startswith(who) else f"{who}: {text.partition(': ')[2]}") from refusals[0]

    return _or_whole(check, value)


def _check_pieces(found: Mapping[str, Any], path: Path) -> None:
    from marl_connectors.algorithms.ppo.config import PPOConfig

    for field, kind in (("env_to_module", ENV_TO_MODULE), ("learner_connector", LEARNER)):
        if field in found:
            checked_pieces(PPOConfig(), piece_names(found[field]), kind, f"{path}: {field}")


def _hint(key: Any, value: Any, who: str) -> str:
    """Returns where a setting belongs that a file has at its top, or the closest known key."""
    known = known_sections()
    if isinstance(value, Mapping) and value and any(each in KEYS or each in known for each in value):
        return f"What is under it belongs to the top of the file: leave out {key!r}."
    places = [section for section in known if key in known[section]]
    if places:
        return f"It is a setting of the section {places[0]!r}: write it there."
    section, _, name = str(key).rpartition(".")
    if name in known.get(section, ()):
        return f"Write it as {section}: {{{name}: {value}}}."
    if key == "set":
        return "Settings are in their sections: training: {lr: 3e-4}."
    if key in ("new_episodes", "resume", "untrusted"):
        return f"It is no setting, but an option: --{str(key).replace('_', '-')}"
    return section_instead(key) or closest(key, [*KEYS, *known], who)
