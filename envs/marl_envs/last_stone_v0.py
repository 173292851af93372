"""A turn-based game: players take stones, and a player that takes the last stone is out."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium import logger, spaces
from gymnasium.utils import seeding
from pettingzoo import AECEnv
from pettingzoo.utils import wrappers

from marl_envs.arguments import check_at_least, check_render_mode
from marl_envs.drawing import GREY, INK, PALETTE, WHITE, Canvas

__all__ = ["LastStoneEnv", "env", "raw_env", "values_of_play"]


class LastStoneEnv(AECEnv[str, Any, Any]):
    """Players take 1 to ``max_take`` stones from a pile, in turns. A player that takes the last stone is out.

    Then the pile is filled again, and the next player begins. The last remaining player wins. The reward of the first
    player that is out is -1, that of the winner is 1, and those of the others are evenly spaced between (0 for the
    second of three). Each player gets its reward once, when it is out, so the sum of all rewards is 0. All players
    terminate, the losers while the others continue. ``raw_env`` and ``env`` make the environment.

    With two players, this is the misère game of Nim with one pile: a player that has to move at ``1 + k * (max_take +
    1)`` stones loses against perfect play. With more players, ``best_moves`` assumes that all players know that the
    others play perfectly, and that players take the fewest stones among moves that are equally good for themselves
    (subgame perfection, by backward induction).

    An observation is a Dict: ``observation`` is ``[stones + n_players]`` float32, the remaining stones as a one-hot
    vector (all 0 for an empty pile, after the end), then 1 for each player that is still in, beginning with the
    observer; ``action_mask`` is ``[max_take]`` int8. Action ``i`` takes ``i + 1`` stones. The mask of a player that
    waits is all 0.

    Args:
        n_players: The number of players, at least 2. They are called ``player_0``, ``player_1`` and so on.
        stones: The number of stones in the full pile.
        max_take: The largest number of stones in a move.
        random_start: Whether the first player is drawn with the seed; otherwise it is ``player_0``.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If an argument is outside its range.
    """

    metadata: dict[str, Any] = {
        "name": "last_stone_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 2,
        "is_parallelizable": False,
    }

    def __init__(
        self,
        *,
        n_players: int = 2,
        stones: int = 10,
        max_take: int = 3,
        random_start: bool = True,
        render_mode: str | None = None,
    ) -> None:
        super().__init__()
        check_at_least("last_stone_v0", 2, n_players=n_players)
        check_at_least("last_stone_v0", 1, stones=stones, max_take=max_take)
        check_render_mode("last_stone_v0", render_mode)
        self.render_mode = render_mode
        self.n_players = n_players
        self.stones = stones
        self.max_take = max_take
        self.random_start = random_start
        self.possible_agents = [f"player_{i}" for i in range(n_players)]
        self.agents = []
        space = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (stones + n_players,), np.float32),
                "action_mask": spaces.Box(0, 1, (max_take,), np.int8),
            }
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = {agent: spaces.Discrete(max_take) for agent in self.possible_agents}
        self.stones_left = 0
        self._in = self.possible_agents[:]
        self._rng: np.random.Generator | None = None

    @property
    def optimal_returns(self) -> tuple[float, ...]:
        """The returns of all players if all play perfectly, in the order of turns, the first player first."""
        return self._values(best=True)[self.n_players, self.stones]

    @property
    def random_returns(self) -> tuple[float, ...]:
        """The expected returns if all players draw legal moves uniformly at random, in the order of turns."""
        return self._values(best=False)[self.n_players, self.stones]

    def best_moves(self) -> list[int]:
        """Returns the best actions of the player that moves next, if all play perfectly from then on."""
        left, pile, known = len(self._in), self.stones_left, self._values(best=True)
        if left < 2 or not pile:
            return []
        takes = _takes(pile, self.max_take)
        values = [_after(known, take, left, pile, self.stones, self.n_players)[0] for take in takes]
        return [action for action, value in enumerate(values) if value == max(values)]

    def _values(self, *, best: bool) -> dict[tuple[int, int], tuple[float, ...]]:
        return values_of_play(self.n_players, self.stones, self.max_take, best=best)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts a game. ``seed`` seeds the sequence of first players; without a seed, it continues."""
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        first = int(self._rng.integers(self.n_players)) if self.random_start else 0
        self.agents = self.possible_agents[:]
        self._in = self.possible_agents[first:] + self.possible_agents[:first]  # the player who moves stands first
        self.agent_selection = self._in[0]
        self.stones_left = self.stones
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """Returns a player's observation, also if another player moves next."""
        seen = np.zeros(self.stones + self.n_players, np.float32)
        if self.stones_left:
            seen[self.stones_left - 1] = 1.0
        i = self.possible_agents.index(agent)
        around = self.possible_agents[i:] + self.possible_agents[:i]
        seen[self.stones :] = np.isin(around, self._in)
        mask = np.zeros(self.max_take, np.int8)
        if self._in and agent == self._in[0] and len(self._in) > 1:
            mask[: self.stones_left] = 1
        return {"observation": seen, "action_mask": mask}

    def step(self, action: int | None) -> None:
        """Takes stones. The action of a player that is out must be None.

        Raises:
            RuntimeError: If the game is over, or if ``reset`` was never called.
            ValueError: If the move is against the rules.
        """
        if not self.agents:
            raise RuntimeError("last_stone_v0: step() was called without a running game. Call reset() first.")
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if action is None or not self.action_spaces[agent].contains(action) or action >= self.stones_left:
            legal = list(range(min(self.max_take, self.stones_left)))
            raise ValueError(
                f"last_stone_v0: {agent!r} may take actions {legal} with {self.stones_left} stones left, but took "
                f"{action!r}. Its action_mask contains the legal actions."
            )
        self._clear_rewards()
        self.stones_left -= int(action) + 1
        self._in = self._in[1:] + self._in[:1]
        if self.stones_left == 0:
            self._put_out()
        self.agent_selection = self._in[0]
        self._accumulate_rewards()
        self._deads_step_first()

    def _put_out(self) -> None:
        """Ends the game for the player that has just moved, and for the winner if only one player is left."""
        loser = self._in[-1]
        self.rewards[loser] = _final_reward(len(self._in), self.n_players)
        self.terminations[loser] = True
        if len(self._in) == 2:
            winner = self._in[0]
            self.rewards[winner] = _final_reward(1, self.n_players)
            self.terminations[winner] = True
            self._in = [winner]
        else:
            self._in = self._in[:-1]
            self.stones_left = self.stones

    def state(self) -> np.ndarray:
        """Returns ``[stones + n_players]`` float32: the observation of the player that moves next."""
        return self.observe(self._in[0])["observation"]

    def render(self) -> np.ndarray | None:
        """Returns ``[110, width, 3]`` uint8: the players, the next one with a dark edge, above the pile."""
        if self.render_mode is None:
            logger.warn("last_stone_v0: render() draws nothing, because render_mode is None. Pass 'rgb_array'.")
            return None
        canvas = Canvas(110, max(24 * self.stones, 50 * self.n_players) + 20)
        for i, player in enumerate(self.possible_agents):
            x = 35 + 50 * i
            moves = player == self._in[0]
            canvas.ring(x, 35, 19, INK if moves else WHITE)
            canvas.disc(x, 35, 15, PALETTE[i % len(PALETTE)] if player in self._in else GREY)
        for i in range(self.stones):
            canvas.disc(22 + 24 * i, 85, 10, INK if i < self.stones_left else GREY)
        return canvas.pixels

    def close(self) -> None:
        """Does nothing, because there are no resources to free."""


