"""Runs whose spaces have keys in any order, and environments that give their parts in any form."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from random_spaces import ACTIONS, LEAVES, arrays, dict_space, in_another_form
from scripted_envs import small_config

from marl_connectors import MeanStdFilter, OneHotObservations, PrevActionsPrevRewards, load_policy
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.spaces import misfit


class Keys(ParallelEnv):
    """Two agents see random items, in a random form, and are paid for what they do with each part."""

    metadata = {"name": "keys", "render_modes": []}

    def __init__(self, observation_space, action_space, log=None):
        self.possible_agents, self.agents = ["b", "a"], []
        self.seen, self.done, self.log = observation_space, action_space, [] if log is None else log

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return self.done

    def _observe(self):
        self.seen.seed(int(self.rng.integers(2**31)))
        items = {agent: arrays(self.seen, self.seen.sample()) for agent in self.agents}
        given = {agent: in_another_form(self.rng, self.seen, item) for agent, item in items.items()}
        self.episode.append(copy.deepcopy(given))
        return given

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(0 if seed is None else seed)
        self.agents, self.t, self.episode = list(self.possible_agents), 0, []
        self.log.append(self.episode)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        for action in actions.values():
            assert not misfit(self.done, action)
        self.t += 1
        agents, over = self.agents, self.t >= 4
        rewards = {a: sum(i * x for i, x in enumerate(numbers(self.done, actions[a]))) / 10 for a in agents}
        self.episode += [copy.deepcopy(dict(actions)), rewards]
        seen = self._observe()
        self.agents = [] if over else agents
        return seen, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), {a: {} for a in agents}


def plain(item):
    """An item in lists, its keys sorted."""
    if isinstance(item, dict):
        return {str(key): plain(item[key]) for key in sorted(item, key=str)}
    return [plain(part) for part in item] if isinstance(item, (tuple, list)) else np.asarray(item).tolist()


def numbers(space, item):
    """All numbers of an item, in the order of the space."""
    if isinstance(space, spaces.Dict):
        return [x for key, part in space.spaces.items() for x in numbers(part, item[key])]
    if isinstance(space, spaces.Tuple):
        return [x for part, own in zip(space.spaces, item, strict=True) for x in numbers(part, own)]
    return np.asarray(item, np.float64).ravel().tolist()


def flat(item):
    """All numbers of an item, in the order of sorted keys."""
    if isinstance(item, dict):
        return [x for key in sorted(item, key=str) for x in flat(item[key])]
    return [x for part in item for x in flat(part)] if isinstance(item, (tuple, list)) else np.ravel(item).tolist()


PIECES = [
    None,
    lambda *args, **kwargs: MeanStdFilter(),
    lambda *args, **kwargs: OneHotObservations(),
    lambda *args, **kwargs: PrevActionsPrevRewards(),
]


def config_of(seed, log):
    rng = np.random.default_rng(seed)
    seen, done = dict_space(rng, LEAVES), dict_space(rng, ACTIONS)
    config = small_config(lambda env_config: Keys(seen, done, log)).multi_agent(
        policies=["shared", "independent"][rng.integers(2)]
    )
    config.env_runners(episode_lookback_horizon=2, num_envs_per_env_runner=int(rng.integers(1, 3)))
    piece = PIECES[rng.integers(len(PIECES))]
    return config if piece is None else config.env_runners(env_to_module_connector=piece)


def evaluated(algo, log):
    """The episodes of an evaluation."""
    log.clear()
    algo.evaluate(num_episodes=2, seed=5)
    return [episode for episode in log if len(episode) == 13]


def check(seed, folder):
    log = []
    config = config_of(seed, log)
    algo = config.build_algo()
    algo.train()
    saved = algo.save_to_path(folder / "checkpoint")
    episodes = evaluated(algo, log)
    assert len(episodes) >= 2
    loaded = Algorithm.from_checkpoint(saved, config=config)
    assert plain(evaluated(loaded, log)) == plain(episodes)
    policy = load_policy(saved, config=config)
    for episode in episodes:
        check_policy(policy, episode)
    for _ in range(2):
        algo.train()
        loaded.train()
    assert_same_weights(algo.get_state()["learner"]["module"], loaded.get_state()["learner"]["module"])


def check_policy(policy, episode):
    policy.reset()
    rewards = None
    for seen, done, paid in zip(episode[:-1:3], episode[1::3], episode[2::3], strict=True):
        found = policy.actions(seen, rewards=rewards)
        for agent, action in done.items():
            np.testing.assert_allclose(flat(found[agent]), flat(action), atol=1e-5)
        rewards = paid


def assert_same_weights(ours, theirs):
    for module_id, own in ours.items():
        for name, values in own.items():
            np.testing.assert_array_equal(values, theirs[module_id][name])


@pytest.mark.parametrize("seed", range(30))
def test_a_loaded_run_acts_and_learns_as_before_whatever_the_order_of_keys(seed, tmp_path):
    check(seed, tmp_path)
