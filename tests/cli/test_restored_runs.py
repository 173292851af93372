"""Checkpoints in the folder of a run that are those of another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_connectors.cli.main import main

TINY = (
    *("--no-preset", "--steps", "20", "--num-envs", "2", "--num-env-workers", "0", "--eval-episodes", "2"),
    *("--baseline-seconds", "1", "--video", "none", "--track", "none", "--keep-best", "none", "--no-env-check"),
    *("--set", "train_batch_size_per_learner=20", "--set", "minibatch_size=10", "--hidden", "4"),
)
MATCH, RECALL = "marl_envs.match_v0", "marl_envs.recall_v0"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("env", "algo", "message"),
    [
        (RECALL, "ppo", f"its environment is {RECALL!r}, but that of the run is {MATCH!r}"),
        (MATCH, "mappo", "its algorithm is 'marl_connectors:MAPPOConfig', but that of the run is 'marl_connectors:PPO"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(env, algo, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", MATCH, "--out", "own", *TINY]) == 0
    assert main(["train", env, "--algo", algo, "--out", "other", *TINY]) == 0
    [foreign] = [path for path in Path("other/checkpoints").iterdir() if path.is_dir()]
    moved = Path("own/checkpoints/000099")
    foreign.rename(moved)
    Path("own/checkpoints/latest").write_text("000099\n")
    for words in (
        ["evaluate", "own", "--episodes", "1"],
        ["record", "own", "--out", "data", "--episodes", "1"],
        ["export", "own"],
        ["train", "--resume", "own", "--steps", "80"],
    ):
        capsys.readouterr()
        assert main(words) == 2
        said = capsys.readouterr().err
        assert f"error: {moved} is not a checkpoint of the run own: {message}" in said and said.count("\n") == 1
    moved.rename("elsewhere")
    assert main(["evaluate", "elsewhere", "--episodes", "1", "--baseline-seconds", "1"]) == 0


@pytest.mark.slow
def test_a_checkpoint_of_another_environment_is_refused_in_a_run_with_a_python_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from marl_connectors import PPOConfig\nconfig = PPOConfig()\n")
    tiny = [word for word in TINY if word != "--no-preset"]
    assert main(["train", MATCH, "--config", "mine.py", "--out", "own", *tiny]) == 0
    assert main(["train", RECALL, "--config", "mine.py", "--out", "other", *tiny]) == 0
    [foreign] = [path for path in Path("other/checkpoints").iterdir() if path.is_dir()]
    foreign.rename("own/checkpoints/000099")
    Path("own/checkpoints/latest").write_text("000099\n")
    for words in (["evaluate", "own", "--episodes", "1"], ["train", "--resume", "own", "--steps", "80"]):
        assert main(words) == 2
        assert f"its environment is {RECALL!r}, but that of the run is {MATCH!r}" in capsys.readouterr().err
