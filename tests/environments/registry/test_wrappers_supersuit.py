"""Every public wrapper of SuperSuit, in the hook, around parallel, turn-based and Gymnasium environments.

Expected values are worked out from what ``tests/helpers/envs/counting_envs.py`` says it gives: ``a_1`` observes 0.5,
3.5, 1.5, 2.5, 5.5 and is paid 4, 7, 10, 13 in the parallel environment.
"""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from helpers.envs.counting_envs import GREY, IMAGE, LEVELS, MOVES, NUMBERS, CountingEnv, CountingGym, CountingTurns
from helpers.envs.scripted_envs import LifeEnv
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.environments.registry.factory import make_env
from marl_connectors.environments.registry.wrapper_names import REFUSED, wrapper_names
from marl_connectors.errors import ConfigError, EnvError

supersuit = pytest.importorskip("supersuit")
HALF = np.array([0.5, -0.5], np.float32)
TALL = np.tile([10, 20, 30], (4, 3, 1))
INDICATED = Box(np.float32([-10, -10, 0, 0]), np.float32(10))


def box(low, high, shape, dtype=np.float32):
    return Box(low, high, shape, dtype)


def double(observation, space):
    return observation * 2


def twice_as_wide(space):
    return Box(space.low * 2, space.high * 2, dtype=space.dtype)


def same_space(space):
    return space


def half(reward):
    return reward / 2


def of(name, **arguments):
    return functools.partial(getattr(supersuit, name), **arguments)


def play(env, action=HALF, seed=3):
    """``[(observations, rewards)]`` of an episode; rewards after the reset are None."""
    told = [(env.reset(seed=seed)[0], None)]
    while env.agents:
        acting = env.agents if not isinstance(env, TurnBasedEnv) else [env.agent_selection]
        observations, rewards, *_ = env.step(
            {agent: action(len(told)) if callable(action) else action for agent in acting}
        )
        told.append((observations, rewards))
    return told


def tried_in(cases):
    return {(case[0] if isinstance(case[0], str) else wrapper_name(case[0])).partition(":")[0] for case in cases}


def wrapper_name(partial):
    return next(name for name in wrapper_names(supersuit) if getattr(supersuit, name) is partial.func)


# What a_1 observes at steps 0, 1 and 2.
OBSERVATIONS = [
    ("frame_stack_v1:2", NUMBERS, box(-10, 10, (4,)), [[0, 0, 0.5, 0.5], [0.5, 0.5, 3.5, 3.5], [3.5, 3.5, 1.5, 1.5]]),
    ("frame_stack_v2:2", NUMBERS, box(-10, 10, (4,)), [[0.5] * 4, [0.5, 0.5, 3.5, 3.5], [3.5, 3.5, 1.5, 1.5]]),
    ("frame_stack_v1:2", Discrete(4), Discrete(16), [0, 3, 3 * 4 + 1]),
    ("delay_observations_v0:1", NUMBERS, NUMBERS, [[0, 0], [0.5, 0.5], [3.5, 3.5]]),
    ("max_observation_v0:2", NUMBERS, NUMBERS, [[0.5, 0.5], [3.5, 3.5], [3.5, 3.5]]),
    ("normalize_obs_v0", NUMBERS, box(0, 1, (2,)), [[0.525] * 2, [0.675] * 2, [0.575] * 2]),
    ("normalize_obs_v0:env_min=-1,env_max=1", NUMBERS, box(-1, 1, (2,)), [[0.05] * 2, [0.35] * 2, [0.15] * 2]),
    ("dtype_v0:float64", NUMBERS, box(-10, 10, (2,), np.float64), [[0.5] * 2, [3.5] * 2, [1.5] * 2]),
    ("flatten_v0", box(-9, 9, (1, 2)), box(-9, 9, (2,)), [[0.5] * 2, [3.5] * 2, [1.5] * 2]),
    ("reshape_v0:(2,1)", NUMBERS, box(-10, 10, (2, 1)), [[[0.5]] * 2, [[3.5]] * 2, [[1.5]] * 2]),
    # 0.299 * 10 + 0.587 * 20 + 0.114 * 30 = 18.15 for a level of 1.
    ("color_reduction_v0", IMAGE, GREY, [[[0, 0]] * 2, [[54, 54]] * 2, [[18, 18]] * 2]),
    ("color_reduction_v0:G", IMAGE, GREY, [[[0, 0]] * 2, [[60, 60]] * 2, [[20, 20]] * 2]),
    ("resize_v1:x_size=3,y_size=4", IMAGE, box(0, 255, (4, 3, 3), np.uint8), [TALL * k for k in (0, 3, 1)]),
    (
        "resize_v1:4,4,linear_interp=false",
        GREY,
        box(0, 255, (4, 4), np.uint8),
        [np.repeat(np.repeat([[k, k + 10], [k + 20, k + 30]], 2, 0), 2, 1) for k in (0, 3, 1)],
    ),
    ("agent_indicator_v0", NUMBERS, INDICATED, [[x, x, 0, 10] for x in (0.5, 3.5, 1.5)]),
    ("agent_indicator_v0", Discrete(4), Discrete(8), [0 * 2 + 1, 3 * 2 + 1, 1 * 2 + 1]),
    (of("observation_lambda_v0", change_observation_fn=double), NUMBERS, box(-20, 20, (2,)), [[1, 1], [7, 7], [3, 3]]),
    (
        of("observation_lambda_v0", change_observation_fn=double, change_obs_space_fn=twice_as_wide),
        NUMBERS,
        box(-20, 20, (2,)),
        [[1, 1], [7, 7], [3, 3]],
    ),
]  # fmt: skip

