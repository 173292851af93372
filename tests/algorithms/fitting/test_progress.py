"""The plain and the live display."""

from __future__ import annotations

import io
import math

import pytest

from marl_connectors.algorithms.fitting.figures import remote_parts
from marl_connectors.algorithms.fitting.progress import (
    Goal,
    LiveProgress,
    Pace,
    PlainProgress,
    PlayProgress,
    duration,
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
    progress = PlainProgress(Goal(1000), 0, stream, clock=clock, interval_s=1.0)
    for i in range(1, 11):
        clock.now = 0.3 * i
        progress.update(result(100 * i))
    shown = [line.split("%")[0].strip() for line in stream.getvalue().splitlines()]
    assert shown == ["10", "50", "90", "100"]


def test_a_line_has_steps_rate_time_left_and_returns():
    clock, stream = Clock(), io.StringIO()
    progress = PlainProgress(Goal(4000), 0, stream, clock=clock)
    clock.now = 2.0
    progress.update(result(1000, red=-26.64, green=math.nan))
    assert stream.getvalue() == " 25%  1,000 agent steps       500/s      0:06 left  return: red -26.6, green –\n"


def test_many_modules_do_not_flood_the_line():
    stream = io.StringIO()
    PlainProgress(Goal(100), 0, stream).update(result(10, **{f"m{i}": 1.0 for i in range(11)}))
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
    PlainProgress(Goal(1000), 0, plain, 2).update(given)
    assert plain.getvalue().endswith(f"{shown}\n")
    live = LiveProgress(Goal(1000), 0, terminal, 2)
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
    assert isinstance(open_progress(Goal(10), 0, io.StringIO()), PlainProgress)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    live = open_progress(Goal(1000), 0, terminal)
    assert isinstance(live, LiveProgress)
    live.update(result(500, **{"red[bold]": -3.0, **{f"m{i}": 1.0 for i in range(9)}}))
    live.say("a [sentence]")
    live.close()
    shown = terminal.getvalue()
    assert "50%" in shown and "500 agent steps" in shown and "red[bold]" in shown and "-3.00 ± 1.00" in shown
    assert "and 2 more" in shown and "a [sentence]" in shown


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3600, "1:00:00")])
def test_durations_read_as_on_a_clock(seconds, text):
    assert duration(seconds) == text


def test_measuring_says_now_and_then_how_far_it_is():
    clock, stream = Clock(), io.StringIO()
    progress = PlayProgress(20, stream, clock=clock)
    for i in range(1, 301):
        clock.now = 0.1 * i
        progress(i // 15)
    assert stream.getvalue().splitlines() == [
        "  1 of 20 episodes after 0:02",
        "  4 of 20 episodes after 0:06",
        "  9 of 20 episodes after 0:14",
    ]
