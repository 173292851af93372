"""MARWIL: what it learns from, what it learns, and that a run continues exactly."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from helpers.fresh_seeds import fresh_seeds
from helpers.runs.fake_ray import use_fake_ray
from helpers.runs.random_runs import differences, plain
from helpers.runs.recorded_runs import imitating, life_config, life_data, recorded_run
from marl_connectors import (
    MARWIL,
    Algorithm,
    BCConfig,
    Columns,
    EpisodeReader,
    MARWILConfig,
    PPOConfig,
    RandomRLModule,
    RLModuleSpec,
    SingleAgentEpisode,
)
from marl_connectors.callbacks import TensorBoardTracker
from marl_connectors.errors import ConfigError

FRESH = fresh_seeds(10)


def random_imitation(seed, tmp_path):
    """A run on recorded episodes of a random configuration: deaths, turns, joins, masks, recurrent and nested ones."""
    rng = np.random.default_rng([seed, 7])
    config = imitating(
        [MARWILConfig, BCConfig][int(rng.integers(3)) // 2],
        recorded_run(seed, tmp_path / "data"),
        tmp_path / "data",
        held_out_fraction=float(rng.choice([0.0, 0.2])),
        lr=0.01,
    )
    config.env_runners(batch_mode="truncate_episodes")
    if type(config) is MARWILConfig:
        config.training(
            beta=float(rng.choice([0.0, 0.7])),
            bc_logstd_coeff=float(rng.choice([0.0, 0.1])),
            moving_average_sqd_adv_norm_update_rate=0.3,
            moving_average_sqd_adv_norm_start=2.0,
            use_gae=bool(rng.integers(2)),
            lambda_=0.8,
        )
        config.offline_data(live_fraction=float(rng.choice([0.0, 0.4])))
    return config


def trained(algo, iterations):
    results = [algo.train() for _ in range(iterations)]
    kept = ("learners", "num_env_steps_sampled_lifetime", "offline_data")
    return plain([[own[name] for name in kept] for own in results]), plain(algo.rl_module.get_state())


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(8), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_imitation(seed, tmp_path)
    whole = config.build_algo()
    trained(whole, 2)
    saved = whole.save_to_path(tmp_path / "checkpoint")
    resumed = Algorithm.from_checkpoint(saved, config=config)
    assert type(resumed) is type(whole)
    if config.held_out_fraction:
        whole.evaluate_offline()  # which changes nothing
    assert not differences(trained(whole, 3), trained(resumed, 3))
    whole.stop()
    resumed.stop()


def test_steps_that_were_read_count_in_fit_and_for_trackers(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    config = life_config(BCConfig).offline_data(input_=life_data(tmp_path / "data"))
    config.callbacks(functools.partial(TensorBoardTracker, folder="events"))
    algo = config.build_algo()
    for goal in (200, 400):
        results = algo.fit(num_agent_steps=200, progress=False)
        assert goal <= algo.num_agent_steps < goal + 100 and len(results) > 1
    counted = [algo.num_agent_steps, algo.num_env_steps]
    path = algo.save_to_path("checkpoint")
    algo.train()
    algo.stop()
    with Algorithm.from_checkpoint(path, config=config) as algo:
        assert [algo.num_agent_steps, algo.num_env_steps] == counted
        result = algo.train()
    events = accumulator.EventAccumulator("events")
    events.Reload()
    steps = [point.step for point in events.Scalars("num_agent_steps_sampled_lifetime")]
    assert steps == sorted(set(steps)) and len(steps) == result["training_iteration"]


def by_hand(algo, config, module_id, batch, dist_cls):
    """The loss of the rows of one module, from the outputs of the module, one row after another."""
    module = algo.rl_module[module_id]
    fwd_out = module.forward_train(batch)
    inputs, mask = fwd_out[Columns.ACTION_DIST_INPUTS], batch.get(Columns.LOSS_MASK)
    now = dist_cls.from_logits(inputs)
    logp, log_stds = now.logp(batch[Columns.ACTIONS]), now.log_stds()
    counted = torch.ones_like(logp, dtype=torch.bool) if mask is None else mask.bool()
    wide = torch.zeros_like(logp) if log_stds is None else log_stds.mean(-1)
    gain = (logp + config.bc_logstd_coeff * wide)[counted]
    if not config.beta:
        return -gain.mean()
    values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
    advantages = (batch[Columns.VALUE_TARGETS] - values)[counted]
    norm = algo.learner.sqd_adv_norm(module_id) ** 0.5
    factors = (config.beta * advantages.detach() / norm).exp().clamp(max=config.max_adv_weight)
    return -(factors * gain).mean() + config.vf_coeff * 0.5 * advantages.square().mean()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(100, 110), *FRESH])
def test_the_loss_is_that_of_the_paper(seed, tmp_path):
    config = random_imitation(seed, tmp_path)
    algo = config.build_algo()
    trained(algo, 1)
    episodes = EpisodeReader(
        tmp_path / "data", policy_mapping_fn=lambda agent_id, episode: config.policy_mapping_fn(agent_id, episode)
    ).sample()
    found = algo.learner.evaluate([episodes])
    expected = {}
    with torch.no_grad():
        for group in algo.learner.make_batch(episodes).groups:
            for module_id, columns in group.module_columns():
                dist_cls = algo.rl_module[module_id].get_train_action_dist_cls()
                expected[module_id] = float(by_hand(algo, config, module_id, dict(columns), dist_cls))
    assert set(found) == set(expected)
    for module_id, loss in expected.items():
        assert found[module_id]["total_loss"] == pytest.approx(loss, rel=1e-3, abs=1e-4)
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_stacked_modules_learn_what_they_learn_one_by_one(beta, tmp_path):
    data, runs = life_data(tmp_path / "data"), []
    for stack in (True, False):
        config = life_config(MARWILConfig, beta=beta, minibatch_size=16, moving_average_sqd_adv_norm_update_rate=0.2)
        config.rl_module(algorithm_config_overrides_per_module={"b": {"beta": beta / 2, "max_adv_weight": 1.2}})
        config.learners(stack_modules=stack).offline_data(input_=data)
        with config.build_algo() as algo:
            results = [algo.train()["learners"] for _ in range(4)]
            runs.append((results[-1], algo.rl_module.state_dict()))
    for results, parameters in runs[1:]:
        for module_id, own in runs[0][0].items():
            assert results[module_id] == pytest.approx(own, rel=1e-3, abs=1e-4)
        for name, value in parameters.items():
            torch.testing.assert_close(value, runs[0][1][name], rtol=1e-3, atol=1e-4)


def test_targets_are_the_discounted_rewards_that_follow(tmp_path):
    config = MARWILConfig().environment("CartPole-v1").training(gamma=0.5).offline_data(input_="nowhere")
    algo = MARWIL(config)  # which opens no files
    observations = [np.zeros(4, np.float32)] * 4
    episode = SingleAgentEpisode(
        observations=observations, actions=[0, 1, 0], rewards=[1.0, 2.0, 4.0], terminated=True, len_lookback_buffer=0
    )
    (group,) = algo.learner.make_batch([episode.to_numpy()]).groups
    assert group[Columns.VALUE_TARGETS].tolist() == [3.0, 4.0, 4.0]
    assert Columns.VALUE_TARGETS in group and group[Columns.ACTIONS].tolist() == [0, 1, 0]
    algo.stop()


def test_the_average_of_squared_advantages_moves_towards_the_newest(tmp_path):
    config = life_config(MARWILConfig, moving_average_sqd_adv_norm_update_rate=0.25, lr=0.0)
    config.training(moving_average_sqd_adv_norm_start=8.0).offline_data(input_=life_data(tmp_path / "data"))
    with config.build_algo() as algo:
        expected = 8.0
        for _ in range(3):
            own = algo.train()["learners"]["a"]
            expected += 0.25 * (2 * own["vf_loss"] - expected)
            assert own["moving_average_sqd_adv_norm"] == pytest.approx(expected)


def test_a_part_of_a_batch_is_sampled(tmp_path):
    config = life_config(MARWILConfig, train_batch_size_per_learner=100)
    config.offline_data(input_=life_data(tmp_path / "data", 60), live_fraction=0.25)
    with config.build_algo() as algo:
        for iteration in range(1, 4):
            result = algo.train()
            live, read = result["env_runners"]["num_env_steps_sampled"], algo.offline_data.num_steps[0]
            assert 0.2 * 100 <= live <= 0.35 * 100
            assert 75 * iteration <= read <= 85 * iteration
            assert result["num_env_steps_sampled_lifetime"] == algo.env_runner_group.num_env_steps + read
        assert result["env_runners"]["num_episodes"] > 0


def test_live_steps_come_from_remote_env_runners_and_go_to_remote_learners(monkeypatch, tmp_path):
    use_fake_ray(monkeypatch)
    data, found = life_data(tmp_path / "data"), []
    for number in (0, 2):
        config = life_config(MARWILConfig, train_batch_size_per_learner=80).offline_data(input_=data, live_fraction=0.5)
        config.env_runners(num_env_runners=number, num_envs_per_env_runner=4 // max(1, number))
        config.env_runners(rollout_fragment_length=5)
        with config.build_algo() as algo:
            found.append(trained(algo, 3))
    assert not differences(*found)


@pytest.mark.few(1)
@pytest.mark.parametrize("live_fraction", [0.0, 0.4])
def test_states_of_the_recorded_policy_are_not_those_of_its_clone(tmp_path, live_fraction):
    recurrent = {"fcnet_hiddens": (6,), "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 3}
    with life_config().rl_module(model_config=recurrent).build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=30, explore=True)
    config = life_config(MARWILConfig).offline_data(input_=tmp_path / "data", live_fraction=live_fraction)
    config.rl_module(model_config={**recurrent, "use_lstm": False, "use_gru": True, "lstm_cell_size": 7})
    with config.build_algo() as algo:
        (episode, *_) = algo.offline_data.reader.sample(1)
        recorded = set(next(iter(episode.agent_episodes.values())).extra_model_outputs)
        assert not recorded & {Columns.STATE_OUT, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS}
        for _ in range(3):
            assert np.isfinite(algo.train()["learners"]["a"]["total_loss"])


@pytest.mark.slow
def test_remote_learners_learn_the_same(tmp_path):
    data, found = life_data(tmp_path / "data"), []
    for number in (0, 2):
        config = life_config(MARWILConfig, train_batch_size_per_learner=80 // max(1, number))
        config.training(moving_average_sqd_adv_norm_update_rate=0.2).offline_data(input_=data, held_out_fraction=0.1)
        with config.learners(num_learners=number).build_algo() as algo:
            for _ in range(3):
                result = algo.train()
            found.append([result["learners"], algo.evaluate_offline()["learners"]])
    for one, other in zip(*found, strict=True):
        for module_id, own in one.items():
            assert other[module_id] == pytest.approx(own, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_good_actions_are_preferred(tmp_path):
    """Recorded at random, so that a clone plays at random, but the weighted one prefers what was rewarded."""
    config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "n_actions": 3, "ep_len": 4})
    with config.build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=300, at_random=True)
        at_random = algo.random_play(num_episodes=200)["env_runners"]["episode_return_mean"]
    returns = []
    for beta in (0.0, 3.0):
        config = MARWILConfig().environment(
            "marl_envs.match_v0", env_config={"n_agents": 2, "n_actions": 3, "ep_len": 4}
        )
        config.training(lr=0.01, beta=beta, gamma=0.0, train_batch_size_per_learner=400, minibatch_size=100)
        config.training(moving_average_sqd_adv_norm_start=0.25).offline_data(input_=tmp_path / "data")
        config.rl_module(model_config={"fcnet_hiddens": (32,), "vf_share_layers": False}).debugging(seed=0)
        with config.build_algo() as algo:
            for _ in range(30):
                algo.train()
            returns.append(algo.evaluate(num_episodes=100, explore=True)["env_runners"]["episode_return_mean"])
    print(at_random, returns)
    assert returns[0] < at_random + 0.25 * abs(at_random)
    assert returns[1] > returns[0] + 0.5 * abs(at_random)


# Mistakes.


def test_a_run_without_recorded_episodes_is_refused(tmp_path):
    config = life_config(MARWILConfig)
    with pytest.raises(ConfigError, match=r"(?s)MARWILConfig.*input"):
        config.build_algo()
    algo = MARWIL(config)  # a restored run may lack its data
    algo.evaluate(num_episodes=1)
    with pytest.raises(ConfigError, match="recorded"):
        algo.train()
    algo.stop()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -0.1}, r"\bbeta\b"),
        ({"moving_average_sqd_adv_norm_start": 0.0}, "moving_average_sqd_adv_norm_start"),
        ({"moving_average_sqd_adv_norm_update_rate": 1.5}, r"(?s)\b0\b.*\b1\b"),
        ({"vf_loss_coeff": 1.0}, "'vf_loss_coeff'"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        MARWILConfig().training(**settings)


def test_modules_with_and_without_a_critic_can_be_added_where_there_are_targets(tmp_path):
    data = life_data(tmp_path / "data")
    for beta, other, fits in ((1.0, 0.0, False), (0.0, 1.0, False), (1.0, 2.0, True), (0.0, 0.0, True)):
        config = life_config(MARWILConfig, beta=beta).offline_data(input_=data)
        with config.build_algo() as algo:
            if not fits:
                with pytest.raises(ConfigError, match="override"):
                    algo.add_module("d", config_overrides={"beta": other})
                assert "d" not in algo.rl_module
            else:
                algo.add_module("d", config_overrides={"beta": other})
                algo.train()
                algo.remove_module("d")
            algo.train()


def test_a_module_without_values_needs_beta_0(tmp_path):
    config = life_config(MARWILConfig).offline_data(input_=life_data(tmp_path / "data"))
    spec = RLModuleSpec(RandomRLModule)
    config.multi_agent(policies={"a": None, "b": spec, "c": None}, policies_to_train=["a", "c"])
    with config.build_algo() as algo:
        assert set(algo.train()["learners"]) == {"a", "c"}


def test_an_untrusted_checkpoint_reads_no_files(tmp_path):
    config = MARWILConfig().environment("CartPole-v1")
    with PPOConfig().environment("CartPole-v1").build_algo() as algo:
        algo.record(tmp_path / "poles", num_episodes=10)
    config.offline_data(input_=tmp_path / "poles", held_out_fraction=0.2, live_fraction=0.1)
    with config.evaluation(offline_evaluation_interval=1).build_algo() as algo:
        algo.train()
        algo.save_to_path(tmp_path / "checkpoint")
    untrusted = Algorithm.from_checkpoint(tmp_path / "checkpoint", trusted=False)
    assert untrusted.config.input_ is None and untrusted.config.live_fraction == 0.0
    assert untrusted.evaluate(num_episodes=1)["env_runners"]["num_episodes"] == 1
    untrusted.stop()
