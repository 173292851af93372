"""Every default piece, and every default pipeline, gives the same batch on items and on columns."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given

from helpers.episodes.multi_agent_histories import (
    ACT_SPACE,
    EPISODES,
    MAPPINGS,
    OBS_SPACE,
    agent_episodes,
    assert_same_batch,
    columns_of,
    make_modules,
    play,
    real_rows,
    sorted_by_observation,
)
from helpers.examples import examples
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch,
)
from marl_connectors.connectors.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from marl_connectors.connectors.item_adapter import to_items
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

MODULES_OF_ALL_TESTS = make_modules()


def without_last(items, episodes):
    """Items of a train batch by key, without those of each (chunk of an) episode's last observation."""
    found = {}
    for name, by_key in items.items():
        found[name] = {}
        for episode in episodes:
            key = (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)
            remaining = by_key[key]
            found[name].setdefault(key, []).extend(remaining[: len(episode)])
            del remaining[: len(episode) + 1]
    return found


def assert_same_items(one, other):
    assert set(one) == set(other)
    for name in one:
        assert set(one[name]) == set(other[name])
        for key in one[name]:
            np.testing.assert_array_equal(np.array(one[name][key]), np.array(other[name][key]), err_msg=f"{name} {key}")


@examples(20)
@given(EPISODES, MAPPINGS)
def test_newest_observations_are_the_same_on_items_and_columns(histories, mapping):
    episodes = play(histories, mapping)
    piece = AddObservationsFromEpisodesToBatch()
    items = piece(rl_module=None, batch={}, episodes=copy.deepcopy(episodes))
    batch = columns_of(episodes, train=False)
    for group in batch.groups:
        piece.columns(group, ARRAYS)
    assert_same_items(items, to_items(batch))


@examples(20)
@given(EPISODES, MAPPINGS)
def test_train_columns_are_the_same_on_items_and_columns(histories, mapping):
    episodes = play(histories, mapping)
    pieces = [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
    items = {}
    for piece in pieces:
        items = piece(rl_module=None, batch=items, episodes=copy.deepcopy(episodes))
    batch = columns_of(episodes, train=True)
    for piece in pieces:
        for group in batch.groups:
            piece.columns(group, ARRAYS)
    own = [e for group in batch.groups for e in group.rows.episodes]
    assert_same_items(
        {name: {key: items_ for key, items_ in by_key.items() if items_} for name, by_key in items.items() if by_key},
        {name: by_key for name, by_key in without_last(to_items(batch), own).items() if by_key},
    )


@examples(20)
@given(EPISODES, MAPPINGS)
def test_with_a_step_more_the_train_columns_are_the_same_in_all_rows(histories, mapping):
    episodes = play(histories, mapping)
    if not agent_episodes(episodes, stepped_only=False):
        return
    pieces = [
        AddOneTsToEpisodesAndTruncate(),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
    ]
    pipeline = LearnerConnectorPipeline(connectors=pieces)
    items = pipeline(rl_module=None, batch={}, episodes=copy.deepcopy(episodes))
    batch = pipeline.run(columns_of(episodes, train=True), rl_module=None, episodes=episodes)
    assert_same_items(items, to_items(batch))
    for group in batch.groups:
        np.testing.assert_array_equal(group["loss_mask"], group.rows.acted)


@examples(20)
@given(EPISODES, MAPPINGS)
def test_env_to_module_pipeline_is_the_same_on_items_and_columns(histories, mapping):
    episodes = play(histories, mapping)
    pipeline = env_to_module_pipeline(multi_agent=True)
    shared_data = {}
    items = pipeline(
        rl_module=MODULES_OF_ALL_TESTS, batch={}, episodes=copy.deepcopy(episodes), shared_data=shared_data
    )
    batch = pipeline.run(columns_of(episodes, train=False), rl_module=MODULES_OF_ALL_TESTS, episodes=episodes)
    found = {m: c for group in batch.groups for m, c in group.module_columns()}
    assert_same_batch(items, found)
    assert all(isinstance(t, torch.Tensor) for columns in items.values() for t in columns.values())


@examples(20)
@given(EPISODES, MAPPINGS)
def test_actions_reach_the_same_agents_on_items_and_columns(histories, mapping):
    episodes = play(histories, mapping)
    modules, shared_data = MODULES_OF_ALL_TESTS, {}
    forward, backward = env_to_module_pipeline(multi_agent=True), module_to_env_pipeline(multi_agent=True)
    common = {"rl_module": modules, "explore": False, "shared_data": shared_data}
    items = forward(batch={}, episodes=episodes, **common)
    listed = backward(batch=modules.forward_inference(items), episodes=episodes, **common)
    # The same by the most obvious way: each acting agent's observation through its own module.
    for episode, actions in zip(episodes, listed.get("actions", [{}] * len(episodes)), strict=True):
        expected = {}
        for part in agent_episodes([episode], stepped_only=True):
            obs = torch.as_tensor(part.get_observations(-1))[None]
            expected[part.agent_id] = int(
                modules[part.module_id].forward_inference({"obs": obs})["action_dist_inputs"].argmax()
            )
        assert {agent: int(action) for agent, action in actions.items()} == expected
    batch = forward.run(columns_of(episodes, train=False), episodes=episodes, **common)
    outputs = backward.run(modules.forward_inference(batch), episodes=episodes, **common)
    for group in outputs.groups:
        for episode, action in zip(group.rows.episodes, group["actions"], strict=True):
            number = int(episode.multi_agent_episode_id[1:])
            assert listed["actions"][number][episode.agent_id] == action


@pytest.mark.parametrize("standardize", [False, True])
@examples(20)
@given(histories=EPISODES, mapping=MAPPINGS)
def test_ppo_train_batch_is_the_same_on_items_and_columns(standardize, histories, mapping):
    episodes = play(histories, mapping)
    pipeline = learner_pipeline(multi_agent=True)
    pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8, standardize=standardize))
    own = agent_episodes(episodes, stepped_only=False)
    if not own:
        return
    items = pipeline(rl_module=MODULES_OF_ALL_TESTS, batch={}, episodes=copy.deepcopy(episodes), shared_data={})
    batch = pipeline.run(columns_of(episodes, train=True), rl_module=MODULES_OF_ALL_TESTS, episodes=episodes)
    assert_same_batch(sorted_by_observation(items), sorted_by_observation(real_rows(batch)), atol=1e-4)
    assert {"advantages", "value_targets"} <= set(next(iter(items.values())))


