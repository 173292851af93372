import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.little_chunks import chunk
from helpers.episodes.recorded import facts
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import random_config
from marl_connectors import MultiAgentEpisode, from_minari, to_minari
from marl_connectors.errors import OfflineDataError
from marl_connectors.offline.exchange import agent_rows

minari = pytest.importorskip("minari")
BOX, ACTIONS = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(3)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:to_minari. not written")
@pytest.mark.parametrize("seed", range(8))
def test_steps_come_back(seed):
    algo = random_config(seed).build_algo()
    episodes = [episode for episode in algo._sample().episodes() if agent_rows(episode)]
    algo.stop()
    datasets = to_minari(episodes, "test/data-v0")
    back = from_minari(datasets.get(None, datasets))
    assert [facts(e, with_outputs=False) for e in back] == [facts(e, with_outputs=False) for e in episodes]


def test_each_agent_has_a_data_set_of_its_own():
    episode = MultiAgentEpisode("e", observation_space=BOX, action_space=ACTIONS)
    episode.add_env_reset(observations={"a": np.zeros(1), "b": np.ones(1)})
    episode.add_env_step(
        {"a": np.ones(1), "b": np.ones(1)}, {"a": 1, "b": 2}, {"a": 0.5}, terminateds={"__all__": True}
    )
    assert list(to_minari([episode], "games/two-v3")) == ["a", "b"]
    assert sorted(minari.list_local_datasets()) == ["games/two/a-v3", "games/two/b-v3"]
    data = minari.load_dataset("games/two/b-v3")[0]
    assert (data.actions.tolist(), data.rewards.tolist(), data.terminations.tolist()) == ([2], [0.0], [True])


def test_data_sets_of_others_are_put_together_step_by_step():
    from minari.data_collector import EpisodeBuffer

    given = {"observation_space": BOX, "action_space": ACTIONS, "data_format": "arrow"}
    for agent in "ab":
        buffer = EpisodeBuffer(
            observations=np.zeros((3, 1), np.float32),
            actions=np.array([1, 2]),
            rewards=[1.0, 2.0],
            terminations=[False, True],
            truncations=[False, False],
        )
        with pytest.warns(UserWarning, match="None"):
            minari.create_dataset_from_buffers(f"other/{agent}-v0", [buffer], **given)
    (episode,) = from_minari({"a": "other/a-v0", "b": "other/b-v0"})
    assert (len(episode), episode.is_terminated, sorted(episode.agent_ids)) == (2, True, ["a", "b"])
    (alone,) = from_minari("other/a-v0")
    assert alone.get_rewards().tolist() == [1.0, 2.0] and alone.is_terminated


def test_a_damaged_data_set_is_named(tmp_path):
    to_minari([chunk("m", 0, 3)], "test/data-v0")
    files = [path for path in (tmp_path / "minari").rglob("*") if path.suffix == ".arrow"]
    assert files
    for content in (b"", files[0].read_bytes()[:40]):
        files[0].write_bytes(content)
        with pytest.raises(OfflineDataError, match=r"(?s)test/data-v0.*episode 0.*\b0\b"):
            from_minari("test/data-v0")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The files of a data set, and the episodes in it."""
    folder = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        to_minari([chunk("m", 0, 3), chunk("m", 10, 5)], "test/data-v0")
        episodes = [facts(e, with_outputs=False) for e in from_minari("test/data-v0")]
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}, episodes


@pytest.mark.parametrize("seed", [*range(30), *fresh_seeds(300)])
def test_random_damage_is_an_error_that_names_the_data_set_or_changes_nothing(seed, sound, tmp_path):
    rng, (files, expected) = np.random.default_rng(seed), sound
    damaged = list(files)[int(rng.integers(len(files)))]
    for path, content in files.items():
        data = bytearray(content)
        if path == damaged:
            kind, at = str(rng.choice(["flip", "replace", "truncate"])), int(rng.integers(len(data)))
            if kind == "flip":
                data[at] ^= 1 << int(rng.integers(8))
            else:
                data[at : at + 5 if kind == "replace" else None] = rng.bytes(5 * (kind == "replace"))
        (tmp_path / "minari" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "minari" / path).write_bytes(data)
    found, message = [], ""
    try:
        found = [facts(e, with_outputs=False) for e in from_minari("test/data-v0")]
    except OfflineDataError as error:
        message = str(error)
    if message:
        is_of_episode = len(damaged.parts) == 5
        assert "the data set " in message and "test/data-v0" in message
        assert not is_of_episode or str(tmp_path / "minari" / damaged.parent) in message
    else:
        assert found == expected


def test_data_that_were_changed_after_they_were_written_are_named():
    to_minari([chunk("m", 0, 3)], "test/data-v0")
    dataset = minari.load_dataset("test/data-v0")
    dataset.storage.update_episode_metadata([{"total_steps": 4}])
    with pytest.raises(OfflineDataError, match=r"(?s)\b3\b.*\b4\b"):
        from_minari(dataset)


@pytest.mark.parametrize("column", ["observations", "actions", "rewards"])
def test_a_value_that_was_changed_after_it_was_written_is_named(column):
    from minari.data_collector import EpisodeBuffer

    to_minari([chunk("m", 0, 3)], "test/data-v0")
    dataset = minari.load_dataset("test/data-v0")
    written = dataset[0]
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    columns = {name: np.array(getattr(written, name)) for name in names}
    columns[column][1] += 1
    dataset.storage.update_episodes([EpisodeBuffer(id=0, **columns)])
    with pytest.raises(OfflineDataError, match=r"(?s)episode 0.*to_minari.*SHA-256"):
        from_minari("test/data-v0")


def test_mistakes_are_errors():
    with pytest.raises(OfflineDataError, match="version"):
        to_minari([chunk("m", 0, 1)], "data")
    with pytest.raises(OfflineDataError, match="'none-v0'"):
        from_minari("none-v0")
    with pytest.raises(OfflineDataError, match="episode"):
        to_minari([], "data-v0")
    odd = chunk("m", 0, 1)
    odd.observation_space = None
    with pytest.raises(OfflineDataError, match=r"(?s)'a'.*'m0'"):
        to_minari([odd], "data-v0")
