"""Episodes with an artificial step: against episodes that really have it, and in runs of a learner pipeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.multi_agent_histories import (
    ACT_SPACE,
    EPISODES,
    MAPPINGS,
    OBS_SPACE,
    agent_episodes,
    columns_of,
    play,
)
from helpers.examples import examples
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key
from marl_connectors.connectors.defaults import learner_pipeline
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.bootstrap_view import ExtendedEpisode, extended, original
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError

NAMES = ("observations", "actions", "rewards", "infos", "logp")
INDICES = st.one_of(
    st.none(),
    st.integers(-8, 8),
    st.lists(st.integers(-7, 7), max_size=4),
    st.builds(slice, *[st.one_of(st.none(), st.integers(-8, 8))] * 2, st.sampled_from([None, 1, 2, -1])),
)


def episode_of(
    steps: int, lookback: int, backing: str = "list", *, longer: bool = False, done: str = ""
) -> SingleAgentEpisode:
    """Observation, action, reward and info dict of each step say its number; with a step more if ``longer``."""
    count = lookback + steps
    numbers = list(range(count))
    seen = [np.array([i, -i, 0], np.float32) for i in [*numbers, count] + [count] * longer]
    episode = SingleAgentEpisode(
        "x",
        observations=seen,
        observation_space=OBS_SPACE,
        infos=[{"n": int(o[0])} for o in seen],
        actions=[i % 4 for i in numbers] + [0] * longer,
        action_space=ACT_SPACE,
        rewards=[i + 0.5 for i in numbers] + [0.0] * longer,
        extra_model_outputs={"logp": [np.float32(-i - 1) for i in numbers] + [np.float32(0)] * longer},
        terminated=done == "terminated",
        truncated=done == "truncated" or (longer and not done),
        len_lookback_buffer=lookback,
        t_started=lookback,
    )
    if backing == "numpy":
        episode.to_numpy()
    if backing == "lane":
        rows_of_episodes([episode], ["default_policy"])
    return episode


def asked(episode, name, indices, **options):
    """What a getter gives, or the kind of error that it raises."""
    try:
        if name == "logp":
            return episode.get_extra_model_outputs("logp", indices, **options)
        return getattr(episode, f"get_{name}")(indices, **options)
    except (IndexError, ValueError) as error:
        return type(error)


def assert_same(one, other):
    if isinstance(one, (type, dict)) or (isinstance(one, list) and one and isinstance(one[0], dict)):
        assert one == other
    else:
        np.testing.assert_array_equal(np.array(one), np.array(other))


@examples(60)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(["list", "numpy", "lane"]),
    st.sampled_from(NAMES),
    INDICES,
    st.booleans(),
    st.sampled_from([None, 0.0, 7.0]),
    st.booleans(),
)
def test_a_view_answers_as_an_episode_that_has_the_step(
    steps, lookback, backing, name, indices, negative, fill, one_hot
):
    view = extended(episode_of(steps, lookback, backing))
    real = episode_of(steps, lookback, "list" if backing == "list" else "numpy", longer=True)
    options = {"neg_index_as_lookback": negative, "fill": fill}
    if name == "actions":
        options["one_hot_discrete"] = one_hot
    assert len(view) == len(real) == steps + 1
    assert_same(asked(view, name, indices, **options), asked(real, name, indices, **options))


@examples(60)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(["list", "numpy", "lane"]),
    st.sampled_from(["observations", "actions", "rewards"]),
    st.one_of(st.integers(-6, 6), st.lists(st.integers(-5, 5), max_size=3, unique=True), st.none()),
)
def test_writes_reach_the_episode_and_end_with_it(steps, lookback, backing, name, indices):
    source = episode_of(steps, lookback, backing)
    view, plain = extended(source), episode_of(steps, lookback, "list", longer=True)
    wanted = asked(plain, name, indices)
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            getattr(view, f"set_{name}")(new_data=[], at_indices=indices)
        return
    many = not isinstance(indices, int)
    new = [item * 0 + 3 for item in wanted] if many else wanted * 0 + 3
    for episode in (view, plain):
        getattr(episode, f"set_{name}")(new_data=new, at_indices=indices)
    kept = slice(-lookback if lookback else 0, steps + (name == "observations"))
    assert_same(
        asked(source, name, kept, neg_index_as_lookback=True), asked(plain, name, kept, neg_index_as_lookback=True)
    )
    assert len(source) == steps


@pytest.mark.parametrize("backing", ["list", "numpy", "lane"])
def test_a_write_to_the_lookback_stays_in_the_lookback(backing):
    source = episode_of(3, 2, backing)
    extended(source).set_rewards(new_data=9.0, at_indices=-1, neg_index_as_lookback=True)
    assert list(source.get_rewards(slice(-2, 3), neg_index_as_lookback=True)) == [0.5, 9.0, 2.5, 3.5, 4.5]
    extended(source).set_rewards(new_data=8.0, at_indices=-2)
    assert list(source.get_rewards(slice(-2, 3), neg_index_as_lookback=True)) == [0.5, 9.0, 2.5, 3.5, 8.0]


def test_a_write_to_the_artificial_step_reaches_no_neighbour_in_a_rollout():
    first, second = (episode_of(2, 0) for _ in range(2))
    rows = rows_of_episodes([first, second], ["default_policy"])
    extended(first).set_rewards(new_data=[7.0, 8.0], at_indices=[0, 2])
    extended(first).set_observations(new_data=np.full((2, 3), 6, np.float32), at_indices=[0, 3])
    assert rows.get("rewards").tolist() == [7.0, 1.5, 0.0, 0.5, 1.5, 0.0]
    assert rows.get("obs")[:, 0].tolist() == [6.0, 1.0, 2.0, 0.0, 1.0, 2.0]


def test_a_mask_that_a_later_piece_changes_is_not_which_rows_were_acted_on():
    rows = rows_of_episodes([episode_of(2, 0)], ["default_policy"])
    columns = ColumnGroup(rows)
    AddOneTsToEpisodesAndTruncate().columns(columns, ARRAYS)
    columns["loss_mask"][0] = False
    assert rows.acted.tolist() == [True, True, False]


@pytest.mark.parametrize("backing", ["list", "numpy", "lane"])
def test_whole_columns_can_be_replaced_also_by_other_shapes(backing):
    source = episode_of(3, 0, backing)
    view = extended(source)
    view.set_observations(new_data=np.arange(10.0).reshape(5, 2))
    view.set_rewards(new_data=np.array([1.0, 2.0, 3.0, 99.0]))
    view.set_extra_model_outputs(key="new", new_data=[4, 5, 6, 7])
    assert np.array(source.get_observations()).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert np.array(view.get_observations()).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [6, 7]]
    assert list(source.get_rewards()) == [1.0, 2.0, 3.0]
    assert list(view.get_rewards()) == [1.0, 2.0, 3.0, 0.0]
    assert list(source.get_extra_model_outputs("new")) == [4, 5, 6]
    with pytest.raises(IndexError, match="4 item"):
        view.set_rewards(new_data=np.zeros(3))
    source.validate()


@pytest.mark.parametrize(
    ("done", "flags"), [("", (False, True)), ("truncated", (False, True)), ("terminated", (True, False))]
)
def test_what_has_not_ended_is_truncated_in_the_view_only(done, flags):
    source = episode_of(2, 1, done=done)
    before = (source.is_terminated, source.is_truncated)
    view = extended(source)
    assert (view.is_terminated, view.is_truncated) == flags
    assert (source.is_terminated, source.is_truncated) == before
    assert (view.id_, view.t_started, view.t, source.t) == ("x", 1, 4, 3)
    assert original(view) is source
    assert extended(view) is view


@pytest.mark.parametrize("backing", ["list", "numpy", "lane"])
def test_a_view_can_be_copied_and_goes_on_counting_env_steps(backing):
    view = extended(episode_of(2, 1, backing))
    assert list(view.storage.column("t")) == [0, 1, 2, 3, 4]
    part = view.slice(slice(1, 3))
    assert (len(part), np.array(part.get_observations())[:, 0].tolist()) == (2, [2, 3, 3])
    assert list(part.get_rewards()) == [2.5, 0.0]
    assert part.is_truncated
    view.validate()


def test_custom_data_are_shared():
    source = episode_of(2, 0)
    extended(source).custom_data["seen"] = True
    assert source.custom_data == {"seen": True}


def test_a_view_goes_on_where_its_episode_is_packed_into_a_rollout():
    source = episode_of(3, 0)
    view = extended(source)
    rows = rows_of_episodes([view], ["default_policy"])
    assert rows.counts == [4]
    assert rows.acted.tolist() == [True, True, True, False]
    assert rows.episodes == [source]
    view.set_rewards(new_data=8.0, at_indices=1)
    assert rows.get("rewards").tolist() == [0.5, 8.0, 2.5, 0.0]


@examples(20)
@given(EPISODES, MAPPINGS)
def test_env_steps_of_a_multi_agent_episode_stay_as_they_are(histories, mapping):
    for episode in play(histories, mapping):
        view = extended(episode)
        assert view.get_agents_that_stepped() == episode.get_agents_that_stepped()
        assert view.get_agents_to_act() == episode.get_agents_to_act()
        assert len(view) == len(episode)
        for getter in ("get_observations", "get_actions", "get_rewards", "get_infos"):
            one, other = getattr(view, getter)(return_list=True), getattr(episode, getter)(return_list=True)
            assert [sorted(step) for step in one] == [sorted(step) for step in other]
            for step, same in zip(one, other, strict=True):
                for agent_id in step:
                    assert_same(step[agent_id], same[agent_id])
        assert repr(view.slice(slice(0, 2))) == repr(episode.slice(slice(0, 2)))
        for part, longer in zip(episode.all_agent_episodes(), view.all_agent_episodes(), strict=True):
            assert len(longer) == len(part) + (len(part) > 0)
        for agent_id, rewards in view.get_rewards(env_steps=False).items():
            own = episode.agent_episodes[agent_id]
            if len(own):
                assert list(rewards) == [*own.get_rewards(), 0.0]


# In a pipeline.


class LikeRLlib(ConnectorV2):
    """Adds a column, and the observations, as pieces for RLlib do; notes what it sees."""

    def __init__(self):
        super().__init__()
        self.lengths = None

    def __call__(self, *, batch, episodes, **kwargs):
        self.lengths = []
        for sa_episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            self.lengths.append(len(sa_episode))
            for i in range(len(sa_episode)):
                item = np.float32(sa_episode.get_rewards(i) + 100 * i)
                self.add_batch_item(batch, "numbered", item, sa_episode)
            if len(sa_episode):
                observations = sa_episode.get_observations(slice(0, len(sa_episode)))
                self.add_n_batch_items(batch, "obs", observations, len(sa_episode), sa_episode)
            sa_episode.custom_data["noted"] = True
        return batch


@examples(20)
@given(EPISODES, MAPPINGS)
def test_a_piece_written_for_rllib_gives_the_same_on_both_sides(histories, mapping):
    episodes = play(histories, mapping)
    own = agent_episodes(episodes, stepped_only=False)
    if not own:
        return
    lengths = [len(e) for e in ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False)]
    piece = LikeRLlib()
    pipeline = LearnerConnectorPipeline(connectors=[AddOneTsToEpisodesAndTruncate(), piece])
    given_ = list(episodes)
    items = pipeline(rl_module=None, batch={}, episodes=given_)
    assert all(one is other for one, other in zip(given_, episodes, strict=True))
    assert piece.lengths == [n + (n > 0) for n in lengths]
    batch = pipeline.run(columns_of(episodes, train=True), rl_module=None, episodes=episodes)
    (group,) = batch.groups
    np.testing.assert_array_equal(group["loss_mask"], group.rows.acted)
    np.testing.assert_array_equal(group["obs"], group.rows.get("obs"))
    taken, begin = {}, 0
    for episode, count in zip(group.rows.episodes, group.rows.counts, strict=True):
        key = item_key(episode)
        at, taken[key] = taken.get(key, 0), taken.get(key, 0) + count
        for name in ("obs", "numbered", "loss_mask"):
            np.testing.assert_array_equal(
                np.array(items[name][key][at : at + count]), group[name][begin : begin + count]
            )
        begin += count
    assert [len(e) for e in group.rows.episodes] == [count - 1 for count in group.rows.counts]
    assert all(episode.custom_data == {"noted": True} for episode in own)


class Looks(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        self.lengths = [len(episode) for episode in episodes]
        return batch


@pytest.mark.parametrize("on_columns", [False, True])
def test_pieces_before_it_see_episodes_as_they_are_and_those_after_it_longer_ones(on_columns):
    episodes = [episode_of(2, 0)]
    before, after = Looks(), Looks()
    pipeline = LearnerConnectorPipeline(connectors=[before, AddOneTsToEpisodesAndTruncate(), after])
    for _ in range(2):
        if on_columns:
            batch = ColumnBatch([ColumnGroup(rows_of_episodes(episodes, ["default_policy"]))])
            pipeline.run(batch, rl_module=None, episodes=episodes)
        else:
            pipeline(rl_module=None, batch={}, episodes=episodes)
        assert (before.lengths, after.lengths) == ([2], [3])
        assert type(episodes[0]) is SingleAgentEpisode
        assert len(episodes[0]) == 2


def test_in_any_other_pipeline_the_list_holds_longer_episodes_afterwards():
    source = episode_of(2, 0)
    episodes = [source]
    piece = LikeRLlib()
    batch = ConnectorPipelineV2(connectors=[AddOneTsToEpisodesAndTruncate(), piece])(
        rl_module=None, batch={}, episodes=episodes
    )
    assert piece.lengths == [3]
    assert isinstance(episodes[0], ExtendedEpisode)
    assert (len(source), source.is_truncated) == (2, False)
    assert batch["loss_mask"] == {("x",): [True, True, False]}
    assert batch["numbered"] == {("x",): [0.5, 101.5, 200.0]}
    with pytest.raises(ConnectorError, match=r"list\(episodes\)"):
        AddOneTsToEpisodesAndTruncate()(rl_module=None, batch={}, episodes=(source,))


def test_it_is_first_in_the_default_learner_pipeline_and_before_custom_pieces():
    custom = LikeRLlib()
    assert learner_pipeline([custom], multi_agent=True).names()[:2] == ["AddOneTsToEpisodesAndTruncate", "LikeRLlib"]
    assert len(learner_pipeline(multi_agent=True, add_defaults=False)) == 0
