"""QMIX and VDN: the loss is that of the papers, runs continue exactly, and policies act after training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch.nn import functional as F

from helpers.envs.masked_envs import RandomMasks
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    QMIX,
    VDN,
    Algorithm,
    Columns,
    DQNConfig,
    MeanStdFilter,
    OnnxPolicy,
    QMIXConfig,
    ScaleRewards,
    VDNConfig,
    load_policy,
)
from marl_connectors.algorithms.qmix.learner import QMIXLearner
from marl_connectors.algorithms.qmix.mixing import QMixer
from marl_connectors.connectors.learner.add_mixer_states_to_train_batch import MIXER_STATE
from marl_connectors.errors import CheckpointError, ConfigError, LearnerError
from marl_connectors.policy_mapping import SharedPolicy
from marl_connectors.replay_buffers.n_step import largest_n_step
from marl_connectors.replay_buffers.ring import ACTED, ALIVE

FRESH = fresh_seeds(12)


class StatedLife(LifeEnv):
    """With a state: the time, and how many agents there are."""

    state_space = Box(0.0, 10.0, (1, 2), np.float32)

    def state(self):
        return np.array([[self.t / 10, len(self.agents)]], np.float32)


def small_qmix(env=LifeEnv, seed=0, config_class=QMIXConfig, model_config=None, **training):
    settings = {
        "train_batch_size_per_learner": 8,
        "num_steps_sampled_before_learning_starts": 20,
        "target_network_update_freq": 30,
        "epsilon": [[0, 1.0], [200, 0.1]],
        "replay_buffer_config": {"capacity": 300},
        "mixing_embed_dim": 4,
        "lr": 0.01,
    }
    config = config_class().environment(env, disable_env_checking=True)
    config.rl_module(model_config={"fcnet_hiddens": (6,), **(model_config or {})})
    config.training(**(settings | training)).reporting(min_sample_timesteps_per_iteration=60).debugging(seed=seed)
    return config.env_runners(num_env_workers=0).multi_agent(policies="shared")


def random_qmix(seed, **training):
    rng = np.random.default_rng(seed)
    recurrent = {"use_gru": True, "gru_cell_size": 5} if rng.random() < 0.5 else {"use_lstm": True, "lstm_cell_size": 4}
    given = {
        "double_q": bool(rng.integers(2)),
        "dueling": bool(rng.integers(2)),
        "n_step": int(rng.integers(1, 4)),
        "td_error_loss_fn": str(rng.choice(["huber", "mse"])),
        "tau": float(rng.choice([1.0, 0.3])),
        "mixer": str(rng.choice(["qmix", "qmix", "vdn"])),
        "mixer_state": str(rng.choice(["joint_observations", "state"])),
        "burn_in_len": int(rng.integers(0, 3)),
        "gamma": 0.9,
    }
    model = {**recurrent, "max_seq_len": int(rng.integers(3, 7))} if rng.random() < 0.5 else None
    if model is None:
        del given["burn_in_len"]
    config = small_qmix(StatedLife, seed, model_config=model, **(given | training))
    config.environment(env_config={"die": 0.1, "join": 0.2, "max_steps": 6})
    config.multi_agent(policies=str(rng.choice(["shared", "independent", "a=x,*=y"])))
    if rng.random() < 0.3:
        config.multi_agent(policies="a=x,*=y", policies_to_train=["y"])
    with_unlike_agents(config, np.random.default_rng([seed, 1]))
    config.env_runners(
        num_envs_per_env_runner=int(rng.integers(1, 4)),
        rollout_fragment_length=["auto", 3][int(rng.integers(2))],
        env_to_module_connector=[None, lambda: MeanStdFilter()][int(rng.integers(2))],
    )
    return config.learners(learner_connector=[None, lambda *_: ScaleRewards(scale=0.01)][int(rng.integers(2))])


def with_unlike_agents(config, rng):
    """Lets one of the agents see and do something else than the others, where it has a module of its own."""
    if isinstance(config.policy_mapping_fn, SharedPolicy) or rng.random() < 0.5:
        return
    other = Box(-1.0, 1.0, (3,), [np.float32, np.float64][int(rng.integers(2))])
    spaces_of = dict.fromkeys("bc", (Box(-1.0, 1.0, (2,)), Discrete(3))) | {"a": (other, Discrete(2))}
    config.environment(env_config={**config.env_config, "spaces_of": spaces_of})


def parameters(algo):
    mixing = algo.learner.mixing
    named = [*algo.rl_module.state_dict().items(), *mixing.mixer.state_dict().items()]
    return {
        **{name: value.clone() for name, value in named},
        **{f"t.{n}": v for n, v in mixing.target.state_dict().items()},
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_qmix(seed)
    whole = config.build_algo()
    for _ in range(3):
        whole.train()
    saved = whole.save_to_path(tmp_path / "checkpoint")
    resumed = Algorithm.from_checkpoint(saved, config=config)
    assert type(resumed) is QMIX
    for _ in range(2):
        one, other = whole.train(), resumed.train()
        assert one["learners"] == other["learners"]
        assert one["env_runners"].get("episode_return_mean") == other["env_runners"].get("episode_return_mean")
    before, after = parameters(whole), parameters(resumed)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    whole.stop()
    resumed.stop()


def values_by_hand(module, observations, state, target):
    """The values of all actions, one observation after another, ``[T, n]``."""
    names = ["encoder", "rnn", "af", "vf"]
    encoder, rnn, af, vf = (getattr(module, f"target_{n}" if target else n, None) for n in names)
    found = []
    for observation in observations:
        x = encoder(observation[None])
        if rnn is not None:
            x, state = rnn(x[None], state)
            x = x[0]
        advantages = af(x)[0]
        found.append(advantages if vf is None else vf(x)[0, 0] + advantages - advantages.mean())
    return torch.stack(found)


class ByHand:
    """The loss of a sample with plain loops: over items, agents, lives and steps."""

    def __init__(self, algo, sample, config):
        self.algo, self.sample, self.config = algo, sample, config
        self.agents = [(m, k) for m in sample.sizes for k in range(sample.sizes[m])]
        self.team = list(sample.segments)
        self.filters = {m: sample.segments[m].rollout.columns[Columns.OBS] for m in self.team}
        self.columns = {m: sample.segments[m].rollout.columns for m in self.team}

    def flags(self, m, item, w, k):
        return int(self.sample.flags[m][item, w, k]) if m in self.sample.flags else 0

    def at(self, m, name, item, w, k):
        width, lanes = self.sample.window.same.shape[1], self.sample.sizes[m]
        column = self.columns[m][name]
        take = lambda leaf: leaf[(item * width + w) * lanes + k]
        return {key: take(leaf) for key, leaf in column.items()} if isinstance(column, dict) else take(column)

    def lives(self, m, item, k):
        """The rows of each life of an agent in an item, without lookback."""
        found = []
        for w in range(self.sample.window.same.shape[1]):
            flags = self.flags(m, item, w, k)
            if not flags & (ACTED | ALIVE):
                found.append(None)
                continue
            before = found[-1] if found else None
            ended = before is not None and self.flags(m, item, before[-1], k) & ~(ACTED | ALIVE)
            if before is None or (ended and flags & ACTED) or not self.flags(m, item, before[-1], k) & ACTED:
                found.append([w])
            else:
                before.append(w)
                found.append(before)
        lives, lookback = [], self.sample.window.lookback
        for rows in {id(rows): rows for rows in found if rows is not None}.values():
            kept = [w for w in rows if w >= lookback]
            if kept:
                lives.append((kept, kept[0] - 1 if kept[0] - 1 in rows else None))
        return lives

    def q(self):
        """``(item, w, agent)`` to the values of all actions, by the module and by its target network."""
        found = {}
        for item in range(len(self.sample.last)):
            for m, k in self.agents:
                if m not in self.team:
                    continue
                module = self.algo.get_module(m)
                for rows, before in self.lives(m, item, k):
                    state = None
                    if module.is_stateful():
                        given = (
                            module.get_initial_state()
                            if before is None
                            else self.at(m, Columns.STATE_OUT, item, before, k)
                        )
                        state = {key: torch.as_tensor(value)[None] for key, value in given.items()}
                    observations = [torch.as_tensor(self.at(m, Columns.OBS, item, w, k)).float() for w in rows]
                    own = [values_by_hand(module, observations, state, target) for target in (False, True)]
                    for i, w in enumerate(rows):
                        found[item, w, m, k] = own[0][i], own[1][i].detach()
        return found

    def mixed(self, mixer, values, item, w, states):
        if self.config.mixer == "vdn":
            return sum(values.values(), torch.zeros(()))
        row = torch.stack([values.get(agent, torch.zeros(())) for agent in self.agents])
        state = states[item, w]
        weights = mixer.hyper_w_1(state).abs().view(len(self.agents), -1)
        hidden = F.elu(row @ weights + mixer.hyper_b_1(state))
        return hidden @ mixer.hyper_w_final(state).abs() + mixer.v(state)[0]

    def loss(self, scale):
        sample, config, mixing, q = self.sample, self.config, self.algo.learner.mixing, self.q()
        states = self.states()
        losses = []
        for item, w in np.argwhere(sample.counted).tolist():
            chosen = {}
            for m, k in self.agents:
                if m in self.team and self.flags(m, item, w, k) & ACTED:
                    chosen[m, k] = q[item, w, m, k][0][int(self.at(m, Columns.ACTIONS, item, w, k))]
            total = self.mixed(mixing.mixer, chosen, item, w, states)
            target, steps = 0.0, min(largest_n_step(config.n_step), int(sample.last[item]) - w)
            for i in range(steps):
                earned = [
                    float(sample.column(Columns.REWARDS, m)[item, w + i, k])
                    for m, k in self.agents
                    if m in self.team and self.flags(m, item, w + i, k) & ACTED
                ]
                size = sum(m in self.team for m, _ in self.agents)
                if any(self.flags(m, item, w + i, k) for m, k in self.agents if m in self.team):
                    target += config.gamma**i * scale * sum(earned) / size
            best = {}
            for m, k in self.agents:
                if m in self.team and self.flags(m, item, w + steps, k) & ALIVE:
                    own, slow = q[item, w + steps, m, k]
                    best[m, k] = slow[(own if config.double_q else slow).argmax()]
            if best:
                target += config.gamma**steps * self.mixed(mixing.target, best, item, w + steps, states).detach()
            error = total - target
            size = error.abs()
            mse = config.td_error_loss_fn == "mse"
            weight = 1.0 if sample.weights is None else float(sample.weights[item])
            losses.append(weight * (error**2 if mse else torch.where(size < 1, 0.5 * error**2, size - 0.5)))
        return torch.stack(losses).mean()

    def states(self):
        """``(item, w)`` to the state of the mixer."""
        if self.config.mixer == "vdn":
            return {}
        if self.config.mixer_state == "state":
            found = self.sample.env_states()
            return {
                (i, w): torch.as_tensor(found[i, w].reshape(-1), dtype=torch.float32)
                for i, w in np.ndindex(found.shape[:2])
            }
        states = {}
        for item, w in np.ndindex(self.sample.window.same.shape):
            seen, there = [], []
            for m, k in self.agents:
                is_there = bool(self.flags(m, item, w, k))
                own = self.sample.observations(m)[item, w, k]
                seen.append(own if is_there else np.zeros_like(own))
                there.append(float(is_there))
            states[item, w] = torch.as_tensor(np.concatenate([*seen, there]), dtype=torch.float32)
        return states


def team_gradients(learner, sample):
    """The loss of a sample, and the gradients of the mixer and of all modules with rows in the sample."""
    learner.optimizers.refresh(timestep=0)
    (step,) = learner._steps(learner.make_batch(sample))
    learner._loss_statistics.begin_minibatch(0)
    with torch.enable_grad():
        loss = learner._team_gradients(step)
    learned = [m for minibatch in step.team.learned.minibatches for m in minibatch.module_ids]
    named = {f"{m}.{n}": p for m in learned for n, p in learner.module[m].named_parameters()}
    named.update(learner.mixing.mixer.named_parameters())
    return loss, {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", [*range(16), *FRESH])
def test_the_loss_and_its_gradients_are_those_of_the_papers(seed):
    config = random_qmix(seed)
    if seed % 3 == 0 and "max_seq_len" not in (config.model_config or {}):
        config.training(n_step=[(1, 3), (2, 30)][seed % 2], train_batch_size_per_learner=[8, 1][seed % 4 // 2])
    algo = config.build_algo()
    algo.train()
    learner, module_ids = algo.learner, list(algo.config.policies_to_train or algo.rl_module)
    sample = algo.replay.draw(module_ids)
    if seed % 2:  # as a buffer with priorities gives them
        sample.weights = np.random.default_rng(seed).uniform(0.1, 1, len(sample.counted)).astype(np.float32)
    found, gradients = team_gradients(learner, sample)
    with torch.enable_grad():
        expected = ByHand(algo, sample, algo.config).loss(0.01 if config.learner_connector is not None else 1.0)
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
        weights = [(n, p) for m in module_ids for n, p in named(algo, m)]
        weights += list(learner.mixing.mixer.named_parameters())
        by_hand = torch.autograd.grad(expected, [p for _, p in weights], allow_unused=True)
    for (name, parameter), gradient in zip(weights, by_hand, strict=True):
        gradient = torch.zeros_like(parameter) if gradient is None else gradient
        own = gradients.get(name, torch.zeros_like(parameter))
        torch.testing.assert_close(own, gradient, rtol=1e-3, atol=1e-4 * max(1.0, float(gradient.abs().max())))
    algo.stop()


def has_choices(case):
    """Whether all agents of an environment with masks have several actions, in a Discrete space."""
    actions = RandomMasks(case, places=("observation",), alike=True).actions["agent_0"]
    return isinstance(actions, Discrete) and actions.n > 2


def named(algo, module_id):
    return [(f"{module_id}.{n}", p) for n, p in algo.get_module(module_id).named_parameters() if p.requires_grad]


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_stacked_modules_learn_what_they_learn_one_by_one(seed):
    runs = []
    for stack in (True, False):
        config = random_qmix(seed, td_error_loss_fn="huber").multi_agent(policies="independent", policies_to_train=None)
        algo = config.learners(stack_modules=stack).build_algo()
        for _ in range(2):
            algo.train()
        runs.append(parameters(algo))
        algo.stop()
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-2, atol=1e-3)


def test_the_mixed_value_never_falls_if_an_agents_value_rises():
    torch.manual_seed(0)
    mixer = QMixer(num_agents=3, state_size=4, embed_dim=8)
    values = torch.randn(50, 3, requires_grad=True)
    (slopes,) = torch.autograd.grad(mixer(values, torch.randn(50, 4)).sum(), values)
    assert (slopes >= 0).all() and (slopes > 0).any()


@pytest.mark.parametrize("embed_dim", [8, 32, 128])
def test_the_mixed_value_begins_as_about_the_sum_of_the_values(embed_dim):
    torch.manual_seed(0)
    mixer, states, values = QMixer(3, 60, embed_dim), torch.randn(500, 60), torch.randn(500, 3)
    gain = torch.autograd.functional.jacobian(lambda own: mixer(own, states).sum(), values).mean()
    assert 0.5 < gain < 2.0  # with torch's initial weights, 2 to 40


def test_an_update_searches_for_no_similar_names_of_columns_that_are_not_there(monkeypatch):
    algo = small_qmix(seed=2).build_algo()
    monkeypatch.setattr("marl_connectors.learner.minibatches.did_you_mean", lambda *names: pytest.fail(f"{names}"))
    algo.train()
    assert algo.learner.num_updates


def test_the_state_holds_all_observations_and_who_is_there():
    algo = small_qmix(env=LifeEnv, seed=3).environment(env_config={"die": 0.3, "join": 0.2}).build_algo()
    algo.train()
    sample = algo.replay_buffer.sample(20)
    (group,) = algo.learner.make_batch(sample).groups
    own = sample.segments["default_policy"]
    states = np.asarray(group[MIXER_STATE])
    assert states.shape == (len(own.rows), 3 * 2 + 3)
    for row, state in enumerate(states):
        slot = own.slots[row]
        np.testing.assert_array_equal(state[2 * slot : 2 * slot + 2], np.asarray(group[Columns.OBS])[row])
        assert state[6 + slot] == 1
        absent = np.flatnonzero(state[6:] == 0)
        assert not any(state[2 * k : 2 * k + 2].any() for k in absent)
    algo.stop()


def test_agents_that_are_not_trained_act_but_earn_nothing_for_the_team():
    algo = small_qmix(seed=1).multi_agent(policies="a=x,*=y", policies_to_train=["y"]).build_algo()
    before = {n: v.clone() for n, v in algo.get_module("x").state_dict().items() if n != "epsilon"}
    assert set(algo.train()["learners"]) == {"y"}
    after = algo.get_module("x").state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    algo.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_forbidden_actions_are_neither_taken_nor_valued(seed):
    case = next(case for case in range(seed, 1000, 3) if has_choices(case))
    config = small_qmix(RandomMasks, seed, n_step=1 + seed % 2)
    algo = config.environment(env_config={"case": case, "places": ("observation",), "alike": True}).build_algo()
    algo.train()
    ring = algo.replay_buffer._rings["all agents"]
    acted = (ring.columns["agent_flags"]["default_policy"] & ACTED) > 0
    masks = ring.columns[Columns.ACTION_MASK]["default_policy"][acted]
    free = ~masks.any(1)
    assert (masks[np.arange(len(masks)), ring.columns[Columns.ACTIONS]["default_policy"][acted]] | free).all()
    assert not masks.all()
    algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("model", [{}, {"use_gru": True, "max_seq_len": 4}])
def test_a_policy_acts_after_training_with_and_without_torch(model, tmp_path):
    algo = small_qmix(model_config=model).build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    assert "mixer" not in str([name for name, _ in algo.rl_module.named_parameters()])
    policy.export_onnx(tmp_path / "program")
    other = OnnxPolicy(tmp_path / "program")
    rng = np.random.default_rng(0)
    for _ in range(5):
        observations = {agent: rng.uniform(-1, 1, 2).astype(np.float32) for agent in "abc"}
        assert policy.actions(observations) == other.actions(observations)
    algo.stop()


def test_fit_trains_to_a_goal():
    algo = small_qmix(config_class=VDNConfig).build_algo()
    assert type(algo) is VDN and not list(algo.learner.mixing.mixer.parameters())
    algo.fit(num_env_steps=120, progress=False)
    assert algo.iteration == 2
    algo.stop()


class WithOwnLoss(QMIXLearner):
    """Its loss would never be used."""

    def compute_loss_for_module(self, **given):
        return super().compute_loss_for_module(**given)


def test_wrong_settings_and_wrong_use_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)QMIXConfig.*CartPole-v1.*DQNConfig"):
        small_qmix("CartPole-v1").build_algo()
    with pytest.raises(ConfigError, match="another"):
        small_qmix(RandomAEC).build_algo()
    with pytest.raises(ConfigError, match="gradient"):
        small_qmix().training(minibatch_size=4).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)'a'.*\bgamma\b"):
        small_qmix().rl_module(algorithm_config_overrides_per_module={"a": {"gamma": 0.5}}).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)burn_in_len=9.*'default_policy'.*\b4\b"):
        small_qmix(model_config={"use_gru": True, "max_seq_len": 4}, burn_in_len=9).build_algo()
    with pytest.raises(ConfigError, match="'EpisodeReplayBuffer'"):
        small_qmix(replay_buffer_config={"type": "EpisodeReplayBuffer"}).build_algo()
    with pytest.raises(LearnerError, match="compute_loss_for_module"):
        small_qmix().learners(learner_class=WithOwnLoss).build_algo()
    algo = small_qmix().build_algo()
    with pytest.raises(LearnerError, match="TeamReplayBuffer"):
        algo.learner.update(episodes=algo.env_runner.sample(num_timesteps=5))
    saved = algo.save_to_path(tmp_path / "checkpoint")
    other = small_qmix(mixing_embed_dim=9)
    with pytest.raises(CheckpointError, match=r"(?s)mixing_embed_dim.*\b4\b.*\b9\b"):
        Algorithm.from_checkpoint(saved, config=other)
    with pytest.raises(LearnerError, match="mixer"):
        other.build_algo().learner.mixing.set_state(algo.learner.mixing.get_state())
    algo.stop()


def two_step(config_class, seed, **training):
    config = config_class().environment("marl_envs.two_step_v0").rl_module(model_config={"fcnet_hiddens": (64,)})
    config.training(
        lr=5e-4,
        epsilon=1.0,
        train_batch_size_per_learner=32,
        target_network_update_freq=200,
        num_steps_sampled_before_learning_starts=100,
        dueling=False,
        td_error_loss_fn="mse",
        **training,
    )
    config.multi_agent(policies="independent").env_runners(num_env_workers=0).debugging(seed=seed)
    algo = config.build_algo()
    for _ in range(4):
        algo.train()
    found = algo.evaluate(num_episodes=1)["env_runners"]["agent_episode_returns_mean"]
    algo.stop()
    return set(found.values())


@pytest.mark.learning
def test_qmix_finds_what_a_sum_of_values_and_independent_learners_do_not():
    team = {"replay_buffer_config": {"capacity": 500}}
    assert two_step(QMIXConfig, 0, mixing_embed_dim=8, **team) == {8.0}
    assert two_step(VDNConfig, 0, **team) == {7.0}
    alone = {"replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 500}}
    assert two_step(DQNConfig, 0, **alone) == {7.0}


def test_the_target_of_a_step_that_ends_the_episode_is_the_reward_of_the_team():
    script = [Step({"a": 1, "b": 2}), Step({"a": 3, "b": 4}, {"a": 1, "b": 5}, terminated=("a", "b"))]
    algo = small_qmix(lambda config: ScriptEnv([script])).build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_episodes=8))
    found = algo.learner.update(episodes=algo.replay.draw(algo.replay_buffer.module_ids))
    assert found["default_policy"]["target_mean"] == (1 + 5) / 2
    algo.stop()
