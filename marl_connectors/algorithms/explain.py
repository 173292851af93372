"""The X-ray of an algorithm's three pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.explain import Explanation, trace
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.metrics import MetricsLogger
from marl_connectors.seeding import derived_seed, torch_stream


def explain_algorithm(algorithm: Algorithm, *, num_steps: int = 4) -> dict[str, Explanation]:
    """What each piece of the algorithm's pipelines does, on data of its own environments.

    Plays in fresh sub-environments with a runner of their own, and makes train batches of what came of it. The
    algorithm goes on afterwards as if nothing had been; what a piece has learned is taken back by its ``set_state``.

    Args:
        algorithm: Any.
        num_steps: Env steps of each copy before everything is warm, and again as many that are watched.

    Returns:
        ``env_to_module`` and ``module_to_env``, of the step with the most rows, and ``learner``.
    """
    config, learner = algorithm.config, algorithm.learner
    seed = derived_seed(algorithm.seed, "explain")
    runner = algorithm._runner(config, seed, config.num_envs_per_env_runner, is_long=False)
    steps = num_steps * config.num_envs_per_env_runner
    pipeline, learned = learner.pipeline, learner.pipeline.get_state()
    metrics = learner.metrics
    with algorithm._borrowed(runner, filters_count=True), torch_stream(seed, "explain"):
        try:
            learner.metrics = MetricsLogger()
            learner.make_batch(runner.sample(num_timesteps=steps))
            watched = {name: _Watched(getattr(runner, name)) for name in ("env_to_module", "module_to_env")}
            for name, watching in watched.items():
                setattr(runner, name, watching)
            episodes = runner.sample(num_timesteps=steps)
            watched["learner"] = learner.pipeline = _Watched(pipeline)  # type: ignore[assignment]
            learner.make_batch(episodes)
        finally:
            learner.pipeline, learner.metrics = pipeline, metrics
            pipeline.set_state(learned)
    return {name: watching.explanation for name, watching in watched.items()}


class _Watched:
    """Stands in the place of a pipeline, and keeps what was seen of its largest batch."""

    def __init__(self, pipeline: ConnectorPipelineV2):
        self._pipeline = pipeline
        self._rows = -1
        self.explanation = Explanation(type(pipeline).__name__, ())

    def run(self, batch: ColumnBatch, **common: Any) -> ColumnBatch:
        rows = sum(len(group.rows) for group in batch.groups)
        explanation, batch = trace(self._pipeline, batch, **common)
        if rows >= self._rows:
            self._rows, self.explanation = rows, explanation
        return batch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pipeline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)
