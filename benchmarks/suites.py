"""Trains on every environment of the well-known suites, and writes the table of docs/suites.md.

Each environment runs in a separate process, so that an environment that crashes or hangs does not stop the others.
``results/suites.jsonl`` has the newest result of each environment, from which ``--write-docs`` makes the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

RESULTS = Path(__file__).parent / "results" / "suites.jsonl"
DOCS = Path(__file__).parents[1] / "docs" / "suites.md"
BEGIN, END = "<!-- table of benchmarks/suites.py -->", "<!-- end of the table -->"
PACKAGES = (
    "pettingzoo", "gymnasium", "mpe2", "magent2", "gymnasium-robotics", "mujoco", "ale-py", "multi-agent-ale-py",
    "supersuit", "rlcard", "shimmy", "chess", "pygame-ce", "box2d", "numpy", "torch",
)  # fmt: skip
COLUMNS = ("environment", "agents", "actions", "policies, wrappers, pieces")
ITERATIONS = 3


def train(case: Any, agent_steps: int = 600) -> dict[str, Any]:
    """Trains on one environment for three iterations, and returns the result.

    Args:
        case: The environment.
        agent_steps: The number of agent steps in an iteration.

    Raises:
        FloatingPointError: If a loss or a return is not a finite number.
    """
    from suite_cases import config_for

    from marl_connectors.spaces import describe

    config = config_for(case, agent_steps=agent_steps)
    algo = config.build_algo()
    began, num_episodes = time.process_time(), 0
    for _ in range(ITERATIONS):
        result = algo.train()
        sampled = result["env_runners"]
        num_episodes += sampled["num_episodes"]
        numbers = [value for module in result["learners"].values() for value in module.values()]
        numbers += [value for module in sampled["module_episode_returns"].values() for value in module.values()]
        if not all(math.isfinite(number) for number in numbers):
            raise FloatingPointError(f"not finite: {result}")
    agent_steps = result["num_agent_steps_sampled_lifetime"]
    seconds = time.process_time() - began
    setup = algo.env_runner.vector_env.sub_envs[0].env
    kind = {"SingleAgentEnv": "Gymnasium", "TurnBasedEnv": "turns"}.get(type(setup).__name__, "parallel")
    agents = list(setup.possible_agents)
    pairs = [(setup.observation_space(agent), setup.action_space(agent)) for agent in agents]
    observations, actions = (list(dict.fromkeys(describe(pair[i]) for pair in pairs)) for i in (0, 1))
    pieces = [type(piece).__name__ for piece in algo.env_runner.env_to_module]
    algo.stop()
    return {
        "kind": kind,
        "agents": len(agents),
        "observations": observations,
        "actions": actions,
        "policies": "" if kind == "Gymnasium" else _policies(config),
        "wrappers": list(case.wrappers),
        "pieces": [name for name in pieces if name in ("ActionMasking", "FlattenObservations", "ImageToFloat")],
        "agent_steps": agent_steps,
        "agent_steps_per_cpu_second": round(agent_steps / seconds),
        "num_episodes": num_episodes,
        "result": "ok",
    }


def _policies(config: Any) -> str:
    mapping = config.policy_mapping_fn
    patterns = getattr(mapping, "patterns", None)
    if patterns is not None:
        return ",".join(f"{pattern}={module_id}" for pattern, module_id in patterns)
    return {"SharedPolicy": "shared", "IndependentPolicies": "independent"}[type(mapping).__name__]


def in_a_process(case: Any, timeout: float) -> dict[str, Any]:
    """Runs ``train`` in a separate process, and returns its result, or the reason why there is none."""
    command = [sys.executable, __file__, "--case", json.dumps([case.suite, case.env, dict(case.env_config)])]
    environment = {**os.environ, "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1", "MUJOCO_GL": "egl"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"result": f"no end within {timeout:.0f} s"}
    if done.returncode < 0:
        return {"result": f"the process was ended by signal {-done.returncode}"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = [line for line in done.stderr.splitlines() if line.strip()]
        return {"result": last[-1] if last else f"exit status {done.returncode}"}
    return json.loads(lines[-1])


def versions() -> dict[str, str]:
    """Returns the versions of the packages that the results depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_results() -> dict[str, dict[str, Any]]:
    """Returns the saved results by environment."""
    if not RESULTS.exists():
        return {}
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {f"{row['suite']} {row['label']}": row for row in rows}


def write_results(results: Iterable[dict[str, Any]]) -> None:
    """Writes the results, one JSON object a line."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in results))


def markdown(results: Iterable[dict[str, Any]]) -> str:
    """Returns a Markdown table for each suite. Environments that need the same share a row."""
    by_suite: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        by_suite.setdefault(row["suite"], []).append(row)
    lines = []
    for suite, rows in by_suite.items():
        good = sum(row["result"] == "ok" for row in rows)
        lines += [f"### {suite}: {good} of {len(rows)}", ""]
        lines += [f"* `{row['label']}`: {row['result']}" for row in rows if row["result"] != "ok"]
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["result"] == "ok":
                name = row["label"].replace(" (continuous_actions=True)", "")
                by_name.setdefault(re.sub(r":(?:parallel_)?env\b", "", name), []).append(row)
        names_of: dict[tuple[str, ...], list[str]] = {}
        for name, forms in by_name.items():
            names_of.setdefault(_cells(forms), []).append(f"`{name}`".replace("|", "\\|"))
        lines += [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
        lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in names_of.items()]
        lines.append("")
    return "\n".join(lines)


def _cells(forms: list[dict[str, Any]]) -> tuple[str, ...]:
    """Returns what a table says of an environment, from the results of its forms."""
    first = forms[0]
    kinds = ("continuous" if name.startswith("Box") else "discrete" for form in forms for name in form["actions"])
    policies = f"`{first['policies']}`" if first["policies"] else ""
    used = [policies, ", ".join(f"`{name}`" for name in first["wrappers"]), ", ".join(first["pieces"])]
    settings = "; ".join(part for part in used if part).replace("|", "\\|")
    return str(first["agents"]), " or ".join(dict.fromkeys(kinds)), settings


def write_docs(results: dict[str, dict[str, Any]]) -> None:
    """Replaces the table between the two marks in docs/suites.md."""
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    used = ", ".join(f"{name} {number}" for name, number in versions().items())
    table = f"Python {sys.version_info.major}.{sys.version_info.minor}, {used}.\n\n{markdown(results.values())}"
    DOCS.write_text(f"{before}{BEGIN}\n{table}{END}{after}")


def main() -> None:
    """``suites.py [--suite SUITE] [--only TEXT] [--write-docs]``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", help="only this suite")
    parser.add_argument("--only", default="", help="only environments whose name contains this text")
    parser.add_argument("--again", action="store_true", help="only environments that failed or were never run")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for an environment (default 300)")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/suites.md and run nothing")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from suite_cases import Case, cases

    if args.case:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(train(Case(*json.loads(args.case)))))
        return
    results = read_results()
    if args.write_docs:
        write_docs(results)
        return
    every = cases(args.suite)
    for case in every:
        key = f"{case.suite} {case.label}"
        if args.only not in case.label or (args.again and results.get(key, {}).get("result") == "ok"):
            continue
        results[key] = {"suite": case.suite, "label": case.label, **in_a_process(case, args.timeout)}
        write_results(results.values())
        print(
            case.suite,
            case.label,
            results[key].get("agent_steps_per_cpu_second", ""),
            results[key]["result"],
            flush=True,
        )


if __name__ == "__main__":
    main()
