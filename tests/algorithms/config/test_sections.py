"""From the one declaration of a setting follow its method, the method's text, and where its value may differ."""

from __future__ import annotations

import inspect
import json
import pydoc
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from marl_connectors import (
    AlgorithmConfig,
    BCConfig,
    DQNConfig,
    MADDPGConfig,
    MAPPOConfig,
    MARWILConfig,
    MATD3Config,
    MixedConfig,
    PPOConfig,
    QMIXConfig,
    SACConfig,
    VDNConfig,
)
from marl_connectors.algorithms.algorithm_config import NotProvided
from marl_connectors.algorithms.config.sections import Chain, chain, fixed_settings, sections
from marl_connectors.algorithms.config.state import config_from_state, config_to_state
from marl_connectors.algorithms.ppo.config import PPOTraining
from marl_connectors.cli.training_run import check_changeable
from marl_connectors.errors import ConfigError
from marl_connectors.validators import Given, dict_of, integer, number, section, setting, settings_of

CONFIGS = [
    *(AlgorithmConfig, PPOConfig, MAPPOConfig, DQNConfig, VDNConfig, QMIXConfig, SACConfig, MADDPGConfig, MATD3Config),
    *(BCConfig, MARWILConfig, MixedConfig),
]


@section
class CuriousTraining(PPOTraining):
    """Sets how the modules learn, and how curious they are."""

    lr = 0.5
    curiosity: float = setting(number(min=0), "The weight of the bonus.", default=0.25)
    depth: int = setting(integer(min=1), "The depth.", default=2, fixed=True, per_module=False)
    table: dict[str, Any] = setting(dict_of(), "A table.", default={}, converter=Given[Mapping[str, Any]])


class CuriousConfig(PPOConfig, CuriousTraining):
    """A config with a section of its own, and another default in the class."""

    gamma = 0.75
    training = chain(CuriousTraining)


class LikeRLlibsConfig(PPOConfig):
    """A config as one writes it for RLlib."""

    def __init__(self, algo_class=None):
        super().__init__(algo_class=algo_class)
        self.bonus = 1.0

    def training(self, *, bonus=NotProvided, **kwargs):
        super().training(**kwargs)
        if bonus is not NotProvided:
            self.bonus = bonus
        return self


@pytest.mark.parametrize("cls", CONFIGS)
def test_a_section_shows_its_settings_with_type_default_and_text(cls):
    for name, settings in sections(cls).items():
        if not isinstance(inspect.getattr_static(cls, name), Chain):
            continue  # MixedConfig.training is a method that raises an error
        method, config = getattr(cls, name), cls()
        signature, text = inspect.signature(method), inspect.getdoc(method)
        assert list(signature.parameters) == ["self", *settings]
        assert " object at 0x" not in str(signature)
        for argument, own in settings.items():
            described = " ".join(text.split())
            assert own.doc.endswith(".") and f" {argument}: {own.doc} Accepts {own.validator.expected}." in described
            if own.name in vars(config):
                parameter = signature.parameters[argument]
                assert parameter.default == getattr(config, own.name), argument
                assert parameter.annotation is not parameter.empty


def test_help_has_the_names_types_and_defaults_of_the_algorithm():
    text = pydoc.plain(pydoc.render_doc(PPOConfig.training))
    assert "lr: Schedule = 5e-05, grad_clip: float | None = None" in text and "-> Self" in text
    assert "    clip_param: How far the probability ratio may move from 1. Accepts a number from 0 to infinity." in text
    assert "rollout_fragment_length: int | str = 100" in str(inspect.signature(MADDPGConfig.env_runners))


def test_every_setting_of_a_config_can_be_set_in_a_section():
    for cls in CONFIGS:
        in_sections = {own.name for settings in sections(cls).values() for own in settings.values()}
        assert in_sections - {"framework", "model_config_dict"} == set(settings_of(cls)) == set(cls().to_dict())


def test_an_argument_that_is_not_given_leaves_its_setting():
    config = PPOConfig().training(lr=0.5, gamma=0.25).training(gamma=NotProvided).training()
    assert (config.lr, config.gamma) == (0.5, 0.25)


