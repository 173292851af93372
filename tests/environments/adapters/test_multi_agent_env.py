"""Environments with RLlib's multi-agent API."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from marl_connectors import PPOConfig, check_env, load_policy
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.env.multi_agent_env import MultiAgentEnv, make_multi_agent
from marl_connectors.environments.adapters.multi_agent_env import MultiAgentEnvAdapter
from marl_connectors.environments.registry.factory import EnvFactory
from marl_connectors.environments.vector.turn_based_vector_env import TurnBasedVectorEnv
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
from marl_connectors.errors import ConfigError, EnvError


class EachAtItsPace(MultiAgentEnv):
    """Agent ``ai`` observes every ``i + 1`` steps, its step and its last action, and gets ``i + 1`` in each step."""

    def __init__(self, config=None):
        super().__init__()
        config = config or {}
        self.ep_len = config.get("ep_len", 7)
        self.options = config.get("options")
        self.possible_agents = [f"a{i}" for i in range(config.get("n", 3))]
        self.observation_spaces = {a: gym.spaces.Box(-1, 100, (2,), np.float32) for a in self.possible_agents}
        self.action_spaces = {a: gym.spaces.Discrete(9) for a in self.possible_agents}

    def observations(self):
        turns = {a: self.t % (i + 1) == 0 for i, a in enumerate(self.possible_agents)}  # a0 observes in each step
        return {a: np.array([self.t, self.last[a]], np.float32) for a in reversed(self.possible_agents) if turns[a]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options = options
        self.t, self.last = 0, dict.fromkeys(self.possible_agents, -1)
        return self.observations(), {}

    def step(self, action_dict):
        self.last.update(action_dict)
        self.t += 1
        rewards = {a: i + 1.0 for i, a in enumerate(self.possible_agents)}
        return self.observations(), rewards, {}, {"__all__": self.t == self.ep_len}, {"__common__": {}}


class Scripted(MultiAgentEnv):
    """Returns the results in ``script``, one after another. All agents have the same spaces."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    possible_agents = ["x", "y"]

    def __init__(self, config):
        super().__init__()
        self.script = config["script"]

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return seen(x=0), {"x": {"who": "x"}, "z": {}}

    def step(self, action_dict):
        self.t += 1
        return self.script[self.t - 1]


def seen(**values):
    return {agent: np.array([value], np.float32) for agent, value in values.items()}


def config_of(env, **env_config):
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .multi_agent(policies="shared")
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=5)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .training(train_batch_size_per_learner=20, minibatch_size=20, num_epochs=1)
        .debugging(seed=3)
    )


@pytest.fixture
def algo():
    algo = config_of(EachAtItsPace).build_algo()
    yield algo
    algo.stop()


def test_an_agent_that_waits_gets_all_rewards_since_its_last_observation(algo):
    (episode,) = algo.env_runner.sample(num_episodes=1)
    agents = episode.agent_episodes
    assert agents["a0"].get_rewards().tolist() == [1.0] * 7
    assert agents["a1"].get_rewards().tolist() == [4.0, 4.0, 4.0, 2.0]
    assert agents["a2"].get_rewards().tolist() == [9.0, 9.0, 3.0]
    assert episode.get_return() == 7 * (1 + 2 + 3)


def test_observations_come_to_the_agents_that_they_are_of(algo):
    (episode,) = algo.env_runner.sample(num_episodes=1)
    for agent, pace in (("a0", 1), ("a1", 2), ("a2", 3)):
        own = episode.agent_episodes[agent]
        actions, observed = own.get_actions().tolist(), own.get_observations()
        times = [*range(0, 7, pace)]
        assert observed[: len(times), 0].tolist() == times
        assert observed[1 : len(times), 1].tolist() == actions[: len(times) - 1]
        assert own.is_truncated and not own.is_terminated


@pytest.mark.parametrize("at_random", [False, True])
def test_agents_that_act_in_one_step_draw_their_actions_independently(algo, at_random):
    episodes = algo.env_runner.sample(num_episodes=20, random_actions=at_random)
    pairs = [[e.agent_episodes[a].get_actions(0) for a in ("a0", "a1")] for e in episodes]
    assert any(first != second for first, second in pairs)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_training_continues_from_a_checkpoint_as_if_it_had_not_stopped(workers, tmp_path):
    config = config_of(EachAtItsPace).env_runners(num_env_workers=workers)
    one = config.build_algo()
    one.train()
    one.save_to_path(tmp_path / "checkpoint")
    two = Algorithm.from_checkpoint(tmp_path / "checkpoint", config=config)
    assert one.train()["learners"] == two.train()["learners"]
    one.stop()
    two.stop()


