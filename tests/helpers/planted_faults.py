"""Faults that mix things up on the way from an observation to its action, to see whether anybody notices.

Each is ``plant(fault, monkeypatch)``; those whose name begins with ``items_`` are in the item forms of the pieces.
"""

from __future__ import annotations

import sys

import numpy as np

from marl_connectors.connectors.common.agent_to_module_mapping import MAPPING, AgentToModuleMapping
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_actions
from marl_connectors.connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.env_runners.lane_group import LaneGroup, picker
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.trees import leaves, tree_map


def after(monkeypatch, cls, name, spoil):
    """Has ``spoil(self, result, arguments)`` look after a method; what it gives, if anything, is the result."""
    method = getattr(cls, name)

    def spoiled(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        changed = spoil(self, result, kwargs or args)
        return result if changed is None else changed

    monkeypatch.setattr(cls, name, spoiled)


def everywhere(monkeypatch, function, spoiled):
    """Replaces a function in all modules of the library that have it."""
    name, library = function.__name__, [m for m in sys.modules if m.startswith("marl_connectors.")]
    for module in [sys.modules[m] for m in library if vars(sys.modules[m]).get(name) is function]:
        monkeypatch.setattr(module, name, spoiled)


class Fault:
    """Counts in ``hits`` how often something was really changed."""

    def __init__(self):
        self.hits = 0

    def swap(self, values, i, j):
        """Rows of arrays (of a tree of them) that differ."""
        for leaf in leaves(values):
            kept = leaf[i].copy()
            self.hits += not np.array_equal(kept, leaf[j])
            leaf[i], leaf[j] = leaf[j].copy(), kept


def two_rows_of_a_module(fault, monkeypatch):
    def spoil(piece, _, arguments):
        columns = arguments[0]
        for begin, end in zip(columns.splits, columns.splits[1:], strict=False):
            if end - begin > 1:
                columns["actions"] = columns["actions"].copy()
                fault.swap(columns["actions"], begin, begin + 1)
                return

    after(monkeypatch, TensorToNumpy, "columns", spoil)


def two_agents_of_different_modules(fault, monkeypatch):
    def spoil(piece, _, arguments):
        columns = arguments[0]
        if len(columns.module_ids) > 1:
            columns["actions"] = columns["actions"].copy()
            fault.swap(columns["actions"], columns.splits[1] - 1, columns.splits[1])

    after(monkeypatch, TensorToNumpy, "columns", spoil)


def the_outputs_of_two_modules(fault, monkeypatch):
    def spoil(piece, _, arguments):
        columns, splits = arguments[0], arguments[0].splits
        if len(splits) > 2 and splits[1] == splits[2] - splits[1]:
            for name in list(columns):
                columns[name] = columns[name].copy()
                fault.swap(columns[name], slice(0, splits[1]), slice(splits[1], splits[2]))

    after(monkeypatch, TensorToNumpy, "columns", spoil)


def actions_one_lane_further(fault, monkeypatch):

    def spoiled(given):
        actions = env_actions(given)
        fault.hits += len(actions) > 1
        return actions[1:] + actions[:1]

    everywhere(monkeypatch, env_actions, spoiled)


def rewards_one_lane_further(fault, monkeypatch):
    credit = EpisodeTracker._credit

    def spoiled(tracker, group, rewards, result):
        fault.hits += len(rewards) > 1
        return credit(tracker, group, [*rewards[1:], *rewards[:1]], result)

    monkeypatch.setattr(EpisodeTracker, "_credit", spoiled)


def positions_one_lane_off(fault, monkeypatch):
    def spoil(group, _, arguments):
        if len(group.lanes) > 1:
            fault.hits += 1
            numbers = np.arange(group.rollout.num_lanes) if group.numbers is None else group.numbers
            group.numbers = np.roll(numbers, 1)
            group.locate()

    after(monkeypatch, LaneGroup, "select", spoil)


def lanes_in_another_order_than_their_rows(fault, monkeypatch):
    def spoil(group, _, arguments):
        if len(group.lanes) > 1:
            fault.hits += 1
            group.places = group.places[::-1]

    after(monkeypatch, LaneGroup, "select", spoil)


def the_order_from_before_an_agent_left(fault, monkeypatch):
    remembered = {}

    def spoiled(order, length):
        known = remembered.setdefault((len(order), length), list(order))
        fault.hits += known != list(order)
        return picker(known, length)

    everywhere(monkeypatch, picker, spoiled)


def splits_from_before_an_agent_left(fault, monkeypatch):
    remembered = {}

    def spoil(group, _, arguments):
        rows = group.rows
        known = remembered.setdefault((group.index, len(rows)), (rows.module_ids, rows.splits))
        fault.hits += known != (rows.module_ids, rows.splits)
        rows.module_ids, rows.splits = known

    after(monkeypatch, LaneGroup, "select", spoil)


def the_mapping_of_a_former_episode(fault, monkeypatch):
    ask, remembered = MultiAgentEpisode.module_for, {}

    def spoiled(episode, agent_id):
        answered = ask(episode, agent_id)
        known = remembered.setdefault(agent_id, answered)
        fault.hits += known != answered
        return known

    monkeypatch.setattr(MultiAgentEpisode, "module_for", spoiled)


def observations_swapped_at_a_cut(fault, monkeypatch):
    def spoil(rollout, following, arguments):
        if following.num_lanes > 1:
            tree_map(lambda leaf: fault.swap(leaf, *following.cursor[:2].tolist()), following.columns["obs"])

    after(monkeypatch, Rollout, "continued", spoil)


def an_action_recorded_a_row_early(fault, monkeypatch):
    record = Rollout.record

    def spoiled(rollout, positions, outputs):
        at = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        if len(at) and at.min() >= rollout.num_lanes:
            fault.hits += 1
            at = at - rollout.num_lanes
        record(rollout, at, outputs)

    monkeypatch.setattr(Rollout, "record", spoiled)


def items_of_a_module_backwards(fault, monkeypatch):
    def spoil(piece, by_module, arguments):
        for columns in by_module.values():
            fault.hits += len(columns["obs"]) > 1
            columns["obs"].reverse()

    after(monkeypatch, AgentToModuleMapping, "__call__", spoil)


def items_batched_backwards(fault, monkeypatch):
    def spoil(piece, by_module, arguments):
        for columns in by_module.values():
            columns["obs"] = tree_map(lambda leaf: leaf[::-1].copy(), columns["obs"])
            fault.hits += len(leaves(columns["obs"])[0]) > 1

    after(monkeypatch, BatchIndividualItems, "__call__", spoil)


def items_unbatched_one_further(fault, monkeypatch):
    def spoil(piece, by_module, arguments):
        for columns in by_module.values():
            fault.hits += len(columns["actions"]) > 1
            columns["actions"] = columns["actions"][1:] + columns["actions"][:1]

    after(monkeypatch, UnBatchToIndividualItems, "__call__", spoil)


def items_in_the_order_from_before_an_agent_left(fault, monkeypatch):
    unmap, remembered = ModuleToAgentUnmapping.__call__, {}

    def spoiled(piece, *, batch, shared_data, **kwargs):
        mapping = shared_data[MAPPING]
        for own_id, keys in mapping.items():
            known = remembered.setdefault((own_id, len(keys), frozenset(keys)), keys[::-1])
            fault.hits += known != keys
            mapping[own_id] = known
        return unmap(piece, batch=batch, shared_data=shared_data, **kwargs)

    monkeypatch.setattr(ModuleToAgentUnmapping, "__call__", spoiled)


def items_of_two_agents_of_different_modules(fault, monkeypatch):
    def spoil(piece, by_column, arguments):
        by_key = by_column["actions"]
        for key in by_key:
            for other in by_key:
                if key[2] != other[2] and np.shape(by_key[key][0]) == np.shape(by_key[other][0]):
                    fault.hits += 1
                    by_key[key], by_key[other] = by_key[other], by_key[key]
                    return

    after(monkeypatch, ModuleToAgentUnmapping, "__call__", spoil)


FAULTS = {
    fault.__name__: fault
    for fault in (
        two_rows_of_a_module,
        two_agents_of_different_modules,
        the_outputs_of_two_modules,
        actions_one_lane_further,
        rewards_one_lane_further,
        positions_one_lane_off,
        lanes_in_another_order_than_their_rows,
        the_order_from_before_an_agent_left,
        splits_from_before_an_agent_left,
        the_mapping_of_a_former_episode,
        observations_swapped_at_a_cut,
        an_action_recorded_a_row_early,
        items_of_a_module_backwards,
        items_batched_backwards,
        items_unbatched_one_further,
        items_in_the_order_from_before_an_agent_left,
        items_of_two_agents_of_different_modules,
    )
}
