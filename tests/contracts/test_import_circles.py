"""No module of the library imports itself by way of others, not even inside of functions. Types may name each other."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import marl_connectors

PACKAGE = Path(marl_connectors.__file__).parent


def modules() -> dict[str, Path]:
    """Every module's file, by its full name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_by(path: Path, known: dict[str, Path]) -> set[str]:
    """The library's modules that a file names in its import statements, except those for type checkers alone."""
    found, tree = set(), ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in known else node.module for name in inner)
    return found & known.keys()


def test_only_the_command_check_loads_the_close_look_at_an_environment():
    known = modules()
    within = {name for name in known if name.startswith("marl_connectors.environments.check")}
    assert len(within) > 5
    others = {name for name in known.keys() - within if imported_by(known[name], known) & within}
    assert others == {"marl_connectors.cli.check"}


def test_no_module_imports_itself_by_way_of_others():
    known = modules()
    graph = {name: imported_by(path, known) - {name} for name, path in known.items()}
    assert sum(map(len, graph.values())) > len(graph), "hardly anything is imported, so nothing was looked at"
    accelerate = {name for name in known if name.startswith("marl_connectors.accelerate.")}
    assert len(accelerate) > 5
    graph["marl_connectors.accelerators"] -= accelerate  # that folder may be missing; nothing else imports it
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' <- '.join(error.args[1])}") from None
