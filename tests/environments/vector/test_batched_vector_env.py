"""Natively batched environments: what comes of them is what comes of as many copies as PettingZoo environments."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.envs.batched_envs import OneUnlikeWorld, OneWorld, UnlikeWorlds, Worlds
from helpers.envs.scripted_envs import small_config
from helpers.examples import examples
from helpers.modules.recurrent_modules import StatelessModule, StepwiseGRU, StepwiseLSTM
from helpers.runs.random_runs import plain
from helpers.runs.repeatable_runs import fingerprint
from marl_connectors import (
    Algorithm,
    Callbacks,
    ConnectorV2,
    EnvError,
    FlattenObservations,
    MappingError,
    MeanStdFilter,
    MultiRLModuleSpec,
    PPOConfig,
    RLModuleSpec,
    check_env,
)
from marl_connectors.episodes.storage import T
from marl_connectors.trees import leaves

SPREAD = {"n_agents": 3, "ep_len": 6}


def configured(env, *, copies=3, lookback=1, change=lambda config: config, **env_config):
    config = small_config(env, env_config=env_config).multi_agent(policies="shared")
    config.env_runners(num_envs_per_env_runner=copies, episode_lookback_horizon=lookback, rollout_fragment_length=5)
    return change(config)


def both(*, envs=(Worlds, OneWorld), **settings):
    """The runners of a run in a natively batched environment, and of one in copies of the PettingZoo environment."""
    return [configured(env, **settings).build_algo().env_runner for env in envs]


def content(sample):
    """All that is in a sample's chunks, with the lookback: plain data."""
    return [
        (
            chunk.id_,
            (chunk.is_terminated, chunk.is_truncated, chunk.env_t_started, chunk.env_t, chunk.uncredited_reward),
            [
                (
                    part.id_,
                    (part.agent_id, part.module_id, part.t_started, part.is_terminated, part.is_truncated),
                    [{name: np.asarray(told).tolist() for name, told in info.items()} for info in part.get_infos()],
                    [
                        (leaf.dtype.str, np.asarray(leaf).tolist())
                        for name in ("obs", "actions", "rewards", T, *sorted(part.storage.extra_keys()))
                        for leaf in leaves(part.storage.column(name))
                    ],
                )
                for part in chunk.all_agent_episodes()
            ],
        )
        for chunk in sample
    ]


def assert_same(runners, calls):
    """Whether two runners give the same for each of some ``sample(**call)``; all that the first one gave."""
    found = []
    for call in calls:
        batched, separate = (content(runner.sample(**call)) for runner in runners)
        assert batched == separate
        found += batched
    assert runners[0].num_agent_steps == runners[1].num_agent_steps
    finished = [[own.finished for own in runner.get_state().sub_environments] for runner in runners]
    assert plain(finished[0]) == plain(finished[1])
    left, right = (runner.get_metrics() for runner in runners)
    assert repr(left) == repr(right)
    return found


def steps(*numbers, copies=3, **settings):
    return [{"num_timesteps": number * copies, **settings} for number in numbers]


# The same transitions.


