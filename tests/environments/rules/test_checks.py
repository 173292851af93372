"""What ``check_env`` finds in observations, rewards, infos and masks."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.sound_envs import BOX, SMALL, Sound, found, kinds
from marl_connectors.environments.check.check_env import check_env

# Observations.


def observing(make, space=None, **fields):
    class Broken(Sound):
        def __init__(self, render_mode=None):
            super().__init__(render_mode)
            if space is not None:
                self.observation_spaces["b"] = space

        def observe(self, agent):
            usual = super().observe(agent)
            return make(usual, self.t) if agent == "b" and (space is not None or self.t == 3) else usual

    for name, value in fields.items():
        setattr(Broken, name, value)
    return Broken


NESTED = spaces.Dict({"x": spaces.Tuple((spaces.Discrete(3), BOX))})


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda x, t: x + np.float32([0, 0, 5]), "observation-outside-space", "component 2 is "),
        (lambda x, t: x[:2], "observation-shape", "has the shape (2,), not (3,)"),
        (lambda x, t: np.float32([0, np.nan, 0]), "observation-not-finite", "contains NaN at component 1"),
        (lambda x, t: np.float32([0, 0, np.inf]), "observation-not-finite", "contains infinity at component 2"),
        (lambda x, t: "text", "observation-structure", "it is 'text', which is not numbers"),
        (lambda x, t: [[1.0], [1.0, 2.0], [3.0]], "observation-structure", "which is not numbers"),
        (lambda x, t: {"x": x}, "observation-structure", "which is not numbers"),
    ],
)
def test_an_observation_unlike_its_space_is_an_error(make, kind, words):
    finding = found(observing(make), kind, "error")
    assert words in finding.what
    assert (finding.agent, finding.episode, finding.step) == ("b", 0, 3)
    assert finding.num_agents == 1


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (
            lambda x, t: {"x": (np.int64(3), x)},
            "observation-outside-space",
            "'x', in part 0, it is 3, not in [0, 2]",
        ),
        (
            lambda x, t: {"x": (np.int64(2), x + 2)},
            "observation-outside-space",
            "'x', in part 1, component 0 is",
        ),
        (
            lambda x, t: {"x": (0.5, x)},
            "observation-outside-space",
            "'x', in part 0, it is 0.5, not whole numbers",
        ),
        (lambda x, t: {"x": 1.0}, "observation-structure", "in part 'x', it is a float, not a tuple"),
        (lambda x, t: {"x": (1, x), "y": 0}, "observation-structure", "has the parts ['x', 'y'], not ['x']"),
        (lambda x, t: {"x": (1,)}, "observation-structure", "in part 'x', it has the parts [0], not [0, 1]"),
    ],
)
def test_the_place_in_a_nested_observation_is_named(make, kind, words):
    assert words in found(observing(make, NESTED), kind, "error").what


@pytest.mark.parametrize(
    ("make", "space", "kind", "level"),
    [
        (lambda x, t: x.astype(np.float64), BOX, "float64", "note"),
        (lambda x, t: x.tolist(), BOX, "python-data", "note"),
        (lambda x, t: np.zeros(3, np.int32), BOX, "observation-dtype", "note"),
        (lambda x, t: np.ones(3, np.float32), spaces.Box(0, 255, (3,), np.uint8), "observation-dtype", "warning"),
        (lambda x, t: np.full(3, 0.5), spaces.Box(0, 255, (3,), np.uint8), "observation-dtype", "error"),
    ],
)
def test_a_dtype_that_loses_digits_is_worse_than_one_that_is_converted(make, space, kind, level):
    found(observing(make, space), kind, level)


def test_float64_values_that_round_to_a_float32_bound_are_inside():
    assert check_env(observing(lambda x, t: np.full(3, 0.7), spaces.Box(-1, 0.7, (3,), np.float32)), **SMALL).ok


def test_other_spaces_are_held_against_too():
    space = spaces.Dict(
        {"m": spaces.MultiDiscrete([2, 3]), "b": spaces.MultiBinary(2), "d": spaces.Discrete(2, start=5)}
    )
    good = {"m": np.array([1, 2]), "b": np.array([0, 1]), "d": 6}
    assert check_env(observing(lambda x, t: good, space), **SMALL).ok
    for key, bad in {"m": np.array([1, 3]), "b": np.array([0, 2]), "d": 0}.items():
        finding = found(observing(lambda x, t, key=key, bad=bad: good | {key: bad}, space), "observation-outside-space")
        assert f": in part {key!r}, " in finding.what


class ForgetsB(Sound):
    def step(self, actions):
        result = super().step(actions)
        if self.t == 2:
            del result[0]["b"]
        return result


class LastObservationMissing(Sound):
    def step(self, actions):
        result = super().step(actions)
        if not self.agents:
            result[0].clear()
        return result


def test_a_live_agent_needs_an_observation():
    finding = found(ForgetsB, "no-observation", "error")
    assert (finding.agent, finding.step) == ("b", 2)
    finding = found(observing(lambda x, t: None), "no-observation", "error")
    assert "observes None" in finding.what


def test_a_truncated_agent_should_have_a_last_observation():
    assert found(LastObservationMissing, "no-final-observation", "warning").step == 5

    class Terminated(LastObservationMissing):
        def flags(self, acting):
            return super().flags(acting)[::-1]

    assert "no-final-observation" not in kinds(check_env(Terminated, **SMALL))


class Reusing(Sound):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.buffers = {agent: np.zeros(3, np.float32) for agent in self.possible_agents}
        self.same = {}

    def observe(self, agent):
        self.buffers[agent][:] = super().observe(agent)
        return self.buffers[agent]

    def info(self, agent):
        self.same["t"] = self.t
        return self.same


class ReadOnly(Sound):
    def observe(self, agent):
        value = super().observe(agent)
        value.setflags(write=False)
        return value


def test_arrays_and_infos_that_change_afterwards_are_notes():
    found(Reusing, "observation-reused", "note")
    found(Reusing, "info-reused", "note")
    found(ReadOnly, "read-only-arrays", "note")
    report = check_env(Reusing, **SMALL)
    assert report.ok and "observation-shared" not in kinds(report)


class OneBuffer(Sound):
    """Agents get views of one buffer: at places of their own, or all at the same."""

    parts = 1

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.buffer = np.zeros((self.parts, 3), np.float32)

    def observe(self, agent):
        mine = self.buffer["ab".index(agent) % self.parts]
        mine[:] = super().observe(agent)
        return mine


class OneBufferInside(OneBuffer):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.observation_spaces = {a: spaces.Dict({"x": BOX, "n": spaces.Discrete(2)}) for a in self.possible_agents}

    def observe(self, agent):
        return {"x": super().observe(agent), "n": 1}


class TwoParts(OneBuffer):
    parts = 2


class SeesTheSame(Sound):
    def observe(self, agent):
        self.shared = super().observe(agent) if agent == "a" else self.shared
        return self.shared


def test_an_array_that_is_filled_for_one_agent_after_another_is_an_error():
    finding = found(OneBuffer, "observation-shared", "error")
    assert "Agents 'a' and 'b' got the same array as observation, and" in finding.what
    assert (finding.agent, finding.episode, finding.step) == ("a", 0, 1)
    assert "as observation['x']," in found(OneBufferInside, "observation-shared", "error").what
    assert "observation-shared" not in kinds(check_env(TwoParts, **SMALL))


def test_agents_that_see_the_same_may_get_the_same_array():
    finding = found(SeesTheSame, "observation-shared", "note")
    assert "so they see the same" in finding.what
    assert check_env(SeesTheSame, **SMALL).ok


# Rewards and infos.


def paying(reward):
    class Broken(Sound):
        def rewards(self, actions):
            return super().rewards(actions) | ({"b": reward} if self.t == 2 else {})

    return Broken


@pytest.mark.few(3)
@pytest.mark.parametrize("reward", [None, "much", np.nan, -np.inf, [1.0], np.ones(1), np.ones(2), [[1], [1, 2]]])
def test_a_reward_must_be_one_finite_number(reward):
    finding = found(paying(reward), "reward", "error")
    assert (finding.agent, finding.step) == ("b", 2)


@pytest.mark.few(3)
@pytest.mark.parametrize("reward", [1, True, np.float64(1), np.int32(2), np.array(0.5), np.True_])
def test_numbers_of_all_kinds_are_rewards(reward):
    assert check_env(paying(reward), **SMALL).ok


class PaysNotAll(Sound):
    def rewards(self, actions):
        return {"a": 1.0}


class PaysStranger(Sound):
    def rewards(self, actions):
        return super().rewards(actions) | {"c": 1.0, "common": 0.0}


class PaysTheDead(Sound):
    def flags(self, acting):
        terminations, truncations = super().flags(acting)
        return terminations | ({"b": True} if "b" in acting else {}), truncations

    def rewards(self, actions):
        return super().rewards(actions) | {"b": 2.0}


def test_rewards_go_to_those_who_acted():
    assert found(PaysNotAll, "reward-missing", "warning").agent == "b"
    finding = found(PaysStranger, "reward-uncredited", "warning")
    assert finding.agent == "c" and "gets the reward 1 before its first action" in finding.what
    finding = found(PaysTheDead, "reward-without-action", "warning")
    assert (finding.agent, finding.step) == ("b", 2)


@pytest.mark.parametrize(("info", "level"), [(None, "note"), (["x"], "error"), (5, "error")])
def test_an_info_is_a_dict(info, level):
    class Broken(Sound):
        def info(self, agent):
            return info

    found(Broken, "info", level)


# Masks.


def masked(mask, where="observation", action_space=None):
    class Masked(Sound):
        def __init__(self, render_mode=None):
            super().__init__(render_mode)
            if where == "observation":
                low, high = (0, 1) if np.isin(mask, (0, 1)).all() else (-100, 100)
                inner = spaces.Box(low, high, np.shape(mask), np.asarray(mask).dtype.type)
                self.observation_spaces["b"] = spaces.Dict({"observation": BOX, "action_mask": inner})
            if action_space is not None:
                self.action_spaces["b"] = action_space

        def observe(self, agent):
            usual = super().observe(agent)
            both = {"observation": usual, "action_mask": np.array(mask)}
            return both if agent == "b" and where == "observation" else usual

        def info(self, agent):
            return {"action_mask": np.array(mask)} if agent == "b" and where == "info" else {}

        def rewards(self, actions):
            self.check(actions.get("b"))
            return dict.fromkeys(actions, 1.0)

        def check(self, action):
            pass

    return Masked


ONLY_2 = np.array([0, 0, 1, 0], np.int8)


@pytest.mark.few(2)
@pytest.mark.parametrize("where", ["observation", "info"])
@pytest.mark.parametrize("conformance", [True, False])
@pytest.mark.parametrize("only", [0, 2])
def test_only_allowed_actions_are_played(where, conformance, only):
    class Strict(masked(np.eye(4, dtype=np.int8)[only], where)):
        def check(self, action):
            assert action == only, action

    report = check_env(Strict, episodes=2, conformance=conformance)
    assert report.ok and not report.warnings, str(report)


def test_masks_of_several_choices_and_of_a_start_are_understood():
    class Strict(masked([0, 1, 0, 0, 1], "info", spaces.MultiDiscrete([2, 3], start=[0, 5]))):
        def check(self, action):
            assert action.tolist() == [1, 7]

    assert check_env(Strict, **SMALL).ok

    class Started(masked(ONLY_2, "info", spaces.Discrete(4, start=-1))):
        def check(self, action):
            assert action == 1

    assert check_env(Started, **SMALL).ok


def test_masks_of_bits_are_gymnasiums():
    bits = spaces.MultiBinary(3)

    class Strict(masked([0, 1, 2], "info", bits)):
        def check(self, action):
            assert action.tolist() in ([0, 1, 0], [0, 1, 1])

    assert check_env(Strict, **SMALL).ok
    for mask in ([0, 1], [0, 1, 3]):
        assert "0, 1 or 2 for each bit" in found(masked(mask, "info", bits), "mask-values", "error").advice


def test_an_allowed_action_that_is_refused_is_an_error():
    class Lies(masked(ONLY_2)):
        def check(self, action):
            raise ValueError(f"illegal move {action}")

    finding = found(Lies, "raised", "error")
    assert "step() with actions that the masks allow raised ValueError: illegal move 2 (" in finding.what
    assert "test_checks.py:" in finding.what
    assert finding.step == 1


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("mask", "kind", "level"),
    [
        (np.zeros(4, np.int8), "mask-forbids-all", "warning"),
        (np.ones(3, np.int8), "mask-length", "error"),
        (np.ones((1, 4), np.int8), "mask-length", "error"),
        (np.array([0, 1, 2, 1], np.int8), "mask-values", "error"),
        (np.array([0.0, -50.0, 0.0, 0.0]), "mask-values", "error"),
        (np.array([0.0, 1.0, 0.0, 0.0], np.float32), "mask-dtype", "note"),
    ],
)
@pytest.mark.parametrize("where", ["observation", "info"])
def test_masks_are_held_against_the_action_space(mask, kind, level, where):
    assert found(masked(mask, where), kind, level).agent == "b"


def test_masks_in_infos_are_kept_from_tests_that_ignore_them():
    assert "ignore action masks" in found(masked(ONLY_2, "info"), "conformance-not-run", "note", conformance=True).what
