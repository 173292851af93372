"""Policies that are built without an environment, from spaces, connector pieces and settings of modules."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from msgspec.structs import replace

from marl_connectors import DefaultPPORLModule, MeanStdFilter, MultiRLModule, Policy
from marl_connectors.algorithms.inference.onnx_export import make_contract, make_programs
from marl_connectors.algorithms.inference.onnx_policy import OnnxPolicy
from marl_connectors.algorithms.inference.onnx_policy import _Program as Program
from marl_connectors.connectors.defaults import add_state_pieces, env_to_module_pipeline, module_to_env_pipeline
from marl_connectors.connectors.running_stats import StatsTable
from marl_connectors.policy_mapping import policy_mapping
from marl_connectors.typing import DEFAULT_AGENT_ID


def make_policy(
    agents,
    pieces=(),
    *,
    mapping="shared",
    model_config=None,
    module_class=DefaultPPORLModule,
    multi_class=MultiRLModule,
    module_to_env=(),
    clip_actions=False,
    normalize_actions=True,
    seed=0,
    **settings,
):
    """Returns a policy with random parameters.

    ``agents`` maps agents to their observation and action space; one pair of spaces stands for a single agent.
    """
    single = isinstance(agents, tuple)
    if single:
        whole, agents = agents, {DEFAULT_AGENT_ID: agents}
    else:
        whole = tuple(spaces.Dict([(agent, pair[kind]) for agent, pair in agents.items()]) for kind in (0, 1))
    mapping_fn, modules = policy_mapping(mapping), multi_class()
    common = {"multi_agent": not single, "observation_space": whole[0], "action_space": whole[1]}
    first = env_to_module_pipeline(list(pieces), **common)
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(seed)
        for agent in agents:
            module_id = mapping_fn(agent, None)
            if module_id not in modules:
                pair = first.observation_space, first.action_space
                seen = pair if single else tuple(space[agent] for space in pair)
                modules.add_module(module_id, module_class(*seen, model_config=dict(model_config or {})))
        for parameter in modules.parameters():
            parameter.copy_(torch.randn(parameter.shape) / max([1, *parameter.shape[-1:]]) ** 0.5)
    if modules.is_stateful():
        add_state_pieces(first)
    last = module_to_env_pipeline(
        list(module_to_env),
        stateful=modules.is_stateful(),
        clip_actions=clip_actions,
        normalize_actions=normalize_actions,
        **common,
    )
    return Policy(
        modules,
        first,
        last,
        agent_spaces=agents,
        single_agent=single,
        policy_mapping_fn=mapping_fn,
        lookback=max([1, *(getattr(piece, "lookback", 0) for piece in first)]),
        **settings,
    )


def stream_state(count, mean, squares):
    """The state of a stream of a MeanStdFilter, without vectors that are not merged yet."""
    table = StatsTable(len(mean))
    table.stream_of("a")
    nothing = table.get_state()["a"]
    return replace(nothing, count=count, mean=np.asarray(mean), squares=np.asarray(squares))


def give_statistics(policy, seed=0):
    """Gives the MeanStdFilters of a policy made-up statistics, other ones for each agent."""
    rng = np.random.default_rng(seed)
    for piece in policy.env_to_module:
        if isinstance(piece, MeanStdFilter):
            state = {}
            for key, plan in piece._plans.items():
                size = plan.how[0]
                mean = rng.normal(size=size)
                state[key] = stream_state(20, mean, 19.0 * rng.uniform(0.5, 3.0, size))
            piece.set_state(state)
            piece.update_stats = False
    return policy


def in_torch(policy, *, explore=False, seed=0):
    """Returns an OnnxPolicy whose programs torch computes, so that no file is written and onnx is not needed."""
    programs = make_programs(policy, explore)
    files = [program.description(name) for name, program in programs.items()]

    def open_file(about):
        program = programs[about["file"]]
        order = [own["name"] for own in about["inputs"]]

        def compute(feed):
            with torch.no_grad():
                return [leaf.numpy() for leaf in program(*(torch.from_numpy(feed[name]) for name in order))]

        return compute

    made = object.__new__(OnnxPolicy)
    made._set_up(make_contract(policy, programs, files, explore), [Program(own, open_file(own)) for own in files], seed)
    return made
