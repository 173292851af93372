"""Pieces in the wrong pipeline, the wrong order or with wrong arguments are errors before anything runs."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.observation_histories import AGENTS, VECTOR, as_spaces, assert_same, play, train
from marl_connectors import connectors
from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch,
)
from marl_connectors.connectors.common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.common.frame_stacking import FrameStacking
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key, unstack
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.connectors.env_to_module.agent_id_encoding import AgentIdEncoding
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.env_to_module.image_to_float import ImageToFloat
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    ObservationPreprocessor,
)
from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations
from marl_connectors.connectors.env_to_module.pad_observations import PadObservations
from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards
from marl_connectors.connectors.env_to_module.time_limit_encoding import TimeLimitEncoding
from marl_connectors.connectors.env_to_module.write_observations_to_episodes import WriteObservationsToEpisodes
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_env_states_from_episodes_to_train_batch import (
    AddEnvStatesFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_mixer_states_to_train_batch import AddMixerStatesToTrainBatch
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.clip_rewards import ClipRewards
from marl_connectors.connectors.learner.compute_returns_to_go import ComputeReturnsToGo
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.learner.normalize_rewards import NormalizeRewards
from marl_connectors.connectors.learner.scale_rewards import ScaleRewards
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.piece_order import NEEDS_AFTER, NEEDS_BEFORE
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE, LEARNER, MODULE_TO_ENV
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.errors import ConfigError

NEEDED = {
    ComputeReturnsToGo: {"gamma": 0.9},
    TimeLimitEncoding: {"max_steps": 5},
    AddEnvStatesFromEpisodesToTrainBatch: {"state_space": spaces.Box(-1.0, 1.0, (2,))},
    AddMixerStatesToTrainBatch: {"agents": {}},
}
"""What pieces cannot be made without."""
PIPELINES = {ENV_TO_MODULE: EnvToModulePipeline, MODULE_TO_ENV: ModuleToEnvPipeline, LEARNER: LearnerConnectorPipeline}
HISTORY = [[{"absent": set(), "ends": {}}, {"absent": {"b"}, "ends": {}}, {"absent": set(), "ends": {"a": True}}]]
MAPPING = {"a": "red", "b": "green", "c": "blue", "d": "red"}


class Preprocessor(ObservationPreprocessor):
    def preprocess(self, observation):
        return observation


class Together(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        return observations


class AddsObservations(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", episode.get_observations(-1), episode)
        return batch


OBSERVATION_PIECES = [
    ActionMasking,
    AgentIdEncoding,
    FlattenObservations,
    ImageToFloat,
    MeanStdFilter,
    OneHotObservations,
    PadObservations,
    PrevActionsPrevRewards,
    TimeLimitEncoding,
    Preprocessor,
    Together,
]


def built_in():
    """All pieces of the library that are no pipelines and no bases."""
    found = set()
    for module in pkgutil.walk_packages(connectors.__path__, "marl_connectors.connectors."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(cls, ConnectorV2) and cls.__module__.startswith("marl_connectors.connectors."):
                found.add(cls)
    general = {"ConnectorV2", "InBothPipelines", "ObservationTransform", "RewardTransform"}
    return [c for c in found if not issubclass(c, ConnectorPipelineV2) and c.__name__ not in general]


# The kind of pipeline.


def test_every_piece_of_the_library_says_where_it_belongs():
    pieces = built_in()
    assert len(pieces) >= 34
    assert {cls.__name__ for cls in pieces if not cls.belongs_in or not set(cls.belongs_in) <= set(PIPELINES)} == set()


def test_every_name_in_the_tables_is_of_a_piece_or_a_base():
    names = {cls.__name__ for cls in built_in()} | {"ObservationTransform"}
    for table in (NEEDS_BEFORE, NEEDS_AFTER):
        assert {*table, *(other for needed in table.values() for other in needed)} <= names


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("cls", sorted(built_in(), key=lambda cls: cls.__name__))
def test_a_piece_may_stand_only_where_it_belongs_and_anywhere_in_a_plain_pipeline(kind, cls):
    make = partial(cls, **NEEDED.get(cls, {}))
    ConnectorPipelineV2(connectors=[make()])
    if kind in cls.belongs_in:
        PIPELINES[kind](connectors=[make()])
        return
    with pytest.raises(ConfigError, match=f"(?s)Pipeline.*{cls.__name__}"):
        PIPELINES[kind](connectors=[ConnectorPipelineV2(connectors=[make()])])


def test_the_message_says_where_to():
    message = r"(?s)^EnvToModulePipeline.*ClipRewards.*\.learners\(learner_connector=\.\.\.\)"
    with pytest.raises(ConfigError, match=message):
        EnvToModulePipeline(connectors=[ClipRewards()])
    with pytest.raises(ConfigError, match="Preprocessor"):
        LearnerConnectorPipeline(connectors=[AddOneTsToEpisodesAndTruncate(), Preprocessor()])


def test_a_subclass_is_held_to_what_its_base_needs_unless_it_says_otherwise():
    class Filter(MeanStdFilter):
        pass

    class Free(MeanStdFilter):
        belongs_in = ()

    class Mine(ConnectorV2):
        belongs_in = (LEARNER,)

    with pytest.raises(ConfigError, match="Filter"):
        LearnerConnectorPipeline(connectors=[Filter()])
    with pytest.raises(ConfigError, match=r"(?s)Filter.*NumpyToTensor"):
        EnvToModulePipeline(connectors=[NumpyToTensor(), Filter()])
    LearnerConnectorPipeline(connectors=[NumpyToTensor(), Free(), Mine()])
    with pytest.raises(ConfigError, match="Mine"):
        ModuleToEnvPipeline(connectors=[Mine()])


# The order.


@pytest.mark.parametrize("cls", OBSERVATION_PIECES)
def test_observation_pieces_stand_before_what_reads_the_episodes(cls):
    name, make = cls.__name__, partial(cls, **NEEDED.get(cls, {}))
    for later in (AddObservationsFromEpisodesToBatch, AgentToModuleMapping, BatchIndividualItems, NumpyToTensor):
        EnvToModulePipeline(connectors=[make(), later()])
        with pytest.raises(ConfigError, match=f"(?s){name}.*{later.__name__}.*{name}"):
            EnvToModulePipeline(connectors=[later(), make()])
    add, write = AddObservationsFromEpisodesToBatch(), WriteObservationsToEpisodes()
    EnvToModulePipeline(connectors=[add, make(), write])  # which brings it to the episodes


def test_frames_are_stacked_before_single_observations_are_added():
    for cls in (EnvToModulePipeline, LearnerConnectorPipeline, ConnectorPipelineV2):
        cls(connectors=[FrameStacking(num_frames=2), AddObservationsFromEpisodesToBatch()])
        with pytest.raises(ConfigError, match=r"(?s)FrameStacking.*AddObs\w+"):
            cls(connectors=[AddObservationsFromEpisodesToBatch(), FrameStacking(num_frames=2)])
    with pytest.raises(ConfigError, match=r"(?s)MeanStdFilter.*FrameStacking"):
        EnvToModulePipeline(connectors=[FrameStacking(num_frames=2), MeanStdFilter()])


@pytest.mark.parametrize("cls", [c for c in OBSERVATION_PIECES if c not in (ActionMasking, Preprocessor, Together)])
def test_masks_are_taken_out_first_unless_they_are_in_infos(cls):
    make = partial(cls, **NEEDED.get(cls, {}))
    with pytest.raises(ConfigError, match=f"(?s)ActionMasking.*{cls.__name__}"):
        EnvToModulePipeline(connectors=[make(), ActionMasking()])
    EnvToModulePipeline(connectors=[ActionMasking(), make()])
    EnvToModulePipeline(connectors=[make(), ActionMasking(source="infos")])


def test_what_is_written_back_must_have_been_added():
    write, add = WriteObservationsToEpisodes, AddObservationsFromEpisodesToBatch
    with pytest.raises(ConfigError, match=r"(?s)WriteObservationsToEpisodes.*Add\w+"):
        EnvToModulePipeline(connectors=[write(), add()])
    EnvToModulePipeline(connectors=[add(), write(), add()])
    EnvToModulePipeline(connectors=[AddsObservations(), write(), add()])


def test_rewards_and_observations_of_a_train_batch_have_their_places_too():
    with pytest.raises(ConfigError, match=r"(?s)NormalizeRewards.*AgentToModuleMapping"):
        LearnerConnectorPipeline(connectors=[AgentToModuleMapping(), NormalizeRewards()])
    with pytest.raises(ConfigError, match=r"(?s)FlattenObservations.*AddOneTs"):
        LearnerConnectorPipeline(connectors=[FlattenObservations(), AddOneTsToEpisodesAndTruncate()])
    LearnerConnectorPipeline(connectors=[AddObservationsFromEpisodesToBatch(), FlattenObservations()])


def test_no_message_repeats_itself():
    for table in (NEEDS_BEFORE, NEEDS_AFTER):
        for needed in table.values():
            for why in needed.values():
                assert why.count("{}") == 1
                assert " from it" not in why


# Editing.


def test_one_object_has_one_place():
    piece, pipeline = MeanStdFilter(), ConnectorPipelineV2()
    with pytest.raises(ConfigError, match="MeanStdFilter"):
        ConnectorPipelineV2(connectors=[piece, ConnectorPipelineV2(connectors=[piece])])
    with pytest.raises(ConfigError, match="contain"):
        pipeline.append(pipeline)
    around = ConnectorPipelineV2(connectors=[pipeline])
    with pytest.raises(ConfigError, match="contain"):
        pipeline.append(around)
    assert len(pipeline) == 0
    pipeline.append(piece)
    with pytest.raises(ConfigError, match="twice"):
        around.append(piece)


def test_a_pipeline_knows_what_it_has():
    piece = MeanStdFilter()
    pipeline = ConnectorPipelineV2(connectors=[piece])
    assert MeanStdFilter in pipeline
    assert "MeanStdFilter" in pipeline
    assert piece in pipeline
    assert FlattenObservations not in pipeline
    assert "MeanStdFilter_2" not in pipeline
    assert MeanStdFilter() not in pipeline


@pytest.mark.parametrize("how", [lambda p: p, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_an_edit_inside_is_checked_against_the_pipelines_around_and_refreshes_their_spaces(how):
    observation_space, action_space = as_spaces(spaces.Box(-1.0, 1.0, (2, 2), np.float32))
    inner = ConnectorPipelineV2(connectors=[ConnectorPipelineV2(connectors=[])])
    outer = EnvToModulePipeline(
        observation_space, action_space, connectors=[inner, AddObservationsFromEpisodesToBatch(), NumpyToTensor()]
    )
    outer = how(outer)
    innermost = outer[0][0]
    innermost.append(FlattenObservations())
    assert outer.observation_space["a"].shape == (4,)
    with pytest.raises(ConfigError, match=r"(?s)EnvToModulePipeline.*BatchIndividualItems.*AddObservations"):
        innermost.append(BatchIndividualItems())
    with pytest.raises(ConfigError, match="GetActions"):
        innermost.append(GetActions())
    assert innermost.names() == ["FlattenObservations"]
    innermost.remove("FlattenObservations")
    assert outer.observation_space["a"].shape == (2, 2)
    outer.remove("ConnectorPipelineV2")[0].append(GetActions())  # which is nobody's business any more


def test_an_edit_that_the_spaces_forbid_changes_nothing():
    pipeline = ConnectorPipelineV2(spaces.Discrete(3), spaces.Discrete(2), connectors=[OneHotObservations()])
    with pytest.raises(ConfigError, match="stacked"):
        pipeline.prepend(FrameStacking(num_frames=2))
    assert pipeline.names() == ["OneHotObservations"]
    assert pipeline.observation_space.shape == (3,)


def test_a_removal_that_leaves_an_impossible_order_changes_nothing():
    add = AddObservationsFromEpisodesToBatch
    pipeline = EnvToModulePipeline(connectors=[add(), WriteObservationsToEpisodes(), add()])
    with pytest.raises(ConfigError, match="WriteObservationsToEpisodes"):
        pipeline.remove(add)
    assert len(pipeline) == 3


# Pieces that differ between the pipelines.


def items_and_columns(pieces, *, nested):
    """``obs`` by episode that pieces of a learner pipeline add to a train batch, on items and on columns."""
    found = []
    for on_items in (True, False):
        inner = pieces()
        pipeline = LearnerConnectorPipeline(connectors=[ConnectorPipelineV2(connectors=inner)] if nested else inner)
        episodes = play(HISTORY, MAPPING)
        if on_items:
            batch = pipeline(rl_module=None, batch={}, episodes=episodes)
            found.append({key: np.stack(items) for key, items in batch["obs"].items()})
            continue
        group = pipeline.run(ColumnBatch([train(episodes)]), rl_module=None, episodes=episodes).groups[0]
        by_key, end = {}, 0
        for episode, count in zip(group.rows.episodes, group.rows.counts, strict=True):
            own, end = unstack(group["obs"])[end : end + count - 1], end + count
            by_key.setdefault(item_key(episode), []).extend(own)
        found.append({key: np.stack(items) for key, items in by_key.items()})
    return found


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "pieces",
    [
        lambda: [FrameStacking(num_frames=3)],
        lambda: [AddObservationsFromEpisodesToBatch()],
        lambda: [PrevActionsPrevRewards(*as_spaces())],
        lambda: [AddObservationsFromEpisodesToBatch(), FlattenObservations(*as_spaces())],
    ],
)
def test_a_learner_pipeline_tells_its_pieces_that_they_make_train_batches(pieces, nested):
    on_items, on_columns = items_and_columns(pieces, nested=nested)
    assert sum(map(len, on_items.values())) > len(AGENTS)
    assert on_items.keys() == on_columns.keys()
    for key, values in on_items.items():
        assert_same(values, on_columns[key])


@pytest.mark.parametrize(
    "make",
    [
        partial(FrameStacking, num_frames=2),
        AddObservationsFromEpisodesToBatch,
        AddTimeDimToBatchAndZeroPad,
        FlattenObservations,
    ],
)
def test_an_argument_that_contradicts_the_pipeline_is_an_error(make):
    for cls, said in ((EnvToModulePipeline, True), (LearnerConnectorPipeline, False)):
        with pytest.raises(ConfigError, match=f"as_learner_connector={said}"):
            cls(connectors=[make(as_learner_connector=said)])
        cls(connectors=[make(as_learner_connector=not said)])
        ConnectorPipelineV2(connectors=[make(as_learner_connector=said)])


# Arguments and states.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FrameStacking(num_frames=2, as_learner_conector=True),
            r"(?s)FrameStacking.*'as_learner_conector'.*'as_learner_connector'",
        ),
        (lambda: NormalizeRewards(gama=0.9), r"(?s)NormalizeRewards.*'gama'.*'gamma'"),
        (lambda: AgentToModuleMapping(x=1), r"(?s)AgentToModuleMapping.*'x'.*input_obs"),
        (lambda: Preprocessor(input_action_spaces=1), "'input_action_space'"),
    ],
)
def test_an_unknown_argument_is_named_with_the_closest_known_one(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("cls", sorted(built_in(), key=lambda cls: cls.__name__))
def test_no_piece_takes_an_argument_that_it_does_not_know(cls):
    with pytest.raises(ConfigError, match=f"(?s){cls.__name__}.*'no_such_argument'"):
        cls(no_such_argument=1)


def test_a_constructor_with_keyword_arguments_decides_for_itself():
    class Mine(ConnectorV2):
        def __init__(self, **settings):
            super().__init__()
            self.settings = settings

    assert Mine(anything=1).settings == {"anything": 1}


def test_a_state_that_lacks_something_names_the_piece():
    class Counts(ConnectorV2):
        def set_state(self, state):
            self.calls = state["calls"]

    with pytest.raises(ConfigError, match=r"(?s)ConnectorPipelineV2.*Counts_2.*'calls'"):
        ConnectorPipelineV2(connectors=[Counts(), Counts()]).set_state({"Counts": {"calls": 1}, "Counts_2": {}})


def test_usual_pipelines_are_built():
    """What the tables forbid must not be what everybody writes."""
    masked = [ActionMasking(), FlattenObservations(), PrevActionsPrevRewards(), MeanStdFilter(), FrameStacking()]
    EnvToModulePipeline(connectors=[*masked, AddObservationsFromEpisodesToBatch(), BatchIndividualItems()])
    rewards = [ScaleRewards(), NormalizeRewards(), ComputeReturnsToGo(gamma=0.9), FrameStacking()]
    added = [AddObservationsFromEpisodesToBatch(), AddColumnsFromEpisodesToTrainBatch(), ClipRewards()]
    batched = [AgentToModuleMapping(), BatchIndividualItems(multi_agent=True), NumpyToTensor()]
    advantages = GeneralAdvantageEstimation()
    LearnerConnectorPipeline(connectors=[AddOneTsToEpisodesAndTruncate(), *rewards, *added, *batched, advantages])
    ModuleToEnvPipeline(VECTOR, spaces.Discrete(2), connectors=[GetActions(), NormalizeAndClipActions()])
