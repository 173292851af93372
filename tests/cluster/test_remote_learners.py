"""A group of learners in Ray actors gives the updates of one learner, whatever happens to the actors."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import random
import secrets
import signal
import threading

import pytest

from helpers.runs.rank_configs import life_config, mapped_config
from helpers.runs.rank_processes import largest_difference, sub_environment_of, updates_of_one
from marl_connectors import ConfigError, LearnerError
from marl_connectors.algorithms.learner_blueprint import RunLearnerBlueprint
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.cluster import actor_pool, ray_cluster
from marl_connectors.cluster.actor_pool import ActorLost, RestartPolicy
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.cluster.remote_learners import RemoteLearners
from marl_connectors.episodes.references import EpisodeReference, divided
from marl_connectors.learner.learner_group import LearnerGroup

POLICY = RestartPolicy(timeout_s=600.0, probe_timeout_s=600.0)


@pytest.fixture(scope="module")
def cluster():
    cluster = RayCluster(None, {"CPU": 3.0}, "num_learners=3")
    yield cluster
    cluster.close()


def blueprint_of(algo):
    return RunLearnerBlueprint.of(algo.learner, algo.config)


def two_learners(cluster, policy, resources):
    algo = life_config().build_algo()
    algo.stop()
    return RemoteLearners(
        algo.learner, lambda: blueprint_of(algo), cluster=cluster, number=2, resources=resources, policy=policy
    )


@pytest.fixture(scope="module")
def remote(cluster):
    """Two learners for all tests here, as they take seconds to start."""
    learners = two_learners(cluster, POLICY, Resources())
    yield learners
    learners.stop()


def group_of(remote, config):
    """An algorithm, and the remote learners, which have its learner from now on."""
    algo = config.build_algo()
    remote.learner, remote._make_blueprint = algo.learner, lambda: blueprint_of(algo)
    return algo, remote


def check_updates(remote, make_config, before_update=None, number=4):
    """The group's updates are those of one learner; ``before_update(number, algo, group)`` is called before each."""
    one = updates_of_one(make_config, number)
    algo, group = group_of(remote, make_config())
    for i, (episodes, timesteps) in enumerate(zip(one.episodes, one.timesteps, strict=True)):
        if before_update is not None:
            before_update(i, algo, group)
        results = group.update(episodes=pickle.loads(episodes), timesteps=timesteps)
        assert results.keys() == one.results[i].keys()
        for module_id, expected in one.results[i].items():
            assert results[module_id] == pytest.approx(expected, rel=2e-4, abs=2e-5)
    state = algo.learner.get_state()
    assert largest_difference(one.state["module"], state["module"]) < 1e-5
    assert state["num_updates"] == one.state["num_updates"]
    assert state["kl_coeffs"] == one.state["kl_coeffs"]
    algo.stop()
    return algo, group


def test_a_group_without_remote_learners_is_the_learner():
    one = updates_of_one(life_config, 2)
    algo = life_config().build_algo()
    group = LearnerGroup(algo.learner)
    found = [
        group.update(episodes=pickle.loads(episodes), timesteps=timesteps)
        for episodes, timesteps in zip(one.episodes, one.timesteps, strict=True)
    ]
    assert found == one.results
    assert largest_difference(one.state["module"], algo.learner.get_state()["module"]) == 0.0
    assert group.foreach_learner(lambda learner: learner.num_updates) == [2]
    assert (group.is_local, group.num_remote_learners) == (True, 0)
    algo.stop()


@pytest.mark.slow
def test_remote_learners_update_as_one(remote, monkeypatch):
    sent = []
    put = remote._cluster.put
    monkeypatch.setattr(remote._cluster, "put", lambda value: sent.append(value) or put(value))
    counts = []
    check_updates(remote, mapped_config, lambda *_: counts.append(len(sent)), number=3)
    episodes = remote.number
    assert [after - before for before, after in itertools.pairwise([*counts, len(sent)])] == [
        2 + episodes,  # the blueprint and the state
        episodes,
        episodes,
    ]


def processes(group):
    return group.foreach_learner(lambda learner: os.getpid())


