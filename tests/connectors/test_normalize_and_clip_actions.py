import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

INF = np.inf
LARGEST = np.finfo(np.float32).max


def for_env(space, actions, **settings):
    """What the environments get for each of ``actions``, or None if they get the actions themselves."""
    episodes = [SingleAgentEpisode(str(i), action_space=space) for i in range(len(actions))]
    batch = {"actions": {(str(i),): [np.asarray(action)] for i, action in enumerate(actions)}}
    piece = NormalizeAndClipActions(**settings)
    batch = piece(rl_module=None, batch=batch, episodes=episodes)
    assert [items[0].tolist() for items in batch["actions"].values()] == [np.asarray(a).tolist() for a in actions]
    if "actions_for_env" not in batch:
        return None
    return [items[0] for items in batch["actions_for_env"].values()]


@pytest.mark.parametrize(
    ("low", "high", "settings", "actions", "expected"),
    [
        (-2.0, 6.0, {}, [[-1.0], [0.0], [0.5], [1.0], [7.0], [-7.0]], [[-2.0], [2.0], [4.0], [6.0], [6.0], [-2.0]]),
        (0.0, INF, {}, [[-1.0], [3.0], [50.0]], [[0.0], [3.0], [50.0]]),
        (-INF, 2.0, {}, [[-50.0], [3.0]], [[-50.0], [2.0]]),
        (-INF, INF, {}, [[-50.0], [3.0]], [[-50.0], [3.0]]),
        (-LARGEST, LARGEST, {}, [[0.0], [1.0]], [[0.0], [LARGEST]]),
        (-2.0, 6.0, {"normalize_actions": False, "clip_actions": True}, [[0.5], [7.0], [-7.0]], [[0.5], [6.0], [-2.0]]),
        (-2.0, 6.0, {"normalize_actions": False}, [[0.5], [7.0]], [[0.5], [7.0]]),
    ],
)
def test_box_actions_get_the_range_of_the_space(low, high, settings, actions, expected):
    found = for_env(spaces.Box(low, high, (1,), np.float32), actions, **settings)
    assert [action.tolist() for action in found] == expected
    assert all(action.dtype == np.float32 for action in found)


def test_each_component_has_its_own_range():
    space = spaces.Box(np.array([0.0, -INF], np.float32), np.array([10.0, 1.0], np.float32))
    assert for_env(space, [[0.5, 0.5], [-1.0, 4.0]])[0].tolist() == [7.5, 0.5]
    assert for_env(space, [[0.5, 0.5], [-1.0, 4.0]])[1].tolist() == [0.0, 1.0]


def test_flat_actions_get_the_shape_of_the_space():
    (action,) = for_env(spaces.Box(-2.0, 2.0, (2, 2), np.float64), [[0.0, 0.5, 1.0, -1.0]])
    assert action.tolist() == [[0.0, 1.0], [2.0, -2.0]]
    assert action.dtype == np.float64


def test_discrete_actions_get_the_start_of_the_space():
    assert for_env(spaces.Discrete(3, start=5), [0, 2]) == [5, 7]
    assert for_env(spaces.Discrete(3), [0, 2]) is None


def test_agents_that_need_no_other_numbers_are_in_the_column_if_any_agent_does():
    episodes = [
        SingleAgentEpisode("x", action_space=spaces.Discrete(3, start=5)),
        SingleAgentEpisode("y", action_space=spaces.Discrete(3)),
    ]
    batch = {"actions": {("x",): [1], ("y",): [2]}}
    batch = NormalizeAndClipActions()(rl_module=None, batch=batch, episodes=episodes)
    assert batch["actions_for_env"] == {("x",): [6], ("y",): [2]}


def test_actions_for_env_that_a_piece_has_set_are_left_alone():
    episodes = [SingleAgentEpisode("x", action_space=spaces.Discrete(3, start=5))]
    batch = {"actions": {("x",): [1]}, "actions_for_env": {("x",): [9]}}
    assert NormalizeAndClipActions()(rl_module=None, batch=batch, episodes=episodes)["actions_for_env"] == {("x",): [9]}


def test_a_batch_in_which_nobody_acts_stays_empty():
    assert NormalizeAndClipActions()(rl_module=None, batch={}, episodes=[]) == {}
