import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten, flatten_space
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.env_to_module import flatten_observations
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import stack

SPACE = spaces.Dict(
    {
        "a": spaces.Box(-10.0, 10.0, (), np.float32),
        "b": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2, 1), np.float32)]),
        "c": spaces.MultiDiscrete([2, 3]),
    }
)
ITEM = {"a": np.float32(-10.0), "b": (1, np.array([[-1.0], [0.5]], np.float32)), "c": np.array([0, 2])}
FLAT = [-10.0, 0.0, 1.0, -1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 1.0]

LEAVES = st.one_of(
    st.integers(1, 4).flatmap(lambda n: st.integers(-2, 3).map(lambda start: spaces.Discrete(n, start=start))),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 3).map(spaces.MultiBinary),
    st.tuples(
        st.lists(st.integers(1, 3), max_size=3).map(tuple), st.sampled_from([np.float32, np.float64, np.uint8])
    ).map(lambda pair: spaces.Box(0, 7, *pair)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("zxay"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


@examples(60)
@given(SPACES)
def test_any_space_is_flattened_as_gymnasium_does(space):
    space.seed(1)
    items = [space.sample() for _ in range(3)]
    flattener = Flattener(space)
    flat = flattener(stack(items, space))
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, np.array([flatten(space, item) for item in items], np.float32))
    same = flatten_space(space)
    np.testing.assert_array_equal(flattener.space.low, same.low.astype(np.float32))
    np.testing.assert_array_equal(flattener.space.high, same.high.astype(np.float32))


def test_a_flat_vector_is_passed_on_without_a_copy():
    values = np.ones((2, 3), np.float32)
    assert Flattener(spaces.Box(-1, 1, (3,), np.float32))(values) is not None
    assert np.shares_memory(Flattener(spaces.Box(-1, 1, (3,), np.float32))(values), values)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({})])
def test_what_has_no_fixed_size_is_an_error(space):
    with pytest.raises(ConfigError, match="Flattener"):
        FlattenObservations(space, None)


def test_the_example_of_the_documents():
    episodes = [
        SingleAgentEpisode(observations=[ITEM]),
        SingleAgentEpisode(observations=[{**ITEM, "a": np.float32(3)}]),
    ]
    piece = FlattenObservations(SPACE, spaces.Discrete(2))
    assert piece(rl_module=None, batch={}, episodes=episodes, explore=True, shared_data={}) == {}
    assert episodes[0].get_observations(0).tolist() == FLAT
    assert episodes[1].get_observations(0).tolist() == [3.0, *FLAT[1:]]
    assert piece.observation_space.shape == (10,)


def test_keys_are_removed():
    episode = SingleAgentEpisode(observations=[ITEM])
    piece = FlattenObservations(SPACE, spaces.Discrete(2), keys_to_remove=["a"])
    piece(rl_module=None, batch={}, episodes=[episode])
    assert episode.get_observations(0).tolist() == FLAT[1:]
    assert piece.observation_space.shape == (9,)


def test_only_the_named_agents_are_flattened():
    both = spaces.Dict({"agent_1": SPACE, "agent_2": SPACE})
    episode = MultiAgentEpisode(observations=[{"agent_1": ITEM, "agent_2": ITEM}])
    piece = FlattenObservations(both, spaces.Discrete(2), multi_agent=True, agent_ids=["agent_1"])
    piece(rl_module=None, batch={}, episodes=[episode])
    assert episode.agent_episodes["agent_1"].get_observations(0).tolist() == FLAT
    assert episode.agent_episodes["agent_2"].get_observations(0)["c"].tolist() == [0, 2]
    assert piece.observation_space["agent_1"].shape == (10,)
    assert piece.observation_space["agent_2"] == SPACE


def test_as_a_learner_piece_it_fills_the_batch_and_leaves_the_episodes():
    episode = SingleAgentEpisode(observations=[ITEM, ITEM], actions=[1], rewards=[0.0], len_lookback_buffer=0)
    piece = FlattenObservations(SPACE, spaces.Discrete(2), as_learner_connector=True, keys_to_remove=["a"])
    batch = piece(rl_module=None, batch={}, episodes=[episode])
    assert [item.tolist() for item in batch["obs"][(episode.id_,)]] == [FLAT[1:]]
    kept = episode.get_observations(0)
    assert list(kept) == list(ITEM) and kept["a"] == -10.0 and kept["c"].tolist() == [0, 2]


def rows_of(agents):
    parts = [
        SingleAgentEpisode(
            observations=[ITEM, ITEM],
            observation_space=SPACE,
            actions=[1],
            rewards=[0.0],
            len_lookback_buffer=0,
            agent_id=agent_id,
            module_id="m",
            multi_agent_episode_id="e",
        )
        for agent_id in agents
    ]
    return ColumnGroup(rows_of_episodes(parts, ["m"]))


def test_agents_with_like_spaces_are_all_named_or_none_of_them():
    both = spaces.Dict({"x": SPACE, "y": SPACE, "z": SPACE})
    piece = FlattenObservations(both, spaces.Discrete(2), multi_agent=True, agent_ids=["x", "y"])
    group = rows_of(["x", "y"])
    piece.columns(group, ARRAYS)
    assert group.rows.get("obs").tolist() == [FLAT] * 4
    group = rows_of(["z"])
    piece.columns(group, ARRAYS)
    assert set(group.rows.get("obs")) == {"a", "b", "c"}
    with pytest.raises(ConnectorError, match=r"(?s)agent_ids.*'x'.*'z'"):
        piece.columns(rows_of(["x", "z"]), ARRAYS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent_ids": ["q"]}, r"(?s)agent_ids.*'q'"),
        ({"agent_ids": "x"}, "ids"),
        ({"keys_to_remove": ["aa"]}, r"(?s)keys_to_remove.*'aa'.*Dict.*'a'"),
        ({"keys_to_remove": ["a", "b", "c"]}, "number"),
    ],
)
def test_wrong_use_is_named(options, message):
    with pytest.raises(ConfigError, match=message):
        FlattenObservations(spaces.Dict({"x": SPACE}), None, multi_agent=True, **options)


def test_agent_ids_in_single_agent_use_are_an_error():
    with pytest.raises(ConfigError, match="agent_ids"):
        FlattenObservations(SPACE, spaces.Discrete(2), agent_ids=["x"])


def test_a_flag_that_does_not_fit_the_space_is_an_error():
    with pytest.raises(ConfigError, match=r"(?s)multi_agent=True.*Dict"):
        FlattenObservations(spaces.Discrete(2), None, multi_agent=True)


def test_an_unknown_space_is_an_error():
    with pytest.raises(ConnectorError, match="agent None"):
        FlattenObservations()(rl_module=None, batch={}, episodes=[SingleAgentEpisode(observations=[np.zeros(2)])])


def test_both_import_paths_give_one_class():
    assert flatten_observations.FlattenObservations is FlattenObservations
