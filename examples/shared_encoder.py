"""How do policies share an encoder, and keep their own heads?

A MultiRLModule with its own `_forward` encodes the observations of all modules with one network, and passes the
embeddings to them. Each of the three agents here has a policy, and one encoder learns from all of them. The script
prints the mean return of an agent while it rises (at most 25), and the sizes of the encoder and of the heads. It takes
about 15 seconds.
"""

from __future__ import annotations

import torch
from torch import nn

from marl_connectors import Columns, MultiRLModule, MultiRLModuleSpec, PPOConfig, RLModule, RLModuleSpec
from marl_connectors.rl_module.apis import ValueFunctionAPI

AGENTS = ("agent_0", "agent_1", "agent_2")


class Heads(RLModule, ValueFunctionAPI):
    """A policy and a value function of embeddings, which the MultiRLModule computes."""

    def setup(self):
        self.pi = nn.Linear(self.model_config["width"], self.action_space.n)
        self.vf = nn.Linear(self.model_config["width"], 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.EMBEDDINGS])}

    def compute_values(self, batch, embeddings=None):
        return self.vf(embeddings).squeeze(-1)


class SharedEncoder(MultiRLModule):
    """Encodes the observations of all modules with one network."""

    def setup(self):
        super().setup()
        heads = next(iter(self.values()))
        self.encoder = nn.Sequential(
            nn.Linear(heads.observation_space.shape[0], heads.model_config["width"]), nn.Tanh()
        )

    def _forward(self, batch, *, purpose, **kwargs):
        for columns in batch.values():
            columns[Columns.EMBEDDINGS] = self.encoder(columns[Columns.OBS])
        outputs = super()._forward(batch, purpose=purpose, **kwargs)
        if purpose == "train":  # the value functions need them too
            for module_id, columns in batch.items():
                outputs[module_id][Columns.EMBEDDINGS] = columns[Columns.EMBEDDINGS]
        return outputs


def build_config() -> PPOConfig:
    """Returns a config of PPO on `match_v0`, in which the observation names the action that gets the reward."""
    specs = {agent: RLModuleSpec(module_class=Heads, model_config={"width": 32}) for agent in AGENTS}
    return (
        PPOConfig()
        .environment("marl_envs.match_v0", env_config={"n_agents": len(AGENTS)})
        .multi_agent(policies="independent")
        .rl_module(rl_module_spec=MultiRLModuleSpec(multi_rl_module_class=SharedEncoder, rl_module_specs=specs))
        .env_runners(num_envs_per_env_runner=4)
        .training(
            lr=1e-2, gamma=0.5, train_batch_size_per_learner=400, minibatch_size=100, num_epochs=8, use_kl_loss=False
        )
        .debugging(seed=0)
    )


def main(iterations: int = 15) -> None:
    """Trains, and prints the returns and the sizes."""
    torch.set_num_threads(1)
    algo = build_config().build_algo()
    for i in range(iterations):
        result = algo.train()
        if i % 5 == 4 or i == iterations - 1:
            steps = result["num_env_steps_sampled_lifetime"]
            mean = result["env_runners"]["episode_return_mean"] / len(AGENTS)
            print(f"{steps:6,} steps, return of an agent: {mean:.1f}")
    encoder = sum(p.numel() for p in algo.rl_module.encoder.parameters())
    heads = sum(p.numel() for p in algo.get_module("agent_0").parameters())
    print(f"The shared encoder has {encoder} parameters, each agent's heads have {heads}.")
    algo.stop()


if __name__ == "__main__":
    main()
