"""ActionMasking in real runs: no illegal move is ever made, and the learner sees the distribution that acted."""

from __future__ import annotations

import importlib

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors import Columns, ConnectorV2, EnvError, PPOConfig, RLModule, RLModuleSpec, ValueFunctionAPI
from marl_connectors.connectors.common.flatten_observations import FlattenObservations
from marl_connectors.connectors.common.frame_stacking import FrameStacking
from marl_connectors.connectors.env_to_module.action_masking import ActionMasking
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.rl_module.distributions import TorchCategorical

MASK, INPUTS = Columns.ACTION_MASK, Columns.ACTION_DIST_INPUTS
BOX = spaces.Box(-99.0, 99.0, (2,), np.float32)
WITH_MASK = spaces.Dict({"observation": BOX, "action_mask": spaces.Box(0, 1, (4,), np.int8)})
AGENTS = ["a", "b", "c", "d"]


def allowed(who, t):
    """The mask that the environment hands out: now and then of one action, or of none."""
    return np.array([(5 * who + 3 * t + 2) % 16 >> i & 1 for i in range(4)], np.int8)


def expected(observation):
    """The mask that is applied, by what its agent sees; c has none."""
    who, t = int(observation[0]), int(observation[1])
    mask = np.ones(4, np.int8) if who == 2 else allowed(who, t)
    return (mask if mask.any() else np.ones(4)).astype(bool)


