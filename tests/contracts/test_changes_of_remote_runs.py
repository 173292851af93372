"""Changes of a run, checkpoints and errors: remote env runners do what one does, whatever happens to them."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.fake_ray import FakeRay, use_fake_ray
from helpers.runs.random_runs import differences, plain, without_times
from marl_connectors import MeanStdFilter, PPOConfig, RLModuleSpec
from marl_connectors.callbacks import Callbacks
from marl_connectors.cluster.actor_pool import ActorLost
from marl_connectors.errors import ConfigError, EnvError, EpisodeError

LSTM = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4, "fcnet_hiddens": (4,)}
Loses = Callable[[str, str, Any], "str | None"]


class Failing(LifeEnv):
    """A LifeEnv whose step 3 fails in every fourth episode."""

    def reset(self, seed=None, options=None):
        self.fails = seed is not None and seed % 4 == 0
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        if self.fails and self.t == 3:
            raise ZeroDivisionError("as the seed has it")
        return super().step(actions)


def make(env_config: dict[str, Any]) -> LifeEnv:
    return LifeEnv(agents=list("abcd"), join=0.3, die=0.1, max_steps=9)


def make_failing(env_config: dict[str, Any]) -> LifeEnv:
    return Failing(agents=list("abcd"), join=0.3, die=0.1, max_steps=9)


def life(number: int, in_evaluations: int = 0, env: Any = make) -> PPOConfig:
    """Four sub-environments, with a filter that learns from all of them."""
    config = small_config(env, PPOConfig)
    config.environment(disable_env_checking=env is make_failing)
    config.rl_module(model_config={"fcnet_hiddens": (4,)})
    config.env_runners(
        num_env_runners=number,
        num_envs_per_env_runner=4 // max(1, number),
        env_to_module_connector=lambda: MeanStdFilter(),
        rollout_fragment_length=5,
    )
    config.training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1, lr=0.01)
    config.evaluation(evaluation_duration=5, evaluation_num_env_runners=in_evaluations)
    return config.debugging(seed=3)


def mapped(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return "new" if agent_id in "ac" else "default_policy"


def to_default(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return "default_policy"


def played(algo: Any, **arguments: Any) -> Any:
    return described(algo.evaluate(**arguments))


def described(results: dict[str, Any]) -> Any:
    """The results of an evaluation, but for the clock and the env runners that played it."""
    return plain(
        {name: own for name, own in without_times(results).items() if "remote" not in name and "worker" not in name}
    )


class Watch:
    """An algorithm, and what must be the same with any number of env runners."""

    def __init__(self, algo: Any, path: Any):
        self.algo = algo
        self.path = path
        self.seen: list[Any] = []

    def train(self) -> None:
        results = without_times(self.algo.train())
        results.pop("fault_tolerance", None)
        self.seen.append(plain(results))

    def evaluate(self, **arguments: Any) -> None:
        self.seen.append(played(self.algo, **arguments))

    def look(self) -> Any:
        """Notes the state, and returns it."""
        state = self.algo.get_state()
        self.seen.append(plain([state.env_runner, state.learner, state.iteration]))
        return state


def adds_a_module(watch: Watch) -> None:
    watch.train()
    watch.algo.add_module("new", new_agent_to_module_mapping_fn=mapped, config_overrides={"lr": 0.001})
    watch.look()
    watch.train()
    watch.evaluate()
    watch.look()
    watch.train()


def adds_a_stateful_module(watch: Watch) -> None:
    watch.train()
    spec = RLModuleSpec(model_config=LSTM)
    watch.algo.add_module("new", spec, new_agent_to_module_mapping_fn=mapped)
    watch.look()
    watch.train()
    watch.evaluate()
    watch.train()


def removes_a_stateful_module(watch: Watch) -> None:
    watch.algo.add_module("new", RLModuleSpec(model_config=LSTM), new_agent_to_module_mapping_fn=mapped)
    watch.train()
    watch.algo.remove_module("new", new_agent_to_module_mapping_fn=to_default)
    watch.evaluate()
    watch.train()
    watch.train()


def begins_with_a_stateful_module(watch: Watch) -> None:
    watch.algo.add_module("new", RLModuleSpec(model_config=LSTM), new_agent_to_module_mapping_fn=mapped)
    watch.look()
    watch.train()


def removes_a_module(watch: Watch) -> None:
    watch.algo.add_module(
        "new", new_agent_to_module_mapping_fn=mapped, new_should_module_be_updated=["new"], config_overrides={"lr": 1.0}
    )
    watch.train()
    watch.algo.remove_module(
        "new", new_agent_to_module_mapping_fn=to_default, new_should_module_be_updated=["default_policy"]
    )
    watch.look()
    watch.evaluate()
    watch.train()


def maps_agents_anew(watch: Watch) -> None:
    watch.algo.add_module("new")
    watch.train()
    watch.algo.set_policy_mapping_fn(mapped)
    watch.look()
    watch.train()
    watch.evaluate(policy_mapping_fn=to_default, explore=True, num_episodes=3)
    watch.train()


def goes_back(watch: Watch) -> None:
    watch.train()
    state = watch.algo.get_state()
    watch.train()
    watch.algo.set_state(state)
    watch.look()
    watch.train()


def begins_new_episodes(watch: Watch) -> None:
    watch.train()
    watch.algo.save_to_path(watch.path / "first")
    watch.algo.restore_from_path(watch.path / "first", new_episodes=True)
    watch.look()
    watch.algo.save_to_path(watch.path / "second")
    watch.train()
    watch.algo.restore_from_path(watch.path / "second")
    watch.train()


def drops_its_episodes(watch: Watch) -> None:
    watch.train()
    watch.algo.env_runner_group.restart_episodes()
    state = watch.look()
    watch.train()
    watch.algo.set_state(state)
    watch.train()


CHANGES = [
    adds_a_module,
    adds_a_stateful_module,
    removes_a_stateful_module,
    begins_with_a_stateful_module,
    removes_a_module,
    maps_agents_anew,
    goes_back,
    begins_new_episodes,
    drops_its_episodes,
]


def watched(change: Callable[[Watch], None], config: PPOConfig, path: Any) -> list[Any]:
    algo = config.build_algo()
    watch = Watch(algo, path)
    try:
        change(watch)
        watch.look()
        return watch.seen
    finally:
        algo.stop()


def losing(fake: FakeRay, rng: random.Random) -> None:
    """Lets one in four calls of actors be lost."""
    fake.loses = lambda who, method, arguments: (
        rng.choice(["before", "after"]) if method == "call" and rng.random() < 0.25 else None
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_the_same_effect_on_remote_env_runners(change, monkeypatch, tmp_path):
    place = CHANGES.index(change)
    fake = use_fake_ray(monkeypatch, place)
    expected = watched(change, life(0), tmp_path / "local")
    losing(fake, random.Random(place))
    found = watched(change, life([1, 2, 4][place % 3], in_evaluations=2), tmp_path / "remote")
    assert not differences(plain(expected), plain(found))


@pytest.mark.slow
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_the_same_effect_with_any_number_and_any_losses(change, batch_mode, monkeypatch, tmp_path):
    fake = use_fake_ray(monkeypatch)
    expected = watched(change, life(0).env_runners(batch_mode=batch_mode), tmp_path / "local")
    losing(fake, random.Random(0))
    for number in (1, 2, 4):
        config = life(number, in_evaluations=number - 1).env_runners(batch_mode=batch_mode)
        assert not differences(plain(expected), plain(watched(change, config, tmp_path / "remote")))


# Errors.


def test_after_an_error_of_an_environment_remote_env_runners_go_on_with_new_episodes(monkeypatch):
    use_fake_ray(monkeypatch)
    told: dict[int, list[str]] = {}
    for number in (0, 2):
        algo, told[number] = life(number, env=make_failing).build_algo(), []
        for _ in range(8):
            try:
                algo.train()
            except EnvError as error:
                told[number].append(str(error))
                assert algo.get_state().env_runner.has_episodes == (algo.iteration > 0)  # those before the error
        steps = algo.env_runner_group.num_env_steps
        assert algo.get_state().env_runner.num_env_steps == steps >= 20 * algo.iteration
        assert algo.env_runner_group.num_remote_env_runner_restarts == 0
        algo.stop()
    for messages in told.values():
        assert 1 < len(set(messages)) == len(messages) < 8  # no episode has failed twice
        assert all(own.startswith("sub-environment ") and "raised ZeroDivisionError" in own for own in messages)


def test_failed_sub_environments_are_replaced_in_remote_env_runners_as_in_one(monkeypatch):
    use_fake_ray(monkeypatch)

    def restarts(watch: Watch) -> None:
        for _ in range(6):
            watch.train()

    found = [
        watched(restarts, life(n, env=make_failing).fault_tolerance(restart_failed_sub_environments=True), None)
        for n in (0, 4)
    ]
    assert not differences(plain(found[0]), plain(found[1]))


def test_a_failed_evaluation_leaves_evaluations_possible(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = life(0, in_evaluations=2, env=make_failing).build_algo()
    with pytest.raises(EnvError, match="ZeroDivisionError"):
        algo.evaluate(num_episodes=40)
    seed = next(seed for seed in range(100) if not _fails(algo, seed))
    assert algo.evaluate(num_episodes=2, seed=seed)["env_runners"]["num_episodes"] == 2
    algo.stop()


def _fails(algo: Any, seed: int) -> bool:
    try:
        algo.evaluate(num_episodes=2, seed=seed)
    except EnvError:
        return True
    return False


def test_a_stopped_algorithm_says_so(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = life(2).build_algo()
    algo.train()
    algo.stop()
    algo.stop()
    assert algo.get_state().iteration == 1
    with pytest.raises(ConfigError, match=r"stop\(\)"):
        algo.train()


class FailsAtOnce(Callbacks):
    def on_algorithm_init(self, **kwargs):
        raise ValueError("not today")


def test_an_error_in_the_constructor_ends_the_actors(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    ended = []
    monkeypatch.setattr(fake, "kill", lambda actor, no_restart: ended.append(repr(actor.made)))
    with pytest.raises(ValueError, match="not today"):
        life(2, in_evaluations=1).callbacks(FailsAtOnce).build_algo()
    assert sorted(name.partition(" (")[0] for name in ended) == [
        "env runner 0",
        "env runner 1",
        "evaluation env runner 0",
    ]


def test_a_mapping_function_that_cannot_be_sent_changes_nothing(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = life(2).build_algo()
    lock = threading.Lock()
    before = algo.config.policy_mapping_fn
    with pytest.raises(ConfigError, match=r"^policy_mapping_fn"):
        algo.set_policy_mapping_fn(lambda agent_id, episode, **kwargs: str(lock))
    assert algo.config.policy_mapping_fn is before
    algo.train()
    algo.stop()


# Losses that cannot be undone.


class KeepsObjects(Callbacks):
    """Keeps something in each episode that no checkpoint can hold."""

    def on_episode_start(self, *, episode, **kwargs):
        episode.custom_data["own"] = object()


def at_sample(number: int) -> Loses:
    """Loses the actor that samples in this call."""
    calls = []

    def loses(who: str, method: str, arguments: Any) -> str | None:
        if method == "call" and arguments[0] == "sample":
            calls.append(who)
            return "before" if len(calls) == number else None
        return None

    return loses


def test_episodes_that_cannot_be_restored_after_a_loss_are_named(monkeypatch, caplog):
    fake = use_fake_ray(monkeypatch)
    fake.loses = at_sample(4)
    algo = life(2).callbacks(KeepsObjects).build_algo()
    with caplog.at_level(logging.WARNING):
        algo.train()
        algo.train()
    assert "env runner 1 (sub-environments 2 to 3) begins new episodes, because" in caplog.text
    assert "custom_data" in caplog.text
    assert algo.env_runner_group.num_env_steps == 40
    numbers = algo.env_runner_group.foreach_env_runner(
        lambda runner: [sub_env.episode_number for sub_env in runner.vector_env.sub_envs]
    )
    assert numbers == [[1, 1], [1, 1]]  # the new episodes are not those of the beginning again
    with pytest.raises(EpisodeError, match="custom_data"):
        algo.get_state()
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [1, 2, 6])
def test_a_run_that_ignores_a_loss_can_be_changed_saved_and_resumed(number, monkeypatch, tmp_path):
    fake = use_fake_ray(monkeypatch)
    fake.loses = at_sample(number)
    config = life(4).fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=True)
    algo = config.build_algo()
    algo.train()
    algo.train()
    assert algo.env_runner_group.num_healthy_remote_env_runners == 3
    algo.add_module("new", RLModuleSpec(model_config=LSTM), new_agent_to_module_mapping_fn=mapped)
    algo.train()
    algo.remove_module("new", new_agent_to_module_mapping_fn=to_default)
    with pytest.warns(UserWarning, match="continues"):
        algo.save_to_path(tmp_path / "run")
    steps = algo.env_runner_group.num_env_steps
    algo.set_state(algo.get_state())
    algo.train()
    algo.stop()
    for remote in (0, 2):
        resumed = type(algo).from_checkpoint(tmp_path / "run", config=life(remote))
        assert resumed.env_runner_group.num_env_steps == steps
        resumed.train()
        resumed.stop()


def test_a_run_that_neither_replaces_nor_ignores_a_loss_stays_as_it_was(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    algo = life(2).build_algo()
    algo.train()
    algo.train()
    expected = plain(algo.get_state().env_runner)
    algo.stop()
    fake.loses = at_sample(5)
    algo = life(2).fault_tolerance(restart_failed_env_runners=False).build_algo()
    algo.train()
    algo.train()
    for _ in range(2):
        with pytest.raises(ActorLost, match="restart_failed_env_runners=True"):
            algo.train()
    assert not differences(expected, plain(algo.get_state().env_runner))
    algo.stop()


def test_others_play_the_evaluation_of_env_runners_that_are_lost_for_good(monkeypatch):
    fake = use_fake_ray(monkeypatch)
    whole = life(0).build_algo()
    expected = [played(whole, num_episodes=n) for n in (7, 1, 5)]
    whole.stop()
    calls = []

    def loses(who: str, method: str, arguments: Any) -> str | None:
        if method == "call" and arguments[0] == "play":
            calls.append(who)
            return "before" if len(calls) in (1, 2) else None
        return None

    fake.loses = loses
    config = life(0, in_evaluations=3)
    config.fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=True)
    algo = config.build_algo()
    assert [played(algo, num_episodes=n) for n in (7, 1, 5)] == expected
    assert algo.eval_env_runner_group is not None
    assert algo.eval_env_runner_group.num_healthy_remote_env_runners == 1
    algo.stop()


def test_evaluations_beside_training_are_those_before_it(monkeypatch):
    use_fake_ray(monkeypatch)
    algo, expected = life(0).build_algo(), []
    for _ in range(3):
        expected.append(played(algo))
        algo.train()
    algo.stop()
    config = life(2, in_evaluations=3).evaluation(evaluation_interval=1, evaluation_parallel_to_training=True)
    algo = config.build_algo()
    assert [described(algo.train()["evaluation"]) for _ in range(3)] == expected
    algo.stop()
