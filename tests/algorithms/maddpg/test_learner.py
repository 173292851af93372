"""MADDPG and MATD3: what the critics see, the losses beside those of the papers, and that runs continue exactly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.fresh_seeds import fresh_seeds
from marl_connectors import (
    MADDPG,
    MATD3,
    Algorithm,
    Columns,
    DefaultMADDPGRLModule,
    DefaultPPORLModule,
    MADDPGConfig,
    MATD3Config,
    OnnxPolicy,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.errors import ConfigError, LearnerError, ModuleError

AGENTS = ("a", "b", "c")
BOXES = spaces.Box(-2.0, 3.0, (2,), np.float32)
WIDE = spaces.Box(-1.0, 1.0, (2,), np.float64)
FRESH = fresh_seeds(12)


def small(cls, spaces_of=None, seed=0, policies="independent", **training):
    settings = {
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 20,
        "replay_buffer_config": {"type": "JointReplayBuffer", "capacity": 300},
    }
    own = {"die": 0.1, "join": 0.3, "spaces_of": spaces_of or dict.fromkeys(AGENTS, (BOX, BOXES))}
    config = cls().environment(LifeEnv, env_config=own, disable_env_checking=True).multi_agent(policies=policies)
    config.training(**(settings | training)).rl_module(model_config={"fcnet_hiddens": (6,)}).debugging(seed=seed)
    config.env_runners(num_env_workers=0, rollout_fragment_length=6)
    return config.reporting(min_sample_timesteps_per_iteration=60)


def random_config(seed):
    rng = np.random.default_rng(seed)
    kinds = [spaces.Discrete(3), BOXES, spaces.Box(-1.0, 1.0, (2, 2), np.float32)]
    own = {agent: (BOX, kinds[int(rng.integers(3))]) for agent in AGENTS}
    if rng.integers(2):
        own = dict.fromkeys(AGENTS, own["a"])
    others = np.random.default_rng([seed, 1])
    if others.random() < 0.5:
        own = {agent: (WIDE, space) for agent, (_, space) in own.items()}
    buffer = ["JointReplayBuffer", "PrioritizedJointReplayBuffer"][int(others.integers(2))]
    is_common = len({str(space) for _, space in own.values()}) == 1
    config = small(
        [MADDPGConfig, MATD3Config][int(rng.integers(2))],
        own,
        seed,
        str(rng.choice(["shared", "independent"])) if is_common else "independent",
        n_step=int(rng.integers(1, 4)),
        tau=float(rng.choice([1.0, 0.1])),
        actor_feature_reg=float(rng.choice([0.0, 0.1])),
        replay_buffer_config={"type": buffer, "capacity": 300},
    )
    return config.env_runners(num_envs_per_env_runner=int(rng.integers(1, 4)))


def parameters(algo):
    return {name: value.clone() for name, value in algo.rl_module.state_dict().items()}


def changes(algo, before):
    """Returns the names of the parameters that have changed since."""
    return [name for name, value in parameters(algo).items() if not torch.equal(value, before[name])]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_a_run_continues_from_its_checkpoint_as_if_it_had_never_stopped(seed, tmp_path):
    config = random_config(seed)
    whole = config.build_algo()
    for _ in range(2):
        whole.train()
    resumed = Algorithm.from_checkpoint(whole.save_to_path(tmp_path / "checkpoint"), config=config)
    assert type(resumed) is (MATD3 if isinstance(config, MATD3Config) else MADDPG)
    for _ in range(2):
        assert whole.train()["learners"] == resumed.train()["learners"]
    before, after = parameters(whole), parameters(resumed)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    whole.stop()
    resumed.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *FRESH])
def test_stacked_modules_learn_what_they_learn_one_by_one(seed):
    space, runs = [spaces.Discrete(3), BOXES][seed % 2], []
    for stack in (True, False):
        config = small([MADDPGConfig, MATD3Config][seed // 2 % 2], dict.fromkeys(AGENTS, (BOX, space)), seed)
        algo = config.learners(stack_modules=stack).build_algo()
        for _ in range(2):
            algo.train()
        assert len(algo.rl_module.buckets) == 1
        runs.append(parameters(algo))
        algo.stop()
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=1e-3, atol=1e-4)


def filled(config):
    """Returns a run, and the env steps of all episodes that it sampled: dicts by agent."""
    algo = config.build_algo()
    episodes = algo.env_runner.sample(num_episodes=6)
    algo.replay_buffer.add(episodes)
    return algo, episodes


def flat_action(space, action):
    if isinstance(space, spaces.Discrete):
        return np.eye(space.n)[int(action)]
    return np.asarray(action).reshape(-1)


@pytest.mark.parametrize("seed", [*range(6), *FRESH])
def test_critics_see_all_agents_at_the_env_step_of_a_row(seed):
    config = random_config(seed).training(n_step=1)
    config.environment(env_config={**config.env_config, "join": 0.0, "die": 0.15})
    algo, episodes = filled(config)
    env_steps = {}
    for episode in episodes:
        for t in range(episode.env_t):
            seen = {}
            for agent, own in episode.agent_episodes.items():
                if t < len(own):
                    is_last, is_over = t == len(own) - 1, t == episode.env_t - 1
                    ended = own.is_terminated and is_last
                    has_left = ended or (own.is_truncated and is_last and not is_over)
                    seen[agent] = (
                        own.get_observations(t),
                        own.get_actions(t),
                        own.get_rewards(t),
                        ended,
                        own,
                        has_left,
                    )
            env_steps[tuple(np.concatenate([np.float32(seen[a][0]) for a in sorted(seen)]).tolist())] = (seen, t)
    algo.learner.before_gradient_based_update(timesteps={})
    sample = algo.replay_buffer.every_step(n_step=1)
    batch = algo.learner.make_batch(sample)
    number = 0
    for group in batch.groups:
        for module_id, columns in group.module_columns():
            for i in range(len(columns[Columns.REWARDS])):
                check_row(algo, module_id, {name: column[i].numpy() for name, column in columns.items()}, env_steps)
                number += 1
    assert number == sum(len(own) for e in episodes for own in e.agent_episodes.values())
    algo.stop()


def check_row(algo, module_id, row, env_steps):
    """Compares the columns of a row with the episodes."""
    spaces_of = {agent: algo.config.env_config["spaces_of"][agent][1] for agent in AGENTS}
    agent, size = AGENTS[int(row["agent_places"])], BOX.shape[0]

    def parts(vector):
        present = vector[3 * size : 3 * size + 3]
        observations = {a: vector[i * size : (i + 1) * size] for i, a in enumerate(AGENTS)}
        assert vector[3 * size + 3 : 3 * size + 6].tolist() == [float(a == agent) for a in AGENTS]
        found, begin = {}, 3 * size + 6
        for other in AGENTS:
            end = begin + len(flat_action(spaces_of[other], spaces_of[other].sample()))
            found[other] = vector[begin:end]
            begin = end
        assert begin == len(vector)
        return observations, {a: bool(present[i]) for i, a in enumerate(AGENTS)}, found

    observations, present, actions = parts(row["critic_obs"])
    seen, t = env_steps[tuple(np.concatenate([observations[a] for a in AGENTS if present[a]]).tolist())]
    assert {a for a in AGENTS if present[a]} == set(seen)
    np.testing.assert_array_equal(row[Columns.OBS], np.float32(seen[agent][0]))
    assert row[Columns.REWARDS] == pytest.approx(seen[agent][2])
    np.testing.assert_array_equal(row[Columns.NEXT_OBS], np.float32(seen[agent][4].get_observations(t + 1)))
    for other in AGENTS:
        expected = flat_action(spaces_of[other], seen[other][1]) if other in seen and other != agent else 0.0
        np.testing.assert_allclose(actions[other], expected, rtol=1e-6, atol=0)
    assert row["discounts"] == pytest.approx(0.0 if seen[agent][3] else algo.config.gamma)
    observations, present, actions = parts(row["new_critic_obs"])
    for other in AGENTS:
        goes_on = other in seen and not seen[other][3 if other == agent else 5]  # who was truncated judges its own end
        assert present[other] is goes_on or agent not in seen or seen[agent][3]
        if not seen[agent][3] and not goes_on:
            assert not observations[other].any() and not actions[other].any()
        if goes_on and not seen[agent][3]:
            following = np.float32(seen[other][4].get_observations(t + 1))
            np.testing.assert_array_equal(observations[other], following)
            if isinstance(spaces_of[other], spaces.Box) and not algo.config.target_noise:
                owner = algo.get_module(other if other in algo.rl_module else module_id)
                chosen = owner.target_pi(owner.target_encoder(torch.from_numpy(following)[None])).tanh()[0]
                own = row["target_actions"] if other == agent else actions[other]
                np.testing.assert_allclose(own, chosen.detach().numpy(), rtol=1e-4, atol=1e-5)
            elif isinstance(spaces_of[other], spaces.Discrete):
                own = row["target_actions"] if other == agent else actions[other]
                assert sorted(own.tolist()) == [0.0, 0.0, 1.0]
    assert not actions[agent].any()


def mlp(x, *parts):
    """Runs the layers of some parts, with relu between all of them."""
    layers = [layer for part in parts for layer in part.layers]
    for layer in layers:
        x = x @ layer.weight.T + layer.bias
        x = x if layer is layers[-1] else x.clamp(min=0)
    return x


def by_hand(algo, module, batch, noise):
    """The losses of critics and policy, as in the papers."""
    config = algo.config

    def critic(name, actions):
        network = module.get_submodule(name)
        vectors = batch["new_critic_obs" if name.startswith("target") else Columns.CRITIC_OBS]
        return mlp(torch.cat([vectors, actions], 1), network.encoder, network.head)[:, 0]

    names = ["qf", "qf_twin"] if config.twin_q else ["qf"]
    following = [critic(f"target_{name}", batch["target_actions"]) for name in names]
    targets = batch[Columns.REWARDS] + batch["discounts"] * torch.stack(following).min(0).values
    outputs = mlp(batch[Columns.OBS], module.encoder, module.pi)
    if isinstance(module.action_space, spaces.Box):
        taken, chosen = batch[Columns.ACTIONS].reshape(len(targets), -1), outputs.tanh()
    else:
        taken = torch.eye(3)[batch[Columns.ACTIONS].long()]
        soft = torch.softmax(outputs + noise, -1)
        chosen = torch.eye(3)[soft.argmax(-1)] + soft - soft.detach()
    weights = batch.get("weights", 1.0)
    of_critics = sum((weights * (critic(name, taken) - targets.detach()) ** 2).mean() for name in names)
    of_policy = -critic("qf", chosen).mean() + config.actor_feature_reg * (outputs**2).mean()
    return of_critics, of_policy


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(8), *FRESH])
def test_losses_and_gradients_are_those_of_the_papers(seed):
    algo = random_config(seed).build_algo()
    algo.train()
    learner = algo.learner
    for group in learner.make_batch(algo.replay_buffer.sample(16, n_step=algo.config.n_step)).groups:
        for module_id, columns in group.module_columns():
            batch, module = dict(columns), algo.get_module(module_id)
            learner._num_draws.clear()
            loss = learner.compute_loss_for_module(
                module_id=module_id, config=algo.config, batch=batch, fwd_out=module.forward_train(batch)
            )
            learner._num_draws.clear()
            rows = len(batch[Columns.REWARDS])
            noise = None
            if isinstance(module.action_space, spaces.Discrete):
                noise = learner.noise((module_id,), module.get_train_action_dist_cls(), (rows,), 3)
            copied = copy.deepcopy(module)
            of_critics, of_policy = by_hand(algo, copied, batch, noise)
            torch.testing.assert_close(loss, of_critics + of_policy, rtol=1e-4, atol=1e-5)
            own = {name: p for name, p in copied.named_parameters() if p.requires_grad}
            critics = {name: p for name, p in own.items() if name.startswith("qf")}
            policy = {name: p for name, p in own.items() if name not in critics}
            expected = dict(zip(critics, torch.autograd.grad(of_critics, critics.values()), strict=True))
            expected |= dict(zip(policy, torch.autograd.grad(of_policy, policy.values()), strict=True))
            found = torch.autograd.grad(loss, [p for p in module.parameters() if p.requires_grad])
            for gradient, name in zip(found, own, strict=True):
                torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5)
    algo.stop()


def test_policies_and_targets_are_updated_less_often_than_critics():
    algo = small(MATD3Config, policy_delay=3).build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=60))
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=60))
    for number in range(7):
        before = parameters(algo)
        algo.learner.update(episodes=algo.replay.draw(list(algo.learner.module)))
        changed = {name.split(".")[2] for name in changes(algo, before)}
        everything = {"encoder", "pi", "qf", "qf_twin", "target_encoder", "target_pi", "target_qf", "target_qf_twin"}
        assert changed == (everything if number % 3 == 0 else {"qf", "qf_twin"})
    algo.stop()


@pytest.mark.parametrize("n_step", [1, 3])
def test_updates_draw_the_rows_of_n_step_returns(n_step):
    algo = small(MADDPGConfig, n_step=n_step).build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=60))
    sample = algo.replay.draw(list(algo.learner.module))
    assert sample.window.sources.shape == (algo.config.train_batch_size_per_learner, 1 + n_step)
    algo.stop()


def test_noise_of_target_actions_is_clipped():
    algo = small(MATD3Config, target_noise=50.0, target_noise_clip=0.25).build_algo()
    algo.replay_buffer.add(algo.env_runner.sample(num_timesteps=60))
    (group,) = algo.learner.make_batch(algo.replay_buffer.sample(64)).groups
    for module_id, columns in group.module_columns():
        module = algo.get_module(module_id)
        plain = module.target_pi(module.target_encoder(columns[Columns.NEXT_OBS])).tanh()
        moved = (columns["target_actions"] - plain).detach()[columns["discounts"] > 0]
        assert ((moved.abs() - 0.25).abs() < 1e-5).float().mean() > 0.9
    algo.stop()


def test_noisy_target_actions_stay_in_their_bounds():
    """The policy's actions are 1, and the noise is clipped to 0.25 in either direction."""
    algo = small(MATD3Config, target_noise=50.0, target_noise_clip=0.25).build_algo()
    drawn = algo.learner._drawn("a", algo.get_module("a").unwrapped(), torch.ones(64, 2))
    assert drawn.max() == 1.0 and drawn.min() == 0.75
    algo.stop()


