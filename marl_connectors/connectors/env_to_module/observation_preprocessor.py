"""Base classes of pieces that change observations by a function of one observation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2, unstack
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE
from marl_connectors.connectors.space_trees import shape_of
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.spaces import stack
from marl_connectors.trees import read_only, tree_map
from marl_connectors.typing import AgentID, Tree


class SingleAgentObservationPreprocessor(ConnectorV2):
    """Base of pieces that compute a new observation from each agent's newest one.

    Override ``preprocess``, and ``recompute_output_observation_space`` if the space changes (with several agents, it
    gets and returns a Dict by agent id). For speed, override ``preprocess_batch`` instead or as well.

    Reads ``obs``; writes it back to the episodes. If an earlier piece has added ``obs`` to the batch, it reads and
    writes that column instead. Keeps no state unless a subclass does.
    """

    belongs_in = (ENV_TO_MODULE,)

    _takes_episode: bool | None = None

    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        """Returns the new observation. Override this; the parameter ``episode`` may be left out.

        Args:
            observation: One observation, a copy that may be changed in place.
            episode: The agent's episode; it has ``agent_id`` and ``module_id``.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: override preprocess(observation, episode) or preprocess_batch(observations, rows)."
        )

    def preprocess_batch(self, observations: Tree, rows: Rows) -> Tree:
        """Returns the new observations of all agents with like spaces at once. Override this for speed.

        Args:
            observations: ``[B, ...]``, which cannot be changed in place.
            rows: The agent-steps of the observations.

        Returns:
            ``[B, ...]`` observations, in the same order.
        """
        raise NotImplementedError

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Preprocesses all rows at once if the class has ``preprocess_batch``, else one after another."""
        rows = c.rows
        in_batch = Columns.OBS in c
        observations = c[Columns.OBS] if in_batch else rows.get(Columns.OBS)
        if self._has("preprocess_batch"):
            changed = self.preprocess_batch(read_only(observations), rows)
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
            c[Columns.OBS] = changed
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
                f"preprocess returned observations that cannot be stacked: {', '.join(shapes[:4])}. Return "
                f"observations of one shape for all agents with like spaces."
            ) from error


ObservationPreprocessor = SingleAgentObservationPreprocessor
"""The name in RLlib's documents."""


class MultiAgentObservationPreprocessor(ConnectorV2):
    """Base of pieces that compute new observations from those of all agents of an environment at one step.

    Override ``preprocess``, and ``recompute_output_observation_space`` if spaces change. The piece works on items. The
    last observations of agents that ended while others continue are preprocessed in a separate call.

    Reads ``obs``; writes it back to the episodes. Keeps no state unless a subclass does.
    """

    belongs_in = (ENV_TO_MODULE,)
    looks_at_other_agents = True

    def preprocess(self, observations: dict[AgentID, Any], episode: MultiAgentEpisode) -> Mapping[AgentID, Any]:
        """Returns the new observations by agent; agents that are left out keep theirs. Override this.

        Args:
            observations: The observations by agent, of all agents that observed at the newest env step. They are copies
                that may be changed in place.
            episode: The agents' episode.
        """
        raise NotImplementedError(f"{type(self).__name__}: override preprocess(observations, episode).")

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Preprocesses one environment's episode after another.

        Raises:
            ConnectorError: If an episode is a SingleAgentEpisode, or ``preprocess`` returns an observation for an agent
                that did not observe.
        """
        for episode in episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise ConnectorError(
                    f"{type(self).__name__}: this piece is for several agents, but {type(episode).__name__} "
                    f"{episode.id_!r} has one. Derive it from SingleAgentObservationPreprocessor."
                )
            parts = {part.agent_id: part for part in self.single_agent_episode_iterator([episode])}
            if not parts:
                continue
            before = {agent_id: tree_map(_own, part.get_observations(-1)) for agent_id, part in parts.items()}
            for agent_id, observation in self.preprocess(before, episode).items():
                if agent_id not in parts:
                    raise ConnectorError(
                        f"{type(self).__name__}: preprocess returned an observation for agent {agent_id!r}, which did "
                        f"not observe at this step. Agents that did: {', '.join(map(repr, parts))}."
                    )
                parts[agent_id].set_observations(new_data=observation, at_indices=-1)
        return batch


def _takes_two(function: Any) -> bool:
    kinds = inspect.Parameter
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        return True
    return sum(p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) for p in parameters) > 1


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
