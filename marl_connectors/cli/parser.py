"""The words of the command line: its commands, with their options and help texts.

The options of settings are made from the settings: ``validators.Option`` says which ones there are. The parser only
cuts words into options and values, which ``layers`` reads and checks, as it does those of files.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NoReturn

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.cli.layers import Words, defaults
from marl_connectors.cli.other_names import option_instead
from marl_connectors.cli.search_space import search_option
from marl_connectors.cli.tree import DICTS, PIECES, fitting, hint, places, short_forms
from marl_connectors.cli.values import without_unit
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.programs import PROGRAM, command
from marl_connectors.validators import Unfit, integer
from marl_connectors.version import library_version

# Options -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """A word of the command line.

    Attributes:
        name: Its flag, such as ``"--steps"``, or the name of a word without a flag.
        about: Its help text.
        more: Further arguments of ``ArgumentParser.add_argument``.
    """

    name: str
    about: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def but(self, about: str = "", **more: Any) -> Option:
        """Returns the option with another help text or other arguments."""
        return Option(self.name, about or self.about, {**self.more, **more})


def _option(name: str, about: str, metavar: str | None = None, type: Any = None, **more: Any) -> Option:
    given = {"metavar": metavar, "type": type}
    return Option(name, about, {**{key: value for key, value in given.items() if value is not None}, **more})


def whole_number(text: str, at_least: int = 0) -> int:
    """Reads a whole number, as it is read for a setting: also ``1e6`` or ``1_000_000``."""
    validator = integer(min=at_least)
    try:
        return validator.keep(fitting(validator, text))
    except Unfit as unfit:
        more = f" {unfit}" if str(unfit) else without_unit(text)
        raise argparse.ArgumentTypeError(f"expected {validator.expected}, got {text!r}.{more}") from None


def count(text: str) -> int:
    """Reads a whole number of at least 1."""
    return whole_number(text, at_least=1)


_CHECKPOINT = _option("checkpoint", "a checkpoint, or the folder of a run for its latest", "CHECKPOINT")
_CONFIG = _option(
    "--config",
    "settings in a YAML or JSON file, the config.json of a run, or FILE.py or MODULE, and :NAME unless it is config or "
    "make_config: an AlgorithmConfig, or a function that returns one",
    "FILE",
)
_CONFIG_OF_RUN = _CONFIG.but("the Python file or module with the run's config, if it is not where it was", default=None)
_SEED_OF_PLAY = _option("--seed", "seed of the environment and the actions (default 0)", "N", whole_number)
_EPISODES = _option("--episodes", "number of episodes (default 20)", "N", count)
_JSON = _option("--json", "print JSON instead of a table", action="store_true")
_EXPLORE = _option(
    "--explore",
    "draw the actions, or take the most likely (default: as the run's evaluations)",
    action=argparse.BooleanOptionalAction,
    default=None,
)
_UNTRUSTED = _option(
    "--untrusted",
    "import none of the modules that the checkpoint names, only this library's and known environments",
    action="store_false",
    dest="trusted",
)
_RESUME = _option("--resume", "continue the run in this folder from its latest checkpoint", "RUN")

GROUPS: Final = {
    "environment": "environment",
    "policies": "policies and learning",
    "run": "run",
    "speed": "speed",
    "output": "output",
}
"""The headings of the options of settings in ``--help``, in their order."""
_ALL: Final = frozenset(short_forms(AlgorithmConfig))
_OF_ENV: Final = frozenset({"env_config", "wrappers"})
_BUILDING: Final = frozenset(
    key
    for key, (_, option) in short_forms(AlgorithmConfig).items()
    if option.group in ("environment", "policies") and key not in ("preset", "anneal_lr")
) | {"seed", "num_envs", "threads"}
"""The options that decide about environments, modules and pipelines."""

# Commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: Its name, which is that of the module in this package that runs it.
        about: What the list of commands says about it.
        description: What its help says about it.
        options: Its options besides those of settings.
        examples: The end of its help.
        settings: The keys of the settings whose options it has.
        only_given: Whether options that were not given are left out of the parsed ones.
    """

    name: str
    about: str
    description: str
    options: Sequence[Option]
    examples: str
    settings: Collection[str] = ()
    only_given: bool = False

    def run(self, args: argparse.Namespace) -> int:
        """Runs the command as the parsed options say. Returns the exit status."""
        return import_module(f"marl_connectors.cli.{self.name}").run(args)


