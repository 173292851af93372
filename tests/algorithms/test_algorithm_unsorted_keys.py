"""Runs whose spaces have keys in any order, and environments that give their parts in any form."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.random_spaces import ACTIONS, LEAVES, arrays, dict_space, in_another_form
from helpers.envs.scripted_envs import small_config
from marl_connectors import FlattenObservations, MeanStdFilter, OneHotObservations, PrevActionsPrevRewards, load_policy
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.errors import EpisodeError
from marl_connectors.spaces import misfit


class Keys(ParallelEnv):
    """Two agents see random items, in a random form, and are paid for what they do with each part."""

    metadata = {"name": "keys", "render_modes": []}

    def __init__(self, observation_spaces, action_spaces, log):
        self.possible_agents, self.agents = ["b", "a"], []
        self.seen, self.done, self.log = observation_spaces, action_spaces, log

    def observation_space(self, agent):
        return self.seen[agent]

    def action_space(self, agent):
        return self.done[agent]

    def _observe(self):
        given = {}
        for agent in self.agents:
            space = self.seen[agent]
            space.seed(int(self.rng.integers(2**31)))
            given[agent] = in_another_form(self.rng, space, arrays(space, space.sample()))
        self.episode.append(copy.deepcopy(given))
        return given

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(0 if seed is None else seed)
        self.agents, self.t, self.episode = list(self.possible_agents), 0, []
        self.log.append(self.episode)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        for agent, action in actions.items():
            assert not misfit(self.done[agent], action)
        self.t += 1
        agents, over = self.agents, self.t >= 4
        rewards = {a: sum(i * x for i, x in enumerate(flat(actions[a]))) / 10 for a in agents}
        self.episode += [copy.deepcopy(dict(actions)), rewards]
        seen = self._observe()
        self.agents = [] if over else agents
        return seen, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), {a: {} for a in agents}


def plain(item):
    """An item in lists, its keys sorted."""
    if isinstance(item, dict):
        return {str(key): plain(item[key]) for key in sorted(item, key=str)}
    return [plain(part) for part in item] if isinstance(item, (tuple, list)) else np.asarray(item).tolist()


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
    policies, piece = ["shared", "independent"][rng.integers(2)], PIECES[rng.integers(len(PIECES))]
    in_order = policies == "shared"  # modules of their own may have their keys in an order of their own, too
    seen, done = ({"b": space, "a": space if in_order else reordered(rng, space)} for space in (seen, done))
    config = small_config(lambda env_config: Keys(seen, done, log)).multi_agent(policies=policies)
    config.env_runners(episode_lookback_horizon=2, num_envs_per_env_runner=int(rng.integers(1, 3)))
    if piece is None or (piece is PIECES[1] and "Box(" not in str(seen["b"])):  # nothing to filter
        return config
    return config.env_runners(env_to_module_connector=piece)


def reordered(rng, space):
    """The same parts with keys in another order."""
    parts = list(space.spaces.items())
    return spaces.Dict([parts[i] for i in rng.permutation(len(parts))])


def evaluated(algo, log):
    """The episodes of an evaluation."""
    log.clear()
    algo.evaluate(num_episodes=2, seed=5, explore=False)
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
    assert_same_weights(algo.get_state().parameters, loaded.get_state().parameters)


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


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(16))
def test_a_loaded_run_acts_and_learns_as_before_whatever_the_order_of_keys(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
def test_loaded_runs_act_and_learn_as_before_in_many_spaces(tmp_path):
    first = int(np.random.SeedSequence().entropy) % 2**40
    for seed in range(first, first + 60):
        print(f"seed {seed}")
        check(seed, tmp_path / str(seed))


# Agents whose spaces are alike but for the order of keys, or for the last bits of their bounds ------------------------


def test_agents_of_one_module_may_have_their_keys_in_another_order(tmp_path):
    x, y = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
    seen = {"b": spaces.Dict([("y", y), ("x", x)]), "a": spaces.Dict([("x", x), ("y", y)])}
    config = small_config(lambda env_config: Keys(seen, dict.fromkeys("ba", spaces.Box(-1, 1, (3,))), []))
    config.env_runners(env_to_module_connector=lambda *args, **kwargs: FlattenObservations())
    algo = config.build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "c"), config=config)
    item = {"x": [0.25, -0.5], "y": 2}
    together = policy.actions({"a": item, "b": item})
    np.testing.assert_allclose(together["a"], together["b"], atol=1e-6)
    for agent in "ab":
        policy.reset()
        np.testing.assert_allclose(policy.actions({agent: item})[agent], together[agent], atol=1e-6)


def test_bounds_that_differ_by_little_stay_each_agents_own(tmp_path):
    narrow, wide = spaces.Box(0, 1e-9, (1,)), spaces.Box(3e-9, 4e-9, (1,))
    done, log = {"b": narrow, "a": wide}, []
    config = small_config(lambda env_config: Keys(dict.fromkeys("ba", spaces.Box(-1, 1, (2,))), done, log))
    algo = config.build_algo()
    algo.train()
    acted = [step for episode in log for step in episode[1::3]]
    assert acted and all(0 <= float(s["b"][0]) <= 1e-9 and 3e-9 <= float(s["a"][0]) <= 4e-9 for s in acted)
    policy = load_policy(algo.save_to_path(tmp_path / "c"))
    found = policy.actions({"a": [0.5, 0.5], "b": [0.5, 0.5]})
    assert wide.contains(found["a"]) and narrow.contains(found["b"])


# What policies take ---------------------------------------------------------------------------------------------------


@pytest.fixture
def nested(tmp_path):
    seen = spaces.Dict([("t", spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])), ("n", spaces.Discrete(2))])
    config = small_config(lambda env_config: Keys(dict.fromkeys("ba", seen), dict.fromkeys("ba", seen), []))
    return load_policy(config.build_algo().save_to_path(tmp_path / "c"))


def test_a_policy_takes_lists_and_batches_of_them(nested):
    items = [{"t": ([0.5, -0.5], 2), "n": 1}, {"n": 0, "t": ([0.25, 1.0], 0)}]
    batch = {"t": [[[0.5, -0.5], [0.25, 1.0]], [2, 0]], "n": [1, 0]}
    together = nested.actions({"a": batch})["a"]
    for i, item in enumerate(items):
        nested.reset()
        (alone,) = nested.actions({"a": item}).values()
        row = {"t": tuple(part[i] for part in together["t"]), "n": together["n"][i]}
        np.testing.assert_allclose(flat(row), flat(alone), atol=1e-6)


@pytest.mark.parametrize(
    "item",
    [
        {"t": ([0.5, -0.5], 2)},
        {"t": ([0.5, -0.5], 2), "n": 1, "more": 1},
        {"t": ([0.5, -0.5],), "n": 1},
        {"t": ([0.5, -0.5], 2), "n": 0.5},
        {"t": ([0.5, "x"], 2), "n": 1},
    ],
)
def test_a_policy_refuses_what_is_not_of_the_space(nested, item):
    with pytest.raises(EpisodeError, match=r"'a'|space"):
        nested.actions({"a": item})
