"""VMAS scenarios: with a stand-in for the package everywhere, and with the package itself where it is installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from helpers.envs import fake_vmas
from helpers.envs.scripted_envs import small_config
from marl_connectors import EnvError, FlattenObservations, VmasEnv, check_env
from marl_connectors.environments.registry.factory import make_env


@pytest.fixture
def fake(monkeypatch, tmp_path):
    fake_vmas.install(monkeypatch, tmp_path)


def configured(env="vmas/alike", *, copies=3, policies="shared", **env_config):
    config = small_config(env, env_config={"max_steps": 7, **env_config}).multi_agent(policies=policies)
    return config.env_runners(num_envs_per_env_runner=copies, rollout_fragment_length=5)


def test_copies_follow_from_their_seeds(fake):
    env = VmasEnv("alike", num_envs=3, noise=0.0)
    first = env.reset([7, 8, 7]).copy()
    assert np.array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])
    assert np.array_equal(VmasEnv("alike", num_envs=1).reset([8])[0], first[1])


def test_a_reset_of_some_copies_leaves_the_others(fake):
    env = VmasEnv("alike", num_envs=3)
    env.reset([1, 2, 3])
    observations = env.step(np.ones((3, 3, 2), np.float32))[0].copy()
    again = env.reset([None, 9, None], np.array([False, True, False]))
    assert env.env.calls[-1] == "reset 1"
    assert np.array_equal(again[[0, 2]], observations[[0, 2]])
    assert np.array_equal(again[1], VmasEnv("alike", num_envs=1).reset([9])[0])


def test_others_do_not_look_again_when_a_copy_is_reset(fake):
    env = VmasEnv("alike", num_envs=3, blur=0.5)
    env.reset([1, 2, 3])
    observations = env.step(np.ones((3, 3, 2), np.float32))[0].copy()
    again = env.reset([None, 9, None], np.array([False, True, False]))
    assert np.array_equal(again[[0, 2]], observations[[0, 2]])
    assert not np.array_equal(again[1], observations[1])


def test_a_reset_in_one_go_follows_from_all_seeds(fake):
    envs = [VmasEnv("alike", num_envs=3, seed_copies=False) for _ in range(3)]
    starts = [env.reset(seeds) for env, seeds in zip(envs, ([1, 2, 3], [1, 2, 3], [1, 2, 4]), strict=True)]
    assert envs[0].env.calls[-1] == "reset"
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    envs[0].reset([None, 5, None], np.array([False, True, False]))
    assert envs[0].env.calls[-1] == "reset 1"


def test_an_environment_does_not_draw_from_the_random_state_of_another(fake):
    found, shared = [], fake_vmas.Environment.vmas_random_state
    before = dict(shared[0])
    for others in (0, 3):
        env = VmasEnv("alike", num_envs=2)
        env.reset([1, 2])
        for _ in range(others):
            VmasEnv("alike", num_envs=1).reset([5])
        steps = [env.reset([1, 2]), *(env.step(np.zeros((2, 3, 2), np.float32))[0] for _ in range(2))]
        found.append(np.diff(steps, axis=0))
        assert not np.allclose(*found[-1], atol=1e-3)
    assert np.array_equal(found[0], found[1])
    assert shared[0] == before


def test_a_time_limit_truncates_and_the_scenario_terminates(fake):
    env = VmasEnv("alike", num_envs=2, max_steps=3, noise=0.0)
    env.reset([1, 2])
    actions = np.zeros((2, 3, 2), np.float32)
    actions[1, 0] = 1.0
    env.env.spots[:, 0] = torch.tensor([[0.0, 0.0], [1.5, 1.5]])
    *_, terminations, truncations, infos = env.step(actions)
    assert terminations.tolist() == [[False] * 3, [True] * 3]
    assert not truncations.any()
    assert infos == {}
    for _ in range(2):
        *_, terminations, truncations, infos = env.step(actions * 0)
    assert not terminations[0].any()
    assert truncations[0].all()


def test_actions_of_several_numbers(fake):
    env = VmasEnv("alike", num_envs=2, noise=0.0, continuous_actions=False, multidiscrete_actions=True)
    before = env.reset([1, 2]).copy()
    assert env.action_space("agent_0").nvec.tolist() == [3, 3]
    actions = np.array([[[0, 2]] * 3, [[1, 1]] * 3])
    assert env.step(actions)[0] - before == pytest.approx(actions - 1.0, abs=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "kind", [{}, {"continuous_actions": False}, {"continuous_actions": False, "multidiscrete_actions": True}]
)
@pytest.mark.parametrize("scenario", ["alike", "unlike"])
def test_any_actions_and_observations_train(fake, scenario, kind):
    config = configured(f"vmas/{scenario}", policies="agent_2=two,*=others", **kind)
    if scenario == "unlike":
        config.env_runners(env_to_module_connector=lambda env: FlattenObservations(multi_agent=True))
    results = []
    for _ in range(2):
        algo = config.copy().build_algo()
        algo.train()
        results.append(repr(algo.train()["learners"]))
        algo.stop()
    assert results[0] == results[1]


def test_infos_that_all_agents_have(fake):
    runner = configured(with_infos=True).build_algo().env_runner
    (episode, *_) = runner.sample()
    agent = episode.agent_episodes["agent_1"]
    for t in range(1, len(agent) + 1):
        assert set(agent.get_infos(t)) == {"norm"}
        assert agent.get_infos(t)["norm"] == pytest.approx(np.linalg.norm(agent.get_observations(t)), rel=1e-5)


def test_it_is_found_by_name_and_by_class(fake):
    for env, settings in (("vmas/alike", {}), (VmasEnv, {"scenario": "alike"})):
        made = make_env(env, {**settings, "max_steps": 4}, num_envs=2)
        assert (type(made), made.num_envs, made.env.max_steps) == (VmasEnv, 2, 4)
    assert check_env("vmas/alike", env_config={"noise": 0.0, "max_steps": 5}).ok
    assert check_env("vmas/unlike", env_config={"noise": 0.0, "max_steps": 5}).ok


def test_errors(fake, monkeypatch):
    with pytest.raises(EnvError, match=r"(?s)'alikee'.*'alike'"):
        make_env("vmas/alikee")
    with pytest.raises(EnvError, match="display"):
        VmasEnv("alike", num_envs=1).render()
    monkeypatch.setitem(sys.modules, "vmas", None)
    with pytest.raises(EnvError, match=r"pip install vmas"):
        make_env("vmas/alike")


# The package itself.


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("scenario", ["balance", "simple_tag"])
def test_episodes_are_those_of_vmas_itself(scenario, continuous):
    vmas = pytest.importorskip("vmas")
    settings = {"continuous_actions": continuous, "max_steps": 6}
    config = configured(f"vmas/{scenario}", copies=2, policies="independent", **settings)
    runner = config.build_algo().env_runner
    episodes = [e for e in runner.sample(num_episodes=4) if e.is_done]
    assert len(episodes) == 4
    env = vmas.make_env(scenario, 1, clamp_actions=True, terminated_truncated=True, **settings)
    for episode in episodes:
        index, number = map(int, episode.id_.split("-"))
        copy = runner.vector_env.sub_envs[index]
        copy.episode_number = number
        env.seed(runner.vector_env.reset_seed(copy))
        env.reset_at(0)
        agents = [agent.name for agent in env.agents]
        seen = env.get_from_scenario(get_observations=True, get_rewards=False, get_infos=False, get_dones=False)[0]
        for t in range(episode.env_steps()):
            own = [episode.agent_episodes[agent] for agent in agents]
            for agent_episode, observation in zip(own, seen, strict=True):
                assert np.allclose(agent_episode.get_observations(t), observation[0], atol=1e-5)
            taken = [torch.as_tensor(np.asarray(part.get_actions(t)))[None] for part in own]
            taken = [action if continuous else action[:, None] for action in taken]
            seen, rewards, terminated, truncated, _ = env.step(taken)
            for agent_episode, reward in zip(own, rewards, strict=True):
                assert agent_episode.get_rewards(t) == pytest.approx(float(reward[0]), abs=1e-4)
        assert (episode.is_terminated, episode.is_truncated) == (bool(terminated), bool(truncated and not terminated))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["balance", "navigation", "transport", "flocking", "simple_spread", "football"])
def test_scenarios_train(scenario):
    pytest.importorskip("vmas")
    algo = configured(f"vmas/{scenario}", copies=8).training(train_batch_size_per_learner=160).build_algo()
    for _ in range(3):
        result = algo.train()
    assert np.isfinite(result["env_runners"]["episode_return_mean"])
    algo.stop()


def test_a_misspelt_setting_is_told():
    pytest.importorskip("vmas")
    with pytest.raises(EnvError, match="n_agentz"):
        make_env("vmas/balance", {"n_agentz": 3})
