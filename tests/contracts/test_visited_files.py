"""How much one vector step, and one update, goes through: files and functions of the library, calls of numpy and torch.

None of it may creep up, as a little more at a time is lost in the noise of every timing. A step is what happens between
two calls of the first sub-environment's ``step``, in the middle of a sample in which nothing ends. So nothing here
knows how the library is built.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import AECEnv
from torch.profiler import ProfilerActivity, profile

import marl_connectors
from marl_connectors import (
    Algorithm,
    BCConfig,
    Columns,
    ConnectorV2,
    DQNConfig,
    PPOConfig,
    QMIXConfig,
)
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
        numpy_and_torch: Calls of functions and methods of numpy and torch by the library; operators and numpy's ufuncs
            are not counted.
        torch_operations: The operations of torch that run, also those of autograd and optimizers.
        files_aimed_at: What ``files`` is to come down to. Not enforced.
    """

    files: int
    calls: int | None = None
    numpy_and_torch: int | None = None
    torch_operations: int | None = None
    files_aimed_at: int | None = None


LIMITS = {
    "plain step": Limit(14, 28, 8, files_aimed_at=13),
    "step with Box actions": Limit(17, 40, 17, files_aimed_at=15),
    "step with a column piece": Limit(16, 38, 10),
    "step with an item piece": Limit(21, 760, 329),
    "step with a callback": Limit(17, 56, 8),
    "step of turns": Limit(19, 116, 16),
    "step with an LSTM": Limit(21, 81, 22),
    "step with an LSTM that policy and values share": Limit(21, 66, 18),
    "words become an algorithm": Limit(31, files_aimed_at=12),
    "update": Limit(45, 3970, 3700, 5400, files_aimed_at=30),
    "update of independent modules": Limit(45, 1660, 1120, 1280, files_aimed_at=30),
    "replayed update of DQN": Limit(41, 450, 260, 400, files_aimed_at=35),
    "replayed update of QMIX": Limit(46, 530, 420, 870, files_aimed_at=35),
    "keeping where an iteration begins": Limit(27, 370, 150, 75),
    "recorded episodes become a loss of BC": Limit(55, 1150, 750, 1130, files_aimed_at=35),
}
"""Lower these as the numbers fall, which ``pytest -rP`` prints; raise one only with a reason."""

PACKAGE = str(Path(marl_connectors.__file__).parent) + "/"
LIBRARIES = tuple(str(Path(library.__file__).parent) + "/" for library in (np, torch))
STEP = 6
"""Which step of a sample is looked at."""


