"""Chunks of episodes, cut anywhere, become the transitions of whole episodes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from helpers.episodes.cut_games import played
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, EpisodeReplayBuffer, SingleAgentEpisode
from marl_connectors.replay_buffers.replay_buffer import PrioritizedEpisodeReplayBuffer

SEEDS = [*range(10), *fresh_seeds(100)]
BUFFERS = (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer)


def transitions(episodes):
    """All steps of whole episodes: the observation before, action, reward, the observation after, and how it ended."""
    found = {}
    for whole in episodes:
        for own in whole.all_agent_episodes():
            for i in range(len(own)):
                ends = (own.is_terminated, own.is_truncated) if i == len(own) - 1 else (False, False)
                before, after = (tuple(own.get_observations(j).tolist()) for j in (i, i + 1))
                found[before] = own.get_actions(i), own.get_rewards(i), after, *ends
    return found


def kept(buffer):
    """The same of a buffer."""
    found = {}
    for segments in buffer.every_step().segments.values():
        columns = segments.rollout.columns
        for i, (start, stop) in enumerate(zip(segments.start, segments.stop, strict=True)):
            before, after = (tuple(columns[Columns.OBS][row].tolist()) for row in (start, stop))
            ends = bool(segments.terminated[i]), bool(segments.truncated[i])
            found[before] = columns[Columns.ACTIONS][start], columns[Columns.REWARDS][start], after, *ends
    return found


def restored(buffer):
    """Another buffer with the same state."""
    other = type(buffer)(capacity=buffer.capacity)
    other.set_state(copy.deepcopy(buffer.get_state()))
    return other


@pytest.mark.parametrize("cls", BUFFERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_chunks_cut_anywhere_become_the_transitions_of_whole_episodes(cls, seed):
    rng = np.random.default_rng(seed)
    wholes = [played(seed, number)[0] for number in range(6)]
    buffer = cls(capacity=3000)
    chunks = [played(seed, number, cut=0.4) for number in range(6)]
    while any(chunks):  # each episode's in their order, several at once
        buffer.add([own.pop(0) for own in chunks if own and rng.random() < 0.6])
        buffer = restored(buffer) if rng.random() < 0.3 else buffer
    expected = transitions(wholes)
    if expected:
        assert kept(buffer) == expected
    assert len(buffer) == len(expected)
    open_ids = {own.id_ for whole in wholes for own in whole.agent_episodes.values() if not own.is_done}
    going_on = {whole.id_ for whole in wholes if not whole.is_done}
    for ring in buffer._rings.values():  # nothing is remembered of an episode that has ended
        assert ring._ended.keys() <= going_on
        assert {e.episode_id.rsplit("/", 1)[0] for e in ring._open.values()} <= {i.rsplit("/", 1)[0] for i in open_ids}


def chunk(first, steps, **settings):
    return SingleAgentEpisode(
        "mine",
        observations=[np.array([first + i], np.float32) for i in range(steps + 1)],
        actions=[0] * steps,
        rewards=[1.0] * steps,
        t_started=first,
        len_lookback_buffer=0,
        **settings,
    )


def one_step_after(buffer):
    """Observation before to observation after, terminated and truncated, of one agent."""
    (segments,) = buffer.every_step().segments.values()
    observations = segments.rollout.columns[Columns.OBS][:, 0]
    ends = zip(segments.terminated.tolist(), segments.truncated.tolist(), strict=True)
    return dict(zip(observations[segments.start], zip(observations[segments.stop], ends, strict=True), strict=True))


@pytest.mark.parametrize("cls", BUFFERS)
@pytest.mark.parametrize("ends", [{"terminated": True}, {"truncated": True}])
def test_an_end_in_a_chunk_without_steps_is_that_of_the_last_step_and_frees_its_lane(cls, ends):
    buffer = cls(capacity=100)
    buffer.add([chunk(0, 2)])
    buffer.add([chunk(2, 0, **ends)])
    flags = "terminated" in ends, "truncated" in ends
    assert one_step_after(buffer) == {0.0: (1.0, (False, False)), 1.0: (2.0, flags)}
    assert not buffer._rings["default_policy"]._open and len(buffer) == 2
    buffer.add([chunk(2, 1)])  # what comes under the same id does not continue it
    assert one_step_after(buffer)[1.0] == (2.0, flags)


def test_an_end_of_steps_that_are_no_longer_kept_or_never_came_marks_nothing():
    buffer = EpisodeReplayBuffer(capacity=100)
    buffer.add([chunk(5, 0, terminated=True)])
    assert buffer.module_ids == []
    buffer.add([chunk(0, 2)])
    buffer.add([chunk(5, 0, terminated=True)])  # the chunk from 2 to 5 is missing
    assert one_step_after(buffer) == {0.0: (1.0, (False, False)), 1.0: (2.0, (False, False))}
    assert not buffer._rings["default_policy"]._open


@pytest.mark.parametrize("start", [1, 3, 0])
def test_a_chunk_that_does_not_begin_where_the_one_before_ended_continues_nothing(start):
    buffer = EpisodeReplayBuffer(capacity=100)
    buffer.add([chunk(0, 2)])
    other = chunk(start, 2)
    other.set_observations(new_data=[o + 100 for o in other.get_observations()])
    buffer.add([other])
    assert {before: after for before, (after, _) in one_step_after(buffer).items()} == {
        0.0: 1.0,
        1.0: 2.0,
        start + 100.0: start + 101.0,
        start + 101.0: start + 102.0,
    }
    ring = buffer._rings["default_policy"]
    assert len(np.unique(ring.numbers[ring.flags > 0])) == 2


def test_an_episode_of_ones_own_keeps_its_lane_while_others_come():
    buffer = EpisodeReplayBuffer(capacity=1000)

    def own(number, first):
        found = chunk(first, 2)
        found.id_ = f"e{number}"
        found.set_observations(new_data=[o + 100 * number for o in found.get_observations()])
        return found

    for first in range(0, 20, 2):
        for number in range(1, 1 + 2 + first // 4):  # ever more of them
            buffer.add([own(number, first if number < 3 else 0)])
    ring = buffer._rings["default_policy"]
    observations = ring.columns[Columns.OBS][:, 0]
    for number in (1, 2):
        rows = (ring.flags > 0) & (observations // 100 == number)
        assert rows.sum() == 20 and len(np.unique(ring.numbers[rows])) == 1


@pytest.mark.parametrize("burn_in", [0, 2])
def test_the_row_before_a_sequence_is_drawn_because_its_state_is_there(burn_in):
    buffer = EpisodeReplayBuffer(capacity=100, seed=1)
    buffer.add([chunk(0, 20)])
    sample = buffer.sample(30, sequence_lens={"default_policy": 3 + burn_in}, burn_in_len=burn_in)
    segments = sample.segments["default_policy"]
    observations = segments.rollout.columns[Columns.OBS][:, 0]
    for first, start in zip(segments.first, segments.start, strict=True):
        assert observations[first] == max(observations[start] - burn_in - 1, 0)
