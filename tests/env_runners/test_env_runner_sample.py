"""What a call of ``sample`` gives, exactly: counts, which episodes, explore, random actions, resets, after errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from helpers.envs.batched_envs import Worlds
from helpers.envs.failing_envs import FailingEnv
from helpers.envs.gymnasium_envs import vector_maker
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import ConnectorV2
from marl_connectors.errors import ConfigError, ConnectorError, EnvError

KINDS = {
    "parallel": partial(LifeEnv, die=0.2, join=0.4, fixed=False),
    "turns": partial(RandomAEC, die=0.2, join=0.3, back=0.3),
    "batched": lambda env_config=None, num_envs=3: Worlds(num_envs=num_envs),
    "Gymnasium": "CartPole-v1",
    "workers": partial(LifeEnv, die=0.2, join=0.4, fixed=False),
}


VECTORS = {mode: vector_maker(mode) for mode in ("NEXT_STEP wrapped", "SAME_STEP")}


def algo_of(kind, *, num_envs=3, pieces=None, **runner):
    config = small_config({**KINDS, **VECTORS}.get(kind, kind))
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=2 if kind == "workers" else 0, **runner)
    if pieces is not None:
        config.env_runners(env_to_module_connector=lambda env: pieces())
    return config.build_algo()


def runner_of(kind, **settings):
    return algo_of(kind, **settings).env_runner


def env_steps(episodes):
    return sum(episode.env_steps() for episode in episodes)


def started(episode):
    return getattr(episode, "env_t_started", getattr(episode, "t_started", None))


# Counts.


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_timesteps_are_rounded_up_to_the_copies(kind):
    runner = runner_of(kind, num_envs=8)
    for wanted, given in ((10, 16), (16, 16), (1, 8), (0, 0), (np.int64(17), 24)):
        assert env_steps(runner.sample(num_timesteps=wanted)) == given
    assert runner.sample(num_timesteps=0) == []
    assert runner.num_env_steps == 64
    counts = runner.take_counts()
    assert counts["num_env_steps_sampled"] == 64
    assert sum(counts["num_agent_steps_sampled"].values()) == runner.num_agent_steps
    assert sum(counts["num_module_steps_sampled"].values()) == runner.num_agent_steps
    assert runner.take_counts()["num_module_steps_sampled"] == {}
    runner.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_counted_by_agent_and_module(kind):
    config = small_config(KINDS[kind]).env_runners(
        num_envs_per_env_runner=2, num_env_workers=2 if kind == "workers" else 0
    )
    if kind != "Gymnasium":
        ids = {"x", "y"}
        pick = lambda agent_id, episode, **kwargs: "xy"[(ord(agent_id) + int(episode.id_[2:])) % 2]
        config.multi_agent(policies=ids, policy_mapping_fn=pick)
    runner = config.build_algo().env_runner
    agents, modules = {}, {}
    for _ in range(6):
        for episode in runner.sample(num_timesteps=18):
            owns = episode.agent_episodes.values() if kind != "Gymnasium" else [episode]
            for own in [*owns, *getattr(episode, "past_agent_episodes", ())]:
                agent, module = own.agent_id or "default_agent", own.module_id or "default_policy"
                agents[agent] = agents.get(agent, 0) + len(own)
                modules[module] = modules.get(module, 0) + len(own)
    counts = runner.take_counts()
    assert counts["num_agent_steps_sampled"] == {agent: n for agent, n in agents.items() if n}
    assert counts["num_module_steps_sampled"] == {module: n for module, n in modules.items() if n}
    runner.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 1, 3, 8])
def test_episodes_are_the_first_of_each_copy(kind, number):
    runner = runner_of(kind)
    runner.sample(num_timesteps=6)
    runner.take_finished()
    number_before = [copy.episode_number for copy in runner.vector_env.sub_envs]
    episodes = runner.sample(num_episodes=number)
    shares = [number // 3 + (index < number % 3) for index in range(3)]
    expected = [f"{i}-{number_before[i] + 1 + k}" for i in range(3) for k in range(shares[i])]
    assert sorted(e.id_ for e in episodes) == sorted(expected)
    assert all(e.is_done and started(e) == 0 for e in episodes)
    assert [summary.length for summary in runner.take_finished()] == [e.env_steps() for e in episodes]
    assert all(started(e) == 0 for e in runner.sample(num_timesteps=3))
    runner.close()


def test_long_episodes_are_neither_waited_for_nor_lost():
    """In copy 0 episodes have 40 steps, in copy 1 two."""
    lengths = iter((40, 2, 40, 2))

    def make():
        n = next(lengths)
        steps = [Step({"a": t}, {"a": 1} if t else {}, truncated=("a",) if t == n else ()) for t in range(n + 1)]
        return ScriptEnv([steps])

    config = small_config(make, disable_env_checking=True).env_runners(num_envs_per_env_runner=2)
    lengths = iter((2, 40, 2))  # the first copy is only asked for its spaces
    runner = config.build_algo().env_runner
    episodes = runner.sample(num_timesteps=20)
    assert sorted(len(e) for e in episodes) == [2, 2, 2, 2, 2, 10]
    assert [len(e) for e in runner.sample(num_episodes=4)].count(40) == 2


def test_a_sample_without_numbers_is_a_fragment_or_whole_episodes():
    assert env_steps(runner_of("parallel").sample()) == 15
    whole = runner_of("parallel", batch_mode="complete_episodes").sample()
    assert sorted(e.id_ for e in whole) == ["0-0", "1-0", "2-0"]
    assert all(e.is_done for e in whole)


@pytest.mark.parametrize("name", ["num_timesteps", "num_episodes"])
@pytest.mark.parametrize("number", [-1, 1.5, True, "3", float("nan")])
def test_other_than_whole_numbers_are_refused_and_nothing_is_changed(name, number):
    runner = runner_of(partial(LifeEnv, max_steps=50))
    runner.sample(num_timesteps=3)
    with pytest.raises(ConfigError, match=rf"(?s)\bsample\b.*{name}.*\b0\b"):
        runner.sample(**{name: number})
    assert {started(e) for e in runner.sample(num_timesteps=3)} == {1}


# Whose actions.


class Flag(ConnectorV2):
    """Doubles observations, and notes the flag in the batch and how often it was called."""

    def __init__(self):
        super().__init__()
        self.calls, self.flags = 0, []

    def columns(self, c, xp):
        rows = c.rows
        rows.set("obs", rows.get("obs") * 2)
        self.calls += 1
        self.flags.append(c.explore)
        c.metrics.log_value("calls", 1, reduce="lifetime_sum")

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


def noting(forward, found, flags):
    """A forward pass that notes with which flag its batch was made."""

    def wrapper(batch):
        found.append(flags[-1])
        return forward(batch)

    return wrapper


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parallel", "turns", "batched", "workers"])
def test_explore_holds_from_the_first_step_of_a_sample(kind):
    pieces, samples = [], []
    for alternating in (False, True):
        algo = algo_of(kind, pieces=lambda: pieces.append(Flag()) or pieces[-1])
        runner, piece = algo.env_runner, pieces[-1]
        forward = {True: [], False: []}
        for explore, name in ((True, "forward_exploration"), (False, "forward_inference")):
            setattr(runner.rl_module, name, noting(getattr(runner.rl_module, name), forward[explore], piece.flags))
        found = []
        for explore in (True, False, True, False) if alternating else (False,) * 4:
            found.append([e.get_state() for e in runner.sample(num_timesteps=6, explore=explore)])
        assert set(forward[True]) <= {True}
        assert set(forward[False]) <= {False}
        samples.append((found, piece.calls, runner.metrics["env_to_module"].peek("calls")))
        runner.close()
    (_, calls, logged), (_, other_calls, other_logged) = samples
    if kind == "batched":  # elsewhere the number of calls depends on who dies when
        assert (calls, logged) == (other_calls, other_logged)


@pytest.mark.slow
def test_changing_explore_leaves_what_pieces_wrote_to_observations_right():
    for kind in ("parallel", "turns", "workers"):
        raw, doubled = (runner_of(kind, pieces=pieces) for pieces in (None, Flag))
        raw.vector_env.seed = doubled.vector_env.seed
        for runner in (raw, doubled):
            runner.rl_module.forward_exploration = runner.rl_module.forward_inference = None
        for explore in (True, False, False, True):
            pair = [runner.sample(num_timesteps=9, explore=explore, random_actions=True) for runner in (raw, doubled)]
            for one, two in zip(*pair, strict=True):
                for agent, own in one.agent_episodes.items():
                    seen = two.agent_episodes[agent].get_observations()
                    np.testing.assert_allclose(seen, 2 * own.get_observations(), rtol=1e-6)
        raw.close()
        doubled.close()


class FlagSeen(Flag):
    """Puts the flag into the observations."""

    def columns(self, c, xp):
        super().columns(c, xp)
        c.rows.set("obs", c.rows.get("obs") + 100 * c.explore)


def test_a_restored_runner_changes_explore_alike(tmp_path):
    one, other = (algo_of(partial(LifeEnv, max_steps=50), pieces=FlagSeen) for _ in range(2))
    one.env_runner.sample(num_timesteps=9, explore=True)
    other.restore_from_path(one.save_to_path(tmp_path / "c"))
    first, second = (a.env_runner.sample(num_timesteps=9, explore=False) for a in (one, other))
    np.testing.assert_equal([e.get_state() for e in first], [e.get_state() for e in second])
    assert all((own.get_observations() < 50).all() for e in first for own in e.agent_episodes.values())
    assert one.env_runner.env_to_module[0].calls == other.env_runner.env_to_module[0].calls


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_with_random_actions_and_others_go_on_from_each_other(kind):
    algo = algo_of(kind)
    runner = algo.env_runner
    for at_random in (True, False, True, False):
        episodes = runner.sample(num_timesteps=9, random_actions=at_random)
        assert env_steps(episodes) == 9
        if not at_random:
            results = algo.learner.update(episodes=episodes)
            assert np.isfinite(results["default_policy"]["total_loss"])
    runner.close()


# Resets and errors.


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_forced_reset_begins_every_copy_anew(kind):
    runner = runner_of(kind)
    runner.sample(num_timesteps=3)
    numbers = [copy.episode_number for copy in runner.vector_env.sub_envs]
    episodes = runner.sample(num_timesteps=3, force_reset=True)
    assert [(e.id_, started(e)) for e in sorted(episodes, key=lambda e: e.id_)] == [
        (f"{i}-{numbers[i] + 1}", 0) for i in range(3)
    ]
    runner.close()


class RaisesOnce(ConnectorV2):
    """Fails in its seventh call."""

    calls = 0

    def columns(self, c, xp):
        self.calls += 1
        if self.calls == 7:
            raise ZeroDivisionError("once")


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["env_to_module_connector", "module_to_env_connector"])
def test_after_an_error_of_a_piece_the_next_sample_starts_with_new_episodes(kind, place):
    runner = runner_of(kind, **{place: lambda *args: RaisesOnce()})
    runner.sample(num_timesteps=6)
    numbers = [copy.episode_number for copy in runner.vector_env.sub_envs]
    with pytest.raises(ConnectorError, match="once"):
        runner.sample(num_timesteps=60)
    episodes = runner.sample(num_timesteps=30)
    assert env_steps(episodes) == 30
    first = {}
    for episode in episodes:
        first.setdefault(episode.id_[0], episode)
    assert sorted(first) == ["0", "1", "2"]
    for index, episode in first.items():
        assert started(episode) == 0
        assert int(episode.id_[2:]) > numbers[int(index)]
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_of_an_environment_the_next_sample_starts_with_new_episodes(workers):
    class_of = partial(FailingEnv, chance=0.05, ways=("raise",))
    config = small_config(partial(Recovering, class_of), disable_env_checking=True)
    runner = config.env_runners(num_envs_per_env_runner=3, num_env_workers=workers).build_algo().env_runner
    failures = 0
    for _ in range(4 if workers else 12):
        try:
            episodes = runner.sample(num_timesteps=30)
        except EnvError:
            failures += 1
            fresh = True
            continue
        assert env_steps(episodes) == 30
        if failures and fresh:
            assert sum(started(e) == 0 for e in episodes) >= 3
        fresh = False
    assert failures
    runner.close()


class Recovering(LifeEnv):
    """An environment that another reset makes whole again."""

    def __init__(self, make):
        self.make = make
        super().__init__(max_steps=12)

    def reset(self, seed=None, options=None):
        self.env = self.make()
        given = self.env.reset(seed, options)
        self.agents = self.env.agents
        return given

    def step(self, actions):
        given = self.env.step(actions)
        self.agents = self.env.agents
        return given


# What is not asked for.


def test_a_global_state_that_cannot_be_asked_for_does_not_matter():
    class NoState(LifeEnv):
        def state(self):
            raise NotImplementedError("no global state")

    algo = small_config(lambda: NoState(max_steps=4)).build_algo()
    assert algo.train()["env_runners"]["num_episodes"] > 0


def test_infos_reach_the_learner_pipeline_also_those_of_chunks():
    seen = []

    class Reads(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for own in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                seen.append((own.multi_agent_episode_id, own.t_started, [info["n"] for info in own.get_infos()]))
            return batch

    script = [
        Step({"a": t}, {"a": 1} if t else {}, truncated=("a",) if t == 7 else (), infos={"a": {"n": 10 * t}})
        for t in range(8)
    ]
    config = small_config(lambda: ScriptEnv([script])).env_runners(rollout_fragment_length=5)
    algo = config.learners(learner_connector=lambda *args: Reads()).build_algo()
    algo.train()
    assert [infos for _, _, infos in sorted(seen)] == [  # the last one again: of the step that the learner adds
        [0, 10, 20, 30, 40, 50, 50],
        [50, 60, 70, 70],
        [0, 10, 20, 30, 30],
    ]


@pytest.mark.parametrize("kind", VECTORS)
def test_steps_in_which_copies_rest_are_not_counted(kind):
    runner = runner_of(kind)
    for explore in (True, False):
        episodes = runner.sample(num_timesteps=60, explore=explore)
        steps = runner.take_counts()
        assert steps["num_env_steps_sampled"] == env_steps(episodes)
        assert steps["num_module_steps_sampled"] == {"default_policy": env_steps(episodes)}
