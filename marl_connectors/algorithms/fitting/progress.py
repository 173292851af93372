"""The progress of a run: a live display on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from marl_connectors.algorithms.fitting.figures import (
    MODULES_SHOWN,
    agent_steps,
    facts_of,
    module_returns,
    number,
    percent,
    remote_parts,
    success_of,
)
from marl_connectors.html_tables import html_table

if TYPE_CHECKING:
    from typing_extensions import Self

_PARTS = 10_000
"""The number of parts of a full bar."""
COUNTS: Mapping[str, str] = {
    "num_agent_steps": "num_agent_steps_sampled_lifetime",
    "num_env_steps": "num_env_steps_sampled_lifetime",
    "num_iterations": "training_iteration",
}
"""What a run may count until its end, and the key of the count in the results of an iteration."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The end of a run.

    Attributes:
        total: The count at which the run ends; None if only a condition ends it.
        count: The key of the count in the results of an iteration.
        origin: The count at which the bar is empty.
    """

    total: int | None
    count: str = COUNTS["num_agent_steps"]
    origin: int = 0

    def share(self, result: Mapping[str, Any]) -> float:
        """Returns the share of the goal that is reached, from 0 to 1; NaN without a total."""
        if self.total is None:
            return math.nan
        return min(max((result[self.count] - self.origin) / max(self.total - self.origin, 1), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Watched:
    """The run that is displayed.

    Attributes:
        goal: The end of the run.
        done: The agent steps at the beginning, more than 0 for a resumed run.
        stream: The stream to print to.
        num_env_runners: The number of remote env runners.
        activity: Returns what the ongoing iteration does, in words. It is called in another thread.
        clock: A function that returns seconds, which never decrease.
    """

    goal: Goal
    done: int
    stream: TextIO
    num_env_runners: int = 0
    activity: Callable[[], str] = str
    clock: Callable[[], float] = time.monotonic

    def pace(self) -> Pace:
        """Returns the pace of the run, which begins now."""
        return Pace(self.goal, self.done, self.clock)

    def remote_parts(self, result: Mapping[str, Any]) -> str:
        """Describes the remote processes of an iteration; ``""`` if there is nothing to say of them."""
        return remote_parts(result, self.num_env_runners)

    def say(self, sentence: str) -> None:
        """Prints a line."""
        print(sentence, file=self.stream, flush=True)


class Progress:
    """A display of one run; this one displays nothing. ``update`` is called after each iteration."""

    def update(self, result: Mapping[str, Any]) -> None: ...

    def say(self, sentence: str) -> None: ...

    def close(self) -> None: ...


class Pace:
    """Agent steps per second and the time left, over the most recent seconds.

    Args:
        goal: The end of the run.
        done: The agent steps at the beginning.
        clock: A function that returns seconds, which never decrease.
        horizon_s: The number of seconds over which the rate is averaged.
    """

    def __init__(self, goal: Goal, done: int, clock: Callable[[], float], horizon_s: float = 30.0) -> None:
        self._goal = goal
        self._clock = clock
        self._horizon_s = horizon_s
        self._marks: list[tuple[float, int, int | None]] = [(clock(), done, None)]

    def update(self, result: Mapping[str, Any]) -> tuple[float, float]:
        """Adds the result of an iteration. Returns (agent steps per second, seconds left)."""
        now, done, count = self._clock(), agent_steps(result), int(result[self._goal.count])
        self._marks.append((now, done, count))
        while len(self._marks) > 2 and now - self._marks[1][0] >= self._horizon_s:
            del self._marks[0]
        since, before, count_before = self._marks[0]
        elapsed = now - since
        rate = (done - before) / elapsed if elapsed > 0 else 0.0
        if self._goal.total is None or rate <= 0:
            return rate, math.inf
        if count_before is None:
            count_before = before if self._goal.count == COUNTS["num_agent_steps"] else self._goal.origin
        speed = (count - count_before) / elapsed
        return rate, max(self._goal.total - count, 0) / speed if speed > 0 else math.inf


class PlainProgress(Progress):
    """One line per update, but at most one in ``interval_s`` seconds. The first and last update always have a line.

    If there is no update for ``first_s`` seconds, a line says what the iteration does.
    """

    def __init__(self, run: Watched, *, interval_s: float = 5.0, first_s: float = 10.0) -> None:
        self._run = run
        self._pace = run.pace()
        self._interval_s = interval_s
        self._last_line_at: float | None = None
        self._heartbeat = Heartbeat(run.activity, self.say, first_s=first_s)

    def update(self, result: Mapping[str, Any]) -> None:
        self._heartbeat.restart()
        goal = self._run.goal
        rate, left_s = self._pace.update(result)
        share = goal.share(result)
        now = self._run.clock()
        due = self._last_line_at is None or now - self._last_line_at >= self._interval_s
        if not due and not share >= 1:
            return
        self._last_line_at = now
        remote = self._run.remote_parts(result)
        begin = f"iteration {result['training_iteration']}" if math.isnan(share) else f"{share_done(share):>4}"
        end, width = "", 0
        if goal.total is not None:
            end = f"{duration(left_s):>8} left  "
            width = len(f"{goal.total:,}") if goal.count == COUNTS["num_agent_steps"] else 0
        self.say(
            f"{begin}  {agent_steps(result):>{width},} agent steps  {rate:>8,.0f}/s  {end}"
            f"return: {_returns_line(result)}{'  ' if remote else ''}{remote}"
        )

    def say(self, sentence: str) -> None:
        self._run.say(sentence)

    def close(self) -> None:
        self._heartbeat.stop()
        self._run.stream.flush()


class LiveProgress(Progress):
    """A bar, the rate, the time left and the return per module, drawn in place."""

    def __init__(self, run: Watched) -> None:
        # rich draws from Python's global generator when it is imported. An environment that does so too would otherwise
        # behave differently with and without a terminal.
        state = random.getstate()
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        random.setstate(state)
        self._run = run
        self._pace = run.pace()
        self._activity = run.activity
        self._shown: list[Any] = []
        self._bar = Bar(
            BarColumn(bar_width=None),
            TextColumn("{task.fields[share]:>4}" if run.goal.total is not None else ""),
            TextColumn("{task.fields[numbers]}"),
            expand=True,
        )
        goal, done = run.goal, run.done
        total, at = (None, 0) if goal.total is None else (_PARTS, round(_PARTS * goal.share({goal.count: done})))
        begun: dict[str, Any] = {"share": share_done(at / _PARTS), "numbers": f"{done:,} agent steps"}
        self._task = self._bar.add_task("", total=total, completed=at, **begun)
        self._live = Live(console=Console(file=run.stream), refresh_per_second=4, get_renderable=self._rendered)
        self._live.start()

    def update(self, result: Mapping[str, Any]) -> None:
        from rich.text import Text

        rate, left_s = self._pace.update(result)
        left = "" if self._run.goal.total is None else f"  {duration(left_s)} left"
        numbers = f"{agent_steps(result):,} agent steps  {rate:,.0f}/s{left}"
        share = self._run.goal.share(result)
        reached = 0.0 if math.isnan(share) else share
        self._bar.update(self._task, completed=_PARTS * reached, share=share_done(reached), numbers=numbers)
        shown = [_returns_table(result)]
        if remote := self._run.remote_parts(result):
            shown.append(Text(f"  {remote}"))
        self._shown = shown
        self._live.refresh()

    def _rendered(self) -> Any:
        """Returns what is drawn, four times in a second."""
        from rich.console import Group
        from rich.text import Text

        activity = self._activity()
        return Group(self._bar, *self._shown, *([Text(f"  {activity}", style="dim")] if activity else []))

    def say(self, sentence: str) -> None:
        self._live.console.print(sentence, markup=False, highlight=False)

    def close(self) -> None:
        self._activity = str
        self._live.stop()


class NotebookProgress(Progress):
    """A bar, the rate, the time left and the return per module below a notebook's cell, at most twice in a second."""

    def __init__(self, run: Watched, *, interval_s: float = 0.5) -> None:
        self._run = run
        self._pace = run.pace()
        self._interval_s = interval_s
        self._shown_at = run.clock()
        self._latest: tuple[Mapping[str, Any], float, float] | None = None
        # The front end may be in another process that only gets what the cell's thread sends, so there is no thread.
        self._display = _notebook_display(
            f"<p>{run.done:,} agent steps, {run.activity() or 'the first iteration'} ...</p>"
        )

    def update(self, result: Mapping[str, Any]) -> None:
        self._latest = (result, *self._pace.update(result))
        if self._run.clock() - self._shown_at >= self._interval_s:
            self._show()

    def _show(self) -> None:
        if self._latest is None:
            return
        result, rate, left_s = self._latest
        share = self._run.goal.share(result)
        value = "" if math.isnan(share) else f" value='{share:.4f}'"
        left = "" if self._run.goal.total is None else f", {duration(left_s)} left"
        numbers = f"{agent_steps(result):,} agent steps, {rate:,.0f}/s{left}"
        rows = facts_of(result)
        if remote := self._run.remote_parts(result):
            rows["processes"] = remote
        self._display(f"<progress style='width:50%'{value}></progress> {numbers}{html_table('', rows)}")
        self._shown_at = self._run.clock()

    def say(self, sentence: str) -> None:
        self._run.say(sentence)

    def close(self) -> None:
        self._show()


