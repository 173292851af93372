"""The settings of a new run: the user's options, above those of a file, above the zoo's, above the defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from marl_connectors.algorithms.config.sections import sections
from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_of, are_alike, config_class
from marl_connectors.cli.python_config import absolute_spec, has_source, load_config
from marl_connectors.cli.tree import (
    ALGO,
    COMPLETE,
    DICTS,
    ENV,
    MODEL,
    NUM_ENVS,
    PIECES,
    PRESET,
    REPLACED,
    RUN,
    SEED,
    SOURCE,
    STEPS,
    Tree,
    above,
    flat,
    hint,
    merged,
    nested,
    place_of,
    read_setting,
    short_forms,
)
from marl_connectors.cli.values import key_value
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import brief, parsed_json
from marl_connectors.yaml_data import parsed_yaml
from marl_connectors.zoo import ZooTask, find_task, tasks

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

FILES: Final = (".yaml", ".yml", ".json")
"""The endings of files with settings."""
SEARCH: Final = "search"
"""The key of a file for the settings that ``sweep`` searches. Other commands do without it."""
SETTINGS: Final = "settings"
"""The key in a run's ``config.json`` of its tree of settings."""
_OTHER_FILES: Final = (".toml", ".ini", ".cfg", ".conf", ".txt", ".xml", ".ipynb", ".pkl")
"""Endings of files that others use for settings, so that a source with one of them is no module."""
_SCHEMA: Final = "$schema"
_DEFAULTS: Final[Tree] = {
    STEPS: 1_000_000,
    "run.eval_episodes": 20,
    "run.baseline_seconds": 10.0,
    "run.video": "gif",
    "run.track": ["tensorboard"],
    "run.threads": 1,
    SEED: 0,
}
"""The settings of a run on the command line, also with a config from a Python file."""
_DEFAULTS_OF_CONFIG: Final[Tree] = {
    NUM_ENVS: 8,
    "multi_agent.policy_mapping_fn": "shared",
    "multi_agent.count_steps_by": "agent_steps",
    f"{MODEL}.fcnet_hiddens": [64, 64],
    f"{MODEL}.fcnet_activation": "tanh",
    f"{MODEL}.vf_share_layers": False,
}
"""The settings of a config that the command line makes."""


class Words(NamedTuple):
    """The options of a command that are settings.

    Attributes:
        given: Options with their values, in the order in which they were given: texts, lists of texts, or bools.
        config: The file that ``--config`` names; None if there is none.
    """

    given: Sequence[tuple[str, Any]]
    config: str | None = None

    def last(self, place: str) -> tuple[str, Any] | None:
        """Returns how an option or ``--set`` has named a setting, and its value, the last one of several."""
        key, found = place.rpartition(".")[2], None
        for flag, value in self.given:
            name, _, own = value.partition("=") if flag == "--set" else (flag, "", value)
            if flag == "--set" and name.strip() in (place, key):
                found = f"--set {name.strip()}", own.strip()
            elif flag in (f"--{key}", key.upper()):
                found = flag, own
        return found


def defaults(algo: str) -> Tree:
    """Returns the settings with which the command line trains an algorithm unless the user says otherwise."""
    training = {f"training.{name}": value for name, value in ALGORITHMS[algo].training.items()}
    return {**_DEFAULTS, **_DEFAULTS_OF_CONFIG, **training, ALGO: algo, PRESET: "", COMPLETE: True}


