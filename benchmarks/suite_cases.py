"""All environments of the well-known suites, with the settings, wrappers, pieces and policies for PPO.

``cases`` lists the installed environments. ``config_for`` makes the config of a small run from an environment's spaces.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from marl_connectors import ActionMasking, FlattenObservations, ImageToFloat, PPOConfig
from marl_connectors.environments.registry.registry import SUITES, environments_of
from marl_connectors.environments.registry.spec import EnvSpec

SCREEN = ("color_reduction_v0:full", "resize_v1:84,84", "frame_skip_v0:4")
"""The usual wrappers for Atari games: grey and small pictures, and every fourth frame."""
WRAPPERS = {
    "atari": SCREEN,
    "cooperative_pong_v6": ("color_reduction_v0:full", "resize_v1:84,84"),
    "pistonball_v6": ("color_reduction_v0:B", "resize_v1:32,84"),
    "CarRacing-v3": ("color_reduction_v0:full", "resize_v1:42,42"),
    "ALE/": SCREEN,
}
"""Wrappers that make images smaller, because the default module reads all pixels."""
MAMUJOCO = {
    "Ant": ("2x4", "2x4d", "4x2"),
    "HalfCheetah": ("2x3", "6x1"),
    "Hopper": ("3x1",),
    "Humanoid": ("9|8",),
    "HumanoidStandup": ("9|8",),
    "Reacher": ("2x1",),
    "Swimmer": ("2x1",),
    "Pusher": ("3p",),
    "Walker2d": ("2x3",),
    "InvertedPendulum": (None,),
    "InvertedDoublePendulum": (None,),
    "ManySegmentSwimmer": ("10x2",),
    "ManySegmentAnt": ("2x3",),
    "CoupledHalfCheetah": ("1p1",),
}
ENV_CONFIG = {name: {"render_mode": "rgb_array"} for name in ("cooperative_pong_v6", "pistonball_v6")}
"""Settings without which agents see the same picture in all steps of an episode (in PettingZoo 1.27)."""
GYMNASIUM = ("classic_control", "toy_text", "box2d", "mujoco")
NEEDED = {"hanabi_v5": "pyspiel", "mujoco": "mujoco", "box2d": "Box2D"}
"""What environments import only when they are made."""


@dataclass(frozen=True)
class Case:
    """An environment with one choice of settings."""

    suite: str
    env: str
    env_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.env_config.items())
        return f"{self.env} ({settings})" if settings else self.env

    @property
    def wrappers(self) -> tuple[str, ...]:
        return next((given for name, given in WRAPPERS.items() if name in self.env or name == self.suite), ())


def cases(suite: str | None = None) -> list[Case]:
    """Returns all environments of the installed suites, parallel and turn-based."""
    made = [case for name in SUITES if name != "marl_envs" and suite in (None, name) for case in _of_suite(name)]
    return made + (list(_gymnasium()) if suite in (None, "gymnasium") else [])


def _is_installed(module: str | None) -> bool:
    return module is None or importlib.util.find_spec(module) is not None


def _of_suite(suite: str) -> Iterator[Case]:
    if suite == "mamujoco":
        if environments_of(SUITES[suite]):
            for scenario, parts in MAMUJOCO.items():
                for part in parts:
                    yield Case(suite, "mamujoco_v1", {"scenario": scenario, "agent_conf": part})
        return
    for name in environments_of(SUITES[suite]):
        if not _is_installed(NEEDED.get(name)):
            continue
        try:
            module = importlib.import_module(f"{SUITES[suite]}.{name}")
        except ImportError:  # its extra is not installed
            continue
        for form in ("parallel_env", "env"):
            if hasattr(module, form):
                yield Case(suite, f"{name}:{form}", ENV_CONFIG.get(name, {}))
                if suite == "mpe2" and form == "parallel_env":
                    yield Case(suite, f"{name}:{form}", {"continuous_actions": True})


def _gymnasium() -> Iterator[Case]:
    newest: dict[str, str] = {}
    for env_id, spec in gymnasium.registry.items():
        part = next((part for part in GYMNASIUM if f"gymnasium.envs.{part}" in str(spec.entry_point)), None)
        if part is not None and _is_installed(NEEDED.get(part)):
            name, _, version = env_id.rpartition("-v")
            newest[name] = max(newest.get(name, ""), f"{name}-v{version}")
    for env_id in newest.values():
        yield Case("gymnasium", env_id)
        if env_id == "FrozenLake-v1":
            yield Case("gymnasium", env_id, {"is_slippery": False})
    for package, ids in {
        "ale_py": ("ALE/Pong-v5",),
        "gymnasium_robotics": ("FetchReach-v4", "PointMaze_UMaze-v3"),
    }.items():
        if importlib.util.find_spec(package):
            for env_id in ids:
                yield Case("gymnasium", env_id if "/" in env_id else f"{package}:{env_id}")


def pieces_for(space: spaces.Space, *, masked: bool) -> list[Any]:
    """Returns env-to-module pieces that convert an agent's observations to float vectors or images.

    Args:
        space: The agent's observation space.
        masked: Whether its infos contain action masks.
    """
    pieces: list[Any] = []
    if isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
        pieces.append(ActionMasking())
        space = space["observation"]
    elif masked:
        pieces.append(ActionMasking(source="infos"))
    if not isinstance(space, spaces.Box):
        pieces.append(FlattenObservations())
    elif space.dtype == np.uint8 and len(space.shape) in (2, 3):
        pieces.append(ImageToFloat())
    return pieces


def policies_for(setup: EnvSpec) -> str:
    """Returns ``policies`` such that agents with equal spaces share a policy, if patterns of names can express that."""
    by_stem: dict[str, set[str]] = {}
    for agent_id in setup.agent_ids:
        stem = re.sub(r"_?\d+$", "", str(agent_id))
        by_stem.setdefault(stem, set()).add(str(setup.agent_spaces(agent_id)))
    if len(set.union(*by_stem.values())) == 1:
        return "shared"
    if all(len(kinds) == 1 for kinds in by_stem.values()):
        return ",".join(f"{stem}_*={stem}" for stem in by_stem)
    return "independent"


def config_for(case: Case, *, agent_steps: int = 600, num_envs: int = 2) -> PPOConfig:
    """Returns the config of a run with small networks.

    Args:
        case: The environment.
        agent_steps: The smallest number of agent steps in each iteration.
        num_envs: The number of sub-environments.
    """
    setup = EnvSpec(case.env, case.env_config, wrappers=case.wrappers)
    _, infos = setup.sample_env.reset(seed=0)
    masked = any("action_mask" in info for info in infos.values())
    setup.sample_env.close()

    def pieces(env: Any, spaces: Any, device: Any) -> list[Any]:
        return pieces_for(setup.agent_spaces(setup.agent_ids[0])[0], masked=masked)

    config = (
        PPOConfig()
        .environment(case.env, env_config=dict(case.env_config), wrappers=list(case.wrappers))
        .env_runners(num_envs_per_env_runner=num_envs, num_env_workers=0, env_to_module_connector=pieces)
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .training(
            train_batch_size_per_learner=max(agent_steps, num_envs * len(setup.agent_ids)),
            minibatch_size=128,
            num_epochs=1,
        )
    )
    if setup.single_agent:
        return config
    return config.multi_agent(policies=policies_for(setup), count_steps_by="agent_steps")
