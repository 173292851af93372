"""Policy: from an environment's observations to actions for it, by trained modules and their pipelines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.algorithms.observation_batches import num_in_batch
from marl_connectors.algorithms.policy_lanes import PolicyLanes
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, works_on_columns
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_action_array, env_actions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.acting_check import check_outputs_of_rows
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.rollout import take
from marl_connectors.errors import ConnectorError, EpisodeError, MappingError, did_you_mean
from marl_connectors.metrics import MetricsLogger
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.transfers import all_on_host
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID


class Policy:
    """Acts as trained modules do, connector pieces, action masks and recurrent states included.

    It remembers what it needs of the steps so far: call ``reset`` when a new episode begins. What pieces have learned
    (such as the statistics of MeanStdFilter) stays as it is. Each observation may be one, or a batch ``[B, ...]`` of as
    many environments, which are then told apart from call to call; the actions are alike.
    It can be pickled, sent to other processes and copied; what it remembers goes along.

    Attributes:
        agent_ids: The agents that it knows, and whose observations it takes.
        rl_module: The modules.
        env_to_module: From observations to what the modules see.
        module_to_env: From what the modules give to actions.
    """

    def __init__(
        self,
        rl_module: MultiRLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        *,
        agent_spaces: Mapping[AgentID, tuple[Space, Space]],
        single_agent: bool,
        policy_mapping_fn: PolicyMappingFn,
        default_agent_id: AgentID | None = None,
        lookback: int = 1,
        explore: bool = False,
        seed: int = 0,
    ):
        """Use ``load_policy``, unless you build modules and pipelines yourself.

        Args:
            rl_module: The modules.
            env_to_module: Of the agents' observation spaces.
            module_to_env: Of the agents' action spaces.
            agent_spaces: Agent to its observation and action space in the environment.
            single_agent: Whether the environment is a Gymnasium one.
            policy_mapping_fn: Which agent acts by which module.
            default_agent_id: Whose observation it is if a call does not say, where there are several agents.
            lookback: Steps that pieces look back.
            explore: Whether actions are sampled unless a call says.
            seed: Of sampled actions.
        """
        self.agent_ids = list(agent_spaces)
        self.rl_module = rl_module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._spaces = dict(agent_spaces)
        self._explore = explore
        noise = ActionNoise(seed)
        self._shared_data: dict[str, Any] = {ACTION_NOISE: noise}
        self._lanes = PolicyLanes(
            self._spaces,
            rl_module,
            env_to_module,
            policy_mapping_fn,
            noise,
            single_agent=single_agent,
            lookback=lookback,
        )
        pieces = [*env_to_module, *module_to_env]
        self._pieces_read_episodes = not all(works_on_columns(piece) for piece in pieces)
        self._has_pieces = any(type(piece) not in DEFAULT_PIECES for piece in pieces)
        self._remembers = rl_module.is_stateful() or any(map(_looks_back, pieces))
        self._default_agent = self.agent_ids[0] if len(self.agent_ids) == 1 else default_agent_id

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies, which go on from the same steps on their own.

        A parameter in a bucket is a view, with which a pickle would hold the whole bucket.
        """
        self.rl_module.unbind_buckets()
        return vars(self)

    # What users call.

    def __call__(
        self,
        observation: Any,
        agent_id: AgentID | None = None,
        *,
        reward: Any = None,
        info: Any = None,
        explore: bool | None = None,
    ) -> Any:
        """An agent's action.

        Args:
            observation: What the environment gave it, or a batch ``[B, ...]``.
            agent_id: Who; may be left out where only one agent can be meant.
            reward: What it was paid since its last action, ``[B]`` for a batch. For pieces that look at rewards.
            info: Its info dict, for a batch a list of them or a dict of arrays as vectorised environments have. For
                pieces that look at infos, such as for action masks.
            explore: Whether to sample the action instead of taking the most likely one.

        Returns:
            As ``env.step`` takes it; ``[B, ...]`` for a batch.
        """
        if agent_id is None:
            agent_id = self._default_agent
            if agent_id is None:
                raise MappingError(f"policy: say whose observation it is: agent_id=..., one of {self._known()}.")
        return self.actions(
            {agent_id: observation},
            rewards=None if reward is None else {agent_id: reward},
            infos=None if info is None else {agent_id: info},
            explore=explore,
        )[agent_id]

    def actions(
        self,
        observations: Mapping[AgentID, Any],
        *,
        rewards: Mapping[AgentID, Any] | None = None,
        infos: Mapping[AgentID, Any] | None = None,
        agent_ids: Iterable[AgentID] | None = None,
        explore: bool | None = None,
    ) -> dict[AgentID, Any]:
        """The actions of several agents, in one pass through the pipelines. A hot path.

        Args:
            observations: Agent to what the environment gave it, or to a batch ``[B, ...]``.
            rewards: Agent to what it was paid since its last action.
            infos: Agent to its info dict.
            agent_ids: Those that act; all that have an observation if None. Pass ``env.agents`` where agents can die,
                since their last observations come with those of the living.
            explore: Whether to sample the actions instead of taking the most likely ones.

        Returns:
            Agent to action, for a parallel environment's ``step``.

        Raises:
            EpisodeError: If an observation is not of the agent's space, or batches differ in size.
            MappingError: For an agent, or a module, that is unknown.
            ConnectorError: If a piece fails, or modules would see what is not finite.
            ModuleError: If they put out what is not.
        """
        agents = [a for a in (observations if agent_ids is None else agent_ids) if a in observations]
        if not agents:
            return {}
        size = self._batch_size(agents, observations)
        is_batch = size is not None
        self._make_room(1 if size is None else size)
        self._lanes.seat(agents, rewards)
        self._lanes.observe(observations, infos, is_batch)
        batch = self._run(self._explore if explore is None else explore)
        found: dict[AgentID, Any] = {}
        for seats, columns in zip(self._lanes.seats, batch.groups, strict=True):
            check_outputs_of_rows(columns, self.rl_module)
            values: Any = env_action_array(columns) if is_batch else env_actions(columns)
            for agent_id, own in seats.rows_of_agents():
                if not is_batch:
                    found[agent_id] = values[own[0]]
                elif own.min() >= 0 or agent_id not in found:
                    found[agent_id] = take(values, own)
                else:  # in other environments the agent is in another group, which has been seen to
                    found[agent_id] = tree_map(partial(_filled, own=own), found[agent_id], values)
        self._lanes.record(batch)
        return {agent_id: found[agent_id] for agent_id in agents}

    def reset(self, ended: Any = None, *, agent_ids: Collection[AgentID] | None = None) -> None:
        """Begins new episodes: nothing is remembered of the steps so far.

        Args:
            ended: ``[B]`` bool, in which environments of a batch an episode has ended; None for all.
            agent_ids: Only for these agents, which come back after their end while the others' episode goes on.
        """
        if ended is None and agent_ids is None:
            self._lanes.restart(0)
            return
        which = np.ones(self._lanes.num_copies, bool) if ended is None else np.atleast_1d(np.asarray(ended, bool))
        if which.shape != (self._lanes.num_copies,):
            raise EpisodeError(
                f"policy: reset(ended) takes one bool for each environment of the last batch, so "
                f"{self._lanes.num_copies}, but got the shape {which.shape}."
            )
        for index in np.flatnonzero(which).tolist():
            self._lanes.restart_copy(index, agent_ids)

    # One call.

    def _known(self) -> str:
        return ", ".join(map(repr, self.agent_ids[:10])) + (", ..." if len(self.agent_ids) > 10 else "")

    def _batch_size(self, agents: Sequence[AgentID], observations: Mapping[AgentID, Any]) -> int | None:
        """How many environments the observations are of; None for one without a batch axis."""
        sizes = set()
        for agent_id in agents:
            if agent_id not in self._spaces:
                raise MappingError(
                    f"policy: agent {agent_id!r} was not in the environment of training. "
                    f"{did_you_mean(str(agent_id), list(map(str, self.agent_ids)))}"
                )
            sizes.add(num_in_batch(self._spaces[agent_id][0], observations[agent_id], agent_id))
        if len(sizes) > 1:
            found = ", ".join(map(str, sorted(sizes, key=str)))
            raise EpisodeError(
                f"policy: the observations are batches of different sizes ({found}; None is a single one). Pass one "
                f"for each environment, for every agent."
            )
        return sizes.pop()

    def _make_room(self, num_copies: int) -> None:
        """Makes sure that there is a lane for each environment."""
        if self._lanes.num_copies == num_copies:
            return
        if self._lanes.num_copies and self._remembers:
            raise EpisodeError(
                f"policy: got observations of {num_copies} environments, but of {self._lanes.num_copies} in the last "
                f"call, whose earlier steps it remembers. Call reset() when other episodes begin."
            )
        self._lanes.restart(num_copies)

    def _run(self, explore: bool) -> ColumnBatch:
        """Observations through pipelines and modules."""
        common: dict[str, Any] = {
            "rl_module": self.rl_module,
            "episodes": self._lanes.episodes() if self._pieces_read_episodes else [],
            "explore": explore,
            "shared_data": self._shared_data,
            "metrics": MetricsLogger() if self._has_pieces else None,
        }
        batch = self.env_to_module.run(ColumnBatch(self._lanes.groups()), **common)
        _check_finite(batch.groups)
        forward: Callable[..., Any] = (
            self.rl_module.forward_exploration if explore else self.rl_module.forward_inference
        )
        return self.module_to_env.run(forward(batch), **common)


def _looks_back(piece: ConnectorV2) -> bool:
    """Whether earlier steps matter to a piece, as far as one can know: a user's own may read what it likes."""
    if isinstance(piece, ConnectorPipelineV2):
        return any(map(_looks_back, piece))
    return getattr(piece, "lookback", 0) > 0 or not type(piece).__module__.startswith("marl_connectors.")


def _filled(whole: np.ndarray, leaf: np.ndarray, own: np.ndarray) -> np.ndarray:
    """``[B, ...]`` with the rows of a further group; ``own`` is -1 where ``whole`` has them."""
    there = own >= 0
    whole[there] = leaf[own[there]]
    return whole


def _check_finite(groups: Sequence[ColumnGroup]) -> None:
    found = [
        (group, torch.isfinite(leaf).all())
        for group in groups
        for leaf in leaves(group.get(Columns.OBS))
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    for (group, _), is_finite in zip(found, all_on_host([flag for _, flag in found]), strict=True):
        if not is_finite:
            raise ConnectorError(
                f"policy: what module {group.module_ids[0]!r} would see is not finite. If a connector piece looks at "
                f"rewards, pass them too (reward=..., rewards=...); else look at the observation."
            )
