"""The pieces for stateful modules, and whole pipelines with them, give the same on items and on columns."""

from __future__ import annotations

import copy

import numpy as np
import optree
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.stateful_histories import (
    ACT_SPACE,
    BOX,
    DICT,
    EPISODES,
    LENGTHS,
    MAPPINGS,
    acting_columns,
    agent_episodes,
    assert_same,
    by_module,
    in_order,
    make_modules,
    numbers_of,
    observation,
    play,
    state_after,
    train_columns,
)
from helpers.examples import examples
from marl_connectors import Columns
from marl_connectors.connectors.common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key
from marl_connectors.connectors.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.item_adapter import to_items
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError

MODULES = {
    (length, is_dict): make_modules(length, DICT if is_dict else BOX)
    for length in (1, 2, 3, 20)
    for is_dict in (False, True)
}
SPACES = {False: BOX, True: DICT}


def ppo_pipeline(*, multi_agent=True, standardize=False, custom=()):
    pipeline = learner_pipeline(custom, multi_agent=multi_agent, stateful=True)
    pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8, standardize=standardize))
    return pipeline


class AddsInfos(ConnectorV2):
    """Puts each agent's newest info into a forward batch."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, Columns.INFOS, {"name": "text", "list": [1, 2]}, episode)
        return batch


def test_infos_get_no_time_axis_before_a_forward_pass():
    modules = MODULES[3, False]
    episodes = newest(play(HISTORY, dict.fromkeys("abcd", "gru"), modules))
    pipeline = EnvToModulePipeline(connectors=[AddsInfos(), AddTimeDimToBatchAndZeroPad()])
    items = pipeline(rl_module=modules, batch={}, episodes=episodes)
    columns = to_items(pipeline.run(acting_columns(episodes, modules), rl_module=modules, episodes=episodes))
    assert items == columns
    assert all(own == [{"name": "text", "list": [1, 2]}] for own in items[Columns.INFOS].values())


def newest(chunks):
    """Each episode's last chunk."""
    return list({chunk.id_: chunk for chunk in chunks}.values())


def sorted_batches(*batches):
    return [{m: in_order(columns) for m, columns in batch.items()} for batch in batches]


@examples(40)
@given(EPISODES, MAPPINGS, LENGTHS, st.booleans())
def test_train_batches_are_the_same_on_items_and_columns(histories, mapping, length, is_dict):
    modules = MODULES[length, is_dict]
    episodes = play(histories, mapping, modules, SPACES[is_dict])
    if not agent_episodes(episodes, stepped_only=False):
        return
    pipeline = learner_pipeline(multi_agent=True, stateful=True)
    items = pipeline(rl_module=modules, batch={}, episodes=copy.deepcopy(episodes), shared_data={})
    columns = pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes)
    assert_same(*sorted_batches(items, by_module(columns)))


@examples(40)
@given(EPISODES, MAPPINGS, LENGTHS, st.booleans(), st.booleans(), st.booleans())
def test_ppo_batches_are_the_same_on_items_and_columns(histories, mapping, length, is_dict, one_more, standardize):
    modules = MODULES[length, is_dict]
    # Without a step more, the last value follows from the state that was recorded, not from the whole sequence.
    episodes = play(histories, mapping, modules, SPACES[is_dict], own_states=not one_more)
    if not agent_episodes(episodes, stepped_only=False):
        return
    pipeline = ppo_pipeline(standardize=standardize)
    if not one_more:
        pipeline.remove("AddOneTsToEpisodesAndTruncate")
    items = pipeline(rl_module=modules, batch={}, episodes=copy.deepcopy(episodes), shared_data={})
    columns = pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes)
    assert_same(*sorted_batches(items, by_module(columns)), atol=1e-4)


@examples(40)
@given(EPISODES, MAPPINGS, st.booleans())
def test_forward_batches_are_the_same_on_items_and_columns(histories, mapping, is_dict):
    modules = MODULES[3, is_dict]
    episodes = newest(play(histories, mapping, modules, SPACES[is_dict]))
    pipeline = env_to_module_pipeline(multi_agent=True, stateful=True)
    items = pipeline(rl_module=modules, batch={}, episodes=episodes, shared_data={})
    columns = pipeline.run(acting_columns(episodes, modules), rl_module=modules, episodes=episodes)
    assert_same(*sorted_batches(items, by_module(columns)))


