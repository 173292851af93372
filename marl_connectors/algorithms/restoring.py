"""Checkpoints of an Algorithm: what is in them, and how a run goes on from one."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.building import add_state_pieces_to, spec_of
from marl_connectors.algorithms.changing_modules import ChangingModules, ModulesToUpdate
from marl_connectors.algorithms.checkpoint_schema import check_state, taking_over
from marl_connectors.algorithms.config_state import (
    config_from_state,
    config_to_state,
    from_state,
    spec_fields,
    to_state,
)
from marl_connectors.algorithms.masking import AUTO, Masking, masking_from_state
from marl_connectors.callbacks import CallbackCalls
from marl_connectors.checkpoints import find_checkpoint, load_state, save_state
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.environments.spec import EnvSpec
from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.metrics import MetricsLogger
from marl_connectors.names import Names, brief
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.module_states import check_state_out
from marl_connectors.rl_module.multi_rl_module_spec import MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.spaces import describe, same
from marl_connectors.typing import AgentID, ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self


class RestorableAlgorithm(ChangingModules):
    """What an Algorithm can do with checkpoints.

    Attributes:
        callbacks: Told of what happens.
        masking: The action masks that are honoured.
        metrics: What callbacks have logged.
        iteration: How many ``train()`` have been.
        time_total_s: How long they took.
    """

    callbacks: CallbackCalls
    masking: Masking
    metrics: MetricsLogger
    iteration: int
    time_total_s: float
    _num_evaluations: int
    _recent: deque[EpisodeTally]
    _has_warned_of_episodes = False

    def get_state(self) -> dict[str, Any]:
        """Everything that the next iteration depends on, as JSON data, arrays and tensors."""
        multi = MultiRLModuleSpec.from_module(self.rl_module)
        specs: Any = multi.rl_module_specs
        multi.rl_module_specs = {}
        return {
            "config": config_to_state(self.config),
            "changed_settings": sorted(self._changed_settings),
            "seed": self.seed,
            "iteration": self.iteration,
            "time_total_s": self.time_total_s,
            "num_evaluations": self._num_evaluations,
            "recent_tallies": [tally.get_state() for tally in self._recent],
            "spaces": self._described_spaces(),
            "agents": agents_to_state(self._setup),
            "masking": self.masking.get_state(),
            "multi_rl_module": to_state(multi),
            "rl_modules": [[module_id, to_state(spec)] for module_id, spec in specs.items()],
            "learner": self.learner.get_state(),
            "env_runner": self.env_runner.get_state(),
            "metrics": self.metrics.get_state(),
        }

    def _described_spaces(self) -> dict[str, list[str]]:
        return {
            str(agent_id): [describe(space) for space in self._setup.agent_spaces(agent_id)]
            for agent_id in self._setup.agent_ids
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what ``get_state`` gave. If that fails, the algorithm is as it was before.

        Names of functions and classes in the state are imported, as by ``from_checkpoint(..., trusted=True)``.

        Raises:
            CheckpointError: If it is not such a state, or is of another environment or other modules; or if an ongoing
                episode cannot be replayed. Where it cannot be undone (the environment must be repeatable for that),
                the message says that the algorithm must not be used any more.
        """
        self._set_state(state, Names())

    def _set_state(self, state: dict[str, Any], names: Names, new_episodes: bool = False) -> None:
        """Takes over a state, or leaves everything as it is."""
        check_state(state)
        with taking_over("setup"):
            self._check_fits(state)
        undo = self._undo()
        try:
            self._take_changed_settings(state, (), names)
            self._apply(state, new_episodes)
        except BaseException as error:
            try:
                undo()
            except Exception as second:
                raise CheckpointError(
                    f"{error} A part of it had been taken over by then, which could not be undone ({second}). Do not "
                    f"use this algorithm any more; build it anew."
                ) from error
            raise

    def _undo(self) -> Callable[[], None]:
        """What brings the algorithm back to where it is now."""
        settings, changed = self.config.to_dict(), set(self._changed_settings)
        before: Any
        try:
            before = copy.deepcopy(self.get_state())  # a copy, as it shares arrays with the episodes that go on
        except EpisodeError as error:  # their notes hold what no state can
            before = error

        def undo() -> None:
            if isinstance(before, Exception):
                raise before
            self.config.change(**settings)
            self._changed_settings = changed
            self.env_runner.set_policy_mapping_fn(self.config.policy_mapping_fn)
            self._apply(before)

        return undo

    def _apply(self, state: Mapping[str, Any], new_episodes: bool = False) -> None:
        """Sets all but the settings."""
        with taking_over("counts"):
            self.seed = state["seed"]
            self.iteration = state["iteration"]
            self.time_total_s = state["time_total_s"]
            self._num_evaluations = state["num_evaluations"]
            self._recent.clear()
            self._recent.extend(EpisodeTally.from_state(tally) for tally in state["recent_tallies"])
            self.metrics.set_state(state.get("metrics", []))
        with taking_over("learner"):
            if AddStatesFromEpisodesToBatch.__name__ in state["env_runner"]["env_to_module"]:
                add_state_pieces_to(self.config, self._env_to_module, self.env_runner, self.learner)
            self.learner.set_state(state["learner"])
        with taking_over("env_runner"):
            self.env_runner.set_state(state["env_runner"], new_episodes)

    def _take_changed_settings(self, state: dict[str, Any], given: Collection[str], names: Names) -> None:
        """Settings that were others, here or there, than at the beginning of the run."""
        with taking_over("config"):
            for name in sorted({*state["changed_settings"], *self._changed_settings}.difference(given)):
                if to_state(getattr(self.config, name), name) != state["config"]["settings"][name]:
                    self._set(**{name: _changed(state, name, names)})
            self.env_runner.set_policy_mapping_fn(self.config.policy_mapping_fn)
            self._changed_settings = {*state["changed_settings"], *given}

    def _check_fits(self, state: dict[str, Any]) -> None:
        here = self._described_spaces()
        if here != state["spaces"]:
            raise CheckpointError(
                f"checkpoint: it is of an environment with agents {_briefly(state['spaces'])}, but {self._setup.name} "
                f"has {_briefly(here)}. Restore it into the environment that it was made in."
            )
        modules = self.rl_module.get_state()
        if set(state["learner"]["module"]) != set(modules):
            raise CheckpointError(
                f"checkpoint: it has the modules {sorted(state['learner']['module'])}, but this run has "
                f"{sorted(modules)}. Use the same policies, or Algorithm.from_checkpoint, which builds "
                f"the modules that were there."
            )
        for module_id, saved in state["learner"]["module"].items():
            shapes = {name: tuple(value.shape) for name, value in modules[module_id].items()}
            for name in sorted({*shapes, *saved}):
                there = tuple(saved[name].shape) if name in saved else None
                if shapes.get(name) != there:
                    raise CheckpointError(
                        f"checkpoint: module {module_id!r} is of another architecture: its {name!r} has the shape "
                        f"{there}, but here {shapes.get(name)}. Use the same rl_module settings."
                    )
        for group in (state["env_runner"]["episodes"] or {"groups": ()})["groups"]:
            columns, module_id = group["rollout"]["columns"], group["members"][1]
            if module_id is not None and Columns.STATE_OUT in columns:
                num_rows = len(columns[Columns.T])
                check_state_out(self.rl_module[module_id], module_id, columns[Columns.STATE_OUT], num_rows)
        copies = len(state["env_runner"]["episode_numbers"])
        if copies != self.config.num_envs_per_env_runner:
            raise CheckpointError(
                f"checkpoint: it has {copies} sub-environments, this run has {self.config.num_envs_per_env_runner}. "
                f"Use the same num_envs_per_env_runner."
            )

    def save_to_path(self, path: str | Path) -> str:
        """Writes a checkpoint folder: tensors as safetensors, the rest as JSON.

        Warns once if the ongoing episodes cannot be kept, so that a resumed run will begin new ones.
        """
        why = self.env_runner.why_episodes_are_not_kept()
        if why and not self._has_warned_of_episodes:
            self._has_warned_of_episodes = True
            warnings.warn(
                f"checkpoint: {why}, so a run that is resumed from {path} begins new episodes instead of going on in "
                f"the ongoing ones. All else is in the checkpoint.",
                stacklevel=2,
            )
        save_state(path, self.get_state())
        return str(path)

    def restore_from_path(self, path: str | Path, *, new_episodes: bool = False, trusted: bool = True) -> None:
        """Takes over a checkpoint's state, so that training goes on as if it had never stopped.

        Args:
            path: The checkpoint folder, or the folder of a run for its latest.
            new_episodes: As in ``from_checkpoint``.
            trusted: As in ``from_checkpoint``, for settings that were changed while that run went on.

        Raises:
            CheckpointError: As ``set_state``; or if the checkpoint is missing or damaged.
        """
        self._set_state(algorithm_state(path), Names(trusted), new_episodes)
        self.callbacks.tell("on_checkpoint_loaded", algorithm=self)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        config: AlgorithmConfig | None = None,
        policy_mapping_fn: str | PolicyMappingFn | None = None,
        policies_to_train: ModulesToUpdate | None = None,
        new_episodes: bool = False,
        trusted: bool = True,
    ) -> Self:
        """The algorithm that wrote a checkpoint, as it was then, with the modules that it had then.

        Args:
            path: The checkpoint folder, or the folder of a run for its latest.
            config: Needed only if the checkpoint's config holds functions or classes that cannot be imported by name.
                What ``add_module`` and ``remove_module`` have changed in it is changed again.
            policy_mapping_fn: Needed only if one that cannot be imported by name was set while training went on.
            policies_to_train: Likewise.
            new_episodes: Begin new episodes instead of going on in those of the checkpoint. For an environment that
                does not follow from ``reset(seed=...)``, so that its episodes cannot be replayed.
            trusted: Whether the modules of your own functions and classes are imported by the names that the checkpoint
                has for them, which runs the code in them. With False, a checkpoint that names anything but this
                library's own and known environments is refused; see docs/inference.md.

        Raises:
            CheckpointError: If it is missing, damaged, refused, or needs one of these arguments.
        """
        state, names = algorithm_state(path), Names(trusted)
        check_state(state)
        given = given_settings(policy_mapping_fn=policy_mapping_fn, policies_to_train=policies_to_train)
        with taking_over("config"):
            _check_sub_envs(state, config)
            restored = restored_config(state, config, given, names)
            specs, masking = restored_specs(state, restored, names), restored_masking(state, restored)
        # What is wrong in a config that the user has passed is not the checkpoint's fault.
        with taking_over("config") if config is None else nullcontext():
            trained = restored.policies_to_train
            if not (trained is None or callable(trained) or isinstance(trained, (list, tuple, set, frozenset))):
                raise CheckpointError(f"checkpoint: its policies_to_train is {brief(trained)}, not a list of modules.")
            algorithm = cls(restored, rl_module_specs=specs, masking=masking)  # type: ignore[call-arg]
        try:
            with taking_over("setup"):
                algorithm._check_fits(state)
            algorithm._take_changed_settings(state, tuple(given), names)
            algorithm._apply(state, new_episodes)
        except BaseException:
            algorithm.stop()  # type: ignore[attr-defined]
            raise
        algorithm.callbacks.tell("on_checkpoint_loaded", algorithm=algorithm)
        return algorithm


