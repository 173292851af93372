"""Checkpoints of an Algorithm: what is in them, and how a run goes on from one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.building import add_state_pieces_to, spec_of
from marl_connectors.algorithms.changing_modules import ChangingModules, ModulesToUpdate
from marl_connectors.algorithms.config_state import config_from_state, config_to_state, from_state, to_state
from marl_connectors.algorithms.masking import AUTO, Masking, masking_from_state
from marl_connectors.callbacks import CallbackCalls
from marl_connectors.checkpoints import find_checkpoint, load_state, save_state
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.env_runners.episode_metrics import Tally, tally_from_state
from marl_connectors.environments.env_setup import EnvSetup
from marl_connectors.errors import CheckpointError
from marl_connectors.metrics import MetricsLogger
from marl_connectors.policy_mapping import PolicyMappingFn, policy_mapping
from marl_connectors.rl_module.multi_rl_module_spec import MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.spaces import describe
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
    _recent: deque[Tally]

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
        """Takes what ``get_state`` gave.

        Raises:
            CheckpointError: If it is of another environment or other modules; nothing is changed then. Or if an ongoing
                episode cannot be replayed.
        """
        self._set_state(state)

    def _set_state(self, state: dict[str, Any], given: Collection[str] = ()) -> None:
        """Sets all but the settings that a user has ``given`` anew."""
        self._check_fits(state)
        self._take_changed_settings(state, given)
        self.seed = state["seed"]
        self.iteration = state["iteration"]
        self.time_total_s = state["time_total_s"]
        self._num_evaluations = state["num_evaluations"]
        if AddStatesFromEpisodesToBatch.__name__ in state["env_runner"]["env_to_module"]:
            add_state_pieces_to(self.config, self._env_to_module, self.env_runner, self.learner)
        self._recent.clear()
        self._recent.extend(tally_from_state(tally) for tally in state["recent_tallies"])
        self.learner.set_state(state["learner"])
        self.env_runner.set_state(state["env_runner"])
        self.metrics.set_state(state.get("metrics", []))

    def _take_changed_settings(self, state: dict[str, Any], given: Collection[str]) -> None:
        """Settings that were others, here or there, than at the beginning of the run."""
        for name in sorted({*state["changed_settings"], *self._changed_settings}.difference(given)):
            if to_state(getattr(self.config, name), name) != state["config"]["settings"][name]:
                self._set(**{name: _changed(state, name)})
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
        copies = len(state["env_runner"]["episode_numbers"])
        if copies != self.config.num_envs_per_env_runner:
            raise CheckpointError(
                f"checkpoint: it has {copies} environment copies, this run has {self.config.num_envs_per_env_runner}. "
                f"Use the same num_envs_per_env_runner."
            )

    def save_to_path(self, path: str | Path) -> str:
        """Writes a checkpoint folder: tensors as safetensors, the rest as JSON."""
        save_state(path, self.get_state())
        return str(path)

    def restore_from_path(self, path: str | Path) -> None:
        """Takes over a checkpoint's state, so that training goes on as if it had never stopped."""
        self._take_over(path, algorithm_state(path))
        self.callbacks.tell("on_checkpoint_loaded", algorithm=self)

    def _take_over(self, path: str | Path, state: dict[str, Any], given: Collection[str] = ()) -> None:
        try:
            self._set_state(state, given)
        except KeyError as error:
            raise lacks(path, error) from error

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        config: AlgorithmConfig | None = None,
        policy_mapping_fn: str | PolicyMappingFn | None = None,
        policies_to_train: ModulesToUpdate | None = None,
        with_episodes: bool = True,
    ) -> Self:
        """The algorithm that wrote a checkpoint, as it was then, with the modules that it had then.

        Args:
            path: The checkpoint folder, or the folder of a run for its latest.
            config: Needed only if the checkpoint's config holds functions or classes that cannot be imported by name.
                What ``add_module`` and ``remove_module`` have changed in it is changed again.
            policy_mapping_fn: Needed only if one that cannot be imported by name was set while training went on.
            policies_to_train: Likewise.
            with_episodes: Whether ongoing episodes are replayed, so that training goes on with them. Without, an
                environment need not do the same again, and the next sample begins new episodes.

        Raises:
            CheckpointError: If it is missing, damaged, or needs one of these arguments.
        """
        state = algorithm_state(path)
        if not with_episodes:
            state["env_runner"].update(episodes=None, episodes_too_long=False)
        given = given_settings(policy_mapping_fn=policy_mapping_fn, policies_to_train=policies_to_train)
        try:
            config = restored_config(state, config, given)
            specs = restored_specs(state, config)
        except KeyError as error:
            raise lacks(path, error) from error
        algorithm = cls(config, rl_module_specs=specs, masking=restored_masking(state, config))  # type: ignore[call-arg]
        algorithm._take_over(path, state, given)
        algorithm.callbacks.tell("on_checkpoint_loaded", algorithm=algorithm)
        return algorithm


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


