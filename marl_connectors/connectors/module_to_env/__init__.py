"""Pieces of module-to-env pipelines. A name is imported when it is first used."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.connectors.common.module_to_agent_unmapping import (
        ModuleToAgentUnmapping as ModuleToAgentUnmapping,
    )
    from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy as TensorToNumpy
    from marl_connectors.connectors.module_to_env.get_actions import GetActions as GetActions
    from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import (
        ListifyDataForVectorEnv as ListifyDataForVectorEnv,
    )
    from marl_connectors.connectors.module_to_env.module_to_env_pipeline import (
        ModuleToEnvPipeline as ModuleToEnvPipeline,
    )
    from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import (
        NormalizeAndClipActions as NormalizeAndClipActions,
    )
    from marl_connectors.connectors.module_to_env.remove_single_ts_time_rank_from_batch import (
        RemoveSingleTsTimeRankFromBatch as RemoveSingleTsTimeRankFromBatch,
    )
    from marl_connectors.connectors.module_to_env.unbatch_to_individual_items import (
        UnBatchToIndividualItems as UnBatchToIndividualItems,
    )

__getattr__, __dir__, __all__ = re_exports(
    __name__,
    "GetActions",
    "ListifyDataForVectorEnv",
    "ModuleToAgentUnmapping",
    "ModuleToEnvPipeline",
    "NormalizeAndClipActions",
    "RemoveSingleTsTimeRankFromBatch",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
)
