"""``marl-connectors explain``: tables or JSON, and nothing on disk."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from marl_connectors import PPOConfig
from marl_connectors.cli.made_config import configured
from marl_connectors.cli.main import main
from marl_connectors.cli.parser import build_parser
from marl_connectors.cli.python_config import load_config
from marl_connectors.errors import ConfigError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"


@pytest.fixture
def explain(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = main(["explain", *words])
        out, err = capsys.readouterr()
        assert list(tmp_path.iterdir()) == []
        return status, out, err

    return run


def test_three_tables_are_printed(explain):
    status, out, err = explain("marl_envs.null_v0", "--policies", "independent", "--num-envs", "2", "--hidden", "4")
    assert (status, err) == (0, "")
    titles = [line for line in out.splitlines() if line.endswith("Pipeline")]
    assert titles == ["EnvToModulePipeline", "ModuleToEnvPipeline", "LearnerConnectorPipeline"]
    assert "+obs [16, 16] float32" in out
    assert "+ added   ~ changed" in out
    assert max(map(len, out.splitlines())) <= 120


def test_json_has_the_same(explain):
    status, out, _ = explain("marl_envs.null_v0", "--env-config", "n_agents=3", "--num-envs", "1", "--json")
    data = json.loads(out)
    assert (status, list(data)) == (0, ["env_to_module", "module_to_env", "learner"])
    observations = data["env_to_module"]["pieces"][0]
    assert (observations["name"], observations["after"][0]["shape"][0]) == ("AddObservationsFromEpisodesToBatch", 3)


def test_the_settings_of_training_count(explain):
    _, out, _ = explain("CartPole-v1", "--num-envs", "1", "--set", "use_critic=false")
    assert "GeneralAdvantageEstimation" not in out


def test_a_wrong_word_is_one_line(explain):
    status, out, err = explain("CartPole-v1", "--steps", "10")
    assert (status, out) == (2, "")
    assert err.startswith("marl-connectors: error: explain: unknown argument '--steps'.")
    status, _, err = explain("CartPole-v0-or-so")
    assert status == 2
    assert err.count("\n") == 1


def test_the_page_has_every_option():
    _, parsers = build_parser()
    actions = [action for action in parsers["explain"]._actions if not isinstance(action, argparse._HelpAction)]
    options = {action.option_strings[0] if action.option_strings else action.metavar for action in actions}
    section = re.search(r"^## explain\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None
    table = section[1].partition("| option |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\S+?)[ `]", table, re.MULTILINE)) == options


# A config of the user's.

PIECES = """
from marl_connectors import ConnectorV2

class Notes(ConnectorV2):
    def __call__(self, *, batch, metrics, **kwargs):
        metrics.log_value("calls", 1, reduce="sum")
        return batch
"""
CONFIG = """
from marl_connectors import PPOConfig
from {pieces} import Notes

def make(number=None):
    return (
        PPOConfig()
        .environment("marl_envs.null_v0", env_config={{"n_agents": 3}})
        .env_runners(
            num_envs_per_env_runner=2, env_to_module_connector=lambda: Notes(), module_to_env_connector=lambda: Notes()
        )
        .learners(learner_connector=lambda: Notes())
        .training(train_batch_size_per_learner=12)
        .rl_module(model_config={{"fcnet_hiddens": [4]}})
    )

