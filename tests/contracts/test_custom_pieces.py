"""Pieces as RLlib's documents show them, in real runs: the learner sees what they wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from helpers.custom_pieces import (
    AddLastRewardToObservations,
    CountBasedIntrinsicRewards,
    MortalEnv,
    Spy,
    by_agent,
    config,
    train_and_spy,
)
from marl_connectors import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import env_to_module_pipeline
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec


@pytest.mark.parametrize("last_observations", [True, False])
def test_observations_that_a_piece_lengthens_reach_modules_and_learner_though_agents_die(last_observations):
    settings = config(
        lambda env_config: MortalEnv(last_observations),
        env_to_module_connector=lambda env: AddLastRewardToObservations(),
    )
    seen, algorithm = train_and_spy(settings)
    assert algorithm.get_module().observation_space.shape == (3,)
    expected = {agent: [[i, t, t] for t in range(2 + 2 * i)] for i, agent in enumerate("abc")}
    assert by_agent(seen["default_policy"], "obs") == expected


def test_last_observations_pass_through_writing_pieces_too():
    settings = config(lambda env_config: MortalEnv(), env_to_module_connector=lambda: AddLastRewardToObservations())
    (episode,) = settings.build_algo().env_runner.sample(num_episodes=1)
    for i, agent in enumerate("abc"):
        last = 2 + 2 * i
        assert episode.agent_episodes[agent].get_observations().tolist() == [[i, t, t] for t in range(last + 1)]


def test_two_writing_pieces_in_a_row():
    settings = config(
        lambda env_config: MortalEnv(),
        env_to_module_connector=lambda env, spaces, device: [
            AddLastRewardToObservations(),
            AddLastRewardToObservations(),
        ],
    )
    seen, _ = train_and_spy(settings)
    assert by_agent(seen["default_policy"], "obs")["b"] == [[1, t, t, t] for t in range(4)]


def test_a_chunk_is_bootstrapped_from_the_longer_observation():
    """With gamma 1 and lambda 1 and no standardising, targets are rewards to come plus the last value."""
    settings = config(
        "CartPole-v1", env_to_module_connector=lambda env: AddLastRewardToObservations(), rollout_fragment_length=5
    ).training(train_batch_size_per_learner=5, gamma=1.0, num_epochs=1)
    algorithm, spy = settings.build_algo(), Spy()
    algorithm.learner.pipeline.append(spy)
    algorithm.learner.pipeline["GeneralAdvantageEstimation"].gamma = 1.0
    (chunk,) = algorithm.env_runner.sample(num_timesteps=5)
    assert chunk.get_observations().shape == (6, 5)
    assert not chunk.is_done
    last = torch.as_tensor(chunk.get_observations(-1)[None], dtype=torch.float32)
    with torch.no_grad():
        value = algorithm.get_module().compute_values({"obs": last}).item()
    algorithm.learner.update(episodes=[chunk])
    targets = spy.seen["default_policy"]["value_targets"]
    np.testing.assert_allclose(targets, [5 + value, 4 + value, 3 + value, 2 + value, 1 + value], rtol=1e-5)


def test_shaped_rewards_reach_the_losses():
    """Each observation of MortalEnv is seen once, so every reward is 1 higher."""
    settings = config(lambda env_config: MortalEnv()).learners(
        learner_connector=lambda env: CountBasedIntrinsicRewards()
    )
    seen, _ = train_and_spy(settings)
    assert by_agent(seen["default_policy"], "rewards") == {
        agent: [t + 1.0 for t in range(1, 3 + 2 * i)] for i, agent in enumerate("abc")
    }


def test_observations_that_a_piece_puts_into_the_batch_are_the_ones_that_are_used():
    class Negative(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            assert not batch
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, Columns.OBS, -episode.get_observations(-1), episode)
            return batch

    runner = config(lambda env_config: MortalEnv(), env_to_module_connector=lambda: Negative()).build_algo().env_runner
    (episode,) = runner.sample(num_episodes=1)
    kept = episode.agent_episodes["c"]
    assert kept.get_observations(slice(0, 2)).tolist() == [[2, 0], [2, 1]]
    obs = torch.as_tensor(-kept.get_observations(slice(0, 6)))
    inputs = runner.rl_module["default_policy"].forward_exploration({"obs": obs})["action_dist_inputs"]
    np.testing.assert_allclose(kept.get_extra_model_outputs("action_dist_inputs"), inputs.numpy(), rtol=1e-4, atol=1e-6)


def test_a_learner_piece_may_add_a_column_with_one_item_for_each_step():
    class AddWho(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                items = [np.float32(ord(episode.agent_id))] * len(episode)
                self.add_n_batch_items(batch, "who", items, len(episode), episode)
            return batch

    seen, _ = train_and_spy(config(lambda env_config: MortalEnv()).training(learner_connector=lambda o, a: AddWho()))
    assert by_agent(seen["default_policy"], "who") == {"a": [97] * 2, "b": [98] * 4, "c": [99] * 6}


class AddsObservations(ConnectorV2):
    """Adds some of each episode's observations, and as many items of a column of its own."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            observations = episode.get_observations(self.part(episode))
            self.add_n_batch_items(batch, "obs", -observations, len(observations), episode)
            self.add_n_batch_items(batch, "numbers", [*range(len(observations))], len(observations), episode)
        return batch