COMMANDS: Final = (
    Command(
        "train",
        "train policies, and keep everything of the run in one folder",
        "Train policies, and keep everything of the run in one folder.",
        (
            *(_CONFIG, _RESUME, _UNTRUSTED),
            _option("--new-episodes", "with --resume: begin new episodes, and replay none", action="store_true"),
        ),
        """\
  marl-connectors train mpe2.simple_spread_v3
  marl-connectors train mpe2.simple_spread_v3 --policies independent --env-config N=5 --steps 2e6
  marl-connectors train mpe2.simple_tag_v3 --policies "adversary*=red,agent*=green"
  marl-connectors train my_package.my_env:make --mapping my_module:my_mapping_fn --set lr=1e-4 --set num_epochs=10
  marl-connectors train CartPole-v1 --steps 100000 --seeds 0-4 --parallel 2
  marl-connectors train my_package.my_env:make --wrap frame_skip_v0:4 --wrap resize_v1:x_size=42,y_size=42
  marl-connectors train --config run.yaml --set training.lr=1e-4 --seed 3
  marl-connectors train --resume runs/simple_spread_v3-shared-seed0
""",
        settings=_ALL,
        only_given=True,
    ),
    Command(
        "sweep",
        "search for good settings with Optuna, where each trial is a run",
        "Search for good settings with Optuna. Each trial is an ordinary run; bad ones are stopped early.",
        (
            _option(
                "--search",
                "a setting to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C; repeatable",
                "SETTING=VALUES",
                search_option,
                action="append",
            ),
            _option("--trials", "number of trials (default 20)", "N", count),
            _option(
                "--metric",
                "what to maximise, or min:METRIC to minimise (default env_runners/episode_return_mean, or with "
                "evaluation_interval evaluation/env_runners/episode_return_mean)",
                "METRIC",
            ),
            _option(
                "--pruner",
                "which trials are stopped early (default median)",
                choices=("median", "none"),
                type=str.lower,
            ),
            _RESUME.but("continue the sweep in this folder; more trials with --trials", metavar="SWEEP"),
            _CONFIG,
        ),
        """\
  marl-connectors sweep CartPole-v1 --steps 50000 --search lr=1e-4..1e-2:log --search num_epochs=2..16 --parallel 2
  marl-connectors sweep --config run.yaml --search "hidden=[32,32],[64,64]" --search activation=tanh,relu --trials 40
  marl-connectors sweep --resume runs/CartPole-v1-shared-sweep --trials 80
""",
        settings=_ALL - {"seeds"},
        only_given=True,
    ),
    Command(
        "evaluate",
        "play episodes with the policies of a checkpoint",
        "Play episodes with the policies of a checkpoint, and compare them with random play.",
        (
            *(_CHECKPOINT, _CONFIG_OF_RUN, _EPISODES.but(default=20), _SEED_OF_PLAY.but(default=0), _UNTRUSTED),
            _option("--baseline-seconds", "seconds of random play (default 10)", "N", count, default=10),
            _option("--video", "write episodes as a GIF, or as an MP4 if FILE ends in .mp4", "FILE"),
            _option("--threads", "threads of torch (default 1)", "N", count, default=1),
            *(_JSON, _EXPLORE),
        ),
        """\
  marl-connectors evaluate runs/simple_spread_v3-shared-seed0
  marl-connectors evaluate runs/simple_spread_v3-shared-seed0/checkpoints/000020 --episodes 100 --video play.gif
""",
    ),
    Command(
        "export",
        "write the policies of a checkpoint as ONNX programs, which run without torch",
        "Write the policies of a checkpoint, with their connector pieces, as ONNX programs.",
        (
            *(_CHECKPOINT, _CONFIG_OF_RUN),
            _option("--out", "folder of the programs (default CHECKPOINT/export)", "DIR"),
            _option(
                "--module", "the module for all agents (default: the module that each agent had in training)", "ID"
            ),
            _option(
                "--explore",
                "draw actions from random numbers, which are an input, as PPO does in evaluations",
                action="store_true",
            ),
            _option("--opset", "version of ONNX's operators (default: that of torch)", "N", count),
            _option("--no-check", "do not compare the programs with the policies", action="store_false", dest="check"),
            _UNTRUSTED,
        ),
        """\
  marl-connectors export runs/simple_spread_v3-shared-seed0
  marl-connectors export runs/simple_spread_v3-shared-seed0/checkpoints/000020 --out robot --explore
""",
    ),
    Command(
        "record",
        "play episodes with the policies of a run, or at random, and write them to files",
        "Play whole episodes with the policies of a run, or at random, and write them to files.",
        (
            _option("source", "a checkpoint, the folder of a run for its latest, or the word random", "RUN|random"),
            _option("--env", "with random: PettingZoo module, package.module:function, or Gymnasium id", "ENV"),
            _EPISODES.but("number of episodes (default 100)", default=100),
            _option("--out", "folder of the files, which must not hold recorded episodes", "FOLDER", required=True),
            *(_SEED_OF_PLAY.but(default=0), _EXPLORE),
            _option("--drop-infos", "leave out values of infos that no file can hold", action="store_true").but(
                default=False
            ),
            *(_JSON.but(default=False), _UNTRUSTED.but(default=True)),
        ),
        """\
  marl-connectors record runs/simple_spread_v3-shared-seed0 --episodes 500 --out data/spread
  marl-connectors record random --env mpe2.simple_spread_v3 --episodes 500 --out data/spread_random
""",
        settings=_OF_ENV | {"num_envs"},
        only_given=True,
    ),
    Command(
        "data",
        "show what recorded episodes hold, and what of them is damaged",
        "Show what recorded episodes hold, and what of them is damaged. Status 1 if something is.",
        (
            _option("data", "folders or files of recorded episodes", "FOLDER", nargs="+"),
            _option("--picture", "write histograms of returns and lengths as a PNG file", "FILE"),
            _JSON,
        ),
        """\
  marl-connectors data data/spread
  marl-connectors data data/spread data/spread_random --picture data.png
""",
    ),
    Command(
        "explain",
        "show what each connector piece does to the data of an environment",
        "Show what each connector piece does to the data of an environment: columns and time.",
        (_CONFIG, _JSON.but("print JSON instead of tables")),
        """\
  marl-connectors explain mpe2.simple_spread_v3
  marl-connectors explain --config my_package.configs:tag --num-envs 2
""",
        settings=_BUILDING,
        only_given=True,
    ),
    Command(
        "check",
        "try an environment out, and list the problems that training on it would have",
        "Try an environment out, and list the problems that training on it would have. Status 1 if errors.",
        (
            _option("env", "PettingZoo module, package.module:function, or Gymnasium id", "ENV"),
            *(_EPISODES.but("number of episodes (default 3)"), _SEED_OF_PLAY),
            _option("--max-steps", "steps after which an episode is stopped (default 1000)", "N", count),
            _option("--max-seconds", "seconds after which further checks are left out (default 60)", "N", count),
            _option("--call-timeout", "seconds after which a call counts as hanging (default 30)", "N", count),
            _option(
                "--no-conformance",
                "leave out PettingZoo's and Gymnasium's tests",
                action="store_false",
                dest="conformance",
            ),
            _JSON,
        ),
        """\
  marl-connectors check my_package.my_env:make --env-config size=5
  marl-connectors check mpe2.simple_spread_v3:env --episodes 10 --json
""",
        settings=_OF_ENV | {"action_mask_key"},
        only_given=True,
    ),
    Command(
        "zoo",
        "list the environments with tuned settings, which train uses",
        "List the environments with tuned settings, which train uses, or show one with its settings.",
        (_option("name", "a task, to show it with all of its settings", "TASK", nargs="?"), _JSON),
        """\
  marl-connectors zoo
  marl-connectors zoo simple_spread_v3
""",
    ),
    Command(
        "schema",
        "print the JSON schema of files for --config",
        "Print the JSON schema of files for --config: all settings with their types and descriptions.",
        (),
        """\
  marl-connectors schema > run.schema.json
""",
    ),
    Command(
        "completion",
        "print a script with which the shell completes commands and options",
        "Print a script with which the shell completes the commands and options of marl-connectors.",
        (_option("shell", "the shell that reads the script", choices=("bash", "zsh", "fish")),),
        """\
  eval "$(marl-connectors completion bash)"
  marl-connectors completion zsh > ~/.zfunc/_marl-connectors
  marl-connectors completion fish > ~/.config/fish/completions/marl-connectors.fish
""",
    ),
)


