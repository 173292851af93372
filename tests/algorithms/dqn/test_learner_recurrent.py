"""DQN with an LSTM or GRU: sequences with burn-in from the replay buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.envs.scripted_envs import LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import Algorithm, Columns, ConnectorV2, DQNConfig, OnnxPolicy, load_policy
from marl_connectors.algorithms.off_policy.learner import ReplayedRows
from marl_connectors.errors import ConfigError, LearnerError

BUFFERS = ("EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer")
FRESH = fresh_seeds(12)


def random_dqn(seed, **training):
    rng = np.random.default_rng(seed)
    model = {"use_gru": True, "gru_cell_size": 5} if rng.random() < 0.5 else {"use_lstm": True, "lstm_cell_size": 4}
    given = {
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 20,
        "target_network_update_freq": 30,
        "replay_buffer_config": {"type": BUFFERS[seed % 2], "capacity": [300, 60][int(rng.integers(2))]},
        "lr": 0.01,
        "double_q": bool(rng.integers(2)),
        "dueling": bool(rng.integers(2)),
        "n_step": int(rng.integers(1, 4)),
        "burn_in_len": int(rng.integers(0, 3)),
        "td_error_loss_fn": str(rng.choice(["huber", "mse"])),
        "gamma": 0.9,
    }
    config = DQNConfig().environment(LifeEnv, env_config={"die": 0.1, "join": 0.2, "max_steps": 9})
    config.environment(disable_env_checking=True).training(**(given | training)).debugging(seed=seed)
    config.rl_module(model_config={"fcnet_hiddens": (6,), "max_seq_len": int(rng.integers(3, 7)), **model})
    policies = str(rng.choice(["shared", "independent"]))
    config.multi_agent(policies=policies)
    if policies == "independent":
        config.rl_module(algorithm_config_overrides_per_module={"a": {"gamma": 0.5}, "c": {"gamma": 0.7}})
    config.reporting(min_sample_timesteps_per_iteration=60)
    return config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4)), num_env_workers=0)


def parameters(algo):
    return {name: value.clone() for name, value in algo.rl_module.state_dict().items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_dqn(seed)
    whole = config.build_algo()
    for _ in range(3):
        whole.train()
    resumed = Algorithm.from_checkpoint(whole.save_to_path(tmp_path / "checkpoint"), config=config)
    for _ in range(2):
        assert whole.train()["learners"] == resumed.train()["learners"]
    before, after = parameters(whole), parameters(resumed)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    whole.stop()
    resumed.stop()


def values_by_hand(module, segments, rows, state, target):
    """The values of all actions in the rows of a sequence, one row after another, ``[T, n]``."""
    names = ["encoder", "rnn", "af", "vf"]
    encoder, rnn, af, vf = (getattr(module, f"target_{n}" if target else n, None) for n in names)
    found = []
    for row in rows:
        x, state = rnn(encoder(torch.as_tensor(segments.rollout.columns[Columns.OBS][row])[None])[None], state)
        advantages = af(x[0])[0]
        found.append(advantages if vf is None else vf(x[0])[0, 0] + advantages - advantages.mean())
    return torch.stack(found)


def by_hand(algo, module_id, segments, config):
    """The loss of a module's sequences and their priorities, written with plain loops."""
    module, losses, sizes, config = algo.get_module(module_id), [], [], config.get_config_for_module(module_id)
    columns = segments.rollout.columns
    for i in range(len(segments)):
        first = max(segments.first[i], segments.start[i] - config.burn_in_len)
        given = module.get_initial_state()
        if first > segments.first[i]:
            given = {name: leaf[first - 1] for name, leaf in columns[Columns.STATE_OUT].items()}
        state = {name: torch.as_tensor(leaf)[None] for name, leaf in given.items()}
        rows = range(first, segments.last[i] + 1)
        own, slow = (values_by_hand(module, segments, rows, state, target) for target in (False, True))
        errors = []
        for row in range(segments.start[i], segments.stop[i]):
            steps = min(config.n_step, segments.last[i] - row)
            target = sum(config.gamma**k * columns[Columns.REWARDS][row + k] for k in range(steps))
            if not any(columns[Columns.TERMINATEDS][row + k] for k in range(steps)):
                at = row + steps - first
                best = (own if config.double_q else slow)[at].argmax()
                target = target + config.gamma**steps * slow[at][best].detach()
            error = own[row - first][int(columns[Columns.ACTIONS][row])] - target
            size = error.abs()
            loss = error**2 if config.td_error_loss_fn == "mse" else torch.where(size < 1, 0.5 * error**2, size - 0.5)
            losses.append(loss * columns["weights"][row] if "weights" in columns else loss)
            errors.append(size.item())
        sizes.append(np.mean(errors))
    return torch.stack(losses).mean(), sizes


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", [*range(10), *FRESH])
def test_the_loss_is_that_of_the_papers_with_states_unrolled_by_hand(seed):
    config = random_dqn(seed)
    algo = config.build_algo()
    algo.train()
    sample = algo.replay.draw(algo.replay_buffer.module_ids)
    algo.learner.optimizers.refresh(timestep=0)
    steps = list(algo.learner._steps(algo.learner.make_batch(sample)))
    algo.learner.td_errors = {}
    for step in steps:
        algo.learner._loss_statistics.begin_minibatch(step.epoch)
        with torch.enable_grad():
            found = algo.learner._loss_of(step)
            expected = [by_hand(algo, m, sample.segments[m], config) for m in step.sizes]
            torch.testing.assert_close(found, sum(loss for loss, _ in expected), rtol=1e-4, atol=1e-4)
        for module_id, (_, sizes) in zip(step.sizes, expected, strict=True):
            np.testing.assert_allclose(algo.learner.td_errors[module_id], sizes, rtol=1e-3, atol=1e-4)
    algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(3), *FRESH])
