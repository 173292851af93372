"""Reads the runs and checkpoints that a command names, also runs whose config is in a Python file."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting import run_files
from marl_connectors.checkpoints import BEST, LATEST, find_checkpoint, is_checkpoint
from marl_connectors.cli.folders import SWEEP
from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class
from marl_connectors.cli.layers import ALGO, PRESET, SETTINGS, SOURCE
from marl_connectors.cli.made_config import configured, in_this_process, make_config
from marl_connectors.cli.python_config import absolute_spec, has_source, load_config, module_name
from marl_connectors.cli.tree import COMPLETE, ENV, Tree, flat, option_of, place_of, read_setting
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError
from marl_connectors.json_data import brief
from marl_connectors.names import qualified_name
from marl_connectors.programs import PROGRAM, command

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.algorithm_state import AlgorithmState
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

_WITHOUT_NAME = "not[ _]importable"
"""What a checkpoint has in place of an object without a name, such as a lambda."""


def checkpoint_named(path: str, who: str) -> Path:
    """Returns the checkpoint that a command names, or the latest one of the run that it names.

    Args:
        path: What the user has written.
        who: The command, for messages.

    Raises:
        ConfigError: If it has several runs, or is something else in the folder of a run.
        CheckpointError: If there is none.
    """
    expected = f"{who}: expected a checkpoint or the folder of a run, but {path}"
    if not is_checkpoint(path) and Path(path).name not in (BEST, LATEST) and (run := _run_around(Path(path))):
        raise ConfigError(f"{expected} is a part of the run {run}. Use the run: {run}")
    if not is_checkpoint(path) and (runs := _runs_in(Path(path))):
        shown = ", ".join(map(str, runs[:8])) + (f", ... ({len(runs)})" if len(runs) > 8 else "")
        raise ConfigError(f"{expected} has several runs. Choose one: {shown}")
    with run_files.reading(Path(path)):
        return find_checkpoint(path)


def _runs_in(path: Path) -> list[Path]:
    """Returns the runs that are directly in a folder, which is none itself."""
    if (path / run_files.CONFIG).is_file():
        return []
    return sorted(each.parent for each in path.glob(f"*/{run_files.CONFIG}"))


def check_is_run(path: Path, who: str) -> None:
    """Checks that the folder to be resumed is not that of a sweep, and nothing in the folder of a run.

    Raises:
        ConfigError: If it is. Names the command that goes on with it.
    """
    if (path / SWEEP).is_file():
        resume = command(PROGRAM, "sweep", "--resume", path)
        raise ConfigError(f"{who}: expected the folder of a run, but {path} is that of a sweep. Use: {resume}")
    if run := _run_around(path):
        resume = command(PROGRAM, "train", "--resume", run)
        raise ConfigError(
            f"{who}: expected the folder of a run, but {path} is in the run {run}, which goes on from the checkpoint "
            f"that {run / run_files.CHECKPOINTS / LATEST} names. Use: {resume}"
        )


def _run_around(path: Path) -> Path | None:
    """Returns the folder of the run in which a file or folder is; None if it is in none, or is one itself."""
    if (path / run_files.CONFIG).is_file():
        return None
    runs = (each for each in path.parents[:2] if (each / run_files.CONFIG).is_file())
    return next((run for run in runs if path.exists() and (run / run_files.CHECKPOINTS).is_dir()), None)


def load_algorithm(
    checkpoint: Path,
    changed: Mapping[str, Any] | None = None,
    *,
    trusted: bool = True,
    new_episodes: bool = False,
    chosen: Collection[str] | None = None,
    local: bool = False,
    source: str | None = None,
) -> Algorithm:
    """Loads the ``Algorithm`` of a checkpoint.

    Args:
        checkpoint: The folder of the checkpoint.
        changed: Settings of its config that have other values from now on, as a tree.
        trusted: As in ``Algorithm.from_checkpoint``.
        new_episodes: As in ``Algorithm.from_checkpoint``.
        chosen: The places of settings that the user has chosen, and not the author of the checkpoint.
        local: Whether the algorithm only plays: everything is in this process, even if the run had remote env runners
            or learners, and replay buffers are not read.
        source: The Python file or module with the run's config, if the user names one.
    """
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.algorithm_state import algorithm_state
    from marl_connectors.algorithms.checkpoint_restore import ELSEWHERE, restored_config
    from marl_connectors.names import Names

    check_of_run(checkpoint)
    made = config_of_python_file(checkpoint, source) if trusted else None
    if not changed and not local and trusted and made is None:
        return Algorithm.from_checkpoint(checkpoint, trusted=trusted, new_episodes=new_episodes)
    state, changed = algorithm_state(checkpoint, with_replay_buffers=False), changed or {}
    own = {} if made is None else _without_names(made, state)
    options: dict[str, Any] = {"trusted": trusted, "new_episodes": new_episodes, "with_replay_buffers": not local}
    if not changed and not own and not any(state.config.settings.get(name) for name in ELSEWHERE):
        return Algorithm.from_checkpoint(checkpoint, **options)
    config = configured(restored_config(state, None, own, Names(trusted)), changed)
    if local:
        config = in_this_process(config)
    elif not trusted:
        for name, value in ELSEWHERE.items():
            place = place_of(name, type(config), checkpoint.name)
            if getattr(config, name) != value and place not in (chosen or {}):
                option = option_of(place, type(config))
                raise CheckpointError(
                    f"{checkpoint}: its {name} is {brief(getattr(config, name))}, and --untrusted starts no processes "
                    f"and connects to no cluster that a checkpoint names. Choose yourself: "
                    f"{option if ' ' not in option else f'{option}=N'}."
                )
    return Algorithm.from_checkpoint(checkpoint, config=config, **options)


def check_of_run(checkpoint: Path) -> None:
    """Checks that a checkpoint in the folder of a run has the environment and the algorithm of this run.

    Nothing is checked for checkpoints elsewhere. Only the command line knows the algorithm of a config by its name, and
    the environments that have one.

    Raises:
        CheckpointError: If it is from another run.
    """
    from marl_connectors.algorithms.algorithm_state import algorithm_state

    run, tree = _tree_around(checkpoint)
    if not tree:
        return
    config = algorithm_state(checkpoint, with_replay_buffers=False).config
    env, compared = config.settings.get("env"), {}
    if isinstance(env, dict) and env.get("type") == "name" and ENV in tree:
        compared["environment"] = (env["name"], tree[ENV])
    if tree.get(SOURCE) is None:
        compared["algorithm"] = (config.class_name, qualified_name(config_class(tree[ALGO])))
    for what, (found, own) in compared.items():
        if found != own:
            raise CheckpointError(
                f"{checkpoint} is not a checkpoint of the run {run}: its {what} is {found!r}, but that of the run is "
                f"{own!r}. Use a checkpoint of this run, or move this one out of the run's folder."
            )


def config_of_python_file(checkpoint: Path, source: str | None = None) -> AlgorithmConfig | None:
    """Returns the config of a run that began with one from a Python file; None for other runs.

    Afterwards the module of this file can be found by its name.

    Args:
        checkpoint: The folder of the checkpoint.
        source: The file or module that the user names in place of the one of the run, as ``python_source`` returns it.

    Returns:
        The config; also None if the file of the run is not there any more, and the user has named no other.

    Raises:
        ConfigError: If there is no such file, or if it fails.
    """
    _, tree = _tree_around(checkpoint)
    former = tree.get(SOURCE)
    if source is None and former is not None and has_source(former):
        source = str(former)
    if source is None:
        return None
    if not tree:
        return load_config(source)
    config = make_config(with_source(tree, source))
    if former is not None and module_name(former) not in sys.modules:
        sys.modules[module_name(former)] = sys.modules[module_name(source)]  # the checkpoint has names in this module
    return config


def with_source(tree: Mapping[str, Any], source: str) -> Tree:
    """Returns the tree of a run whose Python file has another place, in which its objects may have other names.

    Args:
        tree: The tree.
        source: The new place, as for ``load_config``.
    """
    old, new = f"{module_name(tree.get(SOURCE) or '')}:", f"{module_name(source)}:"

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(each) for each in value]
        if isinstance(value, dict):
            return {key: renamed(each) for key, each in value.items()}
        return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value

    return {**{place: renamed(value) for place, value in tree.items()}, SOURCE: source}


def python_source(source: str | None, trusted: bool) -> str | None:
    """Returns the Python file or module that ``--config`` names for a run that exists, with an absolute path.

    Args:
        source: What it names; None if it was not given.
        trusted: Whether ``--untrusted`` was left out.

    Raises:
        ConfigError: If it is something else, or if no such code is to be run.
    """
    if source is None:
        return None
    if not trusted:
        raise ConfigError("--config: it runs the code of a Python file, and --untrusted runs none. Leave one out.")
    if Path(source).suffix.lower() in (".yaml", ".yml", ".json"):
        raise ConfigError(
            f"--config: expected the Python file of the run's config, but got {source!r}. A run has its settings "
            f"already; with --resume, --set changes single ones."
        )
    return absolute_spec(source)


def tree_of_run(path: Path, data: Mapping[str, Any], source: str | None = None) -> Tree:
    """Returns the tree of settings of a run, which is empty for a run that was begun in Python.

    Nothing that it names is imported.

    Args:
        path: The folder of the run.
        data: The content of its ``config.json``.
        source: The Python file or module that the user names in place of the one of the run.

    Raises:
        CheckpointError: If the file is damaged.
    """
    tree = flat(data.get(SETTINGS, {}), f"{path / run_files.CONFIG}: {SETTINGS}")
    has_class = isinstance(tree.get(SOURCE), str) or tree.get(ALGO) in list(ALGORITHMS)
    is_run = has_class and isinstance(tree.get(ENV, ""), str) if tree else "algorithm" in data
    if not is_run:
        raise CheckpointError(
            f"{path / run_files.CONFIG}: expected its settings to have an environment and one of the algorithms "
            f"{', '.join(ALGORITHMS)}, so the file is damaged. Start a new run."
        )
    who, probe = str(path / run_files.CONFIG), config_class("ppo")()
    for place in [each for each in tree if each.startswith("run.") and each not in (ALGO, PRESET, COMPLETE)]:
        try:
            tree |= read_setting(place, tree[place], probe, f"{who}: {place}")
        except ConfigError as error:
            raise CheckpointError(str(error)) from error
        except KeyError as error:
            raise CheckpointError(f"{who}: {place} is no setting, so the file is damaged. Start a new run.") from error
    return tree if source is None else with_source(tree, source)


def config_to_resume(
    path: Path, data: Mapping[str, Any], checkpoint: Path | None, source: str | None, trusted: bool
) -> AlgorithmConfig:
    """Returns a config of the class of a run's config, with which options are read."""
    from marl_connectors.algorithms.algorithm_state import algorithm_state
    from marl_connectors.algorithms.checkpoint_restore import restored_config
    from marl_connectors.names import Names

    tree = tree_of_run(path, data, source)
    if tree and tree.get(SOURCE) is None:
        return config_class(tree[ALGO])()
    if checkpoint is None or (trusted and tree and (source is not None or has_source(tree[SOURCE]))):
        return load_config(tree[SOURCE])
    state = algorithm_state(checkpoint, with_replay_buffers=False)
    return restored_config(state, None, {}, Names(trusted))


