"""SAC's losses: those of the critics, the policy and the temperature, in one computation."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marl_connectors.algorithms.dqn.rl_module import QF_PREDS as QF_PREDS
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner
from marl_connectors.algorithms.sac.rl_module import QF_TWIN_PREDS as QF_TWIN_PREDS
from marl_connectors.columns import Columns
from marl_connectors.connectors.learner.add_n_step_returns_to_train_batch import DISCOUNTS, NEXT_ACTION_MASK
from marl_connectors.learner.minibatches import CountedRows
from marl_connectors.learner.optimizers import OTHERS
from marl_connectors.replay_buffers.replay_sample import WEIGHTS
from marl_connectors.typing import ModuleID

_AUTO_SHARE = 0.98
"""The share of the greatest entropy of Discrete actions at which the temperature aims (Christodoulou, 2019)."""


class Judged(NamedTuple):
    """What a policy's next action is worth: ``values + alpha * entropy``.

    Attributes:
        values: ``[...]``, the smaller one of both critics' values of the action: of one that was drawn, or their
            expectation over all actions of a Discrete space.
        entropy: ``[...]`` in nats, of the policy; for a Box its estimate, the negative log-probability of the action.
    """

    values: Tensor
    entropy: Tensor


class SACLearner(OffPolicyLearner):
    """Soft actor-critic with a temperature that is learned, for Box and Discrete actions.

    The three losses have gradients for different parameters, so their sum is computed and differentiated at once.
    """

    expected = ("critics", "compute_q_values", "forward_target", "log_alpha")
    expected_class = "DefaultSACRLModule"
    reads_action_masks = True

    def configure_optimizers_for_module(self, module_id: ModuleID, config: Any) -> None:
        """Registers Adam with learning rates for the critics, the temperature, and all other parameters."""
        rates = {OTHERS: config.actor_lr, "log_alpha": config.alpha_lr}
        self.optimizers.register_default(module_id, {**rates, **dict.fromkeys(("qf", "qf_twin"), config.critic_lr)})

    def stacking_key(self, config: Any) -> Hashable:
        """Returns the settings of the loss."""
        return config.target_entropy

    def _loss(
        self, module_ids: Sequence[ModuleID], config: Any, module: Any, batch: Mapping[str, Any], fwd_out: Any
    ) -> Tensor:
        inputs, alpha = fwd_out[Columns.ACTION_DIST_INPUTS], module.log_alpha.exp().detach()
        noise = self._noise(module_ids, module, inputs)
        targets = self._targets(module, batch, alpha, None if noise is None else noise[1])
        taken = _values_of_taken(module, batch, fwd_out)
        errors = [values - targets for values in taken]
        qf_losses = [0.5 * own.square() * batch[WEIGHTS] if WEIGHTS in batch else 0.5 * own.square() for own in errors]
        judged = _judged(module, batch[Columns.OBS], inputs, fwd_out, None if noise is None else noise[0])
        policy_loss = -(judged.values + alpha * judged.entropy)
        aim = _target_entropy(config, module, batch)
        alpha_loss = module.log_alpha * (judged.entropy.detach() - aim)
        rows = CountedRows.of(batch, stacked=len(module_ids) if len(module_ids) > 1 else 0)
        self.log_td_errors(module_ids, torch.stack(errors).abs().mean(0))
        of_rows = {
            "policy_loss": policy_loss,
            "alpha_loss": alpha_loss,
            "entropy": judged.entropy,
            "target_mean": targets,
            "td_error_abs_mean": errors[0].abs(),
            **{f"{name}_loss": own for name, own in zip(("qf", "qf_twin"), qf_losses, strict=False)},
            **{f"{name}_mean": own for name, own in zip(("qf", "qf_twin"), taken, strict=False)},
        }
        columns = torch.stack([rows.pick(column.detach()) for column in of_rows.values()])
        self.log_table(module_ids, list(of_rows), rows.mean(columns))
        self.log_terms(module_ids, {"alpha_value": alpha.squeeze(-1)})
        return rows.mean(rows.pick(policy_loss + alpha_loss + sum(qf_losses)))

    def _noise(self, module_ids: Sequence[ModuleID], module: Any, inputs: Tensor) -> Tensor | None:
        """Returns ``[2, ..., n]`` normally distributed numbers, for the steps and the next steps; None if discrete."""
        if not isinstance(module.action_space, spaces.Box):
            return None
        dist_cls = module.get_train_action_dist_cls()
        return self.noise(module_ids, dist_cls, (inputs.shape[-2], 2), inputs.shape[-1]).movedim(-2, 0)

    @torch.no_grad()
    def _targets(self, module: Any, batch: Mapping[str, Any], alpha: Tensor, noise: Tensor | None) -> Tensor:
        """Returns ``[...]`` targets of the critics."""
        following = {Columns.OBS: batch[Columns.NEXT_OBS]}
        if NEXT_ACTION_MASK in batch:
            following[Columns.ACTION_MASK] = batch[NEXT_ACTION_MASK]
        inputs = module.forward_inference(following)[Columns.ACTION_DIST_INPUTS]
        dist = module.get_train_action_dist_cls().from_logits(inputs)
        if noise is None:
            judged = _expected(dist, module.forward_target(following))
        else:
            actions, logp = dist.sample_with_logp(noise)
            found = module.forward_target({Columns.OBS: following[Columns.OBS], Columns.ACTIONS: actions})
            judged = Judged(smaller(found), -logp)
        return batch[Columns.REWARDS] + batch[DISCOUNTS] * (judged.values + alpha * judged.entropy)


def _judged(module: Any, obs: Any, inputs: Tensor, fwd_out: Mapping[str, Any], noise: Tensor | None) -> Judged:
    """Judges the policy's actions, with gradients for the policy alone."""
    dist = module.get_train_action_dist_cls().from_logits(inputs)
    if noise is None:
        return _expected(dist, {name: values.detach() for name, values in fwd_out.items()})
    actions, logp = dist.sample_with_logp(noise)
    with frozen(module.critics()):
        values = module.compute_q_values({Columns.OBS: obs, Columns.ACTIONS: actions})
    return Judged(smaller(values), -logp)


