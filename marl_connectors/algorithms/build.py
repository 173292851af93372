"""Builds the parts of an Algorithm from a config and an environment: pipelines, modules, learner and env runners."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from gymnasium import Space
from gymnasium import spaces as gym_spaces

from marl_connectors import spaces
from marl_connectors.algorithms.action_mask_setting import AUTO, Masking, find_masking
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.vectorization import VECTOR_ENTRY_POINT, num_env_workers
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.defaults import (
    add_state_pieces,
    call_builder,
    env_to_module_pipeline,
    learner_pipeline,
    module_to_env_pipeline,
)
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.agent_modules import ask_mapping
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.env_runners.env_runner_group import EnvRunnerGroup
from marl_connectors.env_runners.env_runner_parts import EnvRunnerParts
from marl_connectors.environments.registry.spec import EnvDescription, EnvSpec
from marl_connectors.environments.rules.env_failures import EnvRestarts, close_env
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import ConfigError, MappingError, MarlConnectorsWarning, did_you_mean
from marl_connectors.flat_action_masks import ACTION_MASK
from marl_connectors.learner.learner import Learner
from marl_connectors.policy_mapping import SharedPolicy, check_mapping, goes_by_agent_alone
from marl_connectors.rl_module.apis import InferenceOnlyAPI
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec, naming_module
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.seeding import torch_stream
from marl_connectors.typing import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, AgentID, ModuleID


def build_setup(config: AlgorithmConfig) -> EnvSpec:
    """Returns the environment's maker, with the properties of a sample environment."""
    return EnvSpec(
        config.env,
        config.env_config,
        observation_space=config.observation_space,
        action_space=config.action_space,
        wrappers=config.wrappers,
        vector_entry_point=config.gym_env_vectorize_mode == VECTOR_ENTRY_POINT,
        action_mask_key=ACTION_MASK if config.action_mask_key == AUTO else config.action_mask_key,
        reset_options=config.reset_options,
    )


def build_env_to_module(
    config: AlgorithmConfig,
    setup: EnvDescription,
    *,
    device: torch.device | str | None = None,
    masking: Masking | None = None,
    stateful: bool = False,
) -> tuple[EnvToModulePipeline, Masking]:
    """Builds the env-to-module pipeline, with the user's pieces first, and decides which action masks it applies.

    Args:
        config: The settings.
        setup: The environment, or its known properties.
        device: The device of batches; the config's device if None.
        masking: The action masks of a checkpoint; None to decide by the config.
        stateful: Whether the pipeline has the pieces that stateful modules need.
    """
    input_spaces = setup.space_of_all(0), setup.space_of_all(1)
    device = config.device if device is None else torch.device(device)
    custom = call_builder(
        "env_to_module_connector",
        config.env_to_module_connector,
        setup.user_env,
        {"__env__": input_spaces, "__env_single__": input_spaces},
        device,
    )
    with_defaults = config.add_default_connectors_to_env_to_module_pipeline
    if masking is None:
        masking = find_masking(
            config.action_mask_key,
            setup,
            pieces=custom,
            classes=_module_classes(config),
            with_defaults=with_defaults,
        )
    pipeline = env_to_module_pipeline(
        [*masking.pieces(), *custom],
        multi_agent=not setup.single_agent,
        observation_space=input_spaces[0],
        action_space=input_spaces[1],
        device=device,
        add_defaults=with_defaults,
        stateful=stateful,
    )
    return pipeline, masking


def _module_classes(config: AlgorithmConfig) -> list[type]:
    """Returns the classes of all modules in the config, and the class of the MultiRLModule if the config names one."""
    multi = multi_spec_of(config)
    given = multi.rl_module_specs
    specs = [given] if isinstance(given, RLModuleSpec) else list(given.values())
    if isinstance(config.policies, dict):
        specs += [spec for spec in config.policies.values() if spec is not None]
    named = [multi.multi_rl_module_class, *(spec.module_class for spec in specs)]
    if not (isinstance(given, RLModuleSpec) and given.module_class is not None):
        for own in config.configs_of_algorithms().values():
            with contextlib.suppress(ConfigError):  # the lack of a default class is an error when modules are built
                named.append(own.get_default_rl_module_class())
    return [cls for cls in named if cls is not None]


