"""Makes arrays of lists of items."""

from __future__ import annotations

from typing import Any

from marl_connectors import spaces
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.episodes.column_batch import Phase
from marl_connectors.typing import DEFAULT_MODULE_ID


class BatchIndividualItems(ConnectorV2):
    """Lists of items become arrays whose first axis is the batch. In columns they are arrays from the start.

    In single-agent use, where no AgentToModuleMapping comes before, the columns are also put under
    ``DEFAULT_MODULE_ID``. Keeps no state.
    """

    phase_after = Phase.ARRAYS

    def __init__(self, input_observation_space=None, input_action_space=None, *, multi_agent: bool = False):
        super().__init__(input_observation_space, input_action_space)
        self._multi_agent = multi_agent

    def on_columns(self, **kwargs: Any) -> None:
        """Columns are arrays already."""

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Stacks the items."""
        if self._multi_agent:
            return {module_id: _stacked(columns) for module_id, columns in batch.items()}
        flat = {
            column: [item for items in by_key.values() for item in items] if isinstance(by_key, dict) else by_key
            for column, by_key in batch.items()
        }
        return {DEFAULT_MODULE_ID: _stacked(flat)}


def _stacked(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: spaces.stack(items) if isinstance(items, list) else items for name, items in columns.items()}
