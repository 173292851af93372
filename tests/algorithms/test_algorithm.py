"""A run from end to end: what an iteration counts, that evaluation touches nothing, and that agents learn."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import ActionMasking, PPOConfig, load_policy
from marl_connectors.callbacks import Callbacks
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_envs import match_v0


def match_config(policies="independent", **env_config):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 6, **env_config})
    return config.multi_agent(policies=policies).env_runners(num_envs_per_env_runner=2)


def weights(algo):
    return {f"{m}.{k}": v.numpy() for m, state in algo.rl_module.get_state().items() for k, v in state.items()}


def plain(episodes):
    """What can be compared of a sample."""
    return {
        (e.id_, a, name): values
        for e in episodes
        for a, part in e.agent_episodes.items()
        for name, values in (
            ("obs", part.get_observations()),
            ("actions", part.get_actions()),
            ("r", part.get_rewards()),
        )
    }


def unmasked(env):
    """Takes the masks out where there are some."""
    return ActionMasking() if env.metadata["name"].startswith("last_stone") else []


def test_an_iteration_reports_steps_returns_losses_and_times():
    algo = match_config().build_algo()
    results = [algo.train() for _ in range(3)]
    assert [r["training_iteration"] for r in results] == [1, 2, 3]
    assert [r["num_env_steps_sampled_lifetime"] for r in results] == [10, 20, 30]
    assert [r["num_agent_steps_sampled_lifetime"] for r in results] == [20, 40, 60]
    assert np.isnan(results[0]["env_runners"]["episode_return_mean"]), "no episode has ended yet"
    assert results[2]["env_runners"]["num_episodes"] == 4
    assert results[2]["env_runners"]["episode_len_mean"] == 6.0
    assert set(results[0]["learners"]) == {"agent_0", "agent_1"}
    assert results[2]["time_total_s"] == pytest.approx(sum(r["time_this_iter_s"] for r in results))


@pytest.mark.parametrize(
    ("by", "fragment", "env_steps"),
    [("env_steps", 5, 10), ("agent_steps", 5, 10), ("env_steps", "auto", 10), ("agent_steps", "auto", 6)],
)
def test_batches_are_counted_in_env_steps_or_agent_steps(by, fragment, env_steps):
    config = match_config().multi_agent(count_steps_by=by).env_runners(rollout_fragment_length=fragment)
    assert config.build_algo().train()["num_env_steps_sampled_lifetime"] == env_steps


@pytest.mark.parametrize(("by", "rates"), [("env_steps", [0.075, 0.05]), ("agent_steps", [0.05, 0.0])])
def test_schedules_count_env_steps_or_agent_steps(by, rates):
    config = match_config().multi_agent(count_steps_by=by, policies="shared")
    size = 20 if by == "env_steps" else 40  # of two agents
    algo = config.training(lr=[[0, 0.1], [80, 0.0]], train_batch_size_per_learner=size).build_algo()
    found = [algo.train() for _ in rates]
    assert [result["num_agent_steps_sampled_lifetime"] for result in found] == [40, 80]
    learned = [result["learners"]["default_policy"]["learning_rate"] for result in found]
    assert learned == pytest.approx(rates)
    algo.stop()


def test_complete_episodes_are_all_that_is_learned_from():
    batches = []

    class Note(Callbacks):
        def on_sample_end(self, *, samples, **kwargs):
            batches.append(samples)

    config = match_config().env_runners(batch_mode="complete_episodes").callbacks(Note)
    algo = config.training(train_batch_size_per_learner=20).build_algo()
    result = algo.train()
    episodes = [e for batch in batches for e in batch]
    assert len(episodes) == 4
    assert all(e.is_done and e.env_t_started == 0 and e.env_steps() == 6 for e in episodes)
    assert result["learners"]["agent_0"]["num_module_steps_trained"] == 24


class Counter(ConnectorV2):
    """Counts how often it is called; a stateful piece that touches nothing."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def columns(self, c, xp):
        self.calls += 1

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


@pytest.mark.slow
def test_evaluation_random_play_and_rendering_do_not_touch_training():
    config = match_config().env_runners(env_to_module_connector=lambda env: Counter())
    disturbed, quiet = config.build_algo(), config.build_algo()
    for i in range(3):
        disturbed.evaluate(num_episodes=3, explore=bool(i % 2))
        disturbed.random_play(num_episodes=2)
        disturbed.render_episode()
        disturbed.train()
        quiet.train()
    np.testing.assert_equal(weights(disturbed), weights(quiet))
    np.testing.assert_equal(plain(disturbed.env_runner.sample()), plain(quiet.env_runner.sample()))
    assert disturbed.env_runner.env_to_module.get_state() == quiet.env_runner.env_to_module.get_state()


