"""``marl-connectors explain``: what each connector piece does to the data of an environment or of a user's config."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.cli.layers import PRESET, resolved, user_tree
from marl_connectors.cli.made_config import in_this_process, make_config, use_threads
from marl_connectors.cli.parser import words_of
from marl_connectors.cli.training_run import BUILDING
from marl_connectors.cli.tree import ENV
from marl_connectors.environments.registry.factory import env_name
from marl_connectors.errors import ConfigError, counted
from marl_connectors.json_data import jsonable

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm

LEGEND = "+ added   ~ changed   - removed   > written to the trajectories"


def run(args: argparse.Namespace) -> int:
    """Explains pipelines as the parsed options say. Returns the exit status."""
    given = vars(args)
    with announced(BUILDING):
        algo = _algorithm(given)
    try:
        with announced("playing, and making batches"):
            explanations = algo.explain()
    finally:
        algo.stop()
    if "json" in given:
        print(json.dumps(jsonable({name: each.to_dict() for name, each in explanations.items()}), indent=2))
        return 0
    num_envs = counted(algo.config.num_envs_per_env_runner, "sub-environment")
    env = algo.config.env if isinstance(algo.config.env, str) else env_name(algo.config.env)
    print(f"{env}: what each piece does to one batch. {num_envs}.\n{LEGEND}")
    print(f"Action masks: {algo.masking}\n" if str(algo.masking) else "")
    print(explanations)
    return 0


def _algorithm(given: dict[str, Any]) -> Algorithm:
    """Builds the algorithm of the user's config with the given options; or of the options and defaults alone."""
    words = words_of(given)
    if words.last(ENV) is None and words.config is None:
        raise ConfigError("explain: name an environment, or a config that has one: --config FILE.py")
    user = user_tree(words)
    if words.config is None:
        user = {PRESET: False, "env_runners.num_env_workers": 0, **user}
    tree = resolved(user)
    use_threads(tree["run.threads"])
    return in_this_process(make_config(tree)).build_algo()
