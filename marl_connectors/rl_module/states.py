"""The states of stateful modules, and the lengths of their training sequences."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import optree
import torch

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID, Tree


def is_single(rl_module: Any) -> bool:
    """Whether something is an RLModule, and not a MultiRLModule, which holds several."""
    return isinstance(rl_module, RLModule) and not rl_module.holds_modules


def member(rl_module: Any, module_id: ModuleID | None) -> RLModule:
    """Returns a module of a MultiRLModule; an RLModule that is passed itself is returned as it is."""
    if is_single(rl_module):
        return rl_module
    return rl_module[module_id or DEFAULT_MODULE_ID]


def is_stateful(rl_module: Any, module_id: ModuleID | None) -> bool:
    """Whether a module is stateful; False if there is no module, as in a pipeline that a user runs directly."""
    return rl_module is not None and member(rl_module, module_id).is_stateful()


def initial_state(module: RLModule) -> Tree:
    """Returns ``get_initial_state`` as a tree of arrays; float64 becomes float32."""
    return tree_map(_array, module.get_initial_state())


def _array(value: Any) -> np.ndarray:
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def state_kind(module: RLModule) -> Hashable:
    """Returns a key that is equal for modules whose states can stand in one column; None for stateless modules."""
    state = module.get_initial_state()
    if not state:
        return None
    arrays = tree_map(_array, state)
    return optree.tree_structure(arrays), tuple((leaf.shape, leaf.dtype.str) for leaf in leaves(arrays))


def output_kind(module: RLModule) -> tuple[Hashable, int | None]:
    """Returns a key that is equal for modules whose outputs for acting can stand in one column.

    It has the kind of their states, and the number of inputs that their distribution of actions needs, if it is known.
    """
    return state_kind(module), _num_dist_inputs(module)


def _num_dist_inputs(module: RLModule) -> int | None:
    space = module.action_space
    if space is None:
        return None
    try:
        return int(module.get_exploration_action_dist_cls().required_input_dim(space))
    except Exception:  # a user's module that outputs actions may have no distribution, or one of another kind
        return None


def check_state_out(module: RLModule, module_id: ModuleID | None, state_out: Tree, rows: int | None) -> None:
    """Checks the state that a module returned against its initial state.

    Args:
        module: The module.
        module_id: Its id, for the error message.
        state_out: A tree of arrays.
        rows: The number of rows; None for one item.

    Raises:
        ModuleError: If the two differ in structure or in a shape, or if there is not one state for each row.
    """
    lead = () if rows is None else (rows,)
    expected = tree_map(lambda leaf: (*lead, *leaf.shape), initial_state(module))
    found = tree_map(lambda leaf: tuple(leaf.shape), state_out)
    if found != expected:
        raise ModuleError(
            f"module {module_id!r}: its 'state_out' has the shapes {found}, but by its get_initial_state() they "
            f"should be {expected}. Let both have the same keys and shapes; a state has no time axis."
        )


def max_seq_len(module: RLModule, module_id: ModuleID | None) -> int:
    """Returns the length of training sequences: ``model_config["max_seq_len"]``, or DefaultModelConfig's.

    Raises:
        ModuleError: If it is not a positive whole number.
    """
    config = module.model_config
    default = DefaultModelConfig.max_seq_len
    wanted = config.get("max_seq_len", default) if isinstance(config, Mapping) else config.max_seq_len
    if not isinstance(wanted, (int, np.integer)) or wanted < 1:
        raise ModuleError(
            f"module {module_id!r}: max_seq_len must be a whole number of at least 1, not {wanted!r}. Set "
            f'.rl_module(model_config={{"max_seq_len": 20}}).'
        )
    return int(wanted)


def are_stateful(who: str, rl_module: Any, module_ids: Sequence[ModuleID]) -> bool:
    """Whether modules whose rows stand in one group are stateful.

    Raises:
        ModuleError: If some are and others are not, or their states differ.
    """
    if rl_module is None or not module_ids:
        return False
    if is_single(rl_module):
        return rl_module.is_stateful()
    kinds = {module_id: rl_module.state_kind(module_id) for module_id in module_ids}
    first = kinds[module_ids[0]]
    for module_id, kind in kinds.items():
        if kind != first:
            raise ModuleError(
                f"{who}: the states of modules {module_ids[0]!r} and {module_id!r} differ, so their rows cannot stand "
                f"in one group of columns. Give the modules groups of their own."
            )
    return first is not None
