"""States of env runners that are put together, and divided."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from msgspec.structs import replace

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import AddsCount, Doubles, differences, plain
from helpers.runs.runner_shares import DividedRun
from marl_connectors import MeanStdFilter
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.env_runners.env_runner_state import EnvRunnerState
from marl_connectors.env_runners.lane_table import SampledSteps
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.environments.rules.env_failures import FailureCounts
from marl_connectors.errors import CheckpointError, ConnectorError
from marl_connectors.state import fields_of, read_state

GAME = {"agents": list("abcd"), "die": 0.3, "join": 0.5, "fixed": False, "max_steps": 6}


def config_of(*pieces, **game):
    config = small_config(LifeEnv, env_config={**GAME, **game}).multi_agent(policies="independent")
    return config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces])


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
    state = played(*[piece] if piece else []).state()
    before = copy.deepcopy(state)
    assert differences(plain(EnvRunnerState.merged(state.divided(sizes))), plain(state)) == []
    assert differences(plain(state), plain(before)) == []


def test_the_states_of_several_runners_together_are_that_of_one(played):
    assert differences(plain(played(sizes=(2, 1, 2)).state()), plain(played().state())) == []


@pytest.mark.parametrize("piece", [None, MeanStdFilter, Doubles])
def test_a_state_comes_back_from_a_file_and_from_a_runner(played, piece, tmp_path):
    run = played(*[piece] if piece else [])
    state = copy.deepcopy(run.state())
    save_state(tmp_path / "c", state)
    loaded = read_state(EnvRunnerState, load_state(tmp_path / "c"))
    assert differences(plain(loaded), plain(state)) == []
    run.sample(steps=3)
    run.set_state(loaded)
    assert differences(plain(run.state()), plain(state)) == []


def test_a_state_does_not_change_while_its_runner_goes_on(played):
    run = played(Doubles)
    state = run.state()
    before = plain(state)
    run.sample(steps=20)
    run.set_state(state)
    run.sample(steps=20)
    assert differences(plain(state), before) == []


def test_the_first_runner_gets_what_belongs_to_no_sub_environment(played):
    state = played().state()
    first, second = state.divided([2, 3])
    assert (first.num_env_steps, second.num_env_steps) == (45, 0)
    assert (first.sampled_steps, second.sampled_steps) == (state.sampled_steps, SampledSteps())
    assert first.noise_step == second.noise_step == 9
    assert [own.sub_environments for own in (first, second)] == [state.sub_environments[:2], state.sub_environments[2:]]


def test_counts_of_several_runners_are_added_and_steps_of_noise_and_samples_are_not():
    failures = FailureCounts.merged([FailureCounts(1, 2, 3), FailureCounts(10, 20, 30)])
    assert failures == FailureCounts(11, 22, 33)
    counts = [SampledSteps(1, {"b": 1, 3: 2}, {"m": 3}), SampledSteps(2, {"a": 5, "b": 1}, {"k": 6})]
    steps = SampledSteps.merged(counts)
    assert steps == SampledSteps(3, {3: 2, "a": 5, "b": 2}, {"k": 6, "m": 3})
    assert list(steps.agents) == [3, "a", "b"] and list(steps.modules) == ["k", "m"]


def test_each_runner_gets_the_episodes_of_its_sub_environments(played):
    state = played().state()
    parts = state.divided([2, 3])
    for part, own in zip(parts, ({0, 1}, {2, 3, 4}), strict=True):
        groups = [group for env in part.sub_environments for group in env.episode.groups]
        assert {int(lane.episode_id.split("-")[0]) for group in groups for lane in group.lanes} == own
    assert sum(len(env.finished) for env in state.sub_environments) > 3


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_no_runner_draws_noise_again_after_states_with_different_steps_of_it_were_merged(played, order):
    states = played().state().divided([1, 2, 2])
    states = [replace(states[i], noise_step=(9, 12, 10)[number]) for i, number in enumerate(order)]
    state = EnvRunnerState.merged(states)
    assert state.noise_step == 12
    assert [own.noise_step for own in state.divided([2, 3])] == [12, 12]


@pytest.mark.parametrize("sizes", [[5, 1], [4], [5, 0], []], ids=str)
def test_sizes_that_do_not_fit_are_refused(played, sizes):
    with pytest.raises(CheckpointError, match=r"\b5 sub-environments"):
        played().state().divided(sizes)


def test_states_of_other_runs_are_refused(played):
    state = played().state()
    with pytest.raises(CheckpointError, match="seeds"):
        EnvRunnerState.merged([state, replace(state, seed=state.seed + 1)])


def test_shared_data_that_differ_are_refused(played):
    states = played().state().divided([2, 3])
    states = [replace(state, shared_data={"number": number}) for number, state in enumerate(states)]
    with pytest.raises(ConnectorError, match=r"(?s)shared_data.*\(\['number'\]\)"):
        EnvRunnerState.merged(states)


def test_a_batch_that_one_runner_could_not_store_is_made_anew_by_all(played):
    first, second = played(Doubles).state().divided([2, 3])
    assert EnvRunnerState.merged([first, second]).forward_batch is not None
    state = EnvRunnerState.merged([first, replace(second, shared_data=None, forward_batch=None)])
    assert (state.shared_data, state.forward_batch) == (None, None)


def test_episodes_are_lost_if_a_runner_has_lost_its_own(played):
    run = played()
    first, second = run.state().divided([2, 3])
    state = EnvRunnerState.merged([first, second.without_episodes()])
    assert (state.has_episodes, state.forward_batch, state.episodes_too_long) == (False, None, True)
    with pytest.warns(UserWarning, match="continues"):
        run.runners[0].set_state(state)


def test_finished_episodes_are_those_of_one_runner_in_its_order(played):
    found = [EnvRunnerState.merged(run.state().divided([1, 4])) for run in (played(), played(sizes=(1, 2, 2)))]
    whole = played()
    for state in found:
        whole.set_state(state)
        assert plain(whole.runners[0].take_finished()) == plain(played().runners[0].take_finished())


def test_lanes_are_sorted_by_module_sub_environment_and_agent(played):
    run = played(sizes=(5,), spaces_of={})
    run.set_state(run.state())
    (group,) = run.runners[0]._episodes.lanes.groups
    keys = [(lane.module_id, lane.env_index) for lane in group.at(np.arange(group.rollout.num_lanes))]
    assert keys == sorted(keys) and len(keys) > 5


def test_observations_that_only_one_runner_has_changed_stay_changed_there(played):
    run = played(Doubles)
    first, second = run.state().divided([2, 3])
    for rollout in (group.rollout for env in second.sub_environments for group in env.episode.groups):
        del rollout.layers["obs"][1:]
        rollout.level.clear()
    run.set_state(EnvRunnerState.merged([first, second]))
    after = [env.episode.groups for env in run.state().sub_environments]
    before = [env.episode.groups for env in [*first.sub_environments, *second.sub_environments]]
    assert differences(plain(after), plain(before)) == []
    assert all("obs" in group.rollout.level for groups in after[:2] for group in groups)


def test_columns_that_only_some_agents_have_are_marked(played):
    run = played()
    state = run.state()
    rollouts = [group.rollout for env in state.sub_environments for group in env.episode.groups]
    without = next(own for own in rollouts[1:] if own.acted.any())
    del without.layers["action_dist_inputs"]
    run.set_state(state)
    (given,) = [group.rollout.given for group in run.runners[0]._episodes.lanes.groups if group.rollout.given]
    assert list(given) == ["action_dist_inputs"]
    assert given["action_dist_inputs"].sum() == sum(own.acted.sum() for own in rollouts) - without.acted.sum()
    assert differences(plain(run.state()), plain(state)) == []


# Damage.


def changed(state, way, value):
    """The state as plain data in which something was replaced."""

    def data(part):
        if hasattr(part, "__struct_fields__"):
            return {name: data(own) for name, own in fields_of(part).items()}
        if isinstance(part, (list, tuple)):
            return [data(own) for own in part]
        return {key: data(own) for key, own in part.items()} if isinstance(part, dict) else part

    found = owner = data(state)
    for key in way[:-1]:
        owner = owner[key]
    owner[way[-1]] = value(owner[way[-1]]) if callable(value) else value
    return found


GROUP = ("sub_environments", 0, "episode", "groups", 0)


@pytest.mark.parametrize(
    ("way", "value", "words"),
    [
        (("noise_step",), -1, "noise_step"),
        (("num_env_steps",), 10**30, "num_env_steps"),
        (("num_samples",), 1.0, "num_samples"),
        (("sub_environments", 1, "uncredited_reward"), "0", r"sub_environments\[1\].uncredited_reward"),
        (("sub_environments", 1, "episode_number"), -2, "episode_number"),
        (("sub_environments", 1, "episode"), None, "ongoing"),
        (("sub_environments", 0, "finished"), [{}], r"sub_environments\[0\].finished\[0\]"),
        (("sub_environments",), [], "ongoing"),
        (("sub_environments", 0, "episode", "actions", "order"), lambda order: order[:-1], "actions"),
        (("sub_environments", 0, "episode", "actions", "forms"), ["O"], "type"),
        ((*GROUP, "lanes"), lambda lanes: lanes * 3, "rows"),
        ((*GROUP, "lanes", 0, "kept"), -1, "kept"),
        ((*GROUP, "rollout", "layers", "rewards"), [], "rewards"),
        ((*GROUP, "rollout", "layers", "obs", 0), lambda column: column[:-1], "columns"),
        ((*GROUP, "rollout", "level"), {"obs": np.zeros(2, np.int8)}, "columns|layer"),
        ((*GROUP, "rollout", "acted"), lambda acted: acted[:, None], "axis"),
        ((*GROUP, "batch"), {"obs": np.zeros((99, 2))}, "forward"),
    ],
)
def test_damage_is_found_by_the_types_of_the_fields(played, way, value, words):
    state = changed(played().state(), way, value)
    with pytest.raises(CheckpointError, match=words):
        read_state(EnvRunnerState, state)


@pytest.mark.parametrize(
    ("way", "value", "words"),
    [
        ((*GROUP, "lanes", 0, "kept"), 5, r"\b5 earlier"),
        ((*GROUP, "rollout", "layers", "actions", 0), lambda column: column.astype(np.float32), "'actions'"),
        (("sub_environments",), lambda envs: envs[:-1], r"(?s)\b4\b.*\b5\b"),
    ],
)
def test_what_does_not_fit_a_runner_is_refused(played, way, value, words):
    run = played()
    state = changed(run.state(), way, value)
    with pytest.raises(CheckpointError, match=words):
        run.runners[0].set_state(state)


def test_a_summary_of_an_ongoing_episode_is_a_copy():
    summary = EpisodeSummary()
    summary.end_life("a", "m", 1.0, True, 3)
    kept = summary.copy()
    summary.credit_absent_agent("a", 5.0)
    summary.credit_absent_agent("b", 7.0)
    assert (kept.agent_totals, kept.advances) == ({"a": (1, 1.0, 3)}, {})
