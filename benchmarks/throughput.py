"""Compares the toolkit with a hand-written loop, in agent-steps per second of CPU time.

Yardstick and toolkit run in turn, each in a separate process on one thread, and every pair gives one ratio. ``limit``
compares sampling with ``bare_loop.py``, which steps the environments alone. Rows that begin with a plus have a change
of the settings, and are compared with the yardstick of the plain row. With ``--peer sb3=PYTHON``, ``rllib=PYTHON`` or
``torchrl=PYTHON``, another library takes the place of the toolkit; ``PYTHON`` is an interpreter that has it, and
``peer_sb3.py``, ``peer_rllib.py`` or ``peer_torchrl.py`` does its work.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import NamedTuple

from peers import name_and_python, result_of


class Row(NamedTuple):
    """A kind of work.

    Attributes:
        name: The name in the table.
        mode: ``sample``, ``train``, ``train_independent`` or ``limit``.
        env: The environment, a name of ``yardstick.py``.
        iterations: The number of fragments of one run.
        variant: The change of the toolkit's settings, a key of ``ours.VARIANTS``.
    """

    name: str
    mode: str
    env: str
    iterations: int = 5
    variant: str | None = None


ROWS = [
    Row("sample null 8x8", "sample", "null", 60),
    Row("+ custom column piece (adds a constant to the observation)", "sample", "null", 40, "column_piece"),
    Row("+ Box actions", "sample", "null", 40, "box"),
    Row("+ four modules mapped by a function", "sample", "null", 60, "four_modules"),
    Row("+ LSTM of 64 cells that policy and values share", "sample", "null", 20, "shared_lstm"),
    Row("+ two LSTMs of 64 cells, for policy and values", "sample", "null", 20, "two_lstms"),
    Row("+ custom item piece (set_observations for each agent)", "sample", "null", 20, "item_piece"),
    Row("sample spread", "sample", "spread", 6),
    Row("train shared null", "train", "null", 16),
    Row("train independent null", "train_independent", "null", 16),
    Row("train independent 64 agents", "train_independent", "null_64_agents", 3),
    Row("sample null, 8 x 1,000 agents", "sample", "null_1000_agents"),
    Row("sample null, 1,000 x 2 agents", "sample", "null_1000_copies"),
    Row("train shared spread", "train", "spread"),
    Row("train independent spread", "train_independent", "spread"),
    Row("limit spread", "limit", "spread", 6),
    Row("limit pursuit", "limit", "pursuit", 3),
]


class Contender(NamedTuple):
    """A library that is compared with the yardstick: its script, its Python, and the modes that it has."""

    script: str = "ours.py"
    python: str = sys.executable
    modes: tuple[str, ...] = ("sample", "train", "train_independent", "limit")


PEER_MODES = {
    "sb3": ("sample", "train"),
    "rllib": ("sample", "train", "train_independent"),
    "torchrl": ("sample", "train", "train_independent"),
}


def contender(peer: str | None) -> Contender:
    """Returns the toolkit, or the peer of ``"name=python"``."""
    if peer is None:
        return Contender()
    name, python = name_and_python(peer, PEER_MODES)
    return Contender(f"peer_{name}.py", python, PEER_MODES[name])


def rate(script: str, row: Row, variant: str | None = None, *, python: str = sys.executable, share: int = 1) -> float:
    """Returns agent-steps per second of one run with one of ``share`` parts of the row's iterations."""
    mode = "sample" if row.mode == "limit" else row.mode
    iterations = str(-(-row.iterations // share))
    arguments = [mode, row.env, iterations, *([variant] if variant else [])]
    return result_of(script, arguments, python=python)["agent_steps_per_cpu_second"]


def main() -> None:
    """Prints a table row for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="rows whose names contain one of these")
    parser.add_argument("--reps", type=int, default=9, help="pairs of runs (default 9)")
    parser.add_argument("--peer", metavar="NAME=PYTHON", help=f"compare this library: {', '.join(PEER_MODES)}")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    args = parser.parse_args()
    peer = contender(args.peer)
    known = [row for row in ROWS if row.mode in peer.modes and (args.peer is None or row.variant is None)]
    rows = [row for row in known if not args.only or any(words.lower() in row.name.lower() for words in args.only)]
    if not rows:
        parser.error(f"no row has {args.only} in its name. There are: {', '.join(row.name for row in known)}")
    if args.list:
        print("\n".join(row.name for row in rows))
        return
    print("| work | yardstick, agent-steps/s | ratio: median | min | max |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        beside = "bare_loop.py" if row.mode == "limit" else "yardstick.py"
        share = 1 if args.peer is None else 10  # a tenth of the work is long enough for a slower library
        of_peer = {"python": peer.python, "share": share}
        pairs = [(rate(beside, row), rate(peer.script, row, row.variant, **of_peer)) for _ in range(args.reps)]
        ratios = [ours / yardstick for yardstick, ours in pairs]
        base = statistics.median(yardstick for yardstick, _ in pairs)
        print(
            f"| {row.name} | {base:,.0f} | {statistics.median(ratios):.3g} | {min(ratios):.3g} | {max(ratios):.3g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
