"""The tests of a module are found by its name: ``learner/updates.py`` has ``tests/learner/test_updates*.py``."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

import marl_connectors

TESTS = Path(__file__).parents[1]
PACKAGE = Path(marl_connectors.__file__).parent
MIRROR_NOTHING = {"contracts", "envs", "examples", "helpers"}
"""Folders with tests across parts, of ``marl_envs`` and of the examples, and with what tests share."""
OF_THE_REPOSITORY = {"test_import_paths", "test_packaging", "test_readme"}
FLAT = {"connectors"}
"""Folders whose sub-folders have their tests in the folder itself."""


def modules_of(folder):
    """The names of the modules in a folder of the package, without ``.py``."""
    if not (PACKAGE / folder).is_dir():
        return set()
    found = (PACKAGE / folder).rglob("*.py") if folder.name in FLAT else (PACKAGE / folder).glob("*.py")
    return {path.stem for path in found if path.stem != "__init__"}


def is_named_after_a_module(test):
    """Whether a test file, given by its path within ``tests/``, is named after a module, or mirrors nothing."""
    test = PurePosixPath(test)
    if test.parts[0] in MIRROR_NOTHING or (len(test.parts) == 1 and test.stem in OF_THE_REPOSITORY):
        return True
    name = test.stem.removeprefix("test_") + "_"
    return any(name.startswith(module + "_") for module in modules_of(test.parent))


def test_each_test_file_is_named_after_a_module_of_its_folder():
    tests = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]
    assert len(tests) > 150
    assert [test for test in tests if not is_named_after_a_module(test)] == []


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("learner/test_updates.py", True),
        ("learner/test_updates_stacked.py", True),
        ("learner/test_updatesstacked.py", False),
        ("learner/test_stacked_updates.py", False),
        ("env_runners/test_updates.py", False),
        ("environments/vector/test_action_history.py", True),
        ("environments/test_action_history.py", False),
        ("connectors/test_frame_stacking.py", True),
        ("contracts/test_anything.py", True),
        ("test_packaging.py", True),
        ("test_anything.py", False),
        ("no_such_folder/test_updates.py", False),
    ],
)
def test_a_file_of_another_name_or_in_another_folder_is_found(test, expected):
    assert is_named_after_a_module(test) == expected


def test_no_folder_of_tests_is_named_like_a_package():
    """``tests/`` is on the path, so that such a folder would be imported in the place of an editable installation."""
    assert not {"marl_connectors", "marl_envs"} & {path.name for path in TESTS.iterdir()}
