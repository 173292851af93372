"""What one can ask an episode, and when two answers are the same."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from episodes.histories import unstacked
from episodes.reference import EXTRAS, ReferenceEpisode
from episodes.reference_life import ACTIONS, INFOS, OBS, REWARDS, AnyShape, Life
from gymnasium import spaces
from hypothesis import strategies as st

KEYS = ("action_logp", "action_dist_inputs", "state_out")
GETTERS = {OBS: "get_observations", INFOS: "get_infos", ACTIONS: "get_actions", REWARDS: "get_rewards"}
SETTERS = {OBS: "set_observations", ACTIONS: "set_actions", REWARDS: "set_rewards"}
OLD_GETTERS = {OBS: "get_observation", ACTIONS: "get_action", REWARDS: "get_reward"}
FILLS = st.sampled_from((None, None, 0, 0.0, 7, -1, 300, 0.5))

_BOUND = st.none() | st.integers(-14, 14)
SLICES = st.builds(slice, _BOUND, _BOUND, st.sampled_from((None, None, 1, 2, 3, -1, -2, -3)))
INDICES = st.none() | st.integers(-12, 12) | st.lists(st.integers(-12, 12), max_size=4) | SLICES


class Question(NamedTuple):
    """A getter by its column, and its arguments."""

    column: str
    options: dict[str, Any]

    @property
    def single(self):
        return isinstance(self.options.get("indices"), int)

    def ask(self, episode):
        """The answer, or the type of the error."""
        try:
            if isinstance(episode, (Life, ReferenceEpisode)):
                options = dict(self.options)
                return episode.get(self.column, one_hot=options.pop("one_hot_discrete", False), **options)
            if self.column in GETTERS:
                return getattr(episode, GETTERS[self.column])(**self.options)
            key = None if self.column == EXTRAS else self.column
            return episode.get_extra_model_outputs(key, **self.options)
        except (IndexError, KeyError) as error:
            return type(error)


def questions_of_one(one_hot=False):
    """About one agent's episode; ``one_hot`` allows one-hot vectors, which need spaces."""
    options = {"indices": INDICES, "neg_index_as_lookback": st.booleans(), "fill": FILLS}
    return _questions((*GETTERS, *KEYS), options, one_hot)


def questions(agent_ids, one_hot=False):
    """About an episode of all agents."""
    own = st.sampled_from(agent_ids)
    options = {
        "indices": INDICES,
        "agent_ids": st.none() | own | st.lists(own, unique=True) | st.sets(own),
        "neg_index_as_lookback": st.booleans(),
        "fill": FILLS,
    }
    by_env_steps = _questions((*GETTERS, *KEYS, EXTRAS), {**options, "return_list": st.booleans()}, one_hot)
    by_agent_steps = _questions((*GETTERS, *KEYS, EXTRAS), {**options, "env_steps": st.just(False)}, one_hot)
    return by_env_steps | by_agent_steps


def _questions(columns, options, one_hot):
    plain = st.builds(Question, st.sampled_from(columns), st.fixed_dictionaries({}, optional=options))
    if not one_hot:
        return plain
    options = {**options, "one_hot_discrete": st.just(True)}
    return plain | st.builds(Question, st.sampled_from((OBS, ACTIONS)), st.fixed_dictionaries({}, optional=options))


ALWAYS_ASKED = [
    *[Question(column, {}) for column in (*GETTERS, *KEYS, EXTRAS)],
    *[Question(column, {"indices": -1}) for column in GETTERS],
    *[Question(column, {"env_steps": False}) for column in (*GETTERS, *KEYS, EXTRAS)],
    *[Question(column, {"return_list": True, "fill": 0}) for column in (*GETTERS, EXTRAS)],
    *[Question(column, {"indices": slice(-99, 99), "neg_index_as_lookback": True}) for column in (*GETTERS, EXTRAS)],
]
"""By all tests that compare whole episodes."""


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


# When answers are the same.


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
    """Whether answers to a question about all agents are the same."""
    if isinstance(one, type) or isinstance(other, type):
        return one is other
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
    """An answer with the types of its arrays and numbers in the place of their values; no items are of no type."""
    if isinstance(tree, dict):
        return {key: typed(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [typed(part) for part in tree]
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


def has_discrete_part(space):
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(map(has_discrete_part, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))


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
