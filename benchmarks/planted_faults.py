"""Plants the faults of planted_faults.yaml one at a time, each in a copy of the repository: which test sees which?

python benchmarks/planted_faults.py                             # all of them: hours
python benchmarks/planted_faults.py --only masks "KL" -n 4      # an area, and names with a text; -n 4 is for pytest
python benchmarks/planted_faults.py --first-only --workers 2    # only tests that are likely to see them, two at once
python benchmarks/planted_faults.py --resume RESULT.json -m "slow or learning"    # which slow test sees the rest
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".yaml")
OWN_TEST = "tests/contracts/test_planted_faults.py"  # it fails wherever a fault is planted
IMPORTED = "import marl_connectors, marl_envs; print(marl_connectors.__file__); print(marl_envs.__file__)"


class Fault(NamedTuple):
    """A fault of one line; the attributes are explained in the file that lists them."""

    name: str
    area: str
    file: str
    old: str
    new: str
    look_first: list[str]


def all_faults() -> list[Fault]:
    return [Fault(**fields) for fields in yaml.load(LIST.read_text(encoding="utf-8"), yaml.CSafeLoader)]


def wrong_in(faults: Sequence[Fault]) -> list[str]:
    """Says which faults cannot be planted any more, and why."""
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {fault.file for fault in faults}}
    wrong = [f"{f.name!r}: its old text stands {n} times" for f in faults if (n := texts[f.file].count(f.old)) != 1]
    wrong += [f"{f.name!r}: there is no {p}" for f in faults for p in f.look_first if not (ROOT / p).exists()]
    return wrong


class Copy:
    """A copy of the repository's tracked files, where tests run."""

    def __init__(self, path: Path, timeout_s: float, pytest_arguments: Sequence[str]):
        self.path = path
        self._timeout_s = timeout_s
        self._arguments = pytest_arguments
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        own = os.pathsep.join(str(path / part) for part in ("", "envs", "tests"))
        self._env = {**os.environ, "PYTHONPATH": own}
        command = [sys.executable, "-c", IMPORTED]
        found = subprocess.run(command, cwd=path, env=self._env, capture_output=True, text=True)
        if not all(line.startswith(str(path)) for line in found.stdout.split() or ["nothing"]):
            raise SystemExit(f"The packages are not imported from {path}: {found.stdout}{found.stderr}")

    def write(self, file: str, text: str) -> None:
        """Writes a module, and removes its compiled form, which looks current if both have one size and second."""
        path = self.path / file
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def failing(self, tests: Sequence[str], *options: str) -> list[str]:
        """Runs tests, all of them if none is named, and returns those that failed; what took too long, too."""
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", f"--ignore={OWN_TEST}"]
        command += [*options, *self._arguments, *tests]
        kinds: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        process = subprocess.Popen(command, cwd=self.path, env=self._env, **kinds)
        try:
            output, _ = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            return [f"no end of {' '.join(tests) or 'the suite'} in {self._timeout_s:.0f} s"]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        if process.returncode == pytest.ExitCode.USAGE_ERROR:
            raise RuntimeError(output[-2000:])
        if process.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not failed:
            return [f"pytest ended with {process.returncode}"]
        return failed


def seen(fault: Fault, copies: queue.SimpleQueue[Copy], *, first_only: bool) -> dict[str, Any]:
    """Plants a fault in one of the copies, and takes it out again."""
    began, copy = time.monotonic(), copies.get()
    text = (copy.path / fault.file).read_text(encoding="utf-8")
    try:
        copy.write(fault.file, text.replace(fault.old, fault.new))
        failed = copy.failing(fault.look_first, "-x") or ([] if first_only else copy.failing([], "-x"))
    finally:
        copy.write(fault.file, text)
        copies.put(copy)
    test = failed[0] if failed else None
    return {"area": fault.area, "caught": bool(failed), "test": test, "seconds": round(time.monotonic() - began, 1)}


def run(faults: Sequence[Fault], results: dict[str, Any], path: Path, options: argparse.Namespace, more: list[str]):
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as threads:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(options.workers):
            copies.put(Copy(Path(folder).resolve() / str(number), options.timeout, more))
        begun = {threads.submit(seen, fault, copies, first_only=options.first_only): fault for fault in faults}
        try:
            for future in as_completed(begun):
                name, found = begun[future].name, future.result()
                results[name] = found
                path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                print(f"{found['seconds']:7.1f} s  {name}: {found['test'] or 'NOT SEEN'}", flush=True)
        finally:  # when it is interrupted, the faults that wait are not begun
            threads.shutdown(cancel_futures=True)
        # A test that fails without a fault, too, has seen none. Its parameters may contain anything, so all are tried.
        tests = {name: results[name]["test"].partition("[")[0] for name in results if results[name]["caught"]}
        known = sorted({test for test in tests.values() if (ROOT / test.partition("::")[0]).exists()})
        broken = {test.partition("[")[0] for test in copies.get().failing(known)} if known else set()
        for name in [name for name, test in tests.items() if test in broken]:
            results[name]["caught"] = False
            print(f"{tests[name]} fails without the fault, too: {name}")
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="areas, and texts within names")
    parser.add_argument("--workers", type=int, default=1, help="faults at a time")
    parser.add_argument("--first-only", action="store_true", help="without the suite where look_first sees nothing")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds after which a run of pytest has failed")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "planted_faults.json"), help="results")
    parser.add_argument("--resume", type=Path, metavar="RESULT", help="go on with what was not seen in these results")
    options, more = parser.parse_known_args()
    faults = [f for f in all_faults() if not options.only or any(t == f.area or t in f.name for t in options.only)]
    if wrong := wrong_in(faults):
        raise SystemExit("\n".join(wrong))
    results = json.loads(options.resume.read_text(encoding="utf-8")) if options.resume else {}
    waiting = [fault for fault in faults if not results.get(fault.name, {}).get("caught")]
    run(waiting, results, options.resume or options.out, options, more)
    found = [results[fault.name] for fault in faults]
    for area in dict.fromkeys(own["area"] for own in found):
        caught = [own["caught"] for own in found if own["area"] == area]
        print(f"{area:14} {sum(caught):4} of {len(caught):4}")
    print(f"{'all':14} {sum(own['caught'] for own in found):4} of {len(found):4}, in {options.resume or options.out}")


if __name__ == "__main__":
    main()
