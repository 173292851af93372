"""Damaged files lose only what is damaged, and say what."""

import json
import re
import zlib

import numpy as np
import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors import EpisodeReader, EpisodeWriter
from marl_connectors.errors import OfflineDataError, OfflineDataWarning
from marl_connectors.offline.shard import Shard


@pytest.fixture
def file(tmp_path):
    """Three blocks with two episodes each, ``m0`` to ``m50``."""
    with EpisodeWriter(tmp_path / "data") as writer:
        for i in range(3):
            writer.write([chunk("m", 20 * i, 3), chunk("m", 20 * i + 10, 2)])
    return tmp_path / "data" / "episodes-000000.episodes"


def read(file):
    """The ids that can be read, and the damages as text; the reader warns of each."""
    with pytest.warns(OfflineDataWarning) as caught:
        reader = EpisodeReader(file, order="in_order", check_all=True)
    assert len(caught) == len(reader.damages)
    return [episode.id_ for episode in reader.sample()], [str(damage) for damage in reader.damages]


def test_a_sound_file_has_no_damage(file):
    shard = Shard(file)
    assert (shard.damages, shard.is_closed, [block.number for block in shard.blocks]) == ([], True, [0, 1, 2])
    assert all(block.damage is None for block in shard.blocks)
    assert json.loads(file.read_bytes().partition(b"\n")[0])["format_version"] == 1


def test_the_columns_are_safetensors_that_others_can_read(file):
    import safetensors.numpy

    data = file.read_bytes()
    begin = data.index(b"\n#block ")
    line = data[begin:].splitlines()[1]
    about = json.loads(line[7:])
    begin += len(line) + 2 + about["document_bytes"]
    tensors = safetensors.numpy.load(data[begin : begin + about["tensors_bytes"]])
    assert tensors["rollouts/0/columns/obs"].ravel().tolist() == [0, 1, 2, 3, 10, 11, 12]


def test_a_changed_column_loses_its_block(file):
    data = bytearray(file.read_bytes())
    place = data.index(np.float32(21).tobytes())  # the second observation of m20
    data[place] ^= 1
    file.write_bytes(data)
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert damage == (
        f"{file}, block 1: its columns are not what was written (their SHA-256 differs); 2 episodes or chunks are "
        f"lost: 'm20', 'm30'."
    )


def test_without_a_check_of_all_a_changed_column_is_noticed_when_it_is_read(file):
    data = bytearray(file.read_bytes())
    data[data.index(np.float32(21).tobytes())] ^= 1
    file.write_bytes(data)
    reader = EpisodeReader(file, order="in_order")
    assert not reader.damages and reader.num_episodes == 6
    with pytest.warns(OfflineDataWarning, match="block 1: its columns are not what was written"):
        found = [episode.id_ for episode in reader.sample()]
    assert found == ["m0", "m10", "m40", "m50"] and reader.num_agent_steps_read == 10
    assert [episode.id_ for episode in reader.sample()] == found  # in the next pass, without another warning


def test_a_changed_table_loses_its_block(file):
    data = file.read_bytes().replace(b'"id":["m20"', b'"id":["m21"')
    file.write_bytes(data)
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert "block 1: its table is damaged (its SHA-256 differs); 2 episodes or chunks are lost, whose ids" in damage


def test_a_damaged_line_of_a_block_loses_the_block(file):
    parts = file.read_bytes().split(b"\n#block ")
    parts[2] = parts[2].replace(b'"number"', b"'numbe!'", 1)
    file.write_bytes(b"\n#block ".join(parts))
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert "is damaged; 2 episodes or chunks are lost, whose ids are unknown" in damage


def test_a_block_that_is_gone_is_missed(file):
    parts = file.read_bytes().split(b"\n#block ")
    file.write_bytes(b"\n#block ".join([parts[0], parts[1], parts[3]]))
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert damage == f"{file}: block 1 is missing before block 2; 2 episodes or chunks are lost, whose ids are unknown."


def test_zeros_in_the_middle_lose_what_they_replace(file):
    data = bytearray(file.read_bytes())
    begin = data.index(b"\n#block ", data.index(b"\n#block ") + 1)
    data[begin - 20 : begin + 200] = bytes(220)
    file.write_bytes(data)
    ids, damages = read(file)
    assert ids == ["m40", "m50"] and len(damages) == 2
    assert "block 0" in damages[0] and "'m0', 'm10'" in damages[0]
    assert "are not a block; 2 episodes or chunks are lost" in damages[1]


