"""A loaded policy does what the modules that were saved do, on what an environment gives."""

from __future__ import annotations

import copy
import pickle
import shutil
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from helpers.damaged_checkpoints import damage
from helpers.envs import recorded_play
from helpers.envs.recorded_play import NotesParallel, NotesSingle, NotesTurns
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.modules.recurrent_modules import GRUModule
from helpers.runs.random_runs import plain
from marl_connectors import (
    ActionMasking,
    AgentIdEncoding,
    Algorithm,
    Columns,
    ConnectorV2,
    DQNConfig,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    MixedConfig,
    PrevActionsPrevRewards,
    RLModule,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.cli.main import main
from marl_connectors.errors import CheckpointError, ConnectorError, EpisodeError, MappingError, ModuleError
from marl_envs import last_stone_v0, match_v0, recall_v0

MATCH = {"n_agents": 3, "n_actions": 3, "ep_len": 9}


def match(env_config):
    return NotesParallel(match_v0.parallel_env(**env_config))


def recall(env_config):
    return NotesParallel(recall_v0.parallel_env(**env_config))


def life(env_config):
    return NotesParallel(LifeEnv(**env_config))


def game(env_config):
    return NotesTurns(last_stone_v0.raw_env(**env_config))


def pole(env_config):
    return NotesSingle(gymnasium.make("CartPole-v1", **env_config))


def masks():
    return ActionMasking()


def memory():
    """Three pieces that look back."""
    return [MeanStdFilter(), PrevActionsPrevRewards(n_prev_actions=2, n_prev_rewards=2), FrameStacking(num_frames=3)]


def stacks():
    return FrameStacking(num_frames=3)


class Remembers(ConnectorV2):
    """On items: adds the sum of the last two observations, and an agent's number, to the newest."""

    def recompute_output_observation_space(self, observation_space, action_space):
        return spaces.Dict(
            {a: spaces.Box(-np.inf, np.inf, (s.shape[0] + 1,), np.float32) for a, s in observation_space.items()}
        )

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            length = self.input_observation_space[episode.agent_id].shape[0]
            last, newest = (obs[:length] for obs in episode.get_observations([-2, -1], fill=0.0))
            extra = np.sum(last) + np.sum(newest) + int(episode.agent_id[-1])
            episode.set_observations(at_indices=-1, new_data=np.append(newest, extra).astype(np.float32))
        return batch


def remembers():
    return Remembers()


def flattened():
    return FlattenObservations()


def numbered():
    return AgentIdEncoding()


def flipped():
    return Flip()


class Flip(ConnectorV2):
    """Actions of three, counted from the other end."""

    def columns(self, c, xp):
        c[Columns.ACTIONS_FOR_ENV] = 2 - c[Columns.ACTIONS]


def by_name(agent_id, episode, **kwargs):
    return f"module_{agent_id[-1]}"


def with_recurrent(config):
    return config.rl_module(rl_module_spec=RLModuleSpec(GRUModule, model_config={"size": 3}))


CASES = {
    "shared": lambda: small_config(match, env_config=MATCH).multi_agent(policies="shared"),
    "independent": lambda: small_config(match, env_config=MATCH).multi_agent(policies="independent"),
    "mapped": lambda: small_config(match, env_config=MATCH).multi_agent(policy_mapping_fn=by_name),
    "continuous": lambda: small_config(match, env_config={**MATCH, "continuous_actions": True}),
    "pieces": lambda: (
        small_config(match, env_config=MATCH)
        .env_runners(env_to_module_connector=memory)
        .learners(learner_connector=stacks)
    ),
    "on items": lambda: small_config(match, env_config=MATCH).env_runners(env_to_module_connector=remembers),
    "encoded": lambda: small_config(match, env_config=MATCH).env_runners(env_to_module_connector=numbered),
    "flipped": lambda: small_config(match, env_config=MATCH).env_runners(module_to_env_connector=flipped),
    "recurrent": lambda: with_recurrent(small_config(recall)).multi_agent(policies="independent"),
    "recurrent with pieces": lambda: (
        with_recurrent(small_config(match, env_config=MATCH))
        .env_runners(env_to_module_connector=memory)
        .learners(learner_connector=stacks)
    ),
    "who dies": lambda: small_config(life, env_config={"die": 0.2, "join": 0.3, "max_steps": 12}).multi_agent(
        policies="independent"
    ),
    "in turns": lambda: (
        small_config(game).env_runners(env_to_module_connector=masks).multi_agent(policies="independent")
    ),
    "one agent": lambda: small_config(pole),
}


@pytest.fixture(scope="module", params=list(CASES))
def played(request, tmp_path_factory):
    """A checkpoint, what its algorithm did in an evaluation, and whether agents come back after their end."""
    algo = CASES[request.param]().build_algo()
    for _ in range(3):
        algo.train()
    saved = algo.save_to_path(tmp_path_factory.mktemp("saved") / "c")
    recorded_play.PLAY.clear()
    algo.evaluate(num_episodes=4, explore=False)
    episodes = recorded_play.episodes()
    recorded_play.PLAY.clear()
    assert len(episodes) >= 4
    return saved, episodes, request.param == "who dies"


def close(found, expected):
    assert found.keys() == expected.keys()
    for agent_id, action in found.items():
        assert type(action) is type(expected[agent_id])
        np.testing.assert_allclose(action, expected[agent_id], rtol=1e-5, atol=1e-6)


def test_the_actions_are_those_of_an_evaluation(played):
    saved, episodes, may_come_back = played
    policy = load_policy(saved)
    for steps in episodes:
        policy.reset()
        lives = set()
        for agents, observations, rewards, infos, actions in steps:
            if may_come_back:
                policy.reset(agent_ids=set(agents) - lives)
            lives = set(agents)
            close(policy.actions(observations, rewards=rewards, infos=infos, agent_ids=agents), actions)


@pytest.mark.few(6)
def test_agents_one_after_another_act_as_together(played):
    saved, episodes, may_come_back = played
    policy = load_policy(saved)
    for steps in episodes[:2]:
        policy.reset()
        lives = set()
        for agents, observations, rewards, infos, actions in steps:
            if may_come_back:
                policy.reset(agent_ids=set(agents) - lives)
            lives = set(agents)
            found = {a: policy(observations[a], a, reward=rewards.get(a), info=infos.get(a)) for a in agents}
            close(found, actions)


def stacked(items, space):
    from marl_connectors.spaces import stack

    return stack(items, space)


@pytest.mark.few(5)
def test_a_batch_acts_as_its_members(played):
    saved, episodes, _ = played
    policy = load_policy(saved)
    spaces_of = policy._spaces
    rng = np.random.default_rng(0)
    places = [(number, 0) for number in range(4)]
    if len({tuple(step[0]) for episode in episodes for step in episode}) > 1:
        pytest.skip("not the same agents at all times")
    for _ in range(40):
        steps = [episodes[number % len(episodes)][t] for number, t in places]
        agents = steps[0][0]
        batch = {a: stacked([step[1][a] for step in steps], spaces_of[a][0]) for a in agents}
        rewards = {a: np.array([step[2].get(a, 0.0) for step in steps]) for a in agents}
        infos = {a: [step[3].get(a, {}) for step in steps] for a in agents}
        actions = policy.actions(batch, rewards=rewards, infos=infos)
        for a in agents:
            assert len(actions[a]) == 4
            np.testing.assert_allclose(actions[a], [step[4][a] for step in steps], rtol=1e-5, atol=1e-6)
        ended = [t + 1 == len(episodes[number % len(episodes)]) for number, t in places]
        policy.reset(ended)
        places = [
            (int(rng.integers(len(episodes))), 0) if over else (number, t + 1)
            for (number, t), over in zip(places, ended, strict=True)
        ]


def test_nothing_is_forgotten_and_nothing_piles_up_in_a_long_episode(tmp_path, monkeypatch):
    from marl_connectors.algorithms.inference import policy as policy_module

    saved = (
        with_recurrent(
            small_config(match_v0.parallel_env, env_config=MATCH)
            .env_runners(env_to_module_connector=memory)
            .learners(learner_connector=stacks)
        )
        .build_algo()
        .save_to_path(tmp_path / "c")
    )
    rng = np.random.default_rng(1)
    space = load_policy(saved)._spaces["agent_0"][0]
    steps = [{f"agent_{i}": rng.normal(size=space.shape).astype(np.float32) for i in range(3)} for _ in range(50)]
    rewards = [{f"agent_{i}": float(rng.normal()) for i in range(3)} for _ in range(50)]
    whole, cut = load_policy(saved), load_policy(saved)
    expected = [whole.actions(s, rewards=r) for s, r in zip(steps, rewards, strict=True)]
    monkeypatch.setattr(policy_module, "_CUT_AFTER", 3)
    found = [cut.actions(s, rewards=r) for s, r in zip(steps, rewards, strict=True)]
    assert found == expected
    assert cut._episodes.lanes.groups[0].rollout.num_rows < 20


# Which module, whose agent.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    config = small_config(match_v0.parallel_env, env_config=MATCH).multi_agent(policies="independent")
    return config.build_algo().save_to_path(tmp_path_factory.mktemp("saved") / "c")


SEEN = np.array([0.0, 0.0, 1.0], np.float32)


def seen(space):
    rng = np.random.default_rng(0)
    return rng.normal(size=(20, *space.shape)).astype(np.float32)


def test_a_module_by_its_id_acts_for_all(saved):
    everyone, one = load_policy(saved), load_policy(saved, "agent_1")
    batch = seen(everyone._spaces["agent_0"][0])
    assert list(one.rl_module) == ["agent_1"]
    np.testing.assert_array_equal(one(batch), everyone(batch, "agent_1"))
    np.testing.assert_array_equal(one(batch, "agent_0"), everyone(batch, "agent_1"))
    assert not np.array_equal(everyone(batch, "agent_0"), everyone(batch, "agent_1"))
    with pytest.raises(ModuleError, match="'agent_7'"):
        load_policy(saved, "agent_7")


def test_agents_act_as_another_mapping_says(saved):
    everyone, other = load_policy(saved), load_policy(saved, policy_mapping_fn="agent_0=agent_2,*=agent_1")
    batch = seen(everyone._spaces["agent_0"][0])
    np.testing.assert_array_equal(other(batch, "agent_0"), everyone(batch, "agent_2"))
    with pytest.raises(MappingError, match=r"(?s)'agent_0'.*'x'.*'agent_0'"):
        load_policy(saved, policy_mapping_fn="*=x")(batch, "agent_0")


def test_each_episode_is_mapped_anew(saved):
    asked, answer = [], ["agent_0"]

    def mapping(agent_id, episode, **kwargs):
        asked.append((agent_id, episode.id_))
        return answer[0]

    policy, first, last = (
        load_policy(saved, policy_mapping_fn=mapping),
        *(load_policy(saved, f"agent_{i}") for i in (0, 2)),
    )
    batch = seen(policy._spaces["agent_0"][0])
    np.testing.assert_array_equal(policy(batch, "agent_1"), first(batch))
    answer[0] = "agent_2"
    np.testing.assert_array_equal(policy(batch, "agent_1"), first(batch))
    ended = np.arange(20) % 2 == 1
    policy.reset(ended)
    np.testing.assert_array_equal(policy(batch, "agent_1"), np.where(ended, last(batch), first(batch)))
    assert asked == [("agent_1", f"{i}-0") for i in range(20)] + [("agent_1", f"{i}-1") for i in range(1, 20, 2)]


def by_environment(agent_id, episode, **kwargs):
    return "gru" if episode.id_.startswith("1-") else "plain"


def test_an_agent_may_act_by_modules_of_other_kinds_in_other_environments(tmp_path):
    specs = {"plain": RLModuleSpec(), "gru": RLModuleSpec(GRUModule, model_config={"size": 3})}
    config = small_config(match_v0.parallel_env, env_config=MATCH)
    config.multi_agent(policies=specs, policy_mapping_fn=by_environment)
    saved = config.build_algo().save_to_path(tmp_path / "c")
    mixed, plain, gru = load_policy(saved), load_policy(saved, "plain"), load_policy(saved, "gru")
    rng = np.random.default_rng(0)
    for _ in range(12):
        batch = {
            f"agent_{i}": rng.normal(size=(3, *mixed._spaces["agent_0"][0].shape)).astype(np.float32) for i in (2, 0)
        }
        found = mixed.actions(batch)
        expected = [policy.actions(batch) for policy in (plain, gru)]
        for agent_id, actions in found.items():
            assert actions.tolist() == [expected[i == 1][agent_id][i] for i in range(3)]


def test_what_is_no_observation_is_named(saved):
    policy = load_policy(saved)
    with pytest.raises(MappingError, match=r"(?s)agent_id=.*'agent_0'"):
        policy(np.zeros(3, np.float32))
    with pytest.raises(MappingError, match="'agent_9'"):
        policy(np.zeros(3, np.float32), "agent_9")
    with pytest.raises(EpisodeError, match=r"(?s)'agent_0'.*\(7,\)"):
        policy(np.zeros(7, np.float32), "agent_0")
    space = policy._spaces["agent_0"][0]
    with pytest.raises(EpisodeError, match=r"(?s)\b2\b.*\b3\b"):
        policy.actions({f"agent_{i}": np.zeros((2 + i, *space.shape), np.float32) for i in range(2)})
    policy(seen(space), "agent_0")
    with pytest.raises(EpisodeError, match=r"(?s)20.*\(3,\)"):
        policy.reset([True, False, True])
    assert policy.actions({}) == {}


def test_batches_may_change_their_size_unless_steps_are_remembered(saved, tmp_path):
    policy = load_policy(saved)
    batch = seen(policy._spaces["agent_0"][0])
    assert policy(batch, "agent_0")[3] == policy(batch[3], "agent_0")
    numbers = small_config("FrozenLake-v1").env_runners(env_to_module_connector=flattened).build_algo()
    policy = load_policy(numbers.save_to_path(tmp_path / "a"))
    assert policy(np.arange(16)).tolist() == [policy(number) for number in range(16)]
    plain = small_config(match_v0.parallel_env, env_config=MATCH)
    for i, config in enumerate(
        [
            with_recurrent(plain.copy()),
            plain.copy().env_runners(env_to_module_connector=memory).learners(learner_connector=stacks),
            plain.copy().env_runners(module_to_env_connector=flipped),
        ]
    ):
        policy = load_policy(config.build_algo().save_to_path(tmp_path / f"b{i}"))
        policy(batch, "agent_0")
        with pytest.raises(EpisodeError, match=r"(?s)\b1\b.*20.*reset\(\)"):
            policy(batch[3], "agent_0")
        policy.reset()
        policy(batch[3], "agent_0")


def test_a_module_that_does_not_fit_the_agent_is_named(tmp_path):
    env_config = {"agents": ["a", "b"], "spaces_of": {"b": (spaces.Box(-1, 1, (5,)), spaces.Discrete(2))}}
    algo = small_config(LifeEnv, env_config=env_config).multi_agent(policies="independent").build_algo()
    policy = load_policy(algo.save_to_path(tmp_path / "c"), "b")
    assert policy(np.zeros(5, np.float32)) in (0, 1), "b is the agent that fits"
    with pytest.raises(MappingError, match=r"(?s)'a'.*'b'"):
        policy(np.zeros(policy._spaces["a"][0].shape, policy._spaces["a"][0].dtype), "a")


def test_agents_that_were_not_in_training_act_by_the_module_that_is_named(saved):
    everyone, one = load_policy(saved), load_policy(saved, "agent_1")
    batch = seen(everyone._spaces["agent_0"][0])
    expected = everyone(batch, "agent_1")
    np.testing.assert_array_equal(one(batch, "newcomer"), expected)
    found = one.actions({"newcomer": batch, 7: batch, "agent_2": batch})
    assert list(found) == ["newcomer", 7, "agent_2"]
    for actions in found.values():
        np.testing.assert_array_equal(actions, expected)
    np.testing.assert_array_equal(one.session().actions({7: batch})[7], expected)
    np.testing.assert_array_equal(copy.deepcopy(one)(batch, 8), expected)
    assert one.agent_ids == ["agent_0", "agent_1", "agent_2"]
    with pytest.raises(MappingError, match=r"(?s)'newcomer'.*load_policy\(checkpoint, module_id\)"):
        everyone(batch, "newcomer")
    with pytest.raises(EpisodeError, match="'stranger'"):
        one(np.zeros(9, np.float32), "stranger")


def encoded_and_filtered():
    return [MeanStdFilter(), AgentIdEncoding(), PrevActionsPrevRewards()]


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{}, {"model_config": {"use_gru": True, "gru_cell_size": 3}}])
def test_agents_that_were_not_in_training_are_seen_as_the_first_that_fits_the_module(settings, tmp_path):
    """Filters have the same statistics for them, encodings the same number; what they remember is their own."""
    config = small_config(match_v0.parallel_env, env_config={**MATCH, "continuous_actions": True})
    config.multi_agent(policies="shared").env_runners(env_to_module_connector=encoded_and_filtered)
    algo = config.rl_module(**settings).build_algo()
    algo.train()
    saved = algo.save_to_path(tmp_path / "c")
    known, new = (load_policy(saved, "default_policy") for _ in range(2))
    rng = np.random.default_rng(0)
    for t in range(6):
        steps = rng.normal(3.0, 2.0, size=(2, *known._spaces["agent_0"][0].shape)).astype(np.float32)
        expected = known(steps[0], "agent_0", reward=float(t))
        np.testing.assert_array_equal(new(steps[0], "newcomer", reward=float(t)), expected)
        assert not np.array_equal(new(steps[1], "agent_0", reward=0.5), expected)
        assert not np.array_equal(new(steps[0], "agent_1", reward=float(t)), expected)


