"""Pieces that get arrays: what they see, what they may return, and that items give the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given

from helpers.custom_pieces import MortalEnv, by_agent, config, train_and_spy
from helpers.episodes.multi_agent_histories import (
    EPISODES,
    MAPPINGS,
    assert_same_batch,
    columns_of,
    make_modules,
    play,
    real_rows,
    sorted_by_observation,
)
from helpers.examples import examples
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import env_to_module_pipeline, learner_pipeline
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.item_adapter import to_items
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, EpisodeError

MODULES_OF_ALL_TESTS = make_modules()
ONE_OF_EACH = dict(zip("abcd", ("red", "green", "blue", "red"), strict=True))


class Shifted(ConnectorV2):
    """Makes observations of other modules differ, and of other shapes than the environment's."""

    def columns(self, c, xp):
        obs = torch.tensor(np.asarray(c["obs"]))
        lengths = torch.tensor(np.repeat([len(module_id) for module_id in c.module_ids], np.diff(c.splits)))
        shifted = torch.cat([obs, obs[:, :1] + lengths[:, None]], dim=1)
        c["obs"] = shifted if isinstance(c["obs"], torch.Tensor) else shifted.numpy()


class Looks(ConnectorV2):
    """Adds what it finds around each row."""

    def columns(self, c, xp):
        c["before"] = c.rows.get("rewards", -1, fill=-99.0)
        c["now"] = c.rows.get("rewards")
        c["next_obs"] = c.rows.get("obs", 1, fill=0.0)
        c["who"] = np.array([ord(agent_id) for agent_id in c.rows.agent_ids])
        c["ends"] = np.stack([c.rows.terminateds, c.rows.truncateds], axis=1)
        c["when"] = c.rows.t


class Nothing(ConnectorV2):
    def columns(self, c, xp):
        pass


def on_items(pipeline, episodes):
    return pipeline(rl_module=MODULES_OF_ALL_TESTS, batch={}, episodes=copy.deepcopy(episodes), shared_data={})


def piece_maker(cls):
    return lambda: cls()


def real_items(batch):
    """The rows of steps that were taken."""
    return {
        module_id: {
            name: [v for v, real in zip(column, columns["loss_mask"], strict=True) if real]
            for name, column in columns.items()
        }
        for module_id, columns in batch.items()
    }


# The same on items and on columns.


@pytest.mark.parametrize("place", range(1, 7))  # the first piece makes the episodes longer
@examples(20)
@given(histories=EPISODES, mapping=MAPPINGS)
def test_a_train_batch_is_the_same_on_items_and_columns_wherever_the_piece_stands(place, histories, mapping):
    episodes = play(histories, mapping)
    batch = columns_of(episodes, train=True)
    if not batch.groups:
        return
    pipeline = learner_pipeline(multi_agent=True)
    pipeline._insert(place, Shifted())
    pipeline._insert(place, Looks())
    items = on_items(pipeline, episodes)
    found = real_rows(pipeline.run(batch, rl_module=MODULES_OF_ALL_TESTS, episodes=episodes))
    assert all(columns["obs"].shape[1] == 4 for columns in items.values())
    assert_same_batch(sorted_by_observation(real_items(items)), sorted_by_observation(found))


@pytest.mark.parametrize("place", range(5))
@examples(20)
@given(histories=EPISODES, mapping=MAPPINGS)
def test_a_forward_batch_is_the_same_on_items_and_columns_wherever_the_piece_stands(place, histories, mapping):
    episodes = play(histories, mapping)
    pipeline = env_to_module_pipeline(multi_agent=True)
    pipeline._insert(place, Shifted())
    batch = columns_of(episodes, train=False)
    items = on_items(pipeline, episodes)
    pipeline.run(batch, rl_module=MODULES_OF_ALL_TESTS, episodes=episodes)
    found = {m: c for group in batch.groups for m, c in group.module_columns()}
    assert_same_batch(items, found)
    assert all(isinstance(column, torch.Tensor) for columns in items.values() for column in columns.values())


