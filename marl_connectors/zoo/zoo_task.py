"""ZooTask: settings with which an environment is learned well, and the results to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.names import import_function


@dataclass(frozen=True, slots=True)
class Expected:
    """The results to expect from a task's settings.

    A return is the mean return of an agent per episode, in the environment's units: with most likely actions, but with
    drawn actions where the task sets ``eval_explore``.
    The figures are those of the files in ``benchmarks/results/zoo``.

    Attributes:
        mean_return: The return after training, as the mean over the seeds.
        std: Its standard deviation over the seeds; None for one seed.
        num_seeds: The number of seeds.
        minutes: The duration of the training on two CPU cores.
        random_return: The return of random play.
        success: The mean of the task's success after training, from 0 to 1; None if it was not measured.
        published: The best published return, on the same scale; None if there is none.
        source: Where that return is from, and how it was converted.
        module: The module whose return all of these are; ``""`` for the mean over all modules.
    """

    mean_return: float
    std: float | None
    num_seeds: int
    minutes: float
    random_return: float
    success: float | None = None
    published: float | None = None
    source: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class ZooTask:
    """An environment with tuned settings.

    An environment can have several tasks, each for another algorithm. One of them has the environment's name.

    Attributes:
        name: The short name of the environment. The names of its other tasks end with the algorithm:
            ``"CartPole-v1/dqn"``.
        summary: The task of the agents, in one sentence.
        settings: The settings of a run, as in a file for ``--config``. ``env`` is the full name of the environment, as
            ``importable_name`` returns it. Settings that are not there keep their defaults.
        expected: The results to expect.
        success: The measure of an episode's success; None if the return says enough. If there is an ``eval_opponent``
            in the settings, only episodes against an opponent are measured.
        needs: The packages to install for the environment and its wrappers, as pip spells them; ``""`` for none but
            those of the library.
    """

    name: str
    summary: str
    settings: Mapping[str, Any]
    expected: Expected
    success: Success | None = None
    needs: str = ""

    @classmethod
    def from_data(
        cls, name: str, *, expected: Mapping[str, Any], success: Mapping[str, str] | None = None, **facts: Any
    ) -> ZooTask:
        """Returns the task of an entry of ``tasks.yaml``, in which ``measure`` is ``"module:function"``."""
        measured = None
        if success is not None:
            measured = Success(success["name"], import_function(success["measure"]))
        return cls(name, expected=Expected(**expected), success=measured, **facts)

    @property
    def env(self) -> str:
        """The full name of the environment."""
        return self.settings["env"]

    @property
    def algo(self) -> str:
        """The algorithm that the settings are for."""
        return str(self.settings.get("algo", "ppo"))

    @property
    def is_variant(self) -> bool:
        """Whether the task is used only if its algorithm is asked for."""
        return self.name.endswith(f"/{self.algo}")

    @property
    def words(self) -> list[str]:
        """The words after ``marl-connectors train`` with which the settings are used."""
        return [self.name.removesuffix(f"/{self.algo}"), "--algo", self.algo] if self.is_variant else [self.name]
