"""The progress of a run: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from marl_connectors.cli.results import agent_steps, module_returns, number, percent, remote_parts, success_of

_MODULES_SHOWN = 8


class Progress(Protocol):
    """A display of one run. ``update`` is called after each iteration."""

    def update(self, result: Mapping[str, Any]) -> None: ...

    def say(self, sentence: str) -> None: ...

    def close(self) -> None: ...


class Pace:
    """Agent steps per second and the time left, over the most recent seconds.

    Args:
        done: The agent steps at the beginning.
        total: The agent steps at which the run ends.
        clock: A function that returns seconds, which never decrease.
        horizon_s: The number of seconds over which the rate is averaged.
    """

    def __init__(self, done: int, total: int, clock: Callable[[], float], horizon_s: float = 30.0) -> None:
        self.total = total
        self._clock = clock
        self._horizon_s = horizon_s
        self._marks = [(clock(), done)]

    def update(self, done: int) -> tuple[float, float]:
        """Adds the present number of steps. Returns (steps per second, seconds left)."""
        now = self._clock()
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= self._horizon_s:
            del self._marks[0]
        since, before = self._marks[0]
        elapsed = now - since
        rate = (done - before) / elapsed if elapsed > 0 else 0.0
        return rate, max(self.total - done, 0) / rate if rate > 0 else float("inf")


class PlainProgress:
    """One line per update, but at most one in ``interval_s`` seconds. The first and last update always have a line."""

    def __init__(
        self,
        total: int,
        done: int,
        stream: TextIO,
        num_env_runners: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 5.0,
    ) -> None:
        self._num_env_runners = num_env_runners
        self._pace = Pace(done, total, clock)
        self._stream = stream
        self._clock = clock
        self._interval_s = interval_s
        self._last_line_at: float | None = None

    def update(self, result: Mapping[str, Any]) -> None:
        done = agent_steps(result)
        rate, left_s = self._pace.update(done)
        now = self._clock()
        due = self._last_line_at is None or now - self._last_line_at >= self._interval_s
        if not due and done < self._pace.total:
            return
        self._last_line_at = now
        share = min(done / self._pace.total, 1.0)
        remote = remote_parts(result, self._num_env_runners)
        self.say(
            f"{share:4.0%}  {done:>{len(f'{self._pace.total:,}')},} agent steps  {rate:>8,.0f}/s  "
            f"{duration(left_s):>8} left  return: {_returns_line(result)}{'  ' if remote else ''}{remote}"
        )

    def say(self, sentence: str) -> None:
        print(sentence, file=self._stream, flush=True)

    def close(self) -> None:
        self._stream.flush()


class LiveProgress:
    """A bar, the rate, the time left and the return per module, drawn in place."""

    def __init__(
        self,
        total: int,
        done: int,
        stream: TextIO,
        num_env_runners: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # rich draws from Python's global generator when it is imported. An environment that does so too would otherwise
        # behave differently with and without a terminal.
        state = random.getstate()
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        random.setstate(state)
        self._num_env_runners = num_env_runners
        self._pace = Pace(done, total, clock)
        self._bar = Bar(
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[numbers]}"),
            expand=True,
        )
        self._task = self._bar.add_task("", total=total, completed=done, numbers=f"{done:,} agent steps")
        self._live = Live(self._bar, console=Console(file=stream), refresh_per_second=4)
        self._live.start()

    def update(self, result: Mapping[str, Any]) -> None:
        from rich.console import Group
        from rich.text import Text

        done = agent_steps(result)
        rate, left_s = self._pace.update(done)
        numbers = f"{done:,} agent steps  {rate:,.0f}/s  {duration(left_s)} left"
        self._bar.update(self._task, completed=min(done, self._pace.total), numbers=numbers)
        shown = [self._bar, _returns_table(result)]
        if remote := remote_parts(result, self._num_env_runners):
            shown.append(Text(f"  {remote}"))
        self._live.update(Group(*shown))

    def say(self, sentence: str) -> None:
        self._live.console.print(sentence, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


class PlayProgress:
    """Prints from time to time how many episodes have ended, as ``on_progress`` of evaluations.

    Args:
        total: The number of requested episodes.
        stream: The stream to print to; stdout if None.
        clock: A function that returns seconds, which never decrease.
        interval_s: The seconds before the first line. The interval doubles after each line.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 2.0,
    ) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._interval_s = interval_s
        self._began = clock()
        self._next = self._began + interval_s

    def __call__(self, done: int) -> None:
        now = self._clock()
        if now >= self._next and done < self._total:
            self._interval_s *= 2
            self._next = now + self._interval_s
            said = f"  {done} of {self._total} episodes after {duration(now - self._began)}"
            print(said, file=self._stream, flush=True)


def open_progress(total: int, done: int, stream: TextIO, num_env_runners: int = 0) -> Progress:
    """Opens the display that fits a stream.

    Args:
        total: The agent steps at which the run ends.
        done: The agent steps at the beginning, more than 0 for a resumed run.
        stream: The stream to print to.
        num_env_runners: The number of remote env runners.
    """
    return (LiveProgress if stream.isatty() else PlainProgress)(total, done, stream, num_env_runners)


def duration(seconds: float) -> str:
    """Formats seconds as ``m:ss`` or ``h:mm:ss``.

    >>> duration(75), duration(3700), duration(float("inf"))
    ('1:15', '1:01:40', '-:--')
    """
    if seconds == float("inf"):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _returns_line(result: Mapping[str, Any]) -> str:
    returns = module_returns(result["env_runners"])
    shown = [f"{module_id} {number(mean)}" for module_id, (mean, _) in list(returns.items())[:_MODULES_SHOWN]]
    more = len(returns) - len(shown)
    success = success_of(result["env_runners"])
    return (
        (", ".join(shown) if shown else "–")
        + (f" and {more} more" if more else "")
        + (f"  success: {percent(success)}" if math.isfinite(success) else "")
    )


def _returns_table(result: Mapping[str, Any]) -> Any:
    """Makes a rich table of the returns."""
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, padding=(0, 2), show_header=False)
    returns = module_returns(result["env_runners"])
    for module_id, (mean, std) in list(returns.items())[:_MODULES_SHOWN]:
        rows.add_row("return of", Text(module_id, style="bold"), f"{number(mean)} ± {number(std)}")
    if len(returns) > _MODULES_SHOWN:
        rows.add_row("", f"and {len(returns) - _MODULES_SHOWN} more", "")
    if math.isfinite(success := success_of(result["env_runners"])):
        rows.add_row("success", "", percent(success))
    return rows
