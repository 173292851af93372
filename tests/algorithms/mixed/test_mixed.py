"""Mixed: what its algorithms learn from, that they learn what they learn alone, and that a run continues exactly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv
from helpers.envs.stated_envs import StatedLife, expected_states
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import (
    Algorithm,
    Columns,
    DQNConfig,
    FrameStacking,
    Learner,
    MAPPOConfig,
    MeanStdFilter,
    Mixed,
    MixedConfig,
    PPOConfig,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.checkpoints import save_state
from marl_connectors.errors import CheckpointError, ConfigError, ModuleError

FRESH = fresh_seeds(12)
LIFE = {"die": 0.1, "join": 0.2, "max_steps": 6}


def ppo(**training):
    settings = {"train_batch_size_per_learner": 40, "minibatch_size": 16, "num_epochs": 2, "lr": 0.01}
    return PPOConfig().training(**(settings | training))


def dqn(**training):
    settings = {
        "train_batch_size_per_learner": 8,
        "num_steps_sampled_before_learning_starts": 20,
        "target_network_update_freq": 30,
        "epsilon": [[0, 1.0], [200, 0.1]],
        "replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 300},
        "lr": 0.01,
    }
    return DQNConfig().training(**(settings | training))


def in_env(config, env=LifeEnv, seed=0):
    config.environment(env, env_config=LIFE, disable_env_checking=True).debugging(seed=seed)
    config.multi_agent(policies="independent").rl_module(model_config={"fcnet_hiddens": (6,)})
    return config.env_runners(num_env_workers=0)


def mixed(algorithms, env=LifeEnv, seed=0):
    return in_env(MixedConfig(), env, seed).algorithms(algorithms)


def random_mixed(seed):
    rng = np.random.default_rng(seed)
    own = ppo(train_batch_size_per_learner=int(rng.integers(16, 50)), gamma=float(rng.choice([0.9, 0.99])))
    if rng.integers(2):
        own.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5, "fcnet_hiddens": (6,)})
    other = dqn(
        n_step=int(rng.integers(1, 4)),
        training_intensity=[None, 2.5][int(rng.integers(2))],
        replay_buffer_config={"type": ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"][int(rng.integers(2))]},
    )
    algorithms = {"a": own, "*": other} if rng.integers(2) else {"b": other, "[ab]": own, "*": ppo()}
    config = mixed(algorithms, [LifeEnv, RandomAEC][int(rng.integers(2))], seed)
    return config.env_runners(
        num_envs_per_env_runner=int(rng.integers(1, 4)),
        rollout_fragment_length=["auto", 3][int(rng.integers(2))],
        batch_mode=str(rng.choice(["truncate_episodes", "complete_episodes"])),
        env_to_module_connector=[None, lambda: MeanStdFilter()][int(rng.integers(2))],
    ).multi_agent(count_steps_by=str(rng.choice(["env_steps", "agent_steps"])))


def test_a_central_critic_sees_the_states_of_episodes_that_come_in_short_samples():
    critic = MAPPOConfig().training(train_batch_size_per_learner=30, num_epochs=1, critic_obs="state")
    algo = mixed({"a": dqn(), "*": critic}, StatedLife).build_algo()
    seen = []
    learner = algo.learner.learners["*"]
    make_batch = learner.make_batch
    learner.make_batch = lambda episodes: seen.append(make_batch(episodes)) or seen[-1]
    for _ in range(2):
        algo.train()
    for batch in seen:
        for group in batch.groups:
            np.testing.assert_array_equal(group.rows.get(Columns.ENV_STATE), expected_states(group.rows, algo.seed))
    assert len(seen) == 2
    algo.stop()


def parameters(algo, *module_ids):
    return {
        (module_id, name): value.clone()
        for module_id in module_ids or algo.rl_module
        for name, value in algo.rl_module[module_id].state_dict().items()
    }


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5, msg=str(name))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_mixed(seed)
    whole = config.build_algo()
    for _ in range(3):
        whole.train()
    saved = whole.save_to_path(tmp_path / "checkpoint")
    resumed = Algorithm.from_checkpoint(saved, config=config)
    assert type(resumed) is Mixed
    assert_same(parameters(whole), parameters(resumed))
    for _ in range(2):
        one, other = whole.train(), resumed.train()
        assert set(one["learners"]) <= set(whole.rl_module)
        assert one["learners"] == other["learners"]
        assert one["env_runners"].get("episode_return_mean") == other["env_runners"].get("episode_return_mean")
    assert_same(parameters(whole), parameters(resumed))
    whole.stop()
    resumed.stop()


def captured(learner):
    """Keeps the arguments of a learner's updates, with its modules and the count of updates before each."""
    calls, update = [], learner.update

    def kept(**given):
        calls.append((copy.deepcopy(learner.module.get_state()), learner.num_updates, given))
        return update(**given)

    learner.update = kept
    return calls


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *FRESH])
def test_ppo_learns_from_an_iteration_what_it_learns_alone(seed):
    algo = mixed({"a": ppo(), "*": dqn()}, seed=seed).env_runners(num_envs_per_env_runner=2).build_algo()
    calls = captured(algo.learner.learners["a"])
    alone = in_env(ppo(), seed=seed).multi_agent(policies_to_train=["a"]).build_algo()
    for _ in range(2):
        algo.train()
        before, number, given = calls[-1]
        alone.rl_module.set_state({"a": before["a"]})
        assert alone.learner.num_updates == number
        steps = sum(len(e.agent_episodes["a"]) for e in given["episodes"] if "a" in e.agent_episodes)
        results = alone.learner.update(**given)
        assert 0 < steps <= results["a"]["num_module_steps_trained"]
        assert_close(parameters(algo, "a"), parameters(alone, "a"))
    assert len(calls) == 2
    alone.stop()
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *FRESH])
def test_dqn_learns_from_a_batch_what_it_learns_alone(seed):
    algo = mixed({"a": ppo(), "*": dqn(n_step=2)}, seed=seed).build_algo()
    calls = captured(algo.learner.learners["*"])
    algo.train()
    alone = in_env(dqn(n_step=2), seed=seed).build_algo()
    for i, (before, number, given) in enumerate(calls):
        alone.rl_module.set_state({m: before[m] for m in "bc"})
        assert alone.learner.num_updates == number == i
        alone.learner.update(**given)
        after = calls[i + 1][0] if i + 1 < len(calls) else algo.rl_module.get_state()
        for module_id in "bc":
            for name, value in alone.rl_module.get_state()[module_id].items():
                if name == "epsilon":  # follows from the time of acting
                    continue
                torch.testing.assert_close(value, after[module_id][name], rtol=1e-4, atol=1e-5)
    assert len(calls) == 21
    alone.stop()
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [ppo(), dqn()], ids=["ppo", "dqn"])
@pytest.mark.parametrize("env", [LifeEnv, "CartPole-v1"])
def test_a_mixed_run_with_one_algorithm_is_a_run_of_that_algorithm(own, env):
    settings = {"environment": {"env": env, "env_config": LIFE if env is LifeEnv else {}}}
    if env == "CartPole-v1":
        settings["multi_agent"] = {"policies": "shared"}
    runs = []
    for config in (in_env(MixedConfig()).algorithms({"*": own}), in_env(own.copy())):
        if not isinstance(own, PPOConfig):
            config.reporting(min_sample_timesteps_per_iteration=60)
        for section, given in settings.items():
            getattr(config, section)(**given)
        algo = config.build_algo()
        runs.append(([algo.train()["learners"] for _ in range(2)], parameters(algo)))
        algo.stop()
    assert runs[0][0] == runs[1][0]
    assert_same(runs[0][1], runs[1][1])


