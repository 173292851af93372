import copy
import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.observation_histories import as_spaces, newest, play
from helpers.examples import examples
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.running_stats import StreamMoments
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError

SPACE = spaces.Box(-1000.0, 1000.0, (2,), np.float64)


def see(piece, *vectors):
    """One call with one episode for each vector; what comes out."""
    episodes = [SingleAgentEpisode(str(i), observations=[np.array(v, np.float64)]) for i, v in enumerate(vectors)]
    piece(rl_module=None, batch={}, episodes=episodes)
    return [episode.get_observations(-1).tolist() for episode in episodes]


def known(piece, key=None):
    state = MeanStdFilter().merge_states([piece.get_state()])[key]["base"]
    return state["count"], state["mean"], np.sqrt(state["squares"] / (state["count"] - 1))


def test_numbers_by_hand():
    """Of 1, 3 and 5 the mean is 3 and the deviation 2; of -2, 0, 2 they are 0 and 2."""
    found = see(MeanStdFilter(SPACE, None), [1, -2], [3, 0], [5, 2])
    np.testing.assert_allclose(found, [[-1, -1], [0, 0], [1, 1]], rtol=1e-7)


def test_the_first_observation_of_all_becomes_zero():
    assert see(MeanStdFilter(SPACE, None), [7, -3]) == [[0, 0]]


def test_options_switch_off_parts():
    np.testing.assert_allclose(
        see(MeanStdFilter(SPACE, None, de_mean_to_zero=False), [1, -2], [3, 0], [5, 2])[2], [2.5, 1], rtol=1e-7
    )
    np.testing.assert_allclose(
        see(MeanStdFilter(SPACE, None, de_std_to_one=False), [1, -2], [3, 0], [5, 2])[2], [2, 2], rtol=1e-7
    )
    clipped = MeanStdFilter(SPACE, None, clip_by_value=0.5)
    np.testing.assert_allclose(see(clipped, [1, -2], [3, 0], [5, 2])[2], [0.5, 0.5])
    assert clipped.observation_space.low.tolist() == [-0.5, -0.5]
    free = MeanStdFilter(SPACE, None, clip_by_value=None)
    assert free.observation_space.high.tolist() == [np.inf, np.inf]


def test_without_updates_nothing_is_learned():
    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, -2], [3, 0], [5, 2])
    before = copy.deepcopy(piece.get_state())
    piece.update_stats = False
    np.testing.assert_allclose(see(piece, [7, 6]), [[2, 3]], rtol=1e-7)
    assert str(piece.get_state()) == str(before)
    untaught = MeanStdFilter(SPACE, None, update_stats=False)
    np.testing.assert_allclose(see(untaught, [7, 6]), [[7, 6]], rtol=1e-7)


def test_a_state_is_no_view_of_what_goes_on():
    """Evaluation takes the state before and gives it back after."""
    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, -2], [3, 0])
    state = piece.get_state()
    text = str(state)
    see(piece, [100, 100])
    assert str(state) == text
    other = MeanStdFilter(SPACE, None)
    other.set_state(state)
    see(other, [100, 100])
    assert str(state) == text
    assert str(other.get_state()) == str(piece.get_state())


def test_reset_forgets():
    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, -2], [3, 0])
    piece.reset_state()
    assert piece.get_state() == {}
    assert see(piece, [9, 9]) == [[0, 0]]


VECTORS = st.lists(st.tuples(st.floats(-1000, 1000), st.floats(-1000, 1000)), min_size=1, max_size=12)


