"""Compares the cost of connector pipelines with RLlib's: ``python benchmarks/pipelines.py --peer RLLIB_PYTHON``.

``RLLIB_PYTHON`` is the interpreter of an environment with ``ray[rllib]==2.60.0``. Both sides sample episodes of the
same environment and learn from them in turn, each in a separate process on one thread. The calls of the pipelines by
the runner and the learner are timed, in CPU time. The time of networks is not included: a runner's forward passes are
outside of the pipelines, and that of the value functions in a learner pipeline is subtracted. The time of a run is the
fastest of several samples, and each pair of runs gives one ratio. Without ``--peer``, only this toolkit is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pipeline_cases import CASES, SETUPS, Case, Setup, item_pieces, lstm_module

ACT, HAND_OVER, LEARN = "env_to_module", "module_to_env", "learner"
ACTING, NETWORK = "both of the runner", "network"
SAMPLES, ENOUGH_SECONDS = 8, 2.5
OPTIONAL = ("MeanStdFilter", "FlattenObservations", "PrevActionsPrevRewards")
RAISES = "raises:"


class Meter:
    """Adds up the CPU seconds of functions, without those of timed functions that they call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = 0.0
        self._clock = min(-(time.thread_time() - time.thread_time()) for _ in range(1000))  # reading it takes time

    def timed(self, name: str, function: Callable) -> Callable:
        """Returns a function that calls ``function`` and times it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            before, self._inside = self._inside, 0.0
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.thread_time() - start - self._clock
                self.seconds[name] += spent - self._inside
                self._inside = before + spent

        return call

    def time_calls(self, name: str, thing: Any) -> None:
        """Times the calls of one object."""
        cls = type(thing)
        thing.__class__ = type(cls.__name__, (cls,), {"__call__": self.timed(name, cls.__call__)})

    def time_method(self, name: str, cls: type, method: str) -> Callable[[], None]:
        """Times a method of all objects of a class. Returns a function that undoes this."""
        own = getattr(cls, method)
        setattr(cls, method, self.timed(name, own))
        return lambda: setattr(cls, method, own)


class Run(NamedTuple):
    """A run of one side.

    Attributes:
        sample: Returns the episodes of a sample.
        learn: Learns from episodes.
        stop: Stops the algorithm.
    """

    sample: Callable[[], list]
    learn: Callable[[list], Any]
    stop: Callable[[], Any]


def configured(config: Any, specs: dict[str, Any], case: Case, setup: Setup, pieces: dict[str, Any]) -> Any:
    """Returns the config, which has the same settings on both sides but each side's own pieces and spec classes."""

    def made(wanted: dict[str, dict[str, Any]]) -> list:
        return [pieces[name](**arguments) for name, arguments in wanted.items()]

    model = {"model_config": {"fcnet_hiddens": [64, 64], "vf_share_layers": False}}
    if case.stateful:
        own = specs["one"](module_class=specs["module"], model_config={"max_seq_len": 20})
        model = {"rl_module_spec": specs["several"](rl_module_specs=dict.fromkeys(setup.module_ids, own))}
    return (
        config.env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=setup.envs,
            rollout_fragment_length=setup.steps,
            env_to_module_connector=lambda env, spaces, device: made(case.env_to_module),
            episode_lookback_horizon=4,
        )
        .learners(learner_connector=lambda observation_space, action_space: made(case.learner), num_gpus_per_learner=0)
        .multi_agent(
            policies=set(setup.module_ids), policy_mapping_fn=lambda agent_id, episode, **_: setup.module_of(agent_id)
        )
        .training(
            train_batch_size_per_learner=setup.envs * setup.steps,
            minibatch_size=setup.envs * setup.steps,
            num_epochs=1,
        )
        .rl_module(**model)
        .debugging(seed=0)
    )


