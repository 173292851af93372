"""The command line with remote env runners and learners: runs are the same with any numbers, and stay here if asked.

The env runners are actors of a Ray in this process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import Algorithm, PPOConfig
from marl_connectors.checkpoints import load_state
from marl_connectors.cli.made_config import envs_per_env_runner, in_this_process
from marl_connectors.cli.main import main
from marl_connectors.cli.tree import BATCH_SIZE, NUM_LEARNERS, with_shares
from marl_connectors.cluster import ray_cluster
from marl_connectors.errors import CheckpointError, ConfigError

WORDS = [
    "marl_envs.match_v0",
    "--num-envs",
    "4",
    "--num-env-workers",
    "0",
    "--hidden",
    "4",
    "--no-video",
    "--no-env-check",
]
WORDS += ["--eval-episodes", "1", "--set", "train_batch_size_per_learner=48", "--set", "minibatch_size=24"]
TRAIN = ["train", *WORDS, "--steps", "96"]
RUN = Path("run")
IMPORT_RAY = ray_cluster.import_ray


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return use_fake_ray(monkeypatch)


@pytest.fixture
def no_ray(monkeypatch):
    """From now on, Ray cannot be imported."""

    def forbid():
        monkeypatch.setattr(ray_cluster, "import_ray", IMPORT_RAY)
        monkeypatch.setitem(sys.modules, "ray", None)

    return forbid


def rows(run):
    """The metrics of all iterations, without times and losses of processes."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time", "fault_tolerance"))} for row in found]


def parameters(run):
    return load_state(run / "checkpoints" / (run / "checkpoints/latest").read_text().strip())["learner"]["module"]


@pytest.mark.slow
def test_a_run_is_the_same_with_any_number_of_env_runners_also_if_it_changes(capsys):
    assert main([*TRAIN, "--steps", "192", "--out", "whole"]) == 0
    assert main([*TRAIN, "--num-env-runners", "4", "--out", "run"]) == 0
    assert "env runners: " in capsys.readouterr().out
    assert main(["train", "--resume", "run", "--steps", "144", "--num-env-runners", "2"]) == 0
    said = capsys.readouterr().out
    assert "num_env_runners is 2 from now on." in said
    assert main(["train", "--resume", "run", "--steps", "192", "--num-env-runners", "0"]) == 0
    assert rows(RUN) == rows(Path("whole"))
    np.testing.assert_equal(parameters(RUN), parameters(Path("whole")))
    for name in ("baselines.json", "final.json"):
        assert (RUN / name).read_text() == (Path("whole") / name).read_text()


