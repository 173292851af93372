"""Whatever fails in an iteration, the algorithm goes back to its beginning: tried in configurations drawn at random."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import described, differences, plain, random_config, without_times
from marl_connectors import (
    Algorithm,
    BCConfig,
    Callbacks,
    DQNConfig,
    MADDPGConfig,
    MixedConfig,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    QMIXConfig,
    RLModuleSpec,
    SACConfig,
)
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.errors import CheckpointError, EnvError

FAULTS = ("interrupt", "error in an update", "interrupt of an update", "error in a result")


def snapshot(algo):
    return plain(without_times(algo.get_state()))


class Fault:
    """Lets an iteration fail once: when a method is called for the ``number``-th time, before or after its work."""

    def __init__(self, owner, method, number, error, after):
        self._original, self._number, self._error, self._after = getattr(owner, method), number, error, after
        self._owner, self._method = owner, method
        self.has_happened = False
        setattr(owner, method, self)

    def __call__(self, *args, **kwargs):
        self._number -= 1
        found = self._original(*args, **kwargs) if self._number or self._after else None
        if not self._number:
            self.has_happened = True
            self.remove()
            raise self._error
        return found

    def remove(self):
        setattr(self._owner, self._method, self._original)


def planted(algo, fault, rng):
    """A fault in the next iteration."""
    after = bool(rng.random() < 0.5)
    if fault == "interrupt":
        return Fault(algo.env_runner.vector_env, "step", int(rng.integers(1, 6)), KeyboardInterrupt("a test's"), after)
    if fault == "error in a result":
        return Fault(algo.callbacks, "call", 1, ZeroDivisionError("a test's"), False)
    error = ZeroDivisionError if fault.startswith("error") else KeyboardInterrupt
    learner = next(iter(algo.learner.by_name.values()))
    return Fault(learner, "update", int(rng.integers(1, 3)), error("a test's"), after)


def check_goes_back(config, seed):
    """Holds a run, in which iterations fail, against an undisturbed one."""
    rng = np.random.default_rng([seed, 7])
    before, fault = int(rng.integers(0, 3)), FAULTS[rng.integers(len(FAULTS))]
    algo, other = config.copy().build_algo(), config.copy().build_algo()
    try:
        for _ in range(before):
            algo.train()
            other.train()
        for _ in range(2):
            start = snapshot(algo)
            own = planted(algo, fault, rng)
            try:
                algo.train()
            except (KeyboardInterrupt, ZeroDivisionError):
                assert own.has_happened
                assert not differences(start, snapshot(algo)), (fault, differences(start, snapshot(algo))[:5])
            own.remove()
        while other.iteration < algo.iteration + 1:
            other.train()
        while algo.iteration < other.iteration:
            algo.train()
        expected, found = snapshot(other), snapshot(algo)
        assert not differences(expected, found), (fault, described(config), differences(expected, found)[:5])
    finally:
        algo.stop()
        other.stop()


def replay_config(seed):
    rng = np.random.default_rng(seed)
    algorithms = [DQNConfig, SACConfig, QMIXConfig, MADDPGConfig, "mixed"]
    kind = algorithms[seed % len(algorithms)]
    capacity = int(rng.choice([30, 80, 5000]))
    buffer = {"capacity": capacity}
    settings = {"num_steps_sampled_before_learning_starts": 5, "train_batch_size_per_learner": 4}
    settings["training_intensity"] = [None, 1.7][rng.integers(2)]  # updates per step; a fraction of one stays due
    if kind == "mixed":
        first = DQNConfig().training(replay_buffer_config=buffer, **settings)
        config = MixedConfig().algorithms({"a": first, "*": PPOConfig().training(train_batch_size_per_learner=20)})
    else:
        if kind in (DQNConfig, SACConfig, QMIXConfig) and rng.random() < 0.5:
            team = "Team" if kind is QMIXConfig else "Episode"
            buffer["type"] = f"Prioritized{team}ReplayBuffer"
        config = kind().training(replay_buffer_config=buffer, **settings)
        config.reporting(min_sample_timesteps_per_iteration=int(rng.integers(5, 30)))
    ends = {"die": 0.2, "join": 0.0 if kind in (QMIXConfig, MADDPGConfig) else 0.3, "max_steps": 12, "fixed": True}
    config.environment(LifeEnv, env_config=ends, disable_env_checking=True).multi_agent(policies="independent")
    config.rl_module(model_config={"fcnet_hiddens": (4,)})
    copies = int(rng.integers(1, 4))
    return config.env_runners(num_envs_per_env_runner=copies, num_env_workers=0).debugging(seed=seed)


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("make", "seed"), [(random_config, seed) for seed in range(24)] + [(replay_config, seed) for seed in range(20)]
)
def test_an_iteration_that_fails_goes_back_and_can_be_repeated(make, seed):
    check_goes_back(make(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("make", [random_config, replay_config])
@pytest.mark.parametrize("seed", fresh_seeds(50))
def test_many_iterations_that_fail_go_back_and_can_be_repeated(make, seed):
    check_goes_back(make(seed), seed)


class FailsOnce(LifeEnv):
    """Fails in its seventh step, once in each process."""

    left = 7

    def step(self, actions):
        FailsOnce.left -= 1
        if FailsOnce.left == 0:
            raise ZeroDivisionError("a fault of the test")
        return super().step(actions)


def test_after_an_error_of_the_environment_new_episodes_begin_and_nothing_else_has_changed(monkeypatch):
    monkeypatch.setattr(FailsOnce, "left", 45)
    algo = small_config(FailsOnce, env_config={"max_steps": 100}).build_algo()
    algo.train()
    start, steps = snapshot(algo), algo.num_env_steps
    monkeypatch.setattr(FailsOnce, "left", 3)
    with pytest.raises(Exception, match="a fault of the test"):
        algo.train()
    assert not differences(start, snapshot(algo))
    assert (algo.iteration, algo.num_env_steps) == (1, steps)
    number = algo.env_runner.vector_env.sub_envs[0].episode_number
    algo.train()
    assert algo.env_runner.vector_env.sub_envs[0].episode_number > number
    algo.stop()


class FailsInAnEpisode(LifeEnv):
    """Fails in each step after the second one of the episode with the third seed that it sees."""

    seeds: list = []

    def reset(self, seed=None, options=None):
        self.seed = seed
        if seed not in self.seeds:
            self.seeds.append(seed)
        return super().reset(seed)

    def step(self, actions):
        if self.t > 2 and self.seeds.index(self.seed) == 2:
            raise ZeroDivisionError("a fault of the test")
        return super().step(actions)


def test_an_episode_that_fails_does_not_come_again(monkeypatch):
    monkeypatch.setattr(FailsInAnEpisode, "seeds", [])
    algo = small_config(FailsInAnEpisode, disable_env_checking=True).build_algo()
    reached = -1
    while reached < algo.iteration:
        reached = algo.iteration
        with contextlib.suppress(EnvError):
            algo.train()
    assert len(FailsInAnEpisode.seeds) == 3
    algo.train()
    assert algo.iteration == reached + 1
    algo.stop()


class CountsEvaluations(Callbacks):
    started = ended = 0

    def on_evaluate_start(self, **kwargs):
        CountsEvaluations.started += 1

    def on_evaluate_end(self, **kwargs):
        CountsEvaluations.ended += 1


def test_the_start_of_an_evaluation_that_is_repeated_is_reported_once(monkeypatch):
    monkeypatch.setattr(CountsEvaluations, "started", 0)
    monkeypatch.setattr(CountsEvaluations, "ended", 0)
    config = small_config(LifeEnv).callbacks(CountsEvaluations).evaluation(evaluation_interval=1, evaluation_duration=2)
    algo = config.build_algo()
    Fault(algo, "_begin_play", 1, KeyboardInterrupt(), False)
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    assert (CountsEvaluations.started, CountsEvaluations.ended) == (1, 0)
    algo.train()
    assert (CountsEvaluations.started, CountsEvaluations.ended) == (1, 1)
    algo.stop()


def test_what_a_replay_buffer_keeps_to_go_back_is_gone_after_an_iteration():
    config = DQNConfig().environment("CartPole-v1").debugging(seed=0).rl_module(model_config={"fcnet_hiddens": (4,)})
    config.training(replay_buffer_config={"capacity": 50}, train_batch_size_per_learner=4)
    config.env_runners(num_env_workers=0).reporting(min_sample_timesteps_per_iteration=60)
    algo = config.build_algo()
    (replay,) = algo.replays.values()
    prepare, sizes = replay.buffer.prepare_added, []
    for _ in range(3):
        replay.buffer.prepare_added = prepare
        algo.train()
        replay.buffer.prepare_added = None  # a method of the run, which cannot be pickled
        sizes.append(len(pickle.dumps(replay.buffer)))
    assert max(sizes) < 1.2 * sizes[0]
    algo.stop()


class CountingLearner(PPOLearner):
    """Remembers something, in the form of RLlib's learners."""

    num_losses = 0

    def compute_loss_for_module(self, **kwargs):
        self.num_losses += 1
        return super().compute_loss_for_module(**kwargs)

    def get_state(self):
        return {**super().get_state(), "num_losses": self.num_losses}

    def set_state(self, state):
        super().set_state(state)
        self.num_losses = state["num_losses"]


