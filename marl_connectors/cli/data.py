"""``marl-connectors data``: what recorded episodes hold."""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.algorithms.fitting.figures import number, spread, table
from marl_connectors.algorithms.fitting.pictures import draw_data
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.algorithms.fitting.run_files import writing
from marl_connectors.cli.values import require_extras
from marl_connectors.episodes.action_units import ENV, MODULE, NORMALIZED, UNSCALED
from marl_connectors.errors import ConfigError, OfflineDataWarning
from marl_connectors.json_data import jsonable
from marl_connectors.offline.episode_reader import EpisodeReader
from marl_connectors.offline.summary import summarize

_AGENTS_SHOWN = 20
_BINS, _WIDTH = 10, 40
_UNITS = {
    ENV: "as the environment gets them",
    NORMALIZED: "as modules output them, whole numbers from 0 and bounded Boxes in [-1, 1]",
    UNSCALED: "as modules output them, whole numbers from 0 and Boxes as the environment gets them",
    MODULE: "as modules output them, scaled as in the run that learns from them",
}


def run(args: argparse.Namespace) -> int:
    """Describes recorded episodes as the parsed options say. Returns the exit status, 1 if something is damaged."""
    if args.picture is not None:
        require_extras("matplotlib")
        if Path(args.picture).suffix.lower() != ".png":
            raise ConfigError(f"data: --picture writes PNG files, but {args.picture} has another ending. Use .png")
    with warnings.catch_warnings(), announced(f"reading {', '.join(map(str, args.data))}"):
        warnings.simplefilter("ignore", OfflineDataWarning)  # they are part of what is printed
        found = summarize(EpisodeReader(args.data, check_all=True))
    if args.picture is not None:
        with writing(Path(args.picture)):
            draw_data(Path(args.picture), found["all_returns"], found["all_lengths"], ", ".join(map(str, args.data)))
    print(json.dumps(jsonable(found), indent=2) if args.json else _as_text(found, args.picture))
    return 1 if found["damages"] else 0


def _as_text(found: dict[str, Any], picture: str | None) -> str:
    whole, chunks = found["whole_episodes"], found["chunks"]
    size = f"{len(found['files'])} file{'s' * (len(found['files']) != 1)}, {found['bytes'] / 1e6:,.1f} MB"
    lines = [
        f"{whole:,} whole episode{'s' * (whole != 1)} in {chunks:,} chunk{'s' * (chunks != 1)} of {found['samples']:,} "
        f"sample{'s' * (found['samples'] != 1)}: {found['env_steps']:,} env steps, {found['agent_steps']:,} agent "
        f"steps. {size}.",
        _agents_table(found["agents"]),
    ]
    columns, units = (
        list(dict.fromkeys(name for own in found["agents"].values() for name in own[kind]))
        for kind in ("columns", "action_units")
    )
    lines.append(f"Columns: {', '.join(columns)}")
    lines.append(f"Actions: {'; '.join(_UNITS[name] for name in units)}")
    if whole:
        lines.append(f"Lengths of whole episodes, in env steps: {_line_of(found['lengths'])}")
        lines.append(f"Returns of whole episodes, summed over agents: {_line_of(found['returns'])}")
        lines.append(histogram(found["all_returns"]))
    if found["damages"]:
        lines.append("Damage, without which the rest can be used:")
        lines += [f"  {damage}" for damage in found["damages"]]
    if picture is not None:
        lines.append(f"Picture: {picture}")
    return "\n".join(lines)


def _agents_table(agents: dict[Any, dict[str, Any]]) -> str:
    rows = []
    for agent_id, own in list(agents.items())[:_AGENTS_SHOWN]:
        returns = own["returns"]
        modules = ", ".join("–" if module_id is None else str(module_id) for module_id in own["steps_by_module"])
        rows.append(
            [
                "–" if agent_id is None else str(agent_id),
                modules,
                f"{sum(own['steps_by_module'].values()):,}",
                spread(None if returns is None else (returns["mean"], returns["std"])),
                own["observation_space"] or "–",
                own["action_space"] or "–",
            ]
        )
    if len(agents) > _AGENTS_SHOWN:
        rows.append([f"... {len(agents) - _AGENTS_SHOWN} more", "", "", "", "", ""])
    return table(["agent", "module", "steps", "return", "observations", "actions"], rows)


def _line_of(statistics: dict[str, float]) -> str:
    mean, std, least, most = (number(statistics[name]) for name in ("mean", "std", "min", "max"))
    return f"{mean} ± {std}, from {least} to {most}"


def histogram(values: Sequence[float]) -> str:
    """Returns a histogram of text, one line for each range of values.

    >>> print(histogram([1.0, 1.0, 2.0]))
      1.00 to 1.50  ████████████████████████████████████████ 2
      1.50 to 2.00  ████████████████████ 1
    """
    bins = min(_BINS, len(set(values)))
    counts, edges = np.histogram(values, bins=bins)
    labels = [f"{number(float(low))} to {number(float(high))}" for low, high in itertools.pairwise(edges)]
    width = max(map(len, labels))
    return "\n".join(
        f"  {label.ljust(width)}  {'█' * round(_WIDTH * int(count) / max(counts))} {count}"
        for label, count in zip(labels, counts, strict=True)
    )
