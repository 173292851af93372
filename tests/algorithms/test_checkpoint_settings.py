"""A run that goes on from a checkpoint has what its config says, or an error names the setting that cannot change."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    DQN,
    MADDPG,
    MAPPO,
    MATD3,
    PPO,
    VDN,
    Algorithm,
    BCConfig,
    DefaultPPORLModule,
    DQNConfig,
    MADDPGConfig,
    MAPPOConfig,
    MARWILConfig,
    MATD3Config,
    MixedConfig,
    MultiRLModuleSpec,
    PPOConfig,
    QMIXConfig,
    RLModuleSpec,
    SACConfig,
    VDNConfig,
    load_policy,
)
from marl_connectors.algorithms.config.sections import fixed_settings
from marl_connectors.algorithms.config.state import to_state
from marl_connectors.cli.training_run import check_changeable
from marl_connectors.cli.tree import place_of
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import integer, setting
from marl_envs import match_v0

OFF_POLICY = (DQNConfig, QMIXConfig, VDNConfig, SACConfig, MADDPGConfig, MATD3Config)
ON_POLICY = (PPOConfig, MAPPOConfig)


def small(cls, **training):
    config = cls().environment(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 7})
    config.env_runners(num_env_workers=0, rollout_fragment_length=5).multi_agent(policies="shared").debugging(seed=0)
    if cls is MixedConfig:
        return config.rl_module(model_config={"fcnet_hiddens": (4,)})
    settings = {"train_batch_size_per_learner": 10}
    if cls in OFF_POLICY:
        settings["num_steps_sampled_before_learning_starts"] = 10
        settings["replay_buffer_config"] = {**cls.replay_buffer_config, "capacity": 200}
        config.reporting(min_sample_timesteps_per_iteration=30)
    return config.training(**(settings | training)).rl_module(model_config={"fcnet_hiddens": (4,)})


def saved_run(config, folder, iterations=1):
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    path = algo.save_to_path(folder)
    algo.stop()
    return path


def goes_on(path, config):
    """The parameters after two more iterations."""
    with Algorithm.from_checkpoint(path, config=config) as algo:
        for _ in range(2):
            algo.train()
        return algo.rl_module.get_state()


def assert_refused(path, config, setting, there, here):
    words = f"(?s)^checkpoint.*{re.escape(setting)}.*{re.escape(there)}.*{re.escape(here)}"
    for load in (Algorithm.from_checkpoint, load_policy):
        with pytest.raises(CheckpointError, match=words):
            load(path, config=config)


CHANGES = [
    (DQNConfig, {"dueling": False}, "dueling", "True", "False"),
    (QMIXConfig, {"dueling": True}, "dueling", "False", "True"),
    (QMIXConfig, {"mixer": "vdn"}, "mixer", "'qmix'", "'vdn'"),
    (QMIXConfig, {"mixing_embed_dim": 5}, "mixing_embed_dim", "32", "5"),
    (QMIXConfig, {"mixer_state": "state"}, "mixer_state", "'joint_observations'", "'state'"),
    (SACConfig, {"twin_q": False}, "twin_q", "True", "False"),
    (SACConfig, {"initial_alpha": 0.5}, "initial_alpha", "1.0", "0.5"),
    (MADDPGConfig, {"twin_q": True}, "twin_q", "False", "True"),
    (MAPPOConfig, {"critic_obs": "state"}, "critic_obs", "'joint_observations'", "'state'"),
    (PPOConfig, {"use_critic": False}, "use_critic", "True", "False"),
    (PPOConfig, {"kl_coeff": 0.3}, "kl_coeff", "0.2", "0.3"),
]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("cls", "training", "setting", "there", "here"), CHANGES, ids=[f"{c[0].__name__}-{c[2]}" for c in CHANGES]
)
def test_a_changed_setting_of_the_architecture_is_named(cls, training, setting, there, here, tmp_path):
    path = saved_run(small(cls), tmp_path / "c")
    assert_refused(path, small(cls, **training), setting, there, here)
    with small(cls, **training).build_algo() if "state" not in training.values() else small(cls).build_algo() as other:
        other.config.change(**training)
        before = other.rl_module.get_state()
        with pytest.raises(CheckpointError, match=f"(?s){setting}.*{re.escape(there)}"):
            other.restore_from_path(path)
        assert all(
            torch.equal(value, before[m][n]) for m, s in other.rl_module.get_state().items() for n, value in s.items()
        )
    with pytest.raises(ConfigError, match="--resume"):
        check_changeable({place_of(setting, cls, ""): 1}, cls)


@pytest.mark.parametrize(
    ("changed", "setting", "there", "here"),
    [
        (lambda c: c.rl_module(model_config={"fcnet_hiddens": (5,)}), "model_config['fcnet_hiddens']", "[4]", "[5]"),
        (
            lambda c: c.rl_module(model_config={"fcnet_hiddens": (4,), "fcnet_activation": "relu"}),
            *("model_config['fcnet_activation']", "not set", "'relu'"),
        ),
        (
            lambda c: c.rl_module(rl_module_spec=RLModuleSpec(model_config={"fcnet_hiddens": [5]})),
            *("rl_module_spec['model_config']['fcnet_hiddens'] of module 'default_policy'", "[4]", "[5]"),
        ),
        (
            lambda c: c.rl_module(model_config=None, rl_module_spec=RLModuleSpec(model_config={"use_lstm": True})),
            *("model_config", "{'fcnet_hiddens': [4]}", "None"),
        ),
        (
            lambda c: c.rl_module(rl_module_spec=RLModuleSpec(OtherModule)),
            "rl_module_spec['module_class'] of module 'default_policy'",
            "'marl_connectors:DefaultPPORLModule'",
            f"'{__name__}:OtherModule'",
        ),
        (
            lambda c: c.rl_module(
                algorithm_config_overrides_per_module={"default_policy": {"model_config": {"fcnet_hiddens": (5,)}}}
            ),
            *("model_config['fcnet_hiddens'] of module 'default_policy'", "[4]", "[5]"),
        ),
        (lambda c: c.env_runners(episode_lookback_horizon=3), "episode_lookback_horizon", "1", "3"),
    ],
    ids=["sizes", "activation", "spec", "instead", "class", "overrides", "lookback"],
)
def test_a_changed_setting_of_the_modules_is_named(changed, setting, there, here, tmp_path):
    path = saved_run(small(PPOConfig), tmp_path / "c")
    assert_refused(path, changed(small(PPOConfig)), setting, there, here)


class OtherModule(DefaultPPORLModule):
    stackable = True


def test_a_model_config_of_a_spec_takes_the_place_of_all_of_the_other_one(tmp_path):
    sizes, more = {"fcnet_hiddens": (4,)}, {"fcnet_hiddens": (4,), "fcnet_activation": "relu"}
    run = small(PPOConfig).rl_module(model_config=more)
    path = saved_run(run, tmp_path / "c")
    setting = "rl_module_spec['model_config']['fcnet_activation'] of module 'default_policy'"
    assert_refused(
        path, run.copy().rl_module(rl_module_spec=RLModuleSpec(model_config=sizes)), setting, "'relu'", "not set"
    )
    for same in (RLModuleSpec(model_config=more), RLModuleSpec(DefaultPPORLModule, model_config=more)):
        Algorithm.from_checkpoint(path, config=run.copy().rl_module(rl_module_spec=same)).stop()
    path = saved_run(run.copy().rl_module(rl_module_spec=RLModuleSpec(model_config=sizes)), tmp_path / "d")
    assert_refused(path, run, setting, "not set", "'relu'")


def test_other_policies_and_another_seed_are_named_where_training_goes_on(tmp_path):
    path = saved_run(small(PPOConfig), tmp_path / "c")
    more = small(PPOConfig).multi_agent(policies=["default_policy", "b"])
    words = r"(?s)policies.*\['default_policy'\].*\['b', 'default_policy'\]"
    with pytest.raises(CheckpointError, match=words):
        Algorithm.from_checkpoint(path, config=more)
    load_policy(path, config=more.debugging(seed=5))  # to act, neither matters
    with pytest.raises(CheckpointError, match=r"(?s)\bseed\b.*\b0\b.*\b5\b"):
        Algorithm.from_checkpoint(path, config=small(PPOConfig).debugging(seed=5))
    with Algorithm.from_checkpoint(path, config=small(PPOConfig).debugging(seed=None)) as algo:
        assert algo.config.seed == algo.seed == 0
    with small(PPOConfig).debugging(seed=5).build_algo() as algo:
        with pytest.raises(CheckpointError, match=r"(?s)\bseed\b.*\b0\b.*\b5\b"):
            algo.restore_from_path(path)
        assert algo.config.seed == algo.seed == 5


def test_the_same_settings_in_another_form_are_no_change(tmp_path):
    spec = RLModuleSpec(OtherModule, model_config=DefaultModelConfig(fcnet_hiddens=(4,)))
    initial = f"{saved_run(small(PPOConfig), tmp_path / 'initial')}/learner_group/learner/rl_module/default_policy"
    begun = small(PPOConfig).rl_module(rl_module_spec=RLModuleSpec(load_state_path=initial))
    for i, (config, same) in enumerate(
        [
            (small(PPOConfig), small(PPOConfig).rl_module(model_config={"fcnet_hiddens": [4]})),
            (small(PPOConfig), small(PPOConfig).multi_agent(policies={"default_policy"})),
            (small(PPOConfig), small(PPOConfig).rl_module(rl_module_spec=RLModuleSpec(DefaultPPORLModule))),
            (small(PPOConfig).rl_module(rl_module_spec=spec), small(PPOConfig).rl_module(rl_module_spec=spec)),
            (begun, small(PPOConfig)),
        ]
    ):
        path = saved_run(config, tmp_path / str(i))
        Algorithm.from_checkpoint(path, config=same).stop()
        load_policy(path, config=same)
    elsewhere = RLModuleSpec(load_state_path="elsewhere")
    assert_refused(
        saved_run(begun, tmp_path / "begun"),
        small(PPOConfig).rl_module(rl_module_spec=elsewhere),
        *("rl_module_spec['load_state_path'] of module 'default_policy'", repr(initial), "'elsewhere'"),
    )


def test_the_form_of_a_spec_for_all_modules_is_part_of_it(tmp_path):
    path = saved_run(small(PPOConfig), tmp_path / "c")
    multi = MultiRLModuleSpec(rl_module_specs={}, inference_only=True)
    assert_refused(
        path, small(PPOConfig).rl_module(rl_module_spec=multi), "rl_module_spec['inference_only']", "not set", "True"
    )


# Several algorithms.


@pytest.mark.slow
def test_the_algorithms_of_a_mixed_run_are_compared_one_by_one(tmp_path):
    def config(dqn=None, **others):
        own = {"agent_0": DQNConfig() if dqn is None else dqn, "*": PPOConfig(), **others}
        return small(MixedConfig).multi_agent(policies="independent").algorithms(own)

    path = saved_run(config(), tmp_path / "c")
    Algorithm.from_checkpoint(path, config=config(dqn=DQNConfig().training(lr=0.1))).stop()
    assert_refused(path, config(dqn=DQNConfig().training(dueling=False)), "dueling", "True", "False")
    assert_refused(
        path,
        config(dqn=DQNConfig().rl_module(model_config={"fcnet_hiddens": (5,)})),
        *("model_config['fcnet_hiddens']", "[4]", "[5]"),
    )
    assert_refused(
        path, config(**{"agent_1": PPOConfig()}), "algorithm_configs", "['agent_0', '*']", "['agent_0', '*', 'agent_1']"
    )
    with pytest.raises(CheckpointError, match=r"(?s)DQNConfig.*PPOConfig"):
        Algorithm.from_checkpoint(path, config=config(dqn=PPOConfig()))
    overrides = {"agent_0": {"dueling": False}}
    other = config().rl_module(algorithm_config_overrides_per_module=overrides)
    assert_refused(path, other, "dueling of module 'agent_0'", "True", "False")


# Which configs go on with which checkpoints.


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The paths of the checkpoints of all algorithms, and their configs."""
    folder = tmp_path_factory.mktemp("runs")
    with small(PPOConfig).build_algo() as algo:
        algo.record(folder / "data", num_episodes=10)
    configs = {cls: small(cls) for cls in (*ON_POLICY, *OFF_POLICY)}
    for cls in (MARWILConfig, BCConfig):
        configs[cls] = small(cls).offline_data(input_=str(folder / "data"))
    configs[MixedConfig] = small(MixedConfig).algorithms({"*": PPOConfig()})
    return {cls: (saved_run(config, folder / cls.__name__), config) for cls, config in configs.items()}


