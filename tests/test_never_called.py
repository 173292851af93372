"""Methods that RLlib calls and this library does not are refused; those that both have are called when overridden."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import small_config
from marl_connectors import (
    PPO,
    Algorithm,
    ConnectorV2,
    EnvRunner,
    FlattenObservations,
    MultiRLModule,
    PPOConfig,
    RLModule,
    RLModuleSpec,
)
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.ppo.ppo_learner import PPOLearner
from marl_connectors.callbacks import Callbacks
from marl_connectors.checkpoints import Checkpointable
from marl_connectors.env.multi_agent_env import MultiAgentEnv
from marl_connectors.errors import ConfigError
from marl_connectors.learner.learner import Learner
from marl_connectors.never_called import NEVER_CALLED
from marl_envs import match_v0

DERIVED = {
    "Algorithm": [Algorithm, PPO],
    "AlgorithmConfig": [AlgorithmConfig, PPOConfig],
    "Learner": [Learner, PPOLearner],
    "EnvRunner": [EnvRunner],
    "Callbacks": [Callbacks],
    "Checkpointable": [RLModule, MultiRLModule, PPOLearner, ConnectorV2, FlattenObservations],
}


def method(self, *args, **kwargs):
    raise AssertionError("never called")


def test_the_table_is_of_these_classes():
    assert NEVER_CALLED.keys() == DERIVED.keys()
    assert all(issubclass(cls, Checkpointable) for cls in DERIVED["Checkpointable"])


@pytest.mark.parametrize("base", DERIVED)
@pytest.mark.parametrize("how", [method, property(method), classmethod(method)])
def test_each_method_is_refused_when_the_class_is_created(base, how):
    for name, advice in NEVER_CALLED[base].items():
        for cls in DERIVED[base]:
            with pytest.raises(ConfigError) as error:
                type("Mine", (cls,), {name: how})
            assert f"Mine.{name}: " in str(error.value) and advice in str(error.value)


def test_a_method_of_a_mixin_is_refused():
    class Steps:
        training_step = method

    with pytest.raises(ConfigError, match=r"Mine\.training_step"):
        type("Mine", (Steps, PPO), {})


def test_other_methods_and_helpers_of_a_user_are_accepted():
    class Mine(PPO):
        def my_step(self):
            return 1

    class Piece(ConnectorV2):
        def step(self):  # an algorithm's name, but not a piece's
            return 1

    assert Mine.my_step and Piece().step() == 1


# What both have is called.


class Noting:
    """A mixin whose subclasses note the calls of methods of their base."""

    calls: list = []


def noting(cls, *names):
    """Returns a subclass that notes the calls of some methods, and calls them."""

    def wrapped(name):
        def call(self, *args, **kwargs):
            Noting.calls.append(name)
            return getattr(super(made, self), name)(*args, **kwargs)

        return call

    made = type("Mine", (cls,), {name: wrapped(name) for name in names})
    return made


@pytest.fixture(autouse=True)
def no_calls():
    Noting.calls = []


def config_of(**settings):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 5})
    return config.multi_agent(policies="shared").evaluation(evaluation_duration=1, **settings)


def test_methods_of_an_algorithm_are_called(tmp_path):
    names = ("train", "evaluate", "get_state", "save_to_path")
    algo = noting(PPO, *names)(config_of(evaluation_interval=1))
    algo.fit(num_iterations=1, folder=tmp_path, progress=False)
    assert set(Noting.calls) == set(names)
    algo.stop()


def test_an_own_evaluate_cannot_run_in_parallel():
    config = config_of(evaluation_interval=1, evaluation_num_env_runners=1, evaluation_parallel_to_training=True)
    with pytest.raises(ConfigError, match=r"(?s)evaluation_parallel_to_training=True.*evaluate\(\)"):
        noting(PPO, "evaluate")(config)


def test_methods_of_a_config_are_called():
    names = ("validate", "get_default_learner_class", "get_default_rl_module_class", "get_config_for_module", "copy")
    names = (*names, "get_evaluation_config", "default_learner_pieces", "make_callbacks", "freeze", "to_dict")
    config = noting(type(config_of()), *names)().update_from_dict(config_of(evaluation_interval=1).to_dict())
    algo = config.build_algo()
    algo.train()
    assert set(Noting.calls) == set(names)
    algo.stop()


def test_methods_of_a_learner_are_called():
    names = (
        *("build", "configure_optimizers_for_module", "should_module_be_updated", "update"),
        *("before_gradient_based_update", "after_gradient_based_update", "compute_loss_for_module"),
        *("postprocess_gradients_for_module", "get_state", "add_module", "remove_module"),
    )
    algo = config_of().learners(learner_class=noting(PPOLearner, *names)).build_algo()
    algo.train()
    algo.add_module("other")
    algo.remove_module("other")
    algo.get_state()
    assert set(Noting.calls) == set(names)
    algo.stop()


def test_methods_of_a_module_are_called():
    names = ("setup", "get_initial_state", "get_exploration_action_dist_cls", "get_train_action_dist_cls")
    names = (
        *names,
        "get_inference_action_dist_cls",
        "is_stateful",
        "get_state",
        "_forward_train",
        "_forward_inference",
    )
    names = (*names, "_forward_exploration", "compute_values")
    own = noting(PPOConfig().get_default_rl_module_class(), *names)
    algo = config_of(evaluation_interval=1).rl_module(rl_module_spec=RLModuleSpec(own)).build_algo()
    algo.train()
    algo.evaluate(num_episodes=1, explore=False)
    algo.get_state()
    assert set(Noting.calls) == set(names)
    algo.stop()


def test_methods_of_a_multi_agent_env_are_called():
    class Env(MultiAgentEnv):
        agents = possible_agents = ["a"]

        def get_observation_space(self, agent_id):
            return spaces.Box(0, 1, (3,), np.float32)

        def get_action_space(self, agent_id):
            return spaces.Discrete(4)

        def reset(self, *, seed=None, options=None):
            return {"a": np.zeros(3, np.float32)}, {}

        def step(self, action_dict):
            return {"a": np.zeros(3, np.float32)}, {"a": 0.0}, {"__all__": True}, {"__all__": False}, {}

    spec = PPOConfig().environment(lambda config: Env()).get_multi_rl_module_spec().build()
    (module,) = spec.values()
    assert module.observation_space.shape == (3,) and module.action_space.n == 4


def test_the_loop_that_the_error_advises_updates_the_modules():
    algo = config_of().build_algo()
    before = algo.get_module().get_state()
    learned = algo.learner_group.update(episodes=algo.env_runner.sample(num_timesteps=40))
    after = algo.get_module().get_state()
    assert list(learned) == ["default_policy"] and any((before[name] != after[name]).any() for name in before)
    algo.stop()
