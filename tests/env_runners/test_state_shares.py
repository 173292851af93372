"""States of env runners that are merged, and divided."""

from __future__ import annotations

import copy

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import AddsCount, Doubles, differences, plain
from helpers.runs.runner_shares import DividedRun
from marl_connectors import MeanStdFilter
from marl_connectors.env_runners.state_shares import divided_runner_state, merged_runner_state
from marl_connectors.errors import CheckpointError, ConnectorError

GAME = {"agents": list("abcd"), "die": 0.3, "join": 0.5, "fixed": False, "max_steps": 6}


def config_of(*pieces, **game):
    config = small_config(LifeEnv, env_config={**GAME, **game}).multi_agent(policies="independent")
    return config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces])


def merged(run, states):
    runner = run.runners[0]
    return merged_runner_state(
        states,
        agent_spaces=run.algos[0]._setup.agent_spaces,
        rl_module=runner.rl_module,
        env_to_module=runner.env_to_module,
        module_to_env=runner.module_to_env,
    )


@pytest.fixture
def played():
    """Runs by their pieces and the sizes of their shares, which have played some steps."""
    runs = []

    def play(*pieces, sizes=(5,), **game):
        runs.append(DividedRun(config_of(*pieces, **game), sizes))
        for steps in (4, 5):
            runs[-1].sample(steps=steps)
        return runs[-1]

    yield play
    for run in runs:
        run.close()


