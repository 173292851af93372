"""The runs that ``differential.py`` compares between two checkouts of the library. They only use the public API.

A case is a function that builds a run, plays and trains, and puts the results into a ``Record``. Environments come from
``marl_envs`` and from the tests' helpers, always those of the checkout that contains this file.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from torch import nn

from helpers.envs.batched_envs import UnlikeWorlds, Worlds
from helpers.envs.gymnasium_envs import Walk, vector_maker
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.envs.spaces_env import SpacesEnv
from marl_connectors import (
    ActionMasking,
    AddInfosFromEpisodesToTrainBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AgentIdEncoding,
    Algorithm,
    Callbacks,
    Columns,
    ComputeReturnsToGo,
    ConnectorV2,
    DefaultPPORLModule,
    DQNConfig,
    FlattenObservations,
    FrameStacking,
    ImageToFloat,
    MADDPGConfig,
    MAPPOConfig,
    MATD3Config,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    MultiRLModule,
    MultiRLModuleSpec,
    NormalizeRewards,
    OneHotObservations,
    PadObservations,
    PPOConfig,
    PPOLearner,
    PrevActionsPrevRewards,
    QMIXConfig,
    RLModule,
    RLModuleSpec,
    SACConfig,
    ScaleRewards,
    SelfSupervisedLossAPI,
    ValueFunctionAPI,
    VDNConfig,
    WriteObservationsToEpisodes,
    load_policy,
    make_env,
)

CASES: dict[str, Callable[[Any], None]] = {}
"""Case name to a function of a ``Record``, in the order of the table."""

REGROUPED: dict[str, str] = {}
"""Patterns of ``case/item`` names (``fnmatch``) whose numbers may differ by more than the tolerance, and the reason.

Add one in the commit that regroups arithmetic, with the largest difference that it makes. These items are still
printed, and differences in shapes or keys still fail.
"""

AGENTS = ("a", "b", "c")
MOVE = spaces.Box(-1.0, 2.0, (2,), np.float32)
ACTIONS = {
    "discrete from 2": spaces.Discrete(3, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": MOVE,
    "Box of a matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "Dict": spaces.Dict([("y", spaces.Discrete(2)), ("b", spaces.Box(-1, 1, (2,)))]),
    "Tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))]),
}
NESTED = spaces.Dict(
    [("z", spaces.Box(-1, 1, (2,))), ("a", spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))]))]
)
OBSERVATIONS = {
    "float64": spaces.Box(-1.0, 1.0, (5,), np.float64),
    "Discrete": spaces.Discrete(4),
    "MultiBinary": spaces.MultiBinary(4),
}


def find(name: str) -> Callable[[Any], None]:
    """Returns the case with a name. ``random 17`` is a configuration that is drawn with the seed 17."""
    if name in CASES:
        return CASES[name]

    def drawn(record: Any) -> None:
        from helpers.runs.random_runs import random_config

        play(record, random_config(int(name.removeprefix("random "))))

    return drawn


# How a case is built and played.


def config_of(env: Any, algorithm: type[PPOConfig] = PPOConfig, *, policies: Any = "shared", **environment: Any) -> Any:
    """Returns PPO with a tiny network, two sub-environments, fragments of five steps and fixed seeds."""
    config = algorithm().environment(env, **environment).rl_module(model_config={"fcnet_hiddens": (4,)})
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=5, num_env_workers=0)
    config.training(train_batch_size_per_learner=20, minibatch_size=8, num_epochs=2, lr=0.01)
    config.learners(num_gpus_per_learner=0).debugging(seed=3)
    return config.multi_agent(policies=policies) if policies is not None else config


def life(**settings: Any) -> Any:
    """Returns a function that makes the parallel environment in which agents may die, join and return."""
    return lambda: LifeEnv(**{"agents": AGENTS, **settings})


def turns(**settings: Any) -> Any:
    """Returns a function that makes the random turn-based environment."""
    return lambda: RandomAEC(**settings)


def play(record: Any, config: Any, *, iterations: int = 3, captures: bool = True) -> None:
    """Samples, trains, samples again and evaluates. With ``captures``, train batches are recorded."""
    if captures:
        record.capture(config)
    algo = record.build(config)
    try:
        sample_and_train(record, algo, iterations)
        record.metrics("evaluation", algo.evaluate(num_episodes=2)["env_runners"])
    finally:
        algo.stop()


def sample_and_train(record: Any, algo: Any, iterations: int, name: str = "") -> None:
    """Samples, trains for some iterations, and samples again."""
    record.episodes(f"{name}first sample", algo.env_runner.sample())
    for number in range(iterations):
        record.stage = f"{name}iteration {number}"
        record.metrics("result", algo.train())
        record.weights(algo)
    record.stage = name
    record.episodes(f"{name}last sample", algo.env_runner.sample())


def case(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Registers a case that does more than ``play``."""

    def register(function: Callable[[Any], None]) -> Callable[[Any], None]:
        CASES[name] = function
        return function

    return register


def runs(name: str, make: Callable[[], Any], **options: Any) -> None:
    """Registers a case that builds a config and plays it."""
    CASES[name] = lambda record: play(record, make(), **options)


