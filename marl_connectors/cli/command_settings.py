"""The settings of the section ``run`` that only the command line has."""

from __future__ import annotations

from typing import Any

from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_instead, summaries
from marl_connectors.cli.values import opponent, seed_list
from marl_connectors.errors import ConfigError
from marl_connectors.validators import (
    Option,
    Unfit,
    Validator,
    any_of,
    boolean,
    integer,
    list_of,
    one_of,
    optional,
    section,
    setting,
    text,
)


def _algorithm(value: Any) -> str:
    if instead := algorithm_instead(value):
        raise Unfit(instead)
    return one_of(*ALGORITHMS).keep(value)


def seeds_of(value: Any) -> list[int]:
    """Returns seeds that are given as ``"0-4"``, ``"0,3,7"``, a number or a list.

    Raises:
        ConfigError: If they are something else.
    """
    found = seed_list(str(value)) if isinstance(value, (str, int)) and not isinstance(value, bool) else value
    found = list_of(integer(min=0), "").keep(found)
    if not found:
        raise Unfit
    if len(set(found)) < len(found):
        raise ConfigError(f"expected each seed once, but got {value!r}.")
    return found


def _opponent(value: Any) -> str | None:
    if not isinstance(value, str):
        raise Unfit
    return opponent(value)


_SEEDS = Validator(
    "seeds such as 0-4 or 0,3,7, or a list of them",
    seeds_of,
    any_of(
        {"type": "string", "pattern": r"^ *\d+(-\d+)?( *, *\d+(-\d+)?)* *$"},
        {"type": "integer", "minimum": 0},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "uniqueItems": True},
    ),
)


@section
class CommandSettings:
    """Sets what the command line does with a config before it trains."""

    algo: str = setting(
        Validator(one_of(*ALGORITHMS).alternatives, _algorithm, one_of(*ALGORITHMS).schema),
        "The algorithm.",
        default="ppo",
        option=Option("--algo NAME", "policies", f"the algorithm. {summaries()}"),
    )
    config: str | None = setting(
        optional(text("the name of a Python file or module")),
        "The Python file or module with the AlgorithmConfig of the run; None for one that is made from the settings.",
        default=None,
    )
    preset: bool | str = setting(
        boolean(),
        "Whether the run begins with the zoo's settings for the environment.",
        default=True,
        option=Option("--preset", "environment", "begin with the zoo's settings for ENV"),
    )
    num_envs: int = setting(
        integer(min=1),
        "The number of sub-environments of all env runners together.",
        default=8,
        option=Option("--num-envs N", "speed", "sub-environments of all env runners together"),
    )
    anneal_lr: bool = setting(
        boolean(),
        "Whether the learning rate falls linearly to 0 over the steps of the run.",
        default=False,
        option=Option("--anneal-lr", "policies", "let the learning rate fall linearly to 0 over --steps"),
    )
    eval_opponent: str | None = setting(
        optional(Validator("random, or random:TEAM,TEAM", _opponent, {"type": "string", "pattern": "^random(:|$)"})),
        '``"random"`` if one agent acts with its module in evaluations, a different one in each episode, and all '
        'others act at random; ``"random:PATTERN,PATTERN"`` if the agents of one team do, whose ids match its pattern; '
        "None if evaluations are played as in training.",
        default=None,
        option=Option(
            "--eval-opponent WHO",
            "run",
            "random: in evaluations, one agent plays with its policy and all others play at random; "
            "random:red*,blue*: one of these teams; none",
        ),
    )
    eval_explore: bool | None = setting(
        optional(boolean()),
        "Whether evaluations and videos draw the actions; False for the most likely ones; None for what "
        "``AlgorithmConfig.draws_actions`` says.",
        default=None,
        option=Option(
            "--eval-explore",
            "run",
            "draw the actions of evaluations and videos, or take the most likely (default: draw them if the algorithm "
            "learns distributions, as PPO, MAPPO, BC, MARWIL and SAC do)",
        ),
    )
    threads: int = setting(
        integer(min=1),
        "The number of threads of torch. With small networks, more than one costs more than it saves.",
        default=1,
        changeable=True,
        option=Option("--threads N", "speed", "threads of torch; one is fastest for small networks"),
    )
    seeds: Any = setting(
        _SEEDS,
        "The seeds, if the run is trained once with each of them.",
        default=None,
        option=Option("--seeds A-B", "run", "train once with each of these seeds: 0-4, or 0,3,7"),
    )
    parallel: int = setting(
        integer(min=1),
        "The number of runs that are trained at a time, with seeds or in a sweep.",
        default=1,
        option=Option("--parallel N", "speed", "train N seeds or trials at a time, each in a process"),
    )
    out: str | None = setting(
        text("the path of a folder"),
        "The folder of the run, of the runs with several seeds, or of the sweep.",
        default=None,
        option=Option("--out DIR", "output", "folder of the run (default runs/ENV-POLICIES-seedN)"),
    )
