"""Runs the cases of ``differential_cases.py`` with two checkouts of the library, and compares the results.

``python benchmarks/differential.py --base ../other/checkout [--only NAME] [--jobs N]``

Each checkout runs in separate processes, on one thread. The script compares all episodes (ids, observations, actions,
rewards, ends, infos, module outputs), the train batches, results without times, parameters after each iteration, and
actions of trained policies. Everything else (this file, the cases, the environments) is that of this checkout.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class Record:
    """The data that a case has produced, ``{name: array or text}`` in this order.

    Args:
        greedy: Whether all runs of the case are without exploration.
    """

    def __init__(self, greedy: bool = False):
        self.items: dict[str, Any] = {}
        self.stage = ""
        self.greedy = greedy
        self._updates = 0

    def build(self, config: Any) -> Any:
        """Builds and returns the algorithm."""
        if self.greedy:
            config.env_runners(explore=False)
        return config.build_algo()

    def add(self, name: str, value: Any) -> None:
        """Records nested data, with an item for each leaf."""
        import numpy as np
        import torch

        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, Mapping):
            self.items[f"{name} keys"] = repr(sorted(map(str, value)))
            for key in sorted(value, key=str):
                self.add(f"{name}/{key}", value[key])
        elif isinstance(value, (list, tuple)) and not all(isinstance(part, (bool, int, float)) for part in value):
            self.items[f"{name} length"] = repr(len(value))
            for i, part in enumerate(value):
                self.add(f"{name}/{i}", part)
        elif isinstance(value, np.ndarray) and value.dtype == object:
            self.add(name, value.tolist())
        elif isinstance(value, (np.ndarray, np.generic, bool, int, float, list, tuple)):
            assert name not in self.items, name
            self.items[name] = np.array(value)
        else:
            self.items[name] = repr(value)

    def episodes(self, name: str, episodes: Sequence[Any]) -> None:
        """Records all data of episodes."""
        self.add(f"{name}/ids", [episode.id_ for episode in episodes])
        for number, episode in enumerate(episodes):
            parts = getattr(episode, "agent_episodes", None)
            at = f"{name}/episode {number}"
            self.add(f"{at}/steps", [episode.env_steps(), episode.agent_steps()])
            self.add(f"{at}/notes", dict(episode.custom_data))
            if parts is not None:
                self.add(f"{at}/ends", [episode.is_terminated, episode.is_truncated, episode.env_t_started])
                self.add(f"{at}/whole/rewards", episode.get_rewards())
            for agent_id, part in ({None: episode} if parts is None else parts).items():
                self._agent_episode(f"{at}/{agent_id}", part)

    def _agent_episode(self, at: str, part: Any) -> None:
        self.add(f"{at}/who", [part.id_, part.agent_id, part.module_id])
        self.add(f"{at}/place", [part.t_started, len(part), part.is_terminated, part.is_truncated])
        self.add(f"{at}/obs", part.get_observations())
        self.add(f"{at}/infos", list(part.get_infos()))
        data = part.get_data_dict()
        for column in sorted(data):
            if column not in ("obs", "new_obs", "infos"):
                self.add(f"{at}/{column}", data[column])

    def metrics(self, name: str, results: Mapping[str, Any]) -> None:
        """Records results without times."""
        self.add(f"{self.stage}/{name}" if self.stage else name, without_times(results))

    def weights(self, algo: Any) -> None:
        """Records all parameters."""
        self.add(f"{self.stage}/weights", algo.rl_module.get_state())

    def capture(self, config: Any) -> Any:
        """Records the train batches that the function in ``policies_to_train`` gets."""

        def look(module_id: str, batch: Mapping[str, Any]) -> bool:
            self._updates += 1
            columns = batch.get(module_id, {})
            self.add(f"{self.stage}/train batch {self._updates} of {module_id}", dict(columns))
            return True

        return config.multi_agent(policies_to_train=look)


def without_times(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns results without values that depend on the clock."""
    kept = {}
    for key, value in results.items():
        word = str(key).replace("lifetime", "")
        if "time" in word or "_per_s" in word or word.endswith("_s"):
            continue
        kept[key] = without_times(value) if isinstance(value, Mapping) else value
    return kept


# One side, in a separate process.


