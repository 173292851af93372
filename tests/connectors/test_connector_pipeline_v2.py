import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from helpers.episodes.multi_agent_histories import columns_of, make_modules, play
from marl_connectors import connectors
from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch,
)
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import (
    call_builder,
    env_to_module_pipeline,
    learner_pipeline,
    module_to_env_pipeline,
)
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.clip_rewards import ClipRewards
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems
from marl_connectors.connectors.piece_order import NEEDS_BEFORE
from marl_connectors.errors import ConfigError, ConnectorError


class Note(ConnectorV2):
    """Appends its letter to a list in the batch, and counts its calls."""

    def __init__(self, letter="?", **kwargs):
        super().__init__(**kwargs)
        self.letter = letter
        self.calls = 0

    def __call__(self, *, batch, **kwargs):
        self.calls += 1
        return {**batch, "notes": [*batch.get("notes", []), self.letter]}

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]

    def reset_state(self):
        self.calls = 0


class Other(Note):
    pass


class Broken(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        raise ValueError("no such luck")


class Forgetful(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        batch["x"] = 1


def notes(pipeline):
    return "".join(pipeline(rl_module=None, batch={}, episodes=[])["notes"])


def some_columns():
    return columns_of(play([[]], dict.fromkeys("abcd", "red")), train=False)


def test_pieces_run_in_order_and_can_be_edited():
    pipeline = ConnectorPipelineV2(connectors=[Note("a")])
    pipeline.append(Other("b"))
    pipeline.prepend(Note("c"))
    pipeline.insert_before(Other, Note("d"))
    pipeline.insert_after("Other", Note("e"))
    assert notes(pipeline) == "cadbe"
    assert pipeline.names() == ["Note", "Note_2", "Note_3", "Other", "Note_4"]
    assert (pipeline[0].letter, pipeline["Note_3"].letter, pipeline[Other].letter, pipeline[-1].letter) == tuple("cdbe")
    assert pipeline.remove("Note_2").letter == "a"
    assert pipeline.remove(Note).letter == "c"
    assert notes(pipeline) == "dbe"
    assert len(pipeline) == 3


@pytest.mark.parametrize("act", ["insert_before", "insert_after", "remove", "__getitem__"])
def test_an_unknown_name_is_a_key_error_with_a_hint(act):
    pipeline = ConnectorPipelineV2(connectors=[Note(), Other()])
    arguments = [Note()] if act.startswith("insert") else []
    with pytest.raises(KeyError, match=r"(?s)'Othr'.*'Other'"):
        getattr(pipeline, act)("Othr", *arguments)
    with pytest.raises(KeyError, match=r"(?s)'Broken'.*Note.*Other"):
        getattr(pipeline, act)(Broken, *arguments)
    assert len(pipeline) == 2


def test_a_class_in_the_place_of_a_piece_is_an_error():
    with pytest.raises(ConfigError, match="instance"):
        ConnectorPipelineV2(connectors=[Note])


def test_two_pieces_of_one_class_keep_separate_state():
    pipeline = ConnectorPipelineV2(connectors=[Note(), Note()])
    notes(pipeline)
    pipeline[1].calls = 7
    state = pipeline.get_state()
    assert state == {"Note": {"calls": 1}, "Note_2": {"calls": 7}}
    pipeline.reset_state()
    assert [piece.calls for piece in pipeline] == [0, 0]
    pipeline.set_state(state)
    assert [piece.calls for piece in pipeline] == [1, 7]


def test_state_of_other_pieces_is_an_error():
    with pytest.raises(ConfigError, match=r"(?s)\['Note'\].*\['Other'\]"):
        ConnectorPipelineV2(connectors=[Other()]).set_state({"Note": {"calls": 1}})


def test_pipelines_nest():
    inner = ConnectorPipelineV2(connectors=[Note("b"), Note("c")])
    pipeline = ConnectorPipelineV2(connectors=[Note("a"), inner, Note("d")])
    assert notes(pipeline) == "abcd"
    assert pipeline.get_state()["ConnectorPipelineV2"] == {"Note": {"calls": 1}, "Note_2": {"calls": 1}}


def test_a_nested_pipeline_of_column_pieces_gives_the_same_columns():
    piece = AddObservationsFromEpisodesToBatch
    flat = ConnectorPipelineV2(connectors=[piece()]).run(some_columns(), rl_module=None, episodes=[])
    inner = ConnectorPipelineV2(connectors=[piece()])
    nested = ConnectorPipelineV2(connectors=[inner]).run(some_columns(), rl_module=None, episodes=[])
    np.testing.assert_array_equal(flat.groups[0]["obs"], nested.groups[0]["obs"])


def test_spaces_pass_through_all_pieces_also_after_an_edit():
    class Longer(ConnectorV2):
        def recompute_output_observation_space(self, in_obs_space, in_act_space):
            return spaces.Box(-1.0, 1.0, (in_obs_space.shape[0] + 1,))

    box = spaces.Box(-1.0, 1.0, (3,))
    pipeline = ConnectorPipelineV2(box, spaces.Discrete(2), connectors=[Longer(), Longer()])
    assert pipeline.observation_space.shape == (5,)
    pipeline.append(Longer())
    assert (pipeline[2].input_observation_space.shape, pipeline.observation_space.shape) == ((5,), (6,))
    pipeline.remove(Longer)
    assert pipeline.observation_space.shape == (5,)
    assert pipeline.action_space == spaces.Discrete(2)


def run_on_items(pipeline):
    return pipeline(rl_module=None, batch={}, episodes=[])


def run_on_columns(pipeline):
    return pipeline.run(some_columns(), rl_module=None, episodes=[])


@pytest.mark.parametrize("run", [run_on_items, run_on_columns])
def test_an_error_names_pipeline_and_piece_and_keeps_the_cause(run):
    inner = ConnectorPipelineV2(connectors=[Broken()])
    pipeline = env_to_module_pipeline([Forgetless(), inner], multi_agent=True)
    with pytest.raises(
        ConnectorError,
        match=r"(?s)^EnvToModulePipeline.*ConnectorPipelineV2.*Broken.*ValueError.*test_connector_pipeline_v2.py:\d+",
    ) as caught:
        run(pipeline)
    assert isinstance(caught.value.__cause__, ValueError)


class Forgetless(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch


@pytest.mark.parametrize("run", [run_on_items, run_on_columns])
def test_a_piece_that_forgets_to_return_the_batch_is_named(run):
    with pytest.raises(ConnectorError, match=r"(?s)^ConnectorPipelineV2.*Forgetful.*NoneType.*'return batch'"):
        run(ConnectorPipelineV2(connectors=[Forgetful()]))


def test_a_second_piece_of_a_class_is_named_by_its_number():
    pipeline = ConnectorPipelineV2(connectors=[Forgetful(), Forgetful()])
    pipeline[0].__class__ = type("Forgetful", (Forgetless,), {})
    with pytest.raises(ConnectorError, match=r"^ConnectorPipelineV2: Forgetful_2: "):
        run_on_items(pipeline)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({("e0", "a", "red"): [1]}, r"\b0\b.*'x'.*\('e0', 'b', 'red'\).*\b1\b"),
        (
            {("e0", agent, "red"): [1, 2] for agent in "abc"},
            r"\b2\b.*'x'.*\('e0', 'a', 'red'\).*\b1\b",
        ),
        ([1, 2], r"\b2\b.*'x'.*\b3\b"),
        (
            {("e0", agent, "red"): [np.zeros(n)] for n, agent in enumerate("abc", 1)},
            r"'x'.*\(1,\).*\(2,\)",
        ),
    ],
)
def test_wrong_numbers_and_shapes_of_items_are_errors_that_name_the_piece(items, message):
    class Adds(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return {**batch, "x": items}

    with pytest.raises(ConnectorError, match=f"^ConnectorPipelineV2: Adds: .*{message}"):
        run_on_columns(ConnectorPipelineV2(connectors=[Adds()]))


def test_rows_that_a_late_piece_drops_are_an_error():
    class Drops(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            return {module_id: {"obs": columns["obs"][:2]} for module_id, columns in batch.items()}

    pipeline = env_to_module_pipeline(multi_agent=True)
    pipeline.append(Drops())
    episodes = play([[]], dict.fromkeys("abcd", "red"))
    with pytest.raises(ConnectorError, match=r"(?s)Drops.*ModuleError.*'red'.*\b2\b.*'obs'.*\b3\b"):
        pipeline.run(columns_of(episodes, train=False), rl_module=make_modules(), episodes=episodes)


def test_a_subclass_that_overrides_call_works_on_items_and_one_with_on_columns_on_columns():
    seen = []

    class OnItems(AddObservationsFromEpisodesToBatch):
        def __call__(self, **kwargs):
            seen.append("items")
            return super().__call__(**kwargs)

    class OnColumns(BatchIndividualItems):
        def columns(self, c, xp):
            seen.append("columns")

    run = ConnectorPipelineV2(connectors=[OnItems(), OnColumns(multi_agent=True)]).run
    episodes = play([[]], dict.fromkeys("abcd", "red"))
    run(columns_of(episodes, train=False), rl_module=None, episodes=episodes)
    assert seen == ["items", "columns"]


# Positions.


def test_a_slice_is_an_error_and_so_is_a_position_beyond_the_end():
    pipeline = ConnectorPipelineV2(connectors=[Note("a"), Note("b")])
    with pytest.raises(TypeError, match=r"list\(pipeline\)"):
        pipeline[0:1]
    for position in (2, -3):
        with pytest.raises(IndexError, match=rf"(?s){position}.*\b2\b.*\['Note', 'Note_2'\]"):
            pipeline[position]
    assert [pipeline[i].letter for i in (0, 1, -1, -2)] == ["a", "b", "b", "a"]


# State.


class Adding(Note):
    """Its states are merged by addition."""

    def merge_states(self, states):
        return {"calls": sum(state["calls"] for state in states)}


def nested():
    return ConnectorPipelineV2(connectors=[Adding(), ConnectorPipelineV2(connectors=[Note(), Adding(), Adding()])])


def test_states_are_merged_piece_by_piece_through_nested_pipelines():
    pipelines = [nested() for _ in range(3)]
    for number, pipeline in enumerate(pipelines, 1):
        pipeline[0].calls = number
        for i in range(3):
            pipeline[1][i].calls = 10 * (number if i else 1) + i
    merged = pipelines[0].merge_states([pipeline.get_state() for pipeline in pipelines])
    assert merged == {
        "Adding": {"calls": 6},
        "ConnectorPipelineV2": {"Note": {"calls": 10}, "Adding": {"calls": 63}, "Adding_2": {"calls": 66}},
    }
    pipelines[2].set_state(merged)
    assert [piece.calls for piece in pipelines[2][1]] == [10, 63, 66]
    pipelines[2].reset_state()
    assert [piece.calls for piece in pipelines[2]._flat()] == [0, 0, 0, 0]
    assert pipelines[0].merge_states([]) == {}


class Learns(Note):
    """Applies what it has merged; one more call is new each time. Its states begin from a common count."""

    def __init__(self):
        super().__init__()
        self.merged = 0

    def get_state(self):
        return {"calls": self.calls, "merged": self.merged}

    def set_state(self, state):
        self.calls, self.merged = state["calls"], state["merged"]

    def merge_states(self, states):
        return {"calls": 0, "merged": states[0]["merged"] + sum(state["calls"] for state in states)}


def test_a_pipeline_merges_the_own_state_of_each_piece():
    inner = ConnectorPipelineV2(connectors=[Learns(), Note()])
    pipeline = ConnectorPipelineV2(connectors=[Learns(), inner])
    pipeline[0].calls, inner[0].calls, inner[1].calls = 2, 3, 4
    expected = pipeline.merge_states([pipeline.get_state()])
    for _ in range(2):
        pipeline.merge_own_state()
        assert pipeline.get_state() == expected
    assert (pipeline[0].merged, inner[0].merged) == (2, 3)
    assert inner[1].calls == 4, "a piece without merge_states keeps its state"


def test_an_error_in_merging_names_the_pipeline_and_the_piece():
    class Broken(Note):
        def merge_states(self, states):
            raise ValueError("no idea")

    pipeline = ConnectorPipelineV2(connectors=[Note(), ConnectorPipelineV2(connectors=[Broken()])])
    with pytest.raises(ConnectorError, match=r"(?s)^ConnectorPipelineV2.*ConnectorPipelineV2.*Broken.*ValueError"):
        pipeline.merge_own_state()


def test_a_state_of_other_inner_pieces_changes_nothing_and_is_an_error():
    pipeline, other = nested(), nested()
    other[1].append(Note())
    other[0].calls = 5
    message = r"(?s)^ConnectorPipelineV2.*\['Note', 'Adding', 'Adding_2', 'Note_2'\]"
    with pytest.raises(ConfigError, match=message):
        pipeline.set_state(other.get_state())
    with pytest.raises(ConfigError, match=message):
        pipeline.merge_states([pipeline.get_state(), other.get_state()])
    assert pipeline[0].calls == 0


# Order.


@pytest.mark.parametrize(
    ("kind", "pieces", "message"),
    [
        (
            EnvToModulePipeline,
            [BatchIndividualItems(), AddObservationsFromEpisodesToBatch()],
            r"(?s)EnvToModulePipeline.*BatchIndividualItems.*AddObservationsFromEpisodesToBatch",
        ),
        (
            ModuleToEnvPipeline,
            [ModuleToAgentUnmapping(), UnBatchToIndividualItems()],
            r"(?s)ModuleToAgentUnmapping.*UnBatchToIndividualItems",
        ),
        (
            ConnectorPipelineV2,
            [NumpyToTensor(), Note(), BatchIndividualItems()],
            r"(?s)NumpyToTensor.*BatchIndividualItems.*BatchIndividualItems",
        ),
        (
            LearnerConnectorPipeline,
            [GeneralAdvantageEstimation(), NumpyToTensor()],
            r"(?s)GeneralAdvantageEstimation.*NumpyToTensor.*NumpyToTensor",
        ),
        (
            ModuleToEnvPipeline,
            [NormalizeAndClipActions(), GetActions()],
            r'(?s)GetActions.*NormalizeAndClipActions.*"GetActions"',
        ),
        (
            LearnerConnectorPipeline,
            [GeneralAdvantageEstimation(), ClipRewards()],
            r"(?s)GeneralAdvantageEstimation.*ClipRewards.*ClipRewards",
        ),
        (
            LearnerConnectorPipeline,
            [AddColumnsFromEpisodesToTrainBatch(), AddOneTsToEpisodesAndTruncate()],
            r"(?s)AddColumnsFromEpisodesToTrainBatch.*AddOneTsToEpisodesAndTruncate",
        ),
        (
            EnvToModulePipeline,
            [ConnectorPipelineV2(connectors=[NumpyToTensor()]), BatchIndividualItems()],
            r"(?s)EnvToModulePipeline.*NumpyToTensor.*BatchIndividualItems",
        ),
    ],
)
def test_a_misordered_pipeline_is_an_error_when_it_is_built(kind, pieces, message):
    with pytest.raises(ConfigError, match=message):
        kind(connectors=pieces)
    assert len(kind(connectors=pieces[::-1])) == len(pieces)


@pytest.mark.parametrize("make", [env_to_module_pipeline, module_to_env_pipeline, learner_pipeline])
@pytest.mark.parametrize("multi_agent", [False, True])
def test_the_default_pipelines_are_in_order_and_each_swap_of_what_needs_each_other_is_not(make, multi_agent):
    pipeline = make(multi_agent=multi_agent)
    names = pipeline.names()
    swaps = [(i, j) for i in range(len(names)) for j in range(i) if names[j] in NEEDS_BEFORE.get(names[i], {})]
    assert swaps
    for i, j in swaps:
        pieces = list(pipeline)
        pieces[i], pieces[j] = pieces[j], pieces[i]
        with pytest.raises(ConfigError, match="placed"):
            type(pipeline)(connectors=pieces)


def test_an_edit_that_would_misorder_a_pipeline_is_an_error_and_changes_nothing():
    pipeline = env_to_module_pipeline(multi_agent=True)
    before = pipeline.names()
    piece = pipeline.remove("NumpyToTensor")
    with pytest.raises(ConfigError, match=r"(?s)NumpyToTensor.*BatchIndividualItems"):
        pipeline.prepend(piece)
    pipeline.append(piece)
    assert pipeline.names() == before


def test_rewards_may_be_clipped_before_they_are_in_the_batch_too():
    """As a user's own piece is by default."""
    pipeline = learner_pipeline([ClipRewards()], multi_agent=True)
    assert pipeline.names()[1] == "ClipRewards"


def test_every_name_in_the_table_is_of_a_piece_that_the_library_has_or_that_rllib_has():
    named = {*NEEDS_BEFORE, *(name for needed in NEEDS_BEFORE.values() for name in needed)}
    planned = {"AddTimeDimToBatchAndZeroPad", "AddStatesFromEpisodesToBatch", "RemoveSingleTsTimeRankFromBatch"}
    files = [path.stem for path in Path(connectors.__file__).parent.rglob("*.py")]
    snake = lambda name: re.sub(
        r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("UnBatch", "Unbatch")
    ).lower()
    assert {name for name in named - planned if snake(name) not in files} == set()


def test_any_piece_may_be_left_out_and_a_users_piece_may_stand_anywhere():
    class MyBatching(BatchIndividualItems):
        pass

    class ClipRewards(ConnectorV2):  # a user's own, of a name that the library has too
        def __call__(self, *, batch, **kwargs):
            return batch

    for make in (env_to_module_pipeline, module_to_env_pipeline, learner_pipeline):
        for name in make(multi_agent=True).names():
            pipeline = make(multi_agent=True)
            pipeline.remove(name)
            type(pipeline)(connectors=list(pipeline))
    ConnectorPipelineV2(connectors=[ClipRewards(), AddOneTsToEpisodesAndTruncate()])
    with pytest.raises(ConfigError, match=r"(?s)NumpyToTensor.*BatchIndividualItems"):
        ConnectorPipelineV2(connectors=[NumpyToTensor(), MyBatching()])  # which does its base's work too late


# Whose fault it is.


class FailsOn(ConnectorV2):
    """Fails when it comes to an agent; ``how`` is how it works."""

    def __init__(self, agent_id, how="iterator"):
        super().__init__()
        self.agent_id, self.how = agent_id, how

    def __call__(self, *, batch, episodes, **kwargs):
        if self.how == "change":
            self.foreach_batch_item_change_in_place(batch, "x", self._change)
            return batch
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=self.how == "iterator"):
            list(self.single_agent_episode_iterator(episodes))  # another one, which is through
            if episode.agent_id == self.agent_id:
                raise ZeroDivisionError("by hand")
        return batch

    def _change(self, item, eps_id, agent_id, module_id):
        return 1 / (agent_id != self.agent_id)


ONE_STEP = {"absent": set(), "ends": {}, "rewards": {}}
COLOURS = dict(zip("abcd", ("red", "green", "blue", "red"), strict=True))


@pytest.mark.parametrize("run", [run_on_items, run_on_columns])
@pytest.mark.parametrize(
    ("kind", "how", "where"),
    [
        (EnvToModulePipeline, "iterator", "at env step 2"),
        (LearnerConnectorPipeline, "all", "in env steps 0 to 2"),
    ],
)
def test_an_error_names_the_agent_that_the_piece_was_working_on(run, kind, how, where):
    pipeline = kind(connectors=[Note(), FailsOn("b", how)])
    episodes = play([[ONE_STEP, ONE_STEP]], COLOURS)
    message = (
        rf"(?s)^{kind.__name__}.*FailsOn.*'b'.*\(module 'green', episode 'e0'\).*{where}.*ZeroDivisionError.*by hand"
    )
    if run is run_on_items:
        act, batch = pipeline, {}
    else:
        pipeline.remove(Note)  # which adds what is no column
        act, batch = pipeline.run, columns_of(episodes, train=kind is LearnerConnectorPipeline)
    with pytest.raises(ConnectorError, match=message) as caught:
        act(rl_module=None, batch=batch, episodes=episodes)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_single_agents_episode_is_named_too():
    from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

    episode = SingleAgentEpisode("alone", observations=[0, 1], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises(ConnectorError, match=r"(?s)FailsOn.*'alone'.*step 1.*ZeroDivisionError"):
        EnvToModulePipeline(connectors=[FailsOn(None)])(rl_module=None, batch={}, episodes=[episode])


def test_a_failed_change_of_an_item_names_column_and_agent():
    batch = {"x": {("e0", agent, COLOURS[agent]): [0] for agent in "ab"}}
    message = r"(?s)FailsOn.*'x'.*'b'.*\(module 'green', episode 'e0'\).*ZeroDivisionError"
    with pytest.raises(ConnectorError, match=message):
        ConnectorPipelineV2(connectors=[FailsOn("b", "change")])(rl_module=None, batch=batch, episodes=[])


def test_an_agent_that_an_earlier_piece_has_left_off_at_is_not_blamed():
    kept = []

    class LeavesOff(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            kept.append(self.single_agent_episode_iterator(episodes))
            next(kept[0])
            return batch

    pipeline = ConnectorPipelineV2(connectors=[LeavesOff(), Broken()])
    with pytest.raises(ConnectorError, match=r"(?s)^ConnectorPipelineV2.*Broken.*ValueError"):
        pipeline(rl_module=None, batch={}, episodes=play([[]], COLOURS))


def test_a_failing_column_piece_names_its_modules():
    class Fails(ConnectorV2):
        def columns(self, c, xp):
            raise ZeroDivisionError("by hand")

    message = r"(?s)^ConnectorPipelineV2.*Fails.*.red.*.green.*.blue.*ZeroDivisionError.*by hand"
    with pytest.raises(ConnectorError, match=message):
        ConnectorPipelineV2(connectors=[Fails()]).run(
            columns_of(play([[]], COLOURS), train=False), rl_module=None, episodes=[]
        )


def test_an_item_of_another_shape_is_named_with_its_agent():
    class Adds(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, "x", np.zeros(3 + (episode.agent_id == "b")), episode)
            return batch

    message = r"(?s)'x'.*\(4,\).*\(3,\).*'b'.*\(module 'green', episode 'e0'\)"
    with pytest.raises(ConnectorError, match=message):
        ConnectorPipelineV2(connectors=[Adds()]).run(
            columns_of(episodes := play([[]], COLOURS), train=False), rl_module=None, episodes=episodes
        )


# Builders.


@pytest.mark.parametrize(
    ("builder", "expected"),
    [
        (lambda: Note("none"), "none"),
        (lambda env: Note(env), "env"),
        (lambda env, spaces: Note(env + spaces), "envspaces"),
        (lambda env, spaces, device: Note(env + spaces + device), "envspacesdevice"),
        (lambda *arguments: Note("".join(arguments)), "envspacesdevice"),
        (lambda env, spaces=None, **kwargs: Note(env + spaces), "envspaces"),
    ],
)
def test_a_builder_gets_as_many_arguments_as_it_takes(builder, expected):
    (piece,) = call_builder("env_to_module_connector", builder, "env", "spaces", "device")
    assert piece.letter == expected


def test_a_builder_may_give_several_pieces_or_none():
    assert [p.letter for p in call_builder("x", lambda: [Note("a"), Note("b")], 1)] == ["a", "b"]
    assert call_builder("x", lambda: None, 1) == []
    assert call_builder("x", None, 1) == []


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (lambda a, b, c, d: Note(), r"\(a, b, c, d\).*\b3\b"),
        (lambda *, device: Note(), r"\(\*, device\).*\b3\b"),
        (lambda env: "piece", r"ConnectorV2.*'p'"),
        (lambda env: [Note], "ConnectorV2"),
        (Note(), "function"),
        ("Note", "'Note'"),
    ],
)
def test_a_wrong_builder_is_an_error_that_names_the_setting(builder, message):
    with pytest.raises(ConfigError, match=f"^env_to_module_connector: .*{message}"):
        call_builder("env_to_module_connector", builder, "env", "spaces", "device")


def test_a_type_error_inside_a_builder_shows_as_it_is():
    with pytest.raises(TypeError, match="unsupported"):
        call_builder("x", lambda env, spaces: Note(1 + "1"), "env", "spaces", "device")
