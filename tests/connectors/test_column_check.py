"""What a user's piece makes of columns is checked, rows stay those of the columns, and errors say where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.episodes.multi_agent_histories import AGENTS, MODULES, columns_of, make_modules, play
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import learner_pipeline
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, EpisodeError

MODULES_OF_ALL_TESTS = make_modules()
COLOURS = dict(zip(AGENTS, ("red", "green", "blue", "red"), strict=True))
STEP = {"absent": (), "rewards": {"a": 1.0, "b": 2.0}, "ends": {}}
HISTORIES = [[STEP, STEP, {**STEP, "ends": {"a": True}}], [STEP, {**STEP, "absent": ("b",)}, STEP, STEP]]


def column_piece(work):
    """A piece that does ``work(columns)``."""

    class Mine(ConnectorV2):
        def columns(self, c, xp):
            work(c)

    return Mine()


def item_piece(work):
    """A piece that does ``work(batch, episodes)`` on items."""

    class OnItems(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            work(self, batch, episodes)
            return batch

    return OnItems()


def run(*pieces, episodes=None, cls=ConnectorPipelineV2):
    episodes = play(HISTORIES, COLOURS) if episodes is None else episodes
    return cls(connectors=list(pieces)).run(columns_of(episodes, train=True), rl_module=None, episodes=episodes)


def train_batch(pipeline, episodes, on_items):
    if on_items:
        return pipeline(rl_module=None, batch={}, episodes=episodes)
    alone = isinstance(episodes[0], SingleAgentEpisode)
    batch = ColumnBatch([ColumnGroup(rows_of_episodes(episodes, ["default_policy"]))]) if alone else None
    return pipeline.run(batch or columns_of(episodes, train=True), rl_module=None, episodes=episodes)


def chunk(agent_id="pia", lookback=1, t_started=5):
    """One that went on before what it keeps."""
    return SingleAgentEpisode(
        agent_id,
        observations=[np.array([n], np.float32) for n in range(4)],
        actions=[0, 1, 0],
        rewards=[1.0, 2.0, 3.0],
        t_started=t_started,
        len_lookback_buffer=lookback,
    )


# What comes back.


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda n: np.zeros((n - 1, 2)), r"'x'.*\({short}, 2\).*\[{n}, \.\.\.\]"),
        (lambda n: torch.zeros(n + 1), r"'x'.*\({long},\).*\[{n}, \.\.\.\]"),
        (lambda n: {"a": np.zeros(n), "b": (np.zeros(n), np.zeros(1))}, r"'x'.*\(1,\)"),
        (lambda n: np.float32(1), "'x'.*float32"),
        (lambda n: np.array(1.0), r"'x'.*\(\)"),
        (lambda n: [0.0] * n, "'x'.*float, .*list"),
        (lambda n: None, "'x'.*empty"),
        (lambda n: InfoColumn([{}] * (n - 1)), r"'x'.*\({short},\)"),
    ],
)
def test_a_column_that_is_not_one_row_each_is_an_error_with_pipeline_piece_and_column(made, message):
    episodes = play(HISTORIES, COLOURS)
    n = len(columns_of(episodes, train=True).groups[0].rows)
    piece = column_piece(lambda columns: columns.update(x=made(n)))
    message = message.replace("{n}", str(n)).replace("{short}", str(n - 1)).replace("{long}", str(n + 1))
    with pytest.raises(ConnectorError, match="(?s)^ConnectorPipelineV2.*Mine.*'red'.*" + message):
        run(piece, episodes=episodes)


def test_what_a_piece_has_changed_in_place_is_checked_and_what_it_left_alone_is_not():
    def spoils(columns):
        columns["x"]["a"] = columns["x"]["a"][1:]

    first = column_piece(lambda columns: columns.update(x={"a": np.zeros(len(columns.rows))}))
    with pytest.raises(ConnectorError, match=r"(?s)Mine_2.*'x'"):
        run(first, column_piece(spoils))

    infos = column_piece(lambda columns: columns.update(infos=[{} for _ in range(len(columns.rows))]))
    assert isinstance(run(infos).groups[0]["infos"], InfoColumn)
    with pytest.raises(ConnectorError, match=r"(?s)Mine_2.*'infos'"):
        run(infos, column_piece(lambda columns: columns["infos"].pop()))

    batch = columns_of(play(HISTORIES, COLOURS), train=True)
    batch.groups[0]["of a module"] = np.zeros(1)
    ConnectorPipelineV2(connectors=[column_piece(lambda columns: None)]).run(batch, rl_module=None, episodes=[])


@pytest.mark.parametrize("on_items", [False, True])
@pytest.mark.parametrize("values", [lambda n: np.zeros((n - 1, 3), np.float32), lambda n: np.zeros((1, 3), np.float32)])
def test_written_back_items_must_be_one_for_each_row(values, on_items):
    episodes = play(HISTORIES, COLOURS)
    piece = column_piece(lambda columns: columns.rows.set("obs", values(len(columns.rows))))
    pipeline = LearnerConnectorPipeline(connectors=[piece])
    with pytest.raises(ConnectorError, match=r"(?s)EpisodeError.*Rows.*'obs'.*\(\d+, 3\)"):
        train_batch(pipeline, episodes, on_items)


# Behind pieces that drop rows.


class Masks(ConnectorV2):
    """Steps with odd numbers, and every episode's last one, are not trained on."""

    def columns(self, c, xp):
        mask = c["loss_mask"].copy()
        mask[::2] = False
        mask[c.rows.last_steps()] = False
        c["loss_mask"] = mask


