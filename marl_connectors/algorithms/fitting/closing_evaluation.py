"""The evaluation at the end: policies that draw their actions are also measured with their most likely actions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting import baselines
from marl_connectors.algorithms.fitting.figures import (
    fewer_episodes,
    module_returns,
    number,
    percent,
    spread,
    success_name,
    success_of,
    t_quantile,
    table,
)
from marl_connectors.algorithms.fitting.parts import Part
from marl_connectors.algorithms.fitting.progress import PlayProgress
from marl_connectors.algorithms.fitting.run_files import DRAWN, MOST_LIKELY, WAYS, from_json
from marl_connectors.algorithms.fitting.stop_signals import InterruptGate
from marl_connectors.json_data import jsonable

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm

WITH_ENDED_EPISODES = "with the episodes that have ended"


class ClosingEvaluation(Part):
    """Measures the trained policies with ``eval_episodes``, and compares them with the baselines.

    A first signal ends it with the episodes that have ended.
    """

    def at_end(self) -> None:
        run, wanted = self.run, self.run.settings.eval_episodes
        if not wanted:
            return
        run.say(f"\nMeasuring the trained policies: {wanted} episodes ...")
        with InterruptGate(stops=WITH_ENDED_EPISODES) as gate, gate.iteration():
            how: dict[str, Any] = {"seed": run.algo.seed, "is_enough": gate.is_requested, "watching": run.watching}
            results = evaluate_both_ways(run.algo, num_episodes=wanted, **how)
        for sentence in self._about(results):
            run.say(sentence)
        is_whole = all(each["num_episodes"] >= wanted for each in both_ways(results).values())
        if is_whole:
            run.folder.write_final(jsonable(results))
        if gate.requested is not None:
            run.requested = gate.requested
            rest = "" if is_whole else f" To measure all episodes: {run.folder.resume}"
            run.say(f"\nStopped. Training is complete in {run.folder.path}.{rest}")

    def _about(self, results: Mapping[str, Any]) -> list[str]:
        """Returns the returns and the success of the trained policies beside those that were measured before."""
        before = self.run.folder.baselines
        measured = {name: module_returns(from_json(own)) for name, own in before.items()}
        (way, _), *others = both_ways(results).items()
        columns = {"at start": measured["at_start"]} if before else {}
        columns["now"] = module_returns(results)
        columns |= {WAYS[other]: module_returns(own) for other, own in others}
        columns |= {"random play": measured["random_play"]} if before else {}
        rows = [[module_id, *(spread(own.get(module_id)) for own in columns.values())] for module_id in columns["now"]]
        manner = f", with {WAYS[way]}" if others else ""
        played = results["num_episodes"]
        said = [
            f"\nReturn of an agent per episode{manner}, mean ± standard deviation of {played} episodes:",
            table(["module", *columns], rows),
        ]
        if (name := success_name(self.run.algo.config)) is not None and math.isfinite(success_of(results)):
            now = f"{percent(success_of(results))} now"
            now += "".join(f" ({percent(success_of(own))} with {WAYS[other]})" for other, own in others)
            shares = {key: percent(success_of(own)) for key, own in before.items()}
            compared = (
                f"{shares['at_start']} at start, {now}, {shares['random_play']} in random play" if before else now
            )
            said.append(f"\nSuccess ({name}): {compared}.")
        if others:
            shared = {m for m, own in results["module_episode_returns"].items() if own["num_episodes"] > played}
            drawn, likely = (intervals(both_ways(results)[each]) for each in WAYS)
            said.append(about_both_ways(drawn, likely, shared))
        wanted = self.run.settings.eval_episodes
        said += [fewer_episodes(baselines.NAMES[key], own, wanted) for key, own in before.items()]
        said.append(fewer_episodes("the trained policies", results, wanted, was_stopped=True))
        return [sentence for sentence in said if sentence]


def evaluate_both_ways(
    algo: Algorithm, *, num_episodes: int, watching: Any = PlayProgress, **how: Any
) -> dict[str, Any]:
    """Evaluates policies as they were trained, or as the user decides, and the other way if they draw their actions.

    Args:
        algo: The ``Algorithm``.
        num_episodes: As for ``Algorithm.evaluate``.
        watching: Makes the ``on_progress`` of each evaluation from the number of episodes, for a ``with`` block.
        **how: Other arguments of ``Algorithm.evaluate``.

    Returns:
        The results of ``env_runners``, with ``"explore"``: whether their actions were drawn. Those of the other way of
        acting are under ``"most_likely_actions"`` or ``"drawn_actions"``; they are missing for algorithms that learn
        values or deterministic policies.
    """
    explore = bool(algo.config.get_evaluation_config().explore)
    other = {(MOST_LIKELY if explore else DRAWN): not explore} if algo.config.draws_actions else {}
    found = []
    for way in (explore, *other.values()):
        with watching(num_episodes) as watch:
            played = algo.evaluate(num_episodes=num_episodes, explore=way, on_progress=watch, **how)
            found.append(played["env_runners"])
    return {**found[0], "explore": explore, **dict(zip(other, found[1:], strict=True))}


def both_ways(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the results of each way of acting in those of ``evaluate_both_ways``, the one that counts first."""
    own = DRAWN if results["explore"] else MOST_LIKELY
    return {own: results, **{way: results[way] for way in WAYS if way in results}}


def intervals(results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns the mean return of each module, and half the width of its 95 % interval by Student's t-distribution.

    Episodes count as independent, and the agents of one episode do not.
    """
    num = results["num_episodes"]
    factor = t_quantile(num - 1) / math.sqrt(num) if num > 1 else math.nan
    return {module_id: (mean, factor * std) for module_id, (mean, std) in module_returns(results).items()}


def about_both_ways(
    drawn: Mapping[str, tuple[float, float]], likely: Mapping[str, tuple[float, float]], shared: Collection[str]
) -> str:
    """Returns a sentence if drawn and most likely actions differ by more than their intervals; else ``""``.

    Args:
        drawn: ``{module_id: (mean, half the width of its interval)}`` with drawn actions.
        likely: The same with the most likely actions.
        shared: The modules that act for several agents.
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
            "themselves, for ever, so act with drawn actions (load_policy(PATH, explore=True), export --explore)"
        )
        if not gains.keys().isdisjoint(shared):
            why += ", or give agents their id (--env-to-module AgentIdEncoding)"
    return f"The two ways of acting differ by more than their 95 % intervals ({shown}): {why}."
