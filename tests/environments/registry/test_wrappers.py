"""``.environment(wrappers=[...])``: what is applied, in which order, what is refused, and what a checkpoint holds."""

from __future__ import annotations

import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv
from pettingzoo.utils.wrappers import BaseWrapper

from helpers.envs.counting_envs import LEVELS, NUMBERS, CountingEnv, CountingGym, CountingTurns, Plus, Times, plus_seven
from marl_connectors import Algorithm, PPOConfig, check_env
from marl_connectors.environments.registry.factory import make_env
from marl_connectors.environments.registry.wrapper_names import parse_wrapper
from marl_connectors.environments.registry.wrappers import wrappers_from_json, wrappers_to_json
from marl_connectors.errors import CheckpointError, ConfigError, EnvError, MissingDependencyError

COUNTING = "helpers.envs.counting_envs"
DISCRETE = functools.partial(CountingEnv, act=spaces.Discrete(2))


class Renaming(Plus):
    possible_agents = ["a_0", "b"]


class Agentless(ParallelEnv):
    """A wrapper that forgets to pass ``agents`` on."""

    def __init__(self, env):
        self.env = env
        self.possible_agents = env.possible_agents

    def reset(self, seed=None, options=None):
        return self.env.reset(seed=seed, options=options)


def config(env, **environment):
    return (
        PPOConfig()
        .environment(env, **environment)
        .env_runners(num_envs_per_env_runner=2)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .training(train_batch_size_per_learner=40, num_epochs=2, minibatch_size=20)
        .debugging(seed=0)
    )


def first(env):
    return env.reset(seed=0)[0]["a_0"][0]


def test_the_first_wrapper_is_the_innermost():
    two = functools.partial(Times, number=2)
    assert first(make_env(CountingEnv, wrappers=[Plus, two])) == (LEVELS[0] + 1) * 2
    assert first(make_env(CountingEnv, wrappers=[two, Plus])) == LEVELS[0] * 2 + 1
    assert first(make_env(CountingEnv, wrappers=[plus_seven, lambda env: Plus(env, 0.5)])) == 7.5
    assert first(make_env(CountingEnv)) == 0


def test_a_wrapper_is_named_by_its_module_with_arguments():
    assert first(make_env(CountingEnv, wrappers=[f"{COUNTING}.Plus:0.5", f"{COUNTING}.Times:number=4"])) == 2
    assert first(make_env(CountingEnv, wrappers=[f"{COUNTING}.plus_seven"])) == 7


def test_turn_based_and_gymnasium_environments_are_wrapped():
    turns = make_env(CountingTurns, wrappers=[BaseWrapper])
    assert type(turns) is BaseWrapper
    env = make_env("CartPole-v1", wrappers=[gymnasium.wrappers.NormalizeReward, "gymnasium.wrappers.TimeLimit:7"])
    assert env.reset(seed=0)[0].shape == (4,)
    assert (type(env).__name__, env.spec.max_episode_steps) == ("TimeLimit", 7)


def test_each_copy_has_wrappers_of_its_own():
    made = []

    def remember(env):
        made.append(env)
        return env

    algo = config(DISCRETE, wrappers=[remember]).build_algo()
    algo.stop()
    assert len(made) == 3  # the copy that is asked for spaces, and two to sample from
    assert len({id(env) for env in made}) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("frame_skip_v0:4", ("frame_skip_v0", (4,), {})),
        (" a.b : ", ("a.b", (), {})),
        ("a:(2, 3),[1],x='y:z',t=true", ("a", ((2, 3), [1]), {"x": "y:z", "t": True})),
        ("a:-1.5,null,None,R", ("a", (-1.5, None, None, "R"), {})),
        ("a:np.float32", ("a", ("np.float32",), {})),
    ],
)
def test_a_text_is_read_as_a_call(text, expected):
    assert parse_wrapper(text) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=5,
)


@given(args=st.lists(VALUES, max_size=3), kwargs=st.dictionaries(st.sampled_from("xyz"), VALUES))
def test_python_values_survive_as_text_and_in_a_checkpoint(args, kwargs):
    words = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    assert parse_wrapper(f"m.f:{','.join(words)}") == ("m.f", tuple(args), kwargs)
    (again,) = wrappers_from_json(wrappers_to_json([functools.partial(plus_seven, **kwargs)]))
    assert (again.keywords if kwargs else {}) == kwargs
    assert (again.func if kwargs else again) is plus_seven


