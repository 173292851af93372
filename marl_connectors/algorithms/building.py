"""From a config and an environment to modules and pipelines."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config_checks import check_policies_to_train, check_uses, warn_of_overrides
from marl_connectors.algorithms.masking import AUTO, MaskedAgents, Masking, find_masking
from marl_connectors.algorithms.vectorization import VECTOR_ENTRY_POINT, num_env_workers
from marl_connectors.connectors.action_masks import ACTION_MASK
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.defaults import (
    add_state_pieces,
    call_builder,
    env_to_module_pipeline,
    learner_pipeline,
    module_to_env_pipeline,
)
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.agent_modules import ask_mapping
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.environments.making.factory import EnvFactory
from marl_connectors.environments.spec import EnvSpec
from marl_connectors.environments.vector.failures import EnvRestarts
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import ConfigError, MappingError
from marl_connectors.learner.learner import Learner
from marl_connectors.policy_mapping import PatternPolicies, SharedPolicy, check_patterns
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.multi_rl_module_spec import MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.seeding import torch_stream
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID


class Agents(MaskedAgents, Protocol):
    """What pipelines need to know of an environment; an EnvSpec does.

    Attributes:
        user_env: What the user's builders get.
    """

    @property
    def user_env(self) -> Any: ...

    def space_of_all(self, kind: int) -> Space:
        """The observation (0) or action (1) space: of the one agent, or a Dict of all agents'."""
        ...


def build_setup(config: AlgorithmConfig) -> EnvSpec:
    """The environment's maker, and what one copy of it says."""
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
    setup: Agents,
    *,
    device: torch.device | None = None,
    masking: Masking | None = None,
) -> tuple[EnvToModulePipeline, Masking]:
    """The env-to-module pipeline, with the user's pieces first, and the action masks that it honours.

    Args:
        config: The settings.
        setup: The environment, or what is known of it.
        device: Where batches go; the config's device if None.
        masking: That of a checkpoint; None for what the config says.
    """
    input_spaces = setup.space_of_all(0), setup.space_of_all(1)
    device = config.device if device is None else device
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
    )
    return pipeline, masking


def _module_classes(config: AlgorithmConfig) -> list[type]:
    """The classes of all modules that the config asks for, and of the MultiRLModule if it names one."""
    multi = multi_spec_of(config)
    given = multi.rl_module_specs
    specs = [given] if isinstance(given, RLModuleSpec) else list(given.values())
    if isinstance(config.policies, dict):
        specs += [spec for spec in config.policies.values() if spec is not None]
    named = [multi.multi_rl_module_class, *(spec.module_class for spec in specs)]
    if not (isinstance(given, RLModuleSpec) and given.module_class is not None):
        with contextlib.suppress(ConfigError):  # there need not be a default, which is said where one is missing
            named.append(config.get_default_rl_module_class())
    return [cls for cls in named if cls is not None]


def build_module_to_env(config: AlgorithmConfig, setup: Agents, *, stateful: bool) -> ModuleToEnvPipeline:
    """The module-to-env pipeline, with the user's pieces before actions get the environment's range."""
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
    """All modules, each with the spaces of the agents that are mapped to it.

    If one of them is stateful, the pipeline gets the pieces that it needs.

    Args:
        config: The settings.
        setup: The environment.
        env_to_module: The pipeline whose output the modules see.
        seed: Of their parameters.
        rl_module_specs: The modules of a checkpoint, complete; None for those that the config asks for.

    Raises:
        ConfigError: If a module's spaces cannot be worked out, or ``policies_to_train`` names one that is not there.
        MappingError: If the mapping function raises, or agents of one module differ in their spaces.
    """
    multi = multi_spec_of(config)
    specs = rl_module_specs
    if specs is None:
        agents = agents_by_module(config, setup)
        specs = {}
        for module_id, agent_ids in agents.items():
            own = multi.completed(spec_of(config, module_id) or RLModuleSpec())
            specs[module_id] = _completed(own, config, setup, env_to_module, module_id, agent_ids)
        check_uses(specs, agents, config.policies_to_train)
        if not isinstance(multi.rl_module_specs, RLModuleSpec):
            for module_id, spec in multi.rl_module_specs.items():
                if module_id in specs:
                    continue
                if multi.multi_rl_module_class in (None, MultiRLModule):
                    raise ConfigError(
                        f"rl_module_spec: has a spec for module {module_id!r}, but the modules are {sorted(specs)}. "
                        f"Add it to policies, or map an agent to it."
                    )
                specs[module_id] = _completed(spec, config, setup, env_to_module, module_id, [])  # a part of the others
    built: dict[ModuleID, RLModuleSpec] = {}
    for module_id, spec in specs.items():
        with torch_stream(seed, "module", module_id):
            built[module_id] = _BuiltModuleSpec(**vars(spec), module=spec.build())
    with torch_stream(seed, "modules"):
        modules = dataclasses.replace(multi, rl_module_specs=built, load_state_path=None).build()
    if rl_module_specs is None:
        check_policies_to_train(config.policies_to_train, modules.keys())
        warn_of_overrides(config.algorithm_config_overrides_per_module, modules.keys())
        multi.load_state(modules)
    if modules.is_stateful() and config.add_default_connectors_to_env_to_module_pipeline:
        add_state_pieces(env_to_module)
    return modules.to(config.device)