def test_evaluation_is_the_same_for_the_same_seed_and_new_for_the_next():
    algo = match_config(ep_len=50).build_algo()
    first, second = (
        algo.evaluate(num_episodes=4, seed=1, explore=True),
        algo.evaluate(num_episodes=4, seed=1, explore=True),
    )
    other = algo.evaluate(num_episodes=4, seed=2, explore=True)
    assert first == second
    assert first != other
    assert first["env_runners"]["num_episodes"] == 4
    assert algo.evaluate(num_episodes=4, explore=True) != algo.evaluate(num_episodes=4, explore=True)


def test_evaluation_comes_with_the_results_when_it_is_due():
    algo = match_config().evaluation(evaluation_interval=2, evaluation_duration=3).build_algo()
    results = [algo.train() for _ in range(4)]
    assert ["evaluation" in r for r in results] == [False, True, False, True]
    assert results[1]["evaluation"]["env_runners"]["num_episodes"] == 3


def test_random_play_reaches_what_chance_reaches():
    algo = match_config(ep_len=40).build_algo()
    result = algo.random_play(num_episodes=50)["env_runners"]
    # 2 agents, 40 steps, 3 choices: 80/3, with a standard error of (80 * 2/9 / 50) ** 0.5 = 0.6 over 50 episodes.
    assert result["num_episodes"] == 50
    assert result["episode_return_mean"] == pytest.approx(80 / 3, abs=2.4)
    assert result == algo.random_play(num_episodes=50)["env_runners"]


def test_an_episode_is_rendered_as_frames():
    frames = (
        small_config("mpe2.simple_spread_v3", env_config={"max_cycles": 5}).build_algo().render_episode(max_frames=7)
    )
    assert len(frames) == 7
    assert all(f.ndim == 3 and f.shape[2] == 3 and f.dtype == np.uint8 for f in frames)
    frames = match_config().build_algo().render_episode(max_frames=2)
    assert [frame.shape for frame in frames] == [(70, 460, 3)] * 2
    assert small_config(lambda: LifeEnv()).build_algo().render_episode() == []


def test_callbacks_are_called_in_order(tmp_path):
    told = []

    class Told(Callbacks):
        pass

    for name in (
        "on_algorithm_init",
        "on_environment_created",
        "on_episode_end",
        "on_sample_end",
        "on_train_result",
        "on_evaluate_start",
        "on_evaluate_end",
        "on_checkpoint_loaded",
    ):
        setattr(Told, name, lambda self, _name=name, **kwargs: told.append((_name, sorted(kwargs))))
    algo = small_config("CartPole-v1").callbacks(Told).env_runners(rollout_fragment_length=100).build_algo()
    assert [name for name, _ in told] == ["on_environment_created", "on_algorithm_init"]
    told.clear()
    algo.train()
    assert {name for name, _ in told[:-2]} == {"on_episode_end"}
    assert [name for name, _ in told[-2:]] == ["on_sample_end", "on_train_result"]
    assert told[-1][1] == ["algorithm", "metrics_logger", "result"]
    told.clear()
    algo.evaluate(num_episodes=1)
    names = [name for name, _ in told]
    assert (names[0], names[-1]) == ("on_evaluate_start", "on_evaluate_end")
    told.clear()
    algo.restore_from_path(algo.save_to_path(tmp_path / "c"))
    assert told == [("on_checkpoint_loaded", ["algorithm"])]


def test_what_a_callback_adds_to_the_result_is_reported():
    class Adds(Callbacks):
        def on_train_result(self, *, algorithm, result, **kwargs):
            result["mine"] = algorithm.iteration

    assert match_config().callbacks(Adds).build_algo().train()["mine"] == 1


def test_agents_that_die_join_and_come_back_are_trained_on():
    make = lambda: LifeEnv(die=0.2, join=0.4, fixed=False, max_steps=20)
    for policies in ("shared", "independent"):
        algo = small_config(make).multi_agent(policies=policies).env_runners(num_envs_per_env_runner=3).build_algo()
        for _ in range(6):
            result = algo.train()
        assert all(np.isfinite(f["total_loss"]) for f in result["learners"].values())


