import numpy as np
import pytest
from gymnasium import spaces
from histories import columns_of, make_modules, play

from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch,
)
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import call_builder, env_to_module_pipeline
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
    with pytest.raises(KeyError, match=r"no piece 'Othr'. Did you mean 'Other'?"):
        getattr(pipeline, act)("Othr", *arguments)
    with pytest.raises(KeyError, match=r"no piece 'Broken'. Known: Note, Other"):
        getattr(pipeline, act)(Broken, *arguments)
    assert len(pipeline) == 2


def test_a_class_in_the_place_of_a_piece_is_an_error():
    with pytest.raises(ConfigError, match="Pass an instance, not the class"):
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
    with pytest.raises(ConfigError, match=r"the state is of the pieces \['Note'\], but these are \['Other'\]"):
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
        ConnectorError, match=r"^EnvToModulePipeline: ConnectorPipelineV2: Broken failed: ValueError: no such luck$"
    ) as caught:
        run(pipeline)
    assert isinstance(caught.value.__cause__, ValueError)


class Forgetless(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch


@pytest.mark.parametrize("run", [run_on_items, run_on_columns])
def test_a_piece_that_forgets_to_return_the_batch_is_named(run):
    with pytest.raises(
        ConnectorError, match=r"^ConnectorPipelineV2: Forgetful: returned NoneType .* 'return batch'\.$"
    ):
        run(ConnectorPipelineV2(connectors=[Forgetful()]))


def test_a_second_piece_of_a_class_is_named_by_its_number():
    pipeline = ConnectorPipelineV2(connectors=[Forgetful(), Forgetful()])
    pipeline[0].__class__ = type("Forgetful", (Forgetless,), {})
    with pytest.raises(ConnectorError, match=r"^ConnectorPipelineV2: Forgetful_2: "):
        run_on_items(pipeline)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({("e0", "a", "red"): [1]}, r"0 items of 'x' for episode \('e0', 'b', 'red'\), expected 1"),
        (
            {("e0", agent, "red"): [1, 2] for agent in "abc"},
            r"2 items of 'x' for episode \('e0', 'a', 'red'\), expected 1",
        ),
        ([1, 2], "2 items of 'x', but the batch has 3 rows"),
        (
            {("e0", agent, "red"): [np.zeros(n)] for n, agent in enumerate("abc", 1)},
            r"'x' differ in shape \(\(1,\), \(2,\)",
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
    with pytest.raises(ConnectorError, match="Drops failed: ModuleError: module 'red': 2 rows of 'obs', expected 3"):
        pipeline.run(columns_of(episodes, train=False), rl_module=make_modules(), episodes=episodes)


def test_a_subclass_that_overrides_call_works_on_items_and_one_with_on_columns_on_columns():
    seen = []

    class OnItems(AddObservationsFromEpisodesToBatch):
        def __call__(self, **kwargs):
            seen.append("items")
            return super().__call__(**kwargs)

    class OnColumns(BatchIndividualItems):
        def on_columns(self, **kwargs):
            seen.append("columns")

    run = ConnectorPipelineV2(connectors=[OnItems(), OnColumns(multi_agent=True)]).run
    episodes = play([[]], dict.fromkeys("abcd", "red"))
    run(columns_of(episodes, train=False), rl_module=None, episodes=episodes)
    assert seen == ["items", "columns"]


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
        (lambda a, b, c, d: Note(), r"takes \(a, b, c, d\), but at most 3"),
        (lambda *, device: Note(), r"takes \(\*, device\), but at most 3"),
        (lambda env: "piece", "must return a ConnectorV2 or a list of them, not 'p'"),
        (lambda env: [Note], "must return a ConnectorV2"),
        (Note(), "expected a function that makes connector pieces"),
        ("Note", "expected a function that makes connector pieces, got 'Note'"),
    ],
)
def test_a_wrong_builder_is_an_error_that_names_the_setting(builder, message):
    with pytest.raises(ConfigError, match=f"^env_to_module_connector: .*{message}"):
        call_builder("env_to_module_connector", builder, "env", "spaces", "device")


def test_a_type_error_inside_a_builder_shows_as_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        call_builder("x", lambda env, spaces: Note(1 + "1"), "env", "spaces", "device")
