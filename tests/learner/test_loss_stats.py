"""A step that is NaN or infinite is never taken, and the error says where it comes from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import small_config
from helpers.runs.random_runs import plain
from marl_connectors import ConnectorV2
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.errors import LearnerError
from marl_connectors.learner.loss_stats import LossStatistics
from marl_envs import match_v0


class Spoil(ConnectorV2):
    """Writes a value into one row of a column, for one module."""

    where = ("rewards", "agent_1", np.nan)

    def columns(self, c, xp):
        name, module_id, value = self.where
        column = c.rows.get(name).astype(np.float32)
        column[c.splits[c.module_ids.index(module_id)] + 3] = value
        c[name] = column


class Exploding(PPOLearner):
    """The loss of one module becomes ``value`` in a certain minibatch; ``through`` is the loss or only its gradient."""

    at, module_id, value, through = 3, "agent_1", float("nan"), "loss"
    count = 0

    def compute_loss_for_stacked_modules(self, *, module_ids, module, batch, fwd_out):
        losses = super().compute_loss_for_stacked_modules(
            module_ids=module_ids, module=module, batch=batch, fwd_out=fwd_out
        )
        self.count += 1
        if self.count != self.at:
            return losses
        i = module_ids.index(self.module_id)
        if self.through == "loss":
            planted = torch.zeros_like(losses)
            planted[i] = self.value
            losses = losses + planted
            self.log_terms(module_ids, {"planted_loss": losses})
            return losses
        roots = (fwd_out["action_dist_inputs"][i] * 0.0).abs().sum().sqrt()  # 0, with an infinite slope
        return losses + torch.nn.functional.one_hot(torch.tensor(i), len(module_ids)) * roots


def build(learner_class=PPOLearner, *, lazily=False, piece=None, policies="independent", **training):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    config.multi_agent(policies=policies).env_runners(num_envs_per_env_runner=4, rollout_fragment_length=10)
    config.learners(learner_class=learner_class, learner_connector=lambda: [piece()] if piece else [])
    settings = {"train_batch_size_per_learner": 40, "minibatch_size": 20, "num_epochs": 2, "lr": 1e-3}
    algo = config.training(**{**settings, **training}).build_algo()
    algo.learner._checks_lazily = lazily
    return algo


def state(algo):
    return [p.clone() for m in algo.rl_module.get_state().values() for p in m.values()]


def moments(algo):
    return [plain(own.adam[0]) for own in algo.learner.optimizers.get_state().values()]


@pytest.mark.few(2)
@pytest.mark.parametrize("lazily", [False, True], ids=["looks at each step", "looks at the end"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_the_step_is_not_taken_and_the_minibatch_is_named(lazily, value):
    until = type("Until", (Exploding,), {"value": value})
    algo = build(until, lazily=lazily)
    match = f"(?s)planted_loss.*'agent_1'.*{value}.*update 1.*epoch 2.*minibatch 1"
    with pytest.raises(LearnerError, match=match):
        algo.learner.update(episodes=algo.env_runner.sample())
    # Two minibatches an epoch, so the third step is the first of the second epoch: what went before stands.
    fine = build(type("Never", (Exploding,), {"at": 99}), num_epochs=1)
    fine.learner.update(episodes=fine.env_runner.sample())
    for found, expected in zip(state(algo), state(fine), strict=True):
        assert torch.equal(found, expected)
    assert moments(algo) == moments(fine)


@pytest.mark.few(3)
@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("training", [{}, {"grad_clip": 0.5}, {"grad_clip": 0.5, "grad_clip_by": "value"}])
def test_a_gradient_that_is_not_finite_is_found_though_the_loss_is(lazily, training):
    algo = build(type("Rooted", (Exploding,), {"through": "gradient", "at": 1}), lazily=lazily, **training)
    before = state(algo)
    with pytest.raises(LearnerError, match=r"(?s)gradients_global_norm.*'agent_1'.*\bnan\b"):
        algo.train()
    for found, expected in zip(state(algo), before, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("where", "match"),
    [
        (("rewards", "agent_1", np.nan), r"(?s)'agent_1'.*\bnan\b.*'rewards'.*\b1\b"),
        (("rewards", "agent_2", np.inf), r"(?s)'agent_2'.*\bnan\b.*'rewards'.*\b1\b"),
        (("action_logp", "agent_0", np.nan), r"(?s)policy_loss.*'agent_0'.*\bnan\b.*'action_logp'"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_column_that_is_not_finite_is_named(where, match):
    algo = build(piece=type("Spoils", (Spoil,), {"where": where}))
    with pytest.raises(LearnerError, match=match):
        algo.train()
    assert all(torch.isfinite(p).all() for p in state(algo))


def test_the_checkpoint_before_is_intact_and_goes_on(tmp_path):
    algo = build(type("Late", (Exploding,), {"at": 6}))
    algo.train()
    algo.save_to_path(tmp_path / "good")
    with pytest.raises(LearnerError, match="in update 2, epoch 1, minibatch 2"):
        algo.train()
    algo.restore_from_path(tmp_path / "good")
    assert algo.learner.num_updates == 1
    algo.train()
    assert all(torch.isfinite(p).all() for p in state(algo))


def test_optimizers_of_users_take_no_bad_step_either():
    class Descent(Exploding):
        def configure_optimizers_for_module(self, module_id, config):
            sgd = torch.optim.SGD(self.get_parameters(self.module[module_id]), lr=0.1)
            self.register_optimizer(module_id=module_id, optimizer=sgd)

    for lazily in (False, True):
        algo = build(type("First", (Descent,), {"at": 1}), lazily=lazily)
        before = state(algo)
        with pytest.raises(LearnerError, match=r"(?s)planted_loss.*'agent_1'.*\bnan\b"):
            algo.train()
        assert all(torch.equal(a, b) for a, b in zip(state(algo), before, strict=True))


class Plus(PPOLearner):
    """Adds a number to the loss that PPO has noted already, without logging it."""

    plus = 1000.0

    def compute_loss_for_module(self, **kwargs):
        return super().compute_loss_for_module(**kwargs) + self.plus


class PlusStacked(PPOLearner):
    plus = 1000.0

    def compute_loss_for_stacked_modules(self, **kwargs):
        return super().compute_loss_for_stacked_modules(**kwargs) + self.plus


@pytest.mark.few(1)
@pytest.mark.parametrize("learner_class", [Plus, PlusStacked])
def test_the_total_loss_is_what_is_minimised(learner_class):
    found, plain = build(learner_class).train()["learners"], build().train()["learners"]
    for module_id, figures in plain.items():
        assert found[module_id]["total_loss"] == pytest.approx(figures["total_loss"] + 1000.0, abs=0.01)
        assert found[module_id]["policy_loss"] == pytest.approx(figures["policy_loss"], abs=1e-4)


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("learner_class", [Plus, PlusStacked])
def test_an_unlogged_term_that_is_not_finite_is_no_matter_of_the_gradient(learner_class, lazily):
    algo = build(type("Bad", (learner_class,), {"plus": float("nan")}), lazily=lazily)
    with pytest.raises(LearnerError, match=r"(?s)total_loss.*'agent_0'.*\bnan\b"):
        algo.train()


def test_minibatches_are_counted_for_each_module():
    class Fourth(PPOLearner):
        """Modules one after another, and the fourth loss of ``agent_2`` is no number."""

        count = 0

        def compute_loss_for_module(self, *, module_id, **kwargs):
            self.count += module_id == "agent_2"
            loss = super().compute_loss_for_module(module_id=module_id, **kwargs)
            return loss * float("nan") if module_id == "agent_2" and self.count == 4 else loss

    with pytest.raises(LearnerError, match=r"(?s)total_loss.*'agent_2'.*\bnan\b.*update 1.*epoch 2.*minibatch 2"):
        build(Fourth).train()


def test_a_total_that_is_changed_in_place_after_it_was_logged_counts_as_it_is_in_the_end():
    statistics = LossStatistics()
    for more, same in ((2.0, True), (3.0, False), (0.0, True)):
        statistics.begin_minibatch(0)
        total = torch.tensor(1.0)
        statistics.log(("m",), {"policy_loss": total.clone(), "total_loss": total})
        if same:
            total += more
        else:
            total = total + more
        statistics.log_total(("m",), total)
    assert statistics.means() == {"m": {"policy_loss": 1.0, "total_loss": (3.0 + 4.0 + 1.0) / 3}}