def test_the_users_config_and_the_global_random_state_are_left_alone():
    import torch

    config = match_config()
    settings, state = config.to_dict(), torch.get_rng_state()
    algo = config.build_algo()
    algo.train()
    assert config.to_dict() == settings
    assert torch.equal(torch.get_rng_state(), state)


# Learning.


@pytest.mark.few(1)
@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("continuous", [False, True], ids=["Discrete", "Box"])
def test_match_is_solved(policies, continuous):
    env_config = {"n_agents": 3, "n_actions": 3, "ep_len": 10, "continuous_actions": continuous}
    config = PPOConfig().environment(match_v0.parallel_env, env_config=env_config).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=16, rollout_fragment_length=25).debugging(seed=1)
    config.training(
        train_batch_size_per_learner=400, minibatch_size=100, num_epochs=8, lr=5e-3, gamma=0.0, entropy_coeff=0.0
    )
    config.rl_module(model_config={"fcnet_hiddens": (32,)})
    algo = config.build_algo()
    best = 0.0
    for _ in range(40):
        algo.train()
        result = algo.evaluate(num_episodes=16)["env_runners"]
        best = min(m["mean"] for m in result["module_episode_returns"].values())
        if best > 9.5:
            break
    assert best > 9.5, "every agent can get 10; chance is 3.3"


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_reaches_450_within_100k_steps(seed):
    config = PPOConfig().environment("CartPole-v1").debugging(seed=seed)
    config.env_runners(num_envs_per_env_runner=8)
    config.training(
        train_batch_size_per_learner=2048,
        minibatch_size=256,
        num_epochs=10,
        lr=1e-3,
        lambda_=0.95,
        clip_param=0.2,
        entropy_coeff=0.0,
        vf_clip_param=1e5,
        grad_clip=0.5,
        use_kl_loss=False,
    )
    config.rl_module(model_config={"fcnet_hiddens": (64, 64), "vf_share_layers": False})
    config.reporting(metrics_num_episodes_for_smoothing=20)
    algo = config.build_algo()
    best = 0.0
    while algo.env_runner.num_env_steps + 2048 <= 100_000 and best < 450:
        best = max(best, algo.train()["env_runners"]["episode_return_mean"])
    assert best >= 450


@pytest.mark.parametrize("env", ["marl_envs.last_stone_v0", "marl_envs.visitors_v0"])
def test_a_train_batch_has_hardly_more_agent_steps_than_asked_for_where_not_all_act(env):
    config = small_config(env).env_runners(
        num_envs_per_env_runner=2, rollout_fragment_length="auto", env_to_module_connector=unmasked
    )
    config.multi_agent(policies="shared", count_steps_by="agent_steps").training(train_batch_size_per_learner=300)
    algo = config.build_algo()
    for _ in range(3):
        before = algo.env_runner.num_agent_steps
        episodes = algo._sample().episodes()
        assert 300 <= sum(episode.agent_steps() for episode in episodes) <= 345
        assert algo.env_runner.num_agent_steps - before <= 360


def test_a_train_batch_of_many_who_still_wait_takes_few_fragments():
    config = small_config(lambda: RandomAEC(agents=tuple(range(60)), max_steps=10_000)).env_runners(
        num_envs_per_env_runner=2, rollout_fragment_length="auto"
    )
    config.multi_agent(policies="shared", count_steps_by="agent_steps").training(train_batch_size_per_learner=60)
    algo = config.build_algo()
    assert sum(episode.agent_steps() for episode in algo._sample().episodes()) >= 60
    assert algo.env_runner.num_env_steps <= 240


def test_a_run_and_an_env_runner_cannot_be_copied_or_pickled():
    with match_config().build_algo() as algo:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"(?s)^PPO.*PPO.from_checkpoint"):
                copied(algo)
            with pytest.raises(TypeError, match=r"(?s)^EnvRunner.*set_state"):
                copied(algo.env_runner)
        algo.train()


def test_a_run_in_inference_mode_learns_the_same(tmp_path):
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode), match_config().build_algo() as algo:
            algo.train()
            policy = load_policy(algo.save_to_path(tmp_path / str(mode)))
            found.append(weights(algo))
        action = policy(np.zeros(policy.spaces_of("agent_0")[0].shape, np.float32), "agent_0")  # outside of it
        found[-1]["action"] = np.array(action)
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])