class Strict(ParallelEnv):
    """Raises on illegal moves. Masks of a, d are in the observation, those of b in the info; a, c die, d joins."""

    metadata = {"name": "strict"}
    possible_agents = AGENTS
    render_mode = None

    def __init__(self, start=0):
        self.actions, self.agents = spaces.Discrete(4, start=start), []

    def observation_space(self, agent):
        return WITH_MASK if agent in "ad" else BOX

    def action_space(self, agent):
        return self.actions

    def _see(self, agent):
        who = AGENTS.index(agent)
        see = np.array([who, self.t], np.float32)
        return {"observation": see, "action_mask": allowed(who, self.t)} if agent in "ad" else see

    def _told(self, agents):
        seen = {agent: self._see(agent) for agent in agents}
        return seen, {agent: {"action_mask": allowed(1, self.t)} if agent == "b" else {} for agent in agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = ["a", "b", "c"], 0
        return self._told(self.agents)

    def step(self, actions):
        for agent, action in actions.items():
            mask = allowed(AGENTS.index(agent), self.t)
            if agent != "c" and mask.any() and not mask[action - self.actions.start]:
                raise ValueError(f"illegal move {action} of {agent} at {self.t}")
        self.t += 1
        rewards = {agent: float(action == self.t % 4) for agent, action in actions.items()}
        dies = {"a": self.t == 3, "b": self.t == 9, "c": self.t == 6, "d": self.t == 9}
        there = self.agents + ["d"] * (self.t == 2)
        self.agents = [agent for agent in there if not dies[agent]]
        observations, infos = self._told(there)
        return observations, rewards, {a: dies[a] for a in there}, dict.fromkeys(there, False), infos

    def close(self):
        pass


def config(env, pieces, *, policies="shared", **training):
    training = {"train_batch_size_per_learner": 24, "minibatch_size": 12, "num_epochs": 2, "lr": 0.01, **training}
    settings = PPOConfig().environment(env, disable_env_checking=True).training(**training).debugging(seed=3)
    if policies:
        settings.multi_agent(policies=policies)
    settings.rl_module(model_config={"fcnet_hiddens": [8]})
    return settings.env_runners(
        num_envs_per_env_runner=2,
        rollout_fragment_length=5,
        episode_lookback_horizon=2,
        env_to_module_connector=lambda env: [make() for make in pieces],
    )


def strict(env_config):
    return Strict(**env_config)


class OnItems(ActionMasking):
    """The same piece, run on items."""

    def __call__(self, **kwargs):
        return super().__call__(**kwargs)


def losses_of(results):
    return {
        m: [own[name] for name in ("policy_loss", "vf_loss", "entropy", "mean_kl_loss")] for m, own in results.items()
    }


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_an_environment_that_raises_on_illegal_moves_is_trained_on(policies, start):
    settings = config(strict, [ActionMasking], policies=policies)
    algo = settings.environment(env_config={"start": start}).build_algo()
    for _ in range(2):
        results = algo.train()["learners"]
    assert set(results) == ({"default_policy"} if policies == "shared" else set(AGENTS))
    assert np.isfinite(list(losses_of(results).values())).all()
    assert all(torch.isfinite(p).all() for p in algo.rl_module.parameters())
    assert algo.evaluate(num_episodes=2)["env_runners"]["num_episodes"] == 2
    for module in algo.rl_module.values():
        assert module.observation_space == BOX
    algo.stop()


def test_without_the_piece_the_environment_raises():
    """So that the tests above can fail."""
    take_part = lambda env_config: gym_like(Strict())
    algo = config(take_part, []).build_algo()
    with pytest.raises(EnvError, match="illegal"):
        algo.train()
    algo.stop()


def gym_like(env):
    """The environment without masks in its observations."""
    env.observation_space = lambda agent: BOX
    env._see = lambda agent: np.array([AGENTS.index(agent), env.t], np.float32)
    return env


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_masks_are_recorded_beside_what_they_belong_to_across_cuts_deaths_and_resets(policies):
    algo = config(strict, [ActionMasking], policies=policies).build_algo()
    seen = dict.fromkeys(AGENTS, 0)
    for _ in range(5):
        for episode in algo.env_runner.sample(num_timesteps=10):
            for agent, own in episode.agent_episodes.items():
                if not len(own):
                    continue
                observations = own.get_observations()
                assert observations.shape == (len(own) + 1, 2)
                masks, actions = own.get_extra_model_outputs(MASK), own.get_actions()
                np.testing.assert_array_equal(masks, [expected(o) for o in observations[:-1]])
                assert masks[np.arange(len(own)), actions].all()
                seen[agent] += len(own)
    assert min(seen.values()) > 10
    algo.stop()


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_the_learner_starts_from_the_distribution_that_acted(policies):
    algo = config(strict, [ActionMasking], policies=policies).build_algo()
    ones = 0
    for _ in range(3):
        batch = algo.learner.make_batch(algo.env_runner.sample(num_timesteps=40))
        for group in batch.groups:
            for module_id, columns in group.module_columns():
                columns = dict(columns)
                module, mask = algo.rl_module[module_id], columns[MASK]
                np.testing.assert_array_equal(mask, [expected(o) for o in columns["obs"]])
                before, now = columns[INPUTS], module.forward_train(columns)[INPUTS]
                old, new = TorchCategorical.from_logits(before), TorchCategorical.from_logits(now)
                ratio = (new.logp(columns["actions"]) - columns["action_logp"]).exp()
                torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-5, rtol=0)
                assert (old.kl(new).abs() < 1e-5).all()
                entropy, count = new.entropy(), mask.sum(1)
                assert (entropy <= count.log() + 1e-5).all() and (entropy[count == 1] == 0).all()
                ones += int((count == 1).sum())
                assert (new.log_probs.exp()[~mask] == 0).all()
                loss = -new.logp(columns["actions"]).sum() - entropy.sum() + old.kl(new).sum()
                gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
                assert all(torch.isfinite(g).all() for g in gradients if g is not None)
                del columns[MASK]
                forgetful = TorchCategorical.from_logits(module.forward_train(columns)[INPUTS])
                if not mask.all():
                    assert ((forgetful.logp(columns["actions"]) - columns["action_logp"]).exp() < 0.9).any()
    assert ones > 0
    algo.stop()


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_a_run_on_items_is_the_run_on_columns(policies):
    found = []
    for piece in (ActionMasking, OnItems):
        algo = config(strict, [piece, MeanStdFilter], policies=policies).build_algo()
        found.append([losses_of(algo.train()["learners"]) for _ in range(2)])
        algo.stop()
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for module_id in one:
            assert one[module_id] == pytest.approx(other[module_id], abs=1e-4)


class Remembering(RLModule, ValueFunctionAPI):
    """Its state is the sum of all that it saw."""

    def setup(self):
        self.pi, self.vf = torch.nn.Linear(2, 4), torch.nn.Linear(2, 1)

    def get_initial_state(self):
        return {"sum": np.zeros(2, np.float32)}

    def _forward(self, batch, **kwargs):
        sums = batch[Columns.STATE_IN]["sum"].unsqueeze(1) + batch[Columns.OBS].cumsum(1)
        return {INPUTS: self.pi(sums / 100), Columns.STATE_OUT: {"sum": sums[:, -1]}}

    def compute_values(self, batch, embeddings=None):
        return self.vf(batch[Columns.OBS] / 100).squeeze(-1)


@pytest.mark.parametrize("piece", [ActionMasking, OnItems])
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_stateful_modules_obey_masks_too(policies, piece):
    """Their batches have a time axis; sequences of 3 steps are filled up with rows without a mask."""
    settings = config(strict, [piece], policies=policies, num_epochs=1, minibatch_size=None)
    algo = settings.rl_module(
        rl_module_spec=RLModuleSpec(module_class=Remembering), model_config={"max_seq_len": 3}
    ).build_algo()
    for _ in range(2):
        for _, _, entropy, kl in losses_of(algo.train()["learners"]).values():
            assert abs(kl) < 1e-5, "before its first step the learner's policy is the one that acted"
            assert 0 <= entropy < np.log(4)
    for episode in algo.env_runner.sample(num_timesteps=10):
        for own in episode.agent_episodes.values():
            if len(own):
                masks = own.get_extra_model_outputs(MASK)
                np.testing.assert_array_equal(masks, [expected(o) for o in own.get_observations()[:-1]])
    algo.stop()