def run_cases(names: Sequence[str], folder: Path, greedy: bool) -> None:
    """Runs cases with the library that Python imports, and writes the record of each to a file."""
    import logging

    import torch
    from differential_cases import find

    import marl_connectors

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    expected = Path(os.environ["DIFFERENTIAL_CHECKOUT"])
    assert Path(marl_connectors.__file__).is_relative_to(expected), f"{marl_connectors.__file__} is not in {expected}"
    for name in names:
        record, began, error = Record(greedy), time.process_time(), ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                find(name)(record)
            except Exception:
                error = traceback.format_exc()
        done = {"items": record.items, "error": error, "seconds": time.process_time() - began}
        with open(folder / f"{number_of(name)}.pkl", "wb") as file:
            pickle.dump(done, file)


def number_of(name: str) -> int:
    """Returns a number for the name of a case's file."""
    return zlib.crc32(name.encode())


def start(checkout: Path, names: Sequence[str], folder: Path, greedy: bool) -> subprocess.Popen:
    """Starts a process that runs cases with the library of a checkout."""
    paths = [checkout, ROOT / "envs", ROOT / "tests", HERE]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "DIFFERENTIAL_CHECKOUT": str(checkout),
        "PYTHONHASHSEED": "0",
        "SDL_VIDEODRIVER": "dummy",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", str(Path(__file__)), "--run-in", str(folder), "--names", *names]
    return subprocess.Popen([*command, *(["--greedy"] if greedy else [])], env=environment, cwd=folder)


# The comparison.


class Difference(NamedTuple):
    """An item that differs.

    Attributes:
        name: The name of the item.
        what: A description of the difference.
        size: The largest difference, divided by the item's largest number if that is above 1; infinite if shapes,
            dtypes, keys or texts differ.
        is_trained: Whether the item was recorded after the first update.
    """

    name: str
    what: str
    size: float
    is_trained: bool


def compare(base: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    """Returns the items that differ between two runs of a case, in the order of the run."""
    found, is_trained = [], False
    for name in [*base, *(name for name in new if name not in base)]:
        is_trained = is_trained or "/result" in name or "/weights" in name
        if name not in base or name not in new:
            found.append(Difference(name, "missing" if name in base else "new", math.inf, is_trained))
        elif (what := difference(base[name], new[name])) is not None:
            found.append(Difference(name, *what, is_trained))
    return found


def difference(one: Any, other: Any) -> tuple[str, float] | None:
    """Returns a description and the size of the difference of two items; None if they are identical."""
    import numpy as np

    if isinstance(one, str) or isinstance(other, str):
        return None if str(one) == str(other) else (arrow(one, other), math.inf)
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype}{list(one.shape)} -> {other.dtype}{list(other.shape)}", math.inf
    if one.tobytes() == other.tobytes():
        return None
    if one.dtype.kind not in "fiub":
        return arrow(one, other), math.inf
    one, other = one.astype(np.float64), other.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        largest = float(np.nan_to_num(np.where(same, 0.0, np.abs(one - other)), nan=np.inf).max(initial=0.0))
    scale = float(np.nan_to_num(np.abs(one), nan=0.0, posinf=0.0).max(initial=1.0))
    return f"max difference {largest:.2g}", largest / scale


def arrow(one: Any, other: Any) -> str:
    """Returns both values with an arrow between them."""
    return f"{str(one)[:60]} -> {str(other)[:60]}"


def verdict(
    name: str, sides: Sequence[dict[str, Any]], tolerances: tuple[float, float], regrouped: Iterable[str]
) -> tuple[str, bool, list[Difference]]:
    """Returns the text of a case's row, whether the case fails, and its differences."""
    errors = [side["error"] for side in sides]
    if any(errors):
        which = "both checkouts" if all(errors) else "the base" if errors[0] else "this checkout"
        last = next(filter(None, reversed(errors))).strip().splitlines()[-1]
        return f"FAILED in {which}: {last}", True, []
    found = compare(sides[0]["items"], sides[1]["items"])
    if not found:
        return "identical", False, []
    beyond = [
        own
        for own in found
        if own.size == math.inf
        or (
            own.size > tolerances[own.is_trained]
            and not any(fnmatch.fnmatchcase(f"{name}/{own.name}", pattern) for pattern in regrouped)
        )
    ]
    largest = max(found, key=lambda own: own.size)
    if not beyond:
        return f"{largest.what} of {largest.name}; the first of {found[0].name}", False, found
    share = f"{len(found)} of {len(sides[0]['items'])} items differ"
    if largest.size == math.inf:
        return f"DIFFERENT {largest.name}: {largest.what}; the first of {found[0].name}; {share}", True, found
    return (
        f"BEYOND, first of {beyond[0].name}: {beyond[0].what}; largest of {largest.name}: {largest.what}; {share}",
        True,
        found,
    )


