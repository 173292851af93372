"""Programs of exported policies, computed by torch: they do what the policies do, with all pieces, spaces and modules.

Here no ONNX file is written, so these tests are quick, and need no packages for ONNX.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.modules.policies_by_hand import give_statistics, in_torch, make_policy
from helpers.modules.random_policies import random_policy
from marl_connectors import (
    ActionMasking,
    AgentIdEncoding,
    Columns,
    ConnectorV2,
    FlattenObservations,
    FrameStacking,
    ImageToFloat,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    MultiRLModule,
    ObservationPreprocessor,
    OneHotObservations,
    PadObservations,
    PrevActionsPrevRewards,
    RandomRLModule,
    RLModule,
    TimeLimitEncoding,
)
from marl_connectors.algorithms.inference.onnx_export import check_programs, make_programs
from marl_connectors.errors import ConnectorError, MappingError, ModuleError
from marl_connectors.rl_module.distributions import TorchCategorical

BOX = spaces.Box(-1.0, 1.0, (3,))
GO = spaces.Discrete(4)
NESTED = spaces.Dict({"at": BOX, "on": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])])})
WITH_NOTHING = spaces.Dict({"at": BOX, "nothing": spaces.Box(0, 255, (0, 3), np.uint8)})
BOARD = spaces.Dict({"observation": spaces.Box(0, 9, (4,), np.uint8), "action_mask": spaces.MultiBinary(4)})


def compare(policy, *, explore=False):
    """Fails if the programs and the policy differ in five steps of eight episodes of sampled observations."""
    check_programs(policy, in_torch(policy, explore=explore), make_programs(policy, explore), explore)


def three(observation_space, action_space=GO):
    return {f"agent_{i}": (observation_space, action_space) for i in range(3)}


OF_DIFFERENT_SIZES = {"a": (spaces.Box(-1.0, 1.0, (2,)), GO), "b": (spaces.Box(-1.0, 1.0, (4,)), GO)}
IMAGES = spaces.Dict({"seen": spaces.Box(0, 255, (12, 10, 3), np.uint8), "at": BOX})
CASES = {
    "no pieces": lambda: make_policy((BOX, GO)),
    "nested observations": lambda: make_policy((NESTED, GO)),
    "flattening": lambda: make_policy(three(NESTED), [FlattenObservations()]),
    "flattening without a key": lambda: make_policy((NESTED, GO), [FlattenObservations(keys_to_remove=["at"])]),
    "flattening of nothing": lambda: make_policy(three(WITH_NOTHING), [FlattenObservations()]),
    "nothing": lambda: make_policy((spaces.Box(0, 255, (0,), np.uint8), GO)),
    "one-hot": lambda: make_policy((NESTED, GO), [OneHotObservations()]),
    "images": lambda: make_policy((IMAGES, GO), [ImageToFloat()]),
    "images, channels last": lambda: make_policy((IMAGES, GO), [ImageToFloat(channels_first=False)]),
    "filter of each agent": lambda: make_policy(three(NESTED), [MeanStdFilter()]),
    "filter of bytes": lambda: make_policy((IMAGES, GO), [MeanStdFilter(clip_by_value=1.0)]),
    "centred only": lambda: make_policy((BOX, GO), [MeanStdFilter(de_std_to_one=False, clip_by_value=None)]),
    "agent ids": lambda: make_policy(three(BOX), [AgentIdEncoding()]),
    "agent ids of independent agents": lambda: make_policy(three(BOX), [AgentIdEncoding()], mapping="independent"),
    "padding": lambda: make_policy(OF_DIFFERENT_SIZES, [PadObservations()]),
    "time": lambda: make_policy((BOX, GO), [TimeLimitEncoding(max_steps=3)]),
    "history": lambda: make_policy((NESTED, GO), [PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=3)]),
    "history of nested actions": lambda: make_policy((BOX, NESTED), [PrevActionsPrevRewards()]),
    "history of rewards": lambda: make_policy((BOX, GO), [PrevActionsPrevRewards(n_prev_actions=0)]),
    "history of actions": lambda: make_policy((BOX, GO), [PrevActionsPrevRewards(n_prev_rewards=0)]),
    "frames": lambda: make_policy(three(BOX), [MeanStdFilter(), FrameStacking(num_frames=3)]),
    "frames of images": lambda: make_policy((IMAGES, GO), [FrameStacking(num_frames=2)]),
    "one frame": lambda: make_policy((BOX, GO), [FrameStacking(num_frames=1)]),
    "masks in observations": lambda: make_policy((BOARD, GO), [ActionMasking(), MeanStdFilter()]),
    "masks that stay": lambda: make_policy((BOARD, GO), [ActionMasking(keep_in_observations=True)]),
    "masks in infos": lambda: make_policy(three(BOX), [ActionMasking(source="infos")]),
    "masks of bits": lambda: make_policy((BOX, spaces.MultiBinary([2, 2])), [ActionMasking(source="infos")]),
    "masks of choices": lambda: make_policy((BOX, spaces.MultiDiscrete([2, 3, 2])), [ActionMasking(source="infos")]),
    "masks of choices in a table": lambda: make_policy(
        (BOX, spaces.MultiDiscrete([[2, 3], [4, 2]])), [ActionMasking(source="infos")]
    ),
    "masks of parts": lambda: make_policy((BOX, NESTED), [ActionMasking(source="infos")]),
    "lstm": lambda: make_policy((NESTED, GO), model_config={"use_lstm": True, "lstm_cell_size": 4}),
    "gru and masks": lambda: make_policy((BOARD, GO), [ActionMasking()], model_config={"use_gru": True}),
    "start": lambda: make_policy((spaces.Discrete(3, start=5), spaces.Discrete(3, start=-1))),
    "choices": lambda: make_policy((BOX, spaces.MultiDiscrete([[2, 3], [4, 2]]))),
    "choices with start": lambda: make_policy((BOX, spaces.MultiDiscrete([2, 3], start=[1, -4]))),
    "bits": lambda: make_policy((BOX, spaces.MultiBinary([2, 2]))),
    "range": lambda: make_policy((BOX, spaces.Box(0.0, 7.0, (2, 2)))),
    "range in double precision": lambda: make_policy((BOX, spaces.Box(0.0, 7.0, (2,), np.float64))),
    "half open range": lambda: make_policy((BOX, spaces.Box(np.array([0, -np.inf]), 7.0, (2,), np.float64))),
    "clipped": lambda: make_policy((BOX, spaces.Box(0.0, 0.1, (2,))), normalize_actions=False, clip_actions=True),
    "as it is": lambda: make_policy((BOX, spaces.Box(0.0, 0.1, (2,))), normalize_actions=False),
    "beta": lambda: make_policy((BOX, spaces.Box(0.0, 7.0, (2,))), model_config={"action_distribution": "beta"}),
    "turns": lambda: make_policy(three(BOX), [AgentIdEncoding()], takes_turns=True),
}


@pytest.mark.few(21)
@pytest.mark.parametrize("case", CASES)
def test_a_program_does_what_the_policy_does(case):
    compare(give_statistics(CASES[case]()))


@pytest.mark.few(4)
@pytest.mark.parametrize("case", ["no pieces", "choices", "bits", "range", "beta", "masks of parts", "history", "lstm"])
def test_a_program_that_samples_does_what_the_policy_does(case):
    compare(CASES[case](), explore=True)


@pytest.mark.parametrize("seed", range(5))
def test_programs_of_random_policies_do_what_the_policies_do(seed):
    policy, _ = random_policy(np.random.default_rng(seed))
    compare(policy)


@pytest.mark.slow
def test_programs_of_many_random_policies_do_what_the_policies_do():
    seed = np.random.SeedSequence().entropy
    for i in range(60):
        policy, about = random_policy(np.random.default_rng([seed, i]))
        for explore in (False, True):
            try:
                compare(policy, explore=explore)
            except Exception as error:
                raise AssertionError(f"seed {[seed, i]}, explore={explore}: {about}") from error


def test_a_program_encodes_no_time_beyond_the_limit():
    """From the third step on, the last of the observations is 1."""
    policy = make_policy((BOX, GO), [TimeLimitEncoding(max_steps=2)])
    acts, seen = in_torch(policy), []
    for _ in range(5):
        acts(np.zeros((1, 3), np.float32))
        seen.append(acts.newest_inputs(policy.agent_ids[0])[0].tolist())
    assert seen[0] != seen[1] != seen[2] == seen[3] == seen[4]


class BeginsAtTwo(TimeLimitEncoding):
    """Counts from 2."""

    def columns(self, c, xp):
        if c.program is None:
            super().columns(c, xp)
            return
        memory = c.program.memory("steps", np.full((), 2, np.int64))
        memory.next = memory.value + 1
        c.rows.set("obs", torch.cat([c["obs"], memory.value.float().unsqueeze(1)], 1))


def test_what_a_program_remembers_begins_anew_where_an_episode_has_ended():
    policy = make_policy((BOX, GO), [BeginsAtTwo(max_steps=9)])
    acts, x = in_torch(policy), np.zeros((2, 3), np.float32)
    (agent,) = policy.agent_ids
    acts(x)
    first = acts.newest_inputs(agent)
    acts(x)
    second = acts.newest_inputs(agent)
    acts.reset([True, False])
    acts(x)
    found = acts.newest_inputs(agent)
    assert found[0].tolist() == first[0].tolist() != second[0].tolist()
    assert found[1].tolist() not in (first[1].tolist(), second[1].tolist())


# Ties, masks and noise.


def same_logits(policy):
    with torch.no_grad():
        for parameter in policy.rl_module.parameters():
            parameter.zero_()
    return policy


def test_of_equally_likely_actions_the_first_allowed_one_is_taken():
    policy = same_logits(make_policy((BOX, GO), [ActionMasking(source="infos")]))
    masks = [[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 1]]
    infos = [{"action_mask": np.array(mask, np.int8)} for mask in masks]
    for acts in (policy, in_torch(policy)):
        assert np.asarray(acts(np.zeros((4, 3), np.float32), info=infos)).tolist() == [0, 2, 1, 3]


def test_a_mask_that_forbids_everything_is_ignored():
    policy = make_policy((BOX, GO), [ActionMasking(source="infos")])
    observation = np.array([0.3, -0.2, 0.9], np.float32)
    nothing = {"action_mask": np.zeros(4, np.int8)}
    for acts in (policy, in_torch(policy)):
        assert acts(observation, info=nothing) == acts(observation, info={}) == policy(observation, info={})


def test_a_row_without_a_mask_is_free():
    policy = same_logits(make_policy((BOX, GO), [ActionMasking(source="infos")]))
    infos = [{}, {"action_mask": [0, 1, 1, 1]}, {"action_mask": None}]
    arrays = {"action_mask": np.array([[0] * 4, [0, 1, 1, 1], [0] * 4]), "_action_mask": np.array([False, True, False])}
    for acts in (policy, in_torch(policy)):
        assert np.asarray(acts(np.zeros((3, 3), np.float32), info=infos)).tolist() == [0, 1, 0]
        assert np.asarray(acts(np.zeros((3, 3), np.float32), info=arrays)).tolist() == [0, 1, 0]


def test_given_noise_decides_about_a_sampled_action():
    acts = in_torch(same_logits(make_policy((BOX, GO))), explore=True)
    noise = np.array([[0.0, 0.5, 0.1, 0.2], [3.0, 0.5, 0.1, 0.2], [1.0, 0.5, 0.1, 7.0]], np.float32)
    assert acts(np.zeros((3, 3), np.float32), noise=noise).tolist() == [1, 0, 3]
    assert acts(np.zeros(3, np.float32), noise=noise[0]) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian", "beta"])
def test_numbers_drawn_without_torch_are_distributed_as_the_policys(distribution):
    policy = make_policy(
        (BOX, spaces.Dict({"go": GO, "to": spaces.Box(-1.0, 1.0, (1,)), "on": spaces.MultiBinary(1)})),
        model_config={"action_distribution": distribution},
    )
    rows = np.tile(np.array([0.5, -0.5, 0.25], np.float32), (3000, 1))
    ours, theirs = policy(rows, explore=True), in_torch(policy, explore=True, seed=1)(rows)
    for value in range(4):
        assert np.mean(theirs["go"] == value) == pytest.approx(np.mean(ours["go"] == value), abs=0.04)
    assert np.mean(theirs["on"]) == pytest.approx(np.mean(ours["on"]), abs=0.04)
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(theirs["to"], share) == pytest.approx(np.quantile(ours["to"], share), abs=0.1)


def test_a_module_that_always_samples_needs_noise_without_exploration_too():
    acts = in_torch(make_policy((BOX, GO), module_class=RandomRLModule))
    assert [own["role"] for own in acts.contract["files"][0]["inputs"]] == ["observation", "noise"]
    found = np.bincount(acts(np.zeros((4000, 3), np.float32)), minlength=4) / 4000
    np.testing.assert_allclose(found, 0.25, atol=0.03)


class FromTorch(TorchCategorical):
    """Draws from torch's generator."""

    @classmethod
    def noise(cls, rng, shape, num_inputs):
        return None


