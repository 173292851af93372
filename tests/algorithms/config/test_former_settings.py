"""Settings of RLlib that have another name here."""

from __future__ import annotations

import abc
import copy
import inspect
import pickle
import re

import pytest

from marl_connectors import DQNConfig, PPOConfig, SACConfig
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.config.former_settings import other_names
from marl_connectors.errors import ConfigError


@pytest.mark.parametrize(
    ("section", "name", "words"),
    [
        ("training", "train_batch_size", "Use .training(train_batch_size_per_learner=...), the steps of each learner."),
        ("training", "num_sgd_iter", "Use .training(num_epochs=...)."),
        ("training", "sgd_minibatch_size", "Use .training(minibatch_size=...)."),
        ("training", "model", ".rl_module(model_config=...)"),
        ("training", "lr_schedule", ".training(lr=[[env_step, value], ...])"),
        ("resources", "num_gpus", ".learners(num_gpus_per_learner=...)"),
        ("resources", "num_learner_workers", ".learners(num_learners=...)"),
        ("env_runners", "num_rollout_workers", ".env_runners(num_env_runners=...)"),
        ("env_runners", "observation_filter", ".env_runners(env_to_module_connector=lambda env: MeanStdFilter())"),
        ("exploration", "exploration_config", ".env_runners(explore=...)"),
        (
            "multi_agent",
            "algorithm_config_overrides_per_module",
            ".rl_module(algorithm_config_overrides_per_module=...)",
        ),
        ("debugging", "log_level", 'logging.getLogger("marl_connectors").setLevel(...)'),
        ("reporting", "min_time_s_per_iteration", "train batch"),
    ],
)
def test_a_former_name_is_an_error_that_names_the_new_one(section, name, words):
    with pytest.raises(ConfigError, match=rf"(?s)PPOConfig\.{section}.*{name!r}.*{re.escape(words)}"):
        getattr(PPOConfig(), section)(**{name: 1})


def test_a_former_name_in_a_dict_is_named_too():
    with pytest.raises(ConfigError, match=r"(?s)'num_workers'.*.env_runners\(num_env_runners=\.\.\.\)"):
        PPOConfig().update_from_dict({"num_workers": 2})


@pytest.mark.parametrize("section", other_names("sections"))
def test_a_section_that_does_not_exist_says_what_to_do(section):
    with pytest.raises(ConfigError, match=rf"(?s)PPOConfig.*\.{section}\(\.\.\.\)"):
        getattr(PPOConfig(), section)


def test_an_unknown_attribute_is_an_attribute_error_with_a_hint():
    with pytest.raises(AttributeError, match=r"(?s)PPOConfig.*'trainig'.*'training'"):
        _ = PPOConfig().trainig
    with pytest.raises(AttributeError, match=r"(?s)'num_sgd_iter'.*.training"):
        _ = PPOConfig().num_sgd_iter
    assert not hasattr(PPOConfig(), "anything")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("buffer_size", ".training(replay_buffer_config={'capacity': ...})"),
        ("num_atoms", "distributional"),
        ("noisy", "noisy"),
        ("hiddens", ".rl_module(model_config={'head_fcnet_hiddens': ...})"),
        ("learning_starts", ".training(num_steps_sampled_before_learning_starts=...)"),
    ],
)
def test_settings_of_other_replay_algorithms_are_answered(name, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)):
        DQNConfig().training(**{name: 1})


def test_copies_and_pickles_of_configs_work_as_before():
    config = PPOConfig().training(gamma=0.5)
    assert copy.deepcopy(config).gamma == pickle.loads(pickle.dumps(config)).gamma == config.copy().gamma == 0.5


@pytest.mark.parametrize("instead", sorted(set(other_names("renamed").values())))
def test_what_replaces_a_setting_exists(instead):
    for section, name in re.findall(r"\.(\w+)\((\w+)=", instead):
        known = [inspect.signature(getattr(cls, section)).parameters for cls in (PPOConfig, DQNConfig, SACConfig)]
        assert any(name in parameters for parameters in known)


def test_no_setting_of_this_library_is_called_a_former_one():
    own, renamed, not_here = set(PPOConfig().to_dict()), {*other_names("renamed")}, {*other_names("not here")}
    assert own & (renamed - {"algorithm_config_overrides_per_module", "explore"}) == set()
    assert own & not_here == set() and not renamed & not_here


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lrr", r"PPOConfig.*'lrr'.*'lr'"),
        ("num_sgd_iter", r"PPOConfig.*'num_sgd_iter'.*.training\(num_epochs=...\)"),
        ("training", r"PPOConfig.*'training'"),
        ("device", r"PPOConfig.*'device'"),
    ],
)
def test_only_settings_can_be_set_as_attributes(name, message):
    for config in (
        PPOConfig(),
        pickle.loads(pickle.dumps(PPOConfig())),
        copy.deepcopy(PPOConfig()),
        PPOConfig().copy(),
    ):
        with pytest.raises(AttributeError, match=f"(?s)^{message}"):
            setattr(config, name, 3)
        assert name not in vars(config)
        config.lr = 0.5
        config._own = 1
        assert (config.lr, config._own) == (0.5, 1)


