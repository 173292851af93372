"""Policies act in batches as they do for single observations, whatever the action space."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.scripted_envs import small_config
from marl_connectors import RLModuleSpec, load_policy

ACTIONS = {
    "dict": spaces.Dict({"go": spaces.Discrete(3, start=5), "at": spaces.Box(0, 2, (2,), np.float32)}),
    "tuple": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Dict({"on": spaces.MultiBinary(2)})]),
    "box": spaces.Box(-2, 3, (2, 2), np.float32),
}
OBSERVATION = spaces.Box(-1, 1, (3,), np.float32)


class Nested(ParallelEnv):
    metadata = {"name": "nested"}

    def __init__(self, kind):
        self.possible_agents = ["u", "v"]
        self.kind = kind

    def observation_space(self, agent):
        return OBSERVATION

    def action_space(self, agent):
        return ACTIONS[self.kind]

    def reset(self, seed=None, options=None):
        self.agents, self.t = self.possible_agents[:], 0
        return {a: np.full(3, 0.1, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        agents, done = self.agents, self.t == 5
        self.agents = [] if done else agents
        seen = {a: np.full(3, self.t / 9, np.float32) for a in agents}
        return seen, dict.fromkeys(agents, 1.0), dict.fromkeys(agents, done), dict.fromkeys(agents, False), {}


def by_environment(agent_id, episode, **kwargs):
    return "gru" if episode.id_.startswith("1-") else "plain"


MAPPINGS = {
    "shared": {},
    "independent": {"policies": "independent"},
    "other kinds in other environments": {
        "policies": {"plain": RLModuleSpec(), "gru": RLModuleSpec(model_config={"use_gru": True, "gru_cell_size": 3})},
        "policy_mapping_fn": by_environment,
    },
}


def row(tree, i):
    if isinstance(tree, dict):
        return {key: row(part, i) for key, part in tree.items()}
    return tuple(row(part, i) for part in tree) if isinstance(tree, tuple) else tree[i]


def close(found, expected):
    if isinstance(expected, (dict, tuple)):
        keys = expected if isinstance(expected, dict) else range(len(expected))
        assert len(found) == len(expected)
        for key in keys:
            close(found[key], expected[key])
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_batch_acts_as_its_members(kind, mapping, tmp_path):
    config = small_config(lambda env_config: Nested(kind)).multi_agent(**MAPPINGS[mapping])
    saved = config.build_algo().save_to_path(tmp_path / "c")
    together = load_policy(saved)
    alone = [load_policy(saved, None if mapping != "other kinds in other environments" else m) for m in PLAYERS]
    rng = np.random.default_rng(0)
    for _ in range(3):
        batch = {agent: rng.uniform(-1, 1, (3, 3)).astype(np.float32) for agent in ("v", "u")}
        found = together.actions(batch)
        for i, policy in enumerate(alone):
            expected = policy.actions({agent: own[i] for agent, own in batch.items()})
            for agent in ("u", "v"):
                assert ACTIONS[kind].contains(expected[agent])
                close(row(found[agent], i), expected[agent])


PLAYERS = ("plain", "gru", "plain")
"""By which modules the environments of a batch act, where they do not all act alike."""


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_pickled_policy_goes_on(kind, tmp_path):
    saved = small_config(lambda env_config: Nested(kind)).build_algo().save_to_path(tmp_path / "c")
    policy = load_policy(saved, explore=True)
    seen = {agent: np.full(3, 0.2, np.float32) for agent in ("u", "v")}
    policy.actions(seen)
    other = pickle.loads(pickle.dumps(policy))
    for _ in range(3):
        assert str(other.actions(seen)) == str(policy.actions(seen))
