"""Configurations in which several learners must do what one does. Other processes import them by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.envs.masked_envs import RandomMasks
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.modules.shared_layers import Heads, LayersBeside, Sharing, sharing_config
from helpers.modules.stackable_modules import StackableGRU
from helpers.runs.random_runs import by_episode, random_config
from marl_connectors import (
    Columns,
    ConnectorV2,
    DefaultPPORLModule,
    MultiRLModuleSpec,
    NormalizeRewards,
    PPOConfig,
    RLModuleSpec,
    SelfSupervisedLossAPI,
)
from marl_connectors.algorithms.mappo import MAPPOConfig
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.rl_module.layers import MLP


class WithSGD(PPOLearner):
    """Steps by the gradients alone. Adam turns round-off into steps where a gradient is 0."""

    def configure_optimizers_for_module(self, module_id, config):
        parameters = self.get_parameters(self.module[module_id])
        optimizer = torch.optim.SGD(parameters, momentum=0.9)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, lr_or_lr_schedule=config.lr)


class CountsRows(PPOLearner):
    """Logs the rows of each loss."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.metrics.log_value((module_id, "rows"), len(batch[Columns.OBS]), reduce="sum")
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class Masks(ConnectorV2):
    """Leaves out about half of the steps of the loss: those whose observation says so."""

    def columns(self, c, xp):
        first = np.asarray(c.rows.get(Columns.OBS)).reshape(len(c.rows), -1)[:, 0]
        c["loss_mask"] = c.rows.acted & (np.floor(first * 1000) % 2 == 0)


