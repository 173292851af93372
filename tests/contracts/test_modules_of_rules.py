"""Modules that put out actions themselves, beside modules that learn, for agents with like spaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marl_connectors import (
    Algorithm,
    Columns,
    ConnectorV2,
    DefaultPPORLModule,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    RLModule,
    RLModuleSpec,
    load_policy,
)
from marl_connectors.errors import ConnectorError

PAID = 25.0  # of an episode of match_v0, for the agent who always chooses its target


class Rules(RLModule):
    """Chooses the target that it sees, so that every row that is another one's shows in the returns."""

    def _forward(self, batch, **kwargs):
        return {Columns.ACTIONS: batch[Columns.OBS].argmax(-1), "seen": batch[Columns.OBS].sum(-1)}


class Array(Rules):
    def _forward(self, batch, **kwargs):
        return {Columns.ACTIONS: batch[Columns.OBS].argmax(-1).numpy().astype(np.int32)}


class Surely(RLModule):
    """The same in the form of a distribution."""

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: 1000.0 * batch[Columns.OBS]}


class Floats(RLModule):
    def _forward(self, batch, **kwargs):
        return {Columns.ACTIONS: batch[Columns.OBS].argmax(-1).float()}


class Nothing(RLModule):
    def _forward(self, batch, **kwargs):
        return {"thoughts": batch[Columns.OBS]}


class Passing(MultiRLModule):
    """Has a forward pass of its own, that does what the usual one does."""

    def _forward(self, batch, *, purpose, **kwargs):
        return super()._forward(batch, purpose=purpose, **kwargs)


class Watching(ConnectorV2):
    """On items, behind GetActions."""

    seen: list = []

    def __call__(self, *, batch, episodes, **kwargs):
        for name in ("actions", "action_logp", "seen"):
            for episode, _ in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch[name]):
                self.seen.append((name, episode.module_id))
        return batch


def make_config(rules, mapping="agent_0=main,agent_1=rules,agent_2=main", own=MultiRLModule, **env_runners):
    return (
        PPOConfig()
        .environment("marl_envs.match_v0", env_config={"n_agents": 3})
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=7, **env_runners)
        .multi_agent(policies=["main", "rules"], policy_mapping_fn=mapping, policies_to_train=["main"])
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                own,
                rl_module_specs={
                    "main": RLModuleSpec(DefaultPPORLModule, model_config={"fcnet_hiddens": [8]}),
                    "rules": RLModuleSpec(rules),
                },
            )
        )
        .training(train_batch_size_per_learner=42, minibatch_size=20, num_epochs=1, lr=0.01)
        .debugging(seed=3)
    )


def lives(episodes):
    return [life for episode in episodes for life in episode.agent_episodes.values() if len(life)]


def actions_of(episodes, module_id):
    return np.concatenate([life.get_actions() for life in lives(episodes) if life.module_id == module_id])


@pytest.mark.parametrize("own", [MultiRLModule, Passing])
@pytest.mark.parametrize("rules", [Rules, Array])
def test_rules_act_beside_a_module_that_learns(rules, own):
    algo = make_config(rules, own=own).build_algo()
    assert set(algo.train()["learners"]) - {"__shared__"} == {"main"}
    (episode,) = algo.env_runner.sample(num_episodes=1)
    assert episode.agent_episodes["agent_1"].get_return() == PAID
    assert algo.evaluate(num_episodes=2)["env_runners"]["module_episode_returns"]["rules"]["mean"] == PAID


def test_each_module_has_in_its_episodes_what_it_put_out_and_nothing_else():
    runner = make_config(Rules).build_algo().env_runner
    runner.sample()
    for life in lives(runner.sample()):
        names = set(life.storage.extra_keys())
        if life.module_id == "rules":
            assert names == {"seen"}
            np.testing.assert_array_equal(life.get_extra_model_outputs("seen"), 1.0)
            continue
        assert names == {"action_dist_inputs", "action_logp"}
        logits = torch.from_numpy(life.get_extra_model_outputs("action_dist_inputs"))
        taken = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(life.get_actions())[:, None])[:, 0]
        np.testing.assert_allclose(life.get_extra_model_outputs("action_logp"), taken, rtol=1e-5)


