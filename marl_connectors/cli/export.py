"""``marl-connectors export``: write the policy of a checkpoint as ONNX programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting.figures import table
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.algorithms.fitting.run_files import reading
from marl_connectors.algorithms.inference.load_policy import load_policy
from marl_connectors.algorithms.inference.onnx_export import require_onnx
from marl_connectors.cli.restored_runs import (
    check_of_run,
    checkpoint_named,
    config_of_python_file,
    naming_a_lost_config,
    python_source,
)
from marl_connectors.programs import command


def run(args: argparse.Namespace) -> int:
    """Exports the policy of a checkpoint as the parsed options say. Returns the exit status."""
    source = python_source(args.config, args.trusted)
    checkpoint = checkpoint_named(args.checkpoint, "export")
    require_onnx()
    with naming_a_lost_config(checkpoint, "export", source), announced("loading the policy"):
        check_of_run(checkpoint)
        config = config_of_python_file(checkpoint, source) if args.trusted else None
        policy = load_policy(checkpoint, args.module, config=config, trusted=args.trusted)
    folder = Path(args.checkpoint) / "export" if args.out is None else Path(args.out)
    doing = "writing the programs" + (", and comparing them with the policy" if args.check else "")
    with reading(folder), announced(doing):
        policy.export_onnx(folder, explore=args.explore, opset=args.opset, check=args.check)
        contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
    manner = "draw actions from random numbers" if args.explore else "take the most likely actions"
    print(f"{checkpoint}: the programs {manner}.")
    print(table(["file", "kB", "agents", "inputs"], [_row(folder, own, contract) for own in contract["files"]]))
    compared = "The programs were compared with the policy, on sampled observations." if args.check else ""
    print(f"{compared}\nWritten to {folder}, with contract.json and onnx_policy.py, which acts without torch:".lstrip())
    play = "import sys; sys.path[0] = sys.argv[1]; from onnx_policy import OnnxPolicy; "
    print(f"  {command('python', '-c', f'{play}print(OnnxPolicy(sys.argv[1]).agent_ids)', folder)}")
    return 0


def _row(folder: Path, about: dict[str, Any], contract: dict[str, Any]) -> list[str]:
    agents = [str(own["agent"]) for own in contract["agents"] if own["file"] == about["file"]]
    size = (folder / about["file"]).stat().st_size / 1000
    shown = ", ".join(agents[:4]) + (f", ... ({len(agents)})" if len(agents) > 4 else "")
    return [about["file"], f"{size:.0f}", shown, ", ".join(own["name"] for own in about["inputs"])]
