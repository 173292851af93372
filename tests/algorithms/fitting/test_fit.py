"""``Algorithm.fit``: how far it trains, what it leaves behind, and that it changes nothing about training."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.runs.fake_ray import use_fake_ray
from helpers.runs.random_runs import described, differences, plain, random_config, without_times
from marl_connectors import Algorithm, Callbacks, PPOConfig, load_policy
from marl_connectors.algorithms.fitting import fit as fit_module
from marl_connectors.algorithms.fitting import run_files, run_folder, saver
from marl_connectors.callbacks import TensorBoardTracker, Tracker
from marl_connectors.checkpoints import is_checkpoint
from marl_connectors.errors import CheckpointError, ConfigError, EnvError

STEPS = 40
"""The agent steps of an iteration of ``match``."""


def match(**settings):
    config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 5})
    config.multi_agent(policies="independent").env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1, **settings)
    return config.debugging(seed=3)


@pytest.fixture
def algo():
    with match().build_algo() as built:
        yield built


def quiet(algo, *args, **kwargs):
    return algo.fit(*args, progress=False, **kwargs)


# How far it trains ----------------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("amount", "iterations"),
    [
        ({"num_agent_steps": 1}, 1),
        ({"num_agent_steps": 2 * STEPS}, 2),
        ({"num_agent_steps": 2 * STEPS + 1}, 3),
        ({"num_env_steps": STEPS}, 2),
        ({"num_env_steps": 1e2}, 5),
        ({"num_iterations": 3}, 3),
    ],
)
def test_it_trains_as_far_as_it_is_asked_to_and_then_as_far_again(algo, amount, iterations):
    for called in (1, 2):
        results = quiet(algo, **amount)
        assert (len(results), algo.iteration) == (iterations, called * iterations)
        assert results.stopped_by == next(iter(amount))


def test_agent_steps_need_no_name(algo):
    assert len(quiet(algo, 2 * STEPS)) == 2


def test_a_metric_ends_it_where_it_first_reaches_its_level():
    class Counts(Callbacks):
        def on_train_result(self, *, algorithm, result, **kwargs):
            result["score"] = {"own": [3.0, 7.0, 5.0, 9.0][algorithm.iteration - 1]}

    with match().callbacks(Counts).build_algo() as algo:
        results = quiet(algo, 10_000, stop={"score/own": 7.0, "env_runners/episode_return_mean": 1e9})
        assert len(results) == 2 and results.stopped_by == "stop"
        assert results.reason == "score/own is 7.00, at least 7.00"
        assert len(quiet(algo, stop=lambda result: result["score"]["own"] > 8.0)) == 2


def test_a_count_of_the_whole_run_is_reached_once(algo):
    level = {"num_agent_steps_sampled_lifetime": 3 * STEPS}
    assert len(quiet(algo, stop=level)) == 3
    again = quiet(algo, stop=level)
    assert len(again) == 0 and again.stopped_by == "stop" and algo.iteration == 3
    assert "already" in again.reason
    assert len(quiet(algo, stop={"training_iteration": 5})) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["env_runners/episode_return_men", "env_runners"])
def test_a_metric_that_no_result_has_is_an_error_after_the_first_iteration(name, algo, tmp_path):
    with pytest.raises(ConfigError, match=f"(?s)'{name}'.*'{name}'") as caught:
        quiet(algo, stop={name: 1}, folder=tmp_path)
    assert "env_runners/episode_return_mean" in str(caught.value)
    assert (algo.iteration, names(tmp_path)) == (1, ["000001", "best", "latest"])
    assert len(quiet(algo, num_iterations=1, folder=tmp_path)) == 1


@pytest.mark.parametrize("where", ["config", "call"])
def test_a_metric_that_callbacks_may_log_later_is_only_warned_of(where, caplog):
    def log(*, algorithm, result, **kwargs):
        if algorithm.iteration == 3:
            result["score"] = 5.0

    config = match().callbacks(on_train_result=log) if where == "config" else match()
    with config.build_algo() as algo:
        results = quiet(algo, stop={"score": 5}, callbacks=log if where == "call" else None)
        assert len(results) == 3 and results.stopped_by == "stop"
    [warning] = caplog.messages
    assert warning.startswith("fit: stop['score'] is not reached so far: no result is called 'score'.")


def test_a_tracker_logs_no_metrics(algo, tmp_path):
    with pytest.raises(ConfigError, match="'score'"):
        quiet(algo, stop={"score": 5}, callbacks=[TensorBoardTracker(folder=tmp_path)])


def test_a_metric_may_be_missing_until_an_episode_or_an_evaluation_ends(caplog):
    config = match().evaluation(evaluation_interval=2, evaluation_duration=1)
    config.environment(env_config={"n_agents": 2, "ep_len": 25})  # an iteration has 10 steps of each sub-environment
    wanted = {"env_runners/module_episode_returns/agent_0/mean": -1e9, "evaluation/env_runners/episode_len_mean": 26}
    with config.build_algo() as algo:
        assert len(quiet(algo, num_iterations=5, stop=wanted)) == 3
        with pytest.raises(ConfigError, match="'evaluation/env_runners/episode_len_mean'"):
            quiet(algo, num_iterations=5, stop={"evaluation/env_runners/episode_len_man": 1})
    assert not caplog.messages


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"(?s)num_agent_steps=.*num_env_steps=.*num_iterations=.*steps=.*stop="),
        ({"num_agent_steps": 5, "num_iterations": 2}, r"(?s)num_agent_steps.*num_iterations"),
        ({"num_agent_steps": 0}, "num_agent_steps"),
        ({"num_iterations": 1.5}, "num_iterations"),
        ({"num_iterations": 1, "stop": 3}, "stop"),
        ({"stop": {"a": "b"}}, r"stop\['a'\]"),
        (
            {"stop": {"evaluation/env_runners/success": 1}},
            "evaluated",
        ),
        ({"num_iterations": 1, "checkpoint_every": 0}, "checkpoint_every"),
        ({"num_iterations": 1, "keep_checkpoints": 0}, "keep_checkpoints"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_training(algo, given, message):
    with pytest.raises(ConfigError, match=message):
        quiet(algo, **given)
    assert algo.iteration == 0


# It changes nothing about training ------------------------------------------------------------------------------------


def outcome(algo, rows):
    """Everything that may not depend on how iterations were asked for."""
    return plain({"results": [without_times(row) for row in rows], "state": without_times(algo.get_state())})


def check_calls(seed, folder):
    """Holds two calls of fit against one call, and against a loop over train."""
    rng = np.random.default_rng(seed)
    first, second = (int(n) for n in rng.integers(1, 3, 2))
    found = []
    for calls in ([first + second], [first, second], None):
        algo = random_config(seed).run(checkpoint_every=1).build_algo()
        try:
            if calls is None:
                rows = [algo.train() for _ in range(first + second)]
            else:
                options = {"folder": folder / f"{seed}-{len(calls)}", "progress": False}
                rows = [row for n in calls for row in algo.fit(num_iterations=n, **options)]
            found.append(outcome(algo, rows))
        finally:
            algo.stop()
    for other in found[1:]:
        assert not differences(found[0], other), (
            seed,
            described(random_config(seed)),
            differences(found[0], other)[:5],
        )


def check_restored(seed, folder):
    """Holds a run that is restored from its folder against one that was never interrupted."""
    config, rng = random_config(seed), np.random.default_rng(seed)
    last, before = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    options = {"checkpoint_every": int(rng.integers(1, 4)), "progress": False}
    goal = {"training_iteration": last}
    algo = config.copy().build_algo()
    try:
        algo.fit(num_iterations=before, folder=folder / "whole", **options)
        rows = algo.fit(stop=goal, folder=folder / "whole", **options)
        expected = outcome(algo, rows)
    finally:
        algo.stop()
    algo = config.copy().build_algo()
    try:
        algo.fit(num_iterations=before, folder=folder / "parts", **options)
    finally:
        algo.stop()
    restored = type(algo).from_checkpoint(folder / "parts", config=config)
    try:
        found = outcome(restored, restored.fit(stop=goal, folder=folder / "parts", **options))
    finally:
        restored.stop()
    assert not differences(expected, found), (seed, described(config), differences(expected, found)[:5])
    metrics = [
        [without_times(json.loads(line)) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    ]
    assert [row["training_iteration"] for row in metrics[0]] == list(range(1, max(last, before) + 1))
    assert metrics[0] == metrics[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_two_calls_are_one_call_and_a_loop_over_train(seed, tmp_path):
    check_calls(seed, tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_is_restored_from_its_folder_ends_as_if_it_had_never_stopped(seed, tmp_path):
    check_restored(seed, tmp_path)


FIRST_SEED = int(os.environ.get("FIRST_SEED", np.random.SeedSequence().entropy % 2**30))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_runs_do_not_depend_on_how_iterations_were_asked_for(part, tmp_path):
    print(f"FIRST_SEED={FIRST_SEED}")
    check_calls(FIRST_SEED + part, tmp_path)
    check_restored(FIRST_SEED + part, tmp_path)


# Checkpoints ----------------------------------------------------------------------------------------------------------


def names(folder):
    found = folder / "checkpoints"  # it is there from the end of the first iteration on
    return sorted(path.name for path in found.iterdir()) if found.exists() else []


def test_the_folder_has_checkpoints_results_and_the_best_one(algo, tmp_path):
    results = quiet(algo, num_iterations=5, folder=tmp_path, checkpoint_every=2)
    assert names(tmp_path) == ["000002", "000004", "000005", "best", "latest"]
    assert results.checkpoint == tmp_path / "checkpoints/000005"
    assert results.best_checkpoint is not None and is_checkpoint(results.best_checkpoint)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert load_policy(tmp_path).agent_ids == algo.agent_ids
    with Algorithm.from_checkpoint(tmp_path) as restored:
        assert restored.iteration == 5


def test_old_checkpoints_are_removed_but_not_the_best(tmp_path):
    scores = iter([1.0, 5.0, 2.0, 3.0])

    def score(*, result, **kwargs):
        result["score"] = next(scores)

    with match().callbacks(on_train_result=score).build_algo() as algo:
        kept = {"keep_checkpoints": 1, "keep_best": "score"}
        results = quiet(algo, num_iterations=4, folder=tmp_path, checkpoint_every=1, **kept)
    assert names(tmp_path) == ["000002", "000004", "best", "latest"]
    assert results.best_checkpoint == tmp_path / "checkpoints/000002"


def test_no_folder_is_written_unless_one_is_wanted(algo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert quiet(algo, num_iterations=1).checkpoint is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("iterations", [0, 3, 5])
@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_the_files_of_another_run_are_neither_replaced_nor_mixed_up(algo, tmp_path, iterations, has_checkpoints):
    quiet(algo, num_iterations=3, folder=tmp_path)
    if not has_checkpoints:
        shutil.rmtree(tmp_path / "checkpoints")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with match().build_algo() as other:
        if iterations:
            quiet(other, num_iterations=iterations)
        if not has_checkpoints and not iterations:  # the results of an attempt from which nothing can go on
            assert len(quiet(other, num_iterations=1, folder=tmp_path)) == 1
            return
        with pytest.raises(ConfigError, match="restored"):
            quiet(other, num_iterations=1, folder=tmp_path)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        if has_checkpoints:
            other.restore_from_path(tmp_path / "checkpoints/latest")
            assert len(quiet(other, num_iterations=1, folder=tmp_path)) == 1


@pytest.mark.slow
def test_a_run_may_have_several_folders_and_go_on_in_each_of_them(algo, tmp_path):
    for number, folder in enumerate(("a", "b", "a"), 1):
        results = quiet(algo, num_iterations=1, folder=tmp_path / folder)
        assert results.checkpoint == tmp_path / folder / f"checkpoints/{number:06d}"
    with Algorithm.from_checkpoint(tmp_path / "a/checkpoints/000003") as restored:
        assert len(quiet(restored, num_iterations=1, folder=tmp_path / "b/../a")) == 1
        with pytest.raises(ConfigError, match="another run"):
            quiet(restored, num_iterations=1, folder=tmp_path / "b")


def test_later_checkpoints_of_the_run_are_not_replaced(algo, tmp_path):
    quiet(algo, num_iterations=3, folder=tmp_path, checkpoint_every=1)
    with Algorithm.from_checkpoint(tmp_path / "checkpoints/000001") as restored:
        with pytest.raises(ConfigError, match=r"(?s)iteration 3.*iteration 1"):
            quiet(restored, num_iterations=1, folder=tmp_path)
        for name in ("000002", "000003"):
            shutil.rmtree(tmp_path / "checkpoints" / name)
        assert len(quiet(restored, num_iterations=1, folder=tmp_path)) == 1
    assert {"000001", "000002"} == set(names(tmp_path)) - {"best", "latest"}


def test_a_config_of_something_else_is_left_alone(algo, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json"):
        quiet(algo, num_iterations=1, folder=tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}" and len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_named_before_training(algo, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="written"):
        quiet(algo, num_iterations=1, folder=tmp_path / "file")
    assert algo.iteration == 0


# Interruptions --------------------------------------------------------------------------------------------------------

needs_signals = pytest.mark.skipif(os.name == "nt", reason="signals")


def interrupting(times, at=2, number=signal.SIGINT):
    """A callback that sends a signal in the middle of an iteration, at the end of its sample."""

    left = [number] * times

    def send(*, env_runner, **kwargs):
        if env_runner.num_env_steps == 20 * at:
            while left:
                os.kill(os.getpid(), left.pop())

    return match().callbacks(on_sample_end=send)


@needs_signals
def test_ctrl_c_ends_it_after_the_iteration_with_a_checkpoint(tmp_path, capsys):
    with interrupting(1).build_algo() as algo:
        results = algo.fit(num_iterations=9, folder=tmp_path, checkpoint_every=100)
        assert (len(results), results.stopped_by) == (2, "interrupt")
        assert results.checkpoint == tmp_path / "checkpoints/000002"
        said = capsys.readouterr()
        assert "Stopping after this iteration; Ctrl-C again stops at once." in said.err
        assert "Stopped at 80 agent steps. Resume with: algo.fit(" in said.out
        assert quiet(algo, num_iterations=2).stopped_by == "num_iterations"
        interrupted = plain(algo.rl_module.get_state())
    with match().build_algo() as algo:
        quiet(algo, num_iterations=4)
        assert not differences(plain(algo.rl_module.get_state()), interrupted)


@pytest.mark.few(1)
@needs_signals
@pytest.mark.parametrize("in_evaluation", [True, False])
def test_ctrl_c_cuts_an_evaluation_of_an_iteration_short_and_leaves_it_out(tmp_path, in_evaluation):
    steps, left = [], [signal.SIGINT]

    def send(*, env_runner, **kwargs):
        steps.append(env_runner.in_evaluation)
        if sum(steps) == 7 if in_evaluation else len(steps) == 17:  # while the second iteration samples
            os.kill(os.getpid(), left.pop())

    config = match().evaluation(evaluation_interval=1, evaluation_duration=2).callbacks(on_episode_step=send)
    with config.build_algo() as algo:
        results = quiet(algo, num_iterations=9, folder=tmp_path, checkpoint_every=100)
        stopped = len(results)
        assert (results.stopped_by, ["evaluation" in each for each in results]) == (
            "interrupt",
            [True] * (stopped - 1) + [False],
        )
        assert names(tmp_path)[0] == f"{stopped:06d}" and algo.ends_evaluations is None
        rest = quiet(algo, num_iterations=1)
    with config.copy(copy_frozen=False).callbacks(on_episode_step=None).build_algo() as algo:
        wanted = quiet(algo, num_iterations=stopped + 1)
    assert without_times(rest[-1]) == without_times(wanted[-1])  # as if nothing had happened


@needs_signals
def test_a_second_ctrl_c_ends_it_at_once_with_the_iteration_before_in_a_checkpoint(tmp_path):
    with interrupting(2).build_algo() as algo:
        with pytest.raises(KeyboardInterrupt):
            quiet(algo, num_iterations=9, folder=tmp_path, checkpoint_every=100)
        assert names(tmp_path) == ["000001", "best", "latest"]
        assert algo.iteration == 1
        algo.restore_from_path(tmp_path)
        assert quiet(algo, num_iterations=1)[-1]["training_iteration"] == 2


@needs_signals
def test_sigterm_does_what_it_would_have_done_as_soon_as_the_iteration_is_saved(tmp_path):
    seen = []
    former = signal.signal(signal.SIGTERM, lambda *_: seen.append(names(tmp_path)))
    try:
        with interrupting(1, number=signal.SIGTERM).build_algo() as algo:
            assert quiet(algo, num_iterations=9, folder=tmp_path).stopped_by == "interrupt"
    finally:
        signal.signal(signal.SIGTERM, former)
    assert seen == [["000002", "best", "latest"]]


@needs_signals
def test_afterwards_signals_do_what_they_did(algo):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    quiet(algo, num_iterations=1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_it_works_in_any_thread(algo):
    found = []
    thread = threading.Thread(target=lambda: found.append(quiet(algo, num_iterations=2)))
    thread.start()
    thread.join()
    assert len(found[0]) == 2


def test_an_error_leaves_the_last_complete_iteration_in_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "time", SimpleNamespace(monotonic=lambda: 0.0))  # copies of the state take no time

    def fail(*, algorithm, **kwargs):
        if algorithm.iteration == 4:
            raise EnvError("the simulator is gone.")

    with match().build_algo() as algo, pytest.raises(EnvError, match="simulator"):
        quiet(algo, num_iterations=9, callbacks=fail, folder=tmp_path, checkpoint_every=2)
    assert names(tmp_path) == ["000002", "000003", "best", "latest"]


def test_a_condition_that_fails_does_not_lose_the_iteration(algo, tmp_path):
    def fail(result):
        return 1 / (3 - result["training_iteration"]) < 0

    with pytest.raises(ZeroDivisionError):
        quiet(algo, num_iterations=9, stop=fail, folder=tmp_path)
    assert names(tmp_path) == ["000003", "best", "latest"]


def test_an_error_in_an_iteration_loses_none_of_those_before(tmp_path):
    def fail(*, algorithm, **kwargs):
        if algorithm.iteration == 5:
            raise EnvError("the simulator is gone.")

    with match().build_algo() as algo, pytest.raises(EnvError, match="simulator"):
        quiet(algo, num_iterations=99, callbacks=fail, folder=tmp_path, checkpoint_every=100)
    assert names(tmp_path) == ["000004", "best", "latest"]


def test_an_error_between_two_iterations_loses_none_of_them(tmp_path):
    fail = lambda result: 1 / (4 - result["training_iteration"]) < 0
    with match().build_algo() as algo, pytest.raises(ZeroDivisionError):
        quiet(algo, num_iterations=9, stop=fail, folder=tmp_path)
    assert names(tmp_path) == ["000004", "best", "latest"]


def test_a_disk_that_is_full_says_how_to_go_on(algo, tmp_path, monkeypatch):
    quiet(algo, num_iterations=1, folder=tmp_path)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_files, "replace_file", full)
    how = re.escape(f"Algorithm.from_checkpoint({str(tmp_path)!r}).fit(")
    with pytest.raises(CheckpointError, match=how):
        quiet(algo, num_iterations=1, folder=tmp_path)
    assert names(tmp_path) == ["000001", "best", "latest"]


def test_a_disk_that_is_full_for_a_while_loses_nothing(algo, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "sync_file", full)
        with pytest.raises(CheckpointError, match="No space left"):
            quiet(algo, num_iterations=3, folder=tmp_path, checkpoint_every=2)
    assert (algo.iteration, names(tmp_path)) == (2, [])
    quiet(algo, num_iterations=1, folder=tmp_path, checkpoint_every=2)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    with match().build_algo() as other:
        quiet(other, num_iterations=3)
        assert not differences(plain(other.rl_module.get_state()), plain(algo.rl_module.get_state()))


def test_a_new_folder_that_cannot_be_written_is_no_run_to_go_on_with(algo, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="writable"):
        quiet(algo, num_iterations=1, folder=tmp_path / "file")


def test_long_iterations_are_saved_in_between(algo, tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "CHECKPOINT_AGE_S", 0.0)
    monkeypatch.setattr(saver, "_SAVING_SHARE", 1e9)
    seen = []
    looked = lambda **kwargs: seen.append(names(tmp_path))
    quiet(algo, num_iterations=4, folder=tmp_path, checkpoint_every=100, callbacks=looked)
    assert seen == [[], ["000001", "latest"], ["000002", "latest"], ["000003", "latest"]]
    assert names(tmp_path) == ["000004", "best", "latest"]


# What else is kept ----------------------------------------------------------------------------------------------------


def test_baselines_an_evaluation_trackers_and_videos_are_made_when_they_are_asked_for(algo, tmp_path, capsys):
    more = {"eval_episodes": 2, "baseline_seconds": 5, "video": "gif", "video_every": 2, "track": ["tensorboard"]}
    algo.fit(steps=3 * STEPS, folder=tmp_path / "run", **more)
    found = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "metrics.jsonl", "curves.png", "checkpoints"}
    assert found == files | {"baselines.json", "final.json", "tensorboard", "untrained.gif", "video.gif", "videos"}
    assert [path.name for path in (tmp_path / "run/videos").iterdir()] == ["000002.gif"]
    measured = json.loads((tmp_path / "run/baselines.json").read_text())
    assert [measured[name]["num_episodes"] for name in ("random_play", "at_start")] == [2, 2]
    said = capsys.readouterr().out
    for words in ("Measuring random play: 2 episodes", "at start", "random play", "most likely actions"):
        assert words in said
    assert f"curves       {tmp_path / 'run/curves.png'}" in said


def test_only_settings_results_checkpoints_and_curves_are_kept_by_default_and_quietly(algo, tmp_path, capsys):
    quiet(algo, num_iterations=1, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("checkpoints", "config.json", "curves.png", "metrics.jsonl")
    ]
    assert capsys.readouterr() == ("", "")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["algorithm"]["lr"] == algo.config.lr and config["algorithm"]["steps"] is None


def test_a_run_with_all_of_its_steps_only_gets_what_is_missing(algo, tmp_path):
    quiet(algo, steps=2 * STEPS, folder=tmp_path)
    again = quiet(algo, steps=2 * STEPS, folder=tmp_path, eval_episodes=2)
    assert (len(again), again.stopped_by, algo.iteration) == (0, "steps", 2)
    final = (tmp_path / "final.json").read_bytes()
    quiet(algo, steps=2 * STEPS, folder=tmp_path, eval_episodes=3)
    assert (tmp_path / "final.json").read_bytes() == final
    quiet(algo, steps=3 * STEPS, folder=tmp_path, eval_episodes=0)
    assert algo.iteration == 3 and not (tmp_path / "final.json").exists()


def test_a_run_that_has_more_steps_already_writes_nothing_to_a_new_folder(algo, tmp_path):
    quiet(algo, num_iterations=2)
    assert len(quiet(algo, steps=STEPS, folder=tmp_path / "new", eval_episodes=2)) == 0
    assert not (tmp_path / "new").exists()


def test_a_first_iteration_that_fails_leaves_no_folder(algo, tmp_path):
    def fail(**kwargs):
        raise EnvError("the simulator is gone.")

    with pytest.raises(EnvError):
        quiet(algo, num_iterations=1, folder=tmp_path / "a/b", callbacks=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_best_checkpoint_by_a_metric_that_no_result_has_is_an_error_after_the_first_iteration(algo, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)Algorithm.fit.*keep_best.*'env_runners/retrun'"):
        quiet(algo, num_iterations=3, folder=tmp_path / "run", keep_best="env_runners/retrun")
    assert algo.iteration == 1 and not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name == "nt", reason="locks on folders")
def test_only_one_process_writes_to_a_folder(algo, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "_CLAIM_S", 0.0)
    with run_folder.Claim(tmp_path), pytest.raises(ConfigError, match="command"):
        quiet(algo, num_iterations=1, folder=tmp_path)
    assert algo.iteration == 0
    quiet(algo, num_iterations=1, folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eval_episodes": -1}, "eval_episodes"),
        ({"baseline_seconds": "long"}, "baseline_seconds"),
        ({"video": "avi"}, r"\bvideo\b"),
        ({"video_every": 5}, "video_every=5"),
        ({"track": ["tensorbord"]}, r"\btrack\b"),
    ],
)
def test_wrong_arguments_for_the_folder_are_named_before_training(algo, tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        quiet(algo, num_iterations=1, folder=tmp_path / "run", **given)
    assert algo.iteration == 0 and not (tmp_path / "run").exists()


# Settings of the run --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_arguments_do_the_same_as_settings_of_the_config(tmp_path):
    kept = {"steps": 2 * STEPS, "checkpoint_every": 1, "keep_checkpoints": 1, "keep_best": None, "eval_episodes": 1}
    kept |= {"video": "gif", "video_every": 1, "track": ["tensorboard"], "baseline_seconds": 5.0}
    found = []
    for name, of_config, given in (("config", kept, {}), ("call", {}, kept)):
        with match().run(**of_config).build_algo() as algo:
            rows = quiet(algo, folder=tmp_path / name, **given)
            files = sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("0*"))
            assert json.loads((tmp_path / name / "config.json").read_text())["algorithm"]["steps"] == 2 * STEPS
            found.append((outcome(algo, rows), files, {name: getattr(algo.config, name) for name in kept}))
    assert found[0][1:] == found[1][1:] and not differences(found[0][0], found[1][0])
    assert found[0][2] == kept and {"checkpoints/000002", "videos/000001.gif"} <= set(found[0][1])
    assert "checkpoints/000001" not in found[0][1]


def test_a_restored_run_goes_on_with_its_settings_as_if_it_had_never_stopped(tmp_path):
    found = []
    for name, stop in (("whole", None), ("parts", {"training_iteration": 2})):
        algo = match().build_algo()
        rows = quiet(algo, steps=3e0 * STEPS, folder=tmp_path / name, checkpoint_every=2, keep_best=None, stop=stop)
        if stop is not None:
            algo.stop()
            algo = Algorithm.from_checkpoint(tmp_path / name)
            rows = [*rows, *quiet(algo, folder=tmp_path / name)]
            assert quiet(algo, folder=tmp_path / name).stopped_by == "steps" and algo.config.checkpoint_every == 2
        found.append(outcome(algo, rows))
        algo.stop()
    assert len(found[0]["results"]) == 3 and not differences(*found)
    assert names(tmp_path / "whole") == names(tmp_path / "parts") == ["000002", "000003", "latest"]


def test_the_steps_of_the_config_end_a_call_that_names_no_further_steps():
    with match().run(steps=2 * STEPS).build_algo() as algo:
        never = {"training_iteration": 9}
        assert (len(results := quiet(algo, stop=never)), results.stopped_by) == (2, "steps")
        assert len(quiet(algo)) == 0 and algo.iteration == 2
        assert (len(results := quiet(algo, num_iterations=1)), results.stopped_by) == (1, "num_iterations")
        assert len(quiet(algo, steps=4 * STEPS)) == 1 and algo.config.steps == 4 * STEPS
        assert len(quiet(algo, steps=None, stop={"training_iteration": 6})) == 2 and algo.config.steps is None
        with pytest.raises(ConfigError, match=r"(?s)Algorithm.fit.*steps="):
            quiet(algo)


def test_a_setting_that_is_refused_changes_nothing(algo):
    with pytest.raises(ConfigError, match=r"(?s)^Algorithm.fit.*video_every.*-1"):
        quiet(algo, num_iterations=1, checkpoint_every=3, video_every=-1)
    with pytest.raises(ConfigError, match=r"(?s)^Algorithm.fit.*video_every=5"):
        quiet(algo, num_iterations=1, checkpoint_every=3, video_every=5)
    with pytest.raises(ConfigError, match="num_iterations"):
        quiet(algo, num_iterations=1, checkpoint_every=3, steps=10)
    assert (algo.config.checkpoint_every, algo.config.video_every, algo.config.steps) == (20, 0, None)
    with pytest.raises(ConfigError, match=r"(?s)^PPOConfig.*video_every=5"):
        match().run(video_every=5).build_algo()


def test_a_config_for_a_restored_run_may_have_other_settings_of_the_run(algo, tmp_path):
    quiet(algo, steps=STEPS, folder=tmp_path, eval_episodes=1, track=["tensorboard"])
    other = match().run(steps=2 * STEPS, keep_checkpoints=1)
    with Algorithm.from_checkpoint(tmp_path, config=other) as restored:
        assert (restored.config.eval_episodes, len(quiet(restored, folder=tmp_path))) == (0, 1)
        restored.restore_from_path(tmp_path)
    assert names(tmp_path) == ["000001", "000002", "best", "latest"] or names(tmp_path) == ["000002", "best", "latest"]


# Callbacks ------------------------------------------------------------------------------------------------------------


class Notes(Callbacks):
    closed = 0

    def __init__(self):
        self.seen = []

    def on_train_result(self, *, result, **kwargs):
        self.seen.append(result["training_iteration"])

    def close(self):
        type(self).closed += 1


def test_callbacks_are_called_after_those_of_the_config_and_only_in_this_call():
    order, notes = [], Notes()

    def own(*, result, **kwargs):
        order.append("config")

    with match().callbacks(on_train_result=own).build_algo() as algo:
        given = [notes, Notes, functools.partial(Notes), lambda **kwargs: order.append("call")]
        quiet(algo, num_iterations=2, callbacks=given)
        quiet(algo, num_iterations=1)
    assert notes.seen == [1, 2]
    assert order == ["config", "call", "config", "call", "config"]
    assert Notes.closed == 3


def test_a_callback_that_would_never_be_called_is_refused(algo):
    class Watches(Callbacks):
        def on_episode_step(self, **kwargs): ...

    with pytest.raises(ConfigError, match=r"(?s)Watches.on_episode_step.*config.callbacks"):
        quiet(algo, num_iterations=1, callbacks=Watches)


def test_every_tracker_can_be_given(algo, tmp_path):
    pytest.importorskip("tensorboard")
    tracker = TensorBoardTracker(folder=tmp_path)
    assert isinstance(tracker, Tracker)
    quiet(algo, num_iterations=2, callbacks=tracker)
    assert [path.name.partition(".")[0] for path in tmp_path.iterdir()] == ["events"]
    assert tracker.run_id == algo.metrics.peek("tracked_run")


# Progress -------------------------------------------------------------------------------------------------------------


def test_progress_is_one_line_or_more_unless_it_is_off(algo, capsys):
    algo.fit(num_iterations=2)
    assert "100%  80 agent steps" in capsys.readouterr().out
    quiet(algo, num_iterations=2)
    assert capsys.readouterr() == ("", "")


def test_the_display_is_that_of_the_goal(algo, monkeypatch):
    goals = []

    def opened(run):
        goals.append((run.goal.total, run.goal.count, run.goal.origin, run.done))
        return fit_module.Progress()

    monkeypatch.setattr(fit_module, "open_progress", opened)
    algo.fit(num_iterations=2)
    algo.fit(stop={"num_env_steps_sampled_lifetime": 60})
    algo.fit(stop=lambda result: True)
    assert goals == [
        (2, "training_iteration", 0, 0),
        (60, "num_env_steps_sampled_lifetime", 40, 80),
        (None, "num_agent_steps_sampled_lifetime", 0, 120),
    ]


def test_paths_may_be_texts(algo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert quiet(algo, num_iterations=1, folder="runs/one").checkpoint == Path("runs/one/checkpoints/000001")


# Several processes ----------------------------------------------------------------------------------------------------


def test_remote_env_runners_lead_to_the_same_results_and_are_in_the_lines(algo, tmp_path, monkeypatch, capsys):
    quiet(algo, num_iterations=2)
    alone = plain(algo.rl_module.get_state())
    use_fake_ray(monkeypatch)
    config = match().env_runners(num_env_runners=2, num_envs_per_env_runner=1)
    with config.build_algo() as remote:
        results = remote.fit(num_iterations=2, folder=tmp_path)
        assert not differences(plain(remote.rl_module.get_state()), alone)
    assert results[-1]["fault_tolerance"]["num_healthy_workers"] == 2
    assert "env runners: " in capsys.readouterr().out
    with Algorithm.from_checkpoint(tmp_path, config=match()) as restored:
        assert not differences(plain(restored.rl_module.get_state()), alone)
