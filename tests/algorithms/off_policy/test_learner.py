"""What learners with a replay buffer share: target networks, errors for priorities, noise, exploration, clipping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    DefaultDQNRLModule,
    DefaultSACRLModule,
    DQNConfig,
    MADDPGConfig,
    MATD3Config,
    MultiRLModuleSpec,
    QMIXConfig,
    RLModuleSpec,
    SACConfig,
    VDNConfig,
)
from marl_connectors.rl_module.apis import SelfSupervisedLossAPI

AGENTS = ("a", "b", "c")
ALONE = (DQNConfig, SACConfig)
TEAMS = (QMIXConfig, VDNConfig, MADDPGConfig, MATD3Config)
PRIORITIES = {
    QMIXConfig: "PrioritizedTeamReplayBuffer",
    VDNConfig: "PrioritizedTeamReplayBuffer",
    MADDPGConfig: "PrioritizedJointReplayBuffer",
    MATD3Config: "PrioritizedJointReplayBuffer",
}
FRESH = fresh_seeds(25)


def small(config_class: Any, seed: int = 0, **training: Any) -> Any:
    buffer = PRIORITIES.get(config_class, "PrioritizedEpisodeReplayBuffer")
    settings = {
        "train_batch_size_per_learner": 6,
        "num_steps_sampled_before_learning_starts": 10**6,
        "target_network_update_freq": 0,
        "tau": 0.5,
        "replay_buffer_config": {"type": buffer, "capacity": 300},
    }
    config = config_class().environment(LifeEnv, disable_env_checking=True).multi_agent(policies="independent")
    config.training(**(settings | training)).rl_module(model_config={"fcnet_hiddens": (4,)}).debugging(seed=seed)
    return config.env_runners(num_env_workers=0).reporting(min_sample_timesteps_per_iteration=60)


def with_own_loss(config: Any, *, logs_errors: bool = False) -> Any:
    """Replaces the loss by the squares of all parameters, without a call of super."""

    class OwnLoss(config.get_default_learner_class()):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            if logs_errors:
                self.log_td_errors([module_id], batch["obs"].new_full((len(batch["obs"]),), -2.0))
            return sum(p.square().sum() for p in self.module[module_id].parameters() if p.requires_grad)

    return config.learners(learner_class=OwnLoss)


def with_modules_of_own_losses(config: Any) -> Any:
    """Lets the module of agent "b" have a loss of its own."""
    base: Any = DefaultSACRLModule if isinstance(config, SACConfig) else DefaultDQNRLModule

    class OwnLoss(base, SelfSupervisedLossAPI):
        def compute_self_supervised_loss(self, *, learner, module_id, config, batch, fwd_out):
            return sum(p.square().sum() for p in self.parameters() if p.requires_grad)

    specs = {agent: RLModuleSpec(OwnLoss if agent == "b" else base) for agent in AGENTS}
    return config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


def pairs(algo: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Returns each parameter with that of its target network, of all modules and of a mixer."""
    found = {}
    networks = {m: algo.get_module(m).get_target_network_pairs() for m in algo.rl_module}
    if hasattr(algo.learner, "mixing"):
        networks["mixer"] = [(algo.learner.mixing.mixer, algo.learner.mixing.target)]
    for name, own in networks.items():
        for i, (network, target) in enumerate(own):
            of_target = dict(target.named_parameters())
            found.update({f"{name}.{i}.{n}": (p, of_target[n]) for n, p in network.named_parameters()})
    return found


def sampled(config: Any) -> Any:
    algo = config.build_algo()
    for _ in range(2):
        algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=60))
    return algo


def update(algo: Any, module_ids: Any = None, timestep: int = 0) -> Any:
    sample = algo.replay.draw(list(module_ids or algo.rl_module))
    results = algo.learner.update(episodes=sample, timesteps={"num_env_steps_sampled_lifetime": timestep})
    return sample, results


