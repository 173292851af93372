"""What a notebook shows of configs, algorithms, policies, env runners, learners and batches."""

from __future__ import annotations

import numpy as np
import pytest

from marl_connectors import BCConfig, ConnectorV2, MAPPOConfig, PPOConfig, load_policy


def match(**settings):
    config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 5})
    config.multi_agent(policies="independent").env_runners(num_envs_per_env_runner=2)
    return config.training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1, **settings)


def any_agent(agent_id, episode, **kwargs):
    return "any"


def test_a_config_prints_what_differs_from_its_defaults():
    assert repr(PPOConfig()) == "PPOConfig()"
    assert repr(PPOConfig().environment("CartPole-v1").training(lr=0.5)) == "PPOConfig(env='CartPole-v1', lr=0.5)"
    mapped = MAPPOConfig().multi_agent(policies={"any"}, policy_mapping_fn=any_agent)
    assert repr(mapped).startswith("MAPPOConfig(policies=") and "any_agent" in repr(mapped)


def test_a_config_with_its_own_defaults_set_again_prints_nothing():
    assert repr(PPOConfig().training(lr=PPOConfig.lr, gamma=PPOConfig.gamma)) == "PPOConfig()"


def test_results_print_how_they_ended():
    with match().build_algo() as algo:
        results = algo.fit(num_iterations=1, progress=False)
    assert repr(results).startswith(
        "<FitResults of 1 iteration. ended: num_iterations=1 is reached; agent steps: 40; return"
    )


def test_explanations_are_tables_also_all_of_them_together():
    with match().build_algo() as algo:
        explained = algo.explain()
    assert str(explained) == "\n\n".join(str(each) for each in explained.values())
    assert explained._repr_html_().count("<pre") == 1 and "NumpyToTensor" in explained._repr_html_()
    assert "AddObservations" in explained["learner"]._repr_html_()


def test_an_algorithm_that_reads_episodes_counts_their_steps(tmp_path):
    with match().build_algo() as expert:
        expert.record(tmp_path / "data", num_episodes=8)
    config = BCConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 5})
    config.offline_data(input_=str(tmp_path / "data")).training(train_batch_size_per_learner=20)
    with config.build_algo() as algo:
        algo.train()
        assert repr(algo) == "<BC on match_v0: 1 module (default_policy), 1 iteration, 40 agent steps>"


def test_an_algorithm_and_its_parts_print_what_they_are_and_how_far():
    with match().build_algo() as algo:
        modules = "2 modules (agent_0, agent_1)"
        assert repr(algo) == f"<PPO on match_v0: {modules}, 0 iterations, 0 agent steps>"
        algo.train()
        assert repr(algo) == f"<PPO on match_v0: {modules}, 1 iteration, 40 agent steps>"
        assert repr(algo.env_runner) == f"<EnvRunner of 2 sub-environments with {modules}: 20 env steps>"
        assert repr(algo.learner) == f"<PPOLearner of {modules} on cpu: 1 update>"
    with match().env_runners(num_envs_per_env_runner=1).build_algo() as algo:
        assert repr(algo.env_runner) == f"<EnvRunner of 1 sub-environment with {modules}: 0 env steps>"
        assert repr(algo.env_runner.vector_env) == f"<VectorEnv of 1 sub-environment (MatchEnv), seed {algo.seed}>"


def test_groups_loggers_and_vector_envs_print_what_they_hold():
    with match().build_algo() as algo:
        vector_env = algo.env_runner.vector_env
        assert repr(algo.env_runner_group) == f"<EnvRunnerGroup of {algo.env_runner!r}>"
        assert repr(algo.learner_group) == f"<LearnerGroup of {algo.learner!r}>"
        assert repr(vector_env) == f"<VectorEnv of 2 sub-environments (MatchEnv), seed {algo.seed}>"
        assert repr(algo.metrics) == "<MetricsLogger of 0 metrics>"
        algo.metrics.log_value(("a", "b"), 1.0)
        algo.metrics.log_value("c", 2.0)
        assert repr(algo.metrics) == "<MetricsLogger of 2 metrics (a/b, c)>"
    with match().env_runners(num_env_workers=2).build_algo() as algo:
        wanted = f"<WorkerVectorEnv of 2 sub-environments (in 2 worker processes), seed {algo.seed}>"
        assert repr(algo.env_runner.vector_env) == wanted


@pytest.mark.slow
def test_an_exported_policy_prints_its_agents_and_files(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from marl_connectors import OnnxPolicy

    with match().build_algo() as algo:
        policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    exported = OnnxPolicy(policy.export_onnx(tmp_path / "export"))
    assert repr(exported) == "<OnnxPolicy of 2 agents (agent_0, agent_1) with agent_0.onnx, agent_1.onnx>"


def test_a_policy_prints_its_agents_and_modules(tmp_path):
    with match().build_algo() as algo:
        policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    assert repr(policy) == "<Policy of 2 agents (agent_0, agent_1) with 2 modules (agent_0, agent_1)>"


def test_a_batch_prints_its_rows_and_columns():
    seen = []

    class Prints(ConnectorV2):
        def columns(self, c, xp):
            c["extra"] = {"a": np.zeros((len(c.rows), 3)), "b": (np.zeros(len(c.rows), bool),)}
            seen.append(repr(c))

    config = match().env_runners(env_to_module_connector=lambda: Prints())
    with config.build_algo() as algo:
        algo.env_runner.sample(num_timesteps=2)
    assert seen[-1] == ("<4 rows of 2 modules (agent_0, agent_1): extra {a: [4, 3] float64, b: ([4] bool)}>")


def test_leaving_the_with_block_stops_the_algorithm_also_after_an_error():
    algo, stopped = match().build_algo(), []
    algo.env_runner_group.stop = lambda: stopped.append(True)

    def fail():
        with algo as entered:
            assert entered is algo
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert stopped == [True]
