"""The simplest way to change observations: a function of one observation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE, ConnectorV2, unstack
from marl_connectors.connectors.space_trees import shape_of
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.spaces import stack
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree


class SingleAgentObservationPreprocessor(ConnectorV2):
    """Base of pieces that make a new observation of each agent's newest one.

    Override ``preprocess``, and ``recompute_output_observation_space`` if the space changes (with several agents, it
    gets and gives a Dict by agent id). For speed, override ``preprocess_batch`` instead or as well.

    Reads ``obs``; writes it back to the episodes. If a piece before has put ``obs`` into the batch, that is what is
    read and written. Keeps no state unless a subclass does.
    """

    belongs_in = (ENV_TO_MODULE,)

    _takes_episode: bool | None = None

    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        """Override: the new observation. The parameter ``episode`` may be left out.

        Args:
            observation: One item, an array of its own.
            episode: Where it is from; has ``agent_id`` and ``module_id``.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: override preprocess(observation, episode) or preprocess_batch(observations, rows)."
        )

    def preprocess_batch(self, observations: Tree, rows: Rows) -> Tree:
        """Override: the new observations of all agents with like spaces at once.

        Args:
            observations: ``[B, ...]``, not to be changed in place.
            rows: The agent-steps behind them.
        """
        raise NotImplementedError

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """All rows at once if the class has ``preprocess_batch``, else one after another."""
        rows = columns.rows
        in_batch = Columns.OBS in columns
        observations = columns[Columns.OBS] if in_batch else rows.get(Columns.OBS)
        if self._has("preprocess_batch"):
            changed = self.preprocess_batch(tree_map(_read_only, observations), rows)
        else:
            items = iter(unstack(tree_map(np.copy, observations)))
            changed = self._stacked(
                [
                    self._preprocess(next(items), episode)
                    for episode, count in zip(rows.episodes, rows.counts, strict=True)
                    for _ in range(count)
                ]
            )
        if in_batch:
            columns[Columns.OBS] = changed
        else:
            rows.set(Columns.OBS, changed)

    def _preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        if self._takes_episode is None:
            self._takes_episode = _takes_two(self.preprocess)
        if self._takes_episode:
            return self.preprocess(observation, episode)
        return self.preprocess(observation)  # type: ignore[call-arg]

    def _has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(SingleAgentObservationPreprocessor, method)

    def _stacked(self, items: list[Any]) -> Tree:
        try:
            return stack(items)
        except ValueError as error:
            shapes = sorted({shape_of(tree_map(lambda leaf: np.asarray(leaf)[None], item)) for item in items})
            raise ConnectorError(
                f"preprocess gave observations that cannot stand in one batch: {', '.join(shapes[:4])}. Give all "
                f"agents with like spaces observations of one shape."
            ) from error


ObservationPreprocessor = SingleAgentObservationPreprocessor
"""The documents' name."""


class MultiAgentObservationPreprocessor(ConnectorV2):
    """Base of pieces that make new observations of those that all agents of an environment got at one step.

    Override ``preprocess``, and ``recompute_output_observation_space`` if spaces change. Works on items. Agents that
    ended while others go on get their last observations preprocessed in a call of their own.

    Reads ``obs``; writes it back to the episodes. Keeps no state unless a subclass does.
    """

    belongs_in = (ENV_TO_MODULE,)
    looks_at_other_agents = True

    def preprocess(self, observations: dict[AgentID, Any], episode: MultiAgentEpisode) -> Mapping[AgentID, Any]:
        """Override: the new observations by agent; agents that are left out keep theirs.

        Args:
            observations: By agent, of those that observed at the newest env step.
            episode: Where they are from.
        """
        raise NotImplementedError(f"{type(self).__name__}: override preprocess(observations, episode).")

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """One environment's episode after another."""
        for episode in episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise ConnectorError(
                    f"{type(self).__name__}: is for several agents, but {type(episode).__name__} {episode.id_!r} has "
                    f"one. Derive it from SingleAgentObservationPreprocessor."
                )
            parts = {part.agent_id: part for part in self.single_agent_episode_iterator([episode])}
            if not parts:
                continue
            before = {agent_id: tree_map(_own, part.get_observations(-1)) for agent_id, part in parts.items()}
            for agent_id, observation in self.preprocess(before, episode).items():
                if agent_id not in parts:
                    raise ConnectorError(
                        f"{type(self).__name__}: preprocess gave an observation for agent {agent_id!r}, which got none "
                        f"at this step. Those that did: {', '.join(map(repr, parts))}."
                    )
                parts[agent_id].set_observations(new_data=observation, at_indices=-1)
        return batch


def _takes_two(function: Any) -> bool:
    kinds = inspect.Parameter
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        return True
    return sum(p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) for p in parameters) > 1


def _read_only(values: np.ndarray) -> np.ndarray:
    view = values.view()
    view.flags.writeable = False
    return view


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
