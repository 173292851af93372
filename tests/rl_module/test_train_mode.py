"""set_train_mode does what torch's own methods do."""

from __future__ import annotations

import copy

import pytest
from torch import nn

from marl_connectors.rl_module.train_mode import set_train_mode


class KeepsEval(nn.Linear):
    """Stays in eval mode."""

    def train(self, mode=True):
        return super().train(False)


class Counts(nn.Linear):
    """Counts how often it was put into eval mode."""

    evals = 0

    def eval(self):
        self.evals += 1
        return super().eval()


def modes(module):
    return [part.training for part in module.modules()]


def replaced_on_one_object():
    layer = nn.Linear(2, 2)
    layer.train = lambda mode=True: layer
    return layer


@pytest.mark.parametrize("make", [lambda: nn.Dropout(), lambda: KeepsEval(2, 2), replaced_on_one_object])
@pytest.mark.parametrize("mode", [True, False])
def test_the_modes_are_those_that_torch_sets(make, mode):
    ours = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": make(), "b": nn.Identity()}))
    ours.register_module("none", None)
    ours.train(not mode)
    torchs = copy.deepcopy(ours)
    set_train_mode(ours, mode)
    torchs.train(mode)
    assert modes(ours) == modes(torchs)


def test_eval_of_ones_own_is_called():
    layer = Counts(2, 2)
    set_train_mode(layer, True)
    set_train_mode(layer, False)
    assert layer.evals == 1 and not layer.training
