"""What a lane carries from one chunk of an episode to the next."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import PPOConfig
from marl_connectors.env_runners.lane_group import LaneGroup, _sums
from marl_connectors.episodes.batch import ColumnGroup


def test_short_chunks_keep_as_much_lookback_as_long_ones():
    config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 9})
    config.env_runners(num_envs_per_env_runner=1, episode_lookback_horizon=3)
    runner = config.rl_module(model_config={"fcnet_hiddens": [2]}).build_algo().env_runner
    kept, times = [], []
    for _ in range(6):
        (chunk,) = runner.sample(num_timesteps=1)
        (agent,) = {(own.t_started, own.storage.lookback) for own in chunk.agent_episodes.values()}
        kept.append(agent)
        times.append(chunk.agent_episodes["agent_0"].storage.column("t").tolist())
    assert kept == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 3)]
    assert times == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6]]


def test_nothing_of_an_agent_that_has_left_comes_along_into_the_next_fragment():
    box = spaces.Box(-9.0, 9.0, (1,), np.float32)
    group = LaneGroup(0, box, spaces.Discrete(2), lookback=1)
    group.open([(0, "a", "m"), (0, "b", "m")])
    group.sort(np.array([0]))
    group.select(["m"], 2)
    group.rollout.observe(group.positions, np.array([[3.0], [4.0]], np.float32), 5)
    group.rollout.infos[int(group.rollout.cursor[1])] = {"of": "b"}
    group.close(np.array([1]))
    group.sort(np.array([0]))
    group.select(["m"], 2)
    group.restart(3)
    rollout = group.rollout
    assert rollout.columns["t"].reshape(-1, 2)[:2].tolist() == [[-1, -1], [5, -1]]
    assert rollout.columns["obs"].reshape(-1, 2)[:2].tolist() == [[0, 0], [3, 0]]
    assert rollout.infos == {}
    (lane,) = group.open([(0, "c", "m")])
    assert (lane.number, lane.row, group.t_started[1], group.carried.tolist()) == (1, 1, 0, [True, False])


class Numbered(ParallelEnv):
    """Observations are the numbers of the sub-environment, the agent and the step; rewards are made of them."""

    metadata = {"name": "numbered"}
    possible_agents = ["a", "b", "c"]

    def __init__(self, number):
        self.number, self.agents = number, []

    def observation_space(self, agent):
        return spaces.Box(0, 99, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _seen(self):
        return {agent: np.array([self.number, i, self.t], np.float32) for i, agent in enumerate(self.agents)}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        seen, acting, over = self._seen(), self.agents, self.t == 3
        self.agents = [] if over else acting
        rewards = {agent: 100.0 * self.number + 10.0 * i + self.t for i, agent in enumerate(acting)}
        return seen, rewards, dict.fromkeys(acting, False), dict.fromkeys(acting, over), {agent: {} for agent in acting}


@pytest.mark.parametrize("mapping", ["*=m", "a=m,*=n", "b=m,*=n", "c=m,a=n,b=m"])
def test_each_agent_of_each_sub_environment_has_its_own_rows(mapping):
    numbers = iter(range(99))
    config = PPOConfig().environment(lambda config: Numbered(next(numbers)), disable_env_checking=True)
    config.multi_agent(policies={"m", "n"} if "n" in mapping else {"m"}, policy_mapping_fn=mapping)
    config.env_runners(num_envs_per_env_runner=3).rl_module(model_config={"fcnet_hiddens": [2]})
    runner = config.build_algo().env_runner
    found = {}
    for chunk in runner.sample(num_timesteps=12) + runner.sample(num_timesteps=9):
        for i, own in enumerate(chunk.agent_episodes[agent] for agent in "abc"):
            (number,) = set(own.get_observations()[:, 0].tolist())
            found.setdefault(number, []).append((chunk.id_.split("-")[0], i))
            steps = list(range(own.t_started, own.t_started + len(own) + 1))
            assert own.get_observations()[:, 1:].tolist() == [[i, t] for t in steps]
            assert own.get_rewards().tolist() == [100 * number + 10 * i + t for t in steps[1:]]
    assert [len({place[0] for place in places}) for places in found.values()] == [1, 1, 1]
    finished = {}
    for summary in runner.take_finished():
        for agent_id, (_, total, steps) in summary.agent_totals.items():
            finished.setdefault(agent_id, []).append((total, steps))
    for i, agent in enumerate("abc"):
        own = sorted(3 * (100 * number + 10 * i) + 6.0 for number in found)
        assert sorted(finished[agent]) == sorted((total, 3) for total in own * 2)


def two_lanes():
    group = LaneGroup(0, spaces.Box(-9.0, 9.0, (1,), np.float32), spaces.Discrete(2), lookback=0)
    group.open([(0, "a", "m"), (0, "b", "m")])
    group.sort(np.array([0]))
    return group


def rows_when_only(acting, group):
    group.rollout.pending[:] = True
    group.rollout.pending[acting] = False
    group.select(["m"], 2)
    return group.rows


def test_lanes_that_act_again_have_the_same_rows_at_their_newest_positions():
    group = two_lanes()
    first, second = rows_when_only(0, group), rows_when_only(1, group)
    assert first is not second
    group.credit_and_advance([0], [1.0])
    assert rows_when_only(0, group) is first
    assert group.positions == slice(2, 3)  # row 1 of the first of two lanes
    assert group.acting_numbers.tolist() == [0]
    assert rows_when_only(1, group) is second
    assert group.positions == slice(1, 2)


def test_rows_are_new_after_lanes_have_changed():
    group = two_lanes()
    before = rows_when_only(0, group)
    group.open([(1, "a", "m")])
    group.sort(np.array([0]))
    assert rows_when_only(0, group) is not before


@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("rows", [0, 1, 7, 40, 300])
def test_a_sum_of_rewards_does_not_depend_on_the_other_lanes(rows, lanes):
    rewards = np.random.default_rng(rows).normal(size=(rows, lanes))
    expected = [0.0] * lanes
    for row in rewards.tolist():
        expected = [total + reward for total, reward in zip(expected, row, strict=True)]
    assert _sums(rewards).tolist() == _sums(np.asfortranarray(rewards)).tolist() == expected


def test_outputs_that_not_all_modules_have_are_marked_in_the_rows_that_have_them():
    """The modules of each step output other columns than those of the step before."""
    group = LaneGroup(0, spaces.Box(-9.0, 9.0, (1,), np.float32), spaces.Discrete(3), lookback=1)
    group.open([(0, "a", "m"), (1, "a", "m")])
    group.sort(np.array([0]))
    group.select(["m"], 1)
    outputs = [("x",), ("x", "more"), ("x", "more"), ("more",), ("x",)]
    for t, names in enumerate(outputs):
        group.rollout.observe(group.positions, np.zeros((2, 1), np.float32), t)
        columns = ColumnGroup(group.rows)
        columns.update({"actions": np.ones(2, np.int64), **{name: np.full(2, 1.0 + t) for name in names}})
        columns.record_in(group.rollout, group.positions)
        group.advance()
    rollout = group.rollout
    for name in ("x", "more"):
        expected = [name in names for names in outputs]
        assert rollout.given[name].reshape(-1, 2)[1:6].tolist() == [[own] * 2 for own in expected]
        values = rollout.columns[name].reshape(-1, 2)[1:6, 0]
        assert values.tolist() == [1.0 + t if has else 0.0 for t, has in enumerate(expected)]
