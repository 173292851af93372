"""Validators for settings, which can be combined, and the statement that declares a setting.

A section of a config declares each of its settings once, with its type, its range, its meaning and its default::

    gamma: float = setting(number(min=0, max=1), "Discount per agent step.", default=0.99, per_module=True)

``checked`` compares a value with that line, and returns the value to keep: numbers of numpy become Python numbers, and
a value that may be given in several forms is brought into one form. Dataclasses whose fields are described elsewhere
write the range into the annotation: ``gamma: Annotated[float, number(min=0, max=1)] = 0.99``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, cast, get_origin

from marl_connectors.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**kwargs: Any) -> Any:
        """Does nothing: it only speaks to type checkers, and Python 3.10 lacks it."""
        return lambda found: found


Schema: TypeAlias = Mapping[str, Any] | None
"""A JSON schema of the data that stands for a value; None if no data does."""
IMPORTABLE: Schema = {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}
"""The schema of ``"module:name"``, by which a file names a class, a function or another object."""


class Unfit(Exception):
    """Raised for a value that a validator refuses. Its text, if there is one, gives the user more details."""


class Validator:
    """Says which values a setting may have.

    Attributes:
        alternatives: The possible endings of the sentence "expected ...".
        keep: Returns the value to keep. It raises Unfit for a refused value, or a ConfigError of its own that says what
            is expected.
        schema: The JSON schema of the data by which a file gives such a value; None if the value is no data.
    """

    def __init__(self, expected: str | Sequence[str], keep: Callable[[Any], Any], schema: Schema = None):
        """Makes a validator from its words, its function and its schema."""
        self.alternatives = (expected,) if isinstance(expected, str) else tuple(expected)
        self.keep = keep
        self.schema = schema

    @property
    def expected(self) -> str:
        """The text after "expected" in an error."""
        return _listed(self.alternatives, ",")

    def accepts(self, value: Any) -> bool:
        """Whether a value is accepted."""
        try:
            self.keep(value)
        except (Unfit, ConfigError):
            return False
        return True

    def check(self, value: Any, who: str, setting: str) -> Any:
        """Returns the validated, normalised value.

        Args:
            value: The value to check.
            who: The class or function that got the value, for the message.
            setting: The name of the setting, for the message.

        Raises:
            ConfigError: If the value is refused. The message says what was expected and what came.
        """
        try:
            return self.keep(value)
        except Unfit as unfit:
            more = f" {unfit}" if str(unfit) else ""
            raise ConfigError(f"{who}: {setting}: expected {self.expected}, got {shown(value)}.{more}") from None
        except ConfigError as error:
            raise ConfigError(f"{who}: {error}") from error


def shown(value: Any) -> str:
    """Formats a value as messages show it: on one line, and shortened if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        return f"{type(value).__name__} whose repr() raises {type(error).__name__}"
    return text if len(text) <= 200 else " ".join(reprlib.repr(value).split())[:200]


# What a class declares ----------------------------------------------------------------------------------------------

