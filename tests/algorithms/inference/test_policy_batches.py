"""A policy that acts for a batch of environments does in each of them what a policy for that one alone does."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import small_config
from helpers.modules.policies_by_hand import give_statistics, make_policy
from helpers.modules.recurrent_modules import GRUModule
from marl_connectors import (
    ActionMasking,
    AgentIdEncoding,
    FrameStacking,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    PrevActionsPrevRewards,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.algorithms.inference import policy as policy_module
from marl_connectors.errors import MarlConnectorsError
from marl_envs import match_v0

AGENTS = [f"agent_{i}" for i in range(4)]
MATCH = {"n_agents": len(AGENTS), "n_actions": 3, "ep_len": 9}


class WithReward(MultiAgentObservationPreprocessor):
    """On episodes: adds what the agent was paid in its newest step to its observation."""

    looks_at_other_agents = False
    lookback = 1

    def preprocess(self, observations, episode):
        found = {}
        for agent_id, observation in observations.items():
            paid = episode.agent_episodes[agent_id].get_rewards(-1, fill=0.0)
            found[agent_id] = (observation + np.float32(0.3 * paid)).astype(np.float32)
        return found


def memory():
    return [MeanStdFilter(), PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2), FrameStacking(num_frames=3)]


def stacks():
    return FrameStacking(num_frames=3)


def on_episodes():
    return [AgentIdEncoding(), WithReward(), PrevActionsPrevRewards()]


def plain():
    return small_config(match_v0.parallel_env, env_config=MATCH)


def by_agent_and_environment(agent_id, episode, **kwargs):
    return "gru" if (int(agent_id[-1]) + int(episode.id_.split("-")[1])) % 2 else "plain"


CONFIGS = {
    "independent": lambda: plain().multi_agent(policies="independent"),
    "recurrent with memory": lambda: (
        plain()
        .rl_module(rl_module_spec=RLModuleSpec(GRUModule, model_config={"size": 3}))
        .env_runners(env_to_module_connector=memory)
        .learners(learner_connector=stacks)
    ),
    "on episodes": lambda: plain().env_runners(env_to_module_connector=on_episodes),
    "another module in each episode": lambda: plain().multi_agent(
        policies={"plain": RLModuleSpec(), "gru": RLModuleSpec(GRUModule, model_config={"size": 3})},
        policy_mapping_fn=by_agent_and_environment,
    ),
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def loaded(request, tmp_path_factory):
    config = CONFIGS[request.param]()
    algo = config.build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path_factory.mktemp("saved") / "c")
    return lambda **settings: load_policy(path, config=config, **settings)


def some(rng, items, chance):
    return [item for item in items if rng.random() < chance]


def play(loaded, seed, num_calls=40):
    """Random calls, resets, copies and failures; each environment has a policy of its own beside the batch's."""
    rng = np.random.default_rng(seed)
    num_envs, cut_after = int(rng.integers(1, 5)), policy_module._CUT_AFTER
    batch, singles = loaded(), [loaded() for _ in range(num_envs)]
    shape = batch._spaces[AGENTS[0]][0].shape
    agents = AGENTS
    policy_module._CUT_AFTER = int(rng.choice([2, 5, 256]))
    try:
        for _ in range(num_calls):
            if rng.random() < 0.3:
                agents = rng.permutation(some(rng, AGENTS, rng.choice([0.3, 1.0])) or AGENTS[:1]).tolist()
            seen = {a: rng.normal(size=(num_envs, *shape)).astype(np.float32) for a in agents}
            paid = {a: rng.normal(size=num_envs) for a in agents}
            if rng.random() < 0.2:
                wrong = {**seen, agents[-1]: np.full((num_envs, *shape), np.nan, np.float32)}
                with pytest.raises(MarlConnectorsError):
                    batch.actions(wrong, rewards=paid)
            found = batch.actions(seen, rewards=paid)
            assert list(found) == agents
            for i, single in enumerate(singles):
                own = single.actions({a: seen[a][i] for a in agents}, rewards={a: paid[a][i] for a in agents})
                assert own == {a: found[a][i] for a in agents}, f"seed {seed}, environment {i}"
            if rng.random() < 0.1:
                batch = copy.deepcopy(batch) if rng.random() < 0.5 else pickle.loads(pickle.dumps(batch))
            if rng.random() < 0.3:
                ended = rng.random(num_envs) < 0.5
                gone = None if rng.random() < 0.6 else some(rng, AGENTS, 0.5)
                batch.reset(ended, agent_ids=gone)
                for single in (single for single, is_over in zip(singles, ended, strict=True) if is_over):
                    single.reset([True], agent_ids=gone)
    finally:
        policy_module._CUT_AFTER = cut_after


@pytest.mark.slow
def test_a_batch_does_what_its_environments_do_alone(loaded):
    for seed in range(4):
        play(loaded, seed)


@pytest.mark.slow
def test_whatever_comes_and_goes_a_batch_does_what_its_environments_do_alone(loaded):
    """Other calls at every run."""
    first = int(np.random.default_rng().integers(2**31))
    print(f"seeds from {first}")
    for seed in range(first, first + 20):
        play(loaded, seed)


