"""What holds for all episodes: agents join, pause, act in turns, die and come back at will.

More histories than by default: ``pytest --hypothesis-profile=long tests/episodes/test_random_histories.py``.
"""

import numpy as np
from episodes.histories import (
    AGENT_IDS,
    EVERYONE,
    SPACES,
    add,
    another,
    cuts,
    histories,
    play,
    play_alone,
    references,
    stacked,
    unstacked,
    views,
)
from episodes.questions import (
    ALWAYS_ASKED,
    GETTERS,
    KEYS,
    OLD_GETTERS,
    SETTERS,
    SLICES,
    Question,
    dtypes,
    facts,
    has_discrete_part,
    is_vague,
    questions,
    questions_of_one,
    same_answer,
    same_answers,
    state_of,
    through_json,
    typed,
)
from episodes.reference import ReferenceEpisode
from episodes.reference_life import ACTIONS, OBS, REWARDS
from hypothesis import given
from hypothesis import strategies as st

from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

CATEGORICAL = [space for space in SPACES if has_discrete_part(space)]
TO_NUMPY = st.frozensets(st.integers(0, 12), max_size=3)


def asked(data, history, one_hot=False):
    few = st.lists(questions(history.agent_ids, one_hot), min_size=1, max_size=6)
    return [*ALWAYS_ASKED, *data.draw(few, "questions")]


def assert_same_answers(questions, episode, other):
    for question in questions:
        one, two = question.ask(episode), question.ask(other)
        assert same_answers(question, one, two), (question, one, two)


def assert_equals_reference(questions, episode, reference):
    assert facts(episode) == reference.facts()
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


# Against the reference.


