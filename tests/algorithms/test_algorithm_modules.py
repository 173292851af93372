"""Modules that come and go while training goes on, and runs that are resumed after that."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from helpers.modules.recurrent_modules import GRUModule
from marl_connectors import (
    Algorithm,
    DQNConfig,
    MADDPGConfig,
    MAPPOConfig,
    MATD3Config,
    MultiRLModuleSpec,
    PPOConfig,
    QMIXConfig,
    RLModuleSpec,
    SACConfig,
    VDNConfig,
    load_policy,
)
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.errors import CheckpointError, ConfigError, LearnerError, MappingError, ModuleError
from marl_connectors.policy_mapping import mapping_from_json, mapping_to_json
from marl_connectors.seeding import stream
from marl_envs import last_stone_v0, match_v0


@dataclass(frozen=True)
class Against:
    """Player 0 acts by main, the others by opponents that are drawn by the episode's id."""

    opponents: tuple[str, ...]

    def __call__(self, agent_id, episode, **kwargs):
        if agent_id.endswith("_0"):
            return "main"
        return self.opponents[stream(0, "opponent", episode.id_).integers(len(self.opponents))]


def the_others_by_old(agent_id, episode, **kwargs):
    return "main" if agent_id.endswith("_0") else "old"


def match_config(**env_config):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 7, **env_config})
    config.multi_agent(policies={"main"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "main")
    return config.env_runners(num_envs_per_env_runner=3)


def game_config():
    config = small_config(last_stone_v0.env, env_config={"stones": 6})
    config.multi_agent(policies={"main"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "main")
    return config.env_runners(
        num_envs_per_env_runner=3, env_to_module_connector=action_masks, episode_lookback_horizon=2
    )


def action_masks():
    from marl_connectors import ActionMasking

    return ActionMasking()


def weights(algo):
    return {f"{m}.{k}": v.numpy() for m, state in algo.rl_module.get_state().items() for k, v in state.items()}


def add_copy(algo, module_id, mapping, **settings):
    main = algo.get_module("main")
    return algo.add_module(
        module_id,
        RLModuleSpec.from_module(main),
        module_state=main.get_state(),
        new_agent_to_module_mapping_fn=mapping,
        **settings,
    )


def test_a_copy_begins_with_the_same_parameters_and_is_left_alone_if_it_is_not_to_be_updated():
    algo = match_config().build_algo()
    algo.train()
    add_copy(algo, "old", the_others_by_old, new_should_module_be_updated=["main"])
    before = weights(algo)
    for name, value in algo.get_module("main").get_state().items():
        np.testing.assert_array_equal(value, algo.get_module("old").get_state()[name])
    for _ in range(2):
        result = algo.train()
    assert set(result["learners"]) == {"main"}
    after = weights(algo)
    assert {name.split(".")[0] for name in after if not np.array_equal(before[name], after[name])} == {"main"}
    assert algo.config.policies_to_train == ["main"]
    assert set(algo.config.policies) == {"main", "old"}


def test_a_module_that_is_not_added_to_the_learner_only_acts():
    algo = match_config().build_algo()
    add_copy(algo, "old", the_others_by_old, add_to_learners=False)
    algo.train()
    before = weights(algo)
    assert set(algo.train()["learners"]) == {"main"}
    assert "old" in algo.evaluate(num_episodes=2)["env_runners"]["module_episode_returns"]
    after = weights(algo)
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("old."))
    assert not all(np.array_equal(before[name], after[name]) for name in before if name.startswith("main."))


def test_evaluations_follow_the_new_mapping():
    algo = match_config().build_algo()
    assert set(algo.evaluate(num_episodes=2)["env_runners"]["module_episode_returns"]) == {"main"}
    add_copy(algo, "old", the_others_by_old)
    assert set(algo.evaluate(num_episodes=2)["env_runners"]["module_episode_returns"]) == {"main", "old"}


def test_a_module_of_its_own_kind_has_its_own_settings():
    algo = match_config().build_algo()
    spec = RLModuleSpec(model_config={"fcnet_hiddens": (9,)})
    module = algo.add_module(
        "wide", spec, config_overrides={"lr": 0.5, "gamma": 0.25}, new_agent_to_module_mapping_fn="*_0=main,*=wide"
    )
    assert module.encoder.output_dim == 9
    assert algo.learner.pipeline["GeneralAdvantageEstimation"].module_settings["wide"]["gamma"] == 0.25
    algo.train()
    assert algo.train()["learners"]["wide"]["learning_rate"] == 0.5
    algo.add_module("narrow", config_overrides={"model_config": {"fcnet_hiddens": (3,)}})
    assert algo.get_module("narrow").encoder.output_dim == 3
    with pytest.raises(ConfigError, match="'lrr'"):
        algo.add_module("other", config_overrides={"lrr": 0.5})
    assert "other" not in algo.rl_module


OVERRIDES = {
    PPOConfig: {
        "gamma": 0.5,
        "lambda_": 0.3,
        "lr": 0.02,
        "clip_param": 0.05,
        "entropy_coeff": 0.1,
        "vf_loss_coeff": 2.0,
        "grad_clip": 0.01,
        "num_epochs": 3,
        "minibatch_size": 7,
    },
    DQNConfig: {"gamma": 0.5, "tau": 0.3, "lr": 0.02, "double_q": False, "td_error_loss_fn": "mse", "grad_clip": 0.01},
    SACConfig: {
        "gamma": 0.5,
        "tau": 0.3,
        "actor_lr": 0.02,
        "critic_lr": 0.04,
        "alpha_lr": 0.03,
        "target_entropy": 0.2,
        "grad_clip": 0.01,
    },
}
"""Settings of a module that have other values than by default."""


def config_for_overrides(config_class, policies, mapping, **settings):
    config = config_class().environment(LifeEnv, env_config={"die": 0.2, "join": 0.2}, disable_env_checking=True)
    config.multi_agent(policies=policies, policy_mapping_fn=mapping).debugging(seed=3)
    config.env_runners(num_env_workers=0, num_envs_per_env_runner=2)
    return config.rl_module(model_config={"fcnet_hiddens": (5,)}, **settings)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", [*range(9), *fresh_seeds(30)])
def test_overrides_of_an_added_module_count_from_its_first_update_as_if_set_from_the_start(seed, tmp_path):
    rng = np.random.default_rng(seed)
    config_class = [PPOConfig, DQNConfig, SACConfig][seed % 3]
    chosen = {name: value for name, value in OVERRIDES[config_class].items() if name == "gamma" or rng.random() < 0.4}
    whole = {"algorithm_config_overrides_per_module": {"new": chosen}}
    whole = config_for_overrides(config_class, ["main", "new"], "a=main,*=new", **whole).build_algo()
    grown = config_for_overrides(config_class, ["main"], "*=main").build_algo()
    grown.add_module("new", config_overrides=chosen, new_agent_to_module_mapping_fn="a=main,*=new")
    resumed = Algorithm.from_checkpoint(grown.save_to_path(tmp_path / "c"))
    np.testing.assert_equal(weights(grown), weights(whole))
    before = weights(whole)
    for _ in range(2):
        episodes = whole.env_runner.sample(num_timesteps=40)
        found = [algo.learner.update(episodes=episodes) for algo in (whole, grown, resumed)]
        assert set(found[0]) == {"main", "new"}
        assert found[1] == found[2]
    np.testing.assert_equal(weights(resumed), weights(grown))
    for name, value in weights(grown).items():
        np.testing.assert_allclose(value, weights(whole)[name], rtol=1e-4, atol=1e-6)
    assert any(not np.array_equal(before[name], weights(whole)[name]) for name in before if name.startswith("new."))


@pytest.mark.parametrize("config_class", [QMIXConfig, VDNConfig, MADDPGConfig, MATD3Config])
def test_the_modules_of_a_team_cannot_change(config_class):
    algo = config_for_overrides(config_class, ["main", "b"], "b=b,*=main").build_algo()
    changes = [
        lambda: algo.add_module("new", new_agent_to_module_mapping_fn="b=new,*=main"),
        lambda: algo.remove_module("b", new_agent_to_module_mapping_fn="*=main"),
        lambda: algo.set_policy_mapping_fn("*=main"),
    ]
    for change, who in zip(changes, ["add_module", "remove_module", "set_policy_mapping_fn"], strict=True):
        with pytest.raises(ConfigError, match=f"{who}: {config_class.__name__.removesuffix('Config')} "):
            change()
    assert list(algo.rl_module) == ["main", "b"] and algo.config.policy_mapping_fn("b", None) == "b"


@pytest.mark.slow
def test_a_mapping_by_agents_ids_may_only_name_modules_that_are_there():
    algo = config_for_overrides(PPOConfig, ["main", "b"], "b=b,*=main").build_algo()
    with pytest.raises(MappingError, match=r"(?s)remove_module.*'b'.*'b'.*'main'"):
        algo.remove_module("b")
    with pytest.raises(MappingError, match=r"(?s)remove_module.*'a'.*'main'.*'b'"):
        algo.remove_module("main", new_agent_to_module_mapping_fn="b=b,*=main")
    with pytest.raises(MappingError, match=r"(?s)add_module.*'c'.*'nwe'.*'main'.*'b'.*'new'"):
        algo.add_module("new", new_agent_to_module_mapping_fn="a=new,b=b,c=nwe")
    with pytest.raises(MappingError, match=r"(?s)set_policy_mapping_fn.*'a'.*'a'"):
        algo.set_policy_mapping_fn("independent")
    assert list(algo.rl_module) == ["main", "b"]
    algo.remove_module("b", new_agent_to_module_mapping_fn="*=main")
    assert set(algo.train()["learners"]) == {"main"}


def test_a_function_that_names_a_module_that_was_removed_is_an_error_when_an_agent_asks_for_it():
    algo = config_for_overrides(PPOConfig, ["main", "b"], lambda agent_id, *_, **__: agent_id.replace("a", "main"))
    algo = algo.environment(env_config={"agents": ("a", "b")}).build_algo()
    algo.remove_module("b")
    with pytest.raises(MappingError, match=r"(?s)'b'.*'b'.*'main'"):
        algo.train()


def test_what_cannot_be_added_leaves_everything_as_it_was():
    algo = match_config().build_algo()
    with pytest.raises(ModuleError, match="'main'"):
        algo.add_module("main", new_agent_to_module_mapping_fn="shared")
    with pytest.raises(ConfigError, match="runners"):
        algo.add_module("new", add_to_env_runners=False)
    with pytest.raises(ModuleError, match=r"(?s)'maine'.*'main'"):
        algo.remove_module("maine")
    with pytest.raises(ModuleError, match="'main'"):
        algo.remove_module("main")
    assert list(algo.rl_module) == ["main"]
    assert not isinstance(algo.config.policy_mapping_fn, str)
    with pytest.raises(ConfigError, match="'new'"):
        small_config("CartPole-v1").build_algo().add_module("new")


class Slips(PPOLearner):
    """Cannot make an optimizer for what comes later."""

    def configure_optimizers_for_module(self, module_id, config):
        super().configure_optimizers_for_module(module_id, config)
        if module_id != "main":
            raise LearnerError("no optimizer for it")


FAILING = {
    "an override": ({"config_overrides": {"clip_param": -1}}, ConfigError, r"(?s)'new'.*clip_param"),
    "an override beside a bad state": (
        {"config_overrides": {"lr": 0.5}, "module_state": {"no": np.zeros(1)}},
        ModuleError,
        "architecture",
    ),
    "an optimizer": ({"config_overrides": {"lr": 0.5}}, LearnerError, "no optimizer for it"),
    "the kind of a mapping": ({"new_agent_to_module_mapping_fn": 3}, ConfigError, "policy_mapping"),
    "a pattern": ({"new_agent_to_module_mapping_fn": "x*=new,*=main"}, MappingError, r"'x\*'"),
    "a setting of the run": ({"config_overrides": {"env": "CartPole-v1"}}, ConfigError, "'env'"),
    "a module to be updated": ({"new_should_module_be_updated": ["mian"]}, ConfigError, "'main'"),
    "no critic": ({"config_overrides": {"use_critic": False}}, ConfigError, "critic"),
    "no lookback": ({"module_spec": RLModuleSpec(GRUModule, model_config={"size": 3})}, ConfigError, "lookback"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("what", FAILING)
def test_a_failed_addition_is_undone(what):
    settings, error, message = FAILING[what]
    config = match_config()
    if what == "an optimizer":
        config.learners(learner_class=Slips)
    if what == "no lookback":
        config.env_runners(episode_lookback_horizon=0)
    algo, untouched = config.build_algo(), config.build_algo()
    algo.train()
    untouched.train()
    before = algo.config.to_dict()
    with pytest.raises(error, match=message):
        algo.add_module("new", **settings)
    assert list(algo.rl_module) == ["main"]
    assert algo.config.to_dict() == before
    assert not algo._changed_settings
    assert "new" not in algo.learner.pipeline["GeneralAdvantageEstimation"].module_settings
    algo.train()
    untouched.train()
    assert all(np.array_equal(value, weights(untouched)[name]) for name, value in weights(algo).items())


def test_a_removal_with_a_bad_mapping_removes_nothing():
    algo = match_config().build_algo()
    add_copy(algo, "old", the_others_by_old)
    with pytest.raises(MappingError, match="matches"):
        algo.remove_module("old", new_agent_to_module_mapping_fn="x*=main,*=main")
    assert list(algo.rl_module) == ["main", "old"]
    algo.train()


def test_the_name_of_shared_layers_is_no_module_id():
    algo = match_config().build_algo()
    with pytest.raises(ModuleError, match="'__shared__'"):
        algo.add_module("__shared__")
    assert list(algo.rl_module) == list(algo.learner.pipeline["GeneralAdvantageEstimation"].module_settings) == ["main"]
    with pytest.raises(ModuleError, match="'__shared__'"):
        match_config().multi_agent(policies=["__shared__"], policy_mapping_fn="*=__shared__").build_algo()


def test_modules_stand_in_the_same_order_in_every_process():
    config = match_config().multi_agent(policies={f"m{i}" for i in range(9)}, policy_mapping_fn="*=m0")
    assert list(config.build_algo().rl_module) == [f"m{i}" for i in range(9)]


@pytest.mark.few(1)
@pytest.mark.parametrize("config", [match_config, game_config], ids=["parallel", "in turns"])
def test_a_run_goes_on_exactly_after_modules_were_added_and_removed(config, tmp_path):
    algo = config().build_algo()
    algo.train()
    add_copy(algo, "v1", Against(("v1",)), new_should_module_be_updated=["main"])
    algo.train()
    add_copy(algo, "v2", Against(("v1", "v2")))
    algo.train()
    algo.remove_module("v1", new_agent_to_module_mapping_fn=Against(("v2", "main")))
    algo.train()
    loaded = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"))
    assert list(loaded.rl_module) == ["main", "v2"]
    assert loaded.config.policy_mapping_fn == Against(("v2", "main"))
    assert loaded.config.policies_to_train == ["main"]
    for _ in range(3):
        algo.train()
        loaded.train()
    np.testing.assert_equal(weights(loaded), weights(algo))
    again = Algorithm.from_checkpoint(loaded.save_to_path(tmp_path / "d"))
    assert list(again.rl_module) == ["main", "v2"]


def test_a_mapping_without_a_name_that_was_set_while_training_has_to_be_passed(tmp_path):
    algo = match_config().build_algo()
    mapping = lambda agent_id, episode, **kwargs: the_others_by_old(agent_id, episode)
    add_copy(algo, "old", mapping, new_should_module_be_updated=lambda module_id: module_id == "main")
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"\(policy_mapping_fn=...\)"):
        Algorithm.from_checkpoint(saved)
    with pytest.raises(CheckpointError, match=r"(?s)policies_to_train.*policies_to_train="):
        Algorithm.from_checkpoint(saved, config=match_config(), policy_mapping_fn=mapping)
    with pytest.raises(CheckpointError, match=r"(?s)policy_mapping_fn.*policy_mapping_fn="):
        Algorithm.from_checkpoint(saved, config=match_config(), policies_to_train=["main"])
    loaded = Algorithm.from_checkpoint(saved, policy_mapping_fn=mapping, policies_to_train=["main"])
    for _ in range(2):
        algo.train()
        loaded.train()
    np.testing.assert_equal(weights(loaded), weights(algo))


def test_an_earlier_mapping_comes_back_with_an_earlier_checkpoint(tmp_path):
    config = match_config().multi_agent(policies={"main", "old"}, policy_mapping_fn="*=main")
    algo = config.build_algo()
    algo.train()
    first = algo.save_to_path(tmp_path / "a")
    algo.set_policy_mapping_fn(the_others_by_old)
    algo.train()
    second = algo.save_to_path(tmp_path / "b")
    algo.restore_from_path(first)
    assert algo.config.policy_mapping_fn == config.policy_mapping_fn
    assert set(algo.evaluate(num_episodes=2)["env_runners"]["module_episode_returns"]) == {"main"}
    assert set(algo.train()["learners"]) == set(algo.train()["learners"]) == {"main"}
    other = config.build_algo()
    for run in (algo, other):
        run.restore_from_path(second)
        assert run.config.policy_mapping_fn is the_others_by_old
        assert set(run.train()["learners"]) == {"main", "old"}
    np.testing.assert_equal(weights(algo), weights(other))
    mapping = lambda agent_id, episode, **kwargs: "old"
    algo.set_policy_mapping_fn(mapping)
    third = algo.save_to_path(tmp_path / "c")
    algo.restore_from_path(third)
    assert algo.config.policy_mapping_fn is mapping, "it is that of the checkpoint"
    with pytest.raises(CheckpointError, match="policy_mapping_fn"):
        other.restore_from_path(third)


def test_a_class_without_a_name_is_taken_from_the_config(tmp_path):
    class Mine(DefaultPPORLModule):
        pass

    algo = match_config().build_algo()
    algo.add_module("mine", RLModuleSpec(Mine), new_agent_to_module_mapping_fn="*_0=main,*=mine")
    saved = algo.save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"(?s)module_class.*'mine'.*Mine.*rl_module_spec"):
        Algorithm.from_checkpoint(saved, config=match_config())
    spec = MultiRLModuleSpec(rl_module_specs={"mine": RLModuleSpec(Mine)})
    loaded = Algorithm.from_checkpoint(saved, config=match_config().rl_module(rl_module_spec=spec))
    assert type(loaded.get_module("mine")) is Mine
    np.testing.assert_equal(weights(loaded), weights(algo))


def test_modules_with_specs_and_settings_of_their_own_come_back(tmp_path):
    config = match_config().multi_agent(policy_mapping_fn="*_0=a,*=b", policies={"a": None, "b": None})
    small = RLModuleSpec(DefaultPPORLModule, model_config={"fcnet_hiddens": (3, 3)})
    algo = config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"b": small})).build_algo()
    loaded = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"))
    assert loaded.config.rl_module_spec.rl_module_specs["b"] == small
    np.testing.assert_equal(weights(loaded), weights(algo))