def test_actions_are_sampled_if_asked_and_the_seed_decides(saved):
    policy = load_policy(saved, explore=True, seed=1)
    batch = seen(policy._spaces["agent_0"][0])
    again, other = load_policy(saved, explore=True, seed=1), load_policy(saved, explore=True, seed=2)
    first = policy(batch, "agent_0")
    np.testing.assert_array_equal(again(batch, "agent_0"), first)
    assert not np.array_equal(other(batch, "agent_0"), first)
    assert not np.array_equal(policy(batch, "agent_0"), first), "the next step has numbers of its own"
    greedy = load_policy(saved)(batch, "agent_0")
    np.testing.assert_array_equal(policy(batch, "agent_0", explore=False), greedy)


# What pieces need.


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))], ids=["copy", "pickle"]
)
def test_a_copy_goes_on_from_the_same_steps_on_its_own(played, copied):
    saved, episodes, _ = played
    policy = load_policy(saved, explore=True, seed=3)
    steps = max(episodes, key=len)[:8]

    def play(own, steps):
        return [
            str(own.actions(seen, rewards=paid, infos=infos, agent_ids=agents))
            for agents, seen, paid, infos, _ in steps
        ]

    at_once, before = copied(policy), play(policy, steps[:4])
    later = copied(policy)
    after = play(policy, steps[4:])
    assert len(before) == 4 and after
    assert play(later, steps[4:]) == after
    assert play(at_once, steps) == [*before, *after]
    parameters = [next(own.rl_module.parameters()) for own in (policy, later)]
    parameters[1].data.fill_(7.0)
    assert not (parameters[0] == 7.0).any()


