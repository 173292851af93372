import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given

from helpers.envs.masked_envs import RandomMasks, Turns
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from helpers.envs.stated_envs import StatedAEC, StatedLife
from helpers.episodes.histories import cuts, histories
from helpers.episodes.little_chunks import chunk
from helpers.episodes.players import TO_NUMPY, play
from helpers.episodes.recorded import facts, through_columns, train_batch
from helpers.runs.random_runs import described, differences, plain, random_config, rows_of
from helpers.runs.recurrent_runs import config_of as recurrent_config
from helpers.runs.turn_based_configs import stateful_config, tictactoe
from marl_connectors import MultiAgentEpisode, SingleAgentEpisode
from marl_connectors.algorithms.mappo import MAPPOConfig
from marl_connectors.episodes.rollout import spans
from marl_connectors.errors import EpisodeError
from marl_connectors.offline.recorded_sample import RecordedSample, recorded


def assert_same_batches(config, iterations=3):
    algo = config.build_algo()
    for _ in range(iterations):
        episodes = algo._sample().episodes()
        back = through_columns(episodes)
        assert not differences(plain(rows_of(episodes)), plain(rows_of(back)))
        assert plain(train_batch(algo, back)) == plain(train_batch(algo, episodes))
        algo.learner.update(episodes=back)
    algo.stop()


# The train batch.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_a_train_batch_of_random_settings_is_the_same_bit_for_bit(seed):
    try:
        assert_same_batches(random_config(seed))
    except AssertionError as error:
        raise AssertionError(f"{described(random_config(seed))}") from error


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(60))
def test_a_train_batch_of_fresh_settings_is_the_same_bit_for_bit(repetition):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}: {described(random_config(seed))}")
    assert_same_batches(random_config(seed))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: small_config(RandomMasks, env_config={"case": 3}).multi_agent(policies="independent"),
        lambda: small_config(lambda: Turns(in_info=True)).env_runners(rollout_fragment_length=3),
        lambda: small_config(StatedLife, MAPPOConfig, env_config={"die": 0.2}).training(critic_obs="state"),
        lambda: small_config(StatedAEC, MAPPOConfig, env_config={"die": 0.2, "back": 0.3}).training(critic_obs="state"),
        lambda: small_config(LifeEnv, MAPPOConfig, env_config={"die": 0.2, "join": 0.4}),
        recurrent_config,
        stateful_config,
        tictactoe,
    ],
    ids=["masks", "masks in infos", "states", "states in turns", "joint", "recurrent", "recurrent in turns", "chess"],
)
def test_a_train_batch_of_a_standing_case_is_the_same_bit_for_bit(make):
    assert_same_batches(make())


def test_a_late_reward_is_where_it_was():
    script = [
        Step({"a": 0, "b": 0}),
        Step({"a": 1}, {"a": 1.0, "b": 0.5}, terminated=("b",)),
        Step({"a": 2}, {"a": 1.0, "b": 7.0}),
        Step({"a": 3}, {"a": 1.0, "b": 3.0}, truncated=("a",)),
    ]
    config = small_config(lambda: ScriptEnv([script])).env_runners(rollout_fragment_length=1)
    config.multi_agent(policies="independent").training(train_batch_size_per_learner=4, minibatch_size=4)
    algo = config.build_algo()
    episodes = algo._sample().episodes()
    assert [e.uncredited_reward for e in through_columns(episodes)] == [e.uncredited_reward for e in episodes]
    assert_same_batches(config)


# Episodes made by hand.


@given(histories(), cuts(), TO_NUMPY)
def test_episodes_made_by_hand_come_back(history, cuts, to_numpy):
    chunks = list(play(history, history.possible_cuts(cuts), to_numpy))
    for before, after in zip(chunks, through_columns(chunks), strict=True):
        after.validate()
        assert plain(facts(after)) == plain(facts(before))
        assert after.custom_data == before.custom_data
        assert after.uncredited_reward == before.uncredited_reward
        assert after.get_agents_to_act() == before.get_agents_to_act()
        assert after.get_terminateds() == before.get_terminateds()
        assert after.env_t_started == before.env_t_started and after.env_lookback == before.env_lookback
        waiting = [(e.agent_id, e.storage.pending()) for e in before.all_agent_episodes()]
        assert plain([(e.agent_id, e.storage.pending()) for e in after.all_agent_episodes()]) == plain(waiting)


def test_writing_changes_no_episode():
    episode = chunk("m", 10, 3, lookback=1, logp=0.5)
    storage = episode.storage
    recorded([episode])
    assert episode.storage is storage and isinstance(storage.columns["obs"], list)


