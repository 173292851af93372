"""FrameStacking for learner pipelines."""

from functools import partial

from marl_connectors.connectors.common.frame_stacking import FrameStacking as FrameStacking

FrameStackingLearner = partial(FrameStacking, as_learner_connector=True)
