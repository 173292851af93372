"""A policy that threads share does for each agent what it does in one thread, in whatever order they come."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import small_config
from helpers.modules.recurrent_modules import GRUModule
from marl_connectors import (
    AgentIdEncoding,
    Columns,
    ConnectorV2,
    DefaultPPORLModule,
    FrameStacking,
    MeanStdFilter,
    MultiRLModule,
    PrevActionsPrevRewards,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.errors import ConnectorError, EpisodeError, MappingError, MarlConnectorsError
from marl_connectors.rl_module.distributions import TorchDiagGaussian
from marl_envs import match_v0

AGENTS = [f"agent_{i}" for i in range(6)]
MATCH = {"n_agents": len(AGENTS), "n_actions": 3, "ep_len": 9}
STEPS = 12


def memory():
    """Three pieces that look back."""
    return [MeanStdFilter(), PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2), FrameStacking(num_frames=3)]


def stacks():
    return FrameStacking(num_frames=3)


def numbered():
    return [AgentIdEncoding(), SumOfTwo()]


class SumOfTwo(ConnectorV2):
    """On items: adds the observation before the newest one to it."""

    looks_at_other_agents = False

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            before, newest = episode.get_observations([-2, -1], fill=0.0)
            episode.set_observations(new_data=(newest + 0.5 * before).astype(np.float32), at_indices=-1)
        return batch


class DrawsItself(TorchDiagGaussian):
    """Draws from torch's generator, which all threads share."""

    @classmethod
    def noise(cls, rng, shape, num_inputs):
        return None


class OwnDistribution(DefaultPPORLModule):
    def get_exploration_action_dist_cls(self):
        return DrawsItself


def plain(**env_config):
    return small_config(match_v0.parallel_env, env_config={**MATCH, **env_config})