class SamplesFromTorch(RandomRLModule):
    def get_exploration_action_dist_cls(self):
        return FromTorch


def test_a_distribution_that_draws_from_torch_is_refused_by_name():
    policy = make_policy((BOX, GO), module_class=SamplesFromTorch)
    with pytest.raises(ModuleError, match="FromTorch"):
        make_programs(policy, True)


# Pieces and modules of users.


class Scale(ObservationPreprocessor):
    def preprocess(self, observation):
        return observation * np.float32(0.5)


class ScaleAtOnce(ConnectorV2):
    def columns(self, c, xp):
        c.rows.set("obs", c["obs"] * 0.5)


class TooMuch(ConnectorV2):
    def columns(self, c, xp):
        c.rows.set("obs", c["obs"] * (0.5 if c.program is None else 0.75))


class InNumpy(ConnectorV2):
    def columns(self, c, xp):
        c["obs"] = np.tanh(np.asarray(c["obs"]))


class Fails(ConnectorV2):
    def columns(self, c, xp):
        if c.program is not None:
            raise RuntimeError("no such thing")


class Uncentred(MeanStdFilter):
    def transform(self, observations, plan, rows, xp):
        return observations


class WithHistory(ConnectorV2):
    """Appends the observation, the reward and the action of earlier steps."""

    lookback = 2

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return spaces.Box(-np.inf, np.inf, (3 + 3 + 2,))

    def columns(self, c, xp):
        reward, action = (c.rows.get(name, -2, fill=0) for name in ("rewards", "actions"))
        before = c.rows.get("obs", -1, fill=0)
        c["obs"] = xp.concat([c["obs"], before, xp.astype(xp.stack([reward, action], axis=1), xp.float32)], axis=1)