class Unstorable(ConnectorV2):
    """Leaves something for other pieces that no checkpoint can hold."""

    def columns(self, c, xp):
        c.shared_data["anything"] = object()


@pytest.mark.parametrize("pieces", [[ActionMasking], [ActionMasking, Unstorable], [OnItems, Unstorable]])
def test_a_restored_run_goes_on_with_the_same_masks(pieces, tmp_path):
    """With Unstorable the next forward batch is made anew, of observations that the masks are gone from."""
    algo = config(strict, pieces).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "c")
    other = config(strict, pieces).build_algo()
    other.restore_from_path(tmp_path / "c")
    for _ in range(2):
        assert losses_of(algo.train()["learners"]) == losses_of(other.train()["learners"])
    algo.stop()
    other.stop()


def test_stacked_frames_and_statistics_know_nothing_of_masks():
    algo = config(strict, [ActionMasking, FlattenObservations, MeanStdFilter, lambda: FrameStacking(num_frames=2)])
    algo.learners(learner_connector=lambda o, a: FrameStacking(num_frames=2, as_learner_connector=True))
    algo = algo.build_algo()
    assert algo.get_module().observation_space.shape == (4,)
    algo.train()
    assert len(algo.env_runner.env_to_module["MeanStdFilter"].get_state()["a"].mean) == 2
    tables = algo.explain()
    assert MASK in str(tables["env_to_module"]) and MASK in str(tables["learner"])
    algo.stop()


class Alone(gym.Env):
    """One agent, Strict's masks of a or b."""

    action_space = spaces.Discrete(4, start=2)

    def __init__(self, in_info):
        self.who, self.observation_space = int(in_info), BOX if in_info else WITH_MASK

    def _see(self):
        see, mask = np.array([self.who, self.t], np.float32), allowed(self.who, self.t)
        return (see, {"action_mask": mask}) if self.who else ({"observation": see, "action_mask": mask}, {})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._see()

    def step(self, action):
        mask = allowed(self.who, self.t)
        if mask.any() and not mask[action - 2]:
            raise ValueError(f"illegal move {action}")
        self.t += 1
        observation, info = self._see()
        return observation, float(action == 3), self.t == 7, False, info


@pytest.mark.parametrize("piece", [ActionMasking, OnItems])
@pytest.mark.parametrize("in_info", [False, True])
def test_one_agent_never_makes_an_illegal_move(in_info, piece):
    algo = config(lambda env_config: Alone(in_info), [piece], policies=None).build_algo()
    for _ in range(2):
        assert np.isfinite(algo.train()["learners"]["default_policy"]["policy_loss"])
    (episode,) = algo.env_runner.sample(num_episodes=1)
    masks = episode.get_extra_model_outputs(MASK)
    np.testing.assert_array_equal(masks, [expected(o) for o in episode.get_observations()[:-1]])
    algo.stop()


class InTurns(ParallelEnv):
    """A classic game in which all players observe and only the one whose turn it is moves."""

    render_mode = None

    def __init__(self, name):
        self.game = importlib.import_module(f"pettingzoo.classic.{name}").raw_env()
        self.metadata, self.possible_agents, self.agents = {"name": name}, self.game.possible_agents, []
        self.observation_space, self.action_space = self.game.observation_space, self.game.action_space

    def _told(self):
        return {agent: self.game.observe(agent) for agent in self.possible_agents}, {}

    def reset(self, seed=None, options=None):
        self.game.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._told()

    def step(self, actions):
        self.game.step(int(actions[self.game.agent_selection]))  # raises on an illegal move
        observations, infos = self._told()
        over = dict(self.game.terminations)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return observations, dict(self.game.rewards), over, dict.fromkeys(over, False), infos

    def close(self):
        self.game.close()


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3"])
@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_classic_games_are_played_by_the_rules(name, policies):
    pytest.importorskip("pettingzoo.classic.tictactoe")
    settings = config(lambda env_config: InTurns(name), [ActionMasking, FlattenObservations], policies=policies)
    algo = settings.training(train_batch_size_per_learner=80, minibatch_size=40).build_algo()
    for _ in range(2):
        results = algo.train()
        assert np.isfinite(list(losses_of(results["learners"]).values())).all()
    assert algo.evaluate(num_episodes=4)["env_runners"]["num_episodes"] == 4
    algo.stop()
