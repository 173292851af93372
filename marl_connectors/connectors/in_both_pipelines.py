"""Pieces that do one thing before a forward pass and another one for a train batch."""

from __future__ import annotations

from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE, LEARNER, ConnectorV2


class InBothPipelines(ConnectorV2):
    """Base of pieces of env-to-module and learner pipelines that must know which of the two they stand in.

    The pipeline tells them. ``as_learner_connector`` says it where there is no pipeline, or a plain one; it must not
    say the opposite of the pipeline.
    """

    belongs_in = (ENV_TO_MODULE, LEARNER)
    as_learner_connector: bool | None = None
    """What the piece was built with; None leaves it to the pipeline."""

    @property
    def learns(self) -> bool:
        """Whether the piece works on all steps, for a train batch."""
        said = self.as_learner_connector
        return bool(self.in_learner_pipeline) if said is None else said
