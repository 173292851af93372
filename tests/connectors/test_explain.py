"""The X-ray of a pipeline says what happened, and changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch

from helpers.custom_pieces import AddLastRewardToObservations, MortalEnv, config
from helpers.episodes.multi_agent_histories import columns_of, make_modules, play
from marl_connectors.algorithms.algorithm import explain_algorithm
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import env_to_module_pipeline, learner_pipeline
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.explain import WIDTH, ColumnShape
from marl_connectors.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from marl_connectors.errors import ConnectorError
from marl_connectors.metrics import MetricsLogger
from marl_connectors.state import State, fields_of

COLOURS = dict(zip("abcd", ("red", "green", "blue", "red"), strict=True))
STEP = {"absent": set(), "ends": {}, "rewards": {"a": 1}}
RGB = ("red", "green", "blue")


class Counts(ConnectorV2):
    """State: how often it was called."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __call__(self, *, batch, **kwargs):
        self.calls += 1
        return batch

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


class Doubles(ConnectorV2):
    """Doubles observations where they lie, halves a copy, and drops a column."""

    def columns(self, c, xp):
        c["half"] = c["obs"] / 2
        c["obs"] *= 2
        c.pop("extra", None)


class AddsExtra(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "extra", np.float32(1), episode)
        return batch


class Overwrites(ConnectorV2):
    def columns(self, c, xp):
        c.rows.set("obs", c["obs"] + 1)


def acting(episodes=None):
    episodes = play([[STEP, STEP]], COLOURS) if episodes is None else episodes
    return {"batch": columns_of(episodes, train=False), "rl_module": make_modules(), "episodes": episodes}


def test_the_default_pipeline_by_hand():
    explanation = env_to_module_pipeline(multi_agent=True).explain(**acting())
    assert explanation.pipeline == "EnvToModulePipeline"
    assert [(piece.name, piece.form) for piece in explanation] == [
        ("AddObservationsFromEpisodesToBatch", "columns"),
        ("AgentToModuleMapping", "columns"),
        ("BatchIndividualItems", "idle"),
        ("NumpyToTensor", "columns"),
    ]
    observations, mapping, _, tensors = explanation
    array = ColumnShape(RGB, "obs", "", (4, 3), "float32", "cpu")
    assert (observations.before, observations.after, observations.added) == ((), (array,), ("obs",))
    assert (mapping.before, mapping.after, mapping.added, mapping.changed) == ((array,), (array,), (), ())
    assert tensors.changed == ("obs",)
    assert tensors.after == (ColumnShape(RGB, "obs", "", (4, 3), "tensor float32", "cpu"),)
    assert all(piece.seconds > 0 for piece in explanation)
    assert explanation.seconds == pytest.approx(sum(piece.seconds for piece in explanation))


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_fits_a_narrow_terminal_and_has_every_column(monkeypatch, width):
    explanation = env_to_module_pipeline(multi_agent=True).explain(**acting())
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(explanation).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.startswith("    ")] == [
        "columns",
        *(f"{mark}{name}" for piece in explanation.pieces for mark, own in _marked(piece) for name in own),
    ]


def _marked(piece):
    return ("+", piece.added), ("~", piece.changed), ("-", piece.removed), (">", piece.written)


def test_what_is_added_changed_in_place_and_removed():
    pipeline = env_to_module_pipeline([AddsExtra()], multi_agent=True)
    pipeline.insert_after("AddObservationsFromEpisodesToBatch", Doubles())
    explanation = pipeline.explain(**acting())
    adds, doubles = explanation["AddsExtra"], explanation["Doubles"]
    assert (adds.form, adds.added) == ("items", ("extra",))
    assert (doubles.added, doubles.changed, doubles.removed) == (("half",), ("obs",), ("extra",))
    assert doubles.written == ("obs",)  # changed where it lies, in the trajectories
    with pytest.raises(KeyError, match=r"(?s)'Triples'.*AddsExtra"):
        explanation["Triples"]


