"""Writes a policy as ONNX programs with everything that its connector pieces do, and a contract about them."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from marl_connectors import spaces, tensor_namespace
from marl_connectors.algorithms.inference import export_check, onnx_policy
from marl_connectors.algorithms.inference.onnx_policy import OnnxPolicy
from marl_connectors.algorithms.inference.recording import RecordedRows, Recording, TensorSpec, paths_in
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2, works_on_columns
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import (
    ConfigError,
    ConnectorError,
    MappingError,
    MarlConnectorsError,
    ModuleError,
    describe_error,
)
from marl_connectors.packages import import_package, require_packages
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID
from marl_connectors.version import library_version

if TYPE_CHECKING:
    from marl_connectors.algorithms.inference.policy import Policy

RUNNER = Path(onnx_policy.__file__)
"""The file that acts with an export, which is copied beside it."""
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_NUM_ROWS = 3
"""The number of rows of the examples. With 1 row, torch would take the batch size for a constant."""


class _Group(NamedTuple):
    """Agents that have one module and like spaces, so that one program acts for all of them."""

    module_id: ModuleID
    agent_ids: list[AgentID]
    spaces: tuple[Space, Space]


LOWEST_OPSET: Final = 13
"""The first version of ONNX's operators in which a program of the smallest default module can be written."""


def export_onnx(policy: Policy, path: str | Path, *, explore: bool, opset: int | None, check: bool) -> Path:
    """Writes a policy to a folder; see ``Policy.export_onnx``."""
    require_onnx()
    check_opset(opset)
    folder = Path(path)
    _check_folder(folder)
    programs = make_programs(policy, explore)
    new = folder.absolute().with_name(f"{folder.absolute().name}.new")
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(parents=True)
    try:
        files = [_write(program, new / name, opset) for name, program in programs.items()]
        contract = make_contract(policy, programs, files, explore)
        (new / "contract.json").write_text(json.dumps(contract, indent=1) + "\n", encoding="utf-8")
        shutil.copyfile(RUNNER, new / RUNNER.name)
        if check:
            check_programs(policy, OnnxPolicy(new), programs, explore)
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def check_programs(policy: Policy, theirs: OnnxPolicy, programs: Mapping[str, Program], explore: bool) -> None:
    """Compares an export with the policy.

    Where sampled actions, which differ, are remembered, only the first step can be compared.

    Raises:
        ModuleError: If a program differs.
    """
    is_sampled = any(role == "noise" for program in programs.values() for role in program.roles)
    is_remembered = any(program.example.remembers_actions for program in programs.values())
    num_steps = 1 if is_sampled and is_remembered else 5
    export_check.check_export(policy, theirs, explore=explore, num_steps=num_steps)


def require_onnx() -> None:
    """Checks that the packages for an export are installed.

    Raises:
        MissingDependencyError: If one is missing.
    """
    require_packages("export_onnx: it", *_NEEDED)


def check_opset(opset: int | None) -> None:
    """Checks that a version of ONNX's operators exists.

    Raises:
        ConfigError: If the installed packages do not know it.
    """
    highest = import_package("onnx").defs.onnx_opset_version()
    if opset is not None and not LOWEST_OPSET <= opset <= highest:
        raise ConfigError(
            f"export_onnx: expected an opset from {LOWEST_OPSET} to {highest}, which is the highest "
            f"that the installed onnx knows, but got {opset}. Leave it out for torch's own."
        )


def _check_written(model: Any, opset: int | None) -> None:
    """Checks that a program is written with the version that was asked for. Torch leaves its own if it cannot.

    Raises:
        ConfigError: If it has another one.
    """
    written = next(each.version for each in model.opset_import if each.domain == "")
    if opset not in (None, written):
        raise ConfigError(
            f"export_onnx: the program cannot be written with opset {opset}, which lacks operators that it needs. "
            f"Use {written}, which torch has written, or leave it out."
        )


def _check_folder(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / "contract.json").exists())):
        raise ConfigError(
            f"export_onnx: {folder} exists and is no earlier export, so it is not replaced. Choose another folder."
        )


