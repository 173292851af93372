"""An update reads rows: the episodes of agents are made only for those who ask for them."""

from __future__ import annotations

import pytest

from marl_connectors import ConnectorV2, MAPPOConfig, MultiAgentEpisode, PPOConfig, SingleAgentEpisode


@pytest.fixture
def made(monkeypatch):
    """Every SingleAgentEpisode that is made, or made a chunk of."""
    found, init = [], SingleAgentEpisode._init

    def noted(self, *args, **kwargs):
        found.append(self)
        return init(self, *args, **kwargs)

    monkeypatch.setattr(SingleAgentEpisode, "_init", noted)
    return found


def algorithm(config=PPOConfig, policies="independent", model=None, **training):
    return (
        config()
        .environment("marl_envs.spread_v0", env_config={"ep_len": 7})
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=20)
        .multi_agent(policies=policies)
        .rl_module(model_config={"fcnet_hiddens": (4,), **(model or {})})
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1, **training)
        .debugging(seed=0)
        .build_algo()
    )


RUNS = {
    "shared": {"policies": "shared"},
    "independent": {},
    "several discounts": {"use_kl_loss": False},
    "without a critic": {"use_critic": False},
    "stateful": {"model": {"use_lstm": True, "max_seq_len": 4}},
    "a critic of all": {"config": MAPPOConfig},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_an_update_that_nobody_looks_into_makes_no_episodes_of_agents(settings, made):
    algo = algorithm(**settings)
    for _ in range(2):  # the second sample begins in the middle of episodes
        episodes = algo.env_runner.sample()
        made.clear()
        algo.learner.update(episodes=episodes)
        assert made == []
    assert all(isinstance(episode, MultiAgentEpisode) for episode in episodes)


class Looks(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        self.seen = [len(e) for e in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False)]
        return batch


def test_a_piece_that_asks_gets_them(made):
    algo, piece = algorithm(), Looks()
    algo.learner.pipeline.prepend(piece)
    episodes = algo.env_runner.sample()
    made.clear()
    algo.learner.update(episodes=episodes)
    assert sum(piece.seen) == sum(episode.agent_steps() for episode in episodes)
    assert len(made) >= len(piece.seen) > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_episodes_that_somebody_has_asked_for_give_the_same_update(settings):
    results = []
    for asks in (False, True):
        algo = algorithm(**settings)
        for _ in range(2):
            episodes = algo.env_runner.sample()
            if asks:
                for episode in episodes[::2]:
                    assert episode.agent_episodes
            results.append(algo.learner.update(episodes=episodes))
    assert results[:2] == results[2:]
