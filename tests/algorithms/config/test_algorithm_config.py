"""Settings are checked when they are set, and errors name the closest right one."""

from __future__ import annotations

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import Callbacks, MixedConfig, PPOConfig
from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.algorithms.config.state import config_from_state, config_to_state
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.learner.learner import Learner
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.validators import integer, setting, settings_of


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("section", "setting", "hint"),
    [
        ("training", "gama", "gamma"),
        ("training", "train_batch_size_per_lerner", "train_batch_size_per_learner"),
        ("env_runners", "num_env_per_env_runner", "num_envs_per_env_runner"),
        ("multi_agent", "policy_maping_fn", "policy_mapping_fn"),
        ("environment", "env_confg", "env_config"),
        ("evaluation", "evaluation_intervall", "evaluation_interval"),
    ],
)
def test_an_unknown_setting_names_the_closest_known_one(section, setting, hint):
    with pytest.raises(ConfigError) as caught:
        getattr(PPOConfig(), section)(**{setting: 1})
    assert f"PPOConfig.{section}: unknown setting {setting!r}. Did you mean {hint!r}?" in one_line(caught)
    with pytest.raises(ConfigError, match=f"'{hint}'"):
        PPOConfig().update_from_dict({setting: 1})


def test_sections_chain_and_store_under_their_own_names():
    config = PPOConfig().training(lr=0.1, clip_param=0.2).env_runners(num_envs_per_env_runner=3).debugging(seed=4)
    assert (config.lr, config.clip_param, config.num_envs_per_env_runner, config.seed) == (0.1, 0.2, 3, 4)
    assert config.gamma == 0.99, "what is not named stays as it is"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda config: config.framework("tf2"), r"(?s)PPOConfig.framework.*framework.*'torch'.*'tf2'"),
        (lambda config: config.framework("torch", 1), "'framework'"),
        (lambda config: config.framework(torch_compile_learner=True), "'torch_compile_learner'"),
        (lambda config: config.env_runners(double_buffering=True), "'double_buffering'"),
    ],
)
def test_there_is_one_framework_and_no_setting_that_is_gone(call, words):
    assert PPOConfig().framework("torch").to_dict() == PPOConfig().to_dict()
    with pytest.raises(ConfigError, match=words):
        call(PPOConfig())


def test_a_setting_that_is_not_known_is_named():
    state = config_to_state(PPOConfig().environment("CartPole-v1"))
    state.settings["stepps"] = 1
    with pytest.raises(CheckpointError, match="'stepps'"):
        config_from_state(state)


def test_the_defaults_are_those_that_users_expect():
    config = PPOConfig()
    expected = {
        "lr": 5e-5,
        "gamma": 0.99,
        "lambda_": 1.0,
        "num_epochs": 30,
        "minibatch_size": 128,
        "train_batch_size_per_learner": 4000,
        "clip_param": 0.3,
        "vf_clip_param": 10.0,
        "normalize_actions": True,
    }
    assert {name: getattr(config, name) for name in expected} == expected


def test_a_frozen_config_cannot_be_changed_but_its_copy_can():
    config = PPOConfig().training(lr=0.1)
    config.freeze()
    with pytest.raises(ConfigError, match=r"(?s)'lr'.*.copy\(\)"):
        config.training(lr=0.2)
    assert config.copy().training(lr=0.2).lr == 0.2
    assert config.copy(copy_frozen=False).training(lr=0.2).lr == 0.2
    with pytest.raises(ConfigError, match="frozen"):
        PPOConfig().copy(copy_frozen=True).training(lr=0.2)
    assert config.lr == 0.1


def test_a_setting_of_a_frozen_config_is_changed_in_the_words_of_the_caller():
    plain, mixed = PPOConfig(), MixedConfig().algorithms({"*": PPOConfig()})
    for config in (plain, mixed):
        config.freeze()
        config.change("Me", steps=5)
        with pytest.raises(ConfigError, match=r"(?s)^Me.*\bsteps\b.*\b0\b"):
            config.change("Me", steps=0)
        with pytest.raises(ConfigError, match=f"(?s)^{type(config).__name__}.change.*'stepps'"):
            config.change(stepps=1)
        assert config.steps == config.get_config_for_module("a").steps == 5


