"""Which module decides for which agent: the ready-made policy mapping functions, and their text form.

A policy mapping function is any ``fn(agent_id, episode, **kwargs) -> ModuleID``. It is called once per agent and
episode. The ready-made ones are frozen dataclasses, so that they can be compared, printed and written to a checkpoint.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from marl_connectors.errors import CheckpointError, ConfigError, MappingError, MarlConnectorsError, did_you_mean
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID
from marl_connectors.validators import shown

PolicyMappingFn: TypeAlias = Callable[..., ModuleID]
_SPELLINGS = '"shared", "independent", "pattern=module,pattern=module", or a function of (agent_id, episode, **kwargs)'


@dataclass(frozen=True, slots=True)
class SharedPolicy:
    """All agents are decided for by one module.

    >>> SharedPolicy()("agent_0", None)
    'default_policy'
    """

    module_id: ModuleID = DEFAULT_MODULE_ID

    def __call__(self, agent_id: AgentID, episode: Any = None, **kwargs: Any) -> ModuleID:
        return self.module_id


@dataclass(frozen=True, slots=True)
class IndependentPolicies:
    """Each agent has a module of its own, called as the agent is.

    >>> IndependentPolicies()("agent_0", None)
    'agent_0'
    """

    def __call__(self, agent_id: AgentID, episode: Any = None, **kwargs: Any) -> ModuleID:
        return str(agent_id)


@dataclass(frozen=True, slots=True)
class PatternPolicies:
    """Agents are grouped by shell-style patterns of their ids; the first pattern that matches decides.

    >>> PatternPolicies((("adversary*", "red"), ("*", "green")))("agent_0", None)
    'green'

    Attributes:
        patterns: ``(pattern, module_id)`` pairs. A pattern knows ``*``, ``?`` and ``[...]``, and minds upper and lower
            case.
    """

    patterns: tuple[tuple[str, ModuleID], ...]

    def __call__(self, agent_id: AgentID, episode: Any = None, **kwargs: Any) -> ModuleID:
        name = str(agent_id)
        for pattern, module_id in self.patterns:
            if fnmatchcase(name, pattern):
                return module_id
        raise MappingError(
            f"PatternPolicies: agent {agent_id!r} matches none of the patterns {self._list()}. "
            f"Add a pattern for it, such as '*=other' at the end."
        )

    def _list(self) -> str:
        return ", ".join(repr(pattern) for pattern, _ in self.patterns)


def goes_by_agent_alone(mapping: PolicyMappingFn) -> bool:
    """Whether an agent has the same module in all episodes. Of a user's function that is not known."""
    return isinstance(mapping, (SharedPolicy, IndependentPolicies, PatternPolicies))


def policy_mapping(spec: str | PolicyMappingFn) -> PolicyMappingFn:
    """The mapping function that a short text stands for.

    >>> policy_mapping("adversary*=red,agent*=green")
    PatternPolicies(patterns=(('adversary*', 'red'), ('agent*', 'green')))

    Args:
        spec: ``"shared"``, ``"independent"``, ``"pattern=module,..."``, or a mapping function, which is given back.

    Raises:
        ConfigError: If it is none of these.
    """
    if callable(spec):
        return spec
    if not isinstance(spec, str):
        raise ConfigError(f"policy_mapping_fn: expected {_SPELLINGS}, but got {shown(spec)}.")
    text = spec.strip()
    if text == "shared":
        return SharedPolicy()
    if text == "independent":
        return IndependentPolicies()
    if "=" not in text:
        close = did_you_mean(text, ["shared", "independent"])
        hint = f" {close}" if close.startswith("Did you mean") else ""
        raise ConfigError(f"policy_mapping_fn: expected {_SPELLINGS}, but got {spec!r}.{hint}")
    return PatternPolicies(tuple(_parse_pair(pair, spec) for pair in text.split(",")))


def _parse_pair(pair: str, spec: str) -> tuple[str, ModuleID]:
    pattern, equals, module_id = (part.strip() for part in pair.partition("="))
    if not (pattern and equals and module_id) or "=" in module_id:
        raise ConfigError(
            f"policy_mapping_fn: expected pattern=module pairs with commas between, but {pair.strip()!r} in {spec!r} "
            f'is not one. Write for example "adversary*=red,agent*=green".'
        )
    return pattern, module_id


def check_patterns(mapping: PolicyMappingFn, agent_ids: Iterable[AgentID]) -> None:
    """Checks patterns against the agents that there are; other mapping functions pass unchecked.

    Raises:
        MappingError: If a pattern matches no agent, or an agent no pattern.
    """
    if not isinstance(mapping, PatternPolicies):
        return
    agents = list(agent_ids)
    for pattern, module_id in mapping.patterns:
        if not any(fnmatchcase(str(agent_id), pattern) for agent_id in agents):
            raise MappingError(
                f"PatternPolicies: the pattern {pattern!r} (for module {module_id!r}) matches no agent. "
                f"Change it, or leave it out. The agents are: {', '.join(map(str, agents))}."
            )
    for agent_id in agents:
        mapping(agent_id, None)


