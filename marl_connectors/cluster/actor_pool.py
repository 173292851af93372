"""ActorPool: actors that are called together, and replaced if they die or hang."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.errors import MarlConnectorsError, counted

_LOG = logging.getLogger(__name__)
MOST_TRIES = 10
"""How often one call is tried. An environment that kills its process in the same step again and again ends the run."""
_MOST_STARTS = 3
"""How often an actor may fail to start in time, one time after another."""
_LEAST_START_S = 300.0
_GRACE_S = 20.0
"""The seconds without progress after which an actor hangs, once another one that it depends on has given up."""
_QUIET_START_S = 30.0
"""The seconds after which a log line says that Ray has not found a place for an actor yet."""


_WATCH_S = 0.25
"""The seconds between two calls of a function that watches calls."""


class ActorLost(MarlConnectorsError, RuntimeError):
    """An actor that died or hung, and was not replaced."""


class PeerGone(NamedTuple):
    """What a call returns that could not be completed because another actor of the pool has given up or is gone."""

    why: str


class PeerLost(Exception):
    """An actor of a pool whose actors depend on one another died or hung. The message says which one, and how."""


@dataclass(frozen=True)
class RestartPolicy:
    """What happens if an actor dies or hangs.

    Attributes:
        restarts: Whether it is replaced.
        ignores: Whether the others continue without it, if it is not replaced.
        most: The number of replacements in the pool's life.
        timeout_s: The seconds without progress after which an actor hangs; None for no limit.
        probe_timeout_s: The seconds in which an actor must answer how far it is.
        start_timeout_s: The seconds in which an actor must start.
    """

    restarts: bool = True
    ignores: bool = False
    most: int = 1000
    timeout_s: float | None = 60.0
    probe_timeout_s: float = 30.0
    start_timeout_s: float = 1800.0


class Call(NamedTuple):
    """A call of a hosted object: the method and its arguments."""

    method: str
    arguments: tuple[Any, ...] = ()


class Reply(NamedTuple):
    """What a call returned.

    Attributes:
        value: The value, fetched.
        payload: The reference of the payload in Ray's store, or the payload itself if the pool fetches it.
    """

    value: Any
    payload: Any


Watch = Callable[[Collection[int]], None]
"""A function that is called while a pool waits, with the indices of the actors that have not answered yet."""


@dataclass
class _Waiting:
    """A reference that the pool waits for, and how long it has been waiting without progress."""

    index: int
    since: float
    progress: Any = None


class ActorPool:
    """Actors of one kind with indices from 0, which host one object each.

    Attributes:
        policy: What happens if an actor is lost.
        together: Whether the actors depend on one another, so that all are replaced if one is lost.
        num_restarts: The number of replacements so far.
        generation: How often all actors were replaced at once.
        lost: The indices of actors that were lost and not replaced.
    """

    def __init__(
        self,
        cluster: RayCluster,
        number: int,
        resources: Resources,
        policy: RestartPolicy,
        *,
        who: Callable[[int], str],
        begin: Callable[[int], tuple[Any, ...]],
        fetches_payloads: bool = True,
        together: bool = False,
    ):
        """Starts the actors, and does not wait for them.

        Args:
            cluster: The connection to Ray.
            number: The number of actors.
            resources: What each actor reserves.
            policy: What happens if one is lost.
            who: Returns the name of an actor in messages.
            begin: Returns the arguments of ``Host.begin`` for an actor: a pickled function that makes the hosted
                object, and the function's arguments. It is called for every actor, also for replacements, whose object
                it lets continue from the newest state.
            fetches_payloads: Whether payloads are fetched before a call counts as done.
            together: As above. If one is lost, calls raise PeerLost, and the caller repeats them for all.
        """
        self._cluster = cluster
        self._ray = cluster.ray
        self._resources = resources
        self.policy = policy
        self._who = who
        self._begin = begin
        self._fetches_payloads = fetches_payloads
        self.together = together
        self.num_restarts = 0
        self.generation = 0
        self.lost: set[int] = set()
        self._replaced: list[int] = []
        self._actors: dict[int, Any] = {}
        self._processes: dict[int, Any] = {}  # references of where the actors run
        self._beginning: dict[int, Any] = {}  # references of ``Host.begin`` that were not waited for yet
        self._must_restart = False
        self._number = number
        self._failure = ""  # why an actor was lost that the policy neither replaces nor ignores
        for index in range(number):
            self._start(index)

    @property
    def indices(self) -> list[int]:
        """The indices of the actors that work."""
        return [index for index in range(self._number) if index not in self.lost]

    def take_replaced(self) -> list[int]:
        """Returns the indices of the actors that were replaced since the last call."""
        replaced, self._replaced = self._replaced, []
        return sorted(set(replaced))

    def _start(self, index: int) -> None:
        actor = self._cluster.start(self._who(index), self._resources)
        self._actors[index] = actor
        self._processes[index] = actor.process.remote()
        self._beginning[index] = actor.begin.remote(*self._begin(index))

    def wait_until_begun(self) -> None:
        """Waits for all actors to make their objects.

        Raises:
            Exception: What making an object raised.
        """
        self.run({})

    # Calls.

    def run(
        self,
        calls: Mapping[int, Sequence[Call]],
        on_reply: Callable[[int, int, Reply], None] | None = None,
        *,
        max_in_flight: int = 1,
        watch: Watch | None = None,
    ) -> dict[int, list[Reply]]:
        """Calls several actors at once, and waits for all of them.

        If an actor is lost, its replacement begins with what the pool's ``begin`` returns then, and the calls that have
        no reply yet are repeated.

        Args:
            calls: For each actor, its calls in order.
            on_reply: Called with the index of the actor, the number of its call and the reply, in the order of the
                actor's calls. What it stores can be the state that ``begin`` returns for a replacement.
            max_in_flight: The number of calls that an actor may have got at once.
            watch: As for ``result()`` of what ``submit`` returns.

        Returns:
            For each actor, its replies. Actors in ``lost`` have none.

        Raises:
            ActorLost: If an actor is lost, and the policy neither replaces it nor ignores the loss.
            PeerLost: If an actor is lost on which others depend.
            Exception: What a hosted object raised.
        """
        with self._restarted_after_interrupt():
            return _Run(self, calls, on_reply, max_in_flight).result(watch)

    def submit(
        self, calls: Mapping[int, Sequence[Call]], on_reply: Callable[[int, int, Reply], None] | None = None
    ) -> _Run:
        """Calls several actors, and does not wait. ``result()`` of what it returns waits for them."""
        with self._restarted_after_interrupt():
            begun = _Run(self, calls, on_reply, 1)
            begun.advance(0.0)
            return begun

    @contextmanager
    def _restarted_after_interrupt(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.restart_later()  # else the next call would wait for this one
            raise

    # Loss and replacement.

    def _lose(self, index: int, why: str) -> None:
        """Replaces an actor, or does without it.

        Raises:
            ActorLost: If the policy does neither.
        """
        who = self._who(index)
        self._cluster.kill(self._actors.pop(index), self._processes.pop(index, None))
        self._beginning.pop(index, None)
        if self.policy.ignores and not self.policy.restarts:
            self.lost.add(index)
            if not self._actors:
                self._fail(f"{who} {why}, and it was the last one.")
            _LOG.warning("%s %s. The run continues without it.", who, why)
            return
        self._count_replacement(f"{who} {why}")
        self._replaced.append(index)
        _LOG.warning("%s %s. A new one takes its place, and repeats the call.", who, why)
        self._start(index)

    def replace_all(self, lost: str) -> None:
        """Replaces all actors before the next call, because one was lost on which the others depend.

        Args:
            lost: Which one, and what happened to it.

        Raises:
            ActorLost: If the policy does not replace it.
        """
        self.restart_later()
        self._count_replacement(lost)

    def _count_replacement(self, lost: str) -> None:
        if not self.policy.restarts:
            self._fail(f"{lost}. Set restart_failed_env_runners=True to replace it.")
        if self.num_restarts >= self.policy.most:
            self._fail(
                f"{lost}, after {self.num_restarts} replacements in this run. Look for the cause, or raise "
                f"max_num_env_runner_restarts."
            )
        self.num_restarts += 1

    def _fail(self, message: str) -> NoReturn:
        self._failure = message
        raise ActorLost(message)

    def restart_later(self) -> None:
        """Replaces all actors before the next call."""
        self._must_restart = True

    def prepare(self) -> None:
        """Makes the actors ready for calls.

        Raises:
            ActorLost: If one was lost, and the policy neither replaces it nor ignores the loss.
        """
        if self._failure:
            raise ActorLost(self._failure)
        if self._must_restart or len(self._actors) < len(self.indices):  # a replacement was interrupted
            self._restart()

    def _restart(self) -> None:
        """Replaces all actors by new ones, which begin with the newest state."""
        self._end()
        for index in self.indices:
            self._start(index)
        self.generation += 1
        self._must_restart = False  # only now, because an interrupt may have come before

    def _end(self) -> None:
        actors = [(actor, self._processes.pop(index, None)) for index, actor in self._actors.items()]
        self._actors.clear()
        self._beginning.clear()
        self._cluster.end(actors)

    def has_process(self, index: int) -> bool:
        """Whether Ray has found a place for an actor, and its process has answered once."""
        return self._cluster.is_ready(self._processes[index])

    def probe(self, indices: Collection[int], timeout_s: float | None = None) -> dict[int, Any]:
        """Returns how far some actors are. Those that do not answer in time are missing.

        Args:
            indices: Their indices.
            timeout_s: The seconds to wait for answers; ``probe_timeout_s`` of the policy if None.
        """
        refs = {index: self._actors[index].progress.remote() for index in indices}
        limit = self.policy.probe_timeout_s if timeout_s is None else timeout_s
        done, _ = self._ray.wait(list(refs.values()), num_returns=len(refs), timeout=limit)
        found = {}
        for index, ref in refs.items():
            if ref in done:
                try:
                    found[index] = self._ray.get(ref)
                except self._ray.exceptions.RayError:
                    continue  # the call that it was to answer for fails, too
        return found

    def progress(self, indices: Collection[int]) -> dict[int, Any]:
        """Returns how far some actors are in the calls that they run, as far as they answer soon enough to show it."""
        found = self.probe(indices, _WATCH_S)
        return {index: progress for index, progress in found.items() if progress is not None}

    def tell(self, indices: Collection[int], method: str, *arguments: Any) -> None:
        """Calls a short method of some hosted objects while they run another one, and does not wait."""
        for index in indices:
            self._actors[index].tell.remote(method, *arguments)

    def close(self, graceful_s: float = 5.0) -> None:
        """Ends the actors; those that do not end by themselves in time are killed."""
        self._failure = "The actors were ended by stop(). Build the algorithm anew."
        self._number = 0
        try:
            if self._actors and self._ray.is_initialized():
                refs = [actor.call.options(num_returns=2).remote("close")[0] for actor in self._actors.values()]
                self._ray.wait(refs, num_returns=len(refs), timeout=graceful_s)
        finally:
            self._end()


class _Run:
    """Calls that a pool waits for."""

    def __init__(
        self,
        pool: ActorPool,
        calls: Mapping[int, Sequence[Call]],
        on_reply: Callable[[int, int, Reply], None] | None,
        max_in_flight: int,
    ):
        pool.prepare()
        self._pool = pool
        self._ray = pool._ray
        self._calls = {index: list(own) for index, own in calls.items() if index not in pool.lost}
        self._on_reply = on_reply
        self._max_in_flight = max_in_flight
        self._timeout_s = pool.policy.timeout_s
        self._gone: list[PeerGone] = []
        self._replies: dict[int, list[Reply]] = {index: [] for index in self._calls}
        self._tries = dict.fromkeys(range(max([*self._calls, *pool._actors], default=-1) + 1), 1)
        self._has_said: set[Any] = set()
        self._sent: dict[int, list[tuple[Any, Any]]] = {index: [] for index in self._calls}
        self._waiting: dict[Any, _Waiting] = {}
        for index in sorted({*self._calls, *pool._beginning}):
            self._wait_for_next(index)

    def result(self, watch: Watch | None = None) -> dict[int, list[Reply]]:
        """Waits for all calls.

        Args:
            watch: Called several times in a second with the indices of the actors that have not answered yet.
        """
        while self._waiting:
            self.advance(self._tick() if watch is None else min(_WATCH_S, self._tick()))
            if watch is not None and self._waiting:
                watch({waiting.index for waiting in self._waiting.values()})
        if self._gone:
            raise PeerLost(self._gone[0].why.rstrip("."))
        return {index: replies for index, replies in self._replies.items() if index not in self._pool.lost}

    def advance(self, timeout_s: float | None) -> bool:
        """Waits for some calls. Returns whether all are done."""
        done, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=timeout_s)
        if done:
            done, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for ref in done:
            if ref in self._waiting:  # else its actor was lost meanwhile
                self._receive(ref)
        if not done and self._waiting and timeout_s != 0:
            self._look_for_hanging()
        return not self._waiting

    def _tick(self) -> float:
        limit = self._timeout_s
        return 5.0 if limit is None else max(0.05, min(limit / 4, 5.0))

    def _wait_for_next(self, index: int) -> None:
        """Sends what the actor can get, and waits for the first thing that it has to answer."""
        if index in self._pool.lost:
            return
        now = time.monotonic()
        sent, calls = self._sent.get(index, []), self._calls.get(index, [])
        beginning = self._pool._beginning.get(index)
        actor = self._pool._actors[index]
        received = len(self._replies.get(index, ()))
        while received + len(sent) < len(calls) and len(sent) < self._max_in_flight:
            call = calls[received + len(sent)]
            sent.append(tuple(actor.call.options(num_returns=2).remote(call.method, *call.arguments)))
        first = beginning if beginning is not None else sent[0][0] if sent else None
        if first is not None:
            self._waiting[first] = _Waiting(index, now)

    def _receive(self, ref: Any) -> None:
        index = self._waiting.pop(ref).index
        pool = self._pool
        try:
            if ref == pool._beginning.get(index):
                outcome = pool._cluster.received(ref, pool._who(index))
                pool._beginning.pop(index)
                if outcome.error is not None:
                    pool.restart_later()  # the actor has nothing that it could call
                outcome.result(pool._who(index))
            else:
                outcome = pool._cluster.received(ref, pool._who(index))
                value = outcome.result(pool._who(index))
                if isinstance(value, PeerGone):  # the cause is what another actor answers, if it does so soon
                    self._gone.append(value)
                    self._timeout_s = _GRACE_S if self._timeout_s is None else min(self._timeout_s, _GRACE_S)
                payload = self._sent[index][0][1]
                reply = Reply(value, self._ray.get(payload) if pool._fetches_payloads else payload)
                del self._sent[index][0]
                self._replies[index].append(reply)
                self._tries[index] = 1
                if self._on_reply is not None:
                    self._on_reply(index, len(self._replies[index]) - 1, reply)
        except self._ray.exceptions.RayError as error:
            if not pool._cluster.is_loss(error):
                raise
            self._lost(index, _cause(error))
            return
        self._wait_for_next(index)

    def _lost(self, index: int, why: str) -> None:
        """Replaces an actor and sends its calls again."""
        for ref in [ref for ref, waiting in self._waiting.items() if waiting.index == index]:
            del self._waiting[ref]
        if self._pool.together:
            raise PeerLost(f"{self._pool._who(index)} {why}")
        self._tries[index] += 1
        if self._tries[index] > MOST_TRIES:
            where = "in the same call" if index in self._sent else "while it started"
            raise ActorLost(
                f"{self._pool._who(index)} {why}, {MOST_TRIES} times in a row {where}. Look at what its process "
                f"printed last; run with num_env_runners=0 to see the cause in this process."
            )
        if index in self._sent:
            self._sent[index].clear()
        self._pool._lose(index, why)
        self._wait_for_next(index)

    def _look_for_hanging(self) -> None:
        """Replaces actors that have made no progress for too long, and names those for which there is no place."""
        timeout_s, now = self._timeout_s, time.monotonic()
        called: dict[int, _Waiting] = {}
        for ref, waiting in list(self._waiting.items()):
            if ref == self._pool._beginning.get(waiting.index):
                self._look_at_start(ref, waiting, now)
            else:
                called[waiting.index] = waiting
        if timeout_s is None:
            return
        late = {index: waiting for index, waiting in called.items() if now - waiting.since > timeout_s}
        if late:
            self._look_at_late(called if self._pool.together else late, timeout_s)

    def _look_at_start(self, ref: Any, waiting: _Waiting, now: float) -> None:
        """Replaces an actor that does not start in time."""
        pool, index, waited = self._pool, waiting.index, now - waiting.since
        policy, who = pool.policy, pool._who(index)
        has_process = pool.has_process(index)
        if not has_process and waited > _QUIET_START_S and ref not in self._has_said:
            self._has_said.add(ref)
            _LOG.warning("%s has no process yet. Free in the cluster: %s.", who, pool._cluster.free_resources())
        if policy.timeout_s is None:
            return
        if has_process and waited > policy.timeout_s and index not in pool.probe([index]):
            self._lost(index, f"has not answered for {policy.probe_timeout_s:.0f} s while it started")
            return
        limit, most = min(policy.start_timeout_s, max(policy.timeout_s, _LEAST_START_S)), _MOST_STARTS
        if pool.together:
            limit, most = policy.start_timeout_s, 1
        if waited <= limit:
            return
        if self._tries[index] >= most:
            raise ActorLost(
                f"{who} has not started in {limit:.0f} s, {counted(most, 'time')} in a row. Free in the cluster: "
                f"{pool._cluster.free_resources()}. Reserve less for each actor, or raise sample_timeout_s if its "
                f"environments take so long to make."
            )
        self._lost(index, f"has not started in {limit:.0f} s")

    def _look_at_late(self, late: Mapping[int, _Waiting], timeout_s: float) -> None:
        """Replaces the actors among those that are late which do not answer, or make no progress."""
        answers = self._pool.probe(late)
        same = {index for index, own in late.items() if own.progress is not None and own.progress == answers.get(index)}
        if self._pool.together and len(same) < len(late):  # they wait for the one that makes progress
            same = set()
        for index, waiting in late.items():
            if not any(known is waiting for known in self._waiting.values()):
                continue
            if index not in answers:
                self._lost(index, f"has not answered for {timeout_s + self._pool.policy.probe_timeout_s:.0f} s")
            elif index in same:
                self._lost(index, f"has made no progress for {timeout_s:.0f} s{_at(answers[index])}")
            else:
                if waiting.progress is not None:
                    _LOG.warning("%s is late%s.", self._pool._who(index), _at(answers[index]))
                waiting.since, waiting.progress = time.monotonic(), answers[index]


def _at(progress: Any) -> str:
    return "" if progress is None else f" ({progress})"


def _cause(error: Exception) -> str:
    name = type(error).__name__
    if "Object" in name:
        return f"is on a node whose data was lost ({name})"
    return f"has died ({name})"
