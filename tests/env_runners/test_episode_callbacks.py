"""What callbacks are told of environments, episodes and samples: when, in which order, and with what."""

from __future__ import annotations

import itertools
import traceback
from collections import defaultdict
from functools import partial

import numpy as np
import pytest

from helpers.envs.batched_envs import Worlds
from helpers.envs.failing_envs import FailingEnv
from helpers.envs.gymnasium_envs import vector_maker
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import Algorithm, Callbacks, MultiRLModule, RLModule
from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.errors import ConfigError, EnvError, MappingError

KINDS = {
    "parallel": partial(LifeEnv, die=0.3, join=0.4, fixed=False),
    "turns": partial(RandomAEC, die=0.2, join=0.3),
    "batched": lambda env_config=None, num_envs=3: Worlds(num_envs=num_envs),
    "Gymnasium": "CartPole-v1",
    "workers": partial(LifeEnv, die=0.3, join=0.4, fixed=False),
}
VECTORS = {mode: vector_maker(mode) for mode in ("NEXT_STEP wrapped", "NEXT_STEP", "SAME_STEP")}
KINDS_AND_VECTORS = {**KINDS, **VECTORS}


def clock_of(env, index):
    """The env's own count of steps since its reset."""
    if isinstance(env, Worlds):
        return getattr(env.worlds[index], "t", None)
    return getattr(env, "_elapsed_steps", getattr(env, "t", None))


class Journal(Callbacks):
    """Writes down all that is told of episodes."""

    def __init__(self):
        self.pages = defaultdict(list)

    def note(self, event, episode, env, env_index, env_runner):
        is_near = type(env_runner.vector_env).__name__ in ("VectorEnv", "TurnBasedVectorEnv", "BatchedVectorEnv")
        clock = clock_of(env.envs[env_index], env_index) if is_near else None
        self.pages[env_index].append((event, episode, episode.env_steps(), episode.is_done, clock))

    def on_episode_created(self, *, episode, env, env_index, env_runner, **kwargs):
        self.note("created", episode, env, env_index, env_runner)

    def on_episode_start(self, *, episode, env, env_index, env_runner, **kwargs):
        self.note("start", episode, env, env_index, env_runner)

    def on_episode_step(self, *, episode, env, env_index, env_runner, **kwargs):
        self.note("step", episode, env, env_index, env_runner)

    def on_episode_end(self, *, episode, prev_episode_chunks, env, env_index, env_runner, **kwargs):
        chunks = [*prev_episode_chunks, episode]
        self.note("end", episode, env, env_index, env_runner)
        self.pages["length"].append(sum(chunk.env_steps() for chunk in chunks))
        self.pages["return"].append(sum(chunk.get_return() + chunk.uncredited_reward for chunk in chunks))


def runner_of(kind, *callbacks, num_envs=3, **told):
    env = KINDS_AND_VECTORS.get(kind, kind)
    config = small_config(env).callbacks(list(callbacks) or None, **told)
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=2 if kind == "workers" else 0)
    return config.build_algo().env_runner


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS_AND_VECTORS)
def test_the_life_of_each_episode_is_told_in_order(kind):
    runner = runner_of(kind, Journal)
    for n in (1, 4, 2, 9, 30):
        runner.sample(num_timesteps=3 * n)
    pages = runner.callbacks.objects[0].pages
    returns, lengths = pages.pop("return"), pages.pop("length")
    assert lengths and sorted(pages) == [0, 1, 2]
    for index, page in pages.items():
        number, steps, clocks = -1, 0, kind != "workers" and kind not in VECTORS
        last = None
        for event, episode, length, is_done, clock in page:
            match event:
                case "created":
                    assert last in (None, "end")
                    number += 1
                    assert (length, is_done) == (0, False)
                    if clocks and number:
                        assert clock == steps, "the copy is not reset yet"
                case "start":
                    assert last == "created"
                    assert (length, is_done) == (0, False)
                    steps = 0
                case "step":
                    assert last in ("start", "step")
                    steps += 1
                case "end":
                    assert last == "step"
                    assert is_done
            assert episode.id_ == f"{index}-{number}"
            if clocks and event != "created":
                assert clock == steps
            last = event
        assert number > 0
    summaries = runner.take_finished()
    assert sorted(summary.length for summary in summaries) == sorted(lengths)
    assert sorted(t.episode_return for t in summaries) == pytest.approx(sorted(returns), rel=1e-5)
    runner.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS_AND_VECTORS)
