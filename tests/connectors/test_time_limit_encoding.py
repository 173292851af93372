"""The time in the observation counts each agent's own steps, wherever its episode is cut."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import TimeLimitEncoding, load_policy
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, EpisodeError
from marl_envs import match_v0

BOX = spaces.Box(-2.0, 3.0, (2,), np.float64)


def of_four():
    return TimeLimitEncoding(max_steps=4)


def algo_of(env, *, policies="shared", **runners):
    config = small_config(env).multi_agent(policies=policies)
    return config.env_runners(env_to_module_connector=of_four, **runners).build_algo()


def times_of(columns):
    return columns["obs"][:, -1].tolist()


def test_the_time_of_an_agent_that_joins_later_begins_at_0():
    script = [
        Step({"a": 7}),
        Step({"a": 7, "b": 7}, {"a": 0}),
        *[Step({"a": 7, "b": 7}, {"a": 0, "b": 0}) for _ in range(4)],
        Step({"a": 7, "b": 7}, {"a": 0, "b": 0}, truncated=("a", "b")),
    ]
    algo = algo_of(lambda: ScriptEnv([script]), policies="independent", rollout_fragment_length=6)
    (episode,) = algo.env_runner.sample(num_timesteps=6)
    assert episode.get_observations(agent_ids=["a"])["a"].tolist() == [
        [7, 0, share] for share in (0, 0.25, 0.5, 0.75, 1, 1, 1)
    ]
    (group,) = algo.learner.make_batch([episode]).groups
    assert {m: times_of(columns) for m, columns in group.module_columns()} == {
        "a": [0, 0.25, 0.5, 0.75, 1, 1],
        "b": [0, 0.25, 0.5, 0.75, 1],
    }
    assert algo.get_module("a").observation_space.shape == (3,)


GAMES = {
    "parallel": lambda: LifeEnv(agents=list("abcd"), die=0.2, join=0.4, max_steps=12),
    "turns": lambda: RandomAEC(die=0.1, join=0.3, back=0.4, max_steps=30),
}


@pytest.mark.parametrize("make", GAMES.values(), ids=GAMES)
@pytest.mark.parametrize("length", [1, 3, 7])
def test_each_observation_has_the_number_of_the_agents_steps_before_it(make, length):
    algo = algo_of(make, num_envs_per_env_runner=3, rollout_fragment_length=length)
    reached = 0.0
    for _ in range(30 // length + 2):
        episodes = algo.env_runner.sample(num_timesteps=3 * length)
        for group in algo.learner.make_batch(episodes).groups:  # none if no agent has completed a step
            rows = group.rows
            expected = [
                min((chunk.t_started + i) / 4, 1.0)
                for chunk, count in zip(rows.chunks, rows.counts, strict=True)
                for i in range(count)
            ]
            assert group["obs"][:, -1].tolist() == expected
            reached = max(reached, *expected)
        for episode in episodes:  # also the last observations, which are bootstrapped from
            for own in episode.agent_episodes.values():
                last = np.asarray(own.get_observations(-1))[-1]
                if own.is_done:
                    assert last == min(own.t / 4, 1.0)
    assert reached == 1.0


def test_a_policy_counts_the_steps_of_each_agent_and_begins_anew_after_reset(tmp_path):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 9})
    algo = config.multi_agent(policies="shared").env_runners(env_to_module_connector=of_four).build_algo()
    path = algo.save_to_path(tmp_path / "c")
    policy, seen = load_policy(path), []
    forward = policy.rl_module["default_policy"].forward_inference
    policy.rl_module["default_policy"].forward_inference = lambda batch: (
        seen.append(batch["obs"][:, -1].tolist()) or forward(batch)
    )
    nothing = np.zeros(algo.get_module().observation_space.shape[0] - 1, np.float32)
    for _ in range(2):
        policy.reset()
        seen.clear()
        policy(nothing, "agent_0")
        policy(nothing, "agent_0")
        policy.actions({"agent_0": nothing, "agent_1": nothing})
        assert seen == [[0.0], [0.25], [0.5, 0.0]]
    with pytest.raises(EpisodeError, match="remembers"):
        policy(np.stack([nothing] * 3), "agent_0")


def test_a_piece_called_by_hand_counts_steps_before_the_chunk():
    episode = SingleAgentEpisode(
        "x",
        observations=[np.array([1.0, 2.0])] * 3,
        actions=[0, 0],
        rewards=[0.0, 0.0],
        len_lookback_buffer=1,
        t_started=1,
        observation_space=BOX,
    )
    of_four_with_spaces = TimeLimitEncoding(BOX, None, max_steps=4)
    for _ in range(2):  # an observation that has its time already stays as it is
        of_four_with_spaces(rl_module=None, batch={}, episodes=[episode])
        assert episode.get_observations(-1).tolist() == [1.0, 2.0, 0.5]
        assert episode.get_observations(-1).dtype == np.float32


def test_the_space_has_the_time_in_it():
    after = TimeLimitEncoding(BOX, None, max_steps=4).observation_space
    assert (after.low.tolist(), after.high.tolist(), after.dtype) == ([-2, -2, 0], [3, 3, 1], np.float32)


@pytest.mark.parametrize("max_steps", [0, -1, 2.0, True, None, "5"])
def test_the_time_limit_is_a_whole_number(max_steps):
    with pytest.raises(ConfigError, match="max_steps"):
        TimeLimitEncoding(max_steps=max_steps)


def test_only_flat_observations_are_taken():
    with pytest.raises(ConfigError, match=r"(?s)Discrete\(2\).*FlattenObservations"):
        TimeLimitEncoding(spaces.Discrete(2), max_steps=4)
    several = spaces.Dict({"a": spaces.Discrete(2)})
    with pytest.raises(ConfigError, match=r"(?s)'a'.*Discrete\(2\)"):
        TimeLimitEncoding(several, multi_agent=True, max_steps=4)
