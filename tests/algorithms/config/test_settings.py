"""The command line reads the declarations of settings, and must not wait for the libraries that runs need."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

from marl_connectors import PPOConfig
from marl_connectors.errors import ConfigError

CODE = """
import sys
import marl_connectors

for name in marl_connectors.__all__:
    if name.endswith("Config") and (name == "DefaultModelConfig" or not name.endswith("ModelConfig")):
        print(repr(getattr(marl_connectors, name)()))
print([name for name in ("torch", "gymnasium", "pettingzoo", "numpy", "ray") if name in sys.modules])
"""


def test_configs_are_made_without_the_libraries_that_runs_need():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    *configs, imported = done.stdout.splitlines()
    assert imported == "[]", done.stderr
    algorithms = ("BC", "DQN", "MADDPG", "MAPPO", "MARWIL", "MATD3", "Mixed", "PPO", "QMIX", "SAC", "VDN")
    assert {f"{name}Config()" for name in ("Algorithm", *algorithms)} < set(configs)


@pytest.mark.parametrize("mode", gymnasium.VectorizeMode)
def test_each_vectorize_mode_of_gymnasium_is_one_of_the_setting(mode):
    assert PPOConfig().env_runners(gym_env_vectorize_mode=mode).gym_env_vectorize_mode == mode.value


def test_the_setting_has_no_other_vectorize_modes():
    choices = ", ".join(repr(mode.value) for mode in gymnasium.VectorizeMode).replace(", 'vector", " or 'vector")
    with pytest.raises(ConfigError, match=f"(?s)gym_env_vectorize_mode.*{choices}.*'threads'"):
        PPOConfig().env_runners(gym_env_vectorize_mode="threads")