class Names(ConnectorV2):
    """Works on items, and reads what only a batch with rows has."""

    def __call__(self, *, batch, episodes, metrics, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            metrics.log_value("steps", len(episode), reduce="sum")
            metrics.log_value("longest", len(episode), reduce="max")
        assert len(batch["loss_mask"]) > 0
        return batch


def make_masks() -> ConnectorV2:
    return Masks()


def make_names() -> ConnectorV2:
    return Names()


def random_ranks_config(seed: int) -> PPOConfig:
    """A random configuration whose updates do not turn round-off into steps."""
    rng = np.random.default_rng([seed, 1])
    config = random_config(seed).env_runners(num_env_workers=0, explore=True)
    config.env_runners(num_envs_per_env_runner=int(rng.integers(2, 7)))
    config.training(lr=1e-3, use_kl_loss=bool(rng.random() < 0.5), grad_clip=float(rng.choice([0.1, 40.0])))
    config.training(grad_clip_by=str(rng.choice(["value", "norm", "global_norm"])))
    if rng.random() < 0.4:
        config.learners(learner_class=WithSGD)
    if rng.random() < 0.3 and config.learner_connector is None and random_boxes(config):
        config.learners(learner_connector=make_masks)
    return config


def random_boxes(config: PPOConfig) -> bool:
    """Whether observations are arrays, which ``Masks`` reads."""
    return config.env_to_module_connector is None or "Flatten" not in repr(config.env_to_module_connector())


def life_config(algorithm: type[PPOConfig] = PPOConfig, **settings: Any) -> PPOConfig:
    """Agents that die and join, with a module each, in six sub-environments."""
    game = {"agents": list("abcd"), "die": 0.2, "join": 0.3, "max_steps": 6}
    config = small_config(LifeEnv, algorithm, env_config=game).multi_agent(policies="independent")
    config.environment(env=make_life, env_config=game)
    config.env_runners(num_envs_per_env_runner=6, rollout_fragment_length=5)
    return config.training(
        **{"train_batch_size_per_learner": 60, "minibatch_size": 12, "num_epochs": 2, "lr": 1e-3, **settings}
    )


def make_life(env_config: dict[str, Any]) -> LifeEnv:
    return LifeEnv(**env_config)


def masked_config() -> PPOConfig:
    return life_config().learners(learner_connector=make_masks)


def forced_config() -> PPOConfig:
    """Action masks, some of which leave a single action."""
    config = small_config(RandomMasks, env_config={"case": 1, "places": ["observation"], "alike": True})
    config.environment(env=make_random_masks, env_config={"case": 1, "places": ["observation"], "alike": True})
    config.env_runners(num_envs_per_env_runner=6, rollout_fragment_length=5)
    return config.training(train_batch_size_per_learner=60, minibatch_size=12, num_epochs=2, lr=1e-3)


def make_random_masks(env_config: dict[str, Any]) -> RandomMasks:
    return RandomMasks(**env_config)


def counting_config() -> PPOConfig:
    return life_config().learners(learner_class=CountsRows)


def items_config() -> PPOConfig:
    return life_config().learners(learner_connector=make_names)


def normalized_config() -> PPOConfig:
    """Rewards that are divided by the statistics of all learners; two chunks of an episode in a batch."""
    return life_config(train_batch_size_per_learner=45).learners(learner_connector=make_normalize)


def make_normalize() -> ConnectorV2:
    return NormalizeRewards(gamma=0.9)


def mapped_config() -> PPOConfig:
    """Agents change modules from episode to episode, so that ranks lack modules."""
    config = life_config(use_kl_loss=True, kl_target=1e-4)
    return config.multi_agent(policies={"a", "b"}, policy_mapping_fn=by_episode)


def overridden_config() -> PPOConfig:
    """Modules with different numbers of epochs, minibatches and clips."""
    config = life_config(grad_clip=0.05)
    return config.rl_module(
        algorithm_config_overrides_per_module={
            "a": {"num_epochs": 3, "minibatch_size": None, "grad_clip_by": "value"},
            "b": {"num_epochs": 1, "minibatch_size": 5, "grad_clip_by": "norm", "grad_clip": 0.01},
            "c": {"use_critic": False, "lambda_": 1.0},
            "d": {"lr": [[0, 1e-3], [180, 1e-4]]},
        }
    )


def values_config() -> PPOConfig:
    """Normalised values of most modules, with masks, and with agents that change modules from episode to episode."""
    config = masked_config().training(normalize_values=True, value_norm_beta=0.9, vf_loss="huber", vf_huber_delta=1.0)
    config.multi_agent(policies={"a", "b"}, policy_mapping_fn=by_episode)
    return config.rl_module(algorithm_config_overrides_per_module={"b": {"value_norm_beta": 0.5}})


def recurrent_config() -> PPOConfig:
    config = life_config(minibatch_size=16).learners(learner_connector=make_masks)
    return config.rl_module(
        model_config={"fcnet_hiddens": (4,), "use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 3}
    )


def stacked_recurrent_config() -> PPOConfig:
    spec = RLModuleSpec(StackableGRU, model_config={"size": 3, "max_seq_len": 3})
    return life_config(minibatch_size=16).rl_module(rl_module_spec=spec)


def mappo_config() -> PPOConfig:
    return life_config(MAPPOConfig)


def shared_config(multi_class: type, module_class: type) -> PPOConfig:
    config = sharing_config(multi_class, module_class)
    config.environment(env="marl_envs.match_v0")
    config.env_runners(num_envs_per_env_runner=5, rollout_fragment_length=8)
    return config.training(lr=1e-3, num_epochs=2)


def layers_beside_config() -> PPOConfig:
    return shared_config(LayersBeside, Heads)


def layer_held_by_two_config() -> PPOConfig:
    return shared_config(Sharing, DefaultPPORLModule)


class Predicting(DefaultPPORLModule, SelfSupervisedLossAPI):
    """Predicts its own observation, and has a layer that has a gradient in the first update only."""

    def setup(self):
        super().setup()
        self.predictor, self.early = MLP(2, (2,), activate_last=False), nn.Linear(2, 2)

    def compute_self_supervised_loss(self, *, learner, module_id, config, batch, fwd_out):
        loss = nn.functional.mse_loss(self.predictor(batch[Columns.OBS]), batch[Columns.OBS])
        if learner.num_updates == 0:
            loss = loss + self.early(batch[Columns.OBS]).square().mean()
        learner.log_terms([module_id], {"twice": 2 * loss})
        return loss


def self_supervised_config() -> PPOConfig:
    specs = {agent: RLModuleSpec(Predicting if agent in "ac" else DefaultPPORLModule) for agent in "abcd"}
    return life_config().rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


class OwnLoss(WithSGD):
    """Overrides the loss, the gradients and the optimizer."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        return loss + 0.1 * fwd_out["action_dist_inputs"].square().mean()

    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
        return [gradient / (1 + gradient.abs().sum()) for gradient in module_gradients]


def own_loss_config() -> PPOConfig:
    return life_config(lr=0.05).learners(learner_class=OwnLoss)


class Normalized(DefaultPPORLModule):
    """Has a layer whose buffers change in training."""

    def setup(self):
        super().setup()
        self.norm = nn.BatchNorm1d(2, affine=False)

    def _forward_train(self, batch, **kwargs):
        return super()._forward_train({**batch, "obs": self.norm(batch["obs"])}, **kwargs)


def batch_norm_config() -> PPOConfig:
    return life_config(minibatch_size=None).rl_module(rl_module_spec=RLModuleSpec(Normalized))


CASES: dict[str, Callable[[], PPOConfig]] = {
    "masked rows": masked_config,
    "single legal actions": forced_config,
    "a piece on items": items_config,
    "normalised rewards": normalized_config,
    "modules that ranks lack": mapped_config,
    "modules with settings of their own": overridden_config,
    "normalised values": values_config,
    "LSTMs and masks": recurrent_config,
    "stacked GRUs": stacked_recurrent_config,
    "central critics": mappo_config,
    "layers of the MultiRLModule": layers_beside_config,
    "a layer that two modules hold": layer_held_by_two_config,
    "self-supervised losses": self_supervised_config,
    "a loss and gradients of the user's": own_loss_config,
}


def random_case(seed: int) -> Callable[[], PPOConfig]:
    return functools.partial(random_ranks_config, seed)
