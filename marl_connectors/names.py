"""Looks up objects by name (``"package.module:attribute"``): names from the user, and names in a checkpoint.

A name from the user is imported without further checks. A checkpoint may have been written by another person. So a name
in it is only looked up where a name is expected, and the object must be of the expected kind before it is called.
``Names`` has the rules:

* Modules of Python's standard library, of its packaging and test tools, and ``__main__`` are not imported.
* A class must be a subclass of the expected class, such as RLModule.
* A function, or a class without such a base, must be one that the user has defined. It must not belong to this library
  or to the frameworks under it (torch, numpy, Gymnasium, PettingZoo), whose functions could do any harm.
* Without trust, only this library's own modules and a few named packages of environments are imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import os
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
    """Returns the object with the name ``"package.module:name"``.

    Raises:
        ConfigError: If the text has another form, if there is no such module or name, or if the module fails to
            import.
    """
    return import_attribute(spec, who="import_function", error=ConfigError)


def import_attribute(spec: str, *, who: str, error: type[MarlConnectorsError]) -> Any:
    """Does the same as ``import_function``, with another name and class for errors.

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
    """Imports a module by its name or its file. The error says whether the module is missing or fails to import."""
    if name.endswith(_PYTHON):
        name = module_of_file(name, who=who, error=error)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        missing = cause.name
        if missing is None:  # a path of RLlib: the message says what to use
            raise error(f"{who}: {cause}") from cause
        if name == missing or name.startswith(missing + "."):
            raise error(
                f"{who}: there is no module {missing!r}. Check the spelling, run from the folder that contains it, "
                f"or install its package."
            ) from cause
        raise error(f"{who}: module {name!r} needs {missing!r}, which is not installed. Install it.") from cause
    except Exception as cause:
        raise error(f"{who}: module {name!r} fails to import: {describe_error(cause)}.") from cause


def module_of_file(path: str, *, who: str, error: type[MarlConnectorsError]) -> str:
    """Returns the name under which Python imports a file, such as ``"my_folder.my_env"`` for ``"my_folder/my_env.py"``.

    Raises:
        MarlConnectorsError: If there is no such file, or if it is in no folder from which Python imports. Its class is
            ``error``.
    """
    file = Path(os.path.abspath(path))
    if not file.is_file():
        raise error(f"{who}: there is no file {path!r}. Check its path.")
    for folder in map(os.path.abspath, sys.path):
        if file.is_relative_to(folder):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            if _is_dotted_name(name):
                return name
    if not file.stem.isidentifier():
        raise error(f"{who}: Python cannot import {path!r}. Rename it, so that it has only letters, digits and _.")
    raise error(
        f"{who}: Python does not import from {str(file.parent)!r}. Go there, and name the module {file.stem!r}."
    )


_PYTHON: Final = ".py"
"""The ending of a file with Python code."""
_WORDS: Final = {"true": True, "false": False, "null": None}


