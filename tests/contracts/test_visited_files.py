"""How many of the library's files and functions one vector step, and one update, go through: it must not creep up.

A step is what happens between two calls of the first sub-environment's ``step``, in the middle of a sample in which
nothing ends. So nothing here knows how the library is built.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv

import marl_connectors
from marl_connectors import Algorithm, Columns, ConnectorV2, PPOConfig
from marl_connectors.cli.parser import parse
from marl_connectors.cli.train import run as new_run
from marl_connectors.errors import ConfigError
from marl_envs.null_v0 import NullEnv


class Limit(NamedTuple):
    """How much may be visited, and how much it is to be one day.

    Attributes:
        files: Files of which a function runs.
        calls: Calls of functions and properties, and resumptions of generators; comprehensions are not counted. None
            where the number does not matter.
        files_aimed_at: What ``files`` is to come down to. Not enforced.
        calls_aimed_at: Likewise.
    """

    files: int
    calls: int | None = None
    files_aimed_at: int | None = None
    calls_aimed_at: int | None = None


LIMITS = {
    "plain step": Limit(15, 30, calls_aimed_at=40),
    "step with Box actions": Limit(17, 36),
    "step with a column piece": Limit(19, 57, files_aimed_at=25),
    "step with an item piece": Limit(24, 847),
    "step with a callback": Limit(17, 59),
    "step of turns": Limit(22, 117, files_aimed_at=30),
    "step with an LSTM": Limit(20, 79),
    "step with an LSTM that policy and values share": Limit(20, 64),
    "words become an algorithm": Limit(32, files_aimed_at=12),
    "update": Limit(42),
    "update of independent modules": Limit(42),
}
"""Lower these as the numbers fall, which ``pytest -rP`` prints; raise one only with a reason."""

PACKAGE = str(Path(marl_connectors.__file__).parent) + "/"
STEP = 6
"""Which step of a sample is looked at."""


class Visits:
    """Counts calls of the library's functions, from ``start`` to ``stop``.

    Attributes:
        calls: ``(file, function)`` to how often it was called.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.begin()

    def begin(self) -> None:
        """A sample begins: what rang before it does not matter."""
        self.calls.clear()
        self._watched: Any = None
        self._num_rings = 0

    def ring(self, env: Any) -> None:
        """An environment says that it is stepped: counts from one step of the first that rings to its next."""
        self._watched = self._watched or env
        self._num_rings += env is self._watched
        if env is self._watched and self._num_rings == STEP:
            self.start()
        elif env is self._watched and self._num_rings == STEP + 1:
            self.stop()

    def start(self) -> None:
        """Begins to count."""
        sys.setprofile(self._note)

    def stop(self) -> None:
        """Counts no more."""
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        comprehension = code.co_name.startswith("<") and code.co_name != "<lambda>"  # no calls from Python 3.12 on
        if event == "call" and code.co_filename.startswith(PACKAGE) and not comprehension:
            self.calls[code.co_filename.removeprefix(PACKAGE), code.co_name] += 1

    def check(self, limit: Limit) -> None:
        """Fails if more was visited; prints all of it."""
        files, calls = {file for file, _ in self.calls}, sum(self.calls.values())
        listed = "\n".join(f"{count:5} {file}: {name}" for (file, name), count in sorted(self.calls.items()))
        print(f"{len(files)} files, {calls} calls\n{listed}")
        assert files, "nothing was counted"
        assert len(files) <= limit.files, f"{len(files)} files are visited, {limit.files} at most:\n{listed}"
        assert limit.calls is None or calls <= limit.calls, f"{calls} calls, {limit.calls} at most:\n{listed}"


class Null(NullEnv):
    """Eight agents that act together, and ring."""

    def __init__(self, visits: Visits, action_space: spaces.Space | None = None):
        super().__init__()
        self.visits, self.of_all = visits, action_space

    def action_space(self, agent: str) -> spaces.Space:
        return super().action_space(agent) if self.of_all is None else self.of_all

    def step(self, actions: Any) -> Any:
        self.visits.ring(self)
        return super().step(actions)