def test_what_a_learner_of_the_user_remembers_goes_back_too():
    config = small_config(LifeEnv).learners(learner_class=CountingLearner)
    algo = config.build_algo()
    algo.train()
    before, start = algo.learner.num_losses, snapshot(algo)
    Fault(algo.callbacks, "call", 1, ZeroDivisionError("a test's"), after=False)
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert algo.learner.num_losses == before > 0
    assert not differences(start, snapshot(algo))
    algo.stop()


class CountingModule(DefaultPPORLModule):
    """A module of buckets that remembers something beside its parameters."""

    stackable = True
    num_saved = 7

    def get_state(self):
        return {**super().get_state(), "num_saved": torch.tensor(self.num_saved)}

    def set_state(self, state):
        self.num_saved = int(state["num_saved"])
        super().set_state({name: value for name, value in state.items() if name != "num_saved"})


class CountingModules(MultiRLModule):
    """Remembers something beside its modules."""

    num_saved = 7

    def get_state(self):
        return {**super().get_state(), "beside": {"num_saved": torch.tensor(self.num_saved)}}

    def set_state(self, state):
        self.num_saved = int(state["beside"]["num_saved"])
        super().set_state({name: value for name, value in state.items() if name != "beside"})


@pytest.mark.parametrize("whole", [False, True])
def test_what_modules_of_the_user_remember_goes_back_too(whole, monkeypatch):
    config = small_config(LifeEnv).multi_agent(policies="independent")
    own = RLModuleSpec(CountingModule)
    spec = MultiRLModuleSpec(multi_rl_module_class=CountingModules) if whole else own
    algo = config.rl_module(rl_module_spec=spec).build_algo()
    owners = [algo.rl_module] if whole else list(algo.rl_module.values())
    assert whole or any(len(bucket.modules) > 1 for bucket in algo.rl_module.buckets)

    def failing(*args, **kwargs):
        for owner in owners:
            owner.num_saved = 9
        raise ZeroDivisionError

    monkeypatch.setattr(algo.callbacks, "call", failing)
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert {owner.num_saved for owner in owners} == {7}
    algo.stop()