def test_a_run_that_loses_env_runners_says_so_and_goes_on(fake, capsys):
    lost = []

    def loses(actor, method, arguments):
        if actor.startswith("env runner 1") and method == "call" and arguments[0] == "sample" and not lost:
            lost.append(actor)
            return "after"
        return None

    fake.loses = loses
    assert main([*TRAIN, "--num-env-runners", "2", "--out", "run"]) == 0
    assert " env steps/s, 1 replaced\n" in capsys.readouterr().out
    assert json.loads((RUN / "metrics.jsonl").read_text().splitlines()[-1])["fault_tolerance"] == {
        "num_healthy_workers": 2,
        "num_remote_worker_restarts": 1,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--num-env-runners", "3"],
            "the 4 sub-environments (--num-envs) evenly, got 3. Use one of 1, 2, 4, or",
        ),
        (["--num-env-runners", "8"], "the 4 sub-environments (--num-envs) evenly, got 8"),
        (["--num-env-runners", "-1"], "expected a whole number from 0, got -1"),
        (["--ray-address", "auto"], "--ray-address: nothing of this run would be on the cluster"),
        (["--set", "num_env_runners=3"], "the 4 sub-environments (--num-envs) evenly, got 3. Use one of 1, 2, 4, or"),
        (["--set", "resources.ray_address=auto"], "--ray-address: nothing of this run would be on the cluster"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_starts(words, message, capsys):
    assert main([*TRAIN, *words, "--out", "run"]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1
    assert said.out == "" and not RUN.exists()


def test_without_ray_a_run_says_what_to_install(no_ray, capsys):
    no_ray()
    assert main([*TRAIN, "--num-env-runners", "2", "--out", "run"]) == 2
    assert "num_env_runners=2: it needs the package ray" in capsys.readouterr().err
    assert not RUN.exists()


def test_a_resumed_run_keeps_its_sub_environments(capsys):
    assert main([*TRAIN, "--out", "run"]) == 0
    before = {path: path.read_bytes() for path in RUN.rglob("*.json*")}
    assert main(["train", "--resume", "run", "--steps", "144", "--num-env-runners", "3"]) == 2
    assert main(["train", "--resume", "run", "--steps", "144", "--set", "num_env_runners=3"]) == 2
    assert main(["train", "--resume", "run", "--steps", "144", "--num-envs", "2"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "divides the 4 sub-environments" in said[0]
    assert said[1] == said[0]
    assert "--num-envs cannot be changed" in said[2]
    assert {path: path.read_bytes() for path in RUN.rglob("*.json*")} == before


# Learners.


@pytest.mark.parametrize(
    ("total", "number", "expected"), [(4096, 0, 4096), (4096, 1, 4096), (4096, 2, 2048), (4096, 3, 1366)]
)
def test_the_default_batch_is_divided_among_learners(total, number, expected):
    found = with_shares({NUM_LEARNERS: number}, {BATCH_SIZE: total})
    assert found == {NUM_LEARNERS: number, BATCH_SIZE: expected}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "size"), [([], 2048), (["--set", "train_batch_size_per_learner=100"], 100), (["--set", "lr=0.1"], 2048)]
)
def test_learners_share_the_default_batch_unless_it_is_set(command, words, size):
    command("train", "fake_env", "--steps", "100", "--num-learners", "2", *words)
    assert command.tree["learners.num_learners"] == 2
    assert command.tree["training.train_batch_size_per_learner"] == size


@pytest.mark.slow
def test_a_resumed_run_keeps_its_batch_with_other_learners(command):
    command("train", "fake_env", "--steps", "100", "--num-learners", "2", "--out", "run")
    command("train", "--resume", "run", "--steps", "200", "--num-learners", "4")
    size = "training.train_batch_size_per_learner"
    assert command.changed == {"run.steps": 200, "learners.num_learners": 4, size: 1024}
    command("train", "--resume", "run", "--steps", "300", "--num-learners", "0", "--ray-address", "none")
    local = {"learners.num_learners": 0, "resources.ray_address": None}
    assert command.changed == {"run.steps": 300, **local, size: 4096}
    command(
        "train", "--resume", "run", "--steps", "400", "--num-learners", "2", "--set", "train_batch_size_per_learner=7"
    )
    assert command.changed[size] == 7
    kept = json.loads((RUN / "config.json").read_text())["settings"]
    assert (kept["learners"]["num_learners"], kept["training"]["train_batch_size_per_learner"]) == (2, 7)


# Commands that stay in this process.


@pytest.mark.slow
def test_a_run_with_remote_env_runners_is_evaluated_here(no_ray, capsys):
    assert main([*TRAIN, "--num-env-runners", "2", "--out", "run"]) == 0
    capsys.readouterr()
    no_ray()
    for words in ([], ["--untrusted"]):
        assert main(["evaluate", "run", "--episodes", "2", "--baseline-seconds", "1", *words]) == 0
        assert "2 episodes, actions are drawn from the policies." in capsys.readouterr().out


@pytest.mark.slow
def test_a_config_with_remote_parts_is_explained_here(no_ray, capsys):
    Path("my_config.py").write_text(
        "from marl_connectors import PPOConfig\n"
        "config = PPOConfig().environment('marl_envs.null_v0').learners(num_learners=2)\n"
        "config.env_runners(num_env_runners=3, num_envs_per_env_runner=2)\n"
        "config.evaluation(evaluation_num_env_runners=1, evaluation_parallel_to_training=True)\n"
    )
    no_ray()
    assert main(["explain", "--config", "my_config.py"]) == 0
    assert "what each piece does to one batch. 6 sub-environments." in capsys.readouterr().out


def test_a_config_here_has_the_same_sub_environments_and_batches():
    config = PPOConfig().env_runners(num_env_runners=3, num_envs_per_env_runner=2).learners(num_learners=2)
    config.training(train_batch_size_per_learner=50).resources(ray_address="auto")
    local = in_this_process(config)
    assert (local.num_env_runners, local.num_learners, local.ray_address) == (0, 0, None)
    assert (local.num_envs, local.total_train_batch_size) == (6, 100)
    assert config.num_env_runners == 3 and in_this_process(local) is local


@pytest.mark.parametrize(("number", "each"), [(0, 6), (1, 6), (2, 3), (6, 1)])
def test_sub_environments_are_divided_evenly(number, each):
    assert envs_per_env_runner(6, number) == each


def test_sub_environments_that_cannot_be_divided_are_an_error():
    with pytest.raises(ConfigError, match=r"(?s)\b4\b.*\b1\b.*\b2\b.*\b3\b.*\b6\b"):
        envs_per_env_runner(6, 4)


# Checkpoints of others.


@pytest.mark.slow
def test_an_untrusted_checkpoint_starts_no_processes_that_the_user_has_not_asked_for(no_ray, capsys):
    assert main([*TRAIN, "--num-env-runners", "2", "--out", "run"]) == 0
    assert main(["train", "--resume", "run", "--steps", "144", "--untrusted"]) == 2
    said = capsys.readouterr().err
    assert "its num_env_runners is 2, and --untrusted starts no processes" in said
    assert "Choose yourself: --num-env-runners." in said
    with pytest.raises(CheckpointError, match=r"(?s)num_env_runners.*\b2\b.*trusted=False"):
        Algorithm.from_checkpoint(RUN, trusted=False)
    assert main(["train", "--resume", "run", "--steps", "144", "--untrusted", "--num-env-runners", "2"]) == 0
    no_ray()
    assert main(["train", "--resume", "run", "--steps", "192", "--untrusted", "--num-env-runners", "0"]) == 0
