"""What holds for all episodes: agents join, pause, act in turns, die and come back at will.

Other and more histories than by default: ``pytest --hypothesis-profile=long tests/contracts/test_random_histories.py``.
"""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from helpers.episodes.comparing import (
    assert_equals_reference,
    assert_life_equals_reference,
    assert_same_answers,
    facts,
    is_vague,
    matching,
    same_answer,
    same_answers,
    state_of,
    through_json,
    typed,
)
from helpers.episodes.histories import AGENT_IDS, EVERYONE, SPACES, cuts, histories
from helpers.episodes.players import KINDS, TO_NUMPY, add, module_of, newest_chunk, play, play_alone, references, views
from helpers.episodes.questions import (
    ALWAYS_ASKED,
    ALWAYS_ASKED_OF_ONE,
    Question,
    has_discrete_part,
    questions,
    questions_of_one,
)
from helpers.episodes.reference_life import OBS
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

CATEGORICAL = [space for space in SPACES if has_discrete_part(space)]
STEPS = st.integers(0, 12)


def asked(data, history, one_hot=False):
    few = st.lists(questions(history.agent_ids, one_hot), min_size=1, max_size=6)
    return [*ALWAYS_ASKED, *data.draw(few, "questions")]


def asked_of_one(data, one_hot=False):
    return data.draw(st.lists(questions_of_one(one_hot), min_size=1, max_size=4), "questions about one agent")


# Against the reference.


