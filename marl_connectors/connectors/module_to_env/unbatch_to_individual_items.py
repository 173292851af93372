"""Splits batches into items."""

from __future__ import annotations

from typing import Any

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key, unstack
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.episodes.batch import Phase
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey


class UnBatchToIndividualItems(ConnectorV2):
    """Splits arrays into lists of items. Columns stay arrays, since their rows are the items.

    In single-agent use there is no ModuleToAgentUnmapping, so this piece also puts the items under the keys of their
    episodes. Reads and writes all columns. Keeps no state.

    Args:
        multi_agent: Whether a ModuleToAgentUnmapping comes after it.
    """

    belongs_in = (MODULE_TO_ENV,)

    nothing_on_columns = True
    phase_after = Phase.MODULE_ITEMS
    multi_agent: bool = argument(default=False)

    def begin(self) -> None:
        super().begin()
        if not self.multi_agent:
            self.phase_after = Phase.ITEMS

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        """Unstacks the arrays."""
        if self.multi_agent:
            return {m: {name: unstack(column) for name, column in columns.items()} for m, columns in batch.items()}
        keys = [item_key(episode) for episode in self.single_agent_episode_iterator(episodes)]
        columns = batch.get(DEFAULT_MODULE_ID, batch)  # the outputs of a single RLModule are not sorted by module
        return {name: _by_key(column, keys) for name, column in columns.items()}


def _by_key(column: Any, keys: list[ItemKey]) -> dict[ItemKey, list]:
    """Returns a column's items under their keys, where GetActions may have put them already."""
    if isinstance(column, dict) and column.keys() == set(keys):
        return column
    return {key: [item] for key, item in zip(keys, unstack(column), strict=True)}
