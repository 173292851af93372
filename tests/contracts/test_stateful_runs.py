"""Learners, episodes and checkpoints of users with stateful modules."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.modules.recurrent_modules import GRUModule, LSTMModule, StatelessModule
from helpers.modules.recurrent_reference import NotingLearner, Settings, SlowPPO, agent_episodes, gradients_of, unrolled
from marl_connectors import (
    AddInfosFromEpisodesToTrainBatch,
    ConnectorV2,
    MultiRLModuleSpec,
    RLModuleSpec,
    SingleAgentEpisode,
)
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.learner.learner import Learner
from marl_connectors.rl_module.apis import ValueFunctionAPI
from marl_connectors.rl_module.layers import Linear
from marl_connectors.rl_module.rl_module import RLModule


class OneAgent(gymnasium.Env):
    """Random observations, never used but for its spaces where episodes are made by hand."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        observation = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return observation, float(action) - 1.0, self.t == 7, False, {}


def one_agent_config(module_class=GRUModule, max_seq_len=3, **training):
    config = small_config(OneAgent)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, model_config={"max_seq_len": max_seq_len}))
    return config.training(
        **{"gamma": 0.9, "lambda_": 0.8, "lr": 1e-3, "minibatch_size": 5, "learner_class": NotingLearner, **training}
    )


def mixed_config(classes, **training):
    """Agents of ``LifeEnv``, each with a module of its own; ``{agent_id: module class}``."""
    specs = {
        agent: RLModuleSpec(
            module_class=cls, model_config={"fcnet_hiddens": (4,)} if cls is DefaultPPORLModule else {"max_seq_len": 3}
        )
        for agent, cls in classes.items()
    }
    config = small_config(LifeEnv, env_config={"agents": list(classes), "die": 0.1, "join": 0.4, "max_steps": 9})
    config.multi_agent(policies="independent")
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8)
    return config.training(**{"lr": 1e-2, "num_epochs": 2, "minibatch_size": 6, **training})


FOUR = {"a": GRUModule, "b": LSTMModule, "c": DefaultPPORLModule, "d": DefaultPPORLModule}


def weights(algo):
    return {m: {k: v.clone() for k, v in state.items()} for m, state in algo.rl_module.get_state().items()}


def changed(one, other):
    return {m for m in one if any(not torch.equal(one[m][k], other[m][k]) for k in one[m])}


# Episodes that users made.


def made_by_hand(steps, seed, *, numpy=False, terminated=True, states=None, t_started=0):
    """An episode of random numbers; its ``state_out`` are random too, or there are none."""
    rng = np.random.default_rng(seed)
    extra = {
        "action_dist_inputs": list(rng.normal(size=(steps, 3)).astype(np.float32)),
        "action_logp": list(rng.uniform(-2, -0.5, steps).astype(np.float32)),
    }
    if states:
        extra["state_out"] = [{"h": rng.normal(size=4).astype(np.float32)} for _ in range(steps)]
    episode = SingleAgentEpisode(
        observations=list(rng.uniform(-1, 1, (steps + 1, 2)).astype(np.float32)),
        observation_space=OneAgent.observation_space,
        actions=[int(a) for a in rng.integers(3, size=steps)],
        action_space=OneAgent.action_space,
        rewards=[float(r) for r in rng.normal(size=steps)],
        terminated=terminated,
        extra_model_outputs=extra,
        t_started=t_started,
        len_lookback_buffer=0,
    )
    return episode.to_numpy() if numpy else episode


def assert_update_equals_reference(config, episodes):
    algo = config.build_algo()
    settings = Settings(**{name: getattr(config, name) for name in Settings.__dataclass_fields__})
    max_seq_len = config.rl_module_spec.model_config["max_seq_len"]
    reference = SlowPPO(dict(algo.rl_module.items()), max_seq_len, {"default_policy": settings})
    results = algo.learner.update(episodes=episodes)["default_policy"]
    parts = agent_episodes(episodes)["default_policy"]
    terms, _ = reference.update("default_policy", parts, algo.learner.noted, 0.0)
    assert {name: results[name] for name in terms} == pytest.approx(terms, abs=1e-5, rel=1e-5)
    for name, parameter in reference.modules["default_policy"].named_parameters():
        now = algo.rl_module["default_policy"].get_parameter(name).detach().double()
        torch.testing.assert_close(now, parameter.detach(), atol=1e-5, rtol=0)
    return algo