class Turns(AECEnv):
    """Three agents that act one after another, and ring."""

    metadata = {"name": "turns", "render_modes": [], "is_parallelizable": False}
    render_mode = None

    def __init__(self, visits: Visits):
        super().__init__()
        self.visits, self.possible_agents = visits, ["a", "b", "c"]

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def observe(self, agent: str) -> np.ndarray:
        return np.full(2, (self.t % 5) / 5, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.t, self.agents = 0, list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = "a"

    def step(self, action: Any) -> None:
        self.visits.ring(self)
        if self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.t += 1
        self.agent_selection = self.agents[self.t % 3]
        self.truncations = dict.fromkeys(self.agents, self.t >= 100)


class AddsConstant(ConnectorV2):
    """A custom column piece."""

    def columns(self, c: Any, xp: Any) -> None:
        c.rows.set(Columns.OBS, c.rows.get(Columns.OBS) + np.float32(0.25))


class SetsObservations(ConnectorV2):
    """A custom item piece."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=episode.get_observations(-1), at_indices=-1)
        return batch


def config_of(make: Any, policies: str = "shared") -> PPOConfig:
    """Eight sub-environments, samples of 20 steps."""
    config = PPOConfig().environment(make, disable_env_checking=True).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=8, rollout_fragment_length=20, num_env_workers=0)
    config.training(train_batch_size_per_learner=160, minibatch_size=64, num_epochs=1)
    return config.rl_module(model_config={"fcnet_hiddens": [8, 8], "vf_share_layers": False}).debugging(seed=0)


def with_lstm(visits: Visits, **settings: Any) -> PPOConfig:
    """An LSTM, with the defaults of all other settings, so that a default that makes steps cost more is seen."""
    lstm = {"fcnet_hiddens": [8, 8], "use_lstm": True, "lstm_cell_size": 8}
    return config_of(lambda: Null(visits)).rl_module(model_config={**lstm, **settings})


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
STEPS = {
    "plain step": lambda visits: config_of(lambda: Null(visits)),
    "step with Box actions": lambda visits: config_of(lambda: Null(visits, BOX)),
    "step with a column piece": lambda visits: config_of(lambda: Null(visits)).env_runners(
        env_to_module_connector=lambda: AddsConstant()
    ),
    "step with an item piece": lambda visits: config_of(lambda: Null(visits)).env_runners(
        env_to_module_connector=lambda: SetsObservations()
    ),
    "step with a callback": lambda visits: config_of(lambda: Null(visits)).callbacks(
        on_episode_step=lambda **kwargs: None
    ),
    "step of turns": lambda visits: config_of(lambda: Turns(visits)),
    "step with an LSTM": lambda visits: with_lstm(visits),
    "step with an LSTM that policy and values share": lambda visits: with_lstm(visits, vf_share_layers=True),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_vector_step_visits_no_more_than_it_did(name):
    visits = Visits()
    algo = STEPS[name](visits).build_algo()
    algo.env_runner.sample()
    visits.begin()
    algo.env_runner.sample()
    algo.stop()
    visits.check(LIMITS[name])


def test_the_architecture_page_names_every_file_that_a_plain_step_visits():
    visits = Visits()
    algo = STEPS["plain step"](visits).build_algo()
    algo.env_runner.sample()
    visits.begin()
    algo.env_runner.sample()
    algo.stop()
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert {file for file, _ in visits.calls if f"`{file}`" not in page} == set()


@pytest.mark.parametrize(("name", "policies"), [("update", "shared"), ("update of independent modules", "independent")])
def test_an_update_visits_no_more_than_it_did(name, policies):
    visits = Visits()
    algo = config_of(NullEnv, policies).build_algo()
    algo.train()
    episodes = algo.env_runner.sample()
    visits.start()
    algo.learner.update(episodes=episodes)
    visits.stop()
    algo.stop()
    visits.check(LIMITS[name])


def test_words_become_an_algorithm_in_no_more_files_than_they_did(tmp_path, monkeypatch):
    """From ``train ... --set lr=3e-4`` to the constructor of the Algorithm."""
    visits = Visits()
    monkeypatch.chdir(tmp_path)

    def stop(self: Any, config: Any) -> None:
        visits.stop()
        raise ConfigError(f"{config.lr}")

    monkeypatch.setattr(Algorithm, "__init__", stop)
    visits.start()
    with pytest.raises(ConfigError, match=r"^0\.0003$"):
        new_run(parse(["train", "marl_envs.null_v0", "--set", "lr=3e-4"]))
    visits.stop()
    visits.check(LIMITS["words become an algorithm"])
