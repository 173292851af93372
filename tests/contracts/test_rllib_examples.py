"""The script that runs RLlib's examples, with small examples in their place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")  # examples import Ray Tune's registry
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rllib_examples.py"

UTILS = """
import a_package_that_does_not_exist


def add_rllib_example_script_args(parser: Optional[argparse.ArgumentParser] = None):
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--stop-iters", type=int, default=99)
    parser.add_argument("--evaluation-interval", type=int, default=0)
    return parser
"""
RUNS = """
from ray.rllib.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment
from ray.tune.registry import get_trainable_cls

if __name__ == "__main__":
    args = add_rllib_example_script_args().parse_args()
    assert args.stop_iters == 2
    config = get_trainable_cls("PPO").get_default_config()
    result = run_rllib_example_script_experiment(config.training(num_epochs=1), args)
    assert result["training_iteration"] == 2 and result["num_env_steps_sampled_lifetime"] == 800
    assert config.num_epochs == 1
"""
FAILS = "from ray.rllib.policy import Policy\n"


@pytest.mark.slow
def test_the_outcome_of_each_example_is_printed(tmp_path):
    files = {"utils.py": UTILS, "group/runs.py": RUNS, "group/fails.py": FAILS, "group/classes/not_run.py": FAILS}
    for name, text in files.items():
        path = tmp_path / "examples" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, str(SCRIPT), "--rllib", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[2:] == [
        "| `group/fails.py` | ModuleNotFoundError: marl_connectors.policy: RLlib's old API stack is not here. "
        "Write an RLModule, connector pieces and callbacks (docs/rllib.md). |",
        "| `group/runs.py` | runs |",
    ]
