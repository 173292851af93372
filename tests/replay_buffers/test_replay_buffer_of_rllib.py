"""Code that is written for RLlib's replay buffers works with these."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors import (
    Columns,
    EpisodeReplayBuffer,
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
    SingleAgentEpisode,
    TeamReplayBuffer,
)
from marl_connectors.errors import CheckpointError, ConfigError, EpisodeError

BUFFERS = (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer)


def episode(name, length, module_id="pi"):
    """An episode whose observations are 0, 1, 2, ..."""
    return SingleAgentEpisode(
        name,
        observations=[np.array([t], np.float32) for t in range(length + 1)],
        actions=[0] * length,
        rewards=[float(t) for t in range(length)],
        terminated=True,
        len_lookback_buffer=0,
        module_id=module_id,
    )


@pytest.mark.parametrize("cls", [*BUFFERS, MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer])
def test_an_episode_or_a_list_of_them_is_added_and_counted(cls):
    buffer = cls(capacity=100)
    buffer.add(episode("a", 3))
    buffer.add([episode("b", 4), episode("c", 5, "other")])
    assert buffer.capacity == 100
    assert buffer.get_num_episodes() == 3 and buffer.get_num_episodes("pi") == 2
    assert buffer.get_num_timesteps() == len(buffer) == 12 and buffer.get_num_timesteps("other") == 5
    assert buffer.get_added_timesteps() == 12 and buffer.get_sampled_timesteps() == 0


def test_episodes_of_which_no_steps_are_left_are_not_counted():
    buffer = EpisodeReplayBuffer(capacity=20)
    for number in range(10):
        buffer.add(episode(str(number), 5))
    assert buffer.get_num_episodes() <= 4 and buffer.get_num_timesteps() <= 20


@pytest.mark.parametrize("cls", BUFFERS)
def test_a_sample_is_a_sequence_of_episodes(cls):
    buffer = cls(capacity=100, seed=1)
    buffer.add([episode("a", 8), episode("b", 2)])
    sample = buffer.sample(batch_size_B=20, batch_length_T=3, n_step=2, beta=0.5, gamma=0.9)
    assert len(sample) == 20 and buffer.get_sampled_timesteps() == sum(map(len, sample))
    for own in sample:
        first = int(own.get_observations(0)[0])
        assert own.module_id == "pi" and own.t_started == first and 1 <= len(own) <= 3
        assert own.get_rewards().tolist() == [float(first + i) for i in range(len(own))]  # not yet added up
        assert own.is_terminated == (len(own) < 3 or first + len(own) in (2, 8))
    again = cls(capacity=100, seed=1)
    again.add([episode("a", 8), episode("b", 2)])
    same = again.sample(20, batch_length_T=3, n_step=2)
    assert [own.id_ for own in same] == [own.id_ for own in sample]


def test_beta_is_that_of_one_sample_or_of_the_buffer():
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0, beta=1.0)
    buffer.add(episode("a", 8))
    buffer.sample(50)
    buffer.update_priorities(np.arange(50.0))
    weights = []
    for beta in (None, 1.0, 0.0):
        buffer.num_samples = 7  # the same steps again
        (segments,) = buffer.sample(50, beta=beta).segments.values()
        weights.append(segments.rollout.columns["weights"][segments.start])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[2] == 1.0).all() and not (weights[0] == 1.0).all()


@pytest.mark.parametrize("form", ["array", "of a module", "of all modules"])
def test_priorities_are_those_of_the_newest_sample(form):
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100, alpha=1.0)
    buffer.add(episode("a", 8))
    buffer.sample(3)
    positions = buffer.sample(4).segments["pi"].positions
    errors = np.full(4, -5.0)
    if form == "array":
        buffer.update_priorities(errors)
    elif form == "of a module":
        buffer.update_priorities(errors, "pi")
    else:
        buffer.update_priorities({"pi": errors})
    assert set(np.flatnonzero(buffer._rings["pi"].tree.weights > 4.9)) == set(positions.tolist())


def test_priorities_that_nobody_uses_are_an_error():
    buffer = EpisodeReplayBuffer(capacity=100)
    buffer.add([chunk("pi", 0, 3)])
    buffer.sample(2)
    with pytest.raises(EpisodeError, match=r"(?s)EpisodeReplayBuffer.*priorities"):
        buffer.update_priorities(np.ones(2))
    with pytest.raises(EpisodeError, match="drawn"):
        PrioritizedEpisodeReplayBuffer().update_priorities(np.ones(2))
    with pytest.raises(ConfigError, match=r"(?s)EpisodeReplayBuffer.*alpha"):
        EpisodeReplayBuffer(alpha=0.5)


def test_agents_are_for_buffers_of_env_steps():
    with pytest.raises(ConfigError, match=r"(?s)TeamReplayBuffer.*\bagents\b"):
        TeamReplayBuffer(100)
    with pytest.raises(ConfigError, match=r"(?s)EpisodeReplayBuffer.*\bagents\b"):
        EpisodeReplayBuffer(100, agents={"pi": ["a"]})


def test_a_weight_is_a_column_of_its_episode():
    buffer = PrioritizedEpisodeReplayBuffer(capacity=100)
    buffer.add(episode("a", 8))
    own = buffer.sample(4)[0]
    assert own.get_extra_model_outputs("weights").tolist() == [1.0] and Columns.OBS not in own.extra_model_outputs


def test_the_state_of_another_kind_of_buffer_is_refused():
    alone, team = EpisodeReplayBuffer(), TeamReplayBuffer(agents={"pi": ["a"]})
    for one, other, kind in ((alone, team, "agents' steps"), (team, alone, "env steps")):
        with pytest.raises(CheckpointError, match=kind):
            other.set_state(one.get_state())
