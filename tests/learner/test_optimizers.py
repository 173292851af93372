"""Optimizers of users, frozen parameters, and who is trained."""

from __future__ import annotations

import copy

import pytest
import torch

from helpers.envs.scripted_envs import small_config
from helpers.runs.match_runs import changed, weights
from helpers.runs.random_runs import plain
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.errors import ConfigError, LearnerError
from marl_connectors.learner.loss_stats import FiniteCheck
from marl_connectors.learner.optimizers import OTHERS, DefaultAdam, OptimizerState
from marl_envs import match_v0


def build(learner_class=PPOLearner, policies="independent", n_agents=3, **training):
    config = small_config(
        match_v0.parallel_env, env_config={"n_agents": n_agents, "n_actions": 3, "ep_len": 5}
    ).multi_agent(policies=policies)
    config.rl_module(model_config={"fcnet_hiddens": (4,), "vf_share_layers": False})
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=10).learners(learner_class=learner_class)
    settings = {"train_batch_size_per_learner": 40, "minibatch_size": 20, "num_epochs": 2, "lr": 1e-2}
    return config.training(**{**settings, **training}).build_algo()


class Two(PPOLearner):
    """SGD with a schedule for the value function, Adam for the policy."""

    def configure_optimizers_for_module(self, module_id, config):
        named = dict(self.module[module_id].named_parameters())
        values = [p for name, p in named.items() if name.startswith("vf")]
        policy = [p for name, p in named.items() if not name.startswith("vf")]
        sgd = torch.optim.SGD(values, lr=9.0, momentum=0.9)
        schedule = [[0, 0.1], [80, 0.0]]
        self.register_optimizer(
            module_id=module_id, optimizer_name="values", optimizer=sgd, params=values, lr_or_lr_schedule=schedule
        )
        self.register_optimizer(
            module_id=module_id, optimizer_name="policy", optimizer=torch.optim.Adam(policy, lr=0.02)
        )


def test_a_module_has_several_optimizers_with_schedules_of_their_own():
    algo = build(Two)
    before = weights(algo, "agent_0")
    algo.train()
    assert changed(before, weights(algo, "agent_0")) == set(before)
    assert algo.learner.get_optimizer("agent_0", "values").param_groups[0]["lr"] == pytest.approx(0.05)
    assert algo.learner.get_optimizer("agent_0", "policy").param_groups[0]["lr"] == 0.02
    algo.train()  # the schedule is at its end
    middle = weights(algo, "agent_0")
    algo.train()
    moved = changed(middle, weights(algo, "agent_0"))
    assert moved == {name for name in before if not name.startswith("vf")}


def test_their_states_go_into_checkpoints(tmp_path):
    algo, twin = build(Two), build(Two)
    algo.train()
    algo.save_to_path(tmp_path / "c")
    twin.restore_from_path(tmp_path / "c")
    algo.train()
    twin.train()
    for module_id in algo.rl_module:
        assert changed(weights(algo, module_id), weights(twin, module_id)) == set()
    momentum = algo.learner.get_optimizer("agent_0", "values").state
    assert all(state["momentum_buffer"].abs().sum() > 0 for state in momentum.values())


def test_gradients_of_each_registered_optimizer_are_clipped_alone():
    algo = build(Two, grad_clip=0.01, num_epochs=1, minibatch_size=None)
    found, step = [], algo.learner.optimizers.step

    def keep(module_ids, check):
        found.extend(
            {name: p.grad.clone() for name, p in algo.learner.module[m].named_parameters()} for m in module_ids
        )
        step(module_ids, check)

    algo.learner.optimizers.step = keep
    algo.train()
    assert len(found) == 3
    for gradients in found:
        for is_of_values in (True, False):
            own = [g.flatten() for name, g in gradients.items() if name.startswith("vf") == is_of_values]
            assert torch.cat(own).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_wrong_registrations_say_what_is_wrong():
    class Twice(PPOLearner):
        def configure_optimizers_for_module(self, module_id, config):
            for _ in range(2):
                sgd = torch.optim.SGD(self.get_parameters(self.module[module_id]), lr=0.1)
                self.register_optimizer(module_id=module_id, optimizer=sgd)

    with pytest.raises(LearnerError, match=r"(?s)'agent_0'.*'default_optimizer'"):
        build(Twice)

    class Others(PPOLearner):
        def configure_optimizers_for_module(self, module_id, config):
            first, *rest = self.get_parameters(self.module[module_id])
            self.register_optimizer(module_id=module_id, optimizer=torch.optim.SGD(rest, lr=0.1), params=[first])

    with pytest.raises(LearnerError, match=r"(?s)\(\d+ tensors\).*\(1\)"):
        build(Others)
    with pytest.raises(KeyError, match=r"(?s)'value'.*'values'"):
        build(Two).learner.get_optimizer("agent_0", "value")

    class Backwards(PPOLearner):
        def configure_optimizers_for_module(self, module_id, config):
            sgd = torch.optim.SGD(self.get_parameters(self.module[module_id]), lr=0.1)
            self.register_optimizer(module_id=module_id, optimizer=sgd, lr_or_lr_schedule=[[5, 1.0], [1, 0.0]])

    with pytest.raises(ConfigError, match="lr_or_lr_schedule of 'default_optimizer'"):
        build(Backwards)


