"""The kinds of pipeline."""

from __future__ import annotations

ENV_TO_MODULE, MODULE_TO_ENV, LEARNER = "env_to_module", "module_to_env", "learner"
