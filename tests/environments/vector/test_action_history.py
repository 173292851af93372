"""Actions come back as they were, in a few bytes each."""

from __future__ import annotations

import numpy as np
import pytest

from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.environments.vector import action_history
from marl_connectors.environments.vector.action_history import ActionHistory, ActionHistoryState
from marl_connectors.state import read_state

F32 = np.array([0.1, -2.5], np.float32)
STEPS = {
    "small numbers": [[0, 1, 255], [], [3]],
    "large and negative numbers": [[0, 256], [-1], [2**40]],
    "floats": [[0.1, -1e300], [0.0]],
    "arrays": [[F32, F32 + 1], [F32 * 3]],
    "arrays of different kinds": [[F32, np.arange(3, dtype=np.int8)], [np.arange(6).reshape(2, 3), F32]],
    "all of it": [[1, F32, 0.5], [np.ones((2, 2), bool), 300], [F32]],
    "arrays without items": [[np.zeros(0, np.float32)]],
    "dicts and tuples": [
        [{"a": 1, "b": (F32, 0.5)}, 7],
        [(1, 2)],
        [{"a": 300, "b": (F32 * 2, 1)}, {"b": (F32, 0.5), "a": 1}],
    ],
    "numbers of numpy's": [[np.int64(3), np.int64(2**40)], [{"a": np.float32(0.1), "b": (np.int8(1), np.bool_(True))}]],
    "arrays without axes": [[np.array(3), np.array(0.5, np.float32)], [np.array(3)]],
    "lists": [[[1, 2], [1, 2, 3]], [(1, [0.5, 2.0])]],
    "nothing": [],
}


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps_come_back_as_they_were(steps, tmp_path):
    at_once, piecewise = ActionHistory(), ActionHistory()
    at_once.extend(steps)
    for step in steps:
        piecewise.extend([step])
    save_state(tmp_path / "c", piecewise.get_state())
    restored = ActionHistory.from_state(read_state(ActionHistoryState, load_state(tmp_path / "c")))
    for history in (at_once, piecewise, restored):
        same(list(history), steps)
        same(list(history), steps)


def test_what_comes_back_may_be_written_to():
    history = ActionHistory()
    history.extend([[F32, F32]])
    ((first, second),) = history
    first[:] = 0.0
    np.testing.assert_array_equal(second, F32)
    same(list(history), [[F32, F32]])


def test_a_restored_history_goes_on():
    history = ActionHistory()
    history.extend([[1, F32]])
    restored = ActionHistory.from_state(history.get_state())
    restored.extend([[F32], [2]])
    same(list(restored), [[1, F32], [F32], [2]])
    same(list(history), [[1, F32]])


def test_a_discrete_action_takes_two_bytes_and_a_step_four():
    history = ActionHistory()
    history.extend([[0, 1, 2]] * 1000)
    assert history.num_bytes == 1000 * (4 + 3 * 2)


def test_a_history_that_takes_too_much_is_given_up_for_good(monkeypatch):
    monkeypatch.setattr(action_history, "HISTORY_BYTES", 100)
    history = ActionHistory()
    history.extend([[1]] * 16)
    assert history.is_complete and history.num_bytes == 96
    history.extend([[1]])
    assert not history.is_complete and history.num_bytes == 0
    history.extend([[1]])
    assert history.num_bytes == 0
