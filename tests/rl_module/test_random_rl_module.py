"""Random modules: frequencies, masks, repeatability, and their place beside modules that learn."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import Algorithm, Columns, MAPPOConfig, PPOConfig, RandomRLModule, RLModuleSpec, load_policy
from marl_connectors.errors import ConfigError, ModuleError
from marl_connectors.seeding import stream

EP_LEN = 25  # of match_v0, where the return is the number of steps in which the agent has chosen one of 5 actions


def tail(count, n, p):
    """The probability that a binomial number is as far from its mean as ``count``, or further, on the same side."""
    further = range(count, n + 1) if count >= n * p else range(count + 1)
    logs = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in further)
    return math.fsum(
        math.exp(log + k * math.log(p) + (n - k) * math.log(1 - p)) for log, k in zip(logs, further, strict=True)
    )


def config(base=PPOConfig, mapping="agent_0=main,agent_1=random,agent_2=main", **model):
    return (
        base()
        .environment("marl_envs.match_v0", env_config={"n_agents": 3})
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=7)
        .multi_agent(
            policies={"main": None, "random": RLModuleSpec(RandomRLModule)},
            policy_mapping_fn=mapping,
            policies_to_train=["main"],
        )
        .rl_module(model_config={"fcnet_hiddens": [8], **model})
        .training(train_batch_size_per_learner=42, minibatch_size=20, num_epochs=1, lr=0.01)
        .debugging(seed=3)
    )


def drawn(space, num, mask=None, explore=True):
    """Actions of ``num`` rows."""
    module = RandomRLModule(spaces.Box(-1.0, 1.0, (3,)), space)
    batch = {Columns.OBS: torch.zeros(num, 3)}
    if mask is not None:
        batch[Columns.ACTION_MASK] = torch.as_tensor(mask).expand(num, -1)
    dist_cls = module.get_exploration_action_dist_cls() if explore else module.get_inference_action_dist_cls()
    inputs = (module.forward_exploration if explore else module.forward_inference)(batch)[Columns.ACTION_DIST_INPUTS]
    assert dist_cls.always_samples == (not explore)
    noise = dist_cls.noise(stream(1, "test"), (num,), inputs.shape[-1])
    return dist_cls.from_logits(inputs).sample(torch.from_numpy(noise))


@pytest.mark.parametrize("explore", [True, False])
def test_each_action_has_the_same_probability(explore):
    counts = np.bincount(drawn(spaces.Discrete(4), 2000, explore=explore).numpy(), minlength=4)
    assert all(tail(int(count), 2000, 1 / 4) > 1e-3 for count in counts)
    two, three = drawn(spaces.MultiDiscrete([2, 3]), 2000, explore=explore).unbind(-1)
    assert all(tail(int((two == value).sum()), 2000, 1 / 2) > 1e-3 for value in range(2))
    assert all(tail(int((three == value).sum()), 2000, 1 / 3) > 1e-3 for value in range(3))
    bits = drawn(spaces.MultiBinary(2), 2000, explore=explore)
    assert all(tail(int(bits[:, i].sum()), 2000, 1 / 2) > 1e-3 for i in range(2))
    numbers = drawn(spaces.Box(-3.0, 5.0, (1,)), 2000, explore=explore)  # stretched to the bounds later
    assert tail(int((numbers < -0.5).sum()), 2000, 1 / 4) > 1e-3
    assert numbers.min() >= -1 and numbers.max() <= 1


def test_forbidden_actions_are_never_chosen_and_the_others_alike():
    counts = np.bincount(drawn(spaces.Discrete(4), 2000, [[True, False, True, False]]).numpy(), minlength=4)
    assert counts[1] == counts[3] == 0
    assert tail(int(counts[0]), 2000, 1 / 2) > 1e-3
    two, three = drawn(spaces.MultiDiscrete([2, 3]), 100, [[False, True, True, True, False]]).unbind(-1)
    assert set(two.tolist()) == {1} and set(three.tolist()) == {0, 1}


def test_parts_of_actions_are_drawn_by_themselves():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(3)])})
    found = drawn(space, 500, explore=False)
    assert tail(int(found["a"].sum()), 500, 1 / 2) > 1e-3
    assert found["b"][0].shape == (500, 2) and set(found["b"][1].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, 1.0, (2,)), spaces.Box(0, 5, (2,), np.int64), spaces.Text(3)])
def test_other_spaces_are_refused(space):
    with pytest.raises(ModuleError, match=r"(?s)RandomRLModule.*uniform"):
        RandomRLModule(spaces.Box(-1.0, 1.0, (3,)), space)


def test_actions_in_a_range_are_stretched_to_the_bounds():
    alone = PPOConfig().environment("Pendulum-v1").rl_module(rl_module_spec=RLModuleSpec(RandomRLModule))
    algo = alone.build_algo()  # torques from -2 to 2
    (episode,) = algo.env_runner.sample(num_episodes=1, explore=False)
    algo.stop()
    actions = np.asarray(episode.get_actions())
    assert np.abs(actions).max() <= 1 and tail(int((actions < -0.5).sum()), len(actions), 1 / 4) > 1e-3
    with pytest.raises(ConfigError, match="RandomRLModule"):
        alone.environment(normalize_actions=False).build_algo()


def test_observations_may_have_parts_and_a_time_axis():
    seen = spaces.Dict({"gear": spaces.Discrete(3), "image": spaces.Box(0, 255, (4, 4), np.uint8)})
    module = RandomRLModule(seen, spaces.Discrete(2))
    batch = {"gear": torch.zeros(7, 1, dtype=torch.int64), "image": torch.zeros(7, 1, 4, 4, dtype=torch.uint8)}
    assert module.forward_inference({Columns.OBS: batch})[Columns.ACTION_DIST_INPUTS].shape == (7, 1, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4}], ids=["mlp", "lstm"])
@pytest.mark.parametrize("base", [PPOConfig, MAPPOConfig])
def test_it_plays_beside_a_module_that_learns(base, model):
    algo = config(base, **model).build_algo()
    assert set(algo.train()["learners"]) - {"__shared__"} == {"main"}
    assert not algo.get_module("random").get_state()
    results = [algo.evaluate(num_episodes=20, seed=seed)["env_runners"]["module_episode_returns"] for seed in (1, 1, 2)]
    algo.stop()
    assert results[0] == results[1] != results[2]
    hits = round(20 * results[0]["random"]["mean"])
    assert tail(hits, 20 * EP_LEN, 1 / 5) > 1e-3


def test_what_others_do_does_not_change_its_actions():
    def actions(mapping):
        algo = config(mapping=mapping).build_algo()
        runner = algo.env_runner
        episodes = runner.sample(num_episodes=2, explore=False)
        algo.stop()
        return [episode.agent_episodes["agent_1"].get_actions().tolist() for episode in episodes]

    alone = actions("agent_0=main,agent_1=random,agent_2=main")
    assert actions("agent_0=random,agent_1=random,agent_2=random") == alone
    assert actions("agent_0=main,agent_1=random,agent_2=random") == alone


def test_a_checkpoint_goes_on_as_if_it_had_never_stopped(tmp_path):
    algo = config().build_algo()
    algo.train()
    restored = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))
    expected, found = algo.train()["env_runners"], restored.train()["env_runners"]
    assert found["module_episode_returns"] == expected["module_episode_returns"]
    assert type(restored.get_module("random")) is RandomRLModule
    algo.stop()
    restored.stop()


def test_a_loaded_policy_acts_at_random_and_the_same_with_the_same_seed(tmp_path):
    algo = config().build_algo()
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    observation = np.eye(5, dtype=np.float32)[0]

    def actions(seed):
        policy = load_policy(path, "random", seed=seed, trusted=False)
        return [int(policy(observation)) for _ in range(200)]

    found = actions(0)
    assert found == actions(0) != actions(1)
    assert all(tail(found.count(action), 200, 1 / 5) > 1e-3 for action in range(5))


def test_it_plays_on_remote_env_runners(monkeypatch):
    use_fake_ray(monkeypatch)
    algo = config().env_runners(num_env_runners=2, num_envs_per_env_runner=1).build_algo()
    here = config().build_algo()
    for _ in range(2):  # an episode ends in the second iteration
        results = [each.train()["env_runners"] for each in (algo, here)]
    algo.stop()
    here.stop()
    found, expected = (each["module_episode_returns"]["random"] for each in results)
    assert found == expected and found["num_episodes"] == 2


@pytest.mark.parametrize("policies_to_train", [None, ["main", "random"]])
def test_it_is_never_updated(policies_to_train):
    algo = config().multi_agent(policies_to_train=policies_to_train).build_algo()
    assert set(algo.train()["learners"]) - {"__shared__"} == {"main"}
    algo.stop()


def test_it_is_the_only_module_of_a_single_agent():
    alone = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=RLModuleSpec(RandomRLModule))
    algo = alone.build_algo()
    mean = algo.evaluate(num_episodes=50)["env_runners"]["module_episode_returns"]["default_policy"]["mean"]
    algo.stop()
    assert 15 < mean < 32  # the poles fall after 22 steps


def test_the_distribution_without_exploration_can_be_pickled():
    module = RandomRLModule(spaces.Box(-1.0, 1.0, (3,)), spaces.MultiDiscrete([2, 3]))
    dist_cls = module.get_inference_action_dist_cls()
    assert pickle.loads(pickle.dumps(dist_cls)) is dist_cls
