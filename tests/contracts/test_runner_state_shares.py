"""The state of env runners does not depend on how the sub-environments are divided among them.

Runners with shares of the sub-environments play. At any time, their states can be merged, and divided in another way.
The runners that continue play what one runner with all sub-environments plays.
"""

from __future__ import annotations

import copy
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from msgspec.structs import replace

from helpers.envs.failing_envs import FailingEnv
from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.envs.stated_envs import StatedLife
from helpers.modules.recurrent_modules import StatelessModule
from helpers.runs import recurrent_runs, turn_based_configs
from helpers.runs.random_runs import ROUNDING, Doubles, Notes, by_episode, described, differences, plain, random_config
from helpers.runs.runner_shares import DividedRun, contents, depends_on_others
from marl_connectors import ConnectorV2, FlattenObservations, FrameStacking, PPOConfig, RLModuleSpec
from marl_connectors.algorithms.mappo import MAPPOConfig
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.trees import leaves


def state_differences(
    whole: DividedRun, run: DividedRun, *, at_random: bool = False, atol: float = ROUNDING
) -> list[str]:
    """Where the state of one runner and that of several together differ.

    If actions were random, one runner may have zeros as the outputs of modules for the sake of other agents.
    """
    states = [copy.deepcopy(own.state()) for own in (whole, run)]
    for own in (own for state in states for own in state.sub_environments if at_random and own.episode is not None):
        for group in own.episode.groups:
            layers = group.rollout.layers.items()
            zeros = [name for name, layer in layers if not any(np.any(leaf) for own in layer for leaf in leaves(own))]
            for name in zeros:
                del group.rollout.layers[name]
            group.rollout.given = {}
    return differences(*map(plain, states), atol=atol)


def check_same(
    whole: DividedRun, run: DividedRun, at_random: bool = False, atol: float = ROUNDING, **options: Any
) -> None:
    """Both sample; compares the episodes and their order."""
    expected, found = (contents(own.sample(**options), at_random) for own in (whole, run))
    assert differences(expected, found, atol=atol) == []
    assert run.places == whole.places


def continued(config: PPOConfig, run: DividedRun, sizes: list[int], folder: Path | None = None) -> DividedRun:
    """Divides the run in another way."""
    state = run.state()
    run.close()
    if folder is not None:
        save_state(folder, state)
        state = load_state(folder)
    return DividedRun(config, sizes, state)


def random_sizes(rng: np.random.Generator, num_envs: int) -> list[int]:
    """Some numbers of sub-environments that add up to ``num_envs``."""
    cuts = np.flatnonzero(rng.random(num_envs - 1) < rng.choice([0.2, 0.7])) + 1
    return np.diff([0, *cuts, num_envs]).tolist()


def check_divided_run(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    while depends_on_others(config := random_config(int(rng.integers(2**31)))):
        pass
    config.env_runners(num_env_workers=0)
    takes_turns = config.env_config.get("kind") == "turns"
    num_envs = int(rng.integers(2, 6))
    whole, run = DividedRun(config, [num_envs]), DividedRun(config, random_sizes(rng, num_envs))
    at_random = False
    try:
        for stage in range(3):
            if stage:
                run = continued(config, run, random_sizes(rng, num_envs), folder if seed % 2 else None)
            for _ in range(2):
                options: dict[str, Any] = {"steps": int(rng.integers(1, 9))}
                match rng.choice(["plain", "episodes", "random", "explore", "reset"], p=[0.7, 0.12, 0.06, 0.06, 0.06]):
                    case "episodes":
                        options = {"num_episodes": int(rng.integers(1, 2 * num_envs + 1))}
                    case "random" if not takes_turns:
                        options["random_actions"] = at_random = True
                    case "explore":
                        options["explore"] = not config.explore
                    case "reset":
                        options["force_reset"] = True
                check_same(whole, run, at_random, **options)
                assert state_differences(whole, run, at_random=at_random) == []
            if rng.random() < 0.3:
                for runner in (*whole.runners, *run.runners):
                    runner.take_finished()
    except BaseException as error:
        error.add_note(f"seed {seed}, {run.sizes}: {described(config)}") if hasattr(error, "add_note") else None
        raise
    finally:
        whole.close()
        run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(16))
def test_a_run_that_is_divided_in_other_ways_continues_as_if_it_was_never_divided(seed, tmp_path):
    check_divided_run(seed, tmp_path / "state")


@pytest.mark.slow
def test_many_random_runs_that_are_divided_in_other_ways_continue_as_if_they_were_never_divided(tmp_path):
    first = secrets.randbits(31)
    for seed in range(first, first + 30):
        check_divided_run(seed, tmp_path / "state")


class Halves(ConnectorV2):
    """A piece that writes to episodes, so that forward batches are prepared, and adds a column to them."""

    def columns(self, c, xp):
        observations = c.rows.get("obs")
        c.rows.set("obs", observations + np.float32(0.5))
        c["double"] = 2 * observations