@pytest.mark.parametrize("first", [1, 2])
def test_a_call_that_fails_while_agents_join_changes_nothing(loaded, first):
    """The rollout is widened for agents that join, so that the rows of the others are elsewhere in it."""
    rng, failed, other = np.random.default_rng(first), loaded(), loaded()
    shape = failed._spaces[AGENTS[0]][0].shape
    for number in (first, 4, 4, 4):
        seen = {agent_id: rng.normal(size=(2, *shape)).astype(np.float32) for agent_id in AGENTS[:number]}
        paid = {agent_id: rng.normal(size=2) for agent_id in seen}
        if number == 4:
            with pytest.raises(MarlConnectorsError):
                failed.actions({**seen, AGENTS[3]: np.full((2, *shape), np.nan, np.float32)}, rewards=paid)
        own, expected = failed.actions(seen, rewards=paid), other.actions(seen, rewards=paid)
        assert {a: x.tolist() for a, x in own.items()} == {a: x.tolist() for a, x in expected.items()}


@pytest.mark.few(1)
def test_what_is_drawn_in_an_environment_does_not_depend_on_the_others(loaded):
    few, many = (loaded(explore=True, seed=5) for _ in range(2))
    shape, rng = few._spaces[AGENTS[0]][0].shape, np.random.default_rng(0)
    drawn = []
    for t in range(10):
        agents = AGENTS[: 1 + t % 3]
        seen = {a: rng.normal(size=(6, *shape)).astype(np.float32) for a in agents}
        paid = {a: rng.normal(size=6) for a in agents}
        whole = many.actions(seen, rewards=paid)
        part = few.actions({a: seen[a][:2] for a in agents}, rewards={a: paid[a][:2] for a in agents})
        drawn += [whole[a] for a in agents]
        for a in agents:
            np.testing.assert_array_equal(part[a], whole[a][:2])
    assert any(len(set(own.tolist())) > 1 for own in drawn), "environments draw different numbers"


def test_what_was_drawn_in_one_episode_is_not_drawn_again_in_the_next(tmp_path):
    policy = load_policy(plain().build_algo().save_to_path(tmp_path / "c"), explore=True, seed=1)
    seen = np.zeros(policy._spaces[AGENTS[0]][0].shape, np.float32)

    def episode():
        policy.reset()
        return [policy(seen, AGENTS[0]) for _ in range(30)]

    assert episode() != episode()


def test_nothing_of_earlier_episodes_is_kept(tmp_path):
    policy = load_policy(plain().build_algo().save_to_path(tmp_path / "c"))
    shape = policy._spaces[AGENTS[0]][0].shape
    kept = []
    for _ in range(9):
        policy.reset()
        for explore in (False, True):
            policy.actions({a: np.zeros(shape, np.float32) for a in AGENTS}, explore=explore)
        kept.append(weakref.ref(policy._episodes.lanes.groups[0]))
    gc.collect()
    assert sum(own() is not None for own in kept) <= 3, "the first ones, by which calls were bound, and the newest"


def test_an_agent_that_is_named_twice_acts_once(tmp_path):
    path = plain().build_algo().save_to_path(tmp_path / "c")
    once, twice = (load_policy(path, explore=True, seed=2) for _ in range(2))
    seen = {AGENTS[0]: np.zeros(once._spaces[AGENTS[0]][0].shape, np.float32)}
    for _ in range(20):
        expected = once.actions(seen, agent_ids=AGENTS[:1])
        assert twice.actions(seen, agent_ids=AGENTS[:1] * 2) == expected


def test_observations_of_a_tuple_space_may_be_single_ones_or_a_batch():
    rng = np.random.default_rng(0)
    space = spaces.Tuple([spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)])
    policy = make_policy((space, spaces.Box(-1.0, 1.0, (2,))))
    batch = rng.uniform(-1.0, 1.0, (3, 2)).astype(np.float32), np.array([0, 2, 1])
    alone = []
    for item in zip(*batch, strict=True):
        policy.reset()
        alone.append(policy(item))
    policy.reset()
    np.testing.assert_allclose(policy(batch), alone, atol=1e-6)


def test_a_filter_after_masks_standardises_whole_numbers_in_every_step():
    board = spaces.Dict({"observation": spaces.Box(0, 9, (4,), np.uint8), "action_mask": spaces.MultiBinary(3)})
    policy = give_statistics(make_policy((board, spaces.Discrete(3)), [ActionMasking(), MeanStdFilter()]))
    observation = {"observation": np.array([1, 5, 0, 9], np.uint8), "action_mask": np.ones(3, np.int8)}
    inputs = []
    for _ in range(3):
        policy(observation)
        inputs.append(policy.newest_outputs("action_dist_inputs")["default_agent"])
    np.testing.assert_array_equal(inputs[1], inputs[0])
    np.testing.assert_array_equal(inputs[2], inputs[0])
