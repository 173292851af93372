"""The settings of a training run, as the command line has them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

from marl_connectors.cli.config_settings import configured, is_remote, load_config, mapping_fn, same, settings_of
from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_instead, config_class
from marl_connectors.cli.values import ACTIVATIONS, TRACKER_NAMES, VIDEO_FORMATS
from marl_connectors.environments.making.factory import agent_ids, env_name, make_env
from marl_connectors.environments.vector.env_failures import close_env
from marl_connectors.errors import CheckpointError, ConfigError, did_you_mean
from marl_connectors.json_data import brief
from marl_connectors.policy_mapping import OneAgainst, PatternPolicies, PolicyMappingFn, check_mapping
from marl_connectors.spaces import describe
from marl_connectors.validators import (
    Unfit,
    Validator,
    any_of,
    boolean,
    dict_of,
    either,
    instance_of,
    integer,
    list_of,
    number,
    one_of,
    optional,
)
from marl_connectors.zoo import find_task
from marl_connectors.zoo.measures import OPPONENT

INFINITY = "Infinity"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A training run.

    Attributes:
        env: The name of an environment, for ``make_env``.
        env_config: The arguments for the environment's constructor.
        wrappers: The wrappers around each sub-environment, the innermost first: names with arguments, such as
            ``"frame_skip_v0:4"``.
        algo: The name of the algorithm, one of ``ALGORITHMS``.
        policies: ``"shared"``, ``"independent"`` or patterns; ignored if ``mapping`` is not None.
        mapping: ``"module:function"``, or None.
        modules: All modules that ``mapping`` can name; None if it names all of them in a first episode.
        eval_opponent: ``"random"`` if one agent acts with its module in evaluations, a different one in each episode,
            and all others act at random; ``"random:PATTERN,PATTERN"`` if the agents of one team do, whose ids match
            its pattern; None if evaluations are played as in training.
        eval_explore: Whether evaluations and videos draw the actions; False for the most likely ones; None for what
            ``AlgorithmConfig.draws_actions`` says.
        steps: The agent steps at which the run ends.
        seed: The seed of all random streams.
        num_envs: The number of sub-environments of all env runners together.
        num_env_runners: The number of env runners in Ray actors; 0 for one in this process.
        num_learners: The number of learners in Ray actors; 0 for one in this process.
        ray_address: The address of the Ray cluster for them; None for a cluster on this machine for this run alone.
        num_env_workers: The number of processes over which they are spread; ``"auto"`` for as many as are worth it.
        num_gpus_per_learner: 1 for modules on the GPU, 0 for the CPU; ``"auto"`` for the GPU if one exists.
        training: Settings of the config by name, most of them settings of ``training``; see ``set_by_name``.
        hidden: The widths of the hidden layers.
        activation: The activation after each hidden layer.
        share_value_layers: Whether policy and value function share these layers.
        model: Further settings of the modules, by the names of the fields of ``DefaultModelConfig``.
        env_to_module: The names of connector pieces at the beginning of the env-to-module pipeline, as for
            ``NamedPieces``.
        learner_connector: The names of connector pieces at the beginning of the learner pipeline.
        anneal_lr: Whether the learning rate falls linearly to 0 over ``steps``.
        checkpoint_every: The number of iterations from one checkpoint to the next.
        eval_episodes: The number of episodes of each evaluation.
        baseline_seconds: The seconds for measuring random play, and again for the untrained policies.
        video: The format of videos: ``"gif"``, ``"mp4"``, or ``"none"`` for no videos.
        video_every: The number of iterations from one video to the next; 0 for a video at the end alone.
        track: The names of the trackers to which metrics are written, such as ``"tensorboard"``.
        keep_best: The metric by which the best checkpoint is chosen, such as ``"env_runners/episode_return_mean"``, or
            ``"min:NAME"`` for the lowest value; ``"auto"`` for the success or return of evaluations or else of
            training; None for no best checkpoint.
        keep_checkpoints: The number of newest checkpoints to keep besides the best one; None for all.
        action_mask_key: The key of action masks; ``"auto"`` for PettingZoo's convention, None to ignore masks.
        env_check: Whether the smoke test is run, and observations are checked against their space.
        preset: The name of the zoo's task whose settings the run began with; None for a run without a preset.
        config: The Python file or module of the config that the run began with, as for ``load_config``; None for a
            config that is made from these settings alone.
        threads: The number of threads of torch. With small networks, more than one costs more than it saves.
    """

    env: str
    env_config: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    algo: str = "ppo"
    policies: str = "shared"
    mapping: str | None = None
    modules: list[str] | None = None
    eval_opponent: str | None = None
    eval_explore: bool | None = None
    steps: int = 1_000_000
    seed: int = 0
    num_envs: int = 8
    num_env_runners: int = 0
    num_learners: int = 0
    ray_address: str | None = None
    num_env_workers: int | str = "auto"
    num_gpus_per_learner: float | str = "auto"
    training: dict[str, Any] = field(default_factory=dict)
    hidden: list[int] = field(default_factory=lambda: [64, 64])
    activation: str = "tanh"
    share_value_layers: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    env_to_module: list[str] = field(default_factory=list)
    learner_connector: list[str] = field(default_factory=list)
    anneal_lr: bool = False
    checkpoint_every: int = 20
    eval_episodes: int = 20
    baseline_seconds: float = 10
    video: str = "gif"
    video_every: int = 0
    track: list[str] = field(default_factory=lambda: ["tensorboard"])
    keep_best: str | None = "auto"
    keep_checkpoints: int | None = None
    threads: int = 1
    env_check: bool = True
    action_mask_key: str | None = "auto"
    preset: str | None = None
    config: str | None = None

    def default_folder_name(self) -> str:
        """Returns ``<env>-<policies>-seed<seed>``, with the algorithm's name after ``<env>`` if it is not PPO."""
        mapping = None if self.config is not None and self.mapping is not None else self.mapping_fn()
        if self.mapping is not None:
            policies = self.mapping.rpartition(":")[2]
        elif isinstance(mapping, PatternPolicies):
            policies = "-".join(dict.fromkeys(module_id for _, module_id in mapping.patterns))
        else:
            policies = self.policies.strip()
        policies = re.sub(r"[^\w.-]+", "_", policies)
        algo = "" if self.algo == "ppo" else f"{self.algo}-"
        return f"{env_name(self.env)}-{algo}{policies}-seed{self.seed}"

    def mapping_fn(self) -> PolicyMappingFn:
        """Returns the policy mapping function.

        Raises:
            ConfigError: If it does not exist or is not a function.
        """
        return mapping_fn(self.policies, self.mapping)

    def make_config(self) -> Any:
        """Returns the ``AlgorithmConfig``: that of ``config``, or a new one, with these settings.

        Of a config from a Python file, only the settings that differ are changed. The environment may add an opponent
        for evaluations, and a measure of success.
        """
        config = self.make_own_config()
        self._check_agents(config)
        task = find_task(self.env)
        if task is not None and task.success is not None:
            config.callbacks(on_episode_end=_with(config.callbacks_on_episode_end, task.success))
        if config.ray_address is not None and not is_remote(config):
            raise ConfigError(
                "--ray-address: nothing of this run would be on the cluster. Add --num-env-runners N or "
                "--num-learners N, or leave it out."
            )
        return config

    def make_own_config(self) -> Any:
        """Returns the config of ``make_config`` without what depends on the environment."""
        if self.config is not None:
            config = load_config(self.config)
            values = changes_of(self, RunSettings(**settings_of(config)))
        else:
            from marl_connectors.rl_module.default_model_config import DefaultModelConfig

            config = config_class(self.algo)()
            config.multi_agent(count_steps_by="agent_steps").rl_module(model_config=DefaultModelConfig())
            values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return configured(config, values)

    def build_algorithm(self) -> Any:
        """Builds the run's ``Algorithm``."""
        use_threads(self.threads)
        return self.make_config().build_algo()

    def _check_agents(self, config: Any) -> None:
        """Checks patterns of policies against the environment's agents, and sets the opponent of evaluations."""
        mapping = config.policy_mapping_fn
        if not isinstance(mapping, PatternPolicies) and self.eval_opponent is None:
            return
        env = make_env(config.env, config.env_config, wrappers=config.wrappers)
        agents = agent_ids(env)
        check_mapping(mapping, agents)
        if self.eval_opponent is not None:
            self._check_opponent(env, agents)
        close_env(env, env_name(config.env))
        if self.eval_opponent is not None:
            set_opponent(config, agents, teams_of(self.eval_opponent, agents))

    def _check_opponent(self, env: Any, agents: Sequence[Any]) -> None:
        """Checks that a random module can act for each of several agents."""
        if len(agents) == 1:
            raise ConfigError(
                f"--eval-opponent: expected an environment with several agents, but {env_name(self.env)} has one. "
                f"Leave it out."
            )
        kinds = ["action"] if self.env_to_module else ["action", "observation"]  # pieces may make observations alike
        for kind in kinds:
            space_of = getattr(env, f"{kind}_space", None)
            if not callable(space_of):
                continue
            for agent_id in agents:
                if describe(cast(Any, space_of(agent_id))) != describe(cast(Any, space_of(agents[0]))):
                    raise ConfigError(
                        f"--eval-opponent: expected agents with the same spaces, for which one module can act at "
                        f"random, but the {kind} spaces of {agents[0]!r} and {agent_id!r} differ. Leave it out."
                    )