@pytest.mark.slow
def test_no_algorithm_goes_on_with_the_config_of_another_one(runs):
    differing = {
        (QMIXConfig, VDNConfig): "mixer",
        (VDNConfig, QMIXConfig): "mixer",
        (MADDPGConfig, MATD3Config): "twin_q",
        (MATD3Config, MADDPGConfig): "twin_q",
    }
    without_critic = {
        (MARWILConfig, BCConfig): "beta (was 1.0, now 0.0)",
        (BCConfig, MARWILConfig): "beta (was 0.0, now 1.0)",
    }
    for there, (path, _) in runs.items():
        for here, (_, config) in runs.items():
            if there is here or (there, here) in without_critic:
                load_policy(path, config=config)
                if there is here:
                    Algorithm.from_checkpoint(path, config=config).stop()
                    continue
                words = re.escape(without_critic[there, here])
                for load in (Algorithm.from_checkpoint, restored_into(config)):
                    with pytest.raises(CheckpointError, match=words):
                        load(path, config=config)
                continue
            expected = f"(?s){there.__name__}.*{here.__name__}"
            for load in (Algorithm.from_checkpoint, load_policy, restored_into(config)):
                with pytest.raises(CheckpointError, match=differing.get((there, here), expected)):
                    load(path, config=config)


