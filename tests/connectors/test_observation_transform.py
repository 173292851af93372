"""Every piece that changes observations does the same on items and on columns, and says what spaces come out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.observation_histories import (
    HISTORIES,
    IMAGE,
    MAPPINGS,
    NESTED,
    VECTOR,
    as_spaces,
    assert_newest_same,
    assert_same,
    assert_train_same,
    newest,
    play,
    train,
)
from helpers.examples import examples
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.common.frame_stacking import FrameStacking
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.agent_id_encoding import AgentIdEncoding
from marl_connectors.connectors.env_to_module.image_to_float import ImageToFloat
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations
from marl_connectors.connectors.env_to_module.pad_observations import PadObservations
from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards
from marl_connectors.connectors.env_to_module.time_limit_encoding import TimeLimitEncoding
from marl_connectors.errors import ConnectorError

CONTINUOUS = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
ACTIONS = spaces.Dict({"turn": spaces.Discrete(3), "go": spaces.Box(0.0, 2.0, (1,), np.float32)})


class Tripled(SingleAgentObservationPreprocessor):
    def preprocess(self, observation, episode):
        return observation * np.float32(2 + len(episode.agent_id))  # an agent's name has one letter

    def preprocess_batch(self, observations, rows):
        return observations * np.float32(3)


class TripledOneByOne(SingleAgentObservationPreprocessor):
    def preprocess(self, observation):
        observation *= 3
        return observation


WRITING = [
    (FlattenObservations, NESTED, None),
    (partial(FlattenObservations, keys_to_remove=["a"]), NESTED, None),
    (FlattenObservations, spaces.MultiDiscrete([[2, 3], [4, 2]]), None),
    (FlattenObservations, IMAGE, None),
    (PrevActionsPrevRewards, NESTED, None),
    (partial(PrevActionsPrevRewards, n_prev_actions=3, n_prev_rewards=2), VECTOR, CONTINUOUS),
    (partial(PrevActionsPrevRewards, n_prev_actions=2, n_prev_rewards=0), VECTOR, ACTIONS),
    (partial(PrevActionsPrevRewards, n_prev_actions=0, n_prev_rewards=3), VECTOR, None),
    (partial(PrevActionsPrevRewards, n_prev_actions=2, flatten=False), NESTED, spaces.MultiDiscrete([2, 3])),
    (OneHotObservations, NESTED, None),
    (OneHotObservations, spaces.Discrete(5, start=-1), None),
    (AgentIdEncoding, VECTOR, None),
    (partial(AgentIdEncoding, agent_ids=["x", "d", "c", "b", "a"]), spaces.Box(0, 3, (2,), np.int32), None),
    (PadObservations, VECTOR, None),
    (partial(TimeLimitEncoding, max_steps=3), VECTOR, None),
    (partial(TimeLimitEncoding, max_steps=5), spaces.Box(0, 3, (2,), np.int32), None),
    (ImageToFloat, IMAGE, None),
    (partial(ImageToFloat, channels_first=False), spaces.Dict({"i": IMAGE, "v": VECTOR}), None),
    (Tripled, VECTOR, None),
    (TripledOneByOne, VECTOR, None),
]
FILTERS = [
    (MeanStdFilter, VECTOR),
    (partial(MeanStdFilter, share_between_agents=True), NESTED),
    (partial(MeanStdFilter, de_mean_to_zero=False, clip_by_value=None), IMAGE),
    (partial(MeanStdFilter, de_std_to_one=False, clip_by_value=1.0), NESTED),
]


def made(make, observation_space, action_space):
    return partial(make, *as_spaces(observation_space, action_space))


@pytest.mark.parametrize(("make", "observation_space", "action_space"), WRITING)
@examples(6)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_newest_observations_are_written_back_alike(make, observation_space, action_space, histories, mapping, cut):
    episodes = play(histories, mapping, observation_space, action_space, cut=cut)
    assert_newest_same(made(make, observation_space, action_space), episodes)


@pytest.mark.parametrize(("make", "observation_space"), FILTERS)
@examples(8)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_filtered_observations_are_alike(make, observation_space, histories, mapping, cut):
    episodes = play(histories, mapping, observation_space, cut=cut)
    assert_newest_same(made(make, observation_space, None), episodes, atol=1e-5)


@pytest.mark.parametrize("num_frames", [1, 3])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE, spaces.Dict({"i": IMAGE, "b": spaces.MultiBinary(2)})])
@examples(5)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_stacked_frames_are_alike(num_frames, observation_space, histories, mapping, cut):
    episodes = play(histories, mapping, observation_space, cut=cut)
    make = partial(FrameStacking, *as_spaces(observation_space), num_frames=num_frames)
    assert_newest_same(make, episodes, batch_too=True)
    assert_train_same(partial(make, as_learner_connector=True), episodes)


LEARNING = [case for case in WRITING if case[0] not in (Tripled, TripledOneByOne, OneHotObservations, PadObservations)]


@pytest.mark.parametrize(("make", "observation_space", "action_space"), LEARNING)
@examples(5)
@given(histories=HISTORIES, mapping=MAPPINGS, cut=st.booleans())
def test_learner_batches_are_alike(make, observation_space, action_space, histories, mapping, cut):
    episodes = play(histories, mapping, observation_space, action_space, cut=cut)
    assert_train_same(partial(made(make, observation_space, action_space), as_learner_connector=True), episodes)


HISTORY = [[{"absent": set(), "ends": {}}, {"absent": {"b"}, "ends": {}}, {"absent": {"c"}, "ends": {"a": True}}]]
MAPPING = {"a": "red", "b": "green", "c": "blue", "d": "red"}


@pytest.mark.parametrize(("make", "observation_space", "action_space"), WRITING)
def test_what_comes_out_is_in_the_announced_space(make, observation_space, action_space):
    if make in (Tripled, TripledOneByOne):
        pytest.skip("its space is the user's business")
    piece = make(*as_spaces(observation_space, action_space))
    episodes = play(HISTORY, MAPPING, observation_space, action_space)
    group = newest(episodes)
    piece.columns(group, ARRAYS)
    for episode in group.rows.episodes:
        item, space = episode.get_observations(-1), piece.observation_space[episode.agent_id]
        assert space.contains(item), (space, item)
    assert piece.action_space == as_spaces(observation_space, action_space)[1]


def test_stacked_zeros_are_in_the_announced_space():
    space = spaces.Box(1.0, 5.0, (2,), np.float32)
    piece = FrameStacking(space, None, num_frames=3)
    assert piece.observation_space.low.tolist() == [0, 0, 0, 0, 1, 1]
    assert piece.observation_space.high.tolist() == [5] * 6
    assert piece.observation_space.contains(np.array([0, 0, 0, 0, 1, 5], np.float32))


@pytest.mark.parametrize(("make", "observation_space", "action_space"), WRITING)
def test_a_second_run_over_the_same_steps_changes_nothing(make, observation_space, action_space):
    if make in (Tripled, TripledOneByOne):
        pytest.skip("its shape does not change, so it cannot know")
    piece = make(*as_spaces(observation_space, action_space))
    group = newest(play(HISTORY, MAPPING, observation_space, action_space))
    piece.columns(group, ARRAYS)
    once = group.rows.get("obs")
    piece.columns(group, ARRAYS)
    assert_same(once, group.rows.get("obs"))


@pytest.mark.parametrize(
    "piece",
    [FlattenObservations, PrevActionsPrevRewards, OneHotObservations, partial(ImageToFloat, channels_first=False)],
)
def test_single_agent_spaces_need_no_flag(piece):
    made = piece(spaces.Dict({"x": IMAGE, "k": spaces.Discrete(2)}), spaces.Discrete(3))
    assert "a" not in getattr(made.observation_space, "spaces", {})
    assert list(made._plans) == [None]


def test_a_dict_of_agents_is_told_from_a_dict_observation_by_the_action_space():
    both = spaces.Dict({"a": VECTOR, "b": VECTOR})
    assert isinstance(FlattenObservations(both, spaces.Discrete(2)).observation_space, spaces.Box)
    several = FlattenObservations(both, spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)}))
    assert set(several.observation_space.spaces) == {"a", "b"}
    forced = FlattenObservations(both, spaces.Discrete(2), multi_agent=True)
    assert set(forced.observation_space.spaces) == {"a", "b"}


def test_what_a_piece_before_put_into_the_batch_is_what_is_changed():
    episodes = play(HISTORY, MAPPING, IMAGE)
    stacking = FrameStacking(*as_spaces(IMAGE), num_frames=2)
    scaling = ImageToFloat(stacking.observation_space, stacking.action_space)
    group = newest(episodes)
    before = group.rows.get("obs").copy()
    for piece in (stacking, scaling):
        piece.columns(group, ARRAYS)
    assert group["obs"].shape == (len(group.rows), 4, 4, 3)
    assert scaling.observation_space["a"].shape == (4, 4, 3)
    np.testing.assert_array_equal(group.rows.get("obs"), before)
    batch = {}
    for piece in (stacking, scaling):
        batch = piece(rl_module=None, batch=batch, episodes=episodes)
    for i, episode in enumerate(group.rows.episodes):
        key = (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)
        assert_same(batch["obs"][key][0], group["obs"][i])


def test_the_batch_of_a_learner_pipeline_is_changed_alike():
    episodes = play(HISTORY, MAPPING, IMAGE)
    stacking = FrameStacking(*as_spaces(IMAGE), num_frames=2, as_learner_connector=True)
    flat = FlattenObservations(stacking.observation_space, stacking.action_space, as_learner_connector=True)
    batch = {}
    for piece in (stacking, flat):
        batch = piece(rl_module=None, batch=batch, episodes=episodes)
    group = train(episodes)
    for piece in (stacking, flat):
        piece.columns(group, ARRAYS)
    steps = [
        item
        for episode in group.rows.episodes
        for item in batch["obs"][(episode.multi_agent_episode_id, episode.agent_id, episode.module_id)]
    ]
    np.testing.assert_array_equal(group["obs"][group.rows.acted], np.array(steps))


def test_observations_that_fit_no_space_are_an_error_that_names_piece_and_agent():
    group = newest(play(HISTORY, MAPPING, VECTOR))
    with pytest.raises(ConnectorError, match=r"(?s)FlattenObservations.*Dict"):
        FlattenObservations(*as_spaces(NESTED)).columns(group, ARRAYS)


def test_agents_that_no_space_has_announced_go_by_their_episodes():
    few_agents = tuple(spaces.Dict({"a": space["a"]}) for space in as_spaces(NESTED))
    for episode in play(HISTORY, MAPPING, NESTED):
        everyone = {part.agent_id: part for part in ConnectorV2.single_agent_episode_iterator([episode])}
        FlattenObservations(*few_agents, multi_agent=True)(rl_module=None, batch={}, episodes=[episode])
        assert {part.get_observations(-1).shape for part in everyone.values()} == {(15,)}
        assert set(everyone) - {"a"}


@pytest.mark.parametrize("piece", [FlattenObservations, FrameStacking, MeanStdFilter, PadObservations])
def test_unknown_options_are_type_errors(piece):
    with pytest.raises(TypeError, match="as_learner_conector"):
        piece(as_learner_conector=True)
