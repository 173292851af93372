"""Stateful modules in runs beside pieces of users' own, joining and leaving, and with outputs that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.envs.scripted_envs import BOX
from helpers.modules.recurrent_modules import StepwiseGRU
from helpers.runs.recurrent_runs import ACTIONS, CLASSES, WIDE_CLASSES, Account, among, config_of, few, specs, weights
from marl_connectors import Algorithm, RLModuleSpec
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import env_to_module_pipeline, module_to_env_pipeline
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from marl_connectors.errors import ConnectorError, ModuleError
from marl_connectors.trees import leaves

# Pieces beside those for states.


class Idle(ConnectorV2):
    """Leaves items as they are; the pipeline turns its columns into items and back."""

    def __call__(self, *, batch, **kwargs):
        return batch


class Looks(ConnectorV2):
    """Leaves columns as they are, but holds their lengths against the rows'."""

    def columns(self, c, xp):
        for column in c.values():
            assert all(len(leaf) == c.splits[-1] for leaf in leaves(column))


def pipelines(algo) -> list[Any]:
    return [algo.env_runner.env_to_module, algo.env_runner.module_to_env, algo.learner.pipeline]


def trained(pieces: dict[int, list[tuple[int, ConnectorV2]]]) -> dict[tuple[str, str], torch.Tensor]:
    """The weights after a while, with pieces put into the three pipelines at some places."""
    algo = config_of(max_steps=9, copies=2).build_algo()
    for number, own in pieces.items():
        for place, piece in own:
            pipeline = pipelines(algo)[number]
            pipeline.insert_before(pipeline.names()[place], piece) if place < len(pipeline) else pipeline.append(piece)
    algo.train()
    return weights(algo)


@pytest.fixture(scope="module")
def undisturbed():
    return trained({})


@pytest.mark.few(1)
@pytest.mark.parametrize("place", [1, 3, 4, 5, 7])
@pytest.mark.parametrize("kind", [Idle, Looks])
def test_pieces_anywhere_beside_the_state_pieces_change_nothing(undisturbed, kind, place):
    found = trained({0: [(min(place, 6), kind())], 1: [(min(place, 7), kind())], 2: [(place, kind())]})
    for key, value in undisturbed.items():
        torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-5, msg=str(key))


def on_items(piece: ConnectorV2) -> ConnectorV2:
    """The same piece without its column form; the last one gives what no column can hold, and stays as it is."""
    cls = type(piece)
    if cls is not ListifyDataForVectorEnv:
        piece.__class__ = type(cls.__name__, (cls,), {"__call__": lambda self, **kwargs: cls.__call__(self, **kwargs)})
    return piece


def test_states_are_kept_where_all_pieces_of_a_runner_work_on_items():
    config = config_of(max_steps=6).env_runners(
        env_to_module_connector=lambda env: list(
            map(on_items, env_to_module_pipeline(multi_agent=True, stateful=True))
        ),
        add_default_connectors_to_env_to_module_pipeline=False,
        module_to_env_connector=lambda env: list(
            map(on_items, module_to_env_pipeline(multi_agent=True, stateful=True))
        ),
        add_default_connectors_to_module_to_env_pipeline=False,
    )
    account = Account(config.build_algo().env_runner)
    for _ in range(5):
        account.sample()
    assert len(account.check()) == len(CLASSES) + len(WIDE_CLASSES)


@pytest.mark.parametrize("names", [(3,), (4,), (3, 4)], ids=str)
def test_state_pieces_of_ones_own_on_items_make_the_same_sequences(undisturbed, names):
    algo = config_of(max_steps=9, copies=2).build_algo()
    for place in names:
        on_items(algo.learner.pipeline[place])
    algo.learner.pipeline.set_input_spaces(None, None)  # looks at its pieces anew
    algo.train()
    for key, value in weights(algo).items():
        torch.testing.assert_close(value, undisturbed[key], atol=1e-5, rtol=1e-5, msg=str(key))


def test_the_explanation_runs_with_stateful_modules():
    algo = config_of(max_steps=9).build_algo()
    algo.train()
    before = weights(algo)
    told = {name: str(explanation) for name, explanation in algo.explain().items()}
    assert "state_in" in told["env_to_module"] and "seq_lens" in told["learner"]
    assert all(torch.equal(value, before[key]) for key, value in weights(algo).items())


# Modules that come and go.


def test_stateful_modules_join_and_leave_a_run_of_stateless_ones():
    algo = few("plain").build_algo()
    algo.train()
    for names in (("gru", "plain"), ("gru", "lstm", "plain")):
        new = next(name for name in names if name not in algo.rl_module)
        algo.add_module(new, specs()[new], new_agent_to_module_mapping_fn=among(*names))
        algo.train()
    algo.env_runner.restart_episodes()
    account = Account(algo.env_runner)
    for _ in range(8):
        account.sample()
    assert set(account.check()) == {"plain", "gru", "lstm"}
    algo.remove_module("gru", new_agent_to_module_mapping_fn=among("lstm", "plain"))
    account = Account(algo.env_runner)
    for _ in range(8):
        account.sample()
    assert set(account.check()) == {"plain", "lstm"}
    algo.remove_module("lstm", new_agent_to_module_mapping_fn=among("plain"))
    assert set(algo.train()["learners"]) >= {"plain"}


