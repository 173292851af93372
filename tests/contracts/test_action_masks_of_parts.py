"""Masks of Dict and Tuple actions in runs, with an environment that raises when a part is illegal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.scripted_envs import small_config
from marl_connectors import ActionMasking, Columns, ConfigError, ConnectorError, check_env, load_policy

SEEN = spaces.Box(0.0, 99.0, (1,), np.float32)
FLAGS = [spaces.Box(0, 1, (n,), np.int8) for n in (3, 2, 2)]
DICT = spaces.Dict(
    {
        "at": spaces.Box(-2.0, 2.0, (1,), np.float32),
        "go": spaces.Discrete(3, start=4),
        "say": spaces.MultiDiscrete([2, 2]),
    }
)
DICT_MASKS = spaces.Dict({"go": FLAGS[0], "say": spaces.Tuple(FLAGS[1:])})
TUPLE = spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0.0, 1.0, (2,), np.float32), spaces.Discrete(3)])
TUPLE_MASKS = spaces.Tuple([spaces.Box(0, 2, (2,), np.int8), spaces.Box(0, 1, (0,), np.int8), FLAGS[0]])


def masks_at(kind, t):
    """Of one action, of several, and of parts that are free."""
    go = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1]][t % 3], np.int8)
    if kind == "dict":
        return {"go": go, "say": (np.array([t % 2, 1], np.int8), np.array([1, 0], np.int8))}
    return np.array([t % 2, 2], np.int8), np.zeros(0, np.int8), go


def check(kind, t, action):
    masks = masks_at(kind, t)
    if kind == "dict":
        fine = masks["go"][action["go"] - 4] and all(m[i] for m, i in zip(masks["say"], action["say"], strict=True))
    else:
        fine = action[0][0] == t % 2 and masks[2][action[2]]
    if not fine:
        raise ValueError(f"illegal: {action} at {t}")


class Strict(ParallelEnv):
    metadata = {"name": "strict", "render_modes": []}

    def __init__(self, kind="dict", in_info=False):
        self.kind, self.in_info = kind, in_info
        self.possible_agents = ["u", "v"]
        self.actions = DICT if kind == "dict" else TUPLE
        masks = DICT_MASKS if kind == "dict" else TUPLE_MASKS
        self.seen = SEEN if in_info else spaces.Dict({"observation": SEEN, "action_mask": masks})

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return self.actions

    def _told(self, agents):
        masks = masks_at(self.kind, self.t)
        see = np.array([self.t], np.float32)
        if not self.in_info:
            return {a: {"observation": see, "action_mask": masks} for a in agents}, {a: {} for a in agents}
        lists = (
            {"go": masks["go"].tolist(), "say": None if self.t % 2 else masks["say"]} if self.kind == "dict" else masks
        )
        return dict.fromkeys(agents, see), {a: {"action_mask": lists} for a in agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = self.possible_agents[:], 0
        return self._told(self.agents)

    def step(self, actions):
        for action in actions.values():
            if not (self.in_info and self.kind == "dict" and self.t % 2):
                check(self.kind, self.t, action)
        self.t += 1
        agents, done = self.agents, self.t == 7
        self.agents = [] if done else agents
        observations, infos = self._told(agents)
        flags = dict.fromkeys(agents, done)
        return observations, dict.fromkeys(agents, 1.0), flags, dict.fromkeys(agents, False), infos


class OnItems(ActionMasking):
    """The same piece, run on items."""

    def __call__(self, **kwargs):
        return super().__call__(**kwargs)


def config_of(kind, in_info=False, piece=ActionMasking, policies="shared"):
    config = small_config(Strict, env_config={"kind": kind, "in_info": in_info})
    config.env_runners(env_to_module_connector=lambda *_: piece(), num_envs_per_env_runner=2)
    return config.multi_agent(policies=policies)


@pytest.mark.few(4)
@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("piece", [ActionMasking, OnItems])
@pytest.mark.parametrize("in_info", [False, True])
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_no_illegal_action_is_taken(kind, in_info, piece, policies):
    algo = config_of(kind, in_info, piece, policies).build_algo()
    for _ in range(2):
        result = algo.train()
    assert all(np.isfinite(own["policy_loss"]) for own in result["learners"].values())
    algo.evaluate(num_episodes=2)
    algo.random_play(num_episodes=4)


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_the_learner_starts_from_the_distribution_that_acted(kind):
    algo = config_of(kind).build_algo()
    (group,) = algo.learner.make_batch(algo.env_runner.sample(num_timesteps=20)).groups
    out = algo.get_module().forward_train(dict(group))
    dist = algo.get_module().get_train_action_dist_cls().from_logits(out[Columns.ACTION_DIST_INPUTS])
    torch.testing.assert_close(dist.logp(group[Columns.ACTIONS]), group[Columns.ACTION_LOGP], atol=1e-5, rtol=1e-5)
    times = group.rows.get(Columns.T)
    go = group[Columns.ACTIONS]["go"] if kind == "dict" else group[Columns.ACTIONS][2]
    assert (go[times % 3 == 0] == 0).all() and set(go[times % 3 == 1].tolist()) == {1, 2}
    assert torch.isfinite(dist.entropy()).all()


@pytest.mark.parametrize("in_info", [False, True])
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_a_policy_that_was_loaded_obeys_too(kind, in_info, tmp_path):
    config = config_of(kind, in_info)
    config.copy().build_algo().save_to_path(tmp_path / "run")
    policy = load_policy(tmp_path / "run", config=config)
    env = Strict(kind, in_info)
    observations, infos = env.reset()
    policy.reset()
    while env.agents:
        actions = {a: policy(observations[a], info=infos[a], agent_id=a, explore=True) for a in env.agents}
        observations, _, _, _, infos = env.step(actions)


@pytest.mark.few(2)
@pytest.mark.parametrize("in_info", [False, True])
@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_check_env_plays_by_the_masks(kind, in_info):
    report = check_env(Strict, env_config={"kind": kind, "in_info": in_info})
    assert not report.errors, str(report)


def test_wrong_masks_of_parts_are_named():
    seen = spaces.Dict({"observation": SEEN, "action_mask": spaces.Dict({"goo": FLAGS[0]})})
    with pytest.raises(ConfigError, match=r"(?s)'go'.*\b3\b"):
        ActionMasking(seen, DICT)

    class Wrong(Strict):
        def _told(self, agents):
            observations, infos = super()._told(agents)
            return observations, {a: {"action_mask": {"go": [1, 0]}} for a in infos}

    config = small_config(lambda: Wrong(in_info=True)).environment(disable_env_checking=True)
    algo = config.env_runners(env_to_module_connector=lambda *_: ActionMasking()).build_algo()
    with pytest.raises(ConnectorError, match=r"(?s)'u'.*\(2,\).*'go'.*\b3\b"):
        algo.env_runner.sample(num_timesteps=2)
