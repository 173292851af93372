"""Merges the states of env runners into the state of one runner, and divides a state for several runners.

A runner has a contiguous range of the run's sub-environments. ``merged_runner_state`` returns the state that one runner
with the sub-environments of several would have returned, and ``divided_runner_state`` does the reverse, so that a
checkpoint does not depend on the number of env runners.

The merged state equals the state of one runner to the last bit, with these exceptions:

* Sums of floats that pieces and callbacks log depend on the order of the values. Moving averages and the newest values
  depend on it, too, and the merged ones are approximations.
* A runner that remembers as many agents as it may (``REMEMBERED_AGENTS``) counts only the steps of these.
* A column that some agents of a group lack is marked as given in the rows that have it. One runner may have zeros in
  the rows of these agents instead, for example if their actions were random, so that no module output anything.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import same_state
from marl_connectors.env_runners.lane_table import LaneTable, id_key
from marl_connectors.environments.rules.env_failures import FailureCounts
from marl_connectors.episodes.items import alike, kind
from marl_connectors.errors import CheckpointError, ConnectorError
from marl_connectors.metrics import merged_metrics
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.trees import leaves, same_structure, tree_map
from marl_connectors.typing import AgentID, Tree

_OF_ALL_AGENTS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T, Columns.ENV_STATE)
State = Mapping[str, Any]
_SortKey = Callable[[Mapping[str, Any]], Any]


def merged_runner_state(
    states: Sequence[State],
    *,
    agent_spaces: Callable[[AgentID], tuple[Space, Space]],
    rl_module: MultiRLModule,
    env_to_module: ConnectorPipelineV2,
    module_to_env: ConnectorPipelineV2,
) -> dict[str, Any]:
    """Merges the states of env runners.

    The ongoing episodes are kept if all runners have kept theirs.

    Args:
        states: The state of each runner (``EnvRunner.get_state``), in the order of their sub-environments. At least
            one.
        agent_spaces: Returns an agent's observation space and action space.
        rl_module: The modules of the runners.
        env_to_module: The env-to-module pipeline of a runner. Its pieces merge the states that differ.
        module_to_env: The module-to-env pipeline of a runner.

    Returns:
        The state for a runner with all these sub-environments. It may share arrays with ``states``.

    Raises:
        CheckpointError: If the states are not of runners of one run.
        ConnectorError: If the states of a piece differ, and its class does not merge them; or if pieces share different
            data in ``shared_data``.
    """
    if len({state["seed"] for state in states}) != 1:
        seeds = [state["seed"] for state in states]
        raise CheckpointError(f"env runners: their states have the seeds {seeds}. Merge the states of one run.")
    offsets = [0, *accumulate(len(state["episode_numbers"]) for state in states)]
    keeps = all(state["episodes"] is not None for state in states)
    episodes = batch = None
    if keeps:
        episodes, batch = _merged_episodes(states, offsets, LaneTable(0, agent_spaces, rl_module, 0), rl_module)
    before = [state["before_batch"] for state in states]
    return {
        "seed": states[0]["seed"],
        "num_env_steps": sum(state["num_env_steps"] for state in states),
        "num_agent_steps": sum(state["num_agent_steps"] for state in states),
        "noise_step": max(state["noise_step"] for state in states),
        "env_to_module": _merged_pieces(env_to_module, [state["env_to_module"] for state in states]),
        "module_to_env": _merged_pieces(module_to_env, [state["module_to_env"] for state in states]),
        "episodes": episodes,
        "episodes_too_long": not keeps and any(s["episodes"] is not None or s["episodes_too_long"] for s in states),
        "batch": batch,
        "exploring": states[0]["exploring"],
        "before_batch": None if None in before else _merged_before(env_to_module, before),
        **_merged_logs(states),
        **_merged_counts(states, offsets),
        "episode_numbers": [number for state in states for number in state["episode_numbers"]],
    }


def divided_runner_state(state: State, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Divides the state of an env runner among several.

    Each runner gets the episodes of its sub-environments, and a copy of the pieces' states. The first one gets all
    counts and logged values that belong to no sub-environment. Merging the states results in the same state again.

    Args:
        state: The state of a runner with all sub-environments (``EnvRunner.get_state`` or ``merged_runner_state``).
        sizes: The number of sub-environments of each runner, in their order. Each is at least 1.

    Returns:
        A state for each runner.

    Raises:
        CheckpointError: If the state has another number of sub-environments than ``sizes``.
    """
    num_envs = len(state["episode_numbers"])
    if sum(sizes) != num_envs or min(sizes, default=0) < 1:
        raise CheckpointError(
            f"env runners: the state has {num_envs} sub-environments, which cannot be divided into {list(sizes)}. Use "
            f"numbers of 1 or more that add up to {num_envs}."
        )
    return [_share_of(state, begin, end) for begin, end in pairwise([0, *accumulate(sizes)])]


