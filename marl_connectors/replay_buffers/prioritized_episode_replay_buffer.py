"""PrioritizedEpisodeReplayBuffer: draws those steps more often from which a module can learn more."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.replay_buffers.row_ring import ACTED, Priorities, RowRing, RowRingState
from marl_connectors.replay_buffers.sum_tree import SumTree
from marl_connectors.typing import ModuleID
from marl_connectors.validators import number

_LEAST = 1e-6
"""Added to every priority, so that each step has a chance to be drawn again."""


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """A replay buffer with proportional priorities (Schaul et al., 2016: Prioritized Experience Replay).

    The probability of a step is proportional to ``priority ** alpha``. A new step has the greatest priority that any
    step of its module ever had; ``update_priorities`` sets it to the size of the step's error.

    Attributes:
        alpha: 0 for equal probabilities, 1 for probabilities in proportion to the priorities.
        beta: How much the column ``weights`` corrects for unequal probabilities: 0 for not at all, 1 for fully.
    """

    def __init__(
        self,
        capacity: int = 100_000,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        extra_columns: Sequence[str] = (),
        seed: int = 0,
        spill_folder: str | os.PathLike[str] | None = None,
    ):
        """Creates an empty buffer. The arguments are the attributes.

        Raises:
            ConfigError: If one of them is no such number.
        """
        super().__init__(capacity, extra_columns=extra_columns, seed=seed, spill_folder=spill_folder)
        self.alpha = number(min=0).check(alpha, type(self).__name__, "alpha")
        self.beta = number(min=0).check(beta, type(self).__name__, "beta")

    def _new_ring(self, module_id: ModuleID) -> RowRing:
        return PrioritizedRowRing(module_id, self.capacity, self.extra_columns, spill_folder=self.spill_folder)

    def _draw(self, ring: RowRing, number: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None]:
        assert isinstance(ring, PrioritizedRowRing)
        positions = ring.draw(number, generator)
        return positions, importance(ring, positions, self.beta)

    def update_priorities(self, sample: ReplaySample, errors: Mapping[ModuleID, np.ndarray]) -> None:
        """Sets the priorities of steps that were drawn. Nothing may have been added since.

        Args:
            sample: What ``sample`` returned.
            errors: For each module, ``[N]`` errors of its items, whose size is the new priority. The priority of a
                sequence is that of its first step.

        Raises:
            EpisodeError: If there is not one finite error for each item.
        """
        for module_id, own in errors.items():
            positions = sample.segments[module_id].positions
            sizes = checked_sizes(self, module_id, own, len(positions))
            ring = self._ring(module_id)
            assert isinstance(ring, PrioritizedRowRing)
            ring.set_priorities(positions, priorities(sizes, self.alpha))


class PrioritizedRowRing(RowRing):
    """A ring whose steps are drawn with probabilities in proportion to their weights.

    Attributes:
        tree: The weight of each row; 0 where there is no step.
        greatest: The greatest weight so far, which new steps get.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.tree = SumTree(1)
        self.greatest = 1.0

    @property
    def nbytes(self) -> int:
        """The size of all arrays, in bytes."""
        return super().nbytes + self.tree.nbytes

    def set_priorities(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights of some steps; of a step that comes twice, the last one."""
        self._reweights(positions)
        self.tree.set(positions, weights)
        self.greatest = max(self.greatest, float(weights.max(initial=0.0)))

    def _reweights(self, positions: np.ndarray) -> None:
        """Keeps weights that are about to change."""
        if self._overwritten is not None:
            self._overwritten.append((self.tree.set, positions, self.tree.weights[positions]))

    def _after_write(self, positions: np.ndarray) -> None:
        self._reweights(positions)
        self.tree.set(positions, np.where(self.flags[positions] & ACTED, self.greatest, 0.0))

    def _after_move(self, moved: Callable[[np.ndarray], np.ndarray]) -> None:
        self._set_weights(moved(self.tree.weights))

    def _set_weights(self, weights: np.ndarray) -> None:
        self.tree = SumTree(len(weights))
        self.tree.set(np.arange(len(weights)), weights)

    def _draw_positions(self, number: int, generator: np.random.Generator) -> np.ndarray:
        return self.tree.draw(generator.random(number) * self.tree.total)

    def get_state(self) -> RowRingState:
        """Returns everything that the ring holds."""
        state = super().get_state()
        state.priorities = Priorities(self.tree.weights[: self.num_used].copy(), self.greatest)
        return state

    def set_state(self, state: RowRingState) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            CheckpointError: If it is one of a ring without priorities, or an action is not in its space.
        """
        super().set_state(state)
        if state.priorities is None:
            raise CheckpointError(
                "checkpoint: its replay buffer has no priorities. Use a replay buffer of the same type in "
                "replay_buffer_config."
            )
        self._set_weights(self.with_room(state.priorities.weights))
        self.greatest = state.priorities.greatest


def checked_sizes(buffer: EpisodeReplayBuffer, module_id: ModuleID, errors: Any, length: int) -> np.ndarray:
    """Returns ``[length]`` float64, the sizes of errors.

    Raises:
        EpisodeError: If there are not as many, or if one is not finite.
    """
    sizes = np.abs(np.asarray(errors, np.float64))
    if sizes.shape != (length,) or not np.isfinite(sizes).all():
        raise EpisodeError(
            f"{type(buffer).__name__}: expected {length} finite errors of module {module_id!r}, one for each item that "
            f"was drawn, but got an array {list(sizes.shape)} with {int((~np.isfinite(sizes)).sum())} that are not "
            f"finite."
        )
    return sizes


def priorities(sizes: np.ndarray, alpha: float) -> np.ndarray:
    """Returns the weights, in draws, of items whose errors have some sizes."""
    return (sizes + _LEAST) ** alpha


def importance(ring: Any, positions: np.ndarray, beta: float) -> np.ndarray:
    """Returns ``[N]`` importance of drawn items in a loss: 1 for the rarest one, and less for the others."""
    weights = (ring.num_steps * ring.tree.weights[positions] / ring.tree.total) ** -beta
    return weights / weights.max()


MultiAgentPrioritizedEpisodeReplayBuffer = PrioritizedEpisodeReplayBuffer
"""RLlib's name for a buffer of several agents' episodes; here one class does both."""