@given(histories(), cuts(), TO_NUMPY, st.data())
def test_every_chunk_answers_as_the_reference_does(history, cuts, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    everything, of_one = asked(data, history), asked_of_one(data)
    for chunk, reference in zip(play(history, cuts, to_numpy), references(history, cuts), strict=True):
        chunk.validate()
        before = state_of(chunk)
        assert_equals_reference(everything, chunk, reference)
        for life, own in matching(chunk, reference):
            assert_life_equals_reference(of_one, life, own)
        assert state_of(chunk) == before


@given(histories(spaced=True, of=CATEGORICAL), cuts(), st.data())
def test_lists_arrays_and_views_give_the_same(history, cuts, data):
    cuts = history.possible_cuts(cuts)
    everything, of_one = asked(data, history, one_hot=True), asked_of_one(data, one_hot=True)
    reference = references(history, cuts)[-1]
    episodes = lists, arrays, viewed = [newest_chunk(kind, history, cuts) for kind in KINDS]
    assert not lists.is_numpy and (not lists.agent_ids or (arrays.is_numpy and viewed.is_numpy))
    for question in everything:
        expected, answers = question.ask(reference), [question.ask(episode) for episode in episodes]
        assert all(same_answers(question, answer, expected) for answer in answers), (question, answers)
        assert same_answers(question, answers[0], answers[1]), (question, answers)
        assert typed(answers[1]) == typed(answers[2]) or is_vague(expected), (question, answers)
    for alike in zip(*(matching(episode, reference) for episode in episodes), strict=True):
        for question in of_one:
            expected, answers = question.ask(alike[0][1]), [question.ask(life) for life, _ in alike]
            assert all(same_answer(question, answer, expected) for answer in answers), (question, answers)
            assert typed(answers[1]) == typed(answers[2]) or is_vague(expected), (question, answers)


@given(histories(spaced=True), cuts(1), st.sampled_from(KINDS), STEPS, STEPS, st.none() | st.integers(0, 5), st.data())
def test_a_slice_is_what_the_reference_says(history, cuts, kind, begin, end, lookback, data):
    cuts = history.possible_cuts(cuts)
    whole, reference = newest_chunk(kind, history, cuts), references(history, cuts)[-1]
    begin, end = min(begin, len(whole)), min(end, len(whole))
    before = state_of(whole)
    part, expected = whole.slice(slice(begin, end), len_lookback_buffer=lookback), reference.part(begin, end, lookback)
    part.validate()
    assert_equals_reference(asked(data, history), part, expected, but="uncredited" if kind == "views" else "")
    for life, own in matching(whole, reference):
        at, until = min(begin, len(life)), min(end, len(life))
        piece = life.slice(slice(at, until), len_lookback_buffer=lookback)
        assert_life_equals_reference(asked_of_one(data), piece, own.part_of_steps(at, max(at, until), lookback))
    assert state_of(whole) == before


@given(histories(who_acts=("parallel",), one_agent=True), cuts(), TO_NUMPY, st.data())
def test_single_agent_episodes_answer_as_the_reference_does(history, cuts, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    chunks, questions = play_alone(history, cuts, to_numpy), [*ALWAYS_ASKED_OF_ONE, *asked_of_one(data)]
    for chunk, reference in zip(chunks, references(history, cuts), strict=True):
        (own,) = reference.lives
        assert_life_equals_reference(questions, chunk, own)
        data_dict, steps = chunk.get_data_dict(), len(chunk)
        assert list(data_dict["t"]) == [row.t for row in own.rows[own.start : -1]]
        for name, ended in (("terminateds", own.is_terminated), ("truncateds", own.is_truncated)):
            assert list(data_dict[name]) == [False] * (steps - 1) + [ended] * (steps > 0)
        assert same_answer(Question(OBS, {}), data_dict["obs"], own.get(OBS, slice(0, steps)))
    whole = play_alone(history)[0]
    for chunk in chunks[1:]:
        chunks[0].concat_episode(chunk)
    assert state_of(chunks[0].to_numpy()) == state_of(whole.to_numpy())


def given_data(history, lookback):
    """An episode of all observations, actions and so on at once, without a step."""
    seen = [history.reset, *((step.observations, step.infos) for step in history.steps)]
    return MultiAgentEpisode(
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


@given(histories(endless=True), STEPS, st.data())
def test_given_data_are_as_good_as_steps(history, lookback, data):
    lookback = min(lookback, len(history.steps))
    episode = given_data(history, lookback)
    reference = references(history)[0].part(lookback, len(history.steps), 99)
    assert_same_answers(asked(data, history), episode, reference)
    assert episode.get_agents_to_act() == reference.facts()["to_act"]


@given(histories(endless=True), STEPS)
def test_rewards_of_given_data_are_conserved(history, lookback):
    """Those of the chunk's env steps, and those before them for actions that still waited."""
    lookback = min(lookback, len(history.steps))
    episode = given_data(history, lookback)
    starts = {life.agent_id: life.start for life in references(history)[0].part(lookback, len(history.steps)).lives}
    before = references(history.until(lookback))[0].lives
    paid = sum(row.reward for life in before for row in life.rows[starts[life.agent_id] :])
    paid += sum(float(reward) for step in history.steps[lookback:] for reward in step.rewards.values())
    assert episode.get_return(include_hanging_rewards=True) + episode.uncredited_reward == paid


# Chunks.


@given(histories(), cuts(4, least=1), TO_NUMPY, st.randoms(use_true_random=False), st.data())
def test_chunks_concatenate_in_any_order_to_what_was_never_cut(history, cuts, to_numpy, random, data):
    cuts = history.possible_cuts(cuts)
    chunks, (whole,) = play(history, cuts, to_numpy), play(history)
    while len(chunks) > 1:
        i = random.randrange(len(chunks) - 1)
        after = state_of(chunks[i + 1])
        chunks[i].concat_episode(chunks[i + 1])
        assert state_of(chunks.pop(i + 1)) == after
    assert_equals_reference(asked(data, history), chunks[0], references(history)[0])
    if not to_numpy:
        assert state_of(chunks[0]) == state_of(whole)
    assert state_of(chunks[0].to_numpy()) == state_of(whole.to_numpy())


@given(histories(), cuts(1), st.lists(STEPS, max_size=3), TO_NUMPY)
def test_consecutive_slices_concatenate_to_the_whole(history, cuts, places, to_numpy):
    whole = play(history, history.possible_cuts(cuts), to_numpy)[-1]
    bounds = [0, *sorted(min(place, len(whole)) for place in places), len(whole)]
    parts = [whole[begin:end] for begin, end in itertools.pairwise(bounds)]
    assert sum(part.get_return() for part in parts) == whole.get_return()
    assert sum(part.uncredited_reward for part in parts) == whole.uncredited_reward
    joined = parts[0]
    for part in parts[1:]:
        if not joined.is_done:
            joined.concat_episode(part)
    assert state_of(joined.to_numpy()) == state_of(whole.to_numpy())


@given(histories(spaced=True), STEPS, st.integers(0, 4), st.data())
def test_views_can_be_cut_grown_and_appended_to(history, at, lookback, data):
    ((at, lookback),) = history.possible_cuts([(at, lookback)])
    begun = views(references(history.until(at))[0], history)
    successor, everything = begun.cut(lookback), asked(data, history)
    for step in history.steps[at:]:
        add(successor, step)
    assert_equals_reference(everything, successor, references(history, [(at, lookback)])[-1])
    begun.concat_episode(successor)
    assert_equals_reference(everything, begun, references(history)[0], but="uncredited")


@given(histories(), cuts(4))
def test_rewards_are_conserved_for_each_agent(history, cuts):
    cuts = history.possible_cuts(cuts)
    for agent_id in history.agent_ids:
        paid = sum(float(step.rewards.get(agent_id, 0.0)) for step in history.steps)
        alone = history.until(None)
        alone.steps = [
            step._replace(rewards={a: r if a == agent_id else 0.0 for a, r in step.rewards.items()})
            for step in history.steps
        ]
        chunks = play(alone, cuts)
        waiting = chunks[-1].get_return(include_hanging_rewards=True) - chunks[-1].get_return()
        assert sum(chunk.get_return() + chunk.uncredited_reward for chunk in chunks) + waiting == paid


# What makes no difference.


@given(histories(), cuts(2), st.randoms(use_true_random=False), st.data())
def test_the_order_of_agents_makes_no_difference(history, cuts, random, data):
    cuts, everything = history.possible_cuts(cuts), asked(data, history)

    def shuffled(part):
        return dict(sorted(part.items(), key=lambda _: random.random()))

    for one, other in zip(play(history, cuts), play(history.changed(shuffled), cuts), strict=True):
        assert facts(one) == facts(other) and state_of(one) == state_of(other)
        assert_same_answers(everything, one, other)


@given(histories(), cuts(2), st.permutations(AGENT_IDS), st.data())
def test_other_names_change_nothing_but_the_names(history, cuts, order, data):
    cuts, everything = history.possible_cuts(cuts), asked(data, history)
    names = dict(zip(AGENT_IDS, order, strict=True)) | {EVERYONE: EVERYONE}

    def in_new_names(answer):
        if isinstance(answer, (list, set)):
            return type(answer)(in_new_names(part) if isinstance(part, dict) else names[part] for part in answer)
        return {names[a]: item for a, item in answer.items()} if isinstance(answer, dict) else answer

    for one, other in zip(play(history, cuts), play(history.renamed(names), cuts), strict=True):
        assert {name: in_new_names(fact) for name, fact in facts(one).items()} == facts(other)
        for question in everything:
            options = dict(question.options)
            asked_for = options.get("agent_ids")
            if asked_for is not None:
                options["agent_ids"] = (
                    in_new_names(asked_for) if isinstance(asked_for, (list, set)) else names[asked_for]
                )
            answer, again = in_new_names(question.ask(one)), Question(question.column, options).ask(other)
            assert same_answers(question, answer, again), (question, answer, again)


@given(histories(), cuts(1), STEPS, TO_NUMPY, st.data())
def test_an_episode_goes_on_from_its_state_as_if_nothing_had_been(history, cuts, at, to_numpy, data):
    cuts = history.possible_cuts(cuts)
    original = play(history, cuts, to_numpy)[-1]
    again = MultiAgentEpisode.from_state(through_json(original.get_state()))
    assert again.get_duration_s() == original.get_duration_s()
    assert state_of(again) == state_of(original) and facts(again) == facts(original)
    for question in asked(data, history):
        one, other = question.ask(original), question.ask(again)
        assert same_answers(question, one, other) and typed(one) == typed(other), (question, one, other)
    for life in original.all_agent_episodes():
        assert state_of(SingleAgentEpisode.from_state(through_json(life.get_state()))) == state_of(life)
    at = min(at, len(history.steps))
    cuts, to_numpy = [cut for cut in cuts if cut[0] <= at], to_numpy & set(range(at + 1))
    whole, begun = play(history, cuts, to_numpy)[-1], play(history.until(at), cuts, to_numpy)[-1]
    resumed = MultiAgentEpisode.from_state(through_json(begun.get_state()), lambda agent_id, _: module_of(agent_id))
    for step in history.steps[at:]:
        add(resumed, step)
    assert state_of(resumed) == state_of(whole)
    assert state_of(resumed.to_numpy()) == state_of(whole.to_numpy())


@given(histories(spaced=True), cuts(1), st.data())
def test_the_state_of_views_is_that_of_arrays(history, cuts, data):
    cuts = history.possible_cuts(cuts)
    viewed, reference = newest_chunk("views", history, cuts), references(history, cuts)[-1]
    again = MultiAgentEpisode.from_state(through_json(viewed.get_state()))
    assert (again.is_numpy or not again.agent_ids) and state_of(again) == state_of(viewed)
    assert_equals_reference(asked(data, history), again, reference, but="uncredited")
