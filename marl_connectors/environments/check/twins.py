"""Two sub-environments of a natively batched environment that must be alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_connectors.environments.check.rules import violation
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.vector.smoke_test import Acting, SmokeTest, same_data
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.trees import as_list


class Twins(SmokeTest):
    """A smoke test in which the first and the last sub-environment get the same seed and actions.

    They must return the same data until their episode ends.
    """

    def play(self, vector_env: VectorEnv) -> None:
        """Plays a natively batched environment; see SmokeTest."""
        vector_env.sub_envs[-1].number = vector_env.sub_envs[0].number  # from which their seeds follow
        self._are_alike = True
        super().play(vector_env)

    def actions(self, acting: Acting, observations: list[Any], infos: Mapping[int, Any]) -> list[Any]:
        """Returns random actions that the masks allow, the same of both."""
        actions = super().actions(acting, observations, infos)
        if self._are_alike:
            self._compare(acting, observations)
            number = _agents_of_one(acting)
            actions[-number:] = actions[:number]
        return actions

    def judge(self, acted: Acting, result: StepResult) -> None:
        """Judges a step, also whether both got the same; see SmokeTest."""
        super().judge(acted, result)
        if self._are_alike:
            self._compare(acted, as_list(result.observations), as_list(result.rewards), self._flags(acted, result))
            self._are_alike = acted[0][0].index not in result.over

    def _flags(self, acted: Acting, result: StepResult) -> list[tuple[bool, bool]]:
        """Returns both flags of all agents that acted."""
        ends = result.ends
        flags = iter(() if ends is None else zip(ends.terminated.tolist(), ends.truncated.tolist(), strict=True))
        return [next(flags) if ends and sub_env.index in ends.indices else (False, False) for sub_env, _ in acted]

    def _compare(self, agents: Acting, *columns: list[Any]) -> None:
        number = _agents_of_one(agents)
        if not all(same_data(column[:number], column[-number:]) for column in columns):
            advice = "Keep all state separate for each sub-environment, also its random generator."
            what = "the first and the last sub-environment differ, although they got the same seed and the same actions"
            checks.raise_first(self._places[agents[0][0].index], [violation("copies", what, advice=advice)])


def _agents_of_one(agents: Acting) -> int:
    return sum(sub_env is agents[0][0] for sub_env, _ in agents)
