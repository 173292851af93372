"""``marl-connectors train``: train policies with one seed or several, each run in a folder."""

from __future__ import annotations

import argparse
import sys

from marl_connectors.cli import seeds
from marl_connectors.cli.training_run import new_tree, prepared
from marl_connectors.cli.values import require_extras


def run(args: argparse.Namespace) -> int:
    """Trains modules as the parsed options say, with one seed or several. Returns the exit status."""
    given = vars(args)
    if "resume" not in given:
        given = {**given, "tree": new_tree(given)}
    if seeds.is_for_seeds(given):
        return seeds.run(given)
    require_extras("matplotlib", "PIL", *(["rich"] if sys.stdout.isatty() else []))
    return prepared(given).run()
