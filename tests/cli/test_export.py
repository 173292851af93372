"""``marl-connectors export``, with a fake policy, and once with a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from marl_connectors import PPOConfig
from marl_connectors.cli import export
from marl_connectors.cli.main import main
from marl_connectors.errors import ConnectorError, MissingDependencyError


class FakePolicy:
    """Writes a contract of two programs, and remembers how it was called."""

    def __init__(self):
        self.loaded_with = self.exported_with = self.error = None

    def load(self, checkpoint, module_id, *, config, trusted):
        self.loaded_with, self.config = (Path(checkpoint), module_id, trusted), config
        return self

    def export_onnx(self, path, *, explore, opset, check):
        if self.error is not None:
            raise self.error
        self.exported_with = explore, opset, check
        path.mkdir(parents=True)
        files = [{"file": f"{name}.onnx", "inputs": [{"name": "obs"}, {"name": "agent"}]} for name in ("red", "green")]
        for own in files:
            (path / own["file"]).write_bytes(bytes(2400))
        agents = [{"agent": f"agent_{i}", "file": "green.onnx"} for i in range(5)] + [
            {"agent": "x", "file": "red.onnx"}
        ]
        (path / "contract.json").write_text(json.dumps({"files": files, "agents": agents}))
        return path


@pytest.fixture
def policy(command, monkeypatch):
    fake = FakePolicy()
    monkeypatch.setattr(export, "require_onnx", lambda: None)
    monkeypatch.setattr(export, "load_policy", fake.load)
    monkeypatch.setattr(export, "check_of_run", lambda checkpoint: None)  # the run's checkpoints are fake, too
    command("train", "fake_env", "--steps", "200", "--out", "run")
    return fake


def test_the_programs_of_a_runs_latest_checkpoint_are_written_beside_it(command, policy):
    assert command("export", "run") == 0
    assert policy.loaded_with == (Path("run/checkpoints/000002"), None, True)
    assert policy.exported_with == (False, None, True)
    assert "run/checkpoints/000002: the programs take the most likely actions." in command.out
    assert "red.onnx" in command.out and "agent_0, agent_1, agent_2, agent_3, ... (5)" in command.out
    assert "compared with the policy" in command.out
    assert command.out.splitlines()[-1].endswith(f" {Path('run/export')}")


def test_options_reach_the_policy(command, policy):
    words = ["--out", "robot", "--module", "red", "--explore", "--opset", "18", "--no-check", "--untrusted"]
    assert command("export", "run/checkpoints/000001", *words) == 0
    assert policy.loaded_with == (Path("run/checkpoints/000001"), "red", False)
    assert policy.exported_with == (True, 18, False)
    assert "draw actions from random numbers" in command.out and "compared" not in command.out
    assert Path("robot/contract.json").exists()


def test_a_refusal_is_one_line(command, policy):
    policy.error = ConnectorError("export_onnx: Scale, piece 0, does not say how it is computed in torch.")
    assert command("export", "run") == 2
    assert command.err == f"marl-connectors: error: {policy.error}\n"


def test_a_missing_checkpoint_is_one_line(command, monkeypatch):
    monkeypatch.setattr(export, "require_onnx", lambda: None)
    assert command("export", "nowhere") == 2
    assert "nothing is there" in command.err and command.err.count("\n") == 1


def test_missing_packages_are_one_line(command, policy, monkeypatch):
    def missing():
        raise MissingDependencyError("export_onnx: it needs onnx, which is not installed.")

    monkeypatch.setattr(export, "require_onnx", missing)
    assert command("export", "run") == 2
    assert "it needs onnx" in command.err


@pytest.mark.slow
def test_a_real_run_is_exported_and_the_printed_command_works(tmp_path, monkeypatch, capsys):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    algo = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=100).build_algo()
    algo.save_to_path("checkpoint")
    algo.stop()
    assert main(["export", "checkpoint"]) == 0
    capsys.readouterr()
    assert main(["export", "checkpoint"]) == 0, "an export does not damage the checkpoint, and may be repeated"
    out = capsys.readouterr().out
    [printed] = [line.strip() for line in out.splitlines() if line.startswith("  ") and "python" in line]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(printed, shell=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "['default_agent']\n", done.stderr


def test_a_run_from_a_python_file_gets_its_config_from_this_file(policy, command, tmp_path):
    Path("my_config.py").write_text(
        "from marl_connectors import PPOConfig\n"
        "config = PPOConfig().environment('marl_envs.match_v0').training(train_batch_size_per_learner=50)\n"
    )
    command.algo = command.fake()
    command("train", "--config", "my_config.py", "--steps", "200", "--out", "from_file")
    policy.config = "not loaded"
    command("export", "from_file", "--out", "robot2")
    assert policy.config is not None and policy.config != "not loaded"
