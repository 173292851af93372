"""``marl-connectors explain``: tables or JSON, and nothing on disk."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from marl_connectors.cli.main import _build_parser, main

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = main(["explain", *words])
        out, err = capsys.readouterr()
        assert list(tmp_path.iterdir()) == []
        return status, out, err

    return run


def test_three_tables_are_printed(explain):
    status, out, err = explain("marl_envs.null_v0", "--policies", "independent", "--num-envs", "2", "--hidden", "4")
    assert (status, err) == (0, "")
    titles = [line for line in out.splitlines() if line.endswith("Pipeline")]
    assert titles == ["EnvToModulePipeline", "ModuleToEnvPipeline", "LearnerConnectorPipeline"]
    assert "+obs [16, 16] float32" in out
    assert "+ added   ~ changed" in out
    assert max(map(len, out.splitlines())) <= 120


def test_json_has_the_same(explain):
    status, out, _ = explain("marl_envs.null_v0", "--env-config", "n_agents=3", "--num-envs", "1", "--json")
    data = json.loads(out)
    assert (status, list(data)) == (0, ["env_to_module", "module_to_env", "learner"])
    observations = data["env_to_module"]["pieces"][0]
    assert (observations["name"], observations["after"][0]["shape"][0]) == ("AddObservationsFromEpisodesToBatch", 3)


def test_the_settings_of_training_count(explain):
    _, out, _ = explain("CartPole-v1", "--num-envs", "1", "--set", "use_critic=false")
    assert "GeneralAdvantageEstimation" not in out


def test_a_wrong_word_is_one_line(explain):
    status, out, err = explain("CartPole-v1", "--steps", "10")
    assert (status, out) == (2, "")
    assert err.startswith("marl-connectors: error: explain: unknown argument '--steps'.")
    status, _, err = explain("CartPole-v0-or-so")
    assert status == 2
    assert err.count("\n") == 1


def test_the_page_has_every_option():
    _, parsers = _build_parser()
    actions = [action for action in parsers["explain"]._actions if not isinstance(action, argparse._HelpAction)]
    options = {action.option_strings[-1] if action.option_strings else action.metavar for action in actions}
    section = re.search(r"^## explain\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None
    table = section[1].partition("| option |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\S+?)[ `]", table, re.MULTILINE)) == options
