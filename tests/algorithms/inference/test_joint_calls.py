"""Agents that act in groups do what they do when all act at once, or there is an error that names the culprit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import (
    Columns,
    ConnectorV2,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    PrevActionsPrevRewards,
    RLModuleSpec,
    SingleAgentObservationPreprocessor,
    load_policy,
)
from marl_connectors.errors import ConnectorError
from marl_envs import last_stone_v0, match_v0

AGENTS = [f"agent_{i}" for i in range(4)]
MATCH = {"n_agents": len(AGENTS), "n_actions": 3, "ep_len": 9}


# Pieces that look at several agents.


class Team(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        mean = np.mean(list(observations.values()), axis=0)
        return {a: (own - mean).astype(np.float32) for a, own in observations.items()}


class ItemMean(ConnectorV2):
    """On items, as one would write it: nothing says that it looks at several agents."""

    def __call__(self, *, batch, episodes, **kwargs):
        parts = list(self.single_agent_episode_iterator(episodes))
        mean = np.mean([part.get_observations(-1) for part in parts], axis=0)
        for part in parts:
            part.set_observations(new_data=part.get_observations(-1) + mean, at_indices=-1)
        return batch


class ColumnMean(ConnectorV2):
    def columns(self, c, xp):
        c[Columns.OBS] = c[Columns.OBS] + c[Columns.OBS].mean(0, keepdims=True)


class First(SingleAgentObservationPreprocessor):
    """Keeps what the first agent sees for the others."""

    def preprocess(self, observation, episode):
        if episode.agent_id == AGENTS[0]:
            self.seen = observation
        return observation + 0.1 * getattr(self, "seen", 0.0)


class NoTwoAlike(ConnectorV2):
    """Behind the modules: who chooses what somebody before has chosen takes the next action."""

    def columns(self, c, xp):
        actions = np.asarray(c[Columns.ACTIONS])
        c[Columns.ACTIONS_FOR_ENV] = (actions + np.arange(len(actions))) % 3


class CallCount(ConnectorV2):
    """What an agent sees depends on how many calls there have been."""

    calls = 0

    def columns(self, c, xp):
        self.calls += 1
        c[Columns.OBS] = c[Columns.OBS] + self.calls


class Talk(MultiRLModule):
    """Modules that tell one another what they put out."""

    def _forward(self, batch, *, purpose, **kwargs):
        outputs = super()._forward(batch, purpose=purpose, **kwargs)
        if purpose != "train":
            heard = sum(own[Columns.ACTION_DIST_INPUTS].mean() for own in outputs.values())
            for own in outputs.values():
                own[Columns.ACTION_DIST_INPUTS] = own[Columns.ACTION_DIST_INPUTS] * heard
        return outputs


# Pieces that do not.


class ItemTwice(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for part in self.single_agent_episode_iterator(episodes):
            part.set_observations(new_data=2 * part.get_observations(-1), at_indices=-1)
        return batch


class ColumnTwice(ConnectorV2):
    def columns(self, c, xp):
        c[Columns.OBS] = 2 * c[Columns.OBS]


class Flip(ConnectorV2):
    def columns(self, c, xp):
        c[Columns.ACTIONS_FOR_ENV] = 2 - np.asarray(c[Columns.ACTIONS])


class Own(MultiRLModule):
    """A forward pass of its own in which each module is by itself."""

    def _forward(self, batch, *, purpose, **kwargs):
        return super()._forward(batch, purpose=purpose, **kwargs)


def before(*pieces):
    return {"env_to_module_connector": _Made(pieces)}


def behind(*pieces):
    return {"module_to_env_connector": _Made(pieces)}


class _Made:
    def __init__(self, classes):
        self.classes = classes

    def __call__(self):
        return [cls() for cls in self.classes]


LOOKING = {
    "Team": before(Team),
    "ItemMean": before(ItemTwice, ItemMean),
    "ColumnMean": before(ColumnMean),
    "First": before(First),
    "NoTwoAlike": behind(NoTwoAlike),
    "CallCount": before(CallCount),
    "Talk": Talk,
}
ALONE = {
    "none": {},
    "the library's": before(MeanStdFilter, PrevActionsPrevRewards),
    "on items": before(ItemTwice),
    "on columns": before(ColumnTwice, MeanStdFilter),
    "behind the modules": behind(Flip),
    "own forward pass": Own,
}


def policy_with(settings, tmp_path, env=match_v0.parallel_env, env_config=MATCH, **kwargs):
    config: PPOConfig = small_config(env, env_config=env_config).multi_agent(policies="independent")
    if isinstance(settings, type):
        spec = RLModuleSpec(model_config={"fcnet_hiddens": (4,)})
        specs = MultiRLModuleSpec(settings, rl_module_specs=dict.fromkeys(AGENTS, spec))
        config.rl_module(rl_module_spec=specs)
        settings = {}
    config.env_runners(**settings)
    path = config.build_algo().save_to_path(tmp_path / "c")
    return lambda: load_policy(path, config=config, **kwargs)


def steps_for(policy, count, seed):
    rng, space = np.random.default_rng(seed), policy._spaces[AGENTS[0]][0]
    return [
        {a: (rng.normal(size=space.shape).astype(np.float32), float(rng.normal())) for a in AGENTS}
        for _ in range(count)
    ]


def act(policy, step, agents):
    return policy.actions({a: step[a][0] for a in agents}, rewards={a: step[a][1] for a in agents})


def random_groups(rng):
    """Agents in a random order, cut into groups at random places; every now and then all in one."""
    cuts = np.flatnonzero(rng.random(len(AGENTS) - 1) < rng.choice([0.0, 0.3, 1.0])) + 1
    return [group.tolist() for group in np.split(rng.permutation(AGENTS), cuts)]


def equal_or_error(load, seed, may_raise):
    """Acts on random steps in random groups; how often there was an error."""
    rng, errors = np.random.default_rng(seed), 0
    together, grouped = load(), load()
    for step in steps_for(together, 6, seed):
        expected, found = act(together, step, AGENTS), {}
        for group in random_groups(rng):
            try:
                found.update(act(grouped, step, group))
            except ConnectorError as error:
                if may_raise is None or f"{may_raise} looks at several agents" not in str(error):
                    raise
                errors += 1
                found.update(act(grouped, step, AGENTS))  # an error leaves all as it was
                break
        assert found == expected, f"seed {seed}"
    return errors


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ALONE)
def test_groups_act_as_all_where_each_agent_is_looked_at_alone(name, tmp_path):
    load = policy_with(ALONE[name], tmp_path)
    for seed in range(4):
        assert not equal_or_error(load, seed, None)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", LOOKING)
def test_groups_are_an_error_where_several_agents_are_looked_at(name, tmp_path):
    load = policy_with(LOOKING[name], tmp_path)
    errors = 0
    for seed in range(4):
        if name == "CallCount":  # it has counted calls that failed
            with pytest.raises(ConnectorError, match=r"(?s)\bpolicy\b.*CallCount"):
                act(load(), steps_for(load(), 1, seed)[0], AGENTS[:1])
            return
        errors += equal_or_error(load, seed, name)
    assert errors > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ALONE, *LOOKING])
def test_whatever_the_groups_they_act_as_all_or_are_an_error(name, tmp_path):
    """Other groups at every run."""
    if name == "CallCount":
        pytest.skip("counts calls that fail")
    load = policy_with({**ALONE, **LOOKING}[name], tmp_path)
    first = int(np.random.default_rng().integers(2**31))
    print(f"seeds from {first}")
    for seed in range(first, first + 60):
        equal_or_error(load, seed, name if name in LOOKING else None)


# What the errors say, and what may be done about them.


def test_the_error_says_who_is_missing_and_what_to_call(tmp_path):
    load = policy_with(LOOKING["Team"], tmp_path)
    policy, step = load(), steps_for(load(), 1, 0)[0]
    remedy = r".*policy.actions\(observations, agent_ids=env.agents\)"
    with pytest.raises(ConnectorError, match="(?s)'agent_0' has no observation" + remedy):
        policy(step["agent_1"][0], "agent_1")
    seen = {a: own for a, (own, _) in step.items()}
    with pytest.raises(ConnectorError, match="(?s)'agent_0' has an observation" + remedy):
        policy.actions(seen, agent_ids=["agent_1"])
    assert len(policy.actions(seen)) == len(AGENTS)


def test_what_was_found_by_trying_is_told_apart(tmp_path):
    load = policy_with(LOOKING["ItemMean"], tmp_path)
    policy = load()
    with pytest.raises(ConnectorError, match="looks_at_other_agents = False"):
        policy(steps_for(policy, 1, 0)[0]["agent_0"][0], "agent_0")


def test_agents_that_die_may_be_missing_where_the_caller_says_who_is_there(tmp_path):
    """The last observation of one that dies comes with those of the living."""
    load = policy_with(LOOKING["Team"], tmp_path)
    policy, step = load(), steps_for(load(), 1, 0)[0]
    seen = {a: own for a, (own, _) in step.items()}
    policy.actions(seen, agent_ids=AGENTS)
    assert list(policy.actions(seen, agent_ids=AGENTS[:2])) == AGENTS[:2]
    living = {a: seen[a] for a in AGENTS[:2]}
    assert list(policy.actions(living, agent_ids=AGENTS[:2])) == AGENTS[:2]
    with pytest.raises(ConnectorError, match=r"(?s)'agent_2'.*policy.reset.*agent_ids=.*'agent_2"):
        policy.actions({a: seen[a] for a in AGENTS[:3]}, agent_ids=AGENTS[:3])
    policy.reset(agent_ids=AGENTS[2:])
    with pytest.raises(ConnectorError, match="'agent_3'"):
        policy.actions(seen, agent_ids=AGENTS[:3])
    assert len(policy.actions(seen, agent_ids=AGENTS)) == len(AGENTS)


class ItemMeanAfterAll(ItemMean):
    looks_at_other_agents = False


class NeedsInfos(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        for part in self.single_agent_episode_iterator(episodes):
            part.set_observations(new_data=part.get_observations(-1) * part.get_infos(-1)["x"], at_indices=-1)
        return batch


def infos_env(env_config):
    return WithInfos(**env_config)


class WithInfos(LifeEnv):
    def _observe(self, agent):
        return super()._observe(agent)[0], {"x": np.float32(2.0)}


def test_what_a_class_says_of_itself_counts(tmp_path):
    policy = policy_with(before(ItemMeanAfterAll), tmp_path)()
    assert policy(steps_for(policy, 1, 0)[0]["agent_0"][0], "agent_0") in range(3)


def test_what_cannot_be_tried_has_to_be_said(tmp_path):
    policy = policy_with(before(NeedsInfos), tmp_path, infos_env, {})()
    seen = np.ones(2, np.float32)
    with pytest.raises(ConnectorError, match=r"(?s)NeedsInfos.*looks_at_other_agents = False"):
        policy(seen, "a")
    assert policy(seen, "a", info={"x": np.float32(1.0)}) in range(3), "the infos of the call are enough to try it"


def test_copies_and_sessions_know_what_was_found(tmp_path):
    policy = policy_with(LOOKING["ItemMean"], tmp_path)()
    seen = steps_for(policy, 1, 0)[0]["agent_0"][0]
    for own in (policy, policy.session(), pickle.loads(pickle.dumps(policy))):
        with pytest.raises(ConnectorError, match="ItemMean"):
            own(seen, "agent_0")


class NotesCompany(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        self.seen = list(observations)
        return {}


def test_where_agents_take_turns_they_act_one_by_one_as_in_training(tmp_path):
    config = small_config(last_stone_v0.raw_env).multi_agent(policies="shared")
    config.env_runners(**before(NotesCompany)).build_algo().save_to_path(tmp_path / "c")
    policy = load_policy(tmp_path / "c", config=config)
    env = last_stone_v0.raw_env()
    env.reset(seed=0)
    observation = env.last()[0]
    first, second = policy.agent_ids[:2]
    for agent_id in (first, second, first):
        policy(observation, agent_id)
        assert policy.env_to_module["NotesCompany"].seen == [agent_id]
    with pytest.raises(ConnectorError, match=r"\b2 agents"):
        policy.actions({first: observation, second: observation})
