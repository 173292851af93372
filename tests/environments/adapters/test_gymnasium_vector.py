"""Gymnasium VectorEnvs: whatever their autoreset mode, what comes of them are the episodes of single environments."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from helpers.envs.gymnasium_envs import AutoresetMode, Counting, Walk, vector_maker
from helpers.envs.scripted_envs import small_config
from helpers.modules.recurrent_modules import StepwiseGRU
from marl_connectors import (
    Callbacks,
    ConfigError,
    ConnectorV2,
    EnvError,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PPOConfig,
    PrevActionsPrevRewards,
    RLModuleSpec,
    check_env,
)
from marl_connectors.episodes.action_units import ENV, NORMALIZED, in_units
from marl_connectors.episodes.storage import T
from marl_connectors.seeding import derived_seed
from marl_connectors.trees import leaves

pytestmark = pytest.mark.skipif(AutoresetMode is None, reason="Gymnasium 1.0 has no autoreset modes")

OWN_SEEDS = ["DISABLED", "DISABLED reused", "DISABLED wrapped", "NEXT_STEP", "NEXT_STEP reused"]
ENVS_OWN_WAY = ["SAME_STEP", "SAME_STEP reused", "SAME_STEP wrapped", "NEXT_STEP wrapped", "NEXT_STEP reused wrapped"]


def configured(env, *, copies=3, lookback=1, **env_config):
    config = small_config(env, env_config=env_config)
    return config.env_runners(
        num_envs_per_env_runner=copies, episode_lookback_horizon=lookback, rollout_fragment_length=5
    )


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return np.asarray(value).tolist()


def content(sample):
    """All that is in a sample's chunks: plain data."""
    return [
        (
            chunk.id_,
            (chunk.t_started, chunk.is_terminated, chunk.is_truncated),
            [plain(info) for info in chunk.get_infos()],
            [plain(leaf) for name in ("obs", "actions", "rewards") for leaf in leaves(chunk.storage.column(name))],
        )
        for chunk in sample
    ]


def whole(samples):
    """The episodes that ended, from the chunks of several samples: by copy, in their order."""
    parts, by_copy = {}, {}
    for chunk in [chunk for sample in samples for chunk in sample]:
        own = parts.setdefault(chunk.id_, {"obs": [], "actions": [], "rewards": [], "infos": []})
        assert len(own["actions"]) == chunk.t_started
        done = slice(0, len(own["actions"]))
        own["obs"] = own["obs"][done] + [chunk.get_observations(i) for i in range(len(chunk) + 1)]
        own["infos"] = own["infos"][done] + chunk.get_infos()
        own["actions"] += [chunk.get_actions(i) for i in range(len(chunk))]
        own["rewards"] += chunk.get_rewards().tolist()
        if chunk.is_done:
            own["flags"] = (chunk.is_terminated, chunk.is_truncated)
            by_copy.setdefault(int(chunk.id_.split("-")[0]), []).append(own)
    return by_copy


def alike(one, other):
    """Whether observations are the same up to the rounding of scaled actions."""
    return all(np.allclose(*pair, rtol=1e-6, atol=1e-6) for pair in zip(leaves(one), leaves(other), strict=True))


def assert_played_by(env, episodes, seed, shown=lambda observation: observation):
    """Whether episodes are what a plain loop over one environment gives, seeded once, with the same actions."""
    space = env.action_space
    for number, episode in enumerate(episodes):
        observation, info = env.reset(seed=seed if number == 0 else None)
        for t, action in enumerate(episode["actions"]):
            assert alike(episode["obs"][t], shown(observation))
            assert plain(episode["infos"][t]) == plain(info)
            (for_env,) = in_units(space, np.asarray(action)[None], NORMALIZED, ENV)
            observation, reward, terminated, truncated, info = env.step(for_env)
            assert np.isclose(episode["rewards"][t], reward, rtol=1e-6)
        assert alike(episode["obs"][-1], shown(observation))
        assert plain(episode["infos"][-1]) == plain(info)
        assert len(episode["obs"]) == len(episode["infos"]) == len(episode["actions"]) + 1
        assert terminated or truncated
        assert episode["flags"] == (terminated, truncated and not terminated)


