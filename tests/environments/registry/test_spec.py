"""What a run knows about its environment before it starts."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import small_config
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.errors import ConfigError
from marl_envs import last_stone_v0, match_v0

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
@pytest.mark.parametrize(
    ("env", "agent_id", "hint"),
    [
        (
            match_v0.parallel_env,
            "agnt_0",
            r"'agnt_0'.*parallel_env.*'agent_0'",
        ),
        (match_v0.parallel_env, 7, r"agent 7.*parallel_env.*agent_0.*agent_1"),
        (last_stone_v0.env, "playr_0", r"'playr_0'.*'player_0'"),
        ("CartPole-v1", "agent_0", r"'agent_0'.*CartPole-v1.*default_agent"),
    ],
    ids=["parallel", "number", "turns", "single"],
)
def test_a_space_for_an_agent_that_does_not_exist_is_named(kind, env, agent_id, hint):
    config = small_config(env).environment(**{kind: {agent_id: BOX}})
    with pytest.raises(ConfigError, match=f"(?s)^{kind}.*{hint}"):
        config.build_algo()


def test_spaces_replace_those_of_the_agents_that_are_named():
    own = EnvSpec(match_v0.parallel_env, {}).agent_spaces("agent_1")
    spec = EnvSpec(match_v0.parallel_env, {}, observation_space={"agent_0": BOX})
    assert spec.agent_spaces("agent_0") == (BOX, own[1])
    assert spec.agent_spaces("agent_1") == own


class Nameless(match_v0.MatchEnv):
    """Does not name its agents before they are there."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.possible_agents = []

    def reset(self, seed=None, options=None):
        self.possible_agents = ["agent_0", "agent_1"]
        try:
            return super().reset(seed=seed, options=options)
        finally:
            self.possible_agents = []


def test_agents_that_may_come_later_have_spaces_if_the_environment_does_not_name_its_agents():
    spec = EnvSpec(Nameless, {"n_agents": 2}, action_space={"later": spaces.Discrete(7)}, observation_space=BOX)
    assert spec.agent_ids == ["agent_0", "agent_1"]
    assert spec.agent_spaces("later") == (BOX, spaces.Discrete(7))


def test_a_single_agent_has_one_space(recwarn):
    wide = spaces.Box(-9.0, 9.0, (4,), np.float32)
    for given in (wide, {"default_agent": wide}):
        assert EnvSpec("CartPole-v1", {}, observation_space=given).space_of_all(0) == wide
    assert isinstance(EnvSpec(lambda config: gym.make("CartPole-v1"), {}).space_of_all(1), spaces.Discrete)