@pytest.mark.parametrize("form", ["columns", "items"])
def test_it_is_a_dry_run(form):
    arguments = acting()
    if form == "items":
        arguments["batch"] = {}
    episodes = arguments["episodes"]
    counter = Counts()
    pipeline = env_to_module_pipeline([counter, Overwrites()], multi_agent=True)
    counter.calls = 3
    rng = torch.get_rng_state()
    before = [part.get_observations() for part in episodes[0].all_agent_episodes()]
    before = copy.deepcopy(before)
    explanation = pipeline.explain(**arguments)
    assert explanation["Overwrites"].written == ("obs",)
    assert counter.calls == 3
    for part, observations in zip(episodes[0].all_agent_episodes(), before, strict=True):
        np.testing.assert_array_equal(part.get_observations(), observations)
    if form == "columns":
        assert list(arguments["batch"].groups[0]) == []
    assert torch.equal(torch.get_rng_state(), rng)


def test_a_batch_of_items_is_explained_as_it_is_called():
    episodes = play([[STEP, STEP]], COLOURS)
    explanation = env_to_module_pipeline(multi_agent=True).explain(rl_module=make_modules(), episodes=episodes)
    assert {piece.form for piece in explanation} == {"items"}
    observations, mapping, batching, tensors = explanation
    assert observations.after == (ColumnShape((), "obs", "", (4, 3), "list of float32", ""),)
    assert mapping.after == tuple(
        ColumnShape((m,), "obs", "", (n, 3), "list of float32", "") for m, n in (("red", 2), ("green", 1), ("blue", 1))
    )
    assert batching.after[0] == ColumnShape(("red",), "obs", "", (2, 3), "float32", "cpu")
    assert tensors.after[0].dtype == "tensor float32"


@pytest.mark.parametrize("form", ["columns", "items"])
def test_a_train_batch_is_explained_in_both_forms(form):
    episodes = play([[STEP, STEP]], COLOURS)
    pipeline = learner_pipeline([Counts()], multi_agent=True)
    pipeline.append(GeneralAdvantageEstimation())
    batch = columns_of(episodes, train=True) if form == "columns" else {}
    explanation = pipeline.explain(batch, rl_module=make_modules(), episodes=episodes)
    names = {shape.name for shape in explanation["GeneralAdvantageEstimation"].after}
    assert {"obs", "actions", "rewards", "advantages", "value_targets"} <= names
    rows = sum(len(e) for e in episodes[0].all_agent_episodes())
    after = [s for s in explanation["GeneralAdvantageEstimation"].after if s.name == "advantages"]
    assert sum(shape.shape[0] for shape in after) == rows
    assert not any(piece.written for piece in explanation)


def test_pieces_of_nested_pipelines_have_both_names():
    inner = ConnectorPipelineV2(connectors=[Overwrites(), Overwrites()])
    pipeline = EnvToModulePipeline(connectors=[Counts(), inner])
    explanation = pipeline.explain(**acting())
    assert [piece.name for piece in explanation] == [
        "Counts",
        "ConnectorPipelineV2.Overwrites",
        "ConnectorPipelineV2.Overwrites_2",
    ]


def test_watching_a_run_gives_what_the_run_gives():
    arguments = acting()
    pipeline = env_to_module_pipeline([Overwrites()], multi_agent=True)
    plain = pipeline.run(**copy.deepcopy(arguments))
    _, watched = pipeline.trace(**arguments)
    assert watched.phase is plain.phase
    torch.testing.assert_close(watched.groups[0]["obs"], plain.groups[0]["obs"])


def test_an_error_while_explaining_names_pipelines_and_piece_and_leaves_the_state():
    class Breaks(ConnectorV2):
        def __call__(self, *, batch, **kwargs):
            raise ValueError("no such luck")

    counter = Counts()
    inner = ConnectorPipelineV2(connectors=[counter, Breaks()])
    pipeline = EnvToModulePipeline(connectors=[inner])
    message = r"(?s)^EnvToModulePipeline.*ConnectorPipelineV2.*Breaks.*ValueError.*no such luck"
    with pytest.raises(ConnectorError, match=message) as caught:
        pipeline.explain(**acting())
    assert isinstance(caught.value.__cause__, ValueError)
    assert counter.calls == 0


def test_what_cannot_be_copied_is_an_error_that_says_so():
    with pytest.raises(ConnectorError, match=r"(?s)EnvToModulePipeline.*explain"):
        EnvToModulePipeline(connectors=[]).explain(episodes=[], shared_data={"x": (i for i in "abc")})