def teams_of(opponent: str, agents: Sequence[Any]) -> list[str]:
    """Returns who plays against the opponent, one after another: each agent, or the pattern of each team's agents.

    Raises:
        ConfigError: If a pattern matches no agent, or if an agent is not in exactly one of several teams.
    """
    _, colon, patterns = opponent.partition(":")
    if not colon:
        return [str(agent_id) for agent_id in agents]
    teams = [pattern.strip() for pattern in patterns.split(",")]
    for team in teams:
        if not any(fnmatchcase(str(agent_id), team) for agent_id in agents):
            raise ConfigError(
                f"--eval-opponent: the team {team!r} matches no agent. The agents are: {', '.join(map(str, agents))}."
            )
    for agent_id in agents:
        own = [team for team in teams if fnmatchcase(str(agent_id), team)]
        if len(own) != 1:
            found = "no team" if not own else f"the teams {' and '.join(own)}"
            raise ConfigError(
                f"--eval-opponent: expected each agent in one team, but {agent_id!r} is in {found}. Name the agents of "
                f"all teams, such as random:red*,blue*, or use random, with which each agent is a team."
            )
    if len(teams) == 1:
        raise ConfigError(
            f"--eval-opponent: all agents are in the team {teams[0]!r}, so it has no opponent. Name the agents of each "
            f"team, such as random:red*,blue*, or use random, with which each agent is a team."
        )
    return teams