@pytest.mark.slow
def test_all_results_do_not_depend_on_worker_processes():
    results = []
    for workers in (0, 2):
        algo = config_of(EachAtItsPace).env_runners(num_env_workers=workers).build_algo()
        results.append(algo.train()["learners"])
        algo.stop()
    assert results[0] == results[1]


def test_a_policy_acts_in_the_environment(algo, tmp_path):
    algo.save_to_path(tmp_path / "checkpoint")
    policy = load_policy(tmp_path / "checkpoint")
    env = EachAtItsPace()
    observations, _ = env.reset(seed=0)
    assert policy.actions(observations).keys() == {"a0", "a1", "a2"}


def test_options_of_resets_come_to_the_environment():
    algo = config_of(EachAtItsPace).environment(reset_options={"level": 2}).build_algo()
    algo.env_runner.sample(num_timesteps=2)
    assert [env.options for env in algo.env_runner.vector_env.envs] == [{"level": 2}] * 2
    algo.stop()


def test_the_check_of_environments_finds_that_waiting_agents_end_without_an_observation():
    report = check_env(EachAtItsPace, episodes=1)
    assert report.agents == ("a0", "a1", "a2")
    serious = [(found.kind, found.agent) for found in report.findings if found.level != "note"]
    assert serious == [("no-final-observation", "a2")]  # and a1, which the count of this finding includes


def stepped(*script):
    env = MultiAgentEnvAdapter(Scripted({"script": script}))
    env.reset(seed=0)
    for _ in script[:-1]:
        env.step({})
    return env, env.step({})


def test_infos_of_others_than_agents_are_left_out():
    env = MultiAgentEnvAdapter(Scripted({"script": ()}))
    assert env.reset(seed=0)[1] == {"x": {"who": "x"}}


def test_an_agent_joins_with_its_first_observation():
    env, (observations, rewards, terminations, _, _) = stepped((seen(y=1), {"x": 1.0}, {}, {}, {}))
    assert list(observations) == env.acting == ["y"]
    assert rewards == {"y": 0.0} and terminations == {"y": False}
    assert env.agents == ["x", "y"]


def test_an_agent_that_has_ended_is_not_seen_again_though_it_is_flagged_in_each_step():
    ended = {"x": True, "__all__": False}
    env, (observations, rewards, terminations, _, _) = stepped(
        (seen(x=1, y=1), {"x": 1.0}, ended, {}, {}),
        (seen(x=1, y=2), {"y": 2.0}, ended, {}, {}),
    )
    assert list(observations) == ["y"] and rewards == {"y": 2.0} and terminations == {"y": False}
    assert env.agents == ["y"]


def test_an_agent_comes_back_with_an_observation_without_a_flag():
    env, (observations, *_) = stepped(
        (seen(x=1, y=1), {}, {"x": True}, {}, {}),
        (seen(x=3, y=2), {}, {"x": False}, {}, {}),
    )
    assert list(observations) == ["y", "x"] and env.acting == ["y", "x"]


def test_the_flag_of_all_ends_the_agents_without_a_flag_of_their_own():
    env, (observations, rewards, terminations, truncations, _) = stepped(
        (seen(x=1, y=1), {"x": 1.0, "y": 1.0}, {}, {}, {}),
        (seen(x=2), {"x": 1.0, "y": 1.0}, {"x": True}, {"__all__": True}, {}),
    )
    assert list(observations) == ["x"] and rewards == {"x": 1.0, "y": 1.0}
    assert terminations == {"x": True, "y": False} and truncations == {"x": False, "y": True}
    assert env.agents == []


def test_an_episode_without_live_agents_continues_until_all_is_flagged():
    algo = config_of(
        Scripted,
        script=(
            (seen(x=1), {"x": 1.0}, {"x": True, "__all__": False}, {}, {}),
            (seen(y=2), {}, {}, {}, {}),
            (seen(y=3), {"y": 5.0}, {"__all__": True}, {}, {}),
        ),
    ).build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1)
    assert len(episode) == 3 and episode.get_return() == 6.0
    assert episode.agent_episodes["y"].get_rewards().tolist() == [5.0]
    algo.stop()


