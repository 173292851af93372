"""Evaluations can be played otherwise than training: by other modules, exploring, in another number of copies."""

from __future__ import annotations

import json

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.fake_ray import use_fake_ray
from helpers.runs.random_runs import AddsCount, plain
from marl_connectors import (
    Algorithm,
    BCConfig,
    Columns,
    DQNConfig,
    MADDPGConfig,
    MAPPOConfig,
    MARWILConfig,
    MATD3Config,
    MixedConfig,
    PPOConfig,
    QMIXConfig,
    RLModule,
    SACConfig,
    VDNConfig,
)
from marl_connectors.callbacks import Callbacks
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.errors import ConfigError, MappingError
from marl_envs import match_v0


def config_of(**evaluation):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 7})
    config.multi_agent(policies={"learns", "fixed"}, policy_mapping_fn="*=learns", policies_to_train=["learns"])
    return config.evaluation(evaluation_duration=3, **evaluation)


def modules_of(results):
    return set(results["env_runners"]["module_episode_returns"])


def test_a_fixed_opponent_plays_in_evaluations_only():
    config = config_of(evaluation_interval=2, evaluation_config={"policy_mapping_fn": "*_0=learns,*_1=fixed"})
    algo = config.build_algo()
    results = [algo.train() for _ in range(4)]
    assert modules_of(results[1]["evaluation"]) == {"learns", "fixed"}
    assert modules_of(results[3]) == {"learns"}
    assert modules_of(algo.evaluate()) == {"learns", "fixed"}


def test_evaluations_have_their_results_where_rllib_has_them():
    algo = config_of(evaluation_interval=1).build_algo()
    for found in (algo.evaluate(), algo.train()["evaluation"], algo.random_play(num_episodes=3)):
        own = json.loads(json.dumps(found))
        assert list(own) == ["env_runners"] and own["env_runners"]["num_episodes"] == 3
    algo.stop()


def test_a_call_says_otherwise():
    algo = config_of(evaluation_config={"policy_mapping_fn": "*_0=learns,*_1=fixed"}).build_algo()
    assert modules_of(algo.evaluate(policy_mapping_fn="*=fixed")) == {"fixed"}
    assert modules_of(algo.evaluate(policy_mapping_fn=lambda agent_id, episode, **kwargs: "learns")) == {"learns"}
    with pytest.raises(MappingError, match="'other'"):
        algo.evaluate(policy_mapping_fn="*=other")
    assert modules_of(algo.evaluate()) == {"learns", "fixed"}, "and nothing of it stays"


class Says(RLModule):
    """Gives the action 1 when exploring, else 0."""

    def _forward_inference(self, batch, **kwargs):
        return {Columns.ACTIONS: batch[Columns.OBS][..., 0].long() * 0}

    def _forward_exploration(self, batch, **kwargs):
        return {Columns.ACTIONS: batch[Columns.OBS][..., 0].long() * 0 + 1}


class NotesActions(Callbacks):
    seen: list = []

    def on_episode_end(self, *, episode, env_runner, **kwargs):
        actions = {int(a) for e in episode.agent_episodes.values() for a in e.get_actions()}
        self.seen.append((actions, len(env_runner.vector_env.sub_envs)))


def test_exploration_copies_and_callbacks_may_be_others_too():
    from marl_connectors import RLModuleSpec

    settings = {"num_envs_per_env_runner": 2, "callbacks_class": NotesActions}
    config = config_of(evaluation_config=settings).rl_module(rl_module_spec=RLModuleSpec(Says))
    algo = config.env_runners(num_envs_per_env_runner=3).build_algo()
    NotesActions.seen.clear()
    algo.evaluate(num_episodes=2)
    algo.evaluate(num_episodes=1, explore=False)
    assert NotesActions.seen == [({1}, 2), ({1}, 2), ({0}, 1)]
    greedy = config.copy().evaluation(evaluation_config={**settings, "explore": False}).build_algo()
    NotesActions.seen.clear()
    greedy.evaluate(num_episodes=2)
    greedy.evaluate(num_episodes=1, explore=True)
    assert NotesActions.seen == [({0}, 2), ({0}, 2), ({1}, 1)]


