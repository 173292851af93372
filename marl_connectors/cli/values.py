"""Converts the words of a command line to values, and values to JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from marl_connectors.errors import ConfigError
from marl_connectors.packages import require_packages

_EXPONENTS = {"k": 3, "m": 6, "g": 9, "b": 9}
"""The powers of ten that units of numbers stand for."""
_MOST_SEEDS = 1000


def require_extras(*modules: str) -> None:
    """Checks that optional packages are installed, without importing them.

    Raises:
        MissingDependencyError: If a package is missing.
    """
    require_packages("the command line", *modules)


def literal(text: str) -> Any:
    """Reads a JSON or Python literal, also one with words of both; returns the text itself if it is neither.

    >>> literal("0.5"), literal("true"), literal("False"), literal("[1, 2]"), literal("tanh"), literal("{'a': true}")
    (0.5, True, False, [1, 2], 'tanh', {'a': True})
    """
    for parse in (json.loads, ast.literal_eval, _literal_of_both):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def _literal_of_both(text: str) -> Any:
    """Reads a Python literal in which ``true``, ``false`` and ``null`` are as in JSON."""
    tree = ast.parse(text.strip(), mode="eval")
    return ast.literal_eval(_WithWordsOfJson().visit(tree))


class _WithWordsOfJson(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node


def key_value(text: str) -> tuple[str, Any]:
    """Reads ``KEY=VALUE`` with a literal value.

    >>> key_value("lr=3e-4")
    ('lr', 0.0003)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"expected KEY=VALUE, but got {text!r}.")
    found = literal(value.strip())
    if isinstance(found, str) and re.match(r"\{.*:.*\}$", value.strip(), re.DOTALL):
        raise ConfigError(
            f"expected a dict such as \"{key.strip()}={{'name': 1}}\", in quotes and with quotes around names, but got "
            f"{text!r}."
        )
    return key.strip(), found


def literal_text(value: Any) -> str:
    """Returns a text from which ``literal`` makes the value.

    >>> literal_text(True), literal_text("tanh"), literal_text("5"), literal_text((1, None))
    ('True', 'tanh', "'5'", '(1, None)')
    """
    for text in (str(value), repr(value), json.dumps(value)):
        found = literal(text.strip())
        if type(found) is type(value) and found == value:
            return text
    return repr(value)


def opponent(text: str) -> str | None:
    """Reads who plays against an agent or a team in evaluations; ``none`` stands for the policies of training.

    >>> opponent("random"), opponent("random:red_*,blue_*"), opponent("none")
    ('random', 'random:red_*,blue_*', None)
    """
    who, _, teams = text.partition(":")
    if text.lower() == "none":
        return None
    if who.lower() != "random" or (":" in text and not all(part.strip() for part in teams.split(","))):
        raise ConfigError(f"expected random, random:TEAM,TEAM or none, but got {text!r}.")
    return "random" + text[len("random") :]


def without_unit(value: Any) -> str:
    """Returns a question with the number that was meant by a unit; ``""`` for other values.

    >>> without_unit("1.5M"), without_unit("many")
    (" Did you mean '1.5e6'?", '')
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kKmMgGbB])", value) if isinstance(value, str) else None
    return f" Did you mean '{found[1]}e{_EXPONENTS[found[2].lower()]}'?" if found else ""


def seed_list(text: str) -> list[int]:
    """Reads seeds: ranges that include both ends, and single seeds, with commas between.

    >>> seed_list("0-3,7")
    [0, 1, 2, 3, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True) or (dash and int(last) < int(first)):
            raise ConfigError(f"expected seeds such as 0-4 or 0,3,7, but got {text!r}.")
        low, high = int(first), int(last or first)
        if high - low >= _MOST_SEEDS:
            raise ConfigError(f"expected at most {_MOST_SEEDS} seeds, each a run, but got {text!r}.")
        seeds += range(low, high + 1)
    return seeds


def seeds_text(seeds: Sequence[int]) -> str:
    """Formats seeds so that ``seed_list`` reads them.

    >>> seeds_text([0, 1, 2, 3]), seeds_text([0, 3, 7])
    ('0-3', '0,3,7')
    """
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))
