"""A run of ``marl-connectors train`` with one seed, new or resumed, that keeps everything in one folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import platform
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting.figures import (
    agent_steps,
    fewer_episodes,
    megabytes,
    module_returns,
    number,
    percent,
    spread,
    success_measure,
    success_name,
    success_of,
    table,
    time_shares,
)
from marl_connectors.algorithms.fitting.metric_names import check_metric
from marl_connectors.algorithms.fitting.progress import Goal, PlayProgress, Progress, Watched, announced, open_progress
from marl_connectors.algorithms.fitting.run_files import names_of_results
from marl_connectors.algorithms.fitting.saver import Saver
from marl_connectors.algorithms.fitting.stop_signals import InterruptGate, exit_status
from marl_connectors.callbacks.trackers import TRACKERS, Tracker, leaves, new_run_id
from marl_connectors.cli import run_folder, suggestions
from marl_connectors.cli.both_ways import about_both_ways, both_ways, evaluate_both_ways, intervals, measured_baseline
from marl_connectors.cli.config_files import check_video_every, option_of, resolved
from marl_connectors.cli.config_settings import (
    absolute_spec,
    annealed,
    batch_size_per_learner,
    envs_per_env_runner,
    has_lr_schedule,
    learning_rates,
)
from marl_connectors.cli.presets import BATCH_SIZE, new_settings, preset_sentence
from marl_connectors.cli.restored_runs import (
    check_is_run,
    check_python_config,
    load_algorithm,
    naming_a_lost_config,
    with_config,
)
from marl_connectors.cli.run_folder import WAYS, RunFolder
from marl_connectors.cli.run_settings import (
    RunSettings,
    settings_from_json,
    settings_to_json,
    use_threads,
)
from marl_connectors.cli.values import merged, require_extras
from marl_connectors.cli.video import RECORDING, record_untrained, record_video
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError, describe_error
from marl_connectors.json_data import jsonable
from marl_connectors.version import library_version
from marl_connectors.zoo import find_task

BUILDING = "building environments and modules, starting their processes, and trying the environment"
"""What a program does before a run, in words."""
WITH_ENDED_EPISODES = "with the episodes that have ended"
BASELINES = {"random_play": "random play", "at_start": "the untrained policies"}
CHANGEABLE_ON_RESUME = (
    *("threads", "steps", "checkpoint_every", "eval_episodes", "baseline_seconds", "video", "video_every", "track"),
    *("keep_best", "keep_checkpoints", "config"),
)
TRACKED_RUN = "tracked_run"
"""The key in ``config.json`` of the id with which trackers continue the run."""
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
    """A run that is ready to start; its folder is made when the first iteration has worked.

    Attributes:
        settings: The settings of the run.
        algo: The ``Algorithm``, built or restored.
        out: The path of the folder.
        numbered: Whether the folder gets a numbered name if ``out`` exists.
        folder: The folder; None before the first iteration of a new run.
        baselines: The results of random play and of the untrained modules.
        steps_done: The agent steps so far.
        iteration: The number of iterations so far.
        saver: Decides when to save.
        timers: The sums of the iterations' timers in this process.
        replay: What the newest iteration says about the replay buffer; empty without one.
        trusted: As in ``Algorithm.from_checkpoint``.
        untrained_video: A GIF of an episode of the untrained modules, until the folder has it.
        suggests: Whether commands to try next are printed at the end.
        trackers: The trackers of the run, from its first iteration in this process on.
        resumed_at: The agent steps of the checkpoint from which the run was resumed; None for other runs.
        records: Whether videos can be recorded during training.
        is_new: Whether the run does not begin anew in a folder that it has.
        claims: The right to write to the folder, which a new run has from its first iteration on.
    """

    settings: RunSettings
    algo: Any
    out: Path
    numbered: bool
    folder: RunFolder | None
    baselines: dict[str, Any]
    saver: Saver
    steps_done: int = 0
    iteration: int = 0
    timers: Counter[str] = dataclasses.field(default_factory=Counter)
    replay: Mapping[str, int] = dataclasses.field(default_factory=dict)
    trusted: bool = True
    untrained_video: bytes = b""
    suggests: bool = True
    trackers: list[Tracker] | None = None
    resumed_at: int | None = None
    records: bool = True
    is_new: bool = True
    claims: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def run(self) -> int:
        try:
            if str(self.algo.masking):
                print(f"Action masks: {self.algo.masking}", flush=True)
            if not self.baselines:
                self.baselines = self._measure_baselines()
                if self.settings.video != "none":
                    with announced(RECORDING):
                        self.untrained_video = record_untrained(self.algo, seed=self.settings.seed)
            with InterruptGate() as gate:
                self.algo.ends_evaluations = gate.is_requested
                try:
                    self._loop(gate)
                except MarlConnectorsError as error:
                    if gate.requested is None:
                        self._say_what_is_saved(error)
                        raise
                    # A signal that stops the whole job often stops the environment's processes, too.
                    print(f"The iteration was given up: {' '.join(str(error).split())}", file=sys.stderr)
                    return self._stopped_at_once(gate.requested, gate)
                except KeyboardInterrupt as stop:
                    return self._stopped_at_once(stop, gate)
                except BaseException as error:
                    self._say_what_is_saved(error)
                    raise
                folder = self._started_folder()
                self.saver.save(folder, self.iteration)
                if gate.requested is not None:
                    print(f"Stopped at {self.steps_done:,} agent steps. {self._resume_hint()}", flush=True)
                    return exit_status(gate.requested)
            return self._finish(folder)
        except KeyboardInterrupt as stop:
            return self._stopped_at_once(stop)
        finally:
            self.close()

    def _stopped_at_once(self, stop: KeyboardInterrupt | int, gate: InterruptGate | None = None) -> int:
        """Prints what was saved of the run. Returns the exit status."""
        self._save_last()
        if self.folder is not None and self.folder.is_finished:
            hint = f"The run is complete in {self.folder.path}, only its video is missing."
        elif self.saver.saved_iteration < 0:
            hint = "Nothing of it was saved."
        else:
            hint = f"The latest checkpoint is of iteration {self.saver.saved_iteration}. {self._resume_hint()}"
        late = "The iteration took too long and was given up. " if gate is not None and gate.gave_up else ""
        print(f"\nStopped at once. {late}{hint}", flush=True)
        return exit_status(stop)

    def _say_what_is_saved(self, error: BaseException) -> None:
        """Saves the end of the last complete iteration after an error in the next one, and prints how to resume."""
        self._save_last()
        says_it = isinstance(error, CheckpointError) and isinstance(error.__cause__, OSError)  # as ``writing`` does
        if self.saver.saved_iteration >= 0 and not says_it:
            print(
                f"\nStopped by an error in iteration {self.iteration + 1}. The latest checkpoint is of iteration "
                f"{self.saver.saved_iteration}. {self._resume_hint()}\nSettings can be changed then: --set KEY=VALUE, "
                f"--no-env-check, --num-env-workers N, --keep-best METRIC.",
                flush=True,
            )

    def _save_last(self) -> None:
        """Saves the end of the newest complete iteration, unless it is saved already."""
        if self.folder is None:
            return
        try:
            self.saver.save_last(self.folder)
        except Exception as error:  # the error that has ended the run must not be hidden
            print(f"\nIteration {self.iteration} could not be saved: {describe_error(error)}.", file=sys.stderr)

    def close(self) -> None:
        for tracker in self.trackers or ():
            tracker.close()
        self.algo.stop()
        self.claims.close()

    def _measure_baselines(self) -> dict[str, Any]:
        """Measures random play and the untrained modules. The environment is tried before files are written."""
        settings = self.settings
        wanted, limit = settings.eval_episodes, float(settings.baseline_seconds)
        found = {}
        for name, what in BASELINES.items():
            print(f"Measuring {what}: {wanted} episodes, or those that end within {limit:g} s ...", flush=True)
            with PlayProgress(wanted) as watch:
                how: dict[str, Any] = {"num_episodes": wanted, "max_seconds": limit, "on_progress": watch}
                if name == "random_play":
                    found[name] = measured_baseline(self.algo.random_play, **how)
                else:
                    found[name] = measured_baseline(self.algo.evaluate, seed=settings.seed, **how)
            _say(fewer_episodes(what, found[name], wanted))
        _say(self._why_no_success(found["random_play"]))
        return jsonable(found)

    def _why_no_success(self, random_play: Mapping[str, Any]) -> str:
        """Returns a sentence if the success of the zoo's task cannot be measured; "" if it was, or there is none."""
        measure = success_measure(self.algo.config)
        if measure is None or not random_play["num_episodes"] or math.isfinite(success_of(random_play)):
            return ""
        task = find_task(self.settings.env)
        if task is not None and "eval_opponent" in task.settings and self.settings.eval_opponent is None:
            return f"Success ({measure.name}) is only measured against an opponent: --eval-opponent random."
        said = f"Success ({measure.name}) is not measured, because the state of the environments at the end of episodes"
        if self.settings.num_env_workers in (0, "auto"):
            return f"{said} is not available: they are natively batched."
        return f"{said} is in worker processes. To measure it, use --num-env-workers 0."

    def _loop(self, gate: InterruptGate) -> None:
        settings = self.settings
        runners = settings.num_env_runners
        goal = Goal(settings.steps)
        progress = open_progress(Watched(goal, self.steps_done, sys.stdout, runners, lambda: self.algo.activity))
        try:
            while self.steps_done < settings.steps and (gate.requested is None or self.iteration == 0):
                with gate.iteration(), self.saver.iteration():
                    result = self.algo.train()
                if self.folder is None:
                    check_metric(settings.keep_best, {name for name, _ in leaves(result)}, self.algo.config)
                    self.folder = self._make_folder()
                    progress.say(f"Everything of this run goes to {self.folder.path}")
                self.folder.log(result)
                self._track(self.folder, result)
                self.steps_done, self.iteration = agent_steps(result), int(result["training_iteration"])
                self.timers.update({name: s for name, s in result["timers"].items() if not isinstance(s, Mapping)})
                self.replay = result.get("replay_buffer", {})
                self.saver.iteration_ended(self.folder, self.iteration, is_last=self.steps_done >= settings.steps)
                progress.update(result)
                check_metric(settings.keep_best, self.folder.names, self.algo.config)
                if settings.video_every and settings.video != "none" and self.iteration % settings.video_every == 0:
                    self._record_iteration(self.folder, progress)
        finally:
            progress.close()

    def _track(self, folder: RunFolder, result: Mapping[str, Any]) -> None:
        """Writes the results of an iteration to the trackers, which continue the run if it was resumed."""
        if self.trackers is None:
            self.trackers = _trackers(self.settings, folder)
            if self.resumed_at is not None:
                for tracker in self.trackers:
                    tracker.continue_after(self.resumed_at)
        for tracker in self.trackers:
            tracker.log(self.algo, result)

    def _record_iteration(self, folder: RunFolder, progress: Progress) -> None:
        """Records a video of the modules as they are now. Training is not affected."""
        path = folder.path / run_folder.VIDEOS / f"{self.iteration:06d}.{self.settings.video}"
        label = f"after {self.steps_done:,} steps, "
        if self.records and (failed := record_video(self.algo, path, seed=self.settings.seed, label=label)):
            self.records = False  # the reason is the same for all videos, and printed once
            progress.say(failed)

    def _make_folder(self) -> RunFolder:
        config = {
            "format_version": 1,
            "command": settings_to_json(self.settings),
            "algorithm": self.algo.config.to_dict(),
            "versions": _versions(),
            TRACKED_RUN: new_run_id(),
        }
        how: dict[str, Any] = {"numbered": self.numbered, "is_new": self.is_new, **_kept(self.settings)}
        folder = RunFolder.create(self.out, jsonable(config), self.baselines, claims=self.claims, **how)
        if self.untrained_video:
            folder.write_untrained_video(self.untrained_video)
        return folder

    def _started_folder(self) -> RunFolder:
        if self.folder is None:
            raise ConfigError("--steps: expected at least 1 agent step to train, but none are left.")
        return self.folder

    def _resume_hint(self) -> str:
        return f"Resume with: {self._resume_command()}"

    def _resume_command(self) -> str:
        path = self.folder.path if self.folder is not None else self.out
        began_with = None if self.folder is None else self.folder.config["command"].get("steps")
        return suggestions.resume(path, self.settings, began_with, trusted=self.trusted)

    def _finish(self, folder: RunFolder) -> int:
        """Evaluates the modules, records a video, and prints what the folder holds and which commands to try next.

        After a stop signal, it only prints what the episodes show that have ended. Returns the exit status.
        """
        wanted = self.settings.eval_episodes
        print(f"\nMeasuring the trained policies: {wanted} episodes ...", flush=True)
        with InterruptGate(stops=WITH_ENDED_EPISODES) as gate, gate.iteration():
            how: dict[str, Any] = {"seed": self.settings.seed, "is_enough": gate.is_requested}
            results = evaluate_both_ways(self.algo, num_episodes=wanted, **how)
        self._print_results(results)
        is_whole = all(each["num_episodes"] >= wanted for each in both_ways(results).values())
        if is_whole:
            folder.write_final(jsonable(results))
        if gate.requested is not None:
            rest = "" if is_whole else f" To measure all episodes: {self._resume_command()}"
            print(f"\nStopped. Training is complete in {folder.path}.{rest}", flush=True)
            return exit_status(gate.requested)
        no_video, video = "No video, as asked.", folder.path / f"video.{self.settings.video}"
        if self.settings.video != "none":
            with announced(RECORDING):
                no_video = record_video(
                    self.algo,
                    video,
                    seed=self.settings.seed,
                    label="after training, ",
                    untrained=folder.path / run_folder.UNTRAINED_VIDEO,
                )
        if self.timers:
            print(f"\nWhere the time of training went: {time_shares(self.timers)}.")
        if self.replay:
            steps, size = self.replay["num_timesteps"], megabytes(self.replay["num_bytes"])
            print(f"The replay buffer: {steps:,} steps, at most {size}.")
        print(f"\n{_places(folder, self.settings.track, no_video, video)}", flush=True)
        if self.suggests:
            print(f"\n{self._next_commands(folder.path)}", flush=True)
        return 0

    def _print_results(self, results: Mapping[str, Any]) -> None:
        """Prints the returns and the success of the trained modules beside those that were measured before."""
        at_start, random_play = (
            module_returns(run_folder.from_json(self.baselines[key])) for key in ("at_start", "random_play")
        )
        (way, _), *others = both_ways(results).items()
        columns = {"at start": at_start, "now": module_returns(results)}
        columns |= {WAYS[other]: module_returns(measured) for other, measured in others}
        columns |= {"random play": random_play}
        rows = [[module_id, *(spread(own.get(module_id)) for own in columns.values())] for module_id in columns["now"]]
        wanted, played = self.settings.eval_episodes, results["num_episodes"]
        manner = f", with {WAYS[way]}" if others else ""
        print(f"\nReturn of an agent per episode{manner}, mean ± standard deviation of {played} episodes:")
        print(table(["module", *columns], rows))
        if (measured := success_name(self.algo.config)) is not None and math.isfinite(success_of(results)):
            before, by_chance = (percent(success_of(self.baselines[key])) for key in ("at_start", "random_play"))
            now_done = f"{percent(success_of(results))} now"
            now_done += "".join(f" ({percent(success_of(own))} with {WAYS[other]})" for other, own in others)
            print(f"\nSuccess ({measured}): {before} at start, {now_done}, {by_chance} in random play.")
        if others:
            _say(about_both_ways(*(intervals(both_ways(results)[each]) for each in WAYS)))
        for name, what in BASELINES.items():
            _say(fewer_episodes(what, self.baselines[name], wanted))
        _say(fewer_episodes("the trained policies", results, wanted, was_stopped=True))

    def _next_commands(self, path: Path) -> str:
        events = path / run_folder.EVENTS if "tensorboard" in self.settings.track else None
        commands = suggestions.after_a_run(
            path,
            self.settings,
            self.algo,
            events=events,
            seen=run_folder.agents_seen(self.baselines),
            steps_done=self.steps_done,
            numbered=self.numbered,
            trusted=self.trusted,
        )
        return "\n".join(["Next:", *(f"  {command}" for command in commands)])


