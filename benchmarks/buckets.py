"""Measures what is saved if modules of one architecture are one computation, in forward passes and in whole updates.

On a GPU, it also measures what half precision saves, and what sampling and learning there instead of on the CPU saves.

Two ways are timed in turn in one process, in CPU time (on a GPU in wall-clock time, with synchronisation). Every pair
gives one ratio: how many times faster the second way is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from gymnasium import spaces

from marl_connectors import Algorithm, Columns, MultiRLModule, PPOConfig, SingleAgentEpisode
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.packing import rows_of_episodes

OBS, ACTIONS = 16, 5
MODEL = {"fcnet_hiddens": [64, 64], "vf_share_layers": False}


def seconds(work: Callable[[], object], repeats: int, device: str) -> float:
    """Returns the seconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / repeats
    began = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began) / repeats


def compare(name: str, base: Callable[[], object], stacked: Callable[[], object], repeats: int, args) -> None:
    """Prints a table row."""
    base(), stacked()
    pairs = [(seconds(base, repeats, args.device), seconds(stacked, repeats, args.device)) for _ in range(args.reps)]
    ratios = [one / other for one, other in pairs]
    base_ms, stacked_ms = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"| {name} | {base_ms:.2f} | {stacked_ms:.2f} | {statistics.median(ratios):.1f} | {min(ratios):.1f} "
        f"| {max(ratios):.1f} |",
        flush=True,
    )


def episodes_of(rows: dict[str, int]) -> list[SingleAgentEpisode]:
    """Returns one episode of random steps for each module, with the outputs of a module that acts."""
    rng = np.random.default_rng(0)
    episodes = []
    for module_id, count in rows.items():
        logits = np.zeros((count, ACTIONS), np.float32)
        episodes.append(
            SingleAgentEpisode(
                observations=list(rng.standard_normal((count + 1, OBS)).astype(np.float32)),
                actions=list(rng.integers(ACTIONS, size=count)),
                rewards=list(rng.standard_normal(count)),
                observation_space=spaces.Box(-np.inf, np.inf, (OBS,), np.float32),
                action_space=spaces.Discrete(ACTIONS),
                extra_model_outputs={
                    Columns.ACTION_DIST_INPUTS: list(logits),
                    Columns.ACTION_LOGP: list(np.full(count, -np.log(ACTIONS), np.float32)),
                },
                agent_id=module_id,
                module_id=module_id,
                multi_agent_episode_id=f"e{module_id}",
                len_lookback_buffer=0,
            ).to_numpy()
        )
    return episodes


def algorithm(
    policies: list[str],
    args,
    *,
    stack_modules: bool = True,
    minibatch_size: int,
    device: str | None = None,
    n_agents: int = 2,
    num_envs: int = 1,
    autocast_dtype: str | None = None,
) -> Algorithm:
    """Returns PPO with these modules, each for as many agents. Most parts only use the environment's spaces."""
    return (
        PPOConfig()
        .environment("marl_envs.null_v0", env_config={"n_agents": n_agents, "obs_dim": OBS, "n_actions": ACTIONS})
        .multi_agent(
            policies=policies,
            policy_mapping_fn=lambda agent_id, episode, **kw: policies[int(agent_id.split("_")[1]) % len(policies)],
        )
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=64)
        .rl_module(model_config=MODEL)
        .learners(
            stack_modules=stack_modules,
            num_gpus_per_learner=int((device or args.device) == "cuda"),
            autocast_dtype=autocast_dtype,
        )
        .training(num_epochs=2, minibatch_size=minibatch_size, lr=1e-4, grad_clip=0.5)
        .debugging(seed=0)
        .build_algo()
    )


