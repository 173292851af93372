"""The tasks of the zoo: their settings are valid, their environments exist, and their successes can be measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from marl_connectors.cli.layers import Words, resolved, user_tree
from marl_connectors.cli.made_config import make_config
from marl_connectors.cli.presets import tree_of_task
from marl_connectors.environments.registry.factory import make_env
from marl_connectors.errors import EnvError
from marl_connectors.zoo import find_task, tasks

NAMES = [task.name for task in tasks()]


@pytest.fixture(params=tasks(), ids=lambda task: task.name)
def task(request):
    return request.param


@pytest.fixture
def installed(task):
    """Skips a test if the package of the task's environment is not installed."""
    try:
        make_env(task.env, dict(task.settings.get("env_config", {}))).close()
    except EnvError as error:
        pytest.skip(str(error))


def test_names_and_environments_are_different_and_in_order():
    assert sorted(set(NAMES), key=str.lower) == NAMES
    assert len({(task.env, task.algo) for task in tasks()}) == len(NAMES)
    assert len({task.env for task in tasks()}) == len([task for task in tasks() if not task.is_variant])
    assert {"simple_spread_v3", "CartPole-v1", "LunarLander-v3", "Acrobot-v1"} <= set(NAMES)


@pytest.mark.few(3)
def test_settings_are_those_of_a_users_file(task, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({**task.settings, "preset": False}))
    tree = tree_of_task(task)
    assert {**tree, "run.preset": ""} == resolved(user_tree(Words([], str(path))))
    assert tree["run.preset"] == task.name and "seed" not in task.settings


@pytest.mark.few(4)
@pytest.mark.usefixtures("installed")
def test_a_task_is_found_by_its_name_and_by_its_environment(task):
    algo = task.algo if task.is_variant else None
    assert find_task(task.name.removesuffix(f"/{algo}"), algo) is task
    assert find_task(f" {task.env} ", algo) is task


def test_expected_results_are_plausible(task):
    expected = task.expected
    assert expected.mean_return > expected.random_return
    assert expected.num_seeds >= 1 and expected.minutes > 0
    assert expected.std is None if expected.num_seeds == 1 else expected.std >= 0
    assert expected.success is None or (task.success is not None and 0 <= expected.success <= 1)
    assert (expected.published is None) == (not expected.source)


@pytest.mark.few(1)
@pytest.mark.usefixtures("installed")
def test_a_run_with_the_settings_can_be_built_and_its_success_is_a_share(task):
    algo = make_config({**tree_of_task(task), "run.num_envs": 1, "env_runners.num_env_workers": 0}).build_algo()
    results = algo.random_play(num_episodes=1)["env_runners"]
    algo.stop()
    if task.success is None:
        assert "success" not in results
    else:
        assert 0 <= results["success"] <= 1


@pytest.mark.parametrize(
    "name", ["mpe2.simple_spread_v3", "mpe2/simple_spread-v3", "simple_spread_v3", "simple_spread_v3:parallel_env"]
)
def test_an_environment_has_several_names(name):
    pytest.importorskip("mpe2")
    found = find_task(name)
    assert found is not None and found.name == "simple_spread_v3"


@pytest.mark.parametrize("name", ["simple_spread_v3:env", "CartPole-v0", "my_module:make", "no such thing", ""])
def test_other_environments_have_no_task(name):
    assert find_task(name) is None


def test_a_users_module_of_the_same_name_is_no_task(tmp_path, monkeypatch):
    (tmp_path / "simple_spread_v3.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_task("simple_spread_v3") is None


def test_importing_the_library_does_not_import_the_zoo():
    code = "import sys, marl_connectors; assert not any(name.startswith('marl_connectors.zoo') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
