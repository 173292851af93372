"""``marl-connectors evaluate``: play episodes with the modules of a checkpoint."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.baselines import measured_baseline
from marl_connectors.algorithms.fitting.closing_evaluation import WITH_ENDED_EPISODES
from marl_connectors.algorithms.fitting.figures import (
    fewer_episodes,
    module_returns,
    number,
    percent,
    spread,
    success_name,
    success_of,
    table,
)
from marl_connectors.algorithms.fitting.progress import PlayProgress, announced
from marl_connectors.algorithms.fitting.stop_signals import InterruptGate, exit_status
from marl_connectors.algorithms.fitting.video import RECORDING, is_mp4, record_video
from marl_connectors.cli.folders import check_video_can_be_made
from marl_connectors.cli.made_config import use_threads
from marl_connectors.cli.restored_runs import (
    checkpoint_named,
    load_algorithm,
    naming_a_lost_config,
    python_source,
)
from marl_connectors.cli.training_run import BUILDING
from marl_connectors.cli.values import require_extras
from marl_connectors.json_data import jsonable

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm


def run(args: argparse.Namespace) -> int:
    """Evaluates the modules of a checkpoint as the parsed options say. Returns the exit status."""
    source = python_source(args.config, args.trusted)
    checkpoint = checkpoint_named(args.checkpoint, "evaluate")
    if args.video is not None:
        require_extras("PIL", *(["imageio_ffmpeg"] if is_mp4(Path(args.video)) else []))
        check_video_can_be_made(Path(args.video))
    use_threads(args.threads)
    # What an environment prints is not part of JSON data.
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        with naming_a_lost_config(checkpoint, "evaluate", source), announced(BUILDING):
            options = {"trusted": args.trusted, "new_episodes": True, "local": True, "source": source}
            algo = load_algorithm(checkpoint, **options)
        try:
            with InterruptGate(stops=WITH_ENDED_EPISODES) as gate:
                found = _measured(algo, checkpoint, args, gate)
        finally:
            algo.stop()
    print(json.dumps(jsonable(found), indent=2) if args.json else _as_text(found), flush=True)
    return 0 if gate.requested is None else exit_status(gate.requested)


def _measured(algo: Algorithm, checkpoint: Path, args: argparse.Namespace, gate: InterruptGate) -> dict[str, Any]:
    """Plays episodes, and records a video if one is wanted. Returns everything that ``--json`` prints.

    After a stop signal, the rest is left out.
    """
    wanted, limit = args.episodes, float(args.baseline_seconds)
    explore = algo.config.get_evaluation_config().explore if args.explore is None else args.explore
    how: dict[str, Any] = {"num_episodes": wanted, "is_enough": gate.is_requested}
    with gate.iteration(), PlayProgress(wanted, what="episodes") as watch:
        results = algo.evaluate(explore=explore, seed=args.seed, on_progress=watch, **how)["env_runners"]
    was_stopped, at_random, failed = gate.is_requested(), None, None
    if not was_stopped:
        with gate.iteration(), PlayProgress(wanted, what="episodes of random play") as watch:
            at_random = measured_baseline(algo.random_play, max_seconds=limit, on_progress=watch, **how)
    if args.video is not None and not gate.is_requested():
        with gate.iteration(), announced(RECORDING):
            failed = record_video(algo, Path(args.video), seed=args.seed, explore=explore)
    return {
        "checkpoint": str(checkpoint),
        "episodes": wanted,
        "seed": args.seed,
        "explore": explore,
        "success": success_name(algo.config),
        "results": results,
        "random_play": at_random,
        "stopped": gate.is_requested(),
        "video": args.video if failed == "" else None,
        "no_video": failed or None,
    }


def _as_text(found: Mapping[str, Any]) -> str:
    results, at_random = found["results"], found["random_play"]
    random_play = {} if at_random is None else module_returns(at_random)
    rows = [
        [module_id, spread(mean_and_std), extremes, spread(random_play.get(module_id))]
        for (module_id, mean_and_std), extremes in zip(module_returns(results).items(), _extremes(results), strict=True)
    ]
    manner = "drawn from the policies" if found["explore"] else "the most likely ones"
    lines = [
        f"{found['checkpoint']}: {results['num_episodes']} episodes, actions are {manner}.",
        "Return of an agent per episode:",
        table(["module", "mean ± std", "min to max", "random play"], rows),
    ]
    if found["success"] is not None and math.isfinite(success_of(results)):
        by_chance = "" if at_random is None else f", in random play {percent(success_of(at_random))}"
        lines.append(f"Success ({found['success']}): {percent(success_of(results))}{by_chance}.")
    was_stopped = found["stopped"]
    missing = [fewer_episodes("the policies", results, found["episodes"], was_stopped=True)]
    if at_random is not None:
        missing.append(fewer_episodes("random play", at_random, found["episodes"], was_stopped=was_stopped))
    lines += [sentence for sentence in missing if sentence]
    if was_stopped:
        lines.append("Stopped by a signal. What is missing here was not measured.")
    lines.append(f"Episodes last {number(float(results['episode_len_mean']))} steps on average.")
    if found["video"] is not None or found["no_video"] is not None:
        lines.append(found["no_video"] or f"Video: {found['video']}")
    return "\n".join(lines)


def _extremes(results: dict) -> list[str]:
    stats = results["module_episode_returns"].values()
    return [f"{number(float(each['min']))} to {number(float(each['max']))}" for each in stats]
