"""Every default is RLlib's, or differs for a reason that docs/rllib.md gives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from marl_connectors import DefaultModelConfig, PPOConfig

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def rllib_defaults(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rllib_defaults

    return rllib_defaults


def test_defaults_differ_from_rllibs_only_for_a_reason_that_the_page_gives(rllib_defaults):
    found = rllib_defaults.differences(json.loads(rllib_defaults.RESULTS.read_text()))
    assert rllib_defaults.without_reason(found) == []
    between = rllib_defaults.DOCS.read_text().split(rllib_defaults.BEGIN)[1].split(rllib_defaults.END)[0]
    assert between.strip() == rllib_defaults.table(found)


def test_every_setting_of_the_default_modules_and_of_ppo_is_compared(rllib_defaults):
    rllib = json.loads(rllib_defaults.RESULTS.read_text())
    names = {field.name for field in dataclasses.fields(DefaultModelConfig)}
    for config in rllib_defaults.CONFIGS:
        assert names <= rllib[config].keys() & rllib_defaults.of_ours()[config].keys()
    assert {"lr", "lambda_", "clip_param", "minibatch_size"} <= rllib["PPOConfig"].keys()


def test_a_default_that_differs_without_a_reason_is_named(rllib_defaults, monkeypatch):
    rllib = json.loads(rllib_defaults.RESULTS.read_text())
    assert rllib["PPOConfig"]["clip_param"] == PPOConfig().clip_param == 0.3
    rllib["PPOConfig"]["clip_param"] = 0.2
    found = rllib_defaults.differences(rllib)
    assert rllib_defaults.without_reason(found) == ["clip_param"]
    assert found["clip_param", "0.2", "0.3"] == ["PPOConfig"]
