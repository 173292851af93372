"""The version of the library."""

from __future__ import annotations

from importlib import metadata


def library_version() -> str:
    """The installed version of this library, or ``"unknown"`` when it runs from a source tree."""
    try:
        return metadata.version("marl-connectors")
    except metadata.PackageNotFoundError:
        return "unknown"