def _check_pieces(policy: Policy) -> None:
    """Checks that all pieces work on columns, and on those of each agent alone.

    Raises:
        ConnectorError: If one does not.
    """
    for name, pipeline in (("env-to-module", policy.env_to_module), ("module-to-env", policy.module_to_env)):
        for place, piece in enumerate(_flat(pipeline)):
            cls = type(piece).__name__
            if piece.looks_at_other_agents:
                raise ConnectorError(
                    f"export_onnx: {cls}, piece {place} of the {name} pipeline, looks at several agents, but an "
                    f"exported program computes each agent alone. Do its work in the environment, or train without it."
                )
            if not works_on_columns(piece):
                raise ConnectorError(
                    f"export_onnx: {cls}, piece {place} of the {name} pipeline, works on single items, which an "
                    f"exported program does not have. Override columns(c, xp); docs/deployment.md has an example."
                )


def _flat(pipeline: ConnectorPipelineV2) -> Iterator[ConnectorV2]:
    for piece in pipeline:
        if isinstance(piece, ConnectorPipelineV2):
            yield from _flat(piece)
        else:
            yield piece


# Agents and programs.


def make_programs(policy: Policy, explore: bool) -> dict[str, Program]:
    """Returns the programs of a policy's modules by the names of their files.

    Raises:
        ConnectorError: If a piece cannot be part of a program.
        MappingError: If an agent has different modules in different episodes.
    """
    own = policy._new(explore, 0)
    own.rl_module = copy.deepcopy(policy.rl_module).cpu().requires_grad_(False).eval()
    _hide_ids(own.rl_module)
    _check_pieces(own)
    groups = _groups(policy)
    return {name: Program(own, group, explore) for name, group in zip(_file_names(groups), groups, strict=True)}


def _hide_ids(modules: MultiRLModule) -> None:
    """Keeps the modules where torch does not see them, because it writes their ids, which may be any text, into code.

    A program has them in a list instead.
    """
    members: Any = SimpleNamespace(_modules=modules._members._modules)
    del modules._members
    modules._members = members


def _groups(policy: Any) -> list[_Group]:
    """Returns the agents by module and spaces.

    Raises:
        MappingError: If an agent has different modules in different episodes.
    """
    groups: list[_Group] = []
    for agent_id, module_ids in export_check.modules_of_agents(policy).items():
        if len(module_ids) > 1:
            raise MappingError(
                f"export_onnx: agent {agent_id!r} has the modules {', '.join(sorted(module_ids))} in different "
                f"episodes. Load the policy with a fixed choice: load_policy(checkpoint, policy_mapping_fn=...), or "
                f"with the id of one module."
            )
        (module_id,) = module_ids
        _check_observations(module_id, policy.rl_module[module_id].observation_space)
        own = policy.spaces_of(agent_id)
        for group in groups:
            if group.module_id == module_id and all(map(spaces.same, group.spaces, own)):
                group.agent_ids.append(agent_id)
                break
        else:
            groups.append(_Group(module_id, [agent_id], own))
    return groups


def _check_observations(module_id: ModuleID, space: Space) -> None:
    """Raises a ModuleError for arrays without numbers that onnxruntime cannot flatten."""
    for leaf in leaves(spaces.zeros(space)):
        if leaf.ndim > 1 and not leaf.size:
            raise ModuleError(
                f"export_onnx: module {module_id!r} has observations without a number, of the shape {leaf.shape}, "
                f"which onnxruntime cannot flatten. Leave them out with a wrapper or a piece such as "
                f"FlattenObservations, or give them the shape (0,)."
            )


def _file_names(groups: Sequence[_Group]) -> list[str]:
    """Returns a name for each program: that of its module, with a number if there are several."""
    names: list[str] = []
    for group in groups:
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", group.module_id)[:80]
        taken = {name.lower() for name in names}
        tries = [f"{stem}.onnx", *(f"{stem}-{i}.onnx" for i in range(2, len(groups) + 2))]
        names.append(next(name for name in tries if name.lower() not in taken))
    return names


