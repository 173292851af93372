"""ModuleToEnvPipeline, the pipeline from a module's outputs to actions."""

from __future__ import annotations

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """Makes actions for the environments of modules' outputs."""

    kind = MODULE_TO_ENV
    in_learner_pipeline = False
