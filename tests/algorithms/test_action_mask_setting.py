"""Action masks by PettingZoo's convention are honoured by default, in all that acts, and nothing else changes."""

from __future__ import annotations

import importlib
import secrets

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo.utils import parallel_to_aec

from helpers.envs.masked_envs import LINE, MaskedBatch, RandomMasks, StrictTurns, Turns
from helpers.envs.scripted_envs import small_config
from marl_connectors import (
    ActionMasking,
    Algorithm,
    Columns,
    ConfigError,
    ConnectorV2,
    DefaultPPORLModule,
    EnvError,
    FlattenObservations,
    MAPPOConfig,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    RLModule,
    RLModuleSpec,
    ValueFunctionAPI,
    load_policy,
)
from marl_connectors.flat_action_masks import is_binary
from marl_connectors.rl_module.distributions import TorchCategorical

MASK = Columns.ACTION_MASK
MASKED = "marl_envs.masked_v0"
STRICT = {"illegal": "raise"}


def masked_config(**settings):
    return small_config(MASKED, env_config=STRICT, **settings)


# Nobody ever takes a forbidden action.


def play(policy, env, episodes=3, *, explore=True):
    """Plays a parallel environment that raises on forbidden actions."""
    for seed in range(episodes):
        observations, infos = env.reset(seed=seed)
        policy.reset()
        while env.agents:
            own = {agent: observations[agent] for agent in env.agents}
            told = {agent: infos[agent] for agent in env.agents}
            observations, _, _, _, infos = env.step(policy.actions(own, infos=told, explore=explore))


def lives_by_the_rules(case, folder, seed=0):
    """Trains, evaluates, plays at random, is loaded and acts, in an environment that raises on forbidden actions."""
    config = small_config(RandomMasks, env_config={"case": case}).multi_agent(policies="independent")
    config.env_runners(num_envs_per_env_runner=2).debugging(seed=seed)
    algo = config.build_algo()
    for _ in range(2):
        algo.train()
    algo.evaluate(num_episodes=2)
    algo.evaluate(num_episodes=2, explore=True)
    algo.random_play(num_episodes=3)
    algo.save_to_path(folder)
    play(load_policy(folder), RandomMasks(case), explore=bool(seed % 2))
    loaded = Algorithm.from_checkpoint(folder)
    assert str(loaded.masking) == str(algo.masking)
    assert algo.train()["learners"] == loaded.train()["learners"]
    for each in (algo, loaded):
        each.stop()


@pytest.mark.few(1)
@pytest.mark.parametrize("case", range(20))
def test_no_forbidden_action_is_taken_in_random_configurations(case, tmp_path):
    lives_by_the_rules(case, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(80))
def test_no_forbidden_action_is_taken_in_many_random_configurations(number, tmp_path):
    case = secrets.randbits(31)
    print(f"case {case}")
    lives_by_the_rules(case, tmp_path / "run", seed=number)


def test_without_masks_these_environments_do_raise():
    """So that the tests above can fail."""
    raised = 0
    for case in range(10):
        config = small_config(RandomMasks, env_config={"case": case}, action_mask_key=None)
        algo = config.multi_agent(policies="independent").build_algo()
        if not algo.masking.sentence:
            continue
        with pytest.raises(EnvError, match="forbids"):
            algo.env_runner.sample(num_timesteps=300)
        raised += 1
        algo.stop()
    assert raised > 5


def strict_game(env_config):
    return StrictTurns(importlib.import_module(f"pettingzoo.classic.{env_config['game']}").env())