@pytest.mark.parametrize("part", [lambda episode: slice(0, len(episode)), lambda episode: slice(0, -1)])
def test_a_learner_piece_adds_observations_as_for_rllib(part):
    """Episodes have a step more there, so the last observation is one of them."""
    settings = config(lambda env_config: MortalEnv()).learners(learner_connector=lambda: AddsObservations(part))
    seen, _ = train_and_spy(settings)
    batch = seen["default_policy"]
    found = {agent: batch["obs"][batch["obs"][:, 0] == -i].tolist() for i, agent in enumerate("abc")}
    assert found == {agent: [[-i, -t] for t in range(2 + 2 * i)] for i, agent in enumerate("abc")}
    assert batch["numbers"].tolist() == [t for i in range(3) for t in range(2 + 2 * i)]
    assert "loss_mask" not in batch, "no row is left that it would be needed for"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda episode: slice(0, len(episode) - 1), r"\b2\b.*'obs'.*'a'.*\b3\b"),
        (lambda episode: None, r"\b4\b.*'obs'.*\b3\b.*range\(len\(episode\)\)"),
    ],
)
def test_observations_that_are_too_few_or_too_many_are_an_error_that_says_how_many_to_add(part, message):
    """Too few could not be bootstrapped from."""
    algorithm = config(lambda env_config: MortalEnv()).learners(learner_connector=lambda: AddsObservations(part))
    with pytest.raises(ConnectorError, match=rf"AddsObservations.*{message}"):
        algorithm.build_algo().train()


class OnlyTheFirst(ConnectorV2):
    """Makes all actions but the first impossible."""

    def __call__(self, *, batch, **kwargs):
        for columns in batch.values():
            columns["action_dist_inputs"] = columns["action_dist_inputs"].clone()
            columns["action_dist_inputs"][:, 1:] = -torch.inf
        return batch


def test_a_piece_before_get_actions_manipulates_the_logits():
    algorithm = config("marl_envs.match_v0").multi_agent(policies="independent").build_algo()
    algorithm.env_runner.module_to_env.prepend(OnlyTheFirst())
    for chunk in algorithm.env_runner.sample(num_timesteps=8):
        for episode in chunk.all_agent_episodes():
            assert episode.get_actions().tolist() == [0] * 8
            assert episode.get_extra_model_outputs("action_logp").tolist() == [0.0] * 8
            assert np.isneginf(episode.get_extra_model_outputs("action_dist_inputs")[:, 1:]).all()


def test_a_custom_module_to_env_piece_sees_each_agents_action():
    class Swapped(ConnectorV2):
        """Gives each agent the next one's action."""

        def __call__(self, *, batch, episodes, **kwargs):
            keys = list(batch["actions"])
            items = [batch["actions"][key] for key in keys]
            batch["actions"] = dict(zip(keys, items[1:] + items[:1], strict=True))
            return batch

    def returns(**env_runners):
        """With modules that copy their observation, the optimal return is reached only if nothing is swapped."""

        class Copies(RLModule):
            def _forward(self, batch, **kwargs):
                return {"action_dist_inputs": 100.0 * batch["obs"]}

        settings = (
            config("marl_envs.match_v0", **env_runners)
            .environment(env_config={"n_agents": 3, "n_actions": 9, "ep_len": 10})
            .multi_agent(policies="independent")
            .rl_module(rl_module_spec=RLModuleSpec(Copies))
        )
        (episode,) = settings.build_algo().env_runner.sample(num_episodes=1)
        return [part.get_return() for part in episode.all_agent_episodes()]

    assert returns() == [10.0, 10.0, 10.0]
    assert max(returns(module_to_env_connector=lambda env: Swapped())) < 10.0


def test_column_pieces_around_an_item_piece_change_nothing():
    class Nothing(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return batch

    def played(**env_runners):
        settings = config("marl_envs.null_v0", **env_runners).environment(env_config={"n_agents": 3, "ep_len": 4})
        seen, algorithm = train_and_spy(
            settings.learners(learner_connector=(lambda: Nothing()) if env_runners else None)
        )
        return seen["default_policy"], algorithm.get_module().get_state()

    plain, state = played()
    mixed, mixed_state = played(env_to_module_connector=lambda: Nothing(), module_to_env_connector=lambda: Nothing())
    assert set(plain) == set(mixed)
    for name, column in plain.items():
        np.testing.assert_allclose(column, mixed[name], atol=1e-6, err_msg=name)
    for name, value in state.items():
        torch.testing.assert_close(value, mixed_state[name])


def test_a_users_own_module_that_cannot_be_stacked_learns():
    class Own(RLModule, ValueFunctionAPI):
        def setup(self):
            size = self.observation_space.shape[0]
            self.body = nn.Sequential(nn.Linear(size, 16), nn.LayerNorm(16), nn.Tanh())
            self.pi, self.v = nn.Linear(16, self.action_space.n), nn.Linear(16, 1)

        def _forward(self, batch, **kwargs):
            return {Columns.ACTION_DIST_INPUTS: self.pi(self.body(batch[Columns.OBS]))}

        def compute_values(self, batch, embeddings=None):
            return self.v(self.body(batch[Columns.OBS])).squeeze(-1)

    settings = (
        config("marl_envs.match_v0").multi_agent(policies="independent").rl_module(rl_module_spec=RLModuleSpec(Own))
    )
    algorithm = settings.build_algo()
    assert algorithm.rl_module.buckets == []
    before = algorithm.rl_module.get_state()
    learned = algorithm.train()["learners"]
    assert set(learned) == {f"agent_{i}" for i in range(4)}
    for module_id, state in algorithm.rl_module.get_state().items():
        assert any(not torch.equal(value, before[module_id][name]) for name, value in state.items())


def test_the_default_pipeline_can_be_called_by_hand_on_documented_arguments():
    algorithm = config("CartPole-v1").build_algo()
    (episode,) = algorithm.env_runner.sample(num_timesteps=3)
    pipeline = env_to_module_pipeline(multi_agent=False)
    batch = pipeline(rl_module=algorithm.rl_module, batch={}, episodes=[episode])
    assert batch["default_policy"]["obs"].tolist() == [episode.get_observations(-1).tolist()]
