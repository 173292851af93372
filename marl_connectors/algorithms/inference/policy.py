"""Policy: turns an environment's observations into actions, with trained modules and their pipelines."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict as DictSpace

from marl_connectors.algorithms.inference.external_vector_env import ExternalVectorEnv
from marl_connectors.algorithms.inference.joint_calls import JointCallCheck
from marl_connectors.algorithms.inference.observation_batches import num_in_batch
from marl_connectors.algorithms.inference.onnx_export import export_onnx
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.env_to_module.time_limit_encoding import TimeLimitEncoding
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE, samples
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.episode_tracker import EpisodeTracker
from marl_connectors.env_runners.lane_group import LiveRows
from marl_connectors.env_runners.run_metrics import SamplingTimes
from marl_connectors.env_runners.sampling_plan import SamplingPlan
from marl_connectors.errors import ConnectorError, EpisodeError, MappingError, ModuleError, did_you_mean, listed
from marl_connectors.metrics import MetricsLogger
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import derived_seed
from marl_connectors.spaces import values_per_choice
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID

if TYPE_CHECKING:
    from typing_extensions import Self

    from marl_connectors.environments.rules.step_result import StepResult

_OF_PROCESS = ("_call", "_plans")
"""The attributes that a copy of a policy creates for itself."""
_CUT_AFTER = 256
"""The number of rows after which steps before the lookback are forgotten, ..."""
_CUT_AFTER_STEPS = 2**14
"""... or fewer rows, if they hold this many agent steps. The memory that is written to then stays in the cache."""
_TRIED_STEPS = 3
"""The number of steps in which agents act one by one and together, to compare both."""


class Policy:
    """Acts as the modules did in training, with connector pieces, action masks and recurrent states.

    It remembers what it needs of the steps so far: call ``reset`` when a new episode begins. What pieces have learned
    (such as the statistics of MeanStdFilter) stays as it is. Each observation may be a single one, or a batch ``[B,
    ...]`` of the observations of B environments, for each of which the policy remembers its own steps. The actions
    have the same form. A policy can be pickled, sent to other processes and copied, with everything that it remembers.

    Threads may share a policy: it works on one call at a time, and the other calls wait. ``session`` gives policies
    with the same modules that act side by side. If a call raises an error, the policy still remembers what it
    remembered before.

    Attributes:
        agent_ids: The agents whose observations the policy accepts.
        masked_in_infos: The agents whose calls must have infos, because their action masks are there.
        rl_module: The modules.
        env_to_module: The pipeline from observations to the modules' batch.
        module_to_env: The pipeline from the modules' outputs to actions.
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
        takes_turns: bool = False,
        unknown_agents_like: AgentID | None = None,
        masked_in_infos: Collection[AgentID] = (),
    ):
        """Makes a policy. Use ``load_policy``, unless you build modules and pipelines yourself.

        Args:
            rl_module: The modules.
            env_to_module: The pipeline for the agents' observation spaces.
            module_to_env: The pipeline for the agents' action spaces.
            agent_spaces: Maps each agent to its observation and action space in the environment.
            single_agent: Whether the environment is a Gymnasium environment.
            policy_mapping_fn: Chooses the module of each agent.
            default_agent_id: The agent of calls without ``agent_id``, if several agents exist.
            lookback: The number of steps that pieces look back.
            explore: Whether calls without ``explore`` sample actions.
            seed: The seed of sampled actions.
            takes_turns: Whether agents took turns in training, so that pieces saw one of them at a time.
            unknown_agents_like: Agents that are not in ``agent_spaces`` are treated like this agent. If None, they are
                an error.
            masked_in_infos: The agents that must not act without infos, because their masks are there, if other agents
                have masks in their observations. If masks are in no observation, they are all agents with choices.
        """
        self._built_with = {
            "agent_spaces": dict(agent_spaces),
            "single_agent": single_agent,
            "policy_mapping_fn": policy_mapping_fn,
            "default_agent_id": default_agent_id,
            "lookback": lookback,
            "takes_turns": takes_turns,
            "unknown_agents_like": unknown_agents_like,
            "masked_in_infos": tuple(masked_in_infos),
        }
        self.agent_ids = list(agent_spaces)
        self.rl_module = rl_module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._single_agent = single_agent
        self._call = _OneCall()
        self._num_sessions = 0
        self._explore = explore
        self._vector_env = ExternalVectorEnv(agent_spaces)
        self._noise = ActionNoise(seed, self._vector_env.torch_stream_of)
        self._shared_data: dict[str, Any] = {ACTION_NOISE: self._noise}
        self._metrics = {name: MetricsLogger() for name in ("env_to_module", "module_to_env")}
        self._times = SamplingTimes()
        self._plans: dict[bool, SamplingPlan] = {}
        self._restart(0)
        self._like = unknown_agents_like
        pipelines, is_alone = (env_to_module, module_to_env), single_agent or len(self.agent_ids) == 1
        self._joint_calls = JointCallCheck(
            pipelines, rl_module, self.agent_ids, takes_turns=takes_turns, is_needless=is_alone
        )
        pieces = [*env_to_module, *module_to_env]
        self._has_pieces = any(type(piece) not in DEFAULT_PIECES for piece in pieces)
        self._remembers = rl_module.is_stateful() or any(map(_looks_back, pieces))
        self._always_samples = any(map(_always_samples, rl_module.values()))
        self.masked_in_infos = frozenset(self._find_masked_in_infos(masked_in_infos))
        self._default_agent = self.agent_ids[0] if len(self.agent_ids) == 1 else default_agent_id

    def spaces_of(self, agent_id: AgentID) -> tuple[Space, Space]:
        """Returns an agent's observation and action space in the environment."""
        return self._spaces[agent_id]

    @property
    def single_agent(self) -> bool:
        """Whether the environment is a Gymnasium environment."""
        return self._single_agent

    @property
    def info_mask_key(self) -> str | None:
        """The key of action masks in info dicts; None if no piece reads them there."""
        for piece in self.env_to_module:
            if isinstance(piece, ActionMasking) and piece.source != "observations":
                return piece.action_mask_key
        return None

    def _find_masked_in_infos(self, known: Collection[AgentID]) -> list[AgentID]:
        """Returns the agents that must not act without infos. Of ``known`` agents, masks were seen in infos."""
        key, spaces_of_agents = self.info_mask_key, self._spaces.values()
        if key is None:
            return []
        if any(isinstance(seen, DictSpace) and key in seen.spaces for seen, _ in spaces_of_agents):
            return [agent_id for agent_id in known if agent_id in self._spaces]
        return [agent_id for agent_id, (_, space) in self._spaces.items() if values_per_choice(space) is not None]

    @property
    def takes_turns(self) -> bool:
        """Whether agents took turns in training."""
        return self._built_with["takes_turns"]

    @property
    def default_agent_id(self) -> AgentID | None:
        """The agent of calls without ``agent_id``; None if they must name one."""
        return self._default_agent

    @property
    def unknown_agents_like(self) -> AgentID | None:
        """The agent like which unknown agents are treated; None if they are an error."""
        return self._like

    # Programs for other machines.

    def export_onnx(
        self, path: str | Path, *, explore: bool | None = None, opset: int | None = None, check: bool = True
    ) -> Path:
        """Writes the policy as ONNX programs, which need neither this library nor torch.

        The folder gets a program for each module, with everything that connector pieces do before and after it; a
        ``contract.json``, which describes the agents, spaces, inputs and outputs; and ``onnx_policy.py``, which acts
        with them and needs numpy and onnxruntime only. docs/deployment.md describes all three.

        Args:
            path: The folder. An earlier export there is replaced.
            explore: Whether actions are sampled, from random numbers that are an input; None for the setting of this
                policy.
            opset: The version of ONNX's operators; None for torch's default.
            check: Whether to compare the programs with this policy, on sampled observations.

        Returns:
            The folder.

        Raises:
            ConnectorError: If a connector piece works on items, or on several agents at once.
            ModuleError: If torch cannot record a module, a program differs from the policy, or observations are empty.
            MappingError: If an agent has different modules in different episodes.
            MissingDependencyError: If onnx, onnxscript or onnxruntime is not installed.
        """
        with self._call:
            return export_onnx(
                self, path, explore=self._explore if explore is None else explore, opset=opset, check=check
            )

    def newest_outputs(self, column: str, *, explore: bool = False) -> dict[AgentID, np.ndarray]:
        """Returns a column of the module outputs of the newest call.

        Args:
            column: The column, such as ``"action_dist_inputs"``.
            explore: Whether the call sampled actions.

        Returns:
            ``[num_envs, ...]`` for each agent of the call that has the column.
        """
        found: dict[AgentID, np.ndarray] = {}
        for own, columns in zip(self._vector_env.rows_of_agents(), self._plans[explore].outputs, strict=True):
            if column in columns:
                found.update({agent_id: np.asarray(columns[column])[rows] for agent_id, rows in own})
        return found

    # Copies.

    def session(self, *, explore: bool | None = None, seed: int | None = None) -> Self:
        """Returns a new policy with the same modules, its own pieces, and an empty memory.

        Sessions are for episodes that run at the same time, such as one for each thread. They do not wait for one
        another. A change of the modules' parameters applies to all of them: from the next call on if PyTorch knows of
        it (optimizers, ``load_state_dict``), after ``reset()`` if it was made to ``parameter.data``.

        Args:
            explore: Whether actions are sampled; None for the setting of this policy.
            seed: The seed of sampled actions. If None, the n-th session of a policy always has the same seed, and every
                session has another one.
        """
        with self._call:
            if seed is None:
                seed = derived_seed(self._noise.seed, "session", self._num_sessions)
            self._num_sessions += 1
            return self._new(self._explore if explore is None else explore, seed)

    def _new(self, explore: bool, seed: int) -> Self:
        shared = {id(self.rl_module): self.rl_module}
        pieces = copy.deepcopy((self.env_to_module, self.module_to_env), shared)
        made = type(self)(self.rl_module, *pieces, explore=explore, seed=seed, **self._built_with)
        made._joint_calls.copy_findings(self._joint_calls)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a policy with its own modules, which remembers the same steps and continues independently."""
        made = memo[id(self)] = type(self).__new__(type(self))
        with self._call:
            made.__setstate__(copy.deepcopy({k: v for k, v in vars(self).items() if k not in _OF_PROCESS}, memo))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for ``pickle``. Other threads do not change it while it is written."""
        return {name: value for name, value in vars(copy.deepcopy(self)).items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _call=_OneCall(), _plans={}, _is_placed=False)

    # Acting.

    def __call__(
        self,
        observation: Any,
        agent_id: AgentID | None = None,
        *,
        reward: Any = None,
        info: Any = None,
        explore: bool | None = None,
    ) -> Any:
        """Returns an agent's action.

        Args:
            observation: The agent's observation from the environment, or a batch ``[B, ...]``.
            agent_id: The agent. It may be left out where only one agent is possible.
            reward: The sum of the agent's rewards since its last action, ``[B]`` for a batch. Pieces that look at
                rewards need it.
            info: The agent's info dict; for a batch, a list of dicts, or a dict of arrays as vector environments return
                it. Pieces that look at infos need it, for example for action masks.
            explore: Whether to sample the action instead of taking the most likely one.

        Returns:
            The action in the form that ``env.step`` accepts; ``[B, ...]`` for a batch.
        """
        if agent_id is None:
            agent_id = self._default_agent
            if agent_id is None:
                raise MappingError(f"policy: name the agent of the observation: agent_id=..., one of {self._known()}.")
        return self.actions(
            {agent_id: observation},
            rewards=None if reward is None else {agent_id: reward},
            infos=None if info is None else {agent_id: info},
            explore=explore,
        )[agent_id]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {listed(self.agent_ids, 'agent')} with {listed(self.rl_module, 'module')}>"

    def actions(
        self,
        observations: Mapping[AgentID, Any],
        *,
        rewards: Mapping[AgentID, Any] | None = None,
        infos: Mapping[AgentID, Any] | None = None,
        agent_ids: Iterable[AgentID] | None = None,
        explore: bool | None = None,
    ) -> dict[AgentID, Any]:
        """Returns the actions of several agents, in one pass through the pipelines.

        Args:
            observations: Maps agents to their observations from the environment, or to batches ``[B, ...]``.
            rewards: Maps agents to the sum of their rewards since their last action.
            infos: Maps agents to their info dicts. An agent whose masks are in infos must have one.
            agent_ids: The agents that act; None for all that have an observation. Pass ``env.agents`` where agents can
                die, because the environment returns their last observations together with those of living agents.
            explore: Whether to sample the actions instead of taking the most likely ones.

        Returns:
            Maps agents to actions, for a parallel environment's ``step``.

        Raises:
            EpisodeError: If an observation is not of the agent's space, or batches differ in size.
            MappingError: For an agent, or a module, that is unknown.
            ConnectorError: If a piece fails, or modules would see values that are not finite.
            ModuleError: If a module's outputs are not finite.
        """
        named = None if agent_ids is None else list(agent_ids)
        agents = [a for a in (observations if named is None else dict.fromkeys(named)) if a in observations]
        if not agents:
            return {}
        if self.masked_in_infos:
            self._check_infos(agents, {} if infos is None else infos)
        with self._call:
            go_back = self._now()
            try:
                size = self._batch_size(agents, observations)
                if not self._joint_calls.is_needless:
                    infos_of_one = (infos or {}) if size is None else {}
                    self._joint_calls.check(agents, observations, named, partial(self._act_alike_alone, infos_of_one))
                self._make_room(1 if size is None else size)
                explore = self._explore if explore is None else bool(explore)
                actions = self._act(tuple(agents), observations, rewards, infos, size is not None, explore)
            except BaseException:
                go_back()
                raise
            self._joint_calls.acted(agents, observations)
            return actions

    def reset(self, ended: Any = None, *, agent_ids: Collection[AgentID] | None = None) -> None:
        """Begins new episodes, and forgets the steps so far.

        Args:
            ended: ``[B]`` bool, True for the environments of a batch in which an episode has ended; None for all.
            agent_ids: The agents to reset, which come back after their end while the others' episode continues; None
                for all agents.

        Raises:
            EpisodeError: If ``ended`` is no bool for each environment of the last batch.
            MappingError: If an agent is unknown.
        """
        agent_ids = self._known_ids(agent_ids)
        if ended is None and agent_ids is None and self._call.mend():
            self._restart(0)
        with self._call:
            self._reset(ended, agent_ids)

    def _reset(self, ended: Any, agent_ids: Collection[AgentID] | None) -> None:
        vector_env, episodes = self._vector_env, self._episodes
        if ended is None and agent_ids is None:
            self.rl_module.check_buckets()
            for explore in self._plans:
                self._begin(explore)
            vector_env.restart(len(vector_env.sub_envs))
            self._joint_calls.forget()
            return
        size = len(vector_env.sub_envs)
        which = np.ones(size, bool) if ended is None else np.atleast_1d(np.asarray(ended))
        if which.dtype.kind not in "biuf":
            raise EpisodeError(
                f"policy: reset(ended) accepts bools, but got {ended!r}. Name agents to reset with "
                f"reset(agent_ids=[...])."
            )
        if which.shape != (size,):
            raise EpisodeError(
                f"policy: reset(ended) accepts one bool for each environment of the last batch, so {size}, but got the "
                f"shape {which.shape}."
            )
        indices = np.flatnonzero(which).tolist()
        if agent_ids is None:
            vector_env.end(indices)
        elif self._single_agent:
            vector_env.end([index for index in indices if any(a in agent_ids for a in episodes.lanes.by_env[index])])
        elif vector_env.calls:
            episodes.acted()
            vector_env.sync()
            for index in indices:
                if index not in vector_env.over:
                    episodes.apply(vector_env.leaving(agent_ids, index, episodes.lanes), _nobody)
            vector_env.forget_layout()
            episodes.lanes.arrange()
        self._joint_calls.forget(agent_ids)

    def _known_ids(self, agent_ids: Collection[AgentID] | None) -> Collection[AgentID] | None:
        """Returns ids of agents after checking that the policy has acted, or would act, for agents with these ids."""
        if agent_ids is None or (self._like is not None and not isinstance(agent_ids, str)):
            return agent_ids
        if isinstance(agent_ids, str):
            raise MappingError(f"policy: reset(agent_ids) accepts a list of agents. Write agent_ids=[{agent_ids!r}].")
        for agent_id in agent_ids:
            if agent_id not in self._spaces:
                raise MappingError(f"policy: agent {agent_id!r} to reset is unknown. The agents are {self._known()}.")
        return agent_ids

    # One call.

    def _known(self) -> str:
        return ", ".join(map(repr, self.agent_ids[:10])) + (", ..." if len(self.agent_ids) > 10 else "")

    def _check_infos(self, agents: Sequence[AgentID], infos: Mapping[AgentID, Any]) -> None:
        """Raises a ConnectorError if agents whose masks are in infos would act without them."""
        without = [a for a in agents if infos.get(a) is None]
        lacking = [a for a in without if (a if a in self._spaces else self._like) in self.masked_in_infos]
        if lacking:
            raise ConnectorError(
                f"policy: the action masks of {listed(lacking, 'agent')} are in infos, under {self.info_mask_key!r}, "
                f"but this call has none, so that forbidden actions would be possible. Pass what the environment "
                f"returned: policy(observation, info=info), or policy.actions(observations, infos=infos). An info "
                f"without a mask allows all actions."
            )

    def _batch_size(self, agents: Sequence[AgentID], observations: Mapping[AgentID, Any]) -> int | None:
        """Returns the number of environments that the observations come from; None if they have no batch axis."""
        sizes = set()
        for agent_id in agents:
            if agent_id not in self._spaces:
                self._meet(agent_id)
            sizes.add(num_in_batch(self._spaces[agent_id][0], observations[agent_id], agent_id))
        if len(sizes) > 1:
            found = ", ".join(map(str, sorted(sizes, key=str)))
            raise EpisodeError(
                f"policy: the observations are batches of different sizes ({found}; None is a single one). Pass one "
                f"for each environment, for every agent."
            )
        return sizes.pop()

    def _meet(self, agent_id: AgentID) -> None:
        """Adds an agent that was absent in training, and treats it like another agent."""
        if self._like is None:
            raise MappingError(
                f"policy: agent {agent_id!r} was not in the environment of training. "
                f"{did_you_mean(str(agent_id), list(map(str, self.agent_ids)))} For agents with other ids, name the "
                f"module that they act with: load_policy(checkpoint, module_id)."
            )
        self._spaces[agent_id] = self._spaces[self._like]
        for pipeline in (self.env_to_module, self.module_to_env):
            pipeline.know_agent(agent_id, self._like)

    @property
    def _spaces(self) -> dict[AgentID, tuple[Space, Space]]:
        return self._vector_env.agent_spaces

    def _restart(self, num_envs: int) -> None:
        """Forgets all steps, and sets the number of environments."""
        self._vector_env.restart(num_envs)
        self._episodes = EpisodeTracker(
            self._vector_env,  # type: ignore[arg-type]
            self._vector_env.spaces_of,
            self._built_with["policy_mapping_fn"],
            self.rl_module,
            single_agent=self._single_agent,
            lookback=self._built_with["lookback"],
            action_spaces=self.env_to_module.action_space,
            observation_spaces=self.env_to_module.observation_space,
        )

    def _make_room(self, num_envs: int) -> None:
        """Sets the number of environments, if that is another one than before.

        Raises:
            EpisodeError: If steps of other environments would be forgotten that pieces need.
        """
        size = len(self._vector_env.sub_envs)
        if size == num_envs:
            return
        if self._vector_env.calls and self._remembers:
            raise EpisodeError(
                f"policy: got observations of {num_envs} environments, but of {size} in the last call, whose earlier "
                f"steps it remembers. Call reset() when other episodes begin."
            )
        self._restart(num_envs)

    def _act(
        self,
        agents: tuple[AgentID, ...],
        observations: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any] | None,
        infos: Mapping[AgentID, Any] | None,
        is_batch: bool,
        explore: bool,
    ) -> dict[AgentID, Any]:
        """Computes the result of ``actions``, as a step of a runner."""
        vector_env, episodes = self._vector_env, self._episodes
        all_begin, is_same = vector_env.all_begin, agents == vector_env.agents
        if not is_same:
            episodes.acted()
        result = vector_env.step(agents, rewards, episodes.lanes)
        if all_begin:
            for plan in self._plans.values():
                plan.forget()
            episodes.begin_all()
            self._lay_out()
        elif episodes.apply(result, _nobody):
            episodes.arrange()
            self._lay_out()
        elif result.events:
            episodes.set_clocks()
        vector_env.observe(result, observations, infos, is_batch)
        episodes.observe(result)
        plan = self._plan(explore)
        if (explore or self._always_samples) and not self._is_placed:
            vector_env.place(self._noise)
            self._is_placed = True
        actions = vector_env.by_agent(plan.act(self._times), is_batch)
        vector_env.acted()
        self._noise.step = vector_env.num_acted[agents[0]]
        if self._has_pieces:
            for logger in self._metrics.values():
                logger.set_state([])
        if max([group.last_row for group, _ in episodes.lanes.live]) - episodes.lookback >= self._cut_after:
            vector_env.sync()
            episodes.cut(self._cut_after)
        return actions

    def _lay_out(self) -> None:
        """Works out everything that depends on which lanes act."""
        self._is_placed = False
        self._vector_env.lay_out(self._episodes.lanes)
        lanes = max([group.rollout.num_lanes for group in self._episodes.lanes.groups])
        self._cut_after = min(_CUT_AFTER, max(_CUT_AFTER_STEPS // lanes, 16))
        for plan in self._plans.values():
            plan.bind(self._rows)

    @property
    def _rows(self) -> list[LiveRows]:
        return [group.rows for group, _ in self._episodes.lanes.live]  # type: ignore[misc]

    def _plan(self, explore: bool) -> SamplingPlan:
        """Returns the plan for acting with the present pieces and modules."""
        plan = self._plans.get(explore)
        if plan is not None and plan.is_current:
            return plan
        if plan is None:
            plan = SamplingPlan(
                self._noise,
                self._shared_data,
                self._acting_episodes,
                single_agent=self._single_agent,
                checks_each_step=True,
            )
            plan.bind(self._rows)
            self._plans[explore] = plan
        self._begin(explore)
        return plan

    def _begin(self, explore: bool) -> None:
        self._plans[explore].begin(
            self.env_to_module, self.module_to_env, self.rl_module, explore=explore, metrics=self._metrics
        )

    def _acting_episodes(self) -> list[Any]:
        """Returns the episodes of the agents that act, for pieces that look at episodes."""
        self._vector_env.sync()
        self._episodes.sync()
        return self._episodes.acting()

    def _now(self) -> Callable[[], None]:
        """Returns a function with which the policy remembers what it remembers now, of all agents."""
        vector_env, episodes, before_call = self._vector_env, self._episodes, self._vector_env.now()

        def go_back() -> None:
            moved, joined, is_other = vector_env.moved, vector_env.joined, self._episodes is not episodes
            before_call()
            self._episodes = episodes
            for plan in self._plans.values():
                plan.forget()
            if not vector_env.all_begin:
                episodes.undo_step([] if is_other else moved, [] if is_other else joined)

        return go_back

    def _act_alike_alone(self, infos: Mapping[AgentID, Any]) -> bool:
        """Whether agents see and do the same one by one and together, tested with sampled observations."""
        whole, alone = self._new(False, 0), self._new(False, 0)
        agents, rng = self.agent_ids, np.random.default_rng(0)
        some_info = next(iter(infos.values()), {})
        infos = {agent_id: infos.get(agent_id, some_info) for agent_id in agents}
        for t in range(_TRIED_STEPS):
            observations: dict[AgentID, Any] = {}
            for i, agent_id in enumerate(agents):
                space = copy.deepcopy(self._spaces[agent_id][0])
                space.seed(1000 * t + i)
                observations[agent_id] = space.sample()
            rewards = {agent_id: float(rng.normal()) for agent_id in agents} if t else {}
            together = whole._traced_act(agents, observations, rewards, infos)
            for agent_id in reversed(agents):
                apart = alone._traced_act([agent_id], observations, rewards, infos)
                if not _alike(together[agent_id], apart[agent_id]):
                    return False
        return True

    def _traced_act(
        self,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any],
    ) -> dict[AgentID, dict[str, list[np.ndarray]]]:
        """Acts for some agents in one environment. Returns the modules' inputs and the results, by agent."""
        self._make_room(1)
        self._act(tuple(agents), observations, rewards, infos, False, False)
        plan, found = self._plans[False], {agent_id: {} for agent_id in agents}
        for when, columns_of_groups in (("seen", plan.forward_batch), ("chosen", plan.outputs)):
            for own, columns in zip(self._vector_env.rows_of_agents(), columns_of_groups, strict=True):
                for agent_id, rows in own:
                    for name, column in columns.items():
                        values = [np.asarray(leaf[rows[0]]).copy() for leaf in leaves(column) if hasattr(leaf, "shape")]
                        found[agent_id][f"{when} {name}"] = values
        return found


class _OneCall:
    """Lets one thread at a time into a policy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._process = os.getpid()
        self._is_torn = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._look_for_fork(me)
        if self._owner == me:
            raise ConnectorError(
                "policy: it was called from within one of its own calls, by a connector piece, a module or a mapping "
                "function. Use another policy there, such as policy.session()."
            )
        self._lock.acquire()
        self._owner = me
        if self._is_torn:
            self.__exit__()
            raise EpisodeError(
                "policy: this process was forked while another thread was in a call of the policy, so its memory "
                "is incomplete. Call reset() first; or make the policy in this process, or a session for it "
                "before the fork."
            )

    def __exit__(self, *error: object) -> None:
        self._owner = None
        self._lock.release()

    def mend(self) -> bool:
        """Allows calls again, because ``reset`` will forget everything. Returns whether the memory was incomplete."""
        self._look_for_fork(threading.get_ident())
        was_torn, self._is_torn = self._is_torn, False
        return was_torn

    def _look_for_fork(self, me: int) -> None:
        """Replaces the lock in a forked process, which does not have the thread that held it."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        if self._owner is not None and self._owner != me:
            self._lock, self._owner, self._is_torn = threading.Lock(), None, True


def _always_samples(module: RLModule) -> bool:
    """Whether a module's actions are sampled without exploration, too."""
    try:
        return samples(module.get_inference_action_dist_cls(), explore=False)
    except ModuleError:  # it has no distribution, because it outputs actions
        return False


def _looks_back(piece: ConnectorV2) -> bool:
    """Whether a piece may use earlier steps. A user's own piece may always do so."""
    if isinstance(piece, ConnectorPipelineV2):
        return any(map(_looks_back, piece))
    if isinstance(piece, TimeLimitEncoding):
        return True
    return getattr(piece, "lookback", 0) > 0 or not type(piece).__module__.startswith("marl_connectors.")


def _nobody(result: StepResult) -> None:
    """Resets nothing, because the caller of a policy resets the environments."""


def _alike(one: dict[str, list[np.ndarray]], other: dict[str, list[np.ndarray]]) -> bool:
    """Whether columns are the same up to rounding."""
    if one.keys() != other.keys():
        return False
    for name, rows in one.items():
        if len(rows) != len(other[name]):
            return False
        for a, b in zip(rows, other[name], strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
    return True
