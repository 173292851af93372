"""A hand-written PPO for PettingZoo parallel environments without any abstraction, as an upper limit.

It has preallocated numpy buffers, one forward pass of the policy for all sub-environments and agents in a vector step,
noise that is drawn once for a fragment, and log-probabilities and values that are computed in one batch at its end.
Truncated episodes are bootstrapped from the final observation. Independent policies are one stacked computation. Agents
must be fixed, and actions discrete.

The script prints agent-steps per second of CPU time: ``python benchmarks/yardstick.py sample null``.
"""

from __future__ import annotations

import json
import os
import sys
import time

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import torch

BATCH, MINIBATCH, EPOCHS = 4096, 512, 4
LR, GAMMA, LAMBDA, CLIP, ENTROPY_COEFF, VF_COEFF, GRAD_CLIP, HIDDEN = 3e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 64
NUM_ENVS = {"null": 8, "null_64_agents": 8, "null_1000_agents": 8, "null_1000_copies": 1000, "spread": 8, "pursuit": 8}
NUM_AGENTS = {
    "null": 8,
    "null_64_agents": 64,
    "null_1000_agents": 1000,
    "null_1000_copies": 2,
    "spread": 3,
    "pursuit": 8,
}


def make_parallel(name: str):
    """Makes one sub-environment of a benchmark environment."""
    if name.startswith("null"):
        from marl_envs import null_v0

        return null_v0.parallel_env(n_agents=NUM_AGENTS[name])
    if name == "spread":
        from mpe2 import simple_spread_v3

        return simple_spread_v3.parallel_env(N=3, max_cycles=25, continuous_actions=False)
    from pettingzoo.sisl import pursuit_v5

    return pursuit_v5.parallel_env(max_cycles=500)


