"""The number of examples that a property test tries, which depends on Hypothesis's profile."""

from __future__ import annotations

import os

import hypothesis

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
"""``repeatable``: the same examples in every run. ``fresh``: other examples in every run, and thirty times as many."""

_TIMES = {"repeatable": 1, "fresh": 30}


def load_profile() -> None:
    """Sets what holds for all property tests. No example has a time limit, because the machine may be busy."""
    hypothesis.settings.register_profile(
        PROFILE,
        derandomize=PROFILE == "repeatable",
        max_examples=60 * _TIMES[PROFILE],
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile(PROFILE)


def examples(number: int) -> hypothesis.settings:
    """A decorator: the test tries so many examples in the profile ``repeatable``, and more of them in ``fresh``."""
    return hypothesis.settings(max_examples=number * _TIMES[PROFILE])
