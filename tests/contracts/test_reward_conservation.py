"""Every reward that an environment hands out is in one chunk's rewards, or is reported as uncredited."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.envs.scripted_envs import LifeEnv, Recorded, ScriptEnv, Step, small_config

# Powers of two, so that a sum says which rewards are in it. Agents b and c end and are paid late, b also in the step in
# which it comes back; c is paid before it ever acts; nobody has ever seen the ghost.
SCRIPT = [
    Step({"a": 0, "b": 0}),
    Step({"a": 1, "b": 1}, {"a": 1, "b": 2, "ghost": 64}, terminated=("b",)),
    Step({"a": 2}, {"a": 4, "b": 8}),
    Step({"a": 3, "c": 3}, {"a": 16, "c": 0.5}),
    Step({"a": 4, "c": 4, "b": 4}, {"a": 32, "c": 0.25, "b": 128}),
    Step({"a": 5, "c": 5, "b": 5}, {"a": 1, "c": 4, "b": 2}, truncated=("c",)),
    Step({"a": 6, "b": 6}, {"a": 8, "c": 16, "b": 32}),
    Step({"a": 7, "b": 7}, {"c": 0.125, "b": 64}, terminated=("b",)),
    Step({"a": 8}, {"a": 256, "c": 1024, "b": 512}, truncated=("a",)),
]
LIVES = {"a": [318.0], "b": [138.0, 610.0], "c": [0.5 + 1044.375]}


ENVS = {
    "script": lambda: Recorded(ScriptEnv([SCRIPT])),
    "random lives": lambda: Recorded(
        LifeEnv(agents="abcd", die=0.3, join=0.4, fixed=False, max_steps=11, pays_absent=0.6)
    ),
}


def runner_of(make, *, num_envs=1):
    config = small_config(make, disable_env_checking=True).multi_agent(policies="independent")
    if make is ENVS["script"]:
        config.multi_agent(policies=list("abc"))
    return config.env_runners(num_envs_per_env_runner=num_envs).build_algo().env_runner


def paid_by(envs):
    """What the environments handed out, by agent."""
    paid = Counter()
    for env in envs:
        for entry in env.log:
            for step in entry["steps"]:
                paid.update(step[2])
    return {agent: total for agent, total in paid.items() if total}


def received_in(chunks):
    """What is in the chunks, by agent: ``(for actions, uncredited)``."""
    credited, uncredited = Counter(), Counter()
    for chunk in chunks:
        for life in chunk.all_agent_episodes():
            credited[life.agent_id] += life.get_return()
            uncredited[life.agent_id] += life.uncredited_reward
        uncredited.update(chunk._unclaimed)
        assert chunk.uncredited_reward == sum(
            [*chunk._unclaimed.values(), *(life.uncredited_reward for life in chunk.all_agent_episodes())]
        )
    return credited, uncredited


@pytest.mark.few(1)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("fragment", [1, 2, 3, 7])
@pytest.mark.parametrize("env", ENVS)
def test_chunks_and_uncredited_rewards_are_all_that_was_paid_to_each_agent(env, fragment, num_envs):
    runner = runner_of(ENVS[env], num_envs=num_envs)
    chunks, reported = [], 0.0
    for _ in range(60 // fragment):
        sample = runner.sample(num_timesteps=fragment * num_envs)
        uncredited = runner.get_metrics()["uncredited_reward"]
        assert uncredited == sum(chunk.uncredited_reward for chunk in sample)
        chunks += sample
        reported += uncredited
    credited, uncredited = received_in(chunks)
    paid = paid_by(copy.env for copy in runner.vector_env.sub_envs)
    assert {agent: total for agent, total in (credited + uncredited).items() if total} == paid
    assert sum(credited.values()) + reported == sum(paid.values())
    assert reported > 0


@pytest.mark.parametrize(
    ("pieces", "uncredited"),
    [
        ((8,), 64 + 0.5),
        ((3, 3, 2), 64 + 0.5 + 128 + 0.125 + 1024),
        ((1,) * 8, 64 + 8 + 0.5 + 128 + 16 + 0.125 + 512 + 1024),
    ],
)
def test_what_is_uncredited_depends_on_the_cuts_but_returns_do_not(pieces, uncredited):
    runner = runner_of(ENVS["script"])
    for n in pieces:
        runner.sample(num_timesteps=n)
    metrics = runner.get_metrics()
    assert metrics["uncredited_reward"] == uncredited
    assert metrics["episode_return_mean"] == 64 + 318 + 138 + 610 + (0.5 + 1044.375)
    modules = metrics["module_episode_returns"]
    assert modules["b"] == {"mean": 374.0, "std": 236.0, "min": 138.0, "max": 610.0, "num_episodes": 2}
    assert {m: stats["mean"] * stats["num_episodes"] for m, stats in modules.items()} == {
        m: sum(lives) for m, lives in LIVES.items()
    }
    assert metrics["agent_episode_returns_mean"] == {m: sum(lives) / len(lives) for m, lives in LIVES.items()}


def test_uncredited_rewards_are_reported_once_and_are_usually_zero():
    runner = runner_of(ENVS["script"])
    runner.sample(num_timesteps=1)
    assert runner.get_metrics()["uncredited_reward"] == 64.0
    assert runner.get_metrics()["uncredited_reward"] == 0.0
    runner.sample(num_timesteps=1)
    runner.sample(num_timesteps=2)
    assert runner.take_uncredited_reward() == 8 + 0.5 + 128
    assert runner.take_uncredited_reward() == 0.0


def test_only_what_is_handed_out_counts_when_whole_episodes_are_asked_for():
    runner = runner_of(ENVS["script"], num_envs=3)
    runner.sample(num_episodes=4)
    assert runner.get_metrics()["uncredited_reward"] == 4 * (64 + 0.5)


def test_an_iteration_reports_the_rewards_that_are_in_none_of_its_train_batches():
    config = small_config(ENVS["script"], disable_env_checking=True).multi_agent(policies=list("abc"))
    config.multi_agent(policy_mapping_fn="independent").env_runners(rollout_fragment_length=1)
    algo = config.training(train_batch_size_per_learner=4, minibatch_size=4).build_algo()
    results = [algo.train()["env_runners"] for _ in range(2)]
    assert [result["uncredited_reward"] for result in results] == [64 + 8 + 0.5 + 128, 16 + 0.125 + 512 + 1024]
    assert algo.evaluate(num_episodes=2)["env_runners"]["uncredited_reward"] == 2 * (64 + 0.5)
    assert algo.random_play(num_episodes=1)["env_runners"]["uncredited_reward"] == 64 + 0.5
    assert algo.train()["env_runners"]["uncredited_reward"] == results[0]["uncredited_reward"]
