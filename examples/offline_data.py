"""How are episodes recorded, looked at, and fed to a learner again?

Run ``python examples/offline_data.py``. It records three iterations of a run, feeds a second run from the files, and
prints that both have learned the same parameters. Then it prints what the files hold, and which samples a reader makes.
This takes some seconds.
"""

import tempfile

import torch

from marl_connectors import EpisodeReader, PPOConfig


def main(folder: str) -> None:
    config = (
        PPOConfig()
        .environment("mpe2.simple_spread_v3")
        .multi_agent(policies="independent")
        .training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=2)
        .debugging(seed=1)
    )
    with config.copy().offline_data(output=folder).build_algo() as recording:
        for _ in range(3):
            recording.train()
        expected = recording.rl_module.state_dict()

    with config.copy().offline_data(input_=folder, input_order="as_recorded").build_algo() as reading:
        for _ in range(3):
            reading.train()
        learned = reading.rl_module.state_dict()
    same = all(torch.equal(expected[name], learned[name]) for name in expected)
    print(f"The same parameters from the files: {same}")

    reader = EpisodeReader(folder, order="shuffled", seed=0)
    print(f"{reader.num_episodes} episodes and chunks with {reader.num_agent_steps} agent steps")
    for _ in range(3):
        episodes = reader.sample(500)
        steps = sum(episode.agent_steps() for episode in episodes)
        print(f"a sample: {steps} agent steps of {', '.join(episode.id_ for episode in episodes[:3])}, ...")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
