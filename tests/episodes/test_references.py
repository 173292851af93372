"""References of episodes in a store."""

from __future__ import annotations

import pickle

from marl_connectors.episodes.references import EpisodeShare


def test_episodes_of_several_payloads_come_in_the_order_of_their_positions():
    store = {"x": pickle.dumps(["a", "b", "c"]), "y": pickle.dumps(["d", "e"])}
    share = EpisodeShare(payloads=["x", "y"], places=[[0, 2], [1, 0]], positions=[[1, 6], [0, 4]])
    assert share.fetch(store.__getitem__) == (["e", "a", "d", "c"], [0, 1, 4, 6])