@pytest.mark.slow
def test_remote_env_runners_change_no_result(monkeypatch):
    use_fake_ray(monkeypatch)
    runs = []
    for number in (0, 2):
        config = mixed({"a": ppo(), "*": dqn()})
        config.env_runners(num_env_runners=number, num_envs_per_env_runner=1 if number else 2)
        algo = config.evaluation(evaluation_num_env_runners=number, evaluation_duration=4).build_algo()
        results = [algo.train()["learners"] for _ in range(2)]
        runs.append((results, algo.evaluate()["env_runners"]["episode_return_mean"], parameters(algo)))
        algo.stop()
    assert runs[0][:2] == runs[1][:2]
    assert_same(runs[0][2], runs[1][2])


def test_an_iteration_is_a_train_batch_with_the_updates_that_are_due():
    algo = mixed({"a": ppo(train_batch_size_per_learner=60), "*": dqn()}).build_algo()
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 60
    trained = {m: own["num_module_steps_trained"] for m, own in result["learners"].items()}
    assert trained["b"] == trained["c"] == 8 * 41  # after 20, 21, ... 60 steps
    own = result["env_runners"]["num_module_steps_sampled"]
    assert trained["a"] == 2 * own["a"]  # epochs
    buffer = algo.replays["*"].buffer
    assert {m: buffer.get_added_timesteps(m) for m in buffer.module_ids} == {m: own[m] for m in "bc"}
    algo.stop()
    algo = mixed({"*": dqn(), "a": dqn()}).reporting(min_sample_timesteps_per_iteration=30)
    with pytest.warns(UserWarning, match="'a'"):
        algo = algo.build_algo()
    assert algo.train()["num_env_steps_sampled_lifetime"] == 30
    algo.stop()