def restored_into(own):
    def load(path, config):
        with own.build_algo() as algo:
            algo.restore_from_path(path)

    return load


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "here", "same", "cls"),
    [
        (MATD3Config, MADDPGConfig, {"twin_q": True, "policy_delay": 2, "target_noise": 0.2}, MADDPG),
        (MADDPGConfig, MATD3Config, {"twin_q": False, "policy_delay": 1, "target_noise": 0.0}, MATD3),
        (VDNConfig, QMIXConfig, {"mixer": "vdn"}, None),
        (QMIXConfig, VDNConfig, {"mixer": "qmix"}, VDN),
        (BCConfig, MARWILConfig, {"beta": 0.0, "lr": 1e-4}, None),
    ],
)
def test_two_names_of_the_same_settings_go_on_alike(runs, there, here, same, cls):
    path, own = runs[there]
    other = small(here, **same).offline_data(input_=own.input_)
    one, two = goes_on(path, own), goes_on(path, other)
    assert all(torch.equal(value, two[m][name]) for m, state in one.items() for name, value in state.items())
    if cls is not None:
        with Algorithm.from_checkpoint(path, config=other) as algo:
            assert type(algo) is cls


def test_a_class_of_an_algorithm_makes_no_other_algorithm(runs):
    for there, cls in ((DQNConfig, PPO), (PPOConfig, DQN), (PPOConfig, MAPPO), (SACConfig, DQN), (MATD3Config, VDN)):
        with pytest.raises(CheckpointError, match=f"(?s){cls.__name__}.*{cls.__name__}Config"):
            cls.from_checkpoint(runs[there][0])
        with pytest.raises(ConfigError, match=f"(?s){cls.__name__}.*{cls.__name__}Config"):
            cls(runs[there][1])
    with PPO.from_checkpoint(runs[MAPPOConfig][0]) as algo:
        assert type(algo) is MAPPO
    mine = type("Mine", (PPO,), {})
    with mine.from_checkpoint(runs[PPOConfig][0]) as algo:
        assert type(algo) is mine


