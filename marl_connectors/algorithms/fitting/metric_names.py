"""The metrics that users name: of the best checkpoint (``--keep-best``) and of sweeps (``--metric``)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.callbacks.success import SUCCESS
from marl_connectors.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

AUTO: Final = "auto"
"""The setting ``keep_best`` that chooses by the metrics of ``AUTO_METRICS`` that the results of the run have."""
LOWEST: Final = "min:"
"""The beginning of a metric whose lowest value is the best."""
EVALUATION, TRAINING, OFFLINE_EVALUATION = "evaluation", "env_runners", "offline_evaluation"
"""The parts of results in which episodes are."""
OF_EVALUATION: Final = f"{EVALUATION}/{TRAINING}"
"""Where evaluations have what ``env_runners`` has of training."""
RETURN: Final = "episode_return_mean"
AUTO_METRICS: Final = tuple((f"{place}/{SUCCESS}", f"{place}/{RETURN}") for place in (OF_EVALUATION, TRAINING))
"""The metrics by which ``auto`` chooses: the first pair of which the results have a return, which decides ties."""
_EXAMPLES: Final = (RETURN, "episode_return_min", "episode_return_max", "episode_len_mean", SUCCESS)
_LATER: Final = ("learners", OFFLINE_EVALUATION)
"""Parts that the first results may lack, because nothing is learned yet, or nothing is evaluated in each iteration."""
_PARTS: Final = (EVALUATION, TRAINING, "timers", "replay_buffer", *_LATER)
"""The parts of results, in which names are known from the first results on that have the part."""
_CONNECTORS: Final = ("env_to_module_connector", "module_to_env_connector", "learner_connector")


def metrics_of(keep_best: str | None) -> list[tuple[str, ...]]:
    """Returns the metrics by which the best checkpoint is chosen.

    There may be several possibilities, of which the first is used that results have. Each begins with the metric that
    counts, and goes on with the one that decides its ties.

    >>> metrics_of("env_runners/success"), metrics_of(None)
    ([('env_runners/success', 'env_runners/episode_return_mean')], [])
    """
    if keep_best is None:
        return []
    if keep_best == AUTO:
        return list(AUTO_METRICS)
    place = OF_EVALUATION if keep_best.removeprefix(LOWEST).startswith(f"{EVALUATION}/") else TRAINING
    return [tuple(dict.fromkeys([keep_best, f"{place}/{RETURN}"]))]


def why_missing(metric: str, names: Collection[str], config: AlgorithmConfig, *, own_code: bool | None = None) -> str:
    """Returns why results of a run have no metric, with the closest name; "" if they have it, or may have it later.

    Metrics of episodes appear when an episode has ended, those of evaluations with the first evaluation, and those of
    the user's own code at any time.

    Args:
        metric: The metric, maybe with ``min:``.
        names: The names in the results so far, as ``leaves`` has them; none before the first results.
        config: The ``AlgorithmConfig`` of the run.
        own_code: Whether code of the user's may log the metric later; None to find out.
    """
    name = metric.removeprefix(LOWEST)
    if name in names:
        return ""
    place, slash, _ = name.partition("/")
    evaluates = bool(getattr(config, "evaluation_interval", None))
    for part, interval in ((EVALUATION, "evaluation_interval"), (OFFLINE_EVALUATION, "offline_evaluation_interval")):
        if place == part and not getattr(config, interval, None):
            how = f"Add --set {interval}=5, or config.evaluation({interval}=5)"
            return f"there is no {name!r}, because nothing is evaluated during training. {how}"
    own_code = has_own_code(config) if own_code is None else own_code
    if not names:
        if (slash and place in _PARTS) or name.startswith(("num_", "time_")) or own_code:
            return ""
        known = [f"{part}/{each}" for part in (TRAINING, OF_EVALUATION)[: 1 + evaluates] for each in _EXAMPLES]
        return f"no result is called {name!r}. {closest_metric(name, known)}"
    of_evaluations = {each for each in names if each.startswith(f"{EVALUATION}/")}
    if place == EVALUATION and not of_evaluations:
        of_evaluations = {f"{EVALUATION}/{each}" for each in names if each.startswith(f"{TRAINING}/")}
    if place in _LATER and not any(each.startswith(f"{place}/") for each in names):
        return ""
    no_episode = not any(each.startswith(f"{TRAINING}/module_episode_returns/") for each in names)
    if name in of_evaluations or (place in (EVALUATION, TRAINING) and no_episode):
        return ""
    if own_code:
        return ""
    return f"no result is called {name!r}. {closest_metric(name, {*names, *of_evaluations})}"


def check_metric(
    metric: str | None,
    names: Collection[str],
    config: AlgorithmConfig,
    who: str = "--keep-best",
    more: str = "",
    *,
    callbacks: Sequence[Any] = (),
) -> None:
    """Checks that results have a metric, as soon as they must have it.

    Args:
        metric: The metric, ``"auto"`` or None.
        names: The names in the results so far.
        config: The ``AlgorithmConfig`` of the run.
        who: The first words of the message.
        more: Its last words.
        callbacks: Callbacks that are not in the config.

    Raises:
        ConfigError: If they do not have it. Names the closest one.
    """
    if metric in (None, AUTO):
        return
    own_code = None if not callbacks else has_own_code(config, callbacks)
    if why := why_missing(str(metric), names, config, own_code=own_code):
        raise ConfigError(f"{who}: {why}{more}")


def closest_metric(name: str, names: Collection[str]) -> str:
    """Returns a closing sentence that names the closest metric, or some of them."""
    with_levels = "(.*/)?" + "/(.*/)?".join(map(re.escape, name.split("/")))
    whole = next((each for each in sorted(names) if re.fullmatch(with_levels, each)), name)
    close = did_you_mean(whole, sorted(names))
    some = [each for each in sorted(names) if each.removeprefix(f"{EVALUATION}/").count("/") == 1]
    return close if close.startswith("Did you mean") else f"Some results are: {', '.join(some[:12])}."


def has_own_code(config: AlgorithmConfig, callbacks: Sequence[Any] = ()) -> bool:
    """Whether code of the user, which may log metrics of its own, takes part in a run.

    Args:
        config: The ``AlgorithmConfig`` of the run.
        callbacks: Callbacks that are not in the config.
    """
    return any(_is_users(part) for part in (*_parts(config), *callbacks))


def _parts(config: AlgorithmConfig) -> Iterator[Any]:
    for name in (
        "algo_class",
        "callbacks_class",
        "learner_class",
        *_CONNECTORS,
        *(f"callbacks_{each}" for each in CALLBACK_NAMES),
    ):
        value = getattr(config, name, None)
        yield from value if isinstance(value, (list, tuple)) else [value]


def _is_users(part: Any) -> bool:
    names = getattr(part, "names", None)  # of NamedPieces
    if names is not None:
        return any(re.match(r"[\w.]+:[A-Za-z_]\w*(:|$)", str(each)) for each in names)
    module = getattr(part, "__module__", None) or type(part).__module__
    return part is not None and not str(module).startswith("marl_connectors.")