class OneBuffer(MultiAgentEnv):
    """Each agent's observation is one and the same dict in all steps. Agent ``y`` ends a step before ``x``."""

    observation_space = gym.spaces.Dict(
        {"clock": gym.spaces.Box(0, 9, (1,), np.float32), "action_mask": gym.spaces.Box(0, 1, (2,), np.int8)}
    )
    action_space = gym.spaces.Discrete(2)
    possible_agents = ["x", "y"]

    def __init__(self, config=None):
        super().__init__()
        self.given = {
            a: {"clock": np.zeros(1, np.float32), "action_mask": np.ones(2, np.int8)} for a in self.possible_agents
        }

    def observed(self, *agents):
        for own in self.given.values():
            own["clock"][:], own["action_mask"][:] = self.t, (1, self.t == 0)
        return {a: self.given[a] for a in agents}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observed("x", "y"), {}

    def step(self, action_dict):
        self.t += 1
        agents = [a for a in self.possible_agents if a in action_dict]
        return self.observed(*agents), {}, {"y": self.t == 2}, {"__all__": self.t == 3}, {}


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_last_observations_are_kept_although_the_reset_writes_to_the_same_arrays(workers):
    known = dict.fromkeys(OneBuffer.possible_agents, (OneBuffer.observation_space, OneBuffer.action_space))
    maker = EnvFactory(OneBuffer, {}, agent_spaces=known)
    vector = make_vector_env(maker, num_envs=2, seed=0, num_workers=workers)
    vector.reset_all()
    seen = {"x": [], "y": []}
    for _ in range(3):
        agents = vector.sub_envs[0].agents
        result = vector.step([0] * 2 * len(agents))
        for event in result.events:
            for agent, own in event.observations.items():
                seen[agent].append((own["clock"].tolist(), own["action_mask"].tolist()))
    vector.close()
    assert seen == {"x": [([3.0], [1, 0])] * 2, "y": [([2.0], [1, 0])] * 2}


def test_the_last_observation_of_an_episode_is_the_one_of_its_last_step():
    algo = config_of(OneBuffer).build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1)
    clocks = {a: own.get_observations()["clock"][:, 0].tolist() for a, own in episode.agent_episodes.items()}
    assert clocks == {"x": [0, 1, 2, 3], "y": [0, 1, 2]}
    algo.stop()


@pytest.mark.parametrize(
    ("paid", "total"), [(np.uint8(200), 600.0), (np.int8(100), 300.0), (np.float16(6e4), 180000.0)]
)
def test_rewards_of_a_waiting_agent_are_added_without_overflow(paid, total):
    waits = (seen(y=1), {"x": paid}, {}, {}, {})
    _, (_, rewards, *_) = stepped(waits, waits, (seen(x=1, y=1), {"x": paid}, {}, {}, {}))
    assert rewards["x"] == total


def test_a_reward_array_that_is_used_again_counts_as_it_was():
    paid = np.array(5.0)
    env = MultiAgentEnvAdapter(
        Scripted({"script": [(seen(y=1), {"x": paid}, {}, {}, {}), (seen(x=1), {}, {}, {}, {})]})
    )
    env.reset(seed=0)
    env.step({"x": 0})
    paid[...] = -1.0
    assert env.step({"y": 0})[1] == {"x": 5.0}


def test_a_reward_that_is_no_number_names_the_agent_and_the_step():
    env = MultiAgentEnvAdapter(Scripted({"script": [(seen(y=1), {"x": None}, {}, {}, {})]}))
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"(?s)Scripted.*step 1.*'x'.*None"):
        env.step({"x": 0})


class NoKeyForAll(MultiAgentEnv):
    """Two agents that end after two and three steps; nothing says that all have ended.

    Args:
        config: ``flags``, what else the dicts of flags hold.
    """

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    possible_agents = ["x", "y"]

    def __init__(self, config=None):
        super().__init__()
        self.flags = (config or {}).get("flags", {})

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return seen(x=0, y=0), {}

    def step(self, action_dict):
        self.t += 1
        terminateds = {a: self.t >= {"x": 2, "y": 3}[a] for a in action_dict}
        return (
            seen(**dict.fromkeys(action_dict, 1)),
            dict.fromkeys(action_dict, 1),
            {**terminateds, **self.flags},
            {},
            {},
        )


def test_an_episode_without_a_flag_of_all_is_over_when_all_of_its_agents_have_ended(tmp_path):
    algo = config_of(NoKeyForAll).build_algo()
    assert [len(e) for e in algo.env_runner.sample(num_episodes=3)] == [3, 3, 3]
    assert algo.evaluate(num_episodes=2)["env_runners"]["episode_return_mean"] == 5.0
    assert algo.random_play(num_episodes=2)["env_runners"]["episode_len_mean"] == 3.0
    assert algo.record(tmp_path / "data", num_episodes=2)["env_runners"]["episode_return_mean"] == 5.0
    assert algo.train()["env_runners"]["episode_return_mean"] == 5.0
    algo.stop()


def test_an_episode_in_which_nobody_can_act_any_more_is_an_error(monkeypatch):
    monkeypatch.setattr(TurnBasedVectorEnv, "max_idle_steps", 60)
    algo = config_of(NoKeyForAll, flags={"__all__": False}).build_algo()
    with pytest.raises(EnvError, match=r"(?s)step 62.*NoKeyForAll.*60"):
        algo.env_runner.sample(num_episodes=1)
    algo.stop()


