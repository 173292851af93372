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
    "evaluation/success",
)


@pytest.mark.parametrize("name", NAMES)
def test_before_the_first_results_a_metric_may_be_in_any_part_of_them(name):
    check_metric(name, (), PPOConfig().evaluation(evaluation_interval=1))


def test_a_metric_that_is_in_no_part_of_results_is_refused_before_the_first_ones():
    with pytest.raises(
        ConfigError, match=r"no result is called 'episode_len_mean'. Did you mean 'env_runners/episode_"
    ):
        check_metric("episode_len_mean", (), PPOConfig())
    assert "evaluation/success" not in why_missing("foo", (), PPOConfig())
    assert "evaluation/success" in why_missing("foo", (), PPOConfig().evaluation(evaluation_interval=1))


def test_code_of_the_user_may_add_any_metric():
    assert why_missing("foo", (), PPOConfig().callbacks(on_train_result=lambda **kwargs: None)) == ""
