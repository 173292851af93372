"""FrameStacking for env-to-module pipelines."""

from functools import partial

from marl_connectors.connectors.common.frame_stacking import FrameStacking as FrameStacking

FrameStackingEnvToModule = partial(FrameStacking, as_learner_connector=False)
