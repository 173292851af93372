"""RLlib's import paths of what this library keeps elsewhere, and advice for those of what it does not have."""

from __future__ import annotations

import re
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

LIBRARY: Final = "marl_connectors"

PATHS: Final = {
    "algorithms.algorithm_config": "algorithms.config.algorithm_config algorithms.config.sections",
    "algorithms.bc.torch": "",
    "algorithms.bc.torch.default_bc_torch_rl_module": "algorithms.ppo.rl_module",
    "algorithms.callbacks": "callbacks",
    "algorithms.dqn.default_dqn_rl_module": "algorithms.dqn.rl_module",
    "algorithms.dqn.dqn": "algorithms.dqn.config algorithms.dqn.learner",
    "algorithms.dqn.dqn_learner": "algorithms.dqn.learner",
    "algorithms.dqn.torch": "",
    "algorithms.dqn.torch.default_dqn_torch_rl_module": "algorithms.dqn.rl_module",
    "algorithms.dqn.torch.dqn_torch_learner": "algorithms.dqn.learner",
    "algorithms.marwil.marwil_learner": "algorithms.marwil.learner",
    "algorithms.marwil.torch": "",
    "algorithms.marwil.torch.marwil_torch_learner": "algorithms.marwil.learner",
    "algorithms.ppo.default_ppo_rl_module": "algorithms.ppo.rl_module",
    "algorithms.ppo.ppo_learner": "algorithms.ppo.learner",
    "algorithms.ppo.torch": "",
    "algorithms.ppo.torch.default_ppo_torch_rl_module": "algorithms.ppo.rl_module",
    "algorithms.ppo.torch.ppo_torch_learner": "algorithms.ppo.learner",
    "algorithms.ppo.torch.ppo_torch_rl_module": "algorithms.ppo.rl_module",
    "algorithms.sac.default_sac_rl_module": "algorithms.sac.rl_module",
    "algorithms.sac.sac": "algorithms.sac.config algorithms.sac.learner",
    "algorithms.sac.sac_learner": "algorithms.dqn.learner algorithms.sac.learner",
    "algorithms.sac.torch": "",
    "algorithms.sac.torch.default_sac_torch_rl_module": "algorithms.sac.rl_module",
    "algorithms.sac.torch.sac_torch_learner": "algorithms.sac.learner",
    "connectors.env_to_module.flatten_observations": "connectors.common.flatten_observations",
    "connectors.env_to_module.frame_stacking": "connectors.common.frame_stacking",
    "connectors.learner.add_columns_from_episodes_to_batch": (
        "connectors.learner.add_columns_from_episodes_to_train_batch"
    ),
    "connectors.learner.frame_stacking": "connectors.common.frame_stacking",
    "core": "columns typing",
    "core.columns": "columns",
    "core.distribution": "",
    "core.distribution.distribution": "rl_module.distributions",
    "core.distribution.torch": "",
    "core.distribution.torch.torch_distribution": "rl_module.distributions",
    "core.learner": "learner.learner learner.learner_group",
    "core.learner.learner": "learner.learner",
    "core.learner.learner_group": "learner.learner_group",
    "core.learner.torch": "",
    "core.learner.torch.torch_learner": "learner.learner",
    "core.learner.utils": "rl_module.apis",
    "core.rl_module": "rl_module.multi_rl_module rl_module.rl_module",
    "core.rl_module.apis": "rl_module.apis",
    "core.rl_module.apis.inference_only_api": "rl_module.apis",
    "core.rl_module.apis.self_supervised_loss_api": "rl_module.apis",
    "core.rl_module.apis.target_network_api": "rl_module.apis",
    "core.rl_module.apis.value_function_api": "rl_module.apis",
    "core.rl_module.default_model_config": "rl_module.default_model_config",
    "core.rl_module.multi_rl_module": "rl_module.multi_rl_module",
    "core.rl_module.rl_module": "rl_module.default_model_config rl_module.rl_module",
    "core.rl_module.torch": "rl_module.rl_module",
    "core.rl_module.torch.torch_rl_module": "rl_module.rl_module",
    "env": "environments.adapters.multi_agent_env",
    "env.env_runner": "env_runners.env_runner",
    "env.env_runner_group": "env_runners.env_runner_group",
    "env.multi_agent_env": "environments.adapters.multi_agent_env",
    "env.multi_agent_env_runner": "env_runners.env_runner",
    "env.multi_agent_episode": "episodes.multi_agent_episode",
    "env.single_agent_env_runner": "env_runners.env_runner",
    "env.single_agent_episode": "episodes.single_agent_episode",
    "env.wrappers": "",
    "env.wrappers.pettingzoo_env": "environments.adapters.multi_agent_env",
    "utils.checkpoints": "checkpoints",
    "utils.error": "errors",
    "utils.metrics.metrics_logger": "metrics",
    "utils.replay_buffers": "replay_buffers.replay_buffer",
    "utils.replay_buffers.episode_replay_buffer": "replay_buffers.replay_buffer",
    "utils.replay_buffers.multi_agent_episode_buffer": "replay_buffers.replay_buffer",
    "utils.replay_buffers.multi_agent_prioritized_episode_buffer": "replay_buffers.replay_buffer",
    "utils.replay_buffers.prioritized_episode_buffer": "replay_buffers.replay_buffer",
}
"""The modules whose public names a path of RLlib has, all of them without ``marl_connectors.``."""