def _check_sub_envs(state: Mapping[str, Any], config: AlgorithmConfig | None) -> None:
    """Sub-environments are made before the episodes in them are looked at, so their number is looked at first."""
    number = state["config"]["settings"].get("num_envs_per_env_runner")
    if config is None and number != len(state["env_runner"]["episode_numbers"]):
        raise CheckpointError(
            f"checkpoint: it is damaged: num_envs_per_env_runner is {brief(number)}, but it has the episodes of "
            f"{len(state['env_runner']['episode_numbers'])}."
        )


# What load_policy reads too.


def algorithm_state(path: str | Path) -> dict[str, Any]:
    """What ``Algorithm.get_state`` gave, from a checkpoint or the folder of a run.

    Raises:
        CheckpointError: If there is none, or it is the state of something else.
    """
    state = load_state(find_checkpoint(path))
    if not {"config", "seed", "learner", "env_runner", "spaces"} <= set(state):
        raise CheckpointError(f"{path}: this is not a checkpoint of an Algorithm. Name one that save_to_path wrote.")
    return state


def given_settings(**settings: Any) -> dict[str, Any]:
    """Those of some settings that a user has passed."""
    return {name: value for name, value in settings.items() if value is not None}


def restored_config(
    state: Mapping[str, Any],
    config: AlgorithmConfig | None,
    given: Mapping[str, Any],
    names: Names,
    skip: Collection[str] = (),
) -> AlgorithmConfig:
    """The config of a checkpoint, or a given one in its place; with what was changed while training went on.

    Args:
        state: The algorithm's.
        config: The user's, or None.
        given: The user's settings, which come first.
        names: Follows the names in the checkpoint.
        skip: Settings that are not to be read.
    """
    if config is None:
        restored = config_from_state(state["config"], names=names, skip=skip, **given)
    else:
        restored = config.copy()
        for name in state["changed_settings"]:
            if name not in given and name not in skip:
                restored.change(**{name: _changed(state, name, names)})
        restored.change(**given)
        if restored.action_mask_key == AUTO:  # a run from before masks were honoured by default ignores them
            restored.action_mask_key = state["config"]["settings"].get("action_mask_key")
    restored.seed = state["seed"]
    return restored


