"""What an agent draws follows from the seed, its sub-environment, its episode, itself and the step alone."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import DefaultPPORLModule, RLModuleSpec, TorchCategorical
from marl_connectors.env_runners.action_noise import ActionNoise

SETTINGS = {"agents": tuple("abcde"), "die": 0.2, "join": 0.4, "fixed": False, "max_steps": 12}


def runner_of(env_class=LifeEnv, num_envs=1, policies="shared", seed=3, fragment=5, **settings):
    config = small_config(lambda: env_class(**{**SETTINGS, **settings})).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
    return config.debugging(seed=seed).build_algo().env_runner


def played(episodes, env_index=0):
    """Actions in one sub-environment, by episode, agent and env step."""
    found = {}
    for episode in episodes:
        if not episode.id_.startswith(f"{env_index}-"):
            continue
        for agent_id, own in episode.agent_episodes.items():
            for i, action in enumerate(own.get_actions().tolist()):
                found[episode.id_, agent_id, own.id_, own.t_started + i] = action
    return found


def common(first, *others):
    """What all have played, which must be a lot."""
    keys = set(first).intersection(*others)
    assert len(keys) > 0.8 * len(first) > 20
    return keys


@pytest.mark.few(2)
@pytest.mark.parametrize("env_class", [LifeEnv, RandomAEC])
@pytest.mark.parametrize("seed", range(4))
def test_agents_that_come_and_go_elsewhere_change_nothing_here(env_class, seed):
    alone = runner_of(env_class, 1, seed=seed).sample(num_timesteps=60)
    expected = played(alone)
    for num_envs in (2, 5):
        found = played(runner_of(env_class, num_envs, seed=seed).sample(num_timesteps=60 * num_envs))
        assert {key: found[key] for key in common(expected, found)} == {
            key: expected[key] for key in common(expected, found)
        }


def test_the_order_in_which_agents_are_listed_changes_no_draw():
    runners = [runner_of(agents=tuple(order), die=0.0, join=0.0, fixed=True) for order in ("abcde", "ecadb")]
    for runner in runners:
        for parameter in runner.rl_module.parameters():
            parameter.data.zero_()  # so that only the draws decide
    first, second = (played(runner.sample(num_timesteps=60)) for runner in runners)
    assert {key: first[key] for key in common(first, second)} == {key: second[key] for key in common(first, second)}


def test_fragments_change_no_draw():
    once = played(runner_of().sample(num_timesteps=60))
    runner, pieces = runner_of(), {}
    for size in (1, 7, 30, 2, 20):
        pieces |= played(runner.sample(num_timesteps=size))
    same = common(once, pieces)  # a chunk shows an agent's newest life only
    assert {key: pieces[key] for key in same} == {key: once[key] for key in same}


def test_a_sample_of_episodes_does_not_depend_on_how_long_those_of_other_copies_were():
    def ids(num_envs):
        runner = runner_of(num_envs=num_envs)
        return [[e.id_ for e in runner.sample(num_episodes=2 * num_envs) if e.id_[0] == "0"] for _ in range(4)]

    assert ids(1) == ids(4) == [["0-0", "0-1"], ["0-2", "0-3"], ["0-4", "0-5"], ["0-6", "0-7"]]


class DrawsFromTorch(TorchCategorical):
    @classmethod
    def noise(cls, rng, shape, num_inputs):
        return None


class DrawsFromTorchModule(DefaultPPORLModule):
    def get_exploration_action_dist_cls(self):
        return DrawsFromTorch


def test_samples_of_episodes_draw_different_numbers_from_torch_too():
    make = lambda: LifeEnv(**{**SETTINGS, "die": 0.0, "join": 0.0, "fixed": True, "max_steps": 20})
    config = small_config(make).rl_module(rl_module_spec=RLModuleSpec(DrawsFromTorchModule))
    runner = config.debugging(seed=3).build_algo().env_runner
    for parameter in runner.rl_module.parameters():
        parameter.data.zero_()
    found = [tuple(played(runner.sample(num_episodes=1)).values()) for _ in range(5)]
    assert len(set(found)) == 5
    assert all(len(actions) == 100 for actions in found)


def test_copies_episodes_agents_and_steps_draw_different_numbers():
    runner = runner_of(num_envs=3, die=0.0, join=0.0, fixed=True, max_steps=20)
    for parameter in runner.rl_module.parameters():
        parameter.data.zero_()
    by_life = {}
    for episode in runner.sample(num_timesteps=3 * 80):
        for agent_id, own in episode.agent_episodes.items():
            by_life[episode.id_, agent_id] = tuple(own.get_actions().tolist())
    assert len(by_life) == 3 * 4 * 5
    assert len(set(by_life.values())) == len(by_life)
    counts = np.bincount([action for life in by_life.values() for action in life], minlength=3)
    assert np.abs(counts / counts.sum() - 1 / 3).max() < 0.05


@pytest.mark.few(1)
@pytest.mark.parametrize("num_envs", [1, 4])
def test_random_actions_do_not_depend_on_other_copies_either(num_envs):
    found = played(runner_of(num_envs=num_envs).sample(num_timesteps=60 * num_envs, random_actions=True))
    expected = played(runner_of(num_envs=2).sample(num_timesteps=120, random_actions=True))
    assert found == expected


def test_random_actions_obey_masks():
    config = small_config("marl_envs.masked_v0").environment(env_config={"illegal": "raise", "ep_len": 9})
    runner = config.build_algo().env_runner
    taken = [
        action
        for episode in runner.sample(num_timesteps=40, random_actions=True)
        for own in episode.all_agent_episodes()
        for action in own.get_actions().tolist()
    ]
    assert set(taken) == set(range(6))


def test_a_stream_at_another_time_draws_what_belongs_to_that_time():
    def drawn(noise, t):
        rows = object()
        noise.place("group", rows, noise.words_of(np.arange(2)), np.zeros(2, np.int64), np.array(t))
        return noise.array_for_rows(rows, TorchCategorical, 3).tolist()

    noise = ActionNoise(seed=3)
    assert drawn(noise, [0, 0]) != drawn(noise, [0, 4]) == drawn(ActionNoise(seed=3), [0, 4])
    noise.step += 1
    assert drawn(noise, [1, 5]) == drawn(ActionNoise(seed=3), [1, 5]), "it goes on by itself"
    assert drawn(noise, [0, 4]) == drawn(ActionNoise(seed=3), [0, 4])
