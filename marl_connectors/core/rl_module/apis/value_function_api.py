"""RLlib's path to ``marl_connectors.rl_module.apis``."""

from marl_connectors.rl_module.apis import ValueFunctionAPI as ValueFunctionAPI
