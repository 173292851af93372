"""load_policy: a Policy from a checkpoint, without the environment and without the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gymnasium import Space, spaces

from marl_connectors.algorithms import build
from marl_connectors.algorithms.action_mask_setting import Masking
from marl_connectors.algorithms.algorithm_state import AgentsState, AlgorithmState, algorithm_state
from marl_connectors.algorithms.checkpoint_restore import (
    agents_from_state,
    given_settings,
    restored_config,
    restored_masking,
    restored_specs,
)
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.inference.policy import Policy
from marl_connectors.checkpoints import taking_over
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.defaults import add_state_pieces
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.errors import CheckpointError, ModuleError, did_you_mean
from marl_connectors.names import Names
from marl_connectors.policy_mapping import PolicyMappingFn, SharedPolicy
from marl_connectors.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import torch_stream
from marl_connectors.spaces import describe
from marl_connectors.typing import DEFAULT_AGENT_ID, SHARED, AgentID, ModuleID

_NOT_NEEDED = (
    "algorithm_configs",
    "env",
    "env_config",
    "wrappers",
    "callbacks_class",
    "evaluation_config",
    "learner_class",
    "learner_connector",
    "num_gpus_per_learner",
    "policies",
    "policies_to_train",
    "reset_options",
    "rl_module_spec",
)
"""Settings that acting does not depend on, so it does not matter whether their values can be imported by name."""

_MOST_LOOKBACK = 2**20
"""A number of steps that no run keeps, because no memory could hold them for many agents."""


@torch.inference_mode(False)
def load_policy(
    checkpoint: str | Path,
    module_id: ModuleID | None = None,
    *,
    policy_mapping_fn: str | PolicyMappingFn | None = None,
    config: AlgorithmConfig | None = None,
    env: Any = None,
    explore: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    trusted: bool = True,
) -> Policy:
    """Loads a trained policy, which acts in your own environment.

    For example::

        policy = load_policy("runs/simple_spread_v3-shared-seed0")
        actions = policy.actions(observations)  # {agent: action}
        action = policy(observation, agent_id="agent_0")

    The policy accepts observations as the environment returned them in training (after the ``wrappers`` of the config,
    if it has any) and returns actions for the environment. Neither an environment nor a learner is built.

    Args:
        checkpoint: A checkpoint, or the folder of a run for its latest checkpoint.
        module_id: The module for all agents, also for agents that were absent in training. If None, agents act with
            the modules that they were mapped to in training.
        policy_mapping_fn: Chooses the module of each agent. Needed if the function of training cannot be imported by
            name.
        config: The config of training. Needed only if it holds connector builders or module classes that cannot be
            imported by name.
        env: An environment as in training. Needed only if a connector builder reads more of it than its agents and
            their spaces.
        explore: Whether actions are sampled; if not, they are the most likely ones.
        seed: The seed of sampled actions.
        device: The device of the modules.
        trusted: Whether your own functions and classes are imported by their names in the checkpoint, which runs the
            code in their modules. With False, a checkpoint is refused if acting needs anything but this library's own
            objects; see docs/inference.md.

    Raises:
        CheckpointError: If it is missing, damaged, refused, or needs one of the other arguments.
        ModuleError: If it has no module of that id.
    """
    state, names = algorithm_state(checkpoint, with_replay_buffers=False), Names(trusted)
    if module_id is not None:
        _check_module(module_id, state)
        policy_mapping_fn = SharedPolicy(module_id)
    given = given_settings(policy_mapping_fn=policy_mapping_fn)
    with taking_over("config"):
        saved = _read(state, config, given, env, module_id, names)
    is_users = config is not None
    env_to_module, module_to_env = _build_pipelines(state, saved, torch.device(device), is_users)
    modules = _build_modules(saved, is_users)
    build.stop_counting(env_to_module)
    default_agent = None if module_id is None else saved.agents.of_module(modules, module_id, env_to_module)
    return Policy(
        modules.to(device),
        env_to_module,
        module_to_env,
        agent_spaces=saved.agents.spaces,
        single_agent=saved.agents.single_agent,
        takes_turns=state.agents.takes_turns,
        policy_mapping_fn=saved.config.policy_mapping_fn,
        default_agent_id=default_agent,
        unknown_agents_like=None if saved.agents.single_agent else default_agent,
        masked_in_infos=() if saved.masking is None else saved.masking.in_infos,
        lookback=max(saved.lookback, build.needed_lookback(env_to_module)),
        explore=explore,
        seed=seed,
    )


class _Saved(NamedTuple):
    """The parts of a checkpoint that acting depends on.

    Attributes:
        config: The settings of training, without those that are not needed.
        masking: The action masks that were applied; None if the config decides.
        agents: The agents and their spaces.
        spec: How to build the modules.
        parameters: The parameters of the modules.
        lookback: The number of earlier steps that episodes kept.
    """

    config: AlgorithmConfig
    masking: Masking | None
    agents: _Agents
    spec: MultiRLModuleSpec
    parameters: dict[ModuleID, Any]
    lookback: int


def _read(
    state: AlgorithmState,
    config: AlgorithmConfig | None,
    given: Mapping[str, Any],
    env: Any,
    module_id: ModuleID | None,
    names: Names,
) -> _Saved:
    used = restored_config(state, config, given, names, skip=_NOT_NEEDED)
    masking, agents = restored_masking(state, used), _Agents(state.agents, env)
    spec, parameters = _saved_modules(state, used, module_id, names)
    lookback = used.episode_lookback_horizon
    if lookback >= _MOST_LOOKBACK:
        raise CheckpointError(
            f"checkpoint: its episode_lookback_horizon is {lookback}. Pass the config of training: config=..."
        )
    return _Saved(used, masking, agents, spec, parameters, lookback)


def _build_pipelines(
    state: AlgorithmState, saved: _Saved, device: torch.device, is_users: bool
) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
    """Builds the pipelines of training with their states. Errors in builders of a user's config stay as they are."""
    states = state.env_runner.env_to_module, state.env_runner.module_to_env
    stateful = AddStatesFromEpisodesToBatch.__name__ in states[0]
    with nullcontext() if is_users else taking_over("connector pieces"):
        env_to_module, _ = build.build_env_to_module(saved.config, saved.agents, device=device, masking=saved.masking)
        if stateful:
            add_state_pieces(env_to_module)
        module_to_env = build.build_module_to_env(saved.config, saved.agents, stateful=stateful)
    with taking_over("connector pieces"):
        env_to_module.set_state(states[0])
        module_to_env.set_state(states[1])
    return env_to_module, module_to_env


