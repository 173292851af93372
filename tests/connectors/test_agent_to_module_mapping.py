import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.multi_agent_histories import AGENTS, MAPPINGS, MODULES, make_modules
from marl_connectors.connectors.common.agent_to_module_mapping import MAPPING, AgentToModuleMapping
from marl_connectors.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping
from marl_connectors.errors import ConnectorError, MappingError

RL_MODULES = make_modules()


def there(batch, shared_data, modules=RL_MODULES):
    return AgentToModuleMapping()(rl_module=modules, batch=batch, episodes=[], shared_data=shared_data)


def back(batch, shared_data):
    return ModuleToAgentUnmapping()(batch=batch, episodes=[], rl_module=None, shared_data=shared_data)


@given(MAPPINGS, st.sets(st.tuples(st.sampled_from(("e0", "e1")), st.sampled_from(AGENTS)), min_size=1), st.randoms())
def test_unmapping_undoes_mapping_for_any_mapping_subset_and_order(mapping, acting, random):
    keys = [(episode, agent, mapping[agent]) for episode, agent in acting]
    batch = {}
    for column in ("obs", "extra"):
        order = sorted(keys)
        random.shuffle(order)  # every column may have been filled in an order of its own
        batch[column] = {key: [(column, *key)] for key in order}
    shared_data = {}
    by_module = there(batch, shared_data)
    assert list(by_module) == [m for m in MODULES if any(key[2] == m for key in keys)]
    for module_id, columns in by_module.items():
        assert all(item[3] == module_id for items in columns.values() for item in items)
        assert [item[1:] for item in columns["obs"]] == [item[1:] for item in columns["extra"]]
    assert back(by_module, shared_data) == batch


def test_a_swap_of_two_rows_does_not_go_unnoticed():
    """The test above would be worthless if it passed with swapped rows."""
    batch = {"obs": {("e", agent, "red"): [agent] for agent in "abc"}}
    shared_data = {}
    by_module = there(batch, shared_data)
    items = by_module["red"]["obs"]
    items[0], items[1] = items[1], items[0]
    assert back(by_module, shared_data) == {
        "obs": {("e", "a", "red"): ["b"], ("e", "b", "red"): ["a"], ("e", "c", "red"): ["c"]}
    }


def test_items_of_a_train_batch_stay_together():
    batch = {"rewards": {("e", "b", "green"): [1, 2], ("e", "a", "red"): [3], ("f", "b", "green"): [4]}}
    assert there(batch, {}) == {"red": {"rewards": [3]}, "green": {"rewards": [1, 2, 4]}}


def test_an_unknown_module_is_named_together_with_its_agent():
    with pytest.raises(MappingError, match=r"(?s)'a'.*'reed'.*'red'.*'green'.*'blue'"):
        there({"obs": {("e", "a", "reed"): [0]}}, {})


def test_too_few_rows_from_a_module_are_an_error():
    shared_data = {MAPPING: {"red": [("e", "a", "red"), ("e", "b", "red")]}}
    with pytest.raises(ConnectorError, match=r"(?s)'red'.*\b1\b.*'actions'.*\b2\b"):
        back({"red": {"actions": np.zeros(1)}}, shared_data)


def test_unmapping_without_mapping_says_what_is_missing():
    with pytest.raises(ConnectorError, match=r"(?s)shared_data.*AgentToModuleMapping"):
        back({"red": {"actions": np.zeros(1)}}, {})


def test_rllibs_arguments_serve_calls_by_hand():
    piece = AgentToModuleMapping(
        rl_module_specs={"red": None, "green": None},
        agent_to_module_mapping_fn=lambda agent_id, episode: "green" if agent_id == "a" else "red",
        as_learner_connector=True,
    )
    batch = {"obs": {("e", "a", None): [1], ("e", "b", None): [2], ("f", "a", "red"): [3]}}
    assert piece(rl_module=None, batch=batch, episodes=[]) == {"red": {"obs": [2, 3]}, "green": {"obs": [1]}}
    assert piece.learns