# What the environment gets of an action of [5, -5] by each agent.
ACTIONS = [
    ("clip_actions_v0", [1, -1]),
    (of("action_lambda_v1", change_action_fn=double, change_space_fn=same_space), [10, -10]),
]
REWARDS = [
    ("clip_reward_v0:-1,8", [4, 7, 8, 8]),
    (of("reward_lambda_v0", change_reward_fn=half), [2, 3.5, 5, 6.5]),
]
NAN = [("nan_zeros_v0", [0, 0]), (of("nan_noop_v0", no_op_action=HALF), [0.5, -0.5])]
OTHERS = {"frame_skip_v0", "sticky_actions_v0", "pad_observations_v0", "pad_action_space_v0"}


def test_every_public_wrapper_is_tried_or_refused():
    tried = tried_in(OBSERVATIONS) | tried_in(ACTIONS) | tried_in(REWARDS) | tried_in(NAN) | OTHERS
    assert set(wrapper_names(supersuit)) <= tried | set(REFUSED)
    assert not tried & set(REFUSED)


@pytest.mark.parametrize(("wrapper", "space", "wrapped", "expected"), OBSERVATIONS)
def test_observations_of_a_parallel_environment(wrapper, space, wrapped, expected):
    env = make_env(functools.partial(CountingEnv, obs=space), wrappers=[wrapper])
    assert env.observation_space("a_1") == wrapped
    assert env.action_space("a_1") == MOVES
    told = play_copies(env)
    for seen, value in zip(told, expected, strict=False):
        np.testing.assert_allclose(seen["a_1"], value, rtol=1e-6)
        assert wrapped.contains(seen["a_1"])
    assert len(told) == 5


def play_copies(env):
    """Observations of an episode, copied: ``frame_stack_v1`` gives the same array at each step."""
    told = [{agent: np.array(value) for agent, value in env.reset(seed=3)[0].items()}]
    while env.agents:
        observations = env.step(dict.fromkeys(env.agents, HALF))[0]
        told.append({agent: np.array(value) for agent, value in observations.items()})
    return [
        {agent: value if value.ndim else value[()] for agent, value in observations.items()} for observations in told
    ]