def restored_masking(state: Mapping[str, Any], config: AlgorithmConfig) -> Masking | None:
    """The action masks that the run of a checkpoint honours; None if that is for the config to say."""
    saved = state.get("masking")
    if saved is None or state["config"]["settings"].get("action_mask_key") != config.action_mask_key:
        return None
    return masking_from_state(saved)


def _changed(state: Mapping[str, Any], name: str, names: Names) -> Any:
    try:
        return from_state(state["config"]["settings"][name], name, names)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint: {name} was changed while training went on, to what cannot be found again by name. Pass it as "
            f"it was then: Algorithm.from_checkpoint(path, config=..., {name}=...). ({error})"
        ) from error


def restored_specs(
    state: Mapping[str, Any], config: AlgorithmConfig, names: Names, wanted: Collection[ModuleID] | None = None
) -> dict[ModuleID, RLModuleSpec]:
    """How to build the modules of a checkpoint. A class that cannot be imported by name is taken from the config.

    Args:
        state: The algorithm's.
        config: Its config.
        names: Follows the names in the checkpoint.
        wanted: Of which modules; None for all.
    """
    return {
        module_id: _restored_spec(module_id, data, config, names)
        for module_id, data in state["rl_modules"]
        if wanted is None or module_id in wanted
    }


def _restored_spec(module_id: ModuleID, data: Any, config: AlgorithmConfig, names: Names) -> RLModuleSpec:
    own = spec_of(config, module_id)
    found: dict[str, Any] = {}
    for name, read in spec_fields(data, module_id, names).items():
        try:
            found[name] = read()
        except CheckpointError as error:
            found[name] = getattr(own, name, None)
            if found[name] is None:
                saved = data["value"][name]
                told = saved.get("value") if isinstance(saved, dict) else saved
                raise CheckpointError(
                    f"checkpoint: the {name} of module {module_id!r} was {brief(told)}, which cannot be found again by "
                    f"name. Pass a config that has it: .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs="
                    f"{{{module_id!r}: RLModuleSpec({name}=...)}})). ({error})"
                ) from error
    found["load_state_path"] = None  # the parameters are those of the checkpoint
    return RLModuleSpec(**found)