def test_callbacks_change_nothing_in_the_samples(kind):
    found = []
    for callbacks in ((), (Journal,)):
        runner = runner_of(kind, *callbacks)
        samples = [[e.get_state() for e in runner.sample(num_timesteps=3 * n)] for n in (1, 4, 2, 9, 30)]
        samples += [[e.get_state() for e in runner.sample(num_episodes=5)]]
        found.append((samples, runner.get_metrics()))
        runner.close()
    np.testing.assert_equal(found[0], found[1])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_all_get_what_the_documentation_says(kind):
    told = {}

    class Told(Callbacks):
        pass

    for name in CALLBACK_NAMES:
        setattr(Told, name, lambda self, _name=name, **kwargs: told.setdefault(_name, kwargs))
    runner = runner_of(kind, Told)
    runner.sample(num_timesteps=3 * 40)
    whole = {"env_runner", "metrics_logger", "env", "env_index", "episode", "rl_module"}
    for name in ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"):
        assert set(told[name]) == whole | ({"prev_episode_chunks"} if name == "on_episode_end" else set())
        assert told[name]["env_runner"] is runner
        assert told[name]["env"] is told[name]["env"].unwrapped is runner.vector_env
        assert told[name]["env"].num_envs == 3
        kind_of_module = RLModule if kind == "Gymnasium" else MultiRLModule
        assert isinstance(told[name]["rl_module"], kind_of_module)
    if kind == "workers":
        with pytest.raises(EnvError, match=r"env\.envs"):
            _ = runner.vector_env.envs
    else:
        expected = {"parallel": LifeEnv, "turns": RandomAEC, "batched": Worlds}.get(kind)
        envs = runner.vector_env.envs
        assert len(envs) == 3
        assert all(type(env) is expected if expected else env.spec.id == "CartPole-v1" for env in envs)
    assert told["on_environment_created"]["env_index"] is None
    runner.close()


def test_an_episode_is_one_object_from_its_creation_to_the_first_cut():
    seen = defaultdict(list)
    note = lambda episode, **kwargs: seen[episode.id_].append(episode)
    for kind in ("parallel", "Gymnasium"):
        seen.clear()
        runner = runner_of(kind, on_episode_created=note, on_episode_start=note, on_episode_end=note, num_envs=1)
        sampled = {e.id_: e for e in runner.sample(num_timesteps=60)}
        assert len(sampled) > 2
        for id_, own in sampled.items():
            assert all(episode is own for episode in seen[id_])


def test_notes_that_are_made_before_an_episode_begins_reach_the_mapping_and_the_samples():
    def create(*, episode, env_index, **kwargs):
        episode.custom_data["side"] = "left" if env_index else "right"

    config = small_config(partial(LifeEnv, max_steps=4)).env_runners(num_envs_per_env_runner=2)
    config.multi_agent(
        policies={"left", "right"},
        policy_mapping_fn=lambda agent_id, episode, **kwargs: episode.custom_data.get("side", "left"),
    )
    runner = config.callbacks(on_episode_created=create).build_algo().env_runner
    for episode in (e for _ in range(3) for e in runner.sample(num_timesteps=6)):
        side = "left" if episode.id_.startswith("1") else "right"
        assert {episode.module_for(agent) for agent in episode.agent_ids} == {side}
        assert episode.custom_data == {"side": side}
    single = runner_of("Gymnasium", on_episode_created=lambda episode, **kwargs: episode.custom_data.update(x=1))
    assert all(e.custom_data == {"x": 1} for _ in range(3) for e in single.sample(num_timesteps=60))


def test_steps_hold_what_the_environment_gave_infos_included():
    script = [
        Step({"a": 1}, infos={"a": {"n": 10}}),
        Step({"a": 2}, {"a": 1}, infos={"a": {"n": 20}}),
        Step({"a": 3}, {"a": 2}, truncated=("a",), infos={"a": {"n": 30}}),
    ]
    seen = []

    def note(*, episode, **kwargs):
        own = episode.agent_episodes["a"]
        seen.append((own.get_observations()[:, 0].tolist(), list(own.get_rewards()), [i["n"] for i in own.get_infos()]))

    runner = runner_of(
        lambda: ScriptEnv([script]), on_episode_start=note, on_episode_step=note, on_episode_end=note, num_envs=1
    )
    runner.sample(num_timesteps=2)
    whole = ([1, 2, 3], [1, 2], [10, 20, 30])
    assert seen == [([1], [], [10]), ([1, 2], [1], [10, 20]), whole, whole, ([1], [], [10])]


