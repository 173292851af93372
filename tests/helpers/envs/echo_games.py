"""Games in which every observation is unique, modules whose actions say which observation they answer, and a referee.

An observation is a *number* that no other agent, step or copy gets. A module answers it with an action that holds the
number and the module's own. The environment pays the number for it. So whatever is mixed up on the way (rows, lanes,
agents, modules, copies, steps) makes an action, a reward or a recorded item that does not fit.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import PPOConfig, RLModule, RLModuleSpec
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import env_to_module_pipeline, module_to_env_pipeline
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.seeding import derived_seed
from marl_connectors.trees import tree_map

N, START = 1009, 7
WIDE = spaces.Box(-np.inf, np.inf, (2,), np.float32)
WIDER = spaces.Box(-np.inf, np.inf, (3,), np.float32)
KINDS = (
    (WIDE, WIDE),
    (WIDER, WIDE),
    (WIDE, spaces.Discrete(N, start=START)),
    (spaces.Dict({"x": WIDE, "y": WIDER}), WIDE),
)
"""Observation and action spaces."""
MODULES_OF_A_KIND = 3


def stable_hash(*parts: Any) -> int:
    """The same in every process."""
    return zlib.crc32(repr(parts).encode())


def kind_of(agent: Any, kinds: int) -> int:
    return stable_hash("kind", agent) % kinds


def module_number(agent: Any, episode_number: int, kinds: int) -> int:
    """Which module acts for an agent in an episode."""
    return MODULES_OF_A_KIND * kind_of(agent, kinds) + stable_hash(agent, episode_number) % MODULES_OF_A_KIND


def module_id(number: int) -> str:
    return f"m{-number % 97}"  # not in the order of the numbers


def observation(number: int, kind: int) -> Any:
    if kind == 3:
        return {"x": observation(number, 0), "y": observation(number, 1)}
    return np.resize(np.array([number, -number], np.float32), KINDS[kind][0].shape)


def number_of(observation: Any) -> int:
    """The number in an observation."""
    return int((observation["x"] if isinstance(observation, dict) else observation)[0])


def answer(number: int, module: int, kind: int) -> Any:
    """The action of a module, as it is recorded."""
    return (number + 13 * module) % N if kind == 2 else np.array([number, module], np.float32)


class EchoModule(RLModule):
    """Answers with the observation's number and its own."""

    def setup(self):
        self.layer = torch.nn.Linear(1, 1)  # optimizers want parameters

    def _forward(self, batch, **kwargs):
        observations, number = batch["obs"], self.model_config["number"]
        numbers = (observations["x"] if isinstance(observations, dict) else observations)[:, 0]
        if isinstance(self.action_space, spaces.Discrete):
            actions = (numbers.long() + 13 * number) % N
        else:
            actions = torch.stack([numbers, torch.full_like(numbers, number)], 1)
        return {"actions": actions, "note": 2 * numbers + number}


@dataclass
class Rules:
    """What games are like.

    Attributes:
        agents: The possible agents.
        kinds: How many of ``KINDS`` there are.
        join: Chance of each absent agent to join (or come back) in a step.
        die: Chance of each live agent to end in a step.
        strangers: Chance that an agent with a new id joins in a step.
        lengths: Least and greatest number of steps.
        ordered: Whether agents stand in the same order everywhere.
    """

    agents: list[Any]
    kinds: int = 1
    join: float = 0.0
    die: float = 0.0
    strangers: float = 0.0
    lengths: tuple[int, int] = (3, 9)
    ordered: bool = False


@functools.cache
def episode_numbers(run_seed: int) -> dict[int, int]:
    """The number of the episode that begins with each seed of a run."""
    places = itertools.product(range(4), range(1000))
    return {derived_seed(run_seed, "env", copy, number): number for copy, number in places}


