"""Checkpoints of single components: modules, connector pieces, pipelines and learners."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch

from marl_connectors.algorithms.build import build_learner_for_spaces, has_state_pieces
from marl_connectors.algorithms.config.state import (
    ConfigState,
    arguments_from_state,
    config_from_state,
    config_to_state,
    from_state,
    to_state,
)
from marl_connectors.algorithms.inference.load_policy import load_policy
from marl_connectors.checkpoints import PLACE_OF_MODULES, component_state, load_with_place, taking_over
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.errors import CheckpointError
from marl_connectors.learner.learner import Learner
from marl_connectors.names import Expected, Names, brief, qualified_name
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.state import read_state

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


def describe(component: Any) -> dict[str, Any]:
    """Returns how a component was made, as JSON data."""
    if isinstance(component, MultiRLModule):
        return {"kind": "modules", **_described_modules(component)}
    if isinstance(component, RLModule):
        return {"kind": "module", "spec": to_state(RLModuleSpec.from_module(component))}
    if isinstance(component, Learner):
        pipeline = component.pipeline
        return {
            "kind": "learner",
            "config": config_to_state(component.config),
            "modules": _described_modules(component.module),
            "spaces": [_argument(s) for s in (pipeline.input_observation_space, pipeline.input_action_space)],
            "multi_agent": "AgentToModuleMapping" in pipeline.names(),
            "pieces": list(map(_described_piece, component.algorithm_pieces)),
            "seed": component._seed,
            "has_state_pieces": has_state_pieces(pipeline),
        }
    spaces = component.input_observation_space, component.input_action_space
    return {"kind": "piece", "piece": _described_piece(component), "spaces": list(map(_argument, spaces))}


def _described_modules(modules: MultiRLModule) -> dict[str, Any]:
    multi = MultiRLModuleSpec.from_module(modules)
    specs: Any = multi.rl_module_specs
    return {
        "multi_rl_module": to_state(dataclasses.replace(multi, rl_module_specs={})),
        "specs": {module_id: to_state(spec) for module_id, spec in specs.items()},
    }


def _described_piece(piece: ConnectorV2) -> dict[str, Any]:
    found: dict[str, Any] = {"class": qualified_name(type(piece)), "name": type(piece).__name__}
    if isinstance(piece, ConnectorPipelineV2):
        return {**found, "pieces": list(map(_described_piece, piece))}
    given = piece._constructed_with
    if given.args is None or given.kwargs is None:
        return found
    kwargs = dict(given.kwargs)
    if given.args:
        names = inspect.signature(type(piece)).parameters
        kwargs = {**dict(zip(names, given.args, strict=False)), **kwargs}
    return {**found, "arguments": {name: _argument(value) for name, value in kwargs.items()}}


def _argument(value: Any) -> Any:
    return to_state(str(value) if isinstance(value, torch.device) else value)


def component_from_checkpoint(cls: type[Any], path: str | PathLike[str], *, trusted: bool) -> Any:
    """Makes the component of a checkpoint, as ``Checkpointable.from_checkpoint`` describes it."""
    names = Names(trusted)
    data, place = load_with_place(path)
    if place:
        return _of_algorithm(cls, path, data, place, names, trusted)
    who = f"{cls.__name__}.from_checkpoint"
    match data:
        case {"component": {"kind": str(kind)} as how, "state": state}:
            pass
        case _:
            hint = ""
            if "specs" in data:
                hint = (
                    " It is one of an Algorithm. Name the component in it, such as "
                    f"{path}/learner_group/learner/rl_module/MODULE_ID."
                )
            raise CheckpointError(f"{who}: {path} is not a checkpoint that a component's save_to_path wrote.{hint}")
    with taking_over("component"):
        component = _make(kind, how, names)
    if not isinstance(component, cls):
        raise CheckpointError(f"{who}: {path} has a {type(component).__name__}.")
    with taking_over("component"):
        component.set_state(state)
    return component


def _make(kind: str, how: Mapping[str, Any], names: Names) -> Any:
    if kind == "module":
        return _spec(how["spec"], names).build()
    if kind == "modules":
        return _modules(how, names)
    if kind == "learner":
        config = config_from_state(read_state(ConfigState, how["config"]), names=names, skip=_NOT_OF_LEARNERS)
        return build_learner_for_spaces(
            config,
            _modules(how["modules"], names),
            input_spaces=tuple(arguments_from_state(space, "spaces", names) for space in how["spaces"]),  # type: ignore[arg-type]
            multi_agent=how["multi_agent"],
            of_algorithm=[_piece(piece, names) for piece in how["pieces"]],
            seed=how["seed"],
            stateful=how.get("has_state_pieces"),
        )
    if kind == "piece":
        piece = _piece(how["piece"], names)
        piece.set_input_spaces(*(arguments_from_state(space, "spaces", names) for space in how["spaces"]))
        return piece
    raise CheckpointError(f"checkpoint: {brief(kind)} is no kind of component.")


def _spec(data: Any, names: Names) -> RLModuleSpec:
    spec = from_state(data, "rl_module_spec", names)
    if not isinstance(spec, RLModuleSpec):
        raise CheckpointError(f"checkpoint: expected the spec of a module, but it is {brief(spec)}.")
    return dataclasses.replace(spec, load_state_path=None)


def _modules(how: Mapping[str, Any], names: Names) -> MultiRLModule:
    multi = from_state(how["multi_rl_module"], "rl_module_spec", names)
    if not isinstance(multi, MultiRLModuleSpec):
        raise CheckpointError(f"checkpoint: expected the spec of a MultiRLModule, but it is {brief(multi)}.")
    specs = {module_id: _spec(data, names) for module_id, data in how["specs"].items()}
    return dataclasses.replace(multi, rl_module_specs=specs, load_state_path=None).build()


def _piece(how: Mapping[str, Any], names: Names) -> ConnectorV2:
    name = brief(how["name"])
    if how["class"] is None:
        raise CheckpointError(f"checkpoint: the class of the piece {name} cannot be imported by name. {_YOURSELF}")
    cls: Any = names.resolve(how["class"], _PIECE, who=f"checkpoint, piece {name}")
    if issubclass(cls, ConnectorPipelineV2):
        return cls(connectors=[_piece(piece, names) for piece in how["pieces"]])
    if "arguments" not in how:
        raise CheckpointError(f"checkpoint: the arguments of the piece {name} were not known. {_YOURSELF}")
    try:
        arguments = {key: arguments_from_state(value, key, names) for key, value in how["arguments"].items()}
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint: the piece {name} cannot be made. {error} {_YOURSELF}") from error
    return cls(**arguments)


def spec_from_checkpoint(path: str | PathLike[str], *, trusted: bool) -> RLModuleSpec:
    """Returns the spec of a checkpoint's module, as ``RLModuleSpec.from_checkpoint`` describes it."""
    data, place = load_with_place(path)
    if not place and "specs" in data:
        if len(data["specs"]) != 1:
            places = [f"{path}/{'/'.join(PLACE_OF_MODULES)}/{module_id}" for module_id in data["specs"]]
            raise CheckpointError(
                f"RLModuleSpec.from_checkpoint: {path} has several modules. Name one: {', '.join(places)}."
            )
        (module_id,) = data["specs"]
        path, place = f"{path}/{'/'.join(PLACE_OF_MODULES)}/{module_id}", (*PLACE_OF_MODULES, module_id)
    with taking_over("module"):
        match data:
            case {"component": {"kind": "module", "spec": described}}:
                pass
            case {"specs": dict(specs)} if "/".join(place[len(PLACE_OF_MODULES) :]) in specs:
                described = specs["/".join(place[len(PLACE_OF_MODULES) :])]
            case _:
                raise CheckpointError(f"RLModuleSpec.from_checkpoint: {path} is not a module. Check the path.")
        return dataclasses.replace(_spec(described, Names(trusted)), load_state_path=path)


