"""Saves and loads the policies of ``latency.py`` with SB3, and RecurrentPPO of sb3-contrib.

It needs ``stable-baselines3`` and ``sb3-contrib``. Observations are standardised by ``VecNormalize`` and flattened by
``MultiInputPolicy``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import latency_cases as cases
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


def _class(case: str) -> Any:
    if case != "LSTM":
        return PPO
    from sb3_contrib import RecurrentPPO

    return RecurrentPPO


def save(case: str, folder: Path) -> None:
    """Trains for one iteration, and saves the model and the statistics."""
    folder.mkdir(parents=True)
    env: Any = DummyVecEnv([cases.env_of(case)] * 2)
    policy: str = {"LSTM": "MlpLstmPolicy", "pieces": "MultiInputPolicy"}.get(case, "MlpPolicy")
    settings: dict[str, Any] = {"net_arch": [cases.HIDDEN, cases.HIDDEN]}
    if case == "LSTM":
        settings["lstm_hidden_size"] = cases.CELLS
    if case == "pieces":
        env = VecNormalize(env, norm_obs_keys=["floats"])
    model = _class(case)(policy, env, n_steps=100, batch_size=100, n_epochs=1, policy_kwargs=settings, device="cpu")
    model.learn(200)
    model.save(folder / "model")
    if case == "pieces":
        env.save(folder / "statistics")


def load(case: str, folder: Path, rows: int) -> cases.Acting:
    """Loads the model."""
    torch.set_num_threads(1)
    model = _class(case).load(folder / "model", device="cpu")
    if case == "LSTM":
        state, begins = None, np.ones(rows, bool)

        def act_with_state(observation: Any) -> Any:
            nonlocal state
            actions, state = model.predict(observation, state=state, episode_start=begins, deterministic=True)
            begins[:] = False
            return actions

        return cases.Acting(act_with_state)
    if case == "pieces":
        statistics = VecNormalize.load(str(folder / "statistics"), DummyVecEnv([cases.env_of(case)]))
        statistics.training = False
        return cases.Acting(lambda o: model.predict(statistics.normalize_obs(o), deterministic=True)[0])
    return cases.Acting(lambda observation: model.predict(observation, deterministic=True)[0])


if __name__ == "__main__":
    cases.run(save, load)