CONFIGS = {
    "shared": lambda: plain(),
    "independent": lambda: plain(continuous_actions=True).multi_agent(policies="independent"),
    "two kinds of modules": lambda: plain().multi_agent(
        policies={"plain": RLModuleSpec(), "gru": RLModuleSpec(GRUModule, model_config={"size": 3})},
        policy_mapping_fn="agent_[024]=gru,*=plain",
    ),
    "recurrent": lambda: plain().rl_module(model_config={"use_lstm": True, "lstm_cell_size": 3}),
    "recurrent with memory": lambda: (
        plain()
        .rl_module(rl_module_spec=RLModuleSpec(GRUModule, model_config={"size": 3}))
        .env_runners(env_to_module_connector=memory)
        .learners(learner_connector=stacks)
    ),
    "on items": lambda: plain().env_runners(env_to_module_connector=numbered),
    "own distribution": lambda: plain(continuous_actions=True).rl_module(rl_module_spec=RLModuleSpec(OwnDistribution)),
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def saved(request, tmp_path_factory):
    """A checkpoint after a few steps of training."""
    algo = CONFIGS[request.param]().build_algo()
    algo.train()
    return algo.save_to_path(tmp_path_factory.mktemp("saved") / "c")


@pytest.fixture
def switching():
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def plays(policy, seed=0, steps=STEPS, agents=AGENTS):
    """What each agent sees and is paid, step by step: ``{agent: [(observation, reward), ...]}``."""
    rng = np.random.default_rng(seed)
    shape = policy._spaces[agents[0]][0].shape
    return {
        agent_id: [(rng.normal(size=shape).astype(np.float32), float(rng.normal())) for _ in range(steps)]
        for agent_id in agents
    }


def acts(policy, agent_id, steps):
    """What an agent does, one call a step."""
    return [np.asarray(policy(seen, agent_id, reward=paid)) for seen, paid in steps]


def same(found, expected):
    assert found.keys() == expected.keys()
    for agent_id, actions in expected.items():
        np.testing.assert_array_equal(found[agent_id], actions, err_msg=agent_id)


def in_threads(work):
    """``{name: what it gave}`` of functions that all begin at once; raises what any of them raised."""
    begin, found, errors = threading.Barrier(len(work)), {}, []

    def run(name, function):
        try:
            begin.wait(60)
            found[name] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in work.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    assert found.keys() == work.keys(), "all have come to their end"
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("explore", [False, True])
def test_agents_in_threads_act_as_one_after_another(saved, switching, explore):
    threads_change_nothing(saved, explore, 5)


def threads_change_nothing(saved, explore, seed):
    alone, shared = (load_policy(saved, explore=explore, seed=seed) for _ in range(2))
    given = plays(alone, seed)
    expected = {agent_id: acts(alone, agent_id, steps) for agent_id, steps in given.items()}
    work = {a: lambda a=a, steps=steps: acts(shared, a, steps) for a, steps in given.items()}
    same(in_threads(work), expected)


def in_random_order(policy, given, seed):
    """What agents do whose calls come in a random order, each agent's own steps in theirs."""
    turns = np.repeat(list(given), [len(steps) for steps in given.values()])
    np.random.default_rng(seed).shuffle(turns)
    found, left = {a: [] for a in given}, {a: iter(steps) for a, steps in given.items()}
    for agent_id in turns.tolist():
        seen, paid = next(left[agent_id])
        found[agent_id].append(np.asarray(policy(seen, agent_id, reward=paid)))
    return found


def orders_of_calls_change_nothing(saved, seed):
    alone, other = (load_policy(saved, explore=True, seed=seed) for _ in range(2))
    given = plays(alone, seed)
    expected = {agent_id: acts(alone, agent_id, steps) for agent_id, steps in given.items()}
    same(in_random_order(other, given, seed), expected)


@pytest.mark.few(1)
def test_the_order_of_calls_changes_nothing(saved):
    orders_of_calls_change_nothing(saved, 0)


@pytest.mark.slow
def test_no_order_of_calls_changes_anything(saved, switching):
    """Other orders at every run, in one thread and in as many as there are agents."""
    first = int(np.random.default_rng().integers(2**31))
    print(f"seeds from {first}")
    for seed in range(first, first + 20):
        orders_of_calls_change_nothing(saved, seed)
        threads_change_nothing(saved, explore=bool(seed % 2), seed=seed)


@pytest.mark.few(1)
def test_whoever_acts_together_draws_what_each_draws_alone(saved):
    """Only of distributions that draw from torch's generator it depends on who acts together."""
    alone, other = (load_policy(saved, explore=True, seed=1) for _ in range(2))
    if isinstance(next(iter(alone.rl_module.values())), OwnDistribution):
        pytest.skip("draws from torch's generator")
    given = plays(alone)
    expected = {agent_id: acts(alone, agent_id, steps) for agent_id, steps in given.items()}
    found = {agent_id: [] for agent_id in given}
    for t in range(STEPS):
        for group in np.array_split(np.random.default_rng(t).permutation(AGENTS), 1 + t % 4):
            seen, paid = ({str(a): given[a][t][i] for a in group} for i in (0, 1))
            for agent_id, action in other.actions(seen, rewards=paid).items():
                found[agent_id].append(np.asarray(action))
    for agent_id, actions in expected.items():
        np.testing.assert_allclose(found[agent_id], actions, rtol=1e-4, atol=1e-5)


def bad_calls(policy):
    """Calls that fail at the door, in the middle, and at the end."""
    shape = policy._spaces[AGENTS[0]][0].shape
    return [
        (MarlConnectorsError, lambda a: policy(np.zeros((*shape, 2), np.float32), a)),
        (MappingError, lambda a: policy(np.zeros(shape, np.float32), "nobody")),
        (MarlConnectorsError, lambda a: policy(np.full(shape, np.nan, np.float32), a, reward=0.0)),
        (MarlConnectorsError, lambda a: policy(np.full(shape, np.nan, np.float32), a, reward=0.0, explore=True)),
        (EpisodeError, lambda a: policy.actions({a: np.zeros(shape), AGENTS[a == AGENTS[0]]: np.zeros((2, *shape))})),
        (EpisodeError, lambda a: policy.reset([True, False, True])),
    ]


@pytest.mark.few(1)
def test_calls_that_fail_leave_everybody_as_they_were(saved, switching):
    """Also those who have not acted before: the first call of each thread is one that fails."""
    alone, shared = (load_policy(saved, explore=True, seed=2) for _ in range(2))
    given, bad = plays(alone), bad_calls(shared)
    expected = {agent_id: acts(alone, agent_id, steps) for agent_id, steps in given.items()}

    def with_failures(agent_id):
        rng, found = np.random.default_rng(int(agent_id[-1])), []
        for seen, paid in given[agent_id]:
            for i in rng.permutation(len(bad))[: rng.integers(1, 4)]:
                error, call = bad[i]
                with pytest.raises(error):
                    call(agent_id)
            found.append(np.asarray(shared(seen, agent_id, reward=paid)))
        return found

    same(in_threads({a: lambda a=a: with_failures(a) for a in AGENTS}), expected)


@pytest.mark.few(1)
def test_the_first_call_of_all_may_fail(saved):
    for call in range(6):
        policy, other = (load_policy(saved, seed=2) for _ in range(2))
        error, wrong = bad_calls(policy)[call]
        with pytest.raises(error):
            wrong(AGENTS[0])
        given = plays(policy, steps=3)
        same(in_random_order(policy, given, call), in_random_order(other, given, call))


@pytest.mark.few(2)
def test_an_agent_that_comes_back_may_fail_and_come_back_again(saved):
    policy, other = (load_policy(saved, seed=2) for _ in range(2))
    given, (_, _, (error, wrong), *_) = plays(policy, steps=6), bad_calls(policy)
    for own in (policy, other):
        for t in range(6):
            if t == 3:
                own.reset(agent_ids=AGENTS[:2])
            if t > 1 and own is policy:
                for agent_id in AGENTS[:3]:
                    with pytest.raises(error):
                        wrong(agent_id)
            found = {a: np.asarray(own(*given[a][t][:1], a, reward=given[a][t][1])) for a in AGENTS}
            if own is policy:
                found_by_policy = found
        if own is policy:
            expected = found_by_policy
    same(found, expected)


@pytest.mark.few(1)
def test_sessions_act_side_by_side_each_in_its_own_episode(saved, switching):
    policy = load_policy(saved)
    sessions = {i: policy.session(explore=bool(i % 2), seed=i) for i in range(4)}
    singles = {i: load_policy(saved, explore=bool(i % 2), seed=i) for i in range(4)}
    given = {i: plays(policy, i, agents=AGENTS[:3]) for i in range(4)}
    expected = {i: {a: acts(singles[i], a, steps) for a, steps in given[i].items()} for i in range(4)}
    assert all(own.rl_module is policy.rl_module for own in sessions.values())

    def play(i):
        sessions[i].reset()
        return {a: acts(sessions[i], a, steps) for a, steps in given[i].items()}

    found = in_threads({i: lambda i=i: play(i) for i in range(4)})
    for i in range(4):
        same(found[i], expected[i])
    same({a: acts(policy, a, steps) for a, steps in given[0].items()}, expected[0])


def test_a_change_of_parameters_applies_to_all_sessions(tmp_path):
    policy = load_policy(plain().build_algo().save_to_path(tmp_path / "c"))
    session, module = policy.session(), policy.rl_module["default_policy"]
    (observation, _), *_ = plays(policy)[AGENTS[0]]
    heads = [layer for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear) and "pi" in name]
    first = policy(observation, AGENTS[0])
    assert first == session(observation, AGENTS[0])
    for wanted in range(3):
        with torch.no_grad():
            heads[-1].bias.copy_(100.0 * torch.eye(3)[wanted])
        assert policy(observation, AGENTS[0]) == session(observation, AGENTS[0]) == wanted
    state = {name: value * 0 for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    assert policy(observation, AGENTS[0]) == session(observation, AGENTS[0]) == 0
    heads[-1].bias.data[2] = 1.0
    policy.reset()
    session.reset()
    assert policy(observation, AGENTS[0]) == session(observation, AGENTS[0]) == 2


def test_sessions_have_other_random_numbers_unless_they_are_given_a_seed(saved):
    def drawn(policy):
        return [np.asarray(policy(seen, AGENTS[0], reward=0.0)) for seen, _ in plays(policy)[AGENTS[0]]]

    policies = [load_policy(saved, explore=True, seed=3) for _ in range(2)]
    (first, second), again = [policies[0].session() for _ in range(2)], policies[1].session()
    expected = drawn(first)
    assert not np.array_equal(drawn(second), expected)
    assert not np.array_equal(drawn(policies[0]), expected)
    np.testing.assert_array_equal(drawn(again), expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda own: pickle.loads(pickle.dumps(own))], ids=["copy", "pickle"])
