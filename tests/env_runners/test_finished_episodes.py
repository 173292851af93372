"""What a runner has returned since its results were last taken."""

from __future__ import annotations

from marl_connectors.env_runners.done_episodes import DoneEpisode
from marl_connectors.env_runners.finished_episodes import FinishedEpisodes
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode


def done(env_index, vector_step, length):
    return DoneEpisode(MultiAgentEpisode(), env_index, EpisodeSummary(length), vector_step)


def test_summaries_are_taken_once_and_samples_are_counted_from_there():
    finished = FinishedEpisodes(2)
    finished.begin_sample()
    finished.add([done(0, 3, 3)])
    finished.begin_sample()
    finished.add([done(1, 2, 5), done(0, 4, 1)])
    places = [[(own.sample, own.vector_step) for own in of_env] for of_env in finished.by_env]
    assert (places, finished.num_samples) == ([[(0, 3), (1, 4)], [(1, 2)]], 2)
    assert [summary.length for summary in finished.take_summaries()] == [3, 5, 1]
    assert finished.take_summaries() == [] and finished.num_samples == 0
    finished.begin_sample()
    finished.add([done(1, 1, 1)])
    assert [(own.sample, own.vector_step) for own in finished.by_env[1]] == [(0, 1)]


def test_summaries_are_sorted_by_sample_step_and_sub_environment():
    finished = FinishedEpisodes(3)
    for number in range(2):
        finished.begin_sample()
        finished.add([done(2, 1, 1 + 10 * number), done(1, 5, 2 + 10 * number), done(0, 5, 3 + 10 * number)])
    assert [summary.length for summary in finished.take_summaries()] == [1, 3, 2, 11, 13, 12]


def test_uncredited_rewards_are_summed_over_sub_environments_and_taken_once():
    finished = FinishedEpisodes(3)
    finished.uncredited_rewards = [1.0, 0.0, 1.75]
    assert finished.take_uncredited_reward() == 2.75
    assert finished.take_uncredited_reward() == 0.0
    assert finished.uncredited_rewards == [0.0] * 3
