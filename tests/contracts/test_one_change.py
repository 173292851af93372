"""One thing is changed around a run that works, and what must hold of every run still holds.

A run is drawn at random: an algorithm, an environment whose agents may die, join late and come back, and a mapping.
Then one thing around it is changed: the loss is a user's own, an agent joins late with a module of its own, a module
has no agent, is added or removed, targets move at another frequency or rest longer, modules have settings of their own,
observations are tuples, ids are unusual texts. Of each run we check that

* the target networks of all trained modules move exactly when they are due, each by its own ``tau``, as a slow account
  of each update says, and those of other modules never;
* modules that are not trained keep their parameters, and all others have finite ones;
* a run that was saved and loaded goes on as the run that was not.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import AddsCount
from marl_connectors import (
    Algorithm,
    ConnectorV2,
    DQNConfig,
    FlattenObservations,
    MADDPGConfig,
    MATD3Config,
    PPOConfig,
    QMIXConfig,
    SACConfig,
    VDNConfig,
)
from marl_connectors.algorithms.mappo import MAPPOConfig
from marl_connectors.rl_module.apis import TargetNetworkAPI

ALGORITHMS = {
    "ppo": PPOConfig,
    "mappo": MAPPOConfig,
    "dqn": DQNConfig,
    "sac": SACConfig,
    "vdn": VDNConfig,
    "qmix": QMIXConfig,
    "maddpg": MADDPGConfig,
    "matd3": MATD3Config,
}
TEAMS = {"vdn", "qmix", "maddpg", "matd3"}
"""Algorithms whose losses are over all agents of an env step, so the set of their modules stays as it is."""
CHANGES = (
    "nothing",
    "own loss",
    "late agent",
    "absent module",
    "added module",
    "removed module",
    "frozen module",
    "frequency",
    "delay",
    "overrides",
    "tuples",
    "ids",
)
IDS = ("team.red", "v1.0", "two words", "é", "x" * 100, "a/b", "..", "agent_0")


class TupleLife(LifeEnv):
    """A LifeEnv whose observations are tuples of two parts."""

    def observation_space(self, agent):
        whole = super().observation_space(agent)
        return spaces.Tuple([spaces.Discrete(2), spaces.Box(-1000.0, 1000.0, whole.shape, np.float32)])

    def _observe(self, agent):
        return (int(self.rng.integers(2)), self.rng.uniform(-1, 1, (2,)).astype(np.float32)), {}


class RemembersTuples(ConnectorV2):
    """A piece whose state has tuples within lists and dicts."""

    def __init__(self):
        super().__init__()
        self.seen = {"calls": (0, [(1, 2)]), "none": ()}

    def columns(self, c, xp):
        calls, kept = self.seen["calls"]
        self.seen = {**self.seen, "calls": (calls + 1, [*kept[-2:], (calls, calls + 1)])}

    def get_state(self):
        return self.seen

    def set_state(self, state):
        assert type(state["calls"]) is tuple and type(state["calls"][1][0]) is tuple and state["none"] == ()
        self.seen = state


PIECES = {
    "tuples": lambda: [RemembersTuples(), FlattenObservations()],
    "removed module": lambda: AddsCount(),  # which sees in what order rows come
}


def with_own_loss(base, module_ids):
    """A learner in which some modules have a user's own loss, which does not call the algorithm's."""

    class OwnLoss(base):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            if module_id not in module_ids:
                return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
            trained = [p for p in self.module[module_id].parameters() if p.requires_grad]
            return torch.stack([parameter.square().mean() for parameter in trained]).sum()

    return OwnLoss


def networks_of(module):
    """Copies of the parameters that a module's targets follow, and of the targets, one after another."""
    pairs = module.unwrapped().get_target_network_pairs()
    return [[parameter.detach().clone() for pair in pairs for parameter in pair[k].parameters()] for k in (0, 1)]


