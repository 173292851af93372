"""AlgorithmState: everything that the next iteration of an Algorithm depends on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.action_mask_setting import Masking
from marl_connectors.algorithms.config.state import ConfigState, ModulesMade
from marl_connectors.algorithms.offline_data import OfflineDataState
from marl_connectors.checkpoints import REPLAY_BUFFERS, find_checkpoint, load_state
from marl_connectors.env_runners.env_runner_state import EnvRunnerState
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.errors import CheckpointError
from marl_connectors.metrics import Metric
from marl_connectors.names import brief
from marl_connectors.rl_module.multi_rl_module import ModuleStates
from marl_connectors.state import ID, Index, Seed, State, read_state
from marl_connectors.typing import DEFAULT_AGENT_ID, SHARED


class AgentsState(State):
    """The agents of an environment.

    Attributes:
        single_agent: Whether it is an environment of Gymnasium.
        takes_turns: Whether one agent acts at a time.
        spaces: Each distinct space as JSON data.
        agents: Each agent, and the places of its observation space and its action space in ``spaces``.
    """

    single_agent: bool
    takes_turns: bool
    spaces: list[dict[str, Any]]
    agents: list[tuple[ID, Index, Index]]

    def __post_init__(self) -> None:
        agent_ids = [agent_id for agent_id, *_ in self.agents]
        if not agent_ids or (self.single_agent and agent_ids != [DEFAULT_AGENT_ID]):
            raise ValueError(f"Expected the agents of an environment, got {brief(agent_ids)}")
        if max(max(places) for _, *places in self.agents) >= len(self.spaces):
            raise ValueError(f"Expected places of the {len(self.spaces)} spaces, got {brief(self.agents)}")


class AlgorithmState(State):
    """Everything that the next iteration of an Algorithm depends on.

    Attributes:
        config: The settings.
        changed_settings: The settings that the run itself changed, such as the mapping.
        seed: The seed from which all random streams follow.
        iteration: The number of completed iterations.
        time_total_s: The seconds that these took.
        num_evaluations: The number of evaluations.
        num_episodes: The number of finished episodes.
        recent_episodes: The summaries of the episodes whose means are reported.
        spaces: The texts that describe each agent's observation and action space.
        agents: The agents and their spaces.
        masking: The action masks that are applied.
        modules: How the modules were made.
        learner: The state of the learner or of the LearnerSet.
        env_runner: The state that one env runner with all sub-environments has.
        metrics: The metrics that callbacks have logged.
        offline_data: The positions in recorded episodes.
        replays: The states of replay buffers, by algorithm; ``""`` stands for the one of a run with one algorithm.
    """

    config: ConfigState
    changed_settings: list[str]
    seed: Seed
    iteration: Index
    time_total_s: float
    num_evaluations: Index
    num_episodes: Index
    recent_episodes: list[EpisodeSummary]
    spaces: dict[str, list[str]]
    agents: AgentsState
    masking: Masking
    modules: ModulesMade
    learner: Any
    env_runner: EnvRunnerState
    metrics: list[Metric]
    offline_data: OfflineDataState
    replays: dict[str, Any] = {}

    def __post_init__(self) -> None:
        known = set(self.parameters) - {SHARED}
        if (described := set(self.modules.specs)) != known:
            raise ValueError(f"Expected the specs of the modules {sorted(known)}, got those of {sorted(described)}")
        if unknown := set(self.changed_settings) - self.config.settings.keys():
            raise ValueError(f"Expected changed_settings to be in the config, got {min(unknown)!r}")

    @property
    def parameters(self) -> ModuleStates:
        """The parameters of each module, and those that modules share."""
        learner = self.learner
        found = learner.get("module") if isinstance(learner, Mapping) else learner.module
        return read_state(ModuleStates, found)


def algorithm_state(path: str | Path, *, with_replay_buffers: bool = True) -> AlgorithmState:
    """Returns the state that ``Algorithm.get_state`` returned, from a checkpoint or the folder of a run.

    Args:
        path: The checkpoint, or the folder of the run.
        with_replay_buffers: Whether replay buffers are read, which may be large.

    Raises:
        CheckpointError: If there is no checkpoint, or it is not one of an Algorithm.
    """
    state = load_state(find_checkpoint(path), without=() if with_replay_buffers else REPLAY_BUFFERS)
    if not {"config", "learner", "env_runner"} <= set(state):
        raise CheckpointError(f"{path}: this is not a checkpoint of an Algorithm. Name one that save_to_path wrote.")
    return read_state(AlgorithmState, state)
