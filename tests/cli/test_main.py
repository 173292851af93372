"""The command as a process: help, version, imports and errors."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import marl_connectors
from marl_connectors.cli.main import _prepare_streams, main


def run(*words, cwd):
    root = Path(marl_connectors.__file__).parents[1]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": path}
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], "marl-connectors train mpe2.simple_spread_v3"),
        (["train", "--help"], "--policies independent --env-config N=5"),
        (["evaluate", "--help"], "--video play.gif"),
        (["--version"], "marl-connectors "),
    ],
)
def test_help_and_version_show_and_end_well(capsys, words, expected):
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 0
    assert expected in capsys.readouterr().out


WATCHED = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print([os.environ.get(f"{library}_NUM_THREADS") for library in ("OMP", "OPENBLAS", "MKL")], flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
from marl_connectors.cli.main import _prepare_streams, main
main(["check", "marl_envs.null_v0"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("given", "expected"), [({}, ["1", "1", "1"]), ({"OMP_NUM_THREADS": "3"}, ["3", None, None])])
def test_linear_algebra_is_told_to_use_one_thread_before_numpy_is_imported(tmp_path, monkeypatch, given, expected):
    for library in ("OMP", "OPENBLAS", "MKL"):
        monkeypatch.delenv(f"{library}_NUM_THREADS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    process = run("-c", WATCHED, cwd=tmp_path)
    assert process.stdout.splitlines()[0] == repr(expected), process.stderr


def test_an_error_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mpe2.simple_spread_v3", "--polices", "shared"]) == 2
    said = "marl-connectors: error: train: unknown argument '--polices'. Did you mean '--policies'?\n"
    assert capsys.readouterr() == ("", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_error_of_the_process_is_one_line_and_status_2(tmp_path):
    done = run("-m", "marl_connectors", "trian", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("marl-connectors: error: argument COMMAND: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_parser_imports_nothing_heavy(tmp_path):
    code = (
        "import sys; from marl_connectors.cli.parser import parse; parse(['train', 'x']); "
        "print([m for m in ('torch', 'rich', 'matplotlib', 'tensorboard', 'PIL', 'pettingzoo') if m in sys.modules])"
    )
    done = run("-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n"


def test_the_schema_and_a_misspelt_option_need_no_torch(tmp_path):
    code = (
        "import sys; from marl_connectors.cli.main import main; main(['schema']); "
        "main(['train', 'x', '--hiden', '3']); print('torch' in sys.modules)"
    )
    done = run("-c", code, cwd=tmp_path)
    assert done.stdout.endswith("\nFalse\n") and "'--hidden'" in done.stderr


@pytest.mark.parametrize("words", [["--json"], []])
def test_a_reader_that_leaves_is_no_error(monkeypatch, capfd, words):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["check", "marl_envs.match_v0", "--episodes", "1", "--no-conformance", *words]) == 141
        stdout.write("and what is still to come goes nowhere")
    assert capfd.readouterr().err == ""


def test_a_reader_that_leaves_is_noticed_also_if_nothing_is_left_to_write(monkeypatch):
    def breaks(*args, **kwargs):
        raise BrokenPipeError  # as from a print() whose text is lost with the error

    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr("marl_connectors.cli.check.check_env", breaks)
    with open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["check", "marl_envs.match_v0"]) == 141


def test_another_pipe_that_breaks_is_one(monkeypatch):
    def breaks(*args, **kwargs):
        raise BrokenPipeError("of the environment")

    monkeypatch.setattr("marl_connectors.cli.check.check_env", breaks)
    with pytest.raises(BrokenPipeError, match="of the environment"):
        main(["check", "marl_envs.match_v0"])


CANNOT = "marl-connectors: error: the output cannot be written: No space left on device.\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full")
@pytest.mark.parametrize("words", ["zoo", "schema", "check marl_envs.match_v0 --episodes 1 --no-conformance"])
def test_output_that_cannot_be_written_is_one_message(monkeypatch, capfd, words):
    with open("/dev/full", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(words.split()) == 2
        stdout.write("and what is still to come goes nowhere")
    assert capfd.readouterr().err == CANNOT


class Filling(io.TextIOWrapper):
    """A text file whose disk is full from a certain text on."""

    full = False

    def write(self, text):
        self.full |= " agent steps " in text
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


def test_a_run_whose_output_cannot_be_written_any_more_is_saved(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = "--num-envs 1 --num-env-workers 0 --hidden 4 --eval-episodes 1 --baseline-seconds 1 --no-video --steps 60"
    words += " --set train_batch_size_per_learner=20 --set minibatch_size=20 --set num_epochs=1 --out run"
    with monkeypatch.context() as patch, open(tmp_path / "said", "wb") as file:
        patch.setattr(sys, "stdout", Filling(file))
        assert main(["train", "marl_envs.match_v0", *words.split()]) == 2
    assert capfd.readouterr().err == CANNOT
    assert Path("run/checkpoints/latest").read_text() == "000001\n"
    assert main(["train", "--resume", "run"]) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="closing a stream, and deleting the current folder")
def test_closed_streams_and_a_deleted_folder_cause_no_traceback(tmp_path):
    command = f"{sys.executable} -m marl_connectors"
    commands = f"{command} completion bash >&-; {command} nonsense >&- 2>&-"
    done = run("-c", f"import os; os.system({commands!r})", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("", "")
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        f"import os, sys; os.rmdir({str(gone)!r}); from marl_connectors.cli.main import main; sys.exit(main(['zoo']))"
    )
    done = run("-c", code, cwd=gone)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "marl-connectors: error: the current folder is not there any more. Go to another one, and repeat this.\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "CartPole-v1", "--hidden", "64x64"], ["64x64", "[64, 64]"]),
        (["train", "CartPole-v1", "--algo", "bc"], ["BCConfig", "--set input_=FOLDER"]),
        (["train", "CartPole-v1", "--env-to-module", "NoPiece"], ["no piece 'NoPiece'", "The closest of"]),
    ],
)
def test_mistakes_are_answered_with_what_to_write(words, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert all(each in said for each in expected) and len(said) < 400


def test_a_folder_of_runs_is_answered_with_the_runs(tmp_path, capsys):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert main(["evaluate", str(tmp_path)]) == 2
    assert f"has several runs. Choose one: {tmp_path / 'a'}, {tmp_path / 'b'}" in capsys.readouterr().err


def test_output_of_a_locale_without_utf8_shows_all_characters_in_some_way(monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", plain)
    _prepare_streams()
    print("1 \xb1 2")
    plain.flush()
    assert plain.buffer.getvalue() == b"1 \\xb1 2\n"


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "marl_connectors.cli.parser":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from marl_connectors.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports_ends_with_its_status_and_nothing_else(tmp_path):
    done = run("-c", INTERRUPTED, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
