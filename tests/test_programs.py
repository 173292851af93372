"""Commands that can be pasted, in an active virtual environment and outside of it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from marl_connectors import programs
from marl_connectors.programs import command


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A virtual environment ``.venv`` in the current folder, with a program."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "marl-connectors", "pip"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(programs, "_folders", lambda: [folder])
    monkeypatch.setenv("PATH", "/usr/bin")
    return folder


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs have other names")


def test_an_active_environment_needs_no_path(environment, monkeypatch):
    monkeypatch.setenv("PATH", f"{environment}{os.pathsep}/usr/bin")
    assert command("marl-connectors", "evaluate", Path("runs/a")) == "marl-connectors evaluate runs/a"
    assert command("python", "-c", "1") == "python -c 1"


def test_an_environment_that_is_not_active_is_named(environment, monkeypatch, tmp_path):
    assert command("marl-connectors", "zoo") == ".venv/bin/marl-connectors zoo"
    assert command("pip", "install", "x") == ".venv/bin/pip install x"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command("marl-connectors", "zoo") == f"{environment}/marl-connectors zoo"


def test_the_program_of_another_environment_is_not_taken_for_this_one(environment, monkeypatch, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "marl-connectors").write_text("#!/bin/sh\n")
    (other / "marl-connectors").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert command("marl-connectors", "zoo") == ".venv/bin/marl-connectors zoo"
    (other / "marl-connectors").unlink()
    (other / "marl-connectors").symlink_to(environment / "marl-connectors")
    assert command("marl-connectors", "zoo") == "marl-connectors zoo"


def test_a_program_that_is_not_installed_is_run_as_a_module(environment):
    assert command("tensorboard", "--logdir", "a b") == ".venv/bin/python -m tensorboard.main --logdir 'a b'"


def test_names_with_blanks_and_quotes_are_quoted():
    words = ["marl-connectors", "train", "--resume", "my runs/it's"]
    assert shlex.split(command(*words))[-3:] == words[1:]
