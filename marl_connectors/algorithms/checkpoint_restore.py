"""Reads the config, modules, agents and action masks from an Algorithm's checkpoint, and checks that they fit a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gymnasium import Space

from marl_connectors.algorithms import checkpoint_settings
from marl_connectors.algorithms.action_mask_setting import Masking
from marl_connectors.algorithms.algorithm_state import AgentsState, AlgorithmState
from marl_connectors.algorithms.build import spec_of
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.state import (
    config_from_state,
    from_state,
    to_state,
)
from marl_connectors.columns import Columns
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.errors import CheckpointError
from marl_connectors.names import Names, brief
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.rl_module.states import check_state_out
from marl_connectors.spaces import describe, same
from marl_connectors.typing import AgentID, ModuleID

FILES = {
    "input_": None,
    "output": None,
    "held_out_input_": None,
    "held_out_fraction": 0.0,
    "live_fraction": 0.0,
    "offline_evaluation_interval": None,
    "track": (),
}
"""The settings that name files to read and write, or depend on them, or send results elsewhere, with their values
without files."""
ELSEWHERE = {"num_env_runners": 0, "evaluation_num_env_runners": 0, "num_learners": 0, "ray_address": None}
"""The settings that let parts of a run be in other processes, with their values for this process."""


def given_settings(**settings: Any) -> dict[str, Any]:
    """Returns the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


# Whether a checkpoint fits a run.


def check_num_envs(state: AlgorithmState, config: AlgorithmConfig) -> None:
    """Checks the number of sub-environments. They are made before anything looks at the episodes in them.

    Only the number of all sub-environments matters, and not how they are divided among env runners.

    Raises:
        CheckpointError: If the checkpoint's config and its episodes disagree.
    """
    episodes = len(state.env_runner.sub_environments)
    if config.num_envs != episodes:
        raise CheckpointError(
            f"checkpoint: it is damaged: num_envs_per_env_runner is {config.num_envs_per_env_runner} and "
            f"num_env_runners is {config.num_env_runners}, but it has the episodes of {episodes}."
        )


def check_fits(state: AlgorithmState, setup: EnvSpec, modules: MultiRLModule, num_envs: int) -> None:
    """Checks that a state belongs to an environment and to modules like those of a run.

    Args:
        state: The algorithm's state.
        setup: The run's environment.
        modules: The run's modules.
        num_envs: The number of sub-environments of all env runners of the run.

    Raises:
        CheckpointError: If it does not.
    """
    here = described_spaces(setup)
    if here != state.spaces:
        raise CheckpointError(
            f"checkpoint: it is of an environment with agents {_briefly(state.spaces)}, but {setup.name} "
            f"has {_briefly(here)}. Restore it into the environment that it was made in."
        )
    _check_modules_fit(state.parameters, modules)
    for episode in (own.episode for own in state.env_runner.sub_environments if own.episode is not None):
        for group in episode.groups:
            module_id, num_rows = group.lanes[0].module_id, len(group.rollout.acted)
            if module_id not in modules:
                raise CheckpointError(f"checkpoint: it is damaged: agents are mapped to {module_id!r}, not a module.")
            for column in group.rollout.layers.get(Columns.STATE_OUT, ()):
                check_state_out(modules[module_id], module_id, column, num_rows)
    number = len(state.env_runner.sub_environments)
    if number != num_envs:
        raise CheckpointError(
            f"checkpoint: it has {number} sub-environments, this run has {num_envs}. Use the same number: "
            f"num_envs_per_env_runner for each env runner, and num_env_runners (0 counts as 1)."
        )


def _check_modules_fit(saved: Mapping[ModuleID, Mapping[str, Any]], modules: MultiRLModule) -> None:
    here = modules.get_state()
    if set(saved) != set(here):
        raise CheckpointError(
            f"checkpoint: it has the modules {sorted(saved)}, but this run has {sorted(here)}. Use the same policies, "
            f"or Algorithm.from_checkpoint, which builds the modules of the checkpoint."
        )
    for module_id, parameters in saved.items():
        shapes = {name: tuple(value.shape) for name, value in here[module_id].items()}
        for name in sorted({*shapes, *parameters}):
            there = tuple(parameters[name].shape) if name in parameters else None
            if shapes.get(name) != there:
                raise CheckpointError(
                    f"checkpoint: module {module_id!r} is of another architecture: its {name!r} has the shape "
                    f"{there}, but here {shapes.get(name)}. Use the same rl_module settings."
                )


# Config, action masks and modules.


