"""Compares methods of episodes with RLlib's: ``python benchmarks/episodes.py --peer RLLIB_PYTHON``.

``RLLIB_PYTHON`` is the interpreter of an environment with ``ray[rllib]==2.60.0``. Both sides run the same code in
turn, each in a separate process on one thread. The time of a run is the fastest of several repetitions, and each pair
of runs gives one ratio. Without ``--peer``, only this toolkit is measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

AGENTS = [f"agent_{i}" for i in range(8)]
STEPS = 200
LISTS, ARRAYS, VIEWS = "lists", "arrays", "views"


class Case(NamedTuple):
    """One call.

    Attributes:
        kind: How the episode is stored.
        name: The name of the call.
        call: The function that is timed.
        prepare: Makes the argument of each call, without being timed.
        agent_steps: The number of agent-steps that one call processes.
    """

    kind: str
    name: str
    call: Callable[[Any], Any]
    prepare: Callable[[], Any]
    agent_steps: int


class Game(NamedTuple):
    """The data of an episode.

    Attributes:
        observations: By env step, then by agent.
        actions: By env step, then by agent; one less than observations.
        rewards: By env step, then by agent; as many as actions.
        extras: Extra model outputs by env step, then by agent; as many as actions.
    """

    observations: list[dict]
    actions: list[dict]
    rewards: list[dict]
    extras: list[dict]


def parallel_game() -> Game:
    """Returns a game in which all agents observe and act in every step."""
    rng = np.random.default_rng(0)
    steps = range(STEPS)
    return Game(
        [{a: rng.random(16, np.float32) for a in AGENTS} for _ in range(STEPS + 1)],
        [{a: int(rng.integers(5)) for a in AGENTS} for _ in steps],
        [{a: float(rng.random()) for a in AGENTS} for _ in steps],
        [{a: {"action_logp": -1.0} for a in AGENTS} for _ in steps],
    )


def turn_based_game() -> Game:
    """Returns a game in which two agents take turns."""
    rng = np.random.default_rng(0)
    turns = [AGENTS[t % 2] for t in range(STEPS + 1)]
    return Game(
        [{a: rng.random(16, np.float32)} for a in turns],
        [{a: int(rng.integers(5))} for a in turns[:-1]],
        [{a: 1.0} for a in turns[:-1]],
        [{a: {"action_logp": -1.0}} for a in turns[:-1]],
    )


def toolkit() -> dict[str, Any]:
    """Returns this toolkit's episode classes, and a function that makes episodes like those of a runner."""
    from gymnasium.spaces import Box, Discrete

    from marl_connectors import MultiAgentEpisode, SingleAgentEpisode
    from marl_connectors.columns import Columns
    from marl_connectors.episodes.lane_storage import LaneStorage
    from marl_connectors.episodes.rollout import Rollout

    def views(source: Any) -> Any:
        """Returns the same episode as views of a rollout."""
        lives = source.agent_episodes
        rows = max(len(life) for life in lives.values()) + 1
        rollout = Rollout(Box(-np.inf, np.inf, (16,)), Discrete(5), num_rows=rows, num_lanes=len(lives))
        of_agents = {}
        for lane, (agent_id, life) in enumerate(lives.items()):
            storage = life.to_numpy().storage
            for name in (*storage.extra_keys(), Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T):
                values = storage.column(name)
                here = slice(lane, len(values) * len(lives) + lane, len(lives))
                rollout.columns.setdefault(name, np.zeros(rows * len(lives), values.dtype))[here] = values
            view = LaneStorage(rollout, lane, first_row=0, start_row=0, stop_row=len(life))
            of_agents[agent_id] = SingleAgentEpisode.from_storage(
                view, id_=life.id_, agent_id=agent_id, module_id="m", multi_agent_episode_id=source.id_
            )
        return MultiAgentEpisode.from_agent_episodes("e", of_agents, env_t_started=0, env_t=source.env_t)

    return {"multi": MultiAgentEpisode, "single": SingleAgentEpisode, "views": views}


def rllib() -> dict[str, Any]:
    """Returns RLlib's episode classes."""
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return {"multi": MultiAgentEpisode, "single": SingleAgentEpisode, "views": None}


def played(multi: type, game: Game, until: int = STEPS) -> Any:
    """Returns the episode of a game, which is added step by step."""
    episode = multi()
    episode.add_env_reset(observations=game.observations[0])
    for t in range(until):
        episode.add_env_step(
            game.observations[t + 1], game.actions[t], game.rewards[t], extra_model_outputs=game.extras[t]
        )
    return episode


