"""A run of ``marl-connectors train`` with one seed, new or resumed: its config, its folder, and how it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.checkpoint_restore import algorithm_state, restored_config
from marl_connectors.algorithms.config import settings as of_configs
from marl_connectors.algorithms.config.state import from_state
from marl_connectors.algorithms.fitting.figures import success_measure
from marl_connectors.algorithms.fitting.fit import fit
from marl_connectors.algorithms.fitting.parts import Caller
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.algorithms.fitting.run_files import (
    CHECKPOINTS,
    CONFIG,
    CURVES,
    EVENTS,
    FINAL,
    METRICS,
    iteration_of,
    read_config,
    reading,
)
from marl_connectors.algorithms.fitting.run_folder import made_folder, numbered_checkpoints
from marl_connectors.algorithms.fitting.stop_signals import exit_status
from marl_connectors.callbacks.trackers import TRACKERS
from marl_connectors.checkpoints import LATEST, find_checkpoint
from marl_connectors.cli import suggestions
from marl_connectors.cli.config_files import check_video_every, option_of, resolved
from marl_connectors.cli.config_settings import (
    absolute_spec,
    annealed,
    batch_size_per_learner,
    envs_per_env_runner,
    has_lr_schedule,
    learning_rates,
    load_config,
    settings_of,
)
from marl_connectors.cli.folders import check_can_be_made
from marl_connectors.cli.presets import BATCH_SIZE, new_settings, preset_sentence
from marl_connectors.cli.restored_runs import (
    check_is_run,
    check_python_config,
    load_algorithm,
    naming_a_lost_config,
    with_config,
)
from marl_connectors.cli.run_settings import RunSettings, settings_from_json, settings_to_json, use_threads
from marl_connectors.cli.values import merged, require_extras
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.names import Names
from marl_connectors.programs import PROGRAM, command
from marl_connectors.validators import declared
from marl_connectors.zoo import find_task

BUILDING = "building environments and modules, starting their processes, and trying the environment"
"""What a program does before a run, in words."""
CHANGEABLE_ON_RESUME = (
    *("threads", "steps", "checkpoint_every", "eval_episodes", "baseline_seconds", "video", "video_every", "track"),
    *("keep_best", "keep_checkpoints", "config"),
)
SETTINGS_OF_CONFIG = {
    "set": "",
    "env_check": "disable_env_checking",
    "num_env_workers": "num_env_workers",
    "num_gpus_per_learner": "num_gpus_per_learner",
    "num_env_runners": "num_env_runners",
    "num_learners": "num_learners",
    "ray_address": "ray_address",
}
"""Options that a resumed run accepts, with the settings of the algorithm's config that they change."""
CHANGED = "changed"
"""The key in ``config.json`` under which the settings are that changed when the run was resumed."""


class CommandLine(Caller):
    """The command line calls ``fit``: messages name its options, and runs are resumed with ``--resume``.

    Attributes:
        signal: The signal that has ended the call; None if there was none.
    """

    who = "train"
    keeps_results = False

    def __init__(self, settings: RunSettings, facts: Mapping[str, Any], steps: int | None, trusted: bool = True):
        """Takes what messages need.

        Args:
            settings: The settings of the run.
            facts: As in the base class.
            steps: The number of agent steps, if the folder has another one.
            trusted: Whether checkpoints are read with ``--untrusted`` left out.
        """
        self.facts = facts
        self.signal: int | None = None
        self._settings, self._steps, self._trusted = settings, steps, trusted

    def name(self, argument: str) -> str:
        return "--out" if argument == "folder" else f"--{argument.replace('_', '-')}"

    def setting(self, name: str, value: Any) -> str:
        return f"{self.name(name)} {value}"

    def resume(self, path: Path) -> str:
        return suggestions.resume(path, self._steps, trusted=self._trusted)

    def stopped(self, number: int) -> None:
        self.signal = number

    def why_no_success(self, algo: Any) -> str:
        task, measure = find_task(self._settings.env), success_measure(algo.config)
        if task is not None and "eval_opponent" in task.settings and self._settings.eval_opponent is None:
            name = "" if measure is None else measure.name
            return f"Success ({name}) is only measured against an opponent: --eval-opponent random."
        return super().why_no_success(algo)