# Parsing -------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with errors of one line, which name the closest known word."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse has no public place for this before Python 3.14
        if action.choices is not None and value not in action.choices and not isinstance(action, _Give):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}. {did_you_mean(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?")) else "."
        program, *words = self.prog.split()
        raise ConfigError(f"{message}{end} See: {command(program, *words, '--help')}")


def build_parser() -> tuple[Parser, dict[str, Parser]]:
    """Returns the parser of the command line, and those of its commands by name."""
    parser = Parser(
        prog=PROGRAM,
        description="Train and evaluate policies on PettingZoo and Gymnasium environments.",
        epilog="examples:\n" + "".join(each.examples for each in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"marl-connectors {library_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {each.name: _add_command(subparsers, each) for each in COMMANDS}
    return parser, parsers


def _add_command(subparsers: Any, each: Command) -> Parser:
    parser = subparsers.add_parser(
        each.name,
        help=each.about,
        description=each.description,
        epilog=f"examples:\n{each.examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **({"argument_default": argparse.SUPPRESS} if each.only_given else {}),
    )
    for option in each.options:
        parser.add_argument(option.name, help=option.about, **option.more)
    _add_settings(parser, each.settings)
    parser.set_defaults(run=each.run)
    return parser


class _Give(argparse.Action):
    """Adds an option of a setting, and its value as it was written, to those that were given."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, flag: str, **more: Any) -> None:
        super().__init__(option_strings, dest, **more)
        self._flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if self.nargs == 0:
            values = self.const if self.const is not None else not str(option_string).startswith("--no-")
        namespace.given = [*getattr(namespace, "given", []), (self._flag, values)]


def words_of(args: argparse.Namespace | Mapping[str, Any]) -> Words:
    """Returns the options of settings among parsed ones."""
    given = args if isinstance(args, Mapping) else vars(args)
    return Words(given.get("given", []), given.get("config"))


def _add_settings(parser: Parser, keys: Collection[str]) -> None:
    """Adds the options of settings, in their groups."""
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()} if keys else {}
    for key, (place, option) in short_forms(AlgorithmConfig).items():
        if key not in keys:
            continue
        schema: Any = places(AlgorithmConfig)[place].validator.schema or {}  # type: ignore[union-attr]
        about = option.about
        more: dict[str, Any]
        if option.flag == "ENV":
            groups[option.group].add_argument(key, action=_Give, flag="ENV", metavar="ENV", nargs="?", help=about)
            continue
        if not option.metavar:
            more = {"nargs": 0}
        elif "enum" in schema:
            more = {"choices": tuple(schema["enum"])}
        else:
            more = {"metavar": option.metavar, **({"nargs": "+"} if place in PIECES else {})}
        names = [option.flag] if option.metavar else [option.flag, f"--no-{option.flag[2:]}"]
        about = f"{about}{_default(place)}".replace("%", "%%")
        groups[option.group].add_argument(*names, action=_Give, dest=key, flag=option.flag, help=about, **more)
        if key == "video":
            more = {"nargs": 0, "const": "none", "help": "the same as --video none"}
            groups[option.group].add_argument("--no-video", action=_Give, dest=key, flag=option.flag, **more)
    if "algo" in keys:
        parser.add_argument(
            "--set",
            action=_Give,
            flag="--set",
            metavar="KEY=VALUE",
            help="any setting of the config, such as lr or training.lr; repeatable. Defaults are those of "
            "docs/command_line.md, not all of them those of the config's class",
        )


def _default(place: str) -> str:
    """Returns what ``--help`` says of a setting's default."""
    value = defaults("ppo").get(place, places(AlgorithmConfig)[place].default)
    if isinstance(value, (list, tuple)) and value:
        value = ",".join(map(str, value))
    is_shown = isinstance(value, (int, float, str)) and not isinstance(value, bool) and place not in DICTS
    return (
        f" (default {value:g})" if is_shown and isinstance(value, float) else f" (default {value})" if is_shown else ""
    )


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Returns the options in the words of a command line, with the function ``run`` of their command.

    Raises:
        ConfigError: If a word is unknown or refused.
    """
    parser, parsers = build_parser()
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # This maps names to options; argparse has no public list of them.
        options = [name for name in parsers[args.command]._option_string_actions if name.startswith("--")]
        raise ConfigError(f"{args.command}: unknown argument {unknown[0]!r}. {_hint(args.command, unknown, options)}")
    delattr(args, "command")
    return args


def _hint(name: str, unknown: Sequence[str], options: Sequence[str]) -> str:
    """Returns what the user may have meant by unknown words: an option, or a setting of the config."""
    flags = [word for word in unknown if word.startswith("-")]
    if not flags:
        return "An environment or checkpoint is one word; quote one that contains blanks."
    flag, equals, value = flags[0].partition("=")
    otherwise = f"See: {command(PROGRAM, name, '--help')}"
    if "--set" not in options:
        close = did_you_mean(flag, options)
        return close if close.startswith("Did you mean") else otherwise
    following = unknown[unknown.index(flags[0]) + 1 :][:1]
    value = value if equals else following[0] if following and not following[0].startswith("-") else "VALUE"
    setting = flag.lstrip("-").replace("-", "_")
    instead = option_instead(flag, value, options)
    return instead or hint(setting, None, "--set", options, value=value, otherwise=otherwise)
