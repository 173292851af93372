"""An episode says whose actions it holds, the environment's or a module's, and everything that learns obeys that."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.scripted_envs import BOX, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    BCConfig,
    EpisodeReader,
    EpisodeWriter,
    MultiAgentEpisode,
    PPOConfig,
    SACConfig,
    SingleAgentEpisode,
    from_parquet,
    load_policy,
    to_parquet,
)
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.episodes.action_units import ENV, MODULE, NORMALIZED, UNSCALED, in_units
from marl_connectors.episodes.module_actions import with_module_actions
from marl_connectors.errors import EpisodeError, OfflineDataError
from marl_connectors.replay_buffers.replay_buffer import EpisodeReplayBuffer
from marl_connectors.trees import leaves, tree_map

NESTED = spaces.Dict(
    {
        "move": spaces.Box(np.array([10.0, -np.inf]), np.array([12.0, 3.0]), dtype=np.float64),
        "say": spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3], start=[5, -1])]),
    }
)
ODD = [
    spaces.Discrete(3, start=2),
    spaces.Box(10.0, 12.0, (1,)),
    spaces.MultiDiscrete([2, 3], start=[5, -1]),
    NESTED,
]


def random_space(rng, depth=2):
    kind = rng.integers(6 if depth else 4)
    if kind == 0:
        return spaces.Discrete(int(rng.integers(1, 6)), start=int(rng.integers(-5, 6)))
    if kind == 1:
        shape = tuple(rng.integers(1, 3, rng.integers(1, 3)).tolist())
        low = rng.choice([-np.inf, -30.0, 0.0, 10.0], shape)
        high = np.where(rng.random(shape) < 0.2, np.inf, np.where(np.isinf(low), 40.0, low + rng.choice([0.5, 7.0])))
        dtype = rng.choice([np.float32, np.float64])
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    if kind == 2:
        n = int(rng.integers(1, 4))
        return spaces.MultiDiscrete(rng.integers(1, 5, n), start=rng.integers(-4, 5, n))
    if kind == 3:
        return spaces.MultiBinary(2)
    parts = [random_space(rng, depth - 1) for _ in range(rng.integers(1, 3))]
    return spaces.Tuple(parts) if kind == 4 else spaces.Dict({f"p{i}": part for i, part in enumerate(parts)})


class OneAgent(ParallelEnv):
    """An agent that acts for seven steps in a space, and gets nothing; keeps the actions that it got."""

    metadata = {"name": "one_agent", "render_modes": []}

    def __init__(self, space):
        self.possible_agents, self.space, self.sent = ["a"], space, []

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        self.agents, self.sent = ["a"], []
        return {"a": np.zeros(BOX.shape, BOX.dtype)}, {"a": {}}

    def step(self, actions):
        assert self.space.contains(actions["a"]), actions
        self.sent.append(actions["a"])
        ends = len(self.sent) == 7
        self.agents = [] if ends else ["a"]
        given = {"a": 0.0}, {"a": False}, {"a": ends}, {"a": {}}
        return {"a": np.zeros(BOX.shape, BOX.dtype)}, *given


def config_for(space, cls=PPOConfig, **settings):
    """A run of ``OneAgent`` with this action space."""
    return small_config(lambda config: OneAgent(space), cls, clip_actions=True, **settings).multi_agent(
        policies="shared"
    )


def batch_actions(algo, episodes):
    """The actions from which a learner would learn."""
    learner = algo.learner
    actions = learner.make_batch(learner._with_module_actions(episodes)).groups[0]["actions"]
    return tree_map(lambda leaf: leaf.numpy(), actions)


def assert_same(one, other, **tolerance):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **tolerance) if tolerance else np.testing.assert_array_equal(a, b)


# The numbers.


def test_units_by_hand():
    box = spaces.Box(10.0, 12.0, (1,))
    given = np.array([[10.0], [11.5]], np.float32)
    assert in_units(box, given, ENV, NORMALIZED).tolist() == [[-1.0], [0.5]]
    assert in_units(box, np.array([[0.5], [3.0]], np.float32), NORMALIZED, ENV).tolist() == [[11.5], [12.0]]
    assert in_units(box, given, ENV, UNSCALED) is given
    discrete = spaces.Discrete(3, start=2)
    assert in_units(discrete, np.array([2, 4]), ENV, NORMALIZED).tolist() == [0, 2]
    assert in_units(discrete, np.array([0, 2]), UNSCALED, ENV).tolist() == [2, 4]


@pytest.mark.parametrize("seed", [*range(10), *fresh_seeds(100)])
def test_units_are_those_of_the_piece_that_converts_actions_for_the_environment(seed):
    rng = np.random.default_rng(seed)
    space, normalized = random_space(rng), bool(rng.integers(2))
    units = NORMALIZED if normalized else UNSCALED
    space.seed(int(seed))
    given = tree_map(lambda *own: np.stack(own), *[space.sample() for _ in range(5)])
    given = tree_map(np.asarray, given)
    actions = in_units(space, given, ENV, units)
    piece = NormalizeAndClipActions(normalize_actions=normalized)
    for_env = piece._for_env(actions, space, ARRAYS)
    assert_same(given, actions if for_env is None else for_env, rtol=1e-5, atol=1e-5)
    assert_same(given, in_units(space, actions, units, ENV), rtol=1e-5, atol=1e-5)


# Random play.


@pytest.mark.parametrize("space", ODD)
@pytest.mark.parametrize("normalized", [True, False])
def test_random_play_holds_the_actions_of_modules(space, normalized):
    with config_for(space, normalize_actions=normalized).build_algo() as algo:
        runner = algo.env_runner
        (episode, *_) = runner.sample(num_episodes=1, random_actions=True)
        sent = runner.vector_env.sub_envs[0].env.sent
        assert episode.agent_episodes["a"].storage.action_units == (NORMALIZED if normalized else UNSCALED)
        found = episode.agent_episodes["a"].get_actions()
        for i, action in enumerate(sent):
            for_env = NormalizeAndClipActions(normalize_actions=normalized)._for_env(
                tree_map(lambda leaf, i=i: leaf[i : i + 1], found), space, ARRAYS
            )
            assert_same(tree_map(np.asarray, action), tree_map(lambda leaf: leaf[0], for_env), rtol=1e-5, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize(("space", "wanted"), [(spaces.Box(10, 12, (1,)), 11.0), (spaces.Box(0, 5, (1,)), 2.5)])
def test_a_clone_of_random_play_acts_as_its_mean(space, wanted, tmp_path):
    with config_for(space).build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=100, at_random=True)
    config = config_for(space, BCConfig).offline_data(input_=tmp_path / "data")
    config.training(train_batch_size_per_learner=400, minibatch_size=400, lr=0.02, num_epochs=10)
    with config.build_algo() as algo:
        for _ in range(10):
            algo.train()
        checkpoint = algo.save_to_path(tmp_path / "run")
    action = load_policy(checkpoint).actions({"a": np.zeros(BOX.shape, BOX.dtype)}, explore=False)["a"]
    assert action.item() == pytest.approx(wanted, abs=0.15 * (space.high - space.low).item())


# Episodes by hand.


def by_hand(space, actions, **outputs):
    steps = len(actions)
    whole = MultiAgentEpisode("game", observation_space={"a": BOX}, action_space={"a": space})
    zero = np.zeros(BOX.shape, BOX.dtype)
    whole.add_env_reset(observations={"a": zero})
    for i in range(steps):
        whole.add_env_step(
            {"a": zero},
            {"a": actions[i]},
            {"a": 1.0},
            truncateds={"a": i == steps - 1},
            extra_model_outputs={"a": {name: values[i] for name, values in outputs.items()}},
        )
    return whole


@pytest.mark.parametrize("way", ["episodes", "writer", "parquet"])
def test_a_clone_of_actions_of_the_environment_learns_those_of_its_module(way, tmp_path):
    space = spaces.Discrete(3, start=2)
    episodes = [by_hand(space, [2, 3, 2])]
    if way != "episodes":
        with EpisodeWriter(tmp_path / "data") as writer:
            writer.write(episodes)
        episodes = EpisodeReader(tmp_path / "data").sample()
    if way == "parquet":
        to_parquet(tmp_path / "data", tmp_path / "tables")
        episodes = from_parquet(tmp_path / "tables")
    with config_for(space).build_algo() as algo:
        assert batch_actions(algo, episodes)[:3].tolist() == [0, 1, 0]
    assert list(episodes[0].get_actions()["a"]) == [2, 3, 2]


def test_boxes_by_hand_are_scaled_as_the_run_scales_them():
    space = spaces.Box(10.0, 12.0, (1,))
    episode = by_hand(space, [np.array([10.0], np.float32), np.array([11.5], np.float32)])
    for normalized, wanted in ((True, [[-1.0], [0.5]]), (False, [[10.0], [11.5]])):
        with config_for(space, normalize_actions=normalized).build_algo() as algo:
            assert batch_actions(algo, [episode])[:2].tolist() == wanted
    assert episode.agent_episodes["a"].get_actions()[1].tolist() == [11.5]


@pytest.mark.parametrize("output", ["action_logp", "actions_for_env"])
def test_steps_by_hand_with_outputs_of_a_module_hold_its_actions(output):
    space = spaces.Box(10.0, 12.0, (1,))
    episode = by_hand(space, [np.array([0.5], np.float32)], **{output: [np.float32(11.5)]})
    assert episode.agent_episodes["a"].storage.action_units == MODULE
    with config_for(space).build_algo() as algo:
        assert batch_actions(algo, [episode])[:1].tolist() == [[0.5]]


@pytest.mark.parametrize(("space", "bad"), [(spaces.Discrete(3, start=2), 0), (spaces.Box(10, 12, (1,)), [0.5])])
def test_actions_outside_their_space_are_named(space, bad, tmp_path):
    good = space.low if isinstance(space, spaces.Box) else 2
    episode = by_hand(space, [np.asarray(good), np.asarray(bad, space.dtype)])
    with config_for(space).build_algo() as algo, pytest.raises(EpisodeError, match=r"(?s)'a'.*step 1.*\b0\b"):
        algo.learner.update(episodes=[episode])
    with EpisodeWriter(tmp_path) as writer:
        writer.write([episode])
    with (
        config_for(space, BCConfig).offline_data(input_=tmp_path).build_algo() as algo,
        pytest.raises(OfflineDataError, match=r"(?s)episodes-000000.*'game'.*'a'.*step 1"),
    ):
        algo.train()


def test_a_replay_buffer_of_a_run_holds_the_actions_of_modules():
    space = spaces.Box(10.0, 12.0, (1,))
    config = config_for(space, SACConfig).training(lr=None)
    with config.build_algo() as algo:
        algo.replay_buffer.add([by_hand(space, [np.array([11.5], np.float32)])])
        algo.replay_buffer.add(algo.env_runner.sample(num_episodes=1))
        found = algo.replay_buffer.every_step().segments
        (own,) = found.values()
        assert own.rollout.action_units == NORMALIZED
        assert 0.5 in own.rollout.columns["actions"] and np.abs(own.rollout.columns["actions"]).max() <= 1


def test_a_replay_buffer_alone_refuses_actions_of_several_kinds():
    space, buffer = spaces.Discrete(3, start=2), EpisodeReplayBuffer(100)
    buffer.add([by_hand(space, [2, 3])])
    with pytest.raises(EpisodeError, match="normalized"):
        buffer.add(with_module_actions([by_hand(space, [2, 3])]))


# The mark survives.


@pytest.mark.parametrize("units", [ENV, MODULE, NORMALIZED])
def test_the_mark_survives(units, tmp_path):
    space = spaces.Discrete(3, start=2)
    whole = by_hand(space, [2, 3, 4]) if units != MODULE else by_hand(space, [0, 1, 2], action_logp=[0.0, 0.0, 0.0])
    (whole,) = with_module_actions([whole]) if units == NORMALIZED else [whole]
    own = whole.agent_episodes["a"]
    again = own[0:1]
    again.concat_episode(own[1:3])
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.write([whole])
    to_parquet([whole], tmp_path / "tables")
    copies = [
        own[1:2],
        again,
        SingleAgentEpisode.from_state(own.get_state()),
        MultiAgentEpisode.from_state(whole.get_state()).agent_episodes["a"],
        pickle.loads(pickle.dumps(own)),
        EpisodeReader(tmp_path / "data").sample()[0].agent_episodes["a"],
        from_parquet(tmp_path / "tables")[0].agent_episodes["a"],
    ]
    assert [copy.storage.action_units for copy in copies] == [units] * len(copies)
    open_one = SingleAgentEpisode(observations=[0, 1], actions=[2], rewards=[0.0], len_lookback_buffer=0)
    assert open_one.cut().storage.action_units == ENV


@pytest.mark.few(4)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("space", [*ODD, *range(6), *fresh_seeds(100)])
def test_recordings_come_back_from_tables_exactly(space, normalized, tmp_path):
    if not isinstance(space, spaces.Space):
        space = random_space(np.random.default_rng(space))
    with config_for(space, normalize_actions=normalized).build_algo() as algo:
        algo.record(tmp_path / "data", num_episodes=2, explore=True)
        before = EpisodeReader(tmp_path / "data", order="in_order").sample()
        to_parquet(tmp_path / "data", tmp_path / "tables")
        after = from_parquet(tmp_path / "tables")
        for one, other in zip(before, after, strict=True):
            mine, theirs = one.agent_episodes["a"], other.agent_episodes["a"]
            assert mine.storage.action_units == theirs.storage.action_units
            assert_same(mine.get_actions(), theirs.get_actions())
        assert_same(batch_actions(algo, before), batch_actions(algo, after))


@pytest.mark.parametrize("seed", [*range(4), *fresh_seeds(60)])
def test_recordings_of_runs_that_scale_otherwise_are_read_as_this_run_scales(seed, tmp_path):
    space = random_space(np.random.default_rng(seed))
    with config_for(space, normalize_actions=False).build_algo() as algo:
        algo.record(tmp_path, num_episodes=2, at_random=True)
        unscaled = batch_actions(algo, EpisodeReader(tmp_path, order="in_order").sample())
    with config_for(space, normalize_actions=True).build_algo() as algo:
        scaled = batch_actions(algo, EpisodeReader(tmp_path, order="in_order").sample())
    # A batch is in float32, in which the numbers of a Box far from 0 are coarser before they are scaled than after it.
    assert_same(in_units(space, unscaled, UNSCALED, NORMALIZED), scaled, rtol=1e-4, atol=1e-5)