def played_alone(single: type, game: Game) -> Any:
    """Returns the episode of the first agent of a parallel game."""
    episode, who = single(), AGENTS[0]
    episode.add_env_reset(game.observations[0][who])
    for t in range(STEPS):
        episode.add_env_step(
            game.observations[t + 1][who],
            game.actions[t][who],
            game.rewards[t][who],
            extra_model_outputs=game.extras[t][who],
        )
    return episode


READS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "newest observations": (lambda e: e.get_observations(-1), 1),
    "newest rewards": (lambda e: e.get_rewards(-1), 1),
    "get_observations()": (lambda e: e.get_observations(), STEPS),
    "get_actions()": (lambda e: e.get_actions(), STEPS),
    "get_rewards()": (lambda e: e.get_rewards(), STEPS),
    "get_infos()": (lambda e: e.get_infos(), STEPS),
    "get_extra_model_outputs(key)": (lambda e: e.get_extra_model_outputs("action_logp"), STEPS),
    "get_observations(50:150)": (lambda e: e.get_observations(slice(50, 150)), 100),
    "get_observations([3, 7, 150])": (lambda e: e.get_observations([3, 7, 150]), 3),
    "get_rewards(-5:, fill)": (lambda e: e.get_rewards(slice(-5, None), fill=0.0), 5),
    "get_observations(-10:10, fill)": (
        lambda e: e.get_observations(slice(-10, 10), neg_index_as_lookback=True, fill=0.0),
        20,
    ),
    "get_return()": (lambda e: e.get_return(), STEPS),
    "cut(10)": (lambda e: e.cut(len_lookback_buffer=10), 1),
    "episode[50:150]": (lambda e: e[50:150], 100),
    "get_state()": (lambda e: e.get_state(), STEPS),
}
READS_OF_ALL = {
    "get_observations(env_steps=False)": (lambda e: e.get_observations(env_steps=False), STEPS),
    "get_observations(-1, env_steps=False)": (lambda e: e.get_observations(-1, env_steps=False), 1),
    "get_observations(50:150, return_list)": (lambda e: e.get_observations(slice(50, 150), return_list=True), 100),
    "get_observations(-3:, return_list)": (lambda e: e.get_observations(slice(-3, None), return_list=True), 3),
    "get_rewards(-1, one agent)": (lambda e: e.get_rewards(-1, AGENTS[0]), 1 / 8),
    "get_agents_to_act()": (lambda e: e.get_agents_to_act(), 1),
    "get_agents_that_stepped()": (lambda e: e.get_agents_that_stepped(), 1),
    "get_terminateds()": (lambda e: e.get_terminateds(), 1),
    "len, env_steps, agent_steps": (lambda e: (len(e), e.env_steps(), e.agent_steps()), 1),
}


def writes(new_rewards: Any, new_observation: Any) -> dict[str, tuple[Callable[[Any], Any], int]]:
    """Returns calls of setters, which do not change the length of the episode."""
    return {
        "set_rewards(all)": (lambda e: e.set_rewards(new_data=new_rewards), STEPS),
        "set_observations(-1)": (lambda e: e.set_observations(new_data=new_observation, at_indices=-1), 1),
    }


