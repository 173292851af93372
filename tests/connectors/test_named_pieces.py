"""Connector pieces by name: this library's, and a user's classes and functions."""

from __future__ import annotations

import json

import pytest

from marl_connectors import AgentIdEncoding, Algorithm, MeanStdFilter, PPOConfig, ScaleRewards
from marl_connectors.algorithms.config.state import ConfigState, config_from_state, config_to_state
from marl_connectors.connectors.named_pieces import NamedPieces, known_pieces, named_pieces
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.names import Names
from marl_connectors.state import fields_of, read_state

FLAGS = {"env_to_module": "--env-to-module", "learner": "--learner-connector"}
OWN = """
from marl_connectors import ConnectorV2, MeanStdFilter, ScaleRewards


class Own(ConnectorV2):
    def __init__(self, *args, size, gamma=0.5):
        super().__init__(*args)
        self.size, self.gamma = size, gamma

    def columns(self, c, xp):
        pass


def two(env, *, scale=1.0):
    return [MeanStdFilter(), Own(size=(scale, env))]


def broken():
    raise RuntimeError("no such file")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_pieces.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def checked(*names, kind="learner", **defaults):
    return named_pieces(names, who=FLAGS[kind], kind=kind, others=FLAGS, defaults=defaults)


def test_names_become_pieces_in_their_order():
    filters, ids = NamedPieces(("MeanStdFilter:clip_by_value=3.0", "AgentIdEncoding"))()
    assert type(filters) is MeanStdFilter and filters.clip_by_value == 3.0
    assert type(ids) is AgentIdEncoding


def test_each_call_makes_new_pieces():
    pieces = NamedPieces(("ScaleRewards:scale=0.1,shift=2",))
    (one,), (other,) = pieces(), pieces()
    assert one is not other and (one.scale, one.shift) == (other.scale, other.shift) == (0.1, 2.0)


def test_a_users_class_and_function_are_named_with_their_module(own):
    pieces = NamedPieces(("own_pieces:Own:size=[1,2]", "own_pieces:two:scale=3"))("the env", "spaces", "device")
    assert [type(piece).__name__ for piece in pieces] == ["Own", "MeanStdFilter", "Own"]
    assert pieces[0].size == [1, 2]
    assert pieces[2].size == (3, "the env")


def test_the_librarys_pieces_get_the_runs_gamma_unless_their_names_have_one(own):
    assert checked("NormalizeRewards", gamma=0.9).names == ("NormalizeRewards:gamma=0.9",)
    assert checked("NormalizeRewards:clip=5", gamma=0.9).names == ("NormalizeRewards:clip=5,gamma=0.9",)
    assert checked("NormalizeRewards:gamma=0.8", gamma=0.9).names == ("NormalizeRewards:gamma=0.8",)
    assert checked("ScaleRewards", gamma=0.9).names == ("ScaleRewards",)
    assert checked("own_pieces:Own:size=1", gamma=0.9)()[0].gamma == 0.5


def test_no_names_are_no_pieces():
    assert checked() is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ScaleRewards,NormalizeRewards", r"(?s)ScaleRewards.*NormalizeRewards"),
        ("ScaleReward", r"(?s)--learner-connector.*'ScaleReward'.*'ScaleRewards'"),
        ("ScaleRewards:scael=2", r"(?s)--learner-connector.*'scael'.*'scale'"),
        ("ScaleRewards:scale=big", r"(?s)--learner-connector.*\bscale\b"),
        ("ScaleRewards:0.1", r"(?s)--learner-connector.*0\.1"),
        ("ScaleRewards:scale=", r"(?s)--learner-connector.*'ScaleRewards:scale='"),
        ("MeanStdFilter", r"(?s)MeanStdFilter.*--env-to-module"),
        ("GetActions", "GetActions"),
        ("PPOConfig", "'PPOConfig'"),
        ("own_pieces:Own", r"(?s)'own_pieces:Own'.*TypeError.*'size'"),
        ("own_pieces:Nothing", r"(?s)'own_pieces'.*'Nothing'"),
        ("no_such_module:Piece", r"(?s)--learner-connector.*'no_such_module'"),
    ],
)
def test_what_is_no_piece_is_an_error_that_names_the_option(own, name, message):
    with pytest.raises(ConfigError, match=message):
        checked(name)


def test_an_error_in_a_users_function_names_the_function(own):
    with pytest.raises(ConfigError, match=r"(?s)'own_pieces:broken'.*RuntimeError"):
        NamedPieces(("own_pieces:broken",))()


def test_the_known_pieces_are_those_that_a_user_adds():
    known = known_pieces()
    assert {"MeanStdFilter", "NormalizeRewards", "AgentIdEncoding"} <= set(known)
    assert not {"GetActions", "EnvToModulePipeline", "PPOConfig"} & set(known)


def config_with(*names):
    return PPOConfig().environment("CartPole-v1").learners(learner_connector=NamedPieces(names))


def described(config):
    return read_state(ConfigState, json.loads(json.dumps(fields_of(config_to_state(config)))))


def test_a_checkpoint_keeps_the_names():
    restored = config_from_state(described(config_with("ScaleRewards:scale=0.1")), names=Names(trusted=False))
    assert restored.learner_connector == NamedPieces(("ScaleRewards:scale=0.1",))
    assert isinstance(restored.learner_connector()[0], ScaleRewards)


def test_a_users_piece_in_a_checkpoint_needs_trust(own):
    state = described(config_with("own_pieces:Own:size=1"))
    assert config_from_state(state).learner_connector.names == ("own_pieces:Own:size=1",)
    with pytest.raises(CheckpointError, match=r"(?s)own_pieces.*trusted=False"):
        config_from_state(state, names=Names(trusted=False))


@pytest.mark.parametrize(
    "name", ["os:system", "marl_connectors.checkpoints:load_state", "torch:load", "PPOConfig", ":"]
)
def test_a_checkpoint_cannot_name_other_functions_and_classes(name):
    with pytest.raises(CheckpointError):
        config_from_state(described(config_with(name)))


def test_a_run_with_named_pieces_is_restored_from_its_checkpoint(tmp_path):
    config = config_with("ScaleRewards:scale=0.1").env_runners(env_to_module_connector=NamedPieces(("MeanStdFilter",)))
    config.env_runners(num_env_workers=0).training(train_batch_size_per_learner=20, minibatch_size=10, num_epochs=1)
    algo = config.build_algo()
    algo.train()
    restored = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))
    for each in (algo, restored):
        assert any(isinstance(piece, MeanStdFilter) for piece in each.env_runner.env_to_module)
        assert any(isinstance(piece, ScaleRewards) for piece in each.learner.pipeline)
        each.stop()
