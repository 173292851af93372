"""An update changes the modules that it should, by as much as it should, and no others."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import ScriptEnv, Step, small_config
from helpers.runs.random_runs import plain
from marl_connectors import Algorithm
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.errors import ConfigError, LearnerError
from marl_connectors.learner.learner import Learner
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_envs import match_v0

INDEPENDENT = "independent"
RAGGED = "agent_0=red,*=blue"


class Alone(DefaultPPORLModule):
    """Never runs stacked."""

    stackable = False


def match_config(policies=INDEPENDENT, n_agents=3, **training):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": n_agents, "n_actions": 3, "ep_len": 5})
    config.multi_agent(policies=policies).env_runners(num_envs_per_env_runner=4, rollout_fragment_length=10)
    return config.training(**{"train_batch_size_per_learner": 40, "minibatch_size": 16, "num_epochs": 2, **training})


def weights(algo):
    return {m: {k: v.clone() for k, v in state.items()} for m, state in algo.rl_module.get_state().items()}


def moments(algo):
    return copy.deepcopy(algo.learner.optimizers.get_state())


def largest_difference(one, other):
    return max(float((one[k] - other[k]).abs().max()) for k in one)


def changed(one, other):
    return {m for m in one if largest_difference(one[m], other[m]) > 0}


# Stacked or not, the same.


@pytest.mark.few(1)
@pytest.mark.parametrize("policies", [INDEPENDENT, RAGGED, "shared"])
@pytest.mark.parametrize(
    "training",
    [
        {},
        {"grad_clip": 0.05},
        {"grad_clip": 0.01, "grad_clip_by": "norm"},
        {"grad_clip": 1e-3, "grad_clip_by": "value"},
    ],
    ids=["no clip", "global norm", "norm", "value"],
)
def test_a_stacked_update_equals_one_module_after_another(policies, training):
    stacked = match_config(policies, **training).build_algo()
    alone = match_config(policies, **training).rl_module(rl_module_spec=RLModuleSpec(module_class=Alone)).build_algo()
    assert len(stacked.rl_module.buckets) == 1
    assert len(alone.rl_module.buckets) == 0
    alone.rl_module.set_state(stacked.rl_module.get_state())
    before = weights(stacked)
    for _ in range(2):
        episodes = stacked.env_runner.sample()
        results = [algo.learner.update(episodes=episodes) for algo in (stacked, alone)]
        for module_id, figures in results[0].items():
            assert figures == pytest.approx(results[1][module_id], abs=1e-4)
    after = weights(stacked)
    assert changed(before, after) == set(before)
    for module_id, state in weights(alone).items():
        assert largest_difference(after[module_id], state) < 3e-6  # sums are grouped differently


def test_modules_have_as_many_rows_as_their_agents_collected():
    algo = match_config(RAGGED, num_epochs=3).build_algo()
    result = algo.train()["learners"]
    # 4 copies of 10 steps: 40 rows an agent, three times through.
    assert {m: figures["num_module_steps_trained"] for m, figures in result.items()} == {"red": 120, "blue": 240}


def test_a_module_without_data_is_left_as_it_is():
    algo = match_config().build_algo()
    algo.train()
    episodes = algo.env_runner.sample()
    for episode in episodes:
        del episode.agent_episodes["agent_1"]
    before, moments_before = weights(algo), moments(algo)
    results = algo.learner.update(episodes=episodes)
    assert set(results) == changed(before, weights(algo)) == {"agent_0", "agent_2"}
    assert plain(moments(algo)["agent_1"].adam[0]) == plain(moments_before["agent_1"].adam[0])
    assert moments(algo)["agent_0"].adam[0].step > moments_before["agent_0"].adam[0].step


@pytest.mark.parametrize("wanted", [["agent_2"], lambda module_id: module_id == "agent_2"], ids=["list", "function"])
def test_only_policies_to_train_are_trained(wanted):
    algo = match_config().multi_agent(policies_to_train=wanted).build_algo()
    before = weights(algo)
    result = algo.train()
    assert changed(before, weights(algo)) == set(result["learners"]) == {"agent_2"}


def test_with_no_policy_to_train_an_update_does_nothing():
    algo = match_config().multi_agent(policies_to_train=[]).build_algo()
    before = weights(algo)
    assert algo.train()["learners"] == {}
    assert changed(before, weights(algo)) == set()


# Minibatches.


class Noting(PPOLearner):
    """Notes the first number of the observations of each minibatch."""

    def build(self):
        self.seen = []
        super().build()

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.seen.append((module_id, batch["obs"][:, 0].tolist()))
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def counting_script(agents, steps):
    """Observations that count the agents' steps, so that every row can be told from the others."""
    rows = [
        Step(
            {a: 100 * i + t for i, a in enumerate(agents) if t <= steps[i]},
            {},
            tuple(a for i, a in enumerate(agents) if t == steps[i]),
        )
        for t in range(max(steps) + 1)
    ]
    return lambda: ScriptEnv([rows])


