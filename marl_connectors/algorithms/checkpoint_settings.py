"""Checks that a config fits a checkpoint: that it is one of the same algorithm, and changes nothing that is fixed.

Settings are compared as the JSON data in which checkpoints hold them, so that nothing is imported for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from marl_connectors.algorithms.algorithm_state import AlgorithmState
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.sections import fixed_settings
from marl_connectors.algorithms.config.state import ConfigState, config_class_of, to_state
from marl_connectors.errors import CheckpointError
from marl_connectors.names import Names, brief, qualified_name
from marl_connectors.state import read_state
from marl_connectors.typing import ModuleID

_DECIDES_STRUCTURE: Final = (
    "get_default_rl_module_class",
    "get_default_learner_class",
    "complete_rl_module_spec",
    "default_learner_pieces",
)
"""The methods of a config that decide what its modules and learners consist of."""
_ALGORITHMS, _POLICIES, _SPEC = "algorithm_configs", "policies", "rl_module_spec"
_OVERRIDES: Final = "algorithm_config_overrides_per_module"
_LOADED: Final = "load_state_path"
"""The field of specs that says where parameters begin, which may be left out when they go on."""
_SPECS: Final = "rl_module_specs"
"""The field of a MultiRLModuleSpec with the specs of its modules."""
_MODEL, _CLASS = "model_config", "class"
_NOT_SET: Final = object()


def check_settings(
    state: AlgorithmState, config: AlgorithmConfig, names: Names, *, restored_later: Collection[str] = ()
) -> None:
    """Checks that the settings of a config can take effect in a run that goes on from a checkpoint.

    Args:
        state: The algorithm's state.
        config: The config of the run that goes on.
        names: Looks up the classes of configs in the checkpoint.
        restored_later: Settings that are not compared, because those of the checkpoint will take their place, or
            because they are not used.

    Raises:
        CheckpointError: If it is the config of another algorithm, or differs in one of its fixed settings.
    """
    settings, module_ids = state.config.settings, list(state.modules.specs)
    check_class(state.config, config, names)
    algorithms, own_configs = _algorithms_in(state.config), config.configs_of_algorithms()
    _check_same(_ALGORITHMS, list(algorithms), list(own_configs))
    for name, own in own_configs.items():
        check_class(algorithms[name], own, names)
        there = algorithms[name].settings
        for setting in sorted((fixed_settings(type(own)) - {_SPEC}) & there.keys()):
            _check_same(setting, _plain(there[setting]), _plain(to_state(getattr(own, setting), setting)))
    if _OVERRIDES not in restored_later:
        _check_overrides(settings, algorithms, config, module_ids)
    if _POLICIES not in restored_later:
        _check_policies(settings, config, module_ids)
    _check_specs(settings, algorithms, config, state.modules.specs)


@contextmanager
def naming_changes(state: AlgorithmState, config: AlgorithmConfig) -> Iterator[None]:
    """Adds to a CheckpointError in its block in which settings a config differs from that of a checkpoint's run.

    Args:
        state: The algorithm's state.
        config: The config.
    """
    try:
        yield
    except CheckpointError as error:
        there = state.config.settings
        pairs = {
            name: (_plain(there[name]), _plain(to_state(value, name)))
            for name, value in config.to_dict().items()
            if name in there and name not in ("seed", _ALGORITHMS)
        }
        changed = [f"{name} (was {_shown(a)}, now {_shown(b)})" for name, (a, b) in pairs.items() if a != b]
        if not changed:
            raise
        raise CheckpointError(f"{error} Settings that differ from those of its run: {', '.join(changed)}.") from error


def check_seed(state: AlgorithmState, config: AlgorithmConfig) -> None:
    """Checks that a config has no seed, or that of the checkpoint, from which all of its random streams follow.

    Raises:
        CheckpointError: If it has another seed.
    """
    if config.seed is not None:
        _check_same("seed", state.seed, config.seed)


def check_class(saved: ConfigState, config: AlgorithmConfig, names: Names) -> None:
    """Checks that a config is of the algorithm of a saved config, as far as the class of that one can be known.

    The classes may differ if one is derived from the other and both have the same kinds of modules and learners.

    Raises:
        CheckpointError: If it is not.
    """
    here = type(config)
    if saved.class_name == qualified_name(here):
        return
    try:
        there = config_class_of(saved, names)
    except CheckpointError:  # it has no name, or is not trusted
        return
    is_related = issubclass(there, here) or issubclass(here, there)
    if is_related and all(getattr(there, method) is getattr(here, method) for method in _DECIDES_STRUCTURE):
        return
    raise CheckpointError(
        f"checkpoint: its run has a {there.__name__}, but config is a {here.__name__}. Pass the config of that run."
    )


# What is compared.


def _algorithms_in(saved: ConfigState) -> dict[str, ConfigState]:
    """Returns the saved configs of each algorithm, as ``configs_of_algorithms`` does."""
    settings = saved.settings
    if _ALGORITHMS not in settings:
        return {"": saved}
    found = {}
    for pattern, own in settings[_ALGORITHMS]:
        own = read_state(ConfigState, own)
        inherited = {"model_config": settings["model_config"]} if own.settings.get("model_config") is None else {}
        found[pattern] = ConfigState(class_name=own.class_name, settings={**settings, **own.settings, **inherited})
    return found


def _check_overrides(
    settings: Mapping[str, Any],
    algorithms: Mapping[str, ConfigState],
    config: AlgorithmConfig,
    module_ids: Collection[ModuleID],
) -> None:
    """Compares the fixed settings of modules with settings of their own."""
    here: Mapping[ModuleID, Any] = config.algorithm_config_overrides_per_module
    for module_id in module_ids:
        own, there = config.get_config_for_module(module_id), algorithms[config.algorithm_of(module_id)].settings
        saved = _entries(_entries(settings.get(_OVERRIDES)).get(module_id))
        changed, there = {*saved, *here.get(module_id, ())}, {**there, **saved}
        for setting in sorted(fixed_settings(type(own)) & changed & there.keys()):
            value = _plain(to_state(getattr(own, setting), setting))
            _check_same(setting, _plain(there[setting]), value, of=f" of module {module_id!r}")


def _check_policies(settings: Mapping[str, Any], config: AlgorithmConfig, module_ids: Collection[ModuleID]) -> None:
    """Compares the ids in ``policies``, if the config names them."""
    if config.policies is not None:
        saved = settings.get(_POLICIES)
        there = list(module_ids) if saved is None else list(_plain(saved))
        _check_same(_POLICIES, sorted(there), sorted(config.policies))


def changed_policies(data: Any, own: Any) -> Any:
    """Returns ``policies`` after modules were added and removed.

    Args:
        data: The JSON data of the setting in the checkpoint, of which the ids are used.
        own: The setting in the config, of which the specs are used. Modules that were added have no specs there.
    """
    if data["__kind__"] != "dict":
        return _plain(data)
    specs = own if isinstance(own, dict) else {}
    return {m: None if spec is None else specs.get(m) for m, spec in _entries(data).items()}


def _check_specs(
    settings: Mapping[str, Any],
    algorithms: Mapping[str, ConfigState],
    config: AlgorithmConfig,
    built: Mapping[ModuleID, Any],
) -> None:
    """Compares ``rl_module_spec``, and the specs of modules in it and in ``policies``.

    A spec that the run did not have may say what the module is anyway, such as its class, if that has no name. The
    ``model_config`` of a spec is compared with that of the config where the other one has none.
    """
    own = {name: to_state(getattr(config, name), name) for name in (_SPEC, _POLICIES)}
    _check_same(_SPEC, *_without_initial(_fields_of_all(settings.get(_SPEC)), _fields_of_all(own[_SPEC])))
    for module_id, spec in built.items():
        actual, of = _fields(spec), f" of module {module_id!r}"
        there, here = _without_initial(_fields_of(settings, module_id), _fields_of(own, module_id))
        models = there.pop(_MODEL, None), here.pop(_MODEL, None)
        _check_same(_SPEC, there or {name: actual.get(name) for name in here}, here, of)
        if models != (None, None) and models[1] != actual.get(_MODEL):
            saved = algorithms[config.algorithm_of(module_id)].settings
            saved = {**saved, **_entries(_entries(settings.get(_OVERRIDES)).get(module_id))}
            default = _plain(saved.get(_MODEL)), _plain(to_state(config.get_config_for_module(module_id).model_config))
            one, other = (own if own is not None else of_config for own, of_config in zip(models, default, strict=True))
            _check_same(f"{_SPEC}[{_MODEL!r}]", one, other, of)


def _without_initial(there: dict[str, Any], here: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields of two specs, without the place where parameters began if only the first one has it."""
    return {name: value for name, value in there.items() if name != _LOADED or name in here}, here