class Counts(ConnectorV2):
    calls = 0

    def columns(self, c, xp):
        self.calls += 1
        pass


def counts():
    return Counts()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_has_pieces_of_its_own(copied, tmp_path):
    config = small_config(LifeEnv).env_runners(env_to_module_connector=counts)
    config.build_algo().save_to_path(tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    policy(np.zeros(2, np.float32), "a")
    other = copied(policy)
    other(np.zeros(2, np.float32), "a")
    assert [own.env_to_module["Counts"].calls for own in (policy, other)] == [1, 2]


def test_a_pickle_does_not_hold_the_same_parameters_again_and_again(tmp_path):
    config = small_config(LifeEnv).multi_agent(policies="independent")
    config.rl_module(model_config={"fcnet_hiddens": (64, 64)}).build_algo().save_to_path(tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    policy.actions({a: np.zeros(2, np.float32) for a in "abc"})
    size = sum(4 * parameter.numel() for parameter in policy.rl_module.parameters())
    assert len(pickle.dumps(policy)) < 1.5 * size + 50_000


def test_rewards_that_a_piece_needs_have_to_be_given(tmp_path):
    config = (
        small_config(match_v0.parallel_env, env_config=MATCH)
        .env_runners(env_to_module_connector=memory)
        .learners(learner_connector=stacks)
    )
    policy = load_policy(config.build_algo().save_to_path(tmp_path / "c"))
    one = np.zeros(policy._spaces["agent_0"][0].shape, np.float32)
    policy(one, "agent_0")
    with pytest.raises(ConnectorError, match="finite"):
        policy(one, "agent_0")
    policy.reset()
    both = {"agent_0": one, "agent_1": one}
    policy.actions(both)
    with pytest.raises(ConnectorError, match="finite"):
        policy.actions(both, rewards={"agent_0": 1.0})
    policy.actions(both, rewards={"agent_0": 1.0, "agent_1": 0.0})


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_observations_have_to_be_finite(saved, bad):
    policy = load_policy(saved)
    batch = seen(policy._spaces["agent_0"][0])
    batch[7, 1] = bad
    with pytest.raises(ConnectorError, match="'agent_1'"):
        policy(batch, "agent_1")


def test_filters_use_their_statistics_and_leave_them_as_they_are(tmp_path):
    config = (
        small_config(match_v0.parallel_env, env_config=MATCH)
        .env_runners(env_to_module_connector=memory)
        .learners(learner_connector=stacks)
    )
    algo = config.build_algo()
    algo.train()
    policy = load_policy(algo.save_to_path(tmp_path / "c"))
    state = policy.env_to_module["MeanStdFilter"].get_state()
    assert state["agent_0"].count > 0
    policy(np.full(policy._spaces["agent_0"][0].shape, 7.0, np.float32), "agent_0")
    assert plain(policy.env_to_module["MeanStdFilter"].get_state()) == plain(state)


class Masked(gymnasium.Env):
    """Says in its info that only action 2 is allowed."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {"action_mask": np.array([0, 0, 1, 0], np.int8)}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, action != 2, False, {"action_mask": np.array([0, 0, 1, 0], np.int8)}


def test_masks_in_infos_count_in_batches_too(tmp_path):
    config = small_config(Masked).env_runners(env_to_module_connector=masks)
    policy = load_policy(config.build_algo().save_to_path(tmp_path / "c"))
    observation, info = Masked().reset()
    assert policy(observation, info=info) == 2
    policy.reset()
    batch = np.zeros((3, 2), np.float32)
    allowed = np.eye(4, dtype=np.int8)[[3, 1, 2]]
    np.testing.assert_array_equal(policy(batch, info=[{"action_mask": mask} for mask in allowed]), [3, 1, 2])
    like_gymnasium = {"action_mask": allowed, "_action_mask": np.array([True, True, False])}
    assert policy(batch, info=like_gymnasium)[:2].tolist() == [3, 1]
    with pytest.raises(EpisodeError, match=r"\b3 info"):
        policy(batch, info=[info])


def test_a_call_without_the_infos_that_have_the_masks_is_an_error(tmp_path):
    with small_config(Masked).build_algo() as algo:
        policy = load_policy(algo.save_to_path(tmp_path / "c"))
    _check_asks_for_infos(policy)
    _check_asks_for_infos(policy.session())
    _check_asks_for_infos(pickle.loads(pickle.dumps(policy)))


def _check_asks_for_infos(policy):
    observation, info = Masked().reset()
    with pytest.raises(ConnectorError, match=r"(?s)'action_mask'.*policy\(observation, info=info\)"):
        policy(observation)
    assert policy(observation, info=info) == 2
    policy(observation, info={})


def test_agents_without_masks_in_infos_act_without_infos(tmp_path):
    board = spaces.Dict({"observation": spaces.Box(0, 1, (2,)), "action_mask": spaces.MultiBinary(3)})
    spaces_of = {"a": (board, spaces.Discrete(3)), "b": (spaces.Box(0, 1, (2,)), spaces.Discrete(3))}
    config = small_config(lambda config: LifeEnv(agents="ab", spaces_of=spaces_of), disable_env_checking=True)
    with config.multi_agent(policies="independent").build_algo() as algo:
        policy = load_policy(algo.save_to_path(tmp_path / "c"))
    seen = np.zeros(2, np.float32)
    assert policy({"observation": seen, "action_mask": np.array([0, 1, 0], np.int8)}, "a") == 1
    assert policy(seen, "b") in (0, 1, 2)


def test_agents_and_ends_that_a_policy_cannot_reset_are_refused(tmp_path):
    with small_config(lambda config: LifeEnv(agents="ab")).multi_agent(policies="shared").build_algo() as algo:
        path = algo.save_to_path(tmp_path / "c")
    policy = load_policy(path)
    policy(np.zeros(2, np.float32), "a")
    with pytest.raises(EpisodeError, match=r"(?s)'a'.*reset\(agent_ids=\[...\]\)"):
        policy.reset("a")
    with pytest.raises(MappingError, match=r"agent_ids=\['a'\]"):
        policy.reset(agent_ids="a")
    with pytest.raises(MappingError, match=r"(?s)'c'.*'a'.*'b'"):
        policy.reset(agent_ids=["a", "c"])
    for harmless in (["a"], ["b"], []):
        policy.reset(agent_ids=harmless)
    policy.reset([True])
    load_policy(path, "default_policy").reset(agent_ids=["c"])  # which acts for agents with other ids


def test_a_hook_that_is_added_later_is_called_after_the_next_reset(tmp_path):
    with small_config("CartPole-v1").build_algo() as algo:
        policy = load_policy(algo.save_to_path(tmp_path / "c"))
    observation, calls = np.zeros(4, np.float32), []
    expected = policy(observation)
    hook = policy.rl_module["default_policy"].encoder.register_forward_hook(lambda *args: calls.append(1))
    policy.reset()
    assert policy(observation) == expected and len(calls) == 1
    policy(observation)
    assert len(calls) == 2
    hook.remove()
    policy.reset()
    assert policy(observation) == expected and len(calls) == 2


# What a checkpoint cannot hold.


def test_neither_environment_nor_learner_is_needed(tmp_path, monkeypatch):
    (tmp_path / "env_that_goes.py").write_text("from marl_envs.match_v0 import parallel_env\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = small_config("env_that_goes", env_config=MATCH).learners(learner_connector=lambda: [])
    saved = config.build_algo().save_to_path(tmp_path / "c")
    (tmp_path / "env_that_goes.py").unlink()
    monkeypatch.delitem(sys.modules, "env_that_goes")
    policy = load_policy(saved)
    assert policy(np.zeros(policy._spaces["agent_0"][0].shape, np.float32), "agent_0") in range(3)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["alone", "mixed"])
def test_the_replay_buffer_is_not_read(tmp_path, kind):
    config, own = DQNConfig(), ""
    if kind == "mixed":
        config, own = MixedConfig().algorithms({"*": DQNConfig()}), "*"
    config.environment(match_v0.parallel_env).env_runners(num_env_workers=0)
    algo = config.reporting(min_sample_timesteps_per_iteration=50).build_algo()
    algo.train()
    assert algo.replays[own].buffer.get_num_timesteps() > 0
    saved = algo.save_to_path(tmp_path / "c")
    assert damage(tmp_path / "c", "replays")
    with pytest.raises(CheckpointError, match=r"(?s)SHA-256.*'replays/"):
        Algorithm.from_checkpoint(saved)
    policy = load_policy(saved)
    place = f"{saved}/learner_group/learner/rl_module/default_policy"
    for module in (policy.rl_module["default_policy"], RLModule.from_checkpoint(place)):
        for name, value in module.get_state().items():
            np.testing.assert_array_equal(value, algo.get_module().get_state()[name])
    playing = Algorithm.from_checkpoint(saved, with_replay_buffers=False)
    assert playing.replays[own].buffer.get_num_timesteps() == 0
    played = [
        each.evaluate(num_episodes=3, seed=1)["env_runners"]["agent_episode_returns_mean"] for each in (playing, algo)
    ]
    assert played[0] == played[1]
    for words in (["evaluate", "--episodes", "1"], ["record", "--episodes", "1", "--out", str(tmp_path / "data")]):
        assert main([words[0], str(saved), *words[1:]]) == 0


def test_what_has_no_name_has_to_be_passed(tmp_path):
    class Mine(DefaultPPORLModule):
        pass

    mapping = lambda agent_id, episode, **kwargs: "one"
    config = small_config(match_v0.parallel_env, env_config=MATCH).multi_agent(policy_mapping_fn=mapping)
    first = config.build_algo().save_to_path(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"\(policy_mapping_fn=...\)"):
        load_policy(first)
    policy = load_policy(first, policy_mapping_fn=mapping)
    batch = seen(policy._spaces["agent_0"][0])
    expected = policy(batch, "agent_0")
    np.testing.assert_array_equal(load_policy(first, "one")(batch), expected)
    np.testing.assert_array_equal(load_policy(first, config=config)(batch, "agent_0"), expected)
    config.env_runners(env_to_module_connector=lambda env: [numbered()]).rl_module(rl_module_spec=RLModuleSpec(Mine))
    second = config.build_algo().save_to_path(tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"(?s)'env_to_module_connector'.*load_policy\(path, config=...\)"):
        load_policy(second, "one")
    with pytest.raises(CheckpointError, match=r"(?s)'module_class'.*'one'.*Mine"):
        load_policy(second, config=config.copy().rl_module(rl_module_spec=None))
    assert type(load_policy(second, config=config).rl_module["one"]) is Mine


class Wide(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)
    factor = 3.0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


class Scale(ConnectorV2):
    def __init__(self, factor):
        self.factor = factor
        super().__init__()

    def columns(self, c, xp):
        c.rows.set(Columns.OBS, c.rows.get(Columns.OBS) * self.factor)


def scaled_by_env(env):
    return Scale(env.factor if env.observation_space.shape == (2,) and env.action_space.n == 2 else 0.0)


def test_a_builder_that_asks_the_environment_for_more_gets_one(tmp_path):
    config = small_config(Wide).env_runners(env_to_module_connector=scaled_by_env)
    saved = config.build_algo().save_to_path(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"(?s)'factor'.*load_policy\(checkpoint, env=...\)"):
        load_policy(saved)
    assert load_policy(saved, env=Wide()).env_to_module["Scale"].factor == 3.0


def test_the_folder_of_a_run_stands_for_its_latest_checkpoint(saved, tmp_path):
    with pytest.raises(CheckpointError, match="nothing"):
        load_policy(tmp_path / "run")
    shutil.copytree(saved, tmp_path / "run" / "checkpoints" / "000003")
    with pytest.raises(CheckpointError, match=r"(?s)checkpoints.latest.*000003"):
        load_policy(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "latest").write_text("000003\n")
    assert list(load_policy(tmp_path / "run").rl_module) == ["agent_0", "agent_1", "agent_2"]
