"""A run that was begun in Python goes on with the command line, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.runs.random_runs import differences, plain, without_times
from marl_connectors import Algorithm, PPOConfig
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.cli.main import main

STEPS = 40
"""The agent steps of an iteration."""
PARTS = {"eval_episodes": 2, "baseline_seconds": 1, "track": ["tensorboard"], "video": "gif", "checkpoint_every": 1}
WORDS = ["--num-envs", "2", "--num-env-workers", "0", "--hidden", "4", "--eval-episodes", "2", "--no-preset"]
WORDS += ["--set", "train_batch_size_per_learner=40", "--set", "minibatch_size=20", "--set", "num_epochs=1"]
WORDS += ["--baseline-seconds", "1", "--checkpoint-every", "1", "--env-config", "ep_len=5", "--no-env-check"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def match(**training):
    config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 5})
    config.env_runners(num_envs_per_env_runner=2).rl_module(model_config={"fcnet_hiddens": [4]})
    settings = {"train_batch_size_per_learner": 20, "minibatch_size": 10, "num_epochs": 1, **training}
    return config.training(**settings).debugging(seed=3)


def fitted(folder, *, config=None, **how):
    with (config or match()).build_algo() as algo:
        return algo.fit(folder=folder, progress=False, **how)


def rows(run):
    return [without_times(json.loads(line)) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def newest_state(run):
    return without_times(plain(load_state(max((Path(run) / "checkpoints").glob("0*")))))


def test_both_ways_in_leave_the_same_files():
    fitted("python", steps=2 * STEPS, **PARTS)
    assert main(["train", "marl_envs.match_v0", "--steps", "80", "--out", "command", *WORDS]) == 0
    names = [sorted(path.name for path in Path(run).iterdir()) for run in ("python", "command")]
    assert names[0] == names[1]
    ours, theirs = (json.loads((Path(run) / "config.json").read_text()) for run in ("python", "command"))
    assert set(theirs) - set(ours) == {"settings"} and not set(ours) - set(theirs)
    assert {name: ours["algorithm"][name] for name in PARTS} == {name: theirs["algorithm"][name] for name in PARTS}
    assert ours["algorithm"]["steps"] == theirs["algorithm"]["steps"] == 80 and ours["algorithm"]["eval_episodes"] == 2


def test_a_run_of_python_without_a_number_of_steps_needs_one_to_go_on(capsys):
    fitted("run", num_iterations=1)
    assert main(["train", "--resume", "run"]) == 2
    assert "run was begun in Python without a number of agent steps" in capsys.readouterr().err
    assert len(rows("run")) == 1


@pytest.mark.slow
def test_a_run_of_python_goes_on_with_the_command_line_as_if_it_had_never_stopped(capsys):
    fitted("whole", steps=4 * STEPS, checkpoint_every=1)
    fitted("parts", num_iterations=2, checkpoint_every=1)
    assert main(["train", "--resume", "parts"]) == 2
    assert "parts was begun in Python without a number of agent steps" in capsys.readouterr().err
    assert main(["train", "--resume", "parts", "--steps", str(4 * STEPS)]) == 0
    assert "Continuing from iteration 2 at 80 agent steps." in capsys.readouterr().out
    assert rows("parts") == rows("whole") and len(rows("whole")) == 4
    assert not differences(newest_state("parts"), newest_state("whole"))


@pytest.mark.slow
def test_the_steps_and_parts_of_a_run_of_python_hold_when_it_is_resumed(capsys):
    with match().build_algo() as algo:
        fit = {"steps": 3 * STEPS, "eval_episodes": 3, "baseline_seconds": 1, "keep_checkpoints": 1}
        stop = lambda result: result["training_iteration"] == 2
        algo.fit(folder="run", stop=stop, progress=False, **fit)
    Path("run/final.json").unlink()
    assert main(["train", "--resume", "run"]) == 0
    said = capsys.readouterr().out
    assert "Measuring the trained policies: 3 episodes" in said and "at start" in said and len(rows("run")) == 3
    assert [path.name for path in Path("run/checkpoints").iterdir() if path.name not in ("best", "latest")] != []
    assert json.loads(Path("run/final.json").read_text())["num_episodes"] == 3
    assert main(["train", "--resume", "run"]) == 2  # it has all of its steps
    assert "has its 120 agent steps of 120 done" in capsys.readouterr().err


@pytest.mark.slow
def test_settings_of_a_run_of_python_can_be_changed_when_it_is_resumed():
    fitted("run", num_iterations=1)
    assert main(["train", "--resume", "run", "--steps", "80", "--set", "lr=0.5"]) == 0
    config = json.loads(Path("run/config.json").read_text())
    assert config["changed"] == {"run": {"steps": 80}, "training": {"lr": 0.5}} and config["algorithm"]["lr"] == 0.5
    assert main(["train", "--resume", "run", "--steps", "120"]) == 0
    with Algorithm.from_checkpoint("run") as algo:
        assert algo.config.lr == 0.5 and algo.iteration == 3


@pytest.mark.slow
def test_lambdas_of_a_run_of_python_come_from_the_file_that_config_names(capsys):
    Path("mine.py").write_text(
        "from marl_connectors import PPOConfig\n"
        "config = PPOConfig().environment('marl_envs.match_v0', env_config={'ep_len': 5})\n"
        "config.training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1)\n"
        "config.multi_agent(policies=['a'], policy_mapping_fn=lambda agent_id, episode, **kwargs: 'a')\n"
    )
    namespace = {}
    exec(Path("mine.py").read_text(), namespace)
    fitted("run", config=namespace["config"], num_iterations=1)
    assert main(["train", "--resume", "run", "--steps", "100"]) == 2
    assert "policy_mapping_fn" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--steps", "100", "--config", "mine.py"]) == 0
    assert len(rows("run")) > 1
    fitted("with_steps", config=namespace["config"].copy(), steps=200, num_iterations=None, stop=lambda result: True)
    assert main(["train", "--resume", "with_steps", "--config", "mine.py"]) == 0
    with Algorithm.from_checkpoint("with_steps", config=namespace["config"]) as algo:
        assert algo.num_agent_steps >= 200


@pytest.mark.slow
def test_the_commands_take_the_folder_of_python(capsys):
    pytest.importorskip("onnx")
    fitted("run", num_iterations=1)
    assert main(["evaluate", "run", "--episodes", "1", "--baseline-seconds", "1"]) == 0
    assert main(["record", "run", "--out", "data", "--episodes", "1"]) == 0
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    assert main(["export", "run", "--out", "exported"]) == 0


@pytest.mark.slow
def test_a_run_of_the_command_line_goes_on_in_python():
    start = ["train", "marl_envs.match_v0", "--no-video", *WORDS]
    assert main([*start, "--steps", "160", "--out", "whole"]) == 0
    assert main([*start, "--steps", "80", "--out", "parts"]) == 0
    before = json.loads(Path("parts/config.json").read_text())
    with Algorithm.from_checkpoint("parts") as algo:
        results = algo.fit(steps=160, folder="parts", checkpoint_every=1, eval_episodes=2, progress=False)
        assert (results.stopped_by, len(results)) == ("steps", 2)
    assert rows("parts") == rows("whole")
    assert not differences(newest_state("parts"), newest_state("whole"))
    finals = [json.loads(Path(run, "final.json").read_text()) for run in ("parts", "whole")]
    assert finals[0]["num_episodes"] == finals[1]["num_episodes"] == 2
    after = json.loads(Path("parts/config.json").read_text())
    assert (after["settings"], after["tracked_run"]) == (before["settings"], before["tracked_run"])


def test_a_damaged_setting_of_the_run_is_named(capsys):
    fitted("run", num_iterations=1)
    checkpoint = Path("run/checkpoints/000001")
    state = load_state(checkpoint)
    state["config"]["settings"]["steps"] = "many"
    save_state(checkpoint, state)
    assert main(["train", "--resume", "run", "--steps", "80"]) == 2
    assert "steps: expected a whole number from 1" in capsys.readouterr().err
    assert len(rows("run")) == 1


@pytest.mark.slow
def test_a_run_of_python_without_a_checkpoint_is_begun_again_by_its_program(capsys):
    fitted("run", num_iterations=1)
    for path in sorted(Path("run/checkpoints").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    Path("run/curves.png").unlink()
    assert main(["train", "--resume", "run", "--steps", "80"]) == 2
    assert "was begun in Python, and has no checkpoint yet" in capsys.readouterr().err
    fitted("run", num_iterations=2)
    assert len(rows("run")) == 2
