"""The algorithm that docs/new_algorithm.md writes: its loss is that of the paper, and it trains as others do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from helpers.envs.masked_envs import ToldMasks
from helpers.envs.scripted_envs import LifeEnv
from marl_connectors import Algorithm, Columns, load_policy

PAGE = Path(__file__).parents[3] / "docs" / "new_algorithm.md"
BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")


@pytest.fixture
def iqn(monkeypatch):
    """The first code block of the page, as a module that checkpoints can name."""
    module: Any = ModuleType("my_iqn")
    monkeypatch.setitem(sys.modules, "my_iqn", module)
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert code is not None
    exec(compile(code[1], PAGE.name, "exec", dont_inherit=True), vars(module))
    return module


def small(iqn, env=LifeEnv, seed=0, policies="independent", **training):
    config = iqn.IQNConfig().environment(env, disable_env_checking=True).multi_agent(policies=policies)
    settings = {"train_batch_size_per_learner": 8, "num_steps_sampled_before_learning_starts": 20, "num_fractions": 5}
    config.training(**(settings | training)).rl_module(model_config={"fcnet_hiddens": (4,)})
    config.env_runners(num_env_workers=0).reporting(min_sample_timesteps_per_iteration=40)
    return config.debugging(seed=seed)


def parameters(algo):
    return {name: value.clone() for name, value in algo.rl_module.state_dict().items()}


@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("buffer", BUFFERS)
def test_it_trains_and_goes_on_from_a_checkpoint_exactly(iqn, policies, buffer, tmp_path):
    config = small(iqn, policies=policies, n_step=2, replay_buffer_config={"type": buffer, "capacity": 200})
    config.environment(env_config={"die": 0.2, "join": 0.2})
    whole, before = config.build_algo(), None
    assert len(whole.rl_module.buckets) == 1  # so all modules are computed at once
    before = parameters(whole)
    whole.train()
    resumed = Algorithm.from_checkpoint(whole.save_to_path(tmp_path / "checkpoint"), config=config)
    assert type(resumed) is iqn.IQN
    one, other = whole.train(), resumed.train()
    assert one["learners"] == other["learners"]
    assert all(np.isfinite(own["spread"]) for own in one["learners"].values())
    after, of_resumed = parameters(whole), parameters(resumed)
    assert all(torch.equal(value, of_resumed[name]) for name, value in after.items())
    changed = {name.split(".")[2] for name in after if not torch.equal(after[name], before[name])}
    networks = {"encoder", "waves", "head"}
    assert changed == {"epsilon", *networks, *(f"target_{name}" for name in networks)}
    policy = load_policy(whole.save_to_path(tmp_path / "later"))
    assert policy.actions({agent: np.zeros(2, np.float32) for agent in "abc"}).keys() == set("abc")
    whole.stop()
    resumed.stop()


@pytest.mark.parametrize("env", [LifeEnv, ToldMasks])
def test_the_loss_is_that_of_the_paper(iqn, env):
    config = small(iqn, env, n_step=3, huber_kappa=0.5, policies="shared")
    algo = config.environment(env_config={"die": 0.2}, action_mask_key="action_mask").build_algo()
    algo.train()
    (group,) = algo.learner.make_batch(algo.replay_buffer.sample(6, n_step=3)).groups
    module, batch = algo.get_module(), dict(group)
    torch.manual_seed(0)
    fwd_out = module.forward_train(batch)
    loss = algo.learner.compute_loss_for_module(
        module_id="default_policy", config=algo.config, batch=batch, fwd_out=fwd_out
    )
    torch.manual_seed(0)
    module.forward_train(batch)  # whose fractions are drawn first
    following = module.forward_target({Columns.OBS: batch[Columns.NEXT_OBS]})["quantiles"]
    means, losses = module.mean_values(batch[Columns.NEXT_OBS]), []
    for i, action in enumerate(batch[Columns.ACTIONS].long()):
        allowed = batch["new_action_mask"][i].bool() if "new_action_mask" in batch else torch.ones(3, dtype=torch.bool)
        best = int(torch.where(allowed, means[i], -torch.inf).argmax())
        goals = [batch[Columns.REWARDS][i] + batch["discounts"][i] * value for value in following[i, :, best]]
        total = torch.zeros(())
        for fraction, value in zip(fwd_out["fractions"][i], fwd_out["quantiles"][i, :, action], strict=True):
            for goal in goals:
                error = (goal - value).detach()
                size = 0.5 * error**2 if error.abs() <= 0.5 else 0.5 * (error.abs() - 0.25)
                total += (fraction - (error < 0).float()).abs() * size / 0.5 / len(goals)
        losses.append(total)
    torch.testing.assert_close(loss.detach(), torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    algo.stop()


@pytest.mark.learning
def test_it_learns(iqn):
    config = iqn.IQNConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": (64, 64)})
    config.training(num_steps_sampled_before_learning_starts=500, train_batch_size_per_learner=64).debugging(seed=0)
    algo = config.build_algo()
    for _ in range(14):
        algo.train()
    assert algo.evaluate(num_episodes=10)["env_runners"]["episode_return_mean"] > 100
    algo.stop()
