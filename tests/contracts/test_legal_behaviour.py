"""What real environments do, and may do: one small environment for each, and what training makes of it."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from helpers.envs.scripted_envs import small_config
from marl_connectors import ActionMasking, Callbacks, FlattenObservations
from marl_connectors.errors import EnvError

BOX = spaces.Box(-10_000.0, 10_000.0, (2,), np.float32)


class Game(ParallelEnv):
    """Agents see the time and their number, are paid the time, and end together after ``length`` steps."""

    metadata = {"name": "game", "render_modes": []}
    length = 3
    ids: tuple = ("a", "b")

    def __init__(self):
        self.possible_agents = list(self.ids)
        self.agents = []

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return np.array([self.t, self.ids.index(agent)], np.float32)

    def info(self, agent):
        return {"t": self.t}

    def reward(self, agent, action):
        return float(self.t)

    def flags(self, agent):
        return False, self.t >= self.length

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = list(self.ids)
        return {a: self.observe(a) for a in self.agents}, {a: self.info(a) for a in self.agents}

    def step(self, actions):
        self.t += 1
        self.acted = actions
        both = {agent: self.flags(agent) for agent in actions}
        self.agents = [agent for agent in actions if not any(both[agent])]
        return (
            {agent: self.observe(agent) for agent in actions},
            {agent: self.reward(agent, action) for agent, action in actions.items()},
            {agent: flag for agent, (flag, _) in both.items()},
            {agent: flag for agent, (_, flag) in both.items()},
            {agent: self.info(agent) for agent in actions},
        )


def build(env, *pieces, num_envs=1, check=True, policies="independent"):
    config = small_config(env, disable_env_checking=not check).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=num_envs, env_to_module_connector=lambda env: list(pieces))
    return config.build_algo()


def first_episode(env, *pieces, steps=3, **settings):
    """The first episode, and proof that a whole iteration works too."""
    algo = build(env, *pieces, **settings)
    episode = algo.env_runner.sample(num_timesteps=steps)[0]
    algo.train()
    return episode


def seen(episode, agent):
    """The times that an agent saw."""
    return [int(observation[0]) for observation in episode.agent_episodes[agent].get_observations()]


# Who is there.


def test_the_agents_are_gone_with_the_last_step():
    episode = first_episode(Game)
    assert seen(episode, "a") == seen(episode, "b") == [0, 1, 2, 3]
    assert episode.agent_episodes["b"].get_rewards().tolist() == [1.0, 2.0, 3.0]
    assert episode.is_truncated and not episode.is_terminated


class DiesInSilence(Game):
    """``b`` dies in step 2, and what it saw and was told then is missing."""

    def flags(self, agent):
        return agent == "b" and self.t == 2, self.t == 3

    def step(self, actions):
        told = super().step(actions)
        for part in (told[0], told[4]) if self.t == 2 else ():
            part.pop("b")
        return told


class DiesAloud(DiesInSilence):
    """``b`` dies in step 2, and observes that."""

    def step(self, actions):
        return Game.step(self, actions)


@pytest.mark.parametrize(("env", "last", "info"), [(DiesInSilence, 1, {}), (DiesAloud, 2, {"t": 2})])
def test_who_dies_may_have_a_last_observation_and_info_or_not(env, last, info):
    episode = first_episode(env)
    assert seen(episode, "b") == [0, 1, last]
    gone = episode.agent_episodes["b"]
    assert (gone.is_terminated, gone.is_truncated, gone.get_infos(-1)) == (True, False, info)
    assert seen(episode, "a") == [0, 1, 2, 3]


class Guests(Game):
    """A new agent with a new id comes in each step, and nobody said that it could."""

    length = 4

    def __init__(self):
        self.agents = []

    def observe(self, agent):
        return np.array([self.t, 0], np.float32)

    def step(self, actions):
        told = super().step(actions)
        if self.agents:
            guest = f"guest_{self.t}"
            self.agents.append(guest)
            told[0][guest] = self.observe(guest)
        return told


def test_agents_with_new_ids_come_late_and_possible_agents_is_absent():
    episode = first_episode(Guests, steps=4, policies="shared")
    assert list(episode.agent_episodes) == ["a", "b", "guest_1", "guest_2", "guest_3"]
    assert seen(episode, "guest_2") == [2, 3, 4]
    assert episode.agent_episodes["guest_3"].get_rewards().tolist() == [4.0]


class Numbered(Game):
    """An agent called 3, one called "3", and one called by a pair."""

    ids = (3, "3", ("a", 1))


def test_ids_may_be_ints_and_tuples_and_one_that_only_looks_alike_is_another():
    episode = first_episode(Numbered, policies="shared")
    lives = list(episode.all_agent_episodes())
    assert [life.agent_id for life in lives] == [3, "3", ("a", 1)]
    assert len({life.id_ for life in lives}) == 3
    assert [life.get_observations(0)[1] for life in lives] == [0.0, 1.0, 2.0]


# Spaces.


class Rebuilds(Game):
    """Makes new spaces at every call."""

    def observation_space(self, agent):
        return spaces.Box(-10_000.0, 10_000.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)


class RebuildsAtReset(Game):
    """Has no spaces before the first reset, and new ones after each."""

    possible_agents = property(lambda self: [])

    def __init__(self):
        self.agents = []

    def reset(self, seed=None, options=None):
        self.spaces = {agent: spaces.Box(-10_000.0, 10_000.0, (2,), np.float32) for agent in self.ids}
        return super().reset(seed)

    def observation_space(self, agent):
        return self.spaces[agent]


@pytest.mark.parametrize("env", [Rebuilds, RebuildsAtReset])
def test_spaces_may_be_made_anew(env):
    algo = build(env, num_envs=2)
    assert [len(e) for e in algo.env_runner.sample(num_timesteps=12)] == [3, 3, 3, 3]
    assert len(algo.env_runner._episodes.lanes.groups) == 1, "equal spaces are one space"


KINDS = {
    "a start": (spaces.Discrete(4, start=5), lambda t: 5 + t, lambda t: np.eye(4)[t]),
    "an array without axes": (spaces.Discrete(4), lambda t: np.array(t), lambda t: np.eye(4)[t]),
    "a number": (spaces.Box(0.0, 9.0, (), np.float32), lambda t: np.float64(t), lambda t: [t]),
    "float64": (spaces.Box(0.0, 9.0, (1,), np.float64), lambda t: np.array([t / 3]), lambda t: [np.float32(t / 3)]),
    "a bool box": (spaces.Box(0, 1, (2,), bool), lambda t: np.array([t > 1, True]), lambda t: [t > 1, 1]),
    "bits": (spaces.MultiBinary(2), lambda t: np.array([1, t > 1], np.int8), lambda t: [1, t > 1]),
    "choices": (
        spaces.MultiDiscrete([2, 4]),
        lambda t: np.array([1, t]),
        lambda t: [0, 1, *np.eye(4)[t]],
    ),
    "a tuple": (
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 9.0, (1,), np.float32))),
        lambda t: (t % 2, np.array([t], np.float32)),
        lambda t: [1 - t % 2, t % 2, t],
    ),
    "nested dicts": (
        spaces.Dict({"in": spaces.Dict({"x": spaces.Box(0.0, 9.0, (), np.float32)}), "on": spaces.Discrete(2)}),
        lambda t: {"on": t % 2, "in": {"x": float(t)}},
        lambda t: [t, 1 - t % 2, t % 2],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_observations_may_be_of_any_space(kind):
    space, observation, flat = KINDS[kind]

    class OfKind(Game):
        def observation_space(self, agent):
            return space

        def observe(self, agent):
            return observation(self.t)

    episode = first_episode(OfKind, FlattenObservations())
    for agent in "ab":
        found = episode.agent_episodes[agent].get_observations()
        np.testing.assert_array_equal(found, np.array([flat(t) for t in range(4)], np.float32))


class FromFive(Game):
    """Its actions are 5, 6 and 7, and it pays them."""

    def action_space(self, agent):
        return spaces.Discrete(3, start=5)

    def reward(self, agent, action):
        assert action in (5, 6, 7)
        return action


def test_actions_may_start_anywhere():
    life = first_episode(FromFive, steps=3).agent_episodes["a"]
    assert (life.get_actions() + 5.0).tolist() == life.get_rewards().tolist()


# What else is in the dicts.


class Common(Game):
    """Tells things to all under one key that is no agent's, flagged or not."""

    def reset(self, seed=None, options=None):
        told = super().reset(seed)
        return tuple({**part, "common": {"t": 0}} for part in told)

    def step(self, actions):
        told = super().step(actions)
        return ({**told[0], "common": np.zeros(7)}, *told[1:4], {**told[4], "common": {"t": self.t}})


