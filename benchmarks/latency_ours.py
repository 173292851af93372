"""Saves and loads the policies of ``latency.py`` with this library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import latency_cases as cases
import torch

from marl_connectors import load_policy


def _pieces(env: Any) -> list[Any]:
    from marl_connectors import FlattenObservations, MeanStdFilter

    return [FlattenObservations(), MeanStdFilter()]


def _config(case: str) -> Any:
    from marl_connectors import PPOConfig

    model: dict[str, Any] = {"fcnet_hiddens": [cases.HIDDEN, cases.HIDDEN], "fcnet_activation": "tanh"}
    if case == "LSTM":
        model.update(use_lstm=True, lstm_cell_size=cases.CELLS, max_seq_len=cases.SEQUENCE)
    return (
        PPOConfig()
        .environment(cases.env_of(case))
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
    batch: dict[str, Any] = {"obs": torch.randn(*lead, 16)}
    if module.is_stateful():
        batch["state_in"] = {key: torch.zeros(rows, *value.shape) for key, value in module.get_initial_state().items()}

    @torch.no_grad()
    def forward() -> None:
        module.forward_inference(batch)

    return cases.Acting(policy, forward)


if __name__ == "__main__":
    cases.run(save, load)
