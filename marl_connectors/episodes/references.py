"""References of episodes in Ray's store, by which learners fetch what env runners have sampled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class EpisodeReference(NamedTuple):
    """An episode, or a chunk of one, in Ray's store.

    Attributes:
        payload: The reference of a pickled list of episodes.
        place: The index of the episode in this list.
        env_number: The number of its sub-environment.
        agent_steps: The number of its agent steps.
    """

    payload: Any
    place: int
    env_number: int
    agent_steps: int


class EpisodeShare(NamedTuple):
    """The episodes that one learner fetches for an update.

    Attributes:
        payloads: The references of pickled lists of episodes.
        places: For each payload, the indices of the learner's episodes in the list.
        positions: For each payload, the positions of these episodes among those of all learners.
    """

    payloads: list[Any]
    places: list[list[int]]
    positions: list[list[int]]

    def fetch(self, get: Callable[[Any], bytes]) -> tuple[list[Any], list[int]]:
        """Returns the episodes and their positions, in the order of the positions.

        Args:
            get: ``ray.get``.
        """
        found: list[tuple[int, Any]] = []
        for payload, places, positions in zip(self.payloads, self.places, self.positions, strict=True):
            episodes = pickle.loads(get(payload))
            found += [(position, episodes[place]) for place, position in zip(places, positions, strict=True)]
        found.sort(key=lambda pair: pair[0])
        return [episode for _, episode in found], [position for position, _ in found]


def divided(episodes: Sequence[EpisodeReference], number: int, num_envs: int) -> list[EpisodeShare]:
    """Divides the episodes of an update among learners.

    Each learner gets the episodes of sub-environments with neighbouring numbers. So it fetches the samples of as few
    env runners as possible, and gets all chunks of an episode.

    Args:
        episodes: The episodes in the order in which one learner would get them.
        number: The number of learners.
        num_envs: The number of sub-environments.
    """
    found = [EpisodeShare([], [], []) for _ in range(number)]
    for position, episode in enumerate(episodes):
        share = found[min(episode.env_number * number // max(num_envs, 1), number - 1)]
        which = next((i for i, payload in enumerate(share.payloads) if payload is episode.payload), None)
        if which is None:
            which = len(share.payloads)
            for column, first in zip(share, (episode.payload, [], []), strict=True):
                column.append(first)  # type: ignore[arg-type]
        share.places[which].append(episode.place)
        share.positions[which].append(position)
    return found
