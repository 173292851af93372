"""Runs of configurations that are drawn at random, and what of them must come out the same again."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import marl_connectors
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, LifeEnv, small_config
from helpers.envs.spaces_env import SpacesEnv
from marl_connectors import (
    Columns,
    ConnectorV2,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PPOConfig,
    PrevActionsPrevRewards,
    TimeLimitEncoding,
)
from marl_connectors.algorithms.mappo import MAPPOConfig
from marl_connectors.callbacks import Callbacks
from marl_connectors.state import State, fields_of

WIDE = spaces.Box(-1.0, 1.0, (5,), np.float64)
LINE = spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = spaces.Dict(
    [("z", spaces.Box(-1, 1, (2,))), ("a", spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))]))]
)
ACTIONS = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=2),
    LINE,
    spaces.MultiDiscrete([2, 3]),
    spaces.Dict([("y", spaces.Discrete(2)), ("b", spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)]))]),
]


class AddsCount(ConnectorV2):
    """On columns, with a state of its own: how often it was called goes into the observation."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = {(0, "first"): None}  # a list could be no key

    def columns(self, c, xp):
        self.calls += 1
        self.seen = {(self.calls % 7, *next(iter(self.seen))[:1]): None}
        observations = c.rows.get(Columns.OBS)
        c.rows.set(Columns.OBS, (observations + 0.01 * (self.calls % 7)).astype(observations.dtype))

    def get_state(self):
        return {"calls": self.calls, "seen": [*self.seen]}

    def set_state(self, state):
        self.calls = state["calls"]
        self.seen = dict.fromkeys(state["seen"])


class Doubles(ConnectorV2):
    """On items, writing to the episodes."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=2 * episode.get_observations(-1), at_indices=-1)
        return batch


class Notes(Callbacks):
    """Leaves notes in episodes, which later ones follow from."""

    def on_episode_step(self, *, episode, metrics_logger, **kwargs):
        episode.custom_data["steps"] = episode.custom_data.get("steps", 0) + 1

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("steps", episode.custom_data["steps"], reduce="sum")


def by_episode(agent_id, episode, **kwargs):
    """A mapping function under which agents change modules."""
    return "ab"[zlib.crc32(f"{agent_id} {episode.id_}".encode()) % 2]


KINDS = {"life": LifeEnv, "turns": RandomAEC, "spaces": SpacesEnv}


def make(env_config: dict[str, Any]) -> Any:
    """Also in another process."""
    return KINDS[env_config["kind"]](**env_config["settings"])


def random_env(rng: np.random.Generator) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """An environment's name and its config, and what is known of it."""
    kind = rng.choice(["life", "turns", "spaces", "CartPole-v1", "match"], p=[0.4, 0.2, 0.2, 0.1, 0.1])
    if kind == "CartPole-v1":
        return "CartPole-v1", {}, {"single": True, "box": True}
    action_space = ACTIONS[rng.integers(len(ACTIONS))]
    if kind == "match":
        return "marl_envs.match_v0", {"n_agents": 3, "n_actions": 3, "ep_len": 4}, {"box": True}
    if kind == "spaces":
        seen = [BOX, WIDE, NESTED][rng.integers(3)]
        length = int(rng.integers(1, 9))
        settings = {"observation_space": seen, "action_space": action_space, "length": length}
        return "helpers.runs.random_runs:make", {"kind": "spaces", "settings": settings}, {"box": seen is not NESTED}
    action_space = ACTIONS[rng.integers(len(ACTIONS) - 1)]  # LifeEnv takes arrays only
    alike = bool(rng.random() < 0.6)
    ends = {
        "die": float(rng.choice([0.0, 0.2, 0.5])),
        "join": float(rng.choice([0.0, 0.3, 0.6])),
        "fixed": bool(rng.random() < 0.5),
        "max_steps": int(rng.integers(1, 14)),
    }
    if kind == "turns":
        action_space, ends["back"] = spaces.Discrete(3), float(rng.choice([0.0, 0.4]))
    of_others = {} if alike else {"c": (WIDE, action_space), "d": (BOX, spaces.Discrete(2))}
    spaces_of = dict.fromkeys("abcd", (BOX, action_space)) | of_others
    if kind == "turns":
        spaces_of = {agent: (own[0], spaces.Discrete(3)) for agent, own in spaces_of.items()}
    settings = {"agents": list("abcd"), "spaces_of": spaces_of, **ends}
    return "helpers.runs.random_runs:make", {"kind": str(kind), "settings": settings}, {"box": True, "alike": alike}


