"""The results of ``Algorithm.fit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from marl_connectors.algorithms.fitting.figures import agent_steps, facts_of
from marl_connectors.callbacks.trackers import BY_AGENT, MAX_AGENT_SERIES, scalars
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.json_data import jsonable

if TYPE_CHECKING:
    from marl_connectors.algorithms.results import TrainResults


@dataclass(repr=False, slots=True)
class FitResults(Sequence["TrainResults"]):
    """The results of the iterations of one call of ``Algorithm.fit``: a sequence of what ``train()`` returned for each.

    ``results[-1]`` is the newest. The results of single agents (docs/results.md) are only in the newest one if there
    are more than 100 agents.

    Attributes:
        stopped_by: Why the call ended: ``"steps"``, ``"num_agent_steps"``, ``"num_env_steps"``, ``"num_iterations"``,
            ``"stop"`` or ``"interrupt"``.
        reason: The same as a sentence.
        checkpoint: The newest checkpoint of the run; None without ``folder``.
        best_checkpoint: The best checkpoint of the run; None if there is none.
    """

    stopped_by: str = ""
    reason: str = ""
    checkpoint: Path | None = None
    best_checkpoint: Path | None = None
    _rows: list[TrainResults] = field(default_factory=list)

    def add(self, result: TrainResults, *, newest_only: bool = False) -> None:
        """Adds the result of an iteration, or keeps it alone."""
        if newest_only:
            self._rows.clear()
        if self._rows:
            self._rows[-1] = _without_agents(self._rows[-1])
        self._rows.append(result)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TrainResults: ...

    @overload
    def __getitem__(self, index: slice) -> list[TrainResults]: ...

    def __getitem__(self, index: int | slice) -> TrainResults | list[TrainResults]:
        return self._rows[index]

    def __iter__(self) -> Iterator[TrainResults]:
        return iter(self._rows)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Returns the values of a metric and the agent steps at which it had them, to be plotted.

        Args:
            name: The path of the metric, such as ``"env_runners/episode_return_mean"``.

        Returns:
            Agent steps and values, for all iterations with a finite value. ``plt.plot(*results.series(name))`` draws
            them.

        Raises:
            ConfigError: If no result has such a number. It names the closest one.
        """
        steps: list[int] = []
        values: list[float] = []
        known: set[str] = set()
        for row in self._rows:
            numbers = dict(scalars(jsonable(row)))
            if name in numbers:
                steps.append(agent_steps(row))
                values.append(numbers[name])
            known.update(numbers)
        if not values:
            hint = did_you_mean(name, sorted(known)) if known else "There was no iteration."
            raise ConfigError(f"FitResults.series: no iteration has a number called {name!r}. {hint}")
        return steps, values

    def __repr__(self) -> str:
        facts = "; ".join(f"{name}: {value}" for name, value in self._facts().items())
        return f"<FitResults of {self._size()}{'. ' * bool(facts)}{facts}>"

    def _size(self) -> str:
        return f"{len(self):,} iteration{'s' * (len(self) != 1)}"

    def _facts(self) -> dict[str, str]:
        """Returns what is most worth knowing, by name."""
        facts = {"ended": self.reason} if self.reason else {}
        if self._rows:
            last = self._rows[-1]
            facts["agent steps"] = f"{agent_steps(last):,}"
            facts |= facts_of(last)
        if self.checkpoint is not None:
            facts["checkpoint"] = str(self.checkpoint)
        if self.best_checkpoint is not None:
            facts["best checkpoint"] = str(self.best_checkpoint)
        return facts


def _without_agents(row: Mapping[str, Any]) -> Any:
    """Returns a result without those of single agents, if there are many of them."""
    return {
        name: _without_agents(value) if name in ("evaluation", "env_runners") else value
        for name, value in row.items()
        if not (name in BY_AGENT and isinstance(value, dict) and len(value) > MAX_AGENT_SERIES)
    }
