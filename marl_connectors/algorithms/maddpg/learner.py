"""MADDPG's losses: those of the central critics and of the policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS
from marl_connectors.algorithms.maddpg.joint_inputs import (
    NEW_CRITIC_OBS,
    NEW_ITEMS,
    PLACES,
    AddJointInputsToTrainBatch,
    JointInputs,
)
from marl_connectors.algorithms.maddpg.rl_module import POLICY_OUTPUTS, DefaultMADDPGRLModule
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner
from marl_connectors.algorithms.sac.learner import frozen, smaller
from marl_connectors.algorithms.sac.rl_module import QF_TWIN_PREDS
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import DISCOUNTS
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.errors import LearnerError
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.learner.optimizers import OTHERS
from marl_connectors.ops.schedule import value_at
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer
from marl_connectors.replay_buffers.replay_sample import WEIGHTS, EnvStepSample
from marl_connectors.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from marl_connectors.rl_module.rl_module import apply_mask_of_module
from marl_connectors.transfers import moved
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID

TARGET_ACTIONS = "target_actions"
"""``[B, n]``, what the target policy of each row's agent does after the row's n-step return; one-hot if Discrete."""
_LEAST_STDDEV = 1e-8


class MADDPGLearner(OffPolicyLearner):
    """Deterministic policy gradients through central critics, for Box and Discrete actions.

    Target policies of all agents act once in each update. Then the loss of a module needs its own networks alone, so
    modules of one architecture are updated in one computation. Discrete actions are drawn by the Gumbel-softmax
    estimator (straight through), as in the paper.
    """

    reads_action_masks = True

    def build(self) -> None:
        """Checks that the modules have central critics."""
        for module_id, module in self.module.items():
            if not isinstance(module.unwrapped(), DefaultMADDPGRLModule):
                raise LearnerError(
                    f"{type(self).__name__}: module {module_id!r} is a {type(module.unwrapped()).__name__}, expected a "
                    f"subclass of DefaultMADDPGRLModule, because the critics of all modules read its actions."
                )
        super().build()

    def configure_optimizers_for_module(self, module_id: ModuleID, config: Any) -> None:
        """Registers Adam with learning rates for the critics and for all other parameters."""
        rates = {OTHERS: config.actor_lr}
        self.optimizers.register_default(module_id, {**rates, **dict.fromkeys(("qf", "qf_twin"), config.critic_lr)})

    def explore_as_of(self, timestep: int) -> None:
        """Sets the noise of all modules to that of ``timestep`` sampled steps; of those not trained, to the last."""
        for module_id, module in self.module.items():
            at = self.time_to_explore(module_id, timestep)
            stddev = value_at(self.config.get_config_for_module(module_id).exploration_stddev, at)
            parameter: Any = module.unwrapped().log_stddev
            parameter.data.fill_(math.log(max(stddev, _LEAST_STDDEV)))

    def before_gradient_based_update(self, *, timesteps: dict[str, int]) -> None:
        """Decides whether the policies are updated, without which the target networks stay as well."""
        super().before_gradient_based_update(timesteps=timesteps)
        self._moves_policies = self.num_updates % self.config.policy_delay == 0
        self.optimizers.rest(() if self._moves_policies else (OTHERS,))

    def _is_target_update_due(self) -> bool:
        return self._moves_policies and super()._is_target_update_due()

    # The train batch.

    def make_batch(self, episodes: Sequence[Any]) -> ColumnBatch:
        """Returns the train batch, with what the target policies of all agents do."""
        sample = episodes if isinstance(episodes, EnvStepSample) else self._sample_of(episodes)
        batch = super().make_batch(sample)
        inputs = self._inputs()
        actions = self._target_actions(sample, inputs)
        for group in batch.groups:
            self._add_target_actions(group, inputs, actions)
        return batch

    def _inputs(self) -> JointInputs:
        for piece in self.algorithm_pieces:
            if isinstance(piece, AddJointInputsToTrainBatch):
                return piece.inputs
        raise LearnerError(f"{type(self).__name__}: its pipeline has no AddJointInputsToTrainBatch.")

    def _sample_of(self, episodes: Sequence[Any]) -> EnvStepSample:
        """Returns all steps of episodes."""
        agents: dict[ModuleID, dict[Any, None]] = {}
        rows = 2
        for chunk in chunks_of(episodes):
            agents.setdefault(str(chunk.module_id), {})[chunk.agent_id] = None
            rows += 1 + (chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk))
        buffer = JointReplayBuffer(
            rows * (1 + len(episodes)),
            agents={m: list(own) for m, own in agents.items()},
            extra_columns=[Columns.ACTION_MASK],
        )
        buffer.add(episodes)
        sample: Any = buffer.every_step(n_step=self.config.n_step)
        return sample

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

    def stacking_key(self, config: Any) -> float:
        """Returns the settings of the loss."""
        return config.actor_feature_reg

    def _loss(
        self, module_ids: Sequence[ModuleID], config: Any, module: Any, batch: Mapping[str, Any], fwd_out: Any
    ) -> Tensor:
        with torch.no_grad():
            following = module.compute_target_q_values(batch[NEW_CRITIC_OBS], batch[TARGET_ACTIONS])
            targets = batch[Columns.REWARDS] + batch[DISCOUNTS] * smaller(following)
        found = module.compute_q_values(batch[Columns.CRITIC_OBS], _taken(module, batch))
        values = [found[name] for name in (QF_PREDS, QF_TWIN_PREDS) if name in found]
        qf_losses = [(own - targets).square() * batch.get(WEIGHTS, 1.0) for own in values]
        chosen = self._chosen(module_ids, module, fwd_out[Columns.ACTION_DIST_INPUTS])
        with frozen(module.critics()):
            judged = module.compute_q_values(batch[Columns.CRITIC_OBS], chosen)[QF_PREDS]
        policy_loss = config.actor_feature_reg * fwd_out[POLICY_OUTPUTS].square().mean(-1) - judged
        rows = CountedRows.of(batch, stacked=len(module_ids) if len(module_ids) > 1 else 0)
        errors = (values[0] - targets).detach()
        self.log_td_errors(module_ids, errors)
        of_rows = {
            "policy_loss": policy_loss,
            "target_mean": targets,
            "td_error_abs_mean": errors.abs(),
            **{f"{name}_loss": own for name, own in zip(("qf", "qf_twin"), qf_losses, strict=False)},
            **{f"{name}_mean": own for name, own in zip(("qf", "qf_twin"), values, strict=False)},
        }
        columns = torch.stack([rows.pick(column.detach()) for column in of_rows.values()])
        self.log_table(module_ids, list(of_rows), rows.mean(columns))
        return rows.mean(rows.pick(policy_loss + sum(qf_losses)))

    def _chosen(self, module_ids: Sequence[ModuleID], module: Any, dist_inputs: Tensor) -> Tensor:
        """Returns ``[..., n]`` actions of the policy, with gradients."""
        dist_cls = module.get_train_action_dist_cls()
        if isinstance(module.action_space, spaces.Box):
            return dist_cls.from_logits(dist_inputs).to_deterministic()
        noise = self.noise(module_ids, dist_cls, (dist_inputs.shape[-2],), dist_inputs.shape[-1])
        soft = (dist_inputs + noise).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft.dtype)
        return hard + soft - soft.detach()


def _taken(module: Any, batch: Mapping[str, Any]) -> Tensor:
    """Returns ``[..., n]`` actions that were taken, one-hot if they are Discrete."""
    actions = batch[Columns.ACTIONS]
    if isinstance(module.action_space, spaces.Discrete):
        return F.one_hot(actions.long(), int(module.action_space.n)).float()
    return actions.reshape(*batch[Columns.REWARDS].shape, -1)
