"""``marl-connectors record``: play episodes with the policies of a run, or at random, and write them to files."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.closing_evaluation import WITH_ENDED_EPISODES
from marl_connectors.algorithms.fitting.figures import module_returns, spread, table
from marl_connectors.algorithms.fitting.progress import PlayProgress, announced
from marl_connectors.algorithms.fitting.stop_signals import InterruptGate, exit_status
from marl_connectors.cli.layers import PRESET, Words, resolved, user_tree
from marl_connectors.cli.made_config import make_config, use_threads
from marl_connectors.cli.restored_runs import checkpoint_named, load_algorithm
from marl_connectors.cli.training_run import BUILDING
from marl_connectors.errors import ConfigError, MarlConnectorsError
from marl_connectors.json_data import jsonable
from marl_connectors.offline.episode_reader import EpisodeReader
from marl_connectors.offline.episode_writer import EpisodeWriter
from marl_connectors.offline.recording_file import SUFFIX
from marl_connectors.programs import PROGRAM, command

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm

RANDOM = "random"


def run(args: argparse.Namespace) -> int:
    """Records episodes as the parsed options say. Returns the exit status."""
    given = vars(args)
    _check(given)
    with EpisodeWriter(given["out"]) as writer:
        writer.begin()  # its errors come before the policies are loaded; an empty folder is removed again
    use_threads(1)
    gate = InterruptGate(stops=WITH_ENDED_EPISODES)
    with contextlib.redirect_stdout(sys.stderr) if given["json"] else contextlib.nullcontext():
        with announced(BUILDING):
            algo = _algorithm(given)
        try:
            explores = algo.config.get_evaluation_config().explore if given["explore"] is None else given["explore"]
            results = _recorded(algo, given, gate)
        except KeyboardInterrupt as stop:
            print(f"\nStopped at once. {_what_is_kept(given)}", flush=True)
            return exit_status(stop)
        except MarlConnectorsError:
            if _num_written(given["out"]):
                print(f"\nStopped by an error. {_what_is_kept(given)}", flush=True)
            raise
        finally:
            algo.stop()
    if given["json"]:
        found = {"source": given["source"], "out": given["out"], "episodes": given["episodes"]}
        found |= {"results": results, "stopped": gate.is_requested()}
        print(json.dumps(jsonable(found), indent=2))
    else:
        print(_as_text(given, results, explores), flush=True)
    return 0 if gate.requested is None else exit_status(gate.requested)


def _recorded(algo: Algorithm, given: dict[str, Any], gate: InterruptGate) -> dict[str, Any]:
    """Records episodes, those that have ended if a signal comes first. Returns their results."""
    wanted = given["episodes"]
    with gate, gate.iteration(), PlayProgress(wanted) as watch:
        return algo.record(
            given["out"],
            num_episodes=wanted,
            explore=given["explore"],
            at_random=given["source"] == RANDOM,
            seed=given["seed"],
            unstorable_infos="drop" if given["drop_infos"] else "error",
            on_progress=watch,
            is_enough=gate.is_requested,
        )["env_runners"]


def _check(given: dict[str, Any]) -> None:
    """Checks that the options fit together.

    Raises:
        ConfigError: If they do not.
    """
    if given["source"] == RANDOM:
        if "env" not in given:
            raise ConfigError("record random: name the environment: --env ENV")
        if given["explore"] is not None:
            raise ConfigError("record random: all actions are random, so leave --explore and --no-explore out")
        return
    for option in [*(["--env"] if "env" in given else []), *(option for option, _ in given.get("given", []))]:
        raise ConfigError(
            f"record: {option} is for random play; {given['source']} has the environment that it was trained in. "
            f"Leave the option out, or write: record random {option} ..."
        )


def _algorithm(given: dict[str, Any]) -> Algorithm:
    """Builds the algorithm of the run, or one for random play."""
    if given["source"] != RANDOM:
        checkpoint = checkpoint_named(given["source"], "record")
        return load_algorithm(checkpoint, trusted=given["trusted"], new_episodes=True, local=True)
    words = Words([("ENV", given["env"]), *given.get("given", [])])
    return make_config(resolved({**user_tree(words), PRESET: False})).build_algo()


def _num_written(out: str) -> int:
    return EpisodeReader(out).num_episodes if any(Path(out).glob(f"*{SUFFIX}")) else 0


def _what_is_kept(given: dict[str, Any]) -> str:
    """Returns how many episodes are complete in the folder, and the commands to go on with."""
    out, wanted, number = given["out"], given["episodes"], _num_written(given["out"])
    if number == 0:
        return "No episode was written. The same command begins anew."
    told = f"{number} of {wanted} episodes are complete in {out}. Next:\n  {command(PROGRAM, 'data', out)}"
    if number == wanted:
        return told
    others = f"--episodes {wanted - number} --seed {given['seed'] + 1}"
    return f"{told}\nFor the others, repeat the command with {others} and another --out."


def _as_text(given: dict[str, Any], results: dict[str, Any], explores: bool) -> str:
    number, source = results["num_episodes"], given["source"]
    is_whole = number == given["episodes"]
    if number == 0:
        return f"\nStopped. {_what_is_kept(given)}"
    manner = "drawn" if explores else "the most likely ones"
    who = "at random" if source == RANDOM else f"with the policies of {source}, actions are {manner}"
    rows = [[module_id, spread(mean_and_std)] for module_id, mean_and_std in module_returns(results).items()]
    return "\n".join(
        [
            f"{number} episode{'s' * (number != 1)} {who}. Return of an agent per episode:",
            table(["module", "mean ± std"], rows),
            f"Written to {given['out']}. What is in it: {command(PROGRAM, 'data', given['out'])}"
            if is_whole
            else f"\nStopped. {_what_is_kept(given)}",
        ]
    )