def test_every_truncation_loses_no_block_that_is_whole(file):
    data = file.read_bytes()
    ends = [data.index(b"\n#block ", data.index(b"\n#block ") + 1), data.rindex(b"\n#block "), data.rindex(b"\n#end ")]
    for size in range(0, len(data), 37):
        file.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        try:
            shard = Shard(file)
        except OfflineDataError:
            assert whole == 0
            continue
        assert [block.number for block in shard.blocks] == list(range(whole))
        assert all(block.damage is None for block in shard.blocks)
        in_block = size not in ends and size > data.index(b"\n#block ") and size < ends[-1]
        assert bool(shard.damages) >= in_block


def test_a_truncation_within_columns_names_the_episodes(file):
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"\n#end ") - 8])
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m20", "m30"]
    assert damage.endswith("block 2: the file ends within its columns; 2 episodes or chunks are lost: 'm40', 'm50'.")


def test_a_changed_size_of_columns_loses_nothing(file):
    data = file.read_bytes()
    for match in re.finditer(rb'"tensors_bytes": (\d)', data):
        for digit in b"19":
            broken = bytearray(data)
            broken[match.start(1)] = digit
            if bytes(broken) == data:
                continue
            file.write_bytes(broken)
            ids, (damage,) = read(file)
            assert ids == ["m0", "m10", "m20", "m30", "m40", "m50"]
            assert damage.endswith(": its line is damaged; no episode is lost.")


def test_a_changed_count_of_a_line_loses_nothing(file):
    data = file.read_bytes()
    for name in (b"number", b"episodes_before", b"num_episodes"):
        begin = data.index(b'"%s": ' % name, data.index(b"\n#block ") + 9) + len(name) + 4
        broken = bytearray(data)
        broken[begin] = ord("7")
        file.write_bytes(broken)
        ids, damages = read(file)
        assert ids == ["m0", "m10", "m20", "m30", "m40", "m50"], name
        assert all("no episode is lost" in damage for damage in damages) and damages


def test_a_changed_first_line_loses_nothing(file):
    data = file.read_bytes()
    for place in range(data.index(b"\n#block ")):
        broken = bytearray(data)
        broken[place] ^= 2
        file.write_bytes(broken)
        ids, (damage,) = read(file)
        assert ids == ["m0", "m10", "m20", "m30", "m40", "m50"]
        assert damage == f"{file}: its first line is damaged; no episode is lost."


@pytest.mark.parametrize("content", [b"", b"PAR1 and so on", b'{"format": "other", "format_version": 1}\n', b"[1]\n"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "x.episodes").write_bytes(content)
    with pytest.raises(OfflineDataError, match=r"is not a file of recorded episodes, because it(s first| is empty)"):
        Shard(tmp_path / "x.episodes")


def test_a_newer_format_is_refused(file):
    _, marks, rest = file.read_bytes().partition(b"\n")
    header = {"format": "marl-connectors episodes", "format_version": 2, "library_version": "9"}
    header["crc32"] = zlib.crc32(json.dumps(header).encode())
    file.write_bytes(json.dumps(header).encode() + marks + rest)
    with pytest.raises(OfflineDataError, match=r"has format version 2 \(written by .*Upgrade marl-connectors"):
        Shard(file)


@pytest.mark.slow
def test_random_damage_loses_no_other_block_and_raises_nothing_else(file):
    data = file.read_bytes()
    rng = np.random.default_rng()
    for _ in range(3000):
        broken = bytearray(data)
        begin = int(rng.integers(len(data)))
        length = int(rng.integers(1, 60))
        broken[begin : begin + length] = rng.bytes(length if rng.random() < 0.7 else int(rng.integers(60)))
        file.write_bytes(broken)
        try:
            shard = Shard(file)
        except OfflineDataError:
            continue
        sound = [block for block in shard.blocks if block.damage is None]
        assert len(sound) >= 1
        for block in sound:
            assert [e.id_ for e in block.stored.episodes()] == [f"m{20 * block.number}", f"m{20 * block.number + 10}"]
        lost = sum(
            len(d.ids or ()) or d.num_episodes or 0
            for d in (*shard.damages, *filter(None, (b.damage for b in shard.blocks)))
        )
        assert lost == 6 - 2 * len(sound) or not shard.is_closed or any(d.num_episodes is None for d in shard.damages)
