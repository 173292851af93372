"""A checkpoint goes back to where it came from, or one line says why not."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers.damaged_checkpoints import tensors_file
from helpers.envs.scripted_envs import small_config
from marl_connectors import DQNConfig, load_policy
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.algorithm_state import algorithm_state
from marl_connectors.algorithms.checkpoint_restore import check_num_envs, check_stays_here
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.callbacks import Callbacks
from marl_connectors.checkpoints import save_state
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.errors import CheckpointError
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_envs import last_stone_v0, match_v0


def match_config(policies="shared", **env_config):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 2, "n_actions": 3, "ep_len": 7, **env_config})
    return config.multi_agent(policies=policies).env_runners(num_envs_per_env_runner=2)


@pytest.fixture
def saved(tmp_path):
    algo = match_config().build_algo()
    algo.train()
    return algo.save_to_path(tmp_path / "checkpoint")


def one_line(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_checkpoint_is_json_and_safetensors_and_nothing_else(saved, tmp_path):
    files = sorted((tmp_path / "checkpoint").rglob("*"))
    assert [f.name for f in files] == ["state.json", tensors_file(tmp_path / "checkpoint").name]
    for file in files:
        content = file.read_bytes()
        assert not content.startswith((b"\x80", b"PK")), "a pickle or a zip of pickles"
        assert b"pickle" not in content


def test_a_seed_that_was_drawn_is_kept(tmp_path):
    algo = match_config().debugging(seed=None).build_algo()
    loaded = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"))
    assert loaded.config.seed == loaded.seed == algo.seed


@pytest.mark.parametrize("load", [Algorithm.from_checkpoint, load_policy])
def test_a_config_of_another_algorithm_is_named(saved, load):
    config = DQNConfig().environment(match_v0.parallel_env)
    with pytest.raises(CheckpointError, match=r"(?s)PPOConfig.*DQNConfig"):
        load(saved, config=config)
    load(saved, config=type("Mine", (type(match_config()),), {})().update_from_dict(match_config().to_dict()))


def test_a_loaded_algorithm_has_the_same_weights_counts_and_settings(saved):
    algo = match_config().build_algo()
    algo.train()
    loaded = Algorithm.from_checkpoint(saved)
    for key, value in algo.get_module().get_state().items():
        np.testing.assert_array_equal(loaded.get_module().get_state()[key], value)
    assert (loaded.iteration, loaded.seed, loaded.env_runner.num_env_steps) == (1, 0, 10)
    settings = loaded.config.to_dict()
    assert settings == algo.config.to_dict()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: match_config(n_actions=4), "agent_0"),
        (lambda: match_config(n_agents=3), "agent_0"),
        (lambda: small_config("CartPole-v1"), "agent_0"),
        (
            lambda: match_config("independent"),
            r"(?s)\['default_policy'\].*\['agent_0', 'agent_1'\]",
        ),
        (lambda: match_config().env_runners(num_envs_per_env_runner=3), r"(?s)\b2\b.*\b3\b"),
        (lambda: match_config().rl_module(model_config={"fcnet_hiddens": (5,)}), r"(?s)model_config.*4"),
    ],
    ids=["spaces", "agents", "kind", "policies", "copies", "architecture"],
)
def test_a_checkpoint_of_another_setup_is_refused_and_nothing_changes(saved, config, words):
    algo = config().build_algo()
    before = algo.rl_module.get_state()
    with pytest.raises(CheckpointError, match=words) as caught:
        algo.restore_from_path(saved)
    one_line(caught)
    assert (algo.iteration, algo.env_runner.num_env_steps) == (0, 0)
    for module_id, state in before.items():
        for key, value in state.items():
            np.testing.assert_array_equal(algo.rl_module[module_id].get_state()[key], value)


class OfAnySize(DefaultPPORLModule):
    size = 4

    def setup(self):
        self.model_config = {"fcnet_hiddens": (self.size,)}
        super().setup()


def test_a_module_that_has_changed_its_architecture_is_named(tmp_path, monkeypatch):
    config = match_config().rl_module(rl_module_spec=RLModuleSpec(OfAnySize), model_config=None)
    saved = config.build_algo().save_to_path(tmp_path / "c")
    monkeypatch.setattr(OfAnySize, "size", 5)
    with pytest.raises(CheckpointError, match=r"(?s)'default_policy'.*'encoder\."):
        config.build_algo().restore_from_path(saved)


def test_a_mapping_function_without_a_name_has_to_be_passed_again(tmp_path):
    config = match_config().multi_agent(policy_mapping_fn=lambda agent_id, episode, **kw: "one")
    saved = config.build_algo().save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match="policy_mapping_fn") as caught:
        Algorithm.from_checkpoint(saved)
    one_line(caught)
    assert Algorithm.from_checkpoint(saved, config=config).get_module("one")


def test_an_environment_without_a_name_has_to_be_passed_again(tmp_path):
    class Here(match_v0.MatchEnv):
        pass

    config = small_config(Here)
    saved = config.build_algo().save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"(?s)\benv\b.*Here"):
        Algorithm.from_checkpoint(saved)
    assert Algorithm.from_checkpoint(saved, config=config).iteration == 0


@pytest.mark.parametrize("setting", ["callbacks_class", "rl_module_spec", "env_to_module_connector"])
def test_other_settings_without_a_name_are_named(tmp_path, setting):
    class Mine(Callbacks):
        pass

    class MyModule(DefaultPPORLModule):
        pass

    values = {
        "callbacks_class": Mine,
        "rl_module_spec": RLModuleSpec(MyModule),
        "env_to_module_connector": lambda: [],
    }
    config = match_config().update_from_dict({setting: values[setting]})
    saved = config.build_algo().save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=rf"(?s){setting!r}.*from_checkpoint\(path, config=...\)"):
        Algorithm.from_checkpoint(saved)
    assert Algorithm.from_checkpoint(saved, config=config).iteration == 0


def test_a_function_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gone_later.py").write_text(
        "def mapping(agent_id, episode, **kwargs):\n    return 'one'\n\ndef pieces():\n    return []\n"
    )
    import gone_later

    first = match_config().multi_agent(policy_mapping_fn=gone_later.mapping).build_algo().save_to_path(tmp_path / "a")
    second = (
        match_config().env_runners(env_to_module_connector=gone_later.pieces).build_algo().save_to_path(tmp_path / "b")
    )
    assert Algorithm.from_checkpoint(first).get_module("one")
    (tmp_path / "gone_later.py").unlink()
    monkeypatch.delitem(sys.modules, "gone_later")
    with pytest.raises(CheckpointError, match=r"(?s)policy_mapping_fn.*'gone_later'"):
        Algorithm.from_checkpoint(first)
    with pytest.raises(CheckpointError, match=r"(?s)'env_to_module_connector'.*'gone_later'"):
        Algorithm.from_checkpoint(second)


def test_the_state_of_something_else_is_refused(tmp_path):
    save_state(tmp_path / "c", {"weights": 1})
    with pytest.raises(CheckpointError, match="Algorithm"):
        Algorithm.from_checkpoint(tmp_path / "c")
    with pytest.raises(CheckpointError, match="nothing"):
        Algorithm.from_checkpoint(tmp_path / "d")
    with pytest.raises(CheckpointError, match="Algorithm"):
        match_config().build_algo().restore_from_path(tmp_path / "c")


class Forgetful(gymnasium.Env):
    """Does not follow from its seed."""

    observation_space, action_space = spaces.Box(-1e9, 1e9, (1,), np.float32), spaces.Discrete(2)
    count = 0

    def reset(self, *, seed=None, options=None):
        return self.step(0)[0], {}

    def step(self, action):
        Forgetful.count += 1
        return np.array([Forgetful.count], np.float32), 0.0, False, False, {}


def test_an_environment_that_cannot_be_replayed_is_named(tmp_path):
    algo = small_config(Forgetful).build_algo()
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"(?s)sub-environment 0.*'default_agent'"):
        Algorithm.from_checkpoint(saved)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["parallel", "in turns"])
def test_an_environment_that_has_changed_since_is_noticed_by_what_it_shows(kind, tmp_path, monkeypatch):
    cls, config = match_v0.MatchEnv, match_config(ep_len=50)
    if kind == "in turns":
        cls = last_stone_v0.LastStoneEnv
        config = small_config(last_stone_v0.env, env_config={"stones": 30})
        config.env_runners(env_to_module_connector=lambda env: ActionMasking())
    algo = config.build_algo()
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    Algorithm.from_checkpoint(saved, config=config)

    if kind == "in turns":
        observe = cls.observe
        monkeypatch.setattr(cls, "observe", lambda self, agent: darker(observe(self, agent)))
    else:
        step = cls.step
        monkeypatch.setattr(cls, "step", lambda self, actions: (backwards((new := step(self, actions))[0]), *new[1:]))
    with pytest.raises(CheckpointError, match="replaying"):
        Algorithm.from_checkpoint(saved, config=config)


def darker(seen):
    return {**seen, "observation": seen["observation"] / 2}


def backwards(observations):
    return {agent_id: seen[::-1].copy() for agent_id, seen in observations.items()}


def test_the_folder_of_a_run_stands_for_its_latest_checkpoint(saved, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    shutil.copytree(saved, tmp_path / "run" / "checkpoints" / "000001")
    (tmp_path / "run" / "checkpoints" / "latest").write_text("000001\n")
    assert Algorithm.from_checkpoint(tmp_path / "run").iteration == 1


@pytest.mark.parametrize(
    ("settings", "episodes", "fits"),
    [
        ({"num_envs_per_env_runner": 6}, 6, True),
        ({"num_envs_per_env_runner": 6, "num_env_runners": 0}, 6, True),
        ({"num_envs_per_env_runner": 6, "num_env_runners": 1}, 6, True),
        ({"num_envs_per_env_runner": 2, "num_env_runners": 3}, 6, True),
        ({"num_envs_per_env_runner": 2, "num_env_runners": 3}, 2, False),
        ({"num_envs_per_env_runner": 6, "num_env_runners": 2}, 6, False),
        ({"num_env_runners": 1}, 6, False),
    ],
)
def test_a_checkpoint_has_the_episodes_of_all_sub_environments(settings, episodes, fits):
    state = SimpleNamespace(env_runner=SimpleNamespace(sub_environments=[None] * episodes))
    config = small_config("CartPole-v1").env_runners(**settings)
    if fits:
        check_num_envs(state, config)
    else:
        with pytest.raises(CheckpointError, match=rf"\b{episodes}\b"):
            check_num_envs(state, config)


# Processes and clusters that the author of a checkpoint chooses.


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "value"),
    [("num_env_runners", 1), ("num_learners", 2), ("evaluation_num_env_runners", 1), ("ray_address", "10.0.0.5:6379")],
)
@pytest.mark.parametrize("is_changed", [False, True])
def test_an_untrusted_checkpoint_chooses_no_processes_and_no_cluster(saved, tmp_path, name, value, is_changed):
    state = algorithm_state(saved)
    state.config.settings[name] = value
    if name == "num_env_runners":
        state.config.settings["num_envs_per_env_runner"] = 2
    if is_changed:  # a setting of the checkpoint then counts even if the user passes a config
        state.changed_settings = [name]
    save_state(tmp_path / "changed", state)
    config = Algorithm.from_checkpoint(saved).config.copy() if is_changed else None
    with pytest.raises(CheckpointError, match=f"(?s){name}.*{value!r}.*trusted=False"):
        Algorithm.from_checkpoint(tmp_path / "changed", config=config, trusted=False)


def test_an_untrusted_checkpoint_sends_no_results_to_trackers(saved, tmp_path):
    state = algorithm_state(saved)
    state.config.settings |= {"track": {"__kind__": "list", "value": ["wandb"]}, "steps": 1000}
    save_state(tmp_path / "changed", state)
    for trusted, track in ((True, ["wandb"]), (False, ())):
        with Algorithm.from_checkpoint(tmp_path / "changed", trusted=trusted) as algo:
            assert (algo.config.track, algo.config.steps) == (track, 1000)


def test_what_a_user_has_chosen_is_no_choice_of_the_checkpoint():
    config = match_config().env_runners(num_env_runners=2).resources(ray_address="auto")
    check_stays_here(config, {"num_env_runners": 2, "ray_address": "auto"})
    with pytest.raises(CheckpointError, match=r"(?s)ray_address.*'auto'"):
        check_stays_here(config, {"num_env_runners": 2, "ray_address": "10.0.0.5:6379"})
    check_stays_here(match_config(), {"num_env_runners": 2})
