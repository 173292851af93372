from __future__ import annotations

from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.environments.vector.worker_vector_env import _begin_episode


def test_the_actions_of_the_former_episode_are_forgotten_when_a_worker_has_begun_another_one():
    sub_env = SubEnvironment(None, 0)
    _begin_episode(sub_env, 0)
    sub_env.newest_actions, sub_env.t = [[1], [0]], 2
    sub_env.pack_history()
    sub_env.newest_actions.append([1])
    _begin_episode(sub_env, 0)
    assert list(sub_env.pack_history()) == [[1], [0], [1]], "it is still the same episode"
    sub_env.newest_actions.append([0])
    _begin_episode(sub_env, 1)
    assert (sub_env.episode_number, sub_env.t, list(sub_env.pack_history())) == (1, 0, [])
