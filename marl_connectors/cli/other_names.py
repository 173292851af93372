"""What to type in place of names that other libraries use, or that belong elsewhere, for messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from marl_connectors.algorithms.config.settings import TRACKER_NAMES

_STEPS = (
    *("agent_steps", "env_steps", "iterations", "max_steps", "num_env_steps", "num_iterations", "num_steps"),
    *("num_timesteps", "timesteps", "total_env_steps", "total_steps", "total_timesteps", "training_steps"),
)
_FOLDERS = ("exp_name", "log_dir", "logdir", "name", "output", "output_dir", "run_name", "save_dir", "save_path")
_OPTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("cpu", "cuda", "device", "gpu", "gpus", "no_cuda", "num_gpus", "use_cuda", "use_gpu"),
        "--num-gpus-per-learner 1 puts modules on the GPU, 0 on the CPU.",
    ),
    **dict.fromkeys(_STEPS, "Use --steps N, the agent steps of the whole run."),
    **dict.fromkeys(_FOLDERS, "Use --out DIR, the folder of the run."),
    **dict.fromkeys(("gru", "lstm", "recurrent", "rnn"), "Use --model use_lstm=true or --model use_gru=true."),
    **dict.fromkeys(("render", "record", "capture_video"), "Use --video gif or --video mp4."),
    **dict.fromkeys(
        ("eval_freq", "eval_interval", "evaluation_freq"),
        "Use --set evaluation.evaluation_interval=N, in iterations.",
    ),
    **dict.fromkeys(
        ("num_workers", "workers"),
        "--num-env-workers N steps sub-environments in N processes, --num-env-runners N samples in N Ray actors.",
    ),
    **dict.fromkeys(
        ("environment", "env", "env_id", "env_name"), "Write the environment without it, as a word of its own."
    ),
    **{name: f"Use --track {name}." for name in TRACKER_NAMES},
    "epochs": "--steps N is the length of the run, --set training.num_epochs=N the passes over each train batch.",
}
"""What to use for words that are no options, without their dashes."""
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
    known = _OPTIONS.get(name, "")
    if known and {*options, "--model", "--set"} >= set(re.findall(r"--[a-z-]+", known)):
        return known
    return setting_instead(name, "--set", value)


def setting_instead(name: str, who: str, value: str = "VALUE") -> str:
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
    from marl_connectors.algorithms.config.former_settings import NOT_HERE, RENAMED
    from marl_connectors.rl_module.default_model_config import DefaultModelConfig

    option = who.partition(" ")[0].rstrip(":") if who.startswith("--") else ""
    if name in DefaultModelConfig.__dataclass_fields__:
        return f"It is a setting of the modules: {_of_modules(name, option, value)}"
    if name == "model":
        return f"Use {_of_modules('NAME', option, 'VALUE')}."
    if name == "observation_filter":
        return f"Use {'--env-to-module MeanStdFilter' if option else 'env_to_module: [MeanStdFilter]'}."
    if name in RENAMED:
        return f"Use {_CALL.sub(lambda call: _written(call, option, value), RENAMED[name])}."
    return NOT_HERE.get(name, "")


def section_instead(name: object) -> str:
    """Returns closing sentences about a section of RLlib that the config does not have; ``""`` for other names.

    >>> section_instead("checkpointing")
    'Checkpoints have no settings. Leave the section out.'
    """
    from marl_connectors.algorithms.config.former_settings import SECTIONS

    return re.sub(r"\.(\w+)\(\.\.\.\)", r"\1", SECTIONS.get(str(name), ""))


def _of_modules(name: str, option: str, value: str) -> str:
    if option == "--search":
        return f"--search model.{name}={value}"
    return f"--model {name}={value}" if option else f"model: {{{name}: {value}}}"


def _written(call: re.Match[str], option: str, value: str) -> str:
    """Returns a section with settings in the form of an option, or of a file if ``option`` is empty."""
    settings = [(name, value if own == _ANY else own) for name, own in _SETTING.findall(call[2])]
    if not option:
        return f"{call[1]}: {{{', '.join(f'{name}: {own}' for name, own in settings)}}}"
    words = [f"{call[1]}.{name}={own}" for name, own in settings]
    return " ".join(f'{option} "{word}"' if " " in word else f"{option} {word}" for word in words)
