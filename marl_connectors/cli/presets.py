"""The settings of a new run: the user's options, then the zoo's settings for the environment, then the defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from marl_connectors.algorithms.fitting.figures import percent
from marl_connectors.algorithms.fitting.run_files import DRAWN, MOST_LIKELY, WAYS
from marl_connectors.cli.config_files import NO_VIDEO, PAIRS, PER_ENV_RUNNER, check_video_every, layer, layer_of
from marl_connectors.cli.config_settings import (
    batch_size_per_learner,
    check_model,
    has_lr_schedule,
    load_config,
    settings_of,
)
from marl_connectors.cli.known_algorithms import ALGORITHMS, are_alike
from marl_connectors.cli.run_settings import RunSettings, settings_from_json
from marl_connectors.cli.values import merged, piece_names
from marl_connectors.errors import ConfigError
from marl_connectors.typing import DEFAULT_MODULE_ID
from marl_connectors.zoo import FILE, ZooTask, find_task, tasks

BATCH_SIZE = "train_batch_size_per_learner"
_FIELDS = {field.name for field in dataclasses.fields(RunSettings)}
_OPTIONS = {"env_config": "--env-config", "wrappers": "--wrap", "training": "--set"}
"""Fields of RunSettings whose options have other names."""
_LEARNING = (
    *(
        "policies",
        "mapping",
        "eval_opponent",
        "eval_explore",
        "algo",
        "steps",
        "num_envs",
        "env_config",
        "wrappers",
        "hidden",
    ),
    *("activation", "share_value_layers", "model", "env_to_module", "learner_connector", "anneal_lr"),
    *("action_mask_key", "training"),
)
"""The fields of RunSettings on which the results of a run depend."""


def new_settings(given: Mapping[str, Any]) -> RunSettings:
    """Returns the settings of a new run.

    Args:
        given: The layer of the user's options and file. A value replaces that of the base, except that ``env_config``,
            ``model`` and ``set`` replace single values. The base is the ``config.json`` or Python file that the layer
            names. Otherwise, it has the zoo's settings for the environment and the defaults, or with ``preset=False``
            the defaults alone.

    Raises:
        ConfigError: If it names a Python file and another algorithm than that of the config in it.
    """
    given = _with_algorithm(layer(given))
    base = _base(given)
    values = {name: getattr(base, name) for name in _FIELDS}
    changes = {name: given[name] for name in _FIELDS & given.keys() if name not in (*PAIRS, "preset", "config")}
    if base.config is not None and changes.get("algo", base.algo) != base.algo:
        raise ConfigError(
            f"--algo: {base.config} makes the config of {base.algo!r}, which an option cannot turn into that of "
            f"{changes['algo']!r}. Leave it out, or use another config in the file."
        )
    training = merged(given.get("set", []))
    if changes.get("env", base.env) != base.env:
        values |= {"env_config": {}, "wrappers": [], "preset": None}
    if {"policies", "mapping"} & changes.keys():
        values |= {"policies": "shared", "mapping": None, "modules": None}
        if "mapping" in changes:
            changes.pop("policies", None)
    for name in ("env_to_module", "learner_connector"):
        if name in changes:
            changes[name] = piece_names(changes[name])
    if has_lr_schedule(training):
        values["anneal_lr"] = False  # the user's schedule replaces the preset's
    values |= changes
    if PER_ENV_RUNNER in given:
        values["num_envs"] = given[PER_ENV_RUNNER] * max(1, values["num_env_runners"])
    if values["video"] == NO_VIDEO:
        check_video_every(given)
        values["video_every"] = 0
    model = merged(given.get("model", []))
    if values["config"] is None:
        check_model(model)
    values["model"] = {**base.model, **model}
    values["env_config"] = {**values["env_config"], **merged(given.get("env_config", []))}
    is_like = base.config is not None or are_alike(base.algo, values["algo"])
    own = base.training if is_like else ALGORITHMS[values["algo"]].training
    total = own[BATCH_SIZE] * max(1, base.num_learners)
    batch_size = batch_size_per_learner(total, values["num_learners"])
    values["training"] = {**own, BATCH_SIZE: batch_size, **training}
    size, asked = own.get("minibatch_size"), training.get(BATCH_SIZE)
    if values["config"] is None and "minibatch_size" not in training and size and type(asked) is int and asked > 0:
        values["training"]["minibatch_size"] = min(size, asked * max(1, values["num_learners"]))
    return RunSettings(**values)


def _base(given: Mapping[str, Any]) -> RunSettings:
    """Returns the settings that a layer's values change."""
    if "base" in given:
        return settings_from_json(given["base"])
    if given.get("config") is not None:
        return RunSettings(**settings_of(load_config(given["config"])), config=given["config"])
    task = task_for(given["env"], given.get("algo")) if given.get("preset", True) else None
    if task is None:
        algo = given.get("algo", "ppo")
        return RunSettings(given["env"], algo=algo, training=dict(ALGORITHMS[algo].training))
    preset = new_settings({**layer_of(task.settings, FILE), "preset": False})
    return dataclasses.replace(preset, env=given["env"], preset=task.name)