def _build_modules(saved: _Saved, is_users: bool) -> MultiRLModule:
    """Builds the modules with their parameters. Errors in modules of a user's config stay as they are."""
    build.check_default_dtype()
    with nullcontext() if is_users else taking_over("modules"), torch_stream(0, "policy"):
        modules = _for_acting(saved.spec).build()
    with taking_over("modules"):
        read = {
            own: _read_by(module, saved.parameters[own]) for own, module in modules.items() if own in saved.parameters
        }
        modules.set_state({**saved.parameters, **read})
    return modules


def _for_acting(multi: MultiRLModuleSpec) -> MultiRLModuleSpec:
    """Returns the spec without what acting does not need, for the modules whose classes say what that is."""
    if multi.multi_rl_module_class is not MultiRLModule:
        return multi  # its forward passes may call anything
    specs = {
        own: dataclasses.replace(spec, inference_only=True) if _says_what_acts(spec.module_class) else spec
        for own, spec in multi.rl_module_specs.items()  # type: ignore[union-attr]
    }
    return dataclasses.replace(multi, rl_module_specs=specs)


def _says_what_acts(cls: type | None) -> bool:
    """Whether ``get_non_inference_attributes`` applies: no subclass of the class that defines it changes anything."""
    if cls is None or not issubclass(cls, InferenceOnlyAPI):
        return False
    says = next(each for each in cls.__mro__ if "get_non_inference_attributes" in vars(each))
    methods = {name for name in dir(says) if callable(getattr(says, name, None))}
    return all(methods.isdisjoint(vars(each)) for each in cls.__mro__[: cls.__mro__.index(says)])


