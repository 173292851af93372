import numpy as np
import pytest

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, PPOConfig, SingleAgentEpisode
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.errors import ConfigError, EpisodeError
from marl_connectors.replay_buffers.replay_buffer import EpisodeReplayBuffer
from marl_connectors.replay_buffers.ring import ACTED, Ring


def random_run(seed):
    """An env runner of a random environment and its random number generator."""
    rng = np.random.default_rng(seed)
    kind = LifeEnv if rng.random() < 0.5 else RandomAEC
    env_config = {"join": rng.choice([0.0, 0.3]), "die": rng.choice([0.0, 0.2]), "fixed": bool(rng.random() < 0.5)}
    env_config |= {"max_steps": int(rng.integers(2, 12))}
    config = small_config(kind, env_config=env_config, disable_env_checking=True)
    config.multi_agent(policies=str(rng.choice(["shared", "independent"])))
    config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4)))
    config.debugging(seed=seed)
    return config.build_algo(), rng


def agent_episodes(episodes):
    for episode in episodes:
        yield from [episode] if isinstance(episode, SingleAgentEpisode) else episode.all_agent_episodes()


class Log:
    """All steps of agents' episodes, in lists."""

    def __init__(self):
        self.steps = {}
        self.last = {}

    def add(self, episodes):
        for episode in agent_episodes(episodes):
            own = self.steps.setdefault((episode.module_id, episode.id_), [])
            n = len(episode)
            observations = [np.asarray(episode.get_observations(i)) for i in range(n + 1)]
            for i in range(n):
                flags = (episode.is_terminated, episode.is_truncated) if i == n - 1 else (False, False)
                own.append(
                    (observations[i], episode.get_actions(i), episode.get_rewards(i), observations[i + 1], *flags)
                )

    def of_module(self, module_id):
        """Observation, as bytes, to the episode and the number of its step."""
        return {
            step[0].tobytes(): (steps, i)
            for (own, _), steps in self.steps.items()
            if own == module_id
            for i, step in enumerate(steps)
        }


def check_step(step, row):
    for expected, found in zip(step, row, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def rows_of(segments):
    """The single steps that were drawn, as ``Log`` keeps them."""
    columns = segments.rollout.columns
    for i, (here, stop) in enumerate(zip(segments.start, segments.stop, strict=True)):
        assert stop == here + 1
        obs, action, reward = (columns[name][here] for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS))
        yield obs, action, reward, columns[Columns.OBS][stop], segments.terminated[i], segments.truncated[i]


