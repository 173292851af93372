"""RLlib's path to ``marl_connectors.rl_module.apis``."""

from marl_connectors.rl_module.apis import InferenceOnlyAPI as InferenceOnlyAPI