def test_an_episode_before_its_first_observation_comes_back():
    alone, several = through_columns([SingleAgentEpisode("a"), MultiAgentEpisode("b")])
    assert not alone.is_reset and not several.is_reset and (alone.id_, several.id_) == ("a", "b")
    alone.add_env_reset(observation=1)


def test_agents_may_have_ids_of_any_plain_kind():
    agents = ["a", 3, ("wolf", 1), np.int64(7), True]
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={agent: float(i) for i, agent in enumerate(agents[:4])})
    back = through_columns([episode])[0]
    assert list(back.agent_episodes) == agents[:4]
    assert [type(agent) for agent in back.agent_episodes] == [str, int, tuple, np.int64]


def test_an_agent_id_that_no_file_can_hold_is_named():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={frozenset("x"): 1.0})
    with pytest.raises(EpisodeError, match=r"(?s)'e'.*'e'.*agents/0"):
        recorded([episode])


def test_custom_data_that_no_file_can_hold_is_named():
    episode = chunk("m", 0, 1)
    episode.custom_data["lock"] = object()
    with pytest.raises(EpisodeError, match="custom_data/lock"):
        recorded([episode])


def test_an_info_that_no_file_can_hold_is_named():
    episode = chunk("m", 0, 2)
    episode.storage.columns["infos"][1] = {"fine": 1, "odd": [1, {2}]}
    with pytest.raises(EpisodeError, match=r"(?s)'g'.*'a'.*step 1.*info\['odd'\].*\[1\]"):
        recorded([episode])
    dropped = []
    document, _ = recorded([episode], lambda *what: dropped.append(what))
    assert dropped == [("a", "odd", "set")] and document["episodes"]["id"] == ["m0"]


def test_agents_with_other_columns_stay_apart():
    one, other = through_columns([chunk("m", 0, 1, logp=0.5), chunk("m", 5, 1)])
    assert list(one.extra_model_outputs) == ["logp"] and not other.extra_model_outputs


# Reading.


def test_some_episodes_are_read_in_the_wanted_order():
    episodes = [chunk("m", 10 * i, i + 1) for i in range(5)]
    back = through_columns(episodes, numbers=[3, 1])
    assert [e.get_observations()[0, 0] for e in back] == [30, 10]
    assert [len(e) for e in back] == [4, 2]


def test_what_a_piece_writes_to_an_episode_is_not_in_the_next_one_that_is_read():
    document, arrays = recorded([chunk("m", 10, 2)])
    for array in arrays.values():
        array.flags.writeable = False
    sample = RecordedSample(document, arrays)
    sample.episodes()[0].set_rewards(new_data=[9.0, 9.0])
    assert sample.episodes()[0].get_rewards().tolist() == [0.5, 1.5]


def test_another_mapping_function_replaces_the_modules_that_acted():
    episode = MultiAgentEpisode("e", agent_module_ids={"a": "old"})
    episode.add_env_reset(observations={"a": 1.0})
    episode.add_env_step({"a": 2.0}, {"a": 1}, {"a": 1.0})
    assert through_columns([episode])[0].agent_episodes["a"].module_id == "old"
    back = through_columns([episode], module_for=lambda agent_id, episode: f"{agent_id} in {episode.id_}")[0]
    assert back.agent_episodes["a"].module_id == "a in e" and back.module_for("b") == "b in e"


def test_ids_get_a_prefix():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={"a": 1.0})
    back = through_columns([episode], prefix="2/")[0]
    own = back.agent_episodes["a"]
    assert (back.id_, own.id_, own.multi_agent_episode_id) == ("2/e", "2/e/a/0", "2/e")


def test_ids_of_agents_that_join_later_get_a_prefix_too():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={"a": 1.0})
    episode.add_env_step({"a": 2.0, "b": 1.0}, {"a": 1}, {"a": 1.0})
    back = through_columns([episode], prefix="2/")[0]
    assert [own.id_ for own in back.agent_episodes.values()] == ["2/e/a/0", "2/e/b/1"]


def test_spaces_come_back_once_for_all():
    one, other = through_columns([chunk("m", 0, 1), chunk("m", 5, 1)])
    assert one.observation_space == spaces.Box(-99.0, 99.0, (1,), np.float32)
    assert one.observation_space is other.observation_space


def test_positions_of_spans_are_worked_out_by_hand():
    assert spans(np.array([4, 0]), np.array([2, 3]), stride=2).tolist() == [4, 6, 0, 2, 4]
