"""Measures what single changes of a run cost: ``python benchmarks/cliffs.py [--only WORDS] [--reps N]``.

Each row compares a run with one change with the plain run of as many lanes, on an environment whose steps take almost
no time (``null_envs.py``). Both are in this process and take turns, a fragment each, on one thread. Every turn gives a
ratio of agent-steps per second of CPU time, and the row has their median. The output is a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import torch
from null_envs import NullTurns, NullVariant
from ours import AddsConstant, SetsObservations

from marl_connectors import (
    Callbacks,
    ConnectorV2,
    DefaultPPORLModule,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PPOConfig,
    PPOLearner,
    RLModuleSpec,
)

MODEL = {"fcnet_hiddens": [64, 64], "vf_share_layers": False}
SAMPLED, TRAINED = 8192, 4096
"""The smallest number of agent-steps of a turn."""


class Setup(NamedTuple):
    """The size of a run.

    Attributes:
        agents: The number of agents of each sub-environment.
        envs: The number of sub-environments.
        modules: The number of modules to which a function maps the agents; 0 for a module for each agent.
        mode: ``"sample"`` or ``"train"``.
        acting: The number of agents that act in a step of a sub-environment, if not all act.
    """

    agents: int = 8
    envs: int = 8
    modules: int = 1
    mode: str = "sample"
    acting: int | None = None

    @property
    def steps(self) -> int:
        """The number of env steps of a fragment."""
        wanted = TRAINED if self.mode == "train" else SAMPLED
        return max(4, -(-wanted // (self.envs * (self.acting or self.agents))))


class Case(NamedTuple):
    """A row of the table.

    Attributes:
        name: The name in the table.
        change: Changes the plain config.
        setup: The size of both runs.
        env: Makes the environment, if it differs from the plain one.
        plain: The size of the plain run, if it differs.
    """

    name: str
    change: Callable[[Any], Any] = lambda config: config
    setup: Setup = Setup()
    env: Callable[[], Any] | None = None
    plain: Setup | None = None


class Idle(ConnectorV2):
    """An item piece that does nothing."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch


class IdleColumns(ConnectorV2):
    """A column piece that does nothing."""

    def columns(self, c: Any, xp: Any) -> None:
        pass


class Steps(Callbacks):
    """A callback that is called in each step."""

    def on_episode_step(self, **kwargs: Any) -> None:
        pass


class Ends(Callbacks):
    """A callback that is called at the end of each episode."""

    def on_episode_end(self, **kwargs: Any) -> None:
        pass


class Unchanged(DefaultPPORLModule):
    """A subclass that overrides nothing."""


class OwnLoss(PPOLearner):
    """A user's loss that only calls PPO's loss."""

    def compute_loss_for_module(self, **arguments: Any) -> Any:
        return super().compute_loss_for_module(**arguments)


class Modules:
    """A mapping function that distributes agents over modules."""

    def __init__(self, count: int):
        self.count = count

    def __call__(self, agent_id: str, episode: Any, **kwargs: Any) -> str:
        return f"module_{int(agent_id.removeprefix('agent_')) % self.count}"


def piece(*makers: Callable[[], Any], learner: Callable[[], Any] | None = None) -> Callable[[Any], Any]:
    """Returns a change that adds env-to-module pieces and a learner piece."""

    def change(config: Any) -> None:
        config.env_runners(env_to_module_connector=lambda: [make() for make in makers])
        if learner is not None:
            config.learners(learner_connector=learner)

    return change


def model(**settings: Any) -> Callable[[Any], Any]:
    """Returns a change of the model config."""
    return lambda config: config.rl_module(model_config={**MODEL, **settings})


def unchanged(config: Any) -> None:
    """Changes the module class to a subclass that overrides nothing."""
    config.rl_module(rl_module_spec=RLModuleSpec(Unchanged, model_config=MODEL))


def null(**settings: Any) -> Callable[[], Any]:
    """Returns a function that makes an environment."""
    return lambda: NullVariant(**settings)


