"""A checkpoint that somebody else has written or changed runs no code, and is taken whole or not at all."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from helpers.damaged_checkpoints import BAD_NAMES, at, described, mutate, read, watched, write
from helpers.envs.scripted_envs import small_config
from marl_connectors import Callbacks, DefaultModelConfig, MeanStdFilter, load_policy
from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.checkpoints import STATE_FILE, find_checkpoint, load_state
from marl_connectors.errors import CheckpointError, MarlConnectorsError
from marl_connectors.rl_module.rl_module import RLModuleSpec
from marl_envs import match_v0

MATCH = {"n_agents": 2, "n_actions": 3, "ep_len": 7}


def filters():
    return [MeanStdFilter()]


def match_config(**env_config):
    config = small_config("marl_envs.match_v0", env_config={**MATCH, **env_config}).multi_agent(policies="independent")
    return config.env_runners(num_envs_per_env_runner=2, num_env_workers=0)


def configs():
    """Runs that differ in what their checkpoints hold."""
    lstm = DefaultModelConfig(fcnet_hiddens=(4,), use_lstm=True, lstm_cell_size=3, max_seq_len=4)
    return {
        "filters": match_config().env_runners(env_to_module_connector=filters),
        "lstm": match_config().env_runners(num_envs_per_env_runner=1).rl_module(model_config=lstm),
        "cartpole": small_config("CartPole-v1").env_runners(num_env_workers=0),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Name to the folder of a checkpoint."""
    folders = {}
    for name, config in configs().items():
        algo = config.build_algo()
        algo.train()
        algo.metrics.log_value("own", 1.0, reduce="mean", window=3)
        folders[name] = tmp_path_factory.mktemp("saved") / name
        algo.save_to_path(folders[name])
        algo.stop()
    return folders


@pytest.fixture(scope="module")
def written(saved):
    """Name to the document and the tensors in it."""
    return {name: read(folder) for name, folder in saved.items()}


@pytest.fixture
def changed(written, tmp_path):
    """Writes a checkpoint of the ``cartpole`` or another run, in which something was replaced."""

    def change(*way, to, of="cartpole"):
        document, tensors = copy.deepcopy(written[of])
        owner = at(document["state"], *way[:-1])
        if isinstance(owner, dict) and "__dict__" in owner:
            owner["__dict__"] = [[key, to if key == way[-1] else value] for key, value in owner["__dict__"]]
        else:
            owner[int(way[-1]) if isinstance(owner, list) else way[-1]] = to
        write(tmp_path / "changed", document, tensors)
        return tmp_path / "changed"

    return change


# Names ---------------------------------------------------------------------------------------------------------------