class OutOfOrder(Game):
    """Lists agents in another order in each dict."""

    def step(self, actions):
        return tuple(dict(reversed(part.items())) for part in super().step(actions))


@pytest.mark.parametrize("env", [Common, OutOfOrder])
def test_extra_keys_and_other_orders_change_nothing(env):
    episode, plain = first_episode(env), first_episode(Game)
    assert list(episode.agent_episodes) == ["a", "b"]
    for agent in "ab":
        one, other = (e.agent_episodes[agent] for e in (episode, plain))
        np.testing.assert_array_equal(one.get_observations(), other.get_observations())
        assert list(one.get_infos()) == list(other.get_infos()) == [{"t": t} for t in range(4)]


class TellsNothing(Game):
    """Gives no infos, neither at the reset nor later."""

    def reset(self, seed=None, options=None):
        return super().reset(seed)[0], None

    def step(self, actions):
        return *super().step(actions)[:4], None


def test_infos_may_be_missing():
    assert list(first_episode(TellsNothing).agent_episodes["a"].get_infos()) == [{}, {}, {}, {}]


class Reuses(Game):
    """One observation array and one info dict for all, changed in place, also by the reset."""

    buffer, told = np.zeros(2, np.float32), {}

    def observe(self, agent):
        self.buffer[:] = super().observe(agent)
        return self.buffer

    def info(self, agent):
        self.told["t"] = self.t
        return self.told