config = make()
without = make().environment(None)
number = 3
def breaks(): raise ValueError("no luck")
"""


@pytest.fixture
def source(tmp_path_factory, monkeypatch, request):
    """A folder with a file of pieces and one of configs, whose modules have names of their own."""
    folder = tmp_path_factory.mktemp("configs")
    number = abs(hash(request.node.name))
    (folder / f"pieces_{number}.py").write_text(PIECES)
    path = folder / f"settings_{number}.py"
    path.write_text(CONFIG.format(pieces=f"pieces_{number}"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield path
    for name in (f"pieces_{number}", path.stem):
        sys.modules.pop(name, None)


def pieces_of(out):
    return {name: [piece["name"] for piece in each["pieces"]] for name, each in json.loads(out).items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["", ":config", ":make"])
def test_a_config_has_pieces_of_its_own_in_all_pipelines(explain, source, name):
    status, out, err = explain("--config", f"{source}{name}", "--json")
    assert (status, err) == (0, "")
    assert [("Notes" in names) for names in pieces_of(out).values()] == [True] * 3
    first = json.loads(out)["env_to_module"]["pieces"]
    assert next(p for p in first if p["name"] == "NumpyToTensor")["after"][0]["shape"][0] == 6  # 3 agents, 2 copies


def test_a_module_will_do_too(explain, source, monkeypatch):
    monkeypatch.syspath_prepend(str(source.parent))
    status, out, _ = explain("--config", source.stem)
    assert status == 0
    assert out.startswith("marl_envs.null_v0: what each piece does to one batch. 2 sub-environments.")
    assert len(re.findall(r"^  Notes +items", out, re.MULTILINE)) == 3


def test_options_come_before_the_config(explain, source):
    words = ("--config", str(source), "--num-envs", "1", "--env-config", "n_agents=4", "--policies", "independent")
    status, out, _ = explain(*words, "--set", "use_critic=false", "--hidden", "3", "--json")
    names = pieces_of(out)
    assert status == 0
    assert "GeneralAdvantageEstimation" not in names["learner"]
    shapes = next(p for p in json.loads(out)["env_to_module"]["pieces"] if p["name"] == "NumpyToTensor")["after"]
    assert (sum(shape["shape"][0] for shape in shapes), len(shapes[0]["modules"])) == (4, 4)


def test_options_that_no_table_shows(source):
    old = load_config(f"{source}:make").rl_module(model_config=DefaultModelConfig(vf_share_layers=False))
    hidden = {"rl_module.model_config.fcnet_hiddens": [3]}
    tree = {"debugging.seed": 5, "environment.disable_env_checking": True, "environment.wrappers": ["m.f:1"]}
    new = configured(old.copy(), {**hidden, **tree, "multi_agent.policies": ["a"]})
    assert (new.model_config.fcnet_hiddens, new.model_config.vf_share_layers) == ([3], False)
    assert (new.seed, new.disable_env_checking, list(new.policies)) == (5, True, ["a"])
    assert len(new.wrappers) == 1
    plain = configured(load_config(str(source)), {"rl_module.model_config.vf_share_layers": True})
    assert plain.model_config == {"fcnet_hiddens": [4], "vf_share_layers": True}
    assert configured(old.copy(), {"environment.env": "marl_envs.null_v0"}).env_config == {"n_agents": 3}
    assert configured(old.copy(), {"environment.env": "CartPole-v1"}).env_config == {}


def test_another_environment_goes_with_the_pieces(explain, source):
    status, out, err = explain("CartPole-v1", "--config", f"{source}:without", "--num-envs", "1")
    assert (status, err) == (0, "")
    assert out.startswith("CartPole-v1: what each piece")
    assert len(re.findall(r"^  Notes +items", out, re.MULTILINE)) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":confg", "has no 'confg'. Did you mean 'config'?"),
        (":number", "expected 'number' of .* to be an AlgorithmConfig, such as PPOConfig.., .* but got int"),
        (":breaks", "breaks.. of .* fails: ValueError: no luck"),
        (":without", "the config has no environment"),
    ],
)
def test_errors_name_the_file_and_the_name(explain, source, name, message):
    status, out, err = explain("--config", f"{source}{name}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(message, err)
    assert name == ":without" or source.name in err


def test_a_file_that_is_missing_or_broken(explain, source):
    status, _, err = explain("--config", "no_such.py")
    assert (status, err) == (2, "marl-connectors: error: --config: there is no file 'no_such.py'. Check its path.\n")
    status, _, err = explain("--config", "no_such_module_here")
    assert status == 2
    assert "--config: there is no module 'no_such_module_here'" in err
    source.write_text("1 / 0")
    status, _, err = explain("--config", str(source))
    assert status == 2
    assert f"{source} fails: ZeroDivisionError: division by zero" in err
    assert source.stem not in sys.modules
    status, _, err = explain()
    assert (status, "name an environment, or a config that has one" in err) == (2, True)


def test_layers_of_the_default_modules_are_not_those_of_a_model_config_of_another_kind():
    @dataclasses.dataclass
    class Mine:
        width: int = 3

    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=Mine())
    with pytest.raises(ConfigError, match=r"(?s)model_config.*Mine"):
        configured(config, {"rl_module.model_config.fcnet_hiddens": [3]})


# Action masks.


def test_explain_says_what_becomes_of_masks(explain):
    words = ["marl_envs.masked_v0", "--num-envs", "1", "--hidden", "4"]
    _, out, _ = explain(*words)
    line = "Action masks: 'action_mask' in the observations of agent_0, agent_1 are applied."
    assert line in out.splitlines() and "ActionMasking" in out
    for none in (["--action-mask-key", "none"], ["--set", "action_mask_key=None"], ["--set", "action_mask_key=false"]):
        _, out, _ = explain(*words, *none)
        assert "are ignored, as action_mask_key=None says." in out and "ActionMasking" not in out
    _, out, _ = explain("marl_envs.null_v0", "--num-envs", "1")
    assert "Action masks" not in out


def test_an_option_comes_before_the_configs_own_masks(tmp_path):
    path = tmp_path / "masked_settings.py"
    path.write_text("from marl_connectors import PPOConfig\nconfig = PPOConfig().environment('marl_envs.masked_v0')\n")
    config = load_config(str(path))
    assert config.action_mask_key == "auto"
    assert configured(config, {"environment.action_mask_key": None}).action_mask_key is None
    sys.modules.pop("masked_settings", None)
