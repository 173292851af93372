"""Parts of a run that are built from a config alone: runners, pipelines and specs of modules."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from marl_connectors import (
    AlgorithmConfig,
    EnvRunner,
    MeanStdFilter,
    MultiAgentEnvRunner,
    MultiAgentEpisode,
    MultiRLModule,
    NumpyToTensor,
    PPOConfig,
    RLModule,
    SingleAgentEnvRunner,
    SingleAgentEpisode,
)
from marl_connectors.env.single_agent_env_runner import SingleAgentEnvRunner as ByPath
from marl_connectors.errors import ConfigError
from marl_envs import match_v0

BOX, ACT = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2)
SINGLE = {"__env_single__": (BOX, ACT)}
STATES = ["AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch"]
BOTH = {"__env_single__": (spaces.Dict({"a": BOX, "b": BOX}), spaces.Dict({"a": ACT, "b": ACT}))}


def config_of(env="CartPole-v1", num_envs=2):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=5)
        .debugging(seed=4)
    )


def test_a_runner_is_made_from_a_config():
    config = config_of()
    runner = SingleAgentEnvRunner(config=config)
    assert ByPath is SingleAgentEnvRunner
    assert runner.num_envs == 2 and runner.env is runner.vector_env and runner.config.env == "CartPole-v1"
    assert isinstance(runner.module, RLModule) and runner.rl_module["default_policy"] is runner.module
    episodes = runner.sample()
    assert sum(map(len, episodes)) == 10 and isinstance(episodes[0], SingleAgentEpisode)
    runner.stop()


def test_a_runner_of_several_agents_is_made_from_a_config():
    runner = MultiAgentEnvRunner(config=config_of("marl_envs.match_v0").multi_agent(policies="independent"))
    assert isinstance(runner.module, MultiRLModule) and len(runner.module) > 1
    (episode,) = runner.sample(num_episodes=1)
    assert isinstance(episode, MultiAgentEpisode)
    runner.stop()


def test_a_runner_samples_what_that_of_an_algorithm_samples():
    runner, algo = SingleAgentEnvRunner(config=config_of()), config_of().build_algo()
    one, other = ([e.get_observations() for e in r.sample(num_timesteps=20)] for r in (runner, algo.env_runner))
    assert all(map(np.array_equal, one, other)) and len(one) == len(other)
    assert algo.env_runner.config.seed == 4
    runner.stop()
    algo.stop()


def test_callbacks_see_the_config_of_their_runner():
    seen = []
    config = config_of().callbacks(on_environment_created=lambda env_runner, **kwargs: seen.append(env_runner.config))
    SingleAgentEnvRunner(config=config).stop()
    assert seen[0].env == "CartPole-v1"


def test_a_runner_without_a_config_is_an_error():
    with pytest.raises(ConfigError, match=r"(?s)EnvRunner.*config="):
        SingleAgentEnvRunner()


def test_a_stateful_runner_of_its_own_carries_states():
    config = config_of().rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4]})
    runner = SingleAgentEnvRunner(config=config)
    episode = runner.sample(num_timesteps=10)[0]
    assert "state_out" in episode.extra_model_outputs
    runner.stop()


def make_filter(env):
    return MeanStdFilter()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["MeanStdFilter", "AddObservationsFromEpisodesToBatch", *STATES, "BatchIndividualItems", "NumpyToTensor"]),
        (
            {"spaces": BOTH},
            [
                "MeanStdFilter",
                "AddObservationsFromEpisodesToBatch",
                *STATES,
                "AgentToModuleMapping",
                "BatchIndividualItems",
                "NumpyToTensor",
            ],
        ),
    ],
)
def test_an_env_to_module_pipeline_is_built(given, names):
    pipeline = config_of().env_runners(env_to_module_connector=make_filter).build_env_to_module_connector(**given)
    assert pipeline.names() == names


@pytest.mark.parametrize(
    "how",
    [
        lambda: {"env": gym.make("CartPole-v1")},
        lambda: {"env": gym.make_vec("CartPole-v1", num_envs=3)},
        lambda: {"spaces": {"__env__": (gym.make("CartPole-v1").observation_space, spaces.Discrete(2))}},
        lambda: {},
    ],
)
def test_spaces_come_from_what_is_given(how):
    given = how()
    pipeline = config_of().build_env_to_module_connector(**given)
    assert pipeline.input_observation_space.shape == (4,)
    assert config_of().get_rl_module_spec(**given).build().action_space == spaces.Discrete(2)


def noting(seen):
    def build(env):
        seen.append(type(env).__name__)
        return []

    return {"env_to_module_connector": build, "module_to_env_connector": build}


@pytest.mark.parametrize(
    ("env", "settings", "seen"),
    [
        ("CartPole-v1", {}, "TimeLimit"),
        ("CartPole-v1", {"gym_env_vectorize_mode": "vector_entry_point"}, "CartPoleVectorEnv"),
        ("CartPole-v1", {"num_env_workers": 1}, "TimeLimit"),
        ("marl_envs.match_v0", {}, "MatchEnv"),
        ("marl_envs.last_stone_v0:raw_env", {}, "LastStoneEnv"),
        ("marl_envs.spread_v0:batched_env", {}, "SpreadBatch"),
    ],
)
def test_the_vector_of_a_runner_stands_for_its_environment(env, settings, seen):
    found = []
    config = config_of(env).env_runners(**settings, **noting(found))
    runner = EnvRunner(config=config)
    runner.sample()
    found.clear()
    env_to_module = config.build_env_to_module_connector(env=runner.env)
    module_to_env = config.build_module_to_env_connector(env=runner.env)
    spec = config.get_multi_rl_module_spec(env=runner.env)
    assert found == [seen] * 3
    assert [name for name in env_to_module.names() if name not in STATES] == runner.env_to_module.names()
    module_to_env.remove("RemoveSingleTsTimeRankFromBatch")
    assert module_to_env.names() == runner.module_to_env.names()
    for pipeline in (env_to_module, module_to_env):
        spaces_of_all = pipeline.input_observation_space, pipeline.input_action_space
        assert spaces_of_all == runner.get_spaces()["__env_single__"]
    assert {m: (own.observation_space, own.action_space) for m, own in spec.build().items()} == {
        "default_policy": runner.get_spaces()["default_policy"]
    }
    runner.stop()


def test_a_vector_is_not_reset_by_those_who_look_at_it():
    config = config_of()
    with_vector, alone = (SingleAgentEnvRunner(config=config) for _ in range(2))
    for runner in (with_vector, alone):
        runner.sample()
    assert config.get_rl_module_spec(env=with_vector.env).build().action_space == spaces.Discrete(2)
    after, expected = ([e.get_observations() for e in r.sample()] for r in (with_vector, alone))
    assert all(map(np.array_equal, after, expected)) and len(after) == len(expected)
    with_vector.stop()
    alone.stop()


def test_a_given_space_replaces_that_of_the_sub_environments():
    wide = spaces.Box(-9.0, 9.0, (4,), np.float32)
    config = config_of().environment(observation_space=wide)
    runner = SingleAgentEnvRunner(config=config)
    assert config.get_rl_module_spec(env=runner.env).build().observation_space == wide
    runner.stop()


def test_the_spaces_of_a_runner_build_the_other_parts():
    config = config_of("marl_envs.match_v0").multi_agent(policies="independent")
    runner = MultiAgentEnvRunner(config=config)
    found = runner.get_spaces()
    assert list(found) == ["__env__", "__env_single__", *runner.module]
    assert found["__env__"] == found["__env_single__"] and found["__env__"][0].keys() == set(runner.module)
    pipeline = config.build_learner_connector(*found["__env_single__"])
    assert "AgentToModuleMapping" in pipeline.names()
    assert list(config.get_multi_rl_module_spec(spaces=found).build()) == list(runner.module)
    runner.stop()


def test_a_pipeline_acts_with_a_module_of_a_spec():
    config = config_of()
    env_to_module, module = (
        config.build_env_to_module_connector(spaces=SINGLE),
        config.get_rl_module_spec(spaces=SINGLE).build(),
    )
    module_to_env = config.build_module_to_env_connector(spaces=SINGLE)
    episode = SingleAgentEpisode(observation_space=BOX, action_space=ACT)
    episode.add_env_reset(np.zeros(3, np.float32))
    shared = {}
    batch = env_to_module(rl_module=module, batch={}, episodes=[episode], explore=False, shared_data=shared)
    outputs = module.forward_inference(batch)
    found = module_to_env(rl_module=module, batch=outputs, episodes=[episode], explore=False, shared_data=shared)
    assert found["actions"][0] in (0, 1)


def test_a_learner_pipeline_is_built():
    pipeline = config_of().build_learner_connector(BOX, ACT)
    added = ["AddObservationsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch"]
    assert pipeline.names() == [*added, *STATES, "BatchIndividualItems", "NumpyToTensor"]
    pipeline = config_of().build_learner_connector(*BOTH["__env_single__"], device="cpu")
    assert "AgentToModuleMapping" in pipeline.names()


def episode_of(num_steps):
    return SingleAgentEpisode(
        observations=[np.zeros(3, np.float32)] * (num_steps + 1),
        actions=[0] * num_steps,
        rewards=[0.0] * num_steps,
        truncated=True,
        len_lookback_buffer=0,
    )


@pytest.mark.parametrize("config_class", [AlgorithmConfig, PPOConfig])
def test_a_learner_pipeline_by_hand_has_a_row_for_each_step(config_class):
    pipeline = config_class().build_learner_connector(BOX, ACT)
    batch = pipeline(rl_module=RLModule(BOX, ACT), episodes=[episode_of(10), episode_of(20)])["default_policy"]
    assert {name: len(column) for name, column in batch.items()} == dict.fromkeys(batch, 30)


def test_a_learner_pipeline_by_hand_can_be_empty():
    config = AlgorithmConfig().learners(add_default_connectors_to_learner_pipeline=False)
    assert config.build_learner_connector(BOX, ACT).names() == []


LSTM = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [4], "max_seq_len": 3}


def act_once(pipelines, module, episode, explore):
    """Returns the actions and all other outputs of a step, acted by hand without a batch."""
    env_to_module, module_to_env = pipelines
    shared = {}
    batch = env_to_module(episodes=[episode], rl_module=module, explore=explore, shared_data=shared)
    outputs = module.forward_exploration(batch) if explore else module.forward_inference(batch)
    found = module_to_env(batch=outputs, episodes=[episode], rl_module=module, explore=explore, shared_data=shared)
    (actions,) = found.pop("actions")
    found.pop("actions_for_env", None)
    return actions, {name: column[0] for name, column in found.items()}


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("act", [ACT, spaces.Dict({"go": ACT, "say": spaces.Discrete(3)})])
def test_a_module_with_a_state_acts_by_hand(act, explore):
    given = {"__env_single__": (BOX, act)}
    config = config_of().rl_module(model_config={**LSTM, "vf_share_layers": True})
    pipelines = (
        config.build_env_to_module_connector(spaces=given),
        config.build_module_to_env_connector(spaces=given),
    )
    module = config.get_rl_module_spec(spaces=given).build()
    episode = SingleAgentEpisode(observation_space=BOX, action_space=act)
    rng = np.random.default_rng(3)
    observations = rng.uniform(-1, 1, (6, 3)).astype(np.float32)
    episode.add_env_reset(observations[0])
    state = {name: torch.as_tensor(value)[None] for name, value in module.get_initial_state().items()}
    for t in range(5):
        actions, outputs = act_once(pipelines, module, episode, explore)
        with torch.no_grad():
            expected = module._forward_inference({"obs": torch.tensor(observations[t])[None, None], "state_in": state})
        state = expected["state_out"]
        assert act.contains(actions)
        assert np.allclose(outputs["action_dist_inputs"], expected["action_dist_inputs"][0, 0], atol=1e-6)
        assert all(np.allclose(outputs["state_out"][name], state[name][0], atol=1e-6) for name in state)
        episode.add_env_step(observations[t + 1], actions, 1.0, extra_model_outputs=outputs)
    pipeline = config.build_learner_connector(BOX, act)
    batch = pipeline(rl_module=module.as_multi_rl_module(), episodes=[episode])["default_policy"]
    assert batch["obs"].shape == (2, 3, 3) and batch["seq_lens"].tolist() == [3, 2]


def test_modules_with_states_act_by_hand():
    config = config_of("marl_envs.match_v0").multi_agent(policies="independent").rl_module(model_config=LSTM)
    pipelines = config.build_env_to_module_connector(), config.build_module_to_env_connector()
    modules, env = config.get_multi_rl_module_spec().build(), match_v0.parallel_env()
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=config.policy_mapping_fn)
    observations, infos = env.reset(seed=1)
    episode.add_env_reset(observations=observations, infos=infos)
    for _ in range(3):
        actions, outputs = act_once(pipelines, modules, episode, True)
        by_agent = {agent: {name: column[agent] for name, column in outputs.items()} for agent in actions}
        *step, infos = env.step(actions)
        episode.add_env_step(
            step[0], actions, step[1], infos, terminateds=step[2], truncateds=step[3], extra_model_outputs=by_agent
        )
    assert len(episode) == 3
    for agent_id, own in episode.agent_episodes.items():
        state = modules[agent_id].get_initial_state()
        assert [set(output) for output in own.get_extra_model_outputs("state_out")] == [set(state)] * 3


def test_numpy_to_tensor_knows_the_argument_of_rllib():
    piece = NumpyToTensor(as_learner_connector=True)
    assert piece(batch={"obs": np.ones(2)}, episodes=[])["obs"].dtype == torch.float32


def test_specs_of_several_modules_are_complete():
    config = config_of().multi_agent(policies="independent")
    spec = config.get_multi_rl_module_spec(spaces=BOTH, inference_only=True)
    modules = spec.build()
    assert list(modules) == ["a", "b"] and modules["a"].observation_space == BOX and modules["a"].inference_only
    with pytest.raises(ConfigError, match=r"(?s)get_rl_module_spec.*'a'.*'b'"):
        config.get_rl_module_spec(spaces=BOTH)


def test_spaces_of_another_form_are_an_error():
    with pytest.raises(ConfigError, match=r"(?s)\bspaces\b.*'__env_single__'"):
        config_of().get_rl_module_spec(spaces={"a": BOX})
