from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace

import pytest

from marl_connectors.cluster import hosted_learner
from marl_connectors.cluster.actor_pool import PeerGone
from marl_connectors.cluster.hosted_learner import HostedLearner, LearnerState, _interface_of
from marl_connectors.errors import ConnectorError
from marl_connectors.learner.ranks import LostRankError
from marl_connectors.metrics import MetricsLogger


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the names are those of Linux")
def test_the_network_interface_with_an_address_is_found():
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("192.0.2.77") is None  # an address for examples, which no machine has


class Loses:
    """A learner, and how it is made. Another learner is lost while a piece of its pipeline waits for it."""

    num_updates = num_gradient_steps = 0

    def __init__(self, error):
        self.error = error
        self.metrics = MetricsLogger()

    def build(self):
        return self

    def set_state(self, state):
        pass

    def update(self, **kwargs):
        try:
            raise self.error
        except Exception as error:
            raise ConnectorError("NormalizeRewards: it has failed.") from error


def hosted(monkeypatch, error):
    class Connected:
        def __init__(self, *args, **kwargs):
            pass

        def update(self, learner, **kwargs):
            return learner.update(**kwargs)

    monkeypatch.setattr(hosted_learner, "Ranks", Connected)
    learner = HostedLearner(0, 1)
    learner.listen()
    learner.connect("127.0.0.1", 0, "cpu", 1.0)
    stored = SimpleNamespace(version=0, refs=(1,), fetched=lambda: pickle.dumps(Loses(error)))
    return learner, LearnerState(blueprint=stored, state=stored, metrics=[])


def test_a_piece_that_waits_for_a_lost_learner_is_no_error_of_its_own(monkeypatch):
    learner, before = hosted(monkeypatch, LostRankError("rank 1 is gone."))
    share = SimpleNamespace(fetch=lambda fetched: ([], []))
    reply, payload = learner.update(before, share, {})
    assert isinstance(reply, PeerGone)
    assert payload is None


def test_an_error_of_a_piece_stays_one(monkeypatch):
    learner, before = hosted(monkeypatch, ZeroDivisionError("a fault of the test"))
    share = SimpleNamespace(fetch=lambda fetched: ([], []))
    with pytest.raises(ConnectorError, match="NormalizeRewards"):
        learner.update(before, share, {})
