"""Does the work of ``yardstick.py`` with the toolkit: ``python benchmarks/ours.py sample null``.

A variant (``VARIANTS``), such as an additional piece, can be added: ``python benchmarks/ours.py sample null 5 box``.
"""

from __future__ import annotations

import json
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from typing import Any

import numpy as np
import torch
import yardstick as y
from null_envs import NullVariant

from marl_connectors import Columns, ConnectorV2, PPOConfig


class AddsConstant(ConnectorV2):
    """A custom column piece."""

    def columns(self, c: Any, xp: Any) -> None:
        c.rows.set(Columns.OBS, c.rows.get(Columns.OBS) + np.float32(0.25))


class SetsObservations(ConnectorV2):
    """A custom item piece that writes each agent's observation."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=episode.get_observations(-1), at_indices=-1)
        return batch


def module_of_four(agent_id: str, episode: Any, **kwargs: Any) -> str:
    """A policy mapping function."""
    return f"module_{int(agent_id.removeprefix('agent_')) % 4}"


MODEL = {"fcnet_hiddens": [y.HIDDEN, y.HIDDEN], "vf_share_layers": False}
"""The yardstick's layers. Variants add to them, so that none depends on a default."""

LSTM = {**MODEL, "use_lstm": True, "lstm_cell_size": y.HIDDEN}
VARIANTS = {
    "column_piece": lambda config: config.env_runners(env_to_module_connector=lambda: AddsConstant()),
    "item_piece": lambda config: config.env_runners(env_to_module_connector=lambda: SetsObservations()),
    "box": lambda config: config.environment(lambda: NullVariant(act="Box"), env_config={}),
    "four_modules": lambda config: config.multi_agent(
        policies={f"module_{i}" for i in range(4)}, policy_mapping_fn=module_of_four
    ),
    "two_lstms": lambda config: config.rl_module(model_config=LSTM),
    "shared_lstm": lambda config: config.rl_module(model_config={**LSTM, "vf_share_layers": True}),
}
"""Name to a change of the yardstick's settings."""


def build(name: str, independent: bool, variant: str | None = None):
    """Returns the algorithm with the yardstick's settings and those of a variant."""
    if name == "spread":
        env, env_config = "mpe2.simple_spread_v3", {"N": 3, "max_cycles": 25, "continuous_actions": False}
    elif name == "pursuit":
        env, env_config = "pettingzoo.sisl.pursuit_v5", {"max_cycles": 500}
    else:
        env, env_config = "marl_envs.null_v0", {"n_agents": y.NUM_AGENTS[name]}
    length = y.fragment_length(name)
    config = (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(num_envs_per_env_runner=y.NUM_ENVS[name], num_env_workers=0, rollout_fragment_length=length)
        .learners(num_gpus_per_learner=0)
        .multi_agent(policies="independent" if independent else "shared")
        .rl_module(model_config=MODEL)
        .training(
            train_batch_size_per_learner=length * y.NUM_ENVS[name],
            minibatch_size=y.MINIBATCH // y.NUM_AGENTS[name] if independent else y.MINIBATCH,
            num_epochs=y.EPOCHS,
            lr=y.LR,
            gamma=y.GAMMA,
            lambda_=y.LAMBDA,
            clip_param=y.CLIP,
            entropy_coeff=y.ENTROPY_COEFF,
            vf_loss_coeff=y.VF_COEFF,
            grad_clip=y.GRAD_CLIP,
            use_kl_loss=False,
            vf_clip_param=float("inf"),
        )
        .debugging(seed=0)
    )
    if variant is not None:
        VARIANTS[variant](config)
    return config.build_algo()


def main() -> None:
    """``ours.py sample|train|train_independent null|null_1000_agents|...|pursuit [iterations [variant]]``."""
    torch.set_num_threads(1)
    mode, name = sys.argv[1:3]
    algo = build(name, mode == "train_independent", sys.argv[4] if len(sys.argv) > 4 else None)
    agents = y.NUM_AGENTS[name]

    def iteration() -> int:
        if mode == "sample":
            return sum(episode.agent_steps() for episode in algo.env_runner.sample())
        algo.train()
        return y.fragment_length(name) * y.NUM_ENVS[name] * agents

    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(json.dumps({"agent_steps_per_cpu_second": y.steps_per_second(iteration, iterations)}))


if __name__ == "__main__":
    main()
