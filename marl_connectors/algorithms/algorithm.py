"""Algorithm: samples episodes, updates modules, evaluates them, and saves and restores checkpoints."""

from __future__ import annotations

import dataclasses
import logging
import math
import secrets
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from gymnasium import Space

from marl_connectors.algorithms import build, checkpoint_restore
from marl_connectors.algorithms.action_mask_setting import AUTO, Masking, warn_of_late_masks
from marl_connectors.algorithms.algorithm_state import AlgorithmState, algorithm_state
from marl_connectors.algorithms.checkpoint_settings import check_seed, check_settings, naming_changes
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig, evaluation_settings
from marl_connectors.algorithms.config.former_settings import unknown_algorithm_attribute
from marl_connectors.algorithms.config.sections import NotProvided
from marl_connectors.algorithms.config.setting_types import POLICIES_TO_TRAIN, POLICY_MAPPING
from marl_connectors.algorithms.config.state import ModulesMade, config_to_state, to_state
from marl_connectors.algorithms.env_runner_blueprint import RunBlueprint
from marl_connectors.algorithms.explain import explain_pipelines
from marl_connectors.algorithms.fitting.fit import fit
from marl_connectors.algorithms.fitting.fit_results import FitResults
from marl_connectors.algorithms.fitting.stop_conditions import Stop
from marl_connectors.algorithms.learner_blueprint import RunLearnerBlueprint
from marl_connectors.algorithms.offline_data import OfflineData, together
from marl_connectors.algorithms.remote_parts import RemoteParts, check_can_be_sent
from marl_connectors.algorithms.rendering import FrameRecorder, RenderedEpisode, rendered, with_recorder
from marl_connectors.algorithms.results import iteration_results, workers
from marl_connectors.algorithms.vectorization import are_worth_workers, human_render_mode
from marl_connectors.checkpoints import (
    PLACE_OF_MODULES,
    component_state,
    new_folder,
    run_folders_of,
    save_state,
    taking_over,
)
from marl_connectors.cluster.remote_env_runners import RemoteEnvRunners
from marl_connectors.cluster.remote_learners import RemoteLearners
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.explain import Explanations
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.env_runners.env_runner_group import EnvRunnerGroup
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.env_runners.sample import Sample, joined
from marl_connectors.environments.rules.env_failures import close_env
from marl_connectors.errors import (
    CheckpointError,
    ConfigError,
    MappingError,
    MarlConnectorsWarning,
    ModuleError,
    counted,
    did_you_mean,
    listed,
)
from marl_connectors.learner.learner import Learner
from marl_connectors.learner.learner_group import LearnerGroup
from marl_connectors.learner.ranks import check_can_be_divided
from marl_connectors.metrics import MetricsLogger, with_logged
from marl_connectors.names import Names
from marl_connectors.never_called import RefusesIgnoredMethods
from marl_connectors.offline.episode_writer import EpisodeWriter
from marl_connectors.policy_mapping import PolicyMappingFn, check_mapping, goes_by_agent_alone
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.rl_module.spec_fields import MODULE_ID
from marl_connectors.seeding import derived_seed, global_generators_kept, torch_stream
from marl_connectors.state import read_state
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID
from marl_connectors.validators import instance_of, integer, optional

if TYPE_CHECKING:
    from typing_extensions import Self

    from marl_connectors.algorithms.results import TrainResults
    from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline

_LOG = logging.getLogger(__name__)
_LOG_OF_MASKS = logging.getLogger("marl_connectors.action_masks")
"""Says that masks are ignored. The command line silences it, because it prints what becomes of masks itself."""
_EPISODES_AT_A_TIME = 50
"""The number of episodes that ``record`` keeps in memory."""
_COUNTS = ("seed", "iteration", "time_total_s", "_num_evaluations", "_num_episodes")
"""The attributes of an Algorithm that count what it has done."""
_MOST_TRIES = 5
"""How often an iteration is tried, if nodes that have its episodes are lost."""
ModulesToUpdate = Collection[ModuleID] | Callable[[ModuleID], bool]
"""What ``policies_to_train`` accepts."""


class _Watch(NamedTuple):
    """The arguments of ``evaluate`` with which the caller watches and ends it."""

    max_seconds: float | None = None
    on_progress: Callable[[int], Any] | None = None
    is_enough: Callable[[], bool] | None = None

    def ends(self, num_done: int) -> bool:
        """Reports the number of finished episodes, and returns whether playing stops before its time."""
        if self.on_progress is not None:
            self.on_progress(num_done)
        return self.is_enough is not None and self.is_enough()


_UNWATCHED = _Watch()