_Value = TypeVar("_Value")
_Class = TypeVar("_Class", bound=type)
_OWN = "_own_settings"


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A short form of a setting: an option of the command line, and a key at the top of a file with settings.

    Attributes:
        words: The option with what stands for its value in ``--help``, such as ``"--steps N"``. One word without dashes
            for an argument without a name.
        group: The heading under which ``--help`` lists it.
        about: What ``--help`` says about it.
        key: The key in files; that of the flag if it is empty.
        is_opposite: Whether True stands for False, as for ``--env-check`` and ``disable_env_checking``.
    """

    words: str
    group: str
    about: str
    key: str = ""
    is_opposite: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.flag.lstrip("-").replace("-", "_").lower())

    @property
    def flag(self) -> str:
        """The option alone, such as ``"--steps"``."""
        return self.words.partition(" ")[0]

    @property
    def metavar(self) -> str:
        """What stands for its value."""
        return self.words.partition(" ")[2]


@dataclasses.dataclass
class Setting:
    """What a class declares of one of its settings. ``setting`` says what the fields mean.

    Attributes:
        name: The name of the attribute.
        validator: The validator; None if any value is accepted.
        annotation: The text of the type, for signatures.
    """

    validator: Validator | None
    doc: str = ""
    default: Any = None
    alias: str | None = None
    kw_only: bool = True
    per_module: bool | None = None
    in_evaluations: bool = False
    fixed: bool = False
    changeable: bool | None = None
    options: tuple[Option, ...] = ()
    name: str = ""
    annotation: Any = Any

    def __set_name__(self, owner: type, name: str) -> None:
        """Keeps the setting beside the class, whose attribute is the default, so that a subclass can assign another."""
        self.name = name
        if _OWN not in vars(owner):
            setattr(owner, _OWN, {})
        vars(owner)[_OWN][name] = self
        setattr(owner, name, self.default)


def setting(
    validator: Validator,
    doc: str,
    *,
    default: _Value,
    alias: str | None = None,
    kw_only: bool = True,
    converter: Any = None,
    per_module: bool | None = None,
    in_evaluations: bool = False,
    fixed: bool = False,
    changeable: bool | None = None,
    option: Option | tuple[Option, ...] = (),
) -> _Value:
    """Declares a setting of a section or of a config.

    The class has it as ``gamma: float = setting(number(min=0, max=1), "Discount per agent step.", default=0.99)``.

    Args:
        validator: Says which values it may have.
        doc: What it means: for ``help()``, the JSON schema and the documentation.
        default: Its value unless it is set. A subclass may assign another one, ``gamma = 0.9``.
        alias: The name of the argument that sets it, if that is not the setting's own.
        kw_only: False if the argument may come without its name.
        converter: ``Given[...]`` with the type of the values that it may be given, for type checkers, if that is wider
            than the type of the values that it keeps.
        per_module: Whether modules may have values of their own. None: yes for settings that a subclass of
            ``AlgorithmConfig`` adds, no for others.
        in_evaluations: Whether evaluations may have another value (``evaluation_config``).
        fixed: Whether a run that goes on from a checkpoint cannot change it, because its modules, learners and ongoing
            episodes depend on it, or because it is a value at the beginning, in whose place the checkpoint has a later
            one.
        changeable: Whether ``train --resume`` takes another value for it; None for what holds for its section.
        option: Its short form for the command line and for files, or several of them.
    """
    flags = {"per_module": per_module, "in_evaluations": in_evaluations, "fixed": fixed, "changeable": changeable}
    options = (option,) if isinstance(option, Option) else option
    return cast(Any, Setting(validator, doc, default, alias, kw_only, **flags, options=options))


@dataclass_transform(kw_only_default=True, field_specifiers=(setting,))
def section(cls: _Class) -> _Class:
    """Marks a class whose fields are settings, so that editors and type checkers know them as keyword arguments.

    No object is made of the class: a config inherits its settings, and has a method that sets them (``chain``).
    """
    return cls


class Given(Generic[_Value]):
    """The type of the values that a setting may be given, for type checkers: ``converter=Given[str | None]``."""

    def __new__(cls, value: _Value, /) -> Any:
        """Never called."""
        raise NotImplementedError


def checked(cls: type, setting: str, value: Any, who: str) -> Any:
    """Returns a setting's value in the form to keep. If ``cls`` declares no range for a setting, any value is accepted.

    Raises:
        ConfigError: If the value is refused.
    """
    validator = declared(cls).get(setting)
    return value if validator is None else validator.check(value, who, setting)


@functools.cache
def declared(cls: type) -> Mapping[str, Validator | None]:
    """Returns the settings that a class and its bases declare, with their validators; None for one of any value."""
    return {name: each.validator for name, each in settings_of(cls).items()}


@functools.cache
def settings_of(cls: type) -> Mapping[str, Setting]:
    """Returns the settings that a class and its bases declare, by name, those of the first base first.

    A setting is declared by ``setting``, or by an annotation alone: ``bonus: Annotated[float, number(min=0)] = 0.5``.
    An annotation without a validator does not replace the validator of a base class.
    """
    found: dict[str, Setting] = {}
    for base in cls.__bases__:
        found.update(settings_of(base))
    for base in reversed(cls.__mro__):
        for name, own in _own_settings(base).items():
            if own.validator is not None or name not in found:
                found[name] = own
    return found


@functools.cache
def _own_settings(cls: type) -> Mapping[str, Setting]:
    """Returns the settings that a class itself declares."""
    found: dict[str, Setting] = {}
    own, annotations = vars(cls).get(_OWN, {}), inspect.get_annotations(cls)
    for name in dict.fromkeys([*annotations, *own]):
        annotation = annotations.get(name, Any)
        if name in own:
            found[name] = dataclasses.replace(own[name], annotation=annotation)
            continue
        kind = _evaluated(annotation, cls)
        if name.startswith("_") or get_origin(kind) is ClassVar:
            continue
        notes = kind.__metadata__ if get_origin(kind) is Annotated else ()
        validator = next((note for note in notes if isinstance(note, Validator)), None)
        options = tuple(note for note in notes if isinstance(note, Option))
        found[name] = Setting(validator, options=options, name=name, annotation=annotation)
    return found


def _evaluated(annotation: Any, cls: type) -> Any:
    """Returns the type that a text annotation stands for; None if it uses a name that only type checkers import."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(vars(sys.modules[cls.__module__])))
    except Exception:  # a user's own annotation, which nothing else evaluates
        return None


