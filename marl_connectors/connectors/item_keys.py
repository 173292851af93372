"""Whose items stand where in a batch of items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.typing import ItemKey

MAPPING = "memorized_map_structure"
"""Key in ``shared_data``: ``{module_id: [item key, ...]}``, the order of each module's items."""


def item_key(episode: SingleAgentEpisode) -> ItemKey:
    """``(episode_id,)`` alone, ``(episode_id, agent_id, module_id)`` for an agent of a MultiAgentEpisode."""
    if episode.agent_id is None or episode.multi_agent_episode_id is None:
        return (episode.id_,)
    return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)


def agent_episodes(episodes: Sequence[Any], *, stepped_only: bool) -> Iterator[SingleAgentEpisode]:
    """All SingleAgentEpisodes, those inside MultiAgentEpisodes too; ``single_agent_episode_iterator`` says which."""
    for episode in episodes:
        if not isinstance(episode, MultiAgentEpisode):
            yield episode
        elif not stepped_only:
            yield from episode.all_agent_episodes()
        else:
            stepped = episode.get_agents_that_stepped()
            parts = [part for agent_id, part in episode.agent_episodes.items() if agent_id in stepped]
            yield from [part for part in parts if not part.is_done] or parts