CLASSIC = {
    "tictactoe_v3": ("pettingzoo.classic.tictactoe_v3", 40),
    "connect_four_v3": ("pettingzoo.classic.connect_four_v3", 60),
    "go_v5": ("pettingzoo.classic.go_v5", 30),
    "chess_v6": ("chess", 20),
    "leduc_holdem_v4": ("rlcard", 40),
    "texas_holdem_v4": ("rlcard", 40),
    "texas_holdem_no_limit_v6": ("rlcard", 40),
}


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")
@pytest.mark.parametrize("game", CLASSIC)
def test_classic_games_are_played_by_the_rules_with_default_settings(game, tmp_path):
    needed, size = CLASSIC[game]
    pytest.importorskip(needed)
    config = small_config(strict_game, env_config={"game": game})
    config.training(train_batch_size_per_learner=size, minibatch_size=size // 2).env_runners(
        rollout_fragment_length=size
    )
    before = StrictTurns.moves
    algo = config.build_algo()
    assert "in the observations of" in str(algo.masking)
    result = algo.train()
    assert np.isfinite(result["learners"]["default_policy"]["policy_loss"])
    assert StrictTurns.moves - before >= size
    if game not in ("go_v5", "chess_v6"):  # whose episodes are long
        algo.evaluate(num_episodes=2)
        algo.random_play(num_episodes=2)
    algo.env_runner.sample(num_timesteps=10, random_actions=True)
    algo.save_to_path(tmp_path / "run")
    algo.stop()
    policy, env = load_policy(tmp_path / "run", config=config), strict_game({"game": game})
    env.reset(seed=1)
    for agent in env.agent_iter(30):
        observation, _, terminated, truncated, info = env.last()
        over = terminated or truncated
        env.step(None if over else policy(observation, agent_id=agent, info=info, explore=True))


@pytest.mark.few(2)
@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("num_env_workers", [0, 2])
def test_masks_hold_with_workers_and_any_policies(policies, num_env_workers):
    config = masked_config().multi_agent(policies=policies)
    config.env_runners(num_envs_per_env_runner=4, num_env_workers=num_env_workers)
    algo = config.build_algo()
    algo.train()
    algo.evaluate(num_episodes=4)
    algo.stop()


@pytest.mark.parametrize("settings", [{"use_lstm": True, "max_seq_len": 4}, {"vf_share_layers": True}])
@pytest.mark.parametrize("config_class", [PPOConfig, MAPPOConfig])
def test_masks_hold_with_recurrent_modules_and_central_critics(config_class, settings, tmp_path):
    if config_class is MAPPOConfig and "vf_share_layers" in settings:
        pytest.skip("critics of MAPPO share no layers")
    config = small_config(MASKED, config_class, env_config=STRICT).rl_module(
        model_config={"fcnet_hiddens": (4,), **settings}
    )
    algo = config.build_algo()
    assert algo.get_module().observation_space == algo._setup.agent_spaces("agent_0")[0]["observation"]
    algo.train()
    algo.save_to_path(tmp_path / "run")
    algo.stop()
    env = importlib.import_module(MASKED).parallel_env(illegal="raise")
    play(load_policy(tmp_path / "run"), env)


def test_a_league_with_modules_that_are_added_keeps_to_the_masks():
    algo = masked_config().multi_agent(policies="independent").build_algo()
    main = algo.get_module("agent_0")
    algo.add_module(
        "old",
        RLModuleSpec.from_module(main),
        module_state=main.get_state(),
        new_agent_to_module_mapping_fn="agent_0=agent_0,agent_1=old",
        new_should_module_be_updated=["agent_0"],
    )
    algo.train()
    algo.evaluate(num_episodes=2)
    algo.stop()


# What modules see.


def seen_by_module(env, **settings):
    algo = small_config(env, **settings).build_algo()
    space = algo.get_module().observation_space
    (batch,) = algo.learner.make_batch(algo.env_runner.sample(num_timesteps=5)).groups
    algo.stop()
    return space, batch


@pytest.mark.parametrize("key", ["auto", "action_mask"])
def test_modules_do_not_see_masks_that_are_honoured(key):
    space, batch = seen_by_module(MASKED, env_config=STRICT, action_mask_key=key)
    assert space.shape == (6,) and batch["obs"].shape[1:] == (6,) and MASK in batch


@pytest.mark.parametrize("off", [None, False])
def test_masks_are_an_ordinary_part_of_the_observation_where_that_is_asked_for(off):
    space, batch = seen_by_module(MASKED, action_mask_key=off)
    assert set(space.spaces) == set(batch["obs"]) == {"observation", "action_mask"} and MASK not in batch


