"""The number of examples that a property test tries, which depends on Hypothesis's profile."""

from __future__ import annotations

import os

import hypothesis

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
"""``repeatable``: the same few examples in every run. ``fresh``: other examples in every run, and far more of them."""

_TIMES = {"repeatable": 1 / 8, "fresh": 8}


def load_profile() -> None:
    """Sets what holds for all property tests. No example has a time limit, because the machine may be busy."""
    hypothesis.settings.register_profile(
        PROFILE,
        derandomize=PROFILE == "repeatable",
        max_examples=_times(60),
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile(PROFILE)


def examples(number: int) -> hypothesis.settings:
    """A decorator: tries an eighth of so many examples in ``repeatable``, eight times as many in ``fresh``."""
    return hypothesis.settings(max_examples=_times(number))


def _times(number: int) -> int:
    return max(min(number, 5), round(number * _TIMES[PROFILE]))
