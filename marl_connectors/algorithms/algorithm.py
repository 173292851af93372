"""Algorithm: samples, learns, evaluates, and keeps checkpoints."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marl_connectors.algorithms import building
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.env_workers import are_worth_workers
from marl_connectors.algorithms.masking import AUTO, Masking, warn_of_late_masks
from marl_connectors.algorithms.restoring import RestorableAlgorithm
from marl_connectors.algorithms.results import iteration_results
from marl_connectors.algorithms.vectorization import human_render_mode
from marl_connectors.connectors.explain import Explanation
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.environments.vector.failures import close_env, errors_named
from marl_connectors.metrics import MetricsLogger, with_logged
from marl_connectors.policy_mapping import PolicyMappingFn
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.seeding import derived_seed, global_generators_kept
from marl_connectors.typing import AgentID, ModuleID
from marl_connectors.validators import integer


class Algorithm(RestorableAlgorithm):
    """A run: environments, modules and a learner, built from a config.

    ``train()`` is one iteration: collect a batch of episodes, update the modules.

    Attributes:
        masking: The action masks that are honoured; ``str`` says which.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        *,
        rl_module_specs: Mapping[ModuleID, RLModuleSpec] | None = None,
        masking: Masking | None = None,
    ):
        """Builds everything, and tries the environment out.

        Args:
            config: The settings.
            rl_module_specs: All modules, complete with classes and spaces; None for those that the config asks for.
            masking: The action masks that a checkpoint's run honours; None for what the config says.

        Raises:
            MarlConnectorsError: If a setting, the environment or the mapping function does not work.
        """
        super().__init__()
        self.config = config.copy()
        self.config.validate()
        self.seed = secrets.randbits(31) if config.seed is None else config.seed
        self.config.freeze()
        self._warned_of_bounds: dict[Any, set[int]] = {}
        self._setup = building.build_setup(config)
        if not config.disable_env_checking:
            self._setup.check(self.seed)
        self._env_to_module, self.masking = building.build_env_to_module(self.config, self._setup, masking=masking)
        self.rl_module = building.build_modules(
            self.config, self._setup, self._env_to_module, self.seed, rl_module_specs
        )
        self.learner = building.build_learner(self.config, self._setup, self.rl_module, self._env_to_module, self.seed)
        self.env_runner = self._runner(
            self.config,
            self.seed,
            self.config.num_envs_per_env_runner,
            first_render_mode=human_render_mode(self.config, self._setup),
        )
        self.callbacks = self.config.make_callbacks()
        self.metrics = MetricsLogger()
        self.iteration = 0
        self.time_total_s = 0.0
        self._num_evaluations = 0
        self._recent: deque[EpisodeTally] = deque(maxlen=self.config.metrics_num_episodes_for_smoothing)
        self.callbacks.tell("on_algorithm_init", algorithm=self, metrics_logger=self.metrics)

    def _runner(
        self,
        config: AlgorithmConfig,
        seed: int,
        num_envs: int,
        render_mode: str | None = None,
        first_render_mode: str | None = None,
        for_training: bool = True,
        is_long: bool = True,
    ) -> EnvRunner:
        if config.num_env_workers == "auto" and not is_long:
            config = config.copy()
            config.num_env_workers = 0
        return building.build_env_runner(
            config,
            self._setup,
            self.rl_module,
            self._env_to_module,
            self.learner.pipeline,
            seed=seed,
            num_envs=num_envs,
            explore=config.explore,
            rollout_fragment_length=1 if render_mode else self._fragment_length(),
            render_mode=render_mode,
            first_render_mode=first_render_mode,
            for_training=for_training,
            warned_of_bounds=self._warned_of_bounds,
        )

    def _fragment_length(self) -> int:
        config = self.config
        if config.rollout_fragment_length != "auto":
            return int(config.rollout_fragment_length)
        at_once = self._setup.agents_per_step if config.count_steps_by == "agent_steps" else 1
        return max(1, math.ceil(config.train_batch_size_per_learner / config.num_envs_per_env_runner / at_once))

    @property
    def agent_ids(self) -> list[AgentID]:
        """The environment's possible agents."""
        return list(self._setup.agent_ids)

    # Training.

    def train(self) -> dict[str, Any]:
        """One iteration.

        Returns:
            What docs/results.md lists: ``env_runners`` (returns and lengths of the newest episodes, steps and seconds
            of this iteration's samples), ``learners`` (losses by module), ``timers``, counts of steps and iterations.
        """
        began = time.perf_counter()
        episodes = self._sample()
        if self.iteration == 0 and self.config.action_mask_key == AUTO and not self.masking.sentence:
            warn_of_late_masks(episodes)
        sampled = time.perf_counter()
        runner = self.env_runner
        learned = self.learner.update(
            episodes=episodes,
            timesteps={
                "num_env_steps_sampled_lifetime": runner.num_env_steps,
                "num_agent_steps_sampled_lifetime": runner.num_agent_steps,
            },
        )
        ended = time.perf_counter()
        self.iteration += 1
        self.time_total_s += ended - began
        self._recent.extend(runner.take_finished())
        result = iteration_results(self, self._recent, learned, sample_s=sampled - began, update_s=ended - sampled)
        if (interval := self.config.evaluation_interval) is not None and self.iteration % interval == 0:
            result["evaluation"] = self.evaluate()
        self.callbacks.tell("on_train_result", algorithm=self, metrics_logger=self.metrics, result=result)
        return with_logged(result, self.metrics)

    def _sample(self) -> list[Any]:
        """Episodes for one train batch."""
        config, runner = self.config, self.env_runner
        size, by_agents = config.train_batch_size_per_learner, config.count_steps_by == "agent_steps"
        episodes: list[Any] = []
        collected, before = 0, runner.num_env_steps
        while collected < size:
            if collected and config.rollout_fragment_length == "auto" and config.batch_mode == "truncate_episodes":
                steps = math.ceil((runner.num_env_steps - before) / collected * (size - collected))
                most = runner.rollout_fragment_length * config.num_envs_per_env_runner
                new = runner.sample(num_timesteps=min(steps, most))
            else:
                new = runner.sample()
            episodes += new
            collected += sum(e.agent_steps() if by_agents else e.env_steps() for e in new)
        return episodes

    def evaluate(
        self,
        *,
        num_episodes: int | None = None,
        explore: bool | None = None,
        seed: int | None = None,
        policy_mapping_fn: str | PolicyMappingFn | None = None,
        max_seconds: float | None = None,
        on_progress: Callable[[int], Any] | None = None,
    ) -> dict[str, Any]:
        """Returns of fresh episodes in sub-environments of their own; training is not touched.

        Args:
            num_episodes: How many; ``evaluation_duration`` if None.
            explore: Whether to sample actions; as in ``evaluation_config`` if None, and not if that does not say.
            seed: Of these episodes; if None, a new one for each evaluation, derived from the run's.
            policy_mapping_fn: Which agent acts by which module; as in ``evaluation_config`` if None, and as in training
                if that does not say.
            max_seconds: When to stop playing though episodes still go on; None to play all. Then the returns are of the
                first episodes of each copy, the same number from each, so that short ones are not preferred:
                ``num_episodes`` in the result says of how many. There may be none.
            on_progress: Called after each step with how many of the episodes have ended.

        Returns:
            As ``env_runners`` in ``train()``'s result.
        """
        self.callbacks.tell("on_evaluate_start", algorithm=self, metrics_logger=self.metrics)
        config = self.config.get_evaluation_config()
        if policy_mapping_fn is not None:
            config.multi_agent(policy_mapping_fn=policy_mapping_fn)
        if explore is not None:
            config.explore = explore
        number = config.evaluation_duration if num_episodes is None else num_episodes
        seed = derived_seed(self.seed, "evaluation", self._num_evaluations) if seed is None else seed
        self._num_evaluations += 1
        results = self._play(config, number, seed, max_seconds=max_seconds, on_progress=on_progress)
        self.callbacks.tell("on_evaluate_end", algorithm=self, metrics_logger=self.metrics, evaluation_metrics=results)
        return results

    def random_play(
        self,
        *,
        num_episodes: int = 100,
        seed: int | None = None,
        max_seconds: float | None = None,
        on_progress: Callable[[int], Any] | None = None,
    ) -> dict[str, Any]:
        """Returns of episodes with random actions, as a baseline; as ``evaluate`` gives them.

        Args:
            num_episodes: How many.
            seed: Of these episodes; if None, always the same one, derived from the run's.
            max_seconds: As for ``evaluate``.
            on_progress: As for ``evaluate``.
        """
        seed = derived_seed(self.seed, "random play") if seed is None else seed
        config = self.config.get_evaluation_config()
        config.explore = True
        return self._play(config, num_episodes, seed, at_random=True, max_seconds=max_seconds, on_progress=on_progress)

    def _play(
        self,
        config: AlgorithmConfig,
        num_episodes: int,
        seed: int,
        *,
        at_random: bool = False,
        max_seconds: float | None = None,
        on_progress: Callable[[int], Any] | None = None,
    ) -> dict[str, Any]:
        num_episodes = integer(min=1).check(num_episodes, type(self).__name__, "num_episodes")
        seed = integer(min=0).check(seed, type(self).__name__, "seed")
        is_long = are_worth_workers(self._setup, num_episodes, self._recent)
        num_envs = min(num_episodes, config.num_envs_per_env_runner)
        runner = self._runner(config, seed, num_envs, for_training=False, is_long=is_long)
        with self._borrowed(runner):
            end = math.inf if max_seconds is None else time.monotonic() + max_seconds

            def is_enough(num_done: int) -> bool:
                if on_progress is not None:
                    on_progress(num_done)
                return time.monotonic() >= end

            runner.sample(num_episodes=num_episodes, random_actions=at_random, is_enough=is_enough)
            return runner.get_metrics()

    @contextmanager
    def _borrowed(self, runner: EnvRunner, *, filters_count: bool = False) -> Iterator[None]:
        """Lends a runner what the pipelines have learned; closes it after use, and undoes what its episodes taught.

        An environment may draw from the global generators. These too are afterwards as they were, as it may have played
        for another number of steps in another run.
        """
        learned = self._env_to_module.get_state()
        counting = [] if filters_count else building.stop_counting(self._env_to_module)
        runner.module_to_env.set_state(self.env_runner.module_to_env.get_state())
        try:
            with global_generators_kept():
                yield
        finally:
            self._env_to_module.set_state(learned)
            for piece in counting:
                piece.update_stats = True
            runner.close()

    def explain(self, num_steps: int = 4) -> dict[str, Explanation]:
        """What each piece of the three pipelines does to the batch, for a few steps of a runner of its own.

        Args:
            num_steps: Env steps of each copy before looking, and as many to look at.

        Returns:
            ``env_to_module``, ``module_to_env`` and ``learner``; print them for a table each. Nothing here changes.
        """
        from marl_connectors.algorithms.explain import explain_algorithm

        return explain_algorithm(self, num_steps=num_steps)

    def render_episode(self, *, max_frames: int = 200, seed: int = 0, explore: bool = False) -> list[Any]:
        """Frames of episodes one after another, ``[height, width, 3]`` uint8; ``[]`` if the env cannot render."""
        metadata = getattr(self._setup.sample_env, "metadata", None) or {}  # a natively batched one may have none
        if "rgb_array" not in metadata.get("render_modes", ()):
            return []
        config = self.config.get_evaluation_config()
        config.explore = explore
        runner = self._runner(config, seed, 1, render_mode="rgb_array", for_training=False)
        env, frames = runner.vector_env.sub_envs[0].env, []
        with self._borrowed(runner):
            while len(frames) < max_frames:
                runner.sample(num_timesteps=1)
                with errors_named(f"{self._setup.name}: render()"):
                    frame = env.render()
                if frame is None:
                    return []
                frames.append(frame)
        return frames

    def stop(self) -> None:
        """Closes the environments."""
        self.env_runner.close()
        close_env(self._setup.sample_env, self._setup.name)
