"""RunLearnerBlueprint: makes learners like one of a run in any process, from settings and specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymnasium import Space

from marl_connectors.algorithms import build
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.learner.learner import Learner
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
from marl_connectors.seeding import torch_stream

_NOT_OF_LEARNERS = (
    *(f"callbacks_{name}" for name in CALLBACK_NAMES),
    "env_to_module_connector",
    "module_to_env_connector",
)
"""Settings that learners do not use. Their functions may hold what cannot be sent, such as a file or a socket."""


@dataclass
class RunLearnerBlueprint:
    """Makes learners in any process, without an environment. It can be pickled.

    Attributes:
        config: The settings.
        seed: The seed of the order of rows.
        spec: The complete specs of the modules.
        input_spaces: The observation and the action space of the environment, by agent if there are several.
        multi_agent: Whether there are several agents.
        of_algorithm: The learner connector pieces of the algorithm.
        has_state_pieces: Whether the pipeline has the pieces that stateful modules need. It keeps them if the last
            stateful module is removed.
    """

    config: AlgorithmConfig
    seed: int
    spec: MultiRLModuleSpec
    input_spaces: Sequence[Space]
    multi_agent: bool
    of_algorithm: Sequence[ConnectorV2]
    has_state_pieces: bool

    @classmethod
    def of(cls, learner: Learner, config: AlgorithmConfig) -> RunLearnerBlueprint:
        """Returns the blueprint of a learner as it is now.

        Args:
            learner: The learner.
            config: Its settings, or others for the new learners.
        """
        config, pipeline = config.copy(), learner.pipeline
        for name in _NOT_OF_LEARNERS:
            setattr(config, name, None)
        return cls(
            config=config,
            seed=learner._seed,
            spec=MultiRLModuleSpec.from_module(learner.module),
            input_spaces=(pipeline.input_observation_space, pipeline.input_action_space),  # type: ignore[arg-type]
            multi_agent="AgentToModuleMapping" in pipeline.names(),
            of_algorithm=learner.algorithm_pieces,
            has_state_pieces=build.has_state_pieces(pipeline),
        )

    def build(self) -> Learner:
        """Makes a learner with new modules. Their parameters are set afterwards, with the state."""
        with torch_stream(self.seed, "modules of a learner"):
            modules = self.spec.build()
        return build.build_learner_for_spaces(
            self.config,
            modules.to(self.config.device),
            input_spaces=self.input_spaces,
            multi_agent=self.multi_agent,
            of_algorithm=self.of_algorithm,
            seed=self.seed,
            stateful=self.has_state_pieces,
        )
