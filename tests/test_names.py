"""Names in a checkpoint lead to what is expected there, or nowhere."""

from __future__ import annotations

import sys

import pytest

from helpers.damaged_checkpoints import BAD_NAMES, watched
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.names import Expected, Names, import_function, is_function, is_standard
from marl_connectors.rl_module.rl_module import RLModule

FUNCTION = Expected("a function", own=is_function)
MODULE = Expected("a subclass of RLModule", bases=(RLModule,))
ANYTHING = Expected("anything of yours", own=lambda found: True)
CODE = """
import functools, os, subprocess
from subprocess import check_call
from marl_connectors import RLModule
from torch import load

def fn(): return 1
def decorate(inner):
    @functools.wraps(inner)
    def outer(): return inner()
    return outer
@decorate
def decorated(): return 2
@functools.lru_cache
def cached(): return 3
part = functools.partial(fn)
strange_part = functools.partial(subprocess.check_call, ["true"])
strange = functools.lru_cache(subprocess.check_call)
class Mine(RLModule):
    class Inner(RLModule): pass
    @staticmethod
    def static(): return 4
class Other: pass
text = "text"
"""


@pytest.fixture(autouse=True)
def own_code(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(CODE)
    (tmp_path / "strangers_code.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_code", raising=False)


@pytest.mark.few(93)
@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("expected", [FUNCTION, MODULE, ANYTHING], ids=lambda expected: expected.words)
@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_runs_programs_writes_files_or_imports_is_refused_before_it_is_called(name, expected, trusted):
    imported = set(sys.modules)
    with watched() as seen, pytest.raises(CheckpointError, match=r"^who: "):
        Names(trusted).resolve(name, expected, who="who")
    assert not seen
    assert not {"antigravity", "this", "runpy"} & (set(sys.modules) - imported)


@pytest.mark.parametrize("name", ["fn", "decorated", "cached", "part", "Mine.static"])
def test_functions_of_the_users_modules_are_found(name):
    found = Names().resolve(f"own_code:{name}", FUNCTION, who="who")
    assert found() in (1, 2, 3, 4)


@pytest.mark.parametrize(
    "name", ["check_call", "load", "os.system", "subprocess", "strange", "strange_part", "text", "Mine", "RLModule"]
)
def test_what_only_passes_through_a_users_module_is_refused(name):
    with pytest.raises(CheckpointError, match="'own_code:"):
        Names().resolve(f"own_code:{name}", FUNCTION, who="who")


@pytest.mark.parametrize(
    "name", ["own_code:Mine", "own_code:Mine.Inner", "marl_connectors.rl_module.rl_module:RLModule"]
)
def test_classes_are_found_by_what_they_are_derived_from(name):
    assert issubclass(Names().resolve(name, MODULE, who="who"), RLModule)


@pytest.mark.parametrize("name", ["fn", "Other", "text", "check_call"])
def test_what_is_not_derived_from_it_is_refused(name):
    with pytest.raises(CheckpointError, match=r"(?s)RLModule.*own_code"):
        Names().resolve(f"own_code:{name}", MODULE, who="who")


@pytest.mark.parametrize(
    "name", ["fn.__globals__", "Mine.__init__", "__builtins__", "fn.__call__", "no_such", "Mine.no"]
)
def test_what_is_inside_of_objects_is_out_of_reach(name):
    with pytest.raises(CheckpointError):
        Names().resolve(f"own_code:{name}", ANYTHING, who="who")


def test_without_trust_a_users_module_is_not_imported():
    with pytest.raises(CheckpointError, match=r"(?s)'strangers_code'.*trusted=False"):
        Names(trusted=False).resolve("strangers_code:fn", FUNCTION, who="who")
    with pytest.raises(CheckpointError, match="trusted=False"):
        Names(trusted=False).resolve("own_code:Mine", MODULE, who="who")
    assert "own_code" not in sys.modules


def test_without_trust_a_users_module_that_was_imported_already_is_refused_too():
    import own_code

    assert Names().resolve("own_code:Mine", MODULE, who="who") is own_code.Mine
    with pytest.raises(CheckpointError, match="trusted=False"):
        Names(trusted=False).resolve("own_code:Mine", MODULE, who="who")


def test_modules_of_python_are_told_from_others():
    assert all(map(is_standard, ["os", "posix", "antigravity", "this", "idlelib", "builtins", "_ctypes", "json"]))
    assert not any(map(is_standard, ["torch", "numpy", "own_code", "marl_connectors", "no_such_module"]))


def test_a_name_at_a_path_of_rllib_that_is_not_here_is_an_error_that_says_what_to_use():
    with pytest.raises(ConfigError, match=r"^import_function: marl_connectors\.policy: .*docs/rllib\.md"):
        import_function("marl_connectors.policy.policy:PolicySpec")
