"""Stacks lists of items to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER
from marl_connectors.episodes.batch import Phase
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.rl_module.states import is_single
from marl_connectors.typing import DEFAULT_MODULE_ID


class BatchIndividualItems(ConnectorV2):
    """Stacks lists of items to arrays with a batch axis. Does nothing for pieces on columns.

    In single-agent use there is no AgentToModuleMapping, so this piece also puts the columns under
    ``DEFAULT_MODULE_ID``; or leaves them as they are, if it is called with a single RLModule outside of a learner
    pipeline. Reads and writes all columns. Keeps no state.

    Args:
        multi_agent: Whether an AgentToModuleMapping comes before it.
    """

    belongs_in = (ENV_TO_MODULE, LEARNER)

    nothing_on_columns = True
    phase_after = Phase.ARRAYS
    multi_agent: bool = argument(default=False)

    def __call__(
        self, *, batch: dict[str, Any], episodes: Sequence[Any] = (), rl_module: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Stacks the items; in single-agent use, in the order of the episodes."""
        if self.multi_agent:
            return {module_id: _stacked(columns) for module_id, columns in batch.items()}
        keys = dict.fromkeys(item_key(episode) for episode in self.single_agent_episode_iterator(episodes))
        flat = {}
        for column, by_key in batch.items():
            if isinstance(by_key, dict):
                in_order = [key for key in keys if key in by_key] + [key for key in by_key if key not in keys]
                flat[column] = [item for key in in_order for item in by_key[key]]
            else:
                flat[column] = by_key
        stacked = _stacked(flat)
        is_of_one = is_single(rl_module) and not self.in_learner_pipeline
        return stacked if is_of_one else {DEFAULT_MODULE_ID: stacked}


def _stacked(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: _batched(name, items) if isinstance(items, list) else items for name, items in columns.items()}


def _batched(name: str, items: list) -> Any:
    return InfoColumn(items) if name == Columns.INFOS else spaces.stack(items)
