import numpy as np
import pytest

from helpers.runs.random_runs import plain
from marl_connectors.offline.recorded_infos import pack_infos, storable_part, unpack_infos, unstorable

INFOS = [
    {"n": 1, "x": 0.5, "is_on": True, "who": None, "name": "é"},
    {"n": 2, "x": float("nan"), "is_on": False, "who": "a", "name": ""},
    {"n": 2**70},
    {"mask": np.array([1, 0], np.int8), "deep": {"x": np.float32(0.1), "list": [1, "b", (2,)]}},
    {"mask": np.array([0, 1], np.int8), "deep": {"x": np.float32(0.2), "list": []}},
    {"mask": np.array([0, 1, 1], np.int8)},
    {3: "int as key", ("a", 1): np.arange(3)},
    {"__tensor__": 1, "bytes": b"\x00"},
]


def test_infos_come_back_with_their_types():
    infos = {7 * i: info for i, info in enumerate(INFOS)}
    back = unpack_infos(pack_infos(infos))
    assert plain(dict(sorted(back.items()))) == plain(infos)
    assert [[type(value) for value in back[7 * i].values()] for i in range(len(INFOS))] == [
        [type(value) for value in info.values()] for info in INFOS
    ]


def test_infos_with_the_same_keys_and_types_share_columns():
    groups = pack_infos({i: {"mask": np.full(3, i)} for i in range(100)})
    assert len(groups) == 1
    assert groups[0].values["mask"].shape == (100, 3)


def test_the_keys_stay_in_their_order():
    back = unpack_infos(pack_infos({0: {"b": 1, "a": 2}, 1: {"a": 3, "b": 4}}))
    assert [list(back[0]), list(back[1])] == [["b", "a"], ["a", "b"]]


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (object(), "", "object"),
        ([1, {"a": {1, 2}}], "[1]['a']", "set"),
        (np.array([object()]), "", "ndarray of object"),
        (np.array(["text"]), "", "ndarray of <U4"),
        (1j, "", "complex"),
    ],
)
def test_what_no_file_can_hold_is_found(value, path, kind):
    assert unstorable(value) == (path, kind)
    assert storable_part({"good": 1, "bad": value}) == {"good": 1}


def test_a_value_that_was_changed_afterwards_does_not_change_what_was_read():
    packed = pack_infos({0: {"mask": np.zeros(2)}})
    unpack_infos(packed)[0]["mask"][:] = 5
    assert unpack_infos(packed)[0]["mask"].tolist() == [0, 0]
