"""How does a policy learn a turn-based game by playing against its own past?

The game is ``marl_envs.last_stone_v0``: two players take one to three stones in turn, and the player who takes the last
one loses. ``main`` learns. In each episode its opponent is drawn from frozen copies of earlier states of ``main``.
Whenever ``main`` wins 65 % of its games, a copy of it joins them. The script prints each new opponent, and at the end
how many games ``main`` wins against random moves (about 98 %), and whether it wins against perfect play when it begins
(the player who begins can always win). It takes about 20 seconds.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np
import torch

from marl_connectors import ActionMasking, Callbacks, PPOConfig, RLModuleSpec, load_policy
from marl_connectors.seeding import stream
from marl_envs import last_stone_v0


@dataclass(frozen=True)
class AgainstPastSelves:
    """Maps one player of each episode to main, and the other to one of the opponents.

    Its draws follow from the episode's id, so that a run can be repeated and resumed. It is a dataclass because a
    checkpoint can store one (if it is in a module that can be imported, which a script is not).
    """

    opponents: tuple[str, ...]

    def __call__(self, agent_id, episode, **kwargs) -> str:
        """Returns a module id, once for each agent and episode."""
        draw = stream(0, "match", episode.id_)
        if agent_id == f"player_{draw.integers(2)}":
            return "main"
        return self.opponents[draw.integers(len(self.opponents))]


class SelfPlay(Callbacks):
    """Adds a copy of main to its opponents whenever it beats them."""

    def on_train_result(self, *, algorithm, result, **kwargs):
        """Adds a copy after an iteration in which main has won often enough. The return of a game is 1 or -1."""
        won = (result["env_runners"]["module_episode_returns"]["main"]["mean"] + 1) / 2
        if won < 0.65:
            return
        opponents = tuple(module_id for module_id in algorithm.rl_module if module_id != "main")
        new, main = f"main_v{len(opponents)}", algorithm.get_module("main")
        algorithm.add_module(
            new,
            RLModuleSpec.from_module(main),
            module_state=main.get_state(),
            new_agent_to_module_mapping_fn=AgainstPastSelves((*opponents, new)),
        )
        print(f"iteration {result['training_iteration']:>3}: main wins {won:.0%}, and {new} joins its opponents")


def wins(policy, choose_for_opponent, games: int, player: str | None = None) -> float:
    """Returns the share of games that the policy wins as one of the players (as each in turn if None), from 0 to 1."""
    env, won = last_stone_v0.raw_env(random_start=player is None), 0
    for game in range(games):
        env.reset(seed=game)
        policy.reset()
        ours = player or f"player_{game % 2}"
        while env.agents:
            agent_id = env.agent_selection
            observation, reward, is_over, _, _ = env.last()
            if is_over:
                won += agent_id == ours and reward > 0
                env.step(None)
            else:
                env.step(policy(observation, agent_id) if agent_id == ours else choose_for_opponent(env))
    return won / games


def main(iterations: int = 40, games: int = 200) -> tuple[float, float, int]:
    """Trains, and returns both shares of games won, and the number of opponents."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    config = (
        PPOConfig()
        .environment(last_stone_v0.env)
        .multi_agent(
            policies={"main", "main_v0"},
            policy_mapping_fn=AgainstPastSelves(("main_v0",)),
            policies_to_train=["main"],
        )
        .env_runners(num_envs_per_env_runner=16, env_to_module_connector=lambda env: ActionMasking())
        .rl_module(model_config={"fcnet_hiddens": [64]})
        .training(
            train_batch_size_per_learner=2000,
            minibatch_size=250,
            num_epochs=6,
            lr=3e-3,
            entropy_coeff=0.01,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
        )
        .reporting(metrics_num_episodes_for_smoothing=300)
        .callbacks(SelfPlay)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(algo.save_to_path(f"{folder}/checkpoint"), "main", config=config)
    algo.stop()

    rng = np.random.default_rng(0)
    against_random = wins(policy, lambda env: rng.integers(min(env.max_take, env.stones_left)), games)
    against_perfect = wins(policy, lambda env: env.best_moves()[0], 1, player="player_0")
    print(f"Wins against random moves: {against_random:.0%}")
    print(f"Wins against perfect play when it begins: {against_perfect:.0%}")
    return against_random, against_perfect, len(algo.rl_module) - 1


if __name__ == "__main__":
    main()
