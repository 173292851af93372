"""load_policy: a Policy from a checkpoint, without the environment and without the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from gymnasium import Space, spaces

from marl_connectors.algorithms import building
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.checkpoint_schema import check_state, taking_over
from marl_connectors.algorithms.config_state import from_state
from marl_connectors.algorithms.policy import Policy
from marl_connectors.algorithms.restoring import (
    agents_from_state,
    algorithm_state,
    given_settings,
    restored_config,
    restored_masking,
    restored_specs,
)
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.defaults import add_state_pieces
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.errors import CheckpointError, ModuleError, did_you_mean
from marl_connectors.names import Names, brief
from marl_connectors.policy_mapping import PolicyMappingFn, SharedPolicy
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.multi_rl_module_spec import MultiRLModuleSpec
from marl_connectors.seeding import torch_stream
from marl_connectors.spaces import describe
from marl_connectors.typing import DEFAULT_AGENT_ID, SHARED, AgentID, ModuleID

_NOT_NEEDED = (
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
"""Settings that have no part in acting, so that it does not matter whether they can be found again by name."""

_MOST_LOOKBACK = 2**20
"""Steps that no run keeps, and no memory holds for many agents."""


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
    """A trained policy, to act in an environment of yours.

    For example::

        policy = load_policy("runs/simple_spread_v3-shared-seed0")
        actions = policy.actions(observations)  # {agent: action}
        action = policy(observation, agent_id="agent_0")

    It takes observations as the environment gave them in training (after the ``wrappers`` of the config, if there are
    any) and gives actions for it. Neither an environment nor a learner is built.

    Args:
        checkpoint: A checkpoint, or the folder of a run for its latest.
        module_id: Lets all agents act by this module, those too that were not there in training. Agents act as they
            were mapped in training if None.
        policy_mapping_fn: Which agent acts by which module. Needed if the function of training cannot be imported by
            name.
        config: The config of training. Needed only if it holds connector builders or module classes that cannot be
            imported by name.
        env: An environment as in training. Needed only if a connector builder asks it for more than its agents and
            their spaces.
        explore: Whether actions are sampled; else they are the most likely ones.
        seed: Of sampled actions.
        device: Where the modules compute.
        trusted: Whether the modules of your own functions and classes are imported by the names that the checkpoint has
            for them, which runs the code in them. With False, a checkpoint that needs anything but this library's own
            for acting is refused; see docs/inference.md.

    Raises:
        CheckpointError: If it is missing, damaged, refused, or needs one of the other arguments.
        ModuleError: If it has no module of that id.
    """
    state, names = algorithm_state(checkpoint), Names(trusted)
    check_state(state)
    if module_id is not None:
        _check_module(module_id, state)
        policy_mapping_fn = SharedPolicy(module_id)
    given = given_settings(policy_mapping_fn=policy_mapping_fn)
    with taking_over("config"):
        used = restored_config(state, config, given, names, skip=_NOT_NEEDED)
        masking = restored_masking(state, used)
        agents = _Agents(state["agents"], env)
        spec, parameters = _saved_modules(state, used, module_id, names)
        lookback = used.episode_lookback_horizon
        if type(lookback) is not int or not 0 <= lookback < _MOST_LOOKBACK:
            raise CheckpointError(
                f"checkpoint: its episode_lookback_horizon is {brief(lookback)}. Give the config anew."
            )
    pieces = state["env_runner"]["env_to_module"], state["env_runner"]["module_to_env"]
    stateful = AddStatesFromEpisodesToBatch.__name__ in pieces[0]
    # Errors in builders and modules that the user has passed show as they are.
    with taking_over("connector pieces") if config is None else nullcontext():
        env_to_module, _ = building.build_env_to_module(used, agents, device=torch.device(device), masking=masking)
        if stateful:
            add_state_pieces(env_to_module)
        module_to_env = building.build_module_to_env(used, agents, stateful=stateful)
    with taking_over("modules") if config is None else nullcontext(), torch_stream(0, "policy"):
        modules = spec.build()
    with taking_over("modules"):
        modules.set_state(parameters)
    with taking_over("connector pieces"):
        env_to_module.set_state(pieces[0])
        module_to_env.set_state(pieces[1])
    building.stop_counting(env_to_module)
    acts_for = None if module_id is None else agents.of_module(modules, module_id, env_to_module)
    return Policy(
        modules.to(device),
        env_to_module,
        module_to_env,
        agent_spaces=agents.spaces,
        single_agent=agents.single_agent,
        takes_turns=state["agents"].get("takes_turns", False),
        policy_mapping_fn=used.policy_mapping_fn,
        default_agent_id=acts_for,
        unknown_agents_like=None if agents.single_agent else acts_for,
        lookback=max(lookback, building.needed_lookback(env_to_module)),
        explore=explore,
        seed=seed,
    )


def _check_module(module_id: ModuleID, state: Mapping[str, Any]) -> None:
    known = [own for own, _ in state["rl_modules"]]
    if module_id not in known:
        raise ModuleError(f"load_policy: the checkpoint has no module {module_id!r}. {did_you_mean(module_id, known)}")


def _saved_modules(
    state: Mapping[str, Any], config: AlgorithmConfig, module_id: ModuleID | None, names: Names
) -> tuple[MultiRLModuleSpec, dict[ModuleID, Any]]:
    """How to build all modules of a checkpoint, or a single one of those that run one by one; and their parameters."""
    multi = building.multi_spec_of(config)
    if multi.multi_rl_module_class is None:
        multi = from_state(state["multi_rl_module"], "rl_module_spec", names)
    parameters = state["learner"]["module"]
    wanted = None
    if module_id is not None and multi.multi_rl_module_class is MultiRLModule:
        wanted, parameters = [module_id], {module_id: parameters[module_id]}
    specs = restored_specs(state, config, names, wanted)
    if wanted is None:
        specs = {own: spec for own, spec in specs.items() if not spec.learner_only}
        parameters = {own: values for own, values in parameters.items() if own in specs or own == SHARED}
    return dataclasses.replace(multi, rl_module_specs=specs, load_state_path=None), parameters


class _Agents:
    """What a checkpoint knows of the environment: stands in for it where pipelines are built."""

    def __init__(self, state: Mapping[str, Any], env: Any):
        self.spaces: dict[AgentID, tuple[Space, Space]] = agents_from_state(state)
        self.single_agent: bool = state["single_agent"]
        self.agent_ids: list[AgentID] = list(self.spaces)
        self.info_masks: Mapping[AgentID, Any] | None = None
        self.user_env = _EnvOfCheckpoint(self) if env is None else env

    def agent_spaces(self, agent_id: AgentID) -> tuple[Space, Space]:
        """As in EnvSpec."""
        return self.spaces[agent_id]

    def space_of_all(self, kind: int) -> Space:
        """As in EnvSpec."""
        if self.single_agent:
            return self.spaces[DEFAULT_AGENT_ID][kind]
        return spaces.Dict({agent_id: pair[kind] for agent_id, pair in self.spaces.items()})  # type: ignore[arg-type]

    def of_module(self, modules: MultiRLModule, module_id: ModuleID, env_to_module: EnvToModulePipeline) -> AgentID:
        """The first agent that fits a module, to take an observation for one of its where nothing says whose it is."""
        if self.single_agent:
            return DEFAULT_AGENT_ID
        wanted = modules[module_id].observation_space, modules[module_id].action_space
        seen: Any = env_to_module.observation_space, env_to_module.action_space
        fit = [a for a in self.spaces if all(_alike(of_all[a], own) for of_all, own in zip(seen, wanted, strict=True))]
        return module_id if module_id in fit else fit[0] if fit else next(iter(self.spaces))


def _alike(space: Space | None, other: Space | None) -> bool:
    return space is None or other is None or describe(space) == describe(other)


class _NotInCheckpoint(CheckpointError, AttributeError):
    """Something of an environment that a checkpoint does not know."""


class _EnvOfCheckpoint:
    """An environment of which only the agents and their spaces are known, for connector builders."""

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
            f"load_policy: a connector builder asks the environment for {name!r}, but a checkpoint knows only its "
            f"agents and their spaces. Pass an environment too: load_policy(checkpoint, env=...)."
        )
