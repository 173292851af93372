"""As much of Ray's API as this library uses, in one process. Actors answer at once, unless a test says more."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, exceptions

from marl_connectors.cluster import host, ray_cluster


class Ref:
    """A reference of an object in the store. What goes in and comes out is pickled, as between processes."""

    def __init__(self, value: Any = None, error: Exception | None = None, is_ready: bool = True):
        self.error = error
        self.is_ready = is_ready
        self.pickled = cloudpickle.dumps(value, protocol=5)

    def complete(self, value: Any) -> None:
        """Stores the value of a reference that was not ready."""
        self.pickled, self.is_ready = cloudpickle.dumps(value, protocol=5), True


class Actor:
    """Runs each method when it is called, unless the actor is lost."""

    def __init__(self, fake: FakeRay, made: Any):
        self.fake = fake
        self.made = made
        self.is_lost = False
        self.is_busy = (
            False  # a method hangs, so that the next ones wait for it, except those of Ray's group for health
        )
        self.waiting: list[Ref] = []

    def __getattr__(self, name: str) -> Any:
        remote = SimpleNamespace(remote=lambda *arguments: self._call(name, arguments, 1))
        remote.options = lambda num_returns: SimpleNamespace(
            remote=lambda *arguments: self._call(name, arguments, num_returns)
        )
        return remote

    def _call(self, name: str, arguments: Sequence[Any], num_returns: int) -> Any:
        when = None if self.is_lost else self.fake.loses(repr(self.made), name, arguments)
        is_of_health = name in ("process", "progress")
        if when == "hangs" or (self.is_busy and not self.is_lost and not is_of_health):
            refs = [Ref(is_ready=False) for _ in range(num_returns)]
            self.waiting += refs
            self.is_busy = self.is_busy or not is_of_health
            return refs[0] if num_returns == 1 else refs
        if when == "before":
            self.is_lost = True
        if when == "slowly":
            refs = [Ref(is_ready=False) for _ in range(num_returns)]
            threading.Thread(target=self._complete, args=(refs, name, arguments), daemon=True).start()
            return refs[0] if num_returns == 1 else refs
        found: Any = (None,) * num_returns
        if not self.is_lost:
            found = getattr(self.made, name)(*cloudpickle.loads(cloudpickle.dumps(arguments)))
        if when == "after":
            self.is_lost = True
        if self.is_lost:
            lost = [Ref(error=exceptions.ActorDiedError()) for _ in range(num_returns)]
            return lost[0] if num_returns == 1 else lost
        return Ref(found) if num_returns == 1 else [Ref(value) for value in found]

    def _complete(self, refs: Sequence[Ref], name: str, arguments: Sequence[Any]) -> None:
        found = getattr(self.made, name)(*cloudpickle.loads(cloudpickle.dumps(arguments)))
        for ref, value in zip(reversed(refs), reversed([found] if len(refs) == 1 else found), strict=True):
            ref.complete(value)


class FakeRay:
    """Ray, for ``RayCluster.ray``.

    Attributes:
        loses: Called before each call of an actor with its name, the method and the arguments. It returns whether the
            actor is lost ``"before"`` or ``"after"`` the call, whether the call ``"hangs"`` or is answered
            ``"slowly"``, by a thread; or None.
    """

    exceptions = exceptions

    def __init__(self, rng: random.Random):
        self._rng = rng
        self.loses: Callable[[str, str, Sequence[Any]], str | None] = lambda *call: None

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address=None)

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1000.0}

    def remote(self, **options: Any) -> Any:
        return lambda cls: SimpleNamespace(remote=lambda *arguments: Actor(self, cls(*arguments)))

    def put(self, value: Any) -> Ref:
        return Ref(value)

    def get(self, ref: Ref) -> Any:
        if ref.error is not None:
            raise ref.error
        try:
            return cloudpickle.loads(ref.pickled)
        except Exception as error:  # as Ray does
            raise exceptions.RaySystemError(f"System error: {error}") from error

    def wait(
        self, refs: Sequence[Ref], *, num_returns: int, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """Answers arrive in any order."""
        ready = [ref for ref in refs if ref.is_ready]
        if not ready and timeout:
            time.sleep(0.001)  # for threads that answer slowly
        found = self._rng.sample(ready, min(num_returns, len(ready)))
        return found, [ref for ref in refs if ref not in found]

    def kill(self, actor: Actor, *, no_restart: bool) -> None:
        actor.is_lost = True
        for ref in actor.waiting:
            ref.error, ref.is_ready = exceptions.ActorDiedError(), True


def use_fake_ray(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> FakeRay:
    """Lets algorithms start their actors in this process."""
    fake = FakeRay(random.Random(seed))
    monkeypatch.setattr(ray_cluster, "import_ray", lambda who: fake)
    monkeypatch.setattr(host, "fetched", fake.get)
    return fake