def _fields_of_all(spec: Any) -> dict[str, Any]:
    """Returns the fields of a MultiRLModuleSpec, which are for all modules; ``{}`` for other specs."""
    return {name: value for name, value in _fields(spec).items() if name != _SPECS} if _SPECS in _entries(spec) else {}


def _fields_of(settings: Mapping[str, Any], module_id: ModuleID) -> dict[str, Any]:
    """Returns the fields of a module's spec in ``rl_module_spec`` or ``policies``; ``{}`` if it has none."""
    spec = settings.get(_SPEC)
    if isinstance(spec, Mapping) and _SPECS in _entries(spec):
        spec = _entries(spec)[_SPECS]
        if spec["__kind__"] == "dict":
            spec = _entries(spec).get(module_id)
    return _fields(spec) or _fields(_entries(settings.get(_POLICIES)).get(module_id))


# The JSON data of settings.


def _entries(data: Any) -> dict[Any, Any]:
    """Returns the items of a dict, or the fields of a dataclass, still as JSON data; ``{}`` for other values."""
    match data:
        case {"__kind__": "dataclass", "value": dict(fields)}:
            return fields
        case {"__kind__": "dict", "value": list(pairs)}:
            return {_plain(key): value for key, value in pairs}
    return {}


def _fields(data: Any) -> dict[str, Any]:
    """Returns the fields of a described dataclass that are set; its description alone if it has no name."""
    plain = _plain(data)
    if not isinstance(plain, dict):
        return {} if plain is None else {"": plain}
    return {name: value for name, value in plain.items() if name != _CLASS and value not in (None, False, {}, [])}


