"""The ready-made policy mapping functions, which map agents to modules, and their text form.

A policy mapping function is any ``fn(agent_id, episode, **kwargs) -> ModuleID``. It is called once per agent and
episode. The ready-made ones are frozen dataclasses, so that they can be compared, printed and written to a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from marl_connectors.errors import (
    CheckpointError,
    ConfigError,
    MappingError,
    did_you_mean,
)
from marl_connectors.names import Expected, Names, brief, is_function, qualified_name
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID
from marl_connectors.validators import shown

PolicyMappingFn: TypeAlias = Callable[..., ModuleID]
_SPELLINGS = '"shared", "independent", "pattern=module,pattern=module", or a function of (agent_id, episode, **kwargs)'


@dataclass(frozen=True, slots=True)
class SharedPolicy:
    """Maps all agents to one module.

    >>> SharedPolicy()("agent_0", None)
    'default_policy'
    """

    module_id: ModuleID = DEFAULT_MODULE_ID

    def __call__(self, agent_id: AgentID, episode: Any = None, **kwargs: Any) -> ModuleID:
        return self.module_id


@dataclass(frozen=True, slots=True)
class IndependentPolicies:
    """Maps each agent to its own module, whose id is the agent's id.

    >>> IndependentPolicies()("agent_0", None)
    'agent_0'
    """

    def __call__(self, agent_id: AgentID, episode: Any = None, **kwargs: Any) -> ModuleID:
        return str(agent_id)


@dataclass(frozen=True, slots=True)
class PatternPolicies:
    """Maps agents to modules by shell-style patterns of their ids. The first pattern that matches decides.

    >>> PatternPolicies((("adversary*", "red"), ("*", "green")))("agent_0", None)
    'green'

    Attributes:
        patterns: ``(pattern, module_id)`` pairs. A pattern knows ``*``, ``?`` and ``[...]``, and minds upper and lower
            case.

    Raises:
        ConfigError: If a pattern before another one, for another module, leaves no agent for that.
    """

    patterns: tuple[tuple[str, ModuleID], ...]

    def __post_init__(self) -> None:
        for number, (later, module_id) in enumerate(self.patterns):
            for earlier, own in self.patterns[:number]:
                if own != module_id and _fits_all_of(earlier, later):
                    raise ConfigError(
                        f"policy_mapping_fn: the pattern {later!r} (for module {module_id!r}) is never used, because "
                        f"{earlier!r} (for module {own!r}) comes first and fits the same agents. Put {later!r} first, "
                        f"or leave it out."
                    )

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


@dataclass(frozen=True, slots=True)
class OneAgainst:
    """Maps one agent or team to its module, and all others to an opponent, for evaluations of self-play.

    The agent or team changes from episode to episode, so that each of them plays equally often. The sum of the numbers
    in the episode's id decides, which is ``"{number of the sub-environment}-{number of its episode}"``.

    >>> from types import SimpleNamespace
    >>> mapping = OneAgainst(SharedPolicy("main"), ("player_0", "player_1"), "random")
    >>> [mapping("player_0", SimpleNamespace(id_=id_)) for id_ in ("0-0", "0-1", "1-1")]
    ['main', 'random', 'main']

    Attributes:
        mapping: The mapping function for the one agent.
        agent_ids: The agents that play, one after another, each as text; or a shell-style pattern of the agents of each
            team, such as ``"red_*"``.
        opponent: The module of all other agents.
    """

    mapping: PolicyMappingFn
    agent_ids: tuple[str, ...]
    opponent: ModuleID

    def __call__(self, agent_id: AgentID, episode: Any, **kwargs: Any) -> ModuleID:
        turn = sum(map(int, re.findall(r"\d+", str(episode.id_))))
        playing = self.agent_ids[turn % len(self.agent_ids)]
        is_playing = str(agent_id) == playing or fnmatchcase(str(agent_id), playing)
        return self.mapping(agent_id, episode, **kwargs) if is_playing else self.opponent


def goes_by_agent_alone(mapping: PolicyMappingFn) -> bool:
    """Whether an agent is known to have the same module in all episodes; False for a user's function."""
    return isinstance(mapping, (SharedPolicy, IndependentPolicies, PatternPolicies))