class ChecksFields:
    """A base for dataclasses that check their fields against the annotations whenever these are set."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, checked(type(self), name, value, self._who()))

    @classmethod
    def _who(cls) -> str:
        """Returns the first word of messages."""
        return cls.__name__


# Numbers ------------------------------------------------------------------------------------------------------------

_LARGEST = 2**63 - 1
_LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


def _plain(value: Any) -> Any:
    """Converts a scalar of numpy to one of Python; keeps other values. The command line runs this without numpy."""
    numpy = sys.modules.get("numpy")  # which has been imported where such a value can come from
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def integer(min: int | None = None, max: int = _LARGEST) -> Validator:
    """Accepts whole numbers of Python or numpy, but no bool and no float such as 8.0."""

    def keep(value: Any) -> int:
        number = _plain(value)
        if isinstance(number, bool) or not isinstance(number, int):
            raise Unfit
        if number > max or (min is not None and number < min):
            raise Unfit("The largest one is 2**63 - 1." if number > max == _LARGEST else "")
        return operator.index(number)

    most = None if max == _LARGEST else max
    return Validator(f"a whole number{_range(min, most)}", keep, _schema("integer", minimum=min, maximum=most))


def number(min: float | None = None, max: float | None = None, *, above: float | None = None) -> Validator:
    """Accepts numbers of Python or numpy that float32 can hold, but no bool and no NaN. Infinity needs ``max=inf``.

    Args:
        min: The smallest number.
        max: The largest number; ``math.inf`` if it may be infinite.
        above: A bound that the number must exceed, instead of ``min``.
    """

    def keep(value: Any) -> float:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Unfit
        if not -_LARGEST_FLOAT32 <= value <= _LARGEST_FLOAT32 and not (max == math.inf and value == math.inf):
            raise Unfit
        if (min is not None and value < min) or (above is not None and value <= above):
            raise Unfit
        if max is not None and value > max:
            raise Unfit
        return float(value)

    most = None if max == math.inf else max
    schema = _schema("number", minimum=min, exclusiveMinimum=above, maximum=most)
    return Validator(f"a number{_range(min, max, above)}", keep, schema)


def _schema(kind: str, **bounds: Any) -> Schema:
    return {"type": kind, **{name: bound for name, bound in bounds.items() if bound is not None}}


def _range(min: float | None, max: float | None, above: float | None = None) -> str:
    low = f" above {above:.15g}" if above is not None else f" from {min:.15g}" if min is not None else ""
    if max is None:
        return low
    high = "infinity" if max == math.inf else f"{max:.15g}"
    return f"{low} {'up to' if above is not None or not low else 'to'} {high}"


# Words and switches -------------------------------------------------------------------------------------------------


def boolean() -> Validator:
    """Accepts True and False of Python or numpy, but not 0 and 1."""

    def keep(value: Any) -> bool:
        if not isinstance(_plain(value), bool):
            raise Unfit
        return bool(value)

    return Validator("True or False", keep, {"type": "boolean"})


Switch = Annotated[bool, boolean()]
"""The type of settings that are on or off."""


def text(expected: str = "a text") -> Validator:
    """Accepts texts that are not empty."""

    def keep(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise Unfit
        return str(value)

    return Validator(expected, keep, {"type": "string", "pattern": r"\S"})


def one_of(*choices: Any, hint: str = "") -> Validator:
    """Accepts one of a few values, which must also be of the same type.

    Args:
        *choices: The values.
        hint: What a message adds if the value is another one. If it is empty, the message names the closest choice.
    """

    def keep(value: Any) -> Any:
        plain = _plain(value)
        for choice in choices:
            if type(plain) is type(choice) and plain == choice:
                return choice
        close = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise Unfit(hint or (close if close.startswith("Did you mean") else ""))

    return Validator(_listed([repr(choice) for choice in choices], ""), keep, {"enum": list(choices)})


# Objects ------------------------------------------------------------------------------------------------------------


def imported(*classes: type | str) -> tuple[type, ...]:
    """Returns classes for ``isinstance`` and ``issubclass``, without those that nobody has imported.

    A class that nobody has imported has no objects and no subclasses. So a setting may have a type that is expensive to
    import, and this only costs the runs that use it.

    >>> isinstance(1.0, imported("decimal:Decimal", float))
    True

    Args:
        *classes: Classes, or names with the module that defines or re-exports the class, such as ``"numpy:generic"``.
    """

    def find(cls: type | str) -> Any:
        module, _, name = cls.partition(":") if isinstance(cls, str) else ("", "", "")
        return getattr(sys.modules.get(module), name, None) if module else cls

    return tuple(cls for cls in map(find, classes) if cls is not None)


def instance_of(*classes: type | str, expected: str, hint: str = "") -> Validator:
    """Accepts objects of one of the classes, which are given as for ``imported``."""

    def keep(value: Any) -> Any:
        if not isinstance(value, imported(*classes)):
            raise Unfit(hint)
        return value

    return Validator(expected, keep, IMPORTABLE)


def subclass_of(cls: type | str) -> Validator:
    """Accepts the class, which is given as for ``imported``, and its subclasses, if they are not abstract."""
    name = cls.partition(":")[2] if isinstance(cls, str) else cls.__name__

    def keep(value: Any) -> type:
        if not isinstance(value, type) or not issubclass(value, imported(cls)):
            raise Unfit(f"Derive your class from {name}." if isinstance(value, type) else "")
        if inspect.isabstract(value):
            missing = ", ".join(sorted(value.__abstractmethods__))
            raise Unfit(f"{value.__name__} cannot be used as it is: it has to define {missing}.")
        return value

    return Validator(f"a subclass of {name}", keep, IMPORTABLE)


def function(expected: str = "a function", *, hint: str = "") -> Validator:
    """Accepts everything that can be called."""

    def keep(value: Any) -> Any:
        if not callable(value):
            raise Unfit(hint)
        return value

    return Validator(expected, keep, IMPORTABLE)


# Several ------------------------------------------------------------------------------------------------------------


def list_of(each: Validator, expected: str) -> Validator:
    """Accepts a sequence of such values. A tuple stays a tuple, and everything else becomes a list."""

    def keep(value: Any) -> Any:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
            raise Unfit
        return (tuple if type(value) is tuple else list)(map(each.keep, value))

    return Validator(expected, keep, None if each.schema is None else {"type": "array", "items": each.schema})


def dict_of(keys: Validator | None = None, values: Validator | None = None, *, expected: str = "a dict") -> Validator:
    """Accepts a mapping, and keeps a copy of it as a dict.

    Args:
        keys: The validator of the keys; None for any keys.
        values: The validator of the values; None for any values.
        expected: The ending of the sentence "expected ...".
    """

    def keep(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Unfit
        return {keys.keep(k) if keys else k: values.keep(v) if values else v for k, v in value.items()}

    own = {} if values is None else values.schema
    return Validator(expected, keep, None if own is None else {"type": "object", "additionalProperties": own})


def either(*validators: Validator) -> Validator:
    """Accepts what one of several validators accepts. The first of these says how the value is kept."""

    def keep(value: Any) -> Any:
        hints = []
        for validator in validators:
            try:
                return validator.keep(value)
            except Unfit as unfit:
                hints.append(str(unfit))
        raise Unfit(next(filter(None, hints), ""))

    alternatives = [each for validator in validators for each in validator.alternatives]
    return Validator(alternatives, keep, any_of(*(validator.schema for validator in validators)))


def optional(validator: Validator) -> Validator:
    """Accepts None, and what another validator accepts."""
    schema = any_of(validator.schema, {"type": "null"})
    return Validator(
        (*validator.alternatives, "None"), lambda value: None if value is None else validator.keep(value), schema
    )


def any_of(*schemas: Schema) -> Schema:
    """Returns the schema of the data that fits one of several schemas.

    >>> any_of({"type": "integer"}, None, {"type": "null"})
    {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}
    """
    found: list[Any] = []
    for schema in schemas:
        parts = [] if schema is None else schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
        found += [part for part in parts if part not in found]
    return {"anyOf": found} if len(found) > 1 else found[0] if found else None


def _listed(names: Sequence[str], before_or: str) -> str:
    """Returns ``a, b or c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}{before_or} or {names[-1]}"
