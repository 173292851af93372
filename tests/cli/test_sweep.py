"""``marl-connectors sweep``, with a fake Algorithm whose returns depend on the searched settings."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from helpers.fake_algorithm import FakeAlgorithm
from marl_connectors import PPOConfig
from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.cli import run_processes
from marl_connectors.cli.sweep import searched_tree
from marl_connectors.validators import settings_of

SWEEP = Path("s")
START = ["sweep", "fake_env", "--steps", "2000", "--set", "train_batch_size_per_learner=100", "--no-video"]
START += ["--out", "s", "--search"]


@pytest.fixture
def behaviour(command, monkeypatch):
    """Arguments of FakeAlgorithm. A run's return is 100 times its ``lr``, plus the number of its iterations."""
    pytest.importorskip("optuna")
    if sys.platform == "win32":
        pytest.skip("processes are forked, so that they have the fake Algorithm")
    behaviour = {}
    lr = 0.0

    def build(config, tree):
        nonlocal lr
        lr = config.lr
        algo = FakeAlgorithm(config.env, **behaviour)
        vars(algo.config).update({name: getattr(config, name) for name in settings_of(RunSettings)})
        return made(algo)

    def made(algo):
        results = algo.results
        algo.results = lambda mean: results(mean + 100 * lr)
        return algo

    command.build = build
    monkeypatch.setattr(run_processes, "START_METHOD", "fork")
    monkeypatch.setattr(run_processes, "POLL_S", 0.05)
    return behaviour


def data():
    return json.loads((SWEEP / "sweep.json").read_text())


pytestmark = pytest.mark.filterwarnings("default")  # Optuna's storage and forked processes have some


@pytest.mark.slow
def test_every_trial_is_a_run_and_the_best_is_first(command, behaviour):
    assert command(*START, "lr=0.1..0.9", "--trials", "3", "--steps", "400") == 0
    results = data()["results"]
    assert [(result["folder"], result["state"], result["agent_steps"]) for result in results] == [
        ("trial0000", "complete", 400),
        ("trial0001", "complete", 400),
        ("trial0002", "complete", 400),
    ]
    for result in results:
        run = SWEEP / result["folder"]
        config = json.loads((run / "config.json").read_text())["settings"]
        assert config["training"]["lr"] == result["params"]["lr"] and (run / "final.json").exists()
        assert result["value"] == pytest.approx(4 + 100 * result["params"]["lr"])
    best = max(results, key=lambda result: result["value"])["folder"]
    table = command.out[command.out.index("Highest env_runners/episode_return_mean first:") :]
    assert table.splitlines()[2].split()[:2] == [best, "complete"]
    assert f"marl-connectors train --config s/{best}/config.json --seeds 1-3" in command.out
    assert (SWEEP / "sweep.png").read_bytes().startswith(b"\x89PNG") and (SWEEP / "study.db").exists()


@pytest.mark.slow
def test_trials_of_one_iteration_are_warned_of(command, behaviour):
    one = ["lr=0.1,0.5", "--trials", "2", "--set", "train_batch_size_per_learner=100"]
    assert command(*START, *one, "--steps", "100", "--metric", "env_runners/num_episodes") == 0
    assert command.err.count("\n") == 1
    assert (
        "warning: sweep: a trial of --steps 100 has one iteration, because a train batch has 100 steps." in command.err
    )
    assert command(*START[:-3], "--out", "t", "--search", *one, "--steps", "101") == 0
    assert command.err == ""


@pytest.mark.slow
def test_a_searched_batch_size_and_another_metric_decide_about_the_warning(command, behaviour):
    sizes = ["train_batch_size_per_learner=100,200,300", "--trials", "1", "--steps", "200", "--set", "lr=0.1"]
    assert command(*START, *sizes) == 0
    assert [f"has {size} steps" in command.err for size in (100, 200, 300)] == [False, True, True]
    evaluated = [*sizes, "--set", "evaluation_interval=1", "--metric", "evaluation/env_runners/episode_return_mean"]
    assert command(*START[:-3], "--out", "t", "--search", *evaluated) in (0, 2)
    assert "one iteration" not in command.err