@pytest.mark.few(7)
@pytest.mark.parametrize(("wrapper", "space", "wrapped", "expected"), OBSERVATIONS)
def test_observations_of_a_turn_based_environment(wrapper, space, wrapped, expected):
    """a_1 has the turns 1 and 3, and observes what follows from those two levels."""
    env = make_env(functools.partial(CountingTurns, obs=space), wrappers=[wrapper])
    assert env.observation_space("a_1") == wrapped
    turns = TurnBasedEnv(env)
    turns.reset(seed=3)
    seen = []
    for _ in range(3):
        observations = turns.step({turns.agent_selection: HALF})[0]
        seen += [np.array(value) for agent, value in observations.items() if agent == "a_1"]
    # A parallel environment whose second and third level are those of a_1's turns sees the same after its reset.
    reference = make_env(functools.partial(CountingEnv, obs=space), wrappers=[wrapper])
    by_level = dict(zip(LEVELS[:4], play_copies(reference)[:4], strict=True))
    name = wrapper if isinstance(wrapper, str) else "partial"
    if name.startswith(("frame_stack", "delay", "max")):
        expected_here = {
            "frame_stack_v1:2": ([0, 0, 3.5, 3.5], [3.5, 3.5, 2.5, 2.5]) if space is NUMBERS else (3, 3 * 4 + 2),
            "frame_stack_v2:2": ([3.5] * 4, [3.5, 3.5, 2.5, 2.5]),
            "delay_observations_v0:1": ([0, 0], [3.5, 3.5]),
            "max_observation_v0:2": ([3.5, 3.5], [3.5, 3.5]),
        }[name]
    else:
        expected_here = (by_level[3]["a_1"], by_level[2]["a_1"])
    for value, wanted in zip(seen, expected_here, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


@pytest.mark.parametrize(("wrapper", "space", "wrapped", "expected"), OBSERVATIONS)
def test_observations_of_a_gymnasium_environment(wrapper, space, wrapped, expected):
    if wrapper == "agent_indicator_v0":
        with pytest.raises(EnvError, match=r"(?s)agent_indicator_v0.*AECEnv.*ParallelEnv"):
            make_env(functools.partial(CountingGym, obs=space), wrappers=[wrapper])
        return
    env = make_env(functools.partial(CountingGym, obs=space), wrappers=[wrapper])
    parallel = make_env(functools.partial(CountingEnv, obs=space), wrappers=[wrapper])
    assert env.observation_space == wrapped
    seen = [np.array(env.reset(seed=3)[0])] + [np.array(env.step(HALF)[0]) for _ in range(4)]
    for value, other in zip(seen, play_copies(parallel), strict=True):
        np.testing.assert_allclose(value, other["a_0"], rtol=1e-6)


@pytest.mark.parametrize(("wrapper", "expected"), ACTIONS)
def test_actions(wrapper, expected):
    action = np.array([5, -5], np.float32)
    env = make_env(CountingEnv, wrappers=[wrapper])
    play(env, action)
    assert env.unwrapped.played == [{"a_0": expected, "a_1": expected}] * 4
    turns = make_env(CountingTurns, wrappers=[wrapper])
    play(TurnBasedEnv(turns), action)
    assert turns.unwrapped.played == [("a_0", expected), ("a_1", expected)] * 2
    single = make_env(CountingGym, wrappers=[wrapper])
    single.reset(seed=3)
    single.step(action)
    assert single.unwrapped.played == [expected]


@pytest.mark.parametrize(("wrapper", "expected"), NAN)
@pytest.mark.filterwarnings("ignore:.*NaN action")
def test_actions_that_are_nan(wrapper, expected):
    action = np.array([np.nan, 0], np.float32)
    env = make_env(CountingEnv, wrappers=[wrapper])
    play(env, action)
    assert env.unwrapped.played == [{"a_0": expected, "a_1": expected}] * 4
    turns = make_env(CountingTurns, wrappers=[wrapper])
    play(TurnBasedEnv(turns), action)
    assert turns.unwrapped.played == [("a_0", expected), ("a_1", expected)] * 2


@pytest.mark.parametrize(("wrapper", "expected"), REWARDS)
def test_rewards(wrapper, expected):
    told = play(make_env(CountingEnv, wrappers=[wrapper]))
    assert [rewards["a_1"] for _, rewards in told[1:]] == expected
    env = make_env(CountingGym, wrappers=[wrapper])
    env.reset(seed=3)
    assert env.step(HALF)[1] == {8: 3, 6.5: 1.5}[expected[-1]]


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        # Each payment of 1, -0.5, 2, -0.5, 3, ... is changed, and then summed over the turns of the others.
        ("clip_reward_v0:-0.25,2", [{"a_1": -0.25}, {"a_0": 1 - 0.25}, {"a_1": 2 - 0.25}, {"a_0": 2 - 0.25, "a_1": 2}]),
        (REWARDS[1][0], [{"a_1": -0.25}, {"a_0": 0.25}, {"a_1": 0.75}, {"a_0": 1.25, "a_1": 2}]),
    ],
)
def test_rewards_of_a_turn_based_environment(wrapper, expected):
    told = play(TurnBasedEnv(make_env(CountingTurns, wrappers=[wrapper])))
    assert [rewards for _, rewards in told[1:]] == expected