def prepared(given: Mapping[str, Any], *, suggests: bool = True) -> _Training:
    """Builds or restores everything that a run needs.

    Args:
        given: The parsed options.
        suggests: Whether the run prints at its end which commands to try next.
    """
    with announced(BUILDING):
        given = resolved(given)
        training = _resumed(given) if "resume" in given else _new(given)
    training.suggests = suggests
    return training


@dataclasses.dataclass(slots=True)
class _Training:
    """A run that is ready to start.

    Attributes:
        settings: The settings of the run.
        algo: The ``Algorithm``, built or restored.
        out: The path of the folder.
        facts: What ``config.json`` gets besides what ``fit`` writes.
        numbered: Whether the folder gets a numbered name if ``out`` exists.
        steps: The number of agent steps, if the folder has another one.
        trusted: As in ``Algorithm.from_checkpoint``.
        suggests: Whether commands to try next are printed at the end.
    """

    settings: RunSettings
    algo: Any
    out: Path
    facts: Mapping[str, Any]
    numbered: bool = False
    steps: int | None = None
    trusted: bool = True
    suggests: bool = True

    def run(self) -> int:
        """Trains until the run has its steps. Returns the exit status."""
        settings, algo = self.settings, self.algo
        caller = CommandLine(settings, self.facts, self.steps, self.trusted)
        of_run = {name: getattr(settings, name) for name in declared(of_configs.RunSettings)}
        try:
            if str(algo.masking):
                print(f"Action masks: {algo.masking}", flush=True)
            with made_folder(self.out, numbered=self.numbered) as path:
                fit(algo, {}, settings=of_run, folder=path, caller=caller)
        except KeyboardInterrupt as stop:
            return exit_status(stop)
        finally:
            algo.stop()
        if caller.signal is not None:
            return exit_status(caller.signal)
        if self.suggests:
            steps = suggestions.more_steps(settings.steps, max(algo.num_agent_steps, settings.steps))
            events = path / EVENTS if "tensorboard" in settings.track else None
            commands = suggestions.after_a_run(path, steps, events=events, trusted=self.trusted)
            print("\n".join(["", "Next:", *(f"  {each}" for each in commands)]), flush=True)
        return 0


def check_extras(settings: RunSettings) -> None:
    """Checks that the packages are installed that trackers and videos of a run need.

    Raises:
        MissingDependencyError: If one is missing.
    """
    video = ["imageio_ffmpeg"] if settings.video == "mp4" else []
    require_extras(*(TRACKERS[name].package for name in settings.track), *video)


def _new(given: Mapping[str, Any]) -> _Training:
    """Builds everything for a new run, and writes nothing."""
    check_options_of_new_run(given)
    settings = new_settings(given)
    envs_per_env_runner(settings.num_envs, settings.num_env_runners)
    numbered = "out" not in given
    out = Path("runs") / settings.default_folder_name() if numbered else Path(given["out"])
    check_can_be_made(out, numbered=numbered)
    check_extras(settings)
    algo = settings.build_algorithm()
    if sentence := preset_sentence(settings):
        print(sentence, flush=True)
    return _Training(settings, algo, out, {"command": settings_to_json(settings)}, numbered)


def check_options_of_new_run(given: Mapping[str, Any]) -> None:
    """Refuses options that only a resumed run accepts."""
    if not {"env", "base", "config"} & given.keys():
        raise ConfigError(
            f"train: expected an environment, --config FILE or --resume RUN. Try: {suggestions.first_run()}"
        )
    if "new_episodes" in given:
        raise ConfigError("train: --new-episodes is for --resume RUN, as a new run has no episodes yet. Leave it out.")
    if "trusted" in given:
        raise ConfigError("train: --untrusted is for --resume RUN, as a new run reads no checkpoint. Leave it out.")


