"""Algorithm: samples, learns, evaluates, and keeps checkpoints."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_connectors.algorithms import building
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config_state import config_from_state, config_to_state
from marl_connectors.algorithms.vectorization import human_render_mode
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.connectors.explain import Explanation
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.env_runners.episode_metrics import Tally, summarize, tally_from_state
from marl_connectors.errors import CheckpointError
from marl_connectors.metrics import by_pipeline
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.seeding import derived_seed, torch_stream
from marl_connectors.spaces import describe
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID


class Algorithm:
    """A run: environments, modules and a learner, built from a config.

    ``train()`` is one iteration: collect a batch of episodes, update the modules.
    """

    def __init__(self, config: AlgorithmConfig):
        """Builds everything, and tries the environment out.

        Raises:
            MarlConnectorsError: If a setting, the environment or the mapping function does not work.
        """
        self.config = config.copy()
        self.config.validate()
        self.seed = secrets.randbits(31) if config.seed is None else config.seed
        self.config.freeze()
        self._setup = building.build_setup(config)
        if not config.disable_env_checking:
            self._setup.check(self.seed)
        self._env_to_module = building.build_env_to_module(self.config, self._setup)
        self.rl_module = building.build_modules(self.config, self._setup, self._env_to_module, self.seed)
        self.learner = building.build_learner(self.config, self._setup, self.rl_module, self._env_to_module, self.seed)
        window = human_render_mode(self.config, self._setup)
        self.env_runner = self._runner(self.seed, self.config.num_envs_per_env_runner, self.config.explore, window)
        self.callbacks = self.config.callbacks_class()
        self.iteration = 0
        self._time_total_s = 0.0
        self._num_evaluations = 0
        self._recent: deque[Tally] = deque(maxlen=self.config.metrics_num_episodes_for_smoothing)
        self.callbacks.on_algorithm_init(algorithm=self)

    def _runner(self, seed: int, num_envs: int, explore: bool, first_render_mode: str | None = None) -> EnvRunner:
        return building.build_env_runner(
            self.config,
            self._setup,
            self.rl_module,
            self._env_to_module,
            self.learner.pipeline,
            seed=seed,
            num_envs=num_envs,
            explore=explore,
            rollout_fragment_length=self._fragment_length(),
            first_render_mode=first_render_mode,
        )

    def _fragment_length(self) -> int:
        config = self.config
        if config.rollout_fragment_length != "auto":
            return int(config.rollout_fragment_length)
        steps = config.train_batch_size_per_learner / config.num_envs_per_env_runner
        if config.count_steps_by == "agent_steps":
            steps /= len(self._setup.agent_ids)
        return max(1, math.ceil(steps))

    @property
    def agent_ids(self) -> list[AgentID]:
        """The environment's possible agents."""
        return list(self._setup.agent_ids)

    # Training.

    def train(self) -> dict[str, Any]:
        """One iteration.

        Returns:
            ``env_runners`` (returns and lengths of the newest episodes, and ``uncredited_reward``, the sum of the
            rewards of this iteration that are in no train batch), ``learners`` (losses by module), ``timers``, counts
            of steps and iterations, and ``connectors`` (by pipeline, what pieces have logged) if they have.
        """
        began = time.perf_counter()
        episodes = self._sample()
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
        self._time_total_s += ended - began
        self._recent.extend(runner.take_finished())
        result = {
            "training_iteration": self.iteration,
            "num_env_steps_sampled_lifetime": runner.num_env_steps,
            "num_agent_steps_sampled_lifetime": runner.num_agent_steps,
            "time_this_iter_s": ended - began,
            "time_total_s": self._time_total_s,
            "env_runners": summarize(self._recent) | runner.take_counts(),
            "learners": learned,
            "timers": {"sample_s": sampled - began, "learn_s": ended - sampled},
            **by_pipeline(**runner.metrics, learner=self.learner.metrics),
        }
        if (interval := self.config.evaluation_interval) is not None and self.iteration % interval == 0:
            result["evaluation"] = self.evaluate()
        self.callbacks.on_train_result(algorithm=self, result=result)
        return result

    def _sample(self) -> list[Any]:
        """Episodes for one train batch."""
        config, runner = self.config, self.env_runner
        size = config.train_batch_size_per_learner
        episodes: list[Any] = []
        collected = 0
        while collected < size:
            if config.batch_mode == "complete_episodes":
                new = runner.sample(num_episodes=config.num_envs_per_env_runner)
            else:
                new = runner.sample()
            episodes += new
            by_agents = config.count_steps_by == "agent_steps"
            collected += sum(e.agent_steps() if by_agents else e.env_steps() for e in new)
        return episodes

    def evaluate(
        self, *, num_episodes: int | None = None, explore: bool = False, seed: int | None = None
    ) -> dict[str, Any]:
        """Returns of fresh episodes in environment copies of their own; training is not touched.

        Args:
            num_episodes: How many; ``evaluation_duration`` if None.
            explore: Whether to sample actions.
            seed: Of these episodes; if None, a new one for each evaluation, derived from the run's.

        Returns:
            As ``env_runners`` in ``train()``'s result.
        """
        self.callbacks.on_evaluate_start(algorithm=self)
        number = self.config.evaluation_duration if num_episodes is None else num_episodes
        seed = derived_seed(self.seed, "evaluation", self._num_evaluations) if seed is None else seed
        self._num_evaluations += 1
        results = self._play(number, seed, explore=explore, at_random=False)
        self.callbacks.on_evaluate_end(algorithm=self, evaluation_metrics=results)
        return results

    def random_play(self, *, num_episodes: int = 100, seed: int | None = None) -> dict[str, Any]:
        """Returns of episodes with random actions, as a baseline; as ``evaluate`` gives them."""
        seed = derived_seed(self.seed, "random play") if seed is None else seed
        return self._play(num_episodes, seed, explore=True, at_random=True)

    def _play(self, num_episodes: int, seed: int, *, explore: bool, at_random: bool) -> dict[str, Any]:
        runner = self._runner(seed, min(num_episodes, self.config.num_envs_per_env_runner), explore)
        with self._borrowed(runner):
            runner.sample(num_episodes=num_episodes, explore=explore, random_actions=at_random)
            return runner.get_metrics()

    @contextmanager
    def _borrowed(self, runner: EnvRunner) -> Iterator[None]:
        """Lends a runner what the pipelines have learned; closes it after use, and undoes what its episodes taught."""
        learned = self._env_to_module.get_state()
        runner.module_to_env.set_state(self.env_runner.module_to_env.get_state())
        try:
            yield
        finally:
            self._env_to_module.set_state(learned)
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
        metadata = getattr(self._setup.probe, "metadata", None) or {}  # a natively batched one may have none
        if "rgb_array" not in metadata.get("render_modes", ()):
            return []
        runner = building.build_env_runner(
            self.config,
            self._setup,
            self.rl_module,
            self._env_to_module,
            self.learner.pipeline,
            seed=seed,
            num_envs=1,
            explore=explore,
            rollout_fragment_length=1,
            render_mode="rgb_array",
        )
        env, frames = runner.vector_env.copies[0].env, []
        with self._borrowed(runner):
            while len(frames) < max_frames:
                runner.sample(num_timesteps=1)
                frame = env.render()
                if frame is None:
                    return []
                frames.append(frame)
        return frames

    # Modules.

    def get_module(self, module_id: ModuleID = DEFAULT_MODULE_ID) -> RLModule:
        """A module by id."""
        return self.rl_module[module_id]

    def add_module(
        self,
        module_id: ModuleID,
        module_spec: RLModuleSpec | None = None,
        *,
        new_agent_to_module_mapping_fn: Callable[..., ModuleID] | None = None,
    ) -> RLModule:
        """Adds a module while training goes on.

        Args:
            module_id: A new id.
            module_spec: What is None in it is taken from the config and, for spaces, from the first module there is.
            new_agent_to_module_mapping_fn: Holds for episodes that begin from now on.
        """
        like = next(iter(self.rl_module.values()))
        spec = module_spec or RLModuleSpec()
        with torch_stream(self.seed, "module", module_id):
            module = RLModuleSpec(
                spec.module_class or type(like),
                spec.observation_space or like.observation_space,
                spec.action_space or like.action_space,
                model_config=spec.model_config if spec.model_config is not None else like.model_config,
                load_state_path=spec.load_state_path,
            ).build()
        if module.is_stateful():
            building.add_state_pieces_to(self.config, self._env_to_module, self.env_runner, self.learner)
        self.learner.add_module(module_id, module.to(self.config.device))
        self._remap(new_agent_to_module_mapping_fn)
        return module

    def remove_module(
        self, module_id: ModuleID, *, new_agent_to_module_mapping_fn: Callable[..., ModuleID] | None = None
    ) -> None:
        """Takes a module out. Episodes in which agents act by it are dropped and begun anew."""
        self.learner.remove_module(module_id)
        self._remap(new_agent_to_module_mapping_fn)
        self.env_runner.restart_episodes()

    def _remap(self, mapping: Callable[..., ModuleID] | None) -> None:
        if mapping is not None:
            self.env_runner.set_policy_mapping_fn(mapping)

    def stop(self) -> None:
        """Closes the environments."""
        self.env_runner.close()
        self._setup.probe.close()

    # Checkpoints.

    def get_state(self) -> dict[str, Any]:
        """Everything that the next iteration depends on, as JSON data, arrays and tensors."""
        return {
            "config": config_to_state(self.config),
            "seed": self.seed,
            "iteration": self.iteration,
            "time_total_s": self._time_total_s,
            "num_evaluations": self._num_evaluations,
            "recent_tallies": [tally.get_state() for tally in self._recent],
            "spaces": {
                str(agent_id): [describe(space) for space in self._setup.agent_spaces(agent_id)]
                for agent_id in self._setup.agent_ids
            },
            "learner": self.learner.get_state(),
            "env_runner": self.env_runner.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what ``get_state`` gave.

        Raises:
            CheckpointError: If it is of another environment or other modules; nothing is changed then. Or if an ongoing
                episode cannot be replayed.
        """
        self._check_fits(state)
        self.seed = state["seed"]
        self.iteration = state["iteration"]
        self._time_total_s = state["time_total_s"]
        self._num_evaluations = state["num_evaluations"]
        self._recent.clear()
        self._recent.extend(tally_from_state(tally) for tally in state["recent_tallies"])
        self.learner.set_state(state["learner"])
        self.env_runner.set_state(state["env_runner"])

    def _check_fits(self, state: dict[str, Any]) -> None:
        here = {
            str(agent_id): [describe(space) for space in self._setup.agent_spaces(agent_id)]
            for agent_id in self._setup.agent_ids
        }
        if here != state["spaces"]:
            raise CheckpointError(
                f"checkpoint: it is of an environment with agents {_briefly(state['spaces'])}, but {self._setup.name} "
                f"has {_briefly(here)}. Restore it into the environment that it was made in."
            )
        if set(state["learner"]["module"]) != set(modules := self.rl_module.get_state()):
            raise CheckpointError(
                f"checkpoint: it has the modules {sorted(state['learner']['module'])}, but this run has "
                f"{sorted(modules)}. Use the same policies."
            )
        for module_id, saved in state["learner"]["module"].items():
            shapes = {name: tuple(value.shape) for name, value in modules[module_id].items()}
            for name in sorted({*shapes, *saved}):
                there = tuple(saved[name].shape) if name in saved else None
                if shapes.get(name) != there:
                    raise CheckpointError(
                        f"checkpoint: module {module_id!r} is of another architecture: its {name!r} has the shape "
                        f"{there}, but here {shapes.get(name)}. Use the same rl_module settings."
                    )
        copies = len(state["env_runner"]["episode_numbers"])
        if copies != self.config.num_envs_per_env_runner:
            raise CheckpointError(
                f"checkpoint: it has {copies} environment copies, this run has {self.config.num_envs_per_env_runner}. "
                f"Use the same num_envs_per_env_runner."
            )

    def save_to_path(self, path: str | Path) -> str:
        """Writes a checkpoint folder: tensors as safetensors, the rest as JSON."""
        save_state(path, self.get_state())
        return str(path)

    def restore_from_path(self, path: str | Path) -> None:
        """Takes over a checkpoint's state, so that training goes on as if it had never stopped."""
        self._take_over(path, _algorithm_state(path))
        self.callbacks.on_checkpoint_loaded(algorithm=self)

    def _take_over(self, path: str | Path, state: dict[str, Any]) -> None:
        try:
            self.set_state(state)
        except KeyError as error:
            raise CheckpointError(
                f"checkpoint: {path} lacks {error}, so another version wrote it. Use that version."
            ) from error

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, config: AlgorithmConfig | None = None) -> Algorithm:
        """The algorithm that wrote a checkpoint, as it was then.

        Args:
            path: The checkpoint folder.
            config: Needed only if the checkpoint's config holds functions or classes that cannot be imported by name.

        Raises:
            CheckpointError: If it is missing, damaged, or needs a ``config``.
        """
        state = _algorithm_state(path)
        config = config_from_state(state["config"]) if config is None else config.copy()
        config.seed = state["seed"]
        algorithm = cls(config)
        algorithm._take_over(path, state)
        algorithm.callbacks.on_checkpoint_loaded(algorithm=algorithm)
        return algorithm


def _algorithm_state(path: str | Path) -> dict[str, Any]:
    state = load_state(path)
    if not {"config", "seed", "learner", "env_runner", "spaces"} <= set(state):
        raise CheckpointError(f"{path}: this is not a checkpoint of an Algorithm. Name one that save_to_path wrote.")
    return state


def _briefly(agents: dict[str, list[str]]) -> str:
    shown = ", ".join(f"{agent_id} ({' → '.join(pair)})" for agent_id, pair in list(agents.items())[:3])
    return shown + (", ..." if len(agents) > 3 else "")