def test_a_section_of_a_users_own_has_the_inherited_settings_too():
    config = CuriousConfig().training(curiosity=1, clip_param=0.5).environment("CartPole-v1")
    assert (config.curiosity, config.clip_param, config.lr, config.gamma) == (1.0, 0.5, 0.5, 0.75)
    assert type(config) is CuriousConfig and PPOConfig().lr == 5e-5
    with pytest.raises(ConfigError, match=r"(?s)^CuriousConfig.training.*curiosity.*-1"):
        config.training(curiosity=-1)
    with pytest.raises(ConfigError, match=r"(?s)'curiositi'.*'curiosity'"):
        config.training(curiositi=1)
    with pytest.raises(ConfigError, match=r"training\(gamma=..., ...\)"):
        config.training(0.5)
    assert config_from_state(config_to_state(config)).to_dict() == config.to_dict()
    assert "curiosity" in inspect.signature(CuriousConfig.training).parameters


def test_a_config_has_to_inherit_the_settings_that_its_section_sets():
    class Forgetful(PPOConfig):
        training = chain(CuriousTraining)

    assert Forgetful().training(lr=0.25).lr == 0.25
    with pytest.raises(ConfigError, match=r"(?s)'curiosity'.*CuriousTraining.*Forgetful"):
        Forgetful().training(curiosity=1)


def test_what_a_setting_says_of_itself_holds():
    config, of_a = CuriousConfig(), {"a": {"curiosity": 3}}
    assert config.rl_module(algorithm_config_overrides_per_module=of_a).get_config_for_module("a").curiosity == 3.0
    with pytest.raises(ConfigError, match=r"(?s)'depth'.*'a'"):
        config.rl_module(algorithm_config_overrides_per_module={"a": {"depth": 3}})
    assert fixed_settings(CuriousConfig) == fixed_settings(PPOConfig) | {"depth"}
    check_changeable({"training.curiosity": 1, "training.lr": 1, "env_runners.explore": False}, CuriousConfig)
    for place, option in (
        ("training.depth", "--set training.depth"),
        ("learners.learner_class", "--set learners.learner_class"),
        ("environment.env", "ENV"),
        ("rl_module.model_config.use_lstm", "--model"),
    ):
        with pytest.raises(ConfigError, match=f"(?s)--resume.*{option}"):
            check_changeable({place: 1}, CuriousConfig)


def test_the_defaults_of_one_config_are_not_those_of_another():
    CuriousConfig().table["a"] = 1
    DQNConfig().replay_buffer_config["capacity"] = 1
    assert CuriousConfig().table == {} and DQNConfig().replay_buffer_config["capacity"] == 50_000


def test_a_config_as_one_writes_it_for_rllib_works():
    config = LikeRLlibsConfig().training(bonus=2.0, lr=0.5).debugging(seed=1)
    assert (config.bonus, config.lr, config.seed) == (2.0, 0.5, 1)
    assert LikeRLlibsConfig().training(lr=0.25).bonus == 1.0
    with pytest.raises(ConfigError, match=r"(?s)^LikeRLlibsConfig.training.*'bonuss'"):
        config.training(bonuss=1)


SCRIPT = """
from marl_connectors import PPOConfig

config = PPOConfig().environment("CartPole-v1").multi_agent(policies="shared", policy_mapping_fn="shared")
config = config.training(lr=3e-4, clip_param=0.2).offline_data(input_="folder").callbacks(on_episode_end=None)
reveal_type(config)
reveal_type(config.clip_param)
reveal_type(config.input_)
config.training(clip_parm=0.2)
config.training(clip_param="0.2")
PPOConfig(gamma=0.5)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_editors_know_the_settings_and_their_types(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        ["pyright", "--outputjson", tmp_path / "script.py"], capture_output=True, text=True, check=False
    )
    found = [(d["range"]["start"]["line"] + 1, d["message"]) for d in json.loads(done.stdout)["generalDiagnostics"]]
    types = [text for _, text in found if text.startswith("Type of")]
    assert types == [
        'Type of "config" is "PPOConfig"',
        'Type of "config.clip_param" is "float"',
        'Type of "config.input_" is "list[str] | None"',
    ]
    assert [line for line, text in found if not text.startswith("Type of")] == [9, 10, 11]
