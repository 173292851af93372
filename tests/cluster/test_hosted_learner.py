from __future__ import annotations

import sys

import pytest

from marl_connectors.cluster.hosted_learner import _interface_of


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the names are those of Linux")
def test_the_network_interface_with_an_address_is_found():
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("192.0.2.77") is None  # an address for examples, which no machine has
