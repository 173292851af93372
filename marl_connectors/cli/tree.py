"""The tree of a run's settings: each has a place, such as ``training.lr``, and a value that files can hold.

Options, files, presets and defaults are trees, of which ``above`` makes one. A tree is a dict from places to values.
The settings of the modules and the arguments of the environment have places of their own, such as
``rl_module.model_config.use_lstm``, so that each is replaced alone.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from marl_connectors.algorithms.config.sections import sections
from marl_connectors.cli.command_settings import CommandSettings
from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class, known_sections
from marl_connectors.cli.other_names import section_instead, setting_instead, written
from marl_connectors.cli.values import literal, without_unit
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER, MODULE_TO_ENV
from marl_connectors.errors import CheckpointError, ConfigError, did_you_mean
from marl_connectors.json_data import brief
from marl_connectors.names import import_attribute
from marl_connectors.programs import PROGRAM, command
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import IMPORTABLE, Option, Setting, Validator, checked, settings_of

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

Tree: TypeAlias = dict[str, Any]

RUN: Final = "run"
ENV, ENV_CONFIG, MODEL = "environment.env", "environment.env_config", "rl_module.model_config"
MAPPING, MODULES = "multi_agent.policy_mapping_fn", "multi_agent.policies"
NUM_ENVS, NUM_ENVS_EACH = "run.num_envs", "env_runners.num_envs_per_env_runner"
NUM_ENV_RUNNERS, NUM_LEARNERS = "env_runners.num_env_runners", "learners.num_learners"
BATCH_SIZE, MINIBATCH_SIZE = "training.train_batch_size_per_learner", "training.minibatch_size"
NUM_ENV_WORKERS = "env_runners.num_env_workers"
ALGO, SOURCE, PRESET = "run.algo", "run.config", "run.preset"
COMPLETE: Final = "run.complete"
"""Not a setting, but True in a tree that has all settings of a run: neither the zoo nor the defaults add any."""
SEED, STEPS, ANNEAL = "debugging.seed", "run.steps", "run.anneal_lr"
DICTS: Final = (ENV_CONFIG, MODEL)
"""Settings that are dicts, whose keys have places of their own."""
PIECES: Final = {
    "env_runners.env_to_module_connector": ENV_TO_MODULE,
    "env_runners.module_to_env_connector": MODULE_TO_ENV,
    "learners.learner_connector": LEARNER,
}
"""The settings that are lists of names of connector pieces, with the pipelines of these."""
_CHANGEABLE: Final = ("training", "fault_tolerance", "reporting", RUN, "resources")
"""The sections whose settings may change when a run is resumed, unless a setting says otherwise."""
_ONLY_OPTIONS: Final = ("config", "new_episodes", "resume", "untrusted")
"""The options that are no settings."""
_NAME = re.compile(r"[\w.]+:[\w.]+")
_NONE = ("none", "null")
REPLACED: Final[Mapping[str, tuple[str, ...]]] = {
    MAPPING: (MODULES,),
    NUM_ENVS: (NUM_ENVS_EACH,),
    NUM_ENVS_EACH: (NUM_ENVS,),
    SEED: ("run.seeds", "run.parallel"),
    "run.seeds": (SEED,),
}
"""What a setting replaces in lower trees, because it means the same or makes no sense with it."""
_OF_ENV: Final = (
    *("environment.wrappers", "environment.reset_options"),
    *("environment.observation_space", "environment.action_space"),
)
"""The settings that belong to one environment, besides its arguments."""


# Places --------------------------------------------------------------------------------------------------------------


@functools.cache
def places(cls: type) -> Mapping[str, Setting]:
    """Returns the settings of a config's class, and those of the command line, by place.

    A setting that several sections have has the place in the first of them.
    """
    found = {f"{section}.{name}": own for section, settings in sections(cls).items() for name, own in settings.items()}
    first: dict[str, str] = {}
    for place, own in found.items():
        first.setdefault(own.name, place)
    found = {place: own for place, own in found.items() if first[own.name] == place}
    found |= {f"{RUN}.{name}": own for name, own in settings_of(CommandSettings).items()}
    return found | {f"{MODEL}.{name}": own for name, own in settings_of(DefaultModelConfig).items()}


@functools.cache
def short_forms(cls: type) -> Mapping[str, tuple[str, Option]]:
    """Returns the places of the settings that have an option and a key of their own, with these, by key."""
    return {option.key: (place, option) for place, own in places(cls).items() for option in own.options}


def option_of(place: str, cls: type) -> str:
    """Returns the option of a setting, for messages."""
    parents = (each for each in DICTS if place.startswith(f"{each}."))
    for each in (place, *parents):
        if (own := places(cls).get(each)) is not None and own.options:
            return own.options[0].flag
    return f"--set {place}"


def can_change(place: str, cls: type) -> bool:
    """Whether a setting may change when a run is resumed: neither its modules nor its episodes depend on it."""
    own = places(cls).get(place)
    if own is None or own.fixed:
        return False
    if own.changeable is not None:
        return own.changeable
    return place.partition(".")[0] in _CHANGEABLE and own.name not in settings_of(CommandSettings)


def as_option(name: str, value: Any) -> str:
    """Returns how an option of the section ``run`` is given a value.

    >>> as_option("keep_best", "none")
    '--keep-best none'
    """
    return f"--{name.replace('_', '-')} {value}"


def place_of(name: str, cls: type, who: str) -> str:
    """Returns the place of a setting.

    Args:
        name: Its place, its own name, the key of its short form, or ``env_config.NAME`` or ``model.NAME``.
        cls: The class of the config.
        who: The first words of messages.

    Raises:
        ConfigError: If there is no such setting. Names the closest one.
    """
    known, short = sections(cls), short_forms(cls)
    head, dot, rest = name.partition(".")
    if dot and not (head and rest):
        raise ConfigError(f"{who}: expected NAME=VALUE or SECTION.NAME=VALUE, but got the name {name!r}.")
    if dot and head in short and short[head][0] in DICTS:
        return f"{short[head][0]}.{rest}"
    if dot:
        return _in_section(head, rest, cls, who)
    if name in short and not any(name in own for own in known.values()):
        return short[name][0]
    if own := [section for section in ("training", *known) if name in known[section]]:
        return _in_section(own[0], name, cls, who)
    if name in known:
        examples = {"training": "lr=3e-4", "evaluation": "evaluation_interval=5", "debugging": "seed=1"}
        example = examples.get(name) or f"{next(iter(known[name]))}=VALUE"
        raise ConfigError(
            f"{who}: {name!r} is a section of the config. Name one of its settings: --set {name}.{example}"
        )
    names = [*(each for settings in known.values() for each in settings), *short]
    raise ConfigError(f"{who}: unknown setting {name!r}. {hint(name, cls, who, names)}")


def _in_section(section: str, name: str, cls: type, who: str) -> str:
    """Returns the place of a setting of a section."""
    known = sections(cls)
    name, _, key = name.partition(".")
    in_command = section == RUN and name in settings_of(CommandSettings) and f"{RUN}.{name}" != SOURCE
    if section not in known:
        close = did_you_mean(section, known)
        if not close.startswith("Did you mean"):
            close = hint(name, cls, who, otherwise="") or section_instead(section) or close
        raise ConfigError(f"{who}: there is no section {section!r}. {close}")
    if not in_command and name not in known[section]:
        raise ConfigError(f"{who}: {section}: unknown setting {name!r}. {hint(name, cls, who, known[section])}")
    setting_name = name if in_command else known[section][name].name
    setting_name = "model_config" if setting_name == "model_config_dict" else setting_name
    place = next(place for place, own in places(cls).items() if own.name == setting_name)
    if key and place not in DICTS:
        raise ConfigError(f"{who}: {place} has no settings of its own, so there is no {key!r} in it.")
    return f"{place}.{key}" if key else place


def hint(
    name: object,
    cls: type | None,
    who: str,
    names: Iterable[str] = (),
    *,
    value: object = "VALUE",
    otherwise: str | None = None,
) -> str:
    """Returns a closing sentence about a name that is unknown where it was given.

    It says where the setting of this name belongs, what replaces it, or which known name is the closest.

    Args:
        name: The name.
        cls: The class of the config; None if that of any algorithm may have the setting.
        who: The first words of messages: an option, or the name of a file.
        names: The names that are known there.
        value: The value that was given.
        otherwise: What is returned if nothing is known about the name; None for where all settings are listed.
    """
    name, known = str(name), known_sections() if cls is None else sections(cls)
    section, dot, own = name.rpartition(".")
    if cls is not None and name in short_forms(cls):
        flag = short_forms(cls)[name][1].flag
        return f"It is an option: {flag}" if who.startswith("--") else "It is a key at the top of the file."
    if dot and own in known.get(section, ()):
        return f"Write it as {written(section, {own: value}, who)}."
    if found := [each for each in ("training", *known) if name in known[each]]:
        return f"It is a setting of {found[0]}: {written(found[0], {name: value}, who)}"
    if instead := setting_instead(name, who, value) or section_instead(name):
        return instead
    if name in _ONLY_OPTIONS:
        return f"It is no setting, but an option: --{name.replace('_', '-')}"
    if algos := [each for each in ALGORITHMS if name in sections(config_class(each))["training"]]:
        return f"It is a setting of other algorithms: {', '.join(algos)}."
    close = did_you_mean(name, names)
    if close.startswith("Did you mean"):
        return close
    return f"All settings are listed by: {command(PROGRAM, 'schema')}" if otherwise is None else otherwise


# Values --------------------------------------------------------------------------------------------------------------


def read_setting(place: str, value: Any, config: AlgorithmConfig, who: str, *, check: bool = True) -> Tree:
    """Returns a setting as a tree, with its value in the form that fits, after a check.

    A text may stand for a number, a list, None, or an object: ``"1e6"``, ``"64,64"``, ``"none"``,
    ``"my_module:my_function"``.

    Args:
        place: Its place.
        value: Its value, as the user has written it.
        config: A config of the class, which checks the value.
        who: The first words of messages: how the user has named the setting.
        check: Whether the value may be refused. A check imports what names in it stand for.

    Raises:
        ConfigError: If the value is refused.
    """
    if place in DICTS:
        if not isinstance(value, Mapping | None):
            raise ConfigError(f"{who}: expected settings, each with its name, but got {brief(value)}.")
        if place == ENV_CONFIG and not all(isinstance(key, str) for key in value or {}):
            return {place: dict(value or {})}  # the whole dict of a function that takes one
        found: Tree = {}
        for key, own in (value or {}).items():
            found |= read_setting(f"{place}.{key}", own, config, f"{who}.{key}", check=check)
        return found
    if place == MODULES and isinstance(value, Mapping) and all(each is None for each in value.values()):
        value = list(value)
    if place == MODULES and isinstance(value, str):
        place = MAPPING  # the shorthand for both
    if place in PIECES:
        names = _piece_names(value, who)
        if check:
            pieces(config, place, names, who)
        return {place: names}
    for parent in DICTS:
        if place.startswith(f"{parent}."):
            return {place: _in_dict(parent, place, value, config, who, check)}
    own = places(type(config))[place]
    value = _converted(config, place, value, fitting)
    if check:
        _check(config, own, as_object(config, place, value, who), who)
    return {place: value}


def _check(config: Any, own: Setting, value: Any, who: str) -> None:
    try:
        if settings_of(type(config)).get(own.name) == own:
            config._checked(own.name, value, who)
        elif own.validator is not None:  # of the command line, or an argument that the config does not keep
            own.validator.check(value, who, own.name)
    except ConfigError as error:
        text = str(error).replace(f"{who}: {own.name}: ", f"{who}: ", 1)
        raise ConfigError(f"{text}{without_unit(value)}") from error


def _in_dict(parent: str, place: str, value: Any, config: AlgorithmConfig, who: str, check: bool) -> Any:
    """Returns the value of an argument of the environment, or of a setting of the modules."""
    name, known = place.removeprefix(f"{parent}."), settings_of(DefaultModelConfig)
    if parent == ENV_CONFIG:
        return value
    if name in known:
        value = fitting(known[name].validator, value)
    if not isinstance(config.model_config, DefaultModelConfig | None):
        return value  # of a user's modules
    if name not in known:
        who = who.removesuffix(f" {name}").removesuffix(f".{name}")
        raise ConfigError(f"{who}: the default modules have no setting {name!r}. {did_you_mean(name, known)}")
    try:
        if check:
            checked(DefaultModelConfig, name, as_named(known[name].validator, value, who), who)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{who}: {name}: ", f"{who}: ", 1)) from error
    return value


def _piece_names(value: Any, who: str) -> list[str]:
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{who}: expected a list of names of connector pieces, got {brief(value)}.")
    return [name for name in names if name.lower() not in _NONE]


def pieces(config: AlgorithmConfig, place: str, names: list[str], who: str = "") -> Any:
    """Returns ``NamedPieces`` for a pipeline of a config, or None if there are no names.

    Args:
        config: The config, whose ``gamma`` pieces get unless their names have one.
        place: The place of the setting.
        names: The names of the pieces.
        who: The first words of messages.

    Raises:
        ConfigError: If there is no such piece, or if it does not accept its arguments.
    """
    from marl_connectors.connectors.named_pieces import named_pieces

    others = {kind: option_of(each, type(config)) for each, kind in PIECES.items()}
    who = who or others[PIECES[place]]
    return named_pieces(names, who=who, kind=PIECES[place], others=others, defaults={"gamma": config.gamma})


def fitting(validator: Validator | None, value: Any) -> Any:
    """Returns the first reading of a value that a validator accepts, or the value itself."""
    if validator is None:
        return value
    for each in _readings(value):
        if validator.accepts(each):
            return each
    if isinstance(value, str) and dict(validator.schema or {}).get("type") == "array":
        return _parts(value)
    found = literal(value) if isinstance(value, str) else value
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return value if isinstance(found, tuple) else found  # 1,000 is no tuple for its author


def _readings(value: Any) -> Iterator[Any]:
    """Yields what a value may stand for."""
    if isinstance(value, str):
        if value.lower() in _NONE:
            yield None
        yield value
        found = literal(value)
        if not isinstance(found, str):
            yield from _readings(list(found) if isinstance(found, tuple) else found)
        yield [] if value.lower() in _NONE else _parts(value)
        yield [literal(part) for part in _parts(value)]
        yield value.lower()
        return
    yield value
    if isinstance(value, float) and value.is_integer():
        yield int(value)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def as_object(config: AlgorithmConfig, place: str, value: Any, who: str) -> Any:
    """Returns the value of a setting with the objects that names in it stand for.

    Raises:
        ConfigError: If there is no such object.
    """
    return _converted(config, place, value, lambda validator, own: as_named(validator, own, who))


def _converted(config: AlgorithmConfig, place: str, value: Any, convert: Callable[[Validator | None, Any], Any]) -> Any:
    """Returns what a function makes of a setting's validator and value, and of each setting inside the value."""
    value = convert(places(type(config))[place].validator, value)
    if place != "evaluation.evaluation_config" or not isinstance(value, Mapping):
        return value
    known = settings_of(type(config))
    return {key: convert(known[key].validator, own) if key in known else own for key, own in value.items()}