class Parts(gym.Env):
    """One agent whose masks are where they are asked for; a forbidden action raises."""

    def __init__(
        self, parts=("observation",), in_info=False, mask=(0, 1, 0), space=None, actions=None, first=0, strict=True
    ):
        self.strict, self.in_info, self.mask, self.first = strict, in_info, np.array(mask, np.int8), first
        self.action_space = spaces.Discrete(3) if actions is None else actions
        mask_space = spaces.Box(0, 1, (3,), np.int8) if space is None else space
        self.own = spaces.Dict(dict.fromkeys(parts, LINE) | ({} if in_info else {"action_mask": mask_space}))
        self.observation_space = LINE if in_info else self.own

    def _told(self):
        seen = {key: np.zeros(2, np.float32) for key in self.own.spaces if key != "action_mask"}
        if self.in_info:
            return np.zeros(2, np.float32), {"action_mask": self.mask} if self.t >= self.first else {}
        return {**seen, "action_mask": self.mask}, {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._told()

    def step(self, action):
        if self.strict and self.t >= self.first and not self.mask[action]:
            raise ValueError(f"forbidden: {action}")
        self.t += 1
        seen, info = self._told()
        return seen, 1.0, self.t == 60, False, info


def test_no_part_of_an_observation_but_the_mask_is_lost():
    assert seen_by_module(Parts)[0] == LINE
    space, batch = seen_by_module(Parts, env_config={"parts": ("observation", "clock")})
    assert set(space.spaces) == set(batch["obs"]) == {"observation", "clock"}
    space, batch = seen_by_module(Parts, env_config={"parts": ("observations",)})
    assert set(space.spaces) == set(batch["obs"]) == {"observations"}


def test_agents_without_masks_may_do_anything():
    """Agents of one module, of whom some have masks: the others' rows allow everything."""
    case = next(
        i for i in range(1000) if (env := RandomMasks(i)) and {"observation", "none"} <= set(env.places.values())
    )
    algo = small_config(RandomMasks, env_config={"case": case}).multi_agent(policies="independent").build_algo()
    places, rows = RandomMasks(case).places, 0
    for episode in algo.env_runner.sample(num_episodes=3):
        for agent, own in episode.agent_episodes.items():
            if places[agent] == "none" and len(own):
                rows += len(own)
                assert np.all(own.get_extra_model_outputs(MASK))
    assert rows > 0
    algo.stop()


def test_masks_in_infos_are_honoured_where_the_smoke_test_saw_one():
    algo = small_config(Parts, env_config={"in_info": True}).build_algo()
    assert str(algo.masking) == "'action_mask' in the infos are applied."
    algo.train()
    algo.random_play(num_episodes=1)
    algo.stop()


def test_taxi_of_gymnasium_has_masks_in_its_infos():
    algo = small_config("Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3").build_algo()
    for episode in algo.env_runner.sample(num_timesteps=40):
        masks, actions = episode.get_extra_model_outputs(MASK), episode.get_actions()
        assert masks[np.arange(len(actions)), actions].all() and not masks.all()
    algo.stop()


def test_an_environment_without_masks_has_no_piece_for_them():
    algo = small_config("CartPole-v1").build_algo()
    assert str(algo.masking) == "" and "ActionMasking" not in algo.env_runner.env_to_module.names()
    algo.stop()


@pytest.mark.parametrize("in_info", [False, True])
def test_natively_batched_environments_are_masked_too(in_info):
    config = small_config(MaskedBatch, env_config={"in_info": in_info}).env_runners(num_envs_per_env_runner=3)
    algo = config.build_algo()
    assert "are applied" in str(algo.masking)
    for _ in range(2):
        algo.train()
    algo.evaluate(num_episodes=3)
    algo.random_play(num_episodes=3)
    algo.stop()


# What is the user's own does not change.


class OwnModule(RLModule, ValueFunctionAPI):
    """Reads the mask itself, as RLlib's example of a masked module does."""

    def setup(self):
        assert isinstance(self.observation_space, spaces.Dict)
        size = self.observation_space["observation"].shape[0]
        self.pi, self.vf = torch.nn.Linear(size, int(self.action_space.n)), torch.nn.Linear(size, 1)

    def _forward(self, batch, **kwargs):
        seen = batch[Columns.OBS]
        logits = self.pi(seen["observation"].float()) + torch.log(seen["action_mask"].float()).clamp(min=-1e38)
        return {Columns.ACTION_DIST_INPUTS: logits}

    def compute_values(self, batch, embeddings=None):
        return self.vf(batch[Columns.OBS]["observation"].float()).squeeze(-1)


class Careless(OwnModule):
    """Does not look at masks."""

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS]["observation"].float())}


