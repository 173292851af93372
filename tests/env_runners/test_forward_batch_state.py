"""A runner that is restored in the middle of episodes goes on with all they held: rows, infos, notes and returns."""

from __future__ import annotations

import enum

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.scripted_envs import BOX, LifeEnv, ScriptEnv, Step, small_config
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.environments.vector import action_history
from marl_connectors.errors import CheckpointError, EpisodeError


class Notes(ConnectorV2):
    """Keeps notes in the episode of all agents and in each agent's own, also of the infos of steps before the cut."""

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in episodes:
            notes = episode.custom_data
            notes["calls"] = notes.get("calls", 0) + 1
            notes[("a", "tuple")] = {"array": np.arange(notes["calls"] % 5), "float": np.float32(0.5)}
        for episode in self.single_agent_episode_iterator(episodes):
            infos = episode.get_infos([-4, -3, -2, -1], fill={})
            total = episode.custom_data.setdefault("infos", [0])
            total[0] += sum(int(info.get("n", 0)) for info in infos)
        return batch


class Counts(ConnectorV2):
    """Learns from what it sees, as a running mean would."""

    def __init__(self):
        super().__init__()
        self.total, self.calls = np.zeros(1), 0

    def columns(self, c, xp):
        observations = c.rows.get("obs")
        self.total = self.total + observations.sum()
        self.calls += 1
        c.rows.set("obs", (observations * np.float32(0.5) + np.float32(self.calls / 1e3)).astype(np.float32))

    def get_state(self):
        return {"total": self.total, "calls": self.calls}

    def set_state(self, state):
        self.total, self.calls = state["total"], state["calls"]


class AppendsReward(ConnectorV2):
    """Writes observations of another shape back to the episodes."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        if isinstance(input_observation_space, spaces.Dict):
            return spaces.Dict({agent: self._longer(space) for agent, space in input_observation_space.items()})
        return self._longer(input_observation_space)

    def _longer(self, space):
        return spaces.Box(-np.inf, np.inf, (space.shape[0] + 1,), np.float32)

    def columns(self, c, xp):
        observations, rewards = c.rows.get("obs"), c.rows.get("rewards", offset=-1, fill=0.0)
        c.rows.set("obs", np.append(observations, rewards[:, None], axis=1).astype(np.float32))


class TellsTheWayBack(ConnectorV2):
    """Leaves something for the module-to-env pipeline."""

    def __call__(self, *, batch, episodes, shared_data, **kwargs):
        shared_data["told"] = {("some", "key"): len(episodes)}
        return batch


class Listens(ConnectorV2):
    def __call__(self, *, batch, episodes, shared_data, **kwargs):
        assert shared_data.pop("told") == {("some", "key"): len(episodes)}
        return batch


class Alone(gymnasium.Env):
    """One agent; infos at most steps."""

    observation_space, action_space = BOX, spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.rng, self.t = np.random.default_rng(seed), 0
        return self._see(), {"n": 1, "mask": np.array([True, False])}

    def _see(self):
        return self.rng.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.t += 1
        info = {"n": self.t, "action": np.array(action)} if self.t % 3 else {}
        return self._see(), float(action.sum()), False, self.t == 13, info


def life(**settings):
    return lambda: LifeEnv(**{"die": 0.2, "join": 0.4, "fixed": False, "max_steps": 12, **settings})


def runner_of(make, *, lookback=1, num_envs=1, pieces=(), back=(), policies="independent", **environment):
    config = small_config(make, **environment).multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=num_envs, episode_lookback_horizon=lookback)
    config.env_runners(env_to_module_connector=lambda: [piece() for piece in pieces])
    config.env_runners(module_to_env_connector=lambda: [piece() for piece in back])
    return config.build_algo().env_runner


def restore(runner, other, folder):
    """Gives the other runner the first one's state, by way of a folder."""
    save_state(folder, runner.get_state())
    other.set_state(load_state(folder))


def assert_goes_on_alike(one, other, samples=6):
    for _ in range(samples):
        first, second = one.sample(num_timesteps=6), other.sample(num_timesteps=6)
        np.testing.assert_equal([e.get_state() for e in second], [e.get_state() for e in first])
    np.testing.assert_equal(other.get_metrics(), one.get_metrics())


