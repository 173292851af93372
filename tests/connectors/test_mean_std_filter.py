import copy
import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.observation_histories import as_spaces, newest, play
from helpers.examples import examples
from helpers.modules.policies_by_hand import stream_state
from helpers.runs.random_runs import plain
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.connectors import running_stats
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.running_stats import FRAGMENT, Fragment, StreamMoments
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
    state = MeanStdFilter().merge_states([piece.get_state()])[key]
    return state.count, state.mean, np.sqrt(state.squares / (state.count - 1))


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
        whole = getattr(MeanStdFilter().merge_states([one.get_state()])[None], key)
        merged = getattr(copies[0].get_state()[None], key)
        np.testing.assert_allclose(merged, whole, rtol=1e-12, atol=1e-12 * max(np.square(values).sum(), 1))


# In env runners.


def observe(pieces_of_envs, fragment, observations):
    """One vector step: each piece gets the observations of its sub-environments, ``{number: {agent: vector}}``.

    Returns what comes out, in the same form.
    """
    found = {}
    for piece, numbers in pieces_of_envs:
        episodes = [
            SingleAgentEpisode(
                f"agent {agent} in {n}",
                observations=[np.array(vector, np.float64)],
                observation_space=SPACE,
                action_space=spaces.Discrete(2),
                agent_id=agent,
                multi_agent_episode_id=f"{n}-0",
            )
            for n in numbers
            for agent, vector in observations.get(n, {}).items()
        ]
        if episodes:
            piece(rl_module=None, batch={}, episodes=episodes, shared_data={FRAGMENT: fragment})
        for episode in episodes:
            number = int(episode.multi_agent_episode_id[:-2])
            found.setdefault(number, {})[episode.agent_id] = episode.get_observations(-1).tolist()
    fragment.step += 1
    return found


def of_agents(**options):
    return MeanStdFilter(*as_spaces(SPACE), **options)


def test_statistics_are_frozen_until_they_are_merged():
    """Nothing is known in the first fragment. Of 1, 3 and 5, the mean is 3 and the deviation 2 in the next ones."""
    piece, fragment = of_agents(), Fragment()
    raw = [observe([(piece, [0])], fragment, {0: {"a": [x, -x]}}) for x in (1, 3, 50)]
    np.testing.assert_allclose([step[0]["a"] for step in raw], [[1, -1], [3, -3], [10, -10]], rtol=1e-7)
    piece.reset_state()
    for x in (1, 3, 5):
        observe([(piece, [0])], fragment, {0: {"a": [x, -x]}})
    piece.merge_own_state()
    for _ in range(2):
        np.testing.assert_allclose(observe([(piece, [0])], Fragment(), {0: {"a": [7, -3]}})[0]["a"], [2, 0], rtol=1e-7)
    assert piece.get_state()["a"].count == 3
    assert piece.get_state()["a"].new_counts.tolist() == [2]


def test_what_a_filter_has_counted_stays_when_observations_are_divided_but_not_centred():
    """Of 1, 3 and 5, the mean is 3 and the deviation 2; they are counted again in a second fragment."""
    piece = of_agents(de_mean_to_zero=False)
    for _ in range(2):
        fragment = Fragment()
        for x in (1, 3, 5):
            found = observe([(piece, [0])], fragment, {0: {"a": [x, -x]}})
        piece.merge_own_state()
    np.testing.assert_allclose(found[0]["a"], [2.5, -2.5], rtol=1e-7)
    count, mean, deviation = known(piece, "a")
    assert count == 6
    np.testing.assert_allclose([mean, deviation], [[3, -3], [(16 / 5) ** 0.5] * 2], rtol=1e-7)