def lost_before(update, signal_number):
    """Learner 1 gets a signal before an update."""

    def lose(number, algo, group):
        if number == update:
            os.kill(processes(group)[1], signal_number)

    return lose


@pytest.mark.slow
def test_after_the_death_of_a_learner_all_are_replaced_and_repeat_the_update(remote, caplog):
    restarts = remote.num_remote_learner_restarts
    with caplog.at_level(logging.WARNING):
        check_updates(remote, life_config, lost_before(1, signal.SIGKILL), number=3)
    assert remote.num_remote_learner_restarts == restarts + 1
    assert "learner 1 has died (ActorDiedError). New learners take the place of all 2" in caplog.text


@pytest.mark.slow
def test_a_learner_that_hangs_is_named_and_replaced(remote, caplog, monkeypatch):
    monkeypatch.setattr(remote.pool, "policy", RestartPolicy(timeout_s=10.0, probe_timeout_s=10.0))
    restarts = remote.num_remote_learner_restarts
    with caplog.at_level(logging.WARNING):
        check_updates(remote, life_config, lost_before(1, signal.SIGSTOP), number=3)
    assert remote.num_remote_learner_restarts == restarts + 1
    assert "learner 1 has not answered for 20 s. New learners take the place of all 2" in caplog.text


# Functions that are called with learners.


def check_learners(group, algo, num_updates):
    """All remote learners have the state of the learner in this process."""
    expected = algo.learner.get_state()["module"]
    for found, module in group.foreach_learner(lambda learner: (learner.num_updates, learner.get_state()["module"])):
        assert found == num_updates
        assert largest_difference(expected, module) == 0.0


@pytest.mark.slow
def test_learners_that_were_not_updated_yet_have_the_state_of_this_process(remote):
    algo, group = group_of(remote, life_config())
    check_learners(group, algo, 0)
    next(algo.rl_module["b"].parameters()).data.zero_()
    check_learners(group, algo, 0)
    algo.stop()


@pytest.mark.slow
def test_an_error_of_a_function_leaves_the_learners_as_they_are(remote):
    seen = []

    def fail(number, algo, group):
        seen.append(processes(group))
        with pytest.raises(ZeroDivisionError):  # in one of them
            group.foreach_learner(lambda learner: 1 / learner.ranks.rank)
        with pytest.raises(ConfigError, match=r"(?s)foreach_learner.*'_thread\.lock'"):
            group.foreach_learner(lambda learner: threading.Lock())
        check_learners(group, algo, number)

    check_updates(remote, life_config, fail, number=3)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", pytest.param("interrupted", marks=pytest.mark.slow)])
def test_after_a_loss_functions_get_new_learners_with_the_same_state(how, remote, monkeypatch, caplog):
    algo, group = group_of(remote, life_config())
    group.update(episodes=algo._sample().episodes())
    before = processes(group)
    if how == "killed":
        os.kill(before[0], signal.SIGKILL)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(actor_pool._Run, "advance", interrupt)
            with pytest.raises(KeyboardInterrupt):
                processes(group)
    check_learners(group, algo, 1)
    assert not {*processes(group)} & {*before}
    if how == "killed":
        assert "New learners take the place of all 2, and repeat the call" in caplog.text
    algo.stop()


def interrupt(*arguments, **named):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_changes_in_this_process_reach_the_learners(remote):
    """Everything that happens between updates happens to one learner, and to the learner of a group."""

    def change(number, algo):
        if number == 1:
            algo.add_module("e", config_overrides={"lr": 5e-4}, new_agent_to_module_mapping_fn=late_e)
        elif number == 2:
            algo._set(policies_to_train=["a", "e"])
            next(algo.rl_module["b"].parameters()).data.zero_()
        elif number == 3:
            algo.rl_module["a"].set_state(algo.rl_module["c"].get_state())
            algo.remove_module("d", new_agent_to_module_mapping_fn=late_e, new_should_module_be_updated=["a", "c"])

    alone = life_config().build_algo()
    algo, group = group_of(remote, life_config())
    for number in range(5):
        change(number, alone)
        change(number, algo)
        episodes = pickle.dumps(alone._sample().episodes())
        expected = alone.learner.update(episodes=pickle.loads(episodes))
        found = group.update(episodes=pickle.loads(episodes))
        assert found.keys() == expected.keys()
        assert largest_difference(alone.learner.get_state()["module"], algo.learner.get_state()["module"]) < 1e-5
    alone.stop()
    algo.stop()


