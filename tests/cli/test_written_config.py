"""Files that configs write train the same run: tried with settings that are drawn at random."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from jsonschema import Draft202012Validator

from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    BCConfig,
    Callbacks,
    DefaultModelConfig,
    DQNConfig,
    MAPPOConfig,
    MeanStdFilter,
    PPOConfig,
    QMIXConfig,
    RLModuleSpec,
    SACConfig,
    register_env,
)
from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.cli.layers import Words, resolved, user_tree
from marl_connectors.cli.made_config import new_config
from marl_connectors.cli.schema import schema
from marl_connectors.connectors.named_pieces import NamedPieces
from marl_connectors.errors import ConfigError
from marl_connectors.learner.learner import Learner
from marl_connectors.validators import settings_of
from marl_envs import null_v0

yaml = pytest.importorskip("yaml")
CHECK = Draft202012Validator(schema())


class MyCallbacks(Callbacks):
    pass


class MyLearner(Learner):
    def compute_loss_for_module(self, **kwargs):
        raise NotImplementedError


def pieces(*args):
    return [MeanStdFilter()]


def count(*, episode, **kwargs):
    pass


def by_last_letter(agent_id, episode, **kwargs):
    return agent_id[-1]


def make(env_config):
    return null_v0.parallel_env(**env_config)


def same(env):
    return env


ALGORITHMS = [PPOConfig, MAPPOConfig, DQNConfig, QMIXConfig, SACConfig, BCConfig]
CHOICES = {
    "environment": {
        "env": ["marl_envs.null_v0", null_v0.parallel_env, make, "CartPole-v1", "simple_spread_v3"],
        "env_config": [{"n_agents": 2}, {"deep": {"list": [1, 2.5, None, "text"]}}],
        "reset_options": [{"a": [1]}, {}],
        "wrappers": [[same], [f"{__name__}:same", "frame_skip_v0:4"]],
        "clip_rewards": [True, 0.5],
        "normalize_actions": [False],
        "disable_env_checking": [True],
        "action_mask_key": [None, "mask"],
    },
    "multi_agent": {
        "policies": [["a", "b"], {"a", "b"}, {"a": None}],
        "policy_mapping_fn": ["shared", "independent", "x*=a,*=b", by_last_letter],
        "policies_to_train": [["a"], []],
        "count_steps_by": ["agent_steps", "env_steps"],
    },
    "env_runners": {
        "num_env_runners": [2],
        "num_envs_per_env_runner": [1, np.int64(8), 3],
        "rollout_fragment_length": ["auto", 7],
        "batch_mode": ["complete_episodes"],
        "explore": [False],
        "sample_timeout_s": [None, 3.5],
        "num_env_workers": [0, 2],
        "env_to_module_connector": [NamedPieces(("MeanStdFilter", f"{__name__}:pieces")), pieces],
        "module_to_env_connector": [NamedPieces((f"{__name__}:pieces",))],
    },
    "learners": {
        "num_learners": [2],
        "num_gpus_per_learner": [0, "auto"],
        "stack_modules": [False],
        "learner_class": [MyLearner],
        "learner_config_dict": [{"a": [1, "b"]}],
    },
    "training": {"gamma": [0.5, np.float32(0.25)], "train_batch_size_per_learner": [64], "grad_clip": [None, 2.0]},
    "evaluation": {
        "evaluation_interval": [2],
        "evaluation_config": [{"explore": True}, {"policy_mapping_fn": by_last_letter, "num_env_workers": 0}],
    },
    "reporting": {"metrics_num_episodes_for_smoothing": [7]},
    "fault_tolerance": {"restart_failed_sub_environments": [True]},
    "callbacks": {"callbacks_class": [MyCallbacks, [MyCallbacks]], "on_episode_end": [count, [count, count]]},
    "rl_module": {
        "model_config": [None, {"fcnet_hiddens": (4, 4)}, DefaultModelConfig(use_lstm=True, fcnet_activation="relu")],
        "algorithm_config_overrides_per_module": [{"a": {"gamma": 0.125}}],
    },
    "debugging": {"seed": [0, 5]},
}


def random_config(seed):
    rng = np.random.default_rng(seed)
    config = ALGORITHMS[rng.integers(len(ALGORITHMS))]()
    for section, settings in CHOICES.items():
        for name, values in settings.items():
            if name == "env" or rng.random() < 0.4:
                getattr(config, section)(**{name: values[rng.integers(len(values))]})
    if "lr" in vars(config) and rng.random() < 0.5:
        config.training(lr=[[0, 0.5], [100, 0.25]])
    return config


def read_config(path):
    return new_config(resolved(user_tree(Words([], str(path)))))


def plain(config):
    """Returns what a config says, in the form of a config that was read from a file."""
    found = config.to_dict()
    model = found["model_config"]
    found["model_config"] = model if isinstance(model, DefaultModelConfig) else DefaultModelConfig(**(model or {}))
    found["model_config"].fcnet_hiddens = list(found["model_config"].fcnet_hiddens)
    if callable(found["env"]):
        found["env"] = {null_v0.parallel_env: "marl_envs.null_v0:parallel_env", make: f"{__name__}:make"}[found["env"]]
    found["wrappers"] = [f"{__name__}:same" if each is same else each for each in found["wrappers"]]
    for name in ("env_to_module_connector", "module_to_env_connector"):
        found[name] = NamedPieces((f"{__name__}:pieces",)) if found[name] is pieces else found[name]
    policies = found["policies"]
    found["policies"] = sorted(policies) if isinstance(policies, (set, dict)) else policies
    for name in settings_of(RunSettings):
        del found[name]  # the command line has other defaults for them
    if found["seed"] is None:
        found["seed"] = 0  # every run of the command line has one
    return found


def check_comes_back(seed, folder):
    config = random_config(seed)
    before = repr(config)
    path = config.to_file(folder / f"run{['.yaml', '.yml', '.json'][seed % 3]}")
    data = (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text())
    assert CHECK.is_valid(data), (seed, list(CHECK.iter_errors(data))[:2])
    assert plain(read_config(path)) == plain(config), seed
    assert repr(config) == before


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(30))
def test_a_config_comes_back_from_the_file_that_it_writes(seed, tmp_path):
    check_comes_back(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", fresh_seeds(300))
def test_many_configs_come_back_from_the_files_that_they_write(seed, tmp_path):
    check_comes_back(seed, tmp_path)


def test_the_settings_of_the_run_are_in_the_file(tmp_path):
    of_run = {"steps": 500, "video": "mp4", "video_every": 2, "keep_best": None, "track": ["wandb"], "eval_episodes": 3}
    path = PPOConfig().environment("CartPole-v1").run(**of_run).to_file(tmp_path / "run.json")
    data = json.loads(path.read_text())
    assert data["run"] == of_run and CHECK.is_valid(data)
    read = read_config(path)
    assert {name: getattr(read, name) for name in of_run} == of_run and read.checkpoint_every == 20


def test_a_run_from_the_file_learns_the_same(tmp_path):
    config = PPOConfig().environment(make, env_config={"n_agents": 2}).multi_agent(policies="independent")
    config.env_runners(num_envs_per_env_runner=2, num_env_workers=0).rl_module(model_config={"fcnet_hiddens": [4]})
    config.training(train_batch_size_per_learner=40, minibatch_size=20, vf_clip_param=math.inf).debugging(seed=3)
    read = read_config(config.to_file(tmp_path / "run.yaml"))
    learned = []
    for each in (config, read):
        with each.build_algo() as algo:
            algo.train()
            learned.append(algo.rl_module.state_dict())
    torch.testing.assert_close(*learned, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda config: config.callbacks(on_episode_end=lambda **kwargs: None), "callbacks_on_episode_end="),
        (lambda config: config.rl_module(rl_module_spec=RLModuleSpec(inference_only=True)), r"rl_module_spec=RLModule"),
        (lambda config: config.environment(observation_space=spaces.Discrete(3)), r"observation_space=Discrete\(3\)"),
        (lambda config: config.environment(lambda env_config: None), "env="),
        (
            lambda config: config.environment(env_config={"size": math.inf}),
            r"env_config={'size': inf}.*YAML",
        ),
        (lambda config: config.environment(env_config={1: 2}), r"env_config={1: 2}"),
        (lambda config: config.training(vf_clip_param=math.inf), "vf_clip_param=inf"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_no_file_can_hold_is_named(change, named, tmp_path):
    config = PPOConfig().environment("CartPole-v1")
    change(config)
    with pytest.raises(ConfigError, match=f"(?s)^PPOConfig.to_file.*{named}.*--config.*FILE.py"):
        config.to_file(tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


def test_all_settings_that_no_file_can_hold_are_named(tmp_path):
    config = PPOConfig().environment("CartPole-v1", wrappers=[lambda env: env]).callbacks(on_sample_end=print)
    with pytest.raises(ConfigError, match="wrappers=") as caught:
        config.callbacks(on_episode_end=lambda **kwargs: None).to_file(tmp_path / "run.yaml")
    assert "callbacks_on_episode_end=" in str(caught.value) and "on_sample_end" not in str(caught.value)


def test_other_files_configs_and_environments_are_refused(tmp_path):
    class OwnConfig(PPOConfig):
        pass

    register_env("test_written_config", make)
    for config, name, message in (
        (PPOConfig().environment("CartPole-v1"), "run.toml", r"(?s)\.yaml.*\.yml.*\.json"),
        (OwnConfig().environment("CartPole-v1"), "run.yaml", "OwnConfig"),
        (PPOConfig(), "run.yaml", r"\.environment"),
        (PPOConfig().environment("test_written_config"), "run.yaml", "env='test_written_config'"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.to_file(tmp_path / name)
