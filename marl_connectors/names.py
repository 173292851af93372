"""Objects by name, as ``"package.module:attribute"``: those that a user writes, and those that a checkpoint brings.

What a user writes is imported as it stands. A checkpoint is a file that somebody else may have written, so a name in it
is only followed where one is expected, and what it leads to must be of the kind that is expected there before anything
is called. ``Names`` holds the rules:

* Nothing of Python's standard library, of its packaging and test tools, and no ``__main__`` is imported.
* A class must be derived from what is expected, such as RLModule.
* A function, or a class without such a base, must be one that the user has defined: not one of this library, nor of the
  frameworks under it (torch, numpy, Gymnasium, PettingZoo), which can do anything with the right arguments.
* Without trust, only this library's own modules are imported, and a few named packages of environments.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError, describe_error, did_you_mean

LIBRARY: Final = frozenset({"marl_connectors", "marl_envs"})
"""The packages that come with this library."""

_FRAMEWORKS: Final = frozenset({"gymnasium", "numpy", "pettingzoo", "safetensors", "supersuit", "torch"})
_TOOLS: Final = frozenset(
    {"IPython", "_distutils_hack", "_pytest", "pip", "pkg_resources", "py", "pytest", "setuptools", "test", "wheel"}
)
_STANDARD_LIBRARY: Final = Path(sysconfig.get_paths()["stdlib"])


def import_function(spec: str) -> Any:
    """The object that ``"package.module:name"`` names.

    Raises:
        ConfigError: If the text has another form, or the module or the name is not there, or the module fails to
            import.
    """
    return import_attribute(spec, who="import_function", error=ConfigError)


def import_attribute(spec: str, *, who: str, error: type[MarlConnectorsError]) -> Any:
    """As ``import_function``, with the name of the asker and the class of the errors.

    Args:
        spec: ``"package.module:name"``, where the name may have dots.
        who: The first word of the messages.
        error: The class of the errors that are raised.
    """
    module_name, colon, attribute = (part.strip() for part in spec.partition(":"))
    if not (module_name and colon and attribute):
        raise error(f'{who}: expected "my_module:my_function", but got {spec!r}.')
    found = import_module(module_name, who=who, error=error)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _no_attribute(found, module_name, attribute, part, who=who, error=error)
        found = getattr(found, part)
    return found


def _no_attribute(
    found: Any, module_name: str, attribute: str, part: str, *, who: str, error: type[MarlConnectorsError]
) -> MarlConnectorsError:
    known = [name for name in dir(found) if not name.startswith("_")]
    close = did_you_mean(part, known)
    hint = close if len(known) <= 12 or close.startswith("Did you mean") else "Check its spelling."
    return error(f"{who}: module {module_name!r} has no {attribute!r}. {hint}")


def import_module(name: str, *, who: str, error: type[MarlConnectorsError]) -> Any:
    """The module called ``name``; says whether it is missing, or there and broken."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        missing = cause.name or ""
        if missing and (name == missing or name.startswith(missing + ".")):
            raise error(
                f"{who}: there is no module {missing!r}. Check the spelling, run from the folder that holds it, "
                f"or install the package that has it."
            ) from cause
        raise error(f"{who}: module {name!r} needs {missing!r}, which is not installed. Install it.") from cause
    except Exception as cause:
        raise error(f"{who}: module {name!r} fails to import: {describe_error(cause)}.") from cause


def qualified_name(obj: Any) -> str | None:
    """``"module:name"`` if that names this very object in any process, else None.

    A lambda, a local function, and anything defined in the started script (``__main__``) has no such name.
    """
    module_name, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not module_name or not name or module_name == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{name}" if found is obj else None


# Names in checkpoints ------------------------------------------------------------------------------------------------


