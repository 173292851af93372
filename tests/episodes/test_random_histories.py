"""Random multi-agent histories: agents join, pause, die and come back at will."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode

AGENTS = ("a", "b", "c")
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "observes": st.sets(st.sampled_from(AGENTS)),
            "acts": st.sets(st.sampled_from(AGENTS)),
            "earns": st.dictionaries(st.sampled_from(AGENTS), st.integers(-8, 8)),
            "terminates": st.sets(st.sampled_from(AGENTS), max_size=1),
            "truncates": st.sets(st.sampled_from(AGENTS), max_size=1),
        }
    ),
    max_size=12,
)


def play(steps, cut_at=None, lookback=0):
    """The chunks of one history (one chunk without ``cut_at``), and the sum of all rewards that were handed out."""
    chunks, paid = [MultiAgentEpisode(id_="e")], 0.0
    chunks[0].add_env_reset(observations={"a": 0, "b": 0}, infos={"a": {"t": 0}})
    for i, step in enumerate(steps):
        if i == cut_at:
            chunks.append(chunks[-1].cut(lookback))
        episode = chunks[-1]
        t = i + 1
        paid += sum(step["earns"].values())
        episode.add_env_step(
            dict.fromkeys(sorted(step["observes"]), t),
            dict.fromkeys(sorted(step["acts"] & episode.get_agents_to_act()), 10 * t),
            step["earns"],
            {agent: {"t": t} for agent in step["observes"]},
            terminateds=dict.fromkeys(step["terminates"], True),
            truncateds=dict.fromkeys(step["truncates"], True),
        )
        if episode.is_done:
            break
    return chunks, paid


def summary(episode):
    state = episode.get_state()
    lives = sorted(state.pop("agent_episodes"), key=lambda life: life["id_"])
    state["module_of"] = sorted(state["module_of"], key=str)
    return [{key: value for key, value in part.items() if key != "duration_s"} for part in (state, *lives)]


def accounted(episode):
    return episode.get_return() + episode.uncredited_reward


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_reward_is_credited_once_or_reported(steps):
    (episode,), paid = play(steps)
    assert accounted(episode) + episode.get_return(include_hanging_rewards=True) - episode.get_return() == paid
    for life in episode.all_agent_episodes():
        life.validate()


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 11), st.integers(0, 3))
def test_cut_then_concat_equals_never_cut(steps, cut_at, lookback):
    (whole,), _ = play(steps)
    chunks, paid = play(steps, cut_at, lookback)
    waiting = chunks[-1].get_return(include_hanging_rewards=True) - chunks[-1].get_return()
    assert sum(map(accounted, chunks)) + waiting == paid
    if len(chunks) == 2:
        chunks[0].concat_episode(chunks[1])
    assert (chunks[0].get_return(), chunks[0].env_t) == (whole.get_return(), whole.env_t)
    assert summary(chunks[0]) == summary(whole)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 12))
def test_slice_then_concat_equals_the_whole(steps, at):
    (whole,), _ = play(steps)
    first, second = whole[:at], whole[at:]
    if not first.is_done:
        first.concat_episode(second)
        assert summary(first) == summary(whole)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.slices(14), st.lists(st.integers(-15, 15), max_size=4), st.booleans(), st.booleans())
def test_lists_and_arrays_give_the_same(steps, where, indices, neg_index_as_lookback, env_steps):
    ((lists,), _), ((arrays,), _) = play(steps), play(steps)
    arrays.to_numpy()
    options = {"neg_index_as_lookback": neg_index_as_lookback, "env_steps": env_steps}
    for get in ("get_observations", "get_actions", "get_rewards"):
        for asked, fill in ((None, None), (where, None), (where, 3), (indices, 3)):
            one = getattr(lists, get)(asked, fill=fill, **options)
            other = getattr(arrays, get)(asked, fill=fill, **options)
            assert one.keys() == other.keys()
            for agent, items in one.items():
                np.testing.assert_array_equal(np.array(items), other[agent])