def test_ppo_sees_whole_trajectories_although_samples_are_short():
    algo = mixed({"a": ppo(), "*": dqn()}).build_algo()
    calls = captured(algo.learner.learners["a"])
    algo.train()
    episodes = calls[0][2]["episodes"]
    assert len({episode.id_ for episode in episodes}) == len(episodes) < 40
    assert sum(episode.env_steps() for episode in episodes) == 40
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *FRESH])
def test_modules_with_unlike_settings_share_a_bucket(seed):
    """Two PPOs with different learning rates learn what one PPO learns with an override."""
    split = mixed({"a": ppo(lr=0.02, gamma=0.9), "*": ppo()}, seed=seed).build_algo()
    overrides = {"a": {"lr": 0.02, "gamma": 0.9}}
    one = in_env(ppo(), seed=seed).rl_module(algorithm_config_overrides_per_module=overrides).build_algo()
    assert [len(bucket.module_ids) for bucket in split.rl_module.buckets] == [3]
    for _ in range(3):
        split.train()
        one.train()
    assert_close(parameters(split), parameters(one))
    split.stop()
    one.stop()


def test_modules_that_are_not_to_be_trained_stay_as_they_are():
    algo = mixed({"a": ppo(), "*": dqn()}).multi_agent(policies_to_train=["a", "c"]).build_algo()
    before = parameters(algo, "b")
    assert set(algo.train()["learners"]) == {"a", "c"}
    after = parameters(algo, "b")
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    algo.stop()


def test_critics_that_see_all_agents_learn_beside_dqn():
    critics = MAPPOConfig().training(train_batch_size_per_learner=30, num_epochs=1)
    config = in_env(MixedConfig()).algorithms({"agent_2": dqn(), "*": critics})
    algo = config.environment("mpe2.simple_spread_v3", env_config={"max_cycles": 10}).build_algo()
    assert set(algo.train()["learners"]) == {"agent_0", "agent_1", "agent_2"}
    algo.stop()


@pytest.mark.slow
def test_modules_come_and_go(tmp_path):
    algo = mixed({"[ad]": ppo(), "*": dqn()}, seed=3).build_algo()
    algo.train()
    added = algo.add_module("d", new_agent_to_module_mapping_fn="a=d,*=b", config_overrides={"clip_param": 0.1})
    assert type(added) is DefaultPPORLModule
    assert algo.learner.of_module("d").config.get_config_for_module("d").clip_param == 0.1
    assert type(algo.add_module("e")) is DefaultDQNRLModule
    algo.train()
    assert "d" in algo.train()["learners"]
    algo.remove_module("a")
    algo.remove_module("c")
    assert "a" not in algo.learner.learners["[ad]"].module
    assert "c" not in algo.train()["learners"]
    resumed = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))
    assert algo.train()["learners"] == resumed.train()["learners"]
    assert_same(parameters(algo), parameters(resumed))
    with pytest.raises(ConfigError, match="'clip_param'"):
        algo.add_module("f", config_overrides={"clip_param": 0.1})
    assert "f" not in algo.rl_module
    algo.stop()
    resumed.stop()


def test_a_module_without_an_algorithm_is_named():
    algo = mixed({"[abc]": ppo(), "d": dqn()}).rl_module(algorithm_config_overrides_per_module={"a": {"gamma": 0.9}})
    with pytest.warns(UserWarning, match="'d'"):
        algo = algo.build_algo()
    with pytest.raises(ConfigError, match="module 'x'"):
        algo.add_module("x")
    assert type(algo.add_module("d")) is DefaultDQNRLModule
    with pytest.raises(ConfigError, match=r"(?s)^MixedConfig.*'x'"):  # not the overrides of 'a'
        algo.add_module("x", config_overrides={"gamma": 0.5})
    algo.stop()
    with pytest.raises(ConfigError, match=r"(?s)'c'.*'\[ab\]'"):
        mixed({"[ab]": ppo()}).build_algo()


def test_policies_act_as_the_modules_do(tmp_path):
    algo = mixed({"a": ppo(), "*": dqn()}).build_algo()
    algo.train()
    saved = algo.save_to_path(tmp_path / "checkpoint")
    policy = load_policy(saved, trusted=False)
    observations = {agent: np.full(2, 0.3, np.float32) for agent in "abc"}
    actions = policy.actions(observations)
    for agent, observation in observations.items():
        module = algo.get_module(agent)
        inputs = module.forward_inference({"obs": torch.as_tensor(observation)[None]})["action_dist_inputs"]
        chosen = module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic()
        assert actions[agent] == chosen.item()
    assert algo.evaluate(num_episodes=3)["env_runners"]["num_episodes"] == 3
    algo.stop()