def policy_mapping(spec: str | PolicyMappingFn) -> PolicyMappingFn:
    """Returns the mapping function that a short string means.

    >>> policy_mapping("adversary*=red,agent*=green")
    PatternPolicies(patterns=(('adversary*', 'red'), ('agent*', 'green')))

    Args:
        spec: ``"shared"``, ``"independent"``, ``"pattern=module,..."``, or a mapping function, which is returned.

    Raises:
        ConfigError: If it is none of these, or if a pattern before another one leaves no agent for that.
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


def _fits_all_of(pattern: str, other: str) -> bool:
    """Whether a pattern is known to fit every agent that another one fits.

    >>> _fits_all_of("agent*", "agent_0"), _fits_all_of("agent*", "agent_?"), _fits_all_of("agent?", "agent*")
    (True, True, False)
    """
    has_only_stars = not set(pattern) & set("?[")
    return fnmatchcase(other, pattern) and (has_only_stars or not set(other) & set("*?["))


def _parse_pair(pair: str, spec: str) -> tuple[str, ModuleID]:
    pattern, equals, module_id = (part.strip() for part in pair.partition("="))
    if not (pattern and equals and module_id) or "=" in module_id:
        raise ConfigError(
            f"policy_mapping_fn: expected pattern=module pairs with commas between, but {pair.strip()!r} in {spec!r} "
            f'is not one. Write for example "adversary*=red,agent*=green".'
        )
    return pattern, module_id


def check_independence(mapping: PolicyMappingFn, agent_ids: Iterable[AgentID]) -> None:
    """Checks that ``IndependentPolicies`` give each agent a module of its own. Other mapping functions are not checked.

    Raises:
        MappingError: If two agents have ids with the same text, such as ``0`` and ``"0"``.
    """
    if not isinstance(mapping, IndependentPolicies):
        return
    named: dict[ModuleID, AgentID] = {}
    for agent_id in agent_ids:
        other = named.setdefault(mapping(agent_id), agent_id)
        if other != agent_id:
            raise MappingError(
                f"IndependentPolicies: agents {other!r} ({type(other).__name__}) and {agent_id!r} "
                f"({type(agent_id).__name__}) would share the module {str(agent_id)!r}, because their ids have the "
                f"same text. Rename one of them, or use a mapping function of your own."
            )


def check_mapping(mapping: PolicyMappingFn, agent_ids: Iterable[AgentID]) -> None:
    """Checks a ready-made mapping function against the existing agents. Other functions are not checked.

    Raises:
        MappingError: If a pattern matches no agent, an agent no pattern, or if ``check_independence`` finds a fault.
    """
    agents = list(agent_ids)
    check_independence(mapping, agents)
    if not isinstance(mapping, PatternPolicies):
        return
    for pattern, module_id in mapping.patterns:
        if not any(fnmatchcase(str(agent_id), pattern) for agent_id in agents):
            raise MappingError(
                f"PatternPolicies: the pattern {pattern!r} (for module {module_id!r}) matches no agent. "
                f"Change it, or leave it out. The agents are: {', '.join(map(str, agents))}."
            )
    for agent_id in agents:
        mapping(agent_id, None)


# In checkpoints ------------------------------------------------------------------------------------------------------


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
        case OneAgainst():
            own = {"agent_ids": list(fn.agent_ids), "opponent": fn.opponent}
            return {"type": "one_against", "mapping": mapping_to_json(fn.mapping), **own}
    name = qualified_name(fn)
    if name is not None:
        return {"type": "function", "name": name}
    if is_dataclass(fn) and not isinstance(fn, type):
        name, values = qualified_name(type(fn)), {f.name: getattr(fn, f.name) for f in fields(fn) if f.init}
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


_FUNCTION = Expected("a policy mapping function", own=is_function)
_DATACLASS = Expected(
    "a dataclass with a method __call__",
    own=lambda found: isinstance(found, type) and is_dataclass(found) and _is_callable(found),
)


def _is_callable(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)


def mapping_from_json(data: Mapping[str, Any], names: Names | None = None) -> PolicyMappingFn:
    """Returns the mapping function that ``mapping_to_json`` described.

    Args:
        data: The JSON data.
        names: Resolves names; None to import from any of the user's modules.

    Raises:
        CheckpointError: If the function cannot be found from the description alone.
    """
    names, who = names or Names(), "policy_mapping_fn of the checkpoint"
    match data:
        case {"type": "shared", "module_id": str(module_id)}:
            return SharedPolicy(module_id)
        case {"type": "independent"}:
            return IndependentPolicies()
        case {"type": "patterns", "patterns": list(pairs)} if all(map(_is_pair, pairs)):
            return PatternPolicies(tuple((pattern, module_id) for pattern, module_id in pairs))
        case {"type": "one_against", "mapping": dict(own), "agent_ids": list(ids), "opponent": str(opponent)} if (
            ids and all(isinstance(agent_id, str) for agent_id in ids)
        ):
            return OneAgainst(mapping_from_json(own, names), tuple(ids), opponent)
        case {"type": "function", "name": name}:
            return names.resolve(name, _FUNCTION, who=who)
        case {"type": "dataclass", "name": name, "fields": dict(own)} if _is_plain(own):
            made = names.resolve(name, _DATACLASS, who=who)
            known = [field.name for field in fields(made) if field.init]
            for key in own:
                if key not in known:
                    raise CheckpointError(f"{who}: {name!r} has no field {key!r}. {did_you_mean(key, known)}")
            return made(**own)
        case {"type": "not_importable", "name": name}:
            raise CheckpointError(
                f"policy_mapping_fn: the checkpoint was made with {name!r}, a function that cannot be imported "
                f"by name. Pass the function again (policy_mapping_fn=...), or define it at the top of a module."
            )
    raise CheckpointError(f"policy_mapping_fn: expected the description of a mapping function, but got {brief(data)}.")


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
