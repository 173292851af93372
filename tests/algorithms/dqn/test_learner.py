"""DQN: what it samples, what it learns from, and that a run continues exactly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    DQN,
    Algorithm,
    Columns,
    ConnectorV2,
    DefaultDQNRLModule,
    DefaultPPORLModule,
    DQNConfig,
    EpisodeReader,
    EpisodeReplayBuffer,
    MADDPGConfig,
    MeanStdFilter,
    MultiRLModuleSpec,
    RLModuleSpec,
    SACConfig,
    load_policy,
)
from marl_connectors.algorithms.dqn.learner import DQNLearner
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig
from marl_connectors.checkpoints import save_state
from marl_connectors.errors import (
    CheckpointError,
    ConfigError,
    ConnectorError,
    LearnerError,
    ModuleError,
    OfflineDataError,
)
from marl_connectors.replay_buffers.ring import ACTED
from marl_connectors.validators import settings_of

BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")


def small_dqn(env, seed=0, **training):
    settings = {
        "train_batch_size_per_learner": 8,
        "num_steps_sampled_before_learning_starts": 20,
        "target_network_update_freq": 30,
        "epsilon": [[0, 1.0], [200, 0.1]],
        "replay_buffer_config": {"type": BUFFERS[seed % 2], "capacity": 300},
        "lr": 0.01,
    }
    config = DQNConfig().environment(env, disable_env_checking=True).rl_module(model_config={"fcnet_hiddens": (6,)})
    config.training(**(settings | training)).reporting(min_sample_timesteps_per_iteration=60).debugging(seed=seed)
    return config.env_runners(num_env_workers=0)


def random_dqn(seed):
    rng = np.random.default_rng(seed)
    kind = [LifeEnv, RandomAEC, "CartPole-v1"][int(rng.integers(3))]
    config = small_dqn(
        kind,
        seed,
        double_q=bool(rng.integers(2)),
        dueling=bool(rng.integers(2)),
        n_step=int(rng.integers(1, 4)),
        td_error_loss_fn=str(rng.choice(["huber", "mse"])),
        tau=float(rng.choice([1.0, 0.3])),
        training_intensity=[None, 2.5][int(rng.integers(2))],
    )
    if kind != "CartPole-v1":
        config.environment(env_config={"die": 0.1, "join": 0.2, "max_steps": 6})
        config.multi_agent(policies=str(rng.choice(["shared", "independent"])))
    config.env_runners(
        num_envs_per_env_runner=int(rng.integers(1, 4)),
        rollout_fragment_length=["auto", 3][int(rng.integers(2))],
        env_to_module_connector=[None, lambda: MeanStdFilter()][int(rng.integers(2))],
    )
    return config


FRESH = fresh_seeds(12)


def parameters(algo):
    return {name: value.clone() for name, value in algo.rl_module.state_dict().items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_dqn(seed)
    whole = config.build_algo()
    for _ in range(3):
        whole.train()
    saved = whole.save_to_path(tmp_path / "checkpoint")
    resumed = Algorithm.from_checkpoint(saved, config=config)
    assert type(resumed) is DQN
    for _ in range(2):
        one, other = whole.train(), resumed.train()
        assert one["learners"] == other["learners"]
        assert one["env_runners"].get("episode_return_mean") == other["env_runners"].get("episode_return_mean")
    before, after = parameters(whole), parameters(resumed)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert len(whole.replay_buffer) == len(resumed.replay_buffer)
    found = resumed.train()["replay_buffer"]
    assert found == {"num_timesteps": len(resumed.replay_buffer), "num_bytes": resumed.replay_buffer.nbytes}
    whole.stop()
    resumed.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_stacked_modules_learn_what_they_learn_one_by_one(seed):
    runs = []
    for stack in (True, False):
        config = small_dqn(LifeEnv, seed, dueling=bool(seed % 3)).multi_agent(policies="independent")
        algo = config.learners(stack_modules=stack).build_algo()
        for _ in range(2):
            algo.train()
        runs.append(parameters(algo))
        algo.stop()
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-3, atol=1e-4)


def by_hand(algo, module_id, batch, config):
    """The loss of a batch, written as in the papers, one step after another."""
    module, losses, errors = algo.get_module(module_id), [], []
    for i in range(len(batch[Columns.REWARDS])):
        obs, new_obs = batch[Columns.OBS][i : i + 1], batch[Columns.NEXT_OBS][i : i + 1]

        def values(obs, encoder, af, vf):
            embeddings = encoder(obs)
            advantages = af(embeddings)[0]
            return advantages if vf is None else vf(embeddings)[0, 0] + advantages - advantages.mean()

        own = (module.encoder, module.af, getattr(module, "vf", None))
        slow = (module.target_encoder, module.target_af, getattr(module, "target_vf", None))
        target_values = values(new_obs, *slow)
        best = (values(new_obs, *own) if config.double_q else target_values).argmax()
        target = batch[Columns.REWARDS][i] + batch["discounts"][i] * target_values[best]
        error = values(obs, *own)[batch[Columns.ACTIONS][i]] - target.detach()
        size = error.abs()
        loss = error**2 if config.td_error_loss_fn == "mse" else torch.where(size < 1, 0.5 * error**2, size - 0.5)
        losses.append(loss * batch["weights"][i] if "weights" in batch else loss)
        errors.append(error.item())
    return torch.stack(losses).mean(), errors


@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_the_loss_is_that_of_the_papers(seed):
    config = random_dqn(seed)
    algo = config.build_algo()
    algo.train()
    sample = algo.replay_buffer.sample(16, n_step=config.n_step)
    for group in algo.learner.make_batch(sample).groups:
        for module_id, columns in group.module_columns():
            batch = dict(columns)
            expected, errors = by_hand(algo, module_id, batch, config)
            fwd_out = algo.get_module(module_id).forward_train(batch)
            found = algo.learner.compute_loss_for_module(
                module_id=module_id, config=algo.config, batch=batch, fwd_out=fwd_out
            )
            torch.testing.assert_close(found, expected)
            np.testing.assert_allclose(algo.learner.td_errors[module_id], errors, rtol=1e-4, atol=1e-5)
    algo.stop()


class ByAutograd(DQNLearner):
    """The same loss, without its closed form."""

    def compute_loss_for_module(self, **given):
        return super().compute_loss_for_module(**given)

    def compute_loss_for_stacked_modules(self, **given):
        return super().compute_loss_for_stacked_modules(**given)


@pytest.mark.accelerated
@pytest.mark.few(2)
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_the_closed_form_has_the_gradients_of_autograd(seed):
    runs = []
    for learner_class in (DQNLearner, ByAutograd):
        algo = random_dqn(seed).learners(learner_class=learner_class).build_algo()
        results = [algo.train()["learners"] for _ in range(2)]
        closed = [bound is not None for bound in algo.learner._bound_updates.values()]
        assert closed and all(closed) is (learner_class is DQNLearner)
        runs.append((parameters(algo), results))
        algo.stop()
    for name, value in runs[0][0].items():
        torch.testing.assert_close(value, runs[1][0][name], rtol=1e-3, atol=1e-4)
    for one, other in zip(runs[0][1], runs[1][1], strict=True):
        for module_id, terms in one.items():
            assert terms == pytest.approx(other[module_id], rel=1e-2, abs=1e-3)


def closed_losses(learner):
    """The stacks that were updated last, and their losses."""
    stacks = [learner.optimizers.stack_of(module_ids) for module_ids in learner._bound_updates]
    return [(stack, stack.bound["dqn loss"]) for stack in stacks]


@pytest.mark.accelerated
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_values_in_closed_form_are_those_of_the_modules_also_after_updates(seed):
    algo, rng = random_dqn(seed).build_algo(), np.random.default_rng(seed)
    for _ in range(2):
        algo.train()
        assert closed_losses(algo.learner)
        for stack, loss in closed_losses(algo.learner):
            module, size = stack.load(), stack.bucket.modules[stack.module_ids[0]].observation_space.shape
            assert None not in (loss.values._own, loss.values._targets)
            lead = (len(stack.module_ids),) if len(stack.module_ids) > 1 else ()
            batch = {Columns.OBS: torch.from_numpy(rng.normal(size=(*lead, 7, *size)).astype(np.float32))}
            with torch.no_grad():
                pairs = ((own.compute_q_values(batch), own.forward_target(batch)) for own in (loss.values, module))
                torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-5)
    algo.stop()


@pytest.mark.accelerated
def test_closed_forms_are_bound_once_for_modules_of_several_architectures_and_forgotten_with_them():
    specs = {m: RLModuleSpec(model_config={"fcnet_hiddens": (n,)}) for m, n in (("a", 4), ("b", 5))}
    config = small_dqn(LifeEnv, num_steps_sampled_before_learning_starts=200)
    config.multi_agent(
        policies={"a", "b"},
        policy_mapping_fn=lambda agent, episode, **kwargs: "b" if agent == "c" else "a",
    )
    algo = config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs)).build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=200))
    learner, bound = algo.learner, []
    for _ in range(3):
        algo.replay._update_once({})
        bound.append(closed_losses(learner))
    assert len(bound[0]) == 2 and all(one[1] is other[1] for one, other in zip(bound[0], bound[2], strict=True))
    kept = learner.optimizers.stack_of(("a",))
    learner.module._buckets = None  # as after a change to a module
    algo.replay._update_once({})
    assert len(closed_losses(learner)) == 2 and kept not in [stack for stack, _ in closed_losses(learner)]
    algo.stop()


@pytest.mark.accelerated
def test_a_closed_form_follows_changes_of_the_settings_of_a_module():
    from marl_connectors.accelerate.closed_dqn import closed_dqn_loss

    algo = small_dqn(LifeEnv, double_q=True).multi_agent(policies="independent").build_algo()
    learner, (module_id, *_) = algo.learner, algo.rl_module
    stack = learner.optimizers.stack_of((module_id,))
    assert closed_dqn_loss(learner, stack, (module_id,)).config.double_q
    algo.config.change(algorithm_config_overrides_per_module={module_id: {"double_q": False}})
    assert not closed_dqn_loss(learner, stack, (module_id,)).config.double_q
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("place", ["hook", "layer", "method", "subclass"])
def test_target_networks_that_a_user_has_changed_are_called(place):
    calls = []

    class OwnTargets(DefaultDQNRLModule):
        def forward_target(self, batch):
            calls.append("subclass")
            return super().forward_target(batch)

    config = small_dqn("CartPole-v1")
    if place == "subclass":
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnTargets))
    algo = config.build_algo()
    algo.train()
    module = algo.get_module()
    if place == "hook":
        module.target_af.register_forward_hook(lambda *args: calls.append(place))
    elif place == "layer":
        module.target_af.layers[0] = OwnLinear(calls, *module.target_af.layers[0].weight.T.shape)
    elif place == "method":
        called = module.forward_target
        module.forward_target = lambda batch: [calls.append(place), called(batch)][1]
    algo.train()
    assert set(calls) == {place}
    algo.stop()


class OwnLinear(torch.nn.Linear):
    def __init__(self, calls, *sizes):
        super().__init__(*sizes)
        self.requires_grad_(False)
        self.calls = calls

    def forward(self, x):
        self.calls.append("layer")
        return super().forward(x)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *FRESH])
def test_forbidden_actions_are_neither_taken_nor_valued(seed):
    config = small_dqn("pettingzoo.classic.tictactoe_v3", seed, epsilon=0.5, n_step=1 + seed % 3)
    algo = config.build_algo()
    algo.train()
    ring = algo.replay_buffer._rings["default_policy"]
    steps = (ring.flags & 1) > 0
    masks = ring.columns[Columns.ACTION_MASK][steps]
    assert masks[np.arange(len(masks)), ring.columns[Columns.ACTIONS][steps]].all()
    (group,) = algo.learner.make_batch(algo.replay_buffer.sample(64, n_step=config.n_step)).groups
    module, columns = (
        algo.get_module(),
        {Columns.OBS: group[Columns.NEXT_OBS], Columns.ACTION_MASK: group["new_action_mask"]},
    )
    following = algo.learner.values_of_best(algo.config, module, columns)
    values = algo.get_module().forward_target({Columns.OBS: group[Columns.NEXT_OBS]})["qf_preds"]
    for i, mask in enumerate(group["new_action_mask"].bool()):
        assert mask.any()
        assert torch.isclose(values[i][mask], following[i], atol=1e-6).any()
    algo.stop()


@pytest.mark.parametrize("config_class", [DQNConfig, SACConfig])
@pytest.mark.parametrize("settings", [{"shuffle_batch_per_epoch": True}, {"minibatch_size": 4}])
def test_priorities_need_the_errors_of_all_rows_in_their_order(config_class, settings):
    (name,) = settings
    config = config_class().environment("CartPole-v1").training(**settings)
    config.training(replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer"})
    with pytest.raises(ConfigError, match=f"(?s)Config.*{name}=.*{name}=.*EpisodeReplayBuffer"):
        config.validate()
    config.training(replay_buffer_config={"type": "EpisodeReplayBuffer"}).validate()
    prioritized = (
        config_class()
        .environment("CartPole-v1")
        .training(replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer"})
    )
    prioritized.rl_module(algorithm_config_overrides_per_module={"pi": {"minibatch_size": 4}})
    with pytest.raises(ConfigError, match=r"(?s)'pi'.*minibatch_size=4"):
        prioritized.validate()


@pytest.mark.parametrize("type_", BUFFERS)
def test_rllibs_names_of_buffers_for_several_agents_stand_for_the_same_classes(type_):
    config = small_dqn("CartPole-v1", replay_buffer_config={"type": f"MultiAgent{type_}", "capacity": 40})
    with config.build_algo() as algo:
        assert type(algo.replay_buffer).__name__ == type_ and algo.replay_buffer.capacity == 40
    with small_dqn(
        "CartPole-v1", replay_buffer_config={"type": "MultiAgentPrioritizedEpisodeReplayBuffer"}
    ).build_algo() as algo:
        assert algo.replay_buffer.capacity == 50_000  # the algorithm's default


@pytest.mark.parametrize("by", ["env_steps", "agent_steps"])
def test_training_intensity_counts_env_steps(by):
    config = small_dqn(LifeEnv, training_intensity=4.0, num_steps_sampled_before_learning_starts=0)
    config.environment(env_config={"max_steps": 10}).multi_agent(policies="independent", count_steps_by=by)
    with config.build_algo() as algo:
        result = algo.train()
    assert result["num_agent_steps_sampled_lifetime"] == 3 * result["num_env_steps_sampled_lifetime"]
    for own in result["learners"].values():
        assert own["num_module_steps_trained"] == 4 * result["num_env_steps_sampled_lifetime"]


@pytest.mark.parametrize("seed", range(3))
def test_updates_keep_up_with_sampling(seed):
    config = small_dqn("CartPole-v1", seed).env_runners(num_envs_per_env_runner=2)
    algo = config.build_algo()
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 60
    assert result["learners"]["default_policy"]["num_module_steps_trained"] == 8 * 21  # after 20, 22, ... 60 steps
    algo.stop()
    algo = config.copy().training(training_intensity=1.0).build_algo()
    trained = sum(algo.train()["learners"]["default_policy"]["num_module_steps_trained"] for _ in range(4))
    assert abs(trained - (240 - 18)) <= 8
    algo.stop()


def test_the_terms_of_the_loss_are_logged_by_the_learners_own_method():
    class Notes(DQNLearner):
        def log_terms(self, module_ids, terms):
            noted.append({name: float(term) for name, term in terms.items()})
            super().log_terms(module_ids, terms)

    noted, results = [], []
    for learner_class in (Notes, DQNLearner):
        config = small_dqn("CartPole-v1", train_batch_size_per_learner=64).learners(learner_class=learner_class)
        results.append(config.build_algo().train()["learners"]["default_policy"])
    assert results[0] == results[1]
    assert results[0]["qf_mean"] == pytest.approx(np.mean([terms["qf_mean"] for terms in noted]))


@pytest.mark.slow
def test_epsilon_follows_its_schedule_and_is_not_used_without_exploration():
    algo = small_dqn("CartPole-v1", epsilon=[[0, 1.0], [100, 0.5]]).build_algo()
    assert algo.get_module().epsilon.item() == 1.0
    for _ in range(3):
        algo.train()
    assert algo.get_module().epsilon.item() == 0.5
    obs = torch.rand(50, 4)
    inputs = algo.get_module().forward_inference({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
    greedy = algo.get_module().get_inference_action_dist_cls().from_logits(inputs).to_deterministic()
    assert torch.equal(greedy, algo.get_module().compute_q_values({Columns.OBS: obs}).argmax(-1))
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize(("by", "begins"), [("env_steps", False), ("agent_steps", True)])
def test_the_steps_before_learning_are_env_steps_or_agent_steps(by, begins):
    config = small_dqn("marl_envs.match_v0", num_steps_sampled_before_learning_starts=100)
    config.environment(env_config={"n_agents": 2, "ep_len": 5}).multi_agent(policies="shared", count_steps_by=by)
    algo = config.reporting(min_sample_timesteps_per_iteration=60).build_algo()
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] < 100 < result["num_agent_steps_sampled_lifetime"]
    assert (algo.learner.num_updates > 0) == begins
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize(("by", "agents"), [("env_steps", 1), ("agent_steps", 2)])
def test_the_schedule_of_epsilon_counts_env_steps_or_agent_steps(by, agents):
    config = small_dqn("marl_envs.match_v0", epsilon=[[0, 1.0], [200, 0.0]])
    config.environment(env_config={"n_agents": 2, "ep_len": 5}).multi_agent(policies="shared", count_steps_by=by)
    algo = config.reporting(min_sample_timesteps_per_iteration=60).build_algo()
    algo.train()
    at_last = algo.env_runner_group.num_env_steps - config.num_envs  # at the beginning of the last sample
    assert 0 < at_last < 100
    assert algo.get_module("default_policy").epsilon.item() == pytest.approx(1 - at_last * agents / 200)
    algo.stop()


def test_target_networks_are_copied_when_it_is_time():
    algo = small_dqn("CartPole-v1", target_network_update_freq=10**6).build_algo()
    module = algo.get_module()
    before = [parameter.clone() for parameter in module.target_af.parameters()]
    algo.train()
    assert all(torch.equal(a, b) for a, b in zip(before, module.target_af.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, module.af.parameters(), strict=True))
    algo.stop()


def test_a_policy_acts_after_training(tmp_path):
    algo = small_dqn("CartPole-v1").build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    obs = np.zeros(4, np.float32)
    values = algo.get_module().compute_q_values({Columns.OBS: torch.zeros(1, 4)})
    assert policy(obs) == values.argmax().item()
    algo.stop()


class TimesTen(ConnectorV2):
    """Changes the batch, as pieces do that must not write to the episodes."""

    def columns(self, c, xp):
        c[Columns.OBS] = 10 * c.rows.get(Columns.OBS)


@pytest.mark.slow
@pytest.mark.parametrize("config_class", [DQNConfig, SACConfig, MADDPGConfig])
def test_observations_that_only_the_batch_has_are_refused_as_targets_would_continue_from_others(config_class):
    config = config_class().environment(LifeEnv, disable_env_checking=True).env_runners(num_env_workers=0)
    config.training(num_steps_sampled_before_learning_starts=4).env_runners(rollout_fragment_length=5)
    same = config.copy().learners(learner_connector=lambda *_: NothingChanges())
    with same.build_algo() as algo:
        algo.train()
    config.env_runners(env_to_module_connector=lambda *_: TimesTen()).learners(learner_connector=lambda *_: TimesTen())
    with config.build_algo() as algo, pytest.raises(ConnectorError, match="observations"):
        algo.train()


class NothingChanges(ConnectorV2):
    """Writes the observations as they are, in other types of numbers."""

    def columns(self, c, xp):
        c[Columns.OBS] = c.rows.get(Columns.OBS).astype(np.float64)


def test_episodes_are_learned_from_without_a_buffer_too():
    algo = small_dqn(LifeEnv, n_step=2).multi_agent(policies="independent").build_algo()
    episodes = algo.env_runner.sample(num_timesteps=40)
    steps = sum(episode.agent_steps() for episode in episodes)
    results = algo.learner.update(episodes=episodes)
    assert sum(own["num_module_steps_trained"] for own in results.values()) == steps
    assert "AddNStepReturnsToTrainBatch" in str(algo.explain()["learner"])
    algo.stop()


@pytest.mark.slow
def test_recorded_episodes_fill_the_buffer(tmp_path):
    algo = small_dqn(LifeEnv).offline_data(output=str(tmp_path / "data")).build_algo()
    for _ in range(2):
        algo.train()
    algo.stop()
    buffer = EpisodeReplayBuffer(10_000)
    buffer.add(EpisodeReader(tmp_path / "data"))
    assert len(buffer) == algo.replay_buffer.get_added_timesteps()


def test_recorded_episodes_that_do_not_fit_are_refused_by_the_buffer_of_a_run(tmp_path):
    with small_dqn(LifeEnv).multi_agent(policies="independent").build_algo() as independent:
        independent.record(tmp_path / "data", num_episodes=3)
    with small_dqn("CartPole-v1").build_algo() as algo:
        with pytest.raises(OfflineDataError, match="agent 'a'"):
            algo.replay_buffer.add(EpisodeReader(tmp_path / "data"))
        assert not len(algo.replay_buffer)
    with small_dqn(LifeEnv).build_algo() as algo:
        with pytest.raises(OfflineDataError, match="module 'a'"):
            algo.replay_buffer.add(EpisodeReader(tmp_path / "data"))
        algo.replay_buffer.add(EpisodeReader(tmp_path / "data", policy_mapping_fn=algo.config.policy_mapping_fn))
        assert len(algo.replay_buffer)
        algo.train()


OF_ALL_MODULES = [name for name, own in settings_of(OffPolicyConfig).items() if own.per_module is False]


@pytest.mark.parametrize("name", OF_ALL_MODULES)
def test_a_module_has_no_settings_of_its_own_for_what_is_done_for_all_modules_at_once(name):
    for config in (DQNConfig(), SACConfig()):
        with pytest.raises(ConfigError, match=f"(?s)'{name}'.*'a'"):
            config.rl_module(algorithm_config_overrides_per_module={"a": {name: getattr(config, name)}})
    config.rl_module(algorithm_config_overrides_per_module={"a": {"tau": 0.5, "gamma": 0.9, "critic_lr": 0.1}})


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match=r"(?s)'PrioritisedEpisodeReplayBuffer'.*'Prioritized"):
        small_dqn("CartPole-v1", replay_buffer_config={"type": "PrioritisedEpisodeReplayBuffer"}).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)PrioritizedEpisodeReplayBuffer.*'capcity'.*'cap"):
        small_dqn("CartPole-v1", replay_buffer_config={"capcity": 3}).build_algo()
    with pytest.raises(ConfigError, match="epsilon"):
        small_dqn("CartPole-v1", epsilon=1.5)
    with pytest.raises(ConfigError, match=r"(?s)epsilon.*\[0, 1.0\].*100.*1.2"):
        small_dqn("CartPole-v1", epsilon=[[0, 1.0], [100, 1.2]])
    with pytest.raises(ConfigError, match="burn_in_len=5"):
        small_dqn("CartPole-v1", burn_in_len=5).build_algo()
    with pytest.raises(ConfigError, match="num_learners=1"):
        small_dqn("CartPole-v1").learners(num_learners=1).build_algo()
    with pytest.raises(ModuleError, match=r"(?s)Discrete.*Box"):
        small_dqn("Pendulum-v1").build_algo()


@pytest.mark.parametrize(
    ("given", "kind", "capacity", "alpha"),
    [
        ({}, "PrioritizedEpisodeReplayBuffer", 50_000, 0.6),
        ({"capacity": 300}, "PrioritizedEpisodeReplayBuffer", 300, 0.6),
        ({"type": "PrioritizedEpisodeReplayBuffer", "alpha": 0.3}, "PrioritizedEpisodeReplayBuffer", 50_000, 0.3),
        ({"type": "EpisodeReplayBuffer"}, "EpisodeReplayBuffer", 100_000, None),
    ],
)
def test_what_is_left_out_of_the_buffers_settings_is_the_algorithms_default(given, kind, capacity, alpha):
    buffer = small_dqn("CartPole-v1", replay_buffer_config=given).build_algo().replay_buffer
    assert (type(buffer).__name__, buffer.capacity, getattr(buffer, "alpha", None)) == (kind, capacity, alpha)


def test_a_module_of_another_algorithm_is_refused_unless_it_is_not_trained():
    config = small_dqn(LifeEnv).multi_agent(policies="a=main,*=other")
    specs = {"main": RLModuleSpec(), "other": RLModuleSpec(DefaultPPORLModule)}
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    message = r"(?s)DQNLearner.*'other'.*DefaultPPORLModule.*compute_q_values.*forward_target"
    with pytest.raises(LearnerError, match=message):
        config.build_algo()
    config.multi_agent(policies_to_train=["main"])
    assert list(config.build_algo().train()["learners"]) == ["main"]


def test_of_several_modules_the_one_that_cannot_be_built_is_named():
    config = small_dqn("mpe2.simple_adversary_v3").multi_agent(policies="adversary*=red,agent*=blue")
    config.environment(env_config={"continuous_actions": True})
    with pytest.raises(ModuleError, match=r"(?s)'red'.*DefaultDQNRLModule.*SAC.*PPO"):
        config.build_algo()


def test_a_damaged_buffer_is_named(tmp_path):
    algo = small_dqn("CartPole-v1").build_algo()
    algo.train()
    state = algo.get_state()
    ring = state.replays[""].replay_buffer.rings["default_policy"]
    rows = len(ring.flags)
    ring.flags = ring.flags[:-1]
    save_state(tmp_path / "checkpoint", state)
    with pytest.raises(CheckpointError, match=rf"(?s)replay_buffer\.rings\[\.\.\.\].*{rows}"):
        algo.restore_from_path(tmp_path / "checkpoint")


def test_an_action_that_the_space_does_not_have_in_a_damaged_buffer_is_named(tmp_path):
    algo = small_dqn("CartPole-v1").build_algo()
    algo.train()
    state = copy.deepcopy(algo.get_state())
    ring = state.replays[""].replay_buffer.rings["default_policy"]
    ring.columns["actions"][np.flatnonzero(ring.flags & ACTED)[3]] = 7
    with pytest.raises(CheckpointError, match=r"(?s)'default_policy'.*\b7\b.*\[0, 1\]"):
        algo.set_state(state)
    algo.stop()
    algo.stop()


@pytest.mark.learning
def test_cart_pole_is_learned():
    config = DQNConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": (256, 256)})
    config.training(lr=5e-4, n_step=3).debugging(seed=0)
    algo = config.build_algo()
    for _ in range(60):
        algo.train()
        if algo.evaluate(num_episodes=5)["env_runners"]["episode_return_mean"] > 450:
            break
    assert algo.evaluate(num_episodes=20)["env_runners"]["episode_return_mean"] > 400
    algo.stop()


def test_modules_with_and_without_double_q_learning_are_not_updated_as_one():
    config = small_dqn(LifeEnv, double_q=True).multi_agent(policies="independent")
    config.rl_module(algorithm_config_overrides_per_module={"b": {"double_q": False}})
    algo = config.build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=20))
    batch = algo.learner.make_batch(algo.replay.draw(["a", "b", "c"]))
    assert {tuple(step.sizes) for step in algo.learner._steps(batch)} == {("a", "c"), ("b",)}
    algo.stop()