# A new run -----------------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    """What ``--config`` names.

    Attributes:
        data: Settings, at the top of the file and in its sections.
        who: The first words of messages about the file.
        early: Those of its settings that decide which others there are.
        task: The task of the zoo with whose settings a run has begun, or ``""``, if the file has all settings of a run;
            otherwise None.
    """

    data: Mapping[str, Any]
    who: str
    early: Tree
    task: str | None = None


def user_tree(words: Words) -> Tree:
    """Returns what a user has set for a new run: the options, above the file. Every value is checked.

    The tree is complete if the file is that of a run.

    Raises:
        ConfigError: If a setting does not exist or has a wrong value, or if there is no environment.
    """
    file = _file(words)
    early = file.early | _early_options(words)
    config = _config_that_checks(early, file)
    algo, env = algorithm_of(config), early.get(ENV)
    if early.get(ALGO, algo) != algo:
        raise ConfigError(
            f"{(words.last(ALGO) or [f'{file.who}: algo'])[0]}: {early[SOURCE]} makes the config of {algo!r}, which an "
            f"option cannot turn into that of {early[ALGO]!r}. Leave it out, or use another config in the file."
        )
    data, task = file.data, file.task if env == file.early.get(ENV) else ""
    if file.task is not None and not are_alike(file.early.get(ALGO, algo), algo):
        data, task = {**data, "training": dict(ALGORITHMS[algo].training)}, ""
    own = tree_of_data(data, file.who, config)
    tree = (above if file.task is None else merged)(own, tree_of_options(words, config))
    tree |= {ALGO: algo, **{place: early[place] for place in (SOURCE, PRESET) if place in early}}
    if file.task is not None and PRESET not in early:
        tree |= {COMPLETE: True, PRESET: task}
    if (variant := _variant(tree.get(ENV))) is not None:
        tree[ENV] = variant.words[0]
    return tree


def _file(words: Words) -> _File:
    """Reads the file that ``--config`` names, and checks that the word for the environment names none."""
    data, who, python = ({}, "", None) if words.config is None else read_file(words.config)
    if (env := words.last(ENV)) is not None:
        _check_is_env(env[1])
    if python is not None:
        return _File({}, who, {SOURCE: python})
    if SETTINGS not in data or "env" in data:
        return _File(data, who, _early(data, who))
    tree = flat(data[SETTINGS], f"{who}: {SETTINGS}")  # a command has written it
    if tree.get(SOURCE) is not None:
        tree.pop(ALGO, None)  # the Python file says it
    task = str(tree.pop(PRESET, "")) if tree.pop(COMPLETE, False) else None
    return _File(nested(tree), who, _early(nested(tree), who), task)


def _config_that_checks(early: Mapping[str, Any], file: _File) -> AlgorithmConfig:
    """Returns a config of a new run: that of its Python file, or one of its algorithm, which is the zoo's or PPO."""
    if early.get(SOURCE) is not None:
        return load_config(early[SOURCE])
    check_keys(file.data, file.who, config_class("ppo"))
    if ENV not in early:
        raise ConfigError(f"{file.who}: it has no environment. Add the key 'env', or name one on the command line.")
    task = _variant(early[ENV]) or (find_task(early[ENV]) if early.get(PRESET, True) else None)
    return config_class(early.get(ALGO) or ("ppo" if task is None else task.algo))()


def _probe(algo: str) -> AlgorithmConfig:
    """Returns a config that checks settings."""
    return config_class(algo)()


def _early_options(words: Words) -> Tree:
    """Returns the options that decide which settings there are."""
    found: Tree = {}
    for place in (ALGO, PRESET, ENV):
        if (option := words.last(place)) is not None:
            found |= read_setting(place, option[1], _probe("ppo"), option[0])
    return found


def _early(data: Mapping[str, Any], who: str) -> Tree:
    """Returns the settings of a file that decide which others there are, checked as far as that needs it."""
    found: Tree = {}
    for place in (SOURCE, ALGO, PRESET, ENV):
        section, _, name = place.partition(".")
        own = data.get(section)
        value = data.get(name, own.get(name) if isinstance(own, Mapping) else None)
        if value is not None and place == SOURCE:
            found[SOURCE] = _python_beside(value, who)
        elif value is not None:
            found |= read_setting(place, value, _probe("ppo"), f"{who}: {name}")
    return found


def _variant(env: Any) -> ZooTask | None:
    """Returns the zoo's task for another algorithm that has this name; None for the name of an environment."""
    return next((task for task in tasks() if task.is_variant and task.name == env), None)


