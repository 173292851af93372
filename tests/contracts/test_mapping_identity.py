"""What goes in comes back: each action reaches the agent whose observation it was computed from, by its own module.

Once for the mapping pieces alone, once for whole pipelines, once for whole runs, on items and on columns. And a checker
that never found anything would be worth nothing: the last tests mix things up on purpose, in all the ways that we could
think of, and want it noticed.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.envs.echo_games import (
    KINDS,
    Rules,
    column_groups,
    echo_modules,
    echo_run,
    expected_action,
    games_of,
    lanes_of,
)
from helpers.examples import examples
from helpers.planted_faults import FAULTS, Fault
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping
from marl_connectors.connectors.defaults import env_to_module_pipeline, module_to_env_pipeline
from marl_connectors.episodes.batch import ColumnBatch

AGENT_IDS = st.one_of(
    st.text(max_size=4),
    st.integers(-3, 60),
    st.tuples(st.text(max_size=2), st.integers(0, 3)),
    st.tuples(st.integers(0, 2)),
    st.tuples(st.tuples(st.integers(0, 1), st.text(max_size=1)), st.integers(0, 1)),
)


# The mapping pieces alone.


class Modules(dict):
    """All that AgentToModuleMapping wants to know of a MultiRLModule."""


@st.composite
def mapped_items(draw):
    """Module ids in some order, and ``{column: {key: items}}``, each column in an order of its own."""
    modules = draw(st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True))
    places = st.tuples(st.sampled_from(["e", "f", "0-1"]), AGENT_IDS)
    owners = draw(st.dictionaries(places, st.sampled_from(modules), min_size=1))
    keys = [(episode, agent, module) for (episode, agent), module in owners.items()]
    columns = draw(st.lists(st.sampled_from(["obs", "extra", "mask"]), min_size=1, max_size=3, unique=True))
    batch = {name: {key: [(name, key)] for key in draw(st.permutations(keys))} for name in columns}
    return Modules.fromkeys(modules), batch


@examples(60)
@given(mapped_items())
def test_mapping_there_and_back_is_the_identity_for_ids_of_any_kind(case):
    modules, batch = case
    before, shared_data = copy.deepcopy(batch), {}
    by_module = AgentToModuleMapping()(rl_module=modules, batch=batch, episodes=[], shared_data=shared_data)
    assert list(by_module) == [m for m in modules if any(key[2] == m for key in next(iter(before.values())))]
    for own_id, columns in by_module.items():
        for items in columns.values():
            assert all(key[2] == own_id for _, key in items)
        assert len({tuple(key for _, key in items) for items in columns.values()}) == 1  # aligned with one another
    assert ModuleToAgentUnmapping()(batch=by_module, shared_data=shared_data) == before


# Whole pipelines, on lanes in any order and on hand-made games.


@st.composite
def tables(draw):
    """Agents of some episodes: ``[(episode, agent, whether it acts now, how many rows it has)]``."""
    agents = draw(st.lists(AGENT_IDS, min_size=1, max_size=6, unique=True))
    table = [
        (number, agent, draw(st.booleans()), draw(st.integers(0, 3)))
        for number in range(draw(st.integers(1, 3)))
        for agent in agents
        if draw(st.booleans())
    ]
    return draw(st.permutations(table)), draw(st.integers(1, len(KINDS)))


@examples(40)
@given(tables())
def test_pipelines_on_columns_give_each_agent_the_answer_to_its_own_observation(case):
    table, kinds = case
    modules, parts = echo_modules(kinds), lanes_of(table, kinds)
    batch, common = ColumnBatch(column_groups(parts, table, modules)), {"rl_module": modules, "shared_data": {}}
    forward, backward = env_to_module_pipeline(multi_agent=True), module_to_env_pipeline(multi_agent=True)
    outputs = backward.run(
        modules.forward_inference(forward.run(batch, episodes=[], explore=False, **common)),
        episodes=[],
        explore=False,
        **common,
    )
    answered = 0
    for group in outputs.groups:
        recorded, sent = group["actions"], group.get("actions_for_env", group["actions"])
        for part, action, for_env in zip(group.rows.episodes, recorded, sent, strict=True):
            np.testing.assert_array_equal(action, expected_action(part, kinds))
            np.testing.assert_array_equal(for_env, expected_action(part, kinds, start=7))
            answered += 1
    assert answered == sum(acts for _, _, acts, _ in table)


@examples(40)
@given(tables())
def test_pipelines_on_items_give_each_agent_the_answer_to_its_own_observation(case):
    table, kinds = case
    modules, parts = echo_modules(kinds), lanes_of(table, kinds)
    games = games_of(parts)
    common = {"rl_module": modules, "episodes": games, "explore": False, "shared_data": {}}
    forward, backward = env_to_module_pipeline(multi_agent=True), module_to_env_pipeline(multi_agent=True)
    acting = {(f"0-{number}", agent) for number, agent, acts, _ in table if acts}
    if not acting:
        return
    listed = backward(batch=modules.forward_inference(forward(batch={}, **common)), **common)
    found = {}
    for game, actions in zip(games, listed["actions"], strict=True):
        found.update({(game.id_, agent): action for agent, action in actions.items()})
    assert set(found) == acting
    for part in parts:
        if (part.multi_agent_episode_id, part.agent_id) in acting:
            action = found[part.multi_agent_episode_id, part.agent_id]
            np.testing.assert_array_equal(action, expected_action(part, kinds))


# Whole runs.

MIXED = ["a", "b", 3, ("c", 1), 4, "d"]
GAMES = {
    "all in step": Rules(["a", "b", "c"], ordered=True, lengths=(5, 5)),
    "uneven lengths": Rules(MIXED, kinds=2, lengths=(1, 9)),
    "deaths": Rules(MIXED, kinds=3, die=0.25, lengths=(4, 9)),
    "late joiners and returns": Rules(MIXED, kinds=1, join=0.4, die=0.3, lengths=(1, 12)),
    "everything": Rules(MIXED, kinds=4, join=0.4, die=0.3, strangers=0.3, lengths=(1, 12)),
}


def assert_fine(run):
    assert not run.wrong, run.wrong[:5]
    assert run.num_steps


@pytest.mark.few(1)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("name", GAMES)
def test_in_runs_each_agent_gets_the_answer_to_its_own_observation(name, num_envs):
    run = echo_run(GAMES[name], num_envs=num_envs, lookback=num_envs)
    for _ in range(8):
        run.sample(num_timesteps=5)
    run.sample(num_episodes=4)
    run.sample(num_timesteps=7, force_reset=True)
    run.sample(num_timesteps=7)
    assert_fine(run)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", GAMES)
def test_in_runs_on_items_each_agent_gets_the_answer_to_its_own_observation(name):
    run = echo_run(GAMES[name], items=True)
    run.sample(num_timesteps=60)
    run.sample(num_episodes=3)
    for _ in range(12):
        run.sample(num_timesteps=6)
    assert_fine(run)


@st.composite
def rules(draw):
    chances = st.sampled_from([0.0, 0.1, 0.4, 0.9])
    shortest = draw(st.integers(1, 4))
    return Rules(
        draw(st.lists(AGENT_IDS, min_size=1, max_size=5, unique=True)),
        kinds=draw(st.integers(1, len(KINDS))),
        join=draw(chances),
        die=draw(chances),
        strangers=draw(chances),
        lengths=(shortest, shortest + draw(st.integers(0, 6))),
        ordered=draw(st.booleans()),
    )


@examples(60)
@given(rules(), st.integers(1, 3), st.integers(0, 3), st.lists(st.integers(1, 6), max_size=5), st.integers(0, 99))
def test_in_any_run_each_agent_gets_the_answer_to_its_own_observation(rules, num_envs, lookback, fragments, seed):
    run = echo_run(rules, num_envs=num_envs, lookback=lookback, seed=seed)
    for steps in (3, *fragments):
        run.sample(num_timesteps=steps * num_envs)
    assert_fine(run)


@examples(60)
@given(rules(), st.integers(1, 3), st.lists(st.integers(1, 6), max_size=5), st.integers(0, 99))
def test_in_any_run_on_items_each_agent_gets_the_answer_to_its_own_observation(rules, num_envs, fragments, seed):
    run = echo_run(rules, num_envs=num_envs, items=True, seed=seed)
    for steps in (3, *fragments):
        run.sample(num_timesteps=steps * num_envs)
    assert_fine(run)


def test_a_run_that_goes_on_from_a_checkpoint_is_fine_too():
    """Its games are replayed: the numbers begin anew there, as they did in the first run."""
    first, second = (echo_run(GAMES["late joiners and returns"], num_envs=1) for _ in range(2))
    first.sample(num_timesteps=2)
    first.sample(num_timesteps=2)
    second.runner.set_state(first.runner.get_state())
    for _ in range(5):
        second.sample(num_timesteps=4)
    assert_fine(second)


# Faults, planted to see whether anybody notices.


def spoiled_run(items):
    run = echo_run(Rules(MIXED, kinds=2, die=0.15, join=0.3, lengths=(2, 9)), items=items)
    try:
        for _ in range(6):
            run.sample(num_timesteps=10)
    except Exception as error:
        run.wrong.append(f"{type(error).__name__}: {error}")
    return run


@pytest.mark.parametrize("items", [False, True])
def test_without_a_fault_there_is_nothing_to_notice(items):
    assert_fine(spoiled_run(items))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(name, monkeypatch):
    fault = Fault()
    FAULTS[name](fault, monkeypatch)
    run = spoiled_run(items=name.startswith("items_"))
    assert fault.hits
    assert run.wrong
