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

MARK = "\n#block "


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
    assert damage.startswith(f"{folder / 'episodes-000001.episodes'}: the file is missing; the episodes in it are lost")
    (folder / "episodes-000000.episodes").unlink()
    ids, damages = ids_and_damages(folder)
    assert ids == ["m40", "m50", "m60", "m70"] and len(damages) == 2
    with warnings.catch_warnings():  # a list names what is to be read
        warnings.simplefilter("error")
        assert EpisodeReader(sorted(folder.iterdir())).num_episodes == 4


@pytest.mark.parametrize("number", [0, 2, 3])
@pytest.mark.parametrize("content", [b"", b"something else"])
def test_a_file_that_is_none_loses_no_other_file(number, content, folder):
    file = folder / f"episodes-{number:06}.episodes"
    file.write_bytes(content)
    ids, (damage,) = ids_and_damages(folder)
    assert ids == [f"m{i}" for i in range(0, 80, 10) if i // 20 != number]
    assert damage.startswith(f"{file}: it{'s first line is not that of one' if content else ' is empty'}; the episodes")


def test_if_nothing_is_left_the_error_says_why(folder):
    for number in range(1, 4):
        (folder / f"episodes-{number:06}.episodes").unlink()
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(np.float32(2).tobytes())] ^= 1
    file.write_bytes(data)
    with (
        pytest.warns(OfflineDataWarning),
        pytest.raises(OfflineDataError, match=r"no intact episode .* block 0: its columns are not what was written"),
    ):
        EpisodeReader(folder, check_all=True).sample()


@pytest.mark.timing
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
    files = sorted((tmp_path / "d").iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = EpisodeReader(tmp_path / "d", check_all=True)
    assert reader.num_episodes >= len(files) - 1 >= 4
    assert len(reader.damages) <= 1 and all(damage.file == files[-1] for damage in reader.damages)


def test_a_first_block_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    from marl_connectors.offline import episode_writer

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            self.file.write(data[:9])
            raise OSError("no space left")

        def close(self):
            self.file.close()

    writer = EpisodeWriter(tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(episode_writer, "open", lambda *args: Full(open(*args)), raising=False)  # noqa: SIM115
        with pytest.raises(OfflineDataError, match="no space left"):
            writer.write([chunk("m", 0, 3)])
    assert not list((tmp_path / "d").iterdir())
    writer.write([chunk("m", 0, 3)])
    writer.close()
    assert EpisodeReader(tmp_path / "d").num_episodes == 1


DAMAGES = ("flip", "replace", "truncate", "delete", "empty")


@pytest.mark.parametrize("seed", [*range(40), *fresh_seeds(400)])
def test_random_damage_loses_nothing_but_what_is_damaged_and_says_what(seed, tmp_path):
    """Each block is a folder's part that damage either touches or not."""
    rng = np.random.default_rng(seed)
    with EpisodeWriter(tmp_path / "data", max_rows_per_file=15) as writer:
        for i in range(12):
            writer.write([chunk("m", 20 * i, 3), chunk("m", 20 * i + 10, 2)])
    files = sorted((tmp_path / "data").iterdir())
    assert len(files) == 4
    touched: set[int] = set()
    is_noticeable, kinds = True, []
    for number in sorted({int(n) for n in rng.integers(0, len(files), int(rng.integers(1, 3)))}):
        file, kind = files[number], str(rng.choice(DAMAGES))
        data = file.read_bytes()
        marks = [m.start() for m in re.finditer(rb"\n#(block|end) ", data)]
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
        touched |= {3 * number + i for i in range(3) if begin < marks[i + 1] + len(MARK) and end > marks[i]}
        kinds.append((number, kind, begin, end, marks))
        # Nothing tells that the newest file, or the newest blocks of a file that is not closed, are gone.
        is_noticeable &= number < len(files) - 1 or kind not in ("delete", "truncate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader = EpisodeReader(tmp_path / "data", order="in_order", check_all=True)
        except OfflineDataError:
            assert len(touched) == 12
            return
        found = [episode for block in reader.blocks() for episode in block.stored.episodes()]
    sound = {f"m{20 * i + k}" for i in range(12) if i not in touched for k in (0, 10)}
    assert sound <= {episode.id_ for episode in found}
    for episode in found:  # nothing that is read is changed
        first = int(episode.id_[1:])
        steps = 3 if first % 20 == 0 else 2
        assert episode.get_observations().ravel().tolist() == [first + i for i in range(steps + 1)]
    told = [kinds, sorted(set(range(12)) - {int(e.id_[1:]) // 20 for e in found}), list(map(str, reader.damages))]
    if is_noticeable:
        assert len({damage.file for damage in reader.damages}) == len(kinds), told
        named = [damage.num_episodes if damage.ids is None else len(damage.ids) for damage in reader.damages]
        assert None in named or sum(named) == 24 - len(found), told