# Frozen parameters.


def freeze(algo, names, frozen=True):
    for module in algo.rl_module.values():
        for name, parameter in module.named_parameters():
            if name.startswith(names):
                parameter.requires_grad_(not frozen)


class Decaying(PPOLearner):
    """An optimizer that moves parameters without a gradient, too: by momentum, and towards 0."""

    def configure_optimizers_for_module(self, module_id, config):
        sgd = torch.optim.SGD(self.module[module_id].parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        self.register_optimizer(module_id=module_id, optimizer=sgd)


@pytest.mark.few(1)
@pytest.mark.parametrize("policies", ["independent", "shared", "agent_0=red,*=blue"])
@pytest.mark.parametrize("learner_class", [PPOLearner, Decaying])
def test_frozen_layers_stay_bit_for_bit_and_go_on_once_they_are_thawed(learner_class, policies):
    algo = build(learner_class, policies=policies)
    module_id = next(iter(algo.rl_module))
    algo.train()  # so that there are moments, which would move the layers on
    freeze(algo, "encoder")
    before = weights(algo, module_id)
    frozen = {name for name in before if name.startswith("encoder")}
    for _ in range(2):
        algo.train()
        assert changed(before, weights(algo, module_id)) == set(before) - frozen
    freeze(algo, "encoder", frozen=False)
    before = weights(algo, module_id)
    algo.train()
    assert changed(before, weights(algo, module_id)) == set(before)


@pytest.mark.slow
@pytest.mark.parametrize("learner_class", [PPOLearner, Decaying])
def test_a_checkpoint_knows_what_is_frozen(learner_class, tmp_path):
    algo = build(learner_class)
    algo.train()
    algo.rl_module["agent_0"].encoder.requires_grad_(False)
    algo.save_to_path(tmp_path / "half")
    algo.rl_module["agent_1"].requires_grad_(False)
    path = algo.save_to_path(tmp_path / "more")
    resumed, frozen = Algorithm.from_checkpoint(path), weights(algo, "agent_0")
    algo.train()
    resumed.train()
    for module_id in algo.rl_module:
        assert changed(weights(algo, module_id), weights(resumed, module_id)) == set()
    assert {"encoder.layers.0.weight"} < set(frozen) - changed(frozen, weights(resumed, "agent_0"))
    resumed.restore_from_path(tmp_path / "half")
    assert all(p.requires_grad for p in resumed.rl_module["agent_1"].parameters())
    assert not any(p.requires_grad for p in resumed.rl_module["agent_0"].encoder.parameters())


def test_freezing_a_layer_of_one_module_leaves_the_others_and_their_moments():
    algo, free = build(), build()
    for one in (algo, free):
        one.train()
    for parameter in algo.rl_module["agent_1"].encoder.parameters():
        parameter.requires_grad_(False)
    before = weights(algo, "agent_1")
    for one in (algo, free):
        one.train()
    assert {name.split(".")[0] for name in changed(before, weights(algo, "agent_1"))} == {"pi", "vf", "vf_encoder"}
    for module_id in ("agent_0", "agent_2"):
        for name, value in weights(free, module_id).items():
            torch.testing.assert_close(value, weights(algo, module_id)[name], atol=1e-6, rtol=0)


def test_a_module_that_is_frozen_altogether_is_not_trained():
    algo = build()
    freeze(algo, "")
    assert algo.train()["learners"] == {}


# Who is trained.


def test_policies_to_train_may_look_at_the_batch():
    seen = {}

    def wanted(module_id, batch):
        seen[module_id] = {m: tuple(columns["obs"].shape) for m, columns in batch.items()}
        return float(batch[module_id]["advantages"].std()) > 0 and module_id != "agent_1"

    algo = build()
    algo.learner.config._is_frozen = False
    algo.learner.config.policies_to_train = wanted
    before = {m: weights(algo, m) for m in algo.rl_module}
    moments = copy.deepcopy(algo.learner.optimizers.get_state()["agent_1"])
    result = algo.train()
    assert set(result["learners"]) == {"agent_0", "agent_2"}
    assert {m for m in before if changed(before[m], weights(algo, m))} == {"agent_0", "agent_2"}
    assert plain(algo.learner.optimizers.get_state()["agent_1"]) == plain(moments)
    assert seen["agent_0"] == dict.fromkeys(before, (40, 3))


@pytest.mark.parametrize("wanted", [{"agent_0"}, lambda module_id: module_id == "agent_0"], ids=["set", "function"])
def test_policies_to_train_as_a_set_and_as_a_function(wanted):
    algo = build()
    algo.learner.config._is_frozen = False
    algo.learner.config.policies_to_train = wanted
    assert set(algo.train()["learners"]) == {"agent_0"}


def test_moments_of_other_parameters_are_refused():
    algo = build(policies="independent")
    algo.train()
    optimizers = algo.learner.optimizers
    moments = optimizers.get_state()["agent_0"].adam
    with pytest.raises(LearnerError, match=r"(?s)16.*'agent_0'.*\b8\b"):
        optimizers.set_state({"agent_0": OptimizerState(adam=moments * 2)})
    with pytest.raises(LearnerError, match=r"(?s)\(4,\).*\(4, 3\).*\(4, 3\).*\(4,\)"):
        optimizers.set_state({"agent_0": OptimizerState(adam=[moments[1], moments[0], *moments[2:]])})


# Half precision.


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_half_precision_forward_passes_give_nearly_the_same_update(policies):
    full = build(policies=policies)
    config = full.config.copy().learners(autocast_dtype="bfloat16")
    half = config.build_algo()
    episodes = full.env_runner.sample()
    results = [algo.learner.update(episodes=episodes) for algo in (full, half)]
    differences = []
    for module_id, figures in results[0].items():
        assert results[1][module_id]["policy_loss"] == pytest.approx(figures["policy_loss"], abs=0.02)
        assert results[1][module_id]["vf_loss"] == pytest.approx(figures["vf_loss"], rel=0.05)
        for name, value in weights(full, module_id).items():
            here = weights(half, module_id)[name]
            assert here.dtype == torch.float32
            differences.append(float((here - value).abs().max()))
    assert 0 < max(differences) < 0.05
    with pytest.raises(ConfigError, match=r"(?s)autocast_dtype.*'bfloat16'.*'float8'"):
        full.config.copy().learners(autocast_dtype="float8")


def test_a_bound_that_has_changed_between_updates_holds_in_the_next_one():
    algo = build(grad_clip=100.0)
    algo.train()
    optimizers, ids = algo.learner.optimizers, ("agent_0", "agent_1", "agent_2")
    algo.config.change(algorithm_config_overrides_per_module={"agent_1": {"grad_clip": 0.5}})
    optimizers.refresh(timestep=0)
    for parameter in algo.rl_module.parameters():
        parameter.grad.fill_(1.0)
    before = optimizers.norms(ids)
    optimizers.clip(ids, before)
    first, second, third = optimizers.norms(ids).tolist()
    assert (first, third) == (before[0].item(), before[2].item())
    assert second == pytest.approx(0.5, rel=1e-4)


def test_a_state_does_not_change_when_training_goes_on():
    algo = build()
    algo.train()
    state = algo.learner.optimizers.get_state()
    kept = copy.deepcopy(state)
    algo.train()
    assert plain(state) == plain(kept)
    assert all(moments for own in state.values() for moments in own.adam)


def test_each_module_goes_through_as_many_epochs_as_its_own_settings_say():
    algo = build(num_epochs=3, minibatch_size=None)
    algo.config.change(algorithm_config_overrides_per_module={"agent_1": {"num_epochs": 1}})
    algo.train()
    state = algo.learner.optimizers.get_state()
    assert {m: own.adam[0].step for m, own in state.items()} == {"agent_0": 3, "agent_1": 1, "agent_2": 3}


RATES = {
    "": 0.02,
    "encoder": [[0, 0.1], [80, 0.0]],
    "vf": 0.003,
    "vf_encoder": 0.05,
    "vf_encoder.layers.0.bias": 0.5,
}


class ByName(PPOLearner):
    """Learning rates by the names of layers."""

    def configure_optimizers_for_module(self, module_id, config):
        self.optimizers.register_default(module_id, RATES)


class ByOptimizers(PPOLearner):
    """The same rates, with an Adam of torch for each."""

    def configure_optimizers_for_module(self, module_id, config):
        named = dict(self.module[module_id].named_parameters())
        for prefix in sorted(RATES, key=len, reverse=True):
            own = [n for n in named if not prefix or n == prefix or n.startswith(f"{prefix}.")]
            mine = [named.pop(name) for name in own]
            if mine:
                adam = torch.optim.Adam(mine, lr=1.0)
                self.register_optimizer(
                    module_id=module_id, optimizer_name=f"of {prefix}", optimizer=adam, lr_or_lr_schedule=RATES[prefix]
                )


@pytest.mark.few(1)
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_layers_have_learning_rates_by_name(policies):
    runs = []
    for learner_class in (ByName, ByOptimizers):
        algo = build(learner_class, policies)
        for _ in range(3):
            results = algo.train()["learners"]
        runs.append({m: weights(algo, m) for m in algo.rl_module})
        assert {own["learning_rate"] for own in results.values()} <= {0.02} or learner_class is ByOptimizers
    for module_id, own in runs[0].items():
        for name, value in own.items():
            torch.testing.assert_close(value, runs[1][module_id][name], rtol=1e-4, atol=1e-5)


def test_layers_that_rest_stay_as_they_are_with_their_moments():
    algo = build(ByName)
    algo.train()
    algo.learner.optimizers.rest(["", "encoder"])
    before, state = weights(algo, "agent_0"), algo.learner.optimizers.get_state()["agent_0"].adam
    algo.train()
    own, moments = changed(before, weights(algo, "agent_0")), algo.learner.optimizers.get_state()["agent_0"].adam
    assert own == {name for name in before if name.startswith("vf")}
    for name, one, other in zip(before, state, moments, strict=True):
        assert (one.step == other.step) is (name not in own)
        assert torch.equal(one.exp_avg, other.exp_avg) is (name not in own)
    algo.learner.optimizers.rest(())
    before = weights(algo, "agent_0")
    algo.train()
    assert changed(before, weights(algo, "agent_0")) >= {name for name in before if name.startswith("pi")}


@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.float64), (torch.float64, torch.bfloat16)])
def test_parameters_of_several_dtypes_are_stepped_as_by_torchs_adam(dtypes):
    generator = torch.Generator().manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(3, generator=generator).to(dtype)) for dtype in dtypes for _ in range(2)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    adam, torchs = DefaultAdam(), torch.optim.Adam(theirs, fused=True)
    adam.arrange({"m": ours}, lambda module_id: None, {})
    for rate in (0.1, 0.1, 0.01):
        adam.set_rates({"m": {OTHERS: rate}})
        torchs.param_groups[0]["lr"] = rate
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(3, generator=generator).to(one.dtype)
            other.grad = one.grad.clone()
        adam.step(["m"], FiniteCheck(is_lazy=False))
        torchs.step()
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_step_that_is_skipped_does_not_count():
    parameter = torch.nn.Parameter(torch.ones(3))
    adam, check = DefaultAdam(), FiniteCheck(is_lazy=True)
    adam.arrange({"m": [parameter]}, lambda module_id: None, {})
    adam.set_rates({"m": {OTHERS: 0.1}})
    parameter.grad = torch.ones(3)
    check.holds(torch.tensor(1.0), torch.ones(1))
    adam.step(["m"], check)
    moved, moments = parameter.detach().clone(), adam.keep_state()()["m"][0]
    assert moments is not None and moments.step == 1.0 and not moved.equal(torch.ones(3))
    check.holds(torch.tensor(float("nan")), torch.ones(1))
    adam.step(["m"], check)
    assert parameter.equal(moved)
    assert plain(adam.keep_state()()["m"][0]) == plain(moments)


def test_parameters_without_a_learning_rate_are_named():
    algo = build(ByName)
    optimizers = algo.learner.optimizers
    optimizers._rates["agent_0"] = {"": None}
    with pytest.raises(LearnerError, match="'agent_0'"):
        optimizers.learning_rate("agent_0")


def test_layers_that_rest_do_not_count_in_the_norm_of_gradients():
    algo = build(ByName, num_epochs=1, minibatch_size=None)
    algo.learner.optimizers.rest(["", "encoder"])
    found = algo.train()["learners"]["agent_0"]["gradients_global_norm"]
    of_values = [p.grad for name, p in algo.rl_module["agent_0"].named_parameters() if name.startswith("vf")]
    assert found == pytest.approx(float(sum(gradient.square().sum() for gradient in of_values)) ** 0.5, rel=1e-5)
