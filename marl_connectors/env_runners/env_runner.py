"""EnvRunner: steps environment copies with a MultiRLModule and hands out episodes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.callbacks import Callbacks
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import works_on_columns
from marl_connectors.connectors.defaults import DEFAULT_PIECES
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.get_actions import ACTION_NOISE
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_actions
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.env_runners.action_history import HISTORY_BYTES
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.data_checks import (
    bad_observations,
    bad_rewards,
    check_actions,
    check_columns,
    check_forward_batch,
)
from marl_connectors.env_runners.done_episodes import first_of_each_copy
from marl_connectors.env_runners.episode_metrics import EpisodeTally, summarize
from marl_connectors.env_runners.lanes import Lane, LaneGroup, picker
from marl_connectors.env_runners.random_actions import random_batch
from marl_connectors.env_runners.replayable_episodes import ReplayableEpisodes
from marl_connectors.env_runners.saved_batch import batch_from_state, batch_to_state
from marl_connectors.env_runners.vector_env import Transition, VectorEnv
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import AgentID, ModuleID

PolicyMappingFn = Callable[..., ModuleID]


class EnvRunner:
    """Collects episodes: env-to-module pipeline, module, module-to-env pipeline, environment, again and again.

    The same class runs PettingZoo environments (MultiAgentEpisodes) and Gymnasium ones (SingleAgentEpisodes).
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        *,
        num_envs: int,
        seed: int,
        single_agent: bool,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        policy_mapping_fn: PolicyMappingFn,
        rl_module: MultiRLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        explore: bool = True,
        lookback: int = 1,
        rollout_fragment_length: int = 64,
        check_spaces: bool = True,
        callbacks: Callbacks | None = None,
        env_config: dict[str, Any] | None = None,
    ):
        """Makes the environment copies; nothing is reset before the first ``sample``.

        Args:
            make_env: Makes one copy: a PettingZoo parallel environment, or one that behaves like it.
            num_envs: How many copies.
            seed: The run's seed; everything random here follows from it.
            single_agent: Whether to hand out SingleAgentEpisodes.
            agent_spaces: An agent's observation and action space.
            policy_mapping_fn: ``fn(agent_id, episode)`` to the module that an agent acts by in an episode.
            rl_module: The modules.
            env_to_module: From observations to a forward batch.
            module_to_env: From the modules' outputs to actions.
            explore: Whether ``sample`` explores unless told otherwise.
            lookback: Steps that a chunk of an episode keeps from before it.
            rollout_fragment_length: Env steps of each copy that ``sample`` takes unless told otherwise.
            check_spaces: Whether observations are held against their space.
            callbacks: Told of what happens here.
            env_config: For the callbacks.
        """
        self.vector_env = VectorEnv(make_env, num_envs, seed=seed)
        self.rl_module = rl_module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self.explore = explore
        self.lookback = lookback
        self.rollout_fragment_length = rollout_fragment_length
        self._seed = seed
        self._check_spaces = check_spaces
        self._noise = ActionNoise(seed)
        self._episodes = ReplayableEpisodes(
            self.vector_env, agent_spaces, policy_mapping_fn, rl_module, single_agent=single_agent, lookback=lookback
        )
        self._shared_data: dict[str, Any] = {ACTION_NOISE: self._noise}
        self._finished: list[EpisodeTally] = []
        self._uncredited_reward = 0.0
        self._batch: ColumnBatch | None = None
        self._pick_actions: Callable[[list], Any] | None = None
        self._live: list[tuple[LaneGroup, Callable[[list], Any] | None]] = []  # groups with lanes, picking their items
        self._check_batch = self._check_actions = True
        self._exploring = explore
        self._deferred_logp: dict[LaneGroup, type[Distribution]] = {}
        self._look_at_pieces()
        self.num_env_steps = 0
        self.num_agent_steps = 0
        self.callbacks = callbacks or Callbacks()
        for copy in self.vector_env.copies:
            self.callbacks.on_environment_created(env_runner=self, env=copy.env, env_context=env_config or {})

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Any]:
        """Steps the environments and gives the episodes, and chunks of episodes, that came of it.

        Args:
            num_timesteps: At least so many env steps, counted over all copies (which step together).
            num_episodes: So many whole episodes, the same number from each copy (or one less), so that short ones are
                not preferred. Resets the copies first, and drops what they play beyond that.
            explore: Overrides the runner's setting.
            random_actions: Draw actions from the action spaces instead of asking the modules.
            force_reset: Start new episodes even where old ones go on (these are dropped).

        Returns:
            MultiAgentEpisodes or SingleAgentEpisodes. An episode that goes on beyond this sample is cut: the chunk is
            in the list, and the next sample continues it under the same id.

        Raises:
            ConfigError: If both numbers are given.
            EnvError: If an environment breaks its contract.
        """
        if num_timesteps is not None and num_episodes is not None:
            raise ConfigError("EnvRunner.sample: give num_timesteps or num_episodes, not both.")
        self._look_at_pieces()
        self._exploring = explore = self.explore if explore is None else explore
        copies = len(self.vector_env.copies)
        if self._batch is None or force_reset or num_episodes is not None:
            self._reset()
        if num_episodes is not None:
            while (done := first_of_each_copy(self._episodes.done, copies, num_episodes)) is None:
                self._take_step(explore, random_actions)
        else:
            steps = self.rollout_fragment_length if num_timesteps is None else math.ceil(num_timesteps / copies)
            for _ in range(steps):
                self._take_step(explore, random_actions)
            done = self._episodes.done
        self._complete_fragment()
        self._episodes.take_done()
        self._finished += [entry.tally for entry in done]
        episodes = [entry.episode for entry in done]
        for episode in episodes:
            self.callbacks.on_episode_end(episode=episode, env_runner=self)
        if num_episodes is None:
            episodes += self._episodes.cut(num_rows=self.rollout_fragment_length)
        else:
            self._batch = None  # the next sample starts afresh
        self._uncredited_reward += sum(episode.uncredited_reward for episode in episodes)
        self.callbacks.on_sample_end(env_runner=self, samples=episodes)
        return episodes

    def _look_at_pieces(self) -> None:
        """What the pieces need of the episodes; they may come and go between samples."""
        pieces = [*self.env_to_module, *self.module_to_env]
        self._pieces_read_episodes = not all(works_on_columns(piece) for piece in pieces)
        self._pieces_write_episodes = any(type(piece) not in DEFAULT_PIECES for piece in self.env_to_module)

    def take_finished(self) -> list[EpisodeTally]:
        """Returns and lengths of the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_uncredited_reward(self) -> float:
        """The sum of the rewards in the samples since the last call that no action in the same chunk has earned.

        They are in no train batch: they came before an agent ever acted, or for an action of an earlier chunk by an
        agent that has ended there.
        """
        uncredited, self._uncredited_reward = self._uncredited_reward, 0.0
        return uncredited

    def get_metrics(self) -> dict[str, Any]:
        """What ``summarize`` says of the finished episodes, and ``uncredited_reward``; of each once."""
        return summarize(self.take_finished()) | {"uncredited_reward": self.take_uncredited_reward()}

    def set_policy_mapping_fn(self, policy_mapping_fn: PolicyMappingFn) -> None:
        """Maps agents anew in episodes that begin from now on."""
        self._episodes.set_policy_mapping_fn(policy_mapping_fn)

    def restart_episodes(self) -> None:
        """Drops ongoing episodes; the next sample begins new ones."""
        self._batch = None

    def close(self) -> None:
        """Closes the environment copies."""
        self.vector_env.close()

    # For checkpoints.

    def get_state(self) -> dict[str, Any]:
        """Counts, connector states, and how to get the ongoing episodes back, as JSON data and arrays."""
        episodes = None if self._batch is None else self._episodes.get_state()
        shared_data = {key: value for key, value in self._shared_data.items() if key != ACTION_NOISE}
        return {
            "seed": self._seed,
            "num_env_steps": self.num_env_steps,
            "num_agent_steps": self.num_agent_steps,
            "noise_step": self._noise.step,
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
            "episodes": episodes,
            "episodes_too_long": self._batch is not None and episodes is None,
            "batch": None if episodes is None or self._batch is None else batch_to_state(self._batch, shared_data),
            "finished": [tally.get_state() for tally in self._finished],
            "uncredited_reward": self._uncredited_reward,
            "episode_numbers": [copy.episode_number for copy in self.vector_env.copies],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what ``get_state`` gave: ongoing episodes are replayed from their seeds and actions.

        Raises:
            CheckpointError: If there are not as many copies, or a replayed episode turns out differently.
        """
        if len(state["episode_numbers"]) != len(self.vector_env.copies):
            raise CheckpointError(
                f"checkpoint: it has {len(state['episode_numbers'])} environment copies, this run has "
                f"{len(self.vector_env.copies)}. Use the same num_envs_per_env_runner."
            )
        self._seed = self.vector_env.seed = state["seed"]
        self._noise = ActionNoise(self._seed)
        self._shared_data = {ACTION_NOISE: self._noise}
        self._noise.step = state["noise_step"]
        self.num_env_steps, self.num_agent_steps = state["num_env_steps"], state["num_agent_steps"]
        self.env_to_module.set_state(state["env_to_module"])
        self.module_to_env.set_state(state["module_to_env"])
        for copy, number in zip(self.vector_env.copies, state["episode_numbers"], strict=True):
            copy.episode_number = number
        self._finished = [EpisodeTally.from_state(tally) for tally in state["finished"]]
        self._uncredited_reward = state["uncredited_reward"]
        self._batch = None
        if state["episodes"] is not None:
            self._episodes.set_state(state["episodes"])
            self._arrange()
            self._restore_batch(state["batch"])
        elif state["episodes_too_long"]:
            warnings.warn(
                f"EnvRunner: an ongoing episode was too long to be replayed (more than {HISTORY_BYTES:,} bytes of "
                f"actions), so the run goes on with new episodes, and not step for step as if it had never stopped.",
                stacklevel=2,
            )

    def _restore_batch(self, state: dict[str, Any] | None) -> None:
        """The forward batch of a checkpoint; made anew if pieces put something in that no file can hold."""
        if state is None:
            self._make_batch()
            return
        device = next((parameter.device for parameter in self.rl_module.parameters()), torch.device("cpu"))
        self._batch, shared_data = batch_from_state(state, [group.rows for group, _ in self._live], device)
        self._shared_data.update(shared_data)

    # One step.

    def _take_step(self, explore: bool, at_random: bool) -> None:
        """A hot path: everything here is per vector step and group, nothing is per agent."""
        groups = [group for group, _ in self._live]
        batch = random_batch(self._seed, self._noise.step, groups, self._batch) if at_random else self._forward(explore)
        actions: list[Any] = []
        for (group, _), columns in zip(self._live, batch.groups, strict=True):
            group.rollout.record(group.positions, columns)
            actions += env_actions(columns)
            if columns.action_dist_cls is not None:
                self._deferred_logp[group] = columns.action_dist_cls
        step = self.vector_env.step(actions if self._pick_actions is None else self._pick_actions(actions))
        self._noise.step += 1
        self.num_env_steps += len(self.vector_env.copies)
        self.num_agent_steps += len(actions)
        for group, pick in self._live:
            self._credit(group, step.rewards if pick is None else pick(step.rewards))
            group.advance()
        if step.transitions:
            self._follow(step.transitions)
        self._observe(step.observations)
        for env_index, infos in step.infos:
            self._episodes.lanes.write_infos(env_index, infos)
        self._make_batch()

    def _forward(self, explore: bool) -> ColumnBatch:
        module = self.rl_module
        outputs = module.forward_exploration(self._batch) if explore else module.forward_inference(self._batch)
        actions = self.module_to_env.run(
            outputs, rl_module=module, episodes=self._episodes.ongoing, explore=explore, shared_data=self._shared_data
        )
        if self._check_actions:
            check_actions(actions)
            self._check_actions = False
        return actions

    def _credit(self, group: LaneGroup, rewards: Any) -> None:
        try:
            values = np.array(rewards)
            if values.dtype.kind not in "fiub":
                raise TypeError("not numbers")
            group.rollout.columns[Columns.REWARDS][group.positions] = values
        except (TypeError, ValueError) as error:
            raise bad_rewards(group, self.vector_env, rewards) from error

    def _follow(self, transitions: list[Transition]) -> None:
        rearranged = self._episodes.follow(transitions)
        if self._pieces_write_episodes and self._episodes.ended_agents:
            self._run_env_to_module(self._episodes.ended_rows(), self._episodes.ended)
        if rearranged:
            self._arrange()
        else:
            for group in self._episodes.lanes.groups:
                group.locate()
            self._episodes.lanes.set_clocks(self.vector_env.copies)

    def _observe(self, items: list[Any]) -> None:
        for group, pick in self._live:
            own = items if pick is None else pick(items)
            rollout = group.rollout
            try:
                rollout.observe(group.positions, spaces.stack(own, rollout.observation_space), group.t)
            except (TypeError, ValueError) as error:
                raise bad_observations(group, self.vector_env, own) from error

    def _make_batch(self) -> None:
        """Runs the env-to-module pipeline on the newest observations, for the next forward pass."""
        if self._pieces_write_episodes:
            self._episodes.note_observations()
        groups = [ColumnGroup(group.rows) for group, _ in self._live]
        self._batch = self._run_env_to_module(groups, self._episodes.ongoing)
        if self._check_batch:
            check_forward_batch(self._batch, self.rl_module)
            self._check_batch = False

    def _run_env_to_module(self, groups: list[ColumnGroup], episodes: list[Any]) -> ColumnBatch:
        if self._pieces_read_episodes:
            self._episodes.sync()
        return self.env_to_module.run(
            ColumnBatch(groups),
            rl_module=self.rl_module,
            episodes=episodes,
            explore=self._exploring,
            shared_data=self._shared_data,
        )

    # Beginnings and ends.

    def _reset(self) -> None:
        items = self._episodes.reset()
        self._arrange()
        self._observe(items)
        self._make_batch()

    def _arrange(self) -> None:
        """Works out all orders anew, after agents came or went."""
        module_order = {module_id: i for i, module_id in enumerate(self.rl_module.keys())}
        by_copy = self._episodes.lanes.in_order()
        place = {lane: i for i, lane in enumerate(by_copy)}
        by_row: list[Lane] = []
        self._live = []
        self._check_batch = self._check_actions = True
        for group in self._episodes.lanes.groups:
            group.arrange(module_order)
            if not group.lanes:
                continue
            by_row += group.lanes
            self._live.append((group, picker([place[lane] for lane in group.lanes], len(by_copy))))
            self._noise.place(
                group.index, group.rows, [(lane.env_index, lane.slot) for lane in group.lanes], group.num_slots
            )
        self._episodes.lanes.set_clocks(self.vector_env.copies)
        position = {lane: i for i, lane in enumerate(by_row)}
        self._pick_actions = picker([position[lane] for lane in by_copy], len(by_copy))

    def _complete_fragment(self) -> None:
        """Checks what the environments gave and computes what was left to be computed for all steps at once."""
        for group in self._episodes.lanes.groups:
            check_columns(group, self.vector_env, spaces_too=self._check_spaces)
            dist_cls = self._deferred_logp.pop(group, None)
            if dist_cls is not None:
                rollout = group.rollout
                new = slice(group.lookback * rollout.num_lanes, rollout.num_rows * rollout.num_lanes)
                inputs = torch.from_numpy(rollout.columns[Columns.ACTION_DIST_INPUTS][new])
                actions = torch.from_numpy(rollout.columns[Columns.ACTIONS][new])
                rollout.record(new, {Columns.ACTION_LOGP: dist_cls.from_logits(inputs).logp(actions).numpy()})


MultiAgentEnvRunner = EnvRunner
SingleAgentEnvRunner = EnvRunner
"""RLlib's names: here one class runs both kinds of environment."""