def watched(base):
    """A learner that holds each of its updates against a slow account of what must happen to target networks."""

    class Watched(base):
        num_moves = 0

        def build(self):
            super().build()
            self._last_due = 0

        def set_state(self, state):
            super().set_state(state)
            self._last_due = self.last_target_update

        def update(self, **kwargs):
            before = {m: networks_of(module) for m, module in self._followed()}
            results = super().update(**kwargs)
            if before:
                self._hold_against(before)
            return results

        def _followed(self):
            return [(m, own) for m, own in self.module.items() if isinstance(own.unwrapped(), TargetNetworkAPI)]

        def _hold_against(self, before):
            is_due = self.timestep - self._last_due >= self.config.target_network_update_freq
            rests = (self.num_updates - 1) % getattr(self.config, "policy_delay", 1) != 0  # the first one moves
            moves = is_due and not rests
            if moves:
                self._last_due = self.timestep
            for module_id, module in self._followed():
                after, tau = networks_of(module), self.config.get_config_for_module(module_id).tau
                trained = self.should_module_be_updated(module_id)
                for network, old, new in zip(after[0], before[module_id][1], after[1], strict=True):
                    expected = torch.lerp(old, network, tau) if moves and trained else old
                    torch.testing.assert_close(new, expected, rtol=1e-5, atol=1e-7, msg=f"targets of {module_id}")
            type(self).num_moves += moves

    return Watched