def chosen(names: Sequence[str], only: Sequence[str] | None) -> list[str]:
    """Returns the names of the selected cases, which contain one of the words."""
    if not only:
        return list(names)
    return [name for name in names if any(word.lower() in name.lower() for word in only)]


def all_names() -> tuple[list[str], dict[str, str]]:
    """Returns the names of the cases, and the patterns of items that may differ."""
    sys.path[:0] = [str(ROOT), str(ROOT / "envs"), str(ROOT / "tests")]
    import differential_cases

    return list(differential_cases.CASES), differential_cases.REGROUPED


def run_both(base: Path, names: Sequence[str], folder: Path, jobs: int, greedy: bool) -> None:
    """Runs all cases with both checkouts, in ``jobs`` processes at a time."""
    shares = [names[i :: max(1, jobs // 2)] for i in range(min(len(names), max(1, jobs // 2)))]
    waiting = [(where, share, folder / side) for share in shares for side, where in (("base", base), ("new", ROOT))]
    running: list[subprocess.Popen] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            checkout, share, results = waiting.pop(0)
            results.mkdir(exist_ok=True)
            running.append(start(checkout, share, results, greedy))
        running = [process for process in running if process.poll() is None]
        time.sleep(0.1)


def main() -> None:
    """Prints a row for each case; exits with 1 if anything differs by more than the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="the checkout to compare with")
    parser.add_argument("--only", nargs="+", help="cases whose names contain one of these words")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--tolerance", type=float, default=1e-6, help="largest difference allowed (default 1e-6)")
    parser.add_argument("--trained-tolerance", type=float, help="the same for all that follows the first update")
    parser.add_argument("--random", type=int, default=20, help="configurations that are drawn at random (default 20)")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed of the first of them (default 0)")
    parser.add_argument("--greedy", action="store_true", help="no exploration: runs are comparable if draws changed")
    parser.add_argument("--details", type=int, default=0, help="number of differing items to print for each case")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--run-in", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_in is not None:
        run_cases(args.names, args.run_in, args.greedy)
        return
    known, regrouped = all_names()
    drawn = [f"random {seed}" for seed in range(args.first_seed, args.first_seed + args.random)]
    names = chosen([*known, *drawn], args.only)
    if args.list:
        print("\n".join(names))
        return
    if args.base is None or not names:
        parser.error("--base is needed, and at least one case")
    later = args.tolerance if args.trained_tolerance is None else args.trained_tolerance
    tolerances = args.tolerance, later
    with tempfile.TemporaryDirectory() as folder:
        run_both(args.base.resolve(), names, Path(folder), args.jobs, args.greedy)
        failed = 0
        for name in names:
            sides = [read(Path(folder) / side / f"{number_of(name)}.pkl") for side in ("base", "new")]
            words, fails, found = verdict(name, sides, tolerances, regrouped)
            failed += fails
            seconds = sum(side["seconds"] for side in sides)
            print(f"{'!' if fails else ' '} {name}: {words}  [{len(sides[1]['items'])} items, {seconds:.1f} s]")
            for own in found[: args.details]:
                print(f"      {own.name}: {own.what}")
            for side, which in zip(sides, ("base", "this checkout"), strict=True):
                if side["error"] and args.details:
                    print(f"      in {which}:\n{side['error']}")
    print(f"{len(names) - failed} of {len(names)} cases agree within {args.tolerance:g}")
    sys.exit(failed > 0)


def read(path: Path) -> dict[str, Any]:
    """Returns what a process wrote; an error if it wrote nothing."""
    if not path.exists():
        return {"items": {}, "error": "its process ended before the case did", "seconds": 0.0}
    with open(path, "rb") as file:
        return pickle.load(file)


if __name__ == "__main__":
    main()
