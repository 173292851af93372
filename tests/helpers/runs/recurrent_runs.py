"""Runs of stateful and stateless modules together, and a plain account of the states that they must have been in."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.modules.recurrent_modules import CounterModule, StatelessModule, StepwiseGRU, StepwiseLSTM
from marl_connectors import Columns, PPOConfig, RLModuleSpec
from marl_connectors.trees import leaves, tree_map

WIDE = spaces.Box(-1000.0, 1000.0, (3,), np.float32)
ACTIONS = spaces.Discrete(3)
SPACES_OF = dict.fromkeys("de", (WIDE, ACTIONS))
CLASSES = {
    "gru": StepwiseGRU,
    "gru2": StepwiseGRU,
    "lstm": StepwiseLSTM,
    "count": CounterModule,
    "plain": StatelessModule,
}
WIDE_CLASSES = {"wide_lstm": StepwiseLSTM, "wide_plain": StatelessModule, "wide_lstm2": StepwiseLSTM}


def chosen(agent: str, episode_id: str, among: Any) -> str:
    """A module for an agent in an episode; the same in every process."""
    names = sorted(among)
    return names[zlib.crc32(f"{agent} {episode_id}".encode()) % len(names)]


def changing(agent, episode, **kwargs):
    """Agents have another module in each episode: with a state of this kind, of that kind, or with none."""
    return chosen(agent, episode.id_, WIDE_CLASSES if agent in SPACES_OF else CLASSES)


def specs(names=(*CLASSES, *WIDE_CLASSES)) -> dict[str, RLModuleSpec]:
    return {
        name: RLModuleSpec(
            module_class={**CLASSES, **WIDE_CLASSES}[name],
            observation_space=WIDE if name in WIDE_CLASSES else BOX,
            action_space=ACTIONS,
            model_config={"seed": number, "max_seq_len": 4, "first": number},
        )
        for number, name in enumerate(names)
    }


def config_of(*, env=LifeEnv, copies=3, fragment=5, mapping=changing, policies=None, **game: Any) -> PPOConfig:
    settings = {"agents": list("abcde"), "spaces_of": SPACES_OF, "die": 0.15, "join": 0.4, "fixed": False, **game}
    return (
        PPOConfig()
        .environment(env, env_config=settings if env is LifeEnv else {})
        .multi_agent(policies=policies or specs(), policy_mapping_fn=mapping)
        .env_runners(num_envs_per_env_runner=copies, rollout_fragment_length=fragment)
        .training(train_batch_size_per_learner=20, minibatch_size=30, num_epochs=1, lr=0.01)
        .debugging(seed=3)
    )


class Account:
    """All that lives have seen and what their modules put out, over all samples."""

    def __init__(self, runner: Any):
        self.runner = runner
        self.lives: dict[str, list[tuple[Any, Any, bool]]] = defaultdict(list)
        self.module_of: dict[str, str] = {}

    def sample(self, **options: Any) -> list[Any]:
        chunks = self.runner.sample(**options)
        for chunk in chunks:
            for part in chunk.all_agent_episodes() if hasattr(chunk, "all_agent_episodes") else [chunk]:
                assert part.t_started == len(self.lives[part.id_])
                self.module_of[part.id_] = part.module_id or "default_policy"
                for i in range(len(part)):
                    outputs = {key: part.get_extra_model_outputs(key, i) for key in part.storage.extra_keys()}
                    seen = tree_map(np.copy, part.get_observations(i))
                    self.lives[part.id_].append(
                        (seen, tree_map(np.copy, outputs), options.get("random_actions", False))
                    )
        return chunks

    def check(self) -> dict[str, int]:
        """Goes through all lives step by step; how many steps each module has taken."""
        steps: dict[str, int] = defaultdict(int)
        for id_, life in self.lives.items():
            module = self.runner.rl_module[self.module_of[id_]]
            state = tree_map(lambda leaf: torch.as_tensor(leaf)[None], module.get_initial_state())
            for i, (seen, outputs, at_random) in enumerate(life):
                steps[self.module_of[id_]] += 1
                if not module.is_stateful():
                    assert Columns.STATE_OUT not in outputs
                    inputs = {Columns.OBS: tree_map(lambda leaf: torch.as_tensor(leaf)[None], seen)}
                    expected = module.forward_exploration(inputs)
                else:
                    inputs = tree_map(lambda leaf: torch.as_tensor(leaf)[None, None], seen)
                    expected = module.forward_exploration({Columns.OBS: inputs, Columns.STATE_IN: state})
                    expected[Columns.ACTION_DIST_INPUTS] = expected[Columns.ACTION_DIST_INPUTS][:, 0]
                    state = state if at_random else expected[Columns.STATE_OUT]
                    for here, there in zip(leaves(outputs[Columns.STATE_OUT]), leaves(state), strict=True):
                        np.testing.assert_allclose(here, there[0], atol=1e-5, err_msg=f"{id_}, step {i}")
                if not at_random:
                    np.testing.assert_allclose(
                        outputs[Columns.ACTION_DIST_INPUTS], expected[Columns.ACTION_DIST_INPUTS][0], atol=1e-5
                    )
        return steps


def weights(algo) -> dict[tuple[str, str], torch.Tensor]:
    states = algo.rl_module.get_state()
    return {(module_id, name): value for module_id, state in states.items() for name, value in state.items()}


def among(*names: str) -> Any:
    return lambda agent, episode, **kwargs: chosen(agent, episode.id_, names)


def few(*names: str) -> PPOConfig:
    return config_of(
        max_steps=9, spaces_of={}, mapping=among(*names), policies={n: s for n, s in specs().items() if n in names}
    )