@pytest.mark.few(6)
@pytest.mark.parametrize("numpy", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize("module_class", [GRUModule, LSTMModule])
@pytest.mark.parametrize("max_seq_len", [1, 3, 12])
def test_hand_made_episodes_without_states_begin_every_sequence_in_the_initial_state(numpy, module_class, max_seq_len):
    lengths = (1, 1, 2, 7, 4)
    episodes = [made_by_hand(n, i, numpy=numpy, terminated=i % 2 == 0) for i, n in enumerate(lengths)]
    assert_update_equals_reference(one_agent_config(module_class, max_seq_len), episodes)


@pytest.mark.parametrize("numpy", [False, True], ids=["lists", "arrays"])
def test_hand_made_episodes_with_states_begin_sequences_in_those(numpy):
    episodes = [made_by_hand(n, i, numpy=numpy, states=True) for i, n in enumerate((1, 2, 7, 4))]
    assert_update_equals_reference(one_agent_config(), episodes)


def test_one_step_episodes_alone():
    assert_update_equals_reference(one_agent_config(), [made_by_hand(1, i) for i in range(8)])


def test_episodes_of_a_runner_as_lists_and_back_give_the_same_update():
    results, after = [], []
    for rebuild in (False, True):
        algo = one_agent_config().build_algo()
        algo.env_runner.sample(num_timesteps=4)
        episodes = algo.env_runner.sample(num_timesteps=20)
        if rebuild:
            episodes = [SingleAgentEpisode.from_state(episode.get_state()) for episode in episodes]
        results.append(algo.learner.update(episodes=episodes))
        after.append(weights(algo))
    assert results[0] == results[1]
    assert changed(*after) == set()


# Losses of users.


class Imitation(Learner):
    """Makes the taken actions likelier; only real steps count."""

    def build(self):
        self.seen = {}
        super().build()

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls().from_logits(fwd_out["action_dist_inputs"])
        logp = distribution.logp(batch["actions"])
        mask = batch["loss_mask"]
        assert mask.any(), "a minibatch has something to learn from"
        self.seen.setdefault(module_id, []).append(int(mask.sum()))
        return -logp[mask].mean()


class GradientsOfImitation(Imitation):
    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients):
        self.gradients = gradients_of(self.module[module_id])


