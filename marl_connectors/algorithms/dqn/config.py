"""DQNConfig."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig, TrainingSettings
from marl_connectors.algorithms.config.sections import UNSET, section, section_of
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import Switch, dict_of, integer, number, one_of, optional, text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class DQNTrainingSettings(TrainingSettings, total=False):
    """The settings that DQN's ``training`` accepts in addition to those of every algorithm.

    Attributes:
        epsilon: The probability of a random action when exploring, a number or a schedule over sampled env steps.
        double_q: Whether the module chooses the next action and its target network judges it (van Hasselt et al.,
            2016), instead of the target network doing both.
        dueling: Whether the default module has heads of their own for the observation's value and the actions'
            advantages.
        n_step: The number of rewards in a step's target.
        td_error_loss_fn: ``"huber"``, which grows linearly beyond an error of 1, or ``"mse"``.
        target_network_update_freq: The number of sampled env steps between updates of the target networks.
        tau: How far the target networks move towards the modules then: 1 to copy them.
        num_steps_sampled_before_learning_starts: The number of env steps that are sampled before the first update.
        training_intensity: The number of steps that are trained on for each step that is sampled; None for one update
            after each sample.
        replay_buffer_config: ``type``, ``"EpisodeReplayBuffer"`` or ``"PrioritizedEpisodeReplayBuffer"``, and the
            arguments of that class, such as ``capacity``.
    """

    epsilon: Schedule
    double_q: bool
    dueling: bool
    n_step: int
    td_error_loss_fn: str
    target_network_update_freq: int
    tau: float
    num_steps_sampled_before_learning_starts: int
    training_intensity: float | None
    replay_buffer_config: dict[str, Any]


class DQNConfig(AlgorithmConfig):
    """The settings of deep Q-learning, for agents with Discrete actions.

    With several modules, each learns from its own agents' steps alone (independent Q-learning).
    """

    lr = 5e-4
    train_batch_size_per_learner = 32
    grad_clip = 40.0
    epsilon: Annotated[Schedule, schedule(min=0)] = [[0, 1.0], [10_000, 0.05]]  # copied before use
    double_q: Switch = True
    dueling: Switch = True
    n_step: Annotated[int, integer(min=1)] = 1
    td_error_loss_fn: Annotated[str, one_of("huber", "mse")] = "huber"
    target_network_update_freq: Annotated[int, integer(min=1)] = 500
    tau: Annotated[float, number(min=0, max=1)] = 1.0
    num_steps_sampled_before_learning_starts: Annotated[int, integer(min=0)] = 1000
    training_intensity: Annotated[float | None, optional(number(above=0))] = None
    replay_buffer_config: Annotated[dict[str, Any], dict_of(text())] = {  # copied before use
        "type": "PrioritizedEpisodeReplayBuffer",
        "capacity": 50_000,
        "alpha": 0.6,
        "beta": 0.4,
    }
    min_sample_timesteps_per_iteration: Annotated[int, integer(min=1)] = 1000

    _algo_class = "marl_connectors.algorithms.dqn.dqn:DQN"

    @section_of(DQNTrainingSettings)
    def training(self, **settings: Unpack[DQNTrainingSettings]) -> None:
        """Sets how the modules learn. ``TrainingSettings`` and ``DQNTrainingSettings`` list the settings."""

    @section
    def reporting(
        self, *, metrics_num_episodes_for_smoothing: int = UNSET, min_sample_timesteps_per_iteration: int = UNSET
    ) -> None:
        """Sets the number of newest episodes over which returns are averaged, and the env steps of an iteration."""

    def build_algo(self) -> Algorithm:
        """Builds the algorithm with these settings, ready to ``train()``."""
        return super().build_algo()

    def get_default_rl_module_class(self) -> Any:
        """Returns DefaultDQNRLModule."""
        from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule

        return DefaultDQNRLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns DQNLearner."""
        from marl_connectors.algorithms.dqn.learner import DQNLearner

        return DQNLearner

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Adds ``dueling`` to the settings of the default module."""
        from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule, DQNModelConfig

        cls: type = spec.module_class or DefaultDQNRLModule
        given: Any = spec.model_config
        if not issubclass(cls, DefaultDQNRLModule):
            return spec
        if given is None or isinstance(given, Mapping):
            return dataclasses.replace(spec, model_config={"dueling": self.dueling, **(given or {})})
        settings = dataclasses.asdict(given)
        return dataclasses.replace(spec, model_config=DQNModelConfig(**{**settings, "dueling": self.dueling}))

    def validate(self) -> None:
        """Checks in addition that one learner in this process updates all modules."""
        super().validate()
        if self.input_ is not None:
            raise ConfigError(
                f"{type(self).__name__}: input_ is for algorithms that learn from recorded episodes alone, but DQN "
                f"plays. Add recorded episodes to its buffer instead: algo.replay_buffer.add(EpisodeReader(PATH))."
            )
        if self.num_learners:
            raise ConfigError(
                f"{type(self).__name__}: num_learners={self.num_learners}, but a replay buffer is in the algorithm's "
                f"process, and so must be its learner. Set num_learners=0."
            )