def rows_agree(columns):
    rows = columns.rows
    assert (columns.splits, columns.rows_per_module) == (rows.splits, rows.rows_per_module)
    assert sum(rows.counts) == len(rows) == columns.splits[-1]
    assert len(rows.episodes) == len(rows.counts)
    assert np.array_equal(rows.get("obs"), columns["obs"].numpy())
    assert np.array_equal(rows.get("actions"), columns["actions"].numpy())
    assert rows.acted.all()
    columns["advantages"] = columns["advantages"] * 1


class Agrees(ConnectorV2):
    def columns(self, c, xp):
        assert len(c.rows) == len(c["obs"]) == sum(c.rows.counts)
        assert np.array_equal(c.rows.get("obs"), c["obs"].numpy())
        assert np.array_equal(c.rows.terminateds, c["terminateds"].numpy())
        assert np.array_equal(c.rows.truncateds, c["truncateds"].numpy())
        for module_id, part in c.parts():
            assert {COLOURS[agent] for agent in c.rows.agent_ids[part]} <= {module_id}
        assert c.rows.acted.all()
        self.seen = True


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("by_items", [False, True])
def test_behind_advantages_rows_are_those_of_the_columns(masked, by_items):
    episodes = play(HISTORIES, COLOURS)
    pipeline = learner_pipeline([Masks()] if masked else [], multi_agent=True)
    pipeline.append(GeneralAdvantageEstimation())
    pipeline.append(agrees := Agrees())
    pipeline.append(column_piece(rows_agree))
    if by_items:
        pipeline.insert_before(Agrees, item_piece(lambda piece, batch, episodes: None))
    before = columns_of(episodes, train=True)
    count = len(before.groups[0].rows)
    (group,) = pipeline.run(before, rl_module=MODULES_OF_ALL_TESTS, episodes=episodes).groups
    assert agrees.seen
    assert 0 < len(group.rows) < count


def test_rows_that_a_piece_on_items_has_dropped_are_gone_from_rows_too():
    def drops(piece, batch, episodes):
        for columns in batch.values():
            mask = columns.pop("loss_mask")
            columns.update({name: column[mask] for name, column in columns.items()})

    episodes = play(HISTORIES, COLOURS)
    pipeline = learner_pipeline([], multi_agent=True)
    pipeline.append(item_piece(drops))
    pipeline.append(agrees := Agrees())
    (group,) = pipeline.run(columns_of(episodes, train=True), rl_module=MODULES_OF_ALL_TESTS, episodes=episodes).groups
    assert agrees.seen
    assert len(group.rows) == sum(len(e) for episode in episodes for e in episode.all_agent_episodes())


