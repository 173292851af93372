"""Checks the form of an Algorithm's state, which may come from a damaged or changed checkpoint.

``check_state`` is called before anything is built or changed from a state. It checks the types and ranges of all
numbers, the kinds and lengths of all arrays, and the references from one part of the state to another. It does not
check the states of connector pieces, the ``custom_data`` of users or the contents of observations: the code that reads
them does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from marl_connectors.checkpoints import is_id
from marl_connectors.columns import Columns
from marl_connectors.env_runners.run_metrics import Returns
from marl_connectors.environments.rules.env_failures import FailureCounts
from marl_connectors.episodes.action_units import ALL
from marl_connectors.episodes.batch import Phase
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError
from marl_connectors.metrics import REDUCTIONS
from marl_connectors.names import brief
from marl_connectors.offline.choices import ORDERS
from marl_connectors.offline.episode_writer import POSITION
from marl_connectors.spaces import from_json
from marl_connectors.trees import leaves
from marl_connectors.typing import DEFAULT_AGENT_ID, SHARED

Check = Callable[[Any, str], None]
"""Raises CheckpointError if a value at a place in the state is not as expected."""


def check_state(state: Any) -> None:
    """Checks the state of an Algorithm.

    Raises:
        CheckpointError: If ``Algorithm.get_state`` cannot have returned this state. Names the place of the first fault.
    """
    with taking_over("state"):
        _STATE(state, "")
        _check_modules(state)
        _check_counts(state)
        _check_episodes(state)


@contextmanager
def taking_over(part: str) -> Iterator[None]:
    """Turns any error while a part of a checkpoint is read or applied into a CheckpointError that names the part."""
    try:
        yield
    except CheckpointError:
        raise
    except MarlConnectorsError as error:
        raise CheckpointError(f"checkpoint: its {part} does not fit: {error}") from error
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(
            f"checkpoint: its {part} cannot be taken over ({what[:300]}). It is damaged, or of another version, "
            f"or does not fit the code that it names."
        ) from error


def _fault(where: str, words: str, value: Any) -> CheckpointError:
    return CheckpointError(
        f"checkpoint: it is damaged, or of another version: expected {where or 'the state'} to be {words}, but it is "
        f"{brief(value)}."
    )


# What values may be.


def _value(words: str, holds: Callable[[Any], Any]) -> Check:
    def check(value: Any, where: str) -> None:
        if not holds(value):
            raise _fault(where, words, value)

    return check


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, (float, np.floating))


_TEXT = _value("a text", lambda value: isinstance(value, str))
_UNITS = _value(f"one of {ALL}", lambda value: value in ALL)
_BOOL = _value("true or false", lambda value: isinstance(value, (bool, np.bool_)))
_NUMBER = _value("a number", lambda value: _is_number(value) and (abs(value) < 1e300 or math.isinf(value)))
_COUNT = _value("a whole number from 0", lambda value: _is_whole(value) and 0 <= value < 2**62)
_INDEX = _value("a whole number from 0 to 2³¹", lambda value: _is_whole(value) and 0 <= value < 2**31)
_SEED = _value("a whole number from 0", lambda value: _is_whole(value) and 0 <= value < 2**4096)
_ID = _value("an id", is_id)
_ANY = _value("anything", lambda value: True)
_DICT = _value("a dict", lambda value: isinstance(value, Mapping))
_LIST = _value("a list", lambda value: isinstance(value, list))


def _maybe(check: Check) -> Check:
    """Accepts None, and what ``check`` accepts."""
    return lambda value, where: None if value is None else check(value, where)


def _list_of(item: Check) -> Check:
    def check(value: Any, where: str) -> None:
        _LIST(value, where)
        for i, each in enumerate(value):
            item(each, f"{where}/{i}")

    return check


def _row(*items: Check) -> Check:
    """Accepts a list or tuple with one item for each check."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, (list, tuple)) or len(value) != len(items):
            raise _fault(where, f"a list of {len(items)}", value)
        for i, (item, each) in enumerate(zip(items, value, strict=True)):
            item(each, f"{where}/{i}")

    return check


def _map_of(item: Check, key: Check = _TEXT) -> Check:
    def check(value: Any, where: str) -> None:
        _DICT(value, where)
        for name, each in value.items():
            key(name, f"a key of {where}")
            item(each, f"{where}/{name}")

    return check


