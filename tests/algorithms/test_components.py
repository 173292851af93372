"""Checkpoints of single components."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors import (
    ConnectorPipelineV2,
    ConnectorV2,
    EnvToModulePipeline,
    FlattenObservations,
    Learner,
    LearnerConnectorPipeline,
    MAPPOConfig,
    MeanStdFilter,
    ModuleToEnvPipeline,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    PPOLearner,
    PrevActionsPrevRewards,
    RLModule,
    RLModuleSpec,
    SingleAgentEpisode,
)
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.checkpoints import save_state
from marl_connectors.connectors.connector_v2 import Arguments
from marl_connectors.errors import CheckpointError


def make_filter(env):
    return MeanStdFilter()


@pytest.fixture(scope="module")
def trained():
    algo = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(env_to_module_connector=make_filter)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
        .debugging(seed=1)
        .build_algo()
    )
    algo.train()
    yield algo
    algo.stop()


@pytest.fixture(scope="module")
def of_algorithm(trained, tmp_path_factory):
    return trained.save_to_path(tmp_path_factory.mktemp("run") / "checkpoint")


def same(one, other):
    one, other = one.get_state(), other.get_state()
    return repr(_plain(one)) == repr(_plain(other))


def _plain(state):
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_plain(value) for value in state]
    return np.asarray(state).tolist() if isinstance(state, (np.ndarray, np.generic, torch.Tensor)) else state


def test_a_module_comes_back_with_its_parameters(trained, tmp_path):
    module = trained.get_module()
    path = module.save_to_path(tmp_path / "module")
    made = RLModule.from_checkpoint(path)
    assert type(made) is type(module) and made is not module and same(made, module)
    assert made.observation_space == module.observation_space
    assert type(DefaultPPORLModule.from_checkpoint(path)) is DefaultPPORLModule


def test_a_multi_rl_module_comes_back(trained, tmp_path):
    path = trained.rl_module.save_to_path(tmp_path / "modules")
    assert same(MultiRLModule.from_checkpoint(path), trained.rl_module)


def test_a_spec_starts_from_a_saved_module(trained, of_algorithm, tmp_path):
    module = trained.get_module()
    inside = f"{of_algorithm}/learner_group/learner/rl_module"
    for path in (module.save_to_path(tmp_path / "module"), f"{inside}/default_policy"):
        spec = RLModuleSpec.from_module(module)
        spec.load_state_path = path
        assert same(spec.build(), module)
    multi = MultiRLModuleSpec.from_module(trained.rl_module)
    multi.load_state_path = inside
    assert same(multi.build(), trained.rl_module)


def test_components_are_found_in_the_checkpoint_of_an_algorithm(trained, of_algorithm):
    inside = f"{of_algorithm}/learner_group/learner/rl_module"
    assert same(RLModule.from_checkpoint(f"{inside}/default_policy"), trained.get_module())
    assert same(MultiRLModule.from_checkpoint(inside), trained.rl_module)
    runner = trained.env_runner
    made = EnvToModulePipeline.from_checkpoint(f"{of_algorithm}/env_runner/env_to_module_connector")
    assert same(made, runner.env_to_module) and made.names() == runner.env_to_module.names()
    made = ModuleToEnvPipeline.from_checkpoint(f"{of_algorithm}/env_runner/module_to_env_connector")
    assert made.names() == runner.module_to_env.names()


def test_a_state_is_restored_from_either_kind_of_checkpoint(trained, of_algorithm, tmp_path):
    module = RLModuleSpec.from_module(trained.get_module()).build()
    module.restore_from_path(f"{of_algorithm}/learner_group/learner/rl_module/default_policy")
    assert same(module, trained.get_module())
    pipeline = EnvToModulePipeline(connectors=copy.deepcopy(list(trained.env_runner.env_to_module)))
    pipeline.reset_state()
    assert not same(pipeline, trained.env_runner.env_to_module)
    pipeline.restore_from_path(trained.env_runner.env_to_module.save_to_path(tmp_path / "pieces"))
    assert same(pipeline, trained.env_runner.env_to_module)


@pytest.mark.parametrize("name", ["env_to_module", "module_to_env"])
def test_a_pipeline_comes_back_with_its_pieces(trained, name, tmp_path):
    pipeline = getattr(trained.env_runner, name)
    made = ConnectorPipelineV2.from_checkpoint(pipeline.save_to_path(tmp_path / name))
    assert type(made) is type(pipeline) and made.names() == pipeline.names() and same(made, pipeline)
    assert made.observation_space == pipeline.observation_space


def test_a_learner_comes_back(trained, tmp_path):
    made = Learner.from_checkpoint(trained.learner.save_to_path(tmp_path / "learner"))
    assert type(made) is PPOLearner and same(made, trained.learner)
    assert isinstance(made.pipeline, LearnerConnectorPipeline)
    episodes = trained.env_runner.sample(num_timesteps=32)
    made.update(episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 64})
    assert not same(made, trained.learner)


def make_pieces(env):
    return [PrevActionsPrevRewards(), FlattenObservations(), MeanStdFilter()]


LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}


def _run(config, policies=None, model=(), **training):
    if policies is None:
        config.environment("CartPole-v1")
    else:
        config.environment("mpe2.simple_spread_v3", env_config={"max_cycles": 10}).multi_agent(policies=policies)
    return (
        config.env_runners(num_envs_per_env_runner=2)
        .rl_module(model_config={"fcnet_hiddens": [8], **dict(model)})
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1, **training)
        .debugging(seed=1)
    )


RUNS = {
    "PPO, independent": lambda: _run(PPOConfig(), "independent"),
    "PPO, pieces, LSTM": lambda: _run(PPOConfig(), "shared", LSTM).env_runners(env_to_module_connector=make_pieces),
    "PPO, one agent, LSTM": lambda: _run(PPOConfig(), model=LSTM),
    "MAPPO, independent": lambda: _run(MAPPOConfig(), "independent"),
    "MAPPO, pieces, LSTM": lambda: _run(MAPPOConfig(), "shared", LSTM).env_runners(env_to_module_connector=make_pieces),
    "MAPPO, states": lambda: _run(MAPPOConfig(), "agent_0=first,agent_*=others", critic_obs="state"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", RUNS)
def test_all_components_of_a_run_come_back(name, tmp_path):
    with RUNS[name]().build_algo() as algo:
        algo.train()
        whole = algo.save_to_path(tmp_path / "algorithm")
        modules = f"{whole}/learner_group/learner/rl_module"
        for place in (algo.rl_module.save_to_path(tmp_path / "modules"), modules):
            assert same(MultiRLModule.from_checkpoint(place), algo.rl_module)
        for module_id, module in algo.learner.module.items():
            for place in (
                module.save_to_path(tmp_path / module_id),
                f"{whole}/learner_group/learner/rl_module/{module_id}",
                tmp_path / "modules" / module_id,
            ):
                made = RLModule.from_checkpoint(place)
                assert type(made) is type(module) and same(made, module)
        for connector in ("env_to_module", "module_to_env"):
            pipeline = getattr(algo.env_runner, connector)
            for place in (pipeline.save_to_path(tmp_path / connector), f"{whole}/env_runner/{connector}_connector"):
                made = ConnectorPipelineV2.from_checkpoint(place)
                assert made.names() == pipeline.names() and same(made, pipeline)
        pipelines = (algo.env_runner.env_to_module, algo.env_runner.module_to_env, algo.learner.pipeline)
        for i, piece in enumerate(piece for pipeline in pipelines for piece in pipeline):
            made = ConnectorV2.from_checkpoint(piece.save_to_path(tmp_path / f"piece_{i}"))
            assert type(made) is type(piece) and same(made, piece)
            assert made.observation_space == piece.observation_space


@pytest.mark.few(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_learner_that_came_back_goes_on_as_the_first_one_does(name, tmp_path):
    with RUNS[name]().build_algo() as algo:
        algo.train()
        made = Learner.from_checkpoint(algo.learner.save_to_path(tmp_path / "learner"))
        assert type(made) is type(algo.learner) and same(made, algo.learner)
        assert made.pipeline.names() == algo.learner.pipeline.names()
        again = Learner.from_checkpoint(made.save_to_path(tmp_path / "again"))
        episodes = algo.env_runner.sample(num_timesteps=40)
        for learner in (algo.learner, made, again):
            learner.update(episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 80})
        assert same(made, algo.learner) and same(again, algo.learner)


def test_a_piece_comes_back_with_the_arguments_of_its_constructor(tmp_path):
    piece = Scaled(2.5, offset=np.float64(1.0).item(), space=spaces.Discrete(3))
    made = ConnectorV2.from_checkpoint(piece.save_to_path(tmp_path / "piece"))
    assert (type(made), made.factor, made.offset, made.space) == (Scaled, 2.5, 1.0, spaces.Discrete(3))


class Scaled(ConnectorV2):
    """A piece with arguments of its own."""

    def __init__(self, factor, *, offset=0.0, space=None):
        super().__init__()
        self.factor, self.offset, self.space = factor, offset, space


def test_a_piece_whose_arguments_have_no_name_is_restored_into_one_that_you_make(tmp_path):
    path = Scaled(lambda: 1).save_to_path(tmp_path / "piece")
    with pytest.raises(CheckpointError, match="'Scaled'"):
        ConnectorV2.from_checkpoint(path)
    Scaled(3.0).restore_from_path(path)


def test_a_piece_of_a_class_without_a_name_is_named(tmp_path):
    class Local(ConnectorV2): ...

    path = Local().save_to_path(tmp_path / "piece")
    with pytest.raises(CheckpointError, match="'Local'"):
        ConnectorV2.from_checkpoint(path)


def test_copies_know_the_arguments_and_pickles_do_not():
    given = Arguments((object(),), {})
    assert copy.deepcopy(given) is given
    assert pickle.loads(pickle.dumps(given)).args is None


def test_a_component_of_another_kind_is_named(trained, of_algorithm, tmp_path):
    path = trained.get_module().save_to_path(tmp_path / "module")
    with pytest.raises(CheckpointError, match=r"(?s)MeanStdFilter.from_checkpoint.*DefaultPPORLModule"):
        MeanStdFilter.from_checkpoint(path)
    with pytest.raises(CheckpointError, match="Algorithm"):
        RLModule.from_checkpoint(of_algorithm)
    with pytest.raises(CheckpointError, match=r"Use Algorithm.from_checkpoint\('.*/checkpoint'\).learner"):
        Learner.from_checkpoint(f"{of_algorithm}/learner_group/learner")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("learner_group/learner/rl_module/other", "'other'"),
        ("learner_group/optimizer", "learner_group/learner/rl_module"),
    ],
)
def test_a_place_that_does_not_exist_is_named(of_algorithm, place, words):
    with pytest.raises(CheckpointError, match=words):
        RLModule.from_checkpoint(f"{of_algorithm}/{place}")


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is there"):
        RLModule.from_checkpoint(tmp_path / "nothing")
    save_state(tmp_path / "state", {"x": 1})
    with pytest.raises(CheckpointError, match="save_to_path"):
        RLModule.from_checkpoint(tmp_path / "state")


def test_untrusted_checkpoints_import_nothing_of_the_user(tmp_path):
    path = Scaled(1.0).save_to_path(tmp_path / "piece")
    with pytest.raises(CheckpointError, match="trusted=False"):
        ConnectorV2.from_checkpoint(path, trusted=False)


def test_a_checkpoint_without_a_path_is_a_new_folder(trained):
    for component in (trained, trained.get_module(), trained.rl_module, trained.learner, MeanStdFilter()):
        one, other = component.save_to_path(), component.save_to_path()
        assert one != other
        component.restore_from_path(one)
        for path in (one, other):
            shutil.rmtree(Path(path).parent)


def test_a_module_with_a_state_acts_with_the_parts_of_a_checkpoint():
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4})
    algo = config.env_runners(env_to_module_connector=make_filter).build_algo()
    path = algo.save_to_path()
    algo.stop()
    env_to_module = EnvToModulePipeline.from_checkpoint(f"{path}/env_runner/env_to_module_connector")
    module_to_env = ModuleToEnvPipeline.from_checkpoint(f"{path}/env_runner/module_to_env_connector")
    module = RLModule.from_checkpoint(f"{path}/learner_group/learner/rl_module/default_policy")
    shutil.rmtree(Path(path).parent)
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    episode = SingleAgentEpisode(
        observations=[observation], observation_space=env.observation_space, action_space=env.action_space
    )
    while not episode.is_done:
        common = {"episodes": [episode], "rl_module": module, "explore": False, "shared_data": {}}
        found = module_to_env(batch=module.forward_inference(env_to_module(**common)), **common)
        action = found.pop("actions")[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        outputs = {name: column[0] for name, column in found.items()}
        episode.add_env_step(
            observation, action, reward, terminated=terminated, truncated=truncated, extra_model_outputs=outputs
        )
    assert len(episode.get_extra_model_outputs("state_out")) == len(episode) == episode.get_return() > 4
