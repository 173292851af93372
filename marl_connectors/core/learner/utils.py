"""RLlib's path to ``marl_connectors.rl_module.apis``."""

from marl_connectors.rl_module.apis import make_target_network as make_target_network
