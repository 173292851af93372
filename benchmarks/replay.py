"""Measures replay buffers and their algorithms: memory, the cost of drawing, and updates beside a bare loop.

The bare loop does the same work as one update of DQN, written by hand: it draws rows of plain arrays, computes the loss
of double Q-learning with a target network, and steps Adam. One with priorities also keeps a binary tree of sums, and
another one does the work of SAC, with three losses and three optimizers. A fourth one does that of QMIX or VDN for a
team of three agents with one network. Each runs in turn with ours, and the median of their ratios is printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from marl_connectors import (
    DQNConfig,
    EpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
    QMIXConfig,
    SACConfig,
    SingleAgentEpisode,
    VDNConfig,
)
from marl_connectors.algorithms.qmix.mixing import QMixer, VDNMixer

RESULTS = Path(__file__).parent / "results" / "replay.json"
OBS, ACTIONS, BATCH, HIDDEN = 18, 5, 256, 64
LENGTH = 50
AGENTS = 3
TEAM_ROWS = 20_000


def episodes(rows: int, rng: np.random.Generator, *, boxes: bool = False) -> list[SingleAgentEpisode]:
    """Returns finished episodes with this many steps, with Discrete actions or with those of a Box."""
    made = []
    for i in range(rows // LENGTH):
        observations = rng.normal(size=(LENGTH + 1, OBS)).astype(np.float32)
        made.append(
            SingleAgentEpisode(
                id_=f"e{i}",
                observations=list(observations),
                actions=list(
                    rng.uniform(-1, 1, (LENGTH, ACTIONS)).astype(np.float32)
                    if boxes
                    else rng.integers(ACTIONS, size=LENGTH)
                ),
                rewards=list(rng.normal(size=LENGTH)),
                terminated=True,
                len_lookback_buffer=0,
            ).to_numpy()
        )
    return made


def filled(cls: Any, rows: int) -> Any:
    """Returns a full buffer."""
    buffer, rng = cls(rows), np.random.default_rng(0)
    own = episodes(5_000, rng)
    for part in range(-(-rows // 5_000) + 1):
        for i, episode in enumerate(own):
            episode.id_ = f"{part}/{i}"
        buffer.add(own)
    return buffer


def seconds(function: Callable[[], Any], repeats: int) -> float:
    """Returns the CPU time of the fastest tenth of calls, to which other programs on the machine add least."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return float(np.quantile(found, 0.1))


def raw_bytes(rows: int) -> int:
    """Returns the size of plain arrays: obs, new_obs, actions, rewards, terminated and truncated."""
    return rows * (2 * 4 * OBS + 8 + 8 + 2)


