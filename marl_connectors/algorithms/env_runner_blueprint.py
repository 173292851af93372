"""RunBlueprint: makes the env runners of a run in any process, from settings and specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium import Space

from marl_connectors.algorithms import build
from marl_connectors.algorithms.action_mask_setting import Masking
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.cluster.hosted_env_runner import PlayRequest
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.environments.registry.registry import REGISTERED, register_env
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_connectors.seeding import torch_stream
from marl_connectors.typing import ModuleID

_OF_THE_ALGORITHM = (
    "learner_class",
    "learner_connector",
    "callbacks_on_algorithm_init",
    "callbacks_on_train_result",
    "callbacks_on_evaluate_start",
    "callbacks_on_evaluate_end",
    "callbacks_on_env_runners_recreated",
    "callbacks_on_checkpoint_loaded",
)
"""Settings that env runners do not use. Their functions may hold what cannot be sent, such as a file or a socket."""


@dataclass
class RunBlueprint:
    """Makes env runners in the processes of Ray actors. It can be pickled.

    Attributes:
        config: The run's config.
        seed: The run's seed.
        masking: The action masks that the run applies.
        rl_module_specs: The complete specs of the modules that the run has now.
        has_state_pieces: Whether the pipelines have the pieces that stateful modules need. They keep them if the last
            stateful module is removed.
        lookback: The number of earlier steps that a chunk of an episode keeps.
        rollout_fragment_length: The default length of a sample, in env steps of each sub-environment.
        state_space: The space of the environment's ``state()`` if episodes record it, else None.
        env_maker: The function that the config's ``env`` stands for, if it is a name given to ``register_env``.
    """

    config: AlgorithmConfig
    seed: int
    masking: Masking
    rl_module_specs: Mapping[ModuleID, RLModuleSpec]
    has_state_pieces: bool
    lookback: int
    rollout_fragment_length: int
    state_space: Space | None
    env_maker: Callable[..., Any] | None = None
    _setup: EnvSpec | None = field(default=None, init=False, repr=False)  # of the process that makes env runners

    @classmethod
    def of(cls, config: AlgorithmConfig, **fields: Any) -> RunBlueprint:
        """Returns the blueprint with a copy of the config, whose device is that of remote env runners."""
        config = config.copy()
        for name in _OF_THE_ALGORITHM:
            setattr(config, name, None)
        config.num_learners = 0  # so that num_gpus_per_learner is the device
        config.num_gpus_per_learner = float(config.num_gpus_per_env_runner > 0)
        if config.num_env_workers == "auto":
            config.num_env_workers = 0  # the env runners themselves are the processes
        maker = REGISTERED.get(config.env) if isinstance(config.env, str) else None
        return cls(config, env_maker=maker, **fields)

    def build(self, first_env_number: int, num_envs: int) -> EnvRunner:
        """Makes an env runner with some of the run's sub-environments."""
        return self._build(self.config, self.seed, first_env_number, num_envs, for_training=True)

    def build_for_evaluation(self, request: PlayRequest) -> EnvRunner:
        """Makes an env runner that plays the episodes of an evaluation; its filters do not count."""
        config = self.config.copy().update_from_dict(dict(request.settings))
        runner = self._build(config, request.seed, request.first_env_number, request.num_envs, for_training=False)
        runner.in_evaluation = True
        return runner

    def _build(
        self, config: AlgorithmConfig, seed: int, first_env_number: int, num_envs: int, *, for_training: bool
    ) -> EnvRunner:
        setup = self._setup = self._setup or self._new_setup()
        env_to_module, _ = build.build_env_to_module(config, setup, masking=self.masking)
        modules = build.build_modules(config, setup, env_to_module, self.seed, self.rl_module_specs)
        if not for_training:
            build.stop_counting(env_to_module)
        runner = EnvRunner(
            parts=build.build_env_runner_parts(
                config,
                setup,
                modules,
                env_to_module,
                seed=seed,
                num_envs=num_envs,
                rollout_fragment_length=self.rollout_fragment_length,
                lookback=self.lookback,
                state_space=self.state_space if for_training else None,
                first_env_number=first_env_number,
                merges_connector_states=not merges_states(self.config),
            )
        )
        self._add_state_pieces(runner)
        return runner

    def _new_setup(self) -> EnvSpec:
        if self.env_maker is not None:
            register_env(self.config.env, self.env_maker)
        return build.build_setup(self.config)

    def follow(self, former: RunBlueprint) -> None:
        """Takes over the sample environment of a former blueprint. Evaluations and training have the same one."""
        self._setup = former._setup

    def adapt(self, runner: EnvRunner) -> None:
        """Gives an env runner the modules and the mapping function that the run has now."""
        modules = runner.rl_module
        removed = [module_id for module_id in modules if module_id not in self.rl_module_specs]
        for module_id, spec in self.rl_module_specs.items():
            if module_id not in modules:
                with torch_stream(self.seed, "module", module_id):
                    modules.add_module(module_id, spec.build().to(self.config.device))
        for module_id in removed:
            modules.remove_module(module_id)
        self._add_state_pieces(runner)
        runner.set_policy_mapping_fn(self.config.policy_mapping_fn)

    def _add_state_pieces(self, runner: EnvRunner) -> None:
        if self.has_state_pieces:
            build.add_state_pieces_to_runner(self.config, runner)


def merges_states(config: AlgorithmConfig) -> bool:
    """Whether all env runners continue with the merged states of connector pieces, instead of each with its own."""
    return bool(config.merge_env_runner_states) and config.broadcast_env_runner_states
