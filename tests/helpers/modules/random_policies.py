"""Random spaces, connector pieces and modules, for tests that compare two ways of acting."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from helpers.modules.policies_by_hand import give_statistics, make_policy
from marl_connectors import (
    ActionMasking,
    AgentIdEncoding,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    OneHotObservations,
    PadObservations,
    PrevActionsPrevRewards,
    TimeLimitEncoding,
)
from marl_connectors.spaces import values_per_choice


def random_policy(rng):
    """Returns a policy, and a text that describes it."""
    masked = rng.choice(["", "", "observations", "infos"])
    action_space = random_action_space(rng)
    if values_per_choice(action_space) is None:
        masked = ""
    num_agents = int(rng.integers(0, 4))
    flat = bool(rng.random() < 0.7)
    pieces = []
    if masked:
        pieces.append(ActionMasking(action_mask_key="mask", source=masked, observation_key=rng.choice(["seen", None])))
    if flat:
        pieces.append(FlattenObservations())
        pieces += flat_pieces(rng, num_agents)
    else:
        pieces += [p for p in (OneHotObservations(), MeanStdFilter()) if rng.random() < 0.4]
    observation_space = random_space(rng, depth=0 if rng.random() < 0.5 else 2)
    if not flat and any(isinstance(piece, MeanStdFilter) for piece in pieces):
        observation_space = spaces.Dict({"seen": random_box(rng), "rest": observation_space})
    if masked == "observations":
        observation_space = spaces.Dict({"seen": observation_space, "mask": mask_space(action_space)})
    agents = observation_space, action_space
    if num_agents:
        agents = {f"agent_{i}": (observation_space, action_space) for i in range(num_agents)}
    model_config = {"fcnet_hiddens": [int(rng.integers(3, 9))], "fcnet_activation": str(rng.choice(["tanh", "relu"]))}
    kind = rng.choice(["plain", "plain", "lstm", "gru", "lstm of both"])
    if kind != "plain":
        cell = "gru" if kind == "gru" else "lstm"
        model_config |= {f"use_{cell}": True, f"{cell}_cell_size": 5, "vf_share_layers": kind != "lstm of both"}
    if rng.random() < 0.4:
        model_config["action_distribution"] = str(rng.choice(["gaussian", "beta", "squashed_gaussian"]))
    mapping = str(rng.choice(["shared", "independent"])) if num_agents else "shared"
    policy = make_policy(
        agents,
        pieces,
        mapping=mapping,
        model_config=model_config,
        clip_actions=bool(rng.random() < 0.5),
        normalize_actions=bool(rng.random() < 0.7),
        seed=int(rng.integers(2**31)),
    )
    text = f"{observation_space} -> {action_space}; {num_agents} agents, {mapping}; {pieces}; {model_config}"
    return give_statistics(policy, int(rng.integers(2**31))), text


def flat_pieces(rng, num_agents):
    chosen = [
        MeanStdFilter(share_between_agents=False, clip_by_value=rng.choice([None, 1.5])),
        AgentIdEncoding() if num_agents else None,
        PadObservations(),
        TimeLimitEncoding(max_steps=3),
        PrevActionsPrevRewards(n_prev_actions=int(rng.integers(0, 3)), n_prev_rewards=int(rng.integers(1, 4))),
    ]
    pieces = [piece for piece in chosen if piece is not None and rng.random() < 0.4]
    if rng.random() < 0.4:
        pieces.append(FrameStacking(num_frames=int(rng.integers(1, 4))))
    return pieces


def random_box(rng):
    shape = tuple(rng.integers(1, 4, size=rng.integers(0, 3)).tolist())
    return spaces.Box(-2.0, 3.0, shape, rng.choice([np.float32, np.float64]))


def random_space(rng, depth):
    kinds = ["box", "box", "bytes", "number", "numbers", "bits"] + ["dict", "tuple"] * depth
    match rng.choice(kinds):
        case "box":
            return random_box(rng)
        case "bytes":
            return spaces.Box(0, 255, (int(rng.integers(1, 5)),), np.uint8)
        case "number":
            return spaces.Discrete(int(rng.integers(2, 5)), start=int(rng.integers(-2, 3)))
        case "numbers":
            return spaces.MultiDiscrete(rng.integers(2, 4, size=rng.integers(1, 4)))
        case "bits":
            return spaces.MultiBinary(int(rng.integers(1, 4)))
        case "dict":
            return spaces.Dict({key: random_space(rng, depth - 1) for key in "ab"})
        case "tuple":
            return spaces.Tuple([random_space(rng, depth - 1) for _ in range(2)])


def random_action_space(rng, depth=1):
    kinds = ["number", "number", "numbers", "bits", "box", "box"] + ["dict", "tuple"] * depth
    match rng.choice(kinds):
        case "number":
            return spaces.Discrete(int(rng.integers(2, 6)), start=int(rng.integers(-2, 3)))
        case "numbers":
            return spaces.MultiDiscrete(rng.integers(2, 5, size=(2, 2) if rng.random() < 0.3 else 3))
        case "bits":
            return spaces.MultiBinary([2, 2] if rng.random() < 0.3 else 3)
        case "box":
            low, shape = rng.uniform(-3.0, -0.5), (2, 2) if rng.random() < 0.3 else (2,)
            return spaces.Box(low, low + 2.0, shape, rng.choice([np.float32, np.float64]))
        case "dict":
            return spaces.Dict({key: random_action_space(rng, 0) for key in "xy"})
        case "tuple":
            return spaces.Tuple([random_action_space(rng, 0) for _ in range(2)])


def mask_space(space):
    """Returns the space of the masks of an action space, in the form of environments."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: mask_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([mask_space(part) for part in space.spaces])
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 2, space.shape, np.int8)
    return spaces.Box(0, 1, (sum(values_per_choice(space) or [0]),), np.int8)