ALL = Setup(mode="train")
EACH = Setup(mode="train", modules=0)
CASES = [
    Case("column piece that does nothing", piece(IdleColumns)),
    Case("column piece that adds a constant to the observation", piece(AddsConstant)),
    Case("four column pieces", piece(AddsConstant, AddsConstant, AddsConstant, AddsConstant)),
    Case("item piece that does nothing", piece(Idle)),
    Case("item piece, `set_observations` for each agent", piece(SetsObservations)),
    Case(
        "module-to-env item piece that does nothing",
        lambda config: config.env_runners(module_to_env_connector=lambda: Idle()),
    ),
    Case("callback `on_episode_step`", lambda config: config.callbacks(Steps)),
    Case("callback `on_episode_end`", lambda config: config.callbacks(Ends)),
    Case("Box actions", env=null(act="Box")),
    Case("MultiDiscrete actions", env=null(act="MultiDiscrete")),
    Case("Dict actions", env=null(act="Dict")),
    Case("Dict observations", piece(FlattenObservations), env=null(obs="Dict")),
    Case("float64 observations", env=null(obs="float64")),
    Case("action masks in observations", env=null(obs="mask")),
    Case("infos for all agents", env=null(infos=True)),
    Case("LSTM of 64 cells", model(use_lstm=True, lstm_cell_size=64)),
    Case("silu instead of tanh", model(fcnet_activation="silu")),
    Case("relu instead of tanh", model(fcnet_activation="relu")),
    Case("module subclass that overrides nothing", unchanged),
    Case("MeanStdFilter", piece(MeanStdFilter)),
    Case(
        "FrameStacking of 4",
        piece(
            lambda: FrameStacking(num_frames=4), learner=lambda: FrameStacking(num_frames=4, as_learner_connector=True)
        ),
    ),
    Case("explore off", lambda config: config.env_runners(explore=False)),
    Case("a tenth of the agents goes in every step", env=null(n_agents=8, go=True)),
    Case("the same, 80 agents", setup=Setup(80), env=null(n_agents=80, go=True)),
    Case("turn-based, 8 agents, one acts", setup=Setup(acting=1), env=NullTurns, plain=Setup(1)),
    *[Case(f"episodes of {n} step{'s' * (n > 1)}", env=null(ep_len=n)) for n in (1, 2, 10)],
    *[Case(f"{n} agents × 8 sub-environments", setup=Setup(n), plain=Setup(8, n)) for n in (1, 8, 64, 512)],
    *[Case(f"8 agents × {n} sub-environments", setup=Setup(8, n), plain=Setup()) for n in (1, 8, 64, 512)],
    *[
        Case(f"{n} modules for 256 agents × 4", setup=Setup(256, 4, n), plain=Setup(256, 4, 1))
        for n in (1, 4, 16, 64, 256)
    ],
    Case("training: LSTM of 64 cells", model(use_lstm=True, lstm_cell_size=64), ALL),
    Case("training: silu instead of tanh", model(fcnet_activation="silu"), ALL),
    Case("training: module subclass that overrides nothing", unchanged, ALL),
    Case("training: own `compute_loss_for_module`", lambda config: config.learners(learner_class=OwnLoss), ALL),
    Case("training: item piece, `set_observations` for each agent", piece(SetsObservations), ALL),
    Case("training: 8 independent modules", setup=EACH, plain=ALL),
    Case("training: 8 independent modules, LSTM of 64 cells", model(use_lstm=True, lstm_cell_size=64), EACH),
    Case("training: 8 independent modules, subclass that overrides nothing", unchanged, EACH),
    Case(
        "training: 8 independent modules, own `compute_loss_for_module`",
        lambda config: config.learners(learner_class=OwnLoss),
        EACH,
    ),
]
REASONS: dict[str, str] = {
    "item piece, `set_observations` for each agent": "64 reads and writes of a user's, some 2.5 µs each",
    "Dict actions": "two distributions, and a dict for each agent's action",
    "action masks in observations": "a Dict observation for each agent, and the mask is applied in torch",
    "infos for all agents": "the infos of all agents are copied in each step",
    "LSTM of 64 cells": "the network itself: five times the arithmetic of the plain one",
    "MeanStdFilter": "statistics of all observations, which are then written to the episodes",
    "a tenth of the agents goes in every step": "an end and a beginning take some 60 µs of Python, with another layout",
    "the same, 80 agents": "an end and a beginning take some 30 µs of Python",
    "turn-based, 8 agents, one acts": "in each step other lanes act; PettingZoo's own turn takes a third",
    "episodes of 1 step": "a reset of all sub-environments in each step, and an episode for each",
    "episodes of 2 steps": "a reset of all sub-environments in every other step",
    "8 agents × 1 sub-environments": "the fixed calls of a step for 8 rows, beside 64",
    "256 modules for 256 agents × 4": "256 small products in place of a large one",
    "training: LSTM of 64 cells": "sequences are computed step by step, by autograd",
    "training: 8 independent modules, LSTM of 64 cells": "sequences are computed step by step, by autograd",
    "training: 8 independent modules, own `compute_loss_for_module`": "called module by module, by autograd",
}
"""For the last column of the table: row name to the reason why it takes more than twice as long."""