class Heartbeat:
    """Says from time to time, in a thread, what a program is busy with, until it stops or its ``with`` block ends.

    Args:
        activity: Returns what the program does, in words; ``""`` for nothing worth saying.
        say: Prints a line.
        first_s: The seconds before the first line. The interval doubles after each line.
    """

    def __init__(self, activity: Callable[[], str], say: Callable[[str], None], *, first_s: float = 10.0) -> None:
        self._activity = activity
        self._say = say
        self._first_s = first_s
        self._changed = threading.Condition()
        self._began = time.monotonic()
        self._is_running = True
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def restart(self) -> None:
        """Begins to count the seconds from zero."""
        with self._changed:
            self._began = time.monotonic()
            self._changed.notify()

    def stop(self) -> None:
        """Says nothing more."""
        with self._changed:
            self._is_running = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            began, interval_s, until = self._began, self._first_s, self._first_s
            while self._is_running:
                if began != self._began:
                    began, interval_s, until = self._began, self._first_s, self._first_s
                so_far = time.monotonic() - began
                if so_far < until:
                    self._changed.wait(until - so_far)
                    continue
                interval_s *= 2
                until += interval_s
                if activity := self._activity():
                    self._say(f"  {activity} ({duration(so_far)} so far)")


class PlayProgress(Heartbeat):
    """Prints from time to time how many episodes have ended, as ``on_progress`` of evaluations in a ``with`` block.

    Args:
        total: The number of requested episodes.
        stream: The stream to print to; stdout if None.
        what: What is counted.
        first_s: As for ``Heartbeat``.
    """

    def __init__(
        self, total: int, stream: TextIO | None = None, *, what: str = "episodes", first_s: float = 2.0
    ) -> None:
        self._done, self._total, self._stream, self._what = 0, total, stream, what
        super().__init__(self._so_far, self._print, first_s=first_s)

    def __call__(self, done: int) -> None:
        self._done = done

    def _so_far(self) -> str:
        return f"{self._done} of {self._total} {self._what}" if self._done < self._total else ""

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def announced(activity: str, stream: TextIO | None = None, *, first_s: float = 5.0) -> Heartbeat:
    """Prints from time to time what a program is busy with, if its ``with`` block takes more than some seconds.

    Args:
        activity: What it does, in words.
        stream: The stream to print to; stderr if None.
        first_s: As for ``Heartbeat``.
    """
    return Heartbeat(lambda: activity, lambda line: print(line, file=stream or sys.stderr, flush=True), first_s=first_s)


def open_progress(run: Watched) -> Progress:
    """Opens the display that fits: one for notebooks, a live one on a terminal if rich is installed, or plain lines."""
    kind: Any = PlainProgress
    if is_in_notebook():
        kind = NotebookProgress
    elif run.stream.isatty() and importlib.util.find_spec("rich") is not None:
        kind = LiveProgress
    return kind(run)


def is_in_notebook() -> bool:
    """Whether this program runs in a notebook's kernel."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _notebook_display(html: str) -> Callable[[str], None]:
    """Shows HTML below the cell, and returns a function that replaces it."""
    from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

    handle: Any = display(HTML(html), display_id=True)
    return lambda new: handle.update(HTML(new))


def share_done(share: float) -> str:
    """Formats the share of a goal that is reached. It is not 100 % before the end.

    >>> share_done(0.335), share_done(0.9999), share_done(1.0)
    ('34%', '99%', '100%')
    """
    return f"{share:.0%}" if share >= 1 else f"{min(round(100 * share), 99)}%"


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
    shown = [f"{module_id} {number(mean)}" for module_id, (mean, _) in list(returns.items())[:MODULES_SHOWN]]
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
    for name, value in facts_of(result).items():
        rows.add_row(Text(name), Text(value))
    return rows