@examples(40)
@given(EPISODES, MAPPINGS, LENGTHS)
def test_sequences_are_stretches_of_one_life_that_begin_in_the_state_it_was_in(histories, mapping, length):
    """Held against what each agent observed, and in which state, written down while the history was played."""
    modules, known = MODULES[length, False], {}
    episodes = play(histories, mapping, modules, known=known)
    if not agent_episodes(episodes, stepped_only=False):
        return
    stretches = {
        tuple(numbers_of(part.get_observations(0))): [tuple(row) for row in numbers_of(part.get_observations())]
        for part in agent_episodes(episodes, stepped_only=False)
    }
    pipeline = learner_pipeline(multi_agent=True, stateful=True)
    batch = by_module(pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes))
    found: dict[str, list] = {}
    for module_id, columns in batch.items():
        if not modules[module_id].is_stateful():
            assert Columns.STATE_IN not in columns and columns[Columns.OBS].ndim == 2
            continue
        initial = modules[module_id].get_initial_state()
        assert columns[Columns.OBS].shape[1] == length
        for i, steps in enumerate(columns[Columns.SEQ_LENS].tolist()):
            rows = columns[Columns.OBS][i]
            assert not rows[steps:].any() and not columns[Columns.LOSS_MASK][i, steps:].any()
            own = [tuple(row) for row in rows[:steps].tolist()]
            found.setdefault(module_id, []).append(own)
            if len(own) == 1 and own[0] in {t for o in stretches.values() for t in o[:-1] if o.count(t) > 1}:
                continue  # the life ended without a last observation: the one before stands twice
            state = known.get(own[0]) if own[0][2] else None
            expected = initial if state is None else state
            torch.testing.assert_close(
                optree.tree_leaves(optree.tree_map(lambda leaf, i=i: leaf[i], columns[Columns.STATE_IN])),
                [torch.as_tensor(leaf) for leaf in optree.tree_leaves(expected)],
                rtol=0,
                atol=0,
            )
    expected_stretches: dict[str, list] = {}
    for part in agent_episodes(episodes, stepped_only=False):
        own = [tuple(row) for row in numbers_of(part.get_observations()).tolist()]
        if modules[part.module_id].is_stateful():
            pieces = [own[start : start + length] for start in range(0, len(own), length)]
            expected_stretches.setdefault(part.module_id, []).extend(pieces)
    assert {m: sorted(own) for m, own in found.items()} == {m: sorted(own) for m, own in expected_stretches.items()}


def alone(number, steps, t_started, module, lookback):
    """A SingleAgentEpisode with ``steps`` steps, of which ``lookback`` come before the chunk."""
    return SingleAgentEpisode(
        f"e{number}",
        observations=[observation(number, "a", t_started + t) for t in range(steps + 1)],
        actions=[t % 4 for t in range(steps)],
        rewards=[float(t) for t in range(steps)],
        extra_model_outputs={
            "action_logp": [np.float32(t) for t in range(steps)],
            "state_out": [state_after(module, number, "a", t_started + t + 1) for t in range(steps)],
        },
        observation_space=BOX,
        action_space=ACT_SPACE,
        t_started=t_started + lookback,
        len_lookback_buffer=lookback,
    )


@pytest.mark.parametrize("name", ["gru", "lstm", "count"])
@examples(15)
@given(parts=st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=4), length=LENGTHS)
def test_single_agent_batches_are_the_same_on_items_and_columns(name, parts, length):
    module = MODULES[length, False][name]
    episodes, t, number = [], 0, 0
    for steps, goes_on in parts:
        lookback = min(1, t)
        episodes.append(alone(number, steps + lookback, t - lookback, module, lookback))
        if goes_on:
            t += steps
        else:
            episodes[-1].is_terminated, t, number = True, 0, number + 1
    pipeline = ppo_pipeline(multi_agent=False)
    modules = module.as_multi_rl_module()
    items = pipeline(rl_module=modules, batch={}, episodes=copy.deepcopy(episodes), shared_data={})
    columns = pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes)
    assert_same(*sorted_batches(items, by_module(columns)), atol=1e-4)


