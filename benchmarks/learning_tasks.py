"""The tasks of ``learning.py``: environment, settings, number of steps, and target return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from marl_connectors import (
    Callbacks,
    Columns,
    MAPPOConfig,
    PPOConfig,
    RLModule,
    RLModuleSpec,
    ScaleRewards,
    ValueFunctionAPI,
)


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        config: Makes the config, without the seed.
        steps: The number of agent steps to train for.
        target: The target for the mean return of an agent over the newest 100 episodes, with sampled actions.
        modules: The modules whose returns count; None for all.
    """

    config: Callable[[], PPOConfig]
    steps: int
    target: float
    modules: tuple[str, ...] | None = None


class RandomPlayer(RLModule, ValueFunctionAPI):
    """Draws actions that the mask allows, uniformly at random."""

    def setup(self):
        self.logits = torch.nn.Parameter(torch.zeros(int(self.action_space.n)))

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.logits.detach().expand(len(batch[Columns.OBS]), -1)}

    def compute_values(self, batch, embeddings=None):
        return torch.zeros(len(batch[Columns.OBS]))


class Wins(Callbacks):
    """Logs ``won``, the share of episodes in which ``learner`` has a positive return."""

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        for agent in episode.agent_episodes.values():
            if agent.module_id == "learner":
                metrics_logger.log_value("won", float(agent.get_return() > 0), reduce="mean")


COMMON = {
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "vf_clip_param": 1e6,
    "vf_loss_coeff": 0.5,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "use_kl_loss": False,
}
SMALL = {"fcnet_hiddens": [64, 64], "vf_share_layers": False}


def ppo(env: Any, *, algo: type[PPOConfig] = PPOConfig, num_envs: int = 8, model: Any = SMALL, **training) -> PPOConfig:
    """Returns a config for one process, whose batch sizes count agent steps."""
    config = algo().environment(env).multi_agent(count_steps_by="agent_steps")
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=0).rl_module(model_config=model)
    return config.learners(num_gpus_per_learner=0).training(**{**COMMON, **training})


def recall(**more) -> PPOConfig:
    """Returns a task in which two agents must name their cue four steps after they saw it."""
    settings = {"lr": 3e-3, "train_batch_size_per_learner": 4096, "num_epochs": 6, "minibatch_size": 1024, **more}
    return ppo("marl_envs.recall_v0", **settings).environment(env_config={"delay": 3})


def spread(policies: str, *, continuous: bool = False, **more) -> PPOConfig:
    """Returns a task in which three agents cover three landmarks. The return of random play is -26.6."""
    config = ppo(
        "mpe2.simple_spread_v3",
        **{"lr": 3e-4, "train_batch_size_per_learner": 4096, "num_epochs": 8, "minibatch_size": 512, **more},
    )
    config.environment(env_config={"N": 3, "max_cycles": 25, "continuous_actions": continuous})
    return config.multi_agent(policies=policies)


def speaker_listener(algo: type[PPOConfig]) -> PPOConfig:
    """Returns a task in which one agent knows the goal of the other. The return of random play is -41.4."""
    config = ppo(
        "mpe2.simple_speaker_listener_v4",
        algo=algo,
        num_envs=32,
        model={"fcnet_hiddens": [128, 128], "fcnet_activation": "relu", "vf_share_layers": False},
        lr=1e-3,
        gamma=0.9,
        train_batch_size_per_learner=1600,
        num_epochs=10,
        minibatch_size=200,
        grad_clip=None,
    )
    config.environment(env_config={"max_cycles": 25}).multi_agent(policies="independent")
    return config.learners(learner_connector=lambda *_: ScaleRewards(scale=0.1))


def pursuit() -> PPOConfig:
    """Returns a task in which four agents, which see 7 x 7 cells, surround evaders; with default convolutions."""
    config = ppo(
        "pettingzoo.sisl.pursuit_v5",
        model={"fcnet_hiddens": [64]},
        lr=1e-3,
        gamma=0.95,
        train_batch_size_per_learner=4096,
        num_epochs=6,
        minibatch_size=512,
    )
    config.environment(env_config={"x_size": 10, "y_size": 10, "n_pursuers": 4, "n_evaders": 10, "max_cycles": 200})
    return config.multi_agent(policies="shared")


def connect_four() -> PPOConfig:
    """Returns a game against random moves with action masks. A win is 1, a loss -1, and the first player alternates.

    Evaluations sample actions, as an opponent without exploration would always drop into the first free column.
    """

    def mapping(agent_id, episode, **kwargs):
        return "learner" if agent_id == f"player_{int(episode.id_.split('-')[1]) % 2}" else "random"

    config = ppo(
        "connect_four_v3", num_envs=16, lr=1e-3, train_batch_size_per_learner=4000, num_epochs=6, minibatch_size=500
    )
    config.environment(action_mask_key="action_mask")
    config.evaluation(evaluation_config={"explore": True, "callbacks_class": Wins})
    return config.multi_agent(
        policies={"learner": None, "random": RLModuleSpec(RandomPlayer)},
        policy_mapping_fn=mapping,
        policies_to_train=["learner"],
    )


TASKS: dict[str, Task] = {
    "cartpole": Task(
        lambda: ppo("CartPole-v1", lr=1e-3, train_batch_size_per_learner=2048, num_epochs=10, minibatch_size=256),
        100_000,
        450.0,
    ),
    "acrobot": Task(
        lambda: ppo(
            "Acrobot-v1", num_envs=16, lr=1e-3, train_batch_size_per_learner=4096, num_epochs=10, minibatch_size=512
        ),
        500_000,
        -100.0,
    ),
    "lunar_lander": Task(
        lambda: ppo(
            "LunarLander-v3",
            num_envs=16,
            lr=1e-3,
            gamma=0.999,
            lambda_=0.98,
            train_batch_size_per_learner=16_384,
            num_epochs=6,
            minibatch_size=512,
            model={"fcnet_hiddens": [128, 128], "vf_share_layers": False},
        ),
        1_500_000,
        200.0,
    ),
    "lunar_lander_zoo": Task(  # the settings of RL Baselines3 Zoo
        lambda: ppo(
            "LunarLander-v3",
            num_envs=16,
            lr=3e-4,
            gamma=0.999,
            lambda_=0.98,
            train_batch_size_per_learner=16_384,
            num_epochs=4,
            minibatch_size=64,
        ),
        1_000_000,
        200.0,
    ),
    "spread_shared": Task(lambda: spread("shared"), 1_000_000, -20.0),
    "spread_independent": Task(lambda: spread("independent"), 1_000_000, -22.0),
    "spread_mappo": Task(lambda: spread("shared", algo=MAPPOConfig), 500_000, -20.0),
    "spread_continuous": Task(lambda: spread("shared", continuous=True), 500_000, -22.0),
    "speaker_listener_independent": Task(lambda: speaker_listener(PPOConfig), 1_500_000, -10.0),
    "speaker_listener_mappo": Task(lambda: speaker_listener(MAPPOConfig), 1_500_000, -10.0),
    "recall_lstm": Task(
        lambda: recall(model={"fcnet_hiddens": [32], "use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 20}),
        100_000,
        1.8,
    ),
    "recall_mlp": Task(recall, 100_000, 1.8),
    "pursuit_cnn": Task(pursuit, 200_000, -8.0),
    "connect_four": Task(connect_four, 250_000, 0.8, ("learner",)),
}