class OnItems(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch


class Together(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        return observations


class Sharper(ConnectorV2):
    """Multiplies the logits, in the module-to-env pipeline."""

    def columns(self, c, xp):
        c["sharper"] = c["action_dist_inputs"] * 2
        c.metrics.log_value("largest", c["sharper"].max())


class SumSoFar(ConnectorV2):
    """Appends the sum of the first numbers of all observations so far, which it remembers."""

    lookback = 100

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return spaces.Box(-np.inf, np.inf, (4,))

    def columns(self, c, xp):
        if c.program is None:
            total = np.array([episode.get_observations()[:, 0].sum() for episode in c.rows.episodes], np.float32)
        else:
            memory = c.program.memory("total", np.zeros((), np.float32))
            total = memory.next = memory.value + c["obs"][:, 0]
        c["obs"] = xp.concat([c["obs"], total[:, None]], axis=1)


def test_a_users_piece_on_columns_is_part_of_the_program():
    compare(make_policy(three(BOX), [ScaleAtOnce(), Uncentred()], module_to_env=[Sharper()]))


@pytest.mark.parametrize("piece", [SumSoFar, WithHistory])
def test_a_users_piece_may_remember_something(piece):
    compare(make_policy((BOX, GO), [ScaleAtOnce(), piece()]))


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (Scale, r"(?s)columns\(c, xp\).*Scale"),
        (OnItems, r"(?s)OnItems.*piece 0"),
        (InNumpy, r"(?s)columns\(c, xp\).*InNumpy"),
        (Together, r"(?s)Together.*piece 0"),
        (Fails, r"(?s)columns\(c, xp\).*Fails.*RuntimeError.*no such thing"),
    ],
)
def test_a_piece_that_cannot_go_into_a_program_is_refused_by_name(piece, message):
    with pytest.raises(ConnectorError, match=message):
        make_programs(make_policy(three(BOX), [piece()]), False)


