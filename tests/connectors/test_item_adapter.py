"""Pieces of users that work on items where the library's work on columns: sorting, batching, dropping rows."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from helpers.episodes.multi_agent_histories import OBS_SPACE, columns_of, make_modules, observation, play
from helpers.modules.recurrent_modules import GRUModule
from marl_connectors import SingleAgentEpisode
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.defaults import learner_pipeline
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation


class Mapping(AgentToModuleMapping):
    """A user's, on items."""

    def __call__(self, **kwargs):
        return super().__call__(**kwargs)


class Advantages(GeneralAdvantageEstimation):
    """A user's, on items."""

    def __call__(self, **kwargs):
        return super().__call__(**kwargs)


def chunks_and_lives():
    """Two chunks of one episode; agent "a" has two lives in the first one."""
    step = {"absent": set(), "ends": {}, "rewards": {"a": 1, "b": 5}}
    (episode,) = play([[step, {**step, "ends": {"a": True}}, step, step]], dict.fromkeys("abcd", "red"))
    rest = episode.cut(1)
    for t in (5, 6):
        acting = rest.get_agents_to_act()
        outputs = {"action_logp": np.float32(0), "action_dist_inputs": np.zeros(4, np.float32)}
        rest.add_env_step(
            {a: observation(0, a, t) for a in "abc"},
            dict.fromkeys(acting, 1),
            {"a": 7.0},
            extra_model_outputs=dict.fromkeys(acting, outputs),
        )
    return [episode, rest]


@pytest.mark.parametrize("piece", [Mapping, Advantages])
def test_a_piece_on_items_in_the_place_of_a_default_one_changes_nothing(piece):
    episodes, found = chunks_and_lives(), []
    for own in (False, True):
        pipeline = learner_pipeline(multi_agent=True)
        settings = {"gamma": 0.9, "standardize": False}
        pipeline.append((Advantages if own and piece is Advantages else GeneralAdvantageEstimation)(**settings))
        if own and piece is Mapping:
            pipeline.insert_after(AgentToModuleMapping, Mapping())
            pipeline.remove(AgentToModuleMapping)
        played = copy.deepcopy(episodes)
        batch = pipeline.run(columns_of(played, train=True), rl_module=make_modules(), episodes=played).groups[0]
        assert batch.rows_per_module == batch.splits[-1] == len(batch["obs"]) == len(batch["advantages"])
        rows = np.column_stack([batch["obs"], batch["rewards"], batch["advantages"]])
        found.append(rows[np.lexsort(rows.T[:3])])
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_episodes_without_states_stand_beside_others():
    def episode(number, states):
        return SingleAgentEpisode(
            str(number),
            observations=[np.full(3, number, np.float32)] * 4,
            actions=[0, 1, 2],
            rewards=[1.0, 2.0, 3.0],
            len_lookback_buffer=0,
            observation_space=OBS_SPACE,
            extra_model_outputs={"state_out": [{"h": np.full(3, i, np.float32)} for i in (1, 2, 3)]} if states else {},
        )

    module = GRUModule(
        observation_space=OBS_SPACE, action_space=make_modules()["red"].action_space, model_config={"max_seq_len": 2}
    )
    size = len(module.get_initial_state()["h"])
    episodes = [episode(0, True), episode(1, False), episode(2, True)]
    for one in episodes:
        if "state_out" in one.storage.extra_keys():
            for state in one.get_extra_model_outputs("state_out"):
                state["h"] = np.resize(state["h"], size)
    pipeline = learner_pipeline(multi_agent=False, stateful=True)
    modules = module.as_multi_rl_module()
    batch = pipeline.run(
        columns_of(episodes, train=True, module_ids=("default_policy",)), rl_module=modules, episodes=episodes
    )
    first = float(np.asarray(module.get_initial_state()["h"])[0])
    (group,) = batch.groups
    assert group.sequences.state_in["h"][:, 0].tolist() == [first, 2.0, first, first, first, 2.0]
    assert all("state_out" in episodes[i].storage.extra_keys() for i in (0, 2))