ENVS = {
    "lives": life(),
    "one mutable buffer": life(mutable=True),
    "int and tuple ids": life(agents=(7, ("x", 1), 0)),
    "alone": Alone,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("lookback", [0, 1, 4])
@pytest.mark.parametrize("samples_before", [1, 5])
def test_a_restored_runner_samples_the_same_episodes(env, lookback, samples_before, tmp_path):
    runner, other = (runner_of(ENVS[env], lookback=lookback, num_envs=2, pieces=[Notes]) for _ in range(2))
    other.sample(num_timesteps=10)  # what it was in the middle of is forgotten
    chunks = [chunk for _ in range(samples_before) for chunk in runner.sample(num_timesteps=8)]
    assert any(chunk.custom_data["calls"] > 1 for chunk in chunks)
    restore(runner, other, tmp_path / "c")
    assert_goes_on_alike(runner, other)


@pytest.mark.few(1)
@pytest.mark.parametrize("pieces", [[Counts], [AppendsReward], [Counts, AppendsReward, Notes]])
@pytest.mark.parametrize("env", ["lives", "alone"])
def test_pieces_that_learn_or_write_see_each_observation_once(env, pieces, tmp_path):
    settings = {"lookback": 2, "num_envs": 2, "pieces": pieces, "disable_env_checking": True}
    runner, other = (runner_of(ENVS[env], **settings) for _ in range(2))
    for _ in range(3):
        runner.sample(num_timesteps=6)
    for folder in ("first", "second"):  # again at once: nothing may be lost by restoring
        restore(runner, other, tmp_path / folder)
        runner, other = other, runner
    assert_goes_on_alike(runner, other)
    np.testing.assert_equal(other.env_to_module.get_state(), runner.env_to_module.get_state())


def test_what_the_pieces_left_for_the_way_back_is_restored(tmp_path):
    runner, other = (runner_of(life(), pieces=[TellsTheWayBack], back=[Listens]) for _ in range(2))
    runner.sample(num_timesteps=4)
    restore(runner, other, tmp_path / "c")
    assert_goes_on_alike(runner, other)


def test_a_batch_that_no_file_can_hold_is_made_anew(tmp_path):
    class TellsObjects(TellsTheWayBack):
        def __call__(self, *, shared_data, **kwargs):
            batch = super().__call__(shared_data=shared_data, **kwargs)
            shared_data["object"] = object()
            return batch

    runner, other = (runner_of(life(), pieces=[TellsObjects], back=[Listens]) for _ in range(2))
    runner.sample(num_timesteps=4)
    state = runner.get_state()
    assert state.forward_batch is None and state.shared_data is None
    restore(runner, other, tmp_path / "c")
    assert_goes_on_alike(runner, other)


def test_infos_of_the_lookback_and_the_newest_row_are_restored(tmp_path):
    runner, other = (runner_of(Alone, lookback=3) for _ in range(2))
    runner.sample(num_timesteps=5)
    restore(runner, other, tmp_path / "c")
    (chunk,) = other.sample(num_timesteps=2)
    assert [info.get("n") for info in chunk.get_infos()] == [5, None, 7]
    before = chunk.get_infos([-3, -2, -1], neg_index_as_lookback=True)
    assert [info.get("n") for info in before] == [2, None, 4]
    action = chunk.get_actions(-2, neg_index_as_lookback=True)
    np.testing.assert_array_equal(before[2]["action"], chunk.get_infos(-1, neg_index_as_lookback=True)["action"])
    assert before[2]["action"].shape == action.shape


class Mood(enum.Enum):
    GOOD = 1


@pytest.mark.parametrize("odd", [Mood.GOOD, {1, 2}, np.str_("text"), 1 + 2j, np.complex64(2j), np.array(["text"])])
def test_infos_that_no_file_can_hold_come_from_the_replay(odd, tmp_path):
    infos = [{"t": t, "odd": [odd]} if t % 2 else {"t": t} for t in range(30)]
    script = [Step({"a": t}, infos={"a": info}) for t, info in enumerate(infos)]
    runner, other = (runner_of(lambda: ScriptEnv([script]), lookback=2) for _ in range(2))
    runner.sample(num_timesteps=5)
    restore(runner, other, tmp_path / "c")
    (chunk,) = other.sample(num_timesteps=2)
    (life,) = chunk.agent_episodes.values()
    assert life.get_infos() == infos[5:8]
    assert life.get_infos([-2, -1], neg_index_as_lookback=True) == infos[3:5]


def test_custom_data_that_no_file_can_hold_is_named():
    class Objects(ConnectorV2):
        def __call__(self, *, batch, episodes, **kwargs):
            episodes[0].custom_data["mood"] = Mood.GOOD
            return batch

    runner = runner_of(life(), pieces=[Objects])
    runner.sample(num_timesteps=1)
    with pytest.raises(EpisodeError, match=r"(?s)custom_data.*'0-0'.*\['mood'\].*Mood"):
        runner.get_state()


def test_custom_data_of_a_single_agent_survives_a_cut_as_a_copy():
    runner = runner_of(Alone, pieces=[Notes])
    chunks = [chunk for _ in range(4) for chunk in runner.sample(num_timesteps=3)]
    assert [chunk.id_ for chunk in chunks] == ["0-0"] * 4
    assert [chunk.custom_data["calls"] for chunk in chunks] == [4, 7, 10, 13]


def test_returns_and_uncredited_rewards_that_were_not_asked_for_are_kept(tmp_path):
    script = [
        Step({"a": 0, "b": 0}),
        Step({"a": 1, "b": 1}, {"a": 1, "b": 2}, terminated=("b",)),
        Step({"a": 2}, {"a": 4, "b": 8}),
        Step({"a": 3}, {"a": 16, "b": 32}),
        Step({"a": 4}, {"b": 64, "a": 128}, truncated=("a",)),
    ]
    runner, other = (runner_of(lambda: ScriptEnv([script]), disable_env_checking=True) for _ in range(2))
    for n in (4, 1, 1):
        runner.sample(num_timesteps=n)
    restore(runner, other, tmp_path / "c")
    metrics = other.get_metrics()
    assert metrics == runner.get_metrics()
    assert (metrics["uncredited_reward"], metrics["episode_return_mean"]) == (8.0, 255.0)
    other.sample(num_timesteps=2)
    assert metrics["num_agent_steps_sampled"] == {"a": 6, "b": 2}
    steps = {
        "num_env_steps_sampled": 2,
        "num_agent_steps_sampled": {"a": 2},
        "num_module_steps_sampled": {"a": 2},
    }
    assert other.get_metrics() == {**metrics, **steps, "uncredited_reward": 32.0 + 64.0}


def test_actions_are_few_arrays_however_many_they_are(tmp_path):
    class Endless(Alone):
        def step(self, action):
            return *super().step(action)[:3], False, {}

    runner, other = (runner_of(Endless) for _ in range(2))
    counts = []
    for steps in (10, 1500, 90):
        runner.sample(num_timesteps=steps)
        save_state(tmp_path / "c", runner.get_state())
        counts.append((tmp_path / "c" / "state.json").read_text().count("__tensor__"))
    assert counts[0] == counts[1] == counts[2]
    other.set_state(load_state(tmp_path / "c"))
    assert_goes_on_alike(runner, other, samples=2)


def test_episodes_too_long_to_be_replayed_are_begun_anew_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(action_history, "HISTORY_BYTES", 50)
    runner, other = (runner_of(life(max_steps=10**6, die=0.0), num_envs=2) for _ in range(2))
    runner.sample(num_timesteps=20)
    with pytest.warns(UserWarning, match="replayed"):
        restore(runner, other, tmp_path / "c")
    assert [(chunk.id_, chunk.env_t_started) for chunk in other.sample(num_timesteps=4)] == [("0-1", 0), ("1-1", 0)]
    assert runner.sample(num_timesteps=4)[0].env_t_started == 10, "the run itself goes on with its episodes"


class Elsewhere(ParallelEnv):
    """Three agents that always see the same, but for what is other from the second reset on."""

    metadata = {"name": "elsewhere", "render_modes": []}
    possible_agents = ["a", "b", "c"]
    resets = 0

    def __init__(self, other):
        self.other = other

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        Elsewhere.resets += 1
        self.what = self.other if Elsewhere.resets > 1 else "nothing"
        self.t = 0
        self.agents = ["x", "y", "z"] if self.what == "names" else ["a", "b", "c"]
        return self._observations(self.agents), {}

    def _observations(self, agents):
        return dict.fromkeys(agents, np.full(2, float(self.what == "observations"), np.float32))

    def step(self, actions):
        self.t += 1
        acting = self.agents
        gone = set()
        if self.what == "an end" and self.t == 2:
            gone = set(acting)
        elif self.what == "a pause of one agent" and self.t == 1:
            gone = {"c"}
        self.agents = [agent for agent in acting if agent not in gone]
        if self.what == "a pause of one agent" and self.t == 2:
            self.agents = ["a", "b", "c"]
        seen = [*acting, *(agent for agent in self.agents if agent not in acting)]
        flags = {agent: agent in gone for agent in seen}
        return self._observations(seen), dict.fromkeys(acting, 0.0), flags, dict.fromkeys(seen, False), {}


@pytest.mark.parametrize("other", ["an end", "names", "a pause of one agent", "observations"])
def test_an_environment_that_leads_elsewhere_is_named(other, monkeypatch, tmp_path):
    settings = {"disable_env_checking": True, "policies": "shared"}
    runner, another = (runner_of(lambda: Elsewhere(other), **settings) for _ in range(2))
    monkeypatch.setattr(Elsewhere, "resets", 0)
    runner.sample(num_timesteps=5)
    with pytest.raises(CheckpointError, match="sub-environment 0"):
        restore(runner, another, tmp_path / "c")


def test_the_modules_of_a_run_that_cannot_be_continued_can_be_loaded_as_the_error_says(tmp_path):
    algo, new = (small_config(Alone).debugging(seed=seed).build_algo() for seed in (0, 1))
    algo.train()
    state = load_state(algo.save_to_path(tmp_path / "c"))
    new.rl_module.set_state(state["learner"]["module"])
    for key, value in algo.get_module().get_state().items():
        np.testing.assert_array_equal(new.get_module().get_state()[key].numpy(), value.numpy())
