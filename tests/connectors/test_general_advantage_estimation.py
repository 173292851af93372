"""From scripted environments through sampling to the train batch: every number worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces
from msgspec.structs import astuple
from torch import nn

from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import ConnectorV2, DefaultPPORLModule
from marl_connectors.connectors.learner.general_advantage_estimation import standardized
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.errors import LearnerError, ModuleError
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec

# gamma = lambda = 1/2; the value of an observation is its first number.
#   a: values 2, 4 and a terminal 8, rewards 1, 2.     Differences 1 + 4/2 - 2 = 1 and 2 - 4 = -2.
#   b: values 2, 4, 8 and a truncated 16, rewards 1, 2, 4.   Differences 1, 2 + 8/2 - 4 = 2, 4 + 16/2 - 8 = 4.
#   c: as b, and goes on.
# Each advantage is its difference plus a quarter of the next advantage, each target the advantage plus the value.
SCRIPT = [
    Step({"a": 2, "b": 2, "c": 2}),
    Step({"a": 4, "b": 4, "c": 4}, {"a": 1, "b": 1, "c": 1}),
    Step({"a": 8, "b": 8, "c": 8}, {"a": 2, "b": 2, "c": 2}, terminated=("a",)),
    Step({"b": 16, "c": 16}, {"b": 4, "c": 4}, truncated=("b",)),
    Step({"c": 32}, {"c": 8}),
    Step({"c": 64}, {"c": 16}, truncated=("c",)),
]
ENDED, WHOLE = [1 - 2 / 4, -2.0], [1 + 3 / 4, 3.0, 4.0]


class FirstNumber(RLModule, ValueFunctionAPI):
    """Acts at random; the value of an observation is its first number."""

    def setup(self):
        self.scale = nn.Parameter(torch.ones(()))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.scale * torch.zeros(len(batch["obs"]), 2)}

    def compute_values(self, batch, embeddings=None):
        return self.scale * batch["obs"][:, 0]


class NoCritic(RLModule):
    setup, _forward = FirstNumber.setup, FirstNumber._forward


def algo_of(
    policies="independent", module_class=FirstNumber, standardize=False, script=SCRIPT, overrides=None, **training
):
    config = small_config(lambda: ScriptEnv([script])).multi_agent(policies=policies)
    config.rl_module(
        rl_module_spec=RLModuleSpec(module_class=module_class), algorithm_config_overrides_per_module=overrides or {}
    )
    algo = config.training(**{"gamma": 0.5, "lambda_": 0.5, **training}).build_algo()
    piece = next(p for p in algo.learner.pipeline if hasattr(p, "standardize"))
    piece.standardize = standardize
    return algo


def columns_of(algo, episodes):
    """``{module_id: {column: list}}`` of the train batch."""
    batch = algo.learner.make_batch(episodes)
    return {
        m: {k: v.tolist() for k, v in columns.items()}
        for group in batch.groups
        for m, columns in group.module_columns()
    }


def test_a_terminated_a_truncated_and_a_cut_agent():
    algo = algo_of()
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["a"]["advantages"] == ENDED
    assert columns["b"]["advantages"] == columns["c"]["advantages"] == WHOLE
    assert columns["a"]["value_targets"] == [2.5, 2.0]
    assert columns["b"]["value_targets"] == columns["c"]["value_targets"] == [3.75, 7.0, 12.0]
    assert columns["a"]["rewards"] == [1.0, 2.0]
    assert [o[0] for o in columns["a"]["obs"]] == [2.0, 4.0], "no row of the last observation is left"
    assert (columns["a"]["terminateds"], columns["a"]["truncateds"]) == ([False, True], [False, False])
    assert (columns["b"]["terminateds"], columns["b"]["truncateds"]) == ([False] * 3, [False, False, True])
    assert (columns["c"]["terminateds"], columns["c"]["truncateds"]) == ([False] * 3, [False] * 3)


def test_a_fragment_that_ends_in_the_middle():
    algo = algo_of()
    first = columns_of(algo, algo.env_runner.sample(num_timesteps=2))
    assert first["b"]["advantages"] == [1 + 2 / 4, 2.0]
    assert first["b"]["value_targets"] == [3.5, 6.0]
    assert first["a"]["advantages"] == ENDED
    second = columns_of(algo, algo.env_runner.sample(num_timesteps=1))
    assert "a" not in second
    assert second["b"]["advantages"] == second["c"]["advantages"] == [4.0]


def test_chunks_of_several_samples_stand_side_by_side_in_one_batch():
    algo = algo_of()
    episodes = algo.env_runner.sample(num_timesteps=2) + algo.env_runner.sample(num_timesteps=1)
    columns = columns_of(algo, episodes)
    assert columns["b"]["advantages"] == [1.5, 2.0, 4.0]
    assert columns["a"]["advantages"] == ENDED


def test_agents_that_share_a_module_keep_their_own_bootstraps():
    algo = algo_of("a=red,*=blue")
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["red"]["advantages"] == ENDED
    assert columns["blue"]["advantages"] == WHOLE * 2
    assert columns["blue"]["value_targets"] == [3.75, 7.0, 12.0] * 2


def test_episodes_that_users_built_give_the_same_numbers():
    algo = algo_of("shared")
    (episode,) = algo.env_runner.sample(num_timesteps=3)
    rebuilt = type(episode).from_state(episode.get_state())
    rebuilt_columns = columns_of(algo, [rebuilt])["default_policy"]
    assert (
        rebuilt_columns["advantages"]
        == columns_of(algo, [episode])["default_policy"]["advantages"]
        == ENDED + WHOLE * 2
    )


def test_advantages_are_standardised_for_each_module_over_its_own_real_rows():
    algo = algo_of("a=red,*=blue", standardize=True)
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    # red: mean -3/4 and deviation 5/4.
    # blue: 7/4, 3, 4 twice: mean 35/12 and variance ((14/12)^2 + (1/12)^2 + (13/12)^2) / 3.
    assert columns["red"]["advantages"] == pytest.approx([1.0, -1.0], abs=1e-6)
    deviation = ((14**2 + 1 + 13**2) / 144 / 3) ** 0.5
    expected = [(x - 35 / 12) / deviation for x in WHOLE * 2]
    assert columns["blue"]["advantages"] == pytest.approx(expected, abs=1e-6)
    assert columns["red"]["value_targets"] == [2.5, 2.0], "targets are not standardised"


def test_rows_that_do_not_count_are_scaled_but_not_in_the_mean():
    found = standardized(np.array([1.0, 100.0, 3.0]), np.array([True, False, True]))  # mean 2, deviation 1
    assert found.tolist() == [-1.0, 98.0, 1.0]


FORCED, FREE = {"action_mask": np.array([0, 1], np.int8)}, {"action_mask": np.array([1, 1], np.int8)}
MASKED = [
    dataclasses.replace(step, infos={"a": FREE, "b": FORCED if t == 1 else FREE, "c": FREE if t == 1 else FORCED})
    for t, step in enumerate(SCRIPT)
]


def test_steps_with_one_legal_action_are_not_in_the_standardisation():
    algo = algo_of(standardize=True, script=MASKED)
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    # b chooses with the advantages 7/4 and 4: mean 23/8, deviation 9/8. c chooses once, which is its mean.
    assert columns["b"]["advantages"] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
    assert columns["c"]["advantages"] == [0.0, 0.0, 0.0]
    assert columns["a"]["advantages"] == pytest.approx([1.0, -1.0], abs=1e-6)
    assert columns["b"]["value_targets"] == [3.75, 7.0, 12.0], "values are learned from all steps"


def test_advantages_that_are_not_standardised_are_those_of_all_steps():
    algo = algo_of(script=MASKED)
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["b"]["advantages"] == columns["c"]["advantages"] == WHOLE


def test_agents_that_never_choose_have_no_advantages():
    forced = [dataclasses.replace(step, infos=dict.fromkeys("abc", FORCED)) for step in SCRIPT]
    algo = algo_of("shared", standardize=True, script=forced)
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["default_policy"]["advantages"] == [0.0] * 8


def test_one_row_alone_has_an_advantage_of_zero():
    algo = algo_of(standardize=True)
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=1))
    assert columns["a"]["advantages"] == [0.0]


def test_each_module_has_its_own_gamma_and_lambda():
    algo = algo_of(overrides={"b": {"lambda_": 0.0}, "c": {"gamma": 0.0}})
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["a"]["advantages"] == ENDED
    assert columns["b"]["advantages"] == [1.0, 2.0, 4.0]
    assert columns["c"]["advantages"] == [1.0 - 2.0, 2.0 - 4.0, 4.0 - 8.0]


def test_stacked_modules_have_their_own_gamma_and_lambda():
    algo = algo_of(module_class=None, overrides={"b": {"gamma": 0.25}, "c": {"gamma": 0.75, "lambda_": 0.0}})
    for module in algo.rl_module.values():
        for name, parameter in module.named_parameters():
            nn.init.constant_(parameter, float(name.endswith("bias") and name.startswith("vf")))
    (bucket,) = algo.rl_module.buckets
    assert bucket.module_ids == ("a", "b", "c")
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    # All values are 1. The differences of b are 1 + 1/4 - 1, 2 + 1/4 - 1 and 4 + 1/4 - 1, an eighth of the next one is
    # added to each; those of c are 1 + 3/4 - 1 and so on.
    assert columns["a"]["advantages"] == [1 + 1 / 2 - 1 + (2 - 1) / 4, 2 - 1]
    assert columns["b"]["advantages"] == [1 / 4 + (5 / 4 + 13 / 4 / 8) / 8, 5 / 4 + 13 / 4 / 8, 13 / 4]
    assert columns["c"]["advantages"] == [3 / 4, 7 / 4, 15 / 4]


def test_modules_with_and_without_a_critic_in_one_run():
    algo = algo_of(overrides={"b": {"use_critic": False}})
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["a"]["advantages"] == ENDED
    assert columns["b"]["advantages"] == columns["b"]["value_targets"] == [1 + 4 / 2, 2 + 4 / 2, 4.0]
    assert columns["c"]["advantages"] == WHOLE


def test_without_gae_advantages_are_returns_less_the_value():
    algo = algo_of(use_gae=False)
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    # b: 4 + 16/2 = 12, 2 + 12/2 = 8, 1 + 8/2 = 5.   a: 2, 1 + 2/2 = 2.
    assert columns["b"]["advantages"] == [5.0 - 2, 8.0 - 4, 12.0 - 8]
    assert columns["a"]["advantages"] == [2.0 - 2, 2.0 - 4]


@pytest.mark.parametrize("module_class", [FirstNumber, NoCritic])
def test_without_a_critic_advantages_are_discounted_returns(module_class):
    algo = algo_of(module_class=module_class, use_critic=False)
    episodes = algo.env_runner.sample(num_timesteps=3)
    columns = columns_of(algo, episodes)
    assert columns["a"]["advantages"] == [1 + 2 / 2, 2.0]
    assert columns["b"]["advantages"] == columns["c"]["advantages"] == [1 + 4 / 2, 2 + 4 / 2, 4.0]
    assert columns["b"]["value_targets"] == [1 + 4 / 2, 2 + 4 / 2, 4.0], "the values are 0"
    assert algo.learner.update(episodes=episodes)["a"]["vf_loss"] == 0.0


def test_a_module_without_a_value_function_is_named():
    algo = algo_of(module_class=NoCritic)
    with pytest.raises(Exception, match=r"(?s)'a'.*\(NoCritic\).*use_critic=False") as caught:
        algo.train()
    assert isinstance(caught.value.__cause__ or caught.value, ModuleError)


def test_modules_of_different_spaces_go_through_one_update():
    script = [
        Step({"a": 2, "b": np.array([2, 0, 0], np.float32)}),
        Step({"a": 4, "b": np.array([4, 0, 0], np.float32)}, {"a": 1, "b": 1}, truncated=("a", "b")),
    ]
    config = small_config(
        lambda: ScriptEnv(
            [script],
            observation_spaces={"b": spaces.Box(-9, 9, (3,), np.float32)},
            action_spaces={"b": spaces.Box(-1, 1, (2,), np.float32)},
        )
    ).multi_agent(policies="independent")
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Wide)).training(gamma=0.5)
    algo = config.build_algo()
    next(p for p in algo.learner.pipeline if hasattr(p, "standardize")).standardize = False
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=1))
    assert columns["a"]["advantages"] == columns["b"]["advantages"] == [1.0]
    assert sorted(algo.train()["learners"]) == ["a", "b"]


class Wide(FirstNumber):
    def _forward(self, batch, **kwargs):
        width = 2 if isinstance(self.action_space, spaces.Discrete) else 4
        return {"action_dist_inputs": self.scale * torch.zeros(len(batch["obs"]), width)}


# Normalised values.


class ValueNorm:
    """The running normalisation of MAPPO's own code: debiased exponential means of numbers and of their squares."""

    def __init__(self, beta):
        self.beta, self.mean, self.mean_square, self.debiasing = beta, 0.0, 0.0, 0.0

    def update(self, numbers):
        self.mean = self.beta * self.mean + (1 - self.beta) * np.mean(numbers)
        self.mean_square = self.beta * self.mean_square + (1 - self.beta) * np.mean(np.square(numbers))
        self.debiasing = self.beta * self.debiasing + (1 - self.beta)

    @property
    def statistics(self):
        if not self.debiasing:
            return 0.0, 1.0
        mean, mean_square = self.mean / self.debiasing, self.mean_square / self.debiasing
        return mean, max(mean_square - mean**2, 1e-2) ** 0.5


