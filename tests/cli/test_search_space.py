"""Search spaces."""

from __future__ import annotations

import argparse

import pytest

from marl_connectors.cli.search_space import Choices, Range, search_option, search_space
from marl_connectors.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-4..1e-2:log", ("lr", Range(1e-4, 1e-2, log=True))),
        ("gamma=0.9..0.999", ("gamma", Range(0.9, 0.999))),
        ("num_epochs=2..10", ("num_epochs", Range(2, 10))),
        ("activation=tanh,relu", ("activation", Choices(("tanh", "relu")))),
        ("training.use_gae=true,false", ("training.use_gae", Choices((True, False)))),
        ("hidden=[64,64],[128,128]", ("hidden", Choices(([64, 64], [128, 128])))),
    ],
)
def test_the_values_of_an_option(text, expected):
    assert search_option(text) == expected


@pytest.mark.parametrize("text", ["lr", "=1..2", "lr=1e-2..1e-4", "lr=0..1:log", "lr=a..b", "lr=0.1", "lr="])
def test_an_option_that_says_something_else_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"(?s)1e-4.*1e-2"):
        search_option(text)


def test_a_file_has_texts_lists_and_ranges():
    given = {"lr": "1e-4..1e-2:log", "gamma": {"low": 0.9, "high": 1}, "hidden": [[64], [128]]}
    found = search_space(given, "run.yaml: search")
    assert found == {"lr": Range(1e-4, 1e-2, log=True), "gamma": Range(0.9, 1), "hidden": Choices(([64], [128]))}
    assert search_space({name: space.to_json() for name, space in found.items()}, "") == found


@pytest.mark.parametrize("given", [3, {"lr": 3}, {"lr": {"low": 1}}, {"lr": {"low": 1, "high": 2, "step": 1}}])
def test_a_file_that_says_something_else_is_refused(given):
    with pytest.raises(ConfigError, match=r"(?s)^run\.yaml.*\bsearch\b"):
        search_space(given, "run.yaml: search")


class Trial:
    """Chooses the last value."""

    def suggest_int(self, name, low, high, *, log):
        return ("int", low, high, log)

    def suggest_float(self, name, low, high, *, log):
        return ("float", low, high, log)

    def suggest_categorical(self, name, values):
        self.values = values
        return values[-1]


def test_whole_numbers_stay_whole_and_lists_are_texts_for_optuna():
    assert Range(2, 10).suggest(Trial(), "n") == ("int", 2, 10, False)
    assert Range(2, 10.0, log=True).suggest(Trial(), "n") == ("float", 2, 10.0, True)
    trial = Trial()
    assert Choices((None, [64, 64])).suggest(trial, "hidden") == [64, 64]
    assert trial.values == ["null", "[64, 64]"]