SEEDS = [*range(6), *fresh_seeds(60)]


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_drawn_was_played(seed):
    algo, rng = random_run(seed)
    buffer, log = EpisodeReplayBuffer(capacity=int(rng.choice([30, 200, 10_000])), seed=seed), Log()
    for _ in range(int(rng.integers(1, 12))):
        episodes = algo.env_runner.sample(num_timesteps=int(rng.integers(1, 40)))
        log.add(episodes)
        buffer.add(episodes)
    assert buffer.get_added_timesteps() == sum(map(len, log.steps.values()))
    n_step, lookback = int(rng.integers(1, 4)), int(rng.integers(0, 3))
    sample = buffer.sample(64, n_step=n_step, lookback=lookback)
    assert sample.num_steps == 64 * len(buffer.module_ids)
    for module_id, segments in sample.segments.items():
        known = log.of_module(module_id)
        observations = segments.rollout.columns[Columns.OBS]
        for i, row in enumerate(rows_of(segments)):
            steps, number = known[row[0].tobytes()]
            check_step(steps[number], row)
            ahead = segments.last[i] - segments.start[i]
            assert ahead == min(n_step, len(steps) - number)
            for k in range(1, ahead):
                np.testing.assert_array_equal(observations[segments.start[i] + k], steps[number + k][0])
            before = segments.start[i] - segments.first[i]
            assert before <= min(lookback, number)
            for k in range(1, before + 1):
                np.testing.assert_array_equal(observations[segments.start[i] - k], steps[number - k][0])
    algo.stop()


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_was_played_is_kept_while_there_is_room(seed):
    algo, rng = random_run(seed)
    buffer, log = EpisodeReplayBuffer(capacity=20_000), Log()
    for _ in range(6):
        episodes = algo.env_runner.sample(num_timesteps=int(rng.integers(1, 40)))
        log.add(episodes)
        buffer.add(episodes)
    assert len(buffer) == sum(map(len, log.steps.values()))
    for module_id in buffer.module_ids:
        ring = buffer._rings[module_id]
        kept = {ring.columns[Columns.OBS][p].tobytes() for p in np.flatnonzero(ring.flags & ACTED)}
        assert kept == log.of_module(module_id).keys()
    algo.stop()


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_sequences_are_consecutive_steps_of_one_episode(seed):
    algo, rng = random_run(seed)
    buffer, log = EpisodeReplayBuffer(capacity=int(rng.choice([60, 10_000])), seed=seed), Log()
    for _ in range(8):
        episodes = algo.env_runner.sample(num_timesteps=20)
        log.add(episodes)
        buffer.add(episodes)
    length = int(rng.integers(2, 6))
    for module_id, segments in buffer.sample(20, batch_length_T=length).segments.items():
        known = log.of_module(module_id)
        for episode in segments:
            steps, number = known[np.asarray(episode.get_observations(0)).tobytes()]
            assert len(episode) <= min(length, len(steps) - number)
            is_whole = len(episode) == min(length, len(steps) - number)
            assert is_whole or len(buffer._rings[module_id].flags) < 10_000
            for i in range(len(episode)):
                check_step(
                    steps[number + i][:3], (episode.get_observations(i), episode.get_actions(i), episode.get_rewards(i))
                )
            ends = steps[number + len(episode) - 1][4:]
            assert (episode.is_terminated, episode.is_truncated) == ends
    algo.stop()


def cart_pole_algo(**training):
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=4).debugging(seed=3)
    return config.training(train_batch_size_per_learner=128, minibatch_size=64, **training).build_algo()


def test_the_oldest_steps_give_way():
    algo = cart_pole_algo()
    buffer, log = EpisodeReplayBuffer(capacity=400), Log()
    for _ in range(30):
        episodes = algo.env_runner.sample(num_timesteps=64)
        log.add(episodes)
        buffer.add(episodes)
    ring = buffer._rings["default_policy"]
    assert len(ring.flags) <= 400 and len(buffer) > 300
    newest = {step[0].tobytes() for steps in log.steps.values() for step in steps[-1:]}
    kept = {ring.columns[Columns.OBS][p].tobytes() for p in np.flatnonzero(ring.flags & ACTED)}
    last = {e.get_observations(-2).tobytes() for e in episodes if len(e)}
    assert last <= kept and not newest <= kept


def test_steps_are_drawn_with_equal_probabilities():
    algo = cart_pole_algo()
    buffer = EpisodeReplayBuffer(capacity=300)
    for _ in range(8):
        buffer.add(algo.env_runner.sample(num_timesteps=64))
    ring = buffer._rings["default_policy"]
    counts = np.zeros(len(ring.flags))
    for _ in range(100):
        np.add.at(counts, buffer.sample(1000).segments["default_policy"].positions, 1)
    steps = (ring.flags & ACTED) > 0
    assert not counts[~steps].any()
    expected = 100_000 / steps.sum()
    chi2 = ((counts[steps] - expected) ** 2 / expected).sum()
    assert abs(chi2 - steps.sum()) < 6 * np.sqrt(2 * steps.sum())


@pytest.mark.parametrize("capacity", [300, 100_000])
def test_a_restored_buffer_draws_what_the_first_one_draws(capacity, tmp_path):
    algo = cart_pole_algo()
    first = EpisodeReplayBuffer(capacity, seed=5)
    for _ in range(6):
        first.add(algo.env_runner.sample(num_timesteps=64))
    first.sample(3)
    save_state(tmp_path / "buffer", first.get_state())
    assert sum(path.stat().st_size for path in (tmp_path / "buffer").iterdir()) < 100_000  # only what is in use
    second = EpisodeReplayBuffer(capacity)
    second.set_state(load_state(tmp_path / "buffer"))
    assert second.nbytes == first.nbytes
    episodes = algo.env_runner.sample(num_timesteps=64)
    for buffer in (first, second):
        buffer.add(episodes)
    one, other = (b.sample(50, n_step=3).segments["default_policy"] for b in (first, second))
    np.testing.assert_array_equal(one.positions, other.positions)
    for name, column in one.rollout.columns.items():
        np.testing.assert_array_equal(column, other.rollout.columns[name])


