"""Joint observations against a slow, obvious account of who saw what when."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, LifeEnv, Recorded, ScriptEnv, Step, small_config
from marl_connectors import AddJointObservationsFromEpisodesToTrainBatch as AddJoint
from marl_connectors import Columns, ConfigError, ConnectorError, FrameStacking, MAPPOConfig, MeanStdFilter
from marl_connectors.connectors.learner.add_joint_observations_from_episodes_to_train_batch import JointObservations
from marl_connectors.episodes.packing import rows_of_episodes

WIDE = spaces.Box(-1.0, 1.0, (2, 2), np.float64)
AGENTS = ("a", "b", "c", "d")
MIXED = {"agents": AGENTS, "spaces_of": {"d": (WIDE, spaces.Discrete(3))}}
SIZES = {"a": 2, "b": 2, "c": 2, "d": 4}


def vector(seen, own):
    """The joint observation where ``seen`` holds what each agent that is there has seen last."""
    parts = [np.ravel(seen[a]) if a in seen else np.zeros(SIZES[a]) for a in AGENTS]
    return np.concatenate([*parts, [a in seen for a in AGENTS], [a == own for a in AGENTS]]).astype(np.float32)


def algo_of(make, lookback=1, **settings):
    config = small_config(make).copy()
    config.env_runners(num_envs_per_env_runner=3, rollout_fragment_length=5, episode_lookback_horizon=lookback)
    return config.multi_agent(policies="independent", **settings).build_algo()


def joint_rows(algo, episodes):
    """``[(agent episode, [rows, size])]`` by the piece, on columns."""
    pipeline = algo.learner.pipeline
    piece = AddJoint(agent_spaces={a: algo._setup.agent_spaces(a)[0] for a in AGENTS})
    if type(piece).__name__ not in pipeline.names():
        pipeline.insert_after("AddColumnsFromEpisodesToTrainBatch", piece)
        pipeline.remove("GeneralAdvantageEstimation")
    batch = algo.learner.make_batch(episodes)
    found = []
    for group in batch.groups:
        ends = np.cumsum(group.rows.counts)
        for episode, end, count in zip(group.rows.episodes, ends, group.rows.counts, strict=True):
            found.append((episode, np.asarray(group[Columns.CRITIC_OBS][end - count : end])))
    return found


@pytest.mark.parametrize("fixed", [True, False])
def test_joint_observations_are_what_all_agents_saw_at_that_step(fixed):
    life = {"die": 0.0, "join": 0.0, "fixed": True} if fixed else {"die": 0.3, "join": 0.4, "fixed": False}
    algo = algo_of(lambda: Recorded(LifeEnv(**MIXED, max_steps=8, **life)), lookback=0)
    checked = 0
    for _ in range(6):
        episodes = algo.env_runner.sample(num_timesteps=15)
        for episode, rows in joint_rows(algo, episodes):
            copy, number = map(int, episode.multi_agent_episode_id.split("-"))
            entry = algo.env_runner.vector_env.sub_envs[copy].env.log[number]
            seen = [entry["obs"], *(step[1] for step in entry["steps"])]
            alive = [entry["agents"], *(step[-1] for step in entry["steps"])]
            if not alive[-1]:  # at the end, those are there whom it stopped
                alive[-1] = [a for a, is_stopped in entry["steps"][-1][4].items() if is_stopped]
            for i, (t, row) in enumerate(zip(episode.storage.column(Columns.T), rows, strict=True)):
                is_last = episode.is_done and i == len(rows) - 1
                there = {*alive[t], episode.agent_id} if is_last else alive[t]
                np.testing.assert_array_equal(row, vector({a: seen[t][a] for a in there}, episode.agent_id))
                checked += 1
    assert checked > 200


def test_agents_that_wait_for_their_turn_count_with_what_they_saw_last():
    algo = algo_of(lambda: RandomAEC(**MIXED, die=0.1, join=0.3, back=0.3, max_steps=30))
    checked = others = 0
    for _ in range(6):
        episodes = algo.env_runner.sample(num_timesteps=24)
        parts = [(part, whole) for whole in episodes for part in whole.all_agent_episodes()]
        for episode, rows in joint_rows(algo, episodes):
            before = episode.storage.lookback
            own = episode.storage.column(Columns.OBS)[before:]
            for i, (t, row) in enumerate(zip(episode.storage.column(Columns.T)[before:], rows, strict=True)):
                seen = {}
                for part, whole in parts:
                    held = part.storage
                    times = [*held.rollout.read(Columns.T, positions(held))]
                    values = held.rollout.read(Columns.OBS, positions(held))
                    if part.multi_agent_episode_id != episode.multi_agent_episode_id or times[0] > t:
                        continue
                    newest = max(i for i, time in enumerate(times) if time <= t)
                    is_stopped = whole.is_done and part.is_truncated and times[newest] == whole.env_t
                    if part.is_done and newest == len(times) - 1 and not is_stopped:
                        continue
                    if times[newest] >= seen.get(part.agent_id, (-1, None))[0]:
                        seen[part.agent_id] = times[newest], values[newest]
                seen[episode.agent_id] = t, own[i]
                np.testing.assert_array_equal(
                    row, vector({a: value for a, (_, value) in seen.items()}, episode.agent_id)
                )
                checked += 1
                others += len(seen) - 1
    assert checked > 100
    assert others > checked


def positions(storage):
    return np.arange(storage.first_row, storage.last_row + 1) * storage.rollout.num_lanes + storage.lane


@pytest.mark.parametrize("make", [LifeEnv, RandomAEC])
def test_items_equal_columns(make):
    algo = algo_of(lambda: make(**MIXED, die=0.2, join=0.3, max_steps=9))
    episodes = algo.env_runner.sample(num_timesteps=45)
    pipeline = algo.learner.pipeline
    pipeline.insert_after(
        "AddColumnsFromEpisodesToTrainBatch",
        AddJoint(agent_spaces={a: algo._setup.agent_spaces(a)[0] for a in AGENTS}),
    )
    pipeline.remove("GeneralAdvantageEstimation")
    batch = algo.learner.make_batch(episodes)
    columns = {m: part for group in batch.groups for m, part in group.module_columns()}
    items = pipeline(batch={}, episodes=episodes, rl_module=algo.rl_module, shared_data={})
    assert set(items) == set(columns)
    for module_id, part in columns.items():
        np.testing.assert_array_equal(items[module_id][Columns.CRITIC_OBS], part[Columns.CRITIC_OBS])


def test_frozen_agents_are_seen():
    algo = algo_of(lambda: LifeEnv(**MIXED), policies_to_train=["a"])
    rows = joint_rows(algo, algo.env_runner.sample(num_timesteps=15))
    assert {episode.agent_id for episode, _ in rows} == {"a"}
    assert all((row[:, 10:14] == 1.0).all() for _, row in rows)


# Which observations.


@pytest.mark.parametrize("pieces", [[], [FrameStacking], [MeanStdFilter], [MeanStdFilter, FrameStacking]])
def test_what_the_episodes_hold_is_what_the_critic_is_built_for(pieces):
    options = {FrameStacking: {"num_frames": 3}}
    config = small_config(lambda: LifeEnv(agents="ab"), algorithm=MAPPOConfig).multi_agent(policies="independent")
    make = lambda *_: [piece(**options.get(piece, {})) for piece in pieces]
    config.env_runners(env_to_module_connector=make)
    config.learners(learner_connector=lambda *_: [FrameStacking(num_frames=3)] if FrameStacking in pieces else [])
    algo = config.build_algo()
    algo.train()
    assert algo.get_module("a").model_config.critic_inputs == 4 + 4
    seen = algo.env_runner.sample(num_timesteps=8)
    rows = algo.learner.make_batch(seen).groups[0]
    held = np.concatenate([np.asarray(e.get_observations()) for e in rows.rows.episodes if e.agent_id == "a"][:1])
    np.testing.assert_allclose(rows[Columns.CRITIC_OBS][: len(held) - 1, :2], held[:-1], rtol=1e-6)


def test_bytes_are_scaled():
    grey = spaces.Box(0, 255, (1, 2), np.uint8)
    config = small_config(
        lambda: ScriptEnv(
            [
                [
                    Step({"a": np.array([[255, 51]], np.uint8), "b": 7}),
                    Step({"a": np.zeros((1, 2), np.uint8), "b": 9}, terminated=("a", "b")),
                ]
            ],
            observation_spaces={"a": grey},
        )
    )
    algo = config.multi_agent(policies="independent").build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1)[:1]
    own = list(episode.all_agent_episodes())
    seen = JointObservations({"a": grey, "b": BOX}).of_episodes(own)
    rows = rows_of_episodes(own[:1], ["a"])
    np.testing.assert_allclose(seen.at(rows)[0, :4], [1.0, 0.2, 7.0, 0.0], rtol=1e-6)


def test_unknown_agents_and_odd_observations_are_named():
    joint = JointObservations({"a": BOX, "b": BOX})
    script = [[Step({"a": 1, "b": 2}), Step({"a": 2, "b": 3}, terminated=("a", "b"))]]
    config = small_config(lambda: ScriptEnv(script))
    algo = config.multi_agent(policies="independent").build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1)[:1]
    with pytest.raises(ConnectorError, match=r"(?s)'b'.*possible_agents"):
        JointObservations({"a": BOX}).of_episodes([episode])
    other = JointObservations({"a": BOX, "b": spaces.Box(-1, 1, (3,))})
    with pytest.raises(ConnectorError, match="agent 'b'"):
        other.of_episodes([episode])
    assert joint.size == 2 + 2 + 2 + 2


def test_a_single_agent_has_no_joint_observation():
    with pytest.raises(ConfigError, match=r"(?s)MAPPOConfig.*CartPole-v1.*PPOConfig"):
        small_config("CartPole-v1", algorithm=MAPPOConfig).build_algo()
    with pytest.raises(ConfigError, match="spaces"):
        _ = AddJoint().joint