class Visits:
    """Counts calls of the library's functions, from ``start`` to ``stop``.

    Attributes:
        calls: ``(file, function)`` to how often it was called.
        library_calls: ``(file, function)`` to how often a file called a function of numpy or torch.
        operations: Torch's operation to how often it ran, in updates.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.library_calls: Counter[tuple[str, str]] = Counter()
        self.operations: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """A sample begins: what rang before it does not matter."""
        self.calls.clear()
        self.library_calls.clear()
        self.operations.clear()
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
        code, caller = frame.f_code, frame.f_back
        if event == "c_call" and code.co_filename.startswith(PACKAGE) and _library_of(argument):
            self.library_calls[code.co_filename.removeprefix(PACKAGE), argument.__name__] += 1
        if event != "call" or (code.co_name.startswith("<") and code.co_name != "<lambda>"):
            return  # comprehensions are no calls from Python 3.12 on
        if code.co_filename.startswith(PACKAGE):
            self.calls[code.co_filename.removeprefix(PACKAGE), code.co_name] += 1
        elif caller and caller.f_code.co_filename.startswith(PACKAGE) and code.co_filename.startswith(LIBRARIES):
            self.library_calls[caller.f_code.co_filename.removeprefix(PACKAGE), code.co_name] += 1

    def count_update(self, update: Callable[[], Any]) -> None:
        """Counts all of an update, which has been made once before."""
        self.start()
        update()
        self.stop()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            update()
        self.operations.update({event.key: event.count for event in profiler.key_averages()})

    def check(self, limit: Limit) -> None:
        """Fails if more was visited; prints all of it."""
        files = {file for file, _ in self.calls}
        assert files, "nothing was counted"
        for found, most, what, counts in (
            (len(files), limit.files, "files are visited", self.calls),
            (sum(self.calls.values()), limit.calls, "calls", self.calls),
            (sum(self.library_calls.values()), limit.numpy_and_torch, "calls of numpy and torch", self.library_calls),
            (sum(self.operations.values()), limit.torch_operations, "operations", self.operations),
        ):
            listed = "\n".join(f"{count:5} {name}" for name, count in sorted(counts.items(), key=str))
            print(f"{found} {what}\n{listed}")
            assert most is None or found <= most, f"{found} {what}, {most} at most:\n{listed}"


def _library_of(function: Any) -> bool:
    """Whether a function of C is one of numpy or torch, or a method of an array or tensor."""
    owner = getattr(function, "__self__", None)
    module = function.__module__ if owner is None or function.__module__ else type(owner).__module__
    return str(module or "").partition(".")[0] in ("numpy", "torch")


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


@pytest.mark.accelerated
@pytest.mark.parametrize("name", STEPS)
def test_a_vector_step_visits_no_more_than_it_did(name):
    visits = Visits()
    algo = STEPS[name](visits).build_algo()
    algo.env_runner.sample()
    visits.begin()
    algo.env_runner.sample()
    algo.stop()
    visits.check(LIMITS[name])


@pytest.mark.accelerated
def test_the_architecture_page_names_every_file_that_a_plain_step_visits():
    visits = Visits()
    algo = STEPS["plain step"](visits).build_algo()
    algo.env_runner.sample()
    visits.begin()
    algo.env_runner.sample()
    algo.stop()
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert {file for file, _ in visits.calls if f"`{file}`" not in page} == set()


@pytest.mark.accelerated
@pytest.mark.parametrize(("name", "policies"), [("update", "shared"), ("update of independent modules", "independent")])
def test_an_update_visits_no_more_than_it_did(name, policies):
    visits = Visits()
    algo = config_of(NullEnv, policies).build_algo()
    algo.train()
    episodes = algo.env_runner.sample()
    visits.count_update(lambda: algo.learner.update(episodes=episodes))
    algo.stop()
    visits.check(LIMITS[name])


@pytest.mark.accelerated
def test_an_iteration_keeps_where_it_begins_in_no_more_calls_than_it_did():
    """This is done in each iteration, and used in those that fail."""
    visits = Visits()
    algo = config_of(NullEnv, "independent").build_algo()
    algo.train()
    visits.count_update(lambda: (algo.learner.now(), algo.env_runner_group.now()))
    algo.stop()
    visits.check(LIMITS["keeping where an iteration begins"])


REPLAYED = {"replayed update of DQN": (DQNConfig, "CartPole-v1"), "replayed update of QMIX": (QMIXConfig, NullEnv)}


@pytest.mark.accelerated
@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_update_visits_no_more_than_it_did(name):
    visits = Visits()
    config, env = REPLAYED[name]
    config = config().environment(env).env_runners(num_env_workers=0).debugging(seed=0)
    config.training(num_steps_sampled_before_learning_starts=0).reporting(min_sample_timesteps_per_iteration=40)
    algo = config.rl_module(model_config={"fcnet_hiddens": [8, 8]}).build_algo()
    algo.train()
    (replay,) = algo.replays.values()
    module_ids = list(algo.rl_module)
    visits.count_update(lambda: algo.learner.update(episodes=replay.draw(module_ids)))
    algo.stop()
    visits.check(LIMITS[name])


def test_recorded_episodes_become_a_loss_in_no_more_files_than_they_did(tmp_path):
    with config_of(NullEnv).offline_data(output=tmp_path).build_algo() as algo:
        algo.train()
    config = BCConfig().environment(NullEnv, disable_env_checking=True).offline_data(input_=str(tmp_path))
    config.env_runners(num_env_workers=0).multi_agent(policies="shared")
    config.training(train_batch_size_per_learner=160, minibatch_size=64, num_epochs=1)
    visits = Visits()
    with config.rl_module(model_config={"fcnet_hiddens": [8, 8]}).build_algo() as algo:

        def update() -> None:
            episodes, _ = algo.offline_data.sample(160, by_agent_steps=True)
            algo.learner.update(episodes=episodes.episodes())

        visits.count_update(update)
    visits.check(LIMITS["recorded episodes become a loss of BC"])


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