class OwnDistribution(TorchCategorical):
    pass


class WithDistribution(OwnModule):
    """Has a distribution, of which nobody else knows what a mask would do to it."""

    def get_exploration_action_dist_cls(self):
        return OwnDistribution

    get_inference_action_dist_cls = get_train_action_dist_cls = get_exploration_action_dist_cls


class OwnMulti(MultiRLModule):
    pass


class OwnPiece(ConnectorV2):
    """Reads the mask out of the observation."""

    found = 0

    def recompute_output_observation_space(self, observation_space, action_space):
        for space in observation_space.spaces.values():
            assert "action_mask" in space.spaces
        return observation_space

    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            OwnPiece.found += int(episode.get_observations(-1)["action_mask"].sum())
        return batch


@pytest.mark.parametrize("cls", [OwnModule, Careless])
def test_a_module_of_the_users_own_sees_the_mask_and_takes_no_forbidden_action(cls, tmp_path):
    config = masked_config().rl_module(rl_module_spec=RLModuleSpec(module_class=cls), model_config={})
    algo = config.build_algo()
    assert set(algo.get_module().observation_space.spaces) == {"observation", "action_mask"}
    assert str(algo.masking).endswith(f"They stay in the observations too, for your own {cls.__name__}.")
    algo.train()
    algo.evaluate(num_episodes=2)
    algo.random_play(num_episodes=2)
    for episode in algo.env_runner.sample(num_timesteps=4):
        for own in episode.agent_episodes.values():
            seen = own.get_observations()["action_mask"]
            np.testing.assert_array_equal(own.get_extra_model_outputs(MASK), seen[: len(own)].astype(bool))
    algo.save_to_path(tmp_path / "run")
    algo.stop()
    policy = load_policy(tmp_path / "run", config=config)
    play(policy, importlib.import_module(MASKED).parallel_env(illegal="raise"))


def test_masking_a_module_that_masks_itself_changes_no_probability():
    found = {}
    for key in ("auto", None):
        config = masked_config(action_mask_key=key)
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnModule), model_config={})
        algo = config.build_algo()
        episodes = algo.env_runner.sample(num_timesteps=40)
        found[key] = [
            (own.get_actions().tolist(), own.get_extra_model_outputs(Columns.ACTION_LOGP).tolist())
            for episode in episodes
            for own in episode.agent_episodes.values()
        ]
        algo.stop()
    for (actions, logps), (others, other_logps) in zip(found["auto"], found[None], strict=True):
        assert actions == others and logps == pytest.approx(other_logps, abs=1e-6)


@pytest.mark.parametrize("how", ["policies", "spec", "specs", "multi"])
def test_observations_keep_their_masks_wherever_an_own_class_is_named(how):
    config, own = masked_config(), RLModuleSpec(module_class=OwnModule, model_config={})
    if how == "policies":
        config.multi_agent(policies={"x": None, "y": own}, policy_mapping_fn="agent_0=x,agent_1=y")
    elif how == "spec":
        config.rl_module(rl_module_spec=own)
    elif how == "specs":
        config.multi_agent(policies="independent")
        config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"agent_1": own}))
    else:
        config.rl_module(rl_module_spec=MultiRLModuleSpec(multi_rl_module_class=OwnMulti))
    algo = config.build_algo()
    for module in algo.rl_module.values():
        assert set(module.observation_space.spaces) == {"observation", "action_mask"}
    algo.train()
    algo.stop()


def test_masks_are_left_to_a_module_whose_distribution_is_the_users_own():
    config = masked_config().rl_module(rl_module_spec=RLModuleSpec(module_class=WithDistribution), model_config={})
    algo = config.build_algo()
    assert "are left to WithDistribution" in str(algo.masking)
    (batch,) = algo.learner.make_batch(algo.env_runner.sample(num_timesteps=5)).groups
    assert MASK not in batch and set(batch["obs"]) == {"observation", "action_mask"}
    algo.stop()


