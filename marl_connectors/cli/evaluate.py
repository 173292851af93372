"""``marl-connectors evaluate``: play episodes with the modules of a checkpoint."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from marl_connectors.checkpoints import find_checkpoint
from marl_connectors.cli.progress import PlayProgress
from marl_connectors.cli.results import (
    fewer_episodes,
    module_returns,
    number,
    percent,
    spread,
    success_name,
    success_of,
    table,
)
from marl_connectors.cli.run_folder import reading
from marl_connectors.cli.run_settings import use_threads
from marl_connectors.cli.seed_summary import is_seeds_folder, read_seeds, seed_folder
from marl_connectors.cli.train import load_algorithm
from marl_connectors.cli.values import require_extras
from marl_connectors.cli.video import check_video_can_be_made, record_video
from marl_connectors.errors import ConfigError


def run(args: argparse.Namespace) -> int:
    """Evaluates the modules of a checkpoint as the parsed options say. Returns the exit status."""
    if is_seeds_folder(Path(args.checkpoint)):
        raise ConfigError(
            f"evaluate: expected a checkpoint or the folder of a run, but {args.checkpoint} has the runs of several "
            f"seeds. Choose one: {Path(args.checkpoint) / seed_folder(read_seeds(Path(args.checkpoint))[1][0])}"
        )
    if args.video is not None:
        require_extras("PIL")
        check_video_can_be_made(Path(args.video))
    use_threads(args.threads)
    with reading(Path(args.checkpoint)):
        checkpoint = find_checkpoint(args.checkpoint)
    algo = load_algorithm(checkpoint, trusted=args.trusted, new_episodes=True, local=True)
    try:
        wanted, limit = args.episodes, float(args.baseline_seconds)
        results = algo.evaluate(
            num_episodes=wanted, explore=args.explore, seed=args.seed, on_progress=PlayProgress(wanted)
        )
        at_random = algo.random_play(num_episodes=wanted, max_seconds=limit, on_progress=PlayProgress(wanted))
        random_play = module_returns(at_random)
        rows = [
            [module_id, spread(mean_and_std), extremes, spread(random_play.get(module_id))]
            for (module_id, mean_and_std), extremes in zip(
                module_returns(results).items(), _extremes(results), strict=True
            )
        ]
        manner = "drawn from the policies" if args.explore else "the most likely ones"
        print(f"{checkpoint}: {args.episodes} episodes, actions are {manner}.")
        print("Return of an agent per episode:")
        print(table(["module", "mean ± std", "min to max", "random play"], rows))
        if (what := success_name(algo.config)) is not None and math.isfinite(success_of(results)):
            random_success = percent(success_of(at_random))
            print(f"Success ({what}): {percent(success_of(results))}, in random play {random_success}.")
        if sentence := fewer_episodes("random play", at_random, wanted):
            print(sentence)
        print(f"Episodes last {number(float(results['episode_len_mean']))} steps on average.")
        if args.video is not None:
            print(record_video(algo, Path(args.video), seed=args.seed) or f"Video: {args.video}")
    finally:
        algo.stop()
    return 0


def _extremes(results: dict) -> list[str]:
    stats = results["module_episode_returns"].values()
    return [f"{number(float(each['min']))} to {number(float(each['max']))}" for each in stats]