def build_module_to_env(config: AlgorithmConfig, setup: EnvDescription, *, stateful: bool) -> ModuleToEnvPipeline:
    """Builds the module-to-env pipeline, with the user's pieces before the piece that scales and clips actions."""
    input_spaces = setup.space_of_all(0), setup.space_of_all(1)
    custom = call_builder(
        "module_to_env_connector",
        config.module_to_env_connector,
        setup.user_env,
        {"__env__": input_spaces, "__env_single__": input_spaces},
    )
    return module_to_env_pipeline(
        custom,
        multi_agent=not setup.single_agent,
        observation_space=input_spaces[0],
        action_space=input_spaces[1],
        normalize_actions=config.normalize_actions,
        clip_actions=config.clip_actions,
        add_defaults=config.add_default_connectors_to_module_to_env_pipeline,
        stateful=stateful,
    )


def build_modules(
    config: AlgorithmConfig,
    setup: EnvSpec,
    env_to_module: EnvToModulePipeline,
    seed: int,
    rl_module_specs: Mapping[ModuleID, RLModuleSpec] | None = None,
) -> MultiRLModule:
    """Builds all modules, each with the spaces of the agents that are mapped to it.

    If a module is stateful, the pieces that it needs are added to the pipeline.

    Args:
        config: The settings.
        setup: The environment.
        env_to_module: The pipeline that makes the modules' input.
        seed: The seed of the parameters.
        rl_module_specs: The complete specs of a checkpoint's modules; None for the modules of the config.

    Raises:
        ConfigError: If a module's spaces cannot be found, or ``policies_to_train`` names a module that does not exist.
        MappingError: If the mapping function raises, or agents of one module differ in their spaces.
    """
    check_default_dtype()
    multi = multi_spec_of(config)
    specs = _specs_of_config(config, setup, env_to_module) if rl_module_specs is None else rl_module_specs
    built: dict[ModuleID, RLModuleSpec] = {}
    for module_id, spec in specs.items():
        with torch_stream(seed, "module", module_id), naming_module(module_id, specs):
            built[module_id] = _BuiltModuleSpec(**vars(spec), module=spec.build())
    with torch_stream(seed, "modules"):
        modules = dataclasses.replace(multi, rl_module_specs=built, load_state_path=None).build()
    if rl_module_specs is None:
        check_policies_to_train(config.policies_to_train, modules.keys())
        _warn_of_overrides(config.algorithm_config_overrides_per_module, modules.keys())
        multi.load_state(modules)
    if modules.is_stateful() and config.add_default_connectors_to_env_to_module_pipeline:
        add_state_pieces(env_to_module)
    return modules.to(config.device)


def check_default_dtype() -> None:
    """Raises a ConfigError if torch would give modules parameters that do not fit float32 batches."""
    dtype = torch.get_default_dtype()
    if dtype is not torch.float32:
        raise ConfigError(
            f"torch.get_default_dtype() is {dtype}, so modules would have parameters of that type, but their batches "
            f"are float32. Call torch.set_default_dtype(torch.float32) first. autocast_dtype='bfloat16' in "
            f".learners(...) computes updates in half precision."
        )


def _specs_of_config(
    config: AlgorithmConfig, setup: EnvSpec, env_to_module: EnvToModulePipeline
) -> dict[ModuleID, RLModuleSpec]:
    """Returns the complete specs of all modules of a config."""
    multi = multi_spec_of(config)
    agents = agents_by_module(config, setup)
    specs: dict[ModuleID, RLModuleSpec] = {}
    for module_id, agent_ids in agents.items():
        spec = multi.completed(spec_of(config, module_id) or RLModuleSpec())
        specs[module_id] = _completed(spec, config, setup, env_to_module, module_id, agent_ids)
    _check_uses(specs, agents, config.policies_to_train)
    _check_minibatches(config, agents)
    if isinstance(multi.rl_module_specs, RLModuleSpec):
        return specs
    for module_id, spec in multi.rl_module_specs.items():
        if module_id in specs:
            continue
        if multi.multi_rl_module_class in (None, MultiRLModule):
            raise ConfigError(
                f"rl_module_spec: has a spec for module {module_id!r}, but the modules are {sorted(specs)}. "
                f"Add it to policies, or map an agent to it."
            )
        specs[module_id] = _completed(spec, config, setup, env_to_module, module_id, [])  # a part of other modules
    return specs


