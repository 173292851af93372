"""Whole episodes end in arrays, agents' episodes are made when asked for; what comes out is the same."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.batched_envs import Worlds
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import Callbacks, ConnectorV2, EnvError, MappingError
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.environments.rules.step_result import Event
from marl_connectors.episodes.rollout import Rollout

LIVES = {"agents": "abc", "die": 0.0, "max_steps": 7}
DEATHS = {"agents": "abcd", "die": 0.1, "join": 0.2, "max_steps": 9, "fixed": False}
TWO_KINDS = {**LIVES, "spaces_of": {"b": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(4))}}


def by_episode(agent_id, episode, **kwargs):
    return f"m{(ord(agent_id[-1]) + int(episode.id_.split('-')[1])) % 2}"


def mapped_by_episode(config):
    return config.multi_agent(policies=["m0", "m1"], policy_mapping_fn=by_episode)


CASES = {
    "together": (LifeEnv, LIVES, None),
    "deaths": (LifeEnv, DEATHS, None),
    "two kinds of spaces": (LifeEnv, TWO_KINDS, lambda config: config.multi_agent(policies="independent")),
    "modules that change": (LifeEnv, LIVES, mapped_by_episode),
    "batched": (Worlds, {"infos": True}, None),
    "one agent": ("CartPole-v1", {}, None),
}


def runner_of(case, lookback=1):
    env, env_config, change = CASES[case]
    config = small_config(env, env_config=env_config).env_runners(
        num_envs_per_env_runner=3, rollout_fragment_length=5, episode_lookback_horizon=lookback
    )
    return (change or (lambda config: config))(config).build_algo().env_runner


def parts_of(chunk):
    return chunk.all_agent_episodes() if hasattr(chunk, "agent_episodes") else [chunk]


def content(runner, samples=6):
    """All that came of some samples, as text."""
    found = []
    for _ in range(samples):
        for chunk in runner.sample(num_timesteps=12):
            counts = chunk.agent_steps(), chunk.env_steps(), chunk.uncredited_reward
            states = [{**part.get_state(), "duration_s": None} for part in parts_of(chunk)]
            found.append(repr((chunk.id_, chunk.is_terminated, chunk.is_truncated, counts, states)))
    return found, repr(runner.get_metrics())


def told_one_by_one(tracker, result):
    """The same ends of episodes as events, one for each sub-environment."""
    ends, result.ends, begin = result.ends, None, 0
    for place, index in enumerate([] if ends is None else ends.indices):
        agents = list(tracker.lanes.by_env[index])
        own = slice(begin, begin := begin + len(agents))
        event = Event(
            index,
            ends.t[place],
            dict(zip(agents, ends.observations[own], strict=True)),
            dict(zip(agents, ends.terminated[own], strict=True)),
            dict(zip(agents, ends.truncated[own], strict=True)),
            ends.infos[place] if ends.infos else {},
            is_over=True,
        )
        result.events.append(event)
    return result


@pytest.mark.few(4)
@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_together_or_one_by_one_is_the_same(case, lookback, monkeypatch):
    together = content(runner_of(case, lookback))
    apply = EpisodeTracker.apply
    monkeypatch.setattr(
        EpisodeTracker, "apply", lambda self, result, reset_over: apply(self, told_one_by_one(self, result), reset_over)
    )
    one_by_one = content(runner_of(case, lookback))
    assert together[0] == one_by_one[0]
    assert together[1] == one_by_one[1]
    assert len(together[0]) > 10


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_asked_for_or_not_is_the_same(case):
    asked, left = runner_of(case), runner_of(case)
    step = asked._take_step

    def look_at_each_step(*args):
        step(*args)
        for episode in asked._episodes.ongoing:
            parts_of(episode)

    asked._take_step = look_at_each_step
    assert content(asked) == content(left)


def counted(monkeypatch, cls, name):
    calls, method = [], getattr(cls, name)
    monkeypatch.setattr(cls, name, lambda *args, **kwargs: (calls.append(args), method(*args, **kwargs))[1])
    return calls


@pytest.mark.parametrize("case", ["together", "two kinds of spaces", "batched", "one agent"])
def test_nothing_is_done_agent_by_agent(case, monkeypatch):
    ends, made = counted(monkeypatch, EpisodeTracker, "_end_agents"), counted(monkeypatch, EpisodeTracker, "_freeze")
    runner = runner_of(case)
    chunks = [chunk for _ in range(4) for chunk in runner.sample(num_timesteps=60)]
    assert sum(chunk.is_done for chunk in chunks) > 4 and made and not ends


def test_views_are_made_when_somebody_asks_and_not_before():
    runner = runner_of("batched")
    chunks = runner.sample(num_timesteps=33)
    for chunk in chunks:
        steps = chunk.agent_steps(), len(chunk), chunk.is_done, chunk.uncredited_reward
        assert chunk.agent_views is not None
        assert steps[0] == sum(len(part) for part in chunk.agent_episodes.values())
        assert chunk.agent_views is None and chunk.agent_episodes is chunk.agent_episodes
        assert steps == (chunk.agent_steps(), len(chunk), chunk.is_done, 0.0)
    for episode in runner._episodes.ongoing:
        runner._episodes.sync()
        steps = episode.agent_steps()
        assert episode.agent_views is not None
        assert steps == sum(len(part) for part in episode.agent_episodes.values())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda episode: pickle.loads(pickle.dumps(episode))])
def test_a_copy_has_the_same_agents(copied):
    (chunk, *_) = runner_of("together").sample(num_timesteps=12)
    assert chunk.agent_views is not None
    other = copied(chunk)
    assert other.agent_views is None
    assert other.get_observations()["a"].tolist() == chunk.get_observations()["a"].tolist()
    assert repr(other) == repr(chunk)


def test_an_unknown_attribute_is_told():
    (chunk, *_) = runner_of("together").sample(num_timesteps=12)
    with pytest.raises(AttributeError, match="'agents_episodes'"):
        _ = chunk.agents_episodes
    assert chunk.agent_views is not None


def test_notes_on_an_agent_go_with_it():
    runner = runner_of("together")
    runner.sample(num_timesteps=3)
    runner._episodes.ongoing[1].agent_episodes["b"].custom_data["seen"] = 5
    (notes,) = [e.agent_episodes["b"].custom_data for e in runner.sample(num_timesteps=3) if e.id_ == "1-0"]
    assert notes == {"seen": 5}
    (notes,) = [e.agent_episodes["b"].custom_data for e in runner.sample(num_timesteps=6) if e.id_ == "1-0"]
    assert notes == {"seen": 5}


def test_pieces_that_write_get_the_last_observations_of_all():
    class Noting(ConnectorV2):
        def columns(self, c, xp):
            rows = c.rows
            rows.set("obs", rows.get("obs") * 2.0)

    def runner():
        config = small_config(LifeEnv, env_config=DEATHS).env_runners(
            num_envs_per_env_runner=4, env_to_module_connector=lambda env: Noting()
        )
        return config.build_algo().env_runner

    for chunk in runner().sample(num_timesteps=80):
        for part in chunk.all_agent_episodes():
            doubled, given = part.get_observations(), part.storage.rollout.source("obs")
            own = part.storage
            rows = np.arange(own.start_row, own.last_row + 1) * own.rollout.num_lanes + own.lane
            np.testing.assert_array_equal(doubled, given[rows] * 2.0)


def test_pieces_that_write_make_nobody_an_episode():
    class Doubling(ConnectorV2):
        def columns(self, c, xp):
            c.rows.set("obs", c.rows.get("obs") * 2.0)

    config = small_config(LifeEnv, env_config=LIVES).env_runners(env_to_module_connector=lambda env: Doubling())
    chunks = config.build_algo().env_runner.sample(num_timesteps=40)
    assert sum(chunk.is_done for chunk in chunks) > 1
    for chunk in chunks:
        assert chunk.agent_views is not None
        for part in chunk.agent_episodes.values():
            own, given = part.storage, part.storage.rollout.source("obs")
            rows = np.arange(own.start_row, own.last_row + 1) * own.rollout.num_lanes + own.lane
            np.testing.assert_array_equal(part.get_observations(), given[rows] * 2.0)


def test_the_agent_whose_last_observation_does_not_fit_is_named():
    script = [Step({"a": 0, "b": 0}), Step({"a": 1, "b": 1}, truncated=("a", "b"))]

    class Odd(ScriptEnv):
        def _next(self):
            obs, *rest = super()._next()
            return ({"a": np.zeros(2, np.float32), "b": np.zeros(5, np.float32)}, *rest) if self.t > 1 else (obs, *rest)

    config = small_config(lambda config: Odd([script])).environment(disable_env_checking=True)
    with pytest.raises(EnvError, match="agent 'b'"):
        config.build_algo().env_runner.sample(num_timesteps=2)


def test_a_module_that_is_gone_is_missed_in_the_next_episode():
    runner = runner_of("together")
    runner.sample(num_timesteps=3)
    runner.rl_module.remove_module("default_policy")
    with pytest.raises(MappingError, match="default_policy"):
        runner._episodes._mapped(runner.vector_env.sub_envs[0])


def test_a_mapping_function_is_asked_once_for_each_agent_and_episode():
    asked = []

    def mapping(agent_id, episode, **kwargs):
        asked.append((episode.id_, agent_id))
        return "p"

    config = small_config(LifeEnv, env_config=LIVES).multi_agent(policies=["p"], policy_mapping_fn=mapping)
    runner = config.build_algo().env_runner
    asked.clear()
    runner.sample(num_timesteps=50)
    assert len(set(asked)) == len(asked) > 9


def growth_of_rollouts(monkeypatch):
    grown = []
    reserve = Rollout.reserve

    def noting(rollout, row):
        before = rollout.num_rows
        reserve(rollout, row)
        grown.append(rollout.num_rows - before)

    monkeypatch.setattr(Rollout, "reserve", noting)
    return grown


def test_a_rollout_has_room_for_last_observations_though_the_one_before_had_none(monkeypatch):
    runner, grown = runner_of("together"), growth_of_rollouts(monkeypatch)
    ends = [sum(chunk.is_done for chunk in runner.sample(num_timesteps=15)) for _ in range(4)]
    assert 0 in ends[1:]  # of two fragments of five steps, seven steps may end in one only
    grown.clear()
    ends = [sum(chunk.is_done for chunk in runner.sample(num_timesteps=15)) for _ in range(14)]
    assert 0 in ends and 3 in ends and not any(grown)


def test_a_rollout_of_the_length_of_the_one_before_is_not_extended(monkeypatch):
    runner, grown = runner_of("batched"), growth_of_rollouts(monkeypatch)
    runner.rollout_fragment_length = 60  # ten episodes in each
    runner.sample()
    assert any(grown)
    grown.clear()
    runner.sample()
    assert grown and not any(grown)


def test_callbacks_see_the_agents():
    seen = []

    class Told(Callbacks):
        def on_episode_end(self, *, episode, **kwargs):
            seen.append(sorted(episode.agent_ids))

    config = small_config(LifeEnv, env_config=LIVES).callbacks(Told)
    config.build_algo().env_runner.sample(num_timesteps=20)
    assert seen and all(agents == ["a", "b", "c"] for agents in seen)
