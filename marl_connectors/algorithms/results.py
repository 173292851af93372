"""The results of an iteration of an algorithm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.env_runners.env_runner_group import EnvRunnerGroup
from marl_connectors.env_runners.run_metrics import EpisodeSummary, summarize
from marl_connectors.learner.learner_group import LearnerGroup
from marl_connectors.metrics import by_pipeline, reduced, with_logged
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class TrainResults(TypedDict, extra_items=Any):
        """What ``Algorithm.train()`` returns for an iteration: the keys that are always there, and others by settings.

        The others, and the keys of the dicts in it, are in docs/results.md.
        """

        training_iteration: int
        num_env_steps_sampled_lifetime: int
        num_agent_steps_sampled_lifetime: int
        time_this_iter_s: float
        time_total_s: float
        env_runners: dict[str, Any]
        learners: dict[str, Any]
        timers: dict[str, Any]


def iteration_results(
    runners: EnvRunnerGroup,
    learners: LearnerGroup,
    recent: Collection[EpisodeSummary],
    learned: Mapping[str, Any],
    *,
    num_episodes: int,
    num_steps: tuple[int, int],
    sample_s: float,
    update_s: float,
) -> dict[str, Any]:
    """Returns the metrics of an iteration, as in docs/results.md. The counts of ``runners`` start again from zero.

    Times are only in ``timers`` and ``time_...``, and losses of processes only in ``fault_tolerance``: everything else
    is the same in each run with the same seed.

    Args:
        runners: The env runners that have sampled the iteration's episodes.
        learners: The learners that have updated the modules.
        recent: The newest episodes, over which returns are averaged.
        learned: The result of the learner's update.
        num_episodes: The number of episodes that have ended so far.
        num_steps: The numbers of env steps and agent steps that were sampled, or read from files, so far.
        sample_s: The seconds of sampling.
        update_s: The seconds of updating.
    """
    counts, times = runners.take_counts(), runners.take_times()
    agent_steps = sum(counts["num_module_steps_sampled"].values())
    lifetime = {
        "num_episodes_lifetime": num_episodes,
        "num_env_steps_sampled_lifetime": num_steps[0],
    }
    of_modules, of_learners = _logged(learners)
    return {
        "num_env_steps_sampled_lifetime": num_steps[0],
        "num_agent_steps_sampled_lifetime": num_steps[1],
        "time_this_iter_s": sample_s + update_s,
        "env_runners": with_logged(summarize(recent) | counts | lifetime, runners.callback_metrics),
        "learners": {**learned, **{m: {**learned.get(m, {}), **own} for m, own in of_modules.items()}},
        "timers": {
            "training_iteration": sample_s + update_s,
            "env_runner_sampling_timer": sample_s,
            **times.as_results(),
            "learner_update_timer": update_s,
            "learner_connector": learners.learner.pipeline_seconds,
            "num_env_steps_sampled_per_second": _rate(counts["num_env_steps_sampled"], times.sample),
            "num_agent_steps_sampled_per_second": _rate(agent_steps, times.sample),
            **_rates(runners),
        },
        **_fault_tolerance(runners, learners),
        **by_pipeline({**reduced(runners.metrics), **of_learners}),
    }


def _logged(learners: LearnerGroup) -> tuple[dict[ModuleID, dict[str, Any]], dict[str, Any]]:
    """Returns what learners and their pieces have logged: by module what is under a module's id, and all else."""
    of_modules: dict[ModuleID, dict[str, Any]] = {}
    of_learners: dict[str, dict[str, Any]] = {}
    for name, learner in learners.learner.by_name.items():
        logged = learner.metrics.reduce()
        own = {key for key, value in logged.items() if key in learner.module and isinstance(value, dict)}
        of_modules |= {module_id: logged[module_id] for module_id in own}
        of_learners[name] = {key: value for key, value in logged.items() if key not in own}
    return of_modules, of_learners


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count else 0.0


def _rates(runners: EnvRunnerGroup) -> dict[str, Any]:
    """Returns the env steps per second of each remote env runner."""
    if not runners.num_remote_env_runners:
        return {}
    return {"env_runner_env_steps_per_second": runners.env_steps_per_second()}


def _fault_tolerance(runners: EnvRunnerGroup, learners: LearnerGroup) -> dict[str, Any]:
    """Returns how many remote env runners there are, and how many processes were replaced, under RLlib's names."""
    found = workers(runners) if runners.num_remote_env_runners else {}
    if not learners.is_local:
        found["num_remote_learner_restarts"] = learners.num_remote_learner_restarts
    return {"fault_tolerance": found} if found else {}


def workers(runners: EnvRunnerGroup) -> dict[str, int]:
    """Returns how many remote env runners of a group there are now, and how many were replaced in the run so far."""
    return {
        "num_healthy_workers": runners.num_healthy_remote_env_runners,
        "num_remote_worker_restarts": runners.num_remote_env_runner_restarts,
    }
