"""Each contract violation, in each kind of environment that can have it.

``check_env`` reports it, the smoke test and the run raise it, a run that replaces environments that fail goes on, and
all of them say the same of what is wrong.
"""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from helpers.envs.gymnasium_envs import AutoresetMode
from helpers.envs.scripted_envs import small_config
from helpers.envs.sound_envs import Sound, SoundAEC, SoundGym
from marl_connectors import EnvError, check_env
from marl_connectors.typing import DEFAULT_AGENT_ID

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # networks that see NaN or infinity
AT = 3  # the step, or turn, in which something is wrong
NAN, INFINITY = np.float32([0.0, np.nan]), np.float32([np.inf, 0.0])
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)

# What comes in the place of an observation (also of a natively batched environment, of one agent in one copy), of a
# reward, of a flag, or of an info; and the kind of finding.
OBSERVATIONS = {
    "NaN": (NAN, "observation-not-finite"),
    "infinity": (INFINITY, "observation-not-finite"),
    "shape": (np.zeros(3, np.float32), "observation-shape"),
    "text": ("text", "observation-structure"),
    "ragged": ([[1.0], [1.0, 2.0]], "observation-structure"),
    "parts": ({"x": 1.0}, "observation-structure"),
    "bounds": (np.float32([0.0, 2.0]), "observation-outside-space"),
}
REWARDS = {"NaN": np.nan, "infinity": -np.inf, "text": "much", "several": [1.0, 2.0], "None": None}
FLAGS = {"text": "yes", "two": 2, "None": None}
PLANTS = {
    **{f"observation: {name}": (0, value, kind) for name, (value, kind) in OBSERVATIONS.items()},
    **{f"reward: {name}": (1, value, "reward") for name, value in REWARDS.items()},
    **{f"termination: {name}": (2, value, "flag") for name, value in FLAGS.items()},
    **{f"truncation: {name}": (3, value, "flag") for name, value in FLAGS.items()},
    "info: number": (4, 3, "info"),
    "info: list": (4, ["x"], "info"),
    "observation: None": (0, None, "no-observation"),
}


def without_names(text):
    """A message without the agent's name, which is in a finding's ``where``."""
    text = re.sub(r"the (action mask|\w+) of agent '\w+'", r"the \1", text)
    return re.sub(r"\bagent '\w+'", "the agent", text)


def reported(env, kind):
    """What ``check_env`` says is wrong, as a clause."""
    report = check_env(env, episodes=1, conformance=False)
    clauses = [finding.what for finding in report.errors if finding.kind == kind]
    assert clauses, f"no {kind} in\n{report}"
    assert all(finding.advice for finding in report.errors)
    return clauses[0].replace("The ", "the ", 1).removesuffix(".")


def config_of(env, *, check, restart=False, single=False):
    config = small_config(env, disable_env_checking=not check)
    config.fault_tolerance(restart_failed_sub_environments=restart)
    return config if single else config.multi_agent(policies="shared")


def assert_raised(env, clause, *, in_run=True, single=False, batched=False):
    """By the smoke test before a run, and without it by the run."""
    for check in (True, False) if in_run else (True,):
        with pytest.raises(EnvError) as caught:
            config_of(env, check=check, single=single).build_algo().env_runner.sample(num_timesteps=12)
        text = str(caught.value)
        assert clause in without_names(text), f"{clause!r} not in {text!r}"
        assert "\n" not in text
        assert batched or re.search(r"\bstep \d", text)
        assert batched or check or "seed" in text


def assert_replaced(env, clause, caplog, *, single=False):
    caplog.clear()
    runner = config_of(env, check=False, restart=True, single=single).build_algo().env_runner
    with caplog.at_level(logging.WARNING):
        runner.sample(num_timesteps=12)
    assert runner.take_failure_counts()["num_env_failures"] >= 1
    assert any(clause in without_names(record.getMessage()) for record in caplog.records), caplog.text


def is_in_a_run(name):
    """Whether a run cannot go on; without checks, bounds may be overstepped, and a flag of None is no flag."""
    return name not in ("observation: bounds", "termination: None", "truncation: None")


# Parallel environments.


def parallel(column, value):
    class Planted(Sound):
        def __init__(self, render_mode=None):
            super().__init__(render_mode)
            self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)

        def observe(self, agent):
            return super().observe(agent)[:2]

        def step(self, actions):
            given = super().step(actions)
            if self.t == AT:
                given[column]["b"] = value
            return given

    return Planted


@pytest.mark.few(5)
@pytest.mark.parametrize("name", PLANTS)
def test_parallel_environments(name, caplog):
    column, value, kind = PLANTS[name]
    env = parallel(column, value)
    clause = reported(env, kind)
    assert_raised(env, clause, in_run=is_in_a_run(name))
    if is_in_a_run(name):
        assert_replaced(env, clause, caplog)