class _Record:
    """A dict with certain keys. Other keys are not checked, because a newer version may have written them.

    Attributes:
        needed: The keys that must be there.
        optional: The keys that may be missing.
    """

    def __init__(self, needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None):
        self.needed = needed
        self.optional = optional or {}

    def __call__(self, value: Any, where: str) -> None:
        _DICT(value, where)
        for name in self.needed:
            if name not in value:
                place = f"{where}/{name}".lstrip("/")
                raise CheckpointError(
                    f"checkpoint: it lacks {place!r}, so another version wrote it, or it is damaged. Use that version, "
                    f"or another checkpoint of the run."
                )
        for name, check in {**self.needed, **self.optional}.items():
            if name in value:
                check(value[name], f"{where}/{name}".lstrip("/"))


def _dtype_kind(array: Any) -> str:
    if isinstance(array, torch.Tensor):
        return "f" if array.is_floating_point() else "b" if array.dtype is torch.bool else "i"
    return array.dtype.kind


def _is_array(value: Any, kinds: str) -> bool:
    return isinstance(value, (np.ndarray, torch.Tensor)) and _dtype_kind(value) in kinds


def _array(words: str, kinds: str, num_axes: int | None = None) -> Check:
    return _value(words, lambda value: _is_array(value, kinds) and num_axes in (None, value.ndim))


_FLOATS = _array("an array of numbers", "f")
_ANY_ARRAY = _array("an array of numbers", "biuf")
_ROWS = _value("an array of numbers with an axis of rows", lambda value: _is_array(value, "biuf") and value.ndim)


def _line(words: str, kinds: str) -> Check:
    return _array(f"an array of {words} with one axis", kinds, 1)


def _tree(value: Any, where: str) -> None:
    """Accepts an array of rows, or a dict or tuple of trees."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else None
    if parts is None:
        _ROWS(value, where)
        return
    if not value:
        raise _fault(where, "an array or a tree of arrays", value)
    for name, part in parts:
        _tree(part, f"{where}/{name}")


# The parts of the state.


def _description(value: Any, where: str) -> None:
    """Accepts any description of a setting's value: config_state reads it, and raises errors for it."""


_METRIC = _Record(
    {
        "key": _list_of(_ID),
        "reduce": _value(f"one of {', '.join(REDUCTIONS)}", lambda value: value in REDUCTIONS),
        "window": _maybe(_value("a whole number from 1", lambda value: _is_whole(value) and 1 <= value < 2**31)),
        "ema_coeff": _NUMBER,
        "clear_on_reduce": _BOOL,
        "count": _COUNT,
        "total": _ANY,
        "values": _maybe(_LIST),
    }
)


def _metric(value: Any, where: str) -> None:
    _METRIC(value, where)
    if value["reduce"] not in ("item", "item_series"):
        _value("a number", _is_number)(value["total"], f"{where}/total")
        for each in value["values"] or ():
            _value("a number", _is_number)(each, f"{where}/values")
    if not value["key"] or (value["values"] is not None and bool(value["values"]) != bool(value["count"])):
        raise _fault(where, "a name, and as many values as were counted", value)
    if (value["values"] is None) != (value["window"] is None and value["reduce"] != "item_series"):
        raise _fault(f"{where}/values", "a list, where there is a window or a series, and null elsewhere", None)


_METRICS = _list_of(_metric)
_LIFE_COLUMNS = {
    "life_returns": _line("numbers", "f"),
    "truncated": _line("booleans", "b"),
    "life_steps": _line("whole numbers", "i"),
    "earlier_lives": _line("whole numbers", "i"),
    "earlier_returns": _line("numbers", "f"),
    "earlier_steps": _line("whole numbers", "i"),
}
_RETURNS = _Record({"count": _COUNT, "total": _NUMBER, "squares": _NUMBER, "lowest": _NUMBER, "highest": _NUMBER})
_EPISODE_SUMMARY = _Record(
    {
        "length": _COUNT,
        "episode_return": _NUMBER,
        "agent_ids": _list_of(_ID),
        "module_ids": _list_of(_TEXT),
        **_LIFE_COLUMNS,
        "settled": _map_of(_RETURNS),
        "any_settled_truncated": _BOOL,
        "advances": _list_of(_row(_ID, _NUMBER)),
    }
)
_JOINT_SUMMARY = _Record(
    {
        "length": _COUNT,
        "episode_return": _NUMBER,
        "is_truncated": _BOOL,
        "agent_ids": _list_of(_ID),
        "module_ids": _list_of(_TEXT),
        "returns": _line("numbers", "f"),
        "truncated": _line("booleans", "b"),
        "steps": _line("whole numbers", "i"),
    }
)