class Longer(ConnectorV2):
    """A piece that writes observations of another shape."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return spaces.Dict({agent: spaces.Box(-2e3, 2e3, (3,)) for agent in input_observation_space.spaces})

    def columns(self, c, xp):
        observations = c.rows.get("obs")
        c.rows.set("obs", np.concatenate([observations, observations[:, :1]], axis=1).astype(np.float32))


class TellsMore(StatelessModule):
    """A module with an output that others do not have."""

    def _forward(self, batch, **kwargs):
        return {**super()._forward(batch, **kwargs), "more": batch["obs"] + 1}


def life(**settings: Any) -> PPOConfig:
    game = {"agents": list("abcd"), "die": 0.3, "join": 0.5, "fixed": False, "max_steps": 9}
    return small_config(LifeEnv, env_config={**game, **settings})


def masked() -> PPOConfig:
    return small_config("marl_envs.masked_v0", env_config={"ep_len": 6}).multi_agent(policies="independent")


def with_pieces(config: PPOConfig, *pieces: type) -> PPOConfig:
    return config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces])


def stacked() -> PPOConfig:
    config = life().env_runners(env_to_module_connector=lambda: FrameStacking(num_frames=3))
    return config.learners(learner_connector=lambda: FrameStacking(num_frames=3, as_learner_connector=True))


def with_other_outputs() -> PPOConfig:
    specs = {name: RLModuleSpec(cls, model_config={}) for name, cls in (("a", StatelessModule), ("b", TellsMore))}
    return life().multi_agent(policies=specs, policy_mapping_fn=by_episode)


def failing() -> PPOConfig:
    config = small_config(FailingEnv, env_config={"chance": 0.2, "ways": ("raise",)})
    return config.environment(disable_env_checking=True).fault_tolerance(restart_failed_sub_environments=True)


def with_states() -> PPOConfig:
    config = small_config(StatedLife, MAPPOConfig, env_config={"agents": list("abc"), "die": 0.2, "max_steps": 9})
    return config.training(critic_obs="state")


CONFIGS = {
    "agents that come and go": life,
    "agents with states of many kinds": lambda: recurrent_runs.config_of(max_steps=9),
    "turns": lambda: turn_based_configs.stateful_config(),
    "turns and newcomers": lambda: turn_based_configs.config_of(
        lambda: RandomAEC(**turn_based_configs.ANYTHING, pays_newcomers=True), lookback=3
    ),
    "infos for which there is no file": lambda: turn_based_configs.config_of(
        lambda: turn_based_configs.OddInfos(**turn_based_configs.ANYTHING), lookback=3
    ),
    "tictactoe": turn_based_configs.tictactoe,
    "masks": masked,
    "items written to episodes": lambda: with_pieces(life(), Doubles),
    "columns written to episodes": lambda: with_pieces(life().multi_agent(policies="independent"), Halves),
    "turns and columns written to episodes": lambda: with_pieces(turn_based_configs.stateful_config(), Halves),
    "observations of another shape": lambda: with_pieces(life(), Longer),
    "outputs that some modules do not have": with_other_outputs,
    "frames": stacked,
    "notes": lambda: life().callbacks(Notes),
    "one agent": lambda: with_pieces(small_config("CartPole-v1"), Doubles, FlattenObservations),
    "states of the environment": with_states,
    "failures": failing,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_runs_of_all_kinds_can_be_divided_in_other_ways(name, tmp_path):
    config = CONFIGS[name]()
    # Rows of modules that torch computes depend on the number of rows.
    atol = 1e-5 if isinstance(config.policies, dict) else ROUNDING
    whole, run = DividedRun(config, [4]), DividedRun(config, [1, 3])
    try:
        for sizes in ([4], [2, 1, 1], [3, 1]):
            for steps in (5, 3):
                check_same(whole, run, atol=atol, steps=steps)
                assert state_differences(whole, run, atol=atol) == []
            run = continued(config, run, sizes, tmp_path / "state")
        check_same(whole, run, atol=atol, steps=12)
    finally:
        whole.close()
        run.close()


@pytest.mark.slow
def test_runners_with_worker_processes_can_be_divided_in_other_ways():
    config = life().env_runners(num_envs_per_env_runner=2)
    whole = DividedRun(config, [4])
    run = DividedRun(config.copy().env_runners(num_env_workers=2), [4])
    try:
        check_same(whole, run, steps=6)
        assert state_differences(whole, run) == []
        run = continued(config, run, [1, 3])
        check_same(whole, run, steps=6)
        assert state_differences(whole, run) == []
    finally:
        whole.close()
        run.close()


def test_runs_whose_modules_were_removed_can_be_divided_in_other_ways():
    config = life().multi_agent(policies={"a", "b"}, policy_mapping_fn=by_episode)
    whole, run = DividedRun(config, [4]), DividedRun(config, [1, 3])

    def remove(runs: list[DividedRun]) -> None:
        for runner in (runner for own in runs for runner in own.runners):
            runner.rl_module.remove_module("b")
            runner.set_policy_mapping_fn(lambda agent_id, episode, **kwargs: "a")
            runner.restart_episodes()

    try:
        check_same(whole, run, steps=5)
        remove([whole, run])
        assert state_differences(whole, run) == []
        check_same(whole, run, steps=5)
        state = run.state()
        run.close()
        run = DividedRun(config, [2, 2])
        remove([run])
        run.set_state(state)
        check_same(whole, run, steps=5)
        assert state_differences(whole, run) == []
    finally:
        whole.close()
        run.close()


def test_a_checkpoint_continues_with_other_runners_and_comes_back(tmp_path):
    config = life().env_runners(num_envs_per_env_runner=4).training(lr=0.0)
    algo, other = (config.copy().build_algo() for _ in range(2))
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    run = DividedRun(config, [3, 1], load_state(tmp_path / "checkpoint")["env_runner"])
    assert (
        differences(
            *(contents(own.sample(**n)) for own, n in ((algo.env_runner, {"num_timesteps": 28}), (run, {"steps": 7})))
        )
        == []
    )
    save_state(tmp_path / "own", replace(algo.get_state(), env_runner=run.state()))
    other.restore_from_path(tmp_path / "own")
    assert differences(*(contents(own.env_runner.sample(num_timesteps=20)) for own in (algo, other))) == []
    assert differences(*(plain(own.env_runner.get_metrics()) for own in (algo, other))) == []
    run.close()
