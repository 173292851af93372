import base64
import contextlib
import json
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.little_chunks import chunk
from helpers.episodes.recorded import facts
from helpers.runs.random_runs import random_config
from marl_connectors import (
    EpisodeReader,
    EpisodeWriter,
    MultiAgentEpisode,
    SingleAgentEpisode,
    from_parquet,
    to_parquet,
)
from marl_connectors.errors import EpisodeError, OfflineDataError, OfflineDataWarning
from marl_connectors.offline.exchange import agent_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def sampled(seed):
    """Episodes and chunks with steps, of random settings."""
    algo = random_config(seed).build_algo()
    episodes = [episode for _ in range(2) for episode in algo._sample().episodes()]
    algo.stop()
    return [episode for episode in episodes if agent_rows(episode)]


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:to_parquet. not written")
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


def seen(*observations):
    return SingleAgentEpisode(
        id_="e", observations=list(observations), actions=[0], rewards=[1.0], terminated=True, len_lookback_buffer=0
    )


def test_parts_without_numbers_come_back(tmp_path):
    first, last = ({"x": np.zeros((2, 0), np.float32), "y": np.full(1, y, np.float32)} for y in (1, 2))
    to_parquet([seen(first, last)], tmp_path)
    (episode,) = from_parquet(tmp_path)
    for t, expected in enumerate((first, last)):
        found = episode.get_observations(t)
        assert {k: (v.shape, v.dtype, v.tolist()) for k, v in found.items()} == {
            k: (v.shape, v.dtype, v.tolist()) for k, v in expected.items()
        }


def test_parts_that_would_have_one_column_are_refused(tmp_path):
    item = {"a": {"b": np.zeros(1, np.float32)}, "a.b": np.ones(1, np.float32)}
    with pytest.raises(EpisodeError, match=r"(?s)'e'.*'obs.a.b'"):
        to_parquet([seen(item, item)], tmp_path)


def test_what_has_no_place_in_a_row_is_counted(tmp_path):
    episode = MultiAgentEpisode("g")
    episode.add_env_reset(observations={"w": np.zeros(1, np.float32)})
    episode.add_env_step({"b": np.ones(1, np.float32)}, {"w": 1}, {"w": 0.5})
    episode.custom_data["k"] = 5
    with pytest.warns(OfflineDataWarning) as caught:
        assert to_parquet([episode], tmp_path / "p") == []
    (message,) = (str(warning.message) for warning in caught)
    assert message == (
        "to_parquet: not written, because the format has no place for it: 2 agents' episodes without a step, 1 actions "
        "that have not been answered yet, with their rewards, 1 episodes with custom_data. EpisodeWriter keeps "
        "everything."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_parquet([chunk("m", 10, 3)], tmp_path / "q")


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(OfflineDataError, match="empty"):
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
    with pytest.raises(OfflineDataError, match=f"(?s)'{name}'.*compress_columns"):
        from_parquet(tmp_path / "r.parquet")


def test_whole_episodes_of_rllib_are_refused(tmp_path):
    pq.write_table(pa.table({"item": [b"msgpack"]}), tmp_path / "r.parquet")
    with pytest.raises(OfflineDataError, match=r"(?s)'item'.*output_write_episodes=False"):
        from_parquet(tmp_path)


def test_other_files_are_errors(tmp_path):
    with pytest.raises(OfflineDataError, match="Parquet"):
        from_parquet(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(OfflineDataError, match=r"x\.parquet"):
        from_parquet(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(OfflineDataError, match="'eps_id'"):
        from_parquet(tmp_path)


def from_rllib(tmp_path, **columns):
    """The infos of the first episode of a table."""
    pq.write_table(rllib_table(**columns), tmp_path / "r.parquet")
    return from_parquet(tmp_path, observation_space=BOX, action_space=TWO)[0].get_infos()


def test_infos_of_rllib_may_be_structs_or_texts(tmp_path):
    assert from_rllib(tmp_path, infos=[{"a": 1}, {"a": 2}, {"a": 3}]) == [{"a": 1}, {"a": 2}, {}]
    assert from_rllib(tmp_path, infos=["{}", '{"a": 2}', "{}"]) == [{}, {"a": 2}, {}]
    assert from_rllib(tmp_path, infos=[None, '{"a": 2}', None]) == [{}, {"a": 2}, {}]
    assert from_rllib(tmp_path, infos=['{"value": 0.7}', "{}", "{}"]) == [{"value": 0.7}, {}, {}]
    with pytest.raises(OfflineDataError, match=r"(?s)row 1.*r\.parquet.*'5'"):
        from_rllib(tmp_path, infos=["{}", "5", "{}"])
    with pytest.raises(OfflineDataError, match=r"(?s)'infos'.*r\.parquet"):
        from_rllib(tmp_path, infos=[b"\x80\x04K\x01.", b"", b""])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"rewards": [1.0, None, 3.0]}, "'rewards'"),
        ({"rewards": [1.0, float("nan"), 3.0]}, r"'rewards'.*\bnan\b"),
        ({"terminateds": [False, None, False]}, "'terminateds'"),
        ({"obs": [[0.0, 0.5], None, [7.0, 0.5]]}, "column 'obs'"),
        ({"obs": [[0.0, 0.5], [1.0], [7.0, 0.5]]}, r"'obs'.*\[1.0\].*\b2\b"),
        ({"obs": [[0.0, 0.5], [1.0, None], [7.0, 0.5]]}, r"'obs'.*\[1.0, None\].*\b2\b"),
    ],
)
def test_rows_that_lack_values_are_named(columns, why, tmp_path):
    with pytest.raises(OfflineDataError, match=rf"(?s)row 1.*r\.parquet.*{why}"):
        from_rllib(tmp_path, **columns)