@dataclasses.dataclass
class _BuiltModuleSpec(RLModuleSpec):
    """The spec of a module that has been built already, because each module has its own random stream."""

    module: RLModule | None = None

    def build(self) -> RLModule:
        assert self.module is not None
        return self.module


def multi_spec_of(config: AlgorithmConfig) -> MultiRLModuleSpec:
    """Returns the config's spec of the MultiRLModule."""
    given = config.rl_module_spec
    return given if isinstance(given, MultiRLModuleSpec) else MultiRLModuleSpec(rl_module_specs=given or {})


def spec_of(config: AlgorithmConfig, module_id: ModuleID) -> RLModuleSpec | None:
    """Returns the config's spec of a module, from ``rl_module_spec`` or ``policies``; None if it has none."""
    specs = multi_spec_of(config).rl_module_specs
    own = config.policies.get(module_id) if isinstance(config.policies, dict) else None
    return (specs if isinstance(specs, RLModuleSpec) else specs.get(module_id)) or own


def _check_minibatches(config: AlgorithmConfig, agents: Mapping[ModuleID, Sequence[AgentID]]) -> None:
    """Checks that a minibatch that was asked for is no larger than the rows of its module in a train batch.

    The default of an algorithm's config is no request: of smaller batches, one minibatch has all rows.

    Raises:
        ConfigError: If it is.
    """
    goes_by_agent = goes_by_agent_alone(config.policy_mapping_fn)
    everyone = [agent_id for agent_ids in agents.values() for agent_id in agent_ids]
    for module_id, agent_ids in agents.items():
        own = config.get_config_for_module(module_id)
        each = len(agent_ids if goes_by_agent else everyone) if config.count_steps_by == "env_steps" else 1
        rows, size = config.total_train_batch_size * max(each, 1), own.minibatch_size
        if size is not None and size > rows and size != type(own).minibatch_size:
            raise ConfigError(
                f"minibatch_size={size} of module {module_id!r} is more than the {rows} rows that it may have in a "
                f"train batch (train_batch_size_per_learner={own.train_batch_size_per_learner}). Set it to at most "
                f"{rows}, to None for the whole batch, or enlarge the batch."
            )