def restored_config(
    state: AlgorithmState,
    config: AlgorithmConfig | None,
    given: Mapping[str, Any],
    names: Names,
    skip: Collection[str] = (),
) -> AlgorithmConfig:
    """Returns a checkpoint's config or the user's config, with the settings that changed during training.

    Args:
        state: The algorithm's state.
        config: The user's config, or None.
        given: The user's settings, which have precedence.
        names: Looks up the names in the checkpoint.
        skip: Settings that are not read.
    """
    if config is None:
        restored = config_from_state(state.config, names=names, skip=skip, **given)
        if not names.trusted:  # its author does not choose which files are read and written
            restored.change(**{name: value for name, value in FILES.items() if name not in given})
    else:
        checkpoint_settings.check_class(state.config, config, names)
        restored = config.copy()
        for name in state.changed_settings:
            if name not in given and name not in skip:
                restored.change(**{name: changed_setting(state, name, names, restored)})
        restored.change(**given)
        checkpoint_settings.check_settings(state, restored, names, restored_later=skip)
    restored.seed = state.seed
    return restored


def check_stays_here(config: AlgorithmConfig, wanted: Mapping[str, Any]) -> None:
    """Checks that the author of a checkpoint does not choose the processes and the cluster of a run.

    Whoever owns a cluster can run any code in the processes that connect to it.

    Args:
        config: The restored config.
        wanted: The values that the user has chosen for the settings in ``ELSEWHERE``. The default of each is allowed.

    Raises:
        CheckpointError: If the config has another value for one of them.
    """
    for name, value in ELSEWHERE.items():
        if getattr(config, name) not in (value, wanted.get(name, value)):
            raise CheckpointError(
                f"checkpoint: its {name} is {brief(getattr(config, name))}, and trusted=False starts no processes and "
                f"connects to no cluster that a checkpoint names. Choose yourself: pass a config with {name}, or "
                f"with {name}={value!r} to stay in this process."
            )


def restored_masking(state: AlgorithmState, config: AlgorithmConfig) -> Masking | None:
    """Returns the action masks that the run of a checkpoint applied; None if the config decides."""
    return state.masking if state.config.settings["action_mask_key"] == config.action_mask_key else None


def changed_setting(state: AlgorithmState, name: str, names: Names, config: AlgorithmConfig) -> Any:
    """Returns the value of a setting that changed during training.

    Args:
        state: The algorithm's state.
        name: The setting.
        names: Looks up the names in the checkpoint.
        config: The config, which has the specs of ``policies``.

    Raises:
        CheckpointError: If it cannot be imported by name.
    """
    if name == "policies":
        return checkpoint_settings.changed_policies(state.config.settings[name], config.policies)
    try:
        return from_state(state.config.settings[name], name, names)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint: {name} was changed during training, to a value that cannot be imported by name. Pass the "
            f"value: Algorithm.from_checkpoint(path, config=..., {name}=...). ({error})"
        ) from error


def restored_specs(
    state: AlgorithmState, config: AlgorithmConfig, names: Names, wanted: Collection[ModuleID] | None = None
) -> dict[ModuleID, RLModuleSpec]:
    """Returns the specs of the modules of a checkpoint. Classes without importable names are those of the config.

    Args:
        state: The algorithm's state.
        config: The algorithm's config.
        names: Looks up the names in the checkpoint.
        wanted: The modules; None for all.
    """
    return {
        module_id: state.modules.module(module_id).restored_spec(names, module_id, spec_of(config, module_id))
        for module_id in state.modules.specs
        if wanted is None or module_id in wanted
    }


# Agents and their spaces.


def described_spaces(setup: EnvSpec) -> dict[str, list[str]]:
    """Maps each agent to the texts that describe its observation and action space."""
    return {str(agent_id): [describe(space) for space in setup.agent_spaces(agent_id)] for agent_id in setup.agent_ids}


def agents_to_state(setup: EnvSpec) -> AgentsState:
    """Returns the environment's agents and their spaces as JSON data, with each distinct space once."""
    known: list[Space] = []

    def place(space: Space) -> int:
        found = next((i for i, other in enumerate(known) if same(space, other)), None)
        if found is None:
            known.append(space)
        return len(known) - 1 if found is None else found

    places = {agent_id: tuple(map(place, setup.agent_spaces(agent_id))) for agent_id in setup.agent_ids}
    return AgentsState(
        single_agent=setup.single_agent,
        takes_turns=setup.takes_turns,
        spaces=[to_state(space) for space in known],
        agents=[(agent_id, seen, taken) for agent_id, (seen, taken) in places.items()],
    )


def agents_from_state(state: AgentsState) -> dict[AgentID, tuple[Any, Any]]:
    """Maps each agent to its observation and action space."""
    known = [from_state(space, "space of an agent") for space in state.spaces]
    for space in known:
        if not isinstance(space, Space):
            raise CheckpointError(f"checkpoint: expected the space of an agent, but it is {brief(space)}.")
    return {agent_id: (known[i], known[j]) for agent_id, i, j in state.agents}


def _briefly(agents: dict[str, list[str]]) -> str:
    shown = ", ".join(f"{agent_id} ({' → '.join(pair)})" for agent_id, pair in list(agents.items())[:3])
    return shown + (", ..." if len(agents) > 3 else "")