def _expected(dist: Any, values: Mapping[str, Tensor]) -> Judged:
    """Judges a distribution over the actions of a Discrete space."""
    return Judged((dist.log_probs.exp() * smaller(values)).sum(-1), dist.entropy())


def smaller(values: Mapping[str, Tensor]) -> Tensor:
    """Returns the smaller values of both critics, or those of a single one."""
    return torch.minimum(values[QF_PREDS], values[QF_TWIN_PREDS]) if QF_TWIN_PREDS in values else values[QF_PREDS]


def _values_of_taken(module: Any, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]) -> list[Tensor]:
    """Returns each critic's ``[...]`` values of the actions that were taken."""
    found = [fwd_out[name] for name in (QF_PREDS, QF_TWIN_PREDS) if name in fwd_out]
    if isinstance(module.action_space, spaces.Box):
        return found
    actions = batch[Columns.ACTIONS].long().unsqueeze(-1)
    return [values.gather(-1, actions).squeeze(-1) for values in found]


def _target_entropy(config: Any, module: Any, batch: Mapping[str, Any]) -> Any:
    """Returns the entropy at which the temperature aims, for all rows or ``[...]`` for each."""
    if config.target_entropy != "auto":
        return float(config.target_entropy)
    space = module.action_space
    if isinstance(space, spaces.Box):
        return -float(np.prod(space.shape or (1,)))
    if Columns.ACTION_MASK not in batch:
        return _AUTO_SHARE * math.log(space.n)
    allowed = batch[Columns.ACTION_MASK].bool().sum(-1)
    return _AUTO_SHARE * torch.where(allowed > 0, allowed, int(space.n)).to(torch.float32).log()


@contextmanager
def frozen(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Lets gradients pass through networks, without gradients for their parameters."""
    parameters = [p for network in networks for p in network.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


SACTorchLearner = SACLearner
QF_TWIN_LOSS_KEY: Final = "qf_twin_loss"
"""RLlib's names of the class and of a loss statistic."""
