"""Makes an AlgorithmConfig from a tree of settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from marl_connectors.algorithms.config.algorithm_config import check_run
from marl_connectors.algorithms.config.settings import NO_VIDEO
from marl_connectors.cli.command_settings import CommandSettings
from marl_connectors.cli.known_algorithms import config_class
from marl_connectors.cli.layers import ALGO, SOURCE
from marl_connectors.cli.python_config import load_config
from marl_connectors.cli.tree import (
    ANNEAL,
    BATCH_SIZE,
    COMPLETE,
    DICTS,
    ENV,
    MAPPING,
    MODEL,
    NUM_ENV_RUNNERS,
    NUM_ENVS,
    NUM_ENVS_EACH,
    NUM_LEARNERS,
    PIECES,
    STEPS,
    Tree,
    as_named,
    as_object,
    as_option,
    pieces,
    with_shares,
)
from marl_connectors.environments.registry.factory import agent_ids, env_name, make_env
from marl_connectors.environments.rules.env_failures import close_env
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import brief
from marl_connectors.policy_mapping import OneAgainst, PatternPolicies, check_mapping
from marl_connectors.spaces import describe
from marl_connectors.validators import settings_of
from marl_connectors.zoo import find_task
from marl_connectors.zoo.measures import OPPONENT

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig


def new_config(tree: Mapping[str, Any]) -> AlgorithmConfig:
    """Returns the config of a complete tree: that of its Python file or a new one, with its settings."""
    if tree.get(SOURCE) is not None:
        return configured(load_config(tree[SOURCE]), tree)
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    return configured(config_class(tree[ALGO])().rl_module(model_config=DefaultModelConfig()), tree)


def configured(config: AlgorithmConfig, tree: Mapping[str, Any]) -> AlgorithmConfig:
    """Returns the config with the settings of a tree.

    The numbers of all sub-environments and of the steps in a train batch stay the same with other numbers of env
    runners and learners, unless the tree has them.

    Args:
        config: The config, which is changed.
        tree: The settings.

    Raises:
        ConfigError: If the settings do not fit together.
    """
    if ENV in tree and tree[ENV] != config.env:  # these settings belong to the other environment
        config.environment(
            tree[ENV], env_config={}, reset_options=None, wrappers=None, observation_space=None, action_space=None
        )
    if config.env is None:
        raise ConfigError("--config: the config has no environment. Name one before --config, such as CartPole-v1.")
    num_envs = config.num_envs
    tree = with_shares(tree, {NUM_LEARNERS: config.num_learners, BATCH_SIZE: config.train_batch_size_per_learner})
    given: dict[str, dict[str, Any]] = {}
    for place, value in tree.items():
        section, name, *key = place.split(".", 2)
        if key or place in (*PIECES, COMPLETE) or (section == "run" and name in settings_of(CommandSettings)):
            continue
        given.setdefault(section, {})[name] = as_object(config, place, value, place)
    if tree.get("run.video") == NO_VIDEO:
        given["run"] = {"video_every": 0, **given["run"]}
    if MAPPING in tree:
        given["multi_agent"] = {"policies": None, **given["multi_agent"]}
    if {NUM_ENVS, NUM_ENV_RUNNERS} & tree.keys() and NUM_ENVS_EACH not in tree:
        number = tree.get(NUM_ENV_RUNNERS, config.num_env_runners)
        each = envs_per_env_runner(tree.get(NUM_ENVS, num_envs), number)
        given.setdefault("env_runners", {})["num_envs_per_env_runner"] = each
    for section, settings in given.items():
        getattr(config, section)(**settings)
    check_run(config, "", as_option)
    env_config, model = (_keys(tree, place) for place in DICTS)
    if env_config:
        config.environment(env_config={**config.env_config, **env_config})
    _set_model(config, model)
    if (explore := tree.get("run.eval_explore")) not in (None, (config.evaluation_config or {}).get("explore")):
        config.evaluation(evaluation_config={**(config.evaluation_config or {}), "explore": explore})
    if tree.get(ANNEAL):
        settings = annealed(config, tree[STEPS])
        config.training(**{place.removeprefix("training."): rate for place, rate in settings.items()})
    for place in PIECES.keys() & tree.keys():
        section, _, name = place.partition(".")
        getattr(config, section)(**{name: pieces(config, place, tree[place])})
    return config


def _keys(tree: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns what a tree has of a setting that is a dict."""
    return {each.removeprefix(f"{place}."): own for each, own in tree.items() if each.startswith(f"{place}.")}


