"""What a learner's subclass may return, and what it is told if that is something else."""

from __future__ import annotations

import pytest
import torch

from helpers.runs.match_runs import build, changed, weights
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.errors import LearnerError

# Losses.


def learner_with(*, alone=None, stacked=None):
    """PPO's, whose losses are put through these functions."""
    methods = {}
    if alone is not None:
        methods["compute_loss_for_module"] = lambda self, **given: alone(
            PPOLearner.compute_loss_for_module(self, **given)
        )
    if stacked is not None:
        methods["compute_loss_for_stacked_modules"] = lambda self, **given: stacked(
            PPOLearner.compute_loss_for_stacked_modules(self, **given)
        )
    return type("Mine", (PPOLearner,), methods)


@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda loss: None, "None.*'agent_0'"),
        (lambda loss: 1.5, r"1.5.*'agent_0'"),
        (lambda loss: (loss, {}), "tuple.*'agent_0'"),
        (lambda loss: loss.expand(3), r"\(3,\).*'agent_0'"),
    ],
)
def test_a_loss_that_is_no_scalar_is_named(change, came):
    algo = build(learner_class=learner_with(alone=change))
    with pytest.raises(LearnerError, match=f"^Mine: its compute_loss_for_module.* {came}"):
        algo.train()


def test_a_loss_of_one_number_is_a_scalar():
    algo, like = (build(learner_class=learner_with(alone=change)) for change in (lambda x: x.reshape(1), lambda x: x))
    assert algo.train()["learners"] == like.train()["learners"]


@pytest.mark.parametrize(
    ("change", "shape"), [(lambda losses: losses.sum(), r"\(\)"), (lambda losses: losses[:2], r"\(2,\)")]
)
def test_stacked_losses_are_one_for_each_module(change, shape):
    algo = build(learner_class=learner_with(stacked=change))
    match = rf"(?s){shape}.*'agent_0'.*'agent_1'.*'agent_2'.*\(3,\)"
    with pytest.raises(LearnerError, match=match):
        algo.train()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("term", "came"),
    [
        (lambda fwd_out: fwd_out["action_dist_inputs"].abs(), r"\(20, 3\)"),
        (lambda fwd_out: 0.5, "float"),
        (lambda fwd_out: None, "NoneType"),
    ],
)
@pytest.mark.parametrize("others", [{}, {"y": torch.tensor(1.0)}])
def test_a_term_that_is_no_figure_is_named(term, came, others):
    class Logging(PPOLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            self.log_terms((module_id,), {**others, "x": term(fwd_out)})
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    with pytest.raises(LearnerError, match=f"log_terms: 'x' of 'agent_0'.* {came}"):
        build(learner_class=Logging).train()


# Gradients.


def scaling(returned):
    """Gradients by 1/2 for agent_0, 0 for others: in place, or as a list of their own."""

    class Scaling(PPOLearner):
        def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
            scale = 0.5 if module_id == "agent_0" else 0.0
            if returned:
                return [gradient * scale for gradient in module_gradients]
            for gradient in module_gradients:
                gradient.mul_(scale)
            return None

        def configure_optimizers_for_module(self, module_id, config):
            sgd = torch.optim.SGD(self.module[module_id].parameters(), lr=0.1)
            self.register_optimizer(module_id=module_id, optimizer=sgd)

    return Scaling


@pytest.mark.few(1)
@pytest.mark.parametrize("stack", [True, False])
def test_gradients_that_are_returned_count_as_those_changed_in_place(stack):
    algos = [build(learner_class=scaling(returned), stack=stack) for returned in (True, False)]
    before = {m: weights(algos[0], m) for m in algos[0].rl_module}
    for algo in algos:
        algo.train()
    for module_id, values in before.items():
        assert changed(values, weights(algos[0], module_id)) == (set(values) if module_id == "agent_0" else set())
        assert not changed(weights(algos[0], module_id), weights(algos[1], module_id))


@pytest.mark.parametrize("wrong", [lambda gradients: gradients[1:], lambda gradients: {}, lambda gradients: 1.0])
def test_other_things_than_gradients_are_refused(wrong):
    class Wrong(PPOLearner):
        def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
            return wrong(module_gradients)

    match = r"(?s)Wrong.*postprocess_gradients_for_module.*'agent_0'"
    with pytest.raises(LearnerError, match=match):
        build(learner_class=Wrong).train()


# Optimizers.


def test_parameters_of_another_module_are_refused():
    class Mixed(PPOLearner):
        def configure_optimizers_for_module(self, module_id, config):
            sgd = torch.optim.SGD(self.module["agent_0"].parameters(), lr=0.1)
            self.register_optimizer(module_id=module_id, optimizer=sgd)

    with pytest.raises(LearnerError, match=r"(?s)'agent_1'.*'agent_0'"):
        build(learner_class=Mixed)


def test_parameters_of_the_learner_itself_may_be_stepped():
    class Tempered(PPOLearner):
        def configure_optimizers_for_module(self, module_id, config):
            super().configure_optimizers_for_module(module_id, config)
            if module_id == "agent_0":
                self.temperature = torch.nn.Parameter(torch.ones(()))
                self.temperature.grad = torch.ones(())
                sgd = torch.optim.SGD([self.temperature], lr=0.25)
                self.register_optimizer(module_id=module_id, optimizer_name="temperature", optimizer=sgd)

    algo = build(learner_class=Tempered)
    algo.train()
    held = algo.learner.temperature
    algo.rl_module["agent_0"].vf = torch.nn.Linear(4, 1)  # what is the learner's is not made anew
    algo.train()
    assert algo.learner.temperature is held
    assert held.item() == 1.0 - 8 * 0.25


@pytest.mark.parametrize("stack", [True, False])
def test_an_optimizer_that_is_registered_later_takes_over_its_parameters(stack):
    algo = build(stack=stack)
    algo.train()
    module = algo.rl_module["agent_0"]
    still = torch.optim.SGD(module.vf.parameters(), lr=0.0)
    algo.learner.register_optimizer(module_id="agent_0", optimizer_name="values", optimizer=still)
    before = weights(algo, "agent_0")
    result = algo.train()
    assert changed(before, weights(algo, "agent_0")) == {name for name in before if not name.startswith("vf")}
    assert result["learners"]["agent_0"]["learning_rate"] == 0.01
    rest = torch.optim.SGD([*module.encoder.parameters(), *module.pi.parameters()], lr=0.5)
    algo.learner.register_optimizer(module_id="agent_0", optimizer_name="rest", optimizer=rest)
    assert algo.train()["learners"]["agent_0"]["learning_rate"] == 0.0
    assert algo.learner.optimizers.get_state()["agent_0"].adam == []


def test_the_learning_rate_is_the_one_that_was_used():
    class Halving(PPOLearner):
        def configure_optimizers_for_module(self, module_id, config):
            sgd = torch.optim.SGD(self.module[module_id].parameters(), lr=0.5)
            self.register_optimizer(module_id=module_id, optimizer=sgd)
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)

        def after_gradient_based_update(self, *, timesteps):
            super().after_gradient_based_update(timesteps=timesteps)
            self.scheduler.step()

    algo = build(learner_class=Halving)
    rates = [algo.train()["learners"]["agent_2"]["learning_rate"] for _ in range(3)]
    assert rates == [0.5, 0.25, 0.125]
