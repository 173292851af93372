"""Critics that see the environment's ``state()``: which state a row has, and what happens where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.batched_envs import Worlds
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.envs.stated_envs import StatedAEC, StatedLife, expected_states
from marl_connectors import (
    AddEnvStatesFromEpisodesToTrainBatch,
    Algorithm,
    Columns,
    ConfigError,
    ConnectorError,
    EnvError,
    MAPPOConfig,
    PPOConfig,
)
from marl_connectors.episodes.packing import rows_of_episodes

WIDE = spaces.Box(-1.0, 1.0, (2, 2), np.float64)
MIXED = {"agents": "abcd", "spaces_of": {"d": (WIDE, spaces.Discrete(3))}}
LIVES = [
    {},
    {"max_steps": 1},
    {"die": 0.3, "join": 0.4, "fixed": False, "max_steps": 12},
    {"die": 0.2, **MIXED},
]
TURNS = [{}, {"die": 0.1, "join": 0.3, "back": 0.3, "max_steps": 30, **MIXED}, {"clears": True, "dead_next": False}]


def config_of(env, policies="shared", **env_config):
    config = small_config(env, algorithm=MAPPOConfig, env_config=env_config)
    config.env_runners(num_envs_per_env_runner=3, rollout_fragment_length=5)
    return config.multi_agent(policies=policies).training(critic_obs="state", vf_clip_param=1e6)


def rows_of(algo, episodes, **kwargs):
    own = [part for episode in episodes for part in episode.all_agent_episodes() if len(part)]
    return rows_of_episodes(own, list(algo.rl_module.keys()), **kwargs)


def check(algo, episodes, seed=0):
    """That each row, of the lookback and the last one included, has the state of its episode and env step."""
    rows = rows_of(algo, episodes, with_lookback=True)
    np.testing.assert_array_equal(rows.get(Columns.ENV_STATE), expected_states(rows, seed))
    ended = sum(episode.is_done for episode in rows.episodes)
    return len(rows), ended


@pytest.mark.few(2)
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(("env", "life"), [*((StatedLife, x) for x in LIVES), *((StatedAEC, x) for x in TURNS)])
def test_each_row_has_the_state_of_its_moment(env, life, told):
    config = config_of(env, "independent", **life)
    if told:  # then copies are reset late
        config.callbacks(on_episode_end=lambda **kwargs: None)
    algo = config.build_algo()
    sampled = [check(algo, algo.env_runner.sample(num_timesteps=15)) for _ in range(5)]
    sampled.append(check(algo, algo.env_runner.sample(num_episodes=4)))
    assert sum(rows for rows, _ in sampled) > 60 and sum(ended for _, ended in sampled) > 5


@pytest.mark.slow
@pytest.mark.parametrize(("env", "life"), [(StatedLife, LIVES[2]), (StatedAEC, TURNS[1])])
def test_worker_processes_give_the_same_states(env, life):
    runs = []
    for num_env_workers in (0, 2):
        algo = config_of(env, "independent", **life).env_runners(num_env_workers=num_env_workers).build_algo()
        try:
            samples = [algo.env_runner.sample(num_timesteps=12) for _ in range(3)]
            for episodes in samples:
                check(algo, episodes)
            runs.append([rows_of(algo, episodes).get(Columns.ENV_STATE) for episodes in samples])
        finally:
            algo.stop()
    for here, there in zip(*runs, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.few(1)
@pytest.mark.parametrize("env", [StatedLife, StatedAEC])
def test_a_restored_run_has_the_same_states(env, tmp_path):
    algo = config_of(env, die=0.1, max_steps=30).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "run")
    other = Algorithm.from_checkpoint(tmp_path / "run")
    for each in (algo, other):
        check(each, each.env_runner.sample(num_timesteps=15))
        each.train()
    for module_id, state in algo.rl_module.get_state().items():
        for name, values in state.items():
            assert torch.equal(values, other.rl_module.get_state()[module_id][name]), name


def batch_of(algo, episodes):
    algo.learner.pipeline.remove("GeneralAdvantageEstimation")
    return algo.learner.make_batch(episodes)


def test_critics_see_the_state_and_whose_step_it_is():
    algo = config_of(lambda: StatedLife(agents="ba", die=0.2)).build_algo()
    module = algo.get_module()
    assert module.model_config.critic_inputs == 2 + 2
    (group,) = batch_of(algo, algo.env_runner.sample(num_timesteps=15)).groups
    rows, seen = group.rows, np.asarray(group[Columns.CRITIC_OBS])
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen[:, :2], expected_states(rows, 0)[:, 0].astype(np.float32))
    owners = [episode.agent_id for episode, count in zip(rows.episodes, rows.counts, strict=True) for _ in range(count)]
    assert {tuple(row) for row in seen[[o == "b" for o in owners], 2:].tolist()} == {(1.0, 0.0)}
    assert {tuple(row) for row in seen[[o == "a" for o in owners], 2:].tolist()} == {(0.0, 1.0)}
    assert Columns.ENV_STATE not in group


def test_bootstraps_are_the_values_of_the_last_states():
    config = config_of(lambda: StatedLife(agents="ab", max_steps=4)).training(gamma=0.5, lambda_=0.0)
    algo = config.build_algo()
    piece = algo.learner.pipeline["GeneralAdvantageEstimation"]
    piece.standardize = False
    module = algo.get_module()
    module.compute_values = lambda batch, embeddings=None: batch[Columns.CRITIC_OBS][:, 1]  # the env step
    (group,) = algo.learner.make_batch(algo.env_runner.sample(num_episodes=3)).groups
    times = group.rows.get(Columns.T)
    expected = group[Columns.REWARDS].numpy() + 0.5 * (times + 1) - times  # all episodes are truncated: no zeros
    np.testing.assert_allclose(group[Columns.ADVANTAGES].numpy(), expected, rtol=1e-5)
    assert (times == 3).any()


@pytest.mark.parametrize("env", [StatedLife, StatedAEC])
def test_items_equal_columns(env):
    algo = config_of(env, "independent", **MIXED, die=0.2, join=0.3).build_algo()
    episodes = algo.env_runner.sample(num_timesteps=45)
    batch = batch_of(algo, episodes)
    columns = {m: part for group in batch.groups for m, part in group.module_columns()}
    items = algo.learner.pipeline(batch={}, episodes=episodes, rl_module=algo.rl_module, shared_data={})
    assert set(items) == set(columns)
    for module_id, part in columns.items():
        np.testing.assert_array_equal(items[module_id][Columns.CRITIC_OBS], part[Columns.CRITIC_OBS])


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_critics_learn_and_nothing_of_the_state_is_needed_for_acting(kind):
    class Small(StatedLife):
        def state(self):
            return super().state() / 1e10

    config = config_of(Small, die=0.2)
    if kind == "lstm":
        config.rl_module(model_config={"fcnet_hiddens": (4,), "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 3})
    algo = config.build_algo()
    before = {name: values.clone() for name, values in algo.get_module().get_state().items()}
    algo.train()
    changed = {name for name, values in algo.get_module().get_state().items() if not torch.equal(values, before[name])}
    assert changed == set(before)
    assert Columns.CRITIC_OBS not in algo.env_runner._plan._bound().given[0]
    algo.evaluate(num_episodes=2)


def test_states_are_recorded_only_where_a_critic_sees_them():
    class Asked(StatedLife):
        asked = 0

        def state(self):
            type(self).asked += 1
            return super().state()

    algo = config_of(Asked).training(critic_obs="joint_observations").build_algo()
    algo.train()
    algo.evaluate(num_episodes=2)
    assert Asked.asked == 0
    algo = config_of(Asked).build_algo()
    algo.evaluate(num_episodes=2)
    algo.random_play(num_episodes=2)
    assert Asked.asked == 0
    (episode, *_) = algo.env_runner.sample(num_episodes=1)
    assert Asked.asked >= episode.env_steps() + 1
    part = next(iter(episode.all_agent_episodes()))
    assert Columns.ENV_STATE not in part.storage.extra_keys()
    assert Columns.ENV_STATE not in part[0:1].storage.extra_keys()


def test_a_piece_of_ones_own_pipeline_sees_the_state_too():
    config = small_config(StatedLife).multi_agent(policies="independent").env_runners(num_envs_per_env_runner=2)
    piece = AddEnvStatesFromEpisodesToTrainBatch(state_space=StatedLife.state_space)
    algo = config.learners(learner_connector=lambda *_: piece).build_algo()
    assert piece.size == 2 + 3
    batch = algo.learner.make_batch(algo.env_runner.sample(num_timesteps=10))
    assert all(group[Columns.CRITIC_OBS].shape[1] == 5 for group in batch.groups)


def test_nested_states_and_bytes():
    class Nested(LifeEnv):
        state_space = spaces.Dict({"a": spaces.Box(0, 255, (2, 1), np.uint8), "b": spaces.Discrete(3)})

        def state(self):
            return {"a": np.array([[self.t], [255]], np.uint8), "b": self.t % 3}

    algo = config_of(Nested).build_algo()
    (group,) = batch_of(algo, algo.env_runner.sample(num_timesteps=15)).groups
    times, seen = group.rows.get(Columns.T), group[Columns.CRITIC_OBS]
    np.testing.assert_allclose(seen[:, 0], times / 255, rtol=1e-6)
    assert (np.asarray(seen[:, 1]) == 1.0).all()
    np.testing.assert_array_equal(np.asarray(seen[:, 2:5]).argmax(1), times % 3)


def test_agents_that_nobody_knew_have_no_place():
    algo = config_of(StatedLife, agents="abc").build_algo()
    rows = rows_of(algo, algo.env_runner.sample(num_timesteps=15))
    piece = AddEnvStatesFromEpisodesToTrainBatch(state_space=StatedLife.state_space, agent_ids=["c"])
    own = np.repeat([episode.agent_id == "c" for episode in rows.episodes], rows.counts)
    np.testing.assert_array_equal(piece._at(rows)[:, 2], own)
    assert own.any() and not own.all()


# What is not there, or wrong.


def test_episodes_without_states_are_refused():
    algo = config_of(StatedLife).build_algo()
    (episode, *_) = algo.env_runner.sample(num_episodes=3)
    with pytest.raises(ConnectorError, match="AddEnvStatesFromEpisodesToTrainBatch"):
        algo.learner.make_batch([episode[0:2]])


@pytest.mark.parametrize("space", [None, "a space"])
def test_an_environment_without_a_state_space_is_named(space):
    class Bare(LifeEnv):
        state_space = space

    with pytest.raises(ConfigError, match=r"(?s)Bare.*state\(\)"):
        config_of(Bare).build_algo()


def test_only_pettingzoo_environments_have_states():
    with pytest.raises(ConfigError, match="single"):
        small_config("CartPole-v1", algorithm=MAPPOConfig).training(critic_obs="state").build_algo()
    with pytest.raises(ConfigError, match=r"(?s)Worlds.*natively"):
        config_of(Worlds).build_algo()


def check_error(env, why, **runners):
    algo = config_of(env, die=0.9).env_runners(**runners).build_algo()
    try:
        with pytest.raises(EnvError, match=why):
            algo.env_runner.sample(num_timesteps=15)
    finally:
        algo.stop()


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (lambda env: 1 / 0, r"state\(\) raised ZeroDivisionError"),
        (lambda env: np.zeros((2, len(env.agents))), r"the state does not fit state_space, Box\(2, 3\).*shape \(2, "),
        (lambda env: np.full((2, 3), np.nan if env.t else 0.0), "contains NaN"),
        (lambda env: "no numbers", "not numbers"),
    ],
)
def test_wrong_states_name_copy_and_step(state, why):
    class Wrong(LifeEnv):
        state_space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)

    Wrong.state = state
    check_error(Wrong, why)


@pytest.mark.slow
def test_wrong_states_in_a_worker_process_do_too():
    check_error(NanState, "contains NaN", num_env_workers=1)


class NanState(LifeEnv):
    """For a worker process."""

    state_space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)

    def state(self):
        return np.full((2, 3), np.nan if self.t else 0.0)


def test_environments_with_wrong_states_are_replaced_where_that_is_wanted():
    class Sometimes(StatedLife):
        def state(self):
            return super().state() if self.rng.random() < 0.9 else np.full((1, 2), np.nan)

    config = config_of(Sometimes).fault_tolerance(restart_failed_sub_environments=True)
    algo = config.build_algo()
    sampled = [check(algo, algo.env_runner.sample(num_timesteps=30)) for _ in range(3)]
    assert algo.env_runner.take_failure_counts()["num_env_failures"] > 0
    assert sum(ended for _, ended in sampled) > 0


def test_unknown_choices_are_named():
    with pytest.raises(ConfigError, match=r"(?s)critic_obs.*'states'.*'state'"):
        config_of(StatedLife).training(critic_obs="states").build_algo()
    own = {"default_policy": {"critic_obs": "state"}}
    with pytest.raises(ConfigError, match=r"(?s)'default_policy'.*critic_obs"):
        config_of(StatedLife).rl_module(algorithm_config_overrides_per_module=own)
    with pytest.raises(ConfigError, match="'critic_obs'"):
        PPOConfig().training(critic_obs="state")


@pytest.mark.parametrize(("module", "size"), [("mpe2.simple_spread_v3", 54), ("mpe2.simple_speaker_listener_v4", 14)])
def test_environments_of_mpe(module, size):
    pytest.importorskip("mpe2")
    config = small_config(module, algorithm=MAPPOConfig).multi_agent(policies="independent")
    algo = config.training(critic_obs="state").build_algo()
    episodes = algo.env_runner.sample(num_episodes=1)
    (module_id, *_) = algo.rl_module.keys()
    assert algo.get_module(module_id).model_config.critic_inputs == size + len(algo.agent_ids)
    agents = list(episodes[0].agent_episodes.values())
    joint = np.concatenate([np.asarray(agent.get_observations()) for agent in agents], axis=1)
    rows = rows_of_episodes(agents[:1], [agents[0].module_id])
    np.testing.assert_array_equal(rows.get(Columns.ENV_STATE), joint)  # that is what their states are


@pytest.mark.parametrize("module", ["mpe2.simple_spread_v3", "mpe2.simple_spread_v3:env"])
def test_states_come_through_wrappers_and_reset_options(module):
    pytest.importorskip("mpe2")
    pytest.importorskip("supersuit")
    config = small_config(module, algorithm=MAPPOConfig).multi_agent(policies="shared")
    config.environment(wrappers=["frame_stack_v1:2"], reset_options={"seen": True})
    algo = config.training(critic_obs="state").build_algo()
    rows = rows_of(algo, algo.env_runner.sample(num_timesteps=6))
    newest = rows.get(Columns.OBS).reshape(len(rows), -1)[:, -18:]  # of a stack of two
    own = np.array([int(e.agent_id[-1]) for e, n in zip(rows.episodes, rows.counts, strict=True) for _ in range(n)])
    states = rows.get(Columns.ENV_STATE).reshape(len(rows), 3, 18)
    np.testing.assert_array_equal(states[np.arange(len(rows)), own], newest)


def test_knights_archers_zombies_whose_agents_die_one_by_one():
    pytest.importorskip("pettingzoo.butterfly.knights_archers_zombies_v11")
    config = small_config("pettingzoo.butterfly.knights_archers_zombies_v11", algorithm=MAPPOConfig)
    config.environment(env_config={"max_cycles": 150}).env_runners(num_envs_per_env_runner=2)
    algo = config.multi_agent(policies="knight*=knight,archer*=archer").training(critic_obs="state").build_algo()
    episodes = algo.env_runner.sample(num_episodes=2)
    rows = rows_of(algo, episodes)
    assert rows.get(Columns.ENV_STATE).shape[1:] == algo._setup.state_space.shape
    assert np.isfinite(rows.get(Columns.ENV_STATE)).all()
    assert all(np.isfinite(figures["vf_loss"]) for figures in algo.train()["learners"].values())