@pytest.mark.parametrize("masked", [False, True])
def test_items_behind_advantages_stand_by_episode(masked):
    def sees(piece, batch, episodes):
        seen.append({m: columns["obs"].numpy().copy() for m, columns in batch.items()})

    def numbered(columns):
        columns["number"] = torch.arange(columns.splits[-1])

    episodes = play([*HISTORIES, *HISTORIES], COLOURS)
    seen = []
    pipeline = learner_pipeline([Masks()] if masked else [], multi_agent=True)
    for piece in (GeneralAdvantageEstimation(), column_piece(numbered), item_piece(sees), column_piece(rows_agree)):
        pipeline.append(piece)
    (group,) = pipeline.run(columns_of(episodes, train=True), rl_module=MODULES_OF_ALL_TESTS, episodes=episodes).groups
    assert group["number"].tolist() == list(range(len(group.rows)))
    assert set(seen[0]) == set(MODULES)


# Episodes that are taken out.


@pytest.mark.parametrize("where", [None, "AddColumnsFromEpisodesToTrainBatch"])
def test_episodes_that_a_learner_piece_takes_out_are_out_for_the_run(where):
    def takes_out(piece, batch, run_episodes):
        run_episodes[:] = list(run_episodes)[1:]

    def one_sees(piece, batch, run_episodes):
        seen.append(len(run_episodes))

    results = []
    for left in (False, True):
        seen = []
        pieces = [item_piece(one_sees)] if left else [item_piece(takes_out), item_piece(one_sees)]
        episodes = play(HISTORIES, COLOURS)
        given = episodes[1:] if left else episodes
        pipeline = learner_pipeline([] if where else pieces, multi_agent=True)
        for piece in reversed(pieces if where else []):
            pipeline.insert_after(where, piece)
        pipeline.append(GeneralAdvantageEstimation())
        batch = pipeline.run(columns_of(given, train=True), rl_module=MODULES_OF_ALL_TESTS, episodes=given)
        assert seen == [1]
        assert len(given) == 2 - left
        results.append(batch.groups[0])
    out, never_in = results
    assert out.splits == never_in.splits
    assert {name: column.tolist() for name, column in out.items()} == {
        name: column.tolist() for name, column in never_in.items()
    }


def test_an_episode_that_nobody_knows_cannot_be_put_in():
    def puts_in(piece, batch, run_episodes):
        run_episodes[0] = play(HISTORIES[1:], COLOURS)[0]

    with pytest.raises(ConnectorError, match=r"(?s)'a'.*\(module 'red', episode 'e0'\)"):
        run(item_piece(puts_in), cls=LearnerConnectorPipeline)


# Errors.


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda columns: columns["rewardss"], "'rewardss'.*'rewards'"),
        (lambda columns: columns.rows.get("rewardss"), "'rewardss'.*'rewards'"),
        (lambda columns: columns.rows.get("rewardss", -1), "'rewardss'.*'rewards'"),
        (
            lambda columns: columns.rows.get("rewards", -1),
            r"'rewards'.*offset -1.*'a' \(module 'red', episode 'e0'\).*step 0",
        ),
    ],
)
@pytest.mark.parametrize("on_items", [False, True])
def test_errors_on_columns_name_what_is_known_and_whose_row_it_is(work, message, on_items):
    def known(columns):
        columns["rewards"] = columns.rows.get("rewards")

    episodes = play(HISTORIES, COLOURS)
    pipeline = LearnerConnectorPipeline(connectors=[column_piece(known), column_piece(work)])
    with pytest.raises(ConnectorError, match="(?s)Mine_2.*" + message):
        train_batch(pipeline, episodes, on_items)


@pytest.mark.parametrize("on_items", [False, True])
def test_steps_that_were_not_kept_are_an_error_with_a_fill_too(on_items):
    pipeline = LearnerConnectorPipeline(connectors=[column_piece(lambda c: c.rows.get("rewards", -2, fill=0.0))])
    message = r"(?s)offset -2.*step 5.*\b5\b.*'pia'.*\b1\b"
    with pytest.raises(ConnectorError, match=message):
        train_batch(pipeline, [chunk()], on_items)


