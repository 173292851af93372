import base64

import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.little_chunks import chunk
from helpers.episodes.recorded import facts
from helpers.runs.random_runs import random_config
from marl_connectors import EpisodeReader, EpisodeWriter, from_parquet, to_parquet
from marl_connectors.errors import OfflineDataError
from marl_connectors.offline.agent_rows import agent_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def sampled(seed):
    """Episodes and chunks with steps, of random settings."""
    algo = random_config(seed).build_algo()
    episodes = [episode for _ in range(2) for episode in algo._sample().episodes()]
    algo.stop()
    return [episode for episode in episodes if agent_rows(episode)]


@pytest.mark.parametrize("seed", range(8))
def test_steps_come_back(seed, tmp_path):
    episodes = sampled(seed)
    to_parquet(episodes, tmp_path / "p")
    assert list(map(facts, from_parquet(tmp_path / "p"))) == list(map(facts, episodes))


def test_a_row_is_an_agent_step_with_the_names_of_rllib(tmp_path):
    (file,) = to_parquet([chunk("m", 10, 3, logp=0.5)], tmp_path)
    rows = pq.read_table(file).to_pylist()
    assert len(rows) == 3
    kept = (
        "eps_id",
        "agent_id",
        "module_id",
        "obs",
        "actions",
        "rewards",
        "new_obs",
        "terminateds",
        "truncateds",
        "logp",
    )
    assert [rows[1][name] for name in kept] == ["m10", "a", "m", [11.0], 2, 1.5, [12.0], False, False, 0.5]


def test_files_of_recorded_episodes_go_to_parquet_and_back(tmp_path):
    with EpisodeWriter(tmp_path / "a") as writer:
        for own in (chunk("m", 10, 3), chunk("m", 20, 1), chunk("m", 30, 2)):
            own.multi_agent_episode_id = None
            writer.write([own])
    to_parquet(tmp_path / "a", tmp_path / "p")
    with EpisodeWriter(tmp_path / "b") as writer:
        writer.write(from_parquet(tmp_path / "p"))
    assert [*map(facts, EpisodeReader(tmp_path / "b"))] == [*map(facts, EpisodeReader(tmp_path / "a"))]


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(OfflineDataError, match="is not empty"):
        to_parquet([chunk("m", 10, 3)], tmp_path)


# Tables of RLlib.


def rllib_table(**others):
    """Two episodes of a single agent, of 2 and 1 steps."""
    columns = {
        "eps_id": ["x", "x", "y"],
        "agent_id": pa.array([None] * 3, pa.string()),
        "module_id": ["default_policy"] * 3,
        "obs": [[0.0, 0.5], [1.0, 0.5], [7.0, 0.5]],
        "actions": [0, 1, 1],
        "rewards": [1.0, 2.0, 3.0],
        "new_obs": [[1.0, 0.5], [2.0, 0.5], [8.0, 0.5]],
        "terminateds": [False, True, False],
        "truncateds": [False, False, True],
        "action_logp": [-0.5, -0.25, -1.0],
        "weights_seq_no": [3, 3, 3],
    }
    return pa.table({**columns, **others})


def test_a_plain_table_of_rllib_is_read(tmp_path):
    pq.write_table(rllib_table(), tmp_path / "r.parquet")
    box = spaces.Box(-9, 9, (2,), np.float32)
    one, other = from_parquet(tmp_path, observation_space=box, action_space=spaces.Discrete(2))
    assert (one.id_, len(one), one.is_terminated, one.is_truncated) == ("x", 2, True, False)
    assert (
        one.get_observations().tolist() == [[0, 0.5], [1, 0.5], [2, 0.5]] and one.get_observations().dtype == np.float32
    )
    assert (one.get_actions().tolist(), one.get_rewards().tolist()) == ([0, 1], [1, 2])
    assert list(one.extra_model_outputs) == ["action_logp"]
    assert (other.id_, len(other), other.is_truncated) == ("y", 1, True)


@pytest.mark.parametrize("name", ["obs", "new_obs", "actions", "action_logp"])
def test_pickled_columns_of_rllib_are_refused_by_name(name, tmp_path):
    pickled = [base64.b64encode(b"LZ4 of a pickle").decode()] * 3
    pq.write_table(rllib_table(**{name: pickled}), tmp_path / "r.parquet")
    with pytest.raises(OfflineDataError, match=f"column '{name}' of .*holds texts or bytes.*compress_columns"):
        from_parquet(tmp_path / "r.parquet")


def test_whole_episodes_of_rllib_are_refused(tmp_path):
    pq.write_table(pa.table({"item": [b"msgpack"]}), tmp_path / "r.parquet")
    with pytest.raises(OfflineDataError, match=r"column 'item'.*output_write_episodes=False"):
        from_parquet(tmp_path)


def test_other_files_are_errors(tmp_path):
    with pytest.raises(OfflineDataError, match="there are no Parquet files"):
        from_parquet(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(OfflineDataError, match=r"x\.parquet cannot be read"):
        from_parquet(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(OfflineDataError, match="because it has no column 'eps_id'"):
        from_parquet(tmp_path)