def lacks(path: str | Path, error: KeyError) -> CheckpointError:
    """The error for a checkpoint that has not all that is needed."""
    return CheckpointError(f"checkpoint: {path} lacks {error}, so another version wrote it. Use that version.")


def given_settings(**settings: Any) -> dict[str, Any]:
    """Those of some settings that a user has passed."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "policy_mapping_fn" in given:
        given["policy_mapping_fn"] = policy_mapping(given["policy_mapping_fn"])
    return given


def restored_config(
    state: Mapping[str, Any],
    config: AlgorithmConfig | None,
    given: Mapping[str, Any],
    skip: Collection[str] = (),
) -> AlgorithmConfig:
    """The config of a checkpoint, or a given one in its place; with what was changed while training went on.

    Args:
        state: The algorithm's.
        config: The user's, or None.
        given: The user's settings, which come first.
        skip: Settings that are not to be read.
    """
    if config is None:
        restored = config_from_state(state["config"], skip=skip, **given)
    else:
        restored = config.copy()
        for name in state["changed_settings"]:
            if name not in given and name not in skip:
                restored.change(**{name: _changed(state, name)})
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


def _changed(state: Mapping[str, Any], name: str) -> Any:
    try:
        return from_state(state["config"]["settings"][name], name)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint: {name} was changed while training went on, to what cannot be found again by name. Pass it as "
            f"it was then: Algorithm.from_checkpoint(path, config=..., {name}=...)."
        ) from error


def restored_specs(
    state: Mapping[str, Any], config: AlgorithmConfig, wanted: Collection[ModuleID] | None = None
) -> dict[ModuleID, RLModuleSpec]:
    """How to build the modules of a checkpoint. A class that cannot be imported by name is taken from the config.

    Args:
        state: The algorithm's.
        config: Its config.
        wanted: Of which modules; None for all.
    """
    return {
        module_id: _restored_spec(module_id, data, config)
        for module_id, data in state["rl_modules"]
        if wanted is None or module_id in wanted
    }


def _restored_spec(module_id: ModuleID, data: Mapping[str, Any], config: AlgorithmConfig) -> RLModuleSpec:
    own = spec_of(config, module_id)
    fields: dict[str, Any] = {}
    for name, value in data["value"].items():
        try:
            fields[name] = from_state(value, f"{name} of module {module_id!r}")
        except CheckpointError as error:
            fields[name] = getattr(own, name, None)
            if fields[name] is None:
                raise CheckpointError(
                    f"checkpoint: the {name} of module {module_id!r} was {value['value']}, which cannot be found again "
                    f"by name. Pass a config that has it: .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs="
                    f"{{{module_id!r}: RLModuleSpec({name}=...)}}))."
                ) from error
    return RLModuleSpec(**fields)


def agents_to_state(setup: EnvSetup) -> dict[str, Any]:
    """The environment's agents and their spaces, each space once."""
    known: list[Space] = []
    agents = []
    for agent_id in setup.agent_ids:
        pair = setup.agent_spaces(agent_id)
        for space in pair:
            if space not in known:
                known.append(space)
        agents.append([agent_id, *(known.index(space) for space in pair)])
    return {"single_agent": setup.single_agent, "spaces": [to_state(space) for space in known], "agents": agents}


def agents_from_state(state: Mapping[str, Any]) -> dict[AgentID, tuple[Any, Any]]:
    """Agent to its observation and action space."""
    known = [from_state(space, "space of an agent") for space in state["spaces"]]
    return {agent_id: (known[i], known[j]) for agent_id, i, j in state["agents"]}


def _briefly(agents: dict[str, list[str]]) -> str:
    shown = ", ".join(f"{agent_id} ({' → '.join(pair)})" for agent_id, pair in list(agents.items())[:3])
    return shown + (", ..." if len(agents) > 3 else "")
