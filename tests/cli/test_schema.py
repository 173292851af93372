"""The JSON schema of config files says the same as the code that reads them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class, known_sections
from marl_connectors.cli.layers import tree_of_data
from marl_connectors.cli.main import main
from marl_connectors.cli.schema import documented, schema
from marl_connectors.cli.tree import short_forms
from marl_connectors.errors import ConfigError

CHECK = Draft202012Validator(schema())
CONFIGS = [config_class(algo)() for algo in ALGORITHMS]
SAMPLES = [
    *(None, True, False, -1, 0, 1, 2, 8.0, 0.5, 3e9, "auto", "torch", "sync", "bfloat16", "mse", "state", "norm"),
    *("agent_steps", "complete_episodes", "training_only", "shared", "a*=b"),
    *([], ["a"], [[0, 0.5], [10, 0.25]], [[0, "a"]], {}, {"a": {}}, {"a": 1}, {"a": "b"}, {"a": None}),
]
OBJECTS = {
    "policies_to_train",
    "callbacks_class",
    "learner_class",
    "rl_module_spec",
    "observation_space",
    "action_space",
}
PIECES = {"env_to_module_connector", "module_to_env_connector", "learner_connector"}
"""The schema does not know which objects and pieces exist."""


def is_read(data):
    """Whether an algorithm accepts the settings of a file."""
    return any(is_read_by(config, data) for config in CONFIGS)


def is_read_by(config, data):
    try:
        tree_of_data(data, "run.json", config)
    except ConfigError:
        return False
    return True


def test_it_is_a_schema():
    Draft202012Validator.check_schema(schema())


def test_the_command_prints_it(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


SETTINGS = [
    (section, name)
    for section, names in known_sections().items()
    for name in names
    if name not in PIECES | OBJECTS and not name.startswith("on_")
]


def fits(data):
    """Whether data fit the schema. Texts may also stand for numbers, lists and None, which it does not know."""
    return CHECK.is_valid(data)


@pytest.mark.few(6)
@pytest.mark.parametrize(("section", "name"), SETTINGS)
def test_a_setting_is_read_if_and_only_if_it_fits_the_schema(section, name):
    for value in SAMPLES:
        if name in ("evaluation_config", "model_config", "model_config_dict") and value:
            continue  # the schema does not know which settings it may have
        data = {section: {name: value}}
        if not isinstance(value, (str, float)):
            assert is_read(data) == fits(data), data
        elif fits(data):
            assert is_read(data), data


@pytest.mark.parametrize(
    "key", sorted(short_forms(type(CONFIGS[0])).keys() - {"env_to_module", "learner_connector", "model"})
)
def test_each_short_form_is_read_if_it_fits_the_schema(key):
    for value in [*SAMPLES, "random", "random:red*,blue*", "random2", "mappo", "relu", [4, 4], "0-2, 7", "0-", [0, 3]]:
        if key in ("mapping", "policies", "preset") and isinstance(value, str):
            continue  # the schema does not know which functions and tasks there are
        data = {key: value}
        assert is_read(data) or not fits(data), data
        assert fits(data) or not is_read(data) or isinstance(value, (str, float)), data


@pytest.mark.parametrize(
    "data",
    [{"stepss": 1}, {"training": {"lrr": 0.1}}, {"lr": 0.1}, {"training": 3}, [], "text", {"env_runners": {"lr": 1}}],
)
def test_what_is_no_setting_is_refused(data):
    assert not CHECK.is_valid(data)


def test_names_stand_for_objects_and_pieces():
    names = {
        "learners": {"learner_class": "my_package.learners:MyLearner", "learner_connector": ["ScaleRewards:scale=0.1"]},
        "callbacks": {"callbacks_class": ["a:B", "c:D"], "on_episode_end": "my_module:count"},
        "env_to_module": ["MeanStdFilter", "my_package.pieces:MyPiece:arg=3"],
    }
    assert CHECK.is_valid(names)
    assert not CHECK.is_valid({"callbacks": {"on_episode_end": "no name"}})


def test_fields_sections_and_most_settings_are_described():
    known = schema()["properties"]
    undescribed = [name for name in known if name != "$schema" and not known[name].get("description")]
    for section in known_sections():
        settings = known[section]["properties"]
        undescribed += [f"{section}.{name}" for name in settings if not settings[name].get("description")]
    assert undescribed == []


def test_descriptions_come_from_the_arguments_and_attributes_of_docstrings():
    class Settings:
        """Some settings.

        Attributes:
            one: The first
                of them.
            two: ``2`` of them.
        """

    def method():
        """Sets something.

        Args:
            three: The third.

        Raises:
            ValueError: Never.
        """

    assert documented(Settings) == {"one": "The first of them.", "two": "2 of them."}
    assert documented(method)["three"] == "The third."
