"""PPO of recurrent modules worked out slowly: in float64, one sequence after another, one step after another.

Nothing here is shared with the library but the modules' layers, and the episodes' getters.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.modules.recurrent_modules import GRUModule, LSTMModule
from marl_connectors.algorithms.ppo.learner import PPOLearner


@dataclass
class Settings:
    """PPO's, as in PPOConfig."""

    gamma: float = 0.9
    lambda_: float = 0.8
    lr: float = 1e-3
    clip_param: float = 0.2
    vf_clip_param: float = 10.0
    vf_loss_coeff: float = 0.5
    entropy_coeff: Any = 0.0
    kl_coeff: float = 0.3
    kl_target: float = 0.01
    use_kl_loss: bool = True
    use_critic: bool = True
    grad_clip: float | None = None


@dataclass
class Minibatch:
    """What a learner went through: for each sequence its observations, and the gradients that came of it."""

    module_id: str
    sequences: list[np.ndarray]
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


class NotingLearner(PPOLearner):
    """PPO that notes its minibatches and gradients (before they are clipped)."""

    def build(self):
        self.noted: list[Minibatch] = []
        super().build()

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        observations = batch["obs"].numpy()
        if "loss_mask" in batch:
            mask = batch["loss_mask"].numpy()
            sequences = [row[real] for row, real in zip(observations, mask, strict=True)]
        else:
            sequences = [row[None] for row in observations]
        self.noted.append(Minibatch(module_id, [s.copy() for s in sequences]))
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
        newest = next(m for m in reversed(self.noted) if m.module_id == module_id)
        newest.gradients = gradients_of(self.module[module_id])
        super().postprocess_gradients_for_module(module_id=module_id, config=config, module_gradients=module_gradients)


