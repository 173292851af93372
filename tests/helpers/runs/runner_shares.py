"""Env runners with shares of a run's sub-environments."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from helpers.runs.random_runs import AddsCount, plain, rows_of
from marl_connectors import Algorithm, EnvRunner, PPOConfig
from marl_connectors.algorithms import build
from marl_connectors.env_runners.done_episodes import SamplePlace, merged_order, shares
from marl_connectors.env_runners.env_runner_state import EnvRunnerState
from marl_connectors.state import read_state


def runner_of(config: PPOConfig, num_envs: int, first_env_number: int) -> EnvRunner:
    """An env runner with some of a run's sub-environments."""
    return _runner_of(config.copy().build_algo(), num_envs, first_env_number, is_alone=True)


def _runner_of(algo: Algorithm, num_envs: int, first_env_number: int, is_alone: bool) -> EnvRunner:
    return EnvRunner(
        parts=build.build_env_runner_parts(
            algo.config,
            algo._setup,
            algo.rl_module,
            algo._env_to_module,
            seed=algo.seed,
            num_envs=num_envs,
            rollout_fragment_length=algo.config.rollout_fragment_length,
            lookback=algo._lookback(),
            state_space=algo._state_space(),
            first_env_number=first_env_number,
            merges_connector_states=is_alone,
        )
    )


def depends_on_others(config: PPOConfig) -> bool:
    """Whether a piece of the config counts its calls, which are of all sub-environments that it sees."""
    pipeline = config.env_to_module_connector
    return pipeline is not None and isinstance(pipeline(), AddsCount)


class DividedRun:
    """The env runners of one run.

    Attributes:
        sizes: The number of sub-environments of each runner.
        algos: An algorithm for each runner, from which it has its modules and pieces.
        runners: The runners, in the order of their sub-environments.
        places: The places of the newest sample's episodes.
    """

    def __init__(self, config: PPOConfig, sizes: Sequence[int], state: EnvRunnerState | dict[str, Any] | None = None):
        """Builds a runner for each number of sub-environments; ``state`` is that of one runner with all of them."""
        self.sizes = list(sizes)
        self.algos = [config.copy().build_algo() for _ in sizes]
        firsts = [0, *accumulate(sizes)][:-1]
        is_alone = len(self.sizes) == 1
        self.runners = [_runner_of(*own, is_alone) for own in zip(self.algos, sizes, firsts, strict=True)]
        self.places: list[SamplePlace] = []
        if state is not None:
            self.set_state(state)

    def sample(self, *, steps: int = 0, num_episodes: int | None = None, **options: Any) -> list[Any]:
        """Returns the episodes of ``steps`` steps of each sub-environment, or ``num_episodes`` episodes, in order."""
        found: list[list[Any]] = []
        first, envs = 0, sum(self.sizes)
        for runner, size in zip(self.runners, self.sizes, strict=True):
            if num_episodes is None:
                found.append(runner.sample(num_timesteps=steps * size, **options))
            else:
                own = shares(envs, num_episodes)[first : first + size]
                found.append(runner.sample(num_episodes=sum(own), **options))
            first += size
        if len(self.runners) > 1:
            merged = self._merged_connector_states([runner.get_connector_states() for runner in self.runners])
            for runner in self.runners:
                runner.set_connector_states(copy.deepcopy(merged))
        places = [runner.places for runner in self.runners]
        order = merged_order(places)
        self.places = [places[i][j] for i, j in order]
        return [found[i][j] for i, j in order]

    def _merged_connector_states(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        env_to_module, module_to_env = self.runners[0].env_to_module, self.runners[0].module_to_env
        before = [state["before_batch"]["pieces"] for state in states if state["before_batch"] is not None]
        return {
            "env_to_module": env_to_module.merge_states([state["env_to_module"] for state in states]),
            "module_to_env": module_to_env.merge_states([state["module_to_env"] for state in states]),
            "before_batch": {"pieces": env_to_module.merge_states(before)} if before else None,
        }

    def state(self) -> EnvRunnerState:
        """The state of one runner with all sub-environments."""
        states = [runner.get_state() for runner in self.runners]
        return states[0] if len(states) == 1 else EnvRunnerState.merged(states)

    def set_state(self, state: EnvRunnerState | dict[str, Any]) -> None:
        """Sets the state of one runner with all sub-environments."""
        parts = read_state(EnvRunnerState, state).divided(self.sizes)
        for runner, own in zip(self.runners, parts, strict=True):
            runner.set_state(copy.deepcopy(own))  # as in processes of their own

    def close(self) -> None:
        """Closes all runners."""
        for runner, algo in zip(self.runners, self.algos, strict=True):
            runner.close()
            algo.stop()


def contents(episodes: Sequence[Any], at_random: bool = False) -> list[Any]:
    """All that episodes hold, in their order.

    Which columns an agent has depends on the other agents of its group in two cases, in which they hold nothing: the
    agent has no step, or all its actions are random (``at_random``), so that no module has output anything for it.
    """
    found = []
    for episode in episodes:
        agents = []
        for own in rows_of([episode]):
            data = own["data"] if len(own["rewards"][2]) else {}
            if at_random:
                data = {name: column for name, column in data.items() if name in _OF_STEPS or not _is_zero(column)}
            agents.append(own | {"data": data})
        parts = getattr(episode, "agent_episodes", {"": episode}).values()
        times = [getattr(episode, name, None) for name in ("env_t_started", "env_t", "is_terminated", "is_truncated")]
        infos = [[plain(part.get_infos(slice(None))), part.uncredited_reward] for part in parts]
        found.append([str(episode.id_), times, plain(episode.custom_data), infos, episode.uncredited_reward, agents])
    return found


_OF_STEPS = {"obs", "infos", "actions", "rewards", "terminateds", "truncateds", "t", "eps_id"}


def _is_zero(column: Any) -> bool:
    """Whether a column, as ``plain`` returns it, has zeros only."""
    if isinstance(column, dict):
        return all(map(_is_zero, column.values()))
    return not any(column[2]) if isinstance(column, tuple) else all(map(_is_zero, column))
