"""A run of ``marl-connectors train`` with one seed, new or resumed: its config, its folder, and how it ends."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting import run_files
from marl_connectors.algorithms.fitting.caller import Caller
from marl_connectors.algorithms.fitting.figures import success_measure
from marl_connectors.algorithms.fitting.fit import fit
from marl_connectors.algorithms.fitting.progress import announced
from marl_connectors.algorithms.fitting.run_folder import made_folder, numbered_checkpoints
from marl_connectors.algorithms.fitting.stop_signals import exit_status
from marl_connectors.callbacks.trackers import TRACKERS
from marl_connectors.checkpoints import LATEST, find_checkpoint
from marl_connectors.cli import suggestions
from marl_connectors.cli.folders import check_can_be_made
from marl_connectors.cli.known_algorithms import algorithm_of
from marl_connectors.cli.layers import SETTINGS, resolved, tree_of_data, tree_of_options, user_tree
from marl_connectors.cli.made_config import annealed, configured, make_config, use_threads
from marl_connectors.cli.parser import words_of
from marl_connectors.cli.presets import preset_sentence
from marl_connectors.cli.restored_runs import (
    check_is_run,
    config_to_resume,
    load_algorithm,
    naming_a_lost_config,
    python_source,
    tree_of_run,
)
from marl_connectors.cli.tree import (
    ANNEAL,
    ENV,
    RUN,
    STEPS,
    Tree,
    above,
    as_option,
    can_change,
    flat,
    has_lr_schedule,
    learning_rates,
    nested,
    option_of,
    short_forms,
    with_shares,
)
from marl_connectors.cli.values import require_extras
from marl_connectors.environments.registry.factory import env_name
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.policy_mapping import IndependentPolicies, PatternPolicies, SharedPolicy
from marl_connectors.programs import PROGRAM, command
from marl_connectors.zoo import find_task

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

BUILDING = "building environments and modules, starting their processes, and trying the environment"
"""What a program does before a run, in words."""
CHANGED = "changed"
"""The key in ``config.json`` under which the settings are that changed when the run was resumed."""
OUT, SEEDS, PARALLEL = "run.out", "run.seeds", "run.parallel"


class CommandLine(Caller):
    """The command line calls ``fit``: messages name its options, and runs are resumed with ``--resume``.

    Attributes:
        signal: The signal that has ended the call; None if there was none.
    """

    who = "train"
    keeps_results = False

    def __init__(self, facts: Mapping[str, Any], trusted: bool = True):
        """Takes what messages need.

        Args:
            facts: As in the base class.
            trusted: Whether checkpoints are read with ``--untrusted`` left out.
        """
        self.facts = facts
        self.signal: int | None = None
        self._trusted = trusted

    def name(self, argument: str) -> str:
        return "--out" if argument == "folder" else f"--{argument.replace('_', '-')}"

    def setting(self, name: str, value: Any) -> str:
        return as_option(name, value)

    def resume(self, path: Path) -> str:
        return suggestions.resume(path, trusted=self._trusted)

    def stopped(self, number: int) -> None:
        self.signal = number

    def why_no_success(self, algo: Algorithm) -> str:
        task, measure = find_task(env_name(algo.config.env)), success_measure(algo.config)
        has_opponent = "eval_opponent" in self.facts[SETTINGS].get("run", {})
        if task is not None and "eval_opponent" in task.settings and not has_opponent:
            name = "" if measure is None else measure.name
            return f"Success ({name}) is only measured against an opponent: --eval-opponent random."
        return super().why_no_success(algo)


def prepared(given: Mapping[str, Any]) -> _Training:
    """Builds or restores everything that a run needs.

    Args:
        given: The parsed options; or the complete tree of a new run under ``"tree"``.
    """
    with announced(BUILDING):
        return _resumed(given) if "resume" in given else _new(given.get("tree") or new_tree(given))


def new_tree(given: Mapping[str, Any]) -> Tree:
    """Returns all settings of the run that the parsed options begin."""
    words = words_of(given)
    if words.last(ENV) is None and words.config is None:
        raise ConfigError(
            f"train: expected an environment, --config FILE or --resume RUN. Try: {suggestions.first_run()}"
        )
    if "new_episodes" in given:
        raise ConfigError("train: --new-episodes is for --resume RUN, as a new run has no episodes yet. Leave it out.")
    if "trusted" in given:
        raise ConfigError("train: --untrusted is for --resume RUN, as a new run reads no checkpoint. Leave it out.")
    return resolved(user_tree(words))


def folder_name(config: Any) -> str:
    """Returns ``<env>-<policies>-seed<seed>``, with the algorithm's name after ``<env>`` if it is not PPO."""
    match config.policy_mapping_fn:
        case PatternPolicies() as mapping:
            policies = "-".join(dict.fromkeys(module_id for _, module_id in mapping.patterns))
        case SharedPolicy():
            policies = "shared"
        case IndependentPolicies():
            policies = "independent"
        case mapping:
            policies = getattr(mapping, "__qualname__", type(mapping).__qualname__)
    algo = algorithm_of(config)
    parts = [env_name(config.env), *([] if algo == "ppo" else [algo]), re.sub(r"[^\w.-]+", "_", policies)]
    return "-".join([*parts, f"seed{config.seed}"])


