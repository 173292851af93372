"""An error inside training leaves a checkpoint of the last whole iteration, to go on from with changed settings."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from marl_connectors import PPOConfig
from marl_connectors.checkpoints import load_state
from marl_connectors.cli.known_algorithms import ALGORITHMS
from marl_connectors.cli.main import _formatted, main
from marl_connectors.cli.training_run import CHANGED, load_algorithm
from marl_connectors.cli.tree import place_of
from marl_connectors.errors import EnvWarning, MarlConnectorsWarning

RUN = Path("run")
ENV = '''
"""An environment that does, once TROUBLE is set, what it says in its 150th step after the one that was set in."""
import os

import gymnasium
import numpy as np


class Troubled(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place = 0, 0.0
        return self.seen(), {}

    def seen(self):
        return np.array([self.place, self.np_random.random()], np.float32)

    def step(self, action):
        Troubled.steps += 1
        self.t += 1
        self.place = float(np.clip(self.place + (0.1 if action else -0.1), -1, 1))
        reward = self.place
        if Troubled.steps > 250:
            trouble = os.environ.get("TROUBLE", "")
            if trouble == "raise":
                raise [].pop()
            if trouble == "memory":
                raise MemoryError("no more")
            if trouble == "reward":
                reward = float("nan")
            if trouble == "interrupt":
                raise KeyboardInterrupt
            if trouble == "beyond":
                self.place = 1.25
        return self.seen(), reward, False, self.t >= 17, {}
'''
WORDS = ["--steps", "600", "--num-envs", "2", "--num-env-workers", "0", "--hidden", "4", "--no-video"]
WORDS += ["--eval-episodes", "1", "--set", "train_batch_size_per_learner=100", "--set", "minibatch_size=50"]
TRAIN = ["train", "troubled_env:Troubled", *WORDS]


@pytest.fixture
def troubled(tmp_path, monkeypatch):
    """Sets what the environment does from its 251st step on."""
    monkeypatch.chdir(tmp_path)
    Path("troubled_env.py").write_text(ENV)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(os.environ, "TROUBLE", "")

    def trouble(what):
        import troubled_env

        troubled_env.Troubled.steps = 0
        os.environ["TROUBLE"] = what

    yield trouble
    sys.modules.pop("troubled_env", None)


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(own) for key, own in value.items() if not str(key).startswith("time")}
    return [without_times(item) for item in value] if isinstance(value, (list, tuple)) else value


def outcome(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    latest = (run / "checkpoints/latest").read_text().strip()
    return without_times(rows), latest, without_times(load_state(run / "checkpoints" / latest))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["raise", "memory", "reward", "interrupt"])
def test_a_run_that_an_error_ended_goes_on_as_if_there_had_been_none(troubled, capsys, what):
    troubled("")
    assert main([*TRAIN, "--out", "whole"]) == 0
    troubled(what)
    if what == "interrupt":
        assert main([*TRAIN, "--out", "run"]) == 130
    else:
        assert main([*TRAIN, "--out", "run"]) == 2
    said = capsys.readouterr()
    done = int((RUN / "checkpoints/latest").read_text())
    assert 1 <= done < 6
    assert f"The latest checkpoint is of iteration {done}. Resume with: marl-connectors train --resume run" in said.out
    if what in ("raise", "memory"):
        assert "troubled_env.py:" in said.err and " in step)" in said.err
    troubled("")
    assert main(["train", "--resume", "run"]) == 0
    np.testing.assert_equal(outcome(RUN), outcome(Path("whole")))


@pytest.mark.slow
def test_an_error_that_is_not_the_librarys_passes_and_leaves_a_checkpoint_too(troubled, monkeypatch):
    from marl_connectors.learner.learner import Learner

    troubled("")
    update = Learner.update

    def failing(self, *args, **kwargs):
        result = update(self, *args, **kwargs)  # the modules are others by now
        if self.num_updates > 3:
            raise ZeroDivisionError("by hand")
        return result

    monkeypatch.setattr(Learner, "update", failing)
    with pytest.raises(ZeroDivisionError, match="by hand"):
        main([*TRAIN, "--out", "run"])
    monkeypatch.setattr(Learner, "update", update)
    assert (RUN / "checkpoints/latest").is_file()
    assert main(["train", "--resume", "run"]) == 0
    assert main([*TRAIN, "--out", "whole"]) == 0
    np.testing.assert_equal(outcome(RUN), outcome(Path("whole")))


def test_a_bound_overstepped_late_in_a_run_does_not_stop_it(troubled):
    troubled("beyond")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EnvWarning)
        assert main([*TRAIN, "--out", "run"]) == 0
    counts = [row["env_runners"]["num_observations_out_of_bounds"] for row in outcome(RUN)[0]]
    assert counts[0] == 0 and counts[-1] == 100  # what each of 100 steps gave, and no reset
    assert sum(count > 0 for count in counts) >= 4


@pytest.mark.slow
def test_who_makes_it_an_error_can_go_on_without_the_check(troubled):
    troubled("beyond")
    with pytest.raises(EnvWarning, match=r"(?s)component 0.*1\.25.*\[-1\.0, 1\.0\]"):
        main([*TRAIN, "--out", "run"])
    troubled("beyond")
    assert main(["train", "--resume", "run", "--no-env-check"]) == 0
    assert len(outcome(RUN)[0]) == 6


def test_warnings_of_this_library_are_one_line():
    said = _formatted(EnvWarning("component 1 is\n2.5013"), EnvWarning, "x.py", 3)
    assert said == "marl-connectors: warning: component 1 is 2.5013\n"
    assert _formatted("other", UserWarning, "x.py", 3) == "x.py:3: UserWarning: other\n"
    assert warnings.formatwarning is not _formatted


@pytest.mark.slow
def test_a_key_of_masks_that_nothing_has_is_a_warning_of_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(MarlConnectorsWarning) as caught:
        assert main(["explain", "marl_envs.match_v0", "--action-mask-key", "foo"]) == 0
    (warning,) = caught
    said = _formatted(warning.message, warning.category, warning.filename, warning.lineno)
    assert said.startswith("marl-connectors: warning: action_mask_key='foo': no observation space has such a part")
    assert said.endswith("nothing is masked unless a later info has one.\n") and said.count("\n") == 1


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform != "linux", reason="displays of Linux")
@pytest.mark.parametrize(("display", "driver"), [({}, "dummy"), ({"DISPLAY": ":0"}, None)])
def test_without_a_display_sdl_draws_without_one(monkeypatch, display, driver):
    with monkeypatch.context() as patch:
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER"):
            patch.setenv(name, "")  # so that it is restored afterwards
            patch.delenv(name)
        for name, value in display.items():
            patch.setenv(name, value)
        assert main(["zoo", "CartPole-v1"]) == 0
        assert os.environ.get("SDL_VIDEODRIVER") == driver


@pytest.mark.slow
def test_settings_given_on_resume_hold_from_then_on(troubled):
    troubled("")
    assert main([*TRAIN, "--out", "run"]) == 0
    before = load_state(RUN / "checkpoints/000006")["learner"]["module"]["default_policy"]
    more = ["--steps", "700", "--set", "lr=0", "--set", "sample_timeout_s=7", "--no-env-check"]
    assert main(["train", "--resume", "run", *more]) == 0
    state = load_state(RUN / "checkpoints/000007")
    after = state["learner"]["module"]["default_policy"]
    assert all(np.array_equal(before[name], after[name]) for name in before)
    config = json.loads((RUN / "config.json").read_text())
    changed = {"env_runners": {"sample_timeout_s": 7}, "environment": {"disable_env_checking": True}}
    assert config[CHANGED] == {**changed, "run": {"steps": 700}, "training": {"lr": 0}}
    settings = config["settings"]
    assert settings["training"]["lr"] == 0 and settings["environment"]["disable_env_checking"] is True
    assert config["algorithm"]["lr"] == 0 and config["algorithm"]["sample_timeout_s"] == 7
    assert main(["train", "--resume", "run", "--steps", "800"]) == 0
    assert load_state(RUN / "checkpoints/000008")["config"]["settings"]["lr"] == 0
    # A checkpoint of before the change, as if the run had been killed before the next one:
    (RUN / "checkpoints/latest").write_text("000006\n")
    assert main(["train", "--resume", "run", "--steps", "800"]) == 0
    settings = load_state(RUN / "checkpoints/000008")["config"]["settings"]
    assert (settings["lr"], settings["disable_env_checking"]) == (0, True)


@pytest.mark.slow
def test_each_training_setting_can_be_changed_on_resume(troubled):
    troubled("")
    assert main([*TRAIN, "--steps", "100", "--out", "run"]) == 0
    values = {
        "lr": [[0, 0.001], [1000, 0.0]],
        "gamma": 0.5,
        "lambda_": 0.5,
        "train_batch_size_per_learner": 60,
        "minibatch_size": None,
        "num_epochs": 2,
        "clip_param": 0.1,
        "vf_clip_param": 5.0,
        "entropy_coeff": 0.0,
        "vf_loss_coeff": 1.0,
        "grad_clip": None,
        "use_kl_loss": True,
        "shuffle_batch_per_epoch": True,
        "grad_clip_by": "value",
        "batch_mode": "complete_episodes",
        "rollout_fragment_length": 10,
        "restart_failed_sub_environments": True,
        "explore": False,
        "metrics_num_episodes_for_smoothing": 2,
        "sample_timeout_s": None,
        "use_gae": False,
        "evaluation_interval": 1,
        "stack_modules": False,
    }
    assert set(ALGORITHMS["ppo"].training) <= set(values)
    for name, value in values.items():
        algo = load_algorithm(RUN / "checkpoints/000001", {place_of(name, PPOConfig, "x"): value})
        try:
            assert getattr(algo.config, name) == value, name
            result = algo.train()
            assert result["training_iteration"] == 2, name
        finally:
            algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "lrr=1"], "unknown setting 'lrr'. Did you mean 'lr'?"),
        (["--set", "num_envs_per_env_runner=3"], "--set env_runners.num_envs_per_env_runner cannot be changed"),
        (["--set", "lr=much"], "lr"),
        (
            ["--set", "episode_lookback_horizon=3"],
            "--set env_runners.episode_lookback_horizon cannot be changed, because the checkpoint's modules",
        ),
        (["--set", "use_critic=false"], "--set training.use_critic cannot be changed"),
        (["--set", "normalize_actions=false"], "--set environment.normalize_actions cannot be changed"),
        (["--hidden", "8"], "--hidden cannot be changed, because the checkpoint's modules"),
        (["--num-envs", "3"], "--num-envs cannot be changed"),
    ],
)
def test_what_cannot_be_changed_is_refused_and_leaves_the_run_as_it_was(troubled, capsys, words, message):
    troubled("")
    assert main([*TRAIN, "--steps", "100", "--out", "run"]) == 0
    before = {path: path.read_bytes() for path in RUN.rglob("*.json*")}
    assert main(["train", "--resume", "run", "--steps", "200", *words]) == 2
    assert message in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in RUN.rglob("*.json*")}


def test_settings_of_all_sections_can_be_given_at_the_start(troubled):
    troubled("")
    words = ["--set", "sample_timeout_s=9", "--set", "restart_failed_sub_environments=true"]
    assert main([*TRAIN, "--steps", "100", "--out", "run", *words]) == 0
    algorithm = json.loads((RUN / "config.json").read_text())["algorithm"]
    assert (algorithm["sample_timeout_s"], algorithm["restart_failed_sub_environments"]) == (9, True)
