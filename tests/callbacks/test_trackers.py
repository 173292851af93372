"""Trackers. Those of other packages are tried where these packages are installed, without a network."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sqlite3
import sys
from types import SimpleNamespace

import pytest

from marl_connectors import Algorithm, PPOConfig
from marl_connectors.callbacks import TRACKERS, Callbacks, MLflowTracker, TensorBoardTracker, Tracker, WandbTracker
from marl_connectors.callbacks.trackers import MAX_AGENT_SERIES
from marl_connectors.seeding import global_generators_kept

RETURN = "env_runners/episode_return_mean"


class ListTracker(Tracker):
    """Keeps what it is to write, and fails in the call whose name is ``fails``."""

    calls: list = []
    fails = ""

    def _do(self, what, *arguments):
        if what == self.fails:
            raise OSError(28, "No space left on device")
        self.calls.append((what, *arguments))

    def _open(self, config, name):
        self._do("open", config, name)

    def _write(self, values, step):
        self._do("write", dict(values), step)

    def _close(self):
        self._do("close")


@pytest.fixture(autouse=True)
def empty(monkeypatch, tmp_path):
    monkeypatch.setattr(ListTracker, "calls", [])
    monkeypatch.chdir(tmp_path)


class Config(SimpleNamespace):
    def to_dict(self):
        return {"env": self.env, "lr": 0.1}


ALGORITHM = SimpleNamespace(config=Config(env="my_env"))


def result(steps, **env_runners):
    return {"num_agent_steps_sampled_lifetime": steps, "env_runners": env_runners, "learners": {"red": {"loss": 1.5}}}


def names(call):
    return sorted(call[1])


def test_numbers_are_written_under_their_paths_at_the_agent_steps():
    tracker = ListTracker(run_id="a1")
    tracker.log(ALGORITHM, result(100, episode_return_mean=2.0, episode_len_mean=math.nan, note="text", rows=[1, 2]))
    tracker.close()
    values = {"num_agent_steps_sampled_lifetime": 100, RETURN: 2.0, "learners/red/loss": 1.5}
    assert ListTracker.calls == [
        ("open", {"env": "my_env", "lr": 0.1}, "my_env-a1"),
        ("write", values, 100),
        ("close",),
    ]


def test_nothing_is_opened_before_the_first_result():
    ListTracker().close()
    assert ListTracker.calls == []


def test_the_first_agents_have_series_if_agents_come_and_go_for_ever():
    tracker = ListTracker()
    for i in range(MAX_AGENT_SERIES + 5):
        tracker.log(ALGORITHM, result(i, agent_steps={f"agent_{i}": 1.0, "agent_0": 2.0}))
    written = {name for call in ListTracker.calls[1:] for name in call[1] if "agent_steps/" in name}
    assert written == {f"env_runners/agent_steps/agent_{i}" for i in range(MAX_AGENT_SERIES)}


def test_agents_of_evaluations_have_series_where_those_of_training_have_them():
    steps = {f"agent_{i}": 1.0 for i in range(MAX_AGENT_SERIES + 5)}
    row = {**result(1, agent_steps=steps), "evaluation": {"env_runners": {"agent_steps": steps}}}
    ListTracker().log(ALGORITHM, row)
    for part in ("env_runners", "evaluation/env_runners"):
        written = [name for name in names(ListTracker.calls[1]) if name.startswith(f"{part}/agent_steps/")]
        assert written == sorted(f"{part}/agent_steps/agent_{i}" for i in range(MAX_AGENT_SERIES))


def test_only_named_agents_have_series():
    ListTracker(agents=["a"]).log(ALGORITHM, result(1, agent_steps={"a": 1.0, "b": 2.0}))
    assert names(ListTracker.calls[1])[:1] == ["env_runners/agent_steps/a"] and len(ListTracker.calls[1][1]) == 3


@pytest.mark.parametrize(("fails", "text"), [("open", "start"), ("write", "write results"), ("close", "end the run")])
def test_a_tracker_that_fails_warns_once_and_is_left_out(caplog, fails, text):
    tracker = ListTracker()
    tracker.fails = fails
    for i in range(3):
        tracker.log(ALGORITHM, result(i))
    tracker.close()
    [warning] = caplog.messages
    assert warning == (
        f"ListTracker could not {text} (OSError: [Errno 28] No space left on device). Training continues, and this "
        f"run is not tracked there any further."
    )
    assert len(ListTracker.calls) == {"open": 0, "write": 2, "close": 4}[fails]


def test_a_missing_package_is_named_with_the_command_that_installs_it(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    WandbTracker().log(ALGORITHM, result(1))
    [warning] = caplog.messages
    assert "Training continues" in warning and warning.endswith("Install it with: pip install wandb")


# With an algorithm ---------------------------------------------------------------------------------------------------


def tiny(*callbacks):
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).debugging(seed=0)
    config.training(train_batch_size_per_learner=50, minibatch_size=50, num_epochs=1)
    return config.callbacks(list(callbacks)).rl_module(model_config={"fcnet_hiddens": [4]})


class AddsToResults(Callbacks):
    def on_train_result(self, *, metrics_logger, result, **kwargs):
        result["added"] = 3
        metrics_logger.log_value("logged", 5.0, reduce="max")


def test_values_that_other_callbacks_add_or_log_are_written():
    algo = tiny(AddsToResults, ListTracker).build_algo()
    algo.train()
    algo.train()
    algo.stop()
    assert [call[0] for call in ListTracker.calls] == ["open", "write", "write", "close"]
    for _, values, step in ListTracker.calls[1:3]:
        assert (values["added"], values["logged"]) == (3, 5.0)
        assert step == values["num_agent_steps_sampled_lifetime"]


def test_a_restored_algorithm_continues_the_tracked_run(tmp_path):
    algo = tiny(ListTracker).build_algo()
    first = algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    restored = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    second = restored.train()
    restored.stop()
    assert first["tracked_run"] == second["tracked_run"]
    opened = [call for call in ListTracker.calls if call[0] == "open"]
    assert [name for _, _, name in opened] == [f"CartPole-v1-{first['tracked_run']}"] * 2


def test_an_evaluation_of_a_checkpoint_is_not_tracked(tmp_path):
    algo = tiny(ListTracker).build_algo()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    restored = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    restored.evaluate(num_episodes=1)
    restored.stop()
    assert ListTracker.calls == []


def test_tensorboard_has_each_step_once_after_training_continues_from_a_checkpoint(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    algo = tiny(functools.partial(TensorBoardTracker, folder="events")).build_algo()
    steps = [algo.train()["num_agent_steps_sampled_lifetime"]]
    algo.save_to_path(tmp_path / "checkpoint")
    algo.train()  # after the checkpoint
    algo.restore_from_path(str(tmp_path / "checkpoint"))
    steps += [algo.train()["num_agent_steps_sampled_lifetime"] for _ in range(2)]
    algo.stop()
    events = accumulator.EventAccumulator("events")
    events.Reload()
    points = events.Scalars("num_agent_steps_sampled_lifetime")
    assert [point.step for point in points] == [point.value for point in points] == steps
    [config] = events.Tensors("config/text_summary")
    assert b'"fcnet_hiddens"' in config.tensor_proto.string_val[0]


def test_tensorboard_drops_later_events_if_a_tracker_is_given_to_fit_after_a_restore(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = functools.partial(TensorBoardTracker, folder="events")

    def fit(algo, num_iterations):
        algo.fit(num_iterations=num_iterations, callbacks=tracker, progress=False)
        return algo.num_agent_steps

    def steps():
        events = accumulator.EventAccumulator("events")
        events.Reload()
        assert len(events.Tensors("config/text_summary")) == 1
        return [point.step for point in events.Scalars("num_agent_steps_sampled_lifetime")]

    algo = tiny().build_algo()
    assert [fit(algo, 1), fit(algo, 1)] == [50, 100]
    algo.save_to_path(tmp_path / "checkpoint")
    assert fit(algo, 2) == 200 and steps() == [50, 100, 150, 200]
    algo.restore_from_path(tmp_path / "checkpoint")
    assert fit(algo, 1) == 150 and steps() == [50, 100, 150]
    algo.stop()
    longer = tiny().training(train_batch_size_per_learner=120)
    restored = Algorithm.from_checkpoint(tmp_path / "checkpoint", config=longer)
    assert fit(restored, 1) == 220 and steps() == [50, 100, 220]
    restored.stop()


def test_tensorboard_has_the_config_of_a_restored_run_in_a_new_folder(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    algo = tiny().build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.fit(num_iterations=1, callbacks=functools.partial(TensorBoardTracker, folder="other"), progress=False)
    algo.stop()
    restored = Algorithm.from_checkpoint(
        tmp_path / "checkpoint", config=tiny(functools.partial(TensorBoardTracker, folder="mine"))
    )
    restored.train()
    restored.stop()
    for folder in ("other", "mine"):
        events = accumulator.EventAccumulator(folder)
        events.Reload()
        assert len(events.Tensors("config/text_summary")) == 1


# With the packages ---------------------------------------------------------------------------------------------------


def own_messages(caplog):
    """What this library has logged; packages may log that something took long."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("marl_connectors")]