def test_the_table_fits_a_terminal_and_the_dict_is_json():
    class AddsManyLongNames(ConnectorV2):
        def columns(self, c, xp):
            for i in range(5):
                c[f"a_column_with_a_rather_long_name_number_{i}" * (1 + 3 * (i == 4))] = np.zeros((4, 1))

    class APieceWhoseNameIsLongerThanThereIsRoomForInAnyTable(Overwrites):
        pass

    pieces = [
        AddsManyLongNames(),
        ConnectorPipelineV2(connectors=[APieceWhoseNameIsLongerThanThereIsRoomForInAnyTable()]),
    ]
    explanation = env_to_module_pipeline(pieces, multi_agent=True).explain(**acting())
    lines = str(explanation).splitlines()
    assert max(map(len, lines)) <= WIDTH == 120
    assert lines[0] == "EnvToModulePipeline"
    assert lines[1].split() == ["piece", "form", "µs", "columns"]
    assert any(line.strip().startswith("+a_column_with_a_rather_long… [4, 1] float64") for line in lines)
    assert any(line.rstrip().endswith(">obs [4, 3] float32") for line in lines)
    assert any("+obs [4, 3] float32" in line for line in lines)
    data = json.loads(json.dumps(explanation.to_dict()))
    assert data["pieces"][-1]["after"][-1] == {
        "modules": ["red", "green", "blue"],
        "name": "obs",
        "leaf": "",
        "shape": [4, 3],
        "dtype": "tensor float32",
        "device": "cpu",
    }


def test_trees_are_shown_leaf_by_leaf():
    class Splits(ConnectorV2):
        def columns(self, c, xp):
            c["tree"] = {"x": np.zeros((4, 2)), "y": (np.zeros(4, np.int8),)}

    (report,) = EnvToModulePipeline(connectors=[Splits()]).explain(**acting())
    assert [(shape.leaf, shape.shape, shape.dtype) for shape in report.after] == [
        ("['x']", (4, 2), "float64"),
        ("['y'][0]", (4,), "int8"),
    ]
    assert report.added == ("tree",)


# A whole algorithm.


