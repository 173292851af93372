"""Computes a return that no policy can exceed in simple_speaker_listener_v4, and compares a trained policy with it.

The listener moves linearly with its forces, and the return is minus the sum of its squared distances to the goal. So
the best forces of an episode, for a listener that knows the goal from the first step and may push in both directions
at once (the sum of both forces is limited), are the solution of a convex problem. Policies have less: they learn the
goal one step later, and push in one direction at a time. The problem is solved by accelerated projected gradients (Beck
and Teboulle, 2009) for many episodes at once.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from mpe2 import simple_speaker_listener_v4

from marl_connectors import load_policy

CYCLES, DT, DAMPING, FORCE = 25, 0.1, 0.25, 5.0
"""The length of an episode, and the constants of the environment's physics."""
STEP_SIZE = 0.02
ITERATIONS = 1500


def starts(num_episodes: int) -> torch.Tensor:
    """Returns ``[num_episodes, 2]``, where listeners begin, seen from their goal. The seeds count from 0."""
    env, found = simple_speaker_listener_v4.parallel_env(max_cycles=CYCLES), []
    for seed in range(num_episodes):
        env.reset(seed=seed)
        speaker, listener = env.unwrapped.world.agents
        found.append(listener.state.p_pos - speaker.goal_b.state.p_pos)
    return torch.tensor(np.array(found))


def returns(start: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
    """Returns ``[num_episodes]``, the returns of listeners that push with ``[CYCLES, num_episodes, 2]`` forces."""
    position, velocity, total = start, torch.zeros_like(start), torch.zeros(len(start), dtype=start.dtype)
    for force in forces:
        position = position + DT * velocity
        velocity = (1 - DAMPING) * velocity + DT * FORCE * force
        total = total - position.square().sum(-1)
    return total


def possible(forces: torch.Tensor) -> torch.Tensor:
    """Projects forces to the nearest ones whose absolute values add up to at most 1."""
    size = forces.abs()
    high, low = size.max(-1, keepdim=True).values, size.min(-1, keepdim=True).values
    excess = torch.where(high - low >= 1, high - 1, (high + low - 1) / 2).clamp(min=0)
    return forces.sign() * (size - excess).clamp(min=0)


def best_returns(start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ``[num_episodes]`` twice: the returns of the best forces that were found, and bounds of all returns.

    A concave function lies below its tangents. So no forces can exceed the return of the found ones by more than the
    gradient's largest product with any difference to possible forces.
    """
    best = ahead = torch.zeros(CYCLES, *start.shape, dtype=start.dtype)
    momentum = 1.0
    for _ in range(ITERATIONS):
        gradient = _gradient(start, ahead)
        former, best = best, possible(ahead + STEP_SIZE * gradient)
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead, momentum = best + (momentum - 1) / following * (best - former), following
    gradient, found = _gradient(start, best), returns(start, best)
    gap = gradient.abs().max(-1).values - (gradient * best).sum(-1)
    return found, found + gap.sum(0)


def _gradient(start: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
    forces = forces.detach().requires_grad_(True)
    return torch.autograd.grad(returns(start, forces).sum(), forces)[0]


def played(checkpoint: str, num_episodes: int) -> torch.Tensor:
    """Returns ``[num_episodes]``, the returns of a trained policy in the same episodes, without exploration."""
    env, policy = simple_speaker_listener_v4.parallel_env(max_cycles=CYCLES), load_policy(checkpoint)
    found = torch.zeros(num_episodes, dtype=torch.float64)
    for seed in range(num_episodes):
        observations: dict[str, Any] = env.reset(seed=seed)[0]
        policy.reset()
        while env.agents:
            actions = {agent: policy(observation, agent) for agent, observation in observations.items()}
            observations, rewards, *_ = env.step(actions)
            found[seed] += rewards["listener_0"]
    return found


def main() -> None:
    """Prints the bound, and the return of a policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", help="a checkpoint folder to compare")
    parser.add_argument("--episodes", type=int, default=1000)
    args = parser.parse_args()
    found, bound = best_returns(starts(args.episodes))
    print(f"bound:  {bound.mean():.3f}, mean of {args.episodes} episodes; found: {found.mean():.3f}")
    if args.checkpoint is not None:
        own = played(args.checkpoint, args.episodes)
        print(f"policy: {own.mean():.2f} in the same episodes, {(bound - own).mean():.2f} below the bound")


if __name__ == "__main__":
    main()
