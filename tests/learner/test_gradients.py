"""Gradients are bounded as each module's settings say, alone or stacked with modules that have other settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from gymnasium import spaces

from marl_connectors import DefaultPPORLModule
from marl_connectors.learner.gradients import clip_gradients, clip_stacked_gradients
from marl_connectors.rl_module.bucket import Bucket

SETTINGS = {
    "one bound": [(0.5, "global_norm")] * 3,
    "other bounds": [(0.5, "global_norm"), (2.0, "global_norm"), (0.1, "global_norm")],
    "one without a bound": [(0.5, "global_norm"), (None, "global_norm"), (0.1, "global_norm")],
    "values": [(0.2, "value"), (0.05, "value"), (None, "value")],
    "norms of tensors": [(0.2, "norm"), (0.05, "norm"), (1.0, "norm")],
    "all kinds": [(0.2, "value"), (0.05, "norm"), (1.0, "global_norm")],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_stacked_gradients_are_clipped_as_each_module_is_alone(settings):
    torch.manual_seed(0)
    spaces_of = {"observation_space": spaces.Box(-1, 1, (3,)), "action_space": spaces.Discrete(2)}
    modules = {f"m{i}": DefaultPPORLModule(**spaces_of, model_config={"fcnet_hiddens": (4,)}) for i in range(3)}
    bucket = Bucket(modules)
    bucket.gradients.normal_()
    configs = [SimpleNamespace(grad_clip=bound, grad_clip_by=by) for bound, by in settings]
    expected = []
    for module, config in zip(modules.values(), configs, strict=True):
        own = [parameter.grad.clone() for parameter in module.parameters()]
        clip_gradients(own, config.grad_clip, config.grad_clip_by)
        expected.append(torch.cat([gradient.reshape(-1) for gradient in own]))
    before = bucket.gradients.clone()
    norms = torch.linalg.vector_norm(bucket.gradients, dim=1)
    clip_stacked_gradients(bucket.part(bucket.module_ids), bucket.gradients, norms, configs)
    torch.testing.assert_close(bucket.gradients, torch.stack(expected))
    bounded = [bound is not None for bound, _ in settings]
    assert [not torch.equal(one, other) for one, other in zip(before, bucket.gradients, strict=True)] == bounded
