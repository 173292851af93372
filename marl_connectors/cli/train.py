"""``marl-connectors train``: train policies, and keep everything of the run in one folder."""

from __future__ import annotations

import argparse
import dataclasses
import platform
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from marl_connectors.cli import run_folder, suggestions
from marl_connectors.cli.progress import open_progress
from marl_connectors.cli.results import agent_steps, module_returns, spread, table, time_shares
from marl_connectors.cli.run_folder import RunFolder
from marl_connectors.cli.settings import (
    TRAINING_DEFAULTS,
    RunSettings,
    settings_from_json,
    training_settings,
    use_threads,
)
from marl_connectors.cli.values import jsonable, merged, require_extras
from marl_connectors.cli.video import record_video
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.version import library_version

CHANGEABLE_ON_RESUME = ("threads", "steps", "checkpoint_every", "eval_episodes", "video")
EXIT_INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Trains as the parsed options say; gives the exit status."""
    given = vars(args)
    require_extras("matplotlib", "tensorboard", "PIL", *(["rich"] if sys.stdout.isatty() else []))
    training = _resumed(given) if "resume" in given else _new(given)
    return training.run()


class InterruptGate:
    """Turns a first Ctrl-C into a request that the loop looks at, and a second one into KeyboardInterrupt.

    So an iteration is always finished, and what is saved is the state between two iterations.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> InterruptGate:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not print: the interrupted code may be in the middle of one.
        sys.stderr.write("\nStopping after this iteration; Ctrl-C again stops at once.\n")


@dataclasses.dataclass(slots=True)
class _Training:
    """A run that is ready to start; its folder is made when the first iteration has worked.

    Attributes:
        settings: Of the run.
        algo: The ``Algorithm``, built or restored.
        out: Where the folder is, or is to be.
        numbered: Whether to take a numbered name where ``out`` exists.
        folder: None before the first iteration of a new run.
        baselines: Results of random play and of the untrained modules.
        steps_done: Agent steps so far.
        iteration: Iterations so far.
        saved_iteration: The iteration of the latest checkpoint.
        timers: Sums of the iterations' timers, as long as this process trains.
    """

    settings: RunSettings
    algo: Any
    out: Path
    numbered: bool
    folder: RunFolder | None
    baselines: dict[str, Any]
    steps_done: int = 0
    iteration: int = 0
    saved_iteration: int = -1
    timers: Counter[str] = dataclasses.field(default_factory=Counter)

    def run(self) -> int:
        try:
            if str(self.algo.masking):
                print(f"Action masks: {self.algo.masking}", flush=True)
            if not self.baselines:
                self.baselines = self._measure_baselines()
            with InterruptGate() as gate:
                self._loop(gate)
                folder = self._started_folder()
                if self.saved_iteration != self.iteration:
                    folder.save_checkpoint(self.algo, self.iteration)
                    self.saved_iteration = self.iteration
                stopped = gate.requested and self.steps_done < self.settings.steps
            if stopped:
                print(f"Stopped at {self.steps_done:,} agent steps. {self._resume_hint()}")
                return EXIT_INTERRUPTED
            self._finish(folder)
            return 0
        except KeyboardInterrupt:
            hint = self._resume_hint() if self.saved_iteration >= 0 else "Nothing of it was saved."
            print(f"\nStopped at once. {hint}", flush=True)
            return EXIT_INTERRUPTED
        finally:
            self.close()

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
        self.algo.stop()

    def _measure_baselines(self) -> dict[str, Any]:
        """Random play and the untrained modules. Also the first look at the environment, before anything is written."""
        episodes = self.settings.eval_episodes
        print(f"Measuring random play and the untrained policies over {episodes} episodes ...", flush=True)
        random_play = self.algo.random_play(num_episodes=episodes)
        return jsonable({"random_play": random_play, "at_start": self._evaluate()})

    def _evaluate(self) -> dict[str, Any]:
        settings = self.settings
        return self.algo.evaluate(num_episodes=settings.eval_episodes, explore=False, seed=settings.seed)

    def _loop(self, gate: InterruptGate) -> None:
        progress = open_progress(self.settings.steps, self.steps_done, sys.stdout)
        try:
            while self.steps_done < self.settings.steps and not (gate.requested and self.iteration > 0):
                result = self.algo.train()
                if self.folder is None:
                    self.folder = self._make_folder()
                    progress.say(f"Everything of this run goes to {self.folder.path}")
                self.folder.log(result)
                self.steps_done, self.iteration = agent_steps(result), int(result["training_iteration"])
                self.timers.update(result["timers"])
                progress.update(result)
                if self.iteration % self.settings.checkpoint_every == 0:
                    self.folder.save_checkpoint(self.algo, self.iteration)
                    self.saved_iteration = self.iteration
        finally:
            progress.close()

    def _make_folder(self) -> RunFolder:
        config = {
            "format_version": 1,
            "command": dataclasses.asdict(self.settings),
            "algorithm": self.algo.config.to_dict(),
            "versions": _versions(),
        }
        return RunFolder.create(self.out, jsonable(config), self.baselines, numbered=self.numbered)

    def _started_folder(self) -> RunFolder:
        if self.folder is None:
            raise ConfigError("--steps: expected at least 1 agent step to train, but there are none to do.")
        return self.folder

    def _resume_hint(self) -> str:
        path = self.folder.path if self.folder is not None else self.out
        began_with = None if self.folder is None else self.folder.config["command"]["steps"]
        return f"Resume with: {suggestions.resume(path, self.settings, self.steps_done, began_with)}"

    def _finish(self, folder: RunFolder) -> None:
        """Evaluates, films, and says what there is now and what to do next."""
        now = module_returns(self._evaluate())
        no_video = "No video, as asked."
        if self.settings.video:
            no_video = record_video(self.algo, folder.path / run_folder.VIDEO)
        at_start, random_play = (
            module_returns(run_folder.from_json(self.baselines[key])) for key in ("at_start", "random_play")
        )
        rows = [
            [module_id, spread(at_start.get(module_id)), spread(mean), spread(random_play.get(module_id))]
            for module_id, mean in now.items()
        ]
        print(f"\nReturn of an agent per episode, mean ± standard deviation of {self.settings.eval_episodes} episodes:")
        print(table(["module", "at start", "now", "random play"], rows))
        print(f"\nWhere the time of training went: {time_shares(self.timers)}.")
        print(f"\n{_places(folder.path, no_video)}\n\n{self._next_commands(folder.path)}", flush=True)

    def _next_commands(self, path: Path) -> str:
        events = path / run_folder.EVENTS
        commands = suggestions.after_a_run(
            path,
            self.settings,
            self.algo,
            events=events,
            seen=run_folder.agents_seen(self.baselines),
            steps_done=self.steps_done,
            numbered=self.numbered,
        )
        return "\n".join(["Next:", *(f"  {command}" for command in commands)])


