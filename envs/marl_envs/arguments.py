"""Checks the arguments of the environments' constructors."""

from __future__ import annotations

import numbers

__all__ = ["check_at_least", "check_chances", "check_render_mode"]


def check_at_least(env: str, least: float, **values: float) -> None:
    """Raises a ValueError for the first of ``values`` that is below ``least`` or not a number of its kind."""
    kind, wanted = (numbers.Integral, "an integer") if isinstance(least, int) else (numbers.Real, "a number")
    for name, value in values.items():
        if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:
            raise ValueError(f"{env}: {name} must be {wanted} of at least {least}, but is {value!r}.")


def check_chances(env: str, **values: float) -> None:
    """Raises a ValueError for the first of ``values`` that is not in [0, 1]."""
    for name, value in values.items():
        if not isinstance(value, numbers.Real) or not 0.0 <= value <= 1.0:
            raise ValueError(f"{env}: {name} must be a probability in [0, 1], but is {value!r}.")


def check_render_mode(env: str, render_mode: str | None) -> None:
    """Raises a ValueError for anything but ``"rgb_array"`` and None."""
    if render_mode not in (None, "rgb_array"):
        raise ValueError(f"{env}: render_mode must be 'rgb_array' or None, but is {render_mode!r}.")