def with_pieces(*pieces: Callable[[], Any], learner: Any = (), to_env: Any = (), env: Any = None, **more: Any) -> Any:
    """Returns a config with pieces in the env-to-module, learner and module-to-env pipelines."""
    config = config_of(env or life(join=0.3, die=0.1), **more)
    if pieces:
        config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces])
    if learner:
        config.learners(learner_connector=lambda: [piece() for piece in learner])
    if to_env:
        config.env_runners(module_to_env_connector=lambda: [piece() for piece in to_env])
    return config


# Pieces, callbacks, modules and learners, as users write them.


class Adds(ConnectorV2):
    """A column piece that adds a constant in the batch."""

    def columns(self, c: Any, xp: Any) -> None:
        c.rows.set(Columns.OBS, c.rows.get(Columns.OBS) + np.float32(0.25))


class Counts(ConnectorV2):
    """A stateful column piece: it writes the number of its calls to the observations in the episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def columns(self, c: Any, xp: Any) -> None:
        self.calls += 1
        observations = c.rows.get(Columns.OBS)
        c.rows.set(Columns.OBS, (observations + 0.01 * (self.calls % 7)).astype(observations.dtype))

    def get_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.calls = state["calls"]


class LastReward(ConnectorV2):
    """A column piece that reads earlier steps, module by module, and writes to the episodes."""

    def columns(self, c: Any, xp: Any) -> None:
        c.rows.set("obs", (c["obs"] + c.rows.get("rewards", -1, fill=0.0)[:, None]).astype(np.float32))


class Centred(ConnectorV2):
    """A column piece that reads the observations of all agents of a step."""

    looks_at_other_agents = True

    def columns(self, c: Any, xp: Any) -> None:
        c.rows.set("obs", (c["obs"] - c["obs"].mean(axis=0)).astype(np.float32))


class Reads(ConnectorV2):
    """An item piece that reads each agent's data and changes nothing."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            assert episode.get_observations(-1) is not None
        return batch


class Doubles(ConnectorV2):
    """An item piece that writes to the episodes."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=2 * episode.get_observations(-1), at_indices=-1)
        return batch


class Halves(ConnectorV2):
    """An item piece that writes to the batch."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", episode.get_observations(-1) * np.float32(0.5), episode)
        return batch


class HalvesAll(ConnectorV2):
    """A learner piece on items that writes every observation of each episode to the batch."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            items = [episode.get_observations(i) * np.float32(0.5) for i in range(len(episode))]
            self.add_n_batch_items(batch, "obs", items, len(items), episode)
        return batch


class RunningReturn(ConnectorV2):
    """A learner piece on items that adds a column."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            returns = np.cumsum(episode.get_rewards()).astype(np.float32)
            self.add_n_batch_items(batch, "running_return", list(returns), len(episode), episode)
        return batch


class RewardsInTens(ConnectorV2):
    """A learner piece on columns."""

    def columns(self, c: Any, xp: Any) -> None:
        c["tens"] = np.asarray(c.rows.get("rewards", fill=0.0)) * 10


class KeepsLogits(ConnectorV2):
    """A module-to-env piece on columns that adds a column of its own."""

    def columns(self, c: Any, xp: Any) -> None:
        c["kept"] = np.asarray(c["action_dist_inputs"]).sum(axis=-1)


class Turned(ConnectorV2):
    """A module-to-env piece on items, after which the environment gets other actions than the learner."""

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        if "actions" in batch:
            batch["actions_for_env"] = {
                key: [(np.asarray(item) + 1) % 3 for item in items] for key, items in batch["actions"].items()
            }
        return batch


class Differences(MultiAgentObservationPreprocessor):
    """A preprocessor of the observations of all agents of an environment."""

    def preprocess(self, observations: Any, episode: Any) -> Any:
        mean = np.mean([*observations.values()], axis=0)
        return {agent: (own - mean).astype(np.float32) for agent, own in observations.items()}


class Notes(Callbacks):
    """Callbacks that write to ``custom_data`` of episodes and log values."""

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        episode.custom_data["steps"] = 0

    def on_episode_step(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        episode.custom_data["steps"] = episode.custom_data.get("steps", 0) + 1
        metrics_logger.log_value("seen", len(episode.agent_ids), reduce="sum")

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **kwargs: Any) -> None:
        metrics_logger.log_value("steps", episode.custom_data["steps"], reduce="max")
        metrics_logger.log_value("return", episode.get_return(), reduce="sum")

    def on_sample_end(self, *, samples: Any, metrics_logger: Any, **kwargs: Any) -> None:
        metrics_logger.log_value("chunks", len(samples), reduce="sum")


class Unchanged(DefaultPPORLModule):
    """A subclass that overrides nothing."""


