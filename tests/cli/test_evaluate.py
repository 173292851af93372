"""``marl-connectors evaluate``, with a fake Algorithm."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint(command):
    command.algo.iteration = 12
    command.algo.save_to_path("ckpt")
    return "ckpt"


def test_returns_are_printed_beside_random_play(command, checkpoint):
    assert command("evaluate", checkpoint, "--episodes", "3", "--seed", "5", "--explore") == 0
    assert command.algo.evaluated_with == [(3, True, 5)]
    assert "red      12.0 ± 0.5   11.0 to 13.0   -7.00 ± 0.5" in command.out
    assert "Episodes last 25.0 steps" in command.out
    assert command.algo.stopped


def test_the_folder_of_a_run_stands_for_its_latest_checkpoint(command):
    command("train", "fake_env", "--steps", "200", "--out", "run")
    assert command("evaluate", "run") == 0
    assert command.out.startswith(f"{Path('run/checkpoints/000002')}: 20 episodes, actions are the most likely ones.")


def test_a_video_is_written_where_asked(command, checkpoint):
    assert command("evaluate", checkpoint, "--video", "films/play.gif") == 0
    assert Path("films/play.gif").read_bytes().startswith(b"GIF89a")
    assert "Video: films/play.gif" in command.out


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words", [["evaluate", "run"], ["train", "--resume", "run", "--steps", "400"]], ids=["evaluate", "resume"]
)
def test_untrusted_keeps_out_what_the_checkpoint_names_and_the_current_folder(command, words, monkeypatch):
    command("train", "fake_env", "--steps", "200", "--out", "run")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", os.getcwd())])
    assert command(*words, "--untrusted") == 0
    assert command.trusted is False and os.getcwd() not in sys.path
    assert command(*words[:-1], "600" if len(words) > 2 else "run") == 0
    assert command.trusted is True and os.getcwd() in sys.path


def test_untrusted_is_for_checkpoints(command):
    assert command("train", "fake_env", "--untrusted") == 2
    assert "--untrusted is for --resume RUN" in command.err


@pytest.mark.slow
def test_new_episodes_are_for_runs_that_go_on(command):
    assert command("train", "fake_env", "--new-episodes") == 2
    assert "--new-episodes is for --resume RUN" in command.err
    command("train", "fake_env", "--steps", "200", "--out", "run")
    assert command("train", "--resume", "run", "--steps", "400", "--new-episodes") == 0
    assert command.new_episodes is True
    assert command("train", "--resume", "run", "--steps", "600") == 0
    assert command.new_episodes is False


def test_random_play_that_is_cut_short_says_so(command, checkpoint, monkeypatch):
    play = command.fake.random_play

    def cut(self, *, num_episodes, max_seconds, **kwargs):
        assert max_seconds == 3.0
        return play(self, num_episodes=8)

    monkeypatch.setattr(command.fake, "random_play", cut)
    assert command("evaluate", checkpoint, "--baseline-seconds", "3") == 0
    assert "Only 8 of 20 episodes of random play ended in time: the returns are of these.\n" in command.out


def test_json_has_the_results_and_nothing_else_is_on_stdout(command, checkpoint):
    words = ["--json", "--episodes", "3", "--seed", "5", "--video", "play.gif"]
    assert command("evaluate", checkpoint, *words) == 0
    found = json.loads(command.out)
    assert found["results"]["module_episode_returns"]["red"]["mean"] == 12.0
    assert found["random_play"]["module_episode_returns"]["red"]["mean"] == -7.0
    options = {name: found[name] for name in ("checkpoint", "episodes", "seed", "explore", "success", "video")}
    assert options == {
        **{"checkpoint": "ckpt", "episodes": 3, "seed": 5, "explore": False, "success": None},
        "video": "play.gif",
    }
