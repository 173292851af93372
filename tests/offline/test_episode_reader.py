import json
import re
import shutil

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.stated_envs import StatedAEC, StatedLife, expected_states
from helpers.episodes.little_chunks import ACT, OBS, chunk
from helpers.episodes.recorded import facts
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Columns, EpisodeReader, EpisodeWriter, MAPPOConfig, MultiAgentEpisode
from marl_connectors.errors import ConfigError, OfflineDataError
from marl_connectors.offline.fit import Fit
from marl_connectors.state import fields_of


@pytest.fixture
def folder(tmp_path):
    """Samples of 3, 2 and 5 episodes ``m0``, ``m1``, ... with 1 to 3 steps."""
    names = iter(range(10))
    with EpisodeWriter(tmp_path, max_rows_per_file=10) as writer:
        for size in (3, 2, 5):
            writer.write([chunk("m", number, 1 + number % 3) for number in (next(names) for _ in range(size))])
    return tmp_path


def names_of(episodes):
    return [int(episode.id_[1:]) for episode in episodes]


@pytest.mark.slow
def test_samples_in_order_have_as_few_episodes_as_have_the_steps(folder):
    reader = EpisodeReader(folder, order="in_order")
    assert [names_of(reader.sample(4)) for _ in range(7)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9],
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
    ]
    assert (reader.num_agent_steps_read, reader.num_passes) == (6 + 6 + 6 + 1 + 6 + 6 + 6, 1)


def test_samples_as_recorded_are_those_that_were_written(folder):
    reader = EpisodeReader(folder, order="as_recorded")
    assert [names_of(reader.sample()) for _ in range(4)] == [[0, 1, 2], [3, 4], [5, 6, 7, 8, 9], [0, 1, 2]]


def test_shuffled_passes_have_each_episode_once_in_other_orders(folder):
    reader = EpisodeReader(folder, seed=3)
    passes = [names_of(reader.sample()) for _ in range(3)]
    assert all(sorted(own) == list(range(10)) for own in passes)
    assert len({tuple(own) for own in [*passes, range(10)]}) == 4
    assert [
        names_of(EpisodeReader(folder, seed=3).sample()),
        passes[0] != names_of(EpisodeReader(folder).sample()),
    ] == [
        passes[0],
        True,
    ]


@pytest.mark.parametrize("order", ["shuffled", "in_order", "as_recorded"])
def test_a_reader_continues_exactly_where_another_one_was(folder, order):
    reader = EpisodeReader(folder, order=order, seed=1)
    for _ in range(5):
        state = json.loads(json.dumps(fields_of(reader.get_state())))
        other = EpisodeReader(folder, order=order, seed=1)
        other.set_state(state)
        for _ in range(3):
            assert names_of(reader.sample(3)) == names_of(other.sample(3))
        assert reader.get_state() == other.get_state()
        reader.set_state(state)
        reader.sample(3)


def test_a_position_in_other_data_is_refused(folder, tmp_path):
    state = EpisodeReader(folder).get_state()
    with EpisodeWriter(tmp_path / "more") as writer:
        writer.write([chunk("m", 50, 2)])
    with pytest.raises(OfflineDataError, match="removed"):
        EpisodeReader(tmp_path / "more").set_state(state)
    with pytest.raises(OfflineDataError, match=r"(?s)order='shuffled'.*seed=0"):
        EpisodeReader(folder, seed=1).set_state(state)


def test_steps_can_be_env_steps(tmp_path):
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={"a": 1.0, "b": 2.0})
    episode.add_env_step({"a": 2.0, "b": 3.0}, {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0})
    with EpisodeWriter(tmp_path) as writer:
        writer.write([episode] * 4)
    reader = EpisodeReader(tmp_path, order="in_order")
    assert (reader.num_env_steps, reader.num_agent_steps, reader.num_episodes) == (4, 8, 4)
    assert [len(reader.sample(num_env_steps=2)), len(reader.sample(2)), len(reader.sample(5))] == [2, 1, 1]
    with pytest.raises(ConfigError, match=r"(?s)num_agent_steps.*num_env_steps"):
        reader.sample(1, num_env_steps=1)