def _say(sentence: str) -> None:
    if sentence:
        print(sentence, flush=True)


def _kept(settings: RunSettings) -> dict[str, Any]:
    return {"keep_best": settings.keep_best, "keep_checkpoints": settings.keep_checkpoints}


def _trackers(settings: RunSettings, folder: RunFolder) -> list[Tracker]:
    """Returns the trackers of a run."""
    run_id = folder.config.get(TRACKED_RUN)
    if not (isinstance(run_id, str) and re.fullmatch(r"[\w-]+", run_id)):  # it is a run of an earlier version
        run_id = new_run_id()
        folder.change_config({TRACKED_RUN: run_id})
    path = folder.path.absolute()
    is_one_of_several = re.fullmatch(r"(seed|trial)\d+", path.name)
    name = f"{path.parent.name}-{path.name}" if is_one_of_several else path.name
    shared: dict[str, Any] = {"run_id": run_id, "name": name, "agents": run_folder.agents_of(folder.baselines)}
    places = {"tensorboard": path / run_folder.EVENTS}
    return [TRACKERS[tracker](folder=places.get(tracker, path), **shared) for tracker in settings.track]


def check_extras(settings: RunSettings) -> None:
    """Checks that the packages are installed that trackers and videos of a run need.

    Raises:
        MissingDependencyError: If one is missing.
    """
    video = ["imageio_ffmpeg"] if settings.video == "mp4" else []
    require_extras(*(TRACKERS[name].package for name in settings.track), *video)


