"""Selects and formats the results of ``Algorithm.train`` and ``Algorithm.evaluate`` that people see."""

from __future__ import annotations

import functools
import math
import shutil
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.callbacks.success import SUCCESS, Success

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

_RATES_SHOWN = 8
_ENDLESS = 10**6
"""The width of what is no terminal."""
MODULES_SHOWN = 8


def agent_steps(result: Mapping[str, Any]) -> int:
    """Returns the number of agent steps sampled since the beginning of the run."""
    return int(result["num_agent_steps_sampled_lifetime"])


def module_returns(env_runner_results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns ``{module_id: (mean, standard deviation)}`` of an agent's return; NaN where no episode ended."""
    returns = env_runner_results.get("module_episode_returns", {})
    return {str(module_id): (float(stats["mean"]), float(stats["std"])) for module_id, stats in returns.items()}


def success_of(env_runner_results: Mapping[str, Any]) -> float:
    """Returns the mean success of episodes, from 0 to 1; NaN if it was not measured."""
    value = env_runner_results.get(SUCCESS)
    return math.nan if value is None else float(value)


def success_measure(config: AlgorithmConfig) -> Success | None:
    """Returns the measure of success among the callbacks of a config; None if there is none."""
    given = getattr(config, "callbacks_on_episode_end", None)
    found = given if isinstance(given, (list, tuple)) else [given]
    return next((callback for callback in found if isinstance(callback, Success)), None)


def success_name(config: AlgorithmConfig) -> str | None:
    """Returns what the callbacks of a config measure as success; None if they measure none."""
    measure = success_measure(config)
    return None if measure is None else measure.name


def percent(share: float) -> str:
    """Formats a share: ``91 %``, and a dash for NaN."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "–"


def remote_parts(result: Mapping[str, Any], num_env_runners: int) -> str:
    """Describes how fast remote env runners are, and which processes were lost; ``""`` if there are none.

    Args:
        result: The result of an iteration.
        num_env_runners: The number of remote env runners that the run began with.

    >>> faults = {"num_healthy_workers": 3, "num_remote_worker_restarts": 2}
    >>> rates = {"env_runner_env_steps_per_second": {0: 1204.3, 1: 998.7, 3: 1100.0}}
    >>> remote_parts({"timers": rates, "fault_tolerance": faults}, 4)
    'env runners: 1,204 / 999 / 1,100 env steps/s, 2 replaced, 1 lost'
    """
    faults = result.get("fault_tolerance", {})
    rates = [float(rate) for rate in result.get("timers", {}).get("env_runner_env_steps_per_second", {}).values()]
    parts = []
    if len(rates) > _RATES_SHOWN:
        parts.append(f"{len(rates)} env runners: {min(rates):,.0f} to {max(rates):,.0f} env steps/s")
    elif rates:
        parts.append(f"env runners: {' / '.join(f'{rate:,.0f}' for rate in rates)} env steps/s")
    if replaced := faults.get("num_remote_worker_restarts"):
        parts.append(f"{replaced} replaced")
    if (lost := num_env_runners - faults.get("num_healthy_workers", num_env_runners)) > 0:
        parts.append(f"{lost} lost")
    if restarts := faults.get("num_remote_learner_restarts"):
        parts.append(f"learners replaced {restarts} time{'s' if restarts > 1 else ''}")
    return ", ".join(parts)


def facts_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns what is most worth knowing of an iteration, by name: the returns of some modules, and the success."""
    returns = module_returns(result["env_runners"])
    facts = {f"return of {module_id}": spread(stats) for module_id, stats in list(returns.items())[:MODULES_SHOWN]}
    if len(returns) > MODULES_SHOWN:
        facts["more modules"] = str(len(returns) - MODULES_SHOWN)
    if math.isfinite(success := success_of(result["env_runners"])):
        facts["success"] = percent(success)
    return facts


def fewer_episodes(what: str, env_runner_results: Mapping[str, Any], wanted: int, *, was_stopped: bool = False) -> str:
    """Returns a sentence for returns of fewer episodes than requested; ``""`` if none is missing.

    Args:
        what: What was played.
        env_runner_results: The results.
        wanted: The number of requested episodes.
        was_stopped: Whether a signal has ended the playing, and not its time.

    >>> fewer_episodes("random play", {"num_episodes": 8}, 20)
    'Only 8 of 20 episodes of random play ended in time: the returns are of these.'
    >>> fewer_episodes("the trained policies", {"num_episodes": 8}, 20, was_stopped=True)
    'Only 8 of 20 episodes of the trained policies ended before the stop: the returns are of these.'
    """
    number = env_runner_results.get("num_episodes", wanted)
    if number >= wanted:
        return ""
    when = "before the stop" if was_stopped else "in time"
    if number == 0:
        unknown = f"Not every sub-environment finished an episode of {what} {when}, so the returns are unknown."
        return unknown if was_stopped else f"{unknown} Set more baseline_seconds (--baseline-seconds)."
    return f"Only {number} of {wanted} episodes of {what} ended {when}: the returns are of these."


def time_shares(timers: Mapping[str, float]) -> str:
    """Returns the shares of the parts of iterations in their time, from the sums of their ``timers``.

    >>> seconds = {"training_iteration": 10.0, "env_step_timer": 4.0, "env_reset_timer": 0.5}
    >>> seconds |= {"rlmodule_inference_timer": 2.0, "env_to_module_connector": 0.3, "module_to_env_connector": 0.5}
    >>> time_shares(seconds | {"learner_update_timer": 2.2, "learner_connector": 0.2})
    'environments 45 %, choosing actions 20 %, connectors 10 %, updates 20 %, the rest 5 %'
    """
    total = timers["training_iteration"]
    seconds = {
        "environments": timers["env_step_timer"] + timers["env_reset_timer"],
        "choosing actions": timers["rlmodule_inference_timer"],
        "connectors": sum(
            timers[name] for name in ("env_to_module_connector", "module_to_env_connector", "learner_connector")
        ),
        "updates": timers["learner_update_timer"] - timers["learner_connector"],
    }
    seconds["the rest"] = total - sum(seconds.values())
    return ", ".join(f"{name} {100 * own / total:.0f} %" for name, own in seconds.items())


def megabytes(size: int) -> str:
    """Formats a number of bytes for people.

    >>> megabytes(123_456_789), megabytes(2_300)
    ('123.5 MB', '0.0 MB')
    """
    return f"{size / 1e6:,.1f} MB"


def number(value: float) -> str:
    """Formats a return for people: three to four digits, and a dash for NaN.

    >>> number(-26.64), number(0.6123), number(12345.6), number(-2e30), number(float("nan"))
    ('-26.6', '0.612', '12,346', '-2.00e+30', '–')
    """
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1e9:
        return f"{value:.2e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def spread(mean_and_std: tuple[float, float] | None) -> str:
    """Formats a mean with its standard deviation: ``-19.8 ± 2.1``."""
    if mean_and_std is None or not math.isfinite(mean_and_std[0]):
        return "–"
    return f"{number(mean_and_std[0])} ± {number(mean_and_std[1])}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Formats rows as left-aligned columns, indented by two.

    On a terminal that is too narrow, each row is a name and a paragraph of the other cells with their columns' names.
    Where there is no terminal, as in a pipe, nothing is too wide unless the variable COLUMNS says so.
    """
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    found, width = ["  " + line.rstrip() for line in lines], shutil.get_terminal_size((_ENDLESS, 24)).columns
    if max(map(len, found)) <= width:
        return "\n".join(found)
    blocks = []
    for first, *others in rows:
        cells = ", ".join(f"{name} {cell}" for name, cell in zip(header[1:], others, strict=True))
        blocks += [f"  {first}", textwrap.fill(cells, width, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(blocks)


@functools.cache
def t_quantile(degrees_of_freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t-distribution.

    >>> round(t_quantile(4), 3)
    2.776
    """
    low, high = 1.9, 13.0  # that of the normal distribution is 1.96, and that of one degree of freedom is 12.7
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, degrees_of_freedom) < 0.95 else (low, middle)
    return (low + high) / 2


def _probability_within(t: float, degrees_of_freedom: int) -> float:
    """Returns ``P(|T| < t)`` of Student's t-distribution: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(degrees_of_freedom))
    is_odd = degrees_of_freedom % 2
    term = total = math.cos(angle) if is_odd else 1.0
    for index in range(3 if is_odd else 2, degrees_of_freedom, 2):
        term *= (index - 1) / index * math.cos(angle) ** 2
        total += term
    if not is_odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees_of_freedom > 1 else 0.0))
