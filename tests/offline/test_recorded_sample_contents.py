"""Whatever a file with right checksums says: what is never written is damage, which the reader names."""

from __future__ import annotations

import copy
import json
import tracemalloc
import warnings
import zlib
from functools import lru_cache

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX as BOX_OF_LIFE
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.episodes.recorded import document_of
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import EpisodeReader, EpisodeWriter, FlattenObservations, MultiAgentEpisode
from marl_connectors.errors import MarlConnectorsError, OfflineDataError, OfflineDataWarning
from marl_connectors.offline.exchange import agent_rows
from marl_connectors.offline.fit import Fit
from marl_connectors.offline.recording_file import INDEX_FILE, encoded_sample
from marl_connectors.offline.summary import summarize

BOX = spaces.Box(-1.0, 1.0, (2,))
NESTED = spaces.Dict({"x": BOX, "y": spaces.Tuple([spaces.Discrete(3, start=2)])})
NASTY = [
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 2**70, 10**400, 0.5, -1e300, float("inf")),
    *("", "x", "__dict__", [], [[]], [0] * 50, {}, {"a": 1}, [None], ["a", 0]),
    *({"__tensor__": "nothing"}, {"__tuple__": [1]}, {"__float__": "nan"}, {"__dict__": [[[], 1]]}, {"__scalar__": 3}),
    *('{"type": "Box", "low": 0, "high": 1, "shape": [1000000, 1000000], "dtype": "float32"}', '{"type": "Discrete"}'),
    *('{"type": "MultiBinary", "n": 100000000000}', '{"type": "Tuple", "spaces": 3}', "[" * 5000),
]
ODD = {"a": (NESTED, NESTED), 3: (BOX, NESTED)}
ACTIONS = spaces.Discrete(3)
MOST_BYTES = 30 * 2**20


def episodes():
    """Two agents, one of which joins, waits, and comes back; with infos, outputs, notes, and a second chunk."""
    game = MultiAgentEpisode("game", observation_space={"a": NESTED, 3: BOX}, action_space={"a": NESTED, 3: NESTED})
    item = {"x": np.zeros(2, np.float32), "y": (2,)}
    game.add_env_reset(observations={"a": item}, infos={"a": {"n": 1, "deep": {"k": [1, "t"]}}})
    for t in range(4):
        observed = {"a": item, 3: np.ones(2, np.float32)} if t % 2 else {"a": item}
        acting = dict.fromkeys(game.get_agents_to_act(), item)
        game.add_env_step(
            observed,
            acting,
            {"a": 1.0, 3: 0.5},
            {"a": {"n": t, "deep": {"k": [1, "t"]}}},
            terminateds={"a": t == 2},
            extra_model_outputs={agent: {"action_logp": np.float32(0.5)} for agent in acting},
        )
    game.custom_data["note"] = (1, np.arange(3))
    later = game.cut(len_lookback_buffer=2)
    acting = dict.fromkeys(later.get_agents_to_act(), item)
    outputs = {agent: {"action_logp": np.float32(0.5)} for agent in acting}
    later.add_env_step({}, acting, {}, truncateds={"__all__": True}, extra_model_outputs=outputs)
    return [game, later]


@lru_cache
def sampled():
    """Chunks of a run whose observations a piece has written to the episodes."""
    config = small_config(lambda config: LifeEnv(agents="ab", join=0.3, die=0.2, max_steps=5))
    config.env_runners(env_to_module_connector=lambda *_: FlattenObservations())
    with config.multi_agent(policies="shared").build_algo() as algo:
        return algo.env_runner.sample(num_timesteps=20)


