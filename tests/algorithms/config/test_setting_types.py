"""Each setting is declared with what it may be; whatever else it is given, on whichever way, is an error that says so.

The tests walk over all settings of the configs, of the default modules and of the specs, with values of all types.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.command_runs import tree_of
from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import MAPPOConfig, PPOConfig
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.state import config_from_state, config_to_state, to_state
from marl_connectors.algorithms.mappo.rl_module import MAPPOModelConfig
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.algorithms.remote_parts import RemoteParts
from marl_connectors.errors import CheckpointError, ConfigError, LearnerError, MarlConnectorsError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.distributions.default import BOX_DISTRIBUTIONS
from marl_connectors.rl_module.layers import ACTIVATIONS
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.validators import declared, shown

VALUES = [
    *(None, True, False, np.bool_(True), 0, 1, -1, 2, 10**30, 10**400, np.int64(4)),
    *(0.5, 1.5, 8.0, -0.5, 1e300, math.nan, math.inf, -math.inf, np.float32(0.5), np.float64("nan"), 1j),
    *("", "5", "0.5", "auto", "nonsense", "True", b"x", np.str_("auto")),
    *([], [1], ["a"], [None], [[0, 1]], [[0, 0.1], [5, "x"]], [[1, 2], 3], (), ("a", "b"), range(3), {"a", "b"}),
    *({}, {"a": 1}, {1: 2}, {"a": {"lr": "x"}}, {"a": {"no": 1}}, {"a": 3, "b": None}),
    *(np.array([1.0, 2.0]), np.array(4), np.zeros((2, 2)), object(), ..., NotImplemented),
    *(int, len, Exception, lambda: 3, lambda **kwargs: None, spaces.Discrete(2), Path("nowhere"), slice(3)),
]
"""Of all types, for each setting; some are right for some of them."""
IN_MODULES = {"gamma", "lr", "grad_clip", "num_epochs", "clip_param", "entropy_coeff", "use_kl_loss"}
IN_EVALUATIONS = {"explore", "num_envs_per_env_runner", "num_env_workers", "callbacks_class", "policy_mapping_fn"}
CONFIGS = [PPOConfig, MAPPOConfig]
SETTINGS = {cls: list(declared(cls)) for cls in CONFIGS}


def sections(cls):
    """``{setting: (method, argument)}``."""
    found = {}
    for method in dir(cls):
        signature = getattr(getattr(cls, method), "__signature__", None)
        for argument in [] if signature is None else signature.parameters:
            found[f"callbacks_{argument}" if argument.startswith("on_") else argument] = (method, argument)
    return {name: where for name, where in found.items() if name not in ("self", "framework", "model_config_dict")}


def ways(cls, name):
    """All ways to give a setting a value, each as a function that gives what is kept."""

    def section(value):
        method, argument = sections(cls)[name]
        return getattr(getattr(cls(), method)(**{argument: value}), name)

    def attribute(value):
        config = cls()
        setattr(config, name, value)
        return getattr(config, name)

    def change(value):
        config = cls()
        config.change(**{name: value})
        return getattr(config, name)

    def of_a_module(value):
        given = {"a": {name: value}}
        config = cls().rl_module(algorithm_config_overrides_per_module=given)
        return config.algorithm_config_overrides_per_module["a"][name]

    def in_evaluations(value):
        return cls().evaluation(evaluation_config={name: value}).evaluation_config[name]

    yield section
    yield attribute
    yield change
    yield lambda value: getattr(cls().update_from_dict({name: value}), name)
    yield lambda value: cls.overrides(**{name: value})[name]
    if name in IN_MODULES:
        yield of_a_module
    if name in IN_EVALUATIONS:
        yield in_evaluations


def outcome(way, value, name):
    """What is kept, or ``"refused"`` by an error that says on one line which setting it was and what may be."""
    try:
        return repr(way(copy.copy(value)))
    except ConfigError as error:
        text = str(error)
        assert name in text and "\n" not in text, text
        assert any(words in text for words in ("expected", "unknown setting", "the function takes", "only")), text
        return "refused"


def test_every_setting_says_what_it_may_be():
    for cls in (AlgorithmConfig, PPOConfig, MAPPOConfig, DefaultModelConfig, MAPPOModelConfig, RLModuleSpec):
        assert [name for name, validator in declared(cls).items() if validator is None] == []
    assert None not in declared(MultiRLModuleSpec).values()
    for cls in CONFIGS:
        assert set(cls().to_dict()) == set(declared(cls)) == set(sections(cls))
    for cls in (DefaultModelConfig, MAPPOModelConfig, RLModuleSpec, MultiRLModuleSpec):
        assert [field.name for field in dataclasses.fields(cls)] == list(declared(cls))


def test_defaults_are_kept_as_they_are():
    for make in (AlgorithmConfig, PPOConfig, MAPPOConfig, DefaultModelConfig, MAPPOModelConfig, RLModuleSpec):
        for name, validator in declared(make).items():
            default = getattr(make, name)
            kept = validator.keep(default)
            assert kept == default and type(kept) is type(default), name


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cls", "name"), [*((PPOConfig, name) for name in SETTINGS[PPOConfig]), (MAPPOConfig, "critic_obs")]
)
def test_a_value_is_kept_or_refused_alike_on_all_ways(cls, name):
    for value in VALUES:
        if name == "policies" and isinstance(value, str):  # in .multi_agent() a text stands for a mapping
            continue
        outcomes = {outcome(way, value, name) for way in ways(cls, name)}
        assert len(outcomes) == 1, f"{shown(value)}: {outcomes}"


def is_an_own_error_of(name, value):
    """Whether the value is a function of the user's that fails for itself, whose error shows as it is."""
    return callable(value) and (name.endswith("_connector") or name.startswith("callbacks_on") or "initializer" in name)