@pytest.mark.parametrize("space", [spaces.Box(0, 255, (0, 3), np.uint8), WITH_NOTHING])
def test_observations_without_a_number_that_cannot_be_flattened_are_an_error(space):
    with pytest.raises(ModuleError, match=r"(?s)'default_policy'.*\(0, 3\)"):
        make_programs(make_policy((space, GO)), False)


def test_a_wrong_form_in_torch_is_found_by_comparing():
    with pytest.raises(ModuleError, match=r"(?s)'default_agent'.*step 0"):
        compare(make_policy((BOX, GO), [TooMuch()]))


class Rule(RLModule):
    """Outputs actions itself: the place of the largest of the first numbers."""

    def _forward(self, batch, **kwargs):
        return {Columns.ACTIONS: batch[Columns.OBS][..., :3].argmax(-1)}


def test_a_module_may_output_actions_itself():
    policy = make_policy((BOX, spaces.Discrete(3, start=2)), module_class=Rule)
    compare(policy)
    assert in_torch(policy)(np.array([0.1, 0.9, 0.2], np.float32)) == 3


class SharedEncoder(MultiRLModule):
    """Adds the same numbers to the observations of all modules."""

    def _forward(self, batch, *, purpose, **kwargs):
        for columns in batch.values():
            columns[Columns.OBS] = columns[Columns.OBS] + torch.tensor([0.5, 0.0, -0.5])
        return super()._forward(batch, purpose=purpose, **kwargs)


