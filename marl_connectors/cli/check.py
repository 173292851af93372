"""``marl-connectors check``: the problems that training on an environment would have."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import sys

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.cli.layers import tree_of_options
from marl_connectors.cli.parser import words_of
from marl_connectors.cli.tree import ENV_CONFIG
from marl_connectors.environments.check.check_env import check_env
from marl_connectors.json_data import jsonable

EXIT_ERRORS = 1
_OPTIONS = ("episodes", "seed", "max_steps", "max_seconds", "call_timeout", "conformance")


def run(args: argparse.Namespace) -> int:
    """Checks an environment as the parsed options say. Returns the exit status."""
    given, tree = vars(args), tree_of_options(words_of(args), AlgorithmConfig())
    env_config = {
        place.removeprefix(f"{ENV_CONFIG}."): own for place, own in tree.items() if place.startswith(ENV_CONFIG)
    }
    options = {key: given[key] for key in _OPTIONS if key in given}
    if "environment.action_mask_key" in tree:
        options["action_mask_key"] = tree["environment.action_mask_key"]
    if wrappers := tree.get("environment.wrappers"):
        options["wrappers"] = wrappers
    # What an environment prints is not part of the report.
    with (
        contextlib.redirect_stdout(sys.stderr),
        _crash_traces(),
        announced(f"checking the environment, at most {given.get('max_seconds', 60):g} s"),
    ):
        report = check_env(args.env, env_config=env_config, **options)
    print(json.dumps(jsonable(report.to_dict()), indent=2) if "json" in given else report)
    return 0 if report.ok else EXIT_ERRORS


@contextlib.contextmanager
def _crash_traces():
    """Shows the line of Python in which the environment crashes the interpreter, if it does."""
    if faulthandler.is_enabled() or sys.__stderr__ is None:
        yield
        return
    faulthandler.enable(sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.disable()
