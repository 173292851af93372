"""Ids of modules may be any text: runs, checkpoints, components and exports work with them, or they are refused."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import differences, plain
from marl_connectors import Algorithm, DQNConfig, PPOConfig, QMIXConfig, RLModuleSpec, VDNConfig, load_policy
from marl_connectors.errors import ConfigError, MarlConnectorsError
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec

PARTS = [
    "v1.0",
    "team.red",
    "True",
    "0.5",
    "\n",
    "__tensor__",
    "/",
    "..",
    "a",
    "A",
    "ü",
    "\0",
    " x",
    "'",
    "\\",
    "class",
]


def random_ids(rng):
    """Two ids, the first of which may be a part of the second. An id of white space alone would be refused."""
    first, second = ("".join(rng.choice(PARTS, size=int(rng.integers(1, 4)))) for _ in range(2))
    first = first if first.strip() else f"{first}b"
    lengthened = first * int(rng.integers(1, 300 // len(first) + 2))
    return [lengthened if rng.random() < 0.3 else first, f"{first}{'.' if rng.random() < 0.3 else '-'}{second}"]


def check_ids(ids, config, folder):
    config.environment(LifeEnv, env_config={"agents": ("a", "b")}).multi_agent(
        policies=ids, policy_mapping_fn=lambda agent_id, episode, **kwargs: ids["ab".index(agent_id)]
    )
    algo = config.build_algo()
    try:
        algo.train()
        path = algo.save_to_path(folder / "checkpoint")
        resumed = Algorithm.from_checkpoint(path, config=config)
        assert plain(algo.train()["learners"]) == plain(resumed.train()["learners"])
        assert not differences(plain(algo.rl_module.get_state()), plain(resumed.rl_module.get_state()))
        resumed.restore_from_path(path)
        resumed.stop()
        for module_id in ids:
            if str(folder / module_id) == f"{folder}/{module_id}":  # else paths cannot name it
                module = type(algo.rl_module[module_id]).from_checkpoint(
                    f"{path}/learner_group/learner/rl_module/{module_id}"
                )
                assert plain(module.get_state()) == plain(resumed.rl_module[module_id].get_state())
        policy = load_policy(path, config=config)
        policy.export_onnx(folder / "export")  # which compares the actions of both
    finally:
        algo.stop()


@pytest.mark.slow
def test_any_text_is_an_id_in_training_checkpoints_and_exports(tmp_path):
    pytest.importorskip("onnxscript")
    check_ids(["team.red\n" + "m" * 250, "True"], small_config(LifeEnv), tmp_path)


@pytest.mark.parametrize("seed", fresh_seeds(10))
def test_random_texts_are_ids_in_training_checkpoints_and_exports(seed, tmp_path):
    pytest.importorskip("onnxscript")
    rng = np.random.default_rng(seed)
    config = [PPOConfig, DQNConfig, QMIXConfig, VDNConfig][seed % 4]()
    config.rl_module(model_config={"fcnet_hiddens": (4,)}).env_runners(num_env_workers=0).debugging(seed=seed % 1000)
    config.training(train_batch_size_per_learner=8)
    if not isinstance(config, PPOConfig):
        config.training(num_steps_sampled_before_learning_starts=4)
        config.reporting(min_sample_timesteps_per_iteration=20)
    check_ids(random_ids(rng), config, tmp_path)


@pytest.mark.parametrize("wrong", ["", " ", "\ud800", True, 0.5, 3, None, ("a", 1), b"a"], ids=repr)
def test_what_is_no_id_is_named_where_it_is_given(wrong):
    name = f"{wrong!r} is no module id"
    config = PPOConfig()
    for refused in (
        lambda: config.multi_agent(policies=["a", wrong]),
        lambda: config.multi_agent(policies={wrong: RLModuleSpec()}),
        lambda: config.multi_agent(policies_to_train=[wrong]),
        lambda: MultiRLModuleSpec(rl_module_specs={wrong: RLModuleSpec()}),
    ):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert name in str(caught.value)
    algo = small_config(LifeEnv).multi_agent(policies="shared").build_algo()
    with pytest.raises(MarlConnectorsError) as caught:
        algo.add_module(wrong, RLModuleSpec())
    assert name in str(caught.value)
    assert list(algo.rl_module) == ["default_policy"]
    algo.train()
    algo.stop()