def test_copies_that_are_made_while_others_act_are_whole(saved, switching, copied):
    policy = load_policy(saved, explore=True, seed=4)
    given, made, over = plays(policy, steps=8), [], threading.Event()
    alone = load_policy(saved, explore=True, seed=4)
    expected = {agent_id: acts(alone, agent_id, steps) for agent_id, steps in given.items()}

    def copies():
        while not over.is_set() and len(made) < 20:
            made.append(copied(policy))

    work = {a: lambda a=a, steps=steps: acts(policy, a, steps) for a, steps in given.items()}
    copying = threading.Thread(target=copies)
    copying.start()
    try:
        same(in_threads(work), expected)
    finally:
        over.set()
        copying.join(60)
    assert made
    for own in made[:: max(len(made) // 4, 1)]:
        for agent_id, steps in given.items():
            step = own._vector_env.num_acted.get(agent_id, 0)
            found = acts(own, agent_id, steps[step:])
            np.testing.assert_array_equal(found, expected[agent_id][step:])


# Whoever calls the policy from within.


class Calls(ConnectorV2):
    """Does in its place in the pipeline what it is told."""

    looks_at_other_agents = False
    does = None

    def columns(self, c, xp):
        if self.does is not None:
            self.does()
        pass


def calls():
    return Calls()


@pytest.fixture
def calling(tmp_path):
    saved = plain().env_runners(env_to_module_connector=calls).build_algo().save_to_path(tmp_path / "c")
    policy = load_policy(saved)
    return policy, policy.env_to_module["Calls"], plays(policy)[AGENTS[0]]


@pytest.mark.parametrize("name", ["call", "reset", "session", "pickle", "copy"])
def test_a_piece_that_uses_its_own_policy_is_told_so(calling, name):
    policy, piece, given = calling
    use = {
        "call": lambda: policy(given[0][0], AGENTS[1]),
        "reset": policy.reset,
        "session": policy.session,
        "pickle": lambda: pickle.dumps(policy),
        "copy": lambda: copy.deepcopy(policy),
    }[name]
    piece.does = use
    with pytest.raises(ConnectorError, match="within"):
        policy(given[0][0], AGENTS[0])
    piece.does = None
    assert policy(given[0][0], AGENTS[0]) in range(3)


def test_a_piece_may_use_a_session(calling):
    policy, piece, given = calling
    other, asked = policy.session(), []
    piece.does = lambda: asked.append(other(given[1][0], AGENTS[1]))
    assert policy(given[0][0], AGENTS[0]) in range(3)
    assert len(asked) == 1


def test_whoever_waits_gets_a_turn_after_an_interrupt(calling):
    policy, piece, given = calling

    def stops():
        raise KeyboardInterrupt

    piece.does = stops
    with pytest.raises(KeyboardInterrupt):
        policy(given[0][0], AGENTS[0])
    piece.does = None
    found = in_threads({a: lambda a=a: acts(policy, a, given) for a in AGENTS[:2]})
    assert len(found) == 2


@pytest.mark.few(1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_forked_process_does_not_wait_for_threads_that_it_has_not(calling, is_busy):
    policy, piece, given = calling
    inside, go_on = threading.Event(), threading.Event()
    acts(policy, AGENTS[0], given[:2])
    expected = acts(copy.deepcopy(policy), AGENTS[0], given[2:])

    def waits():
        inside.set()
        go_on.wait(60)

    if is_busy:
        piece.does = waits
        thread = threading.Thread(target=policy, args=(given[0][0], AGENTS[1]))
        thread.start()
        assert inside.wait(60)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            signal.alarm(60)
            piece.does = None
            if is_busy:
                with pytest.raises(EpisodeError, match="forked"):
                    policy(given[2][0], AGENTS[0])
                policy.reset()
                assert len(acts(policy, AGENTS[0], given)) == len(given)
            else:
                np.testing.assert_array_equal(acts(policy, AGENTS[0], given[2:]), expected)
            code = 0
        os._exit(code)
    _, status = os.waitpid(child, 0)
    go_on.set()
    if is_busy:
        thread.join(60)
    assert os.waitstatus_to_exitcode(status) == 0
    piece.does = None
    np.testing.assert_array_equal(acts(policy, AGENTS[0], given[2:]), expected)


# What lies below: modules that threads share.

BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)


def many_modules():
    multi = MultiRLModule()
    for i in range(5):
        multi.add_module(f"m{i}", DefaultPPORLModule(BOX, spaces.Discrete(3), model_config={"fcnet_hiddens": [8, 8]}))
    return multi


def test_modules_that_threads_share_are_sorted_into_buckets_once(switching):
    multi = many_modules()
    before = {name: value.clone() for name, value in multi.state_dict().items()}
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))

    def inputs(module):
        return module.forward_inference({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS].numpy().copy()

    expected = {m: inputs(copy.deepcopy(module)) for m, module in multi.items()}

    def use(i):
        if i % 2:
            return multi.buckets
        return [{m: inputs(module) for m, module in multi.items()} for _ in range(5)]

    found = in_threads({i: lambda i=i: use(i) for i in range(8)})
    assert all(found[i] is multi.buckets for i in range(1, 8, 2))
    assert all(bucket.is_bound for bucket in multi.buckets)
    for i in range(0, 8, 2):
        for own in found[i]:
            for module_id, values in own.items():
                np.testing.assert_array_equal(values, expected[module_id])
    for name, value in multi.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_module_of_an_algorithm_may_act_in_threads(switching, tmp_path):
    algo = plain().multi_agent(policies="independent").build_algo()
    algo.train()
    shape = algo.get_module(AGENTS[0]).observation_space.shape
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32))

    def inputs(agent_id):
        return algo.get_module(agent_id).forward_inference({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS].numpy()

    expected = {agent_id: inputs(agent_id).copy() for agent_id in AGENTS}
    found = in_threads({a: lambda a=a: [inputs(a).copy() for _ in range(20)] for a in AGENTS})
    for agent_id, values in expected.items():
        np.testing.assert_array_equal(found[agent_id], [values] * 20)