def test_frame_skip_repeats_actions_and_adds_rewards():
    told = play(make_env(functools.partial(CountingEnv, steps=5), wrappers=["frame_skip_v0:2"]))
    assert [observations["a_1"][0] for observations, _ in told] == [0.5, 1.5, 5.5, 4.5]
    assert [rewards["a_1"] for _, rewards in told[1:]] == [4 + 7, 10 + 13, 16]
    env = make_env(functools.partial(CountingGym, steps=5), wrappers=["frame_skip_v0:2"])
    env.reset(seed=3)
    assert [env.step(HALF)[1] for _ in range(3)] == [3 + 6, 9 + 12, 15]
    assert env.unwrapped.played == [[0.5, -0.5]] * 5


def test_frame_skip_by_turns():
    """Each agent acts for two of its turns: a_0 in turns 1 and 3, a_1 in 2 and 4, a_0 in 5 ..."""
    env = make_env(functools.partial(CountingTurns, steps=5), wrappers=["frame_skip_v0:2"])
    told = play(TurnBasedEnv(env), action=lambda n: np.float32([n / 8, 0]))
    assert [(agent, action[0]) for agent, action in env.unwrapped.played] == [
        ("a_0", 0.125),
        ("a_1", 0.25),
        ("a_0", 0.125),
        ("a_1", 0.25),
        ("a_0", 0.375),
    ]
    assert told[2][1] == {"a_0": 1 - 0.5 + 3 - 0.5}
    assert told[-1][1] == {"a_0": 5, "a_1": 2 - 0.5 + 4 - 0.5}


