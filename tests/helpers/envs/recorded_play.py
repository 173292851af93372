"""Environments that note down what they give and get, so that a test can give the same to somebody else."""

from __future__ import annotations

import copy

import gymnasium
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

PLAY: list[tuple] = []
"""``("begins",)``; ``("gives", agents that act, observations, rewards, infos)``; ``("acts", actions)``."""


class NotesParallel(BaseParallelWrapper):
    """Notes of a parallel environment: a dict of agents at each step."""

    def reset(self, seed=None, options=None):
        PLAY.append(("begins",))
        observations, infos = super().reset(seed=seed, options=options)
        PLAY.append(("gives", list(self.agents), *copy.deepcopy((observations, {}, infos))))
        return observations, infos

    def step(self, actions):
        PLAY.append(("acts", dict(actions)))
        result = super().step(actions)
        PLAY.append(("gives", list(self.agents), *copy.deepcopy((result[0], result[1], result[4]))))
        return result


class NotesTurns(BaseWrapper):
    """Notes of a turn-based environment: one agent at a time."""

    def reset(self, seed=None, options=None):
        PLAY.append(("begins",))
        super().reset(seed=seed, options=options)

    def step(self, action):
        agent_id = self.agent_selection
        if action is not None:
            observation, reward, _, _, info = super().last()
            PLAY.append(
                ("gives", [agent_id], {agent_id: copy.deepcopy(observation)}, {agent_id: reward}, {agent_id: info})
            )
            PLAY.append(("acts", {agent_id: action}))
        super().step(action)


class NotesSingle(gymnasium.Wrapper):
    """Notes of a Gymnasium environment."""

    def reset(self, *, seed=None, options=None):
        PLAY.append(("begins",))
        observation, info = super().reset(seed=seed, options=options)
        PLAY.append(("gives", ["default_agent"], {"default_agent": observation}, {}, {"default_agent": info}))
        return observation, info

    def step(self, action):
        PLAY.append(("acts", {"default_agent": action}))
        result = super().step(action)
        given = ({"default_agent": part} for part in (result[0], result[1], result[4]))
        PLAY.append(("gives", [] if result[2] or result[3] else ["default_agent"], *given))
        return result


def episodes() -> list[list[tuple]]:
    """The notes so far by episode: ``(agents, observations, rewards, infos, actions)`` of each step."""
    found: list[list[tuple]] = []
    given: tuple = ()
    for kind, *note in PLAY:
        if kind == "begins":
            found.append([])
        elif kind == "gives":
            given = tuple(note)
        elif given:
            found[-1].append((*given, note[0]))
            given = ()
    return [episode for episode in found if episode]
