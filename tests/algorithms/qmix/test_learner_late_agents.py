"""Teams learn on when agents with modules and spaces of their own join after the reset."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, MADDPGConfig, MATD3Config, QMIXConfig, VDNConfig
from marl_connectors.replay_buffers.ring import ACTED, ALIVE

TEAMS = {"VDN": VDNConfig, "QMIX": QMIXConfig, "MADDPG": MADDPGConfig, "MATD3": MATD3Config}


class LateEnv(LifeEnv):
    """Agents of unlike spaces, most of which join late; the legal actions can be told from the observations.

    Args:
        seed: Decides the spaces.
        masked: Whether observations have masks.
    """

    def __init__(self, *, seed, masked, **life):
        rng = np.random.default_rng(seed)
        sizes = {a: (int(rng.integers(2, 5)), int(rng.integers(2, 5))) for a in "abc"}
        seen = {a: spaces.Box(-1, 1, (n,), np.float32) for a, (n, _) in sizes.items()}
        if masked:
            seen = {
                a: spaces.Dict({"observations": box, "action_mask": spaces.Box(0, 1, (sizes[a][1],), np.int8)})
                for a, box in seen.items()
            }
        super().__init__(spaces_of={a: (seen[a], spaces.Discrete(sizes[a][1])) for a in "abc"}, **life)
        self.masked = masked

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.t, self.agents = 0, ["a"]
        return {"a": self._observe("a")[0]}, {"a": {}}

    def _observe(self, agent):
        space = self.observation_space(agent)
        if not self.masked:
            return super()._observe(agent)
        seen = self.rng.uniform(-1, 1, space["observations"].shape).astype(np.float32)
        return {"observations": seen, "action_mask": legal(seen, self.action_space(agent).n)}, {}


def legal(seen, n):
    """The mask that belongs to an observation: never all 0."""
    mask = np.zeros(n, np.int8)
    mask[int(abs(float(seen[0])) * 1000) % n] = mask[int(abs(float(seen[1])) * 1000) % n] = 1
    return mask


def late_run(name, seed, *, masked):
    rng = np.random.default_rng(seed)
    env_config = {"seed": seed, "masked": masked, "join": float(rng.choice([0.2, 0.6])), "die": 0.1}
    env_config["max_steps"] = int(rng.integers(4, 12))
    is_recurrent = not masked
    model = {"fcnet_hiddens": (6,)}
    if is_recurrent:
        model |= {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    config = TEAMS[name]().environment(LateEnv, env_config=env_config, disable_env_checking=True)
    config.multi_agent(policies="independent").rl_module(model_config=model).debugging(seed=seed)
    config.training(train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=10)
    config.training(replay_buffer_config={"capacity": 400})
    config.env_runners(
        num_env_workers=0,
        rollout_fragment_length=int(rng.integers(1, 3)),
        num_envs_per_env_runner=int(rng.integers(1, 3)),
    )
    return config.reporting(min_sample_timesteps_per_iteration=40).build_algo()


def check_masks(buffer):
    """Whoever is there has the mask that belongs to its observation, also if it has not acted yet."""
    sample, checked = buffer.every_step(), 0
    for module_id in sample.agents:
        flags = sample.flags[module_id]
        seen, masks = (sample.column(name, module_id) for name in (Columns.OBS, Columns.ACTION_MASK))
        for at in zip(*np.nonzero(flags & (ACTED | ALIVE)), strict=True):
            observation = seen["observations"][at] if isinstance(seen, dict) else seen[at]
            np.testing.assert_array_equal(masks[at], legal(observation, masks.shape[-1]), err_msg=str(flags[at]))
            checked += 1
    assert checked


CASES = [
    (name, masked, seed)
    for i, name in enumerate(TEAMS)
    for masked in ((True, False) if name in ("VDN", "QMIX") else (True,))
    for seed in (i,)
]
FRESH = [
    pytest.param(name, masked, *seed.values, marks=seed.marks) for name, masked, _ in CASES for seed in fresh_seeds(5)
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "masked", "seed"), [*CASES, *FRESH])
def test_teams_learn_on_when_agents_with_spaces_and_modules_of_their_own_join_late(name, masked, seed):
    algo = late_run(name, seed, masked=masked)
    algo.train()
    if masked:
        check_masks(algo.replay_buffer)
    assert set(algo.replay_buffer.module_ids) <= {"a", "b", "c"}
    assert len(algo.replay_buffer.module_ids) > 1
    algo.stop()