def _episode_summary(value: Any, where: str) -> None:
    _EPISODE_SUMMARY(value, where)
    _check_lengths(value, ("agent_ids", "module_ids", *_LIFE_COLUMNS), where)
    names = {field.name for field in dataclasses.fields(Returns)}
    for module_id, returns in value["settled"].items():
        if not set(returns) <= names:
            raise _fault(f"{where}/settled/{module_id}", f"a dict of {', '.join(sorted(names))}", returns)
        _COUNT(returns.get("steps", 0), f"{where}/settled/{module_id}/steps")


def _joint_summary(value: Any, where: str) -> None:
    _JOINT_SUMMARY(value, where)
    if unknown := set(value) - set(_JOINT_SUMMARY.needed):
        raise _fault(where, f"a dict without {min(unknown)}", value)
    _check_lengths(value, ("agent_ids", "module_ids", "returns", "truncated", "steps"), where)


def _summary(value: Any, where: str) -> None:
    _DICT(value, where)
    (_joint_summary if "returns" in value else _episode_summary)(value, where)


def _check_lengths(value: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    lengths = {name: len(value[name]) for name in names}
    if len(set(lengths.values())) > 1:
        raise _fault(where, f"as long in {', '.join(names)}", lengths)


def _moments(value: Any, where: str) -> None:
    """Accepts Adam's moments of one parameter, or an empty dict."""
    _DICT(value, where)
    if not value:
        return
    for name in value:
        if name not in ("step", "exp_avg", "exp_avg_sq"):
            raise _fault(f"a key of {where}", "step, exp_avg or exp_avg_sq", name)
    _Record({"step": _array("one number", "f", 0), "exp_avg": _FLOATS, "exp_avg_sq": _FLOATS})(value, where)
    if value["exp_avg"].shape != value["exp_avg_sq"].shape:
        raise _fault(f"{where}/exp_avg_sq", f"of the shape {tuple(value['exp_avg'].shape)}", value["exp_avg_sq"].shape)


_MODULE_STATES = _map_of(_map_of(_ANY_ARRAY))
_LEARNER = _Record(
    {
        "optimizers": _map_of(_Record({}, {"adam": _list_of(_moments), "registered": _map_of(_DICT)})),
        "pipeline": _map_of(_DICT),
        "seed": _SEED,
        "num_updates": _INDEX,
        "timestep": _COUNT,
    },
    {
        "frozen": _list_of(_TEXT),
        "never_updated": _list_of(_TEXT),
        "metrics": _METRICS,
        "kl_coeffs": _map_of(_NUMBER),
        "sqd_adv_norms": _map_of(_NUMBER),
        "last_target_update": _COUNT,
    },
)
_ALL_LEARNERS = _Record({"module": _MODULE_STATES}, {"learners": _map_of(_LEARNER)})


def _learners(value: Any, where: str) -> None:
    """Accepts the state of a learner, or of a LearnerSet."""
    _ALL_LEARNERS(value, where)
    if "learners" not in value:
        _LEARNER(value, where)


def _space(value: Any, where: str) -> None:
    """Accepts a space as JSON data."""
    _DICT(value, where)
    try:
        from_json(value)
    except (AssertionError, ConfigError, KeyError, TypeError, ValueError) as error:
        raise _fault(where, f"a space as JSON data ({type(error).__name__}: {error})", value) from error


_ROW_RING = _Record(
    {
        "columns": _map_of(_tree),
        "flags": _line("flags", "u"),
        "numbers": _line("whole numbers", "i"),
        "written": _line("whole numbers", "i"),
        "num_rows": _COUNT,
        "num_steps_added": _COUNT,
        "num_episodes_added": _COUNT,
        "open": _map_of(_row(_TEXT, _INDEX, _COUNT, _COUNT, _COUNT)),
        "ended": _map_of(_map_of(_row(_COUNT, _COUNT))),
        "action_units": _UNITS,
        "spaces": _map_of(_row(_space, _space)),
    },
    {"weights": _line("numbers", "f"), "greatest": _NUMBER},
)


def _row_ring(value: Any, where: str) -> None:
    """Accepts the state of a replay buffer's RowRing, whose arrays all have the rows that are in use."""
    _ROW_RING(value, where)
    written = value["written"]
    size = min(value["num_rows"], int(written.max(initial=0))) * len(written)
    rows = {"flags": value["flags"], "numbers": value["numbers"], "weights": value.get("weights", value["flags"])}
    for name, column in [*rows.items(), *((f"columns/{n}", c) for n, c in value["columns"].items())]:
        if any(len(leaf) != size for leaf in leaves(column)):
            raise _fault(f"{where}/{name}", f"{size} rows", column)
    places = [place for own in value["ended"].values() for place in own.values()]
    if any(lane >= len(written) for _, lane, *_ in value["open"].values()) or any(p[0] >= len(written) for p in places):
        raise _fault(f"{where}/open", f"of {len(written)} lanes", [*value["open"].values(), *places])


_OFF_POLICY = _Record(
    {
        "replay_buffer": _Record(
            {"num_samples": _COUNT, "num_steps_sampled": _COUNT, "seed": _SEED, "rings": _map_of(_row_ring)}
        ),
        "updates_due": _NUMBER,
    }
)


def _action_tree(value: Any, where: str) -> None:
    if value is None:
        return
    _row(_value("dict or tuple", lambda kind: kind in ("dict", "tuple")), _list_of(_row(_ID, _action_tree)))(
        value, where
    )


_SUB_ENVIRONMENT = _Record(
    {
        "number": _INDEX,
        "actions": _Record(
            {
                "counts": _line("whole numbers", "u"),
                "order": _line("whole numbers", "u"),
                "items": _list_of(_ROWS),
                "is_number": _list_of(_BOOL),
            },
            {"trees": _list_of(_action_tree)},
        ),
        "memory": _Record(
            {},
            {
                "custom_data": _DICT,
                "modules": _list_of(_row(_ID, _TEXT)),
                "ended": _list_of(_row(_ID, _ANY)),
                "any_truncated": _BOOL,
            },
        ),
        "tally": _episode_summary,
    },
    {"tasks": _row(_ANY, _ANY)},
)
_GROUP = _Record(
    {
        "members": _row(_ID, _maybe(_TEXT), _BOOL),
        "num_lanes": _INDEX,
        "rollout": _Record(
            {
                "columns": _map_of(_tree),
                "layers": _map_of(_list_of(_tree)),
                "level": _map_of(_line("whole numbers", "iu")),
                "given": _map_of(_line("booleans or whole numbers", "biu")),
            }
        ),
    }
)
_LANE = _Record(
    {
        "group": _INDEX,
        "row": _INDEX,
        "number": _INDEX,
        "env_index": _INDEX,
        "agent_id": _ID,
        "module_id": _TEXT,
        "episode_id": _TEXT,
        "ids": _row(_maybe(_ID), _maybe(_TEXT), _maybe(_TEXT)),
        "earlier_return": _NUMBER,
        "waits": _BOOL,
        "t_started": _INDEX,
        "kept": _INDEX,
        "infos": _list_of(_maybe(_DICT)),
        "custom_data": _DICT,
    },
)
_EPISODES = _Record(
    {
        "copies": _list_of(_SUB_ENVIRONMENT),
        "observed": _maybe(_list_of(_tree)),
        "groups": _list_of(_GROUP),
        "lanes": _list_of(_LANE),
    }
)
_BATCH = _Record(
    {
        "phase": _value("a phase of a batch", lambda value: value in Phase.__members__),
        "groups": _list_of(_map_of(_tree)),
        "tensors": _list_of(_list_of(_BOOL)),
        "shared_data": _DICT,
    }
)


_ENV_RUNNER = _Record(
    {
        "seed": _SEED,
        "num_env_steps": _COUNT,
        "num_agent_steps": _COUNT,
        "noise_step": _COUNT,
        "env_to_module": _map_of(_DICT),
        "module_to_env": _map_of(_DICT),
        "episodes": _maybe(_EPISODES),
        "episodes_too_long": _BOOL,
        "batch": _maybe(_BATCH),
        "exploring": _BOOL,
        "before_batch": _maybe(_Record({"pieces": _map_of(_DICT), "metrics": _METRICS})),
        "counts": _Record(
            {
                "env_steps": _COUNT,
                "agents": _list_of(_row(_ID, _COUNT)),
                "modules": _list_of(_row(_TEXT, _COUNT)),
            }
        ),
        "finished": _list_of(_summary),
        "uncredited_reward": _list_of(_NUMBER),
        "episode_numbers": _list_of(_value("a whole number from -1", lambda n: _is_whole(n) and -1 <= n < 2**31)),
        "metrics": _map_of(_METRICS),
        "callback_metrics": _METRICS,
        "finished_at": _list_of(_row(_INDEX, _INDEX, _INDEX)),
        "num_samples": _INDEX,
        "observations_out_of_bounds": _COUNT,
        "lost": _Record(dict.fromkeys((field.name for field in dataclasses.fields(FailureCounts)), _COUNT)),
    }
)


def _agents(value: Any, where: str) -> None:
    _Record(
        {"single_agent": _BOOL, "spaces": _LIST, "agents": _list_of(_row(_ID, _INDEX, _INDEX))}, {"takes_turns": _BOOL}
    )(value, where)
    agent_ids = [agent_id for agent_id, *_ in value["agents"]]
    if not agent_ids or (value["single_agent"] and agent_ids != [DEFAULT_AGENT_ID]):
        raise _fault(f"{where}/agents", "the environment's agents", agent_ids)
    for agent_id, *indices in value["agents"]:
        if max(indices) >= len(value["spaces"]):
            raise _fault(f"{where}/agents", f"numbers of the {len(value['spaces'])} spaces", [agent_id, *indices])


_MASKING = _Record(
    {
        "key": _maybe(_TEXT),
        "by_convention": _BOOL,
        "keeps_observations": _BOOL,
        "sentence": _TEXT,
        "in_infos": _list_of(_ID),
    },
)
_OFFLINE_DATA = _Record(
    {
        "reader": _maybe(
            _Record(
                {
                    "digest": _TEXT,
                    "order": _value(f"one of {', '.join(ORDERS)}", lambda value: value in ORDERS),
                    "seed": _SEED,
                    "pass": _INDEX,
                    "position": _INDEX,
                    "read": _row(_COUNT, _COUNT),
                }
            )
        ),
        "writer": _maybe(_Record(dict.fromkeys(POSITION, _COUNT))),
    },
    {"due": _NUMBER},
)
_STATE = _Record(
    {
        "config": _Record({"class": _maybe(_TEXT), "settings": _map_of(_description)}),
        "changed_settings": _list_of(_TEXT),
        "seed": _SEED,
        "iteration": _INDEX,
        "time_total_s": _NUMBER,
        "num_evaluations": _INDEX,
        "recent_tallies": _list_of(_summary),
        "spaces": _map_of(_row(_TEXT, _TEXT)),
        "agents": _agents,
        "multi_rl_module": _DICT,
        "rl_modules": _list_of(_row(_TEXT, _DICT)),
        "learner": _learners,
        "env_runner": _ENV_RUNNER,
        "metrics": _METRICS,
        "masking": _MASKING,
        "num_episodes": _INDEX,
    },
    {
        "off_policy": _OFF_POLICY,
        "replays": _map_of(_OFF_POLICY),
        "offline_data": _OFFLINE_DATA,
    },
)


def _check_modules(state: Mapping[str, Any]) -> None:
    """Checks that the parts of a state have the same modules, and only settings that exist."""
    module_ids = [module_id for module_id, _ in state["rl_modules"]]
    known = set(state["learner"]["module"]) - {SHARED}
    if len(set(module_ids)) < len(module_ids) or set(module_ids) != known:
        raise _fault("rl_modules", f"the modules {sorted(known)} of the learner", module_ids)
    for name in state["changed_settings"]:
        if name not in state["config"]["settings"]:
            raise _fault("changed_settings", "settings of the config", name)


def _check_counts(state: Mapping[str, Any]) -> None:
    """Checks that the counts are of the sub-environments and the finished episodes of the state."""
    runner = state["env_runner"]
    num_envs, rewards, places = len(runner["episode_numbers"]), runner["uncredited_reward"], runner["finished_at"]
    if len(rewards) != num_envs:
        raise _fault("env_runner/uncredited_reward", f"{num_envs} numbers", rewards)
    if len(places) != len(runner["finished"]):
        raise _fault("env_runner/finished_at", f"as many as the {len(runner['finished'])} in finished", places)
    if any(env_index >= num_envs for *_, env_index in places):
        raise _fault("env_runner/finished_at", f"of {num_envs} sub-environments", places)


def _check_episodes(state: Mapping[str, Any]) -> None:
    """Checks that everything that the ongoing episodes refer to exists."""
    runner, episodes = state["env_runner"], state["env_runner"]["episodes"]
    if episodes is None:
        return
    where, groups, envs = "env_runner/episodes", episodes["groups"], episodes["copies"]
    if len(envs) != len(runner["episode_numbers"]):
        raise _fault(f"{where}/copies", f"as many as the {len(runner['episode_numbers'])} episode_numbers", len(envs))
    if episodes["observed"] is not None and len(episodes["observed"]) != len(groups):
        raise _fault(f"{where}/observed", f"of {len(groups)} groups", len(episodes["observed"]))
    for i, env in enumerate(envs):
        _check_actions(env["actions"], f"{where}/copies/{i}/actions")
    for i, group in enumerate(groups):
        _check_rollout(group, f"{where}/groups/{i}")
    taken: set[tuple[int, int]] = set()
    for i, lane in enumerate(episodes["lanes"]):
        place = f"{where}/lanes/{i}"
        for name, bound in (("group", len(groups)), ("env_index", len(envs)), ("row", len(episodes["lanes"]))):
            if lane[name] >= bound:
                raise _fault(f"{place}/{name}", f"below {bound}", lane[name])
        if lane["number"] >= groups[lane["group"]]["num_lanes"] or (lane["group"], lane["number"]) in taken:
            raise _fault(f"{place}/number", "of a lane of its own in its group", lane["number"])
        taken.add((lane["group"], lane["number"]))
        for name, module_id in (("module_id", lane["module_id"]), ("ids/1", lane["ids"][1])):
            if module_id is not None and module_id not in state["learner"]["module"]:
                raise _fault(f"{place}/{name}", "one of the modules", module_id)
    batch = runner["batch"]
    if batch is not None and not len(batch["groups"]) == len(batch["tensors"]) <= len(groups):
        raise _fault("env_runner/batch", f"of at most {len(groups)} groups", len(batch["groups"]))


def _check_actions(actions: Mapping[str, Any], where: str) -> None:
    order = np.asarray(actions["order"]).astype(np.int64)
    leaf = order[order < 128]  # numbers from there on stand for trees
    counts = np.bincount(leaf, minlength=len(actions["items"])).tolist()
    if counts != [len(items) for items in actions["items"]] or len(actions["is_number"]) != len(actions["items"]):
        raise _fault(f"{where}/items", f"actions of the numbers {counts}", [len(items) for items in actions["items"]])
    trees = [tree for tree in actions.get("trees", ()) if tree is not None]
    if order.max(initial=0) - 128 >= len(trees) or len(trees) < len(actions.get("trees", ())):
        raise _fault(f"{where}/trees", "a tree for each kind of action that has parts", len(trees))
    if not trees and int(np.sum(actions["counts"], dtype=np.int64)) != len(order):
        raise _fault(f"{where}/counts", f"{len(order)} actions together", actions["counts"])


def _check_rollout(group: Mapping[str, Any], where: str) -> None:
    """Checks that all columns have the same whole number of rows in each lane."""
    rollout, num_lanes = group["rollout"], group["num_lanes"]
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T):
        if name not in rollout["columns"]:
            raise _fault(f"{where}/rollout/columns", f"a dict with {name!r}", list(rollout["columns"]))
    _line("whole numbers", "i")(rollout["columns"][Columns.T], f"{where}/rollout/columns/t")
    size = len(rollout["columns"][Columns.T])
    if (num_lanes == 0 and size) or (num_lanes and (size < num_lanes or size % num_lanes)):
        raise _fault(f"{where}/num_lanes", f"a divisor of the {size} rows", num_lanes)
    for name in (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Columns.REWARDS, Columns.VF_PREDS):
        for leaf in leaves(rollout["columns"].get(name, ())):
            _FLOATS(leaf, f"{where}/rollout/columns/{name}")
    for name in ("columns", "layers", "level", "given"):
        for column, value in rollout[name].items():
            if any(len(leaf) != size for leaf in leaves(value if name != "layers" else tuple(value))):
                raise _fault(f"{where}/rollout/{name}/{column}", f"of {size} rows", "of another length")