@pytest.mark.slow
def test_policies_become_onnx_programs(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    algo = mixed({"a": ppo(), "*": dqn()}).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    policy.export_onnx(tmp_path / "onnx")
    from marl_connectors import OnnxPolicy

    exported = OnnxPolicy(tmp_path / "onnx")
    observations = {agent: np.full(2, 0.3, np.float32) for agent in "abc"}
    assert exported.actions(observations) == policy.actions(observations)
    algo.stop()


@pytest.mark.slow
def test_fit_saves_and_resumes(tmp_path):
    config = mixed({"a": ppo(), "*": dqn()})
    whole = config.build_algo()
    whole.fit(num_iterations=3, progress=False)
    begun = config.build_algo()
    begun.fit(num_iterations=2, progress=False, folder=tmp_path)
    resumed = Algorithm.from_checkpoint(tmp_path)
    resumed.fit(num_iterations=1, progress=False)
    assert_same(parameters(whole), parameters(resumed))
    for algo in (whole, begun, resumed):
        algo.stop()


def test_each_learner_can_be_saved_and_explained(tmp_path):
    algo = mixed({"a": ppo(), "*": dqn()}).build_algo()
    algo.train()
    learner = algo.learner.of_module("b")
    made = Learner.from_checkpoint(learner.save_to_path(tmp_path / "learner"))
    assert type(made) is type(learner)
    assert list(made.module) == ["b", "c"]
    explained = algo.explain()
    assert "GeneralAdvantageEstimation" in str(explained["learner a"])
    assert "AddNStepReturnsToTrainBatch" in str(explained["learner *"])
    assert "learner a" in repr(algo.learner.by_name)
    assert "'a', '*'" in repr(algo.learner)
    assert algo.learner_group.foreach_learner(lambda own: list(own.module)) == [["a"], ["b", "c"]]
    with pytest.raises(KeyError, match="module 'x'"):
        algo.learner.of_module("x")
    algo.stop()


def test_damaged_checkpoints_are_named(tmp_path):
    config = mixed({"a": ppo(), "*": dqn()})
    algo = config.build_algo()
    algo.train()
    state = algo.get_state()
    damaged = copy.deepcopy(state)
    damaged.replays["*"].replay_buffer.rings["b"].flags = np.zeros(3, np.uint8)
    save_state(tmp_path / "checkpoint", damaged)
    with pytest.raises(CheckpointError, match=r"replay_buffer\.rings\[\.\.\.\]"):
        algo.restore_from_path(tmp_path / "checkpoint")
    damaged = copy.deepcopy(state)
    damaged.learner.learners["a"]["num_updates"] = -1
    with pytest.raises(CheckpointError, match=r"PPOLearnerState\.num_updates"):
        algo.set_state(damaged)
    damaged = copy.deepcopy(state)
    del damaged.learner.learners["a"]
    with pytest.raises(CheckpointError, match="states"):
        algo.set_state(damaged)
    before = parameters(algo)
    algo.train()
    algo.set_state(state)
    assert_same(before, parameters(algo))
    algo.stop()


def test_modules_that_share_parameters_need_one_algorithm():
    class Shares(DefaultPPORLModule):
        def setup(self):
            super().setup()
            self.encoder = SHARED.setdefault("encoder", self.encoder)

    SHARED = {}
    config = mixed({"a": ppo(), "*": ppo(lr=0.1)}).rl_module(rl_module_spec=RLModuleSpec(Shares))
    with pytest.raises(ModuleError, match="share"):
        config.build_algo()


def test_frames_before_an_algorithm_with_a_replay_buffer_are_refused_when_the_run_is_built():
    config = mixed({"a": dqn(), "*": ppo().learners(learner_connector=lambda *_: FrameStacking(num_frames=2))})
    config.env_runners(env_to_module_connector=lambda env: FrameStacking(num_frames=2))
    with pytest.raises(ConfigError, match=r"(?s)DQNConfig.*FrameStacking"):
        config.build_algo()


def test_a_minibatch_that_is_too_large_is_named_with_the_batch_of_its_own_algorithm():
    config = mixed({"a": ppo(train_batch_size_per_learner=13), "*": dqn()}).multi_agent(count_steps_by="agent_steps")
    with pytest.raises(ConfigError, match=r"(?s)minibatch_size=16.*'a'.*train_batch_size_per_learner=13"):
        config.build_algo()
