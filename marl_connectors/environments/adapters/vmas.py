"""VMAS scenarios as natively batched environments."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from marl_connectors.errors import EnvError, describe_error, did_you_mean
from marl_connectors.packages import distribution_of, how_to_install, import_package
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, Tree


class VmasEnv:
    """A scenario of the VMAS simulator as a natively batched environment; see ``BatchedEnv``.

    If the scenario's agents have different spaces, observations and actions are dicts by agent.

    Attributes:
        env: The ``vmas`` environment.
        num_envs: The number of sub-environments.
        possible_agents: The agents of a sub-environment, by their names in the scenario.
    """

    def __init__(
        self,
        scenario: Any,
        *,
        num_envs: int,
        max_steps: int | None = 100,
        continuous_actions: bool = True,
        multidiscrete_actions: bool = False,
        clamp_actions: bool = True,
        device: str = "cpu",
        seed_copies: bool = True,
        with_infos: bool = False,
        render_mode: str | None = None,
        **scenario_settings: Any,
    ):
        """Makes the environment.

        Args:
            scenario: A scenario's name, such as ``"balance"``, or a ``vmas`` scenario object.
            num_envs: The number of sub-environments.
            max_steps: The number of env steps after which an episode is truncated; None for no limit.
            continuous_actions: Whether action spaces are Box spaces; otherwise they are discrete.
            multidiscrete_actions: Whether a discrete action has one number for each direction instead of one for all.
            clamp_actions: Whether actions outside their range are clipped; otherwise they are an error.
            device: The torch device of the simulation. Observations and rewards are always copied to the CPU.
            seed_copies: Whether each sub-environment's start follows from its own seed. Sub-environments are then reset
                one after another, which takes as long as many steps if there are thousands of them. If False, a reset
                of all sub-environments is one call with one seed that follows from all of theirs.
            with_infos: Whether ``step`` returns the infos that all agents have, which takes time.
            render_mode: ``"rgb_array"``, which VMAS can render at any time, or None.
            scenario_settings: The settings of the scenario.

        Raises:
            EnvError: If VMAS is not installed, or has no such scenario.
            UserWarning: For a setting that the scenario does not accept.
        """
        vmas = _vmas()
        if isinstance(scenario, str):
            _check_name(vmas, scenario)
        self._shared_randomness: list[Any] = vmas.simulator.environment.Environment.vmas_random_state
        self._randomness = list(self._shared_randomness)
        self.num_envs = num_envs
        self._device = torch.device(device)
        self._seeds_copies, self._with_infos = seed_copies, with_infos
        with self._own_randomness(), warnings.catch_warnings():
            warnings.filterwarnings("error", "Scenario kwargs", UserWarning)  # of misspelt settings
            self.env = vmas.make_env(
                scenario,
                num_envs=num_envs,
                device=device,
                continuous_actions=continuous_actions,
                max_steps=max_steps,
                seed=0,
                multidiscrete_actions=multidiscrete_actions,
                clamp_actions=clamp_actions,
                terminated_truncated=True,
                **scenario_settings,
            )
        self.metadata = {"name": str(scenario), "render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        self.possible_agents: list[AgentID] = [agent.name for agent in self.env.agents]
        found = zip(self.env.observation_space.spaces, self.env.action_space.spaces, strict=True)
        self._spaces = {a: tuple(map(_space, own)) for a, own in zip(self.possible_agents, found, strict=True)}
        self._alike = all(own == self._spaces[self.possible_agents[0]] for own in self._spaces.values())
        self._observations: Any = None

    def observation_space(self, agent: AgentID) -> Space:
        """Returns the observation space of one agent."""
        return self._spaces[agent][0]

    def action_space(self, agent: AgentID) -> Space:
        """Returns the action space of one agent."""
        return self._spaces[agent][1]

    @contextlib.contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Installs this environment's random state in the block.

        All VMAS environments of a process share one random state. VMAS uses the global generators for it and does not
        restore them after errors, so they are restored here.
        """
        before = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
        others, self._shared_randomness[:] = list(self._shared_randomness), self._randomness
        try:
            yield
        finally:
            self._randomness, self._shared_randomness[:] = list(self._shared_randomness), others
            torch.random.set_rng_state(before[0])
            np.random.set_state(before[1])
            random.setstate(before[2])

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None = None) -> Tree:
        """Starts episodes; see ``BatchedEnv``."""
        which = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        with self._own_randomness():
            if len(which) == self.num_envs and not self._seeds_copies:
                all_seeds = [seed for seed in seeds if seed is not None]
                self.env.seed(int(np.random.SeedSequence(all_seeds).generate_state(1)[0]))
                self.env.reset(return_observations=False)
            else:
                for index in which:
                    self.env.seed(seeds[index])
                    self.env.reset_at(index, return_observations=False)
            given = self.env.get_from_scenario(
                get_observations=True, get_rewards=False, get_infos=False, get_dones=False
            )
        observations = self._gathered(given[0])
        if len(which) == self.num_envs or self._observations is None:
            self._observations = observations
        else:  # some observations are noisy: those of the other sub-environments must not change
            for kept, new in zip(leaves(self._observations), leaves(observations), strict=True):
                kept[which] = new[which]
        return self._observations

    def step(self, actions: Any) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all sub-environments; see ``BatchedEnv``."""
        with self._own_randomness():
            observations, rewards, terminated, truncated, infos = self.env.step(
                [self._action(actions, i, agent) for i, agent in enumerate(self.possible_agents)]
            )
        self._observations = self._gathered(observations)
        lead = self.num_envs, len(self.possible_agents)
        ends, is_cut = (np.broadcast_to(flag.cpu().numpy()[:, None], lead) for flag in (terminated, truncated))
        paid = torch.stack([reward.reshape(self.num_envs) for reward in rewards], dim=1).cpu().numpy()
        return self._observations, paid, ends, is_cut, _shared_infos(infos) if self._with_infos else {}

    def _action(self, actions: Any, i: int, agent: AgentID) -> torch.Tensor:
        own = torch.as_tensor(actions[:, i] if self._alike else actions[agent]).to(self._device)
        return own.float() if own.ndim > 1 else own[:, None]

    def _gathered(self, observations: Sequence[Any]) -> Any:
        """Converts VMAS's list of observations by agent to the arrays of ``BatchedEnv``."""
        if self._alike:
            return tree_map(lambda *own: torch.stack(own, dim=1).cpu().numpy(), *observations)
        by_agent = dict(zip(self.possible_agents, observations, strict=True))
        return tree_map(lambda own: own.cpu().numpy(), by_agent)

    def render(self) -> np.ndarray:
        """Renders the first sub-environment to a ``[height, width, 3]`` uint8 array.

        Raises:
            EnvError: If VMAS cannot render on this machine.
        """
        try:
            return np.ascontiguousarray(self.env.render(mode="rgb_array", env_index=0), np.uint8)
        except Exception as error:
            raise EnvError(
                f"VmasEnv: it cannot be drawn here, {describe_error(error)}. VMAS draws with pyglet, which "
                f"needs a display; without one, run it under xvfb-run."
            ) from error

    def close(self) -> None:
        """Closes the window, if there is one."""
        viewer, self.env.viewer = self.env.viewer, None
        if viewer is not None:
            viewer.close()