def set_opponent(config: Any, agents: Sequence[Any], teams: Sequence[str]) -> None:
    """Adds a module that acts at random, against which one agent or team plays in evaluations.

    Args:
        config: The config, with its mapping function and its ``policies``.
        agents: The agents of the environment.
        teams: Who plays, one after another: an agent, or the pattern of a team's agents.

    Raises:
        ConfigError: If a module has that name already.
    """
    from marl_connectors.env_runners.agent_modules import ask_mapping
    from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
    from marl_connectors.rl_module.random_rl_module import RandomRLModule
    from marl_connectors.rl_module.rl_module import RLModuleSpec

    mapping, module_ids = config.policy_mapping_fn, config.policies
    if module_ids is None:
        first = MultiAgentEpisode.from_agent_episodes(
            "0-0", {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=mapping
        )
        module_ids = [ask_mapping(first, agent_id) for agent_id in agents]
    if OPPONENT in module_ids:
        raise ConfigError(
            f"--eval-opponent: a module is called {OPPONENT!r}, which is the name of the opponent. Give it another one."
        )
    specs = module_ids if isinstance(module_ids, Mapping) else dict.fromkeys(module_ids)
    config.multi_agent(policies={**specs, OPPONENT: RLModuleSpec(RandomRLModule)})
    against = OneAgainst(mapping, tuple(teams), OPPONENT)
    config.evaluation(evaluation_config={**(config.evaluation_config or {}), "policy_mapping_fn": against})


def changes_of(settings: RunSettings, base: RunSettings) -> dict[str, Any]:
    """Returns the values of a run's settings that differ from those of its config, and the seed.

    Args:
        settings: The settings of the run.
        base: The settings that the config has.
    """
    names = [field.name for field in dataclasses.fields(settings)]
    changed = {name for name in names if not same(getattr(settings, name), getattr(base, name))}
    changed |= {"seed"} | ({"policies", "mapping", "modules"} if {"policies", "mapping"} & changed else set())
    changed |= {"steps"} if "anneal_lr" in changed else set()
    values = {name: getattr(settings, name) for name in names if name in changed}
    for name in {"training", "model"} & changed:
        old = getattr(base, name)
        own = {key: value for key, value in values[name].items() if key not in old or not same(value, old[key])}
        values[name] = own
    return values


def _with(functions: Any, function: Any) -> Any:
    """Returns the functions of a callback with another one."""
    if functions is None:
        return function
    return [*functions, function] if isinstance(functions, (list, tuple)) else [functions, function]


def use_threads(number: int) -> None:
    """Sets the number of threads with which torch computes."""
    import torch

    torch.set_num_threads(number)


def _in_words(words: str, validator: Validator) -> Validator:
    """Returns a validator with other words, which are those of JSON."""
    return Validator(words, validator.keep, validator.schema)


def _env(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unfit
    return value


def _opponent(value: Any) -> Any:
    if not isinstance(value, str) or value.partition(":")[0] != OPPONENT:
        raise Unfit
    return value


def _algorithm(value: Any) -> str:
    if instead := algorithm_instead(value, in_file=True):
        raise Unfit(instead)
    return one_of(*ALGORITHMS).keep(value)


_FLAG = _in_words("true or false", boolean())
_TEXT = Validator("text", instance_of(str, expected="text").keep, {"type": "string"})
_ENV = Validator("the name of an environment, such as CartPole-v1", _env, {"type": "string", "minLength": 1})
_TEXTS = list_of(_TEXT, "a list of texts")
_SETTINGS = dict_of(expected="a JSON object")
_COUNT = _in_words("a whole number of at least 1", integer(min=1))
_WHOLE = _in_words("a whole number of at least 0", integer(min=0))
_TEXT_OR_NULL = _in_words("text or null", optional(_TEXT))
_AUTO = _in_words('a whole number of at least 0, or "auto"', either(one_of("auto"), _WHOLE))
_VIDEO = _in_words(f"one of {', '.join(VIDEO_FORMATS)}", one_of(*VIDEO_FORMATS))
EXPECTED: Mapping[str, Validator] = {
    "env": _ENV,
    "env_config": _SETTINGS,
    "wrappers": _TEXTS,
    "algo": Validator(f"one of {', '.join(ALGORITHMS)}", _algorithm, one_of(*ALGORITHMS).schema),
    "policies": _TEXT,
    "mapping": _TEXT_OR_NULL,
    "modules": _in_words("a list of texts, or null", optional(_TEXTS)),
    "eval_opponent": Validator(
        '"random", "random:TEAM,TEAM" or null',
        optional(Validator("", _opponent)).keep,
        any_of({"type": "string", "pattern": f"^{OPPONENT}(:|$)"}, {"type": "null"}),
    ),
    "steps": _COUNT,
    "seed": _WHOLE,
    "num_envs": _COUNT,
    "num_env_runners": _WHOLE,
    "num_learners": _WHOLE,
    "ray_address": _TEXT_OR_NULL,
    "num_env_workers": _AUTO,
    "num_gpus_per_learner": _in_words('a number from 0 to 1, or "auto"', either(one_of("auto"), number(min=0, max=1))),
    "training": _SETTINGS,
    "hidden": list_of(_COUNT, "a list of whole numbers of at least 1"),
    "activation": _in_words(f"one of {', '.join(ACTIVATIONS)}", one_of(*ACTIVATIONS)),
    "share_value_layers": _FLAG,
    "model": _SETTINGS,
    "env_to_module": _TEXTS,
    "learner_connector": _TEXTS,
    "anneal_lr": _FLAG,
    "eval_explore": _in_words("true, false or null", optional(_FLAG)),
    "checkpoint_every": _COUNT,
    "eval_episodes": _WHOLE,
    "baseline_seconds": _in_words("a number of at least 0", number(min=0)),
    "video": _VIDEO,
    "video_every": _WHOLE,
    "track": list_of(one_of(*TRACKER_NAMES), f"a list of {', '.join(TRACKER_NAMES)}"),
    "keep_best": _TEXT_OR_NULL,
    "keep_checkpoints": _in_words("a whole number of at least 1, or null", optional(_COUNT)),
    "threads": _COUNT,
    "env_check": _FLAG,
    "action_mask_key": _TEXT_OR_NULL,
    "preset": _TEXT_OR_NULL,
    "config": _TEXT_OR_NULL,
}
"""The validator of each setting."""


def settings_to_json(settings: RunSettings) -> dict[str, Any]:
    """Returns settings as a run's ``config.json`` has them. ``"Infinity"`` stands for a number that JSON has not."""
    data = dataclasses.asdict(settings)
    training = {name: INFINITY if value == math.inf else value for name, value in settings.training.items()}
    return {**data, "training": training}


def settings_from_json(data: Any, source: str = "config.json of the run", part: str = "command") -> RunSettings:
    """Returns the settings that a part of a run's ``config.json`` has.

    Args:
        data: The JSON data.
        source: The name of the file, for messages.
        part: The key of the part.

    Raises:
        CheckpointError: If a setting is unknown or has the wrong type. The message names it.
    """
    if not isinstance(data, dict) or not isinstance(data.get("env"), str):
        raise CheckpointError(
            f"{source}: expected its settings under 'command', with an 'env', so the file is damaged. Start a new run."
        )
    expected = EXPECTED if data.get("config") is None else {**EXPECTED, "algo": _TEXT}  # that of a Python file's config
    for key, value in data.items():
        if key not in expected:
            raise CheckpointError(f"{source}: unknown setting {brief(key)}. {did_you_mean(key, expected)}")
        try:
            expected[key].keep(value)
        except Unfit as unfit:
            raise CheckpointError(
                f"{source}: expected {part!r} to have {key!r} as {expected[key].expected}, but got {brief(value)}. "
                f"Correct it there."
            ) from unfit
    settings = RunSettings(**data)
    training = {name: math.inf if value == INFINITY else value for name, value in settings.training.items()}
    return dataclasses.replace(settings, training=training)