def test_a_removed_module_leaves_nothing_behind():
    algo = match_config().build_algo()
    add_copy(algo, "old", the_others_by_old)
    algo.train()
    algo.remove_module("old", new_agent_to_module_mapping_fn="*=main")
    add_copy(algo, "new", Against(("new",)))
    algo.train()
    gone = weakref.ref(add_copy(algo, "older", Against(("older",))))
    algo.evaluate(num_episodes=2)
    algo.train()
    algo.remove_module("older", new_agent_to_module_mapping_fn=Against(("new",)))
    algo.train()
    gc.collect()
    assert gone() is None
    state = algo.get_state()
    assert set(state.learner["optimizers"]) == set(state.parameters) == {"main", "new"}
    assert "old" not in repr(state.config) and "older" not in repr(state.learner)
    assert set(algo.learner.pipeline["GeneralAdvantageEstimation"].module_settings) == {"main", "new"}


def test_a_mapping_that_is_a_dataclass_survives_json():
    mapping = Against(("a", "b"))
    assert mapping_from_json(mapping_to_json(mapping)) == mapping
    assert mapping_to_json(Against((object(),)))["type"] == "not_importable"


def test_a_run_that_once_had_a_stateful_module_can_be_restored_and_loaded(tmp_path):
    algo = match_config().build_algo()
    algo.add_module("gru", RLModuleSpec(GRUModule, model_config={"size": 3}), new_agent_to_module_mapping_fn="*=gru")
    algo.train()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "with"))
    assert policy.actions({"agent_0": np.zeros(3, np.float32)}).keys() == {"agent_0"}
    algo.remove_module("gru", new_agent_to_module_mapping_fn="*=main")
    algo.train()
    saved = algo.save_to_path(tmp_path / "without")
    loaded = Algorithm.from_checkpoint(saved)
    algo.train()
    loaded.train()
    np.testing.assert_equal(weights(loaded), weights(algo))
    assert load_policy(saved)(np.zeros(3, np.float32), "agent_1") in range(3)


def test_modules_with_central_critics_come_and_go_too(tmp_path):
    config = MAPPOConfig().environment(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 7})
    config.multi_agent(policies={"main"}, policy_mapping_fn="*=main").debugging(seed=0)
    config.training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1)
    algo = config.build_algo()
    add_copy(algo, "old", the_others_by_old, new_should_module_be_updated=["main"])
    algo.add_module(
        "wide", RLModuleSpec(model_config={"fcnet_hiddens": (9,)}), new_agent_to_module_mapping_fn="*_0=main,*=wide"
    )
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    loaded = Algorithm.from_checkpoint(saved)
    algo.train()
    loaded.train()
    np.testing.assert_equal(weights(loaded), weights(algo))
    assert load_policy(saved)(np.zeros(3, np.float32), "agent_1") in range(3)