class ChangesInfos(Callbacks):
    """Changes the infos before the newest ones in place, and fails then."""

    fails = False

    def on_episode_step(self, *, episode, **kwargs):
        if ChangesInfos.fails:
            for own in episode.agent_episodes.values():
                own.get_infos(-2)["changed"] = 9
            raise ZeroDivisionError


def test_infos_that_a_failed_iteration_has_changed_come_back(monkeypatch):
    algo = small_config(LifeEnv, env_config={"max_steps": 100}).callbacks(ChangesInfos).build_algo()
    algo.train()
    start = snapshot(algo)
    monkeypatch.setattr(ChangesInfos, "fails", True)
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert not differences(start, snapshot(algo))
    algo.stop()


def test_a_module_that_cannot_be_added_leaves_nothing_behind():
    algo = small_config(LifeEnv).build_algo()
    algo.train()
    start = snapshot(algo)
    with pytest.raises(Exception, match="lr"):
        algo.add_module("new", config_overrides={"lr": "fast"})
    with pytest.raises(Exception, match="no_such"):
        algo.add_module("new", RLModuleSpec(), module_state={"no_such": np.zeros(3)})
    assert not differences(start, snapshot(algo))
    algo.stop()


class ChangesThenFails(Callbacks):
    """Changes the modules after the second iteration, and fails then."""

    change: ClassVar[Any] = None

    def on_train_result(self, *, algorithm, result, **kwargs):
        if algorithm.iteration == 2 and self.change is not None:
            self.change(algorithm)
            raise ZeroDivisionError("a fault of the test")