@given(histories(), cuts(), TO_NUMPY, st.data())
def test_every_chunk_answers_as_the_reference_does(history, cuts, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    everything, lives = asked(data, history), data.draw(st.lists(questions_of_one(), max_size=3), "of one agent")
    for chunk, reference in zip(play(history, cuts, to_numpy), references(history, cuts), strict=True):
        chunk.validate()
        assert_equals_reference(everything, chunk, reference)
        for life, own in matching(chunk, reference):
            assert_life_equals_reference(lives, life, own)


@given(histories(spaced=True, of=CATEGORICAL), cuts(), st.data())
def test_lists_arrays_and_views_give_the_same(history, cuts, data):
    cuts = history.possible_cuts(cuts)
    everything = asked(data, history, one_hot=True)
    of_one = data.draw(st.lists(questions_of_one(one_hot=True), min_size=2, max_size=4), "of one agent")
    reference = references(history, cuts)[-1]
    lists, arrays, viewed = play(history, cuts)[-1], play(history, cuts)[-1].to_numpy(), views(reference)
    assert arrays.is_numpy == viewed.is_numpy == bool(arrays.agent_ids) and not lists.is_numpy
    for question in everything:
        answers = [question.ask(episode) for episode in (lists, arrays, viewed)]
        assert all(same_answers(question, answer, question.ask(reference)) for answer in answers), (question, answers)
        assert same_answers(question, answers[0], answers[1]), (question, answers)
        assert typed(answers[1]) == typed(answers[2]) or is_vague(question.ask(reference)), (question, answers)
    for (one, own), (two, _), (three, _) in zip(*(matching(e, reference) for e in (lists, arrays, viewed)), strict=True):
        for question in of_one:
            answers = [question.ask(life) for life in (one, two, three)]
            assert all(same_answer(question, answer, question.ask(own)) for answer in answers), (question, answers)
            assert typed(answers[1]) == typed(answers[2]) or is_vague(question.ask(own)), (question, answers)


@given(histories(), cuts(1), st.integers(0, 12), st.integers(0, 12), st.none() | st.integers(0, 5), TO_NUMPY, st.data())
def test_a_slice_is_what_the_reference_says(history, cuts, begin, end, lookback, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    whole, reference = play(history, cuts, to_numpy)[-1], references(history, cuts)[-1]
    begin, end = min(begin, len(whole)), min(end, len(whole))
    before = state_of(whole)
    part, expected = whole.slice(slice(begin, end), len_lookback_buffer=lookback), reference.part(begin, end, lookback)
    part.validate()
    assert_equals_reference(asked(data, history), part, expected)
    for life, own in matching(whole, reference):
        at, until = min(begin, len(life)), min(end, len(life))
        piece = life.slice(slice(at, until), len_lookback_buffer=lookback)
        some = data.draw(st.lists(questions_of_one(), max_size=2), "of one agent")
        assert_life_equals_reference(some, piece, own.part_of_steps(at, max(at, until), lookback))
    assert state_of(whole) == before


@given(histories(who_acts=("parallel",), one_agent=True), cuts(), TO_NUMPY, st.data())
def test_single_agent_episodes_answer_as_the_reference_does(history, cuts, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    chunks, expected = play_alone(history, cuts, to_numpy), references(history, cuts)
    some = data.draw(st.lists(questions_of_one(), min_size=3, max_size=6), "questions")
    for chunk, reference in zip(chunks, expected, strict=True):
        (own,) = reference.lives
        assert_life_equals_reference([*ALWAYS_ASKED_OF_ONE, *some], chunk, own)
        data_dict, steps = chunk.get_data_dict(), len(chunk)
        assert list(data_dict["t"]) == [row.t for row in own.rows[own.start : -1]]
        for name, ended in (("terminateds", own.is_terminated), ("truncateds", own.is_truncated)):
            assert list(data_dict[name]) == [False] * (steps - 1) + [ended] * (steps > 0)
        assert same_answer(Question(OBS, {}), data_dict["obs"], own.get(OBS, slice(0, steps)))
    whole = play_alone(history)[0]
    for chunk in chunks[1:]:
        chunks[0].concat_episode(chunk)
    assert state_of(chunks[0].to_numpy()) == state_of(whole.to_numpy())


ALWAYS_ASKED_OF_ONE = [question for question in ALWAYS_ASKED if question.column in GETTERS and not question.options]


# Chunks.


@given(histories(), cuts(4), TO_NUMPY, st.randoms(use_true_random=False), st.data())
def test_chunks_concatenate_in_any_order_to_what_was_never_cut(history, cuts, to_numpy, random, data):
    cuts = history.possible_cuts(cuts)
    chunks, reference = play(history, cuts, to_numpy), references(history, [])[0]
    (whole,) = play(history)
    while len(chunks) > 1:
        i = random.randrange(len(chunks) - 1)
        after = state_of(chunks[i + 1])
        chunks[i].concat_episode(chunks[i + 1])
        assert state_of(chunks.pop(i + 1)) == after
    assert_equals_reference(asked(data, history), chunks[0], reference)
    if not to_numpy:
        assert state_of(chunks[0]) == state_of(whole)
    assert state_of(chunks[0].to_numpy()) == state_of(whole.to_numpy())


@given(histories(), cuts(1), st.lists(st.integers(0, 12), max_size=3), TO_NUMPY)
def test_consecutive_slices_concatenate_to_the_whole(history, cuts, places, to_numpy):
    whole = play(history, history.possible_cuts(cuts), to_numpy)[-1]
    bounds = [0, *sorted(min(place, len(whole)) for place in places), len(whole)]
    parts = [whole[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
    assert sum(part.get_return() for part in parts) == whole.get_return()
    assert sum(part.uncredited_reward for part in parts) == whole.uncredited_reward
    joined = parts[0]
    for part in parts[1:]:
        if not joined.is_done:
            joined.concat_episode(part)
    joined.custom_data.update(whole.custom_data)
    assert state_of(joined.to_numpy()) == state_of(whole.to_numpy())


@given(histories(), cuts(), TO_NUMPY)
def test_a_chunk_stays_as_it_is_while_its_successor_grows_and_is_written_to(history, cuts, to_numpy):
    cuts = history.possible_cuts(cuts)
    chunks, before = play(history, cuts, to_numpy), []
    for chunk, (at, _) in zip(chunks, cuts, strict=False):
        begun = history.changed(lambda part: part)
        begun.steps = history.steps[:at]
        before.append(state_of(play(begun, cuts[: len(before)], to_numpy)[-1]))
    for life, own in matching(chunks[-1], references(history, cuts)[-1]):
        for i in range(-own.lookback, len(own)):
            item = another(own.get(OBS, i, neg_index_as_lookback=True), own.spaces.get(OBS), 99)
            life.set_observations(new_data=item, at_indices=i, neg_index_as_lookback=True)
            life.set_rewards(new_data=0.5, at_indices=i, neg_index_as_lookback=True)
    chunks[-1].custom_data["note"].append("new")
    assert [state_of(chunk) for chunk in chunks[:-1]] == before


@given(histories(), cuts(4))
def test_rewards_are_conserved_for_each_agent(history, cuts):
    cuts = history.possible_cuts(cuts)
    chunks = play(history, cuts)
    paid = dict.fromkeys(history.agent_ids, 0.0)
    for step in history.steps:
        for agent_id, reward in step.rewards.items():
            paid[agent_id] += float(reward)
    newest = chunks[-1]
    waiting = newest.get_return(include_hanging_rewards=True) - newest.get_return()
    assert sum(chunk.get_return() + chunk.uncredited_reward for chunk in chunks) + waiting == sum(paid.values())
    for agent_id in history.agent_ids:
        alone = history.changed(lambda part: part)
        alone.steps = [step._replace(rewards=_only(step.rewards, agent_id)) for step in history.steps]
        others = play(alone, cuts)
        waiting = others[-1].get_return(include_hanging_rewards=True) - others[-1].get_return()
        assert sum(chunk.get_return() + chunk.uncredited_reward for chunk in others) + waiting == paid[agent_id]


def _only(rewards, agent_id):
    return {a: reward if a == agent_id else 0.0 for a, reward in rewards.items()}


# What makes no difference.


@given(histories(), cuts(2), st.randoms(use_true_random=False), st.data())
def test_the_order_of_agents_makes_no_difference(history, cuts, random, data):
    cuts = history.possible_cuts(cuts)

    def shuffled(part):
        return dict(sorted(part.items(), key=lambda _: random.random()))

    everything = asked(data, history)
    for one, other in zip(play(history, cuts), play(history.changed(shuffled), cuts), strict=True):
        assert facts(one) == facts(other) and state_of(one) == state_of(other)
        assert_same_answers(everything, one, other)


@given(histories(), cuts(2), st.permutations(AGENT_IDS), st.data())
def test_other_names_change_nothing_but_the_names(history, cuts, order, data):
    cuts = history.possible_cuts(cuts)
    names = dict(zip(AGENT_IDS, order, strict=True)) | {EVERYONE: EVERYONE}
    renamed = history.renamed(names)

    def in_new_names(part):
        return {names[agent_id]: item for agent_id, item in part.items()}

    for one, other in zip(play(history, cuts), play(renamed, cuts), strict=True):
        old, new = facts(one), facts(other)
        for name, fact in old.items():
            expected = {names[a] for a in fact} if isinstance(fact, set) else fact
            assert new[name] == (in_new_names(fact) if isinstance(fact, dict) else expected), name
        for question in asked(data, history):
            options = dict(question.options)
            if "agent_ids" in options and options["agent_ids"] is not None:
                ids = options["agent_ids"]
                many = isinstance(ids, (list, set))
                options["agent_ids"] = type(ids)(names[a] for a in ids) if many else names[ids]
            answer, again = question.ask(one), Question(question.column, options).ask(other)
            if isinstance(answer, list):
                answer = list(map(in_new_names, answer))
            elif isinstance(answer, dict):
                answer = in_new_names(answer)
            assert same_answers(question, answer, again), (question, answer, again)


@given(histories(), cuts(1), st.integers(0, 12), TO_NUMPY, st.data())
def test_an_episode_goes_on_from_its_state_as_if_nothing_had_been(history, cuts, at, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    original = play(history, cuts, to_numpy)[-1]
    again = MultiAgentEpisode.from_state(through_json(original.get_state()))
    assert again.get_state()["duration_s"] == original.get_state()["duration_s"]
    assert state_of(again) == state_of(original) and facts(again) == facts(original)
    for question in asked(data, history):
        one, other = question.ask(original), question.ask(again)
        assert same_answers(question, one, other) and typed(one) == typed(other), (question, one, other)
    for life in original.all_agent_episodes():
        assert state_of(SingleAgentEpisode.from_state(through_json(life.get_state()))) == state_of(life)
    at = min(at, len(history.steps))
    cuts, begun = [cut for cut in cuts if cut[0] <= at], history.changed(lambda part: part)
    begun.steps = history.steps[:at]
    whole = play(history, cuts, to_numpy & set(range(at + 1)))[-1]
    resumed = MultiAgentEpisode.from_state(
        through_json(play(begun, cuts, to_numpy)[-1].get_state()), lambda agent_id, episode: f"module of {agent_id}"
    )
    for step in history.steps[at:]:
        add(resumed, step)
    assert state_of(resumed) == state_of(whole)
    assert state_of(resumed.to_numpy()) == state_of(whole.to_numpy())


@given(histories(spaced=True), cuts(1))
def test_views_have_the_state_of_arrays(history, cuts):
    cuts = history.possible_cuts(cuts)
    viewed = views(references(history, cuts)[-1])
    again = MultiAgentEpisode.from_state(through_json(viewed.get_state()))
    assert state_of(again) == state_of(viewed)


@given(histories(), st.integers(0, 12), st.data())
def test_given_data_are_as_good_as_steps(history, lookback, data):
    """Up to the first end: what ends on the way cannot be given."""
    log = history.log
    ends = [event.t for event in log.events if event.what == "ends"]
    history = history.changed(lambda part: part)
    history.steps = history.steps[: min(ends) - 1] if ends else history.steps
    lookback = min(lookback, len(history.steps))
    seen = [history.reset, *((step.observations, step.infos) for step in history.steps)]
    given_data = MultiAgentEpisode(
        "game",
        observations=[{a: o for a, o in observations.items() if o is not None} for observations, _ in seen],
        infos=[infos or {} for _, infos in seen],
        actions=[{a: o for a, o in step.actions.items() if o is not None} for step in history.steps],
        rewards=[step.rewards for step in history.steps],
        extra_model_outputs=[step.extra_model_outputs or {} for step in history.steps],
        observation_space=history.observation_space,
        action_space=history.action_space,
        len_lookback_buffer=lookback,
        env_t_started=lookback,
    )
    reference = ReferenceEpisode(history.log).part(lookback, len(history.steps), 99)
    assert_same_answers(asked(data, history), given_data, reference)
    assert given_data.get_agents_to_act() == reference.facts()["to_act"]


# Writing.

KINDS = st.sampled_from(("lists", "arrays", "views"))


def kept_as(kind, history, cuts):
    if kind == "views":
        return views(references(history, cuts)[-1])
    chunk = play(history, cuts)[-1]
    return chunk.to_numpy() if kind == "arrays" else chunk


def places(length, lookback):
    """What may be written to, with ``neg_index_as_lookback``: each item at most once."""
    index = st.integers(-lookback, length - 1) if length + lookback else st.nothing()
    return st.none() | SLICES | index | st.lists(index, unique=True)


def written(data, own, column, at, backwards, number):
    """New items for some places, as one may give them."""
    old, space = own.get(column, at, neg_index_as_lookback=backwards), own.spaces.get(column)
    if isinstance(at, int):
        return another(old, space, number)
    items = [another(item, space, number + i) for i, item in enumerate(old)]
    return stacked(items) if items and data.draw(st.booleans(), "as a batch") else items


@given(histories(spaced=True), cuts(1), KINDS, st.data())
def test_what_was_set_is_what_is_got(history, cuts, kind, data):
    cuts = history.possible_cuts(cuts)
    episode, reference = kept_as(kind, history, cuts), references(history, cuts)[-1]
    for life, own in matching(episode, reference):
        column = data.draw(st.sampled_from((OBS, ACTIONS, REWARDS, *own.keys)), "column")
        at = data.draw(places(len(own) + (column == OBS), own.lookback), "at")
        new = written(data, own, column, at, True, 200)
        setter = getattr(life, SETTERS.get(column, "set_extra_model_outputs"))
        setter(new_data=new, at_indices=at, neg_index_as_lookback=True, **({"key": column} if column in KEYS else {}))
        own.set(column, new if isinstance(at, int) else unstacked(new), at, neg_index_as_lookback=True)
        everything = [Question(name, {"indices": slice(-99, 99)}) for name in (*GETTERS, *own.keys)]
        assert_life_equals_reference([*everything, Question(column, {"indices": at})], life, own)


@given(histories(spaced=True), cuts(1), KINDS, st.data())
def test_what_was_set_for_all_agents_is_what_is_got(history, cuts, kind, data):
    cuts = history.possible_cuts(cuts)
    episode, reference = kept_as(kind, history, cuts), references(history, cuts)[-1]
    column = data.draw(st.sampled_from((OBS, ACTIONS, REWARDS)), "column")
    newest = {a: own for a, own in reference.newest_lives().items() if column == OBS or not own.waits}
    least = min([len(own) + (column == OBS) for own in newest.values()], default=0)
    at = data.draw(st.integers(-least, least - 1) if least else st.none(), "at")
    new = {agent_id: written(data, own, column, at, False, 200) for agent_id, own in newest.items()}
    getattr(episode, SETTERS[column])(new_data=new, at_indices=at)
    for agent_id, items in new.items():
        newest[agent_id].set(column, items if isinstance(at, int) else unstacked(items), at)
    assert_same_answers(asked(data, history), episode, reference)


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


@given(histories(spaced=True), cuts(1), KINDS, st.data())
def test_a_whole_column_can_take_another_shape(history, cuts, kind, data):
    cuts = history.possible_cuts(cuts)
    episode, reference = kept_as(kind, history, cuts), references(history, cuts)[-1]
    for life, own in matching(episode, reference):
        column = data.draw(st.sampled_from((OBS, ACTIONS)), "column")
        items = [np.full((2, 3), i, np.float32) for i in range(own.lookback + len(own) + (column == OBS))]
        everything = Question(column, {"indices": slice(-99, 99), "neg_index_as_lookback": True})
        if items:
            getattr(life, SETTERS[column])(
                new_data=np.array(items), at_indices=slice(-99, 99), neg_index_as_lookback=True
            )
            assert same_answer(everything, everything.ask(life), items)
            assert len(life) == len(own)


@given(histories(spaced=True), cuts(4), TO_NUMPY)
def test_types_never_drift(history, cuts, to_numpy):
    cuts = history.possible_cuts(cuts)
    chunks = play(history, cuts, to_numpy)
    joined = play(history, cuts, to_numpy)
    while len(joined) > 1:
        joined[0].concat_episode(joined.pop(1))
    (fresh,) = play(history)
    for episode in (*chunks, *joined, *[life.slice(slice(0, 2)) for life in fresh.to_numpy().all_agent_episodes()]):
        episode.to_numpy()
        lives = episode.all_agent_episodes() if isinstance(episode, MultiAgentEpisode) else [episode]
        for life in lives:
            spaces_of = history.spaces_of(life.agent_id)
            assert dtypes(life.get_observations()) == dtypes(spaces_of[OBS])
            assert dtypes(life.get_actions()) == dtypes(spaces_of[ACTIONS])
            assert life.get_rewards().dtype == np.float64
    of_extras = [
        typed(chunk.get_extra_model_outputs(key, fill=0)[life.agent_id])
        for chunk in (fresh, joined[0])
        for life in chunk.agent_episodes.values()
        for key in KEYS
        if key in chunk.get_extra_model_outputs().get(life.agent_id, {})
    ]
    assert of_extras[: len(of_extras) // 2] == of_extras[len(of_extras) // 2 :]
