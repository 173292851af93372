"""Trackers: callbacks that write the results of a run to TensorBoard, Weights & Biases, MLflow or Trackio."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from marl_connectors.callbacks.callbacks import Callbacks
from marl_connectors.json_data import jsonable
from marl_connectors.packages import distribution_of, how_to_install, import_package
from marl_connectors.seeding import global_generators_kept

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
    from marl_connectors.metrics import MetricsLogger

_LOG = logging.getLogger(__name__)
MAX_AGENT_SERIES = 100
"""The largest number of agents with series of their own. An environment may invent new agent ids for ever."""
BY_AGENT = ("agent_episode_returns_mean", "agent_steps", "num_agent_steps_sampled")
"""The results of env runners that have a value for each agent."""
RUN_ID: Final = "tracked_run"
"""The key of a tracked run's id in the results of ``Algorithm.train``."""
PROJECT: Final = "marl-connectors"
_STEPS = "num_agent_steps_sampled_lifetime"


class Tracker(Callbacks):
    """Base class of trackers. Each writes all numbers of a run's results, and its config as parameters, to one service.

    ``config.callbacks(WandbTracker)`` tracks a run; ``functools.partial(WandbTracker, project="tag")`` sets arguments.
    Put trackers behind other classes, whose changes of the results they then write, too.

    Names are paths, such as ``env_runners/episode_return_mean``, and the step is the number of agent steps
    (``num_agent_steps_sampled_lifetime``). Numbers that are not finite are left out. At most ``MAX_AGENT_SERIES``
    agents have series of their own.

    The tracked run begins with the first result. A tracker that fails, because a package, a login, the network or room
    on the disk is missing, logs one warning, and training continues without it. An algorithm that is restored from a
    checkpoint continues the tracked run: its id is in the results as ``tracked_run``, and in checkpoints.

    Attributes:
        run_id: The id of the tracked run; None before the first result, unless it was given.
    """

    package: ClassVar[str] = ""
    """The package that the tracker needs, by the name under which it is imported."""

    def __init__(
        self,
        *,
        run_id: str | None = None,
        name: str | None = None,
        project: str = PROJECT,
        folder: str | Path | None = None,
        agents: Collection[str] | None = None,
    ):
        """Sets where results are written. Nothing is imported, opened or written yet.

        Args:
            run_id: The id of the tracked run, of letters, digits, ``-`` and ``_``. A run with this id is continued. If
                None, the first result gets a new one.
            name: The name of the run for people; None for the environment and the id.
            project: The project (in MLflow, the experiment) to which the run belongs.
            folder: The folder for local files, as each tracker describes it; None for its default.
            agents: The agents with series of their own; None for the first ``MAX_AGENT_SERIES`` ones.
        """
        self.run_id = run_id
        self._name = name
        self._project = project
        self._folder = folder
        self._agents = None if agents is None else frozenset(agents)
        self._seen: set[str] = set()
        self._is_open = self._has_failed = False
        self._first_step = 0

    # As callbacks.

    def on_checkpoint_loaded(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
        """Continues the tracked run after the steps of the checkpoint."""
        self.close()
        self.continue_after(algorithm.num_agent_steps)

    def on_train_result(
        self, *, algorithm: Algorithm, metrics_logger: MetricsLogger, result: dict[str, Any], **kwargs: Any
    ) -> None:
        """Writes the results of an iteration, and adds the id of the tracked run to them."""
        self.run_id = self.run_id or metrics_logger.peek(RUN_ID, default="") or new_run_id()
        metrics_logger.log_value(RUN_ID, self.run_id, reduce="item", clear_on_reduce=False)
        self.log(algorithm, {**metrics_logger.peek(), **result})

    def continue_after(self, steps: int) -> None:
        """Sets the number of agent steps after which the next results come. Later ones of an earlier process are void.

        Only TensorBoard can leave them out. Elsewhere, the run has both.
        """
        self._first_step = steps + 1

    def close(self) -> None:
        """Ends the tracked run. A later result continues it."""
        if self._is_open:
            self._is_open = False
            with self._failing("end the run"):
                self._close()

    # Writing.

    def log(self, algorithm: Algorithm, result: Mapping[str, Any]) -> None:
        """Writes the results of an iteration.

        Args:
            algorithm: The Algorithm, whose config becomes the parameters of the tracked run.
            result: What ``Algorithm.train`` has returned.
        """
        if self._has_failed:
            return
        values = dict(scalars(self._of_known_agents(jsonable(result))))
        if not self._is_open:
            self.run_id = self.run_id or new_run_id()
            with self._failing("start"):
                self._open(jsonable(algorithm.config.to_dict()), self._name or self._default_name(algorithm.config))
                self._is_open = True
        if self._is_open:
            with self._failing("write results"):
                self._write(values, int(values[_STEPS]))

    def _open(self, config: dict[str, Any], name: str) -> None:
        """Begins the tracked run, or continues it if it exists.

        Args:
            config: The settings of the algorithm, as JSON data.
            name: The name of the run.
        """
        raise NotImplementedError

    def _write(self, values: Mapping[str, float], step: int) -> None:
        """Writes numbers.

        Args:
            values: The numbers by name.
            step: The agent steps so far.
        """
        raise NotImplementedError

    def _close(self) -> None:
        """Ends the run."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Turns an error into a warning, after which nothing more is tracked.

        Global generators, from which some packages draw, are left alone, so that tracking does not change the run.
        """
        try:
            with global_generators_kept():
                yield
        except Exception as error:
            self._has_failed = True
            if self._is_open:
                self._is_open = False
                with contextlib.suppress(Exception):
                    self._close()
            hint = ""
            if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == self.package:
                hint = f" {how_to_install(distribution_of(self.package))}"
            text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
            _LOG.warning(
                "%s could not %s (%s). Training continues, and this run is not tracked there any further.%s",
                *(type(self).__name__, what, text if len(text) < 400 else f"{text[:397]}...", hint),
            )

    def _default_name(self, config: AlgorithmConfig) -> str:
        env = config.env if isinstance(config.env, str) else getattr(config.env, "__name__", type(config.env).__name__)
        return f"{env}-{self.run_id}"

    def _of_known_agents(self, results: Any, name: str = "") -> Any:
        """Returns results without those of single agents that have no series."""
        if not isinstance(results, dict):
            return results
        keys = [key for key in results if name not in BY_AGENT or self._has_series(key)]
        return {key: self._of_known_agents(results[key], key) for key in keys}

    def _has_series(self, agent_id: str) -> bool:
        if self._agents is not None:
            return agent_id in self._agents
        if len(self._seen) < MAX_AGENT_SERIES:
            self._seen.add(agent_id)
        return agent_id in self._seen


class TensorBoardTracker(Tracker):
    """Writes TensorBoard events to ``folder``, by default ``tensorboard/<name>``. The config is under *Text*."""

    package = "tensorboard"

    def _open(self, config: dict[str, Any], name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(_quiet_event_writers())
        folder = Path("tensorboard") / name if self._folder is None else Path(self._folder)
        is_new = not self._first_step or not any(folder.glob("events.out.tfevents.*"))
        self._events = SummaryWriter(str(folder), purge_step=self._first_step or None)
        if is_new:
            lines = json.dumps(config, indent=2).splitlines()
            self._events.add_text("config", "\n".join(f"    {line}" for line in lines))  # a block of code

    def _write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()  # an error in the thread that writes is raised here

    def _close(self) -> None:
        with self._quiet:
            self._events.close()


class WandbTracker(Tracker):
    """Writes to Weights & Biases; with ``WANDB_MODE=offline``, to local files that ``wandb sync`` uploads later.

    Local files are in ``<folder>/wandb``, by default in the current folder. Other variables of wandb, such as
    ``WANDB_ENTITY``, have their usual effect.
    """

    package = "wandb"

    def _open(self, config: dict[str, Any], name: str) -> None:
        wandb: Any = import_package("wandb")
        self._run = wandb.init(
            project=self._project,
            name=name,
            id=self.run_id,
            resume="allow",
            config=config,
            dir=None if self._folder is None else str(self._folder),
            # Its console would replace the streams of the progress display.
            settings=wandb.Settings(console="off", reinit="create_new"),
        )
        self._run.define_metric(_STEPS)
        # wandb drops what is logged for an earlier step, such as iterations that a resumed run repeats.
        self._run.define_metric("*", step_metric=_STEPS)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values))

    def _close(self) -> None:
        self._run.finish()


