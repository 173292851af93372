"""The entry point of the command line: its options and help texts, and its errors, which are one line each."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from marl_connectors.cli.search_space import search_option
from marl_connectors.cli.stop_signals import StopSignals, exit_status
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
from marl_connectors.environments.vector.worker_threads import one_thread_unless_set
from marl_connectors.errors import ConfigError, EnvWarning, MarlConnectorsError, OfflineDataWarning, did_you_mean
from marl_connectors.version import library_version

EXIT_BAD_INPUT = 2
EXIT_NOBODY_READS = 141

_TRAIN_EXAMPLES = """\
examples:
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
"""
_SWEEP_EXAMPLES = """\
examples:
  marl-connectors sweep CartPole-v1 --steps 50000 --search lr=1e-4..1e-2:log --search num_epochs=2..16 --parallel 2
  marl-connectors sweep --config run.yaml --search "hidden=[32,32],[64,64]" --search activation=tanh,relu --trials 40
  marl-connectors sweep --resume runs/CartPole-v1-shared-sweep --trials 80
"""
_SEARCH_HELP = "a setting to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C; repeatable"
_EVALUATE_EXAMPLES = """\
examples:
  marl-connectors evaluate runs/simple_spread_v3-shared-seed0
  marl-connectors evaluate runs/simple_spread_v3-shared-seed0/checkpoints/000020 --episodes 100 --video play.gif
"""
_EXPORT_EXAMPLES = """\
examples:
  marl-connectors export runs/simple_spread_v3-shared-seed0
  marl-connectors export runs/simple_spread_v3-shared-seed0/checkpoints/000020 --out robot --explore
"""
_EXPLAIN_EXAMPLES = """\
examples:
  marl-connectors explain mpe2.simple_spread_v3
  marl-connectors explain mpe2.simple_tag_v3 --policies independent --json
  marl-connectors explain --config run.yaml
  marl-connectors explain --config my_config.py
  marl-connectors explain --config my_package.configs:tag --num-envs 2
"""
_RECORD_EXAMPLES = """\
examples:
  marl-connectors record runs/simple_spread_v3-shared-seed0 --episodes 500 --out data/spread
  marl-connectors record random --env mpe2.simple_spread_v3 --episodes 500 --out data/spread_random
"""
_DATA_EXAMPLES = """\
examples:
  marl-connectors data data/spread
  marl-connectors data data/spread data/spread_random --picture data.png
"""
_CHECK_EXAMPLES = """\
examples:
  marl-connectors check my_package.my_env:make --env-config size=5
  marl-connectors check mpe2.simple_spread_v3:env --episodes 10 --json
"""
_ZOO_EXAMPLES = """\
examples:
  marl-connectors zoo
  marl-connectors zoo simple_spread_v3
"""


_SCHEMA_EXAMPLES = """\
examples:
  marl-connectors schema > run.schema.json
"""
_COMPLETION_EXAMPLES = """\
examples:
  eval "$(marl-connectors completion bash)"
  marl-connectors completion zsh > ~/.zfunc/_marl-connectors
  marl-connectors completion fish > ~/.config/fish/completions/marl-connectors.fish
