"""FrameStacking for learner pipelines, at RLlib's import path."""

from functools import partial

from marl_connectors.connectors.common.frame_stacking import FrameStacking as FrameStacking

FrameStackingLearner = partial(FrameStacking, as_learner_connector=True)