@pytest.mark.parametrize(
    "text", ["", ":4", "a b:4", "4", "a:1+1", "a:f(2)", "a:x=", "a:**b", "a:)", "a/b.c", "a:x=1,2"]
)
def test_a_text_that_cannot_be_read_is_refused(text):
    with pytest.raises(ConfigError, match="wrappers"):
        PPOConfig().environment(CountingEnv, wrappers=[text])


@pytest.mark.parametrize("wrappers", ["frame_skip_v0:4", plus_seven, 3, [3], {"frame_skip_v0": 4}])
def test_what_is_no_list_of_wrappers_is_refused(wrappers):
    with pytest.raises(ConfigError, match="wrappers"):
        PPOConfig().environment(CountingEnv, wrappers=wrappers)
    changed = PPOConfig().environment(CountingEnv)
    with pytest.raises(ConfigError, match="wrappers"):
        changed.wrappers = wrappers


def test_a_refused_wrapper_is_an_error_before_anything_is_built():
    with pytest.raises(ConfigError, match="black_death_v3"):
        PPOConfig().environment(CountingEnv, wrappers=["black_death_v3"])
    with pytest.raises(ConfigError, match=r"(?s)concat_vec_envs_v1.*num_envs_per_env_runner"):
        PPOConfig().environment(CountingEnv, wrappers=["supersuit.concat_vec_envs_v1:4"])


@pytest.mark.parametrize(
    ("wrapper", "error", "message"),
    [
        (lambda env: None, EnvError, r"(?s)'CountingEnv'.*NoneType"),
        (lambda env: "env", EnvError, r"\bstr\b"),
        (Renaming, EnvError, r"(?s)Renaming.*possible_agents.*\['a_0', 'a_1'\].*\['a_0', 'b'\]"),
        (Agentless, EnvError, r"(?s)Agentless.*'agents'"),
        (lambda env: CountingGym(), EnvError, r"(?s)PettingZoo.*Gymnasium"),
        (lambda env: 1 / 0, EnvError, r"(?s)ZeroDivisionError.*'a_0'"),
        (functools.partial(Plus, nummber=2), ConfigError, r"(?s)Plus.*'nummber'.*'number'"),
        (f"{COUNTING}.Plus:1,2", ConfigError, r"(?s)positional.*number"),
        (f"{COUNTING}.plus_seven:1", ConfigError, "no arguments"),
        (f"{COUNTING}.Pluss", ConfigError, f"(?s)'{COUNTING}'.*'Pluss'.*'Plus'"),
        ("no_such_module.wrapper", ConfigError, "'no_such_module'"),
        ("os.path:join", ConfigError, r"'os.path'"),
    ],
)
def test_a_wrapper_that_does_not_work_is_named(wrapper, error, message):
    with pytest.raises(error, match=message):
        make_env(CountingEnv, wrappers=[wrapper])


def test_a_vector_of_environments_is_refused_with_what_to_use():
    with pytest.raises(EnvError, match=r"(?s)SyncVectorEnv.*num_envs_per_env_runner"):
        make_env("CartPole-v1", wrappers=[lambda env: gymnasium.vector.SyncVectorEnv([lambda: env])])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frame_skip_v9", r"(?s)'frame_skip_v9'.*'frame_skip_v0'"),
        ("farme_skip_v0", "'frame_skip_v0'"),
        ("supersuit.frame_skip", "'frame_skip_v0'"),
        ("MyWrapper", r"my_module.MyWrapper"),
    ],
)
def test_a_name_that_supersuit_does_not_have_is_an_error(name, message):
    pytest.importorskip("supersuit")
    with pytest.raises(ConfigError, match=message):
        make_env(CountingEnv, wrappers=[name])


@pytest.mark.parametrize("missing", ["supersuit", "tinyscaler"])
def test_a_missing_supersuit_names_what_to_install(missing, monkeypatch, tmp_path):
    (tmp_path / "supersuit").mkdir()
    (tmp_path / "supersuit" / "__init__.py").write_text("import tinyscaler")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("supersuit", missing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=f"(?si){missing}.*pip install {missing}"):
        make_env(CountingEnv, wrappers=["frame_skip_v0:4"])