def advantages_by_recursion(rewards, values, is_terminated, gamma, lambda_):
    advantages, following = [], 0.0
    for t in reversed(range(len(rewards))):
        bootstrap = 0.0 if is_terminated and t == len(rewards) - 1 else values[t + 1]
        following = rewards[t] + gamma * bootstrap - values[t] + gamma * lambda_ * following
        advantages.insert(0, following)
    return np.array(advantages)


def agents_of(episodes, module_id):
    for chunk in chunks_of(episodes):
        own = chunk.episode() if isinstance(chunk, AgentChunk) else chunk
        if own.module_id == module_id and len(own):
            yield own


class ThreeActions(FirstNumber):
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.scale * torch.zeros(len(batch["obs"]), 3)}


def life_algo(module_class=ThreeActions, **training):
    """Agents that die and join; the observations are random, and so are their values."""
    game = {"agents": list("abcd"), "die": 0.2, "join": 0.3, "max_steps": 6}
    config = small_config(LifeEnv, env_config=game).multi_agent(policies="a=red,b=blue,*=green")
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=5)
    if module_class is not None:
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class))
    algo = config.training(gamma=0.9, lambda_=0.8, normalize_values=True, **training).build_algo()
    algo.learner.pipeline["GeneralAdvantageEstimation"].standardize = False
    return algo