class EchoGame(ParallelEnv):
    """Hands out numbers, and writes down whoever answers another one's."""

    metadata = {"name": "echo", "render_modes": []}

    def __init__(self, rules: Rules, numbers: Any, wrong: list[str], run_seed: int = 0):
        self.rules, self.numbers, self.wrong, self.run_seed = rules, numbers, wrong, run_seed
        self.possible_agents = list(rules.agents)
        self.agents: list[Any] = []
        self.episode = -1
        self.open: dict[Any, int] = {}

    def observation_space(self, agent):
        return KINDS[kind_of(agent, self.rules.kinds)][0]

    def action_space(self, agent):
        return KINDS[kind_of(agent, self.rules.kinds)][1]

    def _shuffled(self, items):
        items = list(items)
        return items if self.rules.ordered else [items[i] for i in self.rng.permutation(len(items))]

    def _observe(self, agents):
        found = {}
        for agent in self._shuffled(agents):
            self.open[agent] = next(self.numbers)
            found[agent] = observation(self.open[agent], kind_of(agent, self.rules.kinds))
        return found

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.episode = episode_numbers(self.run_seed).get(seed, self.episode + 1)
        self.t, self.length = 0, int(self.rng.integers(*self.rules.lengths, endpoint=True))
        self.open = {}
        few = self.rules.join > 0 and self.rng.random() < 0.5
        chosen = [a for a in self.possible_agents if not few or self.rng.random() < 0.6]
        self.agents = self._shuffled(chosen or self.possible_agents[:1])
        return self._observe(self.agents), {}

    def step(self, actions):
        self.t += 1
        if set(actions) != set(self.agents):
            self.wrong.append(f"{sorted(map(repr, actions))} act, but {sorted(map(repr, self.agents))} are there")
        rewards = {agent: self._paid(agent, action) for agent, action in actions.items() if agent in self.agents}
        acting, over = list(self.agents), self.t >= self.length
        ends = {agent for agent in acting if over or self.rng.random() < self.rules.die}
        self.agents = [agent for agent in acting if agent not in ends]
        if self.agents:
            absent = [agent for agent in self.possible_agents if agent not in acting]
            self.agents += [agent for agent in absent if self.rng.random() < self.rules.join]
            if self.rng.random() < self.rules.strangers:
                self.agents.append(("stranger", next(self.numbers)))
        unseen = {agent for agent in ends if self.rng.random() < 0.2}
        observations = self._observe([agent for agent in dict.fromkeys([*acting, *self.agents]) if agent not in unseen])
        truncated = {agent: agent in ends and (over or self.rng.random() < 0.5) for agent in acting}
        return (
            observations,
            {agent: rewards[agent] for agent in self._shuffled(rewards)},
            {agent: agent in ends and not truncated[agent] for agent in self._shuffled(acting)},
            truncated,
            {},
        )

    def _paid(self, agent, action):
        number, kinds = self.open[agent], self.rules.kinds
        module, kind = module_number(agent, self.episode, kinds), kind_of(agent, kinds)
        expected = answer(number, module, kind) + (START if kind == 2 else 0)
        if not np.array_equal(action, expected):
            self.wrong.append(f"episode {self.episode}, t={self.t}, {agent!r}: {action} instead of {expected}")
        return float(number)


@dataclass
class EchoRun:
    """A runner of echo games, and all that went wrong in it."""

    runner: Any
    rules: Rules
    wrong: list[str] = field(default_factory=list)
    num_steps: int = 0

    def sample(self, **options):
        """Takes a sample and looks at what was recorded."""
        recorded: dict[str, set] = defaultdict(set)
        for chunk in self.runner.sample(**options):
            for life in chunk.all_agent_episodes():
                self._look_at(chunk, life)
                recorded[chunk.id_].add(life.id_)
        return recorded

    def _look_at(self, chunk, life):
        agent, kinds = life.agent_id, self.rules.kinds
        kind, module = kind_of(agent, kinds), module_number(agent, int(chunk.id_.split("-")[1]), kinds)
        if life.module_id != module_id(module):
            self.wrong.append(f"{life.id_}: acts by {life.module_id}, not by {module_id(module)}")
        rewards, actions = life.get_rewards(), life.get_actions()
        notes = life.get_extra_model_outputs("note") if len(life) else []
        for i in range(len(life)):
            self.num_steps += 1
            number = number_of(life.get_observations(i))
            if not np.array_equal(actions[i], answer(number, module, kind)):
                self.wrong.append(f"{life.id_}, step {i}: {actions[i]} is recorded for {number} and module {module}")
            if rewards[i] != number:
                self.wrong.append(f"{life.id_}, step {i}: {rewards[i]} is recorded for {number}")
            if notes[i] != 2 * number + module:
                self.wrong.append(f"{life.id_}, step {i}: the module's note {notes[i]} is recorded for {number}")


def on_items(piece: ConnectorV2) -> ConnectorV2:
    """The same piece without its column form; the last one gives what no column can hold, and stays as it is."""
    cls = type(piece)
    if cls is not ListifyDataForVectorEnv:
        piece.__class__ = type(cls.__name__, (cls,), {"__call__": lambda self, **kwargs: cls.__call__(self, **kwargs)})
    return piece