class ReusesOneEach(Reuses):
    """An array and a dict of its own for each agent, the same ones in every step."""

    def __init__(self):
        super().__init__()
        self.own = {agent: (np.zeros(2, np.float32), {}) for agent in self.ids}

    def observe(self, agent):
        self.own[agent][0][:] = Game.observe(self, agent)
        return self.own[agent][0]

    def info(self, agent):
        self.own[agent][1]["t"] = self.t
        return self.own[agent][1]


def test_arrays_and_infos_may_be_the_same_objects_in_every_step():
    episodes = build(ReusesOneEach).env_runner.sample(num_timesteps=6)
    for episode in episodes:
        for number, agent in enumerate("ab"):
            life = episode.agent_episodes[agent]
            assert life.get_observations().tolist() == [[t, number] for t in range(4)]
            assert list(life.get_infos()) == [{"t": t} for t in range(4)]


class Wrong(Game):
    """Gives infos or flags of a wrong kind from its step ``since`` on."""

    since, wrong_info, wrong_flag = 0, None, None

    def info(self, agent):
        return super().info(agent) if self.wrong_info is None or self.t < self.since else self.wrong_info

    def flags(self, agent):
        return super().flags(agent) if self.wrong_flag is None or self.t < self.since else (self.wrong_flag, False)


