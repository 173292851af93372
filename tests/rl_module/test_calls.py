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
            r"'(default_policy|a)' output 'action_dist_inputs' of shape \(\d, 5\), but TorchCategorical needs 3",
        ),
        (NoLogits, r"'(default_policy|a)' output \['logits'\], but neither 'actions' nor 'action_dist_inputs'"),
        (AnotherColumn, r"AnotherColumn.* found no 'observation' \(a KeyError\).*columns \['obs'\]: read one of"),
        (
            ValuesWithAnAxis,
            r"compute_values of module '.*' returned \(\d+, 1\), expected .* \(\d+,\): one number for each row",
        ),
        (OneValue, r"compute_values of module '.*' returned \(\), expected a tensor of shape"),
        (TooFewInTraining, r"'action_dist_inputs' of shape \(\d+, 2\), but TorchCategorical needs 3 .*rows \(\d+,\)"),
        (OneRowInTraining, r"'action_dist_inputs' of shape \(1, 3\), but .* rows \(\d+,\) for actions of Discrete"),
        (NothingInTraining, r"forward_train returned \[\], but no 'action_dist_inputs'"),
        (ValuesWithAnAxisInTraining, r"compute_values of module '.*' returned \(\d+, 1\), expected .* \(\d+,\)"),
        (
            OtherInputs,
            r"module '.*' \(OtherInputs\): its _forward.* raised RuntimeError: .*'obs': \(\d, 3\).*built for .*Box",
        ),
        (ReturnsNone, r"module '.*' \(ReturnsNone\): its _forward.* returned NoneType, expected a dict"),
        (ReturnsTensor, r"module '.*' \(ReturnsTensor\): its _forward.* returned Tensor, expected a dict"),
        (
            AnotherColumnForValues,
            r"module '.*' \(AnotherColumnForValues\): its compute_values .*no (column )?'critic_obs'.*obs",
        ),
        (OwnKey, r"module '.*' \(OwnKey\): its _forward.* found no 'speed' \(a KeyError\).*read one of these"),
        (DropsRows, r"module '.*' output 'action_dist_inputs' of shape \(0, 3\) for \d rows"),
        (Detached, r"loss of '.*' has no gradient.*detach"),
        (Forgetful, r"output no 'state_out'"),
        (
            HalfPrecision,
            r"parameters are torch.bfloat16, its observations torch.float32: convert these .*autocast_dtype",
        ),
        (NoMemory, r"the parameter 'pi.weight' of NoMemory is on the meta device, so it has no values"),
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
        (torch.zeros(2, 3), r"shape \(3,\)"),
    ],
)
def test_a_part_of_an_observation_that_does_not_fit_is_shown(observations, found):
    module = Right(NESTED, spaces.Discrete(3))
    right = {"a": torch.zeros(2, 3), "b": (torch.zeros(2, 3), torch.zeros(2))}
    check_observations(Group(obs=right), {"m": module}, train=False)
    with pytest.raises(
        ModuleError, match=f"module 'm': it was built for Dict.*but the learner pipeline gives.*{found}"
    ):
        check_observations(Group(obs=observations), {"m": module}, train=True)


def test_parameters_on_another_device_are_named():
    module = Right(BOX, spaces.Discrete(3)).to("meta")
    with pytest.raises(ModuleError, match=r"its parameters are on meta, but the env-to-module pipeline .* on cpu"):
        check_observations(Group(obs=torch.zeros(2, 3)), {"m": module}, train=False)
