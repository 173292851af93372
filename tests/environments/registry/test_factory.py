"""From what a user calls an environment to the environment, or to one clear line."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from helpers.envs.pair_env import Pair
from marl_connectors.environments.registry.factory import agent_ids, env_from_json, env_name, env_to_json, make_env
from marl_connectors.environments.registry.registry import register_env
from marl_connectors.errors import CheckpointError, ConfigError, EnvError

SPREAD = "mpe2.simple_spread_v3"
PURSUIT = next(
    f"pettingzoo.sisl.{name}" for name in ("pursuit_v5", "pursuit_v4") if find_spec(f"pettingzoo.sisl.{name}")
)


class DictConfigured(Pair):
    def __init__(self, config=None):
        super().__init__(**(config or {}))


def test_a_class_and_a_function_get_the_settings_as_keywords():
    def make(size):
        return Pair(size)

    for env in (make_env(Pair, {"size": 5}), make_env(make, {"size": 5})):
        assert isinstance(env, Pair)
        assert env.size == 5


def test_a_parameter_called_config_gets_the_dict():
    given = {"size": 4}
    env = make_env(DictConfigured, given)
    assert isinstance(env, Pair)
    assert env.size == 4
    assert make_env(lambda anything: Pair(**anything), given).size == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert given == {"size": 4}


def test_a_registered_name_gets_the_dict():
    register_env("pair_of_tests", lambda config: Pair(config["size"]))
    env = make_env("pair_of_tests", {"size": 6})
    assert isinstance(env, Pair)
    assert env.size == 6
    with pytest.raises(ConfigError, match="function"):
        register_env("x", 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("env", "key", "close"),
    [
        (SPREAD, "max_cycle", "max_cycles"),
        (PURSUIT, "n_pursuer", "n_pursuers"),
        ("CartPole-v1", "suton_barto_reward", "sutton_barto_reward"),
        (Pair, "sise", "size"),
    ],
)
def test_an_unknown_setting_is_named_with_the_closest(env, key, close):
    with pytest.raises(ConfigError, match=f"(?s)'{key}'.*'{close}'"):
        make_env(env, {key: 1})


def test_the_render_mode_is_passed_only_where_it_is_accepted():
    assert make_env(SPREAD, render_mode="rgb_array").render_mode == "rgb_array"
    assert make_env("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"
    assert make_env(PURSUIT, render_mode="rgb_array").render_mode == "rgb_array"
    assert getattr(make_env(SPREAD), "render_mode", None) is None
    assert getattr(make_env(Pair, render_mode="rgb_array"), "render_mode", None) is None
    open_ended = make_env(lambda **kwargs: Pair(**kwargs), {"size": 3}, render_mode="rgb_array")
    assert getattr(open_ended, "render_mode", None) is None


def test_an_error_of_the_maker_is_shown_with_its_cause():
    def make(config):
        raise ValueError("no map\nof that size")

    with pytest.raises(EnvError, match=r"(?s)'make'.*ValueError") as raised:
        make_env(make)
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_error_of_the_maker_without_words_is_shown_with_its_place():
    def make(config):
        raise AssertionError

    with pytest.raises(EnvError, match=r"(?s)AssertionError.*test_factory.py:\d+"):
        make_env(make)


def test_what_is_no_environment_is_refused():
    with pytest.raises(EnvError, match="dict"):
        make_env(lambda: {})
    with pytest.raises(EnvError, match="function"):
        make_env(Pair())
    with pytest.raises(ConfigError, match="env_config"):
        make_env(Pair, 3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (SPREAD, "simple_spread_v3"),
        ("my_package.my_env:make", "my_env-make"),
        ("my_package.my_env:parallel_env", "my_env"),
        ("CartPole-v1", "CartPole-v1"),
        ("ale_py:ALE/Pong-v5", "ale_py-ALE-Pong-v5"),
        (Pair, "Pair"),
        (lambda: None, "lambda"),
    ],
)
def test_an_environment_has_a_name_that_can_stand_in_a_path(env, expected):
    assert env_name(env) == expected


def test_an_environment_survives_json_where_it_has_a_name():
    assert env_from_json(env_to_json(SPREAD)) == SPREAD
    assert env_from_json(env_to_json(Pair)) is Pair
    register_env("pair_for_json", lambda config: Pair())
    assert env_from_json(env_to_json("pair_for_json")) == "pair_for_json"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "registered", "name": "gone"}, "register_env"),
        (env_to_json(lambda: None), "environment"),
        ({"type": "magic"}, "description"),
    ],
)
def test_an_environment_without_a_name_has_to_be_passed_again(data, message):
    with pytest.raises(CheckpointError, match=message):
        env_from_json(data)


def test_agents_of_an_environment_without_possible_agents_are_those_after_a_reset():
    class Late(Pair):
        def __init__(self):
            pass

        def reset(self, seed=None, options=None):
            self.agents = ["x"]
            return {"x": 0}, {}

    assert agent_ids(make_env(Late)) == ["x"]