def rows_of_agents(algo):
    """The agents' modules, and their rows among the agents of their group."""
    lanes = algo.env_runner._episodes.lanes.in_order()
    rows = [lane.group.order.tolist().index(lane.number) for lane in lanes]
    return [(lane.env_index, lane.agent_id, lane.module_id, row) for lane, row in zip(lanes, rows, strict=True)]


@pytest.mark.few(1)
@pytest.mark.parametrize("again", [None, "plain"])
def test_a_run_whose_module_was_removed_or_replaced_can_be_restored_twice(again, tmp_path):
    names = ("lstm", "plain") if again is None else ("gru", "lstm", "plain")
    algo = few("gru", "lstm", "plain").build_algo()
    algo.train()
    algo.remove_module("gru", new_agent_to_module_mapping_fn=among("lstm", "plain"))
    if again:
        algo.add_module("gru", specs()[again], new_agent_to_module_mapping_fn=among(*names))
    algo.train()
    config = few("gru", "lstm", "plain")
    for i in range(2):
        algo.save_to_path(tmp_path / str(i))
        restored = Algorithm.from_checkpoint(tmp_path / str(i), config=config, policy_mapping_fn=among(*names))
        assert rows_of_agents(restored) == rows_of_agents(algo)
        algo.train()
        restored.train()
        for key, value in weights(algo).items():
            assert torch.equal(value, weights(restored)[key]), key
        algo = restored


# What modules may get wrong.


def broken(change: Any) -> type[StepwiseGRU]:
    class Broken(StepwiseGRU):
        def _forward(self, batch, **kwargs):
            outputs = super()._forward(batch, **kwargs)
            change(outputs)
            return outputs

    return Broken


def no_state(outputs):
    del outputs["state_out"]


def no_time(outputs):
    outputs["action_dist_inputs"] = outputs["action_dist_inputs"][:, 0]


def state_with_time(outputs):
    outputs["state_out"] = {"h": outputs["state_out"]["h"][:, None]}


def other_keys(outputs):
    outputs["state_out"] = {"g": outputs["state_out"]["h"]}


def no_keys(outputs):
    outputs["state_out"] = outputs["state_out"]["h"]


def too_narrow(outputs):
    outputs["state_out"] = {"h": outputs["state_out"]["h"][:, :1]}


def one_for_all(outputs):
    outputs["state_out"] = {"h": outputs["state_out"]["h"][:1]}


FAULTS = {
    no_state: "no 'state_out'",
    no_time: "'action_dist_inputs'",
    state_with_time: r"'state_out'.*1, 4",
    other_keys: "'state_out'.*'g'",
    no_keys: r"'state_out'.*\(\d*,? ?4,?\)",
    too_narrow: "'state_out'.*1",
    one_for_all: "'state_out'",
}


@pytest.mark.few(13)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("others", [(), ("gru2", "plain")], ids=["alone", "beside others"])
@pytest.mark.parametrize("items", [False, True], ids=["columns", "items"])
def test_a_module_whose_outputs_are_wrong_is_named(fault, others, items):
    policies = {name: spec for name, spec in specs().items() if name in others}
    policies["gru"] = RLModuleSpec(
        module_class=broken(fault), observation_space=BOX, action_space=ACTIONS, model_config={"max_seq_len": 4}
    )
    config = config_of(policies=policies, spaces_of={}, fixed=True, mapping=among("gru", *others))
    algo = config.build_algo()
    if items:
        on_items(algo.env_runner.module_to_env["RemoveSingleTsTimeRankFromBatch"])
        algo.env_runner.module_to_env.set_input_spaces(None, None)
    with pytest.raises((ConnectorError, ModuleError), match=FAULTS[fault]) as caught:
        algo.env_runner.sample(num_timesteps=40)
    assert "'gru'" in str(caught.value)


@pytest.mark.parametrize("length", [0, -1, 2.5, None, "3"])
def test_a_length_of_sequences_that_makes_no_sense_is_an_error(length):
    spec = specs()["gru"]
    spec.model_config["max_seq_len"] = length
    algo = config_of(policies={"gru": spec}, spaces_of={}, mapping=among("gru")).build_algo()
    with pytest.raises(ConnectorError, match=f"(?s)'gru'.*max_seq_len.*{length!r}"):
        algo.train()


@pytest.mark.parametrize("missing", ["AddStatesFromEpisodesToBatch"])
def test_a_stateful_module_without_the_pieces_for_it_is_named(missing):
    runner = config_of().build_algo().env_runner
    runner.env_to_module.remove(missing)
    with pytest.raises(ModuleError, match=r"(?s)'state_in'.*AddTimeDimToBatchAndZeroPad"):
        runner.sample()


def test_a_module_whose_states_are_wrong_is_named_also_if_it_comes_later():
    wrong = RLModuleSpec(module_class=broken(one_for_all), observation_space=BOX, action_space=ACTIONS)
    config = config_of(
        policies={"gru2": specs()["gru2"], "gru": wrong},
        mapping=lambda agent, episode, **kwargs: "gru2" if episode.id_.endswith("-0") else "gru",
        spaces_of={},
        fixed=True,
        copies=1,
        die=0.0,
        max_steps=4,
    )
    runner = config.build_algo().env_runner
    runner.sample(num_timesteps=3)
    with pytest.raises(ConnectorError, match=r"(?s)'gru'.*'state_out'.*\{'h': \(1, 4\)\}"):
        runner.sample(num_timesteps=6)
