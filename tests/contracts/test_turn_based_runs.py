"""What a runner collects in turn-based environments is what PettingZoo's own loop over them sees."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces
from mpe2 import simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3
from pettingzoo.classic import connect_four_v3, rps_v2, tictactoe_v3

from helpers.envs.random_aec import RandomAEC, RecordedTurns, lives_in_turns
from helpers.envs.scripted_aec import Beat, ScriptedAEC
from helpers.envs.scripted_envs import BOX, assert_same_lives, lives_of_chunks, small_config
from marl_connectors import ActionMasking, FlattenObservations
from marl_connectors.env_runners.run_metrics import summarize
from marl_connectors.errors import EnvError

WIDE = spaces.Box(-1.0, 1.0, (3,), np.float64)
MIXED = {"b": (WIDE, spaces.Discrete(5)), "d": (BOX, spaces.Box(-1.0, 1.0, (2,), np.float32))}
GAMES = {
    "tictactoe": tictactoe_v3.env,
    "connect four": connect_four_v3.env,
    "rock, paper, scissors": lambda: rps_v2.env(max_cycles=4),
    "spread": lambda: simple_spread_v3.env(max_cycles=5),
    "tag": lambda: simple_tag_v3.env(max_cycles=4),
    "speaker and listener": lambda: simple_speaker_listener_v4.env(max_cycles=3),
}
CASES = {
    "fixed agents in any order": {},
    "games of one step": {"max_steps": 1},
    "agents that die on anybody's turn": {"die": 0.2},
    "dead turns at some time": {"die": 0.2, "dead_next": False},
    "everybody is removed at the end": {"die": 0.1, "clears": True},
    "agents that join, and come back": {"die": 0.25, "join": 0.4, "fixed": False, "max_steps": 14},
    "agents that are back at once": {"die": 0.25, "back": 0.7, "join": 0.2, "max_steps": 14},
    "one agent that is back at once": {"agents": "a", "die": 0.4, "back": 1.0},
    "different spaces": {"spaces_of": MIXED, "die": 0.2, "join": 0.4, "fixed": False},
    "int and tuple ids": {"agents": (7, ("x", 1), 0), "die": 0.2, "join": 0.4},
    "one mutable buffer": {"mutable": True, "die": 0.2, "join": 0.4},
}
ANYTHING = {"die": 0.2, "join": 0.4, "back": 0.3, "fixed": False, "dead_next": False, "pays_newcomers": True}


BOARDS = {"tictactoe": 5, "connect four": 7}
"""The fewest moves of a game without illegal ones."""


def runner_of(make, *, num_envs=3, lookback=1, policies="independent", pieces=(), **settings):
    config = small_config(lambda: RecordedTurns(make()), **settings).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=num_envs, episode_lookback_horizon=lookback)
    config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces])
    return config.build_algo().env_runner


def chunks_by_episode(chunks):
    by_id = {}
    for chunk in chunks:
        by_id.setdefault(chunk.id_, []).append(chunk)
    return by_id


def flat(observation):
    """What the pieces leave of an observation."""
    if isinstance(observation, dict):
        return observation["observation"].ravel()
    return np.eye(4)[observation] if np.ndim(observation) == 0 else observation


def assert_all_seen(runner, make, chunks):
    """Holds all chunks of all episodes against a plain loop with the same seeds and actions."""
    by_id = chunks_by_episode(chunks)
    for copy in runner.vector_env.sub_envs:
        for number, entry in enumerate(copy.env.env.log):
            found = lives_of_chunks(by_id.pop(f"{copy.index}-{number}", []))
            expected, _ = lives_in_turns(make(), entry)
            for life in [*expected, *found]:
                life.obs = [np.asarray(flat(observation)) for observation in life.obs]
            assert_same_lives([life for life in found if life.actions], [life for life in expected if life.actions])
    assert not by_id


@pytest.mark.few(2)
@pytest.mark.parametrize("lookback", [0, 1, 3])
@pytest.mark.parametrize("case", CASES)
def test_transitions_equal_a_plain_loop(case, lookback):
    make = lambda: RandomAEC(**CASES[case])
    runner = runner_of(make, lookback=lookback)
    chunks = [c for n in (1, 4, 2, 7, 1, 3, 6, 5, 9) for c in runner.sample(num_timesteps=3 * n)]
    assert_all_seen(runner, make, chunks)
    assert runner.num_env_steps == 38 * 3


@pytest.mark.few(3)
@pytest.mark.parametrize("at_random", [False, True])
@pytest.mark.parametrize("game", GAMES)
def test_real_games_equal_a_plain_loop(game, at_random):
    pieces = [ActionMasking, FlattenObservations] if game in BOARDS else [FlattenObservations]
    runner = runner_of(GAMES[game], num_envs=2, pieces=pieces)
    chunks = [c for n in (1, 5, 2, 20, 7) for c in runner.sample(num_timesteps=2 * n, random_actions=at_random)]
    assert_all_seen(runner, GAMES[game], chunks)
    moves = [len(entry["actions"]) for copy in runner.vector_env.sub_envs for entry in copy.env.env.log[:-1]]
    assert min(moves) >= BOARDS.get(game, 1)  # an illegal move would have ended a game at its mover's cost


@pytest.mark.few(1)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("fragment", range(1, 8))
def test_no_reward_is_lost_or_doubled(fragment, num_envs):
    runner = runner_of(lambda: RandomAEC(**ANYTHING, max_steps=12), num_envs=num_envs)
    received, uncredited, reported = Counter(), Counter(), 0.0
    for _ in range(60 // fragment):
        chunks = runner.sample(num_timesteps=fragment * num_envs)
        reported += runner.get_metrics()["uncredited_reward"]
        for chunk in chunks:
            for life in chunk.all_agent_episodes():
                received[life.agent_id] += life.get_return()
                uncredited[life.agent_id] += life.uncredited_reward
            uncredited.update(chunk._unclaimed)
    games = [copy.env.env.env for copy in runner.vector_env.sub_envs]
    for game in games:
        received.update(game.untold())
    paid = sum((game.paid for game in games), Counter())
    for agent in "abcd":
        assert received[agent] + uncredited[agent] == sum(game.paid[agent] for game in games)
    assert reported == sum(uncredited.values()) != 0
    assert paid


@pytest.mark.few(1)
@pytest.mark.parametrize("fragment", [1, 4, 40])
@pytest.mark.parametrize("dead_next", [True, False])
def test_returns_are_all_that_each_agent_was_paid(fragment, dead_next):
    make = lambda: RandomAEC(**ANYTHING | {"dead_next": dead_next}, max_steps=8)
    runner = runner_of(make, num_envs=2)
    for _ in range(80 // fragment):
        runner.sample(num_timesteps=2 * fragment)
    summaries = runner.take_finished()
    logs = [entry for copy in runner.vector_env.sub_envs for entry in copy.env.env.log[: copy.episode_number]]
    assert len(logs) == len(summaries) > 4
    paid, without_a_turn = Counter(), 0
    for entry in logs:
        lives, uncredited = lives_in_turns(make(), entry)
        paid.update(uncredited)
        for life in lives:
            paid[life.agent] += sum(life.rewards)
        without_a_turn += len(set(uncredited) - {life.agent for life in lives})
    assert without_a_turn
    found = Counter()
    for summary in summaries:
        found.update({agent: total for agent, (_, total, _) in summary.agent_totals.items()})
    assert found == paid
    assert sum(summary.episode_return for summary in summaries) == sum(paid.values())
    modules = summarize(summaries)["module_episode_returns"].values()
    assert sum(own["mean"] * own["num_episodes"] for own in modules) == pytest.approx(sum(paid.values()))


class Folding(ScriptedAEC):
    """The first player ends each game with its first action, and loses 1 to the other one, who has had no turn."""

    def __init__(self):
        super().__init__([Beat("a"), Beat("b", {"a": -1, "b": 1}, terminated="ab")])

    def action_space(self, agent):
        return spaces.Discrete(2)


def test_a_player_whose_turn_never_came_has_a_return():
    runner = runner_of(Folding, num_envs=1, policies="shared", pieces=[FlattenObservations])
    runner.sample(num_episodes=3)
    metrics = runner.get_metrics()
    assert metrics["agent_episode_returns_mean"] == {"a": -1.0, "b": 1.0}
    assert metrics["agent_steps"] == {"a": 1.0, "b": 0.0}
    (own,) = metrics["module_episode_returns"].values()
    assert (own["mean"], own["num_episodes"]) == (0.0, 6)


# What sample() is asked for.


def test_a_forced_reset_drops_what_agents_wait_for():
    make = lambda: RandomAEC(**ANYTHING | {"pays_newcomers": False}, max_steps=30)
    runner = runner_of(make)
    chunks = []
    for n in (5, 4, 1, 7):
        chunks += runner.sample(num_timesteps=3 * n, force_reset=True)
    assert {chunk.id_ for chunk in chunks} == {f"{copy}-{number}" for copy in range(3) for number in range(4)}
    assert_all_seen(runner, make, chunks)


def test_a_lane_has_rows_for_its_own_turns_only():
    runner = runner_of(lambda: RandomAEC(agents="abcdefghij", max_steps=200), num_envs=1, policies="shared")
    runner.rollout_fragment_length = 100  # ten turns of each agent
    for _ in range(3):
        chunks = runner.sample()
        assert sum(chunk.agent_steps() for chunk in chunks) >= 80
        (group,) = runner._episodes.lanes.groups
        assert group.rollout.num_rows < 40


def test_whole_games_are_as_many_as_asked_for():
    make = lambda: RandomAEC(die=0.2, join=0.2, fixed=False, max_steps=12)
    runner = runner_of(make)
    runner.sample(num_timesteps=6)
    games = runner.sample(num_episodes=7)
    assert len(games) == 7 and all(game.is_done and game.env_t_started == 0 for game in games)
    entries = {f"{c.index}-{n}": e for c in runner.vector_env.sub_envs for n, e in enumerate(c.env.env.log)}
    for game in games:
        expected, _ = lives_in_turns(make(), entries[game.id_])
        assert_same_lives(lives_of_chunks([game]), expected)
        assert game.env_steps() == len(entries[game.id_]["actions"]) == game.agent_steps()
    metrics = runner.get_metrics()
    assert metrics["episode_len_mean"] == np.mean([len(game) for game in games])
    assert metrics["episode_return_mean"] == pytest.approx(np.mean([game.get_return() for game in games]))
    assert runner.sample(num_timesteps=3)[0].env_t_started == 0


def test_random_moves_are_spread_over_all_legal_ones():
    runner = runner_of(tictactoe_v3.env, num_envs=2, pieces=[ActionMasking, FlattenObservations])
    games = runner.sample(num_episodes=60, random_actions=True)
    firsts = Counter(int(game.agent_episodes["player_1"].get_actions(0)) for game in games)
    assert set(firsts) == set(range(9)) and max(firsts.values()) < 20
    for game in games:
        moves = [move for player in game.agent_episodes.values() for move in player.get_actions().tolist()]
        assert len(set(moves)) == len(moves) >= 5


# Whose reward is it?


def sampled(beats, pieces=(100,), agents="ab", **settings):
    """The chunks of a scripted game, over after its beats."""
    runner = runner_of(lambda: ScriptedAEC(beats, agents, **settings), num_envs=1, disable_env_checking=True)
    return [runner.sample(num_timesteps=n)[0] for n in pieces], runner


def test_rewards_are_of_the_action_that_they_followed():
    beats = [
        Beat("a"),
        Beat("b", {"a": 1, "b": 2}),  # b has not acted yet
        Beat("a", {"a": 4, "b": 8}),
        Beat("a", {"a": 16}),
        Beat("b", {"a": 32, "b": 64}),
        Beat("b", {"a": 128, "b": 256}, truncated="ab"),
    ]
    (chunk,), runner = sampled(beats, (5,))
    assert {a: e.get_rewards().tolist() for a, e in chunk.agent_episodes.items()} == {"a": [5, 16, 160], "b": [72, 256]}
    assert chunk._unclaimed == {"b": 2} and runner.get_metrics()["uncredited_reward"] == 2
    chunks, runner = sampled(beats, (1, 1, 1, 1, 1))
    rewards = [{a: e.get_rewards().tolist() for a, e in c.agent_episodes.items()} for c in chunks]
    # After four steps, b has its turn: nobody has told a that it was paid 32.
    assert rewards[:3] == [{"a": [], "b": []}, {"a": [5], "b": []}, {"a": [16], "b": []}]
    assert rewards[3:] == [{"a": [], "b": [72]}, {"a": [160], "b": [256]}]
    assert runner.get_metrics()["uncredited_reward"] == 2
    assert runner.sample(num_timesteps=1)[0].id_ == "0-1"


def test_what_the_reset_pays_is_of_no_action():
    beats = [Beat("a", {"a": 1, "b": 2}), Beat("a", {"a": 4}), Beat("b", {"b": 8}), Beat("a", {"b": 16}, "ab")]
    (chunk,), runner = sampled(beats, (3,))
    assert {a: e.get_rewards().tolist() for a, e in chunk.agent_episodes.items()} == {"a": [4, 0], "b": [16]}
    assert chunk.agent_episodes["a"].uncredited_reward == 1 and chunk._unclaimed == {"b": 10}
    metrics = runner.get_metrics()
    assert metrics["uncredited_reward"] == 11 and metrics["episode_return_mean"] == 31
    beats = [Beat("a", {"b": 6}, terminated="b"), Beat("b", {"b": 3}), Beat("a", {"b": 1}, "ab")]
    (chunk,), _ = sampled(beats, (2,), returning="b")  # b is back, and told again, before it ever acts
    assert chunk._unclaimed == {"b": 9} and chunk.agent_episodes["b"].get_rewards().tolist() == [1]


def test_an_agent_without_a_turn_has_no_episode_but_its_rewards_are_counted():
    beats = [Beat("a"), Beat("a", {"b": 4}, terminated="b"), Beat("a", {"a": 1}, truncated="ac")]
    (chunk,), runner = sampled(beats, (2,), "abc")
    assert list(chunk.agent_episodes) == ["a"] and chunk.is_done
    assert chunk.agent_episodes["a"].get_rewards().tolist() == [0, 1]
    assert chunk.uncredited_reward == 4 and runner.get_metrics()["episode_return_mean"] == 5


def test_an_agent_that_is_back_at_once_begins_a_life():
    beats = [Beat("a"), Beat("a", {"a": 3}, terminated="a"), Beat("a", {"a": 5}, truncated="a")]
    (chunk,), runner = sampled(beats, (3,), "a", returning="a")
    first, second = chunk.all_agent_episodes()
    assert first.get_rewards().tolist() == [3] and first.is_terminated
    assert second.get_rewards().tolist() == [5] and second.is_truncated
    assert first.id_ != second.id_ and len(chunk) == 3
    assert runner.num_env_steps == 3 and runner.num_agent_steps == 2
    assert [summary.length for summary in runner.take_finished()] == [3]


def test_a_final_observation_that_is_missing_is_the_one_before():
    beats = [Beat("a"), Beat("b"), Beat("a", {"b": 2}, terminated="b"), Beat("a", {"a": 1}, "a")]

    class Blind(ScriptedAEC):
        def observe(self, agent):
            return None if self.terminations.get(agent) else super().observe(agent)

    runner = runner_of(lambda: Blind(beats, "ab"), num_envs=1, disable_env_checking=True)
    (chunk,) = runner.sample(num_timesteps=3)
    assert chunk.agent_episodes["b"].get_observations().tolist() == [[1, 1], [1, 1]]
    assert chunk.agent_episodes["a"].get_observations().tolist() == [[0, 0], [0, 2], [0, 2]]


# One and the same game.


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_a_simultaneous_game_is_the_same_in_turns(policies):
    def lives_of(make, num_timesteps):
        config = small_config(make).multi_agent(policies=policies).env_runners(num_envs_per_env_runner=2)
        runner = config.build_algo().env_runner
        chunks = [c for _ in range(4) for c in runner.sample(num_timesteps=num_timesteps, explore=False)]
        return {id_: lives_of_chunks(own) for id_, own in chunks_by_episode(chunks).items()}

    at_once = lives_of(lambda: simple_spread_v3.parallel_env(max_cycles=4, N=3), 2 * 3)
    in_turns = lives_of(lambda: simple_spread_v3.env(max_cycles=4, N=3), 2 * 3 * 3)
    assert list(at_once) == list(in_turns) and len(at_once) >= 6
    for id_, lives in at_once.items():
        assert_same_lives(in_turns[id_], lives)


def lives_by_episode(runner, pieces, **options):
    by_id = chunks_by_episode([c for n in pieces for c in runner.sample(num_timesteps=n, **options)])
    return {id_: [life for life in lives_of_chunks(own) if life.actions] for id_, own in by_id.items()}


DISCRETE = {a: (spaces.Box(-1.0, 1.0, (2 + i,), np.float32), spaces.Discrete(2 + i % 3)) for i, a in enumerate("abcd")}


@pytest.mark.slow
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_what_is_sampled_does_not_depend_on_fragments_or_other_copies(policies):
    spaces_of = DISCRETE if policies == "independent" else {}
    make = lambda: RandomAEC(die=0.15, join=0.3, fixed=False, spaces_of=spaces_of, max_steps=20)
    whole = lives_by_episode(runner_of(make, policies=policies), [3 * 160])
    pieced = lives_by_episode(runner_of(make, policies=policies), [3 * n for n in (1, 7, 64, 2, 60, 26)])
    alone = lives_by_episode(runner_of(make, policies=policies, num_envs=1), [100, 60])
    assert whole.keys() == pieced.keys()
    assert {id_ for id_ in whole if id_.startswith("0-")} == alone.keys() and len(alone) > 8
    for others in (pieced, alone):
        for id_, lives in others.items():
            assert_same_lives(lives, whole[id_])


def test_agents_of_one_copy_draw_different_numbers():
    runner = runner_of(lambda: simple_spread_v3.env(max_cycles=50), num_envs=2, policies="shared")
    chunks = runner.sample(num_timesteps=2 * 150)
    actions = [e.get_actions().tolist() for c in chunks if len(c) == 150 for e in c.agent_episodes.values()]
    assert len(actions) == 6 and len(set(map(tuple, actions))) == 6


# Errors.


def raised_by(beats, steps, **settings):
    runner = runner_of(lambda: ScriptedAEC(beats, "ab", **settings), num_envs=1, disable_env_checking=True)
    with pytest.raises(EnvError) as caught:
        runner.sample(num_timesteps=steps)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_breaks_the_rules_is_named_with_copy_episode_step_and_seed():
    message = raised_by([Beat("a"), Beat("b"), Beat("c")], 2)
    assert re.match(r"sub-environment 0, episode 0, step 1 \(seed \d+\): env\.agent_sel", message)
    message = raised_by([Beat("a"), Beat("b"), Beat("a", removes="b")], 2)
    assert re.match(r"sub-environment 0, episode 0, step 1 \(seed \d+\): .*agent 'b' left env\.agents", message)
    message = raised_by([Beat("a"), Beat("b")], 1, blind="b")
    assert re.match(r"sub-environment 0, episode 0, step 0 \(seed \d+\): .*'b' acts next, but observes None", message)
    message = raised_by([Beat("c")], 1)
    assert re.match(r"sub-environment 0, episode 0, step 0 \(seed \d+\): .*agent_selection is 'c'", message)
    message = raised_by([Beat("a", terminated="ab")], 1)
    assert re.match(r"sub-environment 0, episode 0, step 0: reset\(\) left no live agents", message)
    message = raised_by([Beat("a"), Beat("b", {"b": np.inf})], 1)
    assert re.match(r"sub-environment 0, episode 0, step 1: the reward of agent 'b' is inf", message)
    message = raised_by([Beat("a")], 1)  # the script has come to its end
    assert re.match(
        r"sub-environment 0, episode 0, step 0 \(seed \d+\): step\(\{'a': \d\}\) raised IndexError", message
    )


def test_an_observation_that_does_not_fit_is_named():
    class Grows(ScriptedAEC):
        def observe(self, agent):
            return np.zeros(2 + (self.t == 2), np.int64)

    runner = runner_of(lambda: Grows([Beat("a"), Beat("b"), Beat("a")]), num_envs=1, disable_env_checking=True)
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*episode 0.*step 2.*'a'"):
        runner.sample(num_timesteps=2)


def test_a_smoke_test_finds_what_is_wrong_before_training():
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*IndexError"):
        runner_of(lambda: ScriptedAEC([Beat("a"), Beat("b")]))
    beats = [Beat("a", {"a": 1}), Beat("b", {"b": np.nan}), Beat("a")]
    with pytest.raises(EnvError, match=r"(?s)step 1.*'b'.*\bnan\b"):
        runner_of(lambda: ScriptedAEC(beats))
