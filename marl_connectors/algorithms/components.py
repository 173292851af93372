"""Checkpoints of single components: modules, connector pieces, pipelines and learners."""

from __future__ import annotations

import dataclasses
import inspect
from os import PathLike
from typing import Any, TypeAlias

import torch

from marl_connectors.algorithms.config.state import (
    ConfigState,
    ModuleMade,
    ModulesMade,
    arguments_from_state,
    config_from_state,
    config_to_state,
    to_state,
)
from marl_connectors.algorithms.inference.load_policy import load_policy
from marl_connectors.algorithms.learner_blueprint import RunLearnerBlueprint
from marl_connectors.checkpoints import PLACE_OF_MODULES, Part, read_part, taking_over
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.errors import CheckpointError
from marl_connectors.learner.learner import Learner
from marl_connectors.names import Expected, Names, brief, qualified_name
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.state import Seed, State, read_state

_NOT_OF_LEARNERS = (
    "env",
    "env_config",
    "wrappers",
    "env_to_module_connector",
    "module_to_env_connector",
    "policy_mapping_fn",
    "callbacks_class",
)
"""The settings that a learner does not read, so that they need not be importable."""
_PIECE = Expected("a subclass of ConnectorV2", bases=(ConnectorV2,))
_YOURSELF = "Make it yourself, and call its restore_from_path(path)."


class PieceMade(State, tag_field="kind", tag="piece"):
    """How a piece or a pipeline was made.

    Attributes:
        class_name: The importable name of its class; None if it has none.
        name: The name of its class, for messages.
        arguments: Those of its constructor as JSON data; None if they are not known.
        pieces: The pieces of a pipeline.
        spaces: The input spaces as JSON data; none for the pieces of a pipeline.
    """

    class_name: str | None
    name: str
    arguments: dict[str, Any] | None = None
    pieces: list[PieceMade] = []
    spaces: list[Any] = []

    @classmethod
    def of(cls, piece: ConnectorV2) -> PieceMade:
        """Describes a piece or a pipeline."""
        found = cls._without_spaces(piece)
        found.spaces = [_argument(space) for space in (piece.input_observation_space, piece.input_action_space)]
        return found

    @classmethod
    def _without_spaces(cls, piece: ConnectorV2) -> PieceMade:
        found = cls(class_name=qualified_name(type(piece)), name=type(piece).__name__)
        if isinstance(piece, ConnectorPipelineV2):
            found.pieces = list(map(cls._without_spaces, piece))
            return found
        given = piece._constructed_with
        if given.args is not None and given.kwargs is not None:
            names = inspect.signature(type(piece)).parameters if given.args else ()
            kwargs = {**dict(zip(names, given.args, strict=False)), **given.kwargs}
            found.arguments = {name: _argument(value) for name, value in kwargs.items()}
        return found

    def made(self, names: Names) -> ConnectorV2:
        """Returns a piece or a pipeline that is made in the same way."""
        name = brief(self.name)
        if self.class_name is None:
            raise CheckpointError(f"checkpoint: the class of the piece {name} cannot be imported by name. {_YOURSELF}")
        cls: Any = names.resolve(self.class_name, _PIECE, who=f"checkpoint, piece {name}")
        if issubclass(cls, ConnectorPipelineV2):
            found = cls(connectors=[piece.made(names) for piece in self.pieces])
        elif self.arguments is None:
            raise CheckpointError(f"checkpoint: the arguments of the piece {name} were not known. {_YOURSELF}")
        else:
            try:
                found = cls(**{key: arguments_from_state(value, key, names) for key, value in self.arguments.items()})
            except CheckpointError as error:
                raise CheckpointError(f"checkpoint: the piece {name} cannot be made. {error} {_YOURSELF}") from error
        if self.spaces:
            found.set_input_spaces(*(arguments_from_state(space, "spaces", names) for space in self.spaces))
        return found