def _places(folder: RunFolder, track: Collection[str], no_video: str, video: Path) -> str:
    path = folder.path
    latest, best = run_folder.latest_checkpoint(path), folder.best()
    events = f", and as TensorBoard events in {path / run_folder.EVENTS}" if "tensorboard" in track else ""
    is_best = f", the best is {best[0].name} ({best[1]} {number(best[2])})" if best is not None else ""
    rows = [
        ["config", str(path / run_folder.CONFIG)],
        ["metrics", f"{path / run_folder.METRICS}{events}"],
        ["curves", str(path / run_folder.CURVES)],
        ["checkpoints", f"{latest.parent}, the latest is {latest.name}{is_best}"],
        ["video", no_video or str(video)],
    ]
    return "Everything of this run:\n" + "\n".join(f"  {name:<12} {place}" for name, place in rows)


def _new(given: Mapping[str, Any]) -> _Training:
    """Builds everything for a new run, and writes nothing."""
    check_options_of_new_run(given)
    settings = new_settings(given)
    envs_per_env_runner(settings.num_envs, settings.num_env_runners)
    numbered = "out" not in given
    out = Path("runs") / settings.default_folder_name() if numbered else Path(given["out"])
    run_folder.check_can_be_made(out, numbered=numbered)
    check_extras(settings)
    algo = settings.build_algorithm()
    _say(preset_sentence(settings))
    return _Training(settings, algo, out, numbered, None, {}, Saver(algo, settings.checkpoint_every))


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
    with contextlib.ExitStack() as claims:
        claims.enter_context(run_folder.Claim(path))
        training = _restored(path, given)
        training.claims = claims.pop_all()
    return training


