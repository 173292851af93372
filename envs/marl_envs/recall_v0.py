"""A cue, a wait, and the question what the cue was: only a policy with a memory does better than guessing."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.arguments import check_at_least
from marl_envs.drawing import GREY, INK, PALETTE, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["RecallEnv", "parallel_env"]


class RecallEnv(SmallEnv):
    """Every agent is shown a cue of its own, sees nothing for a while, and is paid 1 for naming it when asked.

    A trial is a step with the cue, ``delay`` blank steps (or up to ``jitter`` more, drawn for each agent and trial),
    a step with the question, whose action is the answer, and blank steps until ``delay + jitter + 2`` are full. An
    episode has ``n_trials`` trials, and then terminates for all. Actions at other steps are paid nothing.

    An observation is ``[n_cues + 1]`` float32: the cue as a one-hot vector, or zeros; and 1 at the question, else 0.
    When it is asked, an agent's observation is the same whatever its cue was, and the others' cues tell it nothing. So
    a policy without a memory cannot do better than ``memoryless_return``, nor can one that is given the memory of
    another agent or of another copy of the environment. States that are exchanged at every step, always in the same
    way, are back where they belong after as many steps as that takes: agents' states are not when the question comes
    if ``delay + 1`` is a prime above ``n_agents``, as it is by default.

    Args:
        n_agents: Number of agents, ``agent_0`` and so on.
        n_cues: Number of cues, and of actions.
        delay: Blank steps between the cue and the question.
        jitter: By how many steps the wait may be longer.
        n_trials: Trials in an episode.
        render_mode: ``"rgb_array"`` or None.

    Raises:
        ValueError: If ``n_agents``, ``n_cues`` or ``n_trials`` is below 1, or ``delay`` or ``jitter`` below 0.
    """

    metadata: dict[str, Any] = {
        "name": "recall_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 2,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 2,
        n_cues: int = 3,
        delay: int = 2,
        jitter: int = 0,
        n_trials: int = 2,
        render_mode: str | None = None,
    ) -> None:
        check_at_least(self._name, 1, n_cues=n_cues, n_trials=n_trials)
        check_at_least(self._name, 0, delay=delay, jitter=jitter)
        space = spaces.Box(0.0, 1.0, (n_cues + 1,), np.float32)
        super().__init__(n_agents=n_agents, observation_space=space, n_actions=n_cues, render_mode=render_mode)
        self.n_cues = n_cues
        self.delay = delay
        self.jitter = jitter
        self.n_trials = n_trials
        self.trial_len = delay + jitter + 2
        self._t = 0
        self._cues = np.zeros(n_agents, np.int64)
        self._asked_at = np.zeros(n_agents, np.int64)

    @property
    def optimal_return(self) -> float:
        """Of one agent in an episode, if it remembers."""
        return float(self.n_trials)

    @property
    def memoryless_return(self) -> float:
        """The most that one agent without a memory can expect of an episode."""
        return self.n_trials / self.n_cues

    @property
    def random_return(self) -> float:
        """What one agent expects that acts uniformly at random: no less than the best that has no memory."""
        return self.n_trials / self.n_cues

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode; ``seed`` starts the sequence of cues anew, without one it goes on."""
        rng = self._begin(seed, self.possible_agents)
        self._t = 0
        self._draw_trial(rng)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Pays the answers of those who are asked.

        Raises:
            RuntimeError: If the episode is over or was never started.
            ValueError: If an agent has no action, or one outside its action space.
        """
        rng, choices = self._choices(actions)
        asked = self._asked_at == self._t % self.trial_len
        rewards = {
            agent: float(is_asked and choice == cue)
            for (agent, choice), is_asked, cue in zip(choices.items(), asked, self._cues, strict=True)
        }
        self._t += 1
        if self._t % self.trial_len == 0:
            self._draw_trial(rng)
        over = self._t == self.n_trials * self.trial_len
        observations = self._observations(blank=over)
        flags = dict.fromkeys(choices, over)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in choices}
        if over:
            self.agents = []
        return observations, rewards, flags, dict.fromkeys(choices, False), infos

    def _draw_trial(self, rng: np.random.Generator) -> None:
        n_agents = len(self.possible_agents)
        self._cues = rng.integers(self.n_cues, size=n_agents)
        self._asked_at = 1 + self.delay + rng.integers(self.jitter + 1, size=n_agents)

    def _observations(self, *, blank: bool = False) -> dict[str, np.ndarray]:
        seen = np.zeros((len(self.possible_agents), self.n_cues + 1), np.float32)
        t = self._t % self.trial_len
        if not blank:
            if t == 0:
                seen[np.arange(len(seen)), self._cues] = 1.0
            seen[:, -1] = self._asked_at == t
        return dict(zip(self.possible_agents, seen, strict=True))

    def state(self) -> np.ndarray:
        """``[n_agents, n_cues + 1]`` float32: every agent's cue, one-hot, and whether it is asked now."""
        asked = self._asked_at == self._t % self.trial_len
        return np.column_stack([np.eye(self.n_cues)[self._cues], asked]).astype(np.float32)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """``[height, width, 3]`` uint8: a row for each agent, a column for each step of the trial.

        A disc is the cue, in its colour, a square the question, and the line below is where the trial is.
        """
        if not self._draws():
            return None
        canvas = Canvas(50 * len(self.possible_agents) + 10, 50 * self.trial_len + 10)
        now = self._t % self.trial_len
        for row, (cue, asked_at) in enumerate(zip(self._cues.tolist(), self._asked_at.tolist(), strict=True)):
            colour, y = PALETTE[cue % len(PALETTE)], 27 + 50 * row
            for t in range(self.trial_len):
                x = 30 + 50 * t
                if t == 0:
                    canvas.disc(x, y, 17, colour)
                elif t == asked_at:
                    canvas.bar(x - 16, y - 16, 32, 32, colour)
                    canvas.bar(x - 12, y - 12, 24, 24, (255, 255, 255))
                else:
                    canvas.disc(x, y, 4, GREY)
                canvas.bar(x - 20, y + 22, 40, 4, INK if t == now else GREY)
        return canvas.pixels


def parallel_env(
    *,
    n_agents: int = 2,
    n_cues: int = 3,
    delay: int = 2,
    jitter: int = 0,
    n_trials: int = 2,
    render_mode: str | None = None,
) -> RecallEnv:
    """The environment under the name that PettingZoo's modules use; arguments as in ``RecallEnv``."""
    return RecallEnv(
        n_agents=n_agents, n_cues=n_cues, delay=delay, jitter=jitter, n_trials=n_trials, render_mode=render_mode
    )