def cases(classes: dict[str, Any]) -> Iterator[Case]:
    """Yields all calls: on episodes of lists, on episodes of arrays, and on views as a runner returns them."""
    multi, single = classes["multi"], classes["single"]
    game, turns = parallel_game(), turn_based_game()
    agents = len(AGENTS)
    yield Case(LISTS, "add_env_step", lambda _: played(multi, game), lambda: None, STEPS * agents)
    yield Case(LISTS, "turns: add_env_step", lambda _: played(multi, turns), lambda: None, STEPS)
    yield Case(LISTS, "single: add_env_step", lambda _: played_alone(single, game), lambda: None, STEPS)
    yield Case(LISTS, "to_numpy()", lambda e: e.to_numpy(), lambda: played(multi, game), STEPS * agents)
    yield Case(LISTS, "single: to_numpy()", lambda e: e.to_numpy(), lambda: played_alone(single, game), STEPS)

    def chunks() -> tuple[Any, Any]:
        first = played(multi, game, STEPS // 2)
        second = first.cut()
        for t in range(STEPS // 2, STEPS):
            second.add_env_step(
                game.observations[t + 1], game.actions[t], game.rewards[t], extra_model_outputs=game.extras[t]
            )
        return first, second

    yield Case(LISTS, "concat_episode", lambda pair: pair[0].concat_episode(pair[1]), chunks, STEPS * agents // 2)
    new_rewards = {agent_id: [0.5] * STEPS for agent_id in AGENTS}
    newest = {agent_id: np.ones(16, np.float32) for agent_id in AGENTS}
    for kind in (LISTS, ARRAYS, VIEWS):
        whole, alone, of_turns = played(multi, game), played_alone(single, game), played(multi, turns)
        if kind == ARRAYS:
            whole.to_numpy(), alone.to_numpy(), of_turns.to_numpy()
        elif kind == VIEWS:
            views = classes["views"] or (lambda e: e.to_numpy())
            whole, of_turns = views(whole), views(of_turns)
            alone = whole.agent_episodes[AGENTS[0]]
        state = whole.get_state()
        yield Case(kind, "from_state", type(whole).from_state, lambda s=state: copy.deepcopy(s), STEPS * agents)
        for name, (call, steps) in {**READS, **READS_OF_ALL}.items():
            yield Case(kind, name, call, lambda e=whole: e, steps * agents)
            yield Case(kind, f"turns: {name}", call, lambda e=of_turns: e, max(1, round(steps)))
        for name, (call, steps) in READS.items():
            yield Case(kind, f"single: {name}", call, lambda e=alone: e, steps)
        for name, (call, steps) in writes(new_rewards, newest).items():
            yield Case(kind, name, call, lambda e=whole: e, steps * agents)
        own = writes(new_rewards[AGENTS[0]], newest[AGENTS[0]])
        for name, (call, steps) in own.items():
            yield Case(kind, f"single: {name}", call, lambda e=alone: e, steps)


def seconds(case: Case) -> float:
    """Returns the CPU seconds of one call, the fastest of several."""
    once = case.prepare()
    case.call(once)
    start = time.process_time()
    case.call(case.prepare())
    enough = max(1, min(300, int(0.004 / max(time.process_time() - start, 1e-6))))
    best = float("inf")
    for _ in range(5):
        prepared = [case.prepare() for _ in range(enough)]
        start = time.perf_counter()
        for argument in prepared:
            case.call(argument)
        best = min(best, (time.perf_counter() - start) / enough)
    return best


def measure(side: str, only: str) -> dict[str, float | None]:
    """Returns the seconds of each call; None if it raises an error."""
    found: dict[str, float | None] = {}
    for case in cases(rllib() if side == "rllib" else toolkit()):
        key = f"{case.kind}|{case.name}|{case.agent_steps}"
        if only not in key:
            continue
        try:
            found[key] = seconds(case)
        except Exception as error:
            print(f"{key}: {type(error).__name__}: {error}", file=sys.stderr)
            found[key] = None
    return found


def run(python: str, side: str, only: str) -> dict[str, float | None]:
    """Runs one side in a separate process, and returns its times."""
    command = [python, str(Path(__file__)), "--side", side, "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints a table row for each call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="the Python of an environment with ray[rllib]")
    parser.add_argument("--reps", type=int, default=3, help="pairs of runs (default 3)")
    parser.add_argument("--only", default="", help="only calls whose line contains this text")
    parser.add_argument("--side", choices=["toolkit", "rllib"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.only)))
        return
    ours, theirs = [], []
    for _ in range(args.reps):
        ours.append(run(sys.executable, "toolkit", args.only))
        if args.peer:
            theirs.append(run(args.peer, "rllib", args.only))
    print("| kept as | call | us per agent-step | RLlib | times faster |\n| --- | --- | --- | --- | --- |")
    for key in ours[0]:
        kind, name, agent_steps = key.split("|")
        mine = [found[key] for found in ours]
        peers = [found[key] for found in theirs]
        if None in mine:
            print(f"| {kind} | {name} | error | | |")
            continue
        own = statistics.median(mine) / float(agent_steps) * 1e6
        if not peers or None in peers:
            print(f"| {kind} | {name} | {own:.3f} | {'raises' if peers else ''} | |")
            continue
        other = statistics.median(peers) / float(agent_steps) * 1e6
        ratio = statistics.median(b / a for a, b in zip(mine, peers, strict=True))
        print(f"| {kind} | {name} | {own:.3f} | {other:.3f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