@pytest.mark.parametrize("name", settings_of(RunSettings))
def test_settings_of_a_run_differ_neither_for_modules_nor_in_evaluations(name):
    value = {name: getattr(RunSettings, name)}
    with pytest.raises(ConfigError, match=repr(name)):
        PPOConfig().rl_module(algorithm_config_overrides_per_module={"a": value})
    with pytest.raises(ConfigError, match=repr(name)):
        PPOConfig().evaluation(evaluation_config=value)


def test_a_users_config_may_declare_a_setting_of_the_run_again():
    class LongRuns(PPOConfig):
        steps: int = setting(integer(min=1000), "The end of the run.", default=5000)
        video = "gif"

    config = LongRuns().run(eval_episodes=2)
    assert (config.steps, config.video, config.eval_episodes) == (5000, "gif", 2)
    with pytest.raises(ConfigError, match=r"(?s)LongRuns.run.*\bsteps\b"):
        config.run(steps=10)

    class Confused(PPOConfig):
        def __init__(self):
            super().__init__()
            self.track = True

    with pytest.raises(ConfigError, match=r"(?s)Confused.*\btrack\b"):
        Confused()


def test_a_copy_shares_no_dict_with_its_original():
    config = PPOConfig().environment("x", env_config={"size": 1})
    config.copy().env_config["size"] = 2
    assert config.env_config == {"size": 1}


def test_the_config_of_an_algorithm_is_frozen_and_the_users_is_not():
    config = small_config("CartPole-v1")
    algo = config.build_algo()
    with pytest.raises(ConfigError, match="frozen"):
        algo.config.training(lr=1.0)
    with pytest.raises(ConfigError, match="'lr'"):
        algo.config.lr = 1.0
    config.training(lr=1.0)
    assert algo.config.lr == 0.01


class Needy(Callbacks):
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gamma": 1.5}, r"(?s)\bgamma\b.*1.5"),
        ({"lr": "fast"}, r"(?s)\blr\b.*'fast'"),
        ({"lr": -1}, r"(?s)\blr\b.*-1"),
        ({"lr": [[0, 0.1], [10, -0.1]]}, r"\blr\b"),
        ({"lr": [[5, 0.1]]}, r"(?s)\blr\b.*\[\[5, 0.1\]\]"),
        ({"entropy_coeff": [[0, 1], [0, 2]]}, "entropy_coeff"),
        ({"num_epochs": 0}, r"(?s)num_epochs.*\b0\b"),
        ({"num_epochs": True}, r"(?s)num_epochs.*True"),
        ({"minibatch_size": 0}, r"(?s)minibatch_size.*\b0\b"),
        (
            {"train_batch_size_per_learner": 2.5},
            r"(?s)train_batch_size_per_learner.*2.5",
        ),
        ({"rollout_fragment_length": 0}, r"(?s)rollout_fragment_length.*'auto'.*\b0\b"),
        ({"episode_lookback_horizon": -1}, r"(?s)episode_lookback_horizon.*-1"),
        ({"grad_clip": 0.0}, r"(?s)grad_clip.*infinity.*0.0"),
        ({"grad_clip_by": "globalnorm"}, r"(?s)grad_clip_by.*'globalnorm'.*'global_norm'"),
        ({"batch_mode": "complete"}, r"(?s)batch_mode.*'truncate_episodes'.*'complete_episodes'.*'complete'"),
        ({"lambda_": -0.1}, r"(?s)lambda_.*-0.1"),
        ({"clip_param": "wide"}, r"(?s)clip_param.*infinity.*'wide'"),
        ({"seed": -1}, r"(?s)\bseed\b.*-1"),
        ({"num_env_runners": -1}, r"(?s)num_env_runners.*-1"),
        ({"num_learners": "auto"}, r"(?s)num_learners.*'auto'"),
        ({"num_cpus_per_env_runner": -0.5}, r"(?s)num_cpus_per_env_runner.*-0.5"),
        ({"num_cpus_per_learner": "all"}, r"(?s)num_cpus_per_learner.*'auto'.*'all'"),
        (
            {"custom_resources_per_env_runner": {"tpu": 0}},
            r"(?s)custom_resources_per_env_runner.*{'tpu': 0}",
        ),
        (
            {"merge_env_runner_states": "always"},
            r"(?s)merge_env_runner_states.*'training_only'.*'always'",
        ),
        (
            {"env_runner_restore_timeout_s": None},
            r"(?s)env_runner_restore_timeout_s.*None",
        ),
        ({"ray_address": 6379}, r"(?s)ray_address.*6379"),
        (
            {"evaluation_parallel_to_training": True},
            r"(?s)evaluation_parallel_to_training=True.*.evaluation.*evaluation_num_env",
        ),
        (
            {"evaluation_num_env_runners": 3, "evaluation_duration": 2},
            r"(?s)evaluation_num_env_runners=3.*\b2\b",
        ),
        (
            {"render_env": True, "num_env_runners": 1},
            "render_env=True",
        ),
        ({"policies": "shared"}, r"(?s)policies.*'shared'.*\['shared'\].*.multi_agent"),
        (
            {"learner_class": Learner},
            r"(?s)learner_class.*Learner.*compute_loss",
        ),
        ({"rl_module_spec": RLModule}, r"(?s)rl_module_spec.*RLModuleSpec.*RLModuleSpec\(RLModule\)"),
        ({"callbacks_class": Needy}, r"(?s)callbacks_class.*Needy.*'x'"),
        (
            {"policy_mapping_fn": lambda agent: "a"},
            r"(?s)policy_mapping_fn.*\(agent_id, episode\)",
        ),
        ({"env_to_module_connector": lambda *, a: a}, "env_to_module_connector"),
        ({"env": None}, r".environment\(env=...\)"),
        ({"model_config": {"fcnet_hidens": [4]}}, r"(?s)'fcnet_hidens'.*'fcnet_hiddens'"),
    ],
)
def test_a_bad_value_is_named_with_what_may_be(settings, words):
    with pytest.raises(ConfigError, match=words) as caught:
        small_config("CartPole-v1").update_from_dict(settings).build_algo()
    one_line(caught)


