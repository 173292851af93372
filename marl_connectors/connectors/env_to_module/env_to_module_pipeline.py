"""The pipeline from ongoing episodes to a forward batch."""

from __future__ import annotations

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2


class EnvToModulePipeline(ConnectorPipelineV2):
    """From the newest observations of ongoing episodes to a forward batch."""

    in_learner_pipeline = False
