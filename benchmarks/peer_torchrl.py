"""Does the work of ``yardstick.py`` with TorchRL, in one process: ``python benchmarks/peer_torchrl.py sample null``.

It needs ``torchrl==0.14.1``. It follows TorchRL's own example of IPPO (``sota-implementations/multiagent``): the
networks of all agents are one ``MultiAgentMLP``, which shares its parameters or has those of each agent side by side.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch
import yardstick as y
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import PettingZooWrapper, SerialEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, ValueEstimators

GROUP = "agents"
OBSERVATION, ACTION = (GROUP, "observation"), (GROUP, "action")


class Peer:
    """Samples and trains."""

    def __init__(self, name: str, independent: bool):
        def make() -> Any:
            env = y.make_parallel(name)
            return PettingZooWrapper(
                env,
                group_map={GROUP: list(env.possible_agents)},
                use_mask=False,
                categorical_actions=True,
                device="cpu",
            )

        env = TransformedEnv(SerialEnv(y.NUM_ENVS[name], make))
        agents, length = y.NUM_AGENTS[name], y.fragment_length(name)
        num_inputs = env.observation_spec[OBSERVATION].shape[-1]
        num_actions = env.full_action_spec_unbatched[ACTION].space.n

        def network(num_outputs: int) -> MultiAgentMLP:
            return MultiAgentMLP(
                n_agent_inputs=num_inputs,
                n_agent_outputs=num_outputs,
                n_agents=agents,
                centralised=False,
                share_params=not independent,
                depth=2,
                num_cells=y.HIDDEN,
                activation_class=torch.nn.Tanh,
            )

        self.policy = ProbabilisticActor(
            TensorDictModule(network(num_actions), in_keys=[OBSERVATION], out_keys=[(GROUP, "logits")]),
            spec=env.full_action_spec_unbatched,
            in_keys=[(GROUP, "logits")],
            out_keys=[ACTION],
            distribution_class=Categorical,
            return_log_prob=True,
        )
        self.value = ValueOperator(network(1), in_keys=[OBSERVATION], out_keys=[(GROUP, "state_value")])
        self.agent_steps = length * y.NUM_ENVS[name] * agents
        frames = length * y.NUM_ENVS[name]
        self.collector = Collector(env, self.policy, frames_per_batch=frames, total_frames=-1, device="cpu")
        self.batches = iter(self.collector)
        self.minibatch = y.MINIBATCH // agents
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(frames), sampler=SamplerWithoutReplacement(), batch_size=self.minibatch
        )
        self.loss = ClipPPOLoss(
            actor_network=self.policy,
            critic_network=self.value,
            clip_epsilon=y.CLIP,
            entropy_coeff=y.ENTROPY_COEFF,
            critic_coeff=y.VF_COEFF,
            normalize_advantage=False,
        )
        self.loss.set_keys(
            reward=(GROUP, "reward"),
            action=ACTION,
            value=(GROUP, "state_value"),
            sample_log_prob=(GROUP, "action_log_prob"),
            done=(GROUP, "done"),
            terminated=(GROUP, "terminated"),
        )
        self.loss.make_value_estimator(ValueEstimators.GAE, gamma=y.GAMMA, lmbda=y.LAMBDA)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), y.LR)

    def train(self, batch: Any) -> None:
        """Makes one PPO update with a fragment."""
        with torch.no_grad():
            self.loss.value_estimator(
                batch, params=self.loss.critic_network_params, target_params=self.loss.target_critic_network_params
            )
        self.buffer.empty()
        self.buffer.extend(batch.reshape(-1))
        for _ in range(y.EPOCHS * (batch.numel() // self.minibatch)):
            losses = self.loss(self.buffer.sample())
            loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.loss.parameters(), y.GRAD_CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.collector.update_policy_weights_()


def main() -> None:
    """``peer_torchrl.py sample|train|train_independent null|spread|... [iterations]``."""
    torch.set_num_threads(1)
    mode, name = sys.argv[1:3]
    peer = Peer(name, mode == "train_independent")

    def iteration() -> int:
        batch = next(peer.batches)
        if mode != "sample":
            peer.train(batch)
        return peer.agent_steps

    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with set_exploration_type(ExplorationType.RANDOM):
        print(json.dumps({"agent_steps_per_cpu_second": y.steps_per_second(iteration, iterations)}))


if __name__ == "__main__":
    main()