@examples(40)
@given(st.lists(VECTORS, min_size=1, max_size=4), st.lists(VECTORS, min_size=1, max_size=4))
def test_merging_is_as_if_one_filter_had_seen_everything(first, second):
    """Two rounds, with a merge after each: what was shared before is not counted once for each copy."""
    copies = [MeanStdFilter(SPACE, None) for _ in range(max(len(first), len(second)))]
    one = MeanStdFilter(SPACE, None)
    for batches in (first, second):
        for piece, batch in zip(copies, batches, strict=False):
            for vector in batch:
                see(piece, vector)
                see(one, vector)
        merged = MeanStdFilter().merge_states([piece.get_state() for piece in copies])
        for piece in copies:
            piece.set_state(merged)
    count, mean, _ = known(copies[0])
    values = np.array([v for batches in (first, second) for batch in batches for v in batch])
    assert count == len(values)
    np.testing.assert_allclose(mean, values.mean(0), rtol=0, atol=1e-12 * max(np.abs(values).max(), 1))
    for key in ("mean", "squares"):
        whole = MeanStdFilter().merge_states([one.get_state()])[None]["base"][key]
        merged = copies[0].get_state()[None]["base"][key]
        np.testing.assert_allclose(merged, whole, rtol=1e-12, atol=1e-12 * max(np.square(values).sum(), 1))


def test_far_from_zero_the_deviation_is_still_right():
    piece = MeanStdFilter(spaces.Box(-1e12, 1e12, (2,), np.float64), None)
    rng = np.random.default_rng(0)
    values = 1e9 + rng.standard_normal((400, 2))
    for begin in range(0, 400, 7):
        see(piece, *values[begin : begin + 7])
    _, mean, std = known(piece)
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-15)
    np.testing.assert_allclose(std, values.std(0, ddof=1), rtol=1e-6)


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-50, 50)), min_size=1, max_size=30))
def test_moments_of_many_streams_are_those_of_each(pairs):
    index, values = np.array([i for i, _ in pairs]), np.array([[x] for _, x in pairs])
    streams, moments = StreamMoments.of(values, index)
    assert streams.tolist() == sorted(set(index.tolist()))
    for i, stream in enumerate(streams):
        own = values[index == stream]
        assert moments.count[i] == len(own)
        np.testing.assert_allclose(moments.mean[i], own.mean(0), atol=1e-12)
        np.testing.assert_allclose(moments.squares[i], np.square(own - own.mean(0)).sum(0), atol=1e-10)


HISTORY = [[{"absent": set(), "ends": {}}, {"absent": {"b"}, "ends": {}}, {"absent": set(), "ends": {}}]] * 2
MAPPING = {"a": "red", "b": "green", "c": "blue", "d": "red"}


def test_each_agent_has_statistics_of_its_own_unless_they_are_shared():
    episodes = play(HISTORY, MAPPING, SPACE)
    group = newest(episodes)
    seen = group.rows.get("obs").copy()
    of = [episode.agent_id for episode in group.rows.episodes]
    own = MeanStdFilter(*as_spaces(SPACE))
    own.on_columns(rl_module=None, columns=group)
    state = MeanStdFilter().merge_states([own.get_state()])
    assert set(state) == set("abcd")
    for agent_id in "abcd":
        mine = seen[[i for i, other in enumerate(of) if other == agent_id]]
        assert state[agent_id]["base"]["count"] == 2
        np.testing.assert_allclose(state[agent_id]["base"]["mean"], mine.mean(0))
    shared = MeanStdFilter(*as_spaces(SPACE), share_between_agents=True)
    group = newest(play(HISTORY, MAPPING, SPACE))
    shared.on_columns(rl_module=None, columns=group)
    ((key, only),) = shared.get_state().items()
    assert key == "agents with Box(2,) float64 and actions of Discrete(4)"
    assert only["own"]["count"] == 8
    np.testing.assert_allclose(only["own"]["mean"], seen.mean(0))


def test_last_observations_of_ended_episodes_are_changed_but_not_counted():
    def ended():
        return SingleAgentEpisode(
            "x",
            observation_space=SPACE,
            observations=[np.zeros(2), np.ones(2)],
            actions=[0],
            rewards=[0.0],
            terminated=True,
            len_lookback_buffer=0,
        )

    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, -2], [3, 0], [5, 2])
    before = str(piece.get_state())
    group = ColumnGroup(rows_of_episodes([ended()], ["default_policy"], last_only=True))
    piece.on_columns(rl_module=None, columns=group)
    np.testing.assert_allclose(group.rows.get("obs"), [[-1, 0.5]])
    episode = ended()
    piece(rl_module=None, batch={}, episodes=[episode])
    np.testing.assert_allclose(episode.get_observations(-1), [-1, 0.5])
    assert str(piece.get_state()) == before


