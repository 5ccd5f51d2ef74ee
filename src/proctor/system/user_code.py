"""Code that a user names by ``package.module:NAME``: imported, and blamed with file and line."""

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
from proctor.system.source_files import is_installed

_OURS = Path(__file__).resolve().parents[1]
_PYTHONS = Path(sysconfig.get_paths()["stdlib"]).resolve()


def import_user_module(module: str) -> ModuleType:
    """Import a module that the user named, from the current folder if it is nowhere else."""
    add_current_folder_to_path()
    return importlib.import_module(module)


def add_current_folder_to_path() -> None:
    """Make the current folder the last place to look for modules, here and in workers.

    The last, so that no file that happens to lie there stands in for an installed package.
    """
    here = str(Path.cwd())
    if not {here, ""} & set(sys.path):
        sys.path.append(here)
        importlib.invalidate_caches()


@contextlib.contextmanager
def explaining_user_code_errors(what: str, code: Any = None) -> Iterator[None]:
    """Name the file and line in whatever somebody else's code raises, in one line.

    ``code`` is what was called, for errors that come before its first line is reached.

    Raises:
        PluginError: beginning with ``what``.
    """
    try:
        yield
    except ProctorError:
        raise
    except Exception as error:
        place = error_location(error) or ("" if code is None else definition_location(code))
        raise PluginError(f"{what}: {_prefixed(place)}{exception_line(error)}") from error


def error_location(error: BaseException) -> str:
    """Return where ``error`` was raised as ``file.py:12``: the deepest line of the user's own code.

    Code that was installed counts only where there is no other; Python's and ours never do.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_theirs(f.filename)]
    own = [frame for frame in frames if not is_installed(Path(frame.filename))]
    deepest = (own or frames)[-1:]
    return "".join(f"{_shown(frame.filename)}:{frame.lineno}" for frame in deepest)


def definition_location(code: Any) -> str:
    """Return where a class or function, or the class of an object, begins: ``file.py:12``."""
    known = inspect.isclass(code) or inspect.isroutine(code)
    try:
        defined = inspect.unwrap(code) if known else type(code)
        file = inspect.getsourcefile(defined)
        line = inspect.getsourcelines(defined)[1]
    except (OSError, TypeError):  # typed at a prompt, or not written in Python
        return ""
    return "" if file is None else f"{_shown(file)}:{line}"


def exception_line(error: BaseException) -> str:
    """Return the exception and its text in one line."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}".removesuffix(": ")


def check_contract(thing: Any, contract: type[Any]) -> None:
    """Refuse an object without what ``contract`` lists, or with methods of other parameters.

    Raises:
        PluginError: naming the class or method, and where it stands.
    """
    own = type(thing).__name__
    for name in contract.__annotations__:
        if not hasattr(thing, name):
            raise plugin_error(thing, f"{own} has no attribute {name!r}")
    for name, method in vars(contract).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        wanted = list(inspect.signature(method).parameters)[1:]
        offered = getattr(thing, name, None)
        if not callable(offered):
            raise plugin_error(thing, f"{own} has no method {name}({', '.join(wanted)})")
        with contextlib.suppress(ValueError):  # not written in Python: nobody can tell
            signature = inspect.signature(offered)
            try:
                signature.bind(*wanted)
            except TypeError:
                must = f"{own}.{name}{signature} must take ({', '.join(wanted)})"
                raise plugin_error(offered, must) from None


def check_protocol_is_json(protocol: Callable[[], Any]) -> None:
    """Refuse rules that cannot be written down: they are part of a run's fingerprint.

    Raises:
        PluginError: naming the method, its file and line.
    """
    said = protocol()
    name = protocol.__qualname__
    if not isinstance(said, dict):
        raise plugin_error(protocol, f"{name}() returned a {type(said).__name__}, not a dict")
    try:
        json.dumps(said, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as bad:
        raise plugin_error(protocol, f"{name}() is no JSON: {bad}") from None


def plugin_error(code: Any, text: str) -> PluginError:
    """Return the error that says ``text`` of ``code``, with its place."""
    return PluginError(f"{_prefixed(definition_location(code))}{text}")


def _prefixed(place: str) -> str:
    return f"{place}: " if place else ""


def _is_theirs(file: str) -> bool:
    path = Path(file).resolve()
    if path.is_relative_to(_OURS) or file.startswith("<"):
        return False
    return is_installed(path) or not path.is_relative_to(_PYTHONS)


def _shown(file: str) -> str:
    """Return a path as short as it can be told from here."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