@contextlib.contextmanager
def toolkit(case: Case, setup: Setup, meter: Meter, by_piece: bool) -> Iterator[Run]:
    """Yields this toolkit's algorithm with timed pipelines.

    Work that RLlib does inside its pipelines is timed here too: rows of episodes, lists of actions, and
    log-probabilities, which are computed once for a fragment.
    """
    import torch

    import marl_connectors as mc
    from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
    from marl_connectors.connectors.connector_v2 import works_on_columns
    from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_actions
    from marl_connectors.rl_module.distributions import TorchCategorical

    torch.set_num_threads(1)
    stacking = mc.FrameStacking
    pieces = {
        **item_pieces(mc.ConnectorV2),
        **{name: getattr(mc, name) for name in OPTIONAL},
        "FrameStackingEnvToModule": stacking,
        "FrameStackingLearner": lambda **own: stacking(as_learner_connector=True, **own),
    }
    config = mc.PPOConfig().environment(
        "marl_envs.null_v0", env_config={"n_agents": setup.agents, "ep_len": setup.steps}
    )
    specs = {
        "module": lstm_module(mc.RLModule, mc.ValueFunctionAPI),
        "one": mc.RLModuleSpec,
        "several": mc.MultiRLModuleSpec,
    }
    algo: Any = configured(config, specs, case, setup, pieces).build_algo()
    runner, learner = algo.env_runner, algo.learner
    for name, pipeline in ((ACT, runner.env_to_module), (HAND_OVER, runner.module_to_env), (LEARN, learner.pipeline)):
        pipeline.run = meter.timed(name, pipeline.run)
        for piece_name, piece in zip(pipeline.names(), pipeline, strict=True) if by_piece else ():
            if works_on_columns(piece):
                piece.columns = meter.timed(f"{name}/{piece_name}", piece.columns)
            else:
                meter.time_calls(f"{name}/{piece_name}", piece)
        pipeline.set_input_spaces(pipeline.input_observation_space, pipeline.input_action_space)
    learner.make_batch = meter.timed(f"{LEARN}/(rows of episodes)" if by_piece else LEARN, learner.make_batch)
    listed = meter.timed(f"{HAND_OVER}/(lists of actions)" if by_piece else HAND_OVER, env_actions)
    in_runner = [m for n, m in sys.modules.items() if n.startswith("marl_connectors.env") and hasattr(m, "env_actions")]
    for module in in_runner:
        module.env_actions = listed  # type: ignore[attr-defined]
    undo = [
        meter.time_method(f"{HAND_OVER}/(log-probabilities)" if by_piece else HAND_OVER, TorchCategorical, "logp"),
        meter.time_method(NETWORK, specs["module"] if case.stateful else DefaultPPORLModule, "compute_values"),
    ]
    try:
        yield Run(runner.sample, lambda episodes: learner.update(episodes=episodes), algo.stop)
    finally:
        for module in in_runner:
            module.env_actions = env_actions  # type: ignore[attr-defined]
        for each in undo:
            each()


@contextlib.contextmanager
def rllib(case: Case, setup: Setup, meter: Meter, by_piece: bool) -> Iterator[Run]:
    """Yields RLlib's algorithm with timed pipelines."""
    import logging
    import warnings

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    warnings.simplefilter("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
    from ray.rllib.connectors import env_to_module
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
    from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
    from ray.rllib.core.rl_module.apis import ValueFunctionAPI
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.core.rl_module.torch import TorchRLModule
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    from marl_envs.null_v0 import NullEnv

    if not ray.is_initialized():
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        ray.init(num_cpus=1, logging_level=logging.ERROR, **quiet)
    torch.set_num_threads(1)
    pieces = {
        **item_pieces(ConnectorV2),
        **{name: getattr(env_to_module, name) for name in OPTIONAL},
        "FrameStackingEnvToModule": FrameStackingEnvToModule,
        "FrameStackingLearner": FrameStackingLearner,
    }
    register_env("null", lambda _: ParallelPettingZooEnv(NullEnv(n_agents=setup.agents, ep_len=setup.steps)))
    config = PPOConfig().environment("null").debugging(log_level="ERROR")
    specs = {"module": lstm_module(TorchRLModule, ValueFunctionAPI), "one": RLModuleSpec, "several": MultiRLModuleSpec}
    algo = configured(config, specs, case, setup, pieces).build_algo()
    torch.set_num_threads(1)
    runner, learner = algo.env_runner, algo.learner_group._learner
    pipelines = {ACT: runner._env_to_module, HAND_OVER: runner._module_to_env, LEARN: learner._learner_connector}
    for name, pipeline in pipelines.items():
        meter.time_calls(name, pipeline)
        for piece in pipeline.connectors if by_piece else ():
            meter.time_calls(f"{name}/{type(piece).__name__}", piece)
    undo = meter.time_method(NETWORK, specs["module"] if case.stateful else DefaultPPOTorchRLModule, "compute_values")
    steps = setup.envs * setup.steps
    try:
        yield Run(
            lambda: runner.sample(num_timesteps=steps),
            lambda episodes: algo.learner_group.update(
                episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 0}, num_epochs=1
            ),
            algo.stop,
        )
    finally:
        undo()


