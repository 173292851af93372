"""Files of a run that are damaged, and places that cannot be written, get one line that names them."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from marl_connectors import PPOConfig
from marl_connectors.algorithms.fitting import run_folder
from marl_connectors.algorithms.fitting.run_files import (
    iteration_of,
    read_baselines,
    read_config,
    read_metrics,
    remove_leftovers,
)
from marl_connectors.algorithms.fitting.run_folder import RunFolder
from marl_connectors.algorithms.fitting.video import record_video
from marl_connectors.checkpoints import save_state
from marl_connectors.cli.folders import check_can_be_made
from marl_connectors.cli.restored_runs import tree_of_run
from marl_connectors.cli.training_run import checkpoint_to_resume
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError

RUN = Path("run")


@pytest.fixture
def run(command):
    """A run of three iterations, the last of which is not in a checkpoint."""
    command.algo = command.fake(fail_at=4)
    command("train", "fake_env", "--steps", "400", "--checkpoint-every", "2", "--out", "run")
    shutil.rmtree(RUN / "checkpoints/000003")  # as if it had been killed
    (RUN / "checkpoints/latest").write_text("000002\n")
    (RUN / "checkpoints/best").write_text("000002\n")
    assert sorted(path.name for path in (RUN / "checkpoints").iterdir()) == ["000002", "best", "latest"]
    return command


def lines():
    return (RUN / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def resume(command, status=0):
    assert command("train", "--resume", "run") == status
    if status:
        assert command.err.startswith("marl-connectors: error: ") and command.err.count("\n") == 1
    return command.err


# metrics.jsonl -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"", b'{"training_it', b"\x00\xff\n", b"[1, 2]\n", b"null\n{}\n\n", b"\xe2\x82\n" * 3])
@pytest.mark.parametrize("kept", [2, 3])
def test_whatever_comes_after_the_checkpoint_in_the_metrics_is_dropped(run, kept, end):
    whole = lines()
    (RUN / "metrics.jsonl").write_bytes(b"".join(whole[:kept]) + end)
    resume(run)
    rows = [json.loads(line) for line in lines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4]
    assert lines()[:3] == whole


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"\x80\x81", "expected the JSON object of an iteration ('utf-8'"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "expected a JSON object, but got [1]"),
        (b"{}", "expected 'training_iteration' to be a whole number of at least 1, but got None"),
        (b'{"training_iteration": NaN}', "NaN is not a JSON value"),
        (b'{"training_iteration": 1, "num_agent_steps_sampled_lifetime": 1e400}', "of at least 0, but got inf"),
        (b'{"training_iteration": 1, "num_agent_steps_sampled_lifetime": 5}', "expected 'env_runners' to be"),
    ],
)
def test_damage_before_the_checkpoint_names_file_and_line(run, line, what):
    whole = lines()
    (RUN / "metrics.jsonl").write_bytes(line + b"\n" + whole[1])
    error = resume(run, 2)
    assert "run/metrics.jsonl, line 1, is damaged" in error and what in error
    (RUN / "metrics.jsonl").write_bytes(whole[1])  # as the message says
    resume(run)


def test_a_run_without_metrics_goes_on(run, caplog):
    (RUN / "metrics.jsonl").unlink()
    resume(run)
    assert "metrics.jsonl has no rows of 2 of the 2 iterations until the checkpoint" in caplog.text
    assert "Continuing from iteration 2 at 200 agent steps." in run.out
    assert [json.loads(line)["training_iteration"] for line in lines()] == [3, 4]


def test_a_run_goes_back_to_the_checkpoint_that_latest_names(command):
    command.algo = command.fake()
    assert command("train", "fake_env", "--steps", "400", "--checkpoint-every", "2", "--out", "run") == 0
    (RUN / "checkpoints/latest").write_text("000002\n")
    assert command("train", "--resume", "run") == 0
    assert "Continuing from iteration 2 at 200 agent steps." in command.out
    assert [json.loads(line)["training_iteration"] for line in lines()] == [1, 2, 3, 4]


# baselines.json and config.json --------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "run/baselines.json is damaged: it is not valid JSON"),
        ("[]", "run/baselines.json is damaged: expected a JSON object, but got []"),
        ("{}", "expected 'random_play' to be a JSON object, but got None"),
        ('{"random_play": {}, "at_start": 3}', "expected 'at_start' to be a JSON object, but got 3"),
        (
            '{"random_play": {"module_episode_returns": {"p": {"mean": "x", "std": 0}}}}',
            "expected random_play/module_episode_returns/p/mean to be a number or null, but got 'x'",
        ),
        (
            '{"random_play": {"module_episode_returns": {"p": {"mean": 1}}}}',
            "expected random_play/module_episode_returns/p/std to be a number or null, but got 'nothing'",
        ),
        ('{"random_play": {"agent_episode_returns_mean": 1}}', "agent_episode_returns_mean to be a JSON object"),
    ],
)
def test_damaged_baselines_are_named(run, text, what):
    (RUN / "baselines.json").write_text(text)
    assert what in resume(run, 2)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("steps", "many", "run.steps: expected a whole number from 1, or None, got 'many'"),
        ("steps", True, "run.steps: expected a whole number from 1, or None, got True"),
        ("steps", 1.5, "got 1.5"),
        ("threads", None, "run.threads: expected a whole number from 1, got None"),
        ("video", "no", "run.video: expected 'gif', 'mp4' or 'none', got 'no'"),
        ("algo", {}, "expected its settings to have an environment and one of the algorithms ppo, mappo"),
        ("stepps", 1, "run.stepps is no setting"),
    ],
)
def test_a_config_of_wrong_types_names_the_setting(run, key, value, what):
    config = json.loads((RUN / "config.json").read_text())
    config["settings"]["run"][key] = value
    (RUN / "config.json").write_text(json.dumps(config))
    error = resume(run, 2)
    assert "run/config.json" in error and what in error


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"settings": 3}', '{"settings": {"run": 3}}', "[" * 10**5])
def test_a_config_that_is_none_is_named(run, text):
    (RUN / "config.json").write_text(text)
    assert "config.json" in resume(run, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["config.json", "baselines.json", "metrics.jsonl"])
def test_a_folder_in_the_place_of_a_file_is_named(run, name):
    (RUN / name).unlink()
    (RUN / name).mkdir()
    assert f"run/{name}" in resume(run, 2)


# Mutations -----------------------------------------------------------------------------------------------------------

VALUES = [None, True, -1, 0, 3, 1.5, 1e300, 10**30, "", "many", [], [1], {}, {"mean": {}}, [[[]]], "\ud800", "NaN"]
ENDS = [b"", b"\n", b"\x00", b"\xff\xfe", b"{", b"}", b"[" * 5000, b"NaN", b"1e999", b'"', b"\\u", b"\n\n{}\n"]


def mutated_tree(data, rng):
    """A copy of JSON data with one part replaced, removed or added."""
    data = json.loads(json.dumps(data))
    place, key = None, None
    inner = data
    while isinstance(inner, (dict, list)) and inner and (place is None or rng.random() < 0.8):
        key = list(inner)[rng.integers(len(inner))] if isinstance(inner, dict) else int(rng.integers(len(inner)))
        place, inner = inner, inner[key]
    value = VALUES[rng.integers(len(VALUES))]
    if place is None or rng.random() < 0.05:
        return value
    if rng.random() < 0.2:
        del place[key]
    elif rng.random() < 0.1 and isinstance(place, dict):
        place["new"] = value
    else:
        place[key] = value
    return data


def mutated_bytes(text, rng):
    begin = int(rng.integers(len(text) + 1))
    end = min(begin + int(rng.integers(0, 20)), len(text))
    return text[:begin] + ENDS[rng.integers(len(ENDS))] + text[end:]


def mutated(text, rng):
    if rng.random() < 0.4:
        return mutated_bytes(text, rng)
    rows = text.splitlines() if text.count(b"\n{") else [text]
    number = int(rng.integers(len(rows)))
    rows[number] = json.dumps(mutated_tree(json.loads(rows[number]), rng)).encode()
    return b"\n".join(rows) + b"\n"


def read_all(path):
    """All that a resumed run does with the files of its folder, without the algorithm."""
    tree = tree_of_run(path, read_config(path))
    assert isinstance(tree.get("run.steps", 1), int)
    checkpoint = checkpoint_to_resume(path)
    assert checkpoint is not None
    RunFolder(path, PPOConfig()).go_on(iteration_of(checkpoint))


def survive_mutations(number, seed):
    texts = {name: (RUN / name).read_bytes() for name in ("config.json", "baselines.json", "metrics.jsonl")}
    refused = 0
    for trial in range(number):
        rng = np.random.default_rng([seed, trial])
        name = list(texts)[trial % 3]
        (RUN / name).write_bytes(mutated(texts[name], rng))
        try:
            read_all(RUN)
            said = name
        except MarlConnectorsError as error:
            refused, said = refused + 1, str(error)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, trial {trial}: {name}: {error!r}") from error
        assert Path(name).stem in said and len(said) < 1000, (seed, trial, said)
        for each, text in texts.items():
            (RUN / each).write_bytes(text)
    assert number // 10 < refused < number


@pytest.mark.slow
def test_no_damage_of_the_files_of_a_run_leads_to_an_error_from_within(run):
    survive_mutations(400, 0)


@pytest.mark.slow
def test_no_damage_of_the_files_of_a_run_leads_to_an_error_from_within_in_many_trials(run):
    survive_mutations(800, secrets.randbits(32))


@pytest.mark.slow
def test_what_reading_lets_pass_can_be_drawn_and_summed_up(run):
    """The same mutations of what has numbers, up to the picture."""
    text = (RUN / "metrics.jsonl").read_bytes()
    drawn = 0
    for trial in range(20):
        (RUN / "metrics.jsonl").write_bytes(mutated(text, np.random.default_rng([1, trial])))
        try:
            folder = RunFolder(RUN, PPOConfig())
            folder.go_on(2)
        except CheckpointError:
            continue
        folder.draw_curves()
        drawn += 1
    assert drawn > 3


# The words of a command ----------------------------------------------------------------------------------------------

WORDS = [
    *("train", "evaluate", "explain", "check", "--resume", "--out", "--env-config", "--set", "--policies", "--modules"),
    *("--steps", "--seed", "--hidden", "--threads", "--wrap", "--mapping", "--config", "--num-envs", "--episodes"),
    *("fake_env", "run", ".", "", " ", ":", "a:", ":b", "a=b", "N=[[[", "=", "1e400", "nan", "-1", "9" * 5000, "\x00"),
    *(
        "x" * 300,
        "a*=red",
        "a*=",
        "*",
        "=x",
        "run/config.json",
        "os:getcwd",
        "config.py",
        "\udcff",
        "²",
        "../..",
        "1_0",
    ),
    *("N=" + "[" * 30000, "lr=" + "(" * 3000, "-h=3", "--", "-", "run/", "~", "$x^", "math:pi", "bad.py", "exits.py"),
]


def survive_words(number, seed, command):
    Path("bad.py").write_text("x = (")
    Path("exits.py").write_text("raise SystemExit(3)")
    statuses = []
    for trial in range(number):
        rng = np.random.default_rng([seed, trial])
        first = ["train", "evaluate", "explain"][rng.integers(3)]
        words = [first, *(WORDS[rng.integers(4, len(WORDS))] for _ in range(rng.integers(1, 5)))]
        command.algo = command.fake(fail_at=1)
        try:
            statuses.append(command(*words))
        except SystemExit:  # argparse's way to end after --help
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}, trial {trial}, {str(words)[:1000]}: {error!r:.1000}") from error
    assert set(statuses) <= {0, 2} and statuses.count(2) > number // 2


@pytest.mark.slow
def test_no_words_lead_to_an_error_from_within(run):
    survive_words(300, 0, run)


@pytest.mark.slow
def test_no_words_lead_to_an_error_from_within_in_many_trials(run):
    survive_words(600, secrets.randbits(32), run)


# Places that cannot be written ---------------------------------------------------------------------------------------


def nothing_was_built(command):
    return command.tree is None


@pytest.mark.parametrize(
    "out", ["file", "file/run", "file/a/run", "x" * 300, "a/" + "x" * 300 + "/b", "a\x00b", "link", "/proc/run", "full"]
)
def test_an_out_that_cannot_be_made_fails_before_anything_is_built(command, out):
    Path("file").write_text("")
    Path("link").symlink_to("nowhere")
    Path("full").mkdir()
    Path("full/thing").write_text("")
    before = sorted(path.name for path in Path().iterdir())
    assert command("train", "fake_env", "--out", out) == 2
    assert command.err.startswith("marl-connectors: error: --out: expected") and command.err.count("\n") == 1
    assert nothing_was_built(command)
    assert sorted(path.name for path in Path().iterdir()) == before


@pytest.mark.parametrize("out", [[], ["--out", "new/run"], ["--out", "empty"]])
@pytest.mark.parametrize("what", ["access", "mkdir"])
def test_a_place_without_permission_fails_before_anything_is_built(command, monkeypatch, what, out):
    """Root may write anywhere, so the system's answers are made up."""
    Path("empty").mkdir()
    if what == "access":
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        why = "Permission denied"
    else:
        mkdir = os.mkdir

        def read_only(path, *args, **kwargs):
            if ".marl-connectors" in str(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            mkdir(path, *args, **kwargs)

        monkeypatch.setattr(os, "mkdir", read_only)
        why = "Read-only file system"
    assert command("train", "fake_env", *out) == 2
    assert f"cannot: {why}. Choose another folder." in command.err
    assert nothing_was_built(command)
    assert list(Path().iterdir()) == [Path("empty")]


def test_what_a_start_that_was_cut_short_has_left_is_no_obstacle(command):
    Path("run").mkdir()
    Path("run/.config.json.tmp").write_text('{"comm')
    Path("run/.marl-connectors-x.tmp").mkdir()
    assert command("train", "fake_env", "--steps", "100", "--out", "run") == 0
    assert not [path for path in Path("run").iterdir() if path.name.startswith(".")]


def test_nothing_is_left_of_the_check(tmp_path):
    check_can_be_made(tmp_path / "a" / "b", numbered=False)
    check_can_be_made(tmp_path, numbered=False)
    check_can_be_made(tmp_path, numbered=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").write_text("")
    check_can_be_made(tmp_path / "taken", numbered=True)  # another name will do
    with pytest.raises(ConfigError, match="exists"):
        check_can_be_made(tmp_path / "taken", numbered=False)


@pytest.mark.parametrize("video", ["file/play.gif", "folder", "x" * 300 + ".gif"])
def test_a_video_that_cannot_be_written_fails_before_anything_is_played(command, video):
    command.algo.save_to_path("ckpt")
    Path("file").write_text("")
    Path("folder").mkdir()
    command.algo = None
    assert command("evaluate", "ckpt", "--video", video) == 2
    assert "--video: expected a file that can be written" in command.err and command.err.count("\n") == 1
    assert command.algo is None


# A full disk ---------------------------------------------------------------------------------------------------------


class _FullFile:
    """Takes half of what is written."""

    def __init__(self, file, name):
        self._file, self._name = file, name

    def write(self, data):
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["metrics.jsonl", "state.json", "tensors-", "latest", "curves.png"])
def test_a_full_disk_gets_one_line_and_leaves_the_last_good_checkpoint(command, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full_disk(command, name, iteration=3))
        assert command("train", "fake_env", "--steps", "500", "--checkpoint-every", "2", "--out", "run") == 2
    assert "could not be written: No space left on device." in command.err and command.err.count("\n") == 1
    assert "run/" in command.err and "marl-connectors train --resume" in command.err
    names = sorted(path.name for path in (RUN / "checkpoints").iterdir())
    saved = "000005" if name == "curves.png" else "000002"  # they are drawn at the end
    assert (RUN / "checkpoints/latest").read_text() == saved + "\n"
    assert [each for each in names if each.startswith(".")] == []
    assert command("train", "--resume", "run") == 0
    assert [json.loads(line)["training_iteration"] for line in lines()] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "state.json", "curves.png", ".final.json"])
