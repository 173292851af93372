"""Recorded actions of a Discrete space count from 0 whatever its start, in a runner's episodes and all that is made of
them; an episode made by hand holds what was put in."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.envs.scripted_envs import BOX, LifeEnv, Recorded, small_config
from helpers.examples import examples
from marl_connectors import SingleAgentEpisode
from marl_connectors.episodes.bootstrap_view import extended
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.errors import EpisodeError


def sampled(start, steps=7, pieces=()):
    """An episode of agents a and b, and the actions that the environment got."""
    spaces_of = {"a": (BOX, spaces.Discrete(3, start=start)), "b": (BOX, spaces.Discrete(4))}
    config = small_config(lambda config: Recorded(LifeEnv(agents="ab", spaces_of=spaces_of, max_steps=7)))
    config.env_runners(module_to_env_connector=lambda env: [make() for make in pieces], episode_lookback_horizon=2)
    runner = config.multi_agent(policies="independent").build_algo().env_runner
    chunks = runner.sample(num_timesteps=steps)
    sent = [step[0] for step in runner.vector_env.sub_envs[0].env.log[0]["steps"]]
    return runner, chunks[0], {agent: np.array([int(actions[agent]) for actions in sent]) for agent in "ab"}


@pytest.mark.parametrize("start", [-2, 0, 1, 5])
def test_actions_of_a_runner_count_from_0_and_their_one_hot_vectors_too(start):
    _, episode, sent = sampled(start)
    actions = episode.get_actions()
    np.testing.assert_array_equal(actions["a"], sent["a"] - start)
    np.testing.assert_array_equal(actions["b"], sent["b"])
    for found in (episode.get_actions(one_hot_discrete=True), episode.get_actions(one_hot_discrete=True, fill=0)):
        np.testing.assert_array_equal(found["a"], np.eye(3)[sent["a"] - start])
        np.testing.assert_array_equal(found["b"], np.eye(4)[sent["b"]])
    by_own_steps = episode.get_actions([-1, 0], env_steps=False, one_hot_discrete=True)
    np.testing.assert_array_equal(by_own_steps["a"], np.eye(3)[sent["a"][[-1, 0]] - start])
    newest = episode.get_actions(-1, one_hot_discrete=True, return_list=True)
    np.testing.assert_array_equal(newest[0]["a"], np.eye(3)[sent["a"][-1] - start])


def grown(part):
    """A copy in lists, as a first step of one's own makes it."""
    part = part.slice(slice(0, None))
    part.lists()
    return part


def cut_and_joined(part):
    first, second = part.slice(slice(0, 3)), part.slice(slice(3, None))
    first.concat_episode(second)
    return first


def appended(part):
    """What has no actions yet takes over what its continuation holds."""
    first = part.slice(slice(0, 0))
    first.concat_episode(part)
    return first


def longer(part):
    """Its artificial step has action 0."""
    return extended(part).slice(slice(0, len(part)))


def packed(part):
    """Beside one of the same spaces that is made by hand."""
    part, values = grown(part), [5, 6, 7]
    by_hand = SingleAgentEpisode(
        observations=[np.zeros(2, np.float32)] * 4,
        actions=values,
        rewards=[0.0] * 3,
        observation_space=part.observation_space,
        action_space=part.action_space,
        len_lookback_buffer=0,
    )
    rows_of_episodes([by_hand, part], ["default_policy", "a"])
    assert type(part.storage) is type(by_hand.storage) is LaneStorage
    assert by_hand.get_actions().tolist() == values
    np.testing.assert_array_equal(by_hand.get_actions(one_hot_discrete=True), np.eye(3))
    return part


def stored(part):
    return SingleAgentEpisode.from_state(part.get_state())


def stored_as_lists(part):
    return stored(grown(part))


CHANGES = [grown, cut_and_joined, appended, longer, packed, stored, stored_as_lists]


@pytest.mark.parametrize("change", [*CHANGES, lambda part: grown(part).to_numpy()])
def test_copies_of_a_runners_episodes_know_it_too(change):
    _, episode, sent = sampled(5)
    part = change(episode.agent_episodes["a"])
    np.testing.assert_array_equal(np.array(part.get_actions()), sent["a"] - 5)
    np.testing.assert_array_equal(np.array(part.get_actions(one_hot_discrete=True)), np.eye(3)[sent["a"] - 5])


def test_a_step_more_is_one_hot_too():
    _, episode, sent = sampled(5)
    longer = extended(episode.agent_episodes["a"])
    expected = np.eye(3)[[*(sent["a"] - 5), 0]]
    np.testing.assert_array_equal(longer.get_actions(one_hot_discrete=True), expected)


def test_a_chunks_lookback_and_a_successor_that_is_played_on_by_hand():
    runner, _, _ = sampled(5, steps=3)
    (chunk,) = runner.sample(num_timesteps=2)
    sent = [step[0]["a"] - 5 for step in runner.vector_env.sub_envs[0].env.log[0]["steps"]]
    part = chunk.agent_episodes["a"]
    before = part.get_actions([-2, -1], neg_index_as_lookback=True, one_hot_discrete=True)
    np.testing.assert_array_equal(before, np.eye(3)[sent[1:3]])
    mine = part.cut(len_lookback_buffer=1)
    mine.check_spaces = True
    outputs = {key: items[-1] for key in part.storage.extra_keys() for items in [part.get_extra_model_outputs(key)]}
    mine.add_env_step(np.zeros(2, np.float32), 2, 0.0, extra_model_outputs=outputs)
    got = np.array(mine.get_actions([-1, 0], neg_index_as_lookback=True, one_hot_discrete=True))
    np.testing.assert_array_equal(got, np.eye(3)[[sent[4], 2]])
    with pytest.raises(EpisodeError, match=r"(?s)Discrete\(3\).*\b7\b"):
        mine.add_env_step(np.zeros(2, np.float32), 7, 0.0, extra_model_outputs=outputs)


@examples(30)
@given(st.integers(-5, 5), st.lists(st.integers(0, 2), min_size=1, max_size=5), st.booleans())
def test_by_hand_actions_are_the_values_of_the_space(start, numbers, to_numpy):
    episode = SingleAgentEpisode(
        observations=[0.0] * (len(numbers) + 1),
        actions=[number + start for number in numbers],
        rewards=[0.0] * len(numbers),
        action_space=spaces.Discrete(3, start=start),
        check_spaces=True,
        len_lookback_buffer=0,
    )
    episode = episode.to_numpy() if to_numpy else episode
    assert list(episode.get_actions()) == [number + start for number in numbers]
    np.testing.assert_array_equal(np.array(episode.get_actions(one_hot_discrete=True)), np.eye(3)[numbers])
