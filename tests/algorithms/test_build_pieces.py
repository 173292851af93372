"""What an algorithm sees to for the connector pieces of its user."""

from __future__ import annotations

import pytest

from marl_connectors import ConnectorError, ConnectorV2, PPOConfig


def match_config():
    return (
        PPOConfig()
        .environment("marl_envs.match_v0", env_config={"n_agents": 2})
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1)
        .debugging(seed=0)
    )


class LooksBack(ConnectorV2):
    """A learner piece that looks three steps back."""

    lookback = 3

    def columns(self, c, xp):
        c["three_back"] = c.rows.get("rewards", -3, fill=0.0)


def test_a_learner_piece_that_looks_back_lengthens_the_runners_lookback():
    algo = match_config().learners(learner_connector=lambda o, a: LooksBack()).build_algo()
    assert algo.env_runner.lookback == 3
    algo.train()
    algo.train()  # in episodes that go on
    algo.stop()


class Named(ConnectorV2):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def columns(self, c, xp):
        """Nothing."""


def test_a_builder_keeps_its_own_defaults_and_gets_what_is_named_like_an_argument():
    seen = []
    builders = {
        7: lambda env, n=7: Named(n),
        8: lambda env, spaces=None, n=8: (seen.append(spaces), Named(n))[1],
    }
    for number, builder in builders.items():
        algo = match_config().env_runners(env_to_module_connector=builder).build_algo()
        assert algo.env_runner.env_to_module["Named"].number == number
        algo.stop()
    assert set(seen[0]) >= {"__env__"}


class Shift(ConnectorV2):
    """Adds what it has learned to the actions that the environment gets."""

    def __init__(self):
        super().__init__()
        self.by = 0
        self.used = []

    def columns(self, c, xp):
        self.used.append(self.by)

    def get_state(self):
        return {"by": self.by}

    def set_state(self, state):
        self.by = state["by"]


def test_evaluation_acts_with_what_module_to_env_pieces_have_learned():
    made = []
    builder = lambda env: made.append(Shift()) or made[-1]
    algo = match_config().env_runners(module_to_env_connector=builder).build_algo()
    algo.env_runner.module_to_env["Shift"].by = 5
    algo.evaluate(num_episodes=1)
    others = [piece for piece in made if piece.used]
    assert others
    assert all(set(piece.used) == {5} for piece in others)
    algo.stop()


class ItemPiece(ConnectorV2):
    """Counts the agents that it is shown."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __call__(self, *, batch, episodes, **kwargs):
        self.steps.append([int(e.get_observations(-1).sum() > 0) for e in self.single_agent_episode_iterator(episodes)])
        return batch


def test_a_piece_that_joins_a_built_runner_sees_every_step():
    algo = match_config().build_algo()
    algo.env_runner.sample(num_timesteps=3)
    piece = ItemPiece()
    algo.env_runner.env_to_module.prepend(piece)
    algo.env_runner.sample(num_timesteps=4)
    assert piece.steps == [[1, 1]] * 5  # each batch of this sample, and what waits for the next one
    algo.stop()


@pytest.mark.parametrize(
    ("off", "words"),
    [
        ("add_default_connectors_to_env_to_module_pipeline", "'default_policy'"),
        ("add_default_connectors_to_module_to_env_pipeline", r"(?s)'actions'.*'default_policy'"),
    ],
)
def test_defaults_switched_off_with_nothing_in_their_place_are_named(off, words):
    algo = match_config().env_runners(**{off: False}).build_algo()
    with pytest.raises(ConnectorError, match=words):
        algo.train()
    algo.stop()