def test_steps_that_were_not_kept_are_an_error_for_one_module_of_several():
    episodes = play(HISTORIES, COLOURS)
    cut = [episode.cut(len_lookback_buffer=0) for episode in episodes]
    for number, episode in enumerate(cut):
        acting = episode.get_agents_to_act()
        observed = {agent: np.full(3, number, np.float32) for agent in acting}
        outputs = {a: {"action_logp": np.float32(0), "action_dist_inputs": np.zeros(4, np.float32)} for a in acting}
        episode.add_env_step(
            observed, dict.fromkeys(acting, 0), dict.fromkeys(acting, 1.0), extra_model_outputs=outputs
        )

    class Before(ConnectorV2):
        def columns(self, c, xp):
            c["x"] = c.rows.get("rewards", -1, fill=0.0)

    with pytest.raises(ConnectorError, match=r"only 0\b"):
        run(Before(), episodes=cut)


def test_an_agent_at_which_a_loop_was_left_is_not_blamed_for_what_comes_later():
    def breaks(piece, batch, episodes):
        for _ in piece.single_agent_episode_iterator(episodes):
            break
        raise ValueError("later")

    def fails(piece, batch, episodes):
        for episode in piece.single_agent_episode_iterator(episodes):
            if episode.agent_id == "b":
                raise ValueError("within")

    def helper(episode):
        raise ValueError("in a function")

    def breaks_then_fails(piece, batch, episodes):
        for _ in piece.single_agent_episode_iterator(episodes):
            break
        [helper(episode) for episode in piece.single_agent_episode_iterator(episodes) if episode.agent_id == "c"]

    for work, whose in (
        (breaks, ""),
        (fails, r"'b'.*\(module 'green', episode 'e0'\)"),
        (breaks_then_fails, r"'c'.*\(module 'blue', episode 'e0'\)"),
    ):
        with pytest.raises(ConnectorError, match=rf"(?s)OnItems.*{whose}.*ValueError"):
            run(item_piece(work))


def test_a_piece_that_names_itself_is_named_once():
    class Named(ConnectorV2):
        def columns(self, c, xp):
            raise ConnectorError("Named: expected more.")

    with pytest.raises(ConnectorError, match=r"(?s)^ConnectorPipelineV2.*Named"):
        run(Named())


def of_shapes(shapes, also=lambda piece, batch, episode: None):
    def adds(piece, batch, episodes):
        for episode in piece.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            for _ in range(len(episode) + 1):
                also(piece, batch, episode)
                piece.add_batch_item(batch, "x", np.zeros(shapes(episode)), episode)

    return item_piece(adds)


def test_the_odd_item_is_one_of_the_column_that_failed():
    def also(piece, batch, episode):
        batch.setdefault("a", {})[("other", "z", "none")] = [np.zeros(1), np.zeros(2)]

    pieces = of_shapes(lambda episode: (3,) if episode.multi_agent_episode_id == "e0" else (4,), also)
    with pytest.raises(ConnectorError, match=r"(?s)'x'.*\(3,\).*\(4,\)"):
        run(pieces)


def test_no_item_is_odd_where_only_the_number_of_them_is_wrong():
    def adds(piece, batch, episodes):
        for number, episode in enumerate(piece.single_agent_episode_iterator(episodes)):
            piece.add_batch_item(batch, "x", np.zeros(3 + number), episode)

    with pytest.raises(ConnectorError, match="expected") as caught:
        run(item_piece(adds))
    assert "The first item" not in str(caught.value)


def test_reading_a_column_that_is_not_there_is_an_episode_error():
    (group,) = columns_of(play(HISTORIES, COLOURS), train=True).groups
    with pytest.raises(EpisodeError, match="'action_log'"):
        group.rows.get("action_log")
    with pytest.raises(KeyError, match="'action_log'"):
        group["action_log"]
    assert group.get("obs") is None
