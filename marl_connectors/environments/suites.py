"""Well-known suites of environments: where their modules are, what users call them, and what they need."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUITES = {
    "mpe2": "mpe2",
    "sisl": "pettingzoo.sisl",
    "butterfly": "pettingzoo.butterfly",
    "classic": "pettingzoo.classic",
    "atari": "pettingzoo.atari",
    "magent2": "magent2.environments",
    "mamujoco": "gymnasium_robotics.envs.multiagent_mujoco",
    "marl_envs": "marl_envs",
}
"""The packages whose modules, called ``name_vN``, are PettingZoo environments, by the suites' short names."""

PIP_NAMES = {
    "mpe2": "mpe2",
    "pettingzoo": "pettingzoo",
    "magent2": "magent2",
    "vmas": "vmas",
    "supersuit": "supersuit",
    "gymnasium_robotics": "gymnasium-robotics",
    "ale_py": "ale-py",
    "marl_envs": "marl-connectors",
}
"""What to install for a package, by the name that it is imported by."""

GYMNASIUM_NAMESPACES = {"ALE": "ale_py"}
"""The packages that register Gymnasium ids of these namespaces when they are imported."""

_VERSIONED = re.compile(r"_v\d+$")


def importable_name(env: str) -> str:
    """The module, or the module and attribute, that a short name stands for.

    A suite's environment may be called by its module's name alone, or behind its suite's name, with ``/`` in place of
    dots, and with ``-v3`` in place of ``_v3``, as PettingZoo's ids are. A module that can be imported by the name as it
    stands comes first, and a name that is none of a suite's is given back as it is.

    >>> importable_name("marl_envs/match-v0:parallel_env")
    'marl_envs.match_v0:parallel_env'
    """
    module_name, colon, attribute = env.partition(":")
    dotted = re.sub(r"-(v\d+)$", r"_\1", module_name.replace("/", "."))
    if not all(part.isidentifier() for part in dotted.split(".")):
        return env
    package, _, last = dotted.rpartition(".")
    if not (last in _modules(package) if package else _is_at_top(last)):
        dotted = next(_matching(package, last), dotted if _is_at_top(dotted.partition(".")[0]) else module_name)
    return f"{dotted}{colon}{attribute}"


def _matching(before: str, last: str) -> Iterator[str]:
    """The suites' modules of that name."""
    for short, package in SUITES.items():
        if before in ("", short, package, package.partition(".")[0]) and last in environments_of(package):
            yield f"{package}.{last}"


def environments_of(package: str) -> list[str]:
    """The environments' modules of a suite's package, without importing it; none if it is not installed."""
    return [name for name in _modules(package) if _VERSIONED.search(name)]


def _modules(package: str) -> set[str]:
    """The modules of a package. Imports nothing, as find_spec would import the packages around it."""
    top, *inner = package.split(".")
    found = importlib.util.find_spec(top) if _is_at_top(top) and top not in sys.modules else sys.modules.get(top)
    folders = getattr(found, "submodule_search_locations", None) or getattr(found, "__path__", ())
    return {module.name for module in pkgutil.iter_modules([str(Path(folder, *inner)) for folder in folders])}


def _is_at_top(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def known_environments() -> list[str]:
    """The names of all installed suites' environments, without the suites."""
    return [name for package in SUITES.values() for name in environments_of(package)]


def pip_name(module_name: str, missing: str) -> str:
    """What to install for a package that an environment's module could not import."""
    family = re.match(r"pettingzoo\.(sisl|butterfly|classic|atari)\b", module_name)
    if family and missing.partition(".")[0] != "pettingzoo":
        return f"pettingzoo[{family[1]}]"
    return PIP_NAMES.get(missing.partition(".")[0], missing.partition(".")[0])


def of_suite(module_name: str) -> dict[str, Any]:
    """What EnvMaker should know of an environment of a suite: PettingZoo's Atari games take their ROMs from ale-py."""
    if not module_name.startswith("pettingzoo.atari."):
        return {}
    roms = importlib.util.find_spec("ale_py")
    settings = {"auto_rom_install_path": str(Path(roms.origin).parent)} if roms and roms.origin else {}
    return {"settings": settings, "advice": "ROMs come with ale-py: pip install ale-py."}