def test_other_parts_stay_and_whole_numbers_become_floats():
    space = spaces.Dict({"n": spaces.Box(0, 9, (1,), np.int32), "d": spaces.Discrete(3)})
    piece = MeanStdFilter(space, None)
    assert piece.observation_space["n"].dtype == np.float32
    assert piece.observation_space["d"] == spaces.Discrete(3)
    episodes = [SingleAgentEpisode(str(i), observations=[{"n": np.array([i], np.int32), "d": i}]) for i in (0, 1, 2)]
    piece(rl_module=None, batch={}, episodes=episodes)
    assert [episode.get_observations(-1)["d"] for episode in episodes] == [0, 1, 2]
    found = np.array([episode.get_observations(-1)["n"] for episode in episodes])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[-1], [0], [1]], rtol=1e-6)


def test_the_state_goes_through_a_checkpoint(tmp_path):
    piece = MeanStdFilter(*as_spaces(SPACE))
    piece.on_columns(rl_module=None, columns=newest(play(HISTORY, MAPPING, SPACE)))
    save_state(tmp_path / "c", {"piece": piece.get_state()})
    other = MeanStdFilter(*as_spaces(SPACE))
    other.set_state(load_state(tmp_path / "c")["piece"])
    first, second = (newest(play(HISTORY[:1], MAPPING, SPACE)) for _ in range(2))
    piece.on_columns(rl_module=None, columns=first)
    other.on_columns(rl_module=None, columns=second)
    np.testing.assert_array_equal(first.rows.get("obs"), second.rows.get("obs"))
    counts = {key: value["own"]["count"] for key, value in piece.get_state().items()}
    assert json.loads(json.dumps(counts)) == dict.fromkeys("abcd", 3)


def test_ever_new_agents_leave_nothing_behind():
    piece = MeanStdFilter(spaces.Dict({"a": SPACE}), None, multi_agent=True)
    for i in range(200):
        episode = SingleAgentEpisode(
            "x", observations=[np.full(2, float(i))], observation_space=SPACE, agent_id=f"new_{i}"
        )
        piece(rl_module=None, batch={}, episodes=[episode])
    assert len(piece.get_state()) == 1


def test_what_is_not_finite_is_an_error_and_not_learned():
    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, -2], [3, 0])
    before = str(piece.get_state())
    with pytest.raises(ConnectorError, match="is not finite, which would make its statistics"):
        see(piece, [np.inf, 0])
    assert str(piece.get_state()) == before


def test_a_learner_pipeline_is_no_place_for_it():
    episode = SingleAgentEpisode(
        "x",
        observation_space=SPACE,
        observations=[np.zeros(2)] * 3,
        actions=[0, 0],
        rewards=[0.0, 0.0],
        len_lookback_buffer=0,
    )
    group = ColumnGroup(rows_of_episodes([episode], ["default_policy"]))
    with pytest.raises(ConnectorError, match="belongs in an env-to-module pipeline"):
        MeanStdFilter(SPACE, None).on_columns(rl_module=None, columns=group)


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match="clip_by_value must be a number > 0 or None"):
        MeanStdFilter(clip_by_value=-1.0)
    with pytest.raises(ConfigError, match="there is no Box to standardise in Discrete"):
        MeanStdFilter(spaces.Discrete(3), None)
    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, 2])
    with pytest.raises(ConfigError, match=r"the state has 2 numbers for None, whose observations have 3"):
        MeanStdFilter(spaces.Box(-1, 1, (3,)), None).set_state(piece.get_state())