def test_a_default_module_that_is_named_is_no_own_class():
    config = masked_config().rl_module(rl_module_spec=RLModuleSpec(module_class=DefaultPPORLModule))
    algo = config.build_algo()
    assert algo.get_module().observation_space.shape == (6,)
    algo.stop()


def test_a_piece_of_the_users_own_sees_the_mask_and_no_forbidden_action_is_taken():
    config, before = masked_config().env_runners(env_to_module_connector=lambda env: OwnPiece()), OwnPiece.found
    algo = config.build_algo()
    assert str(algo.masking).endswith("for your own OwnPiece.")
    algo.train()
    assert OwnPiece.found > before
    algo.stop()


def test_the_librarys_own_pieces_see_no_mask():
    config = masked_config().env_runners(env_to_module_connector=lambda env: FlattenObservations())
    algo = config.build_algo()
    assert algo.env_runner.env_to_module.names()[:2] == ["ActionMasking", "FlattenObservations"]
    assert algo.get_module().observation_space.shape == (6,)
    algo.train()
    algo.stop()


def test_an_action_masking_of_the_users_own_is_the_only_one():
    config = masked_config().env_runners(env_to_module_connector=lambda env: ActionMasking(observation_key=None))
    algo = config.build_algo()
    assert algo.env_runner.env_to_module.names().count("ActionMasking") == 1
    assert set(algo.get_module().observation_space.spaces) == {"observation"}
    assert str(algo.masking) == "the ActionMasking among your pieces applies them."
    algo.train()
    algo.stop()


def test_without_default_pieces_nothing_is_added():
    config = masked_config().env_runners(add_default_connectors_to_env_to_module_pipeline=False)
    config.env_runners(env_to_module_connector=lambda env: OwnPiece())
    from marl_connectors.algorithms import build

    pipeline, masking = build.build_env_to_module(config, build.build_setup(config))
    assert pipeline.names() == ["OwnPiece"] and "left to your pieces" in str(masking)


# Masks that do not fit are an error when the algorithm is built.


@pytest.mark.parametrize(
    ("env_config", "message"),
    [
        (
            {"space": spaces.Box(0, 1, (4,), np.int8), "mask": (1, 1, 1, 1)},
            r"(?s)'action_mask'.*\b3\b.*Box\(4,\).*int8.*action_mask_key=None.*--action-mask-key",
        ),
        (
            {"actions": LINE},
            r"(?s)Discrete.*Box\(2,\).*action_mask_key=None",
        ),
        ({"parts": ()}, "action_mask_key=None"),
        (
            {"space": spaces.Box(-5, 5, (3,), np.int8)},
            r"(?s)'action_mask'.*Box\(-5, 5, \(3,\), int8\).*action_mask_key='action_mask'.*action_mask_key=None",
        ),
        (
            {"in_info": True, "mask": (1, 1)},
            r"(?s)'action_mask'.*\b3\b.*\(2,\).*action_mask_key=None",
        ),
        (
            {"in_info": True, "actions": LINE},
            r"(?s)'action_mask'.*Box\(2,\).*action_mask_key=None",
        ),
    ],
)
def test_masks_that_do_not_fit_are_an_error_when_the_algorithm_is_built(env_config, message):
    def make(_):
        return Parts(**env_config, strict=False)

    with pytest.raises(ConfigError, match=message):
        small_config(make).build_algo()
    algo = small_config(make, action_mask_key=None).build_algo()  # which is the remedy that the messages name
    algo.train()
    algo.stop()


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.MultiBinary(3), spaces.Discrete(3)),
        (spaces.MultiDiscrete([2, 2, 2]), spaces.Discrete(3)),
        (spaces.Box(0.0, 1.0, (3,), np.float32), spaces.Discrete(3)),
        (spaces.Box(0, 1, (3,), np.bool_), spaces.Discrete(3)),
        (spaces.Box(0, 2, (3,), np.int8), spaces.MultiBinary(3)),
        (spaces.Tuple([spaces.Box(0, 1, (1,), np.int8), spaces.MultiBinary(2)]), spaces.MultiDiscrete([1, 2])),
    ],
)
def test_any_space_of_zeros_and_ones_is_a_mask(space, actions):
    assert is_binary(space, actions)
    assert not is_binary(spaces.Box(0, 2, (3,), np.int8), spaces.Discrete(3))
    assert not is_binary(spaces.MultiDiscrete([3, 2]), spaces.Discrete(2))
    assert not is_binary(spaces.Discrete(2), spaces.Discrete(2))


