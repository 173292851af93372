"""Natively batched environments: the protocol, and what is said of environments that break it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.batched_envs import OneWorld, Worlds
from helpers.envs.scripted_envs import small_config
from marl_connectors import BatchedEnv, ConfigError, EnvError, check_env
from marl_connectors.environments.adapters.batched import BatchedCalls
from marl_connectors.seeding import derived_seed
from marl_envs import spread_v0

SPREAD = {"n_agents": 3, "ep_len": 6}


def configured(env, *, copies=3, lookback=1, change=lambda config: config, **env_config):
    config = small_config(env, env_config=env_config).multi_agent(policies="shared")
    config.env_runners(num_envs_per_env_runner=copies, episode_lookback_horizon=lookback, rollout_fragment_length=5)
    return change(config)


def broken(**changes):
    """A class whose ``reset`` or ``step`` gives something else: ``name=function of (what it gave, number of call)``."""

    class Broken(Worlds):
        calls = 0

        def reset(self, seeds, mask=None):
            given = super().reset(seeds, mask)
            return changes["reset"](given) if "reset" in changes else given

        def step(self, actions):
            Broken.calls += 1
            given = super().step(actions)
            return changes["step"](*given) if "step" in changes else given

    return Broken


WRONG = {
    "swapped axes": (
        {"reset": lambda o: o.swapaxes(0, 1)},
        r"(?s)\(3, 2, 2\).*\(2, 3, 2\)",
    ),
    "another width": ({"step": lambda o, *rest: (o[..., :1], *rest)}, r"\(2, 3, 1\)"),
    "no tree": ({"reset": lambda o: {"x": o}}, "array|shape"),
    "rewards of copies": (
        {"step": lambda o, r, *rest: (o, r[:, 0], *rest)},
        r"(?s)\(2,\).*\(2, 3\).*num_envs=2.*\b3\b",
    ),
    "rewards of several numbers": (
        {"step": lambda o, r, *rest: (o, np.stack([r, r], -1), *rest)},
        r"\(2, 3, 2\)",
    ),
    "text": ({"step": lambda o, r, *rest: (o, r.astype(str), *rest)}, "U32"),
    "flags of copies": (
        {"step": lambda o, r, te, tr, i: (o, r, te, tr[:, :1], i)},
        r"\(2, 1\)",
    ),
    "flags between": (
        {"step": lambda o, r, te, tr, i: (o, r, te * 1.0, tr * 1.0 + 0.25, i)},
        r"(?s)step\(\).*0.25",
    ),
    "Gymnasium's four": (
        {"step": lambda o, r, te, tr, i: (o, r, te, i)},
        r"returned 4\b",
    ),
    "infos by agent": (
        {"step": lambda o, r, te, tr, i: (o, r, te, tr, [{}])},
        "infos",
    ),
    "infos of copies": (
        {"step": lambda o, r, te, tr, i: (o, r, te, tr, {"n": np.zeros(2)})},
        r"(?s)infos\['n'\].*\(2,\)",
    ),
    "agents that end alone": (
        {"step": lambda o, r, te, tr, i: (o, r, np.ones_like(te) * [[True, False, True]], tr & False, i)},
        r"(?s)'a'.*'c'.*PettingZoo",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_in_a_run(case):
    changes, message = WRONG[case]
    config = configured(broken(**changes), copies=2, max_len=50).environment(disable_env_checking=True)
    with pytest.raises(EnvError, match=message):
        config.build_algo().env_runner.sample(num_timesteps=4)


@pytest.mark.parametrize("name", ["reset", "step"])
def test_what_the_environment_raises_is_told(name):
    def fails(*given):
        raise ZeroDivisionError("the world has no ground")

    config = configured(broken(**{name: fails}), copies=2).environment(disable_env_checking=True)
    seed = derived_seed(config.seed, "env", 0, 0)
    where = rf"sub-environment 0, episode 0, step 0.*{seed}.*{config.seed}"
    with pytest.raises(EnvError, match=rf"(?s){name}\(\).*ZeroDivisionError.*the world has no ground.*{where}"):
        config.build_algo().env_runner.sample(num_timesteps=4)


def nan_at(place):
    def changed(o, r, *rest):
        r = r.copy()
        r[place] = np.nan
        return (o, r, *rest)

    return changed


def test_a_reward_that_is_no_number_is_found_at_the_end_of_a_fragment():
    config = configured(broken(step=nan_at((1, 2))), copies=2, max_len=50).environment(disable_env_checking=True)
    with pytest.raises(EnvError, match=r"(?s)sub-environment 1.*episode 0.*'c'.*step 0.*\bnan\b"):
        config.build_algo().env_runner.sample(num_timesteps=4)


class AllOver(Worlds):
    """Resets all copies, whatever the mask says."""

    def reset(self, seeds, mask=None):
        return super().reset([index if seed is None else seed for index, seed in enumerate(seeds)], None)


TRIALS = {
    "no number": (broken(step=nan_at((2, 0))), r"(?s)sub-environment 2.*episode 0.*step 1.*'a'.*\bnan\b"),
    "outside": (
        broken(step=lambda o, *rest: (o + 2000, *rest)),
        r"(?s)sub-environment 0.*episode 0.*step 1.*'a'.*Box",
    ),
    "mask": (AllOver, r"\[.*True.*\]"),
    "alone": (
        WRONG["agents that end alone"],
        r"(?s)sub-environment 0.*episode 0.*step 1",
    ),
}


@pytest.mark.parametrize("case", TRIALS)
def test_a_smoke_test_comes_first(case):
    env, message = TRIALS[case]
    env = broken(**env[0]) if isinstance(env, tuple) else env
    config = configured(env, copies=2, max_len=50)
    with pytest.raises(EnvError, match=message):
        config.build_algo()


def test_unlike_agents_need_dicts():
    class Unlike(Worlds):
        def action_space(self, agent):
            return Worlds(num_envs=1, act="box" if agent == "c" else "discrete").action_space(agent)

    config = configured(Unlike).environment(disable_env_checking=True).multi_agent(policies="independent")
    with pytest.raises(EnvError, match=r"(?s)'c'.*\[num_envs, ...\]"):
        config.build_algo().env_runner.sample()


def test_the_maker_must_take_the_number_of_copies():
    with pytest.raises(EnvError, match=r"(?s)num_envs=4.*num_envs=1"):
        configured(lambda: Worlds(num_envs=4)).build_algo()
    with pytest.raises(EnvError, match="num_envs=3"):
        configured(lambda: Worlds(num_envs=1)).build_algo()
    with pytest.raises(EnvError, match=r"(?s)num_envs.*env_config.*num_envs_per_env_runner"):
        configured(Worlds, num_envs=4).build_algo()


def test_what_is_missing_is_named():
    class Unclosed:
        num_envs, possible_agents = 1, ("a",)
        observation_space = action_space = reset = step = None

    with pytest.raises(EnvError, match=r"marl_connectors.BatchedEnv"):
        configured(lambda: Unclosed()).build_algo()


def test_what_cannot_be_done_with_it_is_a_config_error():
    with pytest.raises(ConfigError, match=r"(?s)num_env_workers=2.*num_env_workers=0"):
        configured(Worlds, change=lambda config: config.env_runners(num_env_workers=2)).build_algo()
    with pytest.raises(ConfigError, match="restart_failed_sub_environments=True"):
        configured(
            Worlds, change=lambda config: config.fault_tolerance(restart_failed_sub_environments=True)
        ).build_algo()
    with pytest.raises(ConfigError, match="wrappers"):
        configured(Worlds, change=lambda config: config.environment(wrappers=["clip_reward_v0"])).build_algo()


def test_a_parallel_env_with_like_named_attributes_is_none():
    class Numbered(OneWorld):
        num_envs = 1

    assert isinstance(Numbered(), BatchedEnv)
    runner = configured(Numbered, copies=2).build_algo().env_runner
    assert not runner.vector_env.is_batched and len(runner.sample(num_timesteps=2)) == 2


def test_the_protocol_is_what_the_environments_have():
    assert isinstance(spread_v0.batched_env(num_envs=2), BatchedEnv)
    assert not isinstance(spread_v0.parallel_env(), BatchedEnv)
    for name in ("reset", "step"):
        wanted, found = (inspect.signature(getattr(kind, name)).parameters for kind in (BatchedEnv, Worlds))
        assert list(wanted) == list(found)


# check_env.


def test_check_env_finds_nothing_wrong():
    report = check_env("marl_envs.spread_v0:batched_env", env_config=SPREAD, episodes=2)
    assert report.ok and not report.warnings
    assert (report.kind, len(report.agents)) == ("parallel", 3)
    assert check_env(Worlds, env_config={"infos": True, "obs": "dict"}, episodes=2).ok


class OneStream(Worlds):
    """Later copies begin elsewhere with the same seed."""

    def reset(self, seeds, mask=None):
        return super().reset([None if seed is None else seed + i for i, seed in enumerate(seeds)], mask)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("env", "kind", "message"),
    [
        (AllOver, "copies", "with the mask"),
        (OneStream, "copies", "the first and the last sub-environment differ"),
        (broken(step=lambda o, *rest: (o + 2000, *rest)), "observation-outside-space", "component 0"),
        (broken(step=lambda o, *rest: (o[:, :1], *rest)), "raised", "expected"),
    ],
)
def test_check_env_finds_what_is_wrong(env, kind, message):
    report = check_env(env, env_config={"max_len": 20}, episodes=1, conformance=False)
    assert any(finding.kind == kind and message in finding.what for finding in report.errors), report


def test_check_env_wants_the_maker():
    with pytest.raises(ConfigError, match="natively"):
        check_env(Worlds(num_envs=2))


class Nested(BatchedEnv):
    """Two copies of two agents, who see lists of arrays, and dicts in another order than their space's."""

    num_envs, possible_agents = 2, ["a", "b"]
    seen = spaces.Dict([("t", spaces.Tuple([spaces.Box(-9, 9, (2,)), spaces.Discrete(9)])), ("n", spaces.Discrete(9))])

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seeds, mask=None):
        return {"n": [[1, 2], [3, 4]], "t": [np.arange(8.0).reshape(2, 2, 2), [[5, 6], [7, 8]]]}


def test_observations_of_batches_follow_their_space():
    found = BatchedCalls(Nested(), "nested").reset([0, 1], None)
    assert list(found) == ["t", "n"] and type(found["t"]) is tuple
    assert found["n"].tolist() == [[1, 2], [3, 4]] and found["t"][1].tolist() == [[5, 6], [7, 8]]
    assert found["t"][0].tolist() == np.arange(8.0).reshape(2, 2, 2).tolist()