def as_named(validator: Validator | None, value: Any, who: str) -> Any:
    """Returns a value with the objects that names in it stand for, if the validator accepts objects, and not names."""
    if validator is None or repr(IMPORTABLE) not in repr(validator.schema) or validator.accepts(value):
        return value
    return _named(value, who)


def _named(value: Any, who: str) -> Any:
    match value:
        case str() if _NAME.fullmatch(value):
            return import_attribute(value, who=who, error=ConfigError)
        case list():
            return [_named(each, who) for each in value]
        case Mapping():
            return {key: _named(each, who) for key, each in value.items()}
    return value


# Trees ---------------------------------------------------------------------------------------------------------------


def above(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Tree:
    """Returns two trees as one. Values of the upper one have precedence.

    A value also replaces others in the lower tree that mean the same, such as the seeds if there is a seed. Another
    environment has other arguments and wrappers.
    """
    gone = {other for place in upper for other in REPLACED.get(place, ()) if other not in upper}
    if upper.get(ENV, lower.get(ENV)) != lower.get(ENV):
        gone |= {place for place in lower if place in _OF_ENV or place.startswith(f"{ENV_CONFIG}.")}
    if upper.get("run.video") == "none":
        gone |= {"run.video_every"}
    if has_lr_schedule(upper):
        gone |= {ANNEAL}  # the schedule replaces it
    return {**{place: value for place, value in lower.items() if place not in gone}, **upper}


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Tree:
    """Returns a complete tree and one above it, whose learners share the train batch of the lower one."""
    found = above(lower, with_shares(upper, lower))
    size, asked = lower.get(MINIBATCH_SIZE), upper.get(BATCH_SIZE)
    if MINIBATCH_SIZE not in upper and size and asked:
        found[MINIBATCH_SIZE] = min(size, asked * max(1, found.get(NUM_LEARNERS, 0)))
    return found


def with_shares(tree: Mapping[str, Any], before: Mapping[str, Any]) -> Tree:
    """Returns a tree with the share of each of its learners in the train batch of the tree before, rounded up.

    A tree that does not change the learners, or that has a size of train batches, stays as it is.
    """
    if NUM_LEARNERS not in tree or BATCH_SIZE in tree or BATCH_SIZE not in before:
        return dict(tree)
    total = before[BATCH_SIZE] * max(1, before.get(NUM_LEARNERS, 0))
    return {**tree, BATCH_SIZE: -(-total // max(1, tree[NUM_LEARNERS]))}


def learning_rates(tree: Mapping[str, Any]) -> Tree:
    """Returns the learning rates in a tree, ``training.lr``, ``training.actor_lr`` and the like; None is left out."""
    return {
        place: value
        for place, value in tree.items()
        if re.fullmatch(r"training\.(\w+_)?lr", place) and value is not None
    }


def has_lr_schedule(tree: Mapping[str, Any]) -> bool:
    """Whether a learning rate in a tree is a schedule."""
    return any(isinstance(rate, list) for rate in learning_rates(tree).values())


def nested(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tree as JSON data: its sections with their settings. ``"Infinity"`` stands for a number JSON has not.

    >>> nested({"training.lr": 0.1, "environment.env_config.size": 3})
    {'training': {'lr': 0.1}, 'environment': {'env_config': {'size': 3}}}
    """
    found: dict[str, Any] = {}
    for place, value in tree.items():
        section, name, *key = place.split(".", 2)
        settings = found.setdefault(section, {})
        if key:
            settings, name = settings.setdefault(name, {}), key[0]
        settings[name] = "Infinity" if value == math.inf else value
    return found


def flat(data: Any, who: str) -> Tree:
    """Returns the tree that ``nested`` has written, without a check of its values.

    Raises:
        CheckpointError: If the data are something else.
    """
    found: Tree = {}
    for section, settings in data.items() if isinstance(data, Mapping) else [("", data)]:
        if not isinstance(settings, Mapping):
            raise CheckpointError(f"{who}: expected settings by section, but got {brief(settings)}. Correct it.")
        for name, value in settings.items():
            place = f"{section}.{name}"
            if place in DICTS and isinstance(value, Mapping):
                found |= {f"{place}.{key}": own for key, own in value.items()}
            else:
                found[place] = math.inf if value == "Infinity" else value
    return found
