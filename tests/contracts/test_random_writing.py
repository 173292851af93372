"""What holds for all episodes that are written to, or kept for long: see ``test_random_histories.py``."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.comparing import (
    assert_life_equals_reference,
    assert_same_answers,
    dtypes,
    matching,
    same_answer,
    state_of,
    typed,
)
from helpers.episodes.histories import another, cuts, histories, loosened, stacked, unstacked
from helpers.episodes.players import KINDS, TO_NUMPY, add, newest_chunk, play, references
from helpers.episodes.questions import ALWAYS_ASKED, GETTERS, KEYS, SETTERS, SLICES, Question, questions
from helpers.episodes.reference_life import ACTIONS, OBS, REWARDS
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode

ALL = slice(-99, 99)


def places(length, lookback):
    """What may be written to, with ``neg_index_as_lookback``: each item at most once."""
    index = st.integers(-lookback, length - 1) if length + lookback else st.nothing()
    return st.none() | SLICES | index | st.lists(index, unique=True)


def new_data(data, own, column, at, backwards):
    """New items for some places, as one may give them."""
    old, space = own.get(column, at, neg_index_as_lookback=backwards), own.spaces.get(column)
    if isinstance(at, int):
        return another(old, space, 200)
    items = [another(item, space, 200 + i) for i, item in enumerate(old)]
    return stacked(items) if items and data.draw(st.booleans(), "as a batch") else items


# Setters.


@given(histories(spaced=True), cuts(1), st.sampled_from(KINDS), st.data())
def test_what_was_set_is_what_is_got(history, cuts, kind, data):
    cuts = history.possible_cuts(cuts)
    episode, reference = newest_chunk(kind, history, cuts), references(history, cuts)[-1]
    for life, own in matching(episode, reference):
        column = data.draw(st.sampled_from((OBS, ACTIONS, REWARDS, *own.keys)), "column")
        at = data.draw(places(len(own) + (column == OBS), own.lookback), "at")
        new = new_data(data, own, column, at, True)
        options = {"new_data": new, "at_indices": at, "neg_index_as_lookback": True}
        if column in KEYS:
            life.set_extra_model_outputs(key=column, **options)
        else:
            getattr(life, SETTERS[column])(**options)
        own.set(column, new if isinstance(at, int) else unstacked(new), at, neg_index_as_lookback=True)
        everything = [Question(name, {"indices": ALL}) for name in (*GETTERS, *own.keys)]
        assert_life_equals_reference([*everything, Question(column, {"indices": at})], life, own)


@given(histories(spaced=True), cuts(1), st.sampled_from(KINDS), st.data())
def test_what_was_set_for_all_agents_is_what_is_got(history, cuts, kind, data):
    cuts = history.possible_cuts(cuts)
    episode, reference = newest_chunk(kind, history, cuts), references(history, cuts)[-1]
    column = data.draw(st.sampled_from((OBS, ACTIONS, REWARDS)), "column")
    newest = reference.newest_lives()
    least = min([len(own.items(column, with_waiting=True)) - own.lookback for own in newest.values()], default=0)
    at = data.draw(st.integers(-least, least - 1) if least else st.none(), "at")
    new = {}
    for agent_id, own in newest.items():
        old, space = own.get(column, at, with_waiting=True), own.spaces.get(column)
        items = [another(item, space, 200) for item in ([old] if isinstance(at, int) else old)]
        own.set(column, items[0] if isinstance(at, int) else items, at, with_waiting=True)
        new[agent_id] = items[0] if isinstance(at, int) else items
    getattr(episode, SETTERS[column])(new_data=new, at_indices=at)
    some = data.draw(st.lists(questions(history.agent_ids), max_size=3), "questions")
    assert_same_answers([*ALWAYS_ASKED, *some], episode, reference)


def test_an_action_that_waits_is_the_last_one_for_setters_as_it_is_for_getters():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 10}, {"a": 1.0})
    episode.add_env_step({}, {"a": 11}, {"a": 2.0})
    assert episode.get_actions(-1, env_steps=False) == {"a": 11}
    episode.set_actions(new_data={"a": 12}, at_indices=-1)
    episode.set_rewards(new_data={"a": 3.0}, at_indices=-1)
    assert episode.get_actions(env_steps=False) == {"a": [10, 12]}
    assert episode.get_rewards(env_steps=False) == {"a": [1.0, 3.0]}


@given(histories(spaced=True), cuts(1), st.sampled_from(KINDS), st.data())
def test_a_whole_column_can_take_another_shape(history, cuts, kind, data):
    cuts = history.possible_cuts(cuts)
    episode, reference = newest_chunk(kind, history, cuts), references(history, cuts)[-1]
    for life, own in matching(episode, reference):
        column = data.draw(st.sampled_from((OBS, ACTIONS)), "column")
        items = [np.full((2, 3), i, np.float32) for i in range(len(own.items(column)))]
        if items:
            everything = {"at_indices": ALL, "neg_index_as_lookback": True}
            getattr(life, SETTERS[column])(new_data=np.array(items), **everything)
            question = Question(column, {"indices": ALL, "neg_index_as_lookback": True})
            assert same_answer(question, question.ask(life), items)
            assert len(life) == len(own)


@given(histories(), cuts(least=1), TO_NUMPY)
def test_a_chunk_stays_as_it_is_while_its_successor_grows_and_is_written_to(history, cuts, to_numpy):
    cuts = history.possible_cuts(cuts)
    chunks = play(history, cuts, to_numpy)
    before = [state_of(play(history.until(at), cuts[:i], to_numpy)[-1]) for i, (at, _) in enumerate(cuts)]
    for life, own in matching(chunks[-1], references(history, cuts)[-1]):
        for i in range(-own.lookback, len(own)):
            item = another(own.get(OBS, i, neg_index_as_lookback=True), own.spaces.get(OBS), 99)
            life.set_observations(new_data=item, at_indices=i, neg_index_as_lookback=True)
            life.set_rewards(new_data=0.5, at_indices=i, neg_index_as_lookback=True)
    chunks[-1].custom_data["note"].append("new")
    assert [state_of(chunk) for chunk in chunks[:-1]] == before


# Types.


@given(histories(spaced=True), cuts(4, least=1), TO_NUMPY)
def test_types_never_drift(history, cuts, to_numpy):
    cuts = history.possible_cuts(cuts)
    chunks, joined, (fresh,) = play(history, cuts, to_numpy), play(history, cuts, to_numpy), play(history)
    while len(joined) > 1:
        joined[0].concat_episode(joined.pop(1))
    for episode in (*chunks, *joined, fresh, fresh[:2], fresh[1:]):
        for life in episode.to_numpy().all_agent_episodes():
            spaces_of = history.spaces_of(life.agent_id)
            assert dtypes(life.get_observations()) == dtypes(spaces_of[OBS])
            assert dtypes(life.get_actions()) == dtypes(spaces_of[ACTIONS])
            assert life.get_rewards().dtype == np.float64
    for agent_id, outputs in fresh.get_extra_model_outputs().items():
        assert typed(joined[0].get_extra_model_outputs(agent_ids=[agent_id])) == {agent_id: typed(outputs)}


@given(histories(spaced=False, who_acts=("parallel",), one_agent=True), st.integers(0, 12))
def test_without_spaces_types_stay_what_they_were_in_the_first_arrays(history, at):
    at = min(at, len(history.steps))
    (episode,) = play(history.until(at))
    (life,) = episode.to_numpy().all_agent_episodes()
    of_observations, of_actions = dtypes(life.get_observations()), dtypes(life.get_actions())
    for step in history.steps[at:]:
        add(episode, step._replace(observations=loosened(step.observations), actions=loosened(step.actions)))
    life.to_numpy()
    assert dtypes(life.get_observations()) == of_observations
    assert at == 0 or dtypes(life.get_actions()) == of_actions