@dataclasses.dataclass
class _BuiltModuleSpec(RLModuleSpec):
    """The spec of a module that is there already: each is built from random numbers of its own."""

    module: RLModule | None = None

    def build(self) -> RLModule:
        assert self.module is not None
        return self.module


def multi_spec_of(config: AlgorithmConfig) -> MultiRLModuleSpec:
    """What the config says about the MultiRLModule."""
    given = config.rl_module_spec
    return given if isinstance(given, MultiRLModuleSpec) else MultiRLModuleSpec(rl_module_specs=given or {})


def spec_of(config: AlgorithmConfig, module_id: ModuleID) -> RLModuleSpec | None:
    """What the config says about a module, in ``rl_module_spec`` or in ``policies``."""
    specs = multi_spec_of(config).rl_module_specs
    own = config.policies.get(module_id) if isinstance(config.policies, dict) else None
    return (specs if isinstance(specs, RLModuleSpec) else specs.get(module_id)) or own


def agents_by_module(config: AlgorithmConfig, setup: EnvSpec) -> dict[ModuleID, list[AgentID]]:
    """The modules, and which of the environment's possible agents a first episode maps to each."""
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
            f"policies: names {', '.join(map(repr, config.policies))}, but nothing says which agent uses which. Also "
            f"give policy_mapping_fn=lambda agent_id, episode, **kwargs: ..."
        )
    if isinstance(mapping, PatternPolicies):
        check_patterns(mapping, setup.agent_ids)
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
    model_config = spec.model_config
    if model_config is None:
        model_config = config.get_config_for_module(module_id).model_config
    spec = dataclasses.replace(
        spec,
        module_class=spec.module_class or config.get_default_rl_module_class(),
        model_config=model_config,
        observation_space=spec.observation_space
        or _common(env_to_module.observation_space, setup, module_id, agent_ids, "observation"),
        action_space=spec.action_space or _common(env_to_module.action_space, setup, module_id, agent_ids, "action"),
    )
    return config.complete_rl_module_spec(spec, setup, env_to_module)


def _common(space: Space | None, setup: EnvSpec, module_id: ModuleID, agent_ids: list[AgentID], kind: str) -> Space:
    """The space that all agents of a module have."""
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
    config: AlgorithmConfig, setup: EnvSpec, modules: MultiRLModule, env_to_module: EnvToModulePipeline, seed: int
) -> Learner:
    """The learner and its pipeline."""
    input_spaces = setup.space_of_all(0), setup.space_of_all(1)
    custom = call_builder("learner_connector", config.learner_connector, *input_spaces)
    pipeline = learner_pipeline(
        custom,
        multi_agent=not setup.single_agent,
        observation_space=input_spaces[0],
        action_space=input_spaces[1],
        device=config.device,
        clip_rewards=config.clip_rewards,
        of_algorithm=config.default_learner_pieces(setup, env_to_module),
        add_defaults=config.add_default_connectors_to_learner_pipeline,
        stateful=modules.is_stateful(),
    )
    learner_class: Any = config.learner_class or config.get_default_learner_class()
    learner = learner_class(config=config, module=modules, pipeline=pipeline, seed=seed)
    learner.build()
    return learner


