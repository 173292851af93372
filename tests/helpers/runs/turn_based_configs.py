"""Configurations of turn-based games: stateless and stateful modules, tictactoe, and games in which all may happen."""

from __future__ import annotations

import zlib

import numpy as np
from gymnasium import spaces
from pettingzoo.classic import tictactoe_v3

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, small_config
from helpers.modules.recurrent_modules import CounterModule, GRUModule, LSTMModule, StatelessModule
from marl_connectors import ActionMasking, FlattenObservations, RLModuleSpec

WIDE = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Discrete(3)
CLASSES = {"gru": GRUModule, "gru2": GRUModule, "lstm": LSTMModule, "count": CounterModule, "plain": StatelessModule}
ANYTHING = {"die": 0.15, "join": 0.3, "back": 0.3, "fixed": False, "dead_next": False, "max_steps": 17}


def by_episode(agent, episode, **kwargs):
    """Agents have another module in each episode."""
    kind = "wide_" if agent == "d" else ""
    return kind + sorted(CLASSES)[zlib.crc32(f"{agent} {episode.id_}".encode()) % len(CLASSES)]


class OddInfos(RandomAEC):
    """Its infos hold what no file can."""

    def _look_and_pay(self, actor, action):
        super()._look_and_pay(actor, action)
        for agent, info in self.infos.items():
            if info:
                self.infos[agent] = {"odd": frozenset([agent, self.t, info["n"]])}


def stateful_config(copies=3, fragment=5, **game):
    """Agents have another module in each episode: with a state of some kind, or with none."""
    specs = {
        kind + name: RLModuleSpec(
            module_class=cls,
            observation_space=WIDE if kind else BOX,
            action_space=ACTIONS,
            model_config={"seed": number, "max_seq_len": 4, "first": number},
        )
        for kind in ("", "wide_")
        for number, (name, cls) in enumerate(CLASSES.items())
    }
    make = lambda: RandomAEC(**{**ANYTHING, "spaces_of": {"d": (WIDE, ACTIONS)}, **game})
    config = small_config(make).multi_agent(policies=specs, policy_mapping_fn=by_episode)
    return config.env_runners(num_envs_per_env_runner=copies, rollout_fragment_length=fragment)


def config_of(make, *, pieces=(), learner_pieces=(), policies="shared", copies=2, lookback=1, fragment=7):
    """Default modules."""
    config = small_config(make).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=copies, episode_lookback_horizon=lookback)
    config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces], rollout_fragment_length=fragment)
    return config.learners(learner_connector=lambda: [piece() for piece in learner_pieces])


def tictactoe(**settings):
    """With masks."""
    return config_of(tictactoe_v3.env, pieces=[ActionMasking, FlattenObservations], **settings)
