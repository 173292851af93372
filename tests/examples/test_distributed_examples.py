"""The examples on Ray run, and do what their first lines say."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.damaged_checkpoints import tensors_file
from marl_connectors import Algorithm

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
SETTINGS = {"lr": 1e-3, "entropy_coeff": 0.0, "iterations": 3, "num_env_runners": 0}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_asks_a_question_and_says_what_it_prints(path):
    first_lines = path.read_text(encoding="utf-8").split('"""')[1]
    assert first_lines.partition("\n")[0].endswith("?")
    assert "prints" in first_lines.lower() and "seconds" in first_lines


class Paused(Exception):
    """Ends a trial, as Ray Tune does in ``report``."""


def small(example, monkeypatch):
    """The module of the example, with small train batches."""
    module = example("distributed/ray_tune")
    make_config = module.make_config
    monkeypatch.setattr(
        module,
        "make_config",
        lambda settings: make_config(settings).training(train_batch_size_per_learner=128, num_epochs=1),
    )
    return module


def trained(module, settings, start, kept, pauses_after=None):
    """Trains a trial, and returns what it reports. Keeps its newest checkpoint in the folder ``kept``."""
    reported = []

    def report(metrics, folder):
        reported.append(metrics)
        shutil.copytree(folder, kept, dirs_exist_ok=True)
        if metrics["iteration"] == pauses_after:
            raise Paused

    try:
        module.train(settings, start, report)
    except Paused:
        assert reported[-1]["iteration"] == pauses_after
    return reported


def test_a_trial_that_is_paused_and_resumed_reports_what_it_reports_otherwise(example, monkeypatch, tmp_path):
    module = small(example, monkeypatch)
    whole = trained(module, SETTINGS, None, tmp_path / "whole")
    before = trained(module, SETTINGS, None, tmp_path / "paused", pauses_after=2)
    after = trained(module, SETTINGS, tmp_path / "paused", tmp_path / "paused")
    assert [metrics["iteration"] for metrics in whole] == [1, 2, 3]
    assert [*before, *after] == whole
    whole, paused = (tensors_file(tmp_path / name) for name in ("whole", "paused"))
    assert whole.read_bytes() == paused.read_bytes()


def test_a_trial_that_goes_on_from_the_checkpoint_of_another_one_has_its_own_settings(example, monkeypatch, tmp_path):
    module = small(example, monkeypatch)
    trained(module, SETTINGS, None, tmp_path / "good", pauses_after=2)
    settings = {**SETTINGS, "lr": 2e-3, "entropy_coeff": 0.02}
    (metrics,) = trained(module, settings, tmp_path / "good", tmp_path / "copied")
    assert metrics["iteration"] == 3
    algo = Algorithm.from_checkpoint(tmp_path / "copied")
    assert algo.config.to_dict()["entropy_coeff"] == 0.02
    assert algo.train()["learners"]["default_policy"]["learning_rate"] == 2e-3
    algo.stop()


def run_script(out, *options):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "ray_tune.py"), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_tuning_goes_on_after_ctrl_c(tmp_path, num_env_runners):
    for name in ("pandas", "pyarrow", "tensorboardX"):
        pytest.importorskip(name)
    out = tmp_path / "tune"
    options = ("--num-trials", "2", "--iterations", "8", "--perturb-every", "2")
    options += ("--num-env-runners", str(num_env_runners))
    first = run_script(out, *options)
    while first.poll() is None and not list(out.glob("*/checkpoint_000002")):
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    interrupted = first.communicate()[0]
    assert first.returncode == 0, interrupted
    assert interrupted.count("after 8 iterations") < 2, "it was not over when it was interrupted"
    second = run_script(out, *options)
    printed = second.communicate()[0]
    assert second.returncode == 0, printed
    assert "Restored on" in printed, "trials go on from checkpoints"
    assert len(re.findall(r"^lr 0.*: return \d+.\d after 8 iterations$", printed, re.MULTILINE)) == 2
    assert re.search(r"^Best checkpoint: .*, return without exploration: \d+.\d$", printed, re.MULTILINE)


@pytest.mark.slow
def test_tuning_finds_settings_that_learn(tmp_path):
    for name in ("pandas", "pyarrow", "tensorboardX"):
        pytest.importorskip(name)
    script = run_script(tmp_path / "tune")
    printed = script.communicate()[0]
    assert script.returncode == 0, printed
    returns = [float(found) for found in re.findall(r": return ([\d.]+) after 20 iterations", printed)]
    assert len(returns) == 4 and min(returns) > 50
    assert float(re.findall(r"return without exploration: ([\d.]+)", printed)[0]) > 150