def test_settings_that_a_subclass_sets_in_init_can_be_set_later():
    class Mixin(abc.ABC):  # whose metaclass is another one
        @abc.abstractmethod
        def build_algo(self): ...

    class Own(PPOConfig, Mixin):  # which has the method
        late: float

        def __init__(self):
            super().__init__()
            self.own = 1

    config = Own()
    config.own, config.late = 2, 3.0
    assert config.copy().to_dict()["own"] == 2 and config.late == 3.0
    with pytest.raises(AttributeError, match=r"(?s)'owm'.*'own'"):
        config.owm = 3


def test_a_former_method_of_an_algorithm_is_an_error_that_names_the_new_one():
    with PPOConfig().build_algo("marl_envs.match_v0") as algo:
        for name, hint in other_names("attributes").items():
            with pytest.raises(AttributeError, match=rf"(?s)'PPO'.*{name!r}.*{re.escape(hint)}"):
                getattr(algo, name)
            assert name not in dir(algo)
            for own in re.findall(r" \.(\w+)", hint):
                assert hasattr(algo, own)
        with pytest.raises(AttributeError, match=r"(?s)'PPO'.*'lr'$"):
            algo.lr  # noqa: B018


def test_an_error_in_a_property_of_an_algorithm_is_raised_as_it_is():
    class Own(Algorithm):
        @property
        def broken(self):
            return None.nothing

    with pytest.raises(AttributeError, match=r"(?s)'NoneType'.*'nothing'"):
        object.__new__(Own).broken  # noqa: B018


def test_an_environment_may_be_given_when_an_algorithm_is_built():
    with PPOConfig().environment("CartPole-v1").build_algo(env="marl_envs.match_v0") as algo:
        assert algo.config.env == "marl_envs.match_v0"
    with PPOConfig().build("marl_envs.match_v0") as algo:
        assert algo.config.env == "marl_envs.match_v0"


RLLIB_ONLY = [
    "broadcast_offline_eval_runner_states",
    "create_local_env_runner",
    "custom_async_evaluation_function",
    "custom_evaluation_function",
    "custom_resources_for_main_process",
    "custom_resources_per_learner",
    "dataset_num_iters_per_eval_runner",
    "delay_between_env_runner_restarts_s",
    "evaluation_unhealthy_workers_timeout_s",
    "ignore_offline_eval_runner_failures",
    "in_evaluation",
    "max_num_offline_eval_runner_restarts",
    "max_requests_in_flight_per_learner",
    "num_aggregator_actors_per_learner",
    "num_cpus_per_offline_eval_runner",
    "num_offline_eval_runners",
    "offline_eval_batch_size_per_runner",
    "offline_eval_runner_class",
    "offline_evaluation_duration",
    "offline_evaluation_parallel_to_training",
    "offline_evaluation_timeout_s",
    "offline_evaluation_type",
    "policy_map_cache",
    "restart_failed_offline_eval_runners",
    "sample_collector",
    "simple_optimizer",
    "torch_compile_learner",
    "use_env_runner_state_server",
    "worker_cls",
    "build_learner_group",
    "from_dict",
    "get_default_rl_module_spec",
    "get_evaluation_config_object",
    "is_multi_agent",
    "is_offline",
    "num_cpus_for_local_worker",
]
"""Settings and methods of RLlib's configs for which there is nothing here, although names here have their words."""


@pytest.mark.few(13)
@pytest.mark.parametrize("name", RLLIB_ONLY)
def test_no_hint_names_another_thing(name):
    for refuse in (lambda: getattr(PPOConfig(), name), lambda: PPOConfig().update_from_dict({name: 1})):
        with pytest.raises(ConfigError) as error:
            refuse()
        assert repr(name) in str(error.value) and "Did you mean" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["on_evaluate_offline_end", "on_offline_eval_runners_recreated", "on_sub_environments"]
)
def test_no_hint_names_another_event(name):
    with pytest.raises(ConfigError, match=name) as error:
        PPOConfig().callbacks(**{name: print})
    assert "Did you mean" not in str(error.value)