def _set_model(config: AlgorithmConfig, model: dict[str, Any]) -> None:
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    if not model:
        return
    old: Any = config.model_config
    if dataclasses.is_dataclass(old) and not isinstance(old, DefaultModelConfig):
        raise ConfigError(
            f"--model, --hidden, --activation, --share-value-layers: they are settings of the default modules, but "
            f"the config's model_config is a {type(old).__name__}. Leave them out."
        )
    known = settings_of(DefaultModelConfig)
    model = {
        name: as_named(known[name].validator, own, f"{MODEL}.{name}") if name in known else own
        for name, own in model.items()
    }
    is_own = isinstance(old, DefaultModelConfig)
    config.rl_module(model_config=dataclasses.replace(old, **model) if is_own else {**(old or {}), **model})


def annealed(config: AlgorithmConfig, steps: int) -> Tree:
    """Returns schedules for the learning rates of a config. They fall linearly to 0.

    Args:
        config: The config.
        steps: The number of agent steps.

    Raises:
        ConfigError: If a learning rate is a schedule already.
    """
    found: Tree = {}
    for name in (each for each in settings_of(type(config)) if each == "lr" or each.endswith("_lr")):
        rate = getattr(config, name)
        if isinstance(rate, list):
            raise ConfigError(
                f"--anneal-lr: expected {name} to be the learning rate at the beginning, but it is the schedule "
                f"{brief(rate)}. Leave out one of the two (--no-anneal-lr)."
            )
        if rate is not None:
            found[f"training.{name}"] = [[0, rate], [steps, 0.0]]
    return found


def envs_per_env_runner(num_envs: int, num_env_runners: int) -> int:
    """Returns the number of sub-environments of each env runner.

    Raises:
        ConfigError: If they cannot have the same number.
    """
    if num_envs % max(1, num_env_runners):
        possible = [str(number) for number in range(1, num_envs + 1) if num_envs % number == 0]
        raise ConfigError(
            f"--num-env-runners: expected a number that divides the {num_envs} sub-environments (--num-envs) evenly, "
            f"got {num_env_runners}. Use one of {', '.join(possible)}, or another number of sub-environments."
        )
    return num_envs // max(1, num_env_runners)


def is_remote(config: AlgorithmConfig) -> bool:
    """Whether env runners or learners of a config are in Ray actors."""
    return any((config.num_env_runners, config.evaluation_num_env_runners, config.num_learners))


def in_this_process(config: AlgorithmConfig) -> AlgorithmConfig:
    """Returns a config with the same sub-environments and train batches, whose env runners and learners are local."""
    if not is_remote(config):
        return config
    local = config.copy()
    local.env_runners(num_env_runners=0, num_envs_per_env_runner=config.num_envs)
    local.learners(num_learners=0, num_gpus_per_learner="auto" if config.num_learners else config.num_gpus_per_learner)
    local.training(train_batch_size_per_learner=config.total_train_batch_size)
    local.evaluation(evaluation_num_env_runners=0, evaluation_parallel_to_training=False)
    return local.resources(ray_address=None)


# What depends on the environment -------------------------------------------------------------------------------------


def make_config(tree: Mapping[str, Any]) -> AlgorithmConfig:
    """Returns the config of ``new_config``, with an opponent for evaluations and a measure of success.

    Raises:
        ConfigError: If the settings do not fit together, or do not fit the environment.
    """
    config = new_config(tree)
    if config.steps is None:
        raise ConfigError(
            "--steps: expected the agent steps at which the run ends, but got None. Leave it out, or use N."
        )
    _check_agents(config, tree)
    task = find_task(config.env) if isinstance(config.env, str) else None
    if task is not None and task.success is not None:
        config.callbacks(on_episode_end=_with(config.callbacks_on_episode_end, task.success))
    if config.ray_address is not None and not is_remote(config):
        raise ConfigError(
            "--ray-address: nothing of this run would be on the cluster. Add --num-env-runners N or "
            "--num-learners N, or leave it out."
        )
    return config


def _check_agents(config: AlgorithmConfig, tree: Mapping[str, Any]) -> None:
    """Checks patterns of policies against the environment's agents, and sets the opponent of evaluations."""
    mapping, opponent = config.policy_mapping_fn, tree.get("run.eval_opponent")
    if not isinstance(mapping, PatternPolicies) and opponent is None:
        return
    env = make_env(config.env, config.env_config, wrappers=config.wrappers)
    agents = agent_ids(env)
    check_mapping(mapping, agents)
    if opponent is not None:
        _check_opponent(env, agents, tree)
    close_env(env, env_name(config.env))
    if opponent is not None:
        set_opponent(config, agents, teams_of(opponent, agents))


