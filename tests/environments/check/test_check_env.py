"""``check_env``: sound environments, calls that fail, the report."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv
from helpers.envs.sound_envs import SMALL, Returning, Sound, SoundAEC, SoundGym, found, kinds
from marl_connectors.environments.check.check_env import check_env
from marl_connectors.environments.check.report import EnvFinding, EnvMeasurements, EnvReport, Findings
from marl_connectors.environments.check.rules import RULES
from marl_connectors.environments.rules.violations import Violation
from marl_connectors.errors import ConfigError, EnvError

ROOT = Path(__file__).parents[3]

# Nothing to find.


@pytest.mark.few(3)
@pytest.mark.parametrize("env", [Sound, SoundAEC, SoundGym, Sound(), SoundAEC(), SoundGym()], ids=str)
@pytest.mark.parametrize("conformance", [True, False])
def test_a_sound_environment_has_no_errors_and_no_warnings(env, conformance):
    report = check_env(env, conformance=conformance)
    assert report.ok and not report.warnings, str(report)
    allowed = {"conformance", "step-after-end", "no-state", "no-render-modes"}
    assert kinds(report) <= allowed, str(report)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        {"die": 0.3},
        {"die": 0.3, "join": 0.4, "fixed": False, "max_steps": 20},
        {"mutable": True},
        {"agents": (1, 2)},
        {"agents": (("x", 1), ("x", 2)), "spaces_of": {("x", 1): (spaces.Box(-1, 1, ()), spaces.Discrete(3, start=5))}},
    ],
)
def test_agents_that_die_join_and_return_are_no_errors(options):
    report = check_env(lambda: LifeEnv(**options), episodes=6)
    assert report.ok, str(report)


def test_figures_count_what_was_played():
    figures = check_env(Sound, episodes=4, conformance=False).measurements
    assert (figures.episodes, figures.steps, figures.agent_steps) == (4, 20, 40)
    assert (figures.episode_lengths, figures.agents_per_step) == ((5, 5, 5, 5), 2.0)
    assert figures.seconds_per_step > 0 and figures.seconds_per_reset > 0
    figures = check_env(SoundAEC, episodes=2, conformance=False).measurements
    assert (figures.steps, figures.agent_steps) == (16, 12)  # two last turns in each episode
    assert check_env(SoundAEC, max_steps=4, **SMALL).measurements.episode_lengths == (8, 8)  # four turns of each agent
    assert check_env(SoundAEC, max_steps=3, **SMALL).measurements.episode_lengths == ()


def test_an_object_is_left_open_and_as_it_was():
    env = SoundGym()
    env.close = lambda: pytest.fail("closed")
    assert check_env(env).ok
    parallel = Sound()
    parallel.close = lambda: pytest.fail("closed")
    assert check_env(parallel).ok
    assert not hasattr(parallel, "max_cycles")  # which PettingZoo's test sets


def test_the_same_call_gives_the_same_findings():
    first, second = (check_env(LifeEnv, episodes=2, env_config={"die": 0.2}, conformance=False) for _ in range(2))
    assert first.findings == second.findings


# Calls that fail.


def failing(where, error):
    class Fails(Sound):
        pass

    def fail(self, *args, **kwargs):
        error()

    setattr(Fails, where, fail)
    return Fails


def boom():
    raise RuntimeError("boom\nboom")


@pytest.mark.parametrize("where", ["reset", "step"])
def test_what_it_raises_is_told_with_the_last_line(where):
    finding = found(failing(where, boom), "raised", "error")
    assert re.search(r"raised RuntimeError: boom boom \(.*test_check_env\.py:\d+ in boom\)", finding.what)


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("wait", [lambda: time.sleep(60), lambda: [None for _ in iter(int, 1)]], ids=["waits", "loops"])
def test_a_call_that_hangs_is_told_with_the_place(where, wait):
    finding = found(failing(where, wait), "hangs", "error", call_timeout=0.2)
    assert "within 0.2 seconds: it was at test_check_env.py" in finding.what


def test_it_works_in_another_thread_too():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(check_env, SoundGym, episodes=1).result().ok


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="has no alarms")
def test_an_alarm_of_somebody_else_goes_on():
    handler = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000.0)
        check_env(Sound, **SMALL)
        assert 500 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_exit_is_told_too():
    assert "raised SystemExit: 3" in found(failing("step", functools.partial(exit, 3)), "raised", "error").what


@pytest.mark.parametrize(
    ("where", "result", "words"),
    [
        ("reset", {"a": 1}, "reset() returned {'a': 1}."),
        ("step", (1, 2, 3, 4), "step() returned 4 values."),
        ("step", ({}, 1.0, {}, {}, {}), "The rewards are 1.0, not a dict."),
    ],
)
def test_results_of_another_form(where, result, words):
    class Broken(Sound):
        pass

    setattr(Broken, where, lambda self, *args, **kwargs: result)
    assert words in found(Broken, "wrong-result", "error").what


def test_the_old_gym_api_is_told_for_one_agent():
    class Old(SoundGym):
        def step(self, action):
            return super().step(action)[:4]

    finding = found(Old, "wrong-result", "error")
    assert finding.what == "step() returned 4 values."
    assert finding.advice.startswith(
        "Return 5: observations, rewards, terminations, truncations and infos. Four values"
    )


def test_data_that_even_the_checks_stumble_over_is_an_error():
    class Odd:
        def __array__(self, dtype=None, copy=None):
            raise ZeroDivisionError("odd")

    class Observes(Sound):
        def observe(self, agent):
            return Odd()

    finding = found(Observes, "unexpected", "error")
    assert "ZeroDivisionError: odd" in finding.what


def test_warnings_of_the_environment_are_notes():
    class Warns(Sound):
        def observe(self, agent):
            warnings.warn("mind the gap", stacklevel=1)
            return super().observe(agent)

    assert "UserWarning: mind the gap" in check_env(Warns, **SMALL).notes[0].what


def test_the_time_is_limited():
    class Slow(Sound):
        def observe(self, agent):
            time.sleep(0.02)
            return super().observe(agent)

    report = check_env(Slow, max_seconds=0.3, episodes=1000)
    assert "out-of-time" in kinds(report)
    assert report.measurements.steps >= 1


# Other people's tests.


def test_failures_of_other_tests_are_warnings_and_their_warnings_notes():
    report = check_env(Returning, episodes=1)
    assert report.ok
    (failure,) = [finding for finding in report.warnings if finding.kind == "conformance"]
    assert "pettingzoo's parallel_api_test raised AssertionError: agent cannot be revived once dead" in failure.what
    report = check_env(SoundAEC, episodes=1)
    assert any("pettingzoo's api_test warns: " in note.what for note in report.notes) or kinds(report) <= {"no-state"}

    class Sharing(SoundGym):
        kept = {"x": np.zeros(2)}

        def step(self, action):
            return *super().step(action)[:4], self.kept

    assert (
        "gymnasium's check_env raised AssertionError" in found(Sharing, "conformance", "warning", conformance=True).what
    )


# The call itself and the report.


def test_names_and_settings_are_those_of_make_env():
    report = check_env("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 3}, episodes=1)
    assert (report.name, report.kind, report.agents) == ("match_v0", "parallel", ("agent_0", "agent_1"))
    assert report.ok and report.measurements.episode_lengths == (3,)
    report = check_env("CartPole-v1", episodes=1)
    assert (report.name, report.kind) == ("CartPole-v1", "single agent")
    assert check_env(SoundAEC(), **SMALL).name == "sound_aec"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: check_env("no_such_env"), EnvError, "no_such_env"),
        (lambda: check_env(Sound(), env_config={"x": 1}), ConfigError, "exists"),
        (lambda: check_env(Sound, env_config={"x": 1}), ConfigError, "'x'"),
        (lambda: check_env(Sound, episodes=0), ConfigError, r"(?s)episodes.*\b1\b"),
        (lambda: check_env(Sound, max_seconds=0), ConfigError, "max_seconds"),
    ],
)
def test_wrong_calls(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_report_as_text_and_as_data():
    findings = Findings()
    findings.add(Violation("later", "A note", None, "note", ""))
    findings.episode = 1
    for agent in (("x", 1), ("x", 2), ("x", 1)):
        findings.add(Violation("bad", "It is bad", agent, "error", "Mend it."), step=4)
    figures = EnvMeasurements(2, (5, 7), 12, 24, 2.0, 0.0015, 2.5e-6)
    report = EnvReport("name", "parallel", (("x", 1), ("x", 2)), tuple(findings.in_order()), figures)
    assert str(report).splitlines() == [
        "name: parallel, 2 agents. 1 error, 0 warnings, 1 note.",
        "  2 episodes, 12 steps, ends after 5 to 7 steps; 2 agents act in a step; 1.5 ms a step, 2.5 µs a reset.",
        "",
        "errors",
        "  bad                          agent ('x', 1), episode 1, step 4 (3 times, 2 agents)",
        "      It is bad.",
        "      -> Mend it.",
        "",
        "notes",
        "  later",
        "      A note.",
    ]
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["ok"], data["agents"]) == (False, ["('x', 1)", "('x', 2)"])
    assert data["findings"][0] | {"what": "", "advice": ""} == {
        "level": "error",
        "kind": "bad",
        "what": "",
        "advice": "",
        "agent": "('x', 1)",
        "step": 4,
        "episode": 1,
        "count": 3,
        "num_agents": 2,
    }
    assert (report.ok, len(report.errors), len(report.warnings), len(report.notes)) == (False, 1, 0, 1)
    assert EnvFinding("note", "k", "w", "a", step=0).where == "the reset"


def test_no_line_of_the_table_is_too_long():
    class Observes(Sound):
        def observe(self, agent):
            return [list(range(99)), 5]

    report = check_env(Observes, episodes=1)
    assert max(map(len, str(report).splitlines())) <= 120


def test_the_page_has_every_kind():
    page = (ROOT / "docs" / "checking_environments.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]*) \| (?:error|warning|note)", page, re.MULTILINE)
    rows = re.findall(r"`([^`]+)`", " ".join(cells))
    assert sorted(rows) == sorted(RULES)


def test_the_report_in_the_page_is_that_of_its_code():
    page = (ROOT / "docs" / "checking_environments.md").read_text(encoding="utf-8")
    code = re.search(r"^```python\n(import gymnasium.*?)^print", page, re.MULTILINE | re.DOTALL)
    shown = re.search(r"^<!-- corridor report -->\n```text\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    names = {"check_env": check_env}
    exec(code[1], names)
    without_times = lambda text: re.sub(r"[\d.]+ [µm]?s (a step|a reset)", r"\1", text)
    assert without_times(shown[1]) == without_times(str(names["report"]))


@pytest.mark.slow
def test_a_run_loads_no_check(tmp_path):
    """The checks are some two thousand lines, of which a run needs none."""
    argv = ["train", "CartPole-v1", "--steps", "64", "--eval-episodes", "1", "--out", str(tmp_path / "run")]
    argv += ["--baseline-seconds", "0", "--video", "none", "--track", "none"]
    code = (
        "import sys\nfrom marl_connectors.cli.main import main\n"
        f"assert main({argv!r}) == 0\n"
        "loaded = {name for name in sys.modules if name.startswith('marl_connectors.environments.')}\n"
        "assert 'marl_connectors.environments.vector.vector_env' in loaded, loaded\n"
        "assert not {name for name in loaded if 'environments.check' in name}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