def test_last_observations_are_masked_also_where_no_step_more_was_added():
    modules = MODULES[3, False]
    episodes = play(HISTORY, {"a": "gru", "b": "lstm", "c": "count", "d": "plain"}, modules)
    pipeline = learner_pipeline(multi_agent=True, stateful=True)
    pipeline.remove("AddOneTsToEpisodesAndTruncate")
    batch = pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes)
    masks = {m: columns[Columns.LOSS_MASK].tolist() for m, columns in by_module(batch).items() if m in ("gru", "lstm")}
    assert masks == {m: [[True, True, True], [True, True, False]] for m in ("gru", "lstm")}


class Idle(ConnectorV2):
    """Leaves items as they are; ``run`` turns its columns into items and back for it."""

    def __call__(self, *, batch, **kwargs):
        return batch


class Doubles(ConnectorV2):
    """Doubles rewards; has a column form only."""

    def columns(self, c, xp):
        assert len(c["rewards"]) == c.splits[-1]
        c["rewards"] = c["rewards"] * 2


def with_piece(pipeline, place, piece):
    pipeline.insert_before(pipeline.names()[place], piece) if place < len(pipeline) else pipeline.append(piece)
    return pipeline


@examples(30)
@given(EPISODES, MAPPINGS, LENGTHS, st.booleans(), st.integers(0, 9))
def test_a_piece_on_items_anywhere_leaves_a_train_batch_in_columns_as_it_is(histories, mapping, length, is_dict, place):
    modules = MODULES[length, is_dict]
    episodes = play(histories, mapping, modules, SPACES[is_dict])
    if not agent_episodes(episodes, stepped_only=False):
        return
    found = [
        by_module(p.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes))
        for p in (ppo_pipeline(), with_piece(ppo_pipeline(), place, Idle()))
    ]
    assert_same(*found)


def on_items(piece):
    """The same piece without its column form."""
    cls = type(piece)
    piece.__class__ = type(cls.__name__, (cls,), {"__call__": lambda self, **kwargs: cls.__call__(self, **kwargs)})
    return piece


@pytest.mark.parametrize("places", [(3,), (4,), (3, 4)], ids=str)
@examples(15)
@given(histories=EPISODES, mapping=MAPPINGS, length=LENGTHS)
def test_columns_are_made_of_sequences_that_a_piece_on_items_has_cut(places, histories, mapping, length):
    modules = MODULES[length, False]
    episodes = play(histories, mapping, modules)
    if not agent_episodes(episodes, stepped_only=False):
        return
    changed = ppo_pipeline()
    for place in places:
        on_items(changed[place])
    changed.set_input_spaces(None, None)  # the pipeline looks at its pieces anew
    found = [
        by_module(p.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes))
        for p in (ppo_pipeline(), changed)
    ]
    assert_same(*found)


HISTORY = [[{"absent": set(), "ends": {}, "rewards": {"a": t}, "cut": 0} for t in range(5)]]


@pytest.mark.parametrize("place", range(3, 10))
@pytest.mark.parametrize("length", [1, 3])
def test_by_hand_a_column_piece_works_before_sequences_and_behind_them(place, length):
    modules = MODULES[length, False]
    episodes = play(HISTORY, dict.fromkeys("abcd", "gru"), modules)
    pipeline = with_piece(ppo_pipeline(), place, Doubles())
    common = {"rl_module": modules, "shared_data": {}}
    items = pipeline(batch={}, episodes=copy.deepcopy(episodes), **common)
    columns = pipeline.run(train_columns(episodes, modules), episodes=episodes, **common)
    assert_same(*sorted_batches(items, by_module(columns)), atol=1e-4)