def _of_algorithm(
    cls: type[Any],
    path: str | PathLike[str],
    data: Mapping[str, Any],
    place: tuple[str, ...],
    names: Names,
    trusted: bool,
) -> Any:
    """Makes a component at a place in an algorithm's checkpoint."""
    state, who = component_state(path), f"{cls.__name__}.from_checkpoint"
    checkpoint = str(path)[: -len("/".join(place)) - 1]
    if place[-1] in ("env_to_module_connector", "module_to_env_connector"):
        policy = load_policy(checkpoint, trusted=trusted)
        component: Any = policy.env_to_module if place[-1].startswith("env") else policy.module_to_env
    elif place[-1] == "rl_module":
        with taking_over("modules"):
            component = _modules(data, names)
    elif "rl_module" in place:
        with taking_over("modules"):
            module_id = "/".join(place[place.index("rl_module") + 1 :])
            component = _spec(data["specs"][module_id], names).build()
    else:
        raise CheckpointError(
            f"{who}: {path} is the place of a learner, which needs the rest of the algorithm. Use "
            f"Algorithm.from_checkpoint({checkpoint!r}).learner."
        )
    if not isinstance(component, cls):
        raise CheckpointError(f"{who}: {path} has a {type(component).__name__}.")
    with taking_over("component"):
        component.set_state(state)
    return component
