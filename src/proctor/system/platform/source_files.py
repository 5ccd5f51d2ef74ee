"""The source files of user code: its own file, and the local files that it imports.

They are found in the text, without running the code.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from proctor.system.files import MAX_JSON_BYTES, read_regular_file, sha256_of
from proctor.system.user_code import is_installed

_MAX_FILES = 5_000


def source_hashes(file: Path, package_depth: int = 0) -> dict[str, str]:
    """Return the SHA-256 of ``file`` and of every local file it imports, by path.

    ``package_depth`` is the number of dots in the module's name: imports are resolved from the
    folder that many levels above the file's own. For an installed package only its own files count;
    other packages have versions. Imports by a computed name are not found.

    Raises:
        OSError: a file cannot be read.
    """
    root = file.absolute().parents[package_depth]
    own = file.absolute().relative_to(root).parts[0]
    installed = is_installed(root)
    found: dict[Path, None] = {}
    packages = [folder / "__init__.py" for folder in file.absolute().parents[:package_depth]]
    waiting = [file.absolute(), *(path for path in packages if path.is_file())]
    while waiting and len(found) < _MAX_FILES:
        current = waiting.pop()
        if current in found:
            continue
        found[current] = None
        for imported in _imported(current, root):
            if not installed or imported.relative_to(root).parts[0] == own:
                waiting.append(imported)
    return {path.relative_to(root).as_posix(): sha256_of(path) for path in sorted(found)}


def module_hashes(name: str) -> dict[str, str]:
    """Return the hashes of a module that is not installed; empty for one that is: it has a version.

    The module is not imported.
    """
    top = importlib.util.find_spec(name.partition(".")[0]) if name else None
    if top is None or (top.origin is None and not top.submodule_search_locations):
        return {}
    inside = top.submodule_search_locations
    root = Path(next(iter(inside))).parent if inside else Path(str(top.origin)).parent
    place = root.joinpath(*name.split("."))
    for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if file.is_file() and not is_installed(file):
            return source_hashes(file, len(file.relative_to(root).parts) - 1)
    return {}


def _imported(file: Path, root: Path) -> Iterator[Path]:
    """Yield the files below ``root`` that ``file`` imports."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(read_regular_file(file, MAX_JSON_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # the import of this file reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(root, root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = root if node.level == 0 else file.parents[node.level - 1]
            for alias in node.names:
                yield from _modules(start, root, ".".join(filter(None, (node.module, alias.name))))


def _modules(start: Path, root: Path, name: str) -> Iterator[Path]:
    """Yield the file of every package in a dotted name, and of the module itself."""
    if not start.is_relative_to(root):
        return
    place = start
    for part in name.split("."):
        if (place / "__init__.py").is_file() and place != root:
            yield place / "__init__.py"
        if (place / f"{part}.py").is_file():
            yield place / f"{part}.py"
        place = place / part
    if (place / "__init__.py").is_file():
        yield place / "__init__.py"
