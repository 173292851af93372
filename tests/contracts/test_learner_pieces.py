"""The pieces that add to a train batch, and what must never reach a loss."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.episodes.multi_agent_histories import (
    ACT_SPACE,
    EPISODES,
    MAPPINGS,
    OBS_SPACE,
    agent_episodes,
    columns_of,
    make_modules,
    play,
    real_rows,
)
from helpers.examples import examples
from marl_connectors import ConfigError
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key
from marl_connectors.connectors.defaults import learner_pipeline
from marl_connectors.connectors.item_adapter import to_items
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_infos_from_episodes_to_train_batch import AddInfosFromEpisodesToTrainBatch
from marl_connectors.connectors.learner.add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.clip_rewards import ClipRewards
from marl_connectors.connectors.learner.compute_returns_to_go import ComputeReturnsToGo
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.learner.normalize_rewards import NormalizeRewards
from marl_connectors.connectors.learner.scale_rewards import ScaleRewards
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.learner.minibatches import GroupRows, minibatches_of_epoch
from marl_connectors.ops.discounting import discounted_sums

MODULES = make_modules()
PIECES = {
    "infos": lambda: [AddInfosFromEpisodesToTrainBatch()],
    "next observations": lambda: [AddNextObservationsFromEpisodesToTrainBatch()],
    "returns to go": lambda: [ComputeReturnsToGo(gamma=0.5)],
    "returns to go of clipped rewards": lambda: [ClipRewards(clip_rewards=2.0), ComputeReturnsToGo(gamma=0.9)],
    "scaled": lambda: [ScaleRewards(scale=0.5, shift=-1.0)],
    "scaled after others": lambda: [AddColumnsFromEpisodesToTrainBatch(), ScaleRewards(scale=2.0)],
    "clipped": lambda: [ClipRewards()],
}


def chunk(id_="x", rewards=(1.0, 2.0, 4.0), infos=True, terminated=False):
    """Observations count from 1; the info dict of each has its number."""
    numbers = range(1, len(rewards) + 2)
    return SingleAgentEpisode(
        id_,
        observations=[np.array([n], np.float32) for n in numbers],
        infos=[{"n": n, "array": np.zeros(2)} if n % 2 else {} for n in numbers] if infos else None,
        actions=[0] * len(rewards),
        rewards=list(rewards),
        terminated=terminated,
        len_lookback_buffer=0,
    )


def on_columns(pieces, episodes):
    """The one group of a run on columns."""
    batch = ColumnBatch([ColumnGroup(rows_of_episodes(episodes, ["default_policy"]))])
    return LearnerConnectorPipeline(connectors=pieces).run(batch, rl_module=None, episodes=episodes).groups[0]


def on_items(pieces, episodes):
    return LearnerConnectorPipeline(connectors=pieces)(rl_module=None, batch={}, episodes=episodes)


def plain(item):
    return item if isinstance(item, dict) else np.asarray(item).tolist()


@pytest.mark.parametrize("name", list(PIECES))
@pytest.mark.parametrize("step_more", [True, False])
@examples(15)
@given(histories=EPISODES, mapping=MAPPINGS, noted=st.booleans())
def test_a_piece_gives_the_same_on_items_and_columns(name, step_more, histories, mapping, noted):
    episodes = play(histories, mapping)
    own = agent_episodes(episodes, stepped_only=False)
    if not own:
        return
    for number, episode in enumerate(own if noted else ()):
        episode.storage.set_items("infos", [0], [{"number": number}])
    pieces = [*([AddOneTsToEpisodesAndTruncate()] if step_more else []), *PIECES[name]()]
    items = on_items(pieces, copy.deepcopy(episodes))
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    batch = pipeline.run(columns_of(episodes, train=True), rl_module=MODULES, episodes=episodes)
    columns = to_items(batch)
    assert set(items) == set(columns) != set()
    begins = {}
    for episode in batch.groups[0].rows.episodes:
        key, steps = item_key(episode), len(episode)
        first, longer = begins.get(key, (0, 0))
        begins[key] = first + steps + step_more, longer + steps + 1
        for column in items:
            found = [plain(item) for item in items[column][key][first : first + steps]]
            expected = [plain(item) for item in columns[column][key][longer : longer + steps]]
            if column in ("returns_to_go", "rewards"):
                np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
            else:
                assert found == expected
    for key, (count, longer) in begins.items():
        for column in items:
            assert (len(items[column][key]), len(columns[column][key])) == (count, longer)


# What each of them gives.


def test_next_observations_are_those_one_step_further():
    episodes = [chunk("x"), chunk("y", [1.0])]
    group = on_columns([AddNextObservationsFromEpisodesToTrainBatch()], episodes)
    assert group["new_obs"][group.rows.acted].tolist() == [[2], [3], [4], [2]]
    items = on_items([AddNextObservationsFromEpisodesToTrainBatch()], [chunk("x"), chunk("y", [1.0])])
    assert {key: np.array(found).tolist() for key, found in items["new_obs"].items()} == {
        ("x",): [[2], [3], [4]],
        ("y",): [[2]],
    }


@pytest.mark.parametrize(
    ("piece", "name"),
    [(AddNextObservationsFromEpisodesToTrainBatch, "new_obs"), (AddInfosFromEpisodesToTrainBatch, "infos")],
)
def test_a_column_that_a_piece_has_put_into_the_batch_is_left_alone(piece, name):
    class Own(ConnectorV2):
        def columns(self, c, xp):
            c[name] = np.arange(1, 5)

        def __call__(self, *, batch, **kwargs):
            return {**batch, name: {("x",): [1, 2, 3]}}

    assert on_columns([Own(), piece()], [chunk()])[name].tolist() == [1, 2, 3, 4]
    assert on_items([Own(), piece()], [chunk()])[name] == {("x",): [1, 2, 3]}


class Looks(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        self.seen = batch
        return batch


def value_module():
    module = DefaultPPORLModule(
        observation_space=OBS_SPACE, action_space=ACT_SPACE, model_config={"fcnet_hiddens": []}
    ).as_multi_rl_module()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module


@pytest.mark.parametrize("infos", [True, False])
def test_infos_stay_a_list_of_dicts_up_to_the_loss(infos):
    """Through tensors, pieces that work on items, and the dropping of last rows; arrays in them stay arrays."""
    looks, late = Looks(), Looks()
    pipeline = learner_pipeline([AddInfosFromEpisodesToTrainBatch(), looks], multi_agent=False)
    pipeline.insert_before("NumpyToTensor", Looks())
    pipeline.append(GeneralAdvantageEstimation())
    pipeline.append(late)
    episodes = [chunk("x", infos=infos), chunk("y", [1.0], infos=infos)]
    for episode in episodes:
        episode.set_observations(new_data=[np.full(3, n, np.float32) for n in range(1, len(episode) + 2)])
    batch = ColumnBatch([ColumnGroup(rows_of_episodes(episodes, ["default_policy"]))])
    (group,) = pipeline.run(batch, rl_module=value_module(), episodes=episodes).groups
    found = group["infos"]
    assert isinstance(found, list)
    assert [info.get("n") for info in found] == ([1, None, 3, 1] if infos else [None] * 4)
    assert not infos or type(found[0]["array"]) is np.ndarray
    assert [len(items) for items in looks.seen["infos"].values()] == [4, 2], "one of the last observation"
    assert late.seen["default_policy"]["infos"] is not found
    assert [info.get("n") for info in late.seen["default_policy"]["infos"]] == [info.get("n") for info in found]
    ((_, columns),) = group.module_columns()
    assert [id(info) for info in columns["infos"]] == [id(info) for info in found]
    order = np.array([2, 0, 3, 1])
    (minibatch, other) = minibatches_of_epoch(GroupRows.of(group), size_of=lambda m: 2, shuffle=lambda m, rows: order)
    for part, numbers in ((minibatch, [3, 1]), (other, [1, 2])):
        assert part.columns["obs"][:, 0].tolist() == numbers
        assert [info.get("n") for info in part.columns["infos"]] == [n if infos and n % 2 else None for n in numbers]


def test_infos_of_stacked_modules_stand_by_module():
    episodes = [chunk(f"x{m}", [1.0, 2.0]) for m in MODULES]
    for episode, module_id in zip(episodes, MODULES, strict=True):
        episode.module_id = module_id
        episode.storage.set_items("infos", range(3), [{"of": module_id}] * 3)
    group = ColumnGroup(rows_of_episodes(episodes, list(MODULES)))
    AddInfosFromEpisodesToTrainBatch().columns(group, ARRAYS)
    found = group["infos"].unflatten(0, (3, -1))
    assert [[info["of"] for info in own] for own in found] == [[m] * 3 for m in MODULES]


def test_a_late_piece_that_drops_info_dicts_is_an_error():
    class Drops(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return {m: {**columns, "infos": columns["infos"][1:]} for m, columns in batch.items()}

    pipeline = learner_pipeline([AddInfosFromEpisodesToTrainBatch()], multi_agent=False)
    pipeline.append(Drops())
    batch = ColumnBatch([ColumnGroup(rows_of_episodes([chunk()], ["default_policy"]))])
    with pytest.raises(ConnectorError, match=r"(?s)Drops.*\b3\b.*\b4\b"):
        pipeline.run(batch, rl_module=value_module(), episodes=[])


@pytest.mark.parametrize(("gamma", "expected"), [(0.5, [3.0, 4.0, 4.0, 8.0]), (0.0, [1, 2, 4, 8]), (1.0, [7, 6, 4, 8])])
def test_returns_to_go_are_discounted_sums_until_the_end_of_the_chunk(gamma, expected):
    episodes = [chunk("x"), chunk("y", [8.0], terminated=True)]
    group = on_columns([ComputeReturnsToGo(gamma=gamma)], episodes)
    assert group["returns_to_go"].dtype == np.float32
    assert group["returns_to_go"][group.rows.acted].tolist() == expected
    items = on_items([AddOneTsToEpisodesAndTruncate(), ComputeReturnsToGo(gamma=gamma)], episodes)["returns_to_go"]
    assert items == {("x",): [*expected[:3], 0.0], ("y",): [expected[3], 0.0]}


@examples(40)
@given(st.lists(st.lists(st.floats(-8, 8), min_size=1, max_size=9), min_size=1, max_size=4), st.floats(0, 1))
def test_discounted_sums_are_those_of_a_loop(episodes, gamma):
    expected = []
    for rewards in episodes:
        total = 0.0
        for reward in rewards:
            total = total * gamma + reward
            expected.append(total)
    found = discounted_sums(np.concatenate(episodes), np.array([len(rewards) for rewards in episodes]), gamma)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_rewards_are_scaled_then_shifted_and_the_episodes_keep_theirs():
    episode = chunk()
    group = on_columns([ScaleRewards(scale=2.0, shift=-1.0)], [episode])
    assert group["rewards"][:3].tolist() == [1.0, 3.0, 7.0]
    assert group["rewards"].dtype == np.float32
    assert on_items([ScaleRewards(scale=2.0, shift=-1.0)], [episode])["rewards"] == {("x",): [1.0, 3.0, 7.0]}
    assert list(episode.get_rewards()) == [1.0, 2.0, 4.0]


def test_later_pieces_keep_changed_rewards():
    pieces = [ScaleRewards(scale=10.0), AddColumnsFromEpisodesToTrainBatch(), ClipRewards(clip_rewards=15.0)]
    assert on_columns(pieces, [chunk()])["rewards"][:3].tolist() == [10.0, 15.0, 15.0]
    assert on_items(pieces, [chunk()])["rewards"]["x",] == [10.0, 15.0, 15.0]


@pytest.mark.parametrize("setting", [{"scale": np.nan}, {"shift": float("inf")}, {"scale": "2"}, {"shift": None}])
def test_a_scale_that_is_no_number_is_an_error(setting):
    with pytest.raises(ConfigError, match=f"(?s)ScaleRewards.*{next(iter(setting))}"):
        ScaleRewards(**setting)


@pytest.mark.parametrize("gamma", [-0.1, 1.5, "x", None])
def test_a_discount_that_is_none_is_an_error(gamma):
    with pytest.raises(ConfigError, match=r"(?s)ComputeReturnsToGo.*\bgamma\b"):
        ComputeReturnsToGo(gamma=gamma)


@pytest.mark.parametrize(
    "piece",
    [ComputeReturnsToGo, ScaleRewards, ClipRewards, AddInfosFromEpisodesToTrainBatch, GeneralAdvantageEstimation],
)
def test_an_unknown_option_is_a_type_error(piece):
    with pytest.raises(TypeError, match="gama"):
        piece(gama=0.5)


# What must not reach a loss.


@examples(20)
@given(EPISODES, MAPPINGS, st.booleans())
def test_what_stands_in_the_rows_of_last_observations_changes_nothing(histories, mapping, also_observations):
    """Last observations matter unless the episode has terminated."""
    found = []
    for planted in (False, True):
        episodes = play(histories, mapping)
        if not agent_episodes(episodes, stepped_only=False):
            return
        batch = columns_of(episodes, train=True)
        (group,) = batch.groups
        rows = group.rows
        (part,) = rows.parts
        last = part.positions[~rows.acted]
        if planted:
            for name in ("rewards", "action_logp", "action_dist_inputs"):
                part.rollout.columns[name][last] = np.nan
            if also_observations:
                ended = np.array([episode.is_terminated for episode in rows.episodes])
                part.rollout.columns["obs"][last[ended]] = np.nan
        custom = [NormalizeRewards(), ComputeReturnsToGo(gamma=0.9)]
        pipeline = learner_pipeline(custom, multi_agent=True, clip_rewards=True)
        pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8))
        found.append(real_rows(pipeline.run(batch, rl_module=MODULES, episodes=episodes)))
        (group,) = batch.groups
        assert group.splits[-1] == sum(len(episode) for episode in rows.episodes)
    for module_id, columns in found[0].items():
        for name, items in columns.items():
            np.testing.assert_array_equal(np.array(items), np.array(found[1][module_id][name]), err_msg=name)


@examples(20)
@given(EPISODES, MAPPINGS)
def test_advantages_are_standardised_over_each_modules_own_real_rows(histories, mapping):
    episodes = play(histories, mapping)
    own = agent_episodes(episodes, stepped_only=False)
    if not own:
        return
    batches = []
    for standardize in (False, True):
        pipeline = learner_pipeline(multi_agent=True)
        pipeline.append(GeneralAdvantageEstimation(gamma=0.9, standardize=standardize))
        batch = pipeline.run(columns_of(episodes, train=True), rl_module=MODULES, episodes=episodes)
        (group,) = batch.groups
        batches.append({m: columns["advantages"].numpy().astype(np.float64) for m, columns in group.module_columns()})
    for module_id, raw in batches[0].items():
        assert len(raw) == sum(len(episode) for episode in own if episode.module_id == module_id)
        expected = (raw - raw.mean()) / max(raw.std(), 1e-4)
        np.testing.assert_allclose(batches[1][module_id], expected, atol=2e-3)


def test_infos_may_be_the_first_column_of_a_train_batch():
    config = small_config(LifeEnv, env_config={"agents": "abc"})
    config.training(learner_connector=lambda *spaces: AddInfosFromEpisodesToTrainBatch())
    assert config.build_algo().train()["learners"]["default_policy"]["num_module_steps_trained"] > 0