@pytest.mark.few(2)
@pytest.mark.parametrize("lookback", [0, 1, 3])
@pytest.mark.parametrize("fragment", range(1, 8))
def test_any_cut_gives_the_same_chunks(fragment, lookback):
    runners = both(lookback=lookback, infos=True)
    found = assert_same(runners, steps(*[fragment] * (18 // fragment + 1)))
    assert len({id_ for id_, *_ in found}) > 6


@pytest.mark.few(1)
@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("act", ["discrete", "from 5", "box", "matrix"])
def test_any_actions_and_policies_give_the_same(act, policies):
    runners = both(act=act, change=lambda config: config.multi_agent(policies=policies))
    assert_same(runners, steps(4, 9, 3))


@pytest.mark.few(1)
@pytest.mark.parametrize("obs", ["float64", "discrete", "dict"])
def test_any_observations_give_the_same(obs):
    def flat(config):
        return config.env_runners(env_to_module_connector=lambda env: FlattenObservations())

    runners = both(obs=obs, infos=True, change=flat)
    assert_same(runners, steps(4, 9, 3))


def unlike(config):
    config.env_runners(env_to_module_connector=lambda env: FlattenObservations(multi_agent=True))
    return config.multi_agent(policies="b=b,d=d,*=others")


@pytest.mark.slow
@pytest.mark.parametrize("lookback", [0, 2])
def test_agents_with_unlike_spaces_give_the_same(lookback):
    runners = both(envs=(UnlikeWorlds, OneUnlikeWorld), lookback=lookback, infos=True, change=unlike)
    assert_same(runners, [*steps(4, 9, 3), {"num_episodes": 4}, *steps(5, random_actions=True)])


@pytest.mark.slow
def test_agents_with_unlike_spaces_are_tried_out_trained_and_evaluated():
    assert check_env(UnlikeWorlds, env_config={"infos": True}).ok
    results = []
    for env in (UnlikeWorlds, OneUnlikeWorld):
        algo = configured(env, change=unlike).build_algo()
        result = algo.train()
        results.append((fingerprint(algo, result), repr(algo.evaluate(num_episodes=3))))
        algo.stop()
    assert results[0] == results[1]


class LeavesOneOut(UnlikeWorlds):
    def _observations(self):
        return {agent: own for agent, own in super()._observations().items() if agent != "d"}


class OneTooWide(UnlikeWorlds):
    def _observations(self):
        found = super()._observations()
        return found | {"c": np.zeros((self.num_envs, 3), np.float32)}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (LeavesOneOut, r"\['a', 'b', 'c'\]"),
        (OneTooWide, r"(?s)'c'.*\(3, 3\).*\(3, 2\).*num_envs=3"),
    ],
)
def test_observations_by_agent_that_do_not_fit_are_told(env, said):
    with pytest.raises(EnvError, match=said):
        configured(env, change=unlike).build_algo()


def by_episode(agent_id, episode, **kwargs):
    return f"m{(sum(map(ord, agent_id)) + int(episode.id_.split('-')[1])) % 2}"


def test_agents_that_change_their_module_in_each_episode():
    def change(config):
        return config.multi_agent(policies=["m0", "m1"], policy_mapping_fn=by_episode)

    found = assert_same(both(change=change, copies=4), steps(7, 1, 12, copies=4))
    modules = {(part[0], part[1][1]) for _, _, parts in found for part in parts}
    assert len({module_id for _, module_id in modules}) == 2


def test_agents_that_change_between_modules_with_and_without_states():
    classes = {"m0": StepwiseGRU, "m1": StepwiseLSTM, "m2": StatelessModule}

    def change(config):
        mapping = lambda agent, episode, **kwargs: f"m{(ord(agent) + int(episode.id_.split('-')[1])) % 3}"
        specs = {name: RLModuleSpec(module_class=cls) for name, cls in classes.items()}
        config.rl_module(model_config={"max_seq_len": 4})
        return config.multi_agent(policies=list(classes), policy_mapping_fn=mapping).rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs)
        )

    assert_same(both(change=change, copies=6), steps(5, 5, 2, 8, copies=6))


@examples(25)
@given(st.lists(st.sampled_from(["cut", "long", "episodes", "reset", "random", "greedy"]), min_size=1, max_size=6))
def test_any_calls_of_sample_give_the_same(calls):
    arguments = {
        "cut": {"num_timesteps": 3},
        "long": {"num_timesteps": 22},
        "episodes": {"num_episodes": 4},
        "reset": {"force_reset": True, "num_timesteps": 8},
        "random": {"random_actions": True, "num_timesteps": 9},
        "greedy": {"explore": False, "num_timesteps": 7},
    }
    assert_same(both(copies=2, infos=True), [arguments[call] for call in calls])


@pytest.mark.few(1)
@pytest.mark.parametrize("continuous", [False, True])
def test_spread_gives_the_same_as_its_parallel_env(continuous):
    envs = ("marl_envs.spread_v0:batched_env", "marl_envs.spread_v0:parallel_env")
    runners = both(envs=envs, copies=5, continuous_actions=continuous, **SPREAD)
    found = assert_same(runners, steps(4, 13, 1, copies=5))
    assert any(truncated for _, (_, truncated, *_), _ in found)


def test_rewards_are_conserved():
    runner = configured(Worlds, copies=4).build_algo().env_runner
    env, paid = runner.vector_env.env, []
    step = env.step

    def recorded(actions):
        given = step(actions)
        paid.append(given[1].sum())
        return given

    env.step = recorded
    episodes = [episode for steps_ in (3, 9, 5) for episode in runner.sample(num_timesteps=steps_ * 4)]
    found = sum(part.get_return() for episode in episodes for part in episode.all_agent_episodes())
    assert found == pytest.approx(sum(paid)) and len(paid) == 17


def test_all_copies_step_in_one_call():
    algo = configured(Worlds, copies=7).build_algo()
    env = algo.env_runner.vector_env.env
    algo.env_runner.sample(num_timesteps=21)
    assert (env.num_envs, env.num_steps) == (7, 3)
    algo.stop()
    assert env.num_closed == 1


def test_garbage_collection_is_off_while_episodes_begin_and_on_afterwards():
    seen = []

    def mapping(agent_id, episode, **kwargs):
        seen.append(gc.isenabled())
        if len(seen) > 60:
            raise ValueError("no more")
        return "m"

    change = lambda config: config.multi_agent(policies=["m"], policy_mapping_fn=mapping)
    runner = configured(Worlds, change=change).build_algo().env_runner
    seen.clear()
    runner.sample(num_timesteps=3)
    assert gc.isenabled() and len(seen) >= 9 and not any(seen)
    with pytest.raises(MappingError, match="no more"):
        runner.sample(num_timesteps=300)
    assert gc.isenabled()