def _check_opponent(env: Any, agents: Sequence[Any], tree: Mapping[str, Any]) -> None:
    """Checks that a random module can act for each of several agents."""
    if len(agents) == 1:
        raise ConfigError(
            f"--eval-opponent: expected an environment with several agents, but {env_name(tree[ENV])} has one. "
            f"Leave it out."
        )
    kinds = (
        ["action"] if tree.get("env_runners.env_to_module_connector") else ["action", "observation"]
    )  # pieces may make observations alike
    for kind in kinds:
        space_of = getattr(env, f"{kind}_space", None)
        if not callable(space_of):
            continue
        for agent_id in agents:
            if describe(cast(Any, space_of(agent_id))) != describe(cast(Any, space_of(agents[0]))):
                raise ConfigError(
                    f"--eval-opponent: expected agents with the same spaces, for which one module can act at "
                    f"random, but the {kind} spaces of {agents[0]!r} and {agent_id!r} differ. Leave it out."
                )


def teams_of(opponent: str, agents: Sequence[Any]) -> list[str]:
    """Returns who plays against the opponent, one after another: each agent, or the pattern of each team's agents.

    Raises:
        ConfigError: If a pattern matches no agent, or if an agent is not in exactly one of several teams.
    """
    _, colon, patterns = opponent.partition(":")
    if not colon:
        return [str(agent_id) for agent_id in agents]
    teams = [pattern.strip() for pattern in patterns.split(",")]
    for team in teams:
        if not any(fnmatchcase(str(agent_id), team) for agent_id in agents):
            raise ConfigError(
                f"--eval-opponent: the team {team!r} matches no agent. The agents are: {', '.join(map(str, agents))}."
            )
    for agent_id in agents:
        own = [team for team in teams if fnmatchcase(str(agent_id), team)]
        if len(own) != 1:
            found = "no team" if not own else f"the teams {' and '.join(own)}"
            raise ConfigError(
                f"--eval-opponent: expected each agent in one team, but {agent_id!r} is in {found}. Name the agents of "
                f"all teams, such as random:red*,blue*, or use random, with which each agent is a team."
            )
    if len(teams) == 1:
        raise ConfigError(
            f"--eval-opponent: all agents are in the team {teams[0]!r}, so it has no opponent. Name the agents of each "
            f"team, such as random:red*,blue*, or use random, with which each agent is a team."
        )
    return teams


def set_opponent(config: AlgorithmConfig, agents: Sequence[Any], teams: Sequence[str]) -> None:
    """Adds a module that acts at random, against which one agent or team plays in evaluations.

    Args:
        config: The config, with its mapping function and its ``policies``.
        agents: The agents of the environment.
        teams: Who plays, one after another: an agent, or the pattern of a team's agents.

    Raises:
        ConfigError: If a module has that name already.
    """
    from marl_connectors.env_runners.agent_modules import ask_mapping
    from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
    from marl_connectors.rl_module.random_rl_module import RandomRLModule
    from marl_connectors.rl_module.rl_module import RLModuleSpec

    mapping, module_ids = config.policy_mapping_fn, config.policies
    if module_ids is None:
        first = MultiAgentEpisode.from_agent_episodes(
            "0-0", {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=mapping
        )
        module_ids = [ask_mapping(first, agent_id) for agent_id in agents]
    if OPPONENT in module_ids:
        raise ConfigError(
            f"--eval-opponent: a module is called {OPPONENT!r}, which is the name of the opponent. Give it another one."
        )
    specs = module_ids if isinstance(module_ids, Mapping) else dict.fromkeys(module_ids)
    config.multi_agent(policies={**specs, OPPONENT: RLModuleSpec(RandomRLModule)})
    against = OneAgainst(mapping, tuple(teams), OPPONENT)
    config.evaluation(evaluation_config={**(config.evaluation_config or {}), "policy_mapping_fn": against})


def _with(functions: Any, function: Any) -> Any:
    """Returns the functions of a callback with another one."""
    if functions is None:
        return function
    return [*functions, function] if isinstance(functions, (list, tuple)) else [functions, function]


def use_threads(number: int) -> None:
    """Sets the number of threads with which torch computes."""
    import torch

    torch.set_num_threads(number)
