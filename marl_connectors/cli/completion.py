"""``marl-connectors completion``: scripts with which shells complete commands, options, tasks of the zoo and paths."""

from __future__ import annotations

import argparse
from typing import Any, cast

from marl_connectors.cli.parser import build_parser
from marl_connectors.cli.values import require_extras
from marl_connectors.zoo import tasks


def run(args: argparse.Namespace) -> int:
    """Prints the script of a shell. Returns the exit status."""
    print(script(build_parser()[0], args.shell))
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the script of a shell.

    Args:
        parser: The parser of the command line. It is changed, so it cannot parse afterwards.
        shell: ``"bash"``, ``"zsh"`` or ``"fish"``.
    """
    require_extras("shtab")
    import shtab

    names = [task.name for task in tasks()]
    for each in (parser, *_commands(parser)):
        for action in each._actions:
            if action.metavar == "FILE":
                cast(Any, action).complete = shtab.FILE
            elif action.metavar in ("RUN", "DIR", "CHECKPOINT"):
                cast(Any, action).complete = shtab.DIR
            elif action.metavar in ("ENV", "TASK"):
                action.choices = names
    return shtab.complete(parser, shell)


def _commands(parser: argparse.ArgumentParser) -> list[Any]:
    """Returns the parsers of the commands. argparse has no public list of them."""
    return [
        command for action in parser._actions if isinstance(action.choices, dict) for command in action.choices.values()
    ]
