"""The results of an iteration: what losses and pieces log, and counts of remote env runners and learners."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from helpers.envs.scripted_envs import small_config
from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import Columns, ConnectorV2
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.results import _fault_tolerance
from marl_connectors.cluster.actor_pool import ActorLost


class LoggingLearner(PPOLearner):
    """Logs the rows of each loss, and replaces the entropy in the results."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.metrics.log_value((module_id, "rows"), len(batch[Columns.OBS]), reduce="sum")
        self.metrics.log_dict({"entropy": 7.0}, key=module_id, window=1)
        self.metrics.log_value("losses", 1, reduce="sum")
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


class LoggingPiece(ConnectorV2):
    def __call__(self, *, batch, metrics, **kwargs):
        metrics.log_value("calls", 1, reduce="sum")
        return batch


def test_what_a_loss_logs_under_a_module_is_in_the_results_of_the_module():
    config = small_config("marl_envs.match_v0").multi_agent(policies="independent")
    config.learners(learner_class=LoggingLearner, learner_connector=lambda obs, act: LoggingPiece())
    algo = config.build_algo()
    for _ in range(2):
        result = algo.train()
        for own in result["learners"].values():
            assert own["rows"] == own["num_module_steps_trained"] > 0
            assert own["entropy"] == 7.0 and "policy_loss" in own
        minibatches = len(result["learners"]) * 2  # 10 env steps in minibatches of 5
        assert result["connectors"] == {"learner": {"losses": minibatches, "calls": 1}}
    algo.stop()


def remote_config():
    return small_config("CartPole-v1").env_runners(num_env_runners=2, num_envs_per_env_runner=1)


def loses_once(of, method):
    """Loses the actor with this name in its first call of the method, but not its replacement."""
    lost = []

    def loses(actor, called, arguments):
        if actor.startswith(of) and called == "call" and arguments[0] == method and not lost:
            lost.append(actor)
            return "after"
        return None

    return loses


@pytest.fixture
def fake(monkeypatch):
    return use_fake_ray(monkeypatch)


def test_a_replaced_env_runner_is_counted_and_reported_once(fake):
    fake.loses = loses_once("env runner 1", "sample")
    reported = []
    config = remote_config().callbacks(on_env_runners_recreated=lambda **given: reported.append(given))
    algo = config.build_algo()
    assert algo.train()["fault_tolerance"] == {"num_healthy_workers": 2, "num_remote_worker_restarts": 1}
    assert algo.train()["fault_tolerance"] == {"num_healthy_workers": 2, "num_remote_worker_restarts": 1}
    assert reported == [
        {
            "algorithm": algo,
            "env_runner_group": algo.env_runner_group,
            "env_runner_indices": [1],
            "is_evaluation": False,
        }
    ]
    algo.stop()


def test_a_lost_env_runner_is_not_healthy_and_has_no_rate(fake):
    algo = (
        remote_config().fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=True).build_algo()
    )
    assert list(algo.train()["timers"]["env_runner_env_steps_per_second"]) == [0, 1]
    fake.loses = loses_once("env runner 0", "sample")
    result = algo.train()
    assert result["fault_tolerance"] == {"num_healthy_workers": 1, "num_remote_worker_restarts": 0}
    assert list(result["timers"]["env_runner_env_steps_per_second"]) == [1]
    algo.stop()


def test_without_replacement_a_lost_env_runner_ends_the_iteration(fake):
    algo = remote_config().fault_tolerance(restart_failed_env_runners=False).build_algo()
    fake.loses = loses_once("env runner 0", "sample")
    with pytest.raises(ActorLost, match=r"(?s)runner 0.*restart_failed_env_runners=True"):
        algo.train()
    algo.stop()


def test_an_evaluation_reports_its_own_env_runners(fake):
    fake.loses = loses_once("evaluation env runner 0", "play")
    reported = []
    config = remote_config().callbacks(on_env_runners_recreated=lambda **given: reported.append(given))
    config.evaluation(evaluation_interval=1, evaluation_duration=2, evaluation_num_env_runners=2)
    algo = config.build_algo()
    result = algo.train()
    assert result["fault_tolerance"]["num_remote_worker_restarts"] == 0
    assert result["evaluation"]["num_healthy_workers"] == 2
    assert result["evaluation"]["num_remote_worker_restarts"] == 1
    assert [(own["env_runner_indices"], own["is_evaluation"]) for own in reported] == [([0], True)]
    algo.stop()


def test_replaced_learners_are_counted():
    runners = SimpleNamespace(num_remote_env_runners=0)
    learners = SimpleNamespace(is_local=False, num_remote_learner_restarts=3)
    assert _fault_tolerance(runners, learners) == {"fault_tolerance": {"num_remote_learner_restarts": 3}}
