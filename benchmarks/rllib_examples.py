"""Runs RLlib's own examples with this library, for the table of docs/rllib.md.

It needs the folder ``ray/rllib`` of RLlib 2.60, of an installed Ray or of its repository, and the packages that the
examples import themselves, such as ``dm-tree``. The examples are copied to a temporary folder, where ``ray.rllib`` is
replaced by ``marl_connectors`` in them. Each runs in a process of its own, with stand-ins for what surrounds RLlib in
the examples: Ray Tune's registry, and the function that runs an experiment, which makes two small iterations here.

    python benchmarks/rllib_examples.py --rllib SITE_PACKAGES/ray/rllib              # all of them, some ten minutes
    python benchmarks/rllib_examples.py --rllib SITE_PACKAGES/ray/rllib learners/    # those whose paths contain a text
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

PACKAGE = "ported_examples"
LEFT_OUT = {"_old_api_stack", "classes", "utils"}
ITERATIONS = 2
SMALL = {"train_batch_size_per_learner": 400, "minibatch_size": 100, "num_epochs": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rllib", type=Path, required=True, help="RLlib's folder, which contains examples/")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each example")
    parser.add_argument("--details", action="store_true", help="print the whole output of examples that fail")
    parser.add_argument("--run", metavar="EXAMPLE", help=argparse.SUPPRESS)  # the process of one example
    parser.add_argument("only", nargs="*", help="texts, one of which the path of an example has to contain")
    args = parser.parse_args()
    if args.run:
        run_example(args.run, args.rllib)
        return
    examples = args.rllib / "examples"
    if not examples.is_dir():
        parser.error(f"--rllib: there is no folder {examples}. Name the folder ray/rllib of RLlib's sources.")
    with tempfile.TemporaryDirectory() as folder:
        copy_examples(examples, Path(folder) / PACKAGE)
        print("| example | outcome |\n| --- | --- |")
        for path in paths_of(examples):
            if not args.only or any(text in path for text in args.only):
                outcome, output = outcome_of(path, args.rllib.absolute(), Path(folder), args.timeout)
                print(f"| `{path}` | {outcome} |", flush=True)
                if args.details and outcome != "runs":
                    print(output, file=sys.stderr)


def paths_of(examples: Path) -> list[str]:
    """Returns the paths of the examples, without files that only other examples import."""
    paths = [path.relative_to(examples) for path in sorted(examples.rglob("*.py"))]
    return [
        path.as_posix()
        for path in paths
        if len(path.parts) > 1 and path.stem != "__init__" and not LEFT_OUT & set(path.parts)
    ]


def copy_examples(examples: Path, target: Path) -> None:
    """Copies all examples with replaced imports."""
    for source in examples.rglob("*.py"):
        text = source.read_text().replace("ray.rllib.examples", PACKAGE).replace("ray.rllib", "marl_connectors")
        copy = target / source.relative_to(examples)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)


def outcome_of(path: str, rllib: Path, folder: Path, timeout: float) -> tuple[str, str]:
    """Runs an example in a process of its own; returns its outcome in a few words, and its output."""
    command = [sys.executable, __file__, "--rllib", str(rllib), "--run", path]
    root = Path(__file__).parents[1]
    paths = [str(folder), str(root), str(root / "envs"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"still running after {timeout:g} s", ""
    if done.returncode == 0:
        return "runs", done.stdout
    errors = re.findall(r"^[\w.]*(?:Error|Exception|Exit|Warning)\b.*", done.stderr, re.MULTILINE)
    return (errors[-1] if errors else f"exit status {done.returncode}").replace("|", "\\|"), done.stderr


# The process of one example.


def run_example(path: str, rllib: Path) -> None:
    """Runs an example as a script, with the stand-ins in the place of what it imports."""
    parser = example_parser(rllib / "examples" / "utils.py")
    install_stand_ins(parser)
    source = (Path.cwd() / PACKAGE / path).read_text()
    sys.argv = [path]
    if "add_rllib_example_script_args" in source or "--stop-iters" in source:
        sys.argv += ["--stop-iters", str(ITERATIONS)]
    if "Must set --num-agents" in source:
        sys.argv += ["--num-agents", "2"]
    runpy.run_module(f"{PACKAGE}.{path.removesuffix('.py').replace('/', '.')}", run_name="__main__")


def example_parser(utils: Path) -> Any:
    """Returns RLlib's function that adds the options of examples, without importing the rest of its module."""
    tree = ast.parse(utils.read_text())
    (function,) = (s for s in tree.body if getattr(s, "name", "") == "add_rllib_example_script_args")
    names: dict[str, Any] = {"argparse": argparse}
    body = ast.parse("from typing import Any, Optional").body
    exec(compile(ast.Module([*body, function], []), str(utils), "exec"), names)
    return names["add_rllib_example_script_args"]


def install_stand_ins(parser: Any) -> None:
    """Puts modules into ``sys.modules`` for the examples' own runner, and for the parts of Ray Tune that they name."""
    import marl_connectors

    modules = {
        f"{PACKAGE}.utils": {
            "add_rllib_example_script_args": parser,
            "run_rllib_example_script_experiment": run_experiment,
            "should_stop": lambda stop, results, keep_ray_up=False: results["training_iteration"] >= ITERATIONS,
        },
        "ray.tune": {"register_env": marl_connectors.register_env},
        "ray.tune.registry": {
            "register_env": marl_connectors.register_env,
            "get_trainable_cls": lambda name: getattr(marl_connectors, name),
        },
        "ray.tune.result": {"TRAINING_ITERATION": "training_iteration", "TIME_TOTAL_S": "time_total_s"},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    with contextlib.suppress(ImportError):
        import ray

        ray.tune = sys.modules["ray.tune"]  # type: ignore[attr-defined]


class Result(dict[str, Any]):
    """The results of the last iteration, with what the examples read of Ray Tune's results."""

    def __init__(self, metrics: dict[str, Any], checkpoint: str):
        super().__init__(metrics)
        self.metrics = metrics
        self.checkpoint = types.SimpleNamespace(path=checkpoint, to_directory=lambda: checkpoint)

    def get_best_result(self, *args: Any, **kwargs: Any) -> Result:
        return self


def run_experiment(base_config: Any, args: Any = None, *, keep_config: bool = False, **how: Any) -> Result:
    """Makes two small iterations in this process, and a checkpoint."""
    config = base_config
    if args is not None and not keep_config:
        if args.env is not None and config.env is None:
            config.environment(args.env)
        if args.evaluation_interval:
            config.evaluation(
                evaluation_interval=args.evaluation_interval,
                evaluation_duration=args.evaluation_duration,
                evaluation_duration_unit=args.evaluation_duration_unit,
            )
    config.env_runners(num_env_runners=0).learners(num_learners=0)
    config.evaluation(evaluation_num_env_runners=0, evaluation_parallel_to_training=False)
    known = config.to_dict()
    config.training(**{name: min(known[name] or most, most) for name, most in SMALL.items() if name in known})
    algo = config.build_algo()
    for _ in range(ITERATIONS):
        metrics = algo.train()
    checkpoint = algo.save_to_path(tempfile.mkdtemp(dir=Path.cwd()) + "/checkpoint")
    algo.stop()
    return Result(metrics, checkpoint)


if __name__ == "__main__":
    main()
