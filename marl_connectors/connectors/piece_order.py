"""Checks the kind of pipeline and the order of pieces, when a pipeline is built and whenever it is edited.

The library's own pieces, and subclasses of them, have rules: a kind of pipeline (``belongs_in``) and an order. A
subclass that sets ``belongs_in`` to ``()`` has none. Other pieces may be anywhere, and any piece may be left out: other
pieces must then do its work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marl_connectors.connectors.connector_v2 import ConnectorV2, InBothPipelines
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER, MODULE_TO_ENV
from marl_connectors.errors import ConfigError

_KINDS = {
    ENV_TO_MODULE: ("an env-to-module", ".env_runners(env_to_module_connector=...)"),
    MODULE_TO_ENV: ("a module-to-env", ".env_runners(module_to_env_connector=...)"),
    LEARNER: ("a learner", ".learners(learner_connector=...)"),
}
_ADDS = "needs what {} adds to the batch"
_REWARDS = "needs the rewards that {} changes"
_BY_MODULE = "needs the items by module, as {} leaves them"
_BY_AGENT = "needs the items by agent, as {} leaves them"
_ARRAYS = "needs the arrays that {} makes"
_ACTIONS = "needs the actions that {} adds"
_LONGER = {"AddOneTsToEpisodesAndTruncate": "needs the step that {} adds to each episode"}
_ADD = "AddObservationsFromEpisodesToBatch"
_WRITE = "WriteObservationsToEpisodes"
_ADDS_ITEMS = (
    _ADD,
    "AddColumnsFromEpisodesToTrainBatch",
    "AddEnvStatesFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddJointObservationsFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "ComputeReturnsToGo",
)
_CHANGES_REWARDS = ("ClipRewards", "NormalizeRewards", "ScaleRewards")
_SEQUENCES = ("AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch")
_OBSERVATION_PIECES = (
    "ObservationTransform",
    "SingleAgentObservationPreprocessor",
    "MultiAgentObservationPreprocessor",
)
_LEAVE_EPISODES = ("AgentToModuleMapping", "BatchIndividualItems", "NumpyToTensor")

NEEDS_BEFORE: dict[str, dict[str, str]] = {
    **dict.fromkeys((*_ADDS_ITEMS, *_CHANGES_REWARDS, "ObservationTransform"), _LONGER),
    _WRITE: {_ADD: "needs the observations that {} adds to the batch"},
    "AddTimeDimToBatchAndZeroPad": {**_LONGER, **dict.fromkeys(_ADDS_ITEMS, _ADDS)},
    "AddStatesFromEpisodesToBatch": {"AddTimeDimToBatchAndZeroPad": "needs the sequences that {} makes"},
    "AgentToModuleMapping": dict.fromkeys((*_ADDS_ITEMS, *_SEQUENCES), _ADDS),
    "BatchIndividualItems": {
        **dict.fromkeys((*_ADDS_ITEMS, *_SEQUENCES), _ADDS),
        "AgentToModuleMapping": _BY_MODULE,
    },
    "NumpyToTensor": {"BatchIndividualItems": _ARRAYS, **dict.fromkeys((*_ADDS_ITEMS, *_SEQUENCES), _ADDS)},
    "GeneralAdvantageEstimation": {
        **dict.fromkeys(_CHANGES_REWARDS, _REWARDS),
        "AddColumnsFromEpisodesToTrainBatch": "needs the rewards that {} adds to the batch",
        "BatchIndividualItems": _ARRAYS,
        "NumpyToTensor": "needs the tensors that {} makes",
    },
    "AddNStepReturnsToTrainBatch": dict.fromkeys(_CHANGES_REWARDS, _REWARDS),
    "TensorToNumpy": {"GetActions": "converts the tensors that {} samples from"},
    "UnBatchToIndividualItems": {"GetActions": _ACTIONS, "TensorToNumpy": _ARRAYS},
    "ModuleToAgentUnmapping": {
        "GetActions": _ACTIONS,
        "UnBatchToIndividualItems": "needs the lists of items that {} makes",
    },
    "RemoveSingleTsTimeRankFromBatch": {"ModuleToAgentUnmapping": _BY_AGENT},
    "NormalizeAndClipActions": {"GetActions": _ACTIONS, "ModuleToAgentUnmapping": _BY_AGENT},
    "ListifyDataForVectorEnv": {
        "GetActions": _ACTIONS,
        "ModuleToAgentUnmapping": _BY_AGENT,
        "NormalizeAndClipActions": "needs the actions in the environment's range, which {} adds",
    },
}
"""``{piece: {other: why}}``: if a pipeline has both, the other piece must be before the piece. ``{}`` in the reason
stands for the other piece."""

_OF_EPISODES = "works on observations by episode, which {} regroups"
NEEDS_AFTER: dict[str, dict[str, str]] = {
    **dict.fromkeys((*_OBSERVATION_PIECES, _WRITE), dict.fromkeys(_LEAVE_EPISODES, _OF_EPISODES)),
    "FrameStacking": {_ADD: "adds stacked observations to the batch, where {} has added single ones already"},
    "MeanStdFilter": {
        **dict.fromkeys(_LEAVE_EPISODES, _OF_EPISODES),
        "FrameStacking": "must write to the episodes, which is too late once {} has added observations to the batch",
    },
    "NormalizeRewards": dict.fromkeys(_LEAVE_EPISODES, "needs the rewards by episode, which {} regroups"),
}
"""``{piece: {other: why}}``: if a pipeline has both, the other piece must be after the piece."""

_WRITES = "changes observations in the episodes, which {} has read already"
_MASKS = "takes the mask out of the environment's observation, which {} has changed already"
_AFTER_MASKS = (
    "AgentIdEncoding",
    "FlattenObservations",
    "FrameStacking",
    "ImageToFloat",
    "MeanStdFilter",
    "OneHotObservations",
    "PadObservations",
    "PrevActionsPrevRewards",
    "TimeLimitEncoding",
)


def check_pieces(pipeline: str, kind: str | None, pieces: Sequence[ConnectorV2]) -> None:
    """Checks that pieces belong in a kind of pipeline, and that their order is right.

    Args:
        pipeline: The pipeline's name, for the message.
        kind: The kind of pipeline; None for a plain one, which may have pieces of any kind.
        pieces: The pieces in order; a nested pipeline is replaced by its pieces.

    Raises:
        ConfigError: If a piece occurs twice, in the wrong kind of pipeline, or in the wrong order.
    """
    known: set[int] = set()
    for piece in pieces:
        if id(piece) in known:
            raise ConfigError(
                f"{pipeline}: the same {type(piece).__name__} object is in it twice. Make a second object."
            )
        known.add(id(piece))
    if kind is not None:
        for piece in pieces:
            _check_kind(pipeline, kind, piece)
    _check_order(pipeline, kind, pieces)


def _check_kind(pipeline: str, kind: str, piece: ConnectorV2) -> None:
    name, (here, _) = type(piece).__name__, _KINDS[kind]
    if piece.belongs_in and kind not in piece.belongs_in:
        where = " or ".join(f"the {_KINDS[other][0].split(' ', 1)[1]} pipeline" for other in piece.belongs_in)
        settings = " or ".join(_KINDS[other][1] for other in piece.belongs_in)
        raise ConfigError(f"{pipeline}: {name} is in {here} pipeline, but belongs in {where}. Pass it to {settings}.")
    said = piece.as_learner_connector if isinstance(piece, InBothPipelines) else None
    if said is not None and said != (kind == LEARNER):
        raise ConfigError(
            f"{pipeline}: {name} is in {here} pipeline, but was built with as_learner_connector={said}. Leave the "
            f"argument out: the pipeline sets it."
        )


def _check_order(pipeline: str, kind: str | None, pieces: Sequence[ConnectorV2]) -> None:
    names = [_names(piece) for piece in pieces]
    for i, piece in enumerate(pieces):
        name = type(piece).__name__
        before = set[str]().union(*names[:i])
        after = set[str]().union(*names[i + 1 :])
        for other, why in _needs_before(names[i], pieces[:i]).items():
            if other in after - before:
                raise ConfigError(
                    f"{pipeline}: {name} is placed before {other}, but {why.format(other)}. Put {name} after {other}, "
                    f'for example with insert_after("{other}", ...), or leave one of the two out.'
                )
        for other, why in _needs_after(piece, names[i], kind, after).items():
            if other in before:
                raise ConfigError(
                    f"{pipeline}: {name} is placed after {other}, but {why.format(other)}. Put {name} before {other}, "
                    f'for example with insert_before("{other}", ...), or leave one of the two out.'
                )


def _needs_before(names: Sequence[str], before: Sequence[ConnectorV2]) -> Mapping[str, str]:
    """Returns the pieces that must be before a piece, and why."""
    needs = {other: why for name in names for other, why in NEEDS_BEFORE.get(name, {}).items()}
    if any(not piece.belongs_in or "FrameStacking" in _names(piece) for piece in before) and _WRITE in names:
        return {}  # one of them adds the observations
    return needs


def _needs_after(piece: ConnectorV2, names: Sequence[str], kind: str | None, after: set[str]) -> Mapping[str, str]:
    """Returns the pieces that must be after a piece, and why."""
    needs = {other: why for name in names for other, why in NEEDS_AFTER.get(name, {}).items()}
    learns = kind == LEARNER
    if isinstance(piece, InBothPipelines):
        open_yet = kind is None and piece.as_learner_connector is None and LEARNER in piece.belongs_in
        learns = learns or piece.learns or open_yet
    if not set(names).isdisjoint(_OBSERVATION_PIECES) and not learns and _WRITE not in after:
        needs.setdefault(_ADD, _WRITES)
    if "ActionMasking" in names and getattr(piece, "source", None) != "infos":
        needs.update(dict.fromkeys(_AFTER_MASKS, f'{_MASKS} (source="infos" would not)'))
    return needs


def _names(piece: ConnectorV2) -> tuple[str, ...]:
    """Returns the names of a piece's class and of its bases in the library; empty for a piece without rules."""
    if not piece.belongs_in:
        return ()
    return tuple(cls.__name__ for cls in type(piece).__mro__ if cls.__module__.startswith("marl_connectors."))