class MLflowTracker(Tracker):
    """Writes to MLflow: to the server, folder or database of ``MLFLOW_TRACKING_URI``, or else to MLflow's default.

    ``folder`` has no effect. The run has the tag ``marl_connectors_run_id``, by which it is found when it continues.
    """

    package = "mlflow"
    _TAG: Final = "marl_connectors_run_id"
    _PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    """Variables that are set unless they are. MLflow would wait for a server for minutes, and training with it."""
    _MOST_PARAMS: Final = 100
    _MOST_METRICS: Final = 1000

    def _open(self, config: dict[str, Any], name: str) -> None:
        for variable, value in self._PATIENCE.items():
            os.environ.setdefault(variable, value)
        self._mlflow: Any = import_package("mlflow")
        self._client = self._mlflow.MlflowClient()
        experiment_id = self._experiment_id()
        found = self._client.search_runs([experiment_id], f"tags.{self._TAG} = '{self.run_id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {self._TAG: self.run_id}
            self._run = self._client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
            self._log_params(config)

    def _experiment_id(self) -> str:
        """Returns the id of the project's experiment, which is made if it does not exist."""
        experiment = self._client.get_experiment_by_name(self._project)
        if experiment is None:
            try:
                return self._client.create_experiment(self._project)
            except self._mlflow.MlflowException:  # another run has made it in the meantime
                experiment = self._client.get_experiment_by_name(self._project)
                if experiment is None:
                    raise
        return experiment.experiment_id

    def _log_params(self, config: dict[str, Any]) -> None:
        make = self._mlflow.entities.Param
        params = [make(_mlflow_name(name), str(value)) for name, value in leaves(config)]
        for start in range(0, len(params), self._MOST_PARAMS):
            self._client.log_batch(self._run, params=params[start : start + self._MOST_PARAMS])

    def _write(self, values: Mapping[str, float], step: int) -> None:
        make, now = self._mlflow.entities.Metric, round(1000 * time.time())
        metrics = [make(_mlflow_name(name), float(value), now, step) for name, value in values.items()]
        for start in range(0, len(metrics), self._MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + self._MOST_METRICS])

    def _close(self) -> None:
        self._client.set_terminated(self._run)