def late_e(agent_id, episode, **kwargs):
    return "e" if agent_id == "d" else agent_id


@pytest.mark.slow
def test_learners_fetch_the_episodes_that_they_need(remote, cluster):
    one = updates_of_one(life_config, 2)
    algo, group = group_of(remote, life_config())
    for episodes, timesteps in zip(one.episodes, one.timesteps, strict=True):
        whole = pickle.loads(episodes)
        by_runner = [[e for e in whole if sub_environment_of(e) in own] for own in ({0, 1, 2}, {3}, {4, 5})]
        payloads = [cluster.ray.put(pickle.dumps(own)) for own in by_runner]
        references = []
        for episode in whole:
            runner = next(i for i, own in enumerate(by_runner) if episode in own)
            place, number = by_runner[runner].index(episode), sub_environment_of(episode)
            references.append(EpisodeReference(payloads[runner], place, number, episode.agent_steps()))
        group.update_from(references, timesteps, 6)
    assert largest_difference(one.state["module"], algo.learner.get_state()["module"]) < 1e-5
    algo.stop()


@pytest.mark.slow
def test_an_error_in_a_learner_is_raised_here_and_the_next_update_works(remote):
    config = life_config()
    algo, group = group_of(remote, config.copy().learners(learner_class=Failing))
    episodes = algo._sample().episodes()
    with pytest.raises(ValueError, match="the user's own error"):
        group.update(episodes=episodes)
    algo.stop()
    check_updates(remote, life_config, number=1)


class Failing(PPOLearner):
    def compute_loss_for_module(self, **given):
        if self.ranks is not None and self.ranks.rank == 1:
            raise ValueError("the user's own error")
        return super().compute_loss_for_module(**given)


def test_what_needs_the_whole_batch_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", None)
    config = life_config().multi_agent(policies_to_train=lambda module_id, batch: True).learners(num_learners=2)
    with pytest.raises(LearnerError, match="policies_to_train"):
        config.build_algo()


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_episodes_are_divided_by_the_numbers_of_their_sub_environments(number):
    payloads = [object(), object()]
    references = [EpisodeReference(payloads[env // 3], i, env, 1) for i, env in enumerate([5, 0, 3, 2, 1, 4, 0, 3])]
    shares = divided(references, number, 6)
    assert sorted(p for share in shares for positions in share.positions for p in positions) == list(range(8))
    ranks = {}
    for rank, share in enumerate(shares):
        for payload, places, positions in zip(share.payloads, share.places, share.positions, strict=True):
            for place, position in zip(places, positions, strict=True):
                assert references[position].payload is payload and references[position].place == place
                assert ranks.setdefault(references[position].env_number, rank) == rank
    assert [ranks[env] for env in range(6)] == sorted(ranks.values())
    assert len(set(ranks.values())) == min(number, 6)


@pytest.mark.slow
def test_learners_killed_at_20_random_moments_change_nothing(remote):
    rng = random.Random(secrets.randbits(31))
    for _ in range(5):

        def kill_later(number, algo, group):
            pid, seconds = rng.choice(processes(group)), rng.uniform(0.0, 0.4)
            threading.Timer(seconds, lambda: kill(pid)).start()

        check_updates(remote, life_config, kill_later)


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_without_restarts_a_lost_learner_ends_the_run(cluster):
    learners = two_learners(cluster, RestartPolicy(restarts=False, timeout_s=10.0), Resources(0.5))
    algo, group = group_of(learners, life_config())
    group.update(episodes=algo._sample().episodes())
    os.kill(processes(group)[0], signal.SIGKILL)
    with pytest.raises(ActorLost, match=r"(?s)learner 0.*\(ActorDiedError\).*restart_failed_env_runners=True"):
        group.update(episodes=algo._sample().episodes())
    group.stop()
    algo.stop()
