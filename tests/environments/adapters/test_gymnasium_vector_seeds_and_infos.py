"""Gymnasium VectorEnvs: how they are seeded, what they say of episodes, and how much is sampled where copies rest."""

from __future__ import annotations

import pytest
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from helpers.envs.gymnasium_envs import AutoresetMode, Counting, vector_maker
from helpers.envs.scripted_envs import small_config
from marl_connectors import EnvError

pytestmark = pytest.mark.skipif(AutoresetMode is None, reason="Gymnasium 1.0 has no autoreset modes")


def configured(env):
    return small_config(env).env_runners(num_envs_per_env_runner=2, rollout_fragment_length=5)


class SeededOnce(Counting):
    """Is reset by a mask, but begins all copies anew; ``fails`` says in which of its resets it fails."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED} if AutoresetMode else {}
    takes, fails = "a number", None

    def __init__(self, num_envs=1):
        super().__init__(num_envs)
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        if len(self.seeds) == self.fails:
            raise TypeError("no licence")
        number = seed if self.takes == "a number" else next(own for own in seed if own is not None)
        return super().reset(seed=number)


@pytest.mark.parametrize("takes", ["a number", "a list"])
def test_an_error_in_a_later_reset_does_not_change_how_a_vector_env_is_seeded(takes):
    cls = type("Fails", (SeededOnce,), {"takes": takes, "fails": 4})
    config = configured(lambda num_envs=1: cls(num_envs))
    runner = config.environment(disable_env_checking=True).build_algo().env_runner
    with pytest.raises(EnvError, match="no licence"):
        runner.sample(num_timesteps=60)
    kinds = [type(seed) for seed in runner.vector_env.env.env.seeds]
    assert kinds == ([list, int, int, int] if takes == "a number" else [list] * 4)


def test_a_first_reset_that_fails_for_another_reason_is_not_tried_again():
    tried = []

    class Broken(SeededOnce):
        def reset(self, *, seed=None, options=None):
            tried.append(seed)
            raise RuntimeError("no licence")

    config = configured(lambda num_envs=1: Broken(num_envs)).environment(disable_env_checking=True)
    runner = config.build_algo().env_runner
    with pytest.raises(EnvError, match="no licence"):
        runner.sample(num_timesteps=2)
    assert len(tried) == 1


@pytest.mark.parametrize("kind", ["SAME_STEP", "NEXT_STEP"])
def test_episode_statistics_are_in_the_last_info_of_their_episode(kind):
    def make(num_envs=1):
        return RecordEpisodeStatistics(vector_maker(kind)(num_envs, infos=True))

    episodes = configured(make).build_algo().env_runner.sample(num_timesteps=90)
    done = [episode for episode in episodes if episode.is_done and episode.t_started == 0]
    assert len(done) > 5
    for episode in done:
        *earlier, last = episode.get_infos()
        assert last["episode"]["l"] == len(episode)
        assert last["episode"]["r"] == pytest.approx(episode.get_return())
        assert not any("episode" in info for info in earlier)


def test_a_sample_ends_with_the_step_that_reaches_its_number():
    runner = (
        configured(vector_maker("NEXT_STEP wrapped")).env_runners(num_envs_per_env_runner=4).build_algo().env_runner
    )
    wanted = [1, 4, 5, 97, 30, 2, 0, 41, 8]
    found = [sum(map(len, runner.sample(num_timesteps=number))) for number in wanted]
    assert all(0 <= given - number < 4 for given, number in zip(found, wanted, strict=True)), found
    assert any(given % 4 for given in found), "no copy has rested"
