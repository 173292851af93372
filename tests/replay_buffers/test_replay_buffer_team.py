"""The rows of all agents of an env step are drawn together, and are those that were played."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, MultiAgentEpisode, PPOConfig
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.errors import EpisodeError
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer, TeamReplayBuffer
from marl_connectors.replay_buffers.ring import ACTED, ALIVE, TERMINATED, TRUNCATED

FRESH = fresh_seeds(60)
POLICIES = {"shared": "shared", "independent": "independent", "two": "a=x,*=y"}


def random_run(seed):
    """A run of a random environment, its agents by module, and its random number generator."""
    rng = np.random.default_rng(seed)
    kind = RandomAEC if rng.random() < 0.3 else LifeEnv
    env_config = {"join": rng.choice([0.0, 0.3]), "die": rng.choice([0.0, 0.2]), "fixed": bool(rng.random() < 0.5)}
    config = small_config(kind, env_config=env_config | {"max_steps": int(rng.integers(2, 12))})
    config.environment(disable_env_checking=True).debugging(seed=seed)
    config.multi_agent(policies=str(rng.choice(list(POLICIES.values()))))
    algo = config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4))).build_algo()
    agents = {}
    for agent in ("a", "b", "c", "d"):
        agents.setdefault(config.policy_mapping_fn(agent, None), []).append(agent)
    return algo, agents, rng


class Log:
    """Who did what at which env step, in dicts: a slow and obvious account."""

    def __init__(self):
        self.acted = {}  # (episode, t) -> agent -> (observation, action, reward, ended)
        self.newest = {}  # episode -> (t, agent -> observation of those that are alive)

    def add(self, episodes):
        for whole in episodes:
            if whole.env_t == whole.env_t_started:
                continue
            alive = {}
            for episode in whole.all_agent_episodes():
                times = [int(t) for t in episode.storage.column(Columns.T)][episode.storage.lookback :]
                for i in range(len(episode)):
                    ends = (episode.is_terminated, episode.is_truncated) if i == len(episode) - 1 else (False, False)
                    step = episode.get_observations(i), episode.get_actions(i), episode.get_rewards(i), ends
                    self.acted.setdefault((whole.id_, times[i]), {})[episode.agent_id] = step
                is_whole_over = whole.is_terminated or whole.is_truncated
                is_stopped = is_whole_over and episode.is_truncated and times[-1] == whole.env_t
                if not episode.is_done or is_stopped:
                    alive[episode.agent_id] = times[-1], episode.get_observations(-1)
            self.newest[whole.id_] = whole.env_t, alive

    def where(self):
        """Observation, as bytes, to its episode and env step."""
        return {np.asarray(step[0]).tobytes(): key for key, steps in self.acted.items() for step in steps.values()}

    def there(self, episode, t, agent):
        """The observation of an agent that is alive at an env step, and what it did there; None if it is not alive."""
        acted = self.acted.get((episode, t), {})
        if agent in acted:
            return acted[agent]
        at, observation = self.newest[episode][1].get(agent, (None, None))
        return (observation, None, None, (False, False)) if at == t else None


def filled(seed, capacity):
    algo, agents, rng = random_run(seed)
    buffer, log = TeamReplayBuffer(capacity, agents=agents, seed=seed), Log()
    times = int(rng.integers(1, 14))
    while times > 0 or not log.acted:  # in an AEC environment, no agent has a complete step after the first env step
        times -= 1
        episodes = algo.env_runner.sample(num_timesteps=int(rng.integers(1, 40)))
        log.add(episodes)
        buffer.add(episodes)
    return algo, buffer, log, rng


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(12), *FRESH])
def test_all_agents_of_an_env_step_are_drawn_together(seed):
    algo, buffer, log, rng = filled(seed, capacity=[10_000, 25][seed % 2])
    length, ahead, burn_in, lookback = (int(n) for n in rng.integers([1, 1, 0, 0], [5, 4, 3, 2]))
    sample = buffer.sample(40, batch_length_T=length, n_step=ahead, burn_in_len=burn_in, lookback=lookback)
    known, window = log.where(), sample.window
    agents = [(m, k, agent) for m, own in buffer.agents.items() for k, agent in enumerate(own)]
    times = np.asarray(buffer._rings["all agents"].columns[Columns.T])[window.sources]
    begin = window.begin
    for item in range(40):
        acting = (
            known[sample.observations(m)[item, begin, k].tobytes()][0]
            for m, k, _ in agents
            if m in sample.flags and sample.flags[m][item, begin, k] & ACTED
        )
        episode = next(acting, None)
        assert sample.counted[item, begin] == (episode is not None)
        if episode is None:  # whoever acted there still waits for its next observation
            continue
        for w in np.flatnonzero(window.same[item]):
            t, rewards = int(times[item, w]), 0.0
            for m, k, agent in agents:
                there = log.there(episode, t, agent)
                flags = int(sample.flags[m][item, w, k]) if m in sample.flags else 0
                assert bool(flags & ALIVE) is (there is not None), (item, w, agent)
                if there is None:
                    continue
                observation, _, reward, ends = there
                np.testing.assert_array_equal(sample.observations(m)[item, w, k], observation)
                assert bool(flags & ACTED) is (reward is not None)
                assert (bool(flags & TERMINATED), bool(flags & TRUNCATED)) == ends
                rewards += reward or 0.0
            for m, segments in sample.segments.items():
                found = segments.rollout.columns[Columns.REWARDS].reshape(40, -1, len(buffer.agents[m]))[item, w]
                np.testing.assert_allclose(found, rewards / 4)
        kept = times[item][window.same[item]]
        before = int(window.same[item, :begin].sum())
        assert (np.diff(kept) == 1).all() and kept[before] == times[item, begin]
        assert window.same[item, begin:].all() or (episode, int(kept[-1])) not in log.acted  # none is missing
    algo.stop()


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", [*range(8), *FRESH])
def test_the_rows_of_a_module_are_runs_of_its_agents_lives(seed):
    algo, buffer, log, rng = filled(seed, capacity=10_000)
    lookback = int(rng.integers(2))
    sample = buffer.sample(30, batch_length_T=4, n_step=2, burn_in_len=1, lookback=lookback)
    known = log.where()
    for module_id, segments in sample.segments.items():
        lanes = len(buffer.agents[module_id])
        flags = sample.flags[module_id].reshape(-1)
        wanted = flags.copy().reshape(30, -1, lanes)
        wanted[:, :lookback] = 0
        assert sorted(segments.rows.tolist()) == np.flatnonzero(wanted.reshape(-1)).tolist()
        assert (segments.rows == segments.env_steps * lanes + segments.slots).all()
        assert ((flags[segments.rows] & ACTED > 0) == segments.acted).all()
        bounds = np.cumsum(segments.counts)
        for i, (end, count) in enumerate(zip(bounds, segments.counts, strict=True)):
            rows = segments.rows[end - count : end]
            assert (np.diff(rows) == lanes).all()
            ended = flags[rows] & (TERMINATED | TRUNCATED) > 0
            assert not ended[:-2].any() and (not ended[:-1].any() or not flags[rows[-1]] & ACTED)
            before = rows[0] - lanes
            if segments.first[i] < segments.start[i]:
                assert segments.first[i] == before and flags[before] & ACTED
                assert not flags[before] & (TERMINATED | TRUNCATED)
            observations = segments.rollout.columns[Columns.OBS]
            acted = [r for r in rows if flags[r] & ACTED]
            assert len({known[observations[r].tobytes()][0] for r in acted}) <= 1
            np.testing.assert_array_equal(segments[i].get_observations(0), observations[rows[0]])
            assert len(segments[i]) == len(acted)
            ends = int(flags[acted[-1]]) if acted else 0
            assert (segments[i].is_terminated, segments[i].is_truncated) == (
                ends & TERMINATED > 0,
                ends & TRUNCATED > 0,
            )
            first = sample.window.sources.reshape(-1)[segments.env_steps[end - count]]
            assert segments[i].id_ == f"{module_id}/{first}"
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_all_env_steps_are_kept_while_there_is_room(seed):
    algo, buffer, log, _ = filled(seed, capacity=10_000)
    assert len(buffer) == buffer.get_added_timesteps() >= len(log.acted)
    sample = buffer.every_step()
    assert sample.num_steps == len(log.acted)
    assert sum(s.num_steps for s in sample.segments.values()) >= sum(map(len, log.acted.values()))
    algo.stop()


def scripted(*script, possible_agents=("a", "b")):
    make_env = functools.partial(ScriptEnv, [list(script)], possible_agents=possible_agents)
    config = (
        PPOConfig().environment(lambda config: make_env(), disable_env_checking=True).multi_agent(policies="shared")
    )
    return config.env_runners(num_env_workers=0).build_algo()


def test_an_agent_that_was_stopped_alone_is_not_there_any_more_but_at_the_end_all_stopped_agents_are():
    algo = scripted(
        Step({"a": 1, "b": 2}),
        Step({"a": 3, "b": 4}, {"a": 1.0, "b": 10.0}, truncated=("b",)),
        Step({"a": 5}, {"a": 2.0}, truncated=("a",)),
    )
    buffer = TeamReplayBuffer(100, agents={"default_policy": ["a", "b"]})
    for _ in range(2):
        buffer.add(algo.env_runner.sample(num_timesteps=1))
    flags = buffer.every_step().flags["default_policy"]
    last_of_a = ACTED | ALIVE | TRUNCATED
    assert flags.tolist() == [
        [[ACTED | ALIVE, last_of_a], [last_of_a, 0]],
        [[last_of_a, 0], [ALIVE, 0]],
    ]
    rewards = [s.rollout.columns[Columns.REWARDS] for s in buffer.every_step().segments.values()]
    assert rewards[0].tolist() == [5.5, 5.5, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    algo.stop()


def test_a_restored_buffer_draws_what_the_first_one_draws(tmp_path):
    algo, first, _, _ = filled(3, capacity=30)
    first.sample(2)
    save_state(tmp_path / "buffer", first.get_state())
    second = TeamReplayBuffer(30, agents=first.agents)
    second.set_state(load_state(tmp_path / "buffer"))
    episodes = algo.env_runner.sample(num_timesteps=20)
    one, other = (b.sample(20, batch_length_T=3) for b in (first, second) if b.add(episodes) is None)
    np.testing.assert_array_equal(one.window.sources, other.window.sources)
    for module_id, own in one.segments.items():
        for name, column in own.rollout.columns.items():
            np.testing.assert_array_equal(column, other.segments[module_id].rollout.columns[name])
    algo.stop()


def test_wrong_use_is_named():
    algo, _, _ = random_run(1)
    episodes = algo.env_runner.sample(num_timesteps=10)
    module_ids = list(algo.rl_module)
    with pytest.raises(EpisodeError, match="possible_agents"):
        TeamReplayBuffer(10, agents={m: [] for m in module_ids}).add(episodes)
    with pytest.raises(EpisodeError, match="'other'"):
        TeamReplayBuffer(10, agents={"other": ["a", "b", "c"]}).add(episodes)
    of_one_agent = PPOConfig().environment("CartPole-v1").build_algo().env_runner.sample(num_timesteps=3)
    with pytest.raises(EpisodeError, match="MultiAgentEpisodes"):
        TeamReplayBuffer(10, agents={}).add(of_one_agent)
    with pytest.raises(EpisodeError, match="draw"):
        TeamReplayBuffer(10, agents={}).sample(3)
    algo.stop()


@pytest.mark.parametrize("at_once", [False, True])
def test_episodes_that_never_continue_need_no_more_rows_than_the_capacity(at_once):
    buffer, episodes = TeamReplayBuffer(200, agents={"pi": ["a", "b"]}), []
    for i in range(300):
        episode = MultiAgentEpisode(f"e{i}", agent_to_module_mapping_fn=lambda agent, episode: "pi")
        episode.add_env_reset(observations={a: np.array([i, 0], np.float32) for a in "ab"})
        for t in range(1, 4):
            seen = {a: np.array([i, t], np.float32) for a in "ab"}
            episode.add_env_step(seen, dict.fromkeys("ab", 0), dict.fromkeys("ab", 1.0))
        episodes.append(episode)
    for added in [episodes] if at_once else [[episode] for episode in episodes]:
        buffer.add(added)
    ring = buffer._rings["all agents"]
    assert ring.num_lanes * ring.num_rows <= 200 and len(buffer) >= 100
    sample = buffer.sample(50)
    seen = sample.observations("pi")
    assert seen.shape == (50, 2, 2, 2) and sample.window.same.all()
    np.testing.assert_array_equal(seen[:, 1], seen[:, 0] + [0, 1])


def test_the_reward_of_a_team_is_the_mean_of_all_agents_also_of_those_that_have_not_come_yet():
    algo = scripted(Step({"a": 1, "b": 2}), Step({"a": 3, "b": 4}, {"a": 1.0, "b": 11.0}, terminated=("a", "b")))
    buffer = TeamReplayBuffer(100, agents={"default_policy": ["a", "b"], "late": ["c"]})
    buffer.add(algo.env_runner.sample(num_episodes=1))
    sample = buffer.sample(1, module_ids=["default_policy", "late"])
    assert sample.segments["default_policy"].rollout.columns[Columns.REWARDS][0] == (1 + 11) / 3
    algo.stop()


@pytest.mark.parametrize("cls", [TeamReplayBuffer, JointReplayBuffer])
def test_a_module_may_have_more_agents_than_a_byte_can_count(cls):
    agents = [f"a{i}" for i in range(300)]
    episode = MultiAgentEpisode("e", agent_to_module_mapping_fn=lambda agent, episode: "pi")
    episode.add_env_reset(observations={a: np.array([i, 0], np.float32) for i, a in enumerate(agents)})
    seen = {a: np.array([i, 1], np.float32) for i, a in enumerate(agents)}
    episode.add_env_step(seen, dict.fromkeys(agents, 0), dict.fromkeys(agents, 1.0), terminateds={"__all__": True})
    buffer = cls(100, agents={"pi": agents})
    buffer.add(episode)
    segments = buffer.every_step().segments["pi"]
    observations = segments.rollout.columns[Columns.OBS]
    for rows, t in ((segments.start, 0), (segments.stop, 1)):
        np.testing.assert_array_equal(observations[rows], [[i, t] for i in range(300)])
    assert segments.terminated.all()
