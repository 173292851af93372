"""The settings that name callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.algorithms.section import UNSET, section
from marl_connectors.algorithms.settings import Settings
from marl_connectors.callbacks import CALLBACK_NAMES, CallbackCalls, Callbacks, Functions


class CallbackSettings(Settings):
    """The part of an AlgorithmConfig that is about callbacks."""

    callbacks_class: type[Callbacks] | Sequence[type[Callbacks]]

    def __init__(self) -> None:
        super().__init__()
        self.callbacks_class = Callbacks
        for name in CALLBACK_NAMES:
            setattr(self, f"callbacks_{name}", None)

    @section
    def callbacks(
        self,
        callbacks_class: type[Callbacks] | Sequence[type[Callbacks]] | None = UNSET,
        *,
        on_algorithm_init: Functions = UNSET,
        on_train_result: Functions = UNSET,
        on_evaluate_start: Functions = UNSET,
        on_evaluate_end: Functions = UNSET,
        on_env_runners_recreated: Functions = UNSET,
        on_checkpoint_loaded: Functions = UNSET,
        on_environment_created: Functions = UNSET,
        on_episode_created: Functions = UNSET,
        on_episode_start: Functions = UNSET,
        on_episode_step: Functions = UNSET,
        on_episode_end: Functions = UNSET,
        on_sample_end: Functions = UNSET,
    ) -> dict[str, Any]:
        """Who is told what happens in a run. The methods of Callbacks say when each is called, and with what.

        Args:
            callbacks_class: A subclass of Callbacks, or a list of them; None for none. Each runner, and the algorithm,
                makes an object of each.
            on_algorithm_init: A function, or a list of functions, called after the classes' methods of that name.
            on_train_result: Likewise.
            on_evaluate_start: Likewise.
            on_evaluate_end: Likewise.
            on_env_runners_recreated: Likewise.
            on_checkpoint_loaded: Likewise.
            on_environment_created: Likewise.
            on_episode_created: Likewise.
            on_episode_start: Likewise.
            on_episode_step: Likewise.
            on_episode_end: Likewise.
            on_sample_end: Likewise.
        """
        given = {name: value for name, value in locals().items() if name in CALLBACK_NAMES}
        instead: dict[str, Any] = {f"callbacks_{name}": value for name, value in given.items()}
        if callbacks_class is None:
            instead["callbacks_class"] = Callbacks
        return instead | dict.fromkeys(given, UNSET)

    def make_callbacks(self) -> CallbackCalls:
        """Objects of the classes, and the functions.

        Raises:
            ConfigError: If one of them cannot be called as it would be.
        """
        functions = {name: getattr(self, f"callbacks_{name}") for name in CALLBACK_NAMES}
        return CallbackCalls(self.callbacks_class, functions)