def _tree_around(checkpoint: Path) -> tuple[Path, Tree]:
    """Returns the folder of a checkpoint's run, and the run's tree; an empty one if it belongs to no run."""
    run = checkpoint.parent.parent
    if checkpoint.parent.name != run_files.CHECKPOINTS or not (run / run_files.CONFIG).is_file():
        return run, {}
    return run, tree_of_run(run, run_files.read_config(run))


@contextlib.contextmanager
def naming_a_lost_config(checkpoint: Path, who: str, named: str | None) -> Iterator[None]:
    """Raises another error in its block if something cannot be read without a Python file that is not there any more.

    Args:
        checkpoint: The folder of the checkpoint.
        who: The command, for messages.
        named: The file that the user names in its place.

    Raises:
        CheckpointError: Names the file, and how to name another one.
    """
    try:
        yield
    except MarlConnectorsError as error:
        source = _tree_around(checkpoint)[1].get(SOURCE)
        if named is not None or not isinstance(source, str) or has_source(source):
            raise
        raise CheckpointError(
            f"{error} The run of {checkpoint} began with the config in {source}, which is not there any more. Put it "
            f"back, or name its new place, if its functions or classes are missing: --config NEW.py"
        ) from error


def _without_names(config: AlgorithmConfig, state: AlgorithmState) -> dict[str, Any]:
    """Returns those of a config's settings that a checkpoint has not, because they have no names, such as lambdas."""
    kept = state.config.settings
    missing = [name for name in kept if re.search(_WITHOUT_NAME, json.dumps(kept[name]))]
    return {name: getattr(config, name) for name in missing}
