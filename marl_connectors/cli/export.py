"""``marl-connectors export``: write the policy of a checkpoint as ONNX programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting.figures import table
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.algorithms.inference.load_policy import load_policy
from marl_connectors.algorithms.inference.onnx_export import require_onnx
from marl_connectors.checkpoints import find_checkpoint
from marl_connectors.cli.run_folder import reading
from marl_connectors.cli.seed_summary import is_seeds_folder, read_seeds, seed_folder
from marl_connectors.cli.train import config_of_python_file
from marl_connectors.errors import ConfigError


def run(args: argparse.Namespace) -> int:
    """Exports the policy of a checkpoint as the parsed options say. Returns the exit status."""
    if is_seeds_folder(Path(args.checkpoint)):
        raise ConfigError(
            f"export: expected a checkpoint or the folder of a run, but {args.checkpoint} has the runs of several "
            f"seeds. Choose one: {Path(args.checkpoint) / seed_folder(read_seeds(Path(args.checkpoint))[1][0])}"
        )
    require_onnx()
    with reading(Path(args.checkpoint)):
        checkpoint = find_checkpoint(args.checkpoint)
    config = config_of_python_file(checkpoint) if args.trusted else None
    with announced("loading the policy"):
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
    print(f"  cd {folder}")
    print(f'  python -c "from onnx_policy import OnnxPolicy; print(OnnxPolicy({"."!r}).agent_ids)"')
    return 0


def _row(folder: Path, about: dict[str, Any], contract: dict[str, Any]) -> list[str]:
    agents = [str(own["agent"]) for own in contract["agents"] if own["file"] == about["file"]]
    size = (folder / about["file"]).stat().st_size / 1000
    shown = ", ".join(agents[:4]) + (f", ... ({len(agents)})" if len(agents) > 4 else "")
    return [about["file"], f"{size:.0f}", shown, ", ".join(own["name"] for own in about["inputs"])]
