"""Tallies give the numbers that all returns would give, in bounded memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.env_runners.run_metrics import (
    EpisodeSummary,
    Returns,
    end_together,
    summarize,
)
from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS
from marl_connectors.state import read_state

RETURNS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(st.lists(RETURNS, min_size=1, max_size=5))
def test_merged_returns_are_those_of_all_together(parts):
    merged = Returns()
    for part in parts:
        merged.merge(Returns.of(part))
    whole = np.concatenate(parts)
    assert (merged.count, merged.lowest, merged.highest) == (len(whole), whole.min(), whole.max())
    assert merged.mean == pytest.approx(whole.mean(), abs=1e-6)
    assert merged.std == pytest.approx(whole.std(), abs=1e-6)


def test_the_order_of_returns_does_not_matter():
    values = np.random.default_rng(0).normal(size=1000)
    assert Returns.of(values) == Returns.of(values[::-1])


@pytest.mark.parametrize("num_agents", [3, 1200])
def test_a_joint_summary_counts_like_one_by_agent(num_agents, tmp_path):
    """Some of 1,200 agents are not remembered."""
    rng, ids = np.random.default_rng(0), tuple(range(num_agents))
    modules = [tuple("xy"[i % 2] for i in ids), ("z",) * num_agents]
    returns, truncated = rng.normal(size=3 * num_agents), rng.random(3 * num_agents) < 0.5
    steps = rng.integers(1, 7, 3 * num_agents)
    begins = np.arange(3) * num_agents
    joint, apart = ([EpisodeSummary() for _ in range(3)] for _ in range(2))
    for summaries in (joint, apart):
        of_modules = [modules[i % 2] for i in range(3)]
        end_together(summaries, [4, 5, 6], [ids] * 3, of_modules, returns, truncated, steps, begins)
    for summary in apart:
        summary.take_apart()
    assert all(len(summary.agents) == min(num_agents, 1000) and summary.together is None for summary in apart)
    save_state(tmp_path / "c", {"summaries": joint})
    again = [read_state(EpisodeSummary, own) for own in load_state(tmp_path / "c")["summaries"]]
    assert repr(summarize(joint)) == repr(summarize(again))
    if num_agents < 1000:
        assert repr(summarize(joint)) == repr(summarize(apart)) == repr(summarize([apart[0], *joint[1:]]))
    assert [summary.is_truncated for summary in joint] == [summary.is_truncated for summary in apart]
    for metrics in (summarize(joint), summarize(apart)):
        of_z = metrics["module_episode_returns"]["z"]
        assert of_z["mean"] == pytest.approx(returns[begins[1] : begins[2]].mean())
        assert of_z["num_episodes"] == num_agents
        assert metrics["module_steps"]["z"] == pytest.approx(steps[begins[1] : begins[2]].mean())
        assert metrics["agent_steps"][num_agents - 1] == pytest.approx(steps[num_agents - 1 :: num_agents].mean())
        assert list(metrics["agent_episode_returns_mean"]) == list(ids[-1000:])
    assert joint[2].episode_return == pytest.approx(returns[begins[2] :].sum())


def test_rewards_before_the_first_action_count_for_the_life_that_ends_next():
    summary = EpisodeSummary()
    for agent_id, reward in (("a", 3.0), ("b", -3.0), ("a", 2.0)):
        summary.credit_absent_agent(agent_id, reward)
    summary = summary.copy()
    columns = np.array([1.0, 5.0]), np.zeros(2, bool), np.array([2, 2])
    end_together([summary], [4], [("a", "b")], [("m", "m")], *columns, np.array([0]))
    assert summary.episode_return == 3 - 3 + 2 + 1 + 5
    assert summary.agent_totals == {"a": (1, 6.0, 2), "b": (1, 2.0, 2)}
    assert summarize([summary])["module_episode_returns"]["m"]["mean"] == 4.0


def test_rewards_that_cancel_out_are_remembered_agent_by_agent():
    summary = EpisodeSummary()
    summary.credit_absent_agent("a", 1.0)
    summary.credit_absent_agent("b", -1.0)
    assert not summary.is_empty
    columns = np.array([0.0, 0.0]), np.zeros(2, bool), np.array([2, 2])
    end_together([summary], [4], [("a", "b")], [("m", "n")], *columns, np.array([0]))
    assert summarize([summary])["agent_episode_returns_mean"] == {"a": 1.0, "b": -1.0}


def test_agents_that_end_together_after_others_count_like_one_by_one():
    summary = EpisodeSummary()
    summary.end_life("a", "m", 1.0, True, 3)
    summary.credit_absent_agent("b", 0.5)
    columns = np.array([2.0, 4.0]), np.array([False, True]), np.array([5, 6])
    end_together([summary], [9], [("a", "b")], [("m", "n")], *columns, np.array([0]))
    assert (summary.length, summary.episode_return, summary.is_truncated) == (9, 7.5, True)
    assert summary.agent_totals == {"a": (2, 3.0, 8), "b": (1, 4.5, 6)}


def test_late_rewards_come_to_agents_that_ended_together():
    summary = EpisodeSummary()
    ended = np.array([2.0, 4.0]), np.array([False, False]), np.array([5, 6])
    end_together([summary], [6], [("a", "b")], [("m", "m")], *ended, np.array([0]))
    summary.credit_absent_agent("b", -8.0)
    assert summary.episode_return == -2.0
    assert summary.agent_totals == {"a": (1, 2.0, 5), "b": (1, -4.0, 6)}


def test_returns_far_from_zero_keep_their_spread():
    merged = Returns()
    for value in (1e9, 1e9 + 1, 1e9 + 2):
        merged.merge(Returns.of([value]))
    assert merged.std == pytest.approx(math.sqrt(2 / 3), rel=1e-6)


def test_an_agent_with_several_lives_counts_as_often():
    summary = EpisodeSummary()
    summary.end_life("a", "m", 1.0, False, 3)
    summary.end_life("b", "m", 4.0, False, 7)
    summary.end_life("a", "n", 16.0, False, 2)
    summary.length = 7
    metrics = summarize([summary])
    assert (metrics["episode_return_mean"], metrics["episode_len_mean"]) == (21.0, 7.0)
    assert metrics["agent_episode_returns_mean"] == {"b": 4.0, "a": 8.5}
    assert metrics["agent_steps"] == {"b": 7.0, "a": 2.5}
    assert metrics["module_steps"] == {"m": 5.0, "n": 2.0}
    modules = metrics["module_episode_returns"]
    assert modules["m"] == {"mean": 2.5, "std": 1.5, "min": 1.0, "max": 4.0, "num_episodes": 2}
    assert modules["n"] == {"mean": 16.0, "std": 0.0, "min": 16.0, "max": 16.0, "num_episodes": 1}


def test_a_late_reward_belongs_to_the_newest_life_that_has_ended():
    summary = EpisodeSummary()
    for life_return in (1.0, 4.0):
        summary.end_life("a", "m", life_return, False, 1)
    summary.credit_absent_agent("a", -8.0)
    summary.credit_absent_agent("never seen", 32.0)
    stats = summarize([summary])
    assert stats["episode_return_mean"] == 29.0
    assert stats["module_episode_returns"]["m"] == {
        "mean": -1.5,
        "std": 2.5,
        "min": -4.0,
        "max": 1.0,
        "num_episodes": 2,
    }
    assert stats["agent_episode_returns_mean"] == {"a": -1.5}


def test_only_the_agents_that_ended_last_are_remembered_but_all_are_counted():
    summary = EpisodeSummary()
    number = REMEMBERED_AGENTS + 500
    for i in range(number):
        summary.end_life(i, "m", float(i), i == 3, i)
    summary.end_life(600, "m", 0.5, False, 100)  # comes back and ends again, so it is the last one now
    summary.credit_absent_agent(700, 1000.0)
    summary.credit_absent_agent(0, 0.25)  # forgotten: a reward of the episode, but of no life
    assert list(summary.agents) == [*range(500, 600), *range(601, number), 600]
    assert summary.is_truncated
    stats = summarize([summary])
    lives = [float(i) + 1000.0 * (i == 700) for i in range(number)] + [0.5]
    assert stats["episode_return_mean"] == sum(lives) + 0.25
    module = stats["module_episode_returns"]["m"]
    assert (module["num_episodes"], module["min"], module["max"]) == (number + 1, 0.0, 1700.0)
    assert module["mean"] == pytest.approx(np.mean(lives), rel=1e-12)
    assert module["std"] == pytest.approx(np.std(lives), rel=1e-12)
    assert len(stats["agent_episode_returns_mean"]) == REMEMBERED_AGENTS
    assert stats["agent_episode_returns_mean"][600] == 300.25
    assert stats["agent_steps"][600] == 350.0
    assert stats["module_steps"]["m"] == pytest.approx((sum(range(number)) + 100) / (number + 1), rel=1e-12)


@pytest.mark.parametrize(("flags", "expected"), [((True, False), False), ((False, True), True), ((False,), False)])
def test_an_agent_counts_as_truncated_by_its_newest_life(flags, expected):
    summary = EpisodeSummary()
    for flag in flags:
        summary.end_life("a", "m", 0.0, flag, 1)
    assert summary.is_truncated is expected


def test_agents_of_many_episodes_are_bounded_too():
    summaries = []
    for start in range(0, 3 * REMEMBERED_AGENTS, REMEMBERED_AGENTS):
        summaries.append(EpisodeSummary())
        for i in range(REMEMBERED_AGENTS):
            summaries[-1].end_life(start + i, "m", 1.0, False, 1)
    stats = summarize(summaries)
    assert list(stats["agent_episode_returns_mean"]) == list(range(2 * REMEMBERED_AGENTS, 3 * REMEMBERED_AGENTS))
    assert stats["module_episode_returns"]["m"]["num_episodes"] == 3 * REMEMBERED_AGENTS


def test_without_episodes_there_are_no_numbers():
    stats = summarize([])
    assert all(math.isnan(stats[f"episode_{x}_{y}"]) for x in ("return", "len") for y in ("mean", "min", "max"))
    assert stats["num_episodes"] == 0 and not stats["module_episode_returns"]


def test_a_summary_goes_on_from_a_checkpoint(tmp_path):
    summary = EpisodeSummary()
    for i, agent_id in enumerate(["a", 7, ("x", 1), "a", *range(2000)]):
        summary.end_life(agent_id, f"m{i % 3}", 0.1 * i, i % 5 == 0, i)
    save_state(tmp_path / "c", summary)
    again = read_state(EpisodeSummary, load_state(tmp_path / "c"))
    assert again == summary
    for one in (summary, again):
        one.end_life(1999, "m0", 0.3, True, 5)
        one.credit_absent_agent(1998, 0.7)
    assert summarize([again]) == summarize([summary])


ENVS = {
    "all of them together": lambda: LifeEnv(max_steps=6),
    "agents that die": lambda: LifeEnv(die=0.2, max_steps=9),
    "late joiners, with all at the end": lambda: LifeEnv(join=0.4, fixed=False, max_steps=6),
    "agents that come back": lambda: LifeEnv(die=0.3, join=0.5, fixed=False, max_steps=14),
    "turns": lambda: RandomAEC(die=0.2, join=0.4, back=0.3, fixed=False, max_steps=14),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("fragment", [1, 4, 60])
@pytest.mark.parametrize("env", ENVS)
def test_lengths_are_those_of_all_chunks_together(env, fragment):
    config = small_config(ENVS[env]).multi_agent(policies="c=own,*=others")
    runner = config.env_runners(num_envs_per_env_runner=3).build_algo().env_runner
    chunks = [chunk for _ in range(60 // fragment) for chunk in runner.sample(num_timesteps=3 * fragment)]
    over = {chunk.id_: chunk.env_t for chunk in chunks if chunk.is_done}
    lives: dict = {}
    for chunk in chunks:
        if chunk.id_ in over:
            for life in chunk.all_agent_episodes():
                who = life.agent_id, life.module_id, life.id_
                lives[who] = lives.get(who, 0) + len(life)
    found = runner.get_metrics()
    assert len(over) == found["num_episodes"] > 5
    by_agent, by_module = {}, {}
    for (agent_id, module_id, _), length in lives.items():
        by_agent.setdefault(agent_id, []).append(length)
        by_module.setdefault(module_id, []).append(length)
    counts = {m: own["num_episodes"] for m, own in found["module_episode_returns"].items()}
    if env == "turns":  # agents whose turn never came have episodes of no steps, which no chunk has
        assert all(counts[m] > len(lengths) for m, lengths in by_module.items())
    else:
        assert counts == {m: len(lengths) for m, lengths in by_module.items()}
        assert found["agent_steps"] == pytest.approx({a: np.mean(lengths) for a, lengths in by_agent.items()})
    steps = {m: found["module_steps"][m] * count for m, count in counts.items()}
    assert steps == pytest.approx({m: sum(lengths) for m, lengths in by_module.items()})
    assert set(by_module) == {"own", "others"}
    lengths = list(over.values())
    assert [found[f"episode_len_{x}"] for x in ("min", "max")] == [min(lengths), max(lengths)]
    assert found["episode_len_mean"] == pytest.approx(np.mean(lengths))
