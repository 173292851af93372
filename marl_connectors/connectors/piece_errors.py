"""Records what a connector piece works on, so that an error can name the agent, the column and the module."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, TracebackType
from typing import Any

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode


class Progress(threading.local):
    """The data that the running piece works on. It is recorded as the piece runs, and only read if the piece fails.

    Attributes:
        episode: The agent episode that ``single_agent_episode_iterator`` yielded last and that the piece works on.
        item: Column(s) and ``(episode id, agent id, module id)`` of an item whose change failed.
        converting: The items that are being converted to columns.
        unlike: The name of a column of these items, and the items that could not be stacked.
        module_id: The module whose columns a piece failed on.
        in_train_batch: Whether the piece is in a learner pipeline; None if that is unknown.
    """

    episode: SingleAgentEpisode | None = None
    item: tuple[Any, tuple[Any, ...]] | None = None
    converting: dict[str, Any] | None = None
    unlike: tuple[str, list[Any]] | None = None
    module_id: str | None = None
    in_train_batch: bool | None = None
    _left: tuple[tuple[SingleAgentEpisode, CodeType, int], ...] = ()

    def begin(self, in_train_batch: bool | None) -> None:
        """Clears the record before a piece runs."""
        vars(self).clear()
        self.in_train_batch = in_train_batch

    def leave_loop(self) -> None:
        """Records that a loop over agent episodes was left early, by ``break`` or by an error that is not known yet.

        If it was an error, its traceback contains the instruction at which the loop's function is now.
        """
        if self.episode is not None:
            frame = sys._getframe(2)
            self._left = (*self._left[-7:], (self.episode, frame.f_code, frame.f_lasti))

    def _episode_of(self, error: BaseException) -> SingleAgentEpisode | None:
        """Returns the agent episode that an error was raised on."""
        if self.episode is not None or not self._left:
            return self.episode
        raised: set[tuple[CodeType, int]] = set()
        cause: BaseException | None = error
        while cause is not None:
            raised |= {(entry.tb_frame.f_code, entry.tb_lasti) for entry in _entries(cause.__traceback__)}
            cause = cause.__cause__
        return next((episode for episode, *place in self._left if tuple(place) in raised), None)

    def describe(self, error: BaseException) -> str:
        """Returns `` for agent 'a' (...) at env step 7``, or an empty string if nothing is known."""
        if self.item is not None:
            column, ids = self.item
            whose = _whose(*ids)
            return f" for column {column!r}{f' of {whose}' if whose else ''}"
        episode = self._episode_of(error)
        if episode is not None:
            episode_id = episode.id_ if episode.agent_id is None else episode.multi_agent_episode_id
            whose = _whose(episode_id, episode.agent_id, episode.module_id)
            return f" for {whose}{self._env_steps(episode)}"
        return ""

    def modules(self, module_ids: Sequence[str]) -> str:
        """Returns `` for module 'a'`` for the module that a piece failed on, or all that the piece worked on."""
        known = self.module_id
        return modules_named([known] if known is not None and known in module_ids else module_ids)

    def odd_item(self) -> str:
        """Returns a sentence that names the first item of an unusual shape, or an empty string.

        It looks only at items that could not be stacked, within one module if they differ there.
        """
        if self.unlike is None:
            return ""
        name, items = self.unlike
        mine = set(map(id, items))
        by_key = (self.converting or {}).get(name)
        if not isinstance(by_key, dict):
            return ""
        shapes = [(key, _shape(item)) for key, own in by_key.items() for item in own if id(item) in mine]
        by_module: dict[Any, list[tuple[Any, str]]] = {}
        for key, shape in shapes:
            by_module.setdefault((*key, None, None)[2], []).append((key, shape))
        for own in (*by_module.values(), shapes):
            counts = Counter(shape for _, shape in own)
            usual, times = counts.most_common(1)[0] if len(counts) > 1 else ("", 0)
            if own is shapes and 2 * times <= len(own):
                break  # the modules differ, and no shape is the usual one
            for key, shape in own if times else ():
                if shape != usual:
                    whose = _whose(*(*key, None, None)[:3])
                    return f" The first item of {name!r} with shape {shape} instead of {usual} belongs to {whose}."
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
    """Returns `` for module 'a'`` or `` for modules 'a', 'b'``; it names only the first few of many."""
    names = list(module_ids)
    shown = ", ".join(repr(name) for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f" for module{'s' if len(names) > 1 else ''} {shown}" if names else ""


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


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