def test_stacked_modules_learn_what_they_learn_one_by_one(seed):
    runs = []
    for stack in (True, False):
        config = random_dqn(seed).multi_agent(policies="independent").learners(stack_modules=stack)
        algo = config.build_algo()
        for _ in range(2):
            algo.train()
        runs.append(parameters(algo))
        algo.stop()
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-2, atol=1e-3)


def test_a_sequence_at_the_beginning_of_an_episode_learns_from_its_first_steps():
    algo = random_dqn(1, burn_in_len=2, n_step=1).multi_agent(policies="shared").build_algo()
    algo.train()
    (group,) = algo.learner.make_batch(algo.replay.draw(["default_policy"])).groups
    counted, times = np.asarray(group[Columns.LOSS_MASK]), np.asarray(group.rows.get(Columns.T))
    assert counted[times == 0].any()
    sequences = group.sequences
    for start, length in zip(sequences.starts, sequences.lengths, strict=True):
        assert counted[start : start + length].any() and not counted[start + length - 1]
    algo.stop()


def test_train_batches_have_about_as_many_steps_as_asked_for():
    algo = random_dqn(0, train_batch_size_per_learner=40, burn_in_len=1, n_step=1).build_algo()
    algo.train()
    length = algo.get_module(algo.replay_buffer.module_ids[0]).config.max_seq_len - 1
    sample = algo.replay.draw(algo.replay_buffer.module_ids)
    assert all(len(own) == -(-40 // length) and own.num_steps <= 40 + length for own in sample.segments.values())
    algo.stop()


@pytest.mark.slow
def test_a_policy_acts_after_training_with_and_without_torch(tmp_path):
    algo = random_dqn(2).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    other = OnnxPolicy(policy.export_onnx(tmp_path / "program"))
    rng = np.random.default_rng(0)
    for _ in range(6):
        observations = {agent: rng.uniform(-1, 1, 2).astype(np.float32) for agent in "abc"}
        assert policy.actions(observations) == other.actions(observations)
    algo.stop()


def test_a_burn_in_without_steps_to_learn_from_is_named():
    with pytest.raises(ConfigError, match="burn_in_len=20"):
        random_dqn(0, burn_in_len=20).build_algo()


def test_steps_that_are_no_sequences_are_refused():
    algo = random_dqn(3).build_algo()
    algo.train()
    episodes = algo.env_runner.sample(num_timesteps=20)
    for given in (episodes, algo.replay_buffer.sample(4)):
        with pytest.raises(LearnerError, match="sequence_lens"):
            algo.learner.update(episodes=given)
    algo.stop()


@pytest.mark.learning
def test_a_memory_task_is_learned_with_a_recurrent_network():
    config = DQNConfig().environment("marl_envs.cart_pole_no_vel_v0")
    config.rl_module(model_config={"fcnet_hiddens": (64,), "use_gru": True, "gru_cell_size": 64, "max_seq_len": 20})
    config.training(
        lr=1e-3,
        burn_in_len=5,
        train_batch_size_per_learner=480,
        num_steps_sampled_before_learning_starts=1000,
        target_network_update_freq=500,
        epsilon=[[0, 1.0], [15_000, 0.05]],
    )
    config.env_runners(num_envs_per_env_runner=8, num_env_workers=0).debugging(seed=0)
    algo = config.build_algo()
    best = 0.0
    for _ in range(60):
        algo.train()
        best = max(best, algo.evaluate(num_episodes=8)["env_runners"]["episode_return_mean"])
        if best > 150:
            break
    assert best > 150  # without memory, about 50
    algo.stop()


def test_within_sequences_only_the_last_step_is_not_bootstrapped_if_it_terminates():
    config = DQNConfig().training(gamma=0.5, n_step=1, double_q=False)
    values = torch.tensor([[10.0, 20.0, 30.0]])
    batch = {
        Columns.REWARDS: torch.tensor([[1.0, 2.0, 0.0]]),
        Columns.TERMINATEDS: torch.tensor([[False, True, False]]),
        Columns.SEQ_LENS: torch.tensor([3]),
    }
    rows: Any = ReplayedRows(SimpleNamespace(config=config), ["m"], None, config, batch, {})
    found = rows.bootstrapped(values)
    assert found[0, :2].tolist() == [1 + 20 / 2, 2.0]


class Ends(ConnectorV2):
    """Compares the ends of rows with those of the episodes. Keeps no state."""

    def columns(self, c, xp):
        own = [
            (e.is_terminated, int(e.storage.column(Columns.T)[len(e) + e.storage.lookback - 1]))
            for e in c.rows.episodes
        ]
        by_row = [end for end, count in zip(own, c.rows.counts, strict=True) for _ in range(count)]
        expected = [is_over and t == last for (is_over, last), t in zip(by_row, c.rows.t.tolist(), strict=True)]
        assert c.rows.terminateds.tolist() == expected
        ENDS.append(sum(expected))


ENDS: list[int] = []


def test_modules_may_have_different_numbers_of_sequences():
    config = random_dqn(1, replay_buffer_config={"type": BUFFERS[1]}, n_step=2, burn_in_len=1)
    config.multi_agent(policies="independent").rl_module(algorithm_config_overrides_per_module={})
    algo = config.learners(learner_connector=lambda *_: Ends()).build_algo()
    algo.train()
    numbers = {module_id: 3 + i for i, module_id in enumerate(algo.replay_buffer.module_ids)}
    buffer, lengths = algo.replay_buffer, dict.fromkeys(numbers, 4)
    sample = buffer.sample(numbers, n_step=2, sequence_lens=lengths, burn_in_len=1, module_ids=[*numbers])
    algo.learner.update(episodes=sample)
    errors = algo.learner.td_errors
    assert {module_id: len(own) for module_id, own in errors.items()} == numbers
    assert all(own.isfinite().all() for own in errors.values()) and sum(ENDS) > 0
    buffer.update_priorities({module_id: own.numpy() for module_id, own in errors.items()}, sample=sample)
    algo.stop()
