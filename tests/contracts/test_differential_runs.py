"""The comparison of two checkouts finds what differs, and nothing where nothing does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from marl_connectors import PPOConfig

PATH = Path(__file__).parents[2] / "benchmarks" / "differential.py"


@pytest.fixture(scope="module")
def differential():
    spec = importlib.util.spec_from_file_location("differential", PATH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["differential"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(differential, base, new, regrouped=(), tolerances=(1e-6, 1e-6)):
    sides = [{"items": items, "error": ""} for items in (base, new)]
    return differential.verdict("case", sides, tolerances, regrouped)[:2]


SAMPLE = {"sample/rewards": np.array([1.0, np.nan, 2000.0]), "sample/ids": "'0-1'"}


def changed(**items):
    return {**SAMPLE, **{name.replace("__", "/"): value for name, value in items.items()}}


def test_equal_items_are_identical_and_so_is_nan(differential):
    assert row(differential, SAMPLE, changed(sample__rewards=np.array([1.0, np.nan, 2000.0]))) == ("identical", False)


@pytest.mark.parametrize(("third", "fails"), [(2000.001, False), (2000.01, True)])
def test_a_difference_counts_as_a_share_of_the_largest_number(differential, third, fails):
    words, failed = row(differential, SAMPLE, changed(sample__rewards=np.array([1.0, np.nan, third])))
    assert failed is fails
    assert "max difference" in words and "sample/rewards" in words


@pytest.mark.parametrize(
    "items",
    [
        {"sample__rewards": np.array([1.0, np.nan])},
        {"sample__rewards": np.array([1.0, np.nan, 2000.0], np.float32)},
        {"sample__rewards": np.array([1.0, 0.0, 2000.0])},
        {"sample__rewards": "'no array'"},
        {"sample__ids": "'0-2'"},
        {"sample__more": "1"},
    ],
)
def test_shapes_types_nans_texts_and_keys_must_be_the_same_whatever_is_named_as_regrouped(differential, items):
    assert row(differential, SAMPLE, changed(**items), regrouped=["*"])[1]
    assert row(differential, changed(**items), SAMPLE, regrouped=["*"])[1]


def test_what_is_named_as_regrouped_may_differ_and_is_still_shown(differential):
    new = changed(sample__rewards=np.array([1.5, np.nan, 2000.0]))
    assert row(differential, SAMPLE, new)[1]
    words, failed = row(differential, SAMPLE, new, regrouped=["case/sample/*"])
    assert not failed and "0.5" in words


def test_what_follows_the_first_update_may_have_a_tolerance_of_its_own(differential):
    base = {**SAMPLE, "iteration 0/weights/w": np.ones(2), "last sample/rewards": np.ones(2)}
    later = {**base, "last sample/rewards": np.array([1.0, 1.0001])}
    earlier = {**base, "sample/rewards": np.array([1.0, np.nan, 2001.0])}
    assert row(differential, base, later)[1]
    assert not row(differential, base, later, tolerances=(1e-6, 1e-3))[1]
    assert row(differential, base, earlier, tolerances=(1e-6, 1e-3))[1]


def test_an_error_on_either_side_fails(differential):
    sides = [{"items": SAMPLE, "error": ""}, {"items": SAMPLE, "error": "Traceback\nValueError: no"}]
    words, failed, _ = differential.verdict("case", sides, (1e-6, 1e-6), ())
    assert failed and words == "FAILED in this checkout: ValueError: no"


def test_times_are_left_out_and_lifetimes_are_not(differential):
    results = {"num_env_steps_sampled_lifetime": 3, "time_total_s": 1.0, "a": {"steps_per_s": 2.0, "return": 4.0}}
    assert differential.without_times(results) == {"num_env_steps_sampled_lifetime": 3, "a": {"return": 4.0}}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_record_of_a_run_is_the_same_for_the_same_seed_only(differential, seed):
    def record_of(number):
        config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 4})
        config.training(train_batch_size_per_learner=8, minibatch_size=4, num_epochs=1).debugging(seed=number)
        record = differential.Record()
        algo = record.build(record.capture(config))
        record.episodes("sample", algo.env_runner.sample())
        record.metrics("result", algo.train())
        record.weights(algo)
        algo.stop()
        assert any("train batch" in name for name in record.items)
        return record.items

    first = record_of(0)
    found = differential.compare(first, record_of(seed))
    assert bool(found) == bool(seed)