def test_what_the_others_draw_does_not_depend_on_the_form_of_the_rules():
    runs = [make_config(rules).build_algo().env_runner.sample(num_timesteps=60) for rules in (Rules, Surely)]
    for module_id in ("main", "rules"):
        np.testing.assert_array_equal(*(actions_of(run, module_id) for run in runs))
    assert len(set(actions_of(runs[0], "main").tolist())) > 1


def test_rules_may_come_and_go_from_episode_to_episode():
    """Log-probabilities are computed for a whole fragment at once; they are those of the modules that drew."""

    def mapping(agent_id, episode, **kwargs):
        return "rules" if int(episode.id_.split("-")[1]) % 2 and agent_id == "agent_1" else "main"

    runner = make_config(Rules, mapping).build_algo().env_runner
    kinds = set()
    for _ in range(3):
        for life in lives(runner.sample(num_timesteps=60)):
            names = life.storage.extra_keys()
            kinds.add((life.module_id, names))
            if life.module_id == "main":
                logits = torch.from_numpy(life.get_extra_model_outputs("action_dist_inputs"))
                taken = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(life.get_actions())[:, None])[:, 0]
                np.testing.assert_allclose(life.get_extra_model_outputs("action_logp"), taken, rtol=1e-5)
            else:
                assert life.get_return() == len(life)
    assert {(m, tuple(sorted(names))) for m, names in kinds} == {
        ("main", ("action_dist_inputs", "action_logp")),
        ("rules", ("seen",)),
    }


def test_pieces_on_items_see_each_modules_own_columns_and_change_nothing():
    Watching.seen = []
    runs = []
    for pieces in ({}, {"module_to_env_connector": lambda env: Watching()}):
        algo = make_config(Rules, **pieces).build_algo()
        algo.train()
        runs.append((algo.env_runner.sample(), algo.get_module("main").get_state()))
    (plain, parameters), (watched, others) = runs
    assert set(Watching.seen) == {
        ("actions", "main"),
        ("actions", "rules"),
        ("action_logp", "main"),
        ("seen", "rules"),
    }
    for life, other in zip(lives(plain), lives(watched), strict=True):
        assert set(life.storage.extra_keys()) == set(other.storage.extra_keys())
        np.testing.assert_array_equal(life.get_actions(), other.get_actions())
    assert all(torch.equal(parameters[name], others[name]) for name in parameters)


def test_a_checkpoint_goes_on_as_if_it_had_never_stopped(tmp_path):
    config = make_config(Rules)
    algo = config.build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    resumed = Algorithm.from_checkpoint(path, config=config)
    for run in (algo, resumed):
        run.train()
    for name, value in algo.get_module("main").get_state().items():
        assert torch.equal(value, resumed.get_module("main").get_state()[name])
    policy = load_policy(path, config=config)
    seen = np.eye(5, dtype=np.float32)
    found = policy.actions({"agent_0": seen, "agent_1": seen})
    assert found["agent_1"].tolist() == [0, 1, 2, 3, 4]
    logits = policy.rl_module["main"].forward_inference({"obs": torch.from_numpy(seen)})["action_dist_inputs"]
    assert found["agent_0"].tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Floats, r"(?s)'rules'.*'actions'.*torch.float32.*torch.int64"),
        (Nothing, r"(?s)'rules'.*\['thoughts'\].*'actions'.*'action_dist_inputs'"),
    ],
)
def test_what_does_not_fit_is_said_of_the_module_that_put_it_out(rules, words):
    with pytest.raises(ConnectorError, match=words):
        make_config(rules).build_algo().train()


@pytest.mark.parametrize("explore", [True, False])
def test_rules_act_beside_a_module_with_a_memory(explore):
    config = make_config(Rules)
    specs = {
        "main": RLModuleSpec(model_config={"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}),
        "rules": RLModuleSpec(Rules),
    }
    algo = config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs)).build_algo()
    algo.train()
    (episode,) = algo.env_runner.sample(num_episodes=1, explore=explore)
    algo.stop()
    assert episode.agent_episodes["agent_1"].get_return() == PAID
    assert set(episode.agent_episodes["agent_0"].get_actions().tolist()) <= set(range(5))
