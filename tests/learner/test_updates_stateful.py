"""Updates of recurrent modules: what is computed over sequences equals a slow account, and padding takes no part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.modules.recurrent_modules import GRUModule, LSTMModule
from helpers.modules.recurrent_reference import NotingLearner, Settings, SlowPPO, agent_episodes
from marl_connectors import ConnectorV2, MultiRLModuleSpec, RLModuleSpec
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.trees import leaves

GAMMA, LAMBDA = 0.9, 0.8
SHARED = {"fcnet_hiddens": (4,), "vf_share_layers": True}


class Lives(LifeEnv):
    """Agents that die, are truncated, join late and come back; rewards of about 1."""

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {a: (r - 100.0) / 20.0 for a, r in rewards.items()}, *rest


def lives_config(max_seq_len=3, module_classes=None, overrides=None, **training):
    """Agents a and b share a GRU, c has an LSTM, d and e an MLP each, of one bucket."""
    model = {"max_seq_len": max_seq_len}
    specs = module_classes or {
        "gru": RLModuleSpec(module_class=GRUModule, model_config=model),
        "lstm": RLModuleSpec(module_class=LSTMModule, model_config={**model, "seed": 1}),
        "d": RLModuleSpec(module_class=DefaultPPORLModule, model_config=SHARED),
        "e": RLModuleSpec(module_class=DefaultPPORLModule, model_config=SHARED),
    }
    life = {"agents": list("abcde"), "die": 0.1, "join": 0.4, "max_steps": 9}
    config = small_config(Lives, env_config=life)
    config.multi_agent(
        policies=list(specs),
        policy_mapping_fn=lambda agent_id, episode, **kw: {"a": "gru", "b": "gru", "c": "lstm"}.get(agent_id, agent_id),
    )
    config.rl_module(
        rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs), algorithm_config_overrides_per_module=overrides or {}
    )
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8)
    return config.training(
        **{
            "gamma": GAMMA,
            "lambda_": LAMBDA,
            "lr": 1e-3,
            "num_epochs": 2,
            "minibatch_size": 12,
            "clip_param": 0.2,
            "vf_loss_coeff": 0.5,
            "kl_coeff": 0.3,
            "learner_class": NotingLearner,
            **training,
        }
    )


def ppo_settings(config, module_id):
    own = config.get_config_for_module(module_id)
    return Settings(**{name: getattr(own, name) for name in Settings.__dataclass_fields__})


def perturbed(algo, seed=0):
    """Moves all weights a little, so that recorded states and outputs are no longer what the modules would give."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in algo.rl_module.values():
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return algo


# An update.