@pytest.mark.parametrize(("check", "since"), [(True, 1), (False, 2)])
@pytest.mark.parametrize(
    ("attribute", "wrong", "words"),
    [
        ("wrong_info", ["x"], r"(?s)'a'.*\['x'\]"),
        ("wrong_info", np.ones(2), r"(?s)'a'.*array\(\[1., 1.\]\)"),
        ("wrong_flag", "no", r"(?s)'a'.*'no'"),
        ("wrong_flag", [0], r"(?s)'a'.*\[0\]"),
    ],
)
def test_infos_that_are_no_dicts_and_flags_that_are_no_bools_are_named(attribute, wrong, words, check, since):
    env = type("WrongOne", (Wrong,), {attribute: wrong, "since": since, "length": 100, "__doc__": None})
    with pytest.raises(EnvError, match=words) as raised:
        build(env, check=check).env_runner.sample(num_timesteps=40)
    assert "sub-environment 0" in str(raised.value)
    assert ("WrongOne, smoke test" in str(raised.value)) == check


# Masks.


class Masked(Game):
    """Only action 1 is legal, as the mask says, wherever it is; in step 2 there is none, or nothing is legal."""

    where = "observation"
    pause = "absent"

    def observation_space(self, agent):
        mask = spaces.Box(0, 1, (2,), np.int8)
        return spaces.Dict({"observation": BOX, "action_mask": mask}) if self.where == "observation" else BOX

    def mask(self):
        return np.array([0, 1] if self.t != 2 else [0, 0], np.int8)

    def observe(self, agent):
        plain = super().observe(agent)
        return {"observation": plain, "action_mask": self.mask()} if self.where == "observation" else plain

    def info(self, agent):
        absent = self.where == "observation" or (self.pause == "absent" and self.t == 2)
        return {} if absent else {"action_mask": self.mask()}

    def reward(self, agent, action):
        return float(action)


@pytest.mark.parametrize(("where", "pause"), [("observation", "all zero"), ("info", "absent"), ("info", "all zero")])
def test_masks_may_be_in_observations_or_infos_or_absent_or_all_zero(where, pause):
    env = type("MaskedGame", (Masked,), {"where": where, "pause": pause, "length": 40})
    algo = build(env, ActionMasking(source="auto" if where == "observation" else "infos"))
    (episode,) = algo.env_runner.sample(num_timesteps=40)
    actions = np.stack([episode.agent_episodes[agent].get_actions() for agent in "ab"])
    assert (np.delete(actions, 2, axis=1) == 1).all()
    algo.train()


# Rewards and flags.


class Pays(Game):
    """Pays in numbers of all kinds."""

    def reward(self, agent, action):
        kinds = (1, 2.0, np.float32(3), np.float64(4), np.int64(5), np.array(6.0), True)
        return kinds[(self.t - 1 + self.ids.index(agent)) % 7]

    length = 7


def test_rewards_may_be_numbers_of_any_kind_and_mixed():
    episode = first_episode(Pays, steps=7)
    assert episode.agent_episodes["a"].get_rewards().tolist() == [1, 2, 3, 4, 5, 6, 1]
    assert episode.agent_episodes["b"].get_rewards().tolist() == [2, 3, 4, 5, 6, 1, 1]


class PaysVectors(Game):
    """Pays in two currencies."""

    def reward(self, agent, action):
        return np.array([1.0, 2.0])


@pytest.mark.parametrize("check", [True, False])
def test_a_vector_of_rewards_is_refused_with_the_agent(check):
    with pytest.raises(EnvError, match=r"(?s)'a'.*array\(\[1., 2.\]\)"):
        build(PaysVectors, check=check).env_runner.sample()


@pytest.mark.parametrize("yes", [np.True_, 1, np.int64(1), np.array(True)])
def test_flags_may_be_numpy_bools_and_numbers(yes):
    class Flags(Game):
        def flags(self, agent):
            return type(yes)(0) if not isinstance(yes, np.ndarray) else np.array(False), yes if self.t >= 3 else 0

    assert first_episode(Flags).get_truncateds() == {"a": True, "b": True, "__all__": True}


