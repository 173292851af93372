"""Where the time of samples goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SamplingTimes:
    """Seconds. What is in none of the parts is the runner's own work: writing what environments give, callbacks.

    Attributes:
        sample: All of ``EnvRunner.sample``.
        env_step: Stepping environments, and resetting those whose episode has ended.
        env_reset: Resets that start a sample, or that had to wait for callbacks.
        rlmodule_inference: Forward passes.
        env_to_module: The env-to-module pipeline.
        module_to_env: The module-to-env pipeline, and writing actions and outputs to the columns.
    """

    sample: float = 0.0
    env_step: float = 0.0
    env_reset: float = 0.0
    rlmodule_inference: float = 0.0
    env_to_module: float = 0.0
    module_to_env: float = 0.0

    def as_results(self) -> dict[str, float]:
        """Under RLlib's names, all but ``sample``."""
        return {
            "env_step_timer": self.env_step,
            "env_reset_timer": self.env_reset,
            "rlmodule_inference_timer": self.rlmodule_inference,
            "env_to_module_connector": self.env_to_module,
            "module_to_env_connector": self.module_to_env,
        }
