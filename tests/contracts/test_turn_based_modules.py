"""Modules, connector pieces and training where agents act one after another."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_aec import Beat, ScriptedAEC
from helpers.envs.scripted_envs import lives_of_chunks
from helpers.runs.turn_based_configs import ANYTHING, config_of, stateful_config, tictactoe
from marl_connectors import (
    Callbacks,
    FrameStacking,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from marl_connectors.errors import ModuleError
from marl_connectors.trees import leaves, tree_map


def lives_of(chunks):
    """Each life's chunks, in order."""
    lives = defaultdict(list)
    for chunk in chunks:
        for part in chunk.all_agent_episodes():
            lives[part.id_].append(part)
    return lives


# Modules with a state.


@pytest.mark.slow
@pytest.mark.parametrize("fragment", [1, 2, 3, 7, 40])
def test_each_turn_begins_in_the_state_that_the_same_life_was_left_in(fragment):
    runner = stateful_config(fragment=fragment).build_algo().env_runner
    parts = lives_of(chunk for _ in range(120 // fragment) for chunk in runner.sample())
    turns = Counter()
    for id_, own in parts.items():
        module = runner.rl_module[own[0].module_id]
        state = tree_map(lambda leaf: torch.as_tensor(leaf)[None], module.get_initial_state())
        for part in own:
            for i in range(len(part)):
                turns[own[0].module_id] += 1
                seen = torch.as_tensor(part.get_observations(i))
                inputs = part.get_extra_model_outputs("action_dist_inputs", i)
                if not module.is_stateful():
                    expected = module.forward_exploration({"obs": seen[None]})["action_dist_inputs"][0]
                else:
                    out = module.forward_exploration({"obs": seen[None, None], "state_in": state})
                    expected, state = out["action_dist_inputs"][0, 0], out["state_out"]
                    kept = part.get_extra_model_outputs("state_out", i)
                    for here, there in zip(leaves(kept), leaves(state), strict=True):
                        np.testing.assert_allclose(here, there[0], atol=1e-5, err_msg=f"{id_}, turn {i}")
                np.testing.assert_allclose(inputs, expected, atol=1e-5)
    assert len(turns) >= 8


@pytest.mark.few(1)
@pytest.mark.parametrize("fragment", [1, 5])
def test_stateful_modules_learn_from_their_own_sequences(fragment):
    algo = stateful_config(fragment=fragment).training(train_batch_size_per_learner=30).build_algo()
    before = {m: [p.clone() for p in algo.get_module(m).parameters()] for m in ("gru", "lstm", "wide_gru", "plain")}
    for _ in range(4):
        results = algo.train()
    assert all(np.isfinite(losses["total_loss"]) for losses in results["learners"].values() if "total_loss" in losses)
    for module_id, parameters in before.items():
        changed = [
            not torch.equal(*pair) for pair in zip(parameters, algo.get_module(module_id).parameters(), strict=True)
        ]
        assert any(changed), module_id


# Connector pieces.


class Own(ConnectorV2):
    """Appends what the agent did and was paid in its own previous turn, and how many of its turns are known."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        wider = lambda space: spaces.Box(-np.inf, np.inf, (space.shape[0] + 2,), np.float32)
        return spaces.Dict({agent: wider(space) for agent, space in input_observation_space.items()})

    def columns(self, c, xp):
        rows = c.rows
        added = [rows.get(name, -1, 0).reshape(-1, 1) for name in ("actions", "rewards")]
        c["obs"] = np.concatenate([rows.get("obs"), *added], axis=1).astype(np.float32)


class OwnOnItems(Own):
    def __call__(self, *, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            before = (float(episode.get_actions(-1, fill=0)), episode.get_rewards(-1, fill=0.0))
            item = np.append(episode.get_observations(-1), before).astype(np.float32)
            self.add_batch_item(batch, "obs", item, episode)
        return batch


class Watches(ConnectorV2):
    """Notes whom it is asked for, and changes nothing."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __call__(self, *, batch, episodes, **kwargs):
        own = list(self.single_agent_episode_iterator(episodes))
        agents = [(e.multi_agent_episode_id, e.agent_id) for e in own]
        to_act = {e.id_: e.get_agents_to_act() for e in episodes}
        self.asked.append((agents, to_act, {e.is_done for e in own}))
        return batch


def test_item_pieces_are_asked_for_the_agents_whose_turn_it_is():
    runner = config_of(lambda: RandomAEC(**ANYTHING), pieces=[Watches], copies=3).build_algo().env_runner
    asked = next(iter(runner.env_to_module)).asked
    copies = runner.vector_env.sub_envs
    runner.sample(num_timesteps=3)
    ended = []
    for _ in range(60):
        asked.clear()
        ended += [
            part for chunk in runner.sample(num_timesteps=3) for part in chunk.all_agent_episodes() if part.is_done
        ]
        agents, to_act, done = asked[-1]
        assert agents == [(f"{c.index}-{c.episode_number}", agent) for c in copies for agent in c.agents]
        assert to_act == {f"{c.index}-{c.episode_number}": set(c.agents) for c in copies if c.agents}
        assert done <= {False}
        for before, _, was_done in asked[:-1]:  # last observations
            assert was_done == {True} and len(before) == len(set(before))
            ended = [part for part in ended if (part.multi_agent_episode_id, part.agent_id) not in before]
    assert not ended


def test_the_previous_turn_is_the_agents_own():
    beats = [Beat(n, {"a": 1 + t, "b": 10 * t}) for t, n in enumerate("abaabbab")] + [
        Beat("a", {"b": 7}, truncated="ab")
    ]
    seen = {}
    for piece in (Own, OwnOnItems):

        class Keeps(piece):
            kept = seen.setdefault(piece, [])

            def __call__(self, **kwargs):
                batch = super().__call__(**kwargs)
                self.kept.append([np.array(item) for items in batch["obs"].values() for item in items])
                return batch

        algo = config_of(lambda: ScriptedAEC(beats), pieces=[Keeps], copies=1, policies=list("abcd"))
        algo = algo.multi_agent(policy_mapping_fn=lambda agent, episode, **kw: agent)
        runner = algo.environment(disable_env_checking=True).build_algo().env_runner
        chunks = [runner.sample(num_timesteps=n)[0] for n in (3, 1, 4)]
        expected = []
        (life_a, life_b) = (life for life in lives_of_chunks(chunks))
        before = {"a": (0, 0), "b": (0, 0)}
        turns = Counter()
        for agent in "abaabbab":
            life = life_a if agent == "a" else life_b
            expected.append([*life.obs[turns[agent]], *before[agent]])
            before[agent] = (life.actions[turns[agent]], life.rewards[turns[agent]])
            turns[agent] += 1
        found = [step[0].tolist() for step in seen[piece][:8]]
        np.testing.assert_array_equal(found, expected)


def on_items(piece):
    """The same piece without its column form; the last one gives what no column can hold, and stays as it is."""
    cls = type(piece)
    if cls is not ListifyDataForVectorEnv:
        piece.__class__ = type(cls.__name__, (cls,), {"__call__": lambda self, **kwargs: cls.__call__(self, **kwargs)})
    return piece


def stack(n=3, **where):
    return lambda: FrameStacking(num_frames=n, **where)


COMBINATIONS = {
    "none": ([], []),
    "filter": ([MeanStdFilter], []),
    "previous": ([PrevActionsPrevRewards], []),
    "longer previous": ([lambda: PrevActionsPrevRewards(n_prev_actions=3, n_prev_rewards=2), MeanStdFilter], []),
    "frames": ([stack()], [stack(as_learner_connector=True)]),
    "own": ([Own], [Own]),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_pieces_on_items_give_the_same_run(name):
    pieces, learner_pieces = COMBINATIONS[name]

    def trained(change, pieces):
        config = config_of(lambda: RandomAEC(**ANYTHING), pieces=pieces, learner_pieces=learner_pieces, lookback=3)
        algo = config.training(train_batch_size_per_learner=28).build_algo()
        for pipeline in (algo.env_runner.env_to_module, algo.env_runner.module_to_env, algo.learner.pipeline):
            for piece in pipeline:
                if not isinstance(piece, Own):
                    change(piece)
        results = [algo.train() for _ in range(3)]
        return algo, results

    one, results = trained(lambda piece: None, pieces)
    other, item_results = trained(on_items, [OwnOnItems if piece is Own else piece for piece in pieces])
    for here, there in zip(results, item_results, strict=True):
        np.testing.assert_equal(here["env_runners"], there["env_runners"])
    for here, there in zip(one.get_module().parameters(), other.get_module().parameters(), strict=True):
        torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4)


def test_a_module_that_acts_later_is_checked_at_its_first_turn():
    class Shortens(ConnectorV2):
        def columns(self, c, xp):
            if c.module_ids == ("b",):
                c["obs"] = c.rows.get("obs")[:, :1]

    beats = [Beat(agent) for agent in "aaab"]
    config = config_of(lambda: ScriptedAEC(beats), pieces=[Shortens], copies=1, policies="independent")
    runner = config.environment(disable_env_checking=True).build_algo().env_runner
    runner.sample(num_timesteps=2)
    with pytest.raises(ModuleError, match=r"(?s)'b'.*\(1,\)"):
        runner.sample(num_timesteps=1)


@pytest.mark.parametrize("piece", [Own, OwnOnItems, MeanStdFilter, lambda: on_items(MeanStdFilter()), Watches])
def test_pieces_work_in_steps_in_which_nobody_acts(piece):
    config = config_of(lambda: RandomAEC(agents="a", die=0.4, back=1.0, max_steps=12), pieces=[piece], copies=1)
    runner = config.build_algo().env_runner
    (game,) = runner.sample(num_episodes=1)
    assert len(game) > game.agent_steps() == 12


def test_pieces_that_write_to_episodes_see_each_observation_once():
    class Counts(ConnectorV2):
        def __init__(self):
            super().__init__()
            self.seen = []

        def columns(self, c, xp):
            observations = c.rows.get("obs")
            self.seen += observations[:, 0].tolist()
            c.rows.set("obs", observations + 1)

    make = lambda: RandomAEC(**{**ANYTHING, "back": 0.0})  # who is back at once observes the same again
    runner = config_of(make, pieces=[Counts]).build_algo().env_runner
    chunks = [chunk for n in (1, 5, 3, 40) for chunk in runner.sample(num_timesteps=2 * n)]
    seen = next(iter(runner.env_to_module)).seen
    assert len(set(seen)) == len(seen)
    written = {np.float32(o[0]) for life in lives_of_chunks(chunks) for o in life.obs}
    assert written <= {np.float32(value) + np.float32(1) for value in seen}
    assert len(written) >= len(seen) - 2  # a copy that has just begun is in no chunk yet


# Training, callbacks, evaluation, repetition.


def test_masked_games_are_trained_and_explained():
    algo = tictactoe().training(train_batch_size_per_learner=28).build_algo()
    for _ in range(3):
        results = algo.train()
    assert results["num_env_steps_sampled_lifetime"] == 3 * 28
    assert 5 <= results["env_runners"]["episode_len_mean"] <= 9
    text = str(algo.explain())
    assert "ActionMasking" in text and "FlattenObservations" in text
    games = algo.evaluate(num_episodes=6)["env_runners"]
    assert games["num_episodes"] == 6 and 5 <= games["episode_len_mean"] <= 9
    assert 5 <= algo.random_play(num_episodes=6)["env_runners"]["episode_len_mean"] <= 9


def test_callbacks_are_told_of_games():
    told = []

    class Tells(Callbacks):
        def on_environment_created(self, *, env, **kwargs):
            told.append("created")

        def on_episode_end(self, *, episode, **kwargs):
            told.append((episode.id_, len(episode), sorted(episode.agent_ids)))

    runner = tictactoe().callbacks(Tells).build_algo().env_runner
    games = runner.sample(num_episodes=4)
    assert told == ["created"] + [(game.id_, len(game), ["player_1", "player_2"]) for game in games]


@pytest.mark.few(1)
@pytest.mark.parametrize("fragment", [1, 2, 5])
def test_cuts_while_agents_wait_leave_the_train_batch_whole(fragment):
    algo = config_of(lambda: RandomAEC(**ANYTHING), fragment=fragment, copies=3).build_algo()
    kept, learnt = Counter(), Counter()

    class Spy(ConnectorV2):
        def columns(self, c, xp):
            learnt["rows"] += int(c.rows.acted.sum())
            learnt["rewards"] += float(c.rows.get("rewards")[c.rows.acted].sum())

    algo.learner.pipeline.append(Spy())
    for _ in range(30):
        episodes = algo.env_runner.sample()
        kept["rows"] += sum(episode.agent_steps() for episode in episodes)
        kept["rewards"] += sum(part.get_return() for e in episodes for part in e.all_agent_episodes())
        if sum(episode.agent_steps() for episode in episodes):
            algo.learner.update(episodes=episodes)
    assert learnt == kept and kept["rows"] > 60
