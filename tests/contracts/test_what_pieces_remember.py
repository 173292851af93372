"""Pieces remember what they have found out about rows that go on and on, but not beyond what they were asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.episodes.multi_agent_histories import ACT_SPACE, MODULES, OBS_SPACE, columns_of, make_modules, play
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import MappingError


def newest_rows(mapping=None):
    """The rows of agents a, b and c, who have just observed."""
    mapping = mapping or dict(zip("abcd", (*MODULES, MODULES[0]), strict=True))
    history = [{"absent": set(), "ends": {}, "rewards": {}}]
    return columns_of(play([history], mapping), train=False).groups[0].rows


def test_the_same_rows_are_held_against_other_modules_anew():
    piece, rows = AgentToModuleMapping(), newest_rows()
    for _ in range(2):
        piece.columns(ColumnGroup(rows).within(rl_module=make_modules()), ARRAYS)
    with pytest.raises(MappingError, match=r"(?s)'c'.*'blue'.*'red'.*'green'"):
        piece.columns(ColumnGroup(rows).within(rl_module=make_modules(module_ids=MODULES[:2])), ARRAYS)


def test_other_rows_are_held_against_the_same_modules_anew():
    piece, modules = AgentToModuleMapping(), make_modules(module_ids=MODULES[:1])
    piece.columns(ColumnGroup(newest_rows(dict.fromkeys("abcd", "red"))).within(rl_module=modules), ARRAYS)
    with pytest.raises(MappingError, match=r"(?s)'green'.*'red'"):
        piece.columns(ColumnGroup(newest_rows(dict.fromkeys("abcd", "green"))).within(rl_module=modules), ARRAYS)


class Least(DefaultPPORLModule):
    """Without exploration, it takes the least likely action."""

    def get_inference_action_dist_cls(self):
        base = self.get_exploration_action_dist_cls()

        class LeastLikely(base):
            def to_deterministic(self):
                return self.logits.argmin(-1)

        return LeastLikely


@pytest.mark.parametrize("order", [(False, True, False), (True, False, True)])
def test_exploring_and_not_exploring_have_their_own_distributions(order):
    modules, rows, piece = make_modules(), newest_rows(), GetActions()
    for module_id in MODULES:
        module = Least(observation_space=OBS_SPACE, action_space=ACT_SPACE, model_config={"fcnet_hiddens": [5]})
        modules.add_module(module_id, module, override=True)
    logits = torch.tensor([[0.0, 90.0, 40.0, -40.0]] * len(rows))  # a sample is as good as always the likeliest
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for explore in order:
            group = ColumnGroup(rows)
            group["action_dist_inputs"] = logits
            piece.columns(group.within(rl_module=modules, explore=explore), ARRAYS)
            assert group["actions"].tolist() == [1 if explore else 3] * len(rows)


def test_items_of_an_episode_that_nobody_has_announced_stand_last_in_the_batch():
    episodes = [SingleAgentEpisode("x", observations=[0.0]), SingleAgentEpisode("y", observations=[0.0])]
    batch = {"obs": {("z",): [np.float32(3)], ("y",): [np.float32(2)], ("x",): [np.float32(1)]}}
    assert BatchIndividualItems()(batch=batch, episodes=episodes)["default_policy"]["obs"].tolist() == [1, 2, 3]