def test_callbacks_are_told_of_the_environment_once():
    told = []

    class Told(Callbacks):
        def on_environment_created(self, *, env_runner, env, env_context, **kwargs):
            told.extend(env.envs)

    algo = configured(Worlds, change=lambda config: config.callbacks(Told)).build_algo()
    assert told == [algo.env_runner.vector_env.env] * algo.env_runner.vector_env.num_envs


# With pieces, and in an algorithm.


class OnItems(ConnectorV2):
    """Adds 1 to each observation, on items."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            self.add_batch_item(batch, "obs", episode.get_observations(-1) + 1.0, episode)
        return batch


def test_pieces_on_items_get_the_same():
    def change(config):
        return config.env_runners(env_to_module_connector=lambda env: OnItems())

    assert_same(both(change=change, infos=True), steps(3, 9, 2))


def test_a_filter_of_observations_has_seen_the_same():
    def change(config):
        return config.env_runners(env_to_module_connector=lambda env: MeanStdFilter())

    runners = both(change=change)
    assert_same(runners, steps(3, 9, 2))
    left, right = (repr(runner.env_to_module.get_state()) for runner in runners)
    assert left == right and "MeanStdFilter" in left


@pytest.mark.slow
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_training_evaluation_and_explanations_are_the_same(policies):
    outcomes = []
    for env in (Worlds, OneWorld):
        algo = configured(env, change=lambda config: config.multi_agent(policies=policies)).build_algo()
        results = [algo.train() for _ in range(3)][-1]
        digest, numbers = fingerprint(algo, {})[0], results["env_runners"]["module_episode_returns"]
        tables = algo.explain().items()
        timeless = {name: [replace(piece, seconds=0.0) for piece in table.pieces] for name, table in tables}
        outcomes.append((digest, numbers, repr(algo.evaluate(num_episodes=4)), timeless))
    assert outcomes[0] == outcomes[1]


@pytest.mark.learning
def test_ppo_learns_spread():
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment("marl_envs.spread_v0:batched_env", env_config={"n_agents": 3})
        .multi_agent(policies="shared")
        .env_runners(num_envs_per_env_runner=64)
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})
        .training(train_batch_size_per_learner=3200, minibatch_size=1200, num_epochs=6, lr=2e-3, gamma=0.95)
        .training(lambda_=0.95, clip_param=0.2, vf_clip_param=float("inf"), entropy_coeff=0.005, use_kl_loss=False)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    before = algo.evaluate(num_episodes=64, explore=True)["env_runners"]["episode_return_mean"] / 3
    for _ in range(20):
        algo.train()
    after = algo.evaluate(num_episodes=64, explore=True)["env_runners"]["episode_return_mean"] / 3
    assert before < -30 and after > -23


def test_random_play_and_pictures():
    algo = configured("marl_envs.spread_v0:batched_env", copies=4, **SPREAD).build_algo()
    assert algo.random_play(num_episodes=2)["env_runners"]["episode_len_mean"] == 6
    frames = algo.render_episode(max_frames=3)
    assert len(frames) == 3 and not np.array_equal(frames[0], frames[2])
    assert configured(Worlds).build_algo().render_episode() == []  # it draws nothing


def test_a_resumed_run_goes_on_with_new_episodes_and_says_why(tmp_path):
    algo = configured("marl_envs.spread_v0:batched_env", **SPREAD).build_algo()
    algo.train()
    algo.env_runner.sample(num_timesteps=6)
    numbers = [copy.episode_number for copy in algo.env_runner.vector_env.sub_envs]
    with pytest.warns(UserWarning, match="continuing"):
        algo.save_to_path(tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match="replayed") as caught:
        again = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    assert len(caught) == 1 and "too long" not in str(caught[0].message)
    assert fingerprint(again, {}) == fingerprint(algo, {})
    ids = [chunk.id_ for chunk in again.env_runner.sample(num_timesteps=3)]
    assert ids == [f"{index}-{number + 1}" for index, number in enumerate(numbers)]


def test_a_run_that_is_not_within_episodes_is_resumed_exactly(tmp_path):
    outcomes = []
    for resumed in (False, True):
        algo = configured("marl_envs.spread_v0:batched_env", **SPREAD).build_algo()
        algo.train()
        algo.env_runner.restart_episodes()
        if resumed:
            algo.save_to_path(tmp_path / "checkpoint")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                algo = Algorithm.from_checkpoint(tmp_path / "checkpoint")
        outcomes.append(fingerprint(algo, algo.train()))
    assert outcomes[0] == outcomes[1]
