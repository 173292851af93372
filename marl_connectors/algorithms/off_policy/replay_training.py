"""ReplayTraining: a replay buffer, the learner that learns from it, and the updates that are due."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from marl_connectors.algorithms.action_mask_setting import Masking
from marl_connectors.algorithms.build import agents_by_module
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig
from marl_connectors.algorithms.off_policy.learner import OffPolicyLearner
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.frame_stacking import FrameStacking
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.replay_buffers.replay_buffer import (
    EpisodeReplayBuffer,
    PrioritizedEpisodeReplayBuffer,
    ReplayBuffer,
    ReplayBufferState,
)
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.rl_module.multi_rl_module_part import MultiRLModulePart
from marl_connectors.rl_module.states import max_seq_len
from marl_connectors.seeding import derived_seed
from marl_connectors.state import State, read_state
from marl_connectors.transfers import all_on_host
from marl_connectors.typing import ModuleID

_RLLIB_NAMES = {
    "MultiAgentEpisodeReplayBuffer": "EpisodeReplayBuffer",
    "MultiAgentPrioritizedEpisodeReplayBuffer": "PrioritizedEpisodeReplayBuffer",
}
"""RLlib's names of buffers for several agents. Here the same class keeps the steps of one agent or several."""


def check_no_frame_stacking(pieces: Iterable[ConnectorV2], name: str) -> None:
    """Checks that no piece stacks frames in batches, since a replay buffer draws steps without the frames before them.

    Args:
        pieces: The pieces of a pipeline.
        name: The algorithm, for the message.

    Raises:
        ConfigError: If a piece does.
    """
    for piece in pieces:
        if isinstance(piece, ConnectorPipelineV2):
            check_no_frame_stacking(piece, name)
        elif isinstance(piece, FrameStacking):
            raise ConfigError(
                f"{name}: FrameStacking does not work with a replay buffer, whose steps are drawn without the frames "
                f"before them. Let the environment stack them: .environment(wrappers="
                f"['frame_stack_v1:{piece.num_frames}']), and leave FrameStacking out of both pipelines."
            )


class UpdateResults:
    """The results of several updates, which become those of an iteration."""

    def __init__(self) -> None:
        self._values: dict[ModuleID, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, results: Mapping[ModuleID, Mapping[str, float]]) -> None:
        """Adds the results of an update."""
        for module_id, own in results.items():
            for name, value in own.items():
                self._values[module_id][name].append(value)

    def combined(self) -> dict[ModuleID, dict[str, float]]:
        """Returns the results of all updates together: the sums of counts, and the means of everything else."""
        return {m: {name: _combined(name, values) for name, values in own.items()} for m, own in self._values.items()}


def _combined(name: str, values: list[float]) -> float:
    return sum(values) if name.startswith("num_") else float(np.mean(values))


class ReplayTrainingState(State):
    """The state of a ReplayTraining.

    Attributes:
        replay_buffer: That of the buffer.
        updates_due: The number of updates that are due.
    """

    replay_buffer: ReplayBufferState
    updates_due: Annotated[float, Meta(ge=0, lt=2**62)]


