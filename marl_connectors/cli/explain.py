"""``marl-connectors explain``: what each connector piece does to the data of an environment."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from marl_connectors.cli.config_source import load_config, with_options
from marl_connectors.cli.settings import TRAINING_DEFAULTS, RunSettings, training_settings, use_threads
from marl_connectors.cli.values import jsonable, merged
from marl_connectors.environments.making.factory import env_name
from marl_connectors.errors import ConfigError

LEGEND = "+ added   ~ changed   - removed   > written to the trajectories"


def run(args: argparse.Namespace) -> int:
    """Explains as the parsed options say; gives the exit status."""
    given = vars(args)
    algo = _algorithm(given)
    try:
        from marl_connectors.algorithms.explain import explain_algorithm

        explanations = explain_algorithm(algo)
    finally:
        algo.stop()
    if "json" in given:
        print(json.dumps(jsonable({name: each.to_dict() for name, each in explanations.items()}), indent=2))
        return 0
    copies = algo.config.num_envs_per_env_runner
    env = algo.config.env if isinstance(algo.config.env, str) else env_name(algo.config.env)
    print(f"{env}: what each piece does to one batch. {copies} sub-environments.\n{LEGEND}")
    print(f"Action masks: {algo.masking}\n" if str(algo.masking) else "")
    print("\n\n".join(str(each) for each in explanations.values()))
    return 0


def _algorithm(given: dict[str, Any]) -> Any:
    """Of a config of the user's, with the options that were given; or of the options and defaults alone."""
    options: dict[str, Any] = {key: merged(value) if key == "env_config" else value for key, value in given.items()}
    training, own_settings = training_settings(options.pop("set", []))
    options = {**own_settings, **options}
    if "config" in given:
        use_threads(given.get("threads", 1))
        return with_options(load_config(given["config"]), {**options, "training": training}).build_algo()
    if "env" not in given:
        raise ConfigError("explain: name an environment, or a config that has one: --config FILE.py")
    fields = {field.name for field in dataclasses.fields(RunSettings)} - {"training"}
    own: dict[str, Any] = {key: value for key, value in options.items() if key in fields}
    return RunSettings(**own, num_env_workers=0, training={**TRAINING_DEFAULTS, **training}).build_algorithm()
