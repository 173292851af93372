"""Random games by hand, whole or in chunks that are cut anywhere."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from marl_connectors import MultiAgentEpisode

POOL = "abc"
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def played(seed, number, *, cut=0.0):
    """Returns the chunks of a game in which agents take turns or act at once, wait, die at any time, and come back.

    Agents are paid at any time, too: while they wait, before they come, and after they have died.

    Args:
        seed: Decides the game.
        number: Its number, which observations begin with.
        cut: The chance of a cut after each step; 0.0 for one chunk, which is the whole game.
    """
    rng, of_cuts = np.random.default_rng([seed, number]), np.random.default_rng([seed, number, 1])
    lookback = int(of_cuts.integers(3))
    name = f"e{number}" if rng.random() < 0.5 else f"{number}-0"
    episode = MultiAgentEpisode(
        name,
        observation_space=dict.fromkeys(POOL, BOX),
        action_space=dict.fromkeys(POOL, spaces.Discrete(9)),
        agent_to_module_mapping_fn=lambda agent, episode: "x" if agent == "a" else "y",
    )

    def seen(agent, t):
        return np.array([number, POOL.index(agent), t], np.float32)

    act, look, die, back = rng.choice([0.3, 1.0]), rng.choice([0.3, 0.8]), rng.choice([0.0, 0.2]), rng.choice([0, 0.3])
    pay = rng.choice([0.0, 0.3])
    episode.add_env_reset(observations={a: seen(a, 0) for a in POOL if a == "a" or rng.random() < 0.7})
    chunks, num_steps, is_cut_short = [episode], int(rng.integers(1, 12)), rng.random() < 0.3
    for t in range(1, num_steps + 1):
        own = {a: e for a, e in sorted(episode.agent_episodes.items()) if not e.is_done}
        actions = {a: t % 9 for a in sorted(episode.get_agents_to_act()) if rng.random() < act}
        waiting = [a for a, e in own.items() if e.storage.pending() is not None or a in actions]
        ends = {a: bool(rng.random() < 0.5) for a in own if rng.random() < die}
        observed = [a for a in waiting if rng.random() < look]
        observed += [a for a in POOL if a not in own and rng.random() < back]
        is_last = t == num_steps and not is_cut_short
        terminateds, truncateds = ({a: True for a, dies in ends.items() if dies is kind} for kind in (True, False))
        terminateds["__all__"] = is_last and rng.random() < 0.5
        truncateds["__all__"] = is_last and not terminateds["__all__"]
        episode.add_env_step(
            {a: seen(a, t) for a in observed},
            actions,
            {a: float(rng.integers(9)) for a in POOL if a in own or rng.random() < pay},
            terminateds=terminateds,
            truncateds=truncateds,
        )
        if all(e.is_done for e in episode.agent_episodes.values()):
            break
        if of_cuts.random() < cut:
            episode = episode.cut(lookback)
            chunks.append(episode)
    return chunks