def test_an_empty_table_is_an_error_of_its_own(tmp_path):
    pq.write_table(rllib_table().slice(0, 0), tmp_path / "a.parquet")
    with pytest.raises(OfflineDataError, match="rows"):
        from_parquet(tmp_path)
    pq.write_table(rllib_table(), tmp_path / "b.parquet")
    assert len(from_parquet(tmp_path)) == 2


def test_damaged_files_of_a_folder_are_left_out_by_name(tmp_path):
    one, _ = to_parquet([chunk("m", 10, 3), chunk("m", 20, 3, logp=0.5)], tmp_path)
    data = one.read_bytes()
    for broken in (b"", data[:-20], bytes(4) + data[4:-9] + bytes(9)):
        one.write_bytes(broken)
        with pytest.warns(OfflineDataWarning, match=r"agents-0\.parquet"):
            assert [episode.id_ for episode in from_parquet(tmp_path)] == ["m20"]
        with pytest.raises(OfflineDataError, match=r"agents-0\.parquet"):
            from_parquet(one)


@pytest.mark.slow
@pytest.mark.parametrize("bit", [0, 2, 6])
def test_no_flipped_bit_changes_anything_silently(bit, tmp_path):
    episode = chunk("m", 10, 3)
    (file,) = to_parquet([episode], tmp_path)
    data, usual, places = file.read_bytes(), facts(from_parquet(file)[0]), []
    for place in range(bit, len(data), 23):
        broken = bytearray(data)
        broken[place] ^= 1 << bit
        file.write_bytes(broken)
        with contextlib.suppress(OfflineDataError):
            (found,) = from_parquet(file)
            if facts(found) != usual:
                places.append(place)
    assert places == []


def test_a_file_cannot_ask_for_items_of_any_size(tmp_path):
    (file,) = to_parquet([chunk("m", 10, 3)], tmp_path)
    table = pq.read_table(file)
    about = json.loads(table.schema.metadata[b"marl_connectors"])
    about["trees"]["obs"][0] = "<U1000000"
    pq.write_table(table.replace_schema_metadata({"marl_connectors": json.dumps(about)}), file)
    with pytest.raises(OfflineDataError, match="type"):
        from_parquet(file)


BOX, TWO = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)


def fragments(eps_id, agent_id=None):
    """Six rows: the steps 0 and 1 of an episode, 10 and 11 of another one, and 2 and 3 of the first."""
    first = [0.0, 1.0, 10.0, 11.0, 2.0, 3.0]
    return pa.table(
        {
            "eps_id": eps_id,
            "agent_id": pa.array([None] * 6 if agent_id is None else agent_id, pa.string()),
            "module_id": ["default_policy"] * 6,
            "obs": [[value, 0.5] for value in first],
            "actions": [0, 1, 0, 1, 1, 0],
            "rewards": [value + 0.5 for value in first],
            "new_obs": [[value + 1, 0.5] for value in first],
            "terminateds": [False] * 5 + [True],
            "truncateds": [False] * 6,
        }
    )