def random_config(seed: int) -> tuple[Any, np.random.Generator]:
    """A run that differs from the plain one in some ways: the loss, the modules, who is there, when targets move."""
    rng = np.random.default_rng(seed)
    config_class = (*ALONE, *TEAMS)[seed % 6]
    config = small(config_class, seed, target_network_update_freq=int(rng.choice([0, 7, 20, 25, 30])))
    taus = {m: {"tau": float(rng.choice([0.1, 0.4, 1.0]))} for m in AGENTS[1:]}
    if config_class not in (QMIXConfig, VDNConfig):
        config.rl_module(algorithm_config_overrides_per_module=taus)
    if config_class is MATD3Config:
        config.training(policy_delay=int(rng.integers(1, 4)))
    change = rng.choice(["none", "own loss", "own module"])
    if change == "own loss" and config_class not in (QMIXConfig, VDNConfig):
        with_own_loss(config, logs_errors=bool(rng.integers(2)))
    elif change == "own module" and config_class in ALONE:
        with_modules_of_own_losses(config)
    if rng.random() < 0.5:
        config.environment(env_config={"fixed": False, "join": 0.1, "die": 0.3})
    if rng.random() < 0.3:
        config.multi_agent(policies_to_train=["a", "b"])
    return config.learners(stack_modules=bool(rng.integers(2))), rng


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", [*range(18), *FRESH])
def test_target_networks_of_trained_modules_move_by_their_tau_when_it_is_time(seed):
    config, rng = random_config(seed)
    algo = sampled(config)
    trained = [m for m in AGENTS if algo.learner.should_module_be_updated(m)]
    delay = config.policy_delay if isinstance(config, MADDPGConfig) else 1
    timestep = last = 0
    for number in range(8):
        timestep += int(rng.integers(1, 15))
        before = {name: target.clone() for name, (_, target) in pairs(algo).items()}
        drawn = trained if type(config) in TEAMS or rng.integers(2) else trained[:1]
        update(algo, drawn, timestep)
        is_due = timestep - last >= config.target_network_update_freq and number % delay == 0
        last = timestep if is_due else last
        for name, (own, target) in pairs(algo).items():
            module_id = name.split(".")[0]
            tau = config.get_config_for_module(module_id).tau if module_id in (*trained, "mixer") and is_due else 0.0
            torch.testing.assert_close(target, (1 - tau) * before[name] + tau * own.detach(), rtol=1e-4, atol=1e-6)
    algo.stop()


@pytest.mark.parametrize("config_class", [DQNConfig, SACConfig, MADDPGConfig, MATD3Config])
def test_target_networks_of_modules_with_a_users_loss_move(config_class):
    algo = sampled(with_own_loss(small(config_class, tau=1.0)))
    update(algo)
    assert all(torch.equal(own, target) for own, target in pairs(algo).values())
    assert algo.learner.td_errors == {}
    algo.stop()


@pytest.mark.parametrize("config_class", TEAMS)
def test_an_absent_agents_module_gets_the_target_update_that_is_due(config_class):
    class Pair(LifeEnv):
        """Agent "c" is never there."""

        def reset(self, seed=None, options=None):
            observed, infos = super().reset(seed, options)
            self.agents = ["a", "b"]
            return {a: observed[a] for a in self.agents}, {a: infos[a] for a in self.agents}

    algo = sampled(small(config_class, tau=1.0).environment(Pair))
    for own, _ in pairs(algo).values():
        own.data.add_(1.0)
    _, results = update(algo)
    assert "c" not in results or results["c"]["num_module_steps_trained"] == 0
    assert all(torch.equal(own, target) for own, target in pairs(algo).values())
    algo.stop()


def test_the_target_mixer_follows_the_mixer():
    algo = sampled(small(QMIXConfig, tau=0.25))
    mixing = algo.learner.mixing
    before = [parameter.clone() for parameter in mixing.target.parameters()]
    update(algo)
    for was, target, own in zip(before, mixing.target.parameters(), mixing.mixer.parameters(), strict=True):
        assert not torch.equal(was, own)
        torch.testing.assert_close(target, 0.75 * was + 0.25 * own)
    algo.stop()


def test_target_networks_of_modules_that_are_not_trained_stay():
    algo = sampled(small(DQNConfig, tau=1.0).multi_agent(policies_to_train=["a"]))
    with torch.no_grad():
        for own, target in pairs(algo).values():
            own.add_(1.0)
            target.zero_()
    update(algo, ["a"])
    for name, (own, target) in pairs(algo).items():
        assert torch.equal(target, own if name.startswith("a.") else torch.zeros_like(own)), name
    algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("freq", [20, 25, 30])
def test_a_target_update_that_falls_due_while_policies_rest_waits_for_the_next_update_that_moves_them(freq):
    algo = sampled(small(MATD3Config, target_network_update_freq=freq, policy_delay=2, tau=1.0))
    moved = []
    target = algo.get_module("a").target_qf
    for timestep in range(1, 65):
        before = [parameter.clone() for parameter in target.parameters()]
        update(algo, timestep=timestep)
        if any(not torch.equal(was, now) for was, now in zip(before, target.parameters(), strict=True)):
            moved.append(timestep)
    expected = {20: [21, 41, 61], 25: [25, 51], 30: [31, 61]}  # the first, third, ... update moves policies
    assert moved == expected[freq]
    algo.stop()


@pytest.mark.parametrize("logs_errors", [False, True])
def test_a_users_loss_sets_the_priorities_only_by_its_errors(logs_errors):
    algo = sampled(with_own_loss(small(DQNConfig), logs_errors=logs_errors))
    algo.replay._update_once({"num_env_steps_sampled_lifetime": 0})
    found = algo.replay_buffer._ring("a").tree.weights
    np.testing.assert_allclose(found.max(), 2.0**0.6 if logs_errors else 1.0, rtol=1e-3)
    algo.stop()


