"""The order in which the library's own pieces make sense, checked when a pipeline is built.

Only pieces of the library are held to it. A user's piece may stand anywhere, and any piece may be left out: it is then
up to the others to do its work.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.errors import ConfigError

_ADDS = "what it adds"
_REWARDS = "the rewards that it changes"
_BY_MODULE = "the items sorted by module"
_BY_AGENT = "the items given back to the agents"
_LONGER = {"AddOneTsToEpisodesAndTruncate": "episodes with a step to be bootstrapped from"}
_ADDS_ITEMS = (
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "ComputeReturnsToGo",
)
_CHANGES_REWARDS = ("ClipRewards", "NormalizeRewards", "ScaleRewards")
_SEQUENCES = ("AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch")

NEEDS_BEFORE: dict[str, dict[str, str]] = {
    **dict.fromkeys((*_ADDS_ITEMS, *_CHANGES_REWARDS), _LONGER),
    "AddTimeDimToBatchAndZeroPad": {**_LONGER, **dict.fromkeys(_ADDS_ITEMS, _ADDS)},
    "AddStatesFromEpisodesToBatch": {"AddTimeDimToBatchAndZeroPad": "the sequences"},
    "AgentToModuleMapping": {**dict.fromkeys((*_ADDS_ITEMS, *_SEQUENCES), _ADDS), "NormalizeRewards": _REWARDS},
    "BatchIndividualItems": {
        **dict.fromkeys((*_ADDS_ITEMS, *_SEQUENCES), _ADDS),
        "AgentToModuleMapping": _BY_MODULE,
        "NormalizeRewards": _REWARDS,
    },
    "NumpyToTensor": {"BatchIndividualItems": "arrays"},
    "GeneralAdvantageEstimation": {
        **dict.fromkeys(_CHANGES_REWARDS, _REWARDS),
        "AddColumnsFromEpisodesToTrainBatch": "the rewards in the batch",
        "BatchIndividualItems": "arrays",
        "NumpyToTensor": "tensors",
    },
    "TensorToNumpy": {"GetActions": "the actions, chosen from tensors"},
    "UnBatchToIndividualItems": {"TensorToNumpy": "arrays"},
    "ModuleToAgentUnmapping": {"UnBatchToIndividualItems": "items in lists"},
    "RemoveSingleTsTimeRankFromBatch": {"ModuleToAgentUnmapping": _BY_AGENT},
    "NormalizeAndClipActions": {"GetActions": "the actions", "ModuleToAgentUnmapping": _BY_AGENT},
    "ListifyDataForVectorEnv": {
        "GetActions": "the actions",
        "ModuleToAgentUnmapping": _BY_AGENT,
        "NormalizeAndClipActions": "the actions in the environment's range",
    },
}
"""Piece to the pieces that must stand before it where a pipeline has both, with what it needs of each."""


def check_order(pipeline: str, pieces: Sequence[ConnectorV2]) -> None:
    """Holds pieces, in their order, against ``NEEDS_BEFORE``.

    Args:
        pipeline: Its name, for the message.
        pieces: Those of nested pipelines in the place of these.

    Raises:
        ConfigError: If a piece comes too late for one that needs it.
    """
    standing: set[str] = set()
    for i, piece in enumerate(pieces):
        later = {name for other in pieces[i + 1 :] for name in _names(other)}
        for needed, what in NEEDS_BEFORE.get(_own_name(piece), {}).items():
            if needed in later - standing:
                name = type(piece).__name__
                raise ConfigError(
                    f"{pipeline}: {name} stands before {needed}, but needs {what} from it. Put {name} behind {needed}, "
                    f'for example with insert_after("{needed}", ...), or leave one of the two out.'
                )
        standing |= _names(piece)


def _own_name(piece: ConnectorV2) -> str:
    """The name of one of the library's pieces; nothing for a user's, also if it has the same name or a like base."""
    cls = type(piece)
    return cls.__name__ if cls.__module__.startswith("marl_connectors.") else ""


def _names(piece: ConnectorV2) -> set[str]:
    """What a piece can stand for: a user's subclass does its base's work."""
    return {cls.__name__ for cls in type(piece).__mro__ if cls.__module__.startswith("marl_connectors.")}
