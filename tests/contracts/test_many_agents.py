"""An episode that never ends, and in which new agents come and go at every step, leaves nothing behind."""

from __future__ import annotations

import array
import warnings
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.scripted_envs import BOX, small_config
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.env_runners import episode_tracker
from marl_connectors.environments.vector import action_history

NEW = 100
FRAGMENT = 10


class Passing(ParallelEnv):
    """100 new agents come in each step, act twice, end (the very first by truncation) and are paid 0.25 a step later.

    Args:
        ends_after: Env steps after which all agents are truncated; None for never.
    """

    metadata = {"name": "passing", "render_modes": []}

    def __init__(self, ends_after=None):
        self.ends_after = ends_after
        self.possible_agents = [f"agent {i}" for i in range(NEW)]

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return self._observations(self.agents), {}

    def _observations(self, agents):
        return {agent: np.full(2, self.t % 10, np.float32) for agent in agents}

    def _came_at(self, t):
        return [f"agent {i}" for i in range(NEW * t, NEW * (t + 1))] if t >= 0 else []

    def step(self, actions):
        acting = self.agents
        self.t += 1
        over = self.t == self.ends_after
        ending, late = self._came_at(self.t - 2), self._came_at(self.t - 3)
        self.agents = [] if over else self._came_at(self.t - 1) + self._came_at(self.t)
        rewards = dict.fromkeys(acting, 1.0) | dict.fromkeys(late, 0.25)
        return (
            self._observations([*acting, *self.agents]),
            rewards,
            {agent: agent in ending and agent != "agent 0" for agent in acting},
            {agent: (agent == "agent 0" and agent in ending) or (over and agent not in ending) for agent in acting},
            {agent: {"t": self.t} for agent in acting},
        )


def config_of(make, **env_runners):
    config = small_config(make, disable_env_checking=True).multi_agent(policies="shared")
    config.env_runners(rollout_fragment_length=FRAGMENT, episode_lookback_horizon=2, **env_runners)
    return config.training(train_batch_size_per_learner=FRAGMENT, minibatch_size=None)


def sizes_of_all_that_is_reachable_from(root):
    """``{where: length}`` of all containers and arrays, by a walk over items, attributes and slots."""
    sizes, seen, todo = {}, set(), [(root, "runner")]
    while todo:
        thing, where = todo.pop()
        kept = type(thing).__module__.startswith(("marl_connectors", "collections"))
        plain = isinstance(thing, (dict, list, tuple, set, frozenset, deque))
        if id(thing) in seen or isinstance(thing, type):
            continue
        if isinstance(thing, (np.ndarray, bytearray, array.array)):
            seen.add(id(thing))
            sizes[where] = len(thing) if np.ndim(thing) else 1
        elif plain or (kept and not isinstance(thing, torch.nn.Module)):
            seen.add(id(thing))
            if plain:
                sizes[where] = len(thing)
                parts = [*thing, *thing.values()] if isinstance(thing, dict) else list(thing)
                todo += [(part, f"{where}[]") for part in parts]
            slots = [slot for cls in type(thing).__mro__ for slot in getattr(cls, "__slots__", ())]
            names = [*getattr(thing, "__dict__", ()), *slots]
            todo += [(getattr(thing, name), f"{where}.{name}") for name in names if hasattr(thing, name)]
    return sizes