@pytest.mark.few(4)
@pytest.mark.parametrize("steps", [(7, 7), (7, 3)], ids=["equal", "ragged"])
@pytest.mark.parametrize("size", [3, 6, 7, None])
def test_every_epoch_goes_through_every_row_once_in_even_minibatches(steps, size):
    config = small_config(counting_script("ab", steps)).multi_agent(policies=INDEPENDENT)
    config.training(minibatch_size=size, num_epochs=2, learner_class=Noting, train_batch_size_per_learner=7)
    algo = config.env_runners(rollout_fragment_length=7).build_algo()
    algo.train()
    for i, agent in enumerate("ab"):
        minibatches = [rows for module_id, rows in algo.learner.seen if module_id == agent]
        number = math.ceil(steps[i] / size) if size else 1
        assert len(minibatches) == 2 * number
        epochs = minibatches[:number], minibatches[number:]
        for epoch in epochs:
            assert sorted(x for rows in epoch for x in rows) == [100.0 * i + t for t in range(steps[i])]
            assert max(map(len, epoch)) - min(map(len, epoch)) <= 1
            assert max(map(len, epoch)) <= (size or 7)


def test_epochs_are_shuffled_anew_unless_that_is_switched_off():
    def orders(shuffle):
        config = small_config(counting_script("a", (50,))).training(
            minibatch_size=None,
            num_epochs=2,
            learner_class=Noting,
            train_batch_size_per_learner=50,
            shuffle_batch_per_epoch=shuffle,
        )
        algo = config.env_runners(rollout_fragment_length=50).build_algo()
        algo.train()
        return [rows for _, rows in algo.learner.seen]

    first, second = orders(True)
    assert first != second
    assert first != sorted(first)
    assert orders(False) == [[float(t) for t in range(50)]] * 2


# Settings of the update.


def one_step(**training):
    """How far one gradient step of Adam moved each module's weights, as ``{module_id: [all parameters]}``."""
    overrides = training.pop("overrides", {})
    config = match_config(num_epochs=1, minibatch_size=None, **training)
    algo = config.rl_module(algorithm_config_overrides_per_module=overrides).build_algo()
    before = weights(algo)
    result = algo.train()
    after = weights(algo)
    moved = {m: torch.cat([(after[m][k] - before[m][k]).flatten() for k in before[m]]) for m in before}
    return moved, result["learners"]


def test_a_module_has_its_own_learning_rate():
    # The first step of Adam moves a weight by the learning rate, whatever the gradient's size.
    moved, learners = one_step(lr=1e-3, overrides={"agent_1": {"lr": 1e-2}})
    assert float(moved["agent_0"].abs().max()) == pytest.approx(1e-3, rel=1e-2)
    assert float(moved["agent_1"].abs().max()) == pytest.approx(1e-2, rel=1e-2)
    assert [learners[m]["learning_rate"] for m in ("agent_0", "agent_1")] == [1e-3, 1e-2]


def test_a_module_has_its_own_minibatch_size():
    algo = (
        match_config(minibatch_size=None, num_epochs=1)
        .rl_module(algorithm_config_overrides_per_module={"agent_1": {"minibatch_size": 10}})
        .build_algo()
    )
    algo.train()
    steps = {m: state.adam[0].step for m, state in moments(algo).items()}
    assert steps == {"agent_0": 1, "agent_1": 4, "agent_2": 1}


