"""What a replay buffer holds depends neither on where samples end nor on whether they were written and read again."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, EpisodeReader, EpisodeReplayBuffer, EpisodeWriter
from marl_connectors.replay_buffers.replay_buffer import TeamReplayBuffer
from marl_connectors.replay_buffers.ring import ACTED, AGENT_FLAGS

AGENTS = "abc"
LENGTH = 30


def make_of(rng):
    """A random environment, in which agents act at once or in turns."""
    settings = {"agents": AGENTS, "join": rng.choice([0, 0.4]), "die": rng.choice([0, 0.2])}
    settings |= {"fixed": rng.random() < 0.5, "max_steps": int(rng.integers(4, 30))}
    if rng.random() < 0.4:
        return lambda: LifeEnv(**settings, pays_absent=0.4)
    settings |= {"back": rng.choice([0, 0.5]), "pays_newcomers": rng.random() < 0.8}
    settings |= {"clears": rng.random() < 0.5, "dead_next": rng.random() < 0.5}
    return lambda: RandomAEC(**settings)


def sampled(make, seed, num_envs, policies, lengths):
    """The samples of a new run, which acts as every run with this seed does."""
    config = small_config(make, disable_env_checking=True).multi_agent(policies=policies).debugging(seed=seed)
    with config.env_runners(num_envs_per_env_runner=num_envs).build_algo() as algo:
        return [algo.env_runner.sample(num_timesteps=int(n) * num_envs) for n in lengths]


def steps_of(cls, samples, policies):
    """Each step in a buffer with these samples: observation to action, reward, the next ones, and how it ended."""
    agents = {"default_policy": AGENTS} if policies == "shared" else {a: [a] for a in AGENTS}
    buffer = cls(5000, **{"agents": agents} if cls is TeamReplayBuffer else {})
    for sample in samples:
        buffer.add(sample)
    return team_steps(buffer) if cls is TeamReplayBuffer else agent_steps(buffer)


def agent_steps(buffer):
    found = {}
    for episode in buffer.every_step(n_step=3):
        observations = [tuple(o) for o in np.asarray(episode.get_observations()).tolist()]
        steps = zip(episode.get_actions().tolist(), episode.get_rewards().tolist(), strict=True)
        found[observations[0]] = observations[1:], list(steps), episode.is_terminated, episode.is_truncated
    return found


def team_steps(buffer):
    (ring,) = buffer._rings.values()
    columns, found = ring.columns, {}
    for module_id, flags in columns[AGENT_FLAGS].items():
        for at in zip(*np.nonzero(flags), strict=True):
            step = [columns[name][module_id][at] for name in (Columns.ACTIONS, Columns.REWARDS)]
            before = tuple(columns[Columns.OBS][module_id][at].tolist())
            found[before] = flags[at], columns[Columns.T][at[0]], *(step if flags[at] & ACTED else ())
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 10, 14, *fresh_seeds(60)])
def test_a_buffer_holds_the_same_steps_wherever_samples_end(seed, tmp_path):
    rng = np.random.default_rng(seed)
    make, num_envs, policies = make_of(rng), int(rng.integers(1, 3)), str(rng.choice(["shared", "independent"]))
    lengths = rng.integers(1, 1 + rng.choice([1, 6]), LENGTH)
    whole = sampled(make, seed, num_envs, policies, [lengths.sum()])
    parts = sampled(make, seed, num_envs, policies, lengths)
    with EpisodeWriter(tmp_path) as writer:
        for sample in parts:
            writer.write(sample)
    read = [EpisodeReader(tmp_path, order="in_order", join_chunks=joined).sample() for joined in (False, True)]
    for cls in (EpisodeReplayBuffer, TeamReplayBuffer):
        expected = steps_of(cls, whole, policies)
        assert len(expected) >= 20
        for samples in (parts, [[e for own in parts for e in own]], [read[0]], [read[1]]):
            assert steps_of(cls, samples, policies) == expected
