"""Sample: the episodes of a sample, which may still be in other processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from marl_connectors.env_runners.done_episodes import SamplePlace, merged_order
from marl_connectors.episodes.references import EpisodeReference


class Fragment(NamedTuple):
    """The episodes of one env runner's sample in another process.

    Attributes:
        places: The sub-environment of each episode, and when it ended.
        env_steps: The number of env steps of each episode.
        agent_steps: The number of agent steps of each episode.
        payload: The pickled episodes, or a reference of them in Ray's store.
    """

    places: Sequence[SamplePlace]
    env_steps: Sequence[int]
    agent_steps: Sequence[int]
    payload: Any = None


class Sample:
    """The episodes of one or several samples that follow one another, in the order of one env runner.

    Attributes:
        rounds: For each sample, the fragments of the env runners; empty if the episodes are in this process.
        env_steps: The number of env steps.
        agent_steps: The number of agent steps.
    """

    def __init__(self, rounds: Sequence[Sequence[Fragment]], fetch: Callable[[Fragment], list[Any]]):
        """Makes a sample of episodes in other processes.

        Args:
            rounds: As above.
            fetch: Returns the episodes of a fragment.
        """
        self.rounds = rounds
        self._fetch = fetch
        self._episodes: list[Any] | None = None
        fragments = [fragment for own in rounds for fragment in own]
        self.env_steps = sum(sum(fragment.env_steps) for fragment in fragments)
        self.agent_steps = sum(sum(fragment.agent_steps) for fragment in fragments)

    @classmethod
    def of_episodes(cls, episodes: list[Any]) -> Sample:
        """Returns the sample of episodes in this process."""
        sample = cls([], lambda fragment: [])
        sample._episodes = episodes
        sample.env_steps = sum(episode.env_steps() for episode in episodes)
        sample.agent_steps = sum(episode.agent_steps() for episode in episodes)
        return sample

    @property
    def is_remote(self) -> bool:
        """Whether the episodes were not fetched into this process."""
        return self._episodes is None

    def references(self) -> list[EpisodeReference]:
        """Returns references of the episodes in other processes, in the order of ``episodes``."""
        found = []
        for fragments in self.rounds:
            for runner, place in merged_order([fragment.places for fragment in fragments]):
                own = fragments[runner]
                number, steps = own.places[place].env_number, own.agent_steps[place]
                found.append(EpisodeReference(own.payload, place, number, steps))
        return found

    def episodes(self) -> list[Any]:
        """Returns the episodes. Those in other processes are fetched once."""
        if self._episodes is None:
            self._episodes = self.fetched()
        return self._episodes

    def fetched(self) -> list[Any]:
        """Returns the episodes like ``episodes``, but does not keep those that are in other processes."""
        if self._episodes is not None:
            return self._episodes
        found = []
        for fragments in self.rounds:
            parts = [self._fetch(fragment) for fragment in fragments]
            order = merged_order([fragment.places for fragment in fragments])
            found += [parts[runner][place] for runner, place in order]
        return found


def joined(samples: Sequence[Sample]) -> Sample:
    """Returns one sample of several that follow one another."""
    if len(samples) == 1:
        return samples[0]
    if not any(sample.rounds for sample in samples):
        return Sample.of_episodes([episode for sample in samples for episode in sample.episodes()])
    return Sample([own for sample in samples for own in sample.rounds], samples[0]._fetch)