_OLD_STACK: Final = ("RLlib's old API stack is not here. Write an RLModule, connector pieces and callbacks", "rllib")

NOT_HERE: Final = {
    r"algorithms\.\w+\.\w+_catalog|core\.models|models\.catalog": (
        "there are no catalogs. Use DefaultModelConfig, or write an RLModule",
        "modules",
    ),
    r"algorithms\.(appo|impala)": ("there is no such algorithm here. Use PPO, with remote env runners", "cluster"),
    r"algorithms\.(cql|iql)": ("there is no such algorithm here. Use BC or MARWIL", "imitation"),
    r"algorithms\.dreamerv3": ("there is no such algorithm here. Use PPO, DQN or SAC", "rllib"),
    r"algorithms\.tqc": ("there is no such algorithm here. Use SAC", "sac"),
    r"algorithms\.\w+\.\w+_(policy|model)|evaluation|execution|models|policy": _OLD_STACK,
    r"connectors\.(action|agent|connector|registry|util)": _OLD_STACK,
    r"core\.learner(\.torch)?\.\w*(differentiable|meta)_learner\w*": (
        "there is no meta-learning here. Override compute_loss_for_module of a Learner",
        "learner",
    ),
    r"core\.rl_module\.apis\.q_net_api": ("there is no QNetAPI here. Derive from DefaultDQNRLModule", "off_policy"),
    r"env\.(external\w*|policy_client|tcp_client\w*|env_runner_state_server)": (
        "there are no external environments here. Act with load_policy in the other program",
        "inference",
    ),
    r"env\.(vector|vector_env|base_env|remote_base_env)": (
        "RLlib's vector environments are not here. Pass num_envs_per_env_runner, or a Gymnasium VectorEnv",
        "vector_environments",
    ),
    r"env\.env_context": ("there is no EnvContext here. An environment gets its env_config as a dict", "rllib"),
    r"env\.env_errors": ("RLlib's errors of environments are not here. Use EnvError", "errors"),
    r"env\.wrappers\.group_agents_wrapper": (
        "agents are not grouped here. Use QMIX, VDN or MAPPO without groups",
        "value_decomposition",
    ),
    r"env\.wrappers\.\w+": ("this wrapper is not here. Use those of Gymnasium, PettingZoo or SuperSuit", "wrappers"),
    r"offline\.(estimators|off_policy_estimator|is_estimator|wis_estimator|feature_importance|offline_\w*evaluat\w+)": (
        "RLlib's estimators are not here. Use algo.evaluate_offline()",
        "imitation",
    ),
    r"examples|utils\.test_utils|core\.testing": (
        "RLlib's helpers of examples and tests are not here. Call algo.fit(), or algo.train() in a loop",
        "training",
    ),
    r"offline": ("RLlib's readers and writers are not here. Use EpisodeReader and EpisodeWriter", "offline_data"),
    r"utils\.metrics": ("RLlib's classes of statistics are not here. Use MetricsLogger", "callbacks"),
    r"utils\.replay_buffers": ("this buffer is not here. replay_buffer_config lists those that are", "off_policy"),
    r"utils\.schedules": ("RLlib's schedules are not here. Write lr=[[env_step, value], ...]", "configuration"),
    r"utils\.(exploration|filter|filter_manager|policy|sgd|tf_\w+)": _OLD_STACK,
}
"""Regular expressions for RLlib's other paths and what is below them: what to use, and the page in ``docs/``."""


def import_lines(path: str) -> str:
    """Returns what a file at a path of RLlib would contain. ``setup.py`` writes it for editors."""
    return "".join(f"from {LIBRARY}.{module} import *\n" for module in PATHS[path].split())


class RLlibPaths(Loader):
    """Finds the modules at RLlib's paths: an entry of ``sys.meta_path`` that comes before Python's own."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns the spec of a module at one of these paths, and None for all others."""
        library, _, name = fullname.partition(".")
        if library != LIBRARY or name not in PATHS:
            return None
        return ModuleSpec(fullname, self, origin=__file__, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Imports the names."""
        exec(import_lines(module.__name__.partition(".")[2]), module.__dict__)


class NothingFound:
    """Says what to use instead of a missing module of this library: the last entry of ``sys.meta_path``."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Returns None for modules of other libraries.

        Raises:
            ModuleNotFoundError: If the module is of this one.
        """
        library, _, name = fullname.partition(".")
        if library != LIBRARY:
            return
        for start, (advice, page) in NOT_HERE.items():
            if re.match(rf"({start})(\.|$)", name):
                # With its argument `name`, `from marl_connectors import policy` would not show the message.
                raise ModuleNotFoundError(f"{fullname}: {advice} (docs/{page}.md).")
        raise ModuleNotFoundError(
            f"{fullname}: there is no such module. Check its spelling; docs/rllib.md lists RLlib's paths.",
            name=fullname,
        )
