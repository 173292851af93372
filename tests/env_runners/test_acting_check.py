"""Nobody acts on NaN: the module that put it out is named, whatever the environment makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import Columns, RLModule, RLModuleSpec, load_policy
from marl_connectors.errors import EnvError, ModuleError

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
LINE = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Picky(LifeEnv):
    """Cannot do with actions that are NaN."""

    def step(self, actions):
        if any(np.isnan(action).any() for action in actions.values()):
            raise ValueError("the physics broke down")
        return super().step(actions)


class Echo(LifeEnv):
    """An observation that is NaN is what comes of an action that is."""

    def step(self, actions):
        observations, *rest = super().step(actions)
        broken = any(np.isnan(action).any() for action in actions.values())
        return {a: x * np.nan if broken else x for a, x in observations.items()}, *rest


class Dizzy(RLModule):
    """Its parameters are fine."""

    def setup(self):
        self.layer = torch.nn.Linear(2, 3)

    def _forward(self, batch, **kwargs):
        logits = self.layer(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: torch.where(batch[Columns.OBS][:, :1] > 0.5, torch.inf, logits)}


class Careful(Dizzy):
    """Rules out an action."""

    def _forward(self, batch, **kwargs):
        logits = self.layer(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: torch.where(torch.tensor([True, False, True]), logits, -torch.inf)}


def build(env=LifeEnv, action_space=None, cls=None, **settings):
    agents = ("a", "b", "c")
    spaces_of = {agent: (BOX, spaces.Discrete(3) if action_space is None else action_space) for agent in agents}
    config = small_config(lambda: env(agents=agents, spaces_of=spaces_of, max_steps=20), **settings)
    config.multi_agent(policies="independent")
    if cls is not None:
        config.rl_module(rl_module_spec=RLModuleSpec(cls), model_config={}).training(use_critic=False)
    return config.build_algo()


def spoil(algo, module_id="b", value=np.nan):
    with torch.no_grad():
        algo.get_module(module_id).pi.layers[0].weight[1, 0] = value


SPOILT = r"(?s)'b' \(DefaultPPORLModule\).*'{}'.*nan.*'b'.*step 0.*'pi.layers.0.weight'"


@pytest.mark.parametrize(
    ("env", "action_space"), [(LifeEnv, spaces.Discrete(3)), (LifeEnv, LINE), (Picky, LINE), (Echo, LINE)]
)
def test_a_parameter_that_is_nan_is_found_when_acting(env, action_space):
    algo = build(env, action_space)
    spoil(algo)
    with pytest.raises(ModuleError, match=SPOILT.format("action_dist_inputs")):
        algo.train()
    with pytest.raises(ModuleError, match="module 'b'"):
        algo.evaluate(num_episodes=1)
    spoil(algo, value=0.1)
    algo.train()


def test_a_policy_does_not_act_on_it_either(tmp_path):
    algo = build()
    spoil(algo)
    policy = load_policy(algo.save_to_path(tmp_path / "checkpoint"))
    here = np.zeros(2, np.float32)
    assert policy(here, "a") in range(3)
    with pytest.raises(ModuleError, match=r"(?s)'b'.*'action_dist_inputs'.*\bnan\b.*row 1.*'pi.layers.0.weight'"):
        policy.actions({"a": here, "b": here})


def test_what_a_forward_pass_makes_of_its_own_is_said_to_come_from_there():
    with pytest.raises(ModuleError, match=r"(?s)\(Dizzy\).*'action_dist_inputs'.*\binf\b"):
        build(cls=Dizzy).train()


def test_impossible_actions_are_no_fault():
    episodes = build(cls=Careful).env_runner.sample(num_timesteps=20)
    taken = np.concatenate([own.get_actions() for episode in episodes for own in episode.agent_episodes.values()])
    assert set(taken.tolist()) == {0, 2}


def test_an_observation_that_is_nan_stays_the_environments_fault():
    class Broken(LifeEnv):
        def step(self, actions):
            observations, *rest = super().step(actions)
            return {a: x * np.nan for a, x in observations.items()}, *rest

    with pytest.raises(EnvError, match="NaN"):
        build(Broken, disable_env_checking=True).train()


class Pictures(LifeEnv):
    """Shows white pictures, which are seen by a network over images."""

    def observation_space(self, agent):
        return spaces.Box(0, 255, (12, 10, 3), np.uint8)

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        return self.drawn(observations), infos

    def step(self, actions):
        observations, *rest = super().step(actions)
        return self.drawn(observations), *rest

    def drawn(self, observations):
        return {agent: np.full((12, 10, 3), 255, np.uint8) for agent in observations}


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4}, {"fcnet_activation": "relu"}])
@pytest.mark.parametrize("env", [LifeEnv, Pictures])
def test_numbers_that_grow_beyond_float32_are_told_by_the_check_and_not_by_numpy(env, model):
    algo = small_config(env).rl_module(model_config={"fcnet_hiddens": [16], **model}).build_algo()
    with torch.no_grad():
        for parameter in algo.rl_module.parameters():
            parameter.fill_(3e38)
    with pytest.raises(ModuleError, match=r"(?s)'action_dist_inputs'.*(inf|nan|-inf)"):
        algo.env_runner.sample(num_timesteps=5)  # warnings are errors
