"""What to type in place of names that other libraries use, or that belong elsewhere, for messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from marl_connectors.algorithms.config.former_settings import other_names
from marl_connectors.algorithms.config.settings import TRACKER_NAMES

_CALL = re.compile(r"\.(\w+)\(((?:[^()]|\([^()]*\))*)\)")
"""A section with settings, as in ``.training(lr=...)``."""
_SETTING = re.compile(r"(\w+)=(.*?)(?=, \w+=|$)")
_ANY = "..."
"""What stands for a value there."""


def option_instead(word: str, value: str, options: Collection[str]) -> str:
    """Returns a closing sentence about an option that does not exist; ``""`` if nothing is known about it.

    >>> option_instead("--learning-rate", "1e-3", ["--set"])
    'Use --set training.lr=1e-3.'

    Args:
        word: The option.
        value: Its value.
        options: The options of the command.
    """
    name = word.lstrip("-").replace("-", "_")
    known = f"Use --track {name}." if name in TRACKER_NAMES else other_names("options").get(name, "")
    if known and {*options, "--model", "--set"} >= set(re.findall(r"--[a-z-]+", known)):
        return known
    return setting_instead(name, "--set", value)


def setting_instead(name: str, who: str, value: object = "VALUE") -> str:
    """Returns a closing sentence about a setting that the config does not have; ``""`` if nothing is known about it.

    >>> setting_instead("num_sgd_iter", "--set", "3"), setting_instead("num_sgd_iter", "run.yaml")
    ('Use --set training.num_epochs=3.', 'Use training: {num_epochs: VALUE}.')
    >>> setting_instead("lstm_cell_size", "--set", "8")
    'It is a setting of the modules: --model lstm_cell_size=8'

    Args:
        name: The setting.
        who: The first word of messages: the option with which it was given, or the name of a file.
        value: Its value.
    """
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    option = _option_in(who)
    if name in DefaultModelConfig.__dataclass_fields__:
        return f"It is a setting of the modules: {_of_modules(name, option, value)}"
    if name == "model":
        return f"Use {_of_modules('NAME', option, 'VALUE')}."
    if name == "observation_filter":
        return f"Use {'--env-to-module MeanStdFilter' if option else 'env_to_module: [MeanStdFilter]'}."
    if renamed := other_names("renamed").get(name):
        return f"Use {_CALL.sub(lambda call: _call_written(call, who, value), renamed)}."
    return other_names("not here").get(name, "")


def section_instead(name: object) -> str:
    """Returns closing sentences about a section of RLlib that the config does not have; ``""`` for other names.

    >>> section_instead("checkpointing")
    'Checkpoints have no settings. Leave the section out.'
    """
    return re.sub(r"\.(\w+)\(\.\.\.\)", r"\1", other_names("sections").get(str(name), ""))


def _of_modules(name: str, option: str, value: object) -> str:
    if option == "--search":
        return f"--search model.{name}={value}"
    return f"--model {name}={value}" if option else f"model: {{{name}: {value}}}"


def _call_written(call: re.Match[str], who: str, value: object) -> str:
    return written(call[1], {name: value if own == _ANY else own for name, own in _SETTING.findall(call[2])}, who)


def written(section: str, settings: Mapping[str, object], who: str) -> str:
    """Returns settings of a section as options, or as a file has them.

    >>> written("training", {"lr": 0.1}, "--set"), written("training", {"lr": 0.1}, "run.yaml")
    ('--set training.lr=0.1', 'training: {lr: 0.1}')

    Args:
        section: The section.
        settings: The settings with their values.
        who: The first words of messages: an option with maybe more, or the name of a file.
    """
    if not (option := _option_in(who)):
        return f"{section}: {{{', '.join(f'{name}: {own}' for name, own in settings.items())}}}"
    words = [f"{section}.{name}={own}" for name, own in settings.items()]
    return " ".join(f'{option} "{word}"' if " " in word else f"{option} {word}" for word in words)


def _option_in(who: str) -> str:
    return who.partition(" ")[0].rstrip(":") if who.startswith("--") else ""
