"""Metrics that users name."""

from __future__ import annotations

import pytest

from marl_connectors import PPOConfig
from marl_connectors.algorithms.fitting.metric_names import check_metric, why_missing
from marl_connectors.errors import ConfigError

NAMES = (
    "env_runners/episode_return_mean",
    "min:learners/default_policy/total_loss",
    "time_total_s",
    "evaluation/env_runners/success",
)


@pytest.mark.parametrize("name", NAMES)
def test_before_the_first_results_a_metric_may_be_in_any_part_of_them(name):
    check_metric(name, (), PPOConfig().evaluation(evaluation_interval=1))


def test_a_metric_that_is_in_no_part_of_results_is_refused_before_the_first_ones():
    with pytest.raises(ConfigError, match=r"(?s)'episode_len_mean'.*'env_runners/episode_"):
        check_metric("episode_len_mean", (), PPOConfig())
    assert "evaluation/env_runners/success" not in why_missing("foo", (), PPOConfig())
    assert "evaluation/env_runners/success" in why_missing("foo", (), PPOConfig().evaluation(evaluation_interval=1))


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("evaluation/episode_return_mean", "evaluation/env_runners/episode_return_mean"),
        ("evaluation/red/mean", "evaluation/env_runners/module_episode_returns/red/mean"),
        ("total_loss", "learners/red/total_loss"),
        ("learners/total_loss", "learners/red/total_loss"),
    ],
)
@pytest.mark.parametrize("is_evaluated", [False, True])
def test_a_name_that_lacks_levels_is_told_the_whole_one(name, whole, is_evaluated):
    names = {
        "env_runners/episode_return_mean",
        "env_runners/module_episode_returns/red/mean",
        "learners/red/total_loss",
    }
    if is_evaluated:
        names |= {f"evaluation/{each}" for each in names if each.startswith("env_runners/")}
    config = PPOConfig().evaluation(evaluation_interval=5)
    assert why_missing(name, names, config) == f"no result is called {name!r}. Did you mean {whole!r}?"


def test_code_of_the_user_may_add_any_metric():
    assert why_missing("foo", (), PPOConfig().callbacks(on_train_result=lambda **kwargs: None)) == ""


@pytest.mark.parametrize(
    "name", ["learners/default_policy/qf_loss", "offline_evaluation/learners/default_policy/mean_logp"]
)
def test_a_part_that_the_first_results_lack_may_come_later(name):
    config = PPOConfig().evaluation(offline_evaluation_interval=3)
    first = {"env_runners/module_episode_returns/default_policy/mean", "time_total_s"}
    assert why_missing(name, first, config) == ""
    later = {*first, f"{name.partition('/')[0]}/learners/default_policy/another", "learners/default_policy/another"}
    assert f"no result is called {name!r}" in why_missing(name, later, config)


@pytest.mark.parametrize("interval", ["evaluation_interval", "offline_evaluation_interval"])
def test_a_metric_of_evaluations_that_never_come_names_the_setting_for_them(interval):
    assert f"--set {interval}=5" in why_missing(
        f"{interval.removesuffix('_interval')}/x", {"time_total_s"}, PPOConfig()
    )