def random_config(seed: int) -> PPOConfig:
    """A configuration in which anything that may go together does, sooner or later."""
    rng = np.random.default_rng(seed)
    env, env_config, known = random_env(rng)
    alike, box = known.get("alike", True), known["box"]
    wants_state = bool(rng.random() < 0.25)
    algorithm = MAPPOConfig if box and not known.get("single") and not wants_state and rng.random() < 0.1 else PPOConfig
    config = small_config(env, algorithm, env_config=env_config)
    model: dict[str, Any] = {"fcnet_hiddens": (4,)}
    if wants_state:
        model |= {
            str(rng.choice(["use_lstm", "use_gru"])): True,
            "lstm_cell_size": 3,
            "max_seq_len": int(rng.integers(2, 6)),
        }
    config.rl_module(model_config=model)
    if not known.get("single"):
        policies = rng.choice(["shared", "independent", "function"]) if alike else "independent"
        if policies == "function":
            config.multi_agent(policies={"a", "b"}, policy_mapping_fn=by_episode)
        else:
            config.multi_agent(policies=str(policies))
    if algorithm is PPOConfig:
        add_pieces(config, rng, box=box, alike=alike)
    if rng.random() < 0.2:
        config.callbacks(Notes)
    complete = bool(rng.random() < 0.25)
    copies = int(rng.integers(1, 5))
    config.env_runners(
        num_envs_per_env_runner=copies,
        rollout_fragment_length=int(rng.integers(1, 12)),
        episode_lookback_horizon=int(rng.integers(1, 7)),
        batch_mode="complete_episodes" if complete else "truncate_episodes",
        explore=bool(rng.random() < 0.9),
        num_env_workers=2 if copies > 1 and rng.random() < 0.06 else 0,
    )
    batch = int(rng.integers(4, 40))
    config.training(
        train_batch_size_per_learner=batch,
        minibatch_size=int(rng.integers(2, batch + 1)),
        num_epochs=int(rng.integers(1, 3)),
        lr=float(rng.choice([0.0, 0.01])),
    )
    add_ppo_settings(config, np.random.default_rng([seed, 3]), box=box)
    return config.debugging(seed=int(rng.integers(1000)))


def add_ppo_settings(config: PPOConfig, rng: np.random.Generator, *, box: bool) -> None:
    """Settings of the value loss, and the time in the observation."""
    config.training(
        normalize_values=bool(rng.random() < 0.4),
        value_norm_beta=float(rng.choice([0.99999, 0.9])),
        vf_loss=str(rng.choice(["mse", "huber"])),
        vf_huber_delta=float(rng.choice([0.5, 10.0])),
    )
    if box and config.env_to_module_connector is None and rng.random() < 0.3:
        config.env_runners(env_to_module_connector=lambda: TimeLimitEncoding(max_steps=5))