def _places(path: Path, no_video: str) -> str:
    latest = run_folder.latest_checkpoint(path)
    rows = [
        ["config", str(path / run_folder.CONFIG)],
        ["metrics", f"{path / run_folder.METRICS}, and as TensorBoard events in {path / run_folder.EVENTS}"],
        ["curves", str(path / run_folder.CURVES)],
        ["checkpoints", f"{latest.parent}, the latest is {latest.name}"],
        ["video", no_video or str(path / run_folder.VIDEO)],
    ]
    return "Everything of this run:\n" + "\n".join(f"  {name:<12} {place}" for name, place in rows)


def _new(given: Mapping[str, Any]) -> _Training:
    """A run from nothing. Builds everything and writes nothing."""
    if "env" not in given:
        raise ConfigError(f"train: expected an environment or --resume RUN. Try: {suggestions.first_run()}")
    training, own = training_settings(given.get("set", []))
    fields = {f.name for f in dataclasses.fields(RunSettings)} - {"training", "env_config"}
    settings = RunSettings(
        **{**own, **{key: value for key, value in given.items() if key in fields}},
        env_config=merged(given.get("env_config", [])),
        training={**TRAINING_DEFAULTS, **training},
    )
    numbered = "out" not in given
    out = Path("runs") / settings.default_folder_name() if numbered else Path(given["out"])
    run_folder.check_can_be_made(out, numbered=numbered)
    return _Training(settings, settings.build_algorithm(), out, numbered, folder=None, baselines={})


def _resumed(given: Mapping[str, Any]) -> _Training:
    """A run from its latest checkpoint."""
    options = set(given) - {"resume", "run", "command"}
    for option in sorted(options - set(CHANGEABLE_ON_RESUME)):
        raise ConfigError(
            f"train --resume: {option!r} cannot be given, because the run has its own. "
            f"Only --steps, --threads, --checkpoint-every, --eval-episodes and --no-video can be changed."
        )
    path = Path(given["resume"])
    config = run_folder.read_config(path)
    changes = {key: given[key] for key in options}
    settings = dataclasses.replace(settings_from_json(config.get("command")), **changes)
    checkpoint = run_folder.latest_checkpoint(path)
    use_threads(settings.threads)
    algo = load_algorithm(checkpoint)
    _check_same_env(algo, settings, checkpoint)
    folder = RunFolder.reopen(path)
    training = _Training(settings, algo, path, False, folder, folder.baselines)
    training.steps_done, training.iteration = folder.last_steps, int(checkpoint.name)
    training.saved_iteration = training.iteration
    if training.steps_done >= settings.steps:
        training.close()
        raise ConfigError(
            f"train --resume: the run {path} has its {training.steps_done:,} agent steps of {settings.steps:,} done. "
            f"To train it further, give more: --steps {suggestions.more_steps(settings.steps, training.steps_done)}"
        )
    print(f"Going on from iteration {training.iteration} at {training.steps_done:,} agent steps.", flush=True)
    return training


def load_algorithm(checkpoint: Path, *, with_episodes: bool = True) -> Any:
    """The ``Algorithm`` of a checkpoint; see ``Algorithm.from_checkpoint``."""
    from marl_connectors.algorithms.algorithm import Algorithm

    return Algorithm.from_checkpoint(checkpoint, with_episodes=with_episodes)


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


__all__ = ["TRAINING_DEFAULTS", "RunSettings", "load_algorithm", "run"]