def fragment_length(name: str) -> int:
    """Returns the env steps of each sub-environment for ``BATCH`` agent-steps, at least 50."""
    return max(-(-BATCH // (NUM_AGENTS[name] * NUM_ENVS[name])), 50)


class StackedNetworks:
    """``M`` policies and ``M`` value functions, 2x64 tanh each, as batched matrix products."""

    def __init__(self, num_modules: int, obs_dim: int, num_actions: int):
        generator = torch.Generator().manual_seed(0)

        def layer(inputs: int, outputs: int, gain: float):
            weights = []
            for _ in range(num_modules):
                weight = torch.empty(outputs, inputs)
                torch.nn.init.orthogonal_(weight, gain, generator=generator)
                weights.append(weight.t())
            return [
                torch.stack(weights).contiguous().requires_grad_(),
                torch.zeros(num_modules, 1, outputs).requires_grad_(),
            ]

        self.policy = layer(obs_dim, HIDDEN, 2**0.5) + layer(HIDDEN, HIDDEN, 2**0.5) + layer(HIDDEN, num_actions, 0.01)
        self.value = layer(obs_dim, HIDDEN, 2**0.5) + layer(HIDDEN, HIDDEN, 2**0.5) + layer(HIDDEN, 1, 1.0)
        self.parameters = self.policy + self.value
        self.num_modules = num_modules
        arrays = [p.detach().numpy() for p in self.policy]
        self.policy_arrays = [a[0] for a in arrays] if num_modules == 1 else arrays

    @staticmethod
    def run(weights, x):
        """Computes ``[M, B, n]`` outputs from ``[M, B, n]`` inputs."""
        h = torch.tanh(torch.baddbmm(weights[1], x, weights[0]))
        h = torch.tanh(torch.baddbmm(weights[3], h, weights[2]))
        return torch.baddbmm(weights[5], h, weights[4])

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Returns logits as a numpy array, ``[B, n]`` for one module, else ``[M, B, n]``."""
        w = self.policy_arrays
        h = x @ w[0]
        h += w[1]
        np.tanh(h, h)
        h = h @ w[2]
        h += w[3]
        np.tanh(h, h)
        h = h @ w[4]
        h += w[5]
        return h


class Yardstick:
    """Samples and trains."""

    def __init__(self, name: str, independent: bool, seed: int = 0):
        self.independent = independent
        self.envs = [make_parallel(name) for _ in range(NUM_ENVS[name])]
        env = self.envs[0]
        self.agents = list(env.possible_agents)
        self.shape = env.observation_space(self.agents[0]).shape
        self.obs_dim, self.num_actions = int(np.prod(self.shape)), int(env.action_space(self.agents[0]).n)
        self.sizes = fragment_length(name), NUM_ENVS[name], len(self.agents)
        steps, envs, agents = self.sizes
        self.networks = StackedNetworks(agents if independent else 1, self.obs_dim, self.num_actions)
        self.obs = np.zeros((steps + 1, envs, agents, self.obs_dim), np.float32)
        self.logits = np.zeros((steps, envs, agents, self.num_actions), np.float32)
        self.actions = np.zeros((steps, envs, agents), np.int64)
        self.rewards = np.zeros((steps, envs, agents), np.float32)
        self.done = np.zeros((steps, envs), bool)
        flat = (agents * self.shape[0], *self.shape[1:])
        self.views = [[self.obs[t, k].reshape(flat) for k in range(envs)] for t in range(steps + 1)]
        self.rng = np.random.default_rng(seed)
        self.final: list = []
        for k, env in enumerate(self.envs):
            observations, _ = env.reset(seed=seed + k)
            np.concatenate(list(observations.values()), out=self.views[0][k])
        self.is_first = True
        self.optimizer = torch.optim.Adam(self.networks.parameters, lr=LR, eps=1e-5, fused=True)

    def sample(self) -> int:
        """Samples one fragment, and returns the number of agent-steps."""
        steps, envs, agents = self.sizes
        obs, logits, actions, rewards, done, views = (
            self.obs, self.logits, self.actions, self.rewards, self.done, self.views,
        )  # fmt: skip
        if not self.is_first:
            obs[0] = obs[steps]
        self.is_first = False
        done[:] = False
        self.final = []
        gumbel = self.rng.gumbel(size=(steps, envs, agents, self.num_actions)).astype(np.float32)
        for t in range(steps):
            x = obs[t]
            if self.independent:
                out = self.networks.logits(x.transpose(1, 0, 2)).transpose(1, 0, 2)
            else:
                out = self.networks.logits(x.reshape(envs * agents, -1)).reshape(envs, agents, self.num_actions)
            logits[t] = out
            chosen = (out + gumbel[t]).argmax(-1)
            actions[t] = chosen
            chosen = chosen.tolist()
            following = views[t + 1]
            for k in range(envs):
                o, r, terminations, _, _ = self.envs[k].step(dict(zip(self.agents, chosen[k], strict=True)))
                rewards[t, k] = [*r.values()]
                if not self.envs[k].agents:
                    done[t, k] = True
                    if not any(terminations.values()):
                        self.final.append((t, k, np.concatenate(list(o.values())).reshape(agents, -1)))
                    o, _ = self.envs[k].reset()
                np.concatenate([*o.values()], out=following[k])
        log_probs = torch.log_softmax(torch.from_numpy(logits), -1)
        self.logp = log_probs.gather(-1, torch.from_numpy(actions)[..., None])[..., 0]
        return steps * envs * agents

    def advantages(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns generalised advantage estimates and value targets."""
        steps, envs, agents = self.sizes
        with torch.no_grad():

            def value(x):
                x = torch.from_numpy(x)
                shape = x.shape[:-1]
                if self.independent:
                    x = x.reshape(-1, agents, self.obs_dim).transpose(0, 1)
                    return self.networks.run(self.networks.value, x)[..., 0].t().reshape(shape).numpy()
                return self.networks.run(self.networks.value, x.reshape(1, -1, self.obs_dim)).reshape(shape).numpy()

            values = value(self.obs)
            following = values[1:].copy()
            following[self.done] = 0.0
            if self.final:
                final = value(np.stack([f[2] for f in self.final]))
                for (t, k, _), x in zip(self.final, final, strict=True):
                    following[t, k] = x
        delta = self.rewards + GAMMA * following - values[:-1]
        decay = (GAMMA * LAMBDA) * ~self.done[..., None]
        advantages, last = np.empty_like(delta), np.zeros((envs, agents), np.float32)
        for t in range(steps - 1, -1, -1):
            last = delta[t] + decay[t] * last
            advantages[t] = last
        return advantages, advantages + values[:-1]

    def train(self) -> None:
        """Makes one PPO update with the newest fragment."""
        advantages, returns = self.advantages()
        agents, modules = self.sizes[2], self.networks.num_modules

        def by_module(x, has_features):
            x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
            tail = (x.shape[-1],) if has_features else ()
            if self.independent:
                return x.reshape(-1, agents, *tail).transpose(0, 1).contiguous()
            return x.reshape(1, -1, *tail)

        obs, actions = by_module(self.obs[:-1], True), by_module(self.actions, False)
        logp, advantages, returns = (by_module(x, False) for x in (self.logp, advantages, returns))
        rows, size, networks = obs.shape[1], MINIBATCH // modules, self.networks
        for _ in range(EPOCHS):
            order = torch.randperm(rows)
            for begin in range(0, rows - size // 2, size):
                index = order[begin : begin + size]
                x = obs[:, index]
                log_probs = torch.log_softmax(networks.run(networks.policy, x), -1)
                new = log_probs.gather(-1, actions[:, index, None])[..., 0]
                advantage = advantages[:, index]
                advantage = (advantage - advantage.mean(1, keepdim=True)) / (advantage.std(1, keepdim=True) + 1e-8)
                ratio = (new - logp[:, index]).exp()
                policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean(1).sum()
                values = networks.run(networks.value, x)[..., 0]
                value_loss = (values - returns[:, index]).square().mean(1).sum()
                entropy = -(log_probs.exp() * log_probs).sum(-1).mean(1).sum()
                loss = policy_loss + VF_COEFF * value_loss - ENTROPY_COEFF * entropy
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(networks.parameters, GRAD_CLIP, foreach=True)
                self.optimizer.step()


def steps_per_second(iteration, iterations: int) -> float:
    """Returns agent-steps per second of CPU time. ``iteration()`` returns its number of agent-steps."""
    iteration()
    began = time.process_time()
    steps = sum(iteration() for _ in range(iterations))
    return steps / (time.process_time() - began)


def main() -> None:
    """``yardstick.py sample|train|train_independent null|null_1000_agents|...|pursuit [iterations]``."""
    torch.set_num_threads(1)
    mode, name = sys.argv[1:3]
    yardstick = Yardstick(name, mode == "train_independent")

    def iteration() -> int:
        steps = yardstick.sample()
        if mode != "sample":
            yardstick.train()
        return steps

    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(json.dumps({"agent_steps_per_cpu_second": steps_per_second(iteration, iterations)}))


if __name__ == "__main__":
    main()