def states_equal(one, other):
    if isinstance(one, State):
        return states_equal(fields_of(one), fields_of(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(states_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(states_equal, one, other))
    if isinstance(one, (np.ndarray, torch.Tensor)):
        return bool((torch.as_tensor(one) == torch.as_tensor(other)).all())
    return one == other


def counting():
    return config(
        lambda env_config: MortalEnv(), env_to_module_connector=lambda: [Counts(), AddLastRewardToObservations()]
    ).learners(learner_connector=lambda: Counts())


def test_an_algorithm_goes_on_as_if_it_had_not_been_explained():
    plain, explained = counting().build_algo(), counting().build_algo()
    plain.train()
    explained.train()
    before, rng = copy.deepcopy(explained.get_state()), torch.get_rng_state()
    explanations = explain_algorithm(explained)
    assert states_equal(before, explained.get_state())
    assert torch.equal(rng, torch.get_rng_state())
    assert list(explanations) == ["env_to_module", "module_to_env", "learner"]
    assert explained.learner.pipeline["Counts"].calls == 1
    one, other = plain.train(), explained.train()
    assert one["learners"] == other["learners"]
    assert states_equal(plain.learner.get_state(), explained.learner.get_state())


def test_the_explanations_of_an_algorithm_are_of_its_own_pipelines_and_data():
    algorithm = counting().build_algo()
    explanations = explain_algorithm(algorithm)
    there = explanations["env_to_module"]
    assert [piece.name for piece in there] == algorithm._env_to_module.names()
    assert (there["AddLastRewardToObservations"].form, there["AddLastRewardToObservations"].written) == (
        "items",
        ("obs",),
    )
    assert there["NumpyToTensor"].after[0].shape == (3, 3)  # three agents, two numbers and the reward
    back = explanations["module_to_env"]
    assert {"actions", "action_dist_inputs"} <= {shape.name for shape in back["TensorToNumpy"].after}
    learner = explanations["learner"]
    assert [piece.name for piece in learner] == algorithm.learner.pipeline.names()
    assert "advantages" in learner["GeneralAdvantageEstimation"].added
    algorithm.stop()


def test_a_single_agent_is_explained_too():
    algorithm = config("CartPole-v1").build_algo()
    explanations = explain_algorithm(algorithm, num_steps=2)
    assert explanations["learner"]["GeneralAdvantageEstimation"].after
    assert explanations["env_to_module"]["NumpyToTensor"].after[0] == ColumnShape(
        ("default_policy",), "obs", "", (1, 4), "tensor float32", "cpu"
    )
    algorithm.stop()


# What is written back to the trajectories.


class Lengthens(ConnectorV2):
    """Writes longer observations of another type, on items."""

    def recompute_output_observation_space(self, observation_space, action_space):
        return None

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            longer = np.append(episode.get_observations(-1), 7).astype(np.float64)
            episode.set_observations(new_data=longer, at_indices=-1)
        return batch


def test_what_is_written_back_has_shapes():
    pieces = [AddLastRewardToObservations, Overwrites, MeanStdFilter]
    algorithm = config(
        lambda env_config: MortalEnv(), env_to_module_connector=lambda: [p() for p in pieces]
    ).build_algo()
    explanation = explain_algorithm(algorithm)["env_to_module"]
    algorithm.stop()
    rewards, adds, scales = explanation["AddLastRewardToObservations"], explanation["Overwrites"], explanation[2]
    short = ColumnShape(("default_policy",), "obs", "", (3, 2), "float32", "cpu")
    precise = dataclasses.replace(short, shape=(3, 3), dtype="float64")  # as numpy appends a Python number
    assert (rewards.form, adds.form, scales.form) == ("items", "columns", "columns")
    assert (rewards.written_before, rewards.written_after) == ((short,), (precise,))
    assert (adds.written_before, adds.written_after) == ((precise,), (precise,))
    assert (scales.written_before, scales.written_after) == ((precise,), (precise,))
    for piece in (rewards, adds, scales):
        assert (piece.before, piece.after, piece.written) == ((), (), ("obs",))
    untouched = explanation["NumpyToTensor"]
    assert (untouched.written_before, untouched.written_after) == ((), ())
    lines = str(explanation).splitlines()
    assert sum(line.rstrip().endswith(">obs [3, 3] float64") for line in lines) == 3
    data = explanation.to_dict()["pieces"][0]
    assert data["written"] == ["obs"]
    assert [data[key][0]["shape"] for key in ("written_before", "written_after")] == [[3, 2], [3, 3]]


def test_in_a_batch_of_items_the_steps_that_were_written_count():
    pipeline = env_to_module_pipeline([Lengthens()], multi_agent=True)
    longer = pipeline.explain(rl_module=make_modules(), episodes=play([[STEP, STEP]], COLOURS))["Lengthens"]
    expected = [("red", 2), ("green", 1), ("blue", 1)]
    for shapes, width, dtype in ((longer.written_before, 3, "float32"), (longer.written_after, 4, "float64")):
        found = {(shape.modules, shape.shape, shape.dtype, shape.device) for shape in shapes}
        assert found == {((module,), (count, width), dtype, "cpu") for module, count in expected}


def test_pieces_can_log_where_they_are_explained():
    class Logs(Counts):
        def __call__(self, *, batch, metrics=None, **kwargs):
            metrics.log_value("calls", 1, reduce="sum")
            return batch

    pipeline, metrics = EnvToModulePipeline(connectors=[Logs()]), MetricsLogger()
    assert len(pipeline.explain(**acting())) == 1
    pipeline.explain(**acting(), metrics=metrics)
    assert metrics.peek() == {}


def test_all_rows_of_a_column_that_was_written_count_whatever_their_values():
    class OnlyTheFirst(ConnectorV2):
        def columns(self, c, xp):
            observations = c.rows.get("obs").copy()
            observations[0] += 1
            c.rows.set("obs", observations)

    (piece,) = EnvToModulePipeline(connectors=[OnlyTheFirst()]).explain(**acting())
    assert piece.written_before == piece.written_after == (ColumnShape(RGB, "obs", "", (4, 3), "float32", "cpu"),)