class BothFlags(Game):
    """Terminates at the time limit, and says both."""

    def flags(self, agent):
        return (self.t >= 3,) * 2


def test_both_flags_at_once_count_as_terminated():
    episode = first_episode(BothFlags)
    assert episode.get_terminateds() == {"a": True, "b": True, "__all__": True}
    assert episode.get_truncateds() == {"a": False, "b": False, "__all__": False}


# Turns.


class Settles(AECEnv):
    """Each turn pays everybody 1, the mover too; the game ends after four turns, and the payoff is told then."""

    metadata = {"name": "settles", "render_modes": []}
    render_mode = None

    def __init__(self):
        super().__init__()
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return np.array([self.t, "ab".index(agent)], np.float32)

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = ["a", "b"]
        self.agent_selection = "a"
        self.rewards, self._cumulative_rewards = dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)
        self.terminations, self.truncations = dict.fromkeys("ab", False), dict.fromkeys("ab", False)
        self.infos = {"a": {}, "b": {}}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            if self.agents:
                self.agent_selection = self.agents[0]
            return
        self._cumulative_rewards[agent] = 0
        self.t += 1
        self.rewards = dict.fromkeys("ab", 1)
        if self.t == 4:
            self.rewards = {"a": 10, "b": -10}
            self.terminations = dict.fromkeys("ab", True)
        self._accumulate_rewards()
        self.agent_selection = "ab"[self.t % 2]


def test_rewards_accumulate_between_turns_and_payoffs_come_on_the_dead_step():
    episode = first_episode(Settles, steps=4)
    lives = episode.agent_episodes
    assert lives["a"].get_rewards().tolist() == [2.0, 11.0]  # a's turns are 0 and 2
    assert lives["b"].get_rewards().tolist() == [2.0, -10.0]
    assert (seen(episode, "a"), seen(episode, "b")) == ([0, 2, 4], [1, 3, 4])
    assert lives["a"].is_terminated and lives["b"].is_terminated


# Times.


class NoState(Game):
    """Its ``state()`` raises; that of Game is PettingZoo's own, which raises too."""

    def state(self):
        raise RuntimeError("no global state")

    state_space = property(lambda self: 1 / 0)


def test_a_state_that_is_missing_or_raises_is_never_asked_for():
    assert len(first_episode(NoState)) == len(first_episode(Game)) == 3


@pytest.mark.few(1)
@pytest.mark.parametrize(("length", "episodes"), [(1, 50), (8000, 1)])
def test_episodes_may_be_one_step_long_or_thousands(length, episodes):
    algo = build(type("Long", (Game,), {"length": length}))
    parts = [e for _ in range(4) for e in algo.env_runner.sample(num_timesteps=length * episodes // 4 + 1)]
    done = [e for e in parts if e.is_done]
    assert len(done) == episodes if length > 1 else len(done) >= episodes
    assert sum(e.env_steps() for e in parts if e.id_ == "0-0") == length
    summaries = algo.env_runner.take_finished()
    assert {summary.length for summary in summaries} == {length}
    assert summaries[0].episode_return == length * (length + 1)


def test_a_slow_reset_delays_and_does_no_more():
    class Slow(gymnasium.Env):
        """Its resets take their time."""

        observation_space, action_space = BOX, spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            time.sleep(0.05)
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.t += 1
            return np.full(2, self.t, np.float32), 1.0, False, self.t == 3, {}

    algo = small_config(Slow).callbacks(Callbacks).env_runners(num_envs_per_env_runner=2).build_algo()
    episodes = algo.env_runner.sample(num_timesteps=12)
    assert [e.get_observations()[:, 0].tolist() for e in episodes] == [[0.0, 1.0, 2.0, 3.0]] * 4