@pytest.mark.slow
@pytest.mark.parametrize("max_seq_len", [1, 3, 12])
@pytest.mark.parametrize(
    "training",
    [
        {"entropy_coeff": [[0, 0.2], [200, 0.0]], "grad_clip": 0.2},
        {"kl_target": 1e-5, "vf_clip_param": 0.5, "overrides": {"lstm": {"minibatch_size": 5, "gamma": 0.5}}},
        {"use_kl_loss": False, "use_critic": False, "overrides": {"d": {"use_critic": True}}},
        {"minibatch_size": None, "lambda_": 1.0, "overrides": {"gru": {"use_critic": False, "entropy_coeff": 0.1}}},
    ],
    ids=["entropy, clip", "kl, value clip", "no critic", "whole batch"],
)
def test_updates_equal_a_slow_reference(max_seq_len, training):
    config = lives_config(max_seq_len, **training)
    algo = perturbed(config.build_algo())
    reference = SlowPPO(
        dict(algo.rl_module.items()), max_seq_len, {m: ppo_settings(config, m) for m in config.policies}
    )
    lengths = set()
    for timestep in (50, 100):  # two chunks of each env in each update
        episodes = algo.env_runner.sample() + algo.env_runner.sample()
        own = agent_episodes(episodes)
        lengths |= {len(episode) for several in own.values() for episode in several}
        results = algo.learner.update(episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": timestep})
        noted, algo.learner.noted = algo.learner.noted, []
        assert set(results) == set(own) == {"gru", "lstm", "d", "e"}
        for module_id, parts in own.items():
            minibatches = [m for m in noted if m.module_id == module_id]
            entropy_coeff = ppo_settings(config, module_id).entropy_coeff
            if isinstance(entropy_coeff, list):
                entropy_coeff = 0.2 * (1 - timestep / 200)
            terms, gradients = reference.update(module_id, parts, minibatches, entropy_coeff)
            for name, value in terms.items():
                assert results[module_id][name] == pytest.approx(value, abs=1e-5, rel=1e-5), (module_id, name)
            for minibatch, expected in zip(minibatches, gradients, strict=True):
                for name, gradient in expected.items():
                    torch.testing.assert_close(minibatch.gradients[name].double(), gradient, atol=1e-5, rtol=1e-4)
            for name, parameter in reference.modules[module_id].named_parameters():
                now = algo.rl_module[module_id].get_parameter(name)
                torch.testing.assert_close(now.detach().double(), parameter.detach(), atol=1e-5, rtol=0)
            assert algo.learner.kl_coeff(module_id) == pytest.approx(reference.kl_coeffs[module_id])
            assert results[module_id]["num_module_steps_trained"] == 2 * sum(map(len, parts))
    assert len(lengths) > 4


# Values and advantages.


def rows_of_batch(algo, episodes, standardize=False):
    """``{module_id: {observation: row}}`` of a train batch; a row is a dict of its columns."""
    algo.learner.pipeline["GeneralAdvantageEstimation"].standardize = standardize
    found = {}
    for group in algo.learner.make_batch(episodes).groups:
        for module_id, begin, end in zip(group.module_ids, group.splits, group.splits[1:], strict=False):
            for i in range(begin, end):
                row = {name: column[i].numpy() for name, column in group.items()}
                found.setdefault(module_id, {})[row["obs"].tobytes()] = row
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("max_seq_len", [1, 4, 12])
@pytest.mark.parametrize("standardize", [False, True])
def test_values_are_those_of_chunks_unrolled_from_the_recorded_states(max_seq_len, standardize):
    config = lives_config(max_seq_len)
    algo = perturbed(config.build_algo())
    reference = SlowPPO(
        dict(algo.rl_module.items()), max_seq_len, {m: ppo_settings(config, m) for m in config.policies}
    )
    ends, beginnings = set(), set()
    for _ in range(3):
        episodes = algo.env_runner.sample()
        batch = rows_of_batch(algo, episodes, standardize)
        for module_id, parts in agent_episodes(episodes).items():
            assert len(batch[module_id]) == sum(map(len, parts)), "real steps only"
            advantages, targets = reference.advantages(module_id, parts, standardize)
            for episode, gains, wanted in zip(parts, advantages, targets, strict=True):
                ends.add((episode.is_terminated, episode.is_truncated))
                beginnings.add(episode.t_started > 0)
                rows = [batch[module_id][episode.get_observations(t).tobytes()] for t in range(len(episode))]
                np.testing.assert_allclose([row["advantages"] for row in rows], gains, atol=1e-5)
                np.testing.assert_allclose([row["value_targets"] for row in rows], wanted, atol=1e-5)
            if standardize:
                real = np.array([row["advantages"] for row in batch[module_id].values()])
                assert abs(real.mean()) < 1e-5
                assert abs(real.std() - 1) < 1e-5
    assert ends == {(False, False), (True, False), (False, True)}
    assert beginnings == {False, True}


@pytest.mark.slow
def test_before_anything_has_changed_sequences_give_what_was_recorded_whatever_their_length():
    for max_seq_len in (1, 2, 5, 12):
        algo = lives_config(max_seq_len, num_epochs=1, minibatch_size=None).build_algo()
        algo.env_runner.sample()
        for figures in algo.learner.update(episodes=algo.env_runner.sample()).values():
            # All ratios are 1, so the surrogate is the mean of standardised advantages.
            assert figures["policy_loss"] == pytest.approx(0.0, abs=1e-6)
            assert figures["mean_kl_loss"] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.few(1)
@pytest.mark.parametrize("use_critic", [True, False])
def test_the_pipeline_on_items_gives_the_same_batch(use_critic):
    algo = lives_config(4, use_critic=use_critic).build_algo()
    algo.env_runner.sample()
    episodes = algo.env_runner.sample()
    groups = algo.learner.make_batch(episodes).groups
    items = algo.learner.pipeline(rl_module=algo.rl_module, batch={}, episodes=episodes)
    by_module = {module_id: columns for group in groups for module_id, columns in group.module_columns()}
    assert set(items) == set(by_module) == set(algo.config.policies)
    for module_id, columns in by_module.items():
        given = items[module_id]
        assert set(given) == set(columns) >= {"advantages", "value_targets"}
        # Agents that share a module stand in another order, so sequences are sorted by their first observations.
        orders = [batch["obs"].flatten(1)[:, 0].argsort() for batch in (given, columns)]
        for name, column in columns.items():
            for one, other in zip(leaves(given[name]), leaves(column), strict=True):
                torch.testing.assert_close(one[orders[0]].double(), other[orders[1]].double(), atol=1e-5, rtol=0)


# Padding.


class PlantInRows(ConnectorV2):
    """Writes nonsense into the rows of last observations, whose actions and the like mean nothing."""

    def __init__(self, value):
        super().__init__()
        self.value, self.planted = value, 0

    def columns(self, c, xp):
        last = torch.from_numpy(~c.rows.acted)
        self.planted += int(last.sum())
        for name, column in c.items():
            if name not in ("obs", "loss_mask"):
                c[name] = nonsense(column, last, self.value)


class PlantInPadding(ConnectorV2):
    """Writes nonsense behind the end of each sequence of ``[S, L]`` tensors."""

    def __init__(self, value):
        super().__init__()
        self.value, self.planted = value, 0

    def __call__(self, *, batch, **kwargs):
        for columns in batch.values():
            if "seq_lens" in columns:
                length = columns["loss_mask"].shape[1]
                behind = torch.arange(length) >= columns["seq_lens"][:, None]
                self.planted += int(behind.sum())
                for name in set(columns) - {"seq_lens", "state_in"}:
                    columns[name] = nonsense(columns[name], behind, self.value)
        return batch


class PlantInItems(ConnectorV2):
    """The same while each sequence is an item of its own, ``[L, ...]``."""

    def __init__(self, value):
        super().__init__()
        self.value, self.planted = value, 0

    def __call__(self, *, batch, **kwargs):
        for key, lengths in batch["seq_lens"].items():
            for name in set(batch) - {"seq_lens", "state_in"}:
                for i, length in enumerate(lengths):
                    item = torch.as_tensor(batch[name][key][i])
                    behind = torch.arange(len(item)) >= length
                    self.planted += int(behind.sum())
                    batch[name][key][i] = nonsense(item, behind, self.value).numpy()
        return batch


def nonsense(column, where, value):
    planted = column.clone()
    planted[where] = {torch.float32: value, torch.bool: True}.get(column.dtype, 10**9)
    return planted


class PlantInLoss(NotingLearner):
    """The loss reads nonsense wherever ``loss_mask`` is False, also in what the module put out there."""

    value = float("nan")

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        if "loss_mask" in batch:
            masked = ~batch["loss_mask"]
            names = set(batch) - {"obs", "loss_mask", "seq_lens", "state_in"}
            given = {name: nonsense(batch[name], masked, self.value) for name in names}
            batch = {**dict(batch), **given}
            inputs = fwd_out["action_dist_inputs"]
            planted = torch.where(masked[..., None], torch.full_like(inputs, self.value), inputs)
            fwd_out = {**fwd_out, "action_dist_inputs": planted}
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def outcome(place=None, piece=None, **training):
    """Weights, gradients and figures after an update with a piece in the learner pipeline."""
    algo = lives_config(4, grad_clip=0.5, **training).build_algo()
    algo.env_runner.sample()
    if piece is not None and place is None:
        algo.learner.pipeline.append(piece)
    elif piece is not None:
        algo.learner.pipeline.insert_before(place, piece)
    results = algo.learner.update(episodes=algo.env_runner.sample())
    gradients = [g for m in algo.learner.noted for g in m.gradients.values()]
    weights = [p for state in algo.rl_module.get_state().values() for p in state.values()]
    return gradients, weights, results


@pytest.fixture(scope="module")
def untouched():
    return outcome()


def assert_same_outcome(found, expected):
    assert found[2] == expected[2]
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert len(ours) == len(theirs) > 10
        for one, other in zip(ours, theirs, strict=True):
            assert torch.isfinite(one).all()
            assert torch.equal(one, other), "bit for bit"


@pytest.mark.few(1)
@pytest.mark.parametrize("value", [float("nan"), 1e30], ids=str)
@pytest.mark.parametrize(
    ("place", "piece_class"),
    [
        ("GeneralAdvantageEstimation", PlantInRows),
        ("GeneralAdvantageEstimation", PlantInPadding),
        (None, PlantInPadding),
        ("AgentToModuleMapping", PlantInItems),
    ],
    ids=["rows of last observations", "before advantages", "after advantages", "items"],
)
def test_nonsense_in_padding_changes_nothing(untouched, place, piece_class, value):
    piece = piece_class(value)
    assert_same_outcome(outcome(place, piece), untouched)
    assert piece.planted > 10


@pytest.mark.few(1)
@pytest.mark.parametrize("value", [float("nan"), 1e30], ids=str)
def test_nonsense_in_what_a_loss_is_given_changes_nothing(untouched, value):
    planting = type("Planting", (PlantInLoss,), {"value": value})
    assert_same_outcome(outcome(learner_class=planting), untouched)
