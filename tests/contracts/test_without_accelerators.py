"""Where the accelerators are missing, runs are the same but for rounding."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from marl_connectors import DQNConfig, PPOConfig
from marl_envs import masked_v0, match_v0, spread_v0

LSTM = {"use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4}
RUNS = {
    "Discrete": lambda: _small(PPOConfig(), match_v0),
    "independent": lambda: _small(PPOConfig(), match_v0).multi_agent(policies="independent"),
    "Box": lambda: _small(PPOConfig(), spread_v0, env_config={"continuous_actions": True}),
    "masks": lambda: _small(PPOConfig(), masked_v0),
    "LSTM": lambda: _small(PPOConfig(), match_v0).rl_module(model_config=LSTM),
    "DQN": lambda: _small(DQNConfig(), match_v0).training(train_batch_size_per_learner=8),
}


def _small(config, env, env_config=None):
    config.environment(env.parallel_env, env_config=env_config or {}).rl_module(model_config={"fcnet_hiddens": [6]})
    return config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8).debugging(seed=3)


def write(path):
    """Writes what the runs sample, their losses, and where their first update leads."""
    found = {}
    for name, make in RUNS.items():
        algo = make().build_algo()
        episodes = algo.env_runner.sample()
        for i, agent in enumerate(own for episode in episodes for own in episode.agent_episodes.values()):
            found[f"{name} observations {i}"] = agent.get_observations()
            found[f"{name} actions {i}"] = agent.get_actions()
            found[f"{name} inputs {i}"] = agent.get_extra_model_outputs("action_dist_inputs")
            found[f"{name} logp {i}"] = agent.get_extra_model_outputs("action_logp")
        if name == "DQN":
            algo.replay_buffer.add(episodes)
            episodes = algo.replay_buffer.sample(8)
        for module_id, terms in algo.learner.update(episodes=episodes).items():
            found |= {f"{name} {module_id} {term}": np.array(value) for term, value in terms.items()}
        algo.stop()
    np.savez(path, **found)


def test_a_process_without_the_accelerators_takes_the_same_steps(tmp_path):
    code = """if True:
        import sys
        sys.modules["marl_connectors.accelerate"] = None
        from contracts.test_without_accelerators import write
        write(sys.argv[1])
        print([name for name in sys.modules if name.startswith("marl_connectors.accelerate.")])
    """
    plain, accelerated = tmp_path / "plain.npz", tmp_path / "accelerated.npz"
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code, plain], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", "an accelerator was imported"
    write(accelerated)
    with np.load(plain) as one, np.load(accelerated) as other:
        assert one.files == other.files
        for name in one.files:
            tolerance = 1e-6 if " inputs " in name or " logp " in name else 1e-5
            np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_an_accelerator_that_cannot_be_imported_for_another_reason_is_an_error(monkeypatch):
    from marl_connectors.accelerators import bind_acting

    pytest.importorskip("marl_connectors.accelerate")
    monkeypatch.delitem(sys.modules, "marl_connectors.accelerate.acting", raising=False)
    monkeypatch.setitem(sys.modules, "marl_connectors.connectors.defaults", None)
    with pytest.raises(ModuleNotFoundError, match="defaults"):
        bind_acting(None, None, None)
