"""What a module that does not fit gets to hear."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from helpers.envs.spaces_env import SpacesEnv
from marl_connectors import Columns, PPOConfig, RLModule, RLModuleSpec
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import MarlConnectorsError, ModuleError
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.calls import check_observations

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Right(RLModule, ValueFunctionAPI):
    def setup(self):
        self.pi, self.vf = nn.Linear(3, 3), nn.Linear(3, 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS])}

    def compute_values(self, batch, embeddings=None):
        return self.vf(batch[Columns.OBS]).squeeze(-1)


class TooManyLogits(Right):
    def setup(self):
        super().setup()
        self.pi = nn.Linear(3, 5)


class NoLogits(Right):
    def _forward(self, batch, **kwargs):
        return {"logits": self.pi(batch[Columns.OBS])}


class AnotherColumn(Right):
    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch["observation"])}


class ValuesWithAnAxis(Right):
    def compute_values(self, batch, embeddings=None):
        return self.vf(batch[Columns.OBS])


class OneValue(Right):
    def compute_values(self, batch, embeddings=None):
        return self.vf(batch[Columns.OBS]).mean()


class Forgetful(Right):
    def get_initial_state(self):
        return {"h": np.zeros(2, np.float32)}


class TrainsOn(Right):
    """Acts rightly; when trained, it puts out something else."""

    def _forward_train(self, batch, **kwargs):
        return self.spoil(self.pi(batch[Columns.OBS]))


class TooFewInTraining(TrainsOn):
    def spoil(self, logits):
        return {Columns.ACTION_DIST_INPUTS: logits[..., :2]}


class OneRowInTraining(TrainsOn):
    def spoil(self, logits):
        return {Columns.ACTION_DIST_INPUTS: logits.mean(0, keepdim=True)}


class NothingInTraining(TrainsOn):
    def spoil(self, logits):
        return {}


class ValuesWithAnAxisInTraining(Right):
    def compute_values(self, batch, embeddings=None):
        values = self.vf(batch[Columns.OBS])
        return values if torch.is_grad_enabled() else values.squeeze(-1)


class OtherInputs(Right):
    def setup(self):
        super().setup()
        self.pi = nn.Linear(5, 3)


class ReturnsNone(Right):
    def _forward(self, batch, **kwargs):
        self.pi(batch[Columns.OBS])


class ReturnsTensor(Right):
    def _forward(self, batch, **kwargs):
        return self.pi(batch[Columns.OBS])


class AnotherColumnForValues(Right):
    def compute_values(self, batch, embeddings=None):
        return self.vf(batch["critic_obs"])


class OwnKey(Right):
    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS]) * {}["speed"]}


class DropsRows(Right):
    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS])[:0]}


class Detached(Right):
    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS]).detach()}

    def compute_values(self, batch, embeddings=None):
        return super().compute_values(batch).detach()


class HalfPrecision(Right):
    def setup(self):
        super().setup()
        self.bfloat16()


class NoMemory(Right):
    def setup(self):
        with torch.device("meta"):
            super().setup()


class HalfPrecisionThatFits(HalfPrecision):
    def _forward(self, batch, **kwargs):
        return super()._forward({Columns.OBS: batch[Columns.OBS].bfloat16()})

    def compute_values(self, batch, embeddings=None):
        return super().compute_values({Columns.OBS: batch[Columns.OBS].bfloat16()})


def trained(module_class, policies="shared"):
    config = (
        PPOConfig()
        .environment(SpacesEnv, env_config={"observation_space": BOX, "action_space": spaces.Discrete(3)})
        .multi_agent(policies=policies)
        .rl_module(rl_module_spec=RLModuleSpec(module_class))
        .training(train_batch_size_per_learner=20, minibatch_size=20, num_epochs=1, use_kl_loss=False)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    try:
        algo.train()
    finally:
        algo.stop()


@pytest.mark.few(22)
@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize(
    ("module_class", "message"),
    [
        (
            TooManyLogits,
            r"(?s)'(default_policy|a)'.*'action_dist_inputs'.*\(\d, 5\).*TorchCategorical.*\b3\b",
        ),
        (NoLogits, r"(?s)'(default_policy|a)'.*\['logits'\].*'actions'.*'action_dist_inputs'"),
        (AnotherColumn, r"(?s)AnotherColumn.*'observation'.*\(a KeyError\).*\['obs'\]"),
        (
            ValuesWithAnAxis,
            r"(?s)compute_values.*\(\d+, 1\).*\(\d+,\)",
        ),
        (OneValue, "compute_values"),
        (TooFewInTraining, r"(?s)'action_dist_inputs'.*\(\d+, 2\).*TorchCategorical.*\b3\b.*\(\d+,\)"),
        (OneRowInTraining, r"(?s)'action_dist_inputs'.*\(1, 3\).*\(\d+,\).*Discrete"),
        (NothingInTraining, r"(?s)forward_train.*'action_dist_inputs'"),
        (ValuesWithAnAxisInTraining, r"(?s)compute_values.*\(\d+, 1\).*\(\d+,\)"),
        (
            OtherInputs,
            r"(?s)\(OtherInputs\).*_forward.*RuntimeError.*'obs'.*\(\d, 3\).*Box",
        ),
        (ReturnsNone, r"(?s)\(ReturnsNone\).*_forward.*NoneType"),
        (ReturnsTensor, r"(?s)\(ReturnsTensor\).*_forward"),
        (
            AnotherColumnForValues,
            r"(?s)\(AnotherColumnForValues\).*compute_values.*'critic_obs'.*\bobs\b",
        ),
        (OwnKey, r"(?s)\(OwnKey\).*_forward.*'speed'.*\(a KeyError\)"),
        (DropsRows, r"(?s)'action_dist_inputs'.*\(0, 3\)"),
        (Detached, "detach"),
        (Forgetful, "'state_out'"),
        (
            HalfPrecision,
            r"(?s)torch.bfloat16.*torch.float32.*autocast_dtype",
        ),
        (NoMemory, r"(?s)'pi.weight'.*NoMemory"),
    ],
)
def test_a_module_that_does_not_fit_is_named_with_what_is_wrong(module_class, message, policies):
    with pytest.raises((MarlConnectorsError, KeyError), match=message):
        trained(module_class, policies)


@pytest.mark.parametrize("module_class", [Right, HalfPrecisionThatFits])
def test_a_module_that_fits_is_trained(module_class):
    trained(module_class)


class Group(ColumnGroup):
    """Only what the check looks at."""

    def __init__(self, **columns):
        dict.__init__(self, columns)
        self.module_ids = ("m",)


NESTED = spaces.Dict({"a": BOX, "b": spaces.Tuple([BOX, spaces.Discrete(2)])})


@pytest.mark.parametrize(
    ("observations", "found"),
    [
        ({"a": torch.zeros(2, 3)}, r"\{'a': \(3,\)\}"),
        ({"a": torch.zeros(2, 3), "b": (torch.zeros(2, 3),)}, r"'b': \(\(3,\),\)"),
        ({"a": torch.zeros(2, 3), "b": (torch.zeros(2, 4), torch.zeros(2))}, r"'b': \(\(4,\), \(\)\)"),
        (torch.zeros(2, 3), r"\(3,\)"),
    ],
)
def test_a_part_of_an_observation_that_does_not_fit_is_shown(observations, found):
    module = Right(NESTED, spaces.Discrete(3))
    right = {"a": torch.zeros(2, 3), "b": (torch.zeros(2, 3), torch.zeros(2))}
    check_observations(Group(obs=right), {"m": module}, train=False)
    with pytest.raises(ModuleError, match=f"(?s)'m'.*Dict.*{found}"):
        check_observations(Group(obs=observations), {"m": module}, train=True)


def test_parameters_on_another_device_are_named():
    module = Right(BOX, spaces.Discrete(3)).to("meta")
    with pytest.raises(ModuleError, match=r"(?s)meta.*cpu"):
        check_observations(Group(obs=torch.zeros(2, 3)), {"m": module}, train=False)
