"""Losses by torch.compile are those without it."""

import shutil

import pytest
import torch

from marl_connectors import PPOConfig, PPOLearner
from marl_connectors.errors import ConfigError

ONE_GRAPH_EACH = {"shared": 1, "independent": 1, "agent_0=a,agent*=b": 2}


def build(policies="independent", model=None, learner_class=None, seed=0, training=None, **framework):
    config = (
        PPOConfig()
        .environment("marl_envs.match_v0", env_config={"n_agents": 3})
        .multi_agent(policies=policies)
        .env_runners(num_envs_per_env_runner=2)
        .framework(**framework)
        .rl_module(model_config={"fcnet_hiddens": [16], "vf_share_layers": False, **(model or {})})
        .training(
            lr=[[0, 1e-2], [1000, 1e-3]],
            entropy_coeff=[[0, 0.1], [1000, 0.0]],
            train_batch_size_per_learner=100,
            minibatch_size=50,
            num_epochs=2,
            **(training or {}),
        )
        .debugging(seed=seed)
    )
    return (config.learners(learner_class=learner_class) if learner_class else config).build_algo()


def assert_same_updates(compiled, plain, times, atol=1e-5):
    for _ in range(times):
        ours, theirs = compiled.train()["learners"], plain.train()["learners"]
        for module_id, figures in theirs.items():
            assert ours[module_id] == pytest.approx(figures, abs=atol, rel=1e-4)
    for mine, other in zip(compiled.rl_module.parameters(), plain.rl_module.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_what_torch_makes_a_graph_of_is_the_same_loss(policies, monkeypatch):
    torch.compiler.reset()
    compiled = build(policies, torch_compile_learner=True, torch_compile_learner_dynamo_backend="eager")
    assert_same_updates(compiled, build(policies), times=4)
    assert compiled.learner._compiled.num_graphs == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # by torch's compiler, of itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_what_is_compiled_is_the_same_loss(policies):
    torch.compiler.reset()
    compiled = build(policies, torch_compile_learner=True)
    assert_same_updates(compiled, build(policies), times=3)
    assert compiled.learner._compiled.num_graphs == 1


def test_schedules_and_penalties_that_change_compile_nothing_anew():
    torch.compiler.reset()
    algo = build(torch_compile_learner=True, torch_compile_learner_dynamo_backend="eager")
    algo.train()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    coefficients = dict(algo.learner.loss_coefficients(tuple(algo.rl_module)))
    for _ in range(4):
        algo.train()
    assert dict(algo.learner.loss_coefficients(tuple(algo.rl_module))) != coefficients
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_what_no_graph_can_be_made_of_is_computed_without_one():
    class Peeking(PPOLearner):
        """Branches on a number, which is no graph."""

        def compute_loss_for_stacked_modules(self, **given):
            losses = super().compute_loss_for_stacked_modules(**given)
            return losses if losses.sum().item() < 1e9 else losses * 2

    torch.compiler.reset()
    compiled = build(learner_class=Peeking, torch_compile_learner=True, torch_compile_learner_dynamo_backend="eager")
    plain = build(learner_class=Peeking)
    with pytest.warns(RuntimeWarning, match=r"no graph of the loss of 'agent_0', 'agent_1', 'agent_2', so it is"):
        compiled.train()
    plain.train()
    assert_same_updates(compiled, plain, times=1)
    assert compiled.learner._compiled.num_graphs == 0


def test_an_error_in_a_loss_is_the_users_own():
    class Failing(PPOLearner):
        """Fails from the second minibatch on."""

        count = 0

        def compute_loss_for_stacked_modules(self, *, batch, **given):
            self.count += 1
            if self.count > 1:
                raise ZeroDivisionError("mine")
            return super().compute_loss_for_stacked_modules(batch=batch, **given)

    torch.compiler.reset()
    with pytest.raises(ZeroDivisionError, match="mine"):
        build(learner_class=Failing, torch_compile_learner=True, torch_compile_learner_dynamo_backend="eager").train()


@pytest.mark.parametrize(
    ("framework", "message"),
    [
        ({"torch_compile_learner_dynamo_mode": "default"}, "does nothing without .framework.torch_compile_learner"),
        ({"torch_compile_learner": True, "torch_compile_learner_dynamo_mode": "reduce"}, "reduce-overhead"),
        ({"torch_compile_learner": True, "torch_compile_learner_dynamo_backend": "inductr"}, "inductor"),
        ({"torch_compile_learner": 1}, "torch_compile_learner must be True or False"),
        ({"framework": "tf2"}, "there is 'torch' only"),
    ],
)
def test_settings_that_torch_does_not_know_are_refused(framework, message):
    with pytest.raises(ConfigError, match=message):
        build(**framework)