@dataclasses.dataclass(slots=True)
class _Training:
    """A run that is ready to start.

    Attributes:
        algo: The ``Algorithm``, built or restored.
        out: The path of the folder.
        facts: What ``config.json`` gets besides what ``fit`` writes.
        numbered: Whether the folder gets a numbered name if ``out`` exists.
        trusted: As in ``Algorithm.from_checkpoint``.
    """

    algo: Algorithm
    out: Path
    facts: Mapping[str, Any]
    numbered: bool = False
    trusted: bool = True

    def run(self, *, suggests: bool = True) -> int:
        """Trains until the run has its steps. Returns the exit status.

        Args:
            suggests: Whether commands to try next are printed at the end.
        """
        algo, config = self.algo, self.algo.config
        caller = CommandLine(self.facts, self.trusted)
        try:
            if str(algo.masking):
                print(f"Action masks: {algo.masking}", flush=True)
            with made_folder(self.out, numbered=self.numbered) as path:
                fit(algo, {}, settings={}, folder=path, caller=caller)
        except KeyboardInterrupt as stop:
            return exit_status(stop)
        finally:
            algo.stop()
        if caller.signal is not None:
            return exit_status(caller.signal)
        if suggests:
            assert config.steps is not None
            steps = suggestions.more_steps(config.steps, max(algo.num_agent_steps, config.steps))
            events = path / run_files.EVENTS if "tensorboard" in config.track else None
            commands = suggestions.after_a_run(path, steps, events=events, trusted=self.trusted)
            suggestions.print_next(commands)
        return 0


def check_extras(config: AlgorithmConfig) -> None:
    """Checks that the packages are installed that trackers and videos of a run need.

    Raises:
        MissingDependencyError: If one is missing.
    """
    video = ["imageio_ffmpeg"] if config.video == "mp4" else []
    require_extras(*(TRACKERS[name].package for name in config.track), *video)


def _new(tree: Tree) -> _Training:
    """Builds everything for a new run, and writes nothing."""
    config, numbered = make_config(tree), OUT not in tree
    out = Path("runs") / folder_name(config) if numbered else Path(tree[OUT])
    check_can_be_made(out, numbered=numbered)
    check_extras(config)
    algo = built(config, tree)
    if sentence := preset_sentence(tree):
        print(sentence, flush=True)
    return _Training(algo, out, facts_of(tree), numbered)


def built(config: AlgorithmConfig, tree: Mapping[str, Any]) -> Algorithm:
    """Builds the ``Algorithm`` of a new run."""
    use_threads(tree["run.threads"])
    return config.build_algo()


