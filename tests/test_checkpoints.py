"""State survives the way to disk and back, or one line says why not."""

from __future__ import annotations

import json
import math
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from helpers.damaged_checkpoints import tensors_file
from helpers.examples import examples
from marl_connectors.checkpoints import STATE_FILE, is_checkpoint, load_state, save_state
from marl_connectors.errors import CheckpointError
from marl_connectors.state import copied

KEYS = st.one_of(
    st.text(max_size=6), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=3))
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoint"
    save_state(path, {"weights": np.arange(4, dtype=np.float32), "step": 3})
    return path


@examples(40)
@given(state=STATES)
def test_plain_data_comes_back_with_its_types(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("state") / "checkpoint"
    save_state(path, {"state": state})
    assert repr(load_state(path)["state"]) == repr(state)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, -2.0], [np.inf, 0.0]], np.float32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([True, False]),
        np.array([2**64 - 1], np.uint64),
        np.array(7, np.uint8),
        np.zeros((0, 3), np.float64),
        np.array([1, 256], ">i4"),
    ],
    ids=["float", "transposed", "bool", "uint64", "zero-dimensional", "empty", "big-endian"],
)
def test_an_array_comes_back_with_its_shape_type_and_values(tmp_path, array):
    save_state(tmp_path / "c", {"a": {"b": [array]}})
    loaded = load_state(tmp_path / "c")["a"]["b"][0]
    assert loaded.shape == array.shape
    assert loaded.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(loaded, array)
    loaded[...] = 0


def test_torch_tensors_come_back_as_numpy_arrays(tmp_path):
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    save_state(tmp_path / "c", {"w": parameter, "half": torch.tensor([0.5], dtype=torch.bfloat16)})
    loaded = load_state(tmp_path / "c")
    np.testing.assert_array_equal(loaded["w"], np.array([1.0, 2.0], np.float32))
    np.testing.assert_array_equal(loaded["half"], np.array([0.5], np.float32))


def test_numpy_scalars_stay_numpy_scalars(tmp_path):
    save_state(tmp_path / "c", {"x": np.float32(0.1), "n": np.int64(3)})
    loaded = load_state(tmp_path / "c")
    assert type(loaded["x"]) is np.float32
    assert loaded["x"] == np.float32(0.1)
    assert type(loaded["n"]) is np.int64


def test_floats_without_a_json_form_survive_and_the_file_is_strict_json(tmp_path):
    save_state(tmp_path / "c", {"a": math.inf, "b": -math.inf, "c": math.nan})

    def refuse(constant):
        raise AssertionError(constant)

    json.loads((tmp_path / "c" / STATE_FILE).read_text(), parse_constant=refuse)
    loaded = load_state(tmp_path / "c")
    assert (loaded["a"], loaded["b"]) == (math.inf, -math.inf)
    assert math.isnan(loaded["c"])


def test_keys_that_look_like_the_encoding_survive(tmp_path):
    state = {"__tensor__": "x", "inner": {"__tuple__": [1]}}
    save_state(tmp_path / "c", state)
    assert load_state(tmp_path / "c") == state


def test_two_arrays_whose_ways_read_alike_stay_apart(tmp_path):
    save_state(tmp_path / "c", {"a/b": np.array([1]), "a": {"b": np.array([2])}})
    loaded = load_state(tmp_path / "c")
    assert (loaded["a/b"][0], loaded["a"]["b"][0]) == (1, 2)


def test_a_checkpoint_holds_readable_json_and_safetensors_only(checkpoint):
    document = json.loads((checkpoint / STATE_FILE).read_text())
    assert document["state"] == {"weights": {"__tensor__": "weights"}, "step": 3}
    assert document["format_version"] == 1
    assert sorted(os.listdir(checkpoint)) == [STATE_FILE, document["tensors_file"]]
    np.testing.assert_equal(load_file(checkpoint / document["tensors_file"]), {"weights": np.arange(4.0)})


def test_saving_again_replaces_the_checkpoint_and_leaves_nothing_beside_it(checkpoint):
    save_state(checkpoint, {"step": 4})
    assert load_state(checkpoint) == {"step": 4}
    assert os.listdir(checkpoint.parent) == ["checkpoint"]
    assert len(os.listdir(checkpoint)) == 2


class Killed(BaseException):
    pass


