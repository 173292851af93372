"""Converts the words of a command line to values, and values to JSON."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib.util
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from marl_connectors.errors import MissingDependencyError
from marl_connectors.names import qualified_name
from marl_connectors.policy_mapping import mapping_to_json

ACTIVATIONS = ("tanh", "relu", "silu", "swish", "elu", "gelu", "linear")
"""The activations of the default modules' hidden layers."""

_DISTRIBUTIONS = {"rich": "rich", "matplotlib": "matplotlib", "tensorboard": "tensorboard", "PIL": "pillow"}


def require_extras(*modules: str) -> None:
    """Checks that optional packages are installed, without importing them.

    Raises:
        MissingDependencyError: If a package is missing.
    """
    missing = [_DISTRIBUTIONS[name] for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"the command line needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f'installed. Install it with: pip install "marl-connectors[cli]"'
        )


def literal(text: str) -> Any:
    """Reads a JSON or Python literal; returns the text itself if it is neither.

    >>> literal("0.5"), literal("true"), literal("False"), literal("[1, 2]"), literal("tanh")
    (0.5, True, False, [1, 2], 'tanh')
    """
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def key_value(text: str) -> tuple[str, Any]:
    """Reads ``KEY=VALUE`` with a literal value.

    >>> key_value("lr=3e-4")
    ('lr', 0.0003)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, but got {text!r}")
    return key.strip(), literal(value.strip())


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


def mask_key(text: str) -> str | None:
    """Reads the key of action masks; ``none`` stands for no masks.

    >>> mask_key("legal"), mask_key("none")
    ('legal', None)
    """
    return None if text.lower() in ("none", "null", "false", "off") else text


def ray_address(text: str) -> str | None:
    """Reads the address of a Ray cluster; ``none`` stands for a cluster of this run alone.

    >>> ray_address("10.0.0.5:6379"), ray_address("none")
    ('10.0.0.5:6379', None)
    """
    return None if text.lower() in ("none", "null") else text


def opponent(text: str) -> str | None:
    """Reads who plays against an agent in evaluations; ``none`` stands for the policies of training.

    >>> opponent("random"), opponent("none")
    ('random', None)
    """
    if text.lower() not in ("random", "none"):
        raise argparse.ArgumentTypeError(f"expected random or none, but got {text!r}")
    return "random" if text.lower() == "random" else None


def whole_number(text: str) -> int:
    """Reads a non-negative whole number, also written ``1e6`` or ``1_000_000``."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number >= 0 and number.is_integer()):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, but got {text!r}")
    return int(text) if text.replace("_", "").isdigit() else int(number)


def count(text: str) -> int:
    """Reads a whole number of at least 1."""
    number = whole_number(text)
    if number == 0:
        raise argparse.ArgumentTypeError("expected a whole number of at least 1, but got '0'")
    return number


def seed_list(text: str) -> list[int]:
    """Reads seeds: ranges that include both ends, and single seeds, with commas between.

    >>> seed_list("0-3,7")
    [0, 1, 2, 3, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"expected seeds such as 0-4 or 0,3,7, but got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"expected each seed once, but got {text!r}")
    return seeds


def seeds_text(seeds: Sequence[int]) -> str:
    """Formats seeds so that ``seed_list`` reads them.

    >>> seeds_text([0, 1, 2, 3]), seeds_text([0, 3, 7])
    ('0-3', '0,3,7')
    """
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def number_or_auto(text: str) -> int | str:
    """Reads a non-negative whole number, or ``auto``."""
    return text if text == "auto" else whole_number(text)


def names(text: str) -> list[str]:
    """Reads ``a,b`` as a list of names."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError(f"expected names with commas between them, such as a,b, but got {text!r}")
    return found


def piece_names(texts: Iterable[str]) -> list[str]:
    """Returns the names of connector pieces without ``none``, which stands for no pieces.

    >>> piece_names(["MeanStdFilter", "AgentIdEncoding"]), piece_names(["none"])
    (['MeanStdFilter', 'AgentIdEncoding'], [])
    """
    return [text for text in texts if text.lower() != "none"]


def layer_sizes(text: str) -> list[int]:
    """Reads widths of hidden layers with commas between.

    >>> layer_sizes("64,64")
    [64, 64]
    """
    return [count(part.strip()) for part in text.split(",")]


def merged(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Merges repeated ``KEY=VALUE`` options to one dict; the last value of a key is used."""
    return dict(pairs)


def parsed_json(data: bytes | str) -> Any:
    """Reads strict JSON, of any depth and size that Python can hold.

    Raises:
        ValueError: If it is something else. The message says what is wrong.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def is_whole(value: Any, at_least: int = 0, at_most: float = math.inf) -> bool:
    """Whether a value is an integer, but not a bool, within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most


def brief(value: Any) -> str:
    """Formats a value for an error message, on one line and shortened if it is long."""
    text = " ".join(repr(value).split()) if not isinstance(value, (dict, list)) or len(value) < 20 else ""
    if not text:
        return f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def jsonable(value: Any) -> Any:
    """Returns strict JSON data for people: numbers that are not finite become None, and objects become names.

    Keys become strings. Where a dict has both 3 and ``"3"``, such as agents with these ids, 3 becomes ``"int(3)"``.
    """
    import numpy as np

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {_json_key(key, value): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if callable(value) and not isinstance(value, type):
        found = mapping_to_json(cast(Any, value))
        if found["type"] != "not_importable" or not dataclasses.is_dataclass(value):
            return found
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return qualified_name(value) or repr(value)


def _json_key(key: Any, keys: Collection[Any]) -> str:
    text = str(key)
    return text if isinstance(key, str) or text not in keys else f"{type(key).__name__}({text})"
