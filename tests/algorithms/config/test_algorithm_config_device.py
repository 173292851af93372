"""Where modules and batches are."""

import pytest
import torch

from helpers.runs.command_runs import tree_of
from marl_connectors import PPOConfig
from marl_connectors.errors import ConfigError


def config(**learners) -> PPOConfig:
    return PPOConfig().environment("marl_envs.match_v0").learners(**learners)


@pytest.mark.parametrize(
    ("there_is_one", "learners", "device"),
    [
        (True, {}, "cuda"),
        (False, {}, "cpu"),
        (True, {"num_gpus_per_learner": "auto"}, "cuda"),
        (True, {"num_gpus_per_learner": 0}, "cpu"),
        (True, {"num_gpus_per_learner": 1}, "cuda"),
        (True, {"num_gpus_per_learner": 0.5}, "cuda"),
    ],
)
def test_the_gpu_is_taken_if_there_is_one_and_nobody_says_otherwise(there_is_one, learners, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there_is_one)
    made = config(**learners)
    made.validate()
    assert made.device == torch.device(device)


def test_a_gpu_that_is_asked_for_has_to_be_there():
    with pytest.raises(ConfigError, match=r"(?s)num_gpus_per_learner=1.*CUDA.*'auto'.*\b0\b"):
        config(num_gpus_per_learner=1).validate()


@pytest.mark.parametrize("number", [2, -1, "cuda", True, None])
def test_a_number_of_gpus_that_nothing_can_be_made_of_is_refused(number):
    with pytest.raises(ConfigError, match=r"(?s)num_gpus_per_learner.*'auto'"):
        config(num_gpus_per_learner=number)


def test_modules_act_where_they_learn():
    algo = config().build_algo()
    assert algo.env_runner.rl_module is algo.learner.module
    assert algo.learner.device == torch.device("cpu")
    assert {parameter.device for parameter in algo.rl_module.parameters()} == {torch.device("cpu")}


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("0", 0), ("1", 1)])
def test_the_command_line_can_say_so(text, value):
    tree = tree_of("marl_envs.match_v0", "--num-gpus-per-learner", text)
    assert tree["learners.num_gpus_per_learner"] == value