@pytest.mark.slow
def test_exploration_follows_its_schedule_and_is_not_used_without_exploration(tmp_path):
    config = small(MADDPGConfig, exploration_stddev=[[0, 0.5], [60, 0.0]])
    algo = config.build_algo()
    assert algo.get_module("a").log_stddev.exp().item() == pytest.approx(0.5)
    algo.train()
    algo.train()
    assert algo.get_module("a").log_stddev.exp().item() < 1e-6
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    obs = BOX.sample()
    module = algo.get_module("a")
    action = module.pi(module.encoder(torch.from_numpy(obs)[None])).tanh()[0].detach().numpy() * 2.5 + 0.5
    np.testing.assert_allclose(policy(obs, agent_id="a"), action, rtol=1e-4)
    program = OnnxPolicy(policy.export_onnx(tmp_path / "onnx"))
    np.testing.assert_allclose(program(obs, agent_id="a"), action, rtol=1e-4)
    algo.stop()


@pytest.mark.parametrize("space", [BOXES, spaces.Discrete(3)])
def test_a_module_for_acting_has_a_policy_alone(space):
    config = {"fcnet_hiddens": (6,), "critic_inputs": 5, "twin_q": True}
    module = DefaultMADDPGRLModule(BOX, space, model_config=config, inference_only=True)
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {"encoder", "pi", "log_stddev"}
    whole = DefaultMADDPGRLModule(BOX, space, model_config=config)
    module.load_state_dict({name: value for name, value in whole.state_dict().items() if name in module.state_dict()})
    batch = {Columns.OBS: torch.rand(4, *BOX.shape)}
    for method in ("forward_inference", "forward_exploration"):
        found, expected = (getattr(own, method)(batch)[Columns.ACTION_DIST_INPUTS] for own in (module, whole))
        assert torch.equal(found, expected)