@examples(20)
@given(histories=EPISODES, mapping=MAPPINGS)
def test_advantages_are_the_same_with_and_without_a_step_more(histories, mapping):
    """Without it, the last observations are read from the episodes."""
    episodes = play(histories, mapping)
    if not agent_episodes(episodes, stepped_only=False):
        return
    found = []
    for step_more in (True, False):
        pipeline = learner_pipeline(multi_agent=True)
        pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8))
        if not step_more:
            pipeline.remove("AddOneTsToEpisodesAndTruncate")
        found.append(pipeline(rl_module=MODULES_OF_ALL_TESTS, batch={}, episodes=copy.deepcopy(episodes)))
    assert_same_batch(*found, atol=1e-4)


def test_chunks_of_one_episode_keep_their_own_advantages():
    """Two chunks of episode x stand together in a batch of items, although a chunk of y came between them."""
    module = DefaultPPORLModule(observation_space=OBS_SPACE, action_space=ACT_SPACE, model_config={"fcnet_hiddens": []})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()

    def chunk(id_, rewards, t_started=0):
        steps = len(rewards)
        return SingleAgentEpisode(
            id_,
            observations=[np.zeros(3, np.float32)] * (steps + 1),
            actions=[0] * steps,
            rewards=rewards,
            t_started=t_started,
            len_lookback_buffer=0,
        )

    episodes = [chunk("x", [1.0]), chunk("y", [4.0, 2.0]), chunk("x", [3.0, 5.0], 1)]
    pipeline = learner_pipeline(multi_agent=False)
    pipeline.append(GeneralAdvantageEstimation(gamma=0.5, lambda_=1.0, standardize=False))
    batch = pipeline(rl_module=module.as_multi_rl_module(), batch={}, episodes=episodes)["default_policy"]
    # All values are 0, so advantages are discounted sums: x is [1] and [3 + 5/2, 5], y is [4 + 2/2, 2].
    assert batch["rewards"].tolist() == [1.0, 3.0, 5.0, 4.0, 2.0]
    assert batch["advantages"].tolist() == [1.0, 5.5, 5.0, 5.0, 2.0]


def test_actions_of_modules_with_different_distributions_are_chosen_one_by_one():
    class Reversed(DefaultPPORLModule):
        """Takes the least likely action."""

        def get_inference_action_dist_cls(self):
            base = super().get_inference_action_dist_cls()

            class Least(base):
                def to_deterministic(self):
                    return self.logits.argmin(-1)

            return Least

    modules = make_modules()
    modules.add_module(
        "blue",
        Reversed(observation_space=OBS_SPACE, action_space=ACT_SPACE, model_config={"fcnet_hiddens": [5]}),
        override=True,
    )
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]] * 2)
    batch = {m: {"action_dist_inputs": logits.clone()} for m in ("red", "blue")}
    chosen = GetActions()(rl_module=modules, batch=batch, episodes=[], explore=False)
    assert chosen["red"]["actions"].tolist() == [1, 1]
    assert chosen["blue"]["actions"].tolist() == [0, 0]