def _resumed(given: Mapping[str, Any]) -> _Training:
    """Restores a run from its latest checkpoint."""
    check_changeable_options(given)
    if "config" in given:
        check_python_config(given["config"], given.get("trusted", True))
        given = {**given, "config": absolute_spec(given["config"])}
    path = Path(given["resume"])
    check_is_run(path, "train --resume")
    config, checkpoint = read_config(path), checkpoint_to_resume(path)
    settings = _settings_of(path, config, checkpoint, given)
    if "config" in given:
        settings = with_config(settings, given["config"])
    changes = {key: given[key] for key in (*CHANGEABLE_ON_RESUME, *SETTINGS_OF_CONFIG) if key in given and key != "set"}
    now = _changes(settings, given)
    batch_size = {BATCH_SIZE: now[BATCH_SIZE]} if BATCH_SIZE in now else {}
    training = {**settings.training, **batch_size, **merged(given.get("set", []))}
    before, settings = settings, dataclasses.replace(settings, **changes, training=training)
    if settings.video == "none":
        check_video_every(given)
        settings = dataclasses.replace(settings, video_every=0)
    now |= _annealed_again(before, settings, given)
    check_extras(settings)
    other_steps = None if settings.steps == before.steps else settings.steps
    if checkpoint is None:
        print("The run was ended before its first checkpoint, so it begins anew.", flush=True)
        return _Training(settings, settings.build_algorithm(), path, {"command": settings_to_json(settings)})
    use_threads(settings.threads)
    changed = {**_earlier_changes(path, config), **now}
    trusted = given.get("trusted", True)
    options: dict[str, Any] = {"trusted": trusted, "new_episodes": given.get("new_episodes", False), "chosen": now}
    with naming_a_lost_config(checkpoint, "train --resume", given.get("config")):
        algo = load_algorithm(checkpoint, changed, source=given.get("config"), **options)
    try:
        _check_same_env(algo, settings, checkpoint)
        if algo.num_agent_steps >= settings.steps and (path / FINAL).exists():
            raise ConfigError(
                f"train --resume: the run {path} has its {algo.num_agent_steps:,} agent steps of {settings.steps:,} "
                f"done. To train it further, use more steps: "
                f"--steps {suggestions.more_steps(settings.steps, algo.num_agent_steps)}"
            )
    except BaseException:
        algo.stop()
        raise
    print(f"Continuing from iteration {int(checkpoint.name)} at {algo.num_agent_steps:,} agent steps.", flush=True)
    for name, value in changed.items():
        print(f"  {name} is {value!r} from now on.", flush=True)
    facts = _lasting(config, before, settings, changed)
    return _Training(settings, algo, path, facts, steps=other_steps, trusted=trusted)


def _settings_of(path: Path, config: Mapping[str, Any], checkpoint: Path | None, given: Mapping[str, Any]) -> Any:
    """Returns the settings of a run: the command's, or those of a run in Python from its checkpoint."""
    source = str(path / CONFIG)
    if "command" in config or "algorithm" not in config:
        return settings_from_json(config.get("command"), source)
    if checkpoint is None:
        raise CheckpointError(
            f"train --resume: {path} was begun in Python, and has no checkpoint yet. Run the program again."
        )
    state = algorithm_state(checkpoint, with_replay_buffers=False)
    of_run = declared(of_configs.RunSettings)
    if "config" in given:
        made, saved = load_config(given["config"]), state["config"]["settings"]
        made.update_from_dict({name: from_state(saved[name], name) for name in of_run if name in saved})
    else:
        made = restored_config(state, None, {}, Names(given.get("trusted", True)))
    own = {name: getattr(made, name) for name in of_run}
    if own["steps"] is None and "steps" not in given:
        raise ConfigError(
            f"train --resume: {path} was begun in Python without a number of agent steps. Say when it ends: --steps N"
        )
    return RunSettings(**{**settings_of(made), **own})


