"""Episodes that go through files, and the train batches that are made of them."""

from __future__ import annotations

import copy
import json
from typing import Any

from helpers.runs.random_runs import plain
from marl_connectors.offline.exchange import agent_rows
from marl_connectors.offline.recorded_sample import RecordedSample, recorded


def through_columns(episodes: list[Any], **reading: Any) -> list[Any]:
    """The episodes after they were turned into JSON and arrays, without files."""
    return RecordedSample(*document_of(episodes)).episodes(**reading)


def document_of(episodes: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON data and the arrays of a sample of episodes."""
    document, arrays = recorded(episodes)
    return json.loads(json.dumps(document)), arrays


def train_batch(algo: Any, episodes: list[Any]) -> list[Any]:
    """Everything in the train batch of a copy of the episodes. The learner pipeline stays as it is."""
    state = copy.deepcopy(algo.learner.pipeline.get_state())
    batch = algo.learner.make_batch(episodes)
    found = [(group.module_ids, group.splits, plain(dict(group))) for group in batch.groups]
    algo.learner.pipeline.set_state(state)
    return found


def facts(episode: Any, *, with_outputs: bool = True) -> list[Any]:
    """The agents' steps as the environment gave them, and their ids and ends, for formats that keep no more."""
    found = []
    for rows in sorted(agent_rows(episode), key=lambda rows: str(rows.agent.id_)):
        own = rows.agent
        found.append(
            {
                "ids": (own.id_, repr(own.agent_id), own.module_id, own.multi_agent_episode_id, own.t_started),
                "ends": (own.is_terminated, own.is_truncated),
                "steps": plain([rows.observations, rows.actions_for_env(), rows.rewards, rows.t]),
                "others": plain([rows.infos, rows.outputs, rows.actions, rows.action_units]) if with_outputs else None,
            }
        )
    return [type(episode), episode.id_, len(episode), episode.is_terminated, episode.is_truncated, found]
