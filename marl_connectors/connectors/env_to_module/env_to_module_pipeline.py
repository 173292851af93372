"""EnvToModulePipeline, the pipeline from ongoing episodes to a forward batch."""

from __future__ import annotations

from collections.abc import Iterator

from gymnasium import Space

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE


class EnvToModulePipeline(ConnectorPipelineV2):
    """Makes a forward batch of the newest observations of ongoing episodes."""

    kind = ENV_TO_MODULE
    in_learner_pipeline = False

    @property
    def observation_space_in_episodes(self) -> Space | None:
        """The space of the observations that the episodes hold once all pieces have run.

        It is the environment's space after the changes of all pieces that write to the episodes. The modules may get
        another one. A piece that changes the observation space is assumed to write to the episodes, unless the
        observations are in the batch already, or it has ``puts_observations_in_batch``.
        """
        held, in_batch = self.input_observation_space, False
        for piece in _flat(self):
            if piece.puts_observations_in_batch:
                in_batch = True
            elif isinstance(piece, WriteObservationsToEpisodes) or not in_batch:
                held = piece.observation_space
        return held


def _flat(pipeline: ConnectorPipelineV2) -> Iterator[ConnectorV2]:
    for piece in pipeline:
        if isinstance(piece, ConnectorPipelineV2):
            yield from _flat(piece)
        else:
            yield piece
