"""What a run is made of, before anything is built."""

from __future__ import annotations

import pytest

from marl_connectors.cli.settings import RunSettings, settings_from_json
from marl_connectors.errors import CheckpointError, ConfigError, EnvError, MappingError

TAG = "mpe2.simple_tag_v3"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (RunSettings(TAG, policies="adversary*=red"), MappingError, "'agent_0' matches none of the patterns"),
        (RunSettings(TAG, policies="a*=red,wolf*=x"), MappingError, r"'wolf\*' .*matches no agent.*adversary_0"),
        (RunSettings("CartPole-v1", policies="agent*=x"), MappingError, "The agents are: default_agent"),
        (RunSettings("mpe2.simple_tagg_v3", policies="a*=x"), EnvError, "Did you mean 'simple_tag_v3'"),
        (RunSettings(TAG, {"num_god": 1}, policies="a*=x"), ConfigError, "accept .num_god.. Did you mean .num_good."),
    ],
)
def test_policies_are_checked_against_the_agents_that_there_are(settings, error, message):
    with pytest.raises(error, match=message):
        settings.build_algorithm()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (RunSettings(TAG), "simple_tag_v3-shared-seed0"),
        (RunSettings(TAG, policies="adversary*=red team,agent*=green", seed=2), "simple_tag_v3-red_team-green-seed2"),
        (RunSettings("CartPole-v1", mapping="math:sqrt"), "CartPole-v1-sqrt-seed0"),
    ],
)
def test_a_run_is_named_after_env_policies_and_seed(settings, name):
    assert settings.default_folder_name() == name


@pytest.mark.parametrize("data", [None, {}, {"env": 3}])
def test_a_config_without_settings_is_refused(data):
    with pytest.raises(CheckpointError, match="expected its settings"):
        settings_from_json(data)


def test_a_setting_of_another_version_is_named():
    with pytest.raises(CheckpointError, match="unknown setting 'stepps'"):
        settings_from_json({"env": TAG, "stepps": 3})
