"""What random play and the untrained policies reach, to compare the trained ones with."""

from __future__ import annotations

import math
from typing import Any

from marl_connectors.algorithms.fitting.figures import fewer_episodes, success_measure, success_of
from marl_connectors.algorithms.fitting.parts import Part
from marl_connectors.json_data import jsonable

NAMES = {"random_play": "random play", "at_start": "the untrained policies"}
"""What is measured, by the keys of ``baselines.json``, in words."""
NUM_EPISODES = 20
"""The number of episodes of each where the run has no evaluation at the end that says it."""
PATIENCE = 10
"""How many times its seconds a baseline may take for a single episode, where no other has ended."""


class Baselines(Part):
    """Measures random play and the policies at the start, with ``baseline_seconds``."""

    def before_training(self) -> None:
        run, limit = self.run, float(self.run.settings.baseline_seconds)
        if not limit:
            return
        wanted, found = run.settings.eval_episodes or NUM_EPISODES, {}
        for name, what in NAMES.items():
            run.say(f"Measuring {what}: {wanted} episodes, or those that end within {limit:g} s ...")
            with run.watching(wanted) as watch:
                how: dict[str, Any] = {"num_episodes": wanted, "max_seconds": limit, "on_progress": watch}
                if name == "random_play":
                    found[name] = measured_baseline(run.algo.random_play, **how)
                else:
                    found[name] = measured_baseline(run.algo.evaluate, seed=run.algo.seed, **how)
            if few := fewer_episodes(what, found[name], wanted):
                run.say(few)
        at_random = found["random_play"]
        is_measured = math.isfinite(success_of(at_random)) or not at_random["num_episodes"]
        if success_measure(run.algo.config) is not None and not is_measured:
            run.say(run.caller.why_no_success(run.algo))
        run.folder.baselines = jsonable(found)


def measured_baseline(play: Any, *, num_episodes: int, max_seconds: float, **how: Any) -> dict[str, Any]:
    """Plays episodes for some seconds; if these do not suffice, a single whole episode, which may take longer.

    Returns the results of the env runners.

    Args:
        play: ``Algorithm.random_play`` or ``Algorithm.evaluate``.
        num_episodes: The number of episodes.
        max_seconds: The seconds.
        **how: Other arguments of ``play``.
    """
    found = play(num_episodes=num_episodes, max_seconds=max_seconds, **how)["env_runners"]
    if found["num_episodes"]:
        return found
    return play(num_episodes=1, max_seconds=PATIENCE * max_seconds, **how)["env_runners"]