def _read_by(module: RLModule, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the parameters of a checkpoint without those of layers that a module for acting does not have."""
    if not isinstance(module, InferenceOnlyAPI) or not module.inference_only:
        return parameters
    left_out = module.get_non_inference_attributes()
    if isinstance(module, TargetNetworkAPI):  # which are not made for acting, whether or not they are named
        left_out = [*left_out, *(name for name in parameters if not hasattr(module, name.partition(".")[0]))]
    paths = tuple(f"{path}." for path in left_out)
    return {name: value for name, value in parameters.items() if not f"{name}.".startswith(paths)}


def _check_module(module_id: ModuleID, state: AlgorithmState) -> None:
    if module_id not in state.modules.specs:
        hint = did_you_mean(module_id, list(state.modules.specs))
        raise ModuleError(f"load_policy: the checkpoint has no module {module_id!r}. {hint}")


def _saved_modules(
    state: AlgorithmState, config: AlgorithmConfig, module_id: ModuleID | None, names: Names
) -> tuple[MultiRLModuleSpec, dict[ModuleID, Any]]:
    """Returns the specs and the parameters of a checkpoint's modules, or of one if they run one by one."""
    multi = build.multi_spec_of(config)
    if multi.multi_rl_module_class is None:
        multi = state.modules.restored_spec(names, {})
    parameters = state.parameters
    wanted = None
    if module_id is not None and multi.multi_rl_module_class is MultiRLModule:
        wanted, parameters = [module_id], {module_id: parameters[module_id]}
    specs = restored_specs(state, config, names, wanted)
    if wanted is None:
        specs = {own: spec for own, spec in specs.items() if not spec.learner_only}
        parameters = {own: values for own, values in parameters.items() if own in specs or own == SHARED}
    return dataclasses.replace(multi, rl_module_specs=specs, load_state_path=None), parameters


class _Agents:
    """The agents and spaces in a checkpoint. Pipelines are built from them instead of from an environment."""

    def __init__(self, state: AgentsState, env: Any):
        self.spaces: dict[AgentID, tuple[Space, Space]] = agents_from_state(state)
        self.single_agent: bool = state.single_agent
        self.agent_ids: list[AgentID] = list(self.spaces)
        self.info_masks: Mapping[AgentID, Any] | None = None
        self.user_env = _EnvOfCheckpoint(self) if env is None else env

    def agent_spaces(self, agent_id: AgentID) -> tuple[Space, Space]:
        """Returns an agent's observation and action space."""
        return self.spaces[agent_id]

    def space_of_all(self, kind: int) -> Space:
        """Returns the observation (0) or action (1) space of the single agent, or a Dict of all agents' spaces."""
        if self.single_agent:
            return self.spaces[DEFAULT_AGENT_ID][kind]
        return spaces.Dict({agent_id: pair[kind] for agent_id, pair in self.spaces.items()})  # type: ignore[arg-type]

    def of_module(self, modules: MultiRLModule, module_id: ModuleID, env_to_module: EnvToModulePipeline) -> AgentID:
        """Returns the first agent whose spaces fit a module. Observations without an agent id count as this agent's."""
        if self.single_agent:
            return DEFAULT_AGENT_ID
        wanted = modules[module_id].observation_space, modules[module_id].action_space
        seen: Any = env_to_module.observation_space, env_to_module.action_space
        fit = [a for a in self.spaces if all(_alike(of_all[a], own) for of_all, own in zip(seen, wanted, strict=True))]
        return module_id if module_id in fit else fit[0] if fit else next(iter(self.spaces))


def _alike(space: Space | None, other: Space | None) -> bool:
    return space is None or other is None or describe(space) == describe(other)


class _NotInCheckpoint(CheckpointError, AttributeError):
    """An attribute of the environment that is not in a checkpoint."""


class _EnvOfCheckpoint:
    """An environment for connector builders, of which only the agents and their spaces are known."""

    def __init__(self, agents: _Agents):
        self._agents = agents
        if agents.single_agent:
            self.observation_space, self.action_space = agents.spaces[DEFAULT_AGENT_ID]
        else:
            self.possible_agents = list(agents.spaces)
            self.observation_space = lambda agent_id: agents.spaces[agent_id][0]
            self.action_space = lambda agent_id: agents.spaces[agent_id][1]

    def __getattr__(self, name: str) -> Any:
        raise _NotInCheckpoint(
            f"load_policy: a connector builder reads the environment's {name!r}, but a checkpoint holds only the "
            f"agents and their spaces. Pass an environment too: load_policy(checkpoint, env=...)."
        )
