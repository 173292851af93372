"""What an iteration of an algorithm reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.env_runners.episode_metrics import EpisodeTally, summarize
from marl_connectors.metrics import by_pipeline, with_logged

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm


def iteration_results(
    algorithm: Algorithm,
    recent: Collection[EpisodeTally],
    learned: Mapping[str, Any],
    *,
    sample_s: float,
    update_s: float,
) -> dict[str, Any]:
    """The figures of an iteration, which its runner and learner count anew from now on; docs/results.md has them all.

    What a clock says is in ``timers`` and ``time_...`` alone: all else is the same in each run with the same seed.

    Args:
        algorithm: After the iteration.
        recent: The newest episodes, over which returns are averaged.
        learned: What the learner's update gave.
        sample_s: Seconds in which episodes were sampled.
        update_s: Seconds in which modules were updated.
    """
    runner, learner = algorithm.env_runner, algorithm.learner
    counts, times = runner.take_counts(), runner.take_times()
    agent_steps = sum(counts["num_module_steps_sampled"].values())
    return {
        "training_iteration": algorithm.iteration,
        "num_env_steps_sampled_lifetime": runner.num_env_steps,
        "num_agent_steps_sampled_lifetime": runner.num_agent_steps,
        "time_this_iter_s": sample_s + update_s,
        "time_total_s": algorithm.time_total_s,
        "env_runners": with_logged(summarize(recent) | counts, runner.callback_metrics),
        "learners": learned,
        "timers": {
            "training_iteration": sample_s + update_s,
            "env_runner_sampling_timer": sample_s,
            **times.as_results(),
            "learner_update_timer": update_s,
            "learner_connector": learner.pipeline_seconds,
            "num_env_steps_sampled_per_second": counts["num_env_steps_sampled"] / times.sample,
            "num_agent_steps_sampled_per_second": agent_steps / times.sample,
        },
        **by_pipeline(**runner.metrics, learner=learner.metrics),
    }
