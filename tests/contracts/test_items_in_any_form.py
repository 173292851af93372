"""Agents see and do what the environment and the modules say, whatever Python gives it in."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from helpers.envs.random_spaces import ACTIONS, LEAVES, arrays, assert_identical, dict_space, in_another_form, stacked
from helpers.envs.scripted_envs import small_config
from marl_connectors import ActionMasking, ConnectorV2, RLModule, RLModuleSpec
from marl_connectors.spaces import in_dtype, misfit, stack


class Forms(ParallelEnv):
    """Agents see random items in a random form, and as arrays in their infos; these say what they did, too.

    Args:
        observation_space: Of all agents.
        action_space: Of all agents.
        num_agents: How many. As many as a part has numbers, and one could be taken for the other.
    """

    metadata = {"name": "forms", "render_modes": []}

    def __init__(self, observation_space, action_space, num_agents=2):
        self.possible_agents, self.agents = [f"a{i}" for i in range(num_agents)], []
        self.seen, self.done, self.render_mode = observation_space, action_space, None

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return self.done

    def _observe(self, actions):
        self.seen.seed(int(self.rng.integers(2**31)))
        items = {agent: arrays(self.seen, self.seen.sample()) for agent in self.agents}
        given = {agent: in_another_form(self.rng, self.seen, item) for agent, item in items.items()}
        return given, {a: {"seen": item, "done": copy.deepcopy(actions.get(a))} for a, item in items.items()}

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        return self._observe({})

    def step(self, actions):
        self.t += 1
        agents, over = self.agents, self.t >= 3
        seen, infos = self._observe(actions)
        self.agents = [] if over else agents
        return seen, dict.fromkeys(agents, 1.0), dict.fromkeys(agents, over), dict.fromkeys(agents, False), infos


def turn_based(observation_space, action_space, num_agents):
    return parallel_to_aec(Forms(observation_space, action_space, num_agents))


class Alone(gymnasium.Env):
    """The same with one agent, as a Gymnasium environment."""

    def __init__(self, observation_space, action_space, num_agents):
        self.env = Forms(observation_space, action_space, 1)
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return tuple(part["a0"] for part in self.env.reset(seed))

    def step(self, action):
        return tuple(part["a0"] for part in self.env.step({"a0": action}))


def in_dtypes(space, column):
    """Modules' own actions, which may be of other dtypes, in those of the space."""
    if isinstance(space, spaces.Dict):
        return {key: in_dtypes(space[key], part) for key, part in column.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(in_dtypes(part, own) for part, own in zip(space.spaces, column, strict=True))
    return in_dtype(column, space.dtype)


def check(seed, kind, num_env_workers=0):
    rng = np.random.default_rng(seed)
    seen, done = dict_space(rng, LEAVES), dict_space(rng, ACTIONS)
    if rng.random() < 0.3:
        seen = spaces.Tuple([*seen.spaces.values()])
    if rng.random() < 0.3:
        done = spaces.Tuple([*done.spaces.values()])
    number = int(rng.integers(1, 5))
    make = {"parallel": Forms, "aec": turn_based, "gymnasium": Alone}[kind]
    config = small_config(make, env_config={"observation_space": seen, "action_space": done, "num_agents": number})
    config.env_runners(num_envs_per_env_runner=1 if kind == "gymnasium" else 2, num_env_workers=num_env_workers)
    algo = config.fault_tolerance(restart_failed_sub_environments=bool(rng.random() < 0.5)).build_algo()
    checked = 0
    for episode in algo.env_runner.sample(num_timesteps=8 * number):
        for own in [episode] if kind == "gymnasium" else episode.agent_episodes.values():
            checked += check_episode(own, seen, done, has_actions=kind != "aec")
    algo.stop()
    assert checked


def check_episode(own, seen, done, has_actions):
    infos = own.get_infos()
    expected = stacked(seen, [info["seen"] for info in infos])
    assert_identical(own.get_observations(), expected)
    if has_actions and len(own):
        given = [info["done"] for info in infos[1:]]
        assert not any(misfit(done, action) for action in given)
        for action in given if isinstance(done, spaces.Dict) else ():
            assert list(action) == list(done.spaces)
        name = "actions_for_env"  # there are some only where they differ from the modules' own
        did = own.get_extra_model_outputs(name) if name in own.storage.extra_keys() else own.get_actions()
        assert_identical(in_dtypes(done, did), stack(given, done))
    return len(infos)


@pytest.mark.few(7)
@pytest.mark.parametrize("kind", ["parallel", "aec", "gymnasium"])
@pytest.mark.parametrize("seed", range(15))
def test_rows_hold_what_agents_saw_and_did(seed, kind):
    check(seed, kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_rows_hold_what_agents_saw_and_did_in_other_processes(seed):
    check(seed, "parallel", num_env_workers=2)


@pytest.mark.slow
def test_rows_hold_what_agents_saw_and_did_in_many_spaces():
    first = int(np.random.SeedSequence().entropy) % 2**40
    for seed in range(first, first + 60):
        for kind in ("parallel", "aec", "gymnasium"):
            print(f"seed {seed}, {kind}")
            check(seed, kind)


# What pieces and modules of users give.


class Retyped(ConnectorV2):
    """Makes something else of each action that means the same."""

    form = staticmethod(lambda item: item)

    def __call__(self, *, batch, episodes, **kwargs):
        for items in batch["actions"].values():
            items[:] = map(type(self).form, items)
        return batch


class AsTuple(Retyped):
    form = staticmethod(lambda item: tuple(int(x) for x in item))


class AsList(Retyped):
    form = staticmethod(lambda item: [int(x) for x in item])


class AsArray(Retyped):
    form = staticmethod(lambda item: np.array([int(x) for x in item]))


PARTS = spaces.Tuple([spaces.Discrete(5), spaces.Discrete(5)])
CHOICES = spaces.MultiDiscrete([5, 5])


@pytest.mark.parametrize("piece", [AsTuple, AsList, AsArray])
@pytest.mark.parametrize("space", [PARTS, CHOICES], ids=str)
def test_actions_that_a_piece_gives_in_another_form_stay_each_agents_own(space, piece):
    seen = spaces.Box(-1, 1, (2,))
    results = []
    for pieces in ({}, {"module_to_env_connector": lambda *args, **kwargs: piece()}):
        config = small_config(lambda env_config: Forms(seen, space, 2)).env_runners(**pieces)
        episodes = config.build_algo().env_runner.sample(num_timesteps=5)
        agents = [own for episode in episodes for own in episode.agent_episodes.values()]
        results.append([np.array(own.get_actions()).tolist() for own in agents])
        for own in agents:
            told = [np.array(info["done"]).tolist() for info in own.get_infos()[1:]]
            acted = own.get_actions()
            rows = list(zip(*acted, strict=True)) if isinstance(acted, tuple) else acted
            assert np.array(rows).tolist() == told
    assert results[0] == results[1]


class Rules(RLModule):
    """Puts actions with parts out as one array."""

    def _forward(self, batch, **kwargs):
        first = (batch["obs"][:, 0] > 0).long()
        return {"actions": torch.stack([first, 4 - first], dim=1)}


def test_a_module_may_put_out_the_parts_of_a_tuple_as_one_array():
    config = small_config(lambda env_config: Forms(spaces.Box(-1, 1, (2,)), PARTS, 2))
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Rules)).multi_agent(policies_to_train=[])
    for episode in config.build_algo().env_runner.sample(num_timesteps=4):
        for own in episode.agent_episodes.values():
            expected = (own.get_observations()[:-1, 0] > 0).astype(int)
            first, second = own.get_actions()
            assert first.tolist() == expected.tolist() and second.tolist() == (4 - expected).tolist()
            assert [list(info["done"]) for info in own.get_infos()[1:]] == [[x, 4 - x] for x in expected.tolist()]


class Masked(Forms):
    """Each agent may do one thing only, as lists in a tuple say."""

    def _observe(self, actions):
        given, infos = super()._observe(actions)
        for agent, info in infos.items():
            info["action_mask"] = ([1, 0], [0, 1]) if agent == "a0" else ([0, 1], [0, 1])
        return given, infos


def test_masks_in_lists_stay_each_agents_own():
    config = small_config(lambda env_config: Masked(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2]), 2))
    config.env_runners(env_to_module_connector=lambda *args, **kwargs: ActionMasking())
    for episode in config.build_algo().env_runner.sample(num_timesteps=4):
        for agent_id, own in episode.agent_episodes.items():
            assert {tuple(action) for action in own.get_actions().tolist()} == {(int(agent_id == "a1"), 1)}