def test_all_episodes_can_be_looked_at(folder):
    reader = EpisodeReader(folder)
    assert names_of(reader) == list(range(10))
    assert reader.num_agent_steps_read == 0


def test_several_folders_are_read_and_their_ids_stay_apart(folder, tmp_path):
    with EpisodeWriter(tmp_path / "more") as writer:
        writer.write([chunk("m", 0, 2)])
    reader = EpisodeReader([folder, tmp_path / "more"], order="in_order")
    found = [episode.id_ for episode in reader.sample()]
    assert (found[0], found[-1]) == ("0/m0", "1/m0")
    assert reader.num_episodes == 11


def long_episode(lengths, end="terminated", first=0):
    """An episode in chunks of these lengths, and the whole of it."""
    episode = MultiAgentEpisode("long")
    episode.add_env_reset(observations={"a": 0.0, "b": 0.5})
    chunks, t = [], 0
    for i, length in enumerate(lengths):
        for _ in range(length):
            t += 1
            ends = {f"{end}s": {"__all__": t == sum(lengths)}} if end != "open" else {}
            acting = {"a": t} | ({"b": t} if t % 2 else {})
            seen = {agent: t + 0.5 * (agent == "b") for agent in acting}
            episode.add_env_step(seen, acting, {"a": 1.0, "b": 0.25}, **ends)
        chunks.append(episode)
        if i < len(lengths) - 1:
            episode = episode.cut()
    return chunks


@pytest.mark.parametrize("lengths", [[4], [1, 3, 2], [2, 1, 1, 1]])
def test_chunks_are_put_together(tmp_path, lengths):
    chunks = long_episode(lengths)
    (whole,) = long_episode([sum(lengths)])
    with EpisodeWriter(tmp_path) as writer:
        for own in chunks:
            writer.write([own])
    reader = EpisodeReader(tmp_path, complete_episodes=True)
    (found,) = reader.sample()
    assert facts(found) == facts(whole)
    assert (reader.num_episodes, reader.num_incomplete) == (1, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("env", "pays"), [(StatedLife, {"pays_absent": 0.5}), (StatedAEC, {"pays_newcomers": True, "join": 0.5})]
)
@pytest.mark.parametrize("seed", [0, *fresh_seeds(20)])
def test_chunks_that_are_put_together_keep_the_states_of_the_environment(env, pays, seed, tmp_path):
    game = {"die": 0.2, "max_steps": 8, **pays}  # the dead are paid, too
    config = MAPPOConfig().environment(env, env_config=game, disable_env_checking=True)
    config.training(critic_obs="state", train_batch_size_per_learner=60).debugging(seed=seed)
    config.env_runners(num_env_workers=0, num_envs_per_env_runner=2, rollout_fragment_length=3)
    config.multi_agent(policies="independent")
    with config.copy().offline_data(output=tmp_path).build_algo() as algo:
        algo.train()
    with config.build_algo() as algo:
        chunks, reader = EpisodeReader(tmp_path).sample(), EpisodeReader(tmp_path, complete_episodes=True)
        episodes, again = reader.sample(), reader.sample()
        paid = [{e.id_: e.get_paid_returns() for e in found} for found in (episodes, again)]
        assert paid[0] == paid[1]
        assert 1 < len(episodes) < len(chunks)
        for group in algo.learner.make_batch(episodes).groups:
            np.testing.assert_array_equal(group.rows.get(Columns.ENV_STATE), expected_states(group.rows, seed))


