"""Episodes as a slow, obvious model: a list of what happened, replayed for every question.

It follows the documented semantics only and shares no code with the library.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from helpers.episodes.reference_life import ACTIONS, INFOS, NOTHING, OBS, REWARDS, Life, holds_the_start, reached

EXTRAS = "extras"
"""Stands for all extra model outputs."""


class Step(NamedTuple):
    """The arguments of ``add_env_step``."""

    observations: dict
    actions: dict
    rewards: dict
    infos: dict | None = None
    terminateds: dict | None = None
    truncateds: dict | None = None
    extra_model_outputs: dict | None = None


class Event(NamedTuple):
    """What an agent did, or what befell it, in env step ``t``; the reset is step 0."""

    t: int
    agent_id: Any
    what: str
    value: Any
    more: dict


class Log:
    """All that happened in an episode, however it is cut."""

    def __init__(self, spaces_of):
        """``spaces_of`` gives an agent's spaces: column to space, as far as they are known.

        ``flags`` say whether the whole episode is terminated, and whether it is truncated.
        """
        self.spaces_of = spaces_of
        self.events: list[Event] = []
        self.t = 0
        self.flags = (False, False)
        self.now = ReferenceEpisode(self)

    def add_reset(self, observations, infos):
        for agent_id, observation in observations.items():
            self._observes(agent_id, observation, infos)

    def add_step(self, step):
        """In this order: who acts, who is paid, who observes, who ends."""
        self.t += 1
        for agent_id, action in step.actions.items():
            if action is not None:
                self._add(agent_id, "acts", action, (step.extra_model_outputs or {}).get(agent_id, {}))
        for agent_id, reward in step.rewards.items():
            self._add(agent_id, "earns", float(reward), {})
        ended = {agent_id for agent_id, life in self.now.newest_lives().items() if life.is_done}
        for agent_id, observation in step.observations.items():
            said_again = agent_id in ended and any(_flags(step, agent_id))
            if observation is not None and not said_again:
                self._observes(agent_id, observation, step.infos)
        for agent_id in self.alive():
            flags = flags_of(step, agent_id)
            if any(flags):
                self._add(agent_id, "ends", flags, {})
        self._set_flags(step)

    def _observes(self, agent_id, observation, infos):
        self._add(agent_id, "observes", observation, (infos or {}).get(agent_id) or {})

    def _add(self, agent_id, what, value, more):
        self.events.append(Event(self.t, agent_id, what, value, more))
        self.now.replay(self.events[-1], self)

    def alive(self):
        """Agent to life, for those that have not ended."""
        return {agent_id: life for agent_id, life in self.now.newest_lives().items() if not life.is_done}

    def _set_flags(self, step):
        """The end of all agents is that of the episode, unless the environment says otherwise."""
        said = [flags["__all__"] for flags in (step.terminateds, step.truncateds) if flags and "__all__" in flags]
        flagged = any(any(flags.values()) for flags in (step.terminateds, step.truncateds) if flags)
        lives = self.now.newest_lives().values()
        over = flagged and bool(lives) and all(life.is_done for life in lives) and (not said or any(said))
        terminated, truncated = _flags(step, "__all__")
        self.flags = (
            terminated or (over and all(life.is_terminated for life in lives)),
            truncated or (over and any(life.is_truncated for life in lives)),
        )


def _flags(step, agent_id):
    return bool((step.terminateds or {}).get(agent_id)), bool((step.truncateds or {}).get(agent_id))


def flags_of(step, agent_id):
    """Whether the agent is terminated, and whether it is truncated: its own flags go before those of all."""
    own = _flags(step, agent_id)
    return own if any(own) else _flags(step, "__all__")


class ReferenceEpisode:
    """A chunk: what is left of the log after ``cuts``, until env step ``until``.

    Attributes:
        lives: In the order in which they began; those that had ended before the chunk are not among them.
        unclaimed: What agents were paid that had no life in this chunk by then.
        known: The agents that had joined by ``until``.
    """

    def __init__(self, log, cuts=(), until=None):
        """``cuts`` are pairs of the env step and the lookback."""
        self.env_t = log.t if until is None else until
        self.env_t_started = cuts[-1][0] if cuts else 0
        self.lives: list[Life] = []
        self.unclaimed: dict[Any, float] = {}
        self.known = {event.agent_id for event in log.events if event.what == "observes" and event.t <= self.env_t}
        at_end = until is None or until == log.t
        self.flags = log.flags if at_end else (False, False)
        left = list(cuts)
        for event in log.events:
            while left and event.t > left[0][0]:
                self._cut(left.pop(0)[1])
            if event.t <= self.env_t:
                self.replay(event, log)
        for _, lookback in left:
            self._cut(lookback)

    def _cut(self, lookback):
        self.lives = [life for life in self.lives if not life.is_done]
        self.unclaimed = {}
        for life in self.lives:
            life.cut(lookback)

    def replay(self, event, log):
        life = self.newest_lives().get(event.agent_id)
        if event.what == "observes":
            if life is None or life.is_done:
                life = Life(event.agent_id, log.spaces_of(event.agent_id))
                self.lives.append(life)
            life.observe(event.t, event.value, event.more)
        elif event.what == "earns" and life is None:
            self.unclaimed[event.agent_id] = self.unclaimed.get(event.agent_id, 0.0) + event.value
        elif event.what == "earns":
            life.earn(event.value)
        elif event.what == "acts":
            life.act(event.value, event.more)
        else:
            life.end(event.t, *event.value)

    def __len__(self):
        return self.env_t - self.env_t_started

    def newest_lives(self):
        return {life.agent_id: life for life in self.lives}

    @property
    def lookback(self):
        """Env steps before the chunk, back to the oldest observation that any agent keeps."""
        return max([0, *(self.env_t_started - life.rows[life.first].t for life in self.lives)])

    def facts(self):
        """What an episode says of itself, apart from its columns."""
        newest, (terminated, truncated) = self.newest_lives(), self.flags
        credited = sum(life.get_return() for life in self.lives)
        return {
            "len": len(self),
            "env_t": self.env_t,
            "env_lookback": self.lookback,
            "agent_ids": set(newest),
            "agent_steps": sum(map(len, self.lives)),
            "terminateds": {a: life.is_terminated for a, life in newest.items()} | {"__all__": terminated},
            "truncateds": {a: life.is_truncated for a, life in newest.items()} | {"__all__": truncated},
            "to_act": {a for a, life in newest.items() if not life.is_done and not life.waits},
            "stepped": {a for a, life in newest.items() if life.rows[-1].t == self.env_t},
            "return": credited,
            "return with waiting": credited + sum(life.rows[-1].reward for life in self.lives if life.waits),
            "uncredited": sum(self.unclaimed.values()) + sum(life.uncredited_reward for life in self.lives),
        }

    def get(self, column, indices=None, agent_ids=None, *, env_steps=True, return_list=False, fill=None, **options):
        """The answer of the multi-agent ``get_observations`` and so on; EXTRAS stands for all extra model outputs.

        Raises:
            KeyError: If there is no such column or agent.
            IndexError: If an index is out of range and there is no fill.
            LookupError: If either of the two is right.
        """
        keys = {key for life in self.lives for key in life.keys}
        if column not in (OBS, INFOS, ACTIONS, REWARDS, EXTRAS, *keys):
            raise KeyError(column)
        asked = list(agent_ids) if isinstance(agent_ids, (list, set)) else [agent_ids]
        unknown = agent_ids is not None and not self.known.issuperset(asked)
        try:
            times = self._times(column, indices, fill, **options) if env_steps else []
        except IndexError:
            raise LookupError if unknown else IndexError from None
        if unknown:
            raise KeyError(agent_ids)
        wanted = [a for a in self.newest_lives() if agent_ids is None or a in asked]
        if column == EXTRAS:
            found = {key: self._get(key, indices, wanted, env_steps, return_list, fill, options) for key in keys}
            if return_list:
                return [_by_agent({key: dicts[i] for key, dicts in found.items()}) for i in range(len(times))]
            return _by_agent(found)
        return self._get(column, indices, wanted, env_steps, return_list, fill, options)

    def _times(self, column, indices, fill, neg_index_as_lookback=False, one_hot=False):
        """The env steps asked for; NOTHING for those out of range."""
        at = reached(
            indices, len(self) + (column in (OBS, INFOS)), self.lookback, neg_index_as_lookback, fill is not None
        )
        return [i if i is NOTHING else self.env_t_started + i for i in at]

    def _get(self, column, indices, wanted, env_steps, return_list, fill, options):
        if not env_steps:
            newest = [(a, self.newest_lives()[a]) for a in wanted]
            lives = [(a, life) for a, life in newest if column in (OBS, INFOS, ACTIONS, REWARDS, *life.keys)]
            found = {a: life.get(column, indices, with_waiting=True, fill=fill, **options) for a, life in lives}
            return {a: items for a, items in found.items() if isinstance(indices, int) or items}
        times = self._times(column, indices, fill, **options)
        by_time = [self._at(column, t, wanted, fill, options.get("one_hot", False)) for t in times]
        if return_list:
            return by_time
        if isinstance(indices, int):
            return by_time[0]
        agents = [a for a in wanted if any(a in found for found in by_time)]
        return {a: [found[a] for found in by_time if a in found] for a in agents}

    def _at(self, column, t, wanted, fill, one_hot):
        """Agent to its item of one env step."""
        found = {}
        for agent_id in wanted:
            lives = [life for life in self.lives if life.agent_id == agent_id]
            lives = [life for life in lives if column in (OBS, INFOS, ACTIONS, REWARDS, *life.keys)]
            rows = [row for life in lives for row in life.rows[life.first :] if row.item(column) is not NOTHING]
            here = [row.item(column) for row in rows if row.t == t]
            if lives and (here or fill is not None):
                others = [row.item(column) for row in rows]
                found[agent_id] = lives[-1].show(column, here[0] if here else NOTHING, fill, one_hot, others)
        return found

    def part(self, begin, end, lookback=None):
        """A slice of the chunk's env steps."""
        first_t, last_t = self.env_t_started, self.env_t
        begin, end = first_t + begin, first_t + max(begin, end)
        new = copy.copy(self)
        parts = [life.part(begin, end, last_t, first_t, lookback) for life in self.lives]
        new.env_t_started, new.env_t, new.lives = begin, end, [part for part in parts if part is not None]
        new.unclaimed = dict(self.unclaimed) if holds_the_start(begin, end, first_t, last_t) else {}
        new.flags = self.flags if end == last_t else (False, False)
        return new


def _by_agent(by_key):
    agents = {agent_id for by_agent in by_key.values() for agent_id in by_agent}
    return {a: {key: by_agent[a] for key, by_agent in by_key.items() if a in by_agent} for a in agents}