class TwoLayers(RLModule, ValueFunctionAPI):
    """A user's module."""

    def setup(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.body = nn.Linear(self.observation_space.shape[0], 5)
        self.pi, self.vf = nn.Linear(5, int(self.action_space.n)), nn.Linear(5, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        embeddings = torch.relu(self.body(batch["obs"]))
        return {"action_dist_inputs": self.pi(embeddings), "embeddings": embeddings}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        embeddings = torch.relu(self.body(batch["obs"])) if embeddings is None else embeddings
        return self.vf(embeddings).squeeze(-1)


class OwnGRU(RLModule, ValueFunctionAPI):
    """A user's stateful module."""

    def setup(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.rnn = nn.GRU(self.observation_space.shape[0], 3, batch_first=True)
        self.pi, self.vf = nn.Linear(3, int(self.action_space.n)), nn.Linear(3, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))

    def get_initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(3, np.float32)}

    def _embed(self, batch: Any) -> Any:
        embeddings, state = self.rnn(batch["obs"], batch["state_in"]["h"].unsqueeze(0).contiguous())
        return embeddings, {"h": state.squeeze(0)}

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self._embed(batch)
        return {"action_dist_inputs": self.pi(embeddings), "state_out": state}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.vf(self._embed(batch)[0]).squeeze(-1)


class Heads(RLModule, ValueFunctionAPI):
    """Heads on the embeddings of a layer that all modules share."""

    def setup(self) -> None:
        self.pi, self.vf = nn.Linear(4, int(self.action_space.n)), nn.Linear(4, 1)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {"action_dist_inputs": self.pi(batch["embeddings"]), "embeddings": batch["embeddings"]}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.vf(embeddings).squeeze(-1)


class LayersBeside(MultiRLModule):
    """An encoder that all modules share."""

    def setup(self) -> None:
        super().setup()
        self.encoder = nn.Linear(next(iter(self.values())).observation_space.shape[0], 4)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        for columns in batch.values():
            columns["embeddings"] = torch.tanh(self.encoder(columns["obs"]))
        return super()._forward(batch, **kwargs)


class PaysForOutputs(PPOLearner):
    """A learner with a user's loss."""

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any:
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        penalty = fwd_out["action_dist_inputs"].square().mean()
        self.log_terms([module_id], {"penalty": penalty})
        return loss + 0.1 * penalty


class PaysForInfos(PPOLearner):
    """A learner with a loss that reads the infos of the train batch."""

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> Any:
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        total = sum(info.get("n", 0) for info in batch["infos"])
        self.log_terms([module_id], {"told": torch.as_tensor(float(total))})
        return loss * (1 + total / 1000)


class Imitates(DefaultPPORLModule, SelfSupervisedLossAPI):
    """A module with a self-supervised loss."""

    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: Any, fwd_out: Any
    ) -> Any:
        targets = (batch["obs"][:, 0] > 0).long()
        return torch.nn.functional.cross_entropy(fwd_out["action_dist_inputs"], targets)


class WritesSamples(Callbacks):
    """A callback that changes the episodes for the learner."""

    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        for sample in samples:
            for episode in sample.agent_episodes.values():
                if len(episode):
                    episode.set_rewards(new_data=[float(r) + 1 for r in episode.get_rewards()])


class TwoRates(PPOLearner):
    """A learner with a user's optimizers."""

    def configure_optimizers_for_module(self, module_id: str, config: Any) -> None:
        parameters = dict(self.module[module_id].named_parameters())
        values = [p for name, p in parameters.items() if name.startswith("vf")]
        policy = [p for name, p in parameters.items() if not name.startswith("vf")]
        for name, optimizer, own, rate in (
            ("values", torch.optim.SGD(values, lr=0.1), values, [[0, 0.1], [100, 0.01]]),
            ("policy", torch.optim.Adam(policy, lr=1e-3), policy, 1e-3),
        ):
            self.register_optimizer(
                module_id=module_id, optimizer_name=name, optimizer=optimizer, params=own, lr_or_lr_schedule=rate
            )


# Environments that are not among the helpers.


class Fails(LifeEnv):
    """An environment that sometimes raises an error, depending on the reset's seed."""

    def step(self, actions: Any) -> Any:
        if self.rng.random() < 0.08:
            raise RuntimeError("the simulator lost its mind")
        return super().step(actions)


class Stated(LifeEnv):
    """An environment with a state: the last digits of the reset's seed, and the time."""

    state_space = spaces.Box(0.0, np.inf, (2,), np.float64)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.now = np.array([float((seed or 0) % 97) / 97, 0.0])
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        self.now = self.now + np.array([0.0, 1.0])
        return super().step(actions)

    def state(self) -> np.ndarray:
        return self.now


class Images(ParallelEnv):
    """Two agents observe small random pictures."""

    metadata = {"name": "images", "render_modes": []}

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["a", "b"], []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def _observe(self) -> dict[str, np.ndarray]:
        return {a: self.rng.integers(0, 256, (12, 12, 3), np.uint8) for a in self.possible_agents}

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.rng, self.t, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        return self._observe(), {a: {} for a in self.agents}

    def step(self, actions: Any) -> Any:
        self.t += 1
        over, there = self.t >= 6, self.agents
        rewards = {a: float(action) for a, action in actions.items()}
        self.agents = [] if over else there
        return self._observe(), rewards, dict.fromkeys(there, over), dict.fromkeys(there, False), {a: {} for a in there}


