"""Agents must remember a cue during a delay. Only a policy with a memory is better than chance."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.arguments import check_at_least
from marl_envs.drawing import GREY, INK, PALETTE, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["RecallEnv", "parallel_env"]


class RecallEnv(SmallEnv):
    """Every agent observes a cue of its own, then nothing, and gets the reward 1 for naming the cue when asked.

    A trial consists of a step with the cue, ``delay`` blank steps (or up to ``jitter`` more, drawn for each agent and
    trial), a step with the question, whose action is the answer, and blank steps up to ``delay + jitter + 2`` steps.
    An episode has ``n_trials`` trials, and then terminates for all agents. Actions in other steps have the reward 0.

    An observation is ``[n_cues + 1]`` float32: the cue as a one-hot vector or zeros, then 1 in the step with the
    question and 0 in others. The observation with the question does not depend on the cue, and the cues of other
    agents contain no information about it. So a policy without a memory cannot get more than ``memoryless_return``,
    and neither can one that gets the memory of another agent or of another sub-environment. If states are permuted in
    the same way in every step, they return to their owners after some steps. This cannot happen in the step with the
    question if ``delay + 1`` is a prime above ``n_agents``, as with the default arguments.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        n_cues: The number of cues and of actions.
        delay: The number of blank steps between the cue and the question.
        jitter: The largest number of additional blank steps.
        n_trials: The number of trials in an episode.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

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
        """The return of an agent that remembers its cues."""
        return float(self.n_trials)

    @property
    def memoryless_return(self) -> float:
        """The highest expected return of an agent without a memory."""
        return self.n_trials / self.n_cues

    @property
    def random_return(self) -> float:
        """The expected return of an agent that acts uniformly at random, which equals ``memoryless_return``."""
        return self.n_trials / self.n_cues

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` seeds the sequence of cues; without a seed, it continues."""
        rng = self._begin(seed, self.possible_agents)
        self._t = 0
        self._draw_trial(rng)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays a step, and rewards right answers.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
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
        """Returns ``[n_agents, n_cues + 1]`` float32: every agent's one-hot cue, and 1 if it is asked now."""
        asked = self._asked_at == self._t % self.trial_len
        return np.column_stack([np.eye(self.n_cues)[self._cues], asked]).astype(np.float32)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[height, width, 3]`` uint8: a row for each agent, a column for each step of the trial.

        A disc in the colour of the cue stands for the cue, a square for the question. The line below shows the current
        step of the trial.
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
    """Returns the environment, under the name that PettingZoo's modules use; see ``RecallEnv`` for the arguments."""
    return RecallEnv(
        n_agents=n_agents, n_cues=n_cues, delay=delay, jitter=jitter, n_trials=n_trials, render_mode=render_mode
    )
