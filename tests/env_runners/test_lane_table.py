"""What a lane keeps of the agent that it had, of the chunk before, and for how long."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors import ConnectorV2
from marl_connectors.env_runners.lane_table import LaneTable


def runner_of(script, *, lookback=1, **env):
    config = small_config(lambda config: ScriptEnv([script], **env)).env_runners(episode_lookback_horizon=lookback)
    return config.environment(disable_env_checking=True).build_algo().env_runner


def test_an_agent_with_both_flags_is_terminated_and_so_is_its_episode():
    script = [Step({"a": 0, "b": 0}), Step({"a": 1, "b": 1}, {"a": 1.0}, terminated=("a", "b"), truncated=("a", "b"))]
    runner = runner_of(script)
    (episode,) = runner.sample(num_episodes=1)
    lives = episode.all_agent_episodes()
    assert [(life.is_terminated, life.is_truncated) for life in lives] == [(True, False)] * 2
    assert (episode.is_terminated, episode.is_truncated) == (True, False)
    assert not runner.take_finished()[0].is_truncated


@pytest.mark.parametrize("start", [0, 5])
def test_environments_get_pythons_own_numbers(start):
    """What they compare, hash or write to JSON must not be numpy's."""
    taken = []

    class Asking(LifeEnv):
        def step(self, actions):
            taken.extend(type(action) for action in actions.values())
            return super().step(actions)

    spaces_of = {agent: (spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3, start=start)) for agent in "ab"}
    config = small_config(lambda config: Asking(agents="ab", spaces_of=spaces_of))
    runner = config.environment(disable_env_checking=True).build_algo().env_runner
    runner.sample(num_timesteps=4)
    runner.sample(num_timesteps=4, random_actions=True)
    assert set(taken) == {int} and len(taken) == 16


def test_custom_data_of_a_chunk_and_of_its_successor_are_two():
    script = [Step({"a": t}, {"a": 1.0} if t else {}) for t in range(30)]
    runner = runner_of(script)
    for number in range(3):
        (chunk,) = runner.sample(num_timesteps=2)
        notes = chunk.agent_episodes["a"].custom_data
        assert notes.get("seen", []) == list(range(number))
        ongoing = runner._episodes.ongoing[0].agent_episodes["a"].custom_data
        ongoing.setdefault("seen", []).append(number)
        assert notes.get("seen", []) == list(range(number))


def joining_and_leaving(steps, info=None):
    """A new agent in each step, for one step; "home" stays."""
    script = [Step({"home": 0}), Step({"home": 1, "n1": 1}, {"home": 1.0})]
    for t in range(2, steps):
        last, new = f"n{t - 1}", f"n{t}"
        infos = {last: info} if info and t % 3 == 0 else {}
        script.append(Step({"home": t, last: t, new: t}, {"home": 1.0, last: 1.0}, terminated=(last,), infos=infos))
    return script


def test_a_stream_of_new_agents_needs_no_more_room_as_time_goes_by():
    runner = runner_of(joining_and_leaving(120), possible_agents=["home"])
    sizes = []
    for _ in range(20):
        (chunk,) = runner.sample(num_timesteps=5)
        (group,) = runner._episodes.lanes.groups
        rollout = chunk.agent_episodes["home"].storage.rollout
        sizes.append((rollout.num_rows, rollout.num_lanes, group._num_opened))
    assert len(set(sizes[2:])) == 1, sizes
    assert sizes[-1][2] <= 4


def test_a_lane_that_is_free_at_every_cut_begins_again_at_the_top():
    script = []
    for t in range(200):
        guest = {"guest": t} if t % 5 in (2, 3, 4) else {}
        script.append(Step({"home": t, **guest}, {"home": 1.0}, terminated=("guest",) if t % 5 == 4 else ()))
    runner = runner_of(script, possible_agents=["home", "guest"])
    chunks = [runner.sample(num_timesteps=5)[0] for _ in range(30)]
    assert all(len(chunk.agent_episodes["guest"]) == 2 for chunk in chunks)
    assert len({chunk.agent_episodes["guest"].storage.rollout.num_rows for chunk in chunks[1:]}) == 1


