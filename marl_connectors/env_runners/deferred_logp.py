"""Log-probabilities of the actions of a whole fragment, computed at once when it is complete."""

from __future__ import annotations

from marl_connectors.columns import Columns
from marl_connectors.env_runners.lane_table import LaneGroup
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.trees import tree_map


def record_logp(group: LaneGroup, dist_cls: type[Distribution]) -> None:
    """Writes ``action_logp`` to a group's rollout, of what its modules put out and the actions chosen from that."""
    rollout = group.rollout
    new = slice(group.lookback * rollout.num_lanes, (group.last_row + 1) * rollout.num_lanes)
    actions = tree_map(lambda leaf: leaf[new], rollout.columns[Columns.ACTIONS])
    logp = dist_cls.logp_of_rows(rollout.columns[Columns.ACTION_DIST_INPUTS][new], actions)
    rollout.record(new, {Columns.ACTION_LOGP: logp})
    if Columns.ACTION_DIST_INPUTS in rollout.given:  # others have put out actions themselves
        rollout.given[Columns.ACTION_LOGP] = rollout.given[Columns.ACTION_DIST_INPUTS].copy()