class Algorithm(RefusesIgnoredMethods):
    """A training run: environments, modules and a learner, built from a config.

    ``train()`` is one iteration: it samples episodes for one batch and updates the modules with them.

    Attributes:
        config: The settings of the run, as they are now.
        seed: The seed from which all random streams of the run follow.
        rl_module: The modules. Env runners act with them, and the learner updates them.
        learner: The learner in this process, with its pipeline. Remote learners give it their state after each update.
        learner_group: The learners that update the modules.
        env_runner_group: The env runners that sample the episodes for training.
        eval_env_runner_group: The remote env runners for evaluations; None if evaluations play in this process.
        masking: The action masks that are applied. ``str(masking)`` describes them.
        offline_data: The recorded episodes that the run reads or writes.
        callbacks: The callbacks of the config.
        metrics: The metrics that callbacks have logged.
        iteration: The number of completed calls of ``train()``.
        time_total_s: The seconds that these calls took.
        is_broken: Whether something has failed and going back from there, too, so that it is in no defined state.
        run_folders: The folders that have checkpoints of this run: those of ``fit``, and that of the checkpoint from
            which the algorithm was restored.
        ends_evaluations: The ``is_enough`` of evaluations that have none of their own; None for no such function. An
            evaluation of ``train()`` that it cuts short is left out of the results. ``fit`` and the command line set
            it, so that Ctrl-C does not wait for evaluations.
    """

    _has_warned_of_episodes = False
    _is_start_reported = False
    """Whether ``on_evaluate_start`` was called for an evaluation that was abandoned, and will be begun anew."""
    _is_evaluating = False
    """Whether an evaluation has begun and not ended."""
    _is_in_transaction = False
    _describe_activity: Callable[[], str] = str

    @torch.inference_mode(False)
    def __init__(
        self,
        config: AlgorithmConfig | Mapping[str, Any] | None = None,
        env: Any = None,
        *,
        rl_module_specs: Mapping[ModuleID, RLModuleSpec] | None = None,
        masking: Masking | None = None,
    ):
        """Runs the smoke test of the environment, and builds everything.

        Args:
            config: The settings: a config, a dict of those that differ from ``get_default_config()``, or None.
            env: An environment that replaces the config's; None for the config's.
            rl_module_specs: All modules, complete with classes and spaces; None for the modules of the config.
            masking: The action masks that the run of a checkpoint applied; None to decide by the config.

        Raises:
            MarlConnectorsError: If a setting, the environment or the mapping function does not work.
        """
        default = self.get_default_config()
        if not isinstance(config, AlgorithmConfig):
            config = default.update_from_dict(config or {})
        if not isinstance(config, type(default)) or not isinstance(self, config.algo_class):
            raise ConfigError(
                f"{type(self).__name__}: expected a {type(default).__name__}, but got a {type(config).__name__}, whose "
                f"algorithm is {config.algo_class.__name__}. Use that one, or the config of this one."
            )
        self.config = config = config.copy()
        if env is not None:
            config.environment(env)
        self.config.validate()
        if config.evaluation_parallel_to_training and type(self).evaluate is not Algorithm.evaluate:
            raise ConfigError(
                f"{type(self).__name__}: evaluation_parallel_to_training=True does not call evaluate(), which this "
                f"class overrides. Leave the setting out."
            )
        self.seed = secrets.randbits(31) if config.seed is None else config.seed
        self.config.freeze()
        self._changed_settings: set[str] = set()
        self._warned_of_bounds: dict[Any, set[int]] = {}
        self._setup = build.build_setup(config)
        if not config.disable_env_checking:
            self._setup.check(self.seed)
        self._env_to_module, self.masking = build.build_env_to_module(self.config, self._setup, masking=masking)
        if masking is None and config.action_mask_key is None and self.masking.sentence:
            _LOG_OF_MASKS.warning("%s: %s", self._setup.name, self.masking)
        self.rl_module = build.build_modules(self.config, self._setup, self._env_to_module, self.seed, rl_module_specs)
        self.learner = self._build_learner()
        if self.config.num_learners:
            check_can_be_divided(self.config, self.learner.pipeline)
        self.metrics = MetricsLogger()
        self.iteration = 0
        self.time_total_s = 0.0
        self.is_broken = False
        self.run_folders: set[Path] = set()
        self.ends_evaluations: Callable[[], bool] | None = None
        self._num_evaluations = 0
        self._num_episodes = 0
        self._recent: deque[EpisodeSummary] = deque(maxlen=self.config.metrics_num_episodes_for_smoothing)
        self.offline_data = OfflineData(
            self.config,
            self._setup,
            self._env_to_module,
            [piece for learner in self._learners for piece in learner.pipeline],
            lambda: list(self.rl_module),
            self._needed_columns(),
        )
        self._remote = RemoteParts(self.config)
        self._groups: list[EnvRunnerGroup | LearnerGroup] = []  # as many as there are yet, for stop()
        try:
            self.env_runner_group = self._build_env_runner_group()
            self._groups.append(self.env_runner_group)
            self.eval_env_runner_group = self._build_eval_env_runner_group()
            if self.eval_env_runner_group is not None:
                self._groups.append(self.eval_env_runner_group)
            self.learner_group = self._build_learner_group()
            self._groups.append(self.learner_group)
            self.callbacks = self.config.make_callbacks()
            self.callbacks.call("on_algorithm_init", algorithm=self, metrics_logger=self.metrics)
        except BaseException:
            self.stop()
            raise

    def _build_learner(self) -> Any:
        """Returns the learner of all modules, or an object with the same methods."""
        stateful = self.rl_module.is_stateful()
        return build.build_learner(
            self.config, self._setup, self.rl_module, self._env_to_module, self.seed, stateful=stateful
        )

    @property
    def _learners(self) -> list[Learner]:
        """The learners in this process: one, or those of a LearnerSet."""
        return list(self.learner.by_name.values())

    def _needed_columns(self) -> list[str]:
        """Returns what the algorithm reads of recorded episodes, beside the columns that every episode has."""
        return []

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Returns a config of this algorithm with all defaults. A subclass has its own."""
        return AlgorithmConfig(cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises an error, as ``copy`` and ``pickle`` cannot copy environments and processes."""
        raise TypeError(
            f"{type(self).__name__}: a run cannot be copied or pickled, because it has environments and processes. "
            f"Save it and load it: {type(self).__name__}.from_checkpoint(algo.save_to_path(FOLDER)). For the modules "
            f"alone, copy.deepcopy(algo.rl_module)."
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises an error for attributes that do not exist, which names what replaces RLlib's."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # the error in a property is raised as it is
            raise unknown_algorithm_attribute(self, name)

    def __repr__(self) -> str:
        name = type(self.config).__name__.removesuffix("Config")
        return f"<{name} on {self._setup.name}: {listed(self.rl_module, 'module')}, {self._so_far()}>"

    def _so_far(self) -> str:
        return f"{counted(self.iteration, 'iteration')}, {counted(self.num_agent_steps, 'agent step')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Calls ``stop``."""
        self.stop()

    @property
    def env_runner(self) -> EnvRunner:
        """The env runner in this process.

        Raises:
            ConfigError: If the env runners are remote.
        """
        local = self.env_runner_group.local_env_runner
        if local is None:
            raise ConfigError(
                f"Algorithm.env_runner: with num_env_runners={self.config.num_env_runners} there is no env runner in "
                f"this process. Use env_runner_group, whose foreach_env_runner(fn) calls a function with each of them."
            )
        return local

    def _build_env_runner_group(self) -> EnvRunnerGroup:
        config = self.config
        if config.num_env_runners:
            module_to_env = build.build_module_to_env(config, self._setup, stateful=self.rl_module.is_stateful())
            return self._remote_env_runners([config.num_envs_per_env_runner] * config.num_env_runners, module_to_env)
        render_mode = human_render_mode(config, self._setup)
        return EnvRunnerGroup(
            self._runner(config, self.seed, config.num_envs_per_env_runner, first_render_mode=render_mode)
        )

    def _build_eval_env_runner_group(self) -> RemoteEnvRunners | None:
        number = self.config.evaluation_num_env_runners
        module_to_env = self.env_runner_group.module_to_env
        return self._remote_env_runners([1] * number, module_to_env, for_evaluation=True) if number else None

    def _remote_env_runners(
        self, num_envs: Sequence[int], module_to_env: ModuleToEnvPipeline, for_evaluation: bool = False
    ) -> RemoteEnvRunners:
        return self._remote.env_runners(
            self._blueprint,
            num_envs,
            for_evaluation=for_evaluation,
            rl_module=self.rl_module,
            env_to_module=self._env_to_module,
            module_to_env=module_to_env,
        )

    def _build_learner_group(self) -> LearnerGroup:
        if not self.config.num_learners:
            return LearnerGroup(self.learner)
        return self._remote.learners(self.learner, self._learner_blueprint)

    def _learner_blueprint(self) -> RunLearnerBlueprint:
        """Returns how remote learners are made now."""
        config = self.config.copy()
        config.change(num_learners=0, num_gpus_per_learner=float(self._remote.learner_device != "cpu"))
        return RunLearnerBlueprint.of(self.learner, config)

    def _blueprint(self) -> RunBlueprint:
        """Returns how remote env runners are made now."""
        specs: Any = MultiRLModuleSpec.from_module(self.rl_module).rl_module_specs
        return RunBlueprint.of(
            self.config,
            seed=self.seed,
            masking=self.masking,
            rl_module_specs=specs,
            has_state_pieces=build.has_state_pieces(self._env_to_module),
            lookback=self._lookback(),
            rollout_fragment_length=self._fragment_length(),
            state_space=self._state_space(),
        )

    def _runner(
        self,
        config: AlgorithmConfig,
        seed: int,
        num_envs: int,
        render_mode: str | None = None,
        first_render_mode: str | None = None,
        for_training: bool = True,
        is_long: bool = True,
    ) -> EnvRunner:
        """Builds an env runner in this process."""
        if config.num_env_workers == "auto" and not is_long:
            config = config.copy()
            config.num_env_workers = 0
        runner = EnvRunner(
            parts=build.build_env_runner_parts(
                config,
                self._setup,
                self.rl_module,
                self._env_to_module,
                seed=seed,
                num_envs=num_envs,
                rollout_fragment_length=1 if render_mode else self._fragment_length(),
                lookback=self._lookback(),
                state_space=self._state_space() if for_training else None,
                render_mode=render_mode,
                first_render_mode=first_render_mode,
                warned_of_bounds=self._warned_of_bounds,
            )
        )
        if build.has_state_pieces(self._env_to_module):  # maybe of modules that were removed
            build.add_state_pieces_to_runner(config, runner)
        return runner

    def _lookback(self) -> int:
        return build.lookback_of_run(self.config, self._env_to_module, self._learners)

    def _state_space(self) -> Space | None:
        """Returns the space of the environment's ``state()`` if the learner pipeline reads states, else None."""
        is_read = any(build.reads_env_states(learner.pipeline) for learner in self._learners)
        return self._setup.state_space if is_read else None

    def _fragment_length(self) -> int:
        return build.fragment_length(self.config, self._setup)

    @property
    def agent_ids(self) -> list[AgentID]:
        """The environment's possible agents."""
        return list(self._setup.agent_ids)

    def stop(self) -> None:
        """Closes the environments, and ends remote env runners and learners, also if some of this is interrupted."""
        with ExitStack() as parts:  # the last one is the first that ends
            if hasattr(self, "callbacks"):  # they are built last
                parts.callback(self.callbacks.close)
            parts.callback(close_env, self._setup.sample_env, self._setup.name)
            parts.callback(self._remote.stop)
            parts.callback(self.offline_data.close)
            for group in self._groups:
                parts.callback(group.stop)

    # Training.

    @torch.inference_mode(False)
    def train(self) -> TrainResults:
        """Runs one iteration. If it fails or is interrupted, the algorithm goes back to where it was before.

        After an error in an environment, a module or a piece, the next iteration begins new episodes.

        Returns:
            The results that docs/results.md lists: ``env_runners`` (returns and lengths of the newest episodes, steps
            and seconds of this iteration's samples), ``learners`` (loss statistics by module), ``timers``, and counts
            of steps and iterations.
        """
        for tries_left in reversed(range(_MOST_TRIES)):
            try:
                with self._transaction():
                    return self._run_iteration()
            except Exception as error:
                if not (tries_left and self._remote.is_lost(error)):
                    raise
                _LOG.warning("Episodes were lost with a node (%s). The iteration is repeated.", type(error).__name__)
        raise AssertionError

    def _run_iteration(self) -> TrainResults:
        began = time.perf_counter()
        interval = self.config.evaluation_interval
        is_evaluated = interval is not None and (self.iteration + 1) % interval == 0
        is_parallel = is_evaluated and self.config.evaluation_parallel_to_training
        watch = _Watch(is_enough=self.ends_evaluations)
        evaluation = self._begin_evaluation(watch=watch) if is_parallel else None
        sampled, learned = self._sample_and_update()
        runners = self.env_runner_group
        ended = time.perf_counter()
        self.iteration += 1
        self.time_total_s += ended - began
        finished = runners.take_finished()
        self._num_episodes += len(finished)
        self._recent.extend(finished)
        result = {
            "training_iteration": self.iteration,
            "time_total_s": self.time_total_s,
            **iteration_results(
                runners,
                self.learner_group,
                self._recent,
                learned,
                num_episodes=self._num_episodes,
                num_steps=(self.num_env_steps, self.num_agent_steps),
                sample_s=sampled - began,
                update_s=ended - sampled,
            ),
            **self._results_of_data(),
        }
        if is_evaluated:
            evaluated = self.evaluate() if evaluation is None else self._end_evaluation(evaluation)
            is_whole = evaluated["env_runners"]["num_episodes"] >= self.config.evaluation_duration
            if is_whole or self.ends_evaluations is None or not self.ends_evaluations():
                result["evaluation"] = evaluated
                if self.eval_env_runner_group is not None:
                    evaluated.update(workers(self.eval_env_runner_group))
        interval = self.config.offline_evaluation_interval
        if interval is not None and self.iteration % interval == 0:
            result["offline_evaluation"] = self.evaluate_offline()
        self.callbacks.call("on_train_result", algorithm=self, metrics_logger=self.metrics, result=result)
        return cast("TrainResults", with_logged(result, self.metrics))

    def fit(
        self,
        num_agent_steps: float | None = None,
        *,
        num_env_steps: float | None = None,
        num_iterations: int | None = None,
        steps: float | None = NotProvided,
        stop: Stop | None = None,
        callbacks: Any = None,
        folder: str | Path | None = None,
        checkpoint_every: int = NotProvided,
        keep_checkpoints: int | None = NotProvided,
        keep_best: str | None = NotProvided,
        eval_episodes: int = NotProvided,
        baseline_seconds: float = NotProvided,
        video: str = NotProvided,
        video_every: int = NotProvided,
        track: Sequence[str] = NotProvided,
        progress: bool = True,
    ) -> FitResults:
        """Runs iterations until a number of steps or a condition is reached, and shows progress.

        It calls ``train()`` and changes nothing about it: one call leads to the same modules as two calls with half of
        the iterations each, or as a loop. Iterations are never cut short, so the last one may go beyond the number.

        Ctrl-C ends the call after the ongoing iteration, as if its goal had been reached; a second Ctrl-C ends it at
        once with a KeyboardInterrupt. SIGTERM and SIGHUP have their usual effect as soon as the iteration has ended, or
        after 20 s. In each case, and after an error, the newest complete iteration is saved in ``folder``.

        ``steps``, ``checkpoint_every``, ``keep_checkpoints``, ``keep_best``, ``eval_episodes``, ``baseline_seconds``,
        ``video``, ``video_every`` and ``track`` are settings of the config (``config.run(...)``). Those that are given
        here change the config, also for later calls and in checkpoints, so a restored run goes on with them.

        Args:
            num_agent_steps: The number of further agent steps. For a single agent, they are the env steps.
            num_env_steps: The number of further env steps, instead.
            num_iterations: The number of further iterations, instead.
            steps: The number of agent steps of the whole run, instead; None to end it by ``stop`` alone. If it has
                them, and the folder has everything that was asked for, nothing happens. The config's holds unless one
                of the numbers above is given.
            stop: What else ends training, checked after each iteration: a dict of metrics and the lowest values that
                end it, such as ``{"env_runners/episode_return_mean": 450}``; or a function that gets the result of an
                iteration and returns whether to stop. A count of the whole run, such as
                ``{"num_agent_steps_sampled_lifetime": 1_000_000}``, is also right for a run that is resumed.
            callbacks: Functions that are called with ``algorithm``, ``metrics_logger`` and ``result`` after each
                iteration; or subclasses or objects of Callbacks, such as ``TensorBoardTracker``. They are called in
                addition to those of the config, which are the only ones that can watch episodes.
            folder: The folder of the run, for its settings (``config.json``), ``checkpoints``, results
                (``metrics.jsonl``) and ``curves.png``. From this folder, ``Algorithm.from_checkpoint`` and
                ``load_policy`` load the newest checkpoint. A run that is restored from there goes on in the same
                folder, and so does ``marl-connectors train --resume``. None to save nothing.
            checkpoint_every: The number of iterations from one checkpoint to the next. There is one more at the end,
                and, if iterations are long, one in between, which the next one replaces.
            keep_checkpoints: The number of newest checkpoints to keep besides the best one; None for all.
            keep_best: The metric by which ``checkpoints/best`` is chosen, ``"min:NAME"`` if the lowest is best;
                ``"auto"`` for the success or else the return of evaluations, or else of training; None for no best one.
            eval_episodes: With a folder, the number of episodes that are played when the goal is reached, and whose
                returns go to ``final.json``; 0 for none. Policies that draw their actions are also measured with
                their most likely ones.
            baseline_seconds: With a folder, the seconds for measuring random play before the first iteration, and
                again for the untrained policies, for ``baselines.json``; 0 for neither.
            video: With a folder, the format of videos: ``"gif"``, ``"mp4"``, or ``"none"`` for no videos.
            video_every: The number of iterations from one video to the next; 0 for one at the end alone.
            track: With a folder, the names of trackers to which results are written, such as ``["tensorboard"]``.
            progress: Whether progress is displayed: in a notebook below the cell, on a terminal as a bar (if ``rich``
                is installed), and elsewhere as lines.

        Returns:
            The results of all iterations. ``results[-1]`` is the newest, and ``results.series(name)`` is a curve.

        Raises:
            ConfigError: If it is not clear when training ends, if no result has a metric of ``stop``, or if the folder
                has the checkpoints of another run.
            CheckpointError: If the folder cannot be written.
        """
        return fit(
            self,
            {
                "num_agent_steps": num_agent_steps,
                "num_env_steps": num_env_steps,
                "num_iterations": num_iterations,
            },
            settings={
                "steps": steps,
                "checkpoint_every": checkpoint_every,
                "keep_checkpoints": keep_checkpoints,
                "keep_best": keep_best,
                "eval_episodes": eval_episodes,
                "baseline_seconds": baseline_seconds,
                "video": video,
                "video_every": video_every,
                "track": track,
            },
            stop=stop,
            callbacks=callbacks,
            folder=folder,
            progress=progress,
        )

    @property
    def activity(self) -> str:
        """What the algorithm is busy with, in words, for threads that show it; "" between calls."""
        return self._describe_activity()

    @contextmanager
    def _doing(self, describe: Callable[[], str]) -> Iterator[None]:
        """Sets ``activity`` in its block."""
        before, self._describe_activity = self._describe_activity, describe
        try:
            yield
        finally:
            self._describe_activity = before

    def _describe_sampling(self, size: int) -> Callable[[], str]:
        runners, config = self.env_runner_group, self.config
        place = ["env_steps", "agent_steps"].index(config.count_steps_by)
        before, iteration = runners.num_steps_so_far[place], self.iteration + 1
        wanted = f"{size:,} {config.count_steps_by.replace('_', ' ')}"
        return lambda: f"iteration {iteration}: sampling, {runners.num_steps_so_far[place] - before:,} of {wanted}"

    def _sample_and_update(self) -> tuple[float, dict[str, Any]]:
        """Returns the time at which the episodes of a train batch were sampled, and the results of the update."""
        self.offline_data.begin(self.seed)
        by_agents = self.config.count_steps_by == "agent_steps"
        read, size = self.offline_data.sample(self.config.total_train_batch_size, by_agent_steps=by_agents)
        with self._doing(self._describe_sampling(size)):
            live = self._sample(size)
        if self.iteration == 0 and self.config.action_mask_key == AUTO and not self.masking.sentence:
            warn_of_late_masks(together(read, live).episodes())
        self.offline_data.record(live)
        sampled = time.perf_counter()
        with self._doing(lambda: f"iteration {self.iteration + 1}: updating the modules"):
            return sampled, self._update(together(read, live))

    # The one way back.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Brings the algorithm back to where it is now if anything in its block fails.

        Raises:
            CheckpointError: If it cannot go back.
        """
        is_outer, go_back = not self._is_in_transaction, self._now()
        try:
            self._is_in_transaction = True
            yield
        except BaseException as error:
            try:
                go_back()
            except BaseException as second:
                self.is_broken = True
                if not isinstance(second, Exception):
                    raise
                raise CheckpointError(
                    f"{error} The algorithm could not go back to where it was before ({second}). Do not use it any "
                    f"more; build it anew."
                ) from error
            raise
        finally:
            if is_outer:
                self._is_in_transaction = False
                self._end_transaction()

    def _end_transaction(self) -> None:
        """Forgets what was kept to go back; there is nothing unless overridden."""

    def _now(self) -> Callable[[], None]:
        """Returns a function that brings the algorithm back to where it is now.

        This takes little time: the parameters, the optimizers' moments and the rows of ongoing episodes are copied, and
        no replay buffer.
        """
        counts = {name: getattr(self, name) for name in _COUNTS}
        settings, changed, recent = self.config.to_dict(), set(self._changed_settings), list(self._recent)
        modules, metrics = dict(self.rl_module), self.metrics.get_state()
        pipelines = self._env_to_module, self.env_runner_group.module_to_env, *(own.pipeline for own in self._learners)
        pieces = [list(pipeline) for pipeline in pipelines]
        parts = [self.learner.now(), self.env_runner_group.now(), self.offline_data.now()]

        def go_back() -> None:
            if self._is_evaluating:
                self._is_evaluating, self._is_start_reported = False, True
                if self.eval_env_runner_group is not None:
                    self.eval_env_runner_group.abandon_playing()
            vars(self).update(counts)
            if settings != self.config.to_dict():
                self.config.change(**settings)
                self._changed_settings = set(changed)
                self.env_runner_group.set_policy_mapping_fn(self.config.policy_mapping_fn)
            if list(self.rl_module.items()) != list(modules.items()):
                for module_id in list(self.rl_module):
                    self.learner.remove_module(module_id)
                for module_id, module in modules.items():
                    self.learner.add_module(module_id, module, is_updated=False)  # its state says which ones are
                for pipeline, own in zip(pipelines, pieces, strict=True):
                    for piece in [piece for piece in pipeline if piece not in own]:
                        pipeline.remove(type(piece))
                self._modules_changed()
            self._recent.clear()
            self._recent.extend(recent)
            self.metrics.set_state(metrics)
            for part in parts:
                part()

        return go_back

    def _update(self, sample: Sample) -> dict[str, Any]:
        """Updates the modules. Remote learners fetch episodes that are in other processes from there."""
        timesteps = self._timesteps()
        learners = self.learner_group
        if isinstance(learners, RemoteLearners) and sample.is_remote:
            return learners.update_from(sample.references(), timesteps, self.config.num_envs)
        return learners.update(episodes=sample.episodes(), timesteps=timesteps)

    def _results_of_data(self) -> dict[str, Any]:
        """Returns what the results of an iteration say about recorded episodes and other data that is kept."""
        return self.offline_data.results()

    def _timesteps(self) -> dict[str, int]:
        """Returns the steps so far, as learners get them."""
        return {
            "num_env_steps_sampled_lifetime": self.num_env_steps,
            "num_agent_steps_sampled_lifetime": self.num_agent_steps,
        }

    @property
    def num_env_steps(self) -> int:
        """The number of env steps that were sampled, or read from recorded episodes, so far."""
        return self.env_runner_group.num_env_steps + self.offline_data.num_steps[0]

    @property
    def num_agent_steps(self) -> int:
        """The number of agent steps that were sampled, or read from recorded episodes, so far."""
        return self.env_runner_group.num_agent_steps + self.offline_data.num_steps[1]

    def _sample(self, size: int | None = None) -> Sample:
        """Samples a number of steps, which are counted as in a train batch: None for those of a batch, 0 for none."""
        config, runners = self.config, self.env_runner_group
        by_agents = config.count_steps_by == "agent_steps"
        size = config.total_train_batch_size if size is None else size
        if not size:
            return Sample.of_episodes([])
        most = self._fragment_length() * config.num_envs
        samples: list[Sample] = []
        collected, before = 0, runners.num_env_steps
        runners.send_weights()
        while collected < size:
            if config.batch_mode == "complete_episodes":
                new = runners.sample()
            elif config.rollout_fragment_length == "auto":
                steps = (
                    math.ceil((runners.num_env_steps - before) / collected * (size - collected)) if collected else most
                )
                new = runners.sample(num_timesteps=min(steps, most))
            else:
                ahead = 1 if by_agents else math.ceil((size - collected) / most)
                new = runners.sample(times=min(ahead, config.max_requests_in_flight_per_env_runner))
            samples.append(new)
            collected += new.agent_steps if by_agents else new.env_steps
        self._report_recreated(runners)
        return joined(samples)

    def _report_recreated(self, runners: EnvRunnerGroup) -> None:
        recreated = runners.take_recreated()
        if recreated:
            self.callbacks.call(
                "on_env_runners_recreated",
                algorithm=self,
                env_runner_group=runners,
                env_runner_indices=recreated,
                is_evaluation=runners is self.eval_env_runner_group,
            )

    # Evaluation.

    def evaluate(
        self,
        *,
        num_episodes: int | None = None,
        explore: bool | None = None,
        seed: int | None = None,
        policy_mapping_fn: str | PolicyMappingFn | None = None,
        max_seconds: float | None = None,
        on_progress: Callable[[int], Any] | None = None,
        is_enough: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Plays episodes in sub-environments that are made for the evaluation. Training is not affected.

        Args:
            num_episodes: The number of episodes; ``evaluation_duration`` if None.
            explore: Whether actions are sampled. If None, ``evaluation_config`` decides. If it does not say, the
                policies act as they were trained: PPO, MAPPO, BC, MARWIL and SAC draw their actions, and DQN, VDN,
                QMIX, MADDPG and MATD3 take the best ones.
            seed: The seed of these episodes. If None, each such evaluation has another seed, derived from the run's.
            policy_mapping_fn: Chooses the module of each agent. If None, the function of ``evaluation_config`` or else
                of training is used.
            max_seconds: The time after which playing stops, although episodes are unfinished; None for no limit. The
                returns are then those of the first episodes of each sub-environment, the same number from each, so
                that short episodes are not preferred. ``env_runners/num_episodes`` in the result is the number of
                episodes that count; it can be 0.
            on_progress: A function that is called after each step with the number of finished episodes. With remote env
                runners, it is called several times in a second.
            is_enough: A function that is called as often. If it returns True, playing stops as after ``max_seconds``.

        Returns:
            ``env_runners`` with the same keys as in the result of ``train()``, for these episodes.
        """
        watch = _Watch(max_seconds, on_progress, is_enough or self.ends_evaluations)
        return self._end_evaluation(self._begin_evaluation(num_episodes, explore, seed, policy_mapping_fn, watch))

    def _begin_evaluation(
        self,
        num_episodes: int | None = None,
        explore: bool | None = None,
        seed: int | None = None,
        policy_mapping_fn: str | PolicyMappingFn | None = None,
        watch: _Watch = _UNWATCHED,
    ) -> Callable[[], dict[str, Any]]:
        """Begins an evaluation, and returns a function that waits for its results. Only remote env runners play ahead.

        The arguments are those of ``evaluate``.
        """
        if not self._is_start_reported:
            self.callbacks.call("on_evaluate_start", algorithm=self, metrics_logger=self.metrics)
        self._is_evaluating, self._is_start_reported = True, False
        config = self.config.get_evaluation_config()
        if policy_mapping_fn is not None:
            config.multi_agent(policy_mapping_fn=policy_mapping_fn)
        if explore is not None:
            config.explore = explore
        number = config.evaluation_duration if num_episodes is None else num_episodes
        if seed is None:
            seed = derived_seed(self.seed, "evaluation", self._num_evaluations)
            self._num_evaluations += 1
        return self._begin_play(config, number, seed, watch)

    def _end_evaluation(self, begun: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        results = begun()
        self._is_evaluating = False
        self.callbacks.call("on_evaluate_end", algorithm=self, metrics_logger=self.metrics, evaluation_metrics=results)
        return results

    def evaluate_offline(self) -> dict[str, Any]:
        """Computes the losses of the held-out recorded episodes. Nothing is updated.

        Returns:
            ``learners``, the means of the loss statistics by module as in the result of ``train()``, and the numbers
            of held-out episodes (or chunks), env steps and agent steps.

        Raises:
            ConfigError: If no recorded episodes are held out.
        """
        data, config = self.offline_data, self.config
        data.open(self.seed)
        if data.held_out is None:
            raise ConfigError(
                f"{type(self).__name__}.evaluate_offline: no recorded episodes are held out. Set "
                f".offline_data(held_out_fraction=0.1) or .offline_data(held_out_input_=FOLDER)."
            )
        by_agents = config.count_steps_by == "agent_steps"
        batches = data.held_out_batches(config.train_batch_size_per_learner, by_agent_steps=by_agents)
        with self._doing(lambda: "computing the losses of held-out episodes"):
            learned = self.learner.evaluate(batches)
        return {
            "learners": learned,
            "num_episodes": data.held_out.num_episodes,
            "num_env_steps": data.held_out.num_env_steps,
            "num_agent_steps": data.held_out.num_agent_steps,
        }

    def random_play(
        self,
        *,
        num_episodes: int = 100,
        seed: int | None = None,
        max_seconds: float | None = None,
        on_progress: Callable[[int], Any] | None = None,
        is_enough: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Plays episodes with random actions, as a baseline. The result has the same form as that of ``evaluate``.

        Args:
            num_episodes: The number of episodes.
            seed: The seed of these episodes. If None, the seed is always the same one, derived from the run's.
            max_seconds: As for ``evaluate``.
            on_progress: As for ``evaluate``.
            is_enough: As for ``evaluate``.
        """
        seed = derived_seed(self.seed, "random play") if seed is None else seed
        config = self.config.get_evaluation_config()
        config.explore = True
        watch = _Watch(max_seconds, on_progress, is_enough)
        return self._begin_play(config, num_episodes, seed, watch, at_random=True)()

    def record(
        self,
        folder: str | Path,
        *,
        num_episodes: int = 100,
        explore: bool | None = None,
        at_random: bool = False,
        seed: int | None = None,
        unstorable_infos: str = "error",
        on_progress: Callable[[int], Any] | None = None,
        is_enough: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Plays whole episodes as ``evaluate`` does, and records them. Training is not affected.

        If this fails or is interrupted, the episodes that are recorded by then are complete.

        Args:
            folder: The folder for the episodes, which must not hold others.
            num_episodes: The number of episodes.
            explore: As for ``evaluate``.
            at_random: Whether actions are drawn from the action spaces, without the modules.
            seed: The seed of these episodes. If None, the seed is always the same one, derived from the run's.
            unstorable_infos: As for ``EpisodeWriter``.
            on_progress: As for ``evaluate``.
            is_enough: As for ``evaluate``. If it ends the playing, fewer episodes are recorded, possibly none.

        Returns:
            The same as ``evaluate``.

        Raises:
            OfflineDataError: If the folder holds recorded episodes, or cannot be written to.
            EpisodeError: If something in the episodes cannot be written.
        """
        num_episodes = integer(min=1).check(num_episodes, "record", "num_episodes")
        config = self.config.get_evaluation_config()
        config.explore = config.explore if explore is None else explore
        if seed is None:
            seed = derived_seed(self.seed, "record")
        integer(min=0).check(seed, "record", "seed")
        num_envs = min(num_episodes, config.num_envs)
        pieces, watch = self.offline_data.pieces, _Watch(None, on_progress, is_enough)
        with EpisodeWriter(folder, unstorable_infos=unstorable_infos, pieces=pieces) as writer:
            writer.begin()
            runner = self._runner(config, seed, num_envs)
            runner.in_evaluation = True

            def ends(num_done: int) -> bool:
                return watch.ends(writer.num_episodes + num_done)

            with self._borrowed(runner):
                expected = 0
                while expected == writer.num_episodes < num_episodes:
                    some = min(num_episodes - writer.num_episodes, max(num_envs, _EPISODES_AT_A_TIME))
                    expected += some
                    writer.write(runner.sample(num_episodes=some, random_actions=at_random, is_enough=ends))
                watch.ends(writer.num_episodes)
                return {"env_runners": runner.get_metrics()}

    def _begin_play(
        self,
        config: AlgorithmConfig,
        num_episodes: int,
        seed: int,
        watch: _Watch,
        *,
        at_random: bool = False,
    ) -> Callable[[], dict[str, Any]]:
        num_episodes = integer(min=1).check(num_episodes, type(self).__name__, "num_episodes")
        seed = integer(min=0).check(seed, type(self).__name__, "seed")
        own = (self.config.evaluation_config or {}).get("num_envs_per_env_runner")
        num_envs = min(num_episodes, config.num_envs if own is None else own)
        group = self.eval_env_runner_group
        if group is None:
            return lambda: self._play(config, num_episodes, num_envs, seed, at_random, watch)
        begun = group.begin_playing(
            num_episodes,
            num_envs,
            settings=evaluation_settings(config),
            seed=seed,
            at_random=at_random,
            max_seconds=watch.max_seconds,
        )

        def play() -> dict[str, Any]:
            with self._watched(watch, num_episodes, at_random) as ends:
                results = {"env_runners": begun(ends)}
            self._report_recreated(group)
            return results

        return play

    def _play(
        self,
        config: AlgorithmConfig,
        num_episodes: int,
        num_envs: int,
        seed: int,
        at_random: bool,
        watch: _Watch,
    ) -> dict[str, Any]:
        """Plays episodes in this process."""
        is_long = are_worth_workers(self._setup, num_episodes, self._recent)
        runner = self._runner(config, seed, num_envs, for_training=False, is_long=is_long)
        runner.in_evaluation = True
        with self._borrowed(runner), self._watched(watch, num_episodes, at_random) as ends:
            end = math.inf if watch.max_seconds is None else time.monotonic() + watch.max_seconds

            def is_enough(num_done: int) -> bool:
                return ends(num_done) or time.monotonic() >= end

            runner.sample(num_episodes=num_episodes, random_actions=at_random, is_enough=is_enough)
            return {"env_runners": runner.get_metrics()}

    @contextmanager
    def _watched(self, watch: _Watch, num_episodes: int, at_random: bool) -> Iterator[Callable[[int], bool]]:
        """Sets ``activity`` while episodes are played. Yields ``watch.ends``, whose argument ``activity`` shows."""
        what, so_far = "playing at random" if at_random else "evaluating", 0

        def ends(num_done: int) -> bool:
            nonlocal so_far
            so_far = num_done
            return watch.ends(num_done)

        with self._doing(lambda: f"{what}, {so_far} of {num_episodes} episodes"):
            yield ends

    @contextmanager
    def _borrowed(self, runner: EnvRunner, *, filters_count: bool = False) -> Iterator[None]:
        """Lets a second runner use the states of the pipelines; closes it afterwards, and restores the states.

        An environment may draw from the global random generators. Their states are restored too, because the second
        runner may play another number of steps in another run.
        """
        learned = self._env_to_module.get_state()
        counting = [] if filters_count else build.stop_counting(self._env_to_module)
        runner.module_to_env.set_state(self.env_runner_group.module_to_env.get_state())
        try:
            with global_generators_kept():
                yield
        finally:
            self._env_to_module.set_state(learned)
            for piece in counting:
                piece.update_stats = True
            runner.close()

    def explain(self, num_steps: int = 4) -> Explanations:
        """Shows what each piece of the three pipelines does to the batch.

        Plays in sub-environments that are made for this, and makes train batches from their episodes. The algorithm is
        unchanged afterwards; the states of pieces are restored with their ``set_state``.

        Args:
            num_steps: The env steps of each sub-environment before the explained steps, and the number of these.

        Returns:
            ``env_to_module`` and ``module_to_env``, of the step with the most rows, and ``learner``. Print it or one of
            them, for tables.
        """
        config = self.config
        seed = derived_seed(self.seed, "explain")
        runner = self._runner(config, seed, config.num_envs_per_env_runner, is_long=False)
        with self._borrowed(runner, filters_count=True), torch_stream(seed, "explain"):
            return explain_pipelines(runner, self.learner.by_name, num_steps * config.num_envs_per_env_runner)

    def render_episode(self, *, max_frames: int = 200, seed: int = 0, explore: bool | None = None) -> list[Any]:
        """Renders episodes one after another, until there are ``max_frames`` frames.

        Args:
            max_frames: The number of frames.
            seed: The seed of the environment and the actions.
            explore: Whether actions are sampled; None as in ``evaluate``.

        Returns:
            Frames, ``[height, width, 3]`` uint8 each; ``[]`` if the environment cannot render them.

        Raises:
            EnvError: If ``render()`` raises, or returns a frame of another shape or type.
        """
        if not self._renders_frames():
            return []
        config = self.config.get_evaluation_config()
        config.explore = config.explore if explore is None else explore
        runner = self._runner(config, seed, 1, render_mode="rgb_array", for_training=False)
        env, frames = runner.vector_env.sub_envs[0].env, []
        with self._borrowed(runner):
            while len(frames) < max_frames:
                runner.sample(num_timesteps=1)
                frame = rendered(env, self._setup.name)
                if frame is None:
                    return []
                frames.append(frame)
        return frames

    def render_episodes(
        self,
        num_episodes: int = 1,
        *,
        max_frames: int = 50,
        max_steps: int = 1000,
        max_seconds: float | None = None,
        seed: int = 0,
        explore: bool | None = None,
    ) -> list[RenderedEpisode]:
        """Plays episodes and renders each from its reset to its end. The same seed gives the same episodes.

        Args:
            num_episodes: The number of episodes.
            max_frames: The number of frames of an episode, at least 2. Of a longer episode, frames that are the same
                number of steps apart are kept, and the last one.
            max_steps: The env steps after which an episode is stopped.
            max_seconds: The seconds after which an episode is stopped; None for no limit.
            seed: The seed of the environment and the actions.
            explore: Whether actions are sampled; None as in ``evaluate``.

        Returns:
            One RenderedEpisode each; ``[]`` if the environment cannot render frames.

        Raises:
            EnvError: If ``render()`` raises, or returns a frame of another shape or type.
        """
        num_episodes = integer(min=1).check(num_episodes, type(self).__name__, "num_episodes")
        max_frames = integer(min=2).check(max_frames, type(self).__name__, "max_frames")
        if not self._renders_frames():
            return []
        config = self.config.get_evaluation_config()
        config.explore = config.explore if explore is None else explore
        end = math.inf

        def render() -> Any:
            return rendered(runner.vector_env.sub_envs[0].env, self._setup.name)

        def is_enough(num_done: int) -> bool:
            return recorder.is_blank or recorder.num_steps >= max_steps or time.monotonic() >= end

        recorder = FrameRecorder(render, max_frames)
        runner = self._runner(with_recorder(config, recorder), seed, 1, render_mode="rgb_array", for_training=False)
        episodes = []
        with self._borrowed(runner):
            for _ in range(num_episodes):
                end = math.inf if max_seconds is None else time.monotonic() + max_seconds
                runner.sample(num_episodes=1, is_enough=is_enough)
                if recorder.is_blank:
                    return []
                returns = runner.get_metrics().get("module_episode_returns", {})
                means = {module_id: float(stats["mean"]) for module_id, stats in returns.items()}
                episodes.append(RenderedEpisode(recorder.frames, recorder.num_steps, means))
        return episodes

    def _renders_frames(self) -> bool:
        metadata = getattr(self._setup.sample_env, "metadata", None) or {}  # natively batched ones may have none
        return "rgb_array" in metadata.get("render_modes", ())

    # Modules.

    def get_module(self, module_id: ModuleID = DEFAULT_MODULE_ID) -> RLModule:
        """Returns the module with this id."""
        return self.rl_module[module_id]

    @torch.inference_mode(False)
    def add_module(
        self,
        module_id: ModuleID,
        module_spec: RLModuleSpec | None = None,
        *,
        module_state: Mapping[str, Any] | None = None,
        config_overrides: Mapping[str, Any] | None = None,
        new_agent_to_module_mapping_fn: str | PolicyMappingFn | None = None,
        new_should_module_be_updated: ModulesToUpdate | None = None,
        add_to_learners: bool = True,
        add_to_env_runners: bool = True,
        add_to_eval_env_runners: bool = True,
    ) -> RLModule:
        """Adds a module during training. Checkpoints include it. If adding it fails, the algorithm is unchanged.

        For example, a frozen copy of a module as its opponent::

            main = algo.get_module("main")
            algo.add_module(
                "main_v1",
                RLModuleSpec.from_module(main),
                module_state=main.get_state(),
                new_agent_to_module_mapping_fn=against_main_v1,
                new_should_module_be_updated=["main"],
            )

        Args:
            module_id: A new id.
            module_spec: How to build the module. Fields that are None are those of the first existing module; in a run
                with several algorithms, class and ``model_config`` are those of the first module of the same algorithm.
            module_state: The initial parameters, as ``RLModule.get_state`` returns them.
            config_overrides: Settings of this module alone, such as ``{"lr": 1e-4}``.
            new_agent_to_module_mapping_fn: The mapping of all episodes that begin from now on, also in evaluations.
            new_should_module_be_updated: ``policies_to_train`` from now on.
            add_to_learners: False for a module that is never updated, whatever ``policies_to_train`` says.
            add_to_env_runners: Must be True, because env runners act with the learner's modules.
            add_to_eval_env_runners: Must be True, for the same reason.

        Returns:
            The module.

        Raises:
            ModuleError: If a module with that id exists, or the id is reserved.
            MappingError: If patterns do not fit the agents, or name other modules.
            ConfigError: If an override is not a setting of modules or has the wrong type, if a module to be updated
                does not exist, if the environment has a single agent, or if the algorithm learns a team (VDN, QMIX,
                MADDPG, MATD3).
        """
        who = "add_module"
        _check_runners(who, add_to_env_runners, add_to_eval_env_runners)
        self._check_new_id(module_id)
        self._check_can_change_modules(who)
        optional(instance_of(RLModuleSpec, expected="an RLModuleSpec")).check(module_spec, who, "module_spec")
        mapping = self._checked_mapping(who, new_agent_to_module_mapping_fn, [*self.rl_module, module_id])
        self._check_updated(who, new_should_module_be_updated, [*self.rl_module, module_id])
        with self._transaction():
            if config_overrides is not None:
                self._override(module_id, config_overrides)
            module = self._build_added(module_id, module_spec or RLModuleSpec())
            if module_state is not None:
                module.set_state(module_state)
            self.learner.add_module(module_id, module.to(self.config.device), is_updated=add_to_learners)
            if module.is_stateful():
                build.add_state_pieces_to(self.config, self._env_to_module, self.env_runner_group, self._learners)
            policies = self.config.policies
            if policies is not None:
                added = {**policies, module_id: None} if isinstance(policies, dict) else [*policies, module_id]
                self._set(policies=added)
            self._modules_changed()
            self._remap(mapping, new_should_module_be_updated)
        return module

    def _check_can_change_modules(self, who: str) -> None:
        """Checks that the modules, or those of agents, may change during a run; they may unless overridden.

        Raises:
            ConfigError: If they may not.
        """

    def _check_new_id(self, module_id: ModuleID) -> None:
        if self._setup.single_agent:
            raise ConfigError(
                f"add_module: {self._setup.name} has a single agent, whose module is {DEFAULT_MODULE_ID!r}, so no "
                f"agent would act with {module_id!r}. Change that module's parameters with its set_state instead."
            )
        if module_id in self.rl_module:
            raise ModuleError(
                f"add_module: there is a module {module_id!r} already. Choose another id, or call remove_module first."
            )
        MODULE_ID.check(module_id, "add_module", "module_id")

    def _build_added(self, module_id: ModuleID, spec: RLModuleSpec) -> RLModule:
        own, first = self.config.get_config_for_module(module_id), next(iter(self.rl_module.values()))
        alike = (m for m in self.rl_module if type(self.config.get_config_for_module(m)) is type(own))
        like = next((self.rl_module[m] for m in alike), None)  # a module of the same algorithm
        model_config = own.model_config if like is None else like.model_config
        overrides = self.config.algorithm_config_overrides_per_module.get(module_id, {})
        model_config = overrides.get("model_config", model_config)
        spec = dataclasses.replace(
            spec,
            module_class=spec.module_class or (own.get_default_rl_module_class() if like is None else type(like)),
            observation_space=first.observation_space if spec.observation_space is None else spec.observation_space,
            action_space=first.action_space if spec.action_space is None else spec.action_space,
            model_config=model_config if spec.model_config is None else spec.model_config,
        )
        spec = own.complete_rl_module_spec(spec, self._setup, self._env_to_module)
        with torch_stream(self.seed, "module", module_id):
            return spec.build()

    def remove_module(
        self,
        module_id: ModuleID,
        *,
        new_agent_to_module_mapping_fn: str | PolicyMappingFn | None = None,
        new_should_module_be_updated: ModulesToUpdate | None = None,
        remove_from_learners: bool = True,
        remove_from_env_runners: bool = True,
        remove_from_eval_env_runners: bool = True,
    ) -> None:
        """Removes a module. Ongoing episodes are dropped, because agents may be mapped to it.

        Args:
            module_id: The module.
            new_agent_to_module_mapping_fn: A new mapping; needed if the current one maps agents to the module.
            new_should_module_be_updated: ``policies_to_train`` from now on.
            remove_from_learners: Must be True, because env runners act with the learner's modules.
            remove_from_env_runners: Must be True, for the same reason.
            remove_from_eval_env_runners: Must be True, for the same reason.

        Raises:
            ModuleError: If the module does not exist, or is the only one.
            MappingError: If agents are still mapped to it, as far as the mapping goes by the agents' ids alone.
            ConfigError: If the algorithm learns a team (VDN, QMIX, MADDPG, MATD3).
        """
        who = "remove_module"
        _check_runners(who, remove_from_learners, remove_from_env_runners and remove_from_eval_env_runners)
        if module_id not in self.rl_module:
            raise ModuleError(f"{who}: there is no module {module_id!r}. {did_you_mean(module_id, self.rl_module)}")
        if len(self.rl_module) == 1:
            raise ModuleError(f"{who}: {module_id!r} is the only module. Add another one first.")
        self._check_can_change_modules(who)
        others = [m for m in self.rl_module if m != module_id]
        mapping = self._checked_mapping(who, new_agent_to_module_mapping_fn, others)
        self._check_updated(who, new_should_module_be_updated, others)
        with self._transaction():
            self.learner.remove_module(module_id)
            policies, overrides = self.config.policies, self.config.algorithm_config_overrides_per_module
            if isinstance(policies, dict):
                self._set(policies={m: spec for m, spec in policies.items() if m != module_id})
            elif policies is not None:
                self._set(policies=[m for m in policies if m != module_id])
            if module_id in overrides:
                self._set(algorithm_config_overrides_per_module={m: o for m, o in overrides.items() if m != module_id})
            self._remap(mapping, new_should_module_be_updated)
            self._modules_changed()
            self.env_runner_group.restart_episodes()

    def set_policy_mapping_fn(self, policy_mapping_fn: str | PolicyMappingFn) -> None:
        """Sets the mapping of all episodes that begin from now on, also in evaluations. Checkpoints include it.

        Args:
            policy_mapping_fn: As in ``.multi_agent(...)``. A checkpoint can store functions that can be imported by
                name, and instances of dataclasses that can be imported by name.

        Raises:
            MappingError: If patterns do not fit the agents, or name other modules.
            ConfigError: If the algorithm learns a team (VDN, QMIX, MADDPG, MATD3).
        """
        who = "set_policy_mapping_fn"
        self._check_can_change_modules(who)
        self._remap(self._checked_mapping(who, policy_mapping_fn, self.rl_module), None)

    def _modules_changed(self) -> None:
        for group in (self.env_runner_group, self.eval_env_runner_group):
            if group is not None:
                group.modules_changed()

    def _override(self, module_id: ModuleID, overrides: Mapping[str, Any]) -> None:
        known = {**self.config.algorithm_config_overrides_per_module, module_id: overrides}
        tried = self.config.copy()
        tried.change(algorithm_config_overrides_per_module=known)
        tried.validate()
        self._set(algorithm_config_overrides_per_module=known)

    def _checked_mapping(
        self, who: str, mapping: str | PolicyMappingFn | None, module_ids: Collection[ModuleID]
    ) -> PolicyMappingFn | None:
        """Returns a new mapping, or None for the present one, which may only name these modules."""
        kept = None if mapping is None else POLICY_MAPPING.check(mapping, who, "policy_mapping_fn")
        if kept is not None:
            check_mapping(kept, self._setup.agent_ids)
            if self._remote.cluster is not None:
                check_can_be_sent({"policy_mapping_fn": kept})
        present: Any = self.config.policy_mapping_fn if kept is None else kept
        for agent_id in self._setup.agent_ids if goes_by_agent_alone(present) else ():
            if present(agent_id, None) not in module_ids:
                raise MappingError(
                    f"{who}: agent {agent_id!r} maps to module {present(agent_id, None)!r}, but the modules would be "
                    f"{', '.join(map(repr, module_ids))}. Map all agents to these, for example by "
                    f"{'*=' + next(iter(module_ids))!r}."
                )
        return kept

    def _check_updated(self, who: str, wanted: ModulesToUpdate | None, module_ids: Collection[ModuleID]) -> None:
        kept = POLICIES_TO_TRAIN.check(wanted, who, "new_should_module_be_updated")
        build.check_policies_to_train(kept, module_ids)

    def _remap(self, mapping: PolicyMappingFn | None, to_update: ModulesToUpdate | None) -> None:
        if mapping is not None:
            self._set(policy_mapping_fn=mapping)
            self.env_runner_group.set_policy_mapping_fn(mapping)
        if to_update is not None:
            self._set(policies_to_train=to_update)

    def _set(self, **settings: Any) -> None:
        """Changes settings of the ongoing run."""
        self.config.change(**settings)
        self._changed_settings.update(settings)

    # Checkpoints.

    def get_state(self) -> AlgorithmState:
        """Returns everything that the next iteration depends on."""
        return AlgorithmState(
            config=config_to_state(self.config),
            changed_settings=sorted(self._changed_settings),
            seed=self.seed,
            iteration=self.iteration,
            time_total_s=self.time_total_s,
            num_evaluations=self._num_evaluations,
            num_episodes=self._num_episodes,
            recent_episodes=list(self._recent),
            spaces=checkpoint_restore.described_spaces(self._setup),
            agents=checkpoint_restore.agents_to_state(self._setup),
            masking=self.masking,
            modules=ModulesMade.of(self.rl_module),
            learner=self.learner.get_state(),
            env_runner=self.env_runner_group.get_state(),
            metrics=self.metrics.get_state(),
            offline_data=self.offline_data.get_state(),
        )

    def set_state(self, state: AlgorithmState | Mapping[str, Any]) -> None:
        """Sets the state that ``get_state`` returned. If that fails, the algorithm is unchanged.

        Names of functions and classes in the state are imported, as by ``from_checkpoint(..., trusted=True)``.

        Raises:
            CheckpointError: If it is not such a state, or belongs to another environment or other modules; or if an
                ongoing episode cannot be replayed. If the change cannot be undone, the message says that the algorithm
                must not be used any more.
        """
        self._set_state(read_state(AlgorithmState, state), Names())

    def _set_state(self, state: AlgorithmState, names: Names, new_episodes: bool = False) -> None:
        """Sets a whole state, or leaves everything unchanged."""
        with taking_over("config"):
            check_seed(state, self.config)
            changed = {*state.changed_settings, *self._changed_settings, "policies"}  # modules are compared below
            check_settings(state, self.config, names, restored_later=changed)
        with self._transaction():
            self._take_over(state, names, (), new_episodes)

    def _take_over(
        self,
        state: AlgorithmState,
        names: Names,
        given: Collection[str],
        new_episodes: bool,
        with_replay_buffers: bool = True,
    ) -> None:
        """Sets a whole state, after its settings were compared. Settings in ``given`` stay as they are."""
        with taking_over("setup"):
            checkpoint_restore.check_fits(state, self._setup, self.rl_module, self.config.num_envs)
        self._restore_changed_settings(state, given, names)
        with naming_changes(state, self.config):
            self._apply(state, new_episodes, with_replay_buffers)

    def _apply(self, state: AlgorithmState, new_episodes: bool, with_replay_buffers: bool) -> None:
        """Sets everything but the settings."""
        with taking_over("counts"):
            self.seed = state.seed
            self.iteration = state.iteration
            self.time_total_s = state.time_total_s
            self._num_evaluations = state.num_evaluations
            self._num_episodes = state.num_episodes
            self._recent.clear()
            self._recent.extend(state.recent_episodes)
            self.metrics.set_state(state.metrics)
        with taking_over("learner"):
            if AddStatesFromEpisodesToBatch.__name__ in state.env_runner.env_to_module:
                build.add_state_pieces_to(self.config, self._env_to_module, self.env_runner_group, self._learners)
            self.learner.set_state(state.learner)
        with taking_over("env_runner"):
            self.env_runner_group.set_state(state.env_runner, new_episodes)
        self.offline_data.set_state(state.offline_data, self.seed)

    def _restore_changed_settings(self, state: AlgorithmState, given: Collection[str], names: Names) -> None:
        """Restores the settings that changed during the run of the state or during this run."""
        with taking_over("config"):
            for name in sorted({*state.changed_settings, *self._changed_settings}.difference(given)):
                if to_state(getattr(self.config, name), name) != state.config.settings[name]:
                    self._set(**{name: checkpoint_restore.changed_setting(state, name, names, self.config)})
            self.env_runner_group.set_policy_mapping_fn(self.config.policy_mapping_fn)
            self._changed_settings = {*state.changed_settings, *given}

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Writes a checkpoint folder: tensors as safetensors, the rest as JSON. Returns its path.

        Warns once if the ongoing episodes cannot be saved, so that a resumed run will begin new ones.

        Args:
            path: The folder to write; None for a new one among the temporary files.
        """
        path = new_folder() if path is None else path
        why = self.env_runner_group.why_episodes_are_not_kept()
        if why and not self._has_warned_of_episodes:
            self._has_warned_of_episodes = True
            warnings.warn(
                f"checkpoint: {why}, so a run that is resumed from {path} begins new episodes instead of continuing "
                f"the ongoing ones. Everything else is in the checkpoint.",
                MarlConnectorsWarning,
                stacklevel=2,
            )
        save_state(path, self.get_state())
        return str(path)

    def restore_from_path(
        self, path: str | Path, *, component: str | None = None, new_episodes: bool = False, trusted: bool = True
    ) -> None:
        """Sets the state of a checkpoint, so that training continues as if it had never stopped.

        Args:
            path: The checkpoint folder, or the folder of a run for its latest checkpoint.
            component: The part to restore, as RLlib names it: ``"learner_group/learner"`` with the optimizers,
                ``"learner_group/learner/rl_module"`` for all modules, or
                ``"learner_group/learner/rl_module/MODULE_ID"``. The rest of the run stays as it is. None for all.
            new_episodes: As in ``from_checkpoint``.
            trusted: As in ``from_checkpoint``, for settings that changed during that run.

        Raises:
            CheckpointError: As for ``set_state``; or if the checkpoint is missing or damaged, or has no such part.
        """
        if component is not None:
            part = self._component(component)
            with self._transaction(), taking_over(component):
                part.set_state(component_state(Path(path) / component))
            return
        self._set_state(algorithm_state(path), Names(trusted), new_episodes)
        self.run_folders = run_folders_of(path)
        self.callbacks.call("on_checkpoint_loaded", algorithm=self)

    def _component(self, place: str) -> Any:
        """Returns the part at a place that ``restore_from_path`` documents."""
        modules = "/".join(PLACE_OF_MODULES)
        known = {"learner_group/learner": self.learner, modules: self.rl_module}
        known |= {f"{modules}/{module_id}": module for module_id, module in self.rl_module.items()}
        if place not in known:
            raise CheckpointError(
                f"{type(self).__name__}.restore_from_path: there is no component {place!r}. "
                f"{did_you_mean(place, list(known))}"
            )
        return known[place]

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
        with_replay_buffers: bool = True,
    ) -> Self:
        """Builds the algorithm of a checkpoint, with its modules and state.

        Args:
            path: The checkpoint folder, or the folder of a run for its latest checkpoint.
            config: The settings to go on with; None for those of the checkpoint. Needed if these hold functions or
                classes that cannot be imported by name. Changes of what modules and learners consist of are errors. The
                changes that ``add_module`` and ``remove_module`` made to the config are applied to it again.
            policy_mapping_fn: Needed only if training set a function that cannot be imported by name.
            policies_to_train: Needed only if training set a function that cannot be imported by name.
            new_episodes: Whether to begin new episodes instead of continuing those of the checkpoint. Use it for an
                environment that does not follow from ``reset(seed=...)``, so that its episodes cannot be replayed.
            trusted: Whether your own functions and classes are imported by their names in the checkpoint, which runs
                the code in their modules. With False, a checkpoint is refused if it names anything but this library's
                own objects and known environments, or asks for remote env runners or learners that ``config`` does not
                ask for; see docs/inference.md.
            with_replay_buffers: Whether replay buffers are read, which may be large. If not, they are empty, which is
                enough for an algorithm that only plays.

        Raises:
            CheckpointError: If it is missing, damaged, refused, or needs one of these arguments; or if ``config`` is of
                another algorithm, or changes a setting that cannot change (docs/checkpoints.md).
        """
        state = algorithm_state(path, with_replay_buffers=with_replay_buffers)
        names = Names(trusted)
        given = checkpoint_restore.given_settings(
            policy_mapping_fn=policy_mapping_fn, policies_to_train=policies_to_train
        )
        with taking_over("config"):
            if config is not None:
                check_seed(state, config)
            restored = checkpoint_restore.restored_config(state, config, given, names)
            if config is None:
                checkpoint_restore.check_num_envs(state, restored)
            if not trusted:
                checkpoint_restore.check_stays_here(restored, {} if config is None else config.to_dict())
            specs = checkpoint_restore.restored_specs(state, restored, names)
            masking = checkpoint_restore.restored_masking(state, restored)
        # Errors in a config that the user has passed are not the checkpoint's.
        with taking_over("config") if config is None else nullcontext():
            made = restored.algo_class if issubclass(restored.algo_class, cls) else cls
            algorithm = made(restored, rl_module_specs=specs, masking=masking)
        try:
            algorithm._take_over(state, names, tuple(given), new_episodes, with_replay_buffers)
            algorithm.run_folders = run_folders_of(path)
        except BaseException:
            algorithm.stop()
            raise
        algorithm.callbacks.call("on_checkpoint_loaded", algorithm=algorithm)
        return algorithm


def explain_algorithm(algorithm: Algorithm, *, num_steps: int = 4) -> Explanations:
    """Shows what each piece of an algorithm's pipelines does, as ``Algorithm.explain`` does."""
    return algorithm.explain(num_steps)


def _check_runners(method: str, *on: bool) -> None:
    if not all(on):
        raise ConfigError(
            f"{method}: env runners and learner have the same modules in this version, so a module cannot belong to "
            f"only some of them. Leave the argument out."
        )
