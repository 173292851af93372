"""Scripts with which shells complete the command line."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from marl_connectors.cli.completion import script
from marl_connectors.cli.main import main
from marl_connectors.cli.parser import build_parser
from marl_connectors.zoo import tasks

shtab = pytest.importorskip("shtab")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_commands_options_and_tasks(shell, capsys):
    assert main(["completion", shell]) == 0
    found = capsys.readouterr().out
    for word in ("train", "evaluate", "schema", "num-env-runners", "config", "simple_spread_v3"):
        assert word in found
    assert found == script(build_parser()[0], shell) + "\n"


ZOO = [task.name for task in tasks()]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["tr"], ["train"]),
        (["train", "simple_sp"], [name for name in ZOO if name.startswith("simple_sp")]),
        (["train", "--num-env-"], ["--num-env-runners", "--num-env-workers"]),
        (["train", "--algo", "ma"], ["maddpg", "mappo", "marwil", "matd3"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes_words(words, completed):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    line = " ".join(["marl-connectors", *words])
    code = f"{script(build_parser()[0], 'bash')}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
    code += '_shtab_marl_connectors; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True)
    assert sorted(done.stdout.split()) == completed


def test_without_shtab_a_message_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["completion", "bash"]) == 2
    assert "needs shtab, which is not installed" in capsys.readouterr().err
