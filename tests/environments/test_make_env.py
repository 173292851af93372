"""From what a user calls an environment to the environment, or to one clear line."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import gymnasium
import numpy as np
import pettingzoo
import pytest
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.environments.making.factory import (
    agent_ids,
    call_maker,
    env_from_json,
    env_name,
    env_to_json,
    make_env,
)
from marl_connectors.environments.making.registry import EnvMaker, importable_name, of_suite, register_env
from marl_connectors.errors import CheckpointError, ConfigError, EnvError

SPREAD = "mpe2.simple_spread_v3"
PURSUIT = next(
    f"pettingzoo.sisl.{name}" for name in ("pursuit_v5", "pursuit_v4") if find_spec(f"pettingzoo.sisl.{name}")
)


class Pair(ParallelEnv):
    """Two agents that see and do nothing."""

    metadata = {"render_modes": [], "name": "pair"}

    def __init__(self, size=2):
        self.size = size
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1.0, 1.0, (self.size,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)


class DictConfigured(Pair):
    def __init__(self, config=None):
        super().__init__(**(config or {}))


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_a_pettingzoo_module_gives_its_parallel_env_with_the_settings():
    env = make_env(SPREAD, {"N": 2})
    assert isinstance(env, ParallelEnv)
    assert agent_ids(env) == ["agent_0", "agent_1"]


def test_a_module_without_a_parallel_env_gives_its_turn_taking_env():
    assert isinstance(make_env("pettingzoo.classic.tictactoe_v3"), AECEnv)


@pytest.mark.parametrize(
    "name",
    [
        "simple_spread_v3",
        "simple_spread-v3",
        "mpe2/simple_spread_v3",
        "mpe2/simple_spread-v3",
        "simple_spread_v3:parallel_env",
    ],
)
def test_an_environment_of_a_suite_has_short_names(name):
    env = make_env(name, {"N": 2})
    assert env.metadata["name"] == "simple_spread_v3"
    assert isinstance(env, ParallelEnv)
    assert agent_ids(env) == ["agent_0", "agent_1"]
    assert env_name(name) == "simple_spread_v3"
    with pytest.raises(ConfigError, match=r"does not accept 'max_cycle'. Did you mean 'max_cycles'"):
        make_env(name, {"max_cycle": 1})


def test_the_turn_taking_form_has_a_short_name_too():
    assert isinstance(make_env("simple_spread_v3:env"), AECEnv)
    assert isinstance(make_env("classic/tictactoe-v3"), AECEnv)


def test_a_module_of_the_user_comes_before_a_suites_of_that_name(user_module):
    user_module("simple_spread_v3", "from mpe2.simple_v3 import parallel_env")
    assert make_env("simple_spread_v3").metadata["name"] == "simple_v3"


def test_short_names_import_no_suite(monkeypatch):
    monkeypatch.delitem(sys.modules, "pettingzoo.sisl", raising=False)
    assert importable_name("pursuit_v5:env") == "pettingzoo.sisl.pursuit_v5:env"
    assert "pettingzoo.sisl" not in sys.modules
    assert importable_name("no_such_env") == "no_such_env"
    assert importable_name("CartPole-v1") == "CartPole-v1"


@pytest.mark.skipif(not hasattr(pettingzoo, "register"), reason="this PettingZoo has no registry")
def test_an_id_that_was_registered_with_pettingzoo_is_found():
    pettingzoo.register("parallel", "mine/pair-v0", entry_point=Pair)
    try:
        env = make_env("mine/pair-v0", {"size": 4})
    finally:
        pettingzoo.parallel_registry.pop("mine/pair-v0")
    assert isinstance(env, Pair)
    assert env.size == 4


def test_a_namespace_of_gymnasium_ids_names_the_package_that_has_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(EnvError, match=r"the package 'ale_py' is not installed. Install it with: pip install ale-py"):
        make_env("ALE/Pong-v5")


def test_atari_games_take_their_roms_from_ale_py(monkeypatch, tmp_path):
    (tmp_path / "ale_py.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ale_py", raising=False)
    known = of_suite("pettingzoo.atari.pong_v3")
    assert known["settings"] == {"auto_rom_install_path": str(tmp_path)}
    assert of_suite("pettingzoo.sisl.pursuit_v5") == {}
    given = []
    maker = EnvMaker("pong", lambda **settings: given.append(settings), (lambda **kwargs: None,), **known)
    call_maker(maker, {}, None)
    call_maker(maker, {"auto_rom_install_path": "mine"}, None)
    assert given == [{"auto_rom_install_path": str(tmp_path)}, {"auto_rom_install_path": "mine"}]


def test_a_gymnasium_id_gives_the_environment_with_its_settings():
    env = make_env("CartPole-v1", {"max_episode_steps": 7})
    assert isinstance(env, gymnasium.Env)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 7
    assert agent_ids(env) == ["default_agent"]


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
    with pytest.raises(ConfigError, match="expected a function"):
        register_env("x", 3)  # pyright: ignore[reportArgumentType]


def test_an_attribute_of_a_users_module_is_found(user_module):
    user_module(
        "env_of_user",
        "from mpe2 import simple_spread_v3 as env\n\ndef make(agents=3):\n    return env.parallel_env(N=agents)\n",
    )
    assert len(agent_ids(make_env("env_of_user:make", {"agents": 1}))) == 1
    with pytest.raises(ConfigError, match=r"'env_of_user:make' does not accept 'agnts'. Did you mean 'agents'"):
        make_env("env_of_user:make", {"agnts": 1})
    with pytest.raises(EnvError, match=r"has no 'mak'. Did you mean 'make'"):
        make_env("env_of_user:mak")
    with pytest.raises(EnvError, match="neither parallel_env nor env"):
        make_env("env_of_user")
    with pytest.raises(EnvError, match="Write 'env_of_user:make'"):
        make_env("env_of_user.make")


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
    with pytest.raises(ConfigError, match=f"does not accept '{key}'. Did you mean '{close}'"):
        make_env(env, {key: 1})


def test_the_render_mode_is_passed_only_where_it_is_accepted():
    assert make_env(SPREAD, render_mode="rgb_array").render_mode == "rgb_array"
    assert make_env("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"
    assert make_env(PURSUIT, render_mode="rgb_array").render_mode == "rgb_array"
    assert getattr(make_env(SPREAD), "render_mode", None) is None
    assert getattr(make_env(Pair, render_mode="rgb_array"), "render_mode", None) is None
    open_ended = make_env(lambda **kwargs: Pair(**kwargs), {"size": 3}, render_mode="rgb_array")
    assert getattr(open_ended, "render_mode", None) is None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("mpe2.simple_sprad_v3", "Did you mean 'simple_spread_v3'"),
        ("pettingzoo.sisl.pursuit_v3", "Did you mean 'pursuit_v[45]'"),
        ("pettingzoo.mpe.simple_spread_v3", "Use 'mpe2.simple_spread_v3'.*pip install mpe2"),
        ("simple_sprad_v3", "no such environment. Did you mean 'simple_spread_v3'"),
        ("simple_spread-v2", "Did you mean 'simple_spread_v3'"),
        ("mpe2/simple_sprad_v3", "'mpe2' has no module 'simple_sprad_v3'. Did you mean 'simple_spread_v3'"),
        ("my_suite/zzz-v3", "no Gymnasium id of that name is registered.*its_package:my_suite/zzz-v3"),
        ("CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("magent2.environments.battle_v4", "pip install magent2"),
        ("no_such_env", "neither a module 'no_such_env' nor a Gymnasium id"),
        ("", "expected a name, a class or a function of env_config, but got ''"),
        ("gymnasium:NoSuchThing-v0", "registers no Gymnasium id 'NoSuchThing-v0'"),
    ],
)
def test_an_unknown_environment_is_named_with_what_to_do(env, message):
    with pytest.raises(EnvError, match=message) as raised:
        make_env(env)
    assert "\n" not in str(raised.value)
    assert repr(env) in str(raised.value)


def test_a_missing_dependency_of_a_family_names_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("pettingzoo.sisl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(EnvError, match=r'needs the package \'Box2D\'.*pip install "pettingzoo\[sisl\]"'):
        make_env("pettingzoo.sisl.multiwalker_v9")


def test_a_missing_package_of_environments_names_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(EnvError, match=r"'mpe2' is not installed. Install it with: pip install mpe2"):
        make_env(SPREAD)


def test_an_error_of_the_maker_is_shown_with_its_cause():
    def make(config):
        raise ValueError("no map\nof that size")

    with pytest.raises(EnvError, match="'make' could not be made: ValueError: no map of that size") as raised:
        make_env(make)
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_error_of_the_maker_without_words_is_shown_with_its_place():
    def make(config):
        raise AssertionError

    with pytest.raises(
        EnvError, match=r"could not be made: AssertionError \(.*test_make_env.py:\d+ in make\). Check its"
    ):
        make_env(make)


def test_what_is_no_environment_is_refused():
    with pytest.raises(EnvError, match="its maker returned a dict"):
        make_env(lambda: {})
    with pytest.raises(EnvError, match="pass a function that makes it"):
        make_env(Pair())
    with pytest.raises(ConfigError, match="env_config: expected a dict"):
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
        ({"type": "registered", "name": "gone"}, "Call register_env"),
        (env_to_json(lambda: None), "Pass the environment again"),
        ({"type": "magic"}, "expected the description"),
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
