"""Distributions that are bounded need actions that are stretched to their space, whatever the algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, LifeEnv
from marl_connectors import MADDPGConfig, MARWILConfig, PPOConfig, SACConfig
from marl_connectors.algorithms.action_bounds import check_action_bounds
from marl_connectors.errors import ConfigError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.rl_module import RLModuleSpec

BETA, GAUSSIAN = ({"action_distribution": name} for name in ("beta", "gaussian"))
BOUNDED = [
    (PPOConfig, BETA),
    (PPOConfig, DefaultModelConfig(action_distribution="squashed_gaussian")),
    (MARWILConfig, BETA),
    (SACConfig, None),
    (SACConfig, DefaultModelConfig()),
    (MADDPGConfig, None),
    (MADDPGConfig, DefaultModelConfig()),
]


def check(config_class, model_config, space, *, stretched=False):
    config = config_class().environment(normalize_actions=stretched)
    spec = RLModuleSpec(
        config.get_default_rl_module_class(), observation_space=BOX, action_space=space, model_config=model_config
    )
    if config_class is MADDPGConfig:  # its specs need an environment
        check_action_bounds(config, spec, config.get_default_rl_module_class(), None)
    else:
        config.complete_rl_module_spec(spec, None, None)


@pytest.mark.parametrize(("config_class", "model_config"), BOUNDED)
@pytest.mark.parametrize("nested", [False, True])
def test_bounded_distributions_need_actions_that_are_stretched(config_class, model_config, nested):
    def space(low):
        box = spaces.Box(low, 1.0, (2,))
        return spaces.Dict({"a": box, "b": spaces.Discrete(2)}) if nested else box

    with pytest.raises(ConfigError, match=rf"(?s){config_class.__name__}.*\(-1, 1\).*normalize_actions=False.*Box"):
        check(config_class, model_config, space(0.0))
    check(config_class, model_config, space(-1.0))
    check(config_class, model_config, space(0.0), stretched=True)


@pytest.mark.parametrize(("config_class", "model_config"), [(PPOConfig, None), (SACConfig, GAUSSIAN)])
def test_unbounded_distributions_cover_all_spaces(config_class, model_config):
    check(config_class, model_config, spaces.Box(-np.inf, np.inf, (2,)))


@pytest.mark.parametrize("config_class", [SACConfig, MADDPGConfig])
def test_a_run_is_checked(config_class):
    own = {"spaces_of": dict.fromkeys("abc", (BOX, spaces.Box(0, 1, (2,))))}
    config = config_class().environment(LifeEnv, env_config=own, normalize_actions=False)
    with pytest.raises(ConfigError, match="normalize_actions=False"):
        config.multi_agent(policies="shared").build_algo()