@pytest.mark.parametrize("fragment", [1, 2, 5])
def test_infos_of_a_lanes_former_agent_are_not_those_of_the_next(fragment):
    runner = runner_of(joining_and_leaving(60, info={"mine": 1}), possible_agents=["home"])
    given = 0
    for _ in range(30 // fragment):
        for chunk in runner.sample(num_timesteps=fragment):
            for life in chunk.all_agent_episodes():
                infos = life.get_infos()
                if life.agent_id == "home":
                    assert not any(infos)
                    continue
                assert not infos[0], (life.agent_id, infos)
                last = len(life) == 1 and int(life.storage.column("t")[-1]) % 3 == 0
                given += last
                assert infos[-1] == ({"mine": 1} if last else {}), (life.agent_id, infos)
    assert given > 5


class PreviousObservation(ConnectorV2):
    """Notes the observation of the step before, -1 where there is none."""

    def __init__(self):
        super().__init__()
        self.found = []

    def columns(self, c, xp):
        before, here = c.rows.get("obs", -1, fill=-1.0)[:, 0], c.rows.get("obs")[:, 0]
        agents = [episode.agent_id for episode in c.rows.episodes]
        self.found += zip(agents, before.tolist(), here.tolist(), strict=True)


@pytest.mark.parametrize("fragment", [2, 3, 7])
def test_no_agent_looks_back_beyond_its_own_beginning(fragment):
    """The first observation of each life is one that its lane's former agent did not have."""
    pieces = []

    def make(env):
        pieces.append(PreviousObservation())
        return pieces[-1]

    games = [
        [Step({"a": 10, "b": 20}), Step({"a": 11, "b": 21}, {}), Step({"a": 12, "b": 22}, {}, truncated=("a", "b"))]
    ]
    games += [[Step({"a": 30}), Step({"a": 31, "b": 41}, {}), Step({"a": 32, "b": 42}, {}, truncated=("a", "b"))]]
    config = small_config(lambda config: ScriptEnv([*games, games[0], games[1], games[0]]))
    config.env_runners(env_to_module_connector=make, episode_lookback_horizon=2)
    runner = config.environment(disable_env_checking=True).build_algo().env_runner
    for _ in range(14 // fragment):
        runner.sample(num_timesteps=fragment)
    first = {("a", 10), ("b", 20), ("a", 30), ("b", 41)}
    found = pieces[-1].found
    assert first < {(agent, here) for agent, _, here in found}
    for agent, before, here in found:
        assert before == (-1.0 if (agent, here) in first else here - 1)


def staggered(i):
    """A home that stays, and from step ``1 + i`` on, in each step, a new agent that acts once."""
    script = [Step({"home": 100 * i + t}, {"home": 1.0} if t else {}) for t in range(1 + i)]
    for t in range(1 + i, 9):
        obs, rewards, gone = {"home": 100 * i + t, f"n{t}": 1000 * i + 10 * t}, {"home": 1.0}, ()
        if t > 1 + i:
            former = f"n{t - 1}"
            obs[former], rewards[former], gone = 1000 * i + 10 * (t - 1) + 1, 0.5 + i, (former,)
        script.append(Step(obs, rewards, terminated=gone))
    return [*script, Step({"home": 100 * i + 9, "n8": 0}, {"home": 1.0, "n8": 1.0}, truncated=("home", "n8"))]


def test_agents_that_leave_and_join_in_the_same_step_have_lanes_of_their_own():
    made = iter(range(1000))

    def make(config):
        return ScriptEnv([staggered(next(made) % 3)], possible_agents=["home", "n8"])

    config = small_config(make).env_runners(num_envs_per_env_runner=3).multi_agent(policies="home=a,*=b")
    runner = config.environment(disable_env_checking=True).build_algo().env_runner
    found = {}
    for copy, chunk in zip(runner.vector_env.envs, runner.sample(num_timesteps=3 * 9), strict=True):
        i = copy.scripts[0][0].obs["home"] // 100
        for life in chunk.all_agent_episodes():
            found[i, life.agent_id] = life.get_observations()[:, 0].tolist(), life.get_rewards().tolist(), life.is_done
    for i in range(3):
        for t in range(1 + i, 8):
            assert found[i, f"n{t}"] == ([1000 * i + 10 * t, 1000 * i + 10 * t + 1], [0.5 + i], True)
        assert found[i, "home"] == ([100 * i + t for t in range(10)], [1.0] * 9, True)
    steps = runner.take_counts()["num_agent_steps_sampled"]
    assert (steps["home"], steps["n1"], steps["n2"], steps["n7"], steps["n8"]) == (27, 1, 2, 3, 3)


def test_the_order_of_groups_does_not_depend_on_who_joined_first():
    small, large = (spaces.Box(-1.0, 1.0, (size,)) for size in (2, 5))
    spaces_of = {"a": small, "b": large, "c": large, "d": small}
    modules = small_config("CartPole-v1").build_algo().rl_module
    for joining in ("abcd", "cdba", "bdac"):
        table = LaneTable(1, lambda agent: (spaces_of[agent], spaces.Discrete(3)), modules, lookback=1)
        for agent in joining:
            table.open([(0, agent, "default_policy")])
        table.arrange()
        groups = [group for group, _ in table.live]
        assert [{lane.agent_id for lane in group.lanes} for group in groups] == [{"a", "d"}, {"b", "c"}]
        assert [group.rollout.observation_space for group in groups] == [small, large]
