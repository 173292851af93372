"""Mixing: the steps of a mixer."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

from helpers.fresh_seeds import fresh_seeds
from marl_connectors.algorithms.qmix.mixing import Mixing, QMixer, VDNMixer
from marl_connectors.errors import LearnerError
from marl_connectors.learner.loss_stats import FiniteCheck

CLIPS = [(None, "global_norm"), (0.05, "global_norm"), (0.02, "norm"), (0.001, "value")]


def clip(parameters, bound, by):
    if bound is None:
        return
    if by == "global_norm":
        torch.nn.utils.clip_grad_norm_(parameters, bound)
    for parameter in parameters:
        if by == "norm":
            torch.nn.utils.clip_grad_norm_([parameter], bound)
        elif by == "value":
            parameter.grad.clamp_(-bound, bound)


@pytest.mark.parametrize(("bound", "by"), CLIPS)
@pytest.mark.parametrize("seed", [0, *fresh_seeds(10)])
def test_steps_are_those_of_adam_with_clipped_gradients(seed, bound, by):
    torch.manual_seed(seed)
    agents, size = (int(n) for n in torch.randint(1, 6, (2,)))
    mixer = QMixer(agents, size, 4)
    by_hand = copy.deepcopy(mixer)
    adam = torch.optim.Adam(by_hand.parameters())
    mixing, config = Mixing(mixer, torch.device("cpu")), SimpleNamespace(grad_clip=bound, grad_clip_by=by)
    for step in range(6):
        values, states = torch.randn(7, agents), torch.randn(7, size) * 10.0 ** float(torch.randint(-2, 2, ()))
        lr = 0.01 / (step + 1)
        if step == 3:  # goes on from its state
            state = mixing.get_state()
            mixing = Mixing(QMixer(agents, size, 4), torch.device("cpu"))
            mixing.set_state(state)
        mixed = mixing.mixer(values.requires_grad_(), states)
        found = mixing.compute_gradients(values, mixed, mixed.detach() * 2 / len(mixed))
        mixing.step(config, mixing.norm(), lr, FiniteCheck(is_lazy=False))
        adam.zero_grad()
        loss = by_hand(values, states).square().mean()
        torch.testing.assert_close(found, torch.autograd.grad(loss, values, retain_graph=True)[0], rtol=1e-4, atol=1e-5)
        loss.backward()
        clip(list(by_hand.parameters()), bound, by)
        adam.param_groups[0]["lr"] = lr
        adam.step()
        for own, other in zip(mixing.mixer.parameters(), by_hand.parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_a_step_that_is_not_finite_is_skipped_where_that_is_found_out_late():
    torch.manual_seed(0)
    mixing, config = Mixing(QMixer(2, 3, 4), torch.device("cpu")), SimpleNamespace(grad_clip=1.0, grad_clip_by="norm")
    before, check = copy.deepcopy(mixing.mixer.state_dict()), FiniteCheck(is_lazy=True)
    values = torch.randn(5, 2, requires_grad=True)
    mixed = mixing.mixer(values, torch.randn(5, 3))
    mixing.compute_gradients(values, mixed, torch.full((5,), float("inf")))
    assert check.holds(mixed.sum(), mixing.norm())
    mixing.step(config, mixing.norm(), 0.1, check)
    for name, value in mixing.mixer.state_dict().items():
        assert torch.equal(value, before[name])


class Doubled(VDNMixer):
    """Not the sum itself."""

    def forward(self, values, states):
        return 2 * super().forward(values, states)


@pytest.mark.parametrize(("mixer", "factor"), [(VDNMixer(), 1.0), (Doubled(), 2.0)])
def test_a_mixer_without_parameters_has_nothing_to_step(mixer, factor):
    mixing = Mixing(mixer, torch.device("cpu"))
    values, slopes = torch.randn(5, 2, requires_grad=True), torch.randn(5)
    found = mixing.compute_gradients(values, mixing.mixer(values, None), slopes)
    mixing.step(SimpleNamespace(grad_clip=1.0, grad_clip_by="norm"), mixing.norm(), 0.1, FiniteCheck(is_lazy=False))
    torch.testing.assert_close(found, factor * slopes.unsqueeze(-1).expand(5, 2))
    assert not len(mixing.norm())


def test_a_mixer_with_parameters_of_several_dtypes_is_an_error():
    mixer = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double()])
    with pytest.raises(LearnerError, match="ModuleList"):
        Mixing(mixer, torch.device("cpu"))
