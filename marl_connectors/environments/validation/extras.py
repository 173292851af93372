"""What an environment has besides steps: a global state, pictures, an end, and how its episodes come to it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from marl_connectors.environments.validation.calls import CallFailed
from marl_connectors.environments.validation.checks import state_violation
from marl_connectors.environments.validation.players import Outcome, Played, Session
from marl_connectors.environments.validation.rules import violation
from marl_connectors.errors import describe_error
from marl_connectors.typing import AgentID


def check_metadata(env: Any, session: Session) -> None:
    """Whether the environment says who may take part, and how it can be drawn."""
    note = session.findings.note
    if not isinstance(env, gym.Env) and not getattr(env, "possible_agents", None):
        note("no-possible-agents", "There is no list possible_agents")
    metadata = getattr(env, "metadata", None)
    if not isinstance(metadata, dict):
        note("no-metadata", "There is no dict called metadata")
    elif "render_modes" not in metadata:
        note("no-render-modes", "the metadata have no render_modes")


def check_state(env: Any, session: Session) -> None:
    """Whether ``state()`` works, right after a reset."""
    if isinstance(env, gym.Env):
        return
    state = session.calls("state()", lambda: _state(env), kind="state-raises", step=0)
    if state is NotImplemented:
        session.findings.note("no-state", "There is no state()")
        return
    space = getattr(env, "state_space", None)
    if not isinstance(space, gym.Space):
        return
    try:
        found = state_violation(space, state)
    except Exception as error:
        found = violation("state-outside-space", f"the state does not fit state_space: {describe_error(error)}")
    if found:
        session.findings.add(found, 0)


def _state(env: Any) -> Any:
    try:
        return env.state()
    except NotImplementedError:
        return NotImplemented


def check_rendering(env: Any, mode: str, session: Session, seed: int) -> None:
    """Whether ``render()`` gives what its mode promises, in a copy that was made with that mode."""
    how = f"with render_mode={mode!r}"
    try:
        session.calls(f"reset() {how}", lambda: env.reset(seed=seed), kind="render-raises")
        frame = session.calls(f"render() {how}", env.render, kind="render-raises")
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
        session.findings.note("render", f"render() {how} gives {wrong}")


def check_close(env: Any, session: Session) -> None:
    """Closes a copy."""
    try:
        session.calls("close()", env.close, kind="close-raises")
    except CallFailed:
        return


def check_ends(episodes: Sequence[Played], max_steps: int, session: Session) -> None:
    """How the played episodes came to their ends."""
    over = [episode for episode in episodes if episode.is_over]
    if episodes and not over and any(len(episode.steps) >= max_steps for episode in episodes):
        what = f"No episode ended within {max_steps:,} steps, so that nothing is known about ends"
        session.findings.note("no-end", what)
    lengths = {len(episode.steps) for episode in over}
    if len(over) == len(episodes) >= 3 and len(lengths) == 1 and lengths != {1}:
        if any(episode.flags != {"terminated"} for episode in over):
            return
        what = f"All {len(over)} episodes end with a termination at step {max(lengths)}"
        session.findings.note("ends-always-terminated", what)


def check_last_observations(episodes: Sequence[Played], session: Session) -> None:
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
    what = "the last observation of every truncated episode is the first one of the next"
    session.findings.note("last-observation-is-first", what)


def _observations(outcome: Outcome) -> dict[AgentID, bytes]:
    return {agent: token for (what, agent), token in outcome.tokens.items() if what == "observation"}


def check_agents_seen(env: Any, agents: Sequence[AgentID], session: Session) -> None:
    """Whether all possible agents came to play."""
    missing = [agent for agent in agents if agent not in session.seen]
    if missing and not isinstance(env, gym.Env):
        shown = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        session.findings.note("agents-never-seen", f"Of possible_agents, {shown} never took part")
