"""What a runner collects is what a plain loop over the environment would have seen."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import (
    BOX,
    LifeEnv,
    Recorded,
    ScriptEnv,
    Step,
    assert_same_lives,
    lives_of_chunks,
    lives_of_log,
    small_config,
)

MIXED = {
    "a": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)),
    "b": (BOX, spaces.Discrete(2)),
    "c": (spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Discrete(3)),
    "d": (spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)),
}
CASES = {
    "fixed agents": {},
    "episodes of one step": {"max_steps": 1},
    "agents that die one by one": {"die": 0.3},
    "late joiners and agents that come back": {"die": 0.3, "join": 0.4, "fixed": False, "max_steps": 12},
    "different spaces": {"agents": "abcd", "spaces_of": MIXED, "die": 0.2, "join": 0.4, "fixed": False},
    "int and tuple ids": {"agents": (7, ("x", 1), 0), "die": 0.3, "join": 0.4},
    "one mutable buffer": {"mutable": True, "die": 0.3, "join": 0.4},
}


def runner_of(make, *, num_envs=1, policies="independent", lookback=1, **runner_settings):
    config = small_config(make).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=num_envs, episode_lookback_horizon=lookback, **runner_settings)
    return config.build_algo().env_runner


def chunks_by_episode(samples):
    by_id = {}
    for sample in samples:
        for chunk in sample:
            by_id.setdefault(chunk.id_, []).append(chunk)
    return by_id


@pytest.mark.few(3)
@pytest.mark.parametrize("lookback", [0, 1, 4])
@pytest.mark.parametrize("case", CASES)
def test_transitions_equal_a_plain_loop(case, lookback):
    runner = runner_of(lambda: Recorded(LifeEnv(**CASES[case])), num_envs=3, lookback=lookback)
    samples = [runner.sample(num_timesteps=steps * 3) for steps in (1, 4, 2, 9, 1, 8)]
    by_id = chunks_by_episode(samples)
    for copy in runner.vector_env.sub_envs:
        for number, entry in enumerate(copy.env.log):
            found = lives_of_chunks(by_id.pop(f"{copy.index}-{number}", []))
            expected = lives_of_log(entry)
            assert_same_lives([life for life in found if life.actions], [life for life in expected if life.actions])
    assert not by_id
    assert runner.num_env_steps == 25 * 3


def test_actions_reach_the_environment_in_its_own_numbers():
    spaces_of = {"a": (BOX, spaces.Discrete(3, start=5)), "b": (BOX, spaces.Box(0.0, 10.0, (2,), np.float32))}
    runner = runner_of(lambda: Recorded(LifeEnv(agents="ab", spaces_of=spaces_of)))
    (episode,) = [e for e in runner.sample(num_timesteps=7) if e.is_done]
    (entry, _) = runner.vector_env.sub_envs[0].env.log
    acted = [step[0] for step in entry["steps"]]
    np.testing.assert_array_equal(np.array([step["a"] for step in acted]), episode.get_actions(agent_ids="a")["a"] + 5)
    within = np.clip(np.array(episode.get_actions(agent_ids="b")["b"]), -1, 1) * 5 + 5
    np.testing.assert_allclose(np.array([step["b"] for step in acted]), within, rtol=1e-6)


def test_box_actions_of_any_shape_are_recorded():
    shapes = {"a": (2, 2), "b": ()}
    spaces_of = {a: (BOX, spaces.Box(-1.0, 1.0, shape, np.float32)) for a, shape in shapes.items()}
    runner = runner_of(lambda: Recorded(LifeEnv(agents="ab", spaces_of=spaces_of)))
    (episode,) = [e for e in runner.sample(num_timesteps=7) if e.is_done]
    assert len(episode.get_actions(agent_ids="a")["a"]) == 7
    (entry, _) = runner.vector_env.sub_envs[0].env.log
    assert [np.shape(step[0]["b"]) for step in entry["steps"]] == [()] * 7


class Floats(gymnasium.Env):
    """float64 arrays where float32 was promised, then Python scalars; numpy and int rewards; numpy flags."""

    observation_space = spaces.Box(-10.0, 10.0, (), np.float32)
    action_space = spaces.Discrete(2)
    t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.float64(0.5), {}

    def step(self, action):
        self.t += 1
        reward = (1, np.float32(2), np.array(3.0), True)[self.t - 1]
        return (1.5, np.array(2.5), 3, np.float64(4.5))[self.t - 1], reward, False, np.bool_(self.t == 4), {}


def test_scalars_of_any_kind_become_numbers_of_the_space():
    runner = small_config(Floats).build_algo().env_runner
    (episode, *_) = runner.sample(num_timesteps=4)
    observations = episode.get_observations()
    assert observations.dtype == np.float32
    assert observations.tolist() == [0.5, 1.5, 2.5, 3.0, 4.5]
    assert episode.get_rewards().tolist() == [1.0, 2.0, 3.0, 1.0]
    assert (episode.is_truncated, episode.is_terminated) == (True, False)


def test_copies_may_end_at_different_steps():
    lengths = iter((2, 3, 5, 2, 3, 5))
    made = []

    def make():
        made.append(Recorded(LifeEnv(agents="a", max_steps=next(lengths, 2))))
        return made[-1]

    runner = runner_of(make, num_envs=3)
    done = [e for e in runner.sample(num_timesteps=18) if e.is_done]
    steps = [copy.env.env.max_steps for copy in runner.vector_env.sub_envs]
    expected = [f"{i}-{n}" for i, length in enumerate(steps) for n in range(6 // length)]
    assert sorted(e.id_ for e in done) == expected
    assert {e.id_[0]: e.env_steps() for e in done} == {str(i): length for i, length in enumerate(steps)}


def test_an_agent_that_leaves_without_a_last_observation_keeps_the_one_before():
    script = [
        Step({"a": 1, "b": 2}),
        Step({"b": 3}, {"a": 5.0, "b": 0}, truncated=("a",)),
        Step({"b": 4}, {"b": 1}, ("b",)),
    ]
    runner = runner_of(lambda: ScriptEnv([script]))
    (episode,) = runner.sample(num_timesteps=2)
    gone = episode.agent_episodes["a"]
    assert gone.get_observations()[:, 0].tolist() == [1.0, 1.0]
    assert (gone.is_truncated, gone.get_return()) == (True, 5.0)


def test_lookback_reaches_back_over_cuts_but_not_over_episodes():
    script = [Step({"a": 0}), *[Step({"a": t}, {"a": 10 * t}, truncated=("a",) if t == 6 else ()) for t in range(1, 7)]]
    runner = runner_of(lambda: ScriptEnv([script]), lookback=3)
    chunks = [runner.sample(num_timesteps=2)[0].agent_episodes["a"] for _ in range(4)]
    assert [chunk.id_ == chunks[0].id_ for chunk in chunks] == [True, True, True, False]
    assert [chunk.t_started for chunk in chunks] == [0, 2, 4, 0]
    reach = [slice(-n, 0) for n in (0, 2, 3, 0)]
    seen = [
        c.get_observations(r, neg_index_as_lookback=True)[:, 0].tolist()
        for c, r in zip(chunks[1:3], reach[1:3], strict=True)
    ]
    assert seen == [[0.0, 1.0], [1.0, 2.0, 3.0]]
    assert chunks[2].get_rewards([-3, -1], neg_index_as_lookback=True).tolist() == [20.0, 40.0]
    for first in (chunks[0], chunks[3]):
        with pytest.raises(IndexError):
            first.get_observations(-1, neg_index_as_lookback=True)


def test_chunks_of_one_episode_concatenate_to_the_whole():
    def episode_in(*pieces):
        runner = runner_of(lambda: LifeEnv(die=0.2, join=0.5, fixed=False, max_steps=9))
        chunks = [runner.sample(num_timesteps=n)[0] for n in pieces]
        assert len({chunk.id_ for chunk in chunks}) == 1
        whole = chunks[0][:]
        for chunk in chunks[1:]:
            whole.concat_episode(chunk)
        return whole

    whole, pieced = episode_in(9), episode_in(2, 3, 1, 3)
    assert whole.is_done
    assert pieced.is_done
    assert_same_lives(lives_of_chunks([pieced]), lives_of_chunks([whole]))
    assert (pieced.is_terminated, pieced.is_truncated) == (whole.is_terminated, whole.is_truncated)


def test_what_is_sampled_does_not_depend_on_the_length_of_fragments():
    def play(*pieces):
        runner = runner_of(lambda: LifeEnv(die=0.1, join=0.3, max_steps=11), num_envs=2)
        by_id = chunks_by_episode([runner.sample(num_timesteps=2 * n) for n in pieces])
        return {id_: lives_of_chunks(chunks) for id_, chunks in by_id.items()}

    whole, pieced = play(40), play(1, 7, 13, 2, 17)
    assert list(whole) != []
    assert whole.keys() == pieced.keys()
    for id_, lives in whole.items():
        assert_same_lives([x for x in pieced[id_] if x.actions], [x for x in lives if x.actions])