def call_arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Reads the arguments of a call: Python literals, ``true``, ``false`` and ``null``; other words are strings.

    >>> call_arguments("42,y_size=42,linear_interp=false,mode=fast")
    ((42,), {'y_size': 42, 'linear_interp': False, 'mode': 'fast'})

    Raises:
        ValueError: If the text has another form.
    """
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    if not isinstance(call, ast.Call) or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(f"{text!r} is not a list of arguments")
    return (
        tuple(_argument(arg) for arg in call.args),
        {str(keyword.arg): _argument(keyword.value) for keyword in call.keywords},
    )


def _argument(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return ast.unparse(node)
    return ast.literal_eval(node)


def qualified_name(obj: Any) -> str | None:
    """Returns ``"module:name"`` if another process finds the same object by this name; else None.

    What this library exports has its public name, such as ``"marl_connectors:PPOConfig"``, whichever module defines
    it. Lambdas, local functions, and objects of the started script (``__main__``) have no name.
    """
    module_name, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not module_name or not name or module_name == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not obj:
        return None
    package = module_name.partition(".")[0]
    exported = sys.modules[package] if package == __name__.partition(".")[0] else None
    return f"{package}:{name}" if name in getattr(exported, "__all__", ()) else f"{module_name}:{name}"


# Names in checkpoints ------------------------------------------------------------------------------------------------


def _never(_: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Expected:
    """The objects that a name at some place in a checkpoint may stand for.

    Attributes:
        words: A description for messages.
        bases: Classes of which all subclasses are accepted.
        own: Whether objects that the user has defined are accepted.
        known: Whether objects of this library or of ``packages`` are accepted.
        packages: Packages besides this library whose modules may be imported without trust.
    """

    words: str
    bases: tuple[type, ...] = ()
    own: Callable[[Any], bool] = _never
    known: Callable[[Any], bool] = _never
    packages: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Names:
    """Looks up the names in a checkpoint.

    Attributes:
        trusted: Whether modules of the user are imported. Importing a module runs the code in it.
    """

    trusted: bool = True

    def resolve(self, name: Any, expected: Expected, *, who: str) -> Any:
        """Returns the object that a name stands for.

        Args:
            name: ``"package.module:attribute"``, as ``qualified_name`` returns it.
            expected: The objects that are accepted.
            who: The first words of the messages.

        Raises:
            CheckpointError: If the name is refused, if there is no such object, or if it is not accepted.
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
            f"{who}: expected {expected.words}, but {name!r} is {_kind_of(found)}, which is not accepted from a "
            f"checkpoint."
        )

    def import_module(self, name: str, expected: Expected, *, who: str) -> Any:
        """Imports and returns the module of a name.

        Raises:
            CheckpointError: If the module is not allowed, or fails to import.
        """
        top = name.partition(".")[0]
        if not _is_dotted_name(name):
            raise CheckpointError(f"{who}: expected the name of {expected.words}, but it is {brief(name)}.")
        if top in LIBRARY or top in expected.packages:
            return import_module(name, who=who, error=CheckpointError)
        if is_standard(top) or top in _TOOLS or (top in _FRAMEWORKS and name not in sys.modules):
            raise CheckpointError(
                f"{who}: expected {expected.words}, but {name!r} is a module of Python or of its tools, which "
                f"are not accepted from a checkpoint. If the setting is right, pass it again (config=...)."
            )
        if not self.trusted:
            raise CheckpointError(
                f"{who}: it names {name!r}, which is not part of this library, and trusted=False refuses it. If you "
                f"know that module, pass its objects again (config=...), or trust the checkpoint."
            )
        return import_module(name, who=who, error=CheckpointError)

    def accepts(self, found: Any, expected: Expected, *, package: str) -> bool:
        """Whether an object of a package is accepted. Nothing is called for this."""
        if isinstance(found, type) and expected.bases and issubclass(found, expected.bases):
            return True
        if (package in LIBRARY or package in expected.packages) and expected.known(found):
            return True
        is_own = self.trusted and package not in LIBRARY | _FRAMEWORKS and is_users(found)
        return is_own and expected.own(found)


def is_users(obj: Any) -> bool:
    """Whether a class or callable is a user's: not of Python, its tools, this library or the frameworks under it.

    A partial, a method or a decorated function is a user's if the function that it calls is. A local function of a
    framework counts as a user's too if it stands in a user's module, as with PettingZoo's ``parallel_wrapper_fn``.
    """
    layers = list(_layers(obj))
    return callable(layers[-1]) and all(
        _is_user_defined(layer) for layer in layers if not isinstance(layer, functools.partial)
    )


def is_function(obj: Any) -> bool:
    """Whether an object is a function written in Python, or a partial or decorated one."""
    *_, innermost = _layers(obj)
    return not isinstance(obj, type) and isinstance(innermost, FunctionType)


def is_standard(package: str) -> bool:
    """Whether a top-level package or module belongs to Python's standard library. Nothing is imported for this."""
    if package in sys.stdlib_module_names:
        return True
    try:
        origin = getattr(importlib.util.find_spec(package), "origin", None)
    except (ImportError, ValueError):  # the module exists without a spec
        origin = getattr(sys.modules.get(package), "__file__", None)
    path = Path(origin or "")
    return path.is_relative_to(_STANDARD_LIBRARY) and not {"site-packages", "dist-packages"}.intersection(path.parts)


def _layers(obj: Any) -> Iterator[Any]:
    """Yields the object, then the function inside a partial or decorated function, and so on."""
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
    """Describes the kind of an object without calling any of its methods."""
    if isinstance(obj, type):
        return f"the class {obj.__module__}.{obj.__qualname__}"
    return f"a {type(obj).__name__}"


def brief(value: Any) -> str:
    """Shortens a value of a checkpoint for messages."""
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
