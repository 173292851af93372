"""RemoteLearners: learners in Ray actors that update the same modules together."""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from marl_connectors.cluster.actor_pool import ActorLost, RestartPolicy
from marl_connectors.cluster.host import Outcome
from marl_connectors.cluster.hosted_learner import (
    HostedLearner,
    LearnerBlueprint,
    LearnerState,
    UpdateReply,
    UpdateRequest,
)
from marl_connectors.cluster.pickling import pickled, pickled_function, received_result
from marl_connectors.cluster.ray_cluster import RayCluster, Resources
from marl_connectors.episodes.references import EpisodeShare
from marl_connectors.learner.ranks import LostRankError

_LOG = logging.getLogger(__name__)
_MOST_TRIES = 10
"""How often one update is tried. A batch that kills a learner again and again ends the run."""
_GRACE_S = 20.0
"""The seconds in which learners must end an update that another one has not completed."""


_QUIET_S = 30.0
"""The seconds after which a log line says that Ray has not found a place for an actor yet."""


class LearnerBefore(NamedTuple):
    """The learner before a call of remote learners.

    Attributes:
        version: The version of its state.
        state: Its state without the metrics.
        metrics: The state of its metrics.
        is_known: Whether remote learners that were not replaced have this state.
    """

    version: int
    state: dict[str, Any]
    metrics: list[dict[str, Any]]
    is_known: bool


class _Lost(Exception):
    """A learner that died or hung. The message says which one, and what happened."""


