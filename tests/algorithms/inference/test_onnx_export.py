"""Policies written as ONNX files: onnxruntime gives what the policies give, without torch and without this library."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.modules.policies_by_hand import give_statistics, make_policy
from helpers.modules.random_policies import random_policy
from marl_connectors import (
    ActionMasking,
    AgentIdEncoding,
    Columns,
    FrameStacking,
    MeanStdFilter,
    PPOConfig,
    PrevActionsPrevRewards,
    RLModule,
    load_policy,
)
from marl_connectors.algorithms.inference import onnx_export
from marl_connectors.algorithms.inference.export_check import act_on_samples
from marl_connectors.errors import ConfigError, MissingDependencyError, ModuleError
from marl_connectors.trees import leaves, tree_map

BOX = spaces.Box(-1.0, 1.0, (3,))
GO = spaces.Discrete(4)


def test_without_the_packages_the_error_says_how_to_install_them(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_NEEDED", ("numpy", "onnx_that_nobody_has", "neither_this"))
    with pytest.raises(MissingDependencyError, match=r"(?s)onnx_that_nobody_has.*neither_this"):
        make_policy((BOX, GO)).export_onnx(tmp_path / "export")


@pytest.fixture(scope="module")
def OnnxPolicy():
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    pytest.importorskip("onnxruntime")
    from marl_connectors import OnnxPolicy

    return OnnxPolicy


@pytest.fixture(scope="module")
def masked(OnnxPolicy, tmp_path_factory):
    """A policy with masks, filters, frames, earlier actions and rewards, agent ids and an LSTM; and its export."""
    pieces = [
        ActionMasking(source="infos"),
        MeanStdFilter(),
        AgentIdEncoding(),
        PrevActionsPrevRewards(n_prev_rewards=2),
        FrameStacking(num_frames=3),
    ]
    agents = {f"agent_{i}": (BOX, GO) for i in range(2)}
    policy = give_statistics(make_policy(agents, pieces, model_config={"use_lstm": True, "lstm_cell_size": 8}))
    return policy, policy.export_onnx(tmp_path_factory.mktemp("export") / "masked")


@pytest.fixture(scope="module")
def plain(OnnxPolicy, tmp_path_factory):
    """A policy that remembers nothing, with continuous and discrete actions, and its export."""
    space = spaces.Dict({"go": GO, "to": spaces.Box(0.0, 7.0, (2,)), "on": spaces.MultiBinary(2)})
    policy = give_statistics(make_policy((BOX, space), [MeanStdFilter()]))
    return policy, policy.export_onnx(tmp_path_factory.mktemp("export") / "plain")


def same_actions(found, expected, inputs, wanted_inputs):
    """Compares inputs up to rounding, and actions. Where two actions are as good up to rounding, these may differ."""
    is_usual = np.abs(wanted_inputs) < 1e30
    np.testing.assert_array_equal(inputs[~is_usual], wanted_inputs[~is_usual])
    scale = np.abs(wanted_inputs[is_usual]).max(initial=0.0)
    np.testing.assert_allclose(inputs[is_usual], wanted_inputs[is_usual], rtol=1e-5, atol=1e-5 * scale)
    num_apart = 0
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        else:
            num_apart += int((one != other).sum())
    assert num_apart <= max(1, len(inputs) // 2000)


def play(policy, acts, num_envs, num_steps, seed):
    """Compares a policy and its export in episodes of sampled observations, some of which end along the way."""
    rng = np.random.default_rng(seed)
    policy.reset()
    acts.reset()
    for step in range(num_steps):
        given, wanted = act_on_samples(policy, policy.agent_ids, rng, first=step == 0, num_envs=num_envs)
        found = acts.actions(**given)
        inputs = policy.newest_outputs(Columns.ACTION_DIST_INPUTS)
        for agent in wanted:
            same_actions(found[agent], wanted[agent], acts.newest_inputs(agent), inputs[agent])
        ended = rng.random(num_envs) < 0.2
        policy.reset(ended)
        acts.reset(ended)


@pytest.mark.slow
def test_ten_thousand_rows_give_what_load_policy_gives(plain, masked, OnnxPolicy):
    policy, folder = plain
    play(policy, OnnxPolicy(folder), 10_000, 1, 0)
    policy, folder = masked
    play(policy, OnnxPolicy(folder), 500, 10, 1)


@pytest.mark.parametrize("num_envs", [1, 2, 3, 5, 8, 64, 257])
def test_every_batch_size_gives_what_the_policy_gives(plain, masked, num_envs, OnnxPolicy):
    for policy, folder in (plain, masked):
        play(policy, OnnxPolicy(folder), num_envs, 4, num_envs)


def test_single_observations_give_actions_as_the_policy_does(plain, masked, OnnxPolicy):
    policy, folder = plain
    acts = OnnxPolicy(folder)
    for x in np.random.default_rng(0).uniform(-1.0, 1.0, (5, 3)).astype(np.float32):
        policy.reset()
        ours, theirs = policy(x), acts(x)
        assert {key: type(value) for key, value in theirs.items()} == {key: type(value) for key, value in ours.items()}
        assert ours["go"] == theirs["go"] and ours["on"].tolist() == theirs["on"].tolist()
        np.testing.assert_allclose(theirs["to"], ours["to"], rtol=1e-5)
    policy, folder = masked
    acts = OnnxPolicy(folder)
    policy.reset()
    for step in range(6):
        for agent in policy.agent_ids:
            given = {"reward": 0.5 * step, "info": {"action_mask": np.array([1, step % 2, 1, 1], np.int8)}}
            ours, theirs = policy(x, agent, **given), acts(x, agent, **given)
            assert type(ours) is type(theirs) is int
            assert ours == theirs


def test_agents_may_act_one_by_one_or_together(masked, OnnxPolicy):
    _, folder = masked
    together, alone = OnnxPolicy(folder), OnnxPolicy(folder)
    rng = np.random.default_rng(0)
    for step in range(5):
        seen = {agent: rng.normal(size=(4, 3)).astype(np.float32) for agent in together.agent_ids}
        rewards = {agent: rng.normal(size=4) for agent in seen}
        found = together.actions(seen, rewards=rewards, infos={agent: {} for agent in seen})
        for agent in reversed(together.agent_ids):
            assert alone(seen[agent], agent, reward=rewards[agent], info={}).tolist() == found[agent].tolist(), step


def test_sessions_share_programs_and_remember_their_own_steps(masked, OnnxPolicy):
    first = OnnxPolicy(masked[1])
    x = np.array([0.2, -0.7, 0.4], np.float32)
    first(x, "agent_0", info={})
    first(x, "agent_0", reward=1.0, info={})
    second = first.session()
    second(x, "agent_0", info={})
    fresh = OnnxPolicy(masked[1])
    fresh(x, "agent_0", info={})
    np.testing.assert_array_equal(second.newest_inputs("agent_0"), fresh.newest_inputs("agent_0"))
    assert np.abs(second.newest_inputs("agent_0") - first.newest_inputs("agent_0")).max() > 1e-4


def test_the_folder_acts_in_a_process_without_torch_and_without_this_library(masked):
    policy, folder = masked
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    assert names == ["contract.json", "default_policy.onnx", "onnx_policy.py"]
    code = (
        "import sys, json\n"
        "for name in ('torch', 'marl_connectors', 'gymnasium'):\n"
        "    sys.modules[name] = None\n"
        "from onnx_policy import OnnxPolicy\n"
        "import numpy as np\n"
        f"policy = OnnxPolicy({str(folder)!r})\n"
        "actions = [policy(np.full(3, x, np.float32), 'agent_1', reward=x, info={}) for x in (0.1, 0.2, -0.4, 0.9)]\n"
        "print(json.dumps(actions))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    policy.reset()
    expected = [policy(np.full(3, x, np.float32), "agent_1", reward=x, info={}) for x in (0.1, 0.2, -0.4, 0.9)]
    assert json.loads(done.stdout) == expected


def test_an_export_that_was_changed_is_refused(masked, tmp_path, OnnxPolicy):
    _, folder = masked
    for name, change in (
        ("contract.json", lambda content: content.replace(b'"index": 1', b'"index": 0')),
        ("default_policy.onnx", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    ):
        copy = tmp_path / name
        copy.mkdir()
        for path in (path for path in folder.iterdir() if path.is_file()):  # the runner may leave a __pycache__
            content = path.read_bytes()
            (copy / path.name).write_bytes(change(content) if path.name == name else content)
        with pytest.raises(ValueError, match="changed"):
            OnnxPolicy(copy)


def test_a_folder_without_a_contract_or_of_another_version_is_refused(tmp_path, OnnxPolicy):
    with pytest.raises(ValueError, match=r"(?s)contract.json.*export_onnx"):
        OnnxPolicy(tmp_path)
    (tmp_path / "contract.json").write_text('{"format": "marl-connectors-onnx", "format_version": 99}')
    with pytest.raises(ValueError, match=r"(?s)version 99.*version 2"):
        OnnxPolicy(tmp_path)


def test_wrong_calls_are_explained(masked, OnnxPolicy):
    acts, x = OnnxPolicy(masked[1]), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="agent"):
        acts(x)
    with pytest.raises(ValueError, match="'nobody'"):
        acts(x, "nobody")
    with pytest.raises(ValueError, match=r"(?s)\(3,\).*\(4,\)"):
        acts(np.zeros(4), "agent_0")
    with pytest.raises(ValueError, match="finite"):
        acts(np.array([0.0, np.nan, 0.0]), "agent_0")
    with pytest.raises(ValueError, match=r"(?s)\b4\b.*\b3\b"):
        acts(x, "agent_0", info={"action_mask": [1, 1, 1]})
    with pytest.raises(ValueError, match="sizes"):
        acts.actions({"agent_0": x, "agent_1": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"(?s)'agent_0'.*'action_mask'.*info=info"):
        acts(x, "agent_0")
    acts(x, "agent_0", info={})
    with pytest.raises(ValueError, match="reward="):
        acts(x, "agent_0", info={})
    with pytest.raises(ValueError, match=r"(?s)\b2\b.*\b1\b"):
        acts(np.zeros((2, 3)), "agent_0", reward=0.0, info={})
    with pytest.raises(ValueError, match="bool"):
        acts.reset([True, False])
    acts.reset()
    acts(np.zeros((2, 3)), "agent_0", info={})


@pytest.mark.slow
def test_a_program_holds_no_path_of_this_machine_and_is_the_same_each_time(plain, tmp_path):
    policy, folder = plain
    content = (folder / "default_policy.onnx").read_bytes()
    assert b".py" not in content and b"marl_connectors" not in content
    assert (policy.export_onnx(tmp_path / "again") / "default_policy.onnx").read_bytes() == content


def test_an_earlier_export_is_replaced_and_nothing_else(plain, tmp_path, monkeypatch):
    policy, folder = plain
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match="exists"):
        policy.export_onnx(tmp_path / "mine")
    before = (folder / "contract.json").read_text()

    def fails(*args, **kwargs):
        raise ModuleError("this export fails")

    monkeypatch.setattr(onnx_export, "_write", fails)
    with pytest.raises(ModuleError, match="this export fails"):
        policy.export_onnx(folder)
    assert (folder / "contract.json").read_text() == before
    assert [path.name for path in folder.parent.iterdir()] == ["plain"]


class LooksAtNumbers(RLModule):
    """Has a forward pass that depends on a number in a tensor, so that torch cannot record it."""

    def _forward(self, batch, **kwargs):
        obs = batch[Columns.OBS]
        return {Columns.ACTION_DIST_INPUTS: obs if float(obs.sum()) > 0 else -obs}


@pytest.mark.slow
def test_a_module_that_torch_cannot_record_is_named(OnnxPolicy, tmp_path):
    policy = make_policy((BOX, spaces.Discrete(3)), module_class=LooksAtNumbers)
    with pytest.raises(ModuleError, match=r"(?s)'default_policy'.*\(LooksAtNumbers\)"):
        policy.export_onnx(tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_trained_policy_of_a_checkpoint_that_is_not_trusted_can_be_exported(OnnxPolicy, tmp_path):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=200, num_epochs=1)
    algo = config.build_algo()
    algo.train()
    checkpoint = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    policy = load_policy(checkpoint, trusted=False)
    play(policy, OnnxPolicy(policy.export_onnx(tmp_path / "export")), 10_000, 1, 0)
    sampled = OnnxPolicy(policy.export_onnx(tmp_path / "sampled", explore=True))
    assert set(sampled(np.zeros((100, 4), np.float32)).tolist()) == {0, 1}


@pytest.mark.slow
def test_a_program_lacks_the_layers_and_states_of_values(OnnxPolicy, tmp_path):
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4, "vf_share_layers": False}
    with PPOConfig().environment("CartPole-v1").rl_module(model_config=model).debugging(seed=0).build_algo() as algo:
        module, checkpoint = algo.get_module(), algo.save_to_path(tmp_path / "checkpoint")
        folder = load_policy(checkpoint).export_onnx(tmp_path / "export")
        (file,) = json.loads((folder / "contract.json").read_text())["files"]
        assert [memory["input"] for memory in file["memories"]] == ["state_in.h", "state_in.c"]
        own = sum(p.numel() for name, p in module.named_parameters() if not name.startswith("vf"))
        stored = pytest.importorskip("onnx").load(folder / file["file"]).graph.initializer
        numbers = [int(np.prod(part.dims)) for part in stored if part.data_type == 1]  # float32
        assert own <= sum(numbers) < own + 20 < sum(p.numel() for p in module.parameters())
        theirs, state = OnnxPolicy(folder), None
        for observation in np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32):
            state = module.get_initial_state() if state is None else state
            batch = {Columns.OBS: torch.from_numpy(observation)[None, None]}
            batch[Columns.STATE_IN] = tree_map(lambda leaf: torch.as_tensor(leaf).reshape(1, -1), state)
            outputs = module.forward_inference(batch)
            state = outputs[Columns.STATE_OUT]
            assert theirs(observation) == int(outputs[Columns.ACTION_DIST_INPUTS].argmax())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_random_policies_give_what_load_policy_gives(number, OnnxPolicy, tmp_path):
    seed = [int(np.random.SeedSequence().generate_state(1)[0]), number]
    policy, about = random_policy(np.random.default_rng(seed))
    try:
        acts = OnnxPolicy(policy.export_onnx(tmp_path / "export"))
        for num_envs, num_steps in ((1, 4), (3, 4), (2000, 5)):
            play(policy, acts, num_envs, num_steps, number)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {about}") from error
