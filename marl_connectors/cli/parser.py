"""The words of the command line: its commands, with their options and help texts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NoReturn

from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_instead, known_sections, summaries
from marl_connectors.cli.other_names import option_instead
from marl_connectors.cli.search_space import search_option
from marl_connectors.cli.values import (
    ACTIVATIONS,
    TRACKER_NAMES,
    VIDEO_FORMATS,
    count,
    key_value,
    layer_sizes,
    mask_key,
    metric_name,
    names,
    number_or_auto,
    opponent,
    ray_address,
    seed_list,
    tracker_names,
    whole_number,
)
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.programs import PROGRAM, command
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


def _flag(name: str, about: str, dest: str | None = None, *, value: bool = True) -> Option:
    action = "store_true" if value else "store_false"
    return Option(name, about, {"action": action, **({} if dest is None else {"dest": dest})})


def _either(name: str, about: str) -> Option:
    """Returns a flag with a second one that begins with ``--no-``."""
    return Option(name, about, {"action": argparse.BooleanOptionalAction})


def _pieces(name: str, what: str) -> Option:
    about = f"connector pieces for {what}: NAME, MODULE:NAME, then :ARGUMENT=VALUE,...; none for no pieces"
    return Option(name, about, {"nargs": "+", "action": "extend", "metavar": "PIECE"})


def _repeatable(name: str, about: str, metavar: str, type: Any = None, **more: Any) -> Option:
    return _option(name, about, metavar, type, action="append", **more)


_ENV = _option("env", "PettingZoo module, package.module:function, or Gymnasium id", "ENV")
_CHECKPOINT = _option("checkpoint", "a checkpoint, or the folder of a run for its latest", "CHECKPOINT")
_CONFIG = _option(
    "--config",
    "settings in a YAML or JSON file, the config.json of a run, or FILE.py or MODULE, and :NAME unless it is config or "
    "make_config: an AlgorithmConfig, or a function that returns one",
    "FILE",
)
_CONFIG_OF_RUN = _CONFIG.but("the Python file or module with the run's config, if it is not where it was", default=None)
_ENV_CONFIG = _repeatable("--env-config", "a setting of ENV; repeatable", "KEY=VALUE", key_value)
_WRAP = _repeatable("--wrap", "a wrapper, as frame_skip_v0:4; repeatable", "NAME:ARGS", dest="wrappers")
_MASK = _option(
    "--action-mask-key",
    "key of action masks in observations or infos (default auto: action_mask, if it exists), or none",
    "KEY",
    mask_key,
)
_SEED = _option("--seed", "seed of all random streams (default 0)", "N", whole_number)
_SEED_OF_PLAY = _SEED.but("seed of the environment and the actions (default 0)")
_THREADS = _option("--threads", "threads of torch (default 1, which is fastest for small networks)", "N", count)
_EPISODES = _option("--episodes", "number of episodes (default 20)", "N", count)
_JSON = _flag("--json", "print JSON instead of a table")
_EXPLORE = _either("--explore", "draw the actions, or take the most likely (default: as the run's evaluations)").but(
    default=None
)
_UNTRUSTED = _flag(
    "--untrusted",
    "import none of the modules that the checkpoint names, only this library's and known environments",
    "trusted",
    value=False,
)
_RESUME = _option("--resume", "continue the run in this folder from its latest checkpoint", "RUN")
_PARALLEL = _option("--parallel", "with --seeds: train N seeds at a time (default 1)", "N", count)
_POLICIES = (
    _option("--policies", 'shared (default), independent, or patterns: "adversary*=red,agent*=green"', "WHICH"),
    _option("--mapping", "a policy mapping function of (agent_id, episode, **kwargs)", "MODULE:FN"),
)
"""Options of which only one can be given."""

_BUILDING = (
    *(_ENV_CONFIG, _WRAP),
    Option("--algo", f"the algorithm. {summaries()}", {"choices": tuple(ALGORITHMS), "type": str.lower}),
    _POLICIES,
    _option("--modules", "all modules that FN can name, if some are used later only", "A,B", names),
    _SEED,
    _option("--num-envs", "sub-environments of all env runners together (default 8)", "N", count),
    _repeatable(
        "--set",
        "a setting of the config, such as lr or training.lr; repeatable. Defaults are those of docs/command_line.md, "
        "not all of them those of the config's class",
        "KEY=VALUE",
        key_value,
    ),
    _MASK,
    _option("--hidden", "widths of the hidden layers (default 64,64)", "N,N", layer_sizes),
    Option(
        "--activation", "activation after each hidden layer (default tanh)", {"choices": ACTIVATIONS, "type": str.lower}
    ),
    _flag("--share-value-layers", "one body for policy and value function"),
    _repeatable(
        "--model",
        "a setting of the modules, such as use_lstm=true or lstm_cell_size=64; repeatable",
        "KEY=VALUE",
        key_value,
    ),
    _pieces("--env-to-module", "observations"),
    _pieces("--learner-connector", "train batches"),
    _THREADS,
    _flag("--no-env-check", "accept observations outside their space", "env_check", value=False),
)
"""The options that decide about environments, modules and pipelines."""

_PLACES = (
    _option(
        "--num-env-runners",
        "env runners in Ray actors, among which the sub-environments are divided (default 0: in this process)",
        "N",
        whole_number,
    ),
    _option(
        "--num-learners",
        "learners in Ray actors, which update the modules together (default 0: in this process)",
        "N",
        whole_number,
    ),
    _option(
        "--ray-address",
        "a running Ray cluster: auto for the one on this machine, or HOST:6379 (default none: a cluster on this "
        "machine for this run alone)",
        "ADDRESS",
        ray_address,
    ),
    _option(
        "--num-env-workers",
        "processes that step the sub-environments (default auto: as many as are worth it, up to one per core)",
        "N",
        number_or_auto,
    ),
    _option(
        "--num-gpus-per-learner",
        "1 to put modules on the GPU, 0 on the CPU (default auto: on the GPU if one exists)",
        "N",
        number_or_auto,
    ),
)
"""The options that decide where a run computes."""

_OUTPUT = (
    _option("--out", "folder of the run (default runs/ENV-POLICIES-seedN)", "DIR"),
    _option("--checkpoint-every", "iterations from checkpoint to checkpoint (default 20)", "N", count),
    _option("--eval-episodes", "episodes of each evaluation (default 20)", "N", count),
    _option(
        "--baseline-seconds",
        "seconds for measuring random play, and as many for the untrained policies (default 10)",
        "N",
        count,
    ),
    Option("--video", "format of the video at the end (default gif)", {"choices": VIDEO_FORMATS, "type": str.lower}),
    Option("--no-video", "the same as --video none", {"dest": "video", "action": "store_const", "const": "none"}),
    _option("--video-every", "iterations from video to video (default 0: at the end)", "N", whole_number),
    _option(
        "--track",
        f"write metrics to {', '.join(TRACKER_NAMES)}, or none (default tensorboard)",
        "NAME,NAME",
        tracker_names,
    ),
    _option(
        "--keep-best",
        "metric of the best checkpoint, as env_runners/episode_return_mean, min:METRIC for its lowest value, or none "
        "(default auto: success, then return, of evaluations or else of training)",
        "METRIC",
        metric_name,
    ),
    _option("--keep-checkpoints", "newest checkpoints to keep besides the best (default all)", "N", count),
)

_NEW_RUN = (
    *(_ENV.but(nargs="?"), _CONFIG),
    _flag("--no-preset", "leave out the zoo's settings for ENV, and use the defaults", "preset", value=False),
    *_BUILDING,
    _option("--steps", "agent steps to train for (default 1000000)", "N", count),
    _option(
        "--eval-opponent",
        "random: in evaluations, one agent plays with its policy and all others play at random; random:red*,blue*: one "
        "of these teams (default none)",
        "WHO",
        opponent,
    ),
    _either(
        "--eval-explore",
        "draw the actions of evaluations and videos, or take the most likely (default: draw them if the algorithm "
        "learns distributions, as PPO, MAPPO, BC, MARWIL and SAC do)",
    ),
    _either("--anneal-lr", "let the learning rate fall linearly to 0 over --steps"),
    *_PLACES,
    *_OUTPUT,
)
"""The options of one new run."""

# Commands ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        name: Its name, which is that of the module in this package that runs it.
        about: What the list of commands says about it.
        description: What its help says about it.
        options: Its options. Of a tuple of options, only one can be given.
        examples: The end of its help.
        only_given: Whether options that were not given are left out of the parsed ones. A resumed run, for example,
            must know them.
    """

    name: str
    about: str
    description: str
    options: Sequence[Option | tuple[Option, ...]]
    examples: str
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
            *(_RESUME, _UNTRUSTED),
            _flag("--new-episodes", "with --resume: begin new episodes, and replay none"),
            _option("--seeds", "train once with each of these seeds: 0-4, or 0,3,7", "A-B", seed_list),
            *(_PARALLEL, *_NEW_RUN),
        ),
        """\
  marl-connectors train mpe2.simple_spread_v3
  marl-connectors train mpe2.simple_spread_v3 --policies independent --env-config N=5 --steps 2e6
  marl-connectors train mpe2.simple_tag_v3 --policies "adversary*=red,agent*=green"
  marl-connectors train my_package.my_env:make --mapping my_module:my_mapping_fn --set lr=1e-4 --set num_epochs=10
  marl-connectors train CartPole-v1 --steps 100000
  marl-connectors train CartPole-v1 --steps 100000 --seeds 0-4 --parallel 2
  marl-connectors train pursuit_v5 --num-envs 16 --num-env-runners 4 --num-learners 2 --ray-address auto
  marl-connectors train my_package.my_env:make --wrap frame_skip_v0:4 --wrap resize_v1:x_size=42,y_size=42
  marl-connectors train --config run.yaml --set training.lr=1e-4 --seed 3
  marl-connectors train --resume runs/simple_spread_v3-shared-seed0
""",
        only_given=True,
    ),
    Command(
        "sweep",
        "search for good settings with Optuna, where each trial is a run",
        "Search for good settings with Optuna. Each trial is an ordinary run; bad ones are stopped early.",
        (
            _repeatable(
                "--search",
                "a setting to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C; repeatable",
                "SETTING=VALUES",
                search_option,
            ),
            _option("--trials", "number of trials (default 20)", "N", count),
            _PARALLEL.but("trials at a time, each in a process (default 1)"),
            _option(
                "--metric",
                "what to maximise, or min:METRIC to minimise (default env_runners/episode_return_mean, or with "
                "evaluation_interval evaluation/env_runners/episode_return_mean)",
                "METRIC",
            ),
            Option(
                "--pruner",
                "which trials are stopped early (default median)",
                {"choices": ("median", "none"), "type": str.lower},
            ),
            _RESUME.but("continue the sweep in this folder; more trials with --trials", metavar="SWEEP"),
            *_NEW_RUN,
        ),
        """\
  marl-connectors sweep CartPole-v1 --steps 50000 --search lr=1e-4..1e-2:log --search num_epochs=2..16 --parallel 2
  marl-connectors sweep --config run.yaml --search "hidden=[32,32],[64,64]" --search activation=tanh,relu --trials 40
  marl-connectors sweep --resume runs/CartPole-v1-shared-sweep --trials 80
""",
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
            *(_THREADS.but("threads of torch (default 1)", default=1), _JSON, _EXPLORE),
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
            _flag("--explore", "draw actions from random numbers, which are an input, as PPO does in evaluations"),
            _option("--opset", "version of ONNX's operators (default: that of torch)", "N", count),
            _flag("--no-check", "do not compare the programs with the policies", "check", value=False),
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
            *(_ENV_CONFIG, _WRAP.but("a wrapper of ENV; repeatable")),
            _option("--num-envs", "with random: sub-environments (default 8)", "N", count),
            _EPISODES.but("number of episodes (default 100)", default=100),
            _option("--out", "folder of the files, which must not hold recorded episodes", "FOLDER", required=True),
            *(_SEED_OF_PLAY.but(default=0), _EXPLORE),
            _flag("--drop-infos", "leave out values of infos that no file can hold").but(default=False),
            *(_JSON.but(default=False), _UNTRUSTED.but(default=True)),
        ),
        """\
  marl-connectors record runs/simple_spread_v3-shared-seed0 --episodes 500 --out data/spread
  marl-connectors record random --env mpe2.simple_spread_v3 --episodes 500 --out data/spread_random
""",
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
        (_ENV.but(nargs="?"), _CONFIG, *_BUILDING, _JSON.but("print JSON instead of tables")),
        """\
  marl-connectors explain mpe2.simple_spread_v3
  marl-connectors explain mpe2.simple_tag_v3 --policies independent --json
  marl-connectors explain --config run.yaml
  marl-connectors explain --config my_config.py
  marl-connectors explain --config my_package.configs:tag --num-envs 2
""",
        only_given=True,
    ),
    Command(
        "check",
        "try an environment out, and list the problems that training on it would have",
        "Try an environment out, and list the problems that training on it would have. Status 1 if errors.",
        (
            *(_ENV, _ENV_CONFIG, _WRAP, _EPISODES.but("number of episodes (default 3)"), _SEED_OF_PLAY),
            _option("--max-steps", "steps after which an episode is stopped (default 1000)", "N", count),
            _option("--max-seconds", "seconds after which further checks are left out (default 60)", "N", count),
            _option("--call-timeout", "seconds after which a call counts as hanging (default 30)", "N", count),
            _MASK,
            _flag("--no-conformance", "leave out PettingZoo's and Gymnasium's tests", "conformance", value=False),
            _JSON,
        ),
        """\
  marl-connectors check my_package.my_env:make --env-config size=5
  marl-connectors check mpe2.simple_spread_v3:env --episodes 10 --json
""",
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
        (Option("shell", "the shell that reads the script", {"choices": ("bash", "zsh", "fish")}),),
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
        if action.choices is not None and value not in action.choices:
            hint = algorithm_instead(value) if action.dest == "algo" else ""
            hint = hint or did_you_mean(value, action.choices)
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}. {hint}")

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
        if isinstance(option, tuple):
            group = parser.add_mutually_exclusive_group()
            for one in option:
                group.add_argument(one.name, help=one.about, **one.more)
        else:
            parser.add_argument(option.name, help=option.about, **option.more)
    parser.set_defaults(run=each.run)
    return parser


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
    if "--set" in options:
        setting = flag.lstrip("-").replace("-", "_")
        following = unknown[unknown.index(flags[0]) + 1 :][:1]
        value = value if equals else following[0] if following and not following[0].startswith("-") else "VALUE"
        if instead := option_instead(flag, value, options):
            return instead
        if section := _section_of(setting):
            return f"It is a setting of the config: --set {section}.{setting}={value}"
    close = did_you_mean(flag, options)
    return close if close.startswith("Did you mean") else f"See: {command(PROGRAM, name, '--help')}"


def _section_of(setting: str) -> str:
    """Returns the section of a setting of the config; ``""`` if there is no such setting."""
    sections = known_sections()
    return next((name for name in ("training", *sections) if setting in sections[name]), "")