def _plain(data: Any) -> Any:
    """Returns the described value as numbers, texts, lists and dicts. Tuples and sets count as lists."""
    match data:
        case {"__kind__": "dataclass", "class": name, "value": dict(fields)}:
            return {_CLASS: name, **{field: _plain(value) for field, value in fields.items()}}
        case {"__kind__": "dict", "value": list(pairs)}:
            return {_plain(key): _plain(value) for key, value in pairs}
        case {"__kind__": str(), "value": list(items)}:
            return [_plain(item) for item in items]
        case {"__kind__": str(), "value": value}:
            return value
    return data


def _check_same(setting: str, there: Any, here: Any, of: str = "") -> None:
    """Raises a CheckpointError that names the first difference between plain values, if there is one.

    Args:
        setting: The name of the setting, and the place of the values in it.
        there: The value in the checkpoint.
        here: The value in the config.
        of: Words that follow the name.
    """
    if there == here:
        return
    is_alike = isinstance(there, dict) and isinstance(here, dict) and there.get(_CLASS) == here.get(_CLASS)
    for key in {**there, **here} if is_alike else ():
        _check_same(f"{setting}[{key!r}]", there.get(key, _NOT_SET), here.get(key, _NOT_SET), of)
    raise CheckpointError(
        f"checkpoint: {setting}{of} was {_shown(there)} in its run, but it is {_shown(here)} in config. A run that "
        f"goes on from a checkpoint cannot change it: leave it as it was, or begin a new run with config.build_algo()."
    )


def _shown(value: Any) -> str:
    return "not set" if value is _NOT_SET else brief(value)
