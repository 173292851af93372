"""What ``check_env`` finds in flags, agents and turns, and besides steps."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo import ParallelEnv

from helpers.envs.sound_envs import SMALL, Returning, Sound, SoundAEC, found, kinds
from marl_connectors.environments.check.check_env import check_env

# Flags and agents.


def flagging(**flags):
    class Broken(Sound):
        def flags(self, acting):
            terminations, truncations = super().flags(acting)
            if self.t == 3:
                terminations |= flags.get("terminations", {})
                truncations |= flags.get("truncations", {})
                for agent in flags.get("without", ()):
                    del truncations[agent]
            return terminations, truncations

        def survivors(self, acting, terminations, truncations):
            return acting if "stay" in flags else super().survivors(acting, terminations, truncations)

    return Broken


class LeavesSilently(Sound):
    def survivors(self, acting, terminations, truncations):
        return ["a"] if self.t < 5 else []


class TwiceThere(Sound):
    def survivors(self, acting, terminations, truncations):
        return [*super().survivors(acting, terminations, truncations)] * 2

    def step(self, actions):
        self.agents = list(dict.fromkeys(self.agents))
        return super().step(actions)


class BothAtTheLimit(Sound):
    def flags(self, acting):
        over = dict.fromkeys(acting, self.t >= self.length)
        return over, dict(over)


class LimitAsTermination(Sound):
    def flags(self, acting):
        return super().flags(acting)[::-1]


class NobodyThere(Sound):
    def reset(self, seed=None, options=None):
        result = super().reset(seed)
        self.agents = []
        return result


class Unlisted(Sound):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.possible_agents = ["a"]

    def reset(self, seed=None, options=None):
        self.possible_agents = ["a", "b"]
        result = super().reset(seed)
        self.possible_agents = ["a"]
        return result


class NeverSeen(Sound):
    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed)
        self.agents = ["a"]
        return observations, infos


class NoList(Sound):
    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.everybody = self.possible_agents
        del self.possible_agents

    def reset(self, seed=None, options=None):
        self.possible_agents = self.everybody
        result = super().reset(seed)
        del self.possible_agents
        return result


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("env", "kind", "level", "agent"),
    [
        (LeavesSilently, "left-without-flag", "error", "b"),
        (flagging(terminations={"b": True}, stay=True), "ended-but-stays", "warning", "b"),
        (flagging(terminations={"z": True}), "flag-of-stranger", "warning", "z"),
        (flagging(without=["b"]), "flag-missing", "note", "b"),
        (flagging(truncations={"b": "yes"}), "flag", "error", "b"),
        (flagging(truncations={"b": None}), "flag", "error", "b"),
        (flagging(truncations={"b": 0}), "flag", "note", "b"),
        (BothAtTheLimit, "both-flags", "warning", "a"),
        (TwiceThere, "agents-twice", "error", None),
        (Returning, "agent-returns", "note", "b"),
        (NobodyThere, "no-agents", "error", None),
        (Unlisted, "agent-not-possible", "warning", "b"),
        (NeverSeen, "agents-never-seen", "note", None),
        (NoList, "no-possible-agents", "note", None),
    ],
)
def test_flags_and_agents(env, kind, level, agent):
    assert found(env, kind, level).agent == agent


def test_who_has_ended_gets_no_more_actions():
    acted = []

    class Stays(flagging(terminations={"b": True}, stay=True)):
        def step(self, actions):
            acted.append((self.t + 1, list(actions)))
            self.agents = list(actions)
            return super().step(actions)

    found(Stays, "ended-but-stays", "warning", episodes=1)
    assert acted[:5] == [(1, ["a", "b"]), (2, ["a", "b"]), (3, ["a", "b"]), (4, ["a"]), (5, ["a"])]


def test_numpy_bools_and_an_all_flag_are_fine():
    class Numpy(Sound):
        def flags(self, acting):
            flags = [{a: np.bool_(flag) for a, flag in part.items()} for part in super().flags(acting)]
            return flags[0] | {"__all__": not flags}, flags[1] | {"__all__": all(flags[1].values())}

    report = check_env(Numpy, **SMALL)
    assert kinds(report) <= {"step-after-end"}, str(report)


def test_a_time_limit_that_terminates_is_noticed():
    finding = found(LimitAsTermination, "ends-always-terminated", "note", episodes=3)
    assert "All 3 episodes end with a termination at step 5" in finding.what
    assert "ends-always-terminated" not in kinds(check_env(Sound, conformance=False))


def test_episodes_that_do_not_all_end_at_one_step_have_no_limit():
    class Varies(LimitAsTermination):
        episodes = 0

        def reset(self, seed=None, options=None):
            self.episodes += 1
            self.length = 5 if self.episodes < 4 else 100
            return super().reset(seed)

    assert "ends-always-terminated" in kinds(check_env(Varies, episodes=3, conformance=False))
    report = check_env(Varies, episodes=4, max_steps=20, conformance=False)
    assert not {"ends-always-terminated", "no-end"} & kinds(report)


def test_an_episode_without_end_is_noticed():
    class Endless(Sound):
        length = 10**9

    finding = found(Endless, "no-end", "warning", max_steps=30)
    assert "within 30 steps" in finding.what
    assert check_env(Endless, max_steps=30, **SMALL).measurements.episode_lengths == ()


# Taking turns.


def turning(**methods):
    return type("Broken", (SoundAEC,), methods)


def _forget_to_reset(self, agent):
    self._clear_rewards()


def _accumulate_twice(self, agent):
    self._accumulate_rewards()
    self._accumulate_rewards()


def _never_accumulate(self, agent):
    pass


def _pay_nan(self, agent):
    self.rewards[agent] = np.nan
    self._accumulate_rewards()


def _pay_the_dead(self, agent):
    self._accumulate_rewards()
    self.rewards["z_0"] = 3.0


def _drop_b(self, agent):
    self._accumulate_rewards()
    if self.turn == 3:
        self.agents.remove("b_0")
        self.agent_selection = "a_0"


def _drop_b_flagged(self, agent):
    if self.turn == 3:
        self.terminations["b_0"] = True
    _drop_b(self, agent)
    if self.turn == 3:
        del self._cumulative_rewards["b_0"]


def _select_stranger(self, agent):
    self._accumulate_rewards()
    if self.turn == 3:
        self.agent_selection = "z_0"


def _stay_dead(self, action):
    self.agent_selection = self.agent_selection


@pytest.mark.parametrize(
    ("env", "kind", "words"),
    [
        (turning(before=_forget_to_reset), "reward-credit", "is counted again"),
        (turning(after=_accumulate_twice), "reward-credit", "added twice"),
        (turning(after=_never_accumulate), "reward-credit", "but last() returns 0"),
        (turning(after=_pay_nan), "reward", "is nan"),
        (turning(after=_pay_the_dead), "reward-to-the-dead", "has 3 for an agent that has left"),
        (turning(after=_drop_b), "left-without-flag", "left env.agents without"),
        (turning(after=_drop_b_flagged), "reward-credit", "which last() never returned"),
        (turning(after=_select_stranger), "selected-stranger", "env.agent_selection is 'z_0'"),
        (turning(_was_dead_step=_stay_dead), "dead-not-removed", "step(None) did not remove it"),
        (turning(observe=lambda self, agent: None), "no-observation", "observes None"),
        (turning(observe=lambda self, agent: np.full(3, 2.0)), "observation-outside-space", "component 0 is 2.0"),
        (turning(last=lambda self, observe=True: (None, 0.0)), "wrong-result", "last() returned 2 values"),
    ],
)
def test_turns(env, kind, words):
    assert words in found(env, kind, "error").what


def test_pay_at_the_reset_is_told_at_the_first_turn():
    class PaysFirst(SoundAEC):
        def reset(self, seed=None, options=None):
            super().reset(seed)
            self.rewards["b_0"] = 5
            self._accumulate_rewards()

    assert check_env(PaysFirst, **SMALL).ok


def test_a_flagged_agent_should_have_its_last_turn():
    assert found(turning(after=_drop_b_flagged), "no-last-turn", "warning").agent == "b_0"


def test_whose_turn_it_is_must_be_allowed_something():
    class Stuck(SoundAEC):
        def reset(self, seed=None, options=None):
            super().reset(seed)
            self.infos["a_0"] = {"action_mask": np.zeros(4, np.int8)}

    found(Stuck, "mask-forbids-all", "error")


def test_seeds_of_turns_are_checked_too():
    class Forgetful(SoundAEC):
        def reset(self, seed=None, options=None):
            super().reset(None)

    found(Forgetful, "seed", "error")


# What there is besides steps.


def boom():
    raise RuntimeError("boom")


class NoState(Sound):
    state = ParallelEnv.state


class StateRaises(Sound):
    def state(self):
        raise KeyError("walls")


class StateOutside(Sound):
    def state(self):
        return np.full(3, 2.0, np.float32)


class CloseRaises(Sound):
    def close(self):
        raise RuntimeError("closed already")


class DiesAfterTheEnd(Sound):
    def step(self, actions):
        if not self.agents:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(actions)


def drawing(frame, mode="rgb_array"):
    class Draws(Sound):
        metadata = {"name": "draws", "render_modes": [mode]}

        def render(self):
            return frame() if callable(frame) else frame

    return Draws


class NoMetadata(Sound):
    metadata = None


class NoModes(Sound):
    metadata = {"name": "plain"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("env", "kind", "level", "words"),
    [
        (NoState, "no-state", "note", "no state()"),
        (StateRaises, "state-raises", "warning", "KeyError: 'walls'"),
        (StateOutside, "state-outside-space", "warning", "component 0 is 2.0"),
        (CloseRaises, "close-raises", "warning", "closed already"),
        (DiesAfterTheEnd, "step-after-end", "warning", "killed the process with SIGSEGV"),
        (drawing(None), "render", "warning", "a NoneType, not an array"),
        (drawing(np.zeros((4, 4, 4), np.uint8)), "render", "warning", "an array of shape (4, 4, 4) uint8"),
        (drawing(np.zeros((4, 4, 3))), "render", "warning", "float64"),
        (drawing(b"x", "ansi"), "render", "warning", "a bytes, not text"),
        (drawing(boom), "render-raises", "warning", "RuntimeError: boom"),
        (NoModes, "no-render-modes", "note", "no render_modes"),
        (NoMetadata, "no-metadata", "note", "no dict called metadata"),
    ],
)
def test_state_pictures_and_ends(env, kind, level, words):
    assert words in found(env, kind, level).what


def test_right_pictures_are_fine():
    for env in (drawing(np.zeros((4, 4, 3), np.uint8)), drawing("x", "ansi")):
        assert kinds(check_env(env, **SMALL)) <= {"step-after-end"}
