"""Regroups the agents' data by the modules that they are mapped to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.connectors.item_batch import MAPPING as MAPPING
from marl_connectors.connectors.row_memory import RowMemory
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.errors import MappingError, did_you_mean
from marl_connectors.typing import AgentID, EpisodeID, ItemKey, ModuleID


class AgentToModuleMapping(InBothPipelines):
    """Turns ``{column: {(episode, agent, module): items}}`` into ``{module: {column: items}}``.

    On columns, it only checks that the modules exist, since rows are in module order from the start. Reads and writes
    all columns. Keeps no state.

    Raises:
        MappingError: If an agent is mapped to a module that does not exist.

    Args:
        rl_module_specs: The modules that exist, for calls with ``rl_module=None``.
        agent_to_module_mapping_fn: ``fn(agent_id, episode)`` that returns the module of items whose key has none.
            The episodes of env runners know the module of each agent.
        as_learner_connector: RLlib's argument, without an effect. It must not contradict the pipeline.
    """

    phase_after = Phase.MODULE_ITEMS
    rl_module_specs: Mapping[ModuleID, Any] | None = argument(default=None)
    agent_to_module_mapping_fn: Callable[..., ModuleID] | None = argument(default=None)

    def begin(self) -> None:
        super().begin()
        self._checked = RowMemory()

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Checks that the modules exist, once for each set of rows."""
        if self._checked.get(c.rows) is c.rl_module:
            return
        for module_id in c.module_ids:
            if module_id not in c.rl_module:
                episodes = c.rows.episodes
                agent_id = next(e.agent_id for e in episodes if e.module_id == module_id)
                raise unknown_module(agent_id, module_id, c.rl_module)
        self._checked[c.rows] = c.rl_module

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Moves the items, and stores their order in ``shared_data`` for ModuleToAgentUnmapping."""
        known: Any = self.rl_module_specs if rl_module is None else rl_module
        order = {module_id: i for i, module_id in enumerate(known.keys())}
        if self.agent_to_module_mapping_fn is not None:
            by_id = {episode.id_: episode for episode in episodes}
            batch = {c: {self._mapped(key, by_id): i for key, i in by_key.items()} for c, by_key in batch.items()}
        keys = list(dict.fromkeys(key for by_key in batch.values() for key in by_key))  # one order for all columns
        for _, agent_id, module_id in keys:
            if module_id not in order:
                raise unknown_module(agent_id, module_id, known)
        by_module: dict[ModuleID, dict[str, list]] = {}
        mapping: dict[ModuleID, list] = {}
        for key in sorted(keys, key=lambda key: order[key[2]]):
            mapping.setdefault(key[2], []).append(key)
            columns = by_module.setdefault(key[2], {})
            for column, by_key in batch.items():
                if key in by_key:
                    columns.setdefault(column, []).extend(by_key[key])
        if shared_data is not None:
            shared_data[MAPPING] = mapping
        return by_module

    def _mapped(self, key: ItemKey, episodes: Mapping[EpisodeID, Any]) -> ItemKey:
        """Returns the key of items with a module id."""
        episode_id, agent_id, module_id = key
        if module_id is None and self.agent_to_module_mapping_fn is not None:
            module_id = self.agent_to_module_mapping_fn(agent_id, episodes.get(episode_id))
        return episode_id, agent_id, module_id


def unknown_module(agent_id: AgentID, module_id: object, known: Any) -> MappingError:
    """Returns the error for an agent that is mapped to a module which does not exist."""
    hint = did_you_mean(module_id, known.keys())
    hint = f"{hint} " if hint.startswith("Did") else ""
    return MappingError(
        f"AgentToModuleMapping: agent {agent_id!r} maps to module {module_id!r}, but there is only "
        f"{', '.join(map(repr, known.keys()))}. {hint}Add {module_id!r} to policies (--modules "
        f"on the command line), or change policy_mapping_fn. For a trained policy, pass module_id=... or "
        f"policy_mapping_fn=... to load_policy."
    )
