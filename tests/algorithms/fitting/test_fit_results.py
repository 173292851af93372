"""The results of ``Algorithm.fit``: a sequence, curves, and what a notebook shows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from marl_connectors.algorithms.fitting.fit_results import FitResults
from marl_connectors.errors import ConfigError


def result(iteration, mean, modules=("red",), agents=2, **more):
    stats = {"mean": mean, "std": 0.5}
    return {
        "training_iteration": iteration,
        "num_agent_steps_sampled_lifetime": 100 * iteration,
        "env_runners": {
            "episode_return_mean": mean,
            "module_episode_returns": dict.fromkeys(modules, stats),
            "agent_steps": {f"agent_{i}": 5.0 for i in range(agents)},
            **more,
        },
    }


def filled(*results, **facts):
    made = FitResults(**facts)
    for each in results:
        made.add(each)
    return made


def test_it_is_a_sequence_of_results():
    first, second, third = (result(i, float(i)) for i in (1, 2, 3))
    results = filled(first, second, third)
    assert len(results) == 3 and list(results) == [first, second, third]
    assert results[-1] is third and results[:2] == [first, second]


def test_a_series_has_the_steps_at_which_a_number_is_known():
    results = filled(result(1, math.nan), result(2, -3.5), result(3, 4.0))
    assert results.series("env_runners/episode_return_mean") == ([200, 300], [-3.5, 4.0])
    assert results.series("training_iteration") == ([100, 200, 300], [1, 2, 3])


def test_a_wrong_name_is_told_the_closest_one():
    with pytest.raises(ConfigError, match=r"(?s)'env_runners/episode_return_men'.*'env_runners/episode_return_me"):
        filled(result(1, 1.0)).series("env_runners/episode_return_men")
    with pytest.raises(ConfigError, match="iteration"):
        FitResults().series("training_iteration")


@pytest.mark.parametrize(("agents", "is_kept"), [(100, True), (101, False)])
def test_the_results_of_many_agents_are_only_in_the_newest_one(agents, is_kept):
    given = [result(i, 1.0, agents=agents) for i in (1, 2)]
    for each in given:
        each["evaluation"] = {"env_runners": each["env_runners"]}
    results = filled(*given)
    for first, second in (results, [each["evaluation"] for each in results]):
        assert ("agent_steps" in first["env_runners"]) == is_kept
        assert first["env_runners"]["episode_return_mean"] == 1.0
        assert len(second["env_runners"]["agent_steps"]) == agents
    assert all("agent_steps" in each["env_runners"] for each in given)  # what callbacks may have kept is not changed


def test_it_prints_what_is_most_worth_knowing():
    modules = [f"<m{i}>" for i in range(10)]
    facts = {"reason": "num_iterations=1 is reached", "checkpoint": Path("runs/a"), "best_checkpoint": Path("runs/b")}
    results = filled(result(1, -3.0, modules, success=0.25), **facts)
    text = repr(results)
    assert text.startswith(
        "<FitResults of 1 iteration. ended: num_iterations=1 is reached; agent steps: 100; return of"
    )
    assert "more modules: 2; success: 25 %; checkpoint: runs/a; best checkpoint: runs/b>" in text
    assert "return of <m7>" in text and "m8" not in text
    assert repr(FitResults()) == "<FitResults of 0 iterations>"
