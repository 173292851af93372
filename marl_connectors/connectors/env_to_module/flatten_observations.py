"""FlattenObservations, where RLlib's env-to-module pieces are."""

from marl_connectors.connectors.common.flatten_observations import FlattenObservations as FlattenObservations
