"""MADDPG and MATD3: what target policies do, the targets of central critics, and the losses of critics and policies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.algorithms.maddpg.config import MADDPGConfig, MATD3Config
from marl_connectors.algorithms.maddpg.joint_inputs import (
    NEW_CRITIC_OBS,
    NEW_ITEMS,
    PLACES,
    AddJointInputsToTrainBatch,
    JointInputs,
)
from marl_connectors.algorithms.maddpg.rl_module import LEAST_STDDEV, POLICY_OUTPUTS, DefaultMADDPGRLModule
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner, ReplayedRows, RowLosses
from marl_connectors.algorithms.off_policy.replay_algorithm import ReplayAlgorithm
from marl_connectors.algorithms.off_policy.replay_training import TeamReplayTraining
from marl_connectors.algorithms.sac.rl_module import CRITICS, by_critic, frozen, smaller
from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.errors import LearnerError
from marl_connectors.learner.optimizers import OTHERS
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer, PrioritizedJointReplayBuffer
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from marl_connectors.rl_module.rl_module import apply_mask_of_module
from marl_connectors.transfers import moved
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID

TARGET_ACTIONS = "target_actions"
"""``[B, n]``, what the target policy of each row's agent does after the row's n-step return; one-hot if Discrete."""


class MADDPGLearner(OffPolicyLearner):
    """Deterministic policy gradients through central critics, for Box and Discrete actions.

    Target policies of all agents act once in each update. Then the loss of a module needs its own networks alone, so
    modules of one architecture are updated in one computation. Discrete actions are drawn by the Gumbel-softmax
    estimator (straight through), as in the paper.
    """

    reads_action_masks = True
    loss_settings = ("actor_feature_reg",)
    rates = {OTHERS: "actor_lr", **dict.fromkeys(CRITICS, "critic_lr")}

    def build(self) -> None:
        """Checks that the modules have central critics."""
        for module_id, module in self.module.items():
            if not isinstance(module.unwrapped(), DefaultMADDPGRLModule):
                raise LearnerError(
                    f"{type(self).__name__}: module {module_id!r} is a {type(module.unwrapped()).__name__}, expected a "
                    f"subclass of DefaultMADDPGRLModule, because the critics of all modules read its actions."
                )
        super().build()

    def explore(self, module: Any, config: Any, timestep: float) -> None:
        """Sets the standard deviation of the module's noise."""
        stddev = value_at(config.exploration_stddev, timestep)
        module.log_stddev.data.fill_(math.log(max(stddev, LEAST_STDDEV)))

    def resting_layers(self) -> Collection[str]:
        """Returns the policies, unless it is their turn."""
        return () if self.num_updates % self.config.policy_delay == 0 else (OTHERS,)

    # The train batch.

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """Returns the train batch, with what the target policies of all agents do."""
        sample = episodes if isinstance(episodes, EnvStepSample) else self._sample_of(episodes)
        batch = super().make_batch(sample)
        inputs = self._inputs()
        actions = self._target_actions(cast(EnvStepSample, sample), inputs)
        for group in batch.groups:
            self._add_target_actions(group, inputs, actions)
        return batch

    def _inputs(self) -> JointInputs:
        for piece in self.algorithm_pieces:
            if isinstance(piece, AddJointInputsToTrainBatch):
                return piece.inputs
        raise LearnerError(f"{type(self).__name__}: its pipeline has no AddJointInputsToTrainBatch.")

    def _buffer_for(self, capacity: int, chunks: Sequence[Any]) -> Any:
        """Returns an empty buffer with room for chunks of episodes."""
        agents: dict[ModuleID, dict[Any, None]] = defaultdict(dict)
        for chunk in chunks:
            agents[str(chunk.module_id)][chunk.agent_id] = None
        agents_of = {module_id: list(own) for module_id, own in agents.items()}
        return JointReplayBuffer(capacity, agents=agents_of, extra_columns=[Columns.ACTION_MASK])

    @torch.no_grad()
    def _target_actions(self, sample: EnvStepSample, inputs: JointInputs) -> Tensor:
        """Returns ``[N * n, U]`` actions of all agents' target policies in the rows after the items' first rows."""
        items, width = sample.window.sources.shape
        found = torch.zeros(items * (width - 1), int(inputs.action_bounds[-1]), device=self.device)
        for module_id, agent_ids in sample.agents.items():
            module: Any = self.module[module_id].unwrapped()
            dist_inputs = self._target_inputs(sample, module_id, module)
            own = self._drawn(module_id, module, dist_inputs).unflatten(0, (-1, len(agent_ids)))
            for slot, agent_id in enumerate(agent_ids):
                place = inputs.place(agent_id)
                begin, end = inputs.action_bounds[place : place + 2]
                found[:, begin:end] = own[:, slot]
        return found

    def _target_inputs(self, sample: EnvStepSample, module_id: ModuleID, module: Any) -> Tensor:
        """Returns ``[N * n * K, k]``, the ``action_dist_inputs`` of a module's target policy."""

        def of_leaf(leaf: np.ndarray) -> Tensor:
            own = np.ascontiguousarray(leaf[:, 1:]).reshape(-1, *leaf.shape[3:])
            return moved(own.astype(np.float32) if own.dtype == np.float64 else own, self.device)

        def later(column: Any) -> Any:
            return tree_map(of_leaf, column)

        observed = {Columns.OBS: later(sample.column(Columns.OBS, module_id))}
        dist_inputs = module.forward_target(observed)[TARGET_NETWORK_ACTION_DIST_INPUTS]
        if not sample.has(Columns.ACTION_MASK, module_id):
            return dist_inputs
        return apply_mask_of_module(module, dist_inputs, later(sample.column(Columns.ACTION_MASK, module_id)))

    def _drawn(self, module_id: ModuleID, module: Any, dist_inputs: Tensor) -> Tensor:
        """Returns ``[B, n]`` actions of ``[B, k]`` inputs: with clipped noise, or one-hot ones that are drawn."""
        config = self.config.get_config_for_module(module_id)
        dist_cls, is_box = module.get_train_action_dist_cls(), isinstance(module.action_space, spaces.Box)
        if is_box and not config.target_noise:
            return dist_cls.from_logits(dist_inputs).to_deterministic()
        noise = self.noise((module_id,), dist_cls, (len(dist_inputs),), dist_inputs.shape[-1])
        if not is_box:
            return F.one_hot(dist_cls.from_logits(dist_inputs).sample(noise), dist_inputs.shape[-1]).float()
        bound = config.target_noise_clip
        actions = dist_cls.from_logits(dist_inputs).to_deterministic()
        return (actions + (config.target_noise * noise).clamp(-bound, bound)).clamp(-1.0, 1.0)

    def _add_target_actions(self, group: Any, inputs: JointInputs, actions: Tensor) -> None:
        """Adds the other agents' actions to ``new_critic_obs``, and the column ``target_actions``."""
        places, joint = group[PLACES].long(), actions.index_select(0, group[NEW_ITEMS].long())
        bounds = torch.as_tensor(inputs.action_bounds, device=joint.device)
        begin, width = bounds[places], int((bounds[places[:1] + 1] - bounds[places[:1]]).item())
        own = begin.unsqueeze(-1) + torch.arange(width, device=joint.device)
        group[TARGET_ACTIONS] = joint.gather(1, own)
        others = joint.scatter(1, own, 0.0)
        present = group[NEW_CRITIC_OBS][:, inputs.presence].repeat_interleave(bounds.diff(), dim=1)
        group[NEW_CRITIC_OBS] = torch.cat([group[NEW_CRITIC_OBS][:, : inputs.actions_begin], others * present], 1)

    # The losses.

    def targets(self, rows: ReplayedRows) -> Tensor:
        """Returns ``[...]``, the rewards and the value of what all target policies do after them."""
        return rows.bootstrapped(
            smaller(rows.module.compute_target_q_values(rows[NEW_CRITIC_OBS], rows[TARGET_ACTIONS]))
        )

    def loss(self, rows: ReplayedRows, targets: Tensor) -> RowLosses:
        """Returns the losses of the critics, and of the policy by the first of them."""
        module, critic_obs = rows.module, rows[Columns.CRITIC_OBS]
        taken = list(module.compute_q_values(critic_obs, _taken(rows)).values())
        with frozen(module.critics()):
            judged = module.compute_q_values(critic_obs, _chosen(rows))[QF_PREDS]
        errors = (taken[0] - targets).detach()
        return RowLosses(
            by_critic("loss", [(values - targets).square() for values in taken]),
            errors,
            others={
                "policy_loss": rows.config.actor_feature_reg * rows.outputs[POLICY_OUTPUTS].square().mean(-1) - judged
            },
            statistics={"target_mean": targets, "td_error_abs_mean": errors.abs(), **by_critic("mean", taken)},
        )