def changed(method, change, at=AT):
    """A parallel environment of which ``reset`` or ``step`` gives what ``change(given, env)`` makes of it."""

    class Planted(Sound):
        pass

    def call(self, *args, **kwargs):
        given = getattr(Sound, method)(self, *args, **kwargs)
        return change(given, self) if self.t == at else given

    setattr(Planted, method, call)
    return Planted


def dropped(given, env):
    del given[0]["b"]
    return given


def left(given, env):
    env.agents = ["a"]
    return given[:1] + tuple({"a": part["a"]} for part in given[1:])


def nobody(given, env):
    env.agents = []
    return given


FORMS = {
    "four values": ("step", lambda given, env: given[:4], "wrong-result"),
    "None": ("step", lambda given, env: None, "wrong-result"),
    "observations": ("step", lambda given, env: ([0], *given[1:]), "wrong-result"),
    "rewards": ("step", lambda given, env: (given[0], 1.0, *given[2:]), "wrong-result"),
    "terminations": ("step", lambda given, env: (*given[:2], True, *given[3:]), "wrong-result"),
    "truncations": ("step", lambda given, env: (*given[:3], [False], given[4]), "wrong-result"),
    "infos": ("step", lambda given, env: (*given[:4], 3), "wrong-result"),
    "one value": ("reset", lambda given, env: 5, "wrong-result"),
    "infos of the reset": ("reset", lambda given, env: (given[0], 3), "wrong-result"),
    "observations of the reset": ("reset", lambda given, env: ([0], given[1]), "wrong-result"),
    "nobody": ("reset", nobody, "no-agents"),
    "missing": ("step", dropped, "no-observation"),
    "missing in the reset": ("reset", dropped, "no-observation"),
    "left": ("step", left, "left-without-flag"),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_results_of_parallel_environments(name, caplog):
    method, change, kind = FORMS[name]
    env = changed(method, change, at=0 if method == "reset" else AT)
    clause = reported(env, kind)
    assert_raised(env, clause)
    if method == "step":
        assert_replaced(env, clause, caplog)


class StaysForAStep(Sound):
    """Agent b has ended in step 3, and is in ``agents`` until the next step, in which it does not act."""

    length = 9

    def flags(self, acting):
        terminations, truncations = super().flags(acting)
        return {agent: agent == "b" and self.t == AT for agent in terminations}, truncations

    def survivors(self, acting, terminations, truncations):
        return list(self.possible_agents) if self.t == AT else super().survivors(acting, terminations, truncations)

    def step(self, actions):
        self.agents = list(actions)
        return super().step(actions)


def test_an_agent_that_has_ended_may_stay_for_a_step():
    assert check_env(StaysForAStep, episodes=1, conformance=False).ok
    for check in (True, False):
        config_of(StaysForAStep, check=check).build_algo().env_runner.sample(num_timesteps=30)


# Turn-based environments.


def turns(**methods):
    return type("Planted", (SoundAEC,), methods)


def seeing(value):
    class Planted(SoundAEC):
        def __init__(self, render_mode=None):
            super().__init__(render_mode)
            self._observation_space = BOX

        def observe(self, agent):
            return value if self.turn == AT else np.zeros(2, np.float32)

    return Planted


def after(change):
    """An AEC environment to which ``change(env, agent)`` is done after a turn; ``agent`` acts next."""

    def done(self, agent):
        self._accumulate_rewards()
        if self.turn == AT:
            change(self, "b_0" if agent == "a_0" else "a_0")

    return turns(after=done)


def forbid_all(env, agent):
    env.infos[agent] = {"action_mask": np.zeros(4, np.int8)}


def remove(env, agent):
    env.agents.remove("a_0")
    env.agent_selection = "b_0"


TURNS = {
    **{name: (seeing(value), kind) for name, (_, value, kind) in PLANTS.items() if kind.startswith("observation")},
    "observation: None": (seeing(None), "no-observation"),
    **{
        f"reward: {value}": (after(lambda env, agent, v=value: env._cumulative_rewards.update({agent: v})), "reward")
        for value in (np.nan, -np.inf)
    },
    "termination": (after(lambda env, agent: env.terminations.update({agent: "yes"})), "flag"),
    "truncation": (after(lambda env, agent: env.truncations.update({agent: 2})), "flag"),
    "info": (after(lambda env, agent: env.infos.update({agent: 3})), "info"),
    "mask": (after(forbid_all), "mask-forbids-all"),
    "stranger": (after(lambda env, agent: setattr(env, "agent_selection", "z_0")), "selected-stranger"),
    "left": (after(remove), "left-without-flag"),
    "stays": (turns(_was_dead_step=lambda self, action: None), "dead-not-removed"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", TURNS)
def test_turn_based_environments(name, caplog):
    env, kind = TURNS[name]
    clause = reported(env, kind)
    in_run = is_in_a_run(name) and name != "mask"  # a run does not look for masks unless it is told to
    assert_raised(env, clause, in_run=in_run)
    if in_run and name != "stays":
        assert_replaced(env, clause, caplog)


# Gymnasium environments, single and vector.


def single(column, value):
    class Planted(SoundGym):
        def step(self, action):
            given = list(super().step(action))
            if self.t == AT:
                given[column] = value
            return tuple(given)

    return Planted


class FourValues(SoundGym):
    def step(self, action):
        return super().step(action)[:4]


class OneValue(SoundGym):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 5


GYM = {name: (single(column, value), kind) for name, (column, value, kind) in PLANTS.items()} | {
    "four values": (FourValues, "wrong-result"),
    "one value": (OneValue, "wrong-result"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", GYM)
def test_gymnasium_environments(name, caplog):
    env, kind = GYM[name]
    clause = reported(env, kind)
    assert_raised(env, clause, in_run=is_in_a_run(name), single=True)
    if is_in_a_run(name) and name != "one value":
        assert_replaced(env, clause, caplog, single=True)


@pytest.mark.few(5)
@pytest.mark.skipif(AutoresetMode is None, reason="Gymnasium 1.0 has no autoreset modes")
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("name", ["observation: NaN", "observation: infinity", "observation: bounds", "reward: NaN"])
def test_gymnasium_vector_environments(name, mode):
    column, value, kind = PLANTS[name]
    env = single(column, value)
    clause = reported(env, kind)  # of the single environment, as the page says

    def make(num_envs=1):
        class Vector(SyncVectorEnv):
            pass

        return Vector([env] * num_envs, autoreset_mode=AutoresetMode[mode])

    for check in (True, False) if is_in_a_run(name) else (True,):
        config = small_config(make, disable_env_checking=not check)
        config.env_runners(gym_env_vectorize_mode="vector_entry_point", num_envs_per_env_runner=2)
        with pytest.raises(EnvError) as caught:
            config.build_algo().env_runner.sample(num_timesteps=12)
        assert clause in without_names(str(caught.value))


# Natively batched environments.


class SoundBatched:
    """Two agents, episodes of five steps, everything right unless ``plant`` changes what a step gives."""

    possible_agents = ("a", "b")
    plant = staticmethod(lambda given: given)

    def __init__(self, num_envs=1):
        self.num_envs = num_envs
        self.t = np.zeros(num_envs, int)

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _observations(self):
        return np.repeat(self.t[:, None, None] / 10, 2, 1).repeat(2, 2).astype(np.float32)

    def reset(self, seeds, mask=None):
        self.t[slice(None) if mask is None else mask] = 0
        return self._observations()

    def step(self, actions):
        self.t += 1
        over = np.repeat((self.t >= 5)[:, None], 2, 1)
        given = SimpleNamespace(
            observations=self._observations(), rewards=np.ones((self.num_envs, 2)), ended=over, cut=over & False
        )
        if self.t[0] == AT:
            self.plant(given)
        return given.observations, given.rewards, given.ended, given.cut, {}

    def close(self):
        pass


def batched(**plant):
    """An environment of which the first copy's agent ``b`` gets something else; or all get arrays of another form."""

    def change(given):
        for name, value in plant.items():
            if callable(value):
                setattr(given, name, value(getattr(given, name)))
            else:
                getattr(given, name)[0, 1] = value

    return type("Planted", (SoundBatched,), {"plant": staticmethod(change)})


BATCHED = {
    "NaN": (batched(observations=NAN), "observation-not-finite"),
    "infinity": (batched(observations=INFINITY), "observation-not-finite"),
    "bounds": (batched(observations=np.float32([0, 2])), "observation-outside-space"),
    "reward": (batched(rewards=np.nan), "reward"),
    "shape": (batched(observations=lambda o: o[..., :1]), "raised"),
    "text": (batched(rewards=lambda r: r.astype(str)), "raised"),
    "flags": (batched(cut=lambda f: f + 0.5), "raised"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", BATCHED)
def test_natively_batched_environments(name):
    env, kind = BATCHED[name]
    clause = reported(env, kind)
    if kind == "raised":  # arrays are judged where they are taken, which raises
        clause = re.search(r"Planted: ((observations|rewards|truncations) .*? (?=num_envs|expected))", clause)[1]
        clause = re.sub(r"\(1, ", "(", clause).partition("(")[0]  # the number of copies differs
    assert_raised(env, clause, in_run=name != "bounds", batched=True)


def test_agents_of_a_batched_environment_end_together():
    clause = "agents ['b'] ended before the others"
    assert clause in reported(batched(ended=True), "raised")
    assert_raised(batched(ended=True), clause, batched=True)


# Spaces.


@pytest.mark.parametrize("kind", ["observation_space", "action_space"])
def test_spaces(kind):
    env = type("Planted", (Sound,), {kind: lambda self, agent: 5})
    clause = reported(env, "space-missing")
    with pytest.raises(EnvError, match=re.escape(clause)):
        config_of(env, check=True).build_algo()
    alone = type("Planted", (gymnasium.Env,), {**vars(SoundGym), kind: 5, "__module__": __name__})
    assert reported(alone, "space-missing") == clause.replace("'a'", repr(DEFAULT_AGENT_ID))