def fastest(run: Run, meter: Meter) -> dict[str, float]:
    """Returns the microseconds for each agent-step by pipeline (and piece), in the fastest sample."""
    found: dict[str, float] = {}
    began = time.perf_counter()
    for i in range(SAMPLES):
        meter.seconds.clear()
        episodes = run.sample()
        agent_steps = sum(episode.agent_steps() for episode in episodes)
        run.learn(episodes)
        if i:  # the first one warms up
            for name, seconds in meter.seconds.items():
                found[name] = min(found.get(name, float("inf")), seconds / agent_steps * 1e6)
        if i > 1 and time.perf_counter() - began > ENOUGH_SECONDS:
            break
    return found


def measure(side: str, only: str, by_piece: bool) -> dict[str, dict[str, float] | None]:
    """Returns ``fastest`` of each case; None if it raises an error."""
    found: dict[str, dict[str, float] | None] = {}
    for setup in SETUPS:
        for case in CASES:
            key, meter = f"{case.name} | {setup.name}", Meter()
            if only not in key:
                continue
            try:
                with (rllib if side == "rllib" else toolkit)(case, setup, meter, by_piece) as run:
                    found[key] = fastest(run, meter)
                    run.stop()
            except Exception as error:
                print(f"{RAISES} {side}, {key}: {type(error).__name__}: {error}", file=sys.stderr)
                found[key] = None
    return found


def run_in_process(python: str, side: str, only: str, by_piece: bool) -> dict[str, dict[str, float] | None]:
    """Runs one side in a separate process, and returns its times."""
    paths = [str(Path(__file__).parents[1] / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    command = [python, str(Path(__file__)), "--side", side, "--only", only, *(["--pieces"] if by_piece else [])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    print(
        *(f"{line}\n" for line in done.stderr.splitlines() if line.startswith(RAISES)), sep="", end="", file=sys.stderr
    )
    return json.loads(done.stdout.splitlines()[-1])


def times_of(runs: list[dict[str, dict[str, float] | None]], key: str, part: str) -> list[float] | None:
    """Returns the time of a pipeline or a piece in each run; None if the run failed or does not have it."""
    parts = (ACT, HAND_OVER) if part == ACTING else (part,)
    found = [sum(run[key][name] for name in parts) for run in runs if run[key] and parts[-1] in run[key]]  # type: ignore[index]
    return found if found and len(found) == len(runs) else None


def row(ours: list, theirs: list, key: str, part: str) -> dict[str, Any]:
    """Returns the medians of both sides and their ratio."""
    mine, peers = times_of(ours, key, part), times_of(theirs, key, part)
    case, setup = key.split(" | ")
    return {
        "pipeline": part,
        "case": case,
        "setup": setup,
        "us": mine and statistics.median(mine),
        "rllib_us": peers and statistics.median(peers),
        "times": mine and peers and statistics.median(b / a for a, b in zip(mine, peers, strict=True)),
    }


def shown(value: float | None, digits: int) -> str:
    """Returns a table cell."""
    return "" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Prints a table row for each case, or for each piece of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="the Python of an environment with ray[rllib]")
    parser.add_argument("--reps", type=int, default=3, help="pairs of runs (default 3)")
    parser.add_argument("--only", default="", help="only cases whose line contains this text, such as '8 x 8, 1'")
    parser.add_argument(
        "--pieces", action="store_true", help="print the time of each piece, which includes the cost of timing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row instead of a table")
    parser.add_argument("--side", choices=["toolkit", "rllib"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.only, args.pieces)))
        return
    ours, theirs = [], []
    for _ in range(args.reps):
        ours.append(run_in_process(sys.executable, "toolkit", args.only, args.pieces))
        if args.peer:
            theirs.append(run_in_process(args.peer, "rllib", args.only, args.pieces))
    if not args.json:
        print("| pipeline | case | lanes | us per agent-step | RLlib | times faster |\n" + "| --- " * 6 + "|")
    for key in ours[0]:
        parts = [ACTING, LEARN]
        if args.pieces:
            parts = list(dict.fromkeys(name for run in (*ours, *theirs) for name in run[key] or ()))
        for found in (row(ours, theirs, key, part) for part in parts if part != NETWORK):
            if args.json:
                print(json.dumps(found))
            else:
                cells = [found["pipeline"], found["case"], found["setup"], shown(found["us"], 3)]
                print(f"| {' | '.join(cells)} | {shown(found['rllib_us'], 2)} | {shown(found['times'], 1)} |")


if __name__ == "__main__":
    main()