def _taken(rows: ReplayedRows) -> Tensor:
    """Returns ``[..., n]`` actions that were taken, one-hot if they are Discrete."""
    actions, space = rows[Columns.ACTIONS], rows.module.action_space
    if isinstance(space, spaces.Discrete):
        return F.one_hot(actions.long(), int(space.n)).float()
    return actions.reshape(*rows[Columns.REWARDS].shape, -1)


def _chosen(rows: ReplayedRows) -> Tensor:
    """Returns ``[..., n]`` actions of the policy, with gradients."""
    dist_cls, inputs = rows.module.get_train_action_dist_cls(), rows.outputs[Columns.ACTION_DIST_INPUTS]
    if isinstance(rows.module.action_space, spaces.Box):
        return dist_cls.from_logits(inputs).to_deterministic()
    soft = (inputs + rows.noise(dist_cls, inputs.shape[-1])[0]).softmax(-1)
    hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
    return hard + soft - soft.detach()


class MADDPGReplayTraining(TeamReplayTraining):
    """Keeps the steps of all agents, each with rewards of its own."""

    buffer_classes = (JointReplayBuffer, PrioritizedJointReplayBuffer)


class MADDPG(ReplayAlgorithm):
    """Deterministic policies with central critics. ``MADDPGConfig().build_algo()`` makes an object of this class."""

    config_class = MADDPGConfig
    learner_class = MADDPGLearner
    module_class = DefaultMADDPGRLModule
    replay_class = MADDPGReplayTraining

    config: MADDPGConfig
    learner: MADDPGLearner


class MATD3(MADDPG):
    """MADDPG with twin critics. ``MATD3Config().build_algo()`` makes an object of this class."""

    config_class = MATD3Config
