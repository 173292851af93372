from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from ray import cloudpickle

from helpers.runs.fake_ray import FakeRay
from marl_connectors.cluster import actor_pool
from marl_connectors.cluster.actor_pool import ActorLost, ActorPool, Call, PeerGone, PeerLost, RestartPolicy
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.errors import MarlConnectorsError


class Counter:
    """Counts on from its newest state."""

    def __init__(self, count: int):
        self.count = count

    @property
    def progress(self) -> str:
        return f"at {self.count}"

    def add(self, number: int) -> tuple[int, str]:
        if number < 0:
            raise ValueError(f"cannot add {number}")
        self.count += number
        if number == 1000:
            return ReadableThereOnly(), "payload"  # type: ignore[return-value]
        if number == 2000:
            sys.exit(1)
        if number == 3000:
            return PeerGone("the other one has left."), "payload"  # type: ignore[return-value]
        return self.count, f"payload {self.count}"


class ReadableThereOnly:
    """An object that can be pickled, but not unpickled."""

    def __reduce__(self):
        return __import__, ("a_module_that_only_the_node_has",)


class Clock:
    """A clock that goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def fake(monkeypatch):
    fake = FakeRay(random.Random(0))
    monkeypatch.setattr(actor_pool, "time", Clock())
    return fake


class Pool:
    """Two Counters, whose states are kept as the groups of env runners keep them."""

    def __init__(self, fake: FakeRay, together: bool = False, **policy: Any):
        cluster = RayCluster.__new__(RayCluster)
        cluster.ray, cluster.paths, cluster.is_own, cluster._is_open = fake, [], True, True
        self.states = {0: 0, 1: 100}
        self.pool = ActorPool(
            cluster,
            2,
            Resources(),
            RestartPolicy(**policy),
            who=lambda index: f"counter {index}",
            begin=lambda index: (cloudpickle.dumps(Counter), (self.states[index],)),
            together=together,
        )

    def add(self, *numbers: int, max_in_flight: int = 1) -> dict[int, list[int]]:
        calls = {index: [Call("add", (number,)) for number in numbers] for index in (0, 1)}
        found = self.pool.run(calls, self.keep, max_in_flight=max_in_flight)
        assert all(reply.payload == f"payload {reply.value}" for own in found.values() for reply in own)
        return {index: [reply.value for reply in own] for index, own in sorted(found.items())}

    def keep(self, index: int, number: int, reply: Any) -> None:
        self.states[index] = reply.value


def losing(actor: str, method: str, call: int, how: str) -> Any:
    """Loses an actor in its n-th call of a method, the calls of its replacements included."""
    calls = 0

    def loses(name: str, called: str, arguments: Any) -> str | None:
        nonlocal calls
        if name == actor and called == method:
            calls += 1
            return how if calls == call else None
        return None

    return loses


def test_calls_of_all_actors_are_answered(fake):
    pool = Pool(fake)
    assert pool.add(1, 2) == {0: [1, 3], 1: [101, 103]}
    assert pool.add(10) == {0: [13], 1: [113]}
    assert pool.pool.num_restarts == 0


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_lost_actor_is_replaced_and_repeats_what_has_no_reply(fake, how, max_in_flight, call):
    pool = Pool(fake)
    fake.loses = losing("counter 1", "call", call, how)
    assert pool.add(1, 2, 3, max_in_flight=max_in_flight) == {0: [1, 3, 6], 1: [101, 103, 106]}
    assert pool.pool.num_restarts == 1
    assert pool.pool.take_replaced() == [1]
    assert pool.pool.take_replaced() == []


def test_an_actor_that_is_lost_while_it_begins_is_replaced(fake):
    fake.loses = losing("counter 0", "begin", 1, "before")
    pool = Pool(fake)
    assert pool.add(1) == {0: [1], 1: [101]}
    assert pool.pool.take_replaced() == [0]


def test_an_actor_that_does_not_answer_is_replaced(fake, caplog):
    pool = Pool(fake, timeout_s=10.0)
    hanging = losing("counter 1", "call", 1, "hangs")
    fake.loses = lambda name, method, arguments: (
        "hangs" if (name, method) == ("counter 1", "progress") else hanging(name, method, arguments)
    )
    assert pool.add(1) == {0: [1], 1: [101]}
    assert "counter 1 has not answered for 40 s. A new one takes its place" in caplog.text


def test_an_actor_without_progress_is_replaced(fake, caplog):
    pool = Pool(fake, timeout_s=10.0)
    fake.loses = losing("counter 1", "call", 1, "hangs")
    assert pool.add(1) == {0: [1], 1: [101]}
    assert "counter 1 has made no progress for 10 s (at 100)" in caplog.text


def test_an_actor_without_progress_is_asked_twice_with_the_time_limit_between(fake):
    pool = Pool(fake, timeout_s=10.0)
    hanging, asked_at = losing("counter 1", "call", 1, "hangs"), []

    def loses(name: str, method: str, arguments: Any) -> str | None:
        if (name, method) == ("counter 1", "progress"):
            asked_at.append(actor_pool.time.now)
        return hanging(name, method, arguments)

    fake.loses = loses
    assert pool.add(1) == {0: [1], 1: [101]}
    assert pool.pool.num_restarts == 1
    assert len(asked_at) == 2, "the first answer only tells how far it is"
    assert asked_at[1] - asked_at[0] > 10.0


@pytest.mark.parametrize("told", ["at {}", None])
def test_an_actor_that_makes_progress_or_tells_none_may_be_late(fake, caplog, told):
    pool = Pool(fake, timeout_s=10.0)
    fake.loses = losing("counter 1", "call", 1, "hangs")
    probe, probes = pool.pool.probe, []

    def progressing(indices: Any) -> dict[int, Any]:
        probes.append(list(indices))
        if len(probes) == 4:  # at last it is done
            for ref in pool.pool._actors[1].waiting:
                ref.is_ready = True
            pool.pool._actors[1].waiting[0].pickled = cloudpickle.dumps(actor_pool_outcome(101))
            pool.pool._actors[1].waiting[1].pickled = cloudpickle.dumps("payload 101")
        return {index: told and told.format(len(probes)) for index in probe(indices)}

    pool.pool.probe = progressing
    assert pool.add(1) == {0: [1], 1: [101]}
    assert pool.pool.num_restarts == 0
    assert ("counter 1 is late (at 2)" in caplog.text) == (told is not None)


def actor_pool_outcome(value: Any) -> Any:
    from marl_connectors.cluster.host import Outcome

    return Outcome(value)


def test_an_error_of_the_object_is_raised_and_not_repeated(fake):
    pool = Pool(fake)
    with pytest.raises(ValueError, match=r"add -1\b") as raised:
        pool.add(-1)
    assert pool.pool.num_restarts == 0
    assert "Raised in counter" in "".join(getattr(raised.value, "__notes__", ["Raised in counter"]))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (1000, "a_module_that_only_the_node_has"),
        (2000, r"sys\.exit\(1\)"),
    ],
)
def test_an_actor_is_not_lost_by_what_it_returns_or_calls(number, message, fake):
    pool = Pool(fake)
    with pytest.raises(MarlConnectorsError, match=message):
        pool.add(number)
    assert pool.pool.num_restarts == 0
    assert pool.add(0).keys() == {0, 1}


def test_without_restarts_a_lost_actor_ends_the_run(fake):
    pool = Pool(fake, restarts=False)
    fake.loses = losing("counter 1", "call", 1, "before")
    with pytest.raises(ActorLost, match=r"(?s)counter 1.*\(ActorDiedError\).*restart_failed_env_runners=True"):
        pool.add(1)


def test_a_run_can_go_on_without_a_lost_actor(fake):
    pool = Pool(fake, restarts=False, ignores=True)
    fake.loses = losing("counter 1", "call", 1, "before")
    assert pool.add(1) == {0: [1]}
    assert pool.pool.indices == [0]
    assert pool.pool.lost == {1}
    assert pool.add(1) == {0: [2]}
    fake.loses = losing("counter 0", "call", 1, "before")
    with pytest.raises(ActorLost, match="last"):
        pool.add(1)


def test_the_number_of_replacements_is_bounded(fake):
    pool = Pool(fake, most=2)
    fake.loses = lambda name, method, arguments: "before" if (name, method) == ("counter 1", "call") else None
    with pytest.raises(ActorLost, match=r"\b2 replacements"):
        pool.add(1)


def test_a_call_that_kills_its_process_every_time_ends_the_run(fake):
    pool = Pool(fake)
    fake.loses = lambda name, method, arguments: "before" if (name, method) == ("counter 1", "call") else None
    with pytest.raises(ActorLost, match=r"\b10 times"):
        pool.add(1)


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_an_actor_may_be_lost_once_in_each_call_of_a_long_run(fake, max_in_flight):
    pool = Pool(fake)
    tries = 0

    def loses(name: str, method: str, arguments: Any) -> str | None:
        nonlocal tries
        if (name, method) != ("counter 1", "call"):
            return None
        tries += 1
        return "before" if tries % 2 else None

    fake.loses = loses
    counts = list(range(1, 16))
    assert pool.add(*[1] * 15, max_in_flight=max_in_flight) == {0: counts, 1: [100 + count for count in counts]}
    assert pool.pool.num_restarts == 15


def test_an_actor_that_hangs_while_it_starts_is_replaced(fake, caplog):
    hanging = losing("counter 1", "begin", 1, "hangs")
    fake.loses = lambda name, method, arguments: (
        "hangs" if (name, method) == ("counter 1", "progress") else hanging(name, method, arguments)
    )
    pool = Pool(fake, timeout_s=10.0)
    assert pool.add(1) == {0: [1], 1: [101]}
    assert "counter 1 has not answered for 30 s while it started" in caplog.text


def test_an_actor_that_answers_may_start_slowly_but_not_forever(fake):
    fake.loses = lambda name, method, arguments: "hangs" if (name, method) == ("counter 1", "begin") else None
    pool = Pool(fake, timeout_s=10.0)
    with pytest.raises(ActorLost, match=r"(?s)counter 1.*300.*\b3\b"):
        pool.pool.wait_until_begun()


def test_an_actor_for_which_there_is_no_place_is_named(fake, caplog):
    waiting = losing("counter 1", "begin", 1, "hangs")
    fake.loses = lambda name, method, arguments: (
        "hangs" if (name, method) == ("counter 1", "process") else waiting(name, method, arguments)
    )
    pool = Pool(fake, timeout_s=10.0)
    pool.pool.wait_until_begun()
    assert "counter 1 has no process yet. Free in the cluster: 3 CPU, 0 GPU." in caplog.text


def test_without_a_time_limit_an_actor_for_which_there_is_no_place_is_named_and_waited_for(fake, monkeypatch, caplog):
    fake.loses = lambda name, method, arguments: (
        "hangs" if name.startswith("counter 1") and method in ("process", "begin") else None
    )
    pool = Pool(fake, timeout_s=None)
    free_resources = pool.pool._cluster.free_resources

    def answered_when_named() -> str:
        for ref in pool.pool._actors[1].waiting:
            ref.is_ready, ref.pickled = True, cloudpickle.dumps(actor_pool_outcome(None))
        return free_resources()

    monkeypatch.setattr(pool.pool._cluster, "free_resources", answered_when_named)
    pool.pool.wait_until_begun()
    assert caplog.text.count("counter 1 has no process yet. Free in the cluster: 3 CPU, 0 GPU.") == 1
    assert pool.pool.num_restarts == 0


def test_actors_end_by_themselves_at_a_normal_end(fake, monkeypatch):
    pool = Pool(fake)
    pool.pool.wait_until_begun()
    ended = []
    monkeypatch.setattr(pool.pool._cluster, "end", ended.extend)
    monkeypatch.setattr(pool.pool._cluster, "kill", None)
    actors = [pool.pool._actors[index] for index in (0, 1)]
    pool.pool.close()
    pool.pool.close()
    assert [actor for actor, _ in ended] == actors
    with pytest.raises(ActorLost, match=r"stop\(\)"):
        pool.add(1)


def test_an_actor_that_dies_whenever_it_starts_ends_the_run(fake):
    fake.loses = lambda name, method, arguments: "before" if (name, method) == ("counter 1", "begin") else None
    with pytest.raises(ActorLost, match=r"\b10 times"):
        Pool(fake).pool.wait_until_begun()


# Actors that depend on one another.


def test_the_loss_of_one_actor_that_others_need_ends_the_call_and_all_are_replaced(fake):
    pool = Pool(fake, together=True)
    pool.pool.wait_until_begun()
    actors = set(pool.pool._actors.values())
    fake.loses = losing("counter 1", "call", 1, "before")
    with pytest.raises(PeerLost, match=r"(?s)^counter 1.*\(ActorDiedError\)$") as lost:
        pool.add(1)
    pool.pool.replace_all(str(lost.value))
    assert pool.add(1).keys() == {0, 1}
    assert not actors & set(pool.pool._actors.values())
    assert (pool.pool.num_restarts, pool.pool.generation) == (1, 1)


def test_a_loss_that_the_policy_does_not_replace_ends_the_run_of_actors_that_need_one_another(fake):
    pool = Pool(fake, together=True, restarts=False)
    with pytest.raises(ActorLost, match=r"(?s)counter 1.*restart_failed_env_runners=True"):
        pool.pool.replace_all("counter 1 has died")
    with pytest.raises(ActorLost, match="counter 1"):
        pool.add(1)


def test_the_error_that_let_others_give_up_is_raised_and_not_that_they_have(fake):
    pool = Pool(fake, together=True)
    for number in (-1, -2):  # answers come in any order
        calls = {0: [Call("add", (3000,))], 1: [Call("add", (number,))]}
        with pytest.raises(ValueError, match="cannot add"):
            pool.pool.run(calls)
    with pytest.raises(PeerLost, match=r"^the other one has left$"):
        pool.pool.run({0: [Call("add", (3000,))], 1: [Call("add", (1,))]})


def test_without_a_time_limit_an_actor_that_hangs_after_another_gave_up_is_lost(fake, monkeypatch):
    pool = Pool(fake, together=True, timeout_s=None)
    fake.loses = losing("counter 1", "call", 1, "hangs")
    monkeypatch.setattr(pool.pool, "probe", lambda indices, timeout_s=None: {})
    with pytest.raises(PeerLost, match="counter 1"):
        pool.pool.run({0: [Call("add", (3000,))], 1: [Call("add", (1,))]})


def test_an_actor_that_waits_for_one_that_makes_progress_does_not_hang(fake, monkeypatch):
    pool, answers = Pool(fake, together=True, timeout_s=10.0), iter(range(6))
    fake.loses = lambda name, method, arguments: "hangs" if method == "call" else None
    monkeypatch.setattr(pool.pool, "probe", lambda indices, timeout_s=None: {0: "waits", 1: min(next(answers), 4)})
    with pytest.raises(PeerLost, match=r"(?s)counter [01].*10"):
        pool.add(1)
    assert next(answers, None) is None
