"""The cases of ``pipelines.py``: the numbers of environments, agents and modules, and the pieces."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces


class Setup(NamedTuple):
    """The size of a run.

    Attributes:
        envs: The number of sub-environments.
        agents: The number of agents of each sub-environment.
        steps: The number of steps of an episode. A sample has one episode of each sub-environment.
        modules: The number of modules to which the agents are mapped.
    """

    envs: int
    agents: int
    steps: int
    modules: int

    @property
    def name(self) -> str:
        """The name in the table, such as ``8 x 8, 1 module``."""
        return f"{self.envs} x {self.agents}, {self.modules} module{'s' * (self.modules > 1)}"

    def module_of(self, agent_id: str) -> str:
        """Returns the module of an agent."""
        return f"module_{int(agent_id.split('_')[1]) % self.modules}"

    @property
    def module_ids(self) -> list[str]:
        """The ids of all modules."""
        return [f"module_{i}" for i in range(self.modules)]


class Case(NamedTuple):
    """The pieces of the pipelines in addition to the default pieces.

    Attributes:
        name: The name in the table.
        env_to_module: Names of pieces and their arguments.
        learner: Names of pieces and their arguments, for the learner pipeline.
        stateful: Whether the modules are LSTMs instead of the default modules.
    """

    name: str
    env_to_module: dict[str, dict[str, Any]] = {}
    learner: dict[str, dict[str, Any]] = {}
    stateful: bool = False


SETUPS = [Setup(8, 8, 100, 1), Setup(8, 8, 100, 8), Setup(32, 32, 25, 1), Setup(32, 32, 25, 8)]
CASES = [
    Case("default pieces"),
    Case("MeanStdFilter", {"MeanStdFilter": {"multi_agent": True}}),
    Case(
        "FrameStacking(4)",
        {"FrameStackingEnvToModule": {"num_frames": 4, "multi_agent": True}},
        {"FrameStackingLearner": {"num_frames": 4, "multi_agent": True}},
    ),
    Case("FlattenObservations", {"FlattenObservations": {"multi_agent": True}}),
    Case(
        "PrevActionsPrevRewards",
        {"PrevActionsPrevRewards": {"multi_agent": True}, "FlattenObservations": {"multi_agent": True}},
    ),
    Case("item piece, to episodes", {"AppendReward": {}}),
    Case("item piece, to batch", {"HalveObservations": {}}),
    Case("item piece, learner", {}, {"AddRunningReturn": {}}),
    Case("LSTM, sequences of 20", stateful=True),
]


def item_pieces(base: type) -> dict[str, type]:
    """Returns a user's pieces, which are the same for both sides."""

    class AppendReward(base):
        """Appends the last reward to the observation in the episodes."""

        def recompute_output_observation_space(self, input_observation_space, input_action_space):
            return spaces.Dict(
                {
                    agent_id: spaces.Box(-np.inf, np.inf, (space.shape[0] + 1,), np.float32)
                    for agent_id, space in input_observation_space.items()
                }
            )

        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                reward = episode.get_rewards(-1, fill=0.0)
                observation = np.append(episode.get_observations(-1), np.float32(reward))
                episode.set_observations(new_data=observation, at_indices=-1)
            return batch

    class HalveObservations(base):
        """Writes halved observations to the batch."""

        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes):
                self.add_batch_item(batch, "obs", episode.get_observations(-1) * np.float32(0.5), episode)
            return batch

    class AddRunningReturn(base):
        """Adds a column to the train batch."""

        def __call__(self, *, batch, episodes, **kwargs):
            for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
                returns = np.cumsum(episode.get_rewards()).astype(np.float32)
                self.add_n_batch_items(batch, "running_return", list(returns), len(episode), episode)
            return batch

    return {cls.__name__: cls for cls in (AppendReward, HalveObservations, AddRunningReturn)}


def lstm_module(*bases: type) -> type:
    """Returns a stateful module class, which is the same for both sides."""
    import torch

    class Lstm(*bases):
        """An LSTM with a policy and a value head."""

        def setup(self):
            self.lstm = torch.nn.LSTM(self.observation_space.shape[0], 64, batch_first=True)
            self.pi, self.vf = torch.nn.Linear(64, int(self.action_space.n)), torch.nn.Linear(64, 1)

        def get_initial_state(self):
            return {"h": np.zeros(64, np.float32), "c": np.zeros(64, np.float32)}

        def _features(self, batch):
            state = batch["state_in"]
            features, (h, c) = self.lstm(batch["obs"], (state["h"].unsqueeze(0), state["c"].unsqueeze(0)))
            return features, {"h": h.squeeze(0), "c": c.squeeze(0)}

        def _forward(self, batch, **kwargs):
            features, state = self._features(batch)
            return {"action_dist_inputs": self.pi(features), "state_out": state}

        def compute_values(self, batch, embeddings=None):
            return self.vf(self._features(batch)[0]).squeeze(-1)

    return Lstm
