"""Damaged folders lose only what is damaged, and say what."""

import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from helpers.episodes.little_chunks import chunk
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import EpisodeReader, EpisodeWriter
from marl_connectors.errors import OfflineDataError, OfflineDataWarning
from marl_connectors.offline.episode_reader import files_of
from marl_connectors.offline.recording_file import INDEX_FILE, MARK


@pytest.fixture
def folder(tmp_path):
    """Four files with two episodes each, ``m0`` to ``m70``."""
    with EpisodeWriter(tmp_path / "data", max_rows_per_file=5) as writer:
        for i in range(4):
            writer.write([chunk("m", 20 * i, 3), chunk("m", 20 * i + 10, 2)])
    return tmp_path / "data"


def ids_and_damages(folder):
    with pytest.warns(OfflineDataWarning):
        reader = EpisodeReader(folder, order="in_order", check_all=True)
    return [episode.id_ for episode in reader.sample()], [str(damage) for damage in reader.damages]


def test_a_file_that_is_gone_is_missed(folder):
    (folder / "episodes-000001.episodes").unlink()
    ids, (damage,) = ids_and_damages(folder)
    assert ids == ["m0", "m10", "m40", "m50", "m60", "m70"]
    assert damage == (
        f"{folder / 'episodes-000001.episodes'}: the file is missing; 2 episodes or chunks are lost, whose ids are "
        f"unknown."
    )
    (folder / "episodes-000000.episodes").unlink()
    ids, damages = ids_and_damages(folder)
    assert ids == ["m40", "m50", "m60", "m70"] and len(damages) == 2
    with warnings.catch_warnings():  # a list names what is to be read
        warnings.simplefilter("error")
        assert EpisodeReader(files_of(folder)).num_episodes == 4


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [0, 2, 3])
@pytest.mark.parametrize("content", [b"", b"something else"])
def test_a_file_that_is_none_loses_no_other_file(number, content, folder):
    file = folder / f"episodes-{number:06}.episodes"
    file.write_bytes(content)
    ids, (damage,) = ids_and_damages(folder)
    assert ids == [f"m{i}" for i in range(0, 80, 10) if i // 20 != number]
    assert damage.startswith(f"{file}: {'there is no sample in it' if content else 'it is empty'}; 2 episodes")


def test_the_newest_file_and_the_newest_samples_are_missed(tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        for i in range(3):
            writer.write([chunk("m", 20 * i, 3), chunk("m", 20 * i + 10, 2)])
    (file,) = files_of(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(MARK)])
    ids, (damage,) = ids_and_damages(tmp_path)
    assert ids == [f"m{10 * i}" for i in range(4)]
    assert damage == f"{file}: sample 2 is missing or damaged; 2 episodes or chunks are lost, whose ids are unknown."
    (tmp_path / INDEX_FILE).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EpisodeReader(tmp_path).num_episodes == 4


def test_the_newest_file_is_missed(folder):
    file = files_of(folder)[-1]
    file.unlink()
    assert ids_and_damages(folder)[1] == [
        f"{file}: the file is missing; 2 episodes or chunks are lost, whose ids are unknown."
    ]
    (folder / INDEX_FILE).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EpisodeReader(folder).num_episodes == 6


def test_samples_that_were_on_disk_at_a_checkpoint_are_missed_though_the_file_was_never_closed(tmp_path):
    writer = EpisodeWriter(tmp_path)
    for i in range(3):
        writer.write([chunk("m", 10 * i, 2)])
        if i == 1:
            writer.get_state()
    (file,) = files_of(tmp_path)
    data = file.read_bytes()
    begins = [m.start() for m in re.finditer(MARK, data)]
    file.write_bytes(data[: begins[2]])
    assert EpisodeReader(tmp_path).damages == []
    file.write_bytes(data[: begins[1]])
    assert ids_and_damages(tmp_path) == (
        ["m0"],
        [f"{file}: sample 1 is missing or damaged; 1 episodes or chunks are lost, whose ids are unknown."],
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_index_loses_nothing_and_says_so(seed, folder):
    index = folder / INDEX_FILE
    data, rng = bytearray(index.read_bytes()), np.random.default_rng(seed)
    data[int(rng.integers(len(data) - 1))] ^= 1 << int(rng.integers(8))
    index.write_bytes(data)
    ids, damages = ids_and_damages(folder)
    assert len(ids) == 8 and damages == [f"{index}: a line is damaged; no episode is lost."]


def test_a_line_of_the_index_that_was_being_written_counts_as_none(folder):
    index = folder / INDEX_FILE
    index.write_bytes(index.read_bytes()[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EpisodeReader(folder).num_episodes == 8


def test_an_index_without_files_says_nothing_about_the_next_recording(folder):
    for file in files_of(folder):
        file.unlink()
    with EpisodeWriter(folder) as writer:
        writer.write([chunk("m", 0, 3)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EpisodeReader(folder).num_episodes == 1


def test_if_nothing_is_left_the_error_says_why(folder):
    file, *others = files_of(folder)
    for other in others:
        other.unlink()
    (folder / INDEX_FILE).unlink()
    data = bytearray(file.read_bytes())
    data[data.index(np.float32(2).tobytes())] ^= 1
    file.write_bytes(data)
    with (
        pytest.warns(OfflineDataWarning),
        pytest.raises(OfflineDataError, match="sample 0"),
    ):
        EpisodeReader(folder, check_all=True).sample()


def test_a_killed_writer_leaves_a_folder_that_can_be_read(tmp_path):
    program = """if True:
        import sys
        import numpy as np
        from marl_connectors import EpisodeWriter, SingleAgentEpisode
        episode = SingleAgentEpisode(
            id_="e", observations=np.zeros((9, 9), "f4"), actions=[0] * 8, rewards=[1.0] * 8, len_lookback_buffer=0
        )
        with EpisodeWriter(sys.argv[1], max_file_size=1) as writer:
            for i in range(10**9):
                writer.write([episode])
                print(i, flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "d")], stdout=subprocess.PIPE) as process:
        for _ in range(5):
            process.stdout.readline()
        process.kill()
    files = files_of(tmp_path / "d")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = EpisodeReader(tmp_path / "d", check_all=True)
    assert reader.num_episodes >= len(files) - 1 >= 4
    assert len(reader.damages) <= 1 and all(damage.file == files[-1] for damage in reader.damages)


def test_a_first_sample_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    from marl_connectors.offline import episode_writer

    class Full:
        def __init__(self, *args):
            self.file = open(*args)  # noqa: SIM115  # closed by __exit__

        def __enter__(self):
            return self

        def write(self, data):
            self.file.write(data[:9])
            raise OSError("no space left")

        def __exit__(self, *exc_info):
            self.file.close()

    writer = EpisodeWriter(tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(episode_writer, "open", Full, raising=False)
        with pytest.raises(OfflineDataError, match="no space left"):
            writer.write([chunk("m", 0, 3)])
    assert not list((tmp_path / "d").iterdir())
    writer.write([chunk("m", 0, 3)])
    writer.close()
    assert EpisodeReader(tmp_path / "d").num_episodes == 1


DAMAGES = ("flip", "replace", "truncate", "delete", "empty")


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(40), *fresh_seeds(400)])
def test_random_damage_loses_nothing_but_what_is_damaged_and_says_what(seed, tmp_path):
    """Each sample is a folder's part that damage either touches or not."""
    rng = np.random.default_rng(seed)
    with EpisodeWriter(tmp_path / "data", max_rows_per_file=15) as writer:
        for i in range(12):
            writer.write([chunk("m", 20 * i, 3), chunk("m", 20 * i + 10, 2)])
    files = files_of(tmp_path / "data")
    assert len(files) == 4
    touched: set[int] = set()
    kinds = []
    for number in sorted({int(n) for n in rng.integers(0, len(files), int(rng.integers(1, 3)))}):
        file, kind = files[number], str(rng.choice(DAMAGES))
        data = file.read_bytes()
        marks = [*(m.start() for m in re.finditer(MARK, data)), len(data)]
        begin = int(rng.integers(len(data))) if kind not in ("delete", "empty") else 0
        end = {"flip": begin + 1, "replace": begin + int(rng.integers(1, 300))}.get(kind, len(data))
        broken = bytearray(data)
        if kind == "flip":
            broken[begin] ^= 1 << int(rng.integers(8))
        elif kind == "replace":
            broken[begin:end] = rng.bytes(int(rng.integers(1, 300)))
        else:
            del broken[begin:]
        file.write_bytes(broken)
        if kind == "delete":
            file.unlink()
        touched |= {3 * number + i for i in range(3) if begin < marks[i + 1] and end > marks[i]}
        kinds.append((number, kind, begin, end, marks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader = EpisodeReader(tmp_path / "data", order="in_order", check_all=True)
        except OfflineDataError:
            assert len(touched) == 12
            return
        found = [episode for sample in reader.samples() for episode in sample.episodes()]
    sound = {f"m{20 * i + k}" for i in range(12) if i not in touched for k in (0, 10)}
    assert sound <= {episode.id_ for episode in found}
    for episode in found:  # nothing that is read is changed
        first = int(episode.id_[1:])
        steps = 3 if first % 20 == 0 else 2
        assert episode.get_observations().ravel().tolist() == [first + i for i in range(steps + 1)]
    told = [kinds, sorted(set(range(12)) - {int(e.id_[1:]) // 20 for e in found}), list(map(str, reader.damages))]
    assert len({damage.file for damage in reader.damages}) == len(kinds), told
    named = [damage.num_episodes if damage.ids is None else len(damage.ids) for damage in reader.damages]
    assert sum(named) == 24 - len(found), told
