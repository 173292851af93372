"""Chunks of episodes, put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def put_together(chunks: Iterable[Any]) -> list[Any]:
    """Returns episodes, each of its chunks in ``chunks``, in the order of their first chunks.

    The first chunk of each episode is continued by the others, so it is changed.

    Args:
        chunks: SingleAgentEpisodes or MultiAgentEpisodes. Chunks of one episode come in their order, without gaps.

    Raises:
        EpisodeError: If a chunk does not continue the one before.
    """
    episodes: dict[Any, Any] = {}
    for chunk in chunks:
        if chunk.id_ in episodes:
            episodes[chunk.id_].concat_episode(chunk)
        else:
            episodes[chunk.id_] = chunk
    return list(episodes.values())