LSTM = RLModuleSpec(model_config={"use_lstm": True, "lstm_cell_size": 2})
CHANGES = {
    "adds": lambda algo: algo.add_module("new", new_agent_to_module_mapping_fn="*=new"),
    "adds one with a memory": lambda algo: algo.add_module("new", LSTM, add_to_learners=False),
    "removes": lambda algo: algo.remove_module("first", new_agent_to_module_mapping_fn="*=others"),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [random_config, replay_config])
def test_a_change_of_the_modules_goes_back_with_its_iteration(make, change, monkeypatch):
    config = make(0).callbacks(ChangesThenFails).multi_agent(policies="a=first,*=others")
    algo, other = config.copy().build_algo(), config.copy().build_algo()
    algo.train()
    start = snapshot(algo)
    monkeypatch.setattr(ChangesThenFails, "change", staticmethod(CHANGES[change]))
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert not differences(start, snapshot(algo))
    assert list(algo.rl_module) == list(other.rl_module)
    monkeypatch.setattr(ChangesThenFails, "change", None)
    for _ in range(2):
        algo.train()
    for _ in range(3):
        other.train()
    assert not differences(snapshot(other), snapshot(algo))
    algo.stop()
    other.stop()


def test_what_a_callback_has_restored_goes_back_with_its_iteration(tmp_path, monkeypatch):
    part = "learner_group/learner/rl_module"
    algo = small_config(LifeEnv).callbacks(ChangesThenFails).build_algo()
    algo.save_to_path(tmp_path)
    algo.train()
    start = snapshot(algo)
    restore = staticmethod(lambda algo: algo.restore_from_path(tmp_path, component=part))
    monkeypatch.setattr(ChangesThenFails, "change", restore)
    with pytest.raises(ZeroDivisionError):
        algo.train()
    assert not differences(start, snapshot(algo))
    algo.stop()


def test_fit_saves_the_iteration_before_one_whose_callback_has_changed_the_modules_and_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(ChangesThenFails, "change", staticmethod(CHANGES["adds"]))
    algo = small_config(LifeEnv).callbacks(ChangesThenFails).build_algo()
    with pytest.raises(ZeroDivisionError):
        algo.fit(num_iterations=5, folder=tmp_path / "run", checkpoint_every=100, progress=False)
    assert Algorithm.from_checkpoint(tmp_path / "run").iteration == 1
    algo.stop()


def test_an_algorithm_that_cannot_go_back_says_so(monkeypatch):
    algo = small_config(LifeEnv).build_algo()
    algo.train()
    Fault(algo.learner, "update", 1, ZeroDivisionError("first"), True)
    Fault(algo.learner, "set_state", 1, ZeroDivisionError("second"), False)
    assert not algo.is_broken
    with pytest.raises(CheckpointError, match=r"first.*second"):
        algo.train()
    assert algo.is_broken
    algo.stop()


def test_what_an_iteration_has_read_and_written_is_read_and_written_again(tmp_path):
    recorder = small_config(LifeEnv).build_algo()
    recorder.record(tmp_path / "in", num_episodes=6)
    recorder.stop()
    config = small_config(LifeEnv, BCConfig).offline_data(input_=str(tmp_path / "in"))
    check_goes_back(config, 3)
    config = small_config(LifeEnv).offline_data(output=str(tmp_path / "out"))
    algo = config.build_algo()
    algo.train()
    written = algo.offline_data.writer.num_episodes
    Fault(algo.learner, "update", 1, KeyboardInterrupt(), True)
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    assert algo.offline_data.writer.num_episodes == written
    algo.stop()