def sampling(args) -> None:
    """Measures forward passes of many small policies."""
    for number, rows in ((8, 8), (32, 8), (128, 8)):
        multi = MultiRLModule()
        for i in range(number):
            box = spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
            module = DefaultPPORLModule(
                observation_space=box, action_space=spaces.Discrete(ACTIONS), model_config=MODEL
            )
            multi.add_module(f"p{i}", module.to(args.device))
        for shape in ("equal", "ragged"):
            counts = {f"p{i}": rows if shape == "equal" else 1 + (i * 7) % (2 * rows - 1) for i in range(number)}
            group = ColumnGroup(
                rows_of_episodes(episodes_of({m: max(n - 1, 1) for m, n in counts.items()}), list(multi))
            )
            group[Columns.OBS] = torch.randn(len(group.rows), OBS, device=args.device)
            batch = ColumnBatch([group], Phase.TENSORS)
            parts = dict(group.module_columns())

            def one_by_one(multi=multi, parts=parts):
                return {m: multi[m].forward_exploration(columns) for m, columns in parts.items()}

            def stacked(multi=multi, batch=batch):
                return multi.forward_exploration(batch)

            compare(f"forward pass, {number} policies, about {rows} rows each, {shape}", one_by_one, stacked, 20, args)


def updating(args) -> None:
    """Measures whole updates from episodes."""
    for number in (8, 64):
        policies = [f"p{i}" for i in range(number)]
        spreads = {
            "equal": [256] * number,
            "1 to 8": [round(64 + 448 * i / (number - 1)) for i in range(number)],
        }
        for name, counts in spreads.items():
            episodes = episodes_of(dict(zip(policies, counts, strict=True)))
            alone = algorithm(policies, args, stack_modules=False, minibatch_size=64)
            stacked = algorithm(policies, args, minibatch_size=64)
            compare(
                f"PPO update, {number} policies, rows {name}",
                lambda alone=alone, episodes=episodes: alone.learner.update(episodes=episodes),
                lambda stacked=stacked, episodes=episodes: stacked.learner.update(episodes=episodes),
                1,
                args,
            )


def beside_one(args) -> None:
    """Compares many policies with one shared policy, on samples of equal size."""
    number, rows = 64, 256
    policies = [f"p{i}" for i in range(number)]
    shared = algorithm(["p0"], args, minibatch_size=64 * number)
    independent = algorithm(policies, args, minibatch_size=64)
    many = episodes_of(dict.fromkeys(policies, rows))
    one = episodes_of({"p0": rows * number})
    compare(
        f"PPO update, one shared policy against {number} stacked ones, {rows * number:,} rows",
        lambda: shared.learner.update(episodes=one),
        lambda: independent.learner.update(episodes=many),
        1,
        args,
    )


def half_precision(args) -> None:
    """Compares updates in single precision with updates in half precision, on a GPU."""
    if args.device != "cuda":
        return
    for number in (1, 8, 64):
        policies = [f"p{i}" for i in range(number)]
        episodes = episodes_of(dict.fromkeys(policies, 256 if number > 1 else 2048))
        size = 64 if number > 1 else 512
        plain = algorithm(policies, args, minibatch_size=size)
        half = algorithm(policies, args, minibatch_size=size, autocast_dtype="bfloat16")
        compare(
            f"PPO update, {number} policies, float32 against bfloat16",
            lambda plain=plain, episodes=episodes: plain.learner.update(episodes=episodes),
            lambda half=half, episodes=episodes: half.learner.update(episodes=episodes),
            2,
            args,
        )


def on_a_gpu(args) -> None:
    """Compares sampling and updates on the CPU with those on the GPU, in wall-clock time."""
    if args.device != "cuda":
        return
    for number in (1, 8):
        policies = [f"p{i}" for i in range(number)]
        runs = [
            algorithm(policies, args, minibatch_size=512 // number, device=device, n_agents=8, num_envs=8)
            for device in ("cpu", "cuda")
        ]
        episodes = [run.env_runner.sample() for run in runs]
        names = f"{number} policies, 8 sub-environments of 8 agents, CPU against GPU"
        compare(f"64 vector steps, {names}", *(run.env_runner.sample for run in runs), 1, args)
        compare(
            f"PPO update, {names}",
            *(
                lambda run=run, own=own: run.learner.update(episodes=own)
                for run, own in zip(runs, episodes, strict=True)
            ),
            1,
            args,
        )


PARTS = (sampling, updating, beside_one, half_precision, on_a_gpu)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=7, help="pairs of timings (default 7)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| work | first way, ms | second way, ms | times faster: median | min | max |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for part in PARTS:
        if args.only in (None, part.__name__):
            part(args)


if __name__ == "__main__":
    main()
