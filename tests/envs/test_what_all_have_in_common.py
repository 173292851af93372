"""What holds for all small environments: seeds, actions, spaces, pictures, and arrays of their own."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

from marl_envs.drawing import BLUE, WHITE, Canvas

PARALLEL = ["first_step_v0", "masked_v0", "match_v0", "recall_v0", "spread_v0", "stay_v0", "visitors_v0"]
DRAWN = [*PARALLEL, "last_stone_v0", "null_v0"]
SMALL = [name for name in PARALLEL if name not in ("match_v0", "spread_v0")]


def module(name):
    return importlib.import_module(f"marl_envs.{name}")


def make(name, **arguments):
    return getattr(module(name), "raw_env" if name == "last_stone_v0" else "parallel_env")(**arguments)


def legal(env, seen, agent, rng):
    if isinstance(seen, dict):
        return int(rng.choice(np.flatnonzero(seen["action_mask"])))
    return int(rng.integers(env.action_space(agent).n))


def transitions(env, seed, steps=60):
    """All that is told in some episodes of random legal play."""
    rng, told = np.random.default_rng(0), []
    observations, infos = env.reset(seed=seed)
    told.append((observations, infos))
    for _ in range(steps):
        step = env.step({agent: legal(env, observations[agent], agent, rng) for agent in env.agents})
        told.append(step)
        observations = step[0]
        if not env.agents:
            observations, infos = env.reset()
            told.append((observations, infos))
    return told


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PARALLEL)
def test_the_same_seed_gives_the_same_episodes_and_another_one_others(name):
    first, again, other = (transitions(make(name), seed) for seed in (4, 4, 5))
    assert repr(first) == repr(again)
    assert repr(first) != repr(other)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PARALLEL)
def test_a_seed_begins_the_sequence_anew_in_an_environment_that_has_played(name):
    env = make(name)
    assert repr(transitions(env, 4)) == repr(transitions(env, 4)) != repr(transitions(env, None))


@pytest.mark.parametrize("name", PARALLEL)
def test_observations_lie_in_their_spaces_and_the_state_is_float32(name):
    env = make(name)
    for told in transitions(env, 3):
        for agent, seen in told[0].items():
            assert env.observation_space(agent).contains(seen)
    assert env.state().dtype == np.float32


@pytest.mark.parametrize("name", PARALLEL)
def test_what_was_told_does_not_change_later(name):
    env = make(name)
    told = transitions(env, 3, steps=3)
    before = repr(told)
    rng = np.random.default_rng(0)
    observations, _ = env.reset(seed=9)
    env.step({agent: legal(env, observations[agent], agent, rng) for agent in env.agents})
    assert repr(told) == before


@pytest.mark.parametrize("name", SMALL)
def test_a_missing_action_is_refused_by_the_agents_name(name):
    env = make(name)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"(?s)^{name}.*'agent_0'"):
        env.step({})


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("action", [99, -1, 0.5, None])
def test_an_action_outside_the_space_is_refused(name, action):
    env = make(name)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"(?s)^{name}.*'agent_0'.*Discrete"):
        env.step(dict.fromkeys(env.agents, action))


@pytest.mark.parametrize("name", SMALL)
def test_a_step_outside_an_episode_is_refused(name):
    with pytest.raises(RuntimeError, match=rf"(?s)^{name}.*reset\(\)"):
        make(name).step({})


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_rgb_changes_with_the_game_and_leaves_it_alone(name):
    env, unseen = make(name, render_mode="rgb_array"), make(name)
    assert env.metadata["render_modes"] == ["rgb_array"] and env.metadata["name"] == name
    for game in (env, unseen):
        game.reset(seed=1)
    pictures = [env.render()]
    for _ in range(2):
        for game in (env, unseen):
            if name == "last_stone_v0":
                game.step(0)
            else:
                allowed = {agent: int(mask.argmax()) for agent, mask in masks_of(game).items()}
                told = game.step(allowed)
                if game is env:
                    shown = repr(told)
                else:
                    assert repr(told) == shown
        pictures.append(env.render())
        if not env.agents:
            break
    for picture in pictures:
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape == (*pictures[0].shape[:2], 3)
    assert not np.array_equal(pictures[0], pictures[1])
    env.close()


def masks_of(env):
    """An action of each agent that it may take and that changes the picture: 1, but for masked_v0."""
    if hasattr(env, "_allowed"):
        return {a: m for a, m in zip(env.possible_agents, env._allowed, strict=True) if a in env.agents}
    return {agent: np.array([0, 1]) for agent in env.agents}


@pytest.mark.parametrize("name", DRAWN)
def test_without_a_render_mode_nothing_is_drawn_and_an_unknown_one_is_refused(name):
    env = make(name)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match=rf"(?s){name}.*render\(\).*render_mode.*None"):
        assert env.render() is None
    with pytest.raises(ValueError, match=f"(?s)^{name}.*render_mode.*'rgb_array'.*'human'"):
        make(name, render_mode="human")


def test_importing_the_environments_imports_no_drawing_or_learning_library():
    names = ", ".join(f"marl_envs.{name}" for name in DRAWN)
    heavy = ["torch", "PIL", "matplotlib", "pygame", "marl_connectors"]
    code = f"import sys; import {names}; print([name for name in {heavy} if name in sys.modules])"
    path = f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]}; "
    done = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_canvas_draws_bars_and_discs_and_leaves_out_what_is_outside():
    canvas = Canvas(20, 30)
    canvas.bar(-5, 15, 10, 10, BLUE)
    blue = (canvas.pixels == BLUE).all(axis=-1)
    assert blue[15:, :5].all() and blue.sum() == 25
    canvas = Canvas(20, 30)
    canvas.disc(30, 10, 5, BLUE)
    blue = (canvas.pixels == BLUE).all(axis=-1)
    assert blue[10, 26:].all() and not blue[:, :24].any() and (canvas.pixels[:4] == WHITE).all()
    canvas = Canvas(40, 40)
    canvas.disc(20, 20, 10, BLUE)
    ink = (WHITE[0] - canvas.pixels[..., 0].astype(float)) / (WHITE[0] - BLUE[0])
    assert abs(ink.sum() - np.pi * 10**2) < 4  # its edge is smooth, its area is right
