"""Checkpoints that an earlier commit has written are read, and new ones have the same form."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from helpers.golden_checkpoints import CONFIGS, FOLDER
from marl_connectors import Algorithm, MeanStdFilter, RLModule
from marl_connectors.checkpoints import FORMAT_VERSION, STATE_FILE


def form(value):
    """The keys and the types of a state; those of all items of a list together."""
    if isinstance(value, dict):
        if "__tensor__" in value:
            return "array"
        return {key: form(part) for key, part in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(form(part), sort_keys=True) for part in value})
    return type(value).__name__


def written(folder):
    document = json.loads((folder / STATE_FILE).read_text())
    document["state"].get("config", {}).pop("settings", None)  # settings may come and go
    return document


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_goes_on_from_a_checkpoint_of_an_earlier_commit(name):
    with Algorithm.from_checkpoint(FOLDER / name) as algo:
        assert algo.iteration == 1
        algo.train()


@pytest.mark.accelerated  # rounding decides which episodes are going on, and so which lists are empty
@pytest.mark.parametrize("name", CONFIGS)
def test_a_new_checkpoint_has_the_form_of_the_golden_one(name, tmp_path):
    """If this fails, the format has changed: raise ``FORMAT_VERSION``, and let the former one be read."""
    with CONFIGS[name]().build_algo() as algo:
        algo.train()
        algo.save_to_path(tmp_path / "new")
    new, golden = written(tmp_path / "new"), written(FOLDER / name)
    assert new["format_version"] == golden["format_version"] == FORMAT_VERSION == 1
    assert form(new["state"]) == form(golden["state"])


def test_a_module_and_a_piece_of_an_earlier_commit_are_made():
    module, piece = RLModule.from_checkpoint(FOLDER / "module"), MeanStdFilter.from_checkpoint(FOLDER / "piece")
    (file,) = (FOLDER / "module").glob("*.safetensors")
    golden = {name.removeprefix("state/"): own for name, own in safetensors.numpy.load_file(file).items()}
    for name, value in module.get_state().items():
        np.testing.assert_array_equal(value, golden[name])
    assert next(iter(piece.get_state().values())).count == 16
