"""The lanes in which a Policy's agents act: what it remembers of the steps so far."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.algorithms.observation_batches import as_batch, infos_of_copies
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.env_runners.agent_modules import ask_mapping
from marl_connectors.env_runners.lane_table import Lane, LaneGroup, LaneTable
from marl_connectors.episodes.agent_views import agent_episode_id
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import MappingError
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.seeding import stream, torch_stream
from marl_connectors.spaces import describe
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID, Tree

_CUT_AFTER = 256
"""Steps after which what lies further back than the lookback is forgotten."""


@dataclass(slots=True)
class Seats:
    """The agents of a group that act in a call.

    Attributes:
        group: Where their lanes are.
        agents: Who, in the order in which the caller names them.
        rows: ``[A * B]`` the group's row of each agent and environment; -1 where the agent is in another group, as it
            acts by a module of another kind there.
        order: ``[rows]`` the agent and environment of each row; None if they stand in the same order.
    """

    group: LaneGroup
    agents: list[AgentID]
    rows: np.ndarray
    order: np.ndarray | None

    def rows_of_agents(self) -> Iterator[tuple[AgentID, np.ndarray]]:
        """Each agent with its ``[B]`` rows."""
        return zip(self.agents, self.rows.reshape(len(self.agents), -1), strict=True)


_BLOCK = 128
"""Steps for which random numbers are drawn at once."""


class AgentNoise:
    """The random numbers behind a Policy's sampled actions: of each agent in each environment its own.

    They follow from the seed, the environment's place in the batch, the agent, and how often the agent has acted. So
    nobody draws other numbers because of others, who act before, after or beside it, in whatever order.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._seats: list[Seats] = []
        self._steps: dict[AgentID, int] = {}
        self._blocks: dict[tuple[AgentID, type[Distribution], int], tuple[tuple[int, int], np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the numbers, which follow from the seed and the steps."""
        return {**vars(self), "_blocks": {}}

    def place(self, seats: list[Seats]) -> None:
        """Says who acts."""
        self._seats = seats

    def acted(self) -> None:
        """Those who act have done so."""
        for agent_id in {agent_id for seats in self._seats for agent_id in seats.agents}:
            self._steps[agent_id] = self._steps.get(agent_id, 0) + 1

    def for_rows(self, columns: ColumnGroup, dist_cls: type[Distribution]) -> torch.Tensor | None:
        """``[B, k]`` noise for this step; None if the distribution takes none."""
        inputs = columns["action_dist_inputs"]
        seats = next(seats for seats in self._seats if seats.group.rows is columns.rows)
        noise: np.ndarray | None = None
        for agent_id, own in seats.rows_of_agents():
            values = self._draw(agent_id, len(own), dist_cls, inputs.shape[-1])
            if values is None:
                return None
            if noise is None:
                noise = np.empty((len(columns.rows), values.shape[-1]), values.dtype)
            here = own >= 0
            noise[own[here]] = values[here]
        assert noise is not None
        return torch.from_numpy(noise).to(inputs.device)

    def _draw(self, agent_id: AgentID, copies: int, dist_cls: type[Distribution], num_inputs: int) -> np.ndarray | None:
        """``[B, k]`` what an agent draws in all environments in its next step."""
        number, within = divmod(self._steps.get(agent_id, 0), _BLOCK)
        kind, key = (number, copies), (agent_id, dist_cls, num_inputs)
        known = self._blocks.get(key)
        if known is None or known[0] != kind:
            name = repr(agent_id), f"{dist_cls.__name__} of {num_inputs}", number
            drawn = [
                dist_cls.noise(stream(self.seed, "policy", index, *name), (_BLOCK,), num_inputs)
                for index in range(copies)
            ]
            if any(values is None for values in drawn):
                return None
            known = self._blocks[key] = kind, np.stack(drawn)  # type: ignore[arg-type]
        return known[1][:, within]

    @contextmanager
    def torch_stream(self) -> Iterator[None]:
        """For distributions that draw from torch's generator: makes it that of those who act, at their steps."""
        acting = sorted({repr((a, self._steps.get(a, 0))) for seats in self._seats for a in seats.agents})
        with torch_stream(self.seed, "torch actions", *acting):
            yield


class _Before(NamedTuple):
    """What a call finds, for the case that it fails.

    Attributes:
        num_copies: How many environments there were.
        t: The last step.
        lanes: Those of the agents.
    """

    num_copies: int
    t: int
    lanes: LaneTable


class PolicyLanes:
    """A lane for each agent of each environment that observations come from.

    Unlike a runner, a Policy is called: an agent's row is closed, and paid for, when its next observation comes.

    Attributes:
        num_copies: How many environments there are; 0 before the first observation.
        seats: Those who act now, by group.
    """

    def __init__(
        self,
        agent_spaces: Mapping[AgentID, tuple[Space, Space]],
        rl_module: MultiRLModule,
        env_to_module: EnvToModulePipeline,
        policy_mapping_fn: PolicyMappingFn,
        noise: AgentNoise,
        *,
        single_agent: bool,
        lookback: int,
    ):
        """As Policy has them; ``noise`` is told where whose rows are."""
        self._spaces = agent_spaces
        self._rl_module = rl_module
        self._env_to_module = env_to_module
        self._mapping = policy_mapping_fn
        self._noise = noise
        self._single_agent = single_agent
        self._lookback = lookback
        self._fitting: set[tuple[AgentID, ModuleID]] = set()
        self._episode_numbers: dict[int, int] = {}
        self._like: dict[AgentID, AgentID] = {}
        self.restart(0)
        self.begin_call()

    def begin_call(self) -> None:
        """From here on, all that is done can be undone by ``take_back``."""
        self._before = _Before(self.num_copies, self._t, self._lanes)
        self._moved: list[tuple[LaneGroup, Any]] = []
        self._opened: list[Lane] = []
        self._begun: list[int] = []

    def take_back(self) -> None:
        """Forgets a call that failed: what is remembered is what it was before, of its agents and all others."""
        before, self._acting, self._t = self._before, (), self._before.t
        for index in self._begun:
            self._episode_numbers[index] -= 1
        if self._lanes is not before.lanes or not before.num_copies:
            self.restart(before.num_copies)
            return
        for group, numbers in self._moved:
            group.go_back(numbers)
        for lane in reversed(self._opened):
            self._lanes.close(lane.env_index, [lane.agent_id])
            episode = self._episodes[lane.env_index]
            if episode is not None:
                episode.detach(lane.agent_id)
        for index in self._begun:
            self._episodes.pop(index)

    def know_agent(self, agent_id: AgentID, like: AgentID) -> None:
        """An agent that nobody has announced has the spaces of another one."""
        self._like[agent_id] = like

    def restart(self, num_copies: int) -> None:
        """Forgets all steps; from now on there are so many environments."""
        self.num_copies = num_copies
        self.seats: list[Seats] = []
        self._acting: tuple[AgentID, ...] = ()
        self._lanes = LaneTable(num_copies, self._spaces_of, self._rl_module, self._lookback)
        self._episodes: dict[int, MultiAgentEpisode | None] = {}
        self._t = 0

    def _spaces_of(self, agent_id: AgentID) -> tuple[Space, Space]:
        return self._spaces[agent_id]

    def restart_copy(self, index: int, agent_ids: Collection[AgentID] | None = None) -> None:
        """Forgets the steps in one environment; of some agents only, if they are named."""
        self._acting = ()
        lanes = self._lanes.by_env[index]
        leaving = [agent_id for agent_id in lanes if agent_ids is None or agent_id in agent_ids]
        for agent_id in leaving:
            lanes[agent_id].end_episode(int(lanes[agent_id].group.rollout.cursor[lanes[agent_id].number]), False, True)
        self._lanes.close(index, leaving)
        if agent_ids is None:
            self._episodes.pop(index, None)

    def seat(self, agents: list[AgentID], rewards: Mapping[AgentID, Any] | None) -> None:
        """Brings the lanes of those who act now to the rows of their new observations. A hot path."""
        self._t += 1
        if tuple(agents) == self._acting:
            for seats in self.seats:
                self._go_on(seats.group, self._numbers(seats), self._paid(seats, rewards))
                seats.group.locate()
                seats.group.t += 1
            return
        self._acting = tuple(agents)
        waiting = self._open(agents)
        for group in self._lanes.groups:
            own = [(lane.number, lane) for lane in waiting if lane.group is group]
            if own:
                paid = [self._reward_of(lane.agent_id, lane.env_index, rewards) for _, lane in own]
                self._go_on(group, [number for number, _ in own], paid)
        self._arrange(agents)

    def _go_on(self, group: LaneGroup, numbers: Any, rewards: Any) -> None:
        group.go_on(numbers, rewards)
        self._moved.append((group, numbers))

    def _open(self, agents: list[AgentID]) -> list[Lane]:
        """Gives new agents lanes; those of the others, which wait."""
        lanes, waiting = self._lanes, []
        modules = [{} for _ in range(self.num_copies)]
        for index in range(self.num_copies):
            if index not in self._episodes:
                self._begun.append(index)
                self._episodes[index] = self._new_episode(index)
            episode = self._episodes[index]
            if episode is not None:
                episode.env_t = self._t - 1
            for agent_id in agents:
                lane = lanes.by_env[index].get(agent_id)
                if lane is None:
                    modules[index][agent_id] = self._module_for(index, agent_id)
                else:
                    waiting.append(lane)
        if not waiting and not lanes.groups:
            lanes.make_room(modules)
        for index, joining in enumerate(modules):
            episode = self._episodes[index]
            for agent_id, module_id in joining.items():
                lane = lanes.open(index, agent_id, module_id)
                lane.begin()
                if episode is None:
                    lane.view(f"{index}-{self._episode_numbers[index]}")
                else:
                    id_ = agent_episode_id(episode.id_, agent_id, self._t)
                    episode.attach(agent_id, lane.view(id_, agent_id, module_id, episode.id_))
                self._opened.append(lane)
        return waiting

    def _new_episode(self, index: int) -> MultiAgentEpisode | None:
        number = self._episode_numbers[index] = self._episode_numbers.get(index, -1) + 1
        if self._single_agent:
            return None
        return MultiAgentEpisode.from_agent_episodes(
            f"{index}-{number}", {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=self._mapping
        )

    def _module_for(self, index: int, agent_id: AgentID) -> str:
        episode = self._episodes[index]
        module_id = DEFAULT_MODULE_ID if episode is None else ask_mapping(episode, agent_id)
        if module_id not in self._rl_module:
            raise MappingError(
                f"policy: agent {agent_id!r} maps to module {module_id!r}, but there are only "
                f"{', '.join(map(repr, self._rl_module))}. Pass module_id=... or policy_mapping_fn=... to load_policy."
            )
        if (agent_id, module_id) not in self._fitting:
            self._check_fit(agent_id, module_id)
            self._fitting.add((agent_id, module_id))
        return module_id

    def _check_fit(self, agent_id: AgentID, module_id: str) -> None:
        module, pipeline = self._rl_module[module_id], self._env_to_module
        for kind, space, of_all in (
            ("observations", module.observation_space, pipeline.observation_space),
            ("actions", module.action_space, pipeline.action_space),
        ):
            own = of_all if self._single_agent else of_all[self._like.get(agent_id, agent_id)]  # type: ignore[index]
            if space is not None and own is not None and describe(space) != describe(own):
                raise MappingError(
                    f"policy: agent {agent_id!r} is to act by module {module_id!r}, whose {kind} are "
                    f"{describe(space)}, but the agent's are {describe(own)}. Choose a module that fits."
                )

    def _arrange(self, agents: list[AgentID]) -> None:
        self.seats = []
        self._lanes.arrange()
        for group in self._lanes.groups:
            present = {lane.agent_id for lane in group.acting}
            if not present:
                continue
            own = [agent_id for agent_id in agents if agent_id in present]
            place = {agent_id: i * self.num_copies for i, agent_id in enumerate(own)}
            order = np.array([place[lane.agent_id] + lane.env_index for lane in group.acting])
            rows = np.full(len(own) * self.num_copies, -1)
            rows[order] = np.arange(len(order))
            in_order = np.array_equal(order, np.arange(len(rows)))
            self.seats.append(Seats(group, own, rows, None if in_order else order))
            group.t = np.full(len(order), self._t - 1, np.int32)
        self._noise.place(self.seats)

    def _numbers(self, seats: Seats) -> Any:
        numbers = seats.group.numbers
        return np.arange(seats.group.rollout.num_lanes) if numbers is None else numbers

    def _paid(self, seats: Seats, rewards: Mapping[AgentID, Any] | None) -> Any:
        """``[rows]`` rewards; NaN where none is given."""
        if not rewards:
            return np.nan
        paid = np.concatenate([np.broadcast_to(rewards.get(a, np.nan), self.num_copies) for a in seats.agents])
        return paid if seats.order is None else paid[seats.order]

    def _reward_of(self, agent_id: AgentID, index: int, rewards: Mapping[AgentID, Any] | None) -> float:
        reward = np.asarray((rewards or {}).get(agent_id, np.nan))
        return float(reward if reward.ndim == 0 else reward[index])

    def observe(self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any] | None, is_batch: bool) -> None:
        """Writes observations and infos to the newest rows."""
        for seats in self.seats:
            group, rollout = seats.group, seats.group.rollout
            space = rollout.observation_space
            parts = [as_batch(space, observations[agent_id], is_batch) for agent_id in seats.agents]
            values: Tree = parts[0] if len(parts) == 1 else tree_map(lambda *of_each: np.concatenate(of_each), *parts)
            if seats.order is not None:
                order = seats.order
                values = tree_map(lambda leaf, order=order: leaf[order], values)
            rollout.observe(group.positions, values, group.t)
            if infos:
                self._note_infos(seats, infos, is_batch)

    def _note_infos(self, seats: Seats, infos: Mapping[AgentID, Any], is_batch: bool) -> None:
        rollout = seats.group.rollout
        numbers = self._numbers(seats)
        for agent_id, own in seats.rows_of_agents():
            given = infos.get(agent_id)
            if not given:
                continue
            for row, info in zip(own.tolist(), infos_of_copies(given, len(own), is_batch), strict=True):
                if info and row >= 0:
                    rollout.infos[int(rollout.cursor[numbers[row]])] = dict(info)

    def episodes(self) -> list[Any]:
        """The episodes of all environments."""
        found = []
        for index in range(self.num_copies):
            episode = self._episodes[index]
            if episode is None:
                found.append(next(iter(self._lanes.by_env[index].values())).episode)
            else:
                episode.env_t = self._t - 1
                found.append(episode)
        return found

    def groups(self) -> list[ColumnGroup]:
        """The rows of those who act, for a pipeline."""
        return [ColumnGroup(seats.group.rows) for seats in self.seats]

    def record(self, batch: ColumnBatch) -> None:
        """Keeps what was chosen; these agents wait for their next observations from now on."""
        for seats, columns in zip(self.seats, batch.groups, strict=True):
            columns.record_in(seats.group.rollout, seats.group.positions)
            seats.group.rollout.pending[self._numbers(seats)] = True
        self._noise.acted()
        if max(seats.group.last_row for seats in self.seats) - self._lookback >= _CUT_AFTER:
            self._cut()

    def _cut(self) -> None:
        """Forgets all but the lookback, so that an episode may go on for ever."""
        for group in self._lanes.groups:
            numbers = np.array([lane.number for lane in group.lanes], np.int64)
            last_rows = np.array([lane.row for lane in group.lanes], np.int64)
            group.restart(_CUT_AFTER)
            group.continue_episodes(numbers, last_rows, np.zeros(len(numbers)))
            for lane in group.lanes:
                lane.continue_episode()
        for index, former in self._episodes.items():
            if former is not None:
                self._episodes[index] = successor = MultiAgentEpisode.from_agent_episodes(
                    former.id_,
                    {agent_id: lane.episode for agent_id, lane in self._lanes.by_env[index].items()},
                    env_t_started=self._t,
                    env_t=self._t,
                    agent_to_module_mapping_fn=self._mapping,
                )
                successor.remember_from(former)