def test_the_class_of_a_users_own_config_is_compared_too(tmp_path):
    path = saved_run(small(OwnConfig), tmp_path / "c")
    for config in (small(DQNConfig), small(PPOConfig)):
        with pytest.raises(CheckpointError, match=f"(?s)OwnConfig.*{type(config).__name__}"):
            Algorithm.from_checkpoint(path, config=config)
    assert_refused(path, small(OwnConfig, num_layers=3), "num_layers", "2", "3")


class OwnConfig(PPOConfig):
    num_layers: int = setting(integer(min=1), "The number of layers.", default=2, fixed=True)

    def get_default_rl_module_class(self):
        return OtherModule

    def training(self, *, num_layers=2, **settings):
        self.num_layers = num_layers
        return super().training(**settings)


# Modules that were added.


def test_the_policies_that_were_added_come_back_with_any_config(tmp_path):
    config = small(DQNConfig).multi_agent(policies=["main"], policy_mapping_fn="*=main")
    algo = config.build_algo()
    algo.add_module("new", new_agent_to_module_mapping_fn="*_0=main,*=new")
    algo.train()
    path = algo.save_to_path(tmp_path / "c")
    for given in (config, None):
        with Algorithm.from_checkpoint(path, config=given) as loaded:
            assert loaded.config.policies == ["main", "new"]
            loaded.train()
            again = loaded.save_to_path(tmp_path / "again")
        with Algorithm.from_checkpoint(again, config=given) as loaded:
            assert loaded.config.policies == ["main", "new"]
    algo.remove_module("new", new_agent_to_module_mapping_fn="*=main")
    with Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "d"), config=config) as loaded:
        assert loaded.config.policies == ["main"]
    algo.stop()


