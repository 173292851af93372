"""The settings of a new run: the user's options, then the zoo's settings for the environment, then the defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from marl_connectors.cli.results import number, percent
from marl_connectors.cli.run_settings import (
    SHORT_FORMS,
    TRAINING_DEFAULTS,
    RunSettings,
    batch_size_per_learner,
    check_model,
    training_settings,
)
from marl_connectors.cli.values import merged, piece_names
from marl_connectors.errors import ConfigError
from marl_connectors.typing import DEFAULT_MODULE_ID
from marl_connectors.zoo import ZooTask, find_task, tasks

BATCH_SIZE = "train_batch_size_per_learner"
_FIELDS = {field.name for field in dataclasses.fields(RunSettings)}
_NOT_FROM_OPTIONS = {"env_config", "env_to_module", "learner_connector", "model", "training", "preset"}
_OPTIONS = {"env_config": "--env-config", "wrappers": "--wrap", "training": "--set"}
"""Fields of RunSettings whose options have other names."""
_LEARNING = (
    *("policies", "mapping", "eval_opponent", "algo", "steps", "num_envs", "env_config", "wrappers", "hidden"),
    *("activation", "share_value_layers", "model", "env_to_module", "learner_connector", "anneal_lr"),
    *("action_mask_key", "training"),
)
"""The fields of RunSettings on which the results of a run depend."""


def new_settings(given: Mapping[str, Any]) -> RunSettings:
    """Returns the settings of a new run.

    Args:
        given: The options of the user. An option replaces the preset's value, except that ``env_config``, ``model``
            and ``set`` replace single values. With ``preset=False``, or where the zoo does not have the environment,
            there are no values but the options and the defaults.
    """
    task = find_task(given["env"]) if given.get("preset", True) else None
    preset = dict(task.settings) if task is not None else {}
    training, own = training_settings(given.get("set", []))
    options = {key: value for key, value in given.items() if key in _FIELDS - _NOT_FROM_OPTIONS}
    values = {**preset, **own, **options}
    if "mapping" in options:
        values.pop("policies", None)
    elif "policies" in options:
        values = {key: value for key, value in values.items() if key not in ("mapping", "modules") or key in options}
    for name in ("env_to_module", "learner_connector"):
        if name in given:
            values[name] = piece_names(given[name])
    of_preset = preset.get("training", {})
    total = of_preset.get(BATCH_SIZE, TRAINING_DEFAULTS[BATCH_SIZE])
    batch_size = batch_size_per_learner(total, values.get("num_learners", 0))
    if "anneal_lr" not in given and isinstance(training.get("lr"), list):
        values["anneal_lr"] = False  # the user's schedule replaces the preset's
    values |= _model_settings(preset, given)
    values["env_config"] = {**preset.get("env_config", {}), **merged(given.get("env_config", []))}
    values["training"] = {**TRAINING_DEFAULTS, **of_preset, BATCH_SIZE: batch_size, **training}
    return RunSettings(**values, preset=None if task is None else task.name)


def _model_settings(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of ``--model`` in addition to those of the preset.

    Settings that have an option of their own become the values of that option.
    """
    model = merged(given.get("model", []))
    check_model(model)
    short = {name: model.pop(key) for key, name in SHORT_FORMS.items() if key in model}
    for key, name in SHORT_FORMS.items():
        if name in short and name in given:
            raise ConfigError(f"--model: {key!r} is the same as --{name.replace('_', '-')}. Use one of them.")
    return {**short, "model": {**preset.get("model", {}), **model}}


def base_settings(settings: RunSettings) -> RunSettings:
    """Returns the settings that a run has without options of the user, with the same preset or without one.

    Train batches are divided among as many learners as these settings have.
    """
    given = {"env": settings.env, "preset": settings.preset is not None}
    training = new_settings({**given, "num_learners": settings.num_learners}).training
    return dataclasses.replace(new_settings(given), training=training)


def preset_task(settings: RunSettings) -> ZooTask | None:
    """Returns the zoo's task with whose settings a run began; None if it began with the defaults."""
    return next((task for task in tasks() if task.name == settings.preset), None)


def changed_options(settings: RunSettings) -> list[str]:
    """Returns the options with which the user has changed what a run learns from the preset."""
    base = base_settings(settings)
    names = [name for name in _LEARNING if getattr(settings, name) != getattr(base, name)]
    return [_OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in names]


def preset_sentence(settings: RunSettings) -> str:
    """Returns a line about a run's preset and the results to expect; ``""`` if it has none."""
    task = preset_task(settings)
    if task is None:
        return ""
    changed = changed_options(settings)
    but = f" Changed by {', '.join(changed)}, so another return is to be expected." if changed else ""
    return f"Preset of the zoo: {task.name}, {expectation(task)}; --no-preset leaves it out.{but}"


def expectation(task: ZooTask) -> str:
    """Returns what to expect of a task: return, success, steps and time."""
    success = task.expected.success
    share = (
        f", success {percent(success)} ({task.success.name})"
        if task.success is not None and success is not None
        else ""
    )
    return (
        f"expected return {expected_return(task)}{share} after {new_settings({'env': task.env}).steps:,} agent steps, "
        f"about {duration(task.expected.minutes)}"
    )


def expected_return(task: ZooTask) -> str:
    """Formats the expected return with its standard deviation over seeds, if there are several, and its module."""
    expected = task.expected
    digits = decimals(task)
    spread = "" if expected.std is None else f" ± {expected.std:,.{digits}f}"
    of = f" ({expected.module})" if expected.module not in ("", DEFAULT_MODULE_ID) else ""
    return f"{expected.mean_return:,.{digits}f}{spread}{of}"


def decimals(task: ZooTask) -> int:
    """Returns the number of decimals of a task's returns: two for small ones, such as those of games, else one."""
    return 2 if abs(task.expected.mean_return) < 2 else 1


def duration(minutes: float) -> str:
    """Formats the duration of a training.

    >>> duration(15), duration(0.2), duration(90)
    ('15 minutes', '12 seconds', '1.5 hours')
    """
    if minutes >= 90:
        value, unit = minutes / 60, "hours"
    elif minutes >= 2:
        value, unit = minutes, "minutes"
    else:
        value, unit = 60 * minutes, "seconds"
    return f"{number(value).removesuffix('.0').removesuffix('.00')} {unit}"