def gradients_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies, zeros where there is none."""
    found = {}
    for name, parameter in module.named_parameters():
        found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
    return found


def agent_episodes(episodes) -> dict[str, list]:
    """All agent episodes with steps, by module."""
    found: dict[str, list] = {}
    for episode in episodes:
        parts = episode.all_agent_episodes() if hasattr(episode, "all_agent_episodes") else [episode]
        for part in parts:
            if len(part):
                found.setdefault(part.module_id or "default_policy", []).append(part)
    return found


def state_before(module, episode, step):
    """The state that was recorded before a step; the initial one at the beginning, and where none was recorded."""
    if not module.is_stateful():
        return None
    if episode.t_started + step == 0 or "state_out" not in episode.storage.extra_keys():
        return module.get_initial_state()
    return episode.get_extra_model_outputs("state_out", step - 1, neg_index_as_lookback=True)


def unrolled(module, observations, state) -> tuple[torch.Tensor, torch.Tensor]:
    """``[T, n]`` distribution inputs and ``[T]`` values of a float64 module, a step at a time."""
    inputs, values = [], []
    double = lambda x: torch.as_tensor(np.asarray(x, np.float64))
    if isinstance(module, GRUModule):
        carried = double(state["h"])[None]
    elif isinstance(module, LSTMModule):
        carried = tuple(double(state["rnn"][key])[None] for key in ("h", "c"))
    for observation in observations:
        x = double(observation)[None]
        if isinstance(module, (GRUModule, LSTMModule)):
            features, carried = module.rnn(x, carried)
        else:
            features = module.encoder(x)
        inputs.append(module.pi(features)[0])
        values.append(module.vf(features)[0, 0])
    return torch.stack(inputs), torch.stack(values)


class SlowPPO:
    """Updates float64 copies of modules from episodes.

    Args:
        modules: The modules as they are before the first update.
        max_seq_len: How long sequences are.
        settings: PPO's, by module.
    """

    def __init__(self, modules, max_seq_len: int, settings: dict[str, Settings]):
        self.modules = {m: copy.deepcopy(module).double() for m, module in modules.items()}
        for module in self.modules.values():
            module.zero_grad(set_to_none=True)
        self.max_seq_len = max_seq_len
        self.settings = settings
        self.optimizers = {m: torch.optim.Adam(own.parameters(), settings[m].lr) for m, own in self.modules.items()}
        self.kl_coeffs = {m: s.kl_coeff for m, s in settings.items()}

    @torch.no_grad()
    def values(self, module_id, episode) -> np.ndarray:
        """``[T + 1]`` values of a chunk, the one of its last observation included; each sequence from its own state."""
        module, steps, values = self.modules[module_id], len(episode), []
        for begin in range(0, steps + 1, self.max_seq_len):
            observations = [episode.get_observations(t) for t in range(begin, min(begin + self.max_seq_len, steps + 1))]
            values += unrolled(module, observations, state_before(module, episode, begin))[1].tolist()
        return np.array(values)

    def advantages(self, module_id, episodes, standardize=True) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """``[T]`` advantages and value targets for each chunk."""
        own, found, targets = self.settings[module_id], [], []
        for episode in episodes:
            steps = len(episode)
            values = self.values(module_id, episode) if own.use_critic else np.zeros(steps + 1)
            lambda_ = own.lambda_ if own.use_critic else 1.0
            advantages, following = np.zeros(steps), 0.0
            for t in reversed(range(steps)):
                after = 0.0 if t == steps - 1 and episode.is_terminated else values[t + 1]
                following = episode.get_rewards(t) + own.gamma * after - values[t] + own.gamma * lambda_ * following
                advantages[t] = following
            found.append(advantages)
            targets.append(advantages + values[:-1])
        everything = np.concatenate(found)
        if standardize:
            found = [(a - everything.mean()) / max(everything.std(), 1e-4) for a in found]
        return found, targets

    def update(self, module_id, episodes, minibatches: list[Minibatch], entropy_coeff: float):
        """Goes through the same minibatches; the means of the loss terms, and the gradients of each minibatch."""
        module, own = self.modules[module_id], self.settings[module_id]
        advantages, targets = self.advantages(module_id, episodes)
        place = {
            episode.get_observations(t).tobytes(): (i, t)
            for i, episode in enumerate(episodes)
            for t in range(len(episode))
        }
        gradients, all_terms = [], []
        for minibatch in minibatches:
            outputs, steps = [], []
            for sequence in minibatch.sequences:
                places = [place[observation.tobytes()] for observation in sequence]
                i, begin = places[0]
                assert places == [(i, begin + k) for k in range(len(places))], "a sequence is a stretch of one chunk"
                outputs.append(unrolled(module, sequence, state_before(module, episodes[i], begin)))
                steps += [(episodes[i], t, advantages[i][t], targets[i][t]) for _, t in places]
            inputs, values = (torch.cat(parts) for parts in zip(*outputs, strict=True))
            old = np.array([episode.get_extra_model_outputs("action_dist_inputs", t) for episode, t, _, _ in steps])
            old_logp = np.array([episode.get_extra_model_outputs("action_logp", t) for episode, t, _, _ in steps])
            actions = [int(episode.get_actions(t)) for episode, t, _, _ in steps]
            gain, target = (torch.tensor([step[k] for step in steps]) for k in (2, 3))
            now, before = (torch.log_softmax(x, -1) for x in (inputs, torch.as_tensor(old).double()))
            ratio = (now[range(len(steps)), actions] - torch.as_tensor(old_logp).double()).exp()
            clipped = ratio.clamp(1 - own.clip_param, 1 + own.clip_param)
            error = (values - target) ** 2
            terms = {
                "policy_loss": -torch.minimum(gain * ratio, gain * clipped).mean(),
                "vf_loss": error.clamp(max=own.vf_clip_param).mean(),
                "vf_loss_unclipped": error.mean(),
                "entropy": -(now.exp() * now).sum(-1).mean(),
                "mean_kl_loss": (before.exp() * (before - now)).sum(-1).mean(),
            }
            loss = terms["policy_loss"] - entropy_coeff * terms["entropy"]
            if own.use_critic:
                loss = loss + own.vf_loss_coeff * terms["vf_loss"]
            else:
                terms["vf_loss"] = terms["vf_loss_unclipped"] = torch.zeros(())
            if own.use_kl_loss:
                loss = loss + self.kl_coeffs[module_id] * terms["mean_kl_loss"]
            else:
                terms["mean_kl_loss"] = torch.zeros(())
            module.zero_grad(set_to_none=True)
            loss.backward()
            gradients.append(gradients_of(module))
            if own.grad_clip is not None:
                given = [p.grad for p in module.parameters() if p.grad is not None]
                norm = sum(float((g**2).sum()) for g in given) ** 0.5
                for gradient in given:
                    gradient.mul_(min(1.0, own.grad_clip / (norm + 1e-6)))
            self.optimizers[module_id].step()
            all_terms.append({"total_loss": loss.item(), **{name: term.item() for name, term in terms.items()}})
        last = all_terms[-1]["mean_kl_loss"]
        if own.use_kl_loss and last > 2.0 * own.kl_target:
            self.kl_coeffs[module_id] *= 1.5
        elif own.use_kl_loss and last < 0.5 * own.kl_target:
            self.kl_coeffs[module_id] *= 0.5
        return {name: float(np.mean([terms[name] for terms in all_terms])) for name in all_terms[0]}, gradients