@pytest.mark.few(1)
@pytest.mark.parametrize("capacity", [40, 300, 5000])
def test_a_buffer_of_another_capacity_keeps_the_newest_rows(capacity):
    algo = cart_pole_algo()
    first, second = EpisodeReplayBuffer(300), EpisodeReplayBuffer(capacity)
    for _ in range(9):
        first.add(algo.env_runner.sample(num_timesteps=64))
    before, saved = rows_by_lane(first), first.get_state()
    second.set_state(saved)
    ring = second._rings["default_policy"]
    assert ring.num_rows == capacity // ring.num_lanes
    for lane, rows in rows_by_lane(second).items():
        assert rows == before[lane][-len(rows) :] and len(rows) == min(ring.num_rows, len(before[lane]))
    assert len(second) == int((ring.flags & ACTED > 0).sum())
    for _ in range(3):
        second.add(algo.env_runner.sample(num_timesteps=64))
    assert len(second.sample(20).segments["default_policy"]) == 20
    assert second.nbytes < 400 * capacity


def rows_by_lane(buffer):
    """The bytes of the observations of each lane, from the oldest to the newest."""
    ring = buffer._rings["default_policy"]
    found = {}
    for lane in range(ring.num_lanes):
        written, kept = int(ring.written[lane]), int(ring.kept[lane])
        places = np.arange(written - kept, written) % ring.num_rows
        found[lane] = [ring.columns["obs"][place * ring.num_lanes + lane].tobytes() for place in places]
    return found


def test_the_same_batch_comes_from_a_sample_and_from_its_episodes():
    algo = cart_pole_algo()
    buffer = EpisodeReplayBuffer(capacity=1000)
    for _ in range(4):
        buffer.add(algo.env_runner.sample(num_timesteps=64))
    sample = buffer.sample(32)
    (group,) = algo.learner.make_batch(list(sample)).groups
    (direct,) = algo.learner.make_batch(sample).groups
    acted = group.rows.acted if group.rows.acted is not None else np.ones(len(group.rows), bool)
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS):
        np.testing.assert_array_equal(np.asarray(direct[name]), np.asarray(group[name])[acted], err_msg=name)


def test_memory_is_near_that_of_the_arrays():
    ring = Ring("m", 1000)
    assert ring.nbytes == 0
    algo = cart_pole_algo()
    buffer = EpisodeReplayBuffer(capacity=50_000)
    buffer.add(algo.env_runner.sample(num_timesteps=256))
    # obs 16, new_obs 16, action 8, reward 8 and two flags: what a plain buffer of transitions holds
    assert buffer.nbytes <= 1.2 * 50_000 * (16 + 16 + 8 + 8 + 2)


def test_episodes_whose_rest_never_comes_do_not_take_lanes_for_ever():
    algo = cart_pole_algo()
    buffer = EpisodeReplayBuffer(capacity=1000)
    for _ in range(20):
        buffer.add(algo.env_runner.sample(num_timesteps=16, force_reset=True))
    assert buffer._rings["default_policy"].num_lanes <= 5