class Legal(ParallelEnv):
    """Some actions are forbidden, and raise an error. The mask is in the observation or in the info."""

    metadata = {"name": "legal", "render_modes": []}

    def __init__(self, in_info: bool = False, space: Any = None) -> None:
        self.possible_agents, self.agents, self.in_info = ["a", "b"], [], in_info
        self.space = spaces.Discrete(4) if space is None else space

    @property
    def sizes(self) -> list[int]:
        """The number of values of each choice."""
        return [int(self.space.n)] if isinstance(self.space, spaces.Discrete) else self.space.nvec.tolist()

    def observation_space(self, agent: str) -> spaces.Space:
        seen, masks = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 1, (sum(self.sizes),), np.int8)
        return seen if self.in_info else spaces.Dict({"observation": seen, "action_mask": masks})

    def action_space(self, agent: str) -> spaces.Space:
        return self.space

    def _observe(self) -> Any:
        self.masks, seen, infos = {}, {}, {}
        for agent in self.possible_agents:
            parts = [(self.rng.random(n) < 0.4).astype(np.int8) for n in self.sizes]
            for part in parts:
                part[self.rng.integers(len(part))] = 1
            self.masks[agent] = parts
            mask, own = np.concatenate(parts), self.rng.uniform(-1, 1, 2).astype(np.float32)
            seen[agent] = own if self.in_info else {"observation": own, "action_mask": mask}
            infos[agent] = {"action_mask": mask} if self.in_info else {}
        return seen, infos

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.rng, self.t, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        return self._observe()

    def step(self, actions: Any) -> Any:
        for agent, action in actions.items():
            if not all(own[i] for own, i in zip(self.masks[agent], np.ravel(action), strict=True)):
                raise ValueError(f"{agent} took {action}, which is forbidden")
        self.t += 1
        there, over = self.agents, self.t >= 7
        seen, infos = self._observe()
        self.agents = [] if over else there
        rewards = {a: float(np.sum(action)) for a, action in actions.items()}
        return seen, rewards, dict.fromkeys(there, False), dict.fromkeys(there, over), infos


def make_life(env_config: Mapping[str, Any]) -> Any:
    """Makes the parallel environment. Worker processes need a function with an importable name."""
    return LifeEnv(agents=AGENTS, **env_config)


def make_turns(env_config: Mapping[str, Any]) -> Any:
    """Makes the turn-based environment. Worker processes need a function with an importable name."""
    return RandomAEC(**env_config)


