"""Names the packages, which lie under two roots, and what editors need; everything else is in setup.cfg."""

import runpy
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.editable_wheel import _StaticPth, editable_wheel

LIBRARY = Path(__file__).parent / "marl_connectors"


def write_rllib_modules():
    """Writes a module at each of RLlib's import paths, for editors: they look for files, where Python takes a table.

    Git ignores these folders: each has a ``.gitignore`` of its own, by which the next installation finds them.
    """
    for former in list(LIBRARY.rglob(".gitignore")):
        shutil.rmtree(former.parent, ignore_errors=True)
    table = runpy.run_path(str(LIBRARY / "import_paths.py"))
    for path in table["PATHS"]:
        folder = LIBRARY.joinpath(*path.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(table["import_lines"](path))
        (folder / ".gitignore").write_text("*\n")


class EditableWheel(editable_wheel):
    """Puts both roots on the path, in a ``.pth`` file that editors read, where setuptools would write a finder."""

    def _select_strategy(self, name, tag, build_lib):
        return _StaticPth(self.distribution, name, [Path(), Path("envs")])


write_rllib_modules()
setup(
    packages=find_packages(include=["marl_connectors", "marl_connectors.*"]) + find_packages("envs"),
    package_dir={"marl_envs": "envs/marl_envs"},
    cmdclass={"editable_wheel": EditableWheel},
)