def test_the_line_for_a_full_disk_is_the_only_one_that_says_how_to_go_on_and_has_all_options(
    command, monkeypatch, name
):
    assert command("train", "fake_env", "--steps", "200", "--checkpoint-every", "1", "--out", "run") == 0
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full_disk(command, name, iteration=3))
        assert command("train", "--resume", "run", "--steps", "500", "--untrusted") == 2
    assert command.err.count("\n") == 1 and "Resume with" not in command.out
    words = shlex.split(command.err.partition("continue with: ")[2])
    assert words[-4:] == ["train", "--resume", "run", "--untrusted"]  # the run keeps its new steps
    assert command(*words[words.index("train") :]) == 0
    assert [json.loads(line)["training_iteration"] for line in lines()] == [1, 2, 3, 4, 5]


def full_disk(command, name, iteration):
    """An ``open`` whose files take half of what is written under a name, from some iteration on."""
    real = open

    def opened(file, mode="r", *args, **kwargs):
        found = real(file, mode, *args, **kwargs)
        is_it = isinstance(file, (str, os.PathLike)) and name in str(file) and set("wa") & set(mode)
        return _FullFile(found, str(file)) if is_it and command.algo.iteration >= iteration else found

    return opened


def test_a_full_disk_at_the_start_gets_one_line(command, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full_disk(command, ".baselines.json.tmp", iteration=0))
        assert command("train", "fake_env", "--steps", "500", "--out", "run") == 2
    assert "could not be written: No space left on device." in command.err and command.err.count("\n") == 1
    assert command("train", "--resume", "run") == 0
    assert "ended before its first checkpoint, so it begins anew" in command.out


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["event", "thread"])
def test_events_that_cannot_be_written_cost_the_events_only(command, monkeypatch, caplog, where):
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard import SummaryWriter

    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner, name = {"event": (SummaryWriter, "add_scalar"), "thread": (RecordWriter, "write")}[where]
    monkeypatch.setattr(owner, name, full)
    assert command("train", "fake_env", "--steps", "500", "--out", "run") == 0
    assert len(lines()) == 5
    [warning] = caplog.messages
    assert warning.startswith("TensorBoardTracker could not ") and "No space left on device). Training cont" in warning
    assert command.err == ""