def build(setup: Setup, env: Callable[[], Any] | None, change: Callable[[Any], Any] = lambda config: config) -> Any:
    """Returns an algorithm."""
    config = PPOConfig().environment(env or null(n_agents=setup.agents)).learners(num_gpus_per_learner=0)
    config.env_runners(num_envs_per_env_runner=setup.envs, num_env_workers=0, rollout_fragment_length=setup.steps)
    config.rl_module(model_config=MODEL).debugging(seed=0)
    size = 512 // setup.agents if setup.modules == 0 else 512
    config.training(train_batch_size_per_learner=setup.steps * setup.envs, minibatch_size=size, num_epochs=4)
    if setup.modules == 1:
        config.multi_agent(policies="shared")
    elif setup.modules == 0:
        config.multi_agent(policies="independent")
    else:
        names = {f"module_{i}" for i in range(setup.modules)}
        config.multi_agent(policies=names, policy_mapping_fn=Modules(setup.modules))
    change(config)
    return config.build_algo()


class Run:
    """An algorithm that takes turns with another one."""

    def __init__(self, setup: Setup, env: Callable[[], Any] | None, change: Callable[[Any], Any] | None = None):
        self.algo = build(setup, env, change or (lambda config: config))
        self.mode = setup.mode
        self.turn()
        self.turn()

    def turn(self) -> float:
        """Samples or trains on a fragment, and returns agent-steps per second of CPU time."""
        began = time.process_time()
        if self.mode == "train":
            result = self.algo.train()
            seconds = time.process_time() - began
            return sum(result["env_runners"]["num_agent_steps_sampled"].values()) / seconds
        episodes = self.algo.env_runner.sample()
        seconds = time.process_time() - began
        return sum(episode.agent_steps() for episode in episodes) / seconds

    def close(self) -> None:
        """Stops the algorithm."""
        self.algo.stop()


def bare(env: Any, steps: int) -> float:
    """Returns the seconds of CPU time for an agent-step of one environment alone."""
    rng = np.random.default_rng(0)
    actions = {agent: rng.integers(0, 3) for agent in env.possible_agents}
    env.reset(seed=0)
    began, count = time.process_time(), 0
    for _ in range(steps):
        if not env.agents:
            env.reset()
        if hasattr(env, "agent_iter"):
            env.observe(env.agent_selection)
            count += not env.truncations[env.agent_selection]
            env.step(None if env.truncations[env.agent_selection] else 0)
        else:
            count += len(env.agents)
            env.step(actions)
    return (time.process_time() - began) / count


def measure(case: Case, reps: int) -> str:
    """Returns the table row of a case."""
    plain = Run(case.plain or case.setup, None)
    changed = Run(case.setup, case.env, case.change)
    pairs = [(plain.turn(), changed.turn()) for _ in range(reps)]
    plain.close()
    changed.close()
    factors = [one / other for one, other in pairs]
    base = statistics.median(one for one, _ in pairs)
    rate = statistics.median(other for _, other in pairs)
    alone = ""
    if case.env is not None:
        least = min(bare(case.env(), 2000) for _ in range(3))
        alone = f"{least * base:.2f}"
    reason = REASONS.get(case.name, "")
    return (
        f"| {case.name} | {statistics.median(factors):.2f} | {min(factors):.2f} | {max(factors):.2f} | {rate:,.0f} "
        f"| {base:,.0f} | {alone} | {reason} |"
    )


def opening(agents: int, envs: int) -> str:
    """Returns a table row with the seconds of CPU time for opening lanes: the first time, and at a reset of all."""
    algo = build(Setup(agents, envs), None)

    def seconds(**settings: Any) -> float:
        began = time.process_time()
        algo.env_runner.sample(num_timesteps=envs, **settings)
        return time.process_time() - began

    first, step = seconds(), min(seconds() for _ in range(3))
    again = statistics.median(seconds(force_reset=True) for _ in range(3))
    algo.stop()
    return f"| {envs:,} × {agents:,} | {first - step:.2f} | {again - step:.2f} |"


def commit() -> str:
    """Returns the commit that is measured."""
    command = ["git", "-C", str(Path(sys.modules["marl_connectors"].__file__ or ".").parent), "rev-parse"]
    done = subprocess.run([*command, "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Measures all cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="rows whose names contain one of these")
    parser.add_argument("--reps", type=int, default=9, help="turns (default 9)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    def is_wanted(name: str) -> bool:
        return not args.only or any(words.lower() in name.lower() for words in args.only)

    print(f"Commit {commit()}, median of {args.reps} turns.\n")
    print("| change | times slower | min | max | agent-steps/s | plain | the environment alone | reason |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for case in CASES:
        if is_wanted(case.name):
            print(measure(case, args.reps), flush=True)
    if is_wanted("opening 16,384 lanes"):
        print("\n| 16,384 lanes | opened for the first time, CPU seconds | opened again at a reset of all |")
        print("| --- | --- | --- |")
        for agents, envs in ((16384, 1), (128, 128), (1, 16384)):
            print(opening(agents, envs), flush=True)


if __name__ == "__main__":
    main()
