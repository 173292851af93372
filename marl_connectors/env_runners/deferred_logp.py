"""Log-probabilities of the actions of a whole fragment, computed at once when it is complete."""

from __future__ import annotations

import torch

from marl_connectors.columns import Columns
from marl_connectors.env_runners.lanes import LaneGroup
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.trees import tree_map


def record_logp(group: LaneGroup, dist_cls: type[Distribution]) -> None:
    """Writes ``action_logp`` to a group's rollout, of what its modules put out and the actions chosen from that."""
    rollout = group.rollout
    new = slice(group.lookback * rollout.num_lanes, rollout.num_rows * rollout.num_lanes)
    inputs = torch.from_numpy(rollout.columns[Columns.ACTION_DIST_INPUTS][new])
    actions = tree_map(lambda leaf: torch.from_numpy(leaf[new]), rollout.columns[Columns.ACTIONS])
    rollout.record(new, {Columns.ACTION_LOGP: dist_cls.from_logits(inputs).logp(actions).numpy()})
    if Columns.ACTION_DIST_INPUTS in rollout.given:  # others have put out actions themselves
        rollout.given[Columns.ACTION_LOGP] = rollout.given[Columns.ACTION_DIST_INPUTS].copy()
