"""How much a sample holds, what its settings mean, and that no reward is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, Recorded, ScriptEnv, Step, lives_of_chunks, small_config
from marl_connectors.callbacks import Callbacks
from marl_connectors.errors import ConfigError, EnvError, MappingError


def runner_of(make, *, num_envs=1, policies="independent", mapping=None, callbacks=Callbacks):
    config = small_config(make).multi_agent(policies=policies).callbacks(callbacks)
    if mapping is not None:
        config.multi_agent(policy_mapping_fn=mapping)
    return config.env_runners(num_envs_per_env_runner=num_envs).build_algo().env_runner


def life(**settings):
    return lambda: Recorded(LifeEnv(**settings))


def test_timesteps_are_env_steps_over_all_copies():
    runner = runner_of(life(max_steps=100), num_envs=3)
    assert sum(e.env_steps() for e in runner.sample(num_timesteps=6)) == 6
    assert sum(e.env_steps() for e in runner.sample(num_timesteps=7)) == 9  # the copies step together
    assert sum(e.env_steps() for e in runner.sample()) == 15  # rollout_fragment_length=5
    assert (runner.num_env_steps, runner.num_agent_steps) == (30, 90)


def test_episodes_are_whole_and_as_many_as_asked_for():
    runner = runner_of(life(max_steps=4), num_envs=2)
    runner.sample(num_timesteps=2)
    episodes = runner.sample(num_episodes=3)
    assert len(episodes) == 3
    assert all(e.is_done and e.env_steps() == 4 and e.env_t_started == 0 for e in episodes)
    assert runner.sample(num_timesteps=2)[0].env_t_started == 0, "what went on was dropped"


def test_after_an_error_in_the_environment_old_episodes_are_not_handed_out():
    class BreaksOnce(LifeEnv):
        episodes = 0

        def reset(self, seed=None, options=None):
            BreaksOnce.episodes += 1
            return super().reset(seed=seed)

        def step(self, actions):
            if BreaksOnce.episodes == 3:
                BreaksOnce.episodes += 1
                raise RuntimeError("once")
            return super().step(actions)

    runner = small_config(lambda: BreaksOnce(max_steps=2), disable_env_checking=True).build_algo().env_runner
    with pytest.raises(EnvError, match="once"):
        runner.sample(num_episodes=4)
    assert [episode.id_ for episode in runner.sample(num_episodes=2)] == ["0-3", "0-4"]
    assert [summary.length for summary in runner.take_finished()] == [2, 2]


def test_sampling_episodes_for_ever_takes_no_more_memory():
    runner = runner_of(life(max_steps=4))
    group = lambda: runner._episodes.lanes.groups[0]
    for _ in range(3):
        runner.sample(num_episodes=2)
    size = group().rollout.num_rows
    kept = runner.sample(num_episodes=2)
    before = lives_of_chunks(kept[:1])[0].obs
    for _ in range(20):
        runner.sample(num_episodes=2)
    assert group().rollout.num_rows == size
    np.testing.assert_array_equal(lives_of_chunks(kept[:1])[0].obs, before)


def test_a_forced_reset_drops_what_goes_on():
    runner = runner_of(life(max_steps=100))
    (first,) = runner.sample(num_timesteps=3)
    (second,) = runner.sample(num_timesteps=3)
    (third,) = runner.sample(num_timesteps=3, force_reset=True)
    assert first.id_ == second.id_ == "0-0"
    assert second.env_t_started == 3
    assert (third.id_, third.env_t_started) == ("0-1", 0)


def test_both_numbers_at_once_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)num_timesteps.*num_episodes"):
        runner_of(life()).sample(num_timesteps=1, num_episodes=1)


def test_without_exploration_actions_are_the_most_likely_ones():
    runner = runner_of(life(max_steps=50))
    (episode,) = runner.sample(num_timesteps=20, explore=False)
    for agent, part in episode.agent_episodes.items():
        logits = part.get_extra_model_outputs("action_dist_inputs")
        np.testing.assert_array_equal(part.get_actions(), logits.argmax(-1), str(agent))
    (episode,) = runner.sample(num_timesteps=30, explore=True)
    actions = np.concatenate([part.get_actions() for part in episode.agent_episodes.values()])
    assert set(actions.tolist()) == {0, 1, 2}


def test_action_logp_is_that_of_the_softmax():
    (episode,) = runner_of(life(max_steps=50)).sample(num_timesteps=6)
    part = episode.agent_episodes["b"]
    logits = part.get_extra_model_outputs("action_dist_inputs").astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    taken = np.take_along_axis(expected, part.get_actions()[:, None], 1)[:, 0]
    np.testing.assert_allclose(part.get_extra_model_outputs("action_logp"), taken, rtol=1e-5)


def test_action_logp_of_a_box_of_any_shape_is_that_of_independent_normals():
    space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    (episode,) = runner_of(life(agents="a", spaces_of={"a": (space, space)})).sample(num_timesteps=6)
    part = episode.agent_episodes["a"]
    mean, log_std = np.split(part.get_extra_model_outputs("action_dist_inputs").astype(np.float64), 2, -1)
    distance = (part.get_actions().reshape(6, 4) - mean) / np.exp(log_std)
    expected = (-0.5 * distance**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
    np.testing.assert_allclose(part.get_extra_model_outputs("action_logp"), expected, rtol=1e-5)


def test_random_actions_ask_no_module_and_use_the_whole_space():
    runner = runner_of(life(agents="a", max_steps=200))
    runner.rl_module["a"].forward_exploration = runner.rl_module["a"]._forward_exploration = None
    (episode,) = runner.sample(num_timesteps=150, random_actions=True)
    counts = np.bincount(episode.agent_episodes["a"].get_actions())
    assert len(counts) == 3
    assert counts.min() > 30


# Rewards.


def test_rewards_of_the_dead_go_to_their_last_action_and_to_their_return():
    script = [
        Step({"a": 1, "b": 1}),
        Step({"a": 2, "b": 2}, {"a": 1, "b": 2}, terminated=("a",)),
        Step({"b": 3}, {"a": 10, "b": 3}),
        Step({"b": 4}, {"b": 4, "a": 20}, truncated=("b",)),
    ]
    runner = runner_of(lambda: ScriptEnv([script]))
    (episode,) = runner.sample(num_timesteps=3)
    assert episode.agent_episodes["a"].get_rewards().tolist() == [31.0]
    assert episode.agent_episodes["b"].get_rewards().tolist() == [2.0, 3.0, 4.0]
    assert episode.uncredited_reward == 0.0
    (finished,) = runner.take_finished()
    assert sorted((agent, total) for agent, (_, total, _) in finished.agent_totals.items()) == [("a", 31.0), ("b", 9.0)]


def test_rewards_after_a_cut_for_an_agent_that_ended_before_it_are_kept():
    script = [
        Step({"a": 1, "b": 1}),
        Step({"a": 2, "b": 2}, {"a": 1, "b": 2}, terminated=("a",)),
        Step({"b": 3}, {"a": 10, "b": 3}),
        Step({"b": 4}, {"b": 4}, truncated=("b",)),
    ]
    runner = runner_of(lambda: ScriptEnv([script]))
    (first,), (second,) = runner.sample(num_timesteps=1), runner.sample(num_timesteps=2)
    assert (first.get_return(), second.get_return(), second.uncredited_reward) == (3.0, 7.0, 10.0)
    (finished,) = runner.take_finished()
    assert sorted((agent, total) for agent, (_, total, _) in finished.agent_totals.items()) == [("a", 11.0), ("b", 9.0)]
    whole = first[:]
    whole.concat_episode(second)
    assert whole.get_rewards(agent_ids="a", env_steps=False)["a"] == [11.0]
    assert (whole.get_return(), whole.uncredited_reward) == (20.0, 0.0)


def test_a_reward_before_an_agent_ever_acted_is_reported_as_uncredited():
    script = [
        Step({"a": 1}),
        Step({"a": 2, "late": 1}, {"a": 1, "late": 5}),
        Step({"a": 3, "late": 2}, {"a": 1, "late": 7}, truncated=("a", "late")),
    ]
    runner = runner_of(lambda: ScriptEnv([script]))
    (episode,) = runner.sample(num_timesteps=2)
    assert (episode.get_return(), episode.uncredited_reward) == (9.0, 5.0)
    assert episode.agent_episodes["late"].get_rewards().tolist() == [7.0]


@pytest.mark.parametrize("pieces", [(30,), (1, 5, 2, 9, 13)])
def test_every_reward_is_credited_once(pieces):
    class Pays(LifeEnv):
        """Also pays those who are not there."""

        def step(self, actions):
            obs, rewards, term, trunc, infos = super().step(actions)
            return obs, rewards | {a: 0.5 for a in self.possible_agents if a not in rewards}, term, trunc, infos

    runner = runner_of(lambda: Recorded(Pays(die=0.3, join=0.4, fixed=False, max_steps=6)), num_envs=2)
    chunks = [e for n in pieces for e in runner.sample(num_timesteps=2 * n)]
    steps = [step for copy in runner.vector_env.sub_envs for entry in copy.env.log for step in entry["steps"]]
    paid = sum(sum(step[2].values()) for step in steps)
    assert sum(e.get_return() + e.uncredited_reward for e in chunks) == pytest.approx(paid)


def test_returns_in_the_metrics_are_the_sums_over_all_chunks():
    runner = runner_of(lambda: Recorded(LifeEnv(die=0.1, max_steps=6)), num_envs=2)
    for n in (2, 3, 1, 7, 11):
        runner.sample(num_timesteps=2 * n)
    finished = runner.take_finished()
    logs = [e for copy in runner.vector_env.sub_envs for e in copy.env.log if e["steps"] and not e["steps"][-1][-1]]
    expected = [sum(sum(step[2].values()) for step in entry["steps"]) for entry in logs]
    assert sorted(e.episode_return for e in finished) == pytest.approx(sorted(expected))
    assert sorted(e.length for e in finished) == sorted(len(entry["steps"]) for entry in logs)


def test_metrics_summarize_by_episode_module_and_agent():
    scripts = [
        [Step({"a": 1, "b": 1}), Step({"a": 2, "b": 2}, {"a": 1, "b": 2}, truncated=("a", "b"))],
        [Step({"a": 1, "b": 1}), Step({"a": 2, "b": 2}, {"a": 3, "b": 6}, truncated=("a", "b"))],
    ]
    runner = runner_of(lambda: ScriptEnv(scripts))
    runner.sample(num_timesteps=2)
    metrics = runner.get_metrics()
    assert [metrics[f"episode_return_{x}"] for x in ("mean", "min", "max")] == [6.0, 3.0, 9.0]
    assert metrics["module_episode_returns"]["b"] == {
        "mean": 4.0,
        "std": 2.0,
        "min": 2.0,
        "max": 6.0,
        "num_episodes": 2,
    }
    assert metrics["agent_episode_returns_mean"] == {"a": 2.0, "b": 4.0}
    assert (metrics["episode_len_mean"], metrics["num_episodes"]) == (1.0, 2)
    assert runner.get_metrics()["num_episodes"] == 0


# Ends.


@pytest.mark.parametrize("pieces", [(2,), (1, 1)])
@pytest.mark.parametrize(
    ("terminated", "truncated", "flags"),
    [
        (("a", "b"), (), (True, False)),
        ((), ("a", "b"), (False, True)),
        (("a",), ("b",), (False, True)),
        (("b",), ("a",), (False, True)),
    ],
)
def test_terminated_and_truncated_stay_apart_whatever_the_cuts(pieces, terminated, truncated, flags):
    def ends(agent, step):
        return Step(
            {"a": step, "b": step} if step == 1 else {"b": step},
            {},
            *[tuple(set(f) & {agent}) for f in (terminated, truncated)],
        )

    script = [Step({"a": 0, "b": 0}), ends("a", 1), ends("b", 2)]
    runner = runner_of(lambda: ScriptEnv([script]))
    chunks = [runner.sample(num_timesteps=n)[0] for n in pieces]
    last, first = chunks[-1], chunks[0]
    assert (last.is_terminated, last.is_truncated) == flags
    assert last.get_terminateds()["__all__"] is flags[0]
    assert last.get_truncateds()["__all__"] is flags[1]
    for agent, chunk in (("a", first), ("b", last)):
        part = chunk.agent_episodes[agent]
        assert (part.is_terminated, part.is_truncated) == (agent in terminated, agent in truncated)


# Who acts by which module.


def test_agents_may_change_modules_between_episodes():
    def mapping(agent_id, episode, **kwargs):
        odd = int(episode.id_.split("-")[1]) % 2
        return "red" if (agent_id == "a") != bool(odd) else "blue"

    runner = runner_of(life(agents="ab", max_steps=3), policies=["red", "blue"], mapping=mapping)
    episodes = runner.sample(num_timesteps=9)
    modules = [{a: e.module_id for a, e in episode.agent_episodes.items()} for episode in episodes]
    assert modules == [{"a": "red", "b": "blue"}, {"a": "blue", "b": "red"}, {"a": "red", "b": "blue"}]
    for episode in episodes:
        for part in episode.agent_episodes.values():
            inputs = {"obs": torch.from_numpy(part.get_observations()[:-1])}
            expected = runner.rl_module[part.module_id].forward_inference(inputs)["action_dist_inputs"]
            np.testing.assert_allclose(part.get_extra_model_outputs("action_dist_inputs"), expected, atol=1e-6)


def test_the_mapping_function_is_asked_once_for_each_agent_and_episode():
    asked = []

    def mapping(agent_id, episode, **kwargs):
        asked.append((episode.id_, agent_id))
        return "one"

    runner = runner_of(life(agents="ab", max_steps=4), policies=["one"], mapping=mapping)
    asked.clear()
    for _ in range(3):
        runner.sample(num_timesteps=2)
    assert asked == [("0-0", "a"), ("0-0", "b"), ("0-1", "a"), ("0-1", "b")]


@pytest.mark.parametrize("wrong", ["blu", None, ["blue"]])
def test_a_module_that_does_not_exist_is_named_also_when_training_has_begun(wrong):
    runner = runner_of(
        life(agents="ab", max_steps=2),
        policies=["blue"],
        mapping=lambda agent_id, episode, **kw: "blue" if episode.id_ == "0-0" else wrong,
    )
    with pytest.raises(MappingError, match="agent 'a'"):
        runner.sample(num_timesteps=3)


def test_a_mapping_function_that_raises_later_is_named():
    def mapping(agent_id, episode, **kwargs):
        return "blue" if episode.id_ == "0-0" else 1 / 0

    runner = runner_of(life(agents="ab", max_steps=2), policies=["blue"], mapping=mapping)
    with pytest.raises(MappingError, match=r"(?s)policy_mapping_fn.*ZeroDivisionError"):
        runner.sample(num_timesteps=3)


def test_callbacks_are_told_of_environments_episodes_and_samples():
    told = []

    class Told(Callbacks):
        def on_environment_created(self, *, env_runner, env, env_context, **kwargs):
            told.append(("env", [type(e).__name__ for e in env.envs], env_context))

        def on_episode_end(self, *, episode, **kwargs):
            told.append(("end", episode.id_, episode.is_done))

        def on_sample_end(self, *, samples, **kwargs):
            told.append(("sample", len(samples)))

    runner = runner_of(life(max_steps=2), callbacks=Told)
    runner.sample(num_timesteps=3)
    assert told == [("env", ["Recorded"], {}), ("end", "0-0", True), ("sample", 2)]