def test_what_a_multi_rl_module_does_for_each_module_is_part_of_the_programs():
    policy = make_policy(three(BOX), mapping="independent", multi_class=SharedEncoder)
    compare(policy)


# Agents and modules.


def test_agents_with_other_spaces_get_a_program_of_their_own():
    acts = in_torch(make_policy(OF_DIFFERENT_SIZES, [PadObservations()]))
    assert [own["file"] for own in acts.contract["files"]] == ["default_policy.onnx", "default_policy-2.onnx"]
    assert [own["file"] for own in acts.contract["agents"]] == ["default_policy.onnx", "default_policy-2.onnx"]


def test_the_contract_is_json_that_says_who_acts_with_what():
    policy = make_policy(three(BOX), [AgentIdEncoding()])
    contract = json.loads(json.dumps(in_torch(policy).contract))
    assert (contract["format"], contract["format_version"]) == ("marl-connectors-onnx", 2)
    assert contract["agents"] == [
        {
            "agent": f"agent_{i}",
            "module": "default_policy",
            "file": "default_policy.onnx",
            "index": i,
            "needs_info": False,
        }
        for i in range(3)
    ]
    (file,) = contract["files"]
    assert file["inputs"] == [
        {"name": "obs", "role": "observation", "dtype": "float32", "shape": [3], "path": []},
        {"name": "agent", "role": "agent", "dtype": "int64", "shape": [], "path": []},
    ]
    assert file["outputs"] == [
        {"name": "actions", "role": "action", "dtype": "int64", "shape": [], "path": []},
        {"name": "action_dist_inputs", "role": "action_dist_inputs", "dtype": "float32", "shape": [4], "path": []},
    ]
    assert file["observation_space"]["type"] == "Box"
    assert file["memories"] == []


def alternates(agent_id, episode, **kwargs):
    return "ab"[int(episode.id_.split("-")[0]) % 2]


def test_agents_whose_module_changes_from_episode_to_episode_are_refused():
    policy = make_policy(three(BOX), mapping="agent_0=a,agent_1=b,*=a")
    built = {**policy._built_with, "policy_mapping_fn": alternates}
    policy = type(policy)(policy.rl_module, policy.env_to_module, policy.module_to_env, **built)
    with pytest.raises(MappingError, match="'agent_0'"):
        make_programs(policy, False)


def test_exporting_changes_neither_the_policy_nor_what_it_remembers():
    policy = give_statistics(CASES["frames"]())
    other = give_statistics(CASES["frames"]())
    rng = np.random.default_rng(0)
    for _ in range(4):
        seen = {agent: rng.normal(size=3).astype(np.float32) for agent in policy.agent_ids}
        assert policy.actions(seen) == other.actions(seen)
        make_programs(policy, False)
