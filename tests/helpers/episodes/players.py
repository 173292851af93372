"""Ways to live through a history: in one piece, in chunks, as lists, as arrays, as views of a rollout."""

from __future__ import annotations

import copy

import numpy as np
from hypothesis import strategies as st

from helpers.episodes.histories import stacked
from helpers.episodes.reference import ReferenceEpisode, Step, flags_of
from helpers.episodes.reference_life import ACTIONS, OBS
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.trees import leaves, tree_map

TO_NUMPY = st.frozensets(st.integers(0, 12), max_size=3)
"""Before which env steps the newest chunk's columns are made arrays."""

KINDS = ("lists", "arrays", "views")


def play(history, cuts=(), to_numpy=frozenset()):
    """The chunks, cut at the given pairs of an env step and a lookback."""
    mapped = set()

    def mapping(agent_id, episode):
        assert agent_id not in mapped, f"The mapping function is asked again about {agent_id!r}."
        mapped.add(agent_id)
        return module_of(agent_id)

    whole = (history.observation_space, history.action_space)
    episode = MultiAgentEpisode(
        id_="game", observation_space=whole[0], action_space=whole[1], agent_to_module_mapping_fn=mapping
    )
    episode.custom_data["note"] = [1, ("two", 3)]
    observations, infos = reset = copy.deepcopy(history.reset)
    episode.add_env_reset(observations=observations, infos=infos)
    _reuse(reset)
    return _chunks(episode, history, cuts, to_numpy, add)


def module_of(agent_id):
    return f"module of {agent_id}"


def _chunks(episode, history, cuts, to_numpy, add):
    chunks = [episode]
    for t in range(len(history.steps) + 1):
        if t in to_numpy:
            chunks[-1].to_numpy()
        for at, lookback in cuts:
            if at == t:
                chunks.append(chunks[-1].cut(lookback))
        if t < len(history.steps):
            add(chunks[-1], history.steps[t])
    return chunks


def add(episode, step):
    """Adds a step as an environment does that reuses its arrays and infos."""
    step = copy.deepcopy(step)
    episode.add_env_step(*step[:4], **dict(zip(Step._fields[4:], step[4:], strict=True)))
    _reuse((step.observations, step.infos, step.actions, step.extra_model_outputs))


def _reuse(tree):
    for leaf in leaves(tree):
        if isinstance(leaf, np.ndarray):
            leaf.fill(99)
    for infos in (tree[1] or {}).values():
        infos.clear()


def play_alone(history, cuts=(), to_numpy=frozenset()):
    """The chunks of a history of one agent that acts at every step, as single-agent episodes."""
    (agent_id,) = history.agent_ids
    spaces_of = history.spaces_of(agent_id)
    episode = SingleAgentEpisode(
        "game", observation_space=spaces_of.get(OBS), action_space=spaces_of.get(ACTIONS), agent_id=agent_id
    )
    observations, infos = history.reset
    episode.add_env_reset(observations[agent_id], (infos or {}).get(agent_id))

    def add_alone(episode, step):
        terminated, truncated = flags_of(step, agent_id)
        episode.add_env_step(
            step.observations[agent_id],
            step.actions[agent_id],
            step.rewards.get(agent_id, 0.0),
            (step.infos or {}).get(agent_id),
            terminated=np.bool_(terminated),
            truncated=np.bool_(truncated),
            extra_model_outputs=(step.extra_model_outputs or {}).get(agent_id),
        )

    return _chunks(episode, history, cuts, to_numpy, add_alone)


def references(history, cuts=()):
    """What the chunks of ``play`` should be."""
    log = history.log
    until = [*(at for at, _ in cuts), log.t]
    return [ReferenceEpisode(log, cuts[:i], end) for i, end in enumerate(until)]


def newest_chunk(kind, history, cuts):
    """The last chunk of ``play``, kept in one of the ``KINDS``."""
    if kind == "views":
        return views(references(history, cuts)[-1], history)
    chunk = play(history, cuts)[-1]
    return chunk.to_numpy() if kind == "arrays" else chunk


def views(reference, history):
    """A chunk as a runner hands it out: each life a lane of a rollout, here the second of two."""
    episode = MultiAgentEpisode.from_agent_episodes(
        "game",
        {},
        env_t_started=reference.env_t_started,
        env_t=reference.env_t,
        agent_to_module_mapping_fn=lambda agent_id, _: module_of(agent_id),
        module_of={agent_id: module_of(agent_id) for agent_id in reference.known},
    )
    episode.observation_space, episode.action_space = history.observation_space, history.action_space
    for life in reference.lives:
        episode.attach(life.agent_id, _view(life))
    episode.is_terminated, episode.is_truncated = reference.flags
    return episode


def _view(life):
    rows, lane = life.rows[life.first :], 1
    rollout = Rollout(life.spaces[OBS], life.spaces[ACTIONS], num_rows=len(rows) + 1, num_lanes=2)
    rollout.action_units = ENV  # no module has given these

    def places(count):
        return slice(lane, 2 * count + lane, 2)

    rollout.observe(places(len(rows)), stacked([row.observation for row in rows]), np.array([row.t for row in rows]))
    acted = [row for row in rows if row.acted]
    for key in life.keys:
        like = stacked([row.extras[key] for row in life.rows if row.acted])
        rollout.record(slice(0, 0), {key: tree_map(lambda leaf: leaf[:0], like)})
    if acted:
        outputs = {key: stacked([row.extras[key] for row in acted]) for key in life.keys}
        rollout.record(places(len(acted)), {Columns.ACTIONS: stacked([row.action for row in acted]), **outputs})
        rollout.columns[Columns.REWARDS][places(len(acted))] = [row.reward for row in acted]
    rollout.infos.update({2 * i + lane: row.info for i, row in enumerate(rows) if row.info})
    rollout.cursor[lane] = 2 * (len(rows) - 1) + lane
    rollout.pending[lane] = life.waits
    stop_row = len(rows) - 1 if life.is_done else None
    view = SingleAgentEpisode.from_storage(
        LaneStorage(rollout, lane, first_row=0, start_row=life.lookback, stop_row=stop_row),
        id_=f"game/{life.agent_id}/{life.rows[0].t}",
        agent_id=life.agent_id,
        module_id=module_of(life.agent_id),
        multi_agent_episode_id="game",
        t_started=life.start,
        observation_space=life.spaces[OBS],
        action_space=life.spaces[ACTIONS],
    )
    view.is_terminated, view.is_truncated = life.is_terminated, life.is_truncated
    view.uncredited_reward = life.uncredited_reward
    return view
