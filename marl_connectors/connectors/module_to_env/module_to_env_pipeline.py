"""The pipeline from a module's outputs to actions."""

from __future__ import annotations

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """From a module's outputs to actions."""

    in_learner_pipeline = False
