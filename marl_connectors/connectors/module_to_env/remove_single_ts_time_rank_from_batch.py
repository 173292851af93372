"""Removes the time axis of length 1 from the outputs of stateful modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.connectors.row_memory import RowMemory
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.states import are_stateful, check_state_out, member
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import ModuleID


class RemoveSingleTsTimeRankFromBatch(ConnectorV2):
    """Turns outputs ``[B, 1, ...]`` of stateful modules into ``[B, ...]``; ``state_out`` has no time axis.

    Reads and writes all columns of stateful modules; those of stateless modules stay as they are. Keeps no state.
    """

    belongs_in = (MODULE_TO_ENV,)

    def begin(self) -> None:
        super().begin()
        self._checked = RowMemory()

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Drops the second axis.

        Raises:
            ConnectorError: If a module has output no state, or a column without a time axis.
            ModuleError: If the state differs in structure, shape or dtype from the module's initial state.
        """
        if not are_stateful(type(self).__name__, c.rl_module, c.module_ids):
            return
        if Columns.STATE_OUT not in c:
            raise _no_state(c.module_ids, c)
        if self._checked.get(c.rows) is not c.rl_module:
            for module_id in c.module_ids:
                state_out = c[Columns.STATE_OUT]
                check_state_out(member(c.rl_module, module_id), module_id, state_out, c.splits[-1])
            self._checked[c.rows] = c.rl_module
        for name, column in c.items():
            if name != Columns.STATE_OUT:
                for leaf in leaves(column):
                    if leaf.ndim < 2 or leaf.shape[1] != 1:
                        raise _no_time_axis(name, c.module_ids[0], tuple(leaf.shape))
                c[name] = tree_map(lambda leaf: leaf[:, 0], column)


def _no_state(module_ids: Sequence[ModuleID | None], outputs: dict[str, Any]) -> ConnectorError:
    who = (
        f"module {module_ids[0]!r}"
        if len(module_ids) == 1
        else f"one of the modules {', '.join(map(repr, module_ids))}"
    )
    return ConnectorError(
        f"{who} has an initial state (get_initial_state), but output no 'state_out', only {sorted(outputs)}, so its "
        f"state would be lost. Return Columns.STATE_OUT from its _forward."
    )


def _no_time_axis(name: str, module_id: ModuleID | None, shape: tuple[int, ...]) -> ConnectorError:
    return ConnectorError(
        f"stateful module {module_id!r} output {name!r} with shape {shape}, expected (rows, 1, ...): its inputs have "
        f"a time axis, so its outputs need one, too (state_out excepted)."
    )