def add_pieces(config: PPOConfig, rng: np.random.Generator, *, box: bool, alike: bool) -> None:
    """Connector pieces that fit the observations."""
    if not box:
        config.env_runners(env_to_module_connector=lambda: FlattenObservations())
        return
    kind = rng.choice(["none", "filter", "frames", "previous", "columns", "items"], p=[0.4, 0.15, 0.1, 0.1, 0.15, 0.1])
    if kind == "filter":
        config.env_runners(env_to_module_connector=lambda: MeanStdFilter())
    elif kind == "frames":
        config.env_runners(env_to_module_connector=lambda: FrameStacking(num_frames=3))
        config.learners(learner_connector=lambda: FrameStacking(num_frames=3, as_learner_connector=True))
    elif kind == "previous":
        config.env_runners(env_to_module_connector=lambda: [PrevActionsPrevRewards(), FlattenObservations()])
    elif kind == "columns":
        config.env_runners(env_to_module_connector=lambda: AddsCount())
    elif kind == "items":
        config.env_runners(env_to_module_connector=lambda: Doubles())


def counts_itself(config: PPOConfig) -> bool:
    """Whether a user's piece counts all steps of its own env runner."""
    pipeline = config.env_to_module_connector
    return pipeline is not None and isinstance(pipeline(), AddsCount)


def described(config: PPOConfig) -> str:
    """For messages: what is unusual about it."""
    usual = type(config)().to_dict()
    return ", ".join(f"{k}={v!r}" for k, v in config.to_dict().items() if k not in usual or repr(usual[k]) != repr(v))


# What must be the same.


def plain(value: Any) -> Any:
    """Nested data as what can be compared with ``==``: arrays as their bytes, NaN as itself."""
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], bytes):
        return value  # an array that is plain already
    if isinstance(value, State):
        value = fields_of(value)
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return repr(value)


def without_times(results: State | dict[str, Any]) -> dict[str, Any]:
    """Results or a state but for what the clock says."""
    kept = {}
    for key, value in (fields_of(results) if isinstance(results, State) else results).items():
        if isinstance(key, str) and ("time" in key or key.endswith("_per_s")):
            continue
        kept[key] = without_times(value) if isinstance(value, dict) else value
    return kept


def rows_of(episodes: list[Any]) -> list[Any]:
    """Everything that episodes hold, by agent."""
    found = []
    for episode in episodes:
        own = getattr(episode, "agent_episodes", None)
        for agent_id, part in own.items() if own is not None else [(None, episode)]:
            whole = slice(None)
            found.append(
                {
                    "who": (str(episode.id_), agent_id, part.id_, part.module_id, part.t_started),
                    "data": plain(part.get_data_dict()) if hasattr(part, "get_data_dict") else None,
                    "before": plain(part.get_observations(slice(-9, 0), neg_index_as_lookback=True, fill=0.0)),
                    "rewards": plain(part.get_rewards(whole)),
                    "ends": (part.is_terminated, part.is_truncated),
                    "notes": plain(part.custom_data),
                }
            )
    return found


_FLOAT = re.compile(r"'?(?:np\.float\d+\()?(-?\d+\.?\d*(?:e-?\d+)?)\)?'?")
ROUNDING = 0.0 if (Path(marl_connectors.__file__).parent / "accelerate").is_dir() else 1e-6
"""By how much numbers of a row may depend on the rows beside it: without accelerators, torch computes them."""


def differences(a: Any, b: Any, path: str = "", atol: float = ROUNDING) -> list[str]:
    """Where two results of ``plain`` differ, by more than ``atol`` in floats."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b})
        return [d for k in keys for d in differences(a.get(k, "missing"), b.get(k, "missing"), f"{path}/{k}", atol)]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}/{i}", atol)]
    if atol and isinstance(a, tuple) and isinstance(b, tuple) and a[:2] == b[:2] and str(a[0]).startswith("float"):
        numbers = [np.frombuffer(own[2], own[0]) for own in (a, b)]
        return [] if np.allclose(*numbers, rtol=10 * ROUNDING, atol=atol, equal_nan=True) else [path]
    if ROUNDING and (numbers := [_FLOAT.fullmatch(own) for own in (a, b) if isinstance(own, str)]) and all(numbers):
        return [] if np.allclose(*(float(own[1]) for own in numbers), rtol=10 * ROUNDING, atol=atol) else [path]
    return [] if a == b else [f"{path}: {str(a)[:120]} != {str(b)[:120]}"]
