"""RLlib's path to ``marl_connectors.rl_module.apis``."""

from marl_connectors.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS as TARGET_NETWORK_ACTION_DIST_INPUTS
from marl_connectors.rl_module.apis import TargetNetworkAPI as TargetNetworkAPI
