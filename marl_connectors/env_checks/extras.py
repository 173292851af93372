"""What an environment has besides steps: a global state, pictures, an end, and how its episodes come to it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from marl_connectors.env_checks.calls import CallFailed
from marl_connectors.env_checks.play import Checks, Played, Told
from marl_connectors.errors import describe_error
from marl_connectors.spaces import misfit
from marl_connectors.typing import AgentID


def check_metadata(env: Any, checks: Checks) -> None:
    """Whether the environment says who may take part, and how it can be drawn."""
    add = checks.findings.add
    if not isinstance(env, gym.Env) and not getattr(env, "possible_agents", None):
        add(
            "note",
            "no-possible-agents",
            "There is no list possible_agents.",
            "A run asks the first reset for agents. Those that come later need modules of their own to be named.",
        )
    metadata = getattr(env, "metadata", None)
    if not isinstance(metadata, dict):
        add("note", "no-metadata", "There is no dict called metadata.", "Give it at least name and render_modes.")
    elif "render_modes" not in metadata:
        add(
            "note",
            "no-render-modes",
            "The metadata have no render_modes.",
            "List them, [] if there are none. Videos need rgb_array.",
        )


def check_state(env: Any, checks: Checks) -> None:
    """Whether ``state()`` works, right after a reset."""
    if isinstance(env, gym.Env):
        return
    state = checks.calls("state()", lambda: _state(env), level="warning", kind="state-raises", step=0)
    if state is NotImplemented:
        checks.findings.add(
            "note",
            "no-state",
            "There is no state().",
            "A centralised critic then has to be built from the observations of all agents.",
        )
        return
    space = getattr(env, "state_space", None)
    if not isinstance(space, gym.Space):
        return
    try:
        why = misfit(space, state)
    except Exception as error:
        why = describe_error(error)
    if why:
        checks.findings.add(
            "warning",
            "state-outside-space",
            f"The state does not fit state_space: {why}.",
            "Correct the state, or state_space.",
            step=0,
        )


def _state(env: Any) -> Any:
    try:
        return env.state()
    except NotImplementedError:
        return NotImplemented


def check_rendering(env: Any, mode: str, checks: Checks, seed: int) -> None:
    """Whether ``render()`` gives what its mode promises, in a copy that was made with that mode."""
    settings: dict[str, Any] = {"level": "warning", "kind": "render-raises", "advice": "Videos need rgb_array."}
    try:
        checks.calls(f"reset() with render_mode={mode!r}", lambda: env.reset(seed=seed), **settings)
        frame = checks.calls(f"render() with render_mode={mode!r}", env.render, **settings)
    except CallFailed:
        return
    if mode == "ansi":
        wrong = "" if isinstance(frame, str) or hasattr(frame, "getvalue") else f"a {type(frame).__name__}, not text"
    elif not isinstance(frame, np.ndarray):
        wrong = f"a {type(frame).__name__}, not an array"
    else:
        fine = frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8
        wrong = "" if fine else f"an array of shape {frame.shape} {frame.dtype}, not [height, width, 3] uint8"
    if wrong:
        checks.findings.add(
            "warning", "render", f"render() with render_mode={mode!r} gives {wrong}.", "Videos need rgb_array frames."
        )


def check_close(env: Any, checks: Checks) -> None:
    """Closes a copy."""
    try:
        checks.calls("close()", env.close, level="warning", kind="close-raises", advice="Let it do nothing then.")
    except CallFailed:
        return


def check_ends(episodes: Sequence[Played], max_steps: int, checks: Checks) -> None:
    """How the played episodes came to their ends."""
    over = [episode for episode in episodes if episode.is_over]
    if episodes and not over and any(len(episode.steps) >= max_steps for episode in episodes):
        checks.findings.add(
            "warning",
            "no-end",
            f"No episode ended within {max_steps:,} steps, so that nothing is known about ends.",
            "Allow more (max_steps=, --max-steps). If there is no end, returns are never reported: add a time limit.",
        )
    lengths = {len(episode.steps) for episode in over}
    if len(over) == len(episodes) >= 3 and len(lengths) == 1 and lengths != {1}:
        if any(episode.flags != {"terminated"} for episode in over):
            return
        checks.findings.add(
            "note",
            "ends-always-terminated",
            f"All {len(over)} episodes end with a termination at step {max(lengths)}.",
            "If that is a time limit, it must be a truncation: after a termination, nothing is expected to come.",
        )


def check_last_observations(episodes: Sequence[Played], checks: Checks) -> None:
    """Whether truncated episodes end with what the next one begins with, as it does where ``step`` resets by itself."""
    pairs = [(one, after) for one, after in itertools.pairwise(episodes) if one.flags == {"truncated"}]
    if not pairs:
        return
    for one, after in pairs:
        first = _observations(after.first)
        last = _observations(one.steps[-1][1])
        before = _observations(one.steps[-2][1] if len(one.steps) > 1 else one.first)
        if not last or any(first.get(agent) != seen or before.get(agent) == seen for agent, seen in last.items()):
            return
    checks.findings.add(
        "warning",
        "last-observation-is-first",
        "The last observation of every truncated episode is the first one of the next.",
        "Return the state in which an episode was stopped, which its value is estimated from; do not reset in step().",
    )


def _observations(told: Told) -> dict[AgentID, bytes]:
    return {agent: token for what, agent, token in told.tokens if what == "observation"}


def check_agents_seen(env: Any, agents: Sequence[AgentID], checks: Checks) -> None:
    """Whether all possible agents came to play."""
    missing = [agent for agent in agents if agent not in checks.seen]
    if missing and not isinstance(env, gym.Env):
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        checks.findings.add(
            "note",
            "agents-never-seen",
            f"Of possible_agents, {shown} never took part.",
            "Play more episodes (episodes=, --episodes) to check them too.",
        )