@pytest.mark.parametrize("beta", [0.99999, 0.9, 0.0])
def test_values_are_normalised_as_in_mappo(beta):
    algo = life_algo(value_norm_beta=beta)
    references = {module_id: ValueNorm(beta) for module_id in algo.rl_module}
    for _ in range(4):
        episodes = algo.env_runner.sample(num_timesteps=20)
        found = columns_of(algo, episodes)
        for module_id, reference in references.items():
            mean, deviation = reference.statistics
            advantages, targets = [], []
            for own in agents_of(episodes, module_id):
                values = mean + deviation * np.float64(own.get_observations()[:, 0])
                rewards = np.float64(own.get_rewards())
                advantages.append(advantages_by_recursion(rewards, values, own.is_terminated, 0.9, 0.8))
                targets.append(advantages[-1] + values[:-1])
            assert found[module_id]["advantages"] == pytest.approx(np.concatenate(advantages), rel=1e-4, abs=1e-4)
            reference.update(np.concatenate(targets))
            mean, deviation = reference.statistics
            expected = (np.concatenate(targets) - mean) / deviation
            assert found[module_id]["value_targets"] == pytest.approx(expected, rel=1e-4, abs=1e-4)
            piece = algo.learner.pipeline["GeneralAdvantageEstimation"]
            assert piece.value_statistics(module_id) == pytest.approx((mean, deviation), rel=1e-9)


