from __future__ import annotations

import sys

import pytest
from ray import cloudpickle

from marl_connectors import LearnerError
from marl_connectors.learner.hosted_learner import HostedLearner, _interface_of


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the names are those of Linux")
def test_the_network_interface_with_an_address_is_found():
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("192.0.2.77") is None  # an address for examples, which no machine has


def test_a_function_of_a_learner_that_does_not_exist_yet_is_an_error():
    with pytest.raises(LearnerError, match="are made in the first update"):
        HostedLearner(0, 2).apply(cloudpickle.dumps(lambda learner: learner))
