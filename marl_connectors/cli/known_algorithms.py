"""The algorithms that the command line trains: their configs, and the settings with which it trains them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from marl_connectors.errors import ConfigError
from marl_connectors.names import import_attribute


@dataclass(frozen=True, slots=True)
class KnownAlgorithm:
    """An algorithm of ``--algo``.

    Attributes:
        config: The name of its config's class.
        summary: What it is, in a few words.
        training: The settings with which the command line trains unless ``--set`` changes them.
    """

    config: str
    summary: str
    training: Mapping[str, Any]


TRAINING_DEFAULTS: Final[Mapping[str, Any]] = {
    "lr": 3e-4,
    "gamma": 0.99,
    "lambda_": 0.95,
    "train_batch_size_per_learner": 4096,
    "minibatch_size": 512,
    "num_epochs": 8,
    "clip_param": 0.2,
    "vf_clip_param": 1e6,
    "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.5,
    "grad_clip": 0.5,
    "use_kl_loss": False,
}
"""The settings with which the command line trains PPO and MAPPO. Batches count agent steps.

These differ from the defaults of ``PPOConfig``, which are RLlib's: they are chosen so that PPO learns well on small
multi-agent tasks without tuning.
"""
_REPLAY: Final[Mapping[str, Any]] = {
    "lr": 5e-4,
    "gamma": 0.99,
    "train_batch_size_per_learner": 64,
    "training_intensity": 16.0,
    "n_step": 3,
    "target_network_update_freq": 500,
    "epsilon": [[0, 1.0], [20_000, 0.05]],
    "num_steps_sampled_before_learning_starts": 1000,
}
_SOFT: Final[Mapping[str, Any]] = {
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "alpha_lr": 3e-4,
    "gamma": 0.99,
    "train_batch_size_per_learner": 256,
    "training_intensity": 64.0,
    "num_steps_sampled_before_learning_starts": 1500,
}
_CENTRAL: Final[Mapping[str, Any]] = {
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "gamma": 0.95,
    "train_batch_size_per_learner": 1024,
    "training_intensity": 10.0,
    "num_steps_sampled_before_learning_starts": 1024,
}
_TEAM: Final[Mapping[str, Any]] = {
    "lr": 5e-4,
    "gamma": 0.99,
    "train_batch_size_per_learner": 256,
    "training_intensity": 16.0,
    "target_network_update_freq": 0,
    "tau": 0.01,
    "td_error_loss_fn": "huber",
    "epsilon": [[0, 1.0], [100_000, 0.05]],
    "num_steps_sampled_before_learning_starts": 1000,
}
_CLONING: Final[Mapping[str, Any]] = {"lr": 1e-3, "train_batch_size_per_learner": 2000}
_WEIGHTED: Final[Mapping[str, Any]] = {
    **_CLONING,
    "gamma": 0.99,
    "beta": 1.0,
    "moving_average_sqd_adv_norm_update_rate": 0.02,
}
ALGORITHMS: Final[Mapping[str, KnownAlgorithm]] = {
    "ppo": KnownAlgorithm("marl_connectors.algorithms.ppo.config:PPOConfig", "the default", TRAINING_DEFAULTS),
    "mappo": KnownAlgorithm(
        "marl_connectors.algorithms.mappo.config:MAPPOConfig",
        "critics see the observations of all agents",
        TRAINING_DEFAULTS,
    ),
    "dqn": KnownAlgorithm(
        "marl_connectors.algorithms.dqn.config:DQNConfig", "Q-learning from a replay buffer", _REPLAY
    ),
    "vdn": KnownAlgorithm(
        "marl_connectors.algorithms.qmix.config:VDNConfig", "Q-learning of the sum of a team's values", _TEAM
    ),
    "qmix": KnownAlgorithm(
        "marl_connectors.algorithms.qmix.config:QMIXConfig", "Q-learning of a team's value through a network", _TEAM
    ),
    "sac": KnownAlgorithm(
        "marl_connectors.algorithms.sac.config:SACConfig", "soft actor-critic from a replay buffer", _SOFT
    ),
    "maddpg": KnownAlgorithm(
        "marl_connectors.algorithms.maddpg.config:MADDPGConfig", "critics see and judge all agents' actions", _CENTRAL
    ),
    "matd3": KnownAlgorithm(
        "marl_connectors.algorithms.maddpg.config:MATD3Config", "the same with twin critics", _CENTRAL
    ),
    "bc": KnownAlgorithm(
        "marl_connectors.algorithms.bc.config:BCConfig", "imitates recorded episodes, --set input_=FOLDER", _CLONING
    ),
    "marwil": KnownAlgorithm(
        "marl_connectors.algorithms.marwil.config:MARWILConfig", "the same, but prefers better actions", _WEIGHTED
    ),
}
"""The algorithms by name."""
_INDEPENDENT: Final = {
    "idqn": ("DQN", "dqn"),
    "iql": ("Q-learning", "dqn"),
    "ippo": ("PPO", "ppo"),
    "isac": ("SAC", "sac"),
}
"""Names of algorithms that are algorithms here with certain settings."""
_MOST_LIKE: Final = {**dict.fromkeys(("a2c", "a3c", "appo", "impala"), "ppo"), "ddpg": "sac", "td3": "sac"}
"""Algorithms that do not exist here, and the ones that are most like them for any number of agents."""


def algorithm_instead(name: object) -> str:
    """Returns a closing sentence about a known algorithm that does not exist here; ``""`` for other names.

    >>> algorithm_instead("iql")
    "Independent Q-learning is algo 'dqn' with policies 'independent'."
    """
    name = str(name).lower()
    if name in _INDEPENDENT:
        what, algo = _INDEPENDENT[name]
        return f"Independent {what} is algo {algo!r} with policies 'independent'."
    return f"The most like it is algo {_MOST_LIKE[name]!r}." if name in _MOST_LIKE else ""


def summaries() -> str:
    """Returns a line on all algorithms, for a help text."""
    return "; ".join(f"{name}: {known.summary}" for name, known in ALGORITHMS.items())


def config_class(algo: str) -> Any:
    """Returns the class of an algorithm's config."""
    return import_attribute(ALGORITHMS[algo].config, who="--algo", error=ConfigError)


def algorithm_of(config: Any) -> str:
    """Returns the name of a config's algorithm; one that ``--algo`` does not know has that of the config's class."""
    by_class = {known.config: name for name, known in ALGORITHMS.items()}
    names = (by_class.get(f"{cls.__module__}:{cls.__qualname__}") for cls in type(config).__mro__)
    own = type(config).__name__
    return next((name for name in names if name is not None), own.removesuffix("Config").lower() or own)


def are_alike(one: str, other: str) -> bool:
    """Whether settings that were tuned for one algorithm are also good ones for another."""
    return ALGORITHMS[one].training is ALGORITHMS[other].training


@functools.cache
def known_sections() -> dict[str, list[str]]:
    """Returns the sections of all algorithms' configs, with the names of their settings."""
    from marl_connectors.algorithms.config.sections import sections

    found: dict[str, dict[str, None]] = {}
    for algo in ALGORITHMS:
        for section, own in sections(config_class(algo)).items():
            found.setdefault(section, {}).update(dict.fromkeys(own))
    return {section: list(names) for section, names in found.items()}
