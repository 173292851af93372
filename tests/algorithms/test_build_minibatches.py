"""A minibatch that is larger than the train batch is an error, unless nobody asked for it."""

from __future__ import annotations

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import PPOConfig
from marl_connectors.errors import ConfigError


def config_of(policies="shared", agents="abc", **training):
    config = small_config(lambda: LifeEnv(agents=agents)).multi_agent(policies=policies)
    return config.training(train_batch_size_per_learner=10, **training)


@pytest.mark.parametrize(
    ("policies", "counted_by", "most"),
    [
        ("shared", "env_steps", 30),  # three agents, each of which has a row in an env step
        ("independent", "env_steps", 10),
        (["x", "y"], "env_steps", 30),  # in another episode, a function may map all agents to one module
        ("shared", "agent_steps", 10),
    ],
)
def test_a_minibatch_has_at_most_the_rows_of_its_module(policies, counted_by, most):
    config = config_of(policies).multi_agent(count_steps_by=counted_by)
    if not isinstance(policies, str):
        config.multi_agent(policy_mapping_fn=lambda agent_id, episode, **kwargs: "x" if agent_id == "a" else "y")
    config.copy().training(minibatch_size=most).build_algo().stop()
    with pytest.raises(ConfigError, match=f"(?s)minibatch_size={most + 1}.*{most}"):
        config.copy().training(minibatch_size=most + 1).build_algo()


def test_the_minibatch_of_one_module_is_checked():
    config = config_of("independent").rl_module(algorithm_config_overrides_per_module={"b": {"minibatch_size": 11}})
    with pytest.raises(ConfigError, match=r"(?s)minibatch_size=11.*'b'"):
        config.build_algo()


def test_a_default_is_no_request():
    PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=10).build_algo().stop()


def test_all_learners_together_make_a_minibatch():
    config = config_of("independent").learners(num_learners=2)
    with pytest.raises(ConfigError, match=r"(?s)minibatch_size=21.*20"):
        config.training(minibatch_size=21).build_algo()