def test_a_pause_in_which_nobody_can_act_is_none(monkeypatch):
    monkeypatch.setattr(TurnBasedVectorEnv, "max_idle_steps", 3)
    nothing = ({}, {}, {}, {}, {})
    vector = TurnBasedVectorEnv(
        [MultiAgentEnvAdapter(Scripted({"script": [nothing, nothing, (seen(x=1), {}, {}, {}, {}), nothing, nothing]}))],
        seed=0,
    )
    vector.reset_all()
    for _ in range(5):
        vector.step([0] * len(vector.sub_envs[0].agents))
    assert vector.sub_envs[0].t == 5


def test_an_agent_that_is_paid_but_never_observes_ends_with_the_episode():
    _, (observations, _, terminations, truncations, _) = stepped(
        (seen(x=1), {"y": -1.0, "ghost": 1.0}, {}, {}, {}),
        (seen(x=2), {"x": 2.0}, {}, {"__all__": True}, {}),
    )
    assert list(observations) == ["x"]
    assert terminations == {"x": False, "y": False} and truncations == {"x": True, "y": True}
    algo = config_of(
        Scripted, script=((seen(x=2), {"x": 2.0, "y": -2.0}, {"x": True}, {"__all__": True}, {}),)
    ).build_algo()
    algo.env_runner.sample(num_episodes=2)
    metrics = algo.env_runner.get_metrics()
    assert metrics["agent_episode_returns_mean"] == {"x": 2.0, "y": -2.0}
    assert [own["mean"] for own in metrics["module_episode_returns"].values()] == [0.0]
    algo.stop()


def test_a_class_of_rllibs_name_is_recognised():
    class Base(gym.Env):
        get_observation_space = MultiAgentEnv.get_observation_space
        get_action_space = MultiAgentEnv.get_action_space

    Base.__name__ = "MultiAgentEnv"
    own = type("Own", (Base,), {k: v for k, v in vars(EachAtItsPace).items() if k != "__init__"})
    made = EachAtItsPace()

    def make(config):
        env = own.__new__(own)
        vars(env).update(vars(made))
        env.reset = lambda **kwargs: _reset(env)
        return env

    def _reset(env):
        env.t, env.last = 0, dict.fromkeys(env.possible_agents, -1)
        return env.observations(), {}

    algo = config_of(make).build_algo()
    assert algo.agent_ids == ["a0", "a1", "a2"]
    algo.stop()


def test_an_agent_without_a_space_is_named():
    env = Scripted({"script": ()})
    env.observation_spaces = {"x": Scripted.observation_space}
    with pytest.raises(EnvError, match=r"(?s)Scripted.*'y'.*observation_space.*observation_spaces"):
        env.get_observation_space("y")


def test_a_wrapper_that_hides_the_agents_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)wrappers.*'EachAtItsPace'.*MultiAgentEnv"):
        config_of(EachAtItsPace).environment(wrappers=[gym.Wrapper]).build_algo()


def test_a_step_of_another_form_names_the_step():
    env = MultiAgentEnvAdapter(Scripted({"script": [(seen(x=1), {}, {}, {})]}))
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"(?s)Scripted.*step 1.*step\(\).*\b4\b"):
        env.step({})


def test_several_copies_of_a_gymnasium_environment_become_one_of_several_agents():
    algo = config_of(make_multi_agent("CartPole-v1"), num_agents=2).build_algo()
    (episode,) = algo.env_runner.sample(num_episodes=1)
    lengths = [len(episode.agent_episodes[agent]) for agent in (0, 1)]
    assert len(episode) == max(lengths) and lengths[0] != lengths[1]
    assert all(episode.agent_episodes[agent].is_terminated for agent in (0, 1))
    one, other = (episode.agent_episodes[agent].get_observations(0) for agent in (0, 1))
    assert not np.array_equal(one, other)
    algo.stop()


def test_copies_are_made_by_a_function_and_repeated_by_their_seed():
    made = make_multi_agent(lambda config: gym.make("CartPole-v1", **config))({"num_agents": 2, "max_episode_steps": 3})
    first = made.reset(seed=5)[0]
    assert all(np.array_equal(made.reset(seed=5)[0][agent], first[agent]) for agent in (0, 1))
    made.step({0: 0, 1: 1})
    made.step({0: 0, 1: 1})
    *_, terminateds, truncateds, _ = made.step({0: 0, 1: 1})
    assert truncateds == {0: True, 1: True, "__all__": True} and not terminateds["__all__"]
    made.close()


def test_an_agent_that_has_left_is_paid_afterwards():
    _, (observations, rewards, *_) = stepped(
        (seen(x=1, y=1), {}, {"x": True}, {}, {}),
        (seen(y=2), {"x": 3.0, "y": 2.0}, {}, {}, {}),
    )
    assert list(observations) == ["y"] and rewards == {"y": 2.0, "x": 3.0}