@pytest.mark.parametrize("sizes", [[5], [1, 4], [2, 2, 1], [1, 1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("piece", [None, MeanStdFilter, AddsCount])
def test_a_state_that_is_divided_and_merged_is_the_same(played, sizes, piece):
    """States of pieces are copied and not merged, so that nothing is counted twice."""
    run = played(*[piece] if piece else [])
    state = run.state()
    before = copy.deepcopy(state)
    assert differences(plain(merged(run, divided_runner_state(state, sizes))), plain(state)) == []
    assert differences(plain(state), plain(before)) == []


def test_the_first_runner_gets_what_belongs_to_no_sub_environment(played):
    state = played().state()
    first, second = divided_runner_state(state, [2, 3])
    assert (first["num_env_steps"], second["num_env_steps"]) == (45, 0)
    assert (first["counts"], second["counts"]["agents"]) == (state["counts"], [])
    assert first["noise_step"] == second["noise_step"] == 9
    assert [len(own["episode_numbers"]) for own in (first, second)] == [2, 3]
    assert [len(own["uncredited_reward"]) for own in (first, second)] == [2, 3]


def test_each_runner_gets_the_episodes_of_its_sub_environments(played):
    state = played().state()
    parts = divided_runner_state(state, [2, 3])
    for part, own in zip(parts, ({0, 1}, {2, 3, 4}), strict=True):
        assert {int(lane["episode_id"].split("-")[0]) for lane in part["episodes"]["lanes"]} == own
        assert {lane["env_index"] for lane in part["episodes"]["lanes"]} == set(range(len(own)))
        assert {index for *_, index in part["finished_at"]} <= set(range(len(own)))
    assert sum(len(part["finished"]) for part in parts) == len(state["finished"]) > 3


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_no_runner_draws_noise_again_after_states_with_different_steps_of_it_were_merged(played, order):
    run = played()
    states = divided_runner_state(run.state(), [1, 2, 2])
    for i, number in enumerate(order):
        states[i]["noise_step"] = (9, 12, 10)[number]
    state = merged(run, states)
    assert state["noise_step"] == 12
    assert [own["noise_step"] for own in divided_runner_state(state, [2, 3])] == [12, 12]


@pytest.mark.parametrize("sizes", [[5, 1], [4], [5, 0], []], ids=str)
def test_sizes_that_do_not_fit_are_refused(played, sizes):
    with pytest.raises(CheckpointError, match="has 5 sub-environments, which cannot be divided into"):
        divided_runner_state(played().state(), sizes)


def test_states_of_other_runs_are_refused(played):
    run = played()
    state = run.state()
    with pytest.raises(CheckpointError, match="have the seeds"):
        merged(run, [state, {**state, "seed": state["seed"] + 1}])
    with pytest.raises(CheckpointError, match=r"have the pieces .* Build it with the same connectors"):
        merged(run, [state, {**state, "env_to_module": {}}])


def test_states_that_a_piece_does_not_merge_are_refused(played):
    run = played(AddsCount)
    states = divided_runner_state(run.state(), [2, 3])
    states[0]["env_to_module"]["AddsCount"]["calls"] = 0
    with pytest.raises(ConnectorError, match="AddsCount: the 2 states of this piece differ"):
        merged(run, states)


def test_shared_data_that_differ_are_refused(played):
    run = played()
    states = divided_runner_state(run.state(), [2, 3])
    for number, state in enumerate(states):
        state["batch"]["shared_data"] = {"number": number}
    with pytest.raises(ConnectorError, match=r"share different data in shared_data \(\['number'\]\)"):
        merged(run, states)


def test_episodes_are_lost_if_a_runner_has_lost_its_own(played):
    run = played()
    states = divided_runner_state(run.state(), [2, 3])
    states[1] = {**states[1], "episodes": None, "batch": None}
    state = merged(run, states)
    assert (state["episodes"], state["batch"], state["episodes_too_long"]) == (None, None, True)
    with pytest.warns(UserWarning, match="the run continues with new episodes"):
        run.runners[0].set_state(state)


def test_groups_without_modules_are_kept_as_long_as_they_have_lanes(played):
    run = played(spaces_of={})
    state = run.state()
    groups = state["episodes"]["groups"]
    assert [group["num_lanes"] for group in groups] == [len(state["episodes"]["lanes"])]
    groups.append(copy.deepcopy(groups[0]))
    groups[1]["num_lanes"] = 0
    for rows in groups[1]["rollout"].values():
        rows.update({name: [] if isinstance(column, list) else column[:0] for name, column in rows.items()})
    for group in groups:
        group["members"] = ["a", None, True]
    found = merged(run, divided_runner_state(state, [2, 3]))["episodes"]["groups"]
    per_runner = [sum(lane["env_index"] < 2 for lane in state["episodes"]["lanes"])]
    per_runner.append(len(state["episodes"]["lanes"]) - per_runner[0])
    assert [(group["members"], group["num_lanes"]) for group in found] == [
        (["a", None, True], number) for number in per_runner
    ]


def test_finished_episodes_are_sorted_by_sample_step_and_sub_environment(played):
    places = [tuple(place) for place in played(sizes=(1, 2, 2)).state()["finished_at"]]
    assert places == sorted(places)
    assert {sample for sample, *_ in places} == {0, 1}


def test_lanes_are_sorted_by_module_sub_environment_and_agent(played):
    run = played(sizes=(2, 3), spaces_of={})
    lanes = run.state()["episodes"]["lanes"]
    in_order = sorted(lanes, key=lambda lane: (lane["module_id"], lane["env_index"], lanes.index(lane)))
    assert [lane["row"] for lane in in_order] == [lane["number"] for lane in in_order] == list(range(len(lanes)))


def test_observations_that_only_one_runner_has_changed_stay_changed_there(played):
    run = played(Doubles)
    parts = divided_runner_state(run.state(), [2, 3])
    for group in parts[1]["episodes"]["groups"]:
        rollout = group["rollout"]
        rollout["columns"]["obs"] = rollout["layers"].pop("obs")[0]
        del rollout["level"]["obs"]
    former, state = run.state()["episodes"], merged(run, parts)["episodes"]
    for lane in former["lanes"]:
        old, new = (own["groups"][lane["group"]]["rollout"] for own in (former, state))
        here = slice(lane["number"], None, former["groups"][lane["group"]]["num_lanes"])
        level = old["level"]["obs"][here] if lane["env_index"] < 2 else 0 * old["level"]["obs"][here]
        assert new["level"]["obs"][here].tolist() == level.tolist()
        for before, after in zip(old["layers"]["obs"], new["layers"]["obs"], strict=True):
            kept = level > 0 if before is not old["layers"]["obs"][0] else level >= 0
            assert after[here][kept].tolist() == before[here][kept].tolist()
