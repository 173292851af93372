"""``marl-connectors zoo``: the table of all tasks, the page of one, and both as JSON."""

from __future__ import annotations

import json

import pytest

from marl_connectors.cli.known_algorithms import ALGORITHMS
from marl_connectors.cli.main import main
from marl_connectors.zoo import tasks


@pytest.mark.slow
def test_the_table_has_a_row_for_each_task(capsys):
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(tasks()) + 1]] == [task.name for task in tasks()]
    row = next(line for line in lines if line.startswith("  CartPole-v1"))
    assert "100,000" in row and "500.0 ± 0.0" in row and "100 %" in row


def test_a_page_has_all_settings_and_the_command(capsys):
    assert main(["zoo", "CartPole-v1"]) == 0
    said = capsys.readouterr().out
    for name in (*ALGORITHMS["ppo"].training, "steps", "num_envs"):
        assert f"\n  {name} " in said
    assert "100 % poles balanced to the end" in said
    assert said.endswith("Train it with: marl-connectors train CartPole-v1\n")


def test_a_page_of_a_task_without_a_published_result_has_a_dash(capsys):
    assert main(["zoo", "connect_four_v3"]) == 0
    said = capsys.readouterr().out
    assert (
        "\n  expected return   0.96 ± 0.03 with most likely actions (3 seeds)" in said
        and "\n  best published    –\n" in said
    )
    assert "\n  eval_opponent " in said and "games won against random" in said


def test_a_task_is_found_by_its_environment_too(capsys):
    pytest.importorskip("mpe2")
    assert main(["zoo", "mpe2.simple_spread_v3"]) == 0
    assert capsys.readouterr().out.startswith("simple_spread_v3: Three agents")


def test_the_json_of_a_task_is_one_of_the_list(capsys):
    assert main(["zoo", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == [task.name for task in tasks()]
    assert main(["zoo", "CartPole-v1", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one in listed
    assert one["settings"]["training"]["lr"] == 1e-3 and one["expected"]["mean_return"] == 500.0
    assert one["command"] == "marl-connectors train CartPole-v1"


def test_an_unknown_task_is_an_error_with_the_closest_name(capsys):
    assert main(["zoo", "CartPole-v2"]) == 2
    assert "zoo: there is no task 'CartPole-v2'. Did you mean 'CartPole-v1'?" in capsys.readouterr().err
