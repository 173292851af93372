"""Vectors of all agents' observations, of critics on episodes and on replay buffers, show the same agents."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, MultiAgentEpisode
from marl_connectors.algorithms.maddpg.joint_inputs import JointInputs
from marl_connectors.connectors.learner.add_joint_observations_from_episodes_to_train_batch import JointObservations
from marl_connectors.connectors.learner.add_mixer_states_to_train_batch import AddMixerStatesToTrainBatch
from marl_connectors.episodes.packing import chunks_of, rows_of_episodes
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer, TeamReplayBuffer


def of_episodes(episodes, agent_spaces):
    """``(agent, its observation as bytes)`` to the vector that MAPPO's critics get, of all observations."""
    joint, found = JointObservations(agent_spaces).of_episodes(episodes), {}
    for chunk in chunks_of(episodes):
        rows = rows_of_episodes([chunk], [chunk.module_id])
        for observation, vector in zip(rows.get(Columns.OBS), joint.at(rows), strict=True):
            found[chunk.agent_id, observation.tobytes()] = vector
    return found


def of_buffer(episodes, agent_spaces):
    """The same vectors of MADDPG's critics, of the observations after all steps, without the actions."""
    buffer = JointReplayBuffer(1000, agents={"pi": list(agent_spaces)})
    buffer.add(episodes)
    inputs = JointInputs({a: (space, spaces.Discrete(3)) for a, space in agent_spaces.items()})
    sample, found = buffer.every_step(), {}
    vectors, left = inputs.of_sample(sample)
    own = sample.segments["pi"]
    new = inputs.for_agents(vectors[own.items, own.ahead], left[own.items, own.ahead], own.slots)
    after = sample.column(Columns.OBS, "pi")[own.items, own.ahead, own.slots]
    agents = list(agent_spaces)
    for slot, observation, vector, is_terminated in zip(own.slots, after, new, own.terminated, strict=True):
        if not is_terminated:  # nothing is read then
            found[agents[slot], observation.tobytes()] = vector[: inputs.actions_begin]
    return found


def ended_together():
    """One env step in which a and d are stopped alone, b dies, and c goes on."""
    episode = MultiAgentEpisode(
        "g",
        observation_space=dict.fromkeys("abcd", BOX),
        action_space=dict.fromkeys("abcd", spaces.Discrete(3)),
        agent_to_module_mapping_fn=lambda agent, episode: "pi",
    )
    seen = [{a: np.full(2, i + t / 10, np.float32) for i, a in enumerate("abcd", 1)} for t in range(2)]
    episode.add_env_reset(observations=seen[0])
    episode.add_env_step(
        seen[1],
        dict.fromkeys("abcd", 1),
        dict.fromkeys("abcd", 1.0),
        terminateds={"b": True},
        truncateds={"a": True, "d": True},
    )
    return episode, seen[1]


@pytest.mark.parametrize("vectors_of", [of_episodes, of_buffer])
def test_an_agent_that_died_as_another_was_truncated_is_not_in_the_vector_that_is_bootstrapped_from(vectors_of):
    episode, seen = ended_together()
    found = vectors_of([episode], dict.fromkeys("abcd", BOX))
    vector = found["a", seen["a"].tobytes()]
    np.testing.assert_allclose(vector[:8], [1.1, 1.1, 0, 0, 3.1, 3.1, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(vector[8:], [1, 0, 1, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(found["c", seen["c"].tobytes()][8:], [0, 0, 1, 0, 0, 0, 1, 0])


def test_a_mixer_knows_of_the_same_agents():
    episode, _ = ended_together()
    buffer = TeamReplayBuffer(100, agents={"pi": list("abcd")})
    buffer.add([episode])
    piece = AddMixerStatesToTrainBatch(agents={"pi": list("abcd")}, agent_spaces=dict.fromkeys("abcd", BOX))
    (states,) = piece._observations(buffer.every_step())
    np.testing.assert_allclose(states[1], [0, 0, 0, 0, 3.1, 3.1, 0, 0, 0, 0, 1, 0], rtol=1e-6)


@pytest.mark.parametrize("seed", [*range(6), *fresh_seeds(100)])
def test_critics_on_episodes_and_on_replay_buffers_see_the_same_agents(seed):
    rng = np.random.default_rng(seed)
    life = {"die": rng.choice([0.2, 0.5]), "join": rng.choice([0.0, 0.4]), "fixed": bool(rng.integers(2))}
    config = small_config(LifeEnv, env_config=life | {"max_steps": int(rng.integers(2, 9))})
    config.environment(disable_env_checking=True).debugging(seed=seed)
    algo = config.multi_agent(policies={"pi"}, policy_mapping_fn=lambda agent, *_: "pi").build_algo()
    episodes = algo.env_runner.sample(num_episodes=4)
    algo.stop()
    agent_spaces = dict.fromkeys("abc", BOX)
    one, other = of_episodes(episodes, agent_spaces), of_buffer(episodes, agent_spaces)
    assert other
    for key, vector in other.items():
        np.testing.assert_array_equal(one[key], vector, err_msg=str(key))