def killed_at(monkeypatch, number):
    """Ends the process before its nth change of names of files: nothing is done any more, and nothing cleared away."""
    left = [number]

    def counted(change):
        def changed(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return change(*args, **kwargs)

        return changed

    for name in ("mkdir", "rename", "replace", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)


@pytest.mark.parametrize("arrays", ["other arrays", "the same arrays"])
def test_there_is_a_whole_checkpoint_whenever_its_replacement_is_killed(checkpoint, monkeypatch, arrays):
    old = load_state(checkpoint)
    new = {"weights": old["weights"] + (arrays == "other arrays"), "step": 4}
    number, found = 0, []
    while True:
        save_state(checkpoint, old)
        with monkeypatch.context() as patch:
            killed_at(patch, number)
            try:
                save_state(checkpoint, new)
            except Killed:
                found.append(load_state(checkpoint)["step"])
                np.testing.assert_equal(load_state(checkpoint), old if found[-1] == 3 else new)
            else:
                break
        number += 1
    assert found == sorted(found) and {3, 4} == {*found}
    np.testing.assert_equal(load_state(checkpoint), new)
    assert len(os.listdir(checkpoint)) == 2, "later saves clear away what the killed ones have left"


def test_two_equal_states_have_equal_files(tmp_path):
    for name in ("a", "b"):
        save_state(tmp_path / name, {"weights": np.arange(4), "step": 3})
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert files[0] == files[1]


def test_a_failed_save_leaves_the_old_checkpoint_whole(checkpoint, monkeypatch):
    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_state(checkpoint, {"step": 4})
    assert load_state(checkpoint)["step"] == 3
    assert os.listdir(checkpoint.parent) == ["checkpoint"]


def test_a_failed_first_save_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError, match=r"state\[a/0\]"):
        save_state(tmp_path / "c", {"a": [object()]})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("bad", [np.array(["x"]), np.array([object()]), np.array([1j]), {1, 2}])
def test_what_cannot_be_written_is_named(tmp_path, bad):
    with pytest.raises(CheckpointError, match=r"state\[deep/er\]"):
        save_state(tmp_path / "c", {"deep": {"er": bad}})


def test_a_directory_of_other_things_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match=r"'thesis.txt'"):
        save_state(tmp_path, {})
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_parents_are_made_and_a_checkpoint_is_recognised(tmp_path):
    save_state(tmp_path / "runs" / "a" / "c", {})
    assert is_checkpoint(tmp_path / "runs" / "a" / "c")
    assert not is_checkpoint(tmp_path)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nothing"):
        load_state(tmp_path / "c")


def test_a_directory_without_state_is_not_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_state(tmp_path)


@pytest.mark.parametrize("size", [0, 20, 200])
def test_truncated_json_is_damage(checkpoint, size):
    file = checkpoint / STATE_FILE
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"(?s)state.json.*JSON"):
        load_state(checkpoint)


def test_bytes_that_are_no_text_are_damage(checkpoint):
    (checkpoint / STATE_FILE).write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(CheckpointError, match="damaged"):
        load_state(checkpoint)


def test_a_number_that_changed_in_the_json_is_damage(checkpoint):
    file = checkpoint / STATE_FILE
    file.write_text(file.read_text().replace('"step": 3', '"step": 4'))
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_state(checkpoint)


@pytest.mark.parametrize("damage", [lambda b: b[:-3], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_changed_tensors_are_damage(checkpoint, damage):
    file = tensors_file(checkpoint)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"tensors-\w+.safetensors"):
        load_state(checkpoint)


def test_missing_tensors_are_damage(checkpoint):
    tensors_file(checkpoint).unlink()
    with pytest.raises(CheckpointError, match=r"(?s)tensors-\w+.safetensors.*missing"):
        load_state(checkpoint)


@pytest.mark.parametrize("name", ["../elsewhere/tensors.safetensors", "state.json", "tensors-1.safetensors", 3, None])
def test_the_file_of_the_tensors_is_in_the_checkpoint(checkpoint, name):
    file = checkpoint / STATE_FILE
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"tensors_file": name}))
    with pytest.raises(CheckpointError, match="tensors_file"):
        load_state(checkpoint)


def test_parts_that_are_left_out_are_not_read(tmp_path):
    large = {"rows": np.full(1000, 7, np.uint8), "of": [np.full(10, 7, np.uint8)], "number": 3}
    save_state(tmp_path / "c", {"large": large, "large/rows": np.arange(3), "step": np.int64(3)})
    loaded = load_state(tmp_path / "c", without=["large", "other"])
    np.testing.assert_equal(loaded, {"large/rows": np.arange(3), "step": np.int64(3)})
    file = tensors_file(tmp_path / "c")
    file.write_bytes(file.read_bytes().replace(bytes([7]), bytes([8])))
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_state(tmp_path / "c")
    np.testing.assert_equal(load_state(tmp_path / "c", without=["large"]), loaded)


def test_a_newer_format_says_to_upgrade(checkpoint):
    file = checkpoint / STATE_FILE
    file.write_text(file.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(CheckpointError, match="Upgrade"):
        load_state(checkpoint)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format_version": "one"}'])
def test_other_json_is_not_a_checkpoint(checkpoint, text):
    (checkpoint / STATE_FILE).write_text(text)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_state(checkpoint)


def test_a_copy_of_a_state_shares_nothing_that_changes_in_place():
    state = {"seen": {1, 2}, "rows": [np.zeros(2)], "of": (torch.zeros(1),)}
    kept = copied(state)
    state["seen"].add(3)
    state["rows"][0] += 1
    state["of"][0].add_(1)
    assert kept["seen"] == {1, 2} and not kept["rows"][0].any() and not kept["of"][0].any()
