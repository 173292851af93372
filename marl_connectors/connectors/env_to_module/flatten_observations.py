"""FlattenObservations, at RLlib's import path."""

from marl_connectors.connectors.common.flatten_observations import FlattenObservations as FlattenObservations
