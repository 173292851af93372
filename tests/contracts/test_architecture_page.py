"""docs/architecture.md is true to the code: what it names exists, and what a step runs through is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import marl_connectors

PACKAGE = Path(marl_connectors.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


@pytest.mark.accelerated
def test_all_files_and_folders_that_the_page_names_exist():
    named = re.findall(r"`([\w/]+(?:\.py|/))`", PAGE.read_text())
    assert len(named) > 40
    missing = [path for path in named if not (PACKAGE / path).exists()]
    assert not missing


def test_all_folders_are_in_the_table():
    table = PAGE.read_text().partition("| folder |")[2].partition("\n\n")[0]
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    import_paths_of_rllib = {"core", "env", "utils"}
    assert {folder for folder in folders - import_paths_of_rllib if f"{folder}/" not in table} == set()
