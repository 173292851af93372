"""Saves and loads the policies of ``latency.py`` with this library."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import latency_cases as cases
import torch

from marl_connectors import load_policy

_ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "in turns": ("marl_envs.match_v0", {"n_agents": 2, "n_actions": 16}),
    "masked boards": ("pettingzoo.classic.tictactoe_v3", {}),
}


def _pieces(env: Any) -> list[Any]:
    from marl_connectors import FlattenObservations, MeanStdFilter

    return [FlattenObservations(), MeanStdFilter()]


def _config(case: str) -> Any:
    from marl_connectors import PPOConfig

    model: dict[str, Any] = {"fcnet_hiddens": [cases.HIDDEN, cases.HIDDEN], "fcnet_activation": "tanh"}
    if case == "LSTM":
        model.update(use_lstm=True, lstm_cell_size=cases.CELLS, max_seq_len=cases.SEQUENCE)
    if case == "masked boards":
        model = {"conv_filters": [[16, 3, 1], [32, 3, 1]], "head_fcnet_hiddens": [cases.HIDDEN]}
    env, env_config = _ENVS[case] if case in _ENVS else (cases.env_of(case), {})
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(num_envs_per_env_runner=2, env_to_module_connector=_pieces if case == "pieces" else None)
        .training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=1)
        .rl_module(model_config=model)
    )


def save(case: str, folder: Path) -> None:
    """Trains for one iteration, and saves a checkpoint."""
    with _config(case).build_algo() as algo:
        algo.train()
        algo.save_to_path(folder)


def load(case: str, folder: Path, rows: int) -> cases.Acting:
    """Loads the policy of a checkpoint."""
    torch.set_num_threads(1)
    policy = load_policy(folder, config=_config(case) if case == "pieces" else None)
    module: Any = next(iter(policy.rl_module.values()))
    lead = (rows, 1) if module.is_stateful() else (rows,)
    batch: dict[str, Any] = {"obs": torch.randn(*lead, *module.observation_space.shape)}
    if case == "masked boards":
        batch["action_mask"] = torch.ones(rows, module.action_space.n, dtype=torch.bool)
    if module.is_stateful():
        batch["state_in"] = {key: torch.zeros(rows, *value.shape) for key, value in module.get_initial_state().items()}

    @torch.no_grad()
    def forward() -> None:
        module.forward_inference(batch)

    if case not in cases.OWN_CASES:
        return cases.Acting(policy, forward)
    turns = itertools.cycle(policy.agent_ids)
    return cases.Acting(lambda observation: policy(observation, next(turns)), forward)


if __name__ == "__main__":
    cases.run(save, load)
