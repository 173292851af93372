"""Writes a module at each of RLlib's import paths, for editors: they look for files, where Python takes a table."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RLlibModules(BuildHookInterface):
    """Writes the modules into the package itself, where wheels and editable installs find them. Git ignores them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Replaces the modules of an earlier build, which are folders with a ``.gitignore`` of their own."""
        library = Path(self.root, "marl_connectors")
        for former in list(library.rglob(".gitignore")):
            shutil.rmtree(former.parent, ignore_errors=True)
        table = runpy.run_path(str(library / "import_paths.py"))
        for path in table["PATHS"]:
            folder = library.joinpath(*path.split("."))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(table["import_lines"](path))
            (folder / ".gitignore").write_text("*\n")
