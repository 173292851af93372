"""Turns batches of actions into lists for the environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key, unstack
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode


class ListifyDataForVectorEnv(ConnectorV2):
    """Turns ``{column: {key: [item]}}`` into ``{column: [x, ...]}``, with one ``x`` for each episode's sub-environment.

    ``x`` is the item of a SingleAgentEpisode, or ``{agent_id: item}`` for a MultiAgentEpisode. In columns it does
    nothing, since the runner reads the rows. Reads and writes all columns. Keeps no state.
    """

    belongs_in = (MODULE_TO_ENV,)

    nothing_on_columns = True

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Groups the items by sub-environment."""
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
    """Returns the actions for the environments, ``[B, ...]``: ``actions_for_env`` if present, else ``actions``."""
    actions = columns.get(Columns.ACTIONS_FOR_ENV)
    return columns[Columns.ACTIONS] if actions is None else actions


def env_actions(actions: Any) -> list:
    """Splits ``[B, ...]`` actions into a list of Python numbers, arrays or trees."""
    if isinstance(actions, (dict, tuple)):
        return unstack(actions)
    return actions.tolist() if actions.ndim == 1 else list(actions)
