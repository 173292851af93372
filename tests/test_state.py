"""A state's types say alone what may come from a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marl_connectors.errors import CheckpointError
from marl_connectors.state import ID, Array, Bools, Column, Count, Floats, Ints, State, copied, fields_of, read_state


class Inner(State):
    steps: Count
    own: Floats


class Outer(State):
    name: str
    parts: dict[str, Inner]
    ids: list[ID]
    flags: Bools
    table: np.ndarray[tuple[int, int], np.dtype[np.integer]]
    numbers: Ints
    value: Array
    column: Column


def right():
    return {
        "name": "n",
        "parts": {"a": {"steps": 3, "own": np.zeros(2)}},
        "ids": ["a", 0, (1, "b")],
        "flags": np.array([True]),
        "table": np.zeros((2, 3), np.int32),
        "numbers": np.arange(4),
        "value": np.float32(1.0),
        "column": {"x": np.zeros((2, 3))},
    }


def test_dicts_of_the_right_types_become_states_whose_parts_are_states():
    state = read_state(Outer, right())
    assert isinstance(state.parts["a"], Inner)
    assert state.parts["a"].steps == 3
    assert read_state(Outer, state) is state


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("more", 1, "more"),
        ("parts.a.more", 1, "more"),
        ("name", None, "name"),
        ("parts.a.steps", -1, "steps"),
        ("parts.a.steps", 1.5, "steps"),
        ("parts.a.own", np.zeros((2, 1)), "own"),
        ("parts.a.own", np.zeros(2, int), "own"),
        ("parts.a.own", [0.0], "own"),
        ("parts", [], "parts"),
        ("ids", [[]], "ids"),
        ("flags", np.array([1]), "flags"),
        ("table", np.zeros(3, int), "table"),
        ("numbers", np.array(["x"]), "numbers"),
        ("value", "x", "value"),
        ("value", np.array([object()]), "value"),
        ("column", {}, "column"),
        ("column", np.float32(1.0), "column"),
        ("column", {"x": np.array(["x"])}, "column"),
    ],
)
def test_anything_else_is_an_error_with_the_name_of_the_field(place, value, named):
    state = right()
    *path, name = place.split(".")
    inner = state
    for key in path:
        inner = inner[key]
    inner[name] = value
    with pytest.raises(CheckpointError, match=named):
        read_state(Outer, state)


@pytest.mark.parametrize("missing", list(right()))
def test_a_field_that_is_missing_is_named(missing):
    state = right()
    del state[missing]
    with pytest.raises(CheckpointError, match=missing):
        read_state(Outer, state)


def test_a_copy_shares_nothing_that_can_be_changed():
    state = read_state(Outer, right())
    tensor = torch.ones(2)
    other = copied({"state": state, "tensor": tensor, "tuple": (state.numbers,)})
    state.parts["a"].own += 1
    state.numbers += 1
    state.ids.append("new")
    tensor += 1
    own = fields_of(other["state"])
    assert own["parts"]["a"].own.tolist() == [0, 0]
    assert (own["numbers"].tolist(), len(own["ids"])) == ([0, 1, 2, 3], 3)
    assert (other["tensor"].tolist(), other["tuple"][0].tolist()) == ([1, 1], [0, 1, 2, 3])