class TrackioTracker(Tracker):
    """Writes to Trackio, by default to a local database (in ``TRACKIO_DIR``), which ``trackio show`` displays.

    ``folder`` has no effect. With ``TRACKIO_SPACE_ID``, Trackio sends the results to a Hugging Face Space.
    """

    package = "trackio"

    def _open(self, config: dict[str, Any], name: str) -> None:
        trackio: Any = import_package("trackio")
        own = name if str(self.run_id) in name else f"{name}-{self.run_id}"  # Trackio finds a run by its name
        quiet: Any = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(self._project, name=own, config=dict(leaves(config)), resume="allow", **quiet)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def _close(self) -> None:
        trackio: Any = import_package("trackio")
        trackio.finish()


TRACKERS: Final[Mapping[str, type[Tracker]]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MLflowTracker,
    "trackio": TrackioTracker,
}
"""The trackers by their names on the command line."""


def new_run_id() -> str:
    """Returns a new id of a tracked run."""
    return secrets.token_hex(4)


def leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested dicts under their paths.

    >>> dict(leaves({"a": 1, "b": {"c": [2], "d": {}}}))
    {'a': 1, 'b/c': [2]}
    """
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the numbers of an iteration's results, which are JSON data, under their paths.

    >>> dict(scalars({"steps": 4, "env_runners": {"episode_return_mean": 0.5, "success": None}}))
    {'steps': 4, 'env_runners/episode_return_mean': 0.5}
    """
    return ((name, value) for name, value in leaves(row) if isinstance(value, (int, float)))


def _mlflow_name(name: str) -> str:
    """Returns a name with the characters that MLflow accepts."""
    return "/".join(re.sub(r"[^\w\-. ]", "_", part) or "_" for part in name.split("/"))


@contextlib.contextmanager
def _quiet_event_writers() -> Iterator[None]:
    """Keeps TensorBoard's threads from printing that a disk is full: the next event or flush raises the error."""
    former = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        is_writer = type(args.thread).__module__.startswith("tensorboard.")
        if not (is_writer and isinstance(args.exc_value, OSError)):
            former(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:  # another writer may have replaced it
            threading.excepthook = former
