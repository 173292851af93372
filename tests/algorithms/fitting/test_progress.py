"""The plain and the live display."""

from __future__ import annotations

import io
import math
import re
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from marl_connectors.algorithms.fitting import progress as progress_module
from marl_connectors.algorithms.fitting.figures import remote_parts
from marl_connectors.algorithms.fitting.progress import (
    COUNTS,
    Goal,
    Heartbeat,
    LiveProgress,
    NotebookProgress,
    Pace,
    PlainProgress,
    PlayProgress,
    Watched,
    announced,
    duration,
    is_in_notebook,
    open_progress,
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def result(steps, **returns):
    stats = {module_id: {"mean": mean, "std": 1.0} for module_id, mean in returns.items()}
    return {"num_agent_steps_sampled_lifetime": steps, "env_runners": {"module_episode_returns": stats}}


def test_lines_keep_their_distance_but_the_first_and_last_always_come():
    clock, stream = Clock(), io.StringIO()
    progress = PlainProgress(Watched(Goal(1000), 0, stream, clock=clock), interval_s=1.0)
    for i in range(1, 11):
        clock.now = 0.3 * i
        progress.update(result(100 * i))
    shown = [line.split("%")[0].strip() for line in stream.getvalue().splitlines()]
    assert shown == ["10", "50", "90", "100"]


@pytest.mark.parametrize(("steps", "shown"), [(1, "0%"), (334, "33%"), (996, "99%"), (999, "99%"), (1000, "100%")])
def test_a_run_is_at_100_percent_at_its_end_only(steps, shown):
    for kind in (PlainProgress, LiveProgress):
        stream = io.StringIO()
        progress = kind(Watched(Goal(1000), 0, stream))
        progress.update(result(steps))
        progress.close()
        assert set(re.findall(r"\d+%", stream.getvalue())) == {shown}


def test_a_line_has_steps_rate_time_left_and_returns():
    clock, stream = Clock(), io.StringIO()
    progress = PlainProgress(Watched(Goal(4000), 0, stream, clock=clock))
    clock.now = 2.0
    progress.update(result(1000, red=-26.64, green=math.nan))
    assert stream.getvalue() == " 25%  1,000 agent steps       500/s      0:06 left  return: red -26.6, green –\n"


def test_many_modules_do_not_flood_the_line():
    stream = io.StringIO()
    PlainProgress(Watched(Goal(100), 0, stream)).update(result(10, **{f"m{i}": 1.0 for i in range(11)}))
    assert stream.getvalue().endswith("m7 1.00 and 3 more\n")


def remote_result(rates, healthy, replaced, **faults):
    faults = {"num_healthy_workers": healthy, "num_remote_worker_restarts": replaced, **faults}
    timers = {"env_runner_env_steps_per_second": dict(enumerate(rates))}
    return {**result(500, red=1.0), "timers": timers, "fault_tolerance": faults}


@pytest.mark.parametrize(
    ("rates", "healthy", "replaced", "shown"),
    [
        ([1204.3, 998.7], 2, 0, "return: red 1.00  env runners: 1,204 / 999 env steps/s"),
        ([998.7], 1, 3, "return: red 1.00  env runners: 999 env steps/s, 3 replaced, 1 lost"),
    ],
)
def test_both_displays_show_how_fast_env_runners_are_and_what_was_lost(rates, healthy, replaced, shown, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "100")
    given, plain, terminal = remote_result(rates, healthy, replaced), io.StringIO(), io.StringIO()
    PlainProgress(Watched(Goal(1000), 0, plain, 2)).update(given)
    assert plain.getvalue().endswith(f"{shown}\n")
    live = LiveProgress(Watched(Goal(1000), 0, terminal, 2))
    live.update(given)
    live.close()
    assert shown.partition("  ")[2] in terminal.getvalue()


def test_the_rates_of_many_env_runners_do_not_flood_the_line():
    assert remote_parts(remote_result([*range(100, 164)], 64, 0), 64) == "64 env runners: 100 to 163 env steps/s"


def test_replaced_learners_are_shown():
    given = {"timers": {}, "fault_tolerance": {"num_remote_learner_restarts": 2}}
    assert remote_parts(given, 0) == "learners replaced 2 times"


def test_the_rate_of_a_resumed_run_counts_its_own_steps_only():
    clock = Clock()
    pace = Pace(Goal(20_000), 10_000, clock)
    clock.now = 10.0
    assert pace.update(result(11_000)) == (100.0, 90.0)


def test_the_rate_is_that_of_the_most_recent_seconds():
    clock = Clock()
    pace = Pace(Goal(1_000_000), 0, clock, horizon_s=10.0)
    for clock.now, done in ((10.0, 1000), (20.0, 101_000)):
        rate, _ = pace.update(result(done))
    assert rate == 10_000.0


def test_no_time_passed_gives_no_estimate():
    assert Pace(Goal(10), 0, Clock()).update(result(5)) == (0.0, math.inf)
    assert duration(math.inf) == "-:--"


def test_a_terminal_gets_the_live_display_and_anything_else_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(open_progress(Watched(Goal(10), 0, io.StringIO())), PlainProgress)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    live = open_progress(Watched(Goal(1000), 0, terminal))
    assert isinstance(live, LiveProgress)
    live.update(result(500, **{"red[bold]": -3.0, **{f"m{i}": 1.0 for i in range(9)}}))
    live.say("a [sentence]")
    live.close()
    shown = terminal.getvalue()
    assert "50%" in shown and "500 agent steps" in shown and "red[bold]" in shown and "-3.00 ± 1.00" in shown
    assert re.search(r"more modules +2", shown) and "a [sentence]" in shown


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3600, "1:00:00")])
def test_durations_read_as_on_a_clock(seconds, text):
    assert duration(seconds) == text