def add_state_pieces_to(
    config: AlgorithmConfig, env_to_module: EnvToModulePipeline, env_runner: EnvRunner, learner: Learner
) -> None:
    """Makes ready for stateful modules while training goes on.

    Raises:
        ConfigError: If the runner keeps no steps from before a cut, and so no states.
    """
    if env_runner.lookback < AddStatesFromEpisodesToBatch.lookback:
        raise ConfigError(
            "add_module: a stateful module needs the state before a cut, but episode_lookback_horizon is 0. Set "
            ".env_runners(episode_lookback_horizon=1)."
        )
    if config.add_default_connectors_to_env_to_module_pipeline:
        add_state_pieces(env_to_module)
    if config.add_default_connectors_to_module_to_env_pipeline:
        add_state_pieces(env_runner.module_to_env)
    if config.add_default_connectors_to_learner_pipeline:
        add_state_pieces(learner.pipeline)


def build_env_runner(
    config: AlgorithmConfig,
    setup: EnvSpec,
    modules: MultiRLModule,
    env_to_module: EnvToModulePipeline,
    learner_pipeline: LearnerConnectorPipeline,
    *,
    seed: int,
    num_envs: int,
    explore: bool,
    rollout_fragment_length: int,
    render_mode: str | None = None,
    first_render_mode: str | None = None,
    for_training: bool = True,
    warned_of_bounds: dict[Any, set[int]] | None = None,
) -> EnvRunner:
    """A runner with copies of its own, which keeps as many earlier steps as the pieces of two pipelines look at.

    One whose episodes are ``for_training`` also records the environment's states, if the learner pipeline reads them.
    """
    make_env = dataclasses.replace(setup.factory, render_mode=render_mode, first_render_mode=first_render_mode)
    return EnvRunner(
        make_env,
        num_envs=num_envs,
        seed=seed,
        single_agent=setup.single_agent,
        agent_spaces=setup.agent_spaces,
        policy_mapping_fn=config.policy_mapping_fn,
        rl_module=modules,
        env_to_module=env_to_module,
        module_to_env=build_module_to_env(config, setup, stateful=modules.is_stateful()),
        explore=explore,
        lookback=max(
            config.episode_lookback_horizon, needed_lookback(env_to_module), needed_lookback(learner_pipeline)
        ),
        rollout_fragment_length=rollout_fragment_length,
        complete_episodes=config.batch_mode == "complete_episodes",
        check_spaces=not config.disable_env_checking,
        warned_of_bounds=warned_of_bounds,
        callbacks=config.make_callbacks(),
        env_config=config.env_config,
        num_env_workers=0 if render_mode else num_env_workers(config, setup, num_envs),
        sample_timeout_s=config.sample_timeout_s,
        restarts=_env_restarts(config, make_env),
        state_space=setup.state_space if for_training and reads_env_states(learner_pipeline) else None,
    )


def reads_env_states(pipeline: ConnectorPipelineV2) -> bool:
    """Whether a piece of a pipeline reads the states of the environment."""
    return any(
        reads_env_states(piece) if isinstance(piece, ConnectorPipelineV2) else getattr(piece, "reads_env_states", False)
        for piece in pipeline
    )


def needed_lookback(pipeline: ConnectorPipelineV2) -> int:
    """How many earlier steps the pieces of a pipeline look at."""
    inner = [needed_lookback(p) if isinstance(p, ConnectorPipelineV2) else getattr(p, "lookback", 0) for p in pipeline]
    return max(inner, default=0)


def stop_counting(pipeline: ConnectorPipelineV2) -> list[MeanStdFilter]:
    """Lets filters use the statistics that they have, and count no further; those that did until now."""
    stopped: list[MeanStdFilter] = []
    for piece in pipeline:
        if isinstance(piece, ConnectorPipelineV2):
            stopped += stop_counting(piece)
        elif isinstance(piece, MeanStdFilter) and piece.update_stats:
            piece.update_stats = False
            stopped.append(piece)
    return stopped


def _env_restarts(config: AlgorithmConfig, make_env: EnvFactory) -> EnvRestarts | None:
    """How environments that failed are replaced; None if a failure stops the run."""
    if not config.restart_failed_sub_environments:
        return None
    return EnvRestarts(make_env, config.num_consecutive_env_failures_tolerance, config.observation_space)
