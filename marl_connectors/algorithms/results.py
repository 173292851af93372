"""The results of an iteration of an algorithm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from marl_connectors.env_runners.env_runner_group import EnvRunnerGroup
from marl_connectors.env_runners.run_metrics import EpisodeSummary, summarize
from marl_connectors.learner.learner import Learner
from marl_connectors.metrics import by_pipeline, with_logged


def iteration_results(
    runner: EnvRunnerGroup,
    learner: Learner,
    recent: Collection[EpisodeSummary],
    learned: Mapping[str, Any],
    *,
    sample_s: float,
    update_s: float,
) -> dict[str, Any]:
    """Returns the metrics of an iteration, as in docs/results.md. The counts of ``runner`` start again from zero.

    Times are only in ``timers`` and ``time_...``: everything else is the same in each run with the same seed.

    Args:
        runner: The env runners that have sampled the iteration's episodes.
        learner: The learner that has updated the modules.
        recent: The newest episodes, over which returns are averaged.
        learned: The result of the learner's update.
        sample_s: The seconds of sampling.
        update_s: The seconds of updating.
    """
    counts, times = runner.take_counts(), runner.take_times()
    agent_steps = sum(counts["num_module_steps_sampled"].values())
    return {
        "num_env_steps_sampled_lifetime": runner.num_env_steps,
        "num_agent_steps_sampled_lifetime": runner.num_agent_steps,
        "time_this_iter_s": sample_s + update_s,
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
