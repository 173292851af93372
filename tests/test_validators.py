"""Validators keep what fits, as a value of Python, and refuse all else with a sentence that says what was expected."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from typing import Annotated, ClassVar

import numpy as np
import pytest

from marl_connectors.errors import ConfigError
from marl_connectors.validators import (
    ChecksFields,
    Validator,
    boolean,
    checked,
    declared,
    dict_of,
    either,
    function,
    instance_of,
    integer,
    list_of,
    number,
    one_of,
    optional,
    shown,
    subclass_of,
    text,
)


class Base:
    pass


class Derived(Base):
    pass


CASES = [
    (
        integer(min=1),
        [(1, 1), (np.uint8(3), 3), (2**63 - 1, 2**63 - 1)],
        [0, -1, 1.0, True, "1", None, 2**63, np.nan, [1]],
    ),
    (integer(min=-2, max=2), [(-2, -2), (2, 2)], [-3, 3, np.int64(3), np.bool_(True)]),
    (
        number(),
        [(1, 1.0), (-0.5, -0.5), (np.float32(0.5), 0.5)],
        [math.nan, math.inf, -math.inf, 1e39, 10**400, "1", 1j],
    ),
    (number(min=0, max=1), [(0, 0.0), (1, 1.0)], [-1e-9, 1.0001, True, None]),
    (number(above=0, max=math.inf), [(1e-9, 1e-9), (math.inf, math.inf)], [0, 0.0, -1, math.nan, 1e300]),
    (boolean(), [(True, True), (np.bool_(False), False)], [0, 1, "True", None, [], np.array([True])]),
    (text(), [("a", "a"), (np.str_("b"), "b")], ["", " ", b"a", 3, None]),
    (
        one_of("a", 0),
        [("a", "a"), (0, 0), (np.int64(0), 0), (np.str_("a"), "a")],
        ["b", False, 0.0, None, [], np.zeros(2)],
    ),
    (instance_of(Base, expected="a Base"), [], [Base, None, 3]),
    (subclass_of(Base), [(Base, Base), (Derived, Derived)], [Base(), int, None, "Base"]),
    (function(), [(len, len), (Base, Base)], [3, "len", None]),
    (list_of(integer(), "whole numbers"), [([], []), ((1, 2), (1, 2)), (range(2), [0, 1])], ["12", {1}, [1, "2"], 3]),
    (dict_of(text(), integer()), [({}, {}), (OrderedDict(a=1), {"a": 1})], [[], None, {1: 1}, {"a": "b"}]),
    (either(one_of("auto"), integer(min=1)), [("auto", "auto"), (2, 2)], ["autos", 0, None]),
    (optional(integer(min=1)), [(None, None), (2, 2)], [0, "None", False]),
]


@pytest.mark.parametrize(("validator", "good", "bad"), CASES, ids=[case[0].expected for case in CASES])
def test_what_fits_is_kept_and_the_rest_refused(validator, good, bad):
    for given, kept in good:
        found = validator.check(given, "Config.section", "setting")
        assert found == kept and type(found) is type(kept)
    for value in bad:
        with pytest.raises(ConfigError) as caught:
            validator.check(value, "Config.section", "setting")
        start = f"Config.section: setting: expected {validator.expected}, got {shown(value)}."
        assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("validator", "expected"),
    [
        (integer(), "a whole number"),
        (integer(min=0, max=5), "a whole number from 0 to 5"),
        (number(max=2_000_000), "a number up to 2000000"),
        (number(min=0, max=math.inf), "a number from 0 to infinity"),
        (number(above=0, max=1), "a number above 0 up to 1"),
        (one_of("a", "b", "c"), "'a', 'b' or 'c'"),
        (optional(one_of("a", "b")), "'a' or 'b', or None"),
        (optional(either(integer(), text(), function())), "a whole number, a text, a function, or None"),
    ],
)
def test_what_is_expected_reads_as_a_sentence(validator, expected):
    assert validator.expected == expected


def test_the_closest_choice_is_named():
    with pytest.raises(ConfigError, match=r"(?s)'nrom'.*'norm'"):
        one_of("norm", "value").check("nrom", "Config", "by")
    with pytest.raises(ConfigError, match=r"'x'\.$"):
        one_of("norm", "value").check("x", "Config", "by")


def test_a_class_that_is_given_by_its_name_is_known_from_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "costly_to_import.py").write_text("class Costly: pass")
    monkeypatch.syspath_prepend(tmp_path)
    name = "costly_to_import:Costly"
    objects, classes = instance_of(name, int, expected="a Costly or a number"), subclass_of(name)
    assert objects.accepts(3) and not objects.accepts("3")
    assert not classes.accepts(int) and not classes.accepts("Costly")
    assert "costly_to_import" not in sys.modules

    import costly_to_import  # type: ignore[import-not-found]

    assert objects.accepts(3) and objects.accepts(costly_to_import.Costly()) and not objects.accepts("3")
    assert classes.accepts(type("Own", (costly_to_import.Costly,), {})) and not classes.accepts(
        costly_to_import.Costly()
    )
    with pytest.raises(ConfigError, match=r"(?s)Costly.*'int'"):
        classes.check(int, "Config", "cls")


def test_an_abstract_class_says_what_it_lacks():
    import abc

    class Unfinished(Base, abc.ABC):
        @abc.abstractmethod
        def compute(self): ...

    with pytest.raises(ConfigError, match=r"(?s)Unfinished.*compute"):
        subclass_of(Base).check(Unfinished, "Config", "cls")


def test_a_value_is_shown_on_one_short_line():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert shown(Broken()) == "Broken whose repr() raises RuntimeError"
    assert len(shown("x" * 9999)) < 250 and len(shown([["x" * 999] * 99] * 99)) < 250


class Things(ChecksFields):
    """What is declared here and below."""

    size: Annotated[int, integer(min=1)] = 1
    name: str = ""
    kind: ClassVar[Annotated[int, integer()]] = 0
    _own: Annotated[int, integer()] = 0


class MoreThings(Things):
    size: Annotated[int, "no validator", integer(min=5)] = 5
    colour: Annotated[str, one_of("red")] = "red"


def test_a_class_declares_its_settings_and_a_subclass_its_own():
    assert [(name, v and v.expected) for name, v in declared(MoreThings).items()] == [
        ("size", "a whole number from 5"),
        ("name", None),
        ("colour", "'red'"),
    ]
    things = MoreThings()
    things.name = object()
    with pytest.raises(ConfigError, match=r"(?s)MoreThings.*\bsize\b.*\b4\b"):
        things.size = 4
    assert things.size == 5 and Things.size == 1
    assert checked(Things, "unknown", 3, "Things") == 3


def test_what_only_type_checkers_import_is_no_range():
    class Local:
        field: Annotated[NotImportedHere, integer()] = 0  # noqa: F821

    assert declared(Local) == {"field": None}


def test_a_validator_of_a_setting_that_speaks_for_itself_is_quoted():
    def keep(value):
        raise ConfigError("wrappers: expected another.")

    with pytest.raises(ConfigError, match=r"^Config.section: wrappers: expected another.$"):
        Validator("a list", keep).check(3, "Config.section", "wrappers")