@pytest.mark.slow
def test_supersuit_is_not_imported_unless_it_is_named():
    code = (
        "import sys; from marl_connectors import PPOConfig\n"
        "PPOConfig().environment('CartPole-v1', wrappers=['black.box:1', 'frame_skip_v0:2', len]).to_dict()\n"
        "from marl_connectors.environments.registry.factory import make_env\n"
        "make_env('CartPole-v1', wrappers=[lambda env: env])\n"
        "assert 'supersuit' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_wrapped_environment_can_be_checked():
    report = check_env("CartPole-v1", wrappers=["gymnasium.wrappers.TimeLimit:7"], conformance=False)
    assert (report.name, report.ok) == ("CartPole-v1", True)
    assert max(report.measurements.episode_lengths) == 7
    with pytest.raises(ConfigError, match="'max_stepss'"):
        check_env("CartPole-v1", env_config={"max_stepss": 5}, wrappers=["gymnasium.wrappers.TimeLimit:7"])
    with pytest.raises(ConfigError, match="env_config"):
        check_env(make_env("CartPole-v1"), wrappers=["gymnasium.wrappers.TimeLimit:7"])


def test_episodes_hold_what_the_wrapped_environment_gave():
    """SuperSuit's frame stacks are one array that changes at each step."""
    pytest.importorskip("supersuit")
    wrappers = [f"{COUNTING}.Plus:1", "frame_stack_v1:2", "clip_reward_v0:-4,8"]
    algo = config(functools.partial(DISCRETE, obs=spaces.Box(-9, 9, (1,), np.float32)), wrappers=wrappers).build_algo()
    (episode, *_) = algo.env_runner.sample(num_episodes=1)
    algo.stop()
    agent = episode.agent_episodes["a_1"]
    assert agent.get_observations().tolist() == [[0, 1.5], [1.5, 4.5], [4.5, 2.5], [2.5, 3.5], [3.5, 6.5]]
    assert agent.get_rewards().tolist() == [4, 7, 8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "wrappers", "shape"),
    [
        ("mpe2.simple_spread_v3", ["frame_skip_v0:2", "frame_stack_v1:2", "clip_reward_v0:-5,5"], (36,)),
        ("CartPole-v1", ["sticky_actions_v0:0.2", "frame_stack_v2:3", "dtype_v0:float64"], (12,)),
        (CountingTurns, ["normalize_obs_v0", "clip_actions_v0", "delay_observations_v0:1"], (2,)),
    ],
)
def test_a_short_run_learns_and_goes_on_from_its_checkpoint(env, wrappers, shape, tmp_path):
    pytest.importorskip("supersuit")
    whole = config(env, wrappers=wrappers).build_algo()
    module = next(iter(whole.rl_module.values()))
    assert module.observation_space.shape == shape
    began = whole.train()["learners"]
    whole.save_to_path(tmp_path / "one")
    resumed = Algorithm.from_checkpoint(tmp_path / "one")
    assert resumed.config.wrappers == wrappers
    assert resumed.train()["learners"] == whole.train()["learners"]
    again = config(env, wrappers=wrappers).build_algo()
    assert again.train()["learners"] == began
    for algo in (whole, resumed, again):
        algo.stop()


def test_wrappers_in_a_checkpoint_are_found_again_by_name():
    supersuit = pytest.importorskip("supersuit")
    wrappers = [
        "frame_skip_v0:2",
        plus_seven,
        functools.partial(Plus, number=2.5),
        supersuit.clip_actions_v0,
        functools.partial(supersuit.frame_skip_v0, num_frames=3),
        functools.partial(supersuit.reshape_v0, shape=(2, 1)),
    ]
    again = wrappers_from_json(wrappers_to_json(wrappers))
    assert again[:2] == wrappers[:2]
    assert again[3] is supersuit.clip_actions_v0
    for index in (2, 4, 5):
        assert (again[index].func, again[index].keywords) == (wrappers[index].func, wrappers[index].keywords)


@pytest.mark.parametrize(
    "wrapper", [lambda env: env, functools.partial(Plus, number=NUMBERS), functools.partial(Plus, number=float("inf"))]
)
def test_a_wrapper_without_a_name_has_to_be_passed_again(wrapper):
    with pytest.raises(CheckpointError, match=r"from_checkpoint\(path, config=...\)"):
        wrappers_from_json(wrappers_to_json([wrapper]))
    with pytest.raises(CheckpointError, match="description"):
        wrappers_from_json([{"type": "spell"}])


def test_a_checkpoint_with_a_lambda_is_restored_with_its_config(tmp_path):
    run = config("CartPole-v1", wrappers=[lambda env: gymnasium.wrappers.TimeLimit(env, 9)])
    algo = run.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "one")
    with pytest.raises(CheckpointError, match="wrappers"):
        Algorithm.from_checkpoint(tmp_path / "one")
    again = Algorithm.from_checkpoint(tmp_path / "one", config=run)
    assert again.train()["learners"] == algo.train()["learners"]
    again.stop()
    algo.stop()