def test_incomplete_episodes_are_left_out_and_counted(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write(long_episode([2, 2], end="open"))
        writer.write(long_episode([2, 2])[1:])
        writer.write(long_episode([3]))
    reader = EpisodeReader(tmp_path, complete_episodes=True)
    assert (reader.num_episodes, reader.num_incomplete) == (1, 3)
    assert len(reader.sample()[0]) == 3


def test_data_without_a_whole_episode_are_an_error(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write(long_episode([2], end="open"))
    with pytest.raises(OfflineDataError, match=r"\b1 chunks"):
        EpisodeReader(tmp_path, complete_episodes=True)


def test_chunks_are_not_put_together_as_recorded(folder):
    with pytest.raises(ConfigError, match="complete_episodes"):
        EpisodeReader(folder, order="as_recorded", complete_episodes=True)


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(OfflineDataError, match="nothing at"):
        EpisodeReader(tmp_path / "no")
    with pytest.raises(OfflineDataError, match="empty"):
        EpisodeReader(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(OfflineDataError, match=r"'notes\.txt'"):
        EpisodeReader(tmp_path)


def test_spaces_that_do_not_fit_are_named_with_file_and_episode(folder):
    reader = EpisodeReader(folder)
    reader.check(Fit({"a": (OBS, ACT), "b": (ACT, ACT)}))
    with pytest.raises(OfflineDataError) as caught:
        reader.check(Fit({"a": (spaces.Box(-1, 1, (3,)), ACT)}))
    names = [str(folder / "episodes-000000.episodes"), "'m0'", "'a'", "Box(1,) float32", "Box(3,) float32"]
    assert re.search(".*".join(map(re.escape, names)), str(caught.value))
    with pytest.raises(OfflineDataError, match=r"(?s)Box\(1,\).*float32"):
        reader.check(Fit({"a": (spaces.Box(-1, 1, (1,), np.float32), ACT)}))
    with pytest.raises(OfflineDataError, match=r"(?s)Discrete\(9\).*Discrete"):
        reader.check(Fit({"a": (OBS, spaces.Discrete(4))}))
    with pytest.raises(OfflineDataError, match="agent 'a'"):
        reader.check(Fit({"b": (OBS, ACT)}))


def test_a_newest_file_that_was_never_closed_is_fine(tmp_path):
    writer = EpisodeWriter(tmp_path)
    writer.write([chunk("m", 0, 2)])
    assert EpisodeReader(tmp_path).damages == []
    writer.close()


def held_out_ids(path, fraction, **settings):
    sides = [EpisodeReader(path, held_out_fraction=fraction, only_held_out=only, **settings) for only in (False, True)]
    return [names_of(reader.sample()) for reader in sides]


@pytest.mark.parametrize(("fraction", "number"), [(0.0001, 1), (0.2, 2), (0.5, 5), (0.9, 9)])
def test_a_share_of_the_episodes_is_held_out(folder, fraction, number):
    read, held_out = held_out_ids(folder, fraction)
    assert len(held_out) == number and sorted([*read, *held_out]) == list(range(10))
    assert set(held_out_ids(folder, fraction, order="in_order", seed=5)[1]) == set(held_out)


def test_episodes_with_the_same_id_in_several_folders_are_held_out_independently(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "more", ignore=shutil.ignore_patterns("more"))
    for fraction, number in ((0.05, 1), (0.5, 10)):
        both = [folder, tmp_path / "more"]
        reader = EpisodeReader(both, held_out_fraction=fraction, only_held_out=True)
        ids = [episode.id_.split("/") for episode in reader.sample()]
        assert len(ids) == number
    assert {id_ for input_, id_ in ids if input_ == "0"} != {id_ for input_, id_ in ids if input_ == "1"}


def test_chunks_of_an_episode_stay_together(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        for own in long_episode([2, 1, 3]):
            writer.write([own, chunk("m", own.env_t, 1)])
    for fraction in (0.3, 0.5, 0.7):
        sides = [EpisodeReader(tmp_path, held_out_fraction=fraction, only_held_out=only) for only in (False, True)]
        assert sorted([e.id_ for e in side.sample()].count("long") for side in sides) == [0, 3]


def test_nothing_left_to_train_on_is_an_error(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write(long_episode([2]))
    with pytest.raises(OfflineDataError, match=r"(?s)held_out_fraction=0\.1.*\b1\b"):
        EpisodeReader(tmp_path, held_out_fraction=0.1)


def test_a_position_with_another_share_is_refused(folder):
    state = EpisodeReader(folder, held_out_fraction=0.3).get_state()
    with pytest.raises(OfflineDataError, match="others"):
        EpisodeReader(folder).set_state(state)