def places_in(value, path=()):
    """The paths of all parts of JSON data."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places_in(part, (*path, key))


def mutated(document, tensors, rng):
    """A document and arrays of which one to three parts are others, gone, or there twice."""
    document, tensors = copy.deepcopy(document), {name: array.copy() for name, array in tensors.items()}
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.3:
            name = list(tensors)[rng.integers(len(tensors))]
            kind, array = rng.integers(6), tensors[name]
            if kind == 0:
                del tensors[name]
            elif kind == 1:
                tensors[name] = array[:-1] if array.ndim else array.reshape(1)
            elif kind == 2:
                tensors[name] = np.repeat(array, 3, axis=0) if array.ndim else array.reshape(1, 1)
            elif kind == 3:
                tensors[name] = array.astype(rng.choice([np.int8, np.uint64, np.float16, np.bool_]))
            elif array.size:
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                flat[rng.integers(len(flat))] = rng.integers(256)
                tensors[name] = flat.view(array.dtype).reshape(array.shape)
            continue
        paths = [path for path in places_in(document) if path]
        path = paths[rng.integers(len(paths))]
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if rng.random() < 0.2:
            del parent[path[-1]]
        elif isinstance(parent, list) and rng.random() < 0.2:
            parent.append(copy.deepcopy(parent[path[-1]]))
        else:
            parent[path[-1]] = copy.deepcopy(NASTY[rng.integers(len(NASTY))])
    return document, tensors


def write(folder, document, arrays):
    """Writes a file of one sample, whose checksums are right."""
    folder.mkdir(exist_ok=True)
    number = len(document["episodes"]["id"]) if isinstance(document.get("episodes"), dict) else 0
    data = encoded_sample(document, arrays, offset=0, number=0, episodes_before=0, num_episodes=number)
    (folder / "episodes-000000.episodes").write_bytes(data)


def use(folder, spaces_of):
    """Uses everything that a reader gives, as a run and the command line do."""
    fit = Fit(spaces_of, ["FlattenObservations"], [], None, ())
    reader = EpisodeReader(folder, order="in_order", join_chunks=True)
    reader.check(fit)
    for episode in reader.sample():
        for getter in (episode.get_observations, episode.get_actions, episode.get_rewards, episode.get_infos):
            getter()
        episode.get_actions(one_hot_discrete=True)
        episode.get_state()
        agent_rows(episode)
    summarize(EpisodeReader(folder, check_all=True))


@pytest.mark.few(7)
@pytest.mark.parametrize("seed", [*range(40), *fresh_seeds(500)])
def test_a_changed_file_with_right_checksums_is_damaged_or_read(seed, tmp_path):
    rng = np.random.default_rng(seed)
    source, spaces_of = (episodes(), ODD) if seed % 2 else (sampled(), dict.fromkeys("ab", (BOX_OF_LIFE, ACTIONS)))
    document, tensors = mutated(*document_of(source), rng)
    try:
        write(tmp_path / "data", document, tensors)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return  # the test's own writer cannot write it
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OfflineDataWarning)
            use(tmp_path / "data", spaces_of)
    except MarlConnectorsError as error:
        assert "episodes-000000.episodes" in str(error)  # noqa: PT017
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES


def test_what_a_run_with_pieces_has_written_is_read(tmp_path):
    document, tensors = document_of(sampled())
    assert any(own["level"] for own in document["rollouts"])
    write(tmp_path / "data", document, tensors)
    use(tmp_path / "data", dict.fromkeys("ab", (BOX_OF_LIFE, ACTIONS)))


def test_what_is_wrong_is_named_with_the_file_and_the_sample(tmp_path):
    document, tensors = document_of(episodes())
    write(tmp_path / "sound", document, tensors)
    use(tmp_path / "sound", ODD)
    document["agent_episodes"]["stop_row"][0] = 10**6
    write(tmp_path / "data", document, tensors)
    with (
        pytest.warns(OfflineDataWarning, match="rollout"),
        pytest.raises(OfflineDataError, match=r"(?s)episodes-000000.episodes.*sample 0"),
    ):
        EpisodeReader(tmp_path / "data")


def test_rows_cannot_be_those_of_many_chunks(tmp_path):
    """Each of them would be copied, so that a small file would make a reader fill the memory."""
    with EpisodeWriter(tmp_path / "sound") as writer:
        writer.write(episodes())
    document, tensors = document_of(episodes())
    for column in document["agent_episodes"].values():
        column += column[-1:] * 1000
    document["episodes"]["end"][-1] += 1000
    write(tmp_path / "data", document, tensors)
    with (
        pytest.warns(OfflineDataWarning, match="several"),
        pytest.raises(OfflineDataError, match="intact"),
    ):
        EpisodeReader(tmp_path / "data")


@pytest.mark.parametrize(
    "line", [{"samples": "many"}, {"episodes": None}, {"is_closed": 3}, {"file": 7}, {"samples": -1}, {"more": 1}]
)
def test_a_line_of_the_index_with_other_types_is_damage(line, tmp_path):
    with EpisodeWriter(tmp_path) as writer:
        writer.write(episodes())
    own = {"file": "episodes-000000.episodes", "samples": 1, "episodes": 2, "is_closed": True, **line}
    (tmp_path / INDEX_FILE).write_bytes(
        json.dumps({**own, "crc32": zlib.crc32(json.dumps(own).encode())}).encode() + b"\n"
    )
    with pytest.warns(OfflineDataWarning, match="damaged"):
        assert len(EpisodeReader(tmp_path).sample()) == 2
