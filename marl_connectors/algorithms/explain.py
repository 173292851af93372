"""Explanations of an algorithm's three pipelines, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.explain import Explanation, Explanations
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.learner.learner import Learner
from marl_connectors.metrics import MetricsLogger


def explain_pipelines(runner: EnvRunner, learners: Mapping[str, Learner], num_steps: int) -> Explanations:
    """Reports what each piece of the pipelines does while a runner samples and learners make a train batch.

    The learners' pipelines, their states and their metrics are afterwards as before.

    Args:
        runner: A runner that is used for nothing else.
        learners: The learners by name. Their modules are not updated.
        num_steps: The env steps that are sampled without a look at the pieces, and then again with it.

    Returns:
        ``env_to_module`` and ``module_to_env``, of the step with the most rows, and the train batches by the names of
        the learners.
    """
    kept = [(learner, learner.pipeline, learner.pipeline.get_state(), learner.metrics) for learner in learners.values()]
    try:
        for learner in learners.values():
            learner.metrics = MetricsLogger()
        _make_batches(learners, runner.sample(num_timesteps=num_steps))
        watched = {name: _Watched(getattr(runner, name)) for name in ("env_to_module", "module_to_env")}
        for name, watching in watched.items():
            setattr(runner, name, watching)
        episodes = runner.sample(num_timesteps=num_steps)
        for name, learner in learners.items():
            watched[name] = learner.pipeline = _Watched(learner.pipeline)  # type: ignore[assignment]
        _make_batches(learners, episodes)
    finally:
        for learner, pipeline, learned, metrics in kept:
            learner.pipeline, learner.metrics = pipeline, metrics
            pipeline.set_state(learned)
    return Explanations({name: watching.explanation for name, watching in watched.items()})


def _make_batches(learners: Mapping[str, Learner], episodes: Sequence[Any]) -> None:
    for learner in learners.values():
        learner.make_batch(episodes)


class _Watched:
    """Replaces a pipeline, and keeps the explanation of its largest batch."""

    def __init__(self, pipeline: ConnectorPipelineV2):
        self._pipeline = pipeline
        self._rows = -1
        self.explanation = Explanation(type(pipeline).__name__, ())

    def run(self, batch: ColumnBatch, **common: Any) -> ColumnBatch:
        rows = sum(len(group.rows) for group in batch.groups)
        explanation, batch = self._pipeline.trace(batch, **common)
        if rows >= self._rows:
            self._rows, self.explanation = rows, explanation
        return batch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pipeline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)
