"""Archives of recipes' assets: they unpack to a bounded size, whatever their headers say."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from proctor.benchmarks.recipes import install
from proctor.benchmarks.recipes.recipe import Asset
from proctor.errors import UsageError
from tests.refusals import refuses

MB = 2**20


class Quiet:
    def stage(self, *_: object) -> None: ...

    def update(self, *_: object) -> None: ...


def tar(mode: str, files: dict[str, int], pax: dict[str, str] | None = None) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:  # type: ignore[call-overload]
        for name, size in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.pax_headers = size, pax or {}
            archive.addfile(entry, io.BytesIO(bytes(size)))
    return sink.getvalue()


def zipped(files: dict[str, int]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, size in files.items():
            archive.writestr(name, bytes(size))
    return sink.getvalue()


def unpack(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked_mb: float = 0.0
) -> set[str]:
    """Install an asset of 1 MB with this content; return the names of its files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def copied(remote: object, path: Path, advice: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    monkeypatch.setattr(install, "download_file", copied)
    asset = Asset(url="https://example.org/pack", into="a", megabytes=1, unpacked_mb=unpacked_mb)
    install._fetch(asset, tmp_path / "f", Quiet())
    return {path.name for path in (tmp_path / "f").rglob("*") if path.is_file()}


FORMS = ["w", "w:gz", "w:bz2", "w:xz"]


@pytest.mark.parametrize("mode", FORMS)
def test_an_archive_within_its_limit_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    content = tar(mode, {"in/one": 1000, "two": MB})
    assert unpack(content, tmp_path, monkeypatch) == {"one", "two"}


@pytest.mark.parametrize("mode", FORMS)
def test_a_tar_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    content = tar(mode, {"one": 1000, "big": 20 * MB})
    with refuses(UsageError, "benchmark.install-failed"):
        unpack(content, tmp_path, monkeypatch)
    assert not (tmp_path / "f/a/big").exists()
    assert "big" in unpack(content, tmp_path, monkeypatch, unpacked_mb=30)


def test_a_long_header_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar("w:xz", {"one": 10}, {"comment": "x" * 20 * MB})
    with refuses(UsageError, "benchmark.install-failed"):
        unpack(content, tmp_path, monkeypatch)


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses(UsageError, "benchmark.install-failed"):
        unpack(zipped({"big": 20 * MB}), tmp_path, monkeypatch)
    assert not (tmp_path / "f/a/big").exists()
    assert unpack(zipped({"small": 1000}), tmp_path / "2", monkeypatch) == {"small"}


def test_many_files_and_half_an_archive_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "_MAX_MEMBERS", 3)
    content = tar("w:gz", {str(number): 1 for number in range(5)})
    for spoiled in (content, tar("w:gz", {"a": 1000})[:-60], tar("w:xz", {"a": 1000})[:-60]):
        with refuses(UsageError, "benchmark.install-failed"):
            unpack(spoiled, tmp_path / str(len(spoiled)), monkeypatch)
