"""How fast episodes are written to files and read again, and how large they are, beside numpy's raw arrays.

Run ``python benchmarks/offline_data.py``. It prints agent steps per second, and bytes as a ratio to the raw columns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors import EpisodeReader, EpisodeWriter, PPOConfig
from marl_connectors.offline.recorded_sample import recorded


def sampled(env: str, num_steps: int, num_samples: int) -> tuple[Any, list[list[Any]]]:
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=16)
    algo = config.training(train_batch_size_per_learner=num_steps).build_algo()
    began = time.perf_counter()
    samples = [algo._sample().episodes() for _ in range(num_samples)]
    return time.perf_counter() - began, samples


def measured(env: str, num_steps: int, num_samples: int) -> dict[str, float]:
    seconds, samples = sampled(env, num_steps, num_samples)
    steps = sum(episode.agent_steps() for sample in samples for episode in sample)
    arrays = [tensor for sample in samples for tensor in recorded(sample)[1].values()]
    raw = sum(array.nbytes for array in arrays)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with EpisodeWriter(folder) as writer:
            for sample in samples:
                writer.write(sample)
        written = time.perf_counter() - began
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        began = time.perf_counter()
        np.savez(Path(folder) / "raw.npz", *arrays)
        saved = time.perf_counter() - began
        found = {"sample": steps / seconds, "write": steps / written, "np.savez": steps / saved}
        for order in ("as_recorded", "shuffled"):
            began = time.perf_counter()
            reader = EpisodeReader(folder, order=order)
            opened = time.perf_counter() - began
            for _ in range(2):  # the second time, the digests are checked already
                began, done = time.perf_counter(), 0
                while done < steps:
                    done += sum(episode.agent_steps() for episode in reader.sample(num_steps))
                found[f"read {order}"] = steps / (time.perf_counter() - began)
            found["open"] = steps / opened
    return {**found, "bytes per step": size / steps, "size ratio": size / raw}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--samples", type=int, default=10)
    args = parser.parse_args()
    for name in ("CartPole-v1", "mpe2.simple_spread_v3", "marl_envs.match_v0"):
        result = measured(name, args.steps, args.samples)
        print(name, ", ".join(f"{key} {value:,.2f}" for key, value in result.items()))
