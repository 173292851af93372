"""Pieces that change observations in real runs: agents die, chunks are cut, the learner sees what the policy saw."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import Columns, PPOConfig
from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.common.frame_stacking import FrameStacking
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.agent_id_encoding import AgentIdEncoding
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations
from marl_connectors.connectors.env_to_module.pad_observations import PadObservations
from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards


class MortalEnv(ParallelEnv):
    """Agents a, b, c die after 2, 5 and 8 steps; c's observations are longer. Everyone is paid t for the step to t."""

    metadata = {"name": "mortal", "is_parallelizable": True}
    possible_agents = ["a", "b", "c"]

    def __init__(self, nested=False, alike=True):
        self.nested, self.alike = nested, alike
        self.agents = []
        self.render_mode = None

    def _size(self, agent):
        return 2 if self.alike or agent != "c" else 4

    def observation_space(self, agent):
        box = spaces.Box(-99.0, 99.0, (self._size(agent),), np.float32)
        return spaces.Dict({"who": spaces.Discrete(3), "see": box}) if self.nested else box

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _see(self, agent):
        who = self.possible_agents.index(agent)
        see = np.resize(np.array([who, self.t], np.float32), self._size(agent))
        return {"who": who, "see": see} if self.nested else see

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        acted = self.agents
        dies = {agent: self.t >= 2 + 3 * self.possible_agents.index(agent) for agent in acted}
        self.agents = [agent for agent in acted if not dies[agent]]
        return (
            {agent: self._see(agent) for agent in acted},
            dict.fromkeys(acted, float(self.t)),
            dies,
            dict.fromkeys(acted, False),
            {agent: {} for agent in acted},
        )

    def close(self):
        pass


def config(make_env, pieces=(), learner_pieces=(), **env_runners):
    settings = {"num_envs_per_env_runner": 2, "rollout_fragment_length": 5, "episode_lookback_horizon": 4}
    return (
        PPOConfig()
        .environment(make_env)
        .env_runners(**{**settings, **env_runners}, env_to_module_connector=lambda env: [make() for make in pieces])
        .learners(learner_connector=lambda o, a: [make() for make in learner_pieces])
        .training(train_batch_size_per_learner=20, num_epochs=1, minibatch_size=8, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=1)
    )


class Spy(ConnectorV2):
    """Keeps the train batch as it stands where it is put."""

    def __call__(self, *, batch, **kwargs):
        self.seen = {m: {name: column.numpy().copy() for name, column in c.items()} for m, c in batch.items()}
        return batch


def trained(settings, iterations=2):
    """What the losses of all iterations were computed from, and the last losses."""
    algorithm, spy, seen = settings.build_algo(), Spy(), []
    algorithm.learner.pipeline.append(spy)
    for _ in range(iterations):
        results = algorithm.train()
        seen.append({m: {k: np.sort(v, 0) for k, v in c.items()} for m, c in spy.seen.items()})
    algorithm.stop()
    return seen, results["learners"], algorithm


def on_items(piece_class):
    """The same piece, run on items in the same pipelines."""

    class ItemsOnly(piece_class):
        def __call__(self, **kwargs):
            return super().__call__(**kwargs)

    return ItemsOnly


PIECES = [
    [FlattenObservations],
    [partial(FlattenObservations, keys_to_remove=["who"])],
    [PrevActionsPrevRewards],
    [partial(PrevActionsPrevRewards, n_prev_actions=3, n_prev_rewards=2)],
    [FlattenObservations, PadObservations, AgentIdEncoding],
    [OneHotObservations, FlattenObservations],
    [FlattenObservations, MeanStdFilter],
    [MeanStdFilter, FlattenObservations],
    [FlattenObservations, partial(MeanStdFilter, share_between_agents=True), PrevActionsPrevRewards],
]


@pytest.mark.few(1)
@pytest.mark.parametrize("pieces", PIECES)
def test_a_run_on_items_is_the_run_on_columns(pieces):
    def item_form(make):
        if isinstance(make, partial):
            return partial(on_items(make.func), **make.keywords)
        return on_items(make)

    make_env = lambda env_config: MortalEnv(nested=True)
    seen, losses, algorithm = trained(config(make_env, pieces))
    item_seen, item_losses, _ = trained(config(make_env, list(map(item_form, pieces))))
    assert algorithm.get_module().observation_space.shape == seen[0]["default_policy"]["obs"].shape[1:]
    for one, other in zip(seen, item_seen, strict=True):
        for name in one["default_policy"]:
            np.testing.assert_allclose(one["default_policy"][name], other["default_policy"][name], atol=2e-5)
    assert losses["default_policy"]["policy_loss"] == pytest.approx(
        item_losses["default_policy"]["policy_loss"], abs=1e-4
    )


def test_stacked_frames_are_the_same_for_policy_and_learner_across_cuts_and_lives():
    pieces = [partial(FrameStacking, num_frames=3)]
    learner_pieces = [partial(FrameStacking, num_frames=3, as_learner_connector=True)]
    settings = config(lambda env_config: MortalEnv(), pieces, learner_pieces)
    seen, losses, algorithm = trained(settings)
    assert algorithm.get_module().observation_space.shape == (6,)
    batch = algorithm_batch(settings)
    for row in batch["obs"]:
        who, t = row[4], row[5]
        expected = [[who, s] if s >= 0 else [0, 0] for s in (t - 2, t - 1, t)]
        assert row.tolist() == np.ravel(expected).tolist()
    item_pieces = [partial(on_items(FrameStacking), num_frames=3)]
    item_learner = [partial(on_items(FrameStacking), num_frames=3, as_learner_connector=True)]
    item_seen, item_losses, _ = trained(config(lambda env_config: MortalEnv(), item_pieces, item_learner))
    for one, other in zip(seen, item_seen, strict=True):
        np.testing.assert_array_equal(one["default_policy"]["obs"], other["default_policy"]["obs"])
    assert losses["default_policy"]["policy_loss"] == pytest.approx(
        item_losses["default_policy"]["policy_loss"], abs=1e-4
    )