def test_the_state_has_new_moments_by_sub_environment():
    piece, fragment = of_agents(), Fragment()
    observe([(piece, [7, 2])], fragment, {7: {"a": [1, 1]}, 2: {"a": [10, 0]}})
    observe([(piece, [7, 2])], fragment, {7: {"a": [3, 1], "b": [5, 5]}})
    state = piece.get_state()
    assert state["a"].new_from.tolist() == [2, 7]
    assert state["a"].new_counts.tolist() == [1, 2]
    assert state["a"].new_means.tolist() == [[10, 0], [2, 1]]
    assert state["a"].new_squares.tolist() == [[0, 0], [2, 0]]
    assert state["b"].new_from.tolist() == [7]
    merged = piece.merge_states([state])
    assert merged["a"].count == 3
    np.testing.assert_allclose(merged["a"].mean, [14 / 3, 2 / 3], rtol=1e-15)
    np.testing.assert_allclose(merged["a"].squares, [134 / 3, 2 / 3], rtol=1e-15)


STEP = st.dictionaries(
    st.integers(0, 4),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.floats(-1000, 1000), st.floats(-1e9, 1e9)), min_size=1),
    max_size=5,
)


@examples(20)
@given(
    st.lists(st.lists(STEP, max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
    st.permutations(range(3)),
    st.booleans(),
    st.integers(1, 4),
)
def test_states_of_any_split_merge_to_that_of_one_filter_bit_for_bit(fragments, owners, arrival, share, block):
    """The sub-environments are split among three runners; their states arrive in any order, and some twice."""
    whole = of_agents(share_between_agents=share)
    runners = [of_agents(share_between_agents=share) for _ in range(3)]
    split = [(piece, [n for n in range(5) if owners[n] == i]) for i, piece in enumerate(runners)]
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_stats, "_BLOCK_BYTES", 16 * block)  # moments are computed every few steps
        for steps in fragments:
            one, other = Fragment(), Fragment()
            for observations in steps:
                mine = observe([(whole, range(5))], one, observations)
                assert observe(split, other, observations) == mine
                seen += [(agent, v) for agents in observations.values() for agent, v in agents.items()]
            states = [runners[i].get_state() for i in arrival]
            merged = MeanStdFilter().merge_states(states)
            again = MeanStdFilter().merge_states([merged, merged])
            assert plain(again) == plain(merged) == plain(MeanStdFilter().merge_states([*states, states[0]]))
            for piece in runners:
                piece.set_state(merged)
            asked = whole.merge_states([whole.get_state()])
            whole.merge_own_state()
            assert plain(whole.get_state()) == plain(asked) == plain(merged)
    for key, state in whole.get_state().items():
        values = np.array([v for agent, v in seen if share or agent == key])
        assert state.count == len(values)
        scale = 1 + np.abs(values).max(0)
        np.testing.assert_array_less(np.abs(state.mean - values.mean(0)), 1e-12 * scale)
        squares = np.square(values - values.mean(0)).sum(0)
        np.testing.assert_array_less(np.abs(state.squares - squares), 1e-10 * np.square(scale))


def test_agents_that_share_statistics_count_in_one_order_whatever_the_order_of_their_groups():
    """Of 1e16, 1 and -1e16 the sum depends on the order."""
    vectors = {"a": [1e16, 0], "b": [1, 0], "c": [-1e16, 0]}
    states = []
    for order in ("abc", "cab", "bca"):
        piece, fragment = of_agents(share_between_agents=True), Fragment()
        for agent in order:
            observe([(piece, [0])], fragment, {0: {agent: vectors[agent]}})
            fragment.step = 0  # all in one step
        states.append(plain(piece.get_state()))
    assert states[0] == states[1] == states[2]


def test_steps_that_a_sample_does_not_return_do_not_count():
    piece, fragment = of_agents(), Fragment()
    observe([(piece, [0, 1])], fragment, {0: {"a": [1, 1]}, 1: {"a": [5, 5]}})
    fragment.finished = frozenset([0])
    observe([(piece, [0, 1])], fragment, {0: {"a": [100, 100]}, 1: {"a": [7, 7]}})
    own = piece.get_state()["a"]
    assert (own.new_counts.tolist(), own.new_means.tolist()) == ([1, 2], [[1, 1], [6, 6]])


def test_two_states_with_different_moments_of_one_sub_environment_are_an_error():
    pieces = [of_agents() for _ in range(2)]
    for x, piece in enumerate(pieces):
        observe([(piece, [3])], Fragment(), {3: {"a": [x, x]}})
    with pytest.raises(ConnectorError, match=r"(?s)'a'.*sub-environment 3"):
        pieces[0].merge_states([piece.get_state() for piece in pieces])


def test_a_runner_that_has_missed_a_merge_does_not_set_the_others_back():
    one, late = of_agents(), of_agents()
    observe([(one, [0])], Fragment(), {0: {"a": [1, 1]}})
    one.merge_own_state()
    observe([(late, [1])], Fragment(), {1: {"a": [5, 5]}})
    for states in ([one.get_state(), late.get_state()], [late.get_state(), one.get_state()]):
        merged = one.merge_states(states)
        assert (merged["a"].count, merged["a"].mean.tolist()) == (2, [3, 3])


def test_an_agent_that_is_like_another_begins_with_its_statistics():
    piece = of_agents(update_stats=False)
    piece.set_state(state := {"a": stream_state(3, np.full(2, 3.0), np.full(2, 8.0))})
    piece.know_agent("new", "a")
    assert observe([(piece, [0])], Fragment(), {0: {"new": [7, 3]}})[0]["new"] == pytest.approx([2, 0])
    assert plain(piece.get_state()["new"]) == plain(state["a"])


def test_a_subclass_that_merges_in_its_own_way_is_asked():
    class Forgetful(MeanStdFilter):
        def merge_states(self, states):
            return {}

    piece = Forgetful(SPACE, None)
    see(piece, [1, -2], [3, 0])
    piece.merge_own_state()
    assert piece.get_state() == {}


# Numbers.


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
    own.columns(group, ARRAYS)
    state = MeanStdFilter().merge_states([own.get_state()])
    assert set(state) == set("abcd")
    for agent_id in "abcd":
        mine = seen[[i for i, other in enumerate(of) if other == agent_id]]
        assert state[agent_id].count == 2
        np.testing.assert_allclose(state[agent_id].mean, mine.mean(0))
    shared = MeanStdFilter(*as_spaces(SPACE), share_between_agents=True)
    group = newest(play(HISTORY, MAPPING, SPACE))
    shared.columns(group, ARRAYS)
    ((key, only),) = shared.get_state().items()
    assert key == "agents with Box(2,) float64 and actions of Discrete(4)"
    assert only.new_counts.tolist() == [8]
    np.testing.assert_allclose(only.new_means, [seen.mean(0)])


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
    piece.columns(group, ARRAYS)
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
    piece.columns(newest(play(HISTORY, MAPPING, SPACE)), ARRAYS)
    save_state(tmp_path / "c", {"piece": piece.get_state()})
    other = MeanStdFilter(*as_spaces(SPACE))
    other.set_state(load_state(tmp_path / "c")["piece"])
    first, second = (newest(play(HISTORY[:1], MAPPING, SPACE)) for _ in range(2))
    piece.columns(first, ARRAYS)
    other.columns(second, ARRAYS)
    np.testing.assert_array_equal(first.rows.get("obs"), second.rows.get("obs"))
    counts = {key: value.new_counts.tolist() for key, value in piece.get_state().items()}
    assert json.loads(json.dumps(counts)) == {key: [3] for key in "abcd"}


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
    with pytest.raises(ConnectorError, match="finite"):
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
    with pytest.raises(ConnectorError, match="env-to-module"):
        MeanStdFilter(SPACE, None).columns(group, ARRAYS)


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match=r"(?s)MeanStdFilter.*clip_by_value"):
        MeanStdFilter(clip_by_value=-1.0)
    with pytest.raises(ConfigError, match=r"(?s)Box.*Discrete"):
        MeanStdFilter(spaces.Discrete(3), None)
    piece = MeanStdFilter(SPACE, None)
    see(piece, [1, 2])
    with pytest.raises(ConfigError, match=r"(?s)\b2\b.*None.*\b3\b"):
        MeanStdFilter(spaces.Box(-1, 1, (3,)), None).set_state(piece.get_state())
