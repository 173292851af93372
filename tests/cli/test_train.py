"""``marl-connectors train``, with a fake Algorithm of 100 agent steps an iteration."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from marl_connectors.cli.known_algorithms import ALGORITHMS
from marl_connectors.cli.main import main

RUN = Path("runs/fake_env-shared-seed0")


def rows(run=RUN):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def build(command, monkeypatch):
    """Sets what the fake Algorithm does."""

    def change(**behaviour):
        command.algo = command.fake(**behaviour)

    return change


def test_a_run_leaves_everything_in_one_folder(command):
    assert command("train", "fake_env", "--steps", "250", "--checkpoint-every", "2") == 0
    assert sorted(path.name for path in RUN.iterdir()) == [
        "baselines.json",
        "checkpoints",
        "config.json",
        "curves.png",
        "final.json",
        "metrics.jsonl",
        "tensorboard",
        "untrained.gif",
        "video.gif",
    ]
    assert sorted(path.name for path in (RUN / "checkpoints").iterdir()) == ["000002", "000003", "best", "latest"]
    assert (RUN / "checkpoints" / "latest").read_text() == "000003\n"
    assert (RUN / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((RUN / "tensorboard").iterdir())) == 1
    assert command.algo.stopped


def test_metrics_have_one_strict_json_object_an_iteration(command):
    command("train", "fake_env", "--steps", "300")
    assert [row["training_iteration"] for row in rows()] == [1, 2, 3]
    assert rows()[0]["env_runners"]["episode_return_mean"] is None
    assert rows()[1]["env_runners"]["module_episode_returns"]["red"]["mean"] == 2.0
    assert rows()[2]["learners"]["green"]["entropy"] == 1.5


def test_the_config_says_all_that_defines_the_run(command):
    words = ["--env-config", "N=2", "--env-config", "flag=True", "--set", "lr=1e-4", "--hidden", "32,16", "--seed", "3"]
    command("train", "fake_env", "--steps", "100", "--policies", "independent", "--share-value-layers", *words)
    config = json.loads(Path("runs/fake_env-independent-seed3/config.json").read_text())
    settings, model = config["settings"], config["settings"]["rl_module"]["model_config"]
    assert settings["environment"]["env_config"] == {"N": 2, "flag": True}
    assert settings["training"] == {**ALGORITHMS["ppo"].training, "lr": 1e-4}
    assert (model["fcnet_hiddens"], model["vf_share_layers"]) == ([32, 16], True)
    assert config["algorithm"]["policy_mapping_fn"]["type"] == "not_importable"
    assert set(config["versions"]) == {"marl-connectors", "python", "torch", "numpy", "gymnasium", "pettingzoo"}


def test_tensorboard_events_have_the_returns_over_agent_steps(command):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command("train", "fake_env", "--steps", "300")
    events = EventAccumulator(str(RUN / "tensorboard"))
    events.Reload()
    points = events.Scalars("env_runners/module_episode_returns/red/mean")
    assert [(point.step, point.value) for point in points] == [(200, 2.0), (300, 3.0)]
    assert [tag for tag in events.Tags()["scalars"] if "num_agent_steps" in tag and "lifetime" not in tag] == [
        "env_runners/num_agent_steps_sampled/agent_0"
    ]


def test_the_end_says_where_the_time_went(command):
    command("train", "fake_env", "--steps", "300")
    shares = "environments 25 %, choosing actions 0 %, connectors 25 %, updates 25 %, the rest 25 %"
    assert f"Where the time of training went: {shares}.\n" in command.out


def agents_with_series(name, run=RUN):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    prefix = f"env_runners/{name}/"
    return sorted(tag.removeprefix(prefix) for tag in events.Tags()["scalars"] if tag.startswith(prefix))


@pytest.mark.few(1)
@pytest.mark.parametrize("in_baselines", [2, 300])
def test_agents_with_new_ids_do_not_make_tensorboard_grow(command, build, monkeypatch, in_baselines):
    """Late joiners have an id of their own in each iteration; all returns are in the metrics all the same."""
    results, players = command.fake.results, [f"agent_{i}" for i in range(in_baselines)]

    def with_late_joiners(self, mean):
        late = f"late_{self.iteration}_{mean}"
        by_agent = {late: 0.5, **dict.fromkeys(players, mean)}
        return {**results(self, mean), "agent_episode_returns_mean": by_agent, "agent_steps": by_agent}

    monkeypatch.setattr(command.fake, "results", with_late_joiners)
    build()
    assert command("train", "fake_env", "--steps", "300", "--checkpoint-every", "2") == 0
    assert command("train", "--resume", str(RUN), "--steps", "500") == 0
    for name in ("agent_episode_returns_mean", "agent_steps"):
        assert agents_with_series(name) == sorted(players[:100])
    assert len(rows()) == 5
    for row in rows():
        returns = row["env_runners"]["agent_episode_returns_mean"]
        assert len(returns) == in_baselines + 1 and next(iter(returns)).startswith("late_")


def test_the_end_compares_with_the_start_and_random_play_and_says_what_to_do_next(command):
    command("train", "fake_env", "--steps", "300", "--eval-episodes", "6", "--seed", "4")
    assert command.algo.evaluated_with == [(6, False, 4), (6, False, 4)]
    run = Path("runs/fake_env-shared-seed4")
    assert "red      0 ± 0.5    3.00 ± 0.5   -7.00 ± 0.5" in command.out
    for name in ("config.json", "metrics.jsonl", "curves.png", "checkpoints", "video.gif", "tensorboard"):
        assert str(run / name) in command.out
    assert f"marl-connectors evaluate {run} --episodes 100" in command.out
    assert f"tensorboard --logdir {run}/tensorboard" in command.out
    assert f"marl-connectors train --resume {run} --steps 600" in command.out


@pytest.mark.slow
def test_a_second_run_gets_a_number(command, build):
    for _ in range(3):
        build()
        assert command("train", "fake_env", "--steps", "100", "--no-video") == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [RUN.name, f"{RUN.name}-2", f"{RUN.name}-3"]
    assert not (RUN / "video.gif").exists()


def test_runs_are_named_after_their_policies(command):
    Path("my_map.py").write_text("def by_team(agent_id, episode, **kwargs): return 'x'\n")
    sys.path.insert(0, str(Path.cwd()))
    try:
        command("train", "pkg.fake_v0", "--steps", "100", "--policies", "a*=red,b*=green,c*=red")
        command.algo = command.fake()
        command("train", "pkg.fake_v0", "--steps", "100", "--mapping", "my_map:by_team")
    finally:
        sys.path.remove(str(Path.cwd()))
    assert sorted(p.name for p in Path("runs").iterdir()) == ["fake_v0-by_team-seed0", "fake_v0-red-green-seed0"]


def test_an_environment_without_pictures_is_said_and_is_no_failure(command):
    command.algo.frames = []
    assert command("train", "fake_env", "--steps", "100") == 0
    assert "No video: this environment returns no pictures" in command.out
    assert not (RUN / "video.gif").exists()


def test_an_error_in_the_first_iteration_leaves_no_folder(command, build):
    build(fail_at=1)
    assert command("train", "fake_env") == 2
    assert command.err == (
        "marl-connectors: error: fake_env: expected finite rewards, but agent 'a' got nan. Fix its step().\n"
    )
    assert not Path("runs").exists()


def test_an_error_later_keeps_what_there_is(command, build):
    build(fail_at=3)
    assert command("train", "fake_env", "--checkpoint-every", "1") == 2
    assert (RUN / "checkpoints" / "latest").read_text() == "000002\n"
    assert len(rows()) == 2


def test_baselines_are_bounded_by_time_and_say_of_how_many_episodes_they_are(command, build):
    limits, number = [], {"random_play": 8, "evaluate": 0}

    def bounded(name):
        play = getattr(command.fake, name)

        def found(self, *, max_seconds=None, num_episodes, **kwargs):
            limits.append((name, num_episodes, max_seconds, kwargs.get("explore")))
            results = play(self, num_episodes=num_episodes, **kwargs)
            if max_seconds is None:
                return results
            results["env_runners"]["num_episodes"] = number[name]
            if not number[name]:
                results["env_runners"]["module_episode_returns"] = {}
            return results

        return found

    algo = type("Bounded", (command.fake,), {name: bounded(name) for name in number})()
    command.algo = algo
    assert command("train", "fake_env", "--steps", "200", "--baseline-seconds", "7") == 0
    assert limits == [
        ("random_play", 20, 7.0, None),
        ("evaluate", 20, 7.0, None),
        ("evaluate", 1, 70.0, None),  # none of 20 episodes ended in time, so one is played that may take longer
        ("evaluate", 20, None, False),
    ]
    assert "Measuring random play: 20 episodes, or those that end within 7 s ..." in command.out
    few = "Only 8 of 20 episodes of random play ended in time: the returns are of these.\n"
    none = (
        "Not every sub-environment finished an episode of the untrained policies in time, so the returns are unknown."
    )
    assert command.out.count(few) == command.out.count(none) == 2  # when it was measured, and beside the figures
    assert "red      –          2.00 ± 0.5   -7.00 ± 0.5" in command.out
    assert (RUN / "curves.png").exists()


def test_a_name_that_the_terminal_cannot_show_costs_nothing(command, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["train", "fake_env", "--steps", "100"]) == 0
    stream.flush()
    assert b"0 \\xb1 0.5" in stream.buffer.getvalue()


def test_videos_are_made_every_few_iterations(command):
    words = ["--steps", "500", "--out", "run", "--video-every", "2"]
    assert command("train", "fake_env", *words) == 0
    run = Path("run")
    assert sorted(path.name for path in (run / "videos").iterdir()) == ["000002.gif", "000004.gif"]
    with Image.open(run / "videos" / "000004.gif") as gif:
        assert gif.info["comment"] == b"after 400 steps, episode 1: return red 4.00, green 4.00"
    assert (run / "video.gif").exists()


def test_the_reason_for_missing_videos_is_printed_once_during_training(command):
    command.algo.frames = []
    assert command("train", "fake_env", "--steps", "500", "--out", "run", "--video-every", "1") == 0
    assert command.out.count("No video: this environment returns no pictures") == 2  # and once at the end
    assert not (Path("run") / "videos").exists()


# Interrupting and resuming ------------------------------------------------------------------------------------------


def test_ctrl_c_saves_the_finished_iteration_and_says_how_to_resume(command, build):
    build(interrupt_at=2)
    assert command("train", "fake_env", "--steps", "500") == 130
    assert (RUN / "checkpoints" / "latest").read_text() == "000002\n"
    assert f"Resume with: marl-connectors train --resume {RUN}" in command.out
    assert (RUN / "curves.png").exists()


def test_ctrl_c_in_the_first_iteration_still_saves_it(command, build):
    build(interrupt_at=1)
    assert command("train", "fake_env", "--steps", "500") == 130
    assert (RUN / "checkpoints" / "latest").read_text() == "000001\n"


def test_a_second_ctrl_c_stops_at_once(command, build):
    build(interrupt_at=2, interrupts=2)
    assert command("train", "fake_env", "--steps", "500") == 130
    assert "Stopped at once. The latest checkpoint is of iteration 1. Resume with" in command.out
    assert len(rows()) == 1
    assert command.algo.stopped


def test_ctrl_c_before_training_writes_nothing(command):
    def interrupted(**kwargs):
        raise KeyboardInterrupt

    command.algo.random_play = interrupted
    assert command("train", "fake_env") == 130
    assert not Path("runs").exists()


def test_a_resumed_run_ends_as_one_that_was_never_stopped(command, build):
    command("train", "fake_env", "--steps", "500", "--out", "whole")
    build(interrupt_at=3)
    command("train", "fake_env", "--steps", "500", "--out", "parts")
    assert command("train", "--resume", "parts") == 0
    assert "Continuing from iteration 3 at 300 agent steps." in command.out
    assert rows(Path("parts")) == rows(Path("whole"))
    assert Path("parts/checkpoints/latest").read_text() == "000005\n"


@pytest.mark.slow
def test_resuming_drops_what_was_logged_after_the_checkpoint(command, build):
    build(fail_at=4)
    command("train", "fake_env", "--steps", "500", "--checkpoint-every", "2")
    with open(RUN / "metrics.jsonl", "a") as file:
        file.write('{"training_iteration": 4, "cut sho')
    assert command("train", "--resume", str(RUN)) == 0
    assert [row["training_iteration"] for row in rows()] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_finished_run_can_be_given_more_steps(command):
    command("train", "fake_env", "--steps", "200")
    assert command("train", "--resume", str(RUN)) == 2
    assert "has its 200 agent steps of 200 done" in command.err
    assert command("train", "--resume", str(RUN), "--steps", "400") == 0
    assert len(rows()) == 4


def test_a_resumed_run_keeps_its_own_settings(command):
    command("train", "fake_env", "--steps", "200")
    assert command("train", "--resume", str(RUN), "--seed", "1") == 2
    assert "--seed cannot be changed" in command.err
    assert command("train", "other_env", "--resume", str(RUN)) == 2
    assert "ENV cannot be changed" in command.err


@pytest.mark.slow
def test_a_run_whose_latest_checkpoint_is_gone_is_refused(command):
    command("train", "fake_env", "--steps", "100", "--out", "a")
    Path("a/checkpoints/latest").write_text("000009\n")
    assert command("train", "--resume", "a", "--steps", "200") == 2
    assert "names '000009', but there is no such checkpoint" in command.err


def test_a_damaged_checkpoint_gets_one_line(command):
    command("train", "fake_env", "--steps", "100")
    (RUN / "checkpoints/000001/state.json").write_text("{")
    for words in (["train", "--resume", str(RUN), "--steps", "200"], ["evaluate", str(RUN)]):
        assert command(*words) == 2
        assert "is damaged" in command.err and command.err.count("\n") == 1