def test_what_on_sample_end_writes_is_what_the_learner_gets():
    learned = []

    def pay_more(*, samples, **kwargs):
        for episode in samples:
            for own in episode.agent_episodes.values():
                own.set_rewards(new_data=own.get_rewards() + 1000.0)

    algo = small_config(partial(LifeEnv, max_steps=4)).callbacks(on_sample_end=pay_more).build_algo()
    update = algo.learner.update
    algo.learner.update = lambda *, episodes, **kwargs: (learned.extend(episodes), update(episodes=episodes, **kwargs))[
        1
    ]
    algo.train()
    assert learned
    assert all((own.get_rewards() > 900).all() for e in learned for own in e.agent_episodes.values())


# Who is not told.


def test_only_the_episodes_that_were_asked_for_are_told_of():
    ended, created = [], []
    runner = runner_of(
        "parallel",
        on_episode_created=lambda episode, **kwargs: created.append(episode.id_),
        on_episode_end=lambda episode, **kwargs: ended.append(episode.id_),
    )
    episodes = runner.sample(num_episodes=7)
    assert sorted(ended) == sorted(e.id_ for e in episodes)
    assert sorted(created) == sorted(ended)
    assert [sum(id_.startswith(f"{i}-") for id_ in ended) for i in range(3)] == [3, 2, 2]
    ended.clear()
    runner.sample(num_timesteps=3 * 8)
    assert {id_[0] for id_ in ended} == {"0", "1", "2"}


def test_episodes_that_are_dropped_do_not_end():
    told = []
    runner = runner_of(
        partial(LifeEnv, max_steps=6),
        on_episode_start=lambda episode, **kwargs: told.append(("start", episode.id_)),
        on_episode_end=lambda episode, prev_episode_chunks, **kwargs: told.append(
            ("end", episode.id_, [len(chunk) for chunk in prev_episode_chunks])
        ),
        num_envs=1,
    )
    runner.sample(num_timesteps=2)
    runner.sample(num_timesteps=5, force_reset=True)
    assert list(runner._episodes.callbacks._chunks) == ["0-1"], "nothing is kept of what was dropped"
    runner.sample(num_timesteps=2)
    assert told == [("start", "0-0"), ("start", "0-1"), ("end", "0-1", [5]), ("start", "0-2")]


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_failure_the_next_episode_is_told_of(workers):
    config = small_config(partial(FailingEnv, chance=0.2, ways=("raise", "reset")), disable_env_checking=True)
    config.env_runners(num_envs_per_env_runner=2, num_env_workers=workers).callbacks(Journal)
    runner = config.fault_tolerance(restart_failed_sub_environments=True).build_algo().env_runner
    for _ in range(6):
        runner.sample(num_timesteps=20)
    assert runner.take_failure_counts()["num_dropped_episodes"] > 3
    pages = runner.callbacks.objects[0].pages
    assert pages["length"]
    for index in (0, 1):
        events = [(event, episode.id_) for event, episode, *_ in pages[index]]
        starts = [id_ for event, id_ in events if event == "start"]
        assert len(starts) == len(set(starts))
        assert {id_ for event, id_ in events if event in ("step", "end")} <= set(starts)
        for before, now in itertools.pairwise(events):
            assert now[0] != "start" or before == ("created", now[1])
    runner.close()


def test_nothing_is_done_for_callbacks_that_are_not_overridden():
    class SamplesOnly(Callbacks):
        def on_sample_end(self, **kwargs):
            pass

    for callbacks in (Callbacks, SamplesOnly):
        runner = runner_of("parallel", callbacks)
        assert runner._episodes.callbacks is None
        assert not runner.vector_env.resets_late
    assert runner_of("parallel", Journal)._episodes.callbacks is not None


# Figures.


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_what_episodes_log_is_in_the_results_of_the_runners(kind):
    def log(*, metrics_logger, episode, prev_episode_chunks, **kwargs):
        length = episode.env_steps() + sum(chunk.env_steps() for chunk in prev_episode_chunks)
        metrics_logger.log_value("my_len", length, reduce="mean")
        metrics_logger.log_value(("mine", "episodes"), 1, reduce="lifetime_sum")

    config = small_config(KINDS[kind]).callbacks(on_episode_end=log).training(train_batch_size_per_learner=90)
    algo = config.env_runners(num_envs_per_env_runner=3, num_env_workers=2 if kind == "workers" else 0).build_algo()
    results = [algo.train()["env_runners"] for _ in range(2)]
    assert results[0]["my_len"] == pytest.approx(results[0]["episode_len_mean"])
    assert results[1]["mine"] == {"episodes": results[1]["num_episodes"]}
    evaluated = algo.evaluate(num_episodes=4)["env_runners"]
    assert evaluated["my_len"] == evaluated["episode_len_mean"]
    assert evaluated["mine"] == {"episodes": 4}, "the runner that evaluates counts for itself"
    algo.stop()