def test_masked_steps_are_not_in_the_statistics():
    algo = life_algo()
    piece = algo.learner.pipeline["GeneralAdvantageEstimation"]
    episodes = algo.env_runner.sample(num_timesteps=20)
    whole = columns_of(algo, episodes)["green"]["value_targets"]
    mean, deviation = piece.value_statistics("green")
    piece.reset_state()
    algo.learner.pipeline.insert_before("GeneralAdvantageEstimation", FirstHalf())
    half = columns_of(algo, episodes)["green"]["value_targets"]
    returns = mean + deviation * np.array(whole)[: len(half)]
    assert len(half) == len(whole) // 2
    assert piece.value_statistics("green") == pytest.approx((returns.mean(), returns.std()), rel=1e-5)


class FirstHalf(ConnectorV2):
    """Leaves the second half of a module's steps out of the loss."""

    def columns(self, c, xp):
        counted = np.cumsum(c.rows.acted) <= c.rows.acted.sum() // 2
        c["loss_mask"] = torch.from_numpy(c.rows.acted & counted)


def test_a_change_of_the_rewards_scale_changes_no_update():
    """Returns and the values of them are scaled together, once the statistics know returns."""
    found = []
    for scale in (1.0, 1000.0):
        algo = life_algo(DefaultPPORLModule, num_epochs=1, minibatch_size=None, vf_clip_param=float("inf"))
        algo.learner.pipeline["GeneralAdvantageEstimation"].standardize = True
        with torch.no_grad():
            for module in algo.rl_module.values():
                for parameter in module.vf.parameters():
                    parameter.zero_()  # so that the first update, which knows no returns yet, has values of 0
        batches = [algo.env_runner.sample(num_timesteps=20) for _ in range(3)]
        algo.learner.pipeline.insert_before("GeneralAdvantageEstimation", Scaled(scale))
        results = [algo.learner.update(episodes=batch) for batch in batches]
        found.append([[own[m]["vf_loss"] for m in sorted(own)] for own in results])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)