def _share_of(state: State, begin: int, end: int) -> dict[str, Any]:
    """Returns the state for a runner with the sub-environments ``begin:end`` of a state."""
    is_first = begin == 0
    episodes = batch = None
    if state["episodes"] is not None:
        lanes = [lane for lane in state["episodes"]["lanes"] if begin <= lane["env_index"] < end]
        groups = list(range(len(state["episodes"]["groups"])))
        part = _Part(state, lanes, -begin, dict(zip(groups, groups, strict=True)))
        members = [group["members"] for group in state["episodes"]["groups"]]
        episodes, batch = _joined([part], members, lambda lane: lane["row"])
        episodes = {"copies": state["episodes"]["copies"][begin:end], **episodes}
    before = state["before_batch"]
    finished = [(at, own) for at, own in _finished(state) if begin <= at[2] < end]
    none = {field.name: 0 for field in dataclasses.fields(FailureCounts)}
    return {
        "seed": state["seed"],
        "num_env_steps": state["num_env_steps"] if is_first else 0,
        "num_agent_steps": state["num_agent_steps"] if is_first else 0,
        "noise_step": state["noise_step"],
        "env_to_module": copy.deepcopy(state["env_to_module"]),
        "module_to_env": copy.deepcopy(state["module_to_env"]),
        "episodes": episodes,
        "episodes_too_long": state["episodes_too_long"],
        "batch": batch,
        "exploring": state["exploring"],
        "before_batch": None
        if before is None
        else {"pieces": copy.deepcopy(before["pieces"]), "metrics": before["metrics"] if is_first else []},
        "metrics": {name: own if is_first else [] for name, own in state["metrics"].items()},
        "callback_metrics": state["callback_metrics"] if is_first else [],
        "counts": state["counts"] if is_first else {"env_steps": 0, "agents": [], "modules": []},
        "finished": [own for _, own in finished],
        "finished_at": [[sample, vector_step, index - begin] for (sample, vector_step, index), _ in finished],
        "num_samples": state["num_samples"],
        "uncredited_reward": state["uncredited_reward"][begin:end],
        "observations_out_of_bounds": state["observations_out_of_bounds"] if is_first else 0,
        "lost": none | (state["lost"] if is_first else {}),
        "episode_numbers": state["episode_numbers"][begin:end],
    }


def without_episodes(state: State) -> dict[str, Any]:
    """Returns the state of a runner without the ongoing episodes, for a run that begins new ones."""
    return {**state, "episodes": None, "episodes_too_long": False, "batch": None, "before_batch": None}


# Counts and states of pieces.


def _finished(state: State) -> list[tuple[tuple[int, int, int], Any]]:
    return list(zip(map(tuple, state["finished_at"]), state["finished"], strict=True))


