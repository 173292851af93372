"""How does a trained policy act on a machine that has neither torch nor marl-connectors?

The script trains agents with a recurrent policy and a filter for their observations, exports the policy, and starts a
second Python process in which torch and marl-connectors cannot be imported. That process plays an episode with the
onnx_policy.py of the export, numpy and onnxruntime, and prints the return of each agent. The script then plays the same
episode with load_policy, and prints the same returns again. It takes about 30 seconds.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

from marl_connectors import MeanStdFilter, PPOConfig, load_policy


def play(policy):
    """Plays an episode, and returns the return of each agent. It works with either kind of policy."""
    from marl_envs import spread_v0

    env = spread_v0.parallel_env()
    observations, infos = env.reset(seed=1)
    policy.reset()
    returns = dict.fromkeys(env.agents, 0.0)
    while env.agents:
        actions = policy.actions(observations, infos=infos, agent_ids=env.agents)
        observations, rewards, _, _, infos = env.step(actions)
        for agent, reward in rewards.items():
            returns[agent] += reward
    return {agent: round(total, 3) for agent, total in returns.items()}


ROBOT = f"""
import sys

sys.modules.update(torch=None, marl_connectors=None)  # importing one of them would raise an error

from onnx_policy import OnnxPolicy

{inspect.getsource(play)}
print("without torch:", play(OnnxPolicy(".")))
"""


def filters(*arguments):
    return MeanStdFilter()


def main() -> None:
    config = (
        PPOConfig()
        .environment("marl_envs.spread_v0")
        .multi_agent(policies="shared")
        .env_runners(env_to_module_connector=filters)
        .rl_module(model_config={"use_lstm": True, "lstm_cell_size": 32, "fcnet_hiddens": [32]})
        .training(train_batch_size_per_learner=600, num_epochs=2)
    )
    algo = config.build_algo()
    for _ in range(2):
        algo.train()
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(algo.save_to_path(Path(folder, "checkpoint")), config=config)
        export = policy.export_onnx(Path(folder, "export"))
        Path(export, "robot.py").write_text(ROBOT)
        print(
            subprocess.run([sys.executable, "robot.py"], cwd=export, check=True, text=True, capture_output=True).stdout
        )
    algo.stop()
    print("with load_policy:", play(policy))


if __name__ == "__main__":
    main()