# The same episodes.


@pytest.mark.few(3)
@pytest.mark.parametrize("lookback", [0, 2])
@pytest.mark.parametrize("kind", OWN_SEEDS)
def test_where_single_copies_can_be_reset_all_is_as_with_copies_of_our_own(kind, lookback):
    runners = [
        configured(env, copies=4, lookback=lookback, infos=True).build_algo().env_runner
        for env in (vector_maker(kind), Walk)
    ]
    for call in [{"num_timesteps": 12}] * 4 + [{"num_episodes": 5}, {"num_timesteps": 4, "random_actions": True}]:
        vectorised, separate = (content(runner.sample(**call)) for runner in runners)
        assert vectorised == separate
    left, right = (runner.get_metrics() for runner in runners)
    assert repr(left) == repr(right)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["NEXT_STEP", "DISABLED"])
def test_an_async_vector_env_gives_the_same_as_copies_of_our_own(kind):
    algos = [configured(env, copies=2, infos=True).build_algo() for env in (vector_maker(f"{kind} async"), Walk)]
    for _ in range(3):
        vectorised, separate = (content(algo.env_runner.sample()) for algo in algos)
        assert vectorised == separate
    for algo in algos:
        algo.stop()
        algo._setup.sample_env.close()


@pytest.mark.few(9)
@pytest.mark.parametrize("fragment", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ENVS_OWN_WAY)
def test_where_the_env_resets_itself_episodes_are_those_of_a_plain_loop(kind, fragment):
    runner = configured(vector_maker(kind), copies=4, infos=True).build_algo().env_runner
    samples = [runner.sample(num_timesteps=4 * fragment) for _ in range(50 // fragment)]
    by_copy = whole(samples)
    assert sorted(by_copy) == [0, 1, 2, 3]
    for index, episodes in by_copy.items():
        assert len(episodes) > 5
        assert_played_by(Walk(infos=True), episodes, derived_seed(runner._seed, "env", index, 0))
    assert runner.num_env_steps == sum(len(chunk) for sample in samples for chunk in sample)


@pytest.mark.few(3)
@pytest.mark.parametrize("act", ["from 5", "box", "multi"])
@pytest.mark.parametrize("obs", ["discrete", "dict"])
@pytest.mark.parametrize("kind", ["SAME_STEP", "NEXT_STEP wrapped"])
def test_any_spaces(kind, obs, act):
    config = configured(vector_maker(kind), obs=obs, act=act, infos=True)
    config.env_runners(env_to_module_connector=lambda env: FlattenObservations())
    runner = config.build_algo().env_runner
    by_copy = whole([runner.sample(random_actions=True) for _ in range(6)])
    assert len(by_copy) == 3
    for index, episodes in by_copy.items():
        env, seed = Walk(obs, act, infos=True), derived_seed(runner._seed, "env", index, 0)
        shown = lambda observation, space=env.observation_space: spaces.flatten(space, observation).astype(np.float32)
        assert_played_by(env, episodes, seed, shown)


def test_final_observations_in_one_array():
    runners = [configured(vector_maker(kind)).build_algo().env_runner for kind in ("SAME_STEP", "SAME_STEP arrays")]
    for _ in range(5):
        left, right = (content(runner.sample()) for runner in runners)
        assert left == right


def test_copies_that_all_end_together_do_not_rest():
    env = vector_maker("NEXT_STEP wrapped")
    runner = configured(env, copies=3, infos=True, max_len=4, fixed=True).build_algo().env_runner
    episodes = runner.sample(num_timesteps=24)
    assert [len(chunk) for chunk in episodes if chunk.is_done] == [4] * 6
    for index, own in whole([episodes]).items():
        assert_played_by(Walk(infos=True, max_len=4, fixed=True), own, derived_seed(runner._seed, "env", index, 0))


def test_a_resting_copy_leaves_no_row_and_is_given_no_action():
    runner = configured(Counting, copies=3).build_algo().env_runner
    samples = [runner.sample(num_timesteps=9) for _ in range(12)]
    by_copy = whole(samples)
    for index, episodes in by_copy.items():
        for number, episode in enumerate(episodes):
            expected = [[index, number, t] for t in range(index + 3)]
            assert plain(episode["obs"]) == expected
            assert episode["rewards"] == [1.0] * (index + 2)
            assert episode["flags"] == (number % 2 == 0, number % 2 == 1)
    assert runner.num_env_steps == sum(len(chunk) for sample in samples for chunk in sample) >= 12 * 9
    assert {summary.length for summary in runner.take_finished()} == {2, 3, 4}
    for chunk in [chunk for sample in samples for chunk in sample]:
        t = chunk.t_started
        assert chunk.storage.column(T)[-len(chunk) - 1 :].tolist() == list(range(t, t + len(chunk) + 1))


# Pieces and modules see real observations only.


class Watch(ConnectorV2):
    """Keeps each observation that it is shown, with its episode."""

    def __init__(self, input_observation_space=None, input_action_space=None):
        super().__init__(input_observation_space, input_action_space)
        self.seen = []

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, metrics=None, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=True):
            self.seen.append((episode.id_, *plain(episode.get_observations(-1))))
        return batch


def test_pieces_are_shown_every_observation_once():
    config = configured(Counting, copies=3).env_runners(env_to_module_connector=lambda env: Watch())
    runner = config.build_algo().env_runner
    samples = [runner.sample(num_timesteps=9) for _ in range(8)]
    seen = runner.env_to_module[0].seen
    real = {
        (chunk.id_, *plain(observation))
        for chunk in [chunk for sample in samples for chunk in sample]
        for observation in chunk.get_observations()
    }
    assert len(seen) == len(set(seen))
    assert real <= set(seen)
    assert len(set(seen) - real) <= 3  # what the copies go on from


def test_a_filter_counts_every_observation_once():
    runners = [
        configured(env, copies=4)
        .env_runners(env_to_module_connector=lambda env: MeanStdFilter())
        .build_algo()
        .env_runner
        for env in (vector_maker("NEXT_STEP wrapped"), vector_maker("SAME_STEP"))
    ]
    for runner in runners:
        for _ in range(5):
            runner.sample(num_timesteps=20)
            acted_on, newest = runner.num_env_steps, sum(not copy.is_reset_step for copy in runner.vector_env.sub_envs)
            (state,) = runner.env_to_module.get_state()["MeanStdFilter"].values()
            assert state.count == acted_on + newest


def test_states_and_histories_begin_anew_after_a_rest():
    """A greedy policy acts alike on like histories, so a copy's episodes do not depend on when the others rest."""

    def change(config):
        pieces = lambda env: [PrevActionsPrevRewards(), FrameStacking(num_frames=2)]
        config.env_runners(env_to_module_connector=pieces, explore=False)
        spec = RLModuleSpec(module_class=StepwiseGRU)
        return config.rl_module(model_config={"max_seq_len": 4}, rl_module_spec=spec)

    found = []
    for kind in ("NEXT_STEP wrapped", "SAME_STEP"):
        runner = change(configured(vector_maker(kind), copies=3)).build_algo().env_runner
        by_copy = whole([runner.sample() for _ in range(9)])
        found.append({index: [plain(e) for e in episodes[:6]] for index, episodes in sorted(by_copy.items())})
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["NEXT_STEP wrapped", "SAME_STEP", "DISABLED"])
def test_training_is_repeatable_and_evaluates(kind):
    results = []
    for _ in range(2):
        algo = configured(vector_maker(kind)).build_algo()
        algo.train()
        last = algo.train()
        results.append(repr({k: v for k, v in last.items() if "time" not in k}) + repr(algo.evaluate(num_episodes=4)))
        algo.stop()
    assert results[0] == results[1]


