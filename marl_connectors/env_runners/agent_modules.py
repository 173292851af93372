"""Maps the agents of an episode to modules, and checks that a module fits its agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gymnasium import Space
from gymnasium.spaces import Dict as DictSpace

from marl_connectors import spaces
from marl_connectors.connectors.common.agent_to_module_mapping import unknown_module
from marl_connectors.env_runners.lane_group import Lane
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.errors import MappingError, describe_error
from marl_connectors.policy_mapping import IndependentPolicies, check_independence, goes_by_agent_alone
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.spec_fields import NO_MODULE_ID, is_module_id
from marl_connectors.typing import AgentID, ModuleID


class AgentModules:
    """Calls the policy mapping function and checks the module ids that it returns.

    Attributes:
        mapping: The policy mapping function.
    """

    def __init__(
        self,
        mapping: Callable[..., ModuleID],
        rl_module: MultiRLModule,
        action_spaces: Space | None,
        observation_spaces: Space | None = None,
    ):
        """Stores the policy mapping function, and the modules and spaces for the checks.

        Args:
            mapping: The policy mapping function ``fn(agent_id, episode)``, which returns a module id.
            rl_module: The modules.
            action_spaces: The action space of each agent, as the env-to-module pipeline has changed them.
            observation_spaces: The observation space of each agent, as the env-to-module pipeline has changed them.
                None if the modules check their observations themselves.
        """
        self.mapping = mapping
        self._rl_module = rl_module
        self._action_spaces = action_spaces
        self._observation_spaces = observation_spaces
        self._fitting: set[tuple[int, ModuleID]] = set()
        self._owners: dict[ModuleID, AgentID] = {}  # of IndependentPolicies
        self._known: tuple[Sequence[AgentID], dict[AgentID, ModuleID], frozenset[ModuleID]] | None = None

    def set_mapping(self, mapping: Callable[..., ModuleID]) -> None:
        """Sets the policy mapping function for episodes that begin from now on."""
        self.mapping = mapping
        self._known = None

    def forget(self) -> None:
        """Forgets which modules were found to fit, as a module may have been replaced by another one."""
        self._fitting = set()

    def of_agents(self, episode: MultiAgentEpisode, agent_ids: Sequence[AgentID]) -> Mapping[AgentID, ModuleID]:
        """Returns the modules of an episode's first agents.

        The library's mapping functions depend on the agent alone. They are called once for all episodes.

        Args:
            episode: The episode.
            agent_ids: Its first agents.

        Returns:
            Agent id to module id.

        Raises:
            MappingError: If the function fails, or there is no such module.
        """
        if not goes_by_agent_alone(self.mapping):
            return {agent_id: self.of_agent(episode, agent_id) for agent_id in agent_ids}
        known = self._known
        if known is None or known[0] != agent_ids or not all(map(self._rl_module.__contains__, known[2])):
            found = {agent_id: self.of_agent(episode, agent_id) for agent_id in agent_ids}
            self._known = known = (list(agent_ids), found, frozenset(found.values()))
        else:
            episode.know_modules(known[1])
        return known[1]

    def of_agent(self, episode: MultiAgentEpisode, agent_id: AgentID) -> ModuleID:
        """Returns the module of an agent.

        Raises:
            MappingError: If the function fails, there is no such module, or it is another agent's alone.
        """
        module_id = ask_mapping(episode, agent_id)
        if module_id not in self._rl_module:
            raise unknown_module(agent_id, module_id, self._rl_module)
        if isinstance(self.mapping, IndependentPolicies):
            check_independence(self.mapping, [self._owners.setdefault(module_id, agent_id), agent_id])
        return module_id

    def check_fit(self, lane: Lane, module_id: ModuleID) -> None:
        """Checks that a module's action space, and observation space if known, equal the agent's.

        Args:
            lane: The agent's lane.
            module_id: The module.

        Raises:
            MappingError: If a space of the module differs from the agent's space.
        """
        key = lane.group.index, module_id
        if key in self._fitting:
            return
        module, agent_id = self._rl_module[module_id], lane.agent_id
        for kind, wanted, of_agents, of_env in (
            ("observations", module.observation_space, self._observation_spaces, None),
            ("actions", module.action_space, self._action_spaces, lane.group.env_action_space),
        ):
            known = isinstance(of_agents, DictSpace) and agent_id in of_agents.spaces
            own = of_agents[agent_id] if known else of_env  # type: ignore[index]
            if wanted is not None and own is not None and spaces.describe(wanted) != spaces.describe(own):
                raise MappingError(
                    f"policy_mapping_fn: agent {agent_id!r} maps to module {module_id!r}, whose {kind} are "
                    f"{spaces.describe(wanted)}, but the agent's are {spaces.describe(own)}. Map agents with "
                    f"different spaces to different modules."
                )
        self._fitting.add(key)


def ask_mapping(episode: MultiAgentEpisode, agent_id: AgentID) -> ModuleID:
    """Calls the policy mapping function for an agent and returns the module id.

    Raises:
        MappingError: If the function raises an error, or returns anything but a text that is not empty.
    """
    try:
        module_id = episode.module_for(agent_id)
    except MappingError:
        raise
    except Exception as error:
        raise MappingError(
            f"policy_mapping_fn raised {describe_error(error)}, for agent {agent_id!r}. It is called as "
            f"policy_mapping_fn(agent_id, episode) and must return a module id."
        ) from error
    if not is_module_id(module_id):
        raise MappingError(
            f"policy_mapping_fn: returned {module_id!r} for agent {agent_id!r}, which is no module id. {NO_MODULE_ID}"
        )
    return module_id
