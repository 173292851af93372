"""Small runs of three agents with a module each, and what an update changed."""

from __future__ import annotations

import torch
from torch import nn

from helpers.envs.scripted_envs import small_config
from marl_connectors import RLModule, RLModuleSpec, ValueFunctionAPI
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_envs import match_v0


class Plain(RLModule, ValueFunctionAPI):
    """Layers of torch's own, so it is never stacked."""

    def setup(self):
        num_inputs = self.observation_space.shape[0]
        self.encoder = nn.Linear(num_inputs, 4)
        self.pi, self.vf = nn.Linear(4, int(self.action_space.n)), nn.Linear(4, 1)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.pi(self.encoder(batch["obs"]).tanh())}

    def compute_values(self, batch, embeddings=None):
        return self.vf(self.encoder(batch["obs"]).tanh()).squeeze(-1)


def build(
    *,
    module_class=DefaultPPORLModule,
    learner_class=PPOLearner,
    stack=True,
    overrides=None,
    model_config=None,
    policies="independent",
    **training,
):
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    config.multi_agent(policies=policies)
    if model_config is None:
        model_config = {"fcnet_hiddens": (4,), "vf_share_layers": True} if module_class is DefaultPPORLModule else {}
    spec = RLModuleSpec(module_class, model_config=model_config)
    config.rl_module(rl_module_spec=spec, algorithm_config_overrides_per_module=overrides or {})
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=10)
    config.learners(learner_class=learner_class, stack_modules=stack)
    settings = {"train_batch_size_per_learner": 40, "minibatch_size": 20, "num_epochs": 2, "lr": 1e-2}
    return config.training(**{**settings, **training}).build_algo()


def weights(algo, module_id):
    return {name: p.detach().clone() for name, p in algo.rl_module[module_id].named_parameters()}


def changed(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}