def test_callbacks_get_single_agent_episodes():
    ended = []

    class Notes(Callbacks):
        def on_episode_end(self, *, episode, **kwargs):
            ended.append((episode.id_, len(episode), episode.is_done))

    algo = configured(Counting).callbacks(Notes).build_algo()
    algo.env_runner.sample(num_timesteps=30)
    assert ended
    assert all(done for *_, done in ended)


# Errors.


class Silent(Counting):
    metadata = {}


class Relapsing(Counting):
    def step(self, actions):
        observations, rewards, terminations, truncations, infos = super().step(actions)
        return observations, rewards, terminations | (rewards == 0), truncations, infos


class Forgetful(SyncVectorEnv):
    def __init__(self, num_envs=1):
        super().__init__([Walk] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions):
        return *super().step(actions)[:4], {}


class Narrow(Counting):
    def step(self, actions):
        observations, *rest = super().step(actions)
        return observations[:, :2], *rest


class Outside(Counting):
    def step(self, actions):
        observations, *rest = super().step(actions)
        return observations - 5, *rest


class ManyActions(Counting):
    def __init__(self, num_envs=1):
        super().__init__(num_envs)
        self.single_action_space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (Silent, "autoreset_mode"),
        (ManyActions, "takes"),
        (
            Relapsing,
            r"(?s)sub-environment 0.*episode 1.*step 0",
        ),
        (Forgetful, "final_obs"),
        (Narrow, r"\(3, 1, 3\)"),
        (Outside, "space"),
        (lambda: Counting(4), r"(?s)num_envs=4.*num_envs=1"),
    ],
)
def test_a_vector_env_that_breaks_its_contract_is_an_error_before_training(env, said):
    with pytest.raises(EnvError, match=said):
        configured(env).build_algo()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.env_runners(num_env_workers=2), "num_env_workers=2"),
        (lambda c: c.fault_tolerance(restart_failed_sub_environments=True), "restart_failed_sub_environments"),
        (lambda c: c.environment(wrappers=[lambda env: env]), "is a Gymnasium VectorEnv"),
        (lambda c: c.env_runners(gym_env_vectorize_mode="async"), "gym_env_vectorize_mode='async'"),
        (lambda c: c.environment(render_env=True), "drawn"),
    ],
)
def test_what_is_for_single_copies_is_an_error(change, said):
    with pytest.raises(ConfigError, match=said):
        change(configured(Counting)).build_algo()


def test_check_env_says_what_to_check_instead():
    with pytest.raises(ConfigError, match="single"):
        check_env(Counting)
    with pytest.raises(ConfigError, match="single"):
        check_env(Counting(2))


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["vector entry point", "SAME_STEP"])
def test_ppo_balances_the_pole(kind):
    import gymnasium

    def same_step(num_envs=1):
        fns = [lambda: gymnasium.make("CartPole-v1")] * num_envs
        return SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP)

    env, mode = (same_step, "sync") if kind == "SAME_STEP" else ("CartPole-v1", "vector_entry_point")
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=16, gym_env_vectorize_mode=mode)
    config.rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})
    config.training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=8, lr=1e-3, lambda_=0.95)
    config.training(clip_param=0.2, vf_clip_param=1e4, use_kl_loss=False, grad_clip=0.5, entropy_coeff=0.01)
    algo = config.debugging(seed=0).build_algo()
    for _ in range(30):
        algo.train()
    assert algo.evaluate(num_episodes=10, explore=False)["env_runners"]["episode_return_mean"] > 400
    algo.stop()
