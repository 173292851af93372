"""Runs that are read again: checkpoints of another run, damaged settings, and a Python file that is named wrongly."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from marl_connectors.cli.main import main
from marl_connectors.cli.restored_runs import config_to_resume, tree_of_run
from marl_connectors.errors import CheckpointError, ConfigError

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


SETTINGS = {"run": {"algo": "ppo", "preset": "", "steps": 9}, "environment": {"env": MATCH}}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"foo": 1}, r"(?s)config\.json.*run\.foo"),
        ({"steps": "x"}, r"(?s)config\.json.*run\.steps"),
        ({"config": 3}, r"(?s)config\.json.*run\.config"),
    ],
)
def test_a_damaged_setting_of_a_run_is_named(run, message):
    damaged = {**SETTINGS, "run": {**SETTINGS["run"], **run}}
    with pytest.raises(CheckpointError, match=message):
        tree_of_run(Path("run"), {"settings": damaged})


def test_a_python_file_that_is_not_there_is_named(tmp_path):
    settings = {**SETTINGS, "run": {"algo": "ppo", "preset": "", "config": str(tmp_path / "gone.py")}}
    with pytest.raises(ConfigError, match=r"(?s)--config.*nowhere\.py"):
        config_to_resume(tmp_path, {"settings": settings}, tmp_path / "000001", str(tmp_path / "nowhere.py"), True)


def test_a_damaged_change_of_a_run_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", MATCH, "--out", "own", *TINY]) == 0
    config = Path("own/config.json")
    for changed, message in (
        ({"rl_module": {"model_config": {"use_lstm": True}}}, "own/config.json: changed: --model cannot be changed"),
        ({"training": {"lrr": 1}}, "own/config.json: changed: training: unknown setting 'lrr'"),
    ):
        config.write_text(json.dumps({**json.loads(config.read_text()), "changed": changed}))
        assert main(["train", "--resume", "own", "--steps", "80"]) == 2
        assert message in capsys.readouterr().err


def test_untrusted_imports_nothing_that_the_files_of_a_run_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("of_a_stranger.py").write_text("def count(**kwargs): pass\nconfig = None\n")
    assert main(["train", MATCH, "--seeds", "0", "--out", "seeds", *TINY]) == 0
    for name in ("unborn", "changed", "annealed", "of_python"):
        shutil.copytree("seeds/seed0", name)
    shutil.rmtree("unborn/checkpoints")
    for file in ("curves.png", "final.json", "metrics.jsonl"):
        Path("unborn", file).unlink()
    named = {"callbacks": {"on_episode_end": "of_a_stranger:count"}}
    model = {"rl_module": {"model_config": {"fcnet_kernel_initializer": "of_a_stranger:count"}}}
    for folder, key, change in (
        ("changed", "changed", named),
        ("changed", "changed", model),
        ("unborn", "settings", named),
    ):
        config = json.loads(Path(folder, "config.json").read_text())
        Path(folder, "config.json").write_text(json.dumps({**config, key: {**config.get(key, {}), **change}}))
        assert main(["train", "--resume", folder, "--steps", "80", "--untrusted"]) == 2
        expected = "has no checkpoint yet, so it begins anew" if folder == "unborn" else "cannot be changed"
        assert expected in capsys.readouterr().err
    config = json.loads(Path("annealed/config.json").read_text())
    config["settings"]["run"]["anneal_lr"] = True
    Path("annealed/config.json").write_text(json.dumps({**config, "settings": {**config["settings"], **named}}))
    assert main(["train", "--resume", "annealed", "--steps", "80", "--untrusted"]) == 0
    config = json.loads(Path("of_python/config.json").read_text())
    config["settings"]["run"]["config"] = str(tmp_path / "of_a_stranger.py")
    Path("of_python/config.json").write_text(json.dumps(config))
    assert main(["evaluate", "of_python", "--episodes", "1", "--baseline-seconds", "1", "--untrusted"]) == 0
    assert main(["train", "--resume", "of_python", "--steps", "80", "--untrusted"]) == 0
    several = json.loads(Path("seeds/seeds.json").read_text())
    several["settings"]["run"]["config"] = str(tmp_path / "of_a_stranger.py")
    Path("seeds/seeds.json").write_text(json.dumps(several))
    assert main(["train", "--resume", "seeds", "--untrusted", "--seeds", "0-1"]) == 2
    assert "the runs of the seeds 1 begin anew" in capsys.readouterr().err
    assert main(["train", "--resume", "seeds", "--untrusted"]) == 0
    assert "of_a_stranger" not in sys.modules


def test_seeds_whose_python_file_is_gone_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("of_seeds.py").write_text(
        "from marl_connectors import PPOConfig\n"
        f"config = PPOConfig().environment({MATCH!r}, wrappers=[lambda env: env])\n"
    )
    assert main(["train", "--config", "of_seeds.py", "--seeds", "0", "--out", "seeds", *TINY[1:]]) == 0
    Path("of_seeds.py").unlink()
    sys.modules.pop("of_seeds")
    assert main(["train", "--resume", "seeds", "--steps", "800"]) == 2
    assert "of_seeds.py, which is not there any more. Put it back, or name its new place" in capsys.readouterr().err
