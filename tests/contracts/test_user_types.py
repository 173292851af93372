"""What an editor knows of a user's script."""

import json
import shutil
import subprocess

import pytest

SCRIPT = """
from marl_connectors import BCConfig, ConnectorV2, DQNConfig, MAPPOConfig, PPOConfig, SACConfig

algo = PPOConfig().environment("CartPole-v1").build_algo()
reveal_type(algo)
reveal_type(algo.config.clip_param)
reveal_type(BCConfig().build())
reveal_type(DQNConfig().build_algo())
reveal_type(MAPPOConfig().build_algo())
reveal_type(SACConfig().build().learner)
result = algo.train()
reveal_type(result)
reveal_type(result["training_iteration"])
reveal_type(result["env_runners"]["episode_return_mean"])
reveal_type(result["evaluation"]["env_runners"])
reveal_type(algo.fit(num_iterations=1)[-1]["time_total_s"])


class Piece(ConnectorV2):
    def columns(self, c, xp):
        reveal_type(c)
        reveal_type(c.rows.get("rewards", -1, fill=0.0))
        c.rows.get("rewards", "last")
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_an_editor_knows_the_algorithm_its_results_and_the_arguments_of_a_piece(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(["pyright", "--outputjson", "script.py"], cwd=tmp_path, capture_output=True, text=True)
    found = [(d["range"]["start"]["line"] + 1, d["message"]) for d in json.loads(done.stdout)["generalDiagnostics"]]
    types = [text.split(" is ")[1].strip('"') for _, text in found if text.startswith("Type of")]
    assert types == [
        "PPO",
        "float",
        "BC",
        "DQN",
        "MAPPO",
        "SACLearner",
        "TrainResults",
        "int",
        "Any",
        "Any",
        "float",
        "ColumnGroup",
        "Any",
    ]
    assert [line for line, text in found if not text.startswith("Type of")] == [23]
