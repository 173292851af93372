"""Learner.evaluate: the losses of an update, without the update."""

from __future__ import annotations

import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import differences, plain
from marl_connectors import DefaultPPORLModule, NormalizeRewards, RLModuleSpec


class WithDropout(DefaultPPORLModule):
    """Drops half of the embeddings in train mode."""

    def _embed(self, batch):
        embeddings, state = super()._embed(batch)
        return torch.nn.functional.dropout(embeddings, 0.5, self.training), state

    def training_layers(self):
        return None


def life(**training):
    config = small_config(LifeEnv, env_config={"die": 0.2, "join": 0.2}).multi_agent(policies="independent")
    config.learners(learner_connector=lambda: NormalizeRewards()).rl_module(model_config={"fcnet_hiddens": (5,)})
    return config.training(train_batch_size_per_learner=60, **training).debugging(seed=2)


def test_the_losses_are_those_of_the_first_gradient_step():
    with life(num_epochs=1, minibatch_size=None, normalize_values=True).build_algo() as algo:
        algo.train()
        episodes = algo._sample().episodes()
        found = algo.learner.evaluate([episodes])
        expected = algo.learner.update(episodes=episodes)
        assert set(found) == set(expected) == {"a", "b", "c"}
        for module_id, own in found.items():
            assert own == pytest.approx({name: expected[module_id][name] for name in own}, rel=1e-4, abs=1e-5)


def test_nothing_changes_and_modules_are_in_eval_mode():
    config = life(minibatch_size=8).rl_module(rl_module_spec=RLModuleSpec(WithDropout))
    with config.build_algo() as algo:
        algo.train()
        episodes, before = algo._sample().episodes(), plain(algo.learner.get_state())
        generator = torch.get_rng_state()
        one, other = algo.learner.evaluate([episodes]), algo.learner.evaluate([episodes])
        assert one == other and not any(module.training for module in algo.rl_module.modules())
        assert not differences(before, plain(algo.learner.get_state()))
        assert torch.equal(generator, torch.get_rng_state())


def test_lists_of_episodes_count_by_their_rows():
    with life().build_algo() as algo:
        episodes = algo._sample().episodes()
        whole = algo.learner.evaluate([episodes])
        parts = algo.learner.evaluate([[episode] for episode in episodes])
        assert len(episodes) > 3 and set(whole) == set(parts)
        for module_id, own in whole.items():
            assert parts[module_id]["entropy"] == pytest.approx(own["entropy"], rel=1e-4)


def test_modules_that_are_not_trained_have_no_losses():
    with life().multi_agent(policies_to_train=["b"]).build_algo() as algo:
        assert set(algo.learner.evaluate([algo._sample().episodes()])) == {"b"}
        assert algo.learner.evaluate([]) == {}