def write_and_continue(cls, **arguments):
    """Writes two steps, and continues in another object with a third one."""
    for steps in ([100, 200], [300]):
        tracker = cls(run_id="a1", name="my run", **arguments)
        for step in steps:
            tracker.log(ALGORITHM, result(step, episode_return_mean=step / 10, module_steps={"red*": 1.0}))
        tracker.close()


@pytest.mark.filterwarnings("default")
def test_mlflow_has_one_run_with_parameters_and_all_steps(caplog, tmp_path):
    with global_generators_kept():
        mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    write_and_continue(MLflowTracker)
    assert own_messages(caplog) == []
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("marl-connectors").experiment_id])
    assert (run.info.run_name, run.info.status) == ("my run", "FINISHED")
    assert run.data.params == {"env": "my_env", "lr": "0.1"}
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, RETURN)] == [
        *((100, 10.0), (200, 20.0), (300, 30.0))
    ]
    assert run.data.metrics["env_runners/module_steps/red_"] == 1.0


def test_wandb_writes_to_a_folder_when_it_is_offline(caplog, monkeypatch, tmp_path):
    with global_generators_kept():
        pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "300")  # the seconds in which its process has to start, else 30
    write_and_continue(WandbTracker, folder=tmp_path)
    assert own_messages(caplog) == []
    found = list((tmp_path / "wandb").glob("offline-run-*-a1/run-a1.wandb"))
    assert found and b"my run" in found[0].read_bytes() and RETURN.encode() in found[0].read_bytes()


def test_trackio_has_one_run_with_all_steps(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    with global_generators_kept():
        trackio = pytest.importorskip("trackio")
    write_and_continue(TRACKERS["trackio"])
    assert own_messages(caplog) == []
    assert [run.name for run in trackio.Api().runs("marl-connectors")] == ["my run-a1"]
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "marl-connectors.db")) as database:
        rows = database.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(step, json.loads(text)[RETURN]) for step, text in rows] == [(100, 10.0), (200, 20.0), (300, 30.0)]