def resolved(user: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Tree:
    """Returns all settings of a new run: what the user has set, above the zoo's settings and the defaults.

    Args:
        user: The user's settings, as ``user_tree`` returns them; or a complete tree.
        more: Settings above them.
    """
    more = more or {}
    if user.get(COMPLETE):  # but for the seed in that of several seeds
        return above({SEED: _DEFAULTS[SEED]}, merged(user, more))
    user = above(user, more)
    under = _under(user)
    return {**merged(under, user), PRESET: under[PRESET], ALGO: user[ALGO]}


def _under(user: Mapping[str, Any]) -> Tree:
    """Returns the zoo's settings for the user's environment and algorithm, above the defaults."""
    if user.get(SOURCE) is not None:
        config = load_config(user[SOURCE])
        own = {place: value for place, value in _DEFAULTS.items() if _is_default(config, place)}
        return {**own, PRESET: "", COMPLETE: True}
    task = task_for(user[ENV], user[ALGO]) if user.get(PRESET, True) else None
    if task is None:
        return defaults(user[ALGO])
    config = _probe(task.algo)
    settings = {name: value for name, value in task.settings.items() if name != "env"}
    own = tree_of_data(settings, task.name, config, check=False)
    return {**above(defaults(task.algo), {ENV: user[ENV], **own}), PRESET: task.name}


def _is_default(config: Any, place: str) -> bool:
    name = place.rpartition(".")[2]
    return not hasattr(config, name) or getattr(config, name) == getattr(type(config), name)


def task_for(env: str, algo: str) -> ZooTask | None:
    """Returns the zoo's task for an environment, with settings for an algorithm or one like it, or None."""
    found = (find_task(env, each) for each in (algo, *ALGORITHMS) if are_alike(each, algo))
    return next((task for task in found if task is not None), None)


# Options -------------------------------------------------------------------------------------------------------------


def tree_of_options(words: Words, config: Any) -> Tree:
    """Returns the tree of the options of a command.

    Raises:
        ConfigError: If one of them is refused, or if two of them are the same setting.
    """
    cls, found, named = type(config), Tree(), {}
    flags = {option.flag: (place, option) for place, option in short_forms(cls).values()}
    lists: dict[str, list[Any]] = {}
    for flag, value in words.given:
        if flag == "--set":
            name, value = _pair(flag, value)
            place, who = place_of(name, cls, "--set"), f"--set {name}"
        else:
            place, option = flags[flag]
            who = flag
            if place in DICTS:
                key, value = _pair(flag, value)
                place = place_of(f"{option.key}.{key}", cls, flag)
                who = f"{flag} {key}"
            elif place in PIECES or place == "environment.wrappers":
                lists.setdefault(place, []).extend([value] if isinstance(value, str) else value)
                value = lists[place]
            elif option.key == "modules":
                value = [name.strip() for name in value.split(",")]
            elif option.is_opposite:
                value = not value
        own = read_setting(place, value, config, who)
        _add(found, named, own, who)
    return found


def _pair(flag: str, text: str) -> tuple[str, Any]:
    try:
        return key_value(text)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None


def _add(found: Tree, named: dict[str, str], own: Tree, who: str) -> None:
    """Adds settings to a tree, which must not have been set in another way."""
    for place, value in own.items():
        if named.get(place, who) != who and found[place] != value:
            raise ConfigError(f"{who}: it is the same setting as {named[place]}. Use one of them.")
        for other in REPLACED.get(place, ()):
            if other in found and place in REPLACED.get(other, ()):
                raise ConfigError(f"{who}: it cannot be given with {named[other]}. Use one of them.")
        named[place], found[place] = who, value


def _check_is_env(word: str) -> None:
    """Checks that the word for the environment is no file with settings, and no folder of a run."""
    if not word.strip():
        raise ConfigError(f"environment {word!r}: expected a name, such as CartPole-v1.")
    path = Path(word)
    if path.suffix.lower() in FILES:
        raise ConfigError(f"environment {word!r}: it is a file with settings. Name it with --config {word}")
    if os.path.isfile(path / "config.json") and os.path.isdir(path / "checkpoints"):  # False for words that are no path
        raise ConfigError(
            f"environment {word!r}: it is the folder of a run. --resume {word} continues it, and --config "
            f"{path / 'config.json'} begins a new run with its settings."
        )


# Files ---------------------------------------------------------------------------------------------------------------


def read_file(source: str) -> tuple[dict[str, Any], str, str | None]:
    """Returns the data of the file that ``--config`` names, the first words of messages about it, and its Python file.

    Args:
        source: A YAML or JSON file, the ``config.json`` of a run, or a Python file or module as for ``load_config``.

    Raises:
        ConfigError: If it does not exist, or cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        own = path / "config.json"
        hint = f"Name its file: {own}" if own.is_file() else "Name a file in it."
        raise ConfigError(f"--config: expected a file, but {source} is a folder. {hint}")
    if path.suffix.lower() not in FILES:
        _check_is_python(source, path)
        return {}, "--config", absolute_spec(source)
    data = _read(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected settings, such as 'env: CartPole-v1', but got {brief(data)}.")
    return data, str(path), None


def _check_is_python(source: str, path: Path) -> None:
    """Checks that a source without the ending of a file with settings is Python code, or a module."""
    is_file = path.is_file() or len(path.parts) > 1 or path.suffix.lower() in _OTHER_FILES
    if is_file and not re.search(r"\.py(:|$)", source):
        raise ConfigError(
            f"--config: expected a file that ends in .yaml, .yml, .json or .py, or a Python module, but got {source!r}."
        )


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return parsed_json(text) if path.suffix.lower() == ".json" else parsed_yaml(text)
    except FileNotFoundError:
        raise ConfigError(f"--config: there is no file {str(path)!r}. Check its path.") from None
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read: {error.strerror or error}. Check its path.") from error
    except ValueError as error:
        raise ConfigError(f"{path}: it cannot be read as {path.suffix[1:].upper()}: {error}") from error


def tree_of_data(data: Mapping[str, Any], who: str, config: Any, *, check: bool = True) -> Tree:
    """Returns the tree of a file's settings, each of which is checked.

    Args:
        data: The content: short forms, and sections with settings.
        who: The first words of messages, which name the file.
        config: A config of the class that the settings are for.
        check: As for ``read_setting``.

    Raises:
        ConfigError: If a setting does not exist, has a wrong value, or is there twice. The message names it.
    """
    cls, found, named = type(config), Tree(), {}
    check_keys(data, who, cls)
    for key, value in data.items():
        if key in (_SCHEMA, SEARCH, "config"):  # _early has read what names a Python file
            continue
        if key in {*sections(cls), RUN}:
            for name, own in (value or {}).items():
                if f"{key}.{name}" in (SOURCE, ALGO, PRESET):
                    continue
                label = f"{who}: {key}.{name}"
                place = place_of(f"{key}.{name}", cls, who)
                _add(found, named, read_setting(place, own, config, label, check=check), label)
        else:
            place, option = short_forms(cls)[key]
            value = not value if option.is_opposite and isinstance(value, bool) else value
            label = f"{who}: {key}"
            _add(found, named, read_setting(place, value, config, label, check=check), label)
    return found


def check_keys(data: Mapping[str, Any], who: str, cls: type) -> None:
    """Checks that a file has short forms and sections at its top, and settings in its sections.

    Raises:
        ConfigError: If there is something else. Says where it belongs, or names the closest key.
    """
    known = [*short_forms(cls), *sections(cls)]
    for key, value in data.items():
        if key in sections(cls) and not isinstance(value, Mapping | None):
            raise ConfigError(f"{who}: {key}: expected settings, each with its name, but got {brief(value)}.")
        if key in (*known, _SCHEMA, SEARCH, "config"):
            continue
        found = hint(key, cls, who, known, value=value)
        if isinstance(value, Mapping) and not value.keys().isdisjoint(known):
            found = f"What is under it belongs to the top of the file: leave out {key!r}."
        raise ConfigError(f"{who}: unknown key {brief(key)}. {found}")


def _python_beside(source: Any, who: str) -> str:
    """Returns the Python file or module that a file names, whose path is relative to the file."""
    path = Path(who)
    if isinstance(source, Mapping):
        raise ConfigError(
            f"{who}: config: it names a Python file with an AlgorithmConfig, such as my_config.py, but got "
            f"{brief(source)}. Settings are at the top of the file and in its sections: training: {{lr: 3e-4}}"
        )
    source = read_setting(SOURCE, source, _probe("ppo"), f"{who}: config")[SOURCE]
    if Path(source).suffix.lower() in FILES:
        raise ConfigError(
            f"{who}: config: expected a Python file with an AlgorithmConfig, but got {source!r}. Copy the settings of "
            f"that file into this one."
        )
    found = absolute_spec(source, path.parent)
    if not has_source(found):
        raise ConfigError(
            f"{who}: config: there is no file {source!r} beside it. Check its path, which is relative to {path.name}."
        )
    return found