# Random configurations.

OVERRIDES = "algorithm_config_overrides_per_module"
ALTERNATIVES = {
    "model_config": [
        {"fcnet_hiddens": (4,)},
        {"fcnet_hiddens": (5,)},
        {"fcnet_hiddens": (4,), "fcnet_activation": "relu"},
    ],
    "rl_module_spec": [None, RLModuleSpec(model_config={"fcnet_hiddens": (4,)}), RLModuleSpec()],
    "algorithm_config_overrides_per_module": [
        {},
        {"a": {"grad_clip": 0.5}},
        {"a": {"model_config": {"fcnet_hiddens": (3,)}}},
    ],
    "episode_lookback_horizon": [1, 2],
    "dueling": [False, True],
    "double_q": [False, True],
    "mixer": ["qmix", "vdn"],
    "mixing_embed_dim": [3, 4],
    "twin_q": [False, True],
    "initial_alpha": [1.0, 0.5],
    "policy_delay": [1, 2],
    "n_step": [1, 2],
    "gamma": [0.9, 0.99],
    "use_critic": [True, False],
    "kl_coeff": [0.2, 0.4],
    "normalize_values": [False, True],
    "vf_loss": ["mse", "huber"],
    "replay_buffer_config": [{"capacity": 50}, {"capacity": 300}],
}


def structure(algo):
    """What modules, pipelines and learners consist of, and the settings."""
    learner = algo.learner
    mixing = getattr(learner, "mixing", None)
    return {
        "modules": {m: to_state(RLModuleSpec.from_module(module)) for m, module in algo.rl_module.items()},
        "shapes": {m: {n: v.shape for n, v in state.items()} for m, state in algo.rl_module.get_state().items()},
        "learner": (type(learner), learner.pipeline.names()),
        "mixer": None if mixing is None else {n: v.shape for n, v in mixing.mixer.state_dict().items()},
        "buffers": [(type(r.buffer), r.buffer.capacity) for r in getattr(algo, "replays", {}).values()],
        "settings": to_state({name: str(value) for name, value in algo.config.to_dict().items()}),
    }


def drawn_settings(rng, cls):
    known = cls().to_dict()
    return {name: values[int(rng.integers(len(values)))] for name, values in ALTERNATIVES.items() if name in known}


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(12), *fresh_seeds(60)])
def test_a_run_goes_on_with_what_its_config_says_or_the_setting_is_named(seed, tmp_path):
    rng = np.random.default_rng(seed)
    cls = [*ON_POLICY, *OFF_POLICY][int(rng.integers(8))]
    config = small(cls).environment(LifeEnv, env_config={"die": 0.1, "max_steps": 6}, disable_env_checking=True)
    config.multi_agent(policies="independent").env_runners(rollout_fragment_length=4)
    before = config.copy().update_from_dict(drawn_settings(rng, cls))
    after = before.copy().update_from_dict(
        {name: value for name, value in drawn_settings(rng, cls).items() if rng.random() < 0.3}
    )
    try:
        path = saved_run(before, tmp_path / "c")
        expected = after.build_algo()
    except ConfigError:  # settings that contradict each other
        return
    expected.stop()
    changed = [name for name, value in after.to_dict().items() if value != getattr(before, name)]
    try:
        algo = Algorithm.from_checkpoint(path, config=after)
    except CheckpointError as error:
        refused = str(error)
    else:
        with algo:
            assert structure(algo) == structure(expected), changed
            algo.train()
        return
    fixed = [name for name in changed if name in (*fixed_settings(cls), OVERRIDES)]
    known = {OVERRIDES: "model_config"}
    assert any(refused.startswith(f"checkpoint: {known.get(name, name)}") for name in fixed), (changed, refused)
