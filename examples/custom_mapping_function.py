"""How does an agent use one module in this episode and another in the next?

A policy mapping function gets the agent and the episode. Here one agent of each episode, which follows from the
episode's id, uses the module ``scout``, and the others use ``team``. The script prints the returns of both modules
every ten iterations (a rise from about -26 to -21 or better), and at the end how often each agent was the scout (each
about a third of the time). It takes about 25 seconds.
"""

from __future__ import annotations

import zlib
from collections import Counter

import torch

from marl_connectors import Callbacks, PPOConfig

AGENTS = ["agent_0", "agent_1", "agent_2"]


def scout_of_the_episode(agent_id, episode, **kwargs) -> str:
    """Returns the module of an agent. It is called once for each agent and episode; the episode remembers the answer.

    The answer should depend only on the episode. So the function uses no random numbers and not Python's ``hash`` of a
    string, which differs from process to process.
    """
    scout = AGENTS[zlib.crc32(episode.id_.encode()) % len(AGENTS)]
    return "scout" if agent_id == scout else "team"


class CountScouts(Callbacks):
    """Counts how often each agent was the scout."""

    counts: Counter = Counter()

    def on_episode_end(self, *, episode, **kwargs):
        """Asks the episode which module each agent used."""
        self.counts.update(agent_id for agent_id in episode.agent_ids if episode.module_for(agent_id) == "scout")


def main(iterations: int = 30) -> tuple[dict[str, float], Counter]:
    """Trains, and returns the last returns by module, and in how many episodes each agent was the scout."""
    # The networks are tiny: handing pieces of such a matrix product to several threads costs more than it saves.
    torch.set_num_threads(1)
    CountScouts.counts = Counter()
    config = (
        PPOConfig()
        .environment("mpe2.simple_spread_v3", env_config={"N": 3, "max_cycles": 25})
        # Name all modules. Otherwise they are those of the first episode, and some may have no agent in it.
        .multi_agent(policies={"scout", "team"}, policy_mapping_fn=scout_of_the_episode)
        .env_runners(num_envs_per_env_runner=8)
        .rl_module(
            model_config={"fcnet_hiddens": [64, 64]},
            # The scout has half as many rows of experience, so it may learn in larger steps.
            algorithm_config_overrides_per_module={"scout": {"lr": 1.5e-3}},
        )
        .training(
            train_batch_size_per_learner=2000,
            minibatch_size=500,
            num_epochs=8,
            lr=1e-3,
            gamma=0.95,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            vf_clip_param=float("inf"),
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .callbacks(CountScouts)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    means: dict[str, float] = {}
    for iteration in range(1, iterations + 1):
        result = algo.train()
        means = {m: stats["mean"] for m, stats in result["env_runners"]["module_episode_returns"].items()}
        if iteration % 10 == 0 or iteration == iterations:
            steps = result["num_agent_steps_sampled_lifetime"]
            print(f"{steps:>8,} agent steps, return: scout {means['scout']:.1f}, team {means['team']:.1f}")
    algo.stop()
    print("Scout of so many episodes: " + ", ".join(f"{a} {CountScouts.counts[a]}" for a in AGENTS))
    return means, CountScouts.counts


if __name__ == "__main__":
    main()
