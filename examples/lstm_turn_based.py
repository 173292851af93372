"""How does a policy with a memory learn a turn-based environment?

In ``marl_envs.recall_v0``, two players see a cue each, see nothing for three steps, and then have to name their cues.
PettingZoo's ``parallel_to_aec`` makes it turn-based: each player moves in its turn, while the state of its LSTM waits.
A player gets 1 for each of two cues. The script prints the return of a player without an LSTM (about 0.7, as by random
play) and with one (2). It takes about 20 seconds.
"""

from __future__ import annotations

import torch
from pettingzoo.utils.conversions import parallel_to_aec

from marl_connectors import PPOConfig
from marl_envs import recall_v0


def train(use_lstm: bool, iterations: int) -> float:
    """Trains, and returns the return of a player without exploration."""
    config = (
        PPOConfig()
        # An AEC environment needs no settings of its own.
        .environment(lambda env_config: parallel_to_aec(recall_v0.parallel_env(delay=3)))
        .multi_agent(policies="shared")
        .env_runners(num_envs_per_env_runner=8)
        # The LSTM is trained on sequences of the turns of one player. An episode has ten of them.
        .rl_module(model_config={"fcnet_hiddens": [32], "use_lstm": use_lstm, "lstm_cell_size": 32, "max_seq_len": 10})
        .training(train_batch_size_per_learner=4000, minibatch_size=1000, num_epochs=6, lr=3e-3, use_kl_loss=False)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    result = algo.evaluate(num_episodes=100, explore=False)
    algo.stop()
    return result["env_runners"]["module_episode_returns"]["default_policy"]["mean"]


def main(iterations: int = 14) -> tuple[float, float]:
    """Trains without and with an LSTM, and returns both returns."""
    torch.set_num_threads(1)
    without, with_lstm = train(False, iterations), train(True, iterations)
    print(f"Return of a player: {without:.2f} without an LSTM, {with_lstm:.2f} with one, of 2")
    return without, with_lstm


if __name__ == "__main__":
    main()