def test_fragments_of_two_episodes_that_take_turns_come_back_whole(tmp_path):
    pq.write_table(fragments(["x", "x", "y", "y", "x", "x"]), tmp_path / "r.parquet")
    one, other = from_parquet(tmp_path, observation_space=BOX, action_space=TWO)
    assert (one.id_, one.get_rewards().tolist(), one.is_terminated) == ("x", [0.5, 1.5, 2.5, 3.5], True)
    assert one.get_observations()[:, 0].tolist() == [0, 1, 2, 3, 4] and one.get_actions().tolist() == [0, 1, 1, 0]
    assert (other.id_, other.get_rewards().tolist(), other.is_terminated) == ("y", [10.5, 11.5], False)


def test_agents_whose_rows_take_turns_come_back_whole(tmp_path):
    pq.write_table(fragments(["x"] * 6, ["a", "a", "b", "b", "a", "a"]), tmp_path / "r.parquet")
    (episode,) = from_parquet(tmp_path, observation_space=BOX, action_space=TWO)
    assert {a: e.get_rewards().tolist() for a, e in episode.agent_episodes.items()} == {
        "a": [0.5, 1.5, 2.5, 3.5],
        "b": [10.5, 11.5],
    }


def test_rows_that_do_not_follow_each_other_are_refused_by_name(tmp_path):
    pq.write_table(fragments(["x"] * 6), tmp_path / "r.parquet")
    with pytest.raises(OfflineDataError, match=r"(?s)r\.parquet.*row 2.*'x'.*row 1.*\bobs\b.*new_obs"):
        from_parquet(tmp_path)
    table = fragments(["x", "x", "y", "y", "x", "x"])
    ended = table.set_column(7, "terminateds", [[False, True, False, False, False, True]])
    pq.write_table(ended, tmp_path / "r.parquet")
    with pytest.raises(OfflineDataError, match=r"(?s)row 4.*'x'.*row 1"):
        from_parquet(tmp_path)


def test_chunks_begin_at_the_step_where_they_were_cut(tmp_path):
    begin = MultiAgentEpisode("e", agent_module_ids={"a": "m"})
    begin.add_env_reset(observations={"a": 0.0})
    begin.add_env_step({"a": 1.0}, {"a": 1}, {"a": 0.5})
    begin.add_env_step({"a": 2.0}, {"a": 0}, {"a": 1.5})
    rest = begin.cut()
    rest.add_env_step({"a": 3.0}, {"a": 1}, {"a": 2.5})
    to_parquet([rest], tmp_path)
    (back,) = from_parquet(tmp_path)
    assert back.agent_episodes["a"].t_started == rest.agent_episodes["a"].t_started == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:to_parquet. not written")
@pytest.mark.parametrize("seed", range(3))
def test_rows_come_back_in_any_order_of_the_rows(seed, tmp_path):
    episodes = sampled(seed)
    for file in to_parquet(episodes, tmp_path / "p"):
        table = pq.read_table(file)
        pq.write_table(table.take(np.random.default_rng(seed).permutation(table.num_rows)), file)
    assert list(map(facts, from_parquet(tmp_path / "p"))) == list(map(facts, episodes))


def test_a_row_that_is_gone_is_missed(tmp_path):
    (file,) = to_parquet([chunk("m", 10, 3)], tmp_path)
    table = pq.read_table(file)
    pq.write_table(table.take([0, 2]), file)
    with pytest.raises(OfflineDataError, match=r"(?s)row 1.*'m10'.*row 0.*agent_t"):
        from_parquet(tmp_path)


def test_the_same_episode_in_two_files_is_refused(tmp_path):
    (file,) = to_parquet([chunk("m", 10, 3)], tmp_path)
    (tmp_path / "copy.parquet").write_bytes(file.read_bytes())
    with pytest.raises(OfflineDataError, match=r"(?s)copy\.parquet.*row 0.*agents-0\.parquet.*row 0"):
        from_parquet(tmp_path)
