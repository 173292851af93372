import errno
import os

import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors import EpisodeReader, EpisodeWriter
from marl_connectors.errors import ConfigError, EpisodeError, OfflineDataError, OfflineDataWarning
from marl_connectors.offline import episode_writer
from marl_connectors.offline.episode_reader import files_of
from marl_connectors.offline.recording_file import read_index


def ids(folder):
    return [episode.id_ for episode in EpisodeReader(folder, order="in_order").sample()]


def test_files_are_split_by_rows(tmp_path):
    with EpisodeWriter(tmp_path / "data", max_rows_per_file=5) as writer:
        for i in range(4):
            writer.write([chunk("m", 10 * i, 3)])
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == [
        "episodes-000000.episodes",
        "episodes-000001.episodes",
        "episodes.index",
    ]
    assert ids(tmp_path / "data") == ["m0", "m10", "m20", "m30"]


def test_a_file_with_exactly_its_greatest_number_of_rows_is_full(tmp_path):
    with EpisodeWriter(tmp_path, max_rows_per_file=3) as writer:
        for i in range(3):
            writer.write([chunk("m", 10 * i, 3)])
    assert len(files_of(tmp_path)) == 3


def test_files_are_split_by_size(tmp_path):
    with EpisodeWriter(tmp_path, max_file_size=1) as writer:
        for i in range(3):
            writer.write([chunk("m", 10 * i, 1)])
    assert len(files_of(tmp_path)) == 3


