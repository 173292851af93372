"""Real environments of the well-known suites, trained for three short iterations."""

from __future__ import annotations

import importlib
import random
import sys
import warnings
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, BENCHMARKS)

from suite_cases import Case, cases, policies_for  # noqa: E402
from suites import in_a_process, train  # noqa: E402

sys.path.remove(BENCHMARKS)  # no other test imports from there

from marl_connectors.environments.registry.registry import SUITES  # noqa: E402
from marl_connectors.environments.registry.spec import EnvSpec  # noqa: E402

SAMPLE = [
    Case("mpe2", "simple_spread_v3:parallel_env"),
    Case("mpe2", "simple_tag_v3:parallel_env", {"continuous_actions": True}),
    Case("mpe2", "simple_speaker_listener_v4:env"),
    Case("mpe2", "simple_world_comm_v3:parallel_env"),
    Case("mpe2", "collect_treasure_v1:env"),
    Case("sisl", "pursuit_v5:parallel_env"),
    Case("sisl", "multiwalker_v9:parallel_env"),
    Case("butterfly", "knights_archers_zombies_v11:parallel_env"),
    Case("butterfly", "knights_archers_zombies_v11:env"),
    Case("classic", "rps_v2:parallel_env"),
    Case("classic", "tictactoe_v3:env"),
    Case("classic", "connect_four_v3:env"),
    Case("gymnasium", "CartPole-v1"),
    Case("gymnasium", "Pendulum-v1"),
    Case("gymnasium", "Blackjack-v1"),
    Case("gymnasium", "FrozenLake-v1", {"is_slippery": False}),
]


def skip_if_missing(case):
    if case.suite == "gymnasium":
        return
    name = f"{SUITES[case.suite]}.{case.env.partition(':')[0]}"
    try:
        importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")


@pytest.mark.few(1)
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.label)
def test_a_real_environment_is_trained_on(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's
        skip_if_missing(case)
        result = train(case, agent_steps=120)
    assert result["result"] == "ok"
    assert 360 <= result["agent_steps"] <= 480
    kind = "Gymnasium" if case.suite == "gymnasium" else "turns" if case.env.endswith(":env") else "parallel"
    assert result["kind"] == kind


@pytest.mark.parametrize(
    ("env", "policies"),
    [
        ("simple_spread_v3", "shared"),
        ("simple_tag_v3", "adversary_*=adversary,agent_*=agent"),
        ("simple_adversary_v3", "adversary_*=adversary,agent_*=agent"),
        ("marl_envs.visitors_v0", "shared"),
    ],
)
def test_agents_with_like_spaces_share_a_policy(env, policies):
    assert policies_for(EnvSpec(env, {})) == policies


@pytest.mark.parametrize("env", ["cooperative_pong_v6:parallel_env", "pistonball_v6:parallel_env"])
def test_the_pictures_that_agents_see_change(env):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        skip_if_missing(Case("butterfly", env))
        (case,) = (case for case in cases("butterfly") if case.env == env)
        game = EnvSpec(case.env, case.env_config).sample_env
        first, _ = game.reset(seed=0)
        first = {agent: seen.copy() for agent, seen in first.items()}
        for _ in range(10):
            later, *_ = game.step({agent: game.action_space(agent).sample() for agent in game.agents})
        game.close()
    assert any((later[agent] != first[agent]).any() for agent in later)


@pytest.mark.slow
@pytest.mark.parametrize("suite", [*(name for name in SUITES if name != "marl_envs"), "gymnasium"])
def test_any_environments_of_a_suite_are_trained_on(suite):
    """Other ones in each test run. ``benchmarks/suites.py`` trains on all of them."""
    found = cases(suite)
    if not found:
        pytest.skip(f"{suite} is not installed")
    some = random.Random().sample(found, min(3, len(found)))
    results = {case.label: in_a_process(case, timeout=300.0)["result"] for case in some}
    assert {label: result for label, result in results.items() if result != "ok"} == {}