def test_a_video_that_fails_costs_the_video_only(command, monkeypatch):
    def no_space(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", no_space)
        assert record_video(command.algo, Path("v.gif"), seed=0).startswith(
            "No video: OSError: [Errno 28] No space left on device ("
        )

    def fail(num_episodes, **settings):
        raise ZeroDivisionError("division by zero")

    command.algo.render_episodes = fail
    assert command("train", "fake_env", "--steps", "100", "--out", "run") == 0
    assert "No video: ZeroDivisionError: division by zero" in command.out


# Runs without a checkpoint -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_ended_before_its_first_checkpoint_begins_anew(command):
    command.algo = command.fake(fail_at=3)
    assert command("train", "fake_env", "--steps", "400", "--out", "run") == 2
    for entry in (RUN / "checkpoints").iterdir():  # as if it had been killed
        entry.unlink() if entry.is_file() else shutil.rmtree(entry)
    command.algo = command.fake()
    before = {path: path.read_bytes() for path in RUN.rglob("*.*") if path.is_file()}
    assert command("train", "--resume", "run") == 2  # curves are drawn when there is a checkpoint, so it is lost
    assert "run had checkpoints, but none is in run/checkpoints any more. Put them back" in command.err
    assert before == {path: path.read_bytes() for path in RUN.rglob("*.*") if path.is_file()}
    (RUN / "curves.png").unlink()
    command.algo = command.fake()
    assert command("train", "--resume", "run") == 0
    assert [json.loads(line)["training_iteration"] for line in lines()] == [1, 2, 3, 4]
    assert len(list((RUN / "tensorboard").iterdir())) == 1


def test_a_run_whose_latest_is_lost_goes_on_from_its_newest_checkpoint(run):
    (RUN / "checkpoints/latest").unlink()
    resume(run)
    assert "Continuing from iteration 2" in run.out


def test_what_was_being_written_when_the_run_was_killed_is_cleared_away(run):
    checkpoints = RUN / "checkpoints"
    before = sorted(path.name for path in checkpoints.iterdir())
    save_state(checkpoints / ".000004.tmp-0123abcd", {"half": 1})
    (checkpoints / ".latest.tmp").write_text("0000")
    (RUN / ".metrics.jsonl.tmp").write_text("")
    remove_leftovers(RUN)
    assert sorted(path.name for path in checkpoints.iterdir()) == before
    assert not (RUN / ".metrics.jsonl.tmp").exists()


def test_metrics_are_read_as_they_were_written(run):
    rows, text = read_metrics(RUN / "metrics.jsonl", up_to=2)
    assert [row["training_iteration"] for row in rows] == [1, 2]
    assert text == b"".join(lines()[:2])
    assert set(read_baselines(RUN)) == {"random_play", "at_start"}


# Two commands --------------------------------------------------------------------------------------------------------

locks = pytest.mark.skipif(os.name == "nt", reason="locks on folders")


@pytest.mark.slow
@locks
def test_only_one_command_at_a_time_writes_to_a_folder(run, monkeypatch):
    monkeypatch.setattr(run_folder, "_CLAIM_S", 0.0)
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    with run_folder.Claim(RUN):
        assert "run is used by another command, which is still running. Wait for its end" in resume(run, 2)
        assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
    resume(run)
    more = ("train", "--resume", "run", "--steps", "600")
    assert run(*more) == 0  # the claim of the command before has ended with it
    run.algo.train = lambda: pytest.fail("it has 600 steps")
    assert run(*more) == 2
    assert run("train", "--resume", "run", "--steps", "601", "--keep-best", "nonsense") == 2
    with run_folder.Claim(RUN):  # and so do those of commands that fail
        pass


@pytest.mark.slow
@locks
def test_a_command_waits_a_moment_for_the_processes_of_one_that_was_killed(run, monkeypatch):
    claim, slept = run_folder.Claim(RUN), []
    monkeypatch.setattr(run_folder.time, "sleep", lambda s: slept.append(s) or claim.release())
    resume(run)
    assert slept


@pytest.mark.parametrize("is_there", [False, True])
def test_a_run_does_not_begin_in_a_folder_that_another_one_has_taken_since(command, is_there):
    if is_there:
        Path("own").mkdir()

    def train(begin=command.algo.train):
        Path("own").mkdir(exist_ok=True)
        Path("own/config.json").write_text("{}")
        return begin()

    command.algo.train = train
    assert command("train", "fake_env", "--steps", "100", "--out", "own") == 2
    assert "--out: expected a new or empty folder, but another run has begun in own. Choose another." in command.err
    assert [path.name for path in Path("own").iterdir()] == ["config.json"]
