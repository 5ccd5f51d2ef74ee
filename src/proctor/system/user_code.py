"""Code that a user names as ``package.module:NAME``: import it, and locate its errors."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from proctor.errors import PluginError, ProctorError

_PROCTOR_FOLDER = Path(__file__).resolve().parents[1]
_INSTALLED = ("site-packages", "dist-packages")
_STDLIB_FOLDER = Path(sysconfig.get_paths()["stdlib"]).resolve()


def import_user_module(module: str) -> ModuleType:
    """Import a module that the user named; the current folder is searched last."""
    add_current_folder_to_path()
    return importlib.import_module(module)


def add_current_folder_to_path() -> None:
    """Append the current folder to ``sys.path``, here and in workers.

    It comes last, so that a file there cannot shadow an installed package.
    """
    here = str(Path.cwd())
    if not {here, ""} & set(sys.path):
        sys.path.append(here)
        importlib.invalidate_caches()


@contextlib.contextmanager
def explaining_user_code_errors(what: str, code: Any = None) -> Iterator[None]:
    """Turn an exception of user code into one line with its file and line number.

    ``code`` is the called object, for errors that are raised before its first line runs.
    """
    try:
        yield
    except ProctorError:
        raise
    except (Exception, SystemExit) as error:  # a script that ends the process has no result
        place = error_location(error) or ("" if code is None else definition_location(code))
        raise PluginError(
            f"{what}: {_prefixed(place)}{exception_line(error)}", code="plugin.raised"
        ) from error


def error_location(error: BaseException) -> str:
    """Return where ``error`` was raised as ``file.py:12``: the deepest line of the user's own code.

    Installed code counts only if there is no other; the standard library and Proctor never count.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short_path(error.filename)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_user_code(f.filename)]
    own = [frame for frame in frames if not is_installed(Path(frame.filename))]
    deepest = (own or frames)[-1:]
    return "".join(f"{_short_path(frame.filename)}:{frame.lineno}" for frame in deepest)


def definition_location(code: Any) -> str:
    """Return where a class or function, or an object's class, is defined: ``file.py:12``."""
    known = inspect.isclass(code) or inspect.isroutine(code)
    try:
        defined = inspect.unwrap(code) if known else type(code)
        file = inspect.getsourcefile(defined)
        line = inspect.getsourcelines(defined)[1]
    except (OSError, TypeError):  # defined interactively, or not in Python
        return ""
    return "" if file is None else f"{_short_path(file)}:{line}"


def exception_line(error: BaseException) -> str:
    """Return the exception's type and text in one line."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_contract(thing: Any, contract: type[Any]) -> None:
    """Refuse an object without the members of ``contract`` or with other parameters."""
    own = type(thing).__name__
    for name in getattr(contract, "__annotations__", ()):
        if not hasattr(thing, name):
            raise plugin_error(thing, f"{own} has no attribute {name!r}")
    defined = [item for base in reversed(contract.__mro__) for item in vars(base).items()]
    for name, method in defined:  # in the order of the source
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        parameters = list(inspect.signature(method).parameters)[1:]
        offered = getattr(thing, name, None)
        if not callable(offered):
            raise plugin_error(thing, f"{own} has no method {name}({', '.join(parameters)})")
        with contextlib.suppress(ValueError):  # not in Python: its signature is unknown
            signature = inspect.signature(offered)
            try:
                signature.bind(*parameters)
            except TypeError:
                must = f"{own}.{name}{signature} must take ({', '.join(parameters)})"
                raise plugin_error(offered, must) from None


def check_protocol_is_json(protocol: Callable[[], Any]) -> None:
    """Refuse a protocol that is not JSON: it is part of a run's fingerprint."""
    value = protocol()
    name = protocol.__qualname__
    if not isinstance(value, dict):
        raise plugin_error(protocol, f"{name}() returned a {type(value).__name__}, not a dict")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise plugin_error(protocol, f"{name}() is not JSON: {error}") from None


def plugin_error(code: Any, text: str) -> PluginError:
    """Return the error with ``text`` and the location of ``code``."""
    return PluginError(
        f"{_prefixed(definition_location(code))}{text}", code="plugin.contract-violation"
    )


def _prefixed(place: str) -> str:
    return f"{place}: " if place else ""


def _is_user_code(file: str) -> bool:
    path = Path(file).resolve()
    if _PROCTOR_FOLDER in path.parents or file.startswith("<"):
        return False
    return is_installed(path) or _STDLIB_FOLDER not in path.parents


def is_installed(path: Path) -> bool:
    """Return whether an installer put the file there."""
    return any(part in _INSTALLED for part in path.parts)


def _short_path(file: str) -> str:
    """Return a path relative to the current folder, if it lies below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if here in path.parents else file
