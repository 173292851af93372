"""The commands that the command line suggests. Each of them works as it is printed."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from marl_connectors.cli.presets import base_settings, new_settings, task_for
from marl_connectors.cli.run_settings import RunSettings
from marl_connectors.cli.values import literal_text
from marl_connectors.programs import PROGRAM, command
from marl_connectors.spaces import describe

_OF_MODULES: Final = {"algorithm_config_overrides_per_module", "policies_to_train", "rl_module_spec"}
"""Settings that name modules."""


def first_run() -> str:
    """Returns a command for a first run, on an environment that is installed."""
    env = "CartPole-v1" if importlib.util.find_spec("mpe2") is None else "simple_speaker_listener_v4"
    return command(PROGRAM, "train", env)


def more_steps(steps: int, steps_done: int) -> int:
    """Returns the next ``--steps`` for a finished run, whose last iteration may have gone beyond its ``steps``."""
    return 2 * (steps if 2 * steps > steps_done else steps_done)


def resume(
    path: Path, settings: RunSettings, began_with: int | None, *, done: int | None = None, trusted: bool = True
) -> str:
    """Returns the command that resumes a run. Its folder holds changed settings, but not a changed number of steps.

    Args:
        path: The folder of the run.
        settings: The current settings.
        began_with: The steps in the folder's config, which apply unless the command has ``--steps``.
        done: The agent steps of a run that has reached its end; None for a run that was stopped earlier.
        trusted: Whether its checkpoints are read with ``--untrusted`` left out.
    """
    words = [PROGRAM, "train", "--resume", str(path)]
    if done is not None:
        words += ["--steps", str(more_steps(settings.steps, done))]
    elif settings.steps != began_with:
        words += ["--steps", str(settings.steps)]
    return command(*words, *_untrusted(trusted))


def after_a_run(
    path: Path,
    settings: RunSettings,
    algo: Any,
    *,
    events: Path | None,
    seen: Collection[str],
    steps_done: int,
    numbered: bool,
    trusted: bool = True,
) -> list[str]:
    """Returns the commands to try after a run.

    Args:
        path: The folder of the run.
        settings: The settings of the run.
        algo: The ``Algorithm``.
        events: The folder of the run's TensorBoard events; None if it has none.
        seen: The agents that were in any episode.
        steps_done: The agent steps of the run.
        numbered: Whether the run is in the default folder, where another run gets a number.
        trusted: Whether its checkpoints are read with ``--untrusted`` left out.
    """
    evaluate = [PROGRAM, "evaluate", str(path), "--episodes", "100"]
    if settings.baseline_seconds != RunSettings(settings.env).baseline_seconds:
        evaluate += ["--baseline-seconds", str(settings.baseline_seconds)]
    other = another_run(settings, algo, seen)
    words = train_words(other)
    if not numbered:
        what = f"seed{other.seed}" if other.seed != settings.seed else other.policies
        words += ["--out", str(_free(path.with_name(f"{path.name}-{what}")))]
    return [
        command(*evaluate, *_untrusted(trusted)),
        *([] if events is None else [command("tensorboard", "--logdir", events)]),
        command(*words),
        resume(path, settings, settings.steps, done=max(steps_done, settings.steps), trusted=trusted),
    ]


def record_rest(given: Mapping[str, Any], number: int) -> str:
    """Returns the command that records the episodes which a recording lacks that was stopped, to another folder.

    Args:
        given: The parsed options of the recording.
        number: The number of episodes that it has written.
    """
    words = [PROGRAM, "record", given["source"]]
    for name, flag in (("env", "--env"), ("num_envs", "--num-envs")):
        words += [flag, str(given[name])] if name in given else []
    for key, value in given.get("env_config", ()):
        words += ["--env-config", f"{key}={literal_text(value)}"]
    for wrapper in given.get("wrappers", ()):
        words += ["--wrap", wrapper]
    words += _explore(given["explore"]) + ["--drop-infos"] * given["drop_infos"] + _untrusted(given["trusted"])
    rest = ("--episodes", given["episodes"] - number, "--seed", given["seed"] + 1, "--out", _free(Path(given["out"])))
    return command(*words, *rest)


def another_run(settings: RunSettings, algo: Any, seen: Collection[str]) -> RunSettings:
    """Returns the settings of another run: with other policies if all agents can have them, else with another seed."""
    agents = {str(agent_id) for agent_id in algo.agent_ids}
    if len(agents) > 1 and len(agents) == len(algo.agent_ids) and not _may_name_modules(settings, algo):
        if settings.mapping is not None or settings.policies.strip() != "independent":
            if agents >= set(seen):  # agents that the environment has not announced would have no module
                return dataclasses.replace(settings, policies="independent", mapping=None, modules=None)
        elif len({_spaces(module) for module in algo.rl_module.values()}) == 1:
            return dataclasses.replace(settings, policies="shared", modules=None)
    return dataclasses.replace(settings, seed=settings.seed + 1)


def _may_name_modules(settings: RunSettings, algo: Any) -> bool:
    """Whether a run may have other settings that name its modules, and so do not fit other policies."""
    own_mapping = "policy_mapping_fn" in (settings.training.get("evaluation_config") or {})
    best = (settings.keep_best or "").split("/")
    return (
        settings.config is not None  # code of the user's
        or own_mapping
        or not _OF_MODULES.isdisjoint(settings.training)
        or not {str(module_id) for module_id in algo.rl_module}.isdisjoint(best)
    )


def train_words(settings: RunSettings) -> list[str]:
    """Returns the words of the command for a run with these settings, without those of its preset and the defaults."""
    if settings.config is None:
        words = [settings.env]
    else:
        own = base_settings(settings).env
        words = [*([] if settings.env == own else [settings.env]), "--config", settings.config]
    return [PROGRAM, "train", *words, *(word for pair in _options(settings) for word in pair)]


def _options(settings: RunSettings) -> Iterator[tuple[str, ...]]:
    base = base_settings(settings)
    is_own = settings.config is None
    if is_own and settings.preset is None and task_for(settings.env, settings.algo) is not None:
        yield ("--no-preset",)
    if settings.mapping is not None:
        if is_own or settings.mapping != base.mapping:
            yield "--mapping", settings.mapping
    elif (is_own and settings.preset is None) or settings.policies != base.policies:
        yield "--policies", settings.policies
    if settings.modules is not None and settings.modules != base.modules:
        yield "--modules", ",".join(settings.modules)
    if settings.eval_opponent != base.eval_opponent:
        yield "--eval-opponent", settings.eval_opponent or "none"
    if settings.eval_explore not in (None, base.eval_explore):
        yield ("--eval-explore" if settings.eval_explore else "--no-eval-explore",)
    usual = base.algo if not is_own else new_settings({"env": settings.env, "preset": settings.preset is not None}).algo
    if settings.algo != usual:
        yield "--algo", settings.algo
    for name in (
        *("steps", "seed", "num_envs", "num_env_runners", "num_learners", "ray_address"),
        *("num_env_workers", "num_gpus_per_learner"),
    ):
        if getattr(settings, name) != getattr(base, name):
            yield f"--{name.replace('_', '-')}", str(getattr(settings, name))
    for option, values, defaults in (
        ("--env-config", settings.env_config, base.env_config),
        ("--set", settings.training, base.training),
        ("--model", settings.model, base.model),
    ):
        for key, value in values.items():
            if key not in defaults or defaults[key] != value:
                yield option, f"{key}={literal_text(value)}"
    if settings.wrappers != base.wrappers:
        for wrapper in settings.wrappers:
            yield "--wrap", wrapper
    yield from _network_and_pieces(settings, base)
    if settings.action_mask_key != base.action_mask_key:
        yield "--action-mask-key", settings.action_mask_key or "none"
    for name in (
        *("threads", "checkpoint_every", "eval_episodes", "baseline_seconds", "video", "video_every"),
        "keep_checkpoints",
    ):
        if getattr(settings, name) != getattr(base, name):
            yield f"--{name.replace('_', '-')}", str(getattr(settings, name))
    if settings.track != base.track:
        yield "--track", ",".join(settings.track) or "none"
    if settings.keep_best != base.keep_best:
        yield "--keep-best", settings.keep_best or "none"
    if not settings.env_check:
        yield ("--no-env-check",)


def _network_and_pieces(settings: RunSettings, base: RunSettings) -> Iterator[tuple[str, ...]]:
    if settings.hidden != base.hidden:
        yield "--hidden", ",".join(map(str, settings.hidden))
    if settings.activation != base.activation:
        yield "--activation", settings.activation
    if settings.share_value_layers != base.share_value_layers:
        yield ("--share-value-layers",) if settings.share_value_layers else ("--model", "vf_share_layers=False")
    for name in ("env_to_module", "learner_connector"):
        if getattr(settings, name) != getattr(base, name):
            yield f"--{name.replace('_', '-')}", *(getattr(settings, name) or ["none"])
    if settings.anneal_lr != base.anneal_lr:
        yield ("--anneal-lr" if settings.anneal_lr else "--no-anneal-lr",)


def _explore(explore: bool | None) -> list[str]:
    return [] if explore is None else ["--explore" if explore else "--no-explore"]


def _untrusted(trusted: bool) -> list[str]:
    return [] if trusted else ["--untrusted"]


def _spaces(module: Any) -> tuple[str, str]:
    return describe(module.observation_space), describe(module.action_space)


def _free(path: Path) -> Path:
    """Returns the path, with a number if it already exists."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate
