"""How often runs copy to and from a device, with a pretended device in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STEPS = 12
CASES = (
    "one policy",
    "many policies",
    "policies with unequal shares",
    "LSTMs",
    "agents that come and go",
    "turns",
    "masks",
    "nested spaces, masks and an LSTM",
)


@pytest.fixture(scope="module")
def runs():
    command = [sys.executable, "-m", "helpers.runs.pretend_device_runs"]
    found = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.slow
def test_every_case_ran(runs):
    assert tuple(runs) == CASES


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_sampling_step_is_one_copy_to_the_device_and_one_back(runs, case):
    sampling = runs[case]["sampling"]
    assert runs[case]["modules_there"]
    assert sampling["to_host"] == sampling["to_device"] == STEPS


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_a_few_copies_whatever_the_number_of_modules_and_minibatches(runs, case):
    updating = runs[case]["updating"]
    # Values, figures, whether all steps were taken; and the numbers of steps, where optimizers are arranged anew.
    assert updating["to_host"] in (3, 4)
    if "LSTM" not in case:
        assert updating["to_device"] <= 7  # train batch, advantages, an order for each of 2 epochs, and what is kept


@pytest.mark.parametrize("case", CASES)
def test_a_train_batch_keeps_no_indices_of_rows_that_were_dropped(runs, case):
    assert not runs[case]["indices_left"]


@pytest.mark.parametrize("case", CASES)
def test_what_is_computed_there_is_what_is_computed_on_the_cpu(runs, case):
    assert runs[case]["same_actions"]
    assert runs[case]["figures_differ_by"] < 1e-5
    assert runs[case]["parameters_differ_by"] < 1e-5