def test_what_the_algorithm_logs_is_at_the_top_of_the_results():
    class Logs(Callbacks):
        def on_algorithm_init(self, *, metrics_logger, **kwargs):
            metrics_logger.log_value("began", 1, reduce="lifetime_sum")

        def on_train_result(self, *, metrics_logger, result, **kwargs):
            metrics_logger.log_value("twice", 2 * result["training_iteration"], reduce="item")

        def on_evaluate_end(self, *, metrics_logger, evaluation_metrics, **kwargs):
            metrics_logger.log_value("evaluated", evaluation_metrics["env_runners"]["num_episodes"], reduce="item")

    algo = small_config(partial(LifeEnv, max_steps=4)).callbacks(Logs).evaluation(evaluation_interval=2).build_algo()
    first, second = algo.train(), algo.train()
    assert (first["began"], first["twice"], "evaluated" in first) == (1, 2, False)
    assert (second["began"], second["twice"], second["evaluated"]) == (1, 4, 10)


def test_figures_of_callbacks_survive_a_checkpoint(tmp_path):
    class Logs(Callbacks):
        def on_episode_end(self, *, metrics_logger, **kwargs):
            metrics_logger.log_value("episodes", 1, reduce="lifetime_sum")

        def on_train_result(self, *, metrics_logger, **kwargs):
            metrics_logger.log_value("results", 1, reduce="lifetime_sum")

    config = small_config(partial(LifeEnv, max_steps=4)).callbacks(Logs)
    algo = config.build_algo()
    for _ in range(3):
        algo.train()
    other = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "c"), config=config)
    expected, found = algo.train(), other.train()
    assert (found["results"], found["env_runners"]["episodes"]) == (4, expected["env_runners"]["episodes"])
    assert found["env_runners"]["episodes"] >= 8


def test_a_figure_cannot_take_the_place_of_a_result():
    log = lambda metrics_logger, **kwargs: metrics_logger.log_value("num_episodes", 3)
    algo = small_config(partial(LifeEnv, max_steps=2)).callbacks(on_episode_end=log).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)'num_episodes'.*'num_episodes'"):
        algo.train()


# Errors.


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"])
@pytest.mark.parametrize("kind", ["parallel", "turns", "batched", "workers"])
def test_an_error_in_a_callback_is_shown_as_it_is_and_the_next_sample_starts_afresh(kind, name):
    calls = []

    class Raises(Callbacks):
        pass

    def raises(self, *, episode, **kwargs):
        calls.append(episode.id_)
        if len(calls) == 5:
            raise ZeroDivisionError("mine")

    setattr(Raises, name, raises)
    config = small_config(KINDS[kind]).callbacks(Raises)
    config.env_runners(num_envs_per_env_runner=3, num_env_workers=2 if kind == "workers" else 0)
    runner = config.build_algo().env_runner
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        runner.sample(num_timesteps=300)
    text = "".join(traceback.format_exception(caught.value))
    if hasattr(caught.value, "add_note"):
        assert f"Raised in the callback Raises.{name}, episode {calls[-1]!r} of sub-environment {calls[-1][0]}" in text
    episodes = runner.sample(num_timesteps=30)
    assert sum(e.env_steps() for e in episodes) == 30
    first = {e.id_[0]: e for e in reversed(episodes)}
    starts = [e.env_t_started for e in first.values()]
    assert starts == [0, 0, 0]
    runner.close()


def test_an_error_of_a_callback_is_no_failure_of_the_environment():
    def raises(**kwargs):
        raise MappingError("mine")

    config = small_config(partial(LifeEnv, max_steps=3)).callbacks(on_episode_end=raises)
    runner = config.fault_tolerance(restart_failed_sub_environments=True).build_algo().env_runner
    with pytest.raises(MappingError, match="mine"):
        runner.sample(num_timesteps=20)
    assert runner.take_failure_counts()["num_env_failures"] == 0