def _vmas() -> Any:
    try:
        vmas = import_package("vmas")
        import_package("vmas.simulator.environment")
    except ModuleNotFoundError as error:
        hint = how_to_install(distribution_of(error.name or "vmas"))
        raise EnvError(f"VmasEnv: the package {error.name!r} is not installed. {hint}") from error
    return vmas


def _check_name(vmas: Any, scenario: str) -> None:
    files = (Path(vmas.__file__).parent / "scenarios").rglob("*.py")
    known = sorted(path.stem for path in files if path.stem != "__init__")
    if scenario.removesuffix(".py") not in known:
        raise EnvError(f"VmasEnv: VMAS has no scenario {scenario!r}. {did_you_mean(scenario, known)}")


def _space(space: Any) -> Space:
    """Converts a space of the old package ``gym`` to a Gymnasium space."""
    match type(space).__name__:
        case "Box":
            return spaces.Box(np.asarray(space.low), np.asarray(space.high), dtype=space.dtype.type)
        case "Discrete":
            return spaces.Discrete(int(space.n))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.asarray(space.nvec))
        case "Dict":
            return spaces.Dict({name: _space(own) for name, own in space.spaces.items()})
    raise EnvError(f"VmasEnv: {space!r} has no counterpart in Gymnasium here.")


def _shared_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Returns, by name, ``[num_envs, num_agents, ...]`` arrays of the infos that all agents have in one shape."""
    shared: dict[str, np.ndarray] = {}
    for name in infos[0]:
        own = [info[name] for info in infos if isinstance(info.get(name), torch.Tensor)]
        if len(own) == len(infos) and len({value.shape for value in own}) == 1:
            shared[name] = torch.stack(own, dim=1).cpu().numpy()
    return shared