def _restored(path: Path, given: Mapping[str, Any]) -> _Training:
    """Restores the run in a folder from its latest checkpoint."""
    config = run_folder.read_config(path)
    settings = settings_from_json(config.get("command"), str(path / run_folder.CONFIG))
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
    checkpoint = run_folder.checkpoint_to_resume(path)
    if checkpoint is None:
        print("The run was ended before its first checkpoint, so it begins anew.", flush=True)
        algo = settings.build_algorithm()
        saver = Saver(algo, settings.checkpoint_every)
        return _Training(settings, algo, path, False, None, {}, saver, is_new=False)
    use_threads(settings.threads)
    changed = {**_earlier_changes(path, config), **now}
    trusted = given.get("trusted", True)
    new_episodes = given.get("new_episodes", False)
    options: dict[str, Any] = {"trusted": trusted, "new_episodes": new_episodes, "chosen": now}
    with naming_a_lost_config(checkpoint, "train --resume", given.get("config")):
        algo = load_algorithm(checkpoint, changed, source=given.get("config"), **options)
    try:
        _check_same_env(algo, settings, checkpoint)
        steps_done = algo.num_agent_steps
        if steps_done >= settings.steps and (path / run_folder.FINAL).exists():
            raise ConfigError(
                f"train --resume: the run {path} has its {steps_done:,} agent steps of {settings.steps:,} done. "
                f"To train it further, use more steps: --steps {suggestions.more_steps(settings.steps, steps_done)}"
            )
        folder = _reopened(path, checkpoint, settings, algo, given)
        folder.resume = suggestions.resume(path, settings, config["command"].get("steps"), trusted=trusted)
        if changed != config.get(CHANGED, {}) or "config" in given:
            _keep_changes(folder, before, settings, algo, changed)
    except BaseException:
        algo.stop()
        raise
    iteration = int(checkpoint.name)
    print(f"Continuing from iteration {iteration} at {steps_done:,} agent steps.", flush=True)
    for name, value in changed.items():
        print(f"  {name} is {value!r} from now on.", flush=True)
    saver = Saver(algo, settings.checkpoint_every, iteration)
    done: dict[str, Any] = {"steps_done": steps_done, "iteration": iteration, "resumed_at": steps_done}
    return _Training(settings, algo, path, False, folder, folder.baselines, saver, **done, trusted=trusted)