def echo_run(rules: Rules, *, num_envs: int = 2, items: bool = False, lookback: int = 1, seed: int = 0) -> EchoRun:
    """A runner for games with these rules, its default pieces on columns or on items."""
    numbers, wrong = itertools.count(1), []
    specs = {
        module_id(number): RLModuleSpec(
            module_class=EchoModule,
            observation_space=KINDS[number // MODULES_OF_A_KIND][0],
            action_space=KINDS[number // MODULES_OF_A_KIND][1],
            model_config={"number": number},
        )
        for number in range(MODULES_OF_A_KIND * rules.kinds)
    }
    config = (
        PPOConfig()
        .environment(lambda config: EchoGame(rules, numbers, wrong, seed), disable_env_checking=True)
        .multi_agent(
            policies=specs,
            policy_mapping_fn=lambda agent, episode, **kwargs: module_id(
                module_number(agent, int(episode.id_.split("-")[1]), rules.kinds)
            ),
        )
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=4, episode_lookback_horizon=lookback)
        .debugging(seed=seed)
    )
    if items:
        config.env_runners(
            env_to_module_connector=lambda env: list(map(on_items, env_to_module_pipeline(multi_agent=True))),
            add_default_connectors_to_env_to_module_pipeline=False,
            module_to_env_connector=lambda env: list(map(on_items, module_to_env_pipeline(multi_agent=True))),
            add_default_connectors_to_module_to_env_pipeline=False,
        )
    return EchoRun(config.build_algo().env_runner, rules, wrong)


# Without an environment: lanes in any order, and the modules.


def echo_modules(kinds):
    """All modules of the echo games, in an order that is not that of their numbers."""
    modules = MultiRLModule()
    for number in sorted(range(MODULES_OF_A_KIND * kinds), key=lambda n: n * 7 % 5):
        spaces_of = KINDS[number // MODULES_OF_A_KIND]
        modules.add_module(module_id(number), EchoModule(*spaces_of, model_config={"number": number}))
    return modules


def lanes_of(table, kinds):
    """For each kind of agents a rollout in which they have lanes in the table's order, and their episodes."""
    parts, numbers = [], iter(range(1, 10_000))
    for kind in range(kinds):
        own = [entry for entry in table if kind_of(entry[1], kinds) == kind]
        rollout = Rollout(*KINDS[kind], num_rows=4, num_lanes=len(own))
        for lane, (number, agent, acts, last_row) in enumerate(own):
            for row in range(last_row + 1):
                here = slice(row * len(own) + lane, row * len(own) + lane + 1)
                seen = tree_map(lambda leaf: np.asarray(leaf)[None], observation(next(numbers), kind))
                rollout.observe(here, seen, 10 - (last_row - row) - (not acts))
            rollout.cursor[lane] = last_row * len(own) + lane
            parts.append(
                SingleAgentEpisode.from_storage(
                    LaneStorage(rollout, lane, first_row=0, start_row=0),
                    id_=f"0-{number}/{agent}",
                    agent_id=agent,
                    module_id=module_id(module_number(agent, number, kinds)),
                    multi_agent_episode_id=f"0-{number}",
                    observation_space=KINDS[kind][0],
                    action_space=KINDS[kind][1],
                )
            )
    return parts


def games_of(parts):
    """The multi-agent episodes, at env step 10."""
    ids = dict.fromkeys(part.multi_agent_episode_id for part in parts)
    own = {id_: {part.agent_id: part for part in parts if part.multi_agent_episode_id == id_} for id_ in ids}
    return [MultiAgentEpisode.from_agent_episodes(id_, own[id_], env_t_started=0, env_t=10) for id_ in ids]


def column_groups(parts, table, modules):
    """Rows of the acting agents, by module, straight from the lanes."""
    acting = {(f"0-{number}", agent) for number, agent, acts, _ in table if acts}
    order, groups = list(modules.keys()), []
    for rollout in {id(part.storage.rollout): part.storage.rollout for part in parts}.values():
        own = [p for p in parts if p.storage.rollout is rollout and (p.multi_agent_episode_id, p.agent_id) in acting]
        own.sort(key=lambda part: order.index(part.module_id))
        if not own:
            continue
        here = np.array([rollout.cursor[part.storage.lane] for part in own])
        present = [m for m in order if any(part.module_id == m for part in own)]
        splits = np.cumsum([0] + [sum(part.module_id == m for part in own) for m in present]).tolist()
        rows = Rows(
            (RowPart(rollout, here, here % rollout.num_lanes, here),),
            module_ids=tuple(present),
            splits=tuple(splits),
            episodes=own,
            counts=[1] * len(own),
        )
        groups.append(ColumnGroup(rows))
    return groups


def expected_action(part, kinds, start=0):
    number, module = number_of(part.get_observations(-1)), int(part.id_.split("/")[0].split("-")[1])
    kind = kind_of(part.agent_id, kinds)
    return answer(number, module_number(part.agent_id, module, kinds), kind) + (start if kind == 2 else 0)
