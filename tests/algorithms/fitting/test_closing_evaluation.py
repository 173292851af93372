"""A run is measured as its policies were trained, and beside that with the other way of acting."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import Algorithm, PPOConfig
from marl_connectors.algorithms.fitting.baselines import measured_baseline
from marl_connectors.algorithms.fitting.closing_evaluation import about_both_ways, evaluate_both_ways, intervals
from marl_connectors.cli.main import main

QUICK = ("--video", "none", "--track", "none", "--num-env-workers", "0", "--set", "train_batch_size_per_learner=200")
RUN = (*QUICK, "--set", "minibatch_size=100", "--set", "num_epochs=1", "--steps", "400", "--eval-episodes", "50")


class Door(ParallelEnv):
    """Two agents that see the same choose one of two sides, 10 times. Each gets 1 if they choose different ones.

    With ``is_wide``, each gets 1 in every step.
    """

    metadata = {"name": "door", "render_modes": []}

    def __init__(self, is_wide=False):
        self.is_wide = is_wide
        self.possible_agents = ["left", "right"]

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        agents, paid = self.agents, float(self.is_wide or len(set(actions.values())) == 2)
        given = dict.fromkeys(agents, paid), dict.fromkeys(agents, False), dict.fromkeys(agents, self.t == 10)
        seen, infos = self._seen(), {agent: {} for agent in agents}
        self.agents = [] if self.t == 10 else agents
        return seen, *given, infos

    def _seen(self):
        return {agent: np.ones(1, np.float32) for agent in self.agents}


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """Trains with the command line in an empty folder. Returns the content of ``final.json`` and what was printed."""
    monkeypatch.chdir(tmp_path)

    def train(*words):
        assert main(["train", f"{__name__}:Door", *RUN, "--out", "run", *words]) == 0
        return json.loads(Path("run/final.json").read_text()), capsys.readouterr().out

    return train


def mean(results):
    (stats,) = results["module_episode_returns"].values()
    return stats["mean"]


@pytest.mark.slow
def test_agents_that_block_each_other_with_their_most_likely_actions_are_measured_with_drawn_ones(trained, capsys):
    final, said = trained()
    assert 4.0 < mean(final) < 6.0  # each of 10 steps pays with a probability of 1/2
    assert final["explore"] is True and mean(final["most_likely_actions"]) == 0.0 and "drawn_actions" not in final
    assert "with drawn actions, mean ± standard deviation of 50 episodes" in said
    assert "differ by more than their 95 % intervals" in said and "block each other" in said
    assert "AgentIdEncoding" in said
    assert main(["evaluate", "run", "--json", "--episodes", "50"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["explore"] is True and 4.0 < mean(found["results"]) < 6.0
    assert main(["evaluate", "run", "--json", "--episodes", "5", "--no-explore"]) == 0
    assert mean(json.loads(capsys.readouterr().out)["results"]) == 0.0
    algo = Algorithm.from_checkpoint("run")
    assert 4.0 < mean(algo.evaluate(num_episodes=50)["env_runners"]) < 6.0
    algo.stop()


def test_a_user_who_wants_the_most_likely_actions_has_them_as_the_result(trained):
    final, said = trained("--no-eval-explore", "--set", "evaluation_interval=1")
    assert final["explore"] is False and mean(final) == 0.0 and 4.0 < mean(final["drawn_actions"]) < 6.0
    assert "block each other" in said
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [mean(row["evaluation"]["env_runners"]) for row in rows] == [0.0, 0.0]


def test_where_both_ways_get_the_same_nothing_is_said(trained):
    final, said = trained("--env-config", "is_wide=true")
    assert mean(final) == mean(final["most_likely_actions"]) == 10.0
    assert "differ by more" not in said


def test_algorithms_that_learn_values_are_measured_with_their_best_actions_alone(trained):
    final, said = trained("--algo", "dqn", "--set", "minibatch_size=null")
    assert final["explore"] is False and mean(final) == 0.0
    assert not {"drawn_actions", "most_likely_actions"} & final.keys() and "most likely actions" not in said


@pytest.mark.slow
def test_the_table_of_seeds_has_both_ways(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"{__name__}:Door", *RUN, "--seeds", "0-1", "--out", "runs"]) == 0
    data = json.loads(Path("runs/seeds.json").read_text())
    for result in data["results"]:
        measured = result["measured"]
        assert 4.0 < measured["after_training"]["return/default_policy"] < 6.0
        assert measured["most_likely_actions"] == {"return/default_policy": 0.0} and "drawn_actions" not in measured
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("  most likely actions")] == [
        ["most", "likely", "actions", "0"]
    ]


# Intervals -----------------------------------------------------------------------------------------------------------


def results_of(mean, std, num_episodes):
    return {"module_episode_returns": {"red": {"mean": mean, "std": std}}, "num_episodes": num_episodes}


def test_intervals_are_those_of_student_over_episodes():
    (found,) = intervals(results_of(5.0, 2.0, 4)).values()  # 3.182 is the quantile for 3 degrees of freedom
    assert found == (5.0, pytest.approx(3.182 * 2.0 / math.sqrt(4), rel=1e-3))
    assert math.isnan(intervals(results_of(5.0, 2.0, 1))["red"][1])


@pytest.mark.parametrize(
    ("likely", "says"),
    [
        ((7.9, 1.0), ""),  # the intervals meet: 5 + 2 and 7.9 - 1
        ((8.1, 1.0), "still noisy"),
        ((1.9, 1.0), "block each other"),
        ((2.1, 1.0), ""),
        ((math.nan, math.nan), ""),
        ((9.0, math.nan), ""),
    ],
)
def test_a_sentence_says_why_the_two_ways_differ_by_more_than_their_intervals(likely, says):
    said = about_both_ways({"red": (5.0, 2.0)}, {"red": likely}, shared=["red"])
    assert (says in said and "red gets 5.00 with drawn actions" in said) if says else said == ""


@pytest.mark.parametrize(("shared", "is_said"), [(["red"], True), (["blue"], False), ([], False)])
def test_who_acts_for_one_agent_is_not_told_to_give_it_an_id(shared, is_said):
    said = about_both_ways({"red": (5.0, 2.0), "blue": (1.0, 1.0)}, {"red": (1.0, 1.0), "blue": (1.0, 1.0)}, shared)
    assert "drawn actions (load_policy" in said and ("AgentIdEncoding" in said) == is_said


# Slow environments ---------------------------------------------------------------------------------------------------


def test_random_play_that_ends_no_episode_in_time_plays_a_single_whole_one():
    asked = []

    def play(*, num_episodes, max_seconds, seed):
        asked.append((num_episodes, max_seconds, seed))
        return {"env_runners": {"num_episodes": 0 if num_episodes > 1 else 1}}

    assert measured_baseline(play, num_episodes=20, max_seconds=2.0, seed=3) == {"num_episodes": 1}
    assert asked == [(20, 2.0, 3), (1, 20.0, 3)]


def test_a_slow_environment_has_a_random_baseline():
    class Slow(Door):
        def step(self, actions):
            time.sleep(0.01)
            return super().step(actions)

    config = PPOConfig().environment(Slow).env_runners(num_envs_per_env_runner=8, num_env_workers=0)
    with config.build_algo() as algo:  # 8 sub-environments take 0.8 s for an episode each
        assert algo.random_play(num_episodes=20, max_seconds=0.2)["env_runners"]["num_episodes"] == 0
        found = measured_baseline(algo.random_play, num_episodes=20, max_seconds=0.2)
    assert found["num_episodes"] == 1 and 0.0 <= mean(found) <= 10.0


def test_random_play_with_ended_episodes_is_left_as_it_is():
    played = {"num_episodes": 8}
    assert measured_baseline(lambda **how: {"env_runners": played}, num_episodes=20, max_seconds=2.0) == played


def test_both_ways_are_measured_with_the_same_seed():
    class Noting:
        class config:
            draws_actions = True

            @staticmethod
            def get_evaluation_config():
                return type("Config", (), {"explore": True})

        def evaluate(self, *, num_episodes, explore, seed, on_progress):
            return {"env_runners": {"num_episodes": num_episodes, "asked": (explore, seed)}}

    found = evaluate_both_ways(Noting(), num_episodes=3, seed=7)
    assert (found["asked"], found["most_likely_actions"]["asked"]) == ((True, 7), (False, 7))
