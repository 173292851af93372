"""``marl-connectors record``: play episodes with the policies of a run, or at random, and write them to files."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from marl_connectors.algorithms.fitting.figures import module_returns, spread, table
from marl_connectors.algorithms.fitting.progress import PlayProgress
from marl_connectors.cli.config_files import resolved
from marl_connectors.cli.presets import new_settings
from marl_connectors.cli.restored_runs import checkpoint_named, load_algorithm
from marl_connectors.cli.run_settings import use_threads
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import jsonable
from marl_connectors.offline.episode_writer import EpisodeWriter
from marl_connectors.programs import PROGRAM, command

RANDOM = "random"
_OF_ENV = ("env", "env_config", "wrappers", "num_envs")


def run(args: argparse.Namespace) -> int:
    """Records episodes as the parsed options say. Returns the exit status."""
    given = vars(args)
    _check(given)
    EpisodeWriter(given["out"]).begin()
    use_threads(1)
    number = given["episodes"]
    with contextlib.redirect_stdout(sys.stderr) if given["json"] else contextlib.nullcontext():
        algo = _algorithm(given)
        try:
            results = algo.record(
                given["out"],
                num_episodes=number,
                explore=given["explore"] or None,
                at_random=given["source"] == RANDOM,
                seed=given["seed"],
                unstorable_infos="drop" if given["drop_infos"] else "error",
                on_progress=PlayProgress(number),
            )
        finally:
            algo.stop()
    if given["json"]:
        found = {"source": given["source"], "out": given["out"], "episodes": number, "results": results}
        print(json.dumps(jsonable(found), indent=2))
        return 0
    print(_as_text(given, results))
    return 0


def _check(given: dict[str, Any]) -> None:
    """Checks that the options fit together.

    Raises:
        ConfigError: If they do not.
    """
    if given["source"] == RANDOM:
        if "env" not in given:
            raise ConfigError("record random: name the environment: --env ENV")
        if given["explore"]:
            raise ConfigError("record random: all actions are random, so leave --explore out")
        return
    for name in _OF_ENV:
        if name in given:
            option = {"env_config": "--env-config", "wrappers": "--wrap", "num_envs": "--num-envs"}.get(name, "--env")
            raise ConfigError(
                f"record: {option} is for random play; {given['source']} has the environment that it was trained in. "
                f"Leave the option out, or write: record random {option} ..."
            )


def _algorithm(given: dict[str, Any]) -> Any:
    """Builds the algorithm of the run, or one for random play."""
    if given["source"] != RANDOM:
        checkpoint = checkpoint_named(given["source"], "record")
        return load_algorithm(checkpoint, trusted=given["trusted"], new_episodes=True, local=True)
    settings = new_settings(resolved({**{name: given[name] for name in _OF_ENV if name in given}, "preset": False}))
    return settings.make_config().build_algo()


def _as_text(given: dict[str, Any], results: dict[str, Any]) -> str:
    number, source = given["episodes"], given["source"]
    manner = "drawn" if given["explore"] else "the most likely ones"
    who = "at random" if source == RANDOM else f"with the policies of {source}, actions are {manner}"
    rows = [[module_id, spread(mean_and_std)] for module_id, mean_and_std in module_returns(results).items()]
    return "\n".join(
        [
            f"{number} episode{'s' * (number != 1)} {who}. Return of an agent per episode:",
            table(["module", "mean ± std"], rows),
            f"Written to {given['out']}. What is in it: {command(PROGRAM, 'data', given['out'])}",
        ]
    )
