"""Measures how fast trained policies act, how fast they are loaded, and how long imports take.

Each policy is loaded from a checkpoint in a process of its own, on one thread. *Over the forward pass* is the median
time of one call minus the median time of the module's own ``forward_inference`` in the same process. With
``--peer sb3=PYTHON`` and ``--peer rllib=PYTHON`` (interpreters that have the libraries), ``latency_sb3.py`` and
``latency_rllib.py`` do the same with SB3 and RLlib; every run of a peer follows one of this library, and gives a ratio.
All times are CPU times, so other programs on the machine do not count. Acting uses one thread.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from latency_cases import CASES, OWN_CASES
from peers import name_and_python, result_of

IMPORTS = {
    "ours": "from marl_connectors import PPOConfig",
    "sb3": "from stable_baselines3 import PPO",
    "rllib": "from ray.rllib.algorithms.ppo import PPOConfig",
}
"""The import of a training script."""
ROWS = (1, 8, 256)


class Library(NamedTuple):
    """A library, with an interpreter that has it."""

    name: str
    python: str


def import_seconds(library: Library) -> float:
    """Returns the CPU seconds of an import, without the start of Python."""
    code = f"import time; began = time.process_time(); {IMPORTS[library.name]}; print(time.process_time() - began)"
    done = subprocess.run([library.python, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def run_of(library: Library, folder: Path, case: str, rows: int) -> dict[str, Any]:
    """Loads a policy in a new process, and times its actions."""
    arguments = ["act", str(folder / library.name), case, str(rows)]
    return result_of(f"latency_{library.name}.py", arguments, python=library.python)


def line(what: str, of_libraries: list[list[float]], unit: str, digits: int, more: list[str]) -> str:
    """Returns a row of a table: medians, the ratios of the peers to this library, and further cells."""
    ours, *others = of_libraries
    cells = [f"{statistics.median(ours):,.{digits}f} {unit}", *more]
    for own in others:
        times = statistics.median(theirs / mine for theirs, mine in zip(own, ours, strict=True))
        cells.append(f"{statistics.median(own):,.{digits}f} {unit}, {times:.2g} times")
    return " | ".join(["", what, *cells, ""]).strip()


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="sb3=PYTHON, rllib=PYTHON")
    every = (*CASES, *OWN_CASES)
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="the policies (default: all)")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="rows of a call (default: 1 8 256)")
    parser.add_argument("--reps", type=int, default=5, help="runs of each library, in turn (default 5)")
    args = parser.parse_args()
    names = [name for name in IMPORTS if name != "ours"]
    peers = [Library(*name_and_python(peer, names)) for peer in args.peer]
    libraries = [Library("ours", sys.executable), *peers]
    heads = "".join(f" {library.name} |" for library in peers)
    lines = "".join(" --- |" for _ in peers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for library in libraries:
            cases = [case for case in args.only if library is libraries[0] or case in CASES]
            save = ["save", str(folder / library.name), *cases]
            result_of(f"latency_{library.name}.py", save, python=library.python)
        print(f"| CPU time | ours |{heads}\n| --- | --- |{lines}")
        seconds = [[import_seconds(library) for library in libraries] for _ in range(args.reps)]
        print(line("import for training", _turned(seconds), "s", 2, []), flush=True)
        table, starts = [], []
        for case in args.only:
            able = libraries if case in CASES else libraries[:1]
            for rows in args.rows if case in CASES else [1]:
                found = [[run_of(library, folder, case, rows) for library in able] for _ in range(args.reps)]
                starts += found if rows == min(args.rows) and case in CASES else []
                acts = _turned([[own["act_us"] for own in turn] for turn in found])
                over = statistics.median(turn[0]["act_us"] - turn[0]["forward_us"] for turn in found)
                forward = statistics.median(turn[0]["forward_us"] for turn in found)
                own = line(f"{case}, rows: {rows}", acts, "µs", 0, [f"{forward:.0f} µs", f"{over:.0f} µs"])
                table.append(own + " – |" * (len(libraries) - len(able)))
        if starts:
            started = _turned([[own["start_s"] for own in turn] for turn in starts])
            print(line("start of the process to the first action", started, "s", 2, []))
    print(f"\n| policy | ours | its forward pass | over the forward pass |{heads}\n| --- | --- | --- | --- |{lines}")
    print("\n".join(table))


def _turned(turns: list[list[float]]) -> list[list[float]]:
    """Returns the values library by library instead of turn by turn."""
    return [list(own) for own in zip(*turns, strict=True)]


if __name__ == "__main__":
    main()