class Program(nn.Module):
    """The computation from the inputs of a program to its outputs, which torch records.

    Attributes:
        group: The agents that the program acts for.
        example: A step with examples of all inputs.
        output_specs: The outputs.
    """

    def __init__(self, policy: Policy, group: _Group, explore: bool):
        super().__init__()
        self.rl_module: MultiRLModule = policy.rl_module
        self._members = nn.ModuleList(self.rl_module.values())
        self._pipelines = list(_flat(policy.env_to_module)), list(_flat(policy.module_to_env))
        self._single_agent = policy.single_agent
        self.group = group
        self._explore = explore
        with torch.no_grad():
            self.example, found = self.outputs(None)
            self.output_specs = [spec for spec, _ in found]

    @property
    def roles(self) -> list[str]:
        """What the inputs stand for."""
        return [spec.role for spec in self.example.specs]

    def outputs(self, given: Sequence[Tensor] | None) -> tuple[Recording, list[tuple[TensorSpec, Tensor]]]:
        """Runs the pieces and the module on these inputs, or on examples. Returns the step and its outputs."""
        group = self.group
        step = Recording(self.rl_module[group.module_id], group.module_id, given=given, num_rows=_NUM_ROWS)
        rows = RecordedRows(step, [None] if self._single_agent else group.agent_ids, group.spaces)
        context = {
            "rl_module": self.rl_module[DEFAULT_MODULE_ID] if self._single_agent else self.rl_module,
            "explore": self._explore,
            "shared_data": {ACTION_NOISE: step},
            "metrics": _NoMetrics(),
            "program": step,
        }
        columns = ColumnGroup(rows).within(**context)
        for piece in self._pipelines[0]:
            _apply(piece, columns)
        rows.after_pieces()
        made = ColumnGroup(rows).within(**context)
        made.update(self._forward({name: tree_map(_in_float32, column) for name, column in columns.items()}))
        rows.after_forward(made)
        for piece in self._pipelines[1]:
            _apply(piece, made)
        actions = made.get(Columns.ACTIONS_FOR_ENV, made[Columns.ACTIONS])
        rows.after_actions(made[Columns.ACTIONS])
        found = [_output("actions", "action", path, leaf) for path, leaf in paths_in(actions)]
        if Columns.ACTION_DIST_INPUTS in made:
            name = Columns.ACTION_DIST_INPUTS
            found.append(_output(name, name, (), made[name]))
        for memory in step.memories:
            found += [_output(f"{memory.name}_out", "memory", path, leaf) for path, leaf in paths_in(memory.next)]
        return step, found

    def _forward(self, columns: dict[str, Any]) -> dict[str, Any]:
        purpose = "forward_exploration" if self._explore else "forward_inference"
        if not self.rl_module.has_own_forward:
            return getattr(self.rl_module[self.group.module_id], purpose)(columns)
        return getattr(self.rl_module, purpose)({self.group.module_id: columns})[self.group.module_id]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of the program."""
        return tuple([tensor for _, tensor in self.outputs(given)[1]])

    def description(self, file: str) -> dict[str, Any]:
        """Returns what the contract says about the program: its spaces, inputs, outputs and memories."""
        noise, group = self.example.noise_parts, self.group
        memories = [
            {"input": f"{name}_in{_dotted(keys)}", "output": f"{name}_out{_dotted(keys)}", "initial": initial}
            for name, tree in [(memory.name, memory.initial) for memory in self.example.memories]
            for keys, leaf in paths_in(tree)
            for initial in [np.asarray(leaf).tolist()]
        ]
        return {
            "file": file,
            "module": group.module_id,
            "observation_space": spaces.to_json(group.spaces[0]),
            "action_space": spaces.to_json(group.spaces[1]),
            "inputs": [_to_json(spec) for spec in self.example.specs],
            "outputs": [_to_json(spec) for spec in self.output_specs],
            "memories": memories,
            "noise": None if noise is None else [list(part) for part in noise],
        }


class _NoMetrics:
    """Takes the place of a MetricsLogger, since a program logs nothing."""

    def log_value(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def log_dict(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""

    def log_time(self, *args: Any, **kwargs: Any) -> nullcontext[None]:
        """Measures nothing."""
        return nullcontext()


def _in_float32(leaf: Tensor) -> Tensor:
    """Returns what NumpyToTensor makes of a column."""
    return leaf.float() if leaf.dtype is torch.float64 else leaf


def _apply(piece: ConnectorV2, c: ColumnGroup) -> None:
    """Runs a piece on tensors, unless it only converts arrays to tensors or the other way round."""
    if type(piece) in (NumpyToTensor, TensorToNumpy) or type(piece).columns is ConnectorV2.columns:
        return
    who = f"export_onnx: the columns(c, xp) of {type(piece).__name__}"
    fix = "Use functions of xp alone: no numpy, no Python numbers from columns, no len() of a column."
    try:
        piece.before_columns([c], c.rl_module)
        piece.columns(c, tensor_namespace)
        piece.after_columns([c], c.shared_data)
        values = [*c.values(), c.rows.get(Columns.OBS)]
    except MarlConnectorsError:
        raise
    except Exception as error:
        raise ConnectorError(f"{who} raised {describe_error(error)}. {fix}") from error
    for leaf in leaves(values):
        if not isinstance(leaf, Tensor):
            raise ConnectorError(f"{who} set a column to {type(leaf).__name__}, expected a tensor. {fix}")


def _output(name: str, role: str, path: tuple[Any, ...], leaf: Tensor) -> tuple[TensorSpec, Tensor]:
    dtype = str(leaf.dtype).removeprefix("torch.")
    return TensorSpec(".".join([name, *map(str, path)]), role, tuple(leaf.shape[1:]), dtype, path), leaf


def _write(program: Program, path: Path, opset: int | None) -> dict[str, Any]:
    """Writes a program. Returns its description for the contract."""
    with torch.no_grad():
        _record(program, path, opset)
    return {**program.description(path.name), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _dotted(path: tuple[Any, ...]) -> str:
    return "".join(f".{key}" for key in path)


def _record(program: Program, path: Path, opset: int | None) -> None:
    """Lets torch record the program, and writes it as an ONNX file.

    Raises:
        ModuleError: If torch cannot record it.
    """
    rows, step = torch.export.Dim.DYNAMIC, program.example
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorded = torch.onnx.export(
                program,
                tuple(step.examples),
                dynamo=True,
                dynamic_shapes=(tuple({0: rows} for _ in step.examples),),
                input_names=[spec.name for spec in step.specs],
                output_names=[spec.name for spec in program.output_specs],
                opset_version=opset,
                verbose=False,
            )
            assert recorded is not None
            model = recorded.model_proto
    except Exception as error:
        cause = error.__cause__ or error
        raise ModuleError(
            f"export_onnx: torch cannot record module {step.module_id!r} ({type(step.rl_module).__name__}) with its "
            f"connector pieces: {describe_error(cause)[:500]} Use operations that torch.export can record in its "
            f"forward pass; the number of rows must stay a variable."
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    _check_written(model, opset)
    _remove_notes(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _remove_notes(message: Any) -> None:
    """Removes the notes that torch makes for debugging, among them the paths of source files on this machine."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            message.ClearField(field.name)
        elif hasattr(value, "ListFields"):
            _remove_notes(value)
        elif field.message_type is not None:
            for part in value:
                _remove_notes(part)


