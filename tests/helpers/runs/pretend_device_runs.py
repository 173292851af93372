"""Samples and updates with modules on a pretended device, and the same on the CPU; prints what was seen as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gymnasium import spaces

from helpers import pretend_device
from helpers.envs.spaces_env import SpacesEnv
from marl_connectors import Columns, PPOConfig
from marl_envs import match_v0, visitors_v0

DEVICE = pretend_device.install()
STEPS = 12
_NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (9, 9, 3), np.uint8),
        "rest": spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(2), spaces.Box(-1.0, 1.0, (3,), np.float64)]),
    }
)
_LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}
CASES: dict[str, dict[str, Any]] = {
    "one policy": {"env": match_v0.parallel_env},
    "many policies": {"env": match_v0.parallel_env, "policies": "independent", "env_config": {"n_agents": 5}},
    "policies with unequal shares": {
        "env": match_v0.parallel_env,
        "policies": "agent_0=a,agent_1=b,agent_2=c,agent*=d",
        "env_config": {"n_agents": 6},
    },
    "LSTMs": {"env": match_v0.parallel_env, "policies": "independent", "model": _LSTM},
    "agents that come and go": {"env": visitors_v0.parallel_env, "policies": "independent"},
    "turns": {"env": "marl_envs.last_stone_v0", "policies": "independent", "action_mask_key": "action_mask"},
    "masks": {"env": "marl_envs.masked_v0", "action_mask_key": "action_mask"},
    "nested spaces, masks and an LSTM": {
        "env": SpacesEnv,
        "env_config": {
            "observation_space": _NESTED,
            "action_space": spaces.MultiDiscrete([3, 2]),
            "masks": "info",
        },
        "action_mask_key": "action_mask",
        "model": _LSTM,
    },
}


class OnTheDevice(PPOConfig):
    """PPO with modules and batches there."""

    device = property(lambda self: DEVICE)  # type: ignore[assignment]


def build(config_class: type[PPOConfig], env: Any, policies: str = "shared", model: Any = None, **environment: Any):
    return (
        config_class()
        .environment(env, **environment)
        .multi_agent(policies=policies)
        .env_runners(num_envs_per_env_runner=3)
        .learners(num_gpus_per_learner=0)
        .rl_module(model_config={"fcnet_hiddens": [16], **(model or {})})
        .training(lr=3e-3, train_batch_size_per_learner=60, minibatch_size=30, num_epochs=2, grad_clip=0.5)
        .debugging(seed=0)
        .build_algo()
    )


def run(case: dict[str, Any]) -> dict[str, Any]:
    there, here = build(OnTheDevice, **case), build(PPOConfig, **case)
    for algo in (there, here):
        algo.env_runner.sample(num_timesteps=6)
    with pretend_device.counted_copies() as sampling:
        episodes = there.env_runner.sample(num_timesteps=3 * STEPS)
    same = here.env_runner.sample(num_timesteps=3 * STEPS)
    with pretend_device.counted_copies() as updating:
        figures = there.learner.update(episodes=episodes)
    expected = here.learner.update(episodes=same)
    error = max(
        abs(figures[m][name] - value) / max(1.0, abs(value))
        for m, own in expected.items()
        for name, value in own.items()
    )
    parameters = max(
        float((mine.detach().cpu() - theirs).abs().max())
        for mine, theirs in zip(there.rl_module.parameters(), here.rl_module.parameters(), strict=True)
    )
    return {
        "modules_there": all(parameter.device == DEVICE for parameter in there.rl_module.parameters()),
        "sampling": sampling,
        "updating": updating,
        "indices_left": any(group.stacking is not None for group in there.learner.make_batch(episodes).groups),
        "same_actions": _actions(episodes) == _actions(same),
        "figures_differ_by": error,
        "parameters_differ_by": parameters,
    }


def _actions(episodes: list[Any]) -> list[Any]:
    parts = [part for episode in episodes for part in episode.agent_episodes.values()]
    return [(part.agent_id, np.asarray(part.get_actions()).tolist()) for part in parts] + [
        str(part.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS).dtype) for part in parts if len(part)
    ]


if __name__ == "__main__":
    print(json.dumps({name: run(case) for name, case in CASES.items()}))