@pytest.mark.parametrize("max_seq_len", [1, 4, 12])
def test_a_loss_of_the_users_own_masks_what_is_not_real(max_seq_len):
    config = one_agent_config(LSTMModule, max_seq_len, learner_class=GradientsOfImitation, minibatch_size=None)
    algo = config.build_algo()
    episodes = [made_by_hand(n, i) for i, n in enumerate((1, 4, 8, 3))]
    module = SlowPPO(dict(algo.rl_module.items()), max_seq_len, {"default_policy": Settings()}).modules[
        "default_policy"
    ]
    logp = []
    for episode in episodes:
        for begin in range(0, len(episode), max_seq_len):
            steps = range(begin, min(begin + max_seq_len, len(episode)))
            inputs, _ = unrolled(module, [episode.get_observations(t) for t in steps], module.get_initial_state())
            logp += [torch.log_softmax(row, -1)[episode.get_actions(t)] for row, t in zip(inputs, steps, strict=True)]
    (-torch.stack(logp).mean()).backward()
    figures = algo.learner.update(episodes=episodes)["default_policy"]
    assert figures["total_loss"] == pytest.approx(-torch.stack(logp).mean().item(), abs=1e-6)
    assert figures["num_module_steps_trained"] == 16
    for name, gradient in gradients_of(module).items():
        torch.testing.assert_close(algo.learner.gradients[name].double(), gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("max_seq_len", [1, 4])
def test_no_minibatch_is_of_last_observations_alone(max_seq_len):
    config = one_agent_config(GRUModule, max_seq_len, learner_class=Imitation, minibatch_size=1, num_epochs=2)
    algo = config.build_algo()
    figures = algo.learner.update(episodes=[made_by_hand(n, i) for i, n in enumerate((4, 8, 4))])["default_policy"]
    assert sum(algo.learner.seen["default_policy"]) == figures["num_module_steps_trained"] == 32


def test_a_loss_gets_the_info_dicts_of_its_own_steps():
    class ReadsInfos(Imitation):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            begin = 0
            for row, length in zip(batch["obs"], batch["seq_lens"].tolist(), strict=True):
                infos = batch["infos"][begin : begin + length]
                assert [info["seen"] for info in infos] == row[:length, 0].tolist()
                begin += length
            assert begin == len(batch["infos"])
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    episodes = [made_by_hand(n, i, numpy=True) for i, n in enumerate((4, 8, 3))]
    for episode in episodes:
        episode.storage.set_column("infos", [{"seen": float(x)} for x in episode.get_observations()[:, 0]])
    config = one_agent_config(max_seq_len=3, learner_class=ReadsInfos, minibatch_size=5)
    config.learners(learner_connector=lambda: AddInfosFromEpisodesToTrainBatch())
    assert config.build_algo().learner.update(episodes=episodes)


def test_each_epoch_and_each_update_has_an_order_of_its_own_unless_that_is_switched_off():
    def orders(shuffle):
        config = one_agent_config(minibatch_size=None, num_epochs=2, shuffle_batch_per_epoch=shuffle)
        algo = config.build_algo()
        for _ in range(2):
            algo.learner.update(episodes=[made_by_hand(30, 0)])
        return [[sequence.tobytes() for sequence in minibatch.sequences] for minibatch in algo.learner.noted]

    shuffled = orders(True)
    assert shuffled == orders(True)
    assert len({tuple(order) for order in shuffled}) == 4
    assert len({tuple(sorted(order)) for order in shuffled}) == 1
    kept = orders(False)
    assert kept == [kept[0]] * 4
    assert kept[0][0] == np.stack([made_by_hand(30, 0).get_observations(t) for t in range(3)]).tobytes()


class BurnIn(ConnectorV2):
    """The first two steps of each chunk only warm the module up; as a piece on columns."""

    def columns(self, c, xp):
        first = np.cumsum(c.rows.counts) - c.rows.counts
        mask = c["loss_mask"].copy()
        mask[np.concatenate([first, first + 1])[: 2 * len(first)]] = False
        c["loss_mask"] = mask


class BurnInItems(ConnectorV2):
    """The same as a piece on items."""

    def __call__(self, *, batch, **kwargs):
        for key, items in batch["loss_mask"].items():
            batch["loss_mask"][key] = [False, False, *items[2:]]
        return batch


@pytest.mark.parametrize("module_class", [GRUModule, StatelessModule])
@pytest.mark.parametrize("piece", [BurnIn, BurnInItems])
def test_steps_that_a_piece_has_masked_lead_the_module_and_reach_no_loss(module_class, piece):
    episodes = [made_by_hand(n, i) for i, n in enumerate((6, 9, 2))]  # nothing of the last one counts

    def updated(steps_to_spoil, **settings):
        config = one_agent_config(module_class, 5, minibatch_size=None, **settings)
        algo = config.learners(learner_connector=lambda: piece()).build_algo()
        given = [made_by_hand(n, i) for i, n in enumerate((6, 9, 2))]
        for episode in given:
            for step in steps_to_spoil:
                old = episode.get_extra_model_outputs("action_logp", step)
                episode.set_extra_model_outputs(key="action_logp", new_data=old + 1, at_indices=step)
        results = algo.learner.update(episodes=given)["default_policy"]
        return results, weights(algo), algo

    results, after, algo = updated(())
    assert results["num_module_steps_trained"] == 4 + 7
    assert changed(after, updated((0, 1))[1]) == set(), "how likely masked actions were does not matter"
    assert changed(after, updated((1,))[1]) == set()
    (batch,) = algo.learner.make_batch(episodes).groups
    counted = batch.get("loss_mask", torch.ones(len(batch["obs"]), dtype=torch.bool))
    assert counted.sum() == 11
    assert len(counted) == (17 if module_class is GRUModule else 11)
    assert float(batch["advantages"][counted].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(batch["advantages"][counted].std(correction=0)) == pytest.approx(1.0, abs=1e-6)


# Which modules.


def test_a_frozen_stateful_module_stays_as_it_is_and_acts():
    algo = mixed_config(FOUR).multi_agent(policies_to_train=["b", "c"]).build_algo()
    before = weights(algo)
    results = algo.train()
    assert set(results["learners"]) == changed(before, weights(algo)) == {"b", "c"}
    episodes = agent_episodes(algo.env_runner.sample())
    assert all("state_out" in episode.storage.extra_keys() for m in "ab" for episode in episodes[m])


def test_a_bucket_of_stateless_modules_beside_stateful_ones_runs_stacked():
    class Counting(PPOLearner):
        stacked = 0

        def compute_loss_for_stacked_modules(self, **given):
            self.stacked += 1
            return super().compute_loss_for_stacked_modules(**given)

    # Nobody dies, so that the modules of the bucket have equally many rows.
    config = mixed_config(FOUR, learner_class=Counting)
    config.environment(env_config={"agents": list(FOUR), "max_steps": 5})
    algo = config.build_algo()
    assert [bucket.module_ids for bucket in algo.rl_module.buckets] == [("c", "d")]
    before = weights(algo)
    results = algo.train()["learners"]
    assert changed(before, weights(algo)) == set(results) == set(FOUR)
    assert algo.learner.stacked > 0
    alone = mixed_config(FOUR).environment(env_config={"agents": list(FOUR), "max_steps": 5}).build_algo()
    for module_id, figures in alone.train()["learners"].items():
        assert figures == pytest.approx(results[module_id], abs=1e-5, rel=1e-6)


class Elman(RLModule, ValueFunctionAPI):
    """A recurrent module that may run stacked: it counts axes from the back."""

    stackable = True

    def setup(self):
        generator = torch.Generator().manual_seed(0)
        self.inputs, self.carried = Linear(self.observation_space.shape[0], 4), Linear(4, 4)
        self.pi, self.vf = Linear(4, self.action_space.n), Linear(4, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))

    def get_initial_state(self):
        return {"h": np.full(4, 0.1, np.float32)}

    def _steps(self, batch):
        h = batch["state_in"]["h"]
        for observations in batch["obs"].unbind(-2):
            h = torch.tanh(self.inputs(observations) + self.carried(h))
            yield h

    def _forward(self, batch, **kwargs):
        *_, last = steps = list(self._steps(batch))
        return {"action_dist_inputs": torch.stack([self.pi(h) for h in steps], -2), "state_out": {"h": last}}

    def compute_values(self, batch, embeddings=None):
        return torch.stack([self.vf(h) for h in self._steps(batch)], -2).squeeze(-1)


class ElmanAlone(Elman):
    stackable = False


def test_stateful_modules_of_a_bucket_learn_what_they_learn_alone():
    found = []
    for cls in (Elman, ElmanAlone):
        algo = mixed_config({"a": cls, "b": cls, "c": GRUModule}, grad_clip=0.5, lr=1e-3).build_algo()
        assert [bucket.module_ids for bucket in algo.rl_module.buckets] == ([("a", "b")] if cls is Elman else [])
        results = [algo.train()["learners"] for _ in range(3)]
        found.append((results, weights(algo)))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert {m: pytest.approx(figures, abs=1e-4, rel=1e-4) for m, figures in one.items()} == other
    for module_id, state in found[0][1].items():
        for name, value in state.items():
            torch.testing.assert_close(value, found[1][1][module_id][name], atol=1e-5, rtol=0)


# Checkpoints.


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(tmp_path, iterations):
    training = {"entropy_coeff": [[0, 0.1], [100, 0.0]], "grad_clip": 0.5, "kl_target": 1e-5}
    config = mixed_config(FOUR, **training)
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    algo.save_to_path(tmp_path / "c")
    loaded = Algorithm.from_checkpoint(tmp_path / "c", config=config)
    restored = config.build_algo()
    restored.train()
    restored.restore_from_path(tmp_path / "c")
    for _ in range(2):
        expected = algo.train()["learners"]
        assert loaded.train()["learners"] == restored.train()["learners"] == expected
        assert changed(weights(algo), weights(loaded)) == changed(weights(algo), weights(restored)) == set()
