"""Damaged files lose only what is damaged, and say what."""

import json
import warnings

import numpy as np
import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors import EpisodeReader, EpisodeWriter
from marl_connectors.errors import OfflineDataError, OfflineDataWarning
from marl_connectors.offline.recording_file import INDEX_FILE, MARK, RecordingFile


@pytest.fixture
def file(tmp_path):
    """Three samples with two episodes each, ``m0`` to ``m50``."""
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
    found = RecordingFile(file)
    assert (found.damages, [sample.number for sample in found.samples]) == ([], [0, 1, 2])
    assert all(sample.damage is None for sample in found.samples)
    assert file.read_bytes().startswith(b"\n#marl-connectors-sample-1 {")


def test_the_columns_are_safetensors_that_others_can_read(file):
    import safetensors.numpy

    line, _, rest = file.read_bytes().removeprefix(MARK).partition(b"\n")
    about = json.loads(line)
    arrays = safetensors.numpy.load(rest[about["table_bytes"] :][: about["columns_bytes"]])
    assert arrays["rollouts/0/layers/obs/0"].ravel().tolist() == [0, 1, 2, 3, 10, 11, 12]


def test_a_changed_column_loses_its_sample(file):
    data = bytearray(file.read_bytes())
    place = data.index(np.float32(21).tobytes())  # the second observation of m20
    data[place] ^= 1
    file.write_bytes(data)
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert damage == (
        f"{file}, sample 1: its columns are not what was written (their SHA-256 differs); 2 episodes or chunks are "
        f"lost: 'm20', 'm30'."
    )


def test_without_a_check_of_all_a_changed_column_is_noticed_when_it_is_read(file):
    data = bytearray(file.read_bytes())
    data[data.index(np.float32(21).tobytes())] ^= 1
    file.write_bytes(data)
    reader = EpisodeReader(file, order="in_order")
    assert not reader.damages and reader.num_episodes == 6
    with pytest.warns(OfflineDataWarning, match="sample 1"):
        found = [episode.id_ for episode in reader.sample()]
    assert found == ["m0", "m10", "m40", "m50"] and reader.num_agent_steps_read == 10
    assert [episode.id_ for episode in reader.sample()] == found  # in the next pass, without another warning


def test_a_changed_table_loses_its_sample(file):
    data = file.read_bytes().replace(b'"id":["m20"', b'"id":["m21"')
    file.write_bytes(data)
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert "sample 1: its table is damaged (its SHA-256 differs); 2 episodes or chunks are lost, whose ids" in damage


def test_a_damaged_line_loses_its_sample(file):
    data = file.read_bytes()
    begin = data.index(MARK, 1)
    for place in range(begin, data.index(b"\n", begin + 1)):
        broken = bytearray(data)
        broken[place] ^= 2
        file.write_bytes(broken)
        ids, (damage,) = read(file)
        assert ids == ["m0", "m10", "m40", "m50"]
        assert damage == (
            f"{file}: sample 1 is missing or damaged; 2 episodes or chunks are lost, whose ids are unknown."
        )


def test_a_sample_that_is_gone_is_missed(file):
    parts = file.read_bytes().split(MARK)
    file.write_bytes(MARK.join([parts[0], parts[1], parts[3]]))
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m40", "m50"]
    assert damage == f"{file}: sample 1 is missing or damaged; 2 episodes or chunks are lost, whose ids are unknown."


def test_zeros_in_the_middle_lose_what_they_replace(file):
    data = bytearray(file.read_bytes())
    begin = data.index(MARK, 1)
    data[begin - 20 : begin + 200] = bytes(220)
    file.write_bytes(data)
    ids, damages = read(file)
    assert ids == ["m40", "m50"] and len(damages) == 2
    assert "sample 0" in damages[0] and "'m0', 'm10'" in damages[0]
    assert "sample 1 is missing or damaged; 2 episodes or chunks are lost" in damages[1]


@pytest.mark.parametrize("is_indexed", [True, False])
def test_every_truncation_loses_no_sample_that_is_whole(file, is_indexed):
    data = file.read_bytes()
    ends = [data.index(MARK, 1), data.rindex(MARK), len(data)]
    if not is_indexed:
        (file.parent / INDEX_FILE).unlink()
    for size in range(0, len(data), 37):
        file.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader = EpisodeReader(file, check_all=True)
        except OfflineDataError:
            assert whole == 0
            continue
        assert [sample.number for sample in reader.samples()] == list(range(whole))
        assert bool(reader.damages) == (is_indexed or size not in ends)


def test_a_truncation_within_columns_names_the_episodes(file):
    file.write_bytes(file.read_bytes()[:-8])
    ids, (damage,) = read(file)
    assert ids == ["m0", "m10", "m20", "m30"]
    assert damage.endswith("sample 2: the file ends within its columns; 2 episodes or chunks are lost: 'm40', 'm50'.")


def test_bytes_behind_the_last_sample_lose_nothing(file):
    file.write_bytes(file.read_bytes() + b"more")
    ids, (damage,) = read(file)
    assert len(ids) == 6 and damage.endswith(" on are no sample; no episode is lost.")


@pytest.mark.parametrize("content", [b"", b"PAR1 and so on", b'{"format": "other", "format_version": 1}\n', b"[1]\n"])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "x.episodes").write_bytes(content)
    with pytest.raises(OfflineDataError, match="recorded"):
        RecordingFile(tmp_path / "x.episodes")


def test_another_format_is_refused(file):
    file.write_bytes(file.read_bytes().replace(b"sample-1 ", b"sample-31 "))
    with pytest.raises(OfflineDataError, match=r"(?s)version 31.*\b1\b"):
        RecordingFile(file)


@pytest.mark.slow
def test_random_damage_loses_no_other_sample_and_raises_nothing_else(file):
    data = file.read_bytes()
    rng = np.random.default_rng()
    for _ in range(3000):
        broken = bytearray(data)
        begin = int(rng.integers(len(data)))
        length = int(rng.integers(1, 60))
        broken[begin : begin + length] = rng.bytes(length if rng.random() < 0.7 else int(rng.integers(60)))
        file.write_bytes(broken)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader = EpisodeReader(file, check_all=True)
        except OfflineDataError:
            continue
        sound = reader.samples()
        assert len(sound) >= 1
        for sample in sound:
            assert [e.id_ for e in sample.episodes()] == [f"m{20 * sample.number}", f"m{20 * sample.number + 10}"]
        assert sum(len(d.ids or ()) or d.num_episodes or 0 for d in reader.damages) == 6 - 2 * len(sound)