def _merged_counts(states: Sequence[State], offsets: Sequence[int]) -> dict[str, Any]:
    agents, modules, lost = Counter(), Counter(), Counter(dataclasses.asdict(FailureCounts()))
    for state in states:
        agents.update(dict(state["counts"]["agents"]))
        modules.update(dict(state["counts"]["modules"]))
        lost.update(state["lost"])
    finished = [
        ((sample, vector_step, env_index + offset), own)
        for state, offset in zip(states, offsets, strict=False)
        for (sample, vector_step, env_index), own in _finished(state)
    ]
    finished.sort(key=itemgetter(0))
    return {
        "counts": {
            "env_steps": sum(state["counts"]["env_steps"] for state in states),
            "agents": [[agent_id, agents[agent_id]] for agent_id in sorted(agents, key=id_key)],
            "modules": [[module_id, steps] for module_id, steps in sorted(modules.items())],
        },
        "finished": [own for _, own in finished],
        "finished_at": [list(at) for at, _ in finished],
        "num_samples": max(state["num_samples"] for state in states),
        "uncredited_reward": [reward for state in states for reward in state["uncredited_reward"]],
        "observations_out_of_bounds": sum(state["observations_out_of_bounds"] for state in states),
        "lost": dict(lost),
    }


def _merged_logs(states: Sequence[State]) -> dict[str, Any]:
    names = ("env_to_module", "module_to_env")
    return {
        "metrics": {n: merged_metrics([state.get("metrics", {}).get(n, []) for state in states]) for n in names},
        "callback_metrics": merged_metrics([state.get("callback_metrics", []) for state in states]),
    }


def _merged_before(pipeline: ConnectorPipelineV2, states: Sequence[State]) -> dict[str, Any]:
    """Merges what pieces and metrics were before the forward batches were computed."""
    pieces = [state["pieces"] for state in states]
    are_alike = all(same_state(pieces[0], own) for own in pieces[1:])  # maybe from before pieces were added
    return {
        "pieces": pieces[0] if are_alike else _merged_pieces(pipeline, pieces),
        "metrics": merged_metrics([state["metrics"] for state in states]),
    }