def test_episodes_are_learned_from_without_a_buffer_too():
    algo = small(MADDPGConfig).build_algo()
    episodes = algo.env_runner.sample(num_timesteps=40)
    results = algo.learner.update(episodes=episodes)
    steps = sum(episode.agent_steps() for episode in episodes)
    assert sum(own["num_module_steps_trained"] for own in results.values()) == steps
    algo.stop()


def test_agents_that_are_not_trained_still_act_in_the_critics():
    algo = small(MADDPGConfig).multi_agent(policies_to_train=["a"]).build_algo()
    before = parameters(algo)
    results = algo.train()["learners"]
    changed = {name.split(".")[1] for name in changes(algo, before) if not name.endswith("log_stddev")}
    assert list(results) == ["a"] and changed == {"a"}
    algo.stop()


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match=r"(?s)MATD3Config.*lr=0.1.*actor_lr"):
        small(MATD3Config, lr=0.1).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)MADDPGConfig.*Pendulum-v1.*SACConfig"):
        MADDPGConfig().environment("Pendulum-v1").build_algo()
    with pytest.raises(ConfigError, match="SACConfig"):
        MADDPGConfig().environment("pettingzoo.classic.tictactoe_v3").build_algo()
    with pytest.raises(ConfigError, match=r"(?s)'a'.*twin_q"):
        small(MADDPGConfig).rl_module(algorithm_config_overrides_per_module={"a": {"twin_q": True}}).build_algo()
    with pytest.raises(ModuleError, match=r"(?s)Discrete.*Box.*MultiDiscrete"):
        small(MADDPGConfig, dict.fromkeys(AGENTS, (BOX, spaces.MultiDiscrete([2, 2])))).build_algo()
    with pytest.raises(ModuleError, match="bounds"):
        small(MADDPGConfig, dict.fromkeys(AGENTS, (BOX, spaces.Box(-np.inf, np.inf, (2,))))).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)'EpisodeReplayBuffer'.*JointReplayBuffer"):
        small(MADDPGConfig, replay_buffer_config={"type": "EpisodeReplayBuffer"}).build_algo()


def test_a_module_of_another_kind_is_named():
    config = small(MADDPGConfig).rl_module(rl_module_spec=RLModuleSpec(module_class=DefaultPPORLModule))
    with pytest.raises(LearnerError, match=r"(?s)MADDPGLearner.*'a'.*DefaultPPORLModule"):
        config.build_algo()


@pytest.mark.learning
def test_speaker_and_listener_find_the_landmark():
    config = MADDPGConfig().environment("mpe2.simple_speaker_listener_v4").multi_agent(policies="independent")
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=25)
    algo = config.reporting(min_sample_timesteps_per_iteration=10_000).debugging(seed=0).build_algo()
    for _ in range(25):
        algo.train()
    assert algo.evaluate(num_episodes=100)["env_runners"]["episode_return_mean"] > -22
    algo.stop()
