"""Which names an error suggests."""

from __future__ import annotations

import pytest

from marl_connectors.errors import did_you_mean

KNOWN = ["num_epochs", "lr", "env_runners", "evaluation_duration", "on_evaluate_end", "MeanStdFilter", "CartPole-v1"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_epcohs", "num_epochs"),
        ("numepochs", "num_epochs"),
        ("lrr", "lr"),
        ("env_runner", "env_runners"),
        ("evaluation_durations", "evaluation_duration"),
        ("meanstdfilter", "MeanStdFilter"),
        ("MeanStdFiltr", "MeanStdFilter"),
        ("CartPole-v0", "CartPole-v1"),
        ("CartPol-v1", "CartPole-v1"),
    ],
)
def test_a_misspelt_name_is_corrected(name, meant):
    assert did_you_mean(name, KNOWN) == f"Did you mean {meant!r}?"


@pytest.mark.parametrize("name", ["evaluation_type", "on_evaluate_offline_end", "num_env_runners", "local_env_runners"])
def test_a_name_with_another_word_is_not_corrected(name):
    assert did_you_mean(name, KNOWN) == f"Known: {', '.join(KNOWN)}."