def test_sticky_actions_repeat_as_the_seed_has_it():
    rng = gymnasium.utils.seeding.np_random(3)[0]
    expected = [1]
    for n in range(2, 5):
        expected.append(expected[-1] if rng.uniform() < 0.5 else n)
    assert len(set(expected)) < 4  # something is repeated with this seed
    env = make_env(functools.partial(CountingEnv, act=Discrete(9)), wrappers=["sticky_actions_v0:0.5"])
    play(env, action=lambda n: n)
    assert [played["a_0"] for played in env.unwrapped.played] == expected
    assert [played["a_1"] for played in env.unwrapped.played] == expected
    turns = make_env(functools.partial(CountingTurns, act=Discrete(9), steps=8), wrappers=["sticky_actions_v0:0.5"])
    play(TurnBasedEnv(turns), action=lambda n: (n + 1) // 2)
    assert turns.unwrapped.played == [(agent, action) for action in expected for agent in ("a_0", "a_1")]


@pytest.mark.parametrize("maker", [CountingEnv, CountingTurns])
def test_padding_makes_spaces_alike(maker):
    obs = {"a_0": box(-9, 9, (1,)), "a_1": box(-9, 9, (3,))}
    act = {"a_0": Discrete(2), "a_1": Discrete(4)}
    env = make_env(functools.partial(maker, obs=obs, act=act), wrappers=["pad_observations_v0", "pad_action_space_v0"])
    assert env.observation_space("a_0") == env.observation_space("a_1") == box(-9, 9, (3,))
    assert env.action_space("a_0") == env.action_space("a_1") == Discrete(4)
    told = play(TurnBasedEnv(env) if maker is CountingTurns else env, 3)
    assert [observations["a_0"].tolist() for observations, _ in told if "a_0" in observations][1] == (
        [3, 0, 0] if maker is CountingEnv else [1, 0, 0]
    )
    played = env.unwrapped.played[:2]
    assert played == ([{"a_0": 0, "a_1": 3}] * 2 if maker is CountingEnv else [("a_0", 0), ("a_1", 3)])


def test_box_actions_are_cut_to_their_own_length():
    act = {"a_0": box(-1, 1, (1,)), "a_1": MOVES}
    env = make_env(functools.partial(CountingEnv, act=act), wrappers=["pad_action_space_v0"])
    play(env)
    assert env.unwrapped.played[0] == {"a_0": [0.5], "a_1": [0.5, -0.5]}


def test_agent_indicator_by_type():
    env = functools.partial(CountingEnv, agents=("wolf_0", "wolf_1", "sheep_0"))
    observations, _ = make_env(env, wrappers=["agent_indicator_v0:type_only=true"]).reset(seed=3)
    assert [observations[agent].tolist() for agent in observations] == [[0, 0, 10, 0], [0.5, 0.5, 10, 0], [1, 1, 0, 10]]


@pytest.mark.parametrize(
    "wrapper",
    ["frame_stack_v1:3", "clip_reward_v0", "max_observation_v0:2", "sticky_actions_v0:0.3", "dtype_v0:float64"],
)
def test_the_same_seed_gives_the_same_episode(wrapper):
    """Agents die at random, as the seed has it."""

    def episode(seed):
        env = make_env(functools.partial(LifeEnv, die=0.2), wrappers=[wrapper])
        return repr(play(env, action=lambda n: n % 3, seed=seed))

    assert episode(1) == episode(1) != episode(2)


def test_dying_agents_are_told_the_same_through_a_wrapper():
    def lives(wrappers):
        env, told = make_env(functools.partial(LifeEnv, die=0.3), wrappers=wrappers), []
        for seed in range(20):
            env.reset(seed=seed)
            while env.agents:
                _, rewards, terminations, truncations, infos = env.step(dict.fromkeys(env.agents, 1))
                told.append((dict(rewards), terminations, truncations, infos, list(env.agents)))
        return told

    assert lives([]) == lives(["dtype_v0:float64"]) == lives(["frame_stack_v1:2"]) == lives(["clip_reward_v0:-500,500"])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_does_not_work_here_is_refused_by_name(name):
    for wrapper in (f"{name}:2", f"supersuit.{name}", getattr(supersuit, name), of(name, num_envs=2)):
        with pytest.raises(ConfigError, match=name):
            make_env(CountingEnv, wrappers=[wrapper])


def test_what_is_refused_or_warned_of_would_really_go_wrong():
    """Reasons and warnings of ``docs/wrappers.md``, on SuperSuit itself. One that fails here can be taken back."""
    plus_one = supersuit.reward_lambda_v0(silent(CountingEnv()), lambda reward: reward + 1)
    assert play(plus_one)[1][1]["a_1"] == 4 + 1 + 1
    scaled = supersuit.scale_actions_v0(silent(CountingEnv()), 2)
    assert scaled.action_space("a_0") == box(-2, 2, (2,))
    play(scaled, np.float32([2, 2]))
    assert scaled.unwrapped.played[0]["a_0"] == [4, 4]
    stacked = supersuit.frame_stack_v1(CountingGym(obs=GREY), 2, stack_dim=0)
    stacked.reset(seed=3)
    assert not stacked.step(HALF)[0][-1].any()
    padded = supersuit.pad_observations_v0(silent(CountingEnv(obs=Discrete(3))))
    assert padded.reset(seed=3)[0]["a_0"] == Discrete(3)
    grey = supersuit.color_reduction_v0(CountingGym(obs=box(0, 1, (2, 2, 3))))
    assert grey.observation_space.dtype == np.uint8
    dead = supersuit.black_death_v3(CountingEnv(die={"a_0": 1}, steps=2))
    dead.reset(seed=3)
    terminations = dead.step(dict.fromkeys(dead.agents, HALF))[2]
    assert not terminations["a_0"] and "a_0" in dead.agents


def silent(env):
    """With what PettingZoo's conversions warn of if it is missing."""
    env.render_mode = None
    return env
