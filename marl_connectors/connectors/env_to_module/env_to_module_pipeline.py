"""The pipeline from ongoing episodes to a forward batch."""

from __future__ import annotations

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE


class EnvToModulePipeline(ConnectorPipelineV2):
    """From the newest observations of ongoing episodes to a forward batch."""

    kind = ENV_TO_MODULE
    in_learner_pipeline = False
