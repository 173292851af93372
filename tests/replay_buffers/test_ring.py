"""The newest rows of one module's agents."""

from __future__ import annotations

import numpy as np

from helpers.episodes.little_chunks import chunk
from marl_connectors.replay_buffers.ring import Ring


def test_a_lane_reaches_back_to_its_oldest_row_and_forward_to_its_newest():
    """Of the observations 0 to 10 of one episode, eight rows keep 3 to 10; one row further is none of them."""
    ring = Ring("m", 8)
    ring.add([chunk("m", 0, 10)])
    positions = ring.positions(0, np.arange(3, 11))
    assert ring.columns["obs"][positions, 0].tolist() == list(range(3, 11))
    found, is_kept = ring.reach(positions, np.array([-1, 0, 1]))
    assert is_kept.tolist() == [[False] + [True] * 7, [True] * 8, [True] * 7 + [False]]
    assert ring.columns["obs"][found[0, 1:], 0].tolist() == list(range(3, 10))