def test_draws_of_an_update_differ_and_follow_from_the_module_and_the_update():
    algo = sampled(small(SACConfig))
    learner, dist_cls = algo.learner, algo.get_module("a").get_train_action_dist_cls()

    def draws(*module_ids: str) -> list[torch.Tensor]:
        learner.before_gradient_based_update(timesteps={})
        return [learner.noise(module_ids, dist_cls, (5,), 3) for _ in range(3)]

    first = draws("a")
    assert not any(torch.equal(first[i], first[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert not torch.equal(first[0], draws("b")[0])
    for alone, together in zip(first, draws("a", "b"), strict=True):
        assert torch.equal(alone, together[0])
    learner.num_updates += 1
    assert not torch.equal(first[0], draws("a")[0])
    algo.stop()


def test_modules_that_are_not_trained_explore_as_at_the_end_of_the_schedule():
    config = small(DQNConfig, epsilon=[[0, 1.0], [600, 0.25]], num_steps_sampled_before_learning_starts=0)
    algo = config.multi_agent(policies_to_train=["a", "b"]).build_algo()
    assert [algo.get_module(m).epsilon.item() for m in AGENTS] == [1.0, 1.0, 0.25]
    algo.train()
    assert algo.get_module("a").epsilon.item() == pytest.approx(1 - 0.75 * 59 / 600, abs=0.01)
    assert algo.get_module("c").epsilon.item() == 0.25
    algo.stop()
    team = small(MADDPGConfig, exploration_stddev=[[0, 1.0], [100, 0.5]]).multi_agent(policies_to_train=["a"])
    algo = team.build_algo()
    stddevs = [algo.get_module(m).log_stddev.exp().max().item() for m in AGENTS]
    assert stddevs == pytest.approx([1.0, 0.5, 0.5])
    algo.stop()


# Gradients.


def gradients_of_an_update(config: Any, updates: int = 1) -> tuple[dict[str, dict[str, list[torch.Tensor]]], Any]:
    """Returns the gradients with which an update would step, by module and by optimizer, and its results."""
    algo = sampled(config)
    found: dict[str, dict[str, list[torch.Tensor]]] = {m: {} for m in AGENTS}
    results: Any = None
    for number in range(updates):
        if number == updates - 1:
            algo.learner.optimizers.step = lambda module_ids, check: [keep(algo, found, m) for m in module_ids]
        results = update(algo)[1]
    algo.stop()
    return found, results


def keep(algo: Any, found: dict[str, dict[str, list[torch.Tensor]]], module_id: str) -> None:
    for name, parameter in algo.get_module(module_id).named_parameters():
        layer = name.split(".")[0]
        optimizer = layer if layer in ("qf", "qf_twin", "log_alpha") else "policy"
        if parameter.requires_grad:
            found[module_id].setdefault(optimizer, []).append(parameter.grad.clone())


def norm(gradients: list[torch.Tensor]) -> float:
    return float(torch.cat([g.reshape(-1) for g in gradients]).norm())


def clips_by_super(config: Any) -> Any:
    class Hooked(config.get_default_learner_class()):
        def postprocess_gradients_for_module(self, **given):
            return super().postprocess_gradients_for_module(**given)

    return config.learners(learner_class=Hooked)


@pytest.mark.few(2)
@pytest.mark.parametrize("config_class", [SACConfig, MADDPGConfig, MATD3Config])
@pytest.mark.parametrize("way", ["stacked", "one by one", "by a hook"])
def test_the_gradients_of_policy_critics_and_temperature_are_clipped_alone(config_class, way):
    def config(bound: float | None) -> Any:
        own = small(config_class, grad_clip=bound).learners(stack_modules=way == "stacked")
        return clips_by_super(own) if way == "by a hook" else own

    whole, _ = gradients_of_an_update(config(None))
    clipped, _ = gradients_of_an_update(config(0.02))
    names = {"policy", "qf"} | ({"log_alpha"} if config_class is SACConfig else set())
    for module_id in AGENTS:
        assert set(whole[module_id]) == names | (set() if config_class is MADDPGConfig else {"qf_twin"})
        for name, gradients in whole[module_id].items():
            factor = min(1.0, 0.02 / norm(gradients))
            for one, other in zip(gradients, clipped[module_id][name], strict=True):
                torch.testing.assert_close(other, one * factor, rtol=1e-3, atol=1e-6)


def test_a_policy_that_rests_does_not_count_in_the_norm():
    found, results = gradients_of_an_update(small(MATD3Config, policy_delay=2), updates=2)
    for module_id, own in found.items():
        assert norm(own["policy"]) == 0.0
        critics = norm([*own["qf"], *own["qf_twin"]])
        assert results[module_id]["gradients_global_norm"] == pytest.approx(critics, rel=1e-4)


@pytest.mark.parametrize("config_class", [QMIXConfig, VDNConfig])
def test_steps_trained_of_a_team_are_those_of_its_agents(config_class):
    _, results = update(sampled(small(config_class)))
    assert {m: own["num_module_steps_trained"] for m, own in results.items()} == dict.fromkeys(AGENTS, 6)
    _, results = update(sampled(small(config_class).multi_agent(policies="shared")))
    assert results["default_policy"]["num_module_steps_trained"] == 18