class Scaled(ConnectorV2):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def columns(self, c, xp):
        c["rewards"] = c["rewards"] * self.scale


def test_some_modules_have_normalised_values_and_others_have_no_critic():
    algo = algo_of(overrides={"b": {"normalize_values": True}, "c": {"use_critic": False, "normalize_values": True}})
    columns = columns_of(algo, algo.env_runner.sample(num_timesteps=3))
    assert columns["a"]["value_targets"] == [2.5, 2.0]
    mean, deviation = np.mean([3.75, 7.0, 12.0]), np.std([3.75, 7.0, 12.0])
    assert columns["b"]["value_targets"] == pytest.approx((np.array([3.75, 7.0, 12.0]) - mean) / deviation)
    assert columns["c"]["value_targets"] == [1 + 4 / 2, 2 + 4 / 2, 4.0]
    piece = algo.learner.pipeline["DiscountedReturns"]
    assert piece.get_state().value_targets.keys() == {"b"}
    assert astuple(piece.get_state().value_targets["b"]) == pytest.approx((1.0, mean, deviation**2))


def test_a_return_that_never_varies_is_divided_by_a_tenth():
    script = [Step({"a": 0}), Step({"a": 0}, {"a": 3}, terminated=("a",))]
    algo = algo_of(script=script, normalize_values=True)
    assert columns_of(algo, algo.env_runner.sample(num_timesteps=4))["a"]["value_targets"] == [0.0] * 4
    assert algo.learner.pipeline["GeneralAdvantageEstimation"].value_statistics("a") == (3.0, 0.1)


def test_stacked_modules_are_normalised_as_single_ones_are():
    one, other = (life_algo(None) for _ in range(2))
    other._set(stack_modules=False)
    episodes = [one.env_runner.sample(num_timesteps=20) for _ in range(2)]
    assert one.rl_module.buckets and one.learner._steps(ColumnBatch([])).stacking_key is not None
    assert other.learner._steps(ColumnBatch([])).stacking_key is None
    for own in episodes:
        results = [algo.learner.update(episodes=own) for algo in (one, other)]
        for module_id in results[0]:
            assert results[0][module_id] == pytest.approx(results[1][module_id], rel=1e-3, abs=1e-5)
    states = [algo.learner.pipeline.get_state()["GeneralAdvantageEstimation"] for algo in (one, other)]
    for module_id, moments in states[0].value_targets.items():
        assert astuple(moments) == pytest.approx(astuple(states[1].value_targets[module_id]), rel=1e-5)


def test_explain_changes_no_statistics():
    algo = life_algo(None)
    algo.train()
    piece = algo.learner.pipeline["GeneralAdvantageEstimation"]
    before = piece.get_state()
    assert set(before.value_targets) == {"red", "blue", "green"}
    algo.explain()
    assert piece.get_state() == before


def test_a_reward_that_is_not_finite_leaves_the_statistics_as_they_were():
    algo = life_algo(None)
    episodes = algo.env_runner.sample(num_timesteps=20)
    algo.learner.update(episodes=episodes)
    piece = algo.learner.pipeline["GeneralAdvantageEstimation"]
    before = piece.get_state()
    algo.learner.pipeline.insert_before("GeneralAdvantageEstimation", Scaled(float("nan")))
    with pytest.raises(LearnerError, match="'rewards'"):
        algo.learner.update(episodes=episodes)
    assert piece.get_state() == before


def test_a_removed_module_leaves_no_statistics_and_an_added_one_begins_anew():
    algo = life_algo(None)
    algo.train()
    piece = algo.learner.pipeline["GeneralAdvantageEstimation"]
    state = algo.get_module("red").get_state()
    algo.remove_module("red", new_agent_to_module_mapping_fn="b=blue,*=green")
    assert set(piece.get_state().value_targets) == {"blue", "green"}
    algo.add_module("red", module_state=state, config_overrides={"value_norm_beta": 0.5})
    assert piece.value_statistics("red") == (0.0, 1.0)
    assert piece.module_settings["red"]["value_norm_beta"] == 0.5


def test_each_module_forgets_older_targets_at_its_own_rate():
    algo = algo_of(normalize_values=True, overrides={"b": {"value_norm_beta": 0.5}})
    episodes = algo.env_runner.sample(num_timesteps=3)
    for _ in range(2):
        columns_of(algo, episodes)
    found = algo.learner.pipeline["GeneralAdvantageEstimation"].get_state().value_targets
    assert {m: moments.count for m, moments in found.items()} == pytest.approx({"a": 1.99999, "b": 1.5, "c": 1.99999})