def _final_reward(left: int, n_players: int) -> float:
    """Returns the reward of a player that is out when ``left`` players were in, including this player."""
    return 1.0 - 2.0 * (left - 1) / (n_players - 1)


@cache
def values_of_play(
    n_players: int, stones: int, max_take: int, *, best: bool
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Returns the expected returns of players, by the number of players that are in and the number of stones.

    Args:
        n_players: The number of players at the beginning.
        stones: The number of stones in the full pile.
        max_take: The largest number of stones in a move.
        best: Whether all players play perfectly, and take the fewest stones among equally good moves. Otherwise they
            draw legal moves uniformly at random.

    Returns:
        For each state, a value for each player that is in, in the order of turns, the player that moves first.
    """
    values: dict[tuple[int, int], tuple[float, ...]] = {(1, stones): (_final_reward(1, n_players),)}
    for left in range(2, n_players + 1):
        for pile in range(1, stones + 1):
            moves = [_after(values, take, left, pile, stones, n_players) for take in _takes(pile, max_take)]
            means = (float(np.mean(own)) for own in zip(*moves, strict=True))
            values[left, pile] = max(moves, key=lambda by_turn: by_turn[0]) if best else tuple(means)
    return values


def _takes(pile: int, max_take: int) -> range:
    return range(1, min(pile, max_take) + 1)


def _after(
    values: dict[tuple[int, int], tuple[float, ...]], take: int, left: int, pile: int, stones: int, n_players: int
) -> tuple[float, ...]:
    """Returns the values of all players that are in after the player that moves has taken ``take`` stones."""
    if take == pile:
        return (_final_reward(left, n_players), *values[left - 1, stones])
    later = values[left, pile - take]
    return (later[-1], *later[:-1])


def raw_env(
    *,
    n_players: int = 2,
    stones: int = 10,
    max_take: int = 3,
    random_start: bool = True,
    render_mode: str | None = None,
) -> LastStoneEnv:
    """Returns the game, under the name that PettingZoo's modules use. The arguments are those of ``LastStoneEnv``."""
    return LastStoneEnv(
        n_players=n_players, stones=stones, max_take=max_take, random_start=random_start, render_mode=render_mode
    )


def env(
    *,
    n_players: int = 2,
    stones: int = 10,
    max_take: int = 3,
    random_start: bool = True,
    render_mode: str | None = None,
) -> AECEnv[str, Any, Any]:
    """Returns the game in PettingZoo's wrapper that checks the order of calls. See ``LastStoneEnv`` for arguments."""
    return wrappers.OrderEnforcingWrapper(
        raw_env(
            n_players=n_players, stones=stones, max_take=max_take, random_start=random_start, render_mode=render_mode
        )
    )