def agents_by_module(config: AlgorithmConfig, setup: EnvSpec) -> dict[ModuleID, list[AgentID]]:
    """Maps each module to those of the environment's possible agents that a first episode maps to it."""
    if setup.single_agent:
        if config.policies is not None and list(config.policies) != [DEFAULT_MODULE_ID]:
            raise ConfigError(
                f"policies: {setup.name} has a single agent, whose module is {DEFAULT_MODULE_ID!r}, but policies names "
                f"{', '.join(map(repr, config.policies))}. Leave policies out."
            )
        return {DEFAULT_MODULE_ID: list(setup.agent_ids)}
    mapping = config.policy_mapping_fn
    if config.policies is not None and mapping == SharedPolicy() and DEFAULT_MODULE_ID not in config.policies:
        raise ConfigError(
            f"policies: names {', '.join(map(repr, config.policies))}, but no mapping function chooses among them. "
            f"Also set policy_mapping_fn=lambda agent_id, episode, **kwargs: ..."
        )
    check_mapping(mapping, setup.agent_ids)
    episode = MultiAgentEpisode.from_agent_episodes(
        "0-0", {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=mapping
    )
    policies = config.policies
    declared = (
        None if policies is None else sorted(policies) if isinstance(policies, (set, frozenset)) else list(policies)
    )
    agents: dict[ModuleID, list[AgentID]] = {module_id: [] for module_id in declared or ()}
    for agent_id in setup.agent_ids:
        module_id = ask_mapping(episode, agent_id)
        if declared is not None and module_id not in agents:
            raise MappingError(
                f"policy_mapping_fn: agent {agent_id!r} maps to module {module_id!r}, but policies has only "
                f"{', '.join(map(repr, declared))}. Add {module_id!r} to policies, or change policy_mapping_fn."
            )
        agents.setdefault(module_id, []).append(agent_id)
    return agents


def _completed(
    spec: RLModuleSpec,
    config: AlgorithmConfig,
    setup: EnvSpec,
    env_to_module: EnvToModulePipeline,
    module_id: ModuleID,
    agent_ids: list[AgentID],
) -> RLModuleSpec:
    own = config.get_config_for_module(module_id)
    model_config = own.model_config if spec.model_config is None else spec.model_config
    observation_space, action_space = spec.observation_space, spec.action_space
    if observation_space is None:
        observation_space = _common(env_to_module.observation_space, setup, module_id, agent_ids, "observation")
    if action_space is None:
        action_space = _common(env_to_module.action_space, setup, module_id, agent_ids, "action")
    spec = dataclasses.replace(
        spec,
        module_class=spec.module_class or own.get_default_rl_module_class(),
        model_config=model_config,
        observation_space=observation_space,
        action_space=action_space,
    )
    return own.complete_rl_module_spec(spec, setup, env_to_module)


def _common(space: Space | None, setup: EnvSpec, module_id: ModuleID, agent_ids: list[AgentID], kind: str) -> Space:
    """Returns the observation or action space that all agents of a module share."""
    if setup.single_agent:
        assert space is not None
        return space
    candidates = agent_ids or setup.agent_ids
    found: list[Space] = [space[agent_id] for agent_id in candidates]  # type: ignore[index]
    for agent_id, other in zip(candidates, found, strict=True):
        if spaces.describe(other) != spaces.describe(found[0]):
            if not agent_ids:
                raise ConfigError(
                    f"policies: no agent of the first episode maps to module {module_id!r}, and the agents' "
                    f"{kind} spaces differ, so its space is unknown. Give it an RLModuleSpec with {kind}_space."
                )
            raise MappingError(
                f"policy_mapping_fn: agents {candidates[0]!r} and {agent_id!r} both map to module {module_id!r}, but "
                f"their {kind} spaces differ: {spaces.describe(found[0])} and {spaces.describe(other)}. Map them to "
                f'different modules: policies="independent", or patterns such as "adversary*=red,agent*=green".'
            )
    return found[0]


def build_learner(
    config: AlgorithmConfig,
    setup: EnvSpec,
    modules: MultiRLModule,
    env_to_module: EnvToModulePipeline,
    seed: int,
    *,
    stateful: bool,
) -> Learner:
    """Builds the learner and its pipeline. ``stateful`` is that of ``build_learner_for_spaces``."""
    return build_learner_for_spaces(
        config,
        modules,
        input_spaces=(setup.space_of_all(0), setup.space_of_all(1)),
        multi_agent=not setup.single_agent,
        of_algorithm=config.default_learner_pieces(setup, env_to_module),
        seed=seed,
        stateful=stateful,
    )


def build_learner_for_spaces(
    config: AlgorithmConfig,
    modules: MultiRLModule,
    *,
    input_spaces: Sequence[Space],
    multi_agent: bool,
    of_algorithm: Sequence[ConnectorV2],
    seed: int,
    stateful: bool,
) -> Learner:
    """Builds the learner and its pipeline without an environment.

    Args:
        config: The settings.
        modules: The modules.
        input_spaces: The observation and the action space of the environment, by agent if there are several.
        multi_agent: Whether there are several agents.
        of_algorithm: The result of ``config.default_learner_pieces``.
        seed: The seed of the order of rows.
        stateful: Whether the pipeline has the pieces that stateful modules need.
    """
    pipeline = _learner_pipeline(config, input_spaces, multi_agent, of_algorithm=of_algorithm, stateful=stateful)
    learner_class: Any = config.learner_class or config.get_default_learner_class()
    learner = learner_class(config=config, module=modules, pipeline=pipeline, seed=seed)
    learner.algorithm_pieces = tuple(of_algorithm)
    learner.build()
    return learner


def _learner_pipeline(
    config: AlgorithmConfig, spaces: Sequence[Space], multi_agent: bool, device: Any = None, **other: Any
) -> LearnerConnectorPipeline:
    return learner_pipeline(
        call_builder("learner_connector", config.learner_connector, *spaces),
        multi_agent=multi_agent,
        observation_space=spaces[0],
        action_space=spaces[1],
        device=config.device if device is None else device,
        clip_rewards=config.clip_rewards,
        add_defaults=config.add_default_connectors_to_learner_pipeline,
        **other,
    )


def build_learner_pipeline(
    config: AlgorithmConfig, setup: EnvDescription, *, device: Any = None
) -> LearnerConnectorPipeline:
    """Builds a learner pipeline by hand: without what a Learner adds before and after it, one row for each step."""
    input_spaces = setup.space_of_all(0), setup.space_of_all(1)
    pipeline = _learner_pipeline(config, input_spaces, not setup.single_agent, device=device, stateful=True)
    if config.add_default_connectors_to_learner_pipeline:
        pipeline.remove(AddOneTsToEpisodesAndTruncate)
    return pipeline


def add_state_pieces_to(
    config: AlgorithmConfig,
    env_to_module: EnvToModulePipeline,
    env_runners: EnvRunnerGroup,
    learners: Iterable[Learner],
) -> None:
    """Adds the pieces that stateful modules need to the pipelines of an ongoing run.

    Raises:
        ConfigError: If the runner keeps no steps from before a cut, and so no states.
    """
    if env_runners.lookback < AddStatesFromEpisodesToBatch.lookback:
        raise ConfigError(
            "add_module: a stateful module needs the state before a cut, but episode_lookback_horizon is 0. Set "
            ".env_runners(episode_lookback_horizon=1)."
        )
    env_runners.return_to_episodes()
    if config.add_default_connectors_to_env_to_module_pipeline:
        add_state_pieces(env_to_module)
    if config.add_default_connectors_to_module_to_env_pipeline:
        add_state_pieces(env_runners.module_to_env)
    if config.add_default_connectors_to_learner_pipeline:
        for learner in learners:
            add_state_pieces(learner.pipeline)
    env_runners.modules_changed()


def add_state_pieces_to_runner(config: AlgorithmConfig, runner: EnvRunner) -> None:
    """Adds the pieces that stateful modules need to the pipelines of an env runner, unless they have them."""
    if config.add_default_connectors_to_env_to_module_pipeline:
        add_state_pieces(runner.env_to_module)
    if config.add_default_connectors_to_module_to_env_pipeline:
        add_state_pieces(runner.module_to_env)


def has_state_pieces(pipeline: ConnectorPipelineV2) -> bool:
    """Whether a pipeline has the pieces that stateful modules need."""
    return AddStatesFromEpisodesToBatch.__name__ in pipeline.names()


def lookback_of_run(config: AlgorithmConfig, env_to_module: EnvToModulePipeline, learners: Iterable[Learner]) -> int:
    """Returns the number of earlier steps that a chunk of an episode keeps, because a pipeline looks at them."""
    needed = [needed_lookback(pipeline) for pipeline in (env_to_module, *(learner.pipeline for learner in learners))]
    return max(config.episode_lookback_horizon, *needed)


def build_env_runner_parts(
    config: AlgorithmConfig,
    setup: EnvSpec,
    modules: MultiRLModule,
    env_to_module: EnvToModulePipeline,
    *,
    seed: int,
    num_envs: int,
    lookback: int,
    rollout_fragment_length: int,
    state_space: Space | None = None,
    first_env_number: int = 0,
    render_mode: str | None = None,
    first_render_mode: str | None = None,
    warned_of_bounds: dict[Any, set[int]] | None = None,
    merges_connector_states: bool = True,
) -> EnvRunnerParts:
    """Builds the parts of a runner, with its own sub-environments.

    See ``EnvRunnerParts`` and ``make_vector_env`` for the arguments.
    """
    make_env = dataclasses.replace(setup.factory, render_mode=render_mode, first_render_mode=first_render_mode)
    return EnvRunnerParts(
        rl_module=modules,
        env_to_module=env_to_module,
        module_to_env=build_module_to_env(config, setup, stateful=modules.is_stateful()),
        agent_spaces=setup.agent_spaces,
        policy_mapping_fn=config.policy_mapping_fn,
        single_agent=setup.single_agent,
        config=config,
        explore=config.explore,
        lookback=lookback,
        rollout_fragment_length=rollout_fragment_length,
        complete_episodes=config.batch_mode == "complete_episodes",
        check_spaces=not config.disable_env_checking,
        warned_of_bounds=warned_of_bounds,
        callbacks=config.make_callbacks(),
        env_config=config.env_config,
        merges_connector_states=merges_connector_states,
        vector_env=make_vector_env(
            make_env,
            num_envs=num_envs,
            seed=seed,
            num_workers=0 if render_mode else num_env_workers(config, setup, num_envs),
            timeout_s=config.sample_timeout_s,
            restarts=_env_restarts(config),
            state_space=state_space,
            first_number=first_env_number,
        ),
    )


@torch.inference_mode(False)
def own_env_runner_parts(config: AlgorithmConfig) -> EnvRunnerParts:
    """Returns the parts of an EnvRunner with modules and pipelines of its own, for ``EnvRunner(config=...)``.

    Raises:
        MarlConnectorsError: If a setting, the environment or the mapping function does not work.
    """
    config = config.copy()
    config.validate()
    seed = secrets.randbits(31) if config.seed is None else config.seed
    setup = build_setup(config)
    if not config.disable_env_checking:
        setup.check(seed)
    env_to_module, _ = build_env_to_module(config, setup)
    modules = build_modules(config, setup, env_to_module, seed)
    close_env(setup.sample_env, setup.name)
    return build_env_runner_parts(
        config,
        setup,
        modules,
        env_to_module,
        seed=seed,
        num_envs=config.num_envs_per_env_runner,
        lookback=max(config.episode_lookback_horizon, needed_lookback(env_to_module)),
        rollout_fragment_length=fragment_length(config, setup),
    )


def fragment_length(config: AlgorithmConfig, setup: EnvSpec) -> int:
    """Returns the env steps of each sub-environment in a sample.

    If they are ``"auto"``, they fit the train batch, or the part of it that is sampled.
    """
    if config.rollout_fragment_length != "auto":
        return int(config.rollout_fragment_length)
    at_once = setup.agents_per_step if config.count_steps_by == "agent_steps" else 1
    size = config.total_train_batch_size * (config.live_fraction or 1.0)
    return max(1, math.ceil(size / config.num_envs / at_once))


def reads_env_states(pipeline: ConnectorPipelineV2) -> bool:
    """Whether a piece of a pipeline reads the environment's states."""
    return any(
        reads_env_states(piece) if isinstance(piece, ConnectorPipelineV2) else getattr(piece, "reads_env_states", False)
        for piece in pipeline
    )


def needed_lookback(pipeline: ConnectorPipelineV2) -> int:
    """Returns the number of earlier steps that the pieces of a pipeline look at."""
    inner = [needed_lookback(p) if isinstance(p, ConnectorPipelineV2) else getattr(p, "lookback", 0) for p in pipeline]
    return max(inner, default=0)


def stop_counting(pipeline: ConnectorPipelineV2) -> list[MeanStdFilter]:
    """Stops filters from updating their statistics. Returns the filters that were updating them."""
    stopped: list[MeanStdFilter] = []
    for piece in pipeline:
        if isinstance(piece, ConnectorPipelineV2):
            stopped += stop_counting(piece)
        elif isinstance(piece, MeanStdFilter) and piece.update_stats:
            piece.update_stats = False
            stopped.append(piece)
    return stopped


def _env_restarts(config: AlgorithmConfig) -> EnvRestarts | None:
    """Returns how failed sub-environments are replaced; None if a failure stops the run."""
    if not config.restart_failed_sub_environments:
        return None
    return EnvRestarts(config.num_consecutive_env_failures_tolerance, config.observation_space)


# Parts that users build by hand, under the names of AlgorithmConfig's methods.


class GivenEnv:
    """Spaces that a user passes in place of an environment, and the environment itself, if there is one."""

    info_masks: Mapping[AgentID, Any] | None = None

    def __init__(self, env: Any, observation_space: Space, action_space: Space):
        """Takes the spaces of a single agent, or Dict spaces with the same agents.

        Args:
            env: The environment that builders of pieces get, or None.
            observation_space: The observation space, or those of all agents.
            action_space: The action space, or those of all agents.
        """
        self.user_env = env
        pair = observation_space, action_space
        of_agents = [space.spaces if isinstance(space, gym_spaces.Dict) else None for space in pair]
        both = of_agents[0] is not None and of_agents[1] is not None
        self.single_agent = not (both and of_agents[0].keys() == of_agents[1].keys())  # type: ignore[union-attr]
        self.name = "spaces" if env is None else type(env).__name__
        self.agent_ids: list[AgentID] = [DEFAULT_AGENT_ID] if self.single_agent else list(of_agents[0] or ())
        self._spaces = pair

    def agent_spaces(self, agent_id: AgentID) -> tuple[Space, Space]:
        """Returns an agent's observation and action space."""
        return self._spaces if self.single_agent else tuple(space[agent_id] for space in self._spaces)  # type: ignore

    def space_of_all(self, kind: int) -> Space:
        """Returns the observation (0) or action (1) space of the single agent, or a Dict of all agents' spaces."""
        return self._spaces[kind]


def described_env(config: AlgorithmConfig, env: Any, spaces: Mapping[str, Any] | None) -> Any:
    """Returns the environment's properties, from what a user passes to a builder.

    Args:
        config: The settings.
        env: An environment, a vector of environments such as an env runner's, or None.
        spaces: ``{"__env_single__": (observation space, action space)}``, where ``"__env__"`` and
            ``"default_policy"`` are accepted too; None to read the spaces of ``env``, or of the config's environment.

    Raises:
        ConfigError: If ``spaces`` has another form.
    """
    if spaces is not None:
        found = next((spaces[key] for key in ("__env_single__", "__env__", DEFAULT_MODULE_ID) if key in spaces), None)
        if not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise ConfigError(
                f"spaces: expected {{'__env_single__': (observation space, action space)}}, got {spaces!r}."
            )
        return GivenEnv(env, *found)
    given_spaces = {"observation_space": config.observation_space, "action_space": config.action_space}
    if isinstance(env, VectorEnv):
        sample = env.sub_envs[0].env  # None if it is in another process
        if getattr(sample, "possible_agents", None):  # others would have to be reset to find their agents
            return EnvSpec(type(env.envs[0]), {}, sample_env=sample, **given_spaces)
        env = None
    single = getattr(env, "single_observation_space", None), getattr(env, "single_action_space", None)
    if None not in single:
        return GivenEnv(env, *single)  # type: ignore[arg-type]
    if env is None:
        setup = build_setup(config)
        close_env(setup.sample_env, setup.name)
        return setup
    return EnvSpec(lambda: env, {}, **given_spaces)


def multi_rl_module_spec(config: AlgorithmConfig, setup: EnvSpec, inference_only: bool | None) -> MultiRLModuleSpec:
    """Returns the complete spec of all modules."""
    env_to_module, _ = build_env_to_module(config, setup)
    found = dataclasses.replace(multi_spec_of(config), rl_module_specs=_specs_of_config(config, setup, env_to_module))
    return found if inference_only is None else dataclasses.replace(found, inference_only=inference_only)


# Checks.


def _warn_of_overrides(overrides: Mapping[ModuleID, Any], module_ids: Collection[ModuleID]) -> None:
    """Warns of settings for modules that do not exist when a run begins. ``add_module`` may add them later."""
    for module_id in overrides:
        if module_id not in module_ids:
            warnings.warn(
                f"algorithm_config_overrides_per_module: there is no module {module_id!r}, so its settings do nothing. "
                f"{did_you_mean(module_id, module_ids)} For a module that is added later, pass them then, "
                f"without this warning: algo.add_module({module_id!r}, config_overrides={{...}}).",
                MarlConnectorsWarning,
                stacklevel=2,
            )


def check_policies_to_train(wanted: Any, module_ids: Collection[ModuleID]) -> None:
    """Checks that ``policies_to_train`` names existing modules.

    Raises:
        ConfigError: If it does not.
    """
    if wanted is None or callable(wanted):
        return
    for module_id in wanted:
        if module_id not in module_ids:
            raise ConfigError(
                f"policies_to_train: there is no module {module_id!r}. {did_you_mean(str(module_id), module_ids)}"
            )


def _check_uses(
    specs: Mapping[ModuleID, RLModuleSpec], agents: Mapping[ModuleID, Collection[AgentID]], trained: Any
) -> None:
    """Checks that no agent acts with a module that is for training only, and that no module for acting is trained.

    Args:
        specs: The specs of the modules.
        agents: The agents that a first episode maps to each module.
        trained: ``policies_to_train``. A function is not called.

    Raises:
        ConfigError: If a module is used in the wrong way.
    """
    for module_id, spec in specs.items():
        if not agents.get(module_id):
            continue
        if spec.learner_only:
            raise ConfigError(
                f"rl_module_spec: module {module_id!r} is learner_only, but agent {next(iter(agents[module_id]))!r} "
                f"maps to it. Leave learner_only out, or map the agent to another module."
            )
        leaves_out = spec.inference_only and issubclass(spec.module_class or object, InferenceOnlyAPI)
        if leaves_out and not callable(trained) and (trained is None or module_id in trained):
            raise ConfigError(
                f"rl_module_spec: module {module_id!r} is inference_only, so it lacks what training needs. Leave "
                f"inference_only out, or do not train it: .multi_agent(policies_to_train=[...])."
            )
