"""Writes the results of a run to the trackers that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from marl_connectors.algorithms.fitting.parts import Part, Run
from marl_connectors.algorithms.fitting.run_files import AGENT_RETURNS, EVENTS
from marl_connectors.algorithms.fitting.run_folder import TRACKED_RUN
from marl_connectors.callbacks.trackers import MAX_AGENT_SERIES, TRACKERS, Tracker


class Tracking(Part):
    """Writes results to the trackers of ``track``, which continue a run that goes on."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._steps_before = run.algo.num_agent_steps
        self._trackers: list[Tracker] | None = None

    def on_result(self, result: Mapping[str, Any]) -> None:
        if self._trackers is None:
            self._trackers = self._opened()
        for tracker in self._trackers:
            tracker.log(self.run.algo, result)

    def _opened(self) -> list[Tracker]:
        folder = self.run.folder
        path = folder.path.absolute()
        is_one_of_several = re.fullmatch(r"(seed|trial)\d+", path.name)
        name = f"{path.parent.name}-{path.name}" if is_one_of_several else path.name
        agents = agents_of(folder.baselines) if folder.baselines else None
        shared: dict[str, Any] = {"run_id": folder.config[TRACKED_RUN], "name": name, "agents": agents}
        places = {"tensorboard": path / EVENTS}
        trackers = [TRACKERS[each](folder=places.get(each, path), **shared) for each in self.run.settings.track]
        for tracker in trackers if folder.goes_on else ():
            tracker.continue_after(self._steps_before)
        return trackers

    def close(self) -> None:
        for tracker in self._trackers or ():
            tracker.close()


def agents_of(baselines: Mapping[str, Any]) -> frozenset[str]:
    """Returns the agents that were in the episodes of all baselines, at most ``MAX_AGENT_SERIES``."""
    seen = [list(results.get(AGENT_RETURNS, {})) for results in baselines.values()]
    both = [agent_id for agent_id in seen[0] if all(agent_id in other for other in seen[1:])] if seen else []
    return frozenset(both[:MAX_AGENT_SERIES])
