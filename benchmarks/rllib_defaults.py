"""Compares every default of the configs and of DefaultModelConfig with RLlib's, for the table of docs/rllib.md.

``--rllib PYTHON`` names an interpreter that has RLlib 2.60; what it says is kept in ``results/rllib_defaults.json``.
Without it, that file is compared. The differences are printed. Status 1 if one of them has no reason in ``REASONS``, or
if a reason has no difference. ``--write-docs`` also writes the table.

    python benchmarks/rllib_defaults.py --rllib PYTHON_WITH_RLLIB --write-docs
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "rllib_defaults.json"
DOCS = Path(__file__).parents[1] / "docs" / "rllib.md"
BEGIN, END = "<!-- other defaults: benchmarks/rllib_defaults.py -->", "<!-- end of the other defaults -->"
CONFIGS = {
    "AlgorithmConfig": "algorithms.algorithm_config",
    "PPOConfig": "algorithms.ppo.ppo",
    "DQNConfig": "algorithms.dqn.dqn",
    "SACConfig": "algorithms.sac.sac",
    "MARWILConfig": "algorithms.marwil.marwil",
    "BCConfig": "algorithms.bc.bc",
}
"""The configs that both libraries have, with their modules in RLlib."""
MODEL_CONFIG = "core.rl_module.default_model_config"
REASONS = {
    "action_mask_key": "masks are found in observations and infos, and applied without a module of their own",
    "actor_lr": "the learning rate of Haarnoja et al. (2018) for all networks",
    "fcnet_activation": "the networks of Haarnoja et al. (2018)",
    "input_": "a sampler is what there is without recorded episodes",
    "input_read_episodes": "recordings hold whole episodes, and nothing else",
    "min_sample_timesteps_per_iteration": "iterations are as long as DQN's, since each writes results",
    "num_env_runners": "a run needs no Ray, and its results do not depend on the number of env runners",
    "num_gpus_per_learner": "a GPU is used where there is one",
    "policies": "without names, the modules are those of the mapping function in a first episode",
    "replay_buffer_config": "equal probabilities, as in Haarnoja et al. (2018), and a tenth of the memory",
    "rollout_fragment_length": "fragments fit the train batch, as PPO's do in both",
    "vf_share_layers": "a dict and a `DefaultModelConfig` mean the same, PPO's default in RLlib; a large value loss "
    "does not drown the policy's, and PPO goes on from modules of BC and MARWIL",
}
"""Why a default differs on purpose, by setting."""
_MISSING = "(none)"
_OTHERWISE = ("evaluation_config", "model_config")
"""Settings whose content is compared under names of its own."""


def of_rllib(names: list[str]) -> dict[str, dict[str, Any]]:
    """Returns RLlib's defaults for these settings, by config. Called in a process that has RLlib."""
    found = {}
    models = dataclasses.asdict(importlib.import_module(f"ray.rllib.{MODEL_CONFIG}").DefaultModelConfig())
    for name, module in CONFIGS.items():
        config = getattr(importlib.import_module(f"ray.rllib.{module}"), name)()
        values = vars(config) | {
            public: vars(config)[f"_{public}"] for public in names if f"_{public}" in vars(config)
        }  # the properties fail without an algorithm
        values["train_batch_size_per_learner"] = config.total_train_batch_size
        values["evaluation_explore"] = (config.evaluation_config or {}).get("explore", config.explore)
        values |= dict.fromkeys(_OTHERWISE, _MISSING)
        model = models | config._model_config_auto_includes
        found[name] = _kept({key: (values | model).get(key, _MISSING) for key in names})
    return found


def of_ours() -> dict[str, dict[str, Any]]:
    """Returns the defaults of this library, by config. The settings of default modules are among them."""
    import marl_connectors
    from marl_connectors.algorithms.dqn.rl_module import DQNModelConfig
    from marl_connectors.algorithms.sac.rl_module import SACModelConfig
    from marl_connectors.validators import declared

    models = {"DQNConfig": DQNModelConfig, "SACConfig": SACModelConfig}
    found = {}
    for name in CONFIGS:
        config = getattr(marl_connectors, name)()
        values = {setting: getattr(config, setting) for setting in declared(type(config))}
        model = dataclasses.asdict(models.get(name, marl_connectors.DefaultModelConfig)())
        found[name] = _kept({**model, **values, "evaluation_explore": config.get_evaluation_config().explore})
    return found


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that are data, in the form that JSON gives back. Classes and functions are left out."""
    kept = {}
    for name, value in values.items():
        if name == "policies" and value:
            value = sorted(value)
        try:
            kept[name] = json.loads(json.dumps(value, sort_keys=True)) or (
                value if isinstance(value, (bool, int, float, str)) else None
            )
        except TypeError:
            continue
    return kept


def differences(rllib: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str, str], list[str]]:
    """Returns the configs in which a default differs, by setting, RLlib's value and the value here."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for config, ours in of_ours().items():
        theirs = rllib[config]
        for name in sorted(ours.keys() & theirs.keys()):
            if theirs[name] not in (ours[name], _MISSING):
                found.setdefault((name, repr(theirs[name]), repr(ours[name])), []).append(config)
    return found


def without_reason(found: Mapping[tuple[str, str, str], Any]) -> list[str]:
    """Returns the settings whose defaults differ without a reason, or that have a reason and do not differ."""
    return sorted({name for name, _, _ in found} ^ REASONS.keys())


def table(found: Mapping[tuple[str, str, str], list[str]]) -> str:
    """Returns the table in Markdown."""
    lines = ["| setting | configs | RLlib | here | why |", "| --- | --- | --- | --- | --- |"]
    for (name, theirs, ours), configs in sorted(found.items()):
        where = "all" if len(configs) == len(CONFIGS) else ", ".join(f"`{config}`" for config in configs)
        lines.append(f"| `{name}` | {where} | `{theirs}` | `{ours}` | {REASONS.get(name, '')} |")
    return "\n".join(lines)


def main() -> None:
    """Compares, prints the table, and writes it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rllib", metavar="PYTHON", help="an interpreter that has RLlib")
    parser.add_argument("--write-docs", action="store_true", help="write the table to docs/rllib.md")
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)  # the process that has RLlib
    args = parser.parse_args()
    if args.names:
        print(json.dumps(of_rllib(args.names)))
        return
    if args.rllib:
        names = sorted({name for values in of_ours().values() for name in values})
        done = subprocess.run(
            [args.rllib, "-W", "ignore", __file__, "--names", *names], stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        rows = [f"{json.dumps(config)}: {json.dumps(values, sort_keys=True)}" for config, values in found.items()]
        RESULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    found = differences(json.loads(RESULTS.read_text()))
    print(table(found))
    if args.write_docs:
        from ablations import replace_table

        replace_table(DOCS, BEGIN, END, table(found))
    if wrong := without_reason(found):
        sys.exit(f"no reason, or no difference: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
