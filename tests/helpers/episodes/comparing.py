"""When two answers, two states or two episodes are the same."""

from __future__ import annotations

import json

import numpy as np
from gymnasium import spaces

from helpers.episodes.histories import unstacked
from helpers.episodes.players import module_of
from helpers.episodes.questions import OLD_GETTERS
from helpers.episodes.reference import EXTRAS
from helpers.episodes.reference_life import AnyShape

# Answers.


def same_item(one, other):
    """Whether two items are equal in structure, shape and numbers; dtypes may differ."""
    if isinstance(other, AnyShape):
        return all(bool(np.all(np.asarray(leaf) == other.fill)) for leaf in _leaves(one))
    if isinstance(one, dict) or isinstance(other, dict):
        alike = isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys()
        return alike and all(same_item(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) or isinstance(other, (list, tuple)):
        alike = type(one) is type(other) and len(one) == len(other)
        return alike and all(map(same_item, one, other))
    return np.shape(one) == np.shape(other) and bool(np.all(np.asarray(one) == np.asarray(other)))


def _leaves(tree):
    if isinstance(tree, (dict, tuple)):
        return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in _leaves(part)]
    return [tree]


def same_answer(question, one, other):
    """Whether answers to a question about one agent are the same, as items or as batches."""
    if isinstance(one, type) or isinstance(other, type):
        return one is other
    if question.single:
        return same_item(one, other)
    one, other = unstacked(one), unstacked(other)
    return len(one) == len(other) and all(map(same_item, one, other))


def same_answers(question, one, other):
    """Whether answers to a question about all agents are the same; of the reference's two errors, one is enough."""
    if isinstance(one, type) or isinstance(other, type):
        return one is other or (isinstance(one, type) and other is LookupError)
    if question.options.get("return_list"):
        return len(one) == len(other) and all(map(same_item, one, other))
    if one.keys() != other.keys():
        return False
    if question.column != EXTRAS:
        return all(same_answer(question, one[agent_id], other[agent_id]) for agent_id in one)
    return all(
        one[agent_id].keys() == other[agent_id].keys()
        and all(same_answer(question, one[agent_id][key], other[agent_id][key]) for key in one[agent_id])
        for agent_id in one
    )


def typed(tree):
    """An answer with the types of its arrays and numbers in the place of their values; where there are no items, ""."""
    if isinstance(tree, (dict, list, tuple)):
        parts = {k: typed(part) for k, part in (tree.items() if isinstance(tree, dict) else enumerate(tree))}
        return parts if any(parts.values()) else ""
    return str(np.asarray(tree).dtype) if np.size(tree) else ""


def is_vague(answer):
    """Whether items are filled in whose shape and type nothing tells."""
    if isinstance(answer, AnyShape):
        return True
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, (list, tuple)) else ()
    return any(map(is_vague, parts))


def dtypes(tree):
    """The dtypes of a tree of arrays, or of a space."""
    if isinstance(tree, (dict, spaces.Dict)):
        return {key: dtypes(part) for key, part in tree.items()}
    if isinstance(tree, (tuple, spaces.Tuple)):
        return tuple(map(dtypes, tree))
    return tree.dtype


# States.


def comparable(state):
    """A state, or a part of one, as something that ``==`` compares: types included, the time it took excluded."""
    if isinstance(state, dict):
        state = {key: comparable(part) for key, part in state.items() if key != "duration_s"}
        for name in ("agent_episodes", "module_of", "ended_before", "unclaimed"):
            if isinstance(state.get(name), list):
                state[name] = sorted(state[name], key=repr)
        return state
    if isinstance(state, (list, tuple)):
        return [comparable(part) for part in state]
    if isinstance(state, (np.ndarray, np.generic)):
        return [str(state.dtype), state.shape, state.tolist()]
    return state


def state_of(episode):
    return comparable(episode.get_state())


def through_json(state):
    """A state that was written as JSON text and a list of arrays, and read again."""
    arrays = []

    def without_arrays(part):
        if isinstance(part, np.ndarray):
            arrays.append(part.copy())
            return {"array": len(arrays) - 1}
        if isinstance(part, dict):
            return {key: without_arrays(item) for key, item in part.items()}
        return [without_arrays(item) for item in part] if isinstance(part, list) else part

    def with_arrays(part):
        if isinstance(part, dict):
            return arrays[part["array"]] if part.keys() == {"array"} else {k: with_arrays(v) for k, v in part.items()}
        return [with_arrays(item) for item in part] if isinstance(part, list) else part

    return with_arrays(json.loads(json.dumps(without_arrays(state))))


# Episodes.


def facts(episode):
    """What an episode says of itself, apart from its columns; as ``ReferenceEpisode.facts``."""
    return {
        "len": len(episode),
        "env_t": episode.env_t,
        "env_lookback": episode.env_lookback,
        "agent_ids": episode.agent_ids,
        "agent_steps": episode.agent_steps(),
        "terminateds": episode.get_terminateds(),
        "truncateds": episode.get_truncateds(),
        "to_act": episode.get_agents_to_act(),
        "stepped": episode.get_agents_that_stepped(),
        "return": episode.get_return(),
        "return with waiting": episode.get_return(include_hanging_rewards=True),
        "uncredited": episode.uncredited_reward,
    }


def assert_same_answers(questions, episode, other):
    for question in questions:
        one, two = question.ask(episode), question.ask(other)
        assert same_answers(question, one, two), (question, one, two)


def assert_equals_reference(questions, episode, reference, but=""):
    """``but`` is a fact that may be another one: views are not told what they cannot know."""
    own, expected = facts(episode), reference.facts()
    assert own | {but: None} == expected | {but: None}
    for life in episode.all_agent_episodes():
        assert (life.module_id, life.multi_agent_episode_id) == (module_of(life.agent_id), episode.id_)
        assert episode.module_for(life.agent_id) == life.module_id
    assert_same_answers(questions, episode, reference)


def assert_life_equals_reference(questions, life, reference):
    assert (len(life), life.t_started, life.is_terminated, life.is_truncated, life.uncredited_reward) == (
        len(reference),
        reference.t_started,
        reference.is_terminated,
        reference.is_truncated,
        reference.uncredited_reward,
    )
    assert life.get_return() == reference.get_return() and life.t == reference.closed
    for question in questions:
        one, two = question.ask(life), question.ask(reference)
        assert same_answer(question, one, two), (question, one, two)
        index = question.options.get("indices")
        if question.column in OLD_GETTERS and isinstance(index, int):
            options = {name: given for name, given in question.options.items() if name != "indices"}
            try:
                again = getattr(life, OLD_GETTERS[question.column])(index, **options)
            except IndexError as error:
                again = type(error)
            assert same_answer(question, again, two), question


def matching(lives, references):
    """Pairs of a life and its reference."""
    pairs = []
    for agent_id in references.newest_lives():
        own = [life for life in lives.all_agent_episodes() if life.agent_id == agent_id]
        pairs += zip(own, [life for life in references.lives if life.agent_id == agent_id], strict=True)
    return pairs
