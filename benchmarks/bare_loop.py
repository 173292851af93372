"""Measures the upper limit of sampling: sub-environments alone, with random actions that were drawn in advance.

Observations are not stored, and there is no network. Usage: ``python benchmarks/bare_loop.py sample spread``.
"""

from __future__ import annotations

import json
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import yardstick as y


class BareLoop:
    """Steps sub-environments of a parallel environment whose agents all stay until the end."""

    def __init__(self, name: str, seed: int = 0):
        self.envs = [y.make_parallel(name) for _ in range(y.NUM_ENVS[name])]
        self.num_steps = y.fragment_length(name)
        agents = self.envs[0].possible_agents
        sizes = [self.envs[0].action_space(agent).n for agent in agents]
        drawn = np.random.default_rng(seed).integers(sizes, size=(self.num_steps, y.NUM_ENVS[name], len(agents)))
        self.actions = [[dict(zip(agents, row, strict=True)) for row in step] for step in drawn.tolist()]
        self.num_episodes = 0
        for env in self.envs:
            self.reset(env)

    def reset(self, env) -> None:
        """Starts the next episode of a sub-environment."""
        env.reset(seed=self.num_episodes)
        self.num_episodes += 1

    def sample(self) -> int:
        """Plays the steps of one fragment, and returns the number of agent-steps."""
        for step in self.actions:
            for env, actions in zip(self.envs, step, strict=True):
                env.step(actions)
                if not env.agents:
                    self.reset(env)
        return self.num_steps * len(self.envs) * len(self.actions[0][0])


def main() -> None:
    """``bare_loop.py sample null|spread|pursuit [iterations]``."""
    loop = BareLoop(sys.argv[2])
    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(json.dumps({"agent_steps_per_cpu_second": y.steps_per_second(loop.sample, iterations)}))


if __name__ == "__main__":
    main()
