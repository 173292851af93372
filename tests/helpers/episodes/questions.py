"""What one can ask an episode."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import spaces
from hypothesis import strategies as st

from helpers.episodes.reference import EXTRAS, ReferenceEpisode
from helpers.episodes.reference_life import ACTIONS, INFOS, OBS, REWARDS, Life

KEYS = ("logp", "dist_inputs", "state_out")
GETTERS = {OBS: "get_observations", INFOS: "get_infos", ACTIONS: "get_actions", REWARDS: "get_rewards"}
SETTERS = {OBS: "set_observations", ACTIONS: "set_actions", REWARDS: "set_rewards"}
OLD_GETTERS = {OBS: "get_observation", ACTIONS: "get_action", REWARDS: "get_reward"}
FILLS = st.sampled_from((None, None, 0, 0.0, 7, -1, 300, 0.5))

_INDEX = st.integers(-3, 3) | st.integers(-14, 14)
_BOUND = st.none() | _INDEX
SLICES = st.builds(slice, _BOUND, _BOUND, st.sampled_from((None, None, 1, 2, 3, -1, -2, -3)))
INDICES = st.none() | _INDEX | st.lists(_INDEX, max_size=4) | SLICES


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
        except LookupError as error:
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
    *[Question(column, {"indices": i, "fill": fill}) for column in GETTERS for i in (0, -1, -2) for fill in (None, 0)],
    *[Question(column, {"indices": [0, -1], "fill": 0}) for column in (*GETTERS, *KEYS)],
    *[Question(column, {"env_steps": False}) for column in (*GETTERS, *KEYS, EXTRAS)],
    *[Question(column, {"env_steps": False, "indices": -1, "fill": 0}) for column in (*GETTERS, *KEYS)],
    *[Question(column, {"return_list": True, "fill": 0}) for column in (*GETTERS, EXTRAS)],
    *[Question(column, {"indices": slice(-99, 99), "neg_index_as_lookback": True}) for column in (*GETTERS, EXTRAS)],
]
"""By all tests that compare whole episodes."""

ALWAYS_ASKED_OF_ONE = [question for question in ALWAYS_ASKED if question.column in GETTERS and not question.options]


def has_discrete_part(space):
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(map(has_discrete_part, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))