def by_episode(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Maps agents to other modules in each episode."""
    return "xy"[zlib.crc32(f"{agent_id} {episode.id_}".encode()) % 2]


def by_name(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Maps an agent to the module of its name, if there is one."""
    return "old" if agent_id == "a" else "new"


ANYTHING = {"join": 0.3, "die": 0.15, "fixed": False, "max_steps": 11}
ANY_TURNS = {"join": 0.3, "die": 0.1, "back": 0.3, "fixed": False, "max_steps": 15}

# Plain, and spaces.

runs("plain", lambda: config_of(life()))
runs("plain, batches not looked at", lambda: config_of(life()), captures=False)
runs("plain, null_v0", lambda: config_of("marl_envs.null_v0", env_config={"n_agents": 4, "ep_len": 7}))
runs("one agent of one", lambda: config_of(life(agents=("a",))))
runs("many sub-environments", lambda: config_of(life(die=0.1)).env_runners(num_envs_per_env_runner=9))
for _name, _space in ACTIONS.items():
    runs(f"actions: {_name}", lambda space=_space: config_of(lambda: SpacesEnv(BOX, space)))
for _name, _space in OBSERVATIONS.items():
    runs(f"observations: {_name}", lambda space=_space: config_of(lambda: SpacesEnv(space, spaces.Discrete(3))))
runs(
    "observations: Dict, flattened",
    lambda: with_pieces(FlattenObservations, env=lambda: SpacesEnv(NESTED, spaces.Discrete(3))),
)
runs("observations: Dict", lambda: config_of(lambda: SpacesEnv(NESTED, spaces.Discrete(3))))
runs("observations: images", lambda: config_of(Images))
runs("observations: images as floats", lambda: with_pieces(ImageToFloat, env=Images))
runs(
    "agents with unlike spaces",
    lambda: config_of(
        life(
            spaces_of={"b": (spaces.Box(-1, 1, (5,), np.float64), spaces.Discrete(2)), "c": (BOX, MOVE)},
            **ANYTHING,
        ),
        policies="independent",
    ),
)
runs(
    "actions clipped, not normalised",
    lambda: config_of(
        lambda: SpacesEnv(BOX, spaces.Box(-1, 1, (2,), np.float32)), normalize_actions=False, clip_actions=True
    ),
)
runs(
    "squashed actions",
    lambda: config_of(lambda: SpacesEnv(BOX, MOVE)).rl_module(
        model_config={"fcnet_hiddens": (4,), "action_distribution": "squashed_gaussian"}
    ),
)

# Agents that join and leave.

runs("agents die", lambda: config_of(life(die=0.25)))
runs("agents join, die and come back", lambda: config_of(life(**ANYTHING), policies="independent"))
runs("visitors_v0", lambda: config_of("marl_envs.visitors_v0", env_config={"ep_len": 12, "visit_len": 4}))
runs("episodes of one step", lambda: config_of(life(max_steps=1)))
runs("the same arrays in every step", lambda: config_of(life(mutable=True, **ANYTHING)))
runs("turns", lambda: config_of(turns()))
runs("turns, late rewards and deaths", lambda: config_of(turns(**ANY_TURNS), policies="independent"))
runs("turns, paid before they act", lambda: config_of(turns(pays_newcomers=True, dead_next=False, **ANY_TURNS)))
runs("turns, removed at the end", lambda: config_of(turns(clears=True, die=0.1)))
runs("turns, last_stone_v0 with masks", lambda: config_of("marl_envs.last_stone_v0"))
runs("turns, tictactoe", lambda: with_pieces(ActionMasking, FlattenObservations, env="pettingzoo.classic.tictactoe_v3"))

# Other kinds of environments.

runs("Gymnasium, one agent", lambda: config_of("CartPole-v1", policies=None))
runs(
    "Gymnasium, infos and nested observations",
    lambda: config_of(lambda: Walk("dict", "multi", infos=True), policies=None).env_runners(
        env_to_module_connector=lambda: FlattenObservations()
    ),
)
for _mode in ("DISABLED", "NEXT_STEP", "SAME_STEP", "NEXT_STEP wrapped", "SAME_STEP reused arrays"):
    runs(
        f"Gymnasium VectorEnv, {_mode}",
        lambda mode=_mode: config_of(vector_maker(mode), policies=None, env_config={"infos": True}).env_runners(
            num_envs_per_env_runner=3, gym_env_vectorize_mode="vector_entry_point"
        ),
    )
runs(
    "Gymnasium VectorEnv by its entry point",
    lambda: config_of("CartPole-v1", policies=None).env_runners(
        num_envs_per_env_runner=3, gym_env_vectorize_mode="vector_entry_point"
    ),
)
runs("natively batched", lambda: config_of(Worlds).env_runners(num_envs_per_env_runner=4))
runs("natively batched, infos, Box", lambda: config_of(Worlds, env_config={"infos": True, "act": "box"}))
runs(
    "natively batched, unlike agents",
    lambda: with_pieces(FlattenObservations, env=UnlikeWorlds, policies="independent"),
)
runs(
    "natively batched, spread_v0",
    lambda: config_of("marl_envs.spread_v0:batched_env", env_config={"n_agents": 3, "ep_len": 6}),
)
runs(
    "worker processes",
    lambda: config_of("differential_cases:make_life", env_config=ANYTHING).env_runners(
        num_envs_per_env_runner=3, num_env_workers=2
    ),
)
runs(
    "worker processes, turns",
    lambda: config_of("differential_cases:make_turns", env_config=ANY_TURNS).env_runners(
        num_envs_per_env_runner=2, num_env_workers=2
    ),
)
runs(
    "failures with restarts",
    lambda: config_of(lambda: Fails(agents=AGENTS, die=0.1)).fault_tolerance(restart_failed_sub_environments=True),
)

# Masks.

runs("masks in observations", lambda: config_of(Legal))
runs("masks in infos", lambda: config_of(lambda: Legal(in_info=True)))
runs("masks of MultiDiscrete", lambda: config_of(lambda: Legal(space=spaces.MultiDiscrete([3, 2]))))
runs("masked_v0", lambda: config_of("marl_envs.masked_v0"))

# Recurrent modules.

LSTM = {"fcnet_hiddens": (4,), "use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 3}
runs("LSTM, shared", lambda: config_of(life(**ANYTHING)).rl_module(model_config=LSTM))
runs("LSTM, independent", lambda: config_of(life(), policies="independent").rl_module(model_config=LSTM))
runs(
    "GRU, turns",
    lambda: config_of(turns(**ANY_TURNS)).rl_module(model_config={**LSTM, "use_lstm": False, "use_gru": True}),
)
runs("LSTM and a plain module, changing by episode", lambda: _mixed())
runs("stateful module of one's own", lambda: config_of(life(**ANYTHING)).rl_module(rl_module_spec=RLModuleSpec(OwnGRU)))


def _mixed() -> Any:
    specs = {"x": RLModuleSpec(OwnGRU, model_config={"max_seq_len": 3}), "y": RLModuleSpec(TwoLayers)}
    config = config_of(life(**ANYTHING), policies={"x", "y"}).multi_agent(policy_mapping_fn=by_episode)
    return config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


runs("LSTM, masks, turns", lambda: config_of("marl_envs.last_stone_v0").rl_module(model_config=LSTM))
runs(
    "LSTM, filter, last actions and rewards",
    lambda: with_pieces(MeanStdFilter, PrevActionsPrevRewards, FlattenObservations).rl_module(model_config=LSTM),
)
runs(
    "LSTM, natively batched",
    lambda: config_of(Worlds).env_runners(num_envs_per_env_runner=3).rl_module(model_config=LSTM),
)
runs(
    "LSTM, Gymnasium VectorEnv, NEXT_STEP wrapped",
    lambda: (
        config_of(vector_maker("NEXT_STEP wrapped"), policies=None)
        .env_runners(num_envs_per_env_runner=3, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(model_config=LSTM)
    ),
)


def _imitating() -> Any:
    specs = {
        a: RLModuleSpec(Imitates if a == "a" else DefaultPPORLModule, model_config={"fcnet_hiddens": (4,)})
        for a in AGENTS
    }
    config = config_of(life(), policies="independent")
    return config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


# Algorithms with a replay buffer. Agents die, join late and come back.


def replayed(
    name: str,
    algorithm: Any,
    *,
    env: Any = None,
    action: Any = None,
    policies: str = "shared",
    model: Mapping[str, Any] | None = None,
    **training: Any,
) -> None:
    """Registers runs of an algorithm with a replay buffer, in which targets move often."""
    spaces_of = {} if action is None else {"spaces_of": dict.fromkeys(AGENTS, (BOX, action))}

    def make() -> Any:
        config = algorithm().environment(env or life(**spaces_of, **ANYTHING), disable_env_checking=True)
        config.rl_module(model_config={"fcnet_hiddens": (4,), **(model or {})}).multi_agent(policies=policies)
        config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=3, num_env_workers=0)
        config.training(train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=20, tau=0.3)
        config.training(target_network_update_freq=9, **training)
        return config.reporting(min_sample_timesteps_per_iteration=60).debugging(seed=3)

    runs(f"replay: {name}", make, captures=False)


GRU = {"use_gru": True, "gru_cell_size": 3, "max_seq_len": 5}
PRIORITIES = {"type": "PrioritizedTeamReplayBuffer", "capacity": 300}
for _policies in ("shared", "independent"):
    replayed(f"DQN, {_policies}", DQNConfig, policies=_policies, n_step=3)
    replayed(f"DQN, GRU, {_policies}", DQNConfig, policies=_policies, n_step=2, model=GRU, burn_in_len=1)
    replayed(f"VDN, {_policies}", VDNConfig, policies=_policies, td_error_loss_fn="huber")
    replayed(f"QMIX, {_policies}", QMIXConfig, policies=_policies, n_step=2)
    replayed(f"QMIX, GRU, {_policies}", QMIXConfig, policies=_policies, n_step=2, model=GRU, burn_in_len=1)
    for _kind, _space in (("Discrete", spaces.Discrete(3)), ("Box", spaces.Box(-1.0, 1.0, (2,)))):
        replayed(f"SAC, {_kind}, {_policies}", SACConfig, policies=_policies, action=_space, n_step=2)
        replayed(f"MADDPG, {_kind}, {_policies}", MADDPGConfig, policies=_policies, action=_space)
        replayed(f"MATD3, {_kind}, {_policies}", MATD3Config, policies=_policies, action=_space, n_step=2)
replayed("DQN, masks, mean squares", DQNConfig, env=Legal, td_error_loss_fn="mse", double_q=False, dueling=False)
replayed("DQN, equal probabilities", DQNConfig, replay_buffer_config={"type": "EpisodeReplayBuffer"}, minibatch_size=5)
replayed("SAC, masks, one critic", SACConfig, env=Legal, twin_q=False)
replayed("QMIX, priorities, range of n_step", QMIXConfig, replay_buffer_config=PRIORITIES, n_step=(1, 3))
replayed("VDN, masks", VDNConfig, env=Legal, policies="independent")

# Built-in pieces.

runs("MeanStdFilter", lambda: with_pieces(MeanStdFilter))
runs(
    "MeanStdFilter shared by agents, turns",
    lambda: with_pieces(lambda: MeanStdFilter(share_between_agents=True), env=turns(**ANY_TURNS)),
)
runs(
    "FrameStacking",
    lambda: with_pieces(
        lambda: FrameStacking(num_frames=3), learner=[lambda: FrameStacking(num_frames=3, as_learner_connector=True)]
    ),
)
runs(
    "PrevActionsPrevRewards", lambda: with_pieces(lambda: PrevActionsPrevRewards(n_prev_actions=2), FlattenObservations)
)
runs("AgentIdEncoding", lambda: with_pieces(AgentIdEncoding))
runs("OneHotObservations", lambda: with_pieces(OneHotObservations, env=lambda: SpacesEnv(spaces.Discrete(4), MOVE)))
runs(
    "PadObservations",
    lambda: with_pieces(
        PadObservations, env=life(spaces_of={"b": (spaces.Box(-1, 1, (5,), np.float32), spaces.Discrete(3))})
    ),
)
runs("NormalizeRewards", lambda: with_pieces(learner=[NormalizeRewards]))
runs(
    "NormalizeRewards, independent, scaled and clipped",
    lambda: with_pieces(
        learner=[lambda: ScaleRewards(scale=3.0), NormalizeRewards], policies="independent", clip_rewards=True
    ),
)
runs(
    "next observations and returns to go",
    lambda: with_pieces(learner=[AddNextObservationsFromEpisodesToTrainBatch, lambda: ComputeReturnsToGo(gamma=0.9)]),
)
runs(
    "infos in the train batch",
    lambda: with_pieces(learner=[RewardsInTens, AddInfosFromEpisodesToTrainBatch]).learners(learner_class=PaysForInfos),
    captures=False,
)

# Custom pieces and callbacks.

runs("column piece", lambda: with_pieces(Adds))
runs("column piece with a state", lambda: with_pieces(Counts))
runs("column piece by module that looks back", lambda: with_pieces(LastReward, policies="independent"))
runs("column piece that looks at all agents", lambda: with_pieces(Centred))
runs("item piece that reads", lambda: with_pieces(Reads))
runs("item piece that writes episodes", lambda: with_pieces(Doubles))
runs("item piece that writes the batch", lambda: with_pieces(Halves, learner=[HalvesAll]))
runs("item pieces, turns", lambda: with_pieces(Reads, Doubles, env=turns(**ANY_TURNS)))
runs(
    "several pieces of all kinds",
    lambda: with_pieces(
        Adds, Doubles, LastReward, MeanStdFilter, Reads, learner=[RunningReturn, RewardsInTens], to_env=[KeepsLogits]
    ),
)
runs("MultiAgentObservationPreprocessor", lambda: with_pieces(Differences))
runs("batch written back to episodes", lambda: with_pieces(Halves, WriteObservationsToEpisodes))
runs("learner pieces", lambda: with_pieces(learner=[RunningReturn, RewardsInTens], env=turns(**ANY_TURNS)))
runs("module-to-env column piece", lambda: with_pieces(to_env=[KeepsLogits]))
runs("module-to-env item piece", lambda: with_pieces(to_env=[Turned]))
runs("callbacks", lambda: config_of(life(**ANYTHING)).callbacks(Notes))
runs("callback that writes to samples", lambda: config_of(life(**ANYTHING)).callbacks(WritesSamples))
runs("callbacks, turns", lambda: config_of(turns(**ANY_TURNS)).callbacks(Notes))

# Modules, losses, algorithms.

runs("independent", lambda: config_of(life(), policies="independent"))
runs("independent, batches not looked at", lambda: config_of(life(), policies="independent"), captures=False)
runs("independent, one after another", lambda: config_of(life(), policies="independent").learners(stack_modules=False))
runs(
    "modules by a mapping function",
    lambda: config_of(life(**ANYTHING), policies={"x", "y"}).multi_agent(policy_mapping_fn=by_episode),
)
runs(
    "settings of single modules",
    lambda: config_of(life(), policies="independent").rl_module(
        algorithm_config_overrides_per_module={
            "a": {"lr": 0.1, "gamma": 0.5},
            "b": {"use_critic": False, "entropy_coeff": 0.1},
        }
    ),
)
runs(
    "module subclass that overrides nothing",
    lambda: config_of(life(), policies="independent").rl_module(
        rl_module_spec=RLModuleSpec(Unchanged, model_config={"fcnet_hiddens": (4,)})
    ),
)
runs("module of one's own", lambda: config_of(life()).rl_module(rl_module_spec=RLModuleSpec(TwoLayers)))
runs(
    "value function shares layers, silu",
    lambda: config_of(life()).rl_module(
        model_config={"fcnet_hiddens": (4, 4), "fcnet_activation": "silu", "vf_share_layers": True}
    ),
)
runs(
    "layers shared by modules",
    lambda: config_of(life(), policies="independent").rl_module(
        rl_module_spec=MultiRLModuleSpec(
            multi_rl_module_class=LayersBeside, rl_module_specs={a: RLModuleSpec(Heads) for a in AGENTS}
        )
    ),
)
runs("self-supervised loss", lambda: _imitating())
runs(
    "only some modules are trained",
    lambda: config_of(life(), policies="independent").multi_agent(policies_to_train=["a", "c"]),
    captures=False,
)
runs("loss of one's own", lambda: config_of(life(), policies="independent").learners(learner_class=PaysForOutputs))
runs("optimizers of one's own", lambda: config_of(life(), policies="independent").learners(learner_class=TwoRates))
runs(
    "all terms of the loss",
    lambda: config_of(life(**ANYTHING)).training(
        entropy_coeff=[[0, 0.1], [60, 0.0]],
        lr=[[0, 0.01], [60, 0.001]],
        grad_clip=0.3,
        kl_coeff=0.5,
        vf_clip_param=0.5,
        lambda_=0.9,
        gamma=0.9,
    ),
)
runs("MAPPO, joint observations", lambda: config_of(life(**ANYTHING), MAPPOConfig))
runs(
    "MAPPO, joint observations, turns, independent",
    lambda: config_of(turns(**ANY_TURNS), MAPPOConfig, policies="independent"),
)
runs(
    "MAPPO, state", lambda: config_of(lambda: Stated(agents=AGENTS, die=0.1), MAPPOConfig).training(critic_obs="state")
)

# The size of samples.

runs("complete episodes", lambda: config_of(life(**ANYTHING)).env_runners(batch_mode="complete_episodes"))
runs("complete episodes, turns", lambda: config_of(turns(**ANY_TURNS)).env_runners(batch_mode="complete_episodes"))
runs("fragments shorter than episodes", lambda: config_of(life(max_steps=13)).env_runners(rollout_fragment_length=2))
runs("long lookback", lambda: with_pieces(MeanStdFilter).env_runners(episode_lookback_horizon=5))
runs(
    "batches by agent steps",
    lambda: (
        config_of(life(**ANYTHING))
        .multi_agent(count_steps_by="agent_steps")
        .env_runners(rollout_fragment_length="auto")
    ),
)
runs("explore off", lambda: config_of(life(**ANYTHING), policies="independent").env_runners(explore=False))
runs("explore off, turns", lambda: config_of(turns(**ANY_TURNS)).env_runners(explore=False))


@case("samples of every kind")
def _samples(record: Any) -> None:
    algo = record.build(config_of(life(**ANYTHING)))
    runner = algo.env_runner
    record.episodes("steps", runner.sample(num_timesteps=7))
    record.episodes("episodes", runner.sample(num_episodes=3))
    record.episodes("random", runner.sample(num_timesteps=9, random_actions=True))
    record.episodes("greedy", runner.sample(num_timesteps=9, explore=False))
    record.episodes("reset", runner.sample(num_timesteps=9, force_reset=True))
    record.metrics("metrics", runner.get_metrics())
    record.metrics("random play", algo.random_play(num_episodes=3))
    algo.stop()


@case("modules come and go")
def _come_and_go(record: Any) -> None:
    config = config_of(life(), policies={"old"}).multi_agent(
        policy_mapping_fn=lambda agent_id, episode, **kwargs: "old"
    )
    algo = record.build(record.capture(config))
    sample_and_train(record, algo, 1)
    spec = RLModuleSpec(DefaultPPORLModule, model_config={"fcnet_hiddens": (4,)})
    algo.add_module("new", spec, new_agent_to_module_mapping_fn=by_name)
    sample_and_train(record, algo, 2, "added ")
    algo.remove_module("old", new_agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: "new")
    sample_and_train(record, algo, 2, "removed ")
    algo.stop()


def _resumes(record: Any, config: Any) -> None:
    """Resumes a run from a checkpoint in the middle of episodes, and compares it with the uninterrupted run."""
    algo = record.build(config)
    algo.train()
    with tempfile.TemporaryDirectory() as folder:
        path = algo.save_to_path(folder + "/checkpoint")
        resumed = Algorithm.from_checkpoint(path, config=config)
        sample_and_train(record, resumed, 2, "resumed ")
        resumed.stop()
    sample_and_train(record, algo, 2, "not stopped ")
    algo.stop()


@case("resumed in the middle")
def _resumed(record: Any) -> None:
    _resumes(record, with_pieces(MeanStdFilter, Counts, policies="independent"))


@case("resumed in the middle, turns, LSTM")
def _resumed_turns(record: Any) -> None:
    _resumes(record, config_of(turns(**ANY_TURNS)).rl_module(model_config=LSTM))


@case("resumed in the middle, a filter of rewards")
def _resumed_rewards(record: Any) -> None:
    _resumes(record, with_pieces(learner=[NormalizeRewards]).env_runners(rollout_fragment_length=3))


@case("state taken over by another run")
def _state(record: Any) -> None:
    config = with_pieces(MeanStdFilter, policies="independent")
    algo, other = record.build(config), record.build(config.copy())
    for _ in range(2):
        algo.train()
    other.set_state(algo.get_state())
    sample_and_train(record, other, 2)
    algo.stop()
    other.stop()


def _acts(record: Any, config: Any, *, env: Any, explore: bool) -> None:
    """Records the actions of a trained policy, for all agents at once and for one after another."""
    algo = record.build(config)
    algo.train()
    with tempfile.TemporaryDirectory() as folder:
        path = algo.save_to_path(folder + "/checkpoint")
        policies = [load_policy(path, config=config, explore=explore, seed=5) for _ in range(2)]
    algo.stop()
    observations, infos = env.reset(seed=1)
    rewards: dict[Any, float] = {}
    for policy in policies:
        policy.reset()
    for step in range(8):
        data = {"infos": infos, "agent_ids": env.agents, "rewards": rewards}
        record.add(f"all at once, step {step}", actions := policies[0].actions(observations, **data))
        for agent in env.agents:
            own = {"reward": rewards.get(agent, 0.0), "info": infos[agent]}
            record.add(f"one by one, step {step}, {agent}", policies[1](observations[agent], agent, **own))
        observations, rewards, *_, infos = env.step(actions)
        if not env.agents:
            break


@case("policy, explore off")
def _policy(record: Any) -> None:
    _acts(
        record, with_pieces(MeanStdFilter, policies="independent"), env=LifeEnv(agents=AGENTS, die=0.1), explore=False
    )


@case("policy, explore on")
def _policy_explores(record: Any) -> None:
    _acts(record, with_pieces(Adds), env=LifeEnv(agents=AGENTS), explore=True)


@case("policy, LSTM, last actions and rewards")
def _policy_lstm(record: Any) -> None:
    config = with_pieces(PrevActionsPrevRewards, FlattenObservations).rl_module(model_config=LSTM)
    _acts(record, config, env=LifeEnv(agents=AGENTS), explore=True)


@case("policy, many environments")
def _policy_batch(record: Any) -> None:
    algo = record.build(config := config_of("CartPole-v1", policies=None))
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(algo.save_to_path(folder + "/checkpoint"), config=config, explore=True, seed=2)
    algo.stop()
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3)
    observations, _ = envs.reset(seed=1)
    policy.reset()
    for step in range(8):
        record.add(f"step {step}", actions := policy(observations))
        observations, *_ = envs.step(actions)
    envs.close()


@case("policy, turns")
def _policy_turns(record: Any) -> None:
    algo = record.build(config := config_of("marl_envs.last_stone_v0"))
    algo.train()
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(algo.save_to_path(folder + "/checkpoint"), config=config)
    algo.stop()
    env = make_env("marl_envs.last_stone_v0:env")
    env.reset(seed=3)
    policy.reset()
    for step, agent in enumerate(env.agent_iter()):
        observation, reward, terminated, truncated, info = env.last()
        over = terminated or truncated
        action = None if over else policy(observation, agent, reward=reward, info=info)
        record.add(f"turn {step}, {agent}", action)
        env.step(action)
