"""How does an agent learn a game in which some actions are not allowed?

Use ``ActionMasking`` with any module. The module here is the default MLP, which knows nothing of masks. If masks have
the key ``action_mask``, as here, the piece is added by default, and you can leave out the line that adds it.

The game is Nim, written like PettingZoo's classic games: the observation contains an ``action_mask``, which is all
zeros for the player who waits. Two players in turn take 1 to 3 of 10 stones, and the player who takes the last stone
wins. Taking more stones than there are raises an error. The script prints in how many positions the policy, which plays
against itself, finds the winning move, before and after training. It takes about 10 seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors.algorithms.ppo import PPOConfig
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.core.columns import Columns

STONES = 10


class Nim(ParallelEnv):
    """Both players see the stones and whose turn it is. The action of the player who waits has no effect."""

    metadata = {"name": "nim"}
    possible_agents = ["first", "second"]
    render_mode = None

    def __init__(self):
        self.agents = []

    def observation_space(self, agent):
        return spaces.Dict(
            {
                "observation": spaces.Box(0, 1, (STONES + 2,), np.int8),
                "action_mask": spaces.Box(0, 1, (3,), np.int8),
            }
        )

    def action_space(self, agent):
        return spaces.Discrete(3, start=1)

    def _seen(self):
        seen = {}
        for agent in self.possible_agents:
            moves = agent == self.mover
            mask = (np.arange(1, 4) <= self.stones) & moves
            seen[agent] = {"observation": see(self.stones, moves), "action_mask": mask.astype(np.int8)}
        return seen

    def reset(self, seed=None, options=None):
        self.agents, self.stones = list(self.possible_agents), STONES
        self.mover, self.waiter = self.agents
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        if actions[self.mover] > self.stones:
            raise ValueError(f"{self.mover} takes {actions[self.mover]} of {self.stones} stones")
        self.stones -= actions[self.mover]
        over = self.stones == 0
        rewards = {self.mover: float(over), self.waiter: -float(over)}
        self.mover, self.waiter = self.waiter, self.mover
        acted = list(self.possible_agents)
        self.agents = [] if over else acted
        rewards = {agent: rewards[agent] for agent in acted}
        return self._seen(), rewards, dict.fromkeys(acted, over), dict.fromkeys(acted, False), {a: {} for a in acted}

    def close(self):
        pass


def see(stones: int, moves: bool) -> np.ndarray:
    """Returns the number of stones as a one-hot vector, and whether it is the player's turn."""
    return np.append(np.arange(STONES + 1) == stones, moves).astype(np.int8)


def make_config() -> PPOConfig:
    """Returns a config in which both players use one policy."""
    config = PPOConfig()
    # This environment raises an error for illegal actions, which the random actions of the smoke test may be.
    config.environment(lambda env_config: Nim(), disable_env_checking=True)
    # Nothing else is needed for the masks.
    config.env_runners(env_to_module_connector=lambda env: ActionMasking(), num_envs_per_env_runner=8)
    config.training(train_batch_size_per_learner=800, minibatch_size=200, num_epochs=10, lr=3e-3, entropy_coeff=0.02)
    return config.rl_module(model_config={"fcnet_hiddens": [32, 32]}).debugging(seed=0)


def winning_moves(module) -> tuple[int, int]:
    """Returns in how many positions the module leaves a multiple of 4, with which it wins, and of how many."""
    stones = np.array([n for n in range(1, STONES + 1) if n % 4])
    batch = {
        Columns.OBS: torch.from_numpy(np.stack([see(n, True) for n in stones])),
        Columns.ACTION_MASK: torch.from_numpy(np.arange(1, 4) <= stones[:, None]),
    }
    taken = 1 + module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS].argmax(1).numpy()
    assert (taken <= stones).all()
    return int(((stones - taken) % 4 == 0).sum()), len(stones)


def main(iterations: int = 30) -> tuple[int, int]:
    """Trains, and returns the number of winning moves before and after."""
    torch.set_num_threads(1)
    algo = make_config().build()
    print(f"The module sees {algo.get_module().observation_space.shape[0]} numbers, and no mask.")
    before, positions = winning_moves(algo.get_module())
    moves = 0
    for _ in range(iterations):
        moves = algo.train()["num_env_steps_sampled_lifetime"]
    after, _ = winning_moves(algo.get_module())
    algo.stop()
    print(f"Before training, {before} winning moves in {positions} positions.")
    print(f"After {moves:,} moves, all of them legal, {after} winning moves in {positions} positions.")
    return before, after


if __name__ == "__main__":
    main()
