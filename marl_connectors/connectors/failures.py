"""What a connector piece was working on when it failed, as far as that is known."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode


class Progress(threading.local):
    """Where the piece that runs now is. Written on the way, read only when it fails.

    Attributes:
        episode: The agent episode that ``single_agent_episode_iterator`` gave last and that the piece works on.
        item: Column(s) and ``(episode id, agent id, module id)`` of an item whose change failed.
        converting: The items that are about to become columns.
        module_id: The module on whose columns a piece failed.
        in_train_batch: Whether the piece stands in a learner pipeline; None if unknown.
    """

    episode: SingleAgentEpisode | None = None
    item: tuple[Any, tuple[Any, ...]] | None = None
    converting: dict[str, Any] | None = None
    module_id: str | None = None
    in_train_batch: bool | None = None

    def begin(self, in_train_batch: bool | None) -> None:
        """A piece that works on items begins."""
        self.episode = self.item = self.converting = self.module_id = None
        self.in_train_batch = in_train_batch

    def describe(self) -> str:
        """`` for agent 'a' (...) at env step 7``, or nothing if nothing is known."""
        if self.item is not None:
            column, ids = self.item
            whose = _whose(*ids)
            return f" for column {column!r}{f' of {whose}' if whose else ''}"
        if self.episode is not None:
            episode = self.episode
            episode_id = episode.id_ if episode.agent_id is None else episode.multi_agent_episode_id
            whose = _whose(episode_id, episode.agent_id, episode.module_id)
            return f" for {whose}{self._env_steps(episode)}"
        return ""

    def modules(self, module_ids: Sequence[str]) -> str:
        """`` for module 'a'`` if one is known to be at fault, else all whose columns the piece was given."""
        known = self.module_id
        return modules_named([known] if known is not None and known in module_ids else module_ids)

    def odd_item(self) -> str:
        """A sentence that names the first item that is unlike most others of its column, or nothing."""
        for name, by_key in (self.converting or {}).items():
            if not isinstance(by_key, dict):
                continue
            shapes = {key: [_shape(item) for item in items] for key, items in by_key.items() if isinstance(items, list)}
            counts = Counter(shape for own in shapes.values() for shape in own)
            if len(counts) < 2:
                continue
            usual = counts.most_common(1)[0][0]
            for key, own in shapes.items():
                for shape in own:
                    if shape != usual:
                        whose = _whose(*(*key, None, None)[:3])
                        return f" The first item of {name!r} that is not {usual} but {shape} is of {whose}."
        return ""

    def _env_steps(self, episode: SingleAgentEpisode) -> str:
        times = episode.storage.column(Columns.T)
        if not len(times):
            return ""
        newest = int(times[-1])
        if not self.in_train_batch:
            return f" at env step {newest}"
        return f" in env steps {int(times[min(episode.storage.lookback, len(times) - 1)])} to {newest}"


progress = Progress()


def modules_named(module_ids: Iterable[str]) -> str:
    """`` for module 'a'`` or `` for modules 'a', 'b'``; the first few of many."""
    names = list(module_ids)
    shown = ", ".join(repr(name) for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f" for module{'s' if len(names) > 1 else ''} {shown}" if names else ""


def _whose(episode_id: Any, agent_id: Any, module_id: Any) -> str:
    inside = [f"module {module_id!r}"] if module_id is not None and agent_id is not None else []
    inside += [f"episode {episode_id!r}"] if episode_id is not None and agent_id is not None else []
    if agent_id is not None:
        return f"agent {agent_id!r} ({', '.join(inside)})" if inside else f"agent {agent_id!r}"
    if episode_id is not None:
        return f"episode {episode_id!r}"
    return f"module {module_id!r}" if module_id is not None else ""


def _shape(item: Any) -> str:
    if isinstance(item, dict):
        return "{" + ", ".join(f"{key}: {_shape(part)}" for key, part in item.items()) + "}"
    if isinstance(item, torch.Tensor):
        return str(tuple(item.shape))
    try:
        return str(np.shape(item))
    except ValueError:
        return "ragged"
