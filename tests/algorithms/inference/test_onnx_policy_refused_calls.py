"""A call that OnnxPolicy refuses changes nothing: neither what it remembers of any agent nor its random numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from helpers.fresh_seeds import fresh_seeds
from helpers.modules.policies_by_hand import in_torch, make_policy
from helpers.modules.random_policies import random_policy
from marl_connectors import ActionMasking, FrameStacking, OnnxPolicy, PrevActionsPrevRewards
from marl_connectors.algorithms.inference.export_check import act_on_samples
from marl_connectors.algorithms.inference.onnx_policy import digest_of
from marl_connectors.trees import leaves

BOX = spaces.Box(-1.0, 1.0, (3,))
GO = spaces.Discrete(4)
HUGE = int("9" * 400)
"""A whole number that no number type of numpy holds, but JSON does."""


def wrong_calls(given, roles):
    """Yields calls, each with one thing wrong in the part of one agent; the other agents come before it or after."""

    def changed(name, agent, wrong):
        return {**given, name: {**(given.get(name) or {}), agent: wrong}}

    for agent, observation in given["observations"].items():
        for wrong in ("text", None, [[0.1], [0.2, 0.3]], HUGE, [np.nan], np.zeros((2, 1, 1, 1, 1, 1, 1))):
            yield changed("observations", agent, wrong)
        if isinstance(observation, np.ndarray) and observation.dtype.kind == "f" and observation.size:
            yield changed("observations", agent, np.full_like(observation, np.inf))
        if "noise" in roles:
            yield changed("noise", agent, np.zeros(97))
        if "action_mask" in roles and not (isinstance(observation, dict) and "mask" in observation):
            yield changed("infos", agent, {"mask": np.ones(97)})
            yield changed("infos", agent, {"mask": "text"})
        if "reward" in roles:
            yield changed("rewards", agent, np.nan)
        yield {**given, "agent_ids": [*given["observations"], "nobody"]}


def same(one, other):
    return all(np.array_equal(*pair) for pair in zip(leaves(one), leaves(other), strict=True))


def check_random_policy(seed):
    rng = np.random.default_rng(seed)
    policy, about = random_policy(rng)
    acts = in_torch(policy, explore=True)
    disturbed, undisturbed = acts.session(seed=3), acts.session(seed=3)
    roles = {own["role"] for file in acts.contract["files"] for own in file["inputs"]}
    for step in range(4):
        given, _ = act_on_samples(policy, policy.agent_ids, rng, first=step == 0, num_envs=2)
        for wrong in wrong_calls(given, roles):
            with pytest.raises(ValueError, match="OnnxPolicy"):
                disturbed.actions(**wrong)
        found, expected = disturbed.actions(**given), undisturbed.actions(**given)
        for agent in policy.agent_ids:
            assert same(found[agent], expected[agent]), about
            assert same(disturbed.newest_inputs(agent), undisturbed.newest_inputs(agent)), about
        ended = rng.random(2) < 0.3
        for policies in (disturbed, undisturbed, policy):
            policies.reset(ended)
        with pytest.raises(ValueError, match="bool"):
            disturbed.reset([True] * 3)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", [*range(6), *fresh_seeds(60)])
def test_refused_calls_change_nothing(seed):
    check_random_policy(seed)


def test_an_agent_whose_program_ran_before_the_refused_one_keeps_its_memory():
    agents = {"a": (BOX, GO), "b": (spaces.Box(-1.0, 1.0, (2,)), GO)}
    policy = make_policy(agents, [FrameStacking(num_frames=3)], mapping="independent")
    acts, expected = in_torch(policy), in_torch(policy)
    first, then = np.float32([0.1, -0.5, 0.9]), np.float32([-0.7, 0.2, 0.4])
    acts(first, "a")
    with pytest.raises(ValueError, match="agent 'b'"):
        acts.actions({"a": then, "b": [0.1, np.nan]})
    with pytest.raises(ValueError, match="'nobody'"):
        acts.reset(agent_ids=["a", "nobody"])
    acts(then, "a")
    expected(first, "a")
    expected(then, "a")
    np.testing.assert_array_equal(acts.newest_inputs("a"), expected.newest_inputs("a"))


def test_a_program_that_fails_leaves_the_memory_and_the_random_numbers_as_they_were():
    agents = {"a": (BOX, GO), "b": (BOX, GO)}
    policy = make_policy(agents, [FrameStacking(num_frames=2)], mapping="independent")
    acts = in_torch(policy, explore=True)
    expected = acts.session(seed=1)
    acts = acts.session(seed=1)
    last = acts._programs[-1]

    def fails(feed):
        raise RuntimeError("the runtime has no memory")

    x = {"a": np.float32([0.1, 0.2, 0.3]), "b": np.float32([0.4, 0.5, 0.6])}
    right, last._compute = last._compute, fails
    for _ in range(3):
        with pytest.raises(RuntimeError):
            acts.actions(x)
    last._compute = right
    for _ in range(20):
        assert acts.actions(x) == expected.actions(x)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"observations": {"a": "text"}}, "observation of agent 'a'"),
        ({"observations": {"a": [0.1, 0.2, HUGE]}}, "observation of agent 'a'"),
        ({"rewards": {"a": float("nan")}}, "reward of agent 'a'"),
        ({"rewards": {"a": [0.1, 0.2]}}, "reward of agent 'a'"),
        ({"rewards": {"a": HUGE}}, "reward of agent 'a'"),
        ({"infos": {"a": [1, 2]}}, "info"),
        ({"infos": {"a": {"action_mask": ["x"] * 4}}}, "mask"),
        ({"agent_ids": ["a", "b"]}, "'b'"),
    ],
)
def test_wrong_numbers_are_named(change, named):
    pieces = [ActionMasking(source="infos"), PrevActionsPrevRewards()]
    policy = make_policy(dict.fromkeys("ab", (BOX, GO)), pieces)
    acts = in_torch(policy)
    given = {
        "observations": {"a": [0.1, 0.2, 0.3]},
        "rewards": {"a": 0.5},
        "infos": {"a": {"action_mask": [1, 1, 1, 1]}},
    }
    acts.actions(**given)
    with pytest.raises(ValueError, match=named):
        acts.actions(**{**given, **change})
    acts.actions(**given)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{", "[" * 100_000, ""])
def test_a_file_that_is_no_contract_is_refused(tmp_path, content):
    pytest.importorskip("onnxruntime")
    (tmp_path / "contract.json").write_text(content)
    with pytest.raises(ValueError, match=r"contract\.json"):
        OnnxPolicy(tmp_path)


def test_a_missing_program_is_named(tmp_path):
    pytest.importorskip("onnxruntime")
    contract = in_torch(make_policy((BOX, GO))).contract
    for file in contract["files"]:
        file["sha256"] = "0" * 64
    (tmp_path / "contract.json").write_text(json.dumps({**contract, "digest": digest_of(contract)}))
    with pytest.raises(ValueError, match=r"default_policy\.onnx"):
        OnnxPolicy(tmp_path)