def algorithm_batch(settings, fragments=3):
    """The train batch of the last of some fragments, rows in their own order."""
    algorithm, spy = settings.build_algo(), Spy()
    algorithm.learner.pipeline.append(spy)
    for _ in range(fragments):
        episodes = algorithm.env_runner.sample(num_timesteps=10)
    algorithm.learner.update(episodes=episodes)
    algorithm.stop()
    return spy.seen["default_policy"]


def test_log_probabilities_say_that_the_learner_sees_what_the_policy_saw():
    """They are recomputed from the train batch's observations by the module that acted."""
    for pieces, learner_pieces in (
        ([partial(FrameStacking, num_frames=3)], [partial(FrameStacking, num_frames=3, as_learner_connector=True)]),
        ([MeanStdFilter, AgentIdEncoding, PrevActionsPrevRewards], []),
    ):
        algorithm = config(lambda env_config: MortalEnv(), pieces, learner_pieces).build_algo()
        for _ in range(3):
            episodes = algorithm.env_runner.sample(num_timesteps=10)
        batch = algorithm.learner.make_batch(episodes)
        (group,) = batch.groups
        module = algorithm.get_module()
        inputs = module.forward_exploration({Columns.OBS: group[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
        np.testing.assert_allclose(inputs.detach(), group[Columns.ACTION_DIST_INPUTS], rtol=1e-4, atol=1e-5)
        algorithm.stop()


def test_agents_of_different_sizes_share_a_module():
    settings = config(lambda env_config: MortalEnv(alike=False), [PadObservations, AgentIdEncoding])
    seen, _, algorithm = trained(settings)
    assert algorithm.get_module().observation_space.shape == (7,)
    assert seen[0]["default_policy"]["obs"].shape[1] == 7


def test_a_filter_counts_each_observation_that_is_acted_on_once():
    """Agents a, b, c act 2, 5 and 8 times in an episode of 8 steps; 16 steps of 2 copies are 2 episodes of each."""
    settings = config(lambda env_config: MortalEnv(), [MeanStdFilter], rollout_fragment_length=16)
    algorithm = settings.build_algo()
    algorithm.env_runner.sample(num_timesteps=32)
    piece = algorithm.env_runner.env_to_module["MeanStdFilter"]
    counts = {key: own.count for key, own in piece.get_state().items()}
    # And the first observations of the episodes that begin then.
    assert counts == {"a": 2 * 2 * 2 + 2, "b": 2 * 2 * 5 + 2, "c": 2 * 2 * 8 + 2}
    np.testing.assert_allclose(piece.get_state()["a"].mean, [0, (4 * (0 + 1)) / 10])
    algorithm.stop()


def test_an_evaluation_teaches_the_filter_nothing_and_a_checkpoint_keeps_it(tmp_path):
    algorithm = config(lambda env_config: MortalEnv(), [MeanStdFilter]).build_algo()
    algorithm.train()
    piece = algorithm.env_runner.env_to_module["MeanStdFilter"]
    before = str(piece.get_state())
    algorithm.evaluate()
    assert str(piece.get_state()) == before
    algorithm.save_to_path(tmp_path / "c")
    other = config(lambda env_config: MortalEnv(), [MeanStdFilter]).build_algo()
    other.restore_from_path(tmp_path / "c")
    assert str(other.env_runner.env_to_module["MeanStdFilter"].get_state()) == before
    one, two = algorithm.train(), other.train()
    assert one["learners"]["default_policy"]["policy_loss"] == two["learners"]["default_policy"]["policy_loss"]
    algorithm.stop()
    other.stop()


def test_preprocessors_of_one_agent_and_of_all():
    class Plus(SingleAgentObservationPreprocessor):
        def preprocess(self, observation, episode):
            return observation + np.float32(ord(episode.agent_id))

    class Mean(MultiAgentObservationPreprocessor):
        def preprocess(self, observations, episode):
            mean = np.mean([o[1] for o in observations.values()])
            return {a: np.array([o[0], mean], np.float32) for a, o in observations.items()}

    seen, _, _ = trained(config(lambda env_config: MortalEnv(), [Plus]), iterations=1)
    assert set(seen[0]["default_policy"]["obs"][:, 0]) == {97.0, 99.0, 101.0}
    seen, _, _ = trained(config(lambda env_config: MortalEnv(), [Mean]), iterations=1)
    assert set(seen[0]["default_policy"]["obs"][:, 1]) <= set(range(9))


@pytest.mark.parametrize(
    "pieces",
    [
        [FlattenObservations],
        [MeanStdFilter],
        [partial(PrevActionsPrevRewards, n_prev_actions=2)],
        [partial(FrameStacking)],
    ],
)
def test_one_agent_in_cartpole(pieces):
    seen, _, algorithm = trained(config("CartPole-v1", pieces, rollout_fragment_length=10), iterations=2)
    assert algorithm.get_module().observation_space.shape == seen[0]["default_policy"]["obs"].shape[1:]