def test_a_spec_for_a_module_that_nobody_has_is_named():
    from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
    from marl_connectors.rl_module.rl_module import RLModuleSpec

    spec = MultiRLModuleSpec(rl_module_specs={"wolf": RLModuleSpec()})
    config = small_config("marl_envs.match_v0").multi_agent(policies="shared").rl_module(rl_module_spec=spec)
    with pytest.raises(ConfigError, match=r"(?s)'wolf'.*\['default_policy'\]"):
        config.build_algo()


def test_overrides_of_a_module_are_named_with_it():
    config = small_config(LifeEnv).multi_agent(policies="independent")
    with pytest.raises(ConfigError, match=r"(?s)PPOConfig.rl_module.*algorithm_config_.*'a'.*clip_param"):
        config.rl_module(algorithm_config_overrides_per_module={"a": {"clip_param": -1.0}})


def test_overrides_of_a_module_leave_the_config_of_all_others_alone():
    config = PPOConfig().training(lr=0.1, gamma=0.5).multi_agent(policies="independent")
    config.rl_module(algorithm_config_overrides_per_module={"a": {"lr": 0.3}})
    own = config.get_config_for_module("a")
    assert (own.lr, own.gamma) == (0.3, 0.5)
    assert config.get_config_for_module("b") is config and config.lr == 0.1


def test_what_cannot_be_found_again_by_name_has_no_address_in_checkpoints():
    first, second = (config_to_state(PPOConfig().env_runners(env_to_module_connector=lambda: [])) for _ in range(2))
    assert first == second
    assert "0x" not in str(first)


@pytest.mark.parametrize(("runners", "expected"), [(0, 3), (1, 3), (2, 6), (5, 15)])
def test_all_env_runners_together_have_num_envs_sub_environments(runners, expected):
    config = PPOConfig().env_runners(num_envs_per_env_runner=3)
    object.__setattr__(config, "num_env_runners", runners)
    assert config.num_envs == expected


class SearchSpace:
    """Like a search space of Ray Tune, which is known by its module."""

    __module__ = "ray.tune.search.sample"


@pytest.mark.parametrize("space", [{"grid_search": [1, 2]}, SearchSpace()])
@pytest.mark.parametrize(
    ("section", "name", "in_dict"),
    [
        ("training", "lr", False),
        ("environment", "env", False),
        ("environment", "env_config", True),
        ("rl_module", "model_config", True),
        ("evaluation", "evaluation_config", True),
    ],
)
def test_a_search_space_of_ray_tune_is_no_value(space, section, name, in_dict):
    with pytest.raises(ConfigError, match=f"(?s){name}.*Ray.*Tune"):
        getattr(PPOConfig(), section)(**{name: {"x": space} if in_dict else space})
