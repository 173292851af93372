"""What a run reports: policies that draw their actions are also measured with their most likely actions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from marl_connectors.algorithms.fitting.figures import module_returns, number
from marl_connectors.algorithms.fitting.progress import PlayProgress
from marl_connectors.cli.run_folder import DRAWN, MOST_LIKELY, WAYS
from marl_connectors.cli.seed_summary import t_quantile

BASELINE_PATIENCE = 10
"""How many times its seconds random play may take for a single episode, where no other has ended."""


def evaluate_both_ways(algo: Any, *, num_episodes: int, **how: Any) -> dict[str, Any]:
    """Evaluates policies as they were trained, or as the user decides, and the other way if they draw their actions.

    Args:
        algo: The ``Algorithm``.
        num_episodes: As for ``Algorithm.evaluate``.
        **how: Other arguments of ``Algorithm.evaluate``.

    Returns:
        The results, with ``"explore"``: whether their actions were drawn. Those of the other way of acting are under
        ``"most_likely_actions"`` or ``"drawn_actions"``; they are missing for algorithms that learn values or
        deterministic policies.
    """
    explore = bool(algo.config.get_evaluation_config().explore)
    other = {(MOST_LIKELY if explore else DRAWN): not explore} if algo.config.draws_actions else {}
    found = []
    for way in (explore, *other.values()):
        with PlayProgress(num_episodes) as watch:
            found.append(algo.evaluate(num_episodes=num_episodes, explore=way, on_progress=watch, **how))
    return {**found[0], "explore": explore, **dict(zip(other, found[1:], strict=True))}


def both_ways(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the results of each way of acting in those of ``evaluate_both_ways``, the one that counts first."""
    own = DRAWN if results["explore"] else MOST_LIKELY
    return {own: results, **{way: results[way] for way in WAYS if way in results}}


def measured_baseline(play: Any, *, num_episodes: int, max_seconds: float, **how: Any) -> dict[str, Any]:
    """Plays episodes for some seconds; if these do not suffice, a single whole episode, which may take longer.

    Args:
        play: ``Algorithm.random_play`` or ``Algorithm.evaluate``.
        num_episodes: The number of episodes.
        max_seconds: The seconds.
        **how: Other arguments of ``play``.
    """
    found = play(num_episodes=num_episodes, max_seconds=max_seconds, **how)
    if found["num_episodes"]:
        return found
    return play(num_episodes=1, max_seconds=BASELINE_PATIENCE * max_seconds, **how)


def intervals(results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns the mean return of each module, and half the width of its 95 % interval by Student's t-distribution.

    Episodes count as independent, and the agents of one episode do not.
    """
    num = results["num_episodes"]
    factor = t_quantile(num - 1) / math.sqrt(num) if num > 1 else math.nan
    return {module_id: (mean, factor * std) for module_id, (mean, std) in module_returns(results).items()}


def about_both_ways(drawn: Mapping[str, tuple[float, float]], likely: Mapping[str, tuple[float, float]]) -> str:
    """Returns a sentence if drawn and most likely actions differ by more than their intervals; else ``""``.

    Args:
        drawn: ``{module_id: (mean, half the width of its interval)}`` with drawn actions.
        likely: The same with the most likely actions.
    """
    gains = {
        module_id: likely[module_id][0] - mean
        for module_id, (mean, half_width) in drawn.items()
        if module_id in likely and abs(likely[module_id][0] - mean) > half_width + likely[module_id][1]
    }
    if not gains:
        return ""
    shown = ", ".join(
        f"{module_id} gets {number(drawn[module_id][0])} with drawn actions and {number(likely[module_id][0])} with "
        f"the most likely ones"
        for module_id in gains
    )
    if min(gains.values()) > 0:
        why = (
            "the policies are still noisy, so train longer or with a smaller entropy_coeff, or act with the most "
            "likely actions, as load_policy(PATH) does"
        )
    else:
        why = (
            "policies without memory that always take their most likely actions can block each other, or repeat "
            "themselves, for ever, so act with drawn actions (load_policy(PATH, explore=True), export --explore), or "
            "give agents their id (--env-to-module AgentIdEncoding)"
        )
    return f"The two ways of acting differ by more than their 95 % intervals ({shown}): {why}."