class RemoteLearners:
    """Learners in Ray actors, of which each updates the modules from its share of the episodes.

    They depend on one another in each gradient step. So if one is lost, all are replaced, get the state before the
    update, and repeat it.

    Attributes:
        number: The number of learners.
        num_restarts: How often they were replaced so far.
        fetch_seconds: The seconds that each learner needed to fetch its episodes of the newest update.
    """

    def __init__(
        self,
        cluster: RayCluster,
        number: int,
        resources: Resources,
        policy: RestartPolicy,
        *,
        device: str = "cpu",
    ):
        """Starts the actors, and does not wait for them.

        Args:
            cluster: The connection to Ray.
            number: The number of learners.
            resources: What each actor reserves.
            policy: What happens if a learner is lost. ``ignores`` has no effect.
            device: The device of the modules, ``"cpu"`` or ``"cuda"``.
        """
        self._cluster = cluster
        self._ray = cluster.ray
        self.number = number
        self._resources = resources
        self._policy = policy
        self._device = device
        self.num_restarts = 0
        self.fetch_seconds: list[float] = []
        self._actors: list[Any] = []
        self._beginning: list[Any] = []
        self._places: list[Any] = []  # references of where the actors run
        self._is_connected = False
        self._blueprint: tuple[int, list[Any]] = (-1, [])
        self._start()

    # Actors.

    def name_of(self, rank: int) -> str:
        """Returns the name of a learner in messages."""
        return f"learner {rank}"

    def _start(self) -> None:
        make = pickled(HostedLearner)
        self._actors = [self._cluster.start(self.name_of(rank), self._resources) for rank in range(self.number)]
        self._places = [actor.process.remote() for actor in self._actors]
        self._beginning = [actor.begin.remote(make, (rank, self.number)) for rank, actor in enumerate(self._actors)]

    def connect(self) -> None:
        """Waits until all learners are connected with one another. Those that were closed are started again.

        Raises:
            ActorLost: If one is lost and the policy does not replace it.
        """
        self._repeated(lambda: None)

    def _connect(self) -> None:
        if self._is_connected:
            return
        if not self._actors:
            self._start()
        self._wait_for_places()
        self._wait(dict(enumerate(self._beginning)), self._policy.timeout_s, is_start=True)
        host, port = self._call({0: ("listen",)})[0][0]
        timeout_s = 3600.0 if self._policy.timeout_s is None else 4 * self._policy.timeout_s
        self._call(dict.fromkeys(range(self.number), ("connect", host, port, self._device, timeout_s)))
        self._is_connected = True

    def close(self) -> None:
        """Ends the actors. The next call starts new ones."""
        self._cluster.end(self._taken_actors())

    def _kill(self) -> None:
        """Ends the actors at once, also those that hang."""
        with contextlib.ExitStack() as all_of_them:
            for actor, place in self._taken_actors():
                all_of_them.callback(self._cluster.kill, actor, place)

    def _taken_actors(self) -> list[tuple[Any, Any]]:
        actors = list(zip(self._actors, self._places, strict=False))  # an interrupt may have come between both
        self._actors, self._places, self._beginning, self._is_connected = [], [], [], False
        return actors

    # Updates.

    def put(self, value: bytes) -> Any:
        """Puts pickled data into Ray's store, and returns the reference."""
        return self._cluster.put(value)

    def set_blueprint(self, blueprint: LearnerBlueprint) -> None:
        """Lets the learners be made anew for the next update."""
        self._blueprint = (self._blueprint[0] + 1, [self._cluster.put(pickled(blueprint))])

    def update(
        self, shares: Sequence[EpisodeShare], before: LearnerBefore, timesteps: dict[str, int]
    ) -> tuple[list[UpdateReply], dict[str, Any]]:
        """Lets all learners update the modules.

        Args:
            shares: The episodes of each learner.
            before: The learner before the update.
            timesteps: As for ``Learner.update``.

        Returns:
            The replies of all learners, and the state after the update.

        Raises:
            ActorLost: If a learner is lost and the policy does not replace it.
            Exception: What a learner raised, such as a LearnerError.
        """
        wanted = self._wanted(before)

        def run() -> tuple[list[UpdateReply], dict[str, Any]]:
            state = wanted()
            request = {rank: ("update", UpdateRequest(state, share, timesteps)) for rank, share in enumerate(shares)}
            found = self._call(request)
            try:
                after = self._ray.get(found[0][1])
            except self._ray.exceptions.RayError as error:
                if not self._cluster.is_loss(error):
                    raise
                raise _Lost(f"{self.name_of(0)} has died ({type(error).__name__}).") from None
            return [found[rank][0] for rank in range(self.number)], pickle.loads(after)

        replies, after = self._repeated(run)
        self.fetch_seconds = [reply.fetch_seconds for reply in replies]
        return replies, after

    def foreach(self, function: Callable[[Any], Any], before: LearnerBefore) -> list[Any]:
        """Calls a function with each learner, in its process, and returns what it returns.

        After an error of the function, the learners stay as they are.

        Args:
            function: The function.
            before: The learner before the call.

        Raises:
            ActorLost: If a learner is lost and the policy does not replace it.
            ConfigError: If the function or its result cannot be sent from one process to another.
            Exception: What the function raised.
        """
        sent = pickled_function(function, "foreach_learner")
        wanted = self._wanted(before)

        def run() -> list[bytes]:
            found = self._call(dict.fromkeys(range(self.number), ("apply", wanted(), sent)), depend=False)
            return [found[rank][0] for rank in range(self.number)]

        found = self._repeated(run, what="call", stays_open=True)
        return [received_result(own, "foreach_learner") for own in found]

    def _wanted(self, before: LearnerBefore) -> Callable[[], LearnerState]:
        """Returns a function that returns what a call needs, with the state if a learner may not have it."""
        refs: list[Any] = []
        restarts, was_connected = self.num_restarts, self._is_connected

        def wanted() -> LearnerState:
            if not (before.is_known and self.num_restarts == restarts and was_connected) and not refs:
                refs.append(self._cluster.put(pickled(before.state)))
            return LearnerState(self._blueprint, (before.version, refs), before.metrics)

        return wanted

    # Calls, and what happens if a learner is lost.

    def _repeated(self, run: Callable[[], Any], what: str = "update", stays_open: bool = False) -> Any:
        """Runs until no learner is lost meanwhile. After another error, the actors are closed.

        Args:
            run: Calls the learners.
            what: The name of the call in messages.
            stays_open: Whether an error that a learner raises leaves the actors open.
        """
        for number in range(1, _MOST_TRIES + 1):
            try:
                self._connect()
                return run()
            except _Lost as lost:
                self._kill()
                if not self._policy.restarts:
                    raise ActorLost(f"{lost} Set restart_failed_env_runners=True to replace it.") from None
                if number == _MOST_TRIES:
                    raise ActorLost(
                        f"{lost} This happened {number} times in a row in the same {what}. Look at what its process "
                        f"printed last; run with num_learners=0 to see the cause in this process."
                    ) from None
                if self.num_restarts >= self._policy.most:
                    raise ActorLost(
                        f"{lost} The learners were replaced {self.num_restarts} times in this run. Look for the cause, "
                        f"or raise max_num_env_runner_restarts."
                    ) from None
                self.num_restarts += 1
                _LOG.warning("%s New learners take the place of all %d, and repeat the %s.", lost, self.number, what)
            except BaseException as error:
                if not (stays_open and self._is_connected and isinstance(error, Exception)):
                    self.close()
                raise
        raise AssertionError

    def _call(self, calls: Mapping[int, Sequence[Any]], depend: bool = True) -> dict[int, tuple[Any, Any]]:
        """Calls a method of some learners at once, and returns each value and the payload's reference.

        Args:
            calls: For each learner, the method and its arguments.
            depend: Whether a learner cannot go on after the error of another one.
        """
        refs = {
            rank: self._actors[rank].call.options(num_returns=2).remote(method, *arguments)
            for rank, (method, *arguments) in calls.items()
        }
        values = self._wait({rank: own[0] for rank, own in refs.items()}, self._policy.timeout_s, depend=depend)
        return {rank: (values[rank], refs[rank][1]) for rank in refs}

    def _wait_for_places(self) -> None:
        """Waits until Ray has found a place for each actor.

        Raises:
            ActorLost: If it has not in time.
        """
        limit = None if self._policy.timeout_s is None else self._policy.start_timeout_s
        quiet_s = _QUIET_S if limit is None else min(limit, _QUIET_S)
        _, late = self._ray.wait(self._places, num_returns=self.number, timeout=quiet_s)
        if late:
            _LOG.warning("%d learners have no process yet. Free in the cluster: %s.", len(late), self._free())
            _, late = self._ray.wait(self._places, num_returns=self.number, timeout=limit)
        if late:
            assert limit is not None
            raise ActorLost(
                f"{len(late)} of {self.number} learners have no process after {limit:.0f} s. Free in the cluster: "
                f"{self._free()}. Reserve less for each actor, or use a larger cluster."
            )

    def _free(self) -> str:
        return self._cluster.free_resources()

    def _wait(
        self, refs: Mapping[int, Any], timeout_s: float | None, is_start: bool = False, depend: bool = True
    ) -> dict[int, Any]:
        """Waits for answers, and returns the values in them.

        Args:
            refs: The reference of each learner's answer.
            timeout_s: The seconds without progress after which a learner hangs; None for no limit.
            is_start: Whether the actors start, and need not make progress.
            depend: As for ``_call``.

        Raises:
            _Lost: If a learner dies or hangs.
            Exception: What a learner raised, but for what follows from the loss or the error of another one.
        """
        waiting = {ref: rank for rank, ref in refs.items()}
        outcomes: dict[int, Outcome] = {}
        died: dict[int, str] = {}
        watch = _Watch(timeout_s)
        while waiting:
            done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=watch.tick)
            for ref in done:
                rank = waiting.pop(ref)
                try:
                    outcomes[rank] = self._cluster.received(ref, self.name_of(rank))
                except self._ray.exceptions.RayError as error:
                    if not self._cluster.is_loss(error):
                        raise
                    died[rank] = type(error).__name__
            has_failed = bool(died) or (depend and any(own.error is not None for own in outcomes.values()))
            if watch.is_over(done, has_failed):
                silent = self._silent(waiting.values(), watch, has_failed, is_start)
                if silent:
                    break
        self._raise_failure(outcomes, died, [] if not waiting else silent)
        return {rank: outcome.value for rank, outcome in outcomes.items()}

    def _silent(self, ranks: Any, watch: _Watch, has_failed: bool, is_start: bool) -> list[tuple[int, str]]:
        """Returns the learners that do not answer, or make no progress, and what they do instead."""
        refs = {rank: self._actors[rank].progress.remote() for rank in ranks}
        limit = self._policy.probe_timeout_s
        done, _ = self._ray.wait(list(refs.values()), num_returns=len(refs), timeout=limit)
        answers: dict[int, Any] = {}
        for rank, ref in refs.items():
            if ref in done:
                try:
                    answers[rank] = self._ray.get(ref)
                except self._ray.exceptions.RayError:
                    answers[rank] = None
        missing = [(rank, f"has not answered for {limit:.0f} s.") for rank in refs if rank not in answers]
        if missing or not (has_failed or (watch.is_same(answers) and not is_start)):
            return missing
        return [(rank, f"has made no progress for too long ({answers[rank]}).") for rank in refs]

    def _raise_failure(
        self, outcomes: Mapping[int, Outcome], died: Mapping[int, str], silent: Sequence[tuple[int, str]]
    ) -> None:
        """Raises the error that is the cause of all others, if there are any."""
        if died:
            rank = min(died)
            raise _Lost(f"{self.name_of(rank)} has died ({died[rank]}).")
        consequences = []
        for rank, outcome in sorted(outcomes.items()):
            try:
                outcome.result(self.name_of(rank))
            except LostRankError as error:
                consequences.append(str(error))
        if silent:
            raise _Lost(" ".join(f"{self.name_of(rank)} {what}" for rank, what in silent))
        if consequences:
            raise _Lost(consequences[0])


class _Watch:
    """Decides when learners that have not answered are asked how far they are."""

    def __init__(self, timeout_s: float | None):
        self._timeout_s = timeout_s
        self._since = time.monotonic()
        self._has_failed = False
        self._answers: Any = None
        self.tick = 5.0 if timeout_s is None else max(0.05, min(timeout_s / 4, 5.0))

    def is_over(self, done: Sequence[Any], has_failed: bool) -> bool:
        """Whether the time without an answer is over. After a failure, there is less time."""
        now = time.monotonic()
        if done or has_failed is not self._has_failed:
            self._since, self._has_failed = now, has_failed
            return False
        limit = self._timeout_s
        if has_failed:
            limit = _GRACE_S if limit is None else min(limit, _GRACE_S)
        if limit is None or now - self._since <= limit:
            return False
        self._since = now
        return True

    def is_same(self, answers: Any) -> bool:
        """Whether the learners answer the same as at the last time."""
        before, self._answers = self._answers, answers
        return before == answers