def test_states_without_sequences_are_an_error_on_items_and_columns():
    modules = MODULES[3, False]
    episodes = play(HISTORY, dict.fromkeys("abcd", "gru"), modules)
    pipeline = ppo_pipeline()
    pipeline.remove("AddTimeDimToBatchAndZeroPad")
    with pytest.raises(ConnectorError, match="AddTimeDimToBatchAndZeroPad"):
        pipeline(rl_module=modules, batch={}, episodes=copy.deepcopy(episodes))
    with pytest.raises(ConnectorError, match="AddTimeDimToBatchAndZeroPad"):
        pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("AddStatesFromEpisodesToBatch", "AddTimeDimToBatchAndZeroPad"),
        ("AddTimeDimToBatchAndZeroPad", "AddColumnsFromEpisodesToTrainBatch"),
        ("AgentToModuleMapping", "AddStatesFromEpisodesToBatch"),
    ],
)
def test_state_pieces_in_the_wrong_order_are_an_error(earlier, later):
    pipeline = learner_pipeline(multi_agent=True, stateful=True)
    piece = pipeline.remove(later)
    with pytest.raises(ConfigError, match=f"(?s){earlier}.*{later}"):
        pipeline.insert_after(earlier, piece)


def test_the_state_before_a_cut_that_was_not_kept_is_an_error_on_items_and_columns():
    modules = MODULES[3, False]
    [episode] = play(HISTORY, dict.fromkeys("abcd", "gru"), modules)
    rest = episode.cut()
    rest.add_env_step(
        {"a": observation(0, "a", 6)},
        {"a": 1, "b": 1, "c": 1, "d": 1},
        {},
        extra_model_outputs={
            agent: {"action_logp": 0.0, "action_dist_inputs": np.zeros(4), "state_out": {"h": np.zeros(4, np.float32)}}
            for agent in "abcd"
        },
    )
    pipeline = ppo_pipeline()
    with pytest.raises(ConnectorError, match=r"(?s)AddStates.*state_out.*episode_lookback_horizon"):
        pipeline(rl_module=modules, batch={}, episodes=[copy.deepcopy(rest)])
    with pytest.raises(ConnectorError, match=r"(?s)AddStates.*state_out.*episode_lookback_horizon"):
        pipeline.run(train_columns([rest], modules), rl_module=modules, episodes=[rest])


@examples(30)
@given(EPISODES, MAPPINGS, st.booleans())
def test_actions_and_states_reach_the_same_agents_on_items_and_columns(histories, mapping, is_dict):
    modules = MODULES[3, is_dict]
    episodes = newest(play(histories, mapping, modules, SPACES[is_dict]))
    forward = env_to_module_pipeline(multi_agent=True, stateful=True)
    backward = module_to_env_pipeline(multi_agent=True, stateful=True)
    common = {"rl_module": modules, "explore": False, "shared_data": {}}
    backward.remove("ListifyDataForVectorEnv")
    outputs = modules.forward_inference(forward(batch={}, episodes=episodes, **common))
    items = backward(batch=outputs, episodes=episodes, **common)
    batch = modules.forward_inference(forward.run(acting_columns(episodes, modules), episodes=episodes, **common))
    columns = backward.run(batch, episodes=episodes, **common)
    acting = [episode for group in columns.groups for episode in group.rows.episodes]
    for group in columns.groups:
        for name, column in group.items():
            for i, episode in enumerate(group.rows.episodes):
                [item] = items[name][item_key(episode)]
                for here, there in zip(optree.tree_leaves(item), optree.tree_leaves(column), strict=True):
                    assert here.shape == there.shape[1:], name
                    np.testing.assert_allclose(here, there[i], atol=1e-5)
    assert set(items["actions"]) == {item_key(episode) for episode in acting} if acting else not items


class TooShort(AddTimeDimToBatchAndZeroPad):
    """Forgets the last step of each sequence."""

    def __call__(self, **kwargs):
        batch = super().__call__(**kwargs)
        batch[Columns.SEQ_LENS] = {key: [n - 1 for n in lengths] for key, lengths in batch[Columns.SEQ_LENS].items()}
        return batch


def test_sequences_that_lack_steps_are_an_error_that_says_how_many_there_must_be():
    modules = MODULES[20, False]
    episodes = play(HISTORY, dict.fromkeys("abcd", "gru"), modules)
    pipeline = learner_pipeline(multi_agent=True, stateful=True)
    pipeline.remove("AddTimeDimToBatchAndZeroPad")
    pipeline.insert_before("AddStatesFromEpisodesToBatch", TooShort(as_learner_connector=True))
    with pytest.raises(ConnectorError, match=r"(?s)TooShort.*\b5\b.*\b6\b.*AddOneTsToEpisodesAndTruncate"):
        pipeline.run(train_columns(episodes, modules), rl_module=modules, episodes=episodes)