def test_the_writer_counts(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write([])
        writer.write([chunk("m", 0, 3), chunk("m", 10, 2)])
        assert (writer.num_samples, writer.num_episodes, writer.num_agent_steps) == (1, 2, 5)
        assert repr(writer) == f"<EpisodeWriter to {tmp_path}: 2 episodes, 5 agent steps>"


def test_other_recorded_episodes_are_not_overwritten(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write([chunk("m", 0, 1)])
    with pytest.raises(OfflineDataError, match="episodes-000000"):
        EpisodeWriter(tmp_path).write([chunk("m", 10, 1)])
    assert ids(tmp_path) == ["m0"]


def test_a_folder_that_was_made_for_no_episode_is_removed(tmp_path):
    with EpisodeWriter(tmp_path / "new" / "data") as writer:
        writer.begin()
        assert writer.folder.is_dir()
        writer.close()
        assert not (tmp_path / "new").exists()
        writer.write([chunk("m", 0, 1)])
    assert ids(tmp_path / "new" / "data") == ["m0"]
    (tmp_path / "there").mkdir()
    for folder in ("there", "there/new"):
        with EpisodeWriter(tmp_path / folder) as writer:
            writer.begin()
    assert list((tmp_path / "there").iterdir()) == []


class FullFile:
    """Takes the bytes for which a disk has room, and fails again when it is closed, as files with a buffer do."""

    def __init__(self, path, mode, disk):
        self.file, self.disk = open(path, mode), disk  # noqa: SIM115  # closed by __exit__

    def __enter__(self):
        return self

    def write(self, data):
        part = data[: self.disk["room"]]
        self.disk["room"] -= self.file.write(part)
        if len(part) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __exit__(self, *exc_info):
        self.file.close()
        if not self.disk["room"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name):
        return getattr(self.file, name)


def on_a_disk_with_room(monkeypatch, room):
    disk = {"room": room}
    monkeypatch.setattr(episode_writer, "open", lambda path, mode: FullFile(path, mode, disk), raising=False)


def test_a_full_disk_leaves_whole_samples(tmp_path, monkeypatch):
    def write(folder, starts):
        with EpisodeWriter(tmp_path / folder) as writer:
            for start in starts:
                writer.write([chunk("m", start, 1)])
            return writer.position().size

    size = write("whole", [0])
    on_a_disk_with_room(monkeypatch, size + 1)
    with pytest.raises(OfflineDataError, match=r"episodes-000000\.episodes"):
        write("data", [0, 10])
    (file,) = files_of(tmp_path / "data")
    assert file.stat().st_size == size
    assert ids(tmp_path / "data") == ["m0"] and not EpisodeReader(tmp_path / "data", check_all=True).damages


def test_a_full_disk_leaves_no_empty_folder(tmp_path, monkeypatch):
    on_a_disk_with_room(monkeypatch, 50)
    with EpisodeWriter(tmp_path / "new" / "data") as writer:
        for _ in range(2):
            with pytest.raises(OfflineDataError, match="No space left on device"):
                writer.write([chunk("m", 0, 1)])
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_is_interrupted_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    class Interrupted(FullFile):
        def write(self, data):
            self.file.write(data[: len(data) // 2])
            raise KeyboardInterrupt

    with EpisodeWriter(tmp_path) as writer:
        writer.write([chunk("m", 0, 1)])
        with monkeypatch.context() as patch:
            patch.setattr(episode_writer, "open", lambda *args: Interrupted(*args, {"room": 1}), raising=False)
            with pytest.raises(KeyboardInterrupt):
                writer.write([chunk("m", 10, 1)])
        writer.write([chunk("m", 20, 1)])
    assert ids(tmp_path) == ["m0", "m20"]


def test_a_folder_that_cannot_be_made_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OfflineDataError, match="file/data"):
        EpisodeWriter(tmp_path / "file" / "data").begin()


def test_episodes_that_cannot_be_written_leave_the_file_as_it_was(tmp_path):
    bad = chunk("m", 10, 1)
    bad.storage.columns["infos"][0] = {"odd": object()}
    with EpisodeWriter(tmp_path) as writer:
        writer.write([chunk("m", 0, 1)])
        with pytest.raises(EpisodeError, match="unstorable_infos='drop'"):
            writer.write([bad])
        writer.write([chunk("m", 20, 1)])
    assert ids(tmp_path) == ["m0", "m20"]


def test_values_of_infos_are_dropped_with_one_warning_for_each_key(tmp_path):
    bad = chunk("m", 10, 2)
    for i in range(3):
        bad.storage.columns["infos"][i] = {"odd": object(), "n": i}
    with EpisodeWriter(tmp_path, unstorable_infos="drop") as writer:
        with pytest.warns(OfflineDataWarning, match=r"(?s)info\['odd'\].*'a'") as caught:
            writer.write([bad])
        assert len(caught) == 1
        writer.write([bad])
    assert EpisodeReader(tmp_path).sample()[0].get_infos() == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert bad.get_infos(0)["odd"] is not None


@pytest.mark.parametrize("rows", [None, 3])
def test_a_writer_continues_at_its_state_and_forgets_what_came_later(tmp_path, rows):
    whole, part = tmp_path / "whole", tmp_path / "part"
    chunks = [chunk("m", 10 * i, 2) for i in range(5)]
    with EpisodeWriter(whole, max_rows_per_file=rows) as writer:
        for own in chunks:
            writer.write([own])
    first = EpisodeWriter(part, max_rows_per_file=rows)
    for own in chunks[:2]:
        first.write([own])
    state = first.get_state()
    first.write([chunks[4]])
    first.write([chunks[0]])
    first.close()
    with EpisodeWriter(part, max_rows_per_file=rows) as second:
        second.set_state(state)
        for own in chunks[2:]:
            second.write([own])
    assert [f.read_bytes() for f in files_of(part)] == [f.read_bytes() for f in files_of(whole)]
    assert read_index(part) == read_index(whole)


def test_what_a_killed_process_has_written_can_be_read_and_continued(tmp_path):
    writer = EpisodeWriter(tmp_path)
    writer.write([chunk("m", 0, 2)])
    state = writer.get_state()
    writer.write([chunk("m", 10, 2)])
    assert ids(tmp_path) == ["m0", "m10"]  # the file was never closed
    second = EpisodeWriter(tmp_path)
    second.set_state(state)
    second.write([chunk("m", 20, 2)])
    second.close()
    assert ids(tmp_path) == ["m0", "m20"]


def test_a_state_without_its_files_is_an_error(tmp_path):
    with EpisodeWriter(tmp_path / "a") as writer:
        writer.write([chunk("m", 0, 2)])
        state = writer.get_state()
    other = EpisodeWriter(tmp_path / "b")
    other.set_state(state)
    with pytest.raises(OfflineDataError, match=r"(?s)\b1\b.*episodes-000000.episodes"):
        other.write([chunk("m", 0, 2)])


@pytest.mark.parametrize(
    ("setting", "value"), [("max_file_size", 0), ("max_rows_per_file", -1), ("unstorable_infos", "ignore")]
)
def test_a_wrong_setting_is_named(tmp_path, setting, value):
    with pytest.raises(ConfigError, match=f"(?s)EpisodeWriter.*{setting}"):
        EpisodeWriter(tmp_path, **{setting: value})