"""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The words after the program's name; None for the words of the process.

    Returns:
        The exit status: 0 if all went well, 1 if ``check`` found errors, 2 for bad input (after one line on stderr),
        130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if the reader of the output has gone.
    """
    # pygame prints a greeting when it is imported, which would be in the middle of the progress display.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    plain = warnings.formatwarning
    warnings.formatwarning = _formatted
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every character
    try:
        with StopSignals():
            args = _parse(argv)
            if getattr(args, "trusted", True) and not {"", os.getcwd()} & set(sys.path):
                sys.path.insert(0, os.getcwd())
            os.environ.update(one_thread_unless_set(os.environ))  # before numpy is imported; torch has its own setting
            status = args.run(args)
            sys.stdout.flush()
            return status
    except MarlConnectorsError as error:
        print(f"marl-connectors: error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        if _can_print():
            raise
        return EXIT_NOBODY_READS
    except KeyboardInterrupt as stop:
        print("\nStopped before anything was written.", file=sys.stderr)
        return exit_status(stop)
    finally:
        warnings.formatwarning = plain


def _formatted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Formats a warning about the environment or recorded data in one line.

    Others are formatted as Python does it, but without the source line.
    """
    if issubclass(category, (EnvWarning, OfflineDataWarning)):
        return f"marl-connectors: warning: {' '.join(str(message).split())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _can_print() -> bool:
    """Whether stdout has a reader. If not, stdout is discarded from now on, so that Python ends without an error."""
    try:
        sys.stdout.flush()
        if not _reader_has_gone(sys.stdout):  # what could not be written may be gone already, so flush() says nothing
            return True
    except BrokenPipeError:
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return False


def _reader_has_gone(stream: Any) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLERR)
    except (AttributeError, OSError, ValueError):  # there is no poll on this system, or it is no real file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser, commands = _build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # This maps names to options; argparse has no public list of them.
        options = [name for name in commands[args.command]._option_string_actions if name.startswith("--")]
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        hint = did_you_mean(flags[0], options) if flags else "An environment or checkpoint is one word."
        raise ConfigError(f"{args.command}: unknown argument {unknown[0]!r}. {hint}")
    delattr(args, "command")
    return args


def _build_parser() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="marl-connectors",
        description="Train and evaluate policies on PettingZoo and Gymnasium environments.",
        epilog=_TRAIN_EXAMPLES
        + "".join(
            text.partition("\n")[2]
            for text in (
                _SWEEP_EXAMPLES,
                _EVALUATE_EXAMPLES,
                _EXPORT_EXAMPLES,
                _RECORD_EXAMPLES,
                _DATA_EXAMPLES,
                _EXPLAIN_EXAMPLES,
                _CHECK_EXAMPLES,
                _ZOO_EXAMPLES,
                _SCHEMA_EXAMPLES,
                _COMPLETION_EXAMPLES,
            )
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"marl-connectors {library_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands = {
        "train": _add_train(subparsers),
        "sweep": _add_sweep(subparsers),
        "evaluate": _add_evaluate(subparsers),
        "export": _add_export(subparsers),
        "record": _add_record(subparsers),
        "data": _add_data(subparsers),
        "explain": _add_explain(subparsers),
        "check": _add_check(subparsers),
        "zoo": _add_zoo(subparsers),
        "schema": _add_schema(subparsers),
        "completion": _add_completion(subparsers),
    }
    return parser, commands


_PLAIN: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
_ONLY_GIVEN: Any = {**_PLAIN, "argument_default": argparse.SUPPRESS}
"""Leaves options that were not given out of the namespace. A resumed run, for example, must know them."""


def _add_train(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "train",
        help="train policies, and keep everything of the run in one folder",
        description="Train policies with PPO or MAPPO, and keep everything of the run in one folder.",
        epilog=_TRAIN_EXAMPLES,
        **_ONLY_GIVEN,
    )
    _add_train_options(parser)
    parser.set_defaults(run=_run_train)
    return parser


def _add_sweep(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "sweep",
        help="search for good settings with Optuna, where each trial is a run",
        description="Search for good settings with Optuna. Each trial is an ordinary run; bad ones are stopped early.",
        epilog=_SWEEP_EXAMPLES,
        **_ONLY_GIVEN,
    )
    add = parser.add_argument
    add("--search", action="append", type=search_option, metavar="SETTING=VALUES", help=_SEARCH_HELP)
    add("--trials", type=count, metavar="N", help="number of trials (default 20)")
    add("--parallel", type=count, metavar="N", help="trials at a time, each in a process (default 1)")
    add(
        "--metric",
        metavar="METRIC",
        help="what to maximise, or min:METRIC to minimise (default env_runners/episode_return_mean, or with "
        "evaluation_interval evaluation/episode_return_mean)",
    )
    add("--pruner", choices=("median", "none"), help="which trials are stopped early (default median)")
    add("--resume", metavar="SWEEP", help="continue the sweep in this folder; more trials with --trials")
    _add_run_options(parser)
    parser.set_defaults(run=_run_sweep)
    return parser


def _add_evaluate(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "evaluate",
        help="play episodes with the policies of a checkpoint",
        description="Play episodes with the policies of a checkpoint, and compare them with random play.",
        epilog=_EVALUATE_EXAMPLES,
        **_PLAIN,
    )
    _add_evaluate_options(parser)
    parser.set_defaults(run=_run_evaluate)
    return parser


def _add_export(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "export",
        help="write the policies of a checkpoint as ONNX programs, which run without torch",
        description="Write the policies of a checkpoint, with their connector pieces, as ONNX programs.",
        epilog=_EXPORT_EXAMPLES,
        **_PLAIN,
    )
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or the folder of a run for its latest")
    add("--out", metavar="DIR", help="folder of the programs (default CHECKPOINT/export)")
    add(
        "--module", metavar="ID", help="the module for all agents (default: the module that each agent had in training)"
    )
    add("--explore", action="store_true", help="draw actions from random numbers, which are an input")
    add("--opset", type=count, metavar="N", help="version of ONNX's operators (default: that of torch)")
    add("--no-check", dest="check", action="store_false", help="do not compare the programs with the policies")
    _add_untrusted_option(parser)
    parser.set_defaults(run=_run_export)
    return parser


def _add_record(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "record",
        help="play episodes with the policies of a run, or at random, and write them to files",
        description="Play whole episodes with the policies of a run, or at random, and write them to files.",
        epilog=_RECORD_EXAMPLES,
        **_ONLY_GIVEN,
    )
    add = parser.add_argument
    add("source", metavar="RUN|random", help="a checkpoint, the folder of a run for its latest, or the word random")
    add("--env", metavar="ENV", help="with random: PettingZoo module, package.module:function, or Gymnasium id")
    add("--env-config", action="append", type=key_value, metavar="KEY=VALUE", help="a setting of ENV; repeatable")
    add("--wrap", dest="wrappers", action="append", metavar="NAME:ARGS", help="a wrapper of ENV; repeatable")
    add("--num-envs", type=count, metavar="N", help="with random: sub-environments (default 8)")
    add("--episodes", type=count, default=100, metavar="N", help="number of episodes (default 100)")
    add("--out", required=True, metavar="FOLDER", help="folder of the files, which must not hold recorded episodes")
    add("--seed", type=whole_number, default=0, metavar="N", help="seed of the environment and the actions (default 0)")
    add("--explore", action="store_true", default=False, help="draw the actions instead of taking the most likely")
    add("--drop-infos", action="store_true", default=False, help="leave out values of infos that no file can hold")
    add("--json", action="store_true", default=False, help="print JSON instead of a table")
    _add_untrusted_option(parser)
    parser.set_defaults(run=_run_record, trusted=True)
    return parser


def _add_data(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "data",
        help="show what recorded episodes hold, and what of them is damaged",
        description="Show what recorded episodes hold, and what of them is damaged. Status 1 if something is.",
        epilog=_DATA_EXAMPLES,
        **_PLAIN,
    )
    add = parser.add_argument
    add("data", nargs="+", metavar="FOLDER", help="folders or files of recorded episodes")
    add("--picture", metavar="FILE", help="write histograms of returns and lengths as a PNG file")
    add("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run_data)
    return parser


def _add_explain(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "explain",
        help="show what each connector piece does to the data of an environment",
        description="Show what each connector piece does to the data of an environment: columns and time.",
        epilog=_EXPLAIN_EXAMPLES,
        **_ONLY_GIVEN,
    )
    parser.add_argument(
        "env", nargs="?", metavar="ENV", help="PettingZoo module, package.module:function, or Gymnasium id"
    )
    _add_config_option(parser)
    _add_building_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=_run_explain)
    return parser


def _add_check(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "check",
        help="try an environment out, and list the problems that training on it would have",
        description="Try an environment out, and list the problems that training on it would have. Status 1 if errors.",
        epilog=_CHECK_EXAMPLES,
        **_ONLY_GIVEN,
    )
    _add_check_options(parser)
    parser.set_defaults(run=_run_check)
    return parser


def _add_zoo(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "zoo",
        help="list the environments with tuned settings, which train uses",
        description="List the environments with tuned settings, which train uses, or show one with its settings.",
        epilog=_ZOO_EXAMPLES,
        **_PLAIN,
    )
    parser.add_argument("name", nargs="?", metavar="TASK", help="a task, to show it with all of its settings")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=_run_zoo)
    return parser


def _add_schema(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON schema of files for --config",
        description="Print the JSON schema of files for --config: all settings with their types and descriptions.",
        epilog=_SCHEMA_EXAMPLES,
        **_PLAIN,
    )
    parser.set_defaults(run=_run_schema)
    return parser


def _add_completion(subparsers: Any) -> _Parser:
    parser = subparsers.add_parser(
        "completion",
        help="print a script with which the shell completes commands and options",
        description="Print a script with which the shell completes the commands and options of marl-connectors.",
        epilog=_COMPLETION_EXAMPLES,
        **_PLAIN,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")
    parser.set_defaults(run=_run_completion)
    return parser


def _add_train_options(parser: _Parser) -> None:
    add = parser.add_argument
    add("--resume", metavar="RUN", help="continue the run in this folder from its latest checkpoint")
    _add_untrusted_option(parser)
    add("--new-episodes", action="store_true", help="with --resume: begin new episodes, and replay none")
    add("--seeds", type=seed_list, metavar="A-B", help="train once with each of these seeds: 0-4, or 0,3,7")
    add("--parallel", type=count, metavar="N", help="with --seeds: train N seeds at a time (default 1)")
    _add_run_options(parser)


def _add_run_options(parser: _Parser) -> None:
    """Adds the options of one new run."""
    add = parser.add_argument
    add("env", nargs="?", metavar="ENV", help="PettingZoo module, package.module:function, or Gymnasium id")
    _add_config_option(parser)
    add(
        "--no-preset",
        dest="preset",
        action="store_false",
        help="leave out the zoo's settings for ENV, and use the defaults",
    )
    _add_building_options(parser)
    add("--steps", type=count, metavar="N", help="agent steps to train for (default 1000000)")
    add(
        "--eval-opponent",
        type=opponent,
        metavar="WHO",
        help="random: in evaluations, one agent plays with its policy and all others play at random; "
        "random:red*,blue*: one of these teams (default none)",
    )
    add(
        "--eval-explore",
        action=argparse.BooleanOptionalAction,
        help="draw the actions of evaluations and videos, as in training, instead of taking the most likely",
    )
    add(
        "--anneal-lr",
        action=argparse.BooleanOptionalAction,
        help="let the learning rate fall linearly to 0 over --steps",
    )
    add(
        "--num-env-runners",
        type=whole_number,
        metavar="N",
        help="env runners in Ray actors, among which the sub-environments are divided (default 0: in this process)",
    )
    add(
        "--num-learners",
        type=whole_number,
        metavar="N",
        help="learners in Ray actors, which update the modules together (default 0: in this process)",
    )
    add(
        "--ray-address",
        type=ray_address,
        metavar="ADDRESS",
        help="a running Ray cluster: auto for the one on this machine, or HOST:6379 "
        "(default none: a cluster on this machine for this run alone)",
    )
    add(
        "--num-env-workers",
        type=number_or_auto,
        metavar="N",
        help="processes that step the sub-environments (default auto: as many as are worth it, up to one per core)",
    )
    add(
        "--num-gpus-per-learner",
        type=number_or_auto,
        metavar="N",
        help="1 to put modules on the GPU, 0 on the CPU (default auto: on the GPU if one exists)",
    )
    add("--out", metavar="DIR", help="folder of the run (default runs/ENV-POLICIES-seedN)")
    add("--checkpoint-every", type=count, metavar="N", help="iterations from checkpoint to checkpoint (default 20)")
    add("--eval-episodes", type=count, metavar="N", help="episodes of each evaluation (default 20)")
    add(
        "--baseline-seconds",
        type=count,
        metavar="N",
        help="seconds for measuring random play, and as many for the untrained policies (default 10)",
    )
    _add_output_options(parser)


def _add_output_options(parser: _Parser) -> None:
    add = parser.add_argument
    add("--video", choices=VIDEO_FORMATS, help="format of the video at the end (default gif)")
    add("--no-video", dest="video", action="store_const", const="none", help="the same as --video none")
    add("--video-every", type=whole_number, metavar="N", help="iterations from video to video (default 0: at the end)")
    add(
        "--track",
        type=tracker_names,
        metavar="NAME,NAME",
        help=f"write metrics to {', '.join(TRACKER_NAMES)}, or none (default tensorboard)",
    )
    add(
        "--keep-best",
        type=metric_name,
        metavar="METRIC",
        help="metric of the best checkpoint, as env_runners/episode_return_mean, min:METRIC for its lowest value, or "
        "none (default auto: success or return of evaluations, or else of training)",
    )
    add("--keep-checkpoints", type=count, metavar="N", help="newest checkpoints to keep besides the best (default all)")


def _add_config_option(parser: _Parser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="settings in a YAML or JSON file, the config.json of a run, or FILE.py or MODULE, and :NAME unless it is "
        "config or make_config: an AlgorithmConfig, or a function that returns one",
    )


def _add_untrusted_option(parser: _Parser) -> None:
    parser.add_argument(
        "--untrusted",
        dest="trusted",
        action="store_false",
        help="import none of the modules that the checkpoint names, only this library's and known environments",
    )


def _add_building_options(parser: _Parser) -> None:
    """Adds the options that decide about environments, modules and pipelines."""
    add = parser.add_argument
    add("--env-config", action="append", type=key_value, metavar="KEY=VALUE", help="a setting of ENV; repeatable")
    add(
        "--wrap",
        dest="wrappers",
        action="append",
        metavar="NAME:ARGS",
        help="a wrapper, as frame_skip_v0:4; repeatable",
    )
    add("--algo", choices=("ppo", "mappo"), help="ppo (default), or mappo: critics see the observations of all agents")
    policies = parser.add_mutually_exclusive_group()
    policies.add_argument(
        "--policies", metavar="WHICH", help='shared (default), independent, or patterns: "adversary*=red,agent*=green"'
    )
    policies.add_argument(
        "--mapping", metavar="MODULE:FN", help="a policy mapping function of (agent_id, episode, **kwargs)"
    )
    add("--modules", type=names, metavar="A,B", help="all modules that FN can name, if some are used later only")
    add("--seed", type=whole_number, metavar="N", help="seed of all random streams (default 0)")
    add("--num-envs", type=count, metavar="N", help="sub-environments of all env runners together (default 8)")
    add(
        "--set",
        action="append",
        type=key_value,
        metavar="KEY=VALUE",
        help="a setting of the config, such as lr, training.lr, or evaluation.evaluation_interval; repeatable",
    )
    _add_mask_option(parser)
    add("--hidden", type=layer_sizes, metavar="N,N", help="widths of the hidden layers (default 64,64)")
    add("--activation", choices=ACTIVATIONS, help="activation after each hidden layer (default tanh)")
    add("--share-value-layers", action="store_true", help="one body for policy and value function")
    add(
        "--model",
        action="append",
        type=key_value,
        metavar="KEY=VALUE",
        help="a setting of the modules, such as use_lstm=true or lstm_cell_size=64; repeatable",
    )
    for name, what in (("--env-to-module", "observations"), ("--learner-connector", "train batches")):
        add(
            name,
            nargs="+",
            action="extend",
            metavar="PIECE",
            help=f"connector pieces for {what}: NAME, MODULE:NAME, then :ARGUMENT=VALUE,...; none for no pieces",
        )
    add("--threads", type=count, metavar="N", help="threads of torch (default 1, which is fastest for small networks)")
    add("--no-env-check", dest="env_check", action="store_false", help="accept observations outside their space")


def _add_mask_option(parser: _Parser) -> None:
    parser.add_argument(
        "--action-mask-key",
        type=mask_key,
        metavar="KEY",
        help="key of action masks in observations or infos (default auto: action_mask, if it exists), or none",
    )


def _add_evaluate_options(parser: _Parser) -> None:
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or the folder of a run for its latest")
    add("--episodes", type=count, default=20, metavar="N", help="number of episodes (default 20)")
    add("--seed", type=whole_number, default=0, metavar="N", help="seed of the environment and the actions (default 0)")
    _add_untrusted_option(parser)
    add("--baseline-seconds", type=count, default=10, metavar="N", help="seconds of random play (default 10)")
    add("--video", metavar="FILE", help="write episodes as a GIF, or as an MP4 if FILE ends in .mp4")
    add("--threads", type=count, default=1, metavar="N", help="threads of torch (default 1)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--explore", action="store_true", help="draw the actions, as in training, instead of taking the most likely")


def _add_check_options(parser: _Parser) -> None:
    add = parser.add_argument
    add("env", metavar="ENV", help="PettingZoo module, package.module:function, or Gymnasium id")
    add("--env-config", action="append", type=key_value, metavar="KEY=VALUE", help="a setting of ENV; repeatable")
    add(
        "--wrap",
        dest="wrappers",
        action="append",
        metavar="NAME:ARGS",
        help="a wrapper, as frame_skip_v0:4; repeatable",
    )
    add("--episodes", type=count, metavar="N", help="number of episodes (default 3)")
    add("--seed", type=whole_number, metavar="N", help="seed of the environment and the actions (default 0)")
    add("--max-steps", type=count, metavar="N", help="steps after which an episode is stopped (default 1000)")
    add("--max-seconds", type=count, metavar="N", help="seconds after which further checks are left out (default 60)")
    add("--call-timeout", type=count, metavar="N", help="seconds after which a call counts as hanging (default 30)")
    _add_mask_option(parser)
    add(
        "--no-conformance",
        dest="conformance",
        action="store_false",
        help="leave out PettingZoo's and Gymnasium's tests",
    )
    add("--json", action="store_true", help="print JSON instead of a table")


def _run_train(args: argparse.Namespace) -> int:
    from marl_connectors.cli import seeds, train

    return seeds.run(args) if seeds.is_for_seeds(args) else train.run(args)


def _run_sweep(args: argparse.Namespace) -> int:
    from marl_connectors.cli import sweep

    return sweep.run(args)


def _run_evaluate(args: argparse.Namespace) -> int:
    from marl_connectors.cli import evaluate

    return evaluate.run(args)


def _run_export(args: argparse.Namespace) -> int:
    from marl_connectors.cli import export

    return export.run(args)


def _run_record(args: argparse.Namespace) -> int:
    from marl_connectors.cli import record

    return record.run(args)


def _run_data(args: argparse.Namespace) -> int:
    from marl_connectors.cli import data

    return data.run(args)


def _run_explain(args: argparse.Namespace) -> int:
    from marl_connectors.cli import explain

    return explain.run(args)


def _run_zoo(args: argparse.Namespace) -> int:
    from marl_connectors.cli import zoo

    return zoo.run(args)


def _run_schema(args: argparse.Namespace) -> int:
    from marl_connectors.cli import schema

    return schema.run(args)


def _run_completion(args: argparse.Namespace) -> int:
    from marl_connectors.cli import completion

    print(completion.script(_build_parser()[0], args.shell))
    return 0


def _run_check(args: argparse.Namespace) -> int:
    from marl_connectors.cli import check
    from marl_connectors.environments.making.factory import WrappedMaker

    if "wrappers" in args:
        args.env = WrappedMaker(args.env, args.wrappers)
    return check.run(args)
