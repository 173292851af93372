"""The columns of an episode as objects."""

from __future__ import annotations

import numpy as np
import pytest

from marl_connectors import PPOConfig, SingleAgentEpisode


def episode_of(*, as_arrays):
    """Two steps of lookback and three steps."""
    episode = SingleAgentEpisode(
        observations=[10, 11, 12, 13, 14, 15],
        infos=[{"i": i} for i in range(6)],
        actions=[0, 1, 2, 3, 4],
        rewards=[0.0, 1.0, 2.0, 3.0, 4.0],
        extra_model_outputs={"logp": [5.0, 6.0, 7.0, 8.0, 9.0]},
        len_lookback_buffer=2,
    )
    return episode.to_numpy() if as_arrays else episode


@pytest.mark.parametrize("as_arrays", [False, True])
class TestReading:
    def test_an_index_counts_without_the_lookback(self, as_arrays):
        episode = episode_of(as_arrays=as_arrays)
        assert episode.observations[0] == 12 and episode.observations[-1] == 15
        assert episode.actions[0] == 2 and episode.rewards[-1] == 4.0
        assert episode.extra_model_outputs["logp"][0] == 7.0
        assert episode.infos[1] == {"i": 3}

    def test_a_slice_is_a_batch(self, as_arrays):
        episode = episode_of(as_arrays=as_arrays)
        assert list(episode.observations[1:3]) == [13, 14]
        assert type(episode.rewards[:]) is (np.ndarray if as_arrays else list)

    def test_get_reaches_the_lookback_and_fills(self, as_arrays):
        episode = episode_of(as_arrays=as_arrays)
        assert episode.observations.get(-1, neg_index_as_lookback=True) == 11
        assert list(episode.rewards.get(slice(2, 5), fill=-1.0)) == [4.0, -1.0, -1.0]

    def test_lengths_are_with_and_without_the_lookback(self, as_arrays):
        episode = episode_of(as_arrays=as_arrays)
        assert (len(episode.observations), len(episode.actions), len(episode.infos)) == (4, 3, 4)
        assert (episode.observations.len_incl_lookback(), episode.rewards.len_incl_lookback()) == (6, 5)
        assert episode.observations.lookback == 2
        assert episode.observations.finalized is as_arrays
        assert list(episode.observations.data) == [10, 11, 12, 13, 14, 15]

    def test_iterating_gives_the_items_without_the_lookback(self, as_arrays):
        episode = episode_of(as_arrays=as_arrays)
        assert list(episode.actions) == [2, 3, 4]
        assert "logp" in episode.extra_model_outputs and "other" not in episode.extra_model_outputs

    def test_writing_changes_the_episode(self, as_arrays):
        episode = episode_of(as_arrays=as_arrays)
        episode.observations[0] = 99
        episode.rewards[-1] = 7.5
        episode.extra_model_outputs["logp"].set([1.0], at_indices=[1])
        episode.actions.set(8, at_indices=-1, neg_index_as_lookback=True)
        assert episode.get_observations(0) == 99 and episode.get_rewards(-1) == 7.5
        assert list(episode.get_extra_model_outputs("logp")) == [7.0, 1.0, 9.0]
        assert episode.get_actions(-1, neg_index_as_lookback=True) == 8


def test_infos_are_changed_in_place_only():
    episode = episode_of(as_arrays=False)
    with pytest.raises(TypeError, match="'infos'"):
        episode.infos[0] = {}
    episode.infos[0]["i"] = -1
    assert episode.get_infos(0) == {"i": -1}


def test_a_view_shows_the_items():
    assert repr(episode_of(as_arrays=False).actions) == "ColumnView(actions, [2, 3, 4], lookback=2)"


def test_an_empty_episode_has_empty_columns():
    episode = SingleAgentEpisode()
    assert len(episode.observations) == len(episode.rewards) == 0 and episode.extra_model_outputs == {}


def test_the_agents_of_a_multi_agent_episode_have_them_too():
    algo = PPOConfig().environment("marl_envs.match_v0").multi_agent(policies="shared").build_algo()
    episode = algo.env_runner.sample(num_timesteps=3)[0]
    own = next(iter(episode.agent_episodes.values()))
    assert len(own.observations) == len(own) + 1
    assert np.array_equal(own.rewards[:], own.get_rewards())
    assert "action_dist_inputs" in own.extra_model_outputs
    algo.stop()