def agents_to_state(setup: EnvSpec) -> dict[str, Any]:
    """The environment's agents and their spaces, each space once."""
    known: list[Space] = []

    def place(space: Space) -> int:
        found = next((i for i, other in enumerate(known) if same(space, other)), None)
        if found is None:
            known.append(space)
        return len(known) - 1 if found is None else found

    agents = [[agent_id, *map(place, setup.agent_spaces(agent_id))] for agent_id in setup.agent_ids]
    return {
        "single_agent": setup.single_agent,
        "takes_turns": setup.takes_turns,
        "spaces": [to_state(space) for space in known],
        "agents": agents,
    }


def agents_from_state(state: Mapping[str, Any]) -> dict[AgentID, tuple[Any, Any]]:
    """Agent to its observation and action space."""
    known = [from_state(space, "space of an agent") for space in state["spaces"]]
    for space in known:
        if not isinstance(space, Space):
            raise CheckpointError(f"checkpoint: expected the space of an agent, but it is {brief(space)}.")
    return {agent_id: (known[i], known[j]) for agent_id, i, j in state["agents"]}


def _briefly(agents: dict[str, list[str]]) -> str:
    shown = ", ".join(f"{agent_id} ({' → '.join(pair)})" for agent_id, pair in list(agents.items())[:3])
    return shown + (", ..." if len(agents) > 3 else "")