# The contract.


def _to_json(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "role": spec.role,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "path": [key if isinstance(key, (str, int)) else str(key) for key in spec.path],
    }


def make_contract(
    policy: Policy, programs: dict[str, Program], files: list[dict[str, Any]], explore: bool
) -> dict[str, Any]:
    """Returns the content of ``contract.json``, from the descriptions of the programs."""
    agents = [
        {
            "agent": _agent_id(agent_id),
            "module": program.group.module_id,
            "file": name,
            "index": i,
            "needs_info": agent_id in policy.masked_in_infos,
        }
        for name, program in programs.items()
        for i, agent_id in enumerate(program.group.agent_ids)
    ]
    order = {agent_id: place for place, agent_id in enumerate(policy.agent_ids)}
    contract = {
        "format": onnx_policy.FORMAT,
        "format_version": onnx_policy.FORMAT_VERSION,
        "library_version": library_version(),
        "explore": explore,
        "default_agent": policy.default_agent_id,
        "unknown_agents_like": policy.unknown_agents_like,
        "agents": sorted(agents, key=lambda own: order[own["agent"]]),
        "files": files,
    }
    return {**contract, "digest": onnx_policy.digest_of(contract)}


def _agent_id(agent_id: AgentID) -> str | int:
    if not isinstance(agent_id, (str, int)):
        raise ConfigError(
            f"export_onnx: the agent id {agent_id!r} cannot be written to JSON. Use strings or whole numbers as ids."
        )
    return agent_id
