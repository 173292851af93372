"""What is remembered of a mapping: for which agents, which spaces, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors import DefaultPPORLModule, MultiRLModule
from marl_connectors.env_runners.agent_modules import AgentModules
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import MappingError
from marl_connectors.policy_mapping import PatternPolicies, SharedPolicy

OBS = spaces.Box(-1.0, 1.0, (2,), np.float32)


def module_for(num_actions):
    return DefaultPPORLModule(OBS, spaces.Discrete(num_actions), model_config={"fcnet_hiddens": [2]})


def modules_of(**num_actions):
    multi = MultiRLModule()
    for module_id, number in num_actions.items():
        multi.add_module(module_id, module_for(number))
    return multi


def lane_of(agent_id, num_actions, group=0):
    group = SimpleNamespace(index=group, env_action_space=spaces.Discrete(num_actions))
    return SimpleNamespace(agent_id=agent_id, group=group)


def mapped(modules, agent_ids):
    """The modules of an episode's agents, and those that the episode names itself."""
    episode = MultiAgentEpisode.from_agent_episodes(
        "0-0", {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=modules.mapping
    )
    found = dict(modules.of_agents(episode, agent_ids))
    assert found == {agent_id: episode.module_for(agent_id) for agent_id in agent_ids}
    return found


def test_a_new_mapping_replaces_what_the_former_one_said():
    modules = AgentModules(SharedPolicy("m"), modules_of(m=2, n=2), None)
    assert mapped(modules, ["a", "b"]) == {"a": "m", "b": "m"}
    modules.set_mapping(PatternPolicies((("a", "n"), ("*", "m"))))
    assert mapped(modules, ["a", "b"]) == {"a": "n", "b": "m"}


def test_other_agents_have_the_modules_of_their_own_names():
    modules = AgentModules(PatternPolicies((("a*", "m"), ("*", "n"))), modules_of(m=2, n=2), None)
    assert mapped(modules, ["a1", "b1"]) == {"a1": "m", "b1": "n"}
    assert mapped(modules, ["b1"]) == {"b1": "n"}
    assert mapped(modules, ["b1", "a1"]) == {"b1": "n", "a1": "m"}


def test_a_module_that_fits_one_agent_is_looked_at_for_agents_of_other_spaces():
    modules = AgentModules(SharedPolicy("m"), modules_of(m=2), None)
    modules.check_fit(lane_of("a", 2, group=0), "m")
    with pytest.raises(MappingError, match=r"(?s)'z'.*'m'.*Discrete\(2\)"):
        modules.check_fit(lane_of("z", 5, group=1), "m")


def test_a_module_of_the_same_name_is_looked_at_again():
    multi = modules_of(m=2)
    modules = AgentModules(SharedPolicy("m"), multi, None)
    modules.check_fit(lane_of("a", 2), "m")
    multi.remove_module("m")
    multi.add_module("m", module_for(3))
    modules.forget()
    with pytest.raises(MappingError, match=r"(?s)Discrete\(3\).*Discrete\(2\)"):
        modules.check_fit(lane_of("a", 2), "m")