def _lasting(
    config: Mapping[str, Any], before: RunSettings, settings: RunSettings, changed: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what ``config.json`` gets that holds from now on. Options such as ``--steps`` are for one command."""
    facts = {CHANGED: changed} if changed else {}
    if "command" not in config:
        return facts
    lasting = {"training", "config", *SETTINGS_OF_CONFIG}
    now = {name: value for name, value in settings_to_json(settings).items() if name in lasting}
    moved = settings_to_json(before) if settings.config is not None else {}  # names in a file that has another place
    return {"command": {**config["command"], **moved, **now}, **facts}


def checkpoint_to_resume(path: Path) -> Path | None:
    """Returns the checkpoint to resume from; None if the run ended before its first checkpoint.

    Raises:
        CheckpointError: If the run names a checkpoint that does not exist, or its checkpoints are lost.
    """
    folder = path / CHECKPOINTS
    if (folder / LATEST).exists():
        iteration_of(found := find_checkpoint(path))
        return found
    with reading(folder):
        if found := numbered_checkpoints(folder):
            return max(found, key=lambda each: int(each.name))
        is_lost = (path / CURVES).exists() or (path / FINAL).exists()
        is_lost |= not folder.is_dir() and (path / METRICS).is_file() and bool((path / METRICS).stat().st_size)
    if is_lost:  # to begin anew would overwrite what the run has logged
        raise CheckpointError(
            f"train --resume: {path} had checkpoints, but none is in {folder} any more. Put them back, or start a new "
            f"run with the same settings: {command(PROGRAM, 'train', '--config', path / CONFIG)}"
        )
    return None


def check_changeable_options(given: Mapping[str, Any]) -> None:
    """Refuses options that would make it another run: the environment, its number, the modules and the seed."""
    known = {"resume", "run", "command", "trusted", "new_episodes", *CHANGEABLE_ON_RESUME, *SETTINGS_OF_CONFIG}
    if "out" in given:
        raise ConfigError(
            "train --resume: --out cannot be given, because the run goes on in its own folder. Leave it out, or copy "
            "the folder and resume the copy."
        )
    for option in sorted(set(given) - known):
        raise ConfigError(
            f"train --resume: {option_of(option)} cannot be changed, because the checkpoint's modules and episodes "
            f"depend on it. You can change: --set, --steps, --threads, --no-env-check, --num-env-workers, "
            f"--num-env-runners, --num-learners, --ray-address, --num-gpus-per-learner, --checkpoint-every, "
            f"--eval-episodes, --baseline-seconds, --video, --video-every, --track, --keep-best, --keep-checkpoints "
            f"and --config."
        )


def _earlier_changes(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that were changed when the run was resumed earlier."""
    changed = config.get(CHANGED, {})
    if not isinstance(changed, dict):
        raise CheckpointError(
            f"{path / CONFIG}: expected {CHANGED!r} to be a JSON object, but got {changed!r}. Correct it."
        )
    return changed


def _changes(settings: RunSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the config that this command changes.

    The number of all sub-environments and, unless ``--set`` says otherwise, the size of train batches stay the same.
    """
    by_set = merged(given.get("set", []))
    now = {name: given[option] for option, name in SETTINGS_OF_CONFIG.items() if name and option in given}
    if "disable_env_checking" in now:
        now["disable_env_checking"] = not now["disable_env_checking"]
    if "num_env_runners" in now:
        now["num_envs_per_env_runner"] = envs_per_env_runner(settings.num_envs, now["num_env_runners"])
    if "num_learners" in now and BATCH_SIZE in settings.training:
        total = settings.training[BATCH_SIZE] * max(1, settings.num_learners)
        now[BATCH_SIZE] = batch_size_per_learner(total, now["num_learners"])
    return {**now, **by_set}


def _annealed_again(before: RunSettings, settings: RunSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns schedules of a resumed run whose steps or learning rates the command changes."""
    is_changed = settings.steps != before.steps or bool(learning_rates(merged(given.get("set", []))))
    is_meant = settings.anneal_lr and is_changed and not has_lr_schedule(settings.training)
    return annealed(settings.training, settings.steps) if is_meant else {}


def _check_same_env(algo: Any, settings: RunSettings, checkpoint: Path) -> None:
    env = algo.config.to_dict().get("env")
    if isinstance(env, str) and env != settings.env:
        raise CheckpointError(
            f"{checkpoint} is a checkpoint from the environment {env!r}, but this run is on {settings.env!r}. "
            f"Use a checkpoint of this run."
        )
