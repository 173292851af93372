"""Arguments that a piece's class declares: its constructor, checks, defaults and text."""

from __future__ import annotations

import inspect

import pytest
from gymnasium import spaces

from marl_connectors import ConnectorV2, argument
from marl_connectors.errors import ConfigError
from marl_connectors.validators import number

BOX = spaces.Box(0.0, 1.0, (2,))


class Scale(ConnectorV2):
    factor: float = argument(number(above=0), default=2.0)
    offset: float = argument()

    def begin(self):
        self.both = (self.factor, self.offset)


class ScaleByFive(Scale):
    factor = 5.0
    twice: bool = argument(default=False)


class ByHand(Scale):
    def __init__(self, input_observation_space=None, input_action_space=None, **kwargs):
        super().__init__(input_observation_space, input_action_space, offset=1.0)
        self.others = kwargs


def test_arguments_are_attributes_that_begin_may_use():
    piece = Scale(BOX, None, factor=3, offset=1.0)
    assert piece.both == (3.0, 1.0) and piece.input_observation_space is BOX
    assert repr(piece) == "Scale(factor=3, offset=1.0)"


def test_a_subclass_has_the_arguments_of_its_base_and_may_set_another_default():
    piece = ScaleByFive(offset=0.0)
    assert (piece.factor, piece.offset, piece.twice) == (5.0, 0.0, False)
    names = ["input_observation_space", "input_action_space", "factor", "offset", "twice"]
    assert list(inspect.signature(ScaleByFive).parameters) == names


def test_a_constructor_of_its_own_decides_what_it_passes_on():
    piece = ByHand(anything=1)
    assert piece.both == (2.0, 1.0) and piece.others == {"anything": 1}
    assert list(inspect.signature(ByHand).parameters)[-1] == "kwargs"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"(?s)Scale.*'offset'"),
        ({"offset": 1.0, "factor": 0}, r"(?s)Scale.*\bfactor\b.*\b0\b"),
        ({"offset": 1.0, "facto": 1}, r"(?s)Scale.*'facto'.*'factor'"),
    ],
)
def test_wrong_arguments_are_errors_that_name_the_piece(given, message):
    with pytest.raises(ConfigError, match=message):
        Scale(**given)
