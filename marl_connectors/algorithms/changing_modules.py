"""Modules that come and go while training goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from marl_connectors.algorithms import building
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config_checks import check_policies_to_train
from marl_connectors.algorithms.settings import POLICIES_TO_TRAIN, POLICY_MAPPING
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.env_runners.env_runner import EnvRunner
from marl_connectors.environments.spec import EnvSpec
from marl_connectors.errors import ConfigError, ModuleError, did_you_mean
from marl_connectors.learner.learner import Learner
from marl_connectors.policy_mapping import PolicyMappingFn, check_patterns
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.seeding import torch_stream
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID
from marl_connectors.validators import instance_of, optional, text

ModulesToUpdate = Collection[ModuleID] | Callable[[ModuleID], bool]


class ChangingModules:
    """What an Algorithm can do with its modules.

    Attributes:
        config: The settings of the run, as they are now.
        seed: Of all random streams.
        rl_module: The modules, with which runners act and which the learner updates.
        learner: Updates them.
        env_runner: Acts with them.
    """

    config: AlgorithmConfig
    seed: int
    rl_module: MultiRLModule
    learner: Learner
    env_runner: EnvRunner
    _env_to_module: EnvToModulePipeline
    _setup: EnvSpec

    def __init__(self) -> None:
        self._changed_settings: set[str] = set()

    def get_module(self, module_id: ModuleID = DEFAULT_MODULE_ID) -> RLModule:
        """A module by id."""
        return self.rl_module[module_id]

    def add_module(
        self,
        module_id: ModuleID,
        module_spec: RLModuleSpec | None = None,
        *,
        module_state: Mapping[str, Any] | None = None,
        config_overrides: Mapping[str, Any] | None = None,
        new_agent_to_module_mapping_fn: str | PolicyMappingFn | None = None,
        new_should_module_be_updated: ModulesToUpdate | None = None,
        add_to_learners: bool = True,
        add_to_env_runners: bool = True,
        add_to_eval_env_runners: bool = True,
    ) -> RLModule:
        """Adds a module while training goes on. Checkpoints hold it too. If that fails, all is as it was before.

        A frozen copy of a module, as an opponent for it::

            main = algo.get_module("main")
            algo.add_module(
                "main_v1",
                RLModuleSpec.from_module(main),
                module_state=main.get_state(),
                new_agent_to_module_mapping_fn=against_main_v1,
                new_should_module_be_updated=["main"],
            )

        Args:
            module_id: A new id.
            module_spec: What is None in it is taken from the first module there is.
            module_state: Parameters to begin with, as ``RLModule.get_state`` gives them.
            config_overrides: Settings of this module alone, such as ``{"lr": 1e-4}``.
            new_agent_to_module_mapping_fn: Holds for episodes that begin from now on, also of evaluations.
            new_should_module_be_updated: ``policies_to_train`` from now on.
            add_to_learners: False for a module that is never updated, whatever ``policies_to_train`` says.
            add_to_env_runners: True: runners act with the modules that the learner has.
            add_to_eval_env_runners: True, likewise.

        Returns:
            The module.

        Raises:
            ModuleError: If there is a module of that id, or it is reserved.
            MappingError: If patterns do not fit the agents.
            ConfigError: For an override that is no setting of a module, or of the wrong kind; if a module to be updated
                is not there; or if there is only one agent.
        """
        _check_runners("add_module", add_to_env_runners, add_to_eval_env_runners)
        if self._setup.single_agent:
            raise ConfigError(
                f"add_module: {self._setup.name} has a single agent, whose module is {DEFAULT_MODULE_ID!r}, so nobody "
                f"would act by {module_id!r}. Change that module's parameters with its set_state instead."
            )
        if module_id in self.rl_module:
            raise ModuleError(
                f"add_module: there is a module {module_id!r} already. Choose another id, or call remove_module first."
            )
        text().check(module_id, "add_module", "module_id")
        optional(instance_of(RLModuleSpec, expected="an RLModuleSpec")).check(module_spec, "add_module", "module_spec")
        mapping = self._checked("add_module", new_agent_to_module_mapping_fn)
        self._check_updated("add_module", new_should_module_be_updated, [*self.rl_module, module_id])
        overrides, changed = self.config.algorithm_config_overrides_per_module, set(self._changed_settings)
        try:
            if config_overrides is not None:
                self._override(module_id, config_overrides)
            module = self._build_added(module_id, module_spec or RLModuleSpec())
            if module_state is not None:
                module.set_state(module_state)
            self.learner.add_module(module_id, module.to(self.config.device), is_updated=add_to_learners)
            if module.is_stateful():
                building.add_state_pieces_to(self.config, self._env_to_module, self.env_runner, self.learner)
        except BaseException:
            if module_id in self.rl_module:
                self.learner.remove_module(module_id)
            self.config.change(algorithm_config_overrides_per_module=overrides)
            self._changed_settings = changed
            raise
        policies = self.config.policies
        if isinstance(policies, dict):
            self.config.change(policies={**policies, module_id: None})
        elif policies is not None:
            self.config.change(policies=[*policies, module_id])
        self._remap(mapping, new_should_module_be_updated)
        return module

    def _build_added(self, module_id: ModuleID, spec: RLModuleSpec) -> RLModule:
        like = next(iter(self.rl_module.values()))
        overrides = self.config.algorithm_config_overrides_per_module.get(module_id, {})
        model_config = overrides.get("model_config", like.model_config)
        spec = dataclasses.replace(
            spec,
            module_class=spec.module_class or type(like),
            observation_space=spec.observation_space or like.observation_space,
            action_space=spec.action_space or like.action_space,
            model_config=model_config if spec.model_config is None else spec.model_config,
        )
        spec = self.config.complete_rl_module_spec(spec, self._setup, self._env_to_module)
        with torch_stream(self.seed, "module", module_id):
            return spec.build()

    def remove_module(
        self,
        module_id: ModuleID,
        *,
        new_agent_to_module_mapping_fn: str | PolicyMappingFn | None = None,
        new_should_module_be_updated: ModulesToUpdate | None = None,
        remove_from_learners: bool = True,
        remove_from_env_runners: bool = True,
        remove_from_eval_env_runners: bool = True,
    ) -> None:
        """Takes a module out. All ongoing episodes are dropped and begun anew, as agents may act by it there.

        Args:
            module_id: Which.
            new_agent_to_module_mapping_fn: Needed if the one so far names the module.
            new_should_module_be_updated: ``policies_to_train`` from now on.
            remove_from_learners: True: runners act with the modules that the learner has.
            remove_from_env_runners: True, likewise.
            remove_from_eval_env_runners: True, likewise.

        Raises:
            ModuleError: If there is no such module, or no other.
        """
        _check_runners("remove_module", remove_from_learners, remove_from_env_runners and remove_from_eval_env_runners)
        if module_id not in self.rl_module:
            raise ModuleError(
                f"remove_module: there is no module {module_id!r}. {did_you_mean(module_id, self.rl_module)}"
            )
        if len(self.rl_module) == 1:
            raise ModuleError(f"remove_module: {module_id!r} is the only module there is. Add another one first.")
        mapping = self._checked("remove_module", new_agent_to_module_mapping_fn)
        self._check_updated(
            "remove_module", new_should_module_be_updated, [m for m in self.rl_module if m != module_id]
        )
        self.learner.remove_module(module_id)
        policies, overrides = self.config.policies, self.config.algorithm_config_overrides_per_module
        if isinstance(policies, dict):
            self.config.change(policies={m: spec for m, spec in policies.items() if m != module_id})
        elif policies is not None:
            self.config.change(policies=[m for m in policies if m != module_id])
        if module_id in overrides:
            self._set(algorithm_config_overrides_per_module={m: o for m, o in overrides.items() if m != module_id})
        self._remap(mapping, new_should_module_be_updated)
        self.env_runner.restart_episodes()

    def set_policy_mapping_fn(self, policy_mapping_fn: str | PolicyMappingFn) -> None:
        """Maps agents anew in episodes that begin from now on, also of evaluations. Checkpoints keep it.

        Args:
            policy_mapping_fn: As in ``.multi_agent(...)``. A checkpoint can hold what can be imported by name, and
                instances of dataclasses that can.
        """
        self._remap(self._checked("set_policy_mapping_fn", policy_mapping_fn), None)

    def _override(self, module_id: ModuleID, overrides: Mapping[str, Any]) -> None:
        known = {**self.config.algorithm_config_overrides_per_module, module_id: overrides}
        tried = self.config.copy()
        tried.change(algorithm_config_overrides_per_module=known)
        tried.validate()
        self._set(algorithm_config_overrides_per_module=known)

    def _checked(self, who: str, mapping: str | PolicyMappingFn | None) -> PolicyMappingFn | None:
        if mapping is None:
            return None
        kept = POLICY_MAPPING.check(mapping, who, "policy_mapping_fn")
        check_patterns(kept, self._setup.agent_ids)
        return kept

    def _check_updated(self, who: str, wanted: ModulesToUpdate | None, module_ids: Collection[ModuleID]) -> None:
        kept = POLICIES_TO_TRAIN.check(wanted, who, "new_should_module_be_updated")
        check_policies_to_train(kept, module_ids)

    def _remap(self, mapping: PolicyMappingFn | None, to_update: ModulesToUpdate | None) -> None:
        if mapping is not None:
            self._set(policy_mapping_fn=mapping)
            self.env_runner.set_policy_mapping_fn(mapping)
        if to_update is not None:
            self._set(policies_to_train=to_update)

    def _set(self, **settings: Any) -> None:
        """Changes settings of the run that goes on."""
        self.config.change(**settings)
        self._changed_settings.update(settings)


def _check_runners(method: str, *on: bool) -> None:
    if not all(on):
        raise ConfigError(
            f"{method}: runners and learner have the same modules in this version, so a module cannot be with some of "
            f"them only. Leave the argument out."
        )
