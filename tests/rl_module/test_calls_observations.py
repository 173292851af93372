"""What a module of the wrong shape gets to hear, in which pipeline."""

from __future__ import annotations

import pytest

from marl_connectors import ConnectorError, FrameStacking, PPOConfig


def test_frames_stacked_for_acting_only_are_named_with_the_way_out():
    config = (
        PPOConfig()
        .environment("marl_envs.match_v0")
        .env_runners(env_to_module_connector=lambda env: FrameStacking(num_frames=3))
        .training(train_batch_size_per_learner=40)
    )
    algo = config.build_algo()
    with pytest.raises(ConnectorError, match=r"\(5,\)"):
        algo.train()
