"""How do several policies train in a league, and how strong is each of them in the end?

The game is ``marl_envs.last_stone_v0`` with 20 stones. Two modules learn: ``main`` plays against all others, and
``exploiter`` only against ``main``, to find its weaknesses. Every six iterations a frozen copy of each joins the
league. The script prints how often each module wins against each other, and Elo ratings from that: later copies are
stronger than earlier ones, and the last are hundreds of points above the first. It takes about 20 seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from marl_connectors import ActionMasking, Callbacks, PPOConfig, RLModuleSpec
from marl_connectors.seeding import stream
from marl_envs import last_stone_v0

LEARNERS = ("main", "exploiter")


@dataclass(frozen=True)
class League:
    """Maps the players of each episode: main plays against any other module, or the exploiter plays against main."""

    copies: tuple[str, ...]

    def __call__(self, agent_id, episode, **kwargs) -> str:
        """Returns a module id, once for each agent and episode. Its draws follow from the episode's id."""
        draw = stream(0, "match", episode.id_)
        if draw.random() < 0.5:
            pair = ["exploiter", "main"]
        else:
            others = ("exploiter", *self.copies)
            pair = ["main", others[draw.integers(len(others))]]
        draw.shuffle(pair)
        return pair[int(agent_id[-1])]


class GrowLeague(Callbacks):
    """Adds frozen copies of the learners to the league."""

    every = 6

    def on_train_result(self, *, algorithm, result, **kwargs):
        """Adds copies after some of the iterations."""
        if result["training_iteration"] % self.every:
            return
        copies = [module_id for module_id in algorithm.rl_module if module_id not in LEARNERS]
        for learner in LEARNERS:
            module = algorithm.get_module(learner)
            copies.append(f"{learner}_{result['training_iteration']}")
            algorithm.add_module(copies[-1], RLModuleSpec.from_module(module), module_state=module.get_state())
        algorithm.set_policy_mapping_fn(League(tuple(copies)))


def cross_play(algo, module_ids: list[str], games: int) -> np.ndarray:
    """Returns ``[n, n]``: how often each module wins against each other, from 0 to 1, with 0.5 on the diagonal."""
    wins = np.full((len(module_ids), len(module_ids)), 0.5)
    for i, one in enumerate(module_ids):
        for j, other in enumerate(module_ids[:i]):
            result = algo.evaluate(
                num_episodes=games, explore=True, seed=0, policy_mapping_fn=f"player_0={one},player_1={other}"
            )
            wins[i, j] = (result["env_runners"]["module_episode_returns"][one]["mean"] + 1) / 2
            wins[j, i] = 1 - wins[i, j]
    return wins


def elo(wins: np.ndarray, games: int, steps: int = 2000) -> np.ndarray:
    """Returns ``[n]`` ratings with mean 0 under which the wins are most likely; half a game is added to each side."""
    share = (wins * games + 0.5) / (games + 1)
    ratings = np.zeros(len(wins))
    for _ in range(steps):
        expected = 1 / (1 + 10 ** ((ratings[None, :] - ratings[:, None]) / 400))
        ratings += 50 * (share - expected).mean(axis=1)
    return ratings - ratings.mean()


def main(iterations: int = 24, games: int = 64) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Trains the league, and returns its modules, how often each wins against each other, and their ratings."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment(last_stone_v0.env, env_config={"stones": 20})
        .multi_agent(policies=LEARNERS, policy_mapping_fn=League(()), policies_to_train=LEARNERS)
        .env_runners(num_envs_per_env_runner=16, env_to_module_connector=lambda env: ActionMasking())
        .rl_module(model_config={"fcnet_hiddens": [64]})
        .training(
            train_batch_size_per_learner=2000,
            minibatch_size=250,
            num_epochs=6,
            lr=1e-3,
            entropy_coeff=0.01,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
        )
        .callbacks(GrowLeague)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    for learner in LEARNERS:  # copies of the untrained learners
        module = algo.get_module(learner)
        algo.add_module(f"{learner}_0", RLModuleSpec.from_module(module), module_state=module.get_state())
    algo.set_policy_mapping_fn(League(("main_0", "exploiter_0")))
    for _ in range(iterations):
        algo.train()
    module_ids = [module_id for module_id in algo.rl_module if module_id not in LEARNERS]
    wins = cross_play(algo, module_ids, games)
    algo.stop()

    ratings = elo(wins, games)
    width = max(map(len, module_ids))
    print(" " * width, "   Elo   wins against", *(f"{i:>4}" for i in range(len(module_ids))))
    for i, module_id in enumerate(module_ids):
        shares = (f"{share:>4.0%}" for share in wins[i])
        print(f"{module_id:<{width}} {ratings[i]:>6.0f}   {'':>9}{i:>3}", *shares)
    return module_ids, wins, ratings


if __name__ == "__main__":
    main()