class BareLoop:
    """Double Q-learning by hand, on arrays of transitions."""

    def __init__(self, rows: int):
        rng = np.random.default_rng(0)
        self.rng = rng
        self.obs, self.new_obs = (rng.normal(size=(rows, OBS)).astype(np.float32) for _ in range(2))
        self.actions, self.rewards = rng.integers(ACTIONS, size=rows), rng.normal(size=rows).astype(np.float32)
        self.terminated = (rng.random(rows) < 1 / LENGTH).astype(np.float32)
        layers = [nn.Linear(OBS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, ACTIONS)]
        self.net = nn.Sequential(*layers)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=5e-4)

    def update(self) -> None:
        """Draws a batch and takes one gradient step."""
        self.step(F.smooth_l1_loss(*self.values(self.rng.integers(len(self.obs), size=BATCH))))

    def values(self, at: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the values of the actions in some rows, and their targets."""
        columns = (self.obs, self.new_obs, self.actions, self.rewards, self.terminated)
        obs, new_obs, actions, rewards, terminated = (torch.from_numpy(column[at]) for column in columns)
        with torch.no_grad():
            best = self.net(new_obs).argmax(-1, keepdim=True)
            targets = rewards + 0.99 * (1 - terminated) * self.target(new_obs).gather(-1, best).squeeze(-1)
        return self.net(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1), targets

    def step(self, loss: torch.Tensor) -> None:
        """Takes a gradient step."""
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 40.0)
        self.optimizer.step()


class BarePrioritizedLoop(BareLoop):
    """The same with proportional priorities, in a binary tree whose nodes are the sums of their children."""

    def __init__(self, rows: int):
        super().__init__(rows)
        self.leaves = 1 << (rows - 1).bit_length()
        self.tree = np.zeros(2 * self.leaves)
        self.set_priorities(np.arange(rows), np.ones(rows))

    def set_priorities(self, at: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities of some rows."""
        nodes = at + self.leaves
        self.tree[nodes] = priorities
        while nodes[0] > 1:
            nodes = nodes // 2
            self.tree[nodes] = self.tree[2 * nodes] + self.tree[2 * nodes + 1]

    def update(self) -> None:
        """Draws a batch, takes one gradient step, and sets the priorities of the batch."""
        rest, nodes = self.rng.random(BATCH) * self.tree[1], np.ones(BATCH, np.int64)
        while nodes[0] < self.leaves:
            of_left = self.tree[2 * nodes]
            goes_right = rest >= of_left
            rest = rest - of_left * goes_right
            nodes = 2 * nodes + goes_right
        weights = (len(self.obs) * self.tree[nodes] / self.tree[1]) ** -0.4
        taken, targets = self.values(nodes - self.leaves)
        losses = F.smooth_l1_loss(taken, targets, reduction="none")
        self.step((losses * torch.from_numpy((weights / weights.max()).astype(np.float32))).mean())
        errors = (taken.detach() - targets).abs().numpy()
        self.set_priorities(nodes - self.leaves, (errors + 1e-6) ** 0.6)


class BareSAC:
    """SAC by hand, on arrays of transitions."""

    def __init__(self, rows: int, hidden: int):
        rng = self.rng = np.random.default_rng(0)
        self.obs, self.new_obs = (rng.normal(size=(rows, OBS)).astype(np.float32) for _ in range(2))
        self.actions = rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32)
        self.rewards = rng.normal(size=rows).astype(np.float32)
        self.terminated = (rng.random(rows) < 1 / LENGTH).astype(np.float32)
        self.policy = self.network(OBS, hidden, 2 * ACTIONS)
        self.critics = nn.ModuleList([self.network(OBS + ACTIONS, hidden, 1) for _ in range(2)])
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.of_policy = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.of_critics = torch.optim.Adam(self.critics.parameters(), lr=3e-4)
        self.of_alpha = torch.optim.Adam([self.log_alpha], lr=3e-4)

    @staticmethod
    def network(inputs: int, hidden: int, outputs: int) -> nn.Module:
        """Returns two hidden layers and a linear one."""
        layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(hidden, outputs))

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns actions and their log-probabilities."""
        mean, log_std = self.policy(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        x = normal.rsample()
        slope = 2 * (np.log(2) - x - F.softplus(-2 * x))
        return x.tanh(), (normal.log_prob(x) - slope).sum(-1)

    def smaller(self, critics: Any, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Returns the smaller values of both critics."""
        both = torch.cat([obs, actions], -1)
        return torch.minimum(critics[0](both), critics[1](both)).squeeze(-1)

    def update(self) -> None:
        """Draws a batch and takes one gradient step of each kind."""
        at = self.rng.integers(len(self.obs), size=BATCH)
        columns = (self.obs, self.new_obs, self.actions, self.rewards, self.terminated)
        obs, new_obs, actions, rewards, terminated = (torch.from_numpy(column[at]) for column in columns)
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            following, logp = self.act(new_obs)
            values = self.smaller(self.targets, new_obs, following) - alpha * logp
            targets = rewards + 0.99 * (1 - terminated) * values
        taken = torch.cat([obs, actions], -1)
        loss = sum(0.5 * F.mse_loss(critic(taken).squeeze(-1), targets) for critic in self.critics)
        self.step(self.of_critics, loss)
        self.critics.requires_grad_(False)
        chosen, logp = self.act(obs)
        self.step(self.of_policy, (alpha * logp - self.smaller(self.critics, obs, chosen)).mean())
        self.critics.requires_grad_(True)
        self.step(self.of_alpha, -(self.log_alpha * (logp.detach() - ACTIONS)).mean())
        with torch.no_grad():
            for slow, own in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(own, 0.005)

    @staticmethod
    def step(optimizer: torch.optim.Optimizer, loss: Any) -> None:
        """Takes one step."""
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class BareTeam:
    """QMIX or VDN by hand, on arrays of a team's transitions."""

    def __init__(self, rows: int, batch: int, *, is_qmix: bool):
        rng = self.rng = np.random.default_rng(0)
        self.batch = batch
        self.obs, self.new_obs = (rng.normal(size=(rows, AGENTS, OBS)).astype(np.float32) for _ in range(2))
        self.actions = rng.integers(ACTIONS, size=(rows, AGENTS))
        self.rewards = rng.normal(size=rows).astype(np.float32)
        self.terminated = (rng.random(rows) < 1 / LENGTH).astype(np.float32)
        layers = [nn.Linear(OBS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, ACTIONS)]
        self.net = nn.Sequential(*layers)
        self.mixer = QMixer(AGENTS, AGENTS * OBS, 32) if is_qmix else VDNMixer()
        self.target_net, self.target_mixer = copy.deepcopy(self.net), copy.deepcopy(self.mixer)
        self.parameters = [*self.net.parameters(), *self.mixer.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=5e-4)

    def update(self) -> None:
        """Draws a batch of env steps and takes one gradient step."""
        at = self.rng.integers(len(self.obs), size=self.batch)
        columns = (self.obs, self.new_obs, self.actions, self.rewards, self.terminated)
        obs, new_obs, actions, rewards, terminated = (torch.from_numpy(column[at]) for column in columns)
        with torch.no_grad():
            best = self.net(new_obs).argmax(-1, keepdim=True)
            following = self.target_net(new_obs).gather(-1, best).squeeze(-1)
            targets = rewards + 0.99 * (1 - terminated) * self.target_mixer(following, new_obs.flatten(1))
        taken = self.net(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        loss = F.mse_loss(self.mixer(taken, obs.flatten(1)), targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 10.0)
        self.optimizer.step()


def team_run(config: Any, batch: int) -> Any:
    """Returns a run of a team whose buffer is full."""
    import gymnasium as gym
    from pettingzoo import ParallelEnv

    class Team(ParallelEnv):
        metadata = {"name": "team"}
        possible_agents = [f"agent_{i}" for i in range(AGENTS)]

        def observation_space(self, agent: str) -> gym.Space:
            return gym.spaces.Box(-np.inf, np.inf, (OBS,))

        def action_space(self, agent: str) -> gym.Space:
            return gym.spaces.Discrete(ACTIONS)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.t, self.rng, self.agents = 0, np.random.default_rng(seed), list(self.possible_agents)
            return self.seen(), {agent: {} for agent in self.agents}

        def seen(self) -> dict[str, np.ndarray]:
            return {agent: self.rng.normal(size=OBS).astype(np.float32) for agent in self.agents}

        def step(self, actions: Any) -> Any:
            self.t += 1
            ended, agents = self.t == LENGTH, self.agents
            rewards = {agent: float(self.rng.normal()) for agent in agents}
            flags = dict.fromkeys(agents, ended), dict.fromkeys(agents, False)
            found = (self.seen(), rewards, *flags, {agent: {} for agent in agents})
            self.agents = [] if ended else agents
            return found

    config.environment(lambda _: Team()).rl_module(model_config={"fcnet_hiddens": (HIDDEN, HIDDEN)})
    config.multi_agent(policies="shared").training(train_batch_size_per_learner=batch)
    algo = config.debugging(seed=0).build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=TEAM_ROWS))
    return algo


