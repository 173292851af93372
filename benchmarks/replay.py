"""Measures replay buffers and DQN: memory, the cost of drawing by the buffer's size, and updates beside a bare loop.

The bare loop does the same work as one update of DQN, written by hand: it draws rows of plain arrays, computes the loss
of double Q-learning with a target network, and steps Adam. Both run in turn, and the ratio of their medians is printed.
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

from marl_connectors import DQNConfig, EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer, SingleAgentEpisode

RESULTS = Path(__file__).parent / "results" / "replay.json"
OBS, ACTIONS, BATCH, HIDDEN = 18, 5, 256, 64
LENGTH = 50


def episodes(rows: int, rng: np.random.Generator) -> list[SingleAgentEpisode]:
    """Returns finished episodes with this many steps."""
    made = []
    for i in range(rows // LENGTH):
        observations = rng.normal(size=(LENGTH + 1, OBS)).astype(np.float32)
        made.append(
            SingleAgentEpisode(
                id_=f"e{i}",
                observations=list(observations),
                actions=list(rng.integers(ACTIONS, size=LENGTH)),
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
    """Returns the median CPU time of a call, which other programs on the machine change less than its duration."""
    found = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return float(np.median(found))


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
        at = self.rng.integers(len(self.obs), size=BATCH)
        columns = (self.obs, self.new_obs, self.actions, self.rewards, self.terminated)
        obs, new_obs, actions, rewards, terminated = (torch.from_numpy(column[at]) for column in columns)
        with torch.no_grad():
            best = self.net(new_obs).argmax(-1, keepdim=True)
            targets = rewards + 0.99 * (1 - terminated) * self.target(new_obs).gather(-1, best).squeeze(-1)
        loss = F.smooth_l1_loss(self.net(obs).gather(-1, actions.unsqueeze(-1)).squeeze(-1), targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 40.0)
        self.optimizer.step()


def learner_of(kind: str) -> Any:
    """Returns a DQN run whose buffer is full."""
    import gymnasium as gym

    class Still(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (OBS,))
        action_space = gym.spaces.Discrete(ACTIONS)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return np.zeros(OBS, np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.zeros(OBS, np.float32), 0.0, self.t == LENGTH, False, {}

    config = DQNConfig().environment(lambda _: Still()).rl_module(model_config={"fcnet_hiddens": (HIDDEN, HIDDEN)})
    config.training(train_batch_size_per_learner=BATCH, dueling=False, double_q=True)
    config.training(replay_buffer_config={"type": kind, "capacity": 100_000}).debugging(seed=0)
    algo = config.build_algo()
    own = episodes(100_000, np.random.default_rng(1))
    algo.replay_buffer.add(own)
    return algo


def main() -> None:
    """Measures, prints and saves the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"draw_us": {}, "memory_ratio": {}}
    for cls in (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer):
        draws = {}
        for rows in (10_000, 100_000, 1_000_000):
            buffer = filled(cls, rows)
            draws[rows] = round(1e6 * seconds(lambda b=buffer: b.sample(BATCH), args.repeats), 1)
            ratio = round(buffer.nbytes / raw_bytes(len(buffer)), 3)
        found["draw_us"][cls.__name__], found["memory_ratio"][cls.__name__] = draws, ratio
    bare = BareLoop(100_000)
    for kind in ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"):
        algo, ratios, shares = learner_of(kind), [], []
        for _ in range(args.rounds):
            by_hand = seconds(bare.update, args.repeats)
            ours = seconds(lambda a=algo: a.replay._update_once(a._timesteps()), args.repeats)
            drawn = seconds(lambda a=algo: a.replay_buffer.sample(BATCH), args.repeats)
            ratios.append(by_hand / ours)
            shares.append(drawn / ours)
        found[f"updates_{kind}"] = {
            "ratio_to_bare_loop": round(float(np.median(ratios)), 2),
            "share_of_drawing": round(float(np.median(shares)), 3),
        }
        algo.stop()
    print(json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