class ReplayTraining:
    """Keeps what was sampled, and makes the updates that are due, with batches from a replay buffer.

    Attributes:
        config: The settings.
        learner: Updates the modules.
        setup: The environment.
        masking: The action masks that are applied.
        seed: The run's seed.
        buffer: The steps of the learner's modules.
        updates_due: The number of updates that are due. A fraction stays for the next sample.
        buffer_classes: The classes of replay buffers that the algorithm can learn from.
        can_be_mixed: Whether the buffer can keep the steps of some modules only, for runs with several algorithms.
    """

    can_be_mixed: ClassVar[bool] = True

    buffer_classes: ClassVar[Sequence[type[ReplayBuffer]]] = (
        EpisodeReplayBuffer,
        PrioritizedEpisodeReplayBuffer,
    )

    def __init__(
        self, config: OffPolicyConfig, learner: OffPolicyLearner, *, setup: EnvSpec, masking: Masking, seed: int
    ):
        """Makes an empty buffer.

        Args:
            config: As above.
            learner: As above.
            setup: As above.
            masking: As above.
            seed: As above.

        Raises:
            ConfigError: If ``replay_buffer_config`` is wrong, or a learner piece stacks frames.
        """
        self.config = config
        self.learner = learner
        self.setup = setup
        self.masking = masking
        self.seed = seed
        check_no_frame_stacking(learner.pipeline, type(config).__name__)
        self.buffer = self._make_buffer()
        stateful = [module_id for module_id, module in learner.module.items() if module.is_stateful()]
        for module_id in stateful:
            self.sequence_len(module_id)
        if config.live_fraction and stateful:
            raise ConfigError(
                f"{type(config).__name__}: live_fraction={config.live_fraction:g}, but module {stateful[0]!r} has a "
                f"memory, and a replay buffer keeps the states of sampled steps, which recorded steps do not have. "
                f"Learn from recorded episodes alone (live_fraction=0), or from sampled ones alone (input_=None)."
            )
        if stateful and not isinstance(config.n_step, int):
            raise ConfigError(
                f"{type(config).__name__}: n_step={config.n_step} is a range, but module {stateful[0]!r} has a memory, "
                f"and the targets within its sequences have one number of rewards. Set n_step to that number."
            )
        if config.burn_in_len and not stateful:
            raise ConfigError(
                f"burn_in_len={config.burn_in_len} has no effect, because no module has a memory. Leave it out, or "
                f'give the modules one: DQN, VDN and QMIX accept model_config={{"use_gru": True}}.'
            )
        self.updates_due = 0.0

    def _make_buffer(self) -> ReplayBuffer:
        known = {cls.__name__: cls for cls in self.buffer_classes}
        default, settings = type(self.config).replay_buffer_config, dict(self.config.replay_buffer_config)
        if "type" in settings:
            settings["type"] = _RLLIB_NAMES.get(settings["type"], settings["type"])
        if settings.get("type", default["type"]) == default["type"]:
            settings = {**default, **settings}
        name = settings.pop("type")
        if name not in known:
            raise ConfigError(f"replay_buffer_config: there is no type {name!r}. {did_you_mean(str(name), known)}")
        own = self.buffer_arguments()
        accepted = ["type", *(argument for argument in known[name].settings() if argument not in own)]
        for setting in settings:
            if setting not in accepted:
                raise ConfigError(
                    f"replay_buffer_config: {name} has no setting {setting!r}. {did_you_mean(setting, accepted)}"
                )
        return known[name](**own, **settings)

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``."""
        extra = [Columns.ACTION_MASK] if self.masking.sentence else []
        if self.learner.module.is_stateful():
            extra.append(Columns.STATE_OUT)
        return {"seed": derived_seed(self.seed, "replay buffer"), "extra_columns": extra}

    def learn(
        self, episodes: Sequence[Any], new_env_steps: int, *, timesteps: dict[str, int], results: UpdateResults
    ) -> None:
        """Adds a sample to the buffer, and makes the updates that are due.

        Args:
            episodes: The sampled episodes, or chunks of them.
            new_env_steps: The number of env steps in them.
            timesteps: As for ``Learner.update``.
            results: Gets the results of the updates.
        """
        modules = self.learner.module
        if isinstance(modules, MultiRLModulePart):
            self.buffer.add(episodes, is_wanted=modules.belongs)
        else:
            self.buffer.add(episodes)
        num_sampled = timesteps[f"num_{self.config.count_steps_by}_sampled_lifetime"]
        if num_sampled < self.config.num_steps_sampled_before_learning_starts:
            return
        self.updates_due += self._updates_per(new_env_steps)
        while self.updates_due >= 1:
            self.updates_due -= 1
            results.add(self._update_once(timesteps))

    def _updates_per(self, env_steps: int) -> float:
        intensity = self.config.training_intensity
        return 1.0 if intensity is None else intensity * env_steps / self.config.train_batch_size_per_learner

    def _update_once(self, timesteps: dict[str, int]) -> Mapping[ModuleID, Mapping[str, float]]:
        """Draws a train batch for each module that is trained, and updates the modules."""
        known = [m for m in self.buffer.module_ids if m in self.learner.module]  # others were removed
        module_ids = [m for m in known if self.learner.should_module_be_updated(m)]
        if not module_ids:
            return {}
        sample = self.draw(module_ids)
        results = self.learner.update(episodes=sample, timesteps=timesteps)
        if self.buffer.has_priorities:
            errors = self.learner.td_errors
            on_host = {m: own.numpy() for m, own in zip(errors, all_on_host([*errors.values()]), strict=True)}
            self.buffer.update_priorities(on_host, sample=sample)
        return results

    def draw(self, module_ids: Sequence[ModuleID]) -> ReplaySample:
        """Draws a train batch for some modules."""
        size, burn_in = self.config.train_batch_size_per_learner, self.config.burn_in_len
        lengths = {m: self.sequence_len(m) for m in module_ids if self.learner.module[m].is_stateful()}
        numbers = {m: math.ceil(size / (lengths[m] - burn_in)) if m in lengths else size for m in module_ids}
        return self.buffer.sample(
            numbers, n_step=self.config.n_step, sequence_lens=lengths, burn_in_len=burn_in, module_ids=module_ids
        )

    def sequence_len(self, module_id: ModuleID) -> int:
        """Returns the length of a stateful module's sequences.

        Raises:
            ConfigError: If all of it is burn-in.
        """
        length = max_seq_len(self.learner.module[module_id], module_id)
        if length <= self.config.burn_in_len:
            raise ConfigError(
                f"burn_in_len={self.config.burn_in_len}, but the sequences of module {module_id!r} have only "
                f"{length} steps, so there is nothing to learn from. Set .rl_module(model_config={{"
                f'"max_seq_len": {self.config.burn_in_len + 20}}}), or a smaller burn_in_len.'
            )
        return length

    def now(self) -> Callable[[], None]:
        """Returns a function that brings the buffer and the updates that are due back to where they are now."""
        updates_due, of_buffer = self.updates_due, self.buffer.now()

        def go_back() -> None:
            self.updates_due = updates_due
            of_buffer()

        return go_back

    def get_state(self) -> ReplayTrainingState:
        """Returns the buffer's state and the updates that are due."""
        return ReplayTrainingState(replay_buffer=self.buffer.get_state(), updates_due=self.updates_due)

    def set_state(self, state: ReplayTrainingState | Mapping[str, Any] | None) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            CheckpointError: If it is none, or of a buffer of another kind.
        """
        state = read_state(ReplayTrainingState, state)
        self.buffer.set_state(state.replay_buffer)
        self.updates_due = state.updates_due


class TeamReplayTraining(ReplayTraining):
    """Keeps the steps of all agents together, and draws env steps. A subclass names the classes of buffers."""

    can_be_mixed = False

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``."""
        return {**super().buffer_arguments(), "agents": agents_by_module(self.config, self.setup)}

    def draw(self, module_ids: Sequence[ModuleID]) -> ReplaySample:
        """Draws env steps of some modules' agents; sequences of them if a module is stateful."""
        config, size, modules = self.config, self.config.train_batch_size_per_learner, self.learner.module
        lengths = [self.sequence_len(m) - config.burn_in_len for m in module_ids if modules[m].is_stateful()]
        buffer: Any = self.buffer
        if not lengths:
            return buffer.sample(size, n_step=config.n_step, module_ids=module_ids)
        return buffer.sample(
            math.ceil(size / min(lengths)),
            batch_length_T=min(lengths),
            n_step=config.n_step,
            burn_in_len=config.burn_in_len,
            lookback=1,
            module_ids=module_ids,
        )