# Functions by name --------------------------------------------------------------------------------------------------


def import_function(spec: str) -> Any:
    """The object that ``"package.module:name"`` names.

    Raises:
        ConfigError: If the text has another form, or the module or the name is not there, or the module fails to
            import.
    """
    return import_attribute(spec, who="import_function", error=ConfigError)


def import_attribute(spec: str, *, who: str, error: type[MarlConnectorsError]) -> Any:
    """As ``import_function``, with the name of the asker and the class of the errors.

    Args:
        spec: ``"package.module:name"``, where the name may have dots.
        who: The first word of the messages.
        error: The class of the errors that are raised.
    """
    module_name, colon, attribute = (part.strip() for part in spec.partition(":"))
    if not (module_name and colon and attribute):
        raise error(f'{who}: expected "my_module:my_function", but got {spec!r}.')
    found = import_module(module_name, who=who, error=error)
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [name for name in dir(found) if not name.startswith("_")]
            close = did_you_mean(part, known)
            hint = close if len(known) <= 12 or close.startswith("Did you mean") else "Check its spelling."
            raise error(f"{who}: module {module_name!r} has no {attribute!r}. {hint}")
        found = getattr(found, part)
    return found


def import_module(name: str, *, who: str, error: type[MarlConnectorsError]) -> Any:
    """The module called ``name``; says whether it is missing, or there and broken."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        missing = cause.name or ""
        if missing and (name == missing or name.startswith(missing + ".")):
            raise error(
                f"{who}: there is no module {missing!r}. Check the spelling, run from the folder that holds it, "
                f"or install the package that has it."
            ) from cause
        raise error(f"{who}: module {name!r} needs {missing!r}, which is not installed. Install it.") from cause
    except Exception as cause:
        raise error(f"{who}: module {name!r} fails to import: {type(cause).__name__}: {cause}") from cause


def qualified_name(obj: Any) -> str | None:
    """``"module:name"`` if that names this very object in any process, else None.

    A lambda, a local function, and anything defined in the started script (``__main__``) has no such name.
    """
    module_name, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not module_name or not name or module_name == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{name}" if found is obj else None


def mapping_to_json(fn: PolicyMappingFn) -> dict[str, Any]:
    """A mapping function as JSON data: a ready-made one, one with an importable name, or a dataclass that has one.

    Of a dataclass the fields are kept, if they are numbers, strings, or lists, tuples and dicts of them. What cannot be
    kept leaves a note that it has to be passed again.
    """
    match fn:
        case SharedPolicy():
            return {"type": "shared", "module_id": fn.module_id}
        case IndependentPolicies():
            return {"type": "independent"}
        case PatternPolicies():
            return {"type": "patterns", "patterns": [list(pair) for pair in fn.patterns]}
    name = qualified_name(fn)
    if name is not None:
        return {"type": "function", "name": name}
    if is_dataclass(fn) and not isinstance(fn, type):
        name, values = qualified_name(type(fn)), {field.name: getattr(fn, field.name) for field in fields(fn)}
        if name is not None and _is_plain(values):
            return {"type": "dataclass", "name": name, "fields": values}
    return {"type": "not_importable", "name": getattr(fn, "__qualname__", type(fn).__qualname__)}


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint gives a value back as it is: numbers, strings, and lists, tuples and dicts of them."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def mapping_from_json(data: dict[str, Any]) -> PolicyMappingFn:
    """The mapping function that ``mapping_to_json`` described.

    Raises:
        CheckpointError: If it cannot be had from the description alone.
    """
    match data.get("type"):
        case "shared":
            return SharedPolicy(data["module_id"])
        case "independent":
            return IndependentPolicies()
        case "patterns":
            return PatternPolicies(tuple((pattern, module_id) for pattern, module_id in data["patterns"]))
        case "function":
            return import_attribute(data["name"], who="policy_mapping_fn of the checkpoint", error=CheckpointError)
        case "dataclass":
            made = import_attribute(data["name"], who="policy_mapping_fn of the checkpoint", error=CheckpointError)
            return made(**data["fields"])
        case "not_importable":
            raise CheckpointError(
                f"policy_mapping_fn: the checkpoint was made with {data['name']!r}, a function that cannot be imported "
                f"by name. Pass the function again (policy_mapping_fn=...), or define it at the top of a module."
            )
    raise CheckpointError(f"policy_mapping_fn: expected the description of a mapping function, but got {data!r}.")
