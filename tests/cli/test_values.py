"""From words to values, and from values to JSON."""

from __future__ import annotations

import argparse
import math

import numpy as np
import pytest

from marl_connectors.cli.command_settings import seeds_of
from marl_connectors.cli.parser import count, whole_number
from marl_connectors.cli.values import (
    key_value,
    literal,
    literal_text,
    seed_list,
)
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import jsonable
from marl_connectors.validators import Unfit


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-4", 1e-4),
        ("true", True),
        ("False", False),
        ("None", None),
        ("{'a': [true, null], 'b': False}", {"a": [True, None], "b": False}),
        ("{'a': name}", "{'a': name}"),
        ("null", None),
        ("[[0, 0.1], [100, 0]]", [[0, 0.1], [100, 0]]),
        ('"3"', "3"),
        ("a=b", "a=b"),
        ("C:\\new", "C:\\new"),
        ("", ""),
    ],
)
def test_a_word_is_a_json_or_python_literal_or_itself(text, value):
    assert literal(text) == value and type(literal(text)) is type(value)


def test_a_value_may_have_an_equals_sign():
    assert key_value(" a = b=c ") == ("a", "b=c")


@pytest.mark.parametrize(
    ("text", "number"), [("1e6", 1_000_000), ("1_000", 1000), ("7", 7), ("9007199254740993", 2**53 + 1)]
)
def test_whole_numbers_may_be_written_in_short(text, number):
    assert whole_number(text) == count(text) == number


@pytest.mark.parametrize("text", ["-1", "1.5", "nan", "inf", "x", ""])
def test_other_numbers_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole"):
        whole_number(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "1e23"])
def test_numbers_above_those_of_64_bits_are_refused(text):
    assert whole_number("9223372036854775807") == 2**63 - 1
    with pytest.raises(argparse.ArgumentTypeError):
        whole_number(text)
    with pytest.raises(ConfigError if "e" in text else Unfit):
        seeds_of(text)


def test_a_range_of_seeds_has_at_most_1000():
    assert seed_list("5-1004") == list(range(5, 1005))
    with pytest.raises(ConfigError, match=r"\b1000 seeds"):
        seed_list("5-1005")


def test_json_tells_keys_apart_that_are_written_alike():
    assert jsonable({3: 0.5, "3": 1.5, 4: 2.5, ("3",): 3.5}) == {"int(3)": 0.5, "3": 1.5, "4": 2.5, "('3',)": 3.5}
    assert jsonable({"a": {"None": 1, None: 2}}) == {"a": {"None": 1, "NoneType(None)": 2}}


def test_json_has_no_infinite_numbers_and_names_objects():
    data = {1: math.nan, "a": np.float32(0.5), "b": (np.arange(2), {3}), "c": argparse.Namespace, "d": math.inf}
    assert jsonable(data) == {"1": None, "a": 0.5, "b": [[0, 1], [3]], "c": "argparse:Namespace", "d": None}


@pytest.mark.parametrize("text", ["[" * 100_000, "(" * 100_000, "-" * 100_000 + "1", "9" * 10_000])
def test_what_is_too_much_for_a_parser_is_text(text):
    assert literal(text) == text


# Values as words

VALUES = [1, 0, -2, 0.5, 1e-9, float("inf"), True, False, None, "a", "5", "True", "none", "a b", "it's", '"', "", "x=y"]
VALUES += [
    [1, 2],
    (1, "a"),
    {"a": [None, 1.5]},
    [[0, 1e-3], [1000, 1e-4]],
    " led by a blank",
    "null",
    "ünï",
    "-3",
    "--x",
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_can_be_written_on_the_command_line(value):
    found = literal(literal_text(value).strip())
    assert found == value and type(found) is type(value)
