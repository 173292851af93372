"""SAC: its losses beside those of the papers, stacked modules, and that a run continues exactly."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    SAC,
    Algorithm,
    Columns,
    DefaultPPORLModule,
    DefaultSACRLModule,
    MeanStdFilter,
    OnnxPolicy,
    RLModuleSpec,
    SACConfig,
    load_policy,
)
from marl_connectors.algorithms.off_policy.learner import ReplayedRows
from marl_connectors.algorithms.sac.learner import SACLearner
from marl_connectors.algorithms.sac.rl_module import SACModelConfig
from marl_connectors.errors import ConfigError, LearnerError, ModuleError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.distributions import TorchSquashedGaussian

BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
AGENTS = ("a", "b", "c")
ACTION_SPACES = (
    spaces.Discrete(3),
    spaces.Box(-2.0, 3.0, (2,), np.float32),
    spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    spaces.Box(0.0, 1.0, (1,), np.float32),
    spaces.Box(-1.0, 2.0, (), np.float32),
)
FRESH = fresh_seeds(12)


def small_sac(env, seed=0, **training):
    settings = {
        "train_batch_size_per_learner": 8,
        "num_steps_sampled_before_learning_starts": 20,
        "replay_buffer_config": {"type": BUFFERS[seed % 2], "capacity": 300},
        "actor_lr": 0.01,
        "critic_lr": 0.02,
        "alpha_lr": 0.005,
    }
    config = SACConfig().environment(env, disable_env_checking=True).rl_module(model_config={"fcnet_hiddens": (6,)})
    config.training(**(settings | training)).reporting(min_sample_timesteps_per_iteration=60).debugging(seed=seed)
    return config.env_runners(num_env_workers=0)


def play(space, seed=0, **training):
    """A config for agents with this action space, which come and go."""
    own = {"die": 0.2, "join": 0.2, "spaces_of": dict.fromkeys(AGENTS, (BOX, space))}
    return small_sac(LifeEnv, seed, **training).environment(env_config=own)


def random_sac(seed):
    rng = np.random.default_rng(seed)
    kind = [LifeEnv, RandomAEC, "CartPole-v1", "Pendulum-v1"][int(rng.integers(4))]
    config = small_sac(
        kind,
        seed,
        twin_q=bool(rng.integers(2)),
        initial_alpha=float(rng.uniform(0.1, 2.0)),
        target_entropy=["auto", -0.5][int(rng.integers(2))],
        n_step=int(rng.integers(1, 4)),
        tau=float(rng.choice([1.0, 0.3])),
        training_intensity=[None, 2.5][int(rng.integers(2))],
        grad_clip=[None, 0.5][int(rng.integers(2))],
    )
    if not isinstance(kind, str):
        space = ACTION_SPACES[int(rng.integers(len(ACTION_SPACES)))]
        own = dict.fromkeys("abcd", (BOX, space))
        config.environment(env_config={"die": 0.1, "join": 0.2, "max_steps": 6, "spaces_of": own})
        config.multi_agent(policies=str(rng.choice(["shared", "independent"])))
    config.env_runners(
        num_envs_per_env_runner=int(rng.integers(1, 4)),
        rollout_fragment_length=["auto", 3][int(rng.integers(2))],
        env_to_module_connector=[None, lambda: MeanStdFilter()][int(rng.integers(2))],
    )
    return config


def parameters(algo):
    return {name: value.clone() for name, value in algo.rl_module.state_dict().items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(8), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_sac(seed)
    whole = config.build_algo()
    for _ in range(3):
        whole.train()
    resumed = Algorithm.from_checkpoint(whole.save_to_path(tmp_path / "checkpoint"), config=config)
    assert type(resumed) is SAC
    for _ in range(2):
        one, other = whole.train(), resumed.train()
        assert one["learners"] == other["learners"]
        returns = [result["env_runners"]["episode_return_mean"] for result in (one, other)]
        assert returns[0] == pytest.approx(returns[1], rel=0, nan_ok=True)
    before, after = parameters(whole), parameters(resumed)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    whole.stop()
    resumed.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_stacked_modules_learn_what_they_learn_one_by_one(seed):
    space, runs = ACTION_SPACES[seed % len(ACTION_SPACES)], []
    for stack in (True, False):
        config = play(space, seed, twin_q=bool(seed % 3)).multi_agent(policies="independent")
        algo = config.learners(stack_modules=stack).build_algo()
        for _ in range(2):
            algo.train()
        assert len(algo.rl_module.buckets) == 1
        runs.append(parameters(algo))
        algo.stop()
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-3, atol=1e-4)


def mlp(x, layers):
    """Runs a list of (weight, bias), with relu between them, after the first one, too."""
    for weight, bias in layers:
        x = x @ weight.T + bias
        if weight is not layers[-1][0]:
            x = x.clamp(min=0)
    return x


class ByHand:
    """The losses of one module, written from the papers, one row after another, with each its own parameters."""

    def __init__(self, algo, module_id, batch):
        self.config, self.batch = algo.config, batch
        self.module = copy.deepcopy(algo.get_module(module_id))
        self.space = self.module.action_space
        inputs = self.module.forward_inference({Columns.OBS: batch[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
        algo.learner._num_draws.clear()
        rows = ReplayedRows(algo.learner, (module_id,), self.module, self.config, batch, {})
        is_box, dist_cls = isinstance(self.space, spaces.Box), self.module.get_train_action_dist_cls()
        self.noise = rows.noise(dist_cls, inputs.shape[-1], draws=2) if is_box else None

    def layers(self, *parts):
        found = []
        for part in parts:
            found += [(layer.weight, layer.bias) for layer in self.module.get_submodule(part).layers]
        return found

    def policy(self, obs, mask=None):
        """Returns the normal distribution before tanh, or the probabilities of all actions."""
        out = mlp(obs.reshape(-1).float(), self.layers("encoder", "pi"))
        if isinstance(self.space, spaces.Box):
            half = len(out) // 2
            return Normal(out[:half], out[half:].clamp(-20, 2).exp())
        if mask is not None and mask.any():
            out = torch.where(mask, out, torch.tensor(-math.inf))
        return torch.softmax(out, -1)

    def critics(self, kind, obs, action=None):
        """Returns the values of all critics."""
        names = [f"{kind}qf", f"{kind}qf_twin"] if self.config.twin_q else [f"{kind}qf"]
        x = obs.reshape(-1).float() if action is None else torch.cat([obs, action.reshape(-1)])
        return [mlp(x, self.layers(f"{name}.encoder", f"{name}.head")) for name in names]

    def value(self, kind, obs, noise, mask, alpha):
        """Returns the soft value of an observation, and the estimated entropy of the policy there."""
        found = self.policy(obs, mask)
        if isinstance(self.space, spaces.Box):
            action = (found.mean + found.stddev * noise).tanh()
            squashed = TransformedDistribution(found, TanhTransform(cache_size=1))
            logp = squashed.log_prob(action.clamp(-1 + 1e-6, 1 - 1e-6)).sum()
            least = torch.stack(self.critics(kind, obs, action)).min(0).values.squeeze()
            return least - alpha * logp, -logp
        least = torch.stack(self.critics(kind, obs)).min(0).values
        entropy = -sum(p * p.log() for p in found if p > 0)
        return sum(p * q for p, q in zip(found, least, strict=True) if p > 0) + alpha * entropy, entropy

    def row(self, i):
        """Returns the losses of the critics, the policy and the temperature for one row, and the error."""
        b, alpha = self.batch, self.module.log_alpha.exp().detach()
        noise = [None, None] if self.noise is None else [self.noise[k][i] for k in range(2)]
        masks = [b[name][i].bool() if name in b else None for name in (Columns.ACTION_MASK, "new_action_mask")]
        after, _ = self.value("target_", b[Columns.NEXT_OBS][i], noise[1], masks[1], alpha)
        target = (b[Columns.REWARDS][i] + b["discounts"][i] * after).detach()
        action = b[Columns.ACTIONS][i]
        if isinstance(self.space, spaces.Box):
            taken = [q.squeeze() for q in self.critics("", b[Columns.OBS][i], action)]
        else:
            taken = [q[action] for q in self.critics("", b[Columns.OBS][i])]
        weight = b["weights"][i] if "weights" in b else 1.0
        of_critics = sum(weight * 0.5 * (q - target) ** 2 for q in taken)
        value, entropy = self.value("", b[Columns.OBS][i], noise[0], masks[0], alpha)
        aim = self.config.target_entropy
        if aim == "auto" and isinstance(self.space, spaces.Box):
            aim = -float(np.prod(self.space.shape))
        elif aim == "auto":
            allowed = self.space.n if masks[0] is None or not masks[0].any() else int(masks[0].sum())
            aim = 0.98 * math.log(allowed)
        of_alpha = -self.module.log_alpha.squeeze() * (-entropy + aim).detach()
        error = np.mean([abs((q - target).item()) for q in taken])
        return of_critics, -value, of_alpha, error


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", [*range(12), *FRESH])
def test_losses_and_gradients_are_those_of_the_papers(seed):
    algo = random_sac(seed).build_algo()
    algo.train()
    sample = algo.replay_buffer.sample(16, n_step=algo.config.n_step)
    for group in algo.learner.make_batch(sample).groups:
        for module_id, columns in group.module_columns():
            check_module(algo, module_id, dict(columns))
    algo.stop()


def check_module(algo, module_id, batch):
    module = algo.get_module(module_id)
    algo.learner._num_draws.clear()
    loss = algo.learner.compute_loss_for_module(
        module_id=module_id, config=algo.config, batch=batch, fwd_out=module.forward_train(batch)
    )
    by_hand = ByHand(algo, module_id, batch)
    rows = [by_hand.row(i) for i in range(len(batch[Columns.REWARDS]))]
    losses = [torch.stack([row[k] for row in rows]).mean() for k in range(3)]
    torch.testing.assert_close(loss, sum(losses).reshape(()), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(algo.learner.td_errors[module_id], [row[3] for row in rows], rtol=1e-3, atol=1e-4)
    own = {name: p for name, p in by_hand.module.named_parameters() if p.requires_grad}
    expected = {}
    for k, belongs in enumerate(
        (lambda n: n.startswith("qf"), lambda n: n.startswith(("encoder", "pi")), lambda n: n == "log_alpha")
    ):
        mine = {name: p for name, p in own.items() if belongs(name)}
        expected |= dict(zip(mine, torch.autograd.grad(losses[k], mine.values(), retain_graph=True), strict=True))
    assert expected.keys() == own.keys()
    found = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
    for gradient, (name, by_paper) in zip(found, ((n, expected[n]) for n in own), strict=True):
        torch.testing.assert_close(gradient, by_paper, rtol=1e-2, atol=1e-3, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("seed", [*range(3), *FRESH])
def test_forbidden_actions_are_neither_taken_nor_valued(seed):
    config = small_sac("pettingzoo.classic.tictactoe_v3", seed, n_step=1 + seed % 3)
    algo = config.rl_module(model_config={"fcnet_hiddens": (6,), "conv_filters": []}).build_algo()
    algo.train()
    sample = algo.replay_buffer.sample(32, n_step=algo.config.n_step)
    (group,) = algo.learner.make_batch(sample).groups
    batch = dict(group)
    assert batch[Columns.ACTION_MASK].gather(1, batch[Columns.ACTIONS].long()[:, None]).all()
    check_module(algo, "default_policy", batch)
    algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_policy_critics_and_temperature_have_their_own_learning_rates(policies):
    for frozen in ("actor_lr", "critic_lr", "alpha_lr"):
        config = play(ACTION_SPACES[1], **{frozen: 0.0}, tau=0.0).multi_agent(policies=policies)
        algo = config.build_algo()
        before = parameters(algo)
        results = algo.train()["learners"]
        after = parameters(algo)
        for name, value in before.items():
            part = name.split(".")[2]
            kind = {"encoder": "actor_lr", "pi": "actor_lr", "log_alpha": "alpha_lr"}.get(part, "critic_lr")
            stays = kind == frozen or part.startswith("target")
            assert torch.equal(value, after[name]) is stays, name
        assert {own["learning_rate"] for own in results.values()} == {algo.config.actor_lr}
        algo.stop()


@pytest.mark.slow
def test_learning_rates_follow_their_schedules():
    algo = small_sac("Pendulum-v1", critic_lr=[[0, 0.1], [60, 0.0]], actor_lr=[[0, 0.0], [120, 0.2]]).build_algo()
    algo.train()
    assert algo.train()["learners"]["default_policy"]["learning_rate"] > 0.1
    before = parameters(algo)
    algo.train()
    after = parameters(algo)
    changed = {name.split(".")[2] for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"encoder", "pi", "log_alpha", "target_qf", "target_qf_twin"}
    algo.stop()


@pytest.mark.slow
def test_the_temperature_falls_towards_the_target_entropy():
    low = small_sac("Pendulum-v1", target_entropy=-50.0, alpha_lr=0.05).build_algo()
    high = small_sac("Pendulum-v1", target_entropy=50.0, alpha_lr=0.05).build_algo()
    for algo in (low, high):
        algo.train()
    assert low.get_module().log_alpha.item() < 0 < high.get_module().log_alpha.item()
    low.stop()
    high.stop()


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_a_policy_acts_after_training_and_as_a_program(env, tmp_path):
    algo = small_sac(env).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    obs = np.full(3 if env == "Pendulum-v1" else 4, 0.1, np.float32)
    inputs = algo.get_module().forward_inference({Columns.OBS: torch.from_numpy(obs)[None]})
    chosen = algo.get_module().get_inference_action_dist_cls().from_logits(inputs["action_dist_inputs"])
    expected = chosen.to_deterministic()[0].numpy() * (2.0 if env == "Pendulum-v1" else 1)
    np.testing.assert_allclose(policy(obs), expected, rtol=1e-5)
    np.testing.assert_allclose(OnnxPolicy(policy.export_onnx(tmp_path / "onnx"))(obs), expected, rtol=1e-4)
    algo.stop()


@pytest.mark.parametrize("space", ACTION_SPACES)
def test_a_module_for_acting_has_a_policy_alone(space):
    module = DefaultSACRLModule(BOX, space, model_config={"fcnet_hiddens": (6,)}, inference_only=True)
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {"encoder", "pi"}
    whole = DefaultSACRLModule(BOX, space, model_config={"fcnet_hiddens": (6,)})
    module.load_state_dict({name: value for name, value in whole.state_dict().items() if name in module.state_dict()})
    batch = {Columns.OBS: torch.rand(4, *BOX.shape)}
    found, expected = (own.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS] for own in (module, whole))
    assert torch.equal(found, expected)


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match=r"(?s)SACConfig.*lr=0.001.*actor_lr.*critic_lr"):
        small_sac("Pendulum-v1", lr=0.001).build_algo()
    own = {"default_policy": {"twin_q": False}}
    with pytest.raises(ConfigError, match=r"(?s)'default_policy'.*twin_q.*'twin_q'"):
        small_sac("Pendulum-v1").rl_module(algorithm_config_overrides_per_module=own).build_algo()
    with pytest.raises(ModuleError, match=r"(?s)Discrete.*Box.*MultiDiscrete"):
        play(spaces.MultiDiscrete([2, 3])).build_algo()
    with pytest.raises(ModuleError, match=r"(?s)use_lstm.*use_gru"):
        small_sac("CartPole-v1").rl_module(model_config={"use_lstm": True}).build_algo()
    with pytest.raises(ModuleError, match="gaussian"):
        play(spaces.Box(-np.inf, np.inf, (2,))).build_algo()


def test_a_module_without_critics_is_named():
    config = small_sac("Pendulum-v1").rl_module(rl_module_spec=RLModuleSpec(module_class=DefaultPPORLModule))
    with pytest.raises(LearnerError, match=r"(?s)SACLearner.*'default_policy'.*DefaultPPORLModule"):
        config.build_algo()


def test_a_module_may_have_settings_of_its_own():
    config = small_sac(LifeEnv).multi_agent(policies="independent")
    own = {"fcnet_hiddens": (6,), "twin_q": False, "initial_alpha": 0.25}
    config.rl_module(algorithm_config_overrides_per_module={"b": {"model_config": own, "target_entropy": 0.1}})
    algo = config.build_algo()
    assert not hasattr(algo.get_module("b"), "qf_twin") and hasattr(algo.get_module("a"), "qf_twin")
    assert algo.get_module("b").log_alpha.exp().item() == pytest.approx(0.25)
    results = algo.train()["learners"]
    assert "qf_twin_loss" in results["a"] and "qf_twin_loss" not in results["b"]
    algo.stop()


def test_gaussian_actions_need_no_bounds():
    config = play(spaces.Box(-np.inf, np.inf, (2,)), target_entropy=-1.0)
    config.rl_module(model_config={"fcnet_hiddens": (6,), "action_distribution": "gaussian"})
    algo = config.build_algo()
    assert np.isfinite(algo.train()["learners"]["default_policy"]["total_loss"])
    algo.stop()


class WithOwnLoss(SACLearner):
    """Weights the loss of a module."""

    def compute_loss_for_module(self, **given):
        return 0.0 * super().compute_loss_for_module(**given)


def test_a_learner_of_ones_own_changes_the_loss():
    algo = small_sac(LifeEnv).learners(learner_class=WithOwnLoss).multi_agent(policies="independent").build_algo()
    before = parameters(algo)
    algo.train()
    after = parameters(algo)
    assert all(torch.equal(before[name], after[name]) for name in before)
    algo.stop()


@pytest.mark.learning
def test_pendulum_is_learned():
    config = SACConfig().environment("Pendulum-v1").rl_module(model_config={"fcnet_hiddens": (64, 64)})
    config.training(actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3, num_steps_sampled_before_learning_starts=500)
    algo = config.debugging(seed=0).build_algo()
    for _ in range(10):
        algo.train()
    assert algo.evaluate(num_episodes=20)["env_runners"]["episode_return_mean"] > -250
    algo.stop()


def test_a_buffer_with_another_capacity_still_draws_with_equal_probabilities():
    buffer = small_sac("Pendulum-v1", replay_buffer_config={"capacity": 70}).build_algo().replay_buffer
    assert (type(buffer).__name__, buffer.capacity) == ("EpisodeReplayBuffer", 70)
    with pytest.raises(ConfigError, match=r"(?s)EpisodeReplayBuffer.*'alpha'"):
        small_sac("Pendulum-v1", replay_buffer_config={"alpha": 0.5}).build_algo()


@pytest.mark.parametrize("given", [None, {}, DefaultModelConfig(), SACModelConfig()])
def test_model_configs_of_all_kinds_have_the_default_distribution_of_sac(given):
    algo = small_sac("Pendulum-v1").rl_module(model_config=given).build_algo()
    assert algo.get_module().config.action_distribution == "squashed_gaussian"
    assert algo.get_module().get_train_action_dist_cls() is TorchSquashedGaussian
    algo.stop()


def test_a_distribution_that_sac_does_not_have_is_named():
    config = small_sac("Pendulum-v1").rl_module(model_config=DefaultModelConfig(action_distribution="beta"))
    with pytest.raises(ConfigError, match=r"action_distribution.*squashed_gaussian.*'beta'"):
        config.build_algo()
