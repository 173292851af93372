"""The commands that the command line suggests. Each of them works as it is printed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from marl_connectors.programs import PROGRAM, command


def first_run() -> str:
    """Returns a command for a first run, on an environment that is installed."""
    env = "CartPole-v1" if importlib.util.find_spec("mpe2") is None else "simple_speaker_listener_v4"
    return command(PROGRAM, "train", env)


def print_next(commands: Iterable[str]) -> None:
    """Prints commands to try next."""
    print("\n".join(["", "Next:", *(f"  {each}" for each in commands)]), flush=True)


def more_steps(steps: int, steps_done: int) -> int:
    """Returns the next ``--steps`` for a finished run, whose last iteration may have gone beyond its ``steps``."""
    return 2 * (steps if 2 * steps > steps_done else steps_done)


def resume(path: Path, steps: int | None = None, *, trusted: bool = True) -> str:
    """Returns the command that resumes a run.

    Args:
        path: The folder of the run.
        steps: The number of agent steps, if the folder does not have it.
        trusted: Whether its checkpoints are read with ``--untrusted`` left out.
    """
    words = [PROGRAM, "train", "--resume", str(path), *([] if steps is None else ["--steps", str(steps)])]
    return command(*words, *_untrusted(trusted))


def after_a_run(path: Path, steps: int, *, events: Path | None, trusted: bool = True) -> list[str]:
    """Returns the commands to try after a run.

    Args:
        path: The folder of the run.
        steps: The agent steps to go on to.
        events: The folder of the run's TensorBoard events; None if it has none.
        trusted: Whether its checkpoints are read with ``--untrusted`` left out.
    """
    evaluate = command(PROGRAM, "evaluate", path, "--episodes", "100", *_untrusted(trusted))
    shows = [] if events is None else [command("tensorboard", "--logdir", events)]
    return [evaluate, *shows, resume(path, steps, trusted=trusted)]


def _untrusted(trusted: bool) -> list[str]:
    return [] if trusted else ["--untrusted"]
