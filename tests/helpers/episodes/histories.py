"""Random histories of episodes: what the agents do, and how an environment tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from helpers.episodes.reference import Log, Step
from helpers.episodes.reference_life import ACTIONS, OBS

AGENT_IDS = ("a", 0, ("team", 1), "b", 1, "1", ("a", "rider"), "wolf_2", 7, ("team", ("x", 2)))
EVERYONE = "__all__"

MANY = spaces.Discrete(100)
LATE = spaces.Discrete(90, start=5)
DIGITS = spaces.MultiDiscrete([9, 11], start=[0, 3])
SCALAR = spaces.Box(-1e6, 1e6, (), np.float32)
IMAGE = spaces.Box(0, 255, (2, 1, 2), np.uint8)
SPACES = (
    MANY,
    LATE,
    DIGITS,
    spaces.MultiDiscrete([[4, 5], [6, 7]]),
    spaces.MultiBinary(7),
    spaces.MultiBinary((2, 4)),
    SCALAR,
    spaces.Box(-1e6, 1e6, (3,), np.float32),
    spaces.Box(-1e6, 1e6, (2,), np.float64),
    spaces.Box(-1000, 1000, (2,), np.int32),
    IMAGE,
    spaces.Dict({"x": SCALAR, "n": LATE}),
    spaces.Tuple([MANY, spaces.Box(-1e6, 1e6, (2,), np.float32)]),
    spaces.Dict({"far": spaces.Tuple([DIGITS, IMAGE]), "near": spaces.Dict({"bits": spaces.MultiBinary(7)})}),
)


def value(space, number, loose=False):
    """An item of a space that tells its number; a loose one is of another type than the space's."""
    if isinstance(space, spaces.Dict):
        keys = sorted(space.spaces, reverse=loose and number % 2 == 1)
        return {key: value(space[key], number, loose) for key in keys}
    if isinstance(space, spaces.Tuple):
        return tuple(value(part, number, loose) for part in space)
    size = int(np.prod(space.shape))
    if isinstance(space, spaces.Discrete):
        item = space.start + number % space.n
    elif isinstance(space, spaces.MultiDiscrete):
        item = space.start + ((number // 5 ** np.arange(size)) % space.nvec.ravel()).reshape(space.shape)
    elif isinstance(space, spaces.MultiBinary):
        item = ((number // 2 ** np.arange(size)) % 2).reshape(space.shape)
    elif space.dtype == np.uint8:
        item = ((number + np.arange(size)) % 256).reshape(space.shape)
    else:
        item = (number + np.arange(size) * (0.25 if space.dtype.kind == "f" else 1)).reshape(space.shape)
    item = np.asarray(item, space.dtype)[()]
    return loosened(item) if loose else item


def loosened(tree):
    """Items in other types than they have."""
    if isinstance(tree, dict):
        return {key: loosened(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(loosened, tree))
    wide = np.asarray(tree, np.float64 if np.asarray(tree).dtype.kind == "f" else np.int64)
    return wide if wide.ndim else wide.item()


def another(item, space, number):
    """An item like the given one, for another number."""
    if space is not None:
        return value(space, number)
    if isinstance(item, dict):
        return {key: another(part, None, number) for key, part in item.items()}
    if isinstance(item, tuple):
        return tuple(another(part, None, number) for part in item)
    return np.full_like(item, number)[()]


def stacked(items):
    """Items as one array, or tree of arrays."""
    if isinstance(items[0], dict):
        return {key: stacked([item[key] for item in items]) for key in items[0]}
    if isinstance(items[0], tuple):
        return tuple(stacked(list(parts)) for parts in zip(*items, strict=True))
    return np.array(items)


def unstacked(batch):
    """The items of a list, an array or a tree of arrays."""
    if isinstance(batch, dict):
        parts = {key: unstacked(part) for key, part in batch.items()}
        return [dict(zip(parts, items, strict=True)) for items in zip(*parts.values(), strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*map(unstacked, batch), strict=True))
    return list(batch)


# What happens.


class Doing(NamedTuple):
    """What one agent tries at one env step."""

    observes: bool = False
    acts: bool = False
    earns: bool = False
    ends: str = ""


_ON_AND_OFF = (False, True)
_WHOLE = [Doing(o, a, e) for o in _ON_AND_OFF for a in _ON_AND_OFF for e in _ON_AND_OFF]
_LAST = [doing._replace(ends=ends) for doing in _WHOLE for ends in ("terminated", "truncated")]
DOINGS = st.sampled_from([*_WHOLE * 25, *_LAST, Doing(True, True, True, "terminated truncated")])
COUNTS = st.sampled_from((*range(13), *range(6, 13)))  # of steps
GOES_ON = "goes on"
ALL_END = st.sampled_from((*("",) * 32, *(GOES_ON,) * 6, "terminated", "truncated", "terminated truncated"))


class Manner(NamedTuple):
    """How things are said.

    Attributes:
        who_acts: "free", "turns" or "parallel".
        loose: Items are of other types than their spaces'.
        wordy: False flags of agents, and None for those that do nothing, are spelled out.
        infos: Infos are given.
        extras: Agents (by number) whose actions come with extra model outputs, or, in every second life, do not.
    """

    who_acts: str
    loose: bool
    wordy: bool
    infos: bool
    extras: frozenset


@dataclass
class History:
    """All calls that make an episode.

    Attributes:
        agent_ids: Those that may be there.
        observation_space: As the episode takes it: None, one for all, or one for each agent; so is ``action_space``.
        reset: Observations and infos.
        steps: What follows.
    """

    agent_ids: tuple
    observation_space: Any
    action_space: Any
    reset: tuple
    steps: list[Step]

    def spaces_of(self, agent_id):
        both = {OBS: self.observation_space, ACTIONS: self.action_space}
        return {k: whole[agent_id] if type(whole) is dict else whole for k, whole in both.items() if whole is not None}

    @property
    def log(self):
        log = Log(self.spaces_of)
        log.add_reset(*self.reset)
        for step in self.steps:
            log.add_step(step)
        return log

    def possible_cuts(self, cuts):
        """Pairs of an env step that this history reaches and a lookback, in order."""
        last = len(self.steps) - any(self.log.flags)
        return sorted((at % (last + 1), lookback) for at, lookback in cuts)

    def until(self, t):
        """The first ``t`` steps."""
        return History(self.agent_ids, self.observation_space, self.action_space, self.reset, self.steps[:t])

    def changed(self, change):
        """The same with ``change`` made to each dict of agents."""
        steps = [Step(*(part if part is None else change(part) for part in step)) for step in self.steps]
        reset = tuple(part if part is None else change(part) for part in self.reset)
        return History(self.agent_ids, self.observation_space, self.action_space, reset, steps)

    def renamed(self, names):
        new = self.changed(lambda part: {names.get(agent_id, agent_id): item for agent_id, item in part.items()})
        new.agent_ids = tuple(names[agent_id] for agent_id in self.agent_ids)
        for which in ("observation_space", "action_space"):
            whole = getattr(self, which)
            if type(whole) is dict:
                setattr(new, which, {names[agent_id]: space for agent_id, space in whole.items()})
        return new


@st.composite
def histories(draw, spaced=None, who_acts=("free", "turns", "parallel"), one_agent=False, of=SPACES, endless=False):
    """A history; ``spaced`` says whether the episode knows its spaces. One agent alone lives once."""
    most = 1 if one_agent else 4
    agent_ids = tuple(draw(st.lists(st.sampled_from(AGENT_IDS), min_size=1, max_size=most, unique=True)))
    told = draw(
        st.sampled_from(("one", "each", "none") if spaced is None else ("one", "each") if spaced else ("none",))
    )
    kinds = st.tuples(st.sampled_from(of), st.sampled_from(of))
    pairs = [draw(kinds)] * len(agent_ids) if told == "one" else [draw(kinds) for _ in agent_ids]
    manner = draw(
        st.builds(
            Manner,
            st.sampled_from(who_acts),
            st.booleans(),
            st.booleans(),
            st.booleans(),
            st.frozensets(st.integers(0, len(agent_ids) - 1)),
        )
    )
    at_first = draw(st.sets(st.integers(0, len(agent_ids) - 1), min_size=manner.who_acts != "free"))
    one_step = st.tuples(ALL_END, *[DOINGS] * len(agent_ids))
    doings = [draw(one_step) for _ in range(draw(COUNTS))]
    observations = {agent_ids[k]: value(pairs[k][0], k, manner.loose) for k in sorted(at_first)}
    infos = {agent_ids[k]: _info(0, k) for k in at_first} if manner.infos else None
    each = [dict(zip(agent_ids, own, strict=True)) for own in zip(*pairs, strict=True)]
    known = {"none": (None, None), "one": pairs[0], "each": each}[told]
    history = History(agent_ids, *known, (observations, infos), [])
    log = history.log
    for all_end, *of_agents in doings:
        if any(log.flags):
            break
        if endless or (one_agent and all_end == GOES_ON):
            all_end = ""
        if endless:
            of_agents = [doing._replace(ends="") for doing in of_agents]
        step = _step(log, agent_ids, pairs, manner, all_end, of_agents)
        log.add_step(step)
        history.steps.append(step)
    return history


def _step(log, agent_ids, pairs, manner, all_end, doings):
    t, n = log.t + 1, len(agent_ids)
    alive = log.alive()
    can_act = {agent_id for agent_id, life in alive.items() if not life.waits}
    lives = [life.agent_id for life in log.now.lives]
    step = Step({}, {}, {}, {} if manner.infos else None, {}, {}, {})
    for k, (agent_id, (observation_space, action_space), doing) in enumerate(
        zip(agent_ids, pairs, doings, strict=True)
    ):
        observes, acts, earns, ends = doing
        if manner.who_acts == "parallel":
            observes, acts = observes or agent_id in alive, True
        elif manner.who_acts == "turns":
            observes, acts = t % n == k, True
        number = n * t + k
        if observes:
            step.observations[agent_id] = value(observation_space, number, manner.loose)
        if acts and agent_id in can_act:
            step.actions[agent_id] = value(action_space, number, manner.loose)
            if (k in manner.extras) == (lives.count(agent_id) % 2 == 1):
                step.extra_model_outputs[agent_id] = _extras(number)
        if earns:
            step.rewards[agent_id] = _reward(number)
        if step.infos is not None and (observes or acts):
            step.infos[agent_id] = _info(t, k)
        for flags, name in ((step.terminateds, "terminated"), (step.truncateds, "truncated")):
            if name in ends or manner.wordy:
                flags[agent_id] = np.bool_(name in ends)
        if manner.wordy:
            step.observations.setdefault(agent_id, None)
            step.actions.setdefault(agent_id, None)
    for flags, name in ((step.terminateds, "terminated"), (step.truncateds, "truncated")):
        if name in all_end or (all_end == GOES_ON and (manner.wordy or flags is step.terminateds)):
            flags[EVERYONE] = name in all_end
    return step if manner.wordy else Step(*step[:3], *(part or None for part in step[3:]))


def _reward(number):
    """A power of two of its own, so that a sum tells its terms."""
    reward = (-1) ** number * 2.0 ** (number - 10)
    return (reward, np.float32(reward), np.float64(reward), int(reward) or reward)[number % 4]


def _info(t, k):
    return {"t": t, "who": [k, (k, t)], 3: {"__tuple__": np.full(2, t)}} if k % 2 else {"t": t}


def _extras(number):
    extras = {
        "logp": np.float32(-number),
        "dist_inputs": np.array([number, -number, 0.5], np.float32),
        "state_out": {"h": np.full(2, number, np.float16), "c": (np.full((1, 2), number), float(number))},
    }
    return dict(reversed(extras.items())) if number % 2 else extras


def cuts(most=3, least=0):
    """Pairs of an env step and a lookback."""
    return st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 3) | st.integers(0, 12)), min_size=least, max_size=most
    )
