"""Names in documents, comments and docstrings exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documents import all_pages

ROOT = Path(__file__).parents[3]
FILE = re.compile(r"\b(?:src|tests|measurements|docs|scripts|examples)/[\w./-]*\w")
MODULE = re.compile(r"\bproctor(?:\.[a-z_]\w*)+")
ROOM_FILE = re.compile(r"`((?:[a-z_]\w*/)+[a-z_]\w*)`")
"""Files of ours as documents name them: ``engine/worker``."""
TO_BE_WRITTEN = {"src/proctor/policies/circles.py", "src/proctor/benchmarks/track.py"}
"""Files that readers of docs/tutorials/own_policy.md and docs/tutorials/own_benchmark.md write."""
KEYS = {"proctor.ended", "proctor.interval", "proctor.stopped", "proctor.warnings"}
"""Keys of eval_info.json, which docs/explanation/statistics.md uses."""
HUB_NOTE = "proctor.json"
"""The file in a download that says where it is from."""


def sources() -> list[Path]:
    folders = ("src", "measurements", "scripts", "tests")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [path for path in paths if path != Path(__file__)]


def is_module(name: str) -> bool:
    """Return whether the name is one of our modules, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        path = ROOT.joinpath("src", *parts[:length])
        if path.is_dir() or path.with_suffix(".py").is_file():
            return length == len(parts) or defines(path, parts[length])
    return parts[1] in (ROOT / "src/proctor/__init__.py").read_text(encoding="utf-8")


def defines(module: Path, name: str) -> bool:
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) is not None


def missing(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    files = {name for name in FILE.findall(text) if not (ROOT / name).exists()}
    modules = {name for name in MODULE.findall(text) if not is_module(name)}
    lost = (files | modules) - TO_BE_WRITTEN - KEYS - {HUB_NOTE}
    return [f"{path.relative_to(ROOT)}: {name}" for name in sorted(lost)]


def test_every_path_and_module_that_documents_name_exists() -> None:
    assert [line for page in all_pages() for line in missing(page)] == []


def test_every_path_and_module_that_sources_name_exists() -> None:
    assert [line for path in sources() for line in missing(path)] == []


def test_every_package_that_documents_name_exists() -> None:
    lost = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in all_pages()
        for name in ROOM_FILE.findall(page.read_text(encoding="utf-8"))
        if (ROOT / "src/proctor" / name.split("/")[0]).is_dir()
        and not (ROOT / "src/proctor" / name).is_dir()
        and not (ROOT / "src/proctor" / name).with_suffix(".py").is_file()
    ]
    assert lost == []


def test_a_name_that_does_not_exist_would_be_found() -> None:
    assert not is_module("proctor.engine.nowhere")
    assert not is_module("proctor.nowhere")
    assert is_module("proctor.engine.worker.worker.Worker")
    assert FILE.findall("see `docs/nowhere.md`, src/proctor/cli.py.") == [
        "docs/nowhere.md",
        "src/proctor/cli.py",
    ]