def run_of(config: Any, hidden: int, *, boxes: bool) -> Any:
    """Returns a run whose buffer is full."""
    import gymnasium as gym

    class Still(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,))
        action_space = gym.spaces.Box(-1, 1, (ACTIONS,)) if boxes else gym.spaces.Discrete(ACTIONS)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return np.zeros(OBS, np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.zeros(OBS, np.float32), 0.0, self.t == LENGTH, False, {}

    config.environment(lambda _: Still()).rl_module(model_config={"fcnet_hiddens": (hidden, hidden)})
    algo = config.training(train_batch_size_per_learner=BATCH).debugging(seed=0).build_algo()
    algo.replay_buffer.add(episodes(100_000, np.random.default_rng(1), boxes=boxes))
    return algo


def updates(bare: Any, algo: Any, repeats: int, rounds: int) -> dict[str, float]:
    """Returns the updates per second as a ratio to a bare loop, and the shares of drawing and adding in an update.

    One step is added for each update, as in a run with one sub-environment.
    """
    ratios, draws, additions = [], [], []
    for _ in range(rounds):
        by_hand = seconds(bare.update, repeats)
        ours = seconds(lambda: algo.replay._update_once({}), repeats)
        samples = iter([algo.env_runner.sample(num_timesteps=1) for _ in range(repeats)])
        ratios.append(by_hand / ours)
        draws.append(seconds(lambda: algo.replay.draw(algo.replay_buffer.module_ids), repeats) / ours)
        additions.append(seconds(lambda: algo.replay_buffer.add(next(samples)), repeats) / ours)  # noqa: B023
    algo.stop()
    return {
        "ratio_to_bare_loop": round(float(np.median(ratios)), 2),
        "share_of_drawing": round(float(np.median(draws)), 3),
        "share_of_adding": round(float(np.median(additions)), 3),
    }


def main() -> None:
    """Measures, prints and saves the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"draw_us": {}, "memory_ratio": {}}
    for cls in (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer):
        buffers = {rows: filled(cls, rows) for rows in (10_000, 100_000, 1_000_000)}
        turns = {rows: [] for rows in buffers}
        for _ in range(args.rounds):
            for rows, buffer in buffers.items():
                turns[rows].append(1e6 * seconds(lambda b=buffer: b.sample(BATCH), args.repeats))
        found["draw_us"][cls.__name__] = {rows: round(float(np.median(own)), 1) for rows, own in turns.items()}
        (*_, largest) = buffers.values()
        found["memory_ratio"][cls.__name__] = round(largest.nbytes / raw_bytes(len(largest)), 3)
    for kind, bare in (("EpisodeReplayBuffer", BareLoop), ("PrioritizedEpisodeReplayBuffer", BarePrioritizedLoop)):
        buffer_config = {"type": kind, "capacity": 100_000}
        dqn = DQNConfig().training(dueling=False, double_q=True, replay_buffer_config=buffer_config)
        algo = run_of(dqn, HIDDEN, boxes=False)
        found[f"updates_{kind}"] = updates(bare(100_000), algo, args.repeats, args.rounds)
    for hidden in (HIDDEN, 256):
        algo = run_of(SACConfig(), hidden, boxes=True)
        found[f"updates_SAC_{hidden}"] = updates(BareSAC(100_000, hidden), algo, args.repeats, args.rounds)
    for name, config in (("VDN", VDNConfig), ("QMIX", QMIXConfig)):
        for batch in (32, BATCH):
            bare = BareTeam(TEAM_ROWS, batch, is_qmix=name == "QMIX")
            found[f"updates_{name}_{batch}"] = updates(bare, team_run(config(), batch), args.repeats, args.rounds)
    print(json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