class LearnerMade(State, tag_field="kind", tag="learner"):
    """How a learner was made.

    Attributes:
        config: Its settings.
        modules: How its modules were made.
        spaces: The input spaces of its pipeline as JSON data.
        multi_agent: Whether the environment has several agents.
        pieces: The pieces that the algorithm adds to its pipeline.
        seed: Its seed.
        has_state_pieces: Whether its pipeline has the pieces of modules with a memory.
    """

    config: ConfigState
    modules: ModulesMade
    spaces: list[Any]
    multi_agent: bool
    pieces: list[PieceMade]
    seed: Seed
    has_state_pieces: bool

    @classmethod
    def of(cls, learner: Learner) -> LearnerMade:
        """Describes a learner."""
        blueprint = RunLearnerBlueprint.of(learner, learner.config)
        return cls(
            config=config_to_state(learner.config),
            modules=ModulesMade.of(learner.module),
            spaces=list(map(_argument, blueprint.input_spaces)),
            multi_agent=blueprint.multi_agent,
            pieces=list(map(PieceMade.of, blueprint.of_algorithm)),
            seed=blueprint.seed,
            has_state_pieces=blueprint.has_state_pieces,
        )

    def made(self, names: Names) -> Learner:
        """Returns a learner that is made in the same way."""
        return RunLearnerBlueprint(
            config=config_from_state(self.config, names=names, skip=_NOT_OF_LEARNERS),
            seed=self.seed,
            spec=self.modules.restored_spec(names),
            input_spaces=[arguments_from_state(space, "spaces", names) for space in self.spaces],
            multi_agent=self.multi_agent,
            of_algorithm=[piece.made(names) for piece in self.pieces],
            has_state_pieces=self.has_state_pieces,
        ).build()


Made: TypeAlias = ModuleMade | ModulesMade | LearnerMade | PieceMade


def describe(component: Any) -> Made:
    """Returns how a component was made."""
    kinds = {MultiRLModule: ModulesMade, RLModule: ModuleMade, Learner: LearnerMade, ConnectorV2: PieceMade}
    return next(made.of(component) for kind, made in kinds.items() if isinstance(component, kind))


def _argument(value: Any) -> Any:
    return to_state(str(value) if isinstance(value, torch.device) else value)


def component_from_checkpoint(cls: type[Any], path: str | PathLike[str], *, trusted: bool) -> Any:
    """Makes the component of a checkpoint, as ``Checkpointable.from_checkpoint`` describes it."""
    who, part, names = f"{cls.__name__}.from_checkpoint", read_part(path), Names(trusted)
    if part.how is None:
        component = _made_with_algorithm(who, part, trusted)
    else:
        with taking_over("component"):
            made: Any = read_state(Made, part.how)  # type: ignore[arg-type]
            component = made.made(names)
    if not isinstance(component, cls):
        raise CheckpointError(f"{who}: {path} has a {type(component).__name__}.")
    with taking_over("component"):
        component.set_state(part.state)
    return component


def _made_with_algorithm(who: str, part: Part, trusted: bool) -> ConnectorV2:
    """Makes a pipeline at its place in the checkpoint of an algorithm, with the settings there."""
    if not part.place:
        hint = ""
        if "modules" in part.state:
            places = f"{part.checkpoint}/{'/'.join(PLACE_OF_MODULES)}/MODULE_ID"
            hint = f" It is one of an Algorithm. Name the component in it, such as {places}."
        raise CheckpointError(
            f"{who}: {part.checkpoint} is not a checkpoint that a component's save_to_path wrote.{hint}"
        )
    name = {"env_to_module_connector": "env_to_module", "module_to_env_connector": "module_to_env"}.get(part.place[-1])
    if name is None:
        whole = f"Algorithm.from_checkpoint({str(part.checkpoint)!r})"
        raise CheckpointError(
            f"{who}: making what is at {'/'.join(part.place)} takes the rest of the algorithm. Use "
            f"{whole + '.learner' if part.place[0] == 'learner_group' else whole}."
        )
    return getattr(load_policy(part.checkpoint, trusted=trusted), name)


def spec_from_checkpoint(path: str | PathLike[str], *, trusted: bool) -> RLModuleSpec:
    """Returns the spec of a checkpoint's module, as ``RLModuleSpec.from_checkpoint`` describes it."""
    part = read_part(path)
    how = part.state.get("modules") if part.how is None and not part.place else part.how
    with taking_over("module"):
        made: Any = None if how is None else read_state(Made, how)  # type: ignore[arg-type]
        if isinstance(made, ModulesMade):
            inside = f"{path}/{'/'.join(PLACE_OF_MODULES)}" if part.how is None else path
            if len(made.specs) != 1:
                places = ", ".join(f"{inside}/{module_id}" for module_id in made.specs)
                raise CheckpointError(f"RLModuleSpec.from_checkpoint: {path} has several modules. Name one: {places}.")
            (module_id,) = made.specs
            path, made = f"{inside}/{module_id}", made.module(module_id)
        if not isinstance(made, ModuleMade):
            raise CheckpointError(f"RLModuleSpec.from_checkpoint: {path} is not a module. Check the path.")
        return dataclasses.replace(made.restored_spec(Names(trusted)), load_state_path=path)