def test_a_key_that_nothing_has_is_a_warning():
    with pytest.warns(UserWarning, match=r"(?s)action_mask_key='action_masks'.*'action_mask'"):
        small_config(MASKED, action_mask_key="action_masks").build_algo().stop()


def test_masks_that_come_later_than_the_smoke_test_are_a_warning():
    env_config = {"in_info": True, "first": 30, "strict": False}
    algo = small_config(Parts, env_config=env_config).training(train_batch_size_per_learner=40).build_algo()
    with pytest.warns(UserWarning, match=r"(?s)'action_mask'.*action_mask_key='action_mask'"):
        algo.train()
    algo.train()
    algo.stop()


def test_a_key_that_is_not_a_name_is_an_error():
    with pytest.raises(ConfigError, match=r"(?s)action_mask_key.*'auto'.*\b3\b"):
        small_config(MASKED, action_mask_key=3).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)action_mask_key.*'auto'.*''"):
        small_config(MASKED, action_mask_key="").build_algo()


# Masks that forbid everything.


@pytest.mark.parametrize("in_info", [False, True])
def test_an_agent_whose_turn_it_is_must_be_allowed_something(in_info):
    config = small_config(Turns, env_config={"mask": (0, 0, 0), "in_info": in_info})
    with pytest.raises(EnvError, match=r"(?s)step 2.*\(seed 0\).*'b'.*'action_mask'"):
        config.build_algo()
    algo = config.environment(disable_env_checking=True, action_mask_key="action_mask").build_algo()
    with pytest.raises(EnvError, match=r"(?s)sub-environment 0.*'b'.*'action_mask'"):
        algo.train()
    algo.stop()
    algo = config.environment(action_mask_key=None).build_algo()
    if not in_info:
        algo.train()
    algo.stop()


@pytest.mark.parametrize("key", ["auto", None])
def test_a_run_that_ignores_masks_on_purpose_says_so(key, caplog):
    with small_config(Turns, action_mask_key=key).build_algo() as algo:
        sentence = str(algo.masking)
    said = [record.getMessage() for record in caplog.records]
    assert said == ([] if key == "auto" else [f"Turns: {sentence}"])
    assert ("are ignored, as action_mask_key=None says" in sentence) == (key is None)


@pytest.mark.parametrize("in_info", [False, True])
def test_players_who_wait_may_have_masks_that_forbid_everything(in_info):
    algo = small_config(Turns, env_config={"in_info": in_info}).build_algo()
    algo.train()
    algo.evaluate(num_episodes=3)
    algo.stop()


def test_the_zeros_of_a_mask_for_bits_allow_zeros():
    algo = small_config(Turns, env_config={"mask": (0, 0, 0), "space": spaces.MultiBinary(3)}).build_algo()
    algo.train()
    algo.stop()


def test_agents_of_a_parallel_game_that_is_played_in_turns_may_wait():
    def make(env_config):
        return parallel_to_aec(RandomMasks(case=0, places=("observation",)))

    algo = small_config(make).multi_agent(policies="independent").build_algo()
    for _ in range(10):
        algo.train()
    algo.stop()


# Checkpoints.


def test_what_the_smoke_test_saw_is_in_the_checkpoint(tmp_path):
    config = small_config(Parts, env_config={"in_info": True})
    algo = config.build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "run")
    algo.stop()
    policy = load_policy(tmp_path / "run", config=config)
    for _ in range(20):
        action = policy(np.zeros(2, np.float32), info={"action_mask": np.array([0, 1, 0], np.int8)}, explore=True)
        assert action == 1
