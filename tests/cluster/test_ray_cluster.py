"""Connecting to Ray: errors come soon and say what to do, and the process stays as it was."""

from __future__ import annotations

import random
import signal
import socket
import sys
from types import SimpleNamespace

import pytest

from marl_connectors.cluster import ray_cluster
from marl_connectors.cluster.ray_cluster import RayCluster
from marl_connectors.errors import ConfigError


def ray_that_cannot_start():
    """Replaces the handler of SIGTERM and draws random numbers, as Ray does, and then fails."""

    def init(**settings):
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        random.random()
        raise ConnectionError("no Ray here")

    return SimpleNamespace(is_initialized=lambda: False, init=init)


@pytest.fixture
def no_ray(monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: ray_that_cannot_start())


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_an_error_at_once(scheme, no_ray):
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(
        ConfigError, match=rf"num_learners=2: the Ray cluster at '{address}' cannot be reached \(.*refused"
    ):
        RayCluster(address, {}, "num_learners=2")


def test_a_cluster_that_does_not_start_is_an_error_of_one_line(no_ray):
    with pytest.raises(ConfigError, match=r"the cluster on this machine cannot be reached \(no Ray here\)") as caught:
        RayCluster(None, {}, "num_env_runners=1")
    assert "\n" not in str(caught.value)


def test_ray_does_not_keep_the_handler_of_sigterm(no_ray):
    def own(number, frame):
        pass

    former = signal.signal(signal.SIGTERM, own)
    try:
        with pytest.raises(ConfigError):
            RayCluster(None, {}, "num_env_runners=1")
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, former)


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match=r"num_env_runners=3: it needs the package ray.* pip install 'marl-connectors\[ray\]'"
    ):
        RayCluster(None, {}, "num_env_runners=3")


def connected_to(address):
    context = SimpleNamespace(gcs_address=address)
    return SimpleNamespace(
        is_initialized=lambda: True,
        get_runtime_context=lambda: context,
        cluster_resources=dict,
        put=lambda value: value,
    )


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "head:6379"])
def test_a_connection_of_the_user_is_used_and_stays_open(address, monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: connected_to("10.0.0.1:6379"))
    cluster = RayCluster(address, {}, "num_env_runners=1")
    assert not cluster.is_own
    assert cluster.put("data") == "data"
    cluster.close()  # it would call shutdown(), which this Ray lacks
    with pytest.raises(ConfigError, match=r"ended by stop\(\)"):
        cluster.put("data")


def test_a_connection_of_the_user_to_another_cluster_is_an_error(monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: connected_to("10.0.0.1:6379"))
    with pytest.raises(ConfigError, match=r"connected to the Ray cluster at '10.0.0.1:6379' already"):
        RayCluster("10.0.0.1:6380", {}, "num_env_runners=1")
