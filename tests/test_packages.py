"""Optional packages, and the commands that install them."""

from __future__ import annotations

import shlex
import sys
import types

import pytest

from marl_connectors.errors import MissingDependencyError
from marl_connectors.packages import how_to_install, import_package, install_command, is_installed, require_packages


@pytest.fixture
def folder_named_like_a_package(tmp_path, monkeypatch):
    (tmp_path / "trackalike" / "run-1").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("trackalike", None)


def test_a_folder_without_code_is_not_a_package(folder_named_like_a_package):
    assert not is_installed("trackalike")
    with pytest.raises(ModuleNotFoundError, match="trackalike") as raised:
        import_package("trackalike")
    assert raised.value.name == "trackalike"
    import trackalike  # type: ignore[import-not-found]  # noqa: F401  # as other code may do

    assert not is_installed("trackalike")
    (folder_named_like_a_package / "trackalike" / "__init__.py").touch()
    sys.modules.pop("trackalike")
    assert is_installed("trackalike") and import_package("trackalike").__file__


def test_a_tracker_whose_package_is_hidden_by_a_folder_says_what_to_install(folder_named_like_a_package, caplog):
    from marl_connectors.callbacks.trackers import WandbTracker

    class Alike(WandbTracker):
        package = "trackalike"

        def _open(self, config, name):
            import_package("trackalike")

    algorithm = types.SimpleNamespace(config=types.SimpleNamespace(to_dict=dict, env="x"))
    Alike(name="x").log(algorithm, {"num_agent_steps_sampled_lifetime": 1})
    [warning] = caplog.messages
    assert warning.endswith("Install it with: pip install trackalike")


def test_modules_that_are_put_in_by_hand_count_as_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "by_hand", types.ModuleType("by_hand"))
    assert is_installed("by_hand")
    monkeypatch.setitem(sys.modules, "by_hand", None)
    assert not is_installed("by_hand")


def test_commands_name_packages_as_pip_does():
    assert how_to_install("wandb") == "Install it with: pip install wandb"
    assert how_to_install("onnx", "onnxscript") == "Install them with: pip install onnx onnxscript"
    assert shlex.split(install_command("pettingzoo[sisl]", "optuna>=5")) == [
        "pip",
        "install",
        "pettingzoo[sisl]",
        "optuna>=5",
    ]


def test_all_missing_packages_are_named_at_once(folder_named_like_a_package):
    require_packages("me", "json")
    with pytest.raises(MissingDependencyError) as raised:
        require_packages("the command", "trackalike", "json", "no_such_package")
    said = str(raised.value)
    assert said.startswith("the command ") and said.endswith("pip install trackalike no_such_package")
    assert "json" not in said