def test_env_runners_of_training_add_no_sub_environments_to_evaluations(monkeypatch):
    use_fake_ray(monkeypatch)
    settings = {"num_envs_per_env_runner": 2, "callbacks_class": NotesActions}
    config = config_of(evaluation_config=settings).env_runners(num_env_runners=2, num_envs_per_env_runner=3)
    algo = config.build_algo()
    NotesActions.seen.clear()
    algo.evaluate(num_episodes=5)
    assert [num_envs for _, num_envs in NotesActions.seen] == [2] * 5
    algo.stop()


DRAWS = [PPOConfig, MAPPOConfig, BCConfig, MARWILConfig, SACConfig]
TAKES_THE_BEST = [DQNConfig, VDNConfig, QMIXConfig, MADDPGConfig, MATD3Config]


@pytest.mark.parametrize("config_class", [*DRAWS, *TAKES_THE_BEST])
def test_policies_act_in_evaluations_as_they_were_trained_unless_the_user_decides(config_class):
    def explores(config):
        return config.get_evaluation_config().explore

    assert explores(config_class()) == (config_class in DRAWS)
    assert not explores(config_class().env_runners(explore=False))
    for wanted in (True, False):
        assert explores(config_class().evaluation(evaluation_config={"explore": wanted})) == wanted


def test_a_mixed_run_draws_if_one_of_its_algorithms_learns_distributions():
    for algorithms, draws in (({"a": DQNConfig()}, False), ({"a": DQNConfig(), "b": PPOConfig()}, True)):
        assert MixedConfig().algorithms(algorithms).get_evaluation_config().explore == draws


def test_an_evaluation_with_a_seed_of_its_own_leaves_the_seeds_of_others_alone():
    one, other = (config_of().build_algo() for _ in range(2))
    one.evaluate(num_episodes=1, seed=5)
    assert one.evaluate(num_episodes=3) == other.evaluate(num_episodes=3)


def test_what_is_wrong_in_the_settings_of_evaluations_is_named():
    with pytest.raises(ConfigError, match=r"(?s)evaluation_config.*'lr'"):
        config_of(evaluation_config={"lr": 1.0})
    with pytest.raises(ConfigError, match=r"(?s)evaluation_config.*num_envs_per_env_runner"):
        config_of(evaluation_config={"num_envs_per_env_runner": 0})


def test_a_checkpoint_holds_them(tmp_path):
    settings = {"policy_mapping_fn": "*_0=learns,*_1=fixed", "explore": True}
    algo = config_of(evaluation_config=settings).build_algo()
    loaded = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"))
    assert loaded.config.evaluation_config == algo.config.evaluation_config
    assert loaded.evaluate() == algo.evaluate()


def test_filters_count_nothing_in_evaluations():
    config = config_of().env_runners(env_to_module_connector=lambda env: MeanStdFilter())
    algo = config.build_algo()
    algo.train()
    counts = []

    class Counts(Callbacks):
        def on_sample_end(self, *, env_runner, **kwargs):
            counts.append(env_runner.env_to_module["MeanStdFilter"].get_state()["agent_0"].count)

    algo.config.change(evaluation_config={"callbacks_class": Counts})
    before = algo.env_runner.env_to_module.get_state()
    algo.evaluate()
    assert counts == [before["MeanStdFilter"]["agent_0"].count] != [0]
    assert plain(algo.env_runner.env_to_module.get_state()) == plain(before)
    algo.train()
    after = algo.env_runner.env_to_module.get_state()["MeanStdFilter"]["agent_0"].count
    assert after > counts[0], "in training it counts on"


def test_pieces_that_remember_go_on_after_an_evaluation_as_if_there_had_been_none():
    algo = config_of().env_runners(env_to_module_connector=lambda env: AddsCount()).build_algo()
    algo.train()
    before = algo.env_runner.env_to_module.get_state()
    algo.evaluate()
    assert algo.env_runner.env_to_module.get_state() == before
    assert before["AddsCount"]["calls"] > 0


class NotesStarts(Callbacks):
    seen: list = []

    def on_episode_end(self, *, episode, **kwargs):
        self.seen.append({a: own.get_observations(0).tolist() for a, own in episode.agent_episodes.items()})


def test_evaluations_play_other_episodes_each_time_also_after_a_checkpoint(tmp_path):
    algo = small_config(LifeEnv).evaluation(evaluation_config={"callbacks_class": NotesStarts}).build_algo()
    NotesStarts.seen.clear()
    algo.evaluate(num_episodes=1)
    resumed = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"), config=algo.config)
    for one in (algo, resumed):
        one.evaluate(num_episodes=1)
    first, second, of_resumed = NotesStarts.seen
    assert first != second == of_resumed
