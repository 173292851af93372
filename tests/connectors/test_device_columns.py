"""NumpyToTensor, GetActions and TensorToNumpy move all groups of a batch at once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marl_connectors import Columns, GetActions, NumpyToTensor, TensorToNumpy
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors import device_columns
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.transfers import transfer

META = torch.device("meta")


def group(rows: int, **columns) -> ColumnGroup:
    made = ColumnGroup(SimpleNamespace(module_ids=("a",), splits=(0, rows), rows_per_module=rows))
    made.update(columns)
    return made


def test_all_arrays_of_all_groups_go_in_one_copy_and_all_else_stays():
    names = np.array([{"x": 1}, None], object)
    infos = InfoColumn([{}, {}])
    nested = {"b": np.zeros((2, 3)), "a": (np.zeros(2, bool), np.zeros((2, 0), np.uint8))}
    groups = [
        group(2, obs=nested, names=names, infos=infos, there=torch.zeros(2)),
        group(0, obs=np.zeros((0, 4), np.float32)),
        group(1, obs=np.zeros((1, 5), np.int64), state_in={"h": np.zeros((1, 8), np.float32)}),
    ]
    before = transfer(META).num_to_device
    piece = NumpyToTensor(device="meta")
    piece.before_columns(groups, None)
    for own in groups:
        piece.columns(own, ARRAYS)
    assert transfer(META).num_to_device == before + 1
    first, empty, last = groups
    assert first["names"] is names and first["infos"] is infos and first["there"].is_cpu
    assert list(first["obs"]) == ["b", "a"]
    kinds = [first["obs"]["b"], *first["obs"]["a"], empty["obs"], last["obs"], last["state_in"]["h"]]
    assert [(leaf.device.type, leaf.dtype, tuple(leaf.shape)) for leaf in kinds] == [
        ("meta", torch.float32, (2, 3)),
        ("meta", torch.bool, (2,)),
        ("meta", torch.uint8, (2, 0)),
        ("meta", torch.float32, (0, 4)),
        ("meta", torch.int64, (1, 5)),
        ("meta", torch.float32, (1, 8)),
    ]


def test_items_go_in_one_copy_too():
    before = transfer(META).num_to_device
    batch = NumpyToTensor(device="meta")(batch={"a": {"obs": np.zeros((2, 3))}, "b": {"obs": (np.zeros(1), [None])}})
    assert transfer(META).num_to_device == before + 1
    assert batch["a"]["obs"].device == batch["b"]["obs"][0].device == META and batch["b"]["obs"][1] == [None]


@pytest.mark.parametrize("piece", [GetActions(), TensorToNumpy()])
def test_on_the_cpu_tensors_stay_where_they_are(piece, monkeypatch):
    monkeypatch.setattr(device_columns, "all_on_host", lambda tensors: pytest.fail("nothing is to be moved"))
    tensor, nested = torch.zeros(2, 3), (torch.zeros(2), {"c": torch.zeros(2)})
    groups = [group(2, action_dist_inputs=tensor), group(2, actions=nested)]
    piece.before_columns(groups, None)
    assert groups[0][Columns.ACTION_DIST_INPUTS] is tensor and groups[1][Columns.ACTIONS] is nested


def test_arrays_share_the_memory_of_tensors_on_the_cpu_but_for_half_precision():
    tensor, half = torch.zeros(2), torch.tensor([1.5, -2.0]).bfloat16()
    own = group(2, a=tensor, b=half, c={"d": torch.ones(2, requires_grad=True)})
    TensorToNumpy().columns(own, ARRAYS)
    assert np.shares_memory(own["a"], tensor.numpy())
    assert own["b"].dtype == np.float32 and own["b"].tolist() == [1.5, -2.0]
    assert own["c"]["d"].tolist() == [1.0, 1.0]
