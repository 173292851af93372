"""Connecting to Ray: errors come soon and say what to do, and the process stays as it was."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import exceptions

from marl_connectors.cluster import ray_cluster
from marl_connectors.cluster.host import Process
from marl_connectors.cluster.ray_cluster import ClusterLost, RayCluster, Resources
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
    with pytest.raises(ConfigError, match=f"(?s)num_learners=2.*Ray.*'{address}'"):
        RayCluster(address, {}, "num_learners=2")


def test_a_cluster_that_does_not_start_is_an_error_of_one_line(no_ray):
    with pytest.raises(ConfigError, match=r"\(no Ray here\)") as caught:
        RayCluster(None, {}, "num_env_runners=1")
    assert "\n" not in str(caught.value)


def own_handler(number, frame):
    pass


def test_a_run_without_an_address_joins_no_cluster_that_the_environment_names(monkeypatch):
    given = {}

    def init(**settings):
        given.update(settings)
        raise ConnectionError("no Ray here")

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
    with pytest.raises(ConfigError):
        RayCluster(None, {}, "num_env_runners=1")
    assert given["address"] == "local"  # this value makes Ray start a cluster, whatever the environment says


@pytest.mark.parametrize("own", [own_handler, signal.SIG_DFL])
def test_ray_does_not_keep_the_handler_of_sigterm(own, no_ray):
    former = signal.signal(signal.SIGTERM, own)
    try:
        with pytest.raises(ConfigError):
            RayCluster(None, {}, "num_env_runners=1")
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, former)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_ray_has_started(number, monkeypatch):
    came = []

    def init(**settings):
        signal.raise_signal(number)
        came.append("started")

    def own(number, frame):
        came.append(number)
        raise KeyboardInterrupt

    fake = SimpleNamespace(
        is_initialized=lambda: "started" in came and "shut down" not in came,
        init=init,
        shutdown=lambda: came.append("shut down"),
    )
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
    former = signal.signal(number, own)
    try:
        with pytest.raises(KeyboardInterrupt):
            RayCluster(None, {}, "num_env_runners=1")
    finally:
        signal.signal(number, former)
    assert came == ["started", number, "shut down"]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs masks of signals")
def test_processes_of_ray_do_not_react_to_a_closed_terminal(monkeypatch):
    blocked = []

    def init(**settings):
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        raise ConnectionError("no Ray here")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
    with pytest.raises(ConfigError):
        RayCluster(None, {}, "num_env_runners=1")
    assert signal.SIGHUP in blocked[0]
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_cluster_whose_head_has_ended_starts_no_actor(monkeypatch):
    fake = SimpleNamespace(
        is_initialized=lambda: True,
        cluster_resources=dict,
        get_runtime_context=lambda: SimpleNamespace(gcs_address=f"127.0.0.1:{free_port()}"),
    )
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
    monkeypatch.setattr(ray_cluster, "_RECONNECT_S", 0.0)
    cluster = RayCluster(None, {}, "num_env_runners=1")
    try:
        with pytest.raises(ClusterLost, match="latest"):
            cluster.start("env runner 0", Resources())
    finally:
        cluster.close()


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"(?s)num_env_runners=3.*pip install ray"):
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
    with pytest.raises(ConfigError, match=r"stop\(\)"):
        cluster.put("data")


def test_a_connection_of_the_user_to_another_cluster_is_an_error(monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: connected_to("10.0.0.1:6379"))
    with pytest.raises(ConfigError, match=r"(?s)Ray.*'10.0.0.1:6379'"):
        RayCluster("10.0.0.1:6380", {}, "num_env_runners=1")


def titled_process(title):
    """A process that sleeps, under another name."""
    return subprocess.Popen(["bash", "-c", f"exec -a '{title}' sleep 60"])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.ActorDiedError(), True),
        (exceptions.ActorUnavailableError("", None), True),
        (exceptions.WorkerCrashedError(), True),
        (exceptions.OutOfMemoryError("killed"), True),
        (exceptions.NodeDiedError("gone"), True),
        (exceptions.ObjectLostError("0" * 28, None, ""), True),
        (exceptions.OwnerDiedError("0" * 28, None, ""), True),
        (exceptions.RaySystemError("System error: No module named 'game'"), False),
        (exceptions.GetTimeoutError(), False),
        (exceptions.RuntimeEnvSetupError(), False),
        (exceptions.RayTaskError("call", "", exceptions.ActorDiedError()).as_instanceof_cause(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_the_end_of_a_process_or_of_data_is_a_loss(error, expected):
    cluster = RayCluster.__new__(RayCluster)
    cluster.ray = SimpleNamespace(exceptions=exceptions)
    assert cluster.is_loss(error) is expected


@pytest.mark.parametrize(
    ("settings", "named"), [({}, ""), ({"GPU": "num_gpus_per_learner=1"}, r"\(num_gpus_per_learner=1\)")]
)
def test_a_resource_that_the_cluster_lacks_is_named_with_its_setting(settings, named, monkeypatch):
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: connected_to("10.0.0.1:6379"))
    with pytest.raises(ConfigError, match=rf"(?s)num_learners=2.*\b2\b.*GPU.*{named}.*\b0\b"):
        RayCluster(None, {"GPU": 2.0}, "num_learners=2", settings)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("title", "node", "is_ended"),
    [("ray::EnvRunner0", "here", True), ("ray::EnvRunner0", "there", False), ("editor", "here", False)],
)
def test_a_stopped_process_of_ray_on_this_node_is_ended_at_once_and_no_other(title, node, is_ended, monkeypatch):
    fake = connected_to("10.0.0.1:6379")
    fake.wait = lambda refs, **settings: (refs, [])
    fake.get = lambda ref: ref
    fake.kill = lambda actor, no_restart: None
    fake.exceptions = SimpleNamespace(RayError=RuntimeError)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
    monkeypatch.setattr(ray_cluster, "this_process", lambda: Process("here", 1))
    cluster = RayCluster(None, {}, "num_env_runners=1")
    with titled_process(title) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_text().startswith(title):
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGSTOP)
            cluster.kill(object(), Process(node, process.pid))
            if is_ended:
                assert process.wait(timeout=60) == -signal.SIGKILL
            else:
                assert process.poll() is None
        finally:
            process.kill()
            cluster.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize(("stops", "ending"), [(False, signal.SIGTERM), (True, signal.SIGKILL)])
def test_only_a_process_that_does_not_end_by_itself_is_killed(stops, ending, monkeypatch):
    with titled_process("ray::EnvRunner0") as process:
        fake = connected_to("10.0.0.1:6379")
        fake.wait = lambda refs, **settings: (refs, [])
        fake.get = lambda ref: ref
        fake.kill = lambda actor, no_restart: process.send_signal(signal.SIGSTOP if stops else signal.SIGTERM)
        fake.exceptions = SimpleNamespace(RayError=RuntimeError)
        monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
        monkeypatch.setattr(ray_cluster, "this_process", lambda: Process("here", 1))
        monkeypatch.setattr(ray_cluster, "_END_S", 0.2 if stops else 60.0)
        cluster = RayCluster(None, {}, "num_env_runners=1")
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_text().startswith("ray::"):
                time.sleep(0.01)
            cluster.end([(object(), Process("here", process.pid)), (object(), None)])
            assert process.wait(timeout=60) == -ending
        finally:
            process.kill()
            cluster.close()