def _reopened(path: Path, checkpoint: Path, settings: RunSettings, algo: Any, given: Mapping[str, Any]) -> RunFolder:
    """Opens the folder of a run to resume, unless the command names a metric that its results do not have."""
    if "keep_best" in given and (names := names_of_results(path, checkpoint)):
        check_metric(settings.keep_best, names, algo.config)
    return RunFolder.reopen(path, checkpoint, **_kept(settings))


def _keep_changes(
    folder: RunFolder, before: RunSettings, settings: RunSettings, algo: Any, changed: Mapping[str, Any]
) -> None:
    """Writes settings to ``config.json`` that hold from now on. Others, such as ``--steps``, are for one command."""
    lasting = {"training", "config", *SETTINGS_OF_CONFIG}
    now = {name: value for name, value in settings_to_json(settings).items() if name in lasting}
    moved = settings_to_json(before) if settings.config is not None else {}  # names in a file that has another place
    command = {**folder.config["command"], **moved, **now}
    folder.change_config({"command": command, "algorithm": algo.config.to_dict(), CHANGED: changed})


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
            f"{path / run_folder.CONFIG}: expected {CHANGED!r} to be a JSON object, but got {changed!r}. Correct it."
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


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "gymnasium", "pettingzoo")
    versions = {name: metadata.version(name) for name in names}
    return {"marl-connectors": library_version(), "python": platform.python_version(), **versions}