def _never(_: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Expected:
    """What a name in a checkpoint may stand for at some place.

    Attributes:
        words: What is expected there, for messages.
        bases: Classes derived from these are, whoever has defined them.
        own: Whether something that the user has defined is.
        known: Whether something of this library or of ``packages`` is.
        packages: Those besides this library whose modules may be imported without trust.
    """

    words: str
    bases: tuple[type, ...] = ()
    own: Callable[[Any], bool] = _never
    known: Callable[[Any], bool] = _never
    packages: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Names:
    """Follows the names in a checkpoint.

    Attributes:
        trusted: Whether modules of the user are imported. Importing a module runs the code in it.
    """

    trusted: bool = True

    def resolve(self, name: Any, expected: Expected, *, who: str) -> Any:
        """What a name stands for.

        Args:
            name: ``"package.module:attribute"``, as ``qualified_name`` gives it.
            expected: What may stand there.
            who: The first words of the messages.

        Raises:
            CheckpointError: If the name is refused, leads nowhere, or leads to something else.
        """
        module_name, colon, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
        if not colon or not _is_dotted_name(attribute):
            raise CheckpointError(f"{who}: expected the name of {expected.words}, but it is {brief(name)}.")
        found = self.import_module(module_name, expected, who=who)
        for i, part in enumerate(attribute.split(".")):
            if i and not isinstance(found, type):
                break
            if not hasattr(found, part):
                raise _no_attribute(found, module_name, attribute, part, who=who, error=CheckpointError)
            found = getattr(found, part)
        else:
            if self.accepts(found, expected, package=module_name.partition(".")[0]):
                return found
        raise CheckpointError(
            f"{who}: expected {expected.words}, but {name!r} is {_kind_of(found)}, which a checkpoint cannot ask for."
        )

    def import_module(self, name: str, expected: Expected, *, who: str) -> Any:
        """The module of a name.

        Raises:
            CheckpointError: If it may not be imported, or cannot be.
        """
        top = name.partition(".")[0]
        if not _is_dotted_name(name):
            raise CheckpointError(f"{who}: expected the name of {expected.words}, but it is {brief(name)}.")
        if top in LIBRARY or top in expected.packages:
            return import_module(name, who=who, error=CheckpointError)
        if is_standard(top) or top in _TOOLS or (top in _FRAMEWORKS and name not in sys.modules):
            raise CheckpointError(
                f"{who}: expected {expected.words}, but {name!r} is a module of Python itself or of its tools, "
                f"of which a checkpoint gets nothing. If the setting was meant so, pass it again: config=..."
            )
        if not self.trusted:
            raise CheckpointError(
                f"{who}: it names {name!r}, which is not part of this library, and trusted=False refuses that. If you "
                f"know that module, pass what is in it again (config=...), or trust the checkpoint."
            )
        return import_module(name, who=who, error=CheckpointError)

    def accepts(self, found: Any, expected: Expected, *, package: str) -> bool:
        """Whether an object of a package is what is expected. Calls nothing."""
        if isinstance(found, type) and expected.bases and issubclass(found, expected.bases):
            return True
        if (package in LIBRARY or package in expected.packages) and expected.known(found):
            return True
        is_own = self.trusted and package not in LIBRARY | _FRAMEWORKS and is_users(found)
        return is_own and expected.own(found)


def is_users(obj: Any) -> bool:
    """Whether a class or callable is a user's: not Python's, nor of its tools, this library or the frameworks under it.

    A partial, a method or a decorated function is if what it calls is. So is a function that one of the frameworks has
    made within another one, as PettingZoo's ``parallel_wrapper_fn`` does: in a user's module it was made for the user.
    """
    layers = list(_layers(obj))
    return callable(layers[-1]) and all(
        _is_user_defined(layer) for layer in layers if not isinstance(layer, functools.partial)
    )


def is_function(obj: Any) -> bool:
    """Whether an object is a function written in Python, a partial or decorated one too."""
    *_, innermost = _layers(obj)
    return not isinstance(obj, type) and isinstance(innermost, FunctionType)


def is_standard(package: str) -> bool:
    """Whether a package or module at the top is of Python's standard library. Imports nothing."""
    if package in sys.stdlib_module_names:
        return True
    try:
        origin = getattr(importlib.util.find_spec(package), "origin", None)
    except (ImportError, ValueError):  # it is there without a description of it
        origin = getattr(sys.modules.get(package), "__file__", None)
    path = Path(origin or "")
    return path.is_relative_to(_STANDARD_LIBRARY) and not {"site-packages", "dist-packages"}.intersection(path.parts)


def _layers(obj: Any) -> Iterator[Any]:
    """The object, and what it calls: of a partial its function, of a decorated function the one within."""
    seen: list[Any] = []
    while not any(obj is one for one in seen):
        seen.append(obj)
        yield obj
        if isinstance(obj, functools.partial):
            obj = obj.func
        elif isinstance(obj, MethodType):
            obj = obj.__func__
        elif not isinstance(obj, type) and inspect.getattr_static(obj, "__wrapped__", None) is not None:
            obj = obj.__wrapped__


def _is_user_defined(obj: Any) -> bool:
    module_name = getattr(obj, "__module__", None)
    if not isinstance(module_name, str):
        return False
    top = module_name.partition(".")[0]
    if top in _FRAMEWORKS:
        return isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__
    return not (top in LIBRARY or top in _TOOLS or is_standard(top))


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() and not part.startswith("__") for part in text.split("."))


def _kind_of(obj: Any) -> str:
    """In words, without asking the object itself."""
    if isinstance(obj, type):
        return f"the class {obj.__module__}.{obj.__qualname__}"
    return f"a {type(obj).__name__}"


def brief(value: Any) -> str:
    """A value of a checkpoint, for messages."""
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
