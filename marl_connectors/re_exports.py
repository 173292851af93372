"""Packages that re-export public names, each of which is imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import marl_connectors


def re_exports(package: str, *names: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns ``__getattr__``, ``__dir__`` and ``__all__`` of a package that re-exports names of ``marl_connectors``.

    Importing the package then imports none of the files that define the names, so these files may be in the package.

    Args:
        package: The name of the package.
        *names: Public names of ``marl_connectors``.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(marl_connectors, name)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *names}), list(names)