def drawn_run(seed):
    """Returns a config, what was changed, and whether modules of it can be compared in their targets."""
    rng = np.random.default_rng(seed)
    names = list(ALGORITHMS)
    name, change = names[seed % len(names)], CHANGES[(seed // len(names)) % len(CHANGES)]
    continuous = name in ("maddpg", "matd3", "sac") and rng.random() < 0.5
    action = spaces.Box(-1.0, 1.0, (2,)) if continuous else spaces.Discrete(3)
    agents = ["a", "b", "c"]
    life = {
        "agents": agents,
        "die": float(rng.choice([0.0, 0.3])),
        "join": float(rng.choice([0.0, 0.4])),
        "max_steps": int(rng.integers(3, 12)),
        "spaces_of": dict.fromkeys(agents, (BOX, action)),
    }
    modules = {agent: agent for agent in agents} if rng.random() < 0.5 else dict.fromkeys(agents, "all")
    overrides, policies_to_train, env = {}, None, LifeEnv
    config = ALGORITHMS[name]()
    learner_class = config.get_default_learner_class()
    if change == "late agent":
        life |= {"agents": [*agents, "z"], "join": 0.5, "fixed": False}
        life["spaces_of"]["z"] = (spaces.Box(-1.0, 1.0, (4,)), action)
        modules["z"] = "of z"
    elif change == "tuples":
        env = TupleLife
    elif change == "ids":
        modules = {agent: str(rng.choice(IDS)) for agent in agents}
    removes_first = change == "removed module" and name not in TEAMS and len(set(modules.values())) > 1
    if removes_first:  # of two with the same spaces, beside one with others
        life["spaces_of"]["c"] = (spaces.Box(-1.0, 1.0, (4,)), action)
    extra = ["absent"] if change in ("absent module", "removed module") and not removes_first else []
    module_ids = [*dict.fromkeys(modules.values()), *extra]
    chosen = module_ids[int(rng.integers(len(module_ids)))]
    if change == "own loss" and name not in ("vdn", "qmix"):
        learner_class = with_own_loss(learner_class, {chosen})
    elif change == "overrides":
        own = {"gamma": 0.5} if name in ("ppo", "mappo") else {"gamma": 0.5, "tau": 0.3}
        overrides = {
            chosen: {"lr": 0.002} if name in ("vdn", "qmix") else own
        }  # which have one loss for the whole team
    elif change == "frozen module" and len(module_ids) > 1 and name not in TEAMS:
        policies_to_train = [m for m in module_ids if m != chosen]
    config.environment(env, env_config=life, disable_env_checking=True)
    config.multi_agent(
        policies=set(module_ids),
        policy_mapping_fn=functools.partial(mapped, modules),
        **({} if policies_to_train is None else {"policies_to_train": policies_to_train}),
    )
    config.rl_module(model_config={"fcnet_hiddens": (4,)}, algorithm_config_overrides_per_module=overrides)
    config.env_runners(
        num_env_workers=0,
        num_envs_per_env_runner=int(rng.integers(1, 3)),
        rollout_fragment_length=int(rng.integers(1, 5)),
        env_to_module_connector=PIECES.get(change),
    )
    if change == "tuples":
        config.learners(learner_connector=lambda: FlattenObservations(as_learner_connector=True))
    if name in ("ppo", "mappo"):
        config.training(train_batch_size_per_learner=24, minibatch_size=8, num_epochs=2)
    else:
        learner_class = watched(learner_class)
        config.training(num_steps_sampled_before_learning_starts=6, train_batch_size_per_learner=4, tau=0.1)
        config.reporting(min_sample_timesteps_per_iteration=20)
        if change in ("frequency", "delay", "own loss"):
            config.training(target_network_update_freq=int(rng.choice([0, 2, 3, 5, 7, 20])))
        if name == "matd3":
            config.training(policy_delay=int(rng.integers(1, 5)) if change in ("delay", "frequency") else 2)
    config.learners(learner_class=learner_class)
    return name, change, config.debugging(seed=int(rng.integers(1000))), modules


def mapped(modules, agent_id, episode, **kwargs):
    return modules[agent_id]


def changed_while_it_runs(algo, name, change, modules):
    """Adds or removes a module between two iterations."""
    if change == "added module" and name not in TEAMS:
        first = next(iter(modules.values()))
        others = {**modules, next(iter(modules)): "new"}
        algo.add_module(
            "new",
            config_overrides={"gamma": 0.3},
            new_agent_to_module_mapping_fn=functools.partial(mapped, others),
        )
        assert first in algo.rl_module and algo.config.get_config_for_module("new").gamma == 0.3
    elif change == "removed module" and name not in TEAMS:
        others = {agent: "b" if module_id == "a" else module_id for agent, module_id in modules.items()}
        gone = "absent" if "absent" in algo.rl_module else "a"
        algo.remove_module(gone, new_agent_to_module_mapping_fn=functools.partial(mapped, others))


def parameters_of(algo):
    return {m: {k: v.clone() for k, v in own.state_dict().items()} for m, own in algo.rl_module.items()}


def check_run(seed, folder):
    name, change, config, modules = drawn_run(seed)
    about = f"seed {seed}: {name}, {change}"
    algo = config.build_algo()
    first = parameters_of(algo)
    try:
        algo.train()
        changed_while_it_runs(algo, name, change, modules)
        algo.train()
        mapping = algo.config.policy_mapping_fn
        path = algo.save_to_path(folder / "checkpoint")
        resumed = Algorithm.from_checkpoint(path, config=config, policy_mapping_fn=mapping)
        try:
            for _ in range(2):
                went_on, came_back = algo.train(), resumed.train()
                assert repr(went_on["learners"]) == repr(came_back["learners"]), about
            for module_id, own in parameters_of(algo).items():
                again = parameters_of(resumed)[module_id]
                for key, value in own.items():
                    assert torch.equal(value, again[key]), (about, module_id, key)
                    assert torch.isfinite(value.float()).all(), (about, module_id, key)
                if module_id in first and not algo.learner.should_module_be_updated(module_id):
                    assert all(torch.equal(value, first[module_id][key]) for key, value in own.items()), about
        finally:
            resumed.stop()
    finally:
        algo.stop()


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", [10, 21, 27, 34, 40, 51, 61, 71, 78, 84, 90, *fresh_seeds(90)])
def test_what_must_hold_of_every_run_holds_after_one_change(seed, tmp_path):
    check_run(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(ALGORITHMS) * len(CHANGES)))
def test_each_change_of_each_algorithm(seed, tmp_path):
    check_run(seed, tmp_path)