def build(config, train):
    """Errors of the library's own are fine, others are not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a value leads to may be worth a warning
        try:
            algo = config.build_algo()
            if train:
                algo.train()
            algo.stop()
        except MarlConnectorsError as error:
            return str(error)
    return "built"


@pytest.fixture
def actors_here(monkeypatch):
    """Env runners are actors of a Ray in this process. Learners are not started, as they would wait for each other."""
    use_fake_ray(monkeypatch)
    learners = SimpleNamespace(close=lambda: None, stop=lambda: None)
    monkeypatch.setattr(RemoteParts, "learners", lambda parts, learner, blueprint: learners)


def accepted(cls, name, env):
    for value in VALUES:
        if is_an_own_error_of(name, value) or (name == "num_env_workers" and isinstance(value, np.integer)):
            continue  # workers take seconds to start
        config = small_config(env, algorithm=cls)
        try:
            config.update_from_dict({name: value})
        except ConfigError:
            continue
        yield config, value


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SETTINGS[PPOConfig])
def test_what_is_kept_builds_or_is_an_error_of_the_library(name, actors_here):
    for config, _ in accepted(PPOConfig, name, "CartPole-v1"):
        build(config, train=False)


@pytest.mark.slow
@pytest.mark.parametrize("cls", CONFIGS)
@pytest.mark.parametrize("name", SETTINGS[MAPPOConfig])
def test_what_is_kept_trains_or_is_an_error_of_the_library(cls, name, actors_here):
    if name not in SETTINGS[cls]:
        pytest.skip("a setting of MAPPO's")
    for config, _ in accepted(cls, name, LifeEnv):
        build(config, train=not config.num_learners)


# Settings of modules.

MODEL_SPACES = [
    (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))),
    (spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Discrete(2)),
]


@pytest.mark.few(21)
@pytest.mark.parametrize("name", declared(MAPPOModelConfig))
def test_settings_of_the_default_modules_are_checked(name):
    for cls in (DefaultModelConfig, MAPPOModelConfig):
        if name not in declared(cls):
            continue

        def attribute(value, cls=cls):
            config = cls()
            setattr(config, name, value)
            return getattr(config, name)

        each = [
            lambda v, c=cls: getattr(c(**{name: v}), name),
            lambda v, c=cls: getattr(c.of({name: v}), name),
            attribute,
        ]
        for value in VALUES:
            outcomes = {outcome(way, value, name) for way in each}
            assert len(outcomes) == 1, f"{shown(value)}: {outcomes}"


@pytest.mark.few(14)
@pytest.mark.parametrize("name", declared(DefaultModelConfig))
def test_a_default_module_builds_or_is_an_error_of_the_library(name):
    own = {"fcnet_hiddens": (4,), "conv_filters": [[2, 3, 2]], "lstm_cell_size": 2, "gru_cell_size": 2}
    initializers = [{}, {f"{name.removesuffix('_kwargs')}": "constant_"}] if name.endswith("_kwargs") else [{}]
    memory = {"use_lstm": True} if name.startswith("lstm") else {"use_gru": True} if name.startswith("gru") else {}
    for value in VALUES if "initializer" not in name else [*VALUES, "eye_", "dirac_", "sparse_", "constant"]:
        if is_an_own_error_of(name, value):
            continue
        for initializer in initializers:
            try:
                config = DefaultModelConfig(**{**own, **memory, **initializer, name: value})
            except ConfigError:
                continue
            for observations, actions in MODEL_SPACES:
                with contextlib.suppress(ConfigError):
                    DefaultPPORLModule(observations, actions, model_config=config)


@pytest.mark.few(1)
@pytest.mark.parametrize("cls", [RLModuleSpec, MultiRLModuleSpec])
def test_specs_of_modules_are_checked(cls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in declared(cls):
        for value in VALUES:
            spec = cls()

            def attribute(v, spec=spec, name=name):
                setattr(spec, name, v)
                return getattr(spec, name)

            outcomes = {
                outcome(attribute, value, name),
                outcome(lambda v, n=name: getattr(cls(**{n: v}), n), value, name),
            }
            assert len(outcomes) == 1, f"{name} {shown(value)}: {outcomes}"
            if outcomes != {"refused"}:
                build(small_config("CartPole-v1").rl_module(rl_module_spec=spec), train=False)


def test_names_of_activations_and_distributions_are_those_that_there_are():
    options = declared(DefaultModelConfig)
    for name in ACTIVATIONS:
        assert options["fcnet_activation"].keep(name) == name
    for name in BOX_DISTRIBUTIONS:
        assert options["action_distribution"].keep(name) == name
    assert [len(options[name].expected.split("'")) // 2 for name in ("fcnet_activation", "action_distribution")] == [
        len(ACTIVATIONS),
        len(BOX_DISTRIBUTIONS),
    ]


# Several at once, and what is kept.


def test_a_section_sets_all_of_its_settings_or_none():
    config = PPOConfig()
    with pytest.raises(ConfigError, match=r"(?s)^PPOConfig.training.*\bgamma\b.*\b2\b"):
        config.training(lr=0.5, gamma=2)
    assert config.lr == 5e-5


def test_who_was_given_the_value_speaks():
    config = PPOConfig()
    with pytest.raises(ConfigError, match=r"(?s)^PPOConfig.*\bgamma\b.*'0.9'"):
        config.gamma = "0.9"
    with pytest.raises(ConfigError, match=r"(?s)^PPOConfig.update_from_dict.*\bgamma\b"):
        config.update_from_dict({"gamma": None})
    with pytest.raises(ConfigError, match=r"(?s)^model_config.*max_seq_len.*\b0\b"):
        DefaultModelConfig(max_seq_len=0)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("num_epochs", np.int64(4), 4),
        ("gamma", np.float64(0.5), 0.5),
        ("clip_param", 1, 1.0),
        ("vf_clip_param", math.inf, math.inf),
        ("render_env", np.bool_(False), False),
        ("lr", np.array([[0, 0.5], [10, 0.25]]), [[0.0, 0.5], [10.0, 0.25]]),
        ("batch_mode", np.str_("complete_episodes"), "complete_episodes"),
        ("env_config", None, {}),
        ("wrappers", ("frame_skip_v0:4",), ["frame_skip_v0:4"]),
        ("policies", {"a": 1}.keys(), ["a"]),
    ],
)
def test_values_are_kept_as_those_of_python(name, given, kept):
    config = PPOConfig().update_from_dict({name: given})
    assert getattr(config, name) == kept
    assert type(getattr(config, name)) is type(kept)


def test_a_name_is_needed_where_a_section_has_no_first_setting():
    with pytest.raises(ConfigError, match=r"(?s)PPOConfig.training.*gamma="):
        PPOConfig().training(0.5)
    with pytest.raises(ConfigError, match=r"(?s)PPOConfig.environment.*'env'"):
        PPOConfig().environment("CartPole-v1", env="CartPole-v1")


def test_what_changes_inside_of_a_setting_is_found_before_the_run_is_built():
    config = small_config("CartPole-v1").evaluation(evaluation_config={"explore": True})
    config.evaluation_config["explore"] = "yes"
    with pytest.raises(ConfigError, match=r"(?s)PPOConfig.*evaluation_config.*explore.*'yes'"):
        config.build_algo()


def test_a_subclass_declares_settings_of_its_own_or_simply_has_them():
    from helpers.own_settings import Curious

    config = Curious().update_from_dict({"bonus": 1, "note": 3, "anything": object()})
    assert config.bonus == 1.0
    with pytest.raises(ConfigError, match=r"(?s)^Curious.*\bbonus\b.*-1"):
        config.bonus = -1
    config.rl_module(algorithm_config_overrides_per_module={"a": {"bonus": 2, "note": "x"}})
    assert config.get_config_for_module("a").bonus == 2.0
    assert (Curious().lr, Curious().gamma) == (0.5, 0.9), "the defaults are others, the ranges are PPO's"
    with pytest.raises(ConfigError, match=r"\blr\b"):
        Curious().training(lr=-1)
    with pytest.raises(ConfigError, match=r"\bgamma\b"):
        Curious().training(gamma=2)


# From elsewhere.


def test_arguments_of_a_run_that_goes_on_are_checked_alike():
    algo = small_config(LifeEnv).multi_agent(policies="independent").build_algo()
    for call, words in (
        (lambda: algo.evaluate(num_episodes="2"), r"(?s)PPO.*num_episodes.*'2'"),
        (lambda: algo.evaluate(seed=-1), r"(?s)\bseed\b.*-1"),
        (lambda: algo.evaluate(explore="yes"), r"(?s)explore.*'yes'"),
        (lambda: algo.evaluate(policy_mapping_fn=lambda agent: "a"), r"(?s)policy_mapping_fn.*.agent"),
        (lambda: algo.add_module(3), r"(?s)add_module.*module_id.*\b3\b"),
        (lambda: algo.add_module("d", DefaultPPORLModule), r"(?s)add_module.*module_spec.*RLModuleSpec"),
        (lambda: algo.add_module("d", config_overrides=3), r"{module_id: {setting: value}}"),
        (lambda: algo.add_module("d", new_should_module_be_updated="d"), "new_should_module_be_updated"),
        (lambda: algo.set_policy_mapping_fn(3), r"(?s)set_policy_mapping_fn.*policy_mapping_fn"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
    assert list(algo.rl_module) == ["a", "b", "c"]
    algo.stop()


def test_a_learner_pipeline_without_pieces_is_named():
    algo = small_config("CartPole-v1").learners(add_default_connectors_to_learner_pipeline=False).build_algo()
    with pytest.raises(LearnerError, match="pipeline"):
        algo.train()
    algo.stop()


@pytest.mark.parametrize("text", ["lr=fast", "gamma=2", "num_epochs=true", "minibatch_size=8.5", "grad_clip_by=norms"])
def test_the_command_line_goes_by_the_same_table(text):
    with pytest.raises(ConfigError, match=f"(?s)^--set.*{text.partition('=')[0]}"):
        tree_of("CartPole-v1", "--set", text)


@pytest.mark.parametrize(("name", "value"), [("gamma", 5), ("num_epochs", "many"), ("policies", 3), ("lr", [[1, 1]])])
def test_a_checkpoint_with_a_value_that_cannot_be_is_damaged(name, value):
    state = config_to_state(small_config("CartPole-v1"))
    assert config_from_state(state).to_dict() == small_config("CartPole-v1").to_dict()
    state.settings[name] = to_state(value, name)
    with pytest.raises(CheckpointError, match=f"(?s)PPOConfig.*{name}"):
        config_from_state(state)