class Lines:
    """A stream that can be waited for."""

    def __init__(self):
        self.written = []
        self._changed = threading.Condition()

    def write(self, text):
        with self._changed:
            self.written.append(text)
            self._changed.notify_all()

    def flush(self): ...

    def wait_for(self, *texts):
        """Waits until each of these texts is in one of the lines."""
        with self._changed:
            while not all(any(text in line for line in self.written) for text in texts):
                self._changed.wait()


def test_measuring_says_how_far_it_is_even_while_a_step_takes_long():
    lines = Lines()
    with PlayProgress(20, lines, first_s=1e-3) as progress:
        lines.wait_for("0 of 20 episodes (0:00 so far)")
        progress(4)
        lines.wait_for("4 of 20 episodes")
        progress(20)


def test_what_takes_long_is_announced_and_what_does_not_is_not(capsys):
    lines = Lines()
    with announced("building", lines, first_s=1e-3):
        lines.wait_for("  building (0:00 so far)")
    with announced("building"):
        pass
    assert capsys.readouterr() == ("", "")


def test_the_interval_between_lines_doubles_and_starts_again_with_each_iteration(monkeypatch):
    seen, now, heartbeat = [], [0.0], None

    class Changed(threading.Condition):
        """Time passes only while the thread waits."""

        def wait(self, timeout=None):
            now[0] += timeout
            if len(seen) == 3 and now[0] < 1000.0:
                now[0] += 1000.0
                heartbeat._began = now[0]
            elif len(seen) == 5:
                heartbeat._is_running = False

    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress_module.threading, "Condition", Changed)
    monkeypatch.setattr(progress_module.threading, "Thread", lambda target, **kwargs: SimpleNamespace(start=str))
    heartbeat = Heartbeat(lambda: "sampling", seen.append, first_s=10.0)
    heartbeat._run()
    assert seen == [f"  sampling ({text} so far)" for text in ("0:10", "0:30", "1:10", "0:10", "0:30")]


def test_lines_say_what_a_long_iteration_does():
    lines = Lines()
    progress = PlainProgress(Watched(Goal(1000), 0, lines, activity=lambda: "iteration 1: sampling"), first_s=1e-3)
    lines.wait_for("  iteration 1: sampling (0:00 so far)")
    progress.close()


def test_the_live_display_says_what_an_iteration_does(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = io.StringIO()
    live = LiveProgress(Watched(Goal(None), 0, terminal, activity=lambda: "iteration 1: sampling"))
    live.update(result(40, red=1.0))
    shown = Console(file=terminal, width=80).print(live._rendered())
    live.close()
    assert shown is None and "iteration 1: sampling" in terminal.getvalue()


# Goals ----------------------------------------------------------------------------------------------------------------


def counted(iteration, env_steps, steps):
    counts = {"training_iteration": iteration, "num_env_steps_sampled_lifetime": env_steps}
    return {**result(steps, red=1.0), **counts}


def test_a_goal_in_iterations_or_env_steps_has_a_share_and_the_time_left():
    for goal in (Goal(14, COUNTS["num_iterations"], 10), Goal(900, COUNTS["num_env_steps"], 500)):
        clock, stream = Clock(), io.StringIO()
        progress = PlainProgress(Watched(goal, 5000, stream, clock=clock))
        clock.now = 2.0
        progress.update(counted(11, 600, 6000))
        progress.close()
        assert stream.getvalue() == " 25%  6,000 agent steps       500/s      0:06 left  return: red 1.00\n"


def test_without_a_number_to_reach_lines_have_the_iteration():
    clock, stream = Clock(), io.StringIO()
    progress = PlainProgress(Watched(Goal(None), 0, stream, clock=clock))
    clock.now = 2.0
    progress.update(counted(1, 500, 1000))
    assert stream.getvalue() == "iteration 1  1,000 agent steps       500/s  return: red 1.00\n"


def test_without_rich_a_terminal_gets_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(progress_module.importlib.util, "find_spec", lambda name: None)
    assert isinstance(open_progress(Watched(Goal(10), 0, Terminal())), PlainProgress)


# Notebooks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def notebook(monkeypatch):
    """A pretended kernel; the list of what its cell shows, one after another."""
    shown = []
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display = ModuleType("IPython.display")
    ipython.display.HTML = str

    def display(html, display_id):
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return shown


def test_a_notebook_gets_a_bar_that_is_replaced(notebook):
    assert is_in_notebook()
    stream = io.StringIO()
    progress = open_progress(Watched(Goal(1000), 0, stream))
    assert isinstance(progress, NotebookProgress)
    progress.update(result(500, **{"<red>": -3.0}))
    progress.say("a sentence")
    progress.close()
    assert "value='0.5000'" in notebook[-1] and "500 agent steps" in notebook[-1]
    assert "return of &lt;red&gt;" in notebook[-1] and "-3.00 ± 1.00" in notebook[-1]
    assert stream.getvalue() == "a sentence\n"


def test_a_notebook_is_not_flooded(notebook):
    clock = Clock()
    progress = NotebookProgress(Watched(Goal(1000), 0, io.StringIO(), clock=clock))
    for i in range(1, 101):
        clock.now = 0.02 * i
        progress.update(result(10 * i, red=1.0))
    progress.close()
    assert len(notebook) == 6 and "1,000 agent steps" in notebook[-1]  # at the beginning, each 0.5 s, and at the end


def test_ipython_on_a_terminal_is_no_notebook(notebook, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", SimpleNamespace)
    assert not is_in_notebook()
