"""Parts of an algorithm's checkpoint are restored alone: into a run, and into specs of other modules."""

from __future__ import annotations

import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import differences, plain, without_times
from marl_connectors import RLModuleSpec
from marl_connectors.errors import CheckpointError

MODULES = "learner_group/learner/rl_module"


def config():
    return small_config(LifeEnv).multi_agent(policies="independent").debugging(seed=1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An algorithm after an iteration, and its checkpoint."""
    algo = config().build_algo()
    algo.train()
    yield algo, algo.save_to_path(tmp_path_factory.mktemp("saved") / "checkpoint")
    algo.stop()


def parameters(algo):
    return plain(algo.rl_module.get_state())


def test_a_module_alone_is_restored_and_nothing_else(saved):
    algo, path = saved
    other = config().debugging(seed=2).build_algo()
    first, second, *_ = other.rl_module
    before, iteration = parameters(other), other.iteration
    other.restore_from_path(path, component=f"{MODULES}/{first}")
    assert parameters(other)[first] == parameters(algo)[first] != before[first]
    assert parameters(other)[second] == before[second]
    assert other.iteration == iteration
    other.restore_from_path(path, component=MODULES)
    assert parameters(other) == parameters(algo)
    other.stop()


def test_the_learner_is_restored_with_its_optimizers(saved):
    algo, path = saved
    other = config().debugging(seed=2).build_algo()
    other.restore_from_path(path, component="learner_group/learner")
    assert not differences(plain(algo.learner.get_state()), plain(other.learner.get_state()))
    other.stop()


def test_a_component_that_is_not_there_is_named_and_changes_nothing(saved):
    algo, path = saved
    before = plain(without_times(algo.get_state()))
    with pytest.raises(CheckpointError, match="no_such"):
        algo.restore_from_path(path, component=f"{MODULES}/no_such")
    with pytest.raises(CheckpointError, match="learner_group/learner"):
        algo.restore_from_path(path, component="learner_group/learners")
    assert not differences(before, plain(without_times(algo.get_state())))


def test_a_spec_from_a_checkpoint_builds_the_module_with_its_parameters(saved, tmp_path):
    algo, path = saved
    module_id = next(iter(algo.rl_module))
    for place in (f"{path}/{MODULES}/{module_id}", algo.rl_module[module_id].save_to_path(tmp_path / "module")):
        built, own = RLModuleSpec.from_checkpoint(place).build(), algo.rl_module[module_id]
        assert type(built) is type(own) and built.observation_space == own.observation_space
        assert all(torch.equal(value, own.state_dict()[name]) for name, value in built.state_dict().items())


def test_a_spec_needs_the_name_of_a_module_where_there_are_several(saved, tmp_path):
    _, path = saved
    with pytest.raises(CheckpointError, match=MODULES):
        RLModuleSpec.from_checkpoint(path)
    with pytest.raises(CheckpointError, match="no_such"):
        RLModuleSpec.from_checkpoint(f"{path}/{MODULES}/no_such")
    single = small_config("CartPole-v1").build_algo()
    spec = RLModuleSpec.from_checkpoint(single.save_to_path(tmp_path / "single"))
    assert plain(spec.build().get_state()) == plain(single.get_module().get_state())
    single.stop()


def test_a_run_goes_on_with_an_opponent_from_another_run(saved):
    algo, path = saved
    other = config().debugging(seed=2).build_algo()
    first = next(iter(algo.rl_module))
    other.add_module("opponent", RLModuleSpec.from_checkpoint(f"{path}/{MODULES}/{first}"))
    assert parameters(other)["opponent"] == parameters(algo)[first]
    other.train()
    other.stop()