SETTINGS = ("config", "settings")
SPEC = ("modules", "specs", "default_policy", "value")
PLACES = {
    "config class": (("config", "class_name"), lambda name: name),
    "callbacks_class": ((*SETTINGS, "callbacks_class"), lambda name: described("import", name)),
    "callbacks in a list": (
        (*SETTINGS, "callbacks_class"),
        lambda name: described("list", [described("import", name)]),
    ),
    "callbacks_on_checkpoint_loaded": (
        (*SETTINGS, "callbacks_on_checkpoint_loaded"),
        lambda name: described("import", name),
    ),
    "learner_class": ((*SETTINGS, "learner_class"), lambda name: described("import", name)),
    "env_to_module_connector": ((*SETTINGS, "env_to_module_connector"), lambda name: described("import", name)),
    "learner_connector": ((*SETTINGS, "learner_connector"), lambda name: described("import", name)),
    "policy_mapping_fn": ((*SETTINGS, "policy_mapping_fn"), lambda name: {"type": "function", "name": name}),
    "policy_mapping_fn, dataclass": (
        (*SETTINGS, "policy_mapping_fn"),
        lambda name: {"type": "dataclass", "name": name, "fields": {"args": ["touch", "broken-in"]}},
    ),
    "policies_to_train": ((*SETTINGS, "policies_to_train"), lambda name: described("import", name)),
    "env, object": ((*SETTINGS, "env"), lambda name: {"type": "object", "name": name}),
    "env, name": ((*SETTINGS, "env"), lambda name: {"type": "name", "name": name}),
    "env, module": ((*SETTINGS, "env"), lambda name: {"type": "name", "name": name.partition(":")[0]}),
    "wrappers, object": (
        (*SETTINGS, "wrappers"),
        lambda name: [{"type": "object", "name": name, "kwargs": [["args", "['touch', 'broken-in']"]]}],
    ),
    "wrappers, name": ((*SETTINGS, "wrappers"), lambda name: [{"type": "name", "name": f"{name.replace(':', '.')}:1"}]),
    "env_config": (
        (*SETTINGS, "env_config"),
        lambda name: described("dict", [["gravity", described("import", name)]]),
    ),
    "model_config, dataclass": (
        (*SETTINGS, "model_config"),
        lambda name: described("dataclass", {"args": described("list", ["touch", "broken-in"])}, **{"class": name}),
    ),
    "evaluation_config": (
        (*SETTINGS, "evaluation_config"),
        lambda name: described("dict", [["callbacks_class", described("import", name)]]),
    ),
    "module_class": ((*SPEC, "module_class"), lambda name: described("import", name)),
    "catalog_class": ((*SPEC, "catalog_class"), lambda name: described("import", name)),
    "model_config of a module": (
        (*SPEC, "model_config"),
        lambda name: described("dataclass", {"args": described("list", ["touch", "broken-in"])}, **{"class": name}),
    ),
    "a plain setting": ((*SETTINGS, "gamma"), lambda name: described("import", name)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("place", PLACES)
def test_a_name_leads_nowhere_but_to_what_is_expected_in_its_place(place, changed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    way, make = PLACES[place]
    imported = set(sys.modules)
    for i, name in enumerate(BAD_NAMES):
        path = changed(*way, to=make(name))
        with watched() as seen:
            with pytest.raises(CheckpointError):
                Algorithm.from_checkpoint(path, trusted=i % 3 > 0)
            if i % 3 == 1:
                with contextlib.suppress(CheckpointError):  # what is not for acting is not looked at
                    load_policy(path)
        assert not seen, (name, seen)
    assert not {"antigravity", "this", "runpy"} & (set(sys.modules) - imported)
    assert os.listdir(tmp_path) == ["changed"]


def test_the_checkpoint_of_the_report_is_refused(changed, tmp_path):
    """A dataclass "subprocess:check_call" was called with keyword arguments."""
    target = tmp_path / "broken-in"
    kind = described(
        "dataclass", {"args": described("list", ["touch", str(target)])}, **{"class": "subprocess:check_call"}
    )
    for way in ((*SETTINGS, "model_config"), (*SPEC, "model_config")):
        path = changed(*way, to=kind)
        for load in (load_policy, Algorithm.from_checkpoint):
            with pytest.raises(CheckpointError, match="'subprocess'"):
                load(path)
    assert not target.exists()


STRANGERS_CODE = """
import pathlib
from dataclasses import dataclass
from marl_connectors import Callbacks, PPOConfig
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

pathlib.Path(__file__).with_name("imported").touch()

def mapping(agent_id, episode, **kwargs): return str(agent_id)
def pieces(): return []
def wrap(env): return env
class Module(DefaultPPORLModule): pass
class Told(Callbacks): pass
class Config(PPOConfig): pass
@dataclass
class Model:
    fcnet_hiddens: tuple = (4,)
@dataclass(frozen=True)
class Mapping:
    prefix: str = ""
    def __call__(self, agent_id, episode=None, **kwargs): return f"{self.prefix}{agent_id}"
def make(**config):
    from marl_envs import match_v0
    return match_v0.parallel_env(**config)
"""


@pytest.fixture
def strangers_code(tmp_path, monkeypatch):
    (tmp_path / "strangers_code.py").write_text(STRANGERS_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    sys.modules.pop("strangers_code", None)


OWN = {
    "config": lambda code: code.Config().update_from_dict(match_config().to_dict()),
    "mapping": lambda code: match_config().multi_agent(policy_mapping_fn=code.mapping),
    "mapping, dataclass": lambda code: match_config().multi_agent(policy_mapping_fn=code.Mapping("")),
    "mapping of evaluations": lambda code: match_config().evaluation(
        evaluation_config={"policy_mapping_fn": code.Mapping("")}
    ),
    "pieces": lambda code: match_config().env_runners(env_to_module_connector=code.pieces),
    "callbacks": lambda code: match_config().callbacks(callbacks_class=[Callbacks, code.Told]),
    "module": lambda code: match_config().rl_module(rl_module_spec=RLModuleSpec(code.Module)),
    "env": lambda code: match_config().environment(code.make),
    "env by name": lambda code: match_config().environment("strangers_code:make"),
    "wrappers": lambda code: match_config().environment(wrappers=[code.wrap]),
    "wrappers by name": lambda code: match_config().environment(wrappers=["strangers_code.wrap"]),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", OWN)
def test_what_is_the_users_own_is_imported_with_trust_and_not_without(kind, strangers_code, tmp_path):
    import strangers_code as code

    algo = OWN[kind](code).build_algo()
    path = algo.save_to_path(tmp_path / "c")
    del sys.modules["strangers_code"]
    strangers_code.unlink()
    with pytest.raises(CheckpointError, match="'strangers_code'"):
        Algorithm.from_checkpoint(path, trusted=False)
    if kind.partition(" ")[0] in ("callbacks", "env", "wrappers") or kind == "mapping of evaluations":
        load_policy(path, trusted=False)  # these have no part in acting
    else:
        with pytest.raises(CheckpointError, match="'strangers_code'"):
            load_policy(path, trusted=False)
    assert not strangers_code.exists()
    loaded = Algorithm.from_checkpoint(path)
    assert strangers_code.exists()
    assert loaded.config.to_dict().keys() == algo.config.to_dict().keys()


def test_a_run_of_the_library_alone_is_loaded_without_trust(saved):
    for name in ("lstm", "cartpole"):
        assert Algorithm.from_checkpoint(saved[name], trusted=False).iteration == 1
        assert load_policy(saved[name], trusted=False)


def test_what_is_passed_again_needs_no_trust(saved):
    config = configs()["filters"]
    with pytest.raises(CheckpointError, match="trusted=False"):
        Algorithm.from_checkpoint(saved["filters"], trusted=False)
    assert Algorithm.from_checkpoint(saved["filters"], config=config, trusted=False).iteration == 1
    assert load_policy(saved["filters"], config=config, trusted=False)


def test_restoring_into_a_run_follows_names_only_with_trust(tmp_path, strangers_code):
    import strangers_code as code

    algo = match_config().build_algo()
    algo.set_policy_mapping_fn(code.mapping)
    path = algo.save_to_path(tmp_path / "c")
    other = match_config().build_algo()
    with pytest.raises(CheckpointError, match=r"(?s)policy_mapping_fn.*trusted=False"):
        other.restore_from_path(path, trusted=False)
    other.restore_from_path(path)
    assert other.config.policy_mapping_fn is code.mapping


def test_layers_and_number_types_in_the_settings_of_the_user_come_back(tmp_path):
    own = {"dtype": np.float32, "fill": torch.nn.init.ones_, "kind": float}
    config = match_config().environment(match_v0.parallel_env, reset_options={**own, "layer": torch.nn.ReLU})
    path = config.build_algo().save_to_path(tmp_path / "with a layer")
    assert Algorithm.from_checkpoint(path).config.reset_options == {**own, "layer": torch.nn.ReLU}
    path = config.environment(reset_options=own).build_algo().save_to_path(tmp_path / "without")
    assert Algorithm.from_checkpoint(path, trusted=False).config.reset_options == own


def test_a_load_state_path_in_a_checkpoint_is_not_followed(changed, saved):
    path = changed(*SPEC, "load_state_path", to=str(saved["lstm"]))
    assert Algorithm.from_checkpoint(path).iteration == 1
    assert load_policy(path)


def test_settings_cannot_replace_methods(written, tmp_path):
    for name in ("validate", "copy", "_is_frozen", "__class__", "to_dict"):
        document, tensors = copy.deepcopy(written["cartpole"])
        document["state"]["config"]["settings"][name] = None
        write(tmp_path / "c", document, tensors)
        with pytest.raises(CheckpointError):
            Algorithm.from_checkpoint(tmp_path / "c")


# The folder of a run -------------------------------------------------------------------------------------------------


@pytest.fixture
def run(saved, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    shutil.copytree(saved["cartpole"], tmp_path / "run" / "checkpoints" / "000001")
    shutil.copytree(saved["cartpole"], tmp_path / "outside")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "text", ["../../outside", "/etc", "{outside}", "000001/../../../outside", "..", ".", "", "\0", "a\nb", "x" * 9999]
)
def test_latest_names_a_folder_beside_it_or_nothing(run, text):
    latest = run / "checkpoints" / "latest"
    latest.write_text(text.format(outside=run.parent / "outside"))
    with pytest.raises(CheckpointError, match=r"(?s)latest.*folder"):
        find_checkpoint(run)
    latest.write_text("000001\n")
    assert find_checkpoint(run) == run / "checkpoints" / "000001"


def test_latest_that_is_no_text_or_leads_out_by_a_link_is_refused(run):
    latest = run / "checkpoints" / "latest"
    latest.write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="text"):
        load_policy(run)
    (run / "checkpoints" / "000002").symlink_to(run.parent / "outside")
    latest.write_text("000002")
    with pytest.raises(CheckpointError, match="outside"):
        load_policy(run)
    latest.unlink()
    latest.mkdir()
    with pytest.raises(CheckpointError, match="text"):
        load_policy(run)


# Damage --------------------------------------------------------------------------------------------------------------

EPISODE = ("env_runner", "sub_environments", "0", "episode")


@pytest.mark.parametrize(
    ("way", "value", "words"),
    [
        (("iteration",), "3", r"`AlgorithmState.iteration`: Expected `int`"),
        (("iteration",), True, r"`AlgorithmState.iteration`: Expected `int`"),
        (("env_runner", "noise_step"), -1, r"`AlgorithmState.env_runner.noise_step`: Expected `int` >= 0"),
        (("env_runner", "num_env_steps"), 10**30, r"`AlgorithmState.env_runner.num_env_steps`: Expected `int`"),
        (("env_runner", "num_samples"), -1, r"`AlgorithmState.env_runner.num_samples`: Expected `int` >= 0"),
        (("env_runner", "sub_environments", "0", "uncredited_reward"), "0", r"uncredited_reward`: Expected `float`"),
        (("env_runner", "sub_environments", "0", "finished"), [[0, 0, 0]], r"(?s)finished\[0\].*object"),
        ((*EPISODE, "groups", "0", "lanes", "0", "place"), -1, r"groups\[0\].lanes\[0\].place`: Expected `int` >= 0"),
        ((*EPISODE, "groups", "0", "lanes"), [], r"(?s)groups\[0\].*Expected.*\b0\b"),
        (("config", "settings", "num_envs_per_env_runner"), 10**9, "num_envs_per_env_runner is 1000000000"),
        (("config", "settings", "num_env_runners"), "1", "num_env_runners"),
        (
            ("agents", "agents", "0", "__tuple__", "1"),
            -1,
            r"`AlgorithmState.agents.agents\[0\]\[1\]`: Expected `int` >= 0",
        ),
        (("learner", "num_updates"), {}, r"`PPOLearnerState.num_updates`: Expected `int`"),
        (("metrics", "0", "reduce"), "eval", r"`AlgorithmState.metrics\[0\].reduce`"),
    ],
)
def test_a_value_of_another_kind_is_named_by_its_place(changed, way, value, words):
    path = changed(*way, to=value)
    for load in (Algorithm.from_checkpoint, load_policy):
        if load is load_policy and ("num_envs" in way[-1] or way[0] == "learner"):
            continue  # which has no part in acting
        with pytest.raises(CheckpointError, match=words):
            load(path)


CHANGES = {
    "another type": lambda array: array.astype(np.float16 if array.dtype.kind == "f" else np.int16),
    "floats": lambda array: array.astype(np.float32 if array.dtype == np.float64 else np.float64),
    "an axis more": lambda array: array[..., None],
    "more numbers": lambda array: np.stack([array] * 2, axis=-1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("column", ["actions", "rewards", "t", "obs"])
def test_what_the_environment_gave_to_ongoing_episodes_is_of_its_spaces(column, change, written, tmp_path):
    document, tensors = written["filters"]
    key = "/".join([*EPISODE, "groups", "0", "rollout", "layers", column, "0"])
    write(tmp_path / "c", copy.deepcopy(document), {**tensors, key: CHANGES[change](tensors[key])})
    with pytest.raises(CheckpointError, match=column):
        Algorithm.from_checkpoint(tmp_path / "c")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("column", ["action_dist_inputs", "action_logp"])
def test_what_modules_gave_to_ongoing_episodes_goes_on_or_is_an_error_of_the_library(column, change, written, tmp_path):
    document, tensors = written["cartpole"]
    key = "/".join([*EPISODE, "groups", "0", "rollout", "layers", column, "0"])
    write(tmp_path / "c", copy.deepcopy(document), {**tensors, key: CHANGES[change](tensors[key])})
    load_changed("cartpole", tmp_path / "c", from_checkpoint=True)


def act(policy, name):
    if name == "cartpole":
        policy(np.zeros(4, np.float32))
    else:
        policy.actions({agent_id: np.zeros(3, np.float32) for agent_id in ("agent_0", "agent_1")})


def load_changed(name, path, *, from_checkpoint):
    """Loads a checkpoint and goes on with it; a CheckpointError is fine, and other errors of ours once it is loaded."""
    try:
        loaded = Algorithm.from_checkpoint(path) if from_checkpoint else load_policy(path)
    except CheckpointError:
        return False
    with contextlib.suppress(MarlConnectorsError):
        if not from_checkpoint:
            act(loaded, name)
        elif loaded.config.train_batch_size_per_learner < 1000 and loaded.config.num_epochs < 100:
            loaded.train()
    if from_checkpoint:
        loaded.stop()
    return True


@pytest.fixture
def bounded_memory():
    """Numbers that were made huge fail at once, and do not fill the machine's memory first."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def check_mutations(written, tmp_path, seeds):
    """Each mutated checkpoint is refused with a CheckpointError or works; nothing is written, nothing is started."""
    outcomes = {True: 0, False: 0}
    for seed in seeds:
        rng = random.Random(seed)
        name = rng.choice(sorted(written))
        document, tensors = mutate(rng, *written[name])
        workers = document["state"].get("config") if isinstance(document["state"], dict) else None
        settings = workers.get("settings") if isinstance(workers, dict) else None
        if isinstance(settings, dict):  # processes for environments and recordings are what the config asks for
            settings["num_env_workers"] = 0
            if isinstance(settings.get("output"), str):
                settings["output"] = None
        write(tmp_path / "mutated", document, tensors)
        try:
            with watched() as seen, warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # numbers beyond what floats hold
                outcomes[load_changed(name, tmp_path / "mutated", from_checkpoint=rng.random() < 0.3)] += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {name}: {error!r}") from error
        assert not seen, f"seed {seed}, {name}: {seen}"
    return outcomes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded by what Linux has for that")
def test_mutated_checkpoints_are_refused_or_work(written, tmp_path, bounded_memory):
    outcomes = check_mutations(written, tmp_path, range(200))
    assert min(outcomes.values()) > 10, outcomes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded by what Linux has for that")
def test_many_mutated_checkpoints_are_refused_or_work(written, tmp_path, bounded_memory):
    first = random.SystemRandom().randrange(2**32)
    print(f"seeds from {first}")
    check_mutations(written, tmp_path, range(first, first + 1000))


def test_flipped_bytes_are_found(saved, tmp_path):
    rng = random.Random(0)
    for i in range(60):
        shutil.copytree(saved["lstm"], tmp_path / str(i))
        file = rng.choice(sorted((tmp_path / str(i)).iterdir()))
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        try:
            state = load_state(tmp_path / str(i))
        except CheckpointError:
            continue
        assert repr(state) == repr(load_state(saved["lstm"])), "white space or a version may differ, nothing else"


# Restoring into a run ------------------------------------------------------------------------------------------------


def weights(algo):
    return {m: {k: v.numpy().tobytes() for k, v in s.items()} for m, s in algo.rl_module.get_state().items()}


def broken(state, where):
    """A state that is found to be wrong only when most of it was taken over."""
    state = copy.deepcopy(state)
    if where == "pieces":
        state.env_runner.env_to_module = {"Other": {}}
    elif where == "actions":
        state.env_runner.sub_environments[1].episode.actions.items[0][:] = 0
    elif where == "moments":
        optimizer = state.learner["optimizers"]["agent_1"]
        optimizer.adam = optimizer.adam[:-1]
    return state


@pytest.mark.few(1)
@pytest.mark.parametrize("where", ["pieces", "actions", "moments"])
def test_a_restore_that_fails_leaves_the_run_as_it_was(where, tmp_path):
    first, other = match_config().build_algo(), match_config().debugging(seed=3).build_algo()
    undisturbed = match_config().debugging(seed=3).build_algo()
    first.train()
    for algo in (other, undisturbed):
        algo.train()
    before = weights(other)
    with pytest.raises(CheckpointError):
        other.set_state(broken(first.get_state(), where))
    assert weights(other) == before
    assert (other.seed, other.iteration) == (3, 1)
    for _ in range(2):
        other.train(), undisturbed.train()
    assert weights(other) == weights(undisturbed)


def test_a_restore_that_fails_and_cannot_be_undone_says_so(tmp_path, monkeypatch):
    first, other = match_config().build_algo(), match_config().build_algo()
    other.train()
    state = broken(replace(first.get_state(), iteration=5), "pieces")
    monkeypatch.setattr(other.learner, "set_state", lambda state: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(CheckpointError, match="go back"):
        other.set_state(state)


def test_a_checkpoint_that_cannot_be_taken_over_closes_the_environments(changed, monkeypatch):
    stopped = []
    monkeypatch.setattr(Algorithm, "stop", lambda self: stopped.append(self))
    path = changed("env_runner", "env_to_module", to={"Other": {}})
    with pytest.raises(CheckpointError, match="env_runner"):
        Algorithm.from_checkpoint(path)
    assert len(stopped) == 1


def test_the_version_of_the_format_is_a_whole_number_from_1(written, tmp_path):
    document, tensors = copy.deepcopy(written["cartpole"])
    for version in (0, -1, True, 1.0, "1", None, [1], 10**100):
        write(tmp_path / "c", document | {"format_version": version}, tensors)
        with pytest.raises(CheckpointError, match=r"format.version"):
            load_state(tmp_path / "c")
    text = (tmp_path / "c" / STATE_FILE).read_text()
    assert text.count('"format_version"') == 1
