"""Names of environments: what is found by them, and one clear line where nothing is."""

from __future__ import annotations

import sys

import gymnasium
import pettingzoo
import pytest
from pettingzoo import AECEnv, ParallelEnv

from helpers.envs.pair_env import Pair
from marl_connectors.environments.registry.factory import agent_ids, call_maker, env_name, make_env
from marl_connectors.environments.registry.registry import EnvMaker, importable_name, of_suite
from marl_connectors.errors import ConfigError, EnvError

SPREAD = "mpe2.simple_spread_v3"


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
    with pytest.raises(ConfigError, match=r"(?s)'max_cycle'.*'max_cycles'"):
        make_env(name, {"max_cycle": 1})


def test_the_turn_taking_form_has_a_short_name_too():
    assert isinstance(make_env("simple_spread_v3:env"), AECEnv)
    assert isinstance(make_env("classic/tictactoe-v3"), AECEnv)


def test_a_module_of_the_user_comes_before_a_suites_of_that_name(user_module):
    user_module("simple_spread_v3", "from mpe2.simple_v3 import parallel_env")
    assert make_env("simple_spread_v3").metadata["name"] == "simple_v3"


def test_a_module_has_the_name_of_its_file_too(user_module, tmp_path, monkeypatch):
    user_module("spread_of_two", "from mpe2.simple_spread_v3 import parallel_env as make")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "env_in_a_folder.py").write_text("from mpe2.simple_v3 import parallel_env")
    for name in ("spread_of_two.py:make", "./spread_of_two.py:make", f"{tmp_path}/spread_of_two.py:make"):
        assert importable_name(name) == "spread_of_two:make" and env_name(name) == "spread_of_two-make"
        assert agent_ids(make_env(name, {"N": 2})) == ["agent_0", "agent_1"]
    assert importable_name("inner/env_in_a_folder.py") == "inner.env_in_a_folder"
    assert make_env("inner/env_in_a_folder.py").metadata["name"] == "simple_v3"
    sys.modules.pop("inner.env_in_a_folder")


def test_a_file_that_python_cannot_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "away.py").write_text("")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not tmp_path.is_relative_to(path or "/nowhere")])
    with pytest.raises(EnvError, match=r"(?s)away.py:make.*'away'"):
        make_env(f"{tmp_path}/away.py:make")


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
    with pytest.raises(EnvError, match=r"(?s)'ale_py'.*pip install ale-py"):
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


def test_an_attribute_of_a_users_module_is_found(user_module):
    user_module(
        "env_of_user",
        "from mpe2 import simple_spread_v3 as env\n\ndef make(agents=3):\n    return env.parallel_env(N=agents)\n",
    )
    assert len(agent_ids(make_env("env_of_user:make", {"agents": 1}))) == 1
    with pytest.raises(ConfigError, match=r"(?s)'env_of_user:make'.*'agnts'.*'agents'"):
        make_env("env_of_user:make", {"agnts": 1})
    with pytest.raises(EnvError, match=r"(?s)'mak'.*'make'"):
        make_env("env_of_user:mak")
    with pytest.raises(EnvError, match="parallel_env"):
        make_env("env_of_user")
    with pytest.raises(EnvError, match="'env_of_user:make'"):
        make_env("env_of_user.make")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("mpe2.simple_sprad_v3", "'simple_spread_v3'"),
        ("pettingzoo.sisl.pursuit_v3", r"'pursuit_v[45]'"),
        ("pettingzoo.mpe.simple_spread_v3", "Use 'mpe2.simple_spread_v3'.*pip install mpe2"),
        ("simple_sprad_v3", "'simple_spread_v3'"),
        ("simple_spread-v2", "'simple_spread_v3'"),
        ("mpe2/simple_sprad_v3", r"(?s)'mpe2'.*'simple_sprad_v3'.*'simple_spread_v3'"),
        ("my_suite/zzz-v3", r"(?s)Gymnasium.*its_package.*my_suite/zzz-v3"),
        ("CartPol-v1", "'CartPole-v1'"),
        ("magent2.environments.battle_v4", "pip install magent2"),
        ("no_such_env", r"(?s)'no_such_env'.*Gymnasium"),
        ("", r"(?s)env_config.*''"),
        ("gymnasium:NoSuchThing-v0", r"(?s)Gymnasium.*'NoSuchThing-v0'"),
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
    with pytest.raises(EnvError, match=r"(?s)'Box2D'.*pip install .pettingzoo\[sisl\]"):
        make_env("pettingzoo.sisl.multiwalker_v9")


def test_a_missing_package_of_environments_names_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(EnvError, match=r"(?s)'mpe2'.*pip install mpe2"):
        make_env(SPREAD)