def test_overrides_are_checked_like_all_settings():
    with pytest.raises(ConfigError, match=r"(?s)'lrr'.*'lr'"):
        match_config().rl_module(algorithm_config_overrides_per_module={"agent_1": {"lrr": 1}})
    with pytest.raises(ConfigError, match=r"(?s)'agent_1'.*\bgamma\b.*\b2\b"):
        match_config().rl_module(algorithm_config_overrides_per_module={"agent_1": {"gamma": 2}})


@pytest.mark.parametrize("name", ["learner_class", "train_batch_size_per_learner", "autocast_dtype", "policies"])
def test_a_module_has_no_settings_of_the_run(name):
    own = {"agent_1": {name: getattr(match_config(), name)}}
    with pytest.raises(ConfigError, match=f"(?s)'{name}'.*'agent_1'"):
        match_config().rl_module(algorithm_config_overrides_per_module=own)


def test_policies_to_train_are_modules():
    with pytest.raises(ConfigError, match=r"(?s)'agnet_0'.*'agent_0'"):
        match_config().multi_agent(policies_to_train=["agent_1", "agnet_0"]).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)policies_to_train.*\['agent_0'\]"):
        match_config().multi_agent(policies_to_train="agent_0")


class Fixed(PPOLearner):
    """A loss whose gradients are known: 3 for all weights of the policy head, 4 for its biases, 0 elsewhere."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        parameters = self.module[module_id].pi.named_parameters()
        return sum((3 if name.endswith("weight") else 4) * p.sum() for name, p in parameters)

    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
        super().postprocess_gradients_for_module(module_id=module_id, config=config, module_gradients=module_gradients)
        self.gradients = [gradient.clone() for gradient in module_gradients]


@pytest.mark.parametrize(
    ("by", "clip", "weight", "bias"),
    [
        # One agent, 4 hidden units, 3 actions: 12 weights with gradient 3, and 3 biases with gradient 4.
        ("value", 3.5, 3.0, 3.5),
        ("norm", 1.0, 1 / 12**0.5, 1 / 3**0.5),
        ("global_norm", 1.0, 3 / (12 * 9 + 3 * 16) ** 0.5, 4 / (12 * 9 + 3 * 16) ** 0.5),
        ("global_norm", 100.0, 3.0, 4.0),
    ],
)
def test_gradients_are_clipped_as_asked(by, clip, weight, bias):
    algo = match_config(n_agents=1, grad_clip=clip, grad_clip_by=by, learner_class=Fixed).build_algo()
    algo.train()
    values = {round(float(v), 4) for gradient in algo.learner.gradients for v in gradient.flatten()}
    assert values - {0.0} == {round(weight, 4), round(bias, 4)}


def test_schedules_follow_the_sampled_steps():
    algo = match_config(lr=[[0, 0.01], [80, 0.0]], entropy_coeff=[[0, 1.0], [160, 0.0]]).build_algo()
    assert [algo.train()["learners"]["agent_0"]["learning_rate"] for _ in range(3)] == [0.005, 0.0, 0.0]
    assert algo.learner.coefficients(["agent_0"]).entropy_coeff == 0.25
    before = weights(algo)
    algo.train()
    assert changed(before, weights(algo)) == set(), "with a learning rate of 0 nothing moves"


def test_the_penalty_for_moving_too_far_adapts_itself():
    algo = match_config(lr=0.1, kl_target=1e-6, kl_coeff=0.2).build_algo()
    algo.train()
    assert algo.learner.kl_coeff("agent_0") == pytest.approx(0.3)
    algo.train()
    assert algo.learner.kl_coeff("agent_0") == pytest.approx(0.45)
    lazy = match_config(lr=1e-9, kl_target=1.0, kl_coeff=0.2).build_algo()
    lazy.train()
    assert lazy.learner.kl_coeff("agent_0") == pytest.approx(0.1)
    off = match_config(lr=0.1, kl_target=1e-6, use_kl_loss=False).build_algo()
    assert off.train()["learners"]["agent_0"]["mean_kl_loss"] == 0.0
    assert off.learner.kl_coeff("agent_0") == 0.2


def test_the_first_minibatch_of_all_has_a_ratio_of_one():
    algo = match_config(num_epochs=1, minibatch_size=None).build_algo()
    figures = algo.train()["learners"]["agent_0"]
    # All ratios are 1, so the surrogate is the mean of standardised advantages; nothing has moved, so the KL is 0.
    assert figures["policy_loss"] == pytest.approx(0.0, abs=1e-6)
    assert figures["mean_kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert figures["entropy"] == pytest.approx(math.log(3), abs=1e-2)


@pytest.mark.parametrize("policies", ["shared", INDEPENDENT])
def test_a_loss_that_is_not_finite_stops_the_run(policies):
    algo = match_config(policies, lr=1e-3).build_algo()
    module = next(iter(algo.rl_module.values()))
    with torch.no_grad():
        next(module.vf.parameters()).fill_(math.nan)
    with pytest.raises(LearnerError, match=r"(?s)policy_loss.*\bnan\b"):
        algo.train()


# Learners and modules of users.


class Imitation(Learner):
    """Makes the taken actions less likely, with SGD."""

    def configure_optimizers_for_module(self, module_id, config):
        parameters = self.get_parameters(self.module[module_id])
        self.register_optimizer(module_id=module_id, optimizer=torch.optim.SGD(parameters, lr=0.5, momentum=0.9))

    def before_gradient_based_update(self, *, timesteps):
        self.told = [("before", dict(timesteps))]

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls().from_logits(fwd_out["action_dist_inputs"])
        return distribution.logp(batch["actions"]).mean()

    def after_gradient_based_update(self, *, timesteps):
        self.told.append(("after", dict(timesteps)))


@pytest.mark.parametrize("policies", ["shared", INDEPENDENT])
def test_a_learner_of_the_users_own(policies):
    algo = match_config(policies, learner_class=Imitation, num_epochs=1, minibatch_size=None).build_algo()
    before = weights(algo)
    learners = algo.train()["learners"]
    assert changed(before, weights(algo)) == set(before)
    for figures in learners.values():
        assert figures["learning_rate"] == 0.5
        assert figures["total_loss"] == pytest.approx(-math.log(3), abs=0.1)
    steps = {"num_env_steps_sampled_lifetime": 40, "num_agent_steps_sampled_lifetime": 120}
    assert algo.learner.told == [("before", steps), ("after", steps)]


def test_a_loss_of_the_users_own_that_is_not_finite_stops_the_run():
    class Broken(Imitation):
        def compute_loss_for_module(self, **given):
            return super().compute_loss_for_module(**given) * math.nan

    with pytest.raises(LearnerError, match=r"(?s)total_loss.*'agent_0'.*\bnan\b"):
        match_config(learner_class=Broken).build_algo().train()


def test_a_users_own_optimizer_survives_a_checkpoint(tmp_path):
    config = match_config(learner_class=Imitation)
    algo, twin = config.build_algo(), config.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "c")
    twin.restore_from_path(tmp_path / "c")
    algo.train()
    twin.train()
    assert changed(weights(algo), weights(twin)) == set()


class Linear(RLModule, ValueFunctionAPI):
    """A module written from scratch: plain torch layers, a dict for a config."""

    def setup(self):
        size = self.observation_space.shape[0]
        self.body = torch.nn.Linear(size, self.model_config["width"])
        self.logits, self.value = (torch.nn.Linear(self.model_config["width"], n) for n in (self.action_space.n, 1))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.logits(torch.tanh(self.body(batch["obs"])))}

    def compute_values(self, batch, embeddings=None):
        return self.value(torch.tanh(self.body(batch["obs"])))[:, 0]


def test_a_module_of_the_users_own():
    spec = RLModuleSpec(module_class=Linear, model_config={"width": 6})
    algo = match_config().rl_module(rl_module_spec=spec).build_algo()
    before = weights(algo)
    algo.train()
    assert changed(before, weights(algo)) == {"agent_0", "agent_1", "agent_2"}
    assert algo.get_module("agent_0").body.weight.shape == (6, 3)


# Modules that come and go.


def test_a_module_added_while_training_goes_on_is_trained_and_the_others_keep_their_moments():
    algo = match_config().build_algo()
    algo.train()
    before = moments(algo)
    algo.add_module(
        "extra",
        new_agent_to_module_mapping_fn=lambda agent_id, episode, **kw: "extra" if agent_id == "agent_0" else agent_id,
    )
    assert plain(moments(algo)["agent_1"].adam[0]) == plain(before["agent_1"].adam[0])
    assert set(algo.train()["learners"]) == {"extra", "agent_0", "agent_1", "agent_2"}, "one episode had begun already"
    start = weights(algo)
    result = algo.train()
    assert changed(start, weights(algo)) == set(result["learners"]) == {"extra", "agent_1", "agent_2"}
    assert moments(algo)["agent_1"].adam[0].step == 3 * before["agent_1"].adam[0].step


def test_a_module_added_later_has_its_own_overrides_too():
    overrides = {"extra": {"lr": 0.5, "gamma": 0.0}}
    with pytest.warns(UserWarning, match=r"(?s)'extra'.*add_module.*'extra'.*config_overrides="):
        algo = match_config().rl_module(algorithm_config_overrides_per_module=overrides).build_algo()
    algo.add_module(
        "extra",
        new_agent_to_module_mapping_fn=lambda agent_id, episode, **kw: "extra" if agent_id == "agent_0" else agent_id,
    )
    assert algo.learner.pipeline["GeneralAdvantageEstimation"].module_settings["extra"]["gamma"] == 0.0
    assert algo.train()["learners"]["extra"]["learning_rate"] == 0.5


def test_settings_of_a_module_that_nobody_knows_are_probably_a_typo(tmp_path, recwarn):
    overrides = {"agent_1": {"lr": 0.5}, "agent1": {"lr": 0.25}}
    with pytest.warns(UserWarning, match=r"(?s)'agent1'.*'agent_1'"):
        match_config().rl_module(algorithm_config_overrides_per_module=overrides).build_algo()
    del overrides["agent1"]
    recwarn.clear()
    algo = match_config().rl_module(algorithm_config_overrides_per_module=overrides).build_algo()
    algo.add_module("late", config_overrides={"lr": 0.125})
    algo.save_to_path(tmp_path / "run")
    assert Algorithm.from_checkpoint(tmp_path / "run").config.get_config_for_module("late").lr == 0.125
    assert not recwarn.list


def test_a_removed_module_takes_its_optimizer_along():
    algo = match_config().build_algo()
    algo.train()
    before = moments(algo)["agent_1"].adam[0]
    algo.remove_module(
        "agent_0",
        new_agent_to_module_mapping_fn=lambda agent_id, episode, **kw: "agent_1" if agent_id == "agent_0" else agent_id,
    )
    assert set(moments(algo)) == {"agent_1", "agent_2"}
    torch.testing.assert_close(moments(algo)["agent_1"].adam[0].exp_avg, before.exp_avg, rtol=0, atol=0)
    result = algo.train()
    assert result["learners"]["agent_1"]["num_module_steps_trained"] == 160
    assert result["learners"]["agent_2"]["num_module_steps_trained"] == 80


def test_an_older_state_brings_back_older_moments():
    algo = match_config().build_algo()
    fresh = copy.deepcopy(algo.learner.get_state())
    algo.train()
    algo.learner.set_state(fresh)
    assert not any(moments(algo)["agent_0"].adam)
    assert algo.learner.num_updates == 0


def test_the_same_episodes_give_the_same_update_twice():
    one, other = match_config().build_algo(), match_config().build_algo()
    episodes = one.env_runner.sample()
    for algo in (one, other):
        algo.learner.update(episodes=episodes)
    np.testing.assert_equal(
        {m: {k: v.numpy() for k, v in s.items()} for m, s in weights(one).items()},
        {m: {k: v.numpy() for k, v in s.items()} for m, s in weights(other).items()},
    )


def test_a_column_that_nobody_made_is_named_with_the_piece_that_makes_it():
    algo = match_config().build_algo()
    algo.learner.pipeline.remove("GeneralAdvantageEstimation")
    with pytest.raises(KeyError, match="GeneralAdvantageEstimation"):
        algo.train()


def test_a_restored_learner_knows_what_is_frozen_and_who_is_never_updated():
    algo, other = (match_config().build_algo() for _ in range(2))
    algo.learner.add_module("acts", copy.deepcopy(algo.rl_module["agent_0"]), is_updated=False)
    other.learner.add_module("acts", copy.deepcopy(algo.rl_module["agent_0"]), is_updated=True)
    next(algo.rl_module["agent_1"].parameters()).requires_grad_(False)
    other.learner.set_state(algo.learner.get_state())
    assert not other.learner.should_module_be_updated("acts")
    assert [p.requires_grad for p in other.rl_module["agent_1"].parameters()][:2] == [False, True]
