"""Agents may have any id that a checkpoint can hold, and others are refused before a run begins."""

from __future__ import annotations

import enum
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.examples import examples
from helpers.runs.random_runs import differences, plain, rows_of, without_times
from marl_connectors import EnvError, EpisodeReader, check_env, load_policy

NUMBERS = st.one_of(  # beyond float32, numpy warns when an environment compares an id with one of NUMPYS
    st.integers(-(10**20), 10**20), st.booleans(), st.floats(-1e38, 1e38), st.sampled_from([math.inf, -math.inf])
)
TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4), st.binary(max_size=3))
TUPLES = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.none()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
NUMPYS = st.one_of(
    st.integers(0, 255).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.floats(0, 1, width=32).map(np.float32),
    st.booleans().map(np.bool_),
)
IDS = st.one_of(  # numpy compares its numbers with each part of a tuple
    st.lists(st.one_of(NUMBERS, TEXTS, NUMPYS), min_size=2, max_size=4, unique=True),
    st.lists(st.one_of(NUMBERS, TEXTS, TUPLES.map(lambda part: (part,))), min_size=2, max_size=4, unique=True),
)


def config_of(ids):
    config = small_config(lambda config: LifeEnv(agents=ids, join=0.3, die=0.2))
    return config.env_runners(num_envs_per_env_runner=2).multi_agent(policies="shared")


def go_on(algo):
    result, rows = without_times(algo.train()), rows_of(algo.env_runner.sample())
    return plain({"result": result, "rows": rows, "state": without_times(algo.get_state())})


@examples(5)
@given(ids=IDS)
@example(ids=[True, np.False_])
def test_a_run_with_any_ids_is_saved_and_resumed_exactly(tmp_path_factory, ids):
    folder, config = tmp_path_factory.mktemp("ids"), config_of(ids)
    with config.build_algo() as algo:
        algo.train()
        path = algo.save_to_path(folder / "checkpoint")
        algo.record(folder / "episodes", num_episodes=1)
        expected = go_on(algo)
    with type(algo).from_checkpoint(path, config=config) as resumed:
        assert differences(expected, go_on(resumed)) == []
    policy = load_policy(path)
    assert repr(policy.agent_ids) == repr(ids)
    assert all(policy(np.zeros(2, np.float32), agent_id) in (0, 1, 2) for agent_id in ids)
    (episode,) = EpisodeReader(folder / "episodes")
    assert set(map(repr, episode.agent_ids)) <= set(map(repr, ids))


class Colour(enum.Enum):
    RED = 1


class Side(str, enum.Enum):
    LEFT = "left"


@pytest.mark.parametrize(
    "wrong",
    [None, Colour.RED, Side.LEFT, np.str_("a"), frozenset("a"), math.nan, "\ud800", ("a", Colour.RED)],
    ids=repr,
)
def test_other_ids_are_refused_when_the_run_is_built(wrong):
    with pytest.raises(EnvError, match=r"(?s)(LifeEnv|lambda).*\bid\b.*strings"):
        config_of([wrong, "b"]).build_algo()
    findings = [found for found in check_env(LifeEnv(agents=[wrong, "b"])).errors if found.kind == "agent-id"]
    assert len(findings) == 1 and repr(wrong) in findings[0].what


def test_ids_that_are_equal_are_refused_when_the_run_is_built():
    with pytest.raises(EnvError, match=r"\[1, True\]"):
        config_of([1, True]).build_algo()