def bytes_of(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*"))


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """What is reachable, and how large a checkpoint is, after 10,000 agents and after 20,000; and how it goes on."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "checkpoint: an ongoing episode was too long to be replayed")
        patch.setattr(action_history, "HISTORY_BYTES", 10_000)
        patch.setattr(episode_tracker, "_PACK_AFTER", 30)
        algo = config_of(Passing).build_algo()
        found, folders, uncredited = [], [], 0.0
        for _ in range(2):
            for _ in range(10_000 // NEW // FRAGMENT):
                algo.env_runner.sample()
                uncredited += algo.env_runner.get_metrics()["uncredited_reward"]
            found.append(sizes_of_all_that_is_reachable_from(algo.env_runner))
            folders.append(algo.save_to_path(tmp_path_factory.mktemp("run") / "checkpoint"))
    return algo, found, folders, uncredited


@pytest.mark.slow
def test_memory_is_bounded(endless):
    algo, (before, after), _, _ = endless
    assert algo.env_runner.vector_env.sub_envs[0].t == 200
    longest = max(after, key=after.get)
    # 10 steps (and 2 of lookback) of 200 live agents and of the lanes that others may need: 4,000 rows.
    assert after[longest] <= 5_000, longest
    assert {where: size for where, size in after.items() if size > 1.05 * before.get(where, 0) + 10} == {}
    names = {where.rpartition(".")[2] for where in after}
    assert {"_ended_before", "_module_of", "agents", "infos", "by_env"} <= names


@pytest.mark.slow
def test_checkpoints_stay_small(endless):
    _, _, (before, after), _ = endless
    assert bytes_of(after) < 1.02 * bytes_of(before) < 1_000_000


def test_every_reward_is_still_accounted_for(endless):
    algo, _, _, uncredited = endless
    # The agents that ended in the last step of a fragment are paid late in the next one: 19 times.
    assert uncredited == 0.25 * NEW * 19
    (summary,) = algo.env_runner._episodes._summaries
    # All but the first step ended 100 agents that had earned 2.0, and all but the first two paid 100 agents late.
    assert summary.episode_return == NEW * (2.0 * 199 + 0.25 * 198)


def test_an_episode_too_long_to_be_replayed_is_begun_anew(endless):
    algo, _, (_, folder), _ = endless
    with pytest.warns(UserWarning, match="replayed"):
        resumed = Algorithm.from_checkpoint(folder, config=algo.config)
    assert resumed.env_runner.num_env_steps == 200
    (chunk,) = resumed.env_runner.sample()
    assert (chunk.id_, chunk.env_t_started, chunk.env_steps()) == ("0-1", 0, FRAGMENT)
    first = chunk.agent_episodes["agent 0"]
    assert (first.t_started, first.storage.lookback, first.get_return()) == (0, 0, 2.25)
    assert [life.agent_id for life in chunk.all_agent_episodes()][:NEW] == resumed.agent_ids


# With all actions at hand.


def test_metrics_are_right_when_most_agents_are_forgotten():
    runner = config_of(lambda: Passing(ends_after=40)).build_algo().env_runner
    for _ in range(4):
        runner.sample()
    metrics = runner.get_metrics()
    # 3,900 agents have ended after two steps, the last 100 after one; those of the last two steps are not paid late.
    assert metrics["episode_return_mean"] == 3_900 * 2.0 + 100 * 1.0 + 3_800 * 0.25 == 8_850.0
    stats = metrics["module_episode_returns"]["default_policy"]
    assert (stats["num_episodes"], stats["min"], stats["max"]) == (4_000, 1.0, 2.25)
    assert stats["mean"] == 8_850.0 / 4_000
    lives = [2.25] * 3_800 + [2.0] * 100 + [1.0] * 100
    assert stats["std"] == pytest.approx(np.std(lives), rel=1e-12)
    agents = metrics["agent_episode_returns_mean"]
    assert list(agents) == [f"agent {i}" for i in range(3_000, 4_000)]
    assert list(agents.values()) == lives[3_000:]


@pytest.mark.slow
def test_an_episode_with_many_agents_resumes_where_it_was(tmp_path):
    algo = config_of(Passing, num_envs_per_env_runner=2).build_algo()
    for _ in range(3):
        algo.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"), config=algo.config)
    for _ in range(2):
        for one, other in zip(algo.env_runner.sample(), resumed.env_runner.sample(), strict=True):
            assert one.get_state()["truncated_before"]
            np.testing.assert_equal(one.get_state(), other.get_state())