def facts_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what ``config.json`` gets: the tree of settings, without those of several runs and of the folder."""
    return {SETTINGS: nested({place: own for place, own in tree.items() if place not in (OUT, SEEDS, PARALLEL)})}


def _resumed(given: Mapping[str, Any]) -> _Training:
    """Restores a run from its latest checkpoint."""
    path, trusted = Path(given["resume"]), given.get("trusted", True)
    source = python_source(given.get("config"), trusted)
    check_is_run(path, "train --resume")
    data, checkpoint = run_files.read_config(path), checkpoint_to_resume(path)
    if checkpoint is None and SETTINGS not in data:
        raise CheckpointError(
            f"train --resume: {path} was begun in Python, and has no checkpoint yet. Run the program again."
        )
    if checkpoint is None and not trusted:
        raise ConfigError(
            f"train --resume: {path} has no checkpoint yet, so it begins anew and imports what its {run_files.CONFIG} "
            f"names, but --untrusted imports none of it. Leave --untrusted out."
        )
    with naming_a_lost_config(checkpoint or path, "train --resume", source):
        probe = config_to_resume(path, data, checkpoint, source, trusted)
        tree = tree_of_run(path, data, source)
    now = given["changes"] if "changes" in given else tree_of_options(words_of(given), probe)
    check_changeable(now, type(probe))
    if checkpoint is None:
        tree = above(tree, now)
        print("The run was ended before its first checkpoint, so it begins anew.", flush=True)
        return _Training(built(make_config(tree), tree), path, facts_of(tree))
    now = with_shares(now, tree)
    changed = above(_earlier_changes(path, data, probe), {**now, **_annealed_again(tree, now, probe)})
    use_threads({**tree, **changed}.get("run.threads", 1))
    options: dict[str, Any] = {"trusted": trusted, "new_episodes": given.get("new_episodes", False), "chosen": now}
    with naming_a_lost_config(checkpoint, "train --resume", source):
        algo = load_algorithm(checkpoint, changed, source=source, **options)
    try:
        if algo.config.steps is None:
            raise ConfigError(
                f"train --resume: {path} was begun in Python without a number of agent steps. Say when it ends: "
                f"--steps N"
            )
        check_extras(algo.config)
        if algo.num_agent_steps >= algo.config.steps and (path / run_files.FINAL).exists():
            raise ConfigError(
                f"train --resume: the run {path} has its {algo.num_agent_steps:,} agent steps of "
                f"{algo.config.steps:,} done. To train it further, use more steps: "
                f"--steps {suggestions.more_steps(algo.config.steps, algo.num_agent_steps)}"
            )
    except BaseException:
        algo.stop()
        raise
    print(f"Continuing from iteration {int(checkpoint.name)} at {algo.num_agent_steps:,} agent steps.", flush=True)
    for place, value in changed.items():
        if not place.startswith(f"{RUN}."):
            print(f"  {place.partition('.')[2]} is {value!r} from now on.", flush=True)
    facts = {
        **({} if SETTINGS not in data else facts_of(above(tree, now))),
        **({CHANGED: nested(changed)} if changed else {}),
    }
    return _Training(algo, path, facts, trusted=trusted)


def checkpoint_to_resume(path: Path) -> Path | None:
    """Returns the checkpoint to resume from; None if the run ended before its first checkpoint.

    Raises:
        CheckpointError: If the run names a checkpoint that does not exist, or its checkpoints are lost.
    """
    folder = path / run_files.CHECKPOINTS
    if (folder / LATEST).exists():
        run_files.iteration_of(found := find_checkpoint(path))
        return found
    with run_files.reading(folder):
        if found := numbered_checkpoints(folder):
            return max(found, key=lambda each: int(each.name))
        is_lost = (path / run_files.CURVES).exists() or (path / run_files.FINAL).exists()
        metrics = path / run_files.METRICS
        is_lost |= not folder.is_dir() and metrics.is_file() and bool(metrics.stat().st_size)
    if is_lost:  # to begin anew would overwrite what the run has logged
        raise CheckpointError(
            f"train --resume: {path} had checkpoints, but none is in {folder} any more. Put them back, or start a new "
            f"run with the same settings: {command(PROGRAM, 'train', '--config', path / run_files.CONFIG)}"
        )
    return None


def check_changeable(changes: Mapping[str, Any], cls: type, who: str = "train --resume") -> None:
    """Checks that settings can change when a run is resumed: those that neither modules nor episodes depend on.

    Raises:
        ConfigError: For the first setting that cannot. Names the options of those that can.
    """
    if OUT in changes:
        raise ConfigError(
            f"{who}: --out cannot be given, because the run goes on in its own folder. Leave it out, or copy "
            "the folder and resume the copy."
        )
    for place in changes:
        if not can_change(place, cls):
            known = [option for other, option in short_forms(cls).values() if can_change(other, cls)]
            raise ConfigError(
                f"{who}: {option_of(place, cls)} cannot be changed, because the checkpoint's modules, pipelines or "
                f"episodes depend on it. Start a new run with it. You can change: --set training.NAME, --config, "
                f"{', '.join(option.flag for option in known)}."
            )


def _earlier_changes(path: Path, data: Mapping[str, Any], probe: Any) -> Tree:
    """Returns the settings that were changed when the run was resumed earlier."""
    who = f"{path / run_files.CONFIG}: {CHANGED}"
    try:
        changed = flat(data.get(CHANGED, {}), who)
        # Nothing that a file of others names is imported: only settings without names can change.
        check_changeable(tree_of_data(nested(changed), who, probe, check=False), type(probe), who)
        changed = tree_of_data(nested(changed), who, probe)
    except ConfigError as error:
        raise CheckpointError(f"{error} Correct it.") from error
    return changed


def _annealed_again(tree: Mapping[str, Any], now: Mapping[str, Any], config: AlgorithmConfig) -> Tree:
    """Returns the learning rates of a resumed run that fall to 0, if the command changes its steps or these rates."""
    if not tree.get(ANNEAL) or not (STEPS in now or learning_rates(now)) or has_lr_schedule(now):
        return {}
    env = {place: own for place, own in tree.items() if place == ENV}
    rates = {**learning_rates(tree), **learning_rates(now)}
    return annealed(configured(config, {**env, **rates}), {**tree, **now}[STEPS])