def _merged_pieces(pipeline: ConnectorPipelineV2, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges the states of a pipeline's pieces. States that are equal stay as they are."""
    if any(list(state) != pipeline.names() for state in states):
        raise CheckpointError(
            f"env runners: their states have the pieces {[list(state) for state in states]}, but the pipeline has "
            f"{pipeline.names()}. Build it with the same connectors."
        )
    merged = {}
    for name, piece in zip(pipeline.names(), pipeline.connectors, strict=True):
        own = [state[name] for state in states]
        if all(same_state(own[0], other) for other in own[1:]):
            merged[name] = own[0]
        else:
            is_pipeline = isinstance(piece, ConnectorPipelineV2)
            merged[name] = _merged_pieces(piece, own) if is_pipeline else piece.merge_states(own)
    return merged


# Ongoing episodes.


class _Part(NamedTuple):
    """The part of a runner's state that another state takes.

    Attributes:
        state: The runner's state.
        lanes: The lanes to take.
        shift: The number to add to the index of each sub-environment.
        groups: The index of each group to its index in the other state.
    """

    state: State
    lanes: Sequence[Mapping[str, Any]]
    shift: int
    groups: Mapping[int, int]


class _Source(NamedTuple):
    """Lanes of a group in a runner's state.

    Attributes:
        part: The part with the group.
        group: The index of the group in the state of the part.
        lanes: The lanes to take.
        places: The index of each of these lanes in the other state.
    """

    part: _Part
    group: int
    lanes: list[Mapping[str, Any]]
    places: list[int]


def _merged_episodes(
    states: Sequence[State], offsets: Sequence[int], table: LaneTable, rl_module: MultiRLModule
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Merges the ongoing episodes and the forward batches of runners.

    Args:
        states: The states of the runners.
        offsets: The number of sub-environments before each runner's first.
        table: A table without lanes, in which to look for the groups.
        rl_module: The modules.
    """
    found: list[dict[int, int]] = []
    known: dict[int, list[Any]] = {}
    for state in states:
        found.append({})
        used = {lane["group"] for lane in state["episodes"]["lanes"]}
        for index, group in enumerate(state["episodes"]["groups"]):
            agent_id, module_id, is_over = group["members"]
            if not is_over:
                own = table.group_of(agent_id, module_id).index
            elif index in used:
                own = table.add_group(agent_id, None, is_over=True).index
            else:
                continue
            found[-1][index] = own
            other = known.setdefault(own, [agent_id, module_id, is_over])
            other[0] = min(other[0], agent_id, key=id_key)
    order = sorted(known, key=lambda index: table.groups[index].sort_key)
    place = {own: i for i, own in enumerate(order)}
    parts = [
        _Part(state, state["episodes"]["lanes"], offset, {index: place[own] for index, own in groups.items()})
        for state, offset, groups in zip(states, offsets, found, strict=False)
    ]
    modules = {module_id: i for i, module_id in enumerate(rl_module)}
    episodes, batch = _joined(
        parts,
        [known[own] for own in order],
        lambda lane: (modules.get(lane["module_id"], -1), lane["env_index"]),
    )
    return {"copies": [own for state in states for own in state["episodes"]["copies"]], **episodes}, batch


def _joined(
    parts: Sequence[_Part], members: Sequence[Any], sort_key: _SortKey
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Joins the lanes of several states, group by group.

    Args:
        parts: The parts, in the order of their sub-environments.
        members: The ``members`` of each group.
        sort_key: Returns the key that sorts the lanes of a group. Lanes with equal keys keep their order.

    Returns:
        ``observed``, ``groups`` and ``lanes`` of the state of episodes, and the state of the forward batch.
    """
    lanes: list[dict[str, Any]] = []
    keys: list[Any] = []
    sources: list[list[_Source]] = [[] for _ in members]
    for part in parts:
        own = {index: _Source(part, index, [], []) for index in part.groups}
        for lane in part.lanes:
            own[lane["group"]].lanes.append(lane)
            own[lane["group"]].places.append(len(lanes))
            env_index = lane["env_index"] + part.shift
            lanes.append({**lane, "group": part.groups[lane["group"]], "env_index": env_index})
            keys.append(sort_key(lanes[-1]))
        for index, source in own.items():
            sources[part.groups[index]].append(source)
    orders = []
    for of_group in sources:
        places = [place for source in of_group for place in source.places]
        order = sorted(range(len(places)), key=lambda i: keys[places[i]])
        for row, i in enumerate(order):
            lanes[places[i]]["row"] = lanes[places[i]]["number"] = row
        orders.append(np.array(order, np.int64))
    joined = list(zip(sources, orders, strict=True))
    groups = [
        {"members": own, "num_lanes": len(order), "rollout": _joined_rollout(of_group, order)}
        for own, (of_group, order) in zip(members, joined, strict=True)
    ]
    observed = None
    if all(part.state["episodes"]["observed"] is not None for part in parts):
        observed = [_joined_observed(*own) for own in joined]
    return {"observed": observed, "groups": groups, "lanes": lanes}, _joined_batch(parts, joined)


def _joined_observed(sources: Sequence[_Source], order: np.ndarray) -> Tree:
    rows = [[lane["row"] for lane in source.lanes] for source in sources]
    columns = [source.part.state["episodes"]["observed"][source.group] for source in sources]
    taken = [tree_map(lambda leaf, at=at: leaf[at], column) for column, at in zip(columns, rows, strict=True)]
    return _concatenated(taken, order, Columns.OBS, axis=0)


def _joined_batch(
    parts: Sequence[_Part], groups: Sequence[tuple[Sequence[_Source], np.ndarray]]
) -> dict[str, Any] | None:
    """Joins forward batches. None if one of them is unknown, or they have different columns."""
    batches = [part.state["batch"] for part in parts]
    if None in batches:
        return None
    if not all(same_state(batches[0]["shared_data"], batch["shared_data"]) for batch in batches[1:]):
        raise ConnectorError(
            f"env runners: their pieces share different data in shared_data ({sorted(batches[0]['shared_data'])}), "
            f"which cannot be merged. Keep such data in the state of a piece that overrides merge_states."
        )
    shared_data = copy.deepcopy(batches[0]["shared_data"])
    joined = {"phase": batches[0]["phase"], "groups": [], "tensors": [], "shared_data": shared_data}
    if any(part.state["before_batch"] is None for part in parts):
        return joined
    for sources, order in groups:
        lanes = [lane for source in sources for lane in source.lanes]
        acting = [i for i in order.tolist() if not lanes[i]["waits"]]
        if not acting:
            continue
        found = [own for source in sources if (own := _batch_rows(source)) is not None]
        names, tensors = list(found[0][0]), found[0][1]
        if any(set(columns) != set(names) for columns, _ in found):
            return None
        place = {i: place for place, i in enumerate(i for i, lane in enumerate(lanes) if not lane["waits"])}
        rows = np.array([place[i] for i in acting])
        if not all(alike(found[0][0][name], columns[name]) for columns, _ in found for name in names):
            return None
        joined["groups"].append({n: _concatenated([own[n] for own, _ in found], rows, n, axis=0) for n in names})
        joined["tensors"].append(tensors)
    return joined


def _batch_rows(source: _Source) -> tuple[dict[str, Tree], list[bool]] | None:
    """Returns the rows of the lanes that act in a forward batch, and which of its columns are tensors."""
    taken = [lane["row"] for lane in source.lanes if not lane["waits"]]
    if not taken:
        return None
    acting: dict[int, list[int]] = {}
    for lane in source.part.state["episodes"]["lanes"]:
        if not lane["waits"]:
            acting.setdefault(lane["group"], []).append(lane["row"])
    batch, index = source.part.state["batch"], sorted(acting).index(source.group)
    at = np.searchsorted(sorted(acting[source.group]), taken)
    columns = {name: tree_map(lambda leaf: leaf[at], column) for name, column in batch["groups"][index].items()}
    return columns, batch["tensors"][index]


# Rollouts.


class _Lanes:
    """The rows of some lanes of a rollout's state.

    Attributes:
        state: The state of the rollout.
        count: The number of the lanes.
        rows: The number of rows of each lane.
        acted: ``[rows, count]`` bool, whether the agent has acted on each row.
    """

    def __init__(self, source: _Source):
        group = source.part.state["episodes"]["groups"][source.group]
        self.state: Mapping[str, Any] = group["rollout"]
        self._num_lanes: int = group["num_lanes"]
        self._numbers = [lane["number"] for lane in source.lanes]
        self.count = len(self._numbers)
        self.rows = len(self.state["columns"][Columns.T]) // self._num_lanes if self.count else 0
        self.acted = self.of(self.state["columns"][Columns.T], self.rows) >= 0
        if self.rows:
            self.acted[-1] = [lane["waits"] for lane in source.lanes]

    def of(self, column: Tree, rows: int) -> Tree:
        """Returns the rows of the lanes, ``[rows, count, ...]``."""
        if not self.count:
            return tree_map(lambda leaf: np.zeros((rows, 0, *leaf.shape[1:]), leaf.dtype), column)
        lanes, numbers = self._num_lanes, self._numbers
        return tree_map(lambda leaf: leaf.reshape(rows, lanes, *leaf.shape[1:])[:, numbers], column)

    def none(self, like: Tree, rows: int) -> Tree:
        """Returns zeros in the form of ``of(like)``."""
        return tree_map(lambda leaf: np.zeros((rows, self.count, *leaf.shape[1:]), leaf.dtype), like)


def _joined_rollout(sources: Sequence[_Source], order: np.ndarray) -> dict[str, Any]:
    """Joins the lanes of several rollouts.

    Args:
        sources: The lanes.
        order: The places of the lanes, in their new order, among the lanes of all sources.
    """
    parts = [_Lanes(source) for source in sources]
    heights = {part.rows for part in parts if part.count}
    if len(heights) > 1:
        raise CheckpointError(
            f"env runners: their states have {sorted(heights)} rows for each agent. Merge states of runners with the "
            f"same episode_lookback_horizon."
        )
    rows = heights.pop() if heights else 0

    def join(values: Sequence[Tree], name: str) -> Tree:
        joined = _concatenated(values, order, name, axis=1)
        return tree_map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), joined)

    columns: dict[str, Tree] = {}
    layers: dict[str, list[Tree]] = {}
    level: dict[str, Tree] = {}
    given: dict[str, Tree] = {}
    for name in dict.fromkeys(name for part in parts for name in part.state["columns"]):
        if any(name in part.state["layers"] for part in parts):
            layers[name], level[name] = _joined_layers(parts, rows, name, join)
            columns[name] = layers[name][-1]
        else:
            like = next(part.state["columns"][name] for part in parts if name in part.state["columns"])
            columns[name] = join([_column(part, name, like, rows) for part in parts], name)
        if any(name in part.state["given"] or _lacks(part, name) for part in parts):
            given[name] = join([_given(part, name, rows) for part in parts], name)
    return {"columns": columns, "layers": layers, "level": level, "given": given}


