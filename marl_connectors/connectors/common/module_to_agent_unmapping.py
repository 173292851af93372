"""Regroups modules' outputs by the agents that they were computed for."""

from __future__ import annotations

from typing import Any

from marl_connectors.connectors.common.agent_to_module_mapping import MAPPING
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.episodes.batch import Phase
from marl_connectors.errors import ConnectorError


class ModuleToAgentUnmapping(ConnectorV2):
    """Turns ``{module: {column: items}}`` into ``{column: {(episode, agent, module): [item]}}``.

    In columns nothing moves, since row ``i`` of the output belongs to row ``i`` of the input. Reads and writes all
    columns. Keeps no state.
    """

    belongs_in = (MODULE_TO_ENV,)

    nothing_on_columns = True
    phase_after = Phase.ITEMS

    def __call__(
        self, *, batch: dict[str, Any], shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Moves the items, in the order that AgentToModuleMapping stored in ``shared_data``.

        Raises:
            ConnectorError: If ``shared_data`` has no such order, or a module's outputs have another number of rows.
        """
        if not shared_data or MAPPING not in shared_data:
            raise ConnectorError("ModuleToAgentUnmapping: needs the shared_data that AgentToModuleMapping wrote to.")
        by_column: dict[str, dict] = {}
        for module_id, columns in batch.items():
            keys = shared_data[MAPPING][module_id]
            for column, items in columns.items():
                if len(items) != len(keys):
                    raise ConnectorError(
                        f"ModuleToAgentUnmapping: module {module_id!r} output {len(items)} rows of {column!r} for "
                        f"{len(keys)} agents."
                    )
                for key, item in zip(keys, items, strict=True):
                    by_column.setdefault(column, {})[key] = [item]
        return by_column