def _with_algorithm(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a layer in which the name of a task for another algorithm stands for its environment and algorithm."""
    task = next((task for task in tasks() if task.is_variant and task.name == given.get("env")), None)
    return given if task is None else {"algo": task.algo, **given, "env": task.words[0]}


def task_for(env: str, algo: str | None = None) -> ZooTask | None:
    """Returns the zoo's task for an environment, with settings for an algorithm or one like it, or None.

    Args:
        env: The name of the environment.
        algo: The algorithm; None for the one that the zoo prefers.
    """
    if algo is None:
        return find_task(env)
    found = (find_task(env, each) for each in (algo, *ALGORITHMS) if are_alike(each, algo))
    return next((task for task in found if task is not None), None)


def base_settings(settings: RunSettings) -> RunSettings:
    """Returns the settings that a run has without options of the user, with the same preset or without one.

    Train batches are divided among as many learners as these settings have.
    """
    if settings.config is not None:
        return new_settings({"config": settings.config, "num_learners": settings.num_learners})
    given = {"env": settings.env, "preset": settings.preset is not None}
    if not are_alike(new_settings(given).algo, settings.algo):
        given["algo"] = settings.algo
    training = new_settings({**given, "num_learners": settings.num_learners}).training
    return dataclasses.replace(new_settings(given), training=training)


def preset_task(settings: RunSettings) -> ZooTask | None:
    """Returns the zoo's task with whose settings a run began; None if it began with the defaults."""
    return next((task for task in tasks() if task.name == settings.preset), None)


def changed_options(settings: RunSettings) -> list[str]:
    """Returns the options with which the user has changed what a run learns from the preset."""
    base = base_settings(settings)
    names = [name for name in _LEARNING if getattr(settings, name) != getattr(base, name)]
    implied = {"policies"} if "mapping" in names else set()
    implied |= {"anneal_lr"} if has_lr_schedule(settings.training) else set()
    names = [name for name in names if name not in implied]
    return [_OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in names]


def settings_of_task(task: ZooTask) -> RunSettings:
    """Returns the settings of a run with a task's preset alone."""
    return new_settings({"env": task.env, "algo": task.algo})


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
        f"expected return {expected_return(task)}{share} {manner(task)} after {settings_of_task(task).steps:,} agent "
        f"steps, "
        f"about {duration(task.expected.minutes)}"
    )


def manner(task: ZooTask) -> str:
    """Returns how the policies acted when the task's expected results were measured, in words."""
    return f"with {WAYS[DRAWN if settings_of_task(task).eval_explore else MOST_LIKELY]}"


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

    >>> duration(0.21), duration(2.7), duration(10.7), duration(90)
    ('13 s', '3 min', '11 min', '1.5 h')
    """
    if minutes >= 90:
        return f"{minutes / 60:.1f} h".replace(".0 ", " ")
    return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"
