"""Settings by name: what all configs can do, whatever the settings are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self


class Settings:
    """An object whose public attributes are settings."""

    _is_frozen = False

    def __init__(self) -> None:
        self._module_configs: dict[ModuleID, Any] = {}

    def copy(self) -> Self:
        """A copy that can be changed."""
        new = copy.copy(self)
        new.__dict__.update({k: copy.copy(v) if isinstance(v, dict) else v for k, v in self.__dict__.items()})
        new._is_frozen = False
        new._module_configs = {}
        return new

    def freeze(self) -> None:
        """Makes any further change an error."""
        self._is_frozen = True

    def change(self, **settings: Any) -> None:
        """Changes settings even of a frozen config. For an algorithm whose modules come and go."""
        self._check_names(settings)
        self.__dict__.update(settings)
        self._module_configs.clear()

    def to_dict(self) -> dict[str, Any]:
        """All settings by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def update_from_dict(self, settings: Mapping[str, Any]) -> Self:
        """Sets settings by name."""
        self._check_names(settings)
        for name, value in settings.items():
            self._set(name, value)
        return self

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings for ``algorithm_config_overrides_per_module`` or ``evaluation_config``, checked."""
        cls()._check_names(settings)
        return settings

    def _set(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and self._is_frozen:
            raise ConfigError(f"{type(self).__name__}: frozen, so {name!r} cannot be set. Change a .copy() of it.")
        super().__setattr__(name, value)

    def _check_names(self, settings: Mapping[str, Any]) -> None:
        known = self.to_dict()
        for name in settings:
            if name not in known:
                raise ConfigError(f"{type(self).__name__}: unknown setting {name!r}. {did_you_mean(name, known)}")
