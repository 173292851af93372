"""Policy: from an environment's observations to actions for it, by trained modules and their pipelines."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.algorithms.observation_batches import num_in_batch
from marl_connectors.algorithms.policy_lanes import AgentNoise, PolicyLanes
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, looks_at_other_agents, works_on_columns
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_action_array, env_actions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.acting_check import check_outputs_of_rows
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.rollout import take
from marl_connectors.errors import ConnectorError, EpisodeError, MappingError, did_you_mean
from marl_connectors.metrics import MetricsLogger
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.seeding import derived_seed
from marl_connectors.transfers import all_on_host
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID

if TYPE_CHECKING:
    from typing_extensions import Self


class Policy:
    """Acts as trained modules do, connector pieces, action masks and recurrent states included.

    It remembers what it needs of the steps so far: call ``reset`` when a new episode begins. What pieces have learned
    (such as the statistics of MeanStdFilter) stays as it is. Each observation may be one, or a batch ``[B, ...]`` of as
    many environments, which are then told apart from call to call; the actions are alike.
    It can be pickled, sent to other processes and copied; what it remembers goes along.

    Threads may share it: one call at a time is worked on, the others wait. ``session`` gives policies with the same
    modules that act side by side. A call that raises an error leaves what is remembered as it was.

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
        takes_turns: bool = False,
        unknown_agents_like: AgentID | None = None,
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
            takes_turns: Whether agents took turns in training, so that pieces saw one of them at a time.
            unknown_agents_like: Agents that are not among ``agent_spaces`` are taken for agents like this one; None if
                there are no others.
        """
        self._built_with = {
            "agent_spaces": dict(agent_spaces),
            "single_agent": single_agent,
            "policy_mapping_fn": policy_mapping_fn,
            "default_agent_id": default_agent_id,
            "lookback": lookback,
            "takes_turns": takes_turns,
            "unknown_agents_like": unknown_agents_like,
        }
        self.agent_ids = list(agent_spaces)
        self.rl_module = rl_module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._call = _OneCall()
        self._num_sessions = 0
        self._spaces = dict(agent_spaces)
        self._explore = explore
        self._noise = AgentNoise(seed)
        self._shared_data: dict[str, Any] = {ACTION_NOISE: self._noise}
        self._lanes = PolicyLanes(
            self._spaces,
            rl_module,
            env_to_module,
            policy_mapping_fn,
            self._noise,
            single_agent=single_agent,
            lookback=lookback,
        )
        self._takes_turns = takes_turns
        self._like = unknown_agents_like
        self._company = _Company(self, needs_none=single_agent or len(self.agent_ids) == 1)
        pieces = [*env_to_module, *module_to_env]
        self._pieces_read_episodes = not all(works_on_columns(piece) for piece in pieces)
        self._has_pieces = any(type(piece) not in DEFAULT_PIECES for piece in pieces)
        self._remembers = rl_module.is_stateful() or any(map(_looks_back, pieces))
        self._default_agent = self.agent_ids[0] if len(self.agent_ids) == 1 else default_agent_id

    # Copies.

    def session(self, *, explore: bool | None = None, seed: int | None = None) -> Self:
        """A policy with the same modules, and with pieces and a memory of its own, which is empty.

        For episodes that go on side by side, such as one for each thread: sessions do not wait for one another. What is
        written to the modules' parameters is seen by all of them.

        Args:
            explore: Whether actions are sampled; as in this policy if None.
            seed: Of sampled actions. If None, each session of this policy has another one: the first always the same,
                the second, and so on.
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
        made._company.know(self._company)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Goes on from the same steps on its own, with modules of its own."""
        made = memo[id(self)] = type(self).__new__(type(self))
        with self._call:
            made.__setstate__(copy.deepcopy({k: v for k, v in vars(self).items() if k != "_call"}, memo))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: what there is now, which other threads leave alone while it is written."""
        return {name: value for name, value in vars(copy.deepcopy(self)).items() if name != "_call"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _call=_OneCall())

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
        named = None if agent_ids is None else list(agent_ids)
        agents = [a for a in (observations if named is None else named) if a in observations]
        if not agents:
            return {}
        with self._call:
            self._lanes.begin_call()
            try:
                size = self._batch_size(agents, observations)
                if not self._company.needs_none:
                    self._company.check(self, agents, observations, named, infos if size is None else None)
                self._make_room(1 if size is None else size)
                found = self._act(agents, observations, rewards, infos, size is not None, explore)
                self._company.acted(agents, observations)
                return found
            except BaseException:
                self._lanes.take_back()
                raise

    def reset(self, ended: Any = None, *, agent_ids: Collection[AgentID] | None = None) -> None:
        """Begins new episodes: nothing is remembered of the steps so far.

        Args:
            ended: ``[B]`` bool, in which environments of a batch an episode has ended; None for all.
            agent_ids: Only for these agents, which come back after their end while the others' episode goes on.
        """
        if ended is None and agent_ids is None:
            self._call.mend()
        with self._call:
            self._reset(ended, agent_ids)

    def _reset(self, ended: Any, agent_ids: Collection[AgentID] | None) -> None:
        if ended is None and agent_ids is None:
            self._lanes.restart(0)
            self._company.forget()
            return
        which = np.ones(self._lanes.num_copies, bool) if ended is None else np.atleast_1d(np.asarray(ended, bool))
        if which.shape != (self._lanes.num_copies,):
            raise EpisodeError(
                f"policy: reset(ended) takes one bool for each environment of the last batch, so "
                f"{self._lanes.num_copies}, but got the shape {which.shape}."
            )
        for index in np.flatnonzero(which).tolist():
            self._lanes.restart_copy(index, agent_ids)
        self._company.forget(agent_ids)

    # One call.

    def _known(self) -> str:
        return ", ".join(map(repr, self.agent_ids[:10])) + (", ..." if len(self.agent_ids) > 10 else "")

    def _batch_size(self, agents: Sequence[AgentID], observations: Mapping[AgentID, Any]) -> int | None:
        """How many environments the observations are of; None for one without a batch axis."""
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
        """Takes an agent that was not there in training for one like another agent, if that is wanted."""
        if self._like is None:
            raise MappingError(
                f"policy: agent {agent_id!r} was not in the environment of training. "
                f"{did_you_mean(str(agent_id), list(map(str, self.agent_ids)))} For agents with other ids, say which "
                f"module acts for them: load_policy(checkpoint, module_id)."
            )
        self._spaces[agent_id] = self._spaces[self._like]
        self._lanes.know_agent(agent_id, self._like)
        for pipeline in (self.env_to_module, self.module_to_env):
            pipeline.know_agent(agent_id, self._like)

    def _act(
        self,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        rewards: Mapping[AgentID, Any] | None,
        infos: Mapping[AgentID, Any] | None,
        is_batch: bool,
        explore: bool | None,
    ) -> dict[AgentID, Any]:
        """What ``actions`` gives. A hot path."""
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
        common = self._common(explore)
        return self._chosen(self._seen(common), common)

    def _common(self, explore: bool) -> dict[str, Any]:
        """What pieces get besides the batch."""
        return {
            "rl_module": self.rl_module,
            "episodes": self._lanes.episodes() if self._pieces_read_episodes else [],
            "explore": explore,
            "shared_data": self._shared_data,
            "metrics": MetricsLogger() if self._has_pieces else None,
        }

    def _seen(self, common: dict[str, Any]) -> ColumnBatch:
        """What the modules see."""
        batch = self.env_to_module.run(ColumnBatch(self._lanes.groups()), **common)
        _check_finite(batch.groups)
        return batch

    def _chosen(self, batch: ColumnBatch, common: dict[str, Any]) -> ColumnBatch:
        """What they and the pieces behind them make of it."""
        forward: Callable[..., Any] = (
            self.rl_module.forward_exploration if common["explore"] else self.rl_module.forward_inference
        )
        return self.module_to_env.run(forward(batch), **common)


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
                "policy: it was called by something that runs within a call of its own: a connector piece, a module or "
                "a mapping function. Let that act by another policy, such as policy.session()."
            )
        self._lock.acquire()
        self._owner = me
        if self._is_torn:
            self.__exit__()
            raise EpisodeError(
                "policy: this process was forked while another thread was in a call of the policy, so what it "
                "remembers is not whole. Call reset() first; or make the policy in this process, or a session for it "
                "before the fork."
            )

    def __exit__(self, *error: object) -> None:
        self._owner = None
        self._lock.release()

    def mend(self) -> None:
        """All that is remembered is about to be forgotten."""
        self._look_for_fork(threading.get_ident())
        self._is_torn = False

    def _look_for_fork(self, me: int) -> None:
        """In a forked process, in which the threads that held the lock are not."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        if self._owner is not None and self._owner != me:
            self._lock, self._owner, self._is_torn = threading.Lock(), None, True


class _Company:
    """Sees to it that pieces which look at several agents get all that act in a step.

    Attributes:
        needs_none: Whether it is known that no piece does.
    """

    def __init__(self, policy: Policy, *, needs_none: bool):
        pieces = dict(_named(policy.env_to_module) + _named(policy.module_to_env))
        answers = {name: looks_at_other_agents(piece) for name, piece in pieces.items()}
        module = policy.rl_module
        if module.has_own_forward:
            answers[type(module).__name__] = getattr(module, "looks_at_other_agents", None)
        self._who = [name for name, answer in answers.items() if answer]
        self._unknown = [name for name, answer in answers.items() if answer is None]
        self._was_tried = False
        self.needs_none = needs_none or not (self._who or self._unknown)
        self.forget()

    def know(self, other: _Company) -> None:
        """What another one has found out about the same pieces."""
        self._who, self._unknown, self._was_tried = other._who, other._unknown, other._was_tried
        self.needs_none = other.needs_none

    def forget(self, agent_ids: Collection[AgentID] | None = None) -> None:
        """New episodes begin; for some agents only, if they are named."""
        if agent_ids is None:
            self._acted: set[AgentID] = set()
            self._left: set[AgentID] = set()
        else:
            self._left.difference_update(agent_ids)

    def acted(self, agents: list[AgentID], observations: Mapping[AgentID, Any]) -> None:
        """Takes note of a call."""
        if not self.needs_none:
            self._acted = set(agents)
            self._left.update(agent_id for agent_id in observations if agent_id not in self._acted)

    def check(
        self,
        policy: Policy,
        agents: list[AgentID],
        observations: Mapping[AgentID, Any],
        named: list[AgentID] | None,
        infos: Mapping[AgentID, Any] | None,
    ) -> None:
        """Holds who acts against who should, as far as one can know.

        Raises:
            ConnectorError: If somebody is missing, and a piece would see it, or may.
        """
        wrong = self._wrong_in_turns(agents) if policy._takes_turns else self._missing(
            agents, observations, policy.agent_ids if named is None else named
        )  # fmt: skip
        if not wrong or not self._looks(policy, infos):
            return
        tried = (
            " This was found by acting on sampled observations, once for all agents and once for each alone. If it is "
            "no fault, set looks_at_other_agents = False in the class."
            if self._was_tried
            else ""
        )
        who = ("one of " if self._was_tried and len(self._who) > 1 else "") + ", ".join(self._who)
        raise ConnectorError(f"policy: {who} looks at several agents, so all that act in a step {wrong}.{tried}")

    def _wrong_in_turns(self, agents: list[AgentID]) -> str:
        if len(agents) == 1:
            return ""
        return (
            f"change what each of them does. In training they took turns, but this call is for {len(agents)} agents. "
            f"Call policy(observation, agent_id) for one after another"
        )

    def _missing(self, agents: list[AgentID], observations: Mapping[AgentID, Any], expected: Sequence[AgentID]) -> str:
        """What is wrong with a call, if anything is."""
        missing = [agent_id for agent_id in expected if agent_id not in observations]
        left_out = [a for a in observations if a not in self._acted and a not in agents]
        back = [agent_id for agent_id in agents if agent_id in self._left]
        also = ""
        if missing:
            found = f"agent {missing[0]!r} has no observation in this call"
        elif left_out:
            found = f"agent {left_out[0]!r} has an observation, but is not to act"
        elif back:
            found = f"agent {back[0]!r} acts again after a call that left it out"
            also = f", and policy.reset(agent_ids=[{back[0]!r}]) when it has come back after its end"
        else:
            return ""
        return (
            f"must be in one call, but {found}. Call policy.actions(observations, agent_ids=env.agents), with all "
            f"agents that there are{also}"
        )

    def _looks(self, policy: Policy, infos: Mapping[AgentID, Any] | None) -> bool:
        """Whether there are pieces that look at several agents; those that do not say so are tried, once."""
        if self._who:
            return True
        try:
            self.needs_none = _acts_alike_alone(policy, infos or {})
        except Exception as error:
            raise ConnectorError(
                f"policy: not all agents are in this call, and whether {', '.join(self._unknown)} may act for one "
                f"without the others cannot be tried ({type(error).__name__}: {error}). Pass the observations of all "
                f"agents in one call, or say it in the class: looks_at_other_agents = False (or True)."
            ) from error
        if not self.needs_none:
            self._who, self._was_tried = self._unknown, True
        return not self.needs_none


def _named(pipeline: ConnectorPipelineV2) -> list[tuple[str, ConnectorV2]]:
    """All pieces, those of nested pipelines too."""
    found: list[tuple[str, ConnectorV2]] = []
    for name, piece in zip(pipeline.names(), pipeline, strict=True):
        found += _named(piece) if isinstance(piece, ConnectorPipelineV2) else [(name, piece)]
    return found


_TRIED_STEPS = 3


def _acts_alike_alone(policy: Policy, infos: Mapping[AgentID, Any]) -> bool:
    """Whether agents that act one by one see, and do, the same as together. Tried on sampled observations."""
    whole, alone = policy._new(False, 0), policy._new(False, 0)
    agents, rng = policy.agent_ids, np.random.default_rng(0)
    some_info = next(iter(infos.values()), {})
    for t in range(_TRIED_STEPS):
        seen: dict[AgentID, Any] = {}
        for i, agent_id in enumerate(agents):
            space = copy.deepcopy(policy._spaces[agent_id][0])
            space.seed(1000 * t + i)
            seen[agent_id] = space.sample()
        rewards = {agent_id: float(rng.normal()) for agent_id in agents} if t else {}
        told = {agent_id: infos.get(agent_id, some_info) for agent_id in agents}
        together = _tried(whole, agents, seen, rewards, told)
        for agent_id in reversed(agents):
            apart = _tried(alone, [agent_id], seen, rewards, told)
            if not _alike(together[agent_id], apart[agent_id]):
                return False
    return True


def _tried(
    policy: Policy,
    agents: list[AgentID],
    observations: Mapping[AgentID, Any],
    rewards: Mapping[AgentID, Any],
    infos: Mapping[AgentID, Any],
) -> dict[AgentID, dict[str, Any]]:
    """A step of some agents: what the modules saw for each, and all that came of it."""
    lanes = policy._lanes
    policy._make_room(1)
    lanes.seat(agents, rewards)
    lanes.observe(observations, infos, False)
    common, found = policy._common(False), {agent_id: {} for agent_id in agents}
    batch = policy._seen(common)

    def note(when: str, batch: ColumnBatch) -> None:
        for seats, columns in zip(lanes.seats, batch.groups, strict=True):
            for agent_id, own in seats.rows_of_agents():
                for name, column in columns.items():
                    rows = [np.asarray(leaf[own[0]]).copy() for leaf in leaves(column) if hasattr(leaf, "shape")]
                    found[agent_id][f"{when} {name}"] = rows

    note("seen", batch)
    batch = policy._chosen(batch, common)
    note("chosen", batch)
    lanes.record(batch)
    return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether columns are the same but for rounding."""
    if one.keys() != other.keys():
        return False
    for name, rows in one.items():
        if len(rows) != len(other[name]):
            return False
        for a, b in zip(rows, other[name], strict=True):
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
    return True


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