def _column(part: _Lanes, name: str, like: Tree, rows: int) -> Tree:
    known = part.state["columns"].get(name)
    return part.none(like, rows) if known is None else part.of(known, rows)


def _lacks(part: _Lanes, name: str) -> bool:
    """Returns whether agents have acted without a column."""
    return name not in part.state["columns"] and name not in _OF_ALL_AGENTS and bool(part.acted.any())


def _given(part: _Lanes, name: str, rows: int) -> np.ndarray:
    if name in part.state["given"]:
        return part.of(part.state["given"][name], rows)
    is_known = part.acted if name in part.state["columns"] and part.count else np.zeros_like(part.acted)
    return is_known if part.count else np.zeros((rows, 0), bool)


def _joined_layers(
    parts: Sequence[_Lanes], rows: int, name: str, join: Callable[[Sequence[Tree], str], Tree]
) -> tuple[list[Tree], Tree]:
    """Joins the layers of a column. Layers of the same kind become one.

    Returns:
        The layers, and the layer of each row.
    """
    kinds: list[Tree] = []
    places: list[list[int]] = []  # for each part, the new number of each layer
    for part in parts:
        known = part.state["columns"]
        own = part.state["layers"].get(name, [known[name]] if name in known else [])
        places.append([])
        for number, layer in enumerate(own):
            first = 1 if name == Columns.OBS and number else 0  # the first one has the observations of the environment
            found = [i for i, other in enumerate(kinds) if i >= first and alike(other, layer)]
            if not kinds or not found:
                kinds.append(layer)
            places[-1].append(found[0] if kinds and found else len(kinds) - 1)
    joined = []
    for place, like in enumerate(kinds):
        values = []
        for part, own in zip(parts, places, strict=True):
            layers = part.state["layers"].get(name, [part.state["columns"].get(name)])
            values.append(part.of(layers[own.index(place)], rows) if place in own else part.none(like, rows))
        joined.append(join(values, name))
    levels = []
    for part, own in zip(parts, places, strict=True):
        former = part.state["level"].get(name)
        numbers = np.array(own or [0], np.int8)
        levels.append(np.full((rows, part.count), numbers[0]) if former is None else numbers[part.of(former, rows)])
    return joined, join(levels, name)


def _concatenated(values: Sequence[Tree], order: np.ndarray, name: str, axis: int) -> Tree:
    """Concatenates trees of arrays along an axis, and puts the items there in an order."""
    for other in values[1:]:
        shapes = [[(leaf.shape[axis + 1 :], leaf.dtype.kind) for leaf in leaves(own)] for own in (values[0], other)]
        if not same_structure(values[0], other) or shapes[0] != shapes[1]:
            raise CheckpointError(
                f"env runners: their columns {name!r} are {kind(values[0])} and {kind(other)}, which do not fit in one "
                f"column."
            )
    return tree_map(lambda *own: np.concatenate(own, axis=axis).take(order, axis=axis), *values)
