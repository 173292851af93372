"""RunLearnerBlueprint: makes the learners of a run in any process, from settings and specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymnasium import Space

from marl_connectors.algorithms import build
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.learner.learner import Learner
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from marl_connectors.seeding import torch_stream


@dataclass
class RunLearnerBlueprint:
    """Makes learners in the processes of Ray actors, without an environment. It can be pickled.

    Attributes:
        config: The run's config.
        seed: The run's seed.
        spec: The complete specs of the modules that the run has now.
        input_spaces: The observation and the action space of the environment, by agent if there are several.
        multi_agent: Whether there are several agents.
        of_algorithm: The learner connector pieces of the algorithm.
        has_state_pieces: Whether the learner pipeline has the pieces that stateful modules need. It keeps them if the
            last stateful module is removed.
    """

    config: AlgorithmConfig
    seed: int
    spec: MultiRLModuleSpec
    input_spaces: tuple[Space, Space]
    multi_agent: bool
    of_algorithm: Sequence[ConnectorV2]
    has_state_pieces: bool = False

    @classmethod
    def of(
        cls,
        config: AlgorithmConfig,
        setup: EnvSpec,
        env_to_module: EnvToModulePipeline,
        modules: MultiRLModule,
        seed: int,
        has_state_pieces: bool = False,
    ) -> RunLearnerBlueprint:
        """Returns the blueprint of a run as it is now.

        Args:
            config: The settings.
            setup: The environment.
            env_to_module: The pipeline that makes the modules' input.
            modules: The modules.
            seed: The run's seed.
            has_state_pieces: As above.
        """
        config = config.copy()
        for name in (*CALLBACK_NAMES, "env_to_module_connector", "module_to_env_connector"):
            # Learners do not use these functions, which may hold what cannot be sent, such as a file or a socket.
            setattr(config, f"callbacks_{name}" if name in CALLBACK_NAMES else name, None)
        return cls(
            config=config,
            seed=seed,
            spec=MultiRLModuleSpec.from_module(modules),
            input_spaces=(setup.space_of_all(0), setup.space_of_all(1)),
            multi_agent=not setup.single_agent,
            of_algorithm=config.default_learner_pieces(setup, env_to_module),
            has_state_pieces=has_state_pieces,
        )

    def build(self) -> Learner:
        """Makes a learner with new modules. Their parameters are set afterwards, with the state."""
        with torch_stream(self.seed, "modules of a learner"):
            modules = self.spec.build()
        learner = build.build_learner_for_spaces(
            self.config,
            modules.to(self.config.device),
            input_spaces=self.input_spaces,
            multi_agent=self.multi_agent,
            of_algorithm=self.of_algorithm,
            seed=self.seed,
        )
        if self.has_state_pieces:
            build.add_state_pieces_to_learner(self.config, learner)
        return learner
