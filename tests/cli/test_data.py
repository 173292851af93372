"""``marl-connectors data``."""

import json
from functools import partial

import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors import EpisodeWriter, MultiAgentEpisode
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.cli import data
from marl_connectors.cli.data import histogram
from marl_connectors.cli.main import main
from marl_connectors.offline.summary import summarize


@pytest.fixture
def folder(tmp_path):
    with EpisodeWriter(tmp_path / "data") as writer:
        for i in range(4):
            episode = MultiAgentEpisode(f"0-{i}", agent_module_ids={"wolf": "hunters"})
            episode.add_env_reset(observations={"wolf": 0.0})
            episode.add_env_step({"wolf": 1.0}, {"wolf": 1}, {"wolf": float(i)}, terminateds={"__all__": True})
            writer.write([episode])
    return tmp_path / "data"


def test_a_table_says_what_is_there(folder, capsys):
    assert main(["data", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 whole episodes in 4 chunks of 4 samples: 4 env steps, 4 agent steps. 1 file,")
    assert "wolf    hunters   4       1.50 ± 1.12" in out
    assert "Returns of whole episodes, summed over agents: 1.50 ± 1.12, from 0 to 3.00" in out
    assert "Actions: as the environment gets them\n" in out


def test_of_each_kind_of_actions_there_is_a_line_once(folder, capsys):
    """Steps with ``action_logp`` were taken by a module."""
    with EpisodeWriter(folder / "more") as writer:
        writer.write([chunk("hunters", 0, 2, action_logp=0.0), chunk("hunters", 0, 2)])
    assert main(["data", str(folder), str(folder / "more")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Actions")] == [
        "Actions: as the environment gets them; as modules output them, scaled as in the run that learns from them"
    ]


def test_a_long_reading_is_announced(folder, capsys, monkeypatch):
    said = []

    def slow(reader):
        while not any(said):
            said.append(capsys.readouterr().err)
        return summarize(reader)

    monkeypatch.setattr(data, "summarize", slow)
    monkeypatch.setattr(data, "announced", partial(announced, first_s=1e-3))
    assert main(["data", str(folder)]) == 0
    assert f"reading {folder} (0:00 so far)" in "".join(said)


def test_json_has_everything(folder, capsys):
    assert main(["data", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all_returns"] == [0.0, 1.0, 2.0, 3.0]
    assert found["agents"]["wolf"]["steps_by_module"] == {"hunters": 4}
    assert found["damages"] == []


@pytest.fixture
def _pictures_are_not_painted():
    """They are."""


def test_a_picture_is_written(folder, tmp_path, capsys):
    assert main(["data", str(folder), "--picture", str(tmp_path / "x.png")]) == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert main(["data", str(folder), "--picture", "x.jpg"]) == 2
    assert "has another ending. Use .png" in capsys.readouterr().err


def test_damage_is_printed_and_gives_status_1(folder, capsys):
    (file,) = folder.glob("*.episodes")
    content = file.read_bytes()
    file.write_bytes(content[:-4])
    assert main(["data", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "sample 3: the file ends within its columns; 1 episode or chunks are lost: '0-3'." in out
    assert out.startswith("3 whole episodes")


@pytest.mark.parametrize("name", ["nothing", "empty", "text.episodes"])
def test_a_mistake_is_one_clear_line(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.episodes").write_text("hello")
    assert main(["data", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith("marl-connectors: error: offline data:") and error.count("\n") == 1


def test_chunks_without_whole_episodes_are_shown(tmp_path, capsys):
    with EpisodeWriter(tmp_path) as writer:
        writer.write([chunk("m", 0, 3)])
    assert main(["data", str(tmp_path)]) == 0
    assert "0 whole episodes in 1 chunk of 1 sample: 3 env steps, 3 agent steps" in capsys.readouterr().out


def test_a_histogram_of_equal_values_has_one_bar():
    assert histogram([2.0, 2.0]).endswith("█ 2") and "\n" not in histogram([2.0, 2.0])
