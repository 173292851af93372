"""``marl-connectors check``: a table or JSON, the exit status, and nothing on disk."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import marl_connectors
from marl_connectors.cli.main import main
from marl_connectors.cli.parser import build_parser

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"

BROKEN = """
import os, signal
import gymnasium, numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, crash=False, size=1.0):
        self.crash, self.size = crash, size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("hello from the environment")
        return np.full(1, self.size, np.float32), {}

    def step(self, action):
        if self.crash:
            os.kill(os.getpid(), signal.SIGSEGV)
        return np.full(1, self.size, np.float32), 1.0, True, False, {}
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    (tmp_path / "odd_env.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "odd_env", raising=False)

    def run(*words):
        capsys.readouterr()
        status = main(["check", *words])
        out, err = capsys.readouterr()
        assert [path.name for path in tmp_path.iterdir()] == ["odd_env.py"]
        return status, out, err

    return run


def test_without_errors_the_status_is_0(check):
    status, out, err = check("marl_envs.match_v0", "--env-config", "n_agents=2", "--episodes", "2")
    assert (status, err) == (0, "")
    assert out.startswith("match_v0: parallel, 2 agents. 0 errors, 0 warnings")
    assert "2 episodes, 50 steps, ends after 25 steps" in out


def test_with_errors_the_status_is_1_and_the_table_says_why(check):
    status, out, err = check("odd_env:Env", "--env-config", "size=2.0", "--no-conformance")
    assert status == 1
    assert "errors\n  observation-outside-space" in out
    assert "component 0 is 2.0, not in [-1.0, 1.0]" in out
    assert "hello" not in out and "hello from the environment" in err


def test_json_has_the_same(check):
    status, out, _ = check("odd_env:Env", "--env-config", "size=2.0", "--json", "--seed", "3", "--max-steps", "5")
    data = json.loads(out)
    assert status == 1
    assert (data["ok"], data["kind"], data["measurements"]["episodes"]) == (False, "single agent", 3)
    assert data["findings"][0]["kind"] == "observation-outside-space"


def test_wrong_words_are_one_line(check):
    for words in (["no_such_env"], ["odd_env:Env", "--steps", "3"], ["odd_env:Env", "--episodes", "0"]):
        status, out, err = check(*words)
        assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_crash_of_the_interpreter_shows_the_line(check, tmp_path):
    root = Path(marl_connectors.__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-B", "-m", "marl_connectors", "check", "odd_env:Env", "--env-config", "crash=true"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode not in (0, 1, 2)
    assert "odd_env.py" in done.stderr and "in step" in done.stderr


def test_the_page_has_every_option():
    _, parsers = build_parser()
    actions = [action for action in parsers["check"]._actions if not isinstance(action, argparse._HelpAction)]
    options = {action.option_strings[-1] if action.option_strings else action.metavar for action in actions}
    section = re.search(r"^## check\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None
    table = section[1].partition("| option |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\S+?)[ `]", table, re.MULTILINE)) == options


MASKS = """
import numpy as np
from gymnasium import Env, spaces

class Masked(Env):
    action_space = spaces.Discrete(3)

    def __init__(self, size=3, high=1):
        masks = spaces.Box(0, high, (size,), np.int8)
        self.observation_space = spaces.Dict({"observation": spaces.Box(0, 1, (2,)), "action_mask": masks})

    def _see(self):
        mask = np.ones(self.observation_space["action_mask"].shape, np.int8)
        return {"observation": np.zeros(2, np.float32), "action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._see(), {}

    def step(self, action):
        self.t += 1
        return self._see(), 1.0, self.t == 5, False, {}
"""


def test_masks_are_told_and_their_spaces_checked(check, tmp_path):
    (tmp_path / "odd_env.py").write_text(MASKS)
    words = ["odd_env:Masked", "--no-conformance"]
    status, out, _ = check(*words)
    assert status == 0 and "Action masks: in the observations; they were obeyed." in out
    _, out, _ = check(*words, "--json")
    assert json.loads(out)["masks_in"] == ["observations"]
    status, out, _ = check(*words, "--action-mask-key", "none")
    assert status == 0 and "Action masks" not in out
    for wrong in ("size=4", "high=3"):
        status, out, _ = check(*words, "--env-config", wrong)
        assert status == 1 and "mask-space" in out and "action_mask_key=None" in out
        status, out, _ = check(*words, "--env-config", wrong, "--action-mask-key", "none")
        assert status == 0
    status, out, _ = check(*words, "--env-config", "high=3", "--action-mask-key", "action_mask")
    assert status == 0
