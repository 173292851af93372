"""Which rows of the episodes of an update stand together in its train batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.packing import chunks_of, rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID


def groups_of_episodes(
    module: MultiRLModule, episodes: Sequence[Any], *, is_trained: Callable[[ModuleID], bool]
) -> list[ColumnGroup]:
    """A group without columns for the modules of each family that are trained and have steps.

    Args:
        module: The modules.
        episodes: SingleAgentEpisodes or MultiAgentEpisodes.
        is_trained: Asked once for each module.
    """
    by_module: dict[ModuleID, list[SingleAgentEpisode | AgentChunk]] = defaultdict(list)
    trained: dict[ModuleID, bool] = {}
    for chunk in chunks_of(episodes):
        module_id = chunk.module_id or DEFAULT_MODULE_ID
        if module_id not in trained:
            trained[module_id] = is_trained(module_id)
        num_steps = chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk)
        if num_steps and trained[module_id]:
            by_module[module_id].append(chunk)
    groups = []
    for family in families(module):
        present = [m for m in family if m in by_module]
        if present:
            groups.append(ColumnGroup(rows_of_episodes([e for m in present for e in by_module[m]], present)))
    return groups


def families(module: MultiRLModule) -> list[list[ModuleID]]:
    """Modules whose rows stand in one group: those of a bucket, entangled ones with like spaces, each other alone."""
    found = [list(bucket.module_ids) for bucket in module.buckets]
    entangled: dict[Hashable, list[ModuleID]] = {}
    for module_id in module.entangled_modules():
        member = module[module_id]
        entangled.setdefault((str(member.observation_space), str(member.action_space)), []).append(module_id)
    found += entangled.values()
    return found + [[m] for m in module if not any(m in family for family in found)]
