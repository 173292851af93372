"""What a runner has returned since its results were last taken."""

from __future__ import annotations

from marl_connectors.env_runners.done_episodes import DoneEpisode
from marl_connectors.env_runners.finished_episodes import FinishedEpisodes
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode


def done(env_index, vector_step, length):
    return DoneEpisode(MultiAgentEpisode(), env_index, EpisodeSummary(length), vector_step)


def test_summaries_are_taken_once_and_places_count_samples_from_there():
    finished = FinishedEpisodes(2)
    finished.begin_sample()
    finished.add([done(0, 3, 3)])
    finished.begin_sample()
    finished.add([done(1, 2, 5), done(0, 4, 1)])
    state = finished.get_state()
    assert state["finished_at"] == [[0, 3, 0], [1, 2, 1], [1, 4, 0]] and state["num_samples"] == 2
    assert [summary.length for summary in finished.take_summaries()] == [3, 5, 1]
    assert finished.take_summaries() == [] and finished.get_state()["num_samples"] == 0
    finished.begin_sample()
    finished.add([done(1, 1, 1)])
    assert finished.get_state()["finished_at"] == [[0, 1, 1]]


def test_uncredited_rewards_are_summed_over_sub_environments_and_taken_once():
    finished = FinishedEpisodes(3)
    finished.add_uncredited_reward(2, 1.5)
    finished.add_uncredited_reward(0, 1.0)
    finished.add_uncredited_reward(2, 0.25)
    assert finished.get_state()["uncredited_reward"] == [1.0, 0.0, 1.75]
    assert finished.take_uncredited_reward() == 2.75
    assert finished.take_uncredited_reward() == 0.0
    assert finished.get_state()["uncredited_reward"] == [0.0] * 3


def test_a_restored_state_continues_as_the_first_one():
    first, second = FinishedEpisodes(2), FinishedEpisodes(2)
    first.begin_sample()
    first.add([done(1, 7, 4)])
    first.add_uncredited_reward(1, 2.0)
    second.set_state(first.get_state())
    for each in (first, second):
        each.begin_sample()
        each.add([done(0, 1, 9)])
    for name in ("finished_at", "num_samples", "uncredited_reward"):
        assert first.get_state()[name] == second.get_state()[name]
    assert [summary.length for summary in second.take_summaries()] == [4, 9]
    assert first.get_state()["finished_at"] == [[0, 7, 1], [1, 1, 0]]
    assert second.take_uncredited_reward() == 2.0