def test_episodes_of_ones_own_and_those_of_env_runners_go_together():
    algo = cart_pole_algo()
    buffer = EpisodeReplayBuffer(capacity=1000)
    own = SingleAgentEpisode(
        observations=[np.zeros(4, np.float32)] * 4,
        actions=[0, 1, 0],
        rewards=[1.0] * 3,
        terminated=True,
        len_lookback_buffer=0,
    )
    buffer.add([own])
    buffer.add(algo.env_runner.sample(num_timesteps=16))
    buffer.add([own.to_numpy()])
    assert len(buffer) == 3 + 16 + 3


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match="capacity"):
        EpisodeReplayBuffer(capacity=0)
    buffer = EpisodeReplayBuffer(capacity=100)
    with pytest.raises(EpisodeError, match="draw"):
        buffer.sample(3)
    algo = cart_pole_algo()
    buffer.add(algo.env_runner.sample(num_timesteps=16))
    with pytest.raises(EpisodeError, match=r"(?s)'pi'.*default_policy"):
        buffer.sample(3, module_ids=["pi"])
    other = PPOConfig().environment("Acrobot-v1").build_algo()
    with pytest.raises(EpisodeError, match=r"(?s)'obs'.*\[6\].*float32.*\[4\].*float32"):
        buffer.add(other.env_runner.sample(num_timesteps=16))
    assert len(buffer) == buffer.get_added_timesteps() == 16
    assert "16 steps" in repr(buffer)


def chunk_of(number, begin, num_steps, is_done=False):
    """A chunk of an episode with an id of its own, whose observations name the episode and the step."""
    observations = [np.array([number, begin + t], np.float32) for t in range(num_steps + 1)]
    return SingleAgentEpisode(
        id_=f"e{number}",
        observations=observations,
        actions=[0] * num_steps,
        rewards=[float(begin + t) for t in range(num_steps)],
        t_started=begin,
        len_lookback_buffer=0,
        terminated=is_done,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("seed", [*range(3), *fresh_seeds(60)])
def test_episodes_that_never_continue_need_no_more_rows_than_the_capacity(seed, at_once):
    rng = np.random.default_rng(seed)
    capacity, longest = int(rng.integers(200, 1500)), int(rng.integers(1, 12))
    buffer = EpisodeReplayBuffer(capacity)
    chunks = [chunk_of(i, 0, int(rng.integers(1, longest + 1)), bool(rng.random() < 0.2)) for i in range(600)]
    for added in [chunks] if at_once else [[chunk] for chunk in chunks]:
        buffer.add(added)
    ring = buffer._rings["default_policy"]
    assert ring.num_lanes * ring.num_rows <= capacity
    kept = ring.columns[Columns.OBS][(ring.flags & ACTED) > 0]
    assert len(kept) == len(buffer)
    assert ring.kept.sum() >= min(0.5 * capacity, sum(len(chunk) + 1 for chunk in chunks))
    newest = kept[kept[:, 0] >= 595]
    assert len(newest) >= 0.7 * sum(map(len, chunks[595:]))
    segments = buffer.sample(100).segments["default_policy"]
    for row in rows_of(segments):
        np.testing.assert_array_equal(row[3], row[0] + [0, 1])


@pytest.mark.parametrize("seed", [*range(3), *fresh_seeds(30)])
def test_episodes_that_continue_stay_connected_beside_others_that_never_do(seed):
    rng = np.random.default_rng(seed)
    buffer, number = EpisodeReplayBuffer(400), 0
    for t in range(0, 200, 2):
        others = [chunk_of(10 + (number := number + 1), 0, 3) for _ in range(int(rng.integers(3)))]
        buffer.add([chunk_of(0, t, 2), *others, chunk_of(1, t, 2)])
        state = buffer.get_state()
        buffer = EpisodeReplayBuffer(400)
        buffer.set_state(state)
    ring = buffer._rings["default_policy"]
    assert ring.num_lanes * ring.num_rows <= 400
    numbers = ring.columns[Columns.OBS][:, 0]
    for own in (0, 1):
        assert len(np.unique(ring.numbers[(numbers == own) & (ring.columns[Columns.T] > 0)])) == 1


def test_each_module_draws_places_of_its_own():
    buffer = EpisodeReplayBuffer(100)
    for module_id in ("red", "blue"):
        steps = {"observations": np.zeros((51, 2), np.float32), "actions": [0] * 50, "rewards": [0.0] * 50}
        buffer.add([SingleAgentEpisode(id_=module_id, module_id=module_id, len_lookback_buffer=0, **steps)])
    red, blue = (own.positions.tolist() for own in buffer.sample(20).segments.values())
    assert red != blue
