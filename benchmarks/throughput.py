"""How near the toolkit comes to a hand-written loop, in agent-steps per second of CPU time.

Yardstick and toolkit run in turn, each in a process of its own on one thread, and every pair gives one ratio. ``limit``
is sampling beside ``bare_loop.py``: what the environments alone would do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORK = [
    ("sample", "null"),
    ("sample", "null_1000_agents"),
    ("sample", "null_1000_copies"),
    ("sample", "spread"),
    ("limit", "spread"),
    ("limit", "pursuit"),
    ("train", "null"),
    ("train_independent", "null"),
    ("train", "spread"),
    ("train_independent", "spread"),
]
ITERATIONS = {("sample", "null"): 60, ("sample", "spread"): 6, ("train", "null"): 16, ("train_independent", "null"): 16}
LIMIT_ITERATIONS = {"spread": 6, "pursuit": 3}


def rate(script: str, mode: str, name: str) -> float:
    """Agent-steps per second of one run."""
    iterations = str(LIMIT_ITERATIONS[name] if mode == "limit" else ITERATIONS.get((mode, name), 5))
    environment = {
        **os.environ,
        "SDL_VIDEODRIVER": "dummy",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(HERE / script), "sample" if mode == "limit" else mode, name, iterations]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["agent_steps_per_cpu_second"]


def main() -> None:
    """Prints a table row for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", nargs="?", choices=sorted({mode for mode, _ in WORK}))
    parser.add_argument("env", nargs="?", choices=["null", "null_1000_agents", "null_1000_copies", "spread", "pursuit"])
    parser.add_argument("--reps", type=int, default=5, help="pairs of runs (default 5)")
    args = parser.parse_args()
    work = [(m, e) for m, e in WORK if args.mode in (None, m) and args.env in (None, e)] or [(args.mode, args.env)]
    print("| work | yardstick, agent-steps/s | ratio: median | min | max |\n| --- | --- | --- | --- | --- |")
    for mode, name in work:
        beside = "bare_loop.py" if mode == "limit" else "yardstick.py"
        pairs = [(rate(beside, mode, name), rate("ours.py", mode, name)) for _ in range(args.reps)]
        ratios = [ours / yardstick for yardstick, ours in pairs]
        base = statistics.median(yardstick for yardstick, _ in pairs)
        print(
            f"| {mode.replace('_', ', ')}, {name} | {base:,.0f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} | {max(ratios):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
