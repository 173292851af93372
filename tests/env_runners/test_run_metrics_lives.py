from __future__ import annotations

from marl_connectors.env_runners.run_metrics import EpisodeSummary, Returns, summarize


def test_all_lives_of_an_agent_are_in_its_sums():
    summary = EpisodeSummary()
    for life_return, steps in ((1.0, 2), (2.0, 3), (4.0, 5)):
        summary.end_life("a", "m", life_return, False, steps)
    assert summary.agent_totals == {"a": (3, 7.0, 10)}
    found = summarize([summary])
    assert found["agent_episode_returns_mean"] == {"a": 7 / 3}
    assert found["agent_steps"] == {"a": 10 / 3}
    assert found["module_episode_returns"]["m"] == {
        "mean": 7 / 3,
        "std": ((4 / 3) ** 2 / 3 + (1 / 3) ** 2 / 3 + (5 / 3) ** 2 / 3) ** 0.5,
        "min": 1.0,
        "max": 4.0,
        "num_episodes": 3,
    }


def test_returns_that_are_merged_keep_the_extremes_of_both():
    low, high = Returns.of([1.0, 2.0], steps=3), Returns.of([5.0], steps=4)
    low.merge(high)
    assert (low.lowest, low.highest, low.count, low.steps, low.total) == (1.0, 5.0, 3, 7, 8.0)


def test_a_reward_before_the_first_life_counts_in_that_life_only():
    summary = EpisodeSummary()
    summary.advances["a"] = 10.0
    for life_return in (1.0, 2.0):
        summary.end_life("a", "m", life_return, False, 1)
    assert summary.agent_totals == {"a": (2, 13.0, 2)} and not summary.advances
    assert summarize([summary])["module_episode_returns"]["m"]["max"] == 11.0