def test_in_a_run_the_newest_rows_are_the_same_on_items_and_columns():
    """Three agents die one after another, so that the rows of a step are now these and now those."""
    compared = []

    class Reads(ConnectorV2):
        def columns(self, c, xp):
            assert c.explore is True
            c["reward"] = c.rows.get("rewards", -1, fill=-99.0).astype(np.float32)
            c["former"] = c.rows.get("obs", -1, fill=7.0)
            c["t"] = c.rows.t

    class Compares(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            again = Reads()(rl_module=None, batch={}, episodes=episodes, explore=True)
            assert set(again) == set(batch) == {"reward", "former", "t"}
            for name, by_key in batch.items():
                assert set(again[name]) == set(by_key)
                for key, items in by_key.items():
                    np.testing.assert_array_equal(again[name][key], items, err_msg=f"{name} {key}")
            compared.append({key[1]: float(items[0]) for key, items in batch["reward"].items()})
            return {}

    runner = config(lambda env_config: MortalEnv(), env_to_module_connector=lambda: [Reads(), Compares()]).build_algo()
    runner.env_runner.sample(num_episodes=1)
    steps = [step for step in compared if step]
    assert steps[:3] == [dict.fromkeys("abc", -99.0), dict.fromkeys("abc", 1.0), {"a": 2.0}]
    assert {"b": 3.0, "c": 3.0} in steps


def test_what_is_written_to_the_episodes_is_what_the_learner_gets():
    """On items with RLlib's interface, and on columns: one run."""

    class Wider(ConnectorV2):
        def recompute_output_observation_space(self, in_obs_space, in_act_space):
            return spaces.Dict({a: spaces.Box(-np.inf, np.inf, (s.shape[0] + 1,)) for a, s in in_obs_space.items()})

    class OnItems(Wider):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                reward = np.float32(episode.get_rewards(-1, fill=0.0))
                episode.set_observations(new_data=np.append(episode.get_observations(-1), reward), at_indices=-1)
            return batch

    class OnColumns(Wider):
        def columns(self, c, xp):
            reward = c.rows.get("rewards", -1, fill=0.0)[:, None]
            c.rows.set("obs", np.append(c["obs"], reward, axis=1).astype(np.float32))

    seen = [
        train_and_spy(config(lambda env_config: MortalEnv(), env_to_module_connector=piece_maker(piece)))[0]
        for piece in (OnItems, OnColumns)
    ]
    one, other = (each["default_policy"] for each in seen)
    assert one["obs"].shape[1] == 3
    assert set(one) == set(other)
    for name, column in one.items():
        np.testing.assert_array_equal(column, other[name], err_msg=name)


def test_after_advantages_the_rows_are_those_that_are_left():
    class Doubled(ConnectorV2):
        def columns(self, c, xp):
            assert len(c.rows) == len(c["rewards"]) == len(c.rows.agent_ids) == len(c.rows.t)
            assert c.rows.acted.all()
            np.testing.assert_array_equal(c.rows.get("rewards"), c["rewards"])
            np.testing.assert_array_equal(c.rows.terminateds, c["terminateds"])
            c["doubled"] = 2 * c["rewards"]

    settings_ = config(lambda env_config: MortalEnv())
    algorithm = settings_.build_algo()
    algorithm.learner.pipeline.append(Doubled())
    batch = algorithm.learner.make_batch(algorithm.env_runner.sample(num_episodes=1))
    (group,) = batch.groups
    assert len(group["doubled"]) == 2 + 4 + 6
    assert by_agent({"obs": group["obs"].numpy(), "doubled": group["doubled"].numpy()}, "doubled") == {
        "a": [2, 4],
        "b": [2, 4, 6, 8],
        "c": [2, 4, 6, 8, 10, 12],
    }


def test_writing_after_advantages_leaves_last_rows_alone():
    class Negative(ConnectorV2):
        def columns(self, c, xp):
            c.rows.set("rewards", -c.rows.get("rewards"))
            c.rows.set("obs", -c.rows.get("obs"))

    algorithm = config(lambda env_config: MortalEnv()).build_algo()
    algorithm.learner.pipeline.append(Negative())
    (episode,) = algorithm.env_runner.sample(num_episodes=1)
    algorithm.learner.make_batch([episode])
    kept = episode.agent_episodes["a"]
    assert kept.get_rewards().tolist() == [-1.0, -2.0]
    assert kept.get_observations().tolist() == [[0, 0], [0, -1], [0, 2]]


# What a piece sees, by hand.


def chunk():
    """Two agents: a ends by termination, b is truncated a step later. Rewards are 10 × t for a, t for b."""
    episode = MultiAgentEpisode("g", agent_to_module_mapping_fn=lambda agent, episode: "ab"["ab".index(agent)])
    see = lambda t, agents: {agent: np.array([t, ord(agent)], np.float32) for agent in agents}
    episode.add_env_reset(observations=see(0, "ab"))
    episode.add_env_step(see(1, "ab"), {"a": 0, "b": 0}, {"a": 10.0, "b": 1.0})
    episode.add_env_step(see(2, "ab"), {"a": 0, "b": 0}, {"a": 20.0, "b": 2.0}, terminateds={"a": True})
    episode.add_env_step(see(3, "b"), {"b": 0}, {"b": 3.0}, truncateds={"b": True, "__all__": True})
    return episode


class Remembers(ConnectorV2):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def columns(self, c, xp):
        rows = c.rows
        for module_id, part in c.parts():
            self.seen[module_id] = {
                "obs": c["obs"][part, 0].tolist(),
                "agents": list(rows.agent_ids[part]),
                "episodes": list(rows.episode_ids[part]),
                "acted": None if rows.acted is None else rows.acted[part].tolist(),
                "terminateds": rows.terminateds[part].tolist(),
                "truncateds": rows.truncateds[part].tolist(),
                "t": rows.t[part].tolist(),
                "before": rows.get("rewards", -1, fill=0.0)[part].tolist(),
                "after": rows.get("obs", 1, fill=-1.0)[part, 0].tolist(),
            }


SEEN_OF_B = {
    "obs": [0.0, 1.0, 2.0, 3.0],
    "agents": ["b"] * 4,
    "episodes": ["g"] * 4,
    "acted": [True, True, True, False],
    "terminateds": [False] * 4,
    "truncateds": [False, False, True, False],
    "t": [0, 1, 2, 3],
    "before": [0.0, 1.0, 2.0, 3.0],
    "after": [1.0, 2.0, 3.0, -1.0],
}


def test_the_rows_of_a_train_batch_by_hand():
    piece = Remembers()
    LearnerConnectorPipeline(connectors=[piece])(rl_module=None, batch={}, episodes=[chunk()])
    assert piece.seen["b"] == SEEN_OF_B
    assert piece.seen["a"]["terminateds"] == [False, True, False]
    assert piece.seen["a"]["before"] == [0.0, 10.0, 20.0]
    on_columns = Remembers()
    batch = columns_of([chunk()], train=True, module_ids=("a", "b"))
    ConnectorPipelineV2(connectors=[on_columns]).run(batch, rl_module=None, episodes=[])
    assert on_columns.seen == piece.seen


def test_the_newest_rows_by_hand():
    piece = Remembers()
    EnvToModulePipeline(connectors=[piece])(rl_module=None, batch={}, episodes=[chunk()])
    assert list(piece.seen) == ["b"]
    assert piece.seen["b"]["before"] == [3.0]
    assert (piece.seen["b"]["t"], piece.seen["b"]["acted"]) == ([3], None)


def test_before_anybody_has_acted_there_are_only_observations():
    episode = SingleAgentEpisode("e", observation_space=spaces.Box(-9.0, 9.0, (2,)), action_space=spaces.Discrete(3))
    episode.add_env_reset(np.array([1.0, 2.0], np.float32))
    found = {}

    class Looks(ConnectorV2):
        def columns(self, c, xp):
            found.update(rewards=c.rows.get("rewards", -1, fill=5.0), actions=c.rows.get("actions", -1, fill=2))
            found.update(obs=c["obs"], who=c.rows.agent_ids, ids=c.rows.episode_ids, module_ids=c.module_ids)

    Looks()(rl_module=None, batch={}, episodes=[episode])
    assert (found["rewards"].tolist(), found["actions"].tolist()) == ([5.0], [2])
    assert found["obs"].tolist() == [[1.0, 2.0]]
    assert (found["who"].tolist(), found["ids"].tolist(), found["module_ids"]) == ([None], ["e"], ("default_policy",))


def test_an_observation_in_the_batch_comes_before_the_trajectories():
    class First(ConnectorV2):
        def columns(self, c, xp):
            c["obs"] = c["obs"] + 100

    class Second(ConnectorV2):
        def columns(self, c, xp):
            c["both"] = np.stack([c["obs"][:, 0], c.rows.get("obs")[:, 0]], axis=1)

    pipeline = EnvToModulePipeline(connectors=[First(), Second()])
    batch = pipeline.run(columns_of(play([[]], ONE_OF_EACH), train=False), rl_module=None, episodes=[])
    assert batch.groups[0]["both"].tolist() == [[100.0, 0.0]] * 3
    items = pipeline(rl_module=None, batch={}, episodes=play([[]], ONE_OF_EACH))
    assert [item.tolist() for items_ in items["both"].values() for item in items_] == [[100.0, 0.0]] * 3


def test_a_column_form_alone_works_by_hand():
    class AppendReward(ConnectorV2):
        def columns(self, c, xp):
            reward = c.rows.get("rewards", offset=-1, fill=0.0)
            c.rows.set("obs", np.append(c.rows.get("obs"), reward[:, None], axis=1).astype(np.float32))

    episode = SingleAgentEpisode(
        observations=[np.zeros(2), np.ones(2)], actions=[0], rewards=[5.0], len_lookback_buffer=0
    )
    assert AppendReward()(rl_module=None, batch={}, episodes=[episode]) == {}
    assert episode.get_observations(-1).tolist() == [1.0, 1.0, 5.0]
    assert episode.get_observations(0).tolist() == [0.0, 0.0]
    episode.add_env_step(np.full(2, 2.0), 0, 6.0)
    assert AppendReward()(rl_module=None, batch={}, episodes=[episode]) == {}
    assert episode.get_observations(-1).tolist() == [2.0, 2.0, 6.0]


def test_a_batch_tells_a_piece_without_pipeline_what_kind_it_is():
    episode = chunk()
    keys = [("g", "a", "a"), ("g", "b", "b")]
    obs = {key: episode.agent_episodes[key[1]].get_observations(slice(0, -1)) for key in keys}
    piece = Remembers()
    items = piece(rl_module=None, batch={"obs": {key: list(values) for key, values in obs.items()}}, episodes=[episode])
    assert piece.seen["b"] == SEEN_OF_B
    assert [len(items["obs"][key]) for key in keys] == [2, 3]


def test_items_that_a_piece_does_not_touch_stay():
    class Adds(ConnectorV2):
        def columns(self, c, xp):
            c["y"] = c["x"] * 2

    items = {key: [np.float32(i)] for i, key in enumerate([("e0", a, ONE_OF_EACH[a]) for a in "abc"], 1)}
    found = Adds()(rl_module=None, batch={"x": items}, episodes=play([[]], ONE_OF_EACH))
    assert {key[1]: values for key, values in found["y"].items()} == {"a": [2.0], "b": [4.0], "c": [6.0]}
    assert {key[1]: values for key, values in found["x"].items()} == {"a": [1.0], "b": [2.0], "c": [3.0]}


# Wrong use.


def run_on_columns(piece, *, train=False):
    batch = columns_of(play([[]], ONE_OF_EACH), train=train)
    return ConnectorPipelineV2(connectors=[piece]).run(batch, rl_module=None, episodes=[])


def test_what_is_read_from_the_trajectories_as_obs_cannot_be_written_to():
    class Writes(ConnectorV2):
        def columns(self, c, xp):
            with pytest.raises(ValueError, match="read-only"):
                c["obs"][:] = 0
            c["twice"] = c["obs"] * 2

    assert "obs" not in run_on_columns(Writes()).groups[0]


def test_a_piece_may_treat_each_module_differently():
    class OnlyRed(ConnectorV2):
        def columns(self, c, xp):
            more = np.zeros(c.splits[-1])
            for module_id, part in c.parts():
                more[part] = 50 * (module_id == "red")
            c["obs"] = c["obs"] + more[:, None]

    columns = dict(run_on_columns(OnlyRed()).groups[0].module_columns())
    assert columns["red"]["obs"].tolist() == [[50.0, 50.0, 50.0]]
    assert columns["green"]["obs"].tolist() == [[0.0, 1.0, 0.0]]


def test_an_unknown_column_says_what_there_is():
    class Misspelt(ConnectorV2):
        def columns(self, c, xp):
            c["x"] = c["ob"]

    with pytest.raises(ConnectorError, match=r"(?s)'ob'.*rows.get\('ob'\)"):
        run_on_columns(Misspelt())


@pytest.mark.parametrize("offset", [-1, 1])
def test_out_of_reach_without_fill_is_an_error_in_both_forms(offset):
    class Reaches(ConnectorV2):
        def columns(self, c, xp):
            c.rows.get("obs", offset)

    for run in (run_on_columns, lambda piece: piece(rl_module=None, batch={}, episodes=play([[]], ONE_OF_EACH))):
        with pytest.raises((ConnectorError, EpisodeError), match=f"(?s)'obs'.*{offset}"):
            run(Reaches())


def test_a_step_that_was_not_taken_cannot_be_written_on_items():
    class Writes(ConnectorV2):
        def columns(self, c, xp):
            c.rows.set("rewards", np.zeros(len(c.rows)))

    with pytest.raises(EpisodeError, match="'rewards'"):
        Writes()(rl_module=None, batch={}, episodes=play([[]], ONE_OF_EACH))


def test_a_wrong_number_of_items_is_an_error():
    batch = {"x": {("e0", agent, ONE_OF_EACH[agent]): [1] * (1 + (agent == "b")) for agent in "abc"}}
    piece = Nothing()
    piece.in_learner_pipeline = False
    with pytest.raises(ConnectorError, match=r"(?s)\b2\b.*'x'.*\('e0', 'b', 'green'\).*\b1\b"):
        piece(rl_module=None, batch=batch, episodes=play([[]], ONE_OF_EACH))


def test_a_trajectory_column_of_its_own_can_be_written_on_items():
    class Notes(ConnectorV2):
        def columns(self, c, xp):
            c.rows.set("note", c.rows.t * 10)

    episode = chunk()
    LearnerConnectorPipeline(connectors=[Notes()])(rl_module=None, batch={}, episodes=[episode])
    assert list(episode.agent_episodes["b"].get_extra_model_outputs("note")) == [0, 10, 20]


def test_items_and_columns_meet_in_one_pipeline():
    """A piece on columns, one on items, one on columns."""

    class Adds(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, "x", np.float32(ord(episode.agent_id)), episode)
            return batch

    class Sums(ConnectorV2):
        def columns(self, c, xp):
            c["sum"] = c["x"] + c["obs"][:, 1]

    episodes = play([[]], ONE_OF_EACH)
    pipeline = EnvToModulePipeline(connectors=[Shifted(), Adds(), Sums()])
    batch = pipeline.run(columns_of(episodes, train=False), rl_module=None, episodes=episodes)
    items = pipeline(rl_module=None, batch={}, episodes=episodes)
    found = to_items(batch)
    assert {key[1]: float(values[0]) for key, values in found["sum"].items()} == {"a": 97.0, "b": 99.0, "c": 101.0}
    assert {key: float(values[0]) for key, values in found["sum"].items()} == {
        key: float(values[0]) for key, values in items["sum"].items()
    }


def test_advantages_after_a_column_piece_are_the_same_on_items():
    episodes = play([[{"absent": set(), "ends": {"a": True}, "rewards": {"a": 3, "b": 2}}] * 3], ONE_OF_EACH)
    pipeline = learner_pipeline(multi_agent=True)
    pipeline.prepend(Nothing())
    pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8))
    items = on_items(pipeline, episodes)
    found = real_rows(pipeline.run(columns_of(episodes, train=True), rl_module=MODULES_OF_ALL_TESTS, episodes=episodes))
    for module_id in items:
        np.testing.assert_allclose(
            sorted(map(float, items[module_id]["advantages"])),
            sorted(map(float, found[module_id]["advantages"])),
            atol=1e-4,
        )
