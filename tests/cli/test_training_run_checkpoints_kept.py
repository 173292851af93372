"""The best checkpoint, and the removal of old ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RUN = Path("run")


def train(command, monkeypatch, returns, *words, in_evaluations=False, success=None):
    """Trains with a checkpoint in each iteration, which has the next one of these returns."""
    original = command.fake.train

    def with_returns(self):
        result = original(self)
        value = returns[self.iteration - 1]
        own = {} if value is None else {"episode_return_mean": value}
        if success is not None:
            own["success"] = success[self.iteration - 1]
        where = result.setdefault("evaluation", {"env_runners": {}}) if in_evaluations else result
        where["env_runners"].update(own)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(command.fake, "train", with_returns)
        steps = ["--steps", str(100 * len(returns)), "--checkpoint-every", "1", "--no-video"]
        begin = ["--resume", "run"] if RUN.exists() else ["fake_env", "--out", "run"]
        command.algo = command.fake()
        assert command("train", *begin, *steps, *words) == 0


def kept():
    return sorted(path.name for path in (RUN / "checkpoints").iterdir() if path.is_dir())


def best():
    return (RUN / "checkpoints" / "best").read_text()


def test_the_best_checkpoint_has_the_highest_return(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 3.0, 2.0])
    assert best() == "000002\n"
    assert "the latest is 000004, the best is 000002 (env_runners/episode_return_mean 5.00)" in command.out
    assert kept() == ["000001", "000002", "000003", "000004"]


def test_the_newest_of_equal_checkpoints_is_the_best(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 5.0, 2.0])
    assert best() == "000003\n"


def test_old_checkpoints_are_removed_except_for_the_best(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 3.0, 2.0, 4.0], "--keep-checkpoints", "2")
    assert kept() == ["000002", "000004", "000005"]


def test_a_former_best_checkpoint_is_removed_when_it_is_old(command, monkeypatch):
    train(command, monkeypatch, [5.0, 1.0, 2.0, 7.0, 6.0], "--keep-checkpoints", "1")
    assert kept() == ["000004", "000005"]


def test_the_lowest_value_of_a_metric_can_be_the_best(command, monkeypatch):
    train(command, monkeypatch, [3.0, 1.0, 2.0], "--keep-best", "min:env_runners/episode_return_mean")
    assert best() == "000002\n"
    assert "the best is 000002 (min:env_runners/episode_return_mean 1.00)" in command.out


@pytest.mark.slow
def test_no_checkpoint_is_the_best_if_that_is_not_wanted(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 3.0], "--keep-best", "none", "--keep-checkpoints", "1")
    assert not (RUN / "checkpoints" / "best").exists() and kept() == ["000003"]
    assert "the best" not in command.out


def test_evaluations_count_and_not_the_returns_of_training(command, monkeypatch):
    """Training's own returns rise in each iteration. The newest evaluation counts until the next one."""
    train(command, monkeypatch, [None, 4.0, None, 1.0, None], in_evaluations=True)
    assert best() == "000002\n"


def test_success_counts_and_then_the_return(command, monkeypatch):
    train(command, monkeypatch, [7.0, 5.0, 3.0, 4.0, 2.0], success=[0.0, 0.25, 0.5, 0.5, 0.5])
    assert best() == "000004\n"
    assert "(env_runners/success 0.5)" in command.out


def test_a_success_that_is_always_the_same_leaves_the_choice_to_the_return(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 3.0], success=[0.0, 0.0, 0.0])
    assert best() == "000002\n"
    assert "(env_runners/episode_return_mean 5.0" in command.out


def test_ties_of_a_named_metric_are_decided_by_the_return_and_then_by_the_newest(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 5.0, 3.0], "--keep-best", "min:env_runners/episode_len_mean")
    assert best() == "000003\n"


@pytest.mark.slow
def test_a_resumed_run_knows_the_best_checkpoint(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 3.0])
    train(command, monkeypatch, [1.0, 5.0, 3.0, 4.0])
    assert best() == "000002\n" and kept()[-1] == "000004"
    train(command, monkeypatch, [1.0, 5.0, 3.0, 4.0, 6.0])
    assert best() == "000005\n"


@pytest.mark.slow
def test_the_best_checkpoint_can_be_evaluated(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0, 3.0])
    assert command("evaluate", "run/checkpoints/best", "--episodes", "2") == 0
    assert "run/checkpoints/000002: 2 episodes" in command.out and command.algo.iteration == 2


def test_a_metric_of_the_users_own_code_may_come_later_and_is_named_once(command, monkeypatch, caplog):
    monkeypatch.setattr("marl_connectors.algorithms.fitting.metric_names.has_own_code", lambda *_: True)
    train(command, monkeypatch, [1.0, 5.0, 3.0], "--keep-best", "env_runners/episode_return_men")
    [warning] = caplog.messages
    assert warning.startswith("--keep-best: no result is called 'env_runners/episode_return_men' so far")
    assert "env_runners/episode_return_mean" in warning


def test_a_wrong_metric_is_refused_before_a_resumed_run_trains(command, monkeypatch):
    train(command, monkeypatch, [1.0, 5.0])
    files = [RUN / "metrics.jsonl", RUN / "config.json"]
    before = [file.read_bytes() for file in files]
    assert command("train", "--resume", "run", "--steps", "400", "--keep-best", "env_runners/retrun") == 2
    assert "--keep-best: no result is called 'env_runners/retrun'." in command.err and command.err.count("\n") == 1
    assert [file.read_bytes() for file in files] == before


@pytest.mark.few(1)
@pytest.mark.parametrize(("track", "has_events"), [("none", False), ("tensorboard", True)])
def test_without_trackers_there_are_no_events(command, track, has_events):
    assert command("train", "fake_env", "--steps", "200", "--out", "run", "--no-video", "--track", track) == 0
    assert (RUN / "tensorboard").exists() == has_events == ("tensorboard" in command.out)


def test_a_resumed_run_continues_the_tracked_run(command, monkeypatch):
    from marl_connectors.callbacks import TRACKERS, Tracker

    opened = []

    class Recorder(Tracker):
        package = "json"

        def _open(self, config, name):
            opened.append((self.run_id, name, self._first_step))

        def _write(self, values, step):
            pass

        def _close(self):
            opened.append("closed")

    monkeypatch.setitem(TRACKERS, "trackio", Recorder)
    words = ["--track", "trackio", "--no-video", "--steps"]
    assert command("train", "fake_env", "--out", "run", *words, "200") == 0
    assert command("train", "--resume", "run", *words, "300") == 0
    run_id = json.loads((RUN / "config.json").read_text())["tracked_run"]
    assert opened == [(run_id, "run", 0), "closed", (run_id, "run", 201), "closed"]