@pytest.mark.slow
def test_a_sweep_continues_with_more_trials_and_several_at_a_time(command, behaviour):
    assert command(*START, "lr=0.1..0.9", "--trials", "1", "--steps", "200") == 0
    assert command("sweep", "--resume", "s", "--trials", "4", "--parallel", "2") == 0
    assert [result["folder"] for result in data()["results"]] == [f"trial000{i}" for i in range(4)]
    assert len({result["params"]["lr"] for result in data()["results"]}) == 4


def test_the_lowest_value_is_the_best_for_min(command, behaviour):
    words = ["lr=0.1,0.5", "--trials", "3", "--steps", "200", "--metric", "min:env_runners/episode_return_mean"]
    assert command(*START, *words) == 0
    values = [result["value"] for result in data()["results"]]
    first = command.out[command.out.index("Lowest env_runners/episode_return_mean first:") :].splitlines()[2].split()
    assert float(first[2]) == pytest.approx(min(values), abs=0.05)


@pytest.mark.slow
def test_an_interrupted_trial_is_resumed(command, behaviour):
    behaviour.update(interrupt_at=2, number=signal.SIGTERM)  # its process stops; the sweep goes on without it
    assert command(*START, "lr=0.1..0.9", "--trials", "1", "--steps", "400") == 2
    [before] = data()["results"]
    assert before["state"] == "interrupted" and before["agent_steps"] == 200
    behaviour.clear()
    assert command("sweep", "--resume", "s") == 0
    [after] = data()["results"]
    assert (after["folder"], after["state"], after["params"]) == ("trial0000", "complete", before["params"])
    rows = (SWEEP / "trial0000" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["training_iteration"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_trial_that_fails_is_named_and_others_are_tried(command, behaviour):
    behaviour.update(fail_at=2)
    assert command(*START, "lr=0.1..0.9", "--trials", "2", "--steps", "400") == 2
    assert [result["state"] for result in data()["results"]] == ["failed", "failed"]
    assert "error: trial0000: fake_env: expected finite rewards" in command.err
    assert "error: trial0001: fake_env: expected finite rewards" in command.err


@pytest.mark.slow
def test_a_misspelt_metric_stops_the_sweep_at_its_first_result_and_can_be_corrected(command, behaviour):
    wrong = ["lr=0.1..0.9", "--trials", "3", "--steps", "2000", "--metric", "min:env_runners/episode_retrun_mean"]
    assert command(*START, *wrong) == 2
    assert command.err.startswith("marl-connectors: error: --metric: no result is called 'env_runners/episode_retrun")
    assert "Did you mean 'env_runners/episode_return_mean'?" in command.err and command.err.count("\n") == 1
    assert not (SWEEP / "trial0001").exists()
    right = ["--metric", "env_runners/episode_return_mean"]
    assert command("sweep", "--resume", "s", *right) == 0
    results = data()["results"]
    assert [result["state"] for result in results] == ["complete"] * 3
    assert [result["folder"] for result in results] == [f"trial000{i}" for i in range(3)]
    assert command("sweep", "--resume", "s", "--metric", "env_runners/episode_len_mean") == 2
    assert "--metric cannot be changed, because trials have values of 'env_runners/episode_return_mean'" in command.err


def test_a_metric_of_evaluations_needs_evaluations(command, behaviour):
    words = [
        "sweep",
        "marl_envs.match_v0",
        "--search",
        "lr=0.1,0.2",
        "--metric",
        "evaluation/env_runners/episode_return_mean",
    ]
    assert command(*words) == 2
    assert "nothing is evaluated during training. Add --set evaluation_interval=5" in command.err
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_sweep_whose_database_is_lost_or_damaged_is_not_begun_anew(command, behaviour):
    assert command(*START, "lr=0.1..0.9", "--trials", "1", "--steps", "200") == 0
    study = (SWEEP / "study.db").read_bytes()
    (SWEEP / "study.db").unlink()
    assert command("sweep", "--resume", "s", "--trials", "2") == 2
    assert "s has no study.db any more" in command.err and command.err.count("\n") == 1
    (SWEEP / "study.db").write_bytes(b"nonsense" * 1000)
    assert command("sweep", "--resume", "s", "--trials", "2") == 2
    assert "study.db cannot be read as the trials of a sweep" in command.err and command.err.count("\n") == 1
    (SWEEP / "study.db").write_bytes(study)
    assert command("sweep", "--resume", "s", "--trials", "2") == 0
    assert len(data()["results"]) == 2


@pytest.mark.slow
def test_the_command_at_the_end_of_a_sweep_has_something_to_do(command, behaviour):
    assert command(*START, "lr=0.1..0.9", "--trials", "3", "--steps", "200") == 0
    assert command.out.endswith("marl-connectors sweep --resume s --trials 6\n")
    assert command("sweep", "--resume", "s", "--trials", "1") == 0
    assert "All 3 trials of this sweep are done." in command.out
    assert command.out.endswith("marl-connectors sweep --resume s --trials 6\n")


@pytest.mark.slow
def test_a_trial_whose_run_had_ended_when_the_sweep_was_stopped_is_not_trained_again(command, behaviour):
    import optuna

    assert command(*START, "lr=0.1..0.9", "--trials", "1", "--steps", "200") == 0
    rows = (SWEEP / "trial0000" / "metrics.jsonl").read_text()
    study = optuna.load_study(study_name="sweep", storage="sqlite:///s/study.db")
    [trial] = study.get_trials()
    optuna.delete_study(study_name="sweep", storage="sqlite:///s/study.db")
    study = optuna.create_study(study_name="sweep", storage="sqlite:///s/study.db", direction="maximize")
    study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
    assert command("sweep", "--resume", "s") == 0
    [result] = data()["results"]
    assert (result["state"], result["value"]) == ("complete", trial.value)
    assert (SWEEP / "trial0000" / "metrics.jsonl").read_text() == rows


@pytest.mark.slow
def test_lists_are_shown_as_they_are_written(command, behaviour):
    assert command(*START, "hidden=[8,8],[4]", "--trials", "2", "--steps", "200") == 0
    table = command.out[command.out.index("first:") :]
    assert "'" not in table and ("[8, 8]" in table or "[4]" in table)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "fake_env"], "sweep: expected settings to search. Add --search"),
        (["sweep", "--search", "lr=1..2"], "sweep: expected an environment, --config FILE or --resume SWEEP."),
        (["sweep", "fake_env", "--search", "lr=2"], "lr: expected a range or several choices"),
        (["sweep", "fake_env", "--search", "learning=1..2"], "unknown setting 'learning'"),
        (["sweep", "fake_env", "--search", "gamma=0.5..1.5"], "gamma"),
        (["sweep", "fake_env", "--search", "out=a,b"], "--search: 'out' is no setting of a trial. Leave it out."),
        (["sweep", "fake_env", "--search", "run.seeds=0-1,0-2"], "--search: 'run.seeds' is no setting of a trial."),
        (["sweep", "--resume", "nowhere"], "expected the folder of a sweep, but nowhere has no sweep.json"),
        (["sweep", "--resume", "s", "--seed", "1"], "--seed cannot be changed"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(command, behaviour, words, message):
    assert command(*words) == 2
    assert message in command.err and command.err.count("\n") == 1
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_a_file_has_a_search_space_that_train_leaves_alone(command, behaviour):
    Path("c.yaml").write_text("env: fake_env\nsteps: 200\nsearch: {lr: [0.1, 0.2]}\n")
    assert command("sweep", "--config", "c.yaml", "--trials", "1", "--out", "s") == 0
    assert data()["search"] == {"lr": [0.1, 0.2]}
    assert command("train", "--config", "c.yaml", "--out", "run") == 0


def test_searched_values_are_of_options_modules_environments_or_of_the_config():
    values = {"hidden": [8], "model.use_lstm": True, "env_config.N": 3, "training.lr": 0.1}
    model = {"rl_module.model_config.fcnet_hiddens": [8], "rl_module.model_config.use_lstm": True}
    assert searched_tree(values, PPOConfig()) == {**model, "environment.env_config.N": 3, "training.lr": 0.1}


@pytest.mark.slow
def test_a_file_may_have_videos_during_training_and_no_seed(command, behaviour):
    Path("run.yaml").write_text("env: fake_env\nsteps: 300\nvideo: gif\nvideo_every: 2\nseed: null\n")
    few = ["--set", "train_batch_size_per_learner=100", "--trials", "1", "--out", "s"]
    assert command("sweep", "--config", "run.yaml", *few, "--search", "lr=0.1..0.9") == 0
    assert data()["settings"]["run"]["video"] == "none" and "video_every" not in data()["settings"]["run"]
    assert [trial["state"] for trial in data()["results"]] == ["complete"]
