"""Which module decides for which agent."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from helpers.envs.scripted_envs import LifeEnv, ScriptEnv, Step, small_config
from marl_connectors.errors import CheckpointError, ConfigError, MappingError
from marl_connectors.names import Names, import_function
from marl_connectors.policy_mapping import (
    IndependentPolicies,
    OneAgainst,
    PatternPolicies,
    SharedPolicy,
    check_mapping,
    mapping_from_json,
    mapping_to_json,
    policy_mapping,
)

TEAMS = PatternPolicies((("adversary*", "red"), ("agent*", "green")))


def by_parity(agent_id, episode, **kwargs):
    return "even" if int(str(agent_id)[-1]) % 2 == 0 else "odd"


def test_a_shared_policy_gives_every_agent_the_same_module():
    assert SharedPolicy()("a", None) == SharedPolicy()(3, None, worker=None) == "default_policy"


def test_independent_policies_are_called_as_their_agents():
    assert IndependentPolicies()("a", None) == "a"
    assert IndependentPolicies()(("team", 1), None) == "('team', 1)"


def test_one_agent_after_the_other_plays_against_the_opponent():
    mapping = OneAgainst(TEAMS, ("agent_0", "adversary_0", "3"), "random")

    def modules(id_):
        return [mapping(agent_id, SimpleNamespace(id_=id_)) for agent_id in ("agent_0", "adversary_0")]

    assert modules("0-0") == ["green", "random"]
    assert modules("0-1") == modules("1-0") == ["random", "red"]
    assert modules("0-2") == modules("1-1") == ["random", "random"]  # agent 3 plays
    assert modules("0-3") == modules("7-5") == modules("0-0")
    shared = OneAgainst(SharedPolicy(), (*mapping.agent_ids[:2], "3"), "random")
    assert shared(3, SimpleNamespace(id_="0-2")) == "default_policy"


def test_one_team_after_the_other_plays_against_the_opponent():
    mapping = OneAgainst(SharedPolicy(), ("red*", "blue*"), "random")

    def modules(id_):
        return [mapping(agent_id, SimpleNamespace(id_=id_)) for agent_id in ("red_0", "red_1", "blue_0", "judge")]

    assert modules("0-0") == modules("1-1") == ["default_policy", "default_policy", "random", "random"]
    assert modules("0-1") == ["random", "random", "default_policy", "random"]


def test_the_first_pattern_that_matches_decides():
    mapping = PatternPolicies((("agent_1", "special"), ("agent*", "others")))
    assert mapping("agent_1", None) == "special"
    assert mapping("agent_10", None) == "others"


@pytest.mark.parametrize(
    "text", ["agent*=a,agent_0=b", "*=a,agent*=b", "agent_[01]=c,agent_1=b", "x=c,a*_*=a,a?_[01]=b"]
)
def test_a_pattern_that_an_earlier_one_hides_is_an_error_that_names_both(text):
    *_, earlier, hidden = (pair.partition("=")[0] for pair in text.split(","))
    with pytest.raises(ConfigError) as raised:
        policy_mapping(text)
    names = rf"{re.escape(repr(hidden))} .*'b'.* {re.escape(repr(earlier))} .* {re.escape(repr(hidden))}"
    assert re.search(names, str(raised.value))
    with pytest.raises(ConfigError) as in_python:
        PatternPolicies(tuple(tuple(pair.split("=")) for pair in text.split(",")))
    assert str(in_python.value) == str(raised.value)


@given(st.lists(st.text("ab*?", min_size=1, max_size=3), min_size=2, max_size=2), st.text("ab", max_size=4))
def test_no_pattern_is_called_hidden_that_decides_for_an_agent(patterns, agent_id):
    try:
        mapping = policy_mapping(f"{patterns[0]}=first,{patterns[1]}=second")
    except ConfigError:
        assert not fnmatchcase(agent_id, patterns[1]) or fnmatchcase(agent_id, patterns[0])
    else:
        assert isinstance(mapping, PatternPolicies)


@pytest.mark.parametrize(
    "text", ["agent_0=a,agent*=b", "agent?=a,agent*=b", "agent*=a,agent_0=a", "agent_1=a,agent_0=b"]
)
def test_other_patterns_may_overlap(text):
    assert isinstance(policy_mapping(text), PatternPolicies)


def test_patterns_mind_upper_and_lower_case_and_integer_agents():
    assert PatternPolicies((("[0-9]", "number"),))(7, None) == "number"
    with pytest.raises(MappingError):
        TEAMS("Agent_0", None)


def test_an_agent_without_a_pattern_is_named_with_the_patterns():
    with pytest.raises(MappingError, match=r"(?s)'prey_0'.*'adversary\*'.*'agent\*'"):
        TEAMS("prey_0", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shared", SharedPolicy()),
        (" independent ", IndependentPolicies()),
        ("adversary*=red,agent*=green", TEAMS),
        (" adversary* = red , agent*=green", TEAMS),
    ],
)
def test_a_text_stands_for_a_mapping(text, expected):
    assert policy_mapping(text) == expected


def test_a_function_is_its_own_mapping():
    assert policy_mapping(by_parity) is by_parity


@pytest.mark.parametrize("text", ["", "a=", "=b", "a=b,", "a=b,c", "a=b=c"])
def test_a_text_that_is_no_mapping_is_refused(text):
    with pytest.raises(ConfigError, match="policy_mapping_fn"):
        policy_mapping(text)


def test_a_misspelt_word_is_named_with_the_closest():
    with pytest.raises(ConfigError, match="'independent'"):
        policy_mapping("independant")
    with pytest.raises(ConfigError, match="got 3"):
        policy_mapping(3)  # pyright: ignore[reportArgumentType]


def test_a_pattern_that_matches_no_agent_is_named_with_the_agents():
    with pytest.raises(MappingError, match=r"(?s)'agent\*'.*'green'.*adversary_0.*adversary_1"):
        check_mapping(TEAMS, ["adversary_0", "adversary_1"])


def test_an_agent_without_a_pattern_is_found_before_training():
    with pytest.raises(MappingError, match="'prey_0'"):
        check_mapping(TEAMS, ["adversary_0", "agent_0", "prey_0"])


def test_patterns_that_fit_and_other_mappings_pass():
    check_mapping(TEAMS, ["adversary_0", "agent_0"])
    check_mapping(by_parity, ["no digits"])


def test_a_function_is_found_by_its_name(user_module):
    user_module("mapping_ok", "class A:\n    @staticmethod\n    def fn(agent_id, episode, **kwargs): return 'x'\n")
    assert import_function("mapping_ok:A.fn")("a", None) == "x"


def test_a_missing_module_is_named():
    with pytest.raises(ConfigError, match="'no_such_module_here'"):
        import_function("no_such_module_here:fn")


def test_a_missing_function_is_named_with_the_closest(user_module):
    user_module("mapping_typo", "def my_mapping_fn(agent_id, episode): return 'x'\n")
    with pytest.raises(ConfigError, match=r"(?s)'my_maping_fn'.*'my_mapping_fn'"):
        import_function("mapping_typo:my_maping_fn")


def test_an_error_inside_the_users_module_is_shown(user_module):
    user_module("mapping_broken", "raise RuntimeError('the dog ate it')\n")
    with pytest.raises(ConfigError, match=r"(?s)'mapping_broken'.*RuntimeError"):
        import_function("mapping_broken:fn")


def test_a_package_that_the_users_module_misses_is_named(user_module):
    user_module("mapping_needs", "import no_such_package_either\n")
    with pytest.raises(ConfigError, match=r"(?s)'mapping_needs'.*'no_such_package_either'"):
        import_function("mapping_needs:fn")


@pytest.mark.parametrize("spec", ["my_module", "my_module:", ":fn"])
def test_a_name_of_another_form_is_refused(spec):
    with pytest.raises(ConfigError, match='"my_module:my_function"'):
        import_function(spec)


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1))))
def test_patterns_survive_json(pairs):
    try:
        mapping = PatternPolicies(tuple(pairs))
    except ConfigError:  # a pattern is hidden by another one
        reject()
    assert mapping_from_json(mapping_to_json(mapping)) == mapping


def test_ready_made_mappings_survive_json():
    against = OneAgainst(TEAMS, ("agent_0", "adversary_0"), "random")
    for mapping in (SharedPolicy("team"), IndependentPolicies(), against):
        assert mapping_from_json(mapping_to_json(mapping)) == mapping


def test_a_function_of_a_module_survives_json(user_module):
    user_module("mapping_kept", "def fn(agent_id, episode, **kwargs): return 'x'\n")
    fn = import_function("mapping_kept:fn")
    data = mapping_to_json(fn)
    assert data == {"type": "function", "name": "mapping_kept:fn"}
    assert mapping_from_json(data) is fn


def test_a_lambda_leaves_a_note_that_it_has_to_be_passed_again():
    data = mapping_to_json(lambda agent_id, episode: "x")
    assert data["type"] == "not_importable"
    with pytest.raises(CheckpointError, match="function"):
        mapping_from_json(data)


def test_other_json_is_refused():
    with pytest.raises(CheckpointError, match="description"):
        mapping_from_json({"type": "magic"})
    with pytest.raises(CheckpointError, match="description"):
        mapping_from_json({"type": "one_against", "mapping": {"type": "shared"}, "agent_ids": [], "opponent": "x"})


def test_the_mapping_against_an_opponent_names_only_functions_that_are_trusted():
    data = mapping_to_json(OneAgainst(by_parity, ("a", "b"), "random"))
    assert data["mapping"]["type"] == "function"
    assert mapping_from_json(data).mapping is by_parity
    with pytest.raises(CheckpointError):
        mapping_from_json(data, Names(trusted=False))


@pytest.mark.parametrize("ids", [(0, "0"), ("1.5", 1.5), (np.int64(3), "3"), (b"a", "b'a'"), (("a", 1), "('a', 1)")])
def test_agents_whose_ids_have_the_same_text_cannot_be_independent(ids):
    with pytest.raises(MappingError, match="share") as caught:
        check_mapping(IndependentPolicies(), ["other", *ids])
    assert all(f"{agent!r} ({type(agent).__name__})" in str(caught.value) for agent in ids)
    check_mapping(SharedPolicy(), ids)


def test_an_algorithm_with_such_agents_is_not_built():
    config = small_config(lambda: LifeEnv(agents=(0, "0"))).multi_agent(policies="independent")
    with pytest.raises(MappingError, match=r"(?s)0 \(int\).*'0' \(str\)"):
        config.build_algo()


def test_a_late_agent_does_not_share_the_module_of_another():
    """The environment does not say who may join: agent "0" is not known when the modules are built."""
    script = [Step({0: 0, "b": 0}), Step({0: 1, "b": 1}), Step({0: 2, "b": 2, "0": 2})]
    config = small_config(lambda: ScriptEnv([script], possible_agents=[0, "b"]), disable_env_checking=True)
    algo = config.multi_agent(policies=["0", "b"], policy_mapping_fn="independent").build_algo()
    with pytest.raises(MappingError, match=r"(?s)0 \(int\).*'0' \(str\)"):
        algo.env_runner.sample(num_timesteps=6)
