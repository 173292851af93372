"""``marl-connectors explain``: what each connector piece does to the data of an environment."""

from __future__ import annotations

import argparse
import dataclasses
import json

from marl_connectors.cli.settings import RunSettings
from marl_connectors.cli.train import TRAINING_DEFAULTS
from marl_connectors.cli.values import jsonable, merged

LEGEND = "+ added   ~ changed   - removed   > written to the trajectories; copied: bytes in memory of their own"


def run(args: argparse.Namespace) -> int:
    """Explains as the parsed options say; gives the exit status."""
    given = vars(args)
    fields = {field.name for field in dataclasses.fields(RunSettings)} - {"training", "env_config"}
    settings = RunSettings(
        **{key: value for key, value in given.items() if key in fields},
        env_config=merged(given.get("env_config", [])),
        training={**TRAINING_DEFAULTS, **merged(given.get("set", []))},
    )
    algo = settings.build_algorithm()
    try:
        from marl_connectors.algorithms.explain import explain_algorithm

        explanations = explain_algorithm(algo)
    finally:
        algo.stop()
    if "json" in given:
        print(json.dumps(jsonable({name: each.to_dict() for name, each in explanations.items()}), indent=2))
        return 0
    print(f"{settings.env}: what each piece does to one batch. {settings.num_envs} environment copies.\n{LEGEND}\n")
    print("\n\n".join(str(each) for each in explanations.values()))
    return 0
