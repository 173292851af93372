"""Hands the actions to the environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import MODULE_TO_ENV, ConnectorV2, item_key, unstack
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode


class ListifyDataForVectorEnv(ConnectorV2):
    """``{column: {key: [item]}}`` becomes ``{column: [x, ...]}`` with one ``x`` for each episode's environment.

    ``x`` is the item of a SingleAgentEpisode, and ``{agent_id: item}`` for a MultiAgentEpisode. In columns the runner
    reads the rows themselves. Keeps no state.
    """

    belongs_in = (MODULE_TO_ENV,)

    nothing_on_columns = True

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Sorts the items by environment."""
        listed: dict[str, list] = {}
        for column, by_key in batch.items():
            listed[column] = []
            for episode in episodes:
                if isinstance(episode, MultiAgentEpisode):
                    agents = episode.agent_episodes.values()
                    listed[column].append({e.agent_id: by_key[item_key(e)][0] for e in agents if item_key(e) in by_key})
                else:
                    listed[column].append(by_key[item_key(episode)][0])
        return listed


def env_action_array(columns: dict[str, Any]) -> Any:
    """``[B, ...]`` what the environments get."""
    actions = columns.get(Columns.ACTIONS_FOR_ENV)
    return columns[Columns.ACTIONS] if actions is None else actions


def env_actions(actions: Any) -> list:
    """``[B, ...]`` actions one by one, as Python numbers or arrays."""
    if isinstance(actions, (dict, tuple)):
        return unstack(actions)
    return actions.tolist() if actions.ndim == 1 else list(actions)
