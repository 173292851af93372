"""DQNConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig, OffPolicyTraining
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import boolean, one_of, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.dqn.learner import DQN
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec


@section
class DQNTraining(OffPolicyTraining):
    """Sets how the modules learn."""

    lr: Schedule = 5e-4
    train_batch_size_per_learner: int = 32
    grad_clip: float | None = 40.0
    epsilon: Schedule = setting(
        schedule(min=0, max=1),
        "The probability of a random action when exploring, a number or a schedule over sampled steps.",
        default=[[0, 1.0], [10_000, 0.05]],
    )
    double_q: bool = setting(
        boolean(),
        "Whether the module chooses the next action and its target network judges it (van Hasselt et al., 2016), "
        "instead of the target network doing both.",
        default=True,
    )
    dueling: bool = setting(
        boolean(),
        "Whether the default module has heads of their own for the observation's value and the actions' advantages.",
        default=True,
        fixed=True,
    )
    td_error_loss_fn: str = setting(
        one_of("huber", "mse"), '``"huber"``, which grows linearly beyond an error of 1, or ``"mse"``.', default="huber"
    )
    target_network_update_freq: int = 500
    tau: float = 1.0
    replay_buffer_config: dict[str, Any] = {  # copied before use
        "type": "PrioritizedEpisodeReplayBuffer",
        "capacity": 50_000,
        "alpha": 0.6,
        "beta": 0.4,
    }


class DQNConfig(OffPolicyConfig, DQNTraining):
    """The settings of deep Q-learning, for agents with Discrete actions.

    With several modules, each learns from its own agents' steps alone (independent Q-learning).
    """

    _algo_class = "marl_connectors.algorithms.dqn.learner:DQN"
    training = chain(DQNTraining)

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> DQN: ...
        def build(self, env: Any = None) -> DQN: ...

    @property
    def draws_actions(self) -> bool:
        """False: the policies take the actions of the highest values."""
        return False

    def model_settings(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> dict[str, Any]:
        """Returns ``dueling``."""
        return {"dueling": self.dueling}
